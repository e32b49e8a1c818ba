#!/usr/bin/env bash
# `make install` below a prefix of one's own, without root, and `make uninstall`: what is there,
# that nothing is written elsewhere, and that what is installed works from there. (By root, and out
# of the tarball: tests/deb.)
. "$(dirname "$0")/lib.sh"
need_library
for tool in make python3; do command -v $tool >/dev/null || { skip all "no $tool"; finish; exit; }; done
ROOT=$(cd "$here/../.." && pwd)
NOBODY=65534

# As root this is another user, who can write to $HERE alone; else it is who runs it.
HERE=$TMP/here
mkdir "$HERE"
own=()
if [ "$(id -u)" = 0 ]; then
  chmod 711 "$TMP"; chown $NOBODY "$HERE"
  own=(setpriv "--reuid=$NOBODY" "--regid=$NOBODY" --clear-groups)
  command -v setpriv >/dev/null && "${own[@]}" test -r "$ROOT/Makefile" -a -r "$LIB" || {
    skip all "user $NOBODY cannot read $ROOT or $LIB_DIR, or there is no setpriv"; finish; exit; }
fi
as_user() { (cd "$ROOT" && "${own[@]}" env -i PATH="$PATH" HOME="$HERE" LANG=C.UTF-8 "$@"); }
makes() { as_user make -s "BIN_DIR=$LIB_DIR" "$@"; }
listed() { (cd "$1" 2>/dev/null && find . ! -type d -printf '%m %P\n' | sort); }

# expected PREFIX [SYSCONFDIR]: the files of an installation, by what there is in the tree.
expected() {
  local file
  printf '755 %s\n' "$1"/bin/{netacc,netacc_run,netacc_ss} "$1/sbin/netacc-enable" "$1/lib/libnetacc-preload.so"
  printf '644 %s\n' "$1/include/netacc.h" "${2:-$1/etc}/netacc.conf"
  for file in "$ROOT"/man/*; do echo "644 $1/share/man/man${file##*.}/${file##*/}"; done
  for file in "$ROOT"/completions/bash/*; do echo "644 $1/share/bash-completion/completions/${file##*/}"; done
  for file in "$ROOT"/completions/zsh/*; do echo "644 $1/share/zsh/site-functions/${file##*/}"; done
  for file in "$ROOT"/completions/fish/*; do echo "644 $1/share/fish/vendor_completions.d/${file##*/}"; done
}
# Files of that user's that are newer than the beginning, where anybody may write, but for those
# below. (What is not for anybody he could not write: as root that is the rest.)
touch "$TMP/begun"
outside() { find /tmp /var/tmp /dev/shm -path "$TMP" -prune -o -newer "$TMP/begun" -uid "${own:+$NOBODY}" -print 2>/dev/null; }

# A private prefix has a netacc.conf of its own.
P=$HERE/n
out=$(makes install "PREFIX=$P" 2>&1); same installs 0 $?
same says "installed below $P; try: $P/bin/netacc doctor" "$(tail -n 1 <<<"$out")"
same files "$(expected n | sort)" "$(listed "$HERE")"
[ ${#own[@]} -eq 0 ] || same nothing-outside '' "$(outside)"
cmp -s "$LIB" "$P/lib/libnetacc-preload.so" && ok library || fail library

# It works from there: its own library, its own netacc.conf.
PORT=$(free_port)
sed -i 's/^NACC_LOG_LEVEL=.*/NACC_LOG_LEVEL=2/' "$P/etc/netacc.conf"
mkfifo "$TMP/in"; exec {IN}<>"$TMP/in"
runs() { exec "${own[@]}" env -i PATH="$PATH" HOME="$HERE" NACC_LOG_PATH="$HERE/log" "$P/bin/netacc_run" python3 -B "$here/rules_app.py" "$@"; }
runs server 127.0.0.1 "$PORT" <"$TMP/in" >"$TMP/server" 2>&1 & SERVER=$!; PIDS+=("$SERVER")
wait_for 20 grep -q ready "$TMP/server" || fail starts "$(cat "$TMP/server")"
runs client 127.0.0.1 "$PORT" <"$TMP/in" >"$TMP/client" 2>&1 & CLIENT=$!; PIDS+=("$CLIENT")
wait_for 30 grep -q . "$TMP/client"
same accelerated 'shm none' "$(cat "$TMP/client")"
same own-library "$P/lib/libnetacc-preload.so" "$(grep -oE '/[^ ]*libnetacc[^ ]*' "/proc/$SERVER/maps" | sort -u)"
same own-config "2 file" "$("${own[@]}" "$P/bin/netacc_ss" -s cfg --json "$SERVER" | python3 -c '
import json, sys
of = json.load(sys.stdin)["config"]["NACC_LOG_LEVEL"]
print(of["value"], of["origin"])' 2>&1)"
kill "$SERVER" "$CLIENT"; wait "$SERVER" "$CLIENT" 2>/dev/null

# What was edited stays, and goes with nothing.
makes install "PREFIX=$P" >/dev/null 2>&1
same edited-stays 'NACC_LOG_LEVEL=2' "$(grep ^NACC_LOG_LEVEL "$P/etc/netacc.conf")"
cmp -s "$ROOT/netacc.conf" "$P/etc/netacc.conf.new" && ok new-beside || fail new-beside "$(ls "$P/etc")"
makes uninstall "PREFIX=$P" >/dev/null 2>&1; same uninstalls 0 $?
same left '644 etc/netacc.conf
644 etc/netacc.conf.new' "$(listed "$P")"

# Below DESTDIR, as who packs it does: the system's prefixes have /etc, another has its own, and
# SYSCONFDIR says it for any.
staged() { # NAME EXPECTED VARIABLES...
  rm -rf "$HERE/root"
  local said; said=$(makes install "DESTDIR=$HERE/root" "${@:3}" 2>&1)
  same "$1" "$2" "$(listed "$HERE/root")$said"
  makes uninstall "DESTDIR=$HERE/root" "${@:3}" >/dev/null 2>&1
  same "$1-uninstalled" netacc.conf "$(cd "$HERE/root" && find . ! -type d -printf '%f\n')"
}
staged destdir "$(expected usr etc | sort)" PREFIX=/usr
staged destdir-local "$(expected usr/local etc | sort)"
staged destdir-own "$(expected opt/n | sort)" PREFIX=/opt/n
staged destdir-sysconfdir "$(expected opt/n srv/c | sort)" PREFIX=/opt/n SYSCONFDIR=/srv/c
same nothing-else 'n root' "$(cd "$HERE" && rm -f log* && echo *)"
finish
