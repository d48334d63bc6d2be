"""What a decoder is made of, as frozen dataclasses. Families map Hugging Face configs onto these (see `families`)."""

from dataclasses import dataclass

from .errors import UnsupportedConfig

ROPE_KINDS = ("default", "linear", "llama3")
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding. `factor`, `low_freq_factor`, `high_freq_factor`, `original_max_positions` belong to the
    scaled kinds: `linear` divides every frequency by `factor`; `llama3` divides the long wavelengths only
    (Llama 3 technical report, section 3.4.1; transformers `modeling_rope_utils`)."""

    theta: float = 10_000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


@dataclass(frozen=True)
class MoeConfig:
    """A mixture-of-experts feed-forward: `top_k` of `n_experts`, each of width `d_ff`."""

    n_experts: int
    top_k: int
    d_ff: int
    norm_topk: bool


@dataclass(frozen=True)
class ModelConfig:
    """One pre-norm decoder.

    windows: per layer the sliding window in tokens, itself included; None in it, or None for all, is full attention.
    dtype: of the stored weights ("float32", "bfloat16" or "float16"); norms, softmax and logits are f32 regardless.
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
    moe: MoeConfig | None = None
    max_positions: int = 32768
    dtype: str = "float32"

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
        if self.dtype not in DTYPES:
            problems.append(f"weights of dtype {self.dtype}; known: {', '.join(DTYPES)}")
        if problems:
            raise UnsupportedConfig(f"this {self.family} config cannot be right: " + "; ".join(problems))
