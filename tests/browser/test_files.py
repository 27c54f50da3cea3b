"""A file that is pasted, chosen or dropped: a host file compared and applied, a layout document, and anything else."""

import re

from playwright.sync_api import expect

from host import eventually


def press(page, name):
    page.get_by_role("button", name=name, exact=True).click()


def give(visit, text, name="host.yaml"):
    """Drops a file on the page, or fills in its text without a script."""
    page = visit.page
    if not visit.scripted:
        page.get_by_label("Text", exact=True).fill(text)
        press(page, page.locator("form#given .actions button").last.inner_text())
        return
    data = page.evaluate_handle(
        "([text, name]) => { const data = new DataTransfer(); data.items.add(new File([text], name)); return data; }", [text, name])
    page.dispatch_event("h1", "dragover", {"dataTransfer": data})
    expect(page.locator("form#given")).to_have_class(re.compile("dropping"))
    with page.expect_navigation():
        page.dispatch_event("h1", "drop", {"dataTransfer": data})


def test_host_file_is_compared_then_applied(own_host, visitor):
    host = own_host
    visit = visitor(host)
    page = visit.log_in(to="/settings")
    page.get_by_role("link", name="Compare or apply a file").click()
    visit.accessible()
    file = "version: v1\ntenants:\n  late: {daemon: gpu0, uid: 0, device_memory_limit: 1G}\n"
    give(visit, file)
    expect(page.get_by_role("heading", name="Difference to this host")).to_be_visible()
    expect(page.locator(".host-changes > li")).to_have_text([re.compile("Create tenant late")])
    expect(page.locator(".host-changes .new").filter(has_text="device_memory_limit: 1G")).to_have_count(1)
    visit.accessible()
    # Someone else is faster, so that it would be another change.
    host.api("PUT", "/tenants/late", {"daemon": "gpu0", "uid": 0, "device_memory_limit": "2G"}, token=host.token_for("admin", "ada"))
    press(page, "Apply 1 change")
    expect(page.get_by_role("alert")).to_contain_text("was changed since")
    expect(page.get_by_role("link", name=re.compile("^ada created tenant late on gpu0 with 2 GiB"))).to_be_visible()
    expect(page.locator(".host-changes > li")).to_have_text([re.compile("Change tenant late")])
    visit.accessible()
    press(page, "Apply 1 change")
    page.wait_for_url("**/operations/*")
    eventually("it is applied", lambda: host.api("GET", "/tenants/late")["spec"]["device_memory_limit"] == 1 << 30)
    page.goto("/file")
    give(visit, file)
    expect(page.get_by_text("The host is what the file says.")).to_be_visible()


def test_other_files_lead_where_they_belong(host, visitor):
    visit = visitor(host)
    page = visit.log_in(to="/file")
    give(visit, "kind: Pod\nmetadata: {}\n", "pod.yaml")
    expect(page.locator("#wrong-text")).to_contain_text("its fields are `kind`, `metadata`: expected is a host file")
    visit.accessible()
    give(visit, '{"format": "mps-manager recording 1", "made_by": "0.1.0", "gpu": {"name": "NVIDIA L40S"}, "commands": []}', "l40s.json")
    expect(page.get_by_role("heading", name="A record of NVIDIA L40S")).to_be_visible()
    visit.accessible()
    name = f"given_{visit.scripted}".lower()
    give(visit, f"version: v1\nlayouts: {{{name}: {{steps: [add: {{gpu: 0, partition: web, chunks: 2}}]}}}}\n", "layout.yaml")
    expect(page.get_by_role("heading", name="A layout document")).to_be_visible()
    visit.accessible()
    press(page, "Replay it on a daemon")
    expect(page.get_by_label("Document", exact=True)).to_have_value(re.compile(name))
    page.goto("/file")
    give(visit, f"version: v1\nlayouts: {{{name}: {{steps: [add: {{gpu: 0, partition: web, chunks: 2}}]}}}}\n", "layout.yaml")
    press(page, "Import it here")
    expect(page.get_by_label("Text", exact=True)).to_have_value(re.compile(name))
    press(page, "Import")
    expect(page.get_by_role("heading", level=1)).to_contain_text(f"Layout {name} version 1")


def test_objects_are_copied_as_parts_of_a_host_file(host, visitor):
    visit = visitor(host)
    page = visit.log_in(to="/tenants/demo")
    page.get_by_text("Copy as YAML").click()
    text = page.locator("#yaml").inner_text()
    assert "tenants:" in text and "demo:" in text, text
    visit.accessible()
    page.goto("/file")
    give(visit, text)
    expect(page.get_by_text("The host is what the file says.")).to_be_visible()
    page.goto("/daemons/gpu0")
    page.get_by_text("Copy as YAML").click()
    assert "daemons:" in page.locator("#yaml").inner_text()
