#!/bin/sh
# Slurm's Epilog: deletes the tenant of a job that has ended. It always exits 0, since Slurm drains the node of an Epilog that fails:
# a tenant that cannot be deleted now is left to a later epilog, and at the latest to its TTL.
set -u
umask 077
PATH=${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}
export PATH

records=${MPS_MANAGER_SLURM_DIR:-/run/mps-manager-slurm}
leftover=$records/leftover
job=${SLURM_JOB_ID:-}

say() {
    logger -t mps-manager-slurm -- "job $job: $*" 2>/dev/null || echo "mps-manager-slurm: job $job: $*" >&2
}

# delete TENANT SECONDS: the processes of its job were ended by Slurm, so that there is hardly anything to wait for, and none will be
# started with the tenant's environment any more.
delete() {
    if answer=$(timeout "$(($2 + 15))" mps-manager tenant delete "$1" --drain "$2s" --force --finished 2>&1); then
        rm -f -- "$leftover/$1"
        return 0
    fi
    say "tenant $1 is not deleted: $(printf '%s' "$answer" | tr '\n' ' ')"
    return 1
}

case $job in
'' | *[!0-9]*) exit 0 ;;
esac
record=$records/$job
if [ -s "$record/tenant" ]; then
    read -r tenant <"$record/tenant"
    # Noted first: whatever ends this script, the tenant is not forgotten.
    mkdir -p -- "$leftover" && : >"$leftover/$tenant"
    rm -rf -- "$record"
    delete "$tenant" 30 || exit 0
else
    rm -rf -- "$record"
fi

# What earlier epilogs left, a few at a time, within the time that Slurm gives an epilog.
count=0
for file in "$leftover"/*; do
    [ -e "$file" ] && [ "$count" -lt 4 ] || break
    count=$((count + 1))
    tenant=${file##*/}
    names=$(timeout 10 mps-manager tenant list -o name 2>/dev/null) || break
    if printf '%s\n' "$names" | grep -qxF -- "$tenant"; then
        delete "$tenant" 5 || break
    else
        rm -f -- "$file"
    fi
done
exit 0
