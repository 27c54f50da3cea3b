#!/usr/bin/env bash
# The programs of Kubernetes, from Debian's source: `tests/kubernetes/cluster/build.sh CACHE` builds kubelet, kube-apiserver,
# kube-controller-manager, kube-scheduler and kubectl, which takes about a quarter of an hour on two cores, and prints their directory. They are
# built once for each version of the source and of the patches beside this. Needs Debian 12 with golang-go, rsync, jq, make, patch and dpkg-dev.
set -euo pipefail
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
cache=$(realpath -m "$1")
programs=(kubelet kube-apiserver kube-controller-manager kube-scheduler kubectl)
. "$here/../../host/own_apt.sh"

patches=$(cat "$here"/*.patch | sha256sum | cut -c 1-12)
mkdir -p "$cache"
own_apt "$cache/apt" "deb-src bookworm main" >"$cache/apt.log" 2>&1 || { cat "$cache/apt.log" >&2; exit 1; }
version=$(apt-cache showsrc kubernetes | sed -n 's/^Version: //p' | tail -n 1)
built=$cache/$version-$patches
if [ -e "$built/complete" ]; then
    echo "$built"
    exit
fi

begin=$SECONDS
tree=$cache/build
rm -rf -- "$tree"
mkdir -p "$tree/src/k8s.io" "$built"
cd "$tree/src/k8s.io"
apt-get source -q "kubernetes=$version" >"$cache/source.log" 2>&1 || { cat "$cache/source.log" >&2; exit 1; }
mv kubernetes-*/ kubernetes
cd kubernetes
for patch in "$here"/*.patch; do patch -p1 <"$patch" >"$cache/patch.log" || { cat "$cache/patch.log" >&2; exit 1; }; done
# What `git describe` would say.
release=v$(sed 's/.*really//; s/[-+].*//' <<<"$version")
cat >version <<END
KUBE_GIT_COMMIT=debian
KUBE_GIT_TREE_STATE=archive
KUBE_GIT_VERSION=$release
KUBE_GIT_MAJOR=$(cut -c 2- <<<"$release" | cut -d . -f 1)
KUBE_GIT_MINOR=$(cut -d . -f 2 <<<"$release")
END
# The API server's OpenAPI code is generated, which its makefile does.
env -u GOROOT -u GOFLAGS HOME="$tree" GOPATH="$tree" CGO_ENABLED=0 KUBE_GIT_VERSION_FILE="$PWD/version" \
    make WHAT="${programs[*]/#/cmd/}" >"$cache/build.log" 2>&1 || { tail -n 40 "$cache/build.log" >&2; exit 1; }
for program in "${programs[@]}"; do install -m 755 "_output/bin/$program" "$built/$program"; done
cd "$cache"
chmod -R u+w "$tree"
rm -rf -- "$tree"
echo "$release, built in $((SECONDS - begin)) s" >"$built/complete"
echo "$built"
