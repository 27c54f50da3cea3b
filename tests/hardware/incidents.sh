# The hardware scenario of incidents, on two GPUs of one daemon: NVIDIA's example of a fault that reaches clients by the GPUs they
# share. Sourced by run.sh.

faults_are() { api_is '/api/v1/incidents?kind=gpu_fault' "len(d['items']) == $1 and all(i['state'] == 'recovered' for i in d['items'])"; }
says_devices() { grep -q '"devices"' "$LOGS/$1.out"; }

# start_and_see NAME TENANT: a client that works until its GPU fails, seen by the manager.
start_and_see() {
    start_as_tenant "$1" "$2" spin 120
    wait_for 30 "client $1 runs" says_devices "$1"
}

# newest EXPRESSION: of the newest fault, as `i`.
newest() {
    api GET '/api/v1/incidents?kind=gpu_fault&limit=1'
    json "$BODY" "(lambda i: $1)(d['items'][0])"
}

faults_on_two_gpus() {
    local far near both id name
    new_host faults
    start_manager "$binary"
    api PUT /api/v1/daemons/gpu0 '{"gpus": ["0", "1"]}'
    wait_for 60 "the daemon is ready" daemon_is_ready
    for name in culprit:0 near:0 far:1; do
        api PUT "/api/v1/tenants/${name%:*}" "{\"daemon\": \"gpu0\", \"uid\": 0, \"gpus\": [\"${name#*:}\"]}"
    done
    api PUT /api/v1/tenants/both '{"daemon": "gpu0", "uid": 0, "gpus": ["0", "1"]}'
    wait_for 30 "all are read back" daemon_is_ready

    # A neighbour on the same GPU fails with it; a client on the other GPU goes on.
    start_and_see near near
    near=$CLIENT_PID
    start_and_see far far
    far=$CLIENT_PID
    wait_for 20 "both are listed" api_is '/api/v1/clients?fresh=true' 'len(d["items"]) == 2'
    as_tenant culprit culprit fault || true
    wait_for 60 "the fault is over" faults_are 1
    check "a fault on GPU 0: tenants that lost work" '["culprit", "near"]' "$(newest 'sorted(a["tenant"] for a in i["affected"])')"
    check "the affected clients, each once" 2 "$(newest 'len(i["affected"])')"
    check "a fault on GPU 0: clients that kept theirs" 1 "$(newest 'i["unaffected"]')"
    check "the neighbour's process has ended" yes "$(wait_for 10 "it ended" is_gone "$near" && echo yes || echo no)"
    check "the client of GPU 1 goes on" yes "$(is_gone "$far" && echo no || echo yes)"
    check "the incident is recovered in less than 60 s" true "$(newest '0 <= (-1 if i["time_to_recovery_ms"] is None else i["time_to_recovery_ms"]) < 60000')"
    id=$(newest 'i["id"]')
    say "$(clean "$binary" incident get "$id" --runtime-dir "$RUNTIME")"

    # One that is on both GPUs carries it to the other.
    start_and_see both both
    both=$CLIENT_PID
    wait_for 20 "both are listed" api_is '/api/v1/clients?fresh=true' 'len(d["items"]) == 2'
    as_tenant culprit culprit fault || true
    wait_for 60 "the second fault is over" faults_are 2
    check "with a client on both GPUs: tenants that lost work" '["both", "culprit", "far"]' "$(newest 'sorted(a["tenant"] for a in i["affected"])')"
    check "with a client on both GPUs: clients that kept theirs" 0 "$(newest 'i["unaffected"]')"
    check "both processes have ended" yes "$(wait_for 10 "they ended" is_gone "$both" && wait_for 10 "they ended" is_gone "$far" && echo yes || echo no)"
    id=$(newest 'i["id"]')
    say "$(clean "$binary" incident get "$id" --runtime-dir "$RUNTIME")"
    as_tenant after far info || true
    check "a client starts afterwards" yes "$(says_devices after && echo yes || echo no)"
}
