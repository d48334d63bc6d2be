"""`python -m noisyjax.tpu.planning.worker`: compiles the programs of a config for a topology, as a process of its own.

The TPU's compiler takes its settings from the environment before jax is imported, so `plan.py` starts this with them.
The request comes as a line of JSON on stdin; the answer goes to the file that it names. What takes long is told on
stderr. When stdin ends, nobody waits any more, and so does this process.
"""

import json
import os
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jax.experimental import topologies

from noisyjax.engine.config import LocalConfig, MeshConfig
from noisyjax.engine.mesh import open_layout
from noisyjax.errors import NoisyjaxError, UsageError, nearest
from noisyjax.models import ModelConfig, ModelError
from noisyjax.models.sharding import SERVING, TRAINING, partition_specs
from noisyjax.tpu.names import Slice, parse_accelerator
from noisyjax.tpu.planning import search
from noisyjax.tpu.planning.account import account
from noisyjax.tpu.planning.compiled import Compiled, compile_program
from noisyjax.tpu.planning.programs import Engine, Program, Sampling, Training, device_bytes, engine, serving, training
from noisyjax.tpu.planning.subject import Subject, architecture, read_subject
from noisyjax.train.learner import check_window


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """The plan of `request`: {source, overrides, topology, search, only} as plain data (`plan.Plan`)."""
    where = parse_accelerator(request["topology"])
    devices = _devices(where)
    subject = read_subject(request["source"], request["overrides"])
    keep = subject.kind == "eval" and _keeps(subject.config.engine)
    cfg = architecture(_model(subject), "engine.model" if subject.kind == "eval" else "model", keep_quantised=keep)
    if subject.kind != "eval":
        check_window(subject.config, cfg)
    _check_judge(subject, where)
    known: dict[str, Compiled] = {}
    tried: list[dict[str, Any]] = []
    if request["search"]:
        words, one, tried = _search(request, subject, cfg, devices, where)
        known = {one.name: one}
        subject = read_subject(request["source"], [*request["overrides"], *words])
    partition_specs(cfg, _mesh(subject).axes, SERVING if subject.kind == "eval" else TRAINING)
    _check_devices(subject, where)
    made = _run(subject, cfg, devices, where)
    compiled = [known.get(p.name) or _compile(p, where) for p in _wanted(made, request["only"])]
    return account(subject, cfg, where, made.train, made.engines, compiled) | {"search": tried}


def _search(
    request: Mapping[str, Any], subject: Subject, cfg: ModelConfig, devices: Sequence[Any], where: Slice
) -> tuple[tuple[str, ...], Compiled, list[dict[str, Any]]]:
    """`search.best` of the run's meshes, by the program that needs most."""

    def made(words: Sequence[str]) -> _Made:
        return _run(read_subject(request["source"], [*request["overrides"], *words]), cfg, devices, where)

    def compiled(words: Sequence[str]) -> Compiled:
        print(f"{where.name}: trying {' '.join(words)}", file=sys.stderr, flush=True)
        run, name = made(words), "decode" if subject.kind == "eval" else "update"
        _wanted(run, request["only"])  # before minutes go into it
        return _compile(next(one for one in run.programs if one.name == name), where)

    if subject.kind == "eval":
        found = search.serving_candidates(_mesh(subject), cfg, where, lambda words: made(words).engines[0])
    else:
        found = search.candidates(subject, cfg, where)
    return search.best(found, where, compiled)


class _Made:
    """The parts of a run on these devices, and their programs."""

    def __init__(self, train: Training | None, engines: Sequence[Engine], programs: Sequence[Program]) -> None:
        self.train, self.engines, self.programs = train, engines, programs


def _wanted(made: _Made, only: Sequence[str]) -> list[Program]:
    """The programs of these names, or all. UsageError for a name that is none."""
    names = [p.name for p in made.programs]
    for name in only:
        if name not in names:
            raise UsageError(f"--only {name}: this run has no such program; {nearest(name, names)}")
    return [p for p in made.programs if not only or p.name in only]


def _devices(where: Slice) -> list[Any]:
    return list(topologies.get_topology_desc(platform="tpu", topology_name=where.jax_topology).devices)


def _run(subject: Subject, cfg: ModelConfig, devices: Sequence[Any], where: Slice) -> _Made:
    """The whole slice trains; each host samples and judges its share on its own devices."""
    config, judge_config, hosts = subject.config, subject.judge, where.hosts
    own = devices if hosts == 1 else _devices(where.host)
    train = None if subject.kind == "eval" else training(config, cfg, devices)
    engines: list[Engine] = []
    if subject.kind == "grpo":
        assert train is not None
        rollout, groups = config.rollout, -(-config.prompts // hosts)
        local = LocalConfig(model=config.model, slots=rollout.slots, chunk=rollout.chunk, capture={"attention": "none"})  # type: ignore[arg-type]
        dtype = config.update.dtype if rollout.dtype == "auto" else rollout.dtype
        prompt = config.data.prompt.max_prompt_tokens or config.update.row_tokens - rollout.max_tokens
        work = Sampling(groups, prompt, groups * rollout.samples, rollout.max_tokens)
        engines.append(engine(local, cfg, serving(train.layout, own if hosts > 1 else None), dtype, work))
    elif subject.kind == "eval":
        layout = open_layout(config.engine.mesh, cfg, SERVING, devices=own)
        assert layout is not None
        row = config.engine.row or config.engine.context or cfg.max_positions
        new = min(config.sampling.max_tokens, row - 1)
        work = Sampling(config.engine.slots, row - new, config.engine.slots, new)
        engines.append(engine(config.engine, cfg, layout, _dtype(config.engine, cfg), work))
    if judge_config is not None:
        engines.append(_judge(subject, judge_config, own, hosts))
    return _Made(train, engines, list(_programs(subject, train, engines)))


def _judge(subject: Subject, config: LocalConfig, devices: Sequence[Any], hosts: int) -> Engine:
    judge = subject.config.judge
    cfg = architecture(config.model, "judge.engine.model", keep_quantised=_keeps(config))
    own = devices[-config.mesh.devices :] if _split(subject) else devices
    layout = open_layout(config.mesh, cfg, SERVING, devices=own)
    assert layout is not None
    samples = config.slots
    if subject.kind == "grpo":
        samples = -(-subject.config.prompts // hosts) * subject.config.rollout.samples
    verdicts = samples * (2 if subject.kind == "grpo" and subject.config.reward.asks_rationale else 1)
    prompt = (judge.question_chars + 3 * judge.candidate_chars) // 4 + 400  # four characters a token, and the form
    work = Sampling(verdicts, min(prompt, cfg.max_positions - judge.max_tokens), verdicts, judge.max_tokens)
    return engine(config, cfg, layout, _dtype(config, cfg), work, "judge ")


def _programs(subject: Subject, train: Training | None, engines: Sequence[Engine]) -> list[Program]:
    """All of the run, each with what lies beside it: weights and caches that are not let go in between."""
    config, split = subject.config, _split(subject)
    asleep = {}
    for one in engines:
        offload = config.rollout.offload if subject.kind == "grpo" and not one.name else _offload(subject, one)
        asleep[one.name] = 0 if offload or (split and one.name) else one.weights() + one.caches()
    reference = {}
    if train is not None and subject.kind == "grpo" and config.loss.needs_reference and not config.lora:
        reference = {"reference": 0 if config.reference_offload else train.reference_bytes()}
    made: list[Program] = []
    if train is not None:
        made += train.programs({**reference, "beside": sum(asleep.values())})
    state = {} if train is None else {"trainer": device_bytes((train.state, train.frozen))}
    for one in engines:
        others = sum(size for name, size in asleep.items() if name != one.name)
        alone = split and one.name
        made += one.programs({} if alone else {**state, **reference, "beside": others})
    return made


def _compile(program: Program, where: Slice) -> Compiled:
    print(f"{where.name}: {program.name}", file=sys.stderr, flush=True)
    return compile_program(program, where.generation)


def _check_judge(subject: Subject, where: Slice) -> None:
    """UsageError for a judge of its own devices where there are none for it."""
    if not _split(subject):
        return
    own, of = subject.config.judge.engine.mesh.devices, f"{where.name} ({where.shape})"
    shared = "judge.placement=shared, judge.engine.offload=true and rollout.offload=true"
    if where.hosts > 1:
        raise UsageError(
            f"judge.placement=split is for one host, and {of} has {where.hosts}: say {shared}; or give the judge hosts "
            "of its own, behind an endpoint (judge.engine.kind=remote), and leave it out of the plan"
        )
    if own >= where.devices:
        raise UsageError(
            f"judge.engine.mesh makes {own} devices, and {of} has {where.devices} for judge and policy together: take "
            f"fewer, or say {shared}"
        )


def _check_devices(subject: Subject, where: Slice) -> None:
    """A plan is for a whole slice. UsageError for a mesh that leaves some of it out, or wants more."""
    mesh, key = _mesh(subject), "engine.mesh" if subject.kind == "eval" else "mesh"
    free, of = where.devices, f"{where.name} ({where.shape})"
    if subject.kind == "eval":
        free, of = free // where.hosts, f"a host of {of}" if where.hosts > 1 else of
        mesh = mesh.filling(free)
    own = subject.config.judge.engine.mesh.devices if _split(subject) else 0
    if mesh.devices + own == free:
        return
    shape = " x ".join(f"{axis}={n}" for axis, n in mesh.axes.items() if n > 1) or "of one device"
    beside = f", the judge's {own}" if own else ""
    axis = "data" if subject.kind == "eval" else "fsdp"
    raise UsageError(
        f"{key} {shape} makes {mesh.devices} devices{beside}, but {of} has {free}: "
        f"say {key}.{axis}={free - own}, or another product of {free - own}"
        ", or --search"
    )


def _split(subject: Subject) -> bool:
    """Whether the judge has devices of its own."""
    return getattr(getattr(subject.config, "judge", None), "placement", "shared") == "split"


def _mesh(subject: Subject) -> MeshConfig:
    return subject.config.engine.mesh if subject.kind == "eval" else subject.config.mesh


def _model(subject: Subject) -> Path:
    return subject.config.engine.model if subject.kind == "eval" else subject.config.model


def _keeps(config: LocalConfig) -> bool:
    return config.quantised == "keep"


def _offload(subject: Subject, one: Engine) -> bool:
    return bool(subject.judge is not None and one.name and subject.judge.offload)


def _dtype(config: LocalConfig, cfg: ModelConfig) -> str:
    return cfg.dtype if config.dtype == "auto" else config.dtype


def _end_with(asking: int) -> None:
    os.read(asking, 1)  # not by sys.stdin, whose lock a thread may not hold when Python ends
    os._exit(1)


def main() -> int:
    """Answer the request on stdin. What a person can put right is an answer too."""
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with, args=(sys.stdin.fileno(),), daemon=True).start()
    try:
        found: dict[str, Any] = {"plan": answer(request)}
    except NoisyjaxError as error:
        found = {"error": str(error), "code": error.exit_code}
    except ModelError as error:
        found = {"error": str(error), "code": 2}
    except Exception:  # noqa: BLE001 (it is told by the process that asked)
        found = {"error": traceback.format_exc(), "code": 1}
    Path(request["answer"]).write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
