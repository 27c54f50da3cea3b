#!/usr/bin/env bash
# The walks of docs/operate.md, as they stand there, on a simulated host under a real systemd: `tests/systemd/walks.sh [BINARY]`. Needs
# what tests/systemd/run.sh needs, and curl.
set -euo pipefail

# walk NAME: the fenced block after the line <!-- walk: NAME -->. The ten minutes for clients become two seconds.
walk() {
    example /scenario/operate.md "$1" walk | sed -e 's/--timeout 10m/--timeout 2s/' >/tmp/walk || fail "it is not documented: $1"
    say "walk: $1"
    (cd /scenario && timeout 120 bash -euo pipefail /tmp/walk >/tmp/walked 2>&1) || {
        cat /tmp/walked
        fail "the walk fails: $1"
    }
    say "ok: walk: $1"
}

# The IDs of the partitions that there are.
ids() {
    curl -sS --fail-with-body --unix-socket /run/mps-manager/api.sock 'http://manager/api/v1/daemons/gpu1/partitions?fresh=true' |
        grep -o '"id":"[^"]*"' | sort
}
gone() { ! kill -0 "$1" 2>/dev/null; }
# Processes that have a device of the simulated GPUs open.
holders() { find /proc/[0-9]*/fd -lname '/run/mps-manager/sim/dev/nvidia*' 2>/dev/null || true; }

scenario() {
    local recorded
    . /scenario/example.sh
    cd /
    until_true "systemd answers" systemctl show --property=Version
    mkdir -p /scenario/target/release /var/backups
    cp /usr/local/bin/mps-manager /scenario/target/release/mps-manager
    drop_in test 'ExecStart=\nExecStart=/usr/local/bin/mps-manager serve --sim h200x2'
    check "the unit starts" systemctl start mps-manager
    until_true "all daemons are ready" ready
    curl -sS --fail-with-body --unix-socket /run/mps-manager/api.sock -X PUT http://manager/api/v1/daemons/gpu1 \
        -H 'Content-Type: application/json' -d '{"gpus": ["1"], "mode": "static"}' >/dev/null
    curl -sS --fail-with-body --unix-socket /run/mps-manager/api.sock -X POST http://manager/api/v1/daemons/gpu1/restart >/dev/null
    until_true "gpu1 is static and ready" ready
    printf '%s\n' 'version: v1' 'layouts:' '  web_prod:' '    steps:' '      - add: {gpu: 1, partition: web, chunks: 7}' \
        '      - add: {gpu: 1, partition: gap, chunks: 2}' '      - add: {gpu: 1, partition: batch, chunks: 5}' \
        '      - remove: {partition: gap}' >/tmp/layout.yaml
    check "a layout is applied" mps-manager layout apply -f /tmp/layout.yaml web_prod --daemon gpu1
    mps-manager run --tenant demo -- mps-manager sim client --world /run/mps-manager/sim --spin 600 >/dev/null &
    client=$!
    until_true "the client is connected" says 'demo .* 1/1'
    before=$(pids)
    recorded=$(ids)
    [ -n "$recorded" ] || fail "the layout has no IDs"

    walk manager
    check "daemon, server and client are the same" same
    walk back
    check "daemon, server and client are the same" same

    walk "maintenance begins"
    check "nobody has a GPU open" [ -z "$(holders)" ]
    check "the client was ended" gone "$client"
    # In place of another driver: another version of the simulated one.
    sed -i 's/\("driver_version": *"\)[0-9.]*"/\1999.99.99"/' /run/mps-manager/sim/world.json
    walk "maintenance ends"
    check "the new driver is there" grep -q '999\.99\.99' <<<"$(mps-manager doctor || true)"
    check "the partitions have the IDs of before" [ "$(ids)" = "$recorded" ]
    check "other daemons were started" refuses same
}

[ "${BASH_SOURCE[0]}" = "$0" ] || return 0
repository=$(cd "$(dirname "$0")/../.." && pwd)
binary=$(realpath "${1:-${CARGO_TARGET_DIR:-$repository/target}/debug/mps-manager}")
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
cp "$repository"/{tests/systemd/walks.sh,tests/host/example.sh,docs/operate.md} "$work/"
SCENARIO=$work/walks.sh "$repository/tests/systemd/run.sh" "$binary"
