# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The role and its playbook, run by ansible-playbook, on hosts whose GPUs are simulated."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

from tests.unit.plugins.plugin_utils.page import Page, rows

ROOT = Path(__file__).resolve().parents[4]
# Nothing listens on the first port: the connection is refused at once.
GONE = {"ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_connection": "ssh"}


class Fleet:
    """Hosts on this machine, each with GPUs of its own."""

    def __init__(self, sim: t.Any, folder: Path) -> None:
        self.sim = sim
        self.folder = folder
        self.hosts: dict[str, dict[str, t.Any]] = {}
        self.reports = folder / "work" / "preflight-reports"
        self.reports.parent.mkdir()

    def add(self, name: str, profile: str = "h200-sxm-x2", **variables: t.Any) -> None:
        state = self.folder / f"state-{len(self.hosts)}"
        self.sim.create(profile, state)
        # What a host is, is known to its Python: the library and the state that it loads.
        settings = "".join(f'export {key}="{value}"\n' for key, value in self.sim.environment(state).items())
        python = self.folder / f"python-{len(self.hosts)}"
        python.write_text(f'#!/bin/sh\n{settings}exec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        self.hosts[name] = {
            "ansible_connection": "local",
            "ansible_python_interpreter": str(python),
            "sim_state": str(state),
            **variables,
        }

    def tool(self, command: str, name: str, *arguments: str) -> None:
        done = [str(self.sim.tool), command, self.hosts[name]["sim_state"], *arguments]
        subprocess.run(done, check=True, capture_output=True)

    def run(self, playbook: str | Path, *arguments: str, **variables: t.Any) -> subprocess.CompletedProcess[str]:
        inventory = self.folder / "inventory.json"
        groups = {"gpu_nodes": {"hosts": self.hosts}}
        inventory.write_text(json.dumps({"all": {"children": groups}}))
        variables = {"preflight_connect_timeout": 2, "gpu_preflight_kernel_log_days": 1, **variables}
        return subprocess.run(
            [
                Path(sys.executable).parent / "ansible-playbook",
                *("-i", inventory),
                *("-e", json.dumps(variables)),
                *arguments,
                playbook,
            ],
            cwd=self.reports.parent,
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

    def written(self) -> list[str]:
        return sorted(path.name for path in self.reports.iterdir())

    def index(self) -> dict[str, dict[str, t.Any]]:
        data = json.loads((self.reports / "preflight.json").read_text())
        return {host["host"]: host for host in data["hosts"]}


@pytest.fixture
def fleet(nvml_sim: t.Any, tmp_path: Path) -> Fleet:
    return Fleet(nvml_sim, tmp_path)


PLAYBOOK = ROOT / "playbooks" / "preflight.yml"


def role(folder: Path, text: str = "    - role: baremetal.inference.gpu_preflight\n") -> Path:
    path = folder / "play.yml"
    path.write_text(f"- hosts: gpu_nodes\n  gather_facts: false\n  roles:\n{text}")
    return path


def recap(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, int]]:
    lines = re.findall(r"^(\S+) +: (ok=.*)$", done.stdout, re.MULTILINE)
    return {host: {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", counts)} for host, counts in lines}


def test_every_host_is_reported_and_then_the_play_fails(fleet: Fleet) -> None:
    # Whether this very machine is fit to serve is not the question here.
    fleet.add("well-2", gpu_preflight_fail_on="never")
    fleet.add("hurt-1")
    fleet.tool("link", "hurt-1", "gpu1", "4", "down")
    fleet.hosts["gone-1"] = GONE

    done = fleet.run(PLAYBOOK)

    assert done.returncode == 2, done.stdout + done.stderr
    counts = recap(done)
    assert {host: count["failed"] for host, count in counts.items()} == {"well-2": 0, "hurt-1": 1, "gone-1": 1}
    assert {count["changed"] for count in counts.values()} == {0}
    assert fleet.written() == [
        "hurt-1.html",
        "hurt-1.json",
        "index.html",
        "preflight.json",
        "well-2.html",
        "well-2.json",
    ]

    index = fleet.index()
    assert {name: host["state"] for name, host in index.items()} == {
        "well-2": "examined", "hurt-1": "examined", "gone-1": "unreachable",
    }  # fmt: skip
    assert "Connection refused" in index["gone-1"]["problem"]
    assert "ansible -m ansible.builtin.ping gone-1" in index["gone-1"]["problem"]
    assert index["hurt-1"]["groups"]["nvlink"] == "fail"
    assert index["well-2"]["groups"]["nvlink"] == "pass"
    table = rows(Page((fleet.reports / "index.html").read_text()).section("hosts"))
    assert [row[0].split()[0] for row in table[1:3]] == ["gone-1", "hurt-1"]

    hurt = json.loads((fleet.reports / "hurt-1.json").read_text())
    assert hurt["host"] == "hurt-1"
    failed = [check for check in hurt["checks"] if check["verdict"] == "fail" and check["group"] == "nvlink"]
    page = Page((fleet.reports / "hurt-1.html").read_text())
    for check in failed:
        # The page, the summary and the error say what to do.
        assert " ".join(check["fix"].split()) in page.text
    assert failed
    assert "17 of 18 NVLinks up" in page.source
    error = done.stdout[done.stdout.index("TASK [baremetal.inference.gpu_preflight : Judge") :] + done.stderr
    assert "hurt-1: Not ready." in error
    assert failed[0]["check"] in error


def test_check_mode_reports_too_and_a_limit_leaves_the_others_out(fleet: Fleet) -> None:
    fleet.add("well-2", gpu_preflight_fail_on="never")
    fleet.hosts["gone-1"] = GONE
    done = fleet.run(PLAYBOOK, "--limit", "well-2", "--check", "--diff")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {host: count["changed"] for host, count in recap(done).items()} == {"well-2": 0}
    assert fleet.written() == ["index.html", "preflight.json", "well-2.html", "well-2.json"]
    assert list(fleet.index()) == ["well-2"]
    # A report is no diff.
    assert "<html" not in done.stdout


def test_a_fleet_that_is_all_gone_has_a_page_that_says_so(fleet: Fleet) -> None:
    """One of an earlier run, where all was well, must not be what stands there."""
    fleet.reports.mkdir()
    (fleet.reports / "index.html").write_text("All is well.")
    fleet.hosts["gone-1"] = GONE
    done = fleet.run(PLAYBOOK)
    assert done.returncode == 2
    assert "gone-1 cannot be reached" in done.stdout + done.stderr
    assert "1 of 1 host not ready" in Page((fleet.reports / "index.html").read_text()).text


def test_a_host_that_cannot_be_examined_is_told_with_the_reason(fleet: Fleet) -> None:
    fleet.add("odd-1", gpu_preflight_gpus=["GPU-00000000-0000-0000-0000-000000000000"])
    done = fleet.run(PLAYBOOK)
    assert done.returncode == 2
    told = fleet.index()["odd-1"]
    assert told["state"] == "failed"
    assert "GPU-00000000-0000-0000-0000-000000000000" in told["problem"]
    assert fleet.written() == ["index.html", "preflight.json"]


def test_the_role_alone_fails_with_what_to_do(fleet: Fleet, tmp_path: Path) -> None:
    fleet.add("hurt-1")
    fleet.tool("link", "hurt-1", "gpu0", "0", "down")
    done = fleet.run(role(tmp_path), gpu_preflight_report_formats=["json"], gpu_preflight_report_dir="other/place")
    assert done.returncode == 2, done.stdout + done.stderr
    folder = fleet.reports.parent / "other" / "place"
    assert [path.name for path in folder.iterdir()] == ["hurt-1.json"]
    checks = json.loads((folder / "hurt-1.json").read_text())["checks"]
    wanted = {check["check"] for check in checks if check["verdict"] == "fail"}
    assert wanted
    error = (done.stdout + done.stderr).split(
        "things are to be put right:" if len(wanted) > 1 else "to be put right:", 1
    )[1]
    assert [name for name in wanted if f"FAIL {name}:" not in error] == []
    assert recap(done)["hurt-1"]["changed"] == 0


def test_the_role_alone_never_fails_when_told_so(fleet: Fleet, tmp_path: Path) -> None:
    fleet.add("hurt-1")
    fleet.tool("link", "hurt-1", "gpu0", "0", "down")
    done = fleet.run(role(tmp_path), gpu_preflight_fail_on="never", gpu_preflight_report_formats=[])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hurt-1: Not ready" in done.stdout
    assert not fleet.reports.exists()


def test_wrong_variables_are_named_before_the_host_is_asked(fleet: Fleet, tmp_path: Path) -> None:
    fleet.hosts["gone-1"] = GONE
    done = fleet.run(
        role(tmp_path),
        gpu_preflight_fail_on="error",
        gpu_preflight_ecc="on",
        gpu_preflight_soak_minutes="long",
        gpu_preflight_report_formats=["pdf"],
    )
    assert done.returncode == 2
    told = " ".join((done.stdout + done.stderr).split())
    for said in (
        "value of gpu_preflight_fail_on must be one of: fail, warn, never, got: error",
        "value of gpu_preflight_ecc must be one of: enabled, disabled, any, got: on",
        "gpu_preflight_soak_minutes",
        "value of gpu_preflight_report_formats must be one or more of: html, json. Got no match for: pdf",
    ):
        assert said in told
    assert "Connection refused" not in told


def test_names_of_hosts_that_are_no_names_of_files(fleet: Fleet) -> None:
    fleet.add("rack/1", gpu_preflight_fail_on="never")
    fleet.add("index", gpu_preflight_fail_on="never")
    done = fleet.run(PLAYBOOK)
    assert done.returncode == 0, done.stdout + done.stderr
    assert fleet.written() == [
        "%69ndex.html", "%69ndex.json", "index.html", "preflight.json", "rack%2F1.html", "rack%2F1.json",
    ]  # fmt: skip
    links = Page((fleet.reports / "index.html").read_text()).section("hosts")
    assert links is not None
    assert {link.get("href") for link in links.iter("a")} == {"%2569ndex.html", "rack%252F1.html"}
