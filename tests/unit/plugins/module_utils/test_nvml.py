# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import sys
import typing as t
from types import SimpleNamespace

import pytest

from ansible_collections.baremetal.inference.plugins.module_utils import _nvml
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_model import GpuIdentity, ModePair
from ansible_collections.baremetal.inference.plugins.module_utils._nvml import Device, Nvml, NvmlFailure, nvml_session

if t.TYPE_CHECKING:
    from pathlib import Path


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"Text of {value}")
        self.value = value


class Library:
    """Stands in for the pynvml module: each function answers what it was told, and a code is raised as pynvml does."""

    NVMLError = NVMLError

    def __init__(self, **answers: t.Any) -> None:
        self.log: list[str] = []
        self.answers = {"nvmlInitWithFlags": None, "nvmlShutdown": None, **answers}

    def __getattr__(self, name: str) -> t.Any:
        if name not in self.__dict__.get("answers", {}):
            raise AttributeError(name)

        def function(*args: t.Any) -> t.Any:
            self.log.append(name)
            answer = self.answers[name]
            answer = answer(*args) if callable(answer) else answer
            if isinstance(answer, Exception):
                raise answer
            return answer

        return function


def device(**answers: t.Any) -> Device:
    identity = GpuIdentity(index=3, uuid="GPU-x", pci_bus_id="0000:4e:00.0")
    return Device(Nvml(Library(**answers)), "handle", identity)


@pytest.mark.parametrize(
    ("code", "reason", "advice"),
    [
        (9, "driver_not_loaded", "modprobe nvidia"),
        (18, "version_mismatch", "Reboot, or stop everything"),
        (4, "no_permission", "become: true"),
        (15, "gpu_lost", "Xid 79"),
        (16, "reset_required", "nvidia-smi --gpu-reset"),
        (999, "unknown", "kernel log"),
        (77, "unknown", "kernel log"),
    ],
)
def test_init_failure(monkeypatch: pytest.MonkeyPatch, code: int, reason: str, advice: str) -> None:
    library = Library(nvmlInitWithFlags=NVMLError(code))
    monkeypatch.setattr(_nvml, "load_pynvml", lambda path: library)
    with pytest.raises(NvmlFailure) as caught, nvml_session():
        pytest.fail("the session must not begin")
    assert caught.value.msg.startswith(f"nvmlInitWithFlags failed: Text of {code} (NVML error {code}). ")
    assert advice in caught.value.msg
    assert caught.value.as_result() == {
        "msg": caught.value.msg,
        "reason": reason,
        "nvml_code": code,
        "nvml_call": "nvmlInitWithFlags",
    }
    assert "nvmlShutdown" not in library.log


def test_missing_library_tells_what_the_loader_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_nvml, "load_pynvml", lambda path: Library(nvmlInitWithFlags=NVMLError(12)))
    monkeypatch.setattr(_nvml, "LIBRARY", "libsurely-not-there.so.1")
    says = r"libsurely-not-there\.so\.1: cannot open shared object file"
    with pytest.raises(NvmlFailure, match=says) as caught, nvml_session():
        pytest.fail("the session must not begin")
    assert caught.value.reason == "library_missing"


@pytest.mark.parametrize("shutdown", [None, NVMLError(999)])
def test_session_is_closed_once_whatever_happens(monkeypatch: pytest.MonkeyPatch, shutdown: Exception | None) -> None:
    library = Library(nvmlShutdown=shutdown)
    monkeypatch.setattr(_nvml, "load_pynvml", lambda path: library)
    with pytest.raises(KeyError), nvml_session():
        raise KeyError
    assert library.log == ["nvmlInitWithFlags", "nvmlShutdown"]


def test_zero_gpus_is_asked_for_at_init(monkeypatch: pytest.MonkeyPatch) -> None:
    flags: list[int] = []
    monkeypatch.setattr(_nvml, "load_pynvml", lambda path: Library(nvmlInitWithFlags=flags.append))
    with nvml_session():
        pass
    assert flags == [1]


def test_versions_of_a_host_without_cuda() -> None:
    versions = Nvml(
        Library(
            nvmlSystemGetDriverVersion=b"580.95.05",
            nvmlSystemGetNVMLVersion="13.580.95.05",
            nvmlSystemGetCudaDriverVersion=NVMLError(12),
        )
    ).versions()
    assert (versions.driver_version, versions.nvml_version) == ("580.95.05", "13.580.95.05")
    assert versions.cuda_driver_version is None


@pytest.mark.parametrize("code", [3, 13])
def test_absent_fact_is_none(code: int) -> None:
    gpu = device(nvmlDeviceGetSerial=NVMLError(code), nvmlDeviceGetMigMode=NVMLError(code))
    assert gpu.text("nvmlDeviceGetSerial") is None
    assert gpu.mig_mode() is None
    assert gpu.read_errors == []


def test_function_that_pynvml_lacks_is_an_absent_fact() -> None:
    assert device().text("nvmlDeviceGetSerial") is None


def test_other_error_names_gpu_call_and_error() -> None:
    with pytest.raises(NvmlFailure) as caught:
        device(nvmlDeviceGetMigMode=NVMLError(999)).mig_mode()
    assert caught.value.msg.startswith(
        "nvmlDeviceGetMigMode failed for GPU 3 (0000:4e:00.0): Text of 999 (NVML error 999). Look at the kernel log"
    )
    assert caught.value.as_result()["gpu"] == {"index": 3, "uuid": "GPU-x", "pci_bus_id": "0000:4e:00.0"}


def test_tolerant_device_notes_the_error_and_goes_on() -> None:
    gpu = device(nvmlDeviceGetMigMode=NVMLError(999), nvmlDeviceGetName=b"NVIDIA A100-SXM4-80GB")
    gpu.tolerate_errors()
    assert gpu.mig_mode() is None
    assert gpu.text("nvmlDeviceGetName") == "NVIDIA A100-SXM4-80GB"
    assert [(error.call, error.nvml_code, error.reason) for error in gpu.read_errors] == [
        ("nvmlDeviceGetMigMode", 999, "unknown")
    ]


def test_lost_gpu_is_not_tolerated() -> None:
    gpu = device(nvmlDeviceGetMigMode=NVMLError(15))
    gpu.tolerate_errors()
    with pytest.raises(NvmlFailure) as caught:
        gpu.mig_mode()
    assert caught.value.reason == "gpu_lost"


@pytest.mark.parametrize("answer", ["Tesla", b"Tesla"])
def test_text_may_be_bytes(answer: str | bytes) -> None:
    assert device(nvmlDeviceGetName=answer).text("nvmlDeviceGetName") == "Tesla"


def test_pci_ids_are_unpacked() -> None:
    gpu = device()
    gpu.pci = SimpleNamespace(pciDeviceId=0x20B210DE, pciSubSystemId=0x146310DE, busId=b"00000000:4E:00.0")
    assert gpu.pci_ids() == ("10de", "20b2", "10de", "1463")
    assert gpu.nvml_bus_id() == "00000000:4E:00.0"


def field_value(code: int, kind: int, **members: t.Any) -> SimpleNamespace:
    return SimpleNamespace(nvmlReturn=code, valueType=kind, value=SimpleNamespace(**members))


def test_fields_take_the_member_that_the_type_names() -> None:
    gpu = device(
        nvmlDeviceGetFieldValues=[
            field_value(0, 1, uiVal=44),
            field_value(0, 3, ullVal=1 << 40),
            field_value(0, 5, siVal=-8),
            field_value(3, 0),
            field_value(2, 0),
        ]
    )
    assert gpu.fields([(number, 0) for number in range(5)]) == [44, 1 << 40, -8, None, None]


def test_field_error_names_the_field() -> None:
    gpu = device(nvmlDeviceGetFieldValues=[field_value(999, 0)])
    with pytest.raises(NvmlFailure, match=r"nvmlDeviceGetFieldValues \(field 82, scope 0\) failed for GPU 3"):
        gpu.field(82)


def test_driver_without_fields() -> None:
    assert device(nvmlDeviceGetFieldValues=NVMLError(13)).fields([(1, 0), (2, 0)]) == [None, None]


def test_memory_of_an_old_driver() -> None:
    def memory(handle: str, version: int | None = None) -> t.Any:
        return NVMLError(13) if version else SimpleNamespace(total=80, used=10, free=70)

    state = device(nvmlDeviceGetMemoryInfo=memory).memory()
    assert state is not None
    assert (state.total_bytes, state.used_bytes, state.free_bytes, state.reserved_bytes) == (80, 10, 70, None)


def test_ecc_of_a_gpu_without_ecc_asks_for_no_counters() -> None:
    gpu = device(nvmlDeviceGetEccMode=NVMLError(3), nvmlDeviceGetTotalEccErrors=NVMLError(999))
    assert not gpu.ecc().supported


def test_ecc_pending() -> None:
    ecc = device(
        nvmlDeviceGetEccMode=[1, 0],
        nvmlDeviceGetDefaultEccMode=[1],
        nvmlDeviceGetTotalEccErrors=lambda handle, kind, counter: 10 * kind + counter,
    ).ecc()
    assert (ecc.current, ecc.pending, ecc.default) == ("enabled", "disabled", "enabled")
    assert (ecc.volatile.corrected, ecc.volatile.uncorrected) == (0, 10)
    assert (ecc.aggregate.corrected, ecc.aggregate.uncorrected) == (1, 11)


def test_mode_pair() -> None:
    assert device(nvmlDeviceGetMigMode=[0, 1]).mig_mode() == ModePair(current="disabled", pending="enabled")


def test_old_names_are_tried() -> None:
    gpu = device(nvmlDeviceGetCurrentClocksThrottleReasons=0x4, nvmlDeviceGetTemperature=31)
    assert gpu.clocks_event_reasons() == ["sw_power_cap"]
    assert gpu.temperatures().gpu_celsius == 31


def remote(handle: str, link: int) -> t.Any:
    return SimpleNamespace(domain=0, busId=b"00000000:C4:00.0")


def test_links_without_fields_end_at_the_first_that_is_not_there() -> None:
    """As with a driver that has no field values: count by asking, counters one by one."""
    state = device(
        nvmlDeviceGetNvLinkState=lambda handle, link: NVMLError(2) if link == 3 else int(link != 1),
        nvmlDeviceGetNvLinkVersion=4,
        nvmlDeviceGetNvLinkRemoteDeviceType=2,
        nvmlDeviceGetNvLinkRemotePciInfo=remote,
        nvmlDeviceGetNvLinkErrorCounter=lambda handle, link, counter: 100 * link + counter,
    ).nvlink()
    assert (state.total_count, state.active_count) == (3, 2)
    assert [link.state for link in state.links] == ["active", "inactive", "active"]
    last = state.links[2]
    assert (last.version, last.remote_device_type, last.remote_pci_bus_id) == ("3.0", "switch", "0000:c4:00.0")
    assert (last.errors.replay, last.errors.recovery, last.errors.crc) == (200, 201, 202)
    assert last.speed_megabytes_per_second is None


def links_with_fields(per_link: dict[int, t.Any], count: int = 2) -> t.Any:
    def values(handle: str, wanted: list[tuple[int, int]]) -> list[SimpleNamespace]:
        answers = {91: count, **per_link}
        return [
            field_value(0, 1, uiVal=answers[field]) if field in answers else field_value(3, 0)
            for field, scope in wanted
        ]

    return values


def test_links_with_fields_need_one_call_for_all_counters() -> None:
    gpu = device(
        nvmlDeviceGetFieldValues=links_with_fields({161: 7, 162: 8, 163: 9, 164: 25000, 165: 1}),
        nvmlDeviceGetNvLinkState=1,
        nvmlDeviceGetNvLinkVersion=4,
        nvmlDeviceGetNvLinkRemoteDeviceType=2,
        nvmlDeviceGetNvLinkRemotePciInfo=SimpleNamespace(domain=0xFFFFFFFF, busId=b"FFFFFFFF:FF:FF.0"),
        nvmlDeviceGetNvLinkErrorCounter=NVMLError(999),
    )
    state = gpu.nvlink()
    assert state.active_count == 2
    link = state.links[1]
    assert (link.errors.replay, link.errors.recovery, link.errors.crc) == (7, 8, 9)
    assert link.speed_megabytes_per_second == 25000
    # A virtual machine hides the far end.
    assert link.remote_pci_bus_id is None
    assert gpu.nvml.library.log.count("nvmlDeviceGetFieldValues") == 2


def test_common_speed_stands_in_for_links_that_are_up() -> None:
    state = device(
        nvmlDeviceGetFieldValues=links_with_fields({90: 25781, 161: 0}),
        nvmlDeviceGetNvLinkState=lambda handle, link: link,
    ).nvlink()
    assert [link.speed_megabytes_per_second for link in state.links] == [None, 25781]


@pytest.mark.parametrize(("exact", "name"), [(2, "sleep"), (3, "active_traffic_disabled"), (1, "active")])
def test_finer_link_state(exact: int, name: str) -> None:
    state = device(
        nvmlDeviceGetFieldValues=links_with_fields({165: exact, 161: 0}, count=1), nvmlDeviceGetNvLinkState=1
    ).nvlink()
    assert state.links[0].state == name


def test_link_that_the_gpu_should_have_is_not_passed_over() -> None:
    gpu = device(nvmlDeviceGetFieldValues=links_with_fields({}), nvmlDeviceGetNvLinkState=NVMLError(2))
    with pytest.raises(NvmlFailure, match="nvmlDeviceGetNvLinkState failed for GPU 3"):
        gpu.nvlink()


def test_gpu_without_nvlink() -> None:
    state = device(nvmlDeviceGetNvLinkState=NVMLError(3)).nvlink()
    assert (state.total_count, state.links) == (0, ())


def test_processes() -> None:
    names: dict[int, t.Any] = {7: b"/usr/bin/x", 9: NVMLError(6), 11: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")}

    def process(pid: int, used: int | None) -> SimpleNamespace:
        return SimpleNamespace(pid=pid, usedGpuMemory=used)

    found = device(
        nvmlDeviceGetComputeRunningProcesses=[process(9, None), process(7, 1024)],
        nvmlDeviceGetGraphicsRunningProcesses=[process(7, 2**64 - 1), process(11, 1)],
        nvmlSystemGetProcessName=lambda pid: names[pid],
    ).processes()
    assert found is not None
    assert [(p.pid, p.name, p.type, p.used_memory_bytes) for p in found] == [
        (7, "/usr/bin/x", "compute", 1024),
        (7, "/usr/bin/x", "graphics", None),
        (9, None, "compute", None),
        (11, None, "graphics", 1),
    ]


def test_idle_is_not_the_same_as_not_known() -> None:
    assert device(nvmlDeviceGetComputeRunningProcesses=[]).processes() == ()
    assert device().processes() is None


def pci(bus_id: str) -> SimpleNamespace:
    return SimpleNamespace(busId=bus_id.encode(), pciDeviceId=0, pciSubSystemId=0)


def test_devices_are_in_bus_order_and_lost_ones_apart() -> None:
    bus_ids = ["00000000:47:00.0", "00000000:07:00.0", "", "00000000:4E:00.0"]
    library = Library(
        nvmlDeviceGetCount=4,
        nvmlDeviceGetHandleByIndex=lambda index: NVMLError(15) if index == 2 else index,
        nvmlDeviceGetPciInfo=lambda handle: pci(bus_ids[handle]),
        nvmlDeviceGetUUID=lambda handle: NVMLError(15) if handle == 3 else f"GPU-{handle}",
    )
    found, lost = Nvml(library).devices()
    assert [(gpu.identity.index, gpu.identity.uuid, gpu.identity.pci_bus_id) for gpu in found] == [
        (1, "GPU-1", "0000:07:00.0"),
        (0, "GPU-0", "0000:47:00.0"),
    ]
    # The one that was lost while it was asked had already said where it is.
    assert [(gpu.index, gpu.pci_bus_id, gpu.reason, gpu.nvml_code) for gpu in lost] == [
        (2, None, "gpu_lost", 15),
        (3, "0000:4e:00.0", "gpu_lost", 15),
    ]
    assert lost[0].msg.startswith("nvmlDeviceGetHandleByIndex failed for GPU 2: Text of 15 (NVML error 15).")


def test_pynvml_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", t.cast(t.Any, None))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "pynvml.py"
    # As the real one does: it looks itself up while it is loaded.
    file.write_text("import sys\nME = sys.modules[__name__]\n")
    assert _nvml.load_pynvml(str(file)).ME is sys.modules["pynvml"]
    # Root would leave a folder here that the owner of the temporary folder could not remove.
    assert [entry.name for entry in tmp_path.iterdir()] == ["pynvml.py"]
    assert sys.dont_write_bytecode is False


@pytest.mark.parametrize("content", [None, "import surely_not_there\n", "def\n"])
def test_bad_pynvml_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", t.cast(t.Any, None))
    file = tmp_path / "pynvml.py"
    if content is not None:
        file.write_text(content)
    with pytest.raises(NvmlFailure, match="pynvml_path: '.*pynvml.py' cannot be loaded") as caught:
        _nvml.load_pynvml(str(file))
    assert caught.value.reason == "python_library_missing"
    assert sys.modules.get("pynvml") is None


def test_no_pynvml_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", t.cast(t.Any, None))
    with pytest.raises(NvmlFailure, match="pip install nvidia-ml-py") as caught:
        _nvml.load_pynvml()
    assert caught.value.reason == "python_library_missing"
    assert caught.value.nvml_code is None
