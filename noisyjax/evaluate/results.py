"""A finished (or unfinished) run as numbers: one row per sample, with the pairing rules applied."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from noisyjax.errors import UsageError
from noisyjax.records import Finish, Score, State
from noisyjax.scoring import CellValues, headline, per_question
from noisyjax.store import Key, Manifest, RunReader, decode_score, open_readers
from noisyjax.store.manifest import broken


@dataclass(frozen=True)
class Sample:
    """One stored completion without its text. `score` is None where scoring has not got to it yet."""

    key: Key
    finish: Finish
    prompt: str
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    score: Score | None


@dataclass(frozen=True)
class CellInfo:
    """A cell of the run as it was planned; `questions` counts those of all shards."""

    id: str
    dataset: str
    setting: str
    n: int
    k: int
    questions: int


@dataclass(frozen=True)
class RunResults:
    """Everything a table needs of one run."""

    name: str
    url: str
    manifest: Manifest
    readers: tuple[RunReader, ...]
    cells: tuple[CellInfo, ...]
    samples: Mapping[Key, Sample]
    _by_cell: dict[str, list[Sample]] = field(default_factory=dict)

    @property
    def datasets(self) -> tuple[str, ...]:
        """In the order of the run's config."""
        return tuple(self.manifest.about["datasets"])

    @property
    def settings(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.setting for cell in self.cells))

    @property
    def absent(self) -> Mapping[str, str]:
        """Datasets that were asked for and cannot be run, with the reason."""
        return self.manifest.about["absent"]

    def about(self, dataset: str) -> Mapping[str, Any]:
        return self.manifest.about["datasets"][dataset]

    def cell(self, dataset: str, setting: str) -> CellInfo | None:
        return next((c for c in self.cells if (c.dataset, c.setting) == (dataset, setting)), None)

    def of(self, cell: CellInfo) -> list[Sample]:
        if not self._by_cell:
            for sample in self.samples.values():
                self._by_cell.setdefault(sample.key.cell, []).append(sample)
        return self._by_cell.get(cell.id, [])

    @cached_property
    def over_length(self) -> Mapping[str, frozenset[str]]:
        """Dataset -> questions that did not fit in some setting; they count in none."""
        found: dict[str, set[str]] = {}
        for cell in self.cells:
            for sample in self.of(cell):
                if sample.finish is Finish.OVER_LENGTH:
                    found.setdefault(cell.dataset, set()).add(sample.key.question)
        return {name: frozenset(ids) for name, ids in found.items()}

    def kept(self, cell: CellInfo) -> list[Sample]:
        """The cell's samples without the questions that are over length in any setting."""
        gone = self.over_length.get(cell.dataset, frozenset())
        return [s for s in self.of(cell) if s.key.question not in gone]

    def states(self, cell: CellInfo) -> Counter[str]:
        """How many samples are in each state; `missing` are planned and not there yet."""
        counts = Counter("unscored" if s.score is None else s.score.state.value for s in self.kept(cell))
        dropped = len(self.over_length.get(cell.dataset, frozenset()))
        if dropped:
            counts[State.OVER_LENGTH.value] = dropped * cell.n
        missing = cell.questions * cell.n - sum(counts.values())
        if missing > 0:
            counts["missing"] = missing
        return counts

    def values(self, cell: CellInfo, metric: str = "", name: str = "") -> CellValues:
        """One number per question: `mean`, `pass@k` or `pass^k` of its samples, nan where none is scored.

        Without `metric` it is the headline, pass@k where k > 1 and the mean otherwise. `name` picks another of the
        scorer's numbers.
        """
        by_question: dict[str, np.ndarray] = {}
        for sample in self.kept(cell):
            row = by_question.setdefault(sample.key.question, np.full(cell.n, np.nan))
            value = None if sample.score is None else headline(sample.score, name)
            row[sample.key.sample] = np.nan if value is None else value
        ids = sorted(by_question)
        values_qn = np.array([by_question[q] for q in ids]).reshape(len(ids), cell.n)
        values_q = per_question(values_qn, metric or ("pass@k" if cell.k > 1 else "mean"), cell.k)
        clusters = self.about(cell.dataset)["clusters"]
        labels = [clusters.get(q, q) for q in ids] if clusters else None
        return CellValues(cell.dataset, cell.setting, ids, values_q, labels)


def load_results(url: str) -> RunResults:
    """The run at `url`, its shards as one. UsageError when it is none, or when its shards are of different runs."""
    readers = tuple(open_readers(url))
    for reader in readers:
        _check(reader)
    first = readers[0].manifest
    for reader in readers[1:]:
        first_facts, facts = ((m.config, m.model, m.tasks) for m in (first, reader.manifest))
        if facts != first_facts:
            raise UsageError(f"{reader.folder.url} is a shard of another run than {readers[0].folder.url}")
    samples: dict[Key, Sample] = {}
    for reader in readers:
        scores = reader.latest("scores")
        for key, record in reader.latest("samples").items():
            samples[key] = _sample(key, record, scores.get(key))
    name = str(first.about.get("name") or PurePosixPath(url).name)
    return RunResults(name, str(url), first, readers, _cells(r.manifest for r in readers), samples)


_ABOUT = ("cells", "datasets", "absent", "block_seed", "engine", "reading")
"""What a report reads of a manifest's `about`."""


def _check(reader: RunReader) -> None:
    """UsageError where the manifest is one, but not that of an evaluation."""
    manifest = reader.manifest
    missing = [f"'about.{name}'" for name in _ABOUT if name not in manifest.about]
    missing += [] if "bench" in manifest.config else ["'config.bench'"]
    if missing:
        raise broken(reader.folder.url, f"lacks {', '.join(missing)}")
    keys = {f.name for f in fields(CellInfo)}
    if any(not isinstance(cell, dict) or cell.keys() != keys for cell in manifest.about["cells"]):
        raise broken(reader.folder.url, "holds a cell in 'about.cells' that is none")


def _cells(manifests: Iterable[Manifest]) -> tuple[CellInfo, ...]:
    found: dict[str, dict[str, Any]] = {}
    for manifest in manifests:
        for cell in manifest.about["cells"]:
            questions = found.get(cell["id"], {}).get("questions", 0) + cell["questions"]
            found[cell["id"]] = {**cell, "questions": questions}
    return tuple(CellInfo(**cell) for cell in found.values())


def _sample(key: Key, record: Mapping[str, Any], score: Mapping[str, Any] | None) -> Sample:
    return Sample(
        key,
        Finish(record["finish"]),
        record["prompt"],
        record["prompt_tokens"],
        record["completion_tokens"],
        record.get("cost"),
        None if score is None else decode_score(score),
    )
