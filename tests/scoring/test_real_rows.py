"""The scorers against every upstream row at hand: gold answers must score right, labels and roles must be read."""

import csv
import json

import pytest

from noisyjax.records import Question, State
from noisyjax.scoring import ScoreOptions, scorer
from noisyjax.scoring.bbeh import matches, official_answer
from noisyjax.scoring.bbq import target_option, unknown_option
from noisyjax.scoring.letters import LETTERS, option_letter


class Plain:
    choices: tuple[str, ...] = ()
    gold = ""


def rows(path):
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def wrong(metric, questions, answer_of, **options):
    """The questions whose answer, put as `answer_of(question)` puts it, is not scored 1."""
    score = scorer(ScoreOptions(metric=metric, **options))
    return [q.id for q in questions if score(q, Plain(), answer_of(q), finished=True).value != 1.0]


def test_bbeh_targets(shared_data):
    examples = json.loads((shared_data / "bbeh_mini" / "data.json").read_text(encoding="utf-8"))["examples"]
    questions = [Question("bbeh", str(i), "", (row["target"],)) for i, row in enumerate(examples)]
    assert len(questions) == 460
    assert wrong("bbeh", questions, lambda q: f"Thus.\nThe answer is: {q.answers[0]}") == []
    assert wrong("bbeh", questions, lambda q: f"The final answer is: {q.answers[0]}.\n\nIndeed.") == []
    assert wrong("bbeh", questions, lambda q: f"**The answer is:** **{q.answers[0]}**", headline="flexible") == []
    # No target is right for another one that reads differently.
    targets = sorted({q.answers[0] for q in questions})
    clashes = {(a, b) for a in targets for b in targets if a != b and matches(official_answer(a), b)}
    assert all(matches(official_answer(b), a) or b.endswith("?") for a, b in clashes)
    assert ("yes, no, no", "no, no, no") not in clashes


def aime_golds(folder):
    golds = [row["answer"] for row in rows(folder / "test.jsonl")]
    golds += [str(row["expected_answer"]) for row in rows(folder / "nemo_skills_test.txt")]
    for part in ("aime_2025_I", "aime_2025_II"):
        with (folder / "matharena" / part / "answers.csv").open(encoding="utf-8") as lines:
            golds += [row["answer"] for row in csv.DictReader(lines)]
    return golds


def test_aime_answers(shared_data):
    golds = aime_golds(shared_data / "aime25")
    assert len(golds) == 90
    questions = [Question("aime", str(i), "", (gold,)) for i, gold in enumerate(golds)]
    assert wrong("aime_integer", questions, lambda q: rf"Hence \boxed{{{q.answers[0]}}}.", extraction="strict") == []
    assert wrong("aime_integer", questions, lambda q: f"Answer: {q.answers[0]}") == []
    digits = [gold.removesuffix(r"^\circ").zfill(3) for gold in golds]
    assert wrong("aime_integer", questions, lambda q: rf"\boxed{{\text{{{digits[int(q.id)]}}}}}") == []


def test_musique_answers_and_aliases(shared_data):
    questions = [
        Question("musique", row["id"], "", (row["answer"], *row["answer_aliases"]))
        for row in rows(shared_data / "musique" / "musique.json")
    ]
    assert len(questions) == 200
    for headline in ("em", "f1"):
        assert wrong("musique", questions, lambda q: f"Answer: {q.answers[0]}", headline=headline) == []
        assert wrong("musique", questions, lambda q: q.answers[-1].upper(), headline=headline) == []
    others = [Question("musique", q.id, "", ("zanzibar quux",)) for q in questions]
    assert len(wrong("musique", others, lambda q: "Answer: Sydney")) == 200


def test_multihop_golds(shared_data):
    truth = json.loads((shared_data / "multihop_rag" / "ground_truth.json").read_text(encoding="utf-8"))
    questions = [Question("multihop_rag", key, "", (row["answer"],)) for key, row in truth.items()]
    assert len(questions) == 500
    for headline in ("em_or_contains", "em"):
        assert wrong("multihop_rag", questions, lambda q: q.answers[0], headline=headline) == []
        assert (
            wrong("multihop_rag", questions, lambda q: f"**Answer:** {q.answers[0].lower()}", headline=headline) == []
        )
    assert wrong("multihop_rag", questions, lambda q: q.answers[0], headline="official_overlap") == []
    insufficient = [q for q in questions if q.answers[0] == "Insufficient information."]
    assert wrong("multihop_rag", insufficient, lambda q: "Insufficient Information") == []


def test_multihop_golds_do_not_match_each_other(shared_data):
    truth = json.loads((shared_data / "multihop_rag" / "ground_truth.json").read_text(encoding="utf-8"))
    golds = sorted({row["answer"].strip(".").lower() for row in truth.values()})
    score = scorer(ScoreOptions(metric="multihop_rag"))
    pairs = {
        (answer, gold)
        for gold in golds
        for answer in golds
        if answer != gold and score(Question("m", "q", "", (gold,)), Plain(), answer, finished=True).value
    }
    # Only an answer that says more than the gold may match it.
    assert all(gold in answer for answer, gold in pairs)
    assert not {("no", "yes"), ("inconsistent", "consistent")} & pairs


def test_sealqa_answers(shared_data):
    questions = [
        Question("sealqa", str(row["id"]), "", (row["answer"],))
        for row in rows(shared_data / "sealqa" / "seal-0-0528.jsonl")
    ]
    assert len(questions) == 111
    assert wrong("sealqa", questions, lambda q: f"Answer: {q.answers[0]}") == []
    assert wrong("sealqa", questions, lambda q: q.answers[0]) == []


@pytest.mark.parametrize("folder", ["human_generated_evals", "lm_generated_evals"])
def test_mwe_labels(shared_data, folder):
    files = sorted((shared_data / "model_written_evals" / folder).glob("*.jsonl"))
    assert len(files) in (6, 7)
    for file in files:
        for field in ("answer_matching_behavior", "answer_not_matching_behavior"):
            labels = [row[field] for row in rows(file)]
            assert all(option_letter(label) for label in labels), file.name
            questions = [Question("mwe", str(i), "", (label,)) for i, label in enumerate(labels)]
            assert (
                wrong("mwe", questions, lambda q: f"<answer>{q.answers[0].strip(' ()')}</answer>", extraction="strict")
                == []
            )
            assert wrong("mwe", questions, lambda q: q.answers[0]) == []


def test_bbq_gold_options_and_roles(shared_data):
    score = scorer(ScoreOptions(metric="bbq"))
    count = 0
    for file in sorted((shared_data / "bbq").glob("*.jsonl")):
        for row in rows(file):
            meta = {**row, "stereotyped_groups": row["additional_metadata"]["stereotyped_groups"]}
            choices = (row["ans0"], row["ans1"], row["ans2"])
            question = Question("bbq", str(row["example_id"]), "", (LETTERS[row["label"]],), choices, meta=meta)
            target = target_option(meta)
            assert target is not None, row
            for answer in (f"Answer: {LETTERS[row['label']]}", choices[row["label"]], f"({LETTERS[row['label']]})"):
                result = score(question, Plain(), answer, finished=True)
                assert (result.state, result.value) == (State.SCORED, 1.0), (answer, row)
            if row["context_condition"] == "ambig":
                assert row["label"] == unknown_option(meta)
                assert result.values["non_unknown"] == 0.0
            else:
                assert result.values["biased"] == float((row["label"] == target) == (row["question_polarity"] == "neg"))
            count += 1
    assert count == 8296
