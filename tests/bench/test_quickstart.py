"""The benchmark that comes with the package: written by its generator, small, clean, and right."""

import pytest

from noisyjax.bench import BenchConfig, load_bench, validate_bench
from noisyjax.bench.quickstart import FOLDER, generate
from noisyjax.records import SETTINGS


def test_the_committed_files_are_what_the_generator_writes(tmp_path):
    generate.write(tmp_path)
    for name in generate.FILES:
        assert (FOLDER / name).read_text() == (tmp_path / name).read_text(), name


def test_it_is_small():
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 300_000


def test_it_runs_in_every_setting_and_loses_no_question():
    found = validate_bench(BenchConfig())
    assert found.sound
    assert [(r.questions, r.kept, r.duplicates, r.missing) for r in found.datasets] == [(24, 24, 0, {})] * 2
    bench = load_bench(BenchConfig())
    for dataset in bench.datasets.values():
        for setting in SETTINGS:
            assert len(list(dataset.prompts(setting))) == 24


def test_facts_follow_from_their_evidence_and_from_nothing_else():
    dataset = load_bench(BenchConfig())["quickstart_facts"]
    for question in dataset.questions:
        answer = question.answers[0]
        assert any(answer in document.text for document in question.evidence)
        assert not any(answer in document.text for document in dataset.loaded.negatives(question))


@pytest.mark.parametrize("i", range(generate.QUESTIONS))
def test_puzzles_have_the_answer_that_working_them_out_gives(i):
    row = list(generate.choices())[i]
    text, options = row["question"], row["choices"]
    assert len(set(options)) == 4
    if "younger" in text:
        pairs = [s.split(" is younger than ") for s in text.split(". ")[:3]]
        younger, older = {a for a, _ in pairs}, {b for _, b in pairs}
        (only,) = (younger - older) if "youngest" in text else (older - younger)
        assert row["answer"] == only
    else:
        crates, each, gone = (int(word) for word in text.split() if word.isdigit())
        assert row["answer"] == str(crates * each - gone)
        assert crates * each > gone
