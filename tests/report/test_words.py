"""The overall rows name what they are made of, also where settings differ in it."""

from evaluate_fakes import fake_run

from noisyjax.report.reading import read
from noisyjax.report.words import over_which


def test_one_set_of_datasets(runs):
    assert over_which(read([runs["plain"]]).reports[0]) == "over QFacts, QChoice"


def test_settings_that_lack_a_dataset(tmp_path):
    import shutil

    from noisyjax.bench.quickstart import FOLDER

    data = shutil.copytree(FOLDER, tmp_path / "data")
    path = data / "hard_negatives.jsonl"
    lines = [line for line in path.read_text().splitlines() if "quickstart_choice" not in line]
    path.write_text("\n".join(lines) + "\n")
    fake_run(tmp_path / "run", f"bench.data={data}", "bench.settings=[ND, RD, HN]")
    report = read([str(tmp_path / "run")]).reports[0]
    assert ("quickstart_choice", "HN") in report.absent_cells
    words = over_which(report)
    assert words == "ND, RD: over QFacts, QChoice; HN: over QFacts. Δ is over what both settings have"
    overall = report.summary.settings["HN"]
    facts = report.cells["quickstart_facts", "HN"].result
    assert overall.arithmetic.point == facts.mean.point
    assert overall.arithmetic_change == facts.change


def test_settings_that_have_nothing_yet():
    from types import SimpleNamespace as Some

    settings = {"ND": Some(datasets={"bbq": 0}), "RD": Some(datasets={})}
    report = Some(summary=Some(settings=settings), results=Some(datasets=["bbq"]), short=str.upper)
    assert over_which(report) == "ND: over BBQ; RD: over nothing. Δ is over what both settings have"
