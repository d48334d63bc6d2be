"""What is remembered of a TPU: deleted with it, and asked for again as it was when it is taken away."""

import fcntl
import os

import pytest

WHERE = ["--project=acme-lab", "--zone=us-east5-b"]
QUEUED = ["gcloud", "compute", "tpus", "queued-resources"]
DESCRIBE = [*QUEUED, "describe", "a", *WHERE, "--format=value(state.state)"]


@pytest.fixture
def working(scripts):
    """A TPU that was created, set up and given two jobs; the calls that this took."""
    scripts("create", "a", "--type", "v6e-8", "--spot", "--", "--labels=who=me, and you")
    scripts("setup", "a", "--extras", "tpu")
    scripts("launch", "a", "--job", "one", "--", "noisyjax", "eval", "two words")
    scripts("launch", "a", "--job", "two", "--worker", "0", "--", "true")
    return scripts, scripts.calls()


def same(made: list[str], first: list[str]) -> bool:
    """Equal but for the archive's temporary folder."""
    keep = [i for i, word in enumerate(first) if "noisyjax.tar.gz" not in word]
    return len(made) == len(first) and [made[i] for i in keep] == [first[i] for i in keep]


def test_delete_forgets_the_tpu(scripts):
    scripts("create", "a", "--type", "v6e-8")
    assert (scripts.remembered / "create").exists()
    assert scripts("delete", "a", "--confirm", "a").returncode == 0
    assert scripts.calls()[-1] == [*QUEUED, "delete", "a", *WHERE, "--force", "--quiet"]
    assert not scripts.remembered.exists()


@pytest.mark.parametrize(("state", "code"), [("ABSENT", 0), ("ACTIVE", 1)])
def test_what_is_gone_already_is_forgotten_and_nothing_else(scripts, state, code):
    scripts("create", "a", "--type", "v6e-8")
    scripts.put("fail", "queued-resources delete")
    scripts.put("states", f"{state}\n")
    done = scripts("delete", "a", "--confirm", "a")
    assert done.returncode == code
    assert scripts.remembered.exists() == bool(code)
    assert ("a is not deleted" in done.stderr) == bool(code)


def test_watching_ends_with_what_is_watched(working):
    scripts, _ = working
    (scripts.folder / "bin" / "sleep").write_text(f"#!/bin/sh\nrm -r {scripts.remembered}\n")
    (scripts.folder / "bin" / "sleep").chmod(0o755)
    done = scripts("resume", "a", "--watch", "1")
    assert done.returncode == 2
    assert "does not say how a was created" in done.stderr


def test_a_new_tpu_is_not_given_the_jobs_of_an_old_one(working):
    """It was deleted by other means than delete.sh, and its name was taken again."""
    scripts, _ = working
    scripts("create", "a", "--type", "v6e-8")
    assert [path.name for path in scripts.remembered.rglob("*")] == ["create"]


def test_nothing_is_deleted_for_a_record_that_is_empty(working):
    scripts, _ = working
    (scripts.remembered / "create").write_text("")  # of a disk that was full
    scripts.put("states", "SUSPENDED\n")
    done = scripts("resume", "a")
    assert (done.returncode, scripts.calls()) == (2, [])
    assert "does not say how a was created" in done.stderr


def test_a_record_is_replaced_whole_or_not_at_all(working):
    """Of a command that was cut short a part would be run at the next start."""
    scripts, _ = working
    record = scripts.remembered / "jobs" / "one"
    before = record.read_bytes()
    (scripts.folder / "bin" / "mv").write_text("#!/bin/sh\nexit 1\n")
    (scripts.folder / "bin" / "mv").chmod(0o755)
    assert scripts("launch", "a", "--job", "one", "--", "noisyjax", "report").returncode == 1
    assert record.read_bytes() == before
    assert sorted(path.name for path in record.parent.iterdir()) == ["one", "two"]


def test_two_do_not_look_at_once(working):
    """Both would find the TPU gone, and one delete what the other has asked for again."""
    scripts, _ = working
    scripts.put("states", "SUSPENDED\n")
    with (scripts.remembered / "create").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = scripts("resume", "a")
    assert (done.returncode, scripts.calls()) == (1, [])
    assert done.stderr == "resume.sh: another resume.sh is at work on a\n"


@pytest.mark.parametrize("place", [["--zone", "us-east5-c"], ["--project", "acme-lab2"]])
def test_a_tpu_is_not_looked_for_where_it_was_not_created(working, place):
    """It is not there, and would be asked for anew."""
    scripts, _ = working
    scripts.put("states", "ABSENT\n")
    done = scripts("resume", "a", *place)
    assert (done.returncode, scripts.calls()) == (2, [])
    assert f"a was not created with --project={place[1] if place[0] == '--project' else 'acme-lab'}" in done.stderr


@pytest.mark.parametrize("state", ["SUSPENDED", "FAILED", "ABSENT"])
def test_what_was_taken_away_comes_back_as_it_was(working, state):
    scripts, first = working
    scripts.put("states", f"{state}\nPROVISIONING\nACTIVE\n")
    assert scripts("resume", "a").returncode == 0
    made = scripts.calls()
    assert made.pop(0) == DESCRIBE
    if state != "ABSENT":
        assert made.pop(0) == [*QUEUED, "delete", "a", *WHERE, "--force", "--quiet"]
    assert made.pop(0) == first[0]
    assert [made.pop(0), made.pop(0)] == [DESCRIBE] * 2
    assert len(made) == len(first) - 1
    assert all(map(same, made, first[1:]))


@pytest.mark.parametrize("state", ["PROVISIONING", "SUSPENDING"])
def test_what_is_on_its_way_is_waited_for(working, state):
    scripts, _ = working
    scripts.put("states", f"{state}\n")
    assert scripts("resume", "a").returncode == 0
    assert scripts.calls() == [DESCRIBE]


def ended(scripts, **jobs: int | None) -> None:
    """Lets a worker's disk say how jobs ended: with a code, or (None) without one."""
    for name, code in jobs.items():
        folder = scripts.folder / "home" / "noisyjax_jobs" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pid").write_text(f"{os.getpid()}\n")  # lives, and is none of the scripts'
        (folder / "rc").write_text("" if code is None else f"{code}\n")


def launched(scripts) -> list[str]:
    """The jobs that a worker was told to start since the last time."""
    text = [call[-1] for call in scripts.calls()]
    return [word.split("\n")[1].rsplit("/", 1)[1] for word in text if word.startswith("--command=set -eu")]


@pytest.mark.parametrize(
    ("one", "two", "again", "code", "said"),
    [
        (None, 0, ["one"], 0, "one is started again; died;"),
        (1, 143, ["one", "two"], 0, "two is started again; ended with 143;"),
        (2, 1, ["two"], 0, "one ended with 2, a wrong request, and is left: tail.sh a --job one says why"),
        (2, 0, [], 2, "no job left that runs: delete.sh a ends its cost"),
        (0, 0, [], 4, "no job left that runs: delete.sh a ends its cost"),
    ],
)
def test_the_end_of_a_job_decides_whether_it_is_started_again(working, one, two, again, code, said):
    scripts, _ = working
    ended(scripts, one=one, two=two)
    done = scripts("resume", "a")
    assert (done.returncode, launched(scripts)) == (code, again)
    assert said in done.stderr
    # With --watch it is looked at until nothing is left; a real `sleep` would be a second.
    if code:
        assert scripts("resume", "a", "--watch", "1").returncode == code % 4


def test_a_job_that_died_runs_once_more(scripts, wait_for):
    job = scripts.checkout() / "main"
    scripts("create", "a", "--type", "v6e-8")
    scripts("launch", "a", "--", "echo", "two words")
    wait_for(job / "rc")
    (job / "rc").unlink()  # as after a reboot
    assert scripts("resume", "a").returncode == 0
    assert wait_for(job / "rc") == "0\n"
    assert scripts("resume", "a").returncode == 4
    assert (job / "log").read_text() == "two words\n" * 2


@pytest.mark.parametrize(
    ("here", "there", "again"),
    [
        (0, "running", []),
        (1, "running", []),
        (0, "died", ["one"]),
        (0, "ended with 1", ["one"]),
        (1, "ended with 2", []),
    ],
)
def test_a_pods_job_is_started_on_all_workers_or_on_none(working, here, there, again):
    scripts, _ = working
    ended(scripts, one=here, two=0)
    scripts.put("jobs", f"worker-2 one {there}\n")
    assert scripts("resume", "a").returncode == (2 if "2" in there else 0)
    assert launched(scripts) == again


def test_a_tpu_that_came_back_and_was_not_set_up_is(working):
    """The look before ended between the two; now the TPU is there, and its disks know of no job."""
    scripts, first = working
    assert scripts("resume", "a").returncode == 0
    made = scripts.calls()
    assert made.pop(0) == DESCRIBE
    assert made.pop(0)[-1].startswith("--command=for dir in")
    assert len(made) == len(first) - 1
    assert all(map(same, made, first[1:]))


@pytest.mark.parametrize(
    ("fail", "last", "code"),
    [
        ("queued-resources delete", "delete", 7),
        ("queued-resources create", "create", 7),
        ("tpu-vm scp", "scp", 1),
        ("tpu-vm ssh", "ssh", 1),
    ],
)
def test_a_call_that_fails_ends_the_resume(working, fail, last, code):
    scripts, _ = working
    scripts.put("states", "SUSPENDED\nACTIVE\n")
    scripts.put("fail", fail)
    assert scripts("resume", "a").returncode == code
    assert last in scripts.calls()[-1]
