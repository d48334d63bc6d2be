"""Experts on a mesh: every device runs those of its experts, and of their width, that it holds, on its own rows.

The rows of devices that share a batch but hold different experts are gathered, and what each adds to them is summed and
cut again: for top-8 routing over up to 8 devices that moves no more than sending each row to its experts would, nothing
is dropped, and all sizes are known to the compiler. Inside there is no communication: partial sums leave with an axis
of their own, and what the compiler makes of their sum is a reduction (or, where the result is cut, its scattered form).

Legend: B batch, T query length, D model, F ffn of an expert, E experts, K experts of a token, P partial sums.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from .params import AXES, ParamSpec, packed_paths
from .sharding import Layout, ShardingRules, partition_spec

Product = Callable[[jax.Array, jax.Array, jax.Array, Any], jax.Array]
"""(x_nd, weight_nk, expert_nk, weights of experts) -> [N, D], as `moe.experts`."""


def over_mesh(
    product: Product, layout: Layout | None, x_btd: jax.Array, weight_btk: jax.Array, expert_btk: jax.Array, w: Any
) -> jax.Array:
    """`product` on every token, [B, T, D] in x's type. w: a NamedTuple of arrays, packed ones or None.

    On a mesh `product` sees the rows, the experts and the part of F that a device holds. A choice of somebody else's
    expert comes with weight 0 and the index after the last, as no expert at all: its row is to come out finite.
    """
    if layout is None:
        x_nd, weight_nk, expert_nk = (x.reshape(-1, x.shape[-1]) for x in (x_btd, weight_btk, expert_btk))
        return product(x_nd, weight_nk, expert_nk, w).reshape(x_btd.shape)
    held = {name: x for name, x in w._asdict().items() if x is not None}
    axes, rules = layout.mesh.shape, replace(layout.rules, embed=None)  # every device has whole rows
    by_expert, by_width = jax.tree.leaves(_specs("gate_efd", held["gate_efd"], rules, axes))[0][:2]
    inner = {name: _specs(name, x, replace(rules, ffn=by_width), axes) for name, x in held.items()}
    batch = tuple(axis for axis in layout.batch_axes(x_btd.shape[0]) if axis != by_expert) or None
    partial = tuple(axis for axis in (by_expert, by_width) if axis is not None) or None

    def local(x_btd: jax.Array, weight_btk: jax.Array, expert_btk: jax.Array, held: dict[str, jax.Array]) -> jax.Array:
        count, k = jax.tree.leaves(held)[0].shape[0], expert_btk.shape[-1]
        own_nk = expert_btk.reshape(-1, k) - (jax.lax.axis_index(by_expert) * count if by_expert else 0)
        mine_nk = (own_nk >= 0) & (own_nk < count)
        if by_width and "down_bias_ed" in held:  # it is added to a sum over the width: once
            first = jax.lax.axis_index(by_width) == 0
            held = held | {"down_bias_ed": jnp.where(first, held["down_bias_ed"], 0)}
        y_nd = product(
            x_btd.reshape(-1, x_btd.shape[-1]),
            jnp.where(mine_nk, weight_btk.reshape(-1, k), 0),
            jnp.where(mine_nk, own_nk, count),
            w._replace(**held),
        )
        return y_nd.reshape(1, *x_btd.shape)

    by_row = PartitionSpec(batch)
    parts_pbtd = jax.shard_map(
        local,
        mesh=layout.mesh,
        in_specs=(by_row, by_row, by_row, inner),
        out_specs=PartitionSpec(partial, batch),
        check_vma=False,
    )(x_btd, weight_btk, expert_btk, held)
    return parts_pbtd.sum(0)


def _specs(name: str, x: Any, rules: ShardingRules, axes: Mapping[str, int]) -> Any:
    """The PartitionSpec of the array, or of each part of the packed one, of this name."""

    def spec(name: str, part: jax.Array) -> PartitionSpec:
        logical = tuple(AXES[letter] for letter in name.rsplit("_", 1)[1])
        return partition_spec(ParamSpec(part.shape, logical), rules, axes)

    return type(x)(*map(spec, packed_paths(name), x)) if isinstance(x, tuple) else spec(name, x)
