"""GRPO runs on a tiny model: what is written, that it learns, and that equal settings give equal trajectories."""

import numpy as np

from noisyjax.train.runs import train_grpo
from noisyjax.train.watch.log import read_metrics, read_samples


def params_of(done):
    return {path: np.asarray(x) for path, x in done.tree.params.items()}


def assert_same(a, b, tolerance):
    for path, x in a.items():
        np.testing.assert_allclose(b[path], x, atol=tolerance, rtol=0, err_msg=path)


def test_a_run_leaves_metrics_samples_and_a_checkpoint(grpo):
    config = grpo()
    done = train_grpo(config)
    lines = read_metrics(config.out)
    assert [line["step"] for line in lines] == [1, 2, 3]
    for name in ("loss", "reward/total", "update/grad_norm", "length/mean", "speed/rollout"):
        assert all(isinstance(line[name], float) for line in lines), name
    rows = read_samples(config.out)
    assert {row["step"] for row in rows} == {1}
    assert all(row["completion"] and row["spans"] for row in rows)
    assert done.step == 3
    assert done.skipped == 0


def test_three_steps_and_three_more_are_six(grpo):
    """Resumed against straight, bit for bit; the metrics stand once for each step."""
    straight = train_grpo(grpo("straight", steps=6))
    train_grpo(grpo("parts", steps=3))
    resumed = train_grpo(grpo("parts", steps=6))
    assert_same(params_of(straight), params_of(resumed), 0)
    a, b = (read_metrics(grpo(out).out) for out in ("straight", "parts"))
    assert [line["step"] for line in b] == [1, 2, 3, 4, 5, 6]
    timed = ("speed/", "seconds", "data/seen")
    for x, y in zip(a, b, strict=True):
        assert {k: v for k, v in x.items() if not k.startswith(timed)} == {
            k: v for k, v in y.items() if not k.startswith(timed)
        }
