# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The whole module in a process of its own, with the unmodified pynvml, on the simulated library."""

from __future__ import annotations

import ctypes.util
import json
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

from ansible_collections.baremetal.inference.plugins.modules import gpu_info

from tests.unit.conftest import SimulatedHost


class Module(SimulatedHost):
    """gpu_info on a host with simulated GPUs, always in a new process that finds there what a host has."""

    def __call__(self, **params: t.Any) -> dict[str, t.Any]:
        return self.run("gpu_info", **params)


@pytest.fixture
def module(nvml_sim: t.Any, tmp_path: Path) -> Module:
    return Module(nvml_sim, tmp_path, sys.executable)


@pytest.fixture
def module_on_every_python(nvml_sim: t.Any, tmp_path: Path, interpreter: str) -> Module:
    return Module(nvml_sim, tmp_path, interpreter)


PROFILES = {
    "dgx-a100-80gb": {
        "count": 8,
        "name": "NVIDIA A100-SXM4-80GB",
        "architecture": "ampere",
        "capability": "8.0",
        "links": 12,
        "levels": {"NV12"},
        "switches": 6,
        "sku": "a100-sxm4-80gb",
        "system": "hgx-a100-8gpu",
    },
    "a100-pcie-40gb-x4": {
        "count": 4,
        "name": "NVIDIA A100-PCIE-40GB",
        "architecture": "ampere",
        "capability": "8.0",
        "links": 12,
        "levels": None,
        "switches": 0,
        "sku": "a100-pcie-40gb",
        "system": None,
    },
    "h200-sxm-x2": {
        "count": 2,
        "name": "NVIDIA H200",
        "architecture": "hopper",
        "capability": "9.0",
        "links": 18,
        "levels": {"NV18"},
        "switches": 0,
        "sku": "h200-sxm5-141gb",
        # Two of eight, in a virtual machine that does not see its NVSwitches.
        "system": None,
    },
}


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_profile(module_on_every_python: Module, undocumented: t.Any, profile: str) -> None:
    module = module_on_every_python
    expected: dict[str, t.Any] = PROFILES[profile]
    module.create(profile)
    result = module()
    assert result["gpu_count"] == len(result["gpus"]) == expected["count"]
    assert result["pci_gpu_count"] == expected["count"]
    assert result["missing_from_nvml"] == result["unavailable_gpus"] == []
    assert "warnings" not in result
    assert undocumented(gpu_info, result, "success") == []
    for gpu in result["gpus"]:
        assert gpu["name"] == expected["name"]
        assert (gpu["architecture"], gpu["compute_capability"]) == (expected["architecture"], expected["capability"])
        assert gpu["ecc"]["current"] == "enabled"
        assert gpu["nvlink"]["total_count"] == expected["links"]
        assert gpu["memory"]["total_bytes"] >= gpu["memory"]["used_bytes"] + gpu["memory"]["free_bytes"]
        assert gpu["power"]["limit_min_watts"] <= gpu["power"]["limit_enforced_watts"]
        assert gpu["expectations"]["id"] == expected["sku"]
        figures = gpu["expectations"]["figures"]
        assert figures["bar1_bytes"]["value"] == gpu["bar1"]["total_bytes"]
        assert figures["nvlink_links"]["value"] == gpu["nvlink"]["active_count"]
        assert all(figure["source"] for figure in figures.values())
    assert result["system"] == expected["system"]
    bus_ids = [gpu["pci_bus_id"] for gpu in result["gpus"]]
    assert bus_ids == sorted(bus_ids) == [gpu["pci_bus_id"] for gpu in result["pci_gpus"]]
    assert len(set(result["gpu_positions"])) == 2 * expected["count"]
    assert len(result["topology"]) == expected["count"] * (expected["count"] - 1) // 2
    if expected["levels"]:
        assert {pair["level"] for pair in result["topology"]} == expected["levels"]
    assert len(result["nvswitches"]) == expected["switches"]


def test_expectations_of_the_user(module: Module, undocumented: t.Any) -> None:
    module.create("h200-sxm-x2")
    expectations: dict[str, t.Any] = {
        "skus": {"h200-sxm5-141gb": {"power_default_watts": 600}},
        "systems": {
            "pair": {
                "name": "Two of eight",
                "skus": ["h200-sxm5-141gb"],
                "gpu_count": 2,
                "nvswitch_count": 0,
                "nvlink_layout": "mesh",
                "links_per_pair": 18,
            }
        },
    }
    result = module(expectations=expectations, gather=[])
    figure = result["gpus"][0]["expectations"]["figures"]["power_default_watts"]
    assert figure == {"value": [600.0], "source": "the option 'expectations'"}
    # Its links lead to switches: not that board, and without reading them nobody can tell.
    assert result["system"] is None and module(expectations=expectations)["system"] is None
    assert undocumented(gpu_info, result, "success") == []
    expectations["skus"]["h200-sxm5-141gb"] = {"pcie_width": "wide"}
    result = module(expectations=expectations)
    assert (result["failed"], result["reason"]) == (True, "invalid_expectations")
    assert result["path"] == "expectations.skus.h200-sxm5-141gb.pcie_width"
    assert undocumented(gpu_info, result, "failure") == []


def test_kind_that_is_not_known(module: Module, undocumented: t.Any) -> None:
    state = module.create("dgx-a100-80gb")
    for gpu in state.glob("gpu*"):
        (gpu / "name").write_text("NVIDIA A100-SXM4-81GB\n")
        (gpu / "pci/device_id").write_text("0x20FF10DE\n")
    result = module()
    assert [gpu["expectations"] for gpu in result["gpus"]] == [None] * 8
    assert result["system"] is None and "failed" not in result
    assert undocumented(gpu_info, result, "success") == []


def test_bridges_join_pairs(module: Module) -> None:
    """PCIe cards: each has NVLinks to one other card and to no third."""
    module.create("a100-pcie-40gb-x4")
    joined = [pair for pair in module()["topology"] if pair["nvlink_count"]]
    assert [pair["level"] for pair in joined] == ["NV12", "NV12"]
    assert len({bus_id for pair in joined for bus_id in (pair["a"], pair["b"])}) == 4


def test_check_mode_reads_the_same(module: Module) -> None:
    module.create("h200-sxm-x2")
    assert module() == module(check_mode=True, diff=True)


def test_zero_gpus(module: Module, undocumented: t.Any, nvml_sim: t.Any, tmp_path: Path) -> None:
    module.create("h200-sxm-x2", "--gpus", "0")
    result = module()
    assert "failed" not in result
    assert result["gpu_count"] == result["pci_gpu_count"] == 0
    assert result["gpus"] == result["topology"] == result["missing_from_nvml"] == []
    assert undocumented(gpu_info, result, "success") == []
    # The driver counts none, and the bus has two.
    bus = nvml_sim.create("h200-sxm-x2", tmp_path / "with_gpus") / "sysfs"
    result = module(sysfs_root=str(bus))
    assert result["gpu_count"] == 0 and result["pci_gpu_count"] == 2
    assert result["missing_from_nvml"] == [gpu["pci_bus_id"] for gpu in result["pci_gpus"]]


@pytest.mark.parametrize(
    ("code", "reason"), [(9, "driver_not_loaded"), (18, "version_mismatch"), (4, "no_permission"), (999, "unknown")]
)
def test_session_that_does_not_open(module: Module, undocumented: t.Any, code: int, reason: str) -> None:
    (module.create("dgx-a100-80gb") / "init_error").write_text(f"{code}\n")
    result = module()
    assert result["failed"] is True
    assert (result["reason"], result["nvml_code"], result["nvml_call"]) == (reason, code, "nvmlInitWithFlags")
    assert result["pci_gpu_count"] == 8
    assert undocumented(gpu_info, result, "failure") == []


@pytest.mark.skipif(ctypes.util.find_library("nvidia-ml") is not None, reason="this machine has the real library")
def test_library_that_is_not_there(module: Module, undocumented: t.Any) -> None:
    module.create("dgx-a100-80gb")
    del module.environment["LD_LIBRARY_PATH"]
    result = module()
    assert (result["failed"], result["reason"]) == (True, "library_missing")
    assert "libnvidia-ml.so.1: cannot open shared object file" in result["msg"]
    assert "The PCI bus has 8 NVIDIA GPU(s)" in result["msg"]
    assert undocumented(gpu_info, result, "failure") == []


def test_pynvml_that_is_not_there(module_on_every_python: Module, undocumented: t.Any) -> None:
    module = module_on_every_python
    module.create("dgx-a100-80gb")
    moved = module.libraries / "elsewhere.py"
    (module.libraries / "pynvml.py").rename(moved)
    # An installed one of the interpreter itself would step in.
    module.interpreter = _bare(module)
    result = module()
    assert (result["failed"], result["reason"]) == (True, "python_library_missing")
    assert "pip install nvidia-ml-py" in result["msg"]
    assert result["pci_gpu_count"] == 8
    assert undocumented(gpu_info, result, "failure") == []
    # The same file, named.
    assert module(pynvml_path=str(moved))["gpu_count"] == 8


def _bare(module: Module) -> str:
    folder = module.libraries / "bare"
    subprocess.run([str(module.interpreter), "-m", "venv", "--without-pip", str(folder)], check=True)
    return str(folder / "bin/python")


def test_lost_gpu(module: Module, undocumented: t.Any) -> None:
    (module.create("dgx-a100-80gb") / "gpu3/uuid").write_text("!GPU_IS_LOST\n")
    result = module()
    assert "failed" not in result
    assert len(result["gpus"]) == 7 and result["gpu_count"] == 8
    (lost,) = result["unavailable_gpus"]
    assert (lost["index"], lost["reason"], lost["nvml_code"]) == (3, "gpu_lost", 15)
    assert "GPU 3" in lost["msg"] and "Xid 79" in lost["msg"]
    assert result["missing_from_nvml"] == [lost["pci_bus_id"]]
    assert len(result["warnings"]) == 1 and lost["msg"] in json.dumps(result["warnings"])
    assert undocumented(gpu_info, result, "success") == []
    # Named, it is an error; the others can still be named.
    assert module(gpus=["3"])["reason"] == "gpu_lost"
    assert [gpu["index"] for gpu in module(gpus=["2", "4"])["gpus"]] == [2, 4]


def test_one_bad_fact(module: Module) -> None:
    (module.create("h200-sxm-x2") / "gpu1/serial").write_text("!UNKNOWN\n")
    result = module()
    assert [gpu["serial"] is None for gpu in result["gpus"]] == [False, True]
    (error,) = result["gpus"][1]["read_errors"]
    assert (error["call"], error["nvml_code"]) == ("nvmlDeviceGetSerial", 999)


def test_gpu_that_the_driver_does_not_see(module: Module) -> None:
    shutil.rmtree(module.create("h200-sxm-x2") / "gpu1")
    result = module()
    assert (result["gpu_count"], result["pci_gpu_count"]) == (1, 2)
    assert len(result["missing_from_nvml"]) == 1


def test_wrong_selector(module: Module, undocumented: t.Any) -> None:
    module.create("h200-sxm-x2")
    result = module(gpus=["0", "9"])
    assert (result["failed"], result["reason"], result["selector"]) == (True, "gpu_not_found", "9")
    assert "gpus: no GPU matches '9'. This host has: 0 = GPU-" in result["msg"]
    assert undocumented(gpu_info, result, "failure") == []
