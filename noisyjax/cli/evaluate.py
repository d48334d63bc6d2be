"""`noisyjax eval` and `noisyjax rescore`."""

import typer

OVERRIDES = typer.Argument(
    None, metavar="[key=value]…", help="Settings that replace the file's, e.g. `engine.slots=4`."
)


def evaluate(
    config: str = typer.Argument(help="A YAML file, or the name of a config that comes with the package."),
    overrides: list[str] = OVERRIDES,
    table: bool = typer.Option(True, "--table/--no-table", help="Print the table when all cells are done."),
) -> None:
    """Run the cells of a sweep: every dataset in every setting. A run that was stopped goes on where it was.

    Results are stored sample by sample in the folder `out`; run the same line again after any interruption.
    """
    from noisyjax import evaluate as room
    from noisyjax.config import load

    done = load(room.EvalConfig, config, overrides or ())
    room.evaluate(done)
    if table:
        from noisyjax.report import print_report

        print_report([done.out])


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
