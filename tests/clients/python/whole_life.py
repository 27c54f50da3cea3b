"""The whole life of a tenant and of a layout, through the client that openapi-python-client generates.

Called by tests/clients/run.sh, which starts two simulated hosts. It fails when an answer is not the one that is meant, when the
client cannot read it, and when an operation of the document was not called.
"""

import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import mps_manager_client.models as m
from mps_manager_client import AuthenticatedClient, Client

DOCUMENT = json.loads(pathlib.Path(os.environ["DOCUMENT"]).read_text())
BINARY = os.environ["MPS_MANAGER_BINARY"]
TAGS = {
    operation["operationId"]: operation["tags"][0]
    for item in DOCUMENT["paths"].values()
    for operation in item.values()
}
called = set()


class Host:
    """One manager, and the client that speaks to it."""

    def __init__(self, name):
        self.url = os.environ[f"HOST_{name}_URL"]
        self.runtime_dir = os.environ[f"HOST_{name}_RUNTIME_DIR"]
        self.client = AuthenticatedClient(base_url=self.url, token=os.environ[f"HOST_{name}_TOKEN"])

    def call(self, operation, *args, expect=200, **kwargs):
        """Calls an operation by its ID; the answer's status and body must be what is meant."""
        module = importlib.import_module(f"mps_manager_client.api.{TAGS[operation]}.{operation}")
        answer = module.sync_detailed(*args, client=kwargs.pop("client", self.client), **kwargs)
        called.add(operation)
        assert answer.status_code == expect, f"{operation}: {answer.status_code} {answer.content!r}"
        if expect != 204:
            assert answer.parsed is not None, f"{operation}: the client cannot read {answer.content!r}"
        return answer if expect == 204 else answer.parsed

    def raw(self, operation, *args, **kwargs):
        """The same with headers and all."""
        module = importlib.import_module(f"mps_manager_client.api.{TAGS[operation]}.{operation}")
        called.add(operation)
        return module.sync_detailed(*args, client=self.client, **kwargs)

    def done(self, operation):
        """Waits for an accepted operation, which must succeed."""
        last = eventually(lambda: self.ended(operation.id), "the operation ends")
        assert last.state == m.OperationState.SUCCEEDED, last.to_dict()
        return last

    def ended(self, id):
        operation = self.call("get_operation", id)
        open_states = (m.OperationState.PENDING, m.OperationState.RUNNING)
        return None if operation.state in open_states else operation

    def ready(self):
        open_client = Client(base_url=self.url)
        module = importlib.import_module("mps_manager_client.api.probes.get_readiness")
        called.add("get_readiness")

        def is_ready():
            answer = module.sync_detailed(client=open_client)
            return answer.status_code == 200 and answer.parsed.ready or None

        eventually(is_ready, "every daemon is ready")


def eventually(ask, what):
    deadline = time.monotonic() + 60
    while True:
        answer = ask()
        if answer is not None:
            return answer
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.05)


def probes_and_host(host):
    open_client = Client(base_url=host.url)
    assert host.call("get_health", client=open_client).status == "ok"
    host.ready()
    assert host.call("get_daemon_readiness", "gpu0", client=open_client).ready
    view = host.call("get_host")
    assert view.simulated and view.gpus == 2
    gpus = host.call("list_gpus").items
    assert host.call("get_gpu", "0").uuid == gpus[0].uuid
    assert host.call("get_gpu_history", "0").step_s == 5
    problem = host.call("replace_gpu", "0", body=m.ReplaceGpuRequest(with_="1"), expect=409)
    assert isinstance(problem, m.Problem) and problem.type_.endswith(":conflict")
    confirm = m.ConfirmHostRequest(machine_id="0" * 32)
    assert host.call("confirm_host", body=confirm, expect=422).errors[0].pointer == "/machine_id"


def life_of_a_tenant(host):
    spec = m.TenantSpec(
        daemon="gpu0",
        uid=os.getuid(),
        device_memory_limit="4G",
        max_clients=2,
        active_thread_percentage=25,
    )
    made = host.raw("put_tenant", "web", body=spec, if_none_match=m.PutTenantIfNoneMatch.VALUE_0)
    assert made.status_code == 201, made.content
    tag = made.headers["ETag"]
    spec.max_clients = 3
    assert host.call("put_tenant", "web", body=spec, dry_run=True).spec.max_clients == 3
    assert host.call("get_tenant", "web").spec.max_clients == 2
    assert host.call("get_tenant_history", "web").step_s == 5
    host.call("put_tenant", "web", body=spec, if_match=tag)
    late = host.call("put_tenant", "web", body=spec, if_match=tag, expect=412)
    assert late.type_ == "urn:mps-manager:problem:precondition-failed"
    host.ready()
    assert host.call("get_tenant", "web", fresh=True).spec.device_memory_limit == 4 << 30
    spec.device_memory_limit = m.MemoryLimitPerGpu.from_dict({"0": "1G"})
    limits = host.call("put_tenant", "web", body=spec, dry_run=True).spec.device_memory_limit
    assert list(limits.to_dict().values()) == [1 << 30]
    spec.device_memory_limit = "4G"
    patch = m.TenantPatch.from_dict({"labels": {"team": "ml"}})
    assert host.call("patch_tenant", "web", body=patch, wait_s=30).spec.labels.to_dict() == {"team": "ml"}
    assert [tenant.name for tenant in host.call("list_tenants", labels="team=ml").items] == ["web"]
    assert "web" in [tenant.name for tenant in host.call("list_tenants", daemon="gpu0").items]
    assert "CUDA_MPS_PIPE_DIRECTORY" in host.call("get_tenant_environment", "web").variables.to_dict()
    assert host.call("verify_tenant", "web", expect=202).running_since

    def finished():
        verification = host.call("get_tenant", "web").status.verification
        return None if verification.running_since else verification.last

    last = eventually(finished, "the verification ends")
    assert last.outcome == m.VerificationOutcome.VERIFIED, last.to_dict()

    # Two processes: one that an operator records, and one that `run` starts.
    holder = subprocess.Popen(["sleep", "600"])
    lease = host.call("create_lease", "web", body=m.LeaseRequest(kind=m.LeaseKind.RECORDED, pid=holder.pid), expect=201)
    assert lease.holder.startswith(f"{holder.pid}-")
    command = [BINARY, "run", "--runtime-dir", host.runtime_dir, "--tenant", "web", "--"]
    worker = subprocess.Popen(command + [BINARY, "sim", "client", "--spin", "600", "--alloc", "512"])
    try:
        clients = eventually(lambda: host.call("list_clients", tenant="web", fresh=True).items or None, "it connects")
        client = host.call("get_client", clients[0].id)
        assert client.pid == worker.pid and client.tenant == "web"
        assert [one.id for one in host.call("list_tenant_clients", "web").items] == [client.id]
        leases = {one.pid: one for one in host.call("list_leases", "web").items}
        assert leases[holder.pid].kind == m.LeaseKind.RECORDED and leases[worker.pid].is_client, leases
        host.call("revoke_lease", "web", lease.holder, expect=204)
        # A drain waits for it, and can be called off.
        drain = host.call("drain_daemon", "gpu0", timeout_s=600, expect=202)
        eventually(lambda: host.call("get_operation", drain.id).cancellable or None, "it can be called off")
        host.call("cancel_operation", drain.id, expect=202)
        last = eventually(lambda: host.ended(drain.id), "it stops")
        assert last.state == m.OperationState.CANCELLED, last.to_dict()
        host.done(host.call("terminate_client", client.id, idempotency_key="end-it", expect=202))
        worker.wait(timeout=30)
    finally:
        for process in (holder, worker):
            process.kill()
            process.wait()
    # Its processes have to be seen to be gone.
    eventually(lambda: host.raw("delete_tenant", "web").status_code == 204 or None, "it has no processes")
    assert host.call("get_tenant", "web", expect=404).type_.endswith(":not-found")


def life_of_a_daemon(host):
    daemon = host.call("put_daemon", "gpu1", body=m.DaemonSpec(gpus=["1"], mode=m.DaemonMode.STATIC))
    assert daemon.spec.mode == m.DaemonMode.STATIC
    host.ready()
    patch = m.DaemonPatch.from_dict({"drift_policy": "report"})
    assert host.call("patch_daemon", "gpu1", body=patch, wait_s=30).spec.mode == m.DaemonMode.STATIC
    assert len(host.call("list_daemons", limit=1).items) == 1
    assert host.call("get_daemon", "gpu1", fresh=True).status.phase == m.DaemonPhase.READY
    assert host.call("cordon_daemon", "gpu1").spec.schedulable is False
    assert host.call("uncordon_daemon", "gpu1").spec.schedulable is True
    host.done(host.call("stop_daemon", "gpu1", grace_s=0, expect=202))
    host.done(host.call("start_daemon", "gpu1", expect=202))
    host.done(host.call("restart_daemon", "gpu1", grace_s=0, expect=202))
    host.ready()
    assert host.call("list_operations", limit=2).next_cursor


def life_of_a_layout(host, other):
    def add(partition, chunks):
        return m.LayoutStepAdd(add=m.AddStep(gpu=1, partition=partition, chunks=chunks))

    steps = [add("web", 7), add("gap", 2), add("batch", 5)]
    steps.append(m.LayoutStepRemove(remove=m.RemoveStep(partition="gap")))
    request = m.LayoutRequest(layout=m.Layout(steps=steps), note="through the Python client")
    assert host.call("put_layout", "prod", body=request, expect=201).newest.version == 1
    assert [layout.newest.name for layout in host.call("list_layouts").items] == ["prod"]
    assert len(host.call("get_layout", "prod").newest.layout.steps) == 4
    assert len(host.call("list_layout_versions", "prod").items) == 1
    assert host.call("get_layout_version", "prod", 1).note == "through the Python client"
    plan = host.call("plan_layout", "prod", body=m.LayoutTarget(daemon="gpu1"))
    assert len(plan.steps) == 4 and not plan.blocked
    host.done(host.call("apply_layout", "prod", body=m.ApplyLayoutRequest(daemon="gpu1"), expect=202))
    assert host.call("assert_layout", "prod", body=m.LayoutTarget(daemon="gpu1")).matches
    partitions = {one.partition: one.id for one in host.call("list_partitions", "gpu1").items}
    assert host.call("get_partition", "gpu1", "web").id == partitions["web"]

    # The same on another host, with the same IDs.
    document = host.call("export_layout", "prod", daemon="gpu1")
    assert document.checksum.startswith("sha256:")
    life_of_a_daemon(other)
    other.call("import_layouts", body=document)
    replay = other.call("create_replay", body=m.ReplayRequest(daemon="gpu1", document=document), expect=202)
    other.done(replay.operation)
    record = other.call("get_replay", replay.replay)
    assert record.verdict == m.ReplayVerdict.SAME, record.to_dict()
    assert other.call("list_replays").items[0].id == replay.replay
    assert {one.partition: one.id for one in other.call("list_partitions", "gpu1").items} == partitions

    other.done(other.call("delete_daemon", "gpu1", grace_s=0, expect=202))
    other.call("delete_layout", "prod", expect=204)


def daemon_of_somebody_else(host):
    """On the second GPU, which no daemon of the manager has now."""
    world = pathlib.Path(host.runtime_dir) / "sim"
    home = pathlib.Path(host.runtime_dir).parent / "foreign"
    environment = {
        "PATH": os.environ["PATH"],
        "MPS_SIM_WORLD": str(world),
        "CUDA_VISIBLE_DEVICES": "1",
        "CUDA_MPS_PIPE_DIRECTORY": str(home / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(home / "log"),
    }
    for folder in ("pipe", "log"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    control = world / "bin" / "nvidia-cuda-mps-control"
    subprocess.run([control, "-d"], env=environment, check=True)
    try:
        foreign = host.call("list_foreign_daemons").items[0]
        assert host.call("get_foreign_daemon", foreign.id).pid == foreign.pid
        adopt = m.AdoptDaemonRequest(process=foreign.id, management=m.DaemonManagement.OBSERVED)
        adopted = host.call("adopt_daemon", "theirs", body=adopt, expect=201)
        assert adopted.spec.management == m.DaemonManagement.OBSERVED
        host.call("release_daemon", "theirs", expect=204)
    finally:
        subprocess.run([control], env=environment, input=b"quit\n", check=True)


def maintenance(host):
    request = m.MaintenanceRequest(timeout_s=60, on_timeout=m.DrainTimeoutAction.TERMINATE)
    host.done(host.call("begin_maintenance", body=request, expect=202))
    assert host.call("get_maintenance").state == m.MaintenanceState.ACTIVE
    host.done(host.call("end_maintenance", expect=202))
    host.ready()


def host_as_a_file(host):
    """What a host has, given back to it: nothing changes."""
    file = host.call("get_host_spec")
    assert "gpu0" in file.daemons.to_dict()
    assert host.call("apply_host_spec", body=file, dry_run=True).changes == []
    assert host.call("adopt_lost_daemons", dry_run=True).daemons == []


def incident(host):
    """A control daemon is killed, which is an incident that recovers and is acknowledged."""
    os.kill(host.call("get_daemon", "gpu0").status.pid, signal.SIGKILL)
    state, kind = m.IncidentState.RECOVERED, m.IncidentKind.DAEMON_DIED
    found = eventually(lambda: host.call("list_incidents", kind=kind, state=state).items or None, "it recovers")
    assert host.call("get_incident", found[0].id).daemon == "gpu0"
    note = m.AcknowledgeIncidentRequest(note="killed by hand")
    assert host.call("acknowledge_incident", found[0].id, body=note).acknowledged.note == "killed by hand"
    host.ready()


def who_may_call(host):
    """Tokens and sessions: made, used, and over at once."""
    assert host.call("whoami").grant == "admin"
    request = m.TokenRequest(name="ci", grant="viewer", expires_in_s=3600)
    made = host.call("create_token", body=request, expect=201)
    viewer = AuthenticatedClient(base_url=host.url, token=made.secret)
    assert host.call("whoami", client=viewer).grant == "viewer"
    refused = host.call("delete_tenant", "demo", client=viewer, expect=403)
    assert refused.type_ == "urn:mps-manager:problem:forbidden"
    assert made.token.id in [token.id for token in host.call("list_tokens").items]
    assert host.call("get_token", made.token.id).name == "ci"

    # A browser sends with each request which page it is for.
    browser = Client(base_url=host.url, headers={"Origin": host.url})
    login = m.LoginRequest(token=made.secret)
    host.call("open_session", body=login, client=browser, expect=201)
    assert browser.get_httpx_client().cookies, "the session has a cookie"
    assert host.call("get_session", client=browser).grant == "viewer"
    assert len(host.call("list_sessions").items) == 1
    host.call("end_session", client=browser, expect=204)
    host.call("end_sessions", token=made.token.id, expect=204)
    assert host.call("create_login_url", expect=201).url.startswith("http://")
    host.call("revoke_token", made.token.id, expect=204)
    host.call("whoami", client=viewer, expect=401)


def what_happened(host):
    """The journal, in pages and as a stream, the audit and the metrics."""
    events = host.call("list_events", type_="daemon.", limit=5).items
    assert events and host.call("get_event", events[0].id).type_ == events[0].type_
    assert host.call("get_daemon_log", "gpu0").lines
    rows = host.call("list_audit", limit=5).items
    assert host.call("get_audit_head").id >= rows[0].id
    assert 'mps_manager_daemon_up{daemon="gpu0"} 1.0' in host.call("get_metrics").splitlines()
    # The generated call would read to the end of the stream, which has none: its request is sent, and the first message read.
    module = importlib.import_module("mps_manager_client.api.events.stream_events")
    called.add("stream_events")
    request = module._get_kwargs(after=0)
    with host.client.get_httpx_client().stream(**request) as stream:
        assert stream.status_code == 200 and "text/event-stream" in stream.headers["content-type"]
        assert any(line.startswith("data:") for line in stream.iter_lines())


def main():
    a, b = Host("A"), Host("B")
    probes_and_host(a)
    life_of_a_tenant(a)
    life_of_a_daemon(a)
    life_of_a_layout(a, b)
    who_may_call(a)
    host_as_a_file(a)
    incident(a)
    what_happened(a)
    daemon_of_somebody_else(b)
    maintenance(b)
    missing = set(TAGS) - called
    print(f"python: {len(called)} of {len(TAGS)} operations called")
    if missing:
        sys.exit(f"never called: {', '.join(sorted(missing))}")


if __name__ == "__main__":
    main()
