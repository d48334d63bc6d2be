"""What the policy thinks of the targets of training rows."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from noisyjax.models import head
from noisyjax.models.decoder import Decoder, Remat
from noisyjax.train.step.rows import Rows


def target_logprobs(
    model: Decoder,
    rows: Rows,
    temperature: float = 1.0,
    valid_v: jax.Array | None = None,
    *,
    remat: Remat = "none",
    columns: int | None = None,
    stripes: int = 1,
    place: Callable[[jax.Array], jax.Array] | None = None,
) -> tuple[jax.Array, jax.Array]:
    """(log-probability of each target, entropy in nats of its distribution), float32 [B, P].

    Args:
        temperature: the sampler's; logits are divided by it.
        valid_v: bool [V]; False takes a row of the vocabulary out of the distribution, as the sampler does.
        remat: what each layer keeps for the backward pass.
        place: lays the hidden states out over devices.
        columns, stripes: how the vocabulary is cut (`models.head.target_logprobs`).

    Both are differentiable. The head runs on the gathered source positions only; padding targets give finite numbers.
    """
    x_btd = model.hidden(rows.ids_bt, rows.pos_bt, rows.segment_bt, rows.parent_bt, remat, place)
    x_bpd = jnp.take_along_axis(x_btd, rows.source_bp[..., None], 1)
    return head.target_logprobs(
        x_bpd, model.table, rows.target_bp, valid_v, temperature, columns=columns, stripes=stripes
    )
