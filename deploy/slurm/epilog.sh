#!/bin/sh
# Slurm's Epilog: deletes the tenant of a job that has ended. It always exits 0, since Slurm drains the node of an Epilog that fails:
# a tenant that cannot be deleted now is left to a later epilog, and at the latest to its TTL. Without a job, as
# mps-manager-slurm.service runs it after a reboot and from time to time, it deletes what was left alone, as by an epilog that was killed.
set -u
umask 077
PATH=${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}
export PATH

records=${MPS_MANAGER_SLURM_DIR:-/run/mps-manager-slurm}
leftover=$records/leftover
taken=$records/taken
shares=${MPS_MANAGER_SLURM_SHARES:-/etc/mps-manager/slurm-shares.conf}
job=${SLURM_JOB_ID:-}
# What fits into the time that Slurm gives an epilog.
most=4
[ -n "$job" ] || most=1000

say() {
    set -- "${job:+job $job: }$*"
    logger -t mps-manager-slurm -- "$1" 2>/dev/null || echo "mps-manager-slurm: $1" >&2
}

# contains FILE TEXT: whether that is the first line of a file.
contains() {
    [ -s "$1" ] && read -r line <"$1" && [ "$line" = "$2" ]
}

# note TEXT FILE: makes a file of one line, as a whole or not at all, unless it is there already.
note() {
    printf '%s\n' "$1" >"$records/note.$$" && ln -- "$records/note.$$" "$2" 2>/dev/null
    rm -f -- "$records/note.$$"
}

# has_record RUN: whether there is a record of this run.
has_record() {
    rest=${1#slurm_}
    contains "$records/${rest%%_*}/run" "$1"
}

# names: the tenants that the manager has, one a line.
names() {
    timeout 10 mps-manager tenant list -o name 2>/dev/null
}

# is_gone TENANT: whether the manager says that it has no such tenant.
is_gone() {
    listed=$(names) && ! printf '%s\n' "$listed" | grep -qxF -- "$1"
}

# finish RUN SECONDS: deletes the tenant of a run that has ended. Its processes were ended by Slurm, so that there is hardly anything to
# wait for, and none will be started with the tenant's environment any more. One that was lost may have processes after all, as where
# the records were lost and not the jobs: the manager refuses to delete it then, and it is left to a later epilog.
finish() {
    [ -s "$leftover/$1" ] || return 0
    (
        # Another epilog may be at it, or be done.
        flock -n 9 || exit 0
        [ -s "$leftover/$1" ] || exit 0
        read -r tenant <"$leftover/$1"
        # The tenant of a partition is that of the next job as soon as this run has given it back.
        if [ "$tenant" = "$1" ] || contains "$taken/$tenant" "$1"; then
            case $1 in
            lost_*) answer=$(timeout 20 mps-manager tenant delete "$tenant" --finished 2>&1) || is_gone "$tenant" ;;
            *) answer=$(timeout "$(($2 + 15))" mps-manager tenant delete "$tenant" --drain "$2s" --force --finished 2>&1) ;;
            esac || {
                say "tenant $tenant is not deleted: $(printf '%s' "$answer" | tr '\n' ' ')"
                exit 1
            }
            [ "$tenant" = "$1" ] || rm -f -- "$taken/$tenant"
        fi
        rm -f -- "$leftover/$1"
    ) 9<"$leftover/$1"
}

# Leaves over the runs of records whose tenant the manager had and has no more: their jobs are over, and no epilog came or it was killed.
# A Prolog that has not ended has no env yet; one that ended without is old. A job that Slurm still runs keeps its record.
set_over_aside() {
    candidates=''
    for file in "$records"/*/tenant; do
        directory=${file%/*}
        case ${directory##*/} in
        *[!0-9]*) continue ;;
        esac
        [ -s "$file" ] && [ -s "$directory/run" ] && read -r tenant <"$file" && read -r run <"$directory/run" || continue
        [ -e "$directory/env" ] || [ -n "$(find "$file" -mmin +5)" ] || continue
        candidates="$candidates $directory:$run:$tenant"
    done
    [ -n "$candidates" ] || return 0
    # Only now: a tenant that was made before its record was read is in this list.
    listed=$(names) || return 0
    for candidate in $candidates; do
        directory=${candidate%%:*} tenant=${candidate##*:} run=${candidate#*:}
        run=${run%:*}
        printf '%s\n' "$listed" | grep -qxF -- "$tenant" && continue
        pgrep -f "^slurmstepd: \\[${directory##*/}\\." >/dev/null 2>&1 && continue
        contains "$directory/run" "$run" && mv -- "$directory/tenant" "$leftover/$run" 2>/dev/null || continue
        rm -rf -- "$directory"
        say "job ${directory##*/} is over, since the manager has its tenant $tenant no more"
    done
}

# Gives back partitions of runs of which nothing else is left, as those of a Prolog that was killed.
give_back() {
    (
        # Another epilog may be at it.
        flock -n 9 || exit 0
        for file in "$taken"/*; do
            [ -s "$file" ] && read -r run <"$file" || continue
            case $run in
            lost_*) continue ;;
            esac
            # Twice, since a run may go from its record to what is left over, and back. A run that finishes gives its partition back
            # before it is no longer left over, so that it is not that of the next run which is given back here.
            has_record "$run" || [ -e "$leftover/$run" ] || has_record "$run" || ! contains "$file" "$run" || rm -f -- "$file"
        done
    ) 9<"$taken"
}

# find_lost NAMES: notes those of these tenants that are of jobs or of partitions, and of no job that has a record: they are of an earlier
# boot, whose records went with /run. Each is taken as for a job, so that no job has it meanwhile.
find_lost() {
    candidates=$(printf '%s\n' "$1" | grep -x 'slurm_[0-9][0-9]*_[0-9][0-9]*_[0-9][0-9]*')
    if [ -r "$shares" ]; then
        candidates="$candidates $(awk '$1 == "layout" { for (n = 5; n <= NF; n++) print $n }' "$shares" | sort -u)"
    fi
    unowned=''
    for tenant in $candidates; do
        case $tenant in
        *[!a-z0-9_-]*) continue ;;
        esac
        if contains "$taken/$tenant" "lost_$tenant"; then
            # By an earlier attempt, which may have ended since: the note alone deletes nothing.
            note "$tenant" "$leftover/lost_$tenant"
        elif [ ! -e "$taken/$tenant" ] && ! has_record "$tenant" && [ ! -e "$leftover/$tenant" ] && printf '%s\n' "$1" | grep -qxF -- "$tenant"; then
            # Of a job it is left over as soon as it is not in the record any more.
            unowned="$unowned $tenant"
        fi
    done
    [ -n "$unowned" ] || return 0
    # An epilog deletes a tenant before it gives up its records, so what one has deleted since the list was made is not in this one.
    listed=$(names) || return 0
    for tenant in $unowned; do
        printf '%s\n' "$listed" | grep -qxF -- "$tenant" || continue
        note "$tenant" "$leftover/lost_$tenant"
        note "lost_$tenant" "$taken/$tenant"
    done
}

case $job in
*[!0-9]*) exit 0 ;;
esac
# A node without these has no mps-manager for its jobs.
[ -d "$records" ] || [ -e "$shares" ] || exit 0
mkdir -p -- "$leftover" "$taken"
chmod 0711 "$records"
record=$records/$job had_record=''
if [ -n "$job" ] && [ -d "$record" ]; then
    run='' had_record=yes
    if [ -s "$record/tenant" ] && [ -s "$record/run" ]; then
        read -r run <"$record/run"
        mv -- "$record/tenant" "$leftover/$run"
    fi
    rm -rf -- "$record"
    if [ -n "$run" ]; then finish "$run" 30; fi
fi

# What earlier epilogs left, and what was lost. Without a manager that can wait, and jobs without a tenant wait for none where nothing is
# left over: what was lost, mps-manager-slurm.timer finds.
set -- "$leftover"/*
[ -z "$job" ] || [ -n "$had_record" ] || [ -e "$1" ] || exit 0
set_over_aside
give_back
tenants=$(names) || exit 0
find_lost "$tenants"
count=0
# What was lost comes last: a tenant that has processes after all stays, and must not hold up the others.
for file in "$leftover"/slurm_* "$leftover"/lost_*; do
    [ -e "$file" ] && [ "$count" -lt "$most" ] || continue
    count=$((count + 1))
    finish "${file##*/}" 5
done
exit 0
