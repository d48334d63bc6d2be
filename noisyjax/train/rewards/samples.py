"""What a reward looks at: a prompt's parts, and a completion read by the one splitter and the one reference parser."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from noisyjax.chat.reference import Clip, References, has_tag, parse_references, without_references
from noisyjax.chat.thoughts import THINK, Thoughts, ThoughtState, ThoughtTags, split
from noisyjax.records import Finish
from noisyjax.train.rewards.config import RewardConfig


@dataclass(frozen=True)
class Case:
    """What one prompt was made of. Its samples are a group, named by `id`, which is unique in a batch."""

    id: str
    prompt: str
    """The text that the model saw."""
    question: str
    answers: tuple[str, ...]
    """The gold answer and its aliases."""
    hint: str | None = None
    """The gold reference, shown in the prompt or not. Where it is absent or blank, RARE has nothing to compare with."""
    evidence: tuple[str, ...] = ()
    """Passages that belong to the question."""
    distractors: tuple[str, ...] = ()
    """Texts of the noise that the prompt kept."""
    instruction: str = ""
    """The prompt's words that ask for a reference; empty where it asks for none."""
    opened_by_prompt: bool = False
    """Whether the prompt ends with an opening thought tag, so that completions begin inside the thought."""
    setting: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def gold(self) -> str | None:
        """The gold reference, None where there is none."""
        return self.hint if self.hint is not None and self.hint.strip() else None

    @property
    def relevant(self) -> tuple[str, ...]:
        """Question, evidence and hint: all that a good thought may lean on."""
        return (self.question, *self.evidence, *((self.hint,) if self.hint else ()))

    @property
    def noise(self) -> tuple[str, ...]:
        """The distractors that hold any text."""
        return tuple(text for text in self.distractors if text.strip())


class Fault(StrEnum):
    """What may be wrong with the form of a completion."""

    NO_THOUGHT = "no_thought"
    """A thought was demanded and there is none, or it was never closed."""
    SEVERAL_CLOSES = "several_closes"
    NO_ANSWER = "no_answer"
    NO_REFERENCE = "no_reference"
    TAG_IN_ANSWER = "tag_in_answer"


@dataclass(frozen=True)
class Sample:
    """One completion. `answer` is what follows the thought, without its closed references; None where the thought was
    never closed. `faults` are all that is wrong with its form; none means that the format is ok."""

    case: Case
    completion: str
    finish: Finish
    thoughts: Thoughts
    answer: str | None
    references: References
    faults: tuple[Fault, ...]

    @property
    def reference(self) -> str | None:
        """The candidate for the rationale judge; None where the completion holds no reference."""
        return self.references.text

    @property
    def answered(self) -> bool:
        return self.answer is not None and bool(self.answer.strip())

    @property
    def reasoning(self) -> str:
        """The thought, or all of a completion that marks none."""
        return self.completion if self.thoughts.state is ThoughtState.NONE else self.thoughts.thought

    @property
    def cut(self) -> bool:
        return self.finish is Finish.LENGTH

    @property
    def void(self) -> bool:
        """Whether nothing was generated: the engine gave up, or the prompt left no room."""
        return self.finish in (Finish.ERROR, Finish.OVER_LENGTH)


def read_sample(
    case: Case,
    completion: str,
    finish: Finish,
    config: RewardConfig,
    *,
    clip: Clip | None = None,
    tags: ThoughtTags = THINK,
) -> Sample:
    """A completion, read. `clip` counts the tokens of references (`chat.reference.clip_tokens`), words when None.

    Never raises on any completion.
    """
    thoughts = split(completion, case.opened_by_prompt, tags)
    references = parse_references(
        completion,
        opened_by_prompt=case.opened_by_prompt,
        instruction=case.instruction,
        scope=config.reference.scope,
        mode=config.reference.mode,
        clip=clip,
        tags=tags,
    )
    answer = None if thoughts.answer is None else without_references(thoughts.answer)
    faults = _faults(case, completion, thoughts, answer, references, config, tags)
    return Sample(case, completion, finish, thoughts, answer, references, faults)


def _faults(
    case: Case,
    completion: str,
    thoughts: Thoughts,
    answer: str | None,
    references: References,
    config: RewardConfig,
    tags: ThoughtTags,
) -> tuple[Fault, ...]:
    """All faults of form. Tags are counted where they stand, quoted or not: the format leaves no room for argument."""
    whole_answer = thoughts.answer or ""
    # A reference that may stand in the answer is no leak; a tag of it that has no partner is.
    checked = whole_answer if config.reference.scope == "think" else answer or ""
    unclosed = thoughts.state is ThoughtState.OPEN or (thoughts.state is ThoughtState.NONE and config.format.thought)
    closed_reference = any(span.closed for span in references.spans)
    found = {
        Fault.NO_THOUGHT: unclosed,
        Fault.SEVERAL_CLOSES: len(re.findall(tags.close, completion)) > 1,
        Fault.NO_ANSWER: answer is None or not answer.strip(),
        Fault.NO_REFERENCE: config.demands_reference(bool(case.instruction.strip())) and not closed_reference,
        Fault.TAG_IN_ANSWER: has_tag(checked) or re.search(f"{tags.open}|{tags.close}", whole_answer) is not None,
    }
    return tuple(fault for fault, present in found.items() if present)
