#!/usr/bin/env bash
# The manager with control programs that NVIDIA shipped, of older drivers, on simulated GPUs: `tests/drivers/run.sh [BINARY] [VERSION...]`. Gets the
# programs by apt and unpacks them; each server ends at once, since there is no GPU. Without versions: 535 and 550. Needs root, for another
# user's calls, and setpriv.
#
# First each is compared with the simulated program of its version, reply by reply (compare.py); then the manager is run with it (manage.py).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
binary=${CARGO_TARGET_DIR:-target}/debug/mps-manager
if [ $# -gt 0 ] && [ -x "$1" ]; then
    binary=$1
    shift
fi
[ $# -gt 0 ] || set -- 535 550
programs=${MPS_PROGRAMS:-}
if [ -z "$programs" ]; then
    programs=$(mktemp -d)
    trap 'rm -rf -- "$programs"' EXIT
    chmod 0755 "$programs"
fi
tests/drivers/fetch.sh "$programs" "$@"
export MPS_MANAGER_BINARY PYTHONPATH=tests/host PYTHONDONTWRITEBYTECODE=1
MPS_MANAGER_BINARY=$(realpath "$binary")
python3 tests/drivers/compare.py "$programs" "$@"
python3 tests/drivers/manage.py "$programs" "$@"
