"""Rotary position embedding (half-split form), with the frequency scalings that checkpoints use.

Legend: B batch, T query length, N heads, H head dim, F = H/2 frequencies.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from .config import ROPE_KINDS, RopeConfig
from .errors import ModelError


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> np.ndarray:
    """Inverse frequencies, float32 [H/2].

    `default` is theta^(-2i/H); `linear` divides all by the factor; `llama3` keeps wavelengths shorter than
    original/high_freq_factor, divides those longer than original/low_freq_factor, and blends between (Llama 3.1);
    `yarn` blends over the index of the frequency, between the bounds that beta_fast and beta_slow give.

    Raises ModelError for a kind that is not implemented.
    """
    # transformers' own order of roundings: one power, then float32 throughout. At position 60,000 a last-bit
    # difference here moves the logits by 1e-4.
    one = np.float32(1)
    exponent_f = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    power_f = (np.float64(rope.theta) ** exponent_f.astype(np.float64)).astype(np.float32)
    inv_f = one / power_f
    factor = np.float32(rope.factor)
    if rope.kind == "default":
        return inv_f
    if rope.kind == "linear":
        return inv_f / factor
    if rope.kind == "llama3":
        wavelength_f = np.float32(2.0 * math.pi) / inv_f
        low, high = np.float32(rope.low_freq_factor), np.float32(rope.high_freq_factor)
        keep_f = np.clip((np.float32(rope.original_max_positions) / wavelength_f - low) / (high - low), 0, 1)
        blended_f = (one - keep_f) * inv_f / factor + keep_f * inv_f
        return np.where(keep_f >= 1, inv_f, np.where(keep_f <= 0, inv_f / factor, blended_f)).astype(np.float32)
    if rope.kind == "yarn":
        kept, divided = _yarn_bounds(rope, head_dim)
        index_f = np.arange(head_dim // 2, dtype=np.float32)
        keep_f = one - np.clip((index_f - np.float32(kept)) / np.float32(divided - kept), 0, 1)
        return one / (factor * power_f) * (one - keep_f) + inv_f * keep_f
    raise ModelError(f"rope scaling {rope.kind!r} is not implemented; known: {', '.join(ROPE_KINDS)}")


def _yarn_bounds(rope: RopeConfig, head_dim: int) -> tuple[float, float]:
    """Indices of the last frequency kept and of the first one divided, fractions of an index unless truncated."""

    def index(turns: float) -> float:
        return head_dim * math.log(rope.original_max_positions / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = index(rope.beta_fast), index(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    return low, high if high != low else high + 0.001  # as upstream: a step instead of a division by zero


def rotation(
    inv_f: np.ndarray, pos_bt: jax.Array, dtype: jnp.dtype, magnitude: float = 1.0
) -> tuple[jax.Array, jax.Array]:
    """cos and sin for `rotate`, each [B, T, 1, H] in `dtype`: both halves of the head, the sine's first one negated.

    Angles are made in float32 whatever the activations' type: bfloat16 cannot tell position 256 from 257.
    magnitude: `RopeConfig.magnitude`, which both are multiplied by.
    """
    angle_btf = pos_bt.astype(jnp.float32)[..., None] * jnp.asarray(inv_f)
    cos, sin = jnp.cos(angle_btf) * magnitude, jnp.sin(angle_btf) * magnitude
    cos_bt1h, sin_bt1h = jnp.concatenate([cos, cos], -1), jnp.concatenate([-sin, sin], -1)
    return cos_bt1h[:, :, None].astype(dtype), sin_bt1h[:, :, None].astype(dtype)


def rotate(x_btnh: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotate pairs (i, i + H/2) of the last axis of [B, T, N, H] by the angles behind `cos` and `sin`."""
    return x_btnh * cos + jnp.roll(x_btnh, x_btnh.shape[-1] // 2, axis=-1) * sin
