"""Runs the cells of a sweep: generate, store, score; then ask the judge; stop cleanly, go on where it stopped."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from noisyjax import hosts
from noisyjax.bench import Bench, load_bench
from noisyjax.config import config_hash, identity, to_yaml
from noisyjax.engine.config import LocalConfig
from noisyjax.engine.opened import OpenEngine, answers, open_engine
from noisyjax.errors import UsageError
from noisyjax.evaluate.cells import Cell, Plan, plan, share_of
from noisyjax.evaluate.judging import judge_run
from noisyjax.evaluate.progress import RunProgress
from noisyjax.evaluate.prompts import question_record, store_prompt
from noisyjax.evaluate.rescoring import score_missing
from noisyjax.evaluate.schema import EvalConfig, KeepConfig
from noisyjax.evaluate.score import Presented, Reading, TaskScorer
from noisyjax.interrupts import Interrupts, Stopped
from noisyjax.records import Completion, Finish, NoisyPrompt, Request
from noisyjax.store import Key, Manifest, RunWriter, check_model, check_place, open_folder
from noisyjax.store.manifest import MANIFEST_NAME


@dataclass(frozen=True)
class Outcome:
    """What a call of `evaluate` did. `errors` counts samples that the engine gave up on; the next call tries them."""

    out: str
    samples: int
    fresh: int
    errors: int


def evaluate(config: EvalConfig, opened: OpenEngine | None = None) -> Outcome:
    """Run (or go on with) the sweep that `config` describes; every sample is durable before it counts.

    `opened` takes the place of the engine that the config names, and is then not closed here.
    Raises UsageError for what cannot be run, RunError when storing or the engine fails for good, and Stopped on Ctrl-C
    or SIGTERM; after the last two the same call goes on where it was.

    On several hosts each does its share of the questions on a model of its own, and stores it as a shard of the run.
    All return when all are done, and the outcome is that of all.
    """
    hosts.first_only(lambda: _check_shards(config))
    if hosts.count() == 1:
        return _evaluate(config, opened)
    mine = config.model_copy(update={"shard": share_of(config.shard, hosts.index(), hosts.count())})
    parts = hosts.gather(lambda: _evaluate(mine, opened))
    samples, fresh, errors = (sum(getattr(part, name) for part in parts) for name in ("samples", "fresh", "errors"))
    return Outcome(config.out, samples, fresh, errors)


def _evaluate(config: EvalConfig, opened: OpenEngine | None) -> Outcome:
    check_place(_folder(config))  # again when it is opened; here before a model is loaded
    bench = load_bench(config.bench)
    work = plan(config, bench)
    _check_models(config, opened)
    engine = opened or open_engine(config.engine, config.template_kwargs, config.count_with)
    try:
        with RunWriter.open(_folder(config), manifest(config, work, engine), to_yaml(config)) as run:
            return _run(config, work, engine, run)
    finally:
        if opened is None:
            engine.engine.close()


def _check_models(config: EvalConfig, opened: OpenEngine | None) -> None:
    """UsageError that names the key of a model that is not there; a judge is asked when all else is done."""
    judge = None if config.judge is None else config.judge.engine
    engines = {"engine": config.engine if opened is None else None, "judge.engine": judge}
    for key, engine in engines.items():
        if isinstance(engine, LocalConfig):
            check_model(f"{key}.model", engine.model)


def _run(config: EvalConfig, work: Plan, engine: OpenEngine, run: RunWriter) -> Outcome:
    reading = reading_of(config, engine)
    scorers = {name: TaskScorer(dataset.task, reading) for name, dataset in work.bench.datasets.items()}
    known = sum(1 for cell in work.cells for key in _keys(cell) if key in run.done)
    errors = 0
    try:
        with Interrupts() as interrupts, RunProgress(config.name, work.total, known) as progress:
            score_missing(run, scorers)
            collect = _Collector(config.keep, work, run, scorers)
            requests = collect.noting(work.requests(frozenset(run.done), engine))
            for completion in interrupts.watch(answers(engine, requests)):
                cell, score = collect.take(completion)
                errors += completion.finish is Finish.ERROR
                progress.add(completion, score, f"{cell.dataset} {cell.setting}")
            run.flush()
            if config.judge is not None:
                judge_run(run, config.judge, scorers, engine, interrupts, progress.say)
    except Stopped as stop:
        raise Stopped(stop.exit_code - 128, _how_to_resume(run, work)) from None
    return Outcome(run.folder.url, work.total, sum(collect.counts.values()), errors)


def _how_to_resume(run: RunWriter, work: Plan) -> str:
    return (
        f"stopped; {len(run.done)} of {work.total} samples are stored in {run.folder.url}. "
        "Run the same command again and it goes on from there."
    )


class _Collector:
    """Stores prompts when they are asked for, completions and scores when they arrive."""

    def __init__(self, keep: KeepConfig, work: Plan, run: RunWriter, scorers: Mapping[str, TaskScorer]):
        self._keep, self._work, self._run, self._scorers = keep, work, run, scorers
        self._questions = {(n, q.id): q for n, d in work.bench.datasets.items() for q in d.questions}
        self._prompt_ids: dict[str, str] = {}
        self.counts: Counter[str] = Counter()

    def noting(self, requests: Iterator[Request]) -> Iterator[Request]:
        """The requests, each stored as question and prompt before the engine sees it."""
        for request in requests:
            prompt = request.prompt
            self._run.put_once("questions", question_record(self._questions[prompt.dataset, prompt.question_id]))
            self._prompt_ids[request.id] = store_prompt(self._run, prompt)
            yield request

    def take(self, completion: Completion) -> tuple[Cell, Any]:
        """Store one completion and its score; the cell and the score."""
        cell, prompt = self._work.claim(completion)
        prompt_id = self._prompt_ids[completion.request_id]
        if completion.request_id not in self._work.flying:
            del self._prompt_ids[completion.request_id]
        key = Key(cell.id, prompt.question_id, completion.sample)
        self._run.put_sample(key, prompt_id, kept(completion, self._keep))
        score = self._score(prompt, completion)
        self._run.put_score(key, score)
        self.counts[score.state.value] += 1
        return cell, score

    def _score(self, prompt: NoisyPrompt, completion: Completion) -> Any:
        question = self._questions[prompt.dataset, prompt.question_id]
        return self._scorers[prompt.dataset](question, Presented(prompt.choices, prompt.gold), completion)


def kept(completion: Completion, keep: KeepConfig) -> Completion:
    """The completion without the arrays that are not to be stored. `mean` turns mass [R, L, N] into [1, L, N]."""
    gone: dict[str, Any] = {}
    if not keep.ids:
        gone |= {"ids": None, "top_ids": None}
    if not keep.logprobs:
        gone |= {"logprobs": None, "entropy": None, "top_ids": None, "top_logprobs": None}
    if keep.mass == "none":
        gone |= {"mass": None, "prompt_mass": None}
    elif keep.mass == "mean":
        gone["prompt_mass"] = None
        if completion.mass is not None and len(completion.mass):
            gone["mass"] = completion.mass.mean(axis=0, keepdims=True)
    return replace(completion, **gone)


def reading_of(config: EvalConfig, engine: OpenEngine) -> Reading:
    asked = config.prompt_opens_thought
    return Reading(engine.opens_thought if asked is None else asked, engine.tags)


def manifest(config: EvalConfig, work: Plan, engine: OpenEngine) -> Manifest:
    """Who is asked what. `about` holds what a report shows besides; docs/store.md lists it."""
    cells = [
        {"id": c.id, "dataset": c.dataset, "setting": c.setting, "n": c.n, "k": c.k, "questions": len(c.questions)}
        for c in work.cells
    ]
    bench = work.bench
    tasks = {name: {"version": d.task.version, "questions": _digest(d)} for name, d in sorted(bench.datasets.items())}
    reading = reading_of(config, engine)
    about = {
        "name": config.name,
        "engine": engine.engine.name,
        "cells": cells,
        "datasets": {name: _about_dataset(bench, name) for name in bench.datasets},
        "absent": dict(bench.absent),
        "block_seed": config.bench.block_seed,
        "reading": {"opens_thought": reading.opens_thought, "tags": reading.tags},
        "shard": config.shard,
    }
    return Manifest(identity(config), config_hash(config), dict(engine.identity), tasks, about)


def _about_dataset(bench: Bench, name: str) -> dict[str, Any]:
    dataset = bench[name]
    missing = {s: reason for s in bench.config.settings if (reason := dataset.missing(s)) is not None}
    return {
        "title": dataset.task.title,
        "short": dataset.task.short,
        "metric": dataset.task.score.metric if dataset.task.score else "",
        "questions": len(dataset.questions),
        "dropped": dict(Counter(d.reason for d in dataset.dropped)),
        "bad_rows": len(dataset.loaded.bad),
        "duplicates": dataset.loaded.duplicates,
        "missing": missing,
        "clusters": {q.id: str(q.meta["cluster"]) for q in dataset.questions if "cluster" in q.meta},
    }


def _digest(dataset: Any) -> str:
    """Of the ids and texts of all questions, so that changed data cannot be mixed into a run unseen."""
    total = hashlib.sha256()
    for question in sorted(dataset.questions, key=lambda q: q.id):
        total.update(repr((question.id, question.text, question.answers, question.choices)).encode())
    return total.hexdigest()[:16]


def _keys(cell: Cell) -> Iterator[Key]:
    return (Key(cell.id, question, sample) for question in cell.questions for sample in range(cell.n))


def _folder(config: EvalConfig) -> str:
    """Each shard is a run of its own inside `out`; reports read them as one."""
    out = config.out.rstrip("/")
    return out if config.shard is None else f"{out}/shard-{config.shard.replace('/', '-of-')}"


def _check_shards(config: EvalConfig) -> None:
    """UsageError when the run was begun in another number of shares, which held other questions."""
    folder = open_folder(config.out)
    of = int(share_of(config.shard, 0, hosts.count()).split("/")[1])
    held = {int(name.rpartition("-")[2]) for name in folder.children() if re.fullmatch(r"shard-\d+-of-\d+", name)}
    held |= {1} if folder.read(MANIFEST_NAME) is not None else set()
    if others := held - {of}:
        raise UsageError(
            f"{config.out} was begun in {max(others)} share(s) and cannot be gone on with in {of}: give it "
            f"{max(others)} host(s) or shard=i/{max(others)} again, or choose another `out`"
        )
