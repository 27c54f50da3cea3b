"""The overview and the GPUs, which are live."""

import os
import re
import signal

from playwright.sync_api import expect

from host import eventually
from pages import card


def test_overview_is_calm_until_a_server_dies(own_host, visitor):
    visit = visitor(own_host)
    page = visit.log_in()
    expect(page.get_by_text("All systems healthy")).to_be_visible()
    visit.accessible()
    for daemon in ["gpu0", "gpu1"]:
        expect(card(page, daemon)).to_contain_text("ready")
    own_host.api("POST", "/daemons/gpu1/cordon")
    if not visit.scripted:
        page.reload()
    expect(page.get_by_text("Daemon gpu1 is cordoned")).to_be_visible()
    visit.accessible()
    process = own_host.client("demo", "--spin", "600", "--alloc", "512")
    if not visit.scripted:
        page.reload()
    expect(card(page, "gpu0").get_by_role("link", name="1 client", exact=True)).to_be_visible()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def test_live_page_keeps_reader_state(own_host, visitor, scripted):
    if not scripted:
        return
    visit = visitor(own_host)
    page = visit.log_in()
    expect(page.locator("#connection")).to_have_text("live")
    page.locator(".account summary").click()
    link = card(page, "gpu0").get_by_role("link", name="gpu0", exact=True)
    link.focus()
    own_host.api("POST", "/daemons/gpu1/cordon")
    expect(page.get_by_text("Daemon gpu1 is cordoned")).to_be_visible()
    expect(link).to_be_focused()
    expect(page.get_by_role("button", name="Log out")).to_be_visible()


def test_shared_gpu_shows_each_tenant(own_host, visitor):
    host = own_host
    host.api("PUT", "/tenants/half", {"daemon": "gpu0", "uid": 0, "sms": 66, "device_memory_limit": "8G", "max_clients": 2})
    host.client("half", "--spin", "600", "--alloc", "512")
    visit = visitor(host)
    page = visit.log_in(to="/gpus/0")
    expect(page.get_by_role("heading", name="GPU 0 NVIDIA H200")).to_be_visible()
    row = page.locator(".shares > li").filter(has_text="half")
    expect(row).to_contain_text("66 SMs")
    expect(row.get_by_role("img", name="1 client")).to_be_visible()
    # The bar and the key of the memory have the colour of the tenant's share.
    colour = re.search(r"part-\d", row.locator("svg").get_attribute("class"))[0]
    owner = page.locator(".owners > li").filter(has_text="half")
    expect(owner.locator("svg rect")).to_have_class(colour)
    expect(page.locator(f".memory-bar .{colour}")).to_have_count(1)
    expect(page.locator(".sharing .left")).to_contain_text("left to give")
    visit.accessible()


def test_partitioned_gpu_is_marked(own_host, visitor):
    host = own_host
    host.api("DELETE", "/tenants/batch")
    operation = host.api("DELETE", "/daemons/gpu1")
    host.done(operation)
    host.api("PUT", "/daemons/gpu1", {"gpus": ["1"], "mode": "static"})
    host.api("PUT", "/tenants/web", {"daemon": "gpu1", "uid": 0, "device_memory_limit": "4G"})
    steps = [
        {"add": {"gpu": 1, "partition": "web", "chunks": 7, "tenants": ["web"]}},
        {"add": {"gpu": 1, "partition": "spare", "chunks": 5}},
    ]
    host.api("PUT", "/layouts/prod", {"layout": {"steps": steps}})
    eventually("gpu1 is ready", lambda: host.status_of("/readyz/daemons/gpu1") == 200)
    host.done(host.api("POST", "/layouts/prod/apply", {"daemon": "gpu1"}))
    visit = visitor(host)
    page = visit.log_in(to="/gpus/1")
    row = page.get_by_role("row", name="web")
    expect(row).to_contain_text("56")
    # Each partition has its name in its cell, so that nobody depends on the colours; every SM is in one cell.
    cells = page.get_by_role("group", name="SMs by partition: 132 SMs").locator("svg")
    assert cells.locator("text").all_text_contents() == ["web · 56", "spare · 40", "free · 24", "12"]
    expect(row.get_by_role("link", name="web")).to_have_attribute("href", "/tenants/web")
    expect(page.locator(".sharing .left")).to_contain_text("24 SMs")
    visit.accessible()


def test_overview_leaves_log_ins_out(own_host, visitor):
    visit = visitor(own_host)
    page = visit.log_in()
    assert own_host.api("GET", "/events?type=session.opened")["items"], "a user logged in"
    kinds = page.locator(".events code").all_text_contents()
    assert kinds and not {"session.opened", "settings.applied", "operation.step"} & set(kinds), kinds
    page.goto("/events")
    expect(page.locator(".events").get_by_text("session.opened").first).to_be_visible()


def test_incident_is_shown_until_acknowledged(own_host, visitor):
    pid = own_host.api("GET", "/daemons/gpu0")["status"]["pid"]
    os.kill(pid, signal.SIGKILL)
    eventually("it is noticed", lambda: own_host.api("GET", "/daemons/gpu0")["status"]["deaths"] == 1)
    eventually("another is there", lambda: own_host.status_of("/readyz") == 200)
    visit = visitor(own_host)
    page = visit.log_in()
    item = page.locator(".alerts > li").filter(has_text="control daemon died and was restarted")
    expect(item).to_have_class("warn repaired")
    expect(page.locator(".overview-summary")).to_contain_text("Recovered from 1 incident in the last hour")
    visit.accessible()
    item.get_by_role("link", name="View incident").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Incident 1")
    visit.accessible()
    page.get_by_label("Note").fill("killed by a test")
    page.get_by_role("button", name="Acknowledge").click()
    expect(page.get_by_text("killed by a test")).to_be_visible()
    expect(page.get_by_role("button", name="Acknowledge")).to_have_count(0)
    page.goto("/incidents")
    row = page.get_by_role("row").filter(has_text="control daemon died")
    expect(row.locator(".state")).to_have_text("recovered")
    expect(row.locator(".state")).to_have_class("state quiet")
    visit.accessible()
    page.goto("/")
    expect(page.locator(".alerts")).to_have_count(0)
    expect(page.get_by_text("All systems healthy")).to_be_visible()


def test_missing_page_is_explained(host, visitor):
    page = visitor(host).log_in()
    assert page.goto("/nowhere").status == 404
    expect(page.get_by_role("main")).to_contain_text("There is no page at /nowhere.")
    expect(page.get_by_role("main")).not_to_contain_text("openapi")


def test_attention_is_first_on_a_phone(host, visitor):
    page = visitor(host, viewport={"width": 390, "height": 900}).log_in()
    top = lambda name: page.get_by_role("heading", name=name, exact=True).bounding_box()["y"]
    assert top("Needs attention") < top("GPUs")
