# The application tests' two halves, for `tests/rdma/apps`: each is called in a kernel, with $HOW,
# and writes what it has found into /rig/exchange. Who serves ends when `client-ended` is told.
# shellcheck shell=bash disable=SC2154

# plain: without the library; tcp: with it, no path allowed; rdma: as it is started by a user, with
# $OPTIONS.
case $HOW in
  plain) RUN=() ;;
  tcp) RUN=(env NACC_PATHS=tcp /rig/build/netacc_run) ;;
  rdma) RUN=(/rig/build/netacc_run $OPTIONS) ;;
esac
# The reason of a failure is mostly in there.
export NACC_LOG_LEVEL=1 NACC_LOG_PATH=/rig/exchange/$ROLE.log

look() { /rig/tree/tests/rdma/guest/look.py "$@"; }
[ "$HOW" != rdma ] || look pauses "/rig/exchange/$ROLE.pause" </dev/null >/dev/null 2>&1 &
note() { echo "$2" >"/rig/exchange/$ROLE$NOTES.$1"; }

# accelerated NAME N PID... : waits until all N connections of these are on RDMA both ways, and
# notes what they are on.
accelerated() {
  local name=$1; shift
  [ "$HOW" = rdma ] || { note "$name" "-"; return; }
  local begin=$SECONDS
  until look on "$@" 2>/dev/null; do [ $((SECONDS - begin)) -lt "${PATIENCE:-40}" ] || break; sleep 0.2; done
  note "$name" "$(look paths "${@:2}" 2>&1)"
}

# ended NAME PID: its status, when it has ended; `hangs` when it does not within 30 s.
ended() {
  gone() { ! kill -0 "$2" 2>/dev/null; }
  local status
  if wait_for "${PATIENCE:-30}" gone "$@"; then wait "$2"; status=$?; else status=hangs; kill -9 "$2"; fi
  note "$1" "$status"
}

# No queue pair outlives its process.
no_pairs() { ! rdma resource show qp 2>/dev/null | grep -q 'type RC'; }
left_over() { wait_for 5 no_pairs && note left "" || note left "$(rdma resource show qp | grep 'type RC')"; }

# --- Redis

redis_server() {
  local pid
  mkdir -p /tmp/redis; cd /tmp/redis || return
  "${RUN[@]}" redis-server --bind 127.0.0.1 "$SERVER" "$SERVER6" --protected-mode no --save '' >redis.log 2>&1 &
  pid=$!
  wait_for 30 redis-cli ping || { cat redis.log; return 1; }
  tell up
  for name in plain pipelined; do
    await "loaded-$name" || break
    accelerated "$name" 100 $pid
    tell "looked-$name"
  done
  await counted
  note value "$(redis-cli get key:__rand_int__ | sha256sum)"
  [ "$HOW" != rdma ] || { note counters "$(look counters $pid)"; note total "$(look total $pid)"; }
  tell noted
  await client-ended
  redis-cli shutdown nosave
  ended status $pid
  left_over
}

redis_client() {
  local options pid name size requests=${REQUESTS:-20000}
  await up || return
  for name in plain pipelined; do
    options=(-h "$SERVER" -c 100 -d 512 -t set); [ $name = plain ] || options+=(-P 16)
    "${RUN[@]}" redis-benchmark "${options[@]}" -n 1000000000 >/tmp/endless 2>&1 &
    pid=$!
    accelerated $name 100 $pid
    tell "loaded-$name"
    await "looked-$name"
    kill $pid
    ended "endless-$name" $pid
    # The counts that follow are those of the benchmarks that end by themselves.
    redis-cli -h "$SERVER" config resetstat >/dev/null
    "${RUN[@]}" redis-benchmark "${options[@]}" -n "$requests" --csv >"/tmp/$name" 2>&1
    note "benchmark-$name" "$? $(grep -c '^"SET"' "/tmp/$name") $(redis-cli -h "$SERVER" info commandstats | tr -d '\r' | sed -nE 's/^cmdstat_set:calls=([0-9]+),.*failed_calls=([0-9]+).*/\1 \2/p')"
  done
  for size in 1 511 16384 65537 3000000; do
    head -c $size /dev/urandom >/tmp/value
    "${RUN[@]}" redis-cli -h "$SERVER" -x set blob </tmp/value >/dev/null
    "${RUN[@]}" redis-cli -h "$SERVER" --raw get blob | head -c $size | cmp - /tmp/value >>/rig/exchange/"$ROLE".values 2>&1 || note values "$size bytes differ"
  done
  tell counted
  await noted
}

# --- nginx, curl, wrk

SIZES="0 1 1000 16384 65537 1000000 8000000"

nginx_server() {
  local pid size
  mkdir -p /tmp/www /tmp/nginx/up; cd /tmp/nginx || return
  for size in $SIZES; do head -c "$size" /dev/urandom >/tmp/www/"$size"; done
  (cd /tmp/www && sha256sum $SIZES) >/rig/exchange/sums
  cat >nginx.conf <<C
user root; worker_processes 2; daemon off; pid /tmp/nginx/pid; error_log /tmp/nginx/err warn;
events { worker_connections 400; }
http {
  access_log off; keepalive_timeout 60; keepalive_requests 100000000; default_type application/octet-stream;
  client_body_temp_path /tmp/nginx/b; proxy_temp_path /tmp/nginx/p; fastcgi_temp_path /tmp/nginx/f; uwsgi_temp_path /tmp/nginx/u;
  scgi_temp_path /tmp/nginx/s; client_max_body_size 100m;
  server {
    listen $SERVER:8080; listen [$SERVER6]:8080; root /tmp/www;
    location / { sendfile off; }
    location /sendfile/ { alias /tmp/www/; sendfile on; }
    location /up/ { alias /tmp/nginx/up/; dav_methods PUT; }
  }
}
C
  "${RUN[@]}" nginx -c /tmp/nginx/nginx.conf -p /tmp/nginx >out 2>&1 &
  pid=$!
  serves() { curl -sf "http://$SERVER:8080/1"; }
  wait_for 30 serves || { cat out err; return 1; }
  tell up
  await loaded || return
  accelerated wrk 40 $(pgrep -P $pid)
  tell looked
  await client-ended
  note uploads "$(cd up && sha256sum $SIZES | diff - /rig/exchange/sums && echo same)"
  kill -QUIT $pid
  ended status $pid
  note errors "$(grep -vE 'notice|gracefully|client .* closed' err | head -n 5)"
  left_over
}

nginx_client() {
  local size pid folder i
  await up || return
  cd /tmp || return
  for folder in "http://$SERVER:8080/" "http://$SERVER:8080/sendfile/" "http://[$SERVER6]:8080/"; do
    i=$((i + 1))
    mkdir "get$i"
    # One connection for all; that it was one is what num_connects says.
    for size in $SIZES $SIZES $SIZES; do printf 'url = "%s%s"\noutput = "get%s/%s"\n' "$folder" "$size" "$i" "$size"; done >urls
    "${RUN[@]}" curl -sSg --max-time 60 -K urls -w '%{http_code} %{num_connects}\n' >codes 2>curl.err
    note "get$i" "$? $(sort codes | uniq -c | tr -s ' \n' ' ') $(cat curl.err) $(cd "get$i" && sha256sum $SIZES | diff - /rig/exchange/sums && echo same)"
  done
  for size in $SIZES; do
    (cd get1 && "${RUN[@]}" curl -sSf --max-time 60 -T "$size" "http://$SERVER:8080/up/$size" >/dev/null) 2>>put.err
  done
  note put "$(cat put.err)"
  for i in $(seq 200); do printf 'url = "http://%s:8080/16384"\noutput = "many/%s"\n' "$SERVER" "$i"; done >urls
  mkdir many
  "${RUN[@]}" curl -sS --max-time 60 -Z --no-progress-meter --parallel-max 20 -K urls 2>curl.err
  note parallel "$? $(sha256sum many/* | cut -d' ' -f1 | sort | uniq -c | tr -s ' ') $(cat curl.err)"
  "${RUN[@]}" wrk -t 2 -c 40 -d 100000 --timeout 60 "http://$SERVER:8080/16384" >endless 2>&1 &
  pid=$!
  accelerated wrk 40 $pid
  tell loaded
  await looked
  kill $pid
  ended endless $pid
  timeout 60 "${RUN[@]}" wrk -t 2 -c 40 -d 3 --timeout 30 "http://$SERVER:8080/16384" >figures 2>&1
  note figures "$? $(grep -cE '^ *[1-9][0-9]* requests in' figures) $(grep -E 'Socket errors|Non-2xx|unable' figures)"
}

# --- streams of known bytes: traffic_server|traffic_client ADDRESS BYTES OPTIONS... Until all are
# on RDMA and have moved BYTES more each way. Where these are many the connections are idle then,
# and looked at.

FEW=4096

traffic_server() {
  local address=$1 bytes=$2 pid count; shift 2
  nice -n 19 "${RUN[@]}" /rig/exchange/traffic -f /tmp/traffic.server "$@" -b 0 server "$address" 7000 >/tmp/server.out 2>&1 &
  pid=$!
  listens() { ss -Hltn "sport = 7000" | grep -q . || ! kill -0 $pid; }
  wait_for 10 listens
  tell up
  await moved && {
    count=$(look streams /tmp/traffic.server | wc -l)
    accelerated on "$count" $pid
    [ "$HOW" != rdma ] || note counters "$(look counters $pid)"
  }
  [ "$bytes" -le $FEW ] || kill -USR1 $pid
  tell looked
  [ "$bytes" -le $FEW ] || { await quiet && note idle "$(rest $pid)"; tell rested; }
  await stopped
  ended status $pid
  note said "$(cat /tmp/server.out)"
  look streams /tmp/traffic.server | sort -n >/rig/exchange/server.streams
  left_over
}

# How often a process' threads have a CPU in 3 s, and for how many ticks of 10 ms; what is due right
# after its last bytes is over by then.
activity() { awk '/ctxt_switches/ {times += $2} END {printf "%d ", times}' /proc/"$1"/task/*/status; awk '{print $14 + $15}' "/proc/$1/stat"; }
rest() {
  local before
  sleep 2
  before=$(activity "$1"); sleep 3
  echo "$before $(activity "$1")" | awk '{print $3 - $1, $4 - $2}'
}

traffic_client() {
  local address=$1 bytes=$2 pid count; shift 2
  await up || return
  nice -n 19 "${RUN[@]}" /rig/exchange/traffic -f /tmp/traffic.client "$@" -b 0 client "$address" 7000 >/tmp/client.out 2>&1 &
  pid=$!
  made() { [ "$(look streams /tmp/traffic.client | wc -l)" = "$1" ] || ! kill -0 $pid; }
  count=$(sed -nE 's/.*-n ([0-9]+).*/\1/p' <<<"$*")
  wait_for 60 made "${count:-1}"
  count=$(look streams /tmp/traffic.client | wc -l)
  accelerated on "$count" $pid
  # From here on.
  look streams /tmp/traffic.client | sort -n >/tmp/before
  behind() { look streams /tmp/traffic.client | sort -n | join /tmp/before - | awk -v n="$bytes" '$6 < $2 + n || $7 < $3 + n'; }
  further() { ! kill -0 $pid || [ -z "$(behind)" ]; }
  wait_for "${PATIENCE:-40}" further && note further yes || note further "$(behind | head -n 5)"
  [ "$HOW" != rdma ] || note counters "$(look counters $pid)"
  tell moved
  await looked
  [ "$bytes" -le $FEW ] || { kill -USR1 $pid; tell quiet; note idle "$(rest $pid)"; await rested; }
  kill -TERM $pid
  ended status $pid
  tell stopped
  note said "$(cat /tmp/client.out)"
  look streams /tmp/traffic.client | sort -n >/rig/exchange/client.streams
}

# --- where RDMA cannot be

limited_server() {
  # (Another user: netacc_run would say that it can't write the exchange's log.)
  local pid NACC_LOG_PATH=/tmp/netacc-%u.log
  export NACC_LOG_PATH
  cd /tmp || return
  $LIMITED "${RUN[@]}" redis-server --bind "$SERVER" --protected-mode no --save '' >/tmp/redis.log 2>/tmp/redis.err &
  pid=$!
  wait_for 30 redis-cli -h "$SERVER" ping || { cat /tmp/redis.log /tmp/redis.err; return 1; }
  tell up
  await loaded && note paths "$(NETACC_PEER=$CLIENT: named "$pid")"
  tell looked
  await client-ended
  redis-cli -h "$SERVER" shutdown nosave
  ended status $pid
  note said "$(cat /tmp/redis.err)"
}

# What a process's connections are on, as soon as none is still agreed on.
named() {
  local begin=$SECONDS
  while look paths "$1" | grep -qE 'negotiating|agreed|not-started|rdma/' && [ $((SECONDS - begin)) -lt 20 ]; do sleep 0.2; done
  look paths "$1"
}

limited_client() {
  # (Another user: netacc_run would say that it can't write the exchange's log.)
  local pid NACC_LOG_PATH=/tmp/netacc-%u.log
  export NACC_LOG_PATH
  await up || return
  $LIMITED "${RUN[@]}" redis-benchmark -h "$SERVER" -c 20 -n 2000 -d 512 -t set --csv >/tmp/benchmark 2>&1
  note benchmark "$? $(grep -c '^"SET"' /tmp/benchmark)"
  $LIMITED "${RUN[@]}" redis-benchmark -h "$SERVER" -c 20 -n 1000000000 -d 512 -t set >/dev/null 2>&1 &
  pid=$!
  note paths "$(named $pid)"
  tell loaded
  await looked
  kill $pid
  wait $pid
  return 0
}

# All calls of a start but reads: netacc_run reads what ldd says in as many as it happens to take.
start_server() {
  cd /tmp || return
  strace -f -c -e trace='!read' -o true.calls "${RUN[@]}" true
  note true "$(awk '$1 ~ /^[0-9.]+$/ && $NF != "total" {n += $4} END {print n " calls"}' true.calls)"
  strace -f -e trace=openat,open,execve -o redis.calls "${RUN[@]}" redis-server --bind 127.0.0.1 --save '' >/dev/null &
  wait_for 30 redis-cli ping
  "${RUN[@]}" redis-benchmark -c 5 -n 500 -t set -q >/dev/null
  redis-cli shutdown nosave
  wait
  grep -q 'redis-server' redis.calls || return 1
  note opened "$(grep -hE 'ibverbs|rdmacm|infiniband' redis.calls | head -n 5)"
}
