#!/usr/bin/env bash
# The README's example, and those of docs/clients.md for curl, both generated clients and access, as they stand there but for address and directories:
# `tests/clients/documented.sh [BINARY]`.
# Needs what tests/clients/run.sh needs, and what that has installed.
set -euo pipefail
hosts=(A)
. "$(dirname "${BASH_SOURCE[0]}")/../host/begin.sh"
. tests/clients/installed.sh
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT

# block NAME: the fenced block after the line <!-- client: NAME -->, with the address and the token's file of our host.
block() {
    example docs/clients.md "$1" client |
        sed -e "s|http://127.0.0.1:8640|$HOST_A_URL|g" -e "s|/tmp/mps/|${HOST_A_RUNTIME_DIR%run}|g" >"$2"
    grep -q "$HOST_A_URL" "$2" || fail "the block <!-- client: $1 --> of docs/clients.md has no address"
}

"$binary" openapi >"$scratch/openapi.json"

block curl "$scratch/example.sh"
bash -euo pipefail "$scratch/example.sh"

# The README's, on our host in place of the one that it starts; the minute of its clients becomes five seconds.
example README.md try | sed -e "s|/tmp/mps/run|$HOST_A_RUNTIME_DIR|g" -e 's| PATH=[^ ]*$||' \
    -e 's|--spin 60|--spin 5|' >"$scratch/example.sh"
grep -q "$HOST_A_RUNTIME_DIR" "$scratch/example.sh" || fail "the block <!-- example: try --> of README.md has no runtime directory"
echo wait >>"$scratch/example.sh"
PATH=$(dirname "$binary"):$PATH bash -euo pipefail "$scratch/example.sh" | tee "$scratch/tried"
for words in SIMULATED ' 32 ' ' demo *lease ' ' batch *lease '; do
    grep -q -- "$words" "$scratch/tried" || fail "the README's example shows no $words"
done

block access "$scratch/example.sh"
PATH=$(dirname "$binary"):$PATH bash -euo pipefail "$scratch/example.sh"

block python "$scratch/example.py"
python=$(python_with tests/clients/python/requirements.txt)
PATH=$python/bin:$PATH openapi-python-client generate --path "$scratch/openapi.json" --config tests/clients/python/generator.yaml \
    --output-path "$scratch/python" --fail-on-warning
PYTHONPATH=$scratch/python "$python/bin/python" "$scratch/example.py"

folder=$(typescript_with)
block typescript "$folder/example.ts"
(cd "$folder" && npx --no-install openapi-typescript "$scratch/openapi.json" -o schema.d.ts && npx --no-install tsc)
node "$folder/built/example.js"
echo "documented: try, curl, access, python and typescript: 5 passed, 0 failed"
