"""What is so of every page."""

import pytest
from playwright.sync_api import expect

from host import Host
from pages import PAGES, furnish, path_of
from screenshots import weight

# With all that it loads into an empty cache, in bytes over the wire.
HEAVIEST = 150_000


@pytest.fixture(scope="module")
def furnished():
    host = Host()
    furnish(host)
    yield host
    host.close()


@pytest.mark.parametrize("width,scheme", [(1440, "light"), (390, "dark"), (1440, "dark"), (390, "light"), (2560, "light")])
def test_axe_finds_nothing_and_nothing_is_cut_off(furnished, visitor, scripted, width, scheme):
    visit = visitor(furnished, viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = visit.log_in()
    for name, place in PAGES.items():
        page.goto(path_of(place, furnished))
        expect(page.get_by_role("heading", level=1)).to_have_count(1)
        expect(page.get_by_role("note").filter(has_text="Simulated host")).to_be_visible()
        wide = page.locator("html").evaluate("html => html.scrollWidth - html.clientWidth")
        assert wide <= 0, f"{name} is {wide} px wider than {width}"
        visit.accessible()


def test_no_page_is_heavy(furnished, visitor, scripted):
    visit = visitor(furnished)
    visit.log_in()
    for name, place in PAGES.items():
        bytes_of = weight(visit, path_of(place, furnished))
        assert bytes_of < HEAVIEST, f"{name}: {bytes_of}"


def test_every_page_is_reached_by_keyboard_and_shows_where_the_focus_is(furnished, visitor, scripted):
    visit = visitor(furnished)
    page = visit.log_in()
    for name, place in PAGES.items():
        page.goto(path_of(place, furnished))
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        for _ in range(8):
            page.keyboard.press("Tab")
            style = page.evaluate("getComputedStyle(document.activeElement).outlineStyle") if scripted else "solid"
            assert style != "none", f"{name}: {page.evaluate('document.activeElement.outerHTML')}"
