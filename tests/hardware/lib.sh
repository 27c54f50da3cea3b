# The frame of the hardware scenarios: processes, the API, waiting, results. Sourced, never run.
#
# What always holds: every process that a scenario starts is remembered by its PID and ended by its PID; every
# daemon lives in a pipe directory of this run's own, never in /tmp/nvidia-mps; no setting of a GPU (compute mode,
# MIG, persistence, clocks) is changed, and the end of the run checks that none has.
#
# Needs bash, curl, python3 (for JSON), the NVIDIA driver with its MPS binaries, and nvcc once, for the client.

# Short, since the path of a daemon's socket may hold 107 bytes.
WORK=$(mktemp -d /tmp/mpsm.XXXXXX)
STATE=$WORK/state
RUNTIME=$WORK/run
LOGS=$WORK/logs
CLIENT=$WORK/client
mkdir -p "$STATE" "$RUNTIME" "$LOGS"
# Clients of other users have to reach the daemons' directories.
chmod 0755 "$WORK" "$RUNTIME"

MANAGER_PID=
CLIENT_PIDS=()
RESULTS=()
FAILED=0

say() { printf '%s %s\n' "$(date +%T)" "$*" >&2; }

die() {
    say "cannot go on: $*"
    exit 2
}

# ---- results

# check WHAT EXPECTED ACTUAL: one row of the table; a failed check does not end the run.
check() {
    local what=$1 expected=$2 actual=$3 verdict=PASS
    if [ "$expected" != "$actual" ]; then
        verdict=FAIL
        FAILED=$((FAILED + 1))
    fi
    RESULTS+=("$verdict|$what|$actual|$expected")
    say "$verdict: $what: $actual$([ "$verdict" = PASS ] || printf ' (expected %s)' "$expected")"
}

# check_that WHAT COMMAND...: the row passes if the command succeeds; its output is shown as what was seen.
check_that() {
    local what=$1 seen verdict=yes
    shift
    seen=$("$@" 2>&1) || verdict=no
    check "$what" "yes" "$verdict"
    if [ -n "$seen" ]; then say "  $seen"; fi
}

print_table() {
    local row verdict what actual expected
    printf '\n%-5s %-72s %s\n' '' check seen
    for row in "${RESULTS[@]}"; do
        IFS='|' read -r verdict what actual expected <<<"$row"
        printf '%-5s %-72s %s' "$verdict" "$what" "$actual"
        if [ "$verdict" = FAIL ]; then printf '  (expected %s)' "$expected"; fi
        printf '\n'
    done
    printf '%d checks, %d failed\n' "${#RESULTS[@]}" "$FAILED"
}

# record FILE COMMIT NAME: puts this run, newest first, under the file's marker line, in place of the last one of that name.
record() {
    local file=$1 commit=$2 name=$3 section=$WORK/section row verdict what actual expected
    {
        printf '## %s: %s\n\n' "$(date -u +%F)" "$name"
        printf '| commit | driver | MPS binary | GPUs | checks | failed |\n|---|---|---|---|---|---|\n'
        printf '| %s | %s | %s | %s | %d | %d |\n\n' "$commit" "$(driver_version)" "$(mps_binary_version)" \
            "$(gpu_names)" "${#RESULTS[@]}" "$FAILED"
        printf '| | check | seen |\n|---|---|---|\n'
        for row in "${RESULTS[@]}"; do
            IFS='|' read -r verdict what actual expected <<<"$row"
            if [ "$verdict" = FAIL ]; then actual="$actual (expected $expected)"; fi
            printf '| %s | %s | %s |\n' "$verdict" "$what" "$actual"
        done
    } >"$section"
    grep -qx '<!-- runs -->' "$file" || die "$file has no line <!-- runs -->"
    awk -v section="$section" -v name="$name" '
        /^## / { old = substr($0, index($0, ": ") + 2) == name }
        old { next }
        { print }
        $0 == "<!-- runs -->" { print ""; while ((getline line < section) > 0) print line }
    ' "$file" >"$file.new"
    mv -- "$file.new" "$file"
}

driver_version() { nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1; }
gpu_names() { nvidia-smi --query-gpu=name --format=csv,noheader | sort | uniq -c | awk '{n=$1; $1=""; printf "%s%d ×%s", s, n, $0; s=", "}'; }
# Whether the first GPU is of the model on which the multiprocessors of a percentage were measured (src/domain/percentage.rs).
percentages_are_measured() { nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1 | grep -qF H200; }
gpu_settings() { nvidia-smi --query-gpu=uuid,compute_mode,mig.mode.current,persistence_mode --format=csv,noheader; }
mps_binary_version() { nvidia-cuda-mps-control -v | sed -n 's/.*Binary version: *\([0-9]*\).*/\1/p'; }

# ---- waiting

# wait_for SECONDS WHAT COMMAND...: until the command succeeds; dies at the deadline, since what follows needs it.
wait_for() {
    local deadline=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        if [ "$SECONDS" -ge "$deadline" ]; then
            RESULTS+=("FAIL|$what|not in time|in time")
            FAILED=$((FAILED + 1))
            die "waited in vain: $what"
        fi
        sleep 0.05
    done
}

# milliseconds_until SECONDS WHAT COMMAND...: prints how long wait_for waited.
milliseconds_until() {
    local before
    before=$(date +%s%N)
    wait_for "$@"
    printf '%d' $((($(date +%s%N) - before) / 1000000))
}

# Gone, or dead and not yet collected by its parent.
is_gone() { [ ! -e "/proc/$1" ] || grep -q '^State:[[:space:]]*Z' "/proc/$1/status" 2>/dev/null; }

# ---- JSON

# json FILE EXPRESSION: the Python expression over the document `d`, strings bare, everything else as JSON.
json() {
    python3 - "$1" "$2" <<'PY'
import json, sys
d = json.load(open(sys.argv[1]))
value = eval(sys.argv[2], {"d": d, "len": len, "sorted": sorted, "any": any, "all": all, "sum": sum})
print(value if isinstance(value, str) else json.dumps(value))
PY
}

# ---- the client

compile_client() {
    local source=$1
    command -v nvcc >/dev/null || die "nvcc is needed to compile $source"
    nvcc -arch=sm_90 -O2 -o "$CLIENT" "$source" -lcuda || die "the client does not compile"
}

# clean COMMAND...: with nothing of the caller's environment, so that no CUDA_* leaks into a check.
# In the background use "${CLEAN[@]}": a function there runs in a subshell, and $! would be the subshell's PID.
CLEAN=(env -i PATH="$PATH" HOME="$WORK" LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}")
clean() { "${CLEAN[@]}" "$@"; }

# start_client NAME [VAR=VALUE...] -- ARGUMENT...: in the background; CLIENT_PID is its PID, its output goes to
# $LOGS/NAME.out and .err.
start_client() {
    local name=$1 variables=()
    shift
    while [ "$1" != -- ]; do
        variables+=("$1")
        shift
    done
    shift
    "${CLEAN[@]}" "${variables[@]}" "$CLIENT" "$@" >"$LOGS/$name.out" 2>"$LOGS/$name.err" </dev/null &
    CLIENT_PID=$!
    CLIENT_PIDS+=("$CLIENT_PID")
}

# ---- a daemon without the manager

# start_daemon NAME [OPTION...]: a control daemon with its own directories; DAEMON_PIPE is its pipe directory.
start_daemon() {
    local root=$WORK/$1
    shift
    mkdir -p "$root/pipe" "$root/log"
    DAEMON_PIPE=$root/pipe
    (cd / && env -i CUDA_MPS_PIPE_DIRECTORY="$DAEMON_PIPE" CUDA_MPS_LOG_DIRECTORY="$root/log" \
        "$(command -v nvidia-cuda-mps-control)" -d "$@")
    wait_for 10 "the daemon in $DAEMON_PIPE answers" daemon_says get_server_list
}

# daemon_says COMMAND: one control command and its answer, with a deadline.
daemon_says() {
    printf '%s\n' "$1" | CUDA_MPS_PIPE_DIRECTORY="$DAEMON_PIPE" timeout 5 nvidia-cuda-mps-control
}

# ---- the manager

# What a manager is started by, if anything; it has to become it.
UNDER=()

# start_manager BINARY [ARGUMENT...]: MANAGER_PID is its PID; returns when it answers.
start_manager() {
    local binary=$1
    shift
    "${CLEAN[@]}" "${UNDER[@]}" "$binary" serve --state-dir "$STATE" --runtime-dir "$RUNTIME" --listen 127.0.0.1:0 "$@" \
        >>"$LOGS/manager.out" 2>>"$LOGS/manager.err" </dev/null &
    MANAGER_PID=$!
    wait_for 30 "the manager answers" manager_answers
}

manager_answers() { curl -sf --max-time 5 --unix-socket "$RUNTIME/api.sock" http://manager/healthz; }

# end_process PID [SECONDS]: SIGTERM, then SIGKILL.
end_process() {
    local pid=$1 timeout=${2:-10} deadline
    is_gone "$pid" && return 0
    kill -TERM "$pid" 2>/dev/null || return 0
    deadline=$((SECONDS + timeout))
    until is_gone "$pid"; do
        if [ "$SECONDS" -ge "$deadline" ]; then
            say "$pid did not end within $timeout s of SIGTERM"
            kill -KILL "$pid" 2>/dev/null || true
            break
        fi
        sleep 0.05
    done
    wait "$pid" 2>/dev/null || true
}

# new_host NAME: the next manager begins with nothing, as on a host of its own; the one before is ended with its clients and daemons.
new_host() {
    end_everything
    CLIENT_PIDS=() MANAGER_PID='' UNDER=()
    STATE=$WORK/$1/state
    RUNTIME=$WORK/$1/run
    mkdir -p "$STATE" "$RUNTIME"
    chmod 0755 "$WORK/$1" "$RUNTIME"
}

# api METHOD PATH [BODY [CURL ARGUMENT...]]: STATUS is the code, the body is in $BODY; failing to get an answer
# at all is STATUS 000.
BODY=$WORK/body
api() {
    local method=$1 path=$2 body=${3-}
    shift $(($# < 3 ? $# : 3))
    local arguments=(-sS --max-time 30 --unix-socket "$RUNTIME/api.sock" -X "$method" -o "$BODY" -w '%{http_code}')
    if [ -r "$STATE/admin.token" ]; then arguments+=(-H "Authorization: Bearer $(cat "$STATE/admin.token")"); fi
    if [ -n "$body" ]; then arguments+=(-H 'Content-Type: application/json' --data-binary "$body"); fi
    : >"$BODY"
    STATUS=$(curl "${arguments[@]}" "$@" "http://manager$path") || true
}

# api_is PATH EXPRESSION: for wait_for; whether the expression over the GET's body is true.
api_is() {
    api GET "$1"
    [ "$STATUS" = 200 ] && [ "$(json "$BODY" "$2")" = true ]
}

# ---- the end

# PIDs of this run's control daemons and servers: those whose environment names a pipe directory below $WORK.
# A process that has just died has no environment to read; nothing is lost by passing it over.
our_daemons() {
    local process
    for process in /proc/[0-9]*; do
        case $(cat "$process/comm" 2>/dev/null) in nvidia-cuda-mps*) ;; *) continue ;; esac
        if { tr '\0' '\n' <"$process/environ"; } 2>/dev/null | grep -q "^CUDA_MPS_PIPE_DIRECTORY=$WORK/"; then
            is_gone "${process#/proc/}" || printf '%s\n' "${process#/proc/}"
        fi
    done
}

# Ends everything that this run started, clients first: a daemon with clients would wait for them. Servers are
# ended, too: one that hangs outlives its daemon.
end_everything() {
    local pid
    for pid in "${CLIENT_PIDS[@]}"; do end_process "$pid" 5; done
    if [ -n "$MANAGER_PID" ]; then end_process "$MANAGER_PID" 15; fi
    for pid in $(our_daemons); do end_process "$pid" 5; done
    if [ -n "$(our_daemons)" ]; then say "still alive: $(our_daemons | tr '\n' ' ')"; fi
}
