"""What a plan is about: a config of any kind, read without weights, and the architectures of the models it names."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from noisyjax.config import ModelPreset, load, packaged_configs, validate
from noisyjax.config.tree import expand, merge, parse_overrides, read_tree
from noisyjax.engine.config import LocalConfig
from noisyjax.errors import UsageError, nearest
from noisyjax.evaluate import EvalConfig
from noisyjax.train.config import GrpoConfig, SftConfig

if TYPE_CHECKING:  # it imports jax, whose environment is not set yet where a config is read
    from noisyjax.models import ModelConfig

_EVAL, _GRPO = {"engine", "bench", "sampling"}, {"prompts", "rollout", "reward", "advantage", "loss", "judge"}
_NEEDLESS = {"out": "plan", "steps": 1}
"""What a run cannot do without and a plan can."""


class Subject(NamedTuple):
    """A config and the kind of run that it is for."""

    kind: str
    """grpo, sft or eval."""
    config: Any

    @property
    def judge(self) -> LocalConfig | None:
        """The judge that runs on TPUs too, if there is one of its own."""
        engine = getattr(self.config.judge, "engine", None) if self.kind != "sft" else None
        return engine if isinstance(engine, LocalConfig) else None


def read_subject(source: str, overrides: Sequence[str] = ()) -> Subject:
    """The config, of the kind that its keys tell. UsageError as `config.load` raises it; `out` and `steps` may lack."""
    base, origins = read_tree(source)
    over, more = expand(*parse_overrides(overrides))
    tree = merge(base, over)
    if "axes" in tree:
        raise UsageError(f"{source} is several runs; plan one of them, by a config without axes")
    if _EVAL & tree.keys():
        found = Subject("eval", validate(EvalConfig, tree, source, origins | more))
        if not isinstance(found.config.engine, LocalConfig):
            raise UsageError(f"{source} asks an endpoint: there is nothing of it to run on a TPU")
        return found
    kind, schema = ("grpo", GrpoConfig) if _GRPO & tree.keys() else ("sft", SftConfig)
    return Subject(kind, validate(schema, merge(_NEEDLESS, tree), source, origins | more))


def architecture(model: str | Path, key: str = "model", *, keep_quantised: bool = False) -> "ModelConfig":
    """The architecture of a model folder, or of a preset by its name. No weights are read.

    Raises UsageError for what is neither, by the config's `key`; ModelError for one that is not implemented.
    """
    from dataclasses import replace

    from noisyjax.models import read_config
    from noisyjax.models.formats.hf_read import read_json

    if Path(model).is_dir():
        packed = read_json(Path(model) / "config.json").get("quantization_config") if keep_quantised else None
        cfg = read_config(model)
        return replace(cfg, quantised=packed.get("quant_method")) if packed else cfg
    presets = {name.rsplit("/", 1)[1]: name for name in packaged_configs() if name.startswith("models/presets/")}
    name = Path(model).name
    if name not in presets:
        raise UsageError(f"{key}={model} is neither a model folder nor a known model; {nearest(name, presets)}")
    return load(ModelPreset, presets[name]).decoder_config(quantised=keep_quantised)
