# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A client that sends exactly what it is told to: no path is tidied up, no header is added or folded."""

from __future__ import annotations

import dataclasses
import http.client
import json
import socket
import ssl
import typing as t


@dataclasses.dataclass(frozen=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> t.Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The error's code; fails unless the body is an error of the OpenAI API."""
        assert self.headers.get_content_type() == "application/json", self
        error = self.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}, error
        assert error["message"], error
        return str(error["code"])


@dataclasses.dataclass(frozen=True)
class Gateway:
    """Where the gateway is, what to trust, and a key that it takes."""

    address: str
    port: int
    server_name: str
    ca: str
    key: str

    def tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        # What Python 3.13 does by default, and so what newer clients demand of the certificate.
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    def connect(self) -> ssl.SSLSocket:
        plain = socket.create_connection((self.address, self.port), timeout=30)
        return self.tls().wrap_socket(plain, server_hostname=self.server_name)

    def connection(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self.server_name, timeout=30)
        connection.sock = self.connect()
        return connection

    def bearer(self, key: str | None = None) -> tuple[str, str]:
        return ("Authorization", f"Bearer {self.key if key is None else key}")

    def send(
        self,
        method: str,
        path: str,
        *headers: tuple[str, str],
        body: bytes | None = None,
        connection: http.client.HTTPConnection | None = None,
    ) -> http.client.HTTPResponse:
        connection = connection or self.connection()
        connection.putrequest(method, path, skip_accept_encoding=True)
        for name, value in headers:
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        return connection.getresponse()

    def ask(self, method: str, path: str, *headers: tuple[str, str], body: bytes | None = None) -> Answer:
        response = self.send(method, path, *headers, body=body)
        return Answer(response.status, response.headers, response.read())

    def raw(self, request: bytes) -> Answer:
        with self.connect() as connection:
            connection.sendall(request)
            response = http.client.HTTPResponse(connection)
            response.begin()
            return Answer(response.status, response.headers, response.read())
