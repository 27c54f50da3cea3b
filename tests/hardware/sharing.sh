# The hardware scenario of sharing: tenants without limits on one GPU, and as many clients as MPS takes. Sourced by run.sh.

TENANTS=10
CLIENTS_EACH=4
# Clients of one GPU on CUDA 13.0 (tests/fixtures/recordings/07-…).
CEILING=48

clients_are() { api_is '/api/v1/clients?fresh=true&limit=200' "len(d['items']) == $1"; }
all_say() { [ "$(cat "$LOGS"/share-*.out 2>/dev/null | grep -c '"devices"')" -ge "$1" ]; }

# While clients spin: within what changes between two readings some seconds apart.
vitals_are_as_nvidia_smi_has_them() {
    local power temperature clock errors
    wait_for 30 "the poll of the GPUs sees the clients" api_is /api/v1/gpus/0 'd["vitals"]["utilization_percent"] >= 50'
    IFS=', ' read -r power temperature clock errors < <(nvidia-smi -i 0 --format=csv,noheader,nounits \
        --query-gpu=power.draw,temperature.gpu,clocks.sm,ecc.errors.uncorrected.volatile.total)
    api GET /api/v1/gpus/0
    say "vitals: $(json "$BODY" 'd["vitals"]'); nvidia-smi: $power W, $temperature °C, $clock MHz, $errors errors"
    check "power within a fifth of nvidia-smi's, below the limit" true \
        "$(json "$BODY" "abs(d['vitals']['power_watts'] - $power) < $power / 5 and d['vitals']['power_watts'] < 1.1 * d['vitals']['power_limit_watts']")"
    check "temperature within 5 °C, below that of the slowdown" true \
        "$(json "$BODY" "abs(d['vitals']['temperature_celsius'] - $temperature) <= 5 and d['vitals']['temperature_celsius'] < d['vitals']['slowdown_celsius']")"
    check "clock of the SMs within a tenth" true "$(json "$BODY" "abs(d['vitals']['sm_clock_mhz'] - $clock) <= $clock / 10")"
    check "uncorrected ECC errors" "$errors" "$(json "$BODY" 'd["vitals"]["uncorrected_ecc_errors"]')"
}

ten_tenants_share() {
    local tenant client number=0 refused=0 pid pids=()
    new_host shared
    start_manager "$binary"
    api PUT /api/v1/daemons/gpu0 '{"gpus": ["0"]}'
    wait_for 60 "the daemon is ready" daemon_is_ready
    for tenant in $(seq "$TENANTS"); do
        api PUT "/api/v1/tenants/plain-$tenant" '{"daemon": "gpu0", "uid": 0}'
        [ "$STATUS" = 201 ] || refused=$((refused + 1))
    done
    check "$TENANTS tenants without limits on one GPU: refused" 0 "$refused"
    wait_for 30 "all are read back" daemon_is_ready
    for client in $(seq "$CLIENTS_EACH"); do
        for tenant in $(seq "$TENANTS"); do
            number=$((number + 1))
            start_as_tenant "share-$number" "plain-$tenant" spin 60
            pids+=("$CLIENT_PID")
        done
    done
    wait_for 60 "$number clients run" all_say "$number"
    check_that "$number clients of $TENANTS tenants are listed" wait_for 30 "all are listed" clients_are "$number"
    check "refusals among them" 0 "$(cat "$LOGS"/share-*.err | grep -c . || true)"
    # The rest of what MPS takes, and one more.
    while [ "$number" -lt "$CEILING" ]; do
        number=$((number + 1))
        start_as_tenant "share-$number" plain-1 spin 60
        pids+=("$CLIENT_PID")
    done
    wait_for 60 "as many as MPS takes run" all_say "$CEILING"
    as_tenant beyond plain-1 info && check "client $((CEILING + 1)) is refused" 2 0 || check "client $((CEILING + 1)) is refused" 2 $?
    check "the refusal names the ceiling" yes "$(grep -q "$CEILING" "$LOGS/beyond.err" && echo yes || echo no)"
    say "$(cat "$LOGS/beyond.err")"
    vitals_are_as_nvidia_smi_has_them
    # One that waits takes the place of the first that ends.
    "${CLEAN[@]}" "$binary" run --runtime-dir "$RUNTIME" --tenant plain-2 --wait=60s -- "$CLIENT" info \
        >"$LOGS/waiting.out" 2>"$LOGS/waiting.err" </dev/null &
    pid=$!
    CLIENT_PIDS+=("$pid")
    check_that "with --wait one more waits" wait_for 10 "it says so" grep -q '^mps-manager: waiting' "$LOGS/waiting.err"
    api GET '/api/v1/clients?fresh=true&limit=200'
    client=$(json "$BODY" 'd["items"][0]["id"]')
    api POST "/api/v1/clients/$client/terminate"
    check_that "it runs when another client has ended" wait_for 30 "it ran" grep -q '"devices"' "$LOGS/waiting.out"
    wait "$pid" || true
    # Where CUDA_DEVICE_MAX_CONNECTIONS is not raised no client meets MPS's own refusal.
    check "clients that MPS itself refused" 0 "$(grep -c 'Failed to accept' "$RUNTIME/daemons/gpu0/log/server.log" || true)"
    for pid in "${pids[@]}"; do end_process "$pid" 5; done
}
