#!/usr/bin/env bash
# A container of podman as a client of a tenant, by its CDI device: `tests/containers/podman.sh [BINARY]`, also by the example of
# docs/integrate/containers.md as it stands. The manager runs on this host with
# simulated GPUs; the container has the simulated client and what ldd names, no network, and PIDs of its own. Needs root, podman, runc,
# busybox-static and strip; nothing is skipped. Podman reads devices in /etc/cdi and /var/run/cdi only, so for as long as this runs the manager
# keeps /var/run/cdi/mps-manager.json, and beside it there is a specification of the simulated GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
binary=$(realpath "${1:-${CARGO_TARGET_DIR:-target}/debug/mps-manager}")
simulated=$(dirname "$binary")/simulated-mps
specification=/var/run/cdi/mps-manager.json
device=mps-manager.dev/tenant=web
gpus=${specification%/*}/nvidia-simulated.json
. tests/host/example.sh
say() { echo "podman: $*"; }
fail() {
    say "FAILED: $*" >&2
    exit 1
}
[ -x "$simulated" ] || fail "$simulated is not there: build it with the manager"
[ ! -e "$specification" ] || fail "$specification is there: another manager keeps it"

work=$(mktemp -d /tmp/mps-podman.XXXXXX)
chmod 755 "$work"
manager=
# Storage of its own, and no cgroups of systemd: crun refuses hybrid hierarchies, runc does not.
engine() {
    command podman --root "$work/storage" --runroot "$work/runroot" --storage-driver vfs --runtime runc --cgroup-manager=cgroupfs "$@"
}
# Limits as low as those that a container without further rights may set. The world of the simulated GPUs is a directory, which takes
# the place of device files.
container() {
    engine run --network none --ulimit nofile=1000:1000 --ulimit nproc=1000:1000 --volume "$work/run/sim:$work/run/sim" "$@"
}
leave() {
    local status=$?
    for name in "${containers[@]}"; do engine rm --force --time 1 "$name" >/dev/null 2>&1 || true; done
    engine unmount --all >/dev/null 2>&1 || true
    if [ -n "$manager" ]; then
        kill -TERM "$manager" 2>/dev/null || true
        wait "$manager" || true
    fi
    [ "$status" = 0 ] || tail -n 40 "$work/manager.log" >&2 || true
    rm -rf -- "$work" "$gpus"
    exit "$status"
}
containers=(busy loop)
trap leave EXIT

. tests/host/waiting.sh
mps() { MPS_MANAGER_RUNTIME_DIR="$work/run" "$binary" "$@"; }
listed() { grep -q '"name": "web"' "$specification"; }
# is_client JSON: what a client saw is the tenant's share, and no more memory than its limit.
is_client() {
    [ "$(field mps <<<"$1")" = true ] || fail "it runs outside MPS: $1"
    [ "$(field sms <<<"$1")" = 32 ] || fail "it does not see its 32 SMs: $1"
    [ "$(field memory_free <<<"$1")" -lt $((2 << 30)) ] || fail "it sees more memory than its limit of 2G: $1"
}

# The image: the two programs with their libraries, a shell, and what plays `python` under the name that the documentation uses.
image=nvcr.io/nvidia/pytorch:26.01-py3
root=$work/image
install -D -m 755 "$binary" "$root/usr/bin/mps-manager"
install -D -m 755 "$simulated" "$root/usr/bin/nvidia-cuda-mps-control"
install -D -m 755 "$(command -v busybox)" "$root/bin/busybox"
for name in sh rm touch sleep env; do ln -s busybox "$root/bin/$name"; done
printf '#!/bin/sh\nexec /usr/bin/mps-manager sim client --json\n' >"$root/usr/bin/python"
chmod 755 "$root/usr/bin/python"
mkdir -p "$root/tmp"
strip "$root/usr/bin/mps-manager" "$root/usr/bin/nvidia-cuda-mps-control"
# `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)`, and the loader alone on its line.
ldd "$binary" "$simulated" | grep -o '/[^ :]* (' | tr -d ' (' | sort -u | while read -r library; do
    install -D -m 755 "$(realpath "$library")" "$root$library"
done
tar -C "$root" -c . | engine import --quiet - "$image" >/dev/null
rm -r "$root"
say "ok: the image is made"

printf 'listen = "127.0.0.1:0"\nstate_dir = "%s"\nruntime_dir = "%s"\nsim = "h200x2"\ncdi_dir = "%s"\n' \
    "$work/state" "$work/run" "${specification%/*}" >"$work/config.toml"
mkdir -p -m 755 "${specification%/*}"
"$binary" serve --config "$work/config.toml" --rm >/dev/null 2>"$work/manager.log" &
manager=$!
until_true "the manager is ready" mps status
for tenant in other web; do mps tenant set "$tenant" --daemon gpu0 --uid 0 --memory-limit 2G --sms 32 >/dev/null; done
until_true "the tenant has a device" listed

# What a container gets, and what it cannot do.
is_client "$(container --rm --device "$device" "$image" /usr/bin/mps-manager sim client --json)"
say "ok: a container with the device is a client with its SMs and its limit"
# In the place of what NVIDIA's container toolkit writes.
printf '{"cdiVersion": "0.3.0", "kind": "nvidia.com/gpu", "devices": [{"name": "%s", "containerEdits": {"env": ["GPU=simulated"]}}]}\n' \
    "$(mps env web --format cdi | grep -o 'GPU-[0-9a-f-]*')" >"$gpus"
example docs/integrate/containers.md run >"$work/example.sh"
documented() (
    podman() { shift && container "$@"; }
    mps-manager() { mps "$@"; }
    # shellcheck disable=SC1091 # made above
    . "$work/example.sh"
)
is_client "$(documented)"
say "ok: the documented command is one too"
# The GPU stands in its own line.
is_client "$(eval "container --rm $(mps env web --format docker | grep -v -- --gpus) $image python train.py")"
say "ok: and a container with the options for Docker"
ask() { echo get_default_active_thread_percentage | CUDA_MPS_PIPE_DIRECTORY="$work/run/daemons/gpu0/pipe" "$work/run/sim/bin/nvidia-cuda-mps-control"; }
# The daemon has one session at a time, and the manager may be having it.
setting() {
    local answer end=$((SECONDS + 30))
    until answer=$(ask 2>/dev/null); do
        [ "$SECONDS" -lt "$end" ] || fail "the daemon answers nobody"
        sleep 0.1
    done
    echo "$answer"
}
before=$(setting)
answer=$(container --rm --device "$device" "$image" /bin/sh -c 'echo set_default_active_thread_percentage 10 | /usr/bin/nvidia-cuda-mps-control' 2>&1 || true)
[ "$(setting)" = "$before" ] || fail "a container changed a setting of the daemon from $before to $(setting)"
say "ok: root in a container changes no setting (its answer: ${answer:-none})"
# The variable is the container's.
# shellcheck disable=SC2016
for command in 'rm "$CUDA_MPS_PIPE_DIRECTORY/control"' 'touch "$CUDA_MPS_PIPE_DIRECTORY/mine"'; do
    refuses container --rm --device "$device" "$image" /bin/sh -c "$command" >/dev/null 2>&1 || fail "a container could: $command"
done
say "ok: root in a container cannot change the tenant's directory"

# How it is listed, whatever it says of itself.
container --detach --name busy --device "$device" "$image" /bin/env MPS_MANAGER_TENANT=other /usr/bin/mps-manager sim client --json --spin 600 --alloc 256 >/dev/null
pid=$(engine inspect --format '{{.State.Pid}}' busy)
until_true "the client is listed by its PID on the host ($pid)" mps client get "$pid"
client=$(mps client get "$pid" -o json)
[ "$(field tenant <<<"$client")" = web ] || fail "the client is not the tenant's: $client"
[ "$(field container <<<"$client")" = "$(engine inspect --format '{{.Id}}' busy)" ] || fail "the client is not listed with its container: $client"
[ "$(field attributed_by <<<"$client")" = container ] || fail "its tenant is not known by its container: $client"
say "ok: its tenant is known by its container and not by its environment"
holds_memory() { [ "$(mps client get "$pid" -o json | field used_bytes)" -gt $((256 << 20)) ]; }
until_true "the driver lists it with its memory by the same PID" holds_memory
engine rm --force --time 1 busy >/dev/null

# A container that outlives its daemon: each line that it reads starts a client.
coproc loop { container --interactive --name loop --device "$device" "$image" /bin/sh -c 'while read -r line; do /usr/bin/mps-manager sim client --json </dev/null; done'; }
next() {
    local seen
    echo next >&"${loop[1]}"
    IFS= read -r -t 60 seen <&"${loop[0]}" || fail "the container answers nothing"
    is_client "$seen"
}
next
say "ok: a process of a container that goes on is a client"
if [ -n "$(engine exec loop /bin/sh -c 'echo "$CUDA_MPS_PIPE_DIRECTORY"')" ]; then
    say "note: podman exec gives the device's environment too"
else
    say "note: podman exec gives no environment of the device: what it starts runs outside MPS"
fi
is_ready() { mps daemon get gpu0 -o json | grep -q '"phase": *"ready"'; }
mps daemon restart gpu0 >/dev/null
until_true "the daemon was restarted" is_ready
next
say "ok: after a restart the next process of the same container is a client"
pid_of_daemon() { mps status | awk '$1 == "gpu0" { print $3 }'; }
daemon=$(pid_of_daemon)
kill -KILL "$daemon"
another() { local now; now=$(pid_of_daemon) && [ "$now" != "$daemon" ] && is_ready; }
until_true "the daemon died and was started again" another
next
say "ok: after its death too"
eval "exec ${loop[1]}>&-"

# What is withdrawn.
mps daemon cordon gpu0 >/dev/null
until_true "the device of a cordoned daemon is withdrawn" refuses listed
refuses container --rm --device "$device" "$image" /bin/sh -c true >/dev/null 2>&1 || fail "podman gave a device that is withdrawn"
say "ok: no container begins with it"
mps daemon uncordon gpu0 >/dev/null
until_true "it is back" listed
engine rm --force --time 1 loop >/dev/null 2>&1 || true
mps tenant delete web --yes >/dev/null
until_true "the device goes with its tenant" refuses listed

kill -TERM "$manager"
wait "$manager" || fail "the manager did not stop in order"
manager=
[ ! -e "$specification" ] || fail "the specification was left behind"
[ ! -e "$work/run" ] || fail "the runtime directory was left behind: $(ls "$work/run")"
say "all passed in $SECONDS s"
