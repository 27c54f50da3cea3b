"""GPUs: the replacement of a missing one, and the colours of maps and charts."""

import colorsys
import re

from playwright.sync_api import expect

from host import eventually
from test_layouts import add, static, write
from test_operations import follow


def test_missing_gpu_is_replaced(own_host, visitor, scripted):
    host = own_host
    host.done(host.api("DELETE", "/daemons/gpu1"))
    gone, other = (host.api("GET", f"/gpus/{index}")["uuid"] for index in (0, 1))
    visit = visitor(host)
    page = visit.log_in(to="/gpus/0/replace")
    expect(page.get_by_text("Only a missing GPU can be replaced")).to_be_visible()
    expect(page.get_by_role("button", name="Replace")).to_have_count(0)
    visit.accessible()

    mark = host.home / "run/sim/gpus" / gone / "lost"
    mark.touch()
    page.goto("/")
    # Until its incident is open, a row of the overview says so.
    missing = page.get_by_role("list", name="Incidents").get_by_role("listitem").filter(has_text="no longer listed by the driver")
    follow(page, scripted, lambda ms: expect(missing).to_be_visible(timeout=ms))
    missing.get_by_role("link").click()
    page.locator("dl.facts a[href^='/gpus/']").click()
    page.get_by_role("link", name="Replace").click()
    expect(page.get_by_role("radio", name="GPU")).to_be_checked()
    visit.accessible()
    page.get_by_role("button", name="Replace").click()
    page.wait_for_url("**/daemons/gpu0")
    assert host.api("GET", "/daemons/gpu0")["spec"]["gpus"] == [other]
    follow(page, scripted, lambda ms: expect(page.get_by_role("heading", level=1)).to_contain_text("ready", timeout=ms))
    page.goto(f"/events?type=gpu.replaced")
    expect(page.get_by_text(f"{other} replaced {gone}")).to_be_visible()


def test_replacement_gpu_must_be_free(own_host, visitor):
    host = own_host
    gone = host.api("GET", "/gpus/0")["uuid"]
    (host.home / "run/sim/gpus" / gone / "lost").touch()
    eventually("it is missing", lambda: not host.api("GET", f"/gpus/{gone}")["present"])
    visit = visitor(host)
    page = visit.log_in(to=f"/gpus/{gone}/replace")
    expect(page.get_by_text("No GPU of this host is free")).to_be_visible()
    expect(page.get_by_role("button", name="Replace")).to_have_count(0)
    visit.accessible()


# The colour of each number in the map and in a chart, as the style sheet has it.
COLOURS = """(number) => {
  const of = (kind, shape, property) => {
    const drawn = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
    drawn.setAttribute('class', `swatch ${kind}-${number}`);
    drawn.append(document.createElementNS('http://www.w3.org/2000/svg', shape));
    document.querySelector('main').append(drawn);
    const colour = getComputedStyle(drawn.querySelector(shape))[property];
    drawn.remove();
    return colour.match(/[0-9.]+/g).slice(0, 3).map(Number);
  };
  return [of('part', 'rect', 'fill'), of('line', 'path', 'stroke')];
}"""


def hue(colour):
    return colorsys.rgb_to_hsv(*(part / 255 for part in colour))[0] * 360


def numbers(page, things, kind):
    """The number of the colour of each tenant whose swatch is in one of these."""
    found = {}
    for thing in things.all():
        drawn = thing.locator(f"svg.swatch[class*={kind}-]")
        if drawn.count():
            number = re.search(rf"\b{kind}-(\d+)", drawn.get_attribute("class"))[1]
            found[thing.get_by_role("link").inner_text()] = int(number)
    return found


# Whether the chart has a pixel of the colour of each swatch in its key.
PAINTED = """panel => {
    const canvas = document.querySelector(`#plot-${panel} canvas`);
    const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
    const painted = new Set();
    for (let at = 0; at < pixels.length; at += 4) painted.add(`rgb(${pixels[at]}, ${pixels[at + 1]}, ${pixels[at + 2]})`);
    return [...document.querySelectorAll(`#chart-${panel} .key .swatch`)].map(one => painted.has(getComputedStyle(one).stroke));
}"""


def test_tenant_colour_matches_in_map_and_charts(own_host, visitor):
    host = own_host
    static(host)
    # The partitions are not in the order of the tenants' names, in which the lines are.
    tenants = ["web", "notebooks", "jobs"]
    for tenant in tenants:
        host.api("PUT", f"/tenants/{tenant}", {"daemon": "gpu1", "uid": 0, "device_memory_limit": "4G", "max_clients": 2})
    write(host, "prod", *(add(f"of_{tenant}", 4, tenant) for tenant in tenants))
    host.done(host.api("POST", "/layouts/prod/apply", {"daemon": "gpu1", "gpu_map": {"0": "1"}}))
    # Different numbers of clients and amounts of memory, so that no line hides another.
    for tenant in ["notebooks", "jobs", "jobs"]:
        host.client(tenant, "--spin", "600", "--alloc", "256")
    visit = visitor(host)
    page = visit.log_in(to="/gpus/1")
    parts = numbers(page, page.get_by_role("group", name="SMs by partition").locator("tbody tr"), "part")
    assert sorted(parts) == sorted(tenants) and len(set(parts.values())) == 3, parts
    for panel in ["memory", "clients"]:
        lines = numbers(page, page.locator(f"#chart-{panel} .key li"), "line")
        assert lines == {tenant: parts[tenant] for tenant in ["notebooks", "jobs"]}, (panel, lines, parts)
        if visit.scripted:
            expect(page.locator(f"#plot-{panel} canvas")).to_be_visible()
            eventually("each line is drawn in its colour", lambda: all(page.evaluate(PAINTED, panel)))
    if not visit.scripted:
        return
    # A line has the hue of the cells, and is darker or lighter for contrast with its background.
    for scheme in ["light", "dark"]:
        page.emulate_media(color_scheme=scheme)
        for number in range(8):
            part, line = page.evaluate(COLOURS, number)
            apart = abs(hue(part) - hue(line))
            assert min(apart, 360 - apart) < 60, f"{scheme}: number {number} is {part} in the map and {line} in charts"
