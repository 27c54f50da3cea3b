# The hardware scenario of a percentage layout: three partitions of a GPU by what CUDA clients see, their document, and its
# replay. Sourced by run.sh after manager.sh and ownership.sh; with two GPUs the replay is on the second one.

# ---- words of this scenario

# Chunks of 8 SMs, as CUDA's splitter makes them of an H200.
THREE='seven five three'
three_sms() { case $1 in seven) echo 56 ;; five) echo 40 ;; three) echo 24 ;; esac; }

LAYOUT='{"layout": {"enforcement": "percentage", "steps": [
    {"add": {"gpu": 0, "partition": "seven", "chunks": 7, "tenants": ["seven"]}},
    {"add": {"gpu": 0, "partition": "five", "chunks": 5, "tenants": ["five"]}},
    {"add": {"gpu": 0, "partition": "three", "chunks": 3, "tenants": ["three"]}}]}}'

three_tenants() {
    local name
    for name in $THREE; do tenant "$name" "{\"daemon\": \"$1\", \"uid\": 0, \"device_memory_limit\": \"4G\", \"max_clients\": 2}"; done
    wait_for 30 "the tenants of $1 are read back" is_ready "$1"
}

no_tenants() {
    local name
    for name in $THREE; do no_tenant "$name"; done
}

# three_see WHEN: each tenant's CUDA client, one after the other.
three_see() {
    local name sms
    for name in $THREE; do
        sms=$(three_sms "$name")
        check "$1: a client of $name sees $sms multiprocessors, and its kernel runs on no more" "[$sms, true]" \
            "$(seen_by "$name" "[d['devices'][0]['sms'], 0 < d['devices'][0]['sms_used'] <= $sms]")"
    done
}

# layout_asserts DAEMON GPU: the exit code of the command line.
layout_asserts() {
    clean "$binary" layout assert shares --runtime-dir "$RUNTIME" --daemon "$1" --gpu "0=$2" >"$LOGS/assert.out" 2>&1 && echo 0 || echo $?
}

# export_layout DAEMON FILE
export_layout() {
    clean "$binary" layout export shares --runtime-dir "$RUNTIME" --daemon "$1" --output json >"$2" 2>"$LOGS/export.err" ||
        die "the layout is not exported: $(cat "$LOGS/export.err")"
}

# without_layout DAEMON GPU: takes the layout out; what percentages hold can be taken out at any time.
without_layout() {
    api PUT "/api/v1/daemons/$1" "{\"gpus\": [\"$2\"]}"
    check "the layout is taken out of daemon $1" 200 "$STATUS"
    wait_for 30 "daemon $1 is ready without it" is_ready "$1"
}

# ask_replay DOCUMENT DAEMON GPU [FORCE]: the answer is in STATUS and BODY.
ask_replay() {
    python3 - "$@" >"$WORK/replay.json" <<'PY'
import json, sys
document, daemon, gpu = json.load(open(sys.argv[1])), sys.argv[2], sys.argv[3]
print(json.dumps({"document": document, "daemon": daemon, "gpu_map": {"0": gpu}, "force": len(sys.argv) > 4}))
PY
    api POST /api/v1/replays "@$WORK/replay.json"
}

# replayed DOCUMENT DAEMON GPU: waits for its end; the operation is in $LOGS/operation.json, the record in $BODY.
replayed() {
    local replay
    ask_replay "$@"
    if [ "$STATUS" != 202 ]; then die "the replay was not accepted: $(cat "$BODY")"; fi
    OPERATION=$(json "$BODY" 'd["operation"]["id"]')
    replay=$(json "$BODY" 'd["replay"]')
    wait_for 120 "the replay is over" operation_is_over
    cp -- "$BODY" "$LOGS/operation.json"
    api GET "/api/v1/replays/$replay"
}

# ---- the layout

a_percentage_layout() {
    local before all name pid clients=()
    owned gpu0 '{"gpus": ["0"]}'
    three_tenants gpu0
    api GET /api/v1/gpus
    all=$(json "$BODY" 'd["items"][0]["sms"]')
    # Under a percentage the splitter answers nothing, so it is asked outside MPS (docs/hardware.md).
    mkdir -p "$WORK/none"
    clean CUDA_MPS_PIPE_DIRECTORY="$WORK/none" CUDA_VISIBLE_DEVICES=0 "$binary" cuda-probe >"$LOGS/census.json" || true
    check "CUDA's splitter makes 15 chunks of 8, 12 left over" '[[15, 8, 12]]' \
        "$(json "$LOGS/census.json" '[[s["groups"], s["sms_per_group"], s["remaining"]] for s in d["devices"][0]["splitter"] if s["min_sms"] == 8]')"

    api PUT /api/v1/layouts/shares "$LAYOUT"
    check "a percentage layout of 7, 5 and 3 chunks is written" 201 "$STATUS"
    api POST /api/v1/layouts/shares/plan '{"daemon": "gpu0"}'
    check "its plan: chunks, multiprocessors and percentages" '[[7, 56, 42.5], [5, 40, 30.4], [3, 24, 18.2]]' \
        "$(json "$BODY" '[[s["chunks"], s["sms"], s.get("percentage")] for s in d["steps"]]')"
    check "its plan: no commands, and nothing is reserved" '[true, true]' \
        "$(json "$BODY" '[all(s["command"] is None for s in d["steps"]), d["reserves_nothing"]]')"
    check "its plan: the daemon's GPU was counted to have 15 chunks of 8, 12 left over, and all are used" '[15, 8, 12, 0]' \
        "$(json "$BODY" '[d["gpus"][0]["before"]["free"], d["gpus"][0]["chunk_sms"], d["gpus"][0]["left_over_sms"], d["gpus"][0]["after"]["free"]]')"

    ask POST /api/v1/layouts/shares/apply '{"daemon": "gpu0"}'
    check "it is applied" succeeded "$(json "$BODY" 'd["state"]')"
    check "a CUDA client of each tenant saw its SMs" 3 \
        "$(json "$BODY" 'sum(s["outcome"] == "a CUDA client saw its SMs" for s in d["steps"])')"
    wait_for 30 "the daemon is ready with it" is_ready gpu0
    check "its partitions are as planned" '["applied", [56, 40, 24]]' \
        "$(daemon_now gpu0 '[d["status"]["layout"]["state"], [p["sms"] for p in d["status"]["layout"]["partitions"]]]')"
    three_see "applied"
    check "layout assert exits 0" 0 "$(layout_asserts gpu0 0)"

    for name in $THREE; do
        start_as_tenant "beside-$name" "$name" spin 60
        clients+=("$CLIENT_PID")
    done
    for name in $THREE; do wait_for 30 "a client of $name runs beside the others" grep -q devices "$LOGS/beside-$name.out"; done
    check "at the same time they see the same" '56 40 24' "$(
        for name in $THREE; do
            head -n 1 "$LOGS/beside-$name.out" >"$LOGS/beside.json"
            json "$LOGS/beside.json" 'd["devices"][0]["sms"]'
        done | paste -sd' '
    )"
    for pid in "${clients[@]}"; do end_process "$pid" 5; done
    for name in $THREE; do wait_for 30 "the client of $name is gone" has_clients "$name" 0; done

    before=$(daemon_now gpu0 'd["status"]["pid"]')
    kill -KILL "$before"
    wait_for 60 "another daemon is ready" another_daemon gpu0 "$before"
    three_see "after kill -9 of the daemon"
    check "layout assert exits 0 after it" 0 "$(layout_asserts gpu0 0)"

    check "the server holds as much as the largest partition needs" 42.5 \
        "$(daemon_now gpu0 'd["status"]["effective"]["servers"][0]["active_thread_percentage"]')"
    static_is_refused
    check "the daemon still has its layout" shares "$(daemon_now gpu0 'd["spec"]["layout"]["name"]')"

    export_layout gpu0 "$LOGS/shares.json"
    local recorded='d["layouts"]["shares"]["recorded"]'
    check "its document has the shares, and no IDs" '[[["seven", 42.5, 56], ["five", 30.4, 40], ["three", 18.2, 24]], false]' \
        "$(json "$LOGS/shares.json" "[[[s['partition'], s['active_thread_percentage'], s['sms']] for s in ${recorded}['shares']], 'ids' in $recorded]")"
    check "and a fingerprint: real, $all multiprocessors, 15 chunks of 8" "[false, $all, 15, 8]" \
        "$(json "$LOGS/shares.json" "[${recorded}['fingerprint'][k] for k in ('simulated', 'sms', 'chunk_count', 'chunk_sms')]")"
    check "and no UUID of a GPU" 0 "$(grep -c GPU- "$LOGS/shares.json" || true)"

    ask_replay "$LOGS/shares.json" gpu0 0
    check "it is not replayed where it is in force" 409 "$STATUS"
    without_layout gpu0 0
    check "without the layout a client sees all multiprocessors again" "$all" "$(seen_by seven 'd["devices"][0]["sms"]')"
}

# A daemon of 13.0 has no -S: asked for, it is refused with the version that has it.
static_is_refused() {
    local here
    here=$(mps_binary_version)
    if [ "$here" -ge 13010 ]; then
        say "binary $here has static partitions: that they are refused without them was not tried"
        return 0
    fi
    api PUT /api/v1/daemons/gpu0 '{"gpus": ["0"], "mode": "static"}'
    check "mode static is refused, and the version that it needs is named" '409 true' \
        "$STATUS $(json "$BODY" "'13010 (CUDA 13.1)' in d['detail'] and '$here' in d['detail']")"
}

# ---- its document elsewhere

# What a simulated host of the same binary exports, in $LOGS/simulated.json.
a_simulated_document() {
    local state=$STATE runtime=$RUNTIME manager=$MANAGER_PID
    STATE=$WORK/sim/state RUNTIME=$WORK/sim/run
    mkdir -p "$STATE" "$RUNTIME"
    start_manager "$binary" --sim h200x1@13.0
    wait_for 60 "the simulated daemon is ready" is_ready gpu0
    api PUT /api/v1/layouts/shares "$LAYOUT"
    ask POST /api/v1/layouts/shares/apply '{"daemon": "gpu0"}'
    check "a simulated host applies the same layout" succeeded "$(json "$BODY" 'd["state"]')"
    export_layout gpu0 "$LOGS/simulated.json"
    without_layout gpu0 0
    no_tenant demo
    no_tenant batch
    gone gpu0
    end_process "$MANAGER_PID" 15
    STATE=$state RUNTIME=$runtime MANAGER_PID=$manager
}

a_document_of_a_simulated_host() {
    local pointers force
    a_simulated_document
    for force in '' force; do
        # shellcheck disable=SC2086 # no word where it is empty
        ask_replay "$LOGS/simulated.json" gpu0 0 $force
        pointers=$(json "$BODY" '"/document/layouts/shares/recorded/fingerprint/simulated" in [e["pointer"] for e in d.get("errors", [])]')
        check "a document of a simulated host is refused here${force:+, also with force}" "409 true" "$STATUS $pointers"
    done
    check "and no layout came of it" null "$(daemon_now gpu0 'd["spec"].get("layout")')"
}

# The same document with other multiprocessors on record, with a new checksum (docs/layouts.md) since it would be refused as changed.
a_difference() {
    python3 - "$LOGS/shares.json" >"$LOGS/other.json" <<'PY'
import hashlib, json, sys
document = json.load(open(sys.argv[1]))

def digest():
    # An export has its fields in the order that counts.
    bare = {field: value for field, value in document.items() if field != "checksum"}
    text = json.dumps(bare, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

assert digest() == document["checksum"], "the checksum is made in another way"
document["layouts"]["shares"]["recorded"]["shares"][1]["sms"] = 48
document["checksum"] = digest()
print(json.dumps(document))
PY
    replayed "$LOGS/other.json" "$1" "$2"
    check "a record of other multiprocessors is a difference, and both numbers are named" '["differs", true]' \
        "$(json "$BODY" '[d["verdict"], "partition five has 40 SMs, and 48 are recorded" in d["error"]]')"
    check "its operation failed, and the daemon has no layout, as before" "failed null" \
        "$(json "$LOGS/operation.json" 'd["state"]') $(daemon_now "$1" 'd["spec"].get("layout")')"
    wait_for 30 "daemon $1 is ready after it" is_ready "$1"
}

a_replay() {
    local daemon=gpu0 gpu=0 where="on the same GPU, taken out before"
    if [ "$(nvidia-smi --list-gpus | wc -l)" -ge 2 ]; then
        daemon=gpu1 gpu=1 where="on the second GPU"
        no_tenants
        owned gpu1 '{"gpus": ["1"]}'
        three_tenants gpu1
    fi
    a_difference "$daemon" "$gpu"
    replayed "$LOGS/shares.json" "$daemon" "$gpu"
    check "the document is replayed $where" '[succeeded, same]' \
        "[$(json "$LOGS/operation.json" 'd["state"]'), $(json "$BODY" 'd["verdict"]')]"
    check "and the record has what clients saw" '[["seven", 56], ["five", 40], ["three", 24]]' \
        "$(json "$BODY" '[[s["partition"], s["sms"]] for s in d["seen"]]')"
    wait_for 30 "daemon $daemon is ready with it" is_ready "$daemon"
    three_see "replayed $where"
    check "layout assert exits 0 where it was replayed" 0 "$(layout_asserts "$daemon" "$gpu")"
    without_layout "$daemon" "$gpu"
    no_tenants
    gone "$daemon"
    if [ "$daemon" != gpu0 ]; then gone gpu0; fi
}

a_layout() {
    start_manager "$binary"
    a_percentage_layout
    a_document_of_a_simulated_host
    a_replay
}
