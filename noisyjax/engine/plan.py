"""Which requests share a prefix, decided before any computation. Pure functions on token ids.

Noisy prompts begin alike (the same block of distractors) and are sampled several times: both make keys and values that
need computing and storing once. The plan maximises the prompt tokens that are not prefilled again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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

    A prefix never holds a prompt's last token, which the decode loop is fed. Groups come in order of their first
    request; what shares nothing stays in order of arrival. The result depends on the set of requests and its order
    only where order is kept, never on what is shared with whom by chance of neighbourhood: prompts are sorted first.
    """
    if not requests:
        return []
    order = sorted(range(len(requests)), key=lambda i: (requests[i].prompt.ids.astype(">i4").tobytes(), i))
    ids = [requests[i].prompt.ids for i in order]
    shared = [common_length(a, b) // GRAIN * GRAIN for a, b in zip(ids, ids[1:], strict=False)]
    groups, alone = [], []
    for begin, end, length in _best_runs(ids, shared, [requests[i].n for i in order], least):
        members = sorted(order[begin:end])
        if length:
            groups.append((members[0], Group(length, tuple(requests[i] for i in members))))
        else:
            alone += members
    if alone:
        groups.append((min(alone), Group(0, tuple(requests[i] for i in sorted(alone)))))
    return [g for _, g in sorted(groups, key=lambda pair: pair[0])]


def _best_runs(
    ids: Sequence[np.ndarray], shared: Sequence[int], n: Sequence[int], least: int
) -> list[tuple[int, int, int]]:
    """Cut the sorted prompts into runs (begin, end, prefix length) that save the most tokens.

    A run whose prompts share d tokens either uses them, or is cut where the neighbours share just d, and its pieces
    decide for themselves. Written with a stack, since chains of prefixes can be deep.
    """
    pieces: list[tuple[int, int, int, list[int]]] = []  # begin, end, depth, child piece numbers
    stack = [(0, len(ids), -1)]
    while stack:
        begin, end, parent = stack.pop()
        inner = shared[begin : end - 1]
        depth = min(inner) if inner else (len(ids[begin]) - 1) // GRAIN * GRAIN
        depth = min(depth, *((len(x) - 1) // GRAIN * GRAIN for x in ids[begin:end]))
        number = len(pieces)
        pieces.append((begin, end, depth, []))
        if parent >= 0:
            pieces[parent][3].append(number)
        if inner:
            cuts = [begin + i + 1 for i, d in enumerate(inner) if d == min(inner)]
            stack += [(a, b, number) for a, b in zip([begin, *cuts], [*cuts, end], strict=True)]
    best: list[tuple[float, list[tuple[int, int, int]]]] = [(0.0, [])] * len(pieces)
    for number in range(len(pieces) - 1, -1, -1):
        begin, end, depth, children = pieces[number]
        own = (end - begin - 1 + SAMPLE_WEIGHT * (sum(n[begin:end]) - 1)) * depth if depth >= least else 0.0
        below = sum(best[c][0] for c in children)
        if own > 0 and own >= below:
            best[number] = (own, [(begin, end, depth)])
        elif children:
            best[number] = (below, [run for c in sorted(children, key=lambda c: pieces[c][0]) for run in best[c][1]])
        else:
            best[number] = (0.0, [(begin, end, 0)])
    return best[0][1]
