"""The page is one file, loads nothing, and hostile text stays text."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from evaluate_fakes import FakeEngine, fake_run
from page_parser import ALLOWED, HOSTILE, parse

from noisyjax.bench.quickstart import FOLDER
from noisyjax.errors import RunError
from noisyjax.report import to_html, to_markdown
from noisyjax.report.gallery import LONGEST, failures
from noisyjax.report.reading import read


class Hostile(FakeEngine):
    """Answers with hostile text."""

    def _one(self, request, sample):
        done = super()._one(request, sample)
        return replace(done, text=f"{HOSTILE}\nAnswer: {HOSTILE}", reasoning=HOSTILE, error=HOSTILE)


def hostile_data(folder: Path) -> Path:
    """The quickstart benchmark with hostile text behind every question, answer and document."""

    def poison(value, key=""):
        if isinstance(value, dict):
            return {k: poison(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [poison(v, key) for v in value]
        return f"{value} {HOSTILE}" if isinstance(value, str) and key in ("question", "text", "content") else value

    shutil.copytree(FOLDER, folder)
    for path in (*folder.glob("*.jsonl"), *folder.rglob("quickstart.jsonl")):
        lines = [json.dumps(poison(json.loads(line))) for line in path.read_text().splitlines()]
        path.write_text("\n".join(lines) + "\n")
    return folder


def test_a_lost_log_of_texts_is_named(tmp_path):
    fake_run(tmp_path)
    (tmp_path / "texts.jsonl").unlink()
    with pytest.raises(RunError, match="the log 'texts' lacks"):
        failures(read([tmp_path], draws=100).reports[0])


@pytest.mark.parametrize("kept", [0, 5])
def test_lost_prompts_are_counted_and_said(tmp_path, kept):
    fake_run(tmp_path)
    path = tmp_path / "prompts.jsonl"
    whole = failures(read([tmp_path], draws=100).reports[0])
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:kept]))
    report = read([tmp_path], draws=100).reports[0]
    gallery = failures(report)
    assert gallery.lost > 0
    assert len(gallery.shown) + gallery.lost == len(whole.shown)
    assert set(gallery.shown) <= set(whole.shown)
    text = "".join(parse(to_html([report])).text)
    assert f"{gallery.lost} more cannot be shown: the run’s log “prompts” lacks their prompts" in text


@pytest.fixture
def hostile_page(tmp_path) -> str:
    data = hostile_data(tmp_path / "data")
    words = ["name='<script>alert(5)</script>$a$'", f"bench.data={data}", "bench.questions=2"]
    fake_run(tmp_path / "run", *words, engine=Hostile())
    return to_html(read([str(tmp_path / "run")]).reports)


def test_hostile_text_stays_text(hostile_page):
    page = parse(hostile_page)
    assert {tag for tag, _ in page.tags} <= ALLOWED
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        assert not str(attributes.get("href") or "").startswith("javascript:")
    text = "".join(page.text)
    # It is there as words: in documents, question, gold answer, completion, thoughts and the run's name.
    assert text.count("<script>alert(1)</script>") > 16
    assert text.count("{{ 7*7 }}") > 16
    assert "<script>alert(5)</script>$a$" in text
    assert text.count("␀ ␛[2J ⟨9B⟩1m") > 16
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", hostile_page)


def test_a_whole_run_has_no_word_about_lost_prompts(runs):
    assert "cannot be shown" not in to_html(read([runs["plain"]], draws=100).reports)


def test_hostile_text_in_markdown_stays_in_its_cell(tmp_path):
    fake_run(tmp_path, "name='a|b <i> `c`'", "bench.questions=2", engine=Hostile())
    lines = to_markdown(read([str(tmp_path)]).reports).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert "<i>" not in "\n".join(lines)
    widths = [len(re.findall(r"(?<!\\)\|", line)) for line in table[:6]]
    assert len(set(widths)) == 1


def test_nothing_is_loaded_from_anywhere(runs):
    source = to_html(read([runs["plain"], runs["cic"]]).reports)
    page = parse(source)
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "img", "iframe", "object", "embed", "base"), tag
        assert "src" not in attributes
        for name in ("href", "xlink:href"):
            assert str(attributes.get(name) or "#").startswith("#"), (tag, attributes)
    assert "@import" not in source
    assert not re.search(r"url\((?!#)", source)
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and "http-equiv" in a)
    assert "default-src 'none'" in policy


def test_ids_are_unique_and_links_lead_somewhere(runs):
    page = parse(to_html(read([runs["plain"], runs["cic"]]).reports))
    ids = [a["id"] for _, a in page.tags if "id" in a]
    # matplotlib names groups alike in every figure; nothing refers to these
    referred = {a[k][1:] for _, a in page.tags for k in ("href", "xlink:href") if k in a}
    referred |= {m for _, a in page.tags for m in re.findall(r"url\(#([^)]+)\)", a.get("clip-path", ""))}
    assert referred
    assert all(ids.count(name) == 1 for name in referred)


def test_page_can_be_read_without_sight_and_in_the_dark(runs):
    source = to_html(read([runs["plain"]]).reports)
    page = parse(source)
    figures = [a for tag, a in page.tags if tag == "svg" and "aria-hidden" not in a]
    assert figures
    assert all(a.get("role") == "img" for a in figures)
    assert source.count("<title>") == 1 + len(figures)
    assert [a for tag, a in page.tags if tag == "html"] == [{"lang": "en"}]
    assert all("scope" in a for tag, a in page.tags if tag == "th")
    assert "prefers-color-scheme: dark" in source
    assert "currentColor" in source
    assert "#123456" not in source


def test_gallery_shows_spans_in_their_labels(runs):
    report = read([runs["plain"]]).reports[0]
    gallery = failures(report)
    shown = gallery.shown
    assert shown
    assert gallery.lost == 0
    labels = {span.label for f in shown for _, spans in f.messages for span in spans}
    assert {"question", "evidence", "distractor"} <= labels
    assert all(len(span.text) <= LONGEST + 10 for f in shown for _, spans in f.messages for span in spans)
    assert all(f.state != "scored" or f.extracted != f.gold for f in shown)
    assert abs(sum(share for _, share in shown[0].mass) - 1) < 1e-5
    source = to_html([report])
    assert 'class="l-distractor"' in source


def test_solved_without_noise_comes_first(runs):
    report = read([runs["plain"]]).reports[0]
    results = report.results
    base = results.cell("quickstart_facts", "ND")
    solved = {s.key.question for s in results.kept(base) if s.score.value == 1}
    hn = [
        f.question for f in failures(report, per_cell=9).shown if (f.dataset, f.setting) == ("quickstart_facts", "HN")
    ]
    flags = [q in solved for q in hn]
    assert flags == sorted(flags, reverse=True)
