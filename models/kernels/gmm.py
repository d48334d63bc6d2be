"""Experts on a TPU: products of rows that are sorted by expert, by JAX's own grouped kernel (megablox).

The kernel visits tiles of rows; a tile in which a group ends is visited once for each group that has rows in it. What
lies behind the last group is neither read nor written, and may be anything.

Legend: M rows sorted by expert, D model, F ffn of an expert, E experts, O outputs, I inputs.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

LANES = 128
ROWS = (512, 256, LANES)
"""Sizes of tiles of rows, the fastest first."""
WIDTH = 1024
"""Inputs, and outputs, of a tile at most: three tiles of that size and their successors fit into the vector memory."""


def tile_rows(rows: int, groups: int) -> int:
    """Rows of a tile: so few that the tiles shared by two groups, one per group at most, are an eighth of all, where
    groups are large enough for that; the smallest tile otherwise."""
    return next((tile for tile in ROWS if rows >= 8 * tile * groups), ROWS[-1])


def tiles_executed(size_e: Any, tile: int) -> int:
    """Tiles that the kernel visits for groups of these sizes, one behind the other.

    >>> tiles_executed([256, 0, 100, 28], 128), tiles_executed([1, 1, 254], 128)
    (4, 4)
    """
    end_e = np.cumsum(np.asarray(size_e, np.int64))
    start_e = end_e - size_e
    return int(np.where(end_e > start_e, -(-end_e // tile) - start_e // tile, 0).sum())


def width(size: int) -> int:
    """Inputs or outputs of a tile. What no tile divides is cut unevenly: the kernel knows how to mask it."""
    if size <= WIDTH:
        return size
    return next((tile for tile in range(WIDTH, WIDTH // 4, -LANES) if size % tile == 0), WIDTH // 2)


@functools.cache
def _tiling(tile: int) -> Callable[[int, int, int], tuple[int, int, int]]:
    """(rows, inputs, outputs) of a product -> those of its tiles; one object per `tile`, as jit compares them."""
    return lambda rows, inputs, outputs: (tile, width(inputs), width(outputs))


def product(
    x_mi: jax.Array,
    w_eoi: jax.Array,
    bias_eo: jax.Array | None,
    size_e: jax.Array,
    *,
    tile: int,
    interpret: bool,
    inputs_first: bool = False,
) -> jax.Array:
    """Every row times its own expert's weight, plus its bias: [M, O] in x's type; differentiable.

    size_e: int32 rows of each expert, in order; what lies behind them gives zeros and takes no gradient. M is a
    multiple of `tile`. inputs_first: the weight is [E, I, O].
    """
    from jax.experimental.pallas.ops.tpu import megablox  # takes half a second, and a CPU has no use for it

    if not inputs_first and w_eoi.shape[2] % LANES:  # XLA lays such weights with outputs innermost, and would copy them
        w_eoi, inputs_first = w_eoi.swapaxes(1, 2), True
    row_m = jnp.arange(x_mi.shape[0])
    real_m1 = (row_m < size_e.sum())[:, None]
    # Going backward the kernel leaves the gradient of those rows unwritten: whatever is there must stay there.
    x_mi = jnp.where(real_m1, x_mi, 0)
    y_mo = megablox.gmm(x_mi, w_eoi, size_e, x_mi.dtype, _tiling(tile), None, None, not inputs_first, interpret)
    if bias_eo is not None:
        y_mo = y_mo + bias_eo[jnp.searchsorted(jnp.cumsum(size_e), row_m, side="right")]
    return jnp.where(real_m1, y_mo, 0)
