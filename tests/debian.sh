# A new, minimal Debian in a folder, and commands in it that end with the script that sources
# this, however it ends. Needs root.
# shellcheck shell=bash
# The script has `fail NAME LOG` and `finish`, and calls `no_debian` first: why there can be none,
# or nothing.
set -u -o pipefail
RELEASE=bookworm
CHILD='' DIR=''

no_debian() {
  [ "$(id -u)" = 0 ] || { echo "not root"; return; }
  tests/packages debootstrap:debootstrap git:git unshare:util-linux >"$1" 2>&1 || { echo "no debootstrap: $(tail -n 1 "$1")"; return; }
  unshare --mount --pid --fork true 2>/dev/null || echo "no namespaces"
}

leave_debian() {
  # --kill-child: with it ends the first process of the pid namespace, with that all others,
  # with those their mounts.
  [ -z "$CHILD" ] || { kill -KILL "$CHILD" && wait "$CHILD"; } 2>/dev/null
  [ -z "$DIR" ] || rm -rf --one-file-system "$DIR"
}
trap leave_debian EXIT
trap 'exit 129' HUP; trap 'exit 130' INT; trap 'exit 143' TERM

# apart COMMAND...: in a mount and a pid namespace; all it has mounted and started ends with it.
apart() {
  unshare --mount --pid --fork --kill-child --mount-proc "$@" </dev/null &
  CHILD=$!
  wait "$CHILD"
  local status=$?
  CHILD=''
  return $status
}

# new_debian FOLDER PACKAGE,PACKAGE LOG: from the mirror, and with the proxies and certificates,
# that apt has here. FOLDER.archives has the packages that it is made of.
urls() { apt-get indextargets --format '$(ORIGIN)|$(RELEASE)|$(REPO_URI)|$(COMPONENT)' 'Created-By: Packages' 2>/dev/null | grep "^Debian|$RELEASE"; }
new_debian() {
  local new=$1 mirror path PROXY=''
  mirror=$(urls | awk -F'|' -v r=$RELEASE '$2 == r {print $3; exit}')
  eval "$(apt-config shell PROXY Acquire::http::Proxy)"
  http_proxy=${http_proxy:-${PROXY:-}} apart debootstrap --variant=minbase --include="$2" \
    $RELEASE "$new" ${mirror:+"$mirror"} >>"$3" 2>&1 || { fail debootstrap "$3"; finish; }
  urls | sort -u | while IFS='|' read -r _ release url component; do echo "deb $url $release $component"; done >"$new.sources"
  [ ! -s "$new.sources" ] || cp "$new.sources" "$new/etc/apt/sources.list"
  apt-config dump | grep -E '^Acquire::(http|https|Retries|ForceIPv[46])' >"$new/etc/apt/apt.conf.d/90host"
  for path in /etc/apt/auth.conf.d /etc/ssl/certs /usr/share/ca-certificates /usr/local/share/ca-certificates; do
    [ ! -d $path ] || { mkdir -p "$new$path" && cp -rL $path/. "$new$path/" 2>/dev/null; }
  done
  cp -L /etc/resolv.conf /etc/hosts "$new/etc/"
  mkdir "$new.archives" && mv "$new"/var/cache/apt/archives/*.deb "$new.archives"
  rm -rf "$new"/var/lib/apt/lists/* "$new"/var/cache/apt/*
}

# What of the environment apt and cargo need to reach anything.
network_settings() { compgen -e | grep -E '_proxy$|_PROXY$|SSL_|_CERT$|_CA_|_CERTS$' | while read -r name; do echo "$name=${!name}"; done; }
