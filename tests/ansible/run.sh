#!/usr/bin/env bash
# The Ansible role on a simulated host: `tests/ansible/run.sh [BINARY]`. ansible-lint has nothing to remark, the documented playbook sets up
# the host as it stands, the second run changes nothing, and a file that the host refuses fails. Needs root, Python with venv, and the
# registry of Python packages.
set -euo pipefail
hosts=(A)
. "$(dirname "${BASH_SOURCE[0]}")/../host/begin.sh"
. tests/clients/installed.sh

python=$(python_with tests/ansible/requirements.txt)
PATH=$python/bin:$PATH
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
mkdir "$scratch/files" "$scratch/bin" "$scratch/home"
cp -r -- deploy/ansible/roles "$scratch/"
cp -- deploy/host-notebooks.yaml "$scratch/files/host.yaml"
# The playbook as it is documented.
example docs/integrate/ansible.md playbook >"$scratch/site.yml"
grep -q 'role: mps_manager' "$scratch/site.yml" || fail "the documented playbook has no role: mps_manager"
cat >"$scratch/inventory.yml" <<END
gpu_hosts:
  hosts:
    localhost:
      ansible_connection: local
      ansible_python_interpreter: $python/bin/python
      ansible_become: false
      mps_manager_binary: $binary
      mps_manager_binary_path: $scratch/bin/mps-manager
      mps_manager_command: $scratch/bin/mps-manager
      mps_manager_host_file_path: $scratch/etc/mps-manager/host.yaml
      mps_manager_environment:
        MPS_MANAGER_RUNTIME_DIR: $HOST_A_RUNTIME_DIR
END
export HOME=$scratch/home ANSIBLE_NOCOLOR=1 ANSIBLE_FORCE_COLOR=0 LC_ALL=C.UTF-8
cd "$scratch"

ansible-lint --offline --strict site.yml roles/mps_manager
say "ok: ansible-lint has nothing to remark"

play() { ansible-playbook -i inventory.yml site.yml "$@"; }
# recap PATTERN: the last line of the last run.
recap() { grep -E "^localhost .*$1" "$scratch/output" >/dev/null; }

play | tee "$scratch/output"
recap 'changed=[1-9].* failed=0' || fail "the first run changed nothing"
"$binary" diff --runtime-dir "$HOST_A_RUNTIME_DIR" --prune -f files/host.yaml || fail "the host is not what the file says"
say "ok: the host is what the file says"
play | tee "$scratch/output"
recap 'changed=0 .* failed=0' || fail "the second run changed something"
say "ok: the second run changes nothing"
play --check | tee "$scratch/output"
recap 'changed=0 .* failed=0' || fail "a run that only checks would change something"
say "ok: a run that only checks changes nothing"
printf 'version: v1\ndaemons:\n  none: {gpus: [7]}\n' >files/host.yaml
if play >"$scratch/output"; then fail "a file that the host refuses was applied"; fi
grep -q 'GPU' "$scratch/output" || fail "the refusal does not name the GPU: $(cat "$scratch/output")"
say "ok: a file that the host refuses fails"
say "all passed in $SECONDS s"
