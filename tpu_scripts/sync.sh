#!/usr/bin/env bash
# Brings results to this machine: from a bucket, or from a worker's disk.
#
#   sync.sh NAME --from gs://acme-runs/table1 --to runs/table1
#   sync.sh NAME --from runs/table1 --to runs/table1 [--worker 0]
#
# From a bucket only what is new or changed is copied, and nothing is deleted here. A folder on a worker is meant from
# the checkout there (~/noisyjax). A run whose `out` is a bucket needs no copying before `delete.sh`.
#
#   --from PLACE      gs://BUCKET/FOLDER, or a folder on the worker
#   --to FOLDER       a folder here; made if it is not there
#   --worker W        whose disk; 0 by default
#   --project P, --zone Z, --env FILE
#                     as in create.sh
#   --dry-run         print the gcloud call, make none
# shellcheck source=tpu_scripts/common.sh
. "$(dirname "$0")/common.sh"

FROM="" TO="" WORKER=0
flag() {
  case "$1" in
    --from) FROM=${2-} TAKEN=2 ;;
    --to) TO=${2-} TAKEN=2 ;;
    --worker) WORKER=${2-} TAKEN=2 ;;
  esac
}
parse "$@"
check "the place" "$FROM" '(gs://)?[A-Za-z0-9][A-Za-z0-9._/-]*' "gs://acme-runs/table1 or runs/table1 (--from)"
check "the folder" "$TO" '.+' "runs/table1 (--to)"
check "the worker" "$WORKER" '[0-9]+' "0 (--worker)"
((DRY_RUN)) || mkdir -p "$TO"
if [[ $FROM == gs://* ]]; then
  run gcloud storage rsync --recursive "$FROM" "$TO" "--project=$TPU_PROJECT"
else
  # The contents, so that a second call does not make a folder inside the folder.
  run gcloud compute tpus tpu-vm scp --recurse --compress "$NAME:noisyjax/${FROM%/}/*" "$TO" "${WHERE[@]}" "--worker=$WORKER"
fi
