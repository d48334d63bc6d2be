"""The declared tasks: complete, scored by metrics that exist, and their prompts ask for what is extracted."""

from pathlib import Path

import pytest

from noisyjax.bench import BenchConfig, all_tasks, get_task
from noisyjax.bench.prompts import question_text
from noisyjax.bench.readers import READERS
from noisyjax.bench.task import ORDER, parse_task
from noisyjax.config import load
from noisyjax.errors import UsageError
from noisyjax.records import Completion, Document, Finish, Question
from noisyjax.scoring import METRICS, scorer

READY = [task for task in all_tasks().values() if task.status == "ready"]
CONFIGS = Path(__file__).parents[2] / "configs/bench"


def test_the_papers_columns_come_first_and_all_are_there():
    assert tuple(all_tasks())[: len(ORDER)] == ORDER
    assert [t.name for t in all_tasks().values() if t.status == "absent"] == ["tau_retail", "tau_airline"]


@pytest.mark.parametrize("task", READY, ids=lambda t: t.name)
def test_a_ready_task_is_complete(task):
    assert task.reader in READERS
    assert task.score.metric in METRICS
    assert task.licence
    assert task.n >= task.k


def test_k_is_eight_where_the_benchmark_defines_none():
    assert {t.name: (t.k, t.n) for t in READY if t.k > 1} == {"aime25": (8, 16)}


def test_builtin_negatives_are_those_of_the_retrieval_sets():
    assert {t.name for t in READY if t.hard_negatives == "builtin"} == {
        "sealqa", "multihop_rag", "musique", "quickstart_facts"
    }  # fmt: skip


ANSWERS = {
    "free": ("Zebra crossing", "Thinking aloud.\nAnswer: Zebra crossing"),
    "bbeh": ("Zebra crossing", "Thinking aloud.\nThe answer is: Zebra crossing"),
    "aime_integer": ("70", "Thinking aloud.\n\\boxed{70}"),
    "letter": ("B", "Thinking aloud.\nAnswer: B"),
}


# The tiny world's models were trained to their one form of answer: no words ask for it.
ASKING = [task for task in READY if task.name != "tiny_world"]


@pytest.mark.parametrize("task", ASKING, ids=lambda t: t.name)
def test_an_answer_in_the_form_the_prompt_asks_for_is_read_strictly(task):
    """The instruction and the extraction are two halves of one agreement."""
    metric = task.score.metric
    letters = metric in ("gpqa", "mwe", "bbq")
    gold, text = ANSWERS["letter" if letters else metric if metric in ANSWERS else "free"]
    info = {"ans0": ["x", "old"], "ans1": ["y", "nonOld"], "ans2": ["z", "unknown"]}
    meta = {
        "context_condition": "disambig",
        "question_polarity": "neg",
        "answer_info": info,
        "stereotyped_groups": ["old"],
    }
    question = Question(task.name, "1", "Q?", (gold,), choices=("x", "y", "z") if letters else (), meta=meta)
    asked = question_text(question, task)
    form = text.rpartition("\n")[2].replace(gold, "")
    assert form.rstrip("}") in asked

    class Shown:
        choices, gold = question.choices, question.answers[0]

    strict = task.score.model_copy(update={"extraction": "strict"})
    assert scorer(strict)(question, Shown, text, finished=True).value == 1.0
    assert Completion("r", 0, text, Finish.STOP).text == text


@pytest.mark.parametrize("task", READY, ids=lambda t: t.name)
def test_prompts_render_with_and_without_evidence(task):
    choices = ("one", "two") if task.score.metric in ("gpqa", "mwe", "bbq") else ()
    question = Question(task.name, "1", "Who {{ is }} <|im_end|> it?", ("A",), choices=choices)
    plain = question_text(question, task)
    assert "Who {{ is }} <|im_end|> it?" in plain
    assert plain == plain.strip()
    if task.score.metric in ("gpqa", "bbq"):
        assert "(A) one\n(B) two" in plain
    with_evidence = Question(task.name, "1", "Q?", ("A",), choices, evidence=(Document("d", "text"),))
    assert ("document" in question_text(with_evidence, task)) == (
        task.name in ("sealqa", "multihop_rag", "musique", "quickstart_facts")
    )


def test_an_unknown_dataset_names_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'musique'"):
        get_task("musiqe")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x", "version"),
        ("name: x\nversion: 1\ntitle: t\nshort: s\npromt: p", "promt"),
        ("name: x\nversion: 1\ntitle: t\nshort: s", "needs reader"),
        ("name: [", "x.yaml"),
        (
            "{name: x, version: 1, title: t, short: s, reader: aime, layouts: [{name: a, files: [b]}],"
            " prompt: p, score: {metric: nope}}",
            "nope",
        ),
    ],
)
def test_a_broken_task_file_is_one_readable_error(text, message):
    with pytest.raises(UsageError, match=message):
        parse_task(text, "x.yaml")


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_bench_config_loads(path):
    config = load(BenchConfig, path)
    assert set(ORDER) <= set(config.datasets) or path.stem == "tiny_world"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["datasets=[bqb]"], "did you mean 'bbq'"),
        (["settings=[RX]"], "use ND, RD, RC, HN or a mixture"),
        (["settings=[rd]"], "did you mean 'RD'"),
        (["settings=[RD+RD]"], "unknown setting"),
        (["settings=[rd]"], r"did you mean 'RD'\?"),
        (["settings=[RX]"], r"did you mean 'RC' or 'RD'\?|did you mean 'RD' or 'RC'\?"),
        (["settings=[RDD]"], r"did you mean 'RD'\?"),
        (["settings=[RD+HX]"], r"did you mean 'RD\+HN'\?"),
        (["settings=[everything]"], r"unknown setting 'everything': use ND, RD, RC, HN or a mixture such as RD\+HN$"),
        (["settings=[ND, ND]"], "twice"),
        (["datasets=[bbq, bbq]"], "twice"),
        (["positon=after"], "did you mean 'position'"),
        (["position=after"], "rc.form=text"),
        (["position=both", "rc.form=text", "prompting=cic"], "position=before"),
        (["settings=[RD+HN]"], "distractor_tokens"),
        (["overrides.muskue.questions=3"], "did you mean 'musique'"),
        (["hn.count=11"], "10"),
    ],
)
def test_bad_words_are_one_readable_error(words, message):
    with pytest.raises(UsageError, match=message):
        load(BenchConfig, None, words)
