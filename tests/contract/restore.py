"""Recreates the daemons, tenants and layout of a host while requests of every kind delete and change them."""

import json
import os
import time
import urllib.error
import urllib.request

URL, TOKEN = os.environ["HOST_A_URL"], os.environ["HOST_A_TOKEN"]
RESOURCES = [
    ("DELETE", "/api/v1/host/maintenance", None),
    ("PUT", "/api/v1/daemons/gpu0", {"gpus": ["0"]}),
    ("PUT", "/api/v1/daemons/gpu1", {"gpus": ["1"], "mode": "static"}),
    ("PUT", "/api/v1/tenants/demo", {"daemon": "gpu0", "uid": os.getuid(), "device_memory_limit": "4G"}),
    ("PUT", "/api/v1/tenants/batch", {"daemon": "gpu0", "uid": os.getuid(), "sms": 66}),
    ("PUT", "/api/v1/layouts/prod", {"layout": {"steps": [{"add": {"gpu": 1, "partition": "web", "chunks": 7}}]}}),
]


def send(method, path, body):
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    if method == "PUT":
        headers["If-None-Match"] = "*"
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(URL + path, data=data, headers=headers, method=method)
    try:
        urllib.request.urlopen(request, timeout=30).read()
    except urllib.error.HTTPError:
        pass  # It exists already, or cannot be created at the moment: the next round retries.


while True:
    for thing in RESOURCES:
        send(*thing)
    time.sleep(0.2)
