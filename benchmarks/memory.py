"""Peak memory of a long prompt: a 4-layer model of width 256 in a process of its own, at three lengths."""

import json
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.line import Line

LENGTHS = (8_192, 16_384, 32_768)

CHILD = """
import json, resource, sys
import numpy as np
from benchmarks.subject import request, run, folder, tokens
from noisyjax.engine.local import LocalConfig, LocalEngine
from noisyjax.models import ModelConfig, RopeConfig, init_params
from noisyjax.models.decoder import Decoder
length = int(sys.argv[1])
cfg = ModelConfig(family="qwen3", vocab_size=49152, d_model=256, n_layers=4, n_heads=8, n_kv_heads=4, head_dim=32,
                  d_ff=768, rope=RopeConfig(theta=1e6), norm_eps=1e-6, tie_embeddings=True, qk_norm=True,
                  max_positions=65536)
engine = LocalEngine(LocalConfig(model=sys.argv[2], slots=2), model=Decoder(cfg, init_params(cfg, 0), stacked=False))
run(engine, [request("long", tokens(length, 0), 8)])
print(json.dumps({"kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))
"""


def peak_gib(length: int) -> float:
    """Peak resident memory, GiB, of a fresh process that answers one prompt of `length` tokens."""
    from benchmarks.subject import folder

    command = [sys.executable, "-c", CHILD, str(length), str(folder())]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(out.splitlines()[-1])["kib"] / 2**20


def long_prompt() -> Iterator[Line]:
    """32,768 tokens: the peak, and how much of its growth is more than linear."""
    peaks = {n: peak_gib(n) for n in LENGTHS}
    detail: dict[str, object] = {f"{n:,} tokens, GiB": gib for n, gib in peaks.items()}
    yield Line("a 32,768-token prompt", "peak memory, GiB", peaks[LENGTHS[-1]], most=3.0, detail=detail)
    first, second = peaks[16_384] - peaks[8_192], peaks[32_768] - peaks[16_384]
    yield Line(
        "growth with length",
        "GiB of the second doubling over the first",
        second / max(first, 0.01),
        most=2.5,
        detail=detail,
    )
