"""Runs a program with what the systemd unit takes away, where no systemd runs: for the hardware scenario.

    unit.py UNIT COMMAND...

Of the unit it applies CapabilityBoundingSet=, RestrictAddressFamilies=, RestrictNamespaces=, LockPersonality=,
SystemCallArchitectures=, LimitNOFILE=, OOMScoreAdjust= and UMask=, by the same kernel interfaces as systemd (prctl(2), seccomp(2)),
and refuses a unit that hardens by anything else: then this has to learn it, or the scenario would prove less than it says.
Needs root, x86-64.
"""

import ctypes
import os
import resource
import struct
import sys

CAPABILITIES = """chown dac_override dac_read_search fowner fsetid kill setgid setuid setpcap linux_immutable net_bind_service
net_broadcast net_admin net_raw ipc_lock ipc_owner sys_module sys_rawio sys_chroot sys_ptrace sys_pacct sys_admin sys_boot sys_nice
sys_resource sys_time sys_tty_config mknod lease audit_write audit_control setfcap mac_override mac_admin syslog wake_alarm
block_suspend audit_read perfmon bpf checkpoint_restore""".split()
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
# What of [Service] is about something else than what the processes may do.
OTHER = set(
    """Type NotifyAccess ExecStart StateDirectory StateDirectoryMode RuntimeDirectory RuntimeDirectoryMode RuntimeDirectoryPreserve
    KillMode Restart RestartSec OOMPolicy TasksMax KeyringMode""".split()
)

PR_CAPBSET_DROP, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 24, 22, 2
ARCH_X86_64, X32_BIT = 0xC000003E, 0x40000000
NUMBER, ARCH, ARGUMENT = 0, 4, 16
ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97
SOCKET, CLONE, PERSONALITY, UNSHARE, SETNS, CLONE3 = 41, 56, 135, 272, 308, 435
# CLONE_NEWTIME shares its bit with the signal of clone(2).
NEW_NAMESPACES, NEW_TIME = 0x7E020000, 0x80


def errno(number):
    return 0x00050000 | number


def load(offset):
    return [(0x20, 0, 0, offset)]


def unless_equal(value, verdict):
    """The verdict for what was loaded, unless it is this value."""
    return [(0x15, 1, 0, value), (0x06, 0, 0, verdict)]


def if_any(bits, verdict):
    return [(0x45, 0, 1, bits), (0x06, 0, 0, verdict)]


def at_call(number, body):
    """What is done at one system call, whose first argument is loaded; all others pass it by."""
    body = load(ARGUMENT) + body + [(0x06, 0, 0, ALLOW)]
    return load(NUMBER) + [(0x15, 0, len(body), number)] + body


def filters(settings):
    program = []
    if settings.pop("SystemCallArchitectures", None) == ["native"]:
        program += load(ARCH) + unless_equal(ARCH_X86_64, KILL) + load(NUMBER) + [(0x35, 0, 1, X32_BIT), (0x06, 0, 0, KILL)]
    if families := settings.pop("RestrictAddressFamilies", None):
        allowed = [FAMILIES[name] for name in " ".join(families).split()]
        body = [(0x15, len(allowed) - place, 0, family) for place, family in enumerate(allowed)]
        program += at_call(SOCKET, body + [(0x06, 0, 0, errno(EAFNOSUPPORT))])
    if settings.pop("RestrictNamespaces", None) == ["yes"]:
        program += at_call(CLONE, if_any(NEW_NAMESPACES, errno(EPERM)))
        program += at_call(UNSHARE, if_any(NEW_NAMESPACES | NEW_TIME, errno(EPERM)))
        program += at_call(SETNS, [(0x06, 0, 0, errno(EPERM))])
        # Its flags lie in memory, where no filter sees them; the C library then uses clone(2).
        program += at_call(CLONE3, [(0x06, 0, 0, errno(ENOSYS))])
    if settings.pop("LockPersonality", None) == ["yes"]:
        program += at_call(PERSONALITY, [(0x15, 1, 0, 0xFFFFFFFF), (0x15, 0, 1, 0), (0x06, 0, 0, ALLOW), (0x06, 0, 0, errno(EPERM))])
    return program + [(0x06, 0, 0, ALLOW)]


def settings_of(unit):
    settings, section = {}, None
    for line in open(unit):
        line = line.strip()
        if line.startswith("["):
            section = line
        elif section == "[Service]" and line and not line.startswith("#"):
            name, _, value = line.partition("=")
            settings.setdefault(name, []).append(value)
    return {name: values for name, values in settings.items() if name not in OTHER}


def prctl(libc, *arguments):
    if libc.prctl(*(ctypes.c_ulong(argument) if isinstance(argument, int) else argument for argument in arguments)) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {arguments[0]}")


def limit_files(number):
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))


def score(number):
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(number))


def main():
    libc = ctypes.CDLL(None, use_errno=True)
    settings = settings_of(sys.argv[1])
    program = filters(settings)
    last = int(open("/proc/sys/kernel/cap_last_cap").read())
    for value in settings.pop("CapabilityBoundingSet", []):
        assert value.startswith("~"), value
        for name in value[1:].split():
            if (number := CAPABILITIES.index(name.removeprefix("CAP_").lower())) <= last:
                prctl(libc, PR_CAPBSET_DROP, number, 0, 0, 0)
    # Given, not taken away: in a container this process may have no right to it, and the scenario does not depend on it.
    for name, give in (("LimitNOFILE", limit_files), ("OOMScoreAdjust", score)):
        for value in settings.pop(name, []):
            try:
                give(int(value))
            except (ValueError, OSError) as error:
                print(f"{name}={value} is left out: {error}", file=sys.stderr)
    (mask,) = settings.pop("UMask", [None])
    if mask:
        os.umask(int(mask, 8))
    if settings:
        sys.exit(f"{sys.argv[1]} has {', '.join(settings)}, which this does not know how to apply")

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]

    # Root with CAP_SYS_ADMIN needs no no_new_privs for it, and neither does systemd.
    instructions = b"".join(struct.pack("<HBBI", *instruction) for instruction in program)
    prctl(libc, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(Program(len(program), instructions)), 0, 0)
    os.execvp(sys.argv[2], sys.argv[2:])


main()
