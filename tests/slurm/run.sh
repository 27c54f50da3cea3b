#!/usr/bin/env bash
# Jobs of a real Slurm on a simulated host: `tests/slurm/run.sh [BINARY] [--jobs N] [--long] [--measure N]`. munged, slurmctld and slurmd run on this
# machine with files of their own, and with the scripts and examples of deploy/slurm and docs/integrate/slurm.md as they stand. Users
# are three that every Debian has. Needs root, and Debian's munge, slurmctld, slurmd and slurm-client; nothing is skipped.
#
# Then, on hosts of their own, jobs on MIG instances and MLOPart devices.
#
#   --jobs N     jobs of the first part; a quarter of them in the second, where one daemon has both GPUs (default 8)
#   --long       also a manager that is away for 30 seconds, a reboot of the node, and Slurm's own MPS plugin: some minutes
#   --measure N  in place of that, the time from the Prolog to the environment with 100 tenants, of N jobs
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
binary=${CARGO_TARGET_DIR:-target}/debug/mps-manager
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
    binary=$1
    shift
fi
for program in munged slurmctld slurmd squeue; do
    command -v "$program" >/dev/null || {
        echo "slurm: $program is missing: install Debian's munge, slurmctld, slurmd and slurm-client" >&2
        exit 1
    }
done
[ "$(id -u)" = 0 ] || {
    echo "slurm: slurmd starts jobs of several users, so that this needs root" >&2
    exit 1
}
export MPS_MANAGER_BINARY PYTHONPATH=tests/host PYTHONDONTWRITEBYTECODE=1
MPS_MANAGER_BINARY=$(realpath "$binary")
python3 tests/slurm/jobs.py "$@"
case " $* " in
*' --measure '*) ;;
*) python3 tests/slurm/parts.py ;;
esac
