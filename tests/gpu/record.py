# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run the modules as Ansible would run them on this host, and write what each returned to a file (see run)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import typing as t
from pathlib import Path

# What is run: file name -> module, check mode, options.
RECORDINGS: t.Mapping[str, tuple[str, bool, dict[str, t.Any]]] = {
    "gpu_info": ("gpu_info", False, {}),
    "pcie_linkspeed": ("pcie_linkspeed", False, {}),
    "pcie_linkspeed_load": ("pcie_linkspeed", False, {"measure": "load"}),
    "pcie_linkspeed_load_too_fast": (
        "pcie_linkspeed",
        False,
        {"measure": "load", "generation": "6", "host_to_device_min_gb_per_s": 1000},
    ),
    "ecc_state_enabled": ("ecc_state", True, {"state": "enabled"}),
    "ecc_state_disabled": ("ecc_state", True, {"state": "disabled"}),
    "gpu_power_limit_default": ("gpu_power_limit", True, {"limit": "default"}),
    "nvlink_reset_counters": ("nvlink_reset", True, {"scope": "counters", "when": "always"}),
}
# In a process of its own each: a module ends its process, and keeps nothing.
_RUN_MODULE = """
import importlib, json, sys
from ansible.module_utils.testing import patch_module_args
module = importlib.import_module("ansible_collections.baremetal.inference.plugins.modules." + sys.argv[1])
with patch_module_args(json.load(sys.stdin)):
    module.main()
"""
_LOAD_SECONDS = 10
_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Anonymous:
    """Replaces what tells one machine from another, the same way in all files."""

    def __init__(self) -> None:
        self._uuids: dict[str, str] = {}

    def text(self, text: str) -> str:
        return _UUID.sub(lambda match: self._uuid(match.group()), text)

    def _uuid(self, uuid: str) -> str:
        number = len(self._uuids)
        return self._uuids.setdefault(uuid, f"GPU-{number:08x}-0000-4000-8000-000000000000")

    def value(self, value: t.Any, key: str = "") -> t.Any:
        if isinstance(value, dict):
            return {self.text(str(name)): self.value(item, str(name)) for name, item in value.items()}
        if isinstance(value, list):
            return [self.value(item, key) for item in value]
        if isinstance(value, str):
            # As long as it was, since a length is a fact of the kind of card.
            return "0" * len(value) if key == "serial" else self.text(value)
        return value


def run_module(name: str, check_mode: bool, options: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    done = subprocess.run(
        [sys.executable, "-c", _RUN_MODULE, name],
        input=json.dumps({**options, "_ansible_check_mode": check_mode, "_ansible_diff": True}),
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout.lstrip().startswith("{"):
        raise SystemExit(f"tests/gpu/run: {name} returned no result:\n{done.stdout}{done.stderr}")
    result: dict[str, t.Any] = json.loads(done.stdout)
    result.pop("invocation", None)
    return result


def run_load() -> dict[str, t.Any]:
    """What the collection's own load does to these GPUs: all at once, for some seconds."""
    from ansible_collections.baremetal.inference.plugins.module_utils import _cuda

    init = _cuda.cuda_init()
    if not init.ok:
        return {"init": vars(init)}
    targets = [
        _cuda.CudaTarget(f"GPU {device.ordinal} ({device.pci_bus_id})", device.uuid, device.pci_bus_id)
        for device in init.devices
    ]
    results = _cuda.burn(targets, _LOAD_SECONDS, lambda target: None)
    return {
        "init": {**vars(init), "devices": [vars(device) for device in init.devices]},
        "burns": [
            {
                **vars(result),
                "target": vars(result.target),
                "failure": result.failure.as_result() if result.failure else None,
            }
            for result in results
        ],
    }


def main(arguments: list[str]) -> int:
    folder, names = Path(arguments[0]), arguments[1:] or [*RECORDINGS, "load"]
    unknown = [name for name in names if name not in RECORDINGS and name != "load"]
    if unknown:
        print(f"tests/gpu/run: {', '.join(unknown)}: there is only {', '.join(RECORDINGS)} and load", file=sys.stderr)
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    anonymous = Anonymous()
    # Their order in gpu_info is that of the bus, whatever is recorded: the names in all files follow it.
    anonymous.value(run_module("gpu_info", False, {"gather": []}))
    for name in names:
        started = time.monotonic()
        result = run_load() if name == "load" else run_module(*RECORDINGS[name])
        seconds = time.monotonic() - started
        text = json.dumps(anonymous.value(result), indent=1, sort_keys=True)
        (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        print(f"{name:32} {seconds:6.1f} s  {'FAILED: ' + result['msg'] if result.get('failed') else 'ok'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
