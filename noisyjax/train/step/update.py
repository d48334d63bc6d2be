"""One optimizer update from any number of micro-batches, the same for every kind of training.

A micro-batch adds its share of the gradient to an accumulator in float32; the weights of its targets carry the global
denominators (`weights.token_weights`), so the sum does not depend on how the batch was cut. Then one update is applied,
unless the loss or the gradient is no number.

Parameters are the flat {path: array} of `models.params`, in float32; the model is built from a copy in the compute
type inside each program. Legend: B rows, P targets.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from noisyjax.models import Layout, ModelConfig, lora, moe
from noisyjax.models.decoder import Decoder, Remat
from noisyjax.models.sharding import compiler_options, platform
from noisyjax.train.objective.metrics import Mean, Metrics, Total, merge
from noisyjax.train.step.config import UpdateConfig
from noisyjax.train.step.logprobs import logprobs_and_load, target_logprobs
from noisyjax.train.step.rows import Group, MicroBatch, Rows, micro_batches

Params = Mapping[str, jax.Array]

LossFn = Callable[[jax.Array, jax.Array | None, Rows], tuple[jax.Array, Metrics]]
"""(logprob_bp, entropy_bp, rows) -> (the rows' share of the loss, float32 scalar; their metrics)."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """What training changes: float32 parameters {path: array}, the optimizer's state, int32 updates made."""

    params: Any
    opt_state: Any
    updates: Any


@dataclass(frozen=True)
class Updated:
    """A new state, metrics of the whole batch, and whether anything was learned (a bool on the device)."""

    state: TrainState
    metrics: Metrics
    ok: Any


@dataclass(frozen=True, eq=False)
class Policy:
    """How parameters become log-probabilities of targets.

    temperature: the sampler's. valid_v: bool [V], the sampler's too; None for the whole vocabulary. layout: the mesh
    that the parameters lie on.
    """

    cfg: ModelConfig
    dtype: str = "float32"
    remat: Remat = "none"
    temperature: float = 1.0
    valid_v: Any = None
    layout: Layout | None = None

    def logprobs(self, params: Params, rows: Rows) -> tuple[jax.Array, jax.Array]:
        """(log-probabilities, entropies in nats) of the targets, float32 [B, P]; differentiable in `params`."""
        model = Decoder(self.cfg, {path: x.astype(self.dtype) for path, x in params.items()}, layout=self.layout)
        return target_logprobs(model, rows, self.temperature, self.valid_v, remat=self.remat)

    def logprobs_and_load(self, params: Params, rows: Rows) -> tuple[jax.Array, jax.Array, moe.Load]:
        """`logprobs`, and how the rows load the experts of a model that has them."""
        model = Decoder(self.cfg, {path: x.astype(self.dtype) for path, x in params.items()}, layout=self.layout)
        return logprobs_and_load(model, rows, self.temperature, self.valid_v, remat=self.remat)


class Updater:
    """The compiled programs of one training run: shapes of micro-batches are compiled as they come.

    Args:
        model: the decoder's config.
        optimizer: from `optimizer.optimizer`.
        loss: called while tracing, once per shape.
        frozen: parameters that the model needs and training leaves alone: the base of an adapter.
        scale: of the adapter, where the trained parameters are one.
        layout: where parameters and rows lie; None is the default device.
        router_aux: weight of the router's balance in the loss; only for models with experts.
    """

    def __init__(
        self,
        model: ModelConfig,
        optimizer: optax.GradientTransformation,
        loss: LossFn,
        config: UpdateConfig,
        *,
        temperature: float = 1.0,
        valid_v: np.ndarray | None = None,
        frozen: Params | None = None,
        scale: float = 1.0,
        layout: Layout | None = None,
        router_aux: float = 0.0,
    ) -> None:
        self.optimizer, self.loss, self.config, self.layout = optimizer, loss, config, layout
        self.frozen: Params = frozen or {}
        self.scale, self.router_aux = scale, router_aux
        self.policy = Policy(model, config.dtype, config.remat, temperature, valid_v, layout)
        self._how = compiler_options(layout)
        self._score = jax.jit(self.policy.logprobs, compiler_options=self._how)
        self._load = jax.jit(lambda params, rows: self.policy.logprobs_and_load(params, rows)[2])
        self._programs: _Programs | None = None

    # ---- what callers use

    def start(self, params: Params) -> TrainState:
        """The state before the first update. `params` are copied to float32, and all state is laid out as they are."""
        params, layout = dict(params), jax.tree.map(lambda x: x.sharding, self.abstract(params))
        # A copy even of what is float32 already: the state is donated, and the caller keeps what he handed in.
        copy = jax.jit(
            lambda p: {path: jnp.array(x, jnp.float32) for path, x in p.items()}, out_shardings=layout.params
        )
        master = copy(params)
        opt_state = jax.jit(self.optimizer.init, out_shardings=layout.opt_state)(master)
        return TrainState(master, opt_state, jax.device_put(jnp.int32(0), layout.updates))

    def abstract(self, params: Mapping[str, Any]) -> TrainState:
        """Shape, type and sharding of everything in the state that `start` makes of these parameters.

        They may be `jax.ShapeDtypeStruct`s with a sharding: programs are compiled from the result without any array.
        """
        where = {path: x.sharding for path, x in params.items()}
        single = next(iter(where.values())) if self.layout is None else self.layout.sharding()
        master = {path: jax.ShapeDtypeStruct(x.shape, jnp.float32, sharding=x.sharding) for path, x in params.items()}
        moments = jax.eval_shape(self.optimizer.init, master)
        laid = optax.tree_utils.tree_map_params(
            self.optimizer, lambda _, sharding: sharding, moments, where, transform_non_params=lambda _: single
        )
        moments = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), moments, laid)
        return TrainState(master, moments, jax.ShapeDtypeStruct((), jnp.int32, sharding=single))

    def batches(self, groups: Iterable[Group]) -> list[MicroBatch]:
        """The groups as micro-batches that suit the config and the mesh."""
        return micro_batches(
            groups,
            row_tokens=self.config.row_tokens,
            batch_tokens=self.config.batch_tokens,
            rows_multiple=1 if self.layout is None else self.layout.shards(),
            pack=self.config.pack,
            share=self.config.share,
            slotted=self.config.slotted(platform(self.layout)),
        )

    def logprobs(self, params: Params, rows: Rows) -> tuple[jax.Array, jax.Array]:
        """(log-probabilities, entropies) of the rows' targets, float32 [B, P], under any parameters; no gradient.

        `params` {} are those of the base without its adapter. `dataclasses.replace(rows, ref_bp=...)` takes them.
        """
        return self._score(lora.attach(self.frozen, params, self.scale), self.place(rows))

    def weights(self, state: TrainState) -> Params:
        """The model's whole parameters in a state, an adapter merged into its base: to sample with, to export."""
        return lora.merge(self.frozen, state.params, self.scale) if self.frozen else state.params

    def update(self, state: TrainState, batches: Sequence[Rows]) -> Updated:
        """One update over all micro-batches. `state` is donated: go on with the one returned.

        When the loss or the gradient's norm is no finite number, or there is no micro-batch at all, the state comes
        back as it was and `ok` is False. Metrics: the loss function's, `update/grad_norm` (before clipping),
        `update/ok` and, where it is in the loss, `router/balance`: 1 per choice of a token is perfect.
        """
        if not batches:
            return Updated(state, {"update/ok": Mean.of(False)}, np.bool_(False))
        programs = self._compiled(state)
        pull_e = self._pull(state.params, batches) if self.router_aux else None
        total, parts = programs.zeros(), []
        for rows in batches:
            total, metrics = programs.add(total, state.params, self.frozen, self.place(rows), pull_e)
            parts.append(metrics)
        state, norm, ok = programs.apply(state, total)
        return Updated(state, merge(parts) | {"update/grad_norm": Mean.of(norm, ok), "update/ok": Mean.of(ok)}, ok)

    def place(self, rows: Rows) -> Rows:
        """`rows` cut over the mesh by row; every host passes the same whole rows."""
        if self.layout is None:
            return rows
        by_row = self.layout.sharding(self.layout.batch_axes(len(rows.ids_bt)))
        return jax.tree.map(
            lambda x: x if isinstance(x, jax.Array) else jax.make_array_from_callback(x.shape, by_row, x.__getitem__),
            rows,
        )

    # ---- programs

    def _compiled(self, state: TrainState) -> "_Programs":
        """The programs for states laid out like this one. What comes out lies where it came in: it can be donated."""
        if self._programs is None:
            layout = jax.tree.map(lambda x: x.sharding, state)
            total = (layout.params, layout.updates)
            shapes = {path: x.shape for path, x in state.params.items()}
            self._programs = _Programs(
                jax.jit(
                    lambda: ({path: jnp.zeros(shape) for path, shape in shapes.items()}, jnp.float32(0)),
                    out_shardings=total,
                ),
                jax.jit(self._add, donate_argnums=0, out_shardings=(total, None), compiler_options=self._how),
                jax.jit(self._apply, donate_argnums=0, out_shardings=(layout, None, None)),
            )
        return self._programs

    def _pull(self, params: Params, batches: Sequence[Rows]) -> jax.Array:
        """The router's balance of a batch is no sum over its micro-batches, but given this of them all it is."""
        whole = lora.attach(self.frozen, params, self.scale)
        loads = [self._load(whole, self.place(rows)) for rows in batches]
        return moe.pull(jax.tree.map(lambda *parts: sum(parts), *loads))

    def _add(
        self, total: "_Total", params: Params, frozen: Params, rows: Rows, pull_e: jax.Array | None
    ) -> "tuple[_Total, Metrics]":
        def share(params: Params) -> tuple[jax.Array, Metrics]:
            whole = lora.attach(frozen, params, self.scale)
            if pull_e is None:
                return self.loss(*self.policy.logprobs(whole, rows), rows)
            logprob_bp, entropy_bp, load = self.policy.logprobs_and_load(whole, rows)
            loss, metrics = self.loss(logprob_bp, entropy_bp, rows)
            balance = jnp.sum(pull_e * load.prob_e)
            return loss + self.router_aux * balance, {**metrics, "router/balance": Total.of(balance)}

        (loss, metrics), gradient = jax.value_and_grad(share, has_aux=True)(dict(params))
        return jax.tree.map(jnp.add, total, (gradient, loss)), metrics

    def _apply(self, state: TrainState, total: "_Total") -> tuple[TrainState, jax.Array, jax.Array]:
        gradient, loss = total
        norm = optax.global_norm(gradient)
        ok = jnp.isfinite(loss) & jnp.isfinite(norm)
        change, opt_state = self.optimizer.update(gradient, state.opt_state, state.params)
        new = TrainState(optax.apply_updates(state.params, change), opt_state, state.updates + 1)
        return jax.tree.map(functools.partial(jnp.where, ok), new, state), norm, ok


_Total = tuple[Params, jax.Array]
"""Gradient and loss so far, float32."""


class _Programs(NamedTuple):
    zeros: Callable[[], _Total]
    add: Callable[..., tuple[_Total, Metrics]]
    apply: Callable[[TrainState, _Total], tuple[TrainState, jax.Array, jax.Array]]
