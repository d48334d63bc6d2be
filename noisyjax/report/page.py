"""One self-contained HTML page: tables, plots, and a gallery of failures. No script, no font, no address is loaded.

Everything that came out of data or a model is escaped by the template; the only markup let through is our own SVG.
"""

from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from noisyjax import __version__
from noisyjax.records import Label
from noisyjax.report import text, words
from noisyjax.report.data import RunReport
from noisyjax.report.figures import drop_figure, length_figure, states_figure
from noisyjax.report.gallery import Failure, failures
from noisyjax.report.reading import read
from noisyjax.report.training.run import TrainingRun
from noisyjax.report.training.section import section
from noisyjax.store import write_text
from noisyjax.visible import visible

SHOWN_LABELS = (Label.QUESTION, Label.EVIDENCE, Label.DISTRACTOR, Label.HINT, Label.SYSTEM)


def write_html(urls: Sequence[str], out: Path, *, draws: int = 2000) -> Path:
    """Write the page of the runs and return its path. UsageError for what is no run, RunError for a full
    disk."""
    found = read(urls, draws)
    return write_text(out, to_html(found.shown, draws, found.training))


def to_html(reports: Sequence[RunReport], draws: int = 2000, training: Sequence[TrainingRun] = ()) -> str:
    """The page as text: the training runs together, then each evaluation run."""
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        finalize=_finalize,
        loader=jinja2.FunctionLoader(_file),
    )
    lasts = {run.last.label for run in training if run.last is not None}
    named = [*(run.label for run in training), *(r.label for r in reports if r.label not in lasts)]
    return environment.get_template("page.html.jinja").render(
        title=f"NoisyBench: {', '.join(named)}",
        css=jinja2.filters.Markup(_file("page.css")),
        version=__version__,
        labels=[label.value for label in SHOWN_LABELS],
        across=text.across_tables(reports, draws),
        runs=[_run(report) for report in reports],
        training=section(training, draws) if training else None,
    )


def _file(name: str) -> str:
    return resources.files("noisyjax.report").joinpath(name).read_text(encoding="utf-8")


def _finalize(value: Any) -> Any:
    """What the template is about to write. Writing directions are kept apart by the style sheet."""
    return type(value)(visible(value, bidi=False)) if isinstance(value, str) else value


def _run(report: RunReport) -> dict[str, Any]:
    gallery = failures(report)
    drawn = (
        (drop_figure(report), f"Relative change against {report.summary.baseline}, with intervals"),
        (length_figure(report), "Accuracy by length of the completion"),
        (states_figure(report), "Samples without a scored answer"),
    )
    return {
        "label": report.label,
        "facts": words.facts(report),
        "level": round(100 * report.summary.level),
        "draws": report.summary.draws,
        "baseline": report.summary.baseline,
        "settings": report.settings,
        "rows": list(text.table_rows(report)),
        "notes": words.notes(report),
        "figures": [{"svg": svg, "caption": caption} for svg, caption in drawn if svg],
        "tables": text.detail_tables(report),
        "failures": [_shown(report, failure) for failure in gallery.shown],
        "lost": gallery.lost,
    }


def _shown(report: RunReport, failure: Failure) -> dict[str, Any]:
    word = "wrong" if failure.state == "scored" else words.STATE_WORDS[failure.state]
    return {**asdict(failure), "short": report.short(failure.dataset), "word": word}
