"""What the page says of training runs: curves, evaluations before and after, sampled completions."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from noisyjax.records import LABEL_ID, Label
from noisyjax.report.attending import before_and_after
from noisyjax.report.gallery import shortened
from noisyjax.report.kinds import kind_tables
from noisyjax.report.training import tables
from noisyjax.report.training.curves import accuracy_curve, attention_figure, curve, kind_figure, look
from noisyjax.report.training.panels import groups_of
from noisyjax.report.training.run import TrainingRun

STEPS_SHOWN = 3
"""Of the steps whose completions were sampled: the first and the last ones."""

LOOKED_AT = (Label.DISTRACTOR, Label.EVIDENCE, Label.QUESTION)


def section(runs: Sequence[TrainingRun], draws: int) -> dict[str, Any]:
    """All that the template shows of the runs."""
    evaluations = [report for run in runs for report in run.ends]
    settings = list(dict.fromkeys(setting for run in runs for setting in run.settings))
    looked = before_and_after(runs)
    return {
        "runs": [_run(run, number) for number, run in enumerate(runs)],
        "groups": [
            {"title": group.title, "svgs": [curve(panel, runs) for panel in group.panels]} for group in groups_of(runs)
        ],
        "accuracy": [accuracy_curve(setting, runs) for setting in settings],
        "types": [svg for setting in settings if (svg := kind_figure(setting, runs))],
        "attention": [svg for label in LOOKED_AT if (svg := attention_figure(label.value, looked))],
        "evaluations": tables.accuracy(runs, draws),
        "typed": kind_tables(evaluations),
        "looked": tables.attending(looked),
        "numbers": [tables.learning(runs), tables.left_out(runs)],
    }


def _run(run: TrainingRun, number: int) -> dict[str, Any]:
    colour, dashes = look(number)
    return {
        "label": run.label,
        "colour": colour,
        "dashes": " ".join(str(3 * dash) for dash in dashes),
        "facts": tables.facts(run),
        "notes": run.notes,
        "samples": [_sample(row) for row in chosen(run.samples)],
        "logged": len(run.samples),
    }


def chosen(samples: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The completions of the first sampled step and of the last ones, in order."""
    steps = sorted({row["step"] for row in samples})
    kept = {*steps[:1], *steps[len(steps) - (STEPS_SHOWN - 1) :]}
    return [row for row in samples if row["step"] in kept]


def _sample(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the log for the template; what a row lacks is None there."""
    text = row.get("completion") or ""
    return {
        **{name: row.get(name) for name in _PLAIN},
        "completion": shortened(text),
        "spans": [
            {"label": str(label), "tokens": n} for label, n in row.get("spans") or () if label in LABEL_ID and n > 0
        ],
        "references": [shortened(str(reference)) for reference in row.get("references") or ()],
        "faults": [str(fault).replace("_", " ") for fault in row.get("faults") or ()],
        "verdicts": list(_verdicts(row)),
        "rewards": [(name, _number(value)) for name, value in (row.get("rewards") or {}).items()],
        "reward": _number(row.get("reward")),
        "advantage": _number(row.get("advantage")),
    }


_PLAIN = ("step", "record", "setting", "sample", "answer", "question", "gold", "hint", "finish", "tokens")


def _verdicts(row: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    for name in ("outcome", "rationale"):
        verdict = row.get(name)
        if verdict is None:
            yield {"of": name, "word": "not asked", "reason": ""}
            continue
        word = {True: "yes", False: "no"}.get(verdict.get("value"), "unscored")
        score = verdict.get("score")
        word += "" if score is None else f", {score:.2f}"
        yield {"of": name, "word": word, "reason": verdict.get("reason") or ""}


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:+.3f}".replace("-", "−")
