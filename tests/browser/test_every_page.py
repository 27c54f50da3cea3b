"""Requirements of every page: complete, small, accessible, and readable at each width."""

import pytest
from playwright.sync_api import expect

from conftest import EVERY_LOOK, Visitor
from host import Host, eventually
from pages import PAGES, populate, path_of
from screenshots import Transfer

# The bytes of a page over the wire, with everything that it loads into an empty cache.
HEAVIEST = 150_000
# Widths and colour schemes; without a script a page has the same rules and the same widths at which they change.
LOOKS = [(1440, "light"), (1440, "dark"), (2560, "light"), (768, "light"), (390, "dark"), (390, "light")]
NARROW_AND_WIDE = [(390, "light"), (768, "light"), (1440, "light"), (2560, "light")]


def looks_of(name, scripted):
    """A third of the widths, and another third than the page before, unless all are wanted: that takes minutes."""
    looks = LOOKS if scripted else NARROW_AND_WIDE
    return looks if EVERY_LOOK else looks[list(PAGES).index(name) % 3::3]


# Defects of the tables of a page: columns of one name, words in two lines, text beyond its cell. A word of more than
# twenty characters may be broken, and so may one at its hyphen.
UNREADABLE = """() => [...document.querySelectorAll('main table')].flatMap(table => {
  const wrong = [];
  const names = [...table.querySelectorAll(':scope > thead th')].map(th => th.textContent.trim()).filter(Boolean);
  names.forEach((name, at) => { if (names.indexOf(name) < at) wrong.push(`two columns ${name}`); });
  for (const cell of table.querySelectorAll('th, td')) {
    const within = cell.getBoundingClientRect();
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    for (let text = texts.nextNode(); text; text = texts.nextNode()) {
      if (text.parentElement.closest('code, .visually-hidden, details:not([open])')) continue;
      for (const word of text.data.matchAll(/[^\\s\\-\\/]{2,20}(?![^\\s\\-\\/])/g)) {
        if (/[^\\s\\-\\/]/.test(text.data[word.index - 1] ?? ' ')) continue;
        const range = new Range();
        range.setStart(text, word.index);
        range.setEnd(text, word.index + word[0].length);
        const lines = [...range.getClientRects()].filter(line => line.width > 0);
        if (lines.some(line => Math.abs(line.top - lines[0].top) > 2)) wrong.push(`torn: ${word[0]}`);
        if (lines.some(line => line.right > within.right + 1)) wrong.push(`beyond its cell: ${word[0]}`);
      }
    }
  }
  return wrong;
})"""


# Columns that are too narrow for their text, as where those of fixed width leave them nothing.
SQUEEZED = """() => [...document.querySelectorAll('main table :is(th, td)')]
  .filter(cell => cell.innerText.trim().length > 20 && cell.getBoundingClientRect().width < 64)
  .map(cell => `squeezed: ${cell.innerText.trim().slice(0, 40)}`)"""


# Defects of a page on a phone: tables that scroll sideways, cells without the name of their column, links and buttons beyond the window, and
# ones too low for a finger, unless they stand in a sentence.
ON_A_PHONE = """() => {
  const wrong = [];
  const text = node => node.textContent.trim().replace(/\\s+/g, ' ');
  for (const table of document.querySelectorAll('main table')) {
    for (const box of [table, table.parentElement])
      if (box.scrollWidth > box.clientWidth + 1) wrong.push(`sideways: ${text(table).slice(0, 40)}`);
    const names = [...table.tHead.rows[0].cells].map(head => head.querySelector('.visually-hidden') ? '' : text(head));
    for (const row of [...table.tBodies].flatMap(body => [...body.rows])) {
      [...row.cells].forEach((cell, at) => {
        const name = names[at + names.length - row.cells.length];
        const label = cell.dataset.label ?? '';
        if (cell.tagName === 'TH' ? label && label !== name : label !== name && (label || names.length > 2))
          wrong.push(`${name} is ${label}`);
      });
    }
  }
  for (const target of document.querySelectorAll('main :is(a[href], button, summary, select, input:not([type=checkbox], [type=radio]))')) {
    const { left, right, height, width } = target.getBoundingClientRect();
    if (!width || target.closest('svg, .visually-hidden') || !target.checkVisibility()) continue;
    const called = target.outerHTML.slice(0, 90);
    if (left < -1 || right > innerWidth + 1) wrong.push(`outside: ${called}`);
    const isWithinText = [...target.parentElement.childNodes].some(node => node !== target && node.nodeType === 3 && node.data.trim());
    if (height < 23.5 && !isWithinText) wrong.push(`${height} px high: ${called}`);
  }
  return [...new Set(wrong)];
}"""


@pytest.fixture(scope="module")
def populated():
    host = Host("h200x3")
    populate(host)
    yield host
    host.close()


@pytest.fixture(scope="module", params=[True, False], ids=["with script", "without script"])
def reader(request, browser, populated):
    """A logged-in user who opens one page after the other."""
    reader = Visitor(browser, populated, request.param)
    reader.log_in()
    yield reader
    reader.context.close()


@pytest.mark.parametrize("name", PAGES)
def test_page_is_complete_small_and_accessible(populated, reader, name):
    page, path = reader.page, path_of(PAGES[name], populated)
    page.set_viewport_size({"width": 1440, "height": 900})
    transfer = Transfer(reader)
    page.goto(path)
    expect(page.get_by_role("heading", level=1)).to_have_count(1)
    expect(page.get_by_role("note").filter(has_text="Simulated host")).to_be_visible()

    # By keyboard, with a visible focus.
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    for _ in range(8):
        page.keyboard.press("Tab")
        style = page.evaluate("getComputedStyle(document.activeElement).outlineStyle") if reader.scripted else "solid"
        assert style != "none", f"{name}: {page.evaluate('document.activeElement.outerHTML')}"

    for width in [1440, 1280] if EVERY_LOOK else [1440]:
        page.set_viewport_size({"width": width, "height": 900})
        assert not reader.scripted or page.evaluate(UNREADABLE) == [], f"{name} at {width} px"

    for width, scheme in looks_of(name, reader.scripted):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        # On a busy machine the layout follows the new width of the window after a while.
        wide = lambda: page.locator("html").evaluate("html => html.scrollWidth - html.clientWidth")
        eventually(f"{name} is no wider than {width} px", lambda: wide() <= 0)
        assert not reader.scripted or page.evaluate(SQUEEZED) == [], f"{name} at {width} px"
        reader.accessible()
    assert transfer.total() < HEAVIEST, f"{name}: {transfer.total()}"
    assert reader.errors == []


@pytest.mark.parametrize("name", PAGES)
def test_phone_shows_cards_and_whole_targets(populated, reader, name):
    reader.page.set_viewport_size({"width": 390, "height": 844})
    reader.page.goto(path_of(PAGES[name], populated))
    assert reader.page.evaluate(ON_A_PHONE) == [], name


def test_cards_are_a_table_to_screen_readers(populated, reader):
    page = reader.page
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/clients")
    assert page.locator("tbody td").first.evaluate("cell => getComputedStyle(cell).display") == "block"
    tree = reader.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    roles = [node["role"]["value"] for node in tree if "role" in node]
    rows = page.locator("tbody tr").count()
    assert (roles.count("table"), roles.count("columnheader"), roles.count("rowheader"), roles.count("row")) == (1, 8, rows, rows + 1)
    assert roles.count("cell") + roles.count("gridcell") == rows * 7
    # The name of a column is read once, as its heading.
    assert not any(node.get("name", {}).get("value", "").startswith("MemoryMemory") for node in tree)


def test_id_is_short_and_copied_whole(populated, reader):
    page = reader.page
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto("/daemons/gpu1")
    uuid = populated.api("GET", "/gpus/1")["uuid"]
    partition = populated.api("GET", "/daemons/gpu1")["status"]["layout"]["partitions"][0]["id"]
    page.goto(f"/gpus/{uuid}")
    shown = page.get_by_role("row").filter(has_text="web").locator(".id")
    expect(page.get_by_role("cell", name=partition)).to_have_count(1)
    if not reader.scripted:
        expect(shown.locator(".short")).to_be_hidden()
        assert shown.locator(".long").bounding_box()["width"] > 100
        expect(page.get_by_role("button", name="Copy")).to_have_count(0)
        return
    expect(shown.locator(".short")).to_have_text(partition.rstrip("A") + "…")
    assert shown.locator(".long").bounding_box()["width"] < 2
    reader.context.grant_permissions(["clipboard-read", "clipboard-write"])
    shown.get_by_role("button", name=f"Copy {partition}").click()
    expect(shown.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == partition
    of_gpu = page.locator(f"button[data-copy-text='{uuid}']")
    of_gpu.click()
    expect(of_gpu).to_have_accessible_name("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == uuid
