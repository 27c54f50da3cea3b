#!/usr/bin/env bash
# Builds the Debian and the RPM package of a build that is there: `deploy/package.sh [release|debug] [OPTION OF CARGO-DEB...]`.
# Needs cargo-deb, cargo-generate-rpm, cargo-about, and dpkg-dev for the libraries that the program needs. Everything is made below the build
# directory: what goes into the packages in package/, the packages in debian/ and generate-rpm/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
profile=${1:-release}
shift || true
target=${CARGO_TARGET_DIR:-target}
binary=$target/$profile/mps-manager
[ -x "$binary" ] || {
    echo "package: $binary is missing: build it first" >&2
    exit 2
}
staged=target/package
rm -rf "$staged"
mkdir -p "$staged/man" "$staged/completions"

# The unit of the package: the program where packages put it, and the configuration file.
sed -e '1s|.*|# The unit of the package; `systemctl edit mps-manager` changes it.|' \
    -e 's|/usr/local/bin/mps-manager serve|/usr/bin/mps-manager serve --config /etc/mps-manager/config.toml|' \
    -e 's|/usr/local/share/doc|/usr/share/doc|' deploy/mps-manager.service >"$staged/mps-manager.service"

"$binary" man "$staged/man"
# Reproducible, and as Debian wants manual pages.
gzip -9 --no-name --force "$staged"/man/*

for shell in bash zsh fish; do
    "$binary" completions "$shell" >"$staged/completions/mps-manager.$shell"
done
install -m 0755 "$binary" "$staged/mps-manager"
strip "$staged/mps-manager"
deploy/third-party.sh "$staged/THIRD-PARTY.txt"

# cargo-deb looks for the libraries of what lies in the folder of a profile.
cargo deb --no-build --no-strip "$@"
cargo generate-rpm --auto-req disabled --payload-compress gzip
ls -l "$target"/debian/*.deb target/generate-rpm/*.rpm
