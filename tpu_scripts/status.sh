#!/usr/bin/env bash
# Says how a TPU is and what its jobs do.
#
#   status.sh NAME [--project P] [--zone Z]
#
# The first line is the state of the queued resource: WAITING_FOR_RESOURCES, PROVISIONING, ACTIVE, SUSPENDED (taken
# away: `resume.sh`), FAILED, or ABSENT. When it is ACTIVE, a line per worker and job follows: running, ended with an
# exit code, or died without one. Exit 1 when the TPU is not ACTIVE.
#
#   --project P, --zone Z, --env FILE
#                     as in create.sh
#   --dry-run         print the gcloud calls, make none
# shellcheck source=tpu_scripts/common.sh
. "$(dirname "$0")/common.sh"

flag() { :; }
parse "$@"

if ((DRY_RUN)); then
  run "${DESCRIBE[@]}" "$NAME" "${WHERE[@]}" '--format=value(state.state)'
else
  now=$(state)
  printf '%s %s\n' "$NAME" "$now"
  [[ $now == ACTIVE ]] || exit 1
fi
on all "$JOBS"
