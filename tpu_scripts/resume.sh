#!/usr/bin/env bash
# Brings a TPU that was taken away back to work: asks for it again as it was asked for, sets it up, starts its jobs.
#
#   resume.sh NAME [--watch 300] [--project P] [--zone Z]
#
# What create.sh, setup.sh and launch.sh were told lies in .tpu/NAME on this machine. A queued resource that is SUSPENDED
# or FAILED holds no TPU any more; it is removed, since its name is needed again. One that is ACTIVE is left alone, and
# only jobs that neither run nor have ended well are started. Runs go on where they stopped by themselves: give them an
# `out` in a bucket, since the disks are gone with the TPU.
#
#   --watch SECONDS   look again every so often, until Ctrl-C
#   --assume STATE    for --dry-run: as if the TPU were in this state; SUSPENDED by default
#   --project P, --zone Z, --env FILE
#                     as in create.sh
#   --dry-run         print the gcloud calls, make none
# shellcheck source=tpu_scripts/common.sh
. "$(dirname "$0")/common.sh"

WATCH="" ASSUME=SUSPENDED
flag() {
  case "$1" in
    --watch) WATCH=${2-} TAKEN=2 ;;
    --assume) ASSUME=${2-} TAKEN=2 ;;
  esac
}
parse "$@"
[[ -z $WATCH ]] || check "the time" "$WATCH" '[0-9]+' "300 (--watch)"
[[ -s $STATE_DIR/$NAME/create ]] ||
  die "$STATE_DIR/$NAME does not say how $NAME was created: call resume.sh in the folder where create.sh was called"
export TPU_PROJECT TPU_ZONE TPU_STATE=$STATE_DIR

again=(--project "$TPU_PROJECT" --zone "$TPU_ZONE")
((!DRY_RUN)) || again+=(--dry-run)

start_jobs() {
  local file
  for file in "$STATE_DIR/$NAME/jobs"/*; do
    [[ -e $file ]] || continue
    recall "jobs/$(basename "$file")"
    "$HERE/launch.sh" "$NAME" "${again[@]}" --again --job "$(basename "$file")" "${RECALLED[@]}"
  done
}

bring_back() {
  recall create
  run "${RECALLED[@]}"
  wait_until_active
  if [[ -r $STATE_DIR/$NAME/setup ]]; then
    recall setup
    "$HERE/setup.sh" "$NAME" "${again[@]}" "${RECALLED[@]}"
  fi
  start_jobs
}

look() {
  local now=$ASSUME
  if ((DRY_RUN)); then wait_until_active; else now=$(state); fi
  case "$now" in
    ACTIVE) start_jobs ;;
    SUSPENDED | FAILED)
      run gcloud compute tpus queued-resources delete "$NAME" "${WHERE[@]}" --force --quiet
      bring_back
      ;;
    ABSENT) bring_back ;;
    *) printf '%s %s: nothing to do yet\n' "$NAME" "$now" ;;
  esac
}

if [[ -z $WATCH ]] || ((DRY_RUN)); then
  look
  exit
fi
while true; do
  # Each look is a process of its own: one that fails (no network, no room) stops there and is followed by another.
  # What is wrong in itself, or was deleted meanwhile (2), is not looked at again.
  code=0
  "$0" "$NAME" "${again[@]}" || code=$?
  ((code != 2)) || exit 2
  ((code == 0)) || printf '%s: trying again in %s s\n' "$NAME" "$WATCH" >&2
  sleep "$WATCH"
done
