#!/usr/bin/env bash
# The manager as a unit of a real systemd, on a simulated host: `tests/systemd/run.sh [BINARY]`.
# systemd is booted as process 1 of namespaces of its own, on an overlay of this system's files that is gone afterwards, with
# no unit but those that are needed here. Needs root and the rights to mount; where those are missing it says so and
# exits 0, or with NO_SKIP=1 fails. KEEP_LOG=FILE keeps what the manager logged; UNIFIED=1 gives systemd nothing but cgroup v2, also
# where this system has v1 (then without its controllers). SCENARIO=FILE runs the function `scenario` of that file in place of what
# stands here, with the folder of FILE as /scenario; packages in it bring program and unit.
set -euo pipefail

say() { echo "systemd: $*"; }
skip() {
    [ -z "${NO_SKIP:-}" ] || fail "it would be skipped: $*"
    say "skipped: $*"
    exit 0
}
fail() {
    say "FAILED: $*" >&2
    exit 1
}

# ---------------------------------------------------------------------------------------------------------------------
# Inside: with systemd as process 1.

check() {
    local what=$1
    shift
    "$@" || fail "$what"
    say "ok: $what"
}

# until_true WHAT COMMAND...: waits for it, up to 30 s.
until_true() {
    local what=$1 end=$((SECONDS + 30))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || fail "never happened: $what"
        sleep 0.1
    done
    say "ok: $what"
}

# What `systemd-analyze security` may make of the unit, in tenths; docs/systemd.md says the same.
EXPOSURE=77
contained() { systemd-analyze security --offline=true --threshold="$EXPOSURE" /etc/mps-units/mps-manager.service >/dev/null; }
exposure() { systemd-analyze security --offline=true /etc/mps-units/mps-manager.service | sed -n 's/.*Overall exposure level for .*: //p'; }
verified() { local said; said=$(systemd-analyze verify --man=no /etc/mps-units/mps-manager.service 2>&1) && [ -z "$said" ] || { echo "$said"; return 1; }; }
ready() { mps-manager status >/dev/null 2>&1; }
refuses() { ! "$@"; }
main_pid() { systemctl show --property=MainPID --value mps-manager; }
pid_of() { mps-manager status | awk -v daemon="$1" '$1 == daemon { print $3 }'; }
another_gpu1() { local now; now=$(pid_of gpu1) && [ -d "/proc/$now" ] && [ "$now" != "$1" ]; }
# The control daemon and the server of gpu0, and the client: all that has to stay.
pids() { echo "$(mps-manager status | awk '$1 == "gpu0" { print $3, $6 }') $client"; }
same() { [ "$(pids)" = "$before" ]; }
alive() {
    local pid
    for pid in $before; do
        [ "$(cut -d' ' -f3 "/proc/$pid/stat" 2>/dev/null)" != "" ] && ! grep -q '^State:.*Z' "/proc/$pid/status" || return 1
    done
}
# In every hierarchy: in the scope's cgroup or further up, never in the unit's.
apart() {
    local pid
    for pid in "$@"; do
        grep -q ":/system.slice/mps-manager-gpu[01]-[0-9a-f]*\.scope$" "/proc/$pid/cgroup" || return 1
        ! grep -q "mps-manager.service" "/proc/$pid/cgroup" || return 1
    done
}
in_unit() { grep -q "mps-manager.service" "/proc/$1/cgroup"; }
says() { grep -q "$1" <<<"$(mps-manager status "${@:2}" 2>&1 || true)"; }
adopted() { ready && same; }
another_main() { local now; now=$(main_pid) && [ "$now" != 0 ] && [ "$now" != "$1" ]; }

drop_in() { # NAME LINES: one more piece of the unit; none without LINES
    local file="/run/systemd/system/mps-manager.service.d/$1.conf"
    mkdir -p "${file%/*}"
    if [ $# -gt 1 ]; then printf '[Service]\n%b\n' "$2" >"$file"; else rm -f "$file"; fi
    systemctl daemon-reload
}

inside() {
    local old
    cd /
    until_true "systemd answers" systemctl show --property=Version
    say "systemd $(systemctl show --property=Version --value)"
    check "systemd has nothing to remark on the unit" verified
    check "its exposure is at most $EXPOSURE of 100 ($(exposure))" contained
    drop_in test 'ExecStart=\nExecStart=/usr/local/bin/mps-manager serve --sim h200x2\nStandardOutput=append:/var/log/mps-manager.log\nStandardError=inherit'

    check "the unit starts, which takes its READY=1" systemctl start mps-manager
    check "its status is the manager's word" grep -q '^serving on http' <(systemctl show --property=StatusText --value mps-manager)
    until_true "all daemons are ready" ready
    mps-manager run --tenant demo -- mps-manager sim client --world /run/mps-manager/sim --spin 600 &
    client=$!
    until_true "the client is connected" says 'demo .* 1/1'
    before=$(pids)
    # shellcheck disable=SC2086 # a list of PIDs
    set -- $before
    say "control daemon $1, server $2, client $3"
    check "daemon and server are in a scope of their own, not in the unit's cgroup" apart "$1" "$2"
    check "the manager is in the unit's cgroup" in_unit "$(main_pid)"
    check "status names the scope" says "\"scope\": \"mps-manager-gpu0-" -o json
    check "and has nothing to remark" refuses says "Isolation:"
    check "the limit on tasks does not reach them" [ "$(systemctl show --property=TasksMax --value "$(scope_of "$1")")" = infinity ]

    old=$(main_pid)
    check "the unit restarts" systemctl restart mps-manager
    check "with another manager" another_main "$old"
    until_true "which adopts what runs" adopted

    old=$(main_pid)
    check "every process of the unit is killed" systemctl kill --signal=KILL mps-manager
    until_true "systemd starts another manager" another_main "$old"
    until_true "which adopts what runs" adopted

    check "the unit stops" systemctl stop mps-manager
    check "daemon, server and client run on" alive
    check "and the directory with their sockets is there" [ -S /run/mps-manager/daemons/gpu0/pipe/control ]
    if systemctl set-property --runtime mps-manager MemoryMax=4M && [ -n "$(memory_limit "$1")" ]; then
        say "limits of memory: unit 4M, scope $(memory_limit "$1")"
        systemctl start mps-manager 2>/dev/null || true
        until_true "a manager with 4 MiB, which is half of what it takes, is killed for want of memory" killed_for_memory
        check "daemon, server and client run on" alive
    else
        say "no controller of memory here: not tried what its limit does"
    fi
    systemctl set-property --runtime mps-manager MemoryMax=infinity
    systemctl reset-failed mps-manager 2>/dev/null || true
    check "the unit starts again" systemctl restart mps-manager
    until_true "and adopts what runs" adopted

    old=$(pid_of gpu1)
    check "the scope of gpu1 is stopped" systemctl stop "$(scope_of "$old")"
    until_true "gpu1 is started again" another_gpu1 "$old"
    until_true "and is ready" ready
    check "in another scope" apart "$(pid_of gpu1)"

    # A systemd that makes no scopes: the daemon comes up all the same, and says so.
    mkdir -p /opt/refusing
    printf '#!/bin/sh\n[ "$1" = --version ] && exec /usr/bin/systemd-run --version\necho "Failed to start transient scope unit" >&2\nexit 1\n' >/opt/refusing/systemd-run
    chmod 755 /opt/refusing/systemd-run
    drop_in refusing 'Environment=PATH=/opt/refusing:/usr/local/bin:/usr/bin:/bin'
    systemctl restart mps-manager
    until_true "adopted by a manager that gets no scopes" adopted
    check "an adopted daemon keeps its scope" apart "$1" "$2"
    kill -KILL "$(pid_of gpu1)"
    until_true "gpu1 is started without a scope, and says why" says 'gpu1: .*Failed to start transient scope unit'
    until_true "and is ready" ready
    check "in the unit's cgroup" in_unit "$(pid_of gpu1)"
    check "a stop of the unit leaves that one, too" stop_leaves "$(pid_of gpu1)"
    drop_in refusing
    systemctl start mps-manager
    until_true "adopted" adopted
    check "an adopted daemon without a scope is distinguished from the others" says 'gpu1: it was started without a scope'

    drop_in private 'PrivateTmp=yes'
    systemctl restart mps-manager
    until_true "adopted by a manager with PrivateTmp=" adopted
    check "status says that its mounts are its own" says 'Isolation: .*mount namespace'
    check "daemon, server and client are still the same" same
    systemctl stop mps-manager
    check "daemon, server and client run on" alive

    drop_in private
    touch /run/mps-manager/sim/driver-absent
    check "without a driver the unit starts" systemctl start mps-manager
    check "and says what it waits for" grep -q 'waiting for the NVIDIA driver' <(systemctl show --property=StatusText --value mps-manager)
    check "for 30 s it is neither ready nor started again" waits 30
    check "daemon, server and client run on" alive
    rm /run/mps-manager/sim/driver-absent
    until_true "with the driver it adopts what runs" adopted
    systemctl stop mps-manager
}

# Whether the unit stays active for so many seconds, without a restart and without being ready.
waits() {
    local end=$((SECONDS + $1))
    while [ "$SECONDS" -lt "$end" ]; do
        [ "$(systemctl show --property=ActiveState --value mps-manager)" = active ] || return 1
        [ "$(systemctl show --property=NRestarts --value mps-manager)" = 0 ] || return 1
        ! ready || return 1
        sleep 1
    done
}

scope_of() { grep -o 'mps-manager-gpu[01]-[0-9a-f]*\.scope' "/proc/$1/cgroup" | head -n 1; }
# Nothing else kills it here, and systemd starts it again.
killed_for_memory() { [ "$(systemctl show --property=NRestarts --value mps-manager)" -gt 0 ]; }
stop_leaves() { systemctl stop mps-manager && [ -d "/proc/$1" ] && alive; }
# The limit on memory that holds for a process: of its cgroup in the hierarchy that has the controller.
memory_limit() {
    local path
    path=$(sed -n 's/^[0-9]*:memory://p' "/proc/$1/cgroup")
    if [ -n "$path" ]; then
        cat "/sys/fs/cgroup/memory$path/memory.limit_in_bytes"
    else
        cat "/sys/fs/cgroup$(sed -n 's/^0:://p' "/proc/$1/cgroup")/memory.max" 2>/dev/null || true
    fi
}

# ---------------------------------------------------------------------------------------------------------------------
# Between: makes the system that systemd boots, and becomes it. $1 is a scratch directory, $2 the binary.

mount_cgroups() {
    local into=$1 line
    if [ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ] || [ -n "${UNIFIED:-}" ]; then
        mount -t cgroup2 cgroup2 "$into"
        return
    fi
    mount -t tmpfs -o mode=755 tmpfs "$into"
    while read -r line; do
        mkdir -p "$into/$line"
        case $line in
            unified) mount -t cgroup2 cgroup2 "$into/unified" ;;
            systemd) mount -t cgroup -o none,name=systemd cgroup "$into/systemd" ;;
            *) mount -t cgroup -o "$line" cgroup "$into/$line" ;;
        esac
    done < <(find /sys/fs/cgroup -mindepth 1 -maxdepth 1 -type d -printf '%f\n')
}

become_systemd() {
    local scratch=$1 binary=$2 repository=$3 root=$1/root node
    mount -t tmpfs tmpfs "$scratch"
    mkdir "$scratch/upper" "$scratch/work" "$root"
    mount -t overlay -o "lowerdir=/,upperdir=$scratch/upper,workdir=$scratch/work" overlay "$root"
    for directory in proc sys dev run tmp; do mkdir -p "$root/$directory"; done
    mount -t proc proc "$root/proc"
    mount -t tmpfs -o mode=755 tmpfs "$root/sys"
    mkdir -p "$root/sys/fs/cgroup"
    mount_cgroups "$root/sys/fs/cgroup"
    mount -t tmpfs -o mode=755 tmpfs "$root/run"
    mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
    mount -t tmpfs -o mode=755 tmpfs "$root/dev"
    for node in null zero full random urandom tty; do
        touch "$root/dev/$node"
        mount --bind "/dev/$node" "$root/dev/$node"
    done
    mkdir "$root/dev/pts" "$root/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$root/dev/pts"
    ln -s pts/ptmx "$root/dev/ptmx"
    mount -t tmpfs tmpfs "$root/dev/shm"

    local units=/etc/mps-units:/run/systemd/system.control:/run/systemd/transient:/run/systemd/system
    mkdir -p "$root/etc/mps-units"
    install -D -m 755 "$repository/tests/systemd/run.sh" "$root/usr/local/bin/mps-systemd-test"
    if [ -n "${SCENARIO:-}" ]; then
        cp -r "$(dirname "$SCENARIO")" "$root/scenario"
        mv "$root/scenario/$(basename "$SCENARIO")" "$root/scenario/scenario.sh"
    fi
    if compgen -G "$root/scenario/*.deb" >/dev/null; then
        # Program and unit come with a package, which may start its service.
        rm -rf "$root/usr/local/bin/mps-manager" "$root/etc/mps-manager" "$root/usr/sbin/policy-rc.d"
        ln -s /usr/lib/systemd/system/mps-manager.service "$root/etc/mps-units/mps-manager.service"
        # Where it is enabled, and masked while it is removed.
        units=/etc/systemd/system:$units
    else
        install -D -m 755 "$binary" "$root/usr/local/bin/mps-manager"
        install -m 644 "$repository/deploy/mps-manager.service" "$root/etc/mps-units/mps-manager.service"
    fi
    # A system that has nothing but this, and stops on request.
    for target in basic sysinit shutdown umount final poweroff halt exit; do
        printf '[Unit]\nDescription=%s\nDefaultDependencies=no\n' "$target" >"$root/etc/mps-units/$target.target"
    done
    rm -rf "$root/var/lib/mps-manager"
    cd "$root"
    mkdir -p old
    pivot_root . old
    umount -l /old
    exec env -i container=mps-test PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin SYSTEMD_UNIT_PATH=$units \
        /lib/systemd/systemd --system --unit=basic.target --log-target=console --log-level=warning --show-status=0
}

# ---------------------------------------------------------------------------------------------------------------------
# Outside.

cgroups=()
leave() {
    local status=$? directory
    if [ -n "${boot:-}" ]; then
        kill -KILL "$boot" 2>/dev/null || true
        wait "$boot" 2>/dev/null || true
    fi
    for directory in "${cgroups[@]}"; do
        # Empty once the last of its processes is reaped.
        for _ in 1 2 3 4 5 6 7 8 9 10; do
            find "$directory" -depth -type d -exec rmdir {} \; 2>/dev/null || true
            [ -d "$directory" ] || break
            sleep 0.2
        done
    done
    rmdir "$scratch" 2>/dev/null || true
    exit "$status"
}

outside() {
    local repository binary name hierarchy directory init
    repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
    binary=$(realpath "${1:-$repository/target/debug/mps-manager}")
    [ -x "$binary" ] || fail "$binary is no program: build it, or name one"
    [ "$(id -u)" = 0 ] || skip "this needs root"
    [ -x /lib/systemd/systemd ] || skip "systemd is not installed (it need not run)"
    for tool in unshare nsenter pivot_root systemctl systemd-run; do
        command -v "$tool" >/dev/null || skip "$tool is not installed"
    done
    unshare --mount --pid --fork --cgroup --uts --ipc --net true 2>/dev/null || skip "this kernel, or this container, allows no namespaces"
    scratch=$(mktemp -d)
    trap leave EXIT
    unshare --mount --propagation private bash -c 'mount -t tmpfs t "$1" && mkdir "$1"/{u,w,r} && mount -t overlay -o "lowerdir=/,upperdir=$1/u,workdir=$1/w" o "$1/r"' - "$scratch" 2>/dev/null ||
        skip "this kernel, or this container, allows no overlay of its files"

    name=mps-systemd-test-$$
    if [ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ]; then
        set -- /sys/fs/cgroup
        echo "+memory +pids" >/sys/fs/cgroup/cgroup.subtree_control 2>/dev/null || true
    else
        mapfile -t hierarchies < <(find /sys/fs/cgroup -mindepth 1 -maxdepth 1 -type d)
        set -- "${hierarchies[@]}"
    fi
    for hierarchy in "$@"; do
        directory=$hierarchy/$name
        mkdir "$directory" 2>/dev/null || skip "no cgroup can be made in $hierarchy"
        cgroups+=("$directory")
        if [ -e "$directory/cpuset.cpus" ] && [ -e "$directory/tasks" ]; then
            cat "$hierarchy/cpuset.cpus" >"$directory/cpuset.cpus"
            cat "$hierarchy/cpuset.mems" >"$directory/cpuset.mems"
        fi
    done
    # The namespace of cgroups begins where its first process is: it moves before it is made.
    bash -c 'for directory in "${@:5}"; do echo $$ >"$directory/cgroup.procs" || exit 1; done
        exec unshare --pid --fork --kill-child --mount --propagation private --cgroup --uts --ipc --net \
            bash "$1" become-systemd "$2" "$3" "$4"' - \
        "$repository/tests/systemd/run.sh" "$scratch" "$binary" "$repository" "${cgroups[@]}" </dev/null &
    boot=$!
    for _ in $(seq 100); do
        init=$(cat "/proc/$boot/task/$boot/children" 2>/dev/null) || fail "the namespaces did not come up"
        init=${init%% *}
        [ -n "$init" ] && [ "$(cat "/proc/$init/comm" 2>/dev/null)" = systemd ] && break
        sleep 0.1
    done
    [ "$(cat "/proc/${init:-0}/comm" 2>/dev/null)" = systemd ] || fail "systemd did not boot"
    local status=0
    nsenter --target "$init" --mount --pid --cgroup --uts --ipc --net --root --wd=/ \
        env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin bash /usr/local/bin/mps-systemd-test inside || status=$?
    if [ -z "${SCENARIO:-}" ] && { [ "$status" != 0 ] || [ -n "${KEEP_LOG:-}" ]; }; then
        # Opened again, standard error that is a file would lose its earlier lines.
        if [ -n "${KEEP_LOG:-}" ]; then exec 3>"$KEEP_LOG"; else exec 3>&2; fi
        nsenter --target "$init" --mount --root --wd=/ cat /var/log/mps-manager.log >&3 || true
    fi
    [ "$status" = 0 ] || exit "$status"
    say "all passed in $SECONDS s"
}

case "${1:-}" in
    inside)
        if [ -e /scenario/scenario.sh ]; then
            . /scenario/scenario.sh
            scenario
        else
            inside
        fi
        ;;
    become-systemd) become_systemd "$2" "$3" "$4" ;;
    *) outside "$@" ;;
esac
