# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import copy
import shutil
import typing as t
from types import SimpleNamespace

import pytest
import yaml

from ansible_collections.baremetal.inference.plugins.doc_fragments import _gpus
from ansible_collections.baremetal.inference.plugins.module_utils import _gpu_facts, _nvml
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_errors import GpuFailure
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_model import UnavailableGpu
from ansible_collections.baremetal.inference.plugins.module_utils._module import (
    explain,
    failed_result,
    gpu_argument_spec,
)
from ansible_collections.baremetal.inference.plugins.module_utils._pci import PciDevice, Sysfs
from ansible_collections.baremetal.inference.plugins.modules import gpu_info

if t.TYPE_CHECKING:
    from pathlib import Path

    Undocumented = t.Callable[[t.Any, t.Mapping[str, t.Any], str], list[str]]

BUS_IDS = ["0000:4e:00.0", "0000:07:00.0", "0000:0f:00.0"]


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"Text of {value}")
        self.value = value


class Library:
    """Three small GPUs as pynvml would tell of them. What is not listed is not there, as with an old driver."""

    NVMLError = NVMLError

    def __init__(self, failures: t.Mapping[tuple[str, int], int] | None = None, count: int = 3) -> None:
        self.failures = failures or {}
        self.count = count
        self.calls: list[tuple[str, int | None]] = []

    def __getattr__(self, name: str) -> t.Any:
        answers: dict[str, t.Any] = {
            "nvmlInitWithFlags": lambda flags: None,
            "nvmlShutdown": lambda: None,
            "nvmlSystemGetDriverVersion": lambda: b"580.95.05",
            "nvmlSystemGetNVMLVersion": lambda: "13.580.95.05",
            "nvmlSystemGetCudaDriverVersion": lambda: 13000,
            "nvmlDeviceGetCount": lambda: self.count,
            "nvmlDeviceGetHandleByIndex": lambda gpu: gpu,
            "nvmlDeviceGetPciInfo": lambda gpu: SimpleNamespace(
                busId=f"0000{BUS_IDS[gpu]}".upper(), pciDeviceId=0x20B210DE, pciSubSystemId=0x146310DE
            ),
            "nvmlDeviceGetUUID": lambda gpu: f"GPU-{gpu}",
            "nvmlDeviceGetName": lambda gpu: "NVIDIA A100-SXM4-80GB",
            "nvmlDeviceGetSerial": lambda gpu: f"156{gpu}",
            "nvmlDeviceGetNvLinkState": lambda gpu, link: 1 if link < 12 else self.fail(2),
            "nvmlDeviceGetNvLinkRemoteDeviceType": lambda gpu, link: 2,
            "nvmlDeviceGetTopologyCommonAncestor": lambda a, b: 30,
            "nvmlDeviceGetP2PStatus": lambda a, b, capability: 0,
            "nvmlDeviceGetComputeRunningProcesses": lambda gpu: [],
        }
        if name not in answers:
            raise AttributeError(name)

        def function(*args: t.Any) -> t.Any:
            self.calls.append((name, args[0] if args else None))
            if args and (name, args[0]) in self.failures:
                self.fail(self.failures[name, args[0]])
            return answers[name](*args)

        return function

    def fail(self, code: int) -> t.NoReturn:
        raise NVMLError(code)


class Run:
    """Runs the module's own function over a Library and a sysfs that has all three GPUs and a switch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, sysfs: Path) -> None:
        self.monkeypatch = monkeypatch
        self.sysfs = sysfs
        self.warnings: list[str] = []
        for bus_id, kind in [*((bus_id, "0x030200") for bus_id in BUS_IDS), ("0000:c4:00.0", "0x068000")]:
            folder = sysfs / "bus/pci/devices" / bus_id
            folder.mkdir(parents=True)
            for name, content in {"vendor": "0x10de", "device": "0x20b2", "class": kind, "numa_node": "3"}.items():
                (folder / name).write_text(content + "\n")

    def __call__(self, library: Library, **params: t.Any) -> dict[str, t.Any]:
        self.monkeypatch.setattr(_nvml, "load_pynvml", lambda path: library)
        defaults = {"gpus": ["all"], "gather": gpu_info.GATHER, "sysfs_root": str(self.sysfs), "pynvml_path": None}
        return gpu_info.run({**defaults, **params}, check_mode=False, warn=self.warnings.append)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    return Run(monkeypatch, tmp_path)


def test_gpus_are_ordered_and_keyed_by_bus_id(run: Run, undocumented: Undocumented) -> None:
    result = run(Library())
    assert [(gpu["pci_bus_id"], gpu["index"]) for gpu in result["gpus"]] == [
        ("0000:07:00.0", 1),
        ("0000:0f:00.0", 2),
        ("0000:4e:00.0", 0),
    ]
    assert result["gpu_positions"] == {
        "GPU-1": 0,
        "0000:07:00.0": 0,
        "GPU-2": 1,
        "0000:0f:00.0": 1,
        "GPU-0": 2,
        "0000:4e:00.0": 2,
    }
    assert result["changed"] is False
    assert result["gpu_count"] == result["pci_gpu_count"] == 3
    assert result["missing_from_nvml"] == result["unavailable_gpus"] == []
    assert result["gpus"][0]["pci"]["device_id"] == "20b2" and result["gpus"][0]["pci"]["numa_node"] == 3
    assert [switch["pci_bus_id"] for switch in result["nvswitches"]] == ["0000:c4:00.0"]
    assert [(pair["a"], pair["b"], pair["level"]) for pair in result["topology"]] == [
        ("0000:07:00.0", "0000:0f:00.0", "NV12"),
        ("0000:07:00.0", "0000:4e:00.0", "NV12"),
        ("0000:0f:00.0", "0000:4e:00.0", "NV12"),
    ]
    assert run.warnings == []
    assert undocumented(gpu_info, result, "success") == []


def test_one_session(run: Run) -> None:
    library = Library()
    run(library)
    names = [name for name, unused in library.calls]
    assert names.count("nvmlInitWithFlags") == names.count("nvmlShutdown") == 1


def test_only_what_is_selected_is_read(run: Run) -> None:
    library = Library()
    result = run(library, gpus=["1", "4e:00.0"])
    assert [gpu["index"] for gpu in result["gpus"]] == [1, 0]
    assert result["gpu_count"] == 3
    assert len(result["topology"]) == 1
    assert ("nvmlDeviceGetName", 2) not in library.calls


def test_wrong_selector_stops_before_anything_is_read(run: Run) -> None:
    library = Library()
    with pytest.raises(GpuFailure, match="gpus: no GPU matches '7'") as caught:
        run(library, gpus=["0", "7"])
    assert caught.value.reason == "gpu_not_found"
    assert "nvmlDeviceGetName" not in [name for name, unused in library.calls]


@pytest.mark.parametrize(
    ("gather", "links", "pairs", "processes"),
    [
        ([], False, 0, False),
        (["nvlink"], True, 0, False),
        (["topology"], False, 3, False),
        (["processes"], False, 0, True),
    ],
)
def test_gather(run: Run, gather: list[str], links: bool, pairs: int, processes: bool) -> None:
    result = run(Library(), gather=gather)
    gpu = result["gpus"][0]
    assert (gpu["nvlink"] is not None, len(result["topology"]), gpu["processes"] is not None) == (
        links,
        pairs,
        processes,
    )
    # The levels are the true ones even if the links themselves are not asked for.
    assert {pair["level"] for pair in result["topology"]} <= {"NV12"}


def test_zero_gpus(run: Run, undocumented: Undocumented) -> None:
    result = run(Library(count=0))
    assert result["gpu_count"] == 0
    assert result["gpus"] == result["topology"] == []
    # These the bus has, and the driver does not.
    assert result["missing_from_nvml"] == sorted(BUS_IDS)
    assert undocumented(gpu_info, result, "success") == []


def test_gpu_lost_before_it_could_be_asked(run: Run, undocumented: Undocumented) -> None:
    result = run(Library({("nvmlDeviceGetHandleByIndex", 2): 15}))
    assert [gpu["index"] for gpu in result["gpus"]] == [1, 0]
    assert result["gpu_count"] == 3
    (lost,) = result["unavailable_gpus"]
    # NVML could not say where it is; only one GPU of the bus is left over.
    assert (lost["index"], lost["pci_bus_id"], lost["reason"]) == (2, "0000:0f:00.0", "gpu_lost")
    assert result["missing_from_nvml"] == ["0000:0f:00.0"]
    assert run.warnings == [lost["msg"]]
    assert undocumented(gpu_info, result, "success") == []


def test_gpu_lost_while_it_is_read(run: Run) -> None:
    result = run(Library({("nvmlDeviceGetSerial", 1): 15}))
    assert [gpu["index"] for gpu in result["gpus"]] == [2, 0]
    (lost,) = result["unavailable_gpus"]
    assert (lost["uuid"], lost["pci_bus_id"]) == ("GPU-1", "0000:07:00.0")
    assert result["gpu_count"] == 3
    assert result["missing_from_nvml"] == []


def test_gpu_lost_between_reading_it_and_its_topology(run: Run) -> None:
    result = run(Library({("nvmlDeviceGetTopologyCommonAncestor", 1): 15}))
    assert [(pair["a"], pair["b"]) for pair in result["topology"]] == [("0000:0f:00.0", "0000:4e:00.0")]
    assert [error["reason"] for error in result["gpus"][0]["read_errors"]] == ["gpu_lost", "gpu_lost"]


def test_selecting_a_lost_gpu_fails(run: Run) -> None:
    with pytest.raises(
        GpuFailure, match="gpus: '2' is a GPU that cannot be used: nvmlDeviceGetHandleByIndex"
    ) as caught:
        run(Library({("nvmlDeviceGetHandleByIndex", 2): 15}), gpus=["2"])
    assert caught.value.reason == "gpu_lost"


def test_one_bad_fact_loses_only_itself(run: Run, undocumented: Undocumented) -> None:
    result = run(Library({("nvmlDeviceGetSerial", 1): 999}))
    gpu = result["gpus"][0]
    assert gpu["serial"] is None and gpu["name"] == "NVIDIA A100-SXM4-80GB"
    (error,) = gpu["read_errors"]
    assert (error["call"], error["nvml_code"]) == ("nvmlDeviceGetSerial", 999)
    assert run.warnings == [error["msg"]]
    assert undocumented(gpu_info, result, "success") == []


@pytest.mark.parametrize(
    ("bus_ids", "missing", "expected"),
    [
        ([None], ["a"], ["a"]),
        ([None, None], ["a", "b"], [None, None]),
        ([None, "b"], ["a", "b"], ["a", "b"]),
        ([None], [], [None]),
        ([None], ["a", "b"], [None]),
        ([], ["a"], []),
    ],
)
def test_locate(bus_ids: list[str | None], missing: list[str], expected: list[str | None]) -> None:
    lost = [UnavailableGpu(n, None, bus_id, "gpu_lost", 15, "") for n, bus_id in enumerate(bus_ids)]
    assert [gpu.pci_bus_id for gpu in _gpu_facts.locate(lost, missing)] == expected


def test_expectations_are_checked_before_anything_is_read(run: Run) -> None:
    library = Library()
    with pytest.raises(GpuFailure, match="expectations.skus.a100-sxm4-80gb.pcie_lanes: there is no such key"):
        run(library, expectations={"skus": {"a100-sxm4-80gb": {"pcie_lanes": 16}}})
    assert library.calls == []


def test_system_without_switches_is_told_by_the_far_ends_alone(run: Run) -> None:
    """Three of these GPUs are no board that is known; with the switch that the bus has, they are part of one."""
    assert run(Library())["system"] == "hgx-a100-8gpu"
    shutil.rmtree(run.sysfs / "bus/pci/devices/0000:c4:00.0")
    assert run(Library())["system"] is None


def test_sysfs_root_that_is_not_there(run: Run) -> None:
    with pytest.raises(GpuFailure, match="sysfs_root: '/surely/not/there' is not a directory") as caught:
        run(Library(), sysfs_root="/surely/not/there")
    assert caught.value.reason == "invalid_sysfs_root"


def _pci(driver: str | None, bus_id: str = "0000:07:00.0") -> PciDevice:
    return PciDevice(pci_bus_id=bus_id, vendor_id="10de", device_id="20b2", class_id="0302", driver=driver)


@pytest.mark.parametrize(
    ("gpus", "version", "says"),
    [
        ([], None, "The PCI bus has no NVIDIA GPU either"),
        ([_pci(None)], None, "The PCI bus has 1 NVIDIA GPU(s); no nvidia kernel module is loaded."),
        ([_pci("nvidia")] * 8, "580.95.05", "8 NVIDIA GPU(s); the loaded nvidia kernel module is version 580.95.05."),
        (
            [_pci("nouveau"), _pci("nouveau", "0000:0f:00.0")],
            None,
            "nouveau holds 0000:07:00.0, 0000:0f:00.0: blacklist",
        ),
        ([_pci("vfio-pci")], None, "vfio-pci holds 0000:07:00.0: it is set aside for a virtual machine"),
    ],
)
def test_explain(gpus: list[PciDevice], version: str | None, says: str) -> None:
    assert says in explain(gpus, version)


@pytest.mark.parametrize("code", [4, 9, 12, 15, 18, 999])
def test_failed_result_has_the_bus(run: Run, undocumented: Undocumented, code: int) -> None:
    library = Library()
    failure = _nvml._failure("nvmlInitWithFlags", NVMLError(code), None)
    result = failed_result(failure, Sysfs(str(run.sysfs)))
    assert result["pci_gpu_count"] == 3
    assert result["nvml_code"] == code
    assert ("The PCI bus has 3 NVIDIA GPU(s)" in result["msg"]) == (code in (9, 12, 18))
    assert undocumented(gpu_info, result, "failure") == []
    assert library.calls == []


def test_common_options_are_documented_as_they_are_declared() -> None:
    documented = yaml.safe_load(_gpus.ModuleDocFragment.DOCUMENTATION)["options"]
    declared = copy.deepcopy(gpu_argument_spec())
    assert documented.keys() == declared.keys()
    for name, spec in declared.items():
        described = {key: value for key, value in documented[name].items() if key != "description"}
        assert described == spec, name


def test_own_options_are_documented_as_they_are_declared() -> None:
    documented = yaml.safe_load(gpu_info.DOCUMENTATION)["options"]
    assert documented["gather"]["choices"] == documented["gather"]["default"] == gpu_info.GATHER
    assert documented["expectations"]["type"] == "dict"


def test_every_reason_is_documented() -> None:
    text = str(yaml.safe_load(gpu_info.RETURN)["reason"]["description"])
    reasons = {reason for reason, unused in _nvml._MEANING.values()}
    for reason in reasons | {
        "unknown",
        "python_library_missing",
        "gpu_not_found",
        "invalid_selector",
        "invalid_sysfs_root",
        "invalid_expectations",
    }:
        assert f"V({reason})" in text
