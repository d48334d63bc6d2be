"""Settings that cannot matter: how rows are cut, packed, shared and ordered, what the sampler holds at a time, and over
how many devices it all is spread. Each gives the trajectory of the plain run, rounding apart.
"""

import dataclasses

import numpy as np
import pytest

from noisyjax.instruct import RecordStream
from noisyjax.train.runs import train_grpo
from noisyjax.train.watch.log import read_metrics, read_samples

KL = {"beta": 0.05, "aggregation": "token-mean", "entropy_coef": 0.01}
FIGURES = ("loss", "kl", "reward/total", "update/grad_norm", "mismatch/abs/max", "length/mean", "advantage/abs")


def settings(**changes):
    """Two steps with every term of the loss; a large rate, so that what differs does not stay small."""
    return {"steps": 2, "loss": KL, "optimizer": {"learning_rate": 1e-2}, "log": {"samples": 12}} | changes


def outcome(config):
    done = train_grpo(config)
    rows = read_samples(config.out)
    return {p: np.asarray(x) for p, x in done.tree.params.items()}, read_metrics(config.out), rows


@pytest.fixture(scope="module")
def plain(grpo_in, tmp_path_factory):
    return outcome(grpo_in(tmp_path_factory.mktemp("plain") / "run", **settings()))


def check(got, plain):
    texts = [{row["record"] + str(row["sample"]): row["completion"] for row in rows} for rows in (got[2], plain[2])]
    assert texts[0] == texts[1]
    for path, x in plain[0].items():
        np.testing.assert_allclose(got[0][path], x, atol=1e-5, rtol=0, err_msg=path)
    for a, b in zip(got[1], plain[1], strict=True):
        for name in FIGURES:
            assert a[name] == pytest.approx(b[name], abs=1e-4), name


def test_the_plain_run_moves(plain, folder):
    """What the others are compared with is no standstill: weights, KL and the loss change."""
    from noisyjax import models

    start = models.load(folder, dtype="float32").params
    assert min(np.abs(np.asarray(start[path]) - x).max() for path, x in plain[0].items()) > 5e-3
    assert plain[1][1]["kl"] > 1e-3
    assert plain[1][0]["kl"] == pytest.approx(0, abs=1e-9)
    assert plain[1][1]["mismatch/abs/max"] < 1e-4  # the sampler of step 2 has the weights that step 1 made


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"update": {"batch_tokens": 512}},
        {"update": {"pack": False, "row_tokens": 448}},
        {"update": {"share": False}},
        {"update": {"remat": "full"}},
        {"rollout": {"slots": 3, "chunk": 5}},
        {"rollout": {"min_prefix": 4}},
    ],
    ids=["micro-batches", "unpacked", "unshared", "remat", "slots and chunk", "common prefixes"],
)
def test_one_device(change, plain, grpo):
    check(outcome(grpo(**settings(**change))), plain)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh",
    [{"fsdp": 8}, {"fsdp": 4, "tensor": 2}, {"data": 2, "tensor": 4, "sequence": True}],
    ids=["8x1", "4x2", "2x4 sequence"],
)
def test_more_devices(mesh, plain, grpo):
    check(outcome(grpo(**settings(mesh=mesh))), plain)


def test_the_order_of_the_prompts(plain, grpo, monkeypatch):
    """The same records in a step, handed over from behind."""
    take = RecordStream.take

    def reverse(self, n):
        batch = take(self, n)
        return dataclasses.replace(batch, items=batch.items[::-1])

    monkeypatch.setattr(RecordStream, "take", reverse)
    check(outcome(grpo(**settings())), plain)
