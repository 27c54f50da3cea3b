"""Every page of the console, and a host on which each has content: for tests and pictures of all pages."""

import urllib.parse
import urllib.request

from host import TIMEOUT_S, eventually


# The longest names and labels; a daemon's name is part of the path of a socket and therefore shorter.
LONG = "a" + "x" * 62
DAEMON = "d" * 48
LABELS = {"k" * 120: "v" * 60, "team": "search"}


def populate(host):
    """Gives a host with three GPUs tenants, clients, layouts and something that needs attention; returns its pages."""
    host.done(host.api("DELETE", "/daemons/gpu1")) if clear(host, "gpu1") else None
    host.api("PUT", "/daemons/gpu1", {"gpus": ["1"], "mode": "static"})
    clear(host, "gpu2")
    host.done(host.api("DELETE", "/daemons/gpu2"))
    host.api("PUT", f"/daemons/{DAEMON}", {"gpus": ["2"]})
    host.api("PUT", f"/tenants/{LONG}", {"daemon": "gpu1", "uid": 0, "device_memory_limit": "1G", "labels": LABELS})
    host.api("PUT", f"/tenants/{LONG[:-1]}y", {"daemon": DAEMON, "uid": 0, "device_memory_limit": "1G", "labels": LABELS})
    # One name is a long word, which no table breaks.
    for name, limit in [("web", "8G"), ("batch", "16G"), ("notebooks", "1G")]:
        host.api("PUT", f"/tenants/{name}", {"daemon": "gpu1", "uid": 0, "device_memory_limit": limit, "labels": {"team": "search"}})
    steps = [
        {"add": {"gpu": 1, "partition": "web", "chunks": 7, "tenants": ["web"]}},
        {"add": {"gpu": 1, "partition": "batch", "chunks": 5, "tenants": ["batch"]}},
        {"add": {"gpu": 1, "partition": "spare", "chunks": 1, "tenants": [LONG]}},
        {"add": {"gpu": 1, "partition": "notes", "chunks": 1, "tenants": ["notebooks"]}},
    ]
    host.api("PUT", "/layouts/prod", {"layout": {"steps": steps}, "note": "web and batch apart"})
    eventually("gpu1 is ready", lambda: host.status_of("/readyz/daemons/gpu1") == 200)
    host.done(host.api("POST", "/layouts/prod/apply", {"daemon": "gpu1"}))
    host.api("PUT", "/layouts/empty", {"layout": {"steps": []}})
    host.done(host.api("POST", "/layouts/empty/apply", {"daemon": "gpu1"}))
    host.done(host.api("POST", "/replays", {"layout": "prod", "daemon": "gpu1"})["operation"])
    # A version that waits for the clients below, and whose last step needs too many chunks.
    more = [{"add": {"gpu": 1, "partition": "front", "chunks": 9, "tenants": ["web"]}}, *steps[1:2],
            {"add": {"gpu": 1, "partition": "much", "chunks": 4}}]
    host.api("PUT", "/layouts/prod", {"layout": {"steps": more}, "note": "web gets more"})
    for tenant, mib in [("demo", "1024"), ("web", "2048"), ("web", "512")]:
        host.client(tenant, "--spin", "3600", "--alloc", mib)
        if tenant == "web" and len(host.clients) == 2:
            host.api("PUT", "/tenants/web", {"daemon": "gpu1", "uid": 0, "device_memory_limit": "8G", "max_clients": 4,
                                             "labels": {"team": "search"}})
            eventually("gpu1 is ready", lambda: host.status_of("/readyz/daemons/gpu1") == 200)
    host.client(f"{LONG[:-1]}y", "--spin", "3600", "--alloc", "256")
    assert host.verified("web")["outcome"] == "verified"
    host.api("POST", "/daemons/gpu0/cordon")
    assert host.verified("demo")["blocker"]["code"] == "cordoned"
    host.token_for("operator", "ci")
    # Itself, and one that does not answer.
    save_host(host, "gpu02", host.url, host.token_for("viewer", "fleet"))
    save_host(host, "gpu03", "http://127.0.0.1:9", "secret")
    # Another program makes a partition that the layout does not have.
    pipe = host.api("GET", "/daemons/gpu1")["status"]["pipe_directory"]
    host.control(pipe, f"sm_partition add {host.api('GET', '/gpus/1')['uuid']} 1")
    eventually("the drift is detected", lambda: host.api("GET", "/daemons/gpu1?fresh=true")["status"]["layout"]["state"] == "drifted")
    return PAGES


def save_host(host, name, url, token):
    """Saves another host, which only the console can."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())

    def send(page, **form):
        form = urllib.parse.urlencode(form).encode()
        opener.open(urllib.request.Request(host.url + page, form, {"Sec-Fetch-Site": "same-origin"}), timeout=TIMEOUT_S).read()

    send("/login", token=host.token)
    send("/hosts/-/new", name=name, url=url, token=token)


def more(page, part="#more-actions"):
    """Opens a folded part, by default the menu of a daemon's further actions, unless it is open."""
    folded = page.locator(part)
    if folded.get_attribute("open") is None:
        folded.locator("summary").click()


def card(page, daemon):
    """The card on the overview of the GPU of a daemon."""
    return page.locator(".gpu-cards > li").filter(has=page.get_by_role("link", name=daemon, exact=True))


def clear(host, daemon):
    """Deletes the tenants of a daemon; returns whether the daemon exists."""
    for tenant in host.api("GET", f"/tenants?daemon={daemon}")["items"]:
        host.api("DELETE", f"/tenants/{tenant['name']}")
    return any(one["name"] == daemon for one in host.api("GET", "/daemons")["items"])


# The name of each page in pictures and failures, and its path, or a function that gives it for a host.
PAGES = {
    "overview": "/",
    "hosts": "/hosts",
    "host-new": "/hosts/-/new",
    "host-remove": "/hosts/gpu02/remove",
    "gpus": "/gpus",
    "gpu-shared": "/gpus/0",
    "gpu-partitioned": "/gpus/1",
    "gpu-replace": "/gpus/0/replace",
    "daemons": "/daemons",
    "daemon-shared": "/daemons/gpu0",
    "daemon-static": "/daemons/gpu1",
    "daemon-long": f"/daemons/{DAEMON}",
    "daemon-restart": "/daemons/gpu0/restart",
    "daemon-drain": "/daemons/gpu1/drain",
    "daemon-delete": "/daemons/gpu1/delete",
    "daemon-new": "/daemons/-/new",
    "daemon-edit": "/daemons/gpu1/edit",
    "daemon-logs": "/daemons/gpu0/logs",
    "daemon-logs-server": "/daemons/gpu1/logs?file=server",
    "tenants": "/tenants",
    "tenant": "/tenants/web",
    "tenant-shared": "/tenants/demo",
    "tenant-long": f"/tenants/{LONG}",
    "tenant-long-edit": f"/tenants/{LONG}/edit",
    "tenant-new": "/tenants/-/new",
    "tenant-edit": "/tenants/demo/edit",
    "tenant-delete": "/tenants/batch/delete",
    "clients": "/clients",
    "client": lambda host: f"/clients/{host.api('GET', '/clients')['items'][0]['id']}",
    "client-terminate": lambda host: f"/clients/{host.api('GET', '/clients')['items'][0]['id']}/terminate",
    "layouts": "/layouts",
    "layout": "/layouts/prod",
    "layout-earlier": "/layouts/prod/versions/1",
    "layouts-compared": "/layouts/prod/compare",
    "layout-new": "/layouts/-/new",
    "layout-edit": "/layouts/prod/edit",
    "layout-import": "/layouts/-/import",
    "layout-plan": "/layouts/prod/apply?daemon=gpu1",
    "layout-compared-now": "/layouts/prod/assert?daemon=gpu1",
    "layout-delete": "/layouts/prod/delete",
    "replays": "/replays",
    "replay": lambda host: "/replays/" + host.api("GET", "/replays")["items"][0]["id"],
    "replay-new": "/replays/new?layout=prod",
    "events": "/events",
    "event": lambda host: f"/events/{host.api('GET', '/events?type=client.connected')['items'][0]['id']}",
    "incidents": "/incidents",
    "incident": lambda host: f"/incidents/{host.api('GET', '/incidents')['items'][0]['id']}",
    "timeline": "/timeline?span=1h",
    "audit": "/audit",
    "tokens": "/tokens",
    "token": lambda host: f"/tokens/{host.api('GET', '/tokens')['items'][0]['id']}",
    "token-new": "/tokens/new",
    "token-revoke": lambda host: f"/tokens/{host.api('GET', '/tokens')['items'][0]['id']}/revoke",
    "settings": "/settings",
    "file": "/file",
    "maintenance": "/settings/maintenance",
    "operations": "/operations",
    "operation": lambda host: "/operations/" + host.api("GET", "/operations?limit=1")["items"][0]["id"],
    "api": "/docs",
    "problem": "/nowhere",
}


def path_of(page, host):
    return page(host) if callable(page) else page
