"""What a completion quotes between `<reference>` and `</reference>`: the rationale that RARE rewards.

Rules, by example (`r` for reference):

| text                       | strict     | lenient              |                                          |
|----------------------------|------------|----------------------|------------------------------------------|
| `<r>a</r> x <R >b</ r>`    | `a`, `b`   | the same             | case and blanks in a tag do not matter   |
| `<r>a<r>b</r>c</r>`        | `abc`      | the same             | outermost span, inner tags removed       |
| `a</r> x <r>b</r>`         | `b`        | the same             | a stray close is nothing                 |
| `<r>a`                     | none       | `a`                  | unclosed                                 |
| `<r>a <r>b</r>`            | `b`        | `a`, `b`             | an unclosed opener hides no closed span  |
| `<r>a</r> <r>a </r>`       | `a`        | the same             | said twice counts once                   |
| `<r> </r>`                 | none       | none                 | empty                                    |

Spans that the instruction itself holds (its example, or the words between two tags that it mentions) are an echo and
count nowhere. Thought and answer are read apart, so no span crosses the border.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from noisyjax.chat.thoughts import THINK, ThoughtTags, split
from noisyjax.chat.tokenizer import ChatTokenizer

Scope = Literal["think", "answer", "both"]
Mode = Literal["strict", "lenient"]
Clip = Callable[[str, int], str]
"""(text, n) -> the first n tokens of the text."""

MAX_SPANS = 8
MAX_TOKENS = 1024
MAX_UNCLOSED_TOKENS = 512

# Possessive blanks: a run of thousands of them, which a policy that falls apart does write, is read once.
_TAG = re.compile(r"<\s*+(/?)\s*+reference\s*+>", re.IGNORECASE)
_UNCLOSED_END = re.compile(r"<\s*+/?\s*+(?:think|answer)\s*+>", re.IGNORECASE)


@dataclass(frozen=True)
class Reference:
    """One span: its text without tags or outer blanks, where it stood, and whether it was closed."""

    text: str
    location: Literal["think", "answer"]
    closed: bool


@dataclass(frozen=True)
class References:
    """spans: what counts, in order; truncated: a cap cut something off; unclosed: openers that were never closed."""

    spans: tuple[Reference, ...]
    truncated: bool
    unclosed: int

    @property
    def text(self) -> str | None:
        """The spans joined by line breaks; None where there is no reference, which is not an empty one."""
        return "\n".join(s.text for s in self.spans) or None


def parse_references(
    completion: str,
    *,
    opened_by_prompt: bool = False,
    instruction: str = "",
    scope: Scope = "both",
    mode: Mode = "strict",
    clip: Clip | None = None,
    tags: ThoughtTags = THINK,
) -> References:
    """The references of a completion. At most 8 spans and 1,024 tokens, an unclosed one (lenient) at most 512.

    `instruction` is the prompt's text that asks for the tags. `clip` counts tokens: `clip_tokens(tokenizer)`, or
    words when it is None. Never raises on any text.
    """
    clip = clip or clip_words
    parts = split(completion, opened_by_prompt, tags)
    echoes = {text for text, _ in _spans(instruction, lenient=False)}
    found: dict[str, Reference] = {}
    unclosed, truncated = 0, False
    regions: tuple[tuple[Literal["think", "answer"], str], ...] = (
        ("think", parts.thought),
        ("answer", parts.answer or ""),
    )
    for location, region in regions:
        if scope not in (location, "both"):
            continue
        for raw, closed in _spans(region, lenient=True):
            unclosed += not closed
            text = raw if closed else clip(raw, MAX_UNCLOSED_TOKENS).rstrip()
            if not text or text in echoes or (not closed and mode == "strict"):
                continue
            truncated |= text != raw
            found.setdefault(text, Reference(text, location, closed))
    spans, cut = _cap(list(found.values()), clip)
    return References(spans, truncated or cut, unclosed)


def without_references(text: str) -> str:
    """The text around its closed spans: what is left of an answer for a scorer. Stray tags stay, to be found."""
    ends = [0, *(end for pair in _pairs(text)[0] for end in (pair[0], pair[3])), len(text)]
    return "".join(text[a:b] for a, b in zip(ends[::2], ends[1::2], strict=True))


def has_tag(text: str) -> bool:
    """Whether any opening or closing reference tag stands in the text."""
    return _TAG.search(text) is not None


def without_tags(text: str, instead: str = "") -> str:
    """The text with every reference tag replaced, and those that the replacing makes."""
    while _TAG.search(text):
        text = _TAG.sub(instead, text)
    return text


def clip_words(text: str, n: int) -> str:
    """The first `n` words with the blanks between them: the measure where no tokenizer is at hand."""
    words = list(re.finditer(r"\S+", text))
    return text if len(words) <= n else text[: words[n - 1].end() if n else 0]


def clip_tokens(tokenizer: ChatTokenizer) -> Clip:
    """Clipping by this tokenizer's tokens."""

    def clip(text: str, n: int) -> str:
        ends = tokenizer.encode_run(text, first=True).ends
        return text if len(ends) <= n else text[: int(ends[n - 1]) if n else 0]

    return clip


def _spans(text: str, lenient: bool) -> Iterator[tuple[str, bool]]:
    """(text, closed) of the outermost spans, in order. Lenient also gives openers that were never closed."""
    pairs, opened = _pairs(text)
    begun = [*sorted([p[0] for p in pairs] + [m.start() for m in opened]), len(text)]
    spans = [(at, a, b, True) for at, a, b, _ in pairs]
    for m in opened if lenient else ():
        next_span = begun[bisect_right(begun, m.start())]
        end = _UNCLOSED_END.search(text, m.end(), next_span)
        spans.append((m.start(), m.end(), next_span if end is None else end.start(), False))
    for _, a, b, closed in sorted(spans):
        yield without_tags(text[a:b]).strip(), closed


def _pairs(text: str) -> tuple[list[tuple[int, int, int, int]], list[re.Match[str]]]:
    """The outermost closed spans as (start of opener, its end, start of close, its end); the openers never closed."""
    opened: list[re.Match[str]] = []
    pairs: list[tuple[int, int, int, int]] = []
    for tag in _TAG.finditer(text):
        if not tag[1]:
            opened.append(tag)
        elif opened:
            opener = opened.pop()
            while pairs and pairs[-1][0] > opener.start():  # those inside the new pair
                pairs.pop()
            pairs.append((opener.start(), opener.end(), tag.start(), tag.end()))
    return pairs, opened


def _cap(spans: list[Reference], clip: Clip) -> tuple[tuple[Reference, ...], bool]:
    """The spans within the caps on number and tokens, and whether anything was cut."""
    kept: list[Reference] = []
    joined = ""
    for span in spans[:MAX_SPANS]:
        with_this = f"{joined}\n{span.text}" if kept else span.text
        clipped = clip(with_this, MAX_TOKENS)
        if clipped != with_this:
            rest = clipped[len(joined) + bool(kept) :].rstrip()
            return (*kept, *([Reference(rest, span.location, span.closed)] if rest else [])), True
        kept.append(span)
        joined = with_this
    return tuple(kept), len(spans) > MAX_SPANS
