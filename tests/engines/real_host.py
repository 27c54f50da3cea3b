"""A manager whose host is not simulated, as its callers see it: `real_host.py SOCKET BEHIND`. It passes requests on to the socket BEHIND, and takes
out of a tenant's environment what a simulated host adds, so that texts ask for GPUs as on a real one."""

import http.client
import json
import socket
import sys
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingUnixStreamServer

SOCKET, BEHIND = sys.argv[1:]


class Behind(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(BEHIND)


class Manager(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_any(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        behind = Behind("localhost")
        behind.request(self.command, self.path, body, dict(self.headers))
        answer = behind.getresponse()
        data = answer.read()
        if self.path.endswith("/environment"):
            environment = json.loads(data)
            environment["variables"].pop("MPS_SIM_WORLD")
            data = json.dumps(environment).encode()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

    def address_string(self):
        return "local"

    def log_message(self, *_):
        pass


class Server(ThreadingUnixStreamServer):
    daemon_threads = True


Server(SOCKET, Manager).serve_forever()
