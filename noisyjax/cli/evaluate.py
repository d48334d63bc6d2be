"""`noisyjax eval` and `noisyjax rescore`."""

import typer

OVERRIDES = typer.Argument(
    None, metavar="[key=value]…", help="Settings that replace the file's, e.g. `engine.slots=4`."
)


def evaluate(
    config: str = typer.Argument(help="A YAML file, or the name of a config that comes with the package."),
    overrides: list[str] = OVERRIDES,
    table: bool = typer.Option(True, "--table/--no-table", help="Print the table when all cells are done."),
    shard: str = typer.Option(None, help="`i/n`: do only the i-th of n parts, on machines that do not know of others."),
    split: str = typer.Option("questions", help="Parts are shares of every run's `questions`, or whole `runs`."),
    only_list: bool = typer.Option(False, "--list", help="Print the name and folder of every run, and run none."),
) -> None:
    """Run the cells of a sweep: every dataset in every setting. A run that was stopped goes on where it was.

    Results are stored sample by sample in the folder `out`; run the same line again after any interruption. A config
    with `axes` is several runs, one after the other: models, methods, settings of a model.
    """
    from noisyjax import evaluate as room
    from noisyjax import hosts

    runs = room.load_runs(config, overrides or (), shard, split)
    if only_list:
        for run in runs:
            typer.echo(f"{run.name}\t{run.out}")
        return
    with hosts.joined(*runs, detect=any(run.engine.kind == "local" for run in runs)):
        room.evaluate_all(runs)
        if table and hosts.first():
            from noisyjax.report import print_report

            print_report([run.out for run in runs])


def rescore(
    run: str = typer.Argument(help="The folder of a run."),
    table: bool = typer.Option(True, "--table/--no-table", help="Print the new table."),
) -> None:
    """Score the stored completions of a run again with the present scorers. Generates nothing."""
    from noisyjax import evaluate as room

    typer.echo(room.rescore(run))
    if table:
        from noisyjax.report import print_report

        print_report([run])
