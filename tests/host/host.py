"""A simulated host with its own manager and directory, which are removed when it is closed.

As a command, `host.py [--config LINE]... NAME... -- COMMAND...` runs a command beside such hosts: it gives it HOST_<NAME>_URL, _TOKEN and
_RUNTIME_DIR of each, whose daemons are ready, and ends with its exit code. The program is that of MPS_MANAGER_BINARY.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

BINARY = os.environ["MPS_MANAGER_BINARY"]
TIMEOUT_S = 30


def eventually(what, check, timeout=TIMEOUT_S, pause=0.05):
    """The first true result of `check`, which is called until there is one; `what` is named if there is none in time."""
    end = time.monotonic() + timeout
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < end, f"never happened: {what}"
        time.sleep(pause)


def of_process(pid, file):
    """The words of a process's command line or environment; none if it is gone or dead."""
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes().split(b"\0")
    except OSError:
        return []


class Refused(Exception):
    """A request that the API refused, with its problem document."""

    def __init__(self, status, problem):
        super().__init__(f"{status}: {problem}")
        self.status, self.problem = status, problem


class Api:
    """The API of a manager, for the holder of a token."""

    def __init__(self, url, token):
        self.url, self.token = url, token

    def status_of(self, path):
        try:
            return urllib.request.urlopen(self.url + path, timeout=TIMEOUT_S).status
        except urllib.error.HTTPError as error:
            return error.code

    def api(self, method, path, body=None, token=None, **headers):
        """The JSON body of a response; a refused request raises `Refused`."""
        headers = {"Authorization": f"Bearer {token or self.token}", "Content-Type": "application/json", **headers}
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.url + "/api/v1" + path, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                text = response.read()
                return json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            raise Refused(error.code, json.loads(error.read())) from None

    def done(self, operation):
        """Waits until an operation has succeeded, and returns it."""
        def ended():
            now = self.api("GET", f"/operations/{operation['id']}")
            assert now["state"] not in ("failed", "cancelled"), now
            return now if now["state"] == "succeeded" else None

        return eventually("the operation succeeds", ended)


class Host(Api):
    def __init__(self, profile="h200x2", lines=()):
        # Short, since the path of a socket is limited; and readable for all, since programs of every user open the pipe directories in it.
        self.home = Path(tempfile.mkdtemp(prefix="mb-", dir="/tmp"))
        self.home.chmod(0o755)
        self.clients, self.manager = [], None
        config = [f'sim = "{profile}"', f'state_dir = "{self.home}/state"', f'runtime_dir = "{self.home}/run"', *lines]
        (self.home / "config.toml").write_text("\n".join(['listen = "127.0.0.1:0"', *config]) + "\n")
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA_", "MPS_MANAGER_"))}
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self):
        log = open(self.home / "log", "ab")
        begin = (self.home / "log").stat().st_size
        command = [BINARY, "serve", "--config", self.home / "config.toml"]
        self.manager = subprocess.Popen(command, stdout=log, stderr=log, env=self.environment)
        log.close()

        def address():
            assert self.manager.poll() is None, (self.home / "log").read_text()
            logged = (self.home / "log").read_bytes()[begin:].decode()
            return re.search(r"SIMULATED host.* address=(127\.0\.0\.1:\d+)", logged)

        self.url = "http://" + eventually("the manager serves", address).group(1)
        self.token = (self.home / "state/admin.token").read_text().strip()
        eventually("all daemons are ready", lambda: self.status_of("/readyz") == 200)

    def verified(self, tenant):
        """Verifies a tenant, and returns the result of the verification."""
        since = self.api("POST", f"/tenants/{tenant}/verify")["running_since"]

        def finished():
            last = self.api("GET", f"/tenants/{tenant}")["status"]["verification"]["last"]
            return last if last and last["requested_at"] >= since else None

        return eventually("the verification ends", finished)

    def login_url(self):
        return self.api("POST", "/login-urls")["url"]

    def token_for(self, grant, name=None):
        """A new token; without a name it gets one that no valid token has."""
        name = name or f"user-{uuid.uuid4().hex[:8]}"
        return self.api("POST", "/tokens", {"name": name, "grant": grant})["secret"]

    def client(self, tenant, *options):
        """Starts a process of a tenant and waits until MPS lists it; `options` are those of the simulated client."""
        command = [BINARY, "run", "--runtime-dir", self.home / "run", "--tenant", tenant, "--", BINARY, "sim", "client"]
        process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=self.environment)
        self.clients.append(process)

        def connected():
            assert process.poll() is None, "the client has exited"
            listed = self.api("GET", f"/clients?tenant={tenant}&fresh=true")["items"]
            return any(client["pid"] == process.pid for client in listed)

        eventually("the client is connected", connected)
        return process

    def program(self, name, pipe, log, *options, stdin=None, **environment):
        """Runs a program of the simulated host without the manager."""
        world = self.home / "run/sim"
        env = {"MPS_SIM_WORLD": str(world), "CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(log), **environment}
        return subprocess.run([world / "bin" / name, *options], input=stdin, env=env, check=True, capture_output=True, text=True,
                              timeout=TIMEOUT_S).stdout

    def control(self, pipe, line):
        """The reply of the control daemon of a pipe directory to a line that the manager did not send."""
        end = "zz-another-caller"

        def send():
            # A daemon has one session at a time: retried until the whole line was accepted.
            try:
                reply = self.program("nvidia-cuda-mps-control", pipe, self.home, stdin=f"{line}\n{end}\n")
            except subprocess.CalledProcessError:
                return None
            return (reply,) if end in reply else None

        return eventually("the daemon accepts the line", send)[0]

    def foreign(self, name, gpus):
        """Starts a control daemon without the manager; returns the directory that has its pipe and log directories."""
        home = self.home / "f" / name
        for folder in ["pipe", "log"]:
            (home / folder).mkdir(parents=True)
        self.program("nvidia-cuda-mps-control", home / "pipe", home / "log", "-d", CUDA_VISIBLE_DEVICES=gpus)
        return home

    def stop(self, how=signal.SIGTERM):
        self.manager.send_signal(how)
        self.manager.wait(TIMEOUT_S)

    def close(self):
        for process in self.clients:
            process.kill()
            process.wait()
        if self.manager and self.manager.poll() is None:
            self.manager.terminate()
            self.manager.wait()
        self.kill_processes()
        shutil.rmtree(self.home, ignore_errors=True)

    def kill_processes(self):
        """Kills daemons, which outlive their manager by design, and clients: all have the directory of this host in their environment."""
        ours = (f"MPS_SIM_WORLD={self.home}/".encode(), f"CUDA_MPS_PIPE_DIRECTORY={self.home}/".encode())
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                environment = (folder / "environ").read_bytes()
                if any(mark in environment for mark in ours):
                    os.kill(int(folder.name), signal.SIGKILL)
            except OSError:
                continue


def end_in_order(child):
    """Ends a process that may have something to put in order first."""
    child.terminate()
    try:
        child.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", metavar="LINE", action="append", default=[], help="a further line of each host's configuration")
    parser.add_argument("names", metavar="NAME", nargs="+")
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    command = sys.argv[end + 1:]
    options = parser.parse_args(sys.argv[1:end])
    if not command:
        parser.error("give a command after --")
    # The hosts are ended by whatever ends this.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    environment = dict(os.environ)
    with contextlib.ExitStack() as hosts:
        for name in options.names:
            host = Host(lines=options.config)
            hosts.callback(host.close)
            environment |= {f"HOST_{name}_URL": host.url, f"HOST_{name}_TOKEN": host.token, f"HOST_{name}_RUNTIME_DIR": str(host.home / "run")}
        child = subprocess.Popen(command, env=environment)
        hosts.callback(end_in_order, child)
        sys.exit(child.wait())


if __name__ == "__main__":
    main()
