#!/usr/bin/env bash
# A hook of enroot, and so of pyxis: makes each container a client of the tenant of its Slurm job. Outside Slurm it is the tenant whose
# variables are in the environment of `enroot start` (docs/integrate/apptainer.md). Install it as /etc/enroot/hooks.d/99-mps-manager.sh, so
# that it runs after 98-nvidia.sh of enroot, which mounts the directory in CUDA_MPS_PIPE_DIRECTORY writable.
#
# enroot runs hooks as the user, with the paths of the host, before it enters the container. Under pyxis that is before Slurm's task prolog,
# so the hook reads what the Prolog wrote for the job. What is in ENROOT_ENVIRON wins over the image and, under pyxis, over the job, except
# for variables that --container-env names.
set -euo pipefail

shares=/etc/mps-manager/slurm-shares.conf
record=/run/mps-manager-slurm/${SLURM_JOB_ID:-none}
task_prolog=/etc/slurm/mps-manager/taskprolog.sh
ours='CUDA_MPS_[A-Za-z0-9_]+|CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|CUDA_DEVICE_MAX_CONNECTIONS|MPS_MANAGER_TENANT|MPS_SIM_WORLD'

# refuse REASON: the container does not start.
refuse() {
    echo "mps-manager: $*" >&2
    exit 1
}
# mount PATH KIND OPTIONS: at the same path in the container, read-only.
mount() { enroot-mount --root "$ENROOT_ROOTFS" - <<<"$1 $1 none x-create=$2,bind,ro,nosuid,nodev,private$3"; }

if [ -n "${SLURM_JOB_ID:-}" ] && [ -e "$shares" ]; then
    if [ -e "$record/refused" ]; then
        refuse "this job got no tenant: $(cat -- "$record/refused")"
    fi
    # Under pyxis Slurm runs its task prolog inside the container, and ends a task whose task prolog is missing there. Without $shares, which
    # the container lacks, the task prolog does nothing.
    if [ -e "$task_prolog" ]; then mount "$task_prolog" file ''; fi
    if [ -e "$record/env" ]; then
        # The variables for containers, among them a value for each variable that the image may set and the tenant does not.
        variables=$(sed -n 's/^export APPTAINERENV_//p' "$record/env")
        missing="$record/env has no variables for containers, as an earlier version of the Prolog wrote it: submit the job again"
    elif [ -n "${SLURM_SHARDS_ON_NODE:-}${SLURM_GPUS_ON_NODE:-}" ]; then
        # Before 0.11, pyxis passes neither variable to hooks.
        refuse "this job has a GPU and no tenant: see the log of the Prolog on ${SLURMD_NODENAME:-this node}"
    else
        # A job without GPUs. If the environment names a tenant, it is that of the job from which this one was submitted.
        exit 0
    fi
elif [ -n "${MPS_MANAGER_TENANT:-}" ]; then
    variables=$(env | grep -E "^($ours)=")
    missing="CUDA_MPS_PIPE_DIRECTORY of tenant $MPS_MANAGER_TENANT is not set: set the variables that mps-manager env prints again"
else
    exit 0
fi
directory=$(printf '%s\n' "$variables" | sed -n 's/^CUDA_MPS_PIPE_DIRECTORY=//p')
[ -n "$directory" ] || refuse "$missing"
# The image must not set what the tenant leaves unset.
sed -i -E "/^($ours)=/d" "$ENROOT_ENVIRON"
printf '%s\n' "$variables" >>"$ENROOT_ENVIRON"
mount "$directory" dir ,noexec
