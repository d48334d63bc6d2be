"""Splits what a reasoning model wrote into its thought and its answer. One splitter for scorers, judges and rewards.

The rule: everything up to the last closing tag is thought, what follows it is the answer, and an answer that a new
block interrupts is not finished. A tag counts only where it is not quoted: inside a complete code fence or inline
code of the *answer* it is text. Inside a thought a fence protects nothing, since models leave fences open there.

| shape                          | text                               | opened | thought | answer          | state  |
|--------------------------------|------------------------------------|--------|---------|-----------------|--------|
| pair                           | `<think>a</think>b`                | no     | `a`     | `b`             | closed |
| close only, opener in prompt   | `a</think>b`                       | yes    | `a`     | `b`             | closed |
| close only, opener unknown     | `a</think>b`                       | no     | `a`     | `b`             | closed |
| open only                      | `<think>a`                         | no     | `a`     | (none)          | open   |
| cut, opener in prompt          | `a`                                | yes    | `a`     | (none)          | open   |
| two blocks                     | `<think>a</think>b<think>c</think>d` | no   | `abc`   | `d`             | closed |
| second block cut               | `<think>a</think>b\\n<think>c`      | no     | `ab\\nc` | (none)          | open   |
| nested                         | `<think>a<think>b</think>c</think>d` | no   | `abc`   | `d`             | closed |
| opener only mentioned, in line | `<think>a</think>the <think> tag`  | no     | `a`     | `the <think> tag` | closed |
| tag inside code                | ``write `</think>` here``          | no     | (empty) | the whole text  | none   |
| none                           | `b`                                | no     | (empty) | `b`             | none   |

gpt-oss writes messages in channels (harmony), each with a header; `A`, `C` and `F` stand for the headers of analysis,
commentary and final, `E` for `<|end|>`. Only the last final message is the answer:

| shape                     | text         | thought | answer | state  |
|---------------------------|--------------|---------|--------|--------|
| thought and answer        | `AaEFb`      | `a`     | `b`    | closed |
| answer alone              | `Fb`         | (empty) | `b`    | closed |
| cut in the thought        | `Aa`         | `a`     | (none) | open   |
| a remark between          | `AaECbEFc`   | `ab`    | `c`    | closed |
| a tool is called          | `AaECb`      | `ab`    | (none) | open   |
| thinks again, cut         | `FaEAb`      | `ab`    | (none) | open   |
| two answers               | `FaEFb`      | `a`     | `b`    | closed |
| answer ended, header cut  | `FaE` + half | (empty) | `a`    | closed |
| no header                 | `a`          | (empty) | `a`    | none   |

Nothing is lost but tags: `thought + (answer or "")` is the text without the tags that counted. Nothing is stripped,
so a caller that wants a trimmed answer trims it. (The table's `\\n` is a line break: an opener without a close after
it counts only at the start of a line.)
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True)
class ThoughtTags:
    """How a model family marks its thoughts: two regular expressions, and the control tokens that they are made of.

    tail: what a text may end with that is none of it. inline: an opener counts wherever it stands in a line.
    frame: how thought and answer are to be written; None for tags that are the two tokens, on lines of their own.
    """

    open: str
    close: str
    tokens: tuple[str, ...]
    tail: str = r"(?!)"
    inline: bool = False
    frame: str | None = None

    def written(self, thought: str, answer: str) -> str:
        """A whole completion, which `split` takes apart again."""
        return (self.frame or "{}\n{{}}\n{}\n\n{{}}".format(*self.tokens)).format(thought, answer)


_HEADER = (
    r"(?:<\|end\|>)?(?:<\|start\|>assistant)?(?: to=[^<]*)?<\|channel\|>{}[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>"
)
FAMILIES: dict[str, ThoughtTags] = {
    "think": ThoughtTags(r"<think>", r"</think>", ("<think>", "</think>")),
    "mistral": ThoughtTags(r"\[THINK\]", r"\[/THINK\]", ("[THINK]", "[/THINK]")),
    "seed": ThoughtTags(r"<seed:think>", r"</seed:think>", ("<seed:think>", "</seed:think>")),
    "harmony": ThoughtTags(
        _HEADER.format("(?:analysis|commentary)"),
        _HEADER.format("final"),
        ("<|start|>", "<|end|>", "<|channel|>", "<|constrain|>", "<|message|>"),
        tail=r"<\|end\|>(?:<\|start\|>[^<]*(?:<\|channel\|>[^<]*)?)?\Z",
        inline=True,
        frame="<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>{}",
    ),
}
THINK = FAMILIES["think"]


def family_of(vocabulary: Collection[str]) -> str:
    """The family whose markers all are in `vocabulary`, "think" when none is (its tags are then ordinary text)."""
    for name, tags in FAMILIES.items():
        if all(token in vocabulary for token in tags.tokens):
            return name
    return "think"


class ThoughtState(StrEnum):
    NONE = "none"
    """No thought tag: the whole text is the answer."""
    CLOSED = "closed"
    OPEN = "open"
    """The text ended inside a thought: there is no answer."""


@dataclass(frozen=True)
class Thoughts:
    """`answer` is None where the thought was never closed: absent, which is not the same as empty."""

    thought: str
    answer: str | None
    state: ThoughtState

    @property
    def closed(self) -> bool:
        return self.state is not ThoughtState.OPEN


def split(text: str, opened_by_prompt: bool = False, tags: ThoughtTags = THINK) -> Thoughts:
    """Thought and answer of a completion; see the table above.

    `opened_by_prompt`: the prompt's last words are an opening tag, so the completion begins inside the thought.
    """
    start, inside, seen = 0, opened_by_prompt, opened_by_prompt
    while True:
        opener, close = _next_tags(text, start, inside, tags)
        seen = seen or opener is not None or close is not None
        if close is None:
            break
        start, inside = close.end(), False
    if not seen:
        return Thoughts("", text, ThoughtState.NONE)
    if inside or opener is not None:
        return Thoughts(_without_tags(re.sub(tags.tail, "", text), tags), None, ThoughtState.OPEN)
    return Thoughts(_without_tags(text[:start], tags), re.sub(tags.tail, "", text[start:]), ThoughtState.CLOSED)


def split_ids(
    ids: Sequence[int], open_ids: Collection[int], close_ids: Collection[int], opened_by_prompt: bool = False
) -> tuple[int, ThoughtState]:
    """The same on token ids, for families whose tags are single tokens: (index of the answer's first token, state).

    `ids[:index]` is the thought, tags included; with state OPEN the index is len(ids). A tag that the model wrote as
    several ordinary tokens is not seen here, which is right: it is text.
    """
    state, answer = (ThoughtState.OPEN if opened_by_prompt else ThoughtState.NONE), 0
    for i, token in enumerate(ids):
        if token in close_ids:
            state, answer = ThoughtState.CLOSED, i + 1
        elif token in open_ids:
            state = ThoughtState.OPEN
    return (len(ids), state) if state is ThoughtState.OPEN else (answer, state)


def opens_thought(prompt_text: str, tags: ThoughtTags = THINK) -> bool:
    """Whether a rendered prompt ends with an opening tag, as the thinking-only Qwen3 templates do."""
    return re.search(rf"(?:{tags.open})\s*\Z", prompt_text) is not None


_FENCE = re.compile(
    r"^[ ]{0,3}(?P<fence>`{3,}|~{3,})[^\n]*\n(?:.*?\n)??[ ]{0,3}(?P=fence)[`~]*[ ]*$", re.MULTILINE | re.DOTALL
)
_INLINE = re.compile(r"(?<!`)(`+)(?!`)[^\n]*?(?<!`)\1(?!`)")


def _next_tags(
    text: str, start: int, inside: bool, tags: ThoughtTags
) -> tuple[re.Match[str] | None, re.Match[str] | None]:
    """The opener and the first close that count in `text[start:]`. Once a block is open, quoting hides no close."""
    close_re = re.compile(tags.close)
    if inside:
        return None, close_re.search(text, start)
    quoted = _quoted(text, start)
    opener = next(
        (m for m in re.compile(tags.open).finditer(text, start) if _begins_block(text, start, m, quoted, tags)), None
    )
    close = next((m for m in close_re.finditer(text, start) if not _within(m, quoted)), None)
    if opener is not None and (close is None or opener.start() < close.start()):
        return opener, close_re.search(text, opener.end())
    return None, close


def _quoted(text: str, start: int) -> list[tuple[int, int]]:
    """Spans of complete code fences and inline code in `text[start:]`, which is read as a text of its own."""
    rest = text[start:]
    if "`" not in rest and "~~~" not in rest:
        return []
    fences = [m.span() for m in _FENCE.finditer(rest)]
    inline = [m.span() for m in _INLINE.finditer(rest)]
    return [(a + start, b + start) for a, b in fences + inline]


def _within(match: re.Match[str], spans: list[tuple[int, int]]) -> bool:
    return any(a <= match.start() and match.end() <= b for a, b in spans)


def _begins_block(
    text: str, start: int, match: re.Match[str], quoted: list[tuple[int, int]], tags: ThoughtTags
) -> bool:
    line = text[max(start, text.rfind("\n", 0, match.start()) + 1) : match.start()]
    return (tags.inline or not line.strip()) and not _within(match, quoted)


def _without_tags(text: str, tags: ThoughtTags) -> str:
    return re.sub(rf"{tags.open}|{tags.close}", "", text)
