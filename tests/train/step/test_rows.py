"""The layout of training rows by hand, and what packing may and may not do.

Legend: B rows, T tokens, P targets.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noisyjax.errors import UsageError
from noisyjax.models.kernels import slots
from noisyjax.train.step.rows import Group, Response, micro_batches


def test_a_group_and_a_supervised_example_in_one_row():
    groups = [
        Group("g", [5, 6], (Response([7, 8], 0.5, advantage=1.0), Response([9], 0.25, advantage=-1.0))),
        # A prompt, an answer of two tokens, a user's turn of one, an answer of one.
        Group("s", [1], (Response([2, 3, 4, 5], [1, 1, 0, 1], advantage=0.0),)),
    ]
    (batch,) = micro_batches(groups, row_tokens=16, batch_tokens=16)
    rows = batch.rows
    expected = {
        "ids_bt": [5, 6, 7, 8, 9, 1, 2, 3, 4, 5],
        "pos_bt": [0, 1, 2, 3, 2, 0, 1, 2, 3, 4],
        "segment_bt": [1, 1, 2, 2, 3, 4, 5, 5, 5, 5],
        "parent_bt": [1, 1, 1, 1, 1, 4, 4, 4, 4, 4],
        "source_bp": [1, 2, 1, 5, 6, 8],
        "target_bp": [7, 8, 9, 2, 3, 5],
        "sequence_bp": [0, 0, 1, 2, 2, 2],
        "weight_bp": [0.5, 0.5, 0.25, 1, 1, 1],
        "advantage_bp": [1, 1, -1, 0, 0, 0],
    }
    for name, values in expected.items():
        (got,) = getattr(rows, name)
        assert got[: len(values)].tolist() == values, name
        assert not got[len(values) :].any(), name
    assert rows.old_bp is None
    assert batch.origin == ((("g", 0), ("g", 1), ("s", 0)),)
    per = batch.per_response(rows.target_bp)
    assert {key: list(value) for key, value in per.items()} == {("g", 0): [7, 8], ("g", 1): [9], ("s", 0): [2, 3, 5]}


def test_a_long_group_is_divided_and_its_prompt_repeated():
    group = Group("g", [1] * 4, tuple(Response([i] * 5, 1.0) for i in range(5)))
    batches = micro_batches([group], row_tokens=16, batch_tokens=48)
    (batch,) = batches
    assert batch.rows.ids_bt.shape == (3, 16)
    assert batch.origin == ((("g", 0), ("g", 1)), (("g", 2), ("g", 3)), (("g", 4),))
    assert (batch.rows.pos_bt[1, 4:14] == [4, 5, 6, 7, 8] * 2).all()


def test_a_group_in_slots():
    """Prompts end where their slots do, responses begin where theirs do; a target's source is the token before it."""
    group = Group("g", [5] * 130, (Response([7, 8], [0.5, 1.0]), Response([9] * 129, 0.25)))
    (batch,) = micro_batches([group], row_tokens=640, batch_tokens=1024, slotted=True)
    rows = batch.rows
    assert rows.ids_bt.shape == (1, 1024)  # whole blocks
    assert np.flatnonzero(rows.segment_bt[0] == 1).tolist() == [*range(126, 256)]
    assert np.flatnonzero(rows.segment_bt[0] == 2).tolist() == [256, 257]
    assert np.flatnonzero(rows.segment_bt[0] == 3).tolist() == [*range(384, 513)]
    assert rows.source_bp[0, :4].tolist() == [255, 256, 255, 384]
    assert rows.pos_bt[0, [126, 255, 256, 257, 384]].tolist() == [0, 129, 130, 131, 130]
    assert [int(x[384]) for x in slots.decode(rows.code_bt[0], 1024)] == [384, 384, 256]
    assert rows.reach == 2


def test_what_fits_without_slots_fits_with_them():
    """A row of 259 tokens fits into 300, but takes 512 in slots: its row is longer, the others are not."""
    groups = [Group("long", [5] * 130, (Response([9] * 129, 1.0),)), Group("short", [5], (Response([6], 1.0),))]
    batches = micro_batches(groups, row_tokens=300, batch_tokens=300, slotted=True)
    assert [batch.rows.ids_bt.shape for batch in batches] == [(1, 512), (1, 256)]


def test_responses_without_targets_take_no_part():
    group = Group("g", [1, 2], (Response([], 1.0), Response([3, 3], 0.0), Response([4], 1.0)))
    (batch,) = micro_batches([group], row_tokens=8, batch_tokens=8)
    assert batch.origin == ((("g", 2),),)
    assert batch.rows.ids_bt[0].tolist() == [1, 2, 4, 0, 0, 0, 0, 0]
    assert micro_batches([Group("g", [1], (Response([2], 0.0),))], row_tokens=8, batch_tokens=8) == []


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (Group("q7", [], (Response([1], 1.0),)), "group 'q7' has an empty prompt"),
        (Group("q7", [1] * 6, (Response([1], 1.0), Response([1] * 3, 1.0))), "prompt of 6 tokens and response 1 of 3"),
    ],
)
def test_what_cannot_be_laid_out_is_named(group, message):
    with pytest.raises(UsageError, match=message):
        micro_batches([group], row_tokens=8, batch_tokens=8)


def test_an_optional_array_belongs_to_all_or_none():
    group = Group("g", [1], (Response([2], 1.0, old=[-1.0]), Response([3], 1.0)))
    with pytest.raises(ValueError, match="'g', response 1: old is None"):
        micro_batches([group], row_tokens=8, batch_tokens=8)


def assert_kernel_sees(rows, window):
    """What a code lets a query see of its group is what segments say, and lies in a block that is visited."""
    (b, t), index = rows.ids_bt.shape, np.arange(rows.ids_bt.shape[1])
    size = slots.block(t)
    for width in (None, window):
        partners = slots.partners(rows.code_bt, rows.parent_bt, width)
        assert partners.sum(-1).max() <= rows.reach or width
        for i in range(b):
            segment, parent, pos = rows.segment_bt[i], rows.parent_bt[i], rows.pos_bt[i]
            see = (index <= index[:, None]) & (segment[:, None] > 0)
            see &= (segment == segment[:, None]) | (segment == parent[:, None])
            see &= True if width is None else pos > pos[:, None] - width
            got = slots.visible(rows.code_bt[i][:, None], index, t, width) & (parent == parent[:, None])
            np.testing.assert_array_equal(got & (segment[:, None] > 0), see)
            seen = see.reshape(t // size, size, t // size, size).any((1, 3))
            assert not (seen & ~partners[i]).any()


lengths = st.lists(st.tuples(st.integers(1, 20), st.lists(st.integers(0, 12), max_size=4)), max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    lengths,
    st.fixed_dictionaries(
        {
            "row_tokens": st.integers(32, 64),
            "batch_tokens": st.integers(1, 300),
            "rows_multiple": st.sampled_from([1, 2, 4]),
            "pack": st.booleans(),
            "share": st.booleans(),
            "slotted": st.booleans(),
        }
    ),
    st.randoms(),
)
def test_every_token_is_laid_out_once_in_few_shapes(shape, options, random):
    draw = np.random.default_rng(0)
    groups = [
        Group(
            str(i),
            draw.integers(1, 99, p),
            tuple(Response(draw.integers(1, 99, r), 0.5, old=draw.normal(size=r)) for r in rs),
        )
        for i, (p, rs) in enumerate(shape)
    ]
    batches = micro_batches(groups, **options)
    found, shapes = {}, set()
    for batch in batches:
        rows = batch.rows
        b, t = rows.ids_bt.shape
        shapes.add((t, rows.target_bp.shape[1]))
        assert b % options["rows_multiple"] == 0
        assert b * t <= max(options["batch_tokens"], options["rows_multiple"] * t)
        assert ((rows.segment_bt == 0) == (rows.parent_bt == 0)).all()
        for name in ("target", "old"):
            for key, value in batch.per_response(getattr(rows, f"{name}_bp")).items():
                assert (name, key) not in found
                found[name, key] = value
        # What a source sees is its prompt and the response up to it.
        for i, j in zip(*np.nonzero(rows.weight_bp), strict=True):
            source = rows.source_bp[i, j]
            key, number = batch.origin[i][rows.sequence_bp[i, j]]
            before = found["target", (key, number)][: rows.pos_bt[i, source] + 1 - len(groups[int(key)].prompt)]
            index = np.arange(t)
            seen = (index <= source) & np.isin(
                rows.segment_bt[i], [rows.segment_bt[i, source], rows.parent_bt[i, source]]
            )
            assert rows.ids_bt[i, seen].tolist() == [*groups[int(key)].prompt, *before]
        assert (rows.code_bt is not None) == options["slotted"]
        if options["slotted"]:
            assert_kernel_sees(rows, window=7)
    assert len(shapes) <= 16
    for group in groups:
        for number, response in enumerate(group.responses):
            if len(response.ids):
                np.testing.assert_array_equal(found.pop(("target", (group.id, number))), response.ids)
                np.testing.assert_allclose(found.pop(("old", (group.id, number))), response.old, rtol=1e-6)
    assert not found
    random.shuffle(groups)
    again = micro_batches(groups, **options)
    assert [b.origin for b in again] == [b.origin for b in batches]
