"""Keeps a host furnished while requests of every kind take it apart: daemons, tenants and a layout are there again soon."""

import json
import os
import time
import urllib.error
import urllib.request

URL, TOKEN = os.environ["HOST_A_URL"], os.environ["HOST_A_TOKEN"]
THINGS = [
    ("DELETE", "/api/v1/host/maintenance", None),
    ("PUT", "/api/v1/daemons/gpu0", {"gpus": ["0"]}),
    ("PUT", "/api/v1/daemons/gpu1", {"gpus": ["1"], "mode": "static"}),
    ("PUT", "/api/v1/tenants/demo", {"daemon": "gpu0", "uid": os.getuid(), "device_memory_limit": "4G"}),
    ("PUT", "/api/v1/tenants/batch", {"daemon": "gpu0", "uid": os.getuid(), "sms": 66}),
    ("PUT", "/api/v1/layouts/prod", {"layout": {"steps": [{"add": {"gpu": 1, "partition": "web", "chunks": 7}}]}}),
]


def ask(method, path, body):
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    if method == "PUT":
        headers["If-None-Match"] = "*"
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(URL + path, data=data, headers=headers, method=method)
    try:
        urllib.request.urlopen(request, timeout=30).read()
    except urllib.error.HTTPError:
        pass  # It is there already, or cannot be at the moment: the next round tries again.


while True:
    for thing in THINGS:
        ask(*thing)
    time.sleep(0.2)
