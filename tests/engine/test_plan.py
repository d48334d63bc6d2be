"""Which requests share a prefix: by hand, and against every other way of sharing on small inputs."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noisyjax.engine.plan import GRAIN, SAMPLE_WEIGHT, common_length, group_by_prefix


def saved(lengths_and_members, requests) -> float:
    """Prompt tokens that need no second prefill (plus the little that samples count)."""
    by_id = {r.id: r for r in requests}
    return sum(
        length * (len(members) - 1 + SAMPLE_WEIGHT * (sum(by_id[m].n for m in members) - 1))
        for length, members in lengths_and_members
        if length
    )


def shape_of(groups):
    return [(g.length, [r.id for r in g.requests]) for g in groups]


@pytest.mark.parametrize(
    ("a", "b", "n"), [([1, 2, 3], [1, 2, 4], 2), ([], [1], 0), ([1, 2], [1, 2, 3], 2), ([5], [6], 0), ([1], [1], 1)]
)
def test_common_length(a, b, n):
    assert common_length(np.asarray(a), np.asarray(b)) == n


def test_a_block_before_many_questions_is_shared(make_request):
    block = make_request("", 300).prompt.ids
    requests = [make_request(f"q{i}", [*block, 40 + i, 50, 60]) for i in range(3)] + [make_request("x", 300, seed=9)]
    (shared, alone) = group_by_prefix(requests, 64)
    assert shape_of([shared, alone]) == [(256, ["q0", "q1", "q2"]), (0, ["x"])]
    np.testing.assert_array_equal(shared.prefix, block[:256])


def test_a_prefix_leaves_every_prompt_its_last_token(make_request):
    """The decode loop is fed the last token: a prompt of exactly 128 tokens shares 64 of them."""
    ids = make_request("", 200).prompt.ids
    requests = [make_request("a", ids[:128]), make_request("b", ids[:129]), make_request("c", ids)]
    for group in group_by_prefix(requests, 64):
        for request in group.requests:
            assert group.length < len(request.prompt.ids)
    assert shape_of(group_by_prefix(requests[:2], 64)) == [(64, ["a", "b"])]
    assert shape_of(group_by_prefix(requests[1:], 64)) == [(128, ["b", "c"])]


def test_samples_share_their_prompt(make_request):
    (group,) = group_by_prefix([make_request("a", 500, n=4)], 256)
    assert group.length == 448
    assert shape_of(group_by_prefix([make_request("a", 500, n=1)], 256)) == [(0, ["a"])]


def test_short_prefixes_are_not_worth_it(make_request):
    requests = [make_request(f"q{i}", 200) for i in range(2)]
    assert shape_of(group_by_prefix(requests, 256)) == [(0, ["q0", "q1"])]
    assert shape_of(group_by_prefix(requests, 192)) == [(192, ["q0", "q1"])]


def test_no_requests():
    assert group_by_prefix([], 64) == []


def test_a_long_shared_part_is_preferred_to_a_short_one_for_more(make_request):
    """Two pairs share 640 tokens each, all four share 64: pairs save 2 x 640, the four together 3 x 64."""
    head = make_request("", 64).prompt.ids
    bodies = [make_request("", 600, seed=s).prompt.ids for s in (1, 2)]
    requests = [make_request(f"{b}{i}", [*head, *bodies[b], 40 + i]) for i in range(2) for b in range(2)]
    assert shape_of(group_by_prefix(requests, 64)) == [(640, ["00", "01"]), (640, ["10", "11"])]


def test_groups_and_members_come_in_order_of_arrival(make_request):
    blocks = [make_request("", 128, seed=s).prompt.ids for s in (1, 2)]
    order = [(1, "a"), (0, "b"), (1, "c"), (0, "d")]
    requests = [make_request(name, [*blocks[b], 40 + i]) for i, (b, name) in enumerate(order)]
    assert shape_of(group_by_prefix(requests, 64)) == [(128, ["a", "c"]), (128, ["b", "d"])]


PROMPT = st.lists(st.integers(0, 1), min_size=1, max_size=3)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(PROMPT, st.integers(1, 3)), min_size=1, max_size=5), st.integers(1, 2), st.randoms())
def test_no_partition_saves_more(make_request, prompts, least, random):
    """All partitions of up to five prompts, made of blocks of one grain: none beats the plan."""
    requests = [
        make_request(f"r{i}", [t for block in blocks for t in [block] * GRAIN] + [9], n=n)
        for i, (blocks, n) in enumerate(prompts)
    ]
    groups = group_by_prefix(requests, least * GRAIN)
    assert sorted(r.id for g in groups for r in g.requests) == sorted(r.id for r in requests)
    for group in groups:
        assert group.length == 0 or group.length >= least * GRAIN
        assert all(common_length(group.prefix, r.prompt.ids) == group.length for r in group.requests)

    def best_length(members) -> int:
        ids = [r.prompt.ids for r in members]
        depth = min([common_length(a, b) for a, b in itertools.pairwise(ids)] + [len(x) - 1 for x in ids])
        return depth // GRAIN * GRAIN if depth >= least * GRAIN else 0

    best = max(
        saved([(best_length(part), [r.id for r in part]) for part in partition], requests)
        for partition in partitions(requests)
    )
    assert saved(shape_of(groups), requests) == pytest.approx(best)

    shuffled = list(requests)
    random.shuffle(shuffled)
    ours, theirs = (
        sorted((n, sorted(m)) for n, m in shape_of(g)) for g in (groups, group_by_prefix(shuffled, least * GRAIN))
    )
    if len({tuple(r.prompt.ids) for r in requests}) == len(requests):
        assert ours == theirs


def partitions(items):
    """Every way to cut a list into non-empty groups."""
    if not items:
        yield []
        return
    for rest in partitions(items[1:]):
        for i in range(len(rest)):
            yield [*rest[:i], [items[0], *rest[i]], *rest[i + 1 :]]
        yield [[items[0]], *rest]


def test_many_prompts_with_deep_chains_are_quick(make_request):
    """Prompts that are prefixes of one another nest as deep as there are prompts."""
    ids = make_request("", 8192).prompt.ids
    requests = [make_request(f"r{i}", ids[: 64 * (i + 1)]) for i in range(128)]
    groups = group_by_prefix(requests, 64)
    assert sum(len(g.requests) for g in groups) == 128
