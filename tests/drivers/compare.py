"""The control program of an older driver and the simulated one of its version, reply by reply: `compare.py DIRECTORY VERSION...`.

Both get the same calls in the same order: options without a daemon, starts, every command with good and bad arguments, long lines, another
user, a server that ends at once, quits, and a start after a kill. Compared are standard output and error, the exit code, the files of the pipe
directory with their kinds and modes, and the lines of control.log. Where they differ the program wins. What is left out is named in SKIPPED.
"""

import argparse
import contextlib
import difflib
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from host import BINARY, eventually, of_process

CUDA = {"470": "11.4", "535": "12.2", "550": "12.4", "555": "12.5"}
TIMEOUT_S = 30
GPU = "GPU-00000000-0000-0000-0000-000000000000"
SKIPPED = [
    "the sentence of --help, which is NVIDIA's (its heading is compared)",
    "what a server or a client says: without a GPU every server ends as it starts",
]

SETTINGS = [
    *(f"set_default_active_thread_percentage {value}" for value in ["33.3", "0", "nan", "50%", "100.1", "-5", "x", "", "1e1", "99.95"]),
    *(f"set_default_device_pinned_mem_limit {value}" for value in [
        "0 4G", "0 512K", "0 1T", "0 1.5G", "0 4096M", "0 4097M", "0 8192", "0 -1", "0 G", "0", "1 2G", f"{GPU} 4G", "x 1G", "0 0"]),
    *(f"set_default_client_priority {value}" for value in ["1", "2", "-1", "x", "", "0"]),
]
GETTERS = ["get_default_active_thread_percentage", "get_default_device_pinned_mem_limit 0", "get_default_device_pinned_mem_limit 1",
           f"get_default_device_pinned_mem_limit {GPU}", "get_default_device_pinned_mem_limit", "get_default_client_priority"]
QUERIES = [
    "get_server_list", "get_server_status", "get_server_status 1", "ps", "ps -p 1", "ps -p", "get_client_list", "get_client_list 1",
    "get_device_client_list", "get_device_client_list 1", "device_query", "device_query --csv", "device_query 1", "lspart",
    "sm_partition add GPU-0 1", "sm_partition", "get_active_thread_percentage 1", "get_active_thread_percentage",
    "set_active_thread_percentage 1 50", "get_device_pinned_mem_limit 1 0", "set_device_pinned_mem_limit 1 0 1G", "terminate_client 1 2",
    "shutdown_server 1", "shutdown_server 1 -f", "", "zz zz", "GET_SERVER_LIST", " get_server_list", "get_server_list 1 2 3",
]


def pids():
    return [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]


class Side:
    """One of the two programs, with a directory of its own."""

    def __init__(self, name, program, path, world=None):
        self.name, self.program = name, program
        self.home = Path(tempfile.mkdtemp(prefix="md-", dir="/tmp"))
        self.home.chmod(0o755)
        for folder in ["p", "l"]:
            (self.home / folder).mkdir()
        self.environment = {"PATH": f"{path}:/usr/bin:/bin", "CUDA_MPS_PIPE_DIRECTORY": f"{self.home}/p",
                            "CUDA_MPS_LOG_DIRECTORY": f"{self.home}/l"}
        if world:
            self.environment["MPS_SIM_WORLD"] = str(world)

    def call(self, *options, lines=None, uid=None):
        """Output, error and exit code of a call; the daemon may keep the pipes open, so they are files."""
        user = ["setpriv", f"--reuid={uid}", "--clear-groups"] if uid else []
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            text = "".join(f"{line}\n" for line in lines or []).encode()
            done = subprocess.run([*user, self.program, *options], input=text, stdout=out, stderr=err, env=self.environment,
                                  timeout=TIMEOUT_S, cwd="/")
            self.settle()
            texts = []
            for file in [out, err]:
                file.seek(0)
                texts.append(self.same(file.read().decode(errors="replace")))
        return [*texts, f"rc {done.returncode}"]

    def settle(self):
        """Waits until the daemon has logged the end of the session."""
        def closed():
            lines = self.log()
            # A daemon that quits logs no end.
            begun = [at for at, line in enumerate(lines) if "Starting control daemon" in line]
            lines = lines[begun[-1] if begun else 0:]
            opened = sum(line.endswith("NEW UI") for line in lines)
            return opened == sum(line.endswith("UI closed") for line in lines) or not self.daemon()

        eventually("the session is closed", closed)

    def daemon(self):
        ours = f"CUDA_MPS_PIPE_DIRECTORY={self.home}/p".encode()
        found = (pid for pid in pids() if b"-d" in of_process(pid, "cmdline") and ours in of_process(pid, "environ"))
        return next(found, None)

    def log(self):
        path = self.home / "l/control.log"
        return path.read_text(errors="replace").splitlines() if path.exists() else []

    def await_rest(self):
        """Waits until nothing is logged any more: a session may be answered before it is logged."""
        eventually("the log is at rest", lambda: (before := self.log()) and not time.sleep(0.5) and before == self.log())

    def same(self, text):
        """Text without what differs from run to run."""
        text = re.sub(r"x{50,}", lambda run: f"<{len(run[0])} x>", text.replace(str(self.home), "DIR"))
        return re.sub(r"(?<=erver )\d{2,}|(?<=UID )\d{2,}", "N", text)

    def files(self):
        kinds = {stat.S_IFSOCK: "socket", stat.S_IFIFO: "fifo", stat.S_IFREG: "file"}
        found = [(path.name, path.lstat().st_mode) for path in sorted((self.home / "p").iterdir())]
        return [f"{kinds.get(stat.S_IFMT(mode))} {stat.S_IMODE(mode):o} {name}" for name, mode in found]

    def close(self):
        if pid := self.daemon():
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.home, ignore_errors=True)


def play(side):
    """Everything that is compared, as pairs of what was done and what came of it."""
    def options(*words, uid=None):
        out, err, code = side.call(*words, uid=uid)
        # The sentence of the help is indented.
        heading = [line for line in out.splitlines() if line and not line.startswith("  ")]
        yield f"{words} of user {uid or 0} without a daemon", (heading, err, code)

    for words in [["-v"], ["--version"], ["--help"], ["-h"], ["-S"], ["-x"], ["-d", "-S"], ["--nothing"], [],
                  ["-M"], ["--multiuser-server"], ["-d", "-M"], ["-d", "--multiuser-server"], ["--daemon"], ["--forground"], ["-q"]]:
        yield from options(*words)
    yield from options("-d", "-multiuser-server", uid=65534)
    yield "-d -multiuser-server", side.call("-d", "-multiuser-server")
    if side.daemon():
        eventually("the daemon answers", lambda: side.call(lines=["get_server_list"])[2] == "rc 0")
        yield "quit of it", side.call(lines=["quit"])[:2]
        eventually("the daemon ends", lambda: not side.daemon())
    yield "quit without a daemon", side.call(lines=["quit"])
    yield "files", side.files()
    yield "-d", side.call("-d")
    eventually("the daemon answers", lambda: side.call(lines=["get_server_list"])[2] == "rc 0")
    yield "files of a daemon", side.files()
    yield "-d again", side.call("-d")
    eventually("its first session is logged", lambda: any(line.endswith("UI closed") for line in side.log()))
    side.await_rest()
    (side.home / "l/control.log").write_text("")
    for query in QUERIES:
        yield query, side.call(lines=[query])
    for setting in SETTINGS:
        yield setting, side.call(lines=[setting])
        for getter in GETTERS:
            yield f"{setting}; {getter}", side.call(lines=[getter])
    yield "all of one session", side.call(lines=[*QUERIES, *SETTINGS, *GETTERS])
    for length in [3000, 4095, 4096, 4100, 9000]:
        yield f"a line of {length} bytes", side.call(lines=["x" * length])
        yield f"after a line of {length} bytes", side.call(lines=["get_server_list"])
    for line in ["get_server_list", "set_default_active_thread_percentage 10", "set_default_device_pinned_mem_limit 0 1G",
                 "set_default_client_priority 1", "set_active_thread_percentage 1 10", "terminate_client 1 2", "shutdown_server 1", "quit", *GETTERS]:
        yield f"user 65534: {line}", side.call(lines=[line], uid=65534)
    for arguments in ["", "-uid", "-uid x"]:
        yield f"start_server {arguments}", side.call(lines=[f"start_server {arguments}"])
    for _ in range(3):
        ended = sum("exited with status" in line for line in side.log())
        # Whether the server ends before or after the reply is a race, which the exit code tells.
        yield "start_server -uid 0", side.call(lines=["start_server -uid 0"])[:2]
        eventually("the server ends", lambda: sum("exited with status" in line for line in side.log()) > ended)
        yield "after the server", side.call(lines=["get_server_list", "ps"])
    side.await_rest()
    # Which of two processes writes first is nobody's promise, so the lines of a server are sorted among themselves.
    lines = [re.sub(r"^\[[-0-9 :.]+ (\w+) +\d+\] ", r"\1: ", side.same(line)) for line in side.log()]
    of_servers = [line for line in lines if "erver N" in line or "Shm" in line or "new server" in line]
    yield "control.log", [re.sub(r"new server \d+", "new server N", line) for line in lines if line not in of_servers]
    yield "control.log of servers", sorted(re.sub(r"new server \d+", "new server N", line) for line in of_servers)
    yield "quit -t 2", side.call(lines=["quit -t 2"])[:2]
    eventually("the daemon ends", lambda: not side.daemon())
    yield "files after a quit", side.files()
    yield "-d after a quit", side.call("-d")
    eventually("the daemon answers", lambda: side.call(lines=["get_server_list"])[2] == "rc 0")
    os.kill(side.daemon(), signal.SIGKILL)
    eventually("the daemon is dead", lambda: not side.daemon())
    yield "files after a kill", side.files()
    yield "a command after a kill", side.call(lines=["get_server_list"])
    yield "-d after a kill", side.call("-d")
    eventually("the daemon answers", lambda: side.call(lines=["get_server_list"])[2] == "rc 0")
    yield "quit", side.call(lines=["quit"])[:2]


def world(home, profile):
    """A simulated host, made by a manager that serves for a moment and leaves nothing running."""
    command = [BINARY, "serve", "--sim", profile, "--state-dir", home / "state", "--runtime-dir", home / "run", "--listen", "127.0.0.1:0"]
    with open(home / "manager.log", "wb") as log:
        manager = subprocess.Popen(command, stdout=log, stderr=log)
    found = home / "run/sim"
    eventually("the world is made", lambda: (found / "world.json").exists() and (found / "bin/nvidia-cuda-mps-server").exists())
    manager.kill()
    manager.wait()

    def none_runs():
        running = [pid for pid in pids() if f"MPS_SIM_WORLD={found}".encode() in of_process(pid, "environ")]
        for pid in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not running

    eventually("its daemons have ended", none_runs)
    return found


def compare(directory, version):
    real = Path(directory).resolve() / version / "usr"
    with tempfile.TemporaryDirectory(prefix="mw-", dir="/tmp") as scratch:
        Path(scratch).chmod(0o755)
        simulated = world(Path(scratch), f"h200x1@{CUDA[version]}")
        (simulated / "no_cuda").touch()
        sides = [
            Side("program", real / "bin/nvidia-cuda-mps-control", f"{real}/bin:{real}/sbin"),
            Side("simulator", simulated / "bin/nvidia-cuda-mps-control", simulated / "bin", simulated),
        ]
        try:
            played = [list(play(side)) for side in sides]
        finally:
            for side in sides:
                side.close()
    compared = differences = 0
    for (what, real_reply), (same_what, simulated_reply) in zip(*played, strict=True):
        assert what == same_what
        compared += 1
        if real_reply != simulated_reply:
            differences += 1
            print(f"{version}: {what!r} (-program, +simulator)")
            lines = [[line for part in reply for line in str(part).split("\n")] for reply in [real_reply, simulated_reply]]
            for line in difflib.unified_diff(*lines, n=0, lineterm=""):
                if not line.startswith(("---", "+++", "@@")):
                    print(f"    {line}")
    return compared, differences


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", help="where fetch.sh has unpacked the programs")
    parser.add_argument("versions", nargs="+", choices=CUDA)
    arguments = parser.parse_args()
    failed = False
    for version in arguments.versions:
        compared, differences = compare(arguments.directory, version)
        print(f"drivers: {version} against @{CUDA[version]}: {compared} replies compared, {differences} differ")
        failed |= differences > 0
    print("drivers: not compared: " + "; ".join(SKIPPED))
    sys.exit(failed)


if __name__ == "__main__":
    main()
