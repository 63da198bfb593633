# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Tests of a gateway that really runs.

pytest tests/gateway                                    on a test host of its own (root; see tests/hosts)
GATEWAY_TEST_SUITE=trixie pytest tests/gateway          the same on another release
GATEWAY_ADDRESS=10.0.0.5 GATEWAY_SERVER_NAME=... GATEWAY_CA=ca.crt GATEWAY_KEY_FILE=team-a.key pytest tests/gateway
                                                        only what any gateway must do, against one that is there
                                                        (GATEWAY_PORT: 443; GATEWAY_MAX_BODY: 33554432 bytes)
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import os
import subprocess
import typing as t
from pathlib import Path

import pytest

from tests.gateway.gateway_client import Gateway
from tests.gateway.host import HOSTS, NAME, SUITE, Engine, Host, Run, start_engine


@pytest.fixture(scope="session")
def fresh_host(tmp_path_factory: pytest.TempPathFactory) -> c.Iterator[Host]:
    """A new host on which the role has not run."""
    if "GATEWAY_ADDRESS" in os.environ:
        pytest.skip("needs a host of its own, and GATEWAY_ADDRESS names a gateway that is there")
    for command in (["base", SUITE], ["down", "--if-exists", NAME], ["up", SUITE, NAME], ["wait", NAME]):
        subprocess.run([HOSTS, *command], check=True)
    try:
        host = Host(tmp_path_factory.mktemp("gateway"))
        host.run("umask 077; cat >/etc/engine.key", stdin=host.engine_key + "\n")
        yield host
    finally:
        subprocess.run([HOSTS, "down", NAME], check=True)


@dataclasses.dataclass(frozen=True)
class Deployment:
    host: Host
    check_run: Run
    nginx_after_check: str
    first_run: Run
    second_run: Run


@pytest.fixture(scope="session")
def deployment(fresh_host: Host) -> Deployment:
    """The role's life on a new host: a check, a run, and a run that should find nothing to do."""
    host = fresh_host
    check = host.role("--check", "--diff", "-vvv")
    after_check = host.run("ls /etc/nginx 2>&1", expect=None)
    first = host.role("--diff", "-vvv")
    second = host.role("--diff")
    host.applied = {}
    return Deployment(host, check, after_check, first, second)


@pytest.fixture
def any_host(deployment: Deployment) -> Host:
    """The host as some test left it: for tests that begin with a run of the role."""
    return deployment.host


@pytest.fixture
def host(deployment: Deployment) -> Host:
    """The host with the usual settings."""
    if deployment.host.applied != {}:
        deployment.host.role()
    return deployment.host


@pytest.fixture
def any_gateway(any_host: Host, running_engine: Engine) -> Gateway:
    return any_host.gateway()


@pytest.fixture(scope="session")
def running_engine(deployment: Deployment) -> Engine:
    return start_engine(deployment.host)


@pytest.fixture
def engine(running_engine: Engine) -> Engine:
    running_engine.reset()
    return running_engine


@pytest.fixture
def gateway(request: pytest.FixtureRequest) -> Gateway:
    """The gateway of the environment, or of the test host."""
    given = os.environ
    if "GATEWAY_ADDRESS" in given:
        return Gateway(
            given["GATEWAY_ADDRESS"],
            int(given.get("GATEWAY_PORT", "443")),
            given["GATEWAY_SERVER_NAME"],
            given["GATEWAY_CA"],
            Path(given["GATEWAY_KEY_FILE"]).read_text().strip(),
        )
    request.getfixturevalue("running_engine")
    return t.cast("Host", request.getfixturevalue("host")).gateway()


@pytest.fixture(scope="session")
def max_body() -> int:
    """The gateway's nginx_auth_client_max_body_size in bytes."""
    return int(os.environ.get("GATEWAY_MAX_BODY", str(32 << 20))) if "GATEWAY_ADDRESS" in os.environ else 1 << 20
