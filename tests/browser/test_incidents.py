"""Incidents: acknowledging several, their weights, and the page of one."""

import os
import re
import signal

from playwright.sync_api import expect

from host import eventually


def kill(host, daemon, times):
    """Kills the control daemon of a daemon several times; each is an incident."""
    for death in range(1, times + 1):
        def killed():
            status = host.api("GET", f"/daemons/{daemon}")["status"]
            if status["pid"] and status["deaths"] == death - 1:
                os.kill(status["pid"], signal.SIGKILL)
                return True
            return False

        eventually("there is a daemon to kill", killed)
        eventually("its death is noticed", lambda: host.api("GET", f"/daemons/{daemon}")["status"]["deaths"] == death)
        eventually("it is back", lambda: host.status_of(f"/readyz/daemons/{daemon}") == 200)


def test_several_incidents_are_acknowledged_at_once(own_host, visitor):
    for daemon in ("gpu0", "gpu1"):
        kill(own_host, daemon, 3)
    incidents = own_host.api("GET", "/incidents")["items"]
    assert len(incidents) >= 5, incidents
    visit = visitor(own_host)
    page = visit.log_in()
    expect(page.locator(".alerts > li.repaired")).to_have_count(3)
    folded = page.locator(".alerts .folded")
    expect(folded.locator("summary")).to_have_text(re.compile(rf"{len(incidents) - 3} more were repaired in the last hour, without lost work: Show"))
    visit.accessible()
    folded.locator("summary").click()
    expect(folded.get_by_role("link", name="View incident").first).to_be_visible()
    visit.accessible()
    if visit.scripted:
        # What is unfolded stays so when the page follows the host.
        own_host.api("POST", "/daemons/gpu1/cordon")
        expect(page.get_by_text("cordoned").first).to_be_visible()
        expect(folded.get_by_role("link", name="View incident").first).to_be_visible()
    page.get_by_role("button", name=f"Acknowledge all {len(incidents)} shown").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    expect(page.locator(".alerts")).to_have_count(0)
    assert all(incident["acknowledged"]["by"] == "admin token" for incident in own_host.api("GET", "/incidents")["items"])
    rows = own_host.api("GET", "/audit?limit=20")["items"]
    targets = {row["target"] for row in rows if row["action"] == "POST /incidents/acknowledge"}
    assert targets == {f"incidents/{incident['id']}/acknowledge" for incident in incidents}


def test_viewer_acknowledges_nothing(own_host, visitor):
    kill(own_host, "gpu0", 1)
    page = visitor(own_host).log_in(own_host.token_for("viewer"))
    for path in ["/", "/incidents"]:
        page.goto(path)
        expect(page.get_by_text("control daemon died").first).to_be_visible()
        expect(page.get_by_role("button", name=re.compile("Acknowledge"))).to_have_count(0)


def test_list_acknowledges_what_it_shows(own_host, visitor):
    kill(own_host, "gpu0", 1)
    kill(own_host, "gpu1", 2)
    visit = visitor(own_host)
    page = visit.log_in(to="/incidents?daemon=gpu1&acknowledged=no")
    page.get_by_role("button", name="Acknowledge all 2 shown").click()
    expect(page).to_have_url(re.compile(r"/incidents\?daemon=gpu1&acknowledged=no$"))
    expect(page.get_by_text("No incident matches")).to_be_visible()
    assert [one["daemon"] for one in own_host.api("GET", "/incidents?acknowledged=false")["items"]] == ["gpu0"]


def test_fault_page_says_who_lost_work(own_host, visitor):
    host = own_host
    host.api("PUT", "/tenants/demo", {**host.api("GET", "/tenants/demo")["spec"], "max_clients": 4})
    eventually("gpu0 is ready", lambda: host.status_of("/readyz/daemons/gpu0") == 200)
    host.client("batch", "--spin", "600", "--alloc", "64")
    host.client("demo", "--spin", "600", "--alloc", "64")
    host.client("demo", "--spin", "600", "--alloc", "64", "--fault-after", "2")
    incident = eventually("the fault is over", lambda: next(iter(host.api("GET", "/incidents?kind=gpu_fault&state=recovered")["items"]), None))
    visit = visitor(host)
    page = visit.log_in(to=f"/incidents/{incident['id']}")
    expect(page.locator("p.lead")).to_contain_text(re.compile(r"recovered after .*3 processes of 2 tenants lost their work"))
    expect(page.locator(".incident-summary")).to_contain_text("Fatal GPU fault on gpu0: 3 clients of batch and demo lost their work")
    named = page.locator(".cause").get_by_role("row").filter(has_text="Named by MPS")
    expect(named).to_contain_text("says nothing about the cause")
    lost = page.locator(".lost")
    expect(lost.get_by_role("rowheader")).to_have_count(2)
    expect(lost.get_by_role("cell", name="root").first).to_be_visible()
    # The command has its arguments, as on the page of a client.
    expect(lost.locator("td.command code").first).to_have_text(re.compile(r" sim client --"))
    visit.accessible()
    # The page of a client that is gone leads back.
    lost.locator("td.number a").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("gone")
    page.get_by_role("main").get_by_role("link", name=f"incident {incident['id']}").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(f"Incident {incident['id']}")
    page.goto(f"/events?incident={incident['id']}")
    assert page.locator(".events > li").count() == min(50, len(incident["events"]))
    visit.accessible()


def test_repairing_action_depends_on_the_role(own_host, visitor):
    host = own_host
    spec = host.api("GET", "/daemons/gpu0")["spec"]
    host.api("PUT", "/daemons/gpu0", {**spec, "drift_policy": "report"})
    eventually("gpu0 is ready", lambda: host.status_of("/readyz/daemons/gpu0") == 200)
    pipe = host.api("GET", "/daemons/gpu0")["status"]["pipe_directory"]
    host.control(pipe, "set_default_active_thread_percentage 30")
    drift = eventually("the drift is an incident", lambda: next(iter(host.api("GET", "/incidents?kind=drift")["items"]), None))
    page = visitor(host).log_in(to=f"/incidents/{drift['id']}")
    expect(page.locator(".incident-summary")).to_contain_text(
        re.compile(r"Another program changed settings of gpu0: default active thread percentage is 30 % instead of \d+ %"))
    expect(page.get_by_role("link", name="Save the daemon again")).to_have_attribute("href", "/daemons/gpu0/edit")
    viewer = visitor(host).log_in(host.token_for("viewer"), to=f"/incidents/{drift['id']}")
    expect(viewer.get_by_role("link", name="Save the daemon again")).to_have_count(0)
