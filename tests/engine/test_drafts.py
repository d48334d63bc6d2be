"""Guesses from a row's own text: worked vectors, the same by a slow reading of the rule, and what they save."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisyjax.engine import drafts

GUESS = jax.jit(drafts.guess, static_argnums=2)
WIDTH = 24


def guess(*texts: list[int], count: int) -> list[list[int]]:
    """Rows padded with what a wrong reading would like best: more of their last token."""
    rows = np.stack([np.pad(np.int32(t), (0, WIDTH - len(t)), constant_values=t[-1]) for t in texts])
    return GUESS(rows, np.int32([len(t) for t in texts]), count).tolist()


def by_the_rule(text: list[int], count: int) -> list[int]:
    """Longest match of the end with an earlier place (three tokens at most), then the latest; text repeats itself."""
    best, at = -1, len(text) - 1
    for place in range(len(text) - 1):
        same = 0
        while same < drafts.LONGEST and same <= place and text[place - same] == text[len(text) - 1 - same]:
            same += 1
        if same >= best:
            best, at = same, place
    out = list(text)
    for _ in range(count):
        out.append(out[at + 1 + len(out) - len(text)])
    return out[len(text) :]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ([1, 2, 3, 4, 1, 2], [3, 4, 1]),
        ([7, 2, 5, 1, 2, 6, 9, 1, 2], [6, 9, 1]),  # two tokens match at 1 2 6, one at 7 2 5
        ([1, 2, 5, 1, 2, 6, 1, 2], [6, 1, 2]),  # both match alike: the later one
        ([4, 5, 4, 5], [4, 5, 4]),  # the text ends inside the guess
        ([8, 8], [8, 8, 8]),
        ([5], [5, 5, 5]),
    ],
)
def test_by_hand(text, expected):
    assert guess(text, count=3) == [expected]
    if len(text) > 1:
        assert by_the_rule(text, 3) == expected


@given(st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=WIDTH), min_size=3, max_size=3))
def test_is_the_rule(texts):
    assert guess(*texts, count=5) == [by_the_rule(text, 5) for text in texts]


def test_what_stands_of_a_step():
    fed = np.int32([[9, 1, 2, 3], [9, 1, 2, 3], [9, 1, 2, 3], [9, 1, 2, 3]])
    drawn = np.int32([[1, 2, 3, 4], [1, 2, 0, 4], [0, 2, 3, 4], [1, 0, 3, 4]])
    assert drafts.agreed(fed, drawn).tolist() == [4, 3, 1, 2]
    assert drafts.agreed(fed[:, :1], drawn[:, :1]).tolist() == [1, 1, 1, 1]


def pairs(params):
    """Rig the weights so that the model says two tokens in turns: after 2n the likeliest is 2n + 1, after it 2n."""
    code = jnp.asarray(np.random.default_rng(0).choice([-1.0, 1.0], params["embed.w_vd"].shape), jnp.float32)
    ones = {p: jnp.ones_like(w) for p, w in params.items() if ".scale_" in p}
    silent = {p: jnp.zeros_like(params[p]) for p in ("layers.attn.o_dnh", "layers.mlp.down_df")}
    return {**params, **ones, **silent, "embed.w_vd": code, "head.w_vd": code[jnp.arange(len(code)) ^ 1]}


def test_what_repeats_takes_fewer_steps(make_engine, make_model, make_request, answers):
    """A quarter of the steps and two to find the circle, in chunks of 8; a guess never adds a step."""
    requests = [make_request(f"r{i}", 30, seed=i, max_tokens=64) for i in range(2)]
    for model, most in ((make_model(change=pairs), 64 // 4 + 2), (make_model(), 64)):
        plain, guessing = make_engine(model, slots=2, guesses=0), make_engine(model, slots=2, guesses=3)
        want, got = answers(plain, requests), answers(guessing, requests)
        assert {k: list(done.ids) for k, done in got.items()} == {k: list(done.ids) for k, done in want.items()}
        assert plain.stats.decode_steps == 64
        assert guessing.stats.decode_steps <= most
        assert guessing.stats.completion_tokens == 128


def test_stop_ids_and_stop_strings_inside_a_step(make_engine, make_request, answers):
    """A row that stops in the middle of what agrees ends there, with or without guesses."""
    requests = [make_request("plain", 30, seed=0, max_tokens=60, ignore_eos=False)]
    whole = answers(make_engine(slots=2, guesses=0), [make_request("whole", 30, seed=0, max_tokens=60)])["whole", 0]
    piece = whole.text[20:23]
    requests.append(make_request("string", 30, seed=0, max_tokens=60, stop=(piece,)))
    for temperature in (0.0, 1.0):
        hot = [make_request(f"hot{i}", 20, seed=i, max_tokens=80, temperature=temperature, ignore_eos=False)
               for i in range(3)]  # fmt: skip
        want = answers(make_engine(slots=2, guesses=0), [*requests, *hot])
        got = answers(make_engine(slots=2, guesses=5, chunk=7), [*requests, *hot])
        assert {k: (list(c.ids), c.text, c.finish) for k, c in got.items()} == {
            k: (list(c.ids), c.text, c.finish) for k, c in want.items()
        }
    assert want["string", 0].text == whole.text[: whole.text.index(piece)]
