#!/usr/bin/env bash
# Starts a command on every worker of a TPU and leaves it running.
#
#   launch.sh NAME [--job JOB] -- noisyjax eval sweeps/table1 bench.data=hub out=gs://acme-runs/table1
#
# The words behind `--` arrive as they are, spaces and quotes included. The command runs in the folder of the checkout,
# with its environment, and goes on when the connection ends. Its output goes to ~/noisyjax_jobs/JOB/log on each worker
# (`tail.sh`), its exit code to rc beside it (`status.sh`). A job that runs already is not started twice: exit 3.
#
#   --job JOB         name of the job, for several on one TPU; `main` by default
#   --worker W        a worker's number, or `all` (the default): a run on a pod needs every one of them
#   --again           start it only where it neither runs nor has ended well; what `resume.sh` does
#   --project P, --zone Z, --env FILE
#                     as in create.sh
#   --dry-run         print the gcloud calls, make none
# shellcheck source=tpu_scripts/common.sh
. "$(dirname "$0")/common.sh"

JOB=main WORKER=all AGAIN=0
flag() {
  case "$1" in
    --job) JOB=${2-} TAKEN=2 ;;
    --worker) WORKER=${2-} TAKEN=2 ;;
    --again) AGAIN=1 TAKEN=1 ;;
  esac
}
parse "$@"
check "the job" "$JOB" '[A-Za-z0-9_][A-Za-z0-9._-]*' "main (--job)"
check "the worker" "$WORKER" 'all|[0-9]+' "0 or all (--worker)"
((${#REST[@]})) || die "no command: put it behind --"
for word in "${REST[@]}"; do
  # `$`, `*` and the like may stand in a command; a capital word of a manual, as in out=gs://BUCKET/x, may not.
  ! [[ $word =~ $PLACEHOLDER || $word =~ ^\<.*\>$ ]] ||
    die "the command holds a placeholder: '$word'"
done

command=$(printf '%q ' "${REST[@]}")
script="cd ~/noisyjax || exit
. .venv/bin/activate
rc=0
$command|| rc=\$?
echo \$rc >~/noisyjax_jobs/$JOB/rc"

on "$WORKER" "set -eu
dir=~/noisyjax_jobs/$JOB
mkdir -p \"\$dir\"
if [ -s \"\$dir/pid\" ] && [ ! -e \"\$dir/rc\" ] && kill -0 \"\$(cat \"\$dir/pid\")\" 2>/dev/null; then
  echo 'job $JOB is running already' >&2
  exit $((AGAIN ? 0 : 3))
fi
if [ $AGAIN = 1 ] && [ \"\$(cat \"\$dir/rc\" 2>/dev/null)\" = 0 ]; then exit 0; fi
rm -f \"\$dir/rc\"
printf '%s\\n' $(printf '%q' "$script") >\"\$dir/run.sh\"
nohup setsid bash \"\$dir/run.sh\" >>\"\$dir/log\" 2>&1 </dev/null &
echo \$! >\"\$dir/pid\""
remember "jobs/$JOB" --worker "$WORKER" -- "${REST[@]}"
