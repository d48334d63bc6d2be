"""How much there is to compute: floating-point operations of a step, from the architecture and the lengths alone, and
those that a traced program really asks for.

A product of [m, k] and [k, n] is 2·m·k·n operations. Model FLOPs are what the mathematics needs: forward once, backward
twice that, nothing made again; they are what MFU is measured by (PaLM, Chowdhery et al. 2022, arXiv 2204.02311,
appendix B), here with the attention's visible pairs only.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from noisyjax.models import ModelConfig, param_specs
from noisyjax.models.params import EXPERTS, param_layers

BACKWARD_ATTENTION = 2.5
"""Of a flash-attention backward pass against its forward one: five products for two."""


@dataclass(frozen=True)
class Lengths:
    """What is computed in a pass: tokens through the layers, rows of the head, and pairs of query and visible key,
    summed over the layers."""

    tokens: int
    targets: int
    pairs: int


@dataclass(frozen=True)
class Sizes:
    """Parameters that a token meets, whole model: in dense products of the layers, in its experts, in the head."""

    dense: int
    experts: int
    head: int
    every_expert: int
    """Those of all experts together."""


def sizes(cfg: ModelConfig) -> Sizes:
    """Weights of matrices; norms, biases and the embedding's lookup compute nothing worth counting."""
    matrices = {path: spec for path, spec in param_specs(cfg).items() if path.startswith("layers.")}
    dense = sum(
        prod(spec.shape)
        for path, spec in matrices.items()
        if "_bias_" not in path and ".scale_" not in path and len(spec.layer_shape) > 1 and not _of_expert(path)
    )
    every = 0
    if cfg.moe is not None:
        layers = len(param_layers(cfg, f"{EXPERTS}router_ed"))
        every = layers * cfg.moe.n_experts * 3 * cfg.d_model * cfg.moe.d_ff
    active = every * cfg.moe.top_k // cfg.moe.n_experts if cfg.moe is not None else 0
    return Sizes(dense, active, cfg.vocab_size * cfg.d_model, every)


def _of_expert(path: str) -> bool:
    return path.startswith(EXPERTS) and ".router_" not in path


def seen(length: int, window: int | None = None, start: int = 0) -> int:
    """Pairs of the queries at positions start to length - 1 with the keys they see: all before, or a window.

    >>> seen(4), seen(4, window=2), seen(4, start=2)
    (10, 7, 7)
    """

    def upto(n: int) -> int:
        inner = n if window is None else min(n, window)
        return inner * (inner + 1) // 2 + (n - inner) * inner

    return upto(length) - upto(start)


def shared_rows(cfg: ModelConfig, groups: Iterable[tuple[int, Sequence[int]]], share: bool = True) -> Lengths:
    """A pass over (prompt, its responses), in tokens; each prompt once, or with `share` off once per response."""
    tokens = targets = pairs = 0
    windows = cfg.windows or (None,) * cfg.n_layers
    for prompt, responses in groups:
        copies = 1 if share else len(responses)
        tokens += copies * prompt + sum(responses)
        targets += sum(responses)
        for window in windows:
            pairs += copies * seen(prompt, window) + sum(seen(prompt + r, window, prompt) for r in responses)
    return Lengths(tokens, targets, pairs)


def pair_flops(cfg: ModelConfig, pairs: int) -> int:
    """Of attention's two products over so many pairs, forward."""
    return 4 * cfg.n_heads * cfg.head_dim * pairs


def model_flops(cfg: ModelConfig, lengths: Lengths, train: bool = True) -> int:
    """What the mathematics of a pass needs; three times the forward pass in training."""
    size = sizes(cfg)
    forward = 2 * (size.dense + size.experts) * lengths.tokens + 2 * size.head * lengths.targets
    return (3 if train else 1) * (forward + pair_flops(cfg, lengths.pairs))


def counted(jaxpr: Any, turns: int = 0) -> float:
    """Operations of the dense products of a traced program, all devices together, each loop as often as it turns.

    turns: of an outermost loop whose end is found while it runs, a decoder's steps. All other such loops (attention
    over the blocks that are visible, experts over the tiles that they have) and kernels count nothing: what they do
    hangs on the data, and is counted from the lengths instead.
    """
    return sum(_flops(eqn, turns) for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns)


def _flops(eqn: Any, turns: int) -> float:
    name, params = eqn.primitive.name, eqn.params
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        return 2.0 * prod(eqn.outvars[0].aval.shape) * prod(eqn.invars[0].aval.shape[i] for i in contracted)
    if name == "pallas_call":
        return 0.0
    if name == "while":
        return turns * counted(params["body_jaxpr"]) if turns else 0.0
    if name == "cond":
        return max(counted(branch, turns) for branch in params["branches"])
    inner = [value for value in params.values() if hasattr(getattr(value, "jaxpr", value), "eqns")]
    times = params["length"] if name == "scan" else params["mesh"].size if name == "shard_map" else 1
    return times * sum(counted(one, turns) for one in inner)
