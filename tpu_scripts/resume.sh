#!/usr/bin/env bash
# Brings a TPU that was taken away back to work: asks for it again as it was asked for, sets it up, starts its jobs.
#
#   resume.sh NAME [--watch 300] [--project P] [--zone Z]
#
# What create.sh, setup.sh and launch.sh were told lies in .tpu/NAME on this machine. A queued resource that is SUSPENDED
# or FAILED holds no TPU any more; it is removed, since its name is needed again. One that is ACTIVE is left alone but
# for its jobs: one that died or ended with another exit code than 0 and 2 is started again, on all its workers. 0 is
# the end, and 2 a wrong request, which would fail again: it is told and left. Runs go on where they stopped by
# themselves: give them an `out` in a bucket, since the disks are gone with the TPU.
#
#   --watch SECONDS   look again every so often, until no job is left that runs, or Ctrl-C
#   --assume STATE    for --dry-run: as if the TPU were in this state; SUSPENDED by default
#   --project P, --zone Z, --env FILE
#                     as in create.sh
#   --dry-run         print the gcloud calls, make none
#
# Exit 4 when every job has ended well (with --watch: 0), 2 when those that have not were wrong requests.
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
[[ -z $WATCH ]] || check "the time" "$WATCH" '[1-9][0-9]{0,6}' "300 (--watch)"
[[ -s $STATE_DIR/$NAME/create ]] ||
  die "$STATE_DIR/$NAME does not say how $NAME was created: call resume.sh in the folder where create.sh was called"
recall create
[[ " ${RECALLED[*]} " == *" ${WHERE[*]} "* ]] ||
  die "$NAME was not created with ${WHERE[*]}, but by: ${RECALLED[*]//$'\n'/ }"
export TPU_PROJECT TPU_ZONE TPU_STATE=$STATE_DIR

again=(--project "$TPU_PROJECT" --zone "$TPU_ZONE")
((!DRY_RUN)) || again+=(--dry-run)
shopt -s nullglob
jobs=("$STATE_DIR/$NAME/jobs"/*)
jobs=("${jobs[@]##*/}")

tell() { printf '%s %s\n' "$NAME" "$1" >&2; }

# Whatever code these end with on the way: 2 and 4 are this script's own words.
start() {
  recall "jobs/$1"
  "$HERE/launch.sh" "$NAME" "${again[@]}" --job "$1" "${RECALLED[@]}" || exit 1
}

begin() {
  local job
  if [[ -r $STATE_DIR/$NAME/setup ]]; then
    recall setup
    "$HERE/setup.sh" "$NAME" "${again[@]}" "${RECALLED[@]}" || exit 1
  fi
  for job in "${jobs[@]}"; do start "$job"; done
}

bring_back() {
  recall create
  run "${RECALLED[@]}"
  wait_until_active
  begin
}

# ends JOB LINES: what the workers say of the job, as `; died; ended with 1;`.
ends() {
  local name what
  while read -r _ name what; do
    [[ $name != "$1" ]] || printf '; %s' "$what"
  done <<<"$2"
  printf ';'
}

# Starts a job again on all its workers or on none: those of a pod work together.
look_after_jobs() {
  local said job what live=0 wrong=0
  said=$(on all "$JOBS") || exit 1
  ((!DRY_RUN)) || printf '%s\n' "$said"
  # Disks that know of no job are those of a TPU that came back and was not set up to the end.
  if [[ -z $said ]]; then
    begin
    return
  fi
  for job in "${jobs[@]}"; do
    what=$(ends "$job" "$said")
    case "$what" in
      *'; running;'*) live=1 ;;
      *'; ended with 2;'*)
        tell "$job ended with 2, a wrong request, and is left: tail.sh $NAME --job $job says why; mend it and launch it"
        wrong=1
        ;;
      ';' | *'; died;'* | *'; ended with '[!0]*)
        tell "$job is started again$what"
        start "$job"
        live=1
        ;;
    esac
  done
  ((!live)) || return 0
  tell "has no job left that runs: delete.sh $NAME ends its cost"
  exit $((wrong ? 2 : 4))
}

look() {
  local now=$ASSUME
  if ((DRY_RUN)); then wait_until_active; else now=$(state); fi
  case "$now" in
    ACTIVE) ((!${#jobs[@]})) || look_after_jobs ;;
    SUSPENDED | FAILED)
      run gcloud compute tpus queued-resources delete "$NAME" "${WHERE[@]}" --force --quiet
      bring_back
      ;;
    ABSENT) bring_back ;;
    *) tell "$now: nothing to do yet" ;;
  esac
}

if [[ -z $WATCH ]] || ((DRY_RUN)); then
  # Of two that look at the same moment one would delete what the other has just asked for.
  if ((!DRY_RUN)) && command -v flock >/dev/null; then
    exec 9<"$STATE_DIR/$NAME/create"
    flock -n 9 || die "another resume.sh is at work on $NAME" 1
  fi
  look
  exit
fi
while true; do
  # Each look is a process of its own: one that fails (no network, no room) stops there and is followed by another.
  # What is wrong in itself, or was deleted meanwhile (2), is not looked at again, nor what has come to its end (4).
  code=0
  "$HERE/resume.sh" "$NAME" "${again[@]}" || code=$?
  case "$code" in
    0) ;;
    2) exit 2 ;;
    4) exit 0 ;;
    *) printf '%s: trying again in %s s\n' "$NAME" "$WATCH" >&2 ;;
  esac
  sleep "$WATCH"
done
