"""`noisyjax report`."""

from pathlib import Path

import typer


def report(
    runs: list[str] = typer.Argument(help="Evaluation or training runs, or folders of such; several are side by side."),
    html: Path = typer.Option(None, help="Write one self-contained HTML page here."),
    json: Path = typer.Option(None, help="Write the numbers as JSON here."),
    markdown: bool = typer.Option(False, "--markdown", help="Print Markdown instead of a terminal table."),
    draws: int = typer.Option(2000, min=100, help="Bootstrap draws behind the intervals."),
) -> None:
    """Evaluation runs: datasets × settings with intervals, drops, and what is missing. Training runs: the course of
    their figures, evaluations before and after, and on the page curves, attention and sampled completions."""
    from noisyjax.report import print_report, write_html, write_json

    print_report(runs, markdown=markdown, draws=draws)
    if html is not None:
        typer.echo(f"wrote {write_html(runs, html, draws=draws)}")
    if json is not None:
        typer.echo(f"wrote {write_json(runs, json, draws=draws)}")
