"""HTTP over the manager's socket, for the programs of the hardware scenario."""

import http.client
import socket


class Unix(http.client.HTTPConnection):
    """A connection to the socket at `path`; `timeout` is in seconds, `None` waits forever."""

    def __init__(self, path, timeout=30):
        super().__init__("manager", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)
