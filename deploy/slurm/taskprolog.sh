#!/bin/sh
# Slurm's TaskProlog: prints what prolog.sh wrote for the job, which Slurm puts into the environment of the task. It asks nobody, so
# that a manager that is away for a moment harms no running job. It runs as the job's user, and with the variables of the job, so that
# its paths are constants: those of prolog.sh.
set -u
PATH=/usr/bin:/bin

shares=/etc/mps-manager/slurm-shares.conf
record=/run/mps-manager-slurm/${SLURM_JOB_ID:-none}
tenants=/run/mps-manager/tenants

# others_than DIRECTORY: what Apptainer and SingularityCE bind for the job that is not below it, a comma after each.
others_than() {
    printf '%s\n' "${APPTAINER_BIND:-${SINGULARITY_BIND:-}}" | tr ',' '\n' | while IFS= read -r entry; do
        case $entry in '' | "$1"/*) ;; *) printf '%s,' "$entry" ;; esac
    done
}

# A node without this file has no mps-manager for its jobs.
[ -e "$shares" ] || exit 0
if [ -e "$record/refused" ]; then
    read -r reason <"$record/refused"
    echo "print mps-manager: this job got no tenant: $reason"
    exit 1
fi
if [ -e "$record/env" ]; then
    cat -- "$record/env" || exit 1
    # Apptainer and SingularityCE bind these directories beside their own. What the job has set stays, but for the tenant of a job that this
    # one was submitted from: a directory that is gone ends each start.
    directory=$(sed -n 's/^export CUDA_MPS_PIPE_DIRECTORY=//p' "$record/env")
    bound=$(others_than "${directory%/*}")
    echo "export APPTAINER_BIND=$bound$directory:$directory:ro"
    echo "export SINGULARITY_BIND=$bound$directory:$directory:ro"
    exit 0
fi
# Without a tenant the task would have the whole GPU, and no limit.
if [ -n "${SLURM_SHARDS_ON_NODE:-}${SLURM_GPUS_ON_NODE:-}" ]; then
    echo "print mps-manager: this job has a GPU and no tenant: see the log of the Prolog on ${SLURMD_NODENAME:-this node}"
    exit 1
fi
# Nor does the tenant of a job that this one was submitted from stay where it has no GPU.
case ,${APPTAINER_BIND:-},${SINGULARITY_BIND:-} in
*,"$tenants"/*)
    bound=$(others_than "$tenants")
    for name in APPTAINER_BIND SINGULARITY_BIND; do
        if [ -n "$bound" ]; then echo "export $name=${bound%,}"; else echo "unset $name"; fi
    done
    ;;
esac
exit 0
