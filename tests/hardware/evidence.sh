# What the manager says of faults, breaches and bypasses, and of strangers, against what is known to have happened. Sourced by run.sh.

# Faults, and breaches and bypasses each.
EVIDENCE_ROUNDS=${EVIDENCE_ROUNDS:-}

# four_tenants LIMIT: a daemon of GPU 0 with the tenants of evidence.py.
four_tenants() {
    start_manager "$binary"
    api PUT /api/v1/daemons/gpu0 '{"gpus": ["0"]}'
    for name in one two three four; do
        api PUT "/api/v1/tenants/$name" "{\"daemon\": \"gpu0\", \"uid\": 0, \"device_memory_limit\": \"$1\", \"max_clients\": 8}"
    done
    wait_for 60 "the daemon is ready" daemon_is_ready
}

# evidence_of WHAT ROUNDS...: runs evidence.py; the result is $LOGS/WHAT.json.
evidence_of() {
    local kind=$1
    shift
    "${CLEAN[@]}" KINDS="${KINDS:-}" MANAGER_PID="$MANAGER_PID" NO_DAEMON="$WORK/none" HOME="$WORK" python3 "$here/evidence.py" "$kind" "$RUNTIME/api.sock" \
        "$CLIENT" "$@" >"$LOGS/$kind.json" 2>"$LOGS/$kind.err" || die "evidence.py $kind: $(tail -n 5 "$LOGS/$kind.err")"
    cat "$LOGS/$kind.err" >&2
    say "$kind: $(cat "$LOGS/$kind.json")"
}

faults_and_whom_they_speak_against() {
    local rounds=${EVIDENCE_ROUNDS:-60}
    four_tenants 4G
    evidence_of faults "$rounds"
    check "faults of six kinds, with culprits at random places among four tenants" "$rounds" "$(json "$LOGS/faults.json" 'd["faults"]')"
    check "faults in which an innocent is suspected" 0 "$(json "$LOGS/faults.json" 'd["innocents_suspected"]')"
    check "faults whose incident lists all four clients" "$rounds" "$(json "$LOGS/faults.json" 'd["all_affected"]')"
    say "the culprit first: $(json "$LOGS/faults.json" 'd["culprit_first"]'); all facts of all clients: $(json "$LOGS/faults.json" 'd["with_everything_known"]')"
    evidence_of repeated 10
    check "faults of one tenant, the others there in 6 of 10: an innocent is suspected" 0 "$(json "$LOGS/repeated.json" 'd["innocents_suspected"]')"
    say "$(clean "$binary" incident get "$(api GET '/api/v1/incidents?kind=gpu_fault&limit=1' && json "$BODY" 'd["items"][0]["id"]')" --runtime-dir "$RUNTIME")"
}

breaches_and_bypasses_are_seen() {
    local rounds=${EVIDENCE_ROUNDS:-40} free
    mkdir -p "$WORK/none"
    four_tenants 8G
    free=$(nvidia-smi --query-gpu=memory.free --format=csv,noheader,nounits --id=0)
    evidence_of watch "$rounds" "$((free > 70000 ? 30720 : 12288))"
    for kind in breach bypass; do
        check "of $rounds: $kind missed" 0 "$(json "$LOGS/watch.json" "d['$kind']['missed']")"
        check "$kind: the longest until its incident is open is at most 2 s" true "$(json "$LOGS/watch.json" "d['$kind']['largest_s'] <= 2")"
    done
    check "honest clients that are called breach or bypass" '[]' "$(json "$LOGS/watch.json" 'd["falsely_named"]')"
}

# within SECONDS COMMAND...: whether it succeeds in time.
within() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.1
    done
}

# stranger_is_over PID MULTI: whether MPS refused it, or an incident names it.
stranger_is_over() {
    api GET /api/v1/incidents
    grep -q CUDA_ERROR_MPS_CONNECTION_FAILED "$LOGS/stranger-$2.out" ||
        [ "$(json "$BODY" "any(any(s['pid'] == $1 for s in i['suspected']) for i in d['items'])")" = true ]
}

own_client_runs() { as_tenant "own-$1" own info && grep -q '"devices"' "$LOGS/own-$1.out"; }

# The path is known, and what is closed was opened by hand: the daemon's sockets, to a user who is no tenant's.
a_stranger_at_the_daemon() {
    local multi=$1 pid began
    new_host "stranger-$multi"
    start_manager "$binary"
    api PUT /api/v1/daemons/gpu0 "{\"gpus\": [\"0\"], \"multi_user\": $multi}"
    api PUT /api/v1/tenants/own '{"daemon": "gpu0", "uid": 65534, "device_memory_limit": "4G", "max_clients": 4}'
    wait_for 60 "the daemon is ready" daemon_is_ready
    api GET /api/v1/tenants/own/environment
    local pipe
    pipe=$(json "$BODY" 'd["variables"]["CUDA_MPS_PIPE_DIRECTORY"]')
    local stranger=(setpriv --reuid=33 --regid=33 --clear-groups)
    check "multi_user $multi: paths of the runtime directory that a stranger reads or lists" api.sock \
        "$("${stranger[@]}" find "$RUNTIME" -mindepth 1 -maxdepth 4 \( -readable -o -name api.sock \) -not -type l -printf '%P\n' 2>/dev/null | grep -vx 'tenants\|daemons\|env' | tr '\n' ' ' | sed 's/ $//')"
    chmod o+x "$pipe" "$RUNTIME"/daemons/gpu0 "$RUNTIME"/daemons/gpu0/pipe 2>/dev/null || true
    began=$(date +%s%N)
    "${stranger[@]}" env -i LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}" CUDA_MPS_PIPE_DIRECTORY="$pipe" "$CLIENT" spin 60 \
        >"$LOGS/stranger-$multi.out" 2>&1 &
    pid=$!
    CLIENT_PIDS+=("$pid")
    if within 20 stranger_is_over "$pid" "$multi"; then
        say "multi_user $multi, after $((($(date +%s%N) - began) / 1000000)) ms: $(cat "$LOGS/stranger-$multi.out"), $(json "$BODY" '[(i["kind"], i["summary"]) for i in d.get("items", [])]')"
    fi
    check "multi_user $multi: the stranger is refused by MPS, or an incident names it" true "$(stranger_is_over "$pid" "$multi" && echo true || echo false)"
    # Until its server is back, which the stranger's attempt ended, MPS refuses the tenant's clients too.
    check "multi_user $multi: the tenant's client runs within 2 s" yes "$(within 2 own_client_runs "$multi" && echo yes || echo no)"
}
