"""How soon the page that follows a POST shows its final state: milliseconds after the operation had ended, of many POSTs of each kind."""

import os
import sys
from datetime import datetime

from playwright.sync_api import sync_playwright

from conftest import OPTIONS, Visitor
from host import Host, eventually
from pages import clear

# Beyond this a page says what is no longer so.
LIMIT_MS = 500
# Notes when the page's state is a final one: as a user sees it, so by what is in the document.
WATCH = """setInterval(() => {
    if (window.shownAt || !/[/](operations|replays)[/][0-9a-f]{8}-/.test(location.pathname)) return
    const took = [...document.querySelectorAll('dl.facts dt')].some((name) => name.textContent === 'Took')
    const verdict = document.querySelector('.lead')
    if (took || (verdict && !/pending|running/.test(verdict.textContent))) window.shownAt = Date.now()
}, 5)"""


def ms(time):
    return datetime.fromisoformat(time).timestamp() * 1000


def shown_after(page, host, path):
    """Milliseconds from the end of what the page shows to when it says so."""
    shown = eventually("the final state is shown", lambda: page.evaluate("window.shownAt"))
    return shown - ms(host.api("GET", path)["finished_at"])


def follow_operation(page, host):
    page.wait_for_url("**/operations/*")
    return shown_after(page, host, "/operations/" + page.url.rsplit("/", 1)[1])


def applies(page, host, number):
    page.goto(f"/layouts/{('one', 'two')[number % 2]}/apply?daemon=gpu1")
    recreate = page.get_by_label("Recreate these partitions")
    if recreate.count():
        recreate.check()
    page.get_by_role("button", name="Apply to gpu1").click()
    return follow_operation(page, host)


def replays(page, host, number):
    host.done(host.api("POST", "/layouts/none/apply", {"daemon": "gpu1"}))
    page.goto(f"/replays/new?layout={('one', 'two')[number % 2]}")
    page.get_by_label("Daemon").select_option("gpu1")
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Replay it on gpu1").click()
    page.wait_for_url(lambda url: "/replays/" in url and not url.rsplit("/", 1)[1].startswith("new"))
    return shown_after(page, host, "/replays/" + page.url.rsplit("/", 1)[1])


def terminations(page, host, number):
    process = host.client("demo", "--spin", "600", "--alloc", "64")
    client = next(one for one in host.api("GET", "/clients?tenant=demo")["items"] if one["pid"] == process.pid)
    page.goto(f"/clients/{client['id']}/terminate")
    page.get_by_role("button", name=f"Terminate client {client['pid']}").click()
    return follow_operation(page, host)


def restarts(page, host, number):
    page.goto("/daemons/gpu0/restart")
    page.get_by_role("button", name="Restart").click()
    return follow_operation(page, host)


def main(times):
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ["MPS_MANAGER_CHROMIUM"], args=OPTIONS)
        host = Host("h200x2@13.1")
        late = 0
        try:
            clear(host, "gpu1")
            host.api("PUT", "/daemons/gpu1", {"gpus": ["1"], "mode": "static"})
            for name, chunks in [("one", [7, 5]), ("two", [7, 3]), ("none", [])]:
                steps = [{"add": {"gpu": 1, "partition": f"p{at}", "chunks": size}} for at, size in enumerate(chunks)]
                host.api("PUT", f"/layouts/{name}", {"layout": {"steps": steps}})
            eventually("gpu1 is ready", lambda: host.status_of("/readyz/daemons/gpu1") == 200)
            visitor = Visitor(browser, host, True)
            visitor.context.add_init_script(WATCH)
            page = visitor.log_in()
            for kind in (applies, replays, terminations, restarts):
                took = sorted(kind(page, host, number) for number in range(times))
                within = sum(one <= LIMIT_MS for one in took)
                late += times - within
                print(f"{kind.__name__}: {within} of {times} within {LIMIT_MS} ms; median {took[times // 2]:.0f}, largest {took[-1]:.0f}")
        finally:
            host.close()
            browser.close()
    return late


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])) > 0)
