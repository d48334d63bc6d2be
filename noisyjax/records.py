"""The frozen records that flow through the rooms.

    Question (+ Units) -> NoisyPrompt -> Request -> engine -> Completion -> scoring (+ judge) -> Score -> store

Legend for array fields: T prompt tokens, R response tokens, L captured layers, N labels, K top-k.
Every record is immutable; a room that needs another value makes another record (`dataclasses.replace`).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol

import numpy as np

# ----------------------------------------------------------------------------------------------------------------
# Settings and labels
# ----------------------------------------------------------------------------------------------------------------

NOISE_KINDS = ("RD", "RC", "HN")
SETTINGS = ("ND", *NOISE_KINDS)
"""No distractor, random documents, random chat, hard negatives. A mixture is written with plus signs: `RD+HN`."""


def noise_kinds(setting: str) -> tuple[str, ...]:
    """The distractor kinds a setting asks for, in the order it names them: `ND` -> (), `RD+HN` -> ("RD", "HN").

    Raises ValueError for a name that is not a setting.
    """
    if setting == "ND":
        return ()
    kinds = tuple(setting.split("+"))
    if not kinds or any(k not in NOISE_KINDS for k in kinds) or len(set(kinds)) != len(kinds):
        raise ValueError(f"unknown setting {setting!r}: use ND, RD, RC, HN or a mixture such as RD+HN")
    return kinds


class Label(StrEnum):
    """What a prompt token belongs to. Attention mass is reported per label, and the labels sum to one."""

    BOS = "bos"
    TEMPLATE = "template"
    SYSTEM = "system"
    QUESTION = "question"
    EVIDENCE = "evidence"
    HINT = "hint"
    DISTRACTOR = "distractor"
    GENERATED = "generated"
    SINK = "sink"


LABELS: tuple[Label, ...] = tuple(Label)
LABEL_ID: Mapping[str, int] = {label.value: i for i, label in enumerate(LABELS)}
"""Label -> the small integer that stands for it in `NoisyPrompt.labels` and in every capture array."""


# ----------------------------------------------------------------------------------------------------------------
# The benchmark's side
# ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Document:
    """A titled text: a gold passage, a random document, a hard negative."""

    id: str
    text: str
    title: str = ""


@dataclass(frozen=True)
class Question:
    """One benchmark item, before any noise. `id` is unique within `dataset` and never depends on file order alone.

    `answers` holds the gold answer first and its aliases after it. `choices` are the options in the order they are
    presented; `answers[0]` is then the gold option's letter. `evidence` are the passages the question comes with
    (RAG sets). `meta` carries what the dataset's own scorer needs (polarity, question_index, stereotyped groups, ...).
    """

    dataset: str
    id: str
    text: str
    answers: tuple[str, ...]
    choices: tuple[str, ...] = ()
    evidence: tuple[Document, ...] = ()
    hint: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Unit:
    """The smallest piece of noise that truncation may drop whole: one document, or one exchange of a chat.

    `turns` is empty for a document and holds (role, text) pairs for a chat exchange, first user, then assistant.
    """

    id: str
    kind: Literal["RD", "RC", "HN"]
    text: str
    turns: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Part:
    """A run of text inside a message, with one label."""

    text: str
    label: Label
    unit: str | None = None
    """Id of the distractor unit or document this text came from."""


@dataclass(frozen=True)
class Message:
    """A chat message made of labelled parts; its content is the parts' texts joined without anything between."""

    role: Literal["system", "user", "assistant"]
    parts: tuple[Part, ...]

    @property
    def content(self) -> str:
        return "".join(p.text for p in self.parts)


@dataclass(frozen=True)
class NoisyPrompt:
    """A question in its noisy context, rendered for one tokenizer (or for none: a remote endpoint tokenises itself).

    ids: int32 [T]; labels: uint8 [T] (see LABEL_ID); both empty when no tokenizer was given.
    `dropped` names the units that budgeting removed; `over_length` says that question, template and hint alone
    exceed the limit, so that nothing may be generated.
    """

    dataset: str
    question_id: str
    setting: str
    messages: tuple[Message, ...]
    ids: np.ndarray
    labels: np.ndarray
    units: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    over_length: bool = False
    choices: tuple[str, ...] = ()
    """Options as presented to this question and sample (a seeded permutation is stored, never re-drawn)."""
    gold: str = ""
    """The gold letter or answer under that presentation."""


# ----------------------------------------------------------------------------------------------------------------
# The engine's side
# ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sampling:
    """How to draw tokens. temperature 0 is greedy; top_p 1, top_k 0 and min_p 0 are off.

    `stop` are strings; stop token ids come from the tokenizer and the generation config of the model.
    `reasoning_effort` and `enable_thinking` reach the chat template (local) or the endpoint (remote).
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 1024
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True)
class Request:
    """`n` samples of one prompt. Sample i's random key is a function of (seed, step, key, i) and of nothing else."""

    id: str
    prompt: NoisyPrompt
    sampling: Sampling
    n: int = 1
    first_sample: int = 0
    """Index of the first sample, so that a resumed request draws the samples that are still missing."""
    seed: int = 0
    step: int = 0
    key: str = ""
    """What identifies the question to the random stream; the request id when empty."""


class Finish(StrEnum):
    """Why a completion ended. Everything except STOP is counted and shown."""

    STOP = "stop"
    LENGTH = "length"
    OVER_LENGTH = "over_length"
    """The prompt left no room: nothing was generated."""
    ERROR = "error"
    """The engine gave up on this request (endpoint failed for good); `Completion.error` says why."""


@dataclass(frozen=True)
class Completion:
    """One sample. Arrays are None where they were not asked for or the engine cannot give them.

    ids: int32 [R]; logprobs: float32 [R] natural log, of the sampled token under the *sampled* distribution's
    temperature but without truncation (top-p and the like); entropy: float32 [R] nats; top_ids/top_logprobs [R, K];
    mass: float32 [R, L, N] attention mass per label, mean over heads; prompt_mass: float32 [T, L, N] from replay.
    """

    request_id: str
    sample: int
    text: str
    finish: Finish
    ids: np.ndarray | None = None
    logprobs: np.ndarray | None = None
    entropy: np.ndarray | None = None
    top_ids: np.ndarray | None = None
    top_logprobs: np.ndarray | None = None
    mass: np.ndarray | None = None
    prompt_mass: np.ndarray | None = None
    reasoning: str | None = None
    """Thought text that an endpoint returns in a field of its own."""
    error: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None


class Engine(Protocol):
    """Local or remote, one interface: requests in, completions out in the order they finish.

    `generate` is lazy on both sides: it pulls requests as it has room and yields each completion as soon as it is
    done, so that a caller can store it before the next is made. Per-request failures are completions
    (Finish.ERROR, Finish.OVER_LENGTH), never exceptions; an exception means that the whole run cannot go on.
    """

    name: str

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]: ...

    def close(self) -> None: ...


# ----------------------------------------------------------------------------------------------------------------
# The scorer's side
# ----------------------------------------------------------------------------------------------------------------


class State(StrEnum):
    """What is known about a sample. Absent is not zero.

    SCORED: the scorer decided. TRUNCATED: cut before an answer. NO_ANSWER: finished, but no answer could be read.
    UNDECIDED: an answer was read, but no rule can tell whether it is right; a judge decides, or the score is bounded
    from both sides. UNSCORED: the scorer or judge failed; the sample is missing, it lowers n. OVER_LENGTH: the
    question is dropped in all settings. The headline counts TRUNCATED and NO_ANSWER as wrong.
    """

    SCORED = "scored"
    TRUNCATED = "truncated"
    NO_ANSWER = "no_answer"
    UNDECIDED = "undecided"
    UNSCORED = "unscored"
    OVER_LENGTH = "over_length"


@dataclass(frozen=True)
class Score:
    """A sample's result. `value` is the task's headline number in [0, 1], None when the state leaves it undefined.

    `values` holds every other metric of the task under its own name (em, f1, official_overlap, biased, ...).
    """

    state: State
    value: float | None
    extracted: str | None = None
    values: Mapping[str, float | None] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Verdict:
    """A judge's word. `value` is None when no verdict could be read (state `unscored`)."""

    value: bool | None
    judge: str
    raw: str = ""
    reason: str = ""
    score: float | None = None
    """How far the judged text holds, in [0, 1]; None from a judge that only says yes or no."""
