"""Whom the evidence of a fault speaks against, and how soon a breach and a bypass are seen, counted for the hardware scenario.

    evidence.py faults SOCKET CLIENT ROUNDS
    evidence.py repeated SOCKET CLIENT ROUNDS
    evidence.py watch SOCKET CLIENT ROUNDS LARGEST_MIB

`faults`: four tenants each start a client, in random order; a random one of them ends in one of six kinds of errors. `repeated`: it is always
the same tenant, and each of the others is there in six of ten rounds. `watch`: so many clients that hold more than their limit, and as many
outside MPS, each for 3 to 10 s at random moments, beside a PyTorch client of each other tenant that keeps to its limit. Prints one JSON
object.
"""

import json
import os
import random
import subprocess
import sys
import threading
import time

from unix import Unix

what, path, program, rounds = sys.argv[1:4] + [int(sys.argv[4])]
random.seed(int(os.environ.get("SEED", "35")))
TENANTS = ["one", "two", "three", "four"]
KINDS = ["null", "address", "jump", "misaligned", "trap", "stack"]
TORCH = """
import sys, time, torch
x = torch.randn(1024, 1024, device="cuda")
kept = [torch.empty(256 << 20, dtype=torch.uint8, device="cuda") for _ in range(8)]
print("ready", flush=True)
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    x = torch.tanh(x @ x * 0.01)
    # Memory comes and goes, as in a training step.
    more = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
    del more
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    time.sleep(0.05)
"""


def get(address):
    connection = Unix(path, timeout=60)
    connection.request("GET", address)
    response = connection.getresponse()
    body = json.loads(response.read() or b"null")
    connection.close()
    return response.status, body


def environment(tenant, **more):
    status, body = get(f"/api/v1/tenants/{tenant}/environment")
    assert status == 200, body
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "HOME") if name in os.environ}
    return {**kept, **body["variables"], **more}


def eventually(what, check, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = check()
        if found:
            return found
        time.sleep(0.05)
    raise SystemExit(f"never happened: {what}")


class Client:
    """One CUDA client, and what it says line by line."""

    def __init__(self, variables, *arguments):
        self.process = subprocess.Popen(
            arguments, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid

    def line(self):
        return self.process.stdout.readline()

    def end(self):
        # Its memory goes with its context; a client that only computes is ended once MPS is asked.
        try:
            self.process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()


def newest():
    items = get("/api/v1/incidents?kind=gpu_fault&limit=1")[1]["items"]
    return items[0] if items else None


def fault(kind, present, culprit):
    """One fault; gives what the manager says of it."""
    before = newest()
    clients = {}
    order = random.sample(present, len(present))
    for tenant in order:
        words = ["fault", kind, "1.5"] if tenant == culprit else ["spin", "60"]
        clients[tenant] = Client(environment(tenant), program, *words)
        assert "devices" in clients[tenant].line()
    culprit_pid = clients[culprit].pid

    def over():
        incident = newest()
        is_new = incident and (before is None or incident["id"] != before["id"])
        return incident if is_new and incident["state"] == "recovered" else None

    incident = eventually(f"an incident of {kind}", over)
    for client in clients.values():
        client.end()
    # The marks are read with the clients' ends.
    time.sleep(0.5)
    incident = get(f"/api/v1/incidents/{incident['id']}")[1]
    suspected = [one["pid"] for one in incident["suspected"]]
    affected = [one["pid"] for one in incident["affected"]]
    return {
        "kind": kind,
        "place": order.index(culprit) + 1,
        "clients": len(present),
        "all_affected": sorted(affected) == sorted(client.pid for client in clients.values()),
        "first": affected[:1] == [culprit_pid],
        "suspected": culprit_pid in suspected,
        "innocent_suspected": [pid for pid in suspected if pid != culprit_pid],
        "named": [order.index(tenant) + 1 for tenant, one in clients.items() if one.pid in incident["fault"]["named_by_mps"]],
        "errors": sorted({error["xid"] for error in incident["fault"]["gpu_errors"]}),
        "kernel_log_error": incident["fault"]["kernel_log_error"],
        "missing": [tenant for tenant, one in clients.items() if one.pid not in affected],
        "culprit": culprit,
        "pids": [clients[tenant].pid for tenant in order],
        "known": all(one["program"] and one["uid"] is not None and one["memory"] and one["started_at"] for one in incident["affected"]),
    }


def faults():
    results = []
    kinds = os.environ.get("KINDS", "").split() or KINDS
    for number in range(rounds):
        results.append(fault(kinds[number % len(kinds)], TENANTS, random.choice(TENANTS)))
        print(results[-1], file=sys.stderr, flush=True)
    return summary(results)


def repeated():
    results = []
    culprit = random.choice(TENANTS)
    for number in range(rounds):
        others = [tenant for tenant in TENANTS if tenant != culprit and random.random() < 0.6]
        # It is there for faults only, the others also without one.
        clients = [Client(environment(tenant), program, "spin", "6") for tenant in others]
        time.sleep(6)
        for client in clients:
            client.end()
        results.append(fault(KINDS[number % 3], [culprit, *others], culprit))
        print(results[-1], file=sys.stderr, flush=True)
    return summary(results)


def summary(results):
    def count(key, of=results):
        return sum(1 for one in of if one[key])

    by_kind = {}
    for kind in dict.fromkeys(one["kind"] for one in results):
        of = [one for one in results if one["kind"] == kind]
        by_kind[kind] = {"faults": len(of), "first": count("first", of), "suspected": count("suspected", of)}
    return {
        "faults": len(results),
        "all_affected": count("all_affected"),
        "culprit_first": count("first"),
        "culprit_first_late": sum(1 for one in results[2:] if one["first"]),
        "culprit_suspected": count("suspected"),
        "innocents_suspected": count("innocent_suspected"),
        "named_is_first_to_connect": sum(1 for one in results if one["named"] == [1]),
        "named_is_another": sum(1 for one in results if one["named"] not in ([], [1])),
        "with_gpu_errors": count("errors"),
        "with_everything_known": count("known"),
        "kernel_log_error": next((one["kernel_log_error"] for one in results if one["kernel_log_error"]), None),
        "by_kind": by_kind,
    }


def open_incidents(kind):
    return get(f"/api/v1/incidents?state=open&kind={kind}")[1]["items"]


def names(incident, pid):
    return any(one["pid"] == pid and not one["has_ended"] for one in incident["suspected"])


def watched(kind, start, latencies, missed, seen):
    """Starts a client of that kind again and again, and notes how long it takes until its incident is open."""
    for _ in range(rounds):
        time.sleep(random.uniform(0, 2))
        hold = random.uniform(3, 10)
        client = start()
        seen.add(client.pid)
        assert "devices" in client.line(), client.process.stderr.read()
        if kind == "breach":
            line = client.line()
            assert "allocated_mib" in line, line
        began = time.monotonic()
        found = None
        while time.monotonic() < began + hold:
            if found is None and any(names(one, client.pid) for one in open_incidents(kind)):
                found = time.monotonic() - began
            time.sleep(0.03)
        if found is None:
            missed.append(client.pid)
        else:
            latencies.append(found)
        client.end()


def cpu_of(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def watch():
    manager = int(os.environ["MANAGER_PID"])
    mib = sys.argv[5]
    outside = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    outside["CUDA_MPS_PIPE_DIRECTORY"] = os.environ["NO_DAEMON"]
    starts = {
        # An entry for a GPU that it does not see drops all limits.
        "breach": lambda: Client(environment("one", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="7=100G"), program, "alloc", mib),
        "bypass": lambda: Client(outside, program, "alloc", "64"),
    }
    begun, used = time.monotonic(), cpu_of(manager)
    honest = [Client(environment(tenant), sys.executable, "-c", TORCH, "900") for tenant in TENANTS[1:] for _ in range(2)]
    for client in honest:
        assert client.line() == "ready\n", client.process.stderr.read()[-2000:]
    results, threads, mine = {}, [], set()
    for kind, start in starts.items():
        results[kind] = ([], [])
        threads.append(threading.Thread(target=watched, args=(kind, start, *results[kind], mine)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - begun
    cpu = 100 * (cpu_of(manager) - used) / seconds
    alive = sum(1 for client in honest if client.process.poll() is None)
    for client in honest:
        client.process.terminate()
        client.end()
    report = {"seconds": round(seconds), "honest_clients": len(honest), "honest_alive": alive, "manager_cpu_percent": round(cpu, 2)}
    falsely = set()
    for kind, (latencies, missed) in results.items():
        latencies.sort()
        middle = latencies[len(latencies) // 2] if latencies else None
        report[kind] = {
            "seen": len(latencies), "missed": len(missed),
            "p50_s": middle and round(middle, 2), "largest_s": latencies and round(latencies[-1], 2),
        }
        for incident in get(f"/api/v1/incidents?kind={kind}&limit=200")[1]["items"]:
            falsely |= {(kind, one["pid"]) for one in incident["suspected"] if one["pid"] not in mine}
    report["falsely_named"] = sorted(falsely)
    return report


print(json.dumps({"faults": faults, "repeated": repeated, "watch": watch}[what]()))
