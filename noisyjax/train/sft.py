"""Supervised training: the loss is on what the assistant says, many examples to a row."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from noisyjax.instruct import Batch, SftExample, example_stream
from noisyjax.store import model_identity
from noisyjax.train.config import SftConfig
from noisyjax.train.learner import Learner
from noisyjax.train.loop import DataEnd, Step
from noisyjax.train.objective import metrics
from noisyjax.train.objective.metrics import Mean, Metrics, Total
from noisyjax.train.objective.weights import token_weights
from noisyjax.train.step.rows import Group, Response, Rows
from noisyjax.train.watch.progress import TrainProgress


class SftTask:
    """The steps of an SFT run; see `loop.Task`."""

    kind = "sft"

    def __init__(self, config: SftConfig, learner: Learner) -> None:
        self.config, self.learner = config, learner
        self.stream = example_stream(config.data, learner.tokenizer, seed=config.seed)

    def identity(self) -> Mapping[str, Any]:
        return {"model_content": model_identity(self.config.model), **self.config.schedule_identity()}

    def start(self) -> Any:
        return self.learner.start()

    def cursor(self) -> Mapping[str, Any]:
        return {"data": self.stream.state()}

    def resume(self, cursor: Mapping[str, Any]) -> None:
        self.stream.restore(cursor["data"])

    def gather(self, tree: Any, number: int, progress: TrainProgress) -> Batch[SftExample]:
        batch = self.stream.take(self.config.batch)
        if not batch.total:
            raise DataEnd
        return batch

    def learn(
        self, tree: Any, batch: Batch[SftExample], number: int, want_samples: bool, progress: TrainProgress
    ) -> Step:
        begin = time.perf_counter()
        groups = sft_groups(batch.items)
        with progress.stage("update"):
            tree, found, ok = self.learner.update(tree, [micro.rows for micro in self.learner.batches(groups)])
        figures = metrics.reduce(found)
        figures["speed/update"] = sum(len(e.ids) for e in batch.items) / (time.perf_counter() - begin)
        figures["length/mean"] = float(np.mean([len(e.ids) for e in batch.items]))
        counts = self.stream.counts
        figures |= {"data/seen": float(counts.seen), "data/kept": counts.kept_share}
        figures |= {f"data/left/{reason}": float(n) for reason, n in counts.left.items()}
        return Step(tree, figures, ok)


def sft_groups(examples: Sequence[SftExample]) -> list[Group]:
    """Each example as a prompt (all before its first target) and one response; all targets weigh alike."""
    weight_n = token_weights([int(e.target.sum()) for e in examples], "token-mean")
    groups = []
    for i, (example, weight) in enumerate(zip(examples, weight_n, strict=True)):
        targets = np.flatnonzero(example.target)
        first = int(targets[0]) if len(targets) else len(example.ids) - 1
        response = Response(example.ids[first:], weight * example.target[first:].astype(np.float32))
        groups.append(Group(f"{i:06d}", example.ids[:first], (response,)))
    return groups


def sft_loss(logprob_bp: jax.Array, entropy_bp: jax.Array | None, rows: Rows) -> tuple[jax.Array, Metrics]:
    """Cross-entropy in nats: Σ weight · -log p. The loss function of `update.Updater`."""
    counts_bp = rows.weight_bp != 0
    loss_bp = -logprob_bp * rows.weight_bp
    found: dict[str, Any] = {"loss": Total.of(loss_bp, counts_bp)}
    if entropy_bp is not None:
        found["entropy"] = Mean.of(entropy_bp, counts_bp)
    return loss_bp.sum(), found
