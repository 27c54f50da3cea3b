"""Operations: followed step by step, and cancelled."""

from playwright.sync_api import Error, expect


def follow(page, scripted, check):
    """Retries a check until it passes: with a script the page updates itself, without one it is reloaded."""
    from host import eventually

    if scripted:
        check(15_000)
        return

    def seen():
        try:
            page.reload()
            check(1)
            return True
        # The navigation of a click that is still in progress cancels a reload.
        except (AssertionError, Error):
            return False

    eventually("the page shows it", seen)


def test_restart_steps_are_followed(host, visitor, scripted):
    operation = host.api("POST", "/daemons/gpu0/restart?grace_s=0")
    visit = visitor(host)
    page = visit.log_in(to=f"/operations/{operation['id']}")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Restart daemon gpu0")
    follow(page, scripted, lambda ms: expect(page.locator("dl.facts [role=status]")).to_have_text("succeeded", timeout=ms))
    steps = page.locator("table.steps tbody tr")
    expect(steps.locator("th")).to_have_text(["note the running process", "stop", "wait until ready"])
    expect(steps.locator(".state")).to_have_text(["done"] * 3)
    expect(steps.nth(1)).to_contain_text("replaced by process")
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    who = host.api("GET", f"/events?operation={operation['id']}&type=operation.requested")["items"][0]["cause"]["subject"]
    expect(page.locator("dl.facts")).to_contain_text(f"by {who}")
    visit.accessible()
    page.get_by_role("link", name="All operations").click()
    row = page.get_by_role("row").nth(1)
    expect(row).to_contain_text("Restart")
    expect(row).to_contain_text("succeeded")
    expect(row.get_by_role("link", name="daemon gpu0")).to_have_attribute("href", "/daemons/gpu0")
    visit.accessible()


def test_drain_is_cancelled(own_host, visitor, scripted):
    host = own_host
    host.client("demo", "--spin", "600", "--alloc", "64")
    operation = host.api("POST", "/daemons/gpu0/drain?timeout_s=600")
    visit = visitor(host)
    page = visit.log_in(to=f"/operations/{operation['id']}")
    waits = page.get_by_role("row", name="wait for clients")
    follow(page, scripted, lambda ms: expect(waits).to_contain_text("running", timeout=ms))
    expect(page.get_by_text("600 s to end")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    follow(page, scripted, lambda ms: expect(page.locator("dl.facts [role=status]")).to_have_text("cancelled", timeout=ms))
    expect(page.get_by_role("row", name="undo")).to_contain_text("done")
    assert host.api("GET", "/daemons/gpu0")["spec"]["schedulable"] is True
    # A viewer is offered no action, and the page of an unknown operation is an error that names it.
    looker = visitor(host)
    page = looker.log_in(host.token_for("viewer"), to=f"/operations/{operation['id']}")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Drain daemon gpu0")
    page.goto("/operations/00000000-0000-7000-8000-000000000000")
    expect(page.get_by_text("It may have been deleted")).to_be_visible()


def test_operations_are_paged_and_scoped(own_host, visitor):
    host = own_host
    for _ in range(51):
        host.done(host.api("POST", "/daemons/gpu0/start"))
    visit = visitor(host)
    page = visit.log_in(to="/operations")
    expect(page.locator("tbody tr")).to_have_count(50)
    page.get_by_role("link", name="Next page").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.get_by_role("link", name="Next page")).to_have_count(0)
    visit.accessible()
    page.get_by_role("link", name="First page").click()
    expect(page.locator("tbody tr")).to_have_count(50)
    own = visitor(host)
    page = own.log_in(host.token_for("tenant:demo"), to="/operations")
    expect(page.get_by_text("No operations yet")).to_be_visible()
    own.accessible()


def test_drain_is_cancelled_from_its_daemon(own_host, visitor, scripted):
    host = own_host
    host.client("demo", "--spin", "600", "--alloc", "64")
    host.api("POST", "/daemons/gpu0/drain?timeout_s=600")
    visit = visitor(host)
    page = visit.log_in(to="/")
    goes_on = page.get_by_role("region", name="In progress")
    follow(page, scripted, lambda ms: expect(goes_on).to_contain_text("waits for 1 client (", timeout=ms))
    expect(goes_on.get_by_role("link", name="Drain daemon gpu0")).to_be_visible()
    visit.accessible()
    page.goto("/daemons/gpu0")
    expect(page.locator("#under-way")).to_contain_text("Drain daemon gpu0")
    expect(page.get_by_role("button", name="Uncordon")).to_have_count(0)
    visit.accessible()
    page.locator("#under-way").get_by_role("button", name="Cancel").click()
    follow(page, scripted, lambda ms: expect(page.locator("dl.facts [role=status]")).to_have_text("cancelled", timeout=ms))
    page.goto("/daemons/gpu0")
    follow(page, scripted, lambda ms: expect(page.locator("#under-way")).to_have_count(0, timeout=ms))
    page.goto("/operations?daemon=gpu0&state=cancelled")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.get_by_label("Daemon")).to_have_value("gpu0")
    expect(page.get_by_label("State")).to_have_value("cancelled")
    page.goto("/operations?state=failed")
    expect(page.get_by_text("No operation matches.")).to_be_visible()
    visit.accessible()


def test_refused_filter_explains_and_links_back(host, visitor):
    visit = visitor(host)
    page = visit.log_in(to="/")
    for place in ["/operations", "/layouts", "/replays", "/tokens", "/tenants", "/clients"]:
        page.goto(f"{place}?cursor=none")
        expect(page.get_by_role("alert").filter(has_text="the cursor is not one that this list gave")).to_be_visible()
        visit.accessible()
        page.get_by_role("link", name="First page").click()
        expect(page).to_have_url(f"{host.url}{place}")
    page.goto("/operations?state=over")
    expect(page.locator("#wrong-state")).to_contain_text("is not a state of an operation")
    visit.accessible()
