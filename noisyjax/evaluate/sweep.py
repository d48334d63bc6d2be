"""Several runs in one file: models, methods or settings of a model, each combination a run of its own.

A sweep is an evaluation's config with `axes`. Its runs are the combinations in the order of the file, the last axis
fastest; which runs there are and where they lie depends on the file alone, so a sweep that was stopped goes on.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import field_validator, model_validator

from noisyjax.config import Schema, validate
from noisyjax.config.tree import Origins, expand, merge, parse_overrides, read_tree
from noisyjax.errors import RunError, UsageError, nearest
from noisyjax.evaluate.schema import EvalConfig

SPLITS = ("questions", "runs")
"""What a machine's part of a sweep is made of."""

_VALUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class SweepConfig(Schema):
    """Keys that a config of `noisyjax eval` may have besides its own; with them it is several runs."""

    axes: dict[str, dict[str, dict[str, Any]]]
    """Axis -> value -> the settings that make it. Every combination is a run, in the folder `out`/value/value; in any
    text of the file `{axis}` stands for the run's value of it."""
    skip: tuple[dict[str, str], ...] = ()
    """Combinations to leave out: `{model: some-model, thinking: off}`."""

    @field_validator("axes")
    @classmethod
    def _named(cls, axes: dict[str, dict[str, dict[str, Any]]]) -> dict[str, dict[str, dict[str, Any]]]:
        if not axes or not all(axes.values()):
            raise ValueError("a sweep needs an axis, and every axis a value")
        bad = [name for values in axes.values() for name in values if not _VALUE.fullmatch(name)]
        if bad:
            raise ValueError(f"values name folders: letters, digits, '.', '_' and '-' only, not {', '.join(bad)}")
        return axes

    @model_validator(mode="after")
    def _known(self) -> Self:
        for axis, value in ((a, v) for combination in self.skip for a, v in combination.items()):
            if axis not in self.axes:
                raise ValueError(f"skip: there is no axis '{axis}'; {nearest(axis, self.axes)}")
            if value not in self.axes[axis]:
                raise ValueError(f"skip: '{axis}' has no value '{value}'; {nearest(value, self.axes[axis])}")
        if not self.combinations():
            raise ValueError("skip: every combination is left out, so that there is nothing to run")
        return self

    def combinations(self) -> list[dict[str, str]]:
        """Axis -> value of every run, in order."""
        found = [dict(zip(self.axes, values, strict=True)) for values in itertools.product(*self.axes.values())]
        return [c for c in found if not any(skipped.items() <= c.items() for skipped in self.skip)]


def load_runs(
    source: str | Path, overrides: Iterable[str] = (), shard: str | None = None, split: str = "questions"
) -> tuple[EvalConfig, ...]:
    """The runs of a config, checked: one, or where the file has `axes` one for every combination.

    `overrides` hold for every run and win over the file's values. `shard` is `i/n`, this machine's part: by `questions`
    the i-th n-th of the questions of every run, by `runs` every n-th run, from the i-th. Raises UsageError that names
    the run and the key.
    """
    words = list(overrides)
    if split not in SPLITS:
        raise UsageError(f"no split '{split}'; {nearest(split, SPLITS)}")
    if shard is not None and any(word.startswith("shard=") for word in words):
        raise UsageError("--shard and shard= both say which part is this machine's: give one of them")
    if shard is None and split != "questions":
        raise UsageError(f"--split {split} says how the parts of --shard i/n are made: give that too")
    index, count = (1, 1) if shard is None else _shard(shard)
    if shard is not None and split == "questions":
        words.append(f"shard={shard}")
    base, origins = read_tree(source)
    over, over_origins = expand(*parse_overrides(words))
    tree, origins = merge(base, over), origins | over_origins
    if "axes" not in tree:
        runs: Sequence[EvalConfig] = [validate(EvalConfig, tree, str(source), origins)]
    else:
        runs = _expanded(str(source), tree, over, origins)
    if split == "runs" and not (runs := runs[index - 1 :: count]):
        raise UsageError(f"shard {shard} holds no run: there are more shards than runs; split by questions")
    return tuple(runs)


def _expanded(where: str, tree: dict[str, Any], over: Mapping[str, Any], origins: Origins) -> list[EvalConfig]:
    own: dict[str, Any] = {key: tree.pop(key) for key in ("axes", "skip") if key in tree}
    sweep = validate(SweepConfig, own, where, origins)
    runs = []
    for combination in sweep.combinations():
        run = dict(tree)
        for axis, value in combination.items():
            run = merge(run, sweep.axes[axis][value])
        run = _filled(merge(run, {k: v for k, v in over.items() if k not in own}), combination)
        if left := re.search(r"\{(\w+)\}", str(run.get("out", ""))):
            raise UsageError(f"{where}: out: there is no axis '{left[1]}'; {nearest(left[1], sweep.axes)}")
        path = "/".join(combination.values())
        run |= {"name": path, "out": f"{str(run.get('out', 'runs/eval')).rstrip('/')}/{path}"}
        runs.append(validate(EvalConfig, run, f"{where}, run {path}", origins))
    return runs


def _filled(value: Any, names: Mapping[str, str]) -> Any:
    """`{axis}` in every text replaced by the run's value of that axis."""
    if isinstance(value, str):
        return re.sub(r"\{(\w+)\}", lambda found: names.get(found[1], found[0]), value)
    if isinstance(value, Mapping):
        return {key: _filled(inner, names) for key, inner in value.items()}
    return [_filled(inner, names) for inner in value] if isinstance(value, list) else value


def _shard(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"a shard is i/n with i from 1 to n, such as 1/4; got '{text}'")
    return int(match[1]), int(match[2])


def evaluate_all(runs: Sequence[EvalConfig]) -> None:
    """Run one after the other. One that fails does not keep the others from running; all failures are told at the end.

    Raises the error of a single run as it is. For several one that lists them: a UsageError where all of them were
    wrong requests, which no new start would mend, else a RunError. A stop is passed on at once.
    """
    from noisyjax.evaluate.run import evaluate

    failed: list[str] = []
    codes: set[int] = set()
    for run in runs:
        try:
            evaluate(run)
        except Exception as error:
            # What a person can cause or meet has an exit code, here and in `noisyjax.models`; all else is a bug.
            if len(runs) == 1 or not hasattr(error, "exit_code"):
                raise
            failed.append(f"{run.name}: {error}")
            codes.add(error.exit_code)
    if failed:
        kind = UsageError if codes == {UsageError.exit_code} else RunError
        raise kind(f"{len(failed)} of {len(runs)} runs failed\n" + "\n".join(f"  {line}" for line in failed))
