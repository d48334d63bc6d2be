"""The text of a job file, with a head that says how it is used."""

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from noisyjax.errors import RunError, UsageError, nearest
from noisyjax.evaluate import EvalConfig
from noisyjax.store import write_text
from noisyjax.tpu.jobs.jobset import jobset
from noisyjax.tpu.jobs.sky import sky
from noisyjax.tpu.jobs.spec import ENGINES, JobSpec, check, not_brought

_HEAD = re.compile(r"# .* in [0-9]+ shards? by (?:questions|runs), each on ")


def job_file(engine: str, spec: JobSpec) -> str:
    """The YAML text for `engine`; the same spec gives the same text.

    Raises UsageError for what cannot be run: a wrong config, TPU, bucket or image, placeholders, more shares than runs.
    """
    if engine not in ENGINES:
        raise UsageError(f"no engine '{engine}'; {nearest(engine, ENGINES)}")
    runs = check(engine, spec)
    made = sky(spec) if engine == "sky" else jobset(spec)
    head = "".join(f"# {line}\n" for line in _head(engine, spec, runs))
    return head + yaml.dump(made, Dumper=_Dumper, sort_keys=False, width=120)


def write_job_file(path: Path, text: str) -> None:
    """Write the file, over an older one of its kind but over nothing else (UsageError). RunError where that fails."""
    try:
        old = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None
    except OSError as error:
        raise RunError(f"could not read {path}: {error.strerror or error}") from error
    if old is not None and not _HEAD.match(old):
        raise UsageError(f"{path} is there and is no job file: choose another --out")
    write_text(path, text)


def _head(engine: str, spec: JobSpec, runs: Sequence[EvalConfig]) -> Iterator[str]:
    """What the file is and how it is used, line by line."""
    tpu = spec.tpu
    yield (
        f"{spec.config} in {spec.shards} shard{'s' * (spec.shards > 1)} by {spec.split}, "
        f"each on {tpu.name} (chips: {tpu.chips}, machines: {tpu.hosts})"
    )
    if folders := not_brought(spec, runs):
        where = "the folder that is sent" if engine == "sky" else "the image"
        yield f"{', '.join(folders)}: read, and brought by no --mount, so it must be in {where}"
    if engine == "jobset":
        if spec.env:
            given = " ".join(f'--from-literal={name}="${name}"' for name in spec.env)
            yield f"kubectl create secret generic {spec.name} {given}"
        yield f"kubectl apply -f FILE; kubectl get jobset {spec.name} shows how far it is"
    else:
        launch = " ".join(["sky jobs launch --yes", *(f"--secret {name}" for name in spec.env)])
        if spec.shards == 1:
            yield f"{launch} FILE"
        else:
            one = f"{launch} --detach-run --name {spec.name}-$i --env SHARD=$i FILE"
            yield f"for i in $(seq {spec.shards}); do {one}; done"
    yield shlex.join(["noisyjax", "report", spec.out])


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks, so that a person can read them."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
