"""User journeys by clicks: a new operator's from the log-in to the end of a client, and faults while a user watches."""

import os
import signal
import subprocess

import pytest
from playwright.sync_api import expect

from host import BINARY, eventually
from pages import card
from test_daemon_forms import emptied
from test_operations import follow


def place(page, name):
    """Opens a section of the menu."""
    page.get_by_role("navigation").get_by_role("link", name=name, exact=True).click()


def as_shown(host, command):
    """Runs the command that a page shows, in a shell whose PATH has the program."""
    programs = host.home / "programs"
    programs.mkdir()
    (programs / "mps-manager").symlink_to(BINARY)
    environment = {**host.environment, "PATH": f"{programs}:{os.environ['PATH']}", "MPS_MANAGER_RUNTIME_DIR": str(host.home / "run")}
    process = subprocess.Popen(["sh", "-c", f"exec {command}"], env=environment, stdout=subprocess.DEVNULL)
    host.clients.append(process)
    return process


def test_first_log_in_to_client_termination(own_host, visitor, scripted):
    host = own_host
    emptied(host)
    visit = visitor(host)
    page = visit.page
    page.goto(host.login_url())
    expect(page.get_by_text("This link logs you in once")).to_be_visible()
    page.get_by_role("button", name="Log in").click()
    title = page.get_by_role("heading", level=1)

    # The overview of a host without daemons offers the first step.
    expect(title).to_have_text("Overview")
    expect(page.get_by_text("so nothing on it is managed")).to_be_visible()
    visit.accessible()
    page.get_by_role("link", name="Set up a daemon on GPU 0").click()
    page.get_by_role("button", name="Set up").click()
    expect(title).to_contain_text("Daemon gpu0")
    follow(page, scripted, lambda ms: expect(title).to_contain_text("ready", timeout=ms))
    page.get_by_role("link", name="Add a tenant").click()
    expect(page.get_by_label("Daemon", exact=True)).to_have_value("gpu0")
    page.get_by_label("Name", exact=True).fill("web")
    page.get_by_label("User", exact=True).fill(str(os.getuid()))
    page.get_by_label("Memory limit").fill("4G")
    page.get_by_role("button", name="Create tenant").click()
    expect(title).to_contain_text("web")
    follow(page, scripted, lambda ms: expect(title).to_contain_text("ready", timeout=ms))

    # Its page shows the command that starts a process, and it works.
    command = page.locator("#clients ~ .panel .empty code").text_content()
    assert command == "mps-manager run --tenant web -- COMMAND"
    process = as_shown(host, command.replace("COMMAND", "mps-manager sim client --spin 600 --alloc 512"))
    pid = str(process.pid)
    row = page.get_by_role("group", name="Clients").get_by_role("row", name=pid)
    follow(page, scripted, lambda ms: expect(row).to_be_visible(timeout=ms))
    expect(page.get_by_role("row", name="Processes at once")).to_contain_text("1 connected")
    place(page, "Overview")
    card(page, "gpu0").get_by_role("link", name="1 client", exact=True).click()
    expect(title).to_contain_text("Daemon gpu0")
    page.get_by_role("group", name="Clients").get_by_role("link", name=pid, exact=True).click()
    expect(title).to_contain_text("connected")
    expect(page.get_by_text("started by mps-manager run")).to_be_visible()
    client = page.url

    # The steps run in the order that was shown before, and each is confirmed.
    page.get_by_role("link", name="Terminate").click()
    expect(page.get_by_role("main").get_by_role("listitem")).to_have_count(3)
    expect(page.get_by_role("listitem").filter(has_text="MPS ends its work")).to_be_visible()
    page.get_by_role("button", name=f"Terminate client {pid}").click()
    expect(title).to_contain_text(f"Terminate client {pid}")
    follow(page, scripted, lambda ms: expect(page.locator("dl.facts [role=status]")).to_have_text("succeeded", timeout=ms))
    steps = page.locator("table.steps tbody tr")
    expect(steps.locator("th")).to_have_text(["ask MPS to end its work", "end its process", "confirm that it is gone"])
    expect(steps).to_contain_text(["MPS ended its work", "ended by itself", "no longer lists it"])
    visit.accessible()
    process.wait(30)
    title.get_by_role("link", name=f"client {pid}").click()
    assert page.url == client
    follow(page, scripted, lambda ms: expect(title).to_contain_text("gone", timeout=ms))
    expect(page.locator(".events").get_by_text("client.terminated")).to_be_visible()
    place(page, "Tenants")
    page.get_by_role("link", name="web", exact=True).click()
    expect(page.get_by_text("No process of this tenant is connected")).to_be_visible()
    expect(page.get_by_text("client.terminated").first).to_be_visible()
    place(page, "Overview")
    expect(card(page, "gpu0").get_by_role("link", name="0 clients", exact=True)).to_be_visible()
    expect(page.get_by_text("All systems healthy")).to_be_visible()


def server_of(host):
    servers = lambda: (host.api("GET", "/daemons/gpu0?fresh=true")["status"]["effective"] or {"servers": []})["servers"]
    return eventually("there is a server", servers)[0]["pid"]


def four_pages(visitor, host, client):
    """The overview, the daemon, the tenant and the client, each in a tab of one visitor, and the visitor."""
    visit = visitor(host)
    pages = {"/": visit.log_in()}
    for path in ["/daemons/gpu0", "/tenants/demo", f"/clients/{client}"]:
        pages[path] = visit.context.new_page()
        pages[path].goto(path)
    if visit.scripted:
        for page in pages.values():
            expect(page.locator("#connection")).to_have_text("live")
            page.evaluate("window.untouched = true")
    return visit, list(pages.values())


def assert_not_reloaded(visit, pages):
    """With a script, the pages were updated in place."""
    if visit.scripted:
        for page in pages:
            assert page.evaluate("window.untouched"), f"{page.url} was reloaded"


@pytest.mark.parametrize("fault", ["a server is killed", "a client faults"])
def test_fault_shows_its_clients_and_events(own_host, visitor, scripted, fault):
    host = own_host
    spec = host.api("GET", "/tenants/demo")["spec"]
    host.api("PUT", "/tenants/demo", {**spec, "max_clients": 2})
    bystander = host.client("demo", "--spin", "600", "--alloc", "64")
    [listed] = host.api("GET", "/clients?tenant=demo&fresh=true")["items"]
    visit, pages = four_pages(visitor, host, listed["id"])
    overview, daemon, tenant, client = pages
    processes, clients = daemon.get_by_role("group", name="Processes"), daemon.get_by_role("group", name="Clients")
    server = server_of(host)
    expect(processes.get_by_role("cell", name=str(server))).to_be_visible()
    expect(clients.get_by_role("row", name=str(bystander.pid))).to_be_visible()
    expect(card(overview, "gpu0").get_by_role("link", name="1 client", exact=True)).to_be_visible()
    expect(client.get_by_role("heading", level=1)).to_contain_text("connected")

    if fault == "a server is killed":
        os.kill(server, signal.SIGKILL)
        reported, events = "server.died", ["server.died"]
    else:
        # The fault of one client ends all clients of the GPU.
        host.client("demo", "--spin", "600", "--alloc", "64", "--fault-after", "5")
        reported, events = "server.fault", ["server.fault"]

    seen = lambda page, check: follow(page, scripted, lambda ms: check(page, ms))
    seen(client, lambda page, ms: expect(page.get_by_role("heading", level=1)).to_contain_text("gone", timeout=ms))
    seen(client, lambda page, ms: expect(page.locator(".events").get_by_text("client.left")).to_be_visible(timeout=ms))
    seen(tenant, lambda page, ms: expect(page.get_by_text("No process of this tenant is connected")).to_be_visible(timeout=ms))
    seen(tenant, lambda page, ms: expect(page.locator(".events").get_by_text("client.left").first).to_be_visible(timeout=ms))
    seen(daemon, lambda page, ms: expect(clients.get_by_role("row", name=str(bystander.pid))).to_have_count(0, timeout=ms))
    for event in events:
        seen(daemon, lambda page, ms: expect(page.locator(".events").get_by_text(event).first).to_be_visible(timeout=ms))
    seen(overview, lambda page, ms: expect(card(page, "gpu0").get_by_role("link", name="0 clients", exact=True)).to_be_visible(timeout=ms))
    seen(overview, lambda page, ms: expect(page.locator(".events").get_by_text(reported).first).to_be_visible(timeout=ms))
    assert_not_reloaded(visit, pages)

    if fault == "a client faults":
        # The same sentence stands on each page that it concerns.
        for page in (overview, daemon, tenant):
            expect(page.locator(".alerts")).to_contain_text("Fatal GPU fault")
        overview.get_by_role("link", name="View incident").first.click()
        expect(overview.get_by_role("main")).to_contain_text(str(bystander.pid))
        visit.page = overview
        visit.accessible()
        place(overview, "Overview")
    for page in pages[1:]:
        visit.page = page
        visit.accessible()
    # The next client runs as before.
    bystander.wait(30)
    host.client("demo", "--spin", "600", "--alloc", "64")
    seen(daemon, lambda page, ms: expect(page.get_by_role("heading", level=1)).to_contain_text("ready", timeout=ms))
    seen(overview, lambda page, ms: expect(card(page, "gpu0").get_by_role("link", name="1 client", exact=True)).to_be_visible(timeout=ms))
