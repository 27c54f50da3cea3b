"""Keeps a host furnished while requests of every kind take it apart: daemons, tenants and a layout are there again soon."""

import os
import time

from host import Api, Refused

HOST = Api(os.environ["HOST_A_URL"], os.environ["HOST_A_TOKEN"])
THINGS = [
    ("DELETE", "/host/maintenance", None),
    ("PUT", "/daemons/gpu0", {"gpus": ["0"]}),
    ("PUT", "/daemons/gpu1", {"gpus": ["1"], "mode": "static"}),
    ("PUT", "/tenants/demo", {"daemon": "gpu0", "uid": os.getuid(), "device_memory_limit": "4G"}),
    ("PUT", "/tenants/batch", {"daemon": "gpu0", "uid": os.getuid(), "sms": 66}),
    ("PUT", "/layouts/prod", {"layout": {"steps": [{"add": {"gpu": 1, "partition": "web", "chunks": 7}}]}}),
]

while True:
    for method, path, body in THINGS:
        try:
            HOST.api(method, path, body, **{"If-None-Match": "*"} if method == "PUT" else {})
        except Refused:
            pass  # It is there already, or cannot be at the moment: the next round tries again.
    time.sleep(0.2)
