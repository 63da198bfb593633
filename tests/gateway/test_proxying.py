# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What reaches the engine and what comes back, seen from the engine: a simulator that records (upstream_sim.py)."""

from __future__ import annotations

import json
import socket

import pytest

from tests.gateway.gateway_client import Gateway
from tests.gateway.host import Engine, Host, start_engine, wait_until
from tests.gateway.test_contract import ALLOWED, CLOSED, TRICKS

STREAM = json.dumps({"stream": True, "pieces": 3}).encode()


def test_nothing_reaches_the_engine_without_a_key(gateway: Gateway, engine: Engine) -> None:
    for path in [*ALLOWED, *CLOSED, *TRICKS, "/health"]:
        for method in ("GET", "POST"):
            gateway.ask(method, path, body=b"{}")
            gateway.ask(method, path, ("Authorization", "Bearer wrong-key-wrong-key-wrong"), body=b"{}")
    assert engine.requests == []


def test_nothing_closed_reaches_the_engine_with_a_key(gateway: Gateway, engine: Engine) -> None:
    for path in [*CLOSED, *TRICKS, "/health"]:
        for method in ("GET", "POST"):
            gateway.ask(method, path, gateway.bearer(), body=b"{}")
    assert engine.requests == []


@pytest.mark.parametrize(("path", "method"), ALLOWED.items())
def test_allowed_routes_reach_the_engine(gateway: Gateway, engine: Engine, path: str, method: str) -> None:
    answer = gateway.ask(method, path, gateway.bearer(), body=b"{}" if method == "POST" else None)
    assert answer.status == 200
    assert [(seen["method"], seen["path"]) for seen in engine.requests] == [(method, path)]


def test_a_query_goes_along(gateway: Gateway, engine: Engine) -> None:
    gateway.ask("GET", "/v1/models?a=%2e%2e&b=/../x", gateway.bearer())
    assert [seen["path"] for seen in engine.requests] == ["/v1/models?a=%2e%2e&b=/../x"]


def test_the_engine_gets_its_own_key_and_not_the_clients(gateway: Gateway, engine: Engine, host: Host) -> None:
    for headers in (
        [gateway.bearer(), ("X-Api-Key", gateway.key), ("Proxy-Authorization", f"Bearer {gateway.key}")],
        [("X-Api-Key", gateway.key), ("Cookie", f"key={gateway.key}")],
    ):
        assert gateway.ask("GET", "/v1/models", *headers, ("anthropic-version", "2023-06-01")).status == 200
    for seen in engine.requests:
        received = {name.lower(): value for name, value in seen["headers"]}
        assert received["authorization"] == f"Bearer {host.engine_key}"
        assert not {"x-api-key", "proxy-authorization", "cookie"} & set(received)
        assert gateway.key not in json.dumps(seen)
        assert received["anthropic-version"] == "2023-06-01"


def test_each_kind_of_key_opens(host: Host, engine: Engine) -> None:
    for key in (host.key("team-a"), host.key("team-b"), host.plain_key):
        assert host.gateway(key).ask("GET", "/v1/models", host.gateway(key).bearer()).status == 200
    assert len(engine.requests) == 3


def test_request_id_reaches_the_engine_and_the_log(gateway: Gateway, engine: Engine, host: Host) -> None:
    gateway.ask("GET", "/v1/models", gateway.bearer(), ("X-Request-Id", "find-me-1"))
    assert dict(engine.requests[0]["headers"])["X-Request-Id"] == "find-me-1"
    line = json.loads(host.run("grep find-me-1 /var/log/nginx/inference_access.log"))
    assert line["client"] == "team-a"
    assert (line["method"], line["path"], line["status"]) == ("GET", "/v1/models", 200)


def test_streams_piece_by_piece(gateway: Gateway, engine: Engine) -> None:
    response = gateway.send("POST", "/v1/chat/completions", gateway.bearer(), body=STREAM)
    assert response.headers.get_content_type() == "text/event-stream"
    assert response.headers["Content-Encoding"] is None
    for number in range(3):
        # The engine sends the next piece only when asked to, so a piece that is held back never arrives here.
        assert response.readline() == b'data: {"piece": %d}\n' % number
        assert response.readline() == b"\n"
        assert engine.events == [["sent", seen] for seen in range(number + 1)]
        engine.step()
    assert response.read() == b"data: [DONE]\n\n"


def test_client_gone_ends_the_request_at_the_engine(gateway: Gateway, engine: Engine) -> None:
    connection = gateway.connection()
    response = gateway.send("POST", "/v1/chat/completions", gateway.bearer(), body=STREAM, connection=connection)
    assert response.readline() == b'data: {"piece": 0}\n'
    connection.sock.shutdown(socket.SHUT_RDWR)
    connection.close()
    engine.wait_for("client gone")
    assert ["sent", 1] not in engine.events


def test_a_large_body_arrives_whole_and_touches_no_disk(
    gateway: Gateway, engine: Engine, host: Host, max_body: int
) -> None:
    host.run("touch /run/before-the-body")
    answer = gateway.ask("POST", "/v1/chat/completions", gateway.bearer(), body=b" " * max_body)
    assert answer.json()["size"] == max_body
    assert engine.requests[0]["size"] == max_body
    # A file that was written and removed leaves a newer time on its folder.
    assert host.run("find /var/lib/nginx -newer /run/before-the-body") == ""


@pytest.mark.parametrize("status", [400, 404, 422, 429, 500, 503])
def test_the_engines_own_errors_pass_unchanged(gateway: Gateway, engine: Engine, status: int) -> None:
    body = {"error": {"message": f"the engine says {status}", "type": "X", "param": "model", "code": status}}
    engine.answer(status, body)
    answer = gateway.ask("POST", "/v1/chat/completions", gateway.bearer(), body=b"{}")
    assert (answer.status, answer.json()) == (status, body)


def test_an_engine_that_refuses_the_gateways_key_is_no_fault_of_the_client(gateway: Gateway, engine: Engine) -> None:
    engine.answer(401, {"error": "Unauthorized"})
    answer = gateway.ask("POST", "/v1/chat/completions", gateway.bearer(), body=b"{}")
    assert (answer.status, answer.code) == (502, "engine_key_refused")
    assert "WWW-Authenticate" not in answer.headers
    assert answer.headers["X-Request-Id"]


def test_the_engine_cannot_steer_nginx(gateway: Gateway, engine: Engine) -> None:
    engine.answer(200, {"mine": True}, **{"X-Accel-Redirect": "/health", "X-Request-Id": "engine", "Server": "engine"})
    answer = gateway.ask("GET", "/v1/models", gateway.bearer())
    assert answer.json() == {"mine": True}
    assert answer.headers.get_all("Server") == ["nginx"]
    assert answer.headers["X-Request-Id"] != "engine"


def test_an_engine_that_is_down(gateway: Gateway, host: Host, engine: Engine) -> None:
    host.run("systemctl stop upstream-sim.service")
    try:
        answer = gateway.ask("POST", "/v1/chat/completions", gateway.bearer(), body=b"{}")
        assert (answer.status, answer.code) == (502, "engine_unreachable")
        assert gateway.ask("GET", "/health").status == 200
        assert gateway.ask("GET", "/v1/models").status == 401
    finally:
        start_engine(host)
    # With one engine nginx does not set it aside: the first request after its return is served.
    assert gateway.ask("GET", "/v1/models", gateway.bearer()).status == 200


def test_an_engine_that_says_nothing(any_gateway: Gateway, any_host: Host, engine: Engine) -> None:
    any_host.role(nginx_auth_read_timeout="1s")
    response = any_gateway.send("POST", "/v1/chat/completions", any_gateway.bearer(), body=STREAM)
    assert response.readline() == b'data: {"piece": 0}\n'
    engine.wait_for("client gone")
    any_host.run("systemctl kill --signal=STOP upstream-sim.service")
    try:
        answer = any_gateway.ask("POST", "/v1/chat/completions", any_gateway.bearer(), body=b"{}")
        assert (answer.status, answer.code) == (504, "engine_timeout")
    finally:
        any_host.run("systemctl kill --signal=CONT upstream-sim.service")


def test_a_revoked_key_is_refused_while_its_stream_goes_on(host: Host, engine: Engine) -> None:
    gateway = host.gateway()
    response = gateway.send("POST", "/v1/chat/completions", gateway.bearer(), body=STREAM)
    assert response.readline() == b'data: {"piece": 0}\n'
    idle = gateway.connection()
    gateway.send("GET", "/v1/models", gateway.bearer(), connection=idle).read()

    new = host.new_key("team-a-new")
    run = host.role(
        nginx_auth_keys=[
            {"name": "team-a", "key_file": str(new)},
            {"name": "team-b", "key_file": str(host.keys["team-b"])},
        ]
    )
    assert run.changed > 0
    assert gateway.ask("GET", "/v1/models", gateway.bearer()).code == "invalid_api_key"
    assert gateway.ask("GET", "/v1/models", gateway.bearer(new.read_text().strip())).status == 200
    assert gateway.ask("GET", "/v1/models", gateway.bearer(host.key("team-b"))).status == 200
    # An old worker that kept this connection would still know the old key.
    assert idle.sock.recv(1) == b""
    for _number in range(3):
        engine.step()
    assert response.read().endswith(b"data: [DONE]\n\n")


def test_an_engine_behind_a_socket(any_host: Host, any_gateway: Gateway) -> None:
    start_engine(any_host, "unix:/run/engine.sock")
    try:
        any_host.role(
            nginx_auth_upstreams=[
                {"name": "main", "address": "unix:/run/engine.sock", "api_key_file": "/etc/engine.key"}
            ]
        )
        assert any_gateway.ask("GET", "/v1/models", any_gateway.bearer()).status == 200
    finally:
        start_engine(any_host)


def test_an_engine_without_a_key_sees_no_key(any_host: Host, any_gateway: Gateway, engine: Engine) -> None:
    any_host.role(nginx_auth_upstreams=[{"name": "main", "address": "127.0.0.1:8000"}])
    # The simulator wants a key: that it says 401 proves that none came.
    assert any_gateway.ask("GET", "/v1/models", any_gateway.bearer()).code == "engine_key_refused"
    assert "Authorization" not in dict(engine.requests[-1]["headers"])


def test_a_route_with_a_parameter(any_host: Host, any_gateway: Gateway, engine: Engine) -> None:
    path = "/v1/responses/{response_id}"
    any_host.role(nginx_auth_routes=[{"path": path, "methods": ["GET", "DELETE"]}])
    answer = any_gateway.ask("GET", "/v1/responses/resp_1-a", any_gateway.bearer())
    assert answer.json()["path"] == "/v1/responses/resp_1-a"
    assert any_gateway.ask("GET", "/v1/responses/resp_1").code == "invalid_api_key"
    assert any_gateway.ask("POST", "/v1/responses/resp_1", any_gateway.bearer()).headers["Allow"] == "GET, DELETE"
    for closed in ("/v1/responses/a/b", "/v1/responses/", "/v1/responses/..", "/v1/responses/a%2fb", "/v1/models"):
        assert any_gateway.ask("GET", closed, any_gateway.bearer()).code == "route_not_found"
    assert len(engine.requests) == 1


def test_requests_are_spread_and_a_dead_engine_is_left_out(
    any_host: Host, any_gateway: Gateway, engine: Engine
) -> None:
    any_host.role(
        nginx_auth_upstreams=[
            {"name": "main", "address": "127.0.0.1:8000", "api_key_file": "/etc/engine.key"},
            {"name": "dead", "address": "127.0.0.1:8009", "api_key_file": "/etc/engine.key"},
        ]
    )
    for _number in range(6):
        assert any_gateway.ask("POST", "/v1/chat/completions", any_gateway.bearer(), body=b"{}").status == 200
    wait_until(lambda: len(engine.requests) == 6, "the living engine got all")
