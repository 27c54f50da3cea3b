"""The manager with the control programs of older drivers, on two simulated GPUs: `manage.py DIRECTORY VERSION...`.

Every server ends at once, since there is no GPU. That has to be said, and everything else of a daemon works: it starts, is adopted, holds its
settings against other programs and other users, is read by many at once, is found again after kills, and ends.
"""

import concurrent.futures
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from compare import CUDA
from host import BINARY, Host, Refused, eventually, of_process

CALLERS, OUTSIDERS = 64, 4
# The back-off after server starts that failed in a row: two at once, then 1, 2, 4 and 8 s.
WATCHED_S, MOST_STARTS = 8, 6


def note(version, text):
    print(f"drivers: {version}: {text}", flush=True)


class OldHost(Host):
    """A host with the programs of an older driver, and mostly with that driver: its daemons never get ready."""

    def __init__(self, programs, version, driver=None):
        self.programs = Path(programs).resolve() / version / "usr"
        super().__init__(f"h200x2@{CUDA[driver or version]}", lines=[f'mps_dir = "{self.programs}/bin"'])

    def start(self):
        with open(self.home / "log", "ab") as log:
            begin = log.tell()
            command = [BINARY, "serve", "--config", self.home / "config.toml"]
            self.manager = subprocess.Popen(command, stdout=log, stderr=log, env=self.environment)

        def address():
            assert self.manager.poll() is None, (self.home / "log").read_text()
            logged = (self.home / "log").read_bytes()[begin:].decode()
            return re.search(r"SIMULATED host.* address=(127\.0\.0\.1:\d+)", logged)

        self.url = "http://" + eventually("the manager serves", address).group(1)
        self.token = (self.home / "state/admin.token").read_text().strip()
        eventually("the daemons are there", lambda: len(self.api("GET", "/daemons")["items"]) == 2)

    def cli(self, *words):
        """What a command prints, and its exit code."""
        done = subprocess.run([BINARY, *words, "--runtime-dir", self.home / "run"], capture_output=True, text=True, timeout=60,
                              env=self.environment | {"COLUMNS": "140"})
        return done.stdout + done.stderr, done.returncode

    def daemon(self, name="gpu0", fresh=True):
        def read():
            try:
                return self.api("GET", f"/daemons/{name}?fresh={str(fresh).lower()}")
            except Refused as refused:
                # A daemon that dies as it is asked has no answer.
                if refused.problem["status"] != 503:
                    raise
                return None

        return eventually("the daemon is read", read)

    def condition(self, kind, name="gpu0"):
        conditions = self.daemon(name, fresh=False)["status"]["conditions"]
        return next((one for one in conditions if one["type"] == kind), None)

    def ask(self, line, pipe=None, uid=None):
        """The reply of the installed program itself, as another program of this host gets it."""
        pipe = pipe or self.daemon(fresh=False)["status"]["pipe_directory"]
        user = ["setpriv", f"--reuid={uid}", "--clear-groups"] if uid else []
        environment = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe)}
        program = [*user, self.programs / "bin/nvidia-cuda-mps-control"]

        def answered():
            done = subprocess.run(program, input=f"{line}\nzz-end\n", env=environment, capture_output=True, text=True, timeout=30)
            before, end, _ = done.stdout.partition('Unknown command "zz-end"')
            return (before.strip(),) if end else None

        return eventually(f"the daemon answers {line!r}", answered)[0]

    def starts(self):
        log = Path(self.daemon(fresh=False)["status"]["log_directory"]) / "control.log"
        return log.read_text(errors="replace").count("Starting new server")


def settings(effective):
    """The default limit in bytes, percentage and priority that were read of a daemon."""
    return (effective["default_memory_limits"][0]["bytes"], effective["default_active_thread_percentage"], effective["default_priority"])


def capabilities(host, version):
    has = {one["name"]: one["available"] for one in host.api("GET", "/host")["capabilities"]}
    newer = version != "535"
    expected = {"static_partitions": False, "mlopart": False, "multi_user": version == "555", "server_status": newer, "device_query": False, "guarded_defaults": newer}
    assert has == expected, has
    text, _ = host.cli("host", "get")
    assert "Guarded defaults" in text and "since CUDA 13.0" in text, text
    kept = host.home / "run/control-program.json"
    assert kept.exists() and not (host.home / "run/control-program").exists()
    try:
        host.api("PUT", "/daemons/gpu1", {"gpus": ["1"], "mode": "static"})
        raise AssertionError("a static daemon was taken")
    except Refused as refused:
        assert "CUDA 13.1" in refused.problem["detail"], refused
    several_users(host, version)
    doctor, _ = host.cli("doctor", "--config", str(host.home / "config.toml"))
    assert f"CUDA {CUDA[version]}" in doctor, doctor
    assert ("AnyUserMaySetDefaults" in str(host.daemon()["status"]["conditions"])) != newer
    note(version, "its capabilities are learnt, listed and used to refuse")


def several_users(host, version):
    """A daemon for several users: refused where the control program has none, and else started as it wants that."""
    spec = {"gpus": ["1"], "multi_user": True}
    if version != "555":
        try:
            host.api("PUT", "/daemons/gpu1", spec)
            raise AssertionError("a daemon for several users was taken")
        except Refused as refused:
            assert "several users at once need CUDA 12.5" in refused.problem["detail"], refused
        return
    before = host.api("GET", "/daemons/gpu1")["spec"]

    def started(is_so):
        pid = host.daemon("gpu1")["status"].get("pid")
        return pid and (b"-multiuser-server" in of_process(pid, "cmdline")) == is_so and pid

    host.api("PUT", "/daemons/gpu1", spec)
    pid = eventually("it is started for several users", lambda: started(True))
    # What runs is recognised as what is wanted: nothing starts it again.
    time.sleep(2)
    assert started(True) == pid
    host.api("PUT", "/daemons/gpu1", before)
    eventually("it is as before", lambda: started(False))


def failing_server(host, version):
    ready = eventually("it is said that the server ends", lambda: (
        found := host.condition("Ready")) and found["reason"] == "ServerExits" and found)
    assert re.search(r'"Server \d+ exited with status 1"', ready["message"]), ready
    before = host.starts()
    time.sleep(WATCHED_S)
    started = host.starts() - before
    assert started <= MOST_STARTS, f"{started} servers in {WATCHED_S} s"
    text, code = host.cli("status")
    assert code == 1 and "exited with status 1" in text, text
    opened = {one["daemon"] for one in host.api("GET", "/incidents?state=open&kind=no_server")["items"]}
    assert "gpu0" in opened, opened
    note(version, f"its servers end at once, which is said with the line of control.log; {started} starts in {WATCHED_S} s")


def every_setting(host, version):
    host.api("PUT", "/daemons/gpu0", {"gpus": ["0"], "users": [65534], "defaults": {"device_memory_limit": "16G"}})
    for tenant in [one["name"] for one in host.api("GET", "/tenants")["items"]]:
        host.api("DELETE", f"/tenants/{tenant}")
    host.api("PUT", "/tenants/big", {"daemon": "gpu0", "uid": 0, "device_memory_limit": "24G", "active_thread_percentage": 40, "priority": "below_normal"})
    host.api("PUT", "/tenants/small", {"daemon": "gpu0", "uid": 0, "device_memory_limit": "2G", "active_thread_percentage": 12.5, "priority": "below_normal"})
    wanted = (24 << 30, 40.0, "below_normal")
    eventually("the settings are read back", lambda: settings(host.daemon()["status"]["effective"]) == wanted)
    replies = [host.ask(f"get_default_{what}") for what in ["device_pinned_mem_limit 0", "active_thread_percentage", "client_priority"]]
    assert replies == ["24G", "40.0", "1"], replies
    note(version, f"limit, percentage and priority are set and read back: {', '.join(replies)}")
    return wanted


def drift(host, version, wanted):
    changes = ["set_default_active_thread_percentage 7", "set_default_device_pinned_mem_limit 0 1G", "set_default_client_priority 0"]
    for change in changes:
        count = host.daemon()["status"]["drift"]["count"]
        host.ask(change)
        eventually(f"{change} is restored", lambda: host.daemon(fresh=False)["status"]["drift"]["count"] > count
                   and settings(host.daemon()["status"]["effective"]) == wanted)
        assert host.condition("SettingsDrifted") and change in host.condition("SettingsDrifted")["message"]
    # A tenant's process has one socket; up to 12.2 any user may set through it.
    pipe = host.daemon(fresh=False)["status"]["pipe_directory"]
    for path in [Path(pipe), *Path(pipe).parents]:
        if str(path).startswith(str(host.home)):
            path.chmod(path.stat().st_mode | 0o011)
    count = host.daemon()["status"]["drift"]["count"]
    reply = host.ask("set_default_active_thread_percentage 9", uid=65534)
    if version == "535":
        assert reply == "9.0", reply
        eventually("another user's change is restored", lambda: host.daemon(fresh=False)["status"]["drift"]["count"] > count
                   and settings(host.daemon()["status"]["effective"]) == wanted)
    else:
        assert reply.startswith("Insufficient privileges"), reply
    note(version, f"{len(changes)} changes by other programs are found and restored; another user's gets {reply[:23]!r}")


def many_callers(host, version, wanted):
    ended, outside = threading.Event(), []
    pipe = host.daemon(fresh=False)["status"]["pipe_directory"]

    def outsider():
        environment = {"CUDA_MPS_PIPE_DIRECTORY": pipe}
        while not ended.is_set():
            done = subprocess.run([host.programs / "bin/nvidia-cuda-mps-control"], input="get_default_active_thread_percentage\n",
                                  env=environment, capture_output=True, text=True, timeout=30)
            outside.append(done.stdout.strip() == "40.0")

    others = [threading.Thread(target=outsider) for _ in range(OUTSIDERS)]
    for other in others:
        other.start()
    try:
        with concurrent.futures.ThreadPoolExecutor(CALLERS) as pool:
            read = list(pool.map(lambda _: settings(host.daemon()["status"]["effective"]), range(CALLERS)))
    finally:
        ended.set()
        for other in others:
            other.join()
    assert read == [wanted] * CALLERS, set(read)
    note(version, f"{CALLERS} callers at once read the right values beside {OUTSIDERS} other programs, of whose {len(outside)} calls {outside.count(False)} failed")


def kills(host, version, wanted):
    pid = host.daemon()["status"]["pid"]
    os.kill(pid, signal.SIGKILL)
    eventually("it is started again", lambda: host.daemon(fresh=False)["status"]["pid"] not in (None, pid))
    eventually("its settings are back", lambda: settings(host.daemon()["status"]["effective"] or {"default_memory_limits": [{"bytes": 0}],
               "default_active_thread_percentage": 0, "default_priority": ""}) == wanted)
    running = host.daemon()["status"]["pid"]
    host.stop(signal.SIGKILL)
    host.start()
    eventually("it is adopted", lambda: host.daemon(fresh=False)["status"]["pid"] == running)
    assert settings(host.daemon()["status"]["effective"]) == wanted
    note(version, "a killed daemon is started again with its settings, and a killed manager finds its daemon")


def foreign(host, version):
    host.api("POST", "/daemons/gpu1/stop")
    eventually("gpu1 is stopped", lambda: host.daemon("gpu1", fresh=False)["status"]["phase"] == "stopped")
    host.done(host.api("DELETE", "/daemons/gpu1"))
    home = host.home / "f"
    for folder in ["p", "l"]:
        (home / folder).mkdir(parents=True)
    gpu = next(gpu["uuid"] for gpu in host.api("GET", "/gpus")["items"] if gpu["index"] == 1)
    environment = {"PATH": f"{host.programs}/bin:{host.programs}/sbin", "MPS_SIM_WORLD": f"{host.home}/run/sim", "CUDA_VISIBLE_DEVICES": gpu,
                   "CUDA_MPS_PIPE_DIRECTORY": f"{home}/p", "CUDA_MPS_LOG_DIRECTORY": f"{home}/l"}
    subprocess.run([host.programs / "bin/nvidia-cuda-mps-control", "-d"], env=environment, check=True, timeout=30,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    listed = eventually("the foreign daemon is found", lambda: [
        one for one in host.api("GET", "/foreign-daemons")["items"] if one.get("pipe_directory") == f"{home}/p"])
    assert host.ask("set_default_device_pinned_mem_limit 0 512M", pipe=home / "p") == ""
    host.api("POST", "/daemons/found/adopt", {"process": listed[0]["id"], "management": "managed"})
    adopted = eventually("it is adopted", lambda: host.daemon("found")["status"]["pid"] == listed[0]["pid"] and host.daemon("found"))
    assert adopted["status"]["effective"]["default_memory_limits"][0]["bytes"] == 512 << 20, adopted["status"]["effective"]
    host.api("POST", "/daemons/found/stop")
    eventually("it is stopped", lambda: host.daemon("found", fresh=False)["status"]["phase"] == "stopped")
    assert of_process(listed[0]["pid"], "cmdline") in ([], [b""]), "it has ended, reaped or not"
    note(version, "a daemon that another program started is found, adopted as it is, and stopped")


def client_that_waits(host, version):
    done = subprocess.run([BINARY, "run", "--runtime-dir", host.home / "run", "--tenant", "demo", "--", "true"], capture_output=True, text=True,
                          timeout=60, env=host.environment)
    text, code = done.stdout + done.stderr, done.returncode
    assert code == 2 and "its server ends before it takes a client" in text, (text, code)
    note(version, f"a client is refused: {text.strip().splitlines()[-1][:160]}")


def ends_with_it(programs, version):
    with tempfile.TemporaryDirectory(prefix="mr-", dir="/tmp") as home:
        world = f"{home}/run/sim"
        command = [BINARY, "serve", "--rm", "--sim", f"h200x2@{CUDA[version]}", "--mps-dir", f"{programs}/{version}/usr/bin",
                   "--state-dir", f"{home}/state", "--runtime-dir", f"{home}/run", "--listen", "127.0.0.1:0"]
        manager = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def running():
            mark = f"MPS_SIM_WORLD={world}".encode()
            return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if mark in of_process(pid, "environ")]

        eventually("both daemons run", lambda: len(running()) >= 2)
        manager.terminate()
        assert manager.wait(60) == 0
        assert not running() and not os.listdir(home), (running(), os.listdir(home))
    note(version, "serve --rm leaves neither a daemon nor a file")


def other_driver(programs, version):
    """Programs of a driver that does not run are found out before any client could wait for them."""
    driver = "535" if version != "535" else "550"
    host = OldHost(programs, version, driver)
    try:
        ready = eventually("the daemon is blocked", lambda: (
            found := host.condition("Ready")) and found["reason"] == "ProgramsOfAnotherDriver" and found)
        assert f"is of driver {version}." in ready["message"] and f"runs driver {driver}." in ready["message"], ready
        assert host.daemon(fresh=False)["status"]["pid"] is None
        doctor, code = host.cli("doctor", "--config", str(host.home / "config.toml"))
        assert code == 1 and f"is of driver {version}." in doctor, (code, doctor)
    finally:
        host.close()
    note(version, f"with driver {driver} its daemons are not started, and status and doctor say why")


def refused(programs, version):
    """A driver that is too old is refused in one sentence, by its version and by what its program lacks."""
    for profile in [f"h200x1@{CUDA[version]}", "h200x1@12.2"]:
        with tempfile.TemporaryDirectory(prefix="mr-", dir="/tmp") as home:
            command = [BINARY, "serve", "--rm", "--sim", profile, "--mps-dir", f"{programs}/{version}/usr/bin", "--state-dir", f"{home}/state",
                       "--runtime-dir", f"{home}/run", "--listen", "127.0.0.1:0"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert done.returncode == 2 and "the oldest that is managed is CUDA 12.0 (driver 525)" in done.stderr, done
    note(version, f"is refused: {done.stderr.strip().splitlines()[-1]}")


def main():
    programs, versions = Path(sys.argv[1]).resolve(), sys.argv[2:]
    for version in versions:
        if version == "470":
            refused(programs, version)
            continue
        host = OldHost(programs, version)
        try:
            capabilities(host, version)
            failing_server(host, version)
            client_that_waits(host, version)
            wanted = every_setting(host, version)
            drift(host, version, wanted)
            many_callers(host, version, wanted)
            kills(host, version, wanted)
            foreign(host, version)
        except BaseException:
            print((host.home / "log").read_text()[-4000:], file=sys.stderr)
            raise
        finally:
            host.close()
        ends_with_it(programs, version)
        other_driver(programs, version)


if __name__ == "__main__":
    main()
