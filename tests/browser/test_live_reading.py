"""Live pages do not disturb their reader."""

import os
import signal
from pathlib import Path

import pytest
from playwright.sync_api import expect

from conftest import Visitor
from host import eventually
from pages import card

# The headings that are read, on the pages where something changes above them.
READ = {"/": "GPUs", "/gpus/0": "Vitals", "/daemons/gpu0": "Conditions", "/tenants/demo": "History"}


def test_live_updates_keep_the_scroll_position(browser, own_host):
    host = own_host
    eventually("all is ready", lambda: host.status_of("/readyz") == 200)
    visitors = [Visitor(browser, host, True, viewport={"width": 1440, "height": 700}) for _ in READ]
    headings = {}
    for visit, (path, text) in zip(visitors, READ.items()):
        page = visit.log_in(to=path)
        expect(page.locator("#connection")).to_have_text("live")
        headings[path] = page.get_by_role("heading", name=text, exact=True)
        headings[path].evaluate("heading => heading.scrollIntoView({block: 'center'})")
    tops = lambda: {path: round(heading.bounding_box()["y"]) for path, heading in headings.items()}
    before = tops()
    overview, gpu, daemon, tenant = (visit.page for visit in visitors)

    first = host.client("demo", "--spin", "600", "--alloc", "512")
    expect(card(overview, "gpu0").get_by_role("link", name="1 client", exact=True)).to_be_attached()
    for page in [gpu, daemon, tenant]:
        expect(page.get_by_role("link", name=str(first.pid), exact=True).first).to_be_attached()
    assert tops() == before, "a client connected"

    os.kill(host.api("GET", "/daemons/gpu0")["status"]["pid"], signal.SIGKILL)
    for page in [overview, daemon]:
        expect(page.locator(".events").get_by_text("daemon.died").first).to_be_attached()
    eventually("it is ready again", lambda: host.status_of("/readyz") == 200)
    expect(daemon.get_by_role("heading", level=1)).to_contain_text("ready")
    # Only the incident's own lines, above all else, move what is read.
    moved = {path: top - before[path] for path, top in tops().items()}
    assert all(0 <= way <= 160 for way in moved.values()), moved
    for visit in visitors:
        assert visit.errors == []
        visit.context.close()


def test_hidden_page_keeps_no_connection(browser, own_host):
    visit = Visitor(browser, own_host, True)
    page = visit.log_in()
    expect(page.locator("#connection")).to_have_text("live")
    followers = lambda: page.evaluate("performance.getEntriesByType('resource').filter(one => new URL(one.name).pathname === '/live').length")
    before = followers()
    hide = "hidden => { Object.defineProperty(document, 'hidden', {configurable: true, get: () => hidden}); " \
           "document.dispatchEvent(new Event('visibilitychange')); }"
    page.evaluate(hide, True)
    eventually("the connection is closed", lambda: followers() > before)
    own_host.api("POST", "/daemons/gpu1/cordon")
    page.evaluate(hide, False)
    expect(page.get_by_text("Daemon gpu1 is cordoned")).to_be_visible()
    assert visit.errors == []
    visit.context.close()


def test_scrolled_log_stays_in_place(browser, own_host):
    host = own_host
    host.done(host.api("POST", "/daemons/gpu1/stop?grace_s=0"))
    log = Path(host.api("GET", "/daemons/gpu1")["status"]["log_directory"]) / "server.log"

    def write(begin, end):
        with open(log, "a") as file:
            file.write("".join(f"[2026-11-22 06:20:05.123 Server  4711] line {number}\n" for number in range(begin, end)))

    write(0, 1000)
    visit = Visitor(browser, host, True, viewport={"width": 1440, "height": 900})
    page = visit.log_in(to="/daemons/gpu1/logs?file=server")
    expect(page.locator("#connection")).to_have_text("live")
    lines, newer = page.locator(".log li"), page.get_by_role("button", name="Newer lines")
    expect(lines.last).to_contain_text("line 999")
    expect(newer).to_be_hidden()
    write(1000, 1001)
    expect(lines.last).to_contain_text("line 1000")
    assert page.locator(".log").evaluate("log => log.scrollTop") == 0, "a reader at the end stays at it"

    page.locator(".log").hover()
    page.mouse.wheel(0, -3000)
    seen = "log => { const box = log.getBoundingClientRect(); return [...log.querySelectorAll('li')].filter(line => " \
           "line.getBoundingClientRect().top >= box.top && line.getBoundingClientRect().bottom <= box.bottom)" \
           ".map(line => line.textContent); }"
    eventually("it is scrolled", lambda: page.locator(".log").evaluate("log => log.scrollTop") < -2000)
    before = page.locator(".log").evaluate(seen)
    write(1001, 1101)
    expect(newer).to_be_visible()
    assert page.locator(".log").evaluate(seen) == before
    visit.accessible()
    newer.click()
    expect(lines.last).to_contain_text("line 1100")
    expect(newer).to_be_hidden()
    assert page.locator(".log").evaluate("log => log.scrollTop") == 0
    write(1101, 1102)
    expect(lines.last).to_contain_text("line 1101")
    assert visit.errors == []
    visit.context.close()


def test_log_times_are_in_the_readers_zone(browser, own_host):
    visit = Visitor(browser, own_host, True, timezone_id="Asia/Kathmandu")
    page = visit.log_in(to="/daemons/gpu0/logs")
    time = page.locator(".log time").first
    expect(time).to_be_visible()
    reported, wanted = time.evaluate("""one => [one.textContent, new Intl.DateTimeFormat([], {timeZone: "Asia/Kathmandu",
        hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3}).format(new Date(one.dateTime))]""")
    assert reported.endswith(wanted), (reported, wanted)
    assert " on the host, " in time.get_attribute("title")
    visit.context.close()


def test_events_do_not_change_under_their_reader(browser, own_host):
    host = own_host
    visit = Visitor(browser, host, True, viewport={"width": 1440, "height": 900})
    page = visit.log_in(to="/events")
    expect(page.locator("#connection")).to_have_text("live")
    first, newer = page.locator(".events > li").first, page.get_by_role("button", name="Newer events")
    page.keyboard.press("Tab")
    first.get_by_role("link").focus()
    before = first.text_content()
    host.api("POST", "/daemons/gpu1/cordon")
    expect(newer).to_be_visible()
    assert first.text_content() == before
    visit.accessible()
    newer.click()
    expect(page.locator(".events > li", has_text="daemon.changed")).to_have_count(1)
    expect(newer).to_be_hidden()
    visit.context.close()


@pytest.mark.parametrize("path", ["/", "/gpus/0", "/daemons/gpu0/logs", "/layouts/-/new"])
def test_page_is_painted_before_its_scripts(browser, own_host, path):
    visit = Visitor(browser, own_host, True, viewport={"width": 1440, "height": 900})
    page, held = visit.log_in(), []
    page.route("**/*.js", lambda route: held.append(route))
    page.goto(path, wait_until="commit")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.get_by_role("main")).to_contain_text("gpu0" if path != "/layouts/-/new" else "No problems found")
    painted = lambda: page.evaluate("performance.getEntriesByName('first-contentful-paint').length")
    eventually("it is painted", painted)
    assert held and page.evaluate("document.readyState") != "complete", "the scripts are still loading"
    for route in held:
        route.continue_()
    page.unroute("**/*.js")
    expect(page.locator("html.scripted")).to_have_count(1)
    assert visit.errors == []
    visit.context.close()
