"""The pods of a Deployment, and what the clients in them have seen."""

import json
from datetime import datetime
from typing import NamedTuple

from cluster import POD_LOGS, RUNTIME_DIR

GIB = 1 << 30


class Size(NamedTuple):
    """A class of places: what a client sees of one, and how many a host has."""

    name: str
    sms: int
    gib: int
    places: int


QUARTER, EIGHTH = Size("sm32-20g", 32, 20, 8), Size("sm16-10g", 16, 10, 8)

# Keeps so many clients, each of which says first what it sees. None is started outside MPS: while there is no daemon, the driver lets it run so.
CLIENTS = """client() {
    while :; do
        until mps-manager sim client --json >/tmp/$1 && grep -q '"mps":true' /tmp/$1; do sleep 0.2; done
        mps-manager sim client --json --spin 100000
        echo "ended with $?"
    done
}
number=1
while [ "$number" -lt "$CLIENTS" ]; do
    client "$number" &
    number=$((number + 1))
done
client 0
"""


class Workload:
    """A Deployment whose pods have so many places of a class, and as many clients; with `init` an init container has them first."""

    def __init__(self, cluster, name, size=QUARTER, places=1, init=False):
        self.cluster, self.name, self.places, self.init = cluster, name, places, init
        self.resource, self.sms, self.gib = f"mps-manager.dev/{size.name}", size.sms, size.gib

    def scale(self, replicas):
        world = str(RUNTIME_DIR / "sim")
        container = {
            "name": "client", "image": "mps-manager:0.1.0", "command": ["/bin/sh", "-c", CLIENTS],
            "env": [{"name": "CLIENTS", "value": str(self.places)}],
            "resources": {"limits": {self.resource: self.places}},
            # The world of the simulated GPUs takes the place of device files.
            "volumeMounts": [{"name": "world", "mountPath": world}],
        }
        spec = {"automountServiceAccountToken": False, "terminationGracePeriodSeconds": 1, "containers": [container],
                "volumes": [{"name": "world", "hostPath": {"path": world}}]}
        if self.init:
            command = ["/bin/sh", "-c", "mps-manager sim client --json"]
            spec["initContainers"] = [{**container, "name": "before", "command": command}]
        template = {"metadata": {"labels": {"app": self.name}}, "spec": spec}
        self.cluster.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": self.name, "namespace": "default"},
                            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": self.name}}, "template": template}})

    def pods(self, refused=False):
        """Its pods. The kubelet has refused none, but where `refused` ones are expected."""
        pods = self.cluster.pods(label=f"app={self.name}")
        failed = [pod["status"] for pod in pods if pod["status"].get("phase") == "Failed"]
        assert refused or not failed, f"the kubelet refused {failed}"
        return pods

    def waits(self, pod, why=None):
        """Whether the scheduler says that no place is left for it, or `why` else it waits."""
        conditions = pod["status"].get("conditions", [])
        return any((why or f"Insufficient {self.resource}") in c.get("message", "") for c in conditions if c["type"] == "PodScheduled")

    def lines(self, pod, container="client"):
        """What a container has printed, with the times."""
        meta = pod["metadata"]
        for log in sorted(POD_LOGS.glob(f"*_{meta['name']}_{meta['uid']}/{container}/*.log")):
            for line in log.read_text().splitlines():
                at, _, _, text = line.split(" ", 3)
                # Go leaves the zeros at the end of a fraction out.
                seconds, _, fraction = at.rstrip("Z").partition(".")
                yield datetime.fromisoformat(f"{seconds}+00:00").timestamp() + float(f"0.{fraction}"), text

    def clients_seen(self, pod, container="client"):
        return [(at, json.loads(text)) for at, text in self.lines(pod, container) if text.startswith("{")]

    def check_seen(self, pod):
        """Every client of it saw the share and the limit of one place."""
        begun = self.clients_seen(pod)
        assert len(begun) >= self.places, f"{pod['metadata']['name']} says nothing"
        if self.init:
            before = self.clients_seen(pod, "before")
            assert len(before) == 1, f"the init container of {pod['metadata']['name']} saw {before}"
            begun += before
        for _, seen in begun:
            assert seen["mps"] and not seen["error"] and len(seen["devices"]) == 1, f"{pod['metadata']['name']} saw {seen}"
            device = seen["devices"][0]
            assert device["sms"] == self.sms, f"{pod['metadata']['name']} saw {seen}, not {self.sms} SMs"
            # What the context itself takes is paid from the limit.
            limit = self.gib * GIB
            assert limit - GIB < device["memory_free"] < limit, f"{pod['metadata']['name']} saw {seen}, not {limit} bytes"
