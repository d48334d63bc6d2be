# Shared by the scripts of this folder; sourced, never run.
#
# Settings come from flags, else from the environment, else from an env file (--env FILE, or ./tpu.env where there is
# one): lines of KEY=VALUE with TPU_PROJECT, TPU_ZONE, TPU_TYPE, TPU_SPOT, TPU_RUNTIME.
# shellcheck shell=bash disable=SC2034 # the scripts that source this file use its variables

set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
SOURCE_DIR=$(dirname "$HERE")
DRY_RUN=0
NAME=""

die() {
  printf '%s: %s\n' "$(basename "$0")" "$1" >&2
  exit "${2:-2}"
}

# The comment at the head of the script is its manual.
manual() {
  sed -n '2,${/^#/!q; /^# shellcheck/q; s/^# \{0,1\}//; p}' "$0"
}

# What stands for something else in a manual and was never replaced: a whole word, or a whole part of a path, which in a
# script for `bash -c` may end with a blank.
PLACEHOLDER='(^|=|/)(PROJECT|ZONE|BUCKET|FOLDER|DIR|NAME|TYPE|URL|MODEL|CHANGEME|(MY|YOUR)[-_][A-Z_-]+|your-[a-z-]+|my-bucket|my-project)([/[:space:]]|$)'
refuse_placeholder() {
  [[ ! $2 =~ $PLACEHOLDER && $2 != *[\<\>\$]* ]] || die "$1 is still the placeholder '$2': put your own in its place"
}

# check WHAT VALUE REGEX EXAMPLE
check() {
  [[ -n $2 ]] || die "$1 is missing: give it as a flag, in the environment or in tpu.env (--help says more)"
  refuse_placeholder "$1" "$2"
  [[ $2 =~ ^($3)$ ]] || die "$1 '$2' is not one; it looks like $4"
}

KEYS="TPU_PROJECT TPU_ZONE TPU_TYPE TPU_SPOT TPU_RUNTIME"

# Reads KEY=VALUE lines, quoted or not, with the line ends of any system; what the environment has already stays.
# Nothing in the file is executed.
read_env() {
  local line key value
  [[ -r $1 && ! -d $1 ]] || die "no env file $1"
  while IFS= read -r line || [[ -n $line ]]; do
    line=${line%"${line##*[![:space:]]}"}
    [[ -z $line || $line == \#* ]] && continue
    key=${line%%=*} value=${line#*=}
    [[ $line == *=* && $key =~ ^TPU_[A-Z_]+$ ]] || die "$1: '$line' is not TPU_KEY=VALUE"
    if [[ $value =~ ^\"(.*)\"$ || $value =~ ^\'(.*)\'$ ]]; then value=${BASH_REMATCH[1]}; fi
    [[ " $KEYS " == *" $key "* ]] || die "$1: there is no $key; there are $KEYS"
    [[ -n ${!key-} ]] || printf -v "$key" '%s' "$value"
  done <"$1"
}

# parse "$@": the first word without dashes is NAME; `flag` of the script takes what is its own and sets TAKEN to the
# number of words; all words after -- go into REST.
parse() {
  local env_file=""
  REST=()
  while (($#)); do
    TAKEN=0
    case "$1" in
      -h | --help) manual && exit 0 ;;
      --dry-run) DRY_RUN=1 TAKEN=1 ;;
      --project | --zone | --env)
        (($# > 1)) || die "$1 needs a value"
        case "$1" in
          --project) TPU_PROJECT=$2 ;;
          --zone) TPU_ZONE=$2 ;;
          --env) env_file=$2 ;;
        esac
        TAKEN=2
        ;;
      --)
        shift
        REST=("$@")
        break
        ;;
      *) flag "$@" ;;
    esac
    if ((!TAKEN)); then
      [[ $1 != -* ]] || die "unknown flag $1 (--help lists them)"
      [[ -z $NAME ]] || die "one name only: '$NAME' and '$1'"
      NAME=$1 TAKEN=1
    fi
    (($# >= TAKEN)) || die "$1 needs a value"
    shift "$TAKEN"
  done
  if [[ -n $env_file ]]; then read_env "$env_file"; elif [[ -r tpu.env ]]; then read_env tpu.env; fi
  check "the name of the TPU" "$NAME" '[a-z]([-a-z0-9]{0,60}[a-z0-9])?' "table1-a"
  check "the project" "${TPU_PROJECT-}" '([a-z0-9.-]+:)?[a-z][-a-z0-9]{4,28}[a-z0-9]' "acme-research (--project, TPU_PROJECT)"
  check "the zone" "${TPU_ZONE-}" '[a-z]+-[a-z]+[0-9]+-[a-z0-9]+' "us-east5-b (--zone, TPU_ZONE)"
  WHERE=("--project=$TPU_PROJECT" "--zone=$TPU_ZONE")
}

# Prints the call that a shell would take as it stands; a dry run ends there.
run() {
  if ((DRY_RUN)); then
    printf '%q ' "$@" | sed 's/ $//'
    printf '\n'
  else
    "$@"
  fi
}

# on WORKER SCRIPT: runs SCRIPT, a text for bash, on one worker or on `all`.
on() {
  run gcloud compute tpus tpu-vm ssh "$NAME" "${WHERE[@]}" "--worker=$1" "--command=$2"
}

# For `on`: a line `HOST JOB running`, `HOST JOB ended with CODE` or `HOST JOB died` per job of a worker. After a reboot
# a process of another's may have the job's number.
# shellcheck disable=SC2016 # expanded on the worker
JOBS='for dir in ~/noisyjax_jobs/*; do
  [ -s "$dir/pid" ] || continue
  if [ -s "$dir/rc" ]; then what="ended with $(cat "$dir/rc")"
  elif grep -qsF "$dir/run.sh" "/proc/$(cat "$dir/pid")/cmdline"; then what=running
  else what=died; fi
  echo "$(hostname) $(basename "$dir") $what"
done'

# The state of the queued resource: ACTIVE, WAITING_FOR_RESOURCES, SUSPENDED ..., or ABSENT.
DESCRIBE=(gcloud compute tpus queued-resources describe)
state() {
  local text
  if text=$("${DESCRIBE[@]}" "$NAME" "${WHERE[@]}" '--format=value(state.state)' 2>&1); then
    printf '%s\n' "$text"
  elif [[ $text == *NOT_FOUND* || $text == *"not found"* ]]; then
    printf 'ABSENT\n'
  else
    printf '%s\n' "$text" >&2
    return 1
  fi
}

wait_until_active() {
  local now last=""
  if ((DRY_RUN)); then
    run "${DESCRIBE[@]}" "$NAME" "${WHERE[@]}" '--format=value(state.state)'
    return
  fi
  while true; do
    now=$(state)
    [[ $now == "$last" ]] || printf '%s %s\n' "$NAME" "$now" >&2
    last=$now
    case "$now" in
      ACTIVE) return ;;
      FAILED | SUSPENDED | ABSENT) die "$NAME is $now; resume.sh $NAME asks for it again" 1 ;;
    esac
    sleep "${TPU_POLL:-30}"
  done
}

# What a TPU and its jobs were started with, so that `resume.sh` can do it again: one folder per TPU on this machine.
STATE_DIR=${TPU_STATE:-.tpu}

# remember FILE WORD... Whole or not at all: words that were cut short would ask for another TPU, or run another command.
remember() {
  local file=$STATE_DIR/$NAME/$1
  shift
  if ((!DRY_RUN)); then
    mkdir -p "$(dirname "$file")"
    printf '%s\0' "$@" >"$STATE_DIR/$NAME/.new.$$"
    mv "$STATE_DIR/$NAME/.new.$$" "$file"
  fi
}

# recall FILE: the words of `remember` into RECALLED.
recall() {
  mapfile -d '' -t RECALLED <"$STATE_DIR/$NAME/$1"
}
