"""Which requests share a prefix, decided before any computation. Pure functions on token ids.

Noisy prompts begin alike (the same block of distractors) and are sampled several times: both make keys and values that
need computing and storing once. The plan maximises the prompt tokens that are not prefilled again.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from noisyjax.records import Request

GRAIN = 64
"""Prefix lengths are multiples of this, which keeps the search shallow and the blocks well filled."""
SAMPLE_WEIGHT = 0.05
"""A prefix that n samples share saves n - 1 copies in memory, not prefill; worth this fraction of a prefilled token."""


@dataclass(frozen=True)
class Group:
    """Requests whose prompts begin with the same `length` tokens (0: nothing shared), in order of arrival."""

    length: int
    requests: tuple[Request, ...]

    @property
    def prefix(self) -> np.ndarray:
        """The shared token ids, int32 [length]."""
        return self.requests[0].prompt.ids[: self.length]


def common_length(a: np.ndarray, b: np.ndarray) -> int:
    """How many leading ids two prompts share."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if differ.size else n


def group_by_prefix(requests: Sequence[Request], least: int) -> list[Group]:
    """Partition requests into groups; a group shares at least `least` tokens or nothing.

    A prefix never holds a prompt's last token, which the decode loop is fed. Who shares what depends on the prompts
    alone. Groups come in order of their first request, members and what shares nothing in order of arrival.
    """
    if not requests:
        return []
    order = sorted(range(len(requests)), key=lambda i: (requests[i].prompt.ids.astype(">i4").tobytes(), i))
    ids, samples = [requests[i].prompt.ids for i in order], [requests[i].n for i in order]
    groups = []
    for length, places in _best_groups(ids, samples, least):
        members = sorted(order[i] for i in places)
        groups.append((members[0], Group(length, tuple(requests[i] for i in members))))
    return [g for _, g in sorted(groups, key=lambda pair: pair[0])]


@dataclass
class _Node:
    """Neighbours begin..end-1 in sorted order, which share `depth` tokens; an inner node of the prefix tree or a leaf.

    `above`: depths of the nodes it lies in, that a prefix may have, and 0. value[d]: the most tokens saved below this
    node when what is left over joins a group of depth d further up; opens[d]: whether that takes a group here.
    """

    begin: int
    end: int
    depth: int
    above: tuple[int, ...]
    children: list["_Node"] = field(default_factory=list)
    value: dict[int, float] = field(default_factory=dict)
    opens: dict[int, bool] = field(default_factory=dict)


def _prefix_tree(ids: Sequence[np.ndarray], least: int) -> list[_Node]:
    """The nodes, parents before children. Written with a stack, since chains of prefixes can be deep."""
    usable = [(len(x) - 1) // GRAIN * GRAIN for x in ids]
    shared = [common_length(a, b) // GRAIN * GRAIN for a, b in itertools.pairwise(ids)]
    shared = [min(d, *ends) for d, ends in zip(shared, itertools.pairwise(usable), strict=True)]
    nodes: list[_Node] = []
    stack: list[tuple[int, int, _Node | None]] = [(0, len(ids), None)]
    while stack:
        begin, end, parent = stack.pop()
        inner = shared[begin : end - 1]
        above = (0,) if parent is None else parent.above + ((parent.depth,) if parent.depth >= least else ())
        node = _Node(begin, end, min(inner, default=usable[begin]), above)
        nodes.append(node)
        if parent is not None:
            parent.children.append(node)
        cuts = [begin + 1 + i for i, d in enumerate(inner) if d == node.depth]
        if cuts:
            stack += [(a, b, node) for a, b in itertools.pairwise([begin, *cuts, end])]
    return nodes


def _worth(node: _Node, d: int, samples: Sequence[int]) -> float:
    """What everything below a node saves when a group of depth d lies around it."""
    if not node.children:
        return (1 + SAMPLE_WEIGHT * samples[node.begin]) * d
    return sum(child.value[d] for child in node.children)


def _best_groups(ids: Sequence[np.ndarray], samples: Sequence[int], least: int) -> list[tuple[int, list[int]]]:
    """(prefix length, places in the sorted order) of each group; length 0 for those that share nothing.

    A group of depth d saves d tokens for each member but one. So below every node, each prompt is worth d to the
    nearest group above it, and a node opens a group of its own where the greater depth pays for another prefill.
    """
    nodes = _prefix_tree(ids, least)
    for node in reversed(nodes):
        for d in node.above:
            stay, own = _worth(node, d, samples), -1.0
            if node.depth >= least:
                own = _worth(node, node.depth, samples) - (1 + SAMPLE_WEIGHT) * node.depth
            node.opens[d] = own > stay + 1e-6
            node.value[d] = max(own, stay)
    groups: dict[int, tuple[int, list[int]]] = {-1: (0, [])}
    stack = [(0, -1, nodes[0])]
    while stack:
        d, group, node = stack.pop()
        if node.opens[d]:
            d, group = node.depth, len(groups)
            groups[group] = (d, [])
        if not node.children:
            groups[group][1].append(node.begin)
        stack += [(d, group, child) for child in node.children]
    return [g for g in groups.values() if g[1]]
