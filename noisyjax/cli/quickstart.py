"""`noisyjax quickstart`."""

from pathlib import Path

import typer


def quickstart(
    out: Path = typer.Option(Path("runs/quickstart"), help="Folder for the model, the run and the report."),
) -> None:
    """The whole story in two minutes: make a tiny random model, evaluate it in four settings, write the report."""
    from noisyjax.quickstart import run_quickstart

    run_quickstart(out)
