"""NoisyBench for one config: the questions of each dataset, what was dropped and why, and prompts for any setting.

Pairing: every question is checked against all kinds of noise that are at hand, whatever settings will be run, and one
that fails in any of them is in none. So the settings always compare the same questions.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from noisyjax.bench.noise.assign import Assigned, assign_negatives, assign_pool
from noisyjax.bench.noise.budget import Count, spend
from noisyjax.bench.noise.contamination import Checker
from noisyjax.bench.prompts import arrange, build_messages
from noisyjax.bench.questions.files import data_folder
from noisyjax.bench.questions.load import Loaded, load_questions
from noisyjax.bench.questions.rows import BadRows, read_rows
from noisyjax.bench.quickstart import FOLDER as QUICKSTART
from noisyjax.bench.schema import Assignment, BenchConfig, PoolConfig
from noisyjax.bench.seeds import seeded_order
from noisyjax.bench.sources import NegativeFile, Pool, load_pool, read_negatives
from noisyjax.bench.sources.pools import PoolKind, existing
from noisyjax.bench.task import Task, get_task
from noisyjax.chat import ChatTokenizer, build_prompt, estimate_tokens
from noisyjax.errors import UsageError
from noisyjax.records import NOISE_KINDS, Document, NoisyPrompt, Question, Unit, noise_kinds


@dataclass(frozen=True)
class Dropped:
    """A question that is in no setting. `reason`: contaminated or no_negatives; `kinds` are those that it fails in."""

    question_id: str
    reason: str
    kinds: tuple[str, ...]
    detail: str


@dataclass(frozen=True)
class Sources:
    """The noise at hand. None: there is none, and `missing` says for each kind what to do about it."""

    pools: Mapping[str, Pool]
    negatives: NegativeFile | None
    missing: Mapping[str, str]
    bad: tuple[str, ...] = ()


@dataclass(frozen=True)
class DatasetBench:
    """One dataset under one config."""

    task: Task
    config: BenchConfig
    loaded: Loaded
    sources: Sources
    questions: tuple[Question, ...]
    """The questions that every setting asks, in seeded order."""
    dropped: tuple[Dropped, ...]

    @cached_property
    def checker(self) -> Checker:
        """The per-pair check under this config."""
        return Checker(self.config.min_answer_chars, self.config.min_option_words)

    def only(self, ids: Collection[str]) -> "DatasetBench":
        """The same dataset with these questions alone: what is not asked for need not be rendered."""
        return replace(self, questions=tuple(q for q in self.questions if q.id in ids))

    def missing(self, setting: str) -> str | None:
        """Why `setting` cannot be run for this dataset (an absent cell), or None when it can.

        Raises ValueError for a name that is not a setting.
        """
        reasons = [reason for kind in noise_kinds(setting) if (reason := self._missing_kind(kind)) is not None]
        return "; ".join(reasons) or None

    def assigned(self, question: Question, kind: str) -> Assigned:
        """The noise of one kind that `question` is given before any budget."""
        swap = self.config.contamination == "swap_unit"
        if kind == "HN":
            documents = _negatives(self.loaded, self.sources, question, self.config.hn.prefer)
            return assign_negatives(documents, question, self.config, self.checker)
        pool_config = self.config.rd if kind == "RD" else self.config.rc
        return assign_pool(self.sources.pools[kind], pool_config, question, self.config.seed, self.checker, swap)

    def prompts(
        self,
        setting: str,
        tokenizer: ChatTokenizer | None = None,
        *,
        limit: int | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        count: Count | None = None,
    ) -> Iterator[NoisyPrompt]:
        """One prompt per question, in the order of `questions`.

        `tokenizer` None is for endpoints: messages only, lengths from `count` (an estimate by default). `limit` is the
        longest prompt the model takes; the smaller of it and `max_prompt_tokens` holds.
        Raises UsageError when the setting is `missing`.
        """
        reason = self.missing(setting)
        if reason is not None:
            raise UsageError(f"{self.task.name}: {setting} cannot be made: {reason}")
        limits = [n for n in (limit, self.config.max_prompt_tokens) if n is not None]
        # Units of a shared block meet every question: their lengths are counted once.
        counter = cache(count or (tokenizer.count_tokens if tokenizer is not None else estimate_tokens))
        for question in self.questions:
            units, dropped = self.noise(question, setting, counter)
            yield build_prompt(
                tokenizer,
                build_messages(question, units, self.task, self.config),
                dataset=self.task.name,
                question_id=question.id,
                setting=setting,
                limit=min(limits) if limits else None,
                template_kwargs=template_kwargs,
                count=counter,
                dropped=dropped,
                choices=question.choices,
                gold=question.answers[0],
            )

    def noise(self, question: Question, setting: str, count: Count) -> tuple[list[Unit], tuple[str, ...]]:
        """The units `question` gets under `setting` in the order of the layout, and the ids the token cap dropped."""
        units = {kind: self.assigned(question, kind).units for kind in noise_kinds(setting)}
        if self.config.distractor_tokens is None or not units:
            return arrange([unit for group in units.values() for unit in group]), ()
        modes: dict[str, Assignment] = {
            "RD": self.config.rd.assignment,
            "RC": self.config.rc.assignment,
            "HN": "per_question",
        }
        spent = spend(units, self.config.distractor_tokens, modes, count)
        return arrange(spent.kept), spent.dropped

    def _missing_kind(self, kind: str) -> str | None:
        if kind != "HN":
            return self.sources.missing.get(kind)
        return None if self.loaded.has_negatives else self._no_negatives

    @cached_property
    def _no_negatives(self) -> str | None:
        """Why the hard-negatives file does not serve this dataset; None when it has some of its questions."""
        file = self.sources.negatives
        if file is not None and any(file.of(question) for question in self.loaded.questions):
            return None
        if file is not None and self.task.name in file.datasets():
            return "the hard negatives given for it belong to other questions (another release, or other options)"
        return self.sources.missing["HN"]


@dataclass(frozen=True)
class Bench:
    config: BenchConfig
    datasets: Mapping[str, DatasetBench]
    absent: Mapping[str, str]
    """Datasets that are declared and cannot be run yet, with the reason: columns that show as absent."""

    def __getitem__(self, name: str) -> DatasetBench:
        return self.datasets[name]


def load_bench(config: BenchConfig) -> Bench:
    """Read everything `config` names, assign the noise and settle which questions stay.

    Raises UsageError for missing files, broken rows, and a pool that a setting needs and nobody gave.
    """
    sources = load_sources(config)
    datasets, absent = {}, {}
    for name in config.datasets:
        task = get_task(name)
        if task.status == "absent":
            absent[name] = task.absent_because
        else:
            datasets[name] = load_dataset(task, config, sources)
    return Bench(config, datasets, absent)


def load_dataset(task: Task, config: BenchConfig, sources: Sources) -> DatasetBench:
    """Read one dataset and walk its questions in seeded order until enough of them pass every check."""
    override = config.override(task.name)
    loaded = load_questions(
        task,
        str(_folder(config) or "hub"),
        seed=config.seed,
        layout=override.layout,
        only=override.files,
        options=override.options,
        skip_bad=config.skip_bad,
    )
    wanted = override.questions or config.questions
    trial = DatasetBench(task, config, loaded, sources, (), ())
    kinds = [kind for kind in NOISE_KINDS if trial.missing(kind) is None]
    kept: list[Question] = []
    dropped: list[Dropped] = []
    for question in seeded_order(loaded.questions, lambda q: q.id, config.seed, "questions", task.name):
        if wanted is not None and len(kept) == wanted:
            break
        failure = check_question(trial, question, kinds)
        if failure is None:
            kept.append(question)
        else:
            dropped.append(failure)
    if not kept:
        reasons = ", ".join(f"{n} {reason}" for reason, n in Counter(d.reason for d in dropped).items())
        raise UsageError(f"{task.name}: no question is left ({reasons})")
    return DatasetBench(task, config, loaded, sources, tuple(kept), tuple(dropped))


def check_question(bench: DatasetBench, question: Question, kinds: Sequence[str]) -> Dropped | None:
    """Why `question` must go, looking at every kind of noise; None when it may stay."""
    found = {kind: bench.assigned(question, kind) for kind in kinds}
    held = {kind: a.contaminated for kind, a in found.items() if a.contaminated}
    if held:
        detail = "; ".join(f"{kind} {unit} holds '{term}'" for kind, pairs in held.items() for unit, term in pairs[:3])
        return Dropped(question.id, "contaminated", tuple(held), detail)
    if "HN" in found and found["HN"].short:
        had = bench.config.hn.count - found["HN"].short
        return Dropped(question.id, "no_negatives", ("HN",), f"{bench.config.hn.count} wanted, {had} at hand")
    return None


def load_sources(config: BenchConfig) -> Sources:
    """The pools and the file of hard negatives.

    Raises UsageError for a named file that is missing and for a pool that a setting needs and nobody gave.
    """
    folder = _folder(config)
    pools: dict[str, Pool] = {}
    missing: dict[str, str] = {}
    wanted: tuple[tuple[PoolKind, PoolConfig], ...] = (("RD", config.rd), ("RC", config.rc))
    for kind, pool_config in wanted:
        pool = None
        # The hub's pools are large: they are only fetched for a setting that needs them.
        if folder is not None or config.asks_for(kind) or pool_config.files:
            pool = load_pool(kind, pool_config, folder, config.block_seed, config.skip_bad)
        if pool is not None:
            pools[kind] = pool
            continue
        missing[kind] = f"no pool of {kind} in {config.data}: name one with {kind.lower()}.files=[FILE]"
        if config.asks_for(kind):
            raise UsageError(missing[kind])
    bad = BadRows(config.skip_bad)
    paths = list(existing(config.hn.files)) or (sorted(folder.glob("hard_negatives*.jsonl")) if folder else [])
    negatives = read_negatives((row for path in paths for row in read_rows(path, bad)), bad) if paths else None
    missing["HN"] = "no hard negatives for it: give hn.files=[FILE] with rows {dataset, question_id, text}"
    all_bad = (*(b for pool in pools.values() for b in pool.bad), *bad.found)
    return Sources(pools, negatives, missing, all_bad)


def _negatives(loaded: Loaded, sources: Sources, question: Question, prefer: str) -> tuple[Document, ...]:
    shipped = loaded.negatives(question)
    given = sources.negatives.of(question) if sources.negatives else ()
    return (shipped or given) if prefer == "builtin" else (given or shipped)


def _folder(config: BenchConfig) -> Path | None:
    """The data folder; None stands for the hub."""
    if config.data == "hub":
        return None
    return QUICKSTART if config.data == "quickstart" else data_folder(config.data)
