"""Attention mass per label: inline against replay, and both against the weights that transformers returns.

Row i of `Completion.mass` belongs to the query that made generated token i, at position T - 1 + i of the sequence.
Legend: T prompt tokens, R response tokens, Q captured layers, A heads (1 when averaged), Z labels.
"""

import dataclasses

import numpy as np
import pytest

from noisyjax.engine import device, programs
from noisyjax.engine.device import replay
from noisyjax.models import MoeConfig
from noisyjax.records import LABEL_ID, LABELS, Completion, Request

GPT_OSS = {
    "family": "gpt_oss",
    "qk_norm": False,
    "qkv_bias": True,
    "o_bias": True,
    "sinks": True,
    "norm_scale_f32": True,
    "windows": (6, None),
    "moe": MoeConfig(n_experts=4, top_k=2, d_ff=48, norm_topk=True, bias=True, clamp=2.0),
}
GENERATED = LABEL_ID["generated"]


def replayed(engine, request: Request, done: Completion, labels=None, capture=None) -> np.ndarray:
    """Mass of the positions that made the completion, [R, Q, A, Z], by the second pass."""
    assert done.ids is not None
    labels = request.prompt.labels if labels is None else labels
    ids = np.concatenate([request.prompt.ids, done.ids])
    labels = np.concatenate([labels, np.full(len(done.ids), GENERATED, np.uint8)])
    mass = replay(engine.model, ids, labels, capture or engine.capture)
    return mass[len(request.prompt.ids) - 1 : -1, ..., : len(LABELS)]


@pytest.fixture(scope="module")
def requests(make_request):
    """Short and long prompts, and a pair whose first 192 tokens are shared (with labels that change inside)."""
    block = make_request("", 200, seed=5).prompt.ids
    return [
        make_request("one", 1, max_tokens=5),
        make_request("short", 20, seed=1, max_tokens=21),
        make_request("tile", 130, seed=2, max_tokens=9, temperature=0.8),
        make_request("long", 700, seed=3, max_tokens=18),
        make_request("like0", [*block, 50], max_tokens=17),
        make_request("like1", [*block, 60, 61, 62], max_tokens=19, temperature=1.0),
    ]


@pytest.fixture(scope="module", params=["mean", "all"])
def engine(request, make_engine):
    """Chunks of 8, so that completions cross them; sharing on. One of them guesses ahead."""
    guesses = 3 if request.param == "all" else 0
    return make_engine(min_prefix=64, guesses=guesses, capture={"attention": "all", "heads": request.param})


@pytest.fixture(scope="module")
def done(engine, requests, answers):
    return answers(engine, requests)


def test_inline_is_replay(engine, requests, done):
    for request in requests:
        got = done[request.id, 0].mass
        assert got.shape == (request.sampling.max_tokens, 2, 8 if engine.capture.per_head else 1, len(LABELS))
        np.testing.assert_allclose(got.sum(-1), 1.0, atol=1e-5)
        np.testing.assert_allclose(got, replayed(engine, request, done[request.id, 0]), atol=1e-4)


def test_a_query_is_inside_what_it_sees(requests, done):
    """The first query is the prompt's last token, so nothing generated is visible yet; the second sees one."""
    for request in requests:
        generated = done[request.id, 0].mass[..., GENERATED]
        if GENERATED not in request.prompt.labels:
            np.testing.assert_array_equal(generated[0], 0.0)
        assert np.all(generated[1:] > 0)
        absent = [z for z in range(len(LABELS)) if z != GENERATED and z not in request.prompt.labels]
        np.testing.assert_array_equal(done[request.id, 0].mass[..., absent], 0.0)


@pytest.mark.parametrize("engine", ["mean"], indirect=True)
def test_chosen_layers(make_engine, requests, done, engine, answers):
    second = answers(make_engine(stacked=True, capture={"attention": (1,)}), requests[1:2])["short", 0]
    np.testing.assert_allclose(second.mass, done["short", 0].mass[:, 1:], atol=1e-5)


@pytest.mark.parametrize("engine", ["all"], indirect=True)
def test_what_is_replayed_is_what_the_loop_captures(make_engine, engine, requests, done, answers, monkeypatch):
    """The later layer in the loop and the earlier one afterwards: the same completions, the same mass, in layer order.
    Pieces of 8: a completion takes several, each of which sees those before it."""
    monkeypatch.setattr(device, "PIECE", 8)
    capture = {"attention": (1,), "replay": "rest", "heads": engine.config.capture.heads}
    split = make_engine(min_prefix=64, guesses=engine.config.guesses, capture=capture)
    cut = dataclasses.replace(requests[1].sampling, stop=(done["short", 0].text[10:12],))
    stopped = dataclasses.replace(requests[1], id="stopped", sampling=cut)
    some = [r for r in requests if r.id != "long"]
    for (name, _), got in answers(split, [*some, stopped]).items():
        expected, n = done["short" if name == "stopped" else name, 0], len(got.ids)
        assert n < len(expected.ids) if name == "stopped" else n == len(expected.ids)
        np.testing.assert_array_equal(got.ids, expected.ids[:n])
        np.testing.assert_allclose(got.logprobs, expected.logprobs[:n], atol=1e-4)
        np.testing.assert_allclose(got.mass, expected.mass[:n], atol=1e-6)
    assert split.stats.replay_s > 0


@pytest.mark.parametrize("mesh", [{}, pytest.param({"data": 2, "tensor": 2}, marks=pytest.mark.slow)])
def test_capture_of_the_prompt(make_engine, requests, answers, mesh):
    """`prompt=True` gives every position, in captured and replayed layers; its last row is the query that made the
    first token. What is behind it is that of a pass over the whole text."""
    capture = {"attention": (1,), "replay": (0,), "prompt": True}
    engine = make_engine(min_prefix=64, capture=capture, mesh=mesh)
    both = programs.Capture(layers=(0, 1))
    few = [requests[1], dataclasses.replace(requests[2], n=3), requests[3]]
    for (name, _), got in answers(engine, few).items():
        request = next(r for r in requests if r.id == name)
        assert got.prompt_mass.shape == (len(request.prompt.ids), 2, 1, len(LABELS))
        np.testing.assert_allclose(got.prompt_mass[-1], got.mass[0], atol=1e-4)
        np.testing.assert_allclose(got.mass, replayed(engine, request, got, capture=both), atol=1e-6)
        np.testing.assert_allclose(got.prompt_mass.sum(-1), 1.0, atol=1e-5)
        first = np.zeros(len(LABELS))
        first[request.prompt.labels[0]] = 1.0  # the first token sees itself alone
        np.testing.assert_allclose(got.prompt_mass[0, 0, 0], first, atol=1e-6)


def test_a_prompt_without_labels_is_template(engine, make_request, answers):
    request = make_request("bare", 30, labels=[], max_tokens=10)
    got = answers(engine, [request])["bare", 0]
    template = np.full(30, LABEL_ID["template"], np.uint8)
    np.testing.assert_allclose(got.mass, replayed(engine, request, got, template), atol=1e-4)
    np.testing.assert_allclose(got.mass[..., LABEL_ID["template"]] + got.mass[..., GENERATED], 1.0, atol=1e-5)


@pytest.mark.parametrize("engine", ["mean"], indirect=True)
def test_capture_changes_no_token(make_engine, requests, done, answers, engine):
    plain = answers(make_engine(min_prefix=64), requests)
    for key, got in plain.items():
        assert got.mass is None
        np.testing.assert_array_equal(got.ids, done[key].ids)


def test_what_is_not_asked_for_is_absent(make_engine, requests, answers):
    bare = answers(make_engine(capture={"logprobs": False, "entropy": False}), requests[:1])["one", 0]
    absent = ("logprobs", "entropy", "top_ids", "top_logprobs", "mass", "prompt_mass")
    assert all(getattr(bare, name) is None for name in absent)
    assert len(bare.ids) == 5


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize(
    "changes", [{}, {"family": "qwen2", "qk_norm": False, "qkv_bias": True, "windows": (None, 6)}, GPT_OSS]
)
def test_mass_is_that_of_transformers(make_engine, make_model, requests, answers, cfg, tmp_path, changes):
    """Eager attention weights summed over each label's span, prompt and generated positions, every layer and head."""
    torch = pytest.importorskip("torch", reason="needs the `parity` extra")
    from transformers import AutoModelForCausalLM

    from noisyjax.models import save

    params = {}
    model = make_model(change=lambda p: params.update(p) or p, **changes)
    save(params, model.cfg, tmp_path / "hf")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", attn_implementation="eager", dtype=torch.float32)
    engine = make_engine(model, min_prefix=64, capture={"attention": "all", "heads": "all"})
    mean = programs.Capture(layers=(0, 1))
    for (name, _), got in answers(engine, requests).items():
        request = next(r for r in requests if r.id == name)
        ids = np.concatenate([request.prompt.ids, got.ids[:-1]])  # the last token is never a query
        labels = np.concatenate([request.prompt.labels, np.full(len(got.ids) - 1, GENERATED, np.uint8)])
        with torch.inference_mode():
            weights = theirs(torch.tensor(ids[None], dtype=torch.long), output_attentions=True).attentions
        hot = np.eye(len(LABELS))[labels]
        expected = np.stack([w[0].numpy() @ hot for w in weights], 0).transpose(2, 0, 1, 3)  # [T, Q, A, Z]
        expected[..., LABEL_ID["sink"]] = 1 - expected.sum(-1)  # transformers drops the sinks' share
        t = len(request.prompt.ids)
        np.testing.assert_allclose(got.mass, expected[t - 1 :], atol=1e-4)
        ours = replay(model, ids, labels, engine.capture)[..., : len(LABELS)]
        np.testing.assert_allclose(ours, expected, atol=1e-4)
        over_heads = replay(model, ids, labels, mean)[..., : len(LABELS)]
        np.testing.assert_allclose(over_heads[:, :, 0], expected.mean(2), atol=1e-4)
