"""Layouts on daemons: planned, applied, blocked, compared, and replayed here and on other hosts."""

import json
import re
import subprocess

import pytest
from playwright.sync_api import expect

from host import Host, eventually
from test_operations import follow
from test_layouts import add, fill, press, remove, static, write

OTHER_DIE = "h200x2@13.1:gpcs=9.9.8.9.9.4.9.9"


@pytest.fixture
def static_host():
    host = Host()
    static(host)
    yield host
    host.close()


@pytest.fixture(params=["h200x2", OTHER_DIE], ids=["the same die", "another die"])
def second_host(request):
    host = Host(request.param)
    static(host)
    host.same = request.param == "h200x2"
    yield host
    host.close()


def past_the_manager(host, line):
    """Sends a command to the second daemon with NVIDIA's own program, once no other session is open."""
    home = host.home / "run"
    environment = {"MPS_SIM_WORLD": home / "sim", "CUDA_MPS_PIPE_DIRECTORY": home / "daemons/gpu1/pipe",
                   "CUDA_MPS_LOG_DIRECTORY": home / "daemons/gpu1/log"}

    def taken():
        result = subprocess.run([home / "sim/bin/nvidia-cuda-mps-control"], input=f"{line}\nzz-direct\n", text=True,
                              capture_output=True, env=environment, check=False)
        return "zz-direct" in result.stdout

    eventually("the daemon takes a direct caller", taken)


def operation_ends(page, host):
    """Waits for the end of the operation that the page shows."""
    found = re.search(r"/operations/([0-9a-f-]{36})$", page.url)
    assert found, page.url

    def ended():
        now = host.api("GET", f"/operations/{found[1]}")
        return now if now["state"] not in ("pending", "running") else None

    return eventually("the operation ends", ended)


def apply(page, host, layout):
    page.goto(f"/layouts/{layout}/apply?daemon=gpu1")
    press(page, "Apply to gpu1")
    page.wait_for_url("**/operations/*")
    operation = operation_ends(page, host)
    assert operation["state"] == "succeeded", operation


def test_layout_is_replayed_on_another_host(static_host, second_host, visitor):
    host = static_host
    visit = visitor(host)
    page = visit.log_in(to="/layouts/-/new")
    page.get_by_label("Name").fill("prod")
    fill(page, add("web", 7), add("gap", 2), add("batch", 5), remove("gap"))
    press(page, "Create")

    # The plan is a diff that changes nothing.
    page.get_by_role("link", name="Plan and apply").click()
    rows = page.locator(".diff tbody tr")
    expect(rows.locator("th")).to_have_text(["Add", "Add", "Add", "Remove"])
    expect(page.locator(".plan-summary")).to_have_text("web is added with 56 SMs; batch is added with 40 SMs.")
    strips = [page.get_by_role("group", name=name).locator("svg text").all_text_contents() for name in ("Now: 132 SMs", "After: 132 SMs")]
    assert strips == [["free · 120", "12"], ["web · 56", "batch · 40", "free · 24", "12"]], strips
    page.get_by_text("Steps: 4 commands").click()
    expect(page.get_by_text("Chunks used 0 → 12, free 15 → 3")).to_be_visible()
    visit.accessible()
    assert host.api("GET", "/daemons/gpu1/partitions")["items"] == []
    page.get_by_text("Note, and what happens").click()
    page.get_by_label("Note").fill("for the web")
    press(page, "Apply to gpu1")
    page.wait_for_url("**/operations/*")
    assert operation_ends(page, host)["state"] == "succeeded"

    page.goto("/layouts/prod")
    there = {one["partition"]: one["id"] for one in host.api("GET", "/daemons/gpu1/partitions?fresh=true")["items"]}
    for partition, name in there.items():
        row = page.get_by_role("group", name="Partitions on gpu1").get_by_role("row", name=partition)
        expect(row.locator("code.long")).to_have_text([name, name])
    visit.accessible()
    page.get_by_role("link", name="Compare now").click()
    expect(page.get_by_text("gpu1 matches this layout")).to_be_visible()
    visit.accessible()
    page.get_by_role("link", name="Plan", exact=True).click()
    expect(page.get_by_text("Nothing to do:")).to_be_visible()
    page.goto("/layouts/prod")
    with page.expect_download() as download:
        page.get_by_role("link", name="Export with IDs, YAML").click()
    document = download.value.path().read_text()
    recorded = host.api("GET", "/layouts/prod/export?daemon=gpu1")["layouts"]["prod"]["recorded"]["ids"]

    # On the other host it shows what would be done, and then does it.
    other = visitor(second_host)
    page = other.log_in(to="/replays")
    expect(page.get_by_text("A replay runs a layout's steps on empty GPUs")).to_be_visible()
    other.accessible()
    page.get_by_role("link", name="Replay a layout").click()
    other.accessible()
    page.get_by_label("An exported document").check()
    press(page, "Preview")
    expect(page.locator("#wrong-text")).to_contain_text("there is nothing in it")
    page.get_by_label("Document", exact=True).fill(document)
    page.get_by_label("Daemon").select_option("gpu1")
    press(page, "Preview")
    reported = page.get_by_role("group", name="Steps of the replay")
    expect(reported.locator("code.long")).to_have_text(recorded)
    other.accessible()
    assert second_host.api("GET", "/daemons/gpu1/partitions?fresh=true")["items"] == []
    press(page, "Replay it on gpu1")
    page.wait_for_url("**/replays/*")
    record = page.url.rsplit("/", 1)[1]

    def ended():
        now = second_host.api("GET", f"/replays/{record}")
        return now if now["verdict"] != "pending" else None

    replay = eventually("the replay ends", ended)
    page.reload()
    steps = page.get_by_role("group", name="Steps").locator("tbody tr")
    if second_host.same:
        expect(page.get_by_text("same as recorded")).to_be_visible()
        expect(steps.get_by_text("same", exact=True)).to_have_count(4)
    else:
        expect(page.locator(".lead")).to_have_text("differs")
        first = steps.filter(has_text="first difference")
        expect(first).to_have_count(1)
        differs = next(step for step in replay["steps"]
                       if not step["undo"] and step["expected"] and step["expected"] != step["id"])
        expect(first.locator("code")).to_have_text([differs["expected"], differs["id"]])
        expect(first.locator("mark")).to_have_count(2)
        expect(page.get_by_role("heading", name="Undo and other steps")).to_be_visible()
    other.accessible()
    page.goto("/replays")
    expect(page.get_by_role("row", name="prod version 1")).to_contain_text("same" if second_host.same else "differs")
    # It was imported under another name.
    page.goto("/layouts/-/import")
    page.get_by_label("Name").fill("prod_again")
    page.get_by_label("Text", exact=True).fill(document)
    press(page, "Import")
    expect(page.locator(".sequence li")).to_have_count(4)


def test_outdated_plan_is_not_applied(static_host, visitor):
    host = static_host
    write(host, "prod", add("web", 7))
    write(host, "other", add("mine", 2))
    visit = visitor(host)
    page = visit.log_in(to="/layouts/prod/apply?daemon=gpu1")
    expect(page.locator("table.diff tbody tr")).to_have_count(1)
    # Another user applies another layout to it meanwhile.
    host.done(host.api("POST", "/layouts/other/apply", {"daemon": "gpu1", "gpu_map": {"0": "1"}}))
    press(page, "Apply to gpu1")
    expect(page.get_by_role("alert")).to_contain_text("has changed since it was shown")
    expect(page.locator("table.diff tbody tr")).to_have_count(2)
    assert host.api("GET", "/daemons/gpu1")["spec"]["layout"]["name"] == "other"
    visit.accessible()
    press(page, "Apply to gpu1")
    page.wait_for_url("**/operations/*")
    assert operation_ends(page, host)["state"] == "succeeded"
    assert host.api("GET", "/daemons/gpu1")["spec"]["layout"]["name"] == "prod"


def test_blocked_apply_names_client_and_remedy(static_host, visitor):
    host = static_host
    host.api("PUT", "/tenants/web", {"daemon": "gpu1", "uid": 0, "device_memory_limit": "4G"})
    write(host, "prod", add("web", 7, "web"), add("batch", 5))
    visit = visitor(host)
    page = visit.log_in()
    apply(page, host, "prod")
    client = host.client("web", "--spin", "600")
    page.goto("/tenants/web")
    share = page.get_by_role("row", name="Share of the SMs")
    for reported in ["partition web, by the layout", "56 SMs", "its partition"]:
        expect(share).to_contain_text(reported)
    write(host, "prod", add("batch", 9))
    page.goto("/layouts/prod/apply?daemon=gpu1")
    blocked = page.get_by_role("listitem").filter(has_text="has to be removed and is in use")
    expect(blocked.get_by_role("link", name=f"Client {client.pid}")).to_have_attribute(
        "href", re.compile(rf"^/clients/{client.pid}-\d+$"))
    expect(blocked.get_by_role("link", name="web", exact=True)).to_have_attribute("href", "/tenants/web")
    expect(page.get_by_role("button", name="Apply to gpu1")).to_have_count(0)
    visit.accessible()
    page.get_by_role("link", name="web", exact=True).first.wait_for()
    page.goto("/layouts/prod/assert?daemon=gpu1")
    expect(page.get_by_text("gpu1 does not match this layout")).to_be_visible()
    visit.accessible()
    # Where the blocker appeared after the plan was shown, the apply is refused and names it.
    client.kill()
    client.wait()
    eventually("the client is gone", lambda: not host.api("GET", "/clients?tenant=web&fresh=true")["items"])
    page.goto("/layouts/prod/apply?daemon=gpu1")
    host.client("web", "--spin", "600")
    press(page, "Apply to gpu1")
    expect(page.get_by_role("heading", name="Needs your decision")).to_be_visible()
    assert page.url.endswith("/layouts/prod/apply")


def test_partitions_are_recreated_only_on_request(static_host, visitor):
    host = static_host
    write(host, "prod", add("web", 7), add("batch", 5))
    visit = visitor(host)
    page = visit.log_in()
    apply(page, host, "prod")
    write(host, "prod", add("batch", 5), add("web", 7))
    page.goto("/layouts/prod/apply?daemon=gpu1")
    press(page, "Apply to gpu1")
    expect(page.get_by_role("heading", name="Needs your decision")).to_be_visible()
    alert = page.get_by_role("alert")
    expect(alert).to_be_focused()
    expect(alert).to_contain_text("must be recreated")
    visit.accessible()
    alert.get_by_role("link", name="Recreate these partitions").click()
    expect(page.get_by_label("Recreate these partitions")).to_be_focused()
    page.get_by_label("Recreate these partitions").check()
    press(page, "Apply to gpu1")
    page.wait_for_url("**/operations/*")
    assert operation_ends(page, host)["state"] == "succeeded"
    page.goto("/layouts/prod/delete")
    expect(page.locator(".note.bad")).to_contain_text("is in use by the daemons gpu1")
    visit.accessible()


def test_partitions_are_drained_then_changed(static_host, visitor):
    host = static_host
    for tenant in ["web", "batch"]:
        host.api("PUT", f"/tenants/{tenant}", {"daemon": "gpu1", "uid": 0, "device_memory_limit": "4G"})
    write(host, "prod", add("web", 7, "web"), add("batch", 5, "batch"))
    visit = visitor(host)
    page = visit.log_in()
    apply(page, host, "prod")
    stays, client = host.client("web", "--spin", "600"), host.client("batch", "--spin", "600")
    write(host, "prod", add("web", 7, "web"), add("batch", 6, "batch"))
    page.goto("/layouts/prod/apply?daemon=gpu1")
    expect(page.locator(".plan-summary")).to_have_text("web keeps its 56 SMs; batch grows from 40 to 48 SMs; 1 client must stop first.")
    # Clients are dots on their partitions, and what changes is hatched.
    now, after = (page.get_by_role("group", name=f"{when}: 132 SMs") for when in ("Now", "After"))
    expect(now.locator("circle")).to_have_count(2)
    expect(now.get_by_role("img", name="batch: 40 SMs").locator(".hatch")).to_have_count(1)
    expect(after.get_by_role("img", name="web: 56 SMs").locator(".hatch")).to_have_count(0)
    effect = page.get_by_role("group", name="Tenants").get_by_role("row", name="batch")
    expect(effect).to_contain_text("1 must stop")
    visit.accessible()
    page.get_by_label("Wait for them at most").fill("soon")
    page.get_by_label("Recreate these partitions").check()
    press(page, "Drain batch, then apply")
    expect(page.locator("#wrong-drain")).to_contain_text('"soon" is not a duration')
    visit.accessible()
    page.get_by_label("Wait for them at most").fill("10m")
    press(page, "Drain batch, then apply")
    page.wait_for_url("**/operations/*")
    follow(page, visit.scripted, lambda ms: expect(page.get_by_text(f"waits for 1 client ({client.pid}-")).to_be_visible(timeout=ms))
    client.kill()
    client.wait()
    assert operation_ends(page, host)["state"] == "succeeded"
    assert stays.poll() is None, "the other partition keeps its client"
    follow(page, visit.scripted, lambda ms: expect(page.locator("dl.facts [role=status]")).to_have_text("succeeded", timeout=ms))
    # The result is one click away.
    page.get_by_role("main").get_by_role("link", name="GPU 1", exact=True).click()
    expect(page.get_by_role("img", name="batch: 48 SMs")).to_be_visible()


def test_partition_drift_is_shown(static_host, visitor):
    host = static_host
    write(host, "prod", add("web", 7))
    visit = visitor(host)
    page = visit.log_in()
    apply(page, host, "prod")
    uuid = host.api("GET", "/gpus/1")["uuid"]
    past_the_manager(host, f"sm_partition add {uuid} 2")
    eventually("it is seen", lambda: host.api("GET", "/daemons/gpu1?fresh=true")["status"]["layout"]["state"] == "drifted")
    page.goto("/layouts/prod")
    expect(page.get_by_text("Its partitions were changed outside the manager:")).to_be_visible()
    expect(page.get_by_text("a partition of 2 chunks")).to_be_visible()
    visit.accessible()
    page.get_by_role("link", name="Apply it again").click()
    expect(page.locator(".diff tbody tr").filter(has_text="created by someone else")).to_have_count(1)
    page.goto("/daemons/gpu1")
    layout = page.get_by_role("region", name="Layout")
    expect(layout).to_contain_text("was added on GPU 1")
    expect(layout).to_contain_text("a partition of 2 chunks")
    visit.accessible()
    layout.get_by_role("link", name="Compare").click()
    expect(page.get_by_text("gpu1 does not match this layout")).to_be_visible()
    page.goto("/daemons/gpu1")
    page.get_by_role("link", name="Plan to apply it again").click()
    expect(page.get_by_role("button", name="Apply to gpu1")).to_be_visible()


def test_document_of_other_hardware_is_refused(static_host, visitor):
    host = static_host
    other = Host("l40sx1@13.1")
    try:
        host.api("PUT", "/layouts/prod", {"layout": {"steps": [add("web", 7)]}})
        visit = visitor(host)
        apply(visit.log_in(), host, "prod")
        document = host.api("GET", "/layouts/prod/export?daemon=gpu1")
        for tenant in other.api("GET", "/tenants")["items"]:
            other.api("DELETE", f"/tenants/{tenant['name']}")
        other.api("PUT", "/daemons/gpu0", {"gpus": ["0"], "mode": "static"})
        eventually("gpu0 is ready", lambda: other.status_of("/readyz/daemons/gpu0") == 200)
        visit = visitor(other)
        page = visit.log_in(to="/replays/new")
        page.get_by_label("An exported document").check()
        page.get_by_label("Document", exact=True).fill(json.dumps(document))
        page.get_by_label("Daemon").select_option("gpu0")
        press(page, "Preview")
        alert = page.get_by_role("alert")
        expect(alert).to_contain_text("recorded on another configuration")
        expect(alert.get_by_role("listitem").filter(has_text="sms")).not_to_have_count(0)
        visit.accessible()
    finally:
        other.close()


def test_given_file_is_replayed_over_chosen_layout(static_host, visitor):
    host = static_host
    write(host, "prod", add("web", 7))
    write(host, "other", add("mine", 2))
    write(host, "empty")
    visit = visitor(host)
    page = visit.log_in()
    apply(page, host, "prod")
    document = json.dumps(host.api("GET", "/layouts/prod/export?daemon=gpu1"))
    apply(page, host, "empty")
    page.goto("/replays/new?layout=other")
    expect(page.get_by_label("A layout of this host")).to_be_checked()
    expect(page.get_by_label("Layout", exact=True)).to_have_value("other")
    if visit.scripted:
        file = {"name": "prod.json", "mimeType": "application/json", "buffer": document.encode()}
        page.get_by_label("From a file").set_input_files(file)
        expect(page.get_by_label("An exported document")).to_be_checked()
        expect(page.get_by_label("Document", exact=True)).to_have_value(document)
    else:
        page.get_by_label("An exported document").check()
        page.get_by_label("Document", exact=True).fill(document)
    page.get_by_label("Daemon").select_option("gpu1")
    press(page, "Preview")
    plan = page.get_by_role("region", name="Plan for gpu1")
    expect(plan).to_contain_text("they are what the document was recorded on")
    expect(plan.get_by_role("row", name="add web on GPU 0: 7 chunks")).to_be_visible()
    expect(page.get_by_label("An exported document")).to_be_checked()
    visit.accessible()
