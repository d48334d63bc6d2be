"""`noisyjax bench ls`, `show` and `validate`."""

import typer

app = typer.Typer(help="What NoisyBench holds: datasets, prompts, and whether your data fits.", no_args_is_help=True)

OVERRIDES = typer.Argument(None, metavar="[key=value]…", help="Benchmark settings, e.g. `data=DIR settings=[ND,HN]`.")


@app.command("ls")
def ls(data: str = typer.Option(None, help="A folder of upstream files: say which datasets it holds.")) -> None:
    """List every dataset: version, metric, samples, licence, and which cannot be run yet."""
    from noisyjax.bench.survey import list_tasks
    from noisyjax.report.survey import print_tasks

    print_tasks(list_tasks(data))


@app.command("show")
def show(
    dataset: str = typer.Argument(help="A dataset, as `bench ls` names it."),
    overrides: list[str] = OVERRIDES,
    setting: str = typer.Option("ND", help="ND, RD, RC, HN or a mixture."),
    question: str = typer.Option(None, help="Id of a question; the first by default."),
) -> None:
    """Print one question of a dataset as the model would see it, each part with its label."""
    from noisyjax.bench import BenchConfig, load_bench
    from noisyjax.bench.survey import show as shown
    from noisyjax.config import load
    from noisyjax.report.survey import print_prompt

    config = load(BenchConfig, None, [f"datasets=[{dataset}]", f"settings=[{setting}]", *(overrides or [])])
    print_prompt(shown(load_bench(config), dataset, setting, question))


@app.command("validate")
def validate(overrides: list[str] = OVERRIDES) -> None:
    """Read all data that the settings name: what is there, what was dropped, and why. Exit 1 if rows are broken."""
    from noisyjax.bench import BenchConfig
    from noisyjax.bench.survey import validate_bench
    from noisyjax.config import load
    from noisyjax.report.survey import print_validation

    found = validate_bench(load(BenchConfig, None, overrides or []))
    print_validation(found)
    if not found.sound:
        raise typer.Exit(1)
