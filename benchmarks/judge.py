"""Verdicts in one call against verdicts one by one, on the local engine with a random 4-layer Qwen3 of width 256."""

from collections.abc import Iterator, Sequence

from benchmarks import subject
from benchmarks.line import Line, alternate, seconds
from noisyjax.engine.local import LocalConfig, LocalEngine
from noisyjax.judge import EngineJudge, JudgeConfig, RationaleItem
from noisyjax.models import ModelConfig, RopeConfig, init_params
from noisyjax.models.decoder import Decoder

VERDICTS = 256
NEW = 64
"""Tokens of a verdict: the two sentences that are asked for, and the line."""
SINGLES = 12
"""How many of them are asked one by one; their time is given per verdict."""


def _items(n: int, first: int) -> list[RationaleItem]:
    """Items of which no two are equal, each about 170 tokens beside the instruction of 420."""
    return [
        RationaleItem(
            f"How much longer is bridge {i} than bridge {i + 1}?",
            f"Bridge {i} is {500 + i} m long. Bridge {i + 1} is {300 + i} m long.",
            f"The first bridge has {500 + i} m, the second has {300 + i % 7} m.",
        )
        for i in range(first, first + n)
    ]


def _judge(slots: int, cfg: ModelConfig) -> EngineJudge:
    config = LocalConfig.model_validate(
        {"model": subject.folder(), "slots": slots, "guesses": 0, "capture": {"logprobs": False, "entropy": False}}
    )
    engine = LocalEngine(config, model=Decoder(cfg, init_params(cfg, 0), stacked=False))
    return EngineJudge(engine, engine.tokenizer, config=JudgeConfig(max_tokens=NEW))


def verdicts() -> Iterator[Line]:
    """256 verdicts of 64 tokens in one call and one by one."""
    rope = RopeConfig(theta=1e6)
    cfg = ModelConfig(
        family="qwen3",
        vocab_size=49152,
        d_model=256,
        n_layers=4,
        n_heads=8,
        n_kv_heads=4,
        head_dim=32,
        d_ff=768,
        rope=rope,
        norm_eps=1e-6,
        tie_embeddings=True,
        qk_norm=True,
        max_positions=4096,
    )
    # Without guesses: random weights repeat themselves as no judge does, and what is compared is company.
    together, alone = _judge(64, cfg), _judge(2, cfg)

    def one_by_one(items: Sequence[RationaleItem]) -> None:
        for item in items:
            alone.rationales([item])

    # Each side has the slots that suit it. Random weights write no verdict, so both also ask every item a second time.
    together.rationales(_items(VERDICTS, 0))  # compile at these shapes
    one_by_one(_items(2, 0))
    singly, at_once = alternate(
        [
            lambda: seconds(lambda: one_by_one(_items(SINGLES, 0))) / SINGLES,
            lambda: seconds(lambda: together.rationales(_items(VERDICTS, 0))) / VERDICTS,
        ],
        rounds=1,
    )
    stats = together.engine.stats
    yield Line(
        f"{VERDICTS} verdicts",
        "verdicts/s in one call over one by one",
        singly / at_once,
        least=5.0,
        detail={
            "one by one, ms": singly * 1e3,
            "in one call, ms": at_once * 1e3,
            "share of prompt tokens prefilled": stats.prefilled_tokens / stats.prompt_tokens,
        },
    )
