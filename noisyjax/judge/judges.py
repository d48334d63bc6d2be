"""Judges behind one protocol: rules, or a model on this mesh or at an endpoint."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal, Protocol

from pydantic import Field

from noisyjax.chat import ChatTokenizer
from noisyjax.config import config_hash
from noisyjax.engine.config import LocalConfig
from noisyjax.engine.remote import RemoteConfig
from noisyjax.errors import UsageError
from noisyjax.judge.asking import JudgeConfig
from noisyjax.judge.cache import VerdictCache
from noisyjax.judge.distraction import DistractionItem, judge_distractions
from noisyjax.judge.outcome import OutcomeItem, judge_outcomes
from noisyjax.judge.rationale import RationaleItem, judge_rationales
from noisyjax.judge.rules import RuleJudge, RuleJudgeConfig
from noisyjax.records import Engine, Verdict


class Judge(Protocol):
    """Verdicts in the order of the items. `value` None is no verdict: the sample is unscored, never wrong.

    All items of a call are judged together, so hundreds should come in one call. `score` is None from a judge that
    does not grade.
    """

    name: str

    def outcomes(self, items: Sequence[OutcomeItem]) -> list[Verdict]: ...

    def rationales(self, items: Sequence[RationaleItem]) -> list[Verdict]: ...

    def distractions(self, items: Sequence[DistractionItem]) -> list[Verdict]: ...


class EngineJudgeConfig(JudgeConfig):
    """Verdicts by a model."""

    kind: Literal["engine"] = "engine"
    engine: Annotated[LocalConfig | RemoteConfig, Field(discriminator="kind")]
    """The model that judges: a folder for this machine's devices, or an endpoint."""
    distractor_fails: bool = False
    """Also show the judge the distractor text, and let a reference fail that mostly reproduces it."""


AnyJudgeConfig = Annotated[RuleJudgeConfig | EngineJudgeConfig, Field(discriminator="kind")]
"""The type of a config's `judge` key; `kind` is `rules` or `engine`."""


class EngineJudge:
    """A model as a judge. It says yes or no and grades nothing: `Verdict.score` is None.

    `tokenizer` is the model's own for an engine that wants token ids, None for an endpoint. The caller closes the
    engine. `cache` keeps every verdict that could be read.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: ChatTokenizer | None = None,
        cache: VerdictCache | None = None,
        config: JudgeConfig | None = None,
    ) -> None:
        self.engine, self.tokenizer, self.cache = engine, tokenizer, cache
        self.config = config or JudgeConfig()
        self.name = f"{engine.name}-{config_hash(self.config)[:8]}"
        self._show_distractor = isinstance(self.config, EngineJudgeConfig) and self.config.distractor_fails

    def outcomes(self, items: Sequence[OutcomeItem]) -> list[Verdict]:
        """One engine call for all that the cache lacks, and one for what could not be read."""
        return judge_outcomes(self.engine, items, self.cache, self.config, self.tokenizer)

    def rationales(self, items: Sequence[RationaleItem]) -> list[Verdict]:
        """The same for references. Distractors are shown only where the config's `distractor_fails` says so."""
        shown = items if self._show_distractor else [replace(item, distractor=None) for item in items]
        return judge_rationales(self.engine, shown, self.cache, self.config, self.tokenizer)

    def distractions(self, items: Sequence[DistractionItem]) -> list[Verdict]:
        """The same for thoughts that noise stood beside."""
        return judge_distractions(self.engine, items, self.cache, self.config, self.tokenizer)


def open_judge(
    config: RuleJudgeConfig | EngineJudgeConfig,
    engine: Engine | None = None,
    tokenizer: ChatTokenizer | None = None,
    cache: VerdictCache | None = None,
) -> Judge:
    """The judge that `config` describes. A judge of kind engine asks `engine`, opened by the caller from
    `config.engine` and closed by them; UsageError when it is missing. A judge by rule needs none of them.
    """
    if isinstance(config, RuleJudgeConfig):
        return RuleJudge(config)
    if engine is None:
        raise UsageError("the judge is of kind 'engine', but its engine was not opened; use kind: rules for none")
    return EngineJudge(engine, tokenizer, cache, config)
