#!/usr/bin/env bash
# The client that @hey-api/openapi-ts generates, used against a simulated host: `tests/clients/hey-api/run.sh [BINARY]`.
# Needs Node 20 with npm, and Python 3.11; what it installs stays below the build directory.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
binary=$(realpath "${1:-${CARGO_TARGET_DIR:-target}/debug/mps-manager}")
export MPS_MANAGER_BINARY=$binary
. tests/clients/installed.sh
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT

folder=$(node_with tests/clients/hey-api)
rm -rf -- "$folder/built" "$folder/client"
cp -- tests/clients/hey-api/{tsconfig.json,tenant_life.ts} "$folder/"
"$binary" openapi >"$scratch/openapi.json"
(cd "$folder" && npx --no-install openapi-ts -i "$scratch/openapi.json" -o client \
    -p @hey-api/client-fetch -p @hey-api/typescript -p @hey-api/sdk && npx --no-install tsc)
python3 tests/host/host.py A -- node "$folder/built/tenant_life.js"
