# Copyright: (c) 2026, the baremetal.inference authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What `containers` promises, where podman or docker is there to keep it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parent / "containers"
SUITE = "bookworm"
NAMES = ("containers-test-1", "containers-test-2")


def engine() -> str:
    for name in [os.environ["HOSTS_ENGINE"]] if os.environ.get("HOSTS_ENGINE") else ["podman", "docker"]:
        if shutil.which(name) and subprocess.run([name, "info"], check=False, capture_output=True).returncode == 0:
            return name
    return ""


ENGINE = engine()
pytestmark = pytest.mark.skipif(not ENGINE, reason="neither podman nor docker answers on this machine")


class Tool:
    def __init__(self, top: Path) -> None:
        self.env = os.environ | {"HOSTS_TOP": str(top), "HOSTS_ENGINE": ENGINE}

    def run(self, *arguments: str, status: int = 0) -> str:
        done = subprocess.run(
            [str(TOOL), *arguments],
            check=False,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == status, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stderr if status else done.stdout.strip()

    def ssh(self, name: str, command: str) -> str:
        config = self.run("ssh-config")
        return subprocess.check_output(["ssh", "-F", config, name, command], text=True, timeout=60).strip()


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tool]:
    tool = Tool(tmp_path_factory.mktemp("top"))
    shared = tmp_path_factory.mktemp("shared")
    (shared / "file").write_text("shared")
    tool.run("base", SUITE)
    try:
        tool.run("up", "--bind", f"{shared}:/srv/shared:ro", SUITE, *NAMES)
        tool.run("wait", *NAMES)
        yield tool
    finally:
        tool.run("down", "--if-exists", *NAMES)


def test_ssh_names_and_directories(tool: Tool) -> None:
    assert tool.ssh(NAMES[0], "hostname; cat /srv/shared/file") == f"{NAMES[0]}\nshared"
    assert tool.ssh(NAMES[0], f"getent hosts {NAMES[1]}") != ""
    assert "Read-only" in tool.run("exec", NAMES[0], "touch", "/srv/shared/no", status=1)
    listed = {row["name"]: row for row in json.loads(tool.run("list", "--json"))}
    assert listed[NAMES[0]]["state"] == "up"
    assert tool.ssh(listed[NAMES[1]]["address"], "hostname") == NAMES[1]


def test_what_ansible_and_units_do(tool: Tool) -> None:
    tool.ssh(NAMES[0], "cp /etc/hosts /etc/hosts.new && mv /etc/hosts.new /etc/hosts")
    unit = "systemd-run --wait --pipe -q -p DynamicUser=yes -p ProtectSystem=strict -p LoadCredential=c:/etc/hostname"
    assert tool.ssh(NAMES[0], f"{unit} sh -c 'cat $CREDENTIALS_DIRECTORY/c'") == NAMES[0]


def test_a_reboot_comes_back(tool: Tool) -> None:
    tool.run("exec", NAMES[1], "sh", "-c", "echo kept >/var/lib/kept; touch /run/before; systemctl reboot")
    deadline = time.monotonic() + 60
    probe = [ENGINE, "exec", NAMES[1], "sh", "-c", "test -d /run/systemd/system -a ! -e /run/before"]
    while subprocess.run(probe, check=False, capture_output=True).returncode != 0:
        assert time.monotonic() < deadline, "the container did not come back"
        time.sleep(0.5)
    tool.run("wait", NAMES[1])
    assert tool.ssh(NAMES[1], "cat /var/lib/kept") == "kept"


def test_refusals(tool: Tool) -> None:
    assert "exists already" in tool.run("up", SUITE, NAMES[0], status=1)
    assert f"unknown host 'stranger': known are {NAMES[0]}" in tool.run("wait", "stranger", status=1)
    assert "unknown suite 'sarge'" in tool.run("base", "sarge", status=1)
    assert "no directory /nowhere" in tool.run("up", "--bind", "/nowhere:/srv/x", SUITE, "x", status=1)
