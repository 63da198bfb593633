# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A simulator of an engine, for the gateway's tests. It is no engine: it answers with what it got.

    python3 upstream_sim.py ADDRESS CONTROL_PORT KEY_FILE        ADDRESS is PORT (on loopback) or unix:/path

It records each request that reaches it, refuses those without its key the way vLLM does, and streams step by step: it
sends a piece and then waits until the test asks for the next. So a test of streaming is about order, never about time.

Control (any address, plain HTTP):
    GET  /requests          the requests so far: method, path, headers, size of the body
    GET  /events            what happened in streams: ["sent", 0], ["client gone", 3], ...
    POST /reset             forget both, and the answer below
    POST /step              let a waiting stream go on
    POST /answer            {"status": ..., "headers": {...}, "body": ...}: what every following request gets
"""

from __future__ import annotations

import json
import select
import socket
import socketserver
import sys
import threading
import typing as t
from http.server import BaseHTTPRequestHandler
from pathlib import Path


class State:
    def __init__(self, key: str) -> None:
        self.key = key
        self.changed = threading.Condition()
        self.reset()

    def reset(self) -> None:
        with self.changed:
            self.requests: list[dict[str, t.Any]] = []
            self.events: list[list[t.Any]] = []
            self.steps = 0
            self.answer: dict[str, t.Any] | None = None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: State

    def address_string(self) -> str:
        return "peer"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing: the record is what the tests read."""

    def reply(self, status: int, body: t.Any, headers: dict[str, str] | None = None) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in ({"Content-Type": "application/json"} | (headers or {})).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))


class Engine(Handler):
    def handle_any(self) -> None:
        body = self.body()
        with self.state.changed:
            self.state.requests.append(
                {"method": self.command, "path": self.path, "headers": list(self.headers.items()), "size": len(body)}
            )
        if self.headers.get("Authorization") != f"Bearer {self.state.key}":
            # As vLLM says it.
            self.reply(401, {"error": "Unauthorized"})
        elif (answer := self.state.answer) is not None:
            self.reply(answer["status"], answer.get("body", {}), answer.get("headers"))
        elif body.startswith(b"{") and (wanted := json.loads(body)).get("stream"):
            self.stream(wanted["pieces"])
        else:
            self.reply(200, {"method": self.command, "path": self.path, "size": len(body)})

    def do_GET(self) -> None:
        self.handle_any()

    def do_POST(self) -> None:
        self.handle_any()

    def do_DELETE(self) -> None:
        self.handle_any()

    def stream(self, pieces: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(pieces):
            data = f"data: {json.dumps({'piece': number})}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.happened("sent", number)
            if not self.next_step(number):
                self.close_connection = True
                return
        self.wfile.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        self.happened("done", pieces)

    def next_step(self, number: int) -> bool:
        """Wait for the test; false when the client went away meanwhile."""
        while True:
            with self.state.changed:
                if self.state.steps > 0:
                    self.state.steps -= 1
                    return True
                self.state.changed.wait(0.05)
            # No request follows before the answer's end, so what can be read is the end of the connection.
            if select.select([self.connection], [], [], 0)[0] and not self.connection.recv(1, socket.MSG_PEEK):
                self.happened("client gone", number)
                return False

    def happened(self, *event: t.Any) -> None:
        with self.state.changed:
            self.state.events.append(list(event))


class Control(Handler):
    def do_GET(self) -> None:
        self.reply(200, {"/requests": self.state.requests, "/events": self.state.events}[self.path])

    def do_POST(self) -> None:
        body = self.body()
        if self.path == "/reset":
            self.state.reset()
        elif self.path == "/answer":
            self.state.answer = json.loads(body)
        elif self.path == "/step":
            with self.state.changed:
                self.state.steps += 1
                self.state.changed.notify_all()
        self.reply(200, {})


class Tcp(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


class Unix(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


def main() -> None:
    address, control_port, key_file = sys.argv[1:]
    state = State(Path(key_file).read_text().strip())
    engine = type("BoundEngine", (Engine,), {"state": state})
    control = type("BoundControl", (Control,), {"state": state})
    server: socketserver.BaseServer
    if address.startswith("unix:"):
        path = Path(address.removeprefix("unix:"))
        path.unlink(missing_ok=True)
        server = Unix(str(path), engine)
        path.chmod(0o666)
    else:
        server = Tcp(("127.0.0.1", int(address)), engine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Tcp(("0.0.0.0", int(control_port)), control).serve_forever()


if __name__ == "__main__":
    main()
