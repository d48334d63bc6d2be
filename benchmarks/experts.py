"""The dispatch to experts beside one dense feed-forward that does as much arithmetic."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.line import Line, alternate, seconds
from noisyjax.models import MoeConfig
from noisyjax.models.moe import Experts, experts, route, router_logits

TOKENS, WIDTH = 2048, 512
CFG = MoeConfig(n_experts=16, top_k=4, d_ff=512, norm_topk=True)


def _random(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(shape).normal(size=shape) * shape[-1] ** -0.5, jnp.float32)


def sparse(x_nd: jax.Array, router_ed: jax.Array, w: Experts) -> jax.Array:
    """Four experts of sixteen for every token, by its router."""
    return experts(x_nd, *route(router_logits(x_nd, router_ed), CFG.top_k, CFG.norm_topk), w, CFG)


def dense(x_nd: jax.Array, gate_fd: jax.Array, up_fd: jax.Array, down_df: jax.Array) -> jax.Array:
    """A SwiGLU feed-forward as wide as four experts."""
    return (jax.nn.silu(x_nd @ gate_fd.T) * (x_nd @ up_fd.T)) @ down_df.T


def dispatch() -> Iterator[Line]:
    """16 experts, 4 a token, 2,048 tokens of width 512, against a dense layer with the same active FLOPs."""
    e, f, wide = CFG.n_experts, CFG.d_ff, CFG.d_ff * CFG.top_k
    x = _random(TOKENS, WIDTH)
    many = Experts(_random(e, f, WIDTH), _random(e, f, WIDTH), _random(e, WIDTH, f))
    ours, theirs = (x, _random(e, WIDTH), many), (x, _random(wide, WIDTH), _random(wide, WIDTH), _random(WIDTH, wide))

    def timed(function, args):
        program = jax.jit(function)
        jax.block_until_ready(program(*args))
        return lambda: seconds(lambda: jax.block_until_ready(program(*args)))

    first, second = alternate([timed(sparse, ours), timed(dense, theirs)], rounds=15)
    detail: dict[str, object] = {"experts, ms": 1e3 * first, "dense, ms": 1e3 * second}
    yield Line("dispatch to experts", "time over that of a dense layer", first / second, most=1.5, detail=detail)
