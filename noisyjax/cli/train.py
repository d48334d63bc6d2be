"""`noisyjax train sft`, `noisyjax train grpo` and `noisyjax export`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from noisyjax.cli.evaluate import OVERRIDES

app = typer.Typer(no_args_is_help=True, help="Train a model: supervised, or by GRPO with verdicts as rewards.")

CONFIG = typer.Argument(help="A YAML file, or the name of a config that comes with the package.")


@app.command("sft")
def sft(config: str = CONFIG, overrides: list[str] = OVERRIDES) -> None:
    """Supervised training on conversations or on NoisyInstruct records. A run that was stopped goes on where it was."""
    from noisyjax import train as room
    from noisyjax.config import load

    done = load(room.SftConfig, config, overrides or ())
    _run(room.train_sft, done)


@app.command("grpo")
def grpo(config: str = CONFIG, overrides: list[str] = OVERRIDES) -> None:
    """GRPO with the outcome reward, the rationale-aware reward, or your own. A stopped run goes on where it was."""
    from noisyjax import train as room
    from noisyjax.config import load

    done = load(room.GrpoConfig, config, overrides or ())
    _run(room.train_grpo, done)


def export(
    run: str = typer.Argument(help="The folder of a training run."),
    out: Path = typer.Argument(help="A new folder for the Hugging Face model."),
    step: int = typer.Option(None, help="The checkpoint of this step; by default the latest."),
    dtype: str = typer.Option("auto", help="float32 or bfloat16; auto is the start's own, for an adapter float32."),
    model: Path = typer.Option(None, help="The start's folder, where it has moved since."),
    adapter: bool = typer.Option(False, "--adapter", help="Of a `lora` run the adapter alone, as peft reads it."),
    check: bool = typer.Option(False, "--check", help="Read it back with transformers or peft and compare logits."),
) -> None:
    """Write a checkpoint as a Hugging Face model folder; an adapter is merged into its start, or written alone."""
    from noisyjax.train.export import export as export_run

    for line in export_run(run, out, step=step, dtype=dtype, model=model, adapter=adapter, check=check):
        typer.echo(line)


def _evaluator(config: Any) -> Any:
    """What evaluates during training: the sweep that the config names, on the policy's present weights."""
    if not config.evaluate.every:
        return None
    from noisyjax.evaluate import evaluator

    return lambda learner: evaluator(config, learner)


def _run(train: Callable[..., Any], config: Any) -> None:
    from noisyjax import hosts

    with hosts.joined(config):
        done = train(config, _evaluator(config))
        if hosts.first():
            _finish(done, config.out)


def _finish(done: Any, out: str) -> None:
    skipped = f", {done.skipped} skipped" if done.skipped else ""
    before = "nothing was left to do: " if done.tree is None else ""
    typer.echo(f"{before}step {done.step} is stored in {out}{skipped}")
    typer.echo(f"  noisyjax export {out} FOLDER    the model in Hugging Face format")
    typer.echo(f"  noisyjax report {out}           curves and tables")
