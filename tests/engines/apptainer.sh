#!/usr/bin/env bash
# Containers of Apptainer as clients of a tenant, run by a user without rights: `ENGINES_ROOT=DIR tests/engines/apptainer.sh [BINARY]`, with a root
# directory that has Apptainer (chroot.sh makes one). The image is an archive of Docker's whose variables are wrong, as those of a directory or a SIF file.
set -euo pipefail
hosts=(A)
. "$(dirname "${BASH_SOURCE[0]}")/../host/begin.sh"
. tests/engines/real.sh

# What goes on in the background has the directory of this test in its command line, or in its environment.
rest() { grep -lzF -f - /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null <<<"$work/" | cut -d / -f 3 | sort -u; }
leave() {
    local status=$? pid
    set +e
    for pid in $(rest); do [ "$pid" = "$$" ] || kill -KILL "$pid" 2>/dev/null; done
    rm -rf -- "$work"
    exit "$status"
}
trap leave EXIT

# --- The variables of `env --format apptainer`, until the program prints them. Apptainer sets APPTAINERENV_X as X over what the image says, which wins
# over X itself; the directory is bound beside what the user binds. The last bind is the simulated host's alone: the directory of its GPUs.
apptainer_environment() {
    local variables directory
    variables=$(mps env "$1" --format json | python3 -c 'import json, sys
environment = json.load(sys.stdin)
for name, value in (environment["container"]["defaults"] | environment["variables"]).items(): print(f"{name}={value}")')
    directory=$(mps env "$1" --format json | field mount)
    printf '%s\n' "$variables" | sed 's/^/APPTAINERENV_/'
    printf '%s\n' "$variables" | sed 's/^/SINGULARITYENV_/'
    printf '%s\n' "APPTAINER_BIND=$directory:$directory:ro,$world" "SINGULARITY_BIND=$directory:$directory:ro,$world"
}
# ---

# apptainer ARGUMENT...: as the tenant's user, with the tenant's environment and nothing else of this one's.
home=$work/home
mkdir "$home"
chown 1000:1000 "$home"
mapfile -t environment < <(apptainer_environment web)
bare() { "$in_root" setpriv --reuid 1000 --regid 1000 --clear-groups env -i PATH=/usr/bin:/bin HOME="$home" "$@"; }
apptainer() { bare "${environment[@]}" apptainer --silent "$@"; }
client=(/usr/bin/mps-manager sim client --json)

python3 tests/engines/image.py "$work/image.tar" image "$binary" "$(dirname "$binary")/simulated-mps" \
    CUDA_VISIBLE_DEVICES=7 CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps CUDA_DEVICE_ORDER=PCI_BUS_ID
apptainer build --sandbox "$home/directory" "docker-archive:$work/image.tar"
apptainer build "$home/image.sif" "docker-archive:$work/image.tar"
rm "$work/image.tar"
say "ok: $(bare apptainer --version) has made a directory and a SIF file of an image that sets variables of CUDA"

is_client "$(apptainer exec "$home/directory" "${client[@]}")"
say "ok: apptainer exec starts a client with its SMs and its limit"
is_client "$(apptainer exec "$home/image.sif" "${client[@]}")"
is_client "$(apptainer run "$home/image.sif" "${client[@]}")"
say "ok: of a SIF file too, also by apptainer run"
for options in --contain --cleanenv --containall --nv "--bind /usr/share:/mnt" --writable-tmpfs --fakeroot --pid --ipc; do
    # One word for each.
    # shellcheck disable=SC2086
    is_client "$(apptainer exec $options "$home/directory" "${client[@]}")"
    say "ok: with $options"
done
is_client "$(bare "${environment[@]}" APPTAINER_BINDPATH=/usr/share:/mnt apptainer --silent exec --contain "$home/directory" "${client[@]}")"
say "ok: beside the binds of the site"
# The documented command, in the place of whose image is the directory.
ln -s directory "$home/pytorch.sif"
example docs/integrate/containers.md apptainer >"$work/example.sh"
documented() (
    mps-manager() { mps "$@"; }
    apptainer() { bare "APPTAINER_BIND=$world" apptainer --silent "$@"; }
    cd "$home"
    # shellcheck disable=SC1091 # made above
    . "$work/example.sh"
)
is_client "$(documented)"
say "ok: the documented command starts one too"

# What APPTAINERENV_ is for: the image's own variables win over those of the shell, and lead outside MPS.
variables=()
for variable in "${environment[@]}"; do case $variable in APPTAINERENV_*) variables+=("${variable#APPTAINERENV_}") ;; APPTAINER_BIND=*) variables+=("$variable") ;; esac; done
seen=$(bare "${variables[@]}" apptainer --silent exec "$home/directory" "${client[@]}" || true)
[ "$(field mps <<<"$seen")" = false ] || fail "the shell's own variables are enough: $seen"
say "ok: the variables of the shell alone are not enough"
# A link of the tenant's name to its directory, bound by that name.
directory=$(mps env web --format json | field mount)
ln -s "$directory" "$work/web"
is_client "$(bare "${environment[@]}" "APPTAINER_BIND=$work/web:$work/web:ro,$world" "APPTAINERENV_CUDA_MPS_PIPE_DIRECTORY=$work/web" \
    apptainer --silent exec --contain "$home/directory" "${client[@]}" 2>&1)"
say "ok: a link to the tenant's directory can be bound by its own name"
if apptainer exec --contain "$home/directory" /bin/rm "$directory/control" 2>/dev/null; then fail "a container removed the tenant's socket"; fi
[ -S "$directory/control" ] || fail "the tenant's socket is gone"
say "ok: a container cannot remove the tenant's socket"

# An instance that goes on.
apptainer instance start --contain "$home/directory" loop >/dev/null
inside() { apptainer exec instance://loop "${client[@]}"; }
is_client "$(inside)"
say "ok: what is started in an instance is a client"
survives "of the same instance" 2 inside
apptainer exec instance://loop "${client[@]}" --spin 600 >/dev/null 2>&1 &
listed() { [ "$(mps client list --tenant web -o json | grep -c '"pid"')" = 1 ]; }
until_true "it is listed as the tenant's by its PID on the host" listed
seen=$(mps client list --tenant web -o json)
[ "$(field uid <<<"$seen")" = 1000 ] || fail "it is not listed as its user's: $seen"
# Its user namespace is its own, so that its mounts show nothing.
[ "$(field attributed_by <<<"$seen")" = environment ] || fail "its tenant is not known by its environment: $seen"
kill -KILL "$(field pid <<<"$seen")"
until_true "a killed process leaves no client" nobody_is_client
apptainer exec instance://loop "${client[@]}" --spin 600 >/dev/null 2>&1 &
until_true "another is listed" listed
bare apptainer --silent instance stop loop
until_true "a stopped instance leaves no client" nobody_is_client
wait
say "all passed in $SECONDS s"
