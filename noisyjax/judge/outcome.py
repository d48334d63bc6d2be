"""Is this final answer right? Asked of a model, which sees the final answer alone and never the reasoning."""

from collections.abc import Sequence
from dataclasses import dataclass

from noisyjax.chat import ChatTokenizer
from noisyjax.judge.asking import MATERIAL, Form, JudgeConfig, judge_items
from noisyjax.judge.cache import VerdictCache
from noisyjax.judge.guard import neutralise
from noisyjax.judge.parse import Label
from noisyjax.records import Engine, Verdict

INSTRUCTION = f"""\
You check answers. You are given a question, the answers that are accepted for it, and a candidate answer. Decide \
whether the candidate says the same as an accepted answer. Do not solve the question yourself: the accepted answers \
are right even where you would disagree.

Choose one word:
CORRECT - the candidate commits to an accepted answer and nothing in it contradicts that answer. Wording, spelling, \
case, the way numbers and units are written, and further detail that fits do not matter.
INCORRECT - the candidate commits to something else, contradicts the accepted answers, or offers several answers of \
which some are not accepted.
NOT_ATTEMPTED - the candidate commits to nothing: it declines, asks back, or says that it does not know.

Examples, for a question about the year in which a bridge was opened, where 1932 is accepted:
"It was opened in 1932, on a rainy day in March" is CORRECT: it commits to the year, and the rest fits.
"In the year nineteen thirty-two" is CORRECT: only the wording differs.
"1931" and "around 1930" are INCORRECT: near is not the same.
"Either 1932 or 1935" is INCORRECT: it does not commit to what is accepted.
"Opened in 1932, but the source is wrong and 1935 is right" is INCORRECT: it takes the accepted answer back.
"I would have to look that up" is NOT_ATTEMPTED.

{MATERIAL}"""


@dataclass(frozen=True)
class OutcomeItem:
    """One answer to be judged. `candidate` is the final answer alone, `answers` are the gold answer and its aliases."""

    question: str
    answers: tuple[str, ...]
    candidate: str

    @property
    def golds(self) -> tuple[str, ...]:
        return self.answers

    @property
    def context(self) -> tuple[str, ...]:
        return ()


def _blocks(item: OutcomeItem, config: JudgeConfig) -> Sequence[tuple[str, str]]:
    answers = (neutralise(answer, config.candidate_chars) for answer in item.answers)
    return (
        ("question", neutralise(item.question, config.question_chars)),
        ("accepted answers", "\n".join(f"- {answer}" for answer in answers)),
        ("candidate answer", neutralise(item.candidate, config.candidate_chars)),
    )


OUTCOME: Form[OutcomeItem] = Form(
    name="outcome",
    labels=Label,
    passes=Label.CORRECT,
    absent=Label.NOT_ATTEMPTED,
    wordings=(INSTRUCTION,),
    instruction=lambda item: INSTRUCTION,
    blocks=_blocks,
)
judge_id = OUTCOME.judge_id


def judge_outcomes(
    engine: Engine,
    items: Sequence[OutcomeItem],
    cache: VerdictCache | None = None,
    config: JudgeConfig | None = None,
    tokenizer: ChatTokenizer | None = None,
) -> list[Verdict]:
    """`judge_items` on answers: True for correct, False for incorrect or not attempted."""
    return judge_items(OUTCOME, engine, items, cache, config, tokenizer)
