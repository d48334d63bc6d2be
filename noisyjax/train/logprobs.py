"""What the policy thinks of the targets of training rows."""

import jax
import jax.numpy as jnp

from noisyjax.models import head
from noisyjax.models.decoder import Decoder, Remat
from noisyjax.train.rows import Rows


def target_logprobs(
    model: Decoder,
    rows: Rows,
    temperature: float = 1.0,
    valid_v: jax.Array | None = None,
    *,
    entropy: bool = False,
    remat: Remat = "none",
    columns: int | None = None,
    stripes: int = 1,
) -> tuple[jax.Array, jax.Array | None]:
    """(log-probability of each target, entropy in nats of its distribution or None), float32 [B, P].

    Args:
        temperature: the sampler's; logits are divided by it.
        valid_v: bool [V]; False takes a row of the vocabulary out of the distribution, as the sampler does.
        entropy: also return the entropy. It is differentiable.
        remat: what each layer keeps for the backward pass.
        columns, stripes: how the vocabulary is cut (`models.head.target_logprobs`).

    Differentiable. The head runs on the gathered source positions only; padding targets give some finite number.
    """
    x_btd = model.hidden(rows.ids_bt, rows.pos_bt, rows.segment_bt, rows.parent_bt, remat)
    x_bpd = jnp.take_along_axis(x_btd, rows.source_bp[..., None], 1)
    logprob_bp, entropy_bp = head.target_logprobs(
        x_bpd, model.table, rows.target_bp, valid_v, temperature, columns=columns, stripes=stripes
    )
    return logprob_bp, entropy_bp if entropy else None
