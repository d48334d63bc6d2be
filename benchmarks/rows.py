"""What an update costs as prompts grow, with one copy of a prompt for all its responses and with one for each."""

from collections.abc import Iterator, Mapping

import numpy as np

from benchmarks.line import Line, alternate, seconds
from benchmarks.training import toy_config
from noisyjax.models import init_params
from noisyjax.train.objective.config import LossConfig
from noisyjax.train.objective.losses import policy_loss
from noisyjax.train.step.config import OptimizerConfig, UpdateConfig
from noisyjax.train.step.optimizer import optimizer
from noisyjax.train.step.rows import Group, Response
from noisyjax.train.step.update import Updater

PROMPTS, RESPONSES, NEW = 2, 8, 128
LENGTHS = (256, 1024, 4096)


def shared() -> Iterator[Line]:
    """Updates of 2 prompts x 8 responses of 128 tokens, prompts of up to 4,096 tokens: time against P + G·R."""
    longest = LENGTHS[-1] + RESPONSES * NEW
    updates = {length: _update(length, share=True, row=longest) for length in LENGTHS}
    apart = _update(LENGTHS[-1], share=False, row=LENGTHS[-1] + NEW)
    *took, unshared = alternate([*updates.values(), apart], rounds=3)
    per_token = {p: s / (PROMPTS * (p + RESPONSES * NEW)) for p, s in zip(LENGTHS, took, strict=True)}
    times: Mapping[str, object] = {f"{p:,} s": s for p, s in zip(LENGTHS, took, strict=True)}
    for length in LENGTHS[1:]:
        yield Line(
            f"update, prompts of {length:,} tokens",
            f"time per token of P + G·R, over that at P = {LENGTHS[0]}",
            per_token[length] / per_token[LENGTHS[0]],
            most=2.0,  # attention inside the prompt grows with its square
            detail=dict(times),
        )
    tokens = RESPONSES * (LENGTHS[-1] + NEW) / (LENGTHS[-1] + RESPONSES * NEW)
    yield Line(
        f"update, prompts of {LENGTHS[-1]:,} tokens",
        f"speed over a copy of the prompt per response ({tokens:.1f} times the tokens)",
        unshared / took[-1],
        least=4.0,
        detail={"shared s": took[-1], "unshared s": unshared},
    )


def _update(length: int, *, share: bool, row: int):
    """A function that makes one update of the toy model and gives its seconds; compiled already."""
    cfg = toy_config()
    config = UpdateConfig(row_tokens=row, batch_tokens=row, share=share, pack=share)

    def loss(logprob_bp, entropy_bp, rows):
        return policy_loss(logprob_bp, rows, LossConfig(beta=0.0), entropy_bp)

    updater = Updater(cfg, optimizer(OptimizerConfig(), 10), loss, config)
    rng = np.random.default_rng(length)

    def response() -> Response:
        zeros = np.zeros(NEW, np.float32)
        return Response(rng.integers(0, cfg.vocab_size, NEW).tolist(), 1.0 / NEW, rng.normal(), zeros, zeros, zeros)

    groups = [
        Group(str(i), rng.integers(0, cfg.vocab_size, length), tuple(response() for _ in range(RESPONSES)))
        for i in range(PROMPTS)
    ]
    rows = [batch.rows for batch in updater.batches(groups)]
    state = updater.start(init_params(cfg, 0))

    def once() -> float:
        nonlocal state

        def work() -> None:
            nonlocal state
            done = updater.update(state, rows)
            bool(done.ok)
            state = done.state

        return seconds(work)

    once()
    return once
