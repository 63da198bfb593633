# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the H200 profile answers is what the real cards answered."""

from __future__ import annotations

import functools
import json
import os
import re
import typing as t
from pathlib import Path

import pytest

from tests.nvml_sim.nvml_simulation import HERE, Answer, Simulation, tool
from tests.nvml_sim.profile_from_recording import field_ids

with open(HERE / "recordings" / "nvml-h200x2-driver580.json", encoding="utf-8") as _stream:
    RECORDED: dict[str, t.Any] = json.load(_stream)
with open(HERE / "recordings" / "nvml-h200-driver580-answers.json", encoding="utf-8") as _stream:
    ANSWERS: dict[str, t.Any] = json.load(_stream)

# Recorded getters that are not simulated: pynvml finds no such function in the library.
NOT_SIMULATED = frozenset(
    """
    nvmlDeviceGetAccountingBufferSize nvmlDeviceGetAccountingMode nvmlDeviceGetAccountingPids nvmlDeviceGetAttributes
    nvmlDeviceGetAttributes_v2 nvmlDeviceGetAutoBoostedClocksEnabled nvmlDeviceGetBBXTimeData_v1
    nvmlDeviceGetBridgeChipInfo nvmlDeviceGetC2cModeInfoV nvmlDeviceGetC2cModeInfoV1 nvmlDeviceGetClkMonStatus
    nvmlDeviceGetComputeInstanceId nvmlDeviceGetCoolerInfo nvmlDeviceGetCurrentClockFreqs
    nvmlDeviceGetCurrentDramEncryptionMode nvmlDeviceGetCurrentDriverModel nvmlDeviceGetCurrentGpuOperationMode
    nvmlDeviceGetDeviceHandleFromMigDeviceHandle nvmlDeviceGetDramEncryptionMode nvmlDeviceGetDriverModel
    nvmlDeviceGetDriverModel_v1 nvmlDeviceGetDriverModel_v2 nvmlDeviceGetDynamicPstatesInfo
    nvmlDeviceGetEncoderSessions nvmlDeviceGetEncoderStats nvmlDeviceGetFBCSessions nvmlDeviceGetFBCStats
    nvmlDeviceGetFanSpeed nvmlDeviceGetFanSpeedRPM nvmlDeviceGetGpcClkMinMaxVfOffset nvmlDeviceGetGpcClkVfOffset
    nvmlDeviceGetGpuInstanceId nvmlDeviceGetGpuOperationMode nvmlDeviceGetLastBBXFlushTime
    nvmlDeviceGetMemClkMinMaxVfOffset nvmlDeviceGetMemClkVfOffset nvmlDeviceGetMinMaxFanSpeed nvmlDeviceGetNumFans
    nvmlDeviceGetPendingDramEncryptionMode nvmlDeviceGetPendingDriverModel nvmlDeviceGetPendingGpuOperationMode
    nvmlDeviceGetPerformanceModes nvmlDeviceGetPgpuMetadataString nvmlDeviceGetSupportedMemoryClocks
    nvmlDeviceGetSupportedPerformanceStates
    """.split()
)

# Two readings of one counter that runs: the recording has the field earlier than the function.
RUNNING = {
    "field NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION": "nvmlDeviceGetTotalEnergyConsumption",
    "field NVML_FI_DEV_ENERGY": "nvmlDeviceGetTotalEnergyConsumption",
}


def call_for(index: int, key: str) -> list[t.Any]:
    """The pynvml call that was recorded under ``key``."""
    handle = f"@{index}"
    if key.startswith("field "):
        return ["nvmlDeviceGetFieldValues", handle, [[field_ids()[key[len("field NVML_FI_DEV_") :]], 0]]]
    match = re.fullmatch(r"(nvml\w+)((?:\[\d+\])*)", key)
    if match is not None:
        return [match[1], handle, *map(int, re.findall(r"\d+", match[2]))]
    name, *numbers = key.replace("err", "").replace("counter", "").replace("cap", "").split()
    if name == "topo":
        return ["nvmlDeviceGetTopologyCommonAncestor", handle, f"@{numbers[0]}"]
    if name == "p2p":
        return ["nvmlDeviceGetP2PStatus", handle, f"@{numbers[0]}", int(numbers[1])]
    if name == "ecc":
        return ["nvmlDeviceGetTotalEccErrors", handle, *map(int, numbers[1:])]
    function = {
        "bar1": "nvmlDeviceGetBAR1MemoryInfo",
        "temp": "nvmlDeviceGetTemperature",
        "tempthr": "nvmlDeviceGetTemperatureThreshold",
        "clocks": "nvmlDeviceGetClockInfo",
        "maxclocks": "nvmlDeviceGetMaxClockInfo",
    }[name]
    return [function, handle, *([0] if name == "temp" else map(int, numbers))]


CASES = [
    (index, key)
    for index, device in enumerate(RECORDED["devices"])
    for key in device
    if re.sub(r"\[.*", "", key) not in NOT_SIMULATED
]


@pytest.fixture(scope="module")
def simulated(library: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], Answer]:
    directory = tmp_path_factory.mktemp("h200") / "state"
    tool("create", "--profile", "h200-sxm-x2", str(directory))
    answers = Simulation(library, directory).ask(*(call_for(*case) for case in CASES))
    return dict(zip(CASES, answers, strict=True))


@pytest.mark.parametrize(("index", "key"), CASES)
def test_equals_recording(index: int, key: str, simulated: dict[tuple[int, str], Answer]) -> None:
    recorded = RECORDED["devices"][index][key]
    answer = simulated[index, key]
    if key in RUNNING:
        # The function's own case proves the value; both come from one key.
        assert answer == {"ok": [[3, 0, RECORDED["devices"][index][RUNNING[key]]["r"]]]}
    elif key.startswith("field "):
        assert answer == {"ok": [[recorded["type"], recorded["ret"], recorded["ull"]]]}
    elif isinstance(recorded["r"], dict) and "error" in recorded["r"]:
        assert answer["error"] == recorded["r"]["error"]
        assert answer["text"] == recorded["r"]["text"]
    else:
        assert answer == {"ok": recorded["r"]}


def test_what_is_not_simulated_is_not_there(h200: Simulation) -> None:
    names = sorted(NOT_SIMULATED)
    answers = h200.ask(*([name, "@0"] for name in names))
    assert {name: answer.get("class") for name, answer in zip(names, answers, strict=True)} == dict.fromkeys(
        names, "NVMLError_FunctionNotFound"
    )


def test_system_equals_recording(h200: Simulation) -> None:
    answers = h200.ask(
        ["nvmlDeviceGetCount"],
        ["nvmlSystemGetDriverVersion"],
        ["nvmlSystemGetNVMLVersion"],
        ["nvmlSystemGetCudaDriverVersion"],
    )
    wanted = [RECORDED[name] for name in ("count", "driver", "nvml", "cuda")]
    assert [answer.get("ok") for answer in answers] == wanted


# What record_answers.py may get otherwise from the simulated library than from the card, and why.
DIFFERENCES = {
    r"cuInit|cuCtxCreate|busy .*": "there is no CUDA beside the simulated library",
    r"symbols|driver branch|sram ecc status": "less is simulated than the driver has",
    r"sysfs": "the kernel's own tree is read, not the simulated one",
    r"no device": "the real library crashes",
    r"by uuid own upper": "the published UUID has digits only, so that upper case is the same",
    r"clock [01]|(temperature|temperature v) 0|field 82 scope \d+|pcie throughput \d": "another moment",
    r"nvmlDeviceGetBoardPartNumber buffer length\+1": "another board",
    r"nvmlSystemGetProcessName pid self buffer \d+": "another process",
    r"link (18|35|36|1000) capability \d": "how many links a chip could have is not simulated",
}


@functools.lru_cache(maxsize=1)
def differences() -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in DIFFERENCES))


@pytest.fixture(scope="module")
def recorded_anew(library: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, t.Any]:
    """record_answers.py run over the simulated library, for one card whose links are off as on the recorded one."""
    directory = tmp_path_factory.mktemp("answers") / "state"
    tool("create", "--profile", "h200-sxm-x2", "--gpus", "1", str(directory))
    for path in (directory / "gpu0" / "nvlink").iterdir():
        path.unlink()
    done = Simulation(library, directory).python("-W", "ignore", str(HERE / "record_answers.py"))
    assert done.returncode == 0, done.stderr
    return t.cast("dict[str, t.Any]", json.loads(done.stdout))


@pytest.mark.skipif(
    any(os.access(f"{folder}/libcuda.so.1", os.R_OK) for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64")),
    reason="with a real CUDA here, the recorder would use it",
)
@pytest.mark.parametrize("key", [key for key in ANSWERS if not differences().fullmatch(key)])
def test_equals_answers(key: str, recorded_anew: dict[str, t.Any]) -> None:
    assert recorded_anew[key] == ANSWERS[key]


def test_differences_are_still_there() -> None:
    for pattern in DIFFERENCES:
        assert any(re.fullmatch(pattern, key) for key in ANSWERS), pattern


def test_processes_as_recorded(h200: Simulation) -> None:
    """A process on the card: too little room, then the entry, as the real library answered."""
    (memory,) = (entry["usedGpuMemory"] for entry in ANSWERS["busy nvmlDeviceGetComputeRunningProcesses_v3"][2])
    h200.set("gpu0/processes", f"4242 compute {memory}")
    script = """
import ctypes, json, pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
library = ctypes.CDLL("libnvidia-ml.so.1")
answers = {}
for what in ("Compute", "Graphics", "MPSCompute"):
    for version in ("", "_v2", "_v3"):
        name = f"nvmlDeviceGet{what}RunningProcesses{version}"
        size = ctypes.c_uint(0)
        answers[f"busy {name} size"] = [{"ret": getattr(library, name)(handle, ctypes.byref(size), None)}, size.value]
        size = ctypes.c_uint(0)
        room = (pynvml.c_nvmlProcessInfo_v3_t * 8)()
        ret = getattr(library, name)(handle, ctypes.byref(size), ctypes.byref(room))
        answers[f"busy {name} room for none"] = [{"ret": ret}, size.value]
        if version:
            size = ctypes.c_uint(8)
            ret = getattr(library, name)(handle, ctypes.byref(size), ctypes.byref(room))
            listed = [
                {
                    "pid": "self" if entry.pid == 4242 else "other",
                    "usedGpuMemory": entry.usedGpuMemory,
                    "gpuInstanceId": entry.gpuInstanceId,
                    "computeInstanceId": entry.computeInstanceId,
                }
                for entry in room[: size.value]
            ]
            answers[f"busy {name}"] = [{"ret": ret}, size.value, listed]
print(json.dumps(answers))
"""
    done = h200.python("-c", script)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert len(answers) == 24
    assert answers == {key: ANSWERS[key] for key in answers}
