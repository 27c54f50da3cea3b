"""Charts of longer spans, with limits and incidents, and the vitals of a GPU."""

import json
import os
import re
import signal
import sqlite3
import time

from playwright.sync_api import expect

from host import eventually


def fill_history(host, gpu):
    """Stores a week of power of a GPU, and of memory of a tenant on it, as a manager that ran would have."""
    database = sqlite3.connect(host.home / "state" / "mps-manager.db")
    database.execute("PRAGMA foreign_keys = ON")
    now = int(time.time())
    lines = [(901, None, "power", 400.0), (902, "demo", "memory", 2.0**30), (903, "demo", "clients", 2.0)]
    for line, tenant, measure, value in lines:
        database.execute("INSERT OR REPLACE INTO history_lines VALUES (?, ?, ?, ?, ?)", (line, tenant, gpu, measure, now * 1000))
        for period, count in [(60, 360), (600, 1000)]:
            rows = [(period * 1000, (now // period - step) * period * 1000, line, value, value) for step in range(count)]
            database.executemany("INSERT INTO history_points VALUES (?, ?, ?, ?, ?)", rows)
    database.commit()
    database.close()


def test_spans_are_links_with_kept_history(own_host, visitor):
    host = own_host
    gpu = host.api("GET", "/gpus/0")["uuid"]
    host.stop()
    fill_history(host, gpu)
    host.start()
    visit = visitor(host)
    page = visit.log_in(to="/gpus/0")
    spans = page.get_by_role("navigation", name="Span of the charts")
    expect(spans.locator("[aria-current]")).to_have_text("1h")
    expect(page.locator("#chart-power")).to_contain_text("Power in the last hour")
    for span, words in [("6h", "the last 6 hours"), ("24h", "the last 24 hours"), ("7d", "the last 7 days")]:
        spans.get_by_role("link", name=span).click()
        expect(page).to_have_url(re.compile(f"span={span}#charts$"))
        expect(spans.locator("[aria-current]")).to_have_text(span)
        figure = page.locator("#chart-power")
        expect(figure).to_contain_text(f"Power in {words}")
        expect(figure.locator(".limit")).to_contain_text("700 W")
        expect(page.locator("#chart-memory .key")).to_contain_text("demo")
        if visit.scripted:
            expect(figure.locator("canvas")).to_have_count(1)
            slider = figure.get_by_role("slider", name=f"Power in {words}")
            page.get_by_role("link", name="Skip to the content").focus()
            slider.focus()
            page.keyboard.press("Home")
            assert "400 W" in slider.get_attribute("aria-valuetext")
        figure.locator("summary").click()
        # The newest value is the present one.
        expect(figure.get_by_role("row").nth(3)).to_contain_text("400 W")
        figure.locator("summary").click()
    visit.accessible()


def test_vitals_and_empty_charts(own_host, visitor):
    host = own_host
    eventually("all is ready", lambda: host.status_of("/readyz") == 200)
    gpu = host.api("GET", "/gpus/1")["uuid"]
    vitals = {"temperature_celsius": 83, "uncorrected_ecc_errors": 2, "throttle_reasons": ["sw_power_cap"], "sm_clock_mhz": None}
    (host.home / "run" / "sim" / "gpus" / gpu / "vitals").write_text(json.dumps(vitals))
    eventually("they are read", lambda: host.api("GET", "/gpus/1")["vitals"]["temperature_celsius"] == 83)
    visit = visitor(host)
    page = visit.log_in(to="/gpus/1")
    section = page.get_by_role("region", name="Vitals")
    expect(section).to_contain_text("83 °C Temperature, slows at 87 °C")
    expect(section.locator(".state.warn")).to_have_text(["power limit", "2"])
    expect(section).not_to_contain_text("SM clock")
    expect(section).to_contain_text("Utilisation of each tenant is not reported by this driver.")
    eventually("the hour is drawn", lambda: page.reload() and section.locator("polyline").count() >= 3)
    expect(section).to_contain_text("°C in the last hour")
    # Nobody has used it: a chart without data is a line of text.
    empty = page.locator("#chart-memory")
    expect(empty).to_contain_text("No data yet")
    assert empty.bounding_box()["height"] < 120
    visit.accessible()


def test_incidents_are_marked_in_charts(own_host, visitor):
    host = own_host
    host.client("demo", "--spin", "600", "--alloc", "256")
    daemon = host.api("GET", "/daemons/gpu0")["status"]["pid"]
    visit = visitor(host)
    page = visit.log_in(to="/tenants/demo")
    # The newest point is of now, and only those before it are recorded.
    recorded = lambda lines: lines and len(lines[0]["points"]) >= 2
    eventually("the client is in the history", lambda: recorded(page.request.get("/tenants/demo/history").json()["panels"][0]["lines"]))
    os.kill(daemon, signal.SIGKILL)
    eventually("it is an incident", lambda: host.api("GET", "/incidents?tenant=demo")["items"])
    incident = host.api("GET", "/incidents?tenant=demo")["items"][0]["id"]
    # A limit is drawn once it was read back from the new daemon.
    eventually("the limit is in force again", lambda: (host.api("GET", "/tenants/demo")["status"]["effective"] or {}).get("device_memory_limits"))
    page.reload()
    marks = page.locator("p.marks")
    expect(marks.get_by_role("link", name=f"incident {incident}")).to_be_visible()
    expect(page.locator("#chart-memory .limit")).to_contain_text("limit")
    mark = page.locator(f"#chart-memory svg.marks a[href='/incidents/{incident}'] rect")
    if visit.scripted:
        expect(mark).to_be_visible()
        expect(page.locator("#chart-memory canvas")).to_be_visible()
        plot, tick = page.locator("#chart-memory .u-over").bounding_box(), mark.bounding_box()
        assert plot["x"] - 4 <= tick["x"] <= plot["x"] + plot["width"] + 4, (plot, tick)
    else:
        expect(mark).to_be_hidden()
    visit.accessible()
    marks.get_by_role("link", name=f"incident {incident}").click()
    expect(page).to_have_url(re.compile(f"/incidents/{incident}$"))
