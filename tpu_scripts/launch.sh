#!/usr/bin/env bash
# Starts a command on every worker of a TPU and leaves it running.
#
#   launch.sh NAME [--job JOB] -- noisyjax eval sweeps/table1 bench.data=hub out=gs://acme-runs/table1
#   launch.sh NAME -- bash -c 'hf download Qwen/Qwen3-4B --local-dir weights/Qwen3-4B && noisyjax eval ...'
#
# The words behind `--` arrive as they are, spaces and quotes included. The command runs in the folder of the checkout,
# with its environment, and goes on when the connection ends. Its output goes to ~/noisyjax_jobs/JOB/log on each worker
# (`tail.sh`), its exit code to rc beside it (`status.sh`). A job that runs already is not started twice: exit 3.
# What a job needs belongs into it, as in the second line: jobs of one TPU wait for nobody, and `resume.sh` starts all
# of them on disks that are empty again.
#
#   --job JOB         name of the job, for several on one TPU; `main` by default
#   --worker W        a worker's number, or `all` (the default): a run on a pod needs every one of them
#   --project P, --zone Z, --env FILE
#                     as in create.sh
#   --dry-run         print the gcloud calls, make none
# shellcheck source=tpu_scripts/common.sh
. "$(dirname "$0")/common.sh"

JOB=main WORKER=all
flag() {
  case "$1" in
    --job) JOB=${2-} TAKEN=2 ;;
    --worker) WORKER=${2-} TAKEN=2 ;;
  esac
}
parse "$@"
check "the job" "$JOB" '[A-Za-z0-9_][A-Za-z0-9._-]*' "main (--job)"
check "the worker" "$WORKER" 'all|[0-9]+' "0 or all (--worker)"
((${#REST[@]})) || die "no command: put it behind --"
for word in "${REST[@]}"; do
  # `$`, `*` and the like may stand in a command; a capital word of a manual, as in out=gs://BUCKET/x, may not.
  ! [[ $word =~ $PLACEHOLDER || $word =~ ^\<.*\>$ ]] ||
    die "the command holds a placeholder: '${word//$'\n'/ }'"
done

command=$(printf '%q ' "${REST[@]}")
# In a shell of its own, so that the exit code is written whatever the command does to it (`exec`, `exit`).
script="rc=0
(cd ~/noisyjax && . .venv/bin/activate && $command) || rc=\$?
echo \$rc >~/noisyjax_jobs/$JOB/rc"

on "$WORKER" "set -eu
dir=~/noisyjax_jobs/$JOB
mkdir -p \"\$dir\"
if [ ! -e \"\$dir/rc\" ] && grep -qsF \"\$dir/run.sh\" \"/proc/\$(cat \"\$dir/pid\" 2>/dev/null)/cmdline\"; then
  echo 'job $JOB is running already' >&2
  exit 3
fi
rm -f \"\$dir/rc\"
printf '%s\\n' $(printf '%q' "$script") >\"\$dir/run.sh\"
nohup setsid bash \"\$dir/run.sh\" >>\"\$dir/log\" 2>&1 </dev/null &
echo \$! >\"\$dir/pid\""
remember "jobs/$JOB" --worker "$WORKER" -- "${REST[@]}"
