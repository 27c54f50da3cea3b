"""The node under the pods: what its manager, plugin and kubelet say, and how long it is waited for."""

import json
import re
import time
from pathlib import Path

from cluster import CHECKPOINT, POD_LOGS, RUNTIME_DIR, run
from host import BINARY, eventually
from table import Row

NAMESPACE = "mps-manager"


def say(words):
    print(f"cluster: {words}", flush=True)


def mps(*command):
    """What the manager answers as JSON, or None."""
    answer = run(BINARY, *command, "-o", "json", "--runtime-dir", RUNTIME_DIR, check=False)
    return json.loads(answer) if answer else None


def until(what, check, timeout=120):
    return eventually(what, check, timeout=timeout, pause=0.3)


class Node:
    def __init__(self, cluster):
        self.cluster, self.rows, self.plugin_logs, self.counted = cluster, [], {}, 0

    # What is known of the node.

    def tenants(self):
        """What the manager calls each tenant, as `pod default/web-0/app`; None while no manager answers."""
        listed = mps("tenant", "list")
        return None if listed is None else {tenant["name"]: tenant["workload"] or "" for tenant in listed}

    def clients(self):
        """The clients that MPS lists: PIDs by pod and tenant; None while no manager answers."""
        by_pod, listed = {}, mps("client", "list")
        if listed is None:
            return None
        for client in listed:
            try:
                found = re.search(r"/pod([0-9a-f-]{36})/", Path(f"/proc/{client['pid']}/cgroup").read_text())
            except OSError:
                continue
            by_pod.setdefault(found.group(1) if found else None, {}).setdefault(client["tenant"], set()).add(client["pid"])
        return by_pod

    def client_pids(self):
        return {pid for tenants in self.clients().values() for pids in tenants.values() for pid in pids}

    def directories(self):
        # One that begins with a dot is of all: there, sockets are made before they are anybody's.
        found = (RUNTIME_DIR / "tenants").iterdir()
        return [path for path in found if path.is_dir() and not path.is_symlink() and not path.name.startswith(".")]

    def devices(self):
        """The places that the kubelet has noted as those of pods."""
        entries = json.loads(CHECKPOINT.read_text())["Data"]["PodDeviceEntries"]
        return [entry["DeviceIDs"] for entry in entries or []]

    def collect(self):
        """Keeps what plugins have logged: the kubelet removes it with the pod."""
        for log in POD_LOGS.glob(f"{NAMESPACE}_*/kubelet-plugin/*.log"):
            try:
                self.plugin_logs[log] = log.read_text(errors="replace")
            except OSError:
                continue

    def plugin_log(self):
        self.collect()
        return "".join(self.plugin_logs.values())

    def allocations(self):
        """How long each `Allocate` took, in ms."""
        units = {"s": 1000, "ms": 1, "µs": 0.001, "ns": 0.000001}
        found = re.findall(r" allocated .*took=([0-9.]+)(s|ms|µs|ns)", self.plugin_log())
        return [float(number) * units[unit] for number, unit in found]

    def registrations(self):
        return self.plugin_log().count("is registered with the kubelet")

    # What is done and waited for.

    def daemon_pods(self):
        return self.cluster.pods(NAMESPACE, "app.kubernetes.io/name=mps-manager")

    def until_ready(self, containers, but=None):
        """Waits for a pod of the DaemonSet, another one than `but`."""
        def ready():
            pods = self.daemon_pods()
            states = [state for pod in pods for state in pod["status"].get("containerStatuses", [])]
            is_other = len(pods) == 1 and pods[0]["metadata"]["uid"] != but
            return is_other and len(states) == containers and all(state["ready"] for state in states)

        until("the DaemonSet's pod is ready", ready)

    def replace_daemon_pod(self, containers):
        pod = self.daemon_pods()[0]["metadata"]
        self.collect()
        self.cluster.kubectl("delete", "pod", "-n", NAMESPACE, pod["name"])
        self.until_ready(containers, but=pod["uid"])

    def until_offered(self, **places):
        wanted = {name.replace("_", "-"): count for name, count in places.items()}
        until(f"the node offers {wanted}", lambda: {k: v for k, v in self.cluster.allocatable().items() if v} == wanted)

    def settle(self, step, *wanted, timeout=150, killed="", why=None):
        """Waits until these are the pods: each running one is a tenant of its own, called by its name, with its
        clients, and there is no other tenant.

        `wanted` are workloads, each with how many pods run and how many are pending, for want of a place or as the scheduler says by `why`.
        Notes a row of the table.
        """
        def settled():
            self.collect()
            by_pod, found, called = self.clients(), [], self.tenants()
            if by_pod is None or called is None:
                return None
            for workload, running, pending in wanted:
                pods = workload.pods()
                on = [pod for pod in pods if pod["status"].get("phase") == "Running"]
                waiting = [pod for pod in pods if workload.waits(pod, why) and pod not in on]
                if (len(on), len(waiting), len(pods)) != (running, pending, running + pending):
                    return None
                for pod in on:
                    tenants = by_pod.pop(pod["metadata"]["uid"], {})
                    if [len(pids) for pids in tenants.values()] != [workload.places]:
                        return None
                    pod_name = f"pod default/{pod['metadata']['name']}/"
                    if not all(called.get(tenant, "").startswith(pod_name) for tenant in tenants):
                        return None
                    found += tenants
            # What is left of others may be about to end.
            names = set(found)
            is_all = not by_pod and len(names) == len(found) == len(self.directories()) and names == set(called)
            return (names,) if is_all else None

        (names,) = until(f"{step}: all pods are as they should", settled, timeout)
        for workload, running, _ in wanted:
            for pod in workload.pods():
                if pod["status"]["phase"] == "Running":
                    workload.check_seen(pod)
        took = self.allocations()
        places = sorted({str(workload.places) for workload, *_ in wanted})
        row = Row(step, "+".join(places), sum(n for _, n, _ in wanted), sum(n for *_, n in wanted), len(names), took[self.counted:], killed)
        self.counted = len(took)
        self.rows.append(row)
        return row

    def disturb(self, step, killed, action, *wanted, loses=0):
        """Does something under running pods: their clients go on, but for so many that it `loses`, which the pods have again."""
        before, at = self.client_pids(), time.time()
        action()
        row = self.settle(step, *wanted, killed=killed)
        after = self.client_pids()
        row.lost = len(before - after)
        if not loses:
            assert before <= after, f"{killed}: clients {before - after} did not go on"
            say(f"ok: {killed}: all {len(before)} clients went on")
            return
        assert row.lost == loses, f"{killed}: {row.lost} clients were lost, not {loses}"
        begun = [begin for workload, *_ in wanted for pod in workload.pods() if pod["status"]["phase"] == "Running"
                 for begin, _ in workload.clients_seen(pod) if begin > at]
        assert len(begun) == row.lost, f"{killed}: {row.lost} clients were lost, and {len(begun)} begun"
        row.again = max(begun) - at
        say(f"ok: {killed}: the pods have their {row.lost} clients again after {row.again:.1f} s")

    def replaced(self, workload, *wanted):
        """A pod that is deleted comes again, so that allocations go on."""
        pod = next(pod for pod in workload.pods() if pod["status"]["phase"] == "Running")
        self.cluster.kubectl("delete", "pod", pod["metadata"]["name"])
        assert self.settle("one pod again", *wanted).allocated, "nothing was allocated"

    def nothing_left(self):
        """Tenants, their directories and the devices of pods: none."""
        def left():
            tenants = self.tenants()
            if tenants is None:
                return "no manager"
            files = [path for folder in ["tenants", "env", "by-name"] for path in (RUNTIME_DIR / folder).iterdir()]
            # Where sockets are made is always there, and empty.
            files = [path for path in files if path.name != ".new" or any(path.iterdir())]
            return [*tenants, *files, *self.devices()]

        until("no tenant, directory or device is left", lambda: not left(), timeout=60)
        self.rows[-1].left = len(left())
        say("ok: 0 tenants, 0 directories and 0 devices are left")
