#!/usr/bin/env bash
# The example of docs/integrate/fleet.md as it stands but for the addresses, on three simulated hosts: `tests/fleet/run.sh [BINARY]`.
set -euo pipefail
hosts=(A B C)
. "$(dirname "${BASH_SOURCE[0]}")/../host/begin.sh"

scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
mps-manager() { "$binary" "$@"; }
all=$HOST_A_RUNTIME_DIR,$HOST_B_RUNTIME_DIR,$HOST_C_RUNTIME_DIR
example docs/integrate/fleet.md hosts |
    sed -e "s|https://gpu03:8640|$HOST_C_RUNTIME_DIR|" -e "s|gpu01|$HOST_A_RUNTIME_DIR|" -e "s|gpu02|$HOST_B_RUNTIME_DIR|" \
        -e "s|gpu03|$HOST_C_RUNTIME_DIR|" >"$scratch/example.sh"
grep -q "$HOST_C_RUNTIME_DIR" "$scratch/example.sh" || fail "the example names no third host"
cd "$scratch"
tr , '\n' <<<"$all" >hosts.txt
cat >host.yaml <<'END'
version: v1
daemons:
  gpu0: {gpus: [0]}
  gpu1: {gpus: [1], mode: static}
layouts:
  web_prod:
    steps:
      - add: {gpu: 1, partition: web, chunks: 7}
      - add: {gpu: 1, partition: batch, chunks: 5}
END

# The first host is as it should be, and has the layout.
mps-manager apply --yes --prune -f host.yaml --runtime-dir "$HOST_A_RUNTIME_DIR" >/dev/null
mps-manager layout apply web_prod --daemon gpu1 --runtime-dir "$HOST_A_RUNTIME_DIR" >/dev/null
status=0
mps-manager diff -f host.yaml --hosts "$all" || status=$?
[ "$status" = 1 ] || fail "two of three hosts differ, and the exit code is $status"
# In a shell that goes on after the difference.
(set +e; . ./example.sh)
mps-manager diff -f host.yaml --hosts "$all" || fail "a host is not what the file says"
for host in ${all//,/ }; do
    mps-manager layout assert web_prod --daemon gpu1 --runtime-dir "$host" || fail "$host has not the partitions of the layout"
done
say "ok: the documented commands make three hosts the same"
say "all passed in $SECONDS s"
