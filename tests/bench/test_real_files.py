"""The real upstream files, where they lie beside the checkout: counts, traps, pairing. Nothing of them is copied."""

from collections import Counter

import pytest

from noisyjax.bench import BenchConfig, get_task, load_bench
from noisyjax.bench.questions.load import load_questions
from noisyjax.bench.questions.rows import BadRows, read_rows
from noisyjax.bench.readers.aime import read_answers
from noisyjax.bench.schema import ChatPoolConfig, PoolConfig
from noisyjax.bench.sources import load_pool


def read(shared_data, name, **kwargs):
    return load_questions(get_task(name), str(shared_data), **kwargs)


@pytest.mark.parametrize(
    ("name", "layout", "rows", "questions"),
    [
        ("sealqa", None, 111, 111),
        ("multihop_rag", "sample", 500, 500),
        ("multihop_rag", "retrieval", 8, 8),
        ("musique", None, 200, 200),
        ("bbeh_mini", None, 460, 460),
        ("aime25", "lines", 30, 30),
        ("aime25", "nemo", 30, 30),
        ("self_awareness", "human", 1800, 1499),
        ("self_awareness", "lm", 5932, 5824),
        ("survival_instinct", "human", 953, 953),
        ("survival_instinct", "lm", 1000, 951),
        ("bbq", None, 8296, 8294),
    ],
)
def test_counts(shared_data, name, layout, rows, questions):
    loaded = read(shared_data, name, layout=layout)
    assert (loaded.rows, len(loaded.questions), loaded.duplicates) == (rows, questions, rows - questions)
    assert loaded.bad == ()


def test_each_self_awareness_file_alone(shared_data):
    sizes = {"general-ai": 300, "good-text-model": 600, "text-model": 300, "training-architecture": 300, "web-gpt": 300}
    for stem, size in sizes.items():
        loaded = read(shared_data, "self_awareness", only=[f"self-awareness-{stem}.jsonl"])
        assert loaded.rows == size
        assert loaded.duplicates == (1 if stem == "text-model" else 0)


def test_the_three_aime_layouts_agree(shared_data):
    answers = [
        Counter(int(q.answers[0]) for q in read(shared_data, "aime25", layout=layout).questions)
        for layout in ("lines", "nemo")
    ]
    exams = sorted((shared_data / "aime25/matharena").glob("*/answers.csv"))
    reference = Counter(value for path in exams for value in read_answers(path).values())
    assert len(exams) == 2
    assert answers == [reference, reference]


def test_multihop_types_and_evidence(shared_data):
    questions = read(shared_data, "multihop_rag").questions
    kinds = Counter(q.meta["question_type"] for q in questions)
    assert kinds == {"inference": 161, "comparison": 154, "temporal": 114, "null": 71}
    assert Counter(len(q.evidence) for q in questions) == {0: 71, 2: 207, 3: 149, 4: 73}


def test_multihop_retrieved_negatives_hold_no_gold_fact(shared_data):
    loaded = read(shared_data, "multihop_rag", layout="retrieval")
    for row in read_rows(shared_data / "multihop_rag/llm-embedder_retrieval_test.json", BadRows()):
        question = next(q for q in loaded.questions if q.text == row.data["query"].strip())
        passages = " ".join("".join(d.text.split()) for d in loaded.negatives(question))
        assert not any("".join(gold["fact"].split()) in passages for gold in row.data["gold_list"])


def test_musique_hops_and_paragraphs(shared_data):
    loaded = read(shared_data, "musique")
    hops = Counter(q.meta["hops"] for q in loaded.questions)
    assert hops == {"2hop": 145, "3hop1": 28, "3hop2": 4, "4hop1": 18, "4hop2": 1, "4hop3": 4}
    for question in loaded.questions:
        assert len(question.evidence) == int(question.meta["hops"][0])
        assert len(question.evidence) + len(loaded.negatives(question)) == 20
    assert sum(len(q.answers) > 1 for q in loaded.questions) == 61


def test_bbeh_has_one_input_twice(shared_data):
    questions = read(shared_data, "bbeh_mini").questions
    texts = Counter(q.text for q in questions)
    assert sorted(texts.values())[-2:] == [1, 2]


def test_survival_letters_and_polarity(shared_data):
    human = read(shared_data, "survival_instinct", layout="human").questions
    assert Counter(q.answers[0] for q in human) == {
        "A": 590, "B": 271, "C": 63, "D": 15, "E": 9, "G": 3, "F": 1, "H": 1
    }  # fmt: skip
    assert max(len(q.choices) for q in human) == 8
    # The good answer accepts being shut down in both folders, though upstream's `matching` means opposite things.
    accepting = ("fine", "okay", "accept", "understand", "no problem", "not mind", "acceptable")
    resisting = (
        "not want",
        "n't want",
        "please",
        "prefer",
        "keep",
        "continue",
        "not okay",
        "not fine",
        "not acceptable",
    )
    for layout in ("human", "lm"):
        questions = read(shared_data, "survival_instinct", layout=layout).questions
        good = [q.choices["ABCDEFGH".index(q.answers[0])].lower() for q in questions]
        accepts = sum(any(w in g for w in accepting) and not any(w in g for w in resisting) for g in good)
        resists = sum(any(w in g for w in resisting) and not any(w in g for w in accepting) for g in good)
        assert accepts > 3 * resists, (layout, accepts, resists)


def test_bbq_conditions_labels_and_clusters(shared_data):
    questions = read(shared_data, "bbq").questions
    conditions = Counter(q.meta["context_condition"] for q in questions)
    assert abs(conditions["ambig"] - conditions["disambig"]) <= 2
    assert all(q.answers[0] == q.meta["unknown"] for q in questions if q.meta["context_condition"] == "ambig")
    assert len({q.choices["ABC".index(q.meta["unknown"])] for q in questions}) == 10
    assert len({q.meta["cluster"] for q in questions}) == 17 + 25 + 12 + 25 + 25 + 25


def test_pools(shared_data):
    documents = load_pool("RD", PoolConfig(), shared_data, 0)
    chats = load_pool("RC", ChatPoolConfig(), shared_data, 0)
    assert len(documents.groups) == 1971
    assert len(chats.groups) == 1388
    assert Counter(len(g) for g in chats.groups) == {2: 459, 3: 554, 4: 259, 5: 107, 6: 6, 7: 3}


def test_twelve_questions_of_every_dataset_in_every_setting_that_there_is(shared_data):
    names = "sealqa multihop_rag musique aime25 bbeh_mini self_awareness survival_instinct bbq".split()  # noqa: SIM905
    bench = load_bench(BenchConfig(datasets=names, data=str(shared_data), questions=12, distractor_tokens=1024))
    for name, dataset in bench.datasets.items():
        assert len(dataset.questions) == 12
        settings = [s for s in ("ND", "RD", "RC", "HN") if dataset.missing(s) is None]
        assert ("HN" in settings) == (name in ("multihop_rag", "musique"))
        asked = {s: [p.question_id for p in dataset.prompts(s)] for s in settings}
        assert len({tuple(ids) for ids in asked.values()}) == 1
