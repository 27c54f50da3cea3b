#!/usr/bin/env bash
# The manifests of deploy/kubernetes and the example of docs/integrate/kubernetes.md: `tests/kubernetes/run.sh [BINARY]`. What Kubernetes itself
# defines is valid for 1.26 and 1.37, the PodMonitor by tests/fixtures/kubernetes; a simulated host takes the ConfigMap's host file; and the
# places that its plugin then offers are those that the pods request. Needs Python with venv, and the registry of Python packages.
set -euo pipefail
hosts=(A)
. "$(dirname "${BASH_SOURCE[0]}")/../host/begin.sh"
. tests/clients/installed.sh
export MPS_MANAGER_RUNTIME_DIR=$HOST_A_RUNTIME_DIR

python=$(python_with tests/kubernetes/requirements.txt)
scratch=$(mktemp -d)
plugin=
leave() {
    if [ -n "$plugin" ]; then kill "$plugin" 2>/dev/null || true; fi
    rm -rf -- "$scratch"
}
trap leave EXIT
# valid FILE...: by each version; a kind without a schema is no error of the validator, but one here.
valid() {
    local version
    for version in 1.26 1.37; do
        "$python/bin/kubernetes-validate" --strict --kubernetes-version "$version" "$@" >"$scratch/said" 2>&1 || { cat "$scratch/said"; return 1; }
        ! grep -v '^INFO .* passed for ' "$scratch/said" || return 1
    done
}

example docs/integrate/kubernetes.md "host file" >"$scratch/documented.yaml"
example docs/integrate/kubernetes.md pod >"$scratch/pod.yaml"
"$python/bin/python" tests/kubernetes/manifests.py "$scratch"
say "ok: the PodMonitor has its schema, kustomization.yaml names all files, and the others are as they name each other"
mapfile -t manifests < <(find deploy/kubernetes -name '*.yaml' ! -name kustomization.yaml ! -name podmonitor.yaml | sort)
valid "${manifests[@]}" "$scratch/pod.yaml" || fail "a manifest is invalid"
say "ok: ${#manifests[@]} manifests and the documented pod are valid for Kubernetes 1.26 and 1.37"
sed 's/hostPID: true/hostPid: true/' deploy/kubernetes/daemonset.yaml >"$scratch/wrong.yaml"
if valid "$scratch/wrong.yaml" >/dev/null; then fail "a field that does not exist is taken for valid"; fi

status=0
"$binary" diff -f "$scratch/host.yaml" || status=$?
[ "$status" = 1 ] || fail "the host does not take the ConfigMap's host file as a change: exit code $status"
"$binary" apply --yes -f "$scratch/documented.yaml"
"$binary" diff -f "$scratch/host.yaml" || fail "the documented host file makes another host than the ConfigMap's"
say "ok: the host takes the ConfigMap's host file, which is the documented one"

mkdir "$scratch/plugins"
"$binary" kubelet-plugin --plugin-dir "$scratch/plugins" --pod-resources "$scratch/plugins/none" >"$scratch/plugin.log" 2>&1 &
plugin=$!
end=$((SECONDS + 30))
until grep -q 'this node offers' "$scratch/plugin.log"; do
    [ "$SECONDS" -lt "$end" ] || fail "the plugin offers nothing: $(cat "$scratch/plugin.log")"
    sleep 0.1
done
class=$(sed -n 's/.*this node offers \([^:]*\): 8 places on 2 devices.*/\1/p' "$scratch/plugin.log")
for pod in deploy/kubernetes/example.yaml "$scratch/pod.yaml"; do
    grep -q "mps-manager.dev/$class: 1\$" "$pod" || fail "$pod does not request what is offered, 8 places of $class"
done
say "ok: the plugin offers what the pods request, mps-manager.dev/$class"
say "all passed in $SECONDS s"
