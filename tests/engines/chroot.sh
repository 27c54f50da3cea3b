#!/usr/bin/env bash
# The engines of Debian sid with a simulated host of this machine: `tests/engines/chroot.sh [BINARY]`. Docker there reads CDI, and Apptainer is there
# alone. mmdebstrap makes a root directory of sid's packages, once, in the target directory; docker.sh and apptainer.sh run the engines in it, and leave
# it and this machine as they were. Needs root, mmdebstrap and what docker.sh needs but its engine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
target=${CARGO_TARGET_DIR:-target}
binary=$(realpath "${1:-$target/debug/mps-manager}")
root=$(realpath -m "$target/engines/sid")
packages=docker.io,docker-cli,docker-compose,containerd,runc,apptainer,mount

if [ "$(cat "$root/.packages" 2>/dev/null)" != "$packages" ]; then
    mirror=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' 'Component: main' |
        awk '$2 !~ /-(security|updates|backports)$/ && !found { found = $1 } END { print found }')
    [ -n "$mirror" ] || { echo "engines: apt has no source of packages: apt-get update" >&2; exit 1; }
    rm -rf --one-file-system -- "$root"
    mkdir -p "${root%/*}"
    # A mirror may have stopped some weeks ago, and sid says until when it is valid. Apptainer binds /etc/localtime, and wants its user to have a name.
    mmdebstrap --quiet --variant=essential --include="$packages" --aptopt='Acquire::Check-Valid-Until "false"' --aptopt='APT::Install-Recommends "false"' \
        --customize-hook='touch "$1/etc/localtime"' \
        --customize-hook='echo user:x:1000:1000::/tmp:/bin/sh >>"$1/etc/passwd"' --customize-hook='echo user:x:1000: >>"$1/etc/group"' \
        sid "$root" "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main"
    echo "$packages" >"$root/.packages"
fi
export ENGINES_ROOT=$root
tests/engines/docker.sh "$binary"
tests/engines/apptainer.sh "$binary"
