#!/usr/bin/env bash
# Unrelated programs under the library: the same output and exit status as without it. And what its
# start costs.
#
#   tests/apps/programs.sh [NAME...]    all, or these
. "$(dirname "$0")/lib.sh"
need_library
cd "$TMP" || exit 1
export LC_ALL=C GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b \
  GIT_AUTHOR_DATE='2020-01-01T00:00:00Z' GIT_COMMITTER_DATE='2020-01-01T00:00:00Z' HOME=$TMP
seq 1 5000 >numbers
printf 'int main(void){return 3;}\n' >three.c
printf 'all:\n\t@echo made; seq 3 | tac\n' >Makefile

WANTED=("$@") KNOWN=()
# wanted NAME: whether this one is to run.
wanted() {
  KNOWN+=("$1")
  [ ${#WANTED[@]} -eq 0 ] || [[ " ${WANTED[*]} " == *" $1 "* ]]
}

# program NAME COMMAND : a shell line, run without and with the library in a fresh copy of the same
# directory.
program() {
  local name=$1 line=$2 filter=${3:-cat} tool=${2%%[ ;]*}
  wanted "$name" || return 0
  case $tool in *=* | for | export) ;; *) command -v "$tool" >/dev/null || { skip "$name" "no $tool"; return; } ;; esac
  local plain accelerated
  plain=$(cd "$(work plain)" && bash -c "$line" 2>"$TMP/plain.err" </dev/null | $filter; echo "status ${PIPESTATUS[0]}")
  accelerated=$(cd "$(work accel)" && LD_PRELOAD=$LIB NACC_LOG_PATH=$TMP/netacc.log bash -c "$line" 2>"$TMP/accel.err" </dev/null | env -u LD_PRELOAD $filter; echo "status ${PIPESTATUS[0]}")
  same "$name" "$plain" "$accelerated"
}
work() { rm -rf "$TMP/work"; mkdir "$TMP/work"; cp "$TMP/numbers" "$TMP/three.c" "$TMP/Makefile" "$TMP/work"; echo "$TMP/work"; }

program ls 'ls -l --time-style=+ /etc /usr/bin'
program bash 'for i in 1 2 3; do (echo $i; exit $i); done; cat <(echo sub) | { read x; echo "$x"; }; exit 5'
program sh-pipeline 'seq 100000 | sort -rn | uniq | head -n 5; echo ${PIPESTATUS[@]}'
program git 'git init -q -b main . && git add . && git commit -qm x && git log --format=%s%T && git status --short && git clone -q . ../work/c && git -C c fsck'
program python3 'python3 -c "import socket,ssl,json,subprocess,threading,multiprocessing as m; print(m.Pool(2).map(abs,[-1,2])); a,b=socket.socketpair(); a.send(b\"x\"); print(b.recv(9), subprocess.check_output([\"echo\",\"y\"]))"'
program perl 'perl -MIO::Socket::INET -MSocket -e "my \$s=IO::Socket::INET->new(Listen=>1,LocalAddr=>q(127.0.0.1)); if(!fork){my \$c=IO::Socket::INET->new(PeerAddr=>q(127.0.0.1),PeerPort=>\$s->sockport); print \$c qq(hello\n); print scalar <\$c>; exit} my \$c=\$s->accept; my \$l=<\$c>; print \$c uc \$l; close \$c; wait; print qq(status \$?\n)"'
program awk 'awk "{s+=\$1} END {print s; system(\"echo child\"); \"date +%Y | wc -l\" | getline x; print x}" numbers'
program sed 'sed -n "s/9/nine/p;100q" numbers; sed -i s/1/one/ numbers; md5sum numbers'
program find 'find /usr/include /etc -name "s*" -newer /etc/hostname -o -name "*.h" 2>/dev/null | sort | head -n 200; find . -name numbers -exec wc -l {} +'
program tar 'tar cf - numbers three.c --mtime=@0 --owner=0 --group=0 --numeric-owner | md5sum; tar czf x.tgz numbers && tar tzf x.tgz'
program gzip 'gzip -n numbers && zcat numbers.gz | md5sum && gzip -t numbers.gz && gunzip numbers.gz && wc numbers'
program make 'make -s all; make -s nothing 2>/dev/null; echo $?'
program cc 'cc -O1 three.c -o three && ./three; echo $?; cc nothing.c 2>/dev/null; echo $?'
program gdb 'gdb -q -batch -ex "break main" -ex run -ex "p 6*7" -ex kill --args /bin/true' "grep -E ^\$|=.42"
program strace 'strace -f -o /dev/null sh -c "echo traced; exit 4"'
program ps 'ps -o comm= -p 1,$$'
program ss 'ss -H -tln sport = :1; ss -V'
program ssh-keygen 'ssh-keygen -q -t ed25519 -N "" -f key -C c && ssh-keygen -y -f key | cut -d" " -f1 && ls key key.pub'
program tmux 'export TMUX_TMPDIR=$PWD; tmux -L t -f /dev/null new-session -d -x 80 -y 24 "echo in tmux; sleep 60" && for i in 1 2 3 4 5 6 7 8 9; do tmux -L t capture-pane -p | grep -q in && break; sleep 0.1; done; tmux -L t capture-pane -p | head -n 1; tmux -L t list-windows -F "#{window_index}"; tmux -L t kill-server'
program apt-get 'apt-get --version | head -n 3; apt-cache policy bash | head -n 2'
program dpkg 'dpkg -s bash | head -n 4; dpkg -L bash | md5sum'
program sudo 'sudo -n sh -c "echo \$((6*7)); exit 6"'
program ping 'ping -c 2 -i 0.2 127.0.0.1' 'grep -c 2.received'
program hostname 'hostname; getent hosts localhost; getent passwd root'
program env 'env -i /bin/echo clean; timeout 5 sh -c "exit 9"; echo $?; nohup true; setsid -w sh -c "exit 2"; echo $?'
program xargs 'seq 50 | xargs -P 4 -n 5 sh -c "exit 0" x; echo $?; seq 9 | xargs -n 3'
program openssl 'openssl rand 4 | wc -c; echo text | openssl dgst -sha256; openssl version'
program curl-file "curl -s file://$TMP/numbers | md5sum; curl -s http://127.0.0.1:1/; echo \$?"
program lsof 'lsof -v 2>&1 | grep -c revision; lsof -p $$ | grep -c cwd'
program redirections 'exec 5<>/dev/tcp/127.0.0.1/1 || echo refused; exec 7</dev/null 8>&1; echo eight >&8; exec 7<&- 8>&-; read -t 0 x; echo $?'
program ldd 'ldd /bin/ls | grep -c libc.so; file /bin/ls 2>/dev/null | grep -c ELF'

# A process has one first connection, and its threads begin when they come to: many servers.
raw_clone() {
  command -v cc >/dev/null || { skip raw-clone "no cc"; return; }
  local call got
  cc -O1 -o raw_clone "$here/raw_clone.c" || { fail raw-clone; return; }
  for call in "" fork; do
    ./raw_clone $call || { fail "raw-${call:-clone}" "without the library: $?"; continue; }
    got=$(for _ in $(seq 30); do LD_PRELOAD=$LIB ./raw_clone $call || { echo "status $?"; break; }; done)
    same "raw-${call:-clone}" "" "$got"
  done
}
if wanted raw-clone; then raw_clone; fi

# apt-get update reaches the network: only its status is compared, and a machine without network is
# skipped.
apt_get_update() {
  if [ "$(id -u)" != 0 ] || ! timeout 120 apt-get update >"$TMP/apt.out" 2>&1; then skip apt-get-update "not root or no network"; return; fi
  if timeout 120 env LD_PRELOAD="$LIB" NACC_LOG_PATH="$TMP/netacc.log" apt-get update >"$TMP/apt.out" 2>&1; then
    ok apt-get-update
  else
    fail apt-get-update "$(tail -n 5 "$TMP/apt.out")"
  fi
}
if wanted apt-get-update; then apt_get_update; fi

# over_ssh CLIENT:SERVER, each plain or accel: to localhost, to a server of our own with temporary
# keys.
sshd=$(command -v sshd || echo /usr/sbin/sshd)
over_ssh() {
  local mix=$1 port run server to out sum
  if [ ! -x "$sshd" ] || ! command -v ssh >/dev/null; then skip "ssh-$mix" "no sshd"; return; fi
  if [ ! -e "$TMP/blob" ]; then
    ssh-keygen -q -t ed25519 -N '' -f "$TMP/host_key"; ssh-keygen -q -t ed25519 -N '' -f "$TMP/user_key"
    cp "$TMP/user_key.pub" "$TMP/authorized"; chmod 600 "$TMP/authorized" "$TMP/user_key"
    [ "$(id -u)" != 0 ] || mkdir -p /run/sshd
    head -c 5000000 /dev/urandom >"$TMP/blob"
  fi
  port=$(free_port)
  run=; [ "${mix#*:}" = plain ] || run="env LD_PRELOAD=$LIB NACC_LOG_PATH=$TMP/netacc.log"
  $run "$sshd" -D -e -f /dev/null -p "$port" -o ListenAddress=127.0.0.1 -h "$TMP/host_key" -o StrictModes=no -o UsePAM=no \
    -o PidFile=none -o PermitRootLogin=yes -o AuthorizedKeysFile="$TMP/authorized" 2>"$TMP/sshd.err" &
  server=$!
  PIDS+=("$server")
  wait_for 30 sh -c "ss -Htln sport = :$port | grep -q ." || { fail "ssh-$mix" "$(cat "$TMP/sshd.err")"; return; }
  run=; [ "${mix%:*}" = plain ] || run=accel
  to=(-F /dev/null -p "$port" -i "$TMP/user_key" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o BatchMode=yes "$(id -un)@127.0.0.1")
  out=$($run ssh "${to[@]}" 'echo over ssh; cat | wc -c; exit 7' <"$TMP/blob" 2>&1; echo "status $?")
  sum=$($run ssh "${to[@]}" cat "$TMP/blob" 2>&1 | sha256sum)
  same "ssh-$mix" "over ssh 5000000 status 7 $(sha256sum <"$TMP/blob")" "$(echo $out) $sum"
  kill "$server"
}
for mix in plain:plain plain:accel accel:plain accel:accel; do if wanted "ssh-$mix"; then over_ssh $mix; fi; done

# A program of another C library: netacc_run leaves the library out; where a shell hands LD_PRELOAD
# on to it its loader refuses the library (docs/manual/limits.md).
musl() {
  command -v musl-gcc >/dev/null || { skip musl "no musl-gcc"; return; }
  printf '#include <stdio.h>\nint main(void) { puts("musl"); return 3; }\n' >"$TMP/musl.c"
  musl-gcc -o "$TMP/musl" "$TMP/musl.c"
  same musl-by-netacc_run "musl"$'\n'"status 3" "$("$LIB_DIR/netacc_run" "$TMP/musl" 2>/dev/null; echo "status $?")"
  same musl-by-a-shell "status 127" "$(LD_PRELOAD=$LIB sh -c "$TMP/musl; exit \$?" 2>/dev/null; echo "status $?")"
}
if wanted musl; then musl; fi

# counted NAME PROGRAM SECONDS NEEDED... : a Python program that says what it has found, where all
# that it needs is there.
counted() {
  local name=$1 program=$2 seconds=$3 tool said; shift 3
  for tool in python3 "$@"; do command -v "$tool" >/dev/null || { skip "$name" "no $tool"; return; }; done
  if said=$(timeout "$seconds" python3 "$here/$program" "$LIB" 2>&1); then ok "$name" "$(tail -n 1 <<<"$said")"; else fail "$name" "$said"; fi
}
# What the start of a program costs.
if wanted start-up-cost; then counted start-up-cost start_cost.py 600; fi
# What a connection of one request and one reply costs: no system call.
if wanted short-connections-cost-no-call; then counted short-connections-cost-no-call short_calls.py 600 strace cc; fi

for name in "${WANTED[@]}"; do [[ " ${KNOWN[*]} " == *" $name "* ]] || fail "$name" "there is no such test"; done
finish
