# The hardware scenario of what others rely on: doctor, what the unit takes away, roles, the event stream beside a real server.log,
# metrics beside a real driver and a daemon that hangs, records and backups. Sourced by run.sh after manager.sh and ownership.sh; one GPU is enough.

# Any user who owns nothing here.
STRANGER=65534

# ---- words of this scenario

# doctor NAME [ARGUMENT...]: its report in $LOGS/NAME.json, its exit code in CODE.
doctor() {
    local name=$1
    shift
    CODE=0
    clean "$binary" doctor --state-dir "$STATE" --runtime-dir "$RUNTIME" -o json "$@" >"$LOGS/$name.json" 2>"$LOGS/$name.err" || CODE=$?
}

# checkup NAME CHECK FIELD: of a report.
checkup() { json "$LOGS/$1.json" "[c['$3'] for c in d['checks'] if c['id'] == '$2'][0]"; }

# as_stranger METHOD PATH [CURL ARGUMENT...]: the API as another user, by the socket alone; the answer is in STATUS and BODY.
as_stranger() {
    local method=$1 path=$2
    shift 2
    STATUS=$(setpriv --reuid="$STRANGER" --regid="$STRANGER" --clear-groups \
        curl -sS --max-time 30 --unix-socket "$RUNTIME/api.sock" -X "$method" -w '\n%{http_code}' "$@" "http://manager$path" \
        2>&1 >"$BODY.all" || true)
    STATUS=$(tail -n 1 "$BODY.all")
    sed '$d' "$BODY.all" >"$BODY"
}

# with_token TOKEN METHOD PATH [BODY]
with_token() {
    local token=$1 method=$2 path=$3 body=${4-} arguments=(-sS --max-time 30 --unix-socket "$RUNTIME/api.sock")
    if [ -n "$body" ]; then arguments+=(-H 'Content-Type: application/json' --data-binary "$body"); fi
    STATUS=$(curl "${arguments[@]}" -X "$method" -H "Authorization: Bearer $token" -o "$BODY" -w '%{http_code}' "http://manager$path") || true
}

# token_for NAME GRANT
token_for() { clean "$binary" token create "$1" --grant "$2" --runtime-dir "$RUNTIME" 2>"$LOGS/token.err"; }

# metric NAME LABEL_TEXT: the value, without a fraction, of the series whose labels hold the text, from the last scrape.
metric() { awk -v name="mps_manager_$1{" -v label="$2" 'index($1, name) == 1 && index($0, label) { printf "%d", $NF }' "$LOGS/metrics.txt"; }

# scrape: into $LOGS/metrics.txt; SCRAPE_MS is how long it took.
scrape() {
    SCRAPE_MS=$(curl -sS --max-time 30 --unix-socket "$RUNTIME/api.sock" -H "Authorization: Bearer $(cat "$STATE/admin.token")" \
        -o "$LOGS/metrics.txt" -w '%{time_total}' http://manager/metrics | awk '{ printf "%d", $1 * 1000 }')
}
scraped() { scrape && [ "$(metric "$1" "$2")" = "$3" ]; }
scraped_at_least() { scrape && awk -v seen="$(metric "$1" "$2")" -v least="$3" 'BEGIN { exit !(seen >= least) }'; }

begins_to_follow() { grep -q following "$LOGS/events.out"; }
tells_of() { grep -q "\"type\": \"$1\".*\"pid\": $2[,}]" "$LOGS/events.out"; }

# ---- doctor

an_examination() {
    local gpus
    gpus=$(nvidia-smi --list-gpus | wc -l)
    doctor before
    say "doctor: $(json "$LOGS/before.json" '"; ".join(c["id"] + " " + c["status"] for c in d["checks"] if c["status"] in ("warn", "fail"))')"
    check "doctor on a host without a manager: nothing fails" '[]' \
        "$(json "$LOGS/before.json" '[[c["id"], c["seen"]] for c in d["checks"] if c["status"] == "fail"]')"
    check "it names the driver that nvidia-smi names" true \
        "$(json "$LOGS/before.json" "any('$(driver_version)' in c['seen'] for c in d['checks'] if c['id'] == 'driver')")"
    check "and $gpus GPUs" true "$(json "$LOGS/before.json" "any(c['seen'].count('NVIDIA') == $gpus for c in d['checks'] if c['id'] == 'gpus')")"
    check "and the version of the binary" true \
        "$(json "$LOGS/before.json" "any('$(mps_binary_version)' in c['seen'] for c in d['checks'] if c['id'] == 'programs')")"
    check "what warns says what to mend" true "$(json "$LOGS/before.json" 'all(c["remedy"] for c in d["checks"] if c["status"] == "warn")')"
    start_daemon others
    doctor beside
    check "a foreign daemon is found" "warn true" \
        "$(checkup beside foreign_daemons status) $(json "$LOGS/beside.json" "any('$DAEMON_PIPE' in c['seen'] for c in d['checks'] if c['id'] == 'foreign_daemons')")"
    daemon_says "quit -t 2" >/dev/null || true
}

# ---- the unit

# capabilities_of PID: what it could ever have, in hexadecimal.
capabilities_of() { awk '/^CapBnd/ { print $2 }' "/proc/$1/status"; }
filters_of() { awk '/^Seccomp_filters:/ { print $2 }' "/proc/$1/status"; }

# A manager with what its unit takes away, and so its daemon and server: CUDA clients do not notice.
hardened() {
    local daemon server ours
    daemon=$(daemon_field 'd["status"]["pid"]')
    server=$(json "$BODY" 'd["status"]["effective"]["servers"][0]["pid"]')
    ours=$(capabilities_of $$)
    check "daemon and server have lost the capabilities that the unit takes away" "yes yes" \
        "$([ "$(capabilities_of "$daemon")" != "$ours" ] && echo yes) $([ "$(capabilities_of "$server")" = "$(capabilities_of "$daemon")" ] && echo yes)"
    # Beside those that this shell has, as in a container.
    check "and have the unit's filter of system calls" "1 1" \
        "$(($(filters_of "$daemon") - $(filters_of $$))) $(($(filters_of "$server") - $(filters_of $$)))"
    sees_its_limits "with a hardened daemon"
}

# ---- roles

roles() {
    local viewer alpha server
    viewer=$(token_for seer viewer)
    alpha=$(token_for alphas tenant:alpha)
    with_token "$viewer" GET /api/v1/daemons/gpu0
    check "a viewer's token reads the daemon" 200 "$STATUS"
    with_token "$viewer" PUT /api/v1/tenants/gamma '{"daemon": "gpu0", "uid": 0}'
    check "and makes no tenant" 403 "$STATUS"
    with_token "$alpha" GET /api/v1/tenants/alpha
    check "a tenant's token reads its tenant" 200 "$STATUS"
    with_token "$alpha" GET /api/v1/tenants/beta
    check "and no other: it is not there" 404 "$STATUS"
    with_token "$alpha" GET '/api/v1/clients?fresh=true'
    check "and of the clients only its own" '["alpha"]' "$(json "$BODY" 'sorted({c["tenant"] for c in d["items"]})')"
    with_token "$alpha" POST /api/v1/daemons/gpu0/stop
    check "and stops no daemon" 403 "$STATUS"
    as_stranger GET /api/v1/daemons/gpu0
    check "another user of the host, named in the configuration, reads" 200 "$STATUS"
    as_stranger POST /api/v1/daemons/gpu0/stop
    check "and stops nothing" 403 "$STATUS"
    server=$(daemon_field 'd["status"]["effective"]["servers"][0]["pid"]')
    check "the server went on" no "$(is_gone "$server" && echo yes || echo no)"
    clean "$binary" audit verify --state-dir "$STATE" >"$LOGS/audit.out" 2>&1 && CODE=0 || CODE=$?
    check "the audit is whole" 0 "$CODE"
    api GET '/api/v1/audit?limit=500'
    check "the refusals are recorded" true "$(json "$BODY" 'len([r for r in d["items"] if r["outcome"] == "refused"]) >= 3')"
}

# ---- events

# Clients that come and go beside a stream: how long after the server's own line each arrives.
a_stream() {
    local number pid clients=()
    python3 "$here/events.py" follow "$RUNTIME/api.sock" "$STATE/admin.token" >"$LOGS/events.out" 2>"$LOGS/events.err" &
    CLIENT_PIDS+=("$!")
    wait_for 10 "the stream is open" begins_to_follow
    for number in $(seq 10); do
        start_as_tenant "short$number" alpha spin 1
        clients+=("$CLIENT_PID")
        sleep 0.2
    done
    for pid in "${clients[@]}"; do
        wait_for 30 "the stream tells that client $pid came" tells_of client.connected "$pid"
        wait "$pid" || true
        wait_for 30 "the stream tells that client $pid left" tells_of client.left "$pid"
    done
    python3 "$here/events.py" lateness "$LOGS/events.out" "$RUNTIME/daemons/gpu0/log/server.log" >"$LOGS/lateness.json"
    say "$(cat "$LOGS/lateness.json")"
    check "of 10 clients that server.log names the stream tells that they came and left" '[true, true, true]' \
        "$(json "$LOGS/lateness.json" "[d['came'] >= 10, d['left'] >= 10, not [u for u in d['unheard'] if u[1] in (${clients[*]/%/,})]]")"
    check "each within 250 ms of the server's line (slowest $(json "$LOGS/lateness.json" 'd["slowest_ms"]') ms)" true \
        "$(json "$LOGS/lateness.json" 'd["slowest_ms"] <= 250')"
}

# ---- metrics

numbers() {
    local uuid pid deaths ms
    uuid=$(nvidia-smi --query-gpu=uuid --format=csv,noheader --id=0)
    scrape
    check "the GPU is labelled by the UUID that nvidia-smi prints" 1 "$(metric gpu_info "$uuid")"
    check "the limit of a tenant" "$MEMORY_LIMIT" "$(metric tenant_memory_limit_bytes 'tenant="alpha"')"
    mkfifo "$WORK/hold"
    "${CLEAN[@]}" "$binary" run --runtime-dir "$RUNTIME" --tenant alpha -- "$CLIENT" alloc 1024 \
        >"$LOGS/alloc.out" 2>"$LOGS/alloc.err" <"$WORK/hold" &
    pid=$!
    CLIENT_PIDS+=("$pid")
    exec 7>"$WORK/hold"
    wait_for 30 "a client has allocated 1024 MiB" grep -q allocated_mib "$LOGS/alloc.out"
    wait_for 30 "the metrics show them" scraped_at_least tenant_memory_used_bytes 'tenant="alpha"' $((1024 << 20))
    check "and less than the limit" yes \
        "$(metric tenant_memory_used_bytes 'tenant="alpha"' | awk -v limit="$MEMORY_LIMIT" '{ print ($1 < limit) ? "yes" : "no" }')"
    check "and two clients of the tenant" 2 "$(metric tenant_clients 'tenant="alpha"')"

    # A daemon that hangs is not waited for. Its clients have their server and notice nothing.
    pid=$(daemon_field 'd["status"]["pid"]')
    kill -STOP "$pid"
    ms=0
    for _ in $(seq 50); do
        scrape
        if [ "$SCRAPE_MS" -gt "$ms" ]; then ms=$SCRAPE_MS; fi
    done
    kill -CONT "$pid"
    check "50 scrapes beside a daemon that hangs: the longest under 100 ms (seen $ms ms)" yes "$([ "$ms" -lt 100 ] && echo yes || echo no)"
    exec 7>&-
    wait_for 60 "the daemon answers again" daemon_is_ready

    deaths=$(metric daemon_deaths_total 'daemon="gpu0"')
    kill -KILL "$(daemon_field 'd["status"]["pid"]')"
    wait_for 60 "the death is counted" scraped daemon_deaths_total 'daemon="gpu0"' $((deaths + 1))
    wait_for 60 "the daemon is ready again" daemon_is_ready
}

# ---- the scenario

what_others_rely_on() {
    local beta
    an_examination
    printf '[access]\nusers = { "%s" = "viewer" }\n' "$STRANGER" >"$WORK/access.toml"
    UNDER=(python3 "$here/unit.py" "$here/../../deploy/mps-manager.service")
    start_manager "$binary" --config "$WORK/access.toml"
    owned gpu0 '{"gpus": ["0"]}'
    tenant alpha '{"daemon": "gpu0", "uid": 0, "device_memory_limit": "4G", "active_thread_percentage": 25, "max_clients": 16}'
    tenant beta '{"daemon": "gpu0", "uid": 0, "device_memory_limit": "4G", "max_clients": 1}'
    wait_for 30 "the tenants are read back" is_ready gpu0
    hardened
    start_as_tenant constant alpha spin 300
    start_as_tenant other beta spin 300
    beta=$CLIENT_PID
    wait_for 30 "a client of each tenant runs" has_clients alpha 1
    wait_for 30 "a client of each tenant runs" has_clients beta 1
    roles
    a_stream
    clean "$binary" backup --state-dir "$STATE" "$WORK/backup.db" >"$LOGS/backup.out" 2>&1 && CODE=0 || CODE=$?
    check "a backup is made while it serves" 0 "$CODE"
    numbers
    is_gone "$beta" || end_process "$beta" 5
    doctor serving
    check "doctor beside the manager: nothing fails, and the manager is well" '[] ok' \
        "$(json "$LOGS/serving.json" '[[c["id"], c["seen"]] for c in d["checks"] if c["status"] == "fail"]') $(checkup serving manager status)"
}
