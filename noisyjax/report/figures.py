"""Plots as inline SVG: transparent, text as text, drawn in the page's own colour so that dark mode works.

matplotlib is imported only when a figure is drawn.
"""

import io
import re
from html import escape
from typing import Any

from noisyjax.report.data import STATES, RunReport
from noisyjax.report.words import STATE_WORDS
from noisyjax.visible import visible

INK = "#123456"
"""Stands for the page's text colour while matplotlib draws; no figure uses it otherwise."""

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")
"""Paul Tol's bright scheme: told apart with every kind of colour vision, readable on white and on black."""


def drop_figure(report: RunReport) -> str:
    """Relative change to the baseline per dataset and noisy setting, with intervals. Empty when there is none."""
    base = report.summary.baseline
    settings = [s for s in report.settings if s != base]
    known = {
        (dataset, setting): cell.result.change
        for (dataset, setting), cell in report.cells.items()
        if setting != base and cell.result.change.point is not None
    }
    datasets = [d for d in report.results.datasets if any((d, s) in known for s in settings)]
    if not datasets:
        return ""
    figure, axes = new_figure(max(4.0, 1.2 + 1.1 * len(datasets)), 3.2)
    width = 0.8 / len(settings)
    for i, setting in enumerate(settings):
        at = [j for j, d in enumerate(datasets) if (d, setting) in known]
        if not at:
            continue
        changes = [known[datasets[j], setting] for j in at]
        points = [c.point or 0.0 for c in changes]
        spans = [
            [p - (c.low if c.low is not None else p) for p, c in zip(points, changes, strict=True)],
            [(c.high if c.high is not None else p) - p for p, c in zip(points, changes, strict=True)],
        ]
        x = [j + (i - (len(settings) - 1) / 2) * width for j in at]
        axes.bar(x, points, width * 0.92, color=_colour(report, setting), label=setting)
        axes.errorbar(x, points, [[max(0.0, v) for v in s] for s in spans], fmt="none", ecolor=INK, lw=0.8, capsize=2)
    axes.set_xticks(range(len(datasets)), [report.short(d) for d in datasets])
    axes.axhline(0, color=INK, lw=0.8)
    axes.set_ylim(bottom=-105, top=max(20.0, min(100.0, axes.get_ylim()[1])))
    axes.set_ylabel(f"change against {base}, %")
    legend(figure)
    return to_svg(figure, f"drop-{report.label}", "Relative change of each dataset in each noisy setting")


def length_figure(report: RunReport) -> str:
    """Accuracy by length of the completion, one line per setting."""
    lines = {s: bins for s, bins in report.lengths.items() if bins}
    if not lines:
        return ""
    figure, axes = new_figure(4.8, 3.2)
    for setting, bins in lines.items():
        x = [(b.low + b.high) / 2 for b in bins]
        axes.plot(x, [100 * b.accuracy for b in bins], "o-", color=_colour(report, setting), label=setting, ms=4)
    axes.set_ylim(-3, 103)
    axes.set_xlabel("tokens of the completion (fifths of the samples)")
    axes.set_ylabel("accuracy, %")
    legend(figure)
    return to_svg(figure, f"length-{report.label}", "Accuracy by length of the completion, for each setting")


def states_figure(report: RunReport) -> str:
    """Share of samples in each state but `scored`, per cell."""
    names = list(report.cells)
    if not names:
        return ""
    figure, axes = new_figure(4.8, 0.9 + 0.22 * len(names))
    left = [0.0] * len(names)
    for i, state in enumerate(STATES):
        totals = [sum(report.cells[name].states.values()) or 1 for name in names]
        shares = [100 * report.cells[n].states.get(state, 0) / t for n, t in zip(names, totals, strict=True)]
        if any(shares):
            axes.barh(range(len(names)), shares, left=left, color=COLOURS[i], label=STATE_WORDS[state], height=0.75)
            left = [a + b for a, b in zip(left, shares, strict=True)]
    axes.set_yticks(range(len(names)), [f"{report.short(d)} {s}" for d, s in names], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, max(10.0, 1.05 * max(left)))
    axes.set_xlabel("share of samples without a scored answer, %")
    if any(left):
        legend(figure)
    return to_svg(figure, f"states-{report.label}", "Samples that are cut, without answer, unscored or missing")


def _colour(report: RunReport, setting: str) -> str:
    """The same in every figure of a run."""
    return COLOURS[report.settings.index(setting) % len(COLOURS)]


def new_figure(width: float, height: float) -> tuple[Any, Any]:
    """A figure and its axes in the page's ink, without the global state of pyplot."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    ink: Any = dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
    # Names come from configs: a `$` in one must not be read as mathematics.
    with mpl.rc_context({**ink, "text.parse_math": False, "font.size": 9, "axes.spines.top": False}):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.add_subplot()
        axes.spines["right"].set_visible(False)
        axes.tick_params(colors=INK)
    return figure, axes


def legend(figure: Any) -> None:
    """Above the axes, where it hides nothing."""
    figure.legend(loc="outside upper left", ncols=6, frameon=False, labelcolor=INK, handlelength=1.2, columnspacing=1.2)


def to_svg(figure: Any, name: str, title: str) -> str:
    """The figure as an `<svg>` element. `name` keeps the ids inside it different from those of other figures."""
    import matplotlib as mpl

    figure.patch.set_alpha(0)
    for axes in figure.axes:
        axes.patch.set_alpha(0)
    buffer = io.StringIO()
    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": visible(name),
        "text.parse_math": False,
        "font.family": "sans-serif",
    }
    with mpl.rc_context(settings):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"font: ([^;\"]*?)'[^;\"]*", r"font: \1sans-serif", text)
    return text.replace("<svg ", '<svg role="img" ', 1).replace(">", f"><title>{escape(title)}</title>", 1)
