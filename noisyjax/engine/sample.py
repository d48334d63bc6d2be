"""Drawing tokens: masks, truncation and random keys that depend on nothing but seeds and ids.

Legend: B rows (slots), V vocabulary, K top-k.
"""

import hashlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from noisyjax.records import Sampling

MASKED = -1e30
ARGMAX_BLOCK = 128


class Draw(NamedTuple):
    """Per-row sampling parameters as arrays: temperature, top_p, min_p float32 [B], top_k int32 [B] (0 is off)."""

    temperature: Any
    top_p: Any
    top_k: Any
    min_p: Any

    @classmethod
    def idle(cls, b: int) -> "Draw":
        """Rows that draw greedily, for slots nobody uses."""
        return cls(np.zeros(b, np.float32), np.ones(b, np.float32), np.zeros(b, np.int32), np.zeros(b, np.float32))

    def set(self, row: int, how: Sampling) -> None:
        """Write one request's parameters into a row."""
        self.temperature[row], self.top_p[row] = how.temperature, how.top_p
        self.top_k[row], self.min_p[row] = how.top_k, how.min_p


def row_key(seed: int, step: int, key: str, sample: int) -> np.ndarray:
    """The random key of one sample, uint32 [2]: a hash of (run seed, step, question key, sample index) only."""
    digest = hashlib.blake2b(f"{seed}\x00{step}\x00{key}\x00{sample}".encode(), digest_size=8).digest()
    return np.frombuffer(digest, np.uint32).copy()


def distribution(logits_bv: jax.Array, valid_v: jax.Array, temperature_b: jax.Array) -> jax.Array:
    """Log-probabilities [B, V] at each row's temperature (1 for greedy rows), undecodable rows removed.

    This is the distribution that `Completion.logprobs` and entropy refer to: full support, before top-p and the like.
    """
    scale_b = jnp.where(temperature_b > 0, temperature_b, 1.0)
    logits = jnp.where(valid_v, logits_bv / scale_b[:, None], MASKED)
    return logits - jax.nn.logsumexp(logits, -1, keepdims=True)


def _smallest_kept(p_bv: jax.Array, enough) -> jax.Array:
    """Per row the largest threshold t such that `enough(p >= t)` holds, by bisection on the bit patterns of p.

    Positive floats order like their bits, so 31 halvings find the exact threshold without sorting the vocabulary
    (which is slow on the CPU and would gather a sharded vocabulary on a mesh). Ties at the threshold are all kept.
    """

    def halve(_, bounds):
        low, high = bounds  # enough at low, not enough at high
        middle = low + (high - low) // 2
        threshold = jax.lax.bitcast_convert_type(middle, jnp.float32)
        good = enough(p_bv >= threshold[:, None])
        return jnp.where(good, middle, low), jnp.where(good, high, middle)

    b = p_bv.shape[0]
    top = jnp.full(b, np.float32(2.0).view(np.int32), jnp.int32)
    low, _ = jax.lax.fori_loop(0, 31, halve, (jnp.zeros(b, jnp.int32), top))
    return jax.lax.bitcast_convert_type(low, jnp.float32)


def truncate(logp_bv: jax.Array, draw: Draw) -> jax.Array:
    """Mask what top-k, min-p and then top-p leave out. Each is off at its neutral value; at least one token stays."""
    p = jnp.exp(logp_bv)
    v = p.shape[-1]
    k_b = jnp.where(draw.top_k > 0, jnp.minimum(draw.top_k, v), v)
    keep = p >= _smallest_kept(p, lambda kept: kept.sum(-1) >= k_b)[:, None]
    keep &= p >= draw.min_p[:, None] * p.max(-1, keepdims=True)
    p = jnp.where(keep, p, 0.0)
    p = p / p.sum(-1, keepdims=True)
    wanted_b = jnp.where(draw.top_p < 1.0, jnp.maximum(draw.top_p, 1e-9), 0.0)  # top_p 0 keeps the likeliest token
    nucleus = p >= _smallest_kept(p, lambda kept: jnp.where(kept, p, 0.0).sum(-1) >= wanted_b)[:, None]
    keep &= nucleus | (draw.top_p >= 1.0)[:, None]
    return jnp.where(keep, logp_bv, MASKED)


def argmax(x_bv: jax.Array) -> jax.Array:
    """`jnp.argmax` of every row, int32 [B], in two steps where rows are long: XLA's CPU backend finds a maximum with
    vectors, but its place one number after the other."""
    b, v = x_bv.shape
    if v < 32 * ARGMAX_BLOCK:
        return jnp.argmax(x_bv, -1).astype(jnp.int32)
    padded = jnp.pad(x_bv, ((0, 0), (0, -v % ARGMAX_BLOCK)), constant_values=-jnp.inf)
    blocks = padded.reshape(b, -1, ARGMAX_BLOCK)
    block_b = jnp.argmax(blocks.max(-1), -1)
    inside_b = jnp.argmax(jnp.take_along_axis(blocks, block_b[:, None, None], 1)[:, 0], -1)
    return (block_b * ARGMAX_BLOCK + inside_b).astype(jnp.int32)


def choose(logp_bv: jax.Array, draw: Draw, key_b2: jax.Array, made_b: jax.Array) -> jax.Array:
    """One token per row, int32 [B]: argmax where the temperature is 0, else a Gumbel draw with the row's own key.

    made_b counts the tokens the row has drawn before; (key, made) alone decide the draw.
    """
    greedy_b = argmax(logp_bv)

    def sampled() -> jax.Array:
        truncating = jnp.any((draw.top_p < 1.0) | (draw.top_k > 0) | (draw.min_p > 0.0))
        kept = jax.lax.cond(truncating, lambda: truncate(logp_bv, draw), lambda: logp_bv)

        def noise(key_2: jax.Array, made: jax.Array) -> jax.Array:
            key = jax.random.fold_in(jax.random.wrap_key_data(key_2, impl="threefry2x32"), made)
            return jax.random.gumbel(key, (logp_bv.shape[-1],))

        drawn_b = argmax(kept + jax.vmap(noise)(key_b2, made_b))
        return jnp.where(draw.temperature > 0, drawn_b, greedy_b)

    return jax.lax.cond(jnp.any(draw.temperature > 0), sampled, lambda: greedy_b)


def entropy(logp_bv: jax.Array) -> jax.Array:
    """Entropy in nats, float32 [B]; masked entries contribute nothing."""
    p = jnp.exp(logp_bv)
    return -jnp.sum(jnp.where(p > 0, p * logp_bv, 0.0), -1)
