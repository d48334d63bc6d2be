"""Does this reasoning lean on the noise beside it? Asked of a model; the lexical figure of training is its rule."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from noisyjax.chat import ChatTokenizer
from noisyjax.judge.asking import MATERIAL, Form, JudgeConfig, judge_items
from noisyjax.judge.cache import VerdictCache
from noisyjax.judge.guard import neutralise
from noisyjax.records import Engine, Verdict

INSTRUCTION = f"""\
You read how somebody reasoned. You are given a question, noise that stood beside it and does not help to answer it, \
perhaps a hint that does, and the reasoning. Decide whether the reasoning leans on the noise. Do not answer the \
question, and do not decide whether the reasoning is right.

Choose one word:
YES - some step takes a fact, a number, a name or a claim from the noise as evidence for the answer, or sets out to \
answer something that only the noise asks.
NO - the noise is not mentioned, or it is mentioned only to be set aside; or what is used stands in the question or \
the hint as well.

{MATERIAL}"""


class Leans(StrEnum):
    """What a judge of distraction may say."""

    YES = "yes"
    NO = "no"


@dataclass(frozen=True)
class DistractionItem:
    """One thought to be judged. `candidate` is the reasoning, `distractors` the noise it is held against."""

    question: str
    distractors: tuple[str, ...]
    candidate: str
    hint: str | None = None

    @property
    def golds(self) -> tuple[str, ...]:
        return self.distractors

    @property
    def context(self) -> tuple[str, ...]:
        return () if self.hint is None else (self.hint,)


def _blocks(item: DistractionItem, config: JudgeConfig) -> Sequence[tuple[str, str]]:
    hint = [("hint", neutralise(item.hint, config.question_chars))] if item.hint is not None else []
    noise = "\n\n".join(item.distractors)
    return (
        ("question", neutralise(item.question, config.question_chars)),
        *hint,
        ("noise", neutralise(noise, config.candidate_chars)),
        ("reasoning", neutralise(item.candidate, config.candidate_chars)),
    )


DISTRACTION: Form[DistractionItem] = Form(
    name="distraction",
    labels=Leans,
    passes=Leans.YES,
    absent=Leans.NO,
    wordings=(INSTRUCTION,),
    instruction=lambda item: INSTRUCTION,
    blocks=_blocks,
)


def judge_distractions(
    engine: Engine,
    items: Sequence[DistractionItem],
    cache: VerdictCache | None = None,
    config: JudgeConfig | None = None,
    tokenizer: ChatTokenizer | None = None,
) -> list[Verdict]:
    """`judge_items` on thoughts: True where the reasoning leans on the noise.

    Noise and reasoning beyond `config.candidate_chars` each lose their middle, and what is there goes unseen.
    """
    return judge_items(DISTRACTION, engine, items, cache, config, tokenizer)
