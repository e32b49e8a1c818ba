#!/usr/bin/env bash
# nginx with forked workers, a reverse proxy in front of itself, and curl; every mix of accelerated
# and plain.
. "$(dirname "$0")/lib.sh"
need_library
command -v nginx >/dev/null && command -v curl >/dev/null || { skip all "no nginx or no curl"; finish; exit; }

mkdir -p "$TMP/www" "$TMP/run"
chmod 755 "$TMP" "$TMP/www"
for size in 0 1 1000 16384 65537 1000000 12000000; do head -c $size /dev/urandom >"$TMP/www/$size"; done
yes 'a line that packs well' | head -c 300000 >"$TMP/www/text.html"
chmod 644 "$TMP"/www/*

configure() { # NAME PORT UPSTREAM
  cat >"$TMP/run/$1.conf" <<C
$([ "$(id -u)" = 0 ] && echo "user root;")
worker_processes 2; daemon off; pid $TMP/run/$1.pid; error_log $TMP/run/$1.err warn;
events { worker_connections 200; }
http {
  access_log off; keepalive_timeout 20; default_type application/octet-stream;
  types { text/html html; }
  client_body_temp_path $TMP/run/$1-body; proxy_temp_path $TMP/run/$1-proxy; fastcgi_temp_path $TMP/run/$1-f;
  uwsgi_temp_path $TMP/run/$1-u; scgi_temp_path $TMP/run/$1-s; client_max_body_size 100m;
  server {
    listen 127.0.0.1:$2 reuseport backlog=128; listen [::1]:$2 reuseport;
    root $TMP/www;
    location / { sendfile on; }
    location /copy/ { alias $TMP/www/; sendfile off; }
    location /packed/ { alias $TMP/www/; gzip on; gzip_types text/html; }
    location /up/ { dav_methods PUT; alias $TMP/run/$1-up/; create_full_put_path on; }
    location /via/ { proxy_pass http://127.0.0.1:$3/; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }
  }
}
C
  mkdir -p "$TMP/run/$1-up"
}

start() { # NAME accel|plain
  local run=; [ "$2" = accel ] && run=accel
  $run nginx -c "$TMP/run/$1.conf" -p "$TMP/run" >"$TMP/run/$1.out" 2>&1 &
  local port=PORT_$1
  wait_for 10 curl -sf "http://127.0.0.1:${!port}/1" || { fail "start-$1" "$(cat "$TMP/run/$1.out" "$TMP/run/$1.err")"; finish; exit 1; }
  PIDS+=("$(cat "$TMP/run/$1.pid")")
}

PORT_acc=$(free_port) PORT_plain=$(free_port)
configure acc "$PORT_acc" "$PORT_plain"
configure plain "$PORT_plain" "$PORT_acc"
start plain plain
start acc accel

fetch_all() { # PORT PREFIX CURL... : checks every file
  local port=$1 prefix=$2 size; shift 2
  for size in 0 1 1000 16384 65537 1000000 12000000; do
    "$@" -s "http://127.0.0.1:$port$prefix$size" | cmp -s - "$TMP/www/$size" || { echo "$prefix$size differs"; return 1; }
  done
}
for prefix in / /copy/ /via/; do
  name=${prefix//\//}
  check "accelerated-both-${name:-sendfile}" fetch_all "$PORT_acc" "$prefix" accel curl
  check "plain-curl-${name:-sendfile}" fetch_all "$PORT_acc" "$prefix" curl
  check "plain-nginx-${name:-sendfile}" fetch_all "$PORT_plain" "$prefix" accel curl
done
same ipv6 "$(sha256sum <"$TMP/www/1000000")" "$(accel curl -gs "http://[::1]:$PORT_acc/1000000" | sha256sum)"
same gzip "$(sha256sum <"$TMP/www/text.html")" "$(accel curl -s --compressed "http://127.0.0.1:$PORT_acc/packed/text.html" | sha256sum)"

# One connection, many requests; and many connections at once.
urls() { local i; for i in $(seq "$1"); do echo "url = http://127.0.0.1:$PORT_acc/copy/16384"; echo "output = /dev/null"; done; }
urls 500 >"$TMP/run/urls"
same keep-alive "500 200" "$(accel curl -s -w '%{http_code}\n' -K "$TMP/run/urls" | sort | uniq -c | awk '{print $1, $2}')"
same parallel "500 200" "$(accel curl -sSZ --no-progress-meter --parallel-max 40 -w '%{http_code}\n' -K "$TMP/run/urls" | sort | uniq -c | awk '{print $1, $2}')"
urls 12000 >"$TMP/run/urls"
become_accel curl -s -K "$TMP/run/urls" >/dev/null 2>&1 &
client=$!
most=0
for _ in $(seq 100); do
  for pid in $(pgrep -P "$(cat "$TMP/run/acc.pid")"); do n=$(shm_count "$pid"); [ "$n" -gt $most ] && most=$n; done
  [ $most -ge 1 ] && break
done
[ $most -ge 1 ] && ok accelerated "a worker had $most connections on shared memory" || fail accelerated "no connection on shared memory"
wait_for_end $client 60
same keep-alive-ends 0 "$STATUS"

# Uploads.
if accel curl -sf -T "$TMP/www/1000000" "http://127.0.0.1:$PORT_acc/up/file" >/dev/null; then
  check upload cmp "$TMP/www/1000000" "$TMP/run/acc-up/file"
  begin=$SECONDS
  accel curl -sf -T "$TMP/www/12000000" "http://127.0.0.1:$PORT_acc/up/large" >/dev/null
  check large-upload cmp "$TMP/www/12000000" "$TMP/run/acc-up/large"
  # Plain needs 0.03 s: this finds stalls, it is no measurement.
  if [ $((SECONDS - begin)) -le 5 ]; then ok large-upload-does-not-stall; else fail large-upload-does-not-stall "12 MB took $((SECONDS - begin)) s"; fi
else
  skip upload "nginx without its WebDAV module"
fi

# A connection that the server closes, a client that goes away in the middle, a reload, the end.
same half-request "" "$(printf 'GET /12000000 HTTP/1.0\r\n\r\n' | accel curl -s --max-time 5 "telnet://127.0.0.1:$PORT_acc" 2>/dev/null | head -c 10 | head -c 0)"
accel curl -s --max-time 1 --limit-rate 1000 "http://127.0.0.1:$PORT_acc/12000000" >/dev/null 2>&1
check after-a-client-went-away fetch_all "$PORT_acc" / accel curl
master=$(cat "$TMP/run/acc.pid")
kill -HUP "$master"
check after-reload fetch_all "$PORT_acc" / accel curl
kill -QUIT "$master"
wait_for 15 sh -c "! kill -0 $master 2>/dev/null" && ok graceful-end || fail graceful-end "$(tail -n 5 "$TMP/run/acc.err")"
check workers-did-not-crash sh -c "! grep -E 'signal (11|6|4|7)' $TMP/run/acc.err"
finish
