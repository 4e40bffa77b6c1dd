# shellcheck shell=bash
# Shared by test/versions and test/packages/debian: Debian folders, created with
# debootstrap once and kept in PGPX_CACHE (default: ~/.cache/pgpool_ext; remove debian-*
# there to create them again), and commands in them. This requires root, debootstrap and
# a Debian mirror; no other network. Mounts and processes are in namespaces, and end
# with the command.
#
#   need_debootstrap
#   make_debian SUITE FOLDER PACKAGES [MAJOR FROM]
#   inside FOLDER COMMAND ...

# shellcheck disable=SC2034 # for scripts that source it
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${PGPX_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pgpool_ext}
mirror=${PGPX_DEBIAN_MIRROR:-http://deb.debian.org/debian}

say() {
  printf '%s\n' "$*"
}

# Run a command in a folder, with its own processes, mounts and IPC; all ends with it.
# Not by chroot, in which users cannot create a network namespace.
# inside FOLDER COMMAND ...
inside() {
  local root=$1
  shift
  # shellcheck disable=SC2016
  unshare --mount --pid --ipc --fork --kill-child bash -euc '
    root=$1
    shift
    mount --rbind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount -t sysfs -o ro sysfs "$root/sys" || mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    cd "$root"
    pivot_root . .
    umount -l .
    exec env -i HOME=/root LANG=C.UTF-8 TERM="${TERM:-dumb}" \
      PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
      CI="${CI:-}" PGPX_TEST_JOBS="${PGPX_TEST_JOBS:-1}" \
      PGPX_STRESS_SECONDS="${PGPX_STRESS_SECONDS:-30}" \
      PGPX_FUZZ_SECONDS="${PGPX_FUZZ_SECONDS:-3}" \
      http_proxy="${http_proxy:-}" "$@"' inside "$root" "$@"
}

# make_debian SUITE FOLDER PACKAGES [MAJOR FROM]: with packages, separated by commas, and
# with the server of another major version, that of suite FROM
make_debian() {
  local suite=$1 root=$2 packages=$3 server=${4:-} from=${5:-} log=$2.log
  local script=/usr/share/debootstrap/scripts/$1

  # an older debootstrap does not know the newest suites; all are installed alike
  [ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid
  say "making $root, once: see $log"
  rm -rf "$root"
  mkdir -p "$cache"
  debootstrap --variant=minbase ${packages:+"--include=$packages"} \
    "$suite" "$root" "$mirror" "$script" >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    return 1
  }
  rm -f "$root"/var/cache/apt/archives/*.deb
  # the package lists of an unreleased Debian are valid for a week, and a mirror may lag
  echo 'Acquire::Check-Valid-Until "false";' >"$root/etc/apt/apt.conf.d/90pgpool_ext"
  if [ -n "$server" ]; then
    echo "deb $mirror $from main" >"$root/etc/apt/sources.list.d/$from.list"
    # (apt installs a package from experimental only by request, or if no other suite has it)
    # shellcheck disable=SC2016
    inside "$root" sh -euc '
      export DEBIAN_FRONTEND=noninteractive
      apt-get -qq update
      pgtap=postgresql-$1-pgtap
      apt-cache show "$pgtap" >/dev/null 2>&1 || pgtap=
      newest=
      [ "$2" != experimental ] || newest=/$2
      exec apt-get -qq -y --no-install-recommends install "libpq-dev$newest" "libpq5$newest" \
        "postgresql-$1" "postgresql-server-dev-$1" $pgtap
      ' install "$server" "$from" >>"$log" 2>&1 || {
      tail -n 20 "$log" >&2
      return 1
    }
  fi
  touch "$root/complete"
}

need_debootstrap() {
  if [ "$(id -u)" -ne 0 ] || ! command -v debootstrap >/dev/null; then
    say "this requires root and debootstrap (Debian: apt-get install debootstrap)" >&2
    exit 1
  fi
}
