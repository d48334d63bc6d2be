"""The grouped kernel, interpreted, behind the seam of the experts; and the tiles that it visits.

Legend: N tokens, D model, F ffn of an expert, E experts, K experts of a token, M rows.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from noisyjax.models import MoeConfig
from noisyjax.models.kernels.gmm import ROWS, product, tile_rows, tiles_executed, width
from noisyjax.models.moe import Experts, Packed, experts, route


def random(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng([seed, *shape]).normal(size=shape), jnp.float32)


def weights(e: int, d: int, f: int, bias: bool) -> Experts:
    shapes = [(e, f, d), (e, f, d), (e, d, f)] + ([(e, f), (e, f), (e, d)] if bias else [])
    return Experts(*(random(*shape, seed=i) for i, shape in enumerate(shapes)))


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "biased and clamped"])
def test_experts_by_kernel_are_those_of_the_sorted_dispatch(bias):
    """160 rows in tiles of 128; nobody asks expert 1, and every fifth choice is of an expert that lies elsewhere."""
    cfg = MoeConfig(n_experts=5, top_k=2, d_ff=6, norm_topk=True, bias=bias, clamp=0.8 if bias else None)
    x_nd, w = random(80, 4), weights(5, 4, 6, bias)
    logits = random(80, 5, seed=3).at[:, 1].add(-9.0)

    def total(dispatch, x, logits, w):
        shares, chosen = route(logits, 2, True)
        away = jnp.arange(80)[:, None] % 5 == 0
        shares, chosen = jnp.where(away, 0, shares), jnp.where(away, 5, chosen)
        y = experts(x, shares, chosen, w, cfg, dispatch)
        return jnp.sum(y * random(*y.shape, seed=9)), y

    got, expected = (
        jax.jit(jax.value_and_grad(lambda *a, how=how: total(how, *a), argnums=(0, 1, 2), has_aux=True))(
            x_nd, logits, w
        )
        for how in ("interpreted", "sorted")
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-4), got, expected)
    assert np.all(np.asarray(got[1][2].gate_efd)[1] == 0)


def test_packed_experts_by_kernel_are_those_of_the_sorted_dispatch():
    """The kernel takes their numbers in another order, and the inputs with them."""
    cfg = MoeConfig(n_experts=3, top_k=2, d_ff=32, norm_topk=True, bias=True, clamp=0.8)
    draw = np.random.default_rng(5)

    def packed(outputs: int, inputs: int) -> Packed:
        blocks = draw.integers(0, 256, (3, outputs, inputs // 32, 16), np.uint8)
        return Packed(jnp.asarray(blocks), jnp.asarray(draw.integers(122, 126, blocks.shape[:-1], np.uint8)))

    w = Experts(packed(32, 64), packed(32, 64), packed(64, 32), *weights(3, 64, 32, True)[3:])
    shares, chosen = route(random(40, 3), 2, True)
    got, expected = (experts(random(40, 64), shares, chosen, w, cfg, how) for how in ("interpreted", "sorted"))
    np.testing.assert_allclose(got, expected, atol=1e-4, rtol=1e-4)
    assert np.abs(expected).max() > 0.1


def test_rows_behind_the_last_group_are_zeros_and_take_no_gradient():
    """Whatever they hold: the kernel does not write what it gives for them."""
    x_mi, w_eoi, size_e = random(128, 4).at[50:].set(jnp.nan), random(2, 3, 4), jnp.asarray([20, 30], jnp.int32)

    def run(x_mi, w_eoi):
        return product(x_mi, w_eoi, None, size_e, tile=128, interpret=True)

    y_mo, pull = jax.vjp(run, x_mi, w_eoi)
    np.testing.assert_allclose(y_mo[20:50], x_mi[20:50] @ w_eoi[1].T, atol=1e-5)
    np.testing.assert_array_equal(y_mo[50:], 0)
    dx_mi, dw_eoi = pull(jnp.ones_like(y_mo))
    np.testing.assert_array_equal(dx_mi[50:], 0)
    np.testing.assert_allclose(dw_eoi[0], jnp.broadcast_to(x_mi[:20].sum(0), (3, 4)), atol=1e-4)


def test_tiles_by_hand():
    assert tiles_executed([128, 128], 128) == 2
    assert tiles_executed([1, 127, 1], 128) == 3  # the first two share a tile, which is visited twice
    assert tiles_executed([0, 300, 0, 0, 20], 128) == 4
    assert tiles_executed([], 128) == tiles_executed([0, 0], 128) == 0


def test_tiles_are_those_of_the_kernel():
    """As megablox itself counts them."""
    from jax.experimental.pallas.ops.tpu.megablox.gmm import make_group_metadata

    draw = np.random.default_rng(0)
    for _ in range(2):
        size_e = draw.integers(0, 200, 6) * draw.integers(0, 2, 6)
        m = -(-max(int(size_e.sum()), 1) // 128) * 128
        _, tiles = make_group_metadata(
            group_sizes=jnp.asarray(size_e, jnp.int32),
            m=m,
            tm=128,
            start_group=jnp.int32(0),
            num_nonzero_groups=6,
            visit_empty_groups=False,
        )
        assert tiles_executed(size_e, 128) == tiles


@pytest.mark.parametrize(
    ("experts", "tokens", "skew"), [(128, 32768, 0.0), (128, 16384, 1.0), (32, 16384, 1.0), (16, 4096, 0.5)]
)
def test_few_tiles_are_wasted_in_training(experts, tokens, skew):
    """Tiles visited against those that the active experts' rows would fill, for loads from even to very uneven."""
    top_k = 8 if experts == 128 else 4
    share = np.exp(skew * np.random.default_rng(experts).normal(size=experts))
    size_e = np.random.default_rng(1).multinomial(tokens * top_k, share / share.sum())
    tile = tile_rows(tokens * top_k, experts)
    assert tiles_executed(size_e, tile) <= 1.15 * (size_e.sum() / tile)


def test_tiles_grow_with_the_groups():
    assert [tile_rows(rows, 16) for rows in (16, 16 * 8 * 128, 16 * 8 * 256, 10**6)] == [128, 128, 256, 512]
    assert set(ROWS) == {128, 256, 512}
    assert [width(size) for size in (40, 1024, 1536, 2048, 2880, 4096)] == [40, 1024, 768, 1024, 512, 1024]
