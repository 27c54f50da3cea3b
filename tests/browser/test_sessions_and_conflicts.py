"""Pages and forms when a session ends, the manager is away, or the same thing is changed or deleted elsewhere."""

import re
import signal

import pytest
from playwright.sync_api import expect

from host import TIMEOUT_S, Host, eventually
from pages import clear, more
from test_layouts import add, fill, text_of


# A page requests its figures every few seconds.
FIGURES_MS = 15_000


def unanswered(visit):
    """Drops the errors that htmx logs for requests without a response."""
    visit.errors = [fault for fault in visit.errors if "Failed to fetch" not in fault]


def log_in_again(host, page):
    expect(page.get_by_text("What you typed is kept")).to_be_visible()
    page.get_by_label("Token").fill(host.token)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("button", name="Submit", exact=True).click()


def test_layout_editor_outlives_its_session(own_host, visitor):
    visit = visitor(own_host)
    page = visit.log_in(to="/layouts/-/new")
    page.get_by_label("Name").fill("prod")
    page.get_by_label("Note").fill("two teams")
    visit.log_out_elsewhere()
    fill(page, add("web", 7))
    if visit.scripted:
        expect(page.locator("#outcome")).to_contain_text("Your session has ended", ignore_case=True)
        expect(page.locator("#connection")).to_have_text("session ended")
        visit.accessible()
    expect(page.get_by_label("Name")).to_have_value("prod")
    expect(page.get_by_label("Note")).to_have_value("two teams")
    fill(page, add("web", 7), add("batch", 5))
    page.get_by_role("button", name="Create").click()
    log_in_again(own_host, page)
    expect(page.get_by_role("heading", level=1)).to_contain_text("Layout prod version 1")
    newest = own_host.api("GET", "/layouts/prod")["newest"]
    assert (newest["note"], len(newest["layout"]["steps"])) == ("two teams", 2)


def test_log_in_elsewhere_revives_the_editor(own_host, visitor, scripted):
    if not scripted:
        return
    visit = visitor(own_host)
    page = visit.log_in(to="/layouts/-/new")
    visit.log_out_elsewhere()
    fill(page, add("web", 6))
    note = page.locator("#outcome .outdated")
    expect(note).to_be_visible()
    other = visit.context.new_page()
    other.goto(own_host.login_url())
    other.get_by_role("button", name="Log in").click()
    expect(other.get_by_role("heading", name="Overview")).to_be_visible()
    fill(page, add("web", 7))
    expect(page.locator("#outcome")).to_contain_text("7 of at most 16 chunks used")
    expect(note).to_have_count(0)
    expect(page.locator("#connection")).to_have_text("")


def test_long_text_survives_log_in(own_host, visitor):
    steps = [{"add": {"gpu": 0, "partition": "web", "chunks": 7}}]
    own_host.api("PUT", "/layouts/prod", {"layout": {"steps": steps}})
    visit = visitor(own_host)
    page = visit.log_in(to="/layouts/-/import")
    # Mostly characters that become three times as long each time they are encoded.
    long = "version: v1\n" + "# = & +   \n" * 30_000 + "layouts: {long: {steps: []}}\n"
    assert len(long) > 300_000
    # Typing that much would exceed the timeout of a test.
    page.get_by_label("Text", exact=True).evaluate("(field, text) => { field.value = text; }", long)
    visit.log_out_elsewhere()
    page.get_by_role("button", name="Import").click()
    log_in_again(own_host, page)
    expect(page.get_by_role("heading", level=1)).to_contain_text("long")
    assert own_host.api("GET", "/layouts/long")["newest"]["version"] == 1


def test_oversized_form_is_reported_lost(visitor):
    host = Host(lines=["[limits]", "body_bytes = 65536"])
    try:
        visit = visitor(host)
        page = visit.log_in(to="/layouts/-/import")
        page.get_by_label("Text", exact=True).fill("x" * 65_000)
        visit.log_out_elsewhere()
        page.get_by_role("button", name="Import").click()
        expect(page.get_by_role("status")).to_contain_text("is lost: it has")
        expect(page.get_by_text("What you typed is kept")).to_have_count(0)
        visit.accessible()
    finally:
        host.close()


def test_page_of_deleted_resource_reports_it(own_host, visitor, scripted):
    if not scripted:
        return
    own_host.api("PUT", "/tenants/web", {"daemon": "gpu0", "uid": 0, "device_memory_limit": "4G"})
    visit = visitor(own_host)
    page = visit.log_in(to="/tenants/web")
    expect(page.locator("#connection")).to_have_text("live")
    own_host.api("DELETE", "/tenants/web")
    expect(page.locator("#stale-notice")).to_contain_text("This no longer exists, or you no longer have access")
    expect(page.locator("#connection")).to_have_text("gone")
    expect(page.get_by_role("heading", level=1)).to_contain_text("web")
    visit.accessible()
    page.locator("#stale-notice").get_by_role("link", name="Reload").click()
    expect(page.get_by_role("heading", name="Not found")).to_be_visible()


def test_page_without_manager_shows_its_age(own_host, visitor, scripted):
    if not scripted:
        return
    visit = visitor(own_host)
    page = visit.log_in(to="/daemons")
    connection, notice = page.locator("#connection"), page.locator("#stale-notice")
    expect(connection).to_have_text("live")
    page.route(lambda url: url.endswith("/daemons"), lambda route: route.fulfill(status=500, body="no"))
    expect(notice).to_contain_text(re.compile(r"as of \d\d:\d\d:\d\d: .*status 500"), timeout=FIGURES_MS)
    expect(connection).to_have_text("not up to date")
    page.unroute_all()
    expect(notice).to_be_hidden(timeout=FIGURES_MS)
    expect(connection).to_have_text("live")
    own_host.stop(signal.SIGKILL)
    expect(notice).to_contain_text("does not respond")
    expect(connection).to_have_text("not connected")
    visit.accessible()
    unanswered(visit)


def test_page_of_hung_manager_shows_its_age(own_host, visitor, scripted):
    if not scripted:
        return
    visit = visitor(own_host)
    page = visit.log_in(to="/daemons")
    connection, notice = page.locator("#connection"), page.locator("#stale-notice")
    expect(connection).to_have_text("live")
    # No connection is closed: only the silence shows that the manager hangs.
    own_host.manager.send_signal(signal.SIGSTOP)
    try:
        expect(notice).to_contain_text("does not respond", timeout=4 * FIGURES_MS)
        expect(connection).to_have_text("not connected")
    finally:
        own_host.manager.send_signal(signal.SIGCONT)
    expect(notice).to_be_hidden(timeout=FIGURES_MS)
    expect(connection).to_have_text("live")


@pytest.mark.parametrize("path, field, part", [
    ("/tenants/-/new", "#device_memory_limit", "#prediction"),
    ("/layouts/-/new", "#text", "#outcome"),
])
def test_stale_prediction_is_marked(host, visitor, scripted, path, field, part):
    if not scripted:
        return
    visit = visitor(host)
    page = visit.log_in(to=path)
    note = page.locator(f"{part} .outdated")
    expect(note).to_have_count(0)
    page.route("**/*", lambda route: route.abort())
    page.locator(field).fill("3")
    expect(note).to_contain_text("Not up to date: the manager does not respond")
    expect(page.locator("#connection")).to_have_text("not connected")
    visit.accessible()
    page.unroute_all()
    page.locator(field).fill("4")
    expect(note).to_have_count(0)
    expect(page.locator("#connection")).to_have_text("")
    visit.log_out_elsewhere()
    page.locator(field).fill("5")
    expect(note).to_contain_text("your session has ended")
    expect(page.locator("#connection")).to_have_text("session ended")
    expect(page.locator(field)).to_have_value("5")
    unanswered(visit)


def test_second_termination_leads_to_the_ended_client(own_host, visitor):
    process = own_host.client("demo", "--spin", "600", "--alloc", "512")
    [client] = own_host.api("GET", "/clients?tenant=demo")["items"]
    visit = visitor(own_host)
    page = visit.log_in(to=f"/clients/{client['id']}/terminate")
    own_host.done(own_host.api("POST", f"/clients/{client['id']}/terminate"))
    process.wait(TIMEOUT_S)
    eventually("it is gone", lambda: own_host.api("GET", "/clients?tenant=demo&fresh=true")["items"] == [])
    page.get_by_role("button", name=re.compile("Terminate client")).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("gone")
    assert page.url.endswith(f"/clients/{client['id']}")
    page.goto(f"/clients/{client['id']}/terminate")
    expect(page.get_by_role("heading", level=1)).to_contain_text("gone")
    # A client that never existed has no page.
    assert page.goto("/clients/1-1/terminate").status == 404


def test_deleted_resource_is_recreated_from_its_form(own_host, visitor):
    host = own_host
    host.api("PUT", "/tenants/web", {"daemon": "gpu0", "uid": 0, "device_memory_limit": "4G"})
    visit = visitor(host)
    page = visit.log_in(to="/tenants/web/edit")
    page.get_by_label("Memory limit").fill("6G")
    host.api("DELETE", "/tenants/web")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("Your own login deleted tenant web at")
    expect(page.get_by_label("Name", exact=True)).to_have_value("web")
    expect(page.get_by_label("Memory limit")).to_have_value("6G")
    visit.accessible()
    page.get_by_role("button", name="Create tenant").click()
    page.wait_for_url("**/tenants/web")
    assert host.api("GET", "/tenants/web")["spec"]["device_memory_limit"] == 6 << 30

    host.api("PUT", "/layouts/prod", {"layout": {"steps": [{"add": {"gpu": 0, "partition": "web", "chunks": 7}}]}})
    page.goto("/layouts/prod/edit")
    fill(page, add("web", 5))
    host.api("DELETE", "/layouts/prod")
    page.get_by_role("button", name="Save as a new version").click()
    expect(page.get_by_role("alert")).to_contain_text("Your own login deleted layout prod at")
    expect(page.get_by_label("Layout", exact=True)).to_have_value(text_of(add("web", 5)))
    expect(page.get_by_label("Name", exact=True)).to_have_value("prod")
    visit.accessible()
    page.get_by_role("button", name="Create").click()
    page.wait_for_url("**/layouts/prod")
    assert host.api("GET", "/layouts/prod")["newest"]["layout"]["steps"][0]["add"]["chunks"] == 5

    clear(host, "gpu1")
    page.goto("/daemons/gpu1/edit")
    more(page, "#expert")
    page.get_by_label("Memory over-commit").fill("2")
    host.done(host.api("DELETE", "/daemons/gpu1?grace_s=0"))
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("Your own login deleted daemon gpu1 at")
    expect(page.get_by_label("Memory over-commit")).to_have_value("2")
    expect(page.get_by_label("Name", exact=True)).to_have_value("gpu1")
    visit.accessible()


def test_edit_without_revision_accuses_nobody(host, visitor, scripted):
    if not scripted:
        return
    visit = visitor(host)
    page = visit.log_in(to="/tenants/demo/edit")
    page.locator("input[name=revision]").evaluate("field => field.remove()")
    with page.expect_response("**/tenants/demo/edit") as answer:
        page.get_by_role("button", name="Save").click()
    assert answer.value.status == 412
    expect(page.get_by_role("alert")).to_contain_text("came without the revision of the tenant")
    visit.accessible()


def sign_in(page, token):
    """Logs in within the page whose session has ended."""
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()


def test_ended_session_says_who_ended_it(own_host, visitor, scripted):
    token = own_host.token_for("operator", "shift")
    visit, stranger = visitor(own_host), visitor(own_host)
    page = visit.log_in(token, to="/tenants/demo")
    if scripted:
        expect(page.locator("#connection")).to_have_text("live")
    [made] = [one for one in own_host.api("GET", "/tokens")["items"] if one["name"] == "shift"]
    own_host.api("DELETE", f"/tokens/{made['id']}")
    words = re.compile(r"Signed out at .*\d( UTC)?: its token was revoked by admin token\.")
    stranger.page.goto("/login")
    expect(stranger.page.get_by_text("Signed out")).to_have_count(0)
    if not scripted:
        page.reload()
        expect(page.get_by_role("status")).to_have_text(words)
        return
    notice = page.locator("#stale-notice")
    expect(notice).to_contain_text(words, timeout=FIGURES_MS)
    expect(page.get_by_role("heading", level=1)).to_contain_text("demo")
    visit.accessible()
    sign_in(page, token)
    expect(notice.get_by_role("alert")).to_contain_text("the token is not valid")
    sign_in(page, own_host.token)
    expect(notice).to_be_hidden()
    expect(page.locator(".account summary")).to_have_text("admin token")
    expect(page.get_by_role("navigation", name="Console").get_by_role("link", name="Audit")).to_be_visible()
    own_host.api("PUT", "/tenants/demo", {**own_host.api("GET", "/tenants/demo")["spec"], "max_clients": 7})
    expect(page.get_by_role("main")).to_contain_text("of 7", timeout=FIGURES_MS)


def test_form_stays_through_login_in_place(own_host, visitor, scripted):
    if not scripted:
        return
    visit = visitor(own_host)
    page = visit.log_in(to="/tenants/-/new")
    page.get_by_label("Name", exact=True).fill("fresh")
    page.get_by_label("User", exact=True).fill("root")
    own_host.api("DELETE", "/sessions")
    page.get_by_label("Memory limit").fill("3G")
    notice = page.locator("#stale-notice")
    expect(notice).to_contain_text("by admin token. What you typed stays.", timeout=FIGURES_MS)
    visit.accessible()
    sign_in(page, own_host.token)
    expect(notice).to_be_hidden()
    expect(page.get_by_label("Name", exact=True)).to_have_value("fresh")
    page.get_by_role("button", name="Create tenant").click()
    page.wait_for_url("**/tenants/fresh")
    assert own_host.api("GET", "/tenants/fresh")["spec"]["device_memory_limit"] == 3 << 30


def test_page_stays_when_its_session_ends(own_host, visitor, scripted):
    if not scripted:
        return
    visit = visitor(own_host)
    page = visit.log_in(to="/tenants?q=de")
    expect(page.locator("#connection")).to_have_text("live")
    visit.log_out_elsewhere()
    own_host.api("PUT", "/tenants/demo", {**own_host.api("GET", "/tenants/demo")["spec"], "max_clients": 3})
    notice = page.locator("#stale-notice")
    # Without its cookie nobody learns who ended it.
    expect(notice).to_contain_text("Your session has ended. The page is as of", timeout=FIGURES_MS)
    expect(page.get_by_role("heading", level=1)).to_have_text("Tenants")
    visit.accessible()
    sign_in(page, own_host.token)
    expect(notice).to_be_hidden()
    expect(page.locator("#connection")).to_have_text("live")
    own_host.api("PUT", "/tenants/decoy", {"daemon": "gpu0", "uid": 0})
    expect(page.get_by_role("row", name="decoy")).to_be_visible(timeout=FIGURES_MS)
    assert page.url.endswith("/tenants?q=de")
    expect(page.get_by_role("row", name="demo")).to_be_visible()


def test_form_sent_twice_makes_one_token(host, visitor, scripted):
    name = f"once_{'yes' if scripted else 'no'}"
    made = lambda: [one for one in host.api("GET", "/tokens?limit=1000")["items"] if one["name"].startswith(name)]
    visit = visitor(host)
    page = visit.log_in(to="/tokens/new")
    page.get_by_label("Name").fill(name)
    page.get_by_label("Role").fill("viewer")
    page.get_by_role("button", name="Create token").click()
    secret = page.locator("#secret").text_content().strip()
    assert host.api("GET", "/whoami", token=secret)["grant"] == "viewer"
    page.reload()
    expect(page.get_by_role("heading", name=f"Token {name} was created before")).to_be_visible()
    assert secret not in page.content()
    expect(page.locator("#secret")).to_have_count(0)
    assert len(made()) == 1
    visit.accessible()
    page.get_by_role("link", name="revoke the token").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Revoke")
    # The form with other values creates another one.
    page.goto("/tokens/new")
    page.get_by_label("Name").fill(f"{name}_2")
    page.get_by_label("Role").fill("viewer")
    page.get_by_role("button", name="Create token").click()
    expect(page.get_by_role("heading", name="created")).to_be_visible()
    assert len(made()) == 2


def test_forbidden_forms_are_not_shown(host, visitor):
    host.api("PUT", "/layouts/spare", {"layout": {"steps": []}})
    viewer = host.token_for("viewer")
    token = host.api("GET", "/tokens")["items"][0]["id"]
    of_operators = ["/settings/maintenance", "/layouts/-/new", "/layouts/-/import", "/layouts/spare/edit", "/layouts/spare/delete",
                    "/replays/new", "/daemons/gpu0/stop", "/daemons/gpu0/restart", "/daemons/gpu0/drain"]
    of_admins = ["/tenants/-/new", "/tenants/demo/edit", "/tenants/demo/delete", "/daemons/-/new", "/daemons/gpu0/edit",
                 "/daemons/gpu0/delete", "/daemons/gpu0/release", "/tokens/new", f"/tokens/{token}/revoke"]
    page = visitor(host).log_in(viewer)
    for path in of_operators + of_admins:
        assert page.goto(path).status == 403, path
        expect(page.get_by_role("heading", name="Forbidden")).to_be_visible()
    page = visitor(host).log_in(host.token_for("operator"))
    for path in of_admins:
        assert page.goto(path).status == 403, path
    for path in of_operators:
        assert page.goto(path).status == 200, path


def test_invalid_filter_keeps_the_page(host, visitor):
    visit = visitor(host)
    page = visit.log_in()
    for path, field, value in [("/tenants?daemon=GPU!", "daemon", "GPU!"), ("/clients?tenant=Web+Team", "tenant", "Web Team"),
                               ("/clients?daemon=GPU!", "daemon", "GPU!")]:
        assert page.goto(path).status == 422
        expect(page.locator(f"#wrong-{field}")).to_contain_text(value)
        expect(page.get_by_label("Tenant" if field == "tenant" else "Daemon")).to_have_value(value)
        expect(page.get_by_role("link", name="Show all")).to_be_visible()
        visit.accessible()
    for path, claim in [("/tenants", "A tenant shares a GPU"), ("/clients", "No process is connected"),
                        ("/events", "No events yet"), ("/audit", "No changes yet")]:
        assert page.goto(f"{path}?cursor=zzz").status == 422, path
        expect(page.get_by_role("alert")).to_contain_text("cursor")
        expect(page.get_by_text(claim)).to_have_count(0)
        visit.accessible()


def test_invalid_version_is_not_the_newest(host, visitor):
    host.api("PUT", "/layouts/prod", {"layout": {"steps": []}})
    visit = visitor(host)
    page = visit.log_in()
    assert page.goto("/layouts/prod/apply?daemon=gpu1&version=two").status == 422
    expect(page.locator("#wrong-version")).to_contain_text("\"two\" is not a version")
    expect(page.get_by_role("heading", name="What would be done")).to_have_count(0)
    expect(page.get_by_role("button", name=re.compile("^Apply"))).to_have_count(0)
    visit.accessible()
    assert page.goto("/layouts/prod/assert?daemon=gpu1&version=two").status == 422


def test_operation_title_names_its_subject(own_host, visitor):
    clear(own_host, "gpu1")
    own_host.api("PUT", "/daemons/gpu1", {"gpus": ["1"], "mode": "static"})
    own_host.api("PUT", "/layouts/prod", {"layout": {"steps": []}})
    eventually("gpu1 is ready", lambda: own_host.status_of("/readyz/daemons/gpu1") == 200)
    applied = own_host.done(own_host.api("POST", "/layouts/prod/apply", {"daemon": "gpu1"}))
    page = visitor(own_host).log_in(to=f"/operations/{applied['id']}")
    expect(page).to_have_title(re.compile("^Apply layout prod version 1 ·"))
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile(r"^Apply layout prod version 1\s+on daemon gpu1"))
    page.goto("/audit?target=layouts/prod")
    expect(page.locator(".audit .said").first).to_have_text("admin applied layout prod v1 to gpu1")
