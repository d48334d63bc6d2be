"""What is remembered of a TPU: deleted with it, and asked for again as it was when it is taken away."""

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
    """Equal but for the archive's temporary folder and `--again`, which changes a launch's script."""
    keep = [
        i for i, word in enumerate(first) if "noisyjax.tar.gz" not in word and not word.startswith("--command=set -eu")
    ]
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


@pytest.mark.parametrize(("state", "calls"), [("ACTIVE", 3), ("PROVISIONING", 1), ("SUSPENDING", 1)])
def test_what_is_alive_is_never_deleted(working, state, calls):
    scripts, _ = working
    scripts.put("states", f"{state}\n")
    assert scripts("resume", "a").returncode == 0
    made = scripts.calls()
    assert len(made) == calls
    assert not [call for call in made if "delete" in call or "create" in call]


@pytest.mark.parametrize(
    ("fail", "last"),
    [("queued-resources delete", "delete"), ("queued-resources create", "create"), ("tpu-vm scp", "scp")],
)
def test_a_call_that_fails_ends_the_resume(working, fail, last):
    scripts, _ = working
    scripts.put("states", "SUSPENDED\nACTIVE\n")
    scripts.put("fail", fail)
    assert scripts("resume", "a").returncode == 7
    assert last in scripts.calls()[-1]
