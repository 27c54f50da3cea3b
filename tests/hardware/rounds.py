"""Rounds of harm under a manager, counted for the hardware scenario.

    rounds.py deaths SOCKET CLIENT TENANT DAEMON ROUNDS
    rounds.py wedges SOCKET CLIENT TENANT DAEMON ROUNDS

`deaths` kills the control daemon with SIGKILL and starts clients of the tenant all the while, from 20 ms before to 300 ms
after. Each says itself whether it runs under MPS; one that does not is kept alive until the manager has seen it. The daemon is
restarted by request after each round, lest its back-off be measured. `wedges` kills four clients in their first moments while another one connects,
which hangs a server of 13.0 now and then, and waits until the daemon is ready and a fresh client runs. Both leave the
healing to the manager. Prints one JSON object.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

from unix import Unix

what, path, program, tenant, daemon, rounds = sys.argv[1:6] + [int(sys.argv[6])]
READY_WITHIN = 60


def get(address):
    connection = Unix(path, timeout=60)
    connection.request("GET", address)
    response = connection.getresponse()
    body = json.loads(response.read() or b"null")
    connection.close()
    return response.status, body


def post(address):
    connection = Unix(path, timeout=60)
    connection.request("POST", address)
    status = connection.getresponse().status
    connection.close()
    return status


def environment():
    """The tenant's environment as a shell with nothing else would have it; None while it is not handed out."""
    status, body = get(f"/api/v1/tenants/{tenant}/environment")
    if status != 200:
        return None
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return {**kept, **body["variables"]}


class Client:
    """One CUDA client; `under_mps` is its own word, None where CUDA refused it."""

    def __init__(self, variables, *arguments):
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [program, *arguments], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.under_mps, self.error, self.seconds = None, None, None
        self.holds = arguments[0] == "alloc"
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            said = json.loads(line)
            if "devices" in said:
                self.under_mps = all(device["mps"] == 1 for device in said["devices"])
                self.seconds = time.monotonic() - self.started
                if self.under_mps and self.holds:
                    self.process.stdin.close()
            if "error" in said:
                self.error = said["error"]["name"]
        self.process.wait()

    def wait(self, seconds):
        self.reader.join(seconds)
        return not self.reader.is_alive()


def ready_after(since, pid_before=None):
    """Seconds from `since` until the daemon is ready with a server that takes clients; None where it is not in time."""
    while time.monotonic() - since < READY_WITHIN:
        status, body = get(f"/api/v1/daemons/{daemon}")
        now = body["status"] if status == 200 else {}
        if now.get("phase") == "ready" and now.get("pid") not in (None, pid_before):
            return time.monotonic() - since
        time.sleep(0.02)
    return None


def deaths():
    clients, recoveries, failed = [], [], 0
    for _ in range(rounds):
        variables = environment()
        pid = get(f"/api/v1/daemons/{daemon}?fresh=true")[1]["status"]["pid"]
        mine = [Client(variables, "alloc", "16")]
        time.sleep(0.02)
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        for _ in range(8):
            time.sleep(random.uniform(0, 0.05))
            mine.append(Client(variables, "alloc", "16"))
        ready = ready_after(killed, pid)
        failed += ready is None
        recoveries.append(ready or READY_WITHIN)
        for client in mine:
            client.after_death = client.started - killed
            deadline = time.monotonic() + 60
            # One outside MPS says so and holds its memory.
            while not client.wait(0.01) and client.under_mps is not False:
                if time.monotonic() > deadline:
                    client.process.kill()
                    client.error = "never answered"
                    break
        clients += mine
        post(f"/api/v1/daemons/{daemon}/restart?grace_s=1")
        ready_after(time.monotonic(), get(f"/api/v1/daemons/{daemon}")[1]["status"]["pid"])
    slipped = [client for client in clients if client.under_mps is False]
    if slipped:
        # A GPU's processes are read every 8 s.
        time.sleep(20)
    seen = [process for gpu in get("/api/v1/gpus")[1]["items"] for process in gpu["processes"]]
    reported = {process["pid"] for process in seen if process["kind"] == "bypass"}
    for client in slipped:
        client.process.stdin.close()
        client.wait(10)
    errors = {}
    for client in clients:
        if client.under_mps is None:
            errors[client.error or "died"] = errors.get(client.error or "died", 0) + 1
    return {
        "rounds": rounds,
        "clients": len(clients),
        "under_mps": sum(client.under_mps is True for client in clients),
        "refused": errors,
        "slipped": len(slipped),
        "slipped_started_after_death_ms": sorted(round(1000 * c.after_death, 1) for c in slipped),
        "slipped_and_reported": sum(client.process.pid in reported for client in slipped),
        "not_ready_in_time": failed,
        "recovery_ms": percentiles(recoveries),
        "waited_ms": percentiles([c.seconds for c in clients if c.under_mps and c.after_death > 0]),
    }


def wedges():
    recoveries, failed, lost = [], 0, 0
    for _ in range(rounds):
        variables = environment()
        while variables is None:
            time.sleep(0.05)
            variables = environment()
        first = Client(variables, "spin", "0.3")
        time.sleep(random.uniform(0, 0.03))
        seconds = []
        for _ in range(4):
            second = Client(variables, "info")
            # A server of 13.0 hangs most often on one that dies 0 to 12 ms after its start, or a little later.
            time.sleep(random.choice([random.uniform(0, 0.012), random.uniform(0.0015, 0.0035), random.uniform(0.012, 0.1)]))
            second.process.kill()
            seconds.append(second)
        killed = time.monotonic()
        # Ready again is what a fresh client sees: one that waits for a server that hangs is not served.
        while True:
            variables = environment()
            if variables is not None:
                fresh = Client(variables, "info")
                if fresh.wait(READY_WITHIN) and fresh.under_mps:
                    recoveries.append(time.monotonic() - killed)
                    break
                if fresh.process.poll() is None:
                    fresh.process.kill()
            if time.monotonic() - killed > READY_WITHIN:
                failed += 1
                recoveries.append(READY_WITHIN)
                break
            time.sleep(0.02)
        first.wait(READY_WITHIN)
        lost += first.error is not None
        for second in seconds:
            second.wait(READY_WITHIN)
    types = {}
    for event in events():
        types[event["type"]] = types.get(event["type"], 0) + 1
    return {
        "rounds": rounds,
        "later_than_10_s": sum(r > 10 for r in recoveries),
        "never": failed,
        "longer_than_2_s": sum(r > 2 for r in recoveries),
        "ready_ms": percentiles(recoveries),
        "clients_that_lost_work": lost,
        "events": {k: v for k, v in sorted(types.items()) if k.startswith(("server.", "daemon."))},
    }


def events():
    found, cursor = [], ""
    while True:
        _, body = get(f"/api/v1/events?limit=500{cursor}")
        found += body["items"]
        if not body.get("next_cursor"):
            return found
        cursor = f"&cursor={body['next_cursor']}"


def percentiles(seconds):
    if not seconds:
        return None
    sorted_ms = sorted(round(1000 * s) for s in seconds)
    pick = lambda share: sorted_ms[min(len(sorted_ms) - 1, int(share * len(sorted_ms)))]
    return {"p50": pick(0.5), "p95": pick(0.95), "max": sorted_ms[-1]}


print(json.dumps({"deaths": deaths, "wedges": wedges}[what]()))
