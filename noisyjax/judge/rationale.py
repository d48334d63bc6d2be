"""Does this reference hold what the gold reference holds? Asked of a model that compares strictly (RARE's judge)."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from noisyjax.chat import ChatTokenizer
from noisyjax.judge.asking import MATERIAL, Form, JudgeConfig, judge_items
from noisyjax.judge.cache import VerdictCache
from noisyjax.judge.guard import neutralise
from noisyjax.records import Engine, Verdict

_INSTRUCTION = f"""\
You compare references strictly. You are given a question, a gold reference that holds what helps to answer it, and a \
candidate reference that somebody wrote down before answering{{given}}. Decide whether the candidate conveys the \
useful content of the gold reference. Do not answer the question and do not add knowledge of your own: the gold \
reference is right even where you would disagree.

Choose one word:
YES - all that the gold reference holds and that matters for the question is in the candidate, copied or in other \
words, with the same names, numbers and relations. Order and wording do not matter, nor does further detail that fits.
NO - something that matters is missing, vague, changed, or said of another thing; or the candidate contradicts the \
gold reference, offers alternatives, only repeats the question, or only claims to hold the content. A candidate that \
leaves you in doubt is a NO.{{also}}

Examples, for a question about how much longer one bridge is than another, with the gold reference "The old bridge is \
503 m long. The new bridge is 620 m long.":
"new bridge: 620 m, old one: 503 m" is YES: both lengths, each with its bridge.
"The old bridge is 620 m long, the new one 503 m" is NO: the lengths are exchanged.
"The new bridge is 620 m long" is NO: one of two is missing.
"The lengths of both bridges are known" is NO: it claims the content and does not hold it.

{MATERIAL}"""

INSTRUCTION = _INSTRUCTION.format(given="", also="")
WITH_DISTRACTOR = _INSTRUCTION.format(
    given="; and a distractor text, which does not help to answer",
    also=" A candidate that for the most part copies or retells the distractor text is a NO as well, even where the "
    "gold content stands in it.",
)


class Conveys(StrEnum):
    """What a rationale judge may say."""

    YES = "yes"
    NO = "no"


@dataclass(frozen=True)
class RationaleItem:
    """One reference to be judged. `candidate` is what the policy wrote inside its reference tags, without the tags.

    `gold` is the hint. With a `distractor`, a candidate that mostly reproduces it fails; None leaves that unasked.
    """

    question: str
    gold: str
    candidate: str
    distractor: str | None = None

    @property
    def golds(self) -> tuple[str, ...]:
        return (self.gold,)

    @property
    def context(self) -> tuple[str, ...]:
        return () if self.distractor is None else (self.distractor,)


def _blocks(item: RationaleItem, config: JudgeConfig) -> Sequence[tuple[str, str]]:
    distractor = neutralise(item.distractor or "", config.question_chars)
    return (
        ("question", neutralise(item.question, config.question_chars)),
        *([("distractor text", distractor)] if item.distractor is not None else []),
        ("gold reference", neutralise(item.gold, config.candidate_chars)),
        ("candidate reference", neutralise(item.candidate, config.candidate_chars)),
    )


RATIONALE: Form[RationaleItem] = Form(
    name="rationale",
    labels=Conveys,
    passes=Conveys.YES,
    absent=Conveys.NO,
    wordings=(INSTRUCTION, WITH_DISTRACTOR),
    instruction=lambda item: INSTRUCTION if item.distractor is None else WITH_DISTRACTOR,
    blocks=_blocks,
)


def judge_rationales(
    engine: Engine,
    items: Sequence[RationaleItem],
    cache: VerdictCache | None = None,
    config: JudgeConfig | None = None,
    tokenizer: ChatTokenizer | None = None,
) -> list[Verdict]:
    """`judge_items` on references: True where the candidate conveys the gold reference.

    A distractor longer than `config.question_chars` loses its middle, so what was copied from there goes unseen.
    """
    return judge_items(RATIONALE, engine, items, cache, config, tokenizer)
