#!/usr/bin/env bash
# Asks for a TPU: a queued resource that becomes a TPU VM, or a pod of them, when there is room.
#
#   create.sh NAME --type v6e-8 [--spot] [--wait] [--project P] [--zone Z]
#
# NAME is the name of the queued resource and of its TPU. `setup.sh NAME` comes next.
#
#   --type TYPE       v4-32, v5e-16 (or v5litepod-16), v5p-32, v6e-8 ...; or TPU_TYPE. tpu7x-8 and larger ones Google
#                     offers through GKE; here they are for projects that were let in
#   --spot            cheaper, and may be taken away at any time (`resume.sh` brings it back); or TPU_SPOT=1
#   --runtime VERSION software of the VMs; by default the one with jax support for the type; or TPU_RUNTIME
#   --wait            return when the TPU is there; exit 1 when it cannot be had
#   --until DURATION  give the request up if it is not filled by then, such as 6h
#   --project P       Google Cloud project; or TPU_PROJECT
#   --zone Z          zone that has this TPU; or TPU_ZONE
#   --env FILE        read these settings from FILE; ./tpu.env by default
#   --dry-run         print the gcloud calls, make none
#
# Everything else (network, service account, reservation, labels) goes to gcloud as it stands behind `--`:
#   create.sh table1-a --type v6e-16 --spot -- --network=lab --internal-ips
# shellcheck source=tpu_scripts/common.sh
. "$(dirname "$0")/common.sh"

WAIT=0 UNTIL=""
flag() {
  case "$1" in
    --type) TPU_TYPE=${2-} TAKEN=2 ;;
    --runtime) TPU_RUNTIME=${2-} TAKEN=2 ;;
    --until) UNTIL=${2-} TAKEN=2 ;;
    --spot) TPU_SPOT=1 TAKEN=1 ;;
    --wait) WAIT=1 TAKEN=1 ;;
  esac
}
parse "$@"
check "TPU_SPOT" "${TPU_SPOT:-0}" '[01]' "1 for a spot TPU, 0 for one on demand"
check "the type" "${TPU_TYPE-}" '(v4|v5e|v5litepod|v5p|v6e|v7x|tpu7x)-[1-9][0-9]{0,4}' "v6e-8 (--type, TPU_TYPE)"

# Sizes: chips of flat slices, TensorCores of solid ones. Of these there are more, made of whole cubes of 128 cores.
flat="1 4 8 16 32 64 128 256" solid="8 16 32 64 128 256 512 1024 2048 4096 8192" size=${TPU_TYPE##*-}
case "$TPU_TYPE" in
  v4-*) runtime=tpu-ubuntu2204-base type=v4 sizes=$solid ;;
  v5e-* | v5litepod-*) runtime=v2-alpha-tpuv5-lite type=v5litepod sizes=$flat ;;
  v5p-*) runtime=v2-alpha-tpuv5 type=v5p sizes=$solid ;;
  v6e-*) runtime=v2-alpha-tpuv6e type=v6e sizes=$flat ;;
  v7x-* | tpu7x-*) runtime=v2-alpha-tpu7-ubuntu2404 type=tpu7x sizes=$solid ;;
esac
if [[ " $sizes " != *" $size "* && ($sizes == "$flat" || $((size % 128)) != 0) ]]; then
  die "the type '$TPU_TYPE' does not exist; known: $type-${sizes// /, $type-}"
fi

# Google's page on queued resources: for TPU7x one must use GKE.
[[ $type != tpu7x ]] || printf '%s\n' "create.sh: Google offers tpu7x through GKE alone (noisyjax tpu jobs \
--engine jobset); a queued resource of it is for projects that were let in" >&2

call=(gcloud compute tpus queued-resources create "$NAME" "${WHERE[@]}" "--node-id=$NAME")
call+=("--accelerator-type=$type-$size" "--runtime-version=${TPU_RUNTIME:-$runtime}")
[[ ${TPU_SPOT:-0} == 0 ]] || call+=(--spot)
[[ -z $UNTIL ]] || call+=("--valid-until-duration=$UNTIL")
call+=("${REST[@]}")
run "${call[@]}"
# What an earlier TPU of this name was told is none of this one's.
((DRY_RUN)) || rm -rf "${STATE_DIR:?}/$NAME"
remember create "${call[@]}"

if ((WAIT)); then wait_until_active; fi
