"""A task: everything that is particular to one dataset, declared in a YAML file of tasks/ and versioned.

Raise `version` whenever prompt, extraction, metric or default options change: results of two versions do not compare.
"""

from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal, Self

import jinja2
import yaml
from pydantic import Field, field_validator, model_validator

from noisyjax.config import Schema, validate
from noisyjax.errors import UsageError, nearest
from noisyjax.scoring import ScoreOptions


class Hub(Schema):
    """Where the dataset lives on the hub, in the words of `datasets.load_dataset`."""

    dataset: str
    config: str | None = None
    split: str
    revision: str | None = None
    """A commit, tag or branch; null takes the newest, so pin it for published numbers."""
    data_files: str | None = None
    where: dict[str, Any] = Field(default_factory=dict)
    """Keep only rows whose columns have these values."""
    options: dict[str, Any] = Field(default_factory=dict)
    gated: bool = False


class Layout(Schema):
    """One way the dataset's files may lie in a folder.

    Each entry of `files` is a list of globs separated by blanks, of which the first that matches counts; all entries
    must match. `optional` entries need not. Globs are tried in `data/<task.folder>` first and in `data` after it.
    """

    name: str
    files: tuple[str, ...]
    optional: tuple[str, ...] = ()
    options: dict[str, Any] = Field(default_factory=dict)
    """Reader options that hold for this layout; they go before the task's and after the user's."""


class Task(Schema):
    name: str
    version: int = Field(ge=1)
    title: str
    short: str
    """Column head in tables."""
    status: Literal["ready", "absent"] = "ready"
    absent_because: str = ""
    reader: str = ""
    folder: str = ""
    layouts: tuple[Layout, ...] = ()
    hub: Hub | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    """Defaults of the reader's options."""
    system: str = ""
    prompt: str = ""
    """Jinja template of the question with its answer instruction: sees text, choices [(letter, text)], evidence."""
    score: ScoreOptions | None = None
    """Metric, extraction and headline; None only for an absent dataset."""
    judge: bool = False
    """Whether a judge, where one is configured, reads again what the rules call wrong: free-form answers."""
    k: Annotated[int, Field(ge=1)] = 1
    n: Annotated[int, Field(ge=1)] = 1
    """Samples per question by default; pass@1 mean is always reported beside pass@k."""
    hard_negatives: Literal["builtin", "jsonl"] = "jsonl"
    licence: str = ""
    canary: str = ""
    notes: str = ""

    @field_validator("prompt")
    @classmethod
    def _compiles(cls, text: str) -> str:
        template(text)
        return text

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.status == "ready" and not (self.reader and self.layouts and self.prompt and self.score):
            raise ValueError("a task that is ready needs reader, layouts, prompt and score")
        if self.n < self.k:
            raise ValueError(f"pass@{self.k} needs at least {self.k} samples, n is {self.n}")
        return self


@cache
def template(text: str) -> jinja2.Template:
    """A strict Jinja template: a misspelt variable is an error, never an empty string."""
    env = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False)
    return env.from_string(text)


@cache
def all_tasks() -> dict[str, Task]:
    """Every task of the package by name, in the paper's column order."""
    tasks = {}
    for file in resources.files("noisyjax.bench").joinpath("tasks").iterdir():
        if file.name.endswith(".yaml"):
            task = parse_task(file.read_text(), file.name)
            tasks[task.name] = task
    order = {name: i for i, name in enumerate(ORDER)}
    return dict(sorted(tasks.items(), key=lambda kv: (order.get(kv[0], len(order)), kv[0])))


ORDER = (
    "sealqa",
    "multihop_rag",
    "musique",
    "aime25",
    "bbeh_mini",
    "gpqa_diamond",
    "self_awareness",
    "survival_instinct",
    "bbq",
    "tau_retail",
    "tau_airline",
)
"""The paper's columns: retrieval, reasoning, alignment, tools."""


def parse_task(text: str, name: str) -> Task:
    """A task from YAML. Raises UsageError that names the file and the field."""
    try:
        return validate(Task, yaml.safe_load(text), f"task file {name}")
    except (yaml.YAMLError, jinja2.TemplateError) as error:
        raise UsageError(f"task file {name}: {error}") from error


def get_task(name: str) -> Task:
    """The task called `name`. Raises UsageError with the nearest name."""
    tasks = all_tasks()
    if name not in tasks:
        raise UsageError(f"unknown dataset '{name}': {nearest(name, tasks)}")
    return tasks[name]
