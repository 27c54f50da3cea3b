"""Logging in and out, and a form whose session ended in between."""

from playwright.sync_api import expect

from pages import clear


def test_log_in_leads_back_to_the_page(host, visitor):
    visit = visitor(host)
    page = visit.page
    page.goto("/gpus")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    visit.accessible()
    page.get_by_label("Token").fill("not a token")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("not valid")
    page.get_by_label("Token").fill(host.token)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="GPUs", exact=True)).to_be_visible()
    page.locator(".account summary").click()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    page.goto("/")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()


def test_login_link_works_once(host, visitor):
    visit = visitor(host)
    url = host.login_url()
    visit.page.goto(url)
    visit.page.get_by_role("button", name="Log in").click()
    expect(visit.page.get_by_role("heading", name="Overview")).to_be_visible()
    again = visitor(host)
    again.page.goto(url)
    again.page.get_by_role("button", name="Log in").click()
    expect(again.page.get_by_role("alert")).to_contain_text("used before")


def test_pages_mark_a_simulated_host(host, visitor):
    page = visitor(host).log_in()
    for path in ["/", "/gpus", "/gpus/0", "/nowhere"]:
        page.goto(path)
        expect(page.get_by_role("note").filter(has_text="Simulated host")).to_be_visible()


def test_error_page_offers_a_way_back(host, visitor):
    visit = visitor(host)
    page = visit.page
    page.goto("/nowhere?<script>")
    expect(page.get_by_role("heading", name="No such page")).to_be_visible()
    visit.accessible()
    visit.log_in()
    for path, heading in [("/nowhere", "No such page"), ("/gpus/17", "Not found")]:
        answer = page.goto(path)
        assert answer.status == 404
        expect(page.get_by_role("heading", name=heading)).to_be_visible()
        visit.accessible()
        page.get_by_role("link", name="To the overview").click()
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()


def test_tenant_token_sees_no_host_pages(host, visitor):
    visit = visitor(host)
    page = visit.log_in(host.token_for("viewer"))
    expect(page.get_by_role("navigation")).to_contain_text("GPUs")
    expect(page.get_by_role("navigation")).not_to_contain_text("Audit")
    other = visitor(host)
    page = other.log_in(host.token_for("tenant:demo"), to="/gpus")
    expect(page.get_by_role("heading", name="Forbidden")).to_be_visible()
    expect(page.get_by_role("navigation")).not_to_contain_text("GPUs")


def test_resource_named_new_has_its_page(own_host, visitor):
    host = own_host
    clear(host, "gpu1")
    host.done(host.api("DELETE", "/daemons/gpu1?grace_s=0"))
    host.api("PUT", "/daemons/new", {"gpus": ["1"]})
    host.api("PUT", "/tenants/new", {"daemon": "new", "uid": 0, "device_memory_limit": "1G"})
    host.api("PUT", "/layouts/new", {"layout": {"steps": []}})
    page = visitor(host).log_in()
    for place, heading in [("daemons", "Daemon new"), ("tenants", "Tenant new"), ("layouts", "Layout new version 1")]:
        page.goto(f"/{place}")
        page.get_by_role("link", name="new", exact=True).first.click()
        expect(page.get_by_role("heading", level=1)).to_contain_text(heading)
        assert page.url == f"{host.url}/{place}/new"
