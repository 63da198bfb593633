# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The probe against real sockets: a small HTTP server whose answers each test arranges, over TCP and a unix socket."""

from __future__ import annotations

import http.server
import json
import socket
import socketserver
import subprocess
import threading
import time
import typing as t
from pathlib import Path

import pytest

from ansible_collections.baremetal.inference.plugins.module_utils._openai_probe import (
    ProbeFailure,
    first_true_error,
    unit_death,
)
from ansible_collections.baremetal.inference.plugins.modules import openai_probe

LOGS = Path(__file__).parent / "engine_logs"
KEY = "the-right-key"


def chat(text: str, **more: t.Any) -> dict[str, t.Any]:
    message = {"role": "assistant", "content": text, **more}
    return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"completion_tokens": 3}}


class Endpoint:
    """What the server answers. Each list is used up from the front; its last entry stays."""

    def __init__(self) -> None:
        self.health: list[int] = [200]
        self.models: list[t.Any] = [["tiny"]]
        self.answers: list[t.Any] = [chat("Hello!")]
        self.requests: list[tuple[str, dict[str, t.Any]]] = []

    @staticmethod
    def take(answers: list[t.Any]) -> t.Any:
        return answers.pop(0) if len(answers) > 1 else answers[0]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    endpoint: Endpoint

    def log_message(self, format: str, *args: t.Any) -> None:  # noqa: A002 - the name that the base class has
        pass

    def address_string(self) -> str:
        return "client"

    def say(self, status: int, body: t.Any) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path == "/health":
            self.say(self.endpoint.take(self.endpoint.health), "")
        elif self.headers.get("Authorization") != f"Bearer {KEY}":
            self.say(401, {"error": {"message": "Invalid key"}})
        else:
            models = self.endpoint.take(self.endpoint.models)
            known = {"data": [{"id": name} for name in models]} if isinstance(models, list) else models
            self.say(200, known)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.endpoint.requests.append((self.path, body))
        answer = self.endpoint.take(self.endpoint.answers)
        if isinstance(answer, tuple):
            self.say(*answer)
        elif isinstance(answer, list):
            self.stream(answer)
        else:
            self.say(200, answer)

    def stream(self, parts: list[t.Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for part in parts:
            if part == "break":
                self.close_connection = True
                return
            if isinstance(part, float):
                time.sleep(part)
                continue
            data = f"data: {part if isinstance(part, str) else json.dumps(part)}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")


class Tcp(socketserver.ThreadingTCPServer):
    daemon_threads = True
    # Connections that are kept alive need not end first.
    block_on_close = False
    allow_reuse_address = True


class Unix(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture
def url(endpoint: Endpoint) -> t.Iterator[str]:
    with Tcp(("127.0.0.1", 0), type("Bound", (Handler,), {"endpoint": endpoint})) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def run_command(command: list[str]) -> tuple[int, str, str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def probe(url: str, *, check_mode: bool = False, **changes: t.Any) -> dict[str, t.Any]:
    params: dict[str, t.Any] = {
        "url": url,
        "uds": None,
        "api_key": KEY,
        "model": "tiny",
        "endpoint": "chat",
        "prompt": "Hello?",
        "max_tokens": 8,
        "body": {},
        "stream": False,
        "expect": None,
        "health_path": "/health",
        "unit": None,
        "timeout": 5,
        "interval": 0.02,
        "request_timeout": 2,
        "validate_certs": True,
        "ca_path": None,
    }
    return openai_probe.run({**params, **changes}, check_mode=check_mode, run_command=run_command)


def failure(url: str, **changes: t.Any) -> ProbeFailure:
    with pytest.raises(ProbeFailure) as caught:
        probe(url, **changes)
    return caught.value


def test_an_answer_is_proof(url: str, endpoint: Endpoint) -> None:
    result = probe(url)
    assert result["answered"]
    assert result["text"] == "Hello!"
    assert result["models"] == ["tiny"]
    assert result["usage"] == {"completion_tokens": 3}
    assert result["finish_reason"] == "stop"
    path, body = endpoint.requests[0]
    assert path == "/v1/chat/completions"
    assert body == {
        "model": "tiny",
        "max_tokens": 8,
        "temperature": 0,
        "messages": [{"role": "user", "content": "Hello?"}],
    }


def test_a_url_may_end_in_v1(url: str) -> None:
    assert probe(url + "/v1/")["answered"]


def test_without_a_model_the_first_one_is_asked(url: str, endpoint: Endpoint) -> None:
    endpoint.models = [["first", "second"]]
    assert probe(url, model=None)["model"] == "first"
    assert endpoint.requests[0][1]["model"] == "first"


def test_it_waits_until_the_server_is_ready(url: str, endpoint: Endpoint) -> None:
    endpoint.health = [503, 503, 200]
    endpoint.answers = [(500, {"error": {"message": "warming up"}}), chat("Hello!")]
    result = probe(url)
    assert result["attempts"] == 4
    assert result["phases"]["health_after_s"] <= result["phases"]["answer_after_s"]


def test_it_waits_for_a_server_that_is_not_there_yet(endpoint: Endpoint) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]

    def serve() -> None:
        time.sleep(0.3)
        with Tcp(("127.0.0.1", port), type("Bound", (Handler,), {"endpoint": endpoint})) as server:
            server.timeout = 3
            for _request in range(1):
                server.handle_request()
            time.sleep(0.5)

    thread = threading.Thread(target=serve)
    thread.start()
    assert probe(f"http://127.0.0.1:{port}")["attempts"] > 1
    thread.join()


def test_a_server_that_never_comes_is_a_timeout() -> None:
    error = failure("http://127.0.0.1:9", timeout=0.2)
    assert error.reason == "timeout"
    assert "Connection refused" in error.msg
    assert "0.2 s" in error.msg
    assert error.details["phases"]["health_after_s"] is None


def test_a_server_that_stays_unhealthy_is_a_timeout(url: str, endpoint: Endpoint) -> None:
    endpoint.health = [503]
    error = failure(url, timeout=0.2)
    assert error.reason == "timeout"
    assert "/health: 503" in error.msg


def test_a_silent_server_is_a_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        error = failure(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.3, request_timeout=0.1)
    assert error.reason == "timeout"
    assert "timed out" in error.msg


@pytest.mark.parametrize(
    ("changes", "reason", "said"),
    [
        ({"api_key": "wrong"}, "unauthorized", "the key is not accepted (Invalid key)"),
        ({"api_key": None}, "unauthorized", "api_key"),
        ({"model": "other"}, "model_not_served", "'other' is not served here. The endpoint serves: tiny."),
        ({"expect": "Goodbye"}, "unexpected_answer", "'Hello!', in which expect, 'Goodbye', is not found"),
        ({"url": "http://exa mple:x"}, "bad_url", "is no URL"),
    ],
)
def test_what_waiting_cannot_heal_fails_at_once(url: str, changes: dict[str, t.Any], reason: str, said: str) -> None:
    begin = time.monotonic()
    error = failure(**{"url": url, "timeout": 60, **changes})
    assert error.reason == reason
    assert said in error.msg
    assert time.monotonic() - begin < 2


@pytest.mark.parametrize(
    ("answer", "reason", "said"),
    [
        (
            (400, {"error": {"message": "default chat template is no longer allowed"}}),
            "refused",
            "chat template is no longer",
        ),
        ((404, {"error": {"message": "no such route"}}), "not_found", "404 (no such route)"),
        (chat(""), "empty_answer", "with no text (finish_reason stop"),
        (chat("  \n"), "empty_answer", "with no text"),
        ("<html>", "broken_answer", "no JSON"),
        ([{"choices": []}], "broken_answer", "no JSON"),
    ],
)
def test_wrong_answers_fail(url: str, endpoint: Endpoint, answer: t.Any, reason: str, said: str) -> None:
    endpoint.answers = [answer]
    error = failure(url, timeout=60)
    assert error.reason == reason
    assert said in error.msg
    assert error.details["models"] == ["tiny"]


def test_a_server_of_another_kind_is_recognised(url: str, endpoint: Endpoint) -> None:
    endpoint.models = [{"hello": "world"}]
    assert failure(url).reason == "not_openai"


def test_thinking_counts_as_an_answer(url: str, endpoint: Endpoint) -> None:
    endpoint.answers = [chat("", reasoning="Let me think")]
    assert probe(url)["text"] == "Let me think"


def test_completions(url: str, endpoint: Endpoint) -> None:
    endpoint.answers = [{"choices": [{"text": " world", "finish_reason": "length"}]}]
    assert probe(url, endpoint="completions", body={"min_tokens": 1})["text"] == " world"
    path, body = endpoint.requests[0]
    assert (path, body["prompt"], body["min_tokens"]) == ("/v1/completions", "Hello?", 1)


def test_embeddings(url: str, endpoint: Endpoint) -> None:
    endpoint.answers = [{"data": [{"embedding": [0.1, 0.2]}]}]
    assert probe(url, endpoint="embeddings")["dimensions"] == 2
    endpoint.answers = [{"data": []}]
    assert failure(url, endpoint="embeddings").reason == "empty_answer"


def delta(text: str) -> dict[str, t.Any]:
    return {"choices": [{"delta": {"content": text}}]}


USAGE = {"choices": [], "usage": {"completion_tokens": 2}}


def test_a_stream_is_measured(url: str, endpoint: Endpoint) -> None:
    endpoint.answers = [[delta(""), 0.2, delta("Hel"), 0.2, delta("lo"), USAGE, "[DONE]"]]
    result = probe(url, stream=True)
    assert (result["text"], result["chunks"], result["usage"]) == ("Hello", 2, {"completion_tokens": 2})
    # The first token is timed when it comes, not when the stream ends.
    assert 0.15 < result["phases"]["first_token_s"] < result["phases"]["answer_s"] - 0.15
    assert endpoint.requests[0][1]["stream"] is True


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([delta("Hel"), "break"], "the stream broke after 1 chunks"),
        ([delta("Hel")], "the stream ended after 1 chunks without [DONE]"),
        ([delta("Hel"), {"error": {"message": "EngineCore encountered an issue"}}, "[DONE]"], "ended with an error"),
        (["no json"], "the stream broke after 0 chunks"),
    ],
)
def test_a_stream_that_breaks_is_no_proof(url: str, endpoint: Endpoint, parts: list[t.Any], said: str) -> None:
    endpoint.answers = [parts]
    error = failure(url, stream=True, timeout=60)
    assert error.reason == "broken_answer"
    assert said in error.msg
    assert len(endpoint.requests) == 3


def test_a_stream_that_breaks_once_is_tried_again(url: str, endpoint: Endpoint) -> None:
    endpoint.answers = [[delta("Hel"), "break"], [delta("Hello"), "[DONE]"]]
    assert probe(url, stream=True)["text"] == "Hello"


def test_a_unix_socket(tmp_path: Path, endpoint: Endpoint) -> None:
    path = str(tmp_path / "http.sock")
    assert "No such file" in failure("http://localhost", uds=path, timeout=0.1).msg
    with Unix(path, type("Bound", (Handler,), {"endpoint": endpoint})) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        endpoint.answers = [[delta("Hello"), "[DONE]"]]
        assert probe("http://localhost", uds=path, stream=True)["text"] == "Hello"
        server.shutdown()


def test_a_proxy_of_the_environment_is_not_used(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert probe(url)["answered"]


def test_a_gateway_without_health_route(url: str, endpoint: Endpoint) -> None:
    endpoint.health = [404]
    assert probe(url, health_path="")["answered"]
    assert failure(url).reason == "not_found"


def test_check_mode_tries_once(url: str, endpoint: Endpoint) -> None:
    endpoint.health = [503]
    result = probe(url, check_mode=True)
    assert (result["answered"], result["attempts"]) == (False, 0)
    assert "/health: 503" in result["msg"]
    endpoint.health = [200]
    assert probe(url, check_mode=True)["answered"]


# A stand-in for systemd: what systemctl shows is in a file that the test changes.
SYSTEMCTL = """#!/bin/sh
cat "$(dirname "$0")/state"
"""
JOURNALCTL = """#!/bin/sh
echo "$@" >"$(dirname "$0")/asked"
cat "$(dirname "$0")/journal"
"""
ALIVE = "LoadState=loaded\nActiveState=active\nSubState=running\nResult=success\nNRestarts=0\nInvocationID=abc\n"
DEAD = (
    "LoadState=loaded\nActiveState=activating\nSubState=auto-restart\nResult=exit-code\nNRestarts=1\nExecMainStatus=1\n"
)


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("systemctl", SYSTEMCTL), ("journalctl", JOURNALCTL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "state").write_text(ALIVE)
    (tmp_path / "journal").write_text((LOGS / "max_model_len.txt").read_text())
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def test_a_unit_that_dies_ends_the_wait_with_its_own_error(url: str, endpoint: Endpoint, systemd: Path) -> None:
    endpoint.health = [503]
    threading.Timer(0.3, (systemd / "state").write_text, [DEAD]).start()
    begin = time.monotonic()
    error = failure(url, unit="vllm@main.service", timeout=60)
    assert time.monotonic() - begin < 5
    assert error.reason == "unit_died"
    assert "User-specified max_model_len (8192) is greater than the derived max_model_len" in error.msg
    assert "journalctl -u vllm@main.service" in error.msg
    assert "exit status 1" in error.msg
    assert error.details["unit_log"]
    # Of the start that the probe saw, and not of the one after it.
    assert "_SYSTEMD_INVOCATION_ID=abc" in (systemd / "asked").read_text()


def test_a_unit_that_lives_is_waited_for(url: str, endpoint: Endpoint, systemd: Path) -> None:
    endpoint.health = [503, 503, 200]
    assert probe(url, unit="vllm@main.service")["attempts"] == 3


def test_a_unit_that_is_not_there_is_told(url: str, systemd: Path) -> None:
    (systemd / "state").write_text("LoadState=not-found\nActiveState=inactive\n")
    error = failure(url, unit="vllm@nope.service")
    assert (error.reason, "'vllm@nope.service'" in error.msg) == ("unit_not_found", True)


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({"ActiveState": "active", "SubState": "running", "NRestarts": "2"}, None),
        ({"ActiveState": "activating", "SubState": "start-pre", "NRestarts": "2"}, None),
        (
            {"ActiveState": "failed", "Result": "start-limit-hit", "NRestarts": "2"},
            "has failed (result start-limit-hit",
        ),
        ({"ActiveState": "inactive", "Result": "success", "NRestarts": "0"}, "is inactive"),
        ({"ActiveState": "deactivating", "Result": "success", "NRestarts": "2"}, "is deactivating"),
        ({"ActiveState": "active", "SubState": "running", "NRestarts": "3"}, "is being started again"),
        ({"ActiveState": "activating", "SubState": "auto-restart", "NRestarts": "2"}, "is being started again"),
        ({"ActiveState": "failed", "Result": "oom-kill", "ExecMainStatus": "9"}, "result oom-kill, exit status 9"),
    ],
)
def test_how_units_die(now: dict[str, str], said: str | None) -> None:
    found = unit_death({"ActiveState": "active", "NRestarts": "2"}, now)
    assert (found is None) if said is None else (found is not None and said in found)


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("max_model_len", "User-specified max_model_len (8192) is greater than the derived max_model_len"),
        ("heads_not_divisible", "Total number of attention heads (4) must be divisible by tensor parallel size (3)."),
        (
            "kv_cache_too_large",
            "ValueError: Available memory on node 0 (10.54/12.34 GiB) on kv cache allocation is less than",
        ),
        (
            "weights_truncated",
            "SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered",
        ),
        ("engine_core_killed", "engine core exited unexpectedly"),
        ("unknown_option", "vllm: error: unrecognized arguments: --no-such-key"),
        ("port_in_use", "OSError: [Errno 98] Address already in use"),
    ],
)
def test_the_true_error_is_found_in_what_the_engine_really_said(log: str, cause: str) -> None:
    lines = (LOGS / f"{log}.txt").read_text().splitlines()
    found = first_true_error(lines)
    assert found is not None
    assert cause in found
    assert "For further information" not in found


def test_a_healthy_log_has_no_error() -> None:
    assert first_true_error(["INFO:     Application startup complete.", ""]) is None


def test_a_worker_counts_more_than_what_died_of_it() -> None:
    lines = [
        "(Worker_TP1 pid=3) ERROR 11-30 04:54:52 [worker.py:1] torch.OutOfMemoryError: CUDA out of memory.",
        "(EngineCore_DP0 pid=2) ERROR 11-30 04:54:53 [core.py:1] RuntimeError: Worker failed",
        "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.",
        "(APIServer pid=1) INFO 11-30 04:54:54 [launcher.py:1] an error: not of interest",
    ]
    assert first_true_error(lines) == "torch.OutOfMemoryError: CUDA out of memory."
