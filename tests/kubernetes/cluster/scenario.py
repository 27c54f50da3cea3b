"""Pods that come and go, and what is killed under them, on a real Kubernetes: tests/kubernetes/cluster.sh starts this."""

import json
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from cluster import CHECKPOINT, HERE, NODE, RUNTIME_DIR, Cluster, processes, run
from host import BINARY, of_process
from node import NAMESPACE, Node, mps, say, until
from table import Row, percentile, print_table
from workload import EIGHTH, Size, Workload

TWO_CLASSES = """version: v1
templates:
  kubernetes: {daemons: [gpu0], clients_per_gpu: 4, device_memory_limit: 20G}
  eighths: {daemons: [gpu1], clients_per_gpu: 8, device_memory_limit: 10G}
daemons:
  gpu0: {gpus: [0]}
  gpu1: {gpus: [1]}
"""

# Hosts whose devices are parts of GPUs: a profile, a host file, and the classes that it offers, with what a client sees of a place.
INSTANCES = ("h100x2-mig@13.1", """version: v1
templates:
  kubernetes: {daemons: [small, large], clients_per_gpu: 2, device_memory_limit: 4G}
daemons:
  small: {gpus: [0/mig3]}
  large: {gpus: [1/mig0]}
""", [Size("sm8-4g", 8, 4, 2), Size("sm30-4g", 30, 4, 2)])
MLOPART = ("b300x2@13.1", """version: v1
templates:
  kubernetes: {daemons: [gpu0, gpu1], clients_per_gpu: 2, device_memory_limit: 4G}
daemons:
  gpu0: {gpus: [0], mlopart: true}
  gpu1: {gpus: [1], mlopart: true}
""", [Size("p50-4g", 34, 4, 8)])

# The manager in the DaemonSet.
IN_POD = ["serve", "--sim=h200x2"]


def secret(cluster):
    """The certificate with the name that the PodMonitor expects."""
    key, certificate = cluster.home / "tls.key", cluster.home / "tls.crt"
    run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=mps-manager", "-addext",
        "subjectAltName=DNS:mps-manager", "-keyout", key, "-out", certificate)
    cluster.kubectl("create", "secret", "generic", "mps-manager-tls", "-n", NAMESPACE, f"--from-file=tls.crt={certificate}",
                    f"--from-file=tls.key={key}", f"--from-file=ca.crt={certificate}")


def kill(*words):
    """Kills the process whose command line has these words."""
    found = processes(*words)
    assert len(found) == 1, f"processes with {words}: {found}"
    os.kill(found[0], signal.SIGKILL)
    until(f"process {found[0]} is gone", lambda: found[0] not in processes(*words))


def simulated():
    """The processes of the simulated host: its daemons, their servers, and clients."""
    mark = f"MPS_SIM_WORLD={RUNTIME_DIR}/".encode()
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if any(word.startswith(mark) for word in of_process(pid, "environ"))]


def restart_kubelet(node, cluster, without_checkpoint=False):
    registered = node.registrations()
    cluster.kill("kubelet")
    if without_checkpoint:
        CHECKPOINT.unlink()
    cluster.start_kubelet()
    until("the plugin is registered with the kubelet again", lambda: node.registrations() > registered)
    until("the node is ready", cluster.is_ready)


def kill_plugin(node):
    registered = node.registrations()
    kill("kubelet-plugin", "--legacy-env")
    until("another plugin is registered", lambda: node.registrations() > registered)


def kill_daemon(name):
    os.kill(mps("daemon", "get", name)["status"]["pid"], signal.SIGKILL)


def applied(cluster, node):
    """All manifests as documented: the host's places are offered, by a plugin of NVIDIA's runtime class."""
    cluster.kubectl("apply", "-f", HERE / "prerequisites.yaml")
    cluster.kubectl("wait", "--for=condition=established", "crd/podmonitors.monitoring.coreos.com", "--timeout=60s")
    cluster.kubectl("create", "namespace", "monitoring")
    cluster.kubectl("apply", "-f", HERE.parents[2] / "deploy/kubernetes/namespace.yaml")
    secret(cluster)
    cluster.kubectl("apply", "-k", HERE / "simulated")
    assert not node.daemon_pods(), "the DaemonSet has a pod on a node without the label"
    cluster.kubectl("label", "node", NODE, "mps-manager.dev/enabled=true")
    node.until_ready(containers=2)
    node.until_offered(sm32_20g=8)
    runtime = (cluster.home / "nvidia-container-runtime.log").read_text()
    assert " create " in runtime, "no container was made by the runtime class nvidia"
    assert cluster.get(f"/apis/monitoring.coreos.com/v1/namespaces/{NAMESPACE}/podmonitors/mps-manager"), "there is no PodMonitor"
    say("ok: all manifests are applied, manager and plugin are ready in their DaemonSet, and the node offers 8 places of sm32-20g")


def scaled(node, workload, *counts):
    """Scales to each count of pods; so many of them can run."""
    for count, running in counts:
        workload.scale(count)
        node.settle(f"scale to {count}", (workload, running, count - running))
    node.nothing_left()
    running = ", ".join(f"{running} of {count}" for count, running in counts)
    places = "1 place" if workload.places == 1 else f"{workload.places} places"
    say(f"ok: {running} pods of {places} run, each a tenant of its own, and the others wait")


def no_incident(node):
    """Nothing that Kubernetes does with the node's directories is a breach of theirs."""
    open_ones = mps("incident", "list", "--open")
    assert open_ones == [], f"incidents are open: {open_ones}"
    say("ok: no incident is open")


def one_by_one(node, workload, count):
    """Each pod comes alone, and nothing is asked of the manager meanwhile: how long `Allocate` takes by itself."""
    for number in range(1, count + 1):
        workload.scale(number)
        until(f"{number} pods run", lambda: sum(pod["status"].get("phase") == "Running" for pod in workload.pods()) == number)
        # The kubelet, containerd and the controllers have done their part.
        time.sleep(1)
    row = node.settle(f"{count} pods, each alone", (workload, count, 0))
    assert len(row.allocated) == count, f"{len(row.allocated)} allocations for {count} pods"
    workload.scale(0)
    node.settle("scale to 0", (workload, 0, 0))
    node.nothing_left()
    say(f"ok: {count} allocations, each alone, took {percentile(row.allocated, 50):.1f} ms (p50), at most {max(row.allocated):.1f} ms")


def killed_in_pod(node, cluster, one):
    """What is killed under 8 pods where the manager runs in the DaemonSet, whose end is that of the daemons."""
    one.scale(8)
    all_run = (one, 8, 0)
    node.settle("scale to 8", all_run)
    node.disturb("8 pods", "plugin", lambda: kill_plugin(node), all_run)
    node.replaced(one, all_run)
    node.disturb("8 pods", "kubelet", lambda: restart_kubelet(node, cluster), all_run)
    node.replaced(one, all_run)
    node.disturb("8 pods", "daemon of GPU 0", lambda: kill_daemon("gpu0"), all_run, loses=4)
    node.until_offered(sm32_20g=8)
    node.replaced(one, all_run)
    node.disturb("8 pods", "manager in its pod", lambda: kill(*IN_POD), all_run, loses=8)
    node.until_offered(sm32_20g=8)
    node.replaced(one, all_run)


def without_checkpoint(node, cluster, one):
    """The kubelet has lost what it noted, and asks for places again for the pods that run: which it keeps, and which places it then thinks
    they have, is its matter. Those that it keeps go on, and once all are gone everything is as it should be."""
    before = node.clients()
    restart_kubelet(node, cluster, without_checkpoint=True)
    node.until_offered(sm32_20g=8)

    def kept():
        """The pods that were refused, once 8 others run and none of those that ran has lost a client."""
        pods, after = one.pods(refused=True), node.clients()
        refused = {pod["metadata"]["uid"] for pod in pods if pod["status"].get("phase") == "Failed"}
        running = [pod for pod in pods if pod["status"].get("phase") == "Running"]
        is_kept = all(tenants == after.get(uid) for uid, tenants in before.items() if uid not in refused)
        return (refused,) if len(running) == 8 and is_kept else None

    (refused,) = until("8 pods run, and those that ran have their clients", kept)
    node.rows.append(Row("8 pods", "1", 8, tenants=len(node.tenants()), killed="kubelet and its checkpoint", lost=len(refused)))
    cluster.kubectl("delete", "pods", "--field-selector=status.phase=Failed", f"--selector=app={one.name}")
    one.scale(0)
    node.settle("scale to 0", (one, 0, 0))
    node.nothing_left()
    one.scale(8)
    node.settle("scale to 8", (one, 8, 0))
    say(f"ok: kubelet and its checkpoint: it refused {len(refused)} of 8 pods, and the clients of the others went on; "
        "8 later pods have tenants of their own")


def drained(node, cluster, one):
    """With the node drained before, the kubelet may lose its checkpoint."""
    cluster.kubectl("drain", NODE, "--ignore-daemonsets", "--timeout=90s")
    node.settle("drain", (one, 0, 8), why="unschedulable")
    node.nothing_left()
    restart_kubelet(node, cluster, without_checkpoint=True)
    node.until_offered(sm32_20g=8)
    cluster.kubectl("uncordon", NODE)
    node.settle("uncordon", (one, 8, 0), killed="kubelet and its checkpoint")
    say("ok: a drained node has 0 tenants, may lose the kubelet's checkpoint, and has 8 again when it is uncordoned")


def paused(node, cluster):
    """What NVIDIA's operator does to the label while it unloads the driver."""
    for label in ["true", "paused-for-driver-upgrade"]:
        assert node.daemon_pods(), f"the DaemonSet has no pod before the label is {label}"
        cluster.kubectl("label", "--overwrite", "node", NODE, f"nvidia.com/gpu.deploy.client={label}")
    until("the DaemonSet has left the node", lambda: not node.daemon_pods() and not processes(*IN_POD))
    until("the node offers no place", lambda: not any(cluster.allocatable().values()))
    cluster.kubectl("label", "--overwrite", "node", NODE, "nvidia.com/gpu.deploy.client=true")
    node.until_ready(containers=2)
    node.until_offered(sm32_20g=8)
    say("ok: the DaemonSet leaves a node that NVIDIA's operator has paused, and comes back")


def two_classes(node, cluster):
    config = json.loads(cluster.kubectl("get", "configmap", "mps-manager", "-n", NAMESPACE, "-o", "json"))
    config["data"]["host.yaml"] = TWO_CLASSES
    cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mps-manager", "namespace": NAMESPACE}, "data": config["data"]})
    node.replace_daemon_pod(containers=2)
    node.until_offered(sm32_20g=4, sm16_10g=8)
    quarters, eighths = Workload(cluster, "quarters"), Workload(cluster, "eighths", EIGHTH, places=3, init=True)
    for workload, count in [(quarters, 5), (eighths, 3)]:
        workload.scale(count)
    node.settle("two classes, 5 + 3", (quarters, 4, 1), (eighths, 2, 1))
    for workload in [quarters, eighths]:
        workload.scale(0)
    node.settle("two classes, 0", (quarters, 0, 0), (eighths, 0, 0))
    node.nothing_left()
    say("ok: pods of two classes have the places of theirs, and those of the one wait while the other's are free")


def serve(cluster, profile, host):
    """The manager as a service of the node, on a simulated host with this host file."""
    (cluster.home / "host.yaml").write_text(host)
    cluster.daemon("mps-manager", BINARY, "serve", "--listen=127.0.0.1:0", f"--sim={profile}", f"--apply={cluster.home}/host.yaml", "--rm")


def stop_service(cluster):
    service = cluster.running.pop("mps-manager")
    service.terminate()
    assert service.wait(60) == 0, "the manager did not stop in order"
    assert not simulated() and not RUNTIME_DIR.exists(), "the manager left daemons or its directory"


def killed_service(node, cluster, one):
    """The plugin alone in the DaemonSet: no client is lost with the manager."""

    def killed():
        cluster.kill("mps-manager")
        until("all places are unhealthy", lambda: not any(cluster.allocatable().values()))
        serve(cluster, "h200x2", host)
        node.until_offered(sm32_20g=8)

    cluster.kubectl("apply", "-k", HERE / "plugin-only")
    node.replace_daemon_pod(containers=1)
    until("manager and daemons have ended with their pod", lambda: not processes(*IN_POD) and not simulated())
    host = json.loads(cluster.kubectl("get", "configmap", "mps-manager", "-n", NAMESPACE, "-o", "json"))["data"]["host.yaml"]
    serve(cluster, "h200x2", host)
    node.until_offered(sm32_20g=8)
    one.scale(8)
    all_run = (one, 8, 0)
    node.settle("service: scale to 8", all_run)
    node.disturb("service: 8 pods", "plugin", lambda: kill_plugin(node), all_run)
    node.disturb("service: 8 pods", "manager as a service", killed, all_run)
    node.replaced(one, all_run)
    node.disturb("service: 8 pods", "daemon of GPU 0", lambda: kill_daemon("gpu0"), all_run, loses=4)
    one.scale(0)
    node.settle("service: scale to 0", (one, 0, 0))
    node.nothing_left()


def parts(node, cluster, profile, host, sizes):
    """Pods on devices that are parts of GPUs: as many as there are places, and one more of each class."""
    stop_service(cluster)
    serve(cluster, profile, host)
    # Its directory was removed, of which the plugin's pod has the earlier one.
    until("the manager answers", lambda: node.tenants() is not None)
    node.replace_daemon_pod(containers=1)
    node.until_offered(**{size.name: size.places for size in sizes})
    workloads = [Workload(cluster, size.name, size) for size in sizes]
    for workload, size in zip(workloads, sizes):
        workload.scale(size.places + 1)
    all_run = [(workload, size.places, 1) for workload, size in zip(workloads, sizes)]
    node.settle(f"{profile}: all places", *all_run)
    running = [(workload, pod) for workload in workloads for pod in workload.pods() if pod["status"]["phase"] == "Running"]
    devices = Counter(workload.clients_seen(pod)[-1][1]["devices"][0]["uuid"] for workload, pod in running)
    assert set(devices.values()) == {2}, f"a device has two places, and pods on them saw {devices}"
    node.disturb(f"{profile}: all places", "plugin", lambda: kill_plugin(node), *all_run)
    for workload in workloads:
        workload.scale(0)
    node.settle(f"{profile}: scale to 0", *[(workload, 0, 0) for workload in workloads])
    node.nothing_left()
    say(f"ok: {profile}: {sum(size.places for size in sizes)} pods on {len(devices)} devices, and one more of each class waits")


def removed(node, cluster):
    """Nothing of ours is left on the node, without its manifests."""
    node.collect()
    cluster.kubectl("delete", "-k", HERE / "plugin-only")
    until("the plugin has ended", lambda: not processes("kubelet-plugin", "--legacy-env"))
    assert not list(CHECKPOINT.parent.glob("mps-manager-*.sock")), "the plugin left a socket"
    stop_service(cluster)
    node.rows.append(Row("manifests deleted", left=0))
    say("ok: without the manifests there is no socket, daemon or directory of the manager")


def scenario(node, cluster):
    applied(cluster, node)
    one, three, init = Workload(cluster, "one"), Workload(cluster, "three", places=3), Workload(cluster, "init", init=True)
    scaled(node, one, (8, 8), (9, 8), (3, 3), (0, 0))
    one_by_one(node, one, 8)
    no_incident(node)
    # Two of them fill three places of each GPU.
    scaled(node, three, (8, 2), (9, 2), (3, 2), (0, 0))
    scaled(node, init, (8, 8), (0, 0))
    killed_in_pod(node, cluster, one)
    without_checkpoint(node, cluster, one)
    drained(node, cluster, one)
    one.scale(0)
    node.settle("scale to 0", (one, 0, 0))
    node.nothing_left()
    paused(node, cluster)
    two_classes(node, cluster)
    killed_service(node, cluster, one)
    parts(node, cluster, *INSTANCES)
    parts(node, cluster, *MLOPART)
    removed(node, cluster)


def main():
    cluster = Cluster(*sys.argv[1:3])
    node, load = Node(cluster), os.getloadavg()[0]
    try:
        begin = time.monotonic()
        cluster.start()
        say(f"ok: the node is ready {time.monotonic() - begin:.0f} s after the start of etcd")
        scenario(node, cluster)
    except BaseException:
        print(cluster.describe(), file=sys.stderr, flush=True)
        raise
    finally:
        cluster.close()
        print_table(node.rows)
    took = node.allocations()
    say(f"ok: {len(took)} allocations took {percentile(took, 50):.1f} ms (p50), {percentile(took, 99):.1f} ms (p99), at most {max(took):.1f} ms; "
        f"before it began, {os.cpu_count()} cores had a load of {load:.1f}")


if __name__ == "__main__":
    main()
