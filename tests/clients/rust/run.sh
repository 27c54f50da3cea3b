#!/usr/bin/env bash
# The client that progenitor generates of the 3.0 form of the document, used against a simulated host:
# `tests/clients/rust/run.sh [BINARY]`. Needs Rust and Python 3.11; what it builds stays below the build directory.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
binary=$(realpath "${1:-${CARGO_TARGET_DIR:-target}/debug/mps-manager}")
export MPS_MANAGER_BINARY=$binary
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT

# Where it was the last time, so that a document that is the same builds nothing again.
built=$(realpath "${CARGO_TARGET_DIR:-target}")/rust-client
mkdir -p "$built"
export DOCUMENT=$built/openapi-3.0.json
"$binary" openapi --as 3.0 >"$scratch/document.json"
cmp -s "$scratch/document.json" "$DOCUMENT" || cp -- "$scratch/document.json" "$DOCUMENT"
CARGO_TARGET_DIR=$built cargo build --locked --manifest-path tests/clients/rust/Cargo.toml
python3 tests/host/host.py A -- "$built/debug/mps-manager-client-test"
