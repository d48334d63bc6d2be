"""The benchmark's part of a config: which questions, which noise, how it is laid around the question."""

from difflib import get_close_matches
from itertools import combinations
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from noisyjax.bench.task import get_task
from noisyjax.config import Schema
from noisyjax.errors import UsageError
from noisyjax.records import NOISE_KINDS, SETTINGS, noise_kinds

Assignment = Literal["shared_block", "per_question"]
Position = Literal["before", "after", "both", "mixed"]


class PoolConfig(Schema):
    """A pool of random distractors and how much of it a question gets."""

    files: tuple[str, ...] = ()
    """Files of the pool; by default those that lie in the data folder are found."""
    hub_rows: Annotated[int, Field(ge=1)] = 2000
    """Rows to stream from the hub when `data: hub`."""
    assignment: Assignment = "shared_block"
    """shared_block: one ordered block for every question (the paper's way; prompts share it as a prefix).
    per_question: drawn by (seed, question id)."""
    pool: Annotated[int, Field(ge=1)] = 100
    """Groups drawn from the file by `block_seed`: 100 documents, 20 chats in the paper."""
    count: Annotated[int | None, Field(ge=0)] = None
    """Groups a question gets; null is the whole pool."""


class ChatPoolConfig(PoolConfig):
    pool: Annotated[int, Field(ge=1)] = 20
    form: Literal["turns", "text"] = "turns"
    """turns: real chat turns before the question. text: one block in the question's message."""
    language: str = "English"
    min_turns: Annotated[int, Field(ge=1)] = 2
    max_turns: Annotated[int, Field(ge=1)] = 10


class NegativesConfig(Schema):
    files: tuple[str, ...] = ()
    """JSON lines {dataset, question_id, text}; by default hard_negatives*.jsonl of the data folder."""
    count: Annotated[int, Field(ge=0, le=10)] = 1
    """Documents a question gets (the entropy figure goes from 0 to 10)."""
    prefer: Literal["builtin", "file"] = "builtin"
    """Which to take where the benchmark ships negatives and the file has some too."""


class DatasetOverride(Schema):
    """What differs for one dataset."""

    questions: Annotated[int | None, Field(ge=1)] = None
    layout: str | None = None
    files: tuple[str, ...] = ()
    """Globs: of the layout's files only those that match one."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the dataset's reader."""


class BenchConfig(Schema):
    """Everything that decides which prompts are made, and nothing else."""

    datasets: tuple[str, ...] = ("quickstart_facts", "quickstart_choice")
    settings: tuple[str, ...] = SETTINGS
    """ND, RD, RC, HN, or mixtures such as RD+HN (these need distractor_tokens, their constant total)."""
    data: str = "quickstart"
    """A folder of upstream files, `hub`, or `quickstart` (the benchmark that comes with the package)."""
    questions: Annotated[int | None, Field(ge=1)] = None
    """Questions per dataset, chosen by seeded hash of their ids; null is all."""
    seed: int = 0
    """Of everything that is drawn per question: subset, options, per-question noise."""
    block_seed: int = 0
    """Of the shared blocks alone. The bootstrap does not see this variance: run three or more to publish."""
    rd: PoolConfig = PoolConfig()
    rc: ChatPoolConfig = ChatPoolConfig()
    hn: NegativesConfig = NegativesConfig()
    position: Position = "before"
    """Where the noise stands, seen from evidence and question. both: the first half before, the rest after.
    mixed: documents of noise and evidence before the question, in one order drawn by (seed, question id)."""
    distractor_tokens: Annotated[int | None, Field(ge=1)] = None
    """Noise a prompt may hold, in tokens of the model; whole units are dropped from the end. Mixtures share it."""
    max_prompt_tokens: Annotated[int | None, Field(ge=1)] = None
    """Longest prompt; the noise gives way, the question never does (it is flagged over_length)."""
    contamination: Literal["drop_question", "swap_unit"] = "drop_question"
    """When a distractor holds the answer: drop_question removes the question from every setting (the paper's way).
    swap_unit takes the next unit of the pool instead and keeps the question; a swapped shared block shares its prefix
    only up to the swap."""
    min_answer_chars: Annotated[int, Field(ge=1)] = 4
    """Shorter answers (numbers up to 999, single letters) are not looked for: they occur everywhere by chance."""
    min_option_words: Annotated[int, Field(ge=1)] = 4
    """Multiple choice: shorter gold options are not looked for; a noun that is mentioned gives nothing away."""
    prompting: Literal["plain", "cic"] = "plain"
    """cic: the documents as an addressed corpus from which the model first names what it uses (the paper's Prompting
    rows). Chat turns become lines of the corpus too."""
    skip_bad: bool = False
    """Go on without rows that cannot be read, and count them."""
    overrides: dict[str, DatasetOverride] = Field(default_factory=dict)

    @field_validator("settings")
    @classmethod
    def _known_settings(cls, settings: tuple[str, ...]) -> tuple[str, ...]:
        for setting in settings:
            try:
                noise_kinds(setting)
            except ValueError as error:
                raise ValueError(f"{error}{_near_setting(setting)}") from error
        if len(set(settings)) != len(settings):
            raise ValueError("a setting is named twice")
        return settings

    @field_validator("datasets")
    @classmethod
    def _known_datasets(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            _known(name)
        if len(set(names)) != len(names):
            raise ValueError("a dataset is named twice")
        return names

    @field_validator("overrides")
    @classmethod
    def _known_overrides(cls, overrides: dict[str, DatasetOverride]) -> dict[str, DatasetOverride]:
        for name in overrides:
            _known(name)
        return overrides

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        mixtures = [s for s in self.settings if len(noise_kinds(s)) > 1]
        if mixtures and self.distractor_tokens is None:
            raise ValueError(f"{mixtures[0]} is compared at constant total length: set distractor_tokens")
        if self.position != "before" and self.prompting == "cic":
            raise ValueError(
                "prompting=cic puts all documents into one corpus before the question: use position=before"
            )
        if self.position in ("after", "both") and self.rc.form == "turns" and self.asks_for("RC"):
            raise ValueError(f"position={self.position} needs rc.form=text: chat turns cannot follow the question")
        return self

    def asks_for(self, kind: str) -> bool:
        """Whether any setting holds `kind`."""
        return any(kind in noise_kinds(setting) for setting in self.settings)

    def override(self, dataset: str) -> DatasetOverride:
        return self.overrides.get(dataset, DatasetOverride())


def _known(name: str) -> None:
    try:
        get_task(name)
    except UsageError as error:
        raise ValueError(str(error)) from error


def _near_setting(setting: str) -> str:
    """With names of two letters one wrong letter is half of the name, so that a bar lower than usual is tried too."""
    known = [*SETTINGS, *("+".join(kinds) for n in (2, 3) for kinds in combinations(NOISE_KINDS, n))]
    word = setting.upper()
    near = get_close_matches(word, known, n=1) or get_close_matches(word, known, n=2, cutoff=0.5)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
