"""Getting about: the menu at each width, its badge, and the search."""

import os
import signal

from playwright.sync_api import expect

from host import eventually
from test_operations import follow


def test_search_leads_to_pages_and_objects(host, visitor):
    visit = visitor(host)
    page = visit.log_in()
    field = page.get_by_label("Search or jump to")
    if visit.scripted:
        page.keyboard.press("/")
        expect(field).to_be_focused()
        page.keyboard.press("Escape")
        page.keyboard.press("Control+k")
        expect(field).to_be_focused()
        page.keyboard.type("dem")
        option = page.get_by_role("option", name="demo")
        expect(option).to_be_visible()
        visit.accessible()
        # The first result is chosen, and the arrow keys choose another.
        expect(page.locator(".jump .chosen")).to_have_count(1)
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowUp")
        page.keyboard.press("Escape")
        expect(page.get_by_role("option")).to_have_count(0)
        page.keyboard.press("/")
        page.keyboard.type("new tena")
        expect(page.get_by_role("option", name="New tenant")).to_be_visible()
        page.keyboard.press("Enter")
        page.wait_for_url("**/tenants/-/new")
        return
    field.fill("demo")
    field.press("Enter")
    page.wait_for_url("**/search?q=demo")
    visit.accessible()
    page.locator(".hits").get_by_role("link", name="Tenant demo").click()
    page.wait_for_url("**/tenants/demo")
    page.goto("/search?q=nothing+like+this")
    expect(page.get_by_text("Nothing on this host matches.")).to_be_visible()


def test_search_offers_only_what_is_allowed(host, visitor, scripted):
    page = visitor(host).log_in(token=host.token_for("tenant:demo", f"theirs_{scripted}".lower()))
    kinds = lambda text: page.goto(f"/search?q={text}") and page.locator(".hits .kind").all_text_contents()
    assert "Tenant" in kinds("demo") and "Tenant" not in kinds("batch")
    assert kinds("gpu0") == [] and kinds("new") == [] and kinds("audit") == []


def test_menu_opens_on_a_phone(host, visitor):
    visit = visitor(host, viewport={"width": 390, "height": 800})
    page = visit.log_in()
    menu = page.get_by_role("navigation", name="Console")
    expect(menu).to_be_hidden()
    page.get_by_role("link", name="Menu", exact=True).click()
    expect(menu.get_by_role("link", name="Settings")).to_be_visible()
    visit.accessible()
    menu.get_by_role("link", name="Close the menu").click()
    expect(menu).to_be_hidden()
    page.get_by_role("link", name="Menu", exact=True).click()
    menu.get_by_role("link", name="Tenants", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Tenants")
    page.set_viewport_size({"width": 768, "height": 800})
    expect(menu.get_by_role("link", name="Audit")).to_be_visible()
    visit.accessible()


def test_badge_counts_open_incidents(own_host, visitor, scripted):
    visit = visitor(own_host)
    page = visit.log_in()
    badge = page.locator("#open-incidents")
    expect(badge).to_be_hidden()
    pid = own_host.api("GET", "/daemons/gpu0")["status"]["pid"]
    own_host.client("demo", "--spin", "600", "--alloc", "64")
    os.kill(pid, signal.SIGSTOP)
    try:
        eventually("it is open", lambda: own_host.api("GET", "/incidents?state=open")["items"])
        follow(page, scripted, lambda ms: expect(badge).to_have_text("1", timeout=ms))
        visit.accessible()
    finally:
        os.kill(pid, signal.SIGCONT)
    follow(page, scripted, lambda ms: expect(badge).to_be_hidden(timeout=ms))


def test_lists_are_sorted_by_their_headings(own_host, visitor):
    for name, limit in [("a1", "2G"), ("a10", "10G"), ("a2", "9G"), ("a3", None)]:
        own_host.api("PUT", f"/tenants/{name}", {"daemon": "gpu0", "uid": 0, **({"device_memory_limit": limit} if limit else {})})
    visit = visitor(own_host)
    page = visit.log_in(to="/tenants?q=a")
    names = page.locator("tbody th a")
    heading = page.get_by_role("columnheader", name="Memory limit")
    mine = lambda: [name for name in names.all_text_contents() if name.startswith("a")]
    assert mine() == ["a1", "a2", "a3", "a10"]
    for direction, order in [("descending", ["a10", "a2", "a1", "a3"]), ("ascending", ["a1", "a2", "a10", "a3"])]:
        heading.get_by_role("link").click()
        expect(page.locator("th[aria-sort]")).to_have_text("Memory limit")
        expect(heading).to_have_attribute("aria-sort", direction)
        assert mine() == order, direction
        visit.accessible()
    heading.get_by_role("link").click()
    expect(page.locator("th[aria-sort]")).to_have_count(0)
    assert page.url.endswith("/tenants?q=a")
    for path, link in [("/clients", None), ("/daemons", "Clients"), ("/gpus", "Memory used")]:
        page.goto(path)
        if link:
            page.get_by_role("main").get_by_role("link", name=link, exact=True).click()
            page.wait_for_url("**/*?sort=*")
            visit.accessible()
        assert page.goto(f"{path}?sort=colour").status == 422
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/tenants")
    heading.get_by_role("link").click()
    expect(heading).to_have_attribute("aria-sort", "descending")
    visit.accessible()


def test_idle_tenants_show_since_when(own_host, visitor):
    for name in ["never", "left", "busy"]:
        own_host.api("PUT", f"/tenants/{name}", {"daemon": "gpu0", "uid": 0})
    gone = own_host.client("left", "--spin", "600", "--alloc", "64")
    own_host.client("busy", "--spin", "600", "--alloc", "64")
    gone.terminate()
    gone.wait(30)
    eventually("it has left", lambda: own_host.api("GET", "/events?type=client.left&tenant=left")["items"])
    visit = visitor(own_host)
    page = visit.log_in(to="/tenants")
    page.get_by_role("navigation", name="Use").get_by_role("link", name="Idle").click()
    names = page.locator("tbody th a")
    expect(names.filter(has_text="busy")).to_have_count(0)
    cell = lambda name: page.get_by_role("row").filter(has=page.get_by_role("rowheader", name=name)).locator("[data-label='Last used']")
    expect(cell("never")).to_have_text("never")
    expect(cell("left").locator("time")).to_have_count(1)
    visit.accessible()
    page.get_by_role("columnheader", name="Last used").get_by_role("link").click()
    expect(names.first).to_have_text("left")
    page.get_by_role("navigation", name="Use").get_by_role("link", name="In use").click()
    expect(names).to_have_text(["busy"])
    expect(cell("busy")).to_have_text("now")
    page.goto("/clients")
    shown = page.get_by_role("navigation", name="Clients shown")
    expect(shown.get_by_role("link", name="All")).to_contain_text("1")
    shown.get_by_role("link", name="Without a tenant").click()
    expect(page.get_by_text("No client matches")).to_be_visible()
    visit.accessible()
