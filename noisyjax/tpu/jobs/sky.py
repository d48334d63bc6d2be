"""A sweep as a task of SkyPilot's managed jobs."""

from typing import Any

from noisyjax.tpu.jobs.spec import RESTARTS, JobSpec, bucket_and_folder, command

# Newer images keep pip from their own Python unless it is told twice.
_SETUP = """\
set -e
PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --quiet --user uv
python3 -m uv venv --quiet --allow-existing --python 3.13 .venv
python3 -m uv pip install --quiet -p .venv/bin/python -c constraints.txt -e '.[tpu,hub,gcs]'
"""


def sky(spec: JobSpec) -> dict[str, Any]:
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
        f"~/mounts/{n}": {"source": f"gs://{bucket_and_folder(url)[0]}", "mode": "MOUNT"}
        for n, url in spec.mounts.items()
    }
    links = "".join(f"ln -sfnT ~/mounts/{n}/{bucket_and_folder(u)[1]} {n}\n" for n, u in spec.mounts.items())
    mounts = {"file_mounts": buckets} if buckets else {}
    run = f". .venv/bin/activate\nexec {command(spec, '"$SHARD"')}\n"
    task = {"name": spec.name, "workdir": ".", "resources": resources, **mounts, **envs}
    return task | {"setup": _SETUP + links, "run": run}
