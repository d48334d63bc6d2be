"""`noisyjax tpu plan` and `noisyjax tpu jobs`."""

from pathlib import Path

import typer

from noisyjax.cli.evaluate import OVERRIDES

app = typer.Typer(no_args_is_help=True, help="TPUs: what a run would be on one, and job files for many.")


@app.command("jobs")
def jobs(
    config: str = typer.Argument(help="A config of `noisyjax eval`: one run, or several."),
    overrides: list[str] = OVERRIDES,
    engine: str = typer.Option(help="`sky` (SkyPilot managed jobs) or `jobset` (Kubernetes JobSet)."),
    bucket: str = typer.Option(help="Where results go: gs://NAME/FOLDER."),
    accelerator: str = typer.Option("v6e-8", help="The TPU of each shard, as Google names it."),
    shards: int = typer.Option(1, min=1, help="How many machines share the work."),
    split: str = typer.Option("questions", help="A shard's share: of every run's `questions`, or whole `runs`."),
    spot: bool = typer.Option(False, "--spot/--on-demand", help="Cheaper machines that may be taken away."),
    image: str = typer.Option("", help="Container image with noisyjax, for a JobSet."),
    mount: list[str] = typer.Option([], help="NAME=gs://BUCKET/FOLDER, read through the folder NAME; repeatable."),
    env: list[str] = typer.Option([], help="NAME of a variable to hand over, such as an endpoint's key; repeatable."),
    out: Path = typer.Option(None, dir_okay=False, help="Write the file here instead of printing it."),
) -> None:
    """Write the job file that runs a sweep on many TPUs. It starts nothing; the file's head says how to."""
    from noisyjax.tpu.jobs import JobSpec, job_file, read_mounts, write_job_file

    words = tuple(overrides or ())
    spec = JobSpec(config, words, accelerator, shards, split, spot, bucket, image, read_mounts(mount), tuple(env))
    text = job_file(engine, spec)
    if out is None:
        typer.echo(text, nl=False)
    else:
        write_job_file(out, text)
        typer.echo(f"wrote {out}")


@app.command("plan")
def plan(
    config: str = typer.Argument(help="A config of `noisyjax train` or `noisyjax eval`; `model` may be a known name."),
    overrides: list[str] = OVERRIDES,
    topology: list[str] = typer.Option(help="A TPU, as Google names it: v5e-16, v5p-32; repeatable."),
    search: bool = typer.Option(False, "--search", help="Find the mesh and the micro-batch instead."),
    only: list[str] = typer.Option([], help="A program, such as update or decode; repeatable. By default all."),
    prices: str = typer.Option("tpu_prices", help="Dollars per chip and hour: a YAML file, or a packaged table."),
    out: Path = typer.Option(None, "--json", dir_okay=False, help="Write everything here as JSON too."),
) -> None:
    """Compile a run's programs for a TPU that is not here: whether they fit, what they send, how long a step takes."""
    import json

    from noisyjax.store import write_text
    from noisyjax.tpu.names import parse_accelerator
    from noisyjax.tpu.planning.plan import plan as make
    from noisyjax.tpu.planning.prices import read_prices
    from noisyjax.tpu.planning.text import text

    table, plans = read_prices(prices), []
    for name in topology:
        parse_accelerator(name)  # before minutes go into the first
    for name in topology:
        plans.append(make(config, overrides or (), name, search=search, only=only, prices=table))
        typer.echo(text(plans[-1]) + "\n")
        if out is not None:
            write_text(out, json.dumps(plans, indent=1) + "\n")
    if not all(one["fits"] for one in plans):
        raise typer.Exit(1)
