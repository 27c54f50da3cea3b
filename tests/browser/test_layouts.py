"""Layouts in the console: edited, compared, exported, imported and deleted."""

import json
import re

import pytest
from playwright.sync_api import expect

from host import Host, eventually


def static(host):
    """Puts the second daemon into static mode, which a layout of partitions needs."""
    for tenant in host.api("GET", "/tenants?daemon=gpu1")["items"]:
        host.api("DELETE", f"/tenants/{tenant['name']}")
    host.api("PUT", "/daemons/gpu1", {"gpus": ["1"], "mode": "static"})
    eventually("gpu1 is ready", lambda: host.status_of("/readyz/daemons/gpu1") == 200)


def add(partition, chunks, *tenants):
    step = {"gpu": 0, "partition": partition, "chunks": chunks}
    return {"add": {**step, "tenants": list(tenants)} if tenants else step}


def write(host, name, *steps, note=None):
    host.api("PUT", f"/layouts/{name}", {"layout": {"steps": list(steps)}, "note": note})


def remove(partition):
    return {"remove": {"partition": partition}}


def text_of(*steps, **fields):
    """The YAML of a layout, each step on a line."""
    lines = [f"{field}: {value}" for field, value in fields.items()] + ["steps:"] + [f"  - {json.dumps(step)}" for step in steps]
    return "\n".join(lines) + "\n"


def fill(page, *steps, **fields):
    page.get_by_label("Layout", exact=True).fill(text_of(*steps, **fields))


@pytest.fixture(scope="module")
def host():
    host = Host()
    static(host)
    yield host
    host.close()


def press(page, name):
    page.get_by_role("button", name=name, exact=True).click()


def check(page, visit):
    """Shows what the text comes to, which a script does by itself."""
    if not visit.scripted:
        press(page, "Check")


def test_first_layout_is_explained_and_written(own_host, visitor):
    host = own_host
    static(host)
    visit = visitor(host)
    page = visit.log_in(to="/layouts")
    expect(page.get_by_text("A layout divides the SMs of GPUs")).to_be_visible()
    # The target of a replay is a host without layouts.
    page.get_by_role("main").get_by_role("link", name="Replays").click()
    page.get_by_role("link", name="Replay a layout").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Replay")
    page.goto("/layouts")
    visit.accessible()
    page.get_by_role("link", name="Create the first layout").click()
    visit.accessible()
    # It begins with a layout that fits on a GPU of this host.
    text = page.get_by_label("Layout", exact=True)
    expect(text).to_have_value(re.compile('sku: "NVIDIA H200"\nsteps:\n  - add: {gpu: 0, partition: first, chunks: 7}'))
    expect(page.get_by_text("No problems found")).to_be_visible()
    expect(page.get_by_text("10 of 15 chunks used, 5 left")).to_be_visible()
    page.get_by_label("Name").fill("prod")
    fill(page, add("web", 7), add("gap", 2), add("batch", 5), remove("gap"))
    check(page, visit)
    expect(page.get_by_text("12 of 15 chunks used, 3 left")).to_be_visible()
    cells = page.get_by_role("group", name="SMs of GPU 0: 132 SMs").locator("svg text").all_text_contents()
    assert cells == ["web · 56", "batch · 40", "free · 24", "12"], cells
    # The plan is that of the daemon in static mode.
    expect(page.get_by_role("heading", name="Plan for gpu1")).to_be_visible()
    expect(page.locator("#plan tbody th")).to_have_text(["Add", "Add", "Add", "Remove"])
    visit.accessible()
    page.get_by_label("Result on").select_option("gpu0")
    check(page, visit)
    expect(page.get_by_role("heading", name="No plan")).to_be_visible()
    expect(page.locator("#plan")).to_contain_text("daemon gpu0 is in shared mode")
    page.get_by_label("Note").fill("two teams\r\napart")
    press(page, "Create")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Layout prod version 1")
    expect(page.locator(".sequence li")).to_have_text(
        ["add web on GPU 0: 7 chunks", "add gap on GPU 0: 2 chunks", "add batch on GPU 0: 5 chunks", "remove gap"])
    visit.accessible()
    assert host.api("GET", "/layouts/prod")["newest"]["note"] == "two teams\napart"
    # The text is that of the newest version, and its note is not the next one's.
    page.get_by_role("link", name="Edit", exact=True).click()
    expect(text).to_have_value(re.compile("- remove: {partition: gap}"))
    expect(page.get_by_label("Note")).to_have_value("")


def test_refused_text_is_fixed_in_place(host, visitor):
    visit = visitor(host)
    page = visit.log_in(to="/layouts/-/new")
    name = f"mended_{visit.scripted}".lower()
    page.get_by_label("Name").fill(name)
    text = page.get_by_label("Layout", exact=True)
    mistyped = text_of(add("web", 7)).replace("7", "seven")
    text.fill(mistyped)
    check(page, visit)
    problems = page.locator("#outcome .refusals")
    expect(problems).to_contain_text("line 2 column")
    expect(problems).to_contain_text("a whole number from 0 is expected here")
    press(page, "Create")
    expect(page.get_by_role("alert")).to_contain_text("line 2 column")
    expect(text).to_have_attribute("aria-invalid", "true")
    expect(text).to_have_value(mistyped)
    visit.accessible()
    fill(page, add("web", 7, "a", "a"))
    press(page, "Create")
    expect(page.locator("#wrong-text")).to_contain_text("line 2, tenants: tenant a is named twice")
    # Without a product, a layout may be meant for other hosts.
    fill(page, add("web", 7), add("batch", 16))
    check(page, visit)
    expect(problems).to_contain_text("line 3, chunks: needs 16 chunks, and gpu1 has 8 free at this step: give at most 8")
    fill(page, add("web", 17))
    press(page, "Create")
    expect(page.locator("#wrong-for_other_hosts")).to_contain_text("no GPU of this host has room: line 2, chunks: needs 17 chunks")
    visit.accessible()
    page.get_by_label("It is meant for other hosts").check()
    fill(page, add("web", 17), sku="NVIDIA H200")
    press(page, "Create")
    expect(page.locator("#wrong-text")).to_contain_text("no GPU of this host has room: line 3, chunks: needs 17 chunks")
    fill(page, add("web", 17))
    press(page, "Create")
    expect(page.get_by_role("heading", level=1)).to_contain_text(f"Layout {name} version 1")


def test_typing_is_kept_while_the_map_updates(host, visitor, scripted):
    if not scripted:
        return
    page = visitor(host).log_in(to="/layouts/-/new")
    text = page.get_by_label("Layout", exact=True)
    text.fill("steps:\n")
    text.press("End")
    text.press_sequentially("  - add: {gpu: 0, partition: web, chunks: 14")
    # The picture of the last text that could be read stays.
    expect(page.locator("#outcome .refusals")).to_be_visible()
    expect(page.get_by_text("10 of 15 chunks used, 5 left")).to_be_visible()
    text.press_sequentially("}")
    expect(page.get_by_text("14 of 15 chunks used, 1 left")).to_be_visible()
    expect(page.get_by_text("No problems found")).to_be_visible()
    expect(text).to_be_focused()
    expect(text).to_have_value("steps:\n  - add: {gpu: 0, partition: web, chunks: 14}")


def test_concurrent_layout_edits_are_both_kept(host, visitor):
    visit = visitor(host)
    name = f"both_{visit.scripted}".lower()
    write(host, name, add("web", 7))
    page = visit.log_in(to=f"/layouts/{name}/edit")
    text = text_of(add("web", 6))
    page.get_by_label("Layout", exact=True).fill(text)
    write(host, name, add("web", 5))
    press(page, "Save as a new version")
    expect(page.get_by_role("alert")).to_contain_text(re.compile(f"Your own login changed layout {name} at 20.* UTC, after you opened the form"))
    expect(page.get_by_role("row", name=re.compile("^Layout "))).to_contain_text("chunks: 5")
    expect(page.get_by_label("Layout", exact=True)).to_have_value(text)
    visit.accessible()
    press(page, "Overwrite with my values")
    expect(page.get_by_role("heading", level=1)).to_contain_text("version 3")
    page.goto("/layouts/-/new")
    page.get_by_label("Name").fill(name)
    press(page, "Create")
    expect(page.locator("#wrong-name")).to_contain_text(f"there is a layout {name} already")


def test_layout_versions_are_compared(host, visitor):
    visit = visitor(host)
    name = f"compared_{visit.scripted}".lower()
    write(host, name, add("web", 7), add("batch", 5), note="the first")
    write(host, name, add("web", 8), add("batch", 5), add("spare", 1))
    page = visit.log_in(to=f"/layouts/{name}")
    expect(page.get_by_role("row", name="the first")).to_be_visible()
    page.get_by_role("link", name="with 1", exact=True).click()
    rows = page.locator(".diff tbody tr")
    expect(rows.locator("th")).to_have_text(["same", "same", "gone", "new", "same", "new"])
    expect(rows.locator("code").nth(2)).to_have_text("- add: {gpu: 0, partition: web, chunks: 7}")
    expect(rows.locator("code").nth(3)).to_have_text("- add: {gpu: 0, partition: web, chunks: 8}")
    grounds = [rows.nth(n).evaluate("row => getComputedStyle(row).backgroundColor") if visit.scripted else n for n in (0, 2)]
    assert grounds[0] != grounds[1]
    visit.accessible()
    page.get_by_label("To version").select_option("1")
    press(page, "Compare")
    expect(page.get_by_text("They are equal.")).to_be_visible()
    page.goto(f"/layouts/{name}/versions/1")
    expect(page.get_by_role("note").filter(has_text="earlier version")).to_be_visible()
    visit.accessible()


def test_layout_is_exported_and_imported_renamed(host, visitor):
    visit = visitor(host)
    name = f"taken_{visit.scripted}".lower()
    write(host, name, add("web", 7))
    page = visit.log_in(to=f"/layouts/{name}")
    with page.expect_download() as download:
        page.get_by_role("link", name="YAML", exact=True).click()
    assert download.value.suggested_filename == f"{name}.1.yaml"
    text = download.value.path().read_text()
    page.goto("/layouts/-/import")
    visit.accessible()
    press(page, "Import")
    expect(page.locator("#wrong-text")).to_contain_text("there is nothing in it")
    page.get_by_label("Text", exact=True).fill(text.replace("chunks: 7", "chunks: 0"))
    press(page, "Import")
    expect(page.locator("#wrong-text")).to_contain_text(f"/layouts/{name}/steps/0/add/chunks: 0 chunks")
    expect(page.get_by_label("Text", exact=True)).to_have_attribute("aria-invalid", "true")
    visit.accessible()
    if visit.scripted:
        page.get_by_label("From a file").set_input_files(download.value.path())
        expect(page.get_by_label("Text", exact=True)).to_have_value(re.compile("chunks: 7"))
    else:
        page.get_by_label("Text", exact=True).fill(text)
    page.get_by_label("Name").fill(f"{name}_again")
    press(page, "Import")
    expect(page.get_by_role("heading", level=1)).to_contain_text(f"Layout {name}_again version 1")
    expect(page.locator(".sequence li")).to_have_text(["add web on GPU 0: 7 chunks"])


def test_unused_layout_is_deleted(host, visitor):
    visit = visitor(host)
    name = f"gone_{visit.scripted}".lower()
    write(host, name, add("web", 7))
    page = visit.log_in(to=f"/layouts/{name}")
    page.get_by_role("link", name="Delete").click()
    expect(page.get_by_text("All its versions, 1 to 1, are deleted permanently")).to_be_visible()
    visit.accessible()
    press(page, f"Delete {name} and its 1 version")
    expect(page.get_by_role("heading", name="Layouts")).to_be_visible()
    expect(page.get_by_role("link", name=name, exact=True)).to_have_count(0)


def test_viewer_gets_no_layout_changes(host, visitor):
    write(host, "watched", add("web", 7))
    token = host.token_for("viewer")
    page = visitor(host).log_in(token=token, to="/layouts/watched")
    expect(page.get_by_role("link", name="Plan", exact=True)).to_be_visible()
    for offered in ["Edit", "Delete", "Replay"]:
        expect(page.get_by_role("main").get_by_role("link", name=offered, exact=True)).to_have_count(0)
    page.goto("/layouts/watched/edit")
    expect(page.get_by_role("heading", level=1)).to_have_text("Forbidden")


def test_line_of_sizes_makes_a_layout(host, visitor):
    visit = visitor(host)
    page = visit.log_in(to="/layouts/-/new")
    page.get_by_label("From sizes in chunks").fill("web 7 + five")
    press(page, "Fill in")
    expect(page.locator("#wrong-sizes")).to_contain_text('"five" is not a size')
    visit.accessible()
    page.get_by_label("From sizes in chunks").fill("web 7 + 5 + 1")
    press(page, "Fill in")
    expect(page.get_by_label("Layout", exact=True)).to_have_value(
        re.compile("partition: web, chunks: 7}\n.*partition: part_2, chunks: 5}\n.*partition: part_3, chunks: 1}"))
    expect(page.get_by_text("13 of ")).to_be_visible()


def test_sizes_that_fit_become_steps(host, visitor):
    visit = visitor(host)
    page = visit.log_in(to="/layouts/-/new?sizes=7+%2B+5")
    sizes = page.locator(".sizes li")
    expect(page.get_by_role("heading", name="Sizes that still fit on GPU 0")).to_be_visible()
    before = sizes.count()
    assert before > 2
    visit.accessible()
    if not visit.scripted:
        return
    page.get_by_role("button", name="2 chunks on GPU 0").click()
    expect(page.get_by_label("Layout", exact=True)).to_have_value(re.compile(r"part_2, chunks: 5}\n *- add: {gpu: 0, partition: part_3, chunks: 2}"))
    expect(sizes).to_have_count(before - 2)
