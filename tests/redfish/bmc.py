# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A BMC: sushy-tools' Redfish emulator with TLS and an account, and a BIOS, which its fake machines lack.

    python bmc.py FOLDER PORT ATTRIBUTES.json

It runs in the environment of tests/redfish/prepare. FOLDER has bmc.crt, bmc.key and users (htpasswd, bcrypt). Every
request that changes something is written to FOLDER/changes, a line each.
"""

from __future__ import annotations

import json
import ssl
import sys
import typing as t
from pathlib import Path

import flask  # type: ignore[import-not-found]
from sushy_tools.emulator import main  # type: ignore[import-not-found]
from sushy_tools.emulator.resources.systems.fakedriver import FakeDriver  # type: ignore[import-not-found]


def give_it_a_bios(driver: t.Any, attributes: dict[str, t.Any]) -> None:
    """As BMCs have it: what is set is pending until the machine starts again."""
    current: dict[str, t.Any] = dict(attributes)
    pending: dict[str, t.Any] = {}

    def get_bios(self: t.Any, identity: str) -> dict[str, t.Any]:
        # The emulator asks the same of both resources.
        return {**current, **pending} if flask.request.path.endswith("/Settings") else current

    def set_bios(self: t.Any, identity: str, changed: dict[str, t.Any]) -> None:
        pending.update(changed)

    def set_power_state(self: t.Any, identity: str, state: str) -> None:
        current.update(pending)
        pending.clear()

    driver.get_bios, driver.set_bios, driver.set_power_state = get_bios, set_bios, set_power_state


def serve(folder: Path, port: int, attributes: dict[str, t.Any]) -> None:
    give_it_a_bios(FakeDriver, attributes)
    main.app.configure(
        extra_config={"SUSHY_EMULATOR_FAKE_DRIVER": True, "SUSHY_EMULATOR_AUTH_FILE": str(folder / "users")}
    )

    @main.app.before_request
    def note() -> None:
        if flask.request.method != "GET":
            with (folder / "changes").open("a") as changes:
                changes.write(f"{flask.request.method} {flask.request.path} {json.dumps(flask.request.json)}\n")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "bmc.crt", folder / "bmc.key")
    main.app.run(host="127.0.0.1", port=port, ssl_context=context)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]), json.loads(Path(sys.argv[3]).read_text()))
