"""What a run rewards: one schema, and the rules that its fields must keep together."""

from typing import Literal, Self

from pydantic import Field, model_validator

from noisyjax.chat.reference import Mode, Scope
from noisyjax.config import Schema

Combination = Literal["outcome", "additive", "weighted", "gated", "gated_soft", "rationale_only"]

USES_OUTCOME = frozenset({"outcome", "additive", "weighted", "gated", "gated_soft"})
USES_RATIONALE = frozenset({"additive", "weighted", "gated", "gated_soft", "rationale_only"})


class ReferenceConfig(Schema):
    """Which text between reference tags counts."""

    scope: Scope = "both"
    """Where references may stand: think, answer or both."""
    mode: Mode = "strict"
    """strict: a span must be closed. lenient: an unclosed one counts up to the end of the thought or answer."""


class FormatConfig(Schema):
    """What a well-formed completion is worth. Well-formed: one closing thought tag, an answer after it that is not
    empty, a closed reference where one is demanded, and no stray tags in the answer."""

    role: Literal["gate", "added", "none"] = "gate"
    """gate: the outcome is 0 where the format is broken. added: a term of its own. none: measured only."""
    weight: float | None = Field(default=None, gt=0)
    """Of the added term; null is 1."""
    thought: bool = True
    """Whether a thought is demanded. false: for models that answer at once; a thought must still be closed."""
    reference: bool | None = None
    """Whether a reference is demanded. null: where the prompt asks for one and the reward uses it."""


class GuardConfig(Schema):
    """One sign of a hacked reference."""

    limit: float = Field(ge=0)
    """A sample is flagged when its figure is above this."""
    penalty: float = Field(default=0.0, ge=0)
    """Taken off the reward of a flagged sample; 0: a metric only."""


class GuardsConfig(Schema):
    """Signs that a reference was copied wholesale rather than found. See `guards.py` for the figures."""

    ngram: int = Field(default=8, ge=1)
    """Words in a row that count as copied. References shorter than this have no share of copied n-grams."""
    prompt_copied: GuardConfig = GuardConfig(limit=0.5)
    """Share of the prompt that stands in the reference."""
    token_ratio: GuardConfig = GuardConfig(limit=0.5)
    """Tokens of the reference / tokens of the prompt."""
    from_distractor: GuardConfig = GuardConfig(limit=0.5)
    """Share of the reference that stands in a distractor and not in question, evidence or hint."""
    identical: GuardConfig = GuardConfig(limit=0.5)
    """1 where another sample of the group wrote the same reference, else 0."""


class DistractionConfig(Schema):
    """When a rollout counts as distracted. See `distraction.py`."""

    ngram: int = Field(default=5, ge=1)
    """Words in a row in which sentences are compared; a shorter sentence is not compared."""
    tau: float = Field(default=0.1, gt=0, le=1)
    """A rollout is distracted when at least this share of its compared sentences is."""
    judged: bool = False
    """Ask the judge as well whether each thought leans on the noise beside it (`distraction/judged`); needs
    judge.kind: engine. Noise and thought are shown up to judge.candidate_chars each."""


class RewardConfig(Schema):
    """From the verdicts on a completion to its reward. The defaults are the paper's form of OR+RARE."""

    combination: Combination = "additive"
    """With O the outcome and R the rationale reward: outcome O, additive O+R (paper), weighted αO+βR, gated O·R,
    gated_soft O·(1+R)/2, rationale_only R. Where a record has no gold reference, R leaves its whole group: O remains,
    or nothing."""
    outcome_weight: float | None = Field(default=None, gt=0)
    """α of `weighted`; null is 1."""
    rationale_weight: float | None = Field(default=None, gt=0)
    """β of `weighted`; null is 1."""
    rationale: Literal["binary", "graded"] = "binary"
    """binary: the judge's yes or no (paper). graded: its score in [0, 1]."""
    observe: bool = False
    """Ask the judges also for what the reward does not use, so that its curve can be drawn."""
    format: FormatConfig = Field(default_factory=FormatConfig)
    reference: ReferenceConfig = Field(default_factory=ReferenceConfig)
    truncated: Literal["zero", "score", "mask"] = "zero"
    """A completion cut by the token limit. zero: it earns nothing (penalties still count). score: judged as it stands.
    mask: it has no reward and leaves the loss."""
    reward_fn: str | None = None
    """`package.module:function`, called with each sample in place of the outcome judge; returns a number or None."""
    max_failed: float = Field(default=0.5, ge=0, le=1)
    """Share of a batch's samples on which `reward_fn` may raise; beyond it the run stops."""
    guards: GuardsConfig = Field(default_factory=GuardsConfig)
    distraction: DistractionConfig = Field(default_factory=DistractionConfig)

    @model_validator(mode="after")
    def _no_idle_field(self) -> Self:
        """A weight that nothing reads would be a wish that is not granted."""
        for name in ("outcome_weight", "rationale_weight"):
            if getattr(self, name) is not None and self.combination != "weighted":
                raise ValueError(f"{name} is read by combination: weighted only; got combination: {self.combination}")
        if self.format.weight is not None and self.format.role != "added":
            raise ValueError(f"format.weight is read by format.role: added only; got format.role: {self.format.role}")
        if self.reward_fn is not None and not self.asks_outcome:
            raise ValueError(f"reward_fn gives the outcome, which combination: {self.combination} does not use")
        return self

    @property
    def asks_outcome(self) -> bool:
        return self.observe or self.combination in USES_OUTCOME

    @property
    def asks_rationale(self) -> bool:
        return self.observe or self.combination in USES_RATIONALE

    def demands_reference(self, asked_for: bool) -> bool:
        """Whether a completion without a reference is malformed, where the prompt asked for one or did not."""
        if self.format.reference is not None:
            return self.format.reference
        return asked_for and self.combination in USES_RATIONALE
