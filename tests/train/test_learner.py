"""What a learner says before it begins."""

from types import SimpleNamespace

import pytest

from noisyjax.config import load
from noisyjax.train.config import GrpoConfig
from noisyjax.train.learner import idle

SPLIT = "judge={placement: split, kind: engine, engine: {kind: local, model: m, mesh: {expert: 2}}}"


@pytest.mark.parametrize(
    ("words", "platform", "told"),
    [
        ([], "tpu", "1 of 8 devices are used: mesh.fsdp=8 alone would use all"),
        (["mesh.fsdp=2", "mesh.tensor=2"], "tpu", "4 of 8 devices are used: mesh.fsdp=8 alone would use all"),
        (["mesh.fsdp=4", SPLIT], "tpu", "6 of 8 devices are used: mesh.fsdp=6 alone would use all"),
        (["mesh.fsdp=6", SPLIT], "tpu", ""),
        (["mesh.fsdp=4", "mesh.tensor=2"], "tpu", ""),
        ([], "cpu", ""),
    ],
)
def test_accelerators_with_nothing_to_do_are_told(words, platform, told):
    config = load(GrpoConfig, "train/grpo_paper", ["model=m", "data.files=[f]", "out=o", *words])
    assert idle(config, [SimpleNamespace(platform=platform)] * 8) == told
