"""What `noisyjax bench` prints: tasks, one prompt, the state of the data."""

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from noisyjax.bench.survey import DatasetReport, Shown, TaskRow, Validation
from noisyjax.records import Label
from noisyjax.visible import visible

STYLES: dict[Label, str] = {
    Label.QUESTION: "bold cyan",
    Label.DISTRACTOR: "yellow",
    Label.EVIDENCE: "green",
    Label.HINT: "magenta",
    Label.SYSTEM: "blue",
}


def print_tasks(rows: list[TaskRow]) -> None:
    """One line per dataset, and below the table what is missing."""
    whole = [Column(name, no_wrap=True) for name in ("dataset", "ver", "metric", "n", "k")]  # names to be typed
    table = Table(*whole, "hard negatives", Column("licence", overflow="fold"), "files", box=None)
    for row in rows:
        task = row.task
        metric = task.score.metric if task.score else "–"
        negatives = {"builtin": "built in", "jsonl": "file"}[task.hard_negatives]
        files = row.layout or ("absent" if task.status == "absent" else "")
        figures = (str(task.version), metric, str(task.n), str(task.k), negatives, task.licence, files)
        table.add_row(task.name, *map(_text, figures))
    console = Console()
    console.print(table)
    for row in rows:
        if row.note:
            note = row.note.removeprefix(f"{row.task.name}: ")
            console.print(_text(f"{row.task.name}: {note}"), soft_wrap=True)


def print_prompt(shown: Shown) -> None:
    """The messages with a colour per label; on a pipe the label stands in front of each part."""
    console = Console()
    question, prompt = shown.question, shown.prompt
    facts = f"{question.dataset} {question.id} {prompt.setting}   gold: {prompt.gold}"
    console.print(_text(facts, "bold"))
    for message in prompt.messages:
        console.print(_text(f"\n[{message.role}]", "dim"))
        for part in message.parts:
            where = f"⟨{part.label.value}{f' {part.unit}' if part.unit else ''}⟩ "
            console.print(_text(where, "dim") + _text(part.text.rstrip("\n"), STYLES.get(part.label, "")))
    if prompt.dropped:
        console.print(_text(f"\ndropped for length: {', '.join(prompt.dropped)}"))


def print_validation(found: Validation) -> None:
    """Pools, datasets, and every broken row."""
    console = Console()
    for pool in found.pools:
        console.print(_text(f"{pool.kind}: {pool.groups} groups ({pool.units} units), {pool.size} in the pool"))
    table = Table("dataset", "rows", "questions", "kept", "contaminated", "notes", box=None)
    for report in found.datasets:
        held = ", ".join(f"{kind} {n}" for kind, n in (report.contaminated or {}).items() if n) or "–"
        counts = (str(report.rows), str(report.questions), str(report.kept))
        table.add_row(report.name, *counts, held, _text("; ".join(_notes(report))))
    console.print(table)
    for line in (*found.bad, *(line for report in found.datasets for line in report.bad)):
        console.print(_text(f"broken: {line}"))
    console.print("sound" if found.sound else "not sound: see above", style="bold")


def _text(words: str, style: str = "") -> Text:
    """Words as they are, no markup in them, and what data may hold against a terminal made visible."""
    return Text(visible(words), style)


def _notes(report: DatasetReport) -> list[str]:
    if report.error:
        return [report.error]
    counted = {
        "duplicates": report.duplicates,
        "left out by options": report.left_out,
        "without negatives": report.no_negatives,
        "answers too short to be looked for": report.unchecked,
        "negatives without a question": len(report.orphans),
        "broken rows": len(report.bad),
    }
    notes = [f"{n} {what}" for what, n in counted.items() if n]
    return notes + [f"no {setting}: {reason}" for setting, reason in (report.missing or {}).items()]
