# Simulated hosts for a script: source this. Each has a directory of its own below $scratch, and is gone when the script ends.
#
# start_host NAME [LINE...] serves one, with further lines for its configuration, and exports HOST_<NAME>_URL, _TOKEN and
# _RUNTIME_DIR once its daemons are ready.

. tests/clients/installed.sh

scratch=$(mktemp -d)
# Programs of every user have to reach the pipe directories in it: a tenant whose user cannot is refused.
chmod 755 "$scratch"
managers=()

# Daemons outlive their manager by design: what belongs to a host of ours has its directory in its environment.
end_hosts() {
    local status=$? pid environment
    for pid in "${managers[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
    for pid in "${managers[@]}"; do wait "$pid" 2>/dev/null || true; done
    for environment in $(grep -lzs -e "^MPS_SIM_WORLD=$scratch/" -e "^CUDA_MPS_PIPE_DIRECTORY=$scratch/" /proc/[0-9]*/environ); do
        pid=${environment#/proc/}
        kill -KILL "${pid%/environ}" 2>/dev/null || true
    done
    rm -rf -- "$scratch"
    return "$status"
}
trap end_hosts EXIT

start_host() {
    local name=$1 home=$scratch/$1 address end=$((SECONDS + 60))
    shift
    mkdir -p "$home"
    {
        echo 'listen = "127.0.0.1:0"'
        echo 'sim = "h200x2"'
        echo "state_dir = \"$home/state\""
        echo "runtime_dir = \"$home/run\""
        printf '%s\n' "$@"
    } >"$home/config.toml"
    "$binary" serve --config "$home/config.toml" >"$home/log" 2>&1 &
    managers+=($!)
    until address=$(sed -n 's/.*SIMULATED host.* address=\(127\.0\.0\.1:[0-9]*\).*/\1/p' "$home/log" 2>/dev/null) && [ -n "$address" ] &&
        curl -sf -o /dev/null --max-time 5 "http://$address/readyz"; do
        if [ "$SECONDS" -ge "$end" ]; then
            cat "$home/log" >&2
            echo "host $name did not become ready" >&2
            return 1
        fi
        sleep 0.2
    done
    export "HOST_${name}_URL=http://$address" "HOST_${name}_RUNTIME_DIR=$home/run"
    export "HOST_${name}_TOKEN=$(cat "$home/state/admin.token")"
}

# typescript_with: the same with the settings of tsc.
typescript_with() {
    local folder
    folder=$(node_with tests/clients/typescript)
    rm -rf -- "$folder/built" "$folder"/*.ts
    cp -- tests/clients/typescript/tsconfig.json "$folder/"
    echo "$folder"
}
