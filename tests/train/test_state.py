"""Checkpoints: what comes back, what is kept, and what a broken or foreign one says."""

import shutil
from pathlib import Path
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from noisyjax.errors import RunError, UsageError
from noisyjax.train.config import StateConfig
from noisyjax.train.state import Checkpoints, read_about, read_tree

IDENTITY = {"model": "m", "loss": {"beta": 0.0}}


def tree(step: int) -> dict:
    return {"params": {"w_vd": jnp.arange(6.0).reshape(2, 3) + step}, "opt": [jnp.int32(step), jnp.ones(3) * step]}


def written(folder: Path, steps=(1, 2, 3), identity=IDENTITY, **config) -> Checkpoints:
    checkpoints = Checkpoints(folder, StateConfig(**config), identity)
    for step in steps:
        checkpoints.save(step, tree(step), {"cursor": {"at": 10 * step}}, {"reward": float(-abs(step - 2))})
    checkpoints.wait()
    return checkpoints


def test_what_was_saved_comes_back_bit_for_bit(tmp_path):
    written(tmp_path).close()
    again = Checkpoints(tmp_path, StateConfig(), IDENTITY)
    got = again.restore(tree(0))
    assert (got.step, got.about["cursor"]) == (3, {"at": 30})
    jax.tree.map(np.testing.assert_array_equal, got.tree, tree(3))


def test_nothing_there_is_no_checkpoint(tmp_path):
    assert Checkpoints(tmp_path, StateConfig(), IDENTITY).restore(tree(0)) is None


def test_an_earlier_step_gives_up_the_later_ones(tmp_path):
    written(tmp_path, keep=3).close()
    back = Checkpoints(tmp_path, StateConfig(restore=1, keep=3), IDENTITY)
    assert back.restore(tree(0)).step == 1
    assert back.steps == [1]
    back.save(2, tree(7), {}, None)
    back.wait()
    jax.tree.map(np.testing.assert_array_equal, read_tree(tmp_path, 2, tree(0)), tree(7))


def test_a_step_that_is_not_there_lists_those_that_are(tmp_path):
    written(tmp_path).close()
    with pytest.raises(UsageError, match=r"restore=7: .* holds checkpoints of steps 2, 3"):
        Checkpoints(tmp_path, StateConfig(restore=7), IDENTITY).restore(tree(0))


@pytest.mark.parametrize("better", ["higher", "lower"])
def test_retention(tmp_path, better):
    steps = range(1, 9)
    kept = written(tmp_path, steps, keep=2, keep_every=5, keep_best=1, better=better).steps
    assert kept == ([2, 5, 7, 8] if better == "higher" else [5, 7, 8])


def test_due_by_steps_and_by_time(tmp_path):
    now = [0.0]
    checkpoints = Checkpoints(tmp_path, StateConfig(every_steps=10, every_minutes=1.0), IDENTITY, lambda: now[0])
    assert [checkpoints.due(s) for s in (1, 10)] == [False, True]
    now[0] = 61.0
    assert checkpoints.due(3)
    checkpoints.save(3, tree(3), {})
    assert not checkpoints.due(4)


def test_a_checkpoint_cut_short_is_named_and_the_one_before_offered(tmp_path):
    written(tmp_path).close()
    for path in (tmp_path / "checkpoints" / "3" / "tree").rglob("*"):
        if path.is_file() and path.parent.name == "d":
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(RunError, match=r"step 3 in .* cannot be read .*state.restore=2 goes on"):
        Checkpoints(tmp_path, StateConfig(), IDENTITY).restore(tree(0))
    assert Checkpoints(tmp_path, StateConfig(restore=2), IDENTITY).restore(tree(0)).step == 2


def test_a_half_written_one_is_no_checkpoint(tmp_path):
    """What a kill leaves: the temporary name under which orbax writes."""
    written(tmp_path).close()
    shutil.copytree(tmp_path / "checkpoints" / "3", tmp_path / "checkpoints" / "4.orbax-checkpoint-tmp-1")
    again = Checkpoints(tmp_path, StateConfig(), IDENTITY)
    assert again.restore(tree(0)).step == 3
    assert again.steps == [2, 3]


def test_another_config_is_refused_with_what_differs(tmp_path):
    written(tmp_path).close()
    with pytest.raises(UsageError, match=r"loss.beta: was 0.0, now 0.1"):
        Checkpoints(tmp_path, StateConfig(), {"model": "m", "loss": {"beta": 0.1}}).restore(tree(0))


def test_reading_a_part_without_the_optimizer(tmp_path):
    written(tmp_path).close()
    step, about = read_about(tmp_path)
    assert (step, about["cursor"]["at"]) == (3, 30)
    got = read_tree(tmp_path, step, {"params": tree(0)["params"]})
    np.testing.assert_array_equal(got["params"]["w_vd"], tree(3)["params"]["w_vd"])
    with pytest.raises(UsageError, match="steps 2, 3, not step 9"):
        read_about(tmp_path, 9)
    with pytest.raises(UsageError, match="holds no checkpoints"):
        read_about(tmp_path / "nowhere")


def test_a_broken_checkpoint_is_told_with_the_others(tmp_path):
    """What is exported; a run that goes on is told of `state.restore`."""
    written(tmp_path).close()
    step = tmp_path / "checkpoints" / "3"
    shutil.rmtree(step / "tree" / "d")
    said = r"the checkpoint of step 3 in .* cannot be read \(.*\); there are checkpoints of steps 2 too \(--step\)"
    with pytest.raises(RunError, match=said):
        read_tree(tmp_path, 3, {"params": tree(0)["params"]})
    shutil.rmtree(step / "about")
    with pytest.raises(RunError, match=said):
        read_about(f"file://{tmp_path}")
    assert read_about(f"file://{tmp_path}", 2)[0] == 2


def test_what_lies_in_a_bucket_is_found(tmp_path, monkeypatch):
    """Its steps and what they say come by fsspec; the arrays would come by tensorstore, from Google itself."""

    class Bucket(MemoryFileSystem):
        protocol = ("gs", "gcs")
        store: ClassVar = {}
        pseudo_dirs: ClassVar = [""]

    bucket = Bucket()
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda url: (bucket, url))
    # By these orbax gets at a bucket, and asks Google's own client what kind it is.
    monkeypatch.setattr("etils.epath.backend._FileSystemSpecBackend.fs", lambda *_: bucket)
    monkeypatch.setattr("orbax.checkpoint._src.path.gcs_utils.is_hierarchical_namespace_enabled", lambda _: False)
    with pytest.raises(UsageError, match="gs://acme-runs/rare holds no checkpoints"):
        read_about("gs://acme-runs/rare")
    written(tmp_path).close()
    bucket.put(str(tmp_path / "checkpoints"), "gs://acme-runs/rare/checkpoints", recursive=True)
    step, about = read_about("gs://acme-runs/rare")
    assert (step, about["cursor"]["at"]) == (3, 30)
