#!/usr/bin/env bash
# The container image of a simulated host: `tests/container/run.sh [BINARY]`. Builds it with deploy/Containerfile on a base that mmdebstrap
# makes of Debian's packages, runs it without a network, and takes a tenant and a client through it. Needs root, mmdebstrap, podman,
# runc and cargo-about; nothing is skipped. BASE=IMAGE takes another base, which podman has or can fetch.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
binary=$(realpath "${1:-${CARGO_TARGET_DIR:-target}/debug/mps-manager}")
say() { echo "container: $*"; }
fail() {
    say "FAILED: $*" >&2
    exit 1
}
work=$(mktemp -d)
# Storage of its own, and no cgroups of systemd: crun refuses hybrid hierarchies, runc does not.
engine() {
    podman --root "$work/storage" --runroot "$work/runroot" --storage-driver vfs --runtime runc --cgroup-manager=cgroupfs "$@"
}
leave() {
    local status=$?
    engine rm --force --time 5 mps >/dev/null 2>&1 || true
    engine unmount --all >/dev/null 2>&1 || true
    rm -rf -- "$work"
    exit "$status"
}
trap leave EXIT

# until_true WHAT COMMAND...: waits for it, up to 60 s.
until_true() {
    local what=$1 end=$((SECONDS + 60))
    shift
    until "$@" >/dev/null 2>&1; do
        if [ "$SECONDS" -ge "$end" ]; then
            engine logs mps >&2 || true
            fail "never happened: $what"
        fi
        sleep 0.2
    done
    say "ok: $what"
}

base=${BASE:-}
if [ -z "$base" ]; then
    mmdebstrap --quiet --variant=essential --include=libgcc-s1 "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$work/base.tar"
    base=localhost/mps-base
    engine import --quiet "$work/base.tar" "$base" >/dev/null
    rm "$work/base.tar"
    say "ok: a base of $(engine image inspect --format '{{.Size}}' "$base") bytes"
fi
mkdir "$work/context"
install -m 755 "$binary" "$work/context/mps-manager"
strip "$work/context/mps-manager"
deploy/third-party.sh "$work/context/THIRD-PARTY.txt"
engine build --quiet --isolation chroot --build-arg BASE="$base" -f deploy/Containerfile -t mps-manager-sim "$work/context" >/dev/null
say "ok: the image is built"

# Limits as low as those that a container without further rights may set.
engine run --detach --name mps --network none --ulimit nofile=1000:1000 --ulimit nproc=1000:1000 mps-manager-sim >/dev/null
inside() { engine exec mps "$@"; }
until_true "the host in the container is ready" inside mps-manager status
. tests/host/licences.sh
names_licences "$(inside cat /usr/share/doc/mps-manager/THIRD-PARTY.txt)" || fail "the image does not name the licences of others"
grep -q 'SIMULATED (h200x2' <<<"$(inside mps-manager status)" || fail "status does not say that the host is simulated"
engine exec --detach mps mps-manager run --tenant demo -- mps-manager sim client --spin 600 --alloc 64
until_true "a client of a tenant is connected" inside sh -c 'mps-manager clients | grep demo'
inside mps-manager verify demo >/dev/null || fail "the tenant's limits are not what they should be"
say "ok: the tenant's limits hold"
engine stop --time 40 mps >/dev/null
[ "$(engine inspect --format '{{.State.ExitCode}}' mps)" = 0 ] || fail "the manager did not stop in order"
say "ok: the manager stops with the container"
say "all passed in $SECONDS s"
