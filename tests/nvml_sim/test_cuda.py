# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated libcuda: which functions there are, which GPUs it shows, and what a context does to the state."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

from tests.nvml_sim.nvml_simulation import HERE, Simulation, tool

# Loads the library and runs the text that it gets as its argument; what that leaves in "answer" is printed.
PROGRAM = """
import ctypes, json, os, sys
cuda = ctypes.CDLL("libcuda.so.1")
def number(name, *args):
    value = ctypes.c_int(-1)
    code = getattr(cuda, name)(ctypes.byref(value), *args)
    return value.value if code == 0 else {"error": code}
def handle(name, *args, kind=ctypes.c_void_p):
    value = kind()
    code = getattr(cuda, name)(ctypes.byref(value), *args)
    assert code == 0, (name, code)
    return value
def uuids():
    found = []
    for device in range(number("cuDeviceGetCount")):
        octets = ctypes.create_string_buffer(16)
        assert cuda.cuDeviceGetUuid_v2(octets, device) == 0
        found.append(octets.raw.hex())
    return found
scope = {**globals()}
exec(sys.argv[1], scope)
print(json.dumps(scope["answer"]))
"""
EXPORTED = {
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetUuid_v2",
    "cuDeviceGetPCIBusId",
    "cuDeviceGetAttribute",
    "cuCtxCreate_v2",
    "cuCtxDestroy_v2",
    "cuMemAllocHost_v2",
    "cuMemAlloc_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuEventElapsedTime",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuLaunchKernel",
    "cuGetErrorName",
}


def run(simulation: Simulation, text: str, **environment: str) -> t.Any:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, text],
        env={**simulation.environment(), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def init(simulation: Simulation, **environment: str) -> list[int]:
    """Numbers of the GPUs that are shown, by the UUIDs of the profile."""
    answer = run(simulation, "code = cuda.cuInit(0)\nanswer = uuids() if code == 0 else [code]", **environment)
    return [int(item[-2:], 16) if isinstance(item, str) else -item for item in answer]


def test_it_has_these_functions_and_no_others(dgx: Simulation) -> None:
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", str(dgx.library / "libcuda.so.1")], capture_output=True, text=True, check=True
    )
    assert {line.split()[-1] for line in listed.stdout.splitlines()} == EXPORTED


def test_the_collection_calls_nothing_else() -> None:
    """Of what the product calls, all is simulated, but for the older name that drivers before CUDA 11.4 have."""
    source = (HERE.parents[1] / "plugins/module_utils/_cuda_worker.py").read_text(encoding="utf-8")
    called = set(re.findall(r'"(cu[A-Z]\w+)"', source))
    assert called - EXPORTED == {"cuDeviceGetUuid"}
    assert EXPORTED - called == set()


def test_before_init(dgx: Simulation) -> None:
    """Only the version is known then."""
    assert run(dgx, "answer = [number('cuDeviceGetCount'), number('cuDriverGetVersion')]") == [{"error": 3}, 13000]


@pytest.mark.parametrize(
    ("visible", "shown"),
    [
        (None, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("2,0", [2, 0]),
        ("GPU-a1000000-0000-4000-8000-000000000005", [5]),
        ("3,GPU-a1000000-0000-4000-8000-000000000001", [3, 1]),
        # What follows a word that names no GPU is not shown.
        ("1,9,2", [1]),
        ("1,x,2", [1]),
        ("GPU-99,2", [-100]),
        ("", [-100]),
        ("-1", [-100]),
    ],
)
def test_visible_devices(dgx: Simulation, visible: str | None, shown: list[int]) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert init(dgx, **environment) == shown


def test_gpus_that_are_not_shown(dgx: Simulation) -> None:
    dgx.set("gpu1/mig/pending", 1)
    dgx.set("gpu2/mig/pending", 1)
    dgx.set("gpu2/mig/current", 0)
    tool("lose", str(dgx.directory), "gpu4")
    assert init(dgx) == [0, 2, 3, 5, 6, 7]


@pytest.mark.parametrize(("nvml", "code"), [(9, 100), (18, 803), (4, 999)])
def test_driver_that_does_not_start(dgx: Simulation, nvml: int, code: int) -> None:
    (dgx.directory / "init_error").write_text(f"{nvml}\n")
    assert init(dgx) == [-code]


def test_devices(h200: Simulation) -> None:
    answer = run(
        h200,
        """
cuda.cuInit(0)
name, bus_id = ctypes.create_string_buffer(64), ctypes.create_string_buffer(13)
assert cuda.cuDeviceGetName(name, 64, 1) == 0 and cuda.cuDeviceGetPCIBusId(bus_id, 13, 1) == 0
answer = [name.value.decode(), bus_id.value.decode(), cuda.cuDeviceGetPCIBusId(bus_id, 12, 1),
          number("cuDeviceGet", 1), number("cuDeviceGet", 2)]
answer += [number("cuDeviceGetAttribute", attribute, 1) for attribute in (16, 20, 75, 76, 1)]
""",
    )
    assert answer == ["NVIDIA H200", "0000:00:07.0", 1, 1, {"error": 101}, 132, 0, 9, 0, {"error": 1}]


CONTEXT = """
cuda.cuInit(0)
def read(key):
    try:
        return open(os.environ["NVML_SIM_STATE"] + "/" + key).read().strip()
    except FileNotFoundError:
        return None
context = handle("cuCtxCreate_v2", 0, 0)
"""


def test_what_changes_with_the_load(dgx: Simulation) -> None:
    dgx.set("gpu0/pci/current_link_generation", 1)
    dgx.set("gpu0/loaded/pci/current_link_generation", 4)
    dgx.set("gpu0/loaded/power/usage", 390000)
    # One of them stands in run/ already, since it changed after the boot.
    (dgx.directory / "run/gpu0/power").mkdir(parents=True)
    (dgx.directory / "run/gpu0/power/usage").write_text("60000\n")
    ends = [dgx.directory / f"sysfs/bus/pci/devices/0000:0{number}:00.0/current_link_speed" for number in (7, 6)]
    for end in ends:
        end.write_text("2.5 GT/s PCIe\n")
    answer = run(
        dgx,
        CONTEXT
        + """
keys = ["run/gpu0/pci/current_link_generation", "run/gpu0/power/usage",
        "sysfs/bus/pci/devices/0000:07:00.0/current_link_speed", "sysfs/bus/pci/devices/0000:06:00.0/current_link_speed"]
answer = [[read(key) for key in keys]]
assert cuda.cuCtxDestroy_v2(context) == 0
answer.append([read(key) for key in keys])
""",
    )
    assert answer[0] == ["4", "390000", "16.0 GT/s PCIe", "16.0 GT/s PCIe"]
    assert answer[1] == [None, "60000", "2.5 GT/s PCIe", "2.5 GT/s PCIe"]
    assert dgx.one("nvmlDeviceGetCurrPcieLinkGeneration", "@0") == 1
    assert dgx.one("nvmlDeviceGetPowerUsage", "@0") == 60000


def test_nvml_sees_the_load(dgx: Simulation) -> None:
    dgx.set("gpu0/loaded/power/usage", 390000)
    answer = run(
        dgx,
        CONTEXT
        + """
import pynvml
pynvml.nvmlInit()
answer = [pynvml.nvmlDeviceGetPowerUsage(pynvml.nvmlDeviceGetHandleByIndex(number)) for number in (0, 1)]
cuda.cuCtxDestroy_v2(context)
""",
    )
    assert answer == [390000, 52000]


COPY = (
    CONTEXT
    + """
host = handle("cuMemAllocHost_v2", ctypes.c_size_t(1 << 20))
memory = handle("cuMemAlloc_v2", ctypes.c_size_t(1 << 20), kind=ctypes.c_uint64)
stream, start, stop = handle("cuStreamCreate", 0), handle("cuEventCreate", 0), handle("cuEventCreate", 0)
def milliseconds(name, to, source):
    assert cuda.cuEventRecord(start, stream) == 0
    assert getattr(cuda, name)(to, source, ctypes.c_size_t(1 << 20), stream) == 0
    assert cuda.cuEventRecord(stop, stream) == 0 and cuda.cuEventSynchronize(stop) == 0
    elapsed = ctypes.c_float()
    assert cuda.cuEventElapsedTime(ctypes.byref(elapsed), start, stop) == 0
    return elapsed.value
answer = [milliseconds("cuMemcpyHtoDAsync_v2", memory, host), milliseconds("cuMemcpyDtoHAsync_v2", host, memory)]
cuda.cuCtxDestroy_v2(context)
"""
)


def test_copies_take_what_the_link_or_the_state_says(dgx: Simulation) -> None:
    mebibyte = 1 << 20
    # 80 % of 16 lanes of generation 4.
    assert run(dgx, COPY) == pytest.approx([mebibyte / 25.2e6] * 2, rel=1e-3)
    dgx.set("gpu0/pci/current_link_width", 8)
    dgx.set("gpu0/cuda/d2h_mb_per_s", 1000)
    assert run(dgx, COPY) == pytest.approx([mebibyte / 12.6e6, mebibyte / 1e6], rel=1e-3)


def test_memory_is_limited(dgx: Simulation) -> None:
    answer = run(
        dgx,
        CONTEXT
        + """
def take(gibibytes):
    pointer = ctypes.c_uint64()
    return cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(gibibytes << 30))
answer = [take(40), take(39), take(1), take(0)]
""",
    )
    assert answer == [0, 0, 2, 1]


def test_without_a_context(dgx: Simulation) -> None:
    text = CONTEXT.replace('context = handle("cuCtxCreate_v2", 0, 0)', "")
    assert run(dgx, text + "answer = number('cuStreamCreate', 0)") == {"error": 201}


def test_faults(dgx: Simulation) -> None:
    (dgx.directory / "faults").write_text("cuCtxCreate gpu1 = 46\ncuStreamCreate = 999 on 2\n")
    answer = run(
        dgx,
        CONTEXT
        + """
answer = [number("cuCtxCreate_v2", 0, 1), cuda.cuStreamCreate(ctypes.byref(ctypes.c_void_p()), 0)]
answer += [number("cuStreamCreate", 0)]
""",
    )
    assert answer == [{"error": 46}, 0, {"error": 999}]


def test_error_names(dgx: Simulation) -> None:
    text = """
def name(code):
    text = ctypes.c_char_p()
    return [cuda.cuGetErrorName(code, ctypes.byref(text)), (text.value or b"").decode()]
answer = [name(100), name(12345)]
"""
    assert run(dgx, text) == [[0, "CUDA_ERROR_NO_DEVICE"], [1, ""]]


def test_asan(dgx: Simulation, tmp_path: Path) -> None:
    """The whole way of a measurement and a load, with the sanitizers that the library can be built with."""
    built = subprocess.run(
        ["make", "-C", str(HERE), "asan", f"BUILD={tmp_path}"], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    runtime = subprocess.run(
        [os.environ.get("CC", "cc"), "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    dgx.set("gpu0/loaded/pci/current_link_generation", 4)
    load = """
ptx = ctypes.create_string_buffer(b".version 7.0")
module, function = ctypes.c_void_p(), ctypes.c_void_p()
"""
    answer = run(
        dgx,
        COPY.replace("cuda.cuCtxDestroy_v2(context)\n", "")
        + load
        + """
module = handle("cuModuleLoadData", ptx)
function = handle("cuModuleGetFunction", module, b"burn")
rounds = ctypes.c_uint32(10)
parameters = (ctypes.c_void_p * 2)(ctypes.addressof(memory), ctypes.addressof(rounds))
codes = [cuda.cuLaunchKernel(function, 4, 1, 1, 256, 1, 1, 0, stream, parameters, None),
         cuda.cuModuleLoadData(ctypes.byref(module), b"ELF"), cuda.cuModuleGetFunction(ctypes.byref(function), module, b"x"),
         cuda.cuEventDestroy_v2(start), cuda.cuEventDestroy_v2(stop), cuda.cuStreamDestroy_v2(stream),
         cuda.cuCtxDestroy_v2(context), cuda.cuCtxDestroy_v2(context)]
answer = codes
""",
        LD_LIBRARY_PATH=str(tmp_path / "asan"),
        LD_PRELOAD=runtime,
        ASAN_OPTIONS="detect_leaks=0",
    )
    assert answer == [0, 218, 500, 0, 0, 0, 0, 201]
