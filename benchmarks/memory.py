"""Peak memory of a long prompt: a 4-layer model of width 256 in a process of its own, at three lengths."""

import json
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.line import Line

LENGTHS = (8_192, 16_384, 32_768)

CHILD = """
import json, re, sys
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
status = lambda key: int(re.search(key + r":\\s+(\\d+) kB", open("/proc/self/status").read())[1])
loaded = status("VmHWM")
open("/proc/self/clear_refs", "w").write("5")  # forget the peak of loading, or it hides the prompt's own
run(engine, [request("long", tokens(length, 0), 8)])
print(json.dumps({"loaded": loaded, "run": status("VmHWM")}))
"""


def peaks_gib(length: int) -> tuple[float, float]:
    """Peak resident memory, GiB, of a fresh process: while loading, and while answering a prompt of `length` tokens.

    The least of three processes: what the allocator happens to keep only adds.
    """
    from benchmarks.subject import folder

    command = [sys.executable, "-c", CHILD, str(length), str(folder())]

    def one() -> tuple[float, float]:
        out = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        return out["run"] / 2**20, out["loaded"] / 2**20

    run, loaded = min(one() for _ in range(3))
    return loaded, run


def long_prompt() -> Iterator[Line]:
    """32,768 tokens: the peak, and how much of its growth is more than linear."""
    both = {n: peaks_gib(n) for n in LENGTHS}
    peaks = {n: run for n, (_, run) in both.items()}
    detail: dict[str, object] = {f"{n:,} tokens, GiB": gib for n, gib in peaks.items()}
    detail["while loading, GiB"] = both[LENGTHS[-1]][0]
    yield Line("a 32,768-token prompt", "peak memory, GiB", max(both[LENGTHS[-1]]), most=3.0, detail=detail)
    first, second = peaks[16_384] - peaks[8_192], peaks[32_768] - peaks[16_384]
    yield Line(
        "growth with length",
        "GiB of the second doubling over the first",
        second / max(first, 0.01),
        most=2.5,
        detail=detail,
    )
