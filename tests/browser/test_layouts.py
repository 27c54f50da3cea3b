"""Layouts in the console: edited, compared, exported, imported and deleted."""

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


def fill(page, number, **fields):
    for field, value in fields.items():
        page.locator(f"#step-{number - 1}-{field}").fill(str(value))


@pytest.fixture(scope="module")
def host():
    host = Host()
    static(host)
    yield host
    host.close()


def press(page, name):
    page.get_by_role("button", name=name, exact=True).click()


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
    page.get_by_label("Name").fill("prod")
    fill(page, 1, partition="web", chunks=7)
    press(page, "Add a partition")
    expect(page.locator("#step-1-partition")).to_be_focused()
    expect(page.locator("#step-0-partition")).to_have_value("web")
    fill(page, 2, partition="gap", chunks=2)
    press(page, "Add a partition")
    fill(page, 3, partition="batch", chunks=5)
    press(page, "Remove a partition")
    fill(page, 4, partition="gap")
    press(page, "Check")
    expect(page.get_by_text("12 of 15 chunks used, 3 left")).to_be_visible()
    cells = page.locator(".sm-map .sms").all_text_contents()
    assert sum(int(cell) for cell in cells) == 132, cells
    # The gap is moved behind the batch and back: typed text moves with its step.
    press(page, "Move step 2 down")
    expect(page.locator("#step-1-partition")).to_have_value("batch")
    press(page, "Move step 3 up")
    expect(page.locator("#step-1-partition")).to_have_value("gap")
    visit.accessible()
    page.get_by_label("Note").fill("two teams\r\napart")
    press(page, "Create")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Layout prod version 1")
    expect(page.locator(".sequence li")).to_have_text(
        ["add web on GPU 0: 7 chunks", "add gap on GPU 0: 2 chunks", "add batch on GPU 0: 5 chunks", "remove gap"])
    visit.accessible()
    assert host.api("GET", "/layouts/prod")["newest"]["note"] == "two teams\napart"


def test_refused_step_is_fixed_in_place(host, visitor):
    visit = visitor(host)
    page = visit.log_in(to="/layouts/-/new")
    name = f"mended_{visit.scripted}".lower()
    page.get_by_label("Name").fill(name)
    fill(page, 1, partition="Web", chunks="seven", tenants="a, a")
    press(page, "Add a partition")
    fill(page, 2, partition="batch", chunks=16)
    press(page, "Create")
    first = page.get_by_role("listitem", name="Step 1")
    expect(first).to_contain_text('"seven" is not a whole number')
    expect(first).to_contain_text("Web")
    expect(page.locator("#step-0-chunks")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#step-0-chunks")).to_have_value("seven")
    expect(page.get_by_role("listitem", name="Step 2")).to_contain_text(
        "needs 16 chunks, but 15 are free at this step on gpu1: give at most 15")
    visit.accessible()
    fill(page, 1, partition="web", chunks=7)
    press(page, "Create")
    expect(first).to_contain_text("tenant a is named twice")
    fill(page, 1, tenants="")
    fill(page, 2, chunks=5)
    press(page, "Create")
    expect(page.get_by_role("heading", level=1)).to_contain_text(f"Layout {name} version 1")


def test_typing_is_kept_while_the_map_updates(host, visitor, scripted):
    if not scripted:
        return
    page = visitor(host).log_in(to="/layouts/-/new")
    fill(page, 1, partition="web")
    page.locator("#step-0-chunks").press_sequentially("14")
    expect(page.get_by_text("14 of 15 chunks used, 1 left")).to_be_visible()
    expect(page.locator("#step-0-chunks")).to_be_focused()
    page.locator("#step-0-chunks").press("End")
    page.locator("#step-0-chunks").press_sequentially("9")
    expect(page.get_by_role("listitem", name="Step 1")).to_contain_text("needs 149 chunks")
    expect(page.locator("#step-0-chunks")).to_have_value("149")
    expect(page.locator("#step-0-chunks")).to_be_focused()


def test_concurrent_layout_edits_are_both_kept(host, visitor):
    visit = visitor(host)
    name = f"both_{visit.scripted}".lower()
    write(host, name, add("web", 7))
    page = visit.log_in(to=f"/layouts/{name}/edit")
    fill(page, 1, chunks=6)
    write(host, name, add("web", 5))
    press(page, "Save as a new version")
    expect(page.get_by_role("alert")).to_contain_text("Someone else saved version 2 while you were editing")
    expect(page.locator("#step-0-chunks")).to_have_value("6")
    visit.accessible()
    press(page, "Save as a new version")
    expect(page.get_by_role("heading", level=1)).to_contain_text("version 3")
    page.goto("/layouts/-/new")
    page.get_by_label("Name").fill(name)
    fill(page, 1, partition="web", chunks=1)
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
    expect(rows.locator("th")).to_have_text(["same", "same", "changed", "same", "new"])
    expect(rows.nth(2).locator("td")).to_have_text(["add web on GPU 0: 7 chunks", "add web on GPU 0: 8 chunks"])
    grounds = [rows.nth(n).locator("td").last.evaluate("cell => getComputedStyle(cell).backgroundColor") if visit.scripted else n
               for n in (0, 2)]
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
    expect(page.locator("#wrong-text")).to_contain_text("there is nothing to import")
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
