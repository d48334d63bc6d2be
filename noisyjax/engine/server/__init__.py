"""An OpenAI-compatible server for tests, benchmarks and other harnesses: `python -m noisyjax.engine.server --help`.

It answers from a responder: `EchoResponder` makes deterministic answers without a model, `EngineResponder` generates
with any `Engine`. A `FaultPlan` lets a chosen share of calls fail in the ways that real endpoints fail.
"""

from noisyjax.engine.server.faults import FAULTS, FaultPlan
from noisyjax.engine.server.protocol import Chat, ChatError, Reply, Responder
from noisyjax.engine.server.responders import EchoResponder, EngineResponder

__all__ = [
    "FAULTS",
    "Chat",
    "ChatError",
    "EchoResponder",
    "EngineResponder",
    "FaultPlan",
    "Reply",
    "Responder",
]
