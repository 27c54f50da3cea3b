"""GPUs: one that is gone for good, and the one that takes its place."""

from playwright.sync_api import expect

from host import eventually
from test_operations import follow


def test_a_gpu_that_is_gone_is_replaced(own_host, visitor, scripted):
    host = own_host
    host.done(host.api("DELETE", "/daemons/gpu1"))
    gone, other = (host.api("GET", f"/gpus/{index}")["uuid"] for index in (0, 1))
    visit = visitor(host)
    page = visit.log_in(to="/gpus/0/replace")
    expect(page.get_by_text("Only a GPU that is missing is replaced")).to_be_visible()
    expect(page.get_by_role("button", name="Replace")).to_have_count(0)
    visit.accessible()

    mark = host.home / "run/sim/gpus" / gone / "lost"
    mark.touch()
    page.goto("/")
    missing = page.get_by_role("listitem").filter(has_text="is missing")
    follow(page, scripted, lambda ms: expect(missing).to_be_visible(timeout=ms))
    missing.get_by_role("link").click()
    page.get_by_role("link", name="Put another in its place").click()
    expect(page.get_by_role("radio", name="GPU")).to_be_checked()
    visit.accessible()
    page.get_by_role("button", name="Replace").click()
    page.wait_for_url("**/daemons/gpu0")
    assert host.api("GET", "/daemons/gpu0")["spec"]["gpus"] == [other]
    follow(page, scripted, lambda ms: expect(page.get_by_role("heading", level=1)).to_contain_text("ready", timeout=ms))
    page.goto(f"/events?type=gpu.replaced")
    expect(page.get_by_text(f"GPU {other} took the place of {gone}")).to_be_visible()


def test_nothing_is_replaced_by_what_is_not_free(own_host, visitor):
    host = own_host
    gone = host.api("GET", "/gpus/0")["uuid"]
    (host.home / "run/sim/gpus" / gone / "lost").touch()
    eventually("it is missing", lambda: not host.api("GET", f"/gpus/{gone}")["present"])
    visit = visitor(host)
    page = visit.log_in(to=f"/gpus/{gone}/replace")
    expect(page.get_by_text("No GPU of this host is free")).to_be_visible()
    expect(page.get_by_role("button", name="Replace")).to_have_count(0)
    visit.accessible()
