"""Hosts with a problem, without any content, and as users with fewer rights see them."""

import os
import signal
import subprocess

from host import BINARY, eventually
from pages import clear, more
from test_layouts import add, fill, press, static, write
from test_layouts_on_daemons import OTHER_DIE, past_the_manager


def bare(host):
    """Deletes everything, as on a new host."""
    for daemon in host.api("GET", "/daemons")["items"]:
        clear(host, daemon["name"])
        host.done(host.api("DELETE", f"/daemons/{daemon['name']}?grace_s=0"))


def phase(host, daemon, wanted):
    eventually(f"{daemon} is {wanted}", lambda: host.api("GET", f"/daemons/{daemon}")["status"]["phase"] == wanted)


def empty(host, show):
    bare(host)
    for page in ["overview", "gpus", "daemons", "tenants", "clients", "layouts", "replays", "operations", "tokens"]:
        show(f"empty-{page}", "/" if page == "overview" else f"/{page}")
    show("empty-tenant-new", "/tenants/-/new")
    show("empty-viewer", "/", token=host.token_for("viewer", "reader"))


def crash_loop(host, show):
    for death in range(1, 6):
        def killed():
            pid = host.api("GET", "/daemons/gpu1")["status"]["pid"]
            if pid:
                os.kill(pid, signal.SIGKILL)
            return pid

        eventually("there is a daemon to kill", killed)
        eventually("its death is detected", lambda: host.api("GET", "/daemons/gpu1")["status"]["deaths"] == death)
    phase(host, "gpu1", "crash_loop")
    show("crash-loop-overview", "/")
    show("crash-loop-daemon", "/daemons/gpu1")


def wedged(host, show):
    host.client("demo", "--spin", "3600", "--alloc", "256")
    pid = host.api("GET", "/daemons/gpu0")["status"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        phase(host, "gpu0", "wedged")
        show("wedged-overview", "/")
        show("wedged-daemon", "/daemons/gpu0")
        show("wedged-tenant", "/tenants/demo")
    finally:
        os.kill(pid, signal.SIGCONT)


def bypass(host, show):
    """A process outside MPS, and a client without a tenant."""
    world = str(host.home / "run/sim")
    command = [BINARY, "sim", "client", "--spin", "3600", "--alloc", "512", "--gpus", "0"]
    host.clients.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, env={"MPS_SIM_WORLD": world}))
    eventually("the bypass is detected", lambda: any(one["kind"] == "bypass" for one in host.api("GET", "/gpus/0")["processes"] or []))
    pipe = host.api("GET", "/daemons/gpu1")["status"]["pipe_directory"]
    environment = {"MPS_SIM_WORLD": world, "CUDA_MPS_PIPE_DIRECTORY": pipe}
    host.clients.append(subprocess.Popen(command[:-2], stdout=subprocess.DEVNULL, env=environment))
    eventually("the client is listed", lambda: host.api("GET", "/clients?daemon=gpu1&fresh=true")["items"])
    show("bypass-overview", "/")
    show("bypass-gpu", "/gpus/0")
    show("bypass-clients", "/clients")


def over_committed(host, show):
    spec = host.api("GET", "/daemons/gpu0")["spec"]
    host.api("PUT", "/daemons/gpu0", {**spec, "memory_overcommit": 2})
    host.api("PUT", "/tenants/large", {"daemon": "gpu0", "uid": 0, "device_memory_limit": "100G", "max_clients": 2})
    show("over-committed-overview", "/")
    show("over-committed-gpu", "/gpus/0")


def ended(host, show):
    """A client that was terminated, an operation that failed, and one in progress."""
    host.client("demo", "--spin", "3600", "--alloc", "256")
    client = host.api("GET", "/clients?tenant=demo")["items"][0]["id"]
    failed = host.api("POST", "/daemons/gpu0/drain?timeout_s=1&on_timeout=fail")["id"]
    eventually("it fails", lambda: host.api("GET", f"/operations/{failed}")["state"] == "failed")
    show("failed-operation", f"/operations/{failed}")
    show("failed-overview", "/")
    running = host.api("POST", "/daemons/gpu0/drain?timeout_s=600")["id"]
    eventually("it runs", lambda: host.api("GET", f"/operations/{running}")["state"] == "running")
    show("running-operation", f"/operations/{running}")
    host.api("POST", f"/operations/{running}/cancel")
    eventually("it ends", lambda: host.api("GET", f"/operations/{running}")["state"] == "cancelled")
    host.done(host.api("POST", f"/clients/{client}/terminate"))
    show("terminated-client", f"/clients/{client}")
    show("operations-of-all-kinds", "/operations")
    host.done(host.api("POST", "/daemons/gpu1/stop?grace_s=0"))
    show("stopped-overview", "/")
    show("stopped-daemon", "/daemons/gpu1")


def foreign_and_drifted(host, show):
    """A foreign daemon, changed settings, and maintenance."""
    spec = host.api("GET", "/daemons/gpu0")["spec"]
    host.api("PUT", "/daemons/gpu0", {**spec, "drift_policy": "report"})
    eventually("gpu0 is ready", lambda: host.status_of("/readyz/daemons/gpu0") == 200)
    pipe = host.api("GET", "/daemons/gpu0")["status"]["pipe_directory"]
    host.control(pipe, "set_default_active_thread_percentage 7")
    eventually("the drift is detected", lambda: host.api("GET", "/daemons/gpu0?fresh=true")["status"]["drift"]["present"])
    show("drifted-overview", "/")
    show("drifted-daemon", "/daemons/gpu0")
    server = host.api("GET", "/daemons/gpu0")["status"]["effective"]["servers"][0]["pid"]
    host.control(pipe, f"set_active_thread_percentage {server} 10")
    assert host.verified("demo")["outcome"] == "differs"
    show("differing-tenant", "/tenants/demo")
    clear(host, "gpu1")
    host.done(host.api("DELETE", "/daemons/gpu1?grace_s=0"))
    host.foreign("theirs", "1")
    listed = eventually("the foreign daemon is listed", lambda: host.api("GET", "/foreign-daemons")["items"])
    show("foreign-daemons", "/daemons")
    show("foreign-daemon", f"/foreign-daemons/{listed[0]['id']}")
    host.done(host.api("POST", "/host/maintenance", {"gpus": ["0"], "timeout_s": 5}))
    show("maintenance-overview", "/")
    show("maintenance-settings", "/settings")
    show("maintenance-gpu", "/gpus/0")


def layouts(host, show):
    """A layout that drifted, one that percentages enforce, and one that is refused."""
    static(host)
    write(host, "prod", add("web", 7), add("batch", 5))
    host.done(host.api("POST", "/layouts/prod/apply", {"daemon": "gpu1", "gpu_map": {"0": "1"}}))
    past_the_manager(host, f"sm_partition add {host.api('GET', '/gpus/1')['uuid']} 2")
    eventually("the drift is detected", lambda: host.api("GET", "/daemons/gpu1?fresh=true")["status"]["layout"]["state"] == "drifted")
    show("drifted-layout", "/layouts/prod")
    show("drifted-layout-plan", "/layouts/prod/apply?daemon=gpu1")
    show("drifted-layout-gpu", "/gpus/1")
    steps = [add("half", 8, "demo"), add("rest", 7)]
    host.api("PUT", "/layouts/shares", {"layout": {"enforcement": "percentage", "steps": steps}})
    show("percentage-plan", "/layouts/shares/apply?daemon=gpu0")

    def mistaken(page):
        page.get_by_label("Name").fill("Not A Name")
        fill(page, add("web", 7, "a", "a"), add("batch", 16))
        press(page, "Create")
        page.get_by_role("alert").wait_for()

    show("refused-layout", "/layouts/-/new", mistaken)


def forms(host, show):
    def tenant(page):
        page.get_by_label("Name", exact=True).fill("Not A Name")
        page.get_by_label("Memory limit").fill("1.5G")
        page.get_by_label("Max clients").fill("many")
        page.get_by_label("A number of SMs").check()
        page.get_by_label("SMs", exact=True).fill("33")
        press(page, "Create tenant")
        page.get_by_role("alert").wait_for()

    def daemon(page):
        page.get_by_label("Name", exact=True).fill("gpu0")
        more(page, "#defaults")
        more(page, "#expert")
        page.get_by_label("Device memory limit").fill("lots")
        page.get_by_label("Memory over-commit").fill("twice")
        press(page, "Set up")
        page.get_by_role("alert").wait_for()

    def token(page):
        page.get_by_label("Name").fill("CI")
        page.get_by_label("Role").fill("king")
        press(page, "Create token")
        page.get_by_role("alert").wait_for()

    def made(page):
        page.get_by_label("Name").fill(f"robot_{page.viewport_size['width']}")
        page.get_by_label("Role").fill("operator")
        press(page, "Create token")
        page.locator("#secret").wait_for()

    def unsent(page):
        page.get_by_label("Memory limit").fill("6G")
        page.context.clear_cookies()
        press(page, "Save")
        page.get_by_label("Token").fill(host.token)
        press(page, "Log in")
        page.get_by_role("button", name="Submit", exact=True).wait_for()

    show("wrong-tenant", "/tenants/-/new", tenant)
    show("wrong-daemon", "/daemons/-/new", daemon)
    show("wrong-token", "/tokens/new", token)
    show("made-token", "/tokens/new", made)
    show("wrong-filter", "/events?daemon=GPU!&within=never")
    show("no-match", "/tenants?q=nobody")
    show("unsent", "/tenants/demo/edit", unsent)


def fewer_rights(host, show):
    host.client("demo", "--spin", "3600", "--alloc", "256")
    bound = host.token_for("tenant:demo", "theirs")
    for page in ["tenants", "clients", "operations", "events", "settings"]:
        show(f"bound-{page}", f"/{page}", token=bound)
    show("bound-tenant", "/", token=bound)
    show("bound-forbidden", "/daemons", token=bound)
    viewer = host.token_for("viewer", "reader")
    for name, place in [("overview", "/"), ("daemon", "/daemons/gpu0"), ("tenant", "/tenants/demo"), ("layouts", "/layouts"),
                        ("settings", "/settings"), ("forbidden", "/tokens")]:
        show(f"viewer-{name}", place, token=viewer)


def many(host, show):
    """More tenants than a page of the list shows, some with long names."""
    for number in range(100):
        name = f"a_team_with_quite_a_long_name_{number}" if number % 7 == 0 else f"team_{number}"
        host.api("PUT", f"/tenants/{name}", {"daemon": f"gpu{number % 2}", "uid": 0, "device_memory_limit": "1G"})
    for number in range(1, 13):
        name = f"team_{number}" if number % 7 else f"a_team_with_quite_a_long_name_{number}"
        host.client(name, "--spin", "3600", "--alloc", str(20 * number))
    eventually("all are ready", lambda: host.status_of("/readyz") == 200)
    for place in ["tenants", "daemons", "audit", "events"]:
        show(f"many-{place}", f"/{place}")
    show("many-overview", "/")
    show("many-daemon", "/daemons/gpu1")
    show("many-gpu", "/gpus/1")


def replayed(hosts, show):
    """A replay that finds another ID than the recorded one."""
    here, there = hosts
    for host in hosts:
        static(host)
    write(here, "prod", add("web", 7), add("gap", 2), add("batch", 5), {"remove": {"partition": "gap"}})
    here.done(here.api("POST", "/layouts/prod/apply", {"daemon": "gpu1", "gpu_map": {"0": "1"}}))
    document = here.api("GET", "/layouts/prod/export?daemon=gpu1")
    replay = there.api("POST", "/replays", {"document": document, "daemon": "gpu1", "gpu_map": {"0": "1"}})["operation"]
    eventually("it ends", lambda: there.api("GET", f"/operations/{replay['id']}")["state"] not in ("pending", "running"))
    record = there.api("GET", "/replays")["items"][0]["id"]
    show("mismatch-replay", f"/replays/{record}")
    show("mismatch-replays", "/replays")
    show("mismatch-operation", f"/operations/{replay['id']}")
    show("mismatch-daemon", "/daemons/gpu1")


# Each has hosts of its own, with these profiles; the last one is pictured.
STATES = [(state, ["h200x2"]) for state in
          [empty, crash_loop, wedged, bypass, over_committed, ended, foreign_and_drifted, layouts, forms, fewer_rights]]
STATES += [(many, ["h200x2"]), (replayed, ["h200x2", OTHER_DIE])]
