"""What every test of the console has: a browser, a host, a logged-in user, and an eye on the console's faults."""

import os
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect, sync_playwright

from host import Host

# As long as visitors wait: several tests at a time share the processors.
expect.set_options(timeout=15_000)

AXE = Path(os.environ["AXE"]).read_text()
# Nothing but the host under test is to be had, and nothing else is looked for.
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
           "--disable-component-update", "--disable-sync"]


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ["MPS_MANAGER_CHROMIUM"], args=OPTIONS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def host():
    """A host for the tests of one file, which leave it as they need it to be."""
    host = Host()
    yield host
    host.close()


@pytest.fixture
def own_host():
    """A host for one test."""
    host = Host()
    yield host
    host.close()


@pytest.fixture(params=[True, False], ids=["with script", "without script"])
def scripted(request):
    return request.param


class Visitor:
    """A user of a browser, who notices what its console says."""

    def __init__(self, browser, host, scripted, **options):
        self.host, self.scripted, self.faults = host, scripted, []
        options = {"locale": "en-GB", "timezone_id": "Europe/Berlin", **options}
        self.context = browser.new_context(java_script_enabled=scripted, base_url=host.url, **options)
        self.context.set_default_timeout(15_000)
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.faults.append(f"{self.page.url}: {error}"))
        self.page.on("console", self.notice)

    def notice(self, message):
        # A refusal is shown in a page, and Chromium logs it, too.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.faults.append(f"{self.page.url}: {message.text}")

    def log_in(self, token=None, to="/"):
        if token is None:
            self.page.goto(self.host.login_url())
        else:
            self.page.goto("/login")
            self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("button", name="Log in").click()
        # Going elsewhere at once would end the log-in on its way.
        self.page.wait_for_url(lambda url: not urlsplit(url).path.startswith("/login"))
        if to != "/":
            self.page.goto(to)
        return self.page

    def log_out_elsewhere(self):
        """The session is over, and this browser does not know yet."""
        self.context.clear_cookies()

    def accessible(self):
        """Fails on whatever axe finds in the page as it is."""
        if not self.scripted:
            return
        if not self.page.evaluate("typeof axe === 'object'"):
            self.page.evaluate(AXE)
        # Colours on their way from one to the other are neither.
        self.page.evaluate("document.getAnimations().forEach(one => one instanceof CSSTransition && one.finish())")
        found = self.page.evaluate("axe.run().then(found => found.violations.map(one => "
                                   "[one.id, one.help, one.nodes.slice(0, 3).map(node => node.html + ' ' + node.failureSummary)]))")
        assert found == [], f"{self.page.url}: {found}"


@pytest.fixture
def visitor(browser, scripted):
    """Makes visitors; at the end, none of their consoles may have said anything."""
    visitors = []

    def visit(host, **options):
        visitors.append(Visitor(browser, host, scripted, **options))
        return visitors[-1]

    yield visit
    for one in visitors:
        one.context.close()
    faults = [fault for one in visitors for fault in one.faults]
    assert faults == [], faults
