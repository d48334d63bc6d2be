"""Training runs made by hand: gaps stay gaps, counts are counted by hand, evaluations are paired."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from evaluate_fakes import FakeEngine, fake_run
from page_parser import ALLOWED, HOSTILE, parse
from report_fakes import curves, evaluated, sample, trained, world

from noisyjax.errors import RunError, UsageError
from noisyjax.records import Completion, Finish
from noisyjax.report import print_report, to_html, to_json, to_markdown, write_html, write_json
from noisyjax.report.attending import attention_by_setting
from noisyjax.report.kinds import kind_tables, kinds
from noisyjax.report.reading import read
from noisyjax.report.training.curves import blocks, curve, running_mean
from noisyjax.report.training.panels import Panel, ends, groups_of
from noisyjax.report.training.section import STEPS_SHOWN, chosen
from noisyjax.report.training.tables import accuracy, facts, learning, left_out


class Scripted(FakeEngine):
    """Right on the questions (by place in the order of their ids) in `right[setting]`, wrong on all others."""

    def __init__(self, ids: list[str], right: dict[str, set[int]]):
        super().__init__()
        self.ids, self.right = sorted(ids), right

    def _one(self, request, sample):
        prompt = request.prompt
        right = self.ids.index(prompt.question_id) in self.right.get(prompt.setting, set())
        return Completion(request.id, sample, prompt.gold if right else "nobody", Finish.STOP, completion_tokens=4)


@pytest.fixture
def scripted(tmp_path) -> Path:
    """Eight questions, two of each type; two are right before, four after in ND, none in HN before, one after."""
    data = world(tmp_path / "data", 8)
    ids = [json.loads(line)["id"] for line in (data / "tiny_world.jsonl").read_text().splitlines()]
    trained(tmp_path / "run", "arm", {0: {"eval/ND": 0.25}, 1: {"loss": 1.0}, 2: {"loss": 0.5}}).__exit__()
    evaluated(tmp_path / "run", 0, data, Scripted(ids, {"ND": {0, 1}}))
    evaluated(tmp_path / "run", 2, data, Scripted(ids, {"ND": {0, 1, 2, 3}, "HN": {5}}))
    return tmp_path / "run"


def one(folder: Path):
    (run,) = read([str(folder)], draws=200).training
    return run


def text_of(page: str) -> str:
    return "".join(parse(page).text)


# -- numbers -------------------------------------------------------------------------------------------------------


def test_what_is_null_or_not_there_is_a_gap(tmp_path):
    lines = {0: {"eval/ND": 0.5}, 1: {"kl": 0.5, "loss": 1.0}, 2: {"kl": None, "loss": 2.0}, 3: {"loss": 0.0}}
    trained(tmp_path / "r", "r", lines).__exit__()
    run = one(tmp_path / "r")
    assert run.steps_k.tolist() == [1, 2, 3]
    assert facts(run)[1] == "start sparse"  # of the folder `starts/sparse`
    np.testing.assert_array_equal(run.column("kl"), [0.5, np.nan, np.nan])
    np.testing.assert_array_equal(run.column("loss"), [1.0, 2.0, 0.0])
    assert run.column("unheard of").tolist() == pytest.approx([np.nan] * 3, nan_ok=True)
    numbers = to_json([], training=[run])["training"][0]
    assert numbers["metrics"]["kl"] == [0.5, None, None]
    assert numbers["accuracy"] == {"ND": [{"step": 0, "point": 0.5, "low": None, "high": None, "undefined_share": 0.0}]}
    rows = {row[0]: row[1] for row in learning([run])[2]}
    assert rows["KL to the reference model, nats"] == "–\n2 of 3 undefined"
    assert rows["Loss"] == "0 (−1)"


def line_runs(svg: str) -> list[int]:
    """Points in each unbroken piece of each line that is drawn in a run's colour."""
    paths = re.findall(r'<path d="([^"]*)"[^>]*style="[^"]*stroke: #4477aa', svg)
    return [len(re.findall("[ML]", piece)) for path in paths for piece in re.findall("M[^M]*", path)]


def test_a_curve_breaks_at_a_gap(tmp_path):
    values = [1.0, 2.0, None, 3.0, None, 4.0, 5.0, 6.0]
    trained(tmp_path / "r", "r", {i: {"loss": v} for i, v in enumerate(values, start=1)}).__exit__()
    svg = curve(Panel("loss", "Loss"), [one(tmp_path / "r")])
    # Pieces of two and three points, as they are and smoothed; the lone point has a dot and no line.
    assert sorted(n for n in line_runs(svg) if n < 8)[-4:] == [2, 2, 3, 3]
    assert svg.count("<use") >= 2


def test_running_mean_and_blocks():
    nan = np.nan
    np.testing.assert_array_equal(running_mean(np.array([1.0, nan, 3.0, 5.0]), 2), [1.0, nan, 3.0, 4.0])
    np.testing.assert_array_equal(running_mean(np.array([1.0, 2.0]), 1), [1.0, 2.0])
    steps, values = blocks(np.arange(1, 8), np.array([1.0, 3.0, nan, nan, nan, 5.0, 7.0]), most=4)
    assert steps.tolist() == [1.5, 3.5, 5.5, 7.0]
    np.testing.assert_array_equal(values, [2.0, nan, 5.0, 7.0])
    steps, values = blocks(np.arange(0), np.zeros(0))
    assert len(steps) == len(values) == 0


def test_ends_are_means_over_a_tenth():
    found = ends(np.array([0.0, 2.0, *[9.0] * 16, np.nan, 4.0]))
    assert (found.first, found.last, found.undefined, found.n) == (1.0, 4.0, 1, 20)
    assert np.isnan(ends(np.zeros(0)).mean)


def test_what_was_left_out_is_counted(arms):
    runs = read([arms["or"], arms["graded"]], draws=100).training
    title, head, rows = left_out(runs)
    shown = {row[0]: row[1:] for row in rows}
    assert head[1:] == ["or", "graded"]
    assert shown["steps skipped"] == ["1 of 60", "1 of 60"]
    assert shown["samples without a defined reward"] == ["2 %", "2 %"]
    assert shown["records left out: over length"] == ["3", "3"]
    # Undefined in every step, so there is nothing to say: no line, and no zero.
    assert "outcomes unscored, of those asked" not in shown
    assert "counts" in title


def test_terms_that_only_some_rewards_have_are_drawn(arms):
    (rewards, *_) = groups_of(read([arms["or"]], draws=100).training)
    assert "reward/overlong" in [panel.metric for panel in rewards.panels]


# -- evaluations ---------------------------------------------------------------------------------------------------


def test_before_and_after_are_paired(scripted):
    run = one(scripted)
    assert list(run.evaluations) == [0, 2]
    ((title, head, rows),) = accuracy([run], 200)
    before, after = (dict(zip(head, row, strict=True)) for row in rows)
    assert head[2:] == ["ND", "RD", "RC", "HN"]
    assert rows[0][:2] == ["arm, step 0", "World"]
    assert before["ND"].startswith("25.0 [")
    assert after["ND"].startswith("50.0 [")
    assert "Δ" not in before["ND"]
    assert "Δ +100.0 %" in after["ND"]
    assert after["HN"].startswith("12.5")
    assert "Δ –" in after["HN"]  # from nothing there is no relative change
    assert after["ND"].endswith("n 8")
    assert "paired" in title


def test_curve_of_accuracy_takes_stored_evaluations_first(scripted):
    points = dict(one(scripted).accuracy("ND"))
    assert {step: mean.point for step, mean in points.items()} == {0: 0.25, 2: 0.5}
    assert all(mean.low is not None for mean in points.values())


def test_accuracy_by_type(scripted):
    run = one(scripted)
    (found,) = kinds(run.last)
    assert list(found.summaries) == ["compare", "lookup", "sum2", "sum3"]
    types = {
        r["question"]: r["meta"]["type"] for reader in run.last.results.readers for r in reader.records("questions")
    }
    right = [types[question] for question in sorted(types)[:4]]
    for name, summary in found.summaries.items():
        cell = summary.cells["tiny_world", "ND"]
        assert (cell.n, cell.mean.point) == (2, right.count(name) / 2)
    ((_, head, rows),) = kind_tables([run.last])
    assert [row[0] for row in rows] == ["compare", "lookup", "sum2", "sum3"]
    assert head[2:] == ["ND", "RD", "RC", "HN"]


def test_no_types_no_table(runs):
    assert kind_tables(read([runs["plain"]], draws=100).reports) == []


def test_an_evaluation_run_has_its_types_too(tmp_path):
    data = world(tmp_path / "data", 8)
    fake_run(tmp_path / "run", f"bench.data={data}", "bench.datasets=[tiny_world]", "bench.questions=null")
    reports = read([str(tmp_path / "run")], draws=100).reports
    assert "accuracy by type of question" in to_markdown(reports)
    assert "accuracy by type of question" in to_html(reports)
    assert {t["type"] for t in to_json(reports)["runs"][0]["types"]} == {"compare", "lookup", "sum2", "sum3"}


def test_attention_before_and_after(arms):
    (run,) = read([arms["graded"]], draws=100).training
    before, after = (attention_by_setting(report) for report in run.ends)
    for found, share in ((before, 0.4), (after, 0.24)):
        assert found["HN"].shares["distractor"] == pytest.approx(share)
        assert found["HN"].n == 40
        assert "distractor" not in found["ND"].shares
        assert sum(found["RD"].shares.values()) == pytest.approx(1)
    rows = [
        line for line in to_markdown([], 100, [run]).splitlines() if line.startswith("| graded, step 60 | ND | 10.0")
    ]
    assert len(rows) == 1
    assert "| – |" in rows[0]


def test_a_mixture_of_runs(arms, runs):
    found = read([runs["plain"], arms["or"], arms["graded"]], draws=100)
    assert [r.label for r in found.shown] == ["plain", "or, step 60", "graded, step 60"]
    text = to_markdown(found.reports, 100, found.training)
    assert "Change against plain" in text
    numbers = to_json(found.reports, 100, found.training)
    assert [run["label"] for run in numbers["runs"]] == ["plain", "or, step 60", "graded, step 60"]
    assert [run["label"] for run in numbers["training"]] == ["or", "graded"]
    assert [e["label"] for e in numbers["training"][0]["before_after"]] == ["or, step 0", "or, step 60"]


def test_equal_names_are_told_apart(tmp_path):
    for name in ("a", "b"):
        trained(tmp_path / name, "train", curves(name, 3)).__exit__()
    labels = [run.label for run in read([str(tmp_path / "a"), str(tmp_path / "b")]).training]
    assert labels == [f"train ({tmp_path}/a)", f"train ({tmp_path}/b)"]


# -- page and terminal ---------------------------------------------------------------------------------------------


def test_page_of_several_arms(arms, tmp_path):
    path = write_html([arms["or"], arms["graded"]], tmp_path / "page.html", draws=100)
    source = path.read_text()
    page = parse(source)
    text = text_of(source)
    assert {tag for tag, _ in page.tags} <= ALLOWED
    for title in ("Distracted thoughts (lexical)", "Groups without variance", "KL to the reference", "Rollout"):
        assert title in text
    assert "not finished: step 60 of 80" in text
    assert "1 of 60 steps skipped, where loss or gradient was no number: 12" in text
    assert text.count("Sampled completions of") == 2
    assert "anna code 7 . bob age 3 ." in text
    assert "yes, 1.00 (all of 2 facts)" in text
    assert source.count('class="l-distractor" style="flex-grow: 60"') == 2 * 2 * STEPS_SHOWN
    assert source.count("Attention on the distractor") > 0
    assert {"training", "run-1", "run-2"} <= {a.get("id") for _, a in page.tags}
    for _, attributes in page.tags:
        for name in ("href", "xlink:href"):
            assert str(attributes.get(name) or "#").startswith("#")
    assert write_html([arms["or"], arms["graded"]], tmp_path / "again.html", draws=100).read_text() == source


def test_hostile_training_stays_text(tmp_path):
    words = dict.fromkeys(("record", "setting", "question", "gold", "hint", "completion", "answer", "finish"), HOSTILE)
    verdict = {"value": None, "score": None, "reason": HOSTILE}
    row = sample(1, references=[HOSTILE], faults=[HOSTILE], outcome=verdict, rationale=None, **words)
    row |= {"step": 1, "rewards": {HOSTILE: None}, "spans": [[HOSTILE, 3], ["hint", 2]]}
    trained(tmp_path / "r", HOSTILE, {}).__exit__()
    for name, line in (("metrics", {"step": 1, "loss": 1.0, f"reward/{HOSTILE}": 1.0}), ("samples", row)):
        (tmp_path / "r" / f"{name}.jsonl").write_text(json.dumps(line) + "\n")
    source = to_html([], 100, read([str(tmp_path / "r")]).training)
    page = parse(source)
    assert {tag for tag, _ in page.tags} <= ALLOWED
    assert not [a for _, attributes in page.tags for a in attributes if a.startswith("on")]
    text = "".join(page.text)
    assert text.count("<script>alert(1)</script>") >= 10
    assert "unscored" in text
    assert "not asked" in text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", source)


def test_sampled_steps_first_and_last():
    rows = [{"step": step, **sample(step, n)} for step in (1, 10, 20, 30) for n in range(2)]
    assert [row["step"] for row in chosen(rows)] == [1, 1, 20, 20, 30, 30]
    assert chosen([]) == []
    assert len(chosen(rows[:2])) == 2


def test_terminal_fits_eighty_columns(arms, capsys):
    print_report([arms["or"], arms["graded"]], width=80, draws=100)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("References that are exact" in line for line in lines)
    assert any("not finished" in line for line in lines)


def test_json_of_several_arms(arms, tmp_path):
    path = write_json([arms["or"], arms["graded"]], tmp_path / "numbers.json", draws=100)

    def refuse(word):
        raise AssertionError(word)

    data = json.loads(path.read_text(), parse_constant=refuse)
    first = data["training"][0]
    assert len(first["metrics"]["distraction/lexical"]) == len(first["steps"]) == 60
    assert first["metrics"]["distraction/lexical"][29:39] == [None] * 10
    assert [point["step"] for point in first["accuracy"]["HN"]] == [0, 30, 60]
    assert data["comparison"]["base"] == "or, step 60"


# -- what is not there ---------------------------------------------------------------------------------------------


def test_a_run_that_has_done_nothing_yet(tmp_path, capsys):
    trained(tmp_path / "r", "r", {}, planned=9).__exit__()
    print_report([str(tmp_path / "r")])
    out = capsys.readouterr().out
    assert "0 of 9 steps" in out
    assert "no evaluation is stored with this run" in out
    found = read([str(tmp_path / "r")])
    assert "0 of 9 steps" in text_of(to_html(found.shown, 100, found.training))
    json.dumps(to_json([], 100, found.training), allow_nan=False)


def test_evaluations_cut_short_are_named(scripted):
    (scripted / "eval" / "step-000004").mkdir()
    path = scripted / "eval" / "step-000002" / "samples.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-3]))
    notes = one(scripted).notes
    assert any("evaluation of step 4 was not begun" in note for note in notes)
    assert "the evaluation of step 2 is not finished: 3 samples are missing" in notes


@pytest.mark.parametrize("line", ["{", "[1]", '{"loss": 1}', '{"step": 2, "loss": "high"}'])
def test_a_broken_line_is_named(tmp_path, line):
    trained(tmp_path / "r", "r", {1: {"loss": 1.0}}).__exit__()
    with (tmp_path / "r" / "metrics.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(RunError, match="line 2 of the log 'metrics' is broken"):
        read([str(tmp_path / "r")])


def test_a_torn_last_line_is_none(tmp_path):
    trained(tmp_path / "r", "r", {1: {"loss": 1.0}}).__exit__()
    with (tmp_path / "r" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')
    assert one(tmp_path / "r").steps_k.tolist() == [1]


@pytest.mark.parametrize(("name", "content"), [("training.json", "{}"), ("config.resolved.yaml", "a: [")])
def test_broken_files_are_named(tmp_path, name, content):
    trained(tmp_path / "r", "r", {1: {"loss": 1.0}}).__exit__()
    (tmp_path / "r" / name).write_text(content)
    with pytest.raises(UsageError, match=name):
        read([str(tmp_path / "r")])


def test_the_names_are_those_that_training_writes():
    pytest.importorskip("orbax.checkpoint")
    from noisyjax.report.training.run import MARK
    from noisyjax.train.loop import KIND_NAME

    assert MARK == KIND_NAME
