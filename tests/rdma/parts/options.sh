# Every option of netacc.conf, changed, and what comes of it over RDMA: tests/apps/options_app.py,
# with both ends in one kernel.
# shellcheck shell=bash disable=SC2154
for kind in rxe siw; do
  LIMIT=600 rig one --device $kind --memory 700 "python3 -B /rig/tree/tests/apps/options_app.py check rdma 10.0.0.1 2>&1"
  if [ "$STATUS" = 0 ]; then ok "options-$kind" "$(grep -c ' ok$' <<<"$OUT") options"; else fail "options-$kind" "status $STATUS
$(grep -v ' ok$' <<<"$OUT")
$ERR"; fi
done
