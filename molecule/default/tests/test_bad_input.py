# Copyright: (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wrong input to site.yml: it stops before anything is changed, and the message names variable, value and remedy."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
INSTANCE: dict[str, Any] = {
    "name": "main",
    "model": "/srv/models/tiny-qwen3.5",
    "served_model_name": "tiny-qwen3.5",
    "port": 8000,
    "gpus": [0, 1],
    "args": {"max_model_len": 2048, "enforce_eager": True, "shutdown_timeout": 30},
    "env": {"VLLM_CPU_KVCACHE_SPACE": "1"},
}


def instance(**changes: Any) -> dict[str, Any]:
    return {"vllm_service_instances": [{**copy.deepcopy(INSTANCE), **changes}]}


def site(variables: dict[str, Any]) -> tuple[int, str, int]:
    """Run site.yml with `variables` over those of the scenario; return the exit code, the output, the changes."""
    done = subprocess.run(
        [
            Path(sys.executable).parent / "ansible-playbook",
            "site.yml",
            "-i",
            os.environ["MOLECULE_INVENTORY_FILE"],
            "-e",
            json.dumps(variables),
        ],
        check=False,
        cwd=ROOT,
        # Molecule colours what its children print.
        env={
            **{name: value for name, value in os.environ.items() if name != "ANSIBLE_FORCE_COLOR"},
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
            "LC_ALL": "C.UTF-8",
        },
        capture_output=True,
        text=True,
    )
    output = done.stdout + done.stderr
    changed = re.findall(r"^\S+\s+: ok=\d+\s+changed=(\d+)", output, re.MULTILINE)
    assert changed, output
    # YAML folds long texts; what is looked for may stand over two lines.
    return done.returncode, re.sub(r"\s+", " ", output), sum(map(int, changed))


def expect_refusal(variables: dict[str, Any], *words: str) -> None:
    code, output, changed = site(variables)
    assert code != 0, output
    assert changed == 0, output
    for word in words:
        assert word in output, f"{word!r} is not in: {output}"


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        pytest.param(instance(gpus=[9]), ["gpus", "9"], id="GPU index that is not there"),
        pytest.param(instance(gpus=["GPU-not-a-uuid"]), ["gpus", "GPU-not-a-uuid"], id="GPU UUID that is not there"),
        pytest.param(
            instance(args={"max_modle_len": 2048}), ["args", "max_modle_len", "max_model_len"], id="unknown engine flag"
        ),
        pytest.param(
            instance(args={"max_model_len": "long"}), ["max_model_len", "long"], id="engine flag of the wrong type"
        ),
        pytest.param(
            instance(model="/srv/models/nothing"), ["model", "/srv/models/nothing"], id="no such model folder"
        ),
        pytest.param({"vllm_service_args": "--enforce-eager"}, ["vllm_service_args"], id="arguments as a text"),
        pytest.param({"vllm_service_build": "rocm"}, ["vllm_service_build", "rocm", "cuda"], id="unknown build"),
        pytest.param({"nginx_auth_keys": []}, ["nginx_auth_keys"], id="no key at all"),
        pytest.param(
            {"nginx_auth_keys": [{"name": "a", "key_file": "/nowhere/a.key"}]},
            ["nginx_auth_keys", "/nowhere/a.key"],
            id="missing key file",
        ),
    ],
)
def test_refused(variables: dict[str, Any], words: list[str]) -> None:
    expect_refusal(variables, *words)


@contextmanager
def listener(host: Any, port: int) -> Iterator[None]:
    host.check_output(f"systemd-run --unit=squatter python3 -m http.server --bind 127.0.0.1 {port}")
    try:
        host.check_output(
            f"for i in $(seq 50); do ss -Hltn 'sport = :{port}' | grep -q . && exit 0; sleep 0.1; done; exit 1"
        )
        yield
    finally:
        host.check_output("systemctl stop squatter")


def test_port_in_use(host: Any) -> None:
    with listener(host, 8123):
        expect_refusal(instance(port=8123), "8123", "port", "python3")


def test_model_folder_that_the_engine_may_not_read(host: Any) -> None:
    host.check_output("cp -a /srv/models/tiny-qwen3.5 /root/private-model && chmod 0700 /root/private-model")
    try:
        expect_refusal(instance(model="/root/private-model"), "/root/private-model", "vllm")
    finally:
        host.check_output("rm -rf /root/private-model")


def test_host_without_a_driver(host: Any) -> None:
    host.check_output("mv /var/lib/nvml-sim /var/lib/nvml-sim.away")
    try:
        expect_refusal({}, "gpus", "driver")
    finally:
        host.check_output("mv /var/lib/nvml-sim.away /var/lib/nvml-sim")


def test_python_that_is_too_old(host: Any) -> None:
    """A stand-in for an old interpreter: the hosts have none, and what is tested is what the role makes of it."""
    host.check_output(
        "printf '#!/bin/sh\\necho 3.9 True /opt/python3.9\\n' >/opt/python3.9 && chmod 0755 /opt/python3.9"
    )
    # A new place for the engine: where it is installed already, its Python is not asked.
    expect_refusal(
        {"vllm_service_python": "/opt/python3.9", "vllm_service_root": "/opt/elsewhere"},
        "vllm_service_python",
        "/opt/python3.9",
        "3.11",
    )
    host.check_output("rm /opt/python3.9")


def test_right_input_still_changes_nothing() -> None:
    """After all refusals the host is as it was."""
    code, output, changed = site({})
    assert code == 0, output
    assert changed == 0, output
