"""A run that goes on over other devices than it began on, and meshes that do not suit the model."""

from pathlib import Path

import jax
import numpy as np
import pytest

from noisyjax.errors import UsageError
from noisyjax.models import ModelError, MoeConfig
from noisyjax.train.runs import train_grpo, train_sft
from noisyjax.train.watch.log import read_metrics

VARIED = {"reward_fn": "toy_rewards:varied"}
EIGHT = {"data": 2, "fsdp": 2, "tensor": 2}


@pytest.fixture(scope="module")
def experts(save_model, tmp_path_factory):
    moe = MoeConfig(n_experts=4, top_k=2, d_ff=16, norm_topk=True)
    return save_model(tmp_path_factory.mktemp("experts") / "model", family="qwen3_moe", moe=moe)


def close(a, b):
    for path, x in a.tree.params.items():
        np.testing.assert_allclose(np.asarray(b.tree.params[path]), np.asarray(x), atol=1e-5, rtol=0, err_msg=path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "first", "then"),
    [
        ("dense", {}, EIGHT),
        ("dense", {"fsdp": 2, "tensor": 4, "sequence": True}, {"data": 8}),
        ("experts", {"fsdp": 4, "tensor": 2}, {"fsdp": 2, "expert": 2, "tensor": 2}),
    ],
)
def test_it_goes_on_elsewhere(grpo, folder, experts, kind, first, then):
    settings = {"model": str(folder if kind == "dense" else experts), "reward": VARIED}
    straight = train_grpo(grpo("straight", steps=3, **settings))
    train_grpo(grpo("moved", steps=2, mesh=first, **settings))
    moved = train_grpo(grpo("moved", steps=3, mesh=then, **settings))
    close(straight, moved)
    devices = int(np.prod(list(then.values()) or [1]))
    assert {len(x.sharding.device_set) for x in jax.tree.leaves(moved.tree.opt_state)} == {devices}
    assert [line["step"] for line in read_metrics(grpo("moved").out)] == [1, 2, 3]


@pytest.mark.slow
def test_sft_goes_on_elsewhere(sft):
    straight = train_sft(sft("straight", steps=3))
    train_sft(sft("moved", steps=2, mesh={"fsdp": 4}))
    close(straight, train_sft(sft("moved", steps=3)))


@pytest.mark.parametrize(
    ("mesh", "words"),
    [
        ({"data": 4, "fsdp": 4}, "mesh data=4 x fsdp=4 needs 16 devices; here are 8"),
        ({"expert": 2}, "mesh.expert=2: this qwen3 model has no experts; use data or fsdp"),
        ({"tensor": 8}, "heads of size 4 cannot be cut into 8 along mesh axis 'tensor'"),
        ({"fsdp": 3}, "embed of size 32 cannot be cut into 3 along mesh axis 'fsdp'"),
    ],
)
def test_a_mesh_that_does_not_suit(grpo, mesh, words):
    """The model has 4 heads and 32 columns. Nothing is written for such a request."""
    config = grpo(mesh=mesh)
    with pytest.raises((UsageError, ModelError), match=words):
        train_grpo(config)
    assert not Path(config.out).exists()
