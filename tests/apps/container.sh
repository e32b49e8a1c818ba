#!/usr/bin/env bash
# What `netacc ps` says of a process in a container, by the name of its control group: in real ones,
# named as Docker, containerd, CRI-O and Podman name theirs.
. "$(dirname "$0")/lib.sh"
need_library
command -v python3 >/dev/null || { skip all "no python3"; finish; exit; }

# Where groups can be made, version 2 first; of a hierarchy of version 1 no controller is needed.
GROUPS_AT=
while read -r _ at kind options _; do
  case $kind,$options in
    cgroup2,* | cgroup,*name=* | cgroup,*pids*)
      if mkdir "$at/netacc-test-$$" 2>/dev/null; then GROUPS_AT=$at/netacc-test-$$; break; fi ;;
  esac
done < <(sort -r -k3,3 /proc/mounts)
[ -n "$GROUPS_AT" ] || { skip all "no control groups can be made here"; finish; exit; }
# (A group goes when no process is in it, the inner ones first.)
HOME_GROUP=${GROUPS_AT%/*}
leave_groups() {
  local group pid
  find "$GROUPS_AT" -depth -type d 2>/dev/null | while read -r group; do
    while read -r pid; do echo "$pid" >"$HOME_GROUP/cgroup.procs"; done <"$group/cgroup.procs"
    rmdir "$group"
  done 2>/dev/null
}
trap 'leave_groups; cleanup' EXIT

PORT=$(free_port)
become_accel python3 "$here/cfg_app.py" server "$PORT" 2>"$TMP/server.err" &
SERVER=$!; PIDS+=("$SERVER")
listens() { (: <"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null; }
wait_for 10 listens || { fail start "$(cat "$TMP/server.err")"; finish; exit 1; }
says() { "$LIB_DIR/netacc" ps --wide --json | python3 -c '
import json, sys
print(*[p["container"] for p in json.load(sys.stdin) if p["pid"] == '"$SERVER"'])'; }
column() { "$LIB_DIR/netacc" ps --wide | awk -v pid="$SERVER" '
  { begins = index($0, "Container"); if (begins) at = begins }
  $1 == pid { split(substr($0, at), cell, " "); print cell[1] }'; }

ID=$(printf '0123456789abcdef%.0s' 1 2 3 4)
# group NAME PATH EXPECTED: the server is in it.
group() {
  mkdir -p "$GROUPS_AT/$2" && echo "$SERVER" >"$GROUPS_AT/$2/cgroup.procs" || { skip "$1" "$2 takes no process"; return; }
  same "$1" "$3 $4" "$(says) $(column)"
  echo "$SERVER" >"$GROUPS_AT/cgroup.procs"
}
group none some.service None -
group docker "system.slice/docker-$ID.scope" 0123456789ab 0123456789ab
group docker-cgroupfs "docker/$ID" 0123456789ab 0123456789ab
group containerd "kubepods.slice/cri-containerd-$ID.scope" 0123456789ab 0123456789ab
group crio "kubepods.slice/crio-$ID.scope" 0123456789ab 0123456789ab
group podman "machine.slice/libpod-$ID.scope/container" 0123456789ab 0123456789ab
group shorter "docker-${ID:1}.scope" None -
finish
