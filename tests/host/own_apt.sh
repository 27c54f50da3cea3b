# Packages of Debian that are got without a change to this machine: source this.

# own_apt DIRECTORY LINE...: from then on apt has lists of its own in DIRECTORY, of the machine's mirror. A line is `TYPE SUITE COMPONENT`, as
# `deb-src bookworm main`.
own_apt() {
    local apt=$1 mirror line type suite component
    shift
    mkdir -p "$apt/lists/partial" "$apt/cache"
    mirror=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' 'Component: main' |
        awk '$2 !~ /-(security|updates|backports)$/ && !found { found = $1 } END { print found }')
    [ -n "$mirror" ] || { echo "apt has no source of packages: apt-get update" >&2; return 1; }
    for line in "$@"; do
        read -r type suite component <<<"$line"
        echo "$type [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite $component"
    done >"$apt/sources.list"
    cat >"$apt/apt.conf" <<END
Dir::Etc::SourceList "$apt/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "$apt/lists";
Dir::Cache "$apt/cache";
END
    export APT_CONFIG=$apt/apt.conf
    apt-get update -q
}
