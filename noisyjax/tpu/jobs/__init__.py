"""A sweep as a job file for an engine that runs many machines: SkyPilot managed jobs, or a Kubernetes JobSet.

Each engine starts `shards` machines (or slices), restarts what is pre-empted and gives every one its index; the index
is the run's shard, and the store makes a restarted shard go on where it stopped. Nothing here starts anything.
"""

from noisyjax.tpu.jobs.file import job_file, write_job_file
from noisyjax.tpu.jobs.spec import JobSpec, read_mounts

__all__ = ["JobSpec", "job_file", "read_mounts", "write_job_file"]
