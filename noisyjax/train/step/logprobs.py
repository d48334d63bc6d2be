"""What the policy thinks of the targets of training rows."""

import jax
import jax.numpy as jnp

from noisyjax.models import head
from noisyjax.models.decoder import Decoder, Remat
from noisyjax.models.moe import Load
from noisyjax.train.step.rows import Rows


def target_logprobs(
    model: Decoder,
    rows: Rows,
    temperature: float = 1.0,
    valid_v: jax.Array | None = None,
    *,
    remat: Remat = "none",
    columns: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """(log-probability of each target, entropy in nats of its distribution), float32 [B, P].

    Args:
        temperature: the sampler's; logits are divided by it.
        valid_v: bool [V]; False takes a row of the vocabulary out of the distribution, as the sampler does.
        remat: what each layer keeps for the backward pass.
        columns: of the vocabulary at a time (`models.head.target_logprobs`).

    Both are differentiable. The head runs on the gathered source positions only; padding targets give finite numbers.
    """
    x_btd = model.hidden(rows.ids_bt, rows.pos_bt, rows.segment_bt, rows.parent_bt, remat, rows.in_slots)
    return _of_hidden(model, x_btd, rows, temperature, valid_v, columns)


def logprobs_and_load(
    model: Decoder, rows: Rows, temperature: float = 1.0, valid_v: jax.Array | None = None, *, remat: Remat = "none"
) -> tuple[jax.Array, jax.Array, Load]:
    """`target_logprobs`, and how the rows' sequences load the model's experts."""
    times_bt = appearances(rows.segment_bt, rows.parent_bt)
    whole = (rows.ids_bt, rows.pos_bt, rows.segment_bt, rows.parent_bt)
    x_btd, load = model.hidden_and_load(*whole, times_bt, remat, rows.in_slots)
    return *_of_hidden(model, x_btd, rows, temperature, valid_v, None), load


def appearances(segment_bt: jax.Array, parent_bt: jax.Array) -> jax.Array:
    """In how many of its row's sequences a token is, float32 [B, T]: a prompt's in as many as the responses behind it.

    So what is summed over tokens does not depend on how many copies of a prompt there are. Padding is in none.
    """

    def row(segment_t: jax.Array, parent_t: jax.Array) -> jax.Array:
        begins_t = segment_t != jnp.pad(segment_t, (1, 0))[:-1]
        response_t = parent_t != segment_t
        behind_s = jax.ops.segment_sum((begins_t & response_t).astype(jnp.float32), parent_t, len(segment_t) + 1)
        return jnp.where(segment_t == 0, 0.0, jnp.where(response_t, 1.0, behind_s[segment_t]))

    return jax.vmap(row)(segment_bt, parent_bt)


def _of_hidden(
    model: Decoder,
    x_btd: jax.Array,
    rows: Rows,
    temperature: float,
    valid_v: jax.Array | None,
    columns: int | None,
) -> tuple[jax.Array, jax.Array]:
    x_bpd = jnp.take_along_axis(x_btd, rows.source_bp[..., None], 1)
    layout = model.layout
    stripes = 1 if layout is None else layout.size(layout.rules.vocab)
    return head.target_logprobs(
        x_bpd, model.table, rows.target_bp, valid_v, temperature, columns=columns, stripes=stripes
    )
