# make            build everything, optimised
# make demo       netacc bench and Redis, plain against accelerated: one table, about a minute after the build; NETACC_DEMO=all: more rows, three minutes
# make bench      the full measurement against the project's targets, about 20 minutes; results in out/
# make bench-against BASE=COMMIT  the same rows with that library and with this one, in turn
# make bench-looks what the trace costs, and those who look on: status 1 above their budgets
# make bench-utcp  Redis with TCP in user space, between two network namespaces; needs root
# make test       every test
# make check      before each commit: format, lint, unit and model tests, conformance in one mode; minutes
# make test-hostile  attackers of other users against servers and clients; needs root
# make apps       real programs and other people's suites, plain against accelerated: docs/manual/applications.md
# make test-rdma  in user-mode Linux kernels with RDMA devices, one built once: tests/rdma/README.md
# make test-fresh make demo and make test in a new, minimal Debian; needs root
# make soak       test-fresh, test-deb and the site, then scenarios whose order is chance, conformance, kill and stress for hours, spoilt segments and traces, tests/mix, the off-switch 5,000 times, other people's suites in full, soak-rdma, and the mutants
# make soak-rdma  off-switch 1,000 times, 500 random faults, 1 GB each way, 100,000 requests; hours
# make starve     memory, mappings, descriptors and threads fail for the library, each in turn; an hour
# make mutants    puts bugs into the code, one at a time: a test must fail for each; hours
# make install    PREFIX=/usr/local DESTDIR=; SYSCONFDIR=/etc, or PREFIX/etc for a private PREFIX
# make deb          Debian packages of the commit that is checked out, in out/deb
# make tarball      the same as a tarball with an install.sh, in out
# make test-deb     what happens with both in a new, minimal Debian; needs root
# make site         the manual as a site, in out/site; takes mdBook, which is built where it is missing
# make clean

CARGO      ?= cargo
PREFIX     ?= /usr/local
# /etc for the system's prefixes; a private prefix has its own.
SYSCONFDIR ?= $(if $(filter /usr /usr/local,$(PREFIX)),/etc,$(PREFIX)/etc)
DESTDIR    ?=
BINDIR     ?= $(PREFIX)/bin
LIBDIR     ?= $(PREFIX)/lib
MANDIR     ?= $(PREFIX)/share/man

BIN_DIR  := $(or $(CARGO_TARGET_DIR),target)/release

.PHONY: all build conformance-program demo bench bench-against bench-looks bench-utcp test check test-hostile apps test-rdma test-fresh soak soak-rdma starve mutants install uninstall clean

all: build

build:
	$(CARGO) build --release -p netacc-preload -p netacc-tools

# The one of tests/run-all.
conformance-program:
	CARGO_PROFILE_DEV_DEBUG=none $(CARGO) build -p netacc-tests --config 'profile.dev.opt-level=1' --config 'profile.dev.panic="abort"' --target-dir target/tests

# What a machine lacks is installed before the build, which takes minutes: a linker, the
# distribution's Redis, Python.
NEEDED := cc:gcc ld:binutils "/usr/include/stdio.h:libc6-dev" python3:python3 redis-server:redis-server redis-benchmark:redis-tools

PACKAGING := cc:gcc ld:binutils "/usr/include/stdio.h:libc6-dev" dh:debhelper dpkg-buildpackage:dpkg-dev fakeroot:fakeroot \
  lintian:lintian git:git

demo:
	tests/packages $(NEEDED)
	$(MAKE) build
	BIN_DIR=$(BIN_DIR) bench/demo

bench:
	tests/packages $(NEEDED)
	$(MAKE) build
	BIN_DIR=$(BIN_DIR) bench/targets

# bench/README.md says what it prints; --check by CHECK=1.
bench-against:
	$(if $(BASE),,$(error BASE=COMMIT, or BASE=DIRECTORY with a library, its programs beside it))
	tests/packages $(NEEDED) git:git
	$(MAKE) build
	BIN_DIR=$(BIN_DIR) bench/against.py "$(BASE)" $(if $(ROWS),--rows $(ROWS)) $(if $(ROUNDS),--rounds $(ROUNDS)) \
	  --json out/against.json $(if $(CHECK),--check)

bench-looks:
	tests/packages $(NEEDED)
	$(MAKE) build
	status=0; for part in trace looks; do BIN_DIR=$(BIN_DIR) bench/$$part --check || status=1; done; exit $$status

bench-utcp:
	tests/packages $(NEEDED) ip:iproute2
	$(MAKE) build
	BIN_DIR=$(BIN_DIR) bench/utcp

test:
	tests/run-all

check:
	tests/run-all check

test-hostile:
	NETACC_SUITES=hostile tests/run-all

test-rdma: build conformance-program
	NETACC_LIB_DIR="$(BIN_DIR)" tests/inject
	for suite in run apps counts conformance faults exits; do \
	  [ ! -x tests/rdma/$$suite ] || NETACC_LIB_DIR="$(BIN_DIR)" tests/rdma/$$suite || exit 1; done

# Real programs and other people's test suites, plain against accelerated; writes
# docs/manual/applications.md.
apps:
	tests/packages cc:gcc ld:binutils "/usr/include/stdio.h:libc6-dev" python3:python3
	$(MAKE) build
	NETACC_LIB_DIR="$(BIN_DIR)" tests/inject
	NETACC_LIB_DIR="$(BIN_DIR)" tests/apps/run --write

# Both commands of the README in a new, minimal Debian. Needs root.
test-fresh:
	tests/fresh

# Where the odds are looked for, what fails has failed.
soak: export NETACC_FLAKY = 0
soak: test-fresh test-deb site
	$(MAKE) build conformance-program
	for round in 1 2 3; do NETACC_LIB_DIR="$(BIN_DIR)" NETACC_TEST_LATE=60 \
	  target/tests/debug/netacc-conformance run --mode plain --twice --jobs 16 || exit 1; done
	NETACC_SUITES="conformance kill stress" NETACC_REPEAT=20 NETACC_KILL_ROUNDS=3000 NETACC_STRESS_OPERATIONS=20000000 tests/run-all
	NETACC_FUZZ_ROUNDS=3000000 NETACC_FUZZ_SEED=$$(date +%s) $(CARGO) test --release -p netacc-control --test hostile
	NETACC_LIB_DIR="$(BIN_DIR)" tests/mix
	NETACC_LIB_DIR="$(BIN_DIR)" NETACC_OFF_SECONDS=60 NETACC_OFF_TIMES=5000 tests/apps/off.sh
	NETACC_LIB_DIR="$(BIN_DIR)" tests/inject
	NETACC_LIB_DIR="$(BIN_DIR)" tests/apps/run --all redis-suite memcached-suite cpython-suite
	$(MAKE) bench-looks
	$(MAKE) soak-rdma
	$(MAKE) starve
	$(MAKE) mutants

soak-rdma: build conformance-program
	# Each of them, whatever the others come to.
	NETACC_LIB_DIR="$(BIN_DIR)" tests/inject
	export NETACC_LIB_DIR="$(BIN_DIR)" NETACC_RIG_LONG=1 failed=0; \
	$(CARGO) test --release -p netacc-core --lib -- --ignored --nocapture thousand || failed=1; \
	tests/rdma/run deleted off || failed=1; \
	tests/rdma/exits || failed=1; \
	tests/rdma/conformance || failed=1; \
	tests/rdma/apps redis transfer many || failed=1; \
	NETACC_RIG_FAULTS=500 NETACC_RIG_SEED=$${NETACC_RIG_SEED:-1000} tests/rdma/faults || failed=1; \
	exit $$failed

starve: build
	NETACC_LIB_DIR="$(BIN_DIR)" tests/starve --every

mutants:
	tests/mutants/run

# Installs what `make` has built (so that root builds nothing). An edited netacc.conf stays.
INSTALL = BIN_DIR="$(BIN_DIR)" PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" SYSCONFDIR="$(SYSCONFDIR)" BINDIR="$(BINDIR)" \
  LIBDIR="$(LIBDIR)" MANDIR="$(MANDIR)" packaging/install.sh

install:
	$(INSTALL)

# Everything but netacc.conf.
uninstall:
	$(INSTALL) --uninstall

.PHONY: deb tarball test-deb site

# Of the commit that is checked out. The packages are installed, upgraded and removed by `make
# test-deb`.
deb:
	tests/packages $(PACKAGING)
	packaging/deb

tarball:
	tests/packages strip:binutils cc:gcc git:git "/usr/include/stdio.h:libc6-dev"
	packaging/tarball

site:
	tests/packages python3:python3 groff:groff-base git:git cc:gcc
	packaging/site

# In new, minimal Debians. Needs root.
test-deb:
	tests/deb

clean:
	$(CARGO) clean
	rm -rf out
