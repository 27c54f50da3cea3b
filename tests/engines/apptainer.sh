#!/usr/bin/env bash
# Containers of Apptainer as clients of a tenant, run by a user without rights in the environment of `env --format apptainer`, also by the example of
# docs/integrate/apptainer.md as it stands: `ENGINES_ROOT=DIR tests/engines/apptainer.sh [BINARY]`, with a root directory that has Apptainer (chroot.sh
# makes one). The image sets other variables of CUDA, and is a directory or a SIF file.
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

home=$work/home
mkdir "$home"
chown 1000:1000 "$home"
# as_user COMMAND...: without rights, with the variables of this shell.
as_user() { "$in_root" setpriv --reuid 1000 --regid 1000 --clear-groups env HOME="$home" "$@"; }
# apptainer ARGUMENT...: in the environment of the tenant, as it is printed.
apptainer() (
    eval "$(mps env web --format apptainer 2>/dev/null)"
    as_user apptainer --silent "$@"
)
client=(/usr/bin/mps-manager sim client --json)

python3 tests/engines/image.py "$work/image.tar" image "$binary" "$(dirname "$binary")/simulated-mps" \
    CUDA_VISIBLE_DEVICES=7 CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps CUDA_DEVICE_ORDER=PCI_BUS_ID
apptainer build --sandbox "$home/directory" "docker-archive:$work/image.tar"
apptainer build "$home/packed.sif" "docker-archive:$work/image.tar"
rm "$work/image.tar"
say "ok: $(as_user apptainer --version) has made a directory and a SIF file of an image that sets variables of CUDA"

is_client "$(apptainer exec "$home/directory" "${client[@]}")"
say "ok: apptainer exec starts a client with its SMs and its limit"
is_client "$(apptainer exec "$home/packed.sif" "${client[@]}")"
is_client "$(apptainer run "$home/packed.sif" "${client[@]}")"
say "ok: of a SIF file too, also by apptainer run"
for options in --contain --cleanenv --containall --nv "--bind /usr/share:/mnt" --writable-tmpfs --fakeroot --pid --ipc; do
    # One word for each.
    # shellcheck disable=SC2086
    is_client "$(apptainer exec $options "$home/directory" "${client[@]}")"
    say "ok: with $options"
done

directory=$(mps env web --format json | field mount)
# What binds the site, the user, and a shell that was another tenant's: a directory that is gone would end each start.
bound() { apptainer exec --contain "$home/directory" /bin/sh -c "/bin/cat /mnt/beside && $*"; }
mkdir "$work/beside"
echo beside >"$work/beside/beside"
is_client "$(APPTAINER_BINDPATH="$work/beside:/mnt" bound "${client[@]}")"
is_client "$(APPTAINER_BIND="${directory%/*}/gone:${directory%/*}/gone:ro,$work/beside:/mnt" bound "${client[@]}")"
is_client "$(SINGULARITY_BIND="$work/beside:/mnt" bound "${client[@]}")"
say "ok: beside what is bound already, and without what another tenant had"
# A silent start also says that the two names agree.
said=$(eval "$(mps env web --format apptainer 2>/dev/null)" && as_user apptainer exec "$home/directory" /bin/env 2>&1 >/dev/null)
[ -z "$said" ] || fail "Apptainer complains of the variables: $said"
# The documented command; in the place of its image there is the directory.
ln -s directory "$home/image.sif"
example docs/integrate/apptainer.md run >"$work/example.sh"
documented() (
    mps-manager() { mps "$@"; }
    apptainer() { as_user apptainer --silent "$@"; }
    cd "$home"
    # shellcheck disable=SC1091 # made above
    . "$work/example.sh"
)
is_client "$(documented 2>/dev/null)"
say "ok: the documented command starts a client, and Apptainer complains of nothing"
# What APPTAINERENV_ is for: the image's own variables win over those of the shell, and lead outside MPS.
seen=$(eval "$(mps env web)" && APPTAINER_BIND="$directory:$directory:ro,$world" as_user apptainer --silent exec "$home/directory" "${client[@]}" || true)
[ "$(field mps <<<"$seen")" = false ] || fail "the shell's own variables are enough: $seen"
say "ok: the variables of the shell alone are not enough"
# The link of the tenant's name, mounted where it leads to.
link=$HOST_A_RUNTIME_DIR/by-name/web
[ "$(readlink "$link")" = "$directory" ] || fail "$link does not lead to $directory"
is_client "$(eval "$(mps env web --format apptainer 2>/dev/null)" &&
    APPTAINER_BIND="$link:$(readlink "$link"):ro,$world" SINGULARITY_BIND='' as_user apptainer --silent exec --contain "$home/directory" "${client[@]}" 2>&1)"
say "ok: the directory can be bound by its tenant's name"
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
as_user apptainer --silent instance stop loop
until_true "a stopped instance leaves no client" nobody_is_client
wait
say "all passed in $SECONDS s"
