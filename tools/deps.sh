#!/bin/bash
# Installs every Debian package that building, testing and fetching models needs. Safe to run again: when all are
# there it only asks dpkg and returns at once.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: tools/deps.sh [--build] [--list] [--help]
  (none)   everything: build, tests, fuzzing, cross builds, model download
  --build  only what `make build` and `make demo` need
  --list   print the packages and whether each is installed; install nothing
Needs Debian 12 or a system with the same package names. As root it installs; otherwise it uses sudo, and without
sudo it prints the command to run.
USAGE
}

build=(g++ cmake ninja-build make git pkg-config libfmt-dev nlohmann-json3-dev libcli11-dev libssl-dev
       libgtest-dev libbenchmark-dev python3 python3-pip ca-certificates)  # pip: tools/fetch-model
# clang-19: libFuzzer. qemu: AVX2-only and aarch64 rows on an x86 host.
tests=(clang-19 libclang-rt-19-dev llvm-19 qemu-user-static
       g++-aarch64-linux-gnu libc6-dev-arm64-cross)

packages=("${build[@]}" "${tests[@]}")
list=0
for argument in "$@"; do
  case $argument in
    --build) packages=("${build[@]}") ;;
    --list) list=1 ;;
    -h | --help) usage; exit 0 ;;
    *) echo "deps.sh: unknown argument '$argument'" >&2; usage >&2; exit 2 ;;
  esac
done

command -v dpkg-query >/dev/null || {
  echo "deps.sh: no dpkg on this system; install the equivalents of: ${packages[*]}" >&2
  exit 1
}
installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

missing=()
for package in "${packages[@]}"; do
  if installed "$package"; then state=installed; else state=missing; missing+=("$package"); fi
  [ $list = 0 ] || printf '%-24s %s\n' "$package" "$state"
done
[ $list = 0 ] || exit 0
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" != 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "deps.sh: not root and no sudo. Run as root:" >&2
    echo "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "deps.sh: installing ${missing[*]}" >&2
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
# One unreachable third-party source must not stop the install: apt-get install decides.
"${apt[@]}" update || echo "deps.sh: apt-get update reported errors; going on with the lists at hand" >&2
"${apt[@]}" install -y --no-install-recommends --no-remove "${missing[@]}" >&2
for package in "${missing[@]}"; do
  installed "$package" || { echo "deps.sh: $package is still missing after apt-get install" >&2; exit 1; }
done
