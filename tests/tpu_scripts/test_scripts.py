"""Every script: its manual, its settings, what a dry run prints, and which calls it really makes."""

import os
import re
import shlex
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "tpu_scripts"
SCRIPTS = sorted(p.stem for p in FOLDER.glob("*.sh") if p.stem != "common")
WHERE = ["--project=acme-lab", "--zone=us-east5-b"]
TPUS = ["gcloud", "compute", "tpus"]
QUEUED = [*TPUS, "queued-resources"]
DESCRIBE = [*QUEUED, "describe", "a", *WHERE, "--format=value(state.state)"]

# One sound line of each script.
LINES = {
    "create": ["a", "--type", "v6e-8"],
    "delete": ["a", "--confirm", "a"],
    "launch": ["a", "--", "true"],
    "resume": ["a"],
    "setup": ["a"],
    "status": ["a"],
    "sync": ["a", "--from", "gs://acme-runs/x", "--to", "here"],
    "tail": ["a"],
}


def test_these_are_the_scripts():
    assert sorted(LINES) == SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_manual_names_every_flag(bare, script):
    done = bare(script, "--help")
    assert done.returncode == 0
    assert f"{script}.sh NAME" in done.stdout
    source = (FOLDER / f"{script}.sh").read_text()
    flags = re.findall(r"^    (--[a-z]+)\)", source, re.MULTILINE)
    for flag in [*flags, "--project", "--zone", "--env", "--dry-run"]:
        assert flag in done.stdout
    assert "shellcheck" not in done.stdout
    assert bare.calls() == []


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_dry_run_calls_nothing_and_leaves_nothing(scripts, script):
    scripts("create", *LINES["create"])
    scripts.calls()
    before = sorted(scripts.folder.rglob("*"))
    done = (
        scripts(script, *LINES[script], "--dry-run")
        if script != "launch"
        else scripts("launch", "--dry-run", "a", "--", "true")
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("gcloud ", "git "))
    assert scripts.calls() == []
    assert sorted(scripts.folder.rglob("*")) == before


@pytest.mark.parametrize("script", SCRIPTS)
def test_what_a_dry_run_prints_is_what_is_called(scripts, script):
    scripts("create", *LINES["create"])
    scripts.calls()
    words = LINES[script]
    printed = scripts(script, "--dry-run", *words).stdout
    scripts.put("states", "SUSPENDED\nACTIVE\n" if script == "resume" else "ACTIVE\n")
    assert scripts(script, *words).returncode == 0
    # bash quotes some words as $'..', which shlex cannot read; those are long scripts, compared in tests of their own.
    plain = [line for line in printed.splitlines() if "$'" not in line]
    made = scripts.calls()
    for line in plain:
        wanted = shlex.split(line)
        if wanted[0] == "gcloud" and "scp" not in wanted:
            assert wanted in made


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"TPU_PROJECT": ""}, "the project is missing"),
        ({"TPU_PROJECT": "PROJECT"}, "still the placeholder 'PROJECT'"),
        ({"TPU_PROJECT": "my-project"}, "still the placeholder"),
        ({"TPU_PROJECT": "<project>"}, "still the placeholder"),
        ({"TPU_ZONE": "ZONE"}, "the zone is still the placeholder"),
        ({"TPU_ZONE": "here"}, "the zone 'here' is not one; it looks like us-east5-b"),
    ],
)
def test_settings_that_are_missing_or_placeholders_are_refused(scripts, script, changed, said):
    done = scripts(script, *LINES[script], **changed)
    assert done.returncode == 2
    assert said in done.stderr
    assert scripts.calls() == []


@pytest.mark.parametrize(
    ("script", "words", "said"),
    [
        ("create", ["--type", "v6e-8"], "the name of the TPU is missing"),
        ("create", ["NAME", "--type", "v6e-8"], "still the placeholder"),
        ("create", ["a_b", "--type", "v6e-8"], "is not one"),
        ("create", ["a", "b", "--type", "v6e-8"], "one name only: 'a' and 'b'"),
        ("create", ["a"], "the type is missing"),
        ("create", ["a", "--type"], "--type needs a value"),
        ("create", ["a", "--type", "h100-8"], "the type 'h100-8' is not one"),
        ("create", ["a", "--tpye", "v6e-8"], "unknown flag --tpye"),
        ("launch", ["a"], "no command"),
        (
            "launch",
            ["a", "--", "noisyjax", "out=gs://BUCKET/x"],
            "the command holds a placeholder: 'out=gs://BUCKET/x'",
        ),
        ("launch", ["a", "--", "noisyjax", "out=gs://my-bucket/x"], "a placeholder: 'out=gs://my-bucket/x'"),
        ("launch", ["a", "--", "noisyjax", "bench.data=gs://YOUR_DATA"], "a placeholder: 'bench.data=gs://YOUR_DATA'"),
        (
            "launch",
            ["a", "--", "bash", "-c", "true\nnoisyjax out=gs://BUCKET\ntrue"],
            "the command holds a placeholder",
        ),
        ("launch", ["a", "--job", "x;y", "--", "true"], "the job 'x;y' is not one"),
        ("launch", ["a", "--job", "..", "--", "true"], "the job '..' is not one"),
        ("tail", ["a", "--job", "../x"], "the job '../x' is not one"),
        ("setup", ["a", "--extras", "tpu hub"], "the extras 'tpu hub'"),
        ("sync", ["a", "--to", "here"], "the place is missing"),
        ("sync", ["a", "--from", "gs://acme-runs/x", "--to", "runs/FOLDER"], "the folder is still the placeholder"),
        ("sync", ["a", "--from", "gs://YOUR_BUCKET/x", "--to", "here"], "the place is still the placeholder"),
        ("sync", ["a", "--from", "$(x)", "--to", "here"], "still the placeholder"),
        ("sync", ["a", "--from", "a;b", "--to", "here"], "is not one"),
        ("tail", ["a", "--worker", "x"], "the worker 'x'"),
        ("delete", [], "the name of the TPU is missing"),
        ("delete", ["a"], "nothing is deleted"),
        ("delete", ["a", "--confirm", "b"], "nothing is deleted: 'b' is not 'a'"),
        ("resume", ["a"], "does not say how a was created"),
        ("resume", ["a", "--watch", "0"], "the time '0' is not one"),
        ("status", ["a", "--env", "nowhere.env"], "no env file nowhere.env"),
        ("status", ["a", "--env", "bin"], "no env file bin"),
    ],
)
def test_bad_lines_get_one_readable_error(scripts, script, words, said):
    done = scripts(script, *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert scripts.calls() == []


# -- settings ------------------------------------------------------------------------------------------------------


def test_flags_win_over_the_environment_and_that_over_the_file(bare):
    bare.put("tpu.env", "# mine\n\nTPU_PROJECT=from-file\nTPU_ZONE=us-east1-c\nTPU_TYPE=v4-8\nTPU_SPOT=1")
    assert bare("create", "a", "--dry-run", TPU_ZONE="us-east2-b").stdout.split() == [
        *QUEUED, "create", "a", "--project=from-file", "--zone=us-east2-b", "--node-id=a",
        "--accelerator-type=v4-8", "--runtime-version=tpu-ubuntu2204-base", "--spot",
    ]  # fmt: skip
    done = bare("create", "a", "--zone", "us-east3-b", "--dry-run", TPU_ZONE="us-east2-b")
    assert "--zone=us-east3-b" in done.stdout.split()


def test_an_env_file_is_read_and_not_executed(scripts):
    scripts.put("mine.env", "TPU_TYPE=$(touch here)\n")
    assert scripts("create", "a", "--env", "mine.env").returncode == 2
    scripts.put("mine.env", "touch here\n")
    assert "'touch here' is not TPU_KEY=VALUE" in scripts("create", "a", "--env", "mine.env").stderr
    assert not (scripts.folder / "here").exists()
    scripts.put("mine.env", "TPU_SPOTT=1\n")
    done = scripts("create", "a", "--type", "v6e-8", "--env", "mine.env")
    assert (done.returncode, scripts.calls()) == (2, [])
    assert "mine.env: there is no TPU_SPOTT; there are TPU_PROJECT" in done.stderr


def test_an_env_file_of_any_editor_is_read(bare):
    bare.put("tpu.env", "# mine\r\n\r\nTPU_PROJECT=\"acme-lab\"\r\nTPU_ZONE='us-east5-b'  \r\nTPU_TYPE=v6e-8\r\n")
    done = bare("create", "a", "--dry-run")
    assert done.stderr == ""
    assert shlex.split(done.stdout)[6:] == [
        *WHERE, "--node-id=a", "--accelerator-type=v6e-8", "--runtime-version=v2-alpha-tpuv6e",
    ]  # fmt: skip


@pytest.mark.parametrize("value", ["true", "yes", "on"])
def test_a_wish_for_spot_that_is_not_understood_is_no_order_at_full_price(scripts, value):
    done = scripts("create", "a", "--type", "v6e-8", TPU_SPOT=value)
    assert (done.returncode, scripts.calls()) == (2, [])
    assert f"TPU_SPOT '{value}' is not one; it looks like 1 for a spot TPU" in done.stderr


def test_the_example_must_be_filled_in(bare):
    bare.put("tpu.env", (FOLDER / "tpu.env.example").read_text())
    assert "still the placeholder 'PROJECT'" in bare("create", "a").stderr


# -- setup, launch, status, tail -----------------------------------------------------------------------------------


def test_setup_sends_the_last_commit_to_all_workers(scripts):
    assert scripts("setup", "a", "--extras", "tpu,train").returncode == 0
    git, scp, ssh = scripts.calls()
    assert git[:4] == ["git", "-C", str(FOLDER.parent), "archive"]
    assert git[-1] == "HEAD"
    archive = git[-2].removeprefix("--output=")
    assert scp == [*TPUS, "tpu-vm", "scp", archive, "a:noisyjax.tar.gz", *WHERE, "--worker=all"]
    assert not Path(archive).exists()
    assert ssh[:-1] == [*TPUS, "tpu-vm", "ssh", "a", *WHERE, "--worker=all"]
    assert "-c constraints.txt -e '.[tpu,train,gcs]'" in ssh[-1]


@pytest.mark.parametrize("part", ["archive", "scp", "ssh"])
def test_a_call_that_fails_ends_the_setup(scripts, part):
    scripts.put("fail", part)
    done = scripts("setup", "a")
    assert done.returncode == 7
    assert part in scripts.calls()[-1]
    assert not scripts.remembered.exists()


AWKWARD = ["two words", "it's", 'a "b"', "$HOME", "*", "", "back\\slash", "ü;&|", "line\nbreak"]


def test_words_arrive_as_they_were_given(scripts, wait_for):
    jobs = scripts.checkout()
    assert scripts("launch", "a", "--", "printf", "%s\\0", *AWKWARD).returncode == 0
    assert wait_for(jobs / "main" / "rc") == "0\n"
    assert (jobs / "main" / "log").read_text() == "".join(f"{word}\0" for word in AWKWARD)
    (call,) = scripts.calls()
    assert call[:-1] == [*TPUS, "tpu-vm", "ssh", "a", *WHERE, "--worker=all"]


@pytest.mark.parametrize("words", [["exec", "bash", "-c", "exit 5"], ["exit", "5"]])
def test_a_command_that_takes_the_shell_leaves_an_exit_code(scripts, wait_for, words):
    jobs = scripts.checkout()
    scripts("launch", "a", "--", *words)
    assert wait_for(jobs / "main" / "rc") == "5\n"


def test_a_job_runs_in_the_checkout_and_its_end_is_told(scripts, wait_for):
    jobs = scripts.checkout()
    scripts("launch", "a", "--job", "x", "--worker", "0", "--", "bash", "-c", 'echo "$ENTERED $PWD"; exit 5')
    assert wait_for(jobs / "x" / "rc") == "5\n"
    assert (jobs / "x" / "log").read_text() == f"yes {scripts.folder}/home/noisyjax\n"
    done = scripts("status", "a")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == "a ACTIVE"
    assert done.stdout.splitlines()[1].endswith(" x ended with 5")
    assert scripts("tail", "a", "--job", "x").stdout == f"yes {scripts.folder}/home/noisyjax\n"


def test_a_running_job_is_not_started_twice(scripts, wait_for):
    jobs = scripts.checkout()
    go = scripts.folder / "go"
    wait = ["bash", "-c", f"echo started; while [ ! -e {go} ]; do sleep 0.05; done"]
    try:
        assert scripts("launch", "a", "--", *wait).returncode == 0
        wait_for(jobs / "main" / "log")
        assert " main running" in scripts("status", "a").stdout
        again = scripts("launch", "a", "--", *wait)
        assert (again.returncode, again.stderr) == (3, "job main is running already\n")
    finally:
        go.touch()
    # It has ended once its exit code is there, whether its process is reaped by then or not.
    assert wait_for(jobs / "main" / "rc") == "0\n"
    assert scripts("launch", "a", "--", *wait).returncode == 0
    wait_for(jobs / "main" / "rc")
    assert (jobs / "main" / "log").read_text() == "started\nstarted\n"


def test_a_job_that_vanished_is_said_to_have_died(scripts):
    jobs = scripts.checkout()
    (jobs / "main").mkdir(parents=True)
    for pid in (999999999, os.getpid()):  # after a reboot another process may have its number
        (jobs / "main" / "pid").write_text(f"{pid}\n")
        assert scripts("status", "a").stdout.splitlines()[1].endswith(" main died")


def test_a_job_without_an_environment_ends_and_says_why(scripts, wait_for):
    jobs = scripts.folder / "home" / "noisyjax_jobs"
    jobs.parent.mkdir()
    assert scripts("launch", "a", "--", "true").returncode == 0
    assert wait_for(jobs / "main" / "rc") == "1\n"
    assert "noisyjax" in (jobs / "main" / "log").read_text()


@pytest.mark.parametrize("state", ["WAITING_FOR_RESOURCES", "SUSPENDED", "ABSENT"])
def test_status_asks_no_worker_of_a_tpu_that_is_not_there(scripts, state):
    scripts.put("states", f"{state}\n")
    done = scripts("status", "a")
    assert (done.returncode, done.stdout) == (1, f"a {state}\n")
    assert scripts.calls() == [DESCRIBE]


def test_an_error_of_gcloud_is_shown_and_is_no_absence(scripts):
    scripts.put("fail", "describe")
    done = scripts("status", "a")
    assert done.returncode != 0
    assert "no such luck" in done.stderr
    assert "ABSENT" not in done.stdout


def test_tail_follows(scripts):
    scripts("tail", "a", "--worker", "all", "--lines", "7", "--follow")
    assert scripts.calls()[0][-2:] == ["--worker=all", "--command=tail -n 7 -F ~/noisyjax_jobs/main/log"]


# -- sync, delete, resume ------------------------------------------------------------------------------------------


def test_sync_from_a_bucket_and_from_a_worker(scripts):
    assert scripts("sync", "a", "--from", "gs://acme-runs/t", "--to", "my runs/t").returncode == 0
    assert scripts("sync", "a", "--from", "runs/t/", "--to", "there", "--worker", "2").returncode == 0
    bucket, worker = scripts.calls()
    assert bucket == [
        "gcloud",
        "storage",
        "rsync",
        "--recursive",
        "gs://acme-runs/t",
        "my runs/t",
        "--project=acme-lab",
    ]
    assert worker == [
        *TPUS, "tpu-vm", "scp", "--recurse", "--compress", "a:noisyjax/runs/t/*", "there", *WHERE, "--worker=2",
    ]  # fmt: skip
    assert (scripts.folder / "my runs" / "t").is_dir()


def test_a_folder_in_capitals_is_no_placeholder(scripts):
    assert scripts("sync", "a", "--from", "gs://acme-runs/t", "--to", "PROJECTS/TYPES").returncode == 0
    assert scripts.calls()[0][-2] == "PROJECTS/TYPES"
