"""Several hosts: saved, compared, made ready for a layout and given it."""

import re
import socket
import time

import pytest
from playwright.sync_api import expect

from host import Host, eventually
from pages import clear, save_host
from test_layouts_on_daemons import OTHER_DIE
from test_operations import follow

# Longest wait for another host, of which nothing is left the second time.
WAITED_FOR_S = 5
# Age from which a reading is made again.
FRESH_S = 4.2
STEPS = [{"add": {"gpu": 1, "partition": name, "chunks": chunks}} for name, chunks in [("web", 7), ("batch", 5), ("spare", 1)]]


@pytest.fixture
def hosts(request):
    """Two hosts; gpu1 of the first has a layout, and that of the second shares its GPU."""
    first, second = Host("h200x2"), Host(getattr(request, "param", "h200x2"))
    try:
        for host in (first, second):
            clear(host, "gpu1")
        first.api("PUT", "/daemons/gpu1", {"gpus": ["1"], "mode": "static"})
        eventually("gpu1 is ready", lambda: first.status_of("/readyz/daemons/gpu1") == 200)
        first.api("PUT", "/layouts/web_prod", {"layout": {"steps": STEPS}})
        first.done(first.api("POST", "/layouts/web_prod/apply", {"daemon": "gpu1"}))
        yield first, second
    finally:
        first.close()
        second.close()


def save(page, name, url, token):
    page.goto("/hosts/-/new")
    page.get_by_label("Name").fill(name)
    page.get_by_label("URL").fill(url)
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Save", exact=True).click()


def row_of(page, name):
    return page.get_by_role("row").filter(has=page.get_by_role("rowheader", name=name))


def test_layout_is_replayed_on_another_host(hosts, visitor):
    here, there = hosts
    visit = visitor(here)
    page = visit.log_in(to="/hosts")
    expect(page.locator(".empty")).to_contain_text("Only this host is known here")
    visit.accessible()
    # A name that is not one, and an address that would send the token in clear: both are said at once, and the token is not kept.
    save(page, "Not A Name", "http://gpu02:8640", "secret")
    expect(page.locator(".refusal")).to_contain_text("would send the token over the network")
    expect(page.locator(".refusal")).to_contain_text("host name")
    expect(page.get_by_label("Token")).to_have_value("")
    visit.accessible()
    token = there.token_for("admin")
    save(page, "gpu02", there.url, token)
    stored = [file.read_bytes() for file in (here.home / "state").glob("mps-manager.db*")]
    assert stored and not any(token.encode() in content for content in stored), "the token is stored as it is"
    assert (here.home / "state/hosts.key").stat().st_mode & 0o777 == 0o600
    expect(page).to_have_url(re.compile("/hosts$"))
    expect(row_of(page, "gpu02")).to_contain_text("2 daemons ready")
    expect(row_of(page, "gpu02")).to_contain_text("–")
    visit.accessible()

    # Without script, the GPU has no daemon there: both ways of making a host ready are tried.
    change = "switch daemon gpu1 to static mode"
    if not visit.scripted:
        there.done(there.api("DELETE", "/daemons/gpu1"))
        change = "create daemon gpu1 in static mode on 1 GPU"
    clicks = 0
    for name in ["Layouts", "web_prod"]:
        page.get_by_role("link", name=name, exact=True).first.click()
        clicks += 1
    page.get_by_role("link", name="Replay on another host").click()
    expect(page.locator("main .card")).to_contain_text("no daemon for this layout yet")
    visit.accessible()
    page.get_by_role("button", name=f"Make it ready: {change}").click()
    expect(page.locator("main .card")).to_contain_text("whose GPUs are empty")
    page.get_by_role("button", name="Replay on gpu02").click()
    clicks += 3
    assert clicks <= 5
    follow(page, visit.scripted, lambda ms: expect(page.locator(".lead")).to_contain_text("same as recorded", timeout=ms))
    expect(page.locator(".all-well")).to_contain_text("3/3 IDs are the same on both")
    visit.accessible()
    assert there.api("GET", "/daemons/gpu1")["spec"]["layout"]["name"] == "web_prod"

    page.goto("/hosts")
    expect(row_of(page, "gpu02").get_by_role("link", name="3/3 IDs")).to_be_visible()
    page.goto("/layouts/web_prod/replay-to?daemon=gpu1")
    expect(page.locator("main .card")).to_contain_text("gpu1 has it already")
    # Who did it is in the audit of both.
    page.goto("/audit")
    expect(page.locator("main")).to_contain_text("replayed layout web_prod v1 on gpu1 of host gpu02")
    assert any(row["action"] == "POST /api/v1/replays" for row in there.api("GET", "/audit")["items"])


def test_difference_and_silence_are_shown(hosts, visitor):
    here, there = hosts
    there.api("PUT", "/daemons/gpu1", {"gpus": ["1"], "mode": "static"})
    eventually("gpu1 is ready", lambda: there.status_of("/readyz/daemons/gpu1") == 200)
    there.api("PUT", "/layouts/web_prod", {"layout": {"steps": STEPS[1:]}})
    there.done(there.api("POST", "/layouts/web_prod/apply", {"daemon": "gpu1"}))
    visit = visitor(here)
    page = visit.log_in(to="/hosts")
    save(page, "gpu02", there.url, there.token_for("viewer"))
    cell = row_of(page, "gpu02").get_by_role("link", name=re.compile("IDs"))
    expect(cell).to_have_class(re.compile("bad"))
    cell.click()
    expect(page.locator("main")).to_contain_text("not there")
    visit.accessible()
    # A replay is refused there in its own words: a viewer may not.
    page.goto("/layouts/web_prod/replay-to?daemon=gpu1")
    expect(page.locator("main .card")).to_contain_text("not possible now")
    save(page, "gpu02", there.url, "mpsm_0000000000000000_" + "0" * 64)
    expect(row_of(page, "gpu02")).to_contain_text("not readable")
    save(page, "gpu03", "http://127.0.0.1:9", "secret")
    expect(row_of(page, "gpu03")).to_contain_text("cannot be reached")
    visit.accessible()
    # One that takes connections and never answers is waited for once.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        save(page, "gpu04", f"http://127.0.0.1:{silent.getsockname()[1]}", "secret")
        expect(row_of(page, "gpu04")).to_contain_text("did not answer")
        time.sleep(FRESH_S)
        began = time.monotonic()
        page.goto("/hosts")
        expect(row_of(page, "gpu04")).to_contain_text("did not answer")
        assert time.monotonic() - began < WAITED_FOR_S
    row_of(page, "gpu03").get_by_role("link", name="Remove").click()
    page.get_by_role("button", name="Remove gpu03").click()
    expect(page.get_by_role("rowheader", name="gpu03")).to_have_count(0)


@pytest.mark.parametrize("hosts", [OTHER_DIE], indirect=True, ids=["another die"])
def test_replay_that_differs_says_so(hosts, visitor):
    here, there = hosts
    there.api("PUT", "/daemons/gpu1", {"gpus": ["1"], "mode": "static"})
    eventually("gpu1 is ready", lambda: there.status_of("/readyz/daemons/gpu1") == 200)
    visit = visitor(here)
    page = visit.log_in()
    save_host(here, "gpu02", there.url, there.token_for("operator"))
    page.goto("/layouts/web_prod/replay-to?daemon=gpu1")
    page.get_by_role("button", name="Replay on gpu02").click()
    # Everything was undone there, so there is nothing to compare but the result.
    follow(page, visit.scripted, lambda ms: expect(page.locator(".lead")).to_contain_text("differs", timeout=ms))
    expect(page.locator("main")).to_contain_text("gpu1 of gpu02 does not have the layout")
    visit.accessible()
    assert there.api("GET", "/daemons/gpu1")["spec"].get("layout") is None


def test_token_is_not_kept_through_a_log_in(hosts, visitor):
    here, there = hosts
    visit = visitor(here)
    page = visit.log_in(to="/hosts/-/new")
    secret = there.token_for("viewer")
    page.get_by_label("Name").fill("gpu02")
    page.get_by_label("URL").fill(there.url)
    page.get_by_label("Token").fill(secret)
    visit.log_out_elsewhere()
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator("input[type=password]").first).to_be_visible()
    assert secret not in page.content()
