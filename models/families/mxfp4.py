"""MXFP4: four-bit floats in blocks of 32 that share a power of two (OCP Microscaling Formats 1.0, section 5.3).

A tensor [..., 32 n] is stored as blocks uint8 [..., n, 16], two numbers a byte with the first in the low four bits, and
scales uint8 [..., n], exponents with a bias of 127.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from ..config import MXFP4_BLOCK as BLOCK
from ..errors import Shape, UnsupportedConfig

BLOCKS, SCALES = "_blocks", "_scales"
"""Endings of the names of the two tensors."""

_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
VALUES = np.array([*_MAGNITUDES, *(-m for m in _MAGNITUDES)], np.float32)
"""Four bits -> number: the sign, two bits of exponent, one of mantissa."""


def packed_shapes(shape: Shape) -> tuple[Shape, Shape]:
    """Shapes of the blocks and the scales of a tensor. Raises UnsupportedConfig when its rows are no whole blocks."""
    if shape[-1] % BLOCK:
        raise UnsupportedConfig(f"rows of {shape[-1]} numbers cannot be stored as MXFP4, which packs {BLOCK} at a time")
    groups = (*shape[:-1], shape[-1] // BLOCK)
    return (*groups, BLOCK // 2), groups


def unpack(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """blocks uint8 [..., n, 16], scales uint8 [..., n] -> bfloat16 [..., 32 n], exact: one significant bit, or two.

    >>> unpack(np.full((1, 16), 0x9A, np.uint8), np.array([125], np.uint8))[:2]
    array([-0.25, -0.125], dtype=bfloat16)
    """
    pairs = np.stack([blocks & 15, blocks >> 4], -1)
    numbers = VALUES[pairs.reshape(*blocks.shape[:-1], -1)]
    numbers = np.ldexp(numbers, scales[..., None].astype(np.int32) - 127)
    return numbers.reshape(*scales.shape[:-1], -1).astype(ml_dtypes.bfloat16)


def unpacked(blocks: jax.Array, scales: jax.Array, dtype: Any) -> jax.Array:
    """`unpack` inside a program: blocks uint8 [..., n, 16], scales uint8 [..., n] -> dtype [..., 32 n].

    Exact, but for numbers below float32's normal range, which come out as zero. Made of bits and not of the table,
    since a look-up for every number is what accelerators do slowest.
    """
    code = jnp.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:-1], BLOCK)
    numbers = _numbers(code) * _powers(scales)[..., None]
    return numbers.reshape(*scales.shape[:-1], -1).astype(dtype)


def unpacked_by_input(blocks_eogb: jax.Array, scales_eog: jax.Array, dtype: Any) -> jax.Array:
    """Weights [E, inputs, outputs], the even inputs first and then the odd ones, in the order of `halves`.

    In this form no number changes its place: a TPU lays bytes with outputs innermost, and would move four times as many
    to interleave the two of a byte.
    """
    blocks_egbo, power_eg1o = jnp.moveaxis(blocks_eogb, 1, -1), _powers(jnp.moveaxis(scales_eog, 1, -1))[:, :, None]
    e, g, b, o = blocks_egbo.shape
    codes = blocks_egbo & 15, blocks_egbo >> 4
    return jnp.concatenate([(_numbers(x) * power_eg1o).astype(dtype).reshape(e, g * b, o) for x in codes], 1)


def halves(x_mi: jax.Array) -> jax.Array:
    """Inputs in the order of `unpacked_by_input`."""
    return jnp.concatenate([x_mi[:, ::2], x_mi[:, 1::2]], 1)


def _numbers(code: jax.Array) -> jax.Array:
    """Four bits, uint8, as float32."""
    code = code.astype(jnp.int32)
    exponent, odd = (code >> 1) & 3, code & 1
    twice = jnp.where(exponent == 0, odd, (2 + odd) << jnp.maximum(exponent - 1, 0))
    size = 0.5 * twice.astype(jnp.float32)
    return jnp.where(code < 8, size, -size)


def _powers(scales: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(scales.astype(jnp.int32) << 23, jnp.float32)


def read(fetch: Callable[[str, tuple[slice, ...]], np.ndarray], name: str, index: tuple[slice, ...]) -> np.ndarray:
    """`index` of the tensor `name`, of which only the blocks that it touches are read."""
    *rows, last = index
    groups = slice(last.start // BLOCK, -(-last.stop // BLOCK))
    blocks = fetch(name + BLOCKS, (*rows, groups, slice(0, BLOCK // 2)))
    whole = unpack(blocks, fetch(name + SCALES, (*rows, groups)))
    first = groups.start * BLOCK
    return whole[..., last.start - first : last.stop - first]
