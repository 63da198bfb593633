# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""Asks an OpenAI-compatible server whether it truly answers, and systemd whether its unit still lives."""

from __future__ import annotations

import http.client
import json
import re
import socket
import time
import typing as t

try:
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3.connection import HTTPConnection
    from urllib3.connectionpool import HTTPConnectionPool
except ImportError:
    HAS_REQUESTS = False
    HTTPAdapter = object  # type: ignore[assignment,misc]
    HTTPConnection = object  # type: ignore[assignment,misc]
    HTTPConnectionPool = object  # type: ignore[assignment,misc]
else:
    HAS_REQUESTS = True

# A stream that breaks this often in a row is not a server that is still starting.
MAX_BROKEN_ANSWERS = 3


class ProbeFailure(Exception):
    """The endpoint does not answer and will not; ``reason`` is for programs."""

    def __init__(self, msg: str, reason: str, **details: t.Any) -> None:
        super().__init__(msg)
        self.msg = msg
        self.reason = reason
        self.details = details


class NotYet(Exception):
    """The endpoint does not answer now; a moment later it may."""


class BrokenAnswer(NotYet):
    """An answer began and did not end as it should."""


class UnixConnection(HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str, **kwargs: t.Any) -> None:
        super().__init__("localhost", **kwargs)
        self.path = path

    def _new_conn(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        if isinstance(self.timeout, (int, float)):
            connection.settimeout(self.timeout)
        try:
            connection.connect(self.path)
        except OSError:
            connection.close()
            raise
        return connection


class UnixPool(HTTPConnectionPool):
    """Connections to one unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self.path = path

    def _new_conn(self) -> UnixConnection:
        return UnixConnection(self.path)


class UnixAdapter(HTTPAdapter):
    """Sends all requests of a session to one unix socket, whatever host their URL names."""

    def __init__(self, path: str) -> None:
        self.pool = UnixPool(path)
        super().__init__()

    def get_connection_with_tls_context(self, *args: t.Any, **kwargs: t.Any) -> UnixPool:
        return self.pool

    # What requests called it before 2.32.
    def get_connection(self, *args: t.Any, **kwargs: t.Any) -> UnixPool:
        return self.pool

    def request_url(self, request: t.Any, proxies: t.Any) -> str:
        return str(request.path_url)

    def close(self) -> None:
        self.pool.close()


class Unit:
    """A systemd unit that the endpoint depends on."""

    def __init__(self, name: str, run_command: t.Callable[[list[str]], tuple[int, str, str]]) -> None:
        self.name = name
        self.run_command = run_command
        self.first = self._read()
        if self.first["LoadState"] == "not-found":
            raise ProbeFailure(f"unit: '{name}' is no unit of this host. Correct the name.", "unit_not_found")

    def _read(self) -> dict[str, str]:
        wanted = "LoadState,ActiveState,SubState,Result,NRestarts,ExecMainCode,ExecMainStatus,InvocationID"
        code, shown, said = self.run_command(["systemctl", "show", "--property=" + wanted, "--", self.name])
        if code != 0:
            raise ProbeFailure(
                f"unit: systemctl cannot show '{self.name}': {said.strip() or shown.strip()}", "unit_unreadable"
            )
        return dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)

    def check(self) -> None:
        """Raises ProbeFailure, with the unit's own words, when it died since this object was made."""
        now = self._read()
        died = unit_death(self.first, now)
        if died:
            lines = self.journal()
            cause = first_true_error(lines)
            said = f" It said: {cause}" if cause else " It said nothing that looks like an error."
            raise ProbeFailure(
                f"Unit {self.name} {died}.{said} The whole story: journalctl -u {self.name} -n 200",
                "unit_died",
                unit_state=now,
                unit_error=cause,
                unit_log=lines[-40:],
            )

    def journal(self) -> list[str]:
        """What the unit said since the start that this probe saw; all of it, where systemd knows no start."""
        command = ["journalctl", "--no-pager", "--output=cat", "--lines=2000", f"--unit={self.name}"]
        invocation = self.first.get("InvocationID")
        if invocation:
            command.append(f"_SYSTEMD_INVOCATION_ID={invocation}")
        return self.run_command(command)[1].splitlines()


def unit_death(first: dict[str, str], now: dict[str, str]) -> str | None:
    """How a unit died between two looks; None while it lives. A start that waits for its restart has died as well."""
    result = now.get("Result", "")
    how = f" (result {result}, exit status {now.get('ExecMainStatus', '?')})" if result not in ("", "success") else ""
    if now["ActiveState"] == "failed":
        return "has failed" + how
    if now["ActiveState"] in ("inactive", "deactivating"):
        return f"is {now['ActiveState']}" + how
    if now.get("SubState") == "auto-restart" or int(now.get("NRestarts") or 0) > int(first.get("NRestarts") or 0):
        return "ended and is being started again" + how
    return None


# vLLM's processes put their name before each line; a traceback's last line names the exception.
PREFIX = re.compile(
    r"^\((?P<process>[A-Za-z]+[^)]*?)(?: pid=\d+)?\) *"
    r"(?:(?P<level>ERROR|CRITICAL|WARNING|INFO|DEBUG) [0-9-]+ [0-9:]+ (?:\[[^\]]*\] ?)?)?"
)
EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit)\b(?::|$)")
ARGUMENT = re.compile(r"^vllm( serve)?: error: ")
OTHER = re.compile(r"\b(error|failed|cannot|fatal|killed|permission denied|no such file)\b", re.IGNORECASE)
# They say that something else went wrong before.
CONSEQUENCES = (
    "Engine core initialization failed",
    "EngineCore encountered an issue",
    "WorkerProc initialization failed",
    "output_handler failed",
)
# What is left when a process was killed and could say nothing itself.
VANISHED = re.compile(r"\b(exited|died|terminated) unexpectedly\b")


def first_true_error(lines: t.Sequence[str]) -> str | None:
    """The line that says why the engine died. It is rarely the last: each process dies of the one below it.

    So an exception of a worker counts more than one of the engine's core, and that more than one of the server; of the
    same process, the last counts, since a chained traceback ends with what was raised last.
    """
    ranked: dict[int, str] = {}
    argument = other = None
    for number, line in enumerate(lines):
        process, level, text = _split(line)
        if VANISHED.search(text):
            other = text
        elif level in ("WARNING", "INFO", "DEBUG") or any(consequence in text for consequence in CONSEQUENCES):
            pass
        elif ARGUMENT.match(text):
            argument = text
        elif EXCEPTION.match(text):
            rank = 0 if process.startswith("Worker") else 1 if process.startswith("EngineCore") else 2
            ranked[rank] = " ".join([text, *_continued(lines[number + 1 :])])
        elif OTHER.search(text):
            other = text
    if argument:
        return argument
    if ranked:
        return ranked[min(ranked)][:1000]
    return other


def _split(line: str) -> tuple[str, str, str]:
    """Which process says a line, at which level, and what."""
    match = PREFIX.match(line)
    return (match["process"], match["level"] or "", line[match.end() :].rstrip()) if match else ("", "", line.rstrip())


def _continued(lines: t.Sequence[str]) -> t.Iterator[str]:
    """The indented lines after an exception's first one: pydantic tells there what is wrong."""
    for line in lines:
        text = _split(line)[2]
        if not text.startswith("  ") or text.strip().startswith("For further information"):
            return
        yield text.strip()


class Client:
    """Requests to one endpoint."""

    def __init__(
        self,
        url: str,
        *,
        uds: str | None = None,
        api_key: str | None = None,
        verify: bool | str = True,
        request_timeout: float = 60,
    ) -> None:
        self.url = url.rstrip("/")
        if self.url.endswith("/v1"):
            self.url = self.url[:-3]
        self.request_timeout = request_timeout
        self.session = requests.Session()
        # A proxy of the environment is not on the way to the endpoint, and .netrc must not replace the key.
        self.session.trust_env = False
        self.session.verify = verify
        if uds:
            self.session.mount("http://", UnixAdapter(uds))
        if api_key:
            self.session.headers["Authorization"] = f"Bearer {api_key}"

    def send(self, method: str, path: str, **kwargs: t.Any) -> t.Any:
        try:
            return self.session.request(
                method, self.url + path, timeout=(5, self.request_timeout), allow_redirects=False, **kwargs
            )
        except requests.exceptions.SSLError as error:
            raise ProbeFailure(
                f"{self.url}: its certificate is not trusted: {error}. Give the authority that signed it in ca_path.",
                "tls",
            ) from error
        except requests.exceptions.InvalidURL as error:
            raise ProbeFailure(f"url: '{self.url}' is no URL: {error}", "bad_url") from error
        except (requests.exceptions.RequestException, OSError) as error:
            raise NotYet(f"{method} {path}: {plain(error)}") from error


def plain(error: BaseException) -> str:
    """The innermost reason of a chain of connection errors."""
    seen: BaseException = error
    while seen.__cause__ or seen.__context__:
        seen = t.cast(BaseException, seen.__cause__ or seen.__context__)
    return str(seen) or type(seen).__name__


def message_of(response: t.Any) -> str:
    """What an error answer says: OpenAI's format, vLLM's own, or the text."""
    try:
        body = response.json()
    except ValueError:
        return " ".join(response.text.split())[:300] or "no text"
    error = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return str(error)[:500]


def judge_status(response: t.Any, path: str) -> None:
    """Tell a refusal that waiting cannot heal from one that it may."""
    status, said = response.status_code, message_of(response) if response.status_code >= 300 else ""
    if status < 300:
        return
    if status in (401, 403):
        raise ProbeFailure(
            f"{path}: {status}, the key is not accepted ({said}). Give a key that the endpoint knows in api_key.",
            "unauthorized",
        )
    if status == 404:
        raise ProbeFailure(f"{path}: 404 ({said}). See whether url, and model, are right.", "not_found")
    if status in (408, 425, 429) or status >= 500:
        raise NotYet(f"{path}: {status} ({said})")
    raise ProbeFailure(f"{path}: {status} ({said})", "refused")


class Probe:
    """From nothing to a proven answer; ``phases`` fills as it goes."""

    def __init__(self, client: Client, params: dict[str, t.Any], unit: Unit | None = None) -> None:
        self.client = client
        self.params = params
        self.unit = unit
        self.started = time.monotonic()
        self.phases: dict[str, float | None] = {
            "health_after_s": None,
            "models_after_s": None,
            "answer_after_s": None,
            "first_token_s": None,
            "answer_s": None,
        }
        self.models: list[str] = []
        self.attempts = 0

    def run(self) -> dict[str, t.Any]:
        deadline = self.started + self.params["timeout"]
        broken = 0
        while True:
            self.attempts += 1
            try:
                return self.once()
            except NotYet as error:
                last = str(error)
                broken = broken + 1 if isinstance(error, BrokenAnswer) else 0
            if self.unit:
                self.unit.check()
            if broken >= MAX_BROKEN_ANSWERS:
                raise ProbeFailure(
                    f"{self.client.url} began {broken} answers and finished none. The last one: {last}", "broken_answer"
                )
            if time.monotonic() + self.params["interval"] > deadline:
                raise ProbeFailure(
                    f"{self.client.url} gave no answer within timeout, {self.params['timeout']} s, in {self.attempts} tries."
                    f" The last one: {last}. Look at the service, or give it more time in timeout.",
                    "timeout",
                    last_error=last,
                )
            time.sleep(self.params["interval"])

    def once(self) -> dict[str, t.Any]:
        """One try; raises NotYet where a later one may do better."""
        if self.params["health_path"]:
            judge_status(self.client.send("GET", self.params["health_path"]), self.params["health_path"])
        self._reached("health_after_s")
        self._see_models()
        self._reached("models_after_s")
        begin = time.monotonic()
        answer = getattr(self, "_ask_" + self.params["endpoint"])(begin)
        self.phases["answer_s"] = round(time.monotonic() - begin, 3)
        self._judge_answer(answer)
        self._reached("answer_after_s")
        return dict(answer, **self.so_far())

    def so_far(self) -> dict[str, t.Any]:
        return {"phases": self.phases, "models": self.models, "attempts": self.attempts}

    def _reached(self, phase: str) -> None:
        if self.phases[phase] is None:
            self.phases[phase] = round(time.monotonic() - self.started, 1)

    def _see_models(self) -> None:
        response = self.client.send("GET", "/v1/models")
        judge_status(response, "/v1/models")
        try:
            self.models = [str(model["id"]) for model in response.json()["data"]]
        except (ValueError, KeyError, TypeError) as error:
            raise ProbeFailure(
                "/v1/models: 200, but its text is no list of models. See whether url leads to an OpenAI-compatible server.",
                "not_openai",
            ) from error
        if not self.params["model"]:
            if not self.models:
                raise NotYet("/v1/models: the list is empty")
            self.params["model"] = self.models[0]
        if self.params["model"] not in self.models:
            raise ProbeFailure(
                f"model: '{self.params['model']}' is not served here."
                f" The endpoint serves: {', '.join(self.models) or 'nothing'}.",
                "model_not_served",
                models=self.models,
            )

    def _body(self, **kwargs: t.Any) -> dict[str, t.Any]:
        return dict({"model": self.params["model"]}, **kwargs, **self.params["body"])

    def _ask_chat(self, begin: float) -> dict[str, t.Any]:
        return self._generate(
            "/v1/chat/completions", begin, messages=[{"role": "user", "content": self.params["prompt"]}]
        )

    def _ask_completions(self, begin: float) -> dict[str, t.Any]:
        return self._generate("/v1/completions", begin, prompt=self.params["prompt"])

    def _ask_embeddings(self, begin: float) -> dict[str, t.Any]:
        path = "/v1/embeddings"
        response = self.client.send("POST", path, json=self._body(input=self.params["prompt"]))
        judge_status(response, path)
        body = self._json(response, path)
        vector = (body.get("data") or [{}])[0].get("embedding")
        return {"text": "", "dimensions": len(vector or []), "usage": body.get("usage"), "finish_reason": None}

    def _generate(self, path: str, begin: float, **kwargs: t.Any) -> dict[str, t.Any]:
        body = self._body(max_tokens=self.params["max_tokens"], temperature=0, **kwargs)
        if self.params["stream"]:
            return self._stream(path, begin, dict(body, stream=True, stream_options={"include_usage": True}))
        response = self.client.send("POST", path, json=body)
        judge_status(response, path)
        answer = self._json(response, path)
        choice = (answer.get("choices") or [{}])[0]
        return {
            "text": text_of(choice, "message"),
            "finish_reason": choice.get("finish_reason"),
            "usage": answer.get("usage"),
        }

    @staticmethod
    def _json(response: t.Any, path: str) -> dict[str, t.Any]:
        try:
            body = response.json()
        except ValueError as error:
            raise BrokenAnswer(f"{path}: 200, but its text is no JSON") from error
        if not isinstance(body, dict):
            raise BrokenAnswer(f"{path}: 200, but its text is no object")
        return body

    def _stream(self, path: str, begin: float, body: dict[str, t.Any]) -> dict[str, t.Any]:
        response = self.client.send("POST", path, json=body, stream=True)
        texts: list[str] = []
        finish_reason = usage = None
        ended = False
        with response:
            judge_status(response, path)
            try:
                for event in events(response):
                    if event == "[DONE]":
                        ended = True
                        break
                    chunk = json.loads(event)
                    if "error" in chunk:
                        raise BrokenAnswer(f"{path}: the stream ended with an error: {chunk['error']}")
                    usage = chunk.get("usage") or usage
                    for choice in chunk.get("choices") or []:
                        text = text_of(choice, "delta")
                        if text:
                            if not texts:
                                self.phases["first_token_s"] = round(time.monotonic() - begin, 3)
                            texts.append(text)
                        finish_reason = choice.get("finish_reason") or finish_reason
            except (requests.exceptions.RequestException, http.client.HTTPException, OSError, ValueError) as error:
                raise BrokenAnswer(f"{path}: the stream broke after {len(texts)} chunks: {plain(error)}") from error
        if not ended:
            raise BrokenAnswer(f"{path}: the stream ended after {len(texts)} chunks without [DONE]")
        return {"text": "".join(texts), "finish_reason": finish_reason, "usage": usage, "chunks": len(texts)}

    def _judge_answer(self, answer: dict[str, t.Any]) -> None:
        if self.params["endpoint"] == "embeddings":
            if not answer["dimensions"]:
                raise ProbeFailure(f"{self.client.url} answered with an empty vector.", "empty_answer", **answer)
            return
        if not answer["text"].strip():
            raise ProbeFailure(
                f"{self.client.url} answered '{self.params['prompt']}' with no text (finish_reason"
                f" {answer['finish_reason']}, usage {answer['usage']}). Raise max_tokens; if that does not help, the model or its"
                " chat template is broken.",
                "empty_answer",
                **answer,
            )
        expect = self.params["expect"]
        if expect and not re.search(expect, answer["text"]):
            raise ProbeFailure(
                f"{self.client.url} answered '{self.params['prompt']}' with '{answer['text']}', in which expect, '{expect}', is"
                " not found.",
                "unexpected_answer",
                **answer,
            )


def text_of(choice: dict[str, t.Any], part: str) -> str:
    """The text of a choice. What a model thinks counts too: with few tokens it may get no further."""
    message = choice.get(part)
    if message is None:
        return str(choice.get("text") or "")
    return "".join(str(message.get(key) or "") for key in ("reasoning", "reasoning_content", "content"))


def events(response: t.Any) -> t.Iterator[str]:
    """The data of each server-sent event, as soon as its line is there."""
    # The smallest chunk: a larger one would hold back the first tokens, and so their time.
    for line in response.iter_lines(chunk_size=1):
        if line.startswith(b"data:"):
            yield line[5:].strip().decode("utf-8")
