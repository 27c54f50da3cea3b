#!/usr/bin/env bash
# schemathesis over the whole document, every check on, against a simulated host of its own: `tests/contract/run.sh [BINARY]`.
# MPS_MANAGER_EXAMPLES (50) is the most cases of a phase for an operation, and MPS_MANAGER_SEED (1, so that a change is judged by what it
# changes) gives others. Needs Python 3.11 with venv and curl.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
binary=$(realpath "${1:-${CARGO_TARGET_DIR:-target}/debug/mps-manager}")
. tests/clients/hosts.sh

python=$(python_with tests/contract/requirements.txt)
seed=${MPS_MANAGER_SEED:-1}
examples=${MPS_MANAGER_EXAMPLES:-50}
echo "contract: seed $seed, $examples examples"
# As fast as it can: the bound on requests has tests of its own.
start_host A 'look_interval_s = 1' '[limits]' 'requests_per_s = 0'
"$python/bin/python" tests/contract/furnish.py &
managers+=($!)

# The stream of events has no end to wait for: tests/clients reads it, and tests/it/server has more on it.
SCHEMATHESIS_HOOKS=$PWD/tests/contract/hooks.py "$python/bin/schemathesis" --config-file tests/contract/schemathesis.toml \
    run "$HOST_A_URL/openapi.json" --checks all --max-examples "$examples" --seed "$seed" --continue-on-failure --exclude-operation-id stream_events --no-shrink \
    --request-timeout 65 --header "Authorization: Bearer $HOST_A_TOKEN" --generation-database none
curl -sf -o /dev/null --max-time 30 "$HOST_A_URL/healthz"
