# The hardware scenario of a host that already lives: two GPUs, daemons of others, outsiders, an upgrade, maintenance.
# Sourced by run.sh after manager.sh; needs two GPUs.

# ---- words of this scenario

daemon_now() {
    api GET "/api/v1/daemons/$1?fresh=true"
    json "$BODY" "$2"
}
is_ready() { api_is "/api/v1/daemons/$1" 'd["status"]["phase"] == "ready" and d["generation"] == d["status"]["observed_generation"]'; }
condition_of() { api_is "/api/v1/daemons/$1" "any(c['type'] == '$2' and c['status'] for c in d['status']['conditions'])"; }
ready_reason_is() { api_is "/api/v1/daemons/$1" "d['status']['conditions'][0]['reason'] == '$2'"; }

# Asks for an operation, and waits for its end: ask METHOD PATH [BODY].
ask() {
    api "$@"
    OPERATION=$(json "$BODY" 'd["id"]')
    wait_for 90 "$1 $2 is over" operation_is_over
}

# owned NAME BODY: a daemon, and waits until it is ready.
owned() {
    api PUT "/api/v1/daemons/$1" "$2"
    check "daemon $1 is created" 201 "$STATUS"
    wait_for 60 "daemon $1 is ready" is_ready "$1"
}

tenant() {
    api PUT "/api/v1/tenants/$1" "$2"
    check "tenant $1 is created" 201 "$STATUS"
}

# Its clients may have ended a moment ago: until that was seen, the tenant stays.
no_tenant() { wait_for 20 "tenant $1 is deleted" tenant_is_deleted "$1"; }
tenant_is_deleted() {
    api DELETE "/api/v1/tenants/$1"
    [ "$STATUS" = 204 ] || [ "$STATUS" = 404 ]
}

gone() {
    api DELETE "/api/v1/daemons/$1?grace_s=2"
    OPERATION=$(json "$BODY" 'd["id"]')
    wait_for 60 "daemon $1 is deleted" operation_is_over
    check "daemon $1 is deleted" succeeded "$(json "$BODY" 'd["state"]')"
}

# seen_by TENANT EXPRESSION [VARIABLE=VALUE...]: over what the tenant's own client says of itself.
seen_by() {
    local tenant=$1 expression=$2
    shift 2
    clean "$binary" run --runtime-dir "$RUNTIME" --tenant "$tenant" -- env "$@" "$CLIENT" info >"$LOGS/seen.out" 2>"$LOGS/seen.err" || true
    head -n 1 "$LOGS/seen.out" >"$LOGS/seen.json"
    json "$LOGS/seen.json" "$expression"
}

# The processes that have the device file of a GPU open, by /proc: PIDs.
holders_of_devices() {
    local process
    for process in /proc/[0-9]*; do
        if find "$process/fd" -lname '/dev/nvidia[0-9]*' 2>/dev/null | grep -q .; then printf '%s ' "${process#/proc/}"; fi
    done
}

# The commands that set something, in a daemon's own log.
sets_in() { grep -c 'Cmd:set_' "$1/control.log" || true; }

# ---- one daemon a GPU

a_daemon_a_gpu() {
    local first second
    owned gpu0 '{"gpus": ["0"]}'
    owned gpu1 '{"gpus": ["1"]}'
    tenant left '{"daemon": "gpu0", "uid": 0, "device_memory_limit": "4G", "active_thread_percentage": 25, "max_clients": 12}'
    tenant right '{"daemon": "gpu1", "uid": 0, "device_memory_limit": "8G", "active_thread_percentage": 50, "max_clients": 12}'
    wait_for 30 "both tenants are read back" is_ready gpu0
    wait_for 30 "both tenants are read back" is_ready gpu1
    api GET /api/v1/gpus
    GPU0=$(json "$BODY" 'd["items"][0]["uuid"]')
    GPU1=$(json "$BODY" 'd["items"][1]["uuid"]')
    check "a client of the first daemon sees the first GPU alone, 32 multiprocessors" "[\"$GPU0\", 32]" \
        "$(seen_by left '[x for e in d["devices"] for x in (e["uuid"], e["sms"])]')"
    check "a client of the second sees the second GPU alone, as its device 0" "[[0, \"$GPU1\", 66]]" \
        "$(seen_by right '[[e["ordinal"], e["uuid"], e["sms"]] for e in d["devices"]]')"
    check "and less than 8 GiB of it" true "$(seen_by right '0 < d["devices"][0]["memory_free"] < 8 << 30')"
    check "with CUDA_VISIBLE_DEVICES=0 of its own it sees the same GPU under the same limit" "[\"$GPU1\", true]" \
        "$(seen_by right '[d["devices"][0]["uuid"], 0 < d["devices"][0]["memory_free"] < 8 << 30]' CUDA_VISIBLE_DEVICES=0)"
    tenant numbers '{"daemon": "gpu1", "uid": 0, "device_memory_limit": "8G", "active_thread_percentage": 50, "max_clients": 12, "visible_devices": "ordinal"}'
    wait_for 30 "the third tenant is read back" is_ready gpu1
    check "a tenant that is told ordinals sees that GPU as its device 0, under its limit" "[1, \"$GPU1\", 66, true]" \
        "$(seen_by numbers '[len(d["devices"]), d["devices"][0]["uuid"], d["devices"][0]["sms"], 0 < d["devices"][0]["memory_free"] < 8 << 30]')"
    clean "$binary" verify --runtime-dir "$RUNTIME" numbers >"$LOGS/verify-numbers.out" 2>&1 || true
    check "and the manager verifies it with a client of its own" verified "$(head -n 1 "$LOGS/verify-numbers.out")"
    api DELETE /api/v1/tenants/numbers
    first=$(daemon_now gpu0 'd["status"]["pid"]')
    second=$(daemon_now gpu1 '[d["status"]["pid"], d["status"]["effective"]["servers"][0]["pid"]]')
    kill -KILL "$first"
    wait_for 60 "the first daemon is replaced" another_daemon gpu0 "$first"
    check "kill -9 of one daemon leaves the other and its server alone" "$second" \
        "$(daemon_now gpu1 '[d["status"]["pid"], d["status"]["effective"]["servers"][0]["pid"]]')"
}
another_daemon() { api_is "/api/v1/daemons/$1" "d['status']['pid'] not in ($2, None) and d['status']['phase'] == 'ready'"; }

# ---- the binary is replaced under running clients

all_alive() {
    local pid
    for pid in "$@"; do if is_gone "$pid"; then return 1; fi; done
}

an_upgrade() {
    local before after pids=() i lost=0 pid serving=$WORK/upgraded
    for i in $(seq 20); do
        start_as_tenant "upgrade$i" "$([ $((i % 2)) = 0 ] && echo left || echo right)" spin 300
        pids+=("$CLIENT_PID")
    done
    wait_for 60 "ten clients of the first tenant are listed" has_clients left 10
    wait_for 60 "ten clients of the second tenant are listed" has_clients right 10
    local shape='[d["status"]["pid"], [[s["pid"], s["active_thread_percentage"], [m["bytes"] for m in s["memory_limits"]]] for s in d["status"]["effective"]["servers"]]]'
    before="$(daemon_now gpu0 "$shape") $(daemon_now gpu1 "$shape")"
    cp -- "$binary" "$serving"
    end_process "$MANAGER_PID"
    check "the clients run on without a manager" yes "$(all_alive "${pids[@]}" && echo yes || echo no)"
    start_manager "$serving"
    wait_for 30 "the first daemon is adopted" is_ready gpu0
    wait_for 30 "the second daemon is adopted" is_ready gpu1
    # The same file, replaced as a package manager does it.
    cp -- "$binary" "$serving.new"
    mv -- "$serving.new" "$serving"
    kill -KILL "$MANAGER_PID"
    wait "$MANAGER_PID" 2>/dev/null || true
    start_manager "$serving"
    wait_for 30 "the first daemon is adopted again" is_ready gpu0
    wait_for 30 "the second daemon is adopted again" is_ready gpu1
    wait_for 30 "ten clients of the first tenant are listed again" has_clients left 10
    wait_for 30 "ten clients of the second tenant are listed again" has_clients right 10
    after="$(daemon_now gpu0 "$shape") $(daemon_now gpu1 "$shape")"
    check "two upgrades change no daemon, no server and no setting" "$before" "$after"
    for pid in "${pids[@]}"; do if is_gone "$pid"; then lost=$((lost + 1)); fi; done
    check "of 20 clients that ran meanwhile, lost" 0 "$lost"
    UPGRADE_CLIENTS=("${pids[@]}")
}

# ---- idle, with the clients of the upgrade: 8 of them stay

idle() {
    local i before after cpu_before cpu_after ticks
    for i in "${!UPGRADE_CLIENTS[@]}"; do
        if [ "$i" -ge 8 ]; then end_process "${UPGRADE_CLIENTS[$i]}" 5; fi
    done
    wait_for 30 "four clients are left on the first" has_clients left 4
    wait_for 30 "four clients are left on the second" has_clients right 4
    sleep 3
    local count='d["status"]["sessions"]["control_processes"]'
    api GET /api/v1/daemons/gpu0
    before=$(json "$BODY" "$count")
    cpu_before=$(awk '{print $14 + $15}' "/proc/$MANAGER_PID/stat")
    sleep 30
    api GET /api/v1/daemons/gpu0
    after=$(json "$BODY" "$count")
    cpu_after=$(awk '{print $14 + $15}' "/proc/$MANAGER_PID/stat")
    ticks=$((cpu_after - cpu_before))
    check "idle with 8 clients: at most 15 control processes a minute a daemon (seen $(((after - before) * 2)))" yes \
        "$([ $(((after - before) * 2)) -le 15 ] && echo yes || echo no)"
    # 100 ticks a second: under 1 % of a core is under 30 ticks in 30 s.
    check "idle with 8 clients: under 1 % of a core (seen $ticks ticks of 10 ms in 30 s)" yes "$([ "$ticks" -lt 30 ] && echo yes || echo no)"
    for i in "${!UPGRADE_CLIENTS[@]}"; do end_process "${UPGRADE_CLIENTS[$i]}" 5; done
}

# ---- foreign loops beside 16 callers

outsiders_noise() {
    local pipe loops=() i pid
    pipe=$(daemon_now gpu0 'd["status"]["pipe_directory"]')
    for i in 1 2 3 4; do
        (
            export CUDA_MPS_PIPE_DIRECTORY="$pipe"
            while :; do printf 'get_server_list\nps\n' | timeout 5 nvidia-cuda-mps-control >/dev/null 2>&1 || true; done
        ) &
        loops+=("$!")
    done
    CLIENT_PIDS+=("${loops[@]}")
    READ_BESIDE="beside 4 foreign loops" read_by_sixteen
    for pid in "${loops[@]}"; do kill -KILL "$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; done
    wait_for 20 "the daemon is ready after the noise" is_ready gpu0
}

read_by_sixteen() {
    local server
    server=$(daemon_now gpu0 'd["status"]["effective"]["servers"][0]["pid"]')
    # The truth: this server, with 4 GiB and 25 %, and defaults alike.
    python3 "$here/readers.py" "$RUNTIME/api.sock" gpu0 "$server" $((4 << 30)) 25 >"$LOGS/noise.json"
    say "$(cut -c1-2000 "$LOGS/noise.json")"
    check "1008 live reads by 16 callers $READ_BESIDE: wrong answers" 0 "$(json "$LOGS/noise.json" 'd["wrong"]')"
    check "and failed answers ($(json "$LOGS/noise.json" 'd["polls"]') polls took $(json "$LOGS/noise.json" 'd["control_processes"]') control processes)" \
        0 "$(json "$LOGS/noise.json" 'd["failed"]')"
    check "and each within the deadline of 10 s (longest $(json "$LOGS/noise.json" 'round(d["longest_ms"])') ms)" true \
        "$(json "$LOGS/noise.json" 'd["longest_ms"] < 10000')"
}

# ---- settings changed behind our back

drift() {
    local pipe ms
    pipe=$(daemon_now gpu0 'd["status"]["pipe_directory"]')
    printf 'set_default_active_thread_percentage 77\n' | CUDA_MPS_PIPE_DIRECTORY="$pipe" nvidia-cuda-mps-control >/dev/null
    ms=$(milliseconds_until 20 "the drift is repaired" drift_is_repaired "$pipe")
    check "a default changed by an outsider is restored within 2 s (seen $ms ms)" yes "$([ "$ms" -le 2000 ] && echo yes || echo no)"
}
drift_is_repaired() { [ "$(printf 'get_default_active_thread_percentage\n' | CUDA_MPS_PIPE_DIRECTORY="$1" timeout 5 nvidia-cuda-mps-control | tr -d '\r\n')" = 25.0 ]; }

# ---- one daemon for both

one_daemon_for_both() {
    no_tenant left
    no_tenant right
    gone gpu0
    gone gpu1
    owned both '{"gpus": ["0", "1"]}'
    check "that limits can be escaped there is said" yes "$(condition_of both LimitsEscapable && echo yes || echo no)"
    tenant wide '{"daemon": "both", "uid": 0, "device_memory_limit": "4G", "active_thread_percentage": 25, "max_clients": 1}'
    tenant narrow '{"daemon": "both", "uid": 0, "gpus": ["1"], "device_memory_limit": "8G", "active_thread_percentage": 50, "max_clients": 1}'
    wait_for 30 "both tenants are read back" is_ready both
    check "a tenant of both GPUs sees both under its limit" "[[\"$GPU0\", true], [\"$GPU1\", true]]" \
        "$(seen_by wide '[[e["uuid"], 0 < e["memory_free"] < 4 << 30] for e in d["devices"]]')"
    check "a tenant of the second alone sees it as device 0 under its limit" "[[0, \"$GPU1\", true, 66]]" \
        "$(seen_by narrow '[[e["ordinal"], e["uuid"], 0 < e["memory_free"] < 8 << 30, e["sms"]] for e in d["devices"]]')"
    # Its environment then has an entry for a GPU that it does not see, which drops every limit.
    check "a client that hides one of the two from itself escapes its limit, as docs/limits.md says" "[[\"$GPU1\", true]]" \
        "$(seen_by wide '[[e["uuid"], e["memory_free"] > 40 << 30] for e in d["devices"]]' "CUDA_VISIBLE_DEVICES=$GPU1")"
    no_tenant wide
    no_tenant narrow
    gone both
}

# ---- a daemon that another program started

foreign_field() {
    api GET /api/v1/foreign-daemons
    json "$BODY" "[x for x in d['items'] if x['pid'] == $1][0]$2"
}

a_foreign_daemon() {
    local foreign id client server log
    mkdir -p "$WORK/foreign/pipe" "$WORK/foreign/log"
    DAEMON_PIPE=$WORK/foreign/pipe log=$WORK/foreign/log
    (cd / && env -i CUDA_MPS_PIPE_DIRECTORY="$DAEMON_PIPE" CUDA_MPS_LOG_DIRECTORY="$log" CUDA_VISIBLE_DEVICES="$GPU1" \
        "$(command -v nvidia-cuda-mps-control)" -d)
    wait_for 10 "the foreign daemon answers" daemon_says get_server_list
    printf 'set_default_device_pinned_mem_limit 0 6G\nset_default_active_thread_percentage 40\n' |
        CUDA_MPS_PIPE_DIRECTORY="$DAEMON_PIPE" nvidia-cuda-mps-control >/dev/null
    daemon_says "start_server -uid 0" >/dev/null
    wait_for 10 "its server is ready" server_is_active
    foreign=$(cat "$DAEMON_PIPE/nvidia-cuda-mps-control.pid")
    server=$(daemon_says get_server_list | tail -n 1)
    start_client foreign CUDA_MPS_PIPE_DIRECTORY="$DAEMON_PIPE" -- spin 300
    client=$CLIENT_PID
    wait_for 10 "its client runs" grep -q devices "$LOGS/foreign.out"
    id=$(foreign_field "$foreign" '["id"]')
    check "a foreign daemon is found with its GPU and directory" "[[\"$GPU1\"], \"$DAEMON_PIPE\"]" \
        "[$(foreign_field "$foreign" '["gpus"]'), \"$(foreign_field "$foreign" '["pipe_directory"]')\"]"

    api PUT /api/v1/daemons/gpu1 '{"gpus": ["1"]}'
    wait_for 20 "a daemon of ours is not started beside it" ready_reason_is gpu1 GpuSharedWithForeignDaemon
    check "no control daemon was started beside it" null "$(daemon_now gpu1 'd["status"]["pid"]')"
    gone gpu1

    local sets
    sets=$(sets_in "$log")
    api POST /api/v1/daemons/taken/adopt "{\"process\": \"$id\", \"management\": \"managed\"}"
    check "it is adopted by name" 201 "$STATUS"
    wait_for 30 "the adopted daemon is ready" is_ready taken
    check "its settings became its spec" "[$((6 << 30)), 40.0]" \
        "$(daemon_now taken '[d["spec"]["defaults"]["device_memory_limit"], float(d["spec"]["defaults"]["active_thread_percentage"])]')"
    check "daemon and server are the same processes" "[$foreign, $server]" \
        "$(daemon_now taken '[d["status"]["pid"], d["status"]["effective"]["servers"][0]["pid"]]')"
    check "nothing was set in it" "$sets" "$(sets_in "$log")"
    check "its client was not disturbed" no "$(is_gone "$client" && echo yes || echo no)"
    kill -KILL "$MANAGER_PID"
    wait "$MANAGER_PID" 2>/dev/null || true
    start_manager "$binary"
    wait_for 30 "it is adopted again after kill -9 of the manager" is_ready taken
    check "still the same processes" "[$foreign, $server]" \
        "$(daemon_now taken '[d["status"]["pid"], d["status"]["effective"]["servers"][0]["pid"]]')"
    api POST /api/v1/daemons/taken/release
    check "it is given back" true "$([ "$STATUS" = 200 ] || [ "$STATUS" = 204 ] && echo true || echo "$STATUS")"
    check "and is a foreign daemon again, alive" "$id" "$(foreign_field "$foreign" '["id"]')"
    check "with its client" no "$(is_gone "$client" && echo yes || echo no)"
    end_process "$client" 5
    daemon_says "quit -t 2" >/dev/null || true
    wait_for 10 "the foreign daemon has quit" is_gone "$foreign"
}

# ---- maintenance

a_maintenance() {
    local client
    owned gpu0 '{"gpus": ["0"]}'
    owned gpu1 '{"gpus": ["1"]}'
    tenant left '{"daemon": "gpu0", "uid": 0, "device_memory_limit": "4G", "active_thread_percentage": 25, "max_clients": 1}'
    wait_for 30 "the tenant is read back" is_ready gpu0
    start_as_tenant working left spin 120
    client=$CLIENT_PID
    wait_for 30 "its client runs" has_clients left 1
    check "daemons and servers hold the device files" yes "$([ -n "$(holders_of_devices)" ] && echo yes || echo no)"

    ask POST /api/v1/host/maintenance '{"gpus": ["1"], "timeout_s": 20}'
    check "maintenance of the second GPU begins" succeeded "$(json "$BODY" 'd["state"]')"
    check "nobody holds the second GPU's device file" "" "$(holders_of_device "$GPU1")"
    check "the first GPU's client works on" "no 1" "$(is_gone "$client" && echo yes || echo no) $(client_count left)"
    ask DELETE /api/v1/host/maintenance
    check "maintenance of the second GPU ends" succeeded "$(json "$BODY" 'd["state"]')"
    wait_for 60 "the second daemon is back" is_ready gpu1

    ask POST /api/v1/host/maintenance '{"timeout_s": 3, "on_timeout": "terminate"}'
    check "maintenance of all begins, and ends the client that stays" "succeeded yes" \
        "$(json "$BODY" 'd["state"]') $(is_gone "$client" && echo yes || echo no)"
    check "nobody holds a GPU's device file any more" "" "$(holders_of_devices)"
    ask DELETE /api/v1/host/maintenance
    check "maintenance of all ends" succeeded "$(json "$BODY" 'd["state"]')"
    wait_for 60 "the first daemon is back" is_ready gpu0
    wait_for 60 "the second daemon is back" is_ready gpu1
    no_tenant left
}

client_count() {
    api GET "/api/v1/clients?fresh=true&tenant=$1"
    json "$BODY" 'len(d["items"])'
}

# The minor number of a device file is in the order of the driver, and not always of PCI.
holders_of_device() {
    local minor process
    minor=$(nvidia-smi --id="$1" -q | awk '/Minor Number/ { print $NF }')
    for process in /proc/[0-9]*; do
        if find "$process/fd" -lname "/dev/nvidia$minor" 2>/dev/null | grep -q .; then printf '%s ' "${process#/proc/}"; fi
    done
}

# ---- another user's turn

# The first user's client has to end by itself: one that is killed while it waits hangs the next server.
a_queue_of_users() {
    local pipe waiting first
    # No tenant's user reaches a daemon unless an administrator adds it.
    clean "$binary" daemon set gpu0 --user 65534 --runtime-dir "$RUNTIME" >&2
    wait_for 30 "the daemon is ready" is_ready gpu0
    pipe=$(daemon_now gpu0 'd["status"]["pipe_directory"]')
    start_client first CUDA_MPS_PIPE_DIRECTORY="$pipe" -- spin 8
    first=$CLIENT_PID
    wait_for 10 "the first user's client runs" grep -q devices "$LOGS/first.out"
    setpriv --reuid=65534 --regid=65534 --clear-groups "${CLEAN[@]}" CUDA_MPS_PIPE_DIRECTORY="$pipe" "$CLIENT" info \
        >"$LOGS/second.out" 2>&1 </dev/null &
    waiting=$!
    CLIENT_PIDS+=("$waiting")
    wait_for 10 "the queue shows the second user" condition_of gpu0 UsersWaiting
    check "who waits for whom is shown" "[65534, [$waiting], 0]" \
        "$(daemon_now gpu0 '[d["status"]["queue"][0]["uid"], [w["pid"] for w in d["status"]["queue"][0]["waiting"]], d["status"]["queue"][0]["behind"]["uid"]]')"
    wait "$first" || true
    wait "$waiting" || true
    check "the second user was served in its turn" true "$(head -n 1 "$LOGS/second.out" >"$LOGS/second.json"; json "$LOGS/second.json" 'd["devices"][0]["mps"] == 1')"
    wait_for 60 "the daemon is ready again" is_ready gpu0
    gone gpu0
    gone gpu1
}

a_living_host() {
    start_manager "$binary"
    a_daemon_a_gpu
    drift
    an_upgrade
    outsiders_noise
    idle
    one_daemon_for_both
    a_foreign_daemon
    a_maintenance
    a_queue_of_users
}
