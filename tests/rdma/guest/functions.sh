# What a command in a guest can call; every bash in it has read this (BASH_ENV).
# shellcheck shell=bash

# tell NAME: a word to the other guest.
tell() { : >"/rig/told/$1"; }

# await NAME: until a guest has told it; fails when the command of the other one has ended without.
# `server-ended` and `client-ended` are told by themselves.
await() {
  until [ -e "/rig/told/$1" ]; do
    if [ -e "/rig/told/$PEER-ended" ] && [ ! -e "/rig/told/$1" ]; then
      echo "the $PEER ended without telling $1" >&2
      return 1
    fi
    sleep 0.02
  done
}

# crash: this kernel ends at once, as where a host loses its power, and another one begins the same
# command anew, with BOOT=2. It says nothing to the other one, which has the link as it was.
crash() { tell "$ROLE-crashes"; sleep infinity; }

# wait_for SECONDS COMMAND... : until it succeeds.
wait_for() {
  local end=$((SECONDS + $1)); shift
  until "$@" >/dev/null 2>&1; do [ $SECONDS -lt $end ] || return 1; sleep 0.02; done
}

# add_device rxe|siw [N ADDRESS]: makes rdmaN on netN, which has this address (rdma0), and returns
# when it can be used.
add_device() {
  rdma link add "rdma${2:-0}" type "$1" netdev "net${2:-0}" || return
  wait_for 10 device_works "$1" "${2:-0}" "${3:-10.0.0.$NUMBER}" || { echo "rdma${2:-0} does not come up" >&2; return 1; }
}

device_works() {
  local device=/sys/class/infiniband/rdma$2
  grep -q ACTIVE "$device/ports/1/state" && ls /dev/infiniband/uverbs* || return
  # RoCE finds addresses in this table, which is filled some time after the device has come.
  [ "$1" != rxe ] || grep -qs "$(printf 'ffff:%02x%02x:%02x%02x' ${3//./ })" "$device"/ports/1/gids/*
}

# listening: whether an RDMA listener is there.
listening() { rdma resource show cm_id | grep -q LISTEN; }
