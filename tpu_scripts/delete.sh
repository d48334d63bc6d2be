#!/usr/bin/env bash
# Deletes a TPU and its queued resource. What is on its disks is lost: `sync.sh` first.
#
#   delete.sh NAME [--confirm NAME] [--project P] [--zone Z]
#
# It asks for the name once more, unless it stands behind --confirm. Runs in a bucket stay.
#
#   --confirm NAME    the same name again, for use without a terminal
#   --project P, --zone Z, --env FILE
#                     as in create.sh
#   --dry-run         print the gcloud call, make none
# shellcheck source=tpu_scripts/common.sh
. "$(dirname "$0")/common.sh"

CONFIRM=""
flag() {
  case "$1" in
    --confirm) CONFIRM=${2-} TAKEN=2 ;;
  esac
}
parse "$@"
if ((!DRY_RUN)); then
  if [[ -z $CONFIRM && -t 0 ]]; then
    read -r -p "Type the name of the TPU to delete it and its disks: " CONFIRM
  fi
  [[ $CONFIRM == "$NAME" ]] || die "nothing is deleted: '$CONFIRM' is not '$NAME' (--confirm $NAME)"
fi
if ! run gcloud compute tpus queued-resources delete "$NAME" "${WHERE[@]}" --force --quiet; then
  # One that was deleted by other means has to be forgotten too, or `resume.sh` would bring it back.
  [[ $(state) == ABSENT ]] || die "$NAME is not deleted" 1
fi
((DRY_RUN)) || rm -rf "${STATE_DIR:?}/$NAME"
