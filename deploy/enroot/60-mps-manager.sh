#!/usr/bin/env bash
# A hook of enroot, which pyxis uses, too: makes a container a client of the tenant of its Slurm job, or of the tenant whose environment it
# is started with (`eval "$(mps-manager env NAME)"`). Install it as /etc/enroot/hooks.d/60-mps-manager.sh.
#
# enroot runs it with the host's paths before it changes into the container, as the user. Of a job's variables pyxis passes on but few, so
# what Slurm's Prolog wrote for the job is read. What is written to ENROOT_ENVIRON wins over the image, and under pyxis over the job.
set -euo pipefail

record=/run/mps-manager-slurm/${SLURM_JOB_ID:-none}
if [ -e "$record/refused" ]; then
    echo "mps-manager: this job got no tenant: $(cat -- "$record/refused")" >&2
    exit 1
fi
if [ -e "$record/env" ]; then
    # The variables for containers have a value for each that the image may set.
    variables=$(sed -n 's/^export APPTAINERENV_//p' "$record/env")
elif [ -n "${MPS_MANAGER_TENANT:-}" ] && [ -n "${CUDA_MPS_PIPE_DIRECTORY:-}" ]; then
    variables=$(env | grep -E '^(CUDA_MPS_[A-Z_]+|CUDA_VISIBLE_DEVICES|CUDA_DEVICE_[A-Z_]+|MPS_MANAGER_TENANT|MPS_SIM_WORLD)=')
else
    exit 0
fi
directory=$(printf '%s\n' "$variables" | sed -n 's/^CUDA_MPS_PIPE_DIRECTORY=//p')
if [ -z "$directory" ]; then
    echo "mps-manager: $record/env is of a Prolog that knew no containers: submit the job again" >&2
    exit 1
fi
printf '%s\n' "$variables" >>"$ENROOT_ENVIRON"
enroot-mount --root "$ENROOT_ROOTFS" - <<<"$directory $directory none x-create=dir,bind,ro,nosuid,nodev,noexec,private"
