# The hardware scenario of containers: processes in a mount namespace of their own that have a tenant's directory and nothing else of
# the manager, as CDI gives it to a container. Sourced by run.sh.

# boxed COMMAND...: in that namespace, with the tenant's environment as a container gets it. In the background use "${BOX[@]}".
boxed() { "${BOX[@]}" "$@"; }

# start_boxed NAME: a client there; CLIENT_PID is its PID.
start_boxed() {
    "${BOX[@]}" "$CLIENT" spin 60 >"$LOGS/$1.out" 2>"$LOGS/$1.err" </dev/null &
    CLIENT_PID=$!
    CLIENT_PIDS+=("$CLIENT_PID")
}

boxed_client_is_listed() {
    api_is '/api/v1/clients?fresh=true&tenant=boxed' "[c['pid'] for c in d['items']] == [$1]"
}

# The shell that makes it becomes `sleep` once it is made.
box_is_made() { [ "$(cat "/proc/$1/comm")" = sleep ] && boxed test -S "$BOX_DIRECTORY/control"; }

# What the client sees, by the multiprocessors that its kernels ran on and by the allocation that goes beyond the limit.
boxed_client_has_its_limits() {
    local when=$1
    boxed "$CLIENT" info >"$LOGS/boxed.json" 2>>"$LOGS/boxed.err" || true
    check "$when: kernels ran on a quarter of the multiprocessors" 32 "$(json "$LOGS/boxed.json" 'd["devices"][0]["sms_used"]')"
    boxed "$CLIENT" alloc 8192 >"$LOGS/boxed-alloc.out" 2>&1 </dev/null && check "$when: 8 GiB of a limit of 4 GiB are refused" 4 0 ||
        check "$when: 8 GiB of a limit of 4 GiB are refused" 4 $?
}

tenant_in_a_mount_namespace() {
    local before box variables
    new_host boxed
    start_manager "$binary"
    api PUT /api/v1/daemons/gpu0 '{"gpus": ["0"]}'
    wait_for 60 "the daemon is ready" daemon_is_ready
    api PUT /api/v1/tenants/boxed '{"daemon": "gpu0", "uid": 0, "device_memory_limit": "4G", "active_thread_percentage": 25}'
    wait_for 30 "the tenant is read back" daemon_is_ready
    mapfile -t variables < <(clean "$binary" env boxed --runtime-dir "$RUNTIME" --format env-file)
    # An engine gives a container its GPU; here all of the host's are there.
    variables+=("CUDA_VISIBLE_DEVICES=$(nvidia-smi --query-gpu=uuid --format=csv,noheader | head -n 1)")
    BOX_DIRECTORY=$(printf '%s\n' "${variables[@]}" | sed -n 's/^CUDA_MPS_PIPE_DIRECTORY=//p')
    mkdir -p "$WORK/boxed/kept"
    # shellcheck disable=SC2016 # the variables are the inner shell's
    "${CLEAN[@]}" unshare --mount --propagation private sh -euc '
        mount --bind "$1" "$3"
        mount -t tmpfs none "$2"
        mkdir -p "$1"
        mount --bind "$3" "$1"
        mount -o remount,bind,ro "$1"
        exec sleep 600' - "$BOX_DIRECTORY" "$RUNTIME" "$WORK/boxed/kept" 2>"$LOGS/box.err" &
    box=$!
    CLIENT_PIDS+=("$box")
    BOX=(nsenter "--mount=/proc/$box/ns/mnt" "${CLEAN[@]}" "${variables[@]}")
    wait_for 10 "the namespace is made" box_is_made "$box"
    check "all that there is of the manager" control "$(boxed ls "$BOX_DIRECTORY" | tr '\n' ' ' | xargs)"
    check "the daemon's own directory is not there" no "$(boxed test -e "$RUNTIME/daemons" && echo yes || echo no)"
    boxed_client_has_its_limits "at first"

    boxed sh -c 'echo "set_default_active_thread_percentage 90" | timeout 5 nvidia-cuda-mps-control' >"$LOGS/box-set.out" 2>&1 || true
    say "a setting from inside: $(tr '\n' ' ' <"$LOGS/box-set.out")"
    api GET '/api/v1/daemons/gpu0?fresh=true'
    check "no setting is changed from inside" 0 "$(json "$BODY" 'd["status"]["drift"]["count"]')"

    start_boxed first
    check_that "a client there is listed as the tenant's, with its PID" wait_for 20 "it is listed" boxed_client_is_listed "$CLIENT_PID"
    api GET '/api/v1/clients?tenant=boxed'
    check "it is the tenant's by what is mounted there" container "$(json "$BODY" 'd["items"][0]["attributed_by"]')"
    end_process "$CLIENT_PID" 5
    before=$(daemon_field 'd["status"]["pid"]')
    api POST /api/v1/daemons/gpu0/restart
    OPERATION=$(json "$BODY" 'd["id"]')
    wait_for 60 "the restart is over" operation_is_over
    wait_for 60 "the daemon is ready again" daemon_is_ready
    check "it is another control daemon" yes "$([ "$(daemon_field 'd["status"]["pid"]')" != "$before" ] && echo yes || echo no)"
    boxed_client_has_its_limits "after a restart of the daemon"
    start_boxed second
    check_that "the next process there is an MPS client of the tenant" wait_for 20 "it is listed" boxed_client_is_listed "$CLIENT_PID"
    end_process "$CLIENT_PID" 5
    end_process "$box" 5
}
