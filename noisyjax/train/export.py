"""From a checkpoint back to a Hugging Face model folder."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import yaml

from noisyjax import models
from noisyjax.config import RESOLVED_NAME
from noisyjax.errors import RunError, UsageError, nearest
from noisyjax.models import lora
from noisyjax.models.decoder import Decoder, forward
from noisyjax.models.formats.hf_read import read_json
from noisyjax.store import open_folder
from noisyjax.train.state import read_about, read_tree

TOLERANCE = 1e-3
"""Largest difference of logits that `check` accepts, in float32, relative to the largest logit."""

CHECK_TOKENS = 32


def export(
    run: str,
    out: str | Path,
    *,
    step: int | None = None,
    dtype: str = "auto",
    model: Path | None = None,
    check: bool = False,
) -> Iterator[str]:
    """Write the weights of a training run's checkpoint to the new folder `out`; yields what was done, line by line.

    Args:
        step: which checkpoint; None for the latest.
        dtype: float32 or bfloat16; auto is that of the start's files.
        model: the start's folder (architecture, tokenizer, chat template), where it is not where the run found it.
        check: also read the folder with transformers and compare its logits with this package's own.

    Raises UsageError for a run without that checkpoint or a start that has gone, RunError when the check fails.
    """
    found, _ = read_about(run, step)
    start = _start_of(run) if model is None else model
    cfg = models.read_config(start)
    kind = _dtype(dtype, start)
    params = _params(run, found, cfg, start, kind)
    folder = models.save(params, cfg, out, source=start)
    yield f"step {found} of {run} is in {folder} ({kind})"
    if check:
        yield _check(folder, cfg)


def _params(run: str, step: int, cfg: models.ModelConfig, start: Path, dtype: str) -> dict[str, Any]:
    """The whole model's weights, an adapter merged into the start's."""
    adapter = _resolved(run).get("lora")
    if adapter is None:
        read = read_tree(run, step, {"params": _template(models.param_specs(cfg))})["params"]
    else:
        trained = _adapter(run, step, cfg, adapter)
        read = lora.merge(models.load(start, dtype="float32").params, trained, adapter["alpha"] / adapter["rank"])
    return {path: x.astype(dtype) for path, x in read.items()}


def _adapter(run: str, step: int, cfg: models.ModelConfig, config: Mapping[str, Any]) -> dict[str, Any]:
    template = _template(lora.adapter_specs(cfg, config["rank"], config["targets"]))
    return read_tree(run, step, {"params": template})["params"]


def _template(specs: Mapping[str, models.ParamSpec]) -> dict[str, jax.ShapeDtypeStruct]:
    """Float32 on this machine's first device."""
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return {path: jax.ShapeDtypeStruct(spec.shape, jnp.float32, sharding=device) for path, spec in specs.items()}


def _resolved(run: str) -> Mapping[str, Any]:
    raw = open_folder(run).read(RESOLVED_NAME)
    if raw is None:
        raise UsageError(f"{run} has no {RESOLVED_NAME}: is it a training run?")
    return yaml.safe_load(raw)


def _start_of(run: str) -> Path:
    """The model folder that the run began with, by its resolved config."""
    start = Path(_resolved(run)["model"])
    if not (start / "config.json").is_file():
        raise UsageError(f"the start of {run} is no longer in {start}: name its folder with --model")
    return start


def _dtype(dtype: str, start: Path) -> str:
    known = ("auto", "float32", "bfloat16", "float16")
    if dtype not in known:
        raise UsageError(f"dtype={dtype!r}: {nearest(dtype, known)}")
    if dtype != "auto":
        return dtype
    config = read_json(start / "config.json")
    return str(config.get("dtype") or config.get("torch_dtype") or "float32")


def _check(folder: Path, cfg: models.ModelConfig) -> str:
    """Logits of the written folder, here and in transformers, on one row of ids. RunError when they differ."""
    try:
        import torch
        from transformers import AutoModelForCausalLM
    except ImportError:
        raise UsageError("--check compares with transformers and torch: pip install 'noisyjax[parity]'") from None
    ids = np.random.default_rng(0).integers(0, cfg.vocab_size, (1, CHECK_TOKENS))
    loaded = models.load(folder, dtype="float32")
    ours = np.asarray(forward(Decoder(loaded.cfg, loaded.params), jnp.asarray(ids, jnp.int32)))
    read: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    theirs_model, info = read
    with torch.inference_mode():
        theirs = theirs_model(torch.tensor(ids)).logits.float().numpy()
    strange = {name: sorted(keys) for name, keys in info.items() if keys}
    gap = float(np.abs(ours - theirs).max() / np.abs(ours).max())
    if strange or not gap <= TOLERANCE:
        names = strange or "all names known"
        raise RunError(f"{folder} is not the same in transformers: {names}, logits differ by {gap:.2g} of the largest")
    return f"transformers reads it without a missing or unknown name; logits differ by at most {gap:.1g} of the largest"
