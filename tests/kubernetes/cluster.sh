#!/usr/bin/env bash
# Pods of a real Kubernetes on a simulated host: `tests/kubernetes/cluster.sh [BINARY]`. etcd, API server, controllers, scheduler, containerd and
# kubelet run on this machine with the manifests of deploy/kubernetes as they stand, but for the few lines of cluster/simulated. Needs root,
# Debian 12 with what cluster/build.sh needs, and its etcd-server, containerd, runc, containernetworking-plugins, busybox-static, iproute2 and
# openssl; nothing is skipped. The programs of Kubernetes are kept in MPS_MANAGER_KUBERNETES, by default below the build directory.
#
# The cluster has namespaces of its own for mounts, processes and the network: /run, /var/lib, /var/log and /etc are its own there, its only
# interface is the loopback, and with their first process all that it started ends. What a kubelet sets in the kernel is set in files of theirs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
binary=$(realpath "${1:-${CARGO_TARGET_DIR:-target}/debug/mps-manager}")
export PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
say() { echo "cluster: $*"; }
fail() {
    say "FAILED: $*" >&2
    exit 1
}
[ -x "$(dirname "$binary")/simulated-mps" ] || fail "simulated-mps is not beside $binary: build it with the manager"
for program in etcd containerd runc ctr busybox ip openssl strip; do command -v "$program" >/dev/null || fail "$program is missing"; done
[ -x /usr/lib/cni/ptp ] || fail "Debian's containernetworking-plugins are missing"
[ "$(id -u)" = 0 ] || fail "a kubelet needs root"
programs=$(tests/kubernetes/cluster/build.sh "${MPS_MANAGER_KUBERNETES:-${CARGO_TARGET_DIR:-target}/kubernetes}")
say "$(cat "$programs/complete")"

home=$(mktemp -d /tmp/mps-cluster.XXXXXX)
group=${home##*/}
chmod 755 "$home"
hierarchies() { awk '$3 ~ /^cgroup2?$/ { print $2 }' /proc/mounts; }
cgroups() { hierarchies | while read -r hierarchy; do if [ -d "$hierarchy/$group" ]; then find "$hierarchy/$group" -depth -type d; fi; done; }
tunables() { (cd /proc/sys && grep -r . vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys); }
processes() { grep -ls -- "/$group" /proc/[0-9]*/cgroup || true; }
# What is left behind of the cluster; nothing, since its first process is gone.
left() {
    local end=$((SECONDS + 30)) folder
    while [ -n "$(processes)" ] && [ "$SECONDS" -lt "$end" ]; do sleep 0.1; done
    processes
    cgroups | while read -r folder; do rmdir "$folder" || true; done
    cgroups
    grep -F "$home" /proc/self/mountinfo || true
    tunables | diff "$home/sysctl.before" - || true
    rm -rf -- "$home"
    find /tmp -maxdepth 1 -name "$group"
}
leave() {
    local status=$? leftovers
    if [ -n "$cluster" ]; then
        kill -KILL "$cluster" 2>/dev/null || true
        wait "$cluster" 2>/dev/null || true
    fi
    leftovers=$(left 2>&1)
    if [ -n "$leftovers" ]; then
        say "FAILED: this is left: $leftovers" >&2
        exit 1
    fi
    [ "$status" != 0 ] || say "ok: no process, cgroup, mount, directory or kernel setting of the cluster is left; $SECONDS s"
    exit "$status"
}
cluster=
trap leave EXIT
trap 'exit 143' TERM INT
tunables >"$home/sysctl.before"
hierarchies | while read -r hierarchy; do mkdir "$hierarchy/$group"; done

# The shell is the first process, which collects those whose parents have ended.
MPS_MANAGER_BINARY=$binary PYTHONPATH=tests/host PYTHONDONTWRITEBYTECODE=1 \
    unshare --mount --propagation private --pid --net --fork --kill-child --mount-proc \
    bash -c 'python3 tests/kubernetes/cluster/scenario.py "$@"; exit $?' - "$programs" "$home" &
cluster=$!
wait "$cluster"
cluster=
