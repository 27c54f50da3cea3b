#!/bin/sh
# Becomes a command in a mount namespace of its own, so that nothing that it mounts is left anywhere, with an empty /run, so that no containerd of this
# machine is taken for its own: `tests/engines/in_root.sh COMMAND...`. With ENGINES_ROOT, that directory is its root, with this machine's /proc, /sys,
# /dev and /tmp.
set -eu
if [ -z "${IN_ROOT:-}" ]; then
    IN_ROOT=yes exec unshare --mount --propagation private "$0" "$@"
fi
unset IN_ROOT
if [ -z "${ENGINES_ROOT:-}" ]; then
    mount -t tmpfs tmpfs /run
    exec "$@"
fi
folder=$PWD
mount --bind "$ENGINES_ROOT" "$ENGINES_ROOT"
for each in proc sys dev tmp; do mount --rbind "/$each" "$ENGINES_ROOT/$each"; done
mount -t tmpfs tmpfs "$ENGINES_ROOT/run"
# Not by chroot alone, which engines refuse.
cd "$ENGINES_ROOT"
pivot_root . mnt
umount -l /mnt
cd "$folder" 2>/dev/null || cd /
exec env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
