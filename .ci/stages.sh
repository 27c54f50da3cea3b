# Stages with their seconds, for .ci/run and .ci/nightly: source this with `set -euo pipefail`. Sets `scratch`, a directory that is gone at the end.

scratch=$(mktemp -d)
: >"$scratch/seconds"

# stage NAME COMMAND [ARGUMENT...]
# The command stands alone on its line: in a condition or a pipeline, a function would lose `set -e`.
stage() {
    local name=$1 started=$SECONDS
    shift
    echo "$name" >"$scratch/running.$BASHPID"
    echo "ci: $name"
    "$@"
    rm -f "$scratch/running.$BASHPID"
    echo "ci: $name: ok, $((SECONDS - started)) s"
    printf '%6d  %s\n' "$((SECONDS - started))" "$name" >>"$scratch/seconds"
}

# left_out NAME WHY: a stage that this run does without.
left_out() { echo "  $1: $2" >>"$scratch/left-out"; }

# What runs side by side, each a process group of its own.
lanes=()

# side_by_side FUNCTION...: functions of stages, each after another's, all at once; what each prints comes in one piece, and who failed comes last.
side_by_side() {
    local lane failed=()
    set -m
    for lane in "$@"; do
        (set -e; "$lane") >"$scratch/$lane.log" 2>&1 </dev/null &
        lanes+=("$!")
    done
    set +m
    local number
    for number in "${!lanes[@]}"; do
        lane=${@:number+1:1}
        if wait "${lanes[number]}"; then cat -- "$scratch/$lane.log"; else failed+=("$lane"); fi
    done
    lanes=()
    for lane in "${failed[@]}"; do cat -- "$scratch/$lane.log"; done
    [ "${#failed[@]}" -eq 0 ]
}

# Prints how it ended; for a trap on EXIT.
report() {
    local status=$?
    set +e
    for lane in "${lanes[@]}"; do kill -- "-$lane" 2>/dev/null; done
    if [ -s "$scratch/seconds" ]; then
        echo "ci: seconds of each stage"
        cat -- "$scratch/seconds"
        printf '%6d  in all\n' "$SECONDS"
    fi
    if [ -s "$scratch/left-out" ]; then
        echo "ci: left out"
        cat -- "$scratch/left-out"
    fi
    if [ "$status" -ne 0 ]; then
        cat -- "$scratch"/running.* 2>/dev/null | sed 's/^/ci: FAILED in stage: /' >&2
    fi
    rm -rf -- "$scratch"
}
trap report EXIT
