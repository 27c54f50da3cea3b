#!/usr/bin/env bash
# schemathesis over the whole document, every check on, against a simulated host of its own: `tests/contract/run.sh [BINARY]`.
# MPS_MANAGER_EXAMPLES (50) is the most cases of a phase for an operation, and MPS_MANAGER_SEED (1, so that a change is judged by what it
# changes) gives others. Needs Python 3.11 with venv and curl.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
binary=$(realpath "${1:-${CARGO_TARGET_DIR:-target}/debug/mps-manager}")
export MPS_MANAGER_BINARY=$binary
# As fast as it can: the bound on requests has tests of its own.
[ -n "${HOST_A_URL:-}" ] || exec python3 tests/host/host.py --config 'poll_interval_s = 1' --config '[limits]' --config 'requests_per_s = 0' \
    A -- tests/contract/run.sh "$binary"
. tests/clients/installed.sh

python=$(python_with tests/contract/requirements.txt)
seed=${MPS_MANAGER_SEED:-1}
examples=${MPS_MANAGER_EXAMPLES:-50}
echo "contract: seed $seed, $examples examples"
PYTHONPATH=tests/host PYTHONDONTWRITEBYTECODE=1 "$python/bin/python" tests/contract/restore.py &
trap "kill $! || true" EXIT

# contract WHO TOKEN EXAMPLES [OPTION...]
# The stream of events has no end to wait for: tests/clients reads it, and tests/it/server has more on it.
contract() {
    echo "contract: as $1, $3 examples"
    SCHEMATHESIS_HOOKS=$PWD/tests/contract/hooks.py "$python/bin/schemathesis" --config-file tests/contract/schemathesis.toml \
        run "$HOST_A_URL/openapi.json" --max-examples "$3" --seed "$seed" --continue-on-failure --exclude-operation-id stream_events --no-shrink \
        --request-timeout 65 --header "Authorization: Bearer $2" --generation-database none "${@:4}"
    curl -sf -o /dev/null --max-time 30 "$HOST_A_URL/healthz"
}

# token_of GRANT: a token that grants it; a tenant's as soon as the tenant is there.
token_of() {
    local made end=$((SECONDS + 60))
    until made=$(curl -sf -H "Authorization: Bearer $HOST_A_TOKEN" -H 'Content-Type: application/json' --max-time 30 \
        -d "{\"name\": \"contract-${1/:/-}\", \"grant\": \"$1\"}" "$HOST_A_URL/api/v1/tokens"); do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.2
    done
    "$python/bin/python" -c 'import json, sys; print(json.load(sys.stdin)["secret"])' <<<"$made"
}

# A wrong token is answered late once there were many, so ignored_auth, which sends one for each case, has a short run of its own;
# that nobody gets in without a token is for tests/it/server/access_matrix.rs to show. The cases on the bounds of each value are as many
# whatever the number of examples, so few examples leave them to the admin, who is refused nothing before they are looked at.
few=$(((examples + 4) / 5))
phases=()
[ "$examples" -ge 50 ] || phases=(--phases examples,fuzzing,stateful)
for grant in viewer tenant:demo operator; do
    contract "$grant" "$(token_of "$grant")" "$few" --checks all --exclude-checks ignored_auth "${phases[@]}"
done
contract admin "$HOST_A_TOKEN" "$examples" --checks all --exclude-checks ignored_auth
contract nobody "$HOST_A_TOKEN" 1 --checks ignored_auth --phases examples --include-method GET
