"""Checkpoints of a training run: what is written, when, what is kept, and how a run finds its way back.

A checkpoint holds everything the next step depends on: the arrays (policy, optimizer, adapter) as one tree, and as JSON
the step, the data cursor, the reference's whereabouts and the config's identity. Random numbers need nothing: every
draw is keyed by (seed, step, question, sample). Orbax writes in the background, under a temporary name that is
renamed when the checkpoint is whole, and lays arrays out anew when the mesh is another one.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from noisyjax.config import differences
from noisyjax.errors import RunError, UsageError
from noisyjax.store import open_folder, remedy
from noisyjax.train.config import StateConfig

log = logging.getLogger(__name__)

FOLDER = "checkpoints"
"""Inside a run's folder."""


@dataclass(frozen=True)
class Restored:
    """`tree` as the template given to `restore`, `about` the JSON beside it."""

    step: int
    tree: Any
    about: Mapping[str, Any]


class Checkpoints:
    """The checkpoints of one run. `identity` is what must not change between a run and its continuation.

    Raises UsageError when the folder's checkpoints are of a run with another identity.
    """

    def __init__(
        self,
        run: str | Path,
        config: StateConfig,
        identity: Mapping[str, Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        import orbax.checkpoint as ocp

        self._config, self._clock, self._last = config, clock, clock()
        self._failed = False
        logging.getLogger("absl").addFilter(_not_orbax)
        self._identity = json.loads(json.dumps(identity))
        self.folder = _absolute(run)
        self._manager = ocp.CheckpointManager(
            self.folder,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=_preservation(config),
                # When to save is decided here: a time policy must not depend on when the last write was finished.
                should_save_fn=lambda step, last: False,
                enable_async_checkpointing=True,
                cleanup_tmp_directories=True,
                step_name_format=None,
            ),
            item_names=("tree", "about"),
        )

    @property
    def steps(self) -> list[int]:
        """Steps with a checkpoint, oldest first."""
        return sorted(self._manager.all_steps())

    def restore(self, template: Any) -> Restored | None:
        """The checkpoint that the config asks for, laid out as `template` (arrays or ShapeDtypeStructs), or None.

        Raises RunError for one that is cut short or broken, naming it and the one before; UsageError for a step that
        is not there or a run with another config.
        """
        steps = self.steps
        wanted = self._config.restore
        if wanted == "latest":
            if not steps:
                return None
            step = steps[-1]
        else:
            if wanted not in steps:
                raise UsageError(f"state.restore={wanted}: {self.folder} holds {_listed(steps)}")
            step = wanted
        restored = self._read(step, template, [s for s in steps if s < step])
        for later in [s for s in steps if s > step]:
            log.warning("going on from step %d: the checkpoint of step %d is given up", step, later)
            self._manager.delete(later)
        return restored

    def _read(self, step: int, template: Any, earlier: list[int]) -> Restored:
        import orbax.checkpoint as ocp

        abstract = jax.tree.map(ocp.tree.to_shape_dtype_struct, template)
        try:
            about = self._manager.restore(step, args=ocp.args.Composite(about=ocp.args.JsonRestore()))["about"]
            if about["identity"] == self._identity:
                args = ocp.args.Composite(tree=ocp.args.StandardRestore(abstract))
                return Restored(step, self._manager.restore(step, args=args)["tree"], about)
        except Exception as error:
            way = f"state.restore={earlier[-1]} goes on from the one before" if earlier else "there is none before it"
            raise RunError(
                f"the checkpoint of step {step} in {self.folder} cannot be read ({_first_line(error)}); {way}"
            ) from error
        changed = _differences(about["identity"], self._identity)
        raise UsageError(
            f"{self.folder} was written with another config ({changed}); use another `out`, or the same config"
        )

    def due(self, step: int) -> bool:
        """Whether a checkpoint is due after `step`."""
        minutes = self._config.every_minutes
        late = minutes is not None and self._clock() - self._last >= 60 * minutes
        return step % self._config.every_steps == 0 or late or self._manager.reached_preemption(step)

    def save(self, step: int, tree: Any, about: Mapping[str, Any], metrics: Mapping[str, float] | None = None) -> None:
        """Begin to write a checkpoint; returns when the arrays have been copied. Saving a step twice is one save."""
        import orbax.checkpoint as ocp

        if step in self._manager.all_steps():
            return
        known = metrics or {}
        if self._config.keep_best and self._config.metric not in known:
            log.warning("step %d has no metric %r: it does not compete for the best", step, self._config.metric)
        args = ocp.args.Composite(
            tree=ocp.args.StandardSave(tree),
            about=ocp.args.JsonSave({**about, "step": step, "identity": self._identity}),
        )
        ranked = {self._config.metric: float(known[self._config.metric])} if self._config.metric in known else None
        with self._writing():
            self._manager.save(step, args=args, metrics=ranked, force=True)
        self._last = self._clock()

    def wait(self) -> None:
        """Until everything begun is on disk; RunError when it could not be written."""
        with self._writing():
            self._manager.wait_until_finished()
            self._manager.check_for_errors()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A RunError for whatever orbax raises: its writers wrap a full disk in errors of many types, and what failed
        in the background is raised by the next call."""
        try:
            yield
        except Exception as error:
            self._failed = True
            whole = sorted(self._manager.all_steps(read=True))
            raise RunError(
                f"a checkpoint could not be written to {self.folder} ({_first_line(error)}); the whole ones: "
                f"{_listed(whole)}; {remedy(error)} and start the same run again"
            ) from error

    def close(self) -> None:
        """Let go. What a failed writer has left to say was said in its RunError."""
        try:
            self._manager.close()
        except Exception:
            if not self._failed:
                raise


def read_about(run: str | Path, step: int | None = None) -> tuple[int, Mapping[str, Any]]:
    """Step and JSON of a checkpoint (the latest when `step` is None), not its arrays. UsageError if there is none,
    RunError for one that cannot be read."""
    import orbax.checkpoint as ocp

    folder = _absolute(run)
    if FOLDER not in open_folder(run).children():
        raise UsageError(f"{run} holds no checkpoints (no folder `{FOLDER}` in it): name the `out` of a training run")
    options = ocp.CheckpointManagerOptions(read_only=True, create=False, save_interval_steps=0)
    with ocp.CheckpointManager(folder, options=options, item_names=("tree", "about")) as manager:
        steps = sorted(manager.all_steps())
        if not steps or (step is not None and step not in steps):
            raise UsageError(f"{run} holds {_listed(steps)}" + ("" if step is None else f", not step {step}"))
        step = steps[-1] if step is None else step
        with _reading(folder, step, [one for one in steps if one != step]):
            return step, manager.restore(step, args=ocp.args.Composite(about=ocp.args.JsonRestore()))["about"]


@contextmanager
def _reading(folder: object, step: int, others: list[int]) -> Iterator[None]:
    """A RunError for a checkpoint that is cut short or broken, whatever orbax makes of it."""
    try:
        yield
    except Exception as error:
        way = f"; there are {_listed(others)} too (--step)" if others else ""
        raise RunError(
            f"the checkpoint of step {step} in {folder} cannot be read ({_first_line(error)}){way}"
        ) from error


def read_tree(run: str | Path, step: int, template: Any) -> Any:
    """The arrays of a checkpoint that `template` names, laid out as it says; what else it holds stays on disk.

    RunError where it cannot be read."""
    import orbax.checkpoint as ocp

    abstract = jax.tree.map(ocp.tree.to_shape_dtype_struct, template)
    item = ocp.args.PyTreeRestore(
        item=abstract,
        restore_args=ocp.checkpoint_utils.construct_restore_args(abstract),
        partial_restore=True,
    )
    options = ocp.CheckpointManagerOptions(read_only=True, create=False, save_interval_steps=0)
    with (
        ocp.CheckpointManager(
            _absolute(run), options=options, item_handlers={"tree": ocp.PyTreeCheckpointHandler()}
        ) as manager,
        _reading(manager.directory, step, [one for one in sorted(manager.all_steps()) if one != step]),
    ):
        return manager.restore(step, args=ocp.args.Composite(tree=item))["tree"]


def _absolute(run: str | Path) -> str:
    """Orbax wants absolute folders; addresses such as gs://bucket/run stay as they are."""
    text = str(run).removeprefix("file://")
    return f"{text.rstrip('/')}/{FOLDER}" if "://" in text else str(Path(text).absolute() / FOLDER)


def _preservation(config: StateConfig) -> Any:
    from orbax.checkpoint.checkpoint_managers import preservation_policy as policies

    kept: list[Any] = [policies.LatestN(config.keep)]
    if config.keep_every:
        kept.append(policies.EveryNSteps(config.keep_every))
    if config.keep_best:
        kept.append(
            policies.BestN(
                get_metric_fn=lambda metrics: metrics[config.metric],
                reverse=config.better == "lower",
                n=config.keep_best,
                keep_checkpoints_without_metrics=False,
            )
        )
    return policies.AnyPreservationPolicy(kept)


def _not_orbax(record: logging.LogRecord) -> bool:
    """What goes wrong in orbax's threads is raised here as well: its log repeats it over pages."""
    return "orbax" not in record.pathname


def _first_line(error: Exception) -> str:
    """An error in a few words; those of the writers below orbax are pages long."""
    words = str(error).strip().splitlines() or [type(error).__name__]
    return words[0] if len(words[0]) <= 200 else f"{words[0][:120]}... {words[0][-70:]}"


def _listed(steps: list[int]) -> str:
    return f"checkpoints of steps {', '.join(map(str, steps))}" if steps else "no checkpoint"


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    return "; ".join(differences(old, new))
