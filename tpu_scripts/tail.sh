#!/usr/bin/env bash
# Shows the end of a job's output.
#
#   tail.sh NAME [--job JOB] [--worker 0] [--lines 50] [--follow]
#
#   --job JOB         as given to launch.sh; `main` by default
#   --worker W        a worker's number (0 by default: it is the one that reports), or `all`
#   --lines N         how many lines; 50 by default
#   --follow          go on with what is written next, until Ctrl-C; the job does not notice
#   --project P, --zone Z, --env FILE
#                     as in create.sh
#   --dry-run         print the gcloud call, make none
# shellcheck source=tpu_scripts/common.sh
. "$(dirname "$0")/common.sh"

JOB=main WORKER=0 LINES_SHOWN=50 FOLLOW=""
flag() {
  case "$1" in
    --job) JOB=${2-} TAKEN=2 ;;
    --worker) WORKER=${2-} TAKEN=2 ;;
    --lines) LINES_SHOWN=${2-} TAKEN=2 ;;
    --follow) FOLLOW=" -F" TAKEN=1 ;;
  esac
}
parse "$@"
check "the job" "$JOB" '[A-Za-z0-9_][A-Za-z0-9._-]*' "main (--job)"
check "the worker" "$WORKER" 'all|[0-9]+' "0 or all (--worker)"
check "the number of lines" "$LINES_SHOWN" '[0-9]+' "50 (--lines)"
on "$WORKER" "tail -n $LINES_SHOWN$FOLLOW ~/noisyjax_jobs/$JOB/log"
