# shellcheck shell=bash
# Shared by test/run, test/demo and the bench: a private copy of the server's
# installation with this extension, private clusters, and a clean-up that removes
# everything.
#
# Source it, then call
#
#   keep_between_runs       before begin: keep the private installation
#   begin                   work folder, user, clean-up at any exit
#   build                   make all
#   private_install         or use_installed; sets bindir
#   start_server NAME ...   a private cluster; sets port
#   start_remote NAME       a cluster with SCRAM over TCP; sets port. With
#                           PGPX_TEST_TLS set, over TLS only
#   make_certificate        a certificate for such a cluster
#   as_user COMMAND ...     run as the user that servers run as
#   run_child COMMAND ...   the same for long commands, which the clean-up can end
#
# PostgreSQL refuses to run as root. If root calls, all servers and clients run as an
# unprivileged user in a folder of that user, because it may be unable to read the
# checkout; the build runs as the caller.
#
# No system cluster is used: sockets are in a folder with mode 0700, and only "remote"
# servers listen on TCP, at 127.0.0.1 and a free port.

set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
pg_config=${PG_CONFIG:-pg_config}
work=         # all files of this run
bindir=       # folder of the server's programs
port=         # of the server started last
kept=         # the folder of keep_between_runs
child=        # process group of the running step
keep_logs=no  # yes: copy logs to tmp_check at the end

say() {
  printf '%s\n' "$*"
}

# Run a command as the user that servers run as.
as_user() {
  if [ "$(id -u)" -eq 0 ]; then
    setpriv --reuid="$run_user" --regid="$(id -g "$run_user")" --init-groups \
      env HOME="$work" USER="$run_user" LOGNAME="$run_user" "$@"
  else
    env HOME="$work" "$@"
  fi 9<&- # the lock of keep_between_runs ends with this script
}

# The folder in which this checkout and this user keep files between runs.
kept_folder() {
  say "${TMPDIR:-/tmp}/pgpool_ext.kept-$(id -u)-$(cksum <<<"$top" | cut -d ' ' -f 1)"
}

# Keep the private installation and the clusters that initdb creates between runs, in
# kept_folder: "make test-one" does.  Nothing runs between two runs, and no
# data of a test is kept: a cluster is copied before it is started for the first time.
#
# The folder is created again if the server, its libraries or this script have changed.
# The extension is installed into it in each run. Two runs of a checkout that keep files
# exclude each other; "make clean" removes the folder (test/kept).
keep_between_runs() {
  local key

  exec 9<"$top/test"
  if ! flock -n 9; then
    say "# waiting for another run of test-one in this folder"
    flock 9
  fi
  kept=$(kept_folder)
  key=$(
    "$pg_config"
    stat -Lc '%n %Y' "$("$pg_config" --bindir)" "$("$pg_config" --bindir)/postgres" \
      "$("$pg_config" --pkglibdir)" "$("$pg_config" --sharedir)/extension"
    cat "$top/test/lib.sh" "$top/test/initdb"
  )
  # another user may have created a folder of that name in a shared temporary folder
  if [ -O "$kept" ] && [ ! -L "$kept" ] && [ "$(cat "$kept/key" 2>/dev/null)" = "$key" ]; then
    rm -rf "$kept"/initdb/new.* # of a run that was killed
    return 0
  fi
  rm -rf "$kept"
  mkdir -m 755 "$kept"
  say "$key" >"$kept/key"
}

# Start a command as that user, in its own process group: it does not receive Ctrl-C, and
# the clean-up can end all of it. One at a time.
start_child() {
  set -m
  as_user "$@" </dev/null &
  child=$!
  set +m
}

wait_child() {
  local status=0

  wait "$child" || status=$?
  child=
  return "$status"
}

run_child() {
  start_child "$@"
  wait_child
}

begin() {
  local name

  # no variable of the caller's environment may name another server
  for name in $(compgen -e PG); do
    case $name in
      PG_CONFIG | PGPX_* | PG_TEST_* | PGISOLATIONTIMEOUT | PGCTLTIMEOUT) ;;
      *) unset "$name" ;;
    esac
  done
  unset LC_ALL LANGUAGE
  export LANG=C.UTF-8 LC_MESSAGES=C
  umask 022

  run_user=$(id -un)
  if [ "$(id -u)" -eq 0 ]; then
    run_user=postgres
    id -u "$run_user" >/dev/null 2>&1 || run_user=nobody
  fi

  # the path of a socket is limited to 107 bytes
  local base=${TMPDIR:-/tmp}
  [ "${#base}" -le 40 ] || base=/tmp
  work=$(mktemp -d "$base/pgpool_ext.XXXXXX")
  trap end EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 143' TERM

  mkdir "$work/tree" "$work/log" "$work/tmp"
  mkdir -m 700 "$work/s"
  export TMPDIR=$work/tmp
  (cd "$top" && cp -r test expected sql doc pgpool_ext.control README.md "$work/tree" &&
    cp --parents src/config/options.c "$work/tree")
  if [ "$(id -u)" -eq 0 ]; then
    chown -R "$run_user:" "$work"
  fi
  cd "$work"
}

# Running servers of this run in this folder: their data directories.
running_servers() {
  local file pid

  find "$1" -name postmaster.pid 2>/dev/null | while read -r file; do
    pid=$(head -n 1 "$file" 2>/dev/null) || continue
    # the pid may be another process's by now
    if [ ! -d /proc/self ] ||
      [ "$(readlink "/proc/$pid/cwd")" = "$(dirname "$file")" ]; then
      dirname "$file"
    fi
  done
}

# Stop the servers of this run whose data are in a folder. PGPX_STOP_MODE=fast: with a
# mode in which processes write their coverage counters.
stop_servers() {
  local data mode

  while read -r data; do
    for mode in "${PGPX_STOP_MODE:-immediate}" immediate; do
      if as_user "$bindir/pg_ctl" stop -D "$data" -m "$mode" -t 20 \
        </dev/null >/dev/null 2>&1; then
        break
      fi
    done
  done < <(running_servers "$1")
}

# The clean-up, at any exit.
end() {
  local status=$? i

  set +e
  trap - EXIT
  trap '' INT TERM HUP
  if [ -n "$child" ]; then
    kill -TERM -- "-$child" 2>/dev/null
    for ((i = 0; i < 30; i++)); do
      kill -0 -- "-$child" 2>/dev/null || break
      sleep 0.1
    done
  fi
  cd /
  stop_servers "$work"
  if [ -n "$child" ]; then
    kill -KILL -- "-$child" 2>/dev/null
  fi
  if [ "$keep_logs" = yes ]; then
    save_logs
  fi
  rm -rf "$work"
  exit "$status"
}

# Keep the logs, outputs and differences of a failed run, without data.
save_logs() {
  local file

  (
    cd "$work"
    find log regress* isolation* tap* points timing \
      \( -name results -o -name '*.log' -o -name '*.out' -o -name '*.diffs' \
      -o -name 'regress_log_*' -o -name log \) \
      ! -path '*/expected/*' 2>/dev/null
  ) | while read -r file; do
    mkdir -p "$top/tmp_check/$(dirname "$file")"
    cp -rP "$work/$file" "$top/tmp_check/$(dirname "$file")/"
  done
}

build() {
  make -C "$top" --no-print-directory -s -j"$(nproc)" all
}

# PostgreSQL finds its files relative to its programs. So a tree with copies of the
# programs and links to the rest of the installation is a separate server, in which an
# extension can be installed without a change of the installation (as in the temporary
# installation of PostgreSQL's own "make check").
#
# private_install [TREE]: of the build in a tree, by default the checkout
private_install() {
  local tree=${1:-$top} base=${kept:-$work} root real_bin real_lib real_share file

  [ "$tree" = "$top" ] || base=$(dirname "$tree")
  root=$base/install
  real_bin=$("$pg_config" --bindir)
  real_lib=$("$pg_config" --pkglibdir)
  real_share=$("$pg_config" --sharedir)
  if [ ! -f "$root/complete" ]; then
    copy_installation
  fi
  rm -f "$root$real_share/extension/pgpool_ext"*
  make -C "$tree" --no-print-directory -s install "DESTDIR=$root" \
    >"$work/log/install.log" 2>&1 || {
    cat "$work/log/install.log"
    return 1
  }
  bindir=$root$real_bin
  [ "$tree" != "$top" ] || PATH=$bindir:$PATH
}

# The installation of a build with debug points (src/base/debug_point.h), in a copy of the
# tree; sets bindir.
points_installation() {
  local tree=${kept:-$work}/points_build/tree

  mkdir -p "$tree"
  # status 1 of tar: a file has changed meanwhile
  (cd "$top" && { tar -cf - Makefile META.json pgpool_ext.control sql src test/points || [ $? -eq 1 ]; }) |
    tar -xf - -C "$tree" --exclude='*.o'
  PGPX_DEBUG_POINTS=yes make -C "$tree" --no-print-directory -s -j"$(nproc)" all COPT=-DPGPX_DEBUG_POINTS &&
    private_install "$tree"
}

# The part of private_install that does not depend on the extension, whose variables it
# uses.
copy_installation() {
  mkdir -p "$root$real_bin" "$root$real_lib" "$root$real_share/extension"
  cp -L "$real_bin"/* "$root$real_bin/"
  if [ -n "${PGPX_SERVER_WRAPPER:-}" ]; then
    # the server runs under valgrind or the like; initdb and remote servers do not,
    # because they are not tested, and a login would exceed its timeout
    mv "$root$real_bin/postgres" "$root$real_bin/postgres.real"
    cat >"$root$real_bin/postgres" <<WRAPPER
#!/bin/sh
case "\$*" in
  --boot* | --single* | --check* | -V | */remote* | *_remote_data/*) exec "$root$real_bin/postgres.real" "\$@" ;;
esac
exec $PGPX_SERVER_WRAPPER "$root$real_bin/postgres.real" "\$@"
WRAPPER
    chmod 755 "$root$real_bin/postgres"
  fi
  for file in "$real_lib"/* "$real_share"/* "$real_share"/extension/*; do
    case $file in
      */extension | */pgpool_ext.* | */pgpool_ext--*) ;;
      *) ln -s "$file" "$root$file" ;;
    esac
  done
  mv "$root$real_bin/initdb" "$root$real_bin/initdb.real"
  install -m 755 "$top/test/initdb" "$root$real_bin/initdb"
  mkdir "$base/initdb"
  [ "$(id -u)" -ne 0 ] || chown "$run_user:" "$base/initdb"
  touch "$root/complete"
}

# Use the existing installation, which "make install" has updated.
use_installed() {
  bindir=$("$pg_config" --bindir)
  PATH=$bindir:$PATH
}

# The folder of pg_regress, of isolationtester and of the Perl modules.
test_tools() {
  (cd "$(dirname "$("$pg_config" --pgxs)")/../test" && pwd)
}

free_port() {
  perl -MIO::Socket::INET -e '
    for (1 .. 200) {
      my $port = 10200 + int(rand(22500));
      if (IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => $port,
                                Listen => 1)) {
        print $port;
        exit;
      }
    }
    die "found no free port\n"'
}

# start_server NAME CONFIG_LINE ...
# A cluster in $work/NAME, its socket in $work/s, superuser "postgres"; without TCP
# unless a line enables it. INITDB_OPTS: more options of initdb.
start_server() {
  local name=$1 try
  shift

  # shellcheck disable=SC2086
  as_user "$bindir/initdb" -D "$work/$name" -N --locale=C --encoding=UTF8 \
    ${INITDB_OPTS:---username=postgres --auth=trust} \
    >"$work/log/$name.initdb.log" 2>&1 || {
    cat "$work/log/$name.initdb.log"
    return 1
  }
  {
    printf '%s\n' "fsync = off" "max_connections = 200" \
      "max_prepared_transactions = 10" "log_connections = on" \
      "log_line_prefix = '%m [%p] %q%a '" "listen_addresses = ''" \
      "unix_socket_directories = '$work/s'"
    printf '%s\n' "$@"
  } >>"$work/$name/postgresql.conf"

  # another process may use the port before the server does
  for try in 1 2 3; do
    port=$(free_port)
    if as_user "$bindir/pg_ctl" start -w -D "$work/$name" -o "-p $port" \
      -l "$work/log/$name.log" >/dev/null 2>&1; then
      return 0
    fi
  done
  say "server \"$name\" did not start ($try times):"
  cat "$work/log/$name.log"
  return 1
}

# make_certificate FOLDER: a self-signed certificate for "localhost" and 127.0.0.1.
make_certificate() {
  as_user mkdir -p "$1"
  as_user openssl req -new -x509 -days 2 -nodes -newkey ec \
    -pkeyopt ec_paramgen_curve:prime256v1 -subj /CN=localhost \
    -addext "subjectAltName = DNS:localhost,IP:127.0.0.1" \
    -keyout "$1/server.key" -out "$1/server.crt" >"$1/openssl.log" 2>&1 || {
    cat "$1/openssl.log"
    return 1
  }
  as_user chmod 600 "$1/server.key"
  printf '%s\n' 'local all all trust' 'hostssl all all 127.0.0.1/32 scram-sha-256' |
    as_user tee "$1/pg_hba.conf" >/dev/null
}

# start_remote NAME CONFIG_LINE ...
# A server that sessions connect to as to another machine: with SCRAM over TCP, and over
# TLS only if PGPX_TEST_TLS names a folder with a certificate. Database remote_db, role
# remote_app ('secret of the remote'), superuser remote_super ('root secret').
start_remote() {
  local name=$1 tls=()
  shift

  if [ -n "${PGPX_TEST_TLS:-}" ]; then
    tls=("ssl = on" "hba_file = '$PGPX_TEST_TLS/pg_hba.conf'"
      "ssl_cert_file = '$PGPX_TEST_TLS/server.crt'"
      "ssl_key_file = '$PGPX_TEST_TLS/server.key'")
  fi
  INITDB_OPTS="--username=remote_super --auth-local=trust --auth-host=scram-sha-256" \
    start_server "$name" "listen_addresses = '127.0.0.1'" "${tls[@]}" "$@"
  psql_at "$port" remote_super postgres -q \
    -c "ALTER ROLE remote_super PASSWORD 'root secret'" \
    -c "CREATE ROLE remote_app LOGIN PASSWORD 'secret of the remote'" \
    -c "CREATE DATABASE remote_db OWNER remote_app"
}

# psql_at PORT USER DATABASE OPTION ...: psql through the private socket.
psql_at() {
  local at=$1 user=$2 database=$3
  shift 3
  as_user "$bindir/psql" -X -v ON_ERROR_STOP=1 -h "$work/s" -p "$at" \
    -U "$user" -d "$database" "$@"
}
