"""Rotary embedding: published frequency vectors, long positions, and the relative property that makes it useful."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from noisyjax.models import ModelError, RopeConfig
from noisyjax.models.rope import inverse_frequencies, rotate, rotation

GPT_OSS = RopeConfig(150_000.0, "yarn", 32.0, original_max_positions=4096, truncate=False)
LLAMA31 = RopeConfig(500_000.0, "llama3", 8.0, 1.0, 4.0, 8192)


@pytest.mark.parametrize(
    ("index", "value"),
    # Llama 3.1 with head_dim 128: 28 is the last one kept, 35 the first divided by 8, the others are blends.
    [(28, 3.211445995e-3), (29, 2.166570764e-3), (32, 5.248461610e-4), (34, 1.785078128e-4), (35, 9.556212354e-5)],
)
def test_llama3_scaling_vectors(index, value):
    assert inverse_frequencies(LLAMA31, 128)[index] == pytest.approx(value, rel=1e-6)


def test_llama3_scaling_keeps_the_short_and_divides_the_long_wavelengths():
    plain, scaled = inverse_frequencies(RopeConfig(500_000.0), 128), inverse_frequencies(LLAMA31, 128)
    np.testing.assert_array_equal(scaled[:29], plain[:29])
    np.testing.assert_allclose(scaled[35:], plain[35:] / 8, rtol=1e-6)
    assert np.all(np.diff(scaled) < 0)


def test_default_and_linear():
    np.testing.assert_allclose(inverse_frequencies(RopeConfig(10_000.0), 8), [1, 0.1, 0.01, 0.001], rtol=1e-6)
    linear = inverse_frequencies(RopeConfig(10_000.0, "linear", 4.0), 8)
    np.testing.assert_allclose(linear, [0.25, 0.025, 0.0025, 0.00025], rtol=1e-6)


@pytest.mark.parametrize(
    ("index", "value"),
    # gpt-oss: 8 is the last one kept, 18 the first divided by 32; with rounded bounds 9 to 17 would be others.
    [
        (8, 5.081327482e-2),
        (9, 3.170569618e-2),
        (12, 6.794959490e-3),
        (16, 4.564839192e-4),
        (17, 1.293187012e-4),
        (18, 3.830881237e-5),
    ],
)
def test_yarn_vectors(index, value):
    assert inverse_frequencies(GPT_OSS, 64)[index] == pytest.approx(value, rel=1e-6)
    rounded = inverse_frequencies(dataclasses.replace(GPT_OSS, truncate=True), 64)[index]
    assert (rounded == pytest.approx(value, rel=1e-5)) == (index in (8, 18))


def test_yarn_enlarges_what_it_turns():
    assert GPT_OSS.magnitude == pytest.approx(1.346573590)
    assert dataclasses.replace(GPT_OSS, attention_factor=1.0).magnitude == 1.0
    assert dataclasses.replace(GPT_OSS, factor=0.5).magnitude == 1.0
    assert LLAMA31.magnitude == 1.0
    plain, large = (rotation(np.float32([0.5]), jnp.asarray([[3]]), jnp.float32, m) for m in (1.0, GPT_OSS.magnitude))
    for a, b in zip(plain, large, strict=True):
        np.testing.assert_allclose(b, 1.346573590 * np.asarray(a), rtol=1e-6)


def test_an_unknown_kind_is_named():
    with pytest.raises(ModelError, match="longrope"):
        inverse_frequencies(RopeConfig(kind="longrope"), 8)


def test_bfloat16_tells_neighbouring_positions_apart():
    inv_f = inverse_frequencies(RopeConfig(), 16)
    pos = jnp.asarray([[256, 257, 8191, 8192, 60_000, 60_001]])
    cos, sin = (np.asarray(x[0, :, 0, 8], np.float64) for x in rotation(inv_f, pos, jnp.bfloat16))
    # The fastest frequency is one radian per token; bfloat16 keeps eight bits of the cosine, not of the angle.
    np.testing.assert_allclose(cos, np.cos(np.asarray(pos[0], np.float64)), atol=2**-7)
    np.testing.assert_allclose(sin, np.sin(np.asarray(pos[0], np.float64)), atol=2**-7)
    assert len(set(cos.tolist())) == 6


@pytest.mark.parametrize("position", [0, 1, 257, 8_192, 60_000])
def test_angles_far_out(position):
    inv_f = inverse_frequencies(LLAMA31, 128)
    cos, sin = rotation(inv_f, jnp.asarray([[position]]), jnp.float32)
    angle = np.float32(position) * inv_f  # in float32, as transformers has it: one product, correctly rounded
    (cos_low, cos_high), (sin_low, sin_high) = (np.split(np.asarray(x[0, 0, 0]), 2) for x in (cos, sin))
    np.testing.assert_allclose(cos_high, np.cos(angle.astype(np.float64)), atol=1e-6)
    np.testing.assert_allclose(sin_high, np.sin(angle.astype(np.float64)), atol=1e-6)
    np.testing.assert_array_equal(cos_low, cos_high)
    np.testing.assert_array_equal(sin_low, -sin_high)
    exact = position * inv_f.astype(np.float64)
    np.testing.assert_allclose(cos_high, np.cos(exact), atol=6e-8 * max(position, 10))


def test_rotation_turns_the_halves_not_the_neighbours():
    """Pairs are (i, i + H/2): the interleaved form would turn (0, 1)."""
    x = jnp.zeros((1, 1, 1, 4)).at[..., 0].set(1.0)
    turned = rotate(x, *rotation(np.asarray([0.5, 0.25], np.float32), jnp.asarray([[2]]), jnp.float32))
    np.testing.assert_allclose(turned[0, 0, 0], [np.cos(1.0), 0, np.sin(1.0), 0], atol=1e-6)


def test_products_depend_on_the_distance_only():
    rng = np.random.default_rng(0)
    q, k = (jnp.asarray(rng.normal(size=(1, 1, 1, 16)), jnp.float32) for _ in range(2))
    inv_f = inverse_frequencies(RopeConfig(), 16)

    def product(q_pos: int, k_pos: int) -> float:
        at = lambda pos: rotation(inv_f, jnp.asarray([[pos]]), jnp.float32)  # noqa: E731
        return float(jnp.sum(rotate(q, *at(q_pos)) * rotate(k, *at(k_pos))))

    assert product(7, 3) == pytest.approx(product(1007, 1003), abs=1e-3)
    assert product(7, 3) != pytest.approx(product(7, 4), abs=1e-2)
