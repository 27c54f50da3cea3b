"""In the place of Docker's daemon: `docker_api.py SOCKET FOLDER`. It takes what `docker run` asks of one, runs nothing, and keeps the last request
for a container as FOLDER/create.json."""

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer

SOCKET, FOLDER = sys.argv[1], Path(sys.argv[2])
started = threading.Event()


class Daemon(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, body=None):
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Api-Version", "1.41")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_GET(self):
        self.answer(200 if self.path.endswith("/_ping") else 404, {})

    do_HEAD = do_GET

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        if path.endswith("/containers/create"):
            started.clear()
            (FOLDER / "create.json").write_bytes(body)
            self.answer(201, {"Id": "1" * 64, "Warnings": []})
        elif path.endswith("/attach"):
            # The connection becomes the container's streams, which end at once.
            self.send_response(101)
            self.send_header("Connection", "Upgrade")
            self.send_header("Upgrade", "tcp")
            self.end_headers()
            self.close_connection = True
        elif path.endswith("/wait"):
            # Asked before the start: the client goes on once it has the headers.
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            started.wait(30)
            self.wfile.write(b'{"StatusCode": 0}')
        elif path.endswith("/start"):
            self.answer(204)
            started.set()
        else:
            self.answer(404, {"message": "the stand-in has no " + path})

    def address_string(self):
        return "docker"

    def log_message(self, *_):
        pass


server = ThreadingUnixStreamServer(SOCKET + ".new", Daemon)
os.rename(SOCKET + ".new", SOCKET)
server.serve_forever()
