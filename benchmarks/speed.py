"""Against transformers `generate`: plain decoding, many samples of a long prompt, many questions behind one block."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks import subject
from benchmarks.line import Line, alternate, seconds

DTYPES = ("float32", "bfloat16")


def decode() -> Iterator[Line]:
    """Decode tokens/s behind 512 tokens of prose, 128 new tokens, at batch 1 and 8; transformers at its faster type."""
    new = 128
    for batch, least in ((1, 2.0), (8, 1.4)):
        prompts = np.stack([subject.prose(512, i) for i in range(batch)])
        for dtype in DTYPES:
            subject.generate(dtype, prompts, 2)  # warm up
        runs = [_tokens_per_s(prompts, new), _tokens_per_s(prompts, new, guesses=0)]
        runs += [lambda d=d, p=prompts: _their_tokens_per_s(d, p, new) for d in DTYPES]
        mine, plain, f32, bf16 = alternate(runs, rounds=2)
        yield Line(
            f"decode, batch {batch}",
            "decode tokens/s over transformers",
            mine / max(f32, bf16),
            least=least,
            detail={"tokens/s": mine, "without guesses": plain, "transformers f32": f32, "transformers bf16": bf16},
        )


def _tokens_per_s(prompts: np.ndarray, new: int, **options: Any) -> Callable[[], float]:
    """A run of the engine with a slot for each of the prompts [B, T]; compiled already."""
    engine = subject.engine(slots=len(prompts), min_prefix=0, **options)
    requests = [subject.request(str(i), ids, new) for i, ids in enumerate(prompts)]

    def run() -> float:
        before = engine.stats.decode_s
        subject.run(engine, requests)
        return len(prompts) * new / (engine.stats.decode_s - before)

    run()
    return run


def _their_tokens_per_s(dtype: str, prompts: np.ndarray, new: int) -> float:
    first = seconds(lambda: subject.generate(dtype, prompts, 1))
    return len(prompts) * (new - 1) / (seconds(lambda: subject.generate(dtype, prompts, new)) - first)


def samples() -> Iterator[Line]:
    """8 samples of one 4,096-token prompt, 64 new tokens each, end to end."""
    ids, new = subject.tokens(4096, 0), 64
    engine = subject.engine(slots=8)
    requests = [subject.request("q", ids, new, n=8, temperature=1.0)]
    subject.run(engine, requests)
    runs = [lambda: seconds(lambda: subject.run(engine, requests))]
    runs += [lambda d=d: seconds(lambda: subject.generate(d, ids[None], new, samples=8)) for d in DTYPES]
    mine, f32, bf16 = alternate(runs, rounds=1)
    yield Line(
        "8 samples of a 4,096-token prompt",
        "end-to-end speed over transformers",
        min(f32, bf16) / mine,
        least=4.0,
        detail={"noisyjax s": mine, "transformers f32 s": f32, "transformers bf16 s": bf16},
    )


def reuse() -> Iterator[Line]:
    """32 questions of 64 tokens behind one 4,096-token block, 32 new tokens each."""
    block, new = subject.tokens(4096, 1), 32
    prompts = np.stack([np.concatenate([block, subject.tokens(64, 10 + i)]) for i in range(32)])
    requests = [subject.request(str(i), ids, new) for i, ids in enumerate(prompts)]

    def timed(min_prefix: int) -> float:
        engine = subject.engine(slots=32, min_prefix=min_prefix)
        subject.run(engine, requests[:2])  # compile at these shapes
        return seconds(lambda: subject.run(engine, requests))

    def theirs() -> float:
        for dtype in DTYPES:
            subject.generate(dtype, prompts[:1], 1)
        speed = {d: seconds(lambda d=d: subject.generate(d, prompts[:2], new)) for d in DTYPES}
        best = min(speed, key=speed.__getitem__)
        # One batch of eight, times four: the other three are the same work.
        return 4 * seconds(lambda: subject.generate(best, prompts[:8], new))

    on, off, hf = alternate([lambda: timed(256), lambda: timed(0), theirs], rounds=1)
    detail = {"reuse on s": on, "reuse off s": off, "transformers s": hf}
    name = "32 questions behind one block"
    yield Line(name, "speed over the same without reuse", off / on, least=8.0, detail=detail)
    yield Line(name, "speed over transformers", hf / on, least=8.0, detail=detail)
