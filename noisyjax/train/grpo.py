"""GRPO: sample groups, judge them, push the policy towards what was better than its group's mean.

    prompts -> rollout -> grade -> advantages -> training rows -> update        (design: one prompt builder and one
                                                                                 engine for evaluation and training)
A step's result depends on the weights, the seed and the step's records alone; how rows are cut, packed or spread over
devices changes rounding and nothing else.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from noisyjax import hosts
from noisyjax.errors import UsageError
from noisyjax.instruct import Asked, prompt_stream
from noisyjax.judge import Judge
from noisyjax.records import Completion, Finish
from noisyjax.store import model_identity
from noisyjax.train.config import GrpoConfig
from noisyjax.train.grading import Graded, Grader, Judged
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
class Drawn:
    """The groups of a step that are gone on with, of how many prompts, and what all tokens and verdicts cost."""

    kept: Sequence[Judged]
    prompts: int
    tokens: int
    rollout_s: float
    verdicts: int
    judge_s: float

    def figures(self) -> dict[str, float | None]:
        return {
            "group/kept": len(self.kept) / self.prompts,
            "seconds/rollout": self.rollout_s,
            "speed/rollout": self.tokens / self.rollout_s if self.rollout_s else None,
            "seconds/judge": self.judge_s,
            "speed/judge": self.verdicts / self.judge_s if self.verdicts and self.judge_s else None,
        }


@dataclass(frozen=True)
class Part:
    """What one host made of its share of a batch, and how long it has been at it since the step began."""

    judged: list[Judged]
    tokens: int
    rollout_s: float
    judge_s: float


@dataclass(frozen=True)
class Taught:
    """A batch with all that the update needs of it. N samples, those of a prompt after another."""

    graded: Graded
    advantages: Advantages
    left_out_n: np.ndarray
    """bool [N]; samples without a part in the loss."""
    ref_n: Sequence[np.ndarray] | None
    """Reference log-probabilities of each sample's tokens."""
    figures: Mapping[str, float | None]
    """What is known before the update."""

    @property
    def rollouts(self) -> list[Rollout]:
        return [group.rollout for group in self.graded.judged]

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
        drawn = self._draw(sampler, number, progress)
        return self._taught(tree, self._graded(drawn.kept), drawn.figures())

    def learn(self, tree: Any, taught: Taught, number: int, want_samples: bool, progress: TrainProgress) -> Step:
        begin = time.perf_counter()
        with progress.stage("update"):
            tree, found, ok = self._learn(tree, taught)
        graded = taught.graded
        figures = metrics.reduce(metrics.merge([graded.metrics, taught.advantages.metrics(), found]))
        figures |= {**length_figures(taught.rollouts), **self._data_figures(), **taught.figures}
        figures |= self._speeds(taught, time.perf_counter() - begin)
        if figures["update/idle"] == 1:
            progress.say(f"step {number}: no sample has anything to teach; the weights stay as they are")
        samples = sample_rows(graded, taught.advantages, self.config.log.samples)
        return Step(tree, figures, ok, samples if want_samples else ())

    # ---- from prompts to a batch that teaches something

    def _draw(self, sampler: Sampler, number: int, progress: TrainProgress) -> Drawn:
        """The step's batch: as the data comes, or (dynamic sampling) until enough groups are informative.

        Each host samples and judges its share; all go on with all of it.
        """
        kept: list[Judged] = []
        prompts, verdicts, judge_s = 0, 0, 0.0
        parts: list[Part] = []

        def work(items: Sequence[Asked]) -> Part:
            with progress.stage("rollout"):
                rollouts = sampler.draw(items)
            begin = time.perf_counter()
            with progress.stage("judge"):
                judged = self.grader.judge(rollouts, lambda note: progress.say(f"step {number}: {note}"))
            return Part(judged, sampler.tokens, sampler.seconds, judge_s + time.perf_counter() - begin)

        for _ in range(self.config.generation_batches):
            batch = self.stream.take(self.config.prompts)
            prompts += batch.total
            parts = hosts.gather(partial(work, batch.items))
            judged = [group for part in parts for group in part.judged]
            judge_s = max(part.judge_s for part in parts)
            verdicts += sum(group.verdicts for group in judged)
            kept += judged if self.config.generation_batches == 1 else self._informative(judged)
            if not batch.total or len(kept) >= self.config.prompts:
                break
        if not prompts:
            raise DataEnd
        tokens, rollout_s = sum(part.tokens for part in parts), max(part.rollout_s for part in parts)
        return Drawn(kept[: self.config.prompts], prompts, tokens, rollout_s, verdicts, judge_s)

    def _informative(self, judged: Sequence[Judged]) -> list[Judged]:
        teaches = informative(self._advantages(self._graded(judged), None))
        return [group for group in judged if teaches[group.rollout.id]]

    def _graded(self, judged: Sequence[Judged]) -> Graded:
        return self.grader.grade(judged, self._penalties([group.rollout for group in judged]))

    def _penalties(self, rollouts: Sequence[Rollout]) -> Mapping[str, np.ndarray]:
        buffer = self.config.advantage.overlong_buffer
        if not buffer:
            return {}
        length_n = [c.completion_tokens for r in rollouts for c in r.completions]
        factor = self.config.advantage.overlong_factor
        return {"overlong": factor * overlong_penalty(length_n, self.config.rollout.max_tokens, buffer)}

    def _taught(self, tree: Any, graded: Graded, figures: Mapping[str, float | None]) -> Taught:
        rollouts, ref_n = [group.rollout for group in graded.judged], None
        if self.config.loss.needs_reference:
            ref_n = self._scored(self.learner.reference_params(tree), rollouts)
        found = self._advantages(graded, ref_n)
        cut_n = np.array([c.finish is Finish.LENGTH for r in rollouts for c in r.completions], bool)
        left_out_n = found.left_out_n | graded.rewards.masked_n | (cut_n & self.config.loss.mask_truncated)
        return Taught(graded, found, left_out_n, ref_n, figures)

    def _advantages(self, graded: Graded, ref_n: Sequence[np.ndarray] | None) -> Advantages:
        rewards, loss, rollouts = graded.rewards, self.config.loss, [group.rollout for group in graded.judged]
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
        learned = sum(len(r.asked.prompt.ids) for r in taught.rollouts)
        learned += sum(c.completion_tokens for c in taught.completions)
        return {
            "speed/update": learned / update_s,
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
