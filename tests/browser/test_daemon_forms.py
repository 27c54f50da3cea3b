"""Daemons: created, changed, released, and adopted."""

from playwright.sync_api import expect

from host import eventually
from pages import clear, more
from test_operations import follow


def emptied(host):
    for name in ["gpu0", "gpu1"]:
        clear(host, name)
        host.done(host.api("DELETE", f"/daemons/{name}?grace_s=0"))


def test_first_daemon_is_set_up(own_host, visitor, scripted):
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
    expect(page.get_by_label("Device memory limit")).to_be_hidden()
    more(page, "#defaults")
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
    more(page)
    page.get_by_role("link", name="Delete…").click()
    page.get_by_label("Grace period in seconds").fill("0")
    page.get_by_role("button", name="Delete first").click()
    ended = page.locator("dl.facts [role=status]")
    follow(page, scripted, lambda ms: expect(ended).to_have_text("succeeded", timeout=ms))
    assert host.api("GET", "/daemons")["items"] == []


def test_outdated_daemon_form_shows_both_values(own_host, visitor):
    host = own_host
    visit = visitor(host)
    page = visit.log_in(to="/daemons/gpu0/edit")
    more(page, "#expert")
    page.get_by_label("Admission of tenants").select_option("reserved")
    page.get_by_label("Memory over-commit").fill("2")
    spec = host.api("GET", "/daemons/gpu0")["spec"]
    host.api("PUT", "/daemons/gpu0", {**spec, "drift_policy": "report"})
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("Your own login changed daemon gpu0 at")
    expect(page.get_by_role("table").locator("tbody tr")).to_have_text(["Admissionreservedopen", "Memory over-commit21", "Drift policyrepairreport"])
    expect(page.get_by_label("Memory over-commit")).to_have_value("2")
    visit.accessible()
    assert host.api("GET", "/daemons/gpu0")["spec"] == {**spec, "drift_policy": "report"}, "nothing is written yet"
    page.get_by_role("button", name="Overwrite with my values").click()
    expect(page.get_by_text("reserved: tenants reserve up to 2.0 × the memory of a GPU")).to_be_visible()
    assert host.api("GET", "/daemons/gpu0")["spec"] == {**spec, "admission": "reserved", "memory_overcommit": 2.0}


def test_settings_outside_the_daemon_form_are_kept(own_host, visitor):
    host = own_host
    host.api("POST", "/daemons/gpu0/cordon")
    page = visitor(host).log_in(to="/daemons/gpu0/edit")
    more(page, "#expert")
    page.get_by_label("Memory over-commit").fill("2")
    page.get_by_role("button", name="Save").click()
    page.wait_for_url("**/daemons/gpu0")
    spec = host.api("GET", "/daemons/gpu0")["spec"]
    assert (spec["memory_overcommit"], spec["schedulable"]) == (2.0, False)


def test_foreign_daemon_is_adopted_and_released(own_host, visitor, scripted):
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
    page.get_by_role("button", name="Adopt").click()
    expect(name).to_have_value("gpu0")
    expect(page.get_by_role("alert")).to_be_visible()
    visit.accessible()
    name.fill("theirs")
    page.get_by_role("button", name="Adopt").click()
    state = page.get_by_role("heading", level=1)
    follow(page, scripted, lambda ms: expect(state).to_contain_text("ready", timeout=ms))
    assert host.api("GET", "/daemons/theirs")["status"]["pid"] == foreign["pid"]
    more(page)
    page.get_by_role("link", name="Release…").click()
    page.get_by_role("button", name="Release theirs").click()
    expect(page.get_by_role("row", name=str(foreign["pid"]))).to_be_visible()
    visit.accessible()


def test_strategy_and_weight_give_shares(own_host, visitor):
    host = own_host
    for name in ["heavy", "light"]:
        host.api("PUT", f"/tenants/{name}", {"daemon": "gpu1", "uid": 0})
    visit = visitor(host)
    page = visit.log_in(to="/daemons/gpu1/edit")
    more(page, "#defaults")
    page.get_by_label("Strategy").select_option("weighted")
    page.get_by_label("Clients to divide among").fill("0")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_label("Clients to divide among")).to_have_attribute("aria-invalid", "true")
    visit.accessible()
    page.get_by_label("Clients to divide among").fill("")
    page.get_by_role("button", name="Save").click()
    page.goto(f"{host.url}/tenants/heavy/edit")
    page.get_by_label("Weight").fill("3")
    page.get_by_role("button", name="Save").click()
    page.goto(f"{host.url}/daemons/gpu1")
    rows = page.get_by_role("region", name="Shares of the SMs").locator("tbody tr")
    expect(rows).to_have_text(["heavy375.0 %98the strategy", "light125.0 %32the strategy"])
    visit.accessible()
