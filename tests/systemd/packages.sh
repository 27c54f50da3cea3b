#!/usr/bin/env bash
# The packages: `tests/systemd/packages.sh [release|debug]`. Builds a .deb and an .rpm of the build that is there, and a .deb of a
# version after it, which has one more migration; installs, upgrades, rolls back, removes and purges them under a real systemd
# (tests/systemd/run.sh), with clients that run; and checks the contents and the scripts of the .rpm. Needs root, cargo-deb,
# cargo-generate-rpm, cargo-about, rpm and dpkg-dev; nothing is skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
profile=${1:-debug}
target=$(realpath "${CARGO_TARGET_DIR:-target}")
say() { echo "packages: $*"; }
fail() {
    say "FAILED: $*" >&2
    exit 1
}

work=$target/packages
rm -rf "$work"
mkdir -p "$work/scenario"
deploy/package.sh "$profile" --deb-version 0.1.0-1 >/dev/null
cp "$target"/debian/mps-manager_0.1.0-1_*.deb "$work/scenario/old.deb"
rpm=$(ls "$target"/generate-rpm/*.rpm)
cp "$rpm" "$work/mps-manager.rpm"
say "$(du -h "$work/scenario/old.deb" | cut -f1) .deb, $(du -h "$rpm" | cut -f1) .rpm"

# The .rpm: what is in it, that its scripts are shell, and that the configuration survives an upgrade.
contents=$(rpm -qpl "$work/mps-manager.rpm")
for file in /usr/bin/mps-manager /usr/lib/systemd/system/mps-manager.service /etc/mps-manager/config.toml \
    /usr/lib/tmpfiles.d/mps-manager.conf /usr/share/bash-completion/completions/mps-manager /usr/share/licenses/mps-manager/LICENSE \
    /usr/share/doc/mps-manager/openapi/v1.json; do
    grep -qx "$file" <<<"$contents" || fail "the .rpm lacks $file"
done
grep -q '^/usr/share/man/man1/mps-manager' <<<"$contents" || fail "the .rpm has no manual page"
[ "$(rpm -qpc "$work/mps-manager.rpm")" = /etc/mps-manager/config.toml ] || fail "the .rpm's configuration is no configuration file"
for script in post preun postun; do
    rpm -qp --qf "%{$(case $script in post) echo POSTIN ;; preun) echo PREUN ;; postun) echo POSTUN ;; esac)}" "$work/mps-manager.rpm" >"$work/$script"
    cmp -s <(sed -e '$a\' "deploy/rpm/$script") <(sed -e '$a\' "$work/$script") || fail "the .rpm's script $script is not that of deploy/rpm"
    sh -n "$work/$script" || fail "the .rpm's script $script is no shell script"
done
# Without systemd none of them fails or does anything.
for call in "post 1" "post 2" "preun 0" "preun 1" "postun 0"; do
    read -r script times <<<"$call"
    unshare --mount sh -c "mount -t tmpfs t /run && sh -e '$work/$script' $times" || fail "$script $times fails on a host without systemd"
done
mkdir "$work/unpacked"
# rpm2cpio exits 1 where the header states no size of the payload, as cargo-generate-rpm's does not.
(cd "$work/unpacked" && { rpm2cpio "$work/mps-manager.rpm" || true; } | cpio -id --quiet)
"$work/unpacked/usr/bin/mps-manager" --version >/dev/null || fail "the program in the .rpm does not run"
"$work/unpacked/usr/bin/mps-manager" config check --config "$work/unpacked/etc/mps-manager/config.toml" >/dev/null || fail "the .rpm's configuration is refused"
# Each package names those whose work is in it.
. tests/host/licences.sh
names_licences "$(cat "$work/unpacked/usr/share/licenses/mps-manager/THIRD-PARTY.txt")" || fail "the .rpm does not name the licences of others"
names_licences "$(dpkg-deb --fsys-tarfile "$work/scenario/old.deb" | tar -xO ./usr/share/doc/mps-manager/THIRD-PARTY.txt)" ||
    fail "the .deb does not name the licences of others"
say "ok: contents and scripts of the .rpm, and licences in both packages"

# The version after this one. It is built beside this one, with the same dependencies.
next=$work/next
mkdir "$next"
git ls-files -z | xargs -0 cp --parents -t "$next"
echo 'CREATE TABLE of_the_next_version (id INTEGER PRIMARY KEY) STRICT;' >"$next/migrations/0002_next.sql"
sed -i '0,/^version = "0.1.0"/s//version = "0.2.0"/' "$next/Cargo.toml"
flags=()
[ "$profile" = debug ] || flags=(--release)
(cd "$next" && SQLX_OFFLINE=true CARGO_TARGET_DIR=$target cargo build --quiet --offline "${flags[@]}")
mkdir -p "$next/target"
ln -s "$target/$profile" "$next/target/$profile"
(cd "$next" && env -u CARGO_TARGET_DIR deploy/package.sh "$profile" --deb-version 0.2.0-1 >/dev/null)
cp "$next"/target/debian/mps-manager_0.2.0-1_*.deb "$work/scenario/new.deb"
# What others find in the build directory is this version again.
cargo build --quiet --locked "${flags[@]}"
install -m 644 tests/systemd/packages_inside.sh "$work/scenario/packages_inside.sh"
say "ok: a package of the next version"

NO_SKIP=1 SCENARIO=$work/scenario/packages_inside.sh tests/systemd/run.sh "$target/$profile/mps-manager"
