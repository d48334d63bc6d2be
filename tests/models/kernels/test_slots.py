"""Codes, and the blocks that they let a kernel skip, against who sees whom.

Legend: B rows, T tokens of a row, I and J blocks of queries and of keys.
"""

import numpy as np
import pytest

from noisyjax.models.kernels import slots

T = 512
PROMPT, FIRST, SECOND = (20, 128), (128, 300), (384, 500)
"""A prompt right before index 128, and two responses, each in slots of 128 tokens."""


def row() -> tuple[np.ndarray, np.ndarray]:
    """(codes, groups) of a row with that group."""
    code_t, group_t = np.arange(T, dtype=np.int32), np.zeros(T, np.int32)
    for (begin, stop), end in ((PROMPT, 0), (FIRST, 128), (SECOND, 128)):
        code_t[begin:stop] = slots.encode(np.arange(begin, stop), begin // 128 * 128, end, T)
        group_t[begin:stop] = 1
    return code_t, group_t


@pytest.mark.parametrize("length", [128, 4096, 32768, 33280, 65536, 131072])
def test_a_code_holds_any_three_numbers_of_its_row(length):
    size = slots.grain(length)
    index = np.asarray([0, 1, length // 2 + 1, length - 1], np.int32)
    for start in (0, length // size // 2 * size, length - size):
        for end in (0, min(size, length - size), length - size):
            code = slots.encode(index, start, end, length)
            assert code.dtype == np.int32
            got = slots.decode(code, length)
            np.testing.assert_array_equal(got[0], index)
            assert (got[1] == start).all()
            assert (got[2] == end).all()


def test_what_a_response_sees():
    code_t, group_t = row()
    key = np.arange(T)

    def seen(query, window=None):
        return np.flatnonzero(slots.visible(code_t[query], key, T, window) & (group_t == 1)).tolist()

    assert seen(22) == [20, 21, 22]
    assert seen(130) == [*range(20, 131)]
    assert seen(386) == [*range(20, 128), 384, 385, 386]  # nothing of its sibling
    assert seen(386, window=5) == [126, 127, 384, 385, 386]
    assert seen(392, window=5) == [*range(388, 393)]
    assert seen(30, window=1) == [30]


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        # In blocks of 128 tokens: the first response leaves out nothing, the second its sibling's two blocks.
        (None, [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 0, 1, 0], [0, 0, 0, 0, 1]]),
        # Three back reach the prompt only from the first tokens of a response.
        (3, [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 1, 1, 0, 0], [1, 0, 0, 1, 0], [0, 0, 0, 0, 1]]),
    ],
)
def test_blocks_to_visit(window, expected):
    length = 640  # no multiple of 256, and its last block is padding
    code_t, group_t = (np.pad(x, (0, 128)) for x in row())
    code_t[:] = np.arange(length)
    for (begin, stop), end in ((PROMPT, 0), (FIRST, 128), (SECOND, 128)):
        code_t[begin:stop] = slots.encode(np.arange(begin, stop), begin // 128 * 128, end, length)
    np.testing.assert_array_equal(slots.partners(code_t[None], group_t[None], window)[0], np.asarray(expected, bool))


def test_lengths():
    assert [slots.align(n) for n in (1, 128, 129, 512, 513, 8192)] == [128, 128, 256, 512, 1024, 8192]
    assert [slots.block(n) for n in (1024, 768, 640)] == [512, 256, 128]
    with pytest.raises(ValueError, match="a row of 100 tokens is no multiple of 128"):
        slots.block(100)
