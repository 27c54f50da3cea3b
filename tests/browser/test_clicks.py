"""Clicks that an operator's flows take, and the questions that a page or two answer."""

import os
import re
import signal

import pytest
from playwright.sync_api import expect

from host import Host, eventually
from pages import card
from test_daemon_forms import emptied
from test_layouts import add, static, write
from test_operations import follow


class Clicks:
    """Counts what is clicked."""

    def __init__(self, page):
        self.page, self.count = page, 0

    def __call__(self, role, name, within=None, **options):
        found = (within or self.page).get_by_role(role, name=name, **{"exact": isinstance(name, str), **options})
        found.first.click()
        self.count += 1


def test_two_tenants_take_six_clicks(own_host, visitor, scripted):
    host = own_host
    emptied(host)
    visit = visitor(host)
    page, click = visit.page, Clicks(visit.page)
    page.goto(host.login_url())
    click("button", "Log in")
    click("link", "Set up a daemon on GPU 0")
    click("button", "Set up")
    follow(page, scripted, lambda ms: expect(page.get_by_role("heading", level=1)).to_contain_text("ready", timeout=ms))
    click("link", "Add a tenant")
    for name, button in [("web", "Create and add another"), ("batch", "Create tenant")]:
        page.get_by_label("Name", exact=True).fill(name)
        page.get_by_label("User", exact=True).fill(str(os.getuid()))
        click("button", button)
    expect(page.get_by_role("heading", level=1)).to_contain_text("batch")
    client = host.client("batch", "--spin", "600")
    row = page.get_by_role("group", name="Clients").get_by_role("row", name=str(client.pid))
    follow(page, scripted, lambda ms: expect(row).to_be_visible(timeout=ms))
    assert click.count == 6
    assert {"batch", "web"} <= {tenant["name"] for tenant in host.api("GET", "/tenants")["items"]}


def test_new_version_takes_six_clicks(own_host, visitor, scripted):
    host = own_host
    static(host)
    for tenant in ["web", "batch"]:
        host.api("PUT", f"/tenants/{tenant}", {"daemon": "gpu1", "uid": 0, "device_memory_limit": "4G"})
    write(host, "prod", add("web", 7, "web"), add("batch", 5, "batch"))
    host.done(host.api("POST", "/layouts/prod/apply", {"daemon": "gpu1", "gpu_map": {"0": "1"}}))
    client = host.client("batch", "--spin", "600")
    page = visitor(host).log_in()
    click = Clicks(page)
    click("link", re.compile("^prod"), card(page, "gpu1"))
    click("link", "Edit")
    text = page.locator("textarea").first
    text.fill(text.input_value().replace("chunks: 5", "chunks: 6"))
    click("button", re.compile("^Save"))
    click("link", "Plan and apply")
    page.get_by_label("Recreate these partitions").check()
    click("button", "Drain batch, then apply")
    client.kill()
    client.wait()
    follow(page, scripted, lambda ms: expect(page.locator("dl.facts [role=status]")).to_have_text("succeeded", timeout=ms))
    click("link", "GPU 1", page.get_by_role("main"))
    expect(page.get_by_role("img", name="batch: 48 SMs")).to_be_visible()
    assert click.count == 6


@pytest.fixture(scope="module")
def busy():
    """A host with tenants, a layout, a client outside MPS and one that lost its work."""
    host = Host("h200x2")
    static(host)
    for tenant, more in [("web", {"device_memory_limit": "4G", "active_thread_percentage": 25}), ("idle", {"device_memory_limit": "1G"})]:
        host.api("PUT", f"/tenants/{tenant}", {"daemon": "gpu0", "uid": 0, **more})
    host.api("PUT", "/tenants/batch", {"daemon": "gpu1", "uid": 0, "device_memory_limit": "2G"})
    write(host, "prod", add("batch", 5, "batch"))
    host.done(host.api("POST", "/layouts/prod/apply", {"daemon": "gpu1", "gpu_map": {"0": "1"}}))
    lost = host.client("web", "--spin", "600", "--alloc", "256")
    os.kill(host.api("GET", "/daemons/gpu0?fresh=true")["status"]["effective"]["servers"][0]["pid"], signal.SIGKILL)
    eventually("it is an incident", lambda: host.api("GET", "/incidents?tenant=web")["items"])
    lost.wait()
    eventually("gpu0 is back", lambda: host.status_of("/readyz/daemons/gpu0") == 200)
    host.client("batch", "--spin", "600", "--alloc", "512")
    host.lost = lost.pid
    yield host
    host.close()


def test_who_lost_work(busy, visitor):
    page = visitor(busy).log_in()
    click = Clicks(page)
    click("link", "View incident")
    lost = page.get_by_role("main")
    expect(lost).to_contain_text(str(busy.lost))
    expect(lost).to_contain_text("web")
    # The 256 MiB that it allocated, and its context.
    expect(lost).to_contain_text(re.compile(r"\d{3} MiB"))
    assert click.count <= 2


def test_overview_answers_four_questions(busy, visitor):
    page = visitor(busy).log_in()
    # How much is left to give, is anything wrong, what changed and by whom.
    expect(card(page, "gpu0").locator(".left")).to_contain_text(re.compile(r"\d GiB.* left to give"))
    expect(page.locator(".overview-summary")).to_contain_text("incident")
    expect(page.get_by_role("region", name="What changed")).to_contain_text("admin")
    # Processes outside MPS would be red in the bar and an incident; there is none.
    expect(card(page, "gpu0").locator(".bypass")).to_have_count(0)


def test_is_a_share_in_force(busy, visitor):
    page = visitor(busy).log_in()
    click = Clicks(page)
    click("link", "web", card(page, "gpu0"))
    row = page.get_by_role("group", name="Limits").get_by_role("row", name=re.compile("Share"))
    expect(row).to_contain_text(re.compile(r"25.* %.*25"))
    click("button", re.compile("^Verify"))
    expect(page.get_by_role("main")).to_contain_text("verified", timeout=30_000)
    assert click.count <= 2


def test_would_a_tenant_fit(busy, visitor, scripted):
    page = visitor(busy).log_in(to="/tenants")
    click = Clicks(page)
    click("link", "New tenant")
    page.get_by_label("Name", exact=True).fill("new")
    page.get_by_label("User", exact=True).fill("root")
    page.get_by_label("Daemon", exact=True).select_option("gpu0")
    page.get_by_label("Memory limit").fill("20G")
    if not scripted:
        click("button", "Check")
    expect(page.locator("#prediction")).to_contain_text("GiB", timeout=30_000)
    assert click.count <= 2


def test_which_clients_would_stop(busy, visitor):
    page = visitor(busy).log_in()
    click = Clicks(page)
    write(busy, "prod", add("batch", 6, "batch"))
    click("link", re.compile("^prod"), card(page, "gpu1"))
    click("link", "Plan and apply")
    expect(page.locator(".plan-summary")).to_contain_text("1 client must stop first")
    assert click.count <= 2
