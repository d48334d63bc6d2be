#!/usr/bin/env bash
# Puts noisyjax on every worker of a TPU: this checkout's last commit, and a Python environment beside it.
#
#   setup.sh NAME [--extras tpu,hub,train] [--project P] [--zone Z]
#
# Run it again after a commit to bring the workers up to date. What is not committed stays here; models, data and runs
# on the workers stay there. `launch.sh NAME -- COMMAND` comes next.
#
#   --extras LIST     extras of the package to install; tpu,hub,train by default, and always gcs, for runs in a bucket
#   --project P, --zone Z, --env FILE
#                     as in create.sh
#   --dry-run         print the calls, make none
# shellcheck source=tpu_scripts/common.sh
. "$(dirname "$0")/common.sh"

EXTRAS=tpu,hub,train
flag() {
  case "$1" in
    --extras) EXTRAS=${2-} TAKEN=2 ;;
  esac
}
parse "$@"
check "the extras" "$EXTRAS" '[a-z]+(,[a-z]+)*' "tpu,hub,train"

archive=noisyjax.tar.gz
if ((!DRY_RUN)); then
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  archive=$folder/$archive
fi
run git -C "$SOURCE_DIR" archive --format=tar.gz --prefix=noisyjax/ "--output=$archive" HEAD
run gcloud compute tpus tpu-vm scp "$archive" "$NAME:noisyjax.tar.gz" "${WHERE[@]}" --worker=all
# Newer images keep pip from their own Python unless it is told twice; older ones do not know the option as a flag.
on all "set -e
tar xzf noisyjax.tar.gz
cd noisyjax
PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --quiet --user uv
python3 -m uv venv --quiet --allow-existing --python 3.13 .venv
python3 -m uv pip install --quiet -p .venv/bin/python -c constraints.txt -e '.[$EXTRAS,gcs]'
.venv/bin/noisyjax --version"
remember setup --extras "$EXTRAS"
