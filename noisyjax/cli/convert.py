"""`noisyjax convert gguf`."""

from pathlib import Path

import typer

app = typer.Typer(help="Other formats to a Hugging Face model folder.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keeps `gguf` a word of its own while it is the only format."""


@app.command("gguf")
def gguf(
    file: Path = typer.Argument(help="A GGUF file of a llama, qwen2 or qwen3 model."),
    out: Path = typer.Argument(help="Folder to write; it must not hold a model yet."),
    dtype: str = typer.Option("float32", help="Of the written weights: float32, bfloat16 or float16."),
) -> None:
    """Dequantise a GGUF file into a model folder: weights, config, tokenizer and chat template."""
    from noisyjax.models import convert_gguf
    from noisyjax.store.folder import storing

    with storing(str(out)):
        written = convert_gguf(file, out, dtype)
    typer.echo(f"wrote {written}")
