"""Nothing jumps: neither when something happens, nor under somebody who reads."""

import os
import signal
from pathlib import Path

import pytest
from playwright.sync_api import expect

from conftest import Visitor
from host import eventually

WATCH = """() => {
  window.shifts = [];
  const told = node => node instanceof Element ? node.outerHTML.slice(0, 120) : node?.parentElement?.outerHTML.slice(0, 120);
  // A process that ends leaves its list, and those below it move up in the place that the list has.
  const row = node => node instanceof Element && node.matches('tr') && node.closest('[aria-label=Clients], [aria-labelledby=processes], [aria-labelledby=leases]');
  const note = entries => entries.filter(one => !one.hadRecentInput).forEach(one => {
    // A word of another length in the same place has not moved.
    const apart = (one, other) => Math.hypot(one.x - other.x, one.y - other.y) >= 1;
    const sources = one.sources.filter(source => source.node && !row(source.node) && apart(source.previousRect, source.currentRect));
    if (sources.length) window.shifts.push(sources.map(source =>
      [told(source.node), source.previousRect.y, source.currentRect.y, source.previousRect.x, source.currentRect.x]));
  });
  window.observer = new PerformanceObserver(list => note(list.getEntries()));
  // What comes before is of the loading.
  window.observer.observe({type: 'layout-shift'});
  window.shiftsNow = () => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => {
    note(window.observer.takeRecords());
    done(window.shifts);
  })));
}"""
# Where each thing on a page stands, by what it is called.
PLACES = "[...document.querySelectorAll('main :is(h1, h2, h3)')].map(one => [one.textContent.trim().split(/\\s+/)[0], one.offsetTop])"
PAGES = ["/", "/gpus/0", "/daemons/gpu0", "/tenants/demo", "/events", "/faults"]


@pytest.mark.parametrize("width", [390, 1440, 2560])
def test_nothing_moves_when_something_happens(browser, own_host, width):
    host = own_host
    spec = host.api("GET", "/tenants/demo")["spec"]
    host.api("PUT", "/tenants/demo", {**spec, "max_clients": 3})
    eventually("all is ready", lambda: host.status_of("/readyz") == 200)
    # A browser keeps no more than six connections to a host, and each page that is looked at has one of them.
    visitors = [Visitor(browser, host, True, viewport={"width": width, "height": 2400}) for _ in PAGES]
    pages = {path: visit.log_in(to=path) for path, visit in zip(PAGES, visitors)}
    places = {}
    for path, page in pages.items():
        expect(page.locator("#following")).to_have_text("live")
        page.evaluate("document.fonts.ready")
        page.evaluate(WATCH)
        places[path] = page.evaluate(PLACES)

    def still(when):
        moved = {path: page.evaluate("shiftsNow()") for path, page in pages.items()}
        moved = {path: shifts for path, shifts in moved.items() if shifts}
        for path, page in pages.items():
            now = page.evaluate(PLACES)
            if now != places[path]:
                moved[f"places on {path}"] = (places[path], now)
        assert moved == {}, f"at {width} px, {when}: {moved}"

    overview, gpu, daemon, tenant, events, faults = pages.values()
    first = host.client("demo", "--spin", "600", "--alloc", "512")
    expect(overview.get_by_role("row", name="gpu0").get_by_role("cell").last).to_have_text("1")
    for page in [gpu, daemon, tenant]:
        expect(page.get_by_role("link", name=str(first.pid), exact=True).first).to_be_visible()
    expect(events.locator(".events").get_by_text("client.connected").first).to_be_visible()
    expect(tenant.locator("#drawn-memory canvas")).to_be_visible()
    still("a client is there")

    host.client("demo", "--spin", "600", "--alloc", "64", "--fault-after", "5")
    for page in [overview, daemon, events]:
        expect(page.locator(".events").get_by_text("server.fault").first).to_be_visible()
    expect(faults.get_by_role("row").filter(has_text="server.fault")).to_contain_text(str(first.pid))
    expect(overview.locator(".attention").get_by_text("A server had a fatal GPU error")).to_be_visible()
    still("a server had a fault")

    os.kill(host.api("GET", "/daemons/gpu0")["status"]["pid"], signal.SIGKILL)
    for page in [overview, daemon, events]:
        expect(page.locator(".events").get_by_text("daemon.died").first).to_be_visible()
    expect(faults.get_by_role("row").filter(has_text="daemon.died")).to_be_visible()
    eventually("it is there again", lambda: host.status_of("/readyz") == 200)
    expect(daemon.get_by_role("heading", level=1)).to_contain_text("ready")
    expect(faults.get_by_role("row").filter(has_text="daemon.died")).to_contain_text("over")
    expect(overview.locator(".attention").get_by_text("it is over").first).to_be_visible()
    still("a daemon was lost and is back")

    host.api("POST", "/daemons/gpu1/cordon")
    expect(overview.get_by_text("Daemon gpu1 is cordoned")).to_be_visible()
    host.stop()
    for page in pages.values():
        expect(page.locator("#standing")).to_be_visible()
    still("the manager is gone")
    for visit in visitors:
        assert visit.faults == []
        visit.context.close()


def test_a_page_that_nobody_looks_at_keeps_no_connection(browser, own_host):
    visit = Visitor(browser, own_host, True)
    page = visit.log_in()
    expect(page.locator("#following")).to_have_text("live")
    followers = lambda: page.evaluate("performance.getEntriesByType('resource').filter(one => one.name.endsWith('/live')).length")
    before = followers()
    look = "hidden => { Object.defineProperty(document, 'hidden', {configurable: true, get: () => hidden}); " \
           "document.dispatchEvent(new Event('visibilitychange')); }"
    page.evaluate(look, True)
    eventually("the connection is closed", lambda: followers() > before)
    own_host.api("POST", "/daemons/gpu1/cordon")
    page.evaluate(look, False)
    expect(page.get_by_text("Daemon gpu1 is cordoned")).to_be_visible()
    assert visit.faults == []
    visit.context.close()


def test_whoever_reads_up_in_a_log_stays_there(browser, own_host):
    host = own_host
    host.done(host.api("POST", "/daemons/gpu1/stop?grace_s=0"))
    log = Path(host.api("GET", "/daemons/gpu1")["status"]["log_directory"]) / "server.log"

    def write(begin, end):
        with open(log, "a") as file:
            file.write("".join(f"[2026-11-22 06:20:05.123 Server  4711] line {number}\n" for number in range(begin, end)))

    write(0, 1000)
    visit = Visitor(browser, host, True, viewport={"width": 1440, "height": 900})
    page = visit.log_in(to="/daemons/gpu1/logs?file=server")
    expect(page.locator("#following")).to_have_text("live")
    lines, newer = page.locator(".log li"), page.get_by_role("button", name="Newer lines")
    expect(lines.last).to_contain_text("line 999")
    expect(newer).to_be_hidden()
    write(1000, 1001)
    expect(lines.last).to_contain_text("line 1000")
    assert page.locator(".log").evaluate("log => log.scrollTop") == 0, "whoever is at the end stays at it"

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
    assert visit.faults == []
    visit.context.close()


def test_times_in_a_log_are_the_readers(browser, own_host):
    visit = Visitor(browser, own_host, True, timezone_id="Asia/Kathmandu")
    page = visit.log_in(to="/daemons/gpu0/logs")
    time = page.locator(".log time").first
    expect(time).to_be_visible()
    told, wanted = time.evaluate("""one => [one.textContent, new Intl.DateTimeFormat([], {timeZone: "Asia/Kathmandu",
        hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3}).format(new Date(one.dateTime))]""")
    assert told.endswith(wanted), (told, wanted)
    assert " on the host, " in time.get_attribute("title")
    visit.context.close()


def test_events_are_not_changed_under_their_reader(browser, own_host):
    host = own_host
    visit = Visitor(browser, host, True, viewport={"width": 1440, "height": 900})
    page = visit.log_in(to="/events")
    expect(page.locator("#following")).to_have_text("live")
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
def test_a_page_is_painted_before_its_scripts_come(browser, own_host, path):
    visit = Visitor(browser, own_host, True, viewport={"width": 1440, "height": 900})
    page, held = visit.log_in(), []
    page.route("**/*.js", lambda route: held.append(route))
    page.goto(path, wait_until="commit")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.get_by_role("main")).to_contain_text("gpu0" if path != "/layouts/-/new" else "Steps")
    painted = lambda: page.evaluate("performance.getEntriesByName('first-contentful-paint').length")
    eventually("it is painted", painted)
    assert held and page.evaluate("document.readyState") != "complete", "the scripts are still on their way"
    for route in held:
        route.continue_()
    page.unroute("**/*.js")
    expect(page.locator("html.scripted")).to_have_count(1)
    assert visit.faults == []
    visit.context.close()
