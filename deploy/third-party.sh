#!/usr/bin/env bash
# Writes the licences of all that others wrote in the program: `deploy/third-party.sh FILE`. Needs cargo-about, and the network only for
# crates that were not downloaded yet. It takes half a minute, and the file below the build directory is used again until Cargo.lock changes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
made=${CARGO_TARGET_DIR:-target}/third-party.txt
sources=(Cargo.lock deploy/third-party.sh deploy/third-party/* web/assets/console/licenses.txt)
if [ ! -e "$made" ] || [ -n "$(find "${sources[@]}" -newer "$made")" ]; then
    mkdir -p "$(dirname "$made")"
    scratch=$(mktemp -d)
    trap 'rm -rf -- "$scratch"' EXIT
    cargo fetch --quiet --locked
    # Offline, so that the file follows from Cargo.lock alone.
    cargo about generate --offline --locked --fail --config deploy/third-party/about.toml --output-file "$scratch/crates.txt" deploy/third-party/crates.hbs
    {
        cat deploy/third-party/others.txt
        printf '\n%080d\n' 0 | tr 0 =
        cat web/assets/console/licenses.txt
        printf '\n%080d\nRust crates\n\n' 0 | tr 0 =
        cat "$scratch/crates.txt"
    } >"$scratch/all.txt"
    mv "$scratch/all.txt" "$made"
fi
if [ "$made" != "$1" ]; then install -m 0644 "$made" "$1"; fi
