#!/bin/bash
# A job that shares its GPUs between its own programs, on nodes where mps-manager is not installed: it starts a manager and a control
# daemon of its own, and ends both. Put a copy of it beside your programs, with the program mps-manager on the PATH of the job.
#SBATCH --nodes=1 --gres=gpu:1 --time=60
set -eu
# Short, since the path of a socket is limited, and on a local disk.
home=$(mktemp -d "/tmp/mps-$SLURM_JOB_ID.XXXXXX")
export MPS_MANAGER_RUNTIME_DIR=$home/run
log=mps-manager-$SLURM_JOB_ID.log
start_manager() {
    rm -f -- "$home/run/api.sock"
    mps-manager serve --listen 127.0.0.1:0 --state-dir "$home/state" --runtime-dir "$home/run" >>"$log" 2>&1 &
    manager=$!
    until [ -S "$home/run/api.sock" ]; do
        kill -0 "$manager" || { cat "$log" >&2; exit 1; }
        sleep 0.1
    done
}
end_manager() {
    kill "$manager" 2>/dev/null || true
    wait "$manager" || true
}
finish() {
    trap '' TERM
    # What cancels the job may have ended the manager too: the next one finds the daemon as it was.
    mps-manager daemon stop job || { end_manager; start_manager; mps-manager daemon stop job; }
    end_manager
    rm -rf -- "$home"
}
trap finish EXIT
trap 'exit 143' TERM
start_manager

# The GPUs that Slurm gave this job.
gpus=()
for gpu in ${CUDA_VISIBLE_DEVICES//,/ }; do gpus+=(--gpu "$gpu"); done
mps-manager daemon set job "${gpus[@]}"

# From here on it is yours: a tenant for each program, and how much of the GPU it has.
mps-manager tenant set train --daemon job --sms 64 --memory-limit 40G
mps-manager tenant set evaluate --daemon job --sms 32 --memory-limit 8G
mps-manager run --tenant train -- ./train.sh &
train=$!
mps-manager run --tenant evaluate -- ./evaluate.sh
wait "$train"
