# The hardware scenario over the whole manager: one GPU, one daemon, two tenants, every death. Sourced by run.sh.

MEMORY_LIMIT=$((4 << 30))

# daemon_field EXPRESSION: over the daemon `d` as the API shows it after a poll that began now.
daemon_field() {
    api GET '/api/v1/daemons/gpu0?fresh=true'
    json "$BODY" "$1"
}

daemon_is_ready() { api_is /api/v1/daemons/gpu0 'd["status"]["phase"] == "ready" and d["generation"] == d["status"]["observed_generation"]'; }
operation_is_over() { api_is "/api/v1/operations/$OPERATION" 'd["state"] in ("succeeded", "failed")'; }
status_differs() { api_is /api/v1/daemons/gpu0 "d['status']['pid'] not in ($1, None) and d['status']['phase'] == 'ready'"; }
server_differs() {
    api_is '/api/v1/daemons/gpu0?fresh=true' \
        "len([s for s in d['status']['effective']['servers'] if s['pid'] != $1 and s['status'] == 'ACTIVE']) == 1 and d['status']['phase'] == 'ready'"
}
has_clients() { api_is "/api/v1/clients?fresh=true&tenant=$1" "len(d['items']) == $2"; }

# as_tenant NAME TENANT ARGUMENT...: the independent client, started by `run`; its output in $LOGS/NAME.out.
as_tenant() {
    local name=$1 tenant=$2
    shift 2
    clean "$binary" run --runtime-dir "$RUNTIME" --tenant "$tenant" -- "$CLIENT" "$@" >"$LOGS/$name.out" 2>"$LOGS/$name.err"
}

start_as_tenant() {
    local name=$1 tenant=$2
    shift 2
    "${CLEAN[@]}" "$binary" run --runtime-dir "$RUNTIME" --tenant "$tenant" -- "$CLIENT" "$@" \
        >"$LOGS/$name.out" 2>"$LOGS/$name.err" </dev/null &
    CLIENT_PID=$!
    CLIENT_PIDS+=("$CLIENT_PID")
}

# sees_its_limits WHEN: the first tenant's client and the probe, each on its own word.
sees_its_limits() {
    local when=$1
    as_tenant seen alpha info || true
    head -n 1 "$LOGS/seen.out" >"$LOGS/seen.json"
    check "$when: the CUDA client sees 32 multiprocessors" 32 "$(json "$LOGS/seen.json" 'd["devices"][0]["sms"]')"
    check "$when: its kernel runs on no more" true "$(json "$LOGS/seen.json" 'd["devices"][0]["sms_used"] <= 32')"
    check "$when: it has less than 4 GiB free" true \
        "$(json "$LOGS/seen.json" "0 < d['devices'][0]['memory_free'] < $MEMORY_LIMIT")"
    clean "$binary" run --runtime-dir "$RUNTIME" --tenant alpha -- "$binary" cuda-probe --allocate-up-to 8G >"$LOGS/probe.json" || true
    check "$when: the probe is under MPS and sees 32 multiprocessors" '[true, 32]' \
        "$(json "$LOGS/probe.json" '[d["mps"], d["devices"][0]["sms"]]')"
    clean "$binary" verify --runtime-dir "$RUNTIME" alpha >"$LOGS/verify.out" 2>&1 || true
    check "$when: the manager verifies the tenant with a client of its own" verified "$(head -n 1 "$LOGS/verify.out")"
    check "$when: the probe can allocate less than 4 GiB" true \
        "$(json "$LOGS/probe.json" "0 < d['devices'][0]['allocation']['largest'] < $MEMORY_LIMIT")"
}

# refused WHAT FIELD BODY: a tenant that must not come into being.
refused() {
    api PUT /api/v1/tenants/bad "$3"
    check "$1 is refused, naming the field" "422 $2" "$STATUS $(json "$BODY" '"".join(e["pointer"] for e in d["errors"])')"
}

an_owned_daemon() {
    local ms
    start_manager "$binary"
    api PUT /api/v1/daemons/gpu0 '{"gpus": ["0"]}'
    check "a daemon is created" 201 "$STATUS"
    ms=$(milliseconds_until 60 "the daemon is ready" daemon_is_ready)
    say "ready after $ms ms"
    api PUT /api/v1/tenants/alpha '{"daemon": "gpu0", "uid": 0, "device_memory_limit": "4G", "active_thread_percentage": 25, "max_clients": 1}'
    check "a tenant at 4 GiB and 25 % is created" 201 "$STATUS"
    wait_for 30 "the tenant's limits are read back" daemon_is_ready
    api GET /api/v1/tenants/alpha
    check "alone, its limit is the server's" server "$(json "$BODY" 'd["status"]["effective"]["device_memory_limits"][0]["enforced_by"]')"
    local predicted='[32, false]'
    if percentages_are_measured; then predicted='[32, true]'; fi
    check "32 multiprocessors are predicted, by a formula measured on an H200" "$predicted" \
        "$(json "$BODY" '[d["status"]["effective"]["threads"][k] for k in ("predicted_sms", "measured_on_this_gpu")]')"
    check "server.log confirms the limit" true \
        "$(daemon_field 'd["status"]["effective"]["servers"][0]["memory_limits"][0]["in_server_log"]')"
    sees_its_limits "at first"
    api PUT /api/v1/tenants/beta '{"daemon": "gpu0", "uid": 0, "device_memory_limit": "8G", "sms": 66, "priority": "below_normal", "max_clients": 2}'
    check "a second tenant, below normal priority" 201 "$STATUS"
    wait_for 30 "both are read back" daemon_is_ready
    api GET /api/v1/tenants/alpha
    check "now the first tenant's limit is its environment's" environment \
        "$(json "$BODY" 'd["status"]["effective"]["device_memory_limits"][0]["enforced_by"]')"
    sees_its_limits "beside a larger tenant"
    as_tenant beta beta info || true
    head -n 1 "$LOGS/beta.out" >"$LOGS/beta.json"
    check "the second tenant's client sees 66 multiprocessors" 66 "$(json "$LOGS/beta.json" 'd["devices"][0]["sms"]')"
    clean "$binary" run --runtime-dir "$RUNTIME" --tenant beta -- sh -c 'echo "$CUDA_MPS_CLIENT_PRIORITY"' >"$LOGS/priority" || true
    check "and has the lower priority in its environment" 1 "$(cat "$LOGS/priority")"
}

# From 1 GiB on the daemon's getter prints whole GiB, so a limit between two of them needs another proof.
a_limit_between_two_gib() {
    api PUT /api/v1/tenants/alpha '{"daemon": "gpu0", "uid": 0, "device_memory_limit": "1536M", "active_thread_percentage": 25, "max_clients": 1}'
    wait_for 30 "a limit of 1536 MiB is read back" daemon_is_ready
    as_tenant between alpha info || true
    head -n 1 "$LOGS/between.out" >"$LOGS/between.json"
    check "under 1536 MiB its client has between 1 and 1.5 GiB free" true \
        "$(json "$LOGS/between.json" '1 << 30 < d["devices"][0]["memory_free"] < 1536 << 20')"
    api PUT /api/v1/tenants/beta '{"daemon": "gpu0", "uid": 0, "device_memory_limit": "8500M", "sms": 66, "priority": "below_normal", "max_clients": 2}'
    wait_for 30 "a limit of 8500 MiB is read back" daemon_is_ready
    check "the server's limit is known to the byte, by its own word" '[8912896000, true, true]' \
        "$(daemon_field '[d["status"]["effective"]["servers"][0]["memory_limits"][0][k] for k in ("bytes", "exact", "in_server_log")]')"
    api PUT /api/v1/tenants/alpha '{"daemon": "gpu0", "uid": 0, "device_memory_limit": "4G", "active_thread_percentage": 25, "max_clients": 1}'
    wait_for 30 "4 GiB are read back again" daemon_is_ready
}

bad_values() {
    local value
    for value in '"512K"' '"2T"' 0 -1 '"1.3G"' '"nan"'; do
        refused "a memory limit of $value" /device_memory_limit "{\"daemon\": \"gpu0\", \"device_memory_limit\": $value}"
    done
    for value in '"50%"' 101 0 '"nan"'; do
        refused "a percentage of $value" /active_thread_percentage "{\"daemon\": \"gpu0\", \"active_thread_percentage\": $value}"
    done
    api GET /api/v1/tenants/bad
    check "none of them is remembered" 404 "$STATUS"
}

clients_come_and_go() {
    start_as_tenant spin alpha spin 120
    local spin=$CLIENT_PID id
    wait_for 20 "the client is listed" has_clients alpha 1
    # It is listed before its context has all its memory.
    wait_for 20 "its memory is told" api_is '/api/v1/clients?fresh=true&tenant=alpha' \
        'len(d["items"]) == 1 and d["items"][0]["memory"][0]["used_bytes"] > 100 << 20'
    check "it is attributed by its lease" lease "$(json "$BODY" 'd["items"][0]["attributed_by"]')"
    as_tenant second alpha info && check "a second process of one client at most is refused" 2 0 || check "a second process of one client at most is refused" 2 $?
    api GET '/api/v1/clients?fresh=true&tenant=alpha'
    id=$(json "$BODY" 'd["items"][0]["id"]')
    api POST "/api/v1/clients/$id/terminate"
    OPERATION=$(json "$BODY" 'd["id"]')
    wait_for 30 "its termination is over" operation_is_over
    check "a client is terminated" succeeded "$(json "$BODY" 'd["state"]')"
    check "its process has ended" yes "$(is_gone "$spin" && echo yes || echo no)"
    wait_for 20 "its daemon is ready" daemon_is_ready
}

deaths() {
    local server daemon manager ms spin
    server=$(daemon_field 'd["status"]["effective"]["servers"][0]["pid"]')
    kill -KILL "$server"
    ms=$(milliseconds_until 60 "a new server is ready" server_differs "$server")
    say "kill -9 of the server to ready again: $ms ms"
    RECOVERY_SERVER=$ms
    sees_its_limits "after kill -9 of the server"

    daemon=$(daemon_field 'd["status"]["pid"]')
    kill -KILL "$daemon"
    ms=$(milliseconds_until 60 "a new control daemon is ready" status_differs "$daemon")
    say "kill -9 of the control daemon to ready again: $ms ms"
    RECOVERY_DAEMON=$ms
    sees_its_limits "after kill -9 of the control daemon"

    start_as_tenant survivor beta spin 60
    spin=$CLIENT_PID
    wait_for 20 "a client runs" has_clients beta 1
    daemon=$(daemon_field 'd["status"]["pid"]')
    server=$(daemon_field 'd["status"]["effective"]["servers"][0]["pid"]')
    manager=$MANAGER_PID
    kill -KILL "$manager"
    wait "$manager" 2>/dev/null || true
    check "the manager is gone after kill -9" no "$(manager_answers >/dev/null 2>&1 && echo yes || echo no)"
    start_manager "$binary"
    check "the next manager is another process" yes "$([ "$MANAGER_PID" != "$manager" ] && ! is_gone "$MANAGER_PID" && echo yes || echo no)"
    wait_for 30 "the daemon is ready again" daemon_is_ready
    check "its log says that it adopted the daemon" 1 "$(grep -c 'adopted the running control daemon' "$LOGS/manager.err")"
    check "after kill -9 of the manager the same daemon and server are adopted" "[$daemon, $server]" \
        "$(daemon_field '[d["status"]["pid"], d["status"]["effective"]["servers"][0]["pid"]]')"
    wait_for 20 "the client is listed again" has_clients beta 1
    check "the client that ran runs on" no "$(is_gone "$spin" && echo yes || echo no)"
    sees_its_limits "after kill -9 of the manager"
    end_process "$spin" 5
}

# How long a server of MPS itself takes, by the times of control.log: from "Starting new server" to "Ready".
server_start_ms() {
    python3 - "$RUNTIME/daemons/gpu0/log/control.log" <<'PY'
import datetime, re, sys
begun, spans = {}, []
for line in open(sys.argv[1], errors="replace"):
    at = re.match(r"\[([0-9 :.-]+) \w+ +\d+\] (.*)", line)
    if not at:
        continue
    when = datetime.datetime.strptime(at[1], "%Y-%m-%d %H:%M:%S.%f")
    if m := re.match(r"Starting new server (\d+)", at[2]):
        begun[m[1]] = when
    if (m := re.match(r"NEW SERVER (\d+): Ready", at[2])) and m[1] in begun:
        spans.append(int((when - begun[m[1]]).total_seconds() * 1000))
print(spans[-1] if spans else -1)
PY
}

# A client that dies while a ready server takes it hangs that server (tests/fixtures/hardware/17-…): done until it happens.
a_server_that_hangs() {
    local daemon server spin ms kills
    start_as_tenant connected beta spin 120
    spin=$CLIENT_PID
    wait_for 20 "a client runs" has_clients beta 1
    daemon=$(daemon_field 'd["status"]["pid"]')
    server=$(json "$BODY" 'd["status"]["effective"]["servers"][0]["pid"]')
    kills=$(clean python3 "$here/kills.py" "$CLIENT" "$(json "$BODY" 'd["status"]["pipe_directory"]')" \
        "$(json "$BODY" 'd["status"]["log_directory"]')" "$server" 400)
    if [ "$kills" -eq 0 ]; then
        say "400 clients killed as they came hung no server, so nothing was learnt of that"
        end_process "$spin" 5
        return 0
    fi
    say "client $kills of those killed as they came hung the server"
    wait_for 60 "the server that hangs is named" \
        api_is /api/v1/daemons/gpu0 'd["status"]["conditions"][0]["reason"] == "ServerHangs"'
    check "a server that hangs is named" yes \
        "$(json "$BODY" "'yes' if 'server $server hangs' in d['status']['conditions'][0]['message'] else 'no'")"
    ms=$(milliseconds_until 60 "a new server is ready" server_differs "$server")
    say "from its being named to ready again, with a client at work: $ms ms"
    check "ready again within 10 s by itself" yes "$([ "$ms" -lt 10000 ] && echo yes || echo no)"
    end_process "$spin" 5
    check "the server was replaced, and the control daemon is the same" "yes $daemon" \
        "$(is_gone "$server" && echo yes || echo no) $(daemon_field 'd["status"]["pid"]')"
    sees_its_limits "after a server that hung"
}

sixteen_readers() {
    python3 "$here/readers.py" "$RUNTIME/api.sock" gpu0 "$(daemon_field 'd["status"]["effective"]["servers"][0]["pid"]')" \
        >"$LOGS/readers.json"
    say "$(cut -c1-2000 "$LOGS/readers.json")"
    check "1008 live reads by 16 callers: failed and wrong answers" '[1008, 0, 0]' \
        "$(json "$LOGS/readers.json" '[d["reads"], d["failed"], d["wrong"]]')"
}

a_live_read() {
    "${CLEAN[@]}" python3 "$here/live.py" "$RUNTIME/api.sock" gpu0 "$RUNTIME/daemons/gpu0/pipe" >"$LOGS/live.json"
    # A session with the commands of a poll takes 1.6 times as long by itself (docs/figures.md).
    check "a live read takes at most 2.5 times as long as one control process (seen $(cat "$LOGS/live.json"))" true \
        "$(json "$LOGS/live.json" 'd["ratio"] <= 2.5')"
}

the_manager() {
    an_owned_daemon
    a_limit_between_two_gib
    bad_values
    clients_come_and_go
    deaths
    sixteen_readers
    a_live_read
    check "no control command of the manager failed" 0 \
        "$(grep -c 'could not be read\|was not answered' "$LOGS/manager.err" || true)"
    local start
    start=$(server_start_ms)
    check "kill -9 of the daemon to ready: its server's start ($start ms) and at most 500 ms (seen $RECOVERY_DAEMON ms)" yes \
        "$([ "$RECOVERY_DAEMON" -le $((start + 500)) ] && echo yes || echo no)"
    a_server_that_hangs
    local resident
    resident=$(awk '/VmRSS/ { print $2 * 1024 }' "/proc/$MANAGER_PID/status")
    check "resident memory of the manager is under 48 MB (seen $((resident / 1000)) kB)" yes "$([ "$resident" -lt 48000000 ] && echo yes || echo no)"
    check "no manager but this one ran" 1 "$(pgrep -fc "^[^ ]*mps-manager serve --state-dir $STATE " || true)"
    api POST '/api/v1/daemons/gpu0/stop?grace_s=2'
    OPERATION=$(json "$BODY" 'd["id"]')
    wait_for 60 "the daemon is stopped" operation_is_over
    check "the daemon is stopped" succeeded "$(json "$BODY" 'd["state"]')"
}
