# What .ci/run and .ci/nightly install Debian's packages with: source this.

# Installs packages without their services, which would take ports of this machine, now and at each boot.
without_service() {
    local policy=/usr/sbin/policy-rc.d ours=
    if [ ! -e "$policy" ]; then
        ours=$policy
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 0755 "$policy"
    fi
    local rc=0 package
    apt-get install -q -y --no-install-recommends "$@" || rc=$?
    if [ -n "$ours" ]; then rm -f "$ours"; fi
    if [ -d /run/systemd/system ]; then
        for package in "$@"; do
            dpkg -L "$package" | sed -nE 's,.*/systemd/system/([^/]+\.(service|socket))$,\1,p' | xargs -r systemctl --quiet disable --now || true
        done
    fi
    return "$rc"
}

# What tests/slurm runs.
slurm_packages() {
    command -v munged >/dev/null && command -v slurmctld >/dev/null && command -v slurmd >/dev/null && return
    apt-get update -q
    without_service munge slurmctld slurmd slurm-client
}

# What tests/engines/docker.sh runs: Docker's daemon, and what its image is made of.
docker_packages() {
    local missing=()
    command -v dockerd >/dev/null || missing+=(docker.io)
    command -v containerd >/dev/null || missing+=(containerd)
    command -v runc >/dev/null || missing+=(runc)
    command -v busybox >/dev/null || missing+=(busybox-static)
    command -v strip >/dev/null || missing+=(binutils)
    [ "${#missing[@]}" -gt 0 ] || return 0
    apt-get update -q
    without_service "${missing[@]}"
}

# What tests/engines/run.sh runs: Docker's client, which older Debians have with the daemon only, and Compose.
engines_packages() {
    local missing=()
    command -v docker-compose >/dev/null || missing+=(docker-compose)
    if ! command -v docker >/dev/null; then
        apt-get update -q
        if [ -n "$(apt-cache search --names-only '^docker-cli$')" ]; then missing+=(docker-cli); else missing+=(docker.io containerd); fi
    fi
    [ "${#missing[@]}" -gt 0 ] || return 0
    apt-get update -q
    without_service "${missing[@]}"
}

# What tests/kubernetes/cluster.sh builds Kubernetes with, and runs it on.
cluster_packages() {
    local missing=() package
    for package in golang-go make patch dpkg-dev rsync jq etcd-server containerd runc containernetworking-plugins busybox-static iproute2 openssl binutils; do
        dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
    done
    [ "${#missing[@]}" -gt 0 ] || return 0
    apt-get update -q
    without_service "${missing[@]}"
}
