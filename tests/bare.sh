#!/usr/bin/env bash
# Runs the README's two commands on bare Debian systems that debootstrap makes, so that packages installed on
# this machine do not matter. Needs root and Debian's packages; part of `make soak`.
#
#   tests/bare.sh [SUITE ...]          bookworm trixie unless given
#   BARE_DIR=/var/tmp/treb-bare BARE_COMMANDS="make demo;make test" CC=gcc
set -eu -o pipefail
cd "$(dirname "$0")/.."
dir=${BARE_DIR:-/var/tmp/treb-bare} commands=${BARE_COMMANDS:-make demo;make test}
[ "$(id -u)" = 0 ] || { echo "bare: debootstrap and chroot need root"; exit 1; }
tools/setup.sh bare
sources="/etc/apt/sources.list /etc/apt/sources.list.d"
mirror=$(grep -rhoE '^(deb|URIs:) *(\[[^]]*\] *)?[^ ]+' $sources 2>/dev/null |
         grep -oE '[a-z+]+://[^ ]+/debian/?$' | head -n 1 || true)
mirror=${mirror:-http://deb.debian.org/debian}

# make_system SUITE ROOT: a minimal system with the apt configuration of this machine
make_system() {
    debootstrap --variant=minbase "$1" "$2" "$mirror" >"$2.log" 2>&1 || { tail -n 20 "$2.log"; return 1; }
    cp /etc/resolv.conf /etc/hosts "$2/etc"              # without its own name mpirun waits 5 s for an answer
    cp -r /etc/apt/apt.conf.d/. "$2/etc/apt/apt.conf.d/"
    chroot "$2" apt-get -qq update
    chroot "$2" apt-get -qq install -y --no-install-recommends make git ca-certificates >/dev/null
}

# in_system ROOT COMMAND: runs it in separate namespaces, with /proc, /dev and /dev/shm
in_system() {
    unshare --mount --pid --fork bash -eu -c '
        mount -t proc proc "$0/proc"; mount --rbind /dev "$0/dev"; mount -t sysfs sys "$0/sys"
        exec chroot "$0" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 CC="$2" \
            sh -c "cd /treb && $1"' "$1" "$2" "${CC:-gcc}"
}

for suite in "${@:-bookworm trixie}"; do for s in $suite; do
    root=$dir/$s
    rm -rf "$root"; mkdir -p "$root"
    echo "bare: $s from $mirror"
    make_system "$s" "$root"
    git clone -q . "$root/treb"
    while read -r command; do
        echo "bare: $s: $command"
        in_system "$root" "$command" </dev/null || { echo "bare: $s: $command failed"; exit 1; }
    done < <(tr ';' '\n' <<<"$commands")
    rm -rf "$root"
done; done
