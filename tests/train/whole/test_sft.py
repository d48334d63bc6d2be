"""SFT runs on a tiny model, the way back to files, and what a run says when it cannot go on."""

import numpy as np
import pytest

from noisyjax import models
from noisyjax.errors import UsageError
from noisyjax.instruct import SftExample
from noisyjax.train.export import export
from noisyjax.train.runs import train_sft
from noisyjax.train.sft import sft_groups
from noisyjax.train.watch.log import read_metrics


def test_groups_hold_every_target_once_with_equal_weight():
    """Two turns to learn: what stands between them is context, with weight 0."""
    ids = np.arange(10, 20, dtype=np.int32)
    target = np.array([0, 0, 1, 1, 0, 0, 1, 0, 0, 0], bool)
    other = SftExample(np.arange(3, dtype=np.int32), np.array([0, 1, 1], bool))
    group, second = sft_groups([SftExample(ids, target), other])
    assert list(group.prompt) == [10, 11]
    assert list(group.responses[0].ids) == list(range(12, 20))
    np.testing.assert_allclose(group.responses[0].weight, np.array([1, 1, 0, 0, 1, 0, 0, 0]) / 5)
    np.testing.assert_allclose(second.responses[0].weight, np.array([1, 1]) / 5)


def test_it_learns_and_comes_back_as_a_folder(sft, tmp_path):
    """The loss falls; the exported folder holds the trained weights and trains on from there."""
    config = sft(steps=8)
    done = train_sft(config)
    losses = [line["loss"] for line in read_metrics(config.out)]
    assert losses[-1] < losses[0] - 0.3
    lines = list(export(config.out, tmp_path / "exported"))
    assert "step 8" in lines[0]
    loaded = models.load(tmp_path / "exported", dtype="float32")
    for path, x in loaded.params.items():
        np.testing.assert_array_equal(np.asarray(x), np.asarray(done.tree.params[path]), err_msg=path)
    with pytest.raises(UsageError, match="holds checkpoints of steps 8, not step 3"):
        list(export(config.out, tmp_path / "again", step=3))
    with pytest.raises(UsageError, match="trained all weights and has no adapter"):
        list(export(config.out, tmp_path / "again", adapter=True))


@pytest.mark.parity
def test_the_folder_is_checked_in_transformers(sft, tmp_path):
    config = sft(steps=1)
    train_sft(config)
    said = list(export(config.out, tmp_path / "exported", check=True))
    assert "without a missing or unknown name" in said[-1]


def test_a_folder_of_something_else_is_refused(sft, tmp_path):
    config = sft("other")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match="is not empty and no training run"):
        train_sft(config)
    assert [p.name for p in (tmp_path / "other").iterdir()] == ["thesis.tex"]


def test_a_changed_config_does_not_go_on(sft):
    train_sft(sft(steps=1))
    with pytest.raises(UsageError, match=r"optimizer.learning_rate: was 0.003, now 0.1"):
        train_sft(sft(steps=2, optimizer={"learning_rate": 0.1}))


def test_the_data_may_end_before_the_steps(sft, capfd):
    """Twenty records that have a hint, one epoch, six at a time."""
    config = sft(steps=50, data={"epochs": 1})
    done = train_sft(config)
    assert done.step == 4
    assert "the data ended after step 4" in capfd.readouterr().err
