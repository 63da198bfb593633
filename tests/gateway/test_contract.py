# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What any gateway of ours must do, whatever engine is behind it."""

from __future__ import annotations

import socket
import ssl

import pytest

from tests.gateway.gateway_client import Gateway

ALLOWED = {
    "/v1/chat/completions": "POST",
    "/v1/completions": "POST",
    "/v1/responses": "POST",
    "/v1/embeddings": "POST",
    "/v1/messages": "POST",
    "/v1/messages/count_tokens": "POST",
    "/v1/models": "GET",
}
# The other routes of vLLM 0.32: those it has by default, with runtime LoRA, and in development mode.
CLOSED = """
/detokenize /docs /docs/oauth2-redirect /generative_scoring /inference/v1/abort_requests /inference/v1/generate
/invocations /is_scaling_elastic_ep /kv_event_sources /load /metrics /openapi.json /ping /redoc /scale_elastic_ep
/tokenize /v1/chat/completions/batch /v1/chat/completions/derender /v1/chat/completions/render
/v1/completions/derender /v1/completions/render /v1/messages/render /v1/responses/render /v1/responses/resp_1
/v1/responses/resp_1/cancel /v1/systemone /version /adapters /adapters/x /v1/load_lora_adapter
/v1/unload_lora_adapter /abort_requests /collective_rpc /finish_weight_update /get_world_size
/init_weight_transfer_engine /is_paused /is_sleeping /pause /release_kv_cache_memory /reset_encoder_cache
/reset_mm_cache /reset_prefix_cache /resume /server_info /shutdown_weight_transfer_engine /sleep
/start_draft_weight_update /start_weight_update /update_weight_version /update_weights /wake_up /weight_checker
/weight_info
""".split()
TRICKS = [
    "/",
    "/v1",
    "/v1/",
    "//v1/models",
    "/v1//models",
    "/v1/models/",
    "/v1/./models",
    "/v1/../v1/models",
    "/v1/models/..",
    "/v1/../invocations",
    "/v1/..;/invocations",
    "/v1/models;x=1",
    "/v1/%6dodels",
    "/v1%2fmodels",
    "/v1/%2e%2e/invocations",
    "/v1/%2e/models",
    "/%2e%2e/v1/models",
    "/v1/models%00",
    "/v1/models%20",
    "/v1/models%3f",
    "/V1/models",
    "/v1/Models",
    "/.inference/error/bad_request",
    "/.inference/odd",
    "/health/",
    "/health/detail",
]


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param([], id="no key"),
        pytest.param([("Authorization", "Bearer wrong-key-wrong-key-wrong")], id="wrong key"),
        pytest.param([("Authorization", "Bearer")], id="scheme alone"),
        pytest.param([("Authorization", "Bearer ")], id="empty key"),
        pytest.param([("Authorization", "Basic KEY")], id="basic"),
        pytest.param([("Authorization", "Basic dGVhbTpLRVk=")], id="basic in base64"),
        pytest.param([("Authorization", "KEY")], id="no scheme"),
        pytest.param([("Authorization", "Token KEY")], id="other scheme"),
        pytest.param([("Authorization", "BearerKEY")], id="no space"),
        pytest.param([("Authorization", "Bearer KEY x")], id="more behind it"),
        pytest.param([("Authorization", "Bearer KEYx")], id="a character more"),
        pytest.param([("Authorization", 'Bearer "KEY"')], id="in quotes"),
        pytest.param([("Authorization", "Bearer wrong, Bearer KEY")], id="two in one header"),
        pytest.param([("Authorization", "Bearer " + "x" * 4000)], id="very long"),
        pytest.param([("Authorization", "Bearer wrong"), ("X-Api-Key", "KEY")], id="the other header is right"),
        pytest.param([("X-Api-Key", "wrong-key-wrong-key-wrong")], id="x-api-key wrong"),
        pytest.param([("X-Api-Key", "KEY"), ("X-Api-Key", "KEY")], id="x-api-key twice"),
        pytest.param([("Api-Key", "KEY")], id="api-key"),
        pytest.param([("Proxy-Authorization", "Bearer KEY")], id="proxy-authorization"),
        pytest.param([("Cookie", "Authorization=Bearer KEY")], id="cookie"),
    ],
)
def test_refuses_all_but_a_right_key(gateway: Gateway, headers: list[tuple[str, str]]) -> None:
    sent = [(name, value.replace("KEY", gateway.key)) for name, value in headers]
    answer = gateway.ask("GET", "/v1/models", *sent)
    assert answer.status == 401
    assert answer.code == "invalid_api_key"
    assert answer.headers["WWW-Authenticate"] == 'Bearer realm="inference"'
    assert answer.headers["X-Request-Id"]


@pytest.mark.parametrize("path", ["/v1/models?api_key=KEY", "/v1/models?key=KEY&access_token=KEY"])
def test_a_key_in_the_address_is_no_key(gateway: Gateway, path: str) -> None:
    assert gateway.ask("GET", path.replace("KEY", "not-a-real-key-but-long-enough")).code == "invalid_api_key"


def test_two_authorization_headers_are_no_request(gateway: Gateway) -> None:
    answer = gateway.ask("GET", "/v1/models", gateway.bearer("wrong-key-wrong-key-wrong"), gateway.bearer())
    # nginx refuses a second one itself; should it ever not, one of them being right must not be enough.
    assert answer.status in (400, 401)
    assert answer.code in ("bad_request", "invalid_api_key")


@pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "BEARER ", "Bearer   "])
def test_takes_a_right_key(gateway: Gateway, scheme: str) -> None:
    assert gateway.ask("GET", "/v1/models", ("Authorization", scheme + gateway.key)).status == 200


def test_takes_a_right_key_as_anthropic_clients_send_it(gateway: Gateway) -> None:
    assert gateway.ask("GET", "/v1/models", ("x-api-key", gateway.key)).status == 200


@pytest.mark.parametrize("path", ALLOWED)
def test_allowed_routes_want_a_key_first(gateway: Gateway, path: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        assert gateway.ask(method, path, body=b"{}").code == "invalid_api_key"


@pytest.mark.parametrize(("path", "method"), ALLOWED.items())
def test_other_methods_are_refused(gateway: Gateway, path: str, method: str) -> None:
    for other in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} - {method}:
        answer = gateway.ask(other, path, gateway.bearer())
        assert (other, answer.status, answer.code) == (other, 405, "method_not_allowed")
        assert answer.headers["Allow"] == method


def test_trace_is_refused(gateway: Gateway) -> None:
    assert gateway.ask("TRACE", "/v1/models", gateway.bearer()).code == "method_not_allowed"


@pytest.mark.parametrize("path", CLOSED)
def test_the_engines_other_routes_are_closed(gateway: Gateway, path: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        for headers in ([], [gateway.bearer()]):
            answer = gateway.ask(method, path, *headers, body=b"{}")
            assert (answer.status, answer.code) == (404, "route_not_found")


@pytest.mark.parametrize("path", TRICKS)
def test_oddly_spelt_paths_are_closed(gateway: Gateway, path: str) -> None:
    for method in ("GET", "POST"):
        answer = gateway.ask(method, path, gateway.bearer(), body=b"{}")
        # nginx itself refuses a zero byte, and what leads above the root.
        assert (answer.status, answer.code) in {(404, "route_not_found"), (400, "bad_request")}


def test_headers_that_rename_the_path_do_nothing(gateway: Gateway) -> None:
    for name in ("X-Original-URL", "X-Rewrite-URL", "X-Accel-Redirect", "X-Forwarded-Prefix"):
        assert gateway.ask("GET", "/metrics", gateway.bearer(), (name, "/v1/models")).code == "route_not_found"
        assert gateway.ask("GET", "/v1/models", (name, "/health")).code == "invalid_api_key"


def test_a_whole_address_as_path_is_judged_by_its_path(gateway: Gateway) -> None:
    start = f"https://{gateway.server_name}"
    assert gateway.ask("GET", f"{start}/v1/models").code == "invalid_api_key"
    assert gateway.ask("GET", f"{start}/metrics", gateway.bearer()).code == "route_not_found"
    assert gateway.ask("GET", f"{start}//v1/models", gateway.bearer()).code == "route_not_found"
    assert gateway.ask("GET", f"{start}/v1/models", gateway.bearer()).status == 200


def test_health_needs_no_key_and_tells_nothing(gateway: Gateway) -> None:
    answer = gateway.ask("GET", "/health")
    assert (answer.status, answer.json()) == (200, {"status": "ok"})
    # Only the host itself is told which generation of the configuration is served.
    assert "X-Inference-Generation" not in answer.headers


def test_too_large_a_body(gateway: Gateway, max_body: int) -> None:
    # The announcement is enough. Nobody may send such a body first and be told then.
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {gateway.key}\r\n"
    answer = gateway.raw(f"{head}Expect: 100-continue\r\nContent-Length: {max_body + 1}\r\n\r\n".encode())
    assert (answer.status, answer.code) == (413, "request_too_large")
    answer = gateway.raw(f"{head}Transfer-Encoding: chunked\r\n\r\n{max_body + 1:x}\r\n[1, 2, 3".encode())
    assert (answer.status, answer.code) == (413, "request_too_large")


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        (b"GARBAGE\r\n\r\n", 400, "bad_request"),
        (b"GET /v1/models HTTP/1.1\r\n\r\n", 400, "bad_request"),
        (b"GET /v1/models HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400, "bad_request"),
        (b"GET /v1/models HTTP/9.1\r\nHost: x\r\n\r\n", 505, "http_version_not_supported"),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414, "uri_too_long"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 9000 + b"\r\n\r\n", 431, "headers_too_large"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: nonsense\r\n\r\n", 501, "not_implemented"),
    ],
    ids=["garbage", "no host", "two hosts", "version", "long path", "long header", "encoding"],
)
def test_what_is_no_request(gateway: Gateway, request_: bytes, status: int, code: str) -> None:
    answer = gateway.raw(request_)
    assert (answer.status, answer.code) == (status, code)


@pytest.mark.parametrize(
    "framing",
    [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 4\r\nContent-Length: 5\r\n",
        "Content-Length: 4, 5\r\n",
        "Content-Length: -1\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
    ],
)
def test_a_request_of_two_lengths_is_refused(gateway: Gateway, framing: str) -> None:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {gateway.key}\r\n"
    answer = gateway.raw(f"{head}{framing}\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert (answer.status, answer.code) in {(400, "bad_request"), (501, "not_implemented")}


def test_plain_http_is_told_so(gateway: Gateway) -> None:
    with socket.create_connection((gateway.address, gateway.port), timeout=30) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        text = b"".join(iter(lambda: connection.recv(65536), b""))
    assert text.startswith(b"HTTP/1.1 400 ")
    assert b'"code": "https_required"' in text


def test_old_tls_is_refused_and_http2_is_offered(gateway: Gateway) -> None:
    context = gateway.tls()
    context.set_alpn_protocols(["h2", "http/1.1"])
    with (
        socket.create_connection((gateway.address, gateway.port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname=gateway.server_name) as connection,
    ):
        assert connection.version() == "TLSv1.3"
        assert connection.selected_alpn_protocol() == "h2"
    context = gateway.tls()
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    # Level 0 lets this side speak the old versions, so that a refusal is the gateway's.
    context.set_ciphers("ALL:@SECLEVEL=0")
    with (
        socket.create_connection((gateway.address, gateway.port), timeout=30) as plain,
        pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"),
    ):
        context.wrap_socket(plain, server_hostname=gateway.server_name)


def test_version_of_nginx_is_not_told(gateway: Gateway) -> None:
    assert gateway.ask("GET", "/").headers["Server"] == "nginx"


def test_keeps_a_harmless_request_id_and_replaces_others(gateway: Gateway) -> None:
    def id_for(*headers: tuple[str, str]) -> str:
        ids = gateway.ask("GET", "/v1/models", gateway.bearer(), *headers).headers.get_all("X-Request-Id")
        assert ids is not None
        assert len(ids) == 1
        return ids[0]

    assert id_for(("X-Request-Id", "order-17.b_2")) == "order-17.b_2"
    assert len(id_for()) == 32
    for bad in ('x"y', "a b", "x" * 129, "{}"):
        assert len(id_for(("X-Request-Id", bad))) == 32
