"""A record as the prompt that the policy is asked: labelled parts in the layout of evaluation, cut to fit.

    [system] [chat turns] [documents: noise, evidence] [hint] [question] [suffix]        position=before

What does not fit are whole distractors, never the question, the hint, the evidence or the suffix: if these alone are
too long the record is left out and counted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from noisyjax.bench.noise.budget import unit_tokens
from noisyjax.bench.prompts import arrange, lay_out
from noisyjax.bench.task import template
from noisyjax.chat import ChatTokenizer, build_prompt, fit
from noisyjax.chat.prompt import TOKENS_PER_MESSAGE
from noisyjax.instruct.record import InstructRecord
from noisyjax.instruct.schema import PromptConfig
from noisyjax.instruct.stream import Kept, Left
from noisyjax.records import Label, Message, NoisyPrompt, Part, Unit

DATASET = "noisy_instruct"


@dataclass(frozen=True)
class Asked:
    """A record with the prompt made of it."""

    record: InstructRecord
    prompt: NoisyPrompt


def record_messages(
    record: InstructRecord, config: PromptConfig, units: Sequence[Unit] | None = None
) -> tuple[Message, ...]:
    """The conversation that ends in the record's question, with `units` (all its distractors by default) as noise.

    Labels: question, hint, evidence and distractor (with the unit's id); the suffix is the template's.
    """
    question = template(config.question).render(text=record.question, evidence=bool(record.evidence)).strip()
    asked = [Part(f"Hint:\n{record.hint}", Label.HINT)] if record.shows_hint else []
    asked.append(Part(question, Label.QUESTION))
    if config.ask_reference:
        asked.append(Part(config.suffix, Label.TEMPLATE))
    return lay_out(
        asked,
        arrange(record.distractors if units is None else units),
        evidence=record.evidence,
        system=config.system,
        position=config.position,
        turns=config.rc_form == "turns",
        seed=config.order_seed,
        key=record.id,
    )


def instruction(config: PromptConfig) -> str:
    """The prompt's text that asks for tags: what `parse_references` must know to tell an echo from a reference."""
    return config.suffix if config.ask_reference else ""


def record_prompt(tokenizer: ChatTokenizer, record: InstructRecord, config: PromptConfig) -> NoisyPrompt:
    """The prompt of a record, at most `config.max_prompt_tokens` long or flagged `over_length`."""
    return fit_record(
        tokenizer,
        record,
        lambda units: record_messages(record, config, units),
        limit=config.max_prompt_tokens,
        template_kwargs=config.template_kwargs,
    )


def fit_record(
    tokenizer: ChatTokenizer,
    record: InstructRecord,
    messages: Callable[[Sequence[Unit]], tuple[Message, ...]],
    *,
    limit: int | None,
    template_kwargs: Mapping[str, Any],
    add_generation_prompt: bool = True,
) -> NoisyPrompt:
    """`messages` of as many of the record's units as fit `limit` tokens (None: of all).

    Units are tried in turn, kinds of a mixture by turns, and one that is too long keeps no later one out. The units
    that stay are laid out anew, so that documents are numbered without gaps.
    """
    options: dict[str, Any] = {
        "dataset": DATASET,
        "question_id": record.id,
        "setting": record.setting,
        "template_kwargs": template_kwargs,
        "add_generation_prompt": add_generation_prompt,
        "gold": record.answers[0],
    }
    whole = build_prompt(tokenizer, messages(record.distractors), **options)
    if limit is None or len(whole.ids) <= limit:
        return whole
    bare = build_prompt(tokenizer, messages(()), **options)
    units = _by_turns(record.distractors)
    costs = [unit_tokens(u, tokenizer.count_tokens) + TOKENS_PER_MESSAGE * len(u.turns) for u in units]
    plan = fit(costs, len(bare.ids), limit, "per_question")
    chosen = {units[i].id for i in plan.kept}
    kept = [unit for unit in record.distractors if unit.id in chosen]
    dropped = [unit.id for unit in record.distractors if unit.id not in chosen]
    # Costs are taken one by one and borders count a little, so the last word is with the whole rendering.
    return build_prompt(tokenizer, messages(kept), limit=limit, dropped=dropped, **options)


def _by_turns(units: Sequence[Unit]) -> list[Unit]:
    """The first of each kind, then the second of each: what is cut from a mixture is cut from all its kinds."""
    seen: dict[str, int] = {}
    ranks = []
    for unit in units:
        ranks.append(seen.get(unit.kind, 0))
        seen[unit.kind] = ranks[-1] + 1
    order = sorted(range(len(units)), key=lambda i: (ranks[i], i))
    return [units[i] for i in order]


def prompt_maker(tokenizer: ChatTokenizer, config: PromptConfig) -> Callable[[InstructRecord], Kept[Asked] | Left]:
    """What a stream of prompts makes of each record. Notes: `cut` lost some noise, `bare` lost all of it."""

    def make(record: InstructRecord) -> Kept[Asked] | Left:
        prompt = record_prompt(tokenizer, record, config)
        left = too_long(prompt, config)
        return left or Kept(Asked(record, prompt), noise_notes(prompt))

    return make


def too_long(prompt: NoisyPrompt, config: PromptConfig) -> Left | None:
    """Why the record must go, if it must."""
    return Left("over_length") if prompt.over_length or (config.overlong == "drop" and prompt.dropped) else None


def noise_notes(prompt: NoisyPrompt) -> tuple[str, ...]:
    """What the limit did to the noise of a prompt that stays."""
    return () if not prompt.dropped else ("cut",) if prompt.units else ("bare",)
