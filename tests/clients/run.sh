#!/usr/bin/env bash
# The clients that openapi-python-client and openapi-typescript generate, used against two simulated hosts:
# `tests/clients/run.sh [BINARY]`. Needs Python 3.11 with venv and Node 20 with npm; what it installs stays below the build directory.
# A warning of a generator fails it, and so does an operation that was not called.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
binary=$(realpath "${1:-${CARGO_TARGET_DIR:-target}/debug/mps-manager}")
export MPS_MANAGER_BINARY=$binary
. tests/clients/installed.sh
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT

export DOCUMENT=$scratch/openapi.json
"$binary" openapi >"$DOCUMENT"

python_client() {
    local python
    python=$(python_with tests/clients/python/requirements.txt)
    PATH=$python/bin:$PATH openapi-python-client generate --path "$DOCUMENT" --config tests/clients/python/generator.yaml \
        --output-path "$scratch/python" --fail-on-warning
    PYTHONPATH=$scratch/python PYTHONDONTWRITEBYTECODE=1 python3 tests/host/host.py A B -- "$python/bin/python" tests/clients/python/whole_life.py
}

typescript_client() {
    local folder
    folder=$(typescript_with)
    cp -- tests/clients/typescript/whole_life.ts "$folder/"
    (cd "$folder" && npx --no-install openapi-typescript "$DOCUMENT" -o schema.d.ts && npx --no-install tsc)
    python3 tests/host/host.py A B -- node "$folder/built/whole_life.js"
}

python_client
typescript_client
