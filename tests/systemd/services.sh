#!/usr/bin/env bash
# The manager's service as docs/integrate/bootstrap.md makes it, and services that are a tenant's as docs/integrate/systemd.md has them, on a
# simulated host under a real systemd: `tests/systemd/services.sh [BINARY]`. Needs what tests/systemd/run.sh needs, and dbus-daemon.
set -euo pipefail

# Units are verified with those that they name.
verified_units() { local said; said=$(SYSTEMD_UNIT_PATH=/etc/mps-units:/run/systemd/system: systemd-analyze verify --man=no "$@" 2>&1) && [ -z "$said" ] || { echo "$said"; return 1; }; }
service_pid() { systemctl show --property=MainPID --value "$1"; }
# of_tenant UNIT: its process is a client of the tenant.
of_tenant() {
    local client
    client=$(mps-manager client get "$(service_pid "$1")" -o json 2>/dev/null) || return 1
    grep -q '"tenant": "web"' <<<"$client" && grep -q '"uid": 1000' <<<"$client"
}
is() { [ "$(systemctl show --property="$2" --value "$1")" = "$3" ]; }

scenario() {
    local old
    cd /
    . /scenario/example.sh
    until_true "systemd answers" systemctl show --property=Version
    # The program of the examples.
    printf '#!/bin/sh\nexec /usr/local/bin/mps-manager sim client --json --spin 600\n' >/usr/bin/train
    chmod 755 /usr/bin/train

    # Where `bootstrap` writes units, this systemd reads them. The GPUs are named and simulated, since no driver lists them.
    rm /etc/mps-units/mps-manager.service
    mount --bind /etc/mps-units /etc/systemd/system
    drop_in test 'ExecStart=\nExecStart=/usr/local/bin/mps-manager serve --apply /etc/mps-manager/host.yaml --sim h200x2'
    example /scenario/bootstrap.md command | sed 's/$/ --gpus 0,1/' >/tmp/command
    timeout 60 bash -euo pipefail /tmp/command >/tmp/printed 2>&1 || fail "the documented command fails: $(cat /tmp/printed)"
    until_true "bootstrap has started the manager, and all daemons are ready" ready
    check "it starts with the system" [ -L /etc/systemd/system/multi-user.target.wants/mps-manager.service ]
    mps-manager run --tenant gpu0 -- mps-manager sim client --json >/tmp/printed
    check "a process of a tenant that it has made sees its 32 SMs" grep -Eq '"sms": ?32' <(tr -d '\n' </tmp/printed)

    mps-manager tenant set web --daemon gpu1 --uid 1000 --memory-limit 2G --sms 32 >/dev/null
    until_true "the tenant has its file" [ -e /run/mps-manager/env/web.env ]

    printf '[Unit]\nDescription=documented\n\n' >/run/systemd/system/documented.service
    example /scenario/systemd.md unit >>/run/systemd/system/documented.service
    # One that knows nothing of MPS, with the drop-in.
    printf '[Unit]\nDescription=existing\n\n[Service]\nUser=1000\nExecStart=/usr/bin/train\n' >/run/systemd/system/existing.service
    install -D -m 644 /scenario/50-mps.conf /run/systemd/system/existing.service.d/50-mps.conf
    check "systemd has nothing to remark on the units, nor on the manager's" \
        verified_units documented.service existing.service mps-manager.service
    systemctl daemon-reload
    for unit in documented existing; do
        check "the $unit service starts" systemctl start "$unit"
        until_true "its process is a client of the tenant" of_tenant "$unit"
    done

    old=$(service_pid existing)
    check "the manager is restarted" systemctl restart mps-manager
    until_true "it is ready" ready
    check "the service runs on" [ "$(service_pid existing)" = "$old" ]
    until_true "and is a client of the tenant" of_tenant existing

    mps-manager daemon cordon gpu1 >/dev/null
    until_true "a tenant that takes no processes has no file" [ ! -e /run/mps-manager/env/web.env ]
    systemctl restart existing 2>/dev/null || true
    until_true "its service does not start, and is tried again" is existing SubState auto-restart
    mps-manager daemon uncordon gpu1 >/dev/null
    until_true "it starts by itself once there is a file again" of_tenant existing

    # What a job of Slurm left before a reboot.
    install -D -m 755 /scenario/epilog.sh /etc/slurm/mps-manager/epilog.sh
    install -m 644 /scenario/slurm-shares.conf /etc/mps-manager/slurm-shares.conf
    install -m 644 /scenario/mps-manager-slurm.{service,timer} /run/systemd/system/
    check "systemd has nothing to remark on the units for Slurm" verified_units mps-manager-slurm.service mps-manager-slurm.timer
    systemctl daemon-reload
    mps-manager tenant set slurm_17_20260412093000_0 --daemon gpu1 --uid 1000 --memory-limit 1G --sms 8 >/dev/null
    check "the service for Slurm ends well" systemctl start mps-manager-slurm.service
    mps-manager tenant list -o name >/tmp/printed
    check "it has deleted the tenant of a job, and no other" [ "$(grep -c '^slurm_' /tmp/printed) $(grep -cx web /tmp/printed)" = "0 1" ]

    # `systemd-run --wait` asks by the system bus.
    ln -s /usr/lib/systemd/system/dbus.{service,socket} /run/systemd/system/
    systemctl daemon-reload
    check "the system bus starts" systemctl start dbus.service
    example /scenario/systemd.md command >/tmp/command
    printf '#!/bin/sh\nexec /usr/local/bin/mps-manager sim client --json\n' >/usr/bin/train
    timeout 60 bash -euo pipefail /tmp/command >/tmp/printed 2>&1 || fail "the documented command fails: $(cat /tmp/printed)"
    say "$(tr -d '\n' </tmp/printed)"
    check "the documented command is a client that sees its SMs" grep -Eq '"mps": ?true.*"sms": ?32' <(tr -d '\n' </tmp/printed)
}

[ "${BASH_SOURCE[0]}" = "$0" ] || return 0
repository=$(cd "$(dirname "$0")/../.." && pwd)
binary=$(realpath "${1:-${CARGO_TARGET_DIR:-$repository/target}/debug/mps-manager}")
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
cp "$repository"/{tests/systemd/services.sh,tests/host/example.sh,docs/integrate/{bootstrap,systemd}.md,deploy/systemd/50-mps.conf,deploy/slurm/{epilog.sh,slurm-shares.conf,mps-manager-slurm.{service,timer}}} "$work/"
SCENARIO=$work/services.sh "$repository/tests/systemd/run.sh" "$binary"
