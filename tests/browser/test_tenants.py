"""Tenants: listed, created, changed, verified and deleted."""

import re
import subprocess

import pytest
from playwright.sync_api import expect

from host import eventually
from pages import more


def fill_in(page, name, limit, **others):
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("User", exact=True).fill("root")
    page.get_by_label("Memory limit").fill(limit)
    for label, value in others.items():
        more(page, "#expert")
        page.get_by_label(label, exact=True).fill(value)


@pytest.fixture
def roomy(own_host):
    """A host with a daemon that has room for more tenants."""
    return own_host


def test_refused_tenant_form_is_fixed_and_sent(roomy, visitor):
    visit = visitor(roomy)
    page = visit.log_in(to="/tenants")
    page.get_by_role("link", name="New tenant").click()
    visit.accessible()
    fill_in(page, "web", "1.3G", Labels="team=search")
    page.get_by_label("A number of SMs").check()
    page.get_by_label("SMs", exact=True).fill("33")
    page.get_by_role("button", name="Create tenant").click()
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("Nothing was changed")
    expect(alert).to_be_focused()
    expect(alert.get_by_role("listitem")).to_contain_text(["Memory limit", "SMs"])
    limit = page.get_by_label("Memory limit")
    alert.get_by_role("link", name="Memory limit").click()
    expect(limit).to_be_focused()
    expect(limit).to_have_attribute("aria-invalid", "true")
    expect(limit).to_have_value("1.3G")
    expect(page.locator("#wrong-device_memory_limit")).to_contain_text("the nearest are 1331M and 1332M")
    expect(page.get_by_label("Labels")).to_have_value("team=search")
    visit.accessible()
    limit.fill("4G")
    page.get_by_role("button", name="Create tenant").click()
    expect(page.locator("#wrong-sms")).to_contain_text("32 and 34")
    page.get_by_label("SMs", exact=True).fill("32")
    page.get_by_role("button", name="Create tenant").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("web")
    assert page.url.endswith("/tenants/web")
    spec = roomy.api("GET", "/tenants/web")["spec"]
    assert (spec["device_memory_limit"], spec["sms"], spec["labels"]) == (4 << 30, 32, {"team": "search"})
    made = roomy.api("GET", "/events?type=tenant.created&tenant=web")["items"]
    assert len(made) == 1, "it is in the journal once"
    # Not twice.
    page.goto("/tenants/-/new")
    fill_in(page, "web", "1G")
    page.get_by_role("button", name="Create tenant").click()
    expect(page.locator("#wrong-name")).to_contain_text("already")


def test_prediction_is_beside_the_form(roomy, visitor):
    visit = visitor(roomy)
    page = visit.log_in(to="/tenants/-/new?daemon=gpu1")
    aside = page.get_by_role("complementary", name="Prediction")

    def reported():
        if not visit.scripted:
            page.get_by_role("button", name="Check").click()
        return aside

    fill_in(page, "web", "4G")
    page.get_by_label("A number of SMs").check()
    page.get_by_label("SMs", exact=True).fill("32")
    expect(reported()).to_contain_text("32 of 132")
    expect(aside).to_contain_text("about 3.9 GiB")
    expect(aside).to_contain_text("No problems found")
    page.get_by_label("SMs", exact=True).fill("33")
    expect(reported()).to_contain_text("32 and 34")
    visit.accessible()
    page.get_by_label("SMs", exact=True).fill("32")
    page.get_by_label("Max clients").fill("50")
    expect(reported()).to_contain_text("200 GiB of 139.8 GiB nothing is reserved")
    expect(aside).to_contain_text("limits exceed memory by 60.2 GiB (200 GiB of 139.8 GiB)")
    expect(aside).not_to_contain_text("No problems found")
    spec = roomy.api("GET", "/daemons/gpu1")["spec"]
    roomy.api("PUT", "/daemons/gpu1", {**spec, "admission": "reserved"})
    page.get_by_label("Max clients").fill("51")
    expect(reported()).to_contain_text("too much")
    roomy.api("PUT", "/daemons/gpu1", spec)
    assert roomy.api("GET", "/tenants?limit=1000")["items"][-1]["name"] != "web", "nothing is written"
    # A request of the script in between does not affect the form.
    page.get_by_label("Max clients").fill("2")
    expect(reported()).to_contain_text("No problems found")
    page.get_by_role("button", name="Create tenant").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("web")


def open_an_outdated_form(page, host, token=None):
    host.api("PUT", "/tenants/web", {"daemon": "gpu0", "uid": 0, "device_memory_limit": "4G", "sms": 32})
    page.goto("/tenants/web/edit")
    expect(page.get_by_label("Memory limit")).to_have_value("4G")
    page.get_by_label("Memory limit").fill("6G")
    page.get_by_label("Inherit from daemon").check()
    spec = {"daemon": "gpu0", "uid": 0, "device_memory_limit": "5G", "sms": 32, "max_clients": 2}
    host.api("PUT", "/tenants/web", spec, token=token)
    with page.expect_response("**/tenants/web/edit") as answer:
        page.get_by_role("button", name="Save").click()
    assert answer.value.status == 412


def test_outdated_form_shows_both_values_and_overwrites(roomy, visitor):
    visit = visitor(roomy)
    page = visit.log_in()
    who = f"max-{'yes' if visit.scripted else 'no'}"
    open_an_outdated_form(page, roomy, roomy.token_for("admin", who))
    change = "changed tenant web: memory limit 5 GiB instead of 4 GiB, max clients 2 instead of none"
    expect(page.get_by_role("alert")).to_contain_text(
        re.compile(rf"{who} changed tenant web at 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC \({change}\), after you opened the form"))
    differences = page.get_by_role("table").first.locator("tbody tr")
    expect(differences).to_have_text(["Memory limit6G5G", "Max clients–2", "SMs–32"])
    visit.accessible()
    assert roomy.api("GET", "/tenants/web")["spec"]["device_memory_limit"] == 5 << 30, "nothing is written yet"
    page.get_by_role("button", name="Overwrite with my values").click()
    page.wait_for_url("**/tenants/web")
    spec = roomy.api("GET", "/tenants/web")["spec"]
    assert (spec["device_memory_limit"], spec.get("max_clients"), "sms" in spec) == (6 << 30, None, False)


def test_outdated_form_is_discarded_for_stored_values(roomy, visitor):
    page = visitor(roomy).log_in()
    open_an_outdated_form(page, roomy)
    page.get_by_role("link", name="Discard my values").click()
    expect(page.get_by_label("Memory limit")).to_have_value("5G")
    expect(page.get_by_label("Max clients")).to_have_value("2")
    expect(page.get_by_role("alert")).to_have_count(0)
    page.get_by_label("Max clients").fill("3")
    page.get_by_role("button", name="Save").click()
    page.wait_for_url("**/tenants/web")
    spec = roomy.api("GET", "/tenants/web")["spec"]
    assert (spec["device_memory_limit"], spec["max_clients"], spec["sms"]) == (5 << 30, 3, 32)


def test_third_change_makes_outdated_form_outdated_again(roomy, visitor):
    page = visitor(roomy).log_in()
    open_an_outdated_form(page, roomy)
    roomy.api("PUT", "/tenants/web", {"daemon": "gpu0", "uid": 0, "device_memory_limit": "7G"})
    page.get_by_role("button", name="Overwrite with my values").click()
    expect(page.get_by_role("table").first.locator("tbody tr")).to_have_text(["Memory limit6G7G"])
    assert roomy.api("GET", "/tenants/web")["spec"]["device_memory_limit"] == 7 << 30


def test_expired_session_keeps_tenant_form(roomy, visitor):
    visit = visitor(roomy)
    page = visit.log_in(to="/tenants/-/new")
    fill_in(page, "web", "3G", Labels="team=search\nowner=a b")
    visit.log_out_elsewhere()
    if visit.scripted:
        # A request of the script meanwhile must not replace the form.
        # One that was sent before the session ended may be answered after it.
        refused = lambda answer: answer.url.endswith("/tenants/-/predict") and answer.status == 401
        with page.expect_response(refused):
            page.get_by_label("Max clients").fill("2")
    page.get_by_label("Max clients").fill("2")
    page.get_by_role("button", name="Create tenant").click()
    expect(page.get_by_text("What you typed is kept")).to_be_visible()
    page.get_by_label("Token").fill(roomy.token)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("web")
    spec = roomy.api("GET", "/tenants/web")["spec"]
    assert (spec["device_memory_limit"], spec["max_clients"]) == (3 << 30, 2)
    assert spec["labels"] == {"team": "search", "owner": "a b"}


def test_client_is_terminated_from_its_page(own_host, visitor):
    visit = visitor(own_host)
    page = visit.log_in(to="/tenants/demo")
    expect(page.get_by_text("No process of this tenant is connected")).to_be_visible()
    process = own_host.client("demo", "--spin", "600", "--alloc", "512")

    def now():
        if not visit.scripted:
            page.reload()
        return page

    row = page.locator(f"tr[id^='client-{process.pid}-']")
    now()
    expect(row).to_be_visible()
    row.get_by_role("link", name=str(process.pid), exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("connected")
    expect(page.get_by_text("started by mps-manager run")).to_be_visible()
    visit.accessible()
    page.get_by_role("link", name="Terminate").click()
    expect(page.get_by_text("MPS ends its work")).to_be_visible()
    visit.accessible()
    page.get_by_role("button", name=re.compile("Terminate client")).click()
    page.wait_for_url("**/operations/*")
    process.wait(30)
    client_gone = lambda: own_host.api("GET", "/clients?tenant=demo&fresh=true")["items"] == []
    eventually("the client is gone", client_gone)
    page.goto("/tenants/demo")
    expect(page.get_by_text("No process of this tenant is connected")).to_be_visible()
    expect(page.get_by_text("client.terminated").first).to_be_visible()


def test_ended_client_keeps_its_history(own_host, visitor):
    process = own_host.client("demo", "--spin", "600", "--alloc", "512")
    [client] = own_host.api("GET", "/clients?tenant=demo")["items"]
    process.kill()
    process.wait()
    eventually("it is gone", lambda: own_host.api("GET", "/clients?tenant=demo&fresh=true")["items"] == [])
    left = lambda: own_host.api("GET", f"/events?client={client['id']}&type=client.left")["items"]
    eventually("the departure is reported", left)
    visit = visitor(own_host)
    page = visit.log_in(to=f"/clients/{client['id']}")
    expect(page.get_by_role("heading", level=1)).to_contain_text("gone")
    expect(page.get_by_text("client.connected")).to_be_visible()
    visit.accessible()


def test_tenant_is_verified_by_a_client(own_host, visitor):
    visit = visitor(own_host)
    page = visit.log_in(to="/tenants/demo")
    section = page.get_by_role("region", name="Verification")

    def now():
        if not visit.scripted:
            page.reload()
        return section

    def last():
        return own_host.api("GET", "/tenants/demo")["status"]["verification"]["last"]

    expect(section).to_contain_text("No CUDA client has verified")
    visit.accessible()
    section.get_by_role("button", name="Verify").click()
    page.wait_for_url("**/tenants/demo#verification")
    eventually("the verification ends", last)
    expect(now().get_by_role("heading")).to_contain_text("verified")
    expect(section.get_by_role("row", name="SMs")).to_contain_text("32")
    expect(section.get_by_role("row", name="Memory left to it")).to_contain_text("holds")
    expect(section.get_by_role("row", name="Priority")).to_contain_text("not seen")
    visit.accessible()
    # Its result is that of the time when it ran.
    spec = own_host.api("GET", "/tenants/demo")["spec"]
    own_host.api("PUT", "/tenants/demo", {**spec, "labels": {}})
    expect(now()).to_contain_text("out of date")
    expect(section).to_contain_text("the tenant was changed since")
    own_host.done(own_host.api("POST", "/daemons/gpu0/stop?grace_s=0"))
    before = last()["requested_at"]
    # From another path than the one that the form redirects to.
    page.goto("/tenants/demo")
    section.get_by_role("button", name="Verify again").click()
    page.wait_for_url("**/tenants/demo#verification")
    eventually("it was tried", lambda: last()["requested_at"] > before)
    expect(now()).to_contain_text("start it first")
    expect(section.get_by_role("heading")).to_contain_text("not verified")
    visit.accessible()


def test_only_permitted_roles_may_verify(host, visitor):
    for grant, offered in [("viewer", 0), ("operator", 1), ("tenant:demo", 1)]:
        visit = visitor(host)
        page = visit.log_in(host.token_for(grant))
        page.goto("/tenants/demo")
        expect(page.get_by_role("region", name="Verification")).to_be_visible()
        expect(page.get_by_role("button", name=re.compile("Verify"))).to_have_count(offered)


def test_environment_is_copied_verbatim(host, visitor):
    visit = visitor(host, **({"permissions": ["clipboard-read", "clipboard-write"]}))
    page = visit.log_in(to="/tenants/demo")
    shell = page.locator("#environment-shell")
    expect(shell).to_contain_text("export CUDA_MPS_PIPE_DIRECTORY=")
    text = shell.text_content()
    variables = host.api("GET", "/tenants/demo/environment")["variables"]
    output = subprocess.run(["sh", "-c", text + "\nenv"], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}).stdout
    for name, value in variables.items():
        assert f"{name}={value}\n" in output
    if not visit.scripted:
        expect(page.get_by_role("button", name="Copy")).to_have_count(0)
        return
    for name in ["Shell", "JSON", "docker run", "Compose", "Nomad", "--env-file", "systemd unit"]:
        part = page.locator("details.format").filter(has=page.locator("summary", has_text=name)).first
        if part.get_attribute("open") is None:
            part.locator("summary").click()
        part.get_by_role("button", name="Copy").click()
        # The button says so for a moment, which an update of the page may cut short: what was copied stays.
        copied = part.locator("pre").text_content()
        eventually(f"{name} is copied", lambda: page.evaluate("navigator.clipboard.readText()") == copied)


def test_tenants_are_filtered_and_paged(own_host, visitor):
    own_host.api("PUT", "/daemons/gpu1", {"gpus": ["1"], "memory_overcommit": 10})
    for number in range(56):
        own_host.api("PUT", f"/tenants/crowd_{number:02}", {"daemon": "gpu1", "uid": 0, "device_memory_limit": "16M"})
    visit = visitor(own_host)
    page = visit.log_in(to="/tenants")
    rows = page.get_by_role("row")
    expect(rows).to_have_count(51)
    page.get_by_role("link", name="Next page").click()
    expect(page.get_by_role("link", name="Next page")).to_have_count(0)
    expect(page.get_by_role("row", name="web")).to_have_count(0)
    page.get_by_role("link", name="First page").click()
    page.get_by_label("Name contains").fill("d_1")
    page.get_by_role("button", name="Filter").click()
    expect(rows).to_have_count(11)
    page.get_by_label("Name contains").fill("%")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_text("No tenants match")).to_be_visible()
    visit.accessible()
    page.get_by_role("link", name="Show all tenants").click()
    page.get_by_label("Daemon").select_option("gpu0")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_role("row", name="demo")).to_be_visible()
    expect(page.get_by_role("row", name="crowd")).to_have_count(0)


def test_idle_tenant_is_deleted(own_host, visitor):
    process = own_host.client("demo", "--spin", "600", "--alloc", "512")
    visit = visitor(own_host)
    page = visit.log_in(to="/tenants/demo")
    page.get_by_role("link", name="Delete").click()
    expect(page.get_by_role("alert")).to_contain_text("processes running (1)")
    expect(page.get_by_role("button", name="Delete demo")).to_have_count(0)
    process.kill()
    process.wait()
    eventually("it is gone", lambda: own_host.api("GET", "/clients?tenant=demo&fresh=true")["items"] == [])
    page.reload()
    visit.accessible()
    page.get_by_role("button", name="Delete demo").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Tenants")
    expect(page.get_by_role("row", name="demo")).to_have_count(0)
    row = own_host.api("GET", "/audit")["items"][0]
    assert (row["action"], row["target"]) == ("POST /tenants/{name}/delete", "tenants/demo"), row


def test_tenant_token_sees_only_its_tenant(own_host, visitor):
    own_host.api("PUT", "/tenants/other", {"daemon": "gpu0", "uid": 0, "device_memory_limit": "1G"})
    mine = own_host.client("demo", "--spin", "600", "--alloc", "512")
    own_host.client("other", "--spin", "600", "--alloc", "128")
    token = own_host.token_for("tenant:demo", "worker")
    visit = visitor(own_host)
    page = visit.log_in(token)
    expect(page.get_by_role("heading", level=1)).to_contain_text("demo")
    expect(page.get_by_role("link", name="Edit")).to_have_count(0)
    expect(page.locator("#environment-shell")).to_contain_text("CUDA_MPS_PIPE_DIRECTORY")
    visit.accessible()
    for path, there, absent in [("/tenants", "demo", "other"), ("/clients", str(mine.pid), "other")]:
        page.goto(path)
        expect(page.get_by_role("row", name=there)).to_be_visible()
        expect(page.get_by_role("main")).not_to_contain_text(absent)
        visit.accessible()
    page.get_by_role("link", name=str(mine.pid), exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(str(mine.pid))
    # No link leads to a page that would be refused.
    paths = page.get_by_role("main").get_by_role("link").evaluate_all("all => all.map(one => one.pathname)") if visit.scripted else []
    for path in paths:
        assert page.request.get(path, headers={"Accept": "text/html"}).status in (200, 404), path
    for path, status in [("/tenants/other", 404), ("/tenants/other/history", 404), ("/tenants/demo/history", 200),
                         ("/tenants/-/new", 403), ("/tenants/demo/edit", 403), ("/tenants/demo/delete", 403)]:
        assert page.request.get(path).status == status, path
    page.get_by_role("link", name="Terminate").click()
    page.get_by_role("button", name=re.compile("Terminate client")).click()
    mine.wait(30)


def test_last_hour_is_charted(own_host, visitor):
    own_host.client("demo", "--spin", "600", "--alloc", "1024")
    visit = visitor(own_host)
    page = visit.log_in(to="/tenants/demo")
    reported = lambda: page.request.get("/tenants/demo/history").json()["panels"]
    eventually("the client is in the history", lambda: reported()[0]["lines"])
    panels = {panel["id"]: panel for panel in reported()}
    assert set(panels) == {"memory", "clients"}
    at, clients = panels["clients"]["lines"][0]["points"][-1]
    assert clients == 1 and panels["memory"]["lines"][0]["points"][-1][1] >= 1 << 30
    for path in ["/tenants/demo", "/gpus/0"]:
        page.goto(path)
        figure = page.locator("#chart-memory")
        expect(figure.locator(".key")).to_contain_text("demo")
        expect(figure.locator(".key")).to_contain_text("GiB")
        if visit.scripted:
            expect(figure.locator("canvas")).to_have_count(1)
            width = figure.locator("canvas").evaluate("canvas => canvas.width")
            assert width > 100
            # By pointer and by keyboard: the values at one time.
            reading, slider = figure.locator(".readout"), figure.get_by_role("slider", name="Memory in the last hour")
            expect(reading).to_be_hidden()
            figure.scroll_into_view_if_needed()
            box = figure.locator(".u-over").bounding_box()
            page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 20)
            expect(reading).to_contain_text("demo")
            expect(reading).to_contain_text("GiB")
            page.mouse.move(0, 0)
            expect(reading).to_be_hidden()
            page.get_by_role("link", name="Skip to the content").focus()
            slider.focus()
            page.keyboard.press("End")
            expect(reading).to_contain_text("demo")
            assert "GiB" in slider.get_attribute("aria-valuetext")
        else:
            expect(figure.locator(".plot")).to_be_hidden()
        figure.locator("summary").click()
        expect(figure.get_by_role("columnheader", name="demo")).to_be_visible()
        expect(figure.get_by_role("row").nth(1)).to_contain_text("GiB")
        expect(figure.get_by_role("row")).to_have_count(14)
        visit.accessible()


def test_tenants_are_created_one_after_another(own_host, visitor):
    host = own_host
    visit = visitor(host)
    page = visit.log_in(to="/tenants/-/new?daemon=gpu0")
    # The user is that of the daemon's tenants; it may be named.
    expect(page.get_by_label("User", exact=True)).to_have_value("0")
    page.get_by_label("Name", exact=True).fill("first")
    page.get_by_label("User", exact=True).fill("nobody_knows_me")
    page.get_by_role("button", name="Create and add another").click()
    expect(page.locator("#wrong-uid")).to_contain_text('this host knows no user "nobody_knows_me"')
    visit.accessible()
    page.get_by_label("User", exact=True).fill("root")
    page.get_by_role("button", name="Create and add another").click()
    expect(page.get_by_role("status").filter(has_text="Tenant first was created")).to_be_visible()
    expect(page.get_by_label("Daemon", exact=True)).to_have_value("gpu0")
    visit.accessible()
    page.get_by_label("Name", exact=True).fill("second")
    page.get_by_role("button", name="Create tenant").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("second")
    assert [host.api("GET", f"/tenants/{name}")["spec"]["uid"] for name in ("first", "second")] == [0, 0]


def test_slider_shows_what_is_left(own_host, visitor):
    host = own_host
    visit = visitor(host)
    page = visit.log_in(to="/tenants/-/new?daemon=gpu0")
    page.get_by_label("Name", exact=True).fill("slides")
    page.get_by_label("User", exact=True).fill("root")
    page.get_by_label("Max clients").fill("1")
    page.get_by_label("Expiry").fill("in 2 days")
    if visit.scripted:
        page.get_by_label("GiB by slider").fill("20")
        page.get_by_label("Multiprocessors by slider").fill("32")
        expect(page.get_by_label("Memory limit")).to_have_value("20G")
        expect(page.get_by_label("A number of SMs")).to_be_checked()
    else:
        page.get_by_label("Memory limit").fill("20G")
        page.get_by_label("A number of SMs").check()
        page.get_by_label("SMs", exact=True).fill("32")
        page.get_by_role("button", name="Check").click()
    left = page.locator("#prediction .left")
    expect(left).to_have_text(re.compile(r"^(\d+ SMs and )?[\d.]+ GiB left to give after this tenant$"))
    expect(page.locator("#prediction time").last).to_be_visible()
    if visit.scripted:
        expect(page.locator("#prediction")).to_contain_text("in 2 d")
    visit.accessible()
    page.get_by_label("Memory limit").fill("139G")
    if not visit.scripted:
        page.get_by_role("button", name="Check").click()
    expect(left).to_have_text(re.compile("^Limits exceed its memory by"))
    page.get_by_label("Memory limit").fill("1G")
    page.get_by_role("button", name="Create tenant", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("slides")
    expect(page.get_by_text("Expires", exact=True).locator("+ dd").locator("time").last).to_be_visible()
