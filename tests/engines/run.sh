#!/usr/bin/env bash
# The texts of `env --format docker|compose|nomad`, read by the engines' own parsers, and the examples of docs/integrate/docker.md, nomad.md and
# containers.md as they stand: `tests/engines/run.sh [BINARY]`. No daemon runs: Docker's client speaks to a stand-in for one, Compose merges the
# files, and a Nomad job is read as HCL. Needs docker, docker-compose, Python with venv, and the registry of Python packages.
set -euo pipefail
hosts=(A)
. "$(dirname "${BASH_SOURCE[0]}")/../host/begin.sh"
. tests/clients/installed.sh
repository=$PWD

python=$(python_with tests/engines/requirements.txt)
scratch=$(mktemp -d)
started=()
leave() {
    [ "${#started[@]}" = 0 ] || kill "${started[@]}" 2>/dev/null || true
    rm -rf -- "$scratch"
}
trap leave EXIT
docker=$(command -v docker) || fail "docker is not installed"
compose=$(command -v docker-compose) || fail "docker-compose is not installed"

# The programs as the examples call them: ours, Docker's client with Compose as a plugin, and a `nomad` that keeps the job.
mkdir "$scratch/bin" "$scratch/docker"
ln -s "$binary" "$scratch/bin/mps-manager"
printf '#!/bin/sh\n[ "$1" != compose ] || { shift; exec %s "$@"; }\nexec %s "$@"\n' "$compose" "$docker" >"$scratch/bin/docker"
printf '#!/bin/sh\n[ "$1 $2" = "job validate" ] && cp "$3" %s/job.hcl\n' "$scratch" >"$scratch/bin/nomad"
chmod +x "$scratch/bin/docker" "$scratch/bin/nomad"
export MPS_MANAGER_RUNTIME_DIR=$scratch/real DOCKER_HOST=unix://$scratch/docker.sock DOCKER_CONFIG=$scratch/docker
export PATH=$scratch/bin:$PATH
"$python/bin/python" tests/engines/docker_api.py "$scratch/docker.sock" "$scratch" &
started+=($!)
mkdir "$scratch/real"
"$python/bin/python" tests/engines/real_host.py "$scratch/real/api.sock" "$HOST_A_RUNTIME_DIR/api.sock" &
started+=($!)
end=$((SECONDS + 30))
until [ -S "$scratch/docker.sock" ] && [ -S "$scratch/real/api.sock" ]; do
    [ "$SECONDS" -lt "$end" ] || fail "a stand-in does not come up"
    sleep 0.1
done

# run PAGE NAME: an example, in an empty directory or in that of its files.
run() {
    example "docs/integrate/$1" "$2" >"$scratch/example.sh"
    (cd "$scratch/work" && bash -euo pipefail "$scratch/example.sh")
}
is() { "$python/bin/python" "$repository/tests/engines/check.py" "$1" "$scratch/environment.json" "$2" || fail "$3"; }
# The tenants of the examples are of another user than those of the host.
mps-manager apply --yes --prune -f - <<<$'version: v1\ndaemons: {gpu0: {gpus: [0]}, gpu1: {gpus: [1]}}' >/dev/null
mkdir "$scratch/work"

run docker.md tenant
mps-manager env trainer --format json >"$scratch/environment.json"
run docker.md run
is docker "$scratch/create.json" "Docker's client makes something else of the options"
say "ok: $("$docker" --version) takes the options"

example docs/integrate/docker.md compose.yaml >"$scratch/work/compose.yaml"
run docker.md compose >"$scratch/merged.yaml"
is compose "$scratch/work/mps.yaml" "the service is not as Compose's schema wants it"
is merged "$scratch/merged.yaml" "Compose merges the service to something else"
say "ok: docker-compose $("$compose" version --short) takes the service, and so does Compose's schema"

run nomad.md job
is nomad "$scratch/job.hcl" "the job is something else"
say "ok: the job is HCL with the tenant's blocks"

run docker.md end
[ -z "$(mps-manager tenant list -o name)" ] || fail "the example leaves a tenant: $(mps-manager tenant list)"

# With CDI, and with several GPUs.
mps-manager apply --yes --prune -f - <<<$'version: v1\ndaemons: {all: {gpus: [0, 1]}}' >/dev/null
mps-manager tenant ensure web --daemon all --memory-limit 2G --uid 1000 --ttl 1h >/dev/null
mps-manager env web --format json >"$scratch/environment.json"
eval "docker run --rm $(mps-manager env web --format docker) nvcr.io/nvidia/pytorch:26.01-py3"
is docker "$scratch/create.json" "Docker's client makes something else of the options for two GPUs"
mps-manager env web --format compose >"$scratch/pair.yaml"
is compose "$scratch/pair.yaml" "the service for two GPUs is not as Compose's schema wants it"
say "ok: and with two GPUs"
example docs/integrate/containers.md compose.yaml >"$scratch/cdi.yaml"
"$python/bin/python" -c 'import json, sys, jsonschema, yaml
jsonschema.validate(yaml.safe_load(open(sys.argv[1])), json.load(open(sys.argv[2])))' "$scratch/cdi.yaml" tests/fixtures/compose/schema.json
"$compose" -f "$scratch/cdi.yaml" config --quiet
say "ok: the documented service with CDI devices is valid"
say "all passed in $SECONDS s"
