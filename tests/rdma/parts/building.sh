# The rig itself: how its kernel and tools are built.
# shellcheck shell=bash disable=SC2154

# --- the rig: building. apt is played by two scripts; the kernel is taken as built.
mkdir -p "$TMP/bin" "$TMP/package/DEBIAN" "$TMP/package/usr/lib/netacc-rig-test" "$TMP/cache"
printf 'Package: p\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@localhost>\nDescription: none\n' >"$TMP/package/DEBIAN/control"
dpkg-deb -b "$TMP/package" "$TMP/p.deb" >/dev/null
mkfifo "$TMP/gate"
cat >"$TMP/bin/apt-cache" <<'C'
#!/bin/sh
printf 'p:\n  Installed: (none)\n  Candidate: 1\n'
C
cat >"$TMP/bin/apt-get" <<C
#!/bin/sh
case "\$*" in *download*) ;; *) exit 0 ;; esac
echo \$\$ >>"$TMP/downloads"
[ ! -e "$TMP/closed" ] || read -r _ <"$TMP/gate"
[ ! -e "$TMP/broken" ] || exit 1
cp "$TMP/p.deb" .
C
chmod +x "$TMP/bin/"*
builder() { PATH=$TMP/bin:$PATH NETACC_RIG_CACHE=$TMP/cache "$RIG" build; }
kernel=$(head -n 1 "$TMP/built")
mkdir "$TMP/cache/linux-1-${kernel##*-}" "$TMP/cache/build.left-over"

: >"$TMP/broken"
builder >"$TMP/out" 2>&1
same failed-download-fails-the-build "126 linux-1-${kernel##*-} lock" "$? $(cd "$TMP/cache" && echo linux* build.* lock rdma-core* | sed 's/ build\.\*//; s/ rdma-core\*//')"
rm "$TMP/broken" "$TMP/downloads"

: >"$TMP/closed"
builder >"$TMP/out1" 2>&1 &
first=$!
wait_for 20 test -s "$TMP/downloads"
builder >"$TMP/out2" 2>&1 &
second=$!
PIDS+=("$first" "$second")
wait_for 20 grep -q 'another rig is building' "$TMP/out2" && ok second-builder-waits || fail second-builder-waits "$(cat "$TMP/out2")"
# What a killed builder has started still holds the lock.
kill -9 "$(pgrep -P "$first" python3 || echo "$first")"
wait_for_end $first 10
check killed-builder-leaves-no-result sh -c "[ -z \"\$(ls -d $TMP/cache/rdma-core* 2>/dev/null)\" ]"
same second-builder-still-waits 1 "$(wc -l <"$TMP/downloads")"
rm "$TMP/closed"
echo >"$TMP/gate"
wait_for_end $second 20
same second-builder-builds "0 1" "$STATUS $(ls -d "$TMP"/cache/rdma-core-1-*/usr/lib/netacc-rig-test | wc -l)"
same builders-leave-no-work "" "$(ls "$TMP/cache" | grep '^build\.')"
rm "$TMP/downloads"
builder >/dev/null 2>&1
check built-once test ! -e "$TMP/downloads"
