"""What was typed into a form is kept through a log-in when the session ended meanwhile, in every form; and what Enter submits."""

import re

import pytest
from playwright.sync_api import expect

from host import Host, eventually
from pages import more
from test_layouts import add, check, fill, press, static, text_of, write

DOCUMENT = "version: v1\nlayouts:\n  brought:\n    steps:\n      - add: {gpu: 0, partition: web, chunks: 7}\n"


@pytest.fixture(scope="module")
def host():
    host = Host()
    static(host)
    write(host, "prod", add("web", 7))
    yield host
    host.close()


def tenant_edit(page):
    page.get_by_label("Memory limit").fill("7M and more")
    more(page, "#expert")
    page.get_by_label("Labels").fill("team=search\nowner=a b")
    return ["7M and more", "owner=a b"]


def daemon_new(page):
    page.get_by_label("Name", exact=True).fill("second")
    more(page, "#defaults")
    page.get_by_label("Device memory limit").fill("lots")
    return ["second", "lots"]


def daemon_edit(page):
    more(page, "#expert")
    page.get_by_label("Memory over-commit").fill("many")
    return ["many"]


def grace(page):
    page.get_by_label("Grace period in seconds").fill("soon")
    return ["soon"]


def drain(page):
    page.get_by_label("Timeout in seconds").fill("soon")
    page.get_by_label("are terminated").check()
    return ["soon", "terminate"]


def layout(page):
    page.get_by_label("Name").fill("written")
    fill(page, add("Web", "seven", "a", "b"))
    page.get_by_label("Note").fill("one\ntwo")
    return ["written", "Web", "seven", "two"]


def layout_edit(page):
    fill(page, add("web", "seven"))
    page.get_by_label("Note").fill("less")
    return ["seven", "less"]


def layout_import(page):
    page.get_by_label("Name").fill("Not A Name")
    page.get_by_label("Text", exact=True).fill(DOCUMENT)
    return ["Not A Name", "partition: web"]


def layout_apply(page):
    page.get_by_label("Note").fill("x" * 1000)
    return ["x" * 1000]


def replay(page):
    page.get_by_label("An exported document").check()
    page.get_by_label("Document", exact=True).fill(DOCUMENT)
    page.get_by_label("Layout of the document").fill("which")
    return ["partition: web", "which"]


def new_token(page):
    page.get_by_label("Name").fill("ci")
    page.get_by_label("Role").fill("everything")
    return ["ci", "everything"]


def maintenance(page):
    page.get_by_label("GPU 1").check()
    page.get_by_label("Seconds for clients to end by themselves").fill("soon")
    return ["soon"]


# The path of each form, what is typed, and its button. It is invalid, so that the form is shown again after it is submitted.
FORMS = {
    "tenant": ("/tenants/demo/edit", tenant_edit, "Save"),
    "daemon": ("/daemons/-/new", daemon_new, "Set up"),
    "daemon's settings": ("/daemons/gpu0/edit", daemon_edit, "Save"),
    "restart": ("/daemons/gpu0/restart", grace, "Restart gpu0"),
    "stop": ("/daemons/gpu0/stop", grace, "Stop gpu0"),
    "drain": ("/daemons/gpu0/drain", drain, "Drain gpu0"),
    "layout": ("/layouts/-/new", layout, "Create"),
    "layout's next version": ("/layouts/prod/edit", layout_edit, "Save as a new version"),
    "import": ("/layouts/-/import", layout_import, "Import"),
    "replay": ("/replays/new", replay, "Preview"),
    "token": ("/tokens/new", new_token, "Create token"),
    "maintenance": ("/settings/maintenance", maintenance, "Begin maintenance"),
}


def an_admin(host):
    """A token for one test: log-ins with one token are rate-limited."""
    return host.token_for("admin")


def log_in_again(page, token):
    expect(page.get_by_text("What you typed is kept")).to_be_visible()
    page.get_by_label("Token").fill(token)
    press(page, "Log in")
    expect(page.get_by_role("heading", level=1)).to_have_text("Submit your changes?")


@pytest.mark.parametrize("form", FORMS)
def test_expired_session_keeps_typed_form(host, visitor, form):
    path, type_into, button = FORMS[form]
    visit, token = visitor(host), an_admin(host)
    page = visit.log_in(token, to=path)
    title = page.get_by_role("heading", level=1).text_content()
    typed = type_into(page)
    visit.log_out_elsewhere()
    press(page, button)
    log_in_again(page, token)
    reported = page.locator("dl.facts")
    for text in typed:
        expect(reported).to_contain_text(text)
    visit.accessible()
    press(page, "Submit")
    # It is refused as without the log-in, and the typed values are shown.
    expect(page.get_by_role("heading", level=1)).to_have_text(title)
    expect(page.locator("[aria-invalid=true]").first).to_be_visible()
    shown = page.locator("form input, form textarea, form select").evaluate_all("all => all.map(one => one.value)")
    for text in typed:
        assert any(text in value.replace("\r", "") for value in shown), f"{text} is not in {shown}"


def test_expired_session_keeps_apply_and_adopt_forms(own_host, visitor):
    host = own_host
    static(host)
    write(host, "prod", add("web", 7))
    visit, token = visitor(host), an_admin(host)
    page = visit.log_in(token, to="/layouts/prod/apply?daemon=gpu1")
    page.get_by_text("Note, and what happens").click()
    page.get_by_label("Note").fill("for the web")
    visit.log_out_elsewhere()
    press(page, "Apply to gpu1")
    log_in_again(page, token)
    expect(page.locator("dl.facts")).to_contain_text("for the web")
    press(page, "Submit")
    page.wait_for_url("**/operations/*")
    expect(page.get_by_text("for the web")).to_be_visible()
    # A daemon of another program, adopted under a chosen name.
    eventually("gpu1 is ready", lambda: host.status_of("/readyz/daemons/gpu1") == 200)
    host.done(host.api("DELETE", "/daemons/gpu1?grace_s=0"))
    host.foreign("theirs", "1")
    foreign = eventually("it is listed", lambda: host.api("GET", "/foreign-daemons")["items"])[0]
    page.goto(f"/foreign-daemons/{foreign['id']}")
    page.get_by_label("Name", exact=True).fill("from_them")
    visit.log_out_elsewhere()
    press(page, "Adopt")
    log_in_again(page, token)
    expect(page.locator("dl.facts")).to_contain_text("from_them")
    press(page, "Submit")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Daemon from_them")


def test_expired_session_keeps_layout_editor_input(host, visitor):
    visit, token = visitor(host), an_admin(host)
    page = visit.log_in(token, to="/layouts/-/new")
    page.get_by_label("Name").fill("written")
    text = page.get_by_label("Layout", exact=True)
    visit.log_out_elsewhere()
    if visit.scripted:
        # The request of the live map is refused, and the form keeps its values.
        with page.expect_response("**/layouts/-/check") as asked:
            fill(page, add("web", 7))
        assert asked.value.status == 401
        expect(text).to_have_value(text_of(add("web", 7)))
    fill(page, add("web", 7), add("batch", 0))
    press(page, "Create")
    log_in_again(page, token)
    press(page, "Submit")
    expect(page.locator("#wrong-text")).to_contain_text("0 chunks: give at least 1")
    expect(page.get_by_label("Name")).to_have_value("written")
    expect(text).to_have_value(text_of(add("web", 7), add("batch", 0)))


def test_file_survives_log_in_as_text(host, visitor, tmp_path):
    visit, token = visitor(host), an_admin(host)
    page = visit.log_in(token, to="/layouts/-/import")
    chosen = page.get_by_label("From a file")
    text = page.get_by_label("Text", exact=True)
    if visit.scripted:
        (tmp_path / "layouts.yaml").write_text(DOCUMENT.replace("brought", "from_a_file"))
        chosen.set_input_files(tmp_path / "layouts.yaml")
        expect(text).to_have_value(DOCUMENT.replace("brought", "from_a_file"))
    else:
        # Only text fields are kept: the text of the file is in one.
        expect(chosen).to_be_hidden()
        text.fill(DOCUMENT.replace("brought", "from_text"))
    visit.log_out_elsewhere()
    press(page, "Import")
    log_in_again(page, token)
    press(page, "Submit")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Layout from_")
    expect(page.locator(".sequence li")).to_have_text(["add web on GPU 0: 7 chunks"])


@pytest.mark.parametrize("path", ["/layouts/-/new", "/layouts/prod/edit"], ids=["a new layout", "a next version"])
def test_enter_in_layout_editor_changes_nothing(host, visitor, path):
    visit, token = visitor(host), an_admin(host)
    page = visit.log_in(token, to=path)
    before = host.api("GET", "/layouts")["items"]
    if path.endswith("new"):
        page.get_by_label("Name").fill(f"entered_{visit.scripted}".lower())
    fill(page, add("web", 7), add("batch", 5))
    if path.endswith("new"):
        with page.expect_navigation():
            page.get_by_label("Name").press("Enter")
    text = page.get_by_label("Layout", exact=True)
    text.press("Control+End")
    text.press("Enter")
    expect(text).to_have_value(re.compile("\n\n$"))
    check(page, visit)
    expect(page.get_by_text("12 of 15 chunks used, 3 left")).to_be_visible()
    assert host.api("GET", "/layouts")["items"] == before
