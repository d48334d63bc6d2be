"""Training rows: a prompt stored once with its responses behind it, such groups in rows, rows in micro-batches.

    [prompt 1 | response 1.1 | response 1.2 | prompt 2 | response 2.1 | padding]

A response continues the positions of its prompt and sees the prompt and itself. Targets are listed apart from the
tokens: the hidden state of a prompt's last token is gathered once for the first token of each response.
Supervised examples are groups of one response, so one layout serves all training. For the TPU's attention kernel each
prompt and response lies in a slot of its own (`models.kernels.slots`), padded before prompts and behind responses.

Everything here is numpy on the host, and decided by the groups' ids and lengths alone.

Legend: B rows, T tokens of a row, P targets of a row.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from noisyjax.errors import UsageError
from noisyjax.models.kernels import slots

ALIGN = 8
"""Row lengths are multiples of this."""
LENGTHS = 4
"""Distinct row lengths: the longest, its half, quarter and eighth. With as many target counts for each, a run compiles
its update a bounded number of times."""

REACHES = 4
"""Distinct reaches of rows of one length: programs are compiled for each."""

PER_TOKEN = ("advantage", "old", "ref", "rollout")
"""What a target may carry beside its weight."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rows:
    """A batch of rows. Arrays of numpy or jax; the optional ones are None where a loss does not need them."""

    ids_bt: Any
    """int32 tokens."""
    pos_bt: Any
    """int32 positions; a response's go on from its prompt's."""
    segment_bt: Any
    """int32 number of the prompt or response inside the row; 0 is padding."""
    parent_bt: Any
    """int32 segment that is visible beside a token's own: a response's prompt; elsewhere the own."""
    source_bp: Any
    """int32 index in the row of the hidden state that predicts the target."""
    target_bp: Any
    """int32 token to be predicted."""
    sequence_bp: Any
    """int32 number of the target's response inside the row, 0, 1, …"""
    weight_bp: Any
    """float32 share of the loss; 0 for padding alone."""
    advantage_bp: Any = None
    """float32"""
    old_bp: Any = None
    """float32 log-probability under the policy before the update."""
    ref_bp: Any = None
    """float32 log-probability under the reference model."""
    rollout_bp: Any = None
    """float32 log-probability that the sampler reported."""
    code_bt: Any = None
    """int32 what a kernel must know of a token's query (`slots.encode`); None where no kernel is meant to run."""
    reach: int | None = field(default=None, metadata={"static": True})
    """With codes: blocks of keys that a block of queries visits at most; programs are compiled for it."""

    @property
    def in_slots(self) -> tuple[Any, int] | None:
        """What `Decoder.hidden` wants to know of rows for a kernel; None for others."""
        return None if self.code_bt is None or self.reach is None else (self.code_bt, self.reach)


@dataclass(frozen=True)
class Response:
    """What follows a prompt. `ids` are ints [R]; the others are floats [R], or one number for all tokens, or None.

    weight: each token's share of the loss (`weights.token_weights`). A token of weight 0 is context only: it is seen
    by those after it (a user's turn between two answers) but is no target.
    """

    ids: Sequence[int] | np.ndarray
    weight: float | Sequence[float] | np.ndarray
    advantage: float | Sequence[float] | np.ndarray | None = None
    old: Sequence[float] | np.ndarray | None = None
    ref: Sequence[float] | np.ndarray | None = None
    rollout: Sequence[float] | np.ndarray | None = None


@dataclass(frozen=True)
class Group:
    """A prompt and its responses. `id` is unique in a batch and decides every order."""

    id: str
    prompt: Sequence[int] | np.ndarray
    responses: tuple[Response, ...]


@dataclass(frozen=True)
class MicroBatch:
    """Rows of one shape. `origin[b][s]` says whose response sequence s of row b is: (group id, response number)."""

    rows: Rows
    origin: tuple[tuple[tuple[str, int], ...], ...]

    def per_response(self, values_bp: Any) -> dict[tuple[str, int], np.ndarray]:
        """Values of the targets, [B, P], as (group id, response number) -> values of that response's targets."""
        values = np.asarray(values_bp)
        sequence, real = self.rows.sequence_bp, self.rows.weight_bp
        return {
            whose: values[b, (sequence[b] == s) & (real[b] != 0)]
            for b, whoses in enumerate(self.origin)
            for s, whose in enumerate(whoses)
        }


@dataclass(frozen=True)
class _Part:
    """The responses of a group that share one copy of its prompt, by their numbers in the group."""

    group: Group
    numbers: tuple[int, ...]
    grain: int = 1
    """The length of each of them is rounded up to this."""

    @property
    def tokens(self) -> int:
        lengths = (len(self.group.prompt), *(len(self.group.responses[i].ids) for i in self.numbers))
        return sum(_round_up(n, self.grain) for n in lengths)

    @property
    def order(self) -> tuple[int, str, tuple[int, ...]]:
        """The largest first; ids and numbers decide between equals."""
        return -self.tokens, self.group.id, self.numbers


def micro_batches(
    groups: Iterable[Group],
    *,
    row_tokens: int,
    batch_tokens: int,
    rows_multiple: int = 1,
    pack: bool = True,
    share: bool = True,
    slotted: bool = False,
) -> list[MicroBatch]:
    """All groups as micro-batches of few shapes; the order of `groups` does not matter.

    Args:
        row_tokens: longest row. A group that is longer is divided, its prompt repeated.
        batch_tokens: tokens of a micro-batch at most, padding included (but never less than `rows_multiple` rows).
        rows_multiple: devices that rows are spread over; the number of rows is a multiple of it.
        pack: several groups to a row.
        share: one copy of a prompt for all its responses, not one each.
        slotted: in slots, for a kernel. What would fit without them always fits: such a row may be longer.

    Responses without any target (empty, or left out of the loss) take no part. The result is empty when none is left.
    Raises UsageError for a prompt that is empty or does not fit into a row together with its longest response.
    """
    align = slots.align if slotted else lambda n: _round_up(n, ALIGN)
    grain = slots.grain(slots.align(row_tokens + slots.BLOCK)) if slotted else 1
    parts = [part for group in groups for part in _parts(group, row_tokens, share, grain)]
    packed = first_fit(parts, row_tokens) if pack else [[part] for part in parts]
    rows = sorted(packed, key=lambda row: (-sum(part.tokens for part in row), row[0].order))
    lengths = [align(-(-row_tokens // 2**k)) for k in range(LENGTHS)]
    lengths += [align(part.tokens) for part in parts if part.tokens > row_tokens]
    made = []
    while rows:
        longest = sum(part.tokens for part in rows[0])
        t = min(length for length in lengths if length >= longest)
        b = max(1, batch_tokens // t // rows_multiple) * rows_multiple
        made.append(_micro_batch(rows[:b], b, t, grain))
        rows = rows[b:]
    return made


def first_fit(parts: Iterable[_Part], room: int) -> list[list[_Part]]:
    """Bins of at most `room` tokens: parts in their `order`, each into the first bin that has room for it."""
    bins: list[list[_Part]] = []
    free: list[int] = []
    for part in sorted(parts, key=lambda part: part.order):
        place = next((i for i, left in enumerate(free) if left >= part.tokens), len(bins))
        if place == len(bins):
            bins.append([])
            free.append(room)
        bins[place].append(part)
        free[place] -= part.tokens
    return bins


def _parts(group: Group, row_tokens: int, share: bool, grain: int) -> list[_Part]:
    """The responses that have a target, with one prompt copy for as many of them as a row holds."""
    if not len(group.prompt):
        raise UsageError(f"group {group.id!r} has an empty prompt: nothing predicts the first token of its responses")
    kept = [i for i, r in enumerate(group.responses) if len(r.ids) and np.any(np.asarray(r.weight) != 0)]
    for part in (_Part(group, (i,)) for i in kept):
        if part.tokens > row_tokens:
            raise UsageError(
                f"group {group.id!r}: a prompt of {len(group.prompt)} tokens and response {part.numbers[0]} of "
                f"{part.tokens - len(group.prompt)} do not fit into a row of {row_tokens}; "
                "make rows longer, or prompts and responses shorter"
            )
    parts: list[_Part] = []
    for i in kept:
        longer = _Part(group, (*parts[-1].numbers, i), grain) if parts and share else None
        if longer is not None and longer.tokens <= row_tokens:
            parts[-1] = longer
        else:
            parts.append(_Part(group, (i,), grain))
    return parts


def _round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def _micro_batch(rows: Sequence[Sequence[_Part]], b: int, t: int, grain: int) -> MicroBatch:
    """`rows` in arrays of `b` rows of `t` tokens, the rest of them padding. grain: above 1, with codes for a kernel."""
    responses = [[part.group.responses[i] for part in row for i in part.numbers] for row in rows]
    most = max(sum(int(np.count_nonzero(_spread(r.weight, r))) for r in row) for row in responses)
    p = _round_up(most, max(ALIGN, _round_up(-(-t // LENGTHS), ALIGN)))
    optional = [name for name in PER_TOKEN if any(getattr(r, name) is not None for row in responses for r in row)]
    per_target = {"source": np.int32, "target": np.int32, "sequence": np.int32, "weight": np.float32}
    arrays: dict[str, Any] = {f"{name}_bt": np.zeros((b, t), np.int32) for name in ("ids", "pos", "segment", "parent")}
    arrays |= {f"{name}_bp": np.zeros((b, p), dtype) for name, dtype in per_target.items()}
    arrays |= {f"{name}_bp": np.zeros((b, p), np.float32) for name in optional}
    made = Rows(**arrays)
    origin = tuple(_fill(made, i, row, optional) for i, row in enumerate(rows))
    if grain > 1:
        made = _with_codes(made, grain)
    return MicroBatch(made, origin + ((),) * (b - len(rows)))


def _fill(rows: Rows, b: int, parts: Sequence[_Part], optional: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Write `parts` into row `b` one behind the other; whose response each sequence is."""
    at, target, segment = 0, 0, 0
    origin: list[tuple[str, int]] = []
    for part in parts:
        prompt = part.group.prompt
        segment += 1
        at = _round_up(at, part.grain) + -len(prompt) % part.grain  # a prompt's padding comes first
        home, last = segment, at + len(prompt) - 1
        at = _lay(rows, b, at, prompt, 0, home, home)
        for number in part.numbers:
            response = part.group.responses[number]
            segment += 1
            start = _round_up(at, part.grain)
            at = _lay(rows, b, start, response.ids, len(prompt), segment, home)
            hit = np.flatnonzero(_spread(response.weight, response))
            place = slice(target, target + len(hit))
            target = place.stop
            rows.source_bp[b, place] = np.concatenate([[last], np.arange(start, at - 1)])[hit]
            rows.target_bp[b, place] = np.asarray(response.ids)[hit]
            rows.sequence_bp[b, place] = len(origin)
            for name in ("weight", *optional):
                value = getattr(response, name)
                if value is None:
                    raise ValueError(f"group {part.group.id!r}, response {number}: {name} is None, others have it")
                getattr(rows, f"{name}_bp")[b, place] = _spread(value, response)[hit]
            origin.append((part.group.id, number))
    return tuple(origin)


def _with_codes(rows: Rows, grain: int) -> Rows:
    """The rows, which lie in slots of this grain, with what a kernel is told of them."""
    b, t = rows.ids_bt.shape
    code_bt = np.tile(np.arange(t, dtype=np.int32), (b, 1))
    for i, segments in enumerate(rows.segment_bt):
        end = {}
        for segment in range(1, segments.max() + 1):
            place = np.flatnonzero(segments == segment)
            home, start = rows.parent_bt[i, place[0]], place[0] // grain * grain
            end[segment] = place[-1] + 1
            code_bt[i, place] = slots.encode(place, start, 0 if home == segment else end[home], t)
    reach, blocks = int(slots.partners(code_bt, rows.parent_bt).sum(-1).max()), t // slots.block(t)
    return replace(rows, code_bt=code_bt, reach=min(_round_up(reach, -(-blocks // REACHES)), blocks))


def _lay(rows: Rows, b: int, at: int, ids: Sequence[int] | np.ndarray, pos: int, segment: int, parent: int) -> int:
    """Write tokens into row `b` from index `at` on; the index behind them."""
    end = at + len(ids)
    rows.ids_bt[b, at:end] = ids
    rows.pos_bt[b, at:end] = np.arange(pos, pos + len(ids))
    rows.segment_bt[b, at:end], rows.parent_bt[b, at:end] = segment, parent
    return end


def _spread(value: Any, response: Response) -> np.ndarray:
    """A number or a list as float32 [R]; ValueError when the list has another length."""
    return np.broadcast_to(np.asarray(value, np.float32), (len(response.ids),))
