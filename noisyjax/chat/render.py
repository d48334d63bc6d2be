"""Messages of labelled parts -> token ids, each with the label of the part it came from.

How it is known which characters came from where: every content piece is put between two private marks before the
template sees it. The marked rendering without its marks must equal the plain rendering, or the prompt is refused with
the template's name; nothing is guessed. Templates that rewrite content are met in three steps:

1. *whole*: the marks stand round each part;
2. *core*: whitespace at the two ends of a message stays outside the marks, for templates that trim it. Where such a
   template keeps some of it after all, those characters count as template;
3. *thoughts*: the tags of thoughts in assistant messages stay outside too, for templates that take earlier thoughts
   out or lay them out anew.

In messages that the model itself wrote (label GENERATED) the tags of thoughts stay outside at every step, and so are
the control tokens that the model said; in anybody else's they are text.

Text between two control tokens is tokenised in one go, template and content together, so that ids are those of
`tokenizer(rendered text)` wherever content quotes no control token. A token that straddles a border belongs to the
piece that holds its first character.

Legend: T prompt tokens, P pieces.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from noisyjax.chat.tokenizer import ChatTokenizer, Encoded
from noisyjax.errors import UsageError
from noisyjax.records import LABEL_ID, Label, Message, Part


@dataclass(frozen=True)
class RenderStats:
    """What rendering had to settle. `straddles`: tokens that hold characters of two differently labelled pieces."""

    straddles: int
    scheme: str
    """Which of the three steps served: whole, core or thoughts."""


@dataclass(frozen=True)
class Rendered:
    """ids: int32 [T]; labels: uint8 [T]; part_of: int32 [T] index into `parts`, -1 for the template's own tokens."""

    text: str
    ids: np.ndarray
    labels: np.ndarray
    part_of: np.ndarray
    parts: tuple[Part, ...]
    stats: RenderStats


class Span(NamedTuple):
    """Characters start:end of the rendered text came from `parts[part]`."""

    start: int
    end: int
    part: int


class _Piece(NamedTuple):
    text: str
    part: int
    marked: bool
    message: int
    foreign: bool
    """Not all of the message was written by the model."""
    may_go: bool
    """The template may leave it out: it is, or stands before, a thought."""


def render(
    tokenizer: ChatTokenizer,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
    template_kwargs: Mapping[str, Any] | None = None,
) -> Rendered:
    """Render and tokenise a conversation.

    `template_kwargs` reach the template as they are (`enable_thinking`, `reasoning_effort`, ...). Exactly one BOS
    stands at the front if the tokenizer or the template puts one there, none otherwise. Raises UsageError when the
    template refuses the conversation, drops or repeats a part, or rewrites content so that labels would be guesses.
    """
    parts = tuple(part for message in messages for part in message.parts)
    options = {"add_generation_prompt": add_generation_prompt, "template_kwargs": template_kwargs}
    text, spans, scheme = _locate(tokenizer, messages, options)
    tokens = _with_one_bos(tokenizer, _tokenise(tokenizer, text, spans))
    starts_p = np.array([s.start for s in spans], np.int64)
    index = np.searchsorted(starts_p, tokens.starts, side="right") - 1
    part_of = _part_at(spans, index, tokens.starts)
    last = np.maximum(tokens.ends - 1, tokens.starts)
    part_of_last = _part_at(spans, np.searchsorted(starts_p, last, side="right") - 1, last)
    label_of_part = np.array([*(LABEL_ID[p.label] for p in parts), LABEL_ID[Label.TEMPLATE]], np.uint8)  # -1: template
    labels = label_of_part[part_of]
    straddles = int(np.sum(labels != label_of_part[part_of_last]))
    if tokenizer.bos_id is not None and len(tokens.ids) and tokens.ids[0] == tokenizer.bos_id:
        labels[0] = LABEL_ID[Label.BOS]
    return Rendered(text, tokens.ids, labels, part_of, parts, RenderStats(straddles, scheme))


def _part_at(spans: Sequence[Span], index_t: np.ndarray, chars_t: np.ndarray) -> np.ndarray:
    """int32 [T] part of the span that holds each character, -1 where none does; `index_t` is the span begun last."""
    if not spans:
        return np.full(len(chars_t), -1, np.int32)
    ends_p = np.array([s.end for s in spans])
    parts_p = np.array([s.part for s in spans], np.int32)
    return np.where((index_t >= 0) & (chars_t < ends_p[index_t]), parts_p[index_t], -1).astype(np.int32)


# -- which characters came from where --------------------------------------------------------------------------------


def _locate(
    tokenizer: ChatTokenizer, messages: Sequence[Message], options: Mapping[str, Any]
) -> tuple[str, list[Span], str]:
    """The plain rendering, the spans of its content pieces in order, and the scheme that found them."""
    plain = tokenizer.render_text([{"role": m.role, "content": m.content} for m in messages], **options)
    complaint = ""
    for scheme in ("whole", "core", "thoughts"):
        rows = list(_pieces(messages, scheme, tokenizer))
        marked = [piece for row in rows for piece in row if piece.marked]
        base = _free_code_points(messages, plain, 2 * len(marked))
        contents = _with_marks(rows, base)
        rendered = tokenizer.render_text(
            [{"role": m.role, "content": c} for m, c in zip(messages, contents, strict=True)], **options
        )
        text, found = _read_marks(rendered, base, 2 * len(marked))
        if text != plain:
            complaint = f"it rewrites {_first_difference(plain, text)}"
            continue
        spans = _match(found, marked)
        if not isinstance(spans, str):
            return plain, spans, scheme
        complaint = spans
    raise UsageError(
        f"with the chat template of {tokenizer.name} it cannot be told which tokens are whose: {complaint}; "
        "give a template that writes every message once and as it is with chat_template=FILE"
    )


def _pieces(messages: Sequence[Message], scheme: str, tokenizer: ChatTokenizer) -> Iterator[list[_Piece]]:
    """Each message cut into pieces, marked and unmarked, whose texts joined are its content."""
    tags = tokenizer.thought_tags
    only_tags = re.compile(rf"{tags.open}|{tags.close}")
    around_tags = re.compile(rf"\s*(?:{only_tags.pattern})\s*")
    part = -1
    for k, message in enumerate(messages):
        content = message.content
        bare: list[tuple[int, int]] = []
        foreign = any(p.label is not Label.GENERATED for p in message.parts)
        answer = 0  # where the last thought ends
        if scheme != "whole":
            bare += [(0, len(content) - len(content.lstrip())), (len(content.rstrip()), len(content))]
        if message.role == "assistant" and (scheme == "thoughts" or not foreign):
            answer = max((m.end() for m in re.finditer(tags.close, content)), default=0)
            tag = around_tags if scheme == "thoughts" else only_tags
            bare += [m.span() for m in tag.finditer(content) if m.start() < answer]
        row, at = [], 0
        for p in message.parts:
            part += 1
            for start, end, marked in _cut(at, at + len(p.text), bare):
                row.append(_Piece(content[start:end], part, marked, k, foreign, may_go=end <= answer))
            at += len(p.text)
        yield row


def _cut(start: int, end: int, bare: list[tuple[int, int]]) -> Iterator[tuple[int, int, bool]]:
    """Characters start:end of a message cut so that the spans in `bare` are unmarked (False)."""
    marked = np.ones(end - start, bool)
    for a, b in bare:
        marked[max(a - start, 0) : max(b - start, 0)] = False
    edges = [0, *(np.flatnonzero(np.diff(marked)) + 1).tolist(), end - start]
    for a, b in pairwise(edges):
        if a < b:
            yield a + start, b + start, bool(marked[a])


def _with_marks(rows: Sequence[Sequence[_Piece]], base: int) -> list[str]:
    """The messages' contents, piece k between the code points base + 2k and base + 2k + 1."""
    marks = map(chr, range(base, 0x110000))
    return ["".join(f"{next(marks)}{p.text}{next(marks)}" if p.marked else p.text for p in row) for row in rows]


def _free_code_points(messages: Sequence[Message], plain: str, n: int) -> int:
    """The first of `n` neighbouring private-use code points that occur nowhere in the conversation."""
    used = {ord(c) for c in set(plain).union(*(m.content for m in messages)) if ord(c) >= 0xF0000}
    for base in range(0xF0000, 0x110000 - n, n or 1):
        if not any(base <= c < base + n for c in used):
            return base
    raise UsageError("the conversation uses every private code point (U+F0000 and above); remove them from its texts")


def _read_marks(marked: str, base: int, n: int) -> tuple[str, list[tuple[int, int, int]]]:
    """The text without marks, and (position in it, piece, 0 for opening or 1 for closing) of each mark in order."""
    if n == 0:
        return marked, []
    found, text, at = [], [], 0
    pieces = re.split(f"([{chr(base)}-{chr(base + n - 1)}])", marked)
    for run, mark in zip(pieces[::2], [*pieces[1::2], ""], strict=True):
        text.append(run)
        at += len(run)
        if mark:
            found.append((at, *divmod(ord(mark) - base, 2)))
    return "".join(text), found


def _match(found: list[tuple[int, int, int]], pieces: list[_Piece]) -> list[Span] | str:
    """Spans of the marked pieces, or what is wrong: each must be there once and whole."""
    spans: dict[int, Span] = {}
    for (start, i, opening), (end, j, closing) in zip(found[::2], found[1::2], strict=False):
        if i != j or (opening, closing) != (0, 1) or i in spans:
            return f"it repeats or cuts {pieces[i].text[:60]!r}"
        spans[i] = Span(start, end, pieces[i].part)
    if len(found) % 2:
        return f"it cuts {pieces[found[-1][1]].text[:60]!r}"
    for i, piece in enumerate(pieces):
        if i not in spans and piece.text.strip() and not piece.may_go:
            return f"it leaves out {piece.text[:60]!r}"
    for i, j in pairwise(spans):
        if pieces[i].message == pieces[j].message and pieces[i].foreign:  # what stands between is theirs, and text
            spans[i] = spans[i]._replace(end=spans[j].start)
    return list(spans.values())


def _first_difference(plain: str, marked: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(plain, marked, strict=False)) if a != b), min(len(plain), len(marked)))
    return f"{plain[max(0, at - 20) : at + 20]!r}"


# -- tokens -----------------------------------------------------------------------------------------------------------


def _tokenise(tokenizer: ChatTokenizer, text: str, spans: Sequence[Span]) -> Encoded:
    """Control tokens where the template wrote them, plain text between; offsets are into `text`."""
    borders = [b for s in spans for b in (s.start, s.end)]
    out: list[Encoded] = []
    at = 0
    for start, end, token, first in _controls(tokenizer, text, spans):
        out += _encode_between(tokenizer, text, at, start, borders)
        out.append(_one_token(token, first, first + 1))
        at = end
    out += _encode_between(tokenizer, text, at, len(text), borders)
    return _join(out)


def _controls(tokenizer: ChatTokenizer, text: str, spans: Sequence[Span]) -> Iterator[tuple[int, int, int, int]]:
    """The control tokens that lie wholly in template text: (start, end, id, first character of its own).

    start:end includes the whitespace that the token swallows, which may be content.
    """
    at = 0
    for start, end in zip([0, *(s.end for s in spans)], [*(s.start for s in spans), len(text)], strict=True):
        for match in tokenizer.control_re.finditer(text, start, end):
            control = tokenizer.controls[match[0]]
            a, b = match.span()
            if a < at:  # an earlier token swallowed up to here; it never swallows more than whitespace
                continue
            while control.lstrip and a > at and text[a - 1].isspace():
                a -= 1
            while control.rstrip and b < len(text) and text[b].isspace():
                b += 1
            at = b
            yield a, b, control.id, match.start()


def _encode_between(
    tokenizer: ChatTokenizer, text: str, start: int, end: int, borders: Sequence[int]
) -> Iterator[Encoded]:
    """A run in pieces that are cached one by one. Cuts only where they change no token: a part begins a new line."""
    if start == end:
        return
    cuts = [
        b
        for b in sorted(set(borders))
        if tokenizer.cuttable and start < b < end and text[b - 1] == "\n" and text[b].isascii() and text[b].isalpha()
    ]
    for a, b in zip([start, *cuts], [*cuts, end], strict=True):
        run = tokenizer.encode_run(text[a:b], first=a == 0, follow=text[b] if b < end else "")
        yield Encoded(run.ids, run.starts + np.int32(a), run.ends + np.int32(a))


def _with_one_bos(tokenizer: ChatTokenizer, tokens: Encoded) -> Encoded:
    """A tokenizer that adds BOS adds it unless the template wrote it; a template that writes it twice is corrected."""
    bos = tokenizer.bos_id
    if bos is None:
        return tokens
    leading = 0
    while leading < len(tokens.ids) and tokens.ids[leading] == bos:
        leading += 1
    if leading > 1:
        return Encoded(*(a[leading - 1 :] for a in tokens))
    if leading == 0 and tokenizer.adds_bos:
        return _join([_one_token(bos, 0, 0), tokens])
    return tokens


def _one_token(token: int, start: int, end: int) -> Encoded:
    return Encoded(*(np.array([v], np.int32) for v in (token, start, end)))


def _join(runs: Sequence[Encoded]) -> Encoded:
    if not runs:
        return Encoded(*(np.zeros(0, np.int32) for _ in range(3)))
    return Encoded(*(np.concatenate(column) for column in zip(*runs, strict=True)))
