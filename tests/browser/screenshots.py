"""Pictures of every page, light and dark, at four widths, in a folder; of problems and empty pages, as `state-…`; of hosts with 1 to
16 GPUs, as `gpus16-…`; and the size of each page with everything that it loads."""

import os
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from conftest import OPTIONS, Visitor
from host import Host
from pages import populate, path_of
from states import STATES

WIDTHS = {"wide": 1440, "narrow": 390, "medium": 768, "widest": 2560}
SCHEMES = ["light", "dark"]


class Transfer:
    """Counts the bytes that are transferred from now on, with an empty cache."""

    def __init__(self, visitor):
        self.bytes = []
        session = visitor.context.new_cdp_session(visitor.page)
        session.send("Network.enable")
        session.send("Network.setCacheDisabled", {"cacheDisabled": True})
        session.on("Network.loadingFinished", lambda event: self.bytes.append(event["encodedDataLength"]))

    def total(self):
        return int(sum(self.bytes))


def page_bytes(visitor, path):
    """Bytes of a page and of everything that it loads."""
    transfer = Transfer(visitor)
    visitor.page.goto(path, wait_until="load")
    visitor.page.wait_for_timeout(300)
    return transfer.total()


# Problems are pictured as most users see them, and where there is least room.
STATE_VIEWS = [("wide", "light"), ("narrow", "dark")]


class Views:
    """Takes pictures of a host as the holder of a token sees it."""

    def __init__(self, browser, host, folder):
        self.browser, self.host, self.folder, self.visitors = browser, host, folder, {}

    def show(self, name, path, act=None, token=None):
        for width, scheme in STATE_VIEWS:
            page = self.visitor(width, scheme, token).page
            page.goto(path, wait_until="load")
            if act:
                act(page)
            page.screenshot(path=self.folder / f"state-{name}-{width}-{scheme}.png", full_page=True)

    def visitor(self, width, scheme, token):
        known = (width, scheme, token)
        if known not in self.visitors:
            viewport = {"width": WIDTHS[width], "height": 900}
            self.visitors[known] = Visitor(self.browser, self.host, True, viewport=viewport, color_scheme=scheme)
            self.visitors[known].log_in(token)
        return self.visitors[known]

    def close(self):
        for visitor in self.visitors.values():
            visitor.context.close()


def picture_states(browser, folder, only=None):
    for state, profiles in STATES:
        if only and state.__name__ not in only:
            continue
        hosts = [Host(profile) for profile in profiles]
        views = Views(browser, hosts[-1], folder)
        try:
            state(hosts if len(hosts) > 1 else hosts[0], views.show)
        finally:
            views.close()
            for host in hosts:
                host.close()


# What differs with the number of GPUs.
SIZES = [1, 2, 8, 16]
OF_SIZES = {"overview": "/", "gpus": "/gpus", "gpu": "/gpus/0", "daemons": "/daemons", "timeline": "/timeline"}


def picture_sizes(browser, folder):
    for size in SIZES:
        host = Host(f"h200x{size}")
        try:
            for gpu in range(min(size, 6)):
                for name, sms, limit in [("web", 56, "40G"), ("batch", 32, "24G")]:
                    spec = {"daemon": f"gpu{gpu}", "uid": 0, "sms": sms, "device_memory_limit": limit}
                    host.api("PUT", f"/tenants/{name}-{gpu}", spec)
                host.client(f"web-{gpu}", "--spin", "3600", "--alloc", str(2048 * (gpu + 1)))
            for scheme in SCHEMES:
                for name, width in WIDTHS.items():
                    viewport = {"width": width, "height": 900}
                    visitor = Visitor(browser, host, True, viewport=viewport, color_scheme=scheme)
                    visitor.log_in()
                    for page, path in OF_SIZES.items():
                        visitor.page.goto(path, wait_until="load")
                        visitor.page.screenshot(path=folder / f"gpus{size}-{page}-{name}-{scheme}.png", full_page=True)
                    visitor.context.close()
        finally:
            host.close()


def main(folder):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    host = Host("h200x3")
    try:
        pages = populate(host)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=os.environ["MPS_MANAGER_CHROMIUM"], args=OPTIONS)
            for scheme in SCHEMES:
                for name, width in WIDTHS.items():
                    viewport = {"width": width, "height": 900}
                    visitor = Visitor(browser, host, True, viewport=viewport, color_scheme=scheme)
                    visitor.page.goto("/login")
                    visitor.page.screenshot(path=folder / f"login-{name}-{scheme}.png", full_page=True)
                    visitor.log_in()
                    for page, path in pages.items():
                        visitor.page.goto(path_of(path, host), wait_until="load")
                        visitor.page.screenshot(path=folder / f"{page}-{name}-{scheme}.png", full_page=True)
                    visitor.context.close()
            picture_states(browser, folder)
            picture_sizes(browser, folder)
            visitor = Visitor(browser, host, True)
            visitor.log_in()
            print("| page | bytes over the wire, with everything |\n| --- | ---: |")
            for page, path in pages.items():
                print(f"| {page} | {page_bytes(visitor, path_of(path, host))} |")
            browser.close()
    finally:
        host.close()


if __name__ == "__main__":
    main(sys.argv[1])
