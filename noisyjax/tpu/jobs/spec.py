"""What a job file is made from, and whether it can work."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from noisyjax.engine.config import LocalConfig
from noisyjax.engine.remote import RemoteConfig
from noisyjax.errors import UsageError, nearest
from noisyjax.evaluate import EvalConfig, load_runs
from noisyjax.evaluate.sweep import SPLITS
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


def command(spec: JobSpec, index: str) -> str:
    """The shell line of one shard. `index` is the shell's own expression for its number, from 1."""
    line = shlex.join(["noisyjax", "eval", spec.config, *spec.overrides, f"out={spec.out}", "--no-table"])
    return line if spec.shards == 1 else f"{line} --shard {index}/{spec.shards} --split {spec.split}"


def bucket_and_folder(url: str) -> tuple[str, str]:
    """Its name, and the folder inside, `.` for all of it."""
    match = _BUCKET.fullmatch(url)
    assert match is not None  # checked before
    return match[1], match[2].strip("/") or "."


def check(engine: str, spec: JobSpec) -> Sequence[EvalConfig]:
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


def not_brought(spec: JobSpec, runs: Sequence[EvalConfig]) -> list[str]:
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
