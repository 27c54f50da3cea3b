# What the tests of real engines have in common: source this after tests/host/begin.sh with one host, A. It needs root. ENGINES_ROOT is a root directory
# whose engines are run (chroot.sh makes one); without it they are this machine's. `work` is a directory for the test, which removes it.

repository=$PWD
export MPS_MANAGER_RUNTIME_DIR=$HOST_A_RUNTIME_DIR
# What plays the GPUs is a directory, which takes the place of device files: a container needs it as a further mount.
world=$HOST_A_RUNTIME_DIR/sim
# In the simulated host's own directory: what is bound into a container has a short path there, and ENGINES_ROOT sees it.
work=$(mktemp -d "${HOST_A_RUNTIME_DIR%/run}/e.XXXX")
chmod 755 "$work"

in_root=$repository/tests/engines/in_root.sh

. "$repository/tests/host/waiting.sh"
mps() { "$binary" "$@"; }
# is_client OUTPUT [GIB]: what a client says in it is the tenant's: 32 SMs of 132, and no more memory than its limit.
is_client() {
    local seen limit=${2:-2}
    seen=$(grep -o '{"pid".*' <<<"$1") || fail "no client answers: $1"
    [ "$(field mps <<<"$seen")" = true ] || fail "it runs outside MPS: $seen"
    [ "$(field sms <<<"$seen")" = 32 ] || fail "it does not see its 32 SMs: $seen"
    [ "$(field memory_free <<<"$seen")" -lt $((limit << 30)) ] || fail "it sees more memory than its limit of $limit GiB: $seen"
}
nobody_is_client() { [ "$(mps client list -o json)" = "[]" ]; }
is_ready() { mps daemon get gpu0 -o json | grep -q '"phase": *"ready"'; }
# The status of a host whose tenants are not all ready yet is an error too.
pid_of_daemon() { { mps status || true; } | awk '$1 == "gpu0" { print $3 }'; }
# survives WHAT GIB COMMAND...: the daemon is restarted by order and then killed; after each, the command starts a client.
survives() {
    local what=$1 limit=$2 before
    shift 2
    mps daemon restart gpu0 >/dev/null
    until_true "the MPS daemon was restarted" is_ready
    is_client "$("$@" 2>&1)" "$limit"
    say "ok: the next process $what is a client of the new one"
    before=$(pid_of_daemon)
    kill -KILL "$before"
    is_another() { local now; now=$(pid_of_daemon) && [ "$now" != "$before" ] && is_ready; }
    until_true "the MPS daemon was killed, and started again" is_another
    is_client "$("$@" 2>&1)" "$limit"
    say "ok: and the next process $what again"
}

# Two tenants of one user, so that only more than their user tells them apart.
mps apply --yes --prune -f - <<<$'version: v1\ndaemons: {gpu0: {gpus: [0]}, gpu1: {gpus: [1]}}' >/dev/null
for tenant in other web; do
    mps tenant ensure "$tenant" --daemon gpu0 --memory-limit 2G --sms 32 --uid 1000 --ttl 1h >/dev/null
done
