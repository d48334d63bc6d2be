"""create.sh: which TPU is asked for, under which name, and how its end of the queue is waited for."""

import pytest

from noisyjax.tpu import GENERATIONS, Slice

WHERE = ["--project=acme-lab", "--zone=us-east5-b"]
QUEUED = ["gcloud", "compute", "tpus", "queued-resources"]
DESCRIBE = [*QUEUED, "describe", "a", *WHERE, "--format=value(state.state)"]


@pytest.mark.parametrize("generation", GENERATIONS.values(), ids=lambda g: g.name)
def test_types_get_the_name_and_software_of_their_generation(scripts, generation):
    tpu = Slice(generation, generation.topologies[2])
    short = f"{generation.name}-{tpu.name.rsplit('-', 1)[1]}"
    for spelling in (tpu.name, short):
        assert scripts("create", "a", "--type", spelling).returncode == 0
        assert scripts.calls() == [
            [*QUEUED, "create", "a", *WHERE, "--node-id=a", f"--accelerator-type={tpu.name}",
             f"--runtime-version={generation.runtime}"]
        ]  # fmt: skip


def test_what_google_offers_elsewhere_is_told_and_asked_for(scripts):
    assert scripts("create", "a", "--type", "v6e-8").stderr == ""
    done = scripts("create", "a", "--type", "v7x-8")
    assert done.returncode == 0
    assert "tpu7x through GKE alone (noisyjax tpu jobs --engine jobset)" in done.stderr


@pytest.mark.parametrize("generation", GENERATIONS.values(), ids=lambda g: g.name)
def test_a_size_that_no_tpu_has_gets_the_known_ones(scripts, generation):
    known = ", ".join(Slice(generation, topology).name for topology in generation.topologies)
    done = scripts("create", "a", "--type", f"{generation.name}-7")
    assert (done.returncode, scripts.calls()) == (2, [])
    assert done.stderr == f"create.sh: the type '{generation.name}-7' does not exist; known: {known}\n"


def test_cubes_are_counted_by_google_alone(scripts):
    assert "--accelerator-type=v5p-1536" in scripts("create", "a", "--type", "v5p-1536", "--dry-run").stdout
    assert "v6e-384' does not exist" in scripts("create", "a", "--type", "v6e-384", "--dry-run").stderr


def test_create_hands_on_what_it_does_not_know(scripts):
    done = scripts(
        "create",
        "a",
        "--type",
        "v6e-8",
        "--spot",
        "--until",
        "6h",
        "--runtime",
        "mine",
        "--",
        "--labels=who=me, and you",
    )
    assert done.returncode == 0
    assert scripts.calls()[0][-5:] == [
        "--accelerator-type=v6e-8", "--runtime-version=mine",
        "--spot", "--valid-until-duration=6h", "--labels=who=me, and you",
    ]  # fmt: skip


@pytest.mark.parametrize(("last", "code"), [("ACTIVE", 0), ("FAILED", 1), ("SUSPENDED", 1)])
def test_create_waits_for_the_end_of_the_queue(scripts, last, code):
    scripts.put("states", f"WAITING_FOR_RESOURCES\nPROVISIONING\n{last}\n")
    done = scripts("create", "a", "--type", "v6e-8", "--wait")
    assert done.returncode == code
    assert scripts.calls()[1:] == [DESCRIBE] * 3
    assert f"a {last}" in done.stderr


def test_a_refused_request_is_not_remembered(scripts):
    scripts.put("fail", "queued-resources create")
    assert scripts("create", "a", "--type", "v6e-8", "--wait").returncode == 7
    assert len(scripts.calls()) == 1
    assert not scripts.remembered.exists()
