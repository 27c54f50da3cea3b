# The hardware scenario of a user without rights: directories, a control daemon and tenants that are all his. Sourced by run.sh.

JOB_WITHOUT_ROOT=$(readlink -f "$here/../../deploy/slurm/job-without-root.sh")
NOBODY=(setpriv --reuid=65534 --regid=65534 --clear-groups)

# as_nobody COMMAND...: as that user, with nothing of the caller's environment.
as_nobody() { "${CLEAN[@]}" "MPS_MANAGER_RUNTIME_DIR=$RUNTIME" "${NOBODY[@]}" "$@"; }

# What a client of the tenant sees, by its own word and by the manager's.
nobodys_tenant_holds() {
    local when=$1
    as_nobody "$binary" run --tenant small -- "$CLIENT" info >"$LOGS/nobody.out" 2>>"$LOGS/nobody.err" || true
    head -n 1 "$LOGS/nobody.out" >"$LOGS/nobody.json"
    check "$when: the CUDA client sees 32 multiprocessors and less than 4 GiB" '[32, true]' \
        "$(json "$LOGS/nobody.json" "[d['devices'][0]['sms'], 0 < d['devices'][0]['memory_free'] < $MEMORY_LIMIT]")"
    as_nobody "$binary" verify small >"$LOGS/nobody-verify.out" 2>&1 || true
    check "$when: the manager verifies the tenant" verified "$(head -n 1 "$LOGS/nobody-verify.out")"
}

without_root() {
    local before
    new_host nobody
    chown -R 65534:65534 "$WORK/nobody"
    UNDER=("${NOBODY[@]}")
    start_manager "$binary"
    check "the manager is nobody's" 65534 "$(stat -c %u "/proc/$MANAGER_PID")"
    api PUT /api/v1/daemons/gpu0 '{"gpus": ["0"]}'
    wait_for 60 "the daemon is ready" daemon_is_ready
    before=$(daemon_field 'd["status"]["pid"]')
    check "and so is its control daemon" 65534 "$(stat -c %u "/proc/$before")"
    api PUT /api/v1/tenants/small '{"daemon": "gpu0", "uid": 65534, "device_memory_limit": "4G", "active_thread_percentage": 25, "visible_devices": "ordinal"}'
    check "a tenant of the user is created" 201 "$STATUS"
    wait_for 30 "its limits are read back" daemon_is_ready
    nobodys_tenant_holds "at first"
    check "it is told its GPU by ordinal" 0 "$(as_nobody "$binary" run --tenant small -- sh -c 'echo "$CUDA_VISIBLE_DEVICES"')"
    api PUT /api/v1/tenants/roots '{"daemon": "gpu0", "uid": 0}'
    check "a tenant of another user is refused" true "$([ "$STATUS" -ge 400 ] && echo true || echo false)"

    kill -KILL "$before"
    wait_for 60 "the daemon is back" status_differs "$before"
    nobodys_tenant_holds "after kill -9 of the control daemon"
    before=$(daemon_field 'd["status"]["pid"]')
    kill -KILL "$MANAGER_PID"
    start_manager "$binary"
    wait_for 60 "the next manager has the daemon" daemon_is_ready
    check "it is the same control daemon" "$before" "$(daemon_field 'd["status"]["pid"]')"
    nobodys_tenant_holds "after kill -9 of the manager"

    as_nobody "$binary" doctor -o json >"$LOGS/nobody-doctor.json" 2>>"$LOGS/nobody.err" || true
    check "doctor finds nothing that fails" '[]' "$(json "$LOGS/nobody-doctor.json" '[c["id"] for c in d["checks"] if c["status"] == "fail"]')"
    as_nobody "$binary" daemon stop gpu0 >"$LOGS/nobody-stop.out" 2>&1 || true
    wait_for 30 "the daemon is stopped" is_gone "$before"
    end_everything
    MANAGER_PID=''
    job_without_root
}

# The batch script of docs/rootless.md as it stands, with what Slurm gives it of its GPUs, and the CUDA client as its programs.
job_without_root() {
    local program home=$WORK/nobody/job status=0
    mkdir -p "$WORK/bin" "$home"
    cp -- "$binary" "$WORK/bin/mps-manager"
    for program in train evaluate; do
        printf '#!/bin/sh\nexec %s info >%s.out\n' "$CLIENT" "$program" >"$home/$program.sh"
        chmod 755 "$home/$program.sh"
    done
    chown -R 65534:65534 "$home"
    (cd "$home" && as_nobody env PATH="$WORK/bin:$PATH" SLURM_JOB_ID=$$ CUDA_VISIBLE_DEVICES=0 timeout 120 bash "$JOB_WITHOUT_ROOT") \
        >"$LOGS/job.out" 2>&1 || status=$?
    check "a job that brings its own manager ends well" 0 "$status"
    for program in train evaluate; do head -n 1 "$home/$program.out" >"$LOGS/job-$program.json" || true; done
    check "its first program sees 64 multiprocessors and less than 40 GiB" '[64, true]' \
        "$(json "$LOGS/job-train.json" "[d['devices'][0]['sms'], 0 < d['devices'][0]['memory_free'] < 40 << 30]")"
    check "its second program sees 32 multiprocessors and less than 8 GiB" '[32, true]' \
        "$(json "$LOGS/job-evaluate.json" "[d['devices'][0]['sms'], 0 < d['devices'][0]['memory_free'] < 8 << 30]")"
    check "nothing of the job is left" "" "$(find /tmp -maxdepth 1 -name "mps-$$.*"; pgrep -f "/tmp/mps-$$\\." || true)"
}
