# Every option of netacc.conf, changed, and what comes of it over RDMA: tests/apps/options_app.py,
# with both ends in one kernel. On siw those that are about queue pairs, memory and threads, and
# about which connections have them; the others do not ask which device it is. NETACC_RIG_BRIEF=1:
# on rxe not those that have nothing to do with a path, which tests/apps/options.sh has; all in
# `make test-rdma`.
# shellcheck shell=bash disable=SC2154
of_a_device='NACC_SOR_MSG_SIZE NACC_RDMA_MR_MIN_INC_SIZE NACC_RDMA_MR_MAX_INC_SIZE NACC_SOR_CONN_PER_QP NACC_SOR_IO_THREADS
NACC_EMPTY_QP_EXPIRE_MS NACC_EMPTY_QP_MAX_ALL NACC_EMPTY_QP_MAX_PER NACC_CQ_COMP_VECTOR NACC_RDMA_STALL_MS
NACC_CONN_TCP_FIRST NACC_FAST_CONNECT'
compile vectors -shared -fPIC
of_no_path='-NACC_IO_URING -NACC_LOG_LEVEL -NACC_LOG_PATH -NACC_POLL_TCP_US'
for kind in rxe siw; do
  wanted=
  [ -z "${NETACC_RIG_BRIEF:-}" ] || wanted=$of_no_path
  [ $kind = rxe ] || wanted=$of_a_device
  wanted=${wanted//$'\n'/ }
  LIMIT=600 rig one --device $kind --memory 700 "NETACC_VECTORS=/rig/exchange/vectors python3 -B /rig/tree/tests/apps/options_app.py check rdma 10.0.0.1 $wanted 2>&1"
  if [ "$STATUS" = 0 ]; then ok "options-$kind" "$(grep -c ' ok$' <<<"$OUT") options"; else fail "options-$kind" "status $STATUS
$(grep -v ' ok$' <<<"$OUT")
$ERR"; fi
done
for what in live counters; do
  LIMIT=600 rig one --device rxe --memory 700 "python3 -B /rig/tree/tests/apps/${what}_app.py rdma 10.0.0.1 2>&1"
  if [ "$STATUS" = 0 ]; then ok options-$what "$(grep -c ' ok$' <<<"$OUT") of them"; else fail options-$what "status $STATUS
$(grep -v ' ok$' <<<"$OUT")
$ERR"; fi
done
