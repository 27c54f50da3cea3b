#!/usr/bin/env bash
# The engines of Debian sid with a simulated host of this machine: `tests/engines/chroot.sh [BINARY]`. Docker there reads CDI, and Apptainer is there
# alone. mmdebstrap makes a root directory of sid's packages, once, in the target directory; docker.sh and apptainer.sh run the engines in it, and
# cloud-init there reads deploy/cloud-init.yaml, so that nothing is installed on this machine. Needs root, mmdebstrap, busybox-static and strip.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
target=${CARGO_TARGET_DIR:-target}
binary=$(realpath "${1:-$target/debug/mps-manager}")
root=$(realpath -m "$target/engines/sid")
packages=docker.io,docker-cli,docker-compose,containerd,runc,apptainer,mount,cloud-init

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

# Also that a wrong file is refused, by which a right one is known.
files=$(mktemp -d /tmp/mps-cloud.XXXXXX)
trap 'rm -rf -- "$files"' EXIT
cp deploy/cloud-init.yaml "$files/right.yaml"
sed 's/^runcmd:$/runcmd: 7\nunknown_module:/' deploy/cloud-init.yaml >"$files/wrong.yaml"
read_by_cloud_init() { tests/engines/in_root.sh cloud-init schema --config-file "$1"; }
read_by_cloud_init "$files/right.yaml"
if refusal=$(read_by_cloud_init "$files/wrong.yaml" 2>&1); then echo "engines: FAILED: cloud-init takes a wrong file: $refusal" >&2; exit 1; fi
echo "engines: ok: $(tests/engines/in_root.sh cloud-init --version | tail -n 1) takes deploy/cloud-init.yaml, and not a wrong one"
tests/engines/docker.sh "$binary"
tests/engines/apptainer.sh "$binary"
