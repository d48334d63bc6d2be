"""The table on a terminal and as Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import batched

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from noisyjax.report import words
from noisyjax.report.data import BlockSeeds, Comparison, RunReport, block_seeds, compare
from noisyjax.report.kinds import kind_tables
from noisyjax.report.reading import read
from noisyjax.report.training import tables as training_tables
from noisyjax.report.training.run import TrainingRun
from noisyjax.scoring import Interval
from noisyjax.visible import visible


def print_report(urls: Sequence[str], *, markdown: bool = False, draws: int = 2000, width: int | None = None) -> None:
    """Print the tables of evaluation and training runs. UsageError for what is neither."""
    found = read(urls, draws)
    if markdown:
        print(visible(to_markdown(found.reports, draws, found.training)))
        return
    console = Console(width=width)
    _print_training(console, found.training, draws)
    for report in found.reports:
        console.print(_table(report, console.width))
        for line in (_facts_line(report), *words.notes(report)):
            console.print(_text(line, "dim"))
        console.print()
    for extra in _extra_tables(found.reports, found.training, draws):
        console.print(_plain(extra, console.width))


def _print_training(console: Console, runs: Sequence[TrainingRun], draws: int) -> None:
    for run in runs:
        console.print(_text(f"{run.label}: {' · '.join(training_tables.facts(run))}"))
        for note in run.notes:
            console.print(_text(note, "dim"))
    # As many columns as the terminal has room for; the other runs in a table below.
    for some in batched(runs, max(1, (console.width - 32) // 24)):
        console.print(_plain(training_tables.learning(some), console.width))
    for some in batched(runs, max(1, (console.width - 48) // 14)):
        console.print(_plain(training_tables.left_out(some), console.width))
    for extra in training_tables.evaluated(runs, draws):
        console.print(_plain(extra, console.width))


def _plain(extra: words.Extra, width: int) -> Table:
    title, head, rows = extra
    narrow = width < 24 * len(head)
    table = Table(*(Column(_text(word)) for word in head), title=_text(title), title_justify="left")
    for row in rows:
        table.add_row(*(_text(cell.replace(" [", "\n[") if narrow else cell) for cell in row))
    return table


def _text(words: str, style: str = "") -> Text:
    """Names come from configs, reasons from data: no markup, and nothing that commands the terminal."""
    return Text(visible(words), style)


def _table(report: RunReport, width: int) -> Table:
    table = Table("", *report.settings, title=_text(report.label), title_justify="left", show_lines=True)
    narrow = width < 24 + 28 * len(report.settings)
    for row in table_rows(report):
        cells = ["\n".join(lines) for lines in row]
        # Intervals get lines of their own where they would be broken anyhow.
        table.add_row(*(_text(cell.replace(" [", "\n[") if narrow else cell) for cell in cells))
    return table


def table_rows(report: RunReport) -> Iterator[list[list[str]]]:
    """Rows of cells of lines: datasets, absent datasets, then the two means over datasets."""
    base = report.summary.baseline
    for name in [*report.results.datasets, *report.results.absent]:
        short = report.short(name) if name in report.results.datasets else name
        yield [[short], *(_cell(report, name, setting, base) for setting in report.settings)]
    for kind, title in (("harmonic", "Harmonic mean"), ("arithmetic", "Arithmetic mean")):
        yield [[title], *(_overall(report, kind, setting, base) for setting in report.settings)]


def _cell(report: RunReport, dataset: str, setting: str, base: str) -> list[str]:
    cell = report.cells.get((dataset, setting))
    return [words.ABSENT] if cell is None else words.cell_lines(cell, setting == base)


def _overall(report: RunReport, kind: str, setting: str, base: str) -> list[str]:
    result = report.summary.settings.get(setting)
    return [words.ABSENT] if result is None else words.overall_lines(result, kind, setting == base)


def _facts_line(report: RunReport) -> str:
    draws, level = report.summary.draws, report.summary.level
    how = f"[…] {100 * level:.0f} % intervals, bootstrap over questions, {draws} draws"
    how += f"; Δ against {report.summary.baseline}"
    return " · ".join([*words.facts(report), how])


def to_markdown(reports: Sequence[RunReport], draws: int = 2000, training: Sequence[TrainingRun] = ()) -> str:
    """The same tables in Markdown."""
    out = []
    for run in training:
        out += [f"### {_safe(run.label)}", ""]
        out += [f"- {_safe(line)}" for line in (" · ".join(training_tables.facts(run)), *run.notes)] + [""]
    if training:
        numbers = [training_tables.learning(training), training_tables.left_out(training)]
        out += _extras([*numbers, *training_tables.evaluated(training, draws)])
    for report in reports:
        out += [f"### {_safe(report.label)}", "", *_markdown(["", *report.settings], _joined(report)), ""]
        out += [f"- {_safe(line)}" for line in (_facts_line(report), *words.notes(report))] + [""]
    out += _extras(_extra_tables(reports, training, draws))
    return "\n".join(out).rstrip()


def _extras(extras: Sequence[words.Extra]) -> list[str]:
    return [line for title, head, rows in extras for line in (f"### {_safe(title)}", "", *_markdown(head, rows), "")]


def _joined(report: RunReport) -> list[list[str]]:
    return [["\n".join(lines) for lines in row] for row in table_rows(report)]


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(map(_safe, head)) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(map(_safe, row)) + " |" for row in rows]


def _safe(text: str) -> str:
    """Text that stays inside its Markdown cell."""
    for char in "\\`*_<>[]|#$":
        text = text.replace(char, f"\\{char}" if char not in "<>" else {"<": "&lt;", ">": "&gt;"}[char])
    return text.replace("\n", "<br>")


def _extra_tables(reports: Sequence[RunReport], training: Sequence[TrainingRun], draws: int) -> list[words.Extra]:
    tables = [table for report in reports for table in detail_tables(report)]
    shown = [*reports, *(run.last for run in training if run.last is not None)]
    return tables + across_tables(shown, draws)


def across_tables(reports: Sequence[RunReport], draws: int) -> list[words.Extra]:
    """What is said of several runs together: block seeds, and each against the first."""
    tables = [block_table(group, reports) for group in block_seeds(reports)]
    comparison = compare(reports, draws)
    return tables + ([comparison_table(comparison, reports)] if comparison else [])


def detail_tables(report: RunReport) -> list[words.Extra]:
    """Accuracy by type of question, BBQ's bias scores, and the further numbers of scorers that have several."""
    tables: list[words.Extra] = []
    biased = [c for c in report.cells.values() if c.bbq is not None]
    if biased:
        head = ["", "accuracy", "ambiguous", "disambiguated", "bias, ambiguous", "bias, disambiguated", "unparsed"]
        rows = []
        for cell in biased:
            b = cell.bbq
            assert b is not None
            figures = (b.accuracy, b.accuracy_ambig, b.accuracy_disambig, b.bias_ambig, b.bias_disambig)
            shown = [words.UNDEFINED if v is None else f"{v:.1f}" for v in figures]
            rows.append([f"{report.short(cell.info.dataset)} {cell.info.setting}", *shown, str(b.unparsed)])
        tables.append((f"{report.label}: bias scores", head, rows))
    rows = [
        [
            report.short(c.info.dataset),
            c.info.setting,
            *[_values(c.values)],
            _tokens(c.prompt_tokens),
            _tokens(c.completion_tokens),
        ]
        for c in report.cells.values()
    ]
    head = ["", "setting", "further numbers (means, %)", "prompt tokens", "completion tokens"]
    return [*kind_tables([report]), *tables, (f"{report.label}: details", head, rows)]


_INNER = ("ambig", "parsed", "non_unknown", "biased", "exact")
"""Parts of other numbers, or the headline itself under another name."""


def _values(values: Mapping[str, float | None]) -> str:
    shown = {k: v for k, v in values.items() if k not in _INNER and v is not None}
    return ", ".join(f"{name} {100 * value:.1f}" for name, value in shown.items()) or words.UNDEFINED


def _tokens(mean: float | None) -> str:
    return words.UNDEFINED if not mean else f"{mean:,.0f}"


def block_table(group: BlockSeeds, reports: Sequence[RunReport]) -> words.Extra:
    """Means over block seeds with their range: the variance that the bootstrap does not see."""
    first = next(r for r in reports if r.label == group.labels[0])
    rows = []
    for dataset in first.results.datasets:
        figures = (group.cells.get((dataset, setting)) for setting in first.settings)
        cells = [f"{100 * f[0]:.1f} ({100 * f[1]:.1f} to {100 * f[2]:.1f})" if f else words.UNDEFINED for f in figures]
        rows.append([first.short(dataset), *cells])
    title = f"{len(group.seeds)} block seeds ({', '.join(map(str, group.seeds))}): mean and range"
    return title, ["", *first.settings], rows


def comparison_table(comparison: Comparison, reports: Sequence[RunReport]) -> words.Extra:
    """Each other run against the first, paired by question."""

    def row(name: str, other: str, intervals: list[Interval | None]) -> list[str]:
        shown = [
            f"{words.change(i)} {words.bounds(i, 1.0, sign=True)}".strip() if i else words.ABSENT for i in intervals
        ]
        return [other, name, *shown]

    rows = []
    for report in reports[1:]:
        for dataset in report.results.datasets:
            cells = [comparison.cells.get((s, dataset, report.label)) for s in comparison.settings]
            rows.append(row(report.short(dataset), report.label, cells))
        overall = [comparison.overall.get((s, report.label)) for s in comparison.settings]
        rows.append(row("arithmetic mean", report.label, overall))
    return f"Change against {comparison.base}, paired by question", ["run", "", *comparison.settings], rows
