"""Layouts that thread percentages enforce: edited, applied and replayed as those with IDs are; and the list of replays."""

import re

import pytest
from playwright.sync_api import expect

from host import Host, eventually
from test_layouts import add, check, fill, press, static, write
from test_layouts_on_daemons import operation_ends
from test_operations import follow

PARTITIONS = {"seven": (7, 56), "five": (5, 40)}


def host_of(profile):
    """A host with a tenant for each partition, whose driver has no static partitions."""
    host = Host(profile)
    for tenant in host.api("GET", "/tenants")["items"]:
        host.api("DELETE", f"/tenants/{tenant['name']}")
    for name in PARTITIONS:
        host.api("PUT", f"/tenants/{name}", {"daemon": "gpu0", "uid": 0, "device_memory_limit": "2G"})
    eventually("gpu0 is ready", lambda: host.status_of("/readyz/daemons/gpu0") == 200)
    return host


@pytest.fixture
def here():
    host = host_of("h200x1@13.0")
    yield host
    host.close()


@pytest.fixture
def there():
    host = host_of("h200x1@13.0")
    yield host
    host.close()


@pytest.fixture
def elsewhere():
    host = host_of("l40sx1@12.8")
    yield host
    host.close()


def test_percentage_layout_is_replayed_and_verified(here, there, elsewhere, visitor):
    visit = visitor(here)
    page = visit.log_in(to="/layouts")
    page.get_by_role("link", name="Create the first layout").click()
    # The host's daemon is in shared mode.
    expect(page.get_by_label("Layout", exact=True)).to_have_value(re.compile("^enforcement: percentage\n"))
    page.get_by_label("Name").fill("main")
    fill(page, *(add(name, chunks, name) for name, (chunks, _) in PARTITIONS.items()), enforcement="percentage")
    check(page, visit)
    expect(page.locator("#plan")).to_contain_text("The chunks of gpu0 have not been counted yet")
    visit.accessible()
    press(page, "Create")
    expect(page.get_by_text("percentage: thread percentages, which reserve nothing")).to_be_visible()

    # The plan shows the SMs of a percentage, and that nothing is reserved.
    page.get_by_role("link", name="Plan and apply").click()
    expect(page.get_by_role("note").filter(has_text="Thread percentages reserve nothing")).to_be_visible()
    made = page.locator(".diff tbody tr")
    expect(made.locator("th")).to_have_text(["Add", "Add"])
    for row, (name, (chunks, sms)) in zip(made.all(), PARTITIONS.items()):
        expect(row.locator("td").nth(0)).to_have_text(name)
        expect(row.locator("td.number")).to_have_text([str(chunks), str(sms)])
    expect(page.get_by_role("group", name="Tenants").get_by_role("row", name="seven")).to_contain_text("56 SMs")
    visit.accessible()
    press(page, "Apply to gpu0")
    page.wait_for_url("**/operations/*")
    assert operation_ends(page, here)["state"] == "succeeded"
    follow(page, visit.scripted, lambda ms: expect(page.locator("dl.facts [role=status]")).to_have_text("succeeded", timeout=ms))

    page.goto("/layouts/main")
    partitions = page.get_by_role("group", name="Partitions on gpu0")
    for name, (_, sms) in PARTITIONS.items():
        row = partitions.get_by_role("row", name=name)
        expect(row).to_contain_text(re.compile(r"\d+(\.\d)? %, no ID"))
        expect(row.locator("td.number").last).to_have_text(str(sms))
    visit.accessible()
    page.goto("/tenants/seven")
    expect(page.locator("dl.facts").get_by_text("56 SMs")).to_be_visible()
    page.goto("/layouts/main")
    with page.expect_download() as download:
        page.get_by_role("link", name="Export with IDs, YAML").click()
    document = download.value.path().read_text()

    # On a host of the same kind, a client verifies each partition and sees the same SMs.
    other = visitor(there)
    page = other.log_in(to="/replays")
    page.get_by_role("link", name="Replay a layout").click()
    page.get_by_label("An exported document").check()
    page.get_by_label("Document", exact=True).fill(document)
    page.get_by_label("Daemon").select_option("gpu0")
    press(page, "Preview")
    expect(page.get_by_text("A CUDA client of each tenant verifies its SMs")).to_be_visible()
    other.accessible()
    press(page, "Replay it on gpu0")
    page.wait_for_url("**/replays/*")
    follow(page, other.scripted, lambda ms: expect(page.locator(".lead")).to_have_text("same as recorded", timeout=ms))
    seen = page.get_by_role("table").locator("tbody tr")
    expect(seen.locator("th")).to_have_text(list(PARTITIONS))
    for row, (_, sms) in zip(seen.all(), PARTITIONS.values()):
        expect(row.locator("td")).to_have_text([str(sms), str(sms), "same"])
    other.accessible()

    # A wrong checksum and other hardware than that of the recording are refused before any change.
    third = visitor(elsewhere)
    page = third.log_in(to="/replays/new")
    page.get_by_label("An exported document").check()
    page.get_by_label("Document", exact=True).fill(document.replace("sms: 56", "sms: 48"))
    page.get_by_label("Daemon").select_option("gpu0")
    press(page, "Preview")
    expect(page.locator("#wrong-text")).to_contain_text("checksum")
    page.get_by_label("Document", exact=True).fill(document)
    press(page, "Preview")
    expect(page.get_by_role("alert")).to_contain_text("recorded on another configuration")
    third.accessible()
    assert elsewhere.api("GET", "/replays")["items"] == []
    assert elsewhere.api("GET", "/daemons/gpu0")["spec"].get("layout") is None


def test_replay_list_shows_reasons_and_results(own_host, visitor):
    host = own_host
    static(host)
    steps = [{"add": {"gpu": 1, "partition": "web", "chunks": 7}}, {"add": {"gpu": 1, "partition": "batch", "chunks": 5}}]
    write(host, "prod", *steps)
    visit = visitor(host)
    page = visit.log_in(to="/replays")
    expect(page.get_by_text("A replay runs a layout's steps on empty GPUs")).to_be_visible()
    replay = host.api("POST", "/replays", {"layout": "prod", "daemon": "gpu1"})
    host.done(replay["operation"])
    host.done(host.api("POST", "/daemons/gpu1/restart?grace_s=0"))
    eventually("the restart is recorded", lambda: len(host.api("GET", "/replays")["items"]) == 2)
    newest = lambda: host.api("GET", "/replays")["items"][0]["verdict"] != "pending"
    eventually("the replay of the restart has ended", newest)
    page.reload()
    rows = page.get_by_role("group", name="Replays").locator("tbody tr")
    expect(rows).to_have_count(2)
    # Newest first.
    for row, cause, verdict in zip(rows.all(), ["restart of the daemon", "requested"],
                                   ["same as recorded", "first of its kind"]):
        expect(row).to_contain_text("prod version 1")
        expect(row.get_by_role("link", name="gpu1")).to_have_attribute("href", "/daemons/gpu1")
        expect(row).to_contain_text(cause)
        expect(row).to_contain_text(verdict)
    visit.accessible()
    rows.last.get_by_role("rowheader").get_by_role("link").click()
    page.wait_for_url(f"**/replays/{replay['replay']}")
    expect(page.get_by_text("these IDs are recorded from now on")).to_be_visible()
    page.get_by_role("navigation", name="Breadcrumb").get_by_role("link", name="Replays").click()
    expect(rows).to_have_count(2)
    looker = visitor(host)
    page = looker.log_in(host.token_for("viewer"), to="/replays")
    expect(page.get_by_role("link", name="Replay a layout")).to_have_count(0)
