"""Rotary position embedding (half-split form), with the frequency scalings that checkpoints use.

Legend: B batch, T query length, N heads, H head dim, F = H/2 frequencies.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from .config import RopeConfig
from .errors import ModelError


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> np.ndarray:
    """Inverse frequencies, float32 [H/2].

    `default` is theta^(-2i/H); `linear` divides all by the factor; `llama3` keeps wavelengths shorter than
    original/high_freq_factor, divides those longer than original/low_freq_factor, and blends between (Llama 3.1).

    Raises ModelError for a kind that is not implemented.
    """
    # transformers' own order of roundings: one power, then float32 throughout. At position 60,000 a last-bit
    # difference here moves the logits by 1e-4.
    one = np.float32(1)
    exponent_f = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    inv_f = one / (np.float64(rope.theta) ** exponent_f.astype(np.float64)).astype(np.float32)
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
    raise ModelError(f"rope scaling {rope.kind!r} is not implemented; known: default, linear, llama3")


def rotation(inv_f: np.ndarray, pos_bt: jax.Array, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
    """cos and sin for `rotate`, each [B, T, 1, H] in `dtype`: both halves of the head, the sine's first one negated.

    Angles are made in float32 whatever the activations' type: bfloat16 cannot tell position 256 from 257.
    """
    angle_btf = pos_bt.astype(jnp.float32)[..., None] * jnp.asarray(inv_f)
    cos, sin = jnp.cos(angle_btf), jnp.sin(angle_btf)
    cos_bt1h, sin_bt1h = jnp.concatenate([cos, cos], -1), jnp.concatenate([-sin, sin], -1)
    return cos_bt1h[:, :, None].astype(dtype), sin_bt1h[:, :, None].astype(dtype)


def rotate(x_btnh: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotate pairs (i, i + H/2) of the last axis of [B, T, N, H] by the angles behind `cos` and `sin`."""
    return x_btnh * cos + jnp.roll(x_btnh, x_btnh.shape[-1] // 2, axis=-1) * sin
