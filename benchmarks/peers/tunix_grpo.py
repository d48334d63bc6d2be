"""GRPO steps of google-tunix with its own sampler. Needs an environment of its own: google-tunix, optax, flax."""

import itertools
import logging
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parent))

import jax
import numpy as np
import optax
import toy
from flax import nnx
from jax.sharding import Mesh
from tunix.models.qwen3 import model as qwen3
from tunix.rl import rl_cluster
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.rollout import base_rollout

logging.getLogger().setLevel(logging.WARNING)

MICRO = toy.PROMPTS if toy.PROMPT_TOKENS <= 256 else 1
"""Prompts at a time in the update: all of a long step's at once take more than 22 GiB."""


class Letters:
    """One character, one token."""

    def encode(self, text: str, **more: object) -> list[int]:
        return [min(ord(c), toy.VOCABULARY - 1) for c in text]

    def decode(self, ids: list[int], **more: object) -> str:
        return "".join(chr(int(i)) for i in ids)

    def bos_id(self) -> int:
        return toy.BOS

    def eos_id(self) -> int:
        return toy.EOS

    def pad_id(self) -> int:
        return toy.PAD


def model() -> qwen3.Qwen3:
    config = qwen3.ModelConfig(
        num_layers=toy.LAYERS,
        vocab_size=toy.VOCABULARY,
        embed_dim=toy.WIDTH,
        hidden_dim=toy.FFN,
        num_heads=toy.HEADS,
        head_dim=toy.HEAD_DIM,
        num_kv_heads=toy.KV_HEADS,
        rope_theta=1_000_000,
        norm_eps=1e-6,
        use_tied_embedding=True,
    )
    return qwen3.Qwen3(config, rngs=nnx.Rngs(0))


times: list[float] = []


def reward(prompts: list[str], completions: list[str], **more: object) -> list[float]:
    times.append(time.perf_counter())
    return [toy.reward(c) for c in completions]


mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
roles = rl_cluster.Role.ACTOR, rl_cluster.Role.REFERENCE, rl_cluster.Role.ROLLOUT
cluster = rl_cluster.RLCluster(
    actor=model(),
    reference=model(),
    tokenizer=Letters(),
    cluster_config=rl_cluster.ClusterConfig(
        role_to_mesh=dict.fromkeys(roles, mesh),
        rollout_engine="vanilla",
        offload_to_cpu=False,
        training_config=rl_cluster.RLTrainingConfig(
            actor_optimizer=optax.adamw(toy.LEARNING_RATE),
            eval_every_n_steps=10**6,
            max_steps=toy.STEPS,
            mini_batch_size=toy.PROMPTS,
            train_micro_batch_size=MICRO,
            rollout_micro_batch_size=toy.PROMPTS,
            compute_logps_micro_batch_size=MICRO,
        ),
        rollout_config=base_rollout.RolloutConfig(
            max_tokens_to_generate=toy.NEW_TOKENS,
            max_prompt_length=toy.PROMPT_TOKENS,
            kv_cache_size=toy.PROMPT_TOKENS + toy.NEW_TOKENS + 64,
            temperature=1.0,
            top_p=1.0,
            top_k=None,
            eos_tokens=[toy.VOCABULARY + 7],  # never drawn: every completion has its full length
        ),
    ),
)
learner = GRPOLearner(
    rl_cluster=cluster,
    algo_config=GRPOConfig(num_generations=toy.SAMPLES, num_iterations=1, beta=toy.BETA, epsilon=0.2),
    reward_fns=reward,
)
# Its sampler puts a BOS before each prompt: one character less keeps the token count the same.
prompts = [[text[1:] for text in toy.prompts(step)] for step in range(toy.STEPS)]
with mesh:
    learner.train([{"prompts": np.array(texts)} for texts in prompts])
# The reward is asked for once a step, between sampling and update: from one to the next is one whole step.
toy.say("tunix", [b - a for a, b in itertools.pairwise(times)])
