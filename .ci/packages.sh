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
        for package in "$@"; do systemctl --quiet disable --now "$package.service" || true; done
    fi
    return "$rc"
}

# What tests/slurm runs.
slurm_packages() {
    command -v munged >/dev/null && command -v slurmctld >/dev/null && command -v slurmd >/dev/null && return
    apt-get update -q
    without_service munge slurmctld slurmd slurm-client
}
