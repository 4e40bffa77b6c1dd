# shellcheck shell=bash
# Shared by test/versions and test/packages/debian: folders with Debian or Ubuntu,
# created with debootstrap once and kept in PGPX_CACHE (default: ~/.cache/pgpool_ext;
# remove debian-* there to create them again), and commands in them. This requires root,
# debootstrap and a mirror of the distribution; no other network. Mounts and processes
# are in namespaces, and end with the command.
#
#   need_debootstrap
#   make_debian SUITE FOLDER PACKAGES [MAJOR FROM]
#   inside FOLDER COMMAND ...

# shellcheck disable=SC2034 # for scripts that source it
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${PGPX_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pgpool_ext}
mirror=${PGPX_DEBIAN_MIRROR:-http://deb.debian.org/debian}
ubuntu_mirror=${PGPX_UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu}

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
      CI="${CI:-}" PGPX_TEST_JOBS="${PGPX_TEST_JOBS:-}" \
      PGPX_STRESS_SECONDS="${PGPX_STRESS_SECONDS:-60}" \
      PGPX_FUZZ_SECONDS="${PGPX_FUZZ_SECONDS:-3}" \
      http_proxy="${http_proxy:-}" "$@"' inside "$root" "$@"
}

# ubuntu_keyring FILE: the keys of Ubuntu's mirrors, from a package whose checksum is here,
# because Debian has no package of them
ubuntu_keyring() {
  local deb=$1.deb

  wget -q -O "$deb" "$ubuntu_mirror/pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb" &&
    sha256sum --quiet -c <<<"36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8  $deb" &&
    dpkg-deb --fsys-tarfile "$deb" | tar -xOf - ./usr/share/keyrings/ubuntu-archive-keyring.gpg >"$1"
  rm -f "$deb"
  [ -s "$1" ]
}

# make_debian SUITE FOLDER PACKAGES [MAJOR FROM]: with packages, separated by commas, and
# with the server of another major version, that of suite FROM
make_debian() {
  local suite=$1 root=$2 packages=$3 server=${4:-} from=${5:-} log=$2.log
  local script=/usr/share/debootstrap/scripts/$1 from_mirror=$mirror
  local options=(--variant=minbase ${packages:+"--include=$packages"})

  # an older debootstrap does not know the newest suites; all are installed alike
  [ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid
  say "making $root, once: see $log"
  rm -rf "$root"
  mkdir -p "$cache"
  if [ "$suite" = noble ]; then
    from_mirror=$ubuntu_mirror
    ubuntu_keyring "$cache/ubuntu.gpg" || {
      say "cannot get the keys of $from_mirror" >&2
      return 1
    }
    options+=(--components=main,universe "--keyring=$cache/ubuntu.gpg")
  fi
  debootstrap "${options[@]}" "$suite" "$root" "$from_mirror" "$script" >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    return 1
  }
  if [ "$suite" = noble ]; then
    echo "deb $from_mirror noble-updates main universe" >"$root/etc/apt/sources.list.d/noble-updates.list"
  fi
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
      apt-get -qq -y --no-install-recommends install "libpq-dev$newest" "libpq5$newest" \
        "postgresql-$1" "postgresql-server-dev-$1" $pgtap
      # pgTAP is SQL only, so a package for another major version serves
      [ -z "$pgtap" ] || exit 0
      cd /var/cache/apt/archives
      apt-get -qq download "$(apt-cache search --names-only "^postgresql-[0-9]+-pgtap\$" | sed "s/ .*//" | sort -V | tail -n 1)"
      dpkg-deb --fsys-tarfile postgresql-*-pgtap_*.deb |
        tar -x --strip-components=6 -C "/usr/share/postgresql/$1/extension" --wildcards "*/extension/*"
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
