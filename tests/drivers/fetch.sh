#!/usr/bin/env bash
# The MPS programs of older drivers, from Debian's packages: `tests/drivers/fetch.sh DIRECTORY VERSION...` unpacks each into DIRECTORY/VERSION and
# installs nothing. Versions: 470 (bullseye), 535 (bookworm), 550 (trixie), 555 (experimental). Each is got once and kept.
set -euo pipefail
directory=$(realpath -m "$1")
shift
declare -A suites=([470]=bullseye [535]=bookworm [550]=trixie [555]=experimental)

missing=()
for version in "$@"; do
    [ -n "${suites[$version]:-}" ] || { echo "drivers: Debian's suite with driver $version is not known" >&2; exit 2; }
    [ -x "$directory/$version/usr/bin/nvidia-cuda-mps-control" ] || missing+=("$version")
done
[ "${#missing[@]}" -gt 0 ] || exit 0

. "$(dirname "${BASH_SOURCE[0]}")/../host/own_apt.sh"
apt=$directory/apt
lines=()
for version in "${missing[@]}"; do lines+=("deb ${suites[$version]} non-free"); done
own_apt "$apt" "${lines[@]}"
for version in "${missing[@]}"; do
    package=$(apt-cache madison nvidia-cuda-mps | awk -v version="$version." 'index($3, version) == 1 { print $3; exit }')
    [ -n "$package" ] || { echo "drivers: ${suites[$version]} has no nvidia-cuda-mps of driver $version" >&2; exit 1; }
    (cd "$apt" && apt-get download -q "nvidia-cuda-mps=$package")
    mkdir -p "$directory/$version"
    dpkg-deb -x "$apt"/nvidia-cuda-mps_"${package//:/%3a}"_*.deb "$directory/$version"
done
