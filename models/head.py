"""Log-probabilities of given tokens without ever holding logits of the whole vocabulary.

The vocabulary is visited a slice at a time with a running log-sum-exp, forwards and backwards; the backward pass makes
each slice's logits again. Memory is that of one slice of logits, of the hidden states' gradient and of the table's.

Legend: N targets (any number of leading axes, flattened), D model, V vocabulary, C one slice of it,
        X stripes: equal runs of the vocabulary that lie on different devices, each sliced alike.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .attention import MASKED

SLICE_LOGITS = 2**24
"""Logits made at a time: 64 MiB in float32."""
MIN_SLICE = 512
"""Columns of a slice at least, so that its product stays an efficient one."""


class _Running(NamedTuple):
    """Over the columns seen so far: maximum, sum of exp(logit - max), that sum weighted by the logit, the target's."""

    max_n: jax.Array
    sum_n: jax.Array
    weighted_n: jax.Array
    picked_n: jax.Array


def target_logprobs(
    x_nd: jax.Array,
    w_vd: jax.Array,
    target_n: jax.Array,
    valid_v: jax.Array | None = None,
    temperature: float = 1.0,
    *,
    columns: int | None = None,
    stripes: int = 1,
) -> tuple[jax.Array, jax.Array]:
    """(log p(target), entropy in nats) of softmax(x w^T / temperature), float32, shaped like `target_n`.

    Args:
        x_nd: hidden states [..., D].
        w_vd: the output table [V, D].
        target_n: int [...], each a valid row of the table.
        valid_v: bool [V]; False removes a row from the distribution, as the sampler does.
        columns: table rows per slice; None picks what keeps a slice near `SLICE_LOGITS`.
        stripes: devices that the table's rows are cut over.

    Differentiable in x_nd and w_vd, both results. The products are in the inputs' type with float32 sums.
    """
    lead, (v, d) = target_n.shape, w_vd.shape
    n, per_stripe = max(target_n.size, 1), v // stripes
    if columns is None:
        columns = max(MIN_SLICE, SLICE_LOGITS // n) // stripes
    count = -(-per_stripe // max(1, min(columns, per_stripe)))
    static = (-(-per_stripe // count), count, float(temperature))
    w_xcd = w_vd.reshape(stripes, per_stripe, d)
    valid_xc = None if valid_v is None else jnp.asarray(valid_v).reshape(stripes, per_stripe)
    logprob, entropy = _targets(static, x_nd.reshape(-1, d), w_xcd, target_n.reshape(-1), valid_xc)
    return logprob.reshape(lead), entropy.reshape(lead)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _targets(static: tuple[int, int, float], x_nd: Any, w_xcd: Any, target_n: Any, valid_xc: Any):
    return _forward(static, x_nd, w_xcd, target_n, valid_xc)[0]


def _slice(static: tuple, i: jax.Array, x_nd: Any, w_xcd: Any, target_n: Any, valid_xc: Any):
    """Slice i: (first column, its table rows w_xcd, scaled logit_nxc, visible_xc, hit_nxc: where the target is).

    The last slice is shifted back to end with the table; columns that another slice has are then not visible.
    """
    size, _, temperature = static
    per_stripe = w_xcd.shape[1]
    start = jnp.minimum(i * size, per_stripe - size)
    w = jax.lax.dynamic_slice_in_dim(w_xcd, start, size, 1)
    column = start + jnp.arange(size)
    visible = jnp.broadcast_to(column >= i * size, (w.shape[0], size))
    if valid_xc is not None:
        visible &= jax.lax.dynamic_slice_in_dim(valid_xc, start, size, 1)
    logit = jnp.einsum("nd,xcd->nxc", x_nd, w, preferred_element_type=jnp.float32) / temperature
    ids = jnp.arange(w.shape[0])[:, None] * per_stripe + column
    return start, w, jnp.where(visible, logit, MASKED), visible, (ids == target_n[:, None, None]) & visible


def _forward(static: tuple, x_nd: Any, w_xcd: Any, target_n: Any, valid_xc: Any):
    def body(i: jax.Array, run: _Running) -> _Running:
        _, _, logit, visible, hit = _slice(static, i, x_nd, w_xcd, target_n, valid_xc)
        top = jnp.maximum(run.max_n, logit.max((1, 2)))
        weight = jnp.where(visible, jnp.exp(logit - top[:, None, None]), 0.0)
        fade = jnp.exp(run.max_n - top)
        return _Running(
            top,
            run.sum_n * fade + weight.sum((1, 2)),
            run.weighted_n * fade + (weight * logit).sum((1, 2)),
            run.picked_n + jnp.where(hit, logit, 0.0).sum((1, 2)),
        )

    zero = jnp.zeros(target_n.shape, jnp.float32)
    run = jax.lax.fori_loop(0, static[1], body, _Running(jnp.full_like(zero, MASKED), zero, zero, zero))
    lse = run.max_n + jnp.log(run.sum_n)
    entropy = lse - run.weighted_n / run.sum_n
    return (run.picked_n - lse, entropy), (x_nd, w_xcd, target_n, valid_xc, lse, entropy)


def _backward(static: tuple, residuals: tuple, gradients: tuple[jax.Array, jax.Array]):
    """d logprob / d logit_j = [j is the target] - p_j;  d entropy / d logit_j = -p_j (log p_j + entropy)."""
    x_nd, w_xcd, target_n, valid_xc, lse_n, entropy_n = residuals
    g_logprob, g_entropy = (g[:, None, None] for g in gradients)

    def body(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        dx_nd, dw_xcd = carry
        start, w, logit, visible, hit = _slice(static, i, x_nd, w_xcd, target_n, valid_xc)
        logp = logit - lse_n[:, None, None]
        p = jnp.where(visible, jnp.exp(logp), 0.0)
        dlogit = g_logprob * (hit - p) - g_entropy * p * (logp + entropy_n[:, None, None])
        dlogit = (dlogit / static[2]).astype(x_nd.dtype)
        dx_nd = dx_nd + jnp.einsum("nxc,xcd->nd", dlogit, w, preferred_element_type=jnp.float32)
        dw = jnp.einsum("nxc,nd->xcd", dlogit, x_nd, preferred_element_type=jnp.float32)
        before = jax.lax.dynamic_slice_in_dim(dw_xcd, start, static[0], 1)
        return dx_nd, jax.lax.dynamic_update_slice_in_dim(dw_xcd, before + dw, start, 1)

    zeros = (jnp.zeros(x_nd.shape, jnp.float32), jnp.zeros(w_xcd.shape, jnp.float32))
    dx_nd, dw_xcd = jax.lax.fori_loop(0, static[1], body, zeros)
    return dx_nd.astype(x_nd.dtype), dw_xcd.astype(w_xcd.dtype), None, None


_targets.defvjp(_forward, _backward)
