"""The router's auxiliary loss in an update: of the whole batch, however it is cut, and only where it is asked for.

With plain gradient descent at rate 1 a parameter's change is its gradient.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from noisyjax.errors import UsageError
from noisyjax.models import MoeConfig, init_params, moe
from noisyjax.models.decoder import Decoder
from noisyjax.train import GrpoConfig, SftConfig
from noisyjax.train.learner import _router_aux
from noisyjax.train.objective.metrics import Total, reduce
from noisyjax.train.step.config import UpdateConfig
from noisyjax.train.step.logprobs import appearances
from noisyjax.train.step.update import Updater

MOE = MoeConfig(n_experts=4, top_k=2, d_ff=16, norm_topk=True)
WEIGHT = 0.3


def nothing(logprob_bp, entropy_bp, rows):
    return 0.0 * logprob_bp.sum(), {"loss": Total.of(0.0 * logprob_bp)}


@pytest.fixture(scope="module")
def setting(tiny_config, make_groups):
    cfg = tiny_config(family="qwen3_moe", moe=MOE)
    return cfg, init_params(cfg, 3, stddev=0.3, norm_stddev=0.2), make_groups()


@pytest.fixture(scope="module")
def expected(setting):
    """Value and gradient of the balance of every prompt and response as a row of its own, written out anew."""
    cfg, params, groups = setting
    rows = [[*group.prompt, *response.ids] for group in groups for response in group.responses]
    ids = np.zeros((len(rows), max(map(len, rows))), np.int32)
    real = np.zeros(ids.shape, np.int32)
    for i, row in enumerate(rows):
        ids[i, : len(row)], real[i, : len(row)] = row, 1
    pos = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)

    def balance(params):
        inputs = map(jnp.asarray, (ids, pos, real, real, real.astype(np.float32)))
        _, load = Decoder(cfg, params).hidden_and_load(*inputs)
        share_e = jax.lax.stop_gradient(load.choice_e / load.rows)
        return len(share_e) * jnp.sum(share_e * load.prob_e / load.rows), load.rows

    (value, count), gradient = jax.jit(jax.value_and_grad(balance, has_aux=True))(params)
    assert int(count) == cfg.n_layers * real.sum()
    return float(value), gradient


@pytest.mark.parametrize(
    "cut",
    [{"row_tokens": 32, "batch_tokens": 32}, {"share": False, "pack": False, "row_tokens": 16, "batch_tokens": 64}],
    ids=["shared", "unshared"],
)
def test_it_is_that_of_the_sequences_one_by_one_however_they_are_cut(setting, expected, cut):
    cfg, params, groups = setting
    updater = Updater(cfg, optax.sgd(1.0), nothing, UpdateConfig(remat="none", **cut), router_aux=WEIGHT)
    batches = [batch.rows for batch in updater.batches(groups)]
    assert len(batches) > 1
    done = updater.update(updater.start(params), batches)
    value, gradient = expected
    assert 2 < value < 4  # 2 is perfect, and one expert for all would be 4
    assert reduce(done.metrics)["router/balance"] == pytest.approx(value, rel=1e-5)
    for path, x in gradient.items():
        change = np.asarray(params[path]) - np.asarray(done.state.params[path])
        np.testing.assert_allclose(change, WEIGHT * np.asarray(x), atol=1e-6, err_msg=path)
    assert np.abs(gradient["layers.moe.router_ed"]).max() > 1e-2


def test_a_prompt_counts_once_for_every_response():
    segment = np.asarray([[1, 1, 2, 3, 3, 4, 5, 0], [1, 2, 2, 0, 0, 0, 0, 0]])
    parent = np.asarray([[1, 1, 1, 1, 1, 4, 4, 0], [1, 1, 1, 0, 0, 0, 0, 0]])
    times = appearances(jnp.asarray(segment), jnp.asarray(parent))
    np.testing.assert_array_equal(times, [[2, 2, 1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0, 0, 0]])


def test_pull_is_of_the_whole_batch():
    """Half of the tokens here, half there: neither half's own balance would do."""
    halves = [moe.Load(jnp.asarray([4.0, 0.0]), jnp.asarray([3.0, 1.0]), jnp.asarray(4.0))]
    halves.append(moe.Load(jnp.asarray([0.0, 4.0]), jnp.asarray([1.0, 3.0]), jnp.asarray(4.0)))
    pull_e = moe.pull(jax.tree.map(jnp.add, *halves))
    assert float(sum(pull_e @ half.prob_e for half in halves)) == pytest.approx(1.0)
    assert [float(moe.pull(half) @ half.prob_e) for half in halves] == [1.5, 1.5]


def configs(tmp_path, **update):
    data = {"files": [str(tmp_path / "x.jsonl")]}
    both = {
        "model": tmp_path,
        "data": data,
        "steps": 1,
        "update": {"row_tokens": 16384, **update},
        "out": str(tmp_path / "run"),
    }
    return SftConfig.model_validate(both), GrpoConfig.model_validate(both)


def test_where_its_weight_comes_from(tmp_path, tiny_config):
    asks = tiny_config(family="qwen3_moe", moe=MoeConfig(4, 2, 16, True, aux_coefficient=0.001))
    sft, grpo = configs(tmp_path)
    assert (_router_aux(sft, asks), _router_aux(grpo, asks)) == (0.001, 0.0)
    assert _router_aux(sft, tiny_config(family="qwen3_moe", moe=MOE)) == 0.0
    assert _router_aux(sft, tiny_config()) == 0.0
    sft, grpo = configs(tmp_path, router_aux_coefficient=0.02)
    assert (_router_aux(sft, asks), _router_aux(grpo, asks)) == (0.02, 0.02)
    with pytest.raises(UsageError, match="has no experts"):
        _router_aux(sft, tiny_config())
    sft, _ = configs(tmp_path, router_aux_coefficient=0)
    assert _router_aux(sft, asks) == 0.0
    assert _router_aux(sft, tiny_config()) == 0.0
