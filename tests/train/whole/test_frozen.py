"""Learning rate 0: the sampler and the trainer hold the same weights, so they must think the same of every token."""

import numpy as np
import pytest

from noisyjax.train.runs import train_grpo
from noisyjax.train.watch.log import read_metrics


@pytest.fixture(scope="module")
def sharp(save_model, tmp_path_factory):
    """A model with opinions: where all tokens are alike, hardly anything can be wrong."""
    return save_model(tmp_path_factory.mktemp("sharp") / "model", stddev=0.4)


@pytest.fixture
def frozen(grpo, sharp):
    def make(temperature=1.0, **changes):
        rollout = {"temperature": temperature, "max_tokens": 40}
        still = {"steps": 20, "optimizer": {"learning_rate": 0.0}, "loss": {"correction": "token"}}
        return grpo(model=sharp, rollout=rollout, **still, **changes)

    return make


def gaps(config):
    """Largest |log ratio| of sampler and trainer by step, and the weights' largest change."""
    train_grpo(config)
    lines = read_metrics(config.out)
    assert [line["step"] for line in lines] == list(range(1, 21))
    assert all(line["ratio/mean"] == 1 and line["correction/over_cap"] == 0 for line in lines)
    return np.array([line["mismatch/abs/max"] for line in lines])


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_two_agree_in_float32(frozen, temperature):
    gap = gaps(frozen(temperature))
    print(f"\nT={temperature}: max |log ratio| {gap.max():.3g}")
    assert 0 < gap.max() < 1e-3
    assert gap[10:].max() < 4 * gap[:10].max()  # and it does not grow


@pytest.mark.slow
def test_the_two_agree_in_bfloat16(frozen):
    """Each rounds its own products: a bound, not a match."""
    gap = gaps(frozen(update={"dtype": "bfloat16"}))
    print(f"\nbfloat16: max |log ratio| {gap.max():.3g}, median over steps {np.median(gap):.3g}")
    assert 1e-3 < gap.max() < 0.5
    assert gap[10:].max() < 4 * gap[:10].max()
