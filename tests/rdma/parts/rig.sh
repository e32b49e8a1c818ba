# The rig itself: one kernel, two, and how they end.
# shellcheck shell=bash disable=SC2154

ok build "$(basename "$(head -n 1 "$TMP/built")")"
layer=$(tail -n 1 "$TMP/built")
compile stream -I"$layer/usr/include" "$layer"/usr/lib/x86_64-linux-gnu/lib{rdmacm,ibverbs}.so -Wl,--allow-shlib-undefined

# Two that are ended at their limit, seen to below.
"$RIG" two --limit 15 'trap "" TERM INT; echo spinning; while :; do :; done' 'echo asleep; sleep 1000' >"$TMP/limited.out" 2>"$TMP/limited.err" &
limited=$!
PIDS+=("$limited")

# --- the rig: one kernel
rig one 'echo out; echo err >&2; cat; exit 7'
is one-passes-output-and-status-on 7 out err
rig one --device none 'true'
is one-is-silent 0 '' ''
rig one --device none 'uname -r; ls /sys/class/infiniband; exec python3 -c "import socket; print(socket.socket(43, socket.SOCK_STREAM, 0).family)"'
is one-has-no-device-but-smc 0 "$(printf '%s\n43' "$(sed -n 's/^# Linux.* \(6\.12\.[^ ]*\) Kernel Configuration/\1/p' "$(head -n 1 "$TMP/built")/config")")" ''
rig one 'echo new >/etc/netacc-rig-test && cat /etc/netacc-rig-test; [ -x /rig/build/netacc_ss ] && ls /rig/tree/Makefile; touch /rig/tree/x /rig/build/x 2>/dev/null || echo read-only; echo given >/rig/exchange/file'
is one-sees-the-machine 0 "$(printf 'new\n/rig/tree/Makefile\nread-only')" ''
same one-exchanges-files given "$(cat "$X/file" 2>&1)"
check one-leaves-the-machine-alone test ! -e /etc/netacc-rig-test
for device in rxe:RoCE:InfiniBand siw:iWARP:iWARP; do
  IFS=: read -r kind _ transport <<<"$device"
  rig one --device "$kind" "ibv_devinfo -d rdma0 | tr -s ' \t' ' ' | grep -E '^ (transport|state):' | cut -d'(' -f1"
  is "one-$kind-device" 0 "$(printf ' transport: %s \n state: PORT_ACTIVE ' "$transport")" ''
  succeeds "one-$kind-traffic" one --device "$kind" 'rping -s -a 10.0.0.1 -C 20 -S 4000 & wait_for 10 listening && rping -c -V -a 10.0.0.1 -C 20 -S 4000 && wait $!'
done
succeeds one-device-comes-and-goes one --device rxe 'rdma link del rdma0 && [ -z "$(ls /sys/class/infiniband)" ] && add_device siw && ibv_devices | grep rdma0'
rig one --without-rdma-core 'ls /sys/class/infiniband; command -v rping; ls /etc/libibverbs.d; python3 -c "import ctypes; ctypes.CDLL(\"libibverbs.so.1\")" 2>&1 | tail -n 1 | cut -d: -f2'
same without-rdma-core "rdma0
 libibverbs.so.1" "$OUT"

# --- the rig: its end
wait_for_end "$limited" 100
same limit-ends-a-sleeper-and-a-spinner "status 124
asleep
server: spinning
rig: server: ended at the limit of 15 s
rig: client: ended at the limit of 15 s" "status $STATUS
$(cat "$TMP/limited.out" "$TMP/limited.err")"
rig one --device none 'echo before; kill -9 $PPID; perl -e "syscall 169, 0xfee1dead, 0x28121969, 0x4321fedc, 0"'
same lost-kernel-is-no-success "125 before" "$STATUS $OUT"
rig one --memory 1 'true'
same kernel-that-does-not-start "125 rig: the kernel did not run the command to its end:" "$STATUS $(head -n 1 "$TMP/err")"

# A kernel that falls over (its memory ends, which is a panic where one asks for that) is told of,
# and all is run once more, with an exchange folder as at first; not twice.
fall='{ sysctl -qw vm.panic_on_oom=2; tail /dev/zero; }'
export NETACC_RIG_PANICS=$TMP/fallen
rig two --device none --memory 128 "echo \$ATTEMPT; [ ! -e /rig/exchange/new ] || echo left; : >/rig/exchange/new; [ \$ATTEMPT = 2 ] || await never" \
  "[ \$ATTEMPT = 2 ] || $fall; echo \$ATTEMPT"
is fallen-kernel-is-run-once-more 0 2 'server: 2'
check fallen-kernel-is-told-of grep -qx "FLAKY: the client's kernel (none) fell over, and all was run once more. It said:" "$TMP/fallen"
check fallen-kernel-has-its-words grep -q 'Kernel panic - not syncing: ' "$TMP/fallen"
rm "$TMP/fallen"
rig one --device none --memory 128 "echo \$ATTEMPT; $fall"
same fallen-kernel-is-not-run-twice-more "125 2 1" "$STATUS $OUT $(grep -c '^FLAKY: ' "$TMP/fallen")"
rig one --device none 'kill -SEGV $$'
same dead-process-is-no-fallen-kernel "139 1" "$STATUS $(grep -c '^FLAKY: ' "$TMP/fallen")"
export NETACC_RIG_PANICS=$TMP/panics

# interrupted SIGNAL STATUS: a signal to a rig with two busy kernels leaves no process and no file.
interrupted() {
  local rig kernels kernel left folders
  rm -rf "$X"
  "$RIG" two --exchange "$X" --limit 300 'tell a; sleep 1000 & while :; do :; done' 'await a; : >/rig/exchange/up; sleep 1000' >"$TMP/out" 2>&1 &
  rig=$!
  PIDS+=("$rig")
  wait_for 60 test -e "$X/up" || { fail "interrupted-by-$1" "$(cat "$TMP/out")"; return; }
  # The keeper has the rig's command line, a kernel its own.
  kernels=$(pgrep -P "$rig" linux)
  folders=$(for kernel in $kernels; do tr '\0' '\n' <"/proc/$kernel/cmdline" | sed -n 's/^rig=//p'; done)
  same "two-kernels-before-$1" 2 "$(wc -w <<<"$kernels")"
  kill "-$1" "$rig"
  wait_for_end "$rig" 30 2>/dev/null
  same "status-after-$1" "$2" "$STATUS"
  for kernel in $kernels; do wait_for 30 sh -c "! pgrep -g $kernel" || left+="processes of $kernel "; done
  for folder in $folders; do wait_for 30 test ! -e "$folder" || left+="$folder "; done
  same "nothing-left-after-$1" "" "$left"
}
interrupted TERM 143
interrupted KILL 137

# --- the rig: two kernels
rig two 'echo "I am $ROLE"; exit 3' 'echo "I am $ROLE"'
is two-pass-output-and-status-on 3 'I am client' 'server: I am server'
rig two 'exit 3' 'exit 4'
same client-status-comes-first 4 "$STATUS"
rig two 'true' 'await never'
is await-fails-when-nobody-can-tell 1 '' 'the server ended without telling never'
rig two --device none 'exit 0' 'await server-ended; (: </dev/tcp/$SERVER/9) 2>&1 | grep -q refused && echo refused'
is two-kernels-outlive-their-commands 0 refused ''
echo_server='import os, socket
s = socket.create_server((os.environ["SERVER6"], 7), family=socket.AF_INET6) if HOST == 6 else socket.create_server((os.environ["SERVER"], 7))
open("/rig/told/up", "w")
c = s.accept()[0]
while data := c.recv(65536): c.sendall(data)'
echo_client='import os, socket, threading
c = socket.create_connection((os.environ["SERVER6" if HOST == 6 else "SERVER"], 7))
print(c.getpeername()[0])
data = os.urandom(1 << 20)
threading.Thread(target=lambda: (c.sendall(data), c.shutdown(socket.SHUT_WR)), daemon=True).start()
back = b""
while part := c.recv(65536): back += part
assert back == data
print(len(back))'
for version in 4:10.0.0.1 6:fd00::1; do
  rig two --device none "python3 -c 'HOST = ${version%%:*}
$echo_server'" "await up && python3 -c 'HOST = ${version%%:*}
$echo_client'"
  is "two-tcp-ipv${version%%:*}" 0 "${version#*:}
1048576" ''
done
for kind in rxe siw; do
  for address in 10.0.0.1 fd00::1; do
    rig two --device $kind "/rig/exchange/stream server $address" "await up && /rig/exchange/stream client $address"
    is "two-$kind-stream-$address" 0 1048576 ''
  done
done
# Reads, writes and sends; not on siw, see stream.c.
succeeds two-rxe-rping two --device rxe 'rping -s -a 10.0.0.1 -C 20 -S 4000 & wait_for 10 listening && tell up && wait $!' \
  'await up && rping -c -V -a 10.0.0.1 -C 20 -S 4000'
# The server says that it listens by its TCP port, on which the two exchange their addresses.
succeeds two-rxe-rc-pingpong two --device rxe 'ibv_rc_pingpong -e -d rdma0 -g 1 -n 20 & wait_for 10 sh -c "ss -Htln sport = 18515 | grep -q ." && tell up && wait $!' \
  'await up && ibv_rc_pingpong -e -d rdma0 -g 1 -n 20 $SERVER'
