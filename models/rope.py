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
    inv_f = 1.0 / rope.theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if rope.kind == "default":
        return inv_f.astype(np.float32)
    if rope.kind == "linear":
        return (inv_f / rope.factor).astype(np.float32)
    if rope.kind == "llama3":
        wavelength_f = 2.0 * math.pi / inv_f
        low, high = rope.low_freq_factor, rope.high_freq_factor
        blend_f = np.clip((rope.original_max_positions / wavelength_f - low) / (high - low), 0.0, 1.0)
        return ((1.0 - blend_f) * inv_f / rope.factor + blend_f * inv_f).astype(np.float32)
    raise ModelError(f"rope scaling {rope.kind!r} is not implemented; known: default, linear, llama3")


def rotation(inv_f: np.ndarray, pos_bt: jax.Array, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
    """cos and sin for `rotate`, each [B, T, 1, H/2] in `dtype`.

    Angles are made in float32 whatever the activations' type: bfloat16 cannot tell position 256 from 257.
    """
    angle_btf = pos_bt.astype(jnp.float32)[..., None] * jnp.asarray(inv_f)
    return jnp.cos(angle_btf)[:, :, None].astype(dtype), jnp.sin(angle_btf)[:, :, None].astype(dtype)


def rotate(x_btnh: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotate pairs (i, i + H/2) of the last axis of [B, T, N, H] by the angles behind `cos` and `sin`."""
    lo, hi = jnp.split(x_btnh, 2, axis=-1)
    return jnp.concatenate([lo * cos - hi * sin, hi * cos + lo * sin], axis=-1)
