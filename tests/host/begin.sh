# How a script of tests begins that needs simulated hosts: source this after `hosts=(A B)`, with the script's own arguments. From then on the
# script is in the repository, `binary` is the program, each host has HOST_A_URL and HOST_A_RUNTIME_DIR, and say and fail name the script's folder.

script=$(realpath "${BASH_SOURCE[1]}")
suite=$(basename "$(dirname "$script")")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
binary=$(realpath "${1:-${CARGO_TARGET_DIR:-target}/debug/mps-manager}")
export MPS_MANAGER_BINARY=$binary
[ -n "${HOST_A_URL:-}" ] || exec python3 tests/host/host.py "${hosts[@]}" -- "$script" "$binary"
. tests/host/example.sh

say() { echo "$suite: $*"; }
fail() {
    say "FAILED: $*" >&2
    exit 1
}
