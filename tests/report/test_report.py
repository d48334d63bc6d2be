"""The numbers of a report against hand-made counts, in every form it takes."""

import itertools
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from evaluate_fakes import FakeEngine, fake_run

from noisyjax.errors import RunError, UsageError
from noisyjax.evaluate import load_results
from noisyjax.records import Completion, Finish
from noisyjax.report import print_report, to_html, to_json, to_markdown, write_html, write_json
from noisyjax.report.data import block_seeds, compare
from noisyjax.report.reading import read
from noisyjax.report.words import bounds, change, percent, states
from noisyjax.scoring import Interval

REPO = Path(__file__).resolve().parents[2]


class Scripted(FakeEngine):
    """Right on the questions in `right[setting]`, silent on `silent[setting]`, else wrong."""

    def __init__(self, right: dict[str, set[int]], silent: dict[str, set[int]]):
        super().__init__()
        self.right, self.silent = right, silent
        self.numbers: dict[str, int] = {}

    def _one(self, request, sample):
        prompt = request.prompt
        number = self.numbers.setdefault(prompt.question_id, len(self.numbers))
        text = "Answer: nothing like it"
        if number in self.right.get(prompt.setting, set()):
            text = f"Answer: {prompt.gold}"
        if number in self.silent.get(prompt.setting, set()):
            text = ""
        return Completion(request.id, sample, text, Finish.STOP, completion_tokens=4)


@pytest.fixture
def scripted(tmp_path) -> str:
    engine = Scripted({"ND": {0, 1, 2, 3}, "HN": {0, 1}}, {"HN": {4}})
    fake_run(tmp_path, "bench.datasets=[quickstart_facts]", "bench.settings=[ND, HN]", engine=engine)
    return str(tmp_path)


def test_hand_counted_table(scripted):
    report = read([scripted]).reports[0]
    nd, hn = report.cells["quickstart_facts", "ND"], report.cells["quickstart_facts", "HN"]
    assert nd.result.mean.point == pytest.approx(0.8)
    assert hn.result.mean.point == pytest.approx(0.4)
    assert hn.result.change.point == pytest.approx(-50.0)
    assert (nd.result.n, nd.result.total) == (5, 5)
    assert hn.states == {"scored": 4, "no_answer": 1}
    assert hn.values["f1"] == pytest.approx(0.4)  # the silent answer counts as wrong here too
    assert report.summary.settings["HN"].harmonic.point == pytest.approx(0.4)
    text = to_markdown([report])
    assert "40.0" in text
    assert "Δ −50.0 %" in text
    assert "1 no answer" in text
    assert "over QFacts" in text


def test_interval_is_that_of_a_paired_bootstrap(scripted):
    """Against an independent bootstrap: the spread of the mean of five questions."""
    cell = read([scripted], draws=4000).reports[0].cells["quickstart_facts", "ND"]
    rng = np.random.default_rng(1)
    means = rng.choice([1, 1, 1, 1, 0], size=(20000, 5)).mean(axis=1)
    assert cell.result.mean.low == pytest.approx(np.quantile(means, 0.025), abs=0.101)
    assert cell.result.mean.high == pytest.approx(np.quantile(means, 0.975), abs=0.101)


def test_absent_is_said_everywhere(runs):
    report = read([runs["plain"]]).reports[0]
    assert ("tau_retail", "HN") in report.absent_cells
    for text in (to_markdown([report]), to_html([report])):
        assert "tau" in text
        assert "absent" in text
    assert {a["dataset"] for a in to_json([report])["runs"][0]["absent"]} == {"tau_retail"}
    assert "tau_retail" not in report.summary.settings["ND"].datasets


def test_unfinished_run_says_what_is_missing(tmp_path):
    class Dies(FakeEngine):
        def generate(self, requests):
            for i, completion in enumerate(super().generate(requests)):
                if i == 7:
                    raise RunError("gone")
                yield completion

    with pytest.raises(RunError):
        fake_run(tmp_path, engine=Dies())
    report = read([str(tmp_path)]).reports[0]
    assert any("33 samples are missing" in note for note in report.notes)
    assert "missing" in to_markdown([report])
    to_html([report])
    json.dumps(to_json([report]), allow_nan=False)


def test_pass_at_k_has_pass_at_1_beside_it(runs):
    report = read([runs["several"]]).reports[0]
    cell = report.cells["quickstart_facts", "ND"]
    assert cell.first is not None
    assert cell.result.mean.point >= cell.first.point
    text = to_markdown([report])
    assert "pass@2" in text
    assert "pass@1" in text
    assert to_json([report])["runs"][0]["cells"][0]["metric"] == "pass@2"


def test_several_runs_are_paired(runs, tmp_path):
    reports = read([runs["plain"], runs["cic"]]).reports
    comparison = compare(reports)
    assert comparison.base == "plain"
    for setting in ("ND", "RD", "RC", "HN"):
        a, b = (r.cells["quickstart_facts", setting].result.mean.point for r in reports)
        got = comparison.cells[setting, "quickstart_facts", "cic"].point
        assert got == (pytest.approx(100 * (b - a) / a) if a else None)
    assert compare(reports[:1]) is None
    assert "paired by question" in to_markdown(reports)
    # a run against itself does not change, and knows it for certain
    copy = shutil.copytree(runs["plain"], tmp_path / "copy")
    same = compare(read([runs["plain"], str(copy)]).reports)
    ((_, interval),) = [(k, v) for k, v in same.overall.items() if k[0] == "ND"]
    assert (interval.point, interval.low, interval.high) == (0.0, 0.0, 0.0)
    with pytest.raises(UsageError, match="named twice"):
        read([runs["plain"], runs["plain"]])


def test_block_seeds_are_told(runs):
    reports = read([runs["plain"], runs["block"], runs["cic"]]).reports
    (group,) = block_seeds(reports)
    assert group.seeds == (0, 7)
    means = [r.cells["quickstart_facts", "RD"].result.mean.point for r in reports[:2]]
    mean, low, high = group.cells["quickstart_facts", "RD"]
    assert (mean, low, high) == (pytest.approx(np.mean(means)), min(means), max(means))
    assert any("block seed 0" in note for note in reports[0].notes)
    assert "2 block seeds (0, 7)" in to_markdown(reports)


def test_order_of_settings_and_of_runs_changes_no_number(runs):
    ab = read([runs["plain"], runs["cic"]]).reports
    ba = read([runs["cic"], runs["plain"]]).reports
    assert ab[0].summary == ba[1].summary


def test_terminal_fits_eighty_columns(runs, capsys):
    print_report([runs["plain"]], width=80)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("QFacts" in line for line in lines)


def test_names_cannot_command_the_terminal(tmp_path, capsys):
    fake_run(tmp_path, r'name="a\x1b[2Jb"', "bench.questions=1")
    for markdown in (False, True):
        print_report([str(tmp_path)], markdown=markdown)
        out = capsys.readouterr().out
        assert "a␛" in out
        assert "\x1b" not in out


def test_json_has_no_nan_and_both_runs(runs, tmp_path):
    path = write_json([runs["plain"], runs["cic"]], tmp_path / "deep" / "numbers.json")

    def refuse(word):
        raise AssertionError(word)

    data = json.loads(path.read_text(), parse_constant=refuse)
    assert [run["label"] for run in data["runs"]] == ["plain", "cic"]
    assert data["comparison"]["base"] == "plain"


def test_missing_run_and_unwritable_page(runs, tmp_path):
    with pytest.raises(UsageError, match="did you mean 'plain'"):
        read([runs["plain"] + "n"])
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="could not write"):
        write_html([runs["plain"]], tmp_path / "file" / "x.html")


def test_words():
    assert percent(Interval(None)) == "–"
    assert bounds(Interval(0.5, 0.25, 0.75)) == "[25.0, 75.0]"
    assert bounds(Interval(-3.0, -4.5, 1.0), 1.0, sign=True) == "[−4.5, +1.0]"
    assert change(Interval(-12.34)) == "−12.3 %"
    assert states({"scored": 3, "unscored": 1, "truncated": 2}) == "2 cut, 1 unscored"


def test_lengths_cover_every_scored_sample(runs):
    report = read([runs["plain"]]).reports[0]
    results = load_results(runs["plain"])
    for setting, bins in report.lengths.items():
        rows = [s for c in results.cells if c.setting == setting for s in results.kept(c)]
        assert sum(b.n for b in bins) == len(rows)
        assert all(a.high < b.low for a, b in itertools.pairwise(bins))
        assert all(0 <= b.accuracy <= 1 and not math.isnan(b.accuracy) for b in bins)


def test_the_same_page_twice(runs, tmp_path):
    first, second = (write_html([runs["plain"]], tmp_path / f"{i}.html").read_bytes() for i in (1, 2))
    assert first == second
    assert Path(tmp_path / "1.html").stat().st_size < 5_000_000


def test_reading_a_run_loads_no_model_code():
    code = "import sys, noisyjax.report; print(sorted({'jax', 'torch', 'transformers', 'openai'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPO)
    assert done.stdout.strip() == "[]"


def test_a_folder_of_runs_stands_for_all_of_them(runs, arms, tmp_path):
    """Those of a sweep lie as deep as it has axes, and are found without naming each."""
    (tmp_path / "sweep" / "model-a").mkdir(parents=True)
    (tmp_path / "sweep" / "model-a" / "plain").symlink_to(runs["plain"])
    (tmp_path / "sweep" / "model-b").mkdir()
    (tmp_path / "sweep" / "model-b" / "cic").symlink_to(runs["cic"])
    found = read([str(tmp_path / "sweep")], draws=100)
    assert [report.label for report in found.reports] == ["plain", "cic"]
    found = read([str(Path(arms["or"]).parent)], draws=100)
    assert [run.label for run in found.training] == ["graded", "or"]
    assert not found.reports  # evaluations while training belong to their runs
    with pytest.raises(UsageError, match="named twice"):
        read([str(tmp_path / "sweep"), str(tmp_path / "sweep" / "model-a")])
    (tmp_path / "empty" / "inside").mkdir(parents=True)
    with pytest.raises(UsageError, match="empty"):
        read([str(tmp_path / "empty")])
