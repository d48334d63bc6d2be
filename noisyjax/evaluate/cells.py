"""Cells, and the stream of requests that still have to be answered.

The stream runs setting by setting, so that prompts which share a block of noise are neighbours, and within a setting
through all datasets, so that slots stay busy across the borders of cells. Nothing is rendered before the engine asks.
"""

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from noisyjax.bench import Bench, DatasetBench, Task
from noisyjax.engine.opened import OpenEngine
from noisyjax.errors import UsageError
from noisyjax.evaluate.schema import EvalConfig
from noisyjax.records import Completion, NoisyPrompt, Request, Sampling
from noisyjax.store import Key


@dataclass(frozen=True)
class Cell:
    """One dataset in one setting. `n` samples per question, of which pass@`k` is told."""

    id: str
    dataset: str
    setting: str
    n: int
    k: int
    sampling: Sampling
    questions: tuple[str, ...]
    """Ids of the questions of this shard, in the benchmark's order."""


@dataclass
class Plan:
    """The cells of a run and the requests that are under way."""

    bench: Bench
    cells: tuple[Cell, ...]
    seed: int
    flying: dict[str, tuple[Cell, NoisyPrompt]] = field(default_factory=dict)
    """By request id; `claim` says what a completion belongs to."""
    _left: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Samples of all cells."""
        return sum(cell.n * len(cell.questions) for cell in self.cells)

    def requests(self, done: Collection[Key], engine: OpenEngine) -> Iterator[Request]:
        """What is not in `done` yet, rendered one by one."""
        for cell in self.cells:
            missing = {q: gaps for q in cell.questions if (gaps := _gaps(cell, q, done))}
            if not missing:
                continue
            dataset = self.bench[cell.dataset].only(missing)
            limit = None if engine.window is None else engine.window - cell.sampling.max_tokens
            if limit is not None and limit < 1:
                raise UsageError(
                    f"max_tokens={cell.sampling.max_tokens} leaves no room for a prompt in the model's window of "
                    f"{engine.window} tokens"
                )
            prompts = dataset.prompts(
                cell.setting,
                engine.tokenizer,
                limit=limit,
                template_kwargs=engine.template_kwargs or None,
                count=engine.count,
            )
            for prompt in prompts:
                for first, n in missing[prompt.question_id]:
                    yield self._request(cell, prompt, first, n)

    def _request(self, cell: Cell, prompt: NoisyPrompt, first: int, n: int) -> Request:
        id = f"{cell.id}/{prompt.question_id}/{first}"
        self.flying[id], self._left[id] = (cell, prompt), n
        # One stream per question, whatever the setting: settings are compared with common random numbers.
        key = f"{cell.dataset}/{prompt.question_id}"
        return Request(id, prompt, cell.sampling, n=n, first_sample=first, seed=self.seed, key=key)

    def claim(self, completion: Completion) -> tuple[Cell, NoisyPrompt]:
        """The cell and prompt of a completion; the request is forgotten with its last one."""
        id = completion.request_id
        found = self.flying[id]
        self._left[id] -= 1
        if not self._left[id]:
            del self.flying[id], self._left[id]
        return found


def plan(config: EvalConfig, bench: Bench) -> Plan:
    """Every cell that can be run, in the order of the stream. UsageError when there is none."""
    cells = [
        _cell(config, dataset, setting)
        for setting in config.bench.settings
        for dataset in bench.datasets.values()
        if dataset.missing(setting) is None
    ]
    if not cells:
        reasons = [f"{n} {s}: {d.missing(s)}" for n, d in bench.datasets.items() for s in config.bench.settings]
        raise UsageError("there is nothing to run:\n  " + "\n  ".join(reasons))
    return Plan(bench, tuple(cells), config.seed)


def _cell(config: EvalConfig, dataset: DatasetBench, setting: str) -> Cell:
    task = dataset.task
    n = config.n or max(task.n, config.k or task.k)
    k = config.k or min(task.k, n)
    questions = tuple(q.id for q in dataset.questions if in_shard(config.shard, task.name, q.id))
    # Readable, and different wherever a stored sample would mean something else.
    digest = hashlib.sha256(f"{task.name}\0{task.version}\0{setting}".encode()).hexdigest()[:8]
    return Cell(f"{task.name}-{setting}-{digest}", task.name, setting, n, k, _sampling(config, task, n), questions)


def _sampling(config: EvalConfig, task: Task, n: int) -> Sampling:
    asked = config.sampling
    several = n > 1
    temperature = asked.temperature if asked.temperature is not None else (0.6 if several else 0.0)
    top_p = asked.top_p if asked.top_p is not None else (0.95 if temperature > 0 else 1.0)
    if several and temperature == 0:
        raise UsageError(f"{task.name}: {n} greedy samples are {n} times the same; give a temperature, or n=1")
    return Sampling(temperature, top_p, asked.top_k, asked.min_p, asked.max_tokens, asked.stop)


def in_shard(shard: str | None, dataset: str, question: str) -> bool:
    """Whether this share holds the question: a function of its id, so all settings of a question stay together."""
    if shard is None:
        return True
    index, count = map(int, shard.split("/"))
    digest = hashlib.sha256(f"shard\0{dataset}\0{question}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % count == index - 1


def share_of(shard: str | None, part: int, parts: int) -> str:
    """The `part`-th (from 0) of `parts` shares of a shard: together they hold its questions, each once.

    >>> share_of(None, 1, 4), share_of("2/3", 1, 4)
    ('2/4', '5/12')
    """
    index, count = map(int, (shard or "1/1").split("/"))
    return f"{index + count * part}/{count * parts}"


def _gaps(cell: Cell, question: str, done: Collection[Key]) -> list[tuple[int, int]]:
    """(first sample, how many) of each run of samples that are missing."""
    gaps: list[tuple[int, int]] = []
    for sample in range(cell.n):
        if Key(cell.id, question, sample) in done:
            continue
        if gaps and sum(gaps[-1]) == sample:
            gaps[-1] = (gaps[-1][0], gaps[-1][1] + 1)
        else:
            gaps.append((sample, 1))
    return gaps
