"""A sweep as a Kubernetes JobSet on GKE."""

from typing import Any

from noisyjax.errors import UsageError
from noisyjax.tpu.jobs.spec import RESTARTS, JobSpec, bucket_and_folder, command


def jobset(spec: JobSpec) -> dict[str, Any]:
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


def _fuse(url: str) -> dict[str, Any]:
    name, folder = bucket_and_folder(url)
    options = "implicit-dirs" + (f",only-dir={folder}" if folder != "." else "")
    attributes = {"bucketName": name, "mountOptions": options}
    return {"driver": "gcsfuse.csi.storage.gke.io", "readOnly": True, "volumeAttributes": attributes}
