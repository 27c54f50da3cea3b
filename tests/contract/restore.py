"""Recreates the daemons, tenants and layout of a host while requests of every kind delete and change them."""

import os
import time

from host import Api, Refused

HOST = Api(os.environ["HOST_A_URL"], os.environ["HOST_A_TOKEN"])
RESOURCES = [
    ("DELETE", "/host/maintenance", None),
    ("PUT", "/daemons/gpu0", {"gpus": ["0"]}),
    ("PUT", "/daemons/gpu1", {"gpus": ["1"], "mode": "static"}),
    ("PUT", "/tenants/demo", {"daemon": "gpu0", "uid": os.getuid(), "device_memory_limit": "4G"}),
    ("PUT", "/tenants/batch", {"daemon": "gpu0", "uid": os.getuid(), "sms": 66}),
    ("PUT", "/layouts/prod", {"layout": {"steps": [{"add": {"gpu": 1, "partition": "web", "chunks": 7}}]}}),
]

while True:
    for method, path, body in RESOURCES:
        try:
            HOST.api(method, path, body, **{"If-None-Match": "*"} if method == "PUT" else {})
        except Refused:
            pass  # It exists already, or cannot be created at the moment: the next round retries.
    time.sleep(0.2)
