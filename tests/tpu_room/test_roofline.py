"""Operations and the roofline's formula, on numbers small enough to do by hand, and on the paper's step."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisyjax.models import ModelConfig, RopeConfig, param_specs
from noisyjax.models.decoder import Decoder, token_logprobs
from noisyjax.tpu import GENERATIONS, parse_accelerator
from noisyjax.tpu.planning import roofline, work
from noisyjax.tpu.planning.hlo import Collective
from noisyjax.tpu.planning.roofline import ATTENTION, Cut, Part
from noisyjax.tpu.planning.subject import architecture

TINY = ModelConfig(
    family="qwen3",
    vocab_size=64,
    d_model=16,
    n_layers=2,
    n_heads=4,
    n_kv_heads=2,
    head_dim=8,
    d_ff=32,
    rope=RopeConfig(),
    norm_eps=1e-6,
    tie_embeddings=True,
)
FULL = Cut(batch=16, fsdp=16, expert=1, tensor=1, micro=2)


def test_a_part_takes_as_long_as_its_slowest_resource() -> None:
    v5e = GENERATIONS["v5e"]
    assert Part("compute", flops=197e12, hbm=819e9 / 2, ici=200e9 / 4).seconds(v5e) == pytest.approx(1)
    assert Part("attention", attention=197e12).seconds(v5e) == pytest.approx(1 / ATTENTION)
    assert Part("memory", flops=1, hbm=819e9 * 3).seconds(v5e) == pytest.approx(3)
    assert Part("network", hbm=1, ici=200e9 * 2).seconds(v5e) == pytest.approx(2)


def test_mfu_is_what_the_mathematics_needs_over_what_the_parts_take() -> None:
    v5e = GENERATIONS["v5e"]
    parts = [Part("layers", flops=197e12), Part("optimizer", hbm=819e9)]
    assert roofline.mfu(4 * 197e12, 4, parts, v5e) == pytest.approx(0.5)


def test_collectives_of_a_compiled_program_replace_the_estimate() -> None:
    sent = [Collective("all-gather", 100, 2, (36,)), Collective("all-reduce", 100, 2, ())]
    parts = [Part("layers", ici=1e9), Part("attention", ici=1e9), Part("head", ici=1e9)]
    assert [p.ici for p in roofline.with_collectives(parts, sent, {36}, times=2)] == [2 * 36 * 50, 0, 2 * 100]


def test_devices_with_other_experts_see_each_others_rows_and_answer() -> None:
    moe, lengths = architecture("Qwen3-30B-A3B"), work.Lengths(1000, 0, 0)
    sent = [roofline.update_parts(moe, lengths, Cut(4, 1, e, 1), "none")[0].ici for e in (1, 2, 4)]
    rows = 2 * 3 * 48 * 250 * 2048 * 2  # there and back in three passes through 48 layers, in two bytes
    assert sent == [0, rows, 3 * rows]


@given(st.integers(1, 12), st.integers(0, 12), st.none() | st.integers(1, 14))
def test_pairs_are_those_that_a_mask_shows(length: int, start: int, window: int | None) -> None:
    start = min(start, length)
    shown = sum(k <= q and (window is None or k > q - window) for q in range(start, length) for k in range(length))
    assert work.seen(length, window, start) == shown


def test_shared_rows_hold_a_prompt_once() -> None:
    shared = work.shared_rows(TINY, [(4, [2, 3])])
    assert shared == work.Lengths(9, 5, 2 * (10 + (5 + 6) + (5 + 6 + 7)))
    alone = work.shared_rows(TINY, [(4, [2, 3])], share=False)
    assert alone == work.Lengths(13, 5, 2 * (21 + 28))


def test_sizes_are_the_parameters_that_multiply() -> None:
    specs = param_specs(TINY)
    matrices = sum(
        int(jnp.prod(jnp.array(s.shape))) for p, s in specs.items() if ".scale_" not in p and "embed" not in p
    )
    assert work.sizes(TINY) == work.Sizes(matrices, 0, 64 * 16, 0)
    moe = architecture("Qwen3-30B-A3B")
    size = work.sizes(moe)
    assert (size.every_expert, size.experts) == (48 * 128 * 3 * 2048 * 768, 48 * 8 * 3 * 2048 * 768)


def test_counted_operations_are_those_of_xla_where_nothing_loops() -> None:
    """XLA counts elementwise work too, so that it may be a little above; a layer is the difference of two and one."""

    def layer(cfg: ModelConfig) -> tuple[float, float]:
        params = {path: jax.ShapeDtypeStruct(spec.shape, jnp.float32) for path, spec in param_specs(cfg).items()}

        def dense(params: dict) -> jax.Array:
            x = jnp.zeros((8, 16, cfg.d_model))
            for i in range(cfg.n_layers):
                p = {path.split(".", 1)[1]: w[i] for path, w in params.items() if path.startswith("layers.")}
                q = jnp.einsum("btd,nhd->btnh", x, p["attn.q_nhd"]) * p["attn.k_khd"].sum() * p["attn.v_khd"].sum()
                x = x + jnp.einsum("btnh,dnh->btd", q, p["attn.o_dnh"])
                x = x + jax.nn.silu(x @ p["mlp.gate_fd"].T) * (x @ p["mlp.up_fd"].T) @ p["mlp.down_df"].T
            return x.sum()

        traced = jax.jit(jax.grad(dense)).trace(params)
        cost = traced.lower().compile().cost_analysis()
        return work.counted(traced.jaxpr), cost["flops"]

    (ours1, xla1), (ours2, xla2) = (layer(replace(TINY, n_layers=n, d_model=64, d_ff=256)) for n in (1, 2))
    assert 1.0 <= (xla2 - xla1) / (ours2 - ours1) < 1.1


def test_counted_operations_of_a_scanned_update_turn_as_often_as_its_layers() -> None:
    params = {path: jax.ShapeDtypeStruct(spec.shape, jnp.float32) for path, spec in param_specs(TINY).items()}
    ids = jax.ShapeDtypeStruct((2, 8), jnp.int32)

    def loss(params: dict, ids: jax.Array) -> jax.Array:
        return token_logprobs(Decoder(TINY, params), ids).sum()

    counted = work.counted(jax.jit(jax.grad(loss)).trace(params, ids).jaxpr)
    size = work.sizes(TINY)
    layers, head = 3 * 2 * size.dense * 16, 4 * 2 * size.head * 14  # the head makes its logits again
    rows = 2 * 16 * TINY.n_heads * TINY.head_dim * TINY.n_layers  # each query's gradient times its result
    assert counted == layers + head + rows


def test_counted_operations_of_a_decoder_turn_as_often_as_it_steps() -> None:
    """Only its own loop does: those within, over blocks or tiles, turn as the data says."""

    def steps(x_bd: jax.Array, w_dd: jax.Array) -> jax.Array:
        within = lambda x: jax.lax.while_loop(lambda y: y.sum() < 1, lambda y: y @ w_dd, x)  # noqa: E731
        return jax.lax.while_loop(lambda x: x.sum() < 9, lambda x: within(x @ w_dd) @ w_dd, x_bd @ w_dd)

    jaxpr = jax.jit(steps).trace(jnp.zeros((4, 8)), jnp.zeros((8, 8))).jaxpr
    product = 2 * 4 * 8 * 8
    assert work.counted(jaxpr) == product
    assert work.counted(jaxpr, 32) == (1 + 32 * 2) * product


def test_sharing_prompts_saves_what_the_paper_step_repeats() -> None:
    cfg = architecture("Qwen3-4B")
    for prompt, response, most in ((4096, 8192, 0.85), (12288, 1024, 0.45)):
        groups = [(prompt, [response] * 3)] * 32
        shared, alone = (work.model_flops(cfg, work.shared_rows(cfg, groups, share)) for share in (True, False))
        assert shared <= most * alone


def test_qwen3_4b_reaches_half_of_a_v5p_32() -> None:
    cfg, where = architecture("Qwen3-4B"), parse_accelerator("v5p-32")
    lengths = work.shared_rows(cfg, [(4096, [8192] * 3)] * 32)
    parts = roofline.update_parts(cfg, lengths, FULL, "full")
    reached = roofline.mfu(work.model_flops(cfg, lengths), where.devices, parts, where.generation)
    assert 0.50 <= reached < 0.75
    kept = roofline.update_parts(cfg, lengths, FULL, "none")
    assert roofline.mfu(work.model_flops(cfg, lengths), where.devices, kept, where.generation) > reached


def test_decoding_waits_for_memory() -> None:
    cfg, v5e = architecture("Qwen3-4B"), GENERATIONS["v5e"]
    (one,) = roofline.decode_parts(cfg, slots=16, steps=1, context=8192, cut=Cut(16, 16, 1, 1))
    weights, keys = 2 * 4.02e9, 8192 * 36 * 2 * 8 * 128 * 2
    assert one.times(v5e)["HBM"] == pytest.approx((weights + keys) / 819e9, rel=0.01)
    assert one.seconds(v5e) == one.times(v5e)["HBM"]
