# pgpool_ext: see README.md; "make help" lists the targets.
#
#   make && sudo make install     build and install for the server of pg_config
#   make test                     the tests, in private servers
#   make check-world              all tests, also the long ones
#   PG_CONFIG=/path/to/pg_config  another server
#
# test, demo, bench and lint need only Debian and make: missing packages are installed
# first (test/deps), and then make reads this file again.

EXTENSION   = pgpool_ext
MODULE_big  = pgpool_ext
OBJS        = $(patsubst %.c,%.o,$(sort $(wildcard src/*.c src/*/*.c)))
ifeq ($(PGPX_DEBUG_POINTS),yes)
OBJS       += test/points/debug_point.o
endif
DATA        = $(wildcard sql/$(EXTENSION)--*.sql)
PGFILEDESC  = "pgpool_ext - connection pools for outbound connections"
DISTVERSION = $(shell sed -n 's/^   "version": "\(.*\)",$$/\1/p' META.json)

comma := ,

PG_CONFIG ?= pg_config
export PG_CONFIG

PG_CPPFLAGS  = -Isrc -I$(shell $(PG_CONFIG) --includedir)
# gnu17: PostgreSQL 15's headers are not C23, which is the default of gcc 15 and later
PG_CFLAGS    = -std=gnu17 -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare \
	-Wno-missing-field-initializers
SHLIB_LINK   = -lpq -lssl -lcrypto
EXTRA_CLEAN  = .built_for src/locks/lock_schema.inc tmp_check deb $(EXTENSION)-*.zip $(EXTENSION)-*.tar.gz

# One test by name: make test-one T=name
T ?=

PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)

ifneq ($(wildcard $(PGXS)),)

# no bitcode: it would need clang, and inlining gains nothing here
override with_llvm = no

include $(PGXS)

# PostgreSQL's headers are not tracked, ours are. Objects for another server are built again.
$(shell echo '$(includedir_server)' | cmp -s - .built_for || echo '$(includedir_server)' >.built_for)
$(OBJS): $(wildcard src/*/*.h) Makefile .built_for
src/locks/lock_session.o src/locks/lock_pinger.o: src/locks/lock_schema.inc

# installcheck tests the installed extension; "test" needs no installation
installcheck:
	@test/run --installed $(or $(SUITES),regress isolation tap)

else

all install uninstall installcheck:
	@echo "$(PG_CONFIG) finds no server headers of PostgreSQL (PGXS)." >&2
	@echo "Install them (Debian: \"test/deps\" as root), or set PG_CONFIG." >&2
	@exit 1

clean distclean:
	rm -rf $(OBJS) $(EXTENSION).so $(EXTRA_CLEAN)

endif

# the SQL that sessions and workers send to the remote server of a lock, as C strings
src/locks/lock_schema.inc: src/locks/lock_schema.sql
	awk '/^-- === /{ printf "%sstatic const char %s[] =\n", end, $$3; end = ";\n"; next } \
		/^[ \t]*--/{ next } \
		end{ gsub(/[\\"]/, "\\\\&"); printf "\"%s\\n\"\n", $$0 } \
		END{ print end }' $< >$@

.PHONY: all install uninstall installcheck clean distclean
.PHONY: help deps test check-world test-one clean-kept demo bench lint format dist deb check-deb
.PHONY: model model-deep fuzz stress sequences soak mutants analyze
.PHONY: check-rpm check-assert check-asan check-ubsan check-valgrind check-versions check-postgres-fdw

help:
	@echo "all            build $(EXTENSION).so"
	@echo "install        install it for the server of $(PG_CONFIG); uninstall"
	@echo "deps           install what is missing for the tests, on Debian"
	@echo "test           lint, regress, isolation, pgTAP, TAP and the tests at debug points:"
	@echo "               about four minutes on two idle processors"
	@echo "check-world    also models, fuzzers, stress, sequences, PostgreSQL's own tests of"
	@echo "               postgres_fdw, and those with a remote server once more over TLS"
	@echo "test-one T=x   one test by name"
	@echo "installcheck   regress, isolation and TAP with the installed extension"
	@echo "model          search the models; model-deep: larger, for minutes"
	@echo "fuzz           SECONDS= of hostile input for each harness"
	@echo "stress         SECONDS= of random operations and faults; SEED="
	@echo "sequences      SECONDS= of generated statements by sessions that share a"
	@echo "               connection, each answer checked; SEED="
	@echo "soak           HOURS= of load, with a fault every ten seconds"
	@echo "mutants        remove each rule, and check that a test fails: hours; JOBS="
	@echo "               test/mutants/run FILE removes those of one file"
	@echo "check-assert   regress and isolation in a server with assertions, built"
	@echo "               once from source; check-asan, check-valgrind; check-ubsan"
	@echo "check-versions everything on PostgreSQL 15, 15 with libpq 18, and 16 to 19, each in"
	@echo "               its Debian or Ubuntu, made once with debootstrap, as root; MAJORS="
	@echo "               PGPX_PG_SOURCE= a folder with sources, to build one from them"
	@echo "check-postgres-fdw"
	@echo "               postgres_fdw's own tests, with its foreign tables on pools"
	@echo "demo           the same foreign tables without and with pools, in private servers"
	@echo "bench          measure against peers, for 20 minutes; ONLY=3,4  SAVE=yes"
	@echo "analyze        cppcheck, clang-tidy and clang's analyzer"
	@echo "lint, format   check the sources; format them"
	@echo "dist           the archives of what is committed; .zip is for PGXN"
	@echo "deb            Debian packages of the commit, in deb/; check-deb: build, install and"
	@echo "               test them in bare Debians, made once with debootstrap, as root"
	@echo "check-rpm      build the RPM package and compare its files"
	@echo "clean          remove what was built"

deps:
	@test/deps

test: deps
	@test/run

check-world:
	@test/deps --world
	@test/run --world

test-one: deps
	@test -n "$(T)" || { echo "usage: make test-one T=name" >&2; exit 2; }
	@test/run --keep T=$(T)

# remove what test-one has kept between runs
clean distclean: clean-kept
clean-kept:
	@test/kept

model: deps
	@test/model/run

model-deep: deps
	@test/model/run --deep

# durations of fuzz (each harness), stress and sequences in seconds
SECONDS ?= 60
fuzz: deps
	@test/fuzz/run $(SECONDS)

# random operations and faults; the same SEED repeats them
SEED ?=
stress: deps
	@test/stress/run $(SECONDS) $(SEED)

# generated statements of all kinds, with each answer checked
sequences: deps
	@test/sequences/run $(SECONDS) $(SEED)

# load, and a random fault every ten seconds; no process may grow
HOURS ?= 1
soak: deps
	@test/soak/run $(HOURS) $(SEED)

# remove rules of the sources, one at a time: a test must fail
mutants: deps
	@test/mutants/run

check-assert check-asan check-ubsan check-valgrind: check-%: deps
	@test/sanitize/run $* $(SUITES)

# PostgreSQL 15, 15 with libpq 18 (15+18), and 16 to 19, or those of MAJORS; the major
# version in PGPX_PG_SOURCE is built from there; SUITES and T as in test/run
check-versions:
	@test/versions $(MAJORS) -- $(SUITES) $(if $(T),T=$(T))

# from PostgreSQL's sources, which are fetched once
check-postgres-fdw: deps
	@test/postgres_fdw/run

demo:
	@test/deps --demo
	@test/demo

# all groups of measurements, or those of ONLY=3,4; SAVE=yes saves the results in the tree
bench: deps
	@test/bench/run $(if $(SAVE),--save) $(subst $(comma), ,$(ONLY))

lint: deps
	@test/lint/run

analyze:
	@test/lint/analyze

format:
	@test/lint/format.sh --fix

# The same bytes for the same commit, on each machine.
dist:
	TZ=UTC git archive --format=zip --prefix=$(EXTENSION)-$(DISTVERSION)/ \
		-o $(EXTENSION)-$(DISTVERSION).zip HEAD
	git -c tar.umask=0022 archive --format=tar \
		--prefix=$(EXTENSION)-$(DISTVERSION)/ HEAD | \
		gzip -9n > $(EXTENSION)-$(DISTVERSION).tar.gz

deb:
	@.debian/build $(OUT)

# in the Debian releases of DEBIANS; SUITES: as in test/run
check-deb:
	@SUITES="$(SUITES)" test/packages/debian $(DEBIANS)

check-rpm:
	@test/packages/rpm
