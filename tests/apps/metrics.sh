#!/usr/bin/env bash
# `netacc metrics` about a Redis under load: what Prometheus takes of it, and what a browser shows.
# Each of both is left out where it is not installed.
. "$(dirname "$0")/lib.sh"
need_library
command -v redis-server >/dev/null || { skip all "no redis-server"; finish; exit; }
command -v curl >/dev/null || { skip all "no curl"; finish; exit; }
rules=$here/../../packaging/prometheus/netacc.rules.yml

port=$(free_port)
become_accel redis-server --port "$port" --bind 127.0.0.1 --save '' --dir "$TMP" >"$TMP/redis.out" 2>&1 &
server=$!
PIDS+=("$server")
wait_for 30 sh -c "redis-cli -p $port ping | grep -qx PONG" || { fail start "$(tail -n 5 "$TMP/redis.out")"; finish; exit 1; }
become_accel redis-benchmark -p "$port" -n 1000000000 -c 4 -t set -q >/dev/null 2>&1 &
PIDS+=("$!")
wait_for 30 any_shm "$server" || { fail start "$("$SS" -s sock "$server" 2>&1)"; finish; exit 1; }

"$LIB_DIR/netacc" metrics --listen 127.0.0.1:0 2>"$TMP/metrics.out" &
PIDS+=("$!")
wait_for 30 grep -q http:// "$TMP/metrics.out" || { fail serve "$(cat "$TMP/metrics.out")"; finish; exit 1; }
place=$(sed 's|.*http://\(.*\)/|\1|' "$TMP/metrics.out")

# value NAME: of the server's series with that name and these labels.
value() { curl -sS -m 20 "http://$place/metrics" | grep -F "$1" | grep -F "pid=\"$server\"" | sed 's/.* //'; }
check connections test "$(value 'netacc_connections{' | paste -sd ' ')" != ""
first=$(curl -sS -m 20 "http://$place/metrics" | grep 'netacc_received_bytes_total{' | grep "pid=\"$server\"" | grep shm | sed 's/.* //')
rises() { [ "$(value 'netacc_received_bytes_total{' | sort -n | tail -n 1)" -gt "$first" ]; }
check bytes wait_for 30 rises

scraped() {
  curl -sS -m 20 -G "http://127.0.0.1:$prometheus/api/v1/query" --data-urlencode "query=$1" | grep -q "\"pid\":\"$server\""
}
if ! command -v prometheus >/dev/null; then skip prometheus "no prometheus"; else
  prometheus=$(free_port)
  printf '%s\n' 'global: {scrape_interval: 1s, evaluation_interval: 1s}' \
    "scrape_configs: [{job_name: netacc, static_configs: [{targets: ['$place']}]}]" \
    "rule_files: ['$(realpath "$rules")']" >"$TMP/prometheus.yml"
  prometheus --config.file="$TMP/prometheus.yml" --storage.tsdb.path="$TMP/tsdb" \
    --web.listen-address="127.0.0.1:$prometheus" >"$TMP/prometheus.out" 2>&1 &
  PIDS+=("$!")
  if wait_for 60 scraped 'rate(netacc_received_bytes_total{path="shm"}[10s]) > 0'; then ok prometheus; else
    fail prometheus "$(curl -sS -m 20 "http://127.0.0.1:$prometheus/api/v1/targets"; tail -n 5 "$TMP/prometheus.out")"; fi
  rules_hold() {
    curl -sS -m 20 "http://127.0.0.1:$prometheus/api/v1/rules" >"$TMP/rules" &&
      [ "$(grep -o '"health":"ok"' "$TMP/rules" | wc -l)" = "$(grep -c 'alert:' "$rules")" ]
  }
  if wait_for 30 rules_hold; then ok rules; else fail rules "$(cat "$TMP/rules")"; fi
fi

browser=
for name in chromium-headless-shell chromium google-chrome; do
  if [ -z "$browser" ] && command -v "$name" >/dev/null; then browser=$name; fi
done
if [ -z "$browser" ]; then skip page "no chromium"; else
  HOME=$TMP timeout 120 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$TMP/browser" \
    --enable-logging=stderr --virtual-time-budget=5000 --dump-dom "http://$place/" >"$TMP/page" 2>"$TMP/page.err"
  if grep -q "<td>$server</td><td>redis-server</td>" "$TMP/page"; then ok page; else fail page "$(cat "$TMP/page" "$TMP/page.err")"; fi
  # A line for each path, with points.
  lines=$(grep -oE '<polyline class="[a-z]*" points="[0-9][^"]*"' "$TMP/page" | wc -l)
  if [ "$lines" = 6 ]; then ok plots; else fail plots "$lines lines"; fi
  if grep -q CONSOLE "$TMP/page.err"; then fail console "$(grep CONSOLE "$TMP/page.err")"; else ok console; fi
fi
finish
