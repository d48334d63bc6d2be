"""Failures worth a look: the prompt with its spans, what the model wrote, and where it looked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from noisyjax.errors import RunError
from noisyjax.evaluate.prompts import read_messages
from noisyjax.evaluate.results import RunResults, Sample
from noisyjax.records import LABELS, Completion
from noisyjax.report.data import RunReport, failed
from noisyjax.store import Key, decode_completion

PER_CELL = 2
LONGEST = 1200
"""Characters of one part that are shown; the middle of a longer one is left out, and the page says so."""


@dataclass(frozen=True)
class Span:
    label: str
    unit: str
    text: str
    left_out: int
    """Characters left out of the middle."""


@dataclass(frozen=True)
class Failure:
    """One entry. `mass` is the share of attention per label, largest first, empty where it was not captured."""

    dataset: str
    setting: str
    question: str
    sample: int
    state: str
    gold: str
    extracted: str
    note: str
    text: str
    reasoning: str
    messages: tuple[tuple[str, tuple[Span, ...]], ...]
    mass: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Gallery:
    """`lost` counts failures that would be shown if the run's log 'prompts' still held their prompts."""

    shown: tuple[Failure, ...]
    lost: int


def failures(report: RunReport, per_cell: int = PER_CELL) -> Gallery:
    """Up to `per_cell` samples of each cell: questions that the baseline answered come first, then by id.

    Raises RunError when the log 'texts' lacks what prompts are made of.
    """
    results = report.results
    chosen = [
        (cell.dataset, cell.setting, s)
        for cell in results.cells
        for s in _choose(report, cell.dataset, cell.setting, per_cell)
    ]
    records = _records(results, {sample.key for _, _, sample in chosen})
    prompts, texts = _prompts(results, {sample.prompt for _, _, sample in chosen})
    shown = tuple(
        _failure(dataset, setting, sample, records[sample.key], prompts[sample.prompt], texts)
        for dataset, setting, sample in chosen
        if sample.prompt in prompts
    )
    return Gallery(shown, len(chosen) - len(shown))


def _choose(report: RunReport, dataset: str, setting: str, per_cell: int) -> list[Sample]:
    results = report.results
    base = results.cell(dataset, report.summary.baseline)
    solved = {s.key.question for s in results.kept(base) if s.score and s.score.value == 1} if base else set()
    cell = results.cell(dataset, setting)
    found = [s for s in results.kept(cell) if failed(s)] if cell else []
    return sorted(found, key=lambda s: (s.key.question not in solved, s.key.question, s.key.sample))[:per_cell]


def _records(results: RunResults, wanted: set[Key]) -> dict[Key, dict[str, Any]]:
    found: dict[Key, dict[str, Any]] = {}
    for reader in results.readers:
        found |= {key: record for key, record in reader.latest("samples").items() if key in wanted}
    return found


def _prompts(results: RunResults, wanted: set[str]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    prompts = {r["id"]: r for reader in results.readers for r in reader.records("prompts") if r["id"] in wanted}
    needed = {part[3] for r in prompts.values() for _, parts in r["messages"] for part in parts if len(part) > 3}
    texts = {r["id"]: r["text"] for reader in results.readers for r in reader.records("texts") if r["id"] in needed}
    if lost := needed - texts.keys():
        raise RunError(
            f"{results.readers[0].folder.url}: the log 'texts' lacks {len(lost)} of the texts that prompts are made of "
            f"({min(lost)}, …): restore the file; the table alone needs no --html"
        )
    return prompts, texts


def _failure(
    dataset: str,
    setting: str,
    sample: Sample,
    record: Mapping[str, Any],
    prompt: Mapping[str, Any],
    texts: Mapping[str, str],
) -> Failure:
    completion = decode_completion(record)
    score = sample.score
    assert score is not None  # of a failure
    messages = tuple(
        (message.role, tuple(_span(part.label.value, part.unit or "", part.text) for part in message.parts))
        for message in read_messages(prompt, texts)
    )
    return Failure(
        dataset=dataset,
        setting=setting,
        question=sample.key.question,
        sample=sample.key.sample,
        state=score.state.value,
        gold=prompt["gold"],
        extracted=score.extracted or "",
        note=score.note,
        text=completion.text,
        reasoning=completion.reasoning or "",
        messages=messages,
        mass=attention(completion),
    )


def _span(label: str, unit: str, text: str) -> Span:
    return Span(label, unit, shortened(text), max(0, len(text) - LONGEST))


def shortened(text: str) -> str:
    """At most `LONGEST` characters of a text: its two ends."""
    half = LONGEST // 2
    return text if len(text) <= LONGEST else f"{text[:half]} […] {text[-half:]}"


def attention(completion: Completion) -> tuple[tuple[str, float], ...]:
    """Mean attention mass per label over the answer's tokens and the captured layers; () where there is none."""
    if completion.mass is None or not len(completion.mass):
        return ()
    mean = completion.mass.mean(axis=tuple(range(completion.mass.ndim - 1)))[: len(LABELS)]
    shares = [(label.value, float(share)) for label, share in zip(LABELS, mean, strict=False) if share > 0]
    return tuple(sorted(shares, key=lambda pair: -pair[1]))
