"""Accelerator names against what Google's pages say of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisyjax.errors import UsageError
from noisyjax.tpu import GENERATIONS, known, parse_accelerator

GIB = 2**30


@pytest.mark.parametrize(
    ("text", "name", "chips", "devices", "hosts", "topology"),
    [
        ("v4-8", "v4-8", 4, 4, 1, "v4:2x2x1"),
        ("v4-32", "v4-32", 16, 16, 4, "v4:2x2x4"),
        ("v5litepod-1", "v5litepod-1", 1, 1, 1, "v5e:1x1"),
        ("v5litepod-8", "v5litepod-8", 8, 8, 1, "v5e:2x4"),
        ("v5litepod-16", "v5litepod-16", 16, 16, 4, "v5e:4x4"),
        ("v5e-16", "v5litepod-16", 16, 16, 4, "v5e:4x4"),
        ("tpu-v5litepod-256", "v5litepod-256", 256, 256, 64, "v5e:16x16"),
        ("v5p-8", "v5p-8", 4, 4, 1, "v5p:2x2x1"),
        ("v5p-32", "v5p-32", 16, 16, 4, "v5p:2x2x4"),
        ("v5p-64", "v5p-64", 32, 32, 8, "v5p:2x4x4"),
        ("V6E-8", "v6e-8", 8, 8, 1, "v6e:2x4"),
        ("v6e-32", "v6e-32", 32, 32, 8, "v6e:4x8"),
        ("tpu7x-8", "tpu7x-8", 4, 8, 1, "tpu7x:2x2x1"),
        ("v7x-16", "tpu7x-16", 8, 16, 2, "tpu7x:2x2x2"),
        ("v5e:4x4", "v5litepod-16", 16, 16, 4, "v5e:4x4"),
        ("v5p:2x2x2", "v5p-16", 8, 8, 2, "v5p:2x2x2"),
        ("tpu7x-2x2x1", "tpu7x-8", 4, 8, 1, "tpu7x:2x2x1"),
    ],
)
def test_worked_names(text, name, chips, devices, hosts, topology):
    found = parse_accelerator(text)
    assert (found.name, found.chips, found.devices, found.hosts) == (name, chips, devices, hosts)
    assert found.jax_topology == topology


@given(st.sampled_from(known()))
def test_every_name_means_itself_under_all_its_spellings(name):
    tpu = parse_accelerator(name)
    assert tpu.name == name
    assert parse_accelerator(tpu.jax_topology) == tpu
    assert parse_accelerator(f"tpu-{name}".replace("tpu-tpu", "tpu")) == tpu
    assert tpu.hosts * tpu.chips_per_host == tpu.chips
    assert (tpu.host.hosts, tpu.host.chips) == (1, tpu.chips_per_host)


def test_names_are_different():
    assert len(set(known())) == len(known()) == sum(len(g.topologies) for g in GENERATIONS.values())


@pytest.mark.parametrize(
    ("generation", "hbm", "tflops", "gb_s"),
    [("v4", 32, 275, 1228), ("v5e", 16, 197, 819), ("v5p", 95, 459, 2765), ("v6e", 32, 918, 1638)],
)
def test_rates_are_per_device(generation, hbm, tflops, gb_s):
    found = GENERATIONS[generation]
    assert (found.hbm_bytes, found.flops, found.hbm_bytes_s) == (hbm * GIB, tflops * 1e12, gb_s * 1e9)


def test_a_tpu7x_device_is_half_a_chip():
    found = GENERATIONS["tpu7x"]
    assert (found.hbm_bytes, found.flops) == (96 * GIB, 1153.5e12)


@pytest.mark.parametrize("text", ["", "v5e", "h100-8", "v9-8", "PROJECT", "v5e-", "v5e-x", "-16", "v5e-16-16"])
def test_what_is_no_tpu_gets_the_list(text):
    with pytest.raises(UsageError, match="is not a TPU; known: v4-8, ") as caught:
        parse_accelerator(text)
    assert all(name in str(caught.value) for name in known())


@pytest.mark.parametrize("text", ["v5e-17", "v5litepod-0", "v5e:3x3", "v5e:16"])
def test_sizes_that_do_not_exist_get_those_of_the_generation(text):
    with pytest.raises(UsageError) as caught:
        parse_accelerator(text)
    assert "v5litepod-16 (4x4)" in str(caught.value) or "known: v4-8" in str(caught.value)
    if text != "v5e:16":
        assert "v6e" not in str(caught.value)


def test_cores_are_not_taken_for_chips():
    with pytest.raises(UsageError, match=r"'v5p-4' does not exist; known: v5p-8 \(2x2x1\)"):
        parse_accelerator("v5p-4")
