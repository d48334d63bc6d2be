"""A plan's figures: compiled programs and the roofline of the step that they make, as plain data."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from noisyjax.models import Layout, ModelConfig
from noisyjax.tpu.names import Generation, Slice
from noisyjax.tpu.planning import roofline
from noisyjax.tpu.planning.compiled import Compiled
from noisyjax.tpu.planning.hlo import Collective
from noisyjax.tpu.planning.programs import Engine, Training, full_groups
from noisyjax.tpu.planning.roofline import Cut, Part
from noisyjax.tpu.planning.subject import Subject
from noisyjax.tpu.planning.work import Lengths, model_flops, shared_rows

_WIDTH = {"float32": 4, "bfloat16": 2}


def account(
    subject: Subject,
    cfg: ModelConfig,
    where: Slice,
    train: Training | None,
    engines: Sequence[Engine],
    compiled: Sequence[Compiled],
) -> dict[str, Any]:
    """The plan of a step on a slice."""
    by_name = {one.name: one for one in compiled}
    steps: dict[str, list[Part]] = {}
    figures: dict[str, Any] = {}
    if train is not None:
        lengths = step_lengths(subject, cfg)
        parts = training_parts(subject, cfg, lengths, train, by_name)
        fits = all(by_name[name].fits for name in ("update", "optimizer") if name in by_name)
        needed = model_flops(cfg, lengths)
        figures = {
            "micro_batches": len(train.batches),
            "model_flops": needed,
            "mfu": roofline.mfu(needed, where.devices, parts["update"], where.generation) if fits else None,
            "tokens": lengths.targets,
        }
        steps |= parts
    for one in engines:
        steps |= engine_parts(one)
    spent = {name: roofline.seconds(parts, where.generation) for name, parts in steps.items()}
    mesh = train.layout.mesh if train is not None else engines[0].layout.mesh
    return {
        "config": subject.kind,
        "topology": where.jax_topology,
        "name": where.name,
        "chips": where.chips,
        "devices": where.devices,
        "hbm": where.generation.hbm_bytes,
        "mesh": {axis: n for axis, n in mesh.shape.items() if n > 1},
        "sequence": train.layout.sequence if train is not None else False,
        "fits": all(one.fits for one in compiled),
        "programs": [one.to_json() for one in compiled],
        "parts": [_row(name, part, where.generation) for name, parts in steps.items() for part in parts],
        "seconds": spent,
        **figures,
    }


def step_lengths(subject: Subject, cfg: ModelConfig) -> Lengths:
    """Of the update of a whole step, everything as long as it may be."""
    config = subject.config
    groups = [(len(g.prompt), [len(r.ids) for r in g.responses]) for g in full_groups(config, cfg)]
    return shared_rows(cfg, groups, config.update.share)


def cut_of(layout: Layout, micro: int = 1) -> Cut:
    """A layout's numbers."""
    return Cut(layout.shards(), layout.size("fsdp"), layout.size("expert"), layout.size("tensor"), micro)


def training_parts(
    subject: Subject, cfg: ModelConfig, lengths: Lengths, train: Training, compiled: Mapping[str, Compiled]
) -> dict[str, list[Part]]:
    """Parts of the update, and of the log-probabilities where a step asks for them; with the operations and the
    collectives of the compiled programs where there are such."""
    update, cut = subject.config.update, cut_of(train.layout, len(train.batches))
    width, made = _WIDTH[update.dtype], compiled.get("update")
    products = made.flops * made.times if made is not None and made.flops else None
    parts = roofline.update_parts(cfg, lengths, cut, update.remat, width, products)
    if made is not None and made.peak is not None:
        *inner, last = parts
        inner = roofline.with_collectives(inner, made.collectives, _loops(cfg), made.times)
        parts = [*inner, Part(last.name, hbm=last.hbm, ici=_sent(compiled.get("optimizer")))]
    found = {"update": parts}
    if train.reference:
        forward, scored = roofline.forward_parts(cfg, lengths, cut, width), compiled.get("logprobs")
        if scored is not None and scored.peak is not None:
            forward = roofline.with_collectives(forward, scored.collectives, _loops(cfg), scored.times)
        found["logprobs"] = forward
    return found


def engine_parts(one: Engine) -> dict[str, list[Part]]:
    """Prefill and decoding of an engine's work in a step."""
    work, cut, cfg = one.work, cut_of(one.layout), one.cfg
    width = one.weights() * cut.tensor * cut.expert / max(1, _parameters(cfg))
    prompts = shared_rows(cfg, [(work.prompt, [])] * work.prompts)
    pieces = work.prompts * -(-work.prompt // 512)
    rounds = -(-work.samples // one.shape.slots)
    context = work.prompt + work.tokens / 2
    return {
        f"{one.name}prefill": roofline.prefill_parts(cfg, prompts, pieces, cut, width),
        f"{one.name}decode": roofline.decode_parts(cfg, one.shape.slots, rounds * work.tokens, context, cut, width),
    }


def _parameters(cfg: ModelConfig) -> int:
    from noisyjax.tpu.planning.work import sizes

    size = sizes(cfg)
    return size.dense + size.every_expert + size.head * (1 if cfg.tie_embeddings else 2)


def _loops(cfg: ModelConfig) -> set[int]:
    """How often a loop over layers turns."""
    return {cfg.n_layers} if cfg.moe is None else {cfg.n_layers, cfg.n_layers - len(cfg.moe.dense_layers)}


def _sent(one: Compiled | None) -> float:
    return 0.0 if one is None else one.times * total(one.collectives)


def total(sent: Iterable[Collective]) -> float:
    """Bytes that a device sends in a run of a program."""
    return sum(c.sent for c in sent)


def _row(program: str, part: Part, generation: Generation) -> dict[str, Any]:
    return {
        "program": program,
        "part": part.name,
        "flops": part.flops,
        "attention_flops": part.attention,
        **part.times(generation),
        "seconds": part.seconds(generation),
    }
