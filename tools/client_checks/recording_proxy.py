"""Passes requests on to a service and keeps the JSON bodies that clients send: `recording_proxy.py PORT URL FILE`.

FILE gets one entry for each different path and set of fields: what tests/clients/recorded_bodies.json is made from.
"""

from __future__ import annotations

import http.client
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PORT, URL, FILE = int(sys.argv[1]), urlsplit(sys.argv[2]), Path(sys.argv[3])
_kept: dict[str, dict[str, Any]] = {}


def keep(path: str, agent: str, body: bytes) -> None:
    try:
        document = json.loads(body)
    except ValueError:
        return
    entry = {"client": agent.partition(" ")[0], "path": path, "body": document}
    if _kept.setdefault(f"{entry['client']} {path} {sorted(document)}", entry) is entry:
        FILE.write_text(json.dumps(list(_kept.values()), indent=1) + "\n")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"  # the end of an answer is the end of its connection

    def do_GET(self) -> None:
        self._pass_on(b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        keep(self.path, self.headers.get("User-Agent", ""), body)
        self._pass_on(body)

    def _pass_on(self, body: bytes) -> None:
        connection = http.client.HTTPConnection(str(URL.hostname), URL.port)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection"):
                self.send_header(name, value)
        self.end_headers()
        while piece := answer.read1(65536):
            self.wfile.write(piece)
            self.wfile.flush()

    def log_message(self, *_: Any) -> None:
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
