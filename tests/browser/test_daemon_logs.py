"""Logs: searched, paged and followed; no other file can be read through them."""

from pathlib import Path

from playwright.sync_api import expect

from test_operations import follow


def test_log_is_searched_and_paged(own_host, visitor, scripted):
    host = own_host
    log = Path(host.api("GET", "/daemons/gpu0")["status"]["log_directory"]) / "server.log"
    visit = visitor(host)
    page = visit.log_in(to="/daemons/gpu0")
    page.get_by_role("link", name="Logs").click()
    expect(page.get_by_role("link", name="control.log")).to_have_attribute("aria-current", "page")
    expect(page.locator(".log li").first).to_be_visible()
    visit.accessible()
    host.api("POST", "/daemons/gpu0/stop?grace_s=0")
    with open(log, "ab") as file:
        file.write(b"".join(b"a line of another program, number %05d \xff\x1b[31m\n" % number for number in range(20_000)))
    page.get_by_role("link", name="server.log").click()
    page.get_by_label("Lines with").fill("NUMBER 19999")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator(".log li").filter(has_text="number 19999")).to_have_count(1)
    expect(page.locator(".log li")).to_have_count(1)
    visit.accessible()
    page.get_by_role("link", name="All lines").click()
    expect(page.locator(".log li")).to_have_count(400)
    page.get_by_role("link", name="Older").click()
    expect(page.locator(".log li").first).to_contain_text("another program")
    first = page.locator(".log li").first.text_content()
    page.get_by_role("link", name="Older").click()
    page.get_by_role("link", name="Newer").click()
    expect(page.locator(".log li").first).to_have_text(first)
    page.get_by_role("link", name="Newest").click()
    with open(log, "ab") as file:
        file.write(b"<b>the newest</b>\n")
    follow(page, scripted, lambda ms: expect(page.locator(".log li").last).to_have_text("<b>the newest</b>", timeout=ms))


def test_log_symlink_is_not_followed(own_host, visitor):
    host = own_host
    host.done(host.api("POST", "/daemons/gpu1/stop?grace_s=0"))
    log = Path(host.api("GET", "/daemons/gpu1")["status"]["log_directory"]) / "control.log"
    secret = host.home / "secret"
    secret.write_text("a secret\n")
    log.unlink()
    visit = visitor(host)
    page = visit.log_in(to="/daemons/gpu1/logs")
    expect(page.get_by_text("there is no control.log")).to_be_visible()
    log.symlink_to(secret)
    page.reload()
    expect(page.get_by_text("links in a log directory are not followed")).to_be_visible()
    expect(page.get_by_text("a secret")).to_have_count(0)
    visit.accessible()
