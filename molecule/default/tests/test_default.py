# Copyright: (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stands on the host after site.yml ran: asked of the host itself, and through its gateway."""

from __future__ import annotations

import json
from typing import Any

import pytest

UNIT = "vllm@main.service"
MODEL = "tiny-qwen3.5"
KEY = "molecule-default-scenario-0123456789"


def ask(host: Any, path: str, *, key: str | None = KEY, body: dict[str, Any] | None = None) -> tuple[int, str]:
    """Ask the gateway from the host itself, certificate checked; return the status and the body."""
    command = (
        "curl --silent --show-error --cacert /etc/nginx/inference/self_signed.crt --write-out '\\n%{http_code}'"
        f" --resolve molecule-default-1:443:127.0.0.1 https://molecule-default-1{path}"
    )
    if key is not None:
        command += f" -H 'Authorization: Bearer {key}'"
    if body is not None:
        command += f" -H 'Content-Type: application/json' --data '{json.dumps(body)}'"
    text, status = host.check_output(command).rsplit("\n", 1)
    return int(status), text


def chat(**more: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 8,
        "temperature": 0,
        **more,
    }


def test_unit_runs_and_starts_at_boot(host: Any) -> None:
    unit = host.service(UNIT)
    assert unit.is_running, host.run(f"journalctl --no-pager -n 50 -u {UNIT}").stdout
    assert unit.is_enabled


def test_engine_listens_on_loopback_only(host: Any) -> None:
    listening = host.check_output("ss -Hltn 'sport = :8000'").split("\n")
    assert [line.split()[3] for line in listening] == ["127.0.0.1:8000"]


def test_engine_runs_as_its_own_user_and_without_its_key_in_sight(host: Any) -> None:
    pid = host.check_output(f"systemctl show {UNIT} --property MainPID --value")
    assert host.check_output(f"stat -c %U /proc/{pid}") == "vllm"
    engine_key = host.file("/etc/vllm/main.key").content_string.strip()
    assert len(engine_key) >= 40
    # Processes come and go while they are listed; that the engine's own line is there shows that the listing is good.
    command_lines = host.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout
    assert "vllm serve --config /etc/vllm/main.yaml" in command_lines
    journal = host.check_output("journalctl --no-pager")
    assert UNIT in journal
    for secret in (engine_key, KEY):
        assert secret not in command_lines
        assert secret not in journal


@pytest.mark.parametrize(
    ("path", "mode", "user", "group"),
    [
        ("/etc/vllm", 0o750, "root", "vllm"),
        ("/etc/vllm/main.yaml", 0o640, "root", "vllm"),
        ("/etc/vllm/main.env", 0o600, "root", "root"),
        ("/etc/vllm/main.key", 0o600, "root", "root"),
        ("/etc/nginx/inference/private", 0o700, "root", "root"),
    ],
)
def test_modes(host: Any, path: str, mode: int, user: str, group: str) -> None:
    file = host.file(path)
    assert (oct(file.mode), file.user, file.group) == (oct(mode), user, group)


def test_engine_sees_the_chosen_gpus_by_uuid(host: Any) -> None:
    uuids = [host.file(f"/var/lib/nvml-sim/gpu{index}/uuid").content_string.strip() for index in (0, 1)]
    pid = host.check_output(f"systemctl show {UNIT} --property MainPID --value")
    environment = host.check_output(f"tr '\\0' '\\n' </proc/{pid}/environ").split("\n")
    assert f"CUDA_VISIBLE_DEVICES={','.join(uuids)}" in environment


def test_no_plain_key_on_the_host(host: Any) -> None:
    found = host.run(
        f"grep --recursive --files-with-matches --fixed-strings {KEY} /etc /var/log /run /root /home /opt/vllm"
    )
    assert found.stdout == ""


def test_chat_with_the_key(host: Any) -> None:
    status, text = ask(host, "/v1/chat/completions", body=chat())
    assert status == 200, text
    answer = json.loads(text)
    assert answer["model"] == MODEL
    assert answer["usage"]["completion_tokens"] == 8
    assert answer["choices"][0]["message"]["content"]


def test_streamed_chat(host: Any) -> None:
    status, text = ask(host, "/v1/chat/completions", body=chat(stream=True))
    assert status == 200, text
    events = [line.removeprefix("data: ") for line in text.split("\n") if line]
    assert events[-1] == "[DONE]"
    pieces = [json.loads(event)["choices"][0]["delta"].get("content") for event in events[:-1]]
    assert len([piece for piece in pieces if piece]) > 1


@pytest.mark.parametrize("key", [None, "", "wrong-key-wrong-key-wrong-key-000", KEY + "x"])
def test_refused_without_the_right_key(host: Any, key: str | None) -> None:
    status, text = ask(host, "/v1/chat/completions", key=key, body=chat())
    assert status == 401
    assert set(json.loads(text)["error"]) == {"message", "type", "param", "code"}


# Each of these answers without any key when the engine itself is asked.
@pytest.mark.parametrize(
    "path",
    ["/metrics", "/invocations", "/docs", "/openapi.json", "/load", "/version", "/tokenize", "/v1/load_lora_adapter"],
)
def test_routes_that_stay_inside(host: Any, path: str) -> None:
    status, text = ask(host, path)
    assert status == 404
    assert json.loads(text)["error"]["code"] == "route_not_found"


def test_models_lists_the_served_name(host: Any) -> None:
    status, text = ask(host, "/v1/models")
    assert status == 200, text
    assert [model["id"] for model in json.loads(text)["data"]] == [MODEL]


def test_crashed_engine_comes_back_and_nothing_of_the_old_one_stays(host: Any) -> None:
    """The engine core is killed: vLLM then ends with exit code 0, which a unit with Restart=on-failure would leave."""
    before = host.check_output(f"systemctl show {UNIT} --property MainPID --value")
    host.check_output("pkill --signal KILL --full VLLM::EngineCore")
    wait = (
        "for i in $(seq 240); do"
        f' now=$(systemctl show {UNIT} --property MainPID --value); [ "$now" != {before} ] && [ "$now" != 0 ] &&'
        " curl --silent --fail --output /dev/null http://127.0.0.1:8000/health && exit 0; sleep 1; done; exit 1"
    )
    assert host.run(wait).rc == 0, host.run(f"journalctl --no-pager -n 100 -u {UNIT}").stdout
    assert host.check_output("pgrep --count --full VLLM::EngineCore") == "1"
    status, text = ask(host, "/v1/chat/completions", body=chat())
    assert status == 200, text
