"""What goes into the store comes out of it, bit for bit, whatever the texts hold."""

import math

import ml_dtypes  # noqa: F401  (registers bfloat16 with numpy)
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from noisyjax.records import Completion, Finish, Score, State
from noisyjax.store.encode import (
    decode_array,
    decode_completion,
    decode_score,
    encode_array,
    encode_completion,
    encode_score,
    to_line,
)


@given(
    hnp.arrays(
        st.sampled_from([np.float32, np.float16, np.int32, np.uint8, np.dtype(">f4"), np.bool_]),
        hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4),
    )
)
def test_arrays_survive(array):
    back = decode_array(encode_array(array))
    assert back.shape == array.shape
    assert back.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(back, array)


def test_array_layout_is_what_the_page_says():
    assert encode_array(np.array([1.0], np.float32)) == {"dtype": "<f4", "shape": [1], "data": "AACAPw=="}


@given(st.text(), st.text() | st.none())
def test_completions_survive_any_text(text, reasoning):
    completion = Completion("r", 3, text, Finish.STOP, reasoning=reasoning, prompt_tokens=5, cost=0.25)
    line = to_line({"sample": 3, **encode_completion(completion)})
    assert line.count(b"\n") == 1
    import json

    assert decode_completion(json.loads(line), "r") == completion


def test_completion_arrays():
    mass = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    completion = Completion("r", 0, "x", Finish.LENGTH, ids=np.array([7, 8], np.int32), mass=mass)
    record = {"sample": 0, **encode_completion(completion)}
    back = decode_completion(record)
    np.testing.assert_array_equal(back.mass, mass)
    np.testing.assert_array_equal(back.ids, [7, 8])
    assert back.logprobs is None
    assert decode_completion(record, arrays=False).mass is None


def test_lone_surrogate_is_stored():
    assert to_line({"a": "\ud800"}) == b'{"a":"\\ud800"}\n'


def test_nan_never_reaches_a_file():
    score = Score(State.SCORED, 1.0, values={"biased": math.nan})
    assert encode_score(score)["values"] == {"biased": None}
    with pytest.raises(ValueError):
        to_line({"x": math.nan})


def test_scores_survive():
    score = Score(State.NO_ANSWER, None, "x", {"em": 0.0, "f1": None}, "note")
    assert decode_score(encode_score(score)) == score
