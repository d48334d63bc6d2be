"""Write the tiny world: python -m noisyjax.world OUT [--seed 0] [--n 400]"""

import os
from pathlib import Path
from typing import Annotated

import typer

from noisyjax.errors import NoisyjaxError


def main(
    out: Annotated[Path, typer.Argument(help="Folder for eval/, train/ and init/.")],
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 0,
    n: Annotated[int, typer.Option(help="Held-out questions.")] = 400,
) -> None:
    """Write evaluation data, training records and the untrained model of the tiny world."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # that PyTorch is absent is no news here
    from noisyjax.world.files import write_world  # transformers, which reads the variable

    try:
        write_world(out, seed, n)
    except NoisyjaxError as error:
        typer.echo(f"noisyjax.world: {error}", err=True)
        raise typer.Exit(error.exit_code) from error
    typer.echo(f"the tiny world is in {out}")


if __name__ == "__main__":
    typer.run(main)
