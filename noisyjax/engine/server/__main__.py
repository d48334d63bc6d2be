"""`python -m noisyjax.engine.server`: answers without a model, or from a model folder, with faults when asked for."""

import sys
from typing import Annotated

import typer

from noisyjax.engine.server.faults import FAULTS, FaultPlan
from noisyjax.engine.server.protocol import Responder
from noisyjax.engine.server.responders import EchoResponder
from noisyjax.errors import NoisyjaxError, UsageError, nearest


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free port; the address is printed.")] = 8000,
    engine: Annotated[str, typer.Option(help="Model folder to answer from; without it, words drawn from a hash.")] = "",
    dtype: Annotated[str, typer.Option(help="For --engine: auto, float32 or bfloat16.")] = "auto",
    top_logprobs: Annotated[
        int, typer.Option(help="For --engine: most alternatives per token that calls may ask.")
    ] = 0,
    fail_rate: Annotated[float, typer.Option(min=0, max=1, help="Share of the calls that fail on purpose.")] = 0.0,
    fail_kinds: Annotated[str, typer.Option(help="Kinds of failure, with commas: " + ", ".join(FAULTS))] = "",
    seed: Annotated[int, typer.Option(help="Draws which calls fail, and how.")] = 0,
    retry_after: Annotated[float, typer.Option(help="Seconds that a 429 asks for.")] = 1.0,
    delay: Annotated[float, typer.Option(help="Seconds that an answer without a model takes.")] = 0.0,
) -> None:
    """Serve /v1/chat/completions, /v1/models and /counts until interrupted."""
    from noisyjax.engine.server.app import ChatApp, bind, server

    kinds = tuple(k.strip() for k in fail_kinds.split(",") if k.strip()) or FAULTS
    for kind in kinds:
        if kind not in FAULTS:
            raise UsageError(f"unknown kind of failure '{kind}'; {nearest(kind, FAULTS)}")
    listener = bind(host, port)
    responder = _from_folder(engine, dtype, top_logprobs) if engine else EchoResponder(delay_s=delay)
    plan = FaultPlan(rate=fail_rate, seed=seed, kinds=kinds, retry_after_s=retry_after)
    app = ChatApp(responder, plan)
    print(f"http://{host}:{listener.getsockname()[1]}/v1 serves '{responder.model}'", flush=True)
    try:
        server(app, log_level="error").run(sockets=[listener])
    finally:
        responder.close()


def _from_folder(folder: str, dtype: str, top: int) -> Responder:
    from noisyjax.engine.server.local import responder_from_folder

    return responder_from_folder(folder, dtype, top)


def main() -> int:
    """Runs the command; errors that a person can mend are one line, without a traceback."""
    try:
        typer.run(serve)
    except NoisyjaxError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
