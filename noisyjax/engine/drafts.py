"""Guesses of what comes next, from what a row's own text has said before: prompt lookup (Saxena 2023).

The decode loop feeds a guess along with the last token and keeps as much of it as it then draws itself, so that a guess
costs or saves time and changes no completion: which token is drawn depends on the row's key and on how many were drawn
before, not on the step it is drawn in.

Legend: B slots, W text width, D tokens of a guess, T = 1 + D tokens of a step.
"""

import jax
import jax.numpy as jnp

LONGEST = 3
"""Tokens at the end of a text that are looked for in it; fewer where these have not stood together before."""


def guess(text_bw: jax.Array, held_b: jax.Array, count: int) -> jax.Array:
    """What followed the last earlier place that reads like the end of the text, int32 [B, D].

    text_bw int32: the first held_b (>= 1) tokens of a row count. The longest match wins, then the latest. Where the
    text ends inside the guess, it goes on as if the text repeated itself from the match on.
    """
    index_w = jnp.arange(text_bw.shape[1])
    last_b = held_b - 1
    run_bw, length_bw = jnp.ones(text_bw.shape, bool), jnp.zeros(text_bw.shape, jnp.int32)
    for back in range(LONGEST):
        wanted_b1 = jnp.take_along_axis(text_bw, jnp.maximum(last_b - back, 0)[:, None], 1)
        run_bw &= (jnp.roll(text_bw, back, 1) == wanted_b1) & (index_w >= back)
        length_bw += run_bw
    earlier_bw = index_w < last_b[:, None]
    match_b = jnp.argmax(jnp.where(earlier_bw, length_bw * text_bw.shape[1] + index_w, -1), 1)
    period_b1 = jnp.maximum(last_b - match_b, 1)[:, None]
    return jnp.take_along_axis(text_bw, match_b[:, None] + 1 + jnp.arange(count) % period_b1, 1)


def agreed(fed_bt: jax.Array, drawn_bt: jax.Array) -> jax.Array:
    """Tokens of a step that stand, int32 [B], 1 to T: each was drawn after tokens that were drawn themselves.

    fed_bt: the last token and the guess; drawn_bt[:, t]: what was drawn after seeing fed_bt[:, : t + 1].
    """
    right_bd = fed_bt[:, 1:] == drawn_bt[:, :-1]
    return 1 + jnp.cumprod(right_bd, 1, dtype=jnp.int32).sum(1)
