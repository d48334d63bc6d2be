"""What a decoder is made of, as frozen dataclasses. Families map Hugging Face configs onto these (see `families`)."""

import math
from dataclasses import dataclass

from .errors import UnsupportedConfig

ROPE_KINDS = ("default", "linear", "llama3", "yarn")
DTYPES = ("float32", "bfloat16", "float16")
QUANTISED = ("mxfp4",)
MXFP4_BLOCK = 32
"""Numbers that share a scale, stored in half as many bytes (see `families.mxfp4`)."""


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding. All fields but `theta` and `kind` belong to the scaled kinds: `linear` divides every frequency
    by `factor`; `llama3` divides the long wavelengths only (Llama 3 technical report, section 3.4.1); `yarn` too, and
    enlarges the rotated vectors (Peng et al. 2023, arXiv 2309.00071; transformers `modeling_rope_utils` for both)."""

    theta: float = 10_000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    """yarn: turns within the original length from which a frequency is kept, and up to which it is divided."""
    truncate: bool = True
    """yarn: round the bounds of the blend outwards to whole frequencies."""
    attention_factor: float | None = None
    """yarn: what sine and cosine are multiplied by; None for the paper's 0.1 ln(factor) + 1."""

    @property
    def magnitude(self) -> float:
        """What sine and cosine are multiplied by; 1 for all kinds but yarn."""
        if self.kind != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0


@dataclass(frozen=True)
class MoeConfig:
    """A mixture-of-experts feed-forward: `top_k` of `n_experts`, each of width `d_ff`.

    norm_topk: the chosen experts' weights sum to one (a softmax over their logits alone); otherwise they are their
        shares of a softmax over all experts.
    dense_layers: indices of layers with an ordinary feed-forward instead.
    bias: router and experts have biases.
    clamp, alpha: None for SwiGLU; else what gpt-oss's gated unit clamps to, and its alpha (see `moe.gated`).
    aux_coefficient: weight of the router's balance in the training loss, as the model's config asks for it.
    """

    n_experts: int
    top_k: int
    d_ff: int
    norm_topk: bool
    dense_layers: tuple[int, ...] = ()
    bias: bool = False
    clamp: float | None = None
    alpha: float = 1.702
    aux_coefficient: float = 0.0

    def problems(self, n_layers: int) -> list[str]:
        """What cannot be right about it in a model of so many layers."""
        sizes = {"n_experts": self.n_experts, "top_k": self.top_k, "expert d_ff": self.d_ff}
        found = [f"{name} is {n!r}, no positive whole number" for name, n in sizes.items() if not _positive(n)]
        if not found and self.top_k > self.n_experts:
            found.append(f"{self.top_k} experts per token of only {self.n_experts}")
        if outside := [i for i in self.dense_layers if not 0 <= i < n_layers]:
            found.append(f"dense layers {outside} in a model of {n_layers} layers")
        return found


def _positive(n: object) -> bool:
    return isinstance(n, int) and n > 0


@dataclass(frozen=True)
class ModelConfig:
    """One pre-norm decoder.

    windows: per layer the sliding window in tokens, itself included; None in it, or None for all, is full attention.
    dtype: of the stored weights ("float32", "bfloat16" or "float16"); norms, softmax and logits are f32 regardless.
    quantised: "mxfp4" where the experts' weights are held packed, None where all are numbers.
    Raises UnsupportedConfig when the numbers contradict each other.
    """

    family: str
    vocab_size: int
    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ff: int
    rope: RopeConfig
    norm_eps: float
    tie_embeddings: bool
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    windows: tuple[int | None, ...] | None = None
    sinks: bool = False
    """A logit per query head that takes part in the softmax as a key without a value would (gpt-oss)."""
    moe: MoeConfig | None = None
    norm_scale_f32: bool = False
    """Norms multiply by their scale in float32, before the cast back (gpt-oss), not after it."""
    max_positions: int = 32768
    dtype: str = "float32"
    quantised: str | None = None

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "d_model", "n_layers", "n_heads", "n_kv_heads", "head_dim", "d_ff", "max_positions")
        found = {name: getattr(self, name) for name in sizes}
        problems = [f"{name} is {n!r}, no whole number" for name, n in found.items() if not isinstance(n, int)]
        if problems:
            raise UnsupportedConfig(f"this {self.family} config cannot be right: " + "; ".join(problems))
        problems = [f"{name} is {n}, not positive" for name, n in found.items() if n < 1]
        if not problems and self.n_heads % self.n_kv_heads:
            problems.append(f"{self.n_heads} heads cannot share {self.n_kv_heads} key-value heads evenly")
        if self.head_dim % 2:
            problems.append(f"head_dim {self.head_dim} is odd, so rotary embedding cannot halve it")
        if self.windows is not None and len(self.windows) != self.n_layers:
            problems.append(f"{len(self.windows)} attention windows are given for {self.n_layers} layers")
        if self.moe is not None:
            problems += self.moe.problems(self.n_layers)
        if self.dtype not in DTYPES:
            problems.append(f"weights of dtype {self.dtype}; known: {', '.join(DTYPES)}")
        if self.quantised is not None:
            problems += self._packing_problems()
        if problems:
            raise UnsupportedConfig(f"this {self.family} config cannot be right: " + "; ".join(problems))

    def _packing_problems(self) -> list[str]:
        if self.quantised not in QUANTISED or self.moe is None:
            return [f"experts held as {self.quantised!r}; known, for models with experts: {', '.join(QUANTISED)}"]
        widths = {"d_model": self.d_model, "expert d_ff": self.moe.d_ff}
        return [
            f"{name} {n} is no multiple of {MXFP4_BLOCK}, the block of {self.quantised}"
            for name, n in widths.items()
            if n % MXFP4_BLOCK
        ]
