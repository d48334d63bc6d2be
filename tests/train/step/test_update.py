"""One update: the same from any cut of the batch, on one device or eight, and none at all from numbers that are none.

With plain gradient descent at rate 1 a parameter's change is its gradient.
"""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from noisyjax.engine.config import MeshConfig
from noisyjax.engine.mesh import open_layout
from noisyjax.models import init_params, lora, param_specs, shardings
from noisyjax.models.sharding import TRAINING
from noisyjax.train.config import TrainMeshConfig
from noisyjax.train.objective.metrics import Mean, Total, reduce
from noisyjax.train.step.config import LoraConfig, OptimizerConfig, UpdateConfig
from noisyjax.train.step.optimizer import optimizer
from noisyjax.train.step.rows import Group, Response, Rows
from noisyjax.train.step.update import Updater

DESCENT = optax.sgd(1.0)
ONE_BATCH = {"row_tokens": 32, "batch_tokens": 128}


def loss(logprob_bp, entropy_bp, rows):
    """Reads all that a loss may read."""
    terms = rows.advantage_bp * jnp.exp(logprob_bp - rows.old_bp / 10) + 0.1 * entropy_bp
    value = (rows.weight_bp * terms).sum()
    return value, {"loss": Total.of(rows.weight_bp * terms), "entropy": Mean.of(entropy_bp, rows.weight_bp != 0)}


@pytest.fixture(scope="module")
def setting(tiny_config, make_groups):
    cfg = tiny_config()
    return cfg, init_params(cfg, 3, stddev=0.3, norm_stddev=0.2), make_groups()


def one_update(setting, *, layout=None, batches=None, change=None, **config):
    """(gradient by path, figures) of one update."""
    cfg, params, groups = setting
    before = {path: np.asarray(x) for path, x in params.items()}
    if layout is not None:
        params = jax.device_put(params, shardings(cfg, layout.mesh, layout.rules))
    updater = Updater(cfg, DESCENT, loss, UpdateConfig(**{**ONE_BATCH, **config}), temperature=0.7, layout=layout)
    rows = [batch.rows for batch in updater.batches(groups)]
    if batches is not None:
        assert len(rows) == batches
    done = updater.update(updater.start(params), rows if change is None else change(rows))
    assert bool(done.ok)
    assert int(done.state.updates) == 1
    for path, x in done.state.params.items():
        assert x.dtype == jnp.float32
        assert x.sharding.is_equivalent_to(params[path].sharding, x.ndim)
        np.testing.assert_array_equal(params[path], before[path])  # what was handed in is still there
    return {path: before[path] - np.asarray(x) for path, x in done.state.params.items()}, reduce(done.metrics)


@pytest.fixture(scope="module")
def reference(setting):
    return one_update(setting)


def check(got, reference, atol=1e-5):
    for path, gradient in reference[0].items():
        assert np.abs(gradient).max() > 1e-3, path
        np.testing.assert_allclose(got[0][path], gradient, atol=atol, err_msg=path)
    for name, value in reference[1].items():
        assert got[1][name] == pytest.approx(value, abs=max(atol, 1e-4)), name


def reverse(rows):
    """Rows and micro-batches in the opposite order."""
    return [jax.tree.map(lambda x: x[::-1].copy(), batch) for batch in reversed(rows)]


@pytest.mark.parametrize(
    "case",
    [
        {"batch_tokens": 32, "batches": 3},
        {"batch_tokens": 64, "batches": 2, "change": reverse},
        {"share": False, "pack": False, "row_tokens": 16, "batch_tokens": 64},
        {"remat": "full"},
    ],
    ids=["split in three", "split in two, reversed", "unshared", "remat"],
)
def test_the_update_does_not_depend_on_the_cut(setting, reference, case):
    check(one_update(setting, **case), reference)


@pytest.mark.parametrize(
    "mesh",
    [
        TrainMeshConfig(fsdp=8),
        TrainMeshConfig(replicas=2, fsdp=2, tensor=2),
        TrainMeshConfig(fsdp=2, tensor=4, sequence=True),
    ],
    ids=["8x1", "4x2, two replicas", "2x4, sequence"],
)
def test_eight_devices_give_the_update_of_one(setting, reference, mesh):
    layout = open_layout(mesh, setting[0], TRAINING, sequence=mesh.sequence)
    assert layout.mesh.size == 8
    check(one_update(setting, layout=layout), reference)


def test_the_kernel_gives_the_update_of_plain_attention(tiny_config, setting):
    """Interpreted, with heads cut, in a scan over a layer with a window and one without."""
    given = (tiny_config(windows=(5, None)), *setting[1:])
    layout = open_layout(TrainMeshConfig(tensor=2, sequence=True), given[0], TRAINING, sequence=True)
    slotted = {"attention": "splash", "row_tokens": 384, "batch_tokens": 6 * 384}
    check(one_update(given, layout=layout, batches=1, **slotted), one_update(given))


def test_a_vocabulary_cut_over_devices_is_not_gathered(tiny_config):
    """Its slices are, over fsdp, 512 columns at a time; never the table."""
    cfg = tiny_config(vocab_size=40_960, d_model=64, tie_embeddings=False)
    layout = open_layout(MeshConfig(data=2, fsdp=2, tensor=2), cfg, TRAINING)
    updater = Updater(cfg, DESCENT, loss, UpdateConfig(), layout=layout)
    where = shardings(cfg, layout.mesh, layout.rules)
    params = {
        path: jax.ShapeDtypeStruct(spec.shape, jnp.float32, sharding=where[path])
        for path, spec in param_specs(cfg).items()
    }
    by_row = layout.sharding(layout.batch_axes(8))
    ids, numbers = (jax.ShapeDtypeStruct((8, 2048), t, sharding=by_row) for t in (jnp.int32, jnp.float32))
    rows = Rows(*[ids] * 7, *[numbers] * 3)
    total = (params, jax.ShapeDtypeStruct((), jnp.float32))
    text = jax.jit(updater._add).lower(total, params, {}, rows, None).compile().as_text()
    gathered = {int(n) for dims in re.findall(r"= f32\[([\d,]+)\]\S* all-gather\(", text) for n in dims.split(",")}
    assert 512 in gathered
    assert max(gathered) < 40_960 / 2


def test_bfloat16_compute_keeps_float32_masters(setting, reference):
    gradient, _ = one_update(setting, dtype="bfloat16")
    for path, exact in reference[0].items():
        off = np.abs(gradient[path] - exact).max() / np.abs(exact).max()
        assert 0 < off < 0.1, path


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_number_changes_nothing_and_the_next_step_does(setting, bad):
    cfg, params, groups = setting
    updater = Updater(cfg, optimizer(OptimizerConfig(learning_rate=1e-2), 10), loss, UpdateConfig(**ONE_BATCH))
    rows = [batch.rows for batch in updater.batches(groups)]
    spoilt = [dataclasses.replace(r, advantage_bp=np.where(r.weight_bp != 0, bad, 0).astype(np.float32)) for r in rows]
    state = updater.start(params)
    before = jax.device_get(state)
    skipped = updater.update(state, spoilt)
    assert not bool(skipped.ok)
    assert reduce(skipped.metrics)["update/ok"] == 0
    assert reduce(skipped.metrics)["update/grad_norm"] is None
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(skipped.state), before)
    good = updater.update(skipped.state, rows)
    assert bool(good.ok)
    assert all(np.abs(np.asarray(x) - before.params[p]).max() > 1e-3 for p, x in good.state.params.items())


def test_nothing_to_learn_from(setting):
    cfg, params, _ = setting
    updater = Updater(cfg, DESCENT, loss, UpdateConfig(**ONE_BATCH))
    state = updater.start(params)
    done = updater.update(state, [b.rows for b in updater.batches([Group("g", [1], (Response([], 1.0, 0.0),))])])
    assert done.state is state
    assert not bool(done.ok)
    assert reduce(done.metrics) == {"update/ok": 0.0}


@pytest.mark.parametrize("adapter", [False, True], ids=["all parameters", "adapter"])
def test_supervised_rows_are_learned(setting, adapter):
    """Forty updates on three answers: their mean loss falls to a tenth."""
    cfg, base, groups = setting

    def negative(logprob_bp, entropy_bp, rows):
        value = -(rows.weight_bp * logprob_bp)
        return value.sum(), {"loss": Total.of(value)}

    examples = [
        Group(g.id, g.prompt, (Response(g.responses[0].ids, 1 / (3 * len(g.responses[0].ids))),)) for g in groups
    ]
    adam = optimizer(OptimizerConfig(learning_rate=2e-2), 40)
    config = UpdateConfig(row_tokens=48, batch_tokens=48)
    chosen = LoraConfig(rank=4, alpha=8)
    frozen = {"frozen": base, "scale": chosen.scale} if adapter else {}
    updater = Updater(cfg, adam, negative, config, **frozen)
    (rows,) = [batch.rows for batch in updater.batches(examples)]
    state = updater.start(lora.init_adapters(cfg, chosen.rank, chosen.targets) if adapter else base)
    at_first = mean_loss(updater, state.params, rows)
    for _ in range(40):
        state = updater.update(state, [rows]).state
    learned = mean_loss(updater, state.params, rows)
    assert at_first > 3
    assert learned < at_first / 10
    whole = Updater(cfg, adam, negative, config)
    weights = updater.weights(state)
    assert weights.keys() == base.keys()
    assert mean_loss(whole, weights, rows) == pytest.approx(learned, abs=1e-3)
    if adapter:
        assert mean_loss(updater, {}, rows) == pytest.approx(at_first, abs=1e-6)  # the base is what it was


def mean_loss(updater, params, rows) -> float:
    return float(-(np.asarray(updater.logprobs(params, rows)[0]) * rows.weight_bp).sum())
