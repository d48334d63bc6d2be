"""The command line: one module per verb, no logic. Rooms are imported when their verb runs, so that help is instant."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer
from typer.core import TyperGroup
from typer.exceptions import Abort, TyperException

from noisyjax.cli import bench, convert, evaluate, quickstart, report, tpu, train
from noisyjax.errors import NoisyjaxError
from noisyjax.visible import visible


class _Ended(Exception):
    """Carries a KeyboardInterrupt past typer, which makes a bare exit code of it and loses what it says."""


class _Verbs(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise _Ended from error


app = typer.Typer(
    cls=_Verbs,
    name="noisyjax",
    help="How well does a reasoning model hold up in a noisy context? Measure it, train against it and explain it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        from noisyjax import __version__

        typer.echo(f"noisyjax {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks; accepted anywhere on the line."),
) -> None:
    """Options of every verb. `--debug` is taken out of the line by `main`, so that it may stand anywhere."""


app.command("eval")(evaluate.evaluate)
app.command("report")(report.report)
app.command("rescore")(evaluate.rescore)
app.add_typer(bench.app, name="bench")
app.add_typer(convert.app, name="convert")
app.add_typer(train.app, name="train")
app.add_typer(tpu.app, name="tpu")
app.command("export")(train.export)
app.command("quickstart")(quickstart.quickstart)


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 a run failed, 2 the request was wrong, 128+n stopped by signal n.

    Failures that a person can cause or meet are one readable message on stderr; `--debug` adds the traceback.
    """
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # that PyTorch is absent is no news here
    words = list(sys.argv[1:] if words is None else words)
    end = words.index("--") if "--" in words else len(words)
    debug = "--debug" in words[:end]
    words = [w for w in words[:end] if w != "--debug"] + words[end:]
    # Without `standalone_mode` the verb's value comes back, or the code of a typer.Exit.
    code = guarded(lambda: app(words, standalone_mode=False), debug)
    if hosts := sys.modules.get("noisyjax.hosts"):  # not imported just to ask, like the models below
        hosts.leave(code)
    sys.exit(code)


def guarded(action: Callable[[], object], debug: bool) -> int:
    """The exit code of `action`, its failures as one message on stderr."""
    try:
        code = action()
        return code if isinstance(code, int) else 0
    except NoisyjaxError as error:
        return _fail(str(error), error.exit_code, debug)
    except TyperException as error:
        return _fail(error.format_message(), error.exit_code, debug)
    except Abort:
        return _fail("aborted", 1, debug)
    except (_Ended, KeyboardInterrupt) as error:
        said = error.__cause__ if isinstance(error, _Ended) else error
        return _fail(str(said) or "interrupted", getattr(said, "exit_code", 130), debug)
    except BrokenPipeError:  # `noisyjax report RUN | head`
        sys.stderr.close()
        return 1
    except Exception as error:
        if not _is_model_error(error):
            if hosts := sys.modules.get("noisyjax.hosts"):
                hosts.settle()
            raise
        return _fail(str(error), 2, debug)


def _is_model_error(error: Exception) -> bool:
    """`noisyjax.models` knows nothing of this package's errors and has its own; it is not imported just to ask."""
    models = sys.modules.get("noisyjax.models.errors")
    return models is not None and isinstance(error, models.ModelError)


def _fail(message: str, code: int, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exc()
    if message:  # a bare `noisyjax` has said all in its help
        print(f"noisyjax: {visible(message)}", file=sys.stderr)  # it may quote data or an endpoint
    return code
