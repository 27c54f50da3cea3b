"""Daemons: set up, changed, given up, and taken up from others."""

from playwright.sync_api import expect

from host import eventually
from pages import clear
from test_operations import follow


def emptied(host):
    for name in ["gpu0", "gpu1"]:
        clear(host, name)
        host.done(host.api("DELETE", f"/daemons/{name}?grace_s=0"))


def test_the_first_daemon_of_an_empty_host_is_set_up(own_host, visitor, scripted):
    host = own_host
    emptied(host)
    visit = visitor(host)
    page = visit.log_in(to="/daemons")
    visit.accessible()
    page.get_by_role("link", name="Set up a daemon on GPU 1").click()
    expect(page.get_by_label("Name", exact=True)).to_have_value("gpu1")
    expect(page.get_by_role("checkbox", name="GPU 1")).to_be_checked()
    expect(page.get_by_role("checkbox", name="GPU 0")).not_to_be_checked()
    page.get_by_label("Name", exact=True).fill("Not A Name")
    page.get_by_label("Device memory limit").fill("lots")
    page.get_by_role("button", name="Set up").click()
    expect(page.get_by_label("Name", exact=True)).to_have_attribute("aria-invalid", "true")
    visit.accessible()
    page.get_by_label("Name", exact=True).fill("first")
    page.get_by_role("button", name="Set up").click()
    expect(page.get_by_label("Device memory limit")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("Device memory limit")).to_have_value("lots")
    page.get_by_label("Device memory limit").fill("4G")
    page.get_by_role("button", name="Set up").click()
    state = page.get_by_role("heading", level=1)
    follow(page, scripted, lambda ms: expect(state).to_contain_text("ready", timeout=ms))
    assert host.api("GET", "/daemons/first")["spec"]["defaults"]["device_memory_limit"] == 4 << 30
    rows = host.api("GET", "/audit")["items"]
    assert any(row["action"] == "POST /daemons/-/new" and row["target"] == "daemons/first" for row in rows), rows
    page.get_by_role("link", name="Delete…").click()
    page.get_by_label("Grace, in seconds").fill("0")
    page.get_by_role("button", name="Delete first").click()
    ended = page.locator("dl.facts [role=status]")
    follow(page, scripted, lambda ms: expect(ended).to_have_text("succeeded", timeout=ms))
    assert host.api("GET", "/daemons")["items"] == []


def test_two_who_change_a_daemon_at_once_do_not_undo_each_other(own_host, visitor):
    host = own_host
    visit = visitor(host)
    page = visit.log_in(to="/daemons/gpu0/edit")
    page.get_by_label("Memory over-commit").fill("2")
    spec = host.api("GET", "/daemons/gpu0")["spec"]
    host.api("PUT", "/daemons/gpu0", {**spec, "drift_policy": "report"})
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("somebody else changed this daemon")).to_be_visible()
    expect(page.get_by_role("row", name="drift_policy")).to_contain_text("report")
    expect(page.get_by_label("Memory over-commit")).to_have_value("2")
    visit.accessible()
    expect(page.get_by_label("Settings that somebody else changes")).to_have_value("report")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("2.0 × the memory of a GPU")).to_be_visible()
    now = host.api("GET", "/daemons/gpu0")["spec"]
    assert now == {**spec, "drift_policy": "report", "memory_overcommit": 2.0}


def test_a_daemon_of_somebody_else_is_taken_up_and_given_back(own_host, visitor, scripted):
    host = own_host
    clear(host, "gpu1")
    host.done(host.api("DELETE", "/daemons/gpu1?grace_s=0"))
    host.foreign("theirs", "1")
    visit = visitor(host)
    foreign = eventually("it is listed", lambda: host.api("GET", "/foreign-daemons")["items"])[0]
    page = visit.log_in(to="/daemons")
    expect(page.get_by_role("row", name=str(foreign["pid"]))).to_contain_text("adopted or observed")
    page.get_by_role("link", name=str(foreign["pid"])).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(str(foreign["pid"]))
    visit.accessible()
    name = page.get_by_label("Name", exact=True)
    expect(name).to_have_value("gpu1")
    name.fill("gpu0")
    page.get_by_role("button", name="Take it up").click()
    expect(name).to_have_value("gpu0")
    expect(page.get_by_role("alert")).to_be_visible()
    visit.accessible()
    name.fill("theirs")
    page.get_by_role("button", name="Take it up").click()
    state = page.get_by_role("heading", level=1)
    follow(page, scripted, lambda ms: expect(state).to_contain_text("ready", timeout=ms))
    assert host.api("GET", "/daemons/theirs")["status"]["pid"] == foreign["pid"]
    page.get_by_role("link", name="Release…").click()
    page.get_by_role("button", name="Release theirs").click()
    expect(page.get_by_role("row", name=str(foreign["pid"]))).to_be_visible()
    visit.accessible()
