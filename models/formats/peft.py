"""Low-rank adapters -> the folder that the `peft` library reads: adapter_config.json, adapter_model.safetensors.

Whatever loads adapters (transformers, vLLM) reads this form; the base model stays where it is and is named.
Legend: L layers, R rank, I inputs and O outputs of a projection.
"""

from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
from safetensors.numpy import save_file

from ..config import ModelConfig
from ..errors import UnsupportedConfig
from ..families import file_forms
from ..lora import TARGETS, adapter_paths
from ..params import param_layers
from .hf_write import atomic_folder, write_json

CONFIG_NAME, WEIGHTS_NAME = "adapter_config.json", "adapter_model.safetensors"


def save_adapter(
    adapters: Mapping[str, jax.Array], cfg: ModelConfig, out: str | Path, *, alpha: float, base: str
) -> Path:
    """Write `adapters` (paths and shapes of `lora.adapter_specs`), in the arrays' own dtype, to the new folder `out`.

    alpha: the product is scaled by alpha / rank, there as here. base: folder or name of the model it belongs to.
    Raises ModelError when `out` is not empty, UnsupportedConfig for a projection that shares a tensor with another.
    """
    tensors: dict[str, np.ndarray] = {}
    targets: set[str] = set()
    rank = 0
    for path in TARGETS.values():
        a_path, b_path = adapter_paths(path)
        if a_path not in adapters:
            continue
        form = file_forms(cfg)[path]
        if not form.plain:
            raise UnsupportedConfig(f"{form.name} holds more than one projection: its adapter has no place in peft")
        a_lri, b_lor = np.asarray(adapters[a_path]), np.asarray(adapters[b_path])
        rank = a_lri.shape[1]
        for at, layer in enumerate(param_layers(cfg, path)):
            module = form.name.format(i=layer).removesuffix(".weight")
            targets.add(module.rsplit(".", 1)[1])
            tensors[f"base_model.model.{module}.lora_A.weight"] = a_lri[at].reshape(rank, -1)
            tensors[f"base_model.model.{module}.lora_B.weight"] = b_lor[at].reshape(-1, rank)
    with atomic_folder(out) as folder:
        save_file({n: np.ascontiguousarray(x) for n, x in tensors.items()}, folder / WEIGHTS_NAME, {"format": "pt"})
        write_json(
            folder / CONFIG_NAME,
            {
                "peft_type": "LORA",
                "task_type": "CAUSAL_LM",
                "base_model_name_or_path": base,
                "r": rank,
                "lora_alpha": alpha,
                "lora_dropout": 0.0,
                "target_modules": sorted(targets),
                "bias": "none",
                "fan_in_fan_out": False,
                "inference_mode": True,
            },
        )
    return Path(out)
