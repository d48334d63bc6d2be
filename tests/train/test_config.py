"""Training configs: the packaged ones load with the figures they claim; what cannot work is refused by name."""

import subprocess
import sys
from typing import get_args

import pytest

from noisyjax.config import load, packaged_configs
from noisyjax.errors import UsageError
from noisyjax.train.config import GrpoConfig, SftConfig
from noisyjax.train.step.config import Remat, Target

NEEDED = ["model=start", "data.files=[x.jsonl]", "out=run"]


def of_kind(kind: str) -> list[str]:
    return sorted(name for name in packaged_configs() if name.startswith(f"train/{kind}_"))


@pytest.mark.parametrize("name", of_kind("grpo"))
def test_grpo_configs_load(name):
    config = load(GrpoConfig, name, NEEDED)
    assert config.update.row_tokens >= config.data.prompt.max_prompt_tokens + config.rollout.max_tokens


@pytest.mark.parametrize("name", of_kind("sft"))
def test_sft_configs_load(name):
    load(SftConfig, name, NEEDED)


def test_the_paper_preset():
    """Section 5 and its appendix, as far as they say; beta and the estimator are assumptions."""
    config = load(GrpoConfig, "train/grpo_paper", NEEDED)
    assert (config.prompts, config.rollout.samples) == (32, 3)
    assert (config.data.prompt.max_prompt_tokens, config.rollout.max_tokens) == (4096, 8192)
    assert config.loss.aggregation == "seq-mean-token-mean"
    assert config.optimizer.learning_rate == 1e-6
    assert config.reward.combination == "additive"


def test_what_sets_the_others_apart():
    dapo, dr, gspo = (load(GrpoConfig, f"train/grpo_{name}", NEEDED) for name in ("dapo", "dr", "gspo"))
    assert (dapo.loss.aggregation, dapo.loss.clip_high, dapo.generation_batches > 1) == ("token-mean", 0.28, True)
    assert (dr.advantage.scale, dr.loss.aggregation) == ("none", "seq-mean-token-sum-norm")
    assert (gspo.loss.ratio, gspo.minibatches > 1) == ("sequence", True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["minibatches=5"], r"minibatches: 5 does not divide prompts: 32"),
        (["rollout.samples=1"], r"rollout.samples: 1 leaves nothing to compare with"),
        (["reference=other"], r"loss.beta is 0"),
        (["rollout.max_tokens=9000"], r"update.row_tokens: 8192 is too short .* 13096 would do"),
        (["loss.betta=0.1"], r"loss.betta .*unknown key; did you mean 'beta'"),
        (["judge.kind=engine"], r"judge.engine: required, but missing"),
        (
            ["advantage.per_component=true", "reward.guards.identical={limit: 0.5, penalty: 0.5}"],
            r"size of a penalty \(identical\)",
        ),
        (["reward.distraction.judged=true"], r"needs a model to ask: judge.kind: engine"),
        (["reward.combination=aditive"], r"did you mean 'additive'"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(words, said):
    base = [*NEEDED, "steps=3", "update.row_tokens=8192", "rollout.max_tokens=512"]
    with pytest.raises(UsageError, match=said):
        load(GrpoConfig, None, [*base, *words])


@pytest.mark.parametrize("kind", ["sft", "grpo"])
def test_a_mistake_is_told_before_anything_heavy_is_imported(kind):
    """The command line to its end, in a process of its own; what it imported is printed last."""
    words = ["train", kind, f"train/{kind}_paper", "optimizer.learning_rat=1"]
    code = f"""
import sys
from noisyjax.cli import main
try:
    main({words!r})
except SystemExit as end:
    print(end.code, *sorted(sys.modules.keys() & {{'jax', 'optax', 'flax', 'orbax', 'transformers', 'torch'}}))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "2\n", ran.stdout + ran.stderr
    assert "did you mean 'learning_rate'" in ran.stderr


def test_names_that_are_spelled_out_for_configs_are_those_of_the_models():
    from noisyjax.models.decoder import Remat as TheirRemat
    from noisyjax.models.lora import TARGETS

    assert get_args(Remat) == get_args(TheirRemat)
    assert set(get_args(Target)) == set(TARGETS)
