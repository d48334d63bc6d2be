"""Mixtures of experts, windows and sinks: prefill and decoding give what one full forward pass gives.

Legend: R response tokens, Q captured layers, A heads, Z labels, T whole sequence.
"""

import jax
import numpy as np
import pytest

from noisyjax.engine.config import MeshConfig
from noisyjax.engine.device import replay
from noisyjax.engine.programs import Capture
from noisyjax.models import MoeConfig, RopeConfig
from noisyjax.models.decoder import token_logprobs
from noisyjax.records import LABEL_ID, LABELS

FAMILIES = {
    "qwen3_moe": {
        "family": "qwen3_moe",
        "moe": MoeConfig(n_experts=8, top_k=3, d_ff=16, norm_topk=True, dense_layers=(0,)),
    },
    "gpt_oss": {
        "family": "gpt_oss",
        "qk_norm": False,
        "qkv_bias": True,
        "o_bias": True,
        "sinks": True,
        "norm_scale_f32": True,
        "windows": (40, None),
        "rope": RopeConfig(150_000.0, "yarn", 32.0, original_max_positions=256, truncate=False),
        "moe": MoeConfig(n_experts=6, top_k=2, d_ff=48, norm_topk=True, bias=True, clamp=2.0),
    },
}
SINK = LABEL_ID["sink"]


@pytest.fixture(
    scope="module",
    params=[
        "gpt_oss guessing",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("gpt_oss", "qwen3_moe", "qwen3_moe stacked", "gpt_oss stacked")
        ),
    ],
)
def engine(request, make_engine, make_model):
    family, *how = request.param.split()
    model = make_model(stacked="stacked" in how, **FAMILIES[family])
    guesses = 2 if "guessing" in how else 0
    return make_engine(model, min_prefix=64, guesses=guesses, capture={"attention": "all", "heads": "all"})


@pytest.fixture(scope="module")
def requests(make_request):
    """Short and long against the window, and a pair that shares a prefix longer than it."""
    block = make_request("", 200, seed=5).prompt.ids
    return [
        make_request("one", 1, max_tokens=5),
        make_request("short", 20, seed=1, max_tokens=40),
        make_request("tile", 130, seed=2, n=2, max_tokens=9, temperature=0.8),
        make_request("long", 700, seed=3, max_tokens=18),
        make_request("like0", [*block, 50], max_tokens=17),
        make_request("like1", [*block, 60, 61, 62], max_tokens=19, temperature=1.0),
    ]


@pytest.fixture(scope="module")
def done(engine, requests, answers):
    return answers(engine, requests)


def test_tokens_are_those_of_a_full_forward_pass(engine, requests, done, oracle):
    judge = oracle(engine)
    assert sum(judge.check(r, done[r.id, i]) for r in requests for i in range(r.n)) <= 2


def test_attention_mass_sums_to_one_with_the_sinks(engine, requests, done):
    for request in requests:
        got = done[request.id, 0]
        assert got.mass.shape == (len(got.ids), engine.model.cfg.n_layers, 8, len(LABELS))
        np.testing.assert_allclose(got.mass.sum(-1), 1.0, atol=1e-5)
        labels = np.concatenate([request.prompt.labels, np.full(len(got.ids), LABEL_ID["generated"], np.uint8)])
        ids = np.concatenate([request.prompt.ids, got.ids])
        again = replay(engine.model, ids, labels, engine.capture)[..., : len(LABELS)]
        np.testing.assert_allclose(got.mass, again[len(request.prompt.ids) - 1 : -1], atol=1e-4)
        if engine.model.cfg.sinks:
            assert np.all(got.mass[..., SINK] > 0)
        else:
            assert np.all(got.mass[..., SINK] == 0)


def test_a_sink_takes_its_own_share(make_model):
    """Where all logits are 0 the sink counts as one more key; a strong one takes everything, a weak one nothing."""
    ids, labels = np.asarray([40, 41, 42]), np.zeros(3, np.uint8)

    def share(level: float) -> np.ndarray:
        def rig(params):
            zero = {p: 0 * params[p] for p in ("layers.attn.q_nhd", "layers.attn.q_bias_nh")}  # all logits are 0
            return {**params, **zero, "layers.attn.sink_n": params["layers.attn.sink_n"] * 0 + level}

        model = make_model(change=rig, **FAMILIES["gpt_oss"])
        return replay(model, ids, labels, Capture(layers=(0, 1), per_head=True))[..., SINK]

    even = np.broadcast_to(np.float32([1 / 2, 1 / 3, 1 / 4])[:, None, None], (3, 2, 8))
    np.testing.assert_allclose(share(0.0), even, atol=1e-6)
    np.testing.assert_allclose(share(20.0), 1.0, atol=1e-6)
    np.testing.assert_allclose(share(-50.0), 0.0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
def test_trainer_log_probabilities(make_engine, make_model, make_request, answers, family):
    """One full forward pass over prompt and completion, as a trainer does it, gives the sampler's numbers."""
    engine = make_engine(make_model(**FAMILIES[family]))
    requests = [make_request(f"t{t}", t, seed=t, max_tokens=30, temperature=1.0) for t in (1, 90)]
    for (name, _), done in answers(engine, requests).items():
        ids = next(r for r in requests if r.id == name).prompt.ids
        trainer = token_logprobs(engine.model, np.concatenate([ids, done.ids])[None], engine.valid_v)
        np.testing.assert_allclose(trainer[0, len(ids) - 1 :], done.logprobs, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "mesh"),
    [("qwen3_moe", {"fsdp": 2, "expert": 2, "tensor": 2}), ("gpt_oss", {"expert": 2, "tensor": 2})],
)
def test_a_mesh_changes_no_token(make_engine, make_model, make_request, answers, family, mesh):
    """Cut over heads, experts and expert widths, and over slots: six of them, on all axes but tensor."""
    requests = [make_request(f"m{t}", t, seed=t, max_tokens=12, temperature=0.8) for t in (3, 70, 150)]
    cut = make_model(stacked=True, mesh=MeshConfig(**mesh), **FAMILIES[family])
    assert cut.embed.w_vd[...].sharding.device_set == set(jax.devices()[: MeshConfig(**mesh).devices])
    one = answers(make_engine(make_model(stacked=True, **FAMILIES[family])), requests)
    for key, got in answers(make_engine(cut), requests).items():
        np.testing.assert_array_equal(got.ids, one[key].ids)
        np.testing.assert_allclose(got.logprobs, one[key].logprobs, atol=1e-4)
