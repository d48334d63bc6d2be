"""The local engine against one full forward pass, and everything that can end a row."""

import dataclasses
import itertools
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from noisyjax import models
from noisyjax.engine.config import LocalConfig, MeshConfig
from noisyjax.engine.local import LocalEngine
from noisyjax.errors import UsageError
from noisyjax.records import Finish

BORDERS = (1, 2, 63, 64, 65, 66, 128, 129, 130, 256, 257, 258, 511, 512, 513, 514, 1023, 1024, 1025, 1026)
SAMPLED = {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "min_p": 0.01}


@pytest.fixture(scope="module")
def engine(make_engine, make_request, answers):
    """Used once with as much as any test here needs, so that its caches grow (and programs compile) once."""
    engine = make_engine(min_prefix=64, prefixes=2)
    pairs = [make_request(f"{seed}{i}", 330, seed=seed, max_tokens=1) for seed in (1, 2) for i in range(2)]
    answers(engine, [make_request("long", 1100, max_tokens=1), *pairs])
    return engine


# -- against the full forward pass ----------------------------------------------------------------------------------


def test_prompts_at_the_borders_of_tiles(engine, make_request, answers, oracle):
    """Every tile, piece and block has a first and a last prompt length."""
    requests = [make_request(f"r{t}", t, seed=t, max_tokens=3, **(SAMPLED if t % 2 else {})) for t in BORDERS]
    done = answers(engine, requests)
    assert len(done) == len(requests)
    for request in requests:
        oracle(engine).check(request, done[request.id, 0])
        assert done[request.id, 0].completion_tokens == 3


def test_prompts_behind_a_shared_prefix(engine, make_request, answers, oracle):
    """Own parts at the same borders, behind one block of 320 tokens that is prefilled once."""
    block = make_request("", 320, seed=77).prompt.ids
    requests = []
    for t in (1, 2, 64, 65, 129, 257, 511, 512, 513):
        own = make_request("", t, seed=1000 + t).prompt.ids
        requests.append(make_request(f"r{t}", [*block, *own], max_tokens=3, **(SAMPLED if t % 2 else {})))
    before = engine.stats.prefilled_tokens
    done = answers(engine, requests)
    for request in requests:
        oracle(engine).check(request, done[request.id, 0])
    assert engine.stats.prefilled_tokens - before == 320 + sum(len(r.prompt.ids) - 321 for r in requests)


def test_completions_that_cross_chunks_and_blocks(engine, make_request, answers, oracle):
    """Prompts that end just before a block of 512 is full, and completions of five chunks."""
    requests = [make_request(f"r{t}", t, seed=t, max_tokens=37, **SAMPLED) for t in (5, 490, 500, 511)]
    done = answers(engine, requests)
    for request in requests:
        oracle(engine).check(request, done[request.id, 0])


def test_more_samples_than_slots_and_more_prefixes_than_places(engine, make_request, answers, oracle):
    requests = [make_request("many", 200, n=9, max_tokens=6, **SAMPLED)]
    for g, i in itertools.product(range(5), range(2)):
        block = make_request("", 128, seed=50 + g).prompt.ids
        requests.append(make_request(f"g{g}-{i}", [*block, 40 + i, 41], max_tokens=3 + g, **SAMPLED))
    done = answers(engine, requests)
    assert len(done) == 9 + 10
    for request in requests:
        for number in range(request.n):
            oracle(engine).check(request, done[request.id, number])
    assert len({tuple(done["many", i].ids) for i in range(9)}) == 9


def test_prompts_made_of_the_padding_token(engine, tokenizer, make_request, answers, oracle):
    """The padding token is also an end token; inside a prompt it is a token like any other."""
    eos = tokenizer.hf.pad_token_id
    assert eos == tokenizer.hf.eos_token_id
    requests = [make_request(f"p{n}", [eos] * n + [70, 71, eos]) for n in (0, 1, 5)]
    done = answers(engine, requests)
    for request in requests:
        oracle(engine).check(request, done[request.id, 0])
    assert len({tuple(done[r.id, 0].ids) for r in requests}) == 3


def test_top_log_probabilities(make_engine, make_request, answers, oracle):
    engine = make_engine(capture={"top": 5, "entropy": True})
    request = make_request("a", 20, max_tokens=10, temperature=0.5)
    done = answers(engine, [request])["a", 0]
    logp = oracle(engine).logp(request, done.ids)
    assert done.top_ids.shape == done.top_logprobs.shape == (10, 5)
    np.testing.assert_allclose(done.top_logprobs, np.sort(logp, -1)[:, ::-1][:, :5], atol=2e-4)
    np.testing.assert_allclose(np.take_along_axis(logp, done.top_ids, -1), done.top_logprobs, atol=2e-4)


# -- what ends a row ------------------------------------------------------------------------------------------------


def counting(params):
    """Rig the weights so that the model counts: after token t the likeliest is t + 1, by far."""
    rng = np.random.default_rng(0)
    code = jnp.asarray(rng.choice([-1.0, 1.0], params["embed.w_vd"].shape), jnp.float32)
    ones = {p: jnp.ones_like(w) for p, w in params.items() if ".scale_" in p}
    silent = {p: jnp.zeros_like(params[p]) for p in ("layers.attn.o_dnh", "layers.mlp.down_df")}
    return {**params, **ones, **silent, "embed.w_vd": code, "head.w_vd": jnp.roll(code, 1, axis=0)}


@pytest.fixture(scope="module")
def counter(make_engine, make_model):
    return make_engine(make_model(change=counting), chunk=4, capture={"top": 2, "attention": "all"})


@pytest.fixture
def count_from(counter, tokenizer, make_request, answers):
    """`count_from(last, ...)`: the completion of a prompt that ends in this id or ASCII character."""

    def run(last, prompt_length: int = 5, **how):
        last = tokenizer.encode_plain(last)[0] if isinstance(last, str) else last
        request = make_request(
            "c", [70] * (prompt_length - 1) + [last], **{"ignore_eos": False, "max_tokens": 20, **how}
        )
        return answers(counter, [request])["c", 0]

    return run


@pytest.mark.parametrize(
    ("kind", "last", "ids", "text"),
    [
        ("eos of the tokenizer", 253, [254, 255, 256], None),
        ("end of turn of the template", 256, [257, 258], ""),
        ("generation config", 258, [259], ""),
        ("an ordinary token in the generation config", 29, [30, 31, 32, 33], "?@A"),
    ],
)
def test_stop_ids(count_from, tokenizer, kind, last, ids, text):
    """Ids hold the stop token, the text does not."""
    done = count_from(last)
    assert done.finish is Finish.STOP
    assert done.ids.tolist() == ids
    assert done.text == (tokenizer.decode(ids[:-1]) if text is None else text)
    assert done.completion_tokens == len(done.ids) == len(done.logprobs) == len(done.mass)


def test_ignore_eos_goes_on(count_from):
    done = count_from(254, ignore_eos=True, max_tokens=5)
    assert done.ids.tolist() == [255, 256, 257, 258, 259]
    assert done.finish is Finish.LENGTH


def test_undecodable_rows_are_never_sampled(count_from, counter):
    """After 259 the model wants 260, by far, which stands for no token."""
    for how in ({}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.0}, {"temperature": 3.0, "top_k": 1}):
        done = count_from(259, ignore_eos=True, max_tokens=1, **how)
        assert done.ids[0] < 260
        assert done.logprobs[0] > np.log(1 / 260) - 40
        assert np.all(done.top_ids < 260)
    assert counter.valid_v.sum() == 260


@pytest.mark.parametrize(
    ("stop", "text", "kept"),
    [
        (("f",), "bcde", 5),
        (("ef",), "bcd", 5),  # the fourth token ends a chunk: the stop lies across two
        (("de", "cdef"), "bc", 4),  # the first that is complete
        (("zz",), None, 20),
        (("b",), "", 1),
    ],
)
def test_stop_strings(count_from, stop, text, kept):
    """Tokens past the stop go, with their captures; the token that completes it stays."""
    done = count_from("a", stop=stop)
    assert done.finish is (Finish.LENGTH if text is None else Finish.STOP)
    assert done.text == ("bcdefghijklmnopqrstu" if text is None else text)
    assert done.ids.tolist() == [*range(65, 65 + kept)]
    assert done.completion_tokens == kept
    assert {len(x) for x in (done.logprobs, done.entropy, done.top_ids, done.top_logprobs, done.mass)} == {kept}


def test_a_stop_that_is_complete_with_the_last_allowed_token_is_a_stop(count_from):
    assert count_from("a", stop=("de",), max_tokens=4).finish is Finish.STOP
    assert count_from(253, max_tokens=3).finish is Finish.STOP
    assert count_from(253, max_tokens=2).finish is Finish.LENGTH


@pytest.mark.parametrize("max_tokens", [1, 3, 4, 5, 8, 9])
def test_max_tokens_at_the_borders_of_chunks(count_from, max_tokens):
    done = count_from("a", max_tokens=max_tokens)
    assert len(done.ids) == max_tokens
    assert done.finish is Finish.LENGTH


def test_the_window_ends_a_completion(make_engine, make_model, make_request, answers):
    """Positions 0 to 31: a prompt of 20 leaves 12 tokens, one of 31 a single one, one of 32 nothing."""
    engine = make_engine(make_model(change=counting, max_positions=32))
    requests = [make_request(f"t{t}", [40] * t, max_tokens=50, n=2) for t in (20, 31, 32, 33)]
    done = answers(engine, requests)
    assert [len(done[f"t{t}", 0].ids) for t in (20, 31)] == [12, 1]
    assert done["t20", 0].finish is Finish.LENGTH
    for name, number in itertools.product(("t32", "t33"), range(2)):
        refused = done[name, number]
        assert refused.finish is Finish.OVER_LENGTH
        assert refused.text == ""
        assert refused.ids is None
        assert refused.prompt_tokens == int(name[1:])
    smaller = make_engine(make_model(change=counting, max_positions=32), context=20)
    assert answers(smaller, requests[:1])["t20", 0].finish is Finish.OVER_LENGTH


def test_a_prompt_flagged_over_length_is_refused(counter, make_request, answers):
    request = make_request("a", 5, n=2, first_sample=3)
    request = dataclasses.replace(request, prompt=dataclasses.replace(request.prompt, over_length=True))
    done = answers(counter, [request, make_request("b", 5)])
    assert {k: c.finish for k, c in done.items()} == {
        ("a", 3): Finish.OVER_LENGTH,
        ("a", 4): Finish.OVER_LENGTH,
        ("b", 0): Finish.LENGTH,
    }


# -- the caller's side ----------------------------------------------------------------------------------------------


def test_a_prompt_without_ids_is_an_error(counter, make_request):
    with pytest.raises(UsageError, match="no token ids"):
        list(counter.generate([make_request("a", [])]))


def test_nothing_to_do(counter, make_request):
    assert list(counter.generate([])) == []
    assert list(counter.generate([make_request("a", 4, n=0)])) == []


@pytest.mark.parametrize("max_tokens", [0, -1])
def test_no_tokens_asked_for(counter, make_request, answers, max_tokens):
    with pytest.raises(UsageError, match="max_tokens"):
        answers(counter, [make_request("a", 4, max_tokens=max_tokens)])


def test_answers_come_as_they_are_done(counter, make_request):
    """The short one is handed out before the long one is finished, and no token is made before it is asked for."""
    before = counter.stats.decode_steps
    stream = counter.generate([make_request("long", 5, max_tokens=40), make_request("short", 5, max_tokens=2)])
    assert counter.stats.decode_steps == before
    assert next(stream).request_id == "short"
    assert counter.stats.decode_steps - before <= 4
    assert next(stream).request_id == "long"


def test_an_abandoned_call_leaves_a_sound_engine(counter, make_request, answers, count_from):
    expected = count_from("a").ids
    stream = counter.generate([make_request(f"r{i}", 50 + i, max_tokens=30 + i) for i in range(9)])
    next(stream)
    stream.close()
    np.testing.assert_array_equal(count_from("a").ids, expected)


def test_two_calls_at_once_do_not_mix(counter, make_request):
    """Both would write into the same slots: the first to go on after the second began is told so."""
    first = counter.generate([make_request(f"a{i}", 5, max_tokens=3 + i) for i in range(9)])
    second = counter.generate([make_request(f"b{i}", 5, max_tokens=3 + i) for i in range(9)])
    next(first)
    next(second)
    with pytest.raises(RuntimeError, match="generate"):
        list(first)
    assert len(list(second)) == 8


def test_it_can_be_used_after_close(counter, count_from):
    counter.close()
    assert len(count_from("a", max_tokens=3).ids) == 3


def test_stats_count_what_was_done(make_engine, make_request, answers):
    engine = make_engine(min_prefix=0)
    answers(engine, [make_request("a", 10, n=2, max_tokens=5), make_request("b", 7, max_tokens=3)])
    stats = engine.stats
    assert (stats.prompt_tokens, stats.prefilled_tokens, stats.completion_tokens) == (17, 15, 13)
    assert stats.decode_steps == 5
    assert stats.tokens_per_s > 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"capture": {"attention": (0, 2)}}, "the model has 0 to 1"),
        ({"capture": {"replay": (-1,)}}, r"capture.replay names layers \[-1\]; the model has 0 to 1"),
        ({"capture": {"prompt": True}}, "capture.attention"),
        ({"mesh": {"data": 64}}, "64 devices"),
    ],
)
def test_impossible_configs(make_engine, fields, words):
    with pytest.raises(UsageError, match=words):
        make_engine(**fields)


@pytest.fixture(scope="module")
def model_folder(folder, cfg, make_model, tmp_path_factory):
    """The tiny model as a Hugging Face folder, tokenizer and generation config beside the weights."""
    params = {}
    make_model(change=lambda p: params.update(p) or p)
    out = models.save(params, cfg, tmp_path_factory.mktemp("saved") / "model")
    shutil.copytree(folder, out, dirs_exist_ok=True)
    return out


def test_from_a_folder_onto_a_mesh(model_folder, tokenizer, make_request, answers, oracle):
    engine = LocalEngine(LocalConfig(model=model_folder, slots=4, chunk=4, mesh=MeshConfig(data=2, tensor=2)))
    assert engine.name == "model"
    assert set(engine.stop_ids.tolist()) == {-1, *tokenizer.stop_ids}
    request = make_request("a", 20, max_tokens=10, **SAMPLED)
    oracle(engine).check(request, answers(engine, [request])["a", 0])
    assert engine.model.head.w_vd[...].sharding.shard_shape((288, 32)) == (144, 32)


def test_bfloat16_is_near(model_folder, make_request, answers, oracle):
    """Tokens may differ from float32; their probabilities are close, and attention still sums to one."""
    fields = {"model": model_folder, "slots": 4, "chunk": 4, "min_prefix": 64, "capture": {"attention": "all"}}
    half, full = (LocalEngine(LocalConfig(dtype=dtype, **fields)) for dtype in ("bfloat16", "float32"))
    requests = [make_request(f"r{t}", t, n=2, max_tokens=12) for t in (20, 140)]
    for (name, _), done in answers(half, requests).items():
        request = next(r for r in requests if r.id == name)
        exact = oracle(full).logp(request, done.ids)[np.arange(12), done.ids]
        difference = np.abs(done.logprobs - exact)
        assert 1e-5 < difference.max() < 0.5
        assert difference.mean() < 0.1
        np.testing.assert_allclose(done.mass.sum(-1), 1.0, atol=2e-3)


def test_new_weights_are_used_at_once_and_compile_nothing(make_engine, make_model, make_request, answers, oracle):
    """Other weights, then the first ones again: as an engine that was built with them, prefixes included."""
    first, other = (models.init_params(make_model().cfg, seed, stddev=0.3, norm_stddev=0.2) for seed in (5, 6))
    engine = make_engine(min_prefix=64)
    requests = [make_request(f"r{i}", 200 + i, seed=3, max_tokens=6, **SAMPLED) for i in range(3)]
    before = answers(engine, requests)
    programs = len(engine.stats.compiled)
    engine.load_params(other)
    for request in requests:
        done = answers(engine, [request])[request.id, 0]
        oracle(engine).check(request, done)
    changed = answers(engine, requests)
    assert any(changed[key].ids.tolist() != before[key].ids.tolist() for key in before)
    engine.load_params(first)
    again = answers(engine, requests)
    for key, done in before.items():
        np.testing.assert_array_equal(again[key].ids, done.ids)
        np.testing.assert_array_equal(again[key].logprobs, done.logprobs)
    assert len(engine.stats.compiled) == programs


def test_a_reserved_row_takes_later_longer_requests_without_compiling(make_engine, make_request, answers):
    engine = make_engine(row=700, min_prefix=0)
    answers(engine, [make_request("short", 300, max_tokens=4), make_request("tiny", 20, max_tokens=4)])
    programs = len(engine.stats.compiled)
    answers(engine, [make_request("long", 690, max_tokens=10)])
    assert len(engine.stats.compiled) == programs
