"""Logits against those that transformers computed for the same seeds (see tests/golden/make.py); no torch needed."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from noisyjax.models import config_from_hf, init_params
from noisyjax.models.decoder import Decoder

GOLDEN = Path(__file__).resolve().parent.parent / "golden"


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.npz")))
def test_logits(name, stacked):
    golden = np.load(GOLDEN / f"{name}.npz")
    cfg = config_from_hf(json.loads(str(golden["config"])))
    spreads = {key: float(golden[key]) for key in ("stddev", "norm_stddev")}
    model = Decoder(cfg, init_params(cfg, int(golden["seed"]), **spreads), stacked=stacked)
    expected = golden["logits"]
    assert np.abs(expected).max() > 1
    hidden = model.hidden(jnp.asarray(golden["ids"]))[:, -expected.shape[1] :]
    np.testing.assert_allclose(np.asarray(model.logits(hidden)), expected, atol=1e-4, rtol=0)


def test_every_family_has_golden_logits():
    from noisyjax.models import FAMILIES

    configs = [json.loads(str(np.load(path)["config"])) for path in GOLDEN.glob("*.npz")]
    assert {config["model_type"] for config in configs} == set(FAMILIES)
