#!/usr/bin/env bash
# Containers of a real Docker daemon as clients of a tenant, by the texts of `env --format docker` and `compose` and by the examples of
# docs/integrate/docker.md as they stand; with Docker 25 and later also by CDI devices: `tests/engines/docker.sh [BINARY]`. The GPUs are simulated, the
# containers have no network, and the daemon has its own directories, its own containerd and no other mounts than its own. Needs root, dockerd with runc
# and containerd, Docker's client, Compose, busybox-static and strip.
set -euo pipefail
hosts=(A)
. "$(dirname "${BASH_SOURCE[0]}")/../host/begin.sh"
. tests/engines/real.sh

"$in_root" dockerd --version >/dev/null || fail "dockerd is not installed"
mkdir "$work/client" "$work/project" "$work/cdi"
export DOCKER_HOST=unix://$work/docker.sock DOCKER_CONFIG=$work/client
image=nvcr.io/nvidia/pytorch:26.01-py3
daemon=

# What goes on in the background has the directory of this test in its command line: dockerd, its containerd, their shims.
rest() { grep -lzF -f - /proc/[0-9]*/cmdline 2>/dev/null <<<"$work/" | cut -d / -f 3; }
leave() {
    local status=$? pid end=$((SECONDS + 20))
    set +e
    if [ -n "$daemon" ]; then
        client ps --all --quiet 2>/dev/null | while read -r pid; do client rm --force "$pid" >/dev/null 2>&1; done
        kill -TERM "$daemon" 2>/dev/null
        while kill -0 "$daemon" 2>/dev/null && [ "$SECONDS" -lt "$end" ]; do sleep 0.1; done
        for pid in $(rest); do kill -KILL "$pid" 2>/dev/null; done
        wait "$daemon" 2>/dev/null
    fi
    [ "$status" = 0 ] || tail -n 30 "$work/dockerd.log" >&2
    rm -rf -- "$work"
    exit "$status"
}
trap leave EXIT

# The client of the same packages as the daemon; older Debians have Compose as a program of its own.
client() {
    if [ -n "${ENGINES_ROOT:-}" ]; then "$in_root" docker "$@"; else "$docker" "$@"; fi
}
compose() {
    if [ -n "${ENGINES_ROOT:-}" ]; then "$in_root" docker compose "$@"; else "$compose" "$@"; fi
}
docker=/usr/bin/docker compose=
[ -x "$docker" ] || docker=$(type -P docker) || fail "docker is not installed"
if [ -z "${ENGINES_ROOT:-}" ]; then compose=$(type -P docker-compose) || fail "docker-compose is not installed"; fi

# The texts as they stand, but for the network, which this daemon has none of.
docker() {
    case $1 in
    run) client run --network none "${@:2}" ;;
    compose) compose -f "$work/beside.yaml" "${@:2}" ;;
    *) client "$@" ;;
    esac
}
mps-manager() { mps "$@"; }

# run_example PAGE NAME [SED]: an example in the project's directory, changed by sed.
run_example() {
    example "docs/integrate/$1" "$2" | sed "${3:-}" >"$work/example.sh"
    cd "$work/project"
    # shellcheck disable=SC1091 # made above
    . "$work/example.sh"
    cd "$repository"
}

python3 tests/engines/image.py "$work/image.tar" "$image" "$binary" "$(dirname "$binary")/simulated-mps" \
    CUDA_VISIBLE_DEVICES=7 CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps
version=$("$in_root" dockerd --version | sed 's/^Docker version \([0-9]*\).*/\1/')
if [ "$version" -ge 25 ]; then
    printf '{"features": {"cdi": true}, "cdi-spec-dirs": ["%s", "%s"]}\n' "$work/cdi" "$world/cdi" >"$work/daemon.json"
else
    echo '{}' >"$work/daemon.json"
fi
# It ends with this script, whatever ends that.
setpriv --pdeathsig TERM "$in_root" dockerd --config-file "$work/daemon.json" --data-root "$work/data" --exec-root "$work/exec" --pidfile "$work/pid" --host "$DOCKER_HOST" \
    --iptables=false --bridge none --storage-driver vfs --exec-opt native.cgroupdriver=cgroupfs >"$work/dockerd.log" 2>&1 &
daemon=$!
until_true "Docker's daemon answers" client info
client load --quiet --input "$work/image.tar" >/dev/null
rm "$work/image.tar"
say "ok: $(client version --format 'daemon {{.Server.Version}}, client {{.Client.Version}}') and Compose $(compose version --short) have an image that sets variables of CUDA"

# The documented steps, as they stand.
run_example docker.md tenant
for format in docker compose; do
    said=$(mps env trainer --format "$format" 2>&1 >/dev/null)
    [[ $said == "the host is simulated"* ]] || fail "nothing says that the text for $format requests no GPU: $said"
done
is_client "$(run_example docker.md run)" 8
say "ok: the documented command starts a client with its SMs and its limit"
example docs/integrate/docker.md compose.yaml >"$work/project/compose.yaml"
printf 'services:\n  client:\n    network_mode: none\n' >"$work/beside.yaml"
is_client "$(run_example docker.md compose 's/ config$/ up/' 2>&1)" 8
say "ok: and so does the documented service"

# How a container is listed, whatever it says of itself, and what docker exec starts in it.
options=$(mps env trainer --format docker)
eval "docker run --detach --name busy --env MPS_MANAGER_TENANT=other $options $image mps-manager sim client --json --spin 600 --alloc 256" >/dev/null
pid=$(client inspect --format '{{.State.Pid}}' busy)
until_true "the process of a container is listed by its PID on the host ($pid)" mps client get "$pid"
seen=$(mps client get "$pid" -o json)
[ "$(field tenant <<<"$seen")" = trainer ] || fail "it is not the tenant's: $seen"
[ "$(field container <<<"$seen")" = "$(client inspect --format '{{.Id}}' busy)" ] || fail "it is not listed with its container: $seen"
[ "$(field attributed_by <<<"$seen")" = container ] || fail "its tenant is not known by its container: $seen"
say "ok: it is listed with its container, which shows its tenant"
client exec --detach busy mps-manager sim client --json --spin 600
clients() { [ "$(mps client list --tenant trainer -o json | grep -c "\"container\": \"$(client inspect --format '{{.Id}}' busy)\"")" = "$1" ]; }
until_true "what docker exec starts is a second client in that container" clients 2
client kill busy >/dev/null
until_true "a killed container leaves no client" nobody_is_client
client rm busy >/dev/null

eval "docker run --detach --name loop $options $image sleep 600" >/dev/null
inside() { client exec loop mps-manager sim client --json; }
is_client "$(inside)" 8
say "ok: docker exec in a container that does nothing else starts a client"
if client exec --user 0 loop rm "$(mps env trainer --format json | field mount)/control" 2>/dev/null; then fail "root in a container removed the tenant's socket"; fi
survives "of the same container" 8 inside
client rm --force loop >/dev/null

if [ "$version" -ge 25 ]; then
    # In the place of what NVIDIA's container toolkit writes.
    printf '{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "0", "containerEdits": {"mounts": [{"hostPath": "%s",
        "containerPath": "%s", "options": ["rw", "bind"]}]}}]}\n' "$world" "$world" >"$work/cdi/nvidia.json"
    listed() { grep -q '"name": "web"' "$world/cdi/mps-manager.json"; }
    until_true "the tenant has a device" listed
    is_client "$(docker run --rm --user 1000 --device nvidia.com/gpu=0 --device mps-manager.dev/tenant=web "$image" python train.py)"
    is_client "$(eval "docker run --rm $(mps env web --format cdi) $image python train.py")"
    say "ok: a container with the tenant's CDI device is a client"
    docker run --detach --name device --user 1000 --device nvidia.com/gpu=0 --device mps-manager.dev/tenant=web "$image" sleep 600 >/dev/null
    if client exec device env | grep -q MPS_MANAGER_TENANT=web; then
        say "note: docker exec gives the device's environment too"
    else
        say "note: docker exec gives no environment of the device: what it starts runs outside MPS"
    fi
    run_example containers.md exec 's/ trainer / device /' >"$work/executed"
    is_client "$(cat "$work/executed")"
    say "ok: what docker exec starts with the tenant's variables is a client"
    client rm --force device >/dev/null
    mkdir "$work/cdi-project"
    { example docs/integrate/containers.md compose.yaml && echo '    command: python train.py'; } >"$work/cdi-project/compose.yaml"
    sed -i 's/^  client:$/  train:/' "$work/beside.yaml"
    is_client "$(cd "$work/cdi-project" && docker compose -f compose.yaml up 2>&1)"
    say "ok: the documented service with CDI devices is one too"
    mps daemon cordon gpu0 >/dev/null
    until_true "the device of a cordoned daemon is withdrawn" refuses listed
    if docker run --rm --device mps-manager.dev/tenant=web "$image" true 2>"$work/refusal"; then fail "Docker gave a device that is withdrawn"; fi
    grep -qF 'unresolvable CDI devices mps-manager.dev/tenant=web' "$work/refusal" || fail "Docker refuses it for another reason: $(cat "$work/refusal")"
    say "ok: and Docker refuses a container with it"
    mps daemon uncordon gpu0 >/dev/null
fi

run_example docker.md end
[ "$(mps tenant list -o name | grep -c trainer)" = 0 ] || fail "the example leaves its tenant"
until_true "no client is left" nobody_is_client
kill -TERM "$daemon"
wait "$daemon" || fail "Docker's daemon ended with $?"
daemon=
nothing_is_left() { [ -z "$(rest)" ]; }
until_true "Docker's daemon ended, and no process of it is left" nothing_is_left
say "all passed in $SECONDS s"
