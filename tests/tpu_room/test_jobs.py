"""Job files: deterministic, valid by the schema of their engine, and with commands that a shell reads as meant.

The two schemas beside this file hold the fields that job files use and no others. The files of `CASES`, and one that
hands over a key, were also held once against the engines' own: the task and resources schemas of skypilot 0.14.1, the
pod, Job and metadata models of kubernetes 37.0.2, and JobSet's API as of release 0.12.
"""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml
from jax._src.clusters.cloud_tpu_cluster import GkeTpuCluster

from noisyjax.cli import main
from noisyjax.errors import UsageError
from noisyjax.evaluate import load_runs
from noisyjax.tpu.jobs import JobSpec, job_file, read_mounts, write_job_file

SCHEMAS = Path(__file__).parent
SOUND = {"bucket": "gs://acme-runs/sweeps", "image": "europe-docker.pkg.dev/acme/noisyjax:1"}


def spec(**changes) -> JobSpec:
    return JobSpec(**{"config": "sweeps/table2", "overrides": ("bench.data=hub",), **SOUND, **changes})


def schema(engine: str) -> dict:
    return json.loads((SCHEMAS / f"{engine}.schema.json").read_text())


CASES = [
    {},
    {"shards": 7, "split": "runs", "accelerator": "v5p-32"},
    {"shards": 4, "spot": True, "accelerator": "v5e-16", "mounts": {"weights": "gs://acme-w/a", "data": "gs://acme-d"}},
]


@pytest.fixture(autouse=True)
def checkout(monkeypatch):
    """Where the command is called, since the folder is sent."""
    monkeypatch.chdir(SCHEMAS.parents[1])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("engine", ["sky", "jobset"])
def test_files_are_valid_and_the_same_every_time(engine, case):
    text = job_file(engine, spec(**case))
    assert text == job_file(engine, spec(**case))
    jsonschema.validate(yaml.safe_load(text), schema(engine))


@pytest.mark.parametrize("engine", ["sky", "jobset"])
def test_the_schema_would_find_a_wrong_key(engine):
    made = yaml.safe_load(job_file(engine, spec()))
    for wrong in (made | {"rum": "x"}, {k: v for k, v in made.items() if k not in ("run", "spec")}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema(engine))


def test_a_sky_file():
    made = yaml.safe_load(job_file("sky", spec(**CASES[2])))
    assert made["name"] == "noisyjax-table2"
    assert made["resources"]["accelerators"] == "tpu-v5litepod-16"
    assert made["resources"]["accelerator_args"]["runtime_version"] == "v2-alpha-tpuv5-lite"
    assert made["resources"]["use_spot"] is True
    assert made["file_mounts"] == {
        "~/mounts/weights": {"source": "gs://acme-w", "mode": "MOUNT"},
        "~/mounts/data": {"source": "gs://acme-d", "mode": "MOUNT"},
    }
    assert "ln -sfnT ~/mounts/weights/a weights\nln -sfnT ~/mounts/data/. data\n" in made["setup"]


def test_a_jobset():
    made = yaml.safe_load(job_file("jobset", spec(**CASES[2])))
    (replicated,) = made["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    pod = job["template"]["spec"]
    assert replicated["replicas"] == 4
    assert (job["parallelism"], job["completions"]) == (4, 4)  # the hosts of a v5litepod-16
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x4",
        "cloud.google.com/gke-spot": "true",
    }
    assert pod["containers"][0]["resources"] == {"limits": {"google.com/tpu": 4}}
    attributes = {v["name"]: v["csi"]["volumeAttributes"] for v in pod["volumes"]}
    assert attributes["weights"] == {"bucketName": "acme-w", "mountOptions": "implicit-dirs,only-dir=a"}
    assert attributes["data"] == {"bucketName": "acme-d", "mountOptions": "implicit-dirs"}


def job_of(made: dict) -> dict:
    (replicated,) = made["spec"]["replicatedJobs"]
    return replicated["template"]["spec"]


def test_what_is_started_again_and_how_often():
    made = yaml.safe_load(job_file("jobset", spec(**CASES[2])))
    job = job_of(made)
    wrong, taken = job["podFailurePolicy"]["rules"]  # the first that fits holds
    name = job["template"]["spec"]["containers"][0]["name"]
    assert wrong["action"] == "FailJob"
    assert wrong["onExitCodes"] == {"containerName": name, "operator": "In", "values": [UsageError.exit_code]}
    assert taken == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    assert job["backoffLimit"] == 3 * 4  # each host of a slice ends with the first that fails
    assert job["template"]["spec"]["restartPolicy"] == "Never"  # Kubernetes takes a podFailurePolicy with no other
    assert "failurePolicy" not in made["spec"]  # a Job that has failed ends the set
    sky = yaml.safe_load(job_file("sky", spec(shards=4)))
    assert sky["resources"]["job_recovery"] == {"max_restarts_on_errors": 3}


def called(engine: str, made: dict, index: int, folder: Path, does: str) -> str:
    """What `noisyjax`, a script that `does` something, prints on the machine that has this index, from 0."""
    (folder / ".venv" / "bin").mkdir(parents=True, exist_ok=True)
    (folder / ".venv" / "bin" / "activate").write_text("")
    (folder / "noisyjax").write_text(f"#!/bin/sh\n{does}\n")
    (folder / "noisyjax").chmod(0o755)
    env = {"PATH": f"{folder}:/usr/bin:/bin"}
    if engine == "sky":
        text, env["SHARD"] = made["run"], str(index + 1)
    else:
        *shell, text = job_of(made)["template"]["spec"]["containers"][0]["command"]
        assert shell == ["bash", "-c"]
        env["SHARD_INDEX"] = str(index)
        # As GKE sets them for a JobSet of four slices.
        env |= {"MEGASCALE_NUM_SLICES": "4", "MEGASCALE_SLICE_ID": str(index)}
        env |= {"MEGASCALE_COORDINATOR_ADDRESS": "s-0-0.s", "TPU_WORKER_HOSTNAMES": f"s-{index}-0.s,s-{index}-1.s"}
        # What Kubernetes makes of it: https://kubernetes.io/docs/tasks/inject-data-application
        text = re.sub(r"\$\$|\$\((\w+)\)", lambda found: "$" if not found[1] else env.get(found[1], found[0]), text)
    return subprocess.run(["bash", "-c", text], cwd=folder, env=env, capture_output=True, text=True, check=True).stdout


def words_of(engine: str, made: dict, index: int, folder: Path) -> list[str]:
    return called(engine, made, index, folder, "printf '%s\\0' \"$@\"").split("\0")[:-1]


@pytest.mark.parametrize("engine", ["sky", "jobset"])
@pytest.mark.parametrize("split", ["questions", "runs"])
def test_every_machine_takes_its_share(engine, split, tmp_path):
    words = ("bench.data=hub", 'sampling.stop=["a b", "$HOME", "$$", "$(SHARD_INDEX)", "`id`", "it\'s\\n"]')
    made = yaml.safe_load(job_file(engine, spec(overrides=words, shards=4, split=split)))
    called = words_of(engine, made, 2, tmp_path)
    assert called == [
        "eval", "sweeps/table2", *words, "out=gs://acme-runs/sweeps/table2", "--no-table",
        "--shard", "3/4", "--split", split,
    ]  # fmt: skip
    runs = load_runs(called[1], called[2:5], called[-3], called[-1])
    assert {r.shard for r in runs} == {"3/4" if split == "questions" else None}
    assert len(runs) == (25 if split == "questions" else 6)
    assert all(r.out.startswith("gs://acme-runs/sweeps/table2/") for r in runs)


def test_shards_of_several_hosts_are_runs_of_their_own(tmp_path, monkeypatch):
    """GKE sets what makes one run of all slices of a JobSet; jax must count the hosts of the shard alone."""
    made = yaml.safe_load(job_file("jobset", spec(shards=4, accelerator="v6e-16")))
    for line in called("jobset", made, 2, tmp_path, "env").splitlines():
        name, _, value = line.partition("=")
        if name.startswith(("MEGASCALE_", "TPU_")):
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("TPU_WORKER_ID", "1")
    monkeypatch.setattr(GkeTpuCluster, "wait_for_coordinator", lambda *_: None)
    assert GkeTpuCluster.get_process_count() == 2  # not 8
    assert GkeTpuCluster.get_process_id() == 1
    assert GkeTpuCluster.get_coordinator_address(1, None) == "s-2-0.s:8482"


@pytest.mark.parametrize("engine", ["sky", "jobset"])
def test_keys_are_handed_over_by_name(engine, monkeypatch):
    monkeypatch.setenv("GEMINI_API_KEY", "s3cret")
    words = ("skip=[{model: DeepSeek-R1-0528}]",)
    text = job_file(engine, spec(config="sweeps/table1", overrides=words, env=("GEMINI_API_KEY",)))
    made = yaml.safe_load(text)
    jsonschema.validate(made, schema(engine))
    assert "s3cret" not in text
    if engine == "sky":
        assert made["secrets"] == {"GEMINI_API_KEY": None}
        assert "# sky jobs launch --yes --secret GEMINI_API_KEY FILE\n" in text
    else:
        reference = {"secretKeyRef": {"name": "noisyjax-table1", "key": "GEMINI_API_KEY"}}
        env = job_of(made)["template"]["spec"]["containers"][0]["env"]
        assert env[1] == {"name": "GEMINI_API_KEY", "valueFrom": reference}
        line = 'kubectl create secret generic noisyjax-table1 --from-literal=GEMINI_API_KEY="$GEMINI_API_KEY"'
        assert f"# {line}\n" in text


def test_runs_that_cannot_work_there_are_told_together():
    with pytest.raises(UsageError) as caught:
        job_file("jobset", spec(config="sweeps/table1", accelerator="v6e-1"))
    told = str(caught.value).splitlines()
    assert "leave them out with skip" in told[0]
    assert [line.strip() for line in told[1:]] == [
        "Gemini-2.5-Pro: engine reads its key from GEMINI_API_KEY: say --env GEMINI_API_KEY",
        "Gemini-2.5-Flash: engine reads its key from GEMINI_API_KEY: say --env GEMINI_API_KEY",
        "DeepSeek-R1-0528: engine.base_url=http://localhost:8000/v1 is each machine's own: name an endpoint that all "
        "of them reach",
        "gpt-oss-120b: engine.mesh takes 4 devices; a machine of v6e-1 has 1",
        "DeepSeek-R1-Distill-Llama-8B: engine.mesh takes 2 devices; a machine of v6e-1 has 1",
        "Qwen3-30B-A3B-Thinking-2507: engine.mesh takes 4 devices; a machine of v6e-1 has 1",
    ]


def test_a_judge_needs_its_key_too():
    judge = "judge={engine: {kind: remote, base_url: https://api.acme.com/v1, model: j, api_key_env: ACME_KEY}}"
    with pytest.raises(UsageError, match=r"Qwen3-4B/none/on: judge\.engine reads its key from ACME_KEY"):
        job_file("sky", spec(overrides=(judge,)))
    assert job_file("sky", spec(overrides=(judge,), env=("ACME_KEY",)))


def test_folders_that_nothing_brings_are_told():
    lines = job_file("jobset", spec(overrides=("bench.data=data/all",))).splitlines()
    assert lines[1] == "# data, weights: read, and brought by no --mount, so it must be in the image"
    text = job_file("sky", spec(mounts={"weights": "gs://acme-w"}))
    assert "--mount" not in text


def test_one_machine_takes_all(tmp_path):
    made = yaml.safe_load(job_file("sky", spec()))
    assert words_of("sky", made, 0, tmp_path)[-1] == "--no-table"
    assert "envs" not in made


@pytest.mark.parametrize(
    ("engine", "changes", "said"),
    [
        ("skyy", {}, "no engine 'skyy'; did you mean 'sky'?"),
        ("sky", {"bucket": "s3://acme"}, "a bucket is gs://NAME"),
        ("sky", {"bucket": "runs/x"}, "got 'runs/x'"),
        ("sky", {"bucket": ""}, "got ''"),
        ("sky", {"bucket": "gs://BUCKET/x"}, "got 'gs://BUCKET/x'"),
        ("sky", {"bucket": "gs://my-bucket/x"}, "'my-' in 'gs://my-bucket/x' looks like a placeholder"),
        ("jobset", {"image": ""}, "name one that holds noisyjax with --image"),
        ("jobset", {"image": "gcr.io/PROJECT/noisyjax"}, "--image: 'PROJECT'"),
        ("sky", {"overrides": ("bench.data=<dir>",)}, "looks like a placeholder"),
        ("sky", {"overrides": ("out=gs://x/y",)}, "`out` and `shard` are the job's own"),
        ("sky", {"overrides": ("bench.dataa=hub",)}, "did you mean 'data'?"),
        ("sky", {"config": "sweeps/tabel2"}, "did you mean 'sweeps/table2'?"),
        ("sky", {"config": "/home/me/sweep.yaml"}, "must be a relative path"),
        ("sky", {"config": "../sweep.yaml"}, "must be a relative path"),
        ("sky", {"shards": 26, "split": "runs"}, "26 shards of 25 runs"),
        ("sky", {"shards": 0}, "shards is at least 1"),
        ("sky", {"split": "run"}, "did you mean 'runs'?"),
        ("sky", {"accelerator": "tpu7x-8"}, "use --engine jobset"),
        ("sky", {"mounts": {"a/b": "gs://acme-w"}}, "a mount is NAME=gs://"),
        ("jobset", {"mounts": {"my_data": "gs://acme-w"}}, "got 'my_data=gs://acme-w'"),
        ("jobset", {"mounts": {"-x": "gs://acme-w"}}, "got '-x=gs://acme-w'"),
        ("sky", {"mounts": {"noisyjax": "gs://acme-w"}}, "none of configs, models, noisyjax"),
        ("sky", {"mounts": {"out": "gs://acme-w"}, "bucket": "x"}, "got 'x'"),
        ("jobset", {"image": "gcr.io/acme/a b"}, "--image 'gcr.io/acme/a b' is none"),
        ("sky", {"env": ("ACME_KEY=s3cret",)}, "--env takes the name of an environment variable"),
        ("sky", {"env": ("SHARD",)}, "--env SHARD is the job's own"),
        ("jobset", {"env": ("SHARD_INDEX",)}, "--env SHARD_INDEX is the job's own"),
        ("jobset", {"env": ("ACME_KEY", "ACME_KEY")}, "--env ACME_KEY is given twice"),
        ("sky", {"bucket": "gs://acme-runs/\x1b[31m"}, "a bucket is gs://NAME"),
        ("sky", {"bucket": "gs://acme-runs/../x"}, "got 'gs://acme-runs/../x'"),
        ("jobset", {"mounts": {"weights": "gs://acme-w/x,allow_other"}}, "got 'gs://acme-w/x,allow_other'"),
        ("sky", {"config": "a\nb.yaml"}, "in printable characters"),
        ("sky", {"mounts": {"weights": "w"}}, "a bucket is gs://NAME"),
    ],
)
def test_bad_input_gets_one_readable_error(engine, changes, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        job_file(engine, spec(**changes))


def test_a_topology_that_does_not_exist_gets_the_known_ones():
    with pytest.raises(UsageError, match=r"'v6e-12' does not exist; known: v6e-1 \(1x1\), .*v6e-16 \(4x4\)"):
        spec(accelerator="v6e-12")


def test_mounts_are_told_apart():
    assert read_mounts(["w=gs://a/b=c", "d=gs://e"]) == {"w": "gs://a/b=c", "d": "gs://e"}
    with pytest.raises(UsageError, match="got 'weights'"):
        read_mounts(["weights"])
    with pytest.raises(UsageError, match="--mount w is given twice: gs://a and gs://b"):
        read_mounts(["w=gs://a", "w=gs://b"])


def test_a_folder_that_is_sent_is_not_taken_for_a_mount(tmp_path):
    """A link would be put inside of it, and what lies in the bucket not be found."""
    (tmp_path / "data").mkdir()
    links = re.findall(r"^ln .*", yaml.safe_load(job_file("sky", spec(mounts={"data": "gs://acme-d"})))["setup"], re.M)
    assert subprocess.run(["bash", "-c", "\n".join(links)], cwd=tmp_path, capture_output=True).returncode != 0
    assert not list((tmp_path / "data").iterdir())


def test_a_file_may_be_a_pipe(tmp_path):
    """As /dev/stdout is: nothing can be read from it, and no file put in its place."""
    text, pipe = job_file("sky", spec()), tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_job_file(pipe, text)
        assert os.read(reader, len(text)) == text.encode()
    finally:
        os.close(reader)


def test_what_is_no_checkout_is_not_sent(tmp_path, monkeypatch):
    """The machine would find nothing to install; an image has it all."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").touch()  # of another project
    with pytest.raises(UsageError, match=r"no checkout of noisyjax \(no constraints\.txt, noisyjax/__init__\.py\)"):
        job_file("sky", spec())
    assert job_file("jobset", spec())


def test_a_config_of_two_words_can_be_reported_as_the_head_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two words.yaml").write_text("extends: sweeps/quickstart\nengine: {model: m}\n")
    text = job_file("jobset", spec(config="two words.yaml", overrides=()))
    head = [line for line in text.splitlines() if line.startswith("#")]
    assert shlex.split(head[-1][2:]) == ["noisyjax", "report", "gs://acme-runs/sweeps/two words"]


def test_a_file_is_written_over_its_like_alone(tmp_path, capsys):
    line = ["tpu", "jobs", "sweeps/model_size", "--engine", "sky", "--bucket", "gs://acme-runs", "--out"]

    def written(path: Path, *more: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main([*line, str(path), *more])
        return ended.value.code

    sweep, job = tmp_path / "sweep.yaml", tmp_path / "new" / "job.yaml"
    sweep.write_text("# mine\nextends: sweeps/table1\n")
    assert written(sweep) == 2
    assert "is there and is no job file" in capsys.readouterr().err
    assert sweep.read_text() == "# mine\nextends: sweeps/table1\n"
    assert (written(job), written(job, "--spot")) == (0, 0)
    assert yaml.safe_load(job.read_text())["resources"]["use_spot"] is True
    assert written(tmp_path) == 2
    (tmp_path / "file").touch()
    assert written(tmp_path / "file" / "job.yaml") == 1
    assert "could not write" in capsys.readouterr().err


def test_the_command_writes_the_file(tmp_path, capsys):
    line = "tpu jobs sweeps/model_size --engine jobset --bucket gs://acme-runs --image a/b --env A --env B"
    out = tmp_path / "job.yaml"
    for words in (shlex.split(line), [*shlex.split(line), "--out", str(out)]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
    printed, said = capsys.readouterr().out.rsplit("wrote ", 1)
    assert out.read_text() == printed
    assert said == f"{out}\n"
    assert printed.startswith("# sweeps/model_size in 1 shard by questions, each on v6e-8 (chips: 8, machines: 1)\n")
    (container,) = job_of(yaml.safe_load(printed))["template"]["spec"]["containers"]
    assert [variable["name"] for variable in container["env"]] == ["SHARD_INDEX", "A", "B"]
