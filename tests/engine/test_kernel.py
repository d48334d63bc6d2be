"""The TPU's attention kernels, interpreted, in the engine's programs: replay, pieces of long prompts, decoding.

Legend: T tokens, Q layers, A heads, Z labels.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from noisyjax.engine import cache, programs
from noisyjax.engine.device import replay
from noisyjax.models import MoeConfig
from noisyjax.records import LABELS

SINKS = {
    "family": "gpt_oss",
    "qk_norm": False,
    "qkv_bias": True,
    "o_bias": True,
    "sinks": True,
    "norm_scale_f32": True,
    "windows": (70, None),
    "moe": MoeConfig(n_experts=4, top_k=2, d_ff=48, norm_topk=True, bias=True, clamp=2.0),
}


def test_replay_by_kernel_is_replay(make_model):
    """Two pieces, windows in every other layer of a scan, sinks; each head on its own."""
    model = make_model(stacked=True, **SINKS)
    ids = np.random.default_rng(0).integers(34, 256, 530).astype(np.int32)
    labels = (np.arange(530) // 7 % (len(LABELS) - 2)).astype(np.uint8)
    capture = programs.Capture(layers=(0, 1), per_head=True)
    got, expected = (replay(model, ids, labels, capture, kernel=kernel) for kernel in (True, False))
    assert got.shape == (530, 2, 8, 16)
    np.testing.assert_allclose(got.sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(got, expected, atol=1e-4)


def test_completions_replayed_by_kernel(make_model, make_engine, make_request, answers, monkeypatch):
    """Behind a shared prefix that the window leaves, behind a long prompt in the slot, behind next to nothing: what the
    kernel reads there and what a piece sees of itself are together what the loop captures, here of the same layers."""

    def prefill(graph, capture, *args, run=programs.prefill):
        return run(graph, capture, *args, kernel=capture is not None)

    monkeypatch.setattr(programs, "prefill", prefill)
    model = make_model(stacked=True, **SINKS)
    engine = make_engine(model, min_prefix=64, capture={"attention": "all", "heads": "all"})
    engine.replayed = engine.capture
    block = list(np.random.default_rng(1).integers(34, 256, 130))
    requests = [
        make_request("short", 2, max_tokens=9),
        make_request("long", 600, n=2, temperature=1.0),
        make_request("one", [*block, 40, 41], max_tokens=6),
        make_request("other", [*block, *[50] * 62], max_tokens=20),
    ]
    for done in answers(engine, requests).values():
        assert done.mass.shape == (len(done.ids), 4, 8, len(LABELS))  # each layer twice
        np.testing.assert_allclose(done.mass[:, 1::2], done.mass[:, ::2], atol=1e-5)
    assert [name[:6] for name, _ in engine.stats.compiled].count("replay") == 1  # with a prefix and without


def test_a_piece_behind_a_shared_prefix_and_its_own_beginning(make_model):
    model = make_model(stacked=True, windows=(150, None), qk_norm=True)
    graph, state = nnx.split(model)
    draw = np.random.default_rng(0)

    def store(length):
        empty = cache.allocate(model.cfg, 1, length, jnp.float32, True)
        return jax.tree.map(lambda x: jnp.asarray(draw.normal(size=x.shape), jnp.float32), empty)

    scratch, prefix = store(1024), store(512)
    ids, labels = draw.integers(34, 256, (1, 128)).astype(np.int32), np.zeros((1, 128), np.uint8)
    view = cache.idle_view(1, 1024, 1, 512)._replace(
        prefix_b=np.zeros(1, np.int32),
        base_b=np.full(1, 200, np.int32),
        prefix_length_x=np.full(1, 200, np.int32),
        filled_b=np.full(1, 130, np.int32),
        row_blocks=np.int32(1),
    )
    run = jax.jit(functools.partial(programs.prefill, graph, None), static_argnames="kernel")
    got, expected = (run(state, scratch, (prefix,), ids, labels, view, kernel=kernel)[0] for kernel in (True, False))
    for new, old, before in zip(got, expected, scratch, strict=True):
        np.testing.assert_allclose(new, old, atol=1e-4)
        np.testing.assert_array_equal(new[..., 258:, :], before[..., 258:, :])
        assert np.abs(new - before)[1, ..., 130:258, :].max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize(("guesses", "changes"), [(0, {"windows": (24, None)}), (3, SINKS)], ids=["windows", "sinks"])
def test_an_engine_with_kernels_says_the_same(
    guesses, changes, make_model, make_engine, make_request, answers, oracle, monkeypatch
):
    """Rows of several lengths, one in pieces, two that share a prefix: more of them than slots."""
    shared = list(np.random.default_rng(1).integers(34, 256, 560))
    requests = [
        make_request("short", 9),
        make_request("long", 700, temperature=1.0),
        make_request("one", [*shared, 40, 41], n=2, temperature=1.0),
        make_request("other", [*shared, 50], max_tokens=20),
    ]
    model = make_model(stacked=True, **changes)
    expected = answers(make_engine(model, slots=2, guesses=guesses), requests)
    decoded = []

    def rows_by_kernel(*args, run=programs._rows_by_kernel):
        decoded.append(args)
        return run(*args)

    monkeypatch.setattr(programs, "platform", lambda layout: "tpu")
    monkeypatch.setattr(programs, "_rows_by_kernel", rows_by_kernel)
    engine = make_engine(model, slots=2, guesses=guesses)
    got = answers(engine, requests)
    assert decoded
    judge = oracle(engine)
    for request in requests:
        for sample in range(request.n):
            done = got[request.id, sample]
            if not judge.check(request, done):
                assert list(done.ids) == list(expected[request.id, sample].ids)
