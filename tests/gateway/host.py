# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A host under test, the role's inputs on this side, and the simulator that runs on it."""

from __future__ import annotations

import collections.abc as c
import dataclasses
import http.client
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
import typing as t
from pathlib import Path

from tests.gateway.gateway_client import Gateway

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HOSTS = os.environ.get("GATEWAY_TEST_HOSTS", str(ROOT / "tests/hosts/hosts"))
NAME = os.environ.get("GATEWAY_TEST_HOST", "gateway-1")
SUITE = os.environ.get("GATEWAY_TEST_SUITE", "bookworm")
CONTROL_PORT = 9000


@dataclasses.dataclass(frozen=True)
class Run:
    returncode: int
    output: str

    @property
    def changed(self) -> int:
        return int(re.findall(r"changed=(\d+)", self.output)[-1])


class Host:
    """A machine with systemd and nothing on it, and the role's inputs on this side."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys = {name: self.new_key(name) for name in ("team-a", "team-b")}
        self.plain_key = "plain-" + secrets.token_hex(16)
        self.engine_key = "engine-" + secrets.token_hex(16)
        line = next(line for line in self.hosts("inventory").splitlines() if line.split()[:1] == [NAME])
        self.inventory_line = line
        self.address = t.cast("re.Match[str]", re.search(r"ansible_host=(\S+)", line)).group(1)
        # What the role was last run with, beside the usual; nothing known before the first run and after a failure.
        self.applied: dict[str, t.Any] | None = None
        self.variables: dict[str, t.Any] = {
            "nginx_auth_keys": [
                *({"name": name, "key_file": str(path)} for name, path in self.keys.items()),
                {"name": "team-c", "key": self.plain_key},
            ],
            "nginx_auth_upstreams": [{"name": "main", "address": "127.0.0.1:8000", "api_key_file": "/etc/engine.key"}],
            "nginx_auth_server_name": "inference.test",
            "nginx_auth_client_max_body_size": "1m",
        }

    def hosts(self, *arguments: str) -> str:
        done = subprocess.run([HOSTS, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{HOSTS} {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def run(self, command: str, stdin: str | None = None, expect: int | None = 0) -> str:
        """A shell command on the host, as root."""
        done = subprocess.run(
            [HOSTS, "exec", NAME, "sh", "-c", command], input=stdin, capture_output=True, text=True, check=False
        )
        assert expect is None or done.returncode == expect, (command, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def new_key(self, name: str) -> Path:
        path = self.folder / f"{name}.key"
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32) + "\n")
        return path

    def key(self, name: str) -> str:
        return self.keys[name].read_text().strip()

    @property
    def secrets(self) -> list[str]:
        return [self.key("team-a"), self.key("team-b"), self.plain_key, self.engine_key]

    def play(self, playbook: str, inventory: str, *arguments: str) -> Run:
        beside = Path(sys.executable).with_name("ansible-playbook")
        program = str(beside) if beside.exists() else shutil.which("ansible-playbook")
        assert program, "ansible-playbook is neither beside this Python nor on PATH"
        listing = self.folder / "inventory"
        listing.write_text(inventory)
        done = subprocess.run(
            [program, "-i", str(listing), str(HERE / playbook), *arguments],
            cwd=ROOT,
            env={
                **os.environ,
                "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
                "LC_ALL": "C.UTF-8",
                "ANSIBLE_NOCOLOR": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return Run(done.returncode, done.stdout)

    def role(self, *arguments: str, expect: int = 0, **variables: t.Any) -> Run:
        """The role with the usual variables, and those given."""
        check_only = "--check" in arguments
        if not check_only:
            self.applied = None
        given = self.folder / "variables.json"
        given.touch(mode=0o600)
        given.write_text(json.dumps({**self.variables, **variables}))
        run = self.play("play.yml", self.inventory_line + "\n", "-e", f"@{given}", *arguments)
        assert run.returncode == expect, run.output
        if run.returncode == 0 and not check_only:
            self.applied = variables
        return run

    def fetch(self, path: str) -> Path:
        copy = self.folder / Path(path).name
        copy.write_text(self.run(f"cat {path}"))
        return copy

    def gateway(self, key: str | None = None) -> Gateway:
        ca = self.fetch("/etc/nginx/inference/self_signed.crt")
        return Gateway(self.address, 443, "inference.test", str(ca), key or self.key("team-a"))


class Engine:
    """The simulator's control port."""

    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self, method: str, path: str, body: t.Any = None) -> t.Any:
        connection = http.client.HTTPConnection(self.address, CONTROL_PORT, timeout=30)
        connection.request(method, path, None if body is None else json.dumps(body))
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return answer

    def reset(self) -> None:
        self.ask("POST", "/reset")

    def step(self) -> None:
        self.ask("POST", "/step")

    def answer(self, status: int, body: t.Any, **headers: str) -> None:
        self.ask("POST", "/answer", {"status": status, "body": body, "headers": headers})

    @property
    def requests(self) -> list[dict[str, t.Any]]:
        return list(self.ask("GET", "/requests"))

    @property
    def events(self) -> list[list[t.Any]]:
        return list(self.ask("GET", "/events"))

    def wait_for(self, event: str) -> None:
        wait_until(lambda: event in [name for name, _number in self.events], f"the engine sees '{event}'")


def wait_until(condition: c.Callable[[], bool], what: str, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.1)


def start_engine(host: Host, address: str = "8000") -> Engine:
    host.run("cat >/root/upstream_sim.py", stdin=(HERE / "upstream_sim.py").read_text())
    host.run(
        "systemctl stop upstream-sim.service 2>/dev/null; systemctl reset-failed upstream-sim.service 2>/dev/null;"
        " systemd-run --quiet --unit=upstream-sim --collect"
        f" python3 /root/upstream_sim.py {address} {CONTROL_PORT} /etc/engine.key"
    )
    engine = Engine(host.address)

    def answers() -> bool:
        try:
            engine.reset()
        except OSError:
            return False
        return True

    wait_until(answers, "the simulator starts")
    return engine
