"""The stores of keys and values: what a query reads from them, against one plain softmax; writes; windows.

Legend: B rows, T query length, S row capacity, X prefixes, P prefix capacity, N query heads, K kv heads, H head dim,
        C labels, Z labels of records.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from noisyjax.engine import cache, programs
from noisyjax.engine.cache import BLOCK, KV
from noisyjax.engine.device import replay
from noisyjax.models import attention
from noisyjax.records import LABEL_ID, LABELS

B, T, S, X, P, N, K, H, C = 4, 2, 3 * BLOCK, 2, 2 * BLOCK, 4, 2, 8, cache.N_LABELS


@functools.partial(jax.jit, static_argnames=("window", "whole"))
def attend(q, pos_bt, rows, prefixes, hot_rows, hot_prefixes, view, window, whole):
    q_bkrh = attention.split_heads(q, K)
    stored = cache.Stored(rows, prefixes, hot_rows, hot_prefixes)
    acc = cache.attend_stored(attention.start(q_bkrh, C), q_bkrh, pos_bt, stored, view, window, whole)
    out, mass = attention.finish(acc, jnp.float32)
    return attention.join_heads(out, T), attention.join_heads(mass, T)


def plain(q, pos_bt, rows, prefixes, labels, view, window):
    """Out [B, T, N, H] and mass [B, T, N, C], row by row and head by head, from the keys written out in a list."""
    out, mass = np.zeros((B, T, N, H)), np.zeros((B, T, N, C))
    for b in range(B):
        x, n = view.prefix_b[b], view.filled_b[b]
        base = view.prefix_length_x[x] if x >= 0 else 0
        k, v = (np.asarray(row)[b, :, :n] for row in rows)
        key_pos, key_label = base + np.arange(n), labels[0][b, :n]
        if base:
            k, v = (
                np.concatenate([np.asarray(p)[0, :, :base], r], 1) for p, r in zip(prefixes[x], (k, v), strict=True)
            )
            key_pos, key_label = np.arange(base + n), np.concatenate([labels[1][x, :base], key_label])
        for t, head in np.ndindex(T, N):
            see = key_pos > (pos_bt[b, t] - window if window else -1)
            if not see.any():
                continue
            score = np.asarray(q, np.float64)[b, t, head] @ k[head // (N // K)][see].T.astype(np.float64) / np.sqrt(H)
            weight = np.exp(score - score.max())
            weight /= weight.sum()
            out[b, t, head] = weight @ v[head // (N // K)][see]
            mass[b, t, head] = np.bincount(key_label[see], weight, C)
    return out, mass


@pytest.mark.parametrize("window", [None, 700])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("prefix_b", [[-1] * B, [0, 1, 0, -1]])
def test_attention_to_the_stores(prefix_b, whole, window):
    """Rows of different fill (none at all too), with one of two prefixes or none, in blocks or in one piece."""
    rng = np.random.default_rng(0)

    def store(rows: int, length: int) -> KV:
        return KV(*(jnp.asarray(rng.normal(size=(rows, K, length, H)), jnp.float32) for _ in "kv"))

    rows, prefixes = store(B, S), tuple(store(1, P) for _ in range(X))
    labels = rng.integers(0, C, (B, S)), rng.integers(0, C, (X, P))
    hot = [np.eye(C, dtype=np.float32)[x] for x in labels]
    used = np.asarray([x in prefix_b for x in range(X)])
    view = cache.idle_view(B, S, X, P)._replace(
        prefix_b=np.asarray(prefix_b, np.int32),
        filled_b=np.asarray([BLOCK + 1, 3, 0, 2 * BLOCK], np.int32),
        row_blocks=np.int32(2),
        prefix_length_x=np.where(used, [BLOCK - 4, BLOCK + 64], 0).astype(np.int32),
    )
    base_b = np.where(view.prefix_b >= 0, view.prefix_length_x[view.prefix_b], 0).astype(np.int32)
    view = view._replace(base_b=base_b)
    pos_bt = (view.base_b + view.filled_b)[:, None] + np.arange(T)
    q = jnp.asarray(rng.normal(size=(B, T, N, H)), jnp.float32) * 3
    got = attend(q, pos_bt, rows, prefixes, *hot, view, window=window, whole=whole)
    for ours, expected in zip(got, plain(q, pos_bt, rows, prefixes, labels, view, window), strict=True):
        np.testing.assert_allclose(ours, expected, atol=2e-5)


@pytest.mark.parametrize("stacked", [True, False])
def test_writes_go_where_they_should(cfg, stacked):
    def filled_with(rows: int, length: int, first: float):
        """Layer l, row b, token t holds first + 100 l + 10 b + t."""
        numbers = (
            first + 100 * np.arange(cfg.n_layers)[:, None, None] + 10 * np.arange(rows)[:, None] + np.arange(length)
        )
        whole = jnp.broadcast_to(
            numbers[:, :, None, :, None], (cfg.n_layers, rows, cfg.n_kv_heads, length, cfg.head_dim)
        )
        pairs = [KV(layer, -layer) for layer in whole.astype(jnp.float32)]
        return KV(jnp.stack([p.k for p in pairs]), jnp.stack([p.v for p in pairs])) if stacked else pairs

    def layer(store, i: int) -> KV:
        return KV(store.k[i], store.v[i]) if stacked else store[i]

    store = cache.allocate(cfg, 3, 16, jnp.float32, stacked)
    store = cache.write(store, filled_with(3, 4, 1000.0), jnp.asarray([0, 12, 5]))
    store = cache.copy_row(store, filled_with(2, 8, 5000.0), jnp.int32(1), jnp.int32(2))
    for i in range(cfg.n_layers):
        k, v = layer(store, i)
        np.testing.assert_array_equal(v, -k)
        expected = np.zeros((3, 16))
        expected[0, :4] = 1000 + 100 * i + np.arange(4)
        expected[1, 12:] = 1010 + 100 * i + np.arange(4)
        expected[2, 5:9] = 1020 + 100 * i + np.arange(4)
        expected[2, :8] = 5010 + 100 * i + np.arange(8)
        np.testing.assert_array_equal(k[:, 1, :, 3], expected)


def test_a_tile_longer_than_the_rows_is_cut(cfg):
    store = cache.allocate(cfg, 2, 16, jnp.float32, True)
    tile = jax.tree.map(lambda x: jnp.ones((*x.shape[:1], 1, cfg.n_kv_heads, 64, cfg.head_dim)), store)
    store = cache.copy_row(store, tile, jnp.int32(0), jnp.int32(1))
    np.testing.assert_array_equal(store.k[:, 0], 0)
    np.testing.assert_array_equal(store.k[:, 1], 1)


@pytest.mark.parametrize(
    ("tokens", "rows", "blocks"),
    [(1, 128, 1), (128, 128, 1), (129, 256, 1), (512, 512, 1), (513, 640, 2), (4096, 4096, 8), (4097, 4608, 9)],
)
def test_capacities(tokens, rows, blocks):
    assert cache.capacity(tokens) == rows
    assert cache.n_blocks(tokens) == blocks


# -- through the engine -----------------------------------------------------------------------------------------------


def uniform(params):
    """Queries of zero: every visible key weighs the same, so that the mass counts keys."""
    return {**params, "layers.attn.q_nhd": jnp.zeros_like(params["layers.attn.q_nhd"])}


@pytest.mark.parametrize("chunk", [3, 8])
def test_a_window_of_four_sees_four(make_engine, make_model, make_request, answers, chunk):
    """Itself and the three before, wherever they lie: a chunk, a row's cache, a shared prefix, a piece of a prompt.

    Seven labels take turns, so that four neighbours always differ: each has a quarter of the mass.
    """
    model = make_model(change=uniform, windows=(4, 4))
    engine = make_engine(model, chunk=chunk, min_prefix=64, capture={"attention": "all"})
    lengths = (
        1,
        2,
        3,
        5,
        65,
        66,
        67,
        70,
        600,
    )  # those of 65 to 70 share 64 tokens: one own token before the first query
    turns = np.asarray([z for z in range(len(LABELS)) if z != LABEL_ID["generated"]])[:7]
    requests = [
        make_request(f"w{t}", make_request("", 64).prompt.ids.tolist()[:t] + [40 + t % 50] * max(0, t - 64),
                     labels=turns[np.arange(t) % 7], max_tokens=8)
        for t in lengths
    ]  # fmt: skip
    done = answers(engine, requests)
    assert engine.stats.prefilled_tokens < sum(t - 1 for t in lengths) - 64
    for t, request in zip(lengths, requests, strict=True):
        got = done[request.id, 0]
        labels = np.concatenate([request.prompt.labels, np.full(8, LABEL_ID["generated"], np.uint8)])
        ids = np.concatenate([request.prompt.ids, got.ids])
        whole = replay(model, ids, labels, programs.Capture(layers=(0, 1)))[..., : len(LABELS)]
        expected = np.stack(
            [np.bincount(seen, minlength=len(LABELS)) / len(seen)
             for seen in (labels[max(0, p - 3) : p + 1] for p in range(t + 8))]
        )  # fmt: skip
        for layer in range(2):
            np.testing.assert_allclose(whole[:, layer, 0], expected, atol=1e-6)
            np.testing.assert_allclose(got.mass[:, layer, 0], expected[t - 1 : -1], atol=1e-6)


@pytest.mark.parametrize(("windows", "stacked"), [((None, 70), False), ((None, 70), True), ((9, 9), True)])
def test_windowed_models_against_the_full_forward_pass(
    make_engine, make_model, make_request, answers, oracle, windows, stacked
):
    engine = make_engine(make_model(stacked, windows=windows), min_prefix=64, chunk=5)
    block = make_request("", 128, seed=8).prompt.ids
    requests = [make_request(f"r{t}", t, seed=t, max_tokens=12) for t in (3, 64, 515)]
    requests += [make_request(f"b{i}", [*block, *[40 + i] * i], max_tokens=12, temperature=0.9) for i in (1, 2)]
    done = answers(engine, requests)
    for request in requests:
        oracle(engine).check(request, done[request.id, 0])


def test_caches_that_are_read_in_blocks(make_engine, make_model, make_request, answers, oracle, monkeypatch):
    """Long caches are read block by block while decoding: here as if 512 tokens were long."""
    monkeypatch.setattr(cache, "WHOLE", 512)
    engine = make_engine(min_prefix=64)
    block = make_request("", 600, seed=8).prompt.ids
    requests = [make_request(f"r{t}", t, seed=t, max_tokens=12) for t in (3, 510, 1100)]
    requests += [make_request(f"b{i}", [*block, *[40 + i] * i], max_tokens=12, temperature=0.9) for i in (1, 2, 520)]
    done = answers(engine, requests)
    for request in requests:
        oracle(engine).check(request, done[request.id, 0])
