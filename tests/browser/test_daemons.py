"""Daemons: shown, restarted, drained, cordoned, and the death of a server while a user watches."""

import os
import signal

from playwright.sync_api import expect

from host import eventually
from pages import more
from test_operations import follow


def daemon_of(host, name):
    return host.api("GET", f"/daemons/{name}?fresh=true")


def server_of(host, name):
    return eventually("a server", lambda: (daemon_of(host, name)["status"]["effective"] or {"servers": []})["servers"])[0]


def test_daemon_list_links_to_full_detail(own_host, visitor):
    host = own_host
    process = host.client("demo", "--spin", "600", "--alloc", "512")
    visit = visitor(host)
    page = visit.log_in(to="/daemons")
    row = page.get_by_role("row", name="gpu0")
    expect(row).to_contain_text("ready")
    expect(row).to_contain_text("shared")
    expect(page.get_by_text("None on this host")).to_be_visible()
    visit.accessible()
    row.get_by_role("link", name="gpu0").click()
    status = daemon_of(host, "gpu0")["status"]
    processes = page.get_by_role("group", name="Processes")
    expect(processes.get_by_role("row", name="Control daemon")).to_contain_text(str(status["pid"]))
    expect(processes.get_by_role("row", name="Server")).to_contain_text("ACTIVE")
    client = page.get_by_role("group", name="Clients").get_by_role("row", name=str(process.pid))
    expect(client.get_by_role("link", name="demo")).to_have_attribute("href", "/tenants/demo")
    listed = host.api("GET", "/clients?tenant=demo")["items"][0]
    expect(client.get_by_role("link", name=str(process.pid), exact=True)).to_have_attribute("href", f"/clients/{listed['id']}")
    expect(page.get_by_role("group", name="Settings").get_by_text("differs")).to_have_count(0)
    expect(page.get_by_role("group", name="Settings").get_by_text("as desired").first).to_be_visible()
    visit.accessible()


def test_daemon_restart_is_confirmed_and_live(own_host, visitor, scripted):
    host = own_host
    process = host.client("demo", "--spin", "600", "--alloc", "64")
    before = daemon_of(host, "gpu0")["status"]["pid"]
    visit = visitor(host)
    page = visit.log_in(to="/daemons/gpu0")
    more(page)
    page.get_by_role("link", name="Restart…").click()
    expect(page.get_by_role("heading", name="1 client is connected")).to_be_visible()
    expect(page.get_by_role("row", name=str(process.pid))).to_contain_text("demo")
    visit.accessible()
    grace = page.get_by_label("Grace period in seconds")
    expect(grace).to_have_value("10")
    grace.fill("soon")
    page.get_by_role("button", name="Restart gpu0").click()
    expect(page.locator("#wrong-grace_s")).to_contain_text('"soon" is not a whole number')
    expect(grace).to_have_attribute("aria-invalid", "true")
    expect(grace).to_have_value("soon")
    visit.accessible()
    grace.fill("0")
    page.get_by_role("button", name="Restart gpu0").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Restart daemon gpu0")
    follow(page, scripted, lambda ms: expect(page.locator("dl.facts [role=status]")).to_have_text("succeeded", timeout=ms))
    page.get_by_role("heading", level=1).get_by_role("link", name="daemon gpu0").click()
    assert daemon_of(host, "gpu0")["status"]["pid"] != before
    expect(page.get_by_role("heading", level=1)).to_contain_text("ready")
    rows = host.api("GET", "/audit")["items"]
    assert any(row["action"] == "POST /daemons/{name}/restart" and row["target"] == "daemons/gpu0" for row in rows), rows


def test_daemon_is_cordoned_drained_stopped_and_started(own_host, visitor, scripted):
    host = own_host
    visit = visitor(host)
    page = visit.log_in(to="/daemons/gpu1")
    state = page.get_by_role("heading", level=1)
    more(page)
    page.get_by_role("button", name="Cordon", exact=True).click()
    expect(state).to_contain_text("cordoned")
    page.get_by_role("button", name="Uncordon").click()
    expect(state).not_to_contain_text("cordoned")
    more(page)
    page.get_by_role("link", name="Drain…").click()
    expect(page.get_by_role("heading", name="No client is connected")).to_be_visible()
    page.get_by_label("Timeout in seconds").fill("9")
    page.get_by_label("are terminated").check()
    visit.accessible()
    page.get_by_role("button", name="Drain gpu1").click()
    ended = page.locator("dl.facts [role=status]")
    follow(page, scripted, lambda ms: expect(ended).to_have_text("succeeded", timeout=ms))
    expect(page.get_by_text("they are terminated")).to_be_visible()
    page.goto("/daemons/gpu1")
    expect(state).to_contain_text("cordoned")
    more(page)
    page.get_by_role("link", name="Stop…").click()
    page.get_by_label("Grace period in seconds").fill("1")
    page.get_by_role("button", name="Stop gpu1").click()
    follow(page, scripted, lambda ms: expect(ended).to_have_text("succeeded", timeout=ms))
    page.goto("/daemons/gpu1")
    expect(state).to_contain_text("stopped")
    expect(page.get_by_role("link", name="Restart…")).to_have_count(0)
    page.get_by_role("button", name="Start", exact=True).click()
    follow(page, scripted, lambda ms: expect(ended).to_have_text("succeeded", timeout=ms))


def test_server_death_appears_without_reload(own_host, visitor, scripted):
    host = own_host
    process = host.client("demo", "--spin", "600", "--alloc", "64")
    visit = visitor(host)
    page = visit.log_in(to="/daemons/gpu0")
    clients = page.get_by_role("group", name="Clients")
    expect(clients.get_by_role("row", name=str(process.pid))).to_be_visible()
    server = server_of(host, "gpu0")["pid"]
    expect(page.get_by_role("group", name="Processes").get_by_role("cell", name=str(server))).to_be_visible()
    os.kill(server, signal.SIGKILL)

    def gone(ms):
        expect(page.get_by_role("group", name="Processes").get_by_role("cell", name=str(server))).to_have_count(0, timeout=ms)
        expect(clients.get_by_role("row", name=str(process.pid))).to_have_count(0, timeout=ms)
        expect(page.locator(".events").get_by_text("server.", exact=False).first).to_be_visible(timeout=ms)

    follow(page, scripted, gone)
    visit.accessible()


def test_drift_shows_desired_and_effective_values(own_host, visitor, scripted):
    host = own_host
    spec = host.api("GET", "/daemons/gpu0")["spec"]
    host.api("PUT", "/daemons/gpu0", {**spec, "drift_policy": "report"})
    eventually("gpu0 is ready", lambda: host.status_of("/readyz/daemons/gpu0") == 200)
    visit = visitor(host)
    page = visit.log_in(to="/daemons/gpu0")
    host.control(daemon_of(host, "gpu0")["status"]["pipe_directory"], "set_default_active_thread_percentage 7")
    daemon_of(host, "gpu0")
    row = page.get_by_role("group", name="Settings").get_by_role("row", name="Active thread percentage, default")
    follow(page, scripted, lambda ms: expect(row).to_contain_text("differs", timeout=ms))
    expect(row).to_contain_text("7.0 %")
    visit.accessible()


def test_viewer_gets_no_daemon_actions(host, visitor):
    visit = visitor(host)
    page = visit.log_in(host.token_for("viewer"), to="/daemons/gpu0")
    expect(page.get_by_role("link", name="Logs")).to_be_visible()
    expect(page.get_by_role("button", name="Cordon")).to_have_count(0)
    expect(page.get_by_role("link", name="Restart…")).to_have_count(0)
    page.goto("/daemons/gpu0/restart")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Forbidden")
    operator = visitor(host)
    page = operator.log_in(host.token_for("operator"), to="/daemons/gpu0")
    more(page)
    expect(page.get_by_role("link", name="Restart…")).to_be_visible()
    expect(page.get_by_role("link", name="Delete…")).to_have_count(0)
    page.goto("/daemons/gpu0/delete")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Forbidden")
    admin = visitor(host)
    page = admin.log_in(to="/daemons/gpu0/delete")
    expect(page.get_by_text("This is not possible now")).to_be_visible()
    expect(page.get_by_text("serves the tenants")).to_be_visible()
    admin.accessible()
