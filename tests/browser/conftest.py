"""Fixtures of all tests of the console: a browser, a host, and a logged-in user whose JavaScript errors fail the test."""

import os
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect, sync_playwright

from host import Host

# Several tests at a time share the processors.
expect.set_options(timeout=15_000)

AXE = Path(os.environ["AXE"]).read_text()
# There is no network but the host under test, and Chromium contacts nothing else.
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
    """A host that the tests of one file share: each leaves it as the next needs it."""
    host = Host()
    yield host
    host.close()


@pytest.fixture
def own_host():
    """A host for one test."""
    host = Host()
    yield host
    host.close()


# Every test runs with script. Without it, which takes as long again, a third of them do, unless all are wanted.
EVERY_LOOK = bool(os.environ.get("MPS_MANAGER_EVERY_LOOK"))


def pytest_collection_modifyitems(config, items):
    if EVERY_LOOK or config.option.keyword:
        return
    without = [item for item in items if "without script" in item.name]
    left_out = {item for number, item in enumerate(without) if number % 3}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(params=[True, False], ids=["with script", "without script"])
def scripted(request):
    return request.param


class Visitor:
    """A user with a browser of their own; errors in its JavaScript console are recorded."""

    def __init__(self, browser, host, scripted, **options):
        self.host, self.scripted, self.errors = host, scripted, []
        options = {"locale": "en-GB", "timezone_id": "Europe/Berlin", **options}
        self.context = browser.new_context(java_script_enabled=scripted, base_url=host.url, **options)
        self.context.set_default_timeout(15_000)
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.errors.append(f"{self.page.url}: {error}"))
        self.page.on("console", self.record_error)

    def record_error(self, message):
        # Chromium logs a refused request as an error; the page shows it.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.errors.append(f"{self.page.url}: {message.text}")

    def log_in(self, token=None, to="/"):
        if token is None:
            self.page.goto(self.host.login_url())
        else:
            self.page.goto("/login")
            self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("button", name="Log in").click()
        # Navigating before the response would cancel the log-in.
        self.page.wait_for_url(lambda url: not urlsplit(url).path.startswith("/login"))
        if to != "/":
            self.page.goto(to)
        return self.page

    def log_out_elsewhere(self):
        """Ends the session without a response that shows it to the browser."""
        self.context.clear_cookies()

    def accessible(self):
        """Fails on any violation that axe finds in the present page."""
        if not self.scripted:
            return
        if not self.page.evaluate("typeof axe === 'object'"):
            self.page.evaluate(AXE)
        # In the middle of a transition a colour has neither of its contrasts.
        self.page.evaluate("document.getAnimations().forEach(one => one instanceof CSSTransition && one.finish())")
        found = self.page.evaluate("axe.run().then(found => found.violations.map(one => "
                                   "[one.id, one.help, one.nodes.slice(0, 3).map(node => node.html + ' ' + node.failureSummary)]))")
        assert found == [], f"{self.page.url}: {found}"


@pytest.fixture
def visitor(browser, scripted):
    """Makes visitors; at the end, none may have had an error in the JavaScript console."""
    visitors = []

    def visit(host, **options):
        visitors.append(Visitor(browser, host, scripted, **options))
        return visitors[-1]

    yield visit
    for one in visitors:
        one.context.close()
    errors = [error for one in visitors for error in one.errors]
    assert errors == [], errors
