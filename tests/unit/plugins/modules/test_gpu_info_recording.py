# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the module makes of the answers that two real H200s gave to pynvml (tests/nvml_sim/recordings)."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path
from types import SimpleNamespace

import pytest

from ansible_collections.baremetal.inference.plugins.module_utils import _nvml
from ansible_collections.baremetal.inference.plugins.modules import gpu_info

RECORDING = Path(__file__).resolve().parents[4] / "tests/nvml_sim/recordings/nvml-h200x2-driver580.json"
# Under which names the recording has the answers to calls that take an argument.
NAMED = {
    "nvmlDeviceGetTotalEccErrors": "ecc total err{0} counter{1}",
    "nvmlDeviceGetTemperatureThreshold": "tempthr {0}",
    "nvmlDeviceGetTemperature": "temp",
    "nvmlDeviceGetClockInfo": "clocks {0}",
    "nvmlDeviceGetMaxClockInfo": "maxclocks {0}",
    "nvmlDeviceGetTopologyCommonAncestor": "topo {0}",
    "nvmlDeviceGetP2PStatus": "p2p {0} cap{1}",
}


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"Text of {value}")
        self.value = value


class Recording:
    """Answers as pynvml did when it was recorded; what was not asked then is a function that is not there."""

    NVMLError = NVMLError

    def __init__(self) -> None:
        self.recorded = json.loads(RECORDING.read_text())
        pynvml = pytest.importorskip("pynvml")
        self.fields = {number: name for name, number in vars(pynvml).items() if name.startswith("NVML_FI_DEV_")}

    def __getattr__(self, name: str) -> t.Any:
        whole = {
            "nvmlInitWithFlags": None,
            "nvmlShutdown": None,
            "nvmlSystemGetDriverVersion": self.recorded["driver"],
            "nvmlSystemGetNVMLVersion": self.recorded["nvml"],
            "nvmlSystemGetCudaDriverVersion": self.recorded["cuda"],
            "nvmlDeviceGetCount": self.recorded["count"],
        }
        if name in whole:
            return lambda *args: whole[name]
        if name == "nvmlDeviceGetHandleByIndex":
            return lambda index: index
        if name == "nvmlDeviceGetFieldValues":
            return self.field_values
        return lambda gpu, *args: self.answer(gpu, name, args)

    def answer(self, gpu: int, name: str, args: tuple[int, ...]) -> t.Any:
        if name == "nvmlDeviceGetMemoryInfo" and args:
            # The second version of the call was not recorded.
            raise NVMLError(13)
        key = NAMED[name].format(*args) if name in NAMED else name + "".join(f"[{arg}]" for arg in args)
        answer = self.recorded["devices"][gpu].get(key, {"r": {"error": 13}})["r"]
        if isinstance(answer, dict):
            if "error" in answer:
                raise NVMLError(answer["error"])
            return SimpleNamespace(**answer)
        return answer

    def field_values(self, gpu: int, wanted: list[tuple[int, int]]) -> list[SimpleNamespace]:
        values = []
        for field, _scope in wanted:
            recorded = self.recorded["devices"][gpu]["field " + self.fields[field]]
            number = recorded["ull"]
            members = dict.fromkeys(("uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal"), number)
            value = SimpleNamespace(dVal=recorded["dbl"], **members)
            values.append(SimpleNamespace(nvmlReturn=recorded["ret"], valueType=recorded["type"], value=value))
        return values


@pytest.fixture
def result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, t.Any]:
    recording = Recording()
    monkeypatch.setattr(_nvml, "load_pynvml", lambda path: recording)
    warnings: list[str] = []
    params = {"gpus": ["all"], "gather": gpu_info.GATHER, "sysfs_root": str(tmp_path), "pynvml_path": None}
    result = gpu_info.run(params, check_mode=False, warn=warnings.append)
    assert warnings == []
    return result


def test_all_is_documented(result: dict[str, t.Any], undocumented: t.Any) -> None:
    assert undocumented(gpu_info, result, "success") == []


def test_host(result: dict[str, t.Any]) -> None:
    assert (result["driver_version"], result["nvml_version"]) == ("580.159.04", "13.580.159.04")
    assert result["cuda_driver_version"] == "13.0"
    assert result["gpu_count"] == 2


def test_gpu(result: dict[str, t.Any]) -> None:
    gpu = result["gpus"][0]
    expected = {
        "index": 0,
        "pci_bus_id": "0000:00:06.0",
        "name": "NVIDIA H200",
        "architecture": "hopper",
        "compute_capability": "9.0",
        "brand": "nvidia",
        "board_part_number": "692-2G520-0282-000",
        "persistence_mode": "enabled",
        "compute_mode": "default",
        "performance_state": "P0",
        "recovery_action": "none",
        "mig_mode": {"current": "disabled", "pending": "disabled"},
        "remapped_rows": {"correctable": 0, "uncorrectable": 0, "pending": False, "failure": False},
        "clocks_event_reasons": ["gpu_idle"],
        "utilization": {"gpu_percent": 0, "memory_percent": 0},
        "read_errors": [],
    }
    assert {key: gpu[key] for key in expected} == expected
    assert gpu["pci"]["device_id"] == "2335" and gpu["pci"]["vendor_id"] == "10de"
    assert gpu["memory"]["total_bytes"] == 150754820096
    assert gpu["bar1"]["total_bytes"] == 274877906944
    assert gpu["power"] == {
        "usage_watts": 85.832,
        "limit_requested_watts": 700.0,
        "limit_enforced_watts": 700.0,
        "limit_default_watts": 700.0,
        "limit_min_watts": 200.0,
        "limit_max_watts": 700.0,
    }
    assert gpu["temperature"] == {
        "gpu_celsius": 26,
        "memory_celsius": 26,
        "threshold_slowdown_celsius": 89,
        "threshold_shutdown_celsius": 95,
        "threshold_gpu_max_celsius": 87,
        "threshold_memory_max_celsius": 95,
    }
    assert gpu["ecc"] == {
        "supported": True,
        "current": "enabled",
        "pending": "enabled",
        "default": "enabled",
        "volatile": {"corrected": 0, "uncorrected": 0},
        "aggregate": {"corrected": 0, "uncorrected": 0},
    }
    assert (gpu["pcie"]["generation_current"], gpu["pcie"]["width_current"]) == (5, 16)


def test_links_and_topology(result: dict[str, t.Any]) -> None:
    for gpu in result["gpus"]:
        assert (gpu["nvlink"]["total_count"], gpu["nvlink"]["active_count"]) == (18, 18)
        for link in gpu["nvlink"]["links"]:
            assert (link["state"], link["version"], link["speed_megabytes_per_second"]) == ("active", "4.0", 26562)
            # The machine was a virtual one: it said that there is a switch, and not which.
            assert (link["remote_device_type"], link["remote_pci_bus_id"]) == ("switch", None)
    assert result["topology"] == [
        {
            "a": "0000:00:06.0",
            "b": "0000:00:07.0",
            "level": "NV18",
            "pcie_level": "PHB",
            "nvlink_count": 18,
            "p2p": {"read": "ok", "write": "ok", "nvlink": "ok"},
        }
    ]
