"""Events, audit, tokens and settings."""

import re

from playwright.sync_api import expect

from host import Refused, eventually


def test_events_are_filtered_on_the_server(host, visitor):
    visit = visitor(host)
    page = visit.log_in(to="/events")
    expect(page.get_by_role("listitem").filter(has_text="daemon gpu0")).not_to_have_count(0)
    expect(page.get_by_label("Type", exact=True)).to_have_count(0)
    page.get_by_role("navigation", name="About").get_by_role("link", name="Daemons").click()
    assert all(kind.split(".")[0] in {"daemon", "server", "settings", "foreign_daemon"}
               for kind in page.locator(".events code").all_text_contents())
    page.get_by_label("Type", exact=True).select_option("daemon.ready")
    page.get_by_label("Daemon").fill("gpu1")
    page.get_by_role("button", name="Filter").click()
    listed = page.locator(".events > li")
    expect(listed.first).to_contain_text("gpu1")
    assert set(page.locator(".events code").all_text_contents()) == {"daemon.ready"}
    expect(page.get_by_label("Daemon")).to_have_value("gpu1")
    expect(page.get_by_role("navigation", name="About").locator("[aria-current]")).to_have_text("Daemons")
    expect(page.get_by_role("link", name="Reset")).to_have_attribute("href", "/events")
    visit.accessible()
    listed.first.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("daemon.ready")
    expect(page.get_by_role("main").get_by_role("link", name="gpu1", exact=True)).to_have_attribute("href", "/daemons/gpu1")
    visit.accessible()


def test_invalid_filter_is_marked_at_its_field(host, visitor):
    visit = visitor(host)
    page = visit.log_in()
    answer = page.goto("/events?daemon=GPU!&severity=info")
    assert answer.status == 422
    expect(page.locator("#wrong-daemon")).to_contain_text("GPU!")
    expect(page.get_by_label("Daemon")).to_have_value("GPU!")
    visit.accessible()
    assert page.goto("/events?daemon=nosuch").status == 200
    expect(page.get_by_text("No event matches this filter")).to_be_visible()


def test_long_list_is_paged(own_host, visitor):
    for _ in range(30):
        own_host.api("POST", "/daemons/gpu1/cordon")
        own_host.api("POST", "/daemons/gpu1/uncordon")
    page = visitor(own_host).log_in(to="/events?type=daemon.changed")
    first = page.locator(".events > li a").all_text_contents()
    assert len(first) == 50
    newest = page.locator(".events > li a").first.get_attribute("href")
    page.get_by_role("link", name="Next page").click()
    expect(page.locator(".events > li")).to_have_count(10)
    page.get_by_role("link", name="First page").click()
    expect(page.locator(".events > li a").first).to_have_attribute("href", newest)


def test_new_events_appear_without_reload(own_host, visitor, scripted):
    if not scripted:
        return
    page = visitor(own_host).log_in(to="/events")
    expect(page.locator("#connection")).to_have_text("live")
    own_host.api("POST", "/daemons/gpu1/cordon")
    expect(page.locator(".events > li", has_text="daemon.changed")).not_to_have_count(0)


def test_token_life_is_in_the_audit_log(host, visitor, scripted):
    name = f"ci_{'yes' if scripted else 'no'}"
    visit = visitor(host)
    page = visit.log_in(to="/tokens")
    page.get_by_role("link", name="New token").click()
    page.get_by_label("Name").fill("CI")
    page.get_by_label("Role").fill("operator")
    page.get_by_role("button", name="Create token").click()
    expect(page.locator("#wrong-name")).to_contain_text("CI")
    expect(page.get_by_label("Role")).to_have_value("operator")
    visit.accessible()
    page.get_by_label("Name").fill(name)
    page.get_by_role("button", name="Create token").click()
    expect(page.get_by_role("heading", name=f"Token {name} created")).to_be_visible()
    visit.accessible()
    secret = page.locator("#secret").text_content().strip()
    assert host.api("GET", "/whoami", token=secret)["grant"] == "operator"
    page.get_by_role("link", name="Done").click()
    assert secret not in page.content()
    page.get_by_role("link", name=name).click()
    page.get_by_role("link", name="Revoke it").click()
    visit.accessible()
    page.get_by_role("button", name="Revoke it").click()
    expect(page.get_by_text("revoked", exact=True)).to_be_visible()
    try:
        host.api("GET", "/whoami", token=secret)
        raise AssertionError("it still admits a user")
    except Refused as refused:
        assert refused.status == 401
    page.goto("/audit")
    row = page.get_by_role("row").filter(has_text=f"admin revoked token {name}")
    expect(row).to_contain_text("done")
    expect(row.get_by_role("link", name="Open")).to_have_attribute("href", re.compile("^/tokens/[0-9a-f]{16}$"))
    visit.accessible()


def test_audit_shows_changed_fields(host, visitor):
    host.api("PUT", "/tenants/demo", {"daemon": "gpu0", "uid": 0, "device_memory_limit": "3G"})
    host.api("PUT", "/tenants/demo", {"daemon": "gpu0", "uid": 0, "device_memory_limit": "4G", "active_thread_percentage": 25})
    visit = visitor(host)
    page = visit.log_in(to="/audit?target=tenants/demo")
    row = page.get_by_role("row").filter(has_text="changed tenant demo").first
    expect(row).to_contain_text("admin changed tenant demo: thread percentage 25 % instead of none, memory limit 4 GiB instead of 3 GiB")
    row.locator("summary").click()
    changed = row.get_by_role("row").filter(has_text="memory limit")
    expect(changed.locator("del")).to_have_text("3 GiB")
    expect(changed.locator("ins")).to_have_text("4 GiB")
    assert "{" not in page.get_by_role("main").inner_text(), "no route"
    visit.accessible()
    answer = page.goto("/audit?outcome=maybe")
    assert answer.status == 422
    expect(page.locator("#wrong-outcome")).to_contain_text("maybe")


def test_routine_rows_are_shown_on_request(own_host, visitor):
    own_host.client("demo", "--spin", "60", "--alloc", "64")
    visit = visitor(own_host)
    page = visit.log_in(to="/audit")
    sentences = page.locator(".audit .said")
    expect(sentences.filter(has_text="the manager created tenant demo")).to_have_count(1)
    expect(sentences.filter(has_text="lease")).to_have_count(0)
    expect(sentences.filter(has_text="logged in")).to_have_count(0)
    page.get_by_label("also leases and log-ins").check()
    page.get_by_role("button", name="Filter").click()
    expect(sentences.filter(has_text="made a lease of tenant demo")).to_have_count(1)
    expect(sentences.filter(has_text="admin logged in")).not_to_have_count(0)
    expect(page.get_by_label("also leases and log-ins")).to_be_checked()
    visit.accessible()


def test_audit_is_filtered_by_clicks_and_times(own_host, visitor, scripted):
    own_host.api("PUT", "/tenants/web", {"daemon": "gpu0", "uid": 0, "device_memory_limit": "3G"})
    own_host.api("POST", "/daemons/gpu1/cordon", token=own_host.token_for("operator", "ada"))
    visit = visitor(own_host)
    page = visit.log_in(to="/audit?since=2+h")
    sentences = page.locator(".audit .said")
    if scripted:
        expect(page.locator(".audit time").first).to_have_text(re.compile(r"just now|\d+ (s|min) ago"))
    else:
        expect(page.locator(".audit time").first).to_have_text(re.compile(r"\d\d:\d\d:\d\d UTC"))
    sentences.filter(has_text="cordoned").get_by_role("link", name="ada", exact=True).click()
    expect(sentences).to_have_text(["ada cordoned daemon gpu1"])
    expect(page.get_by_label("Since")).to_have_value("2 h")
    page.goto("/audit")
    sentences.filter(has_text="created tenant web").get_by_role("link", name="tenant web").click()
    expect(sentences.first).to_contain_text("admin created tenant web on gpu0 with 3 GiB")
    expect(sentences).to_have_count(1)
    page.goto("/audit?until=yesterday")
    expect(page.get_by_text("No row matches this filter")).to_be_visible()
    assert page.goto("/audit?since=soon").status == 422
    expect(page.locator("#wrong-since")).to_contain_text("is not a time")
    visit.accessible()


def test_audit_is_refused_to_viewers(host, visitor):
    visit = visitor(host)
    page = visit.log_in(host.token_for("operator"))
    for path in ["/audit", "/tokens", "/tokens/new"]:
        assert page.goto(path).status == 403
        expect(page.get_by_role("heading", name="Forbidden")).to_be_visible()


def test_log_out_everywhere_ends_all_sessions(own_host, visitor):
    token = own_host.token_for("viewer", "twice")
    one, other = visitor(own_host), visitor(own_host)
    one.log_in(token)
    page = other.log_in(token, to="/settings")
    expect(page.get_by_text("twice").first).to_be_visible()
    other.accessible()
    page.get_by_role("button", name="Log out everywhere").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    one.page.goto("/gpus")
    expect(one.page.get_by_role("heading", name="Log in")).to_be_visible()


def test_login_link_is_created_in_settings(host, visitor):
    visit = visitor(host)
    page = visit.log_in(to="/settings")
    page.get_by_role("button", name="Create a login link").click()
    visit.accessible()
    url = page.locator("#url").text_content().strip()
    other = visitor(host)
    other.page.goto(url)
    other.page.get_by_role("button", name="Log in").click()
    expect(other.page.get_by_role("heading", name="Overview")).to_be_visible()


def test_maintenance_begins_and_ends(own_host, visitor):
    visit = visitor(own_host)
    page = visit.log_in(to="/settings")
    page.get_by_role("link", name="Begin maintenance").click()
    page.get_by_label("GPU 1").check()
    page.get_by_label("Seconds for clients").fill("soon")
    page.get_by_role("button", name="Begin maintenance").click()
    expect(page.locator("#wrong-timeout_s")).to_contain_text("soon")
    expect(page.get_by_label("GPU 1")).to_be_checked()
    visit.accessible()
    page.get_by_label("Seconds for clients").fill("5")
    page.get_by_role("button", name="Begin maintenance").click()
    page.wait_for_url("**/operations/*")
    eventually("the maintenance is in force", lambda: own_host.api("GET", "/host/maintenance")["state"] == "active")
    page.goto("/")
    expect(page.get_by_text("Maintenance", exact=True)).to_be_visible()
    page.get_by_role("link", name="Show maintenance").click()
    expect(page.get_by_text("No process has a device file of these GPUs open.")).to_be_visible()
    visit.accessible()
    page.get_by_role("button", name="End it").click()
    page.wait_for_url("**/operations/*")
    eventually("the maintenance is over", lambda: own_host.api("GET", "/host/maintenance")["state"] is None)
