# Rounds of harm under a manager, on each GPU at once. Sourced by run.sh.

# Rounds in all, shared by the GPUs.
ROUNDS=${ROUNDS:-200}

# rounds_of KIND: runs rounds.py on every GPU's daemon at once; the results are $LOGS/KIND.<ordinal>.json.
rounds_of() {
    local kind=$1 gpus ordinal pids=()
    gpus=$(nvidia-smi --list-gpus | wc -l)
    for ((ordinal = 0; ordinal < gpus; ordinal++)); do
        "${CLEAN[@]}" python3 "$here/rounds.py" "$kind" "$RUNTIME/api.sock" "$CLIENT" "tenant$ordinal" "gpu$ordinal" \
            $((ROUNDS / gpus)) >"$LOGS/$kind.$ordinal.json" 2>"$LOGS/$kind.$ordinal.err" &
        pids+=($!)
    done
    for ordinal in "${!pids[@]}"; do
        wait "${pids[$ordinal]}" || die "rounds.py $kind on GPU $ordinal: $(tail -n 3 "$LOGS/$kind.$ordinal.err")"
        say "$kind on GPU $ordinal: $(cat "$LOGS/$kind.$ordinal.json")"
    done
}

# total KIND FIELD: the sum of a field over the GPUs.
total() {
    local ordinal sum=0
    for ordinal in "$LOGS/$1".*.json; do sum=$((sum + $(json "$ordinal" "d['$2']"))); done
    printf '%d' "$sum"
}

a_host_of_rounds() {
    local gpus ordinal
    start_manager "$binary"
    gpus=$(nvidia-smi --list-gpus | wc -l)
    for ((ordinal = 0; ordinal < gpus; ordinal++)); do
        api PUT "/api/v1/daemons/gpu$ordinal" "{\"gpus\": [\"$ordinal\"]}"
        api PUT "/api/v1/tenants/tenant$ordinal" \
            "{\"daemon\": \"gpu$ordinal\", \"uid\": 0, \"device_memory_limit\": \"2G\", \"active_thread_percentage\": 25, \"max_clients\": 40}"
        check "a tenant on GPU $ordinal is created" 201 "$STATUS"
        wait_for 60 "its limits are read back" api_is "/api/v1/tenants/tenant$ordinal" \
            'd["status"]["conditions"][0]["status"] == True'
    done
}

rounds_of_deaths() {
    rounds_of deaths
    check "kills of the control daemon, with clients started all the while" "$ROUNDS" "$(total deaths rounds)"
    check "each was ready again in time: those that were not" 0 "$(total deaths not_ready_in_time)"
    say "clients: $(total deaths clients), under MPS: $(total deaths under_mps), outside: $(total deaths slipped)"
    check "every client outside MPS was reported as a bypass" "$(total deaths slipped)" "$(total deaths slipped_and_reported)"
}

rounds_of_wedges() {
    rounds_of wedges
    check "clients killed as they connected while another one came" "$ROUNDS" "$(total wedges rounds)"
    check "ready again later than after 10 s" 0 "$(total wedges later_than_10_s)"
    say "longer than 2 s: $(total wedges longer_than_2_s)"
}
