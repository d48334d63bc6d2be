"""GRPO: sample groups, judge them, push the policy towards what was better than its group's mean.

    prompts -> rollout -> grade -> advantages -> training rows -> update        (design: one prompt builder and one
                                                                                 engine for evaluation and training)
A step's result depends on the weights, the seed and the step's records alone; how rows are cut, packed or spread over
devices changes rounding and nothing else.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from noisyjax.errors import UsageError
from noisyjax.instruct import prompt_stream
from noisyjax.judge import Judge
from noisyjax.records import Completion, Finish
from noisyjax.store import model_identity
from noisyjax.train.config import GrpoConfig
from noisyjax.train.grading import Graded, Grader
from noisyjax.train.learner import Learner
from noisyjax.train.loop import DataEnd, Step
from noisyjax.train.objective import metrics
from noisyjax.train.objective.advantages import Advantages, advantages, informative, overlong_penalty
from noisyjax.train.objective.losses import policy_loss, reward_kl
from noisyjax.train.objective.metrics import Mean, Metrics, Total
from noisyjax.train.objective.weights import high_entropy, token_weights
from noisyjax.train.rollout import Rollout, Sampler, length_figures
from noisyjax.train.step.rows import Group, MicroBatch, Response
from noisyjax.train.watch.progress import TrainProgress
from noisyjax.train.watch.samples import sample_rows


@dataclass(frozen=True)
class Taught:
    """A batch with all that the update needs of it. N samples, those of a prompt after another."""

    rollouts: Sequence[Rollout]
    graded: Graded
    advantages: Advantages
    left_out_n: np.ndarray
    """bool [N]; samples without a part in the loss."""
    ref_n: Sequence[np.ndarray] | None
    """Reference log-probabilities of each sample's tokens."""
    figures: Mapping[str, float | None]
    """What is known before the update."""

    @property
    def completions(self) -> list[Completion]:
        return [c for rollout in self.rollouts for c in rollout.completions]


class GrpoTask:
    """The steps of a GRPO run; see `loop.Task`."""

    kind = "grpo"

    def __init__(self, config: GrpoConfig, learner: Learner, judge: Judge) -> None:
        self.config, self.learner = config, learner
        self.stream = prompt_stream(config.data, learner.tokenizer, seed=config.seed)
        self.grader = Grader(config.reward, config.data.prompt, learner.tokenizer, judge)
        self.judge_name = judge.name
        self._on_policy = config.updates * config.minibatches == 1

    def identity(self) -> Mapping[str, Any]:
        reference = self.config.reference
        return {
            "model_content": model_identity(self.config.model),
            "judge_name": self.judge_name,
            "reference_content": model_identity(reference) if reference else None,
            **self.config.schedule_identity(),
        }

    def start(self) -> Any:
        return self.learner.start()

    def cursor(self) -> Mapping[str, Any]:
        return {"data": self.stream.state()}

    def resume(self, cursor: Mapping[str, Any]) -> None:
        self.stream.restore(cursor["data"])

    def gather(self, tree: Any, number: int, progress: TrainProgress) -> Taught:
        sampler = Sampler(self.learner.load_sampler(tree), self.config.rollout, seed=self.config.seed, step=number)
        rollouts, drawn = self._draw(sampler, progress)
        with progress.stage("judge"):
            graded = self.grader.grade(rollouts, self._penalties(rollouts))
        figures = {
            "group/kept": len(rollouts) / drawn,
            "seconds/rollout": sampler.seconds,
            "speed/rollout": sampler.tokens / sampler.seconds if sampler.seconds else None,
        }
        return self._taught(tree, rollouts, graded, figures)

    def learn(self, tree: Any, taught: Taught, number: int, want_samples: bool, progress: TrainProgress) -> Step:
        begin = time.perf_counter()
        with progress.stage("update"):
            tree, found, ok = self._learn(tree, taught)
        graded = taught.graded
        figures = metrics.reduce(metrics.merge([graded.metrics, taught.advantages.metrics(), found]))
        figures |= {**length_figures(taught.rollouts), **self._data_figures(), **taught.figures}
        figures |= self._speeds(taught, time.perf_counter() - begin)
        for note in graded.notes:
            progress.say(f"step {number}: {note}")
        if figures["update/idle"] == 1:
            progress.say(f"step {number}: no sample has anything to teach; the weights stay as they are")
        samples = sample_rows(taught.rollouts, graded, taught.advantages, self.config.log.samples)
        return Step(tree, figures, ok, samples if want_samples else ())

    # ---- from prompts to a batch that teaches something

    def _draw(self, sampler: Sampler, progress: TrainProgress) -> tuple[list[Rollout], int]:
        """The step's batch and the number of prompts drawn for it: as the data comes, or (dynamic sampling) until
        enough groups are informative. Verdicts of the latter are asked for again; a judge with a cache has them."""
        kept: list[Rollout] = []
        drawn = 0
        for _ in range(self.config.generation_batches):
            batch = self.stream.take(self.config.prompts)
            drawn += batch.total
            with progress.stage("rollout"):
                rollouts = sampler.draw(batch.items)
            if self.config.generation_batches > 1:
                rollouts = self._informative(rollouts)
            kept += rollouts
            if not batch.total or len(kept) >= self.config.prompts:
                break
        if not drawn:
            raise DataEnd
        return kept[: self.config.prompts], drawn

    def _informative(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        graded = self.grader.grade(rollouts, self._penalties(rollouts))
        teaches = informative(self._advantages(rollouts, graded, None))
        return [rollout for rollout in rollouts if teaches[rollout.id]]

    def _penalties(self, rollouts: Sequence[Rollout]) -> Mapping[str, np.ndarray]:
        buffer = self.config.advantage.overlong_buffer
        if not buffer:
            return {}
        length_n = [c.completion_tokens for r in rollouts for c in r.completions]
        factor = self.config.advantage.overlong_factor
        return {"overlong": factor * overlong_penalty(length_n, self.config.rollout.max_tokens, buffer)}

    def _taught(
        self, tree: Any, rollouts: Sequence[Rollout], graded: Graded, figures: Mapping[str, float | None]
    ) -> Taught:
        ref_n = None
        if self.config.loss.needs_reference:
            ref_n = self._scored(self.learner.reference_params(tree), rollouts)
        found = self._advantages(rollouts, graded, ref_n)
        cut_n = np.array([c.finish is Finish.LENGTH for r in rollouts for c in r.completions], bool)
        left_out_n = found.left_out_n | graded.rewards.masked_n | (cut_n & self.config.loss.mask_truncated)
        return Taught(rollouts, graded, found, left_out_n, ref_n, figures)

    def _advantages(
        self, rollouts: Sequence[Rollout], graded: Graded, ref_n: Sequence[np.ndarray] | None
    ) -> Advantages:
        rewards, loss = graded.rewards, self.config.loss
        reward_nc, applies_nc, weight_c = rewards.reward_nc, rewards.applies_nc, rewards.weight_c
        if ref_n is not None and loss.kl_in == "reward":
            own_n = [_per_token(c, c.logprobs) for r in rollouts for c in r.completions]
            kl_n = reward_kl(own_n, ref_n, loss.kl)
            reward_nc = np.column_stack([reward_nc, -kl_n])
            applies_nc = np.column_stack([applies_nc, np.ones(len(kl_n), bool)])
            # A weight, not a factor: where components are normalised one by one a factor would vanish.
            weight_c = np.append(weight_c, loss.beta)
        groups = [r.id for r in rollouts for _ in r.completions]
        return advantages(reward_nc, groups, self.config.advantage, weight_c=weight_c, applies_nc=applies_nc)

    # ---- from a batch to new weights

    def _learn(self, tree: Any, taught: Taught) -> tuple[Any, Metrics, bool]:
        """All updates of the step: `updates` passes over `minibatches` parts, cut by prompts in the batch's order.

        A part in which nothing has a weight is left out and counted (`update/idle`).
        """
        parts = np.array_split(np.arange(len(taught.rollouts)), self.config.minibatches)
        old_n = None if self._on_policy else self._scored(self.learner.params(tree), taught.rollouts)
        batches = [self._batch(taught, part, old_n) for part in parts]
        found: list[Metrics] = [{"update/idle": Mean.of(np.array([not batch for batch in batches]))}]
        fine: list[bool] = []
        for _ in range(self.config.updates):
            for batch in filter(None, batches):
                tree, more, ok = self.learner.update(tree, [micro.rows for micro in batch])
                found.append(more)
                fine.append(ok)
        # Totals are shares of one optimizer step; what is shown is their mean over the steps.
        whole = metrics.merge(found).items()
        figures = {k: Total(m.total / len(fine), m.count) if isinstance(m, Total) else m for k, m in whole}
        return tree, figures, any(fine) or not fine

    def _batch(self, taught: Taught, part: np.ndarray, old_n: Sequence[np.ndarray] | None) -> list[MicroBatch]:
        """The training rows of some of the prompts; weights are shares of this part, which is one optimizer step."""
        if not len(part):
            return []
        g, loss = self.config.rollout.samples, self.config.loss
        samples = np.concatenate([np.arange(g * i, g * (i + 1)) for i in part])
        done = taught.completions
        left_out_n = taught.left_out_n[samples]
        weight_n = token_weights(
            [done[i].completion_tokens for i in samples],
            loss.aggregation,
            left_out_n=left_out_n,
            max_length=self.config.rollout.max_tokens,
        )
        advantage_n: list[Any] = list(taught.advantages.advantage_n[samples])
        if loss.entropy_share < 1:
            entropy_nt = [_per_token(done[i], done[i].entropy) for i in samples]
            sharp = high_entropy(entropy_nt, loss.entropy_share, left_out_n=left_out_n)
            advantage_n = [a * s for a, s in zip(advantage_n, sharp, strict=True)]
        responses = [
            Response(
                _per_token(done[i], done[i].ids),
                float(weight_n[k]),
                advantage_n[k],
                old=None if old_n is None else old_n[i],
                ref=None if taught.ref_n is None else taught.ref_n[i],
                rollout=_per_token(done[i], done[i].logprobs),
            )
            for k, i in enumerate(samples)
        ]
        groups = [
            Group(r.id, r.asked.prompt.ids, tuple(responses[g * k : g * (k + 1)]))
            for k, r in enumerate(taught.rollouts[i] for i in part)
        ]
        return self.learner.batches(groups)

    def _scored(self, params: Any, rollouts: Sequence[Rollout]) -> list[np.ndarray]:
        """Log-probabilities of every sample's tokens under some parameters, each float32 [R]."""
        groups = [
            Group(
                r.id,
                r.asked.prompt.ids,
                tuple(Response(_per_token(c, c.ids), 1.0) for c in r.completions),
            )
            for r in rollouts
        ]
        found: dict[tuple[str, int], np.ndarray] = {}
        for micro in self.learner.batches(groups):
            found |= micro.per_response(self.learner.logprobs(params, micro.rows))
        empty = np.zeros(0, np.float32)
        return [found.get((r.id, i), empty) for r in rollouts for i in range(len(r.completions))]

    def _speeds(self, taught: Taught, update_s: float) -> dict[str, float | None]:
        verdicts, judge_s = taught.graded.figures["verdicts"], taught.graded.figures["seconds"]
        learned = sum(len(r.asked.prompt.ids) for r in taught.rollouts)
        learned += sum(c.completion_tokens for c in taught.completions)
        return {
            "speed/judge": verdicts / judge_s if verdicts and judge_s else None,
            "speed/update": learned / update_s,
            "seconds/judge": judge_s,
            "seconds/update": update_s,
        }

    def _data_figures(self) -> dict[str, float | None]:
        counts = self.stream.counts
        left = {f"data/left/{reason}": float(n) for reason, n in counts.left.items()}
        noted = {f"data/{note}": float(n) for note, n in counts.notes.items()}
        return {"data/seen": float(counts.seen), "data/kept": counts.kept_share, **left, **noted}


def _per_token(completion: Completion, values: np.ndarray | None) -> np.ndarray:
    """`values` of a completion's tokens; none where the prompt left no room for any."""
    if values is None and completion.completion_tokens:
        raise UsageError("the sampler gave no token ids, log-probabilities or entropies to learn from")
    return np.zeros(0, np.float32) if values is None else values


def grpo_loss(config: GrpoConfig) -> Any:
    """The loss function of `update.Updater` for this config."""

    def loss(logprob_bp: jax.Array, entropy_bp: jax.Array | None, rows: Any) -> tuple[jax.Array, Metrics]:
        return policy_loss(logprob_bp, rows, config.loss, entropy_bp)

    return loss
