#!/usr/bin/env bash
# HTTP by curl: 32 MiB down and up, one connection for many requests; Python's http.server, a Python
# server that takes POST, and nginx; with the library at neither end, at one, at both.
. "$(dirname "$0")/lib.sh"
need_library
command -v curl >/dev/null || { skip all "no curl"; finish; exit; }
PYTHON=/usr/bin/python3
[ -x $PYTHON ] || PYTHON=$(command -v python3) || { skip all "no python3"; finish; exit; }

SIZE=$((32 << 20)) REQUESTS=8
mkdir -p "$TMP/www" "$TMP/up"
chmod 755 "$TMP" "$TMP/www"; chmod 777 "$TMP/up"
head -c $SIZE /dev/urandom >"$TMP/www/body"
chmod 644 "$TMP/www/body"
SUM=$(sha256sum <"$TMP/www/body" | cut -d ' ' -f 1)

# --- servers: start_KIND plain|accel PORT ; each sets PID to the process that serves, and PORT if
# it has its own
begin() { # HOW COMMAND... : in the background
  local how=$1; shift
  if [ "$how" = accel ]; then become_accel "$@" & else "$@" & fi >"$TMP/server.out" 2>&1
  PID=$!
  PIDS+=("$PID")
}
start_python() { begin "$1" $PYTHON -m http.server "$2" --bind 127.0.0.1 --directory "$TMP/www" $PROTOCOL; }
start_post() {
  begin "$1" $PYTHON "$here/python_app.py" serve
  wait_for 10 grep -q . "$TMP/server.out"
  PORT=$(cut -d ' ' -f 1 "$TMP/server.out")
}
start_nginx() {
  cat >"$TMP/nginx.conf" <<C
$([ "$(id -u)" = 0 ] && echo "user root;")
worker_processes 1; daemon off; master_process off; pid $TMP/nginx.pid; error_log $TMP/nginx.err warn;
events { worker_connections 100; }
http {
  access_log off; client_max_body_size 100m; sendfile on; keepalive_timeout 20;
  client_body_temp_path $TMP/n-body; proxy_temp_path $TMP/n-proxy; fastcgi_temp_path $TMP/n-f; uwsgi_temp_path $TMP/n-u; scgi_temp_path $TMP/n-s;
  server { listen 127.0.0.1:$2; root $TMP/www; location /up/ { alias $TMP/up/; dav_methods PUT; } }
}
C
  begin "$1" nginx -p "$TMP" -c "$TMP/nginx.conf"
}
# http.server speaks HTTP/1.1 from Python 3.11 on.
PROTOCOL=
$PYTHON -m http.server --help | grep -q -- --protocol && PROTOCOL="--protocol HTTP/1.1"

# --- requests: each is told the port and says what is wrong
client=
get() {
  local said
  said=$($client curl -sS --max-time 30 -o "$TMP/got" -w '%{http_code} %{size_download}' "http://127.0.0.1:$1/body") || return
  [ "$said $(sha256sum <"$TMP/got" | cut -d ' ' -f 1)" = "200 $SIZE $SUM" ] || { echo "$said, or the body differs"; return 1; }
}
# A part of the body, and the rest of an interrupted transfer.
range() {
  local said
  said=$($client curl -sS --max-time 30 -r 1000000-29999999 -o "$TMP/got" -w '%{http_code}' "http://127.0.0.1:$1/body") || return
  [ "$said" = 206 ] && cmp "$TMP/got" <(tail -c +1000001 "$TMP/www/body" | head -c 29000000) || return
  head -c 5000000 "$TMP/www/body" >"$TMP/got"
  $client curl -sS --max-time 30 -C - -o "$TMP/got" "http://127.0.0.1:$1/body" && cmp "$TMP/got" "$TMP/www/body"
}
# Many requests of one curl: one connection, every body as it is on disk.
keep_alive() {
  local i urls=()
  for i in $(seq $REQUESTS); do urls+=("http://127.0.0.1:$1/body"); done
  $client curl -sS --max-time 30 -w '%{stderr}%{num_connects}\n' "${urls[@]}" 2>"$TMP/connects" |
    cmp - <(for i in $(seq $REQUESTS); do cat "$TMP/www/body"; done) || return
  [ "$(awk '{n += $1} END {print n, NR}' "$TMP/connects")" = "1 $REQUESTS" ] || { paste -s "$TMP/connects"; return 1; }
}
# The server answers with the checksum of what it got; uploads over one connection, with and without
# 100-continue.
post() {
  local said url=http://127.0.0.1:$1/
  said=$($client curl -sS --max-time 30 --data-binary "@$TMP/www/body" "$url" "$url" --next -sS --data-binary "@$TMP/www/body" -H Expect: "$url" \
    --next -sS -d short "$url") || return
  [ "$said" = "$SUM$SUM$SUM$(printf short | sha256sum | cut -d ' ' -f 1)" ] || { echo "the server got $said"; return 1; }
}
put() {
  $client curl -sSf --max-time 30 -T "$TMP/www/body" "http://127.0.0.1:$1/up/known" >/dev/null && cmp "$TMP/www/body" "$TMP/up/known" || return
  rm -f "$TMP/up/known"
}
# Uploads in chunks, which nginx reads in small parts, by edges: it stops where a read falls short.
chunked() {
  local i
  for i in $(seq 20); do
    $client curl -sSf --max-time 30 -T - "http://127.0.0.1:$1/up/chunked" <"$TMP/www/body" >/dev/null && cmp "$TMP/www/body" "$TMP/up/chunked" ||
      { echo "try $i of 20"; return 1; }
    rm -f "$TMP/up/chunked"
  done
}

counter() { "$SS" --json -s cnt "$PID" 2>/dev/null | tr -d ' ,"' | sed -n "s/^$1://p"; }

run() { # KIND REQUEST... : every mix of ends
  local kind=$1 how request mix; shift
  for how in plain accel; do
    PORT=$(free_port)
    "start_$kind" "$how" "$PORT"
    wait_for 10 bash -c "exec 3<>/dev/tcp/127.0.0.1/$PORT" || { fail "$kind-start-$how" "$(cat "$TMP/server.out" "$TMP/nginx.err" 2>/dev/null)"; continue; }
    for client in '' accel; do
      mix=${client:-plain}-to-$how
      for request in "$@"; do check "$kind-$request-$mix" "$request" "$PORT"; done
      [ "$how" = accel ] || continue
      # What crossed shared memory, by the server's count. A connection begins on TCP.
      moved=$(($(counter shm_bytes_tx) + $(counter shm_bytes_rx)))
      if [ -z "$client" ]; then
        same "$kind-nothing-moved-$mix" "0 0" "$(counter accelerated_total) $moved"
      elif [ $moved -ge $SIZE ]; then
        ok "$kind-accelerated-$mix" "$((moved >> 20)) MiB crossed shared memory"
      else
        fail "$kind-accelerated-$mix" "$("$SS" -s cnt "$PID")"
      fi
    done
    kill "$PID"
    wait "$PID" 2>/dev/null
  done
}

if [ -n "$PROTOCOL" ]; then run python get keep_alive; else run python get; fi
run post post
if command -v nginx >/dev/null; then
  requests=(get range keep_alive)
  nginx -V 2>&1 | grep -q http_dav_module && requests+=(put chunked)
  run nginx "${requests[@]}"
else
  skip nginx "no nginx"
fi
finish
