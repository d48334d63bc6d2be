"""From a checkpoint back to files: a Hugging Face model folder, or an adapter alone as `peft` reads it."""

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

Weights = dict[str, Any]
"""{path: array}."""


def export(
    run: str,
    out: str | Path,
    *,
    step: int | None = None,
    dtype: str = "auto",
    model: Path | None = None,
    adapter: bool = False,
    check: bool = False,
) -> Iterator[str]:
    """Write the weights of a training run's checkpoint to the new folder `out`; yields what was done, line by line.

    Args:
        step: which checkpoint; None for the latest.
        dtype: float32, bfloat16 or float16; auto is that of the start's files, or an adapter's own float32.
        model: the start's folder (architecture, tokenizer, chat template), where it is not where the run found it.
        adapter: write the adapter alone, for `peft`; otherwise it is merged into the start's weights.
        check: also read the folder with transformers (and peft) and compare its logits with this package's own.

    Raises UsageError for a run without that checkpoint or adapter or a start that has gone, RunError when the check
    fails.
    """
    found, _ = read_about(run, step)
    trained: Any = _resolved(run).get("lora")
    if adapter and trained is None:
        raise UsageError(f"{run} trained all weights and has no adapter (no `lora` in its config): leave out --adapter")
    start = _start_of(run) if model is None else model
    cfg = models.read_config(start)
    kind = ("float32" if adapter else _start_dtype(start)) if dtype == "auto" else _known_dtype(dtype)
    own = {} if trained is None else _read(run, found, lora.adapter_specs(cfg, trained["rank"], trained["targets"]))
    if adapter:
        base = str(start.absolute())
        own = _cast(own, kind)
        folder = models.save_adapter(own, cfg, out, alpha=trained["alpha"], base=base)
        yield f"the adapter of step {found} of {run} is in {folder} ({kind}); its base is {base}"
    else:
        whole = _merged(start, own, trained) if trained else _read(run, found, models.param_specs(cfg))
        folder = models.save(_cast(whole, kind), cfg, out, source=start)
        yield f"step {found} of {run} is in {folder} ({kind})"
    if check and adapter:
        yield _check(folder, cfg, _merged(start, _cast(own, "float32"), trained), base=start)
    elif check:
        yield _check(folder, cfg, models.load(folder, dtype="float32").params)


def _merged(start: Path, own: Weights, trained: Mapping[str, Any]) -> Weights:
    """The start's weights with the adapter added, float32."""
    return lora.merge(models.load(start, dtype="float32").params, own, trained["alpha"] / trained["rank"])


def _cast(weights: Mapping[str, Any], dtype: str) -> Weights:
    return {path: x.astype(dtype) for path, x in weights.items()}


def _read(run: str, step: int, specs: Mapping[str, models.ParamSpec]) -> Weights:
    """What a checkpoint holds of these parameters, float32, on this machine's first device."""
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    template = {path: jax.ShapeDtypeStruct(spec.shape, jnp.float32, sharding=device) for path, spec in specs.items()}
    return read_tree(run, step, {"params": template})["params"]


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


def _known_dtype(dtype: str) -> str:
    known = ("auto", "float32", "bfloat16", "float16")
    if dtype not in known:
        raise UsageError(f"dtype={dtype!r}: {nearest(dtype, known)}")
    return dtype


def _start_dtype(start: Path) -> str:
    config = read_json(start / "config.json")
    return str(config.get("dtype") or config.get("torch_dtype") or "float32")


def _check(folder: Path, cfg: models.ModelConfig, params: Mapping[str, Any], base: Path | None = None) -> str:
    """Logits of `params` (float32) here and of the written folder in transformers, or on its `base` in peft, on one row
    of ids. RunError when they differ."""
    try:
        import torch

        theirs_model, strange = _loaded(folder) if base is None else _loaded_adapter(folder, base)
    except ImportError:
        needed = "transformers and torch" if base is None else "peft and torch"
        raise UsageError(f"--check compares with {needed}: pip install 'noisyjax[parity]'") from None
    ids = np.random.default_rng(0).integers(0, cfg.vocab_size, (1, CHECK_TOKENS))
    ours = np.asarray(forward(Decoder(cfg, params), jnp.asarray(ids, jnp.int32)))
    with torch.inference_mode():
        theirs = theirs_model(torch.tensor(ids)).logits.float().numpy()
    gap = float(np.abs(ours - theirs).max() / np.abs(ours).max())
    reader = "transformers" if base is None else "peft"
    if strange or not gap <= TOLERANCE:
        names = strange or "all names known"
        raise RunError(f"{folder} is not the same in {reader}: {names}, logits differ by {gap:.2g} of the largest")
    return f"{reader} reads it without a missing or unknown name; logits differ by at most {gap:.1g} of the largest"


def _loaded(folder: Path) -> tuple[Any, dict[str, list[str]]]:
    """A model folder in transformers, float32, and the names that are missing or too many."""
    import torch
    from transformers import AutoModelForCausalLM

    read: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    model, info = read
    return model, {name: sorted(keys) for name, keys in info.items() if keys}


def _loaded_adapter(folder: Path, base: Path) -> tuple[Any, dict[str, list[str]]]:
    """The same for an adapter on its base in peft."""
    from peft import PeftConfig, get_peft_model

    model = get_peft_model(_loaded(base)[0], PeftConfig.from_pretrained(str(folder)))
    info = model.load_adapter(str(folder), "default", is_trainable=False)
    return model.eval(), {k: sorted(keys) for k in ("missing_keys", "unexpected_keys") if (keys := getattr(info, k))}
