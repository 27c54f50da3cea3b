"""The timeline of the host: clients, incidents and changes, drawn and listed."""

import os
import re
import signal

from playwright.sync_api import expect

from host import eventually


def test_timeline_shows_clients_incidents_and_changes(own_host, visitor):
    host = own_host
    process = host.client("demo", "--spin", "600", "--alloc", "64")
    host.api("POST", "/daemons/gpu1/cordon", token=host.token_for("operator", "ada"))
    pid = host.api("GET", "/daemons/gpu1")["status"]["pid"]
    os.kill(pid, signal.SIGKILL)
    incident = eventually("it is an incident", lambda: next(iter(host.api("GET", "/incidents?state=recovered")["items"]), None))
    visit = visitor(host)
    page = visit.log_in(to="/timeline")
    expect(page.get_by_role("group", name="gpu0: 1 client, 0 incidents")).to_be_visible()
    expect(page.locator(".lane-picture .part rect")).to_have_count(1)
    bar = page.locator(".lane-picture a").filter(has=page.locator("rect.incident"))
    expect(bar).to_have_attribute("href", f"/incidents/{incident['id']}")
    expect(page.get_by_role("listitem").filter(has_text="ada cordoned daemon gpu1")).to_have_count(1)
    page.locator("summary").filter(has_text="gpu0: 1 client").click()
    expect(page.get_by_role("link", name=re.compile(f"^process {process.pid} of demo, connected$"))).to_be_visible()
    visit.accessible()
    page.get_by_role("link", name="24 hours").click()
    expect(page.get_by_role("link", name="24 hours")).to_have_attribute("aria-current", "page")
    assert page.goto("/timeline?span=1y").status == 422
    # An incident leads to the time around it; before it there was none, and the client was there already.
    page.goto(f"/incidents/{incident['id']}")
    page.get_by_role("link", name="Show on the timeline").click()
    expect(bar).to_have_attribute("href", f"/incidents/{incident['id']}")
    page.goto(f"/timeline?span=1h&until={incident['opened_at']}")
    expect(page.get_by_role("group", name="gpu0: 1 client, 0 incidents")).to_be_visible()
    expect(bar).to_have_count(0)
    page.get_by_role("link", name="Later", exact=True).click()
    expect(bar).to_have_count(1)
    viewer = visitor(host).log_in(host.token_for("viewer"), to="/timeline")
    expect(viewer.locator(".lane-picture .part rect")).to_have_count(1)
    expect(viewer.get_by_text("ada cordoned")).to_have_count(0)
