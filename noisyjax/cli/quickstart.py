"""`noisyjax quickstart`."""

from pathlib import Path

import typer


def quickstart(
    out: Path = typer.Option(Path("runs/quickstart"), help="Folder for the world, the runs and the report."),
    start: str = typer.Option("sparse", help="The model to begin with: sparse or strong."),
    seed: int = typer.Option(0, help="Of the world, the order of prompts and the sampling."),
    steps: int = typer.Option(100, help="GRPO steps of each arm."),
    questions: int = typer.Option(400, help="Held-out questions, asked in four settings."),
    judge: str = typer.Option("rules", help="rules, a model folder, or an endpoint as URL#MODEL."),
) -> None:
    """The whole story in minutes: evaluate a tiny model in four settings, train it in three ways, write the page."""
    from noisyjax.quickstart import run_quickstart

    run_quickstart(out, start=start, seed=seed, steps=steps, questions=questions, judge=judge)
