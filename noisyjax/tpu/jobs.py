"""A sweep as a job file for an engine that runs many machines: SkyPilot managed jobs, or a Kubernetes JobSet.

Each engine starts `shards` machines (or slices), restarts what is pre-empted and gives every one its index; the index
is the run's shard, and the store makes a restarted shard go on where it stopped. Nothing here starts anything.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from noisyjax.engine.config import LocalConfig
from noisyjax.engine.remote import RemoteConfig
from noisyjax.errors import RunError, UsageError, nearest
from noisyjax.evaluate import EvalConfig, load_runs
from noisyjax.evaluate.sweep import SPLITS
from noisyjax.store import write_text
from noisyjax.tpu.names import Slice, parse_accelerator

ENGINES = ("sky", "jobset")

RESTARTS = 3
"""Of a shard that fails by itself: what three starts did not mend, a hundred will not, and each loads its models anew.
A machine that is taken away costs none."""

_BUCKET = re.compile(r"gs://([a-z0-9][a-z0-9._-]{1,61}[a-z0-9])((?:/(?!\.\.?(?:/|$))[\w.=+@-]+)*)/?")
"""A folder's name is one of a mount's comma-separated options."""
_MOUNT = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
"""A folder, and the name of a Kubernetes volume."""
_OWN = {"configs", "models", "noisyjax"}
"""Folders of the run that are there already."""
_SENT = ("pyproject.toml", "constraints.txt", "noisyjax/__init__.py")
"""What the setup of a machine needs of the folder that is sent to it."""
_IMAGE = re.compile(r"[A-Za-z0-9][\w./:@-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS = {"SHARD", "SHARD_INDEX"}
"""Variables that say which shard a machine is."""
_HERE = {"localhost", "127.0.0.1", "::1", "0.0.0.0"}
"""Hosts of an endpoint that every machine takes for itself."""
_HEAD = re.compile(r"# .* in [0-9]+ shards by (?:questions|runs), each on ")
_PLACEHOLDER = re.compile(r"<.*>|^\$|\b(?:your|my)[-_ ]|\b(?:PROJECT|ZONE|BUCKET|IMAGE|NAME|REGION|CHANGEME|TODO)\b")


@dataclass(frozen=True)
class JobSpec:
    """What a job file is made from. `config` and `overrides` are those of `noisyjax eval`."""

    config: str
    overrides: tuple[str, ...] = ()
    accelerator: str = "v6e-8"
    shards: int = 1
    split: str = "questions"
    """A shard's share: of every run's `questions`, or whole `runs` of a sweep over several."""
    spot: bool = False
    bucket: str = ""
    """Where results go, `gs://bucket/folder`: machines come and go, so that a local folder would be lost."""
    image: str = ""
    """Container with noisyjax in it; a JobSet needs one."""
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Folder of the run -> bucket folder that is read through it: `{"weights": "gs://bucket/weights"}`."""
    env: tuple[str, ...] = ()
    """Environment variables that are handed over, such as the key of an endpoint. Names: no value is ever written."""
    tpu: Slice = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tpu", parse_accelerator(self.accelerator))

    @property
    def name(self) -> str:
        """`noisyjax-table1`: letters, digits and dashes, as Kubernetes and SkyPilot want it."""
        stem = re.sub(r"[^a-z0-9]+", "-", Path(self.config).stem.lower()).strip("-")
        return f"noisyjax-{stem}"[:40].rstrip("-")

    @property
    def out(self) -> str:
        return f"{self.bucket.rstrip('/')}/{Path(self.config).stem}"


def job_file(engine: str, spec: JobSpec) -> str:
    """The YAML text for `engine`; the same spec gives the same text.

    Raises UsageError for what cannot be run: a wrong config, TPU, bucket or image, placeholders, more shares than runs.
    """
    if engine not in ENGINES:
        raise UsageError(f"no engine '{engine}'; {nearest(engine, ENGINES)}")
    runs = _check(engine, spec)
    made = _sky(spec) if engine == "sky" else _jobset(spec)
    head = "".join(f"# {line}\n" for line in _head(engine, spec, runs))
    return head + yaml.dump(made, Dumper=_Dumper, sort_keys=False, width=120)


def read_mounts(words: Iterable[str]) -> dict[str, str]:
    """`NAME=gs://BUCKET/FOLDER` words as `JobSpec.mounts`. UsageError for what is none, or given twice."""
    mounts: dict[str, str] = {}
    for word in words:
        name, equals, url = word.partition("=")
        if not equals:
            raise UsageError(f"a mount is NAME=gs://BUCKET/FOLDER; got '{word}'")
        if name in mounts:
            raise UsageError(f"--mount {name} is given twice: {mounts[name]} and {url}")
        mounts[name] = url
    return mounts


def write_job_file(path: Path, text: str) -> None:
    """Write the file, over an older one of its kind but over nothing else (UsageError). RunError where that fails."""
    try:
        old = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None
    except OSError as error:
        raise RunError(f"could not read {path}: {error.strerror or error}") from error
    if old is not None and not _HEAD.match(old):
        raise UsageError(f"{path} is there and is no job file: choose another --out")
    write_text(path, text)


# -- the command ---------------------------------------------------------------------------------------------------


def command(spec: JobSpec, index: str) -> str:
    """The shell line of one shard. `index` is the shell's own expression for its number, from 1."""
    line = shlex.join(["noisyjax", "eval", spec.config, *spec.overrides, f"out={spec.out}", "--no-table"])
    return line if spec.shards == 1 else f"{line} --shard {index}/{spec.shards} --split {spec.split}"


def _check(engine: str, spec: JobSpec) -> Sequence[EvalConfig]:
    """The runs of the spec, when all of it can work; UsageError as `job_file`."""
    if spec.shards < 1:
        raise UsageError(f"shards is at least 1, not {spec.shards}")
    if spec.split not in SPLITS:
        raise UsageError(f"no split '{spec.split}'; {nearest(spec.split, SPLITS)}")
    if any(word.startswith(("out=", "shard=")) for word in spec.overrides):
        raise UsageError(
            "`out` and `shard` are the job's own: name the bucket with --bucket and the number with --shards"
        )
    for name, url in spec.mounts.items():
        if not _MOUNT.fullmatch(name) or name in _OWN:
            raise UsageError(
                "a mount is NAME=gs://BUCKET/FOLDER with NAME in small letters, digits and dashes, and none of "
                f"{', '.join(sorted(_OWN))}; got '{name}={url}'"
            )
    for url in (spec.bucket, *spec.mounts.values()):
        if not _BUCKET.fullmatch(url):
            raise UsageError(
                "a bucket is gs://NAME or gs://NAME/FOLDER, its name in small letters, folders of letters, digits and "
                f"any of . _ = + @ -; got '{url}'"
            )
    if engine == "jobset" and not spec.image:
        raise UsageError("a JobSet runs a container: name one that holds noisyjax with --image")
    if spec.image and not _IMAGE.fullmatch(spec.image):
        raise UsageError(f"--image '{spec.image}' is none; it looks like europe-docker.pkg.dev/acme/noisyjax:1")
    for name in spec.env:
        if not _VARIABLE.fullmatch(name):
            raise UsageError("--env takes the name of an environment variable, such as GEMINI_API_KEY, and no value")
        if name in _OURS or spec.env.count(name) > 1:
            raise UsageError(f"--env {name} is {"the job's own" if name in _OURS else 'given twice'}: leave it out")
    given = {"--bucket": spec.bucket, "--image": spec.image, **{f"--mount {n}": u for n, u in spec.mounts.items()}}
    _no_placeholders(given | {f"'{word}'": word for word in spec.overrides})
    if engine == "sky" and spec.tpu.generation.name == "tpu7x":
        raise UsageError("SkyPilot does not know tpu7x: use --engine jobset, or another TPU")
    if engine == "sky" and (missing := [name for name in _SENT if not Path(name).is_file()]):
        raise UsageError(
            f"SkyPilot sends this folder, and it is no checkout of noisyjax (no {', '.join(missing)}): call this, and "
            "`sky jobs launch`, in one; or use --engine jobset with an --image"
        )
    if not _travels(spec.config):
        raise UsageError(
            f"{spec.config} must be a relative path, in printable characters, inside the folder that is sent, or a "
            "packaged config"
        )
    runs = load_runs(spec.config, spec.overrides)
    if spec.split == "runs" and spec.shards > len(runs):
        raise UsageError(f"{spec.shards} shards of {len(runs)} runs: take fewer, or split by questions")
    if problems := [f"{run.name}: {problem}" for run in runs for problem in _problems(spec, run)]:
        lines = "\n".join(f"  {line}" for line in problems)
        raise UsageError(f"these runs would fail there; mend them, or leave them out with skip=[...]\n{lines}")
    return runs


def _engines(run: EvalConfig) -> dict[str, LocalConfig | RemoteConfig]:
    """Key -> the engine that stands there: the run's, and its judge's if it has one of its own."""
    judge = run.judge.engine if run.judge is not None else "same"
    return {"engine": run.engine} | ({"judge.engine": judge} if judge != "same" else {})


def _problems(spec: JobSpec, run: EvalConfig) -> Iterator[str]:
    """Why the run cannot work on these machines, as far as its config tells."""
    chips = spec.tpu.host.devices
    for key, engine in _engines(run).items():
        if isinstance(engine, LocalConfig):
            if engine.mesh.devices > chips:
                yield f"{key}.mesh takes {engine.mesh.devices} devices; a machine of {spec.tpu.name} has {chips}"
            continue
        if engine.api_key_env and engine.api_key_env not in spec.env:
            yield f"{key} reads its key from {engine.api_key_env}: say --env {engine.api_key_env}"
        if urlsplit(engine.base_url).hostname in _HERE:
            yield f"{key}.base_url={engine.base_url} is each machine's own: name an endpoint that all of them reach"


def _not_brought(spec: JobSpec, runs: Sequence[EvalConfig]) -> list[str]:
    """Folders that the runs read and no mount brings, sorted."""
    needed = set()
    for run in runs:
        needed |= {engine.model for engine in _engines(run).values() if isinstance(engine, LocalConfig)}
        needed |= {Path(run.bench.data)} - {Path("hub"), Path("quickstart")}
    tops = {str(path) if path.is_absolute() else path.parts[0] for path in needed if path.parts}
    return sorted(tops - spec.mounts.keys())


def _travels(config: str) -> bool:
    """Whether a machine that was sent this folder, or that has the package alone, can read the config too."""
    path = Path(config)
    return not path.is_absolute() and ".." not in path.parts and config.isprintable()


def _no_placeholders(given: Mapping[str, str]) -> None:
    for where, text in given.items():
        if found := _PLACEHOLDER.search(text):
            raise UsageError(f"{where}: '{found[0]}' in '{text}' looks like a placeholder; write what it stands for")


# -- the files -----------------------------------------------------------------------------------------------------

# Newer images keep pip from their own Python unless it is told twice.
_SETUP = """\
set -e
PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --quiet --user uv
python3 -m uv venv --quiet --allow-existing --python 3.13 .venv
python3 -m uv pip install --quiet -p .venv/bin/python -c constraints.txt -e '.[tpu,hub,gcs]'
"""


def _sky(spec: JobSpec) -> dict[str, Any]:
    """A SkyPilot task; https://docs.skypilot.co has the fields. On a pod `run` runs on every host."""
    resources: dict[str, Any] = {
        "infra": "gcp",
        "accelerators": f"tpu-{spec.tpu.name}",
        "accelerator_args": {"runtime_version": spec.tpu.generation.runtime, "tpu_vm": True},
        "use_spot": spec.spot,
        # `recover_on_exit_codes` would start again without end, and no key excepts a code: so a few, for any failure.
        "job_recovery": {"max_restarts_on_errors": RESTARTS},
    }
    envs: dict[str, Any] = {} if spec.shards == 1 else {"envs": {"SHARD": "1"}}
    envs |= {"secrets": dict.fromkeys(spec.env)} if spec.env else {}  # null: `--secret NAME` gives the value
    # Whole buckets: SkyPilot mounts nothing smaller, and copies a folder, for which the disk of a TPU VM has no room.
    # They lie beside the folder that is sent, which is sent again at every start.
    buckets = {
        f"~/mounts/{n}": {"source": f"gs://{_bucket(url)[0]}", "mode": "MOUNT"} for n, url in spec.mounts.items()
    }
    links = "".join(f"ln -sfnT ~/mounts/{n}/{_bucket(u)[1]} {n}\n" for n, u in spec.mounts.items())
    mounts = {"file_mounts": buckets} if buckets else {}
    run = f". .venv/bin/activate\nexec {command(spec, '"$SHARD"')}\n"
    task = {"name": spec.name, "workdir": ".", "resources": resources, **mounts, **envs}
    return task | {"setup": _SETUP + links, "run": run}


def _jobset(spec: JobSpec) -> dict[str, Any]:
    """A JobSet (jobset.x-k8s.io/v1alpha2): a Job per shard, a pod per host of its slice.

    The Job starts its pods again by itself (JobSet's own action for that, RestartJob, is refused unless a feature gate
    is open). Where one host of a slice fails the others end too, so each failure counts as many pods as there are
    hosts. Exit code 2, a request that is wrong, ends the Job, and a Job that has failed ends the set.
    """
    wrong = {"containerName": "noisyjax", "operator": "In", "values": [UsageError.exit_code]}
    job = {
        "parallelism": spec.tpu.hosts,
        "completions": spec.tpu.hosts,
        "completionMode": "Indexed",
        "backoffLimit": RESTARTS * spec.tpu.hosts,
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onExitCodes": wrong},
                # A machine that is taken away: its pod is started elsewhere, and nothing is counted.
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
            ]
        },
        "template": _pod(spec),
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": spec.name,
            # One slice is one node pool, and no two shards may share it.
            "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"},
        },
        "spec": {"replicatedJobs": [{"name": "shard", "replicas": spec.shards, "template": {"spec": job}}]},
    }


# GKE tells the pods of a JobSet that its slices are one machine, and jax and libtpu believe it; here each is alone.
_ALONE = (
    'export MEGASCALE_NUM_SLICES=1 MEGASCALE_SLICE_ID=0 MEGASCALE_COORDINATOR_ADDRESS="${TPU_WORKER_HOSTNAMES%%,*}" && '
)


def _pod(spec: JobSpec) -> dict[str, Any]:
    """The pod template: metadata and spec. Buckets are mounted by GKE's Cloud Storage FUSE driver."""
    index = "metadata.annotations['jobset.sigs.k8s.io/job-index']"
    links = "".join(f"ln -sfnT /mnt/{name} {name} && " for name in spec.mounts)
    text = f"{_ALONE}{links}exec {command(spec, '"$((SHARD_INDEX + 1))"')}"
    handed = [{"name": n, "valueFrom": {"secretKeyRef": {"name": spec.name, "key": n}}} for n in spec.env]
    container: dict[str, Any] = {
        "name": "noisyjax",
        "image": spec.image,
        # Kubernetes reads `$$` as `$` and fills in `$(NAME)` before the shell sees any of it.
        "command": ["bash", "-c", text.replace("$", "$$")],
        "env": [{"name": "SHARD_INDEX", "valueFrom": {"fieldRef": {"fieldPath": index}}}, *handed],
        "resources": {"limits": {"google.com/tpu": spec.tpu.chips_per_host}},
    }
    selector = {
        "cloud.google.com/gke-tpu-accelerator": spec.tpu.generation.gke,
        "cloud.google.com/gke-tpu-topology": spec.tpu.shape,
    }
    if spec.spot:
        selector["cloud.google.com/gke-spot"] = "true"
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        # A spot machine has 30 seconds from the notice to its end; the run stores what is done and stops within them.
        "terminationGracePeriodSeconds": 25,
        "nodeSelector": selector,
        "containers": [container],
    }
    if not spec.mounts:
        return {"spec": pod}
    container["volumeMounts"] = [{"name": name, "mountPath": f"/mnt/{name}", "readOnly": True} for name in spec.mounts]
    pod["volumes"] = [{"name": name, "csi": _fuse(url)} for name, url in spec.mounts.items()]
    return {"metadata": {"annotations": {"gke-gcsfuse/volumes": "true"}}, "spec": pod}


def _bucket(url: str) -> tuple[str, str]:
    """Its name, and the folder inside, `.` for all of it."""
    match = _BUCKET.fullmatch(url)
    assert match is not None  # checked before
    return match[1], match[2].strip("/") or "."


def _fuse(url: str) -> dict[str, Any]:
    name, folder = _bucket(url)
    options = "implicit-dirs" + (f",only-dir={folder}" if folder != "." else "")
    attributes = {"bucketName": name, "mountOptions": options}
    return {"driver": "gcsfuse.csi.storage.gke.io", "readOnly": True, "volumeAttributes": attributes}


def _head(engine: str, spec: JobSpec, runs: Sequence[EvalConfig]) -> Iterator[str]:
    """What the file is and how it is used, line by line."""
    tpu = spec.tpu
    yield (
        f"{spec.config} in {spec.shards} shards by {spec.split}, "
        f"each on {tpu.name} (chips: {tpu.chips}, machines: {tpu.hosts})"
    )
    if folders := _not_brought(spec, runs):
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
