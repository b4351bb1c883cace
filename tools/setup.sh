#!/usr/bin/env bash
# Installs the Debian packages that the build needs and this machine lacks, and names them. A machine that has
# all of them needs neither network nor root. Extra groups by name: `tools/setup.sh fuzz`.
set -eu
need="gcc g++ make pkg-config libjansson-dev libyaml-dev libjpeg-dev libpng-dev libwebp-dev libpcre2-dev"
need="$need libutf8proc-dev libxxhash-dev zlib1g-dev libmicrohttpd-dev libopenmpi-dev openmpi-bin"
case ${CC:-gcc} in *clang*) need="$need clang libomp-dev" ;; esac
for group in "$@"; do
    case $group in
        fuzz) need="$need clang libclang-rt-dev" ;;
        format) need="$need clang-format" ;;
        report) need="$need chromium" ;;
        bench) need="$need libopenblas-openmp-dev" ;;
        slurm) need="$need slurm-wlm munge" ;;
        hosts) need="$need iproute2" ;;
        lint) need="$need clang-tidy libomp-dev" ;;        # omp.h of clang
        video) need="$need libavformat-dev libavcodec-dev libswscale-dev libavutil-dev" ;;
        bare) need="$need debootstrap" ;;
        *) echo "setup: unknown group $group (fuzz, format, report, bench, slurm, hosts, lint, video," \
               "bare)" >&2
           exit 2 ;;
    esac
done

have() { dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null | grep -q '^installed$'; }

if ! command -v dpkg-query >/dev/null; then
    echo "setup: not a Debian machine; please provide: $need" >&2; exit 0
fi
missing=""
for p in $need; do have "$p" || missing="$missing $p"; done
[ -z "$missing" ] && exit 0

sudo=""
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "setup: need root or sudo to install:$missing" >&2; exit 1; }
    sudo=sudo
fi
echo "setup: installing$missing"
$sudo apt-get -qq update
DEBIAN_FRONTEND=noninteractive $sudo apt-get -qq install -y --no-install-recommends $missing >/dev/null
echo "setup: done"
