"""What an update of a model of four layers and width 256 needs, by the compiler's own account. Nothing is run."""

import functools

import jax
import jax.numpy as jnp
import pytest

from noisyjax.engine.mesh import open_layout
from noisyjax.models import ModelConfig, RopeConfig, param_specs, shardings
from noisyjax.models.sharding import TRAINING
from noisyjax.train.config import TrainMeshConfig
from noisyjax.train.step.config import OptimizerConfig, UpdateConfig
from noisyjax.train.step.optimizer import optimizer
from noisyjax.train.step.rows import Rows
from noisyjax.train.step.update import Updater

pytestmark = pytest.mark.slow

MIB = 2**20
VOCABULARY, SMALL = 151_936, 512


def loss(logprob_bp, entropy_bp, rows):
    return -(rows.weight_bp * (logprob_bp + 0.1 * entropy_bp)).sum(), {}


@functools.cache
def peak(vocabulary: int, tokens: int, remat: str, layers: int = 4, mesh: TrainMeshConfig | None = None) -> float:
    """MiB of a micro-batch of one row in which every token is a target: parameters, gradient and all else. On a mesh,
    those of one device."""
    cfg = ModelConfig(
        family="qwen3",
        vocab_size=vocabulary,
        d_model=256,
        n_layers=layers,
        n_heads=4,
        n_kv_heads=2,
        head_dim=64,
        d_ff=768,
        rope=RopeConfig(),
        norm_eps=1e-6,
        tie_embeddings=True,
        qk_norm=True,
    )
    layout = open_layout(mesh, cfg, TRAINING, sequence=mesh.sequence) if mesh else None
    updater = Updater(cfg, optimizer(OptimizerConfig(), 1), loss, UpdateConfig(remat=remat), layout=layout)
    where = shardings(cfg, layout.mesh, layout.rules) if layout else {}
    params = {
        path: jax.ShapeDtypeStruct(spec.shape, jnp.float32, sharding=where.get(path))
        for path, spec in param_specs(cfg).items()
    }
    ids = jax.ShapeDtypeStruct((1, tokens), jnp.int32)
    rows = Rows(*[ids] * 7, jax.ShapeDtypeStruct((1, tokens), jnp.float32))
    total = (params, jax.ShapeDtypeStruct((), jnp.float32))
    program = jax.jit(updater._add, donate_argnums=0).lower(total, params, {}, rows, None).compile()
    m = program.memory_analysis()
    needed = m.argument_size_in_bytes + m.output_size_in_bytes - m.alias_size_in_bytes + m.temp_size_in_bytes
    return needed / MIB


@pytest.mark.parametrize("remat", ["none", "full"])
def test_a_large_vocabulary_stays_under_three_gibibytes(remat):
    """The logits alone would be 4.6 GiB, and a plain head holds several arrays of that size."""
    assert peak(VOCABULARY, 8192, remat) < 3 * 1024


def test_twice_the_targets_cost_their_activations():
    cost = {n: peak(VOCABULARY, n, "full") - peak(SMALL, n, "full") for n in (8192, 16384)}
    assert cost[16384] <= 1.3 * cost[8192]
    assert peak(VOCABULARY, 16384, "full") < 1.4 * peak(VOCABULARY, 8192, "full")


def test_a_row_of_32768_goes_backward():
    """Linear in the row, and a tenth of what one layer's attention weights would be."""
    assert peak(SMALL, 32768, "full") < 2.2 * peak(SMALL, 16384, "full")
    assert peak(SMALL, 32768, "full") < 4 * 32768**2 * 4 / MIB / 10


def test_a_row_shared_out_between_layers():
    """What 16 layers keep of 8,192 tokens is 128 MiB; four devices that share the heads keep a quarter each."""
    whole, shared = (
        peak(SMALL, 8192, "full", 16, TrainMeshConfig(tensor=4, sequence=sequence)) for sequence in (False, True)
    )
    assert whole - shared > 0.9 * 96


def test_keeping_less_takes_less():
    assert peak(VOCABULARY, 8192, "full") < peak(VOCABULARY, 8192, "dots") < peak(VOCABULARY, 8192, "none")
