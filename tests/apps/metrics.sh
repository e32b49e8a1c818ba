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

# How long answers take, once somebody has asked for it; a histogram's last bucket has all of them.
same latencies-unasked "" "$(value 'netacc_serve_seconds_count{')"
measures() { [ "$(value 'netacc_serve_seconds_count{')" -gt 0 ]; }
measured() {
  "$LIB_DIR/netacc" cfg set NACC_TRACE 2 -p "$server" >"$TMP/cfg" 2>&1 && wait_for 30 measures
}

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
  # What each panel of the dashboard asks, with its variables as Grafana has them: it is understood,
  # and has an answer.
  panels=$here/../../packaging/grafana/netacc.json
  asked() {
    curl -sS -m 20 -G "http://127.0.0.1:$prometheus/api/v1/query" --data-urlencode "query=$1" >"$TMP/answer" &&
      grep -q '"status":"success"' "$TMP/answer" && grep -q '"value":' "$TMP/answer"
  }
  count=0
  while IFS=$'\t' read -r title expression; do
    count=$((count + 1))
    wait_for 20 asked "$expression" || fail "panel-$count" "$title: $expression"$'\n'"$(cat "$TMP/answer")"
  done < <(python3 -c '
import json, sys
for panel in json.load(open(sys.argv[1]))["panels"]:
    for target in panel.get("targets", []):
        said = target["expr"].replace("$__rate_interval", "10s").replace("$instance", ".*").replace("$program", ".*")
        print(panel["title"], said, sep="\t")' "$panels")
  if [ "$count" -ge 10 ]; then ok panels "$count"; else fail panels "$count"; fi
  # Open connections on TCP, by reason: what netacc_ss says of the server, of which one is open that
  # stays on TCP, and others have ended.
  exec 5<>"/dev/tcp/127.0.0.1/$port"
  on_tcp() {
    "$SS" --json -s sock "$server" | python3 -c '
import collections, json, sys
sockets = json.load(sys.stdin)["sockets"]
slow = [c for c in sockets if "tcp" in (c["tx_path"], c["rx_path"])]
found = collections.Counter(c["reason"] for c in slow)
print(*sorted(f"{reason} {count}" for reason, count in found.items()), sep="\n")'
  }
  panel_says() {
    asked "$1" && python3 -c '
import json, sys
series = json.load(sys.stdin)["data"]["result"]
found = [(one["metric"]["reason"], one["value"][1]) for one in series if one["value"][1] != "0"]
print(*sorted(" ".join(one) for one in found), sep="\n")' <"$TMP/answer"
  }
  reasons=$(python3 -c '
import json, sys
(panel,) = [p for p in json.load(open(sys.argv[1]))["panels"] if p["title"] == "Connections on TCP, by reason"]
asked = panel["targets"][0]["expr"].replace("$instance", ".*").replace("$program", ".*")
print(asked.replace("{", "{pid=\"" + sys.argv[2] + "\",", 1))' "$panels" "$server")
  agrees() {
    on_tcp >"$TMP/on_tcp" && panel_says "$reasons" >"$TMP/panel" &&
      [ -n "$(cat "$TMP/on_tcp")" ] && cmp "$TMP/on_tcp" "$TMP/panel"
  }
  if wait_for 30 agrees; then ok panel-reasons; else
    fail panel-reasons "netacc_ss: $(paste -sd , "$TMP/on_tcp"); $reasons: $(paste -sd , "$TMP/panel")"; fi
  exec 5>&-
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
  if [ "$lines" = 8 ]; then ok plots; else fail plots "$lines lines"; fi
  if grep -q '<p id="latency-hint">' "$TMP/page"; then ok says-how; else fail says-how "$(grep latency "$TMP/page")"; fi
  if grep -q CONSOLE "$TMP/page.err"; then fail console "$(grep CONSOLE "$TMP/page.err")"; else ok console; fi
fi

if measured; then ok latencies; else fail latencies "$(cat "$TMP/cfg"; "$LIB_DIR/netacc" trace list)"; fi
curl -sS -m 20 "http://$place/metrics" | grep -F "pid=\"$server\"" | grep '^netacc_serve_seconds' >"$TMP/serve"
same latencies-all "$(grep _count "$TMP/serve" | sed 's/.* //')" "$(grep -F 'le="+Inf"' "$TMP/serve" | sed 's/.* //')"
if [ -z "$browser" ]; then skip latency-plot "no chromium"; else
  HOME=$TMP timeout 120 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$TMP/browser" \
    --enable-logging=stderr --virtual-time-budget=5000 --dump-dom "http://$place/" >"$TMP/page" 2>"$TMP/page.err"
  plots=$(grep -oE '<polyline class="serve-p[0-9]*" points="[ 0-9][^"]*[0-9]' "$TMP/page" | wc -l)
  if [ "$plots" = 2 ] && grep -q '<p id="latency-hint" hidden' "$TMP/page"; then ok latency-plot; else
    fail latency-plot "$(grep -i latency "$TMP/page" "$TMP/page.err")"; fi
fi
finish
