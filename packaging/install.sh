#!/bin/sh
# Installs netacc out of the unpacked tarball; `make install` and the Debian packages call it for
# what they have built.
#
#   ./install.sh [--uninstall]
#
# PREFIX=/usr/local       below which it is installed; may be below your home, without root
# DESTDIR=                a directory that stands for the root of the file system
# SYSCONFDIR=             of netacc.conf: /etc with the prefixes /usr and /usr/local, otherwise PREFIX/etc
# BINDIR= SBINDIR= LIBDIR= INCLUDEDIR= MANDIR= DATADIR= ZSHDIR=     parts of it
#
# A changed netacc.conf is kept; the new one is put beside it. --uninstall takes away everything
# but netacc.conf.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# The tarball has this script at its top, the source in a folder.
if [ -d "$here/man" ]; then root=$here; else root=$(dirname "$here"); fi
if [ -n "${BIN_DIR:-}" ]; then
  from_bin=$BIN_DIR from_lib=$BIN_DIR/libnetacc_preload.so
else
  from_bin=$root/bin from_lib=$root/lib/libnetacc-preload.so
fi
if [ -e "$root/sbin/netacc-enable" ]; then from_sbin=$root/sbin; else from_sbin=$root/packaging; fi

PREFIX=${PREFIX:-/usr/local}
DESTDIR=${DESTDIR:-}
case $PREFIX in
  /usr | /usr/local) : "${SYSCONFDIR:=/etc}" ;;
  *) : "${SYSCONFDIR:=$PREFIX/etc}" ;;
esac
BINDIR=${BINDIR:-$PREFIX/bin} SBINDIR=${SBINDIR:-$PREFIX/sbin} LIBDIR=${LIBDIR:-$PREFIX/lib}
DATADIR=${DATADIR:-$PREFIX/share} INCLUDEDIR=${INCLUDEDIR:-$PREFIX/include}
MANDIR=${MANDIR:-$DATADIR/man} ZSHDIR=${ZSHDIR:-$DATADIR/zsh/site-functions}
programs="netacc_run netacc_ss netacc"

# each COMMAND: calls it with every file but the library and netacc.conf: mode, source, directory.
each() {
  for program in $programs; do "$1" 755 "$from_bin/$program" "$BINDIR"; done
  "$1" 755 "$from_sbin/netacc-enable" "$SBINDIR"
  "$1" 644 "$root/include/netacc.h" "$INCLUDEDIR"
  for page in "$root"/man/*.[1-8]; do "$1" 644 "$page" "$MANDIR/man${page##*.}"; done
  for file in "$root"/completions/bash/*; do "$1" 644 "$file" "$DATADIR/bash-completion/completions"; done
  for file in "$root"/completions/zsh/*; do "$1" 644 "$file" "$ZSHDIR"; done
  for file in "$root"/completions/fish/*; do "$1" 644 "$file" "$DATADIR/fish/vendor_completions.d"; done
}
is_there() { [ -e "$2" ] || { echo "$2 is missing${BIN_DIR:+: run make first}" >&2; exit 1; }; }
put() {
  install -d "$DESTDIR$3"
  # A new file under the old name: running programs keep the one they have mapped.
  install -m "$1" "$2" "$DESTDIR$3/.netacc-new"
  mv -f "$DESTDIR$3/.netacc-new" "$DESTDIR$3/${4:-${2##*/}}"
}
take_away() { rm -f "$DESTDIR$3/${2##*/}"; }
# `ldconfig -p` lists the library then. Packages do so in their own scripts.
tell_loader() { [ -n "$DESTDIR" ] || [ "$(id -u)" != 0 ] || PATH="$PATH:/sbin:/usr/sbin" ldconfig || true; }

case ${1:-} in
  '') ;;
  --uninstall)
    each take_away
    rm -f "$DESTDIR$LIBDIR/libnetacc-preload.so"
    tell_loader
    exit
    ;;
  *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; [ "$1" = --help ]; exit ;;
esac

each is_there
is_there 755 "$from_lib"
put 755 "$from_lib" "$LIBDIR" libnetacc-preload.so
each put
if [ -e "$DESTDIR$SYSCONFDIR/netacc.conf" ] && ! cmp -s "$root/netacc.conf" "$DESTDIR$SYSCONFDIR/netacc.conf"; then
  echo "netacc.conf differs and is kept; the new one is $DESTDIR$SYSCONFDIR/netacc.conf.new"
  put 644 "$root/netacc.conf" "$SYSCONFDIR" netacc.conf.new
else
  put 644 "$root/netacc.conf" "$SYSCONFDIR" netacc.conf
fi
tell_loader
[ -n "$DESTDIR" ] || echo "installed below $PREFIX; try: $BINDIR/netacc doctor"
