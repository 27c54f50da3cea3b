"""The README's picture: `tests/browser/run.sh --picture FILE.png`. A simulated host with two GPUs, tenants that work, and a server that
was killed under them."""

import os
import signal
import sys

from playwright.sync_api import sync_playwright

from conftest import OPTIONS, Visitor
from host import Host, eventually

VIEWPORT = {"width": 1280, "height": 820}
TENANTS = [("inference", "gpu0", "24G", 40), ("notebooks", "gpu0", "8G", 15), ("nightly", "gpu1", "48G", 50), ("training", "gpu1", "64G", 50)]
CLIENTS = [("inference", "6144"), ("inference", "5120"), ("notebooks", "2048"), ("nightly", "12288"), ("training", "30720")]
# As much as the README may load.
LARGEST = 200_000


def work(host, daemons):
    served = [tenant for tenant, daemon, _, _ in TENANTS if daemon in daemons]
    for tenant, mib in CLIENTS:
        if tenant in served:
            host.client(tenant, "--spin", "3600", "--alloc", mib)


def recovered(host, server):
    """Whether the daemon has another server than this one, and is ready."""
    status = host.api("GET", "/daemons/gpu0?fresh=true")["status"]
    servers = [each["pid"] for each in status["effective"]["servers"]]
    return status["phase"] == "ready" and servers and server not in servers


def busy(host):
    for tenant, daemon, limit, percentage in TENANTS:
        host.api("PUT", f"/tenants/{tenant}", {"daemon": daemon, "uid": 0, "device_memory_limit": limit, "active_thread_percentage": percentage})
    for daemon in ["gpu0", "gpu1"]:
        eventually(f"{daemon} is ready", lambda: host.status_of(f"/readyz/daemons/{daemon}") == 200)
    work(host, ["gpu0", "gpu1"])
    server = host.api("GET", "/daemons/gpu0?fresh=true")["status"]["effective"]["servers"][0]["pid"]
    os.kill(server, signal.SIGKILL)
    eventually("gpu0 has recovered", lambda: recovered(host, server))
    work(host, ["gpu0"])


def main(file):
    host = Host("h200x2")
    try:
        busy(host)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=os.environ["MPS_MANAGER_CHROMIUM"], args=OPTIONS)
            visitor = Visitor(browser, host, True, viewport=VIEWPORT, color_scheme="light")
            visitor.log_in()
            visitor.page.goto("/", wait_until="load")
            visitor.page.screenshot(path=file)
            browser.close()
    finally:
        host.close()
    size = os.path.getsize(file)
    if size > LARGEST:
        sys.exit(f"{file} has {size} bytes, more than {LARGEST}")
    print(f"{file}: {size} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
