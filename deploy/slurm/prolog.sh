#!/bin/sh
# Slurm's Prolog: gives a job that has GPUs or shards a tenant of its own, and writes the environment for its tasks.
# It always exits 0, since Slurm drains the node of a Prolog that fails: a job that gets no tenant is requeued, and whatever of it
# starts nevertheless is refused by taskprolog.sh. docs/integrate/slurm.md describes the whole.
set -u
umask 077
PATH=${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}
export PATH

records=${MPS_MANAGER_SLURM_DIR:-/run/mps-manager-slurm}
leftover=$records/leftover
taken=$records/taken
shares=${MPS_MANAGER_SLURM_SHARES:-/etc/mps-manager/slurm-shares.conf}
driver=${MPS_MANAGER_DRIVER_DIR:-/proc/driver/nvidia}
# A job that was requeued so often is held, for a person to look at.
max_restarts=5
# How many seconds a manager may be away, as for an upgrade. All that can be waited for here is less than the 240 seconds of
# docs/integrate/slurm.md: 45 for squeue, 20 for an epilog, 75 for a partition and 4 for an epilog before that, 75 for the manager, 20 for scontrol.
patience=45

job=${SLURM_JOB_ID:-}
uid=${SLURM_JOB_UID:-}
target=
restarts=0

say() {
    logger -t mps-manager-slurm -- "job $job: $*" 2>/dev/null || echo "mps-manager-slurm: job $job: $*" >&2
}

# refuse REASON: no task of this run starts, and Slurm is to try it again.
refuse() {
    reason=$(printf '%s' "$*" | tr '\n' ' ')
    say "refused: $reason"
    rm -f -- "$record/env"
    printf '%s\n' "$reason" >"$record/refused" && chmod 0444 "$record/refused"
    verb=requeue
    [ "$restarts" -lt "$max_restarts" ] || verb=requeuehold
    if [ -z "$target" ] || ! timeout 20 scontrol "$verb" "$target"; then
        say "it could not be requeued, so its tasks fail"
    fi
    exit 0
}

# Slurm's own words for the job, in columns: unlike the output of `scontrol show job`, none holds text that its user chose.
description() {
    SLURM_TIME_FORMAT=standard timeout 15 squeue --noheader --states=all --jobs="$job" --Format="JobID:32|,ArrayJobID:32|,\
ArrayTaskID:64|,RestartCnt:16|,SubmitTime:32|,tres-per-node:256|,tres-per-job:256|,tres-per-socket:256|,tres-per-task:256|"
}

# shards_in LIST: how many shards `gres:shard:2` (Slurm 22.05), `gres/shard:2` (later) or `gres/shard:h200:2` asks for.
shards_in() {
    total=0
    for item in $(printf '%s' "$1" | tr ',' ' '); do
        item=${item#gres[:/]}
        case $item in
        shard | shard[:=]*) ;;
        *) continue ;;
        esac
        count=${item##*[:=]}
        case $count in
        '' | *[!0-9]*) count=1 ;;
        esac
        total=$((total + count))
    done
    echo "$total"
}

# Slurm names a GPU by the number in /dev/nvidiaN, mps-manager by its place in PCI order, and these may differ: the driver has the UUID.
gpu_of() {
    for information in "$driver"/gpus/*/information; do
        [ -r "$information" ] || continue
        if grep -q "^Device Minor:[[:space:]]*$1\$" "$information"; then
            sed -n 's/^GPU UUID:[[:space:]]*//p' "$information"
            return
        fi
    done
    echo "$1"
}

# Whether the job asked for a feature with --constraint. A constraint with alternatives, counts or negations says nothing of this
# node: a job with `mps|bigmem` may run on one without bigmem.
has_feature() {
    case ${SLURM_JOB_CONSTRAINTS:-} in
    *'|'* | *'['* | *'!'* | *'*'*) return 1 ;;
    esac
    printf '%s' "${SLURM_JOB_CONSTRAINTS:-}" | tr -c 'A-Za-z0-9_.-' '\n' | grep -qxF -- "$1"
}

# Whether a list of numbers, as 0,1, has this one.
among() {
    case ",$1," in
    *",$2,"*) return 0 ;;
    esac
    return 1
}

# Reads what a shard is into shards_per_gpu and memory_per_shard, and how long a forgotten tenant stays into ttl. Where the layout of a
# daemon divides a GPU of the job, a shard is one of its partitions: is_divided says so, and partitions has the tenants of those that
# the job may have. The last line that fits the job counts.
read_shares() {
    ttl=48h visible=uuid shards_per_gpu='' memory_per_shard='' is_divided='' partitions='' memory_of_partition='' wanted='' number=0
    # The last line need not end.
    while read -r kind name count memory tenants || [ -n "$kind" ]; do
        number=$((number + 1))
        case $kind in
        '' | '#'*) continue ;;
        ttl)
            ttl=$name
            continue
            ;;
        visible_devices)
            case $name in
            uuid | ordinal) visible=$name ;;
            *) refuse "line $number of $shares has visible_devices $name: write uuid or ordinal" ;;
            esac
            continue
            ;;
        default) ;;
        partition) [ "$name" = "${SLURM_JOB_PARTITION:-}" ] || continue ;;
        feature) has_feature "$name" || continue ;;
        layout)
            case $count in
            '' | *[!0-9]*) refuse "line $number of $shares has $count as a GPU: give the number N of its /dev/nvidiaN" ;;
            esac
            among "$gpus" "$count" && is_divided=yes
            # A feature of partitions is not to be had from others, on whichever GPU it is.
            if [ "$name" = - ]; then
                [ -z "$wanted" ] || continue
            else
                has_feature "$name" || continue
                [ "$name" = "$wanted" ] || partitions=''
                wanted=$name
            fi
            among "$gpus" "$count" || continue
            ;;
        *) refuse "line $number of $shares begins with $kind: use default, partition, feature, layout, visible_devices or ttl" ;;
        esac
        case $kind:$count in
        layout:*) ;;
        *: | *:0* | *:*[!0-9]*) refuse "line $number of $shares has $count as shards of a GPU: give a number above 0" ;;
        esac
        case $memory in
        -) ;;
        '' | [!1-9]* | *[!0-9MG]* | *[MG]?* | *[0-9])
            refuse "line $number of $shares has $memory as memory of a shard: write 16G, 512M, or - for no limit"
            ;;
        esac
        if [ "$kind" = layout ]; then
            case $tenants in
            '' | *[!a-z0-9_[:blank:]-]*) refuse "line $number of $shares names no tenants: give those that the layout binds to partitions" ;;
            esac
            partitions=$tenants memory_of_partition=$memory
        else
            shards_per_gpu=$count memory_per_shard=$memory
        fi
    done <"$shares"
    [ -n "$is_divided$shards_per_gpu" ] || refuse "no line of $shares fits this job: add one that begins with default"
}

# Deletes a tenant of this name that no job has, as one from before a reboot. One that still has processes is in use after all.
delete_earlier() {
    until names=$(timeout 10 mps-manager tenant list -o name 2>&1); do
        if [ "$(date +%s)" -ge "$latest" ]; then
            rm -f -- "$taken/$1"
            refuse "$names"
        fi
        sleep 1
    done
    printf '%s\n' "$names" | grep -qxF -- "$1" || return 0
    timeout 20 mps-manager tenant delete "$1" --finished >/dev/null
}

# Takes a partition that no other job has, by the name of its tenant. A link is made as a whole or not at all, so that one of two prologs
# gets it; its content is the run that has it. What an epilog is about to give back is waited for.
take_partition() {
    latest=$(($(date +%s) + patience))
    for _attempt in 1 2 3 4 5; do
        # One word for each.
        # shellcheck disable=SC2086
        for tenant in $partitions; do
            [ "$(date +%s)" -lt "$latest" ] || break 2
            ln -- "$record/run" "$taken/$tenant" 2>/dev/null || [ "$(cat -- "$taken/$tenant" 2>/dev/null)" = "$run" ] || continue
            if [ "$tenant" = "$kept" ] || delete_earlier "$tenant"; then
                # Only now, since the epilog ends the processes of the tenant that it finds here. An epilog also gives back a
                # partition whose run has ended without that.
                printf '%s\n' "$tenant" >"$record/tenant" || refuse "$record cannot be written"
                return
            fi
            rm -f -- "$taken/$tenant"
        done
        # A partition may be that of a job whose epilog was killed.
        [ "$_attempt" != 1 ] || SLURM_JOB_ID='' timeout 4 "${0%/*}/epilog.sh"
        sleep 1
    done
    refuse "no partition of GPU $gpus that it may have is free ($partitions)"
}

# Leaves the tenant of a record to the next epilog, and removes the record: it is of an earlier run whose epilog did not come.
set_aside() {
    if [ -s "$record/tenant" ] && [ -s "$record/run" ]; then
        read -r earlier <"$record/run"
        mv -- "$record/tenant" "$leftover/$earlier"
    fi
    rm -rf -- "$record"
}

# Makes the record, unless it is there.
make_record() {
    [ -d "$record" ] || { mkdir -- "$record" && chmod 0711 "$record"; } || say "$record cannot be made, so its tasks fail"
}

# A node without this file has no mps-manager for its jobs.
[ -e "$shares" ] || exit 0
case $job in
'' | *[!0-9]*)
    say "SLURM_JOB_ID is not a number, so there is no tenant"
    exit 0
    ;;
esac
record=$records/$job
mkdir -p -- "$leftover" "$taken"
chmod 0711 "$records"

gpus=${SLURM_JOB_GPUS:-${CUDA_VISIBLE_DEVICES:-}}
# A number names no MIG instance, its UUID does.
case ${CUDA_VISIBLE_DEVICES:-} in
*MIG-*) gpus=$CUDA_VISIBLE_DEVICES ;;
esac
case $gpus in
'' | NoDevFiles)
    set_aside
    exit 0
    ;;
esac
make_record
# No task starts before this is over.
rm -f -- "$record/env" "$record/env.new" "$record/refused"

found=
for _attempt in 1 2 3; do
    while IFS=' |' read -r id array index count submitted per_node others; do
        [ "$id" = "$job" ] || continue
        found=yes restarts=$count
        # The ID of an array's first task is that of the array too, all of which would be requeued by it.
        case $index in
        '' | *[!0-9]*) target=$job ;;
        *) target=${array}_$index ;;
        esac
        break
    done <<END
$(description)
END
    [ -z "$found" ] || break
done
[ -n "$found" ] || refuse "squeue says nothing about this job, so that its share is unknown"
case $restarts in
'' | *[!0-9]*) restarts=0 ;;
esac
case $uid in
'' | *[!0-9]*) refuse "SLURM_JOB_UID is $uid, which is not a number" ;;
esac
case $gpus in
MIG-*[!0-9a-zA-Z,-]*) refuse "Slurm names the GPUs of this job as $gpus, which are no MIG UUIDs" ;;
MIG-*) ;;
*[!0-9,]*) refuse "Slurm names the GPUs of this job as $gpus: numbers are needed, so gres.conf must give each GPU its File" ;;
esac
if [ -n "${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-}" ]; then
    refuse "gres/mps of Slurm gave it these GPUs, which cannot share them with mps-manager: take mps out of GresTypes"
fi
case ,$per_node,$others in
*[,\|]gres[:/]mps*) refuse "it asks for gres/mps of Slurm, which cannot share GPUs with mps-manager: ask for --gres=shard:N" ;;
esac
case $others in
*shard*) refuse "it asks for shards by job, socket or task: ask for those of a node, with --gres=shard:N" ;;
esac

# No other run has this name, also where Slurm uses a job ID again.
run=slurm_${job}_$(printf '%s' "$submitted" | tr -cd '0-9')_$restarts

# The same run again keeps its tenant, in which its processes may run.
kept=''
if [ "$(cat -- "$record/run" 2>/dev/null)" = "$run" ]; then
    kept=$(cat -- "$record/tenant" 2>/dev/null)
else
    set_aside
    make_record
    printf '%s\n' "$run" >"$record/run" || refuse "$record cannot be written"
fi

read_shares
# Where an epilog came in between, it has deleted the tenant before that is made again, and none begins later.
had=''
if [ -s "$leftover/$run" ]; then
    had=$(cat -- "$leftover/$run" 2>/dev/null)
    (
        flock -w 20 9 || exit 1
        rm -f -- "$leftover/$run"
    ) 9<"$leftover/$run"
    [ ! -e "$leftover/$run" ] || refuse "an epilog is still deleting tenant $had, which it had before"
fi
shards=$(shards_in "$per_node")
set -- --uid "$uid" --ttl "$ttl" --timeout "${patience}s" --label "slurm-job=$target" --visible-devices "$visible"
[ -z "${SLURM_JOB_USER:-}" ] || set -- "$@" --label "slurm-user=$SLURM_JOB_USER"
for gpu in $(printf '%s' "$gpus" | tr ',' ' '); do set -- "$@" --gpu "$(gpu_of "$gpu")"; done
if [ -n "$is_divided" ]; then
    case $shards,$gpus in
    1,*,*) refuse "it has a shard of several GPUs ($gpus), and layouts divide them" ;;
    1,*) ;;
    *) refuse "a layout divides GPU $gpus, where a job can have one partition: ask for it with --gres=shard:1" ;;
    esac
    [ -n "$partitions" ] || refuse "no line of $shares gives it a ${wanted:+$wanted }partition of GPU $gpus: add one for that GPU"
    partitions="$kept $had $partitions"
    take_partition
    # Its partition decides how many SMs it has.
    share="a partition" memory=$memory_of_partition
else
    # Without shards it has whole GPUs, and shares them with nobody.
    percent=100 memory=-
    if [ "$shards" -gt 0 ]; then
        [ "$shards" -le "$shards_per_gpu" ] || refuse "it asks for $shards shards, and a GPU has $shards_per_gpu"
        tenths=$((shards * 1000 / shards_per_gpu))
        percent=$((tenths / 10)).$((tenths % 10))
        unit=${memory_per_shard##*[0-9]}
        [ "$memory_per_shard" = - ] || memory=$((${memory_per_shard%[MG]} * shards))$unit
    fi
    share="$percent percent"
    tenant=$run
    printf '%s\n' "$tenant" >"$record/tenant" || refuse "$record cannot be written"
    # Where records were lost, the tenant may have been taken for one that no job has.
    rm -f -- "$taken/$tenant"
    set -- "$@" --thread-percentage "$percent"
fi
[ "$memory" = - ] || set -- "$@" --memory-limit "$memory"
answer=$(timeout $((patience + 10)) mps-manager tenant ensure "$tenant" "$@" 2>&1) || refuse "$answer"
answer=$({ timeout 20 mps-manager env "$tenant" --format taskprolog >"$record/env.new"; } 2>&1) || refuse "$answer"
# A tenant that no layout binds, on a daemon that is not in static mode, would have all SMs.
if [ -n "$is_divided" ] &&
    ! grep -Eq '^export CUDA_MPS_(SM_PARTITION=.|ACTIVE_THREAD_PERCENTAGE=[0-9][0-9]?(\.|$))' "$record/env.new"; then
    refuse "no layout binds tenant $tenant to a partition of GPU $gpus: bind it, or take it out of $shares"
fi
if ! { [ -s "$record/env.new" ] && chown "$uid" "$record/env.new" && chmod 0400 "$record/env.new" &&
    mv -- "$record/env.new" "$record/env"; }; then
    refuse "its environment could not be written to $record"
fi
say "tenant $tenant: GPUs $gpus, $share, memory $memory"
exit 0
