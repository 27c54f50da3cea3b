#!/usr/bin/env bash
# The hardware scenario: what mps-manager promises, on a real GPU, checked by a CUDA program that owes it nothing.
#
#   tests/hardware/run.sh --binary target/release/mps-manager --commit "$(git rev-parse --short HEAD)"
#
# Runs on a GPU host with no Rust: carry the release binary and this directory. Everything lives in a private
# directory under /tmp and ends with the run. No setting of a GPU is changed. docs/hardware.md says more.
#
#   --binary FILE   the release binary
#   --commit ID     what it was built from, for the record
#   --record FILE   the record to write the results to (docs/verified-on.md's form); default: none
#   --part PART     one-gpu, living-host (two GPUs), layout, access, sharing, namespace, rootless, recordings, incidents (two GPUs), or all, which
#                   is the default; deaths and wedges, 200 rounds of each (ROUNDS in the environment), faults (60), watch (40 breaches and
#                   bypasses) and strangers run only by name
#   --recording FILE, --profile PROFILE
#                   a file that an owner made with `mps-manager record`, and the simulated host that should reply alike (l40sx1@13.3)
#   --keep          leave logs and state behind, and say where
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

binary='' commit='' record_file='' recording='' profile='' keep=no part=all
while [ $# -gt 0 ]; do
    case $1 in
    --binary | --commit | --part | --record | --recording | --profile)
        [ $# -ge 2 ] || { echo "$1 needs a value" >&2; exit 2; }
        case $1 in
        --binary) binary=$(readlink -f "$2") ;;
        --commit) commit=$2 ;;
        --part) part=$2 ;;
        --record) record_file=$(readlink -f "$2") ;;
        --recording) recording=$(readlink -f "$2") ;;
        --profile) profile=$2 ;;
        esac
        shift 2
        ;;
    --keep) keep=yes; shift ;;
    *) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
    esac
done
[ -x "$binary" ] || { echo "--binary must name the release binary" >&2; exit 2; }
case $part in
all | one-gpu | living-host | layout | access | sharing | namespace | rootless | recordings | incidents | deaths | wedges | faults | watch | strangers) ;;
*) echo "--part is all, one-gpu, living-host, layout, access, sharing, namespace, rootless, recordings, incidents, deaths, wedges, faults, watch or strangers, and not $part" >&2; exit 2 ;;
esac
[ -n "$commit" ] || { echo "--commit must say what the binary was built from" >&2; exit 2; }

# shellcheck source=tests/hardware/lib.sh
. "$here/lib.sh"
# shellcheck source=tests/hardware/manager.sh
. "$here/manager.sh"
# shellcheck source=tests/hardware/ownership.sh
. "$here/ownership.sh"
# shellcheck source=tests/hardware/layout.sh
. "$here/layout.sh"
# shellcheck source=tests/hardware/access.sh
. "$here/access.sh"
# shellcheck source=tests/hardware/sharing.sh
. "$here/sharing.sh"
# shellcheck source=tests/hardware/namespace.sh
. "$here/namespace.sh"
# shellcheck source=tests/hardware/rootless.sh
. "$here/rootless.sh"
# shellcheck source=tests/hardware/recording.sh
. "$here/recording.sh"
# shellcheck source=tests/hardware/incidents.sh
. "$here/incidents.sh"
# shellcheck source=tests/hardware/rounds.sh
. "$here/rounds.sh"
# shellcheck source=tests/hardware/evidence.sh
. "$here/evidence.sh"

# What a record of this run is called.
title() {
    case $part in
    deaths) echo "$ROUNDS deaths of the control daemon, with clients started all the while" ;;
    wedges) echo "$ROUNDS rounds of clients killed as they connect" ;;
    all) echo "the hardware scenario" ;;
    *) echo "the hardware scenario, part $part" ;;
    esac
}

finish() {
    local status=$?
    trap - EXIT
    end_everything
    check "no daemon of this run is left" "" "$(our_daemons | tr '\n' ' ')"
    check "the GPUs' settings are what they were" "$SETTINGS_BEFORE" "$(gpu_settings)"
    print_table
    if [ -n "$record_file" ]; then record "$record_file" "$commit" "$(title)"; fi
    if [ "$keep" = yes ]; then say "kept: $WORK"; else rm -rf -- "$WORK"; fi
    if [ "$status" -eq 0 ] && [ "$FAILED" -gt 0 ]; then status=1; fi
    exit "$status"
}

for tool in nvidia-smi nvidia-cuda-mps-control nvcc curl python3 setpriv; do
    command -v "$tool" >/dev/null || die "$tool is not on the PATH"
done
SETTINGS_BEFORE=$(gpu_settings)
trap finish EXIT

# What the probe and the independent client see with no MPS at all: the yardstick for everything after.
outside_mps() {
    # A pipe directory without a daemon, lest a foreign daemon in the default one be joined.
    mkdir -p "$WORK/none"
    clean CUDA_MPS_PIPE_DIRECTORY="$WORK/none" "$binary" cuda-probe >"$LOGS/probe.json" || true
    clean CUDA_MPS_PIPE_DIRECTORY="$WORK/none" "$CLIENT" info >"$LOGS/client.json" || true
    check "the probe works outside MPS" null "$(json "$LOGS/probe.json" 'd["error"]')"
    check "the probe says that it is outside MPS" false "$(json "$LOGS/probe.json" 'd["mps"]')"
    check "probe and client see the same GPUs and multiprocessors" \
        "$(json "$LOGS/client.json" '[[x["uuid"], x["sms"]] for x in d["devices"]]')" \
        "$(json "$LOGS/probe.json" '[[x["uuid"], x["sms"]] for x in d["devices"]]')"
    check "a kernel really runs on all of them" \
        "$(json "$LOGS/client.json" '[x["sms"] for x in d["devices"]]')" \
        "$(json "$LOGS/client.json" '[x["sms_used"] for x in d["devices"]]')"
    ALL_SMS=$(json "$LOGS/client.json" 'd["devices"][0]["sms"]')
    say "device 0 has $ALL_SMS multiprocessors"
}

# What MPS itself does to clients that wait, and that the probe is not one that harms it. Killing a client before its
# server has taken it hangs the server and the daemon (seen on 13.0), so a server is started before any client, and
# nothing here kills a client that waits.
a_daemon_alone() {
    start_daemon alone
    daemon_says "start_server -uid 0" >/dev/null
    wait_for 10 "the server is ready" server_is_active

    clean CUDA_MPS_PIPE_DIRECTORY="$DAEMON_PIPE" CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25 \
        CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4G "$binary" cuda-probe --allocate-up-to 8G >"$LOGS/probe.json" || true
    check "limits in the environment: the probe sees less than all multiprocessors" true \
        "$(json "$LOGS/probe.json" "0 < d['devices'][0]['sms'] < $ALL_SMS")"
    check "limits in the environment: no allocation goes beyond 4 GiB" true \
        "$(json "$LOGS/probe.json" '0 < d["devices"][0]["allocation"]["largest"] < 4 << 30')"

    # The other user's probe has to wait for this client, gives up, and leaves its process waiting.
    start_client first CUDA_MPS_PIPE_DIRECTORY="$DAEMON_PIPE" -- spin 6
    wait_for 10 "the first user's client is connected" grep -q devices "$LOGS/first.out"
    local first=$CLIENT_PID waiting
    cp -- "$binary" "$WORK/mps-manager"
    chmod 0755 "$WORK/mps-manager"
    setpriv --reuid=65534 --regid=65534 --clear-groups env -i CUDA_MPS_PIPE_DIRECTORY="$DAEMON_PIPE" \
        LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}" "$WORK/mps-manager" cuda-probe --timeout 2 >"$LOGS/probe.json" || true
    check "a probe that has to wait says so" timeout "$(json "$LOGS/probe.json" 'd["error"]["name"]')"
    waiting=$(json "$LOGS/probe.json" 'd["pid"]')
    check "its process is left waiting" no "$(is_gone "$waiting" && echo yes || echo no)"
    wait "$first" || true
    wait_for 20 "the waiting process is served and ends" is_gone "$waiting"
    clean CUDA_MPS_PIPE_DIRECTORY="$DAEMON_PIPE" "$binary" cuda-probe --timeout 10 >"$LOGS/probe.json" || true
    check "the daemon is well afterwards" true "$(json "$LOGS/probe.json" 'd["mps"]')"
    daemon_says "quit -t 2" >/dev/null || true
}

server_is_active() {
    local server
    server=$(daemon_says get_server_list | tail -n 1)
    [ "$(daemon_says "get_server_status $server")" = ACTIVE ]
}

compile_client "$here/client.cu"
case $part in
all | one-gpu)
    outside_mps
    a_daemon_alone
    the_manager
    ;;
esac
case $part in
all | living-host)
    if [ "$(nvidia-smi --list-gpus | wc -l)" -ge 2 ]; then
        new_host living
        a_living_host
    else
        say "one GPU: the scenario of a host that already lives needs two"
    fi
    ;;
esac
case $part in
all | layout)
    new_host layout
    a_layout
    ;;
esac
case $part in
all | access)
    new_host access
    what_others_rely_on
    ;;
esac
case $part in
all | sharing)
    ten_tenants_share
    ;;
esac
case $part in
all | namespace)
    tenant_in_a_mount_namespace
    ;;
esac
case $part in
all | rootless)
    without_root
    ;;
esac
case $part in
all | recordings)
    recordings
    ;;
esac
case $part in
all | incidents)
    if [ "$(nvidia-smi --list-gpus | wc -l)" -ge 2 ]; then
        faults_on_two_gpus
    else
        say "one GPU: the scenario of faults needs two"
    fi
    ;;
esac
case $part in
deaths | wedges)
    new_host rounds
    a_host_of_rounds
    "rounds_of_$part"
    ;;
esac
case $part in
faults)
    new_host faults
    faults_and_whom_they_speak_against
    ;;
watch)
    new_host watch
    breaches_and_bypasses_are_seen
    ;;
strangers)
    a_stranger_at_the_daemon false
    a_stranger_at_the_daemon true
    ;;
esac
