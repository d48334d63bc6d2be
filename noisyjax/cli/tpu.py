"""`noisyjax tpu jobs`."""

from pathlib import Path

import typer

from noisyjax.cli.evaluate import OVERRIDES

app = typer.Typer(no_args_is_help=True, help="TPUs: job files for engines that run a sweep on many of them.")


@app.callback()
def _tpu() -> None:
    """Keeps `jobs` a word of its own while it is the only verb here."""


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
    out: Path = typer.Option(None, help="Write the file here instead of printing it."),
) -> None:
    """Write the job file that runs a sweep on many TPUs. It starts nothing; the file's head says how to."""
    from noisyjax.tpu.jobs import JobSpec, job_file

    mounts = {name: url for name, _, url in (word.partition("=") for word in mount)}
    words = tuple(overrides or ())
    text = job_file(engine, JobSpec(config, words, accelerator, shards, split, spot, bucket, image, mounts))
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")
        typer.echo(f"wrote {out}")
