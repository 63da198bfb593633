# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The role's preflight, run by ansible-playbook, on hosts whose GPUs are simulated: engine, driver and GPUs."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
import yaml

from ansible_collections.baremetal.inference.plugins.module_utils._compatibility import judge

ROOT = Path(__file__).resolve().parents[4]
VERSIONS = yaml.safe_load((ROOT / "roles/vllm_service/vars/main/versions.yml").read_text())["__vllm_service_versions"]
# What the host is asked besides, and needs for it.
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="the role looks at models as the user that serves them: run as root"),
    pytest.mark.skipif(shutil.which("ss") is None, reason="the role asks ss what listens: install iproute2"),
]
ASKS = {"VLLM_ENABLE_CUDA_COMPATIBILITY": "1"}
PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact:
        # Whether this very machine is fit to serve is not the question here.
        service_mgr: systemd
        python: {executable: "{{ ansible_playbook_python }}"}
        cacheable: true
    - block:
        - ansible.builtin.include_role:
            name: baremetal.inference.vllm_service
            tasks_from: preflight
      rescue:
        - ansible.builtin.set_fact:
            refused: "{{ ansible_failed_result.msg }}"
    - ansible.builtin.copy:
        content: >-
          {{ {'refused': refused | default(''), 'task': ansible_failed_task.name | default(''),
              'warnings': (__vllm_service_compatibility | default({'warnings': []})).warnings} | to_json }}
        dest: "{{ answer }}"
        mode: "0600"
"""


def judged(driver: str | None) -> dict[str, t.Any]:
    """What is right today, of a host with one A100 as the simulator has it."""
    card = {
        "name": "NVIDIA A100-PCIE-40GB",
        "pci_bus_id": "0000:07:00.0",
        "architecture": "ampere",
        "compute_capability": "8.0",
        "brand": "nvidia",
    }
    host = {"driver": driver, "gpus": [] if driver is None else [card]}
    return judge(VERSIONS["cuda"], host, datetime.datetime.now(tz=datetime.UTC).strftime("%Y-%m-%d"))


class Answer(t.TypedDict):
    refused: str
    task: str
    warnings: list[str]


Ask = t.Callable[[dict[str, dict[str, t.Any]]], tuple[dict[str, Answer], str]]


@pytest.fixture
def ask(nvml_sim: t.Any, tmp_path: Path) -> Ask:
    """Runs the preflight on hosts: a driver's version, or None for no driver, and variables of the role for each."""
    model = tmp_path / "model"
    model.mkdir()
    for name, text in (("config.json", "{}"), ("tokenizer.json", "{}"), ("chat_template.jinja", "x")):
        (model / name).write_text(text)
    (model / "model.safetensors").write_text("0123456789")

    def run(wanted: dict[str, dict[str, t.Any]]) -> tuple[dict[str, Answer], str]:
        hosts = {}
        for name, variables in wanted.items():
            driver = variables.pop("driver")
            state = tmp_path / f"state-{name}"
            nvml_sim.create("a100-pcie-40gb-x4", state)
            settings = {} if driver is None else nvml_sim.environment(state)
            if driver is not None:
                (state / "system" / "driver_version").write_text(f"{driver}\n")
            python = tmp_path / f"python-{name}"
            exports = "".join(f'export {key}="{value}"\n' for key, value in settings.items())
            python.write_text(f'#!/bin/sh\n{exports}exec "{sys.executable}" "$@"\n')
            python.chmod(0o755)
            hosts[name] = {
                "ansible_connection": "local",
                "ansible_python_interpreter": str(python),
                "answer": str(tmp_path / f"answer-{name}.json"),
                "vllm_service_user": "root",
                "vllm_service_instances": [{"name": "main", "model": str(model), "gpus": [0]}],
                **variables,
            }
        (tmp_path / "inventory.json").write_text(json.dumps({"all": {"hosts": hosts}}))
        (tmp_path / "play.yml").write_text(PLAY)
        done = subprocess.run(
            [
                Path(sys.executable).parent / "ansible-playbook",
                "-i",
                tmp_path / "inventory.json",
                tmp_path / "play.yml",
            ],
            env={
                **os.environ,
                "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
                "ANSIBLE_NOCOLOR": "1",
                "ANSIBLE_FORCE_COLOR": "0",
                "LC_ALL": "C.UTF-8",
            },
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return {name: json.loads(Path(host["answer"]).read_text()) for name, host in hosts.items()}, done.stdout

    return run


def test_a_pair_that_cannot_work_stops_the_role_and_names_those_that_can(ask: Ask) -> None:
    answers, output = ask(
        {
            "fits": {"driver": "580.159.04"},
            "processors": {"driver": "535.288.01", "vllm_service_build": "cpu"},
            "old": {"driver": "535.288.01"},
            "old-and-more": {
                "driver": "535.288.01",
                "vllm_service_instances": [{"name": "a", "model": "/nowhere", "gpus": [0]}],
            },
            "none": {"driver": None},
            "no-library": {"driver": "575.57.08", "vllm_service_env": {**ASKS, "HF_HUB_TOKEN": "hush"}},
        }
    )
    fits, old, none = (judged(driver) for driver in ("580.159.04", "535.288.01", None))
    assert (answers["fits"]["refused"], answers["fits"]["warnings"]) == ("", fits["warnings"])
    # The build for processors runs beside any driver.
    assert answers["processors"] == {"refused": "", "task": "", "warnings": []}
    assert "with the package cuda-compat-13-0 installed" in old["message"]
    assert answers["old"]["refused"] == old["message"]
    # All problems are told at once.
    assert answers["old-and-more"]["refused"].startswith(
        old["message"] + "\nvllm_service_instances[a].model is '/nowhere'"
    )
    # Warnings are shown.
    assert answers["old"]["warnings"] == old["warnings"]
    assert "reached the end of its life in June 2026" in output
    branches = " or ".join(pair["text"] for pair in none["pairs"])
    assert f"needs the NVIDIA driver, branch 580 or newer: install it, {branches}, or" in answers["none"]["refused"]
    assert "there is no folder /usr/local/cuda-13.0/compat" in answers["no-library"]["refused"]
    assert "hush" not in output


def test_an_older_driver_with_the_compatibility_package_is_let_through(ask: Ask, tmp_path: Path) -> None:
    folder = tmp_path / "compat"
    folder.mkdir()
    environment = {**ASKS, "VLLM_CUDA_COMPATIBILITY_PATH": str(folder)}
    (tmp_path / "link").symlink_to(folder)
    linked = {**ASKS, "VLLM_CUDA_COMPATIBILITY_PATH": str(tmp_path / "link")}
    answers, _output = ask(
        {
            "helped": {"driver": "575.57.08", "vllm_service_env": environment},
            "linked": {"driver": "575.57.08", "vllm_service_env": linked},
            "never-helped": {"driver": "560.35.05", "vllm_service_env": environment},
        }
    )
    for name in ("helped", "linked"):
        assert answers[name]["refused"] == ""
        assert "runs on it with the libraries of cuda-compat-13-0" in answers[name]["warnings"][0]
    assert (
        "cuda-compat-13-0 is known to work with branches 535, 550, 565, 570, 575 only"
        in answers["never-helped"]["refused"]
    )
