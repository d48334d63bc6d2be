"""The data's part of a training config: which records, in which order, and what is made of each."""

from typing import Annotated, Any, Literal, Self

import jinja2
from pydantic import Field, field_validator, model_validator

from noisyjax.bench.schema import Position
from noisyjax.bench.task import template
from noisyjax.config import Schema

REFERENCE_SUFFIX = (
    "Before you answer, write the information that helps with the question, and nothing else, "
    "inside <reference>...</reference>. Then answer."
)
"""What the rationale reward and SFT ask for. Between its tags stand three dots, which never count as a reference."""


class PromptConfig(Schema):
    """How a record becomes a prompt; the layout is that of evaluation, by the same code."""

    system: str = ""
    question: str = "{{ text }}"
    """Jinja template of the question with its answer instruction; sees text and evidence (whether there is any)."""
    ask_reference: bool = True
    """Whether the prompt ends in `suffix`. The control without rationale reward keeps it, or two things differ."""
    suffix: str = REFERENCE_SUFFIX
    position: Position = "before"
    """Where the noise stands, as in evaluation. mixed: among the evidence, in an order drawn by (seed, record id)."""
    order_seed: int = 0
    """Draws the order of position=mixed."""
    rc_form: Literal["turns", "text"] = "turns"
    """turns: random chat as turns of the conversation. text: as a block in the question's message."""
    max_prompt_tokens: Annotated[int | None, Field(ge=1)] = 4096
    """Longest prompt. Whole distractors give way; a record whose question alone is longer is left out and counted."""
    overlong: Literal["fit", "drop"] = "fit"
    """fit: leave out distractors until the prompt fits. drop: leave out every record that does not fit as it is."""
    template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """For the chat template, such as enable_thinking."""

    @field_validator("question")
    @classmethod
    def _compiles(cls, text: str) -> str:
        try:
            said = template(text).render(text="\x00", evidence=False)
        except jinja2.TemplateError as error:
            raise ValueError(f"not a template of text and evidence: {error}") from error
        if "\x00" not in said:
            raise ValueError("the template leaves the question out; write {{ text }} in it")
        return text

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.position in ("after", "both") and self.rc_form == "turns":
            raise ValueError(f"position={self.position} needs rc_form=text: chat turns cannot follow the question")
        if self.ask_reference and not self.suffix.strip():
            raise ValueError("ask_reference=true needs a suffix that asks")
        return self


class TargetConfig(Schema):
    """What SFT teaches."""

    form: Literal["reference", "thought", "answer"] = "reference"
    """reference: the hint in its tags, then the answer. thought: the same, the reference inside the thought, and behind
    it the record's working if there is one. answer: the answer alone. Records without a hint are left out and counted,
    except with `answer`."""
    max_tokens: Annotated[int | None, Field(ge=1)] = 8192
    """Longest example, prompt and target (the paper's cutoff). Distractors give way, the target never does."""


class DataConfig(Schema):
    """Training data. The order is drawn by the run's seed."""

    files: tuple[str, ...] = ()
    """Files or folders of shards: .jsonl, .parquet, .array_record."""
    kind: Literal["instruct", "chat"] = "instruct"
    """instruct: NoisyInstruct records. chat: conversations {messages: [...]}, for SFT only."""
    shuffle: bool = True
    """Whether each epoch has an order of its own; false reads in the files' order."""
    epochs: Annotated[int | None, Field(ge=1)] = None
    """Passes over the data; null goes on until the run's steps are done."""
    skip_bad: bool = False
    """Go on without rows that cannot be used, and count them."""
    check: bool = True
    """Read everything once before the run starts. false is for sets that take minutes to read."""
    threads: Annotated[int, Field(ge=0, json_schema_extra={"affects_results": False})] = 2
    """Threads that prepare examples while the device works; 0 prepares each when it is asked for."""
    ahead: Annotated[int, Field(ge=1, json_schema_extra={"affects_results": False})] = 64
    """Examples prepared ahead."""
    prompt: PromptConfig = PromptConfig()
    target: TargetConfig = TargetConfig()
