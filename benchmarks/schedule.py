"""What the schedule, the capture and the compiler cost: decode steps, inline attention mass, number of programs."""

import heapq
from collections.abc import Iterator

import numpy as np

from benchmarks import subject
from benchmarks.line import Line, alternate
from noisyjax.engine.local import LocalConfig, LocalEngine
from noisyjax.models import ModelConfig, RopeConfig, init_params
from noisyjax.models.decoder import Decoder
from noisyjax.records import Request


def tiny(**options) -> LocalEngine:
    """A one-layer random model behind SmolLM2's tokenizer: what is counted here does not depend on the weights."""
    cfg = ModelConfig(
        family="llama", vocab_size=49_152, d_model=32, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=16, d_ff=64,
        rope=RopeConfig(), norm_eps=1e-5, tie_embeddings=True,
    )  # fmt: skip
    model = Decoder(cfg, init_params(cfg, seed=0), stacked=False)
    return LocalEngine(LocalConfig.model_validate({"model": subject.folder(), **options}), model=model)


def first_come(lengths: list[int], slots: int) -> int:
    """Decode steps of a first-come schedule: a freed slot takes the next request at once."""
    free = [0] * slots
    for length in lengths:
        heapq.heappush(free, heapq.heappop(free) + length)
    return max(free)


def refill() -> Iterator[Line]:
    """64 requests of very unequal lengths on 8 slots, three distributions."""
    rng = np.random.default_rng(0)
    laws = {
        "geometric": rng.geometric(1 / 40, 64).clip(1, 250),
        "uniform": rng.integers(1, 200, 64),
        "a few long ones": np.where(rng.random(64) < 0.1, 240, 12),
    }
    engine = tiny(slots=8, min_prefix=0, context=512)
    for law, lengths in laws.items():
        before = engine.stats.decode_steps
        subject.run(engine, [subject.request(str(i), subject.tokens(20, i), int(n)) for i, n in enumerate(lengths)])
        steps, ideal = engine.stats.decode_steps - before, first_come([int(n) for n in lengths], 8)
        yield Line(
            f"refill, {law} lengths", "decode steps over first come", steps / ideal, most=1.10,
            detail={"steps": steps, "first come": ideal},
        )  # fmt: skip


def programs() -> Iterator[Line]:
    """500 prompts of random lengths."""
    engine = tiny(slots=8)
    lengths = np.random.default_rng(1).integers(1, 1500, 500)
    subject.run(engine, [subject.request(str(i), subject.tokens(int(n), i), 1) for i, n in enumerate(lengths)])
    names = [name for name, _ in engine.stats.compiled]
    yield Line("500 prompts of random lengths", "compiled programs", len(names), most=12, detail={"programs": names})


def decode_seconds(engine: LocalEngine, requests: list[Request]) -> float:
    """Seconds of decoding that the requests take, prefill left out."""
    before = engine.stats.decode_s
    subject.run(engine, requests)
    return engine.stats.decode_s - before


def capture() -> Iterator[Line]:
    """Inline attention mass of every layer, batch 8 behind 512-token prompts, 64 new tokens."""
    prompts = [subject.tokens(512, i) for i in range(8)]
    requests = [subject.request(str(i), ids, 64) for i, ids in enumerate(prompts)]
    plain = subject.engine(slots=8, min_prefix=0)
    full = subject.engine(slots=8, min_prefix=0, capture={"logprobs": False, "entropy": False, "attention": "all"})

    for engine in (plain, full):
        subject.run(engine, requests)
    off, on = alternate([lambda: decode_seconds(plain, requests), lambda: decode_seconds(full, requests)], rounds=5)
    yield Line(
        "capture on all layers", "decode time over none", on / off, most=1.30, detail={"with s": on, "without s": off}
    )


def layout() -> Iterator[Line]:
    """Stacked layers against unstacked ones, batch 8 behind 512-token prompts, 64 new tokens."""
    requests = [subject.request(str(i), subject.tokens(512, i), 64) for i in range(8)]
    engines = [subject.engine(slots=8, min_prefix=0, stacked=stacked) for stacked in (True, False)]
    for engine in engines:
        subject.run(engine, requests)
    stacked, unstacked = alternate([lambda e=e: decode_seconds(e, requests) for e in engines])
    yield Line(
        "stacked layers on the CPU", "decode time over unstacked", stacked / unstacked, least=1.0,
        detail={"stacked s": stacked, "unstacked s": unstacked},
    )  # fmt: skip
