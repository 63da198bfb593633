# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The library itself: what it exports and needs, sessions, errors, values that change under it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import typing as t
from pathlib import Path

import pynvml
import pytest

from tests.nvml_sim.nvml_simulation import HERE, Simulation
from tests.nvml_sim.test_recording import CASES, call_for

# Debian 11 has it; all hosts that the collection manages have this or a later one.
OLDEST_GLIBC = (2, 31)


def binutils(program: str, *arguments: str) -> str:
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed (package binutils)")
    return subprocess.run([path, *arguments], check=True, capture_output=True, text=True).stdout


def test_runs_with_old_c_libraries(library: Path) -> None:
    needs = binutils("readelf", "--version-info", str(library / "libnvidia-ml.so.1"))
    versions = {tuple(map(int, text.split("."))) for text in re.findall(r"GLIBC_([0-9.]+)", needs)}
    assert versions
    assert max(versions) <= OLDEST_GLIBC


def test_name_and_dependencies(library: Path) -> None:
    dynamic = binutils("readelf", "--dynamic", str(library / "libnvidia-ml.so.1"))
    assert re.findall(r"\(SONAME\).*\[(.*)\]", dynamic) == ["libnvidia-ml.so.1"]
    assert re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic) == ["libc.so.6"]


def test_exports_nothing_but_nvml(library: Path) -> None:
    table = binutils("readelf", "--dyn-syms", "--wide", str(library / "libnvidia-ml.so.1"))
    rows = [line.split() for line in table.splitlines() if " GLOBAL " in line or " WEAK " in line]
    exported = {row[7] for row in rows if len(row) > 7 and row[6] != "UND"}
    assert exported
    assert {name for name in exported if not name.startswith("nvml")} == set()
    # What sets, resets or clears something and is not simulated is left for callers to find missing.
    changing = re.compile(r"nvml(Device|System|Unit|GpuInstance)?(Set|Reset|Clear|Modify|Remove|Create|Destroy)")
    assert {name for name in exported if changing.match(name)} == {
        "nvmlDeviceClearEccErrorCounts",
        "nvmlDeviceResetNvLinkErrorCounters",
        "nvmlDeviceSetEccMode",
        "nvmlDeviceSetMigMode",
        "nvmlDeviceSetPersistenceMode",
        "nvmlDeviceSetPowerManagementLimit",
        "nvmlDeviceSetPowerManagementLimit_v2",
    }


NOT_SIMULATED: list[list[t.Any]] = [
    ["nvmlDeviceSetComputeMode", "@0", 0],
    ["nvmlDeviceSetGpuLockedClocks", "@0", 1000, 1000],
    ["nvmlDeviceResetGpuLockedClocks", "@0"],
    ["nvmlDeviceSetApplicationsClocks", "@0", 1215, 1410],
    ["nvmlDeviceResetApplicationsClocks", "@0"],
    ["nvmlDeviceSetAccountingMode", "@0", 1],
]


@pytest.mark.parametrize("call", NOT_SIMULATED, ids=lambda call: str(call[0]))
def test_setters_beyond_the_simulated_are_not_found(call: list[t.Any], dgx: Simulation) -> None:
    (answer,) = dgx.ask(call)
    assert answer["class"] == "NVMLError_FunctionNotFound"
    assert answer["error"] == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND


def test_functions_beyond_the_simulated_are_not_found(dgx: Simulation) -> None:
    answers = dgx.ask(["nvmlSystemGetConfComputeState"], ["nvmlDeviceGetFanSpeed_v2", "@0", 0], ["nvmlUnitGetCount"])
    assert [answer["class"] for answer in answers] == ["NVMLError_FunctionNotFound"] * 3


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (9, "NVMLError_DriverNotLoaded"),
        (18, "NVMLError_LibRmVersionMismatch"),
        (4, "NVMLError_NoPermission"),
        (999, "NVMLError_Unknown"),
    ],
)
def test_init_error(code: int, name: str, dgx: Simulation) -> None:
    (dgx.directory / "init_error").write_text(f"{code}\n", encoding="utf-8")
    (answer,) = dgx.ask(["nvmlInit"], init=False)
    assert (answer["error"], answer["class"]) == (code, name)
    (dgx.directory / "init_error").unlink()
    assert dgx.one("nvmlDeviceGetCount") == 8


def test_no_state_is_no_driver(library: Path, tmp_path: Path) -> None:
    (answer,) = Simulation(library, tmp_path / "nothing").ask(["nvmlInit"], init=False)
    assert answer["error"] == pynvml.NVML_ERROR_DRIVER_NOT_LOADED


def test_no_gpus(make_simulation: t.Callable[..., Simulation]) -> None:
    empty = make_simulation("dgx-a100-80gb", "--gpus", "0")
    answers = empty.ask(
        ["nvmlInit"],
        ["nvmlInitWithFlags", pynvml.NVML_INIT_FLAG_NO_GPUS],
        ["nvmlDeviceGetCount"],
        ["nvmlDeviceGetHandleByIndex", 0],
        ["nvmlSystemGetDriverVersion"],
        init=False,
    )
    assert answers[0]["error"] == pynvml.NVML_ERROR_GPU_NOT_FOUND
    assert answers[2]["ok"] == 0
    assert answers[3]["error"] == pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert answers[4]["ok"] == "580.159.04"


def test_selectors(dgx: Simulation) -> None:
    uuid = dgx.one("nvmlDeviceGetUUID", "@5")
    serial = dgx.one("nvmlDeviceGetSerial", "@5")
    answers = dgx.ask(
        ["nvmlDeviceGetHandleByUUID", uuid],
        ["nvmlDeviceGetHandleBySerial", serial],
        ["nvmlDeviceGetHandleByPciBusId", "00000000:90:00.0"],
        ["nvmlDeviceGetHandleByPciBusId", "0000:90:00.0"],
        ["nvmlDeviceGetHandleByPciBusId", "0000:BD:00.0"],
        ["nvmlDeviceGetHandleByPciBusId", "0000:bd:00.0"],
        ["nvmlDeviceGetHandleByPciBusId", "0000:91:00.0"],
        ["nvmlDeviceGetHandleByUUID", "GPU-00000000-0000-0000-0000-000000000000"],
        ["nvmlDeviceGetHandleByIndex", 8],
    )
    assert [answer.get("ok", answer.get("error")) for answer in answers] == [5, 5, 5, 5, 7, 7, 6, 6, 2]


def test_processes(dgx: Simulation) -> None:
    lines = ["# pid kind bytes", f"{os.getpid()} compute 1048576", "4000000001 compute -", "77 graphics 5", ""]
    (dgx.directory / "gpu2" / "processes").write_text("\n".join(lines), encoding="utf-8")
    dgx.set("system/process_names#77", "Xorg")
    answers = dgx.ask(
        ["nvmlDeviceGetComputeRunningProcesses", "@2"],
        ["nvmlDeviceGetGraphicsRunningProcesses", "@2"],
        ["nvmlDeviceGetMPSComputeRunningProcesses", "@2"],
        ["nvmlDeviceGetComputeRunningProcesses", "@1"],
        ["nvmlSystemGetProcessName", 77],
        ["nvmlSystemGetProcessName", os.getpid()],
        ["nvmlSystemGetProcessName", 4000000001],
    )
    compute, graphics, mps, other = (
        [(entry["pid"], entry["usedGpuMemory"]) for entry in answer["ok"]] for answer in answers[:4]
    )
    assert compute == [(os.getpid(), 1048576), (4000000001, None)]
    assert graphics == [(77, 5)]
    assert mps == other == []
    assert answers[4]["ok"] == "Xorg"
    assert answers[5]["ok"] == Path(f"/proc/{os.getpid()}/cmdline").read_bytes().split(b"\0")[0].decode()
    assert answers[6]["error"] == pynvml.NVML_ERROR_NOT_FOUND


def test_values_of_the_state_are_read_at_each_call(dgx: Simulation) -> None:
    script = """
import pathlib, sys, pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
path = pathlib.Path(sys.argv[1]) / "gpu0" / "temperature" / "gpu"
print(pynvml.nvmlDeviceGetTemperature(handle, 0))
path.write_text("91\\n")
print(pynvml.nvmlDeviceGetTemperature(handle, 0))
path.write_text("!GPU_IS_LOST\\n")
try:
    pynvml.nvmlDeviceGetTemperature(handle, 0)
except pynvml.NVMLError_GpuIsLost as error:
    print(error)
path.unlink()
try:
    pynvml.nvmlDeviceGetTemperature(handle, 0)
except pynvml.NVMLError_NotSupported as error:
    print(error)
"""
    done = dgx.python("-c", script, str(dgx.directory))
    assert done.stdout.splitlines() == ["28", "91", "GPU is lost", "Not Supported"], done.stderr


def test_functions_and_fields_never_differ(dgx: Simulation) -> None:
    dgx.set("gpu0/ecc/aggregate/uncorrected/sram", 3)
    dgx.set("gpu0/ecc/aggregate/uncorrected/dram", 4)
    dgx.set("gpu0/power/enforced_limit", 350000)
    dgx.set("gpu0/ecc/pending", 0)
    dgx.set("gpu0/ecc/current", 1)
    dgx.set("gpu0/nvlink/4#error_replay", 9)
    dgx.set("gpu0/nvlink/5#state", 0)
    answers = dgx.ask(
        ["nvmlDeviceGetTotalEccErrors", "@0", 1, 1],
        ["nvmlDeviceGetMemoryErrorCounter", "@0", 1, 1, 7],
        ["nvmlDeviceGetEnforcedPowerLimit", "@0"],
        ["nvmlDeviceGetPowerManagementLimit", "@0"],
        ["nvmlDeviceGetEccMode", "@0"],
        ["nvmlDeviceGetNvLinkErrorCounter", "@0", 4, 0],
        ["nvmlDeviceGetNvLinkState", "@0", 5],
    )
    assert [answer["ok"] for answer in answers] == [7, 3, 350000, 400000, [1, 0], 9, 0]
    fields = [6, 190, 192, 1, 2, [161, 4], 52, [165, 5], 90]
    values = dgx.one("nvmlDeviceGetFieldValues", "@0", fields)
    assert [value for _kind, _ret, value in values] == [7, 350000, 400000, 1, 0, 9, 9, 0, 25000]
    assert {ret for _kind, ret, _value in values} == {0}


def test_field_file_is_asked_first(dgx: Simulation) -> None:
    lines = "82 = s32 -5\n230 = !GPU_IS_LOST\n94 = u32 !7\n95 = u32\n241 = double 2\n"
    (dgx.directory / "gpu0" / "fields").write_text(lines, encoding="utf-8")
    values = dgx.one("nvmlDeviceGetFieldValues", "@0", [82, 230, 94, 95, 241, 83])
    assert values[0] == [5, 0, 0xFFFFFFFB]
    assert [value[:2] for value in values[1:4]] == [[0, 15], [1, 7], [1, 999]]
    assert values[4] == [0, 0, 0x4000000000000000]
    assert values[5][:2] == [3, 0]


def test_a_forked_child_must_init_again(dgx: Simulation) -> None:
    script = """
import os, pynvml
pynvml.nvmlInit()
if os.fork() == 0:
    try:
        pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError_Uninitialized:
        pynvml.nvmlInit()
        os._exit(pynvml.nvmlDeviceGetCount())
    os._exit(99)
print(os.waitstatus_to_exitcode(os.wait()[1]), pynvml.nvmlDeviceGetCount())
"""
    assert dgx.python("-W", "ignore", "-c", script).stdout == "8 8\n"


def test_readers_see_whole_values(dgx: Simulation) -> None:
    """Readers beside a writer that follows the rules: the old value or the new one, never an error."""
    script = """
import sys, threading, pynvml
pynvml.nvmlInit()
seen = set()
def read():
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    for _ in range(1500):
        try:
            seen.add(pynvml.nvmlDeviceGetPowerManagementLimit(handle))
            seen.add(pynvml.nvmlDeviceGetNvLinkErrorCounter(handle, 3, 0))
        except pynvml.NVMLError as error:
            seen.add(str(error))
threads = [threading.Thread(target=read) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(*sorted(seen, key=str))
"""
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for limit, errors in ((300000, 1), (400000, 0)):
                dgx.set("gpu0/power/limit", limit)
                dgx.set("gpu0/nvlink/3#error_replay", errors)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        readers = [
            subprocess.Popen(
                [sys.executable, "-c", script],
                env=dgx.environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _reader in range(2)
        ]
        outputs = [reader.communicate(timeout=120) for reader in readers]
    finally:
        stop.set()
        writer.join()
    for output, errors in outputs:
        assert set(output.split()) <= {"0", "1", "300000", "400000"}, errors
        assert output


SPOIL = """
import json, pathlib, sys
import pynvml
from tests.nvml_sim.ask import answer

directory, one_by_one = pathlib.Path(sys.argv[1]), sys.argv[3] == "one by one"
garbage = sys.argv[2].encode("utf-8").decode("unicode_escape").encode("latin-1")
calls = json.load(sys.stdin)
pynvml.nvmlInit()
files = [path for path in sorted((directory / "gpu0").rglob("*")) if path.is_file()]
groups = [[path] for path in files if path.parent.name != "nvlink" or path.name == "0"] if one_by_one else [files]
errors = {}
for group in groups:
    before = {path: path.read_bytes() for path in group}
    for path in group:
        path.write_bytes(garbage)
    codes = set()
    for call in calls:
        try:
            result = answer(call)
        except UnicodeDecodeError:
            continue  # a text that pynvml cannot read
        codes.add(result.get("error", 0))
        if call[0] == "nvmlDeviceGetFieldValues" and "ok" in result:
            codes |= {ret for _, ret, _ in result["ok"]}
    for path, content in before.items():
        path.write_bytes(content)
    errors[str(group[0].relative_to(directory))] = sorted(codes)
json.dump(errors, sys.stdout)
"""

# Files of which any text is a good value, and files of lines: one that is no "name = value" is no line.
TEXTS = {"board_part_number", "name", "serial", "uuid", "vbios_version", "image_version", "ecc", "oem", "version"}
LINES = {"gpu0/fields", "gpu0/nvlink/0", "gpu0/p2p/gpu1", "gpu0/topology", "gpu0/remapped_rows/histogram"}


def every_call() -> list[list[t.Any]]:
    """One call of each kind that the recording has, and what it lacks."""
    calls: dict[str, list[t.Any]] = {}
    for index, key in CASES:
        if index == 0 and not key.startswith("field "):
            # Of links only the first; without its numbers a key names one kind of call.
            calls.setdefault(re.sub(r"\[\d+\](?=.*)|[0-9]", "", key) + key[-3:], call_for(0, key))
    return [
        *(call for call in calls.values() if "NvLink" not in call[0] or call[2] == 0),
        ["nvmlDeviceGetFieldValues", "@0", list(range(308))],
        ["nvmlDeviceGetMemoryErrorCounter", "@0", 0, 0, 2],
        ["nvmlDeviceGetMemoryErrorCounter", "@0", 1, 1, 7],
        ["nvmlDeviceGetInforomVersion", "@0", 0],
        ["nvmlDeviceGetInforomVersion", "@0", 1],
        *(["nvmlDeviceGetPcieThroughput", "@0", counter] for counter in (0, 1)),
        *(
            [f"nvmlDeviceGet{name}", "@0", clock]
            for name in (
                "ClockInfo",
                "MaxClockInfo",
                "ApplicationsClock",
                "DefaultApplicationsClock",
                "MaxCustomerBoostClock",
            )
            for clock in range(4)
        ),
        *(
            [f"nvmlDeviceGet{name}", "@0", 4, scope]
            for name in ("CpuAffinityWithinScope", "MemoryAffinity")
            for scope in (0, 1)
        ),
        ["nvmlDeviceGetPciInfoExt", "@0", "*nvmlPciInfoExt_v1_t nvmlPciInfoExt_v1"],
        ["nvmlDeviceGetGpuFabricInfoV", "@0", "*c_nvmlGpuFabricInfo_v3_t nvmlGpuFabricInfo_v3"],
        ["nvmlDeviceGetComputeRunningProcesses", "@0"],
        ["nvmlDeviceGetHandleByUUID", "GPU-0"],
        ["nvmlDeviceGetHandleBySerial", "0"],
        ["nvmlDeviceGetHandleByPciBusId", "0:1:2.0"],
    ]


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param("", id="empty"),
        pytest.param("x" * 100, id="word"),
        pytest.param("-1", id="negative"),
        pytest.param("99999999999999999999999", id="huge"),
        pytest.param("\\x00\\xff\\xfe\\x00", id="binary"),
        pytest.param("!nonsense", id="error"),
        pytest.param("= = =\\n#\\n=\\nstate =\\n", id="equals"),
        pytest.param("9" * 70000, id="long"),
    ],
)
def test_malformed_state_is_no_crash(garbage: str, h200: Simulation) -> None:
    """Every file of a GPU at once, every getter over it."""
    (h200.directory / "gpu0" / "processes").write_text("1 compute 1\n", encoding="utf-8")
    script = ["-W", "ignore", "-c", SPOIL, str(h200.directory), garbage, "at once"]
    done = h200.python(*script, text=json.dumps(every_call()))
    assert done.returncode == 0, done.stderr
    (codes,) = json.loads(done.stdout).values()
    assert 999 in codes
    assert set(codes) <= {0, 2, 3, 6, 7, 999}


def test_each_malformed_file_is_noticed(h200: Simulation) -> None:
    """Each file of a GPU in turn."""
    (h200.directory / "gpu0" / "processes").write_text("1 compute 1\n", encoding="utf-8")
    script = ["-W", "ignore", "-c", SPOIL, str(h200.directory), "word", "one by one"]
    done = h200.python(*script, text=json.dumps(every_call()))
    assert done.returncode == 0, done.stderr
    errors = json.loads(done.stdout)
    assert len(errors) > 100
    unnoticed = {file for file, codes in errors.items() if 999 not in codes}
    assert {file for file in unnoticed - LINES if file.rsplit("/", 1)[1] not in TEXTS} == set()


def test_debug_names_the_file(dgx: Simulation) -> None:
    (dgx.directory / "gpu0" / "power" / "usage").write_text("40x\n", encoding="utf-8")
    script = (
        "import pynvml; pynvml.nvmlInit()\n"
        "try: pynvml.nvmlDeviceGetPowerUsage(pynvml.nvmlDeviceGetHandleByIndex(0))\n"
        "except pynvml.NVMLError_Unknown: pass\n"
    )
    environment = {**dgx.environment(), "NVML_SIM_DEBUG": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == "nvml-sim: power/usage: '40x' is no number\n"


def test_no_memory_errors(dgx: Simulation, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A walk over all GPUs in C, under valgrind (`make asan` builds the library for the same purpose)."""
    # Counts to clear, and faults that count their calls and never come.
    for gpu in range(8):
        dgx.set(f"gpu{gpu}/ecc/volatile/corrected/dram", 5)
        dgx.set(f"gpu{gpu}/nvlink/11#error_replay", 5)
    (dgx.directory / "faults").write_text(
        "# none\n* gpu3 = UNKNOWN on 100000\nnvmlInit = TIMEOUT on 2\n", encoding="utf-8"
    )
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        pytest.skip("valgrind is not installed")
    folder = tmp_path_factory.mktemp("walk")
    program = folder / "walk"
    source = folder / "walk.c"
    source.write_text(WALK, encoding="utf-8")
    subprocess.run(
        [
            "cc",
            "-std=c11",
            "-g",
            "-o",
            str(program),
            str(source),
            "-I",
            str(HERE / "src"),
            f"-L{dgx.library}",
            "-l:libnvidia-ml.so.1",
        ],
        check=True,
    )
    done = subprocess.run(
        [valgrind, "--quiet", "--error-exitcode=42", "--leak-check=full", str(program)],
        env=dgx.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "8 GPUs\n"


WALK = r"""
#include <stdio.h>
#include <string.h>
#include "abi.h"

nvmlReturn_t nvmlInit_v2(void), nvmlShutdown(void), nvmlDeviceGetCount_v2(unsigned int *);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int, nvmlDevice_t *);
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t, char *, unsigned int);
nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t, nvmlPciInfo_v2_t *);
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t, nvmlPciInfo_t *);
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t, unsigned int, nvmlPciInfo_t *);
nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t, unsigned int, unsigned long *);
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t, int, nvmlFieldValue_t *);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t, unsigned int *, nvmlProcessInfo_t *);
nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t, nvmlDevice_t, unsigned int *);
nvmlReturn_t nvmlDeviceSetEccMode(nvmlDevice_t, unsigned int), nvmlDeviceSetPersistenceMode(nvmlDevice_t, unsigned int);
nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t, unsigned int);
nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t, unsigned int, nvmlReturn_t *);
nvmlReturn_t nvmlDeviceClearEccErrorCounts(nvmlDevice_t, unsigned int);
nvmlReturn_t nvmlDeviceResetNvLinkErrorCounters(nvmlDevice_t, unsigned int);

int main(void) {
    unsigned int count = 0;
    if (nvmlInit_v2() != NVML_SUCCESS || nvmlDeviceGetCount_v2(&count) != NVML_SUCCESS)
        return 1;
    for (unsigned int n = 0; n < count; n++) {
        nvmlDevice_t device, other;
        char name[96];
        nvmlPciInfo_t pci;
        nvmlPciInfo_v2_t old;
        unsigned long cpus[4];
        unsigned int level, processes = 0;
        nvmlFieldValue_t fields[320];
        memset(fields, 0, sizeof fields);
        for (unsigned int id = 0; id < 320; id++)
            fields[id].fieldId = id;
        if (nvmlDeviceGetHandleByIndex_v2(n, &device) != NVML_SUCCESS ||
            nvmlDeviceGetHandleByIndex_v2((n + 1) % count, &other) != NVML_SUCCESS ||
            nvmlDeviceGetName(device, name, sizeof name) != NVML_SUCCESS ||
            nvmlDeviceGetPciInfo_v3(device, &pci) != NVML_SUCCESS ||
            nvmlDeviceGetPciInfo_v2(device, &old) != NVML_SUCCESS ||
            nvmlDeviceGetNvLinkRemotePciInfo_v2(device, 11, &pci) != NVML_SUCCESS ||
            nvmlDeviceGetCpuAffinity(device, 4, cpus) != NVML_SUCCESS ||
            nvmlDeviceGetComputeRunningProcesses_v3(device, &processes, NULL) != NVML_SUCCESS ||
            nvmlDeviceGetTopologyCommonAncestor(device, other, &level) != NVML_SUCCESS ||
            nvmlDeviceGetFieldValues(device, 320, fields) != NVML_SUCCESS)
            return 2;
        nvmlReturn_t status;
        if (nvmlDeviceSetEccMode(device, 0) != NVML_SUCCESS || nvmlDeviceSetEccMode(device, 1) != NVML_SUCCESS ||
            nvmlDeviceSetPersistenceMode(device, 1) != NVML_SUCCESS ||
            nvmlDeviceSetPowerManagementLimit(device, 300000) != NVML_SUCCESS ||
            nvmlDeviceSetPowerManagementLimit(device, 1) != NVML_ERROR_INVALID_ARGUMENT ||
            nvmlDeviceSetMigMode(device, 1, &status) != NVML_SUCCESS || status != NVML_SUCCESS ||
            nvmlDeviceClearEccErrorCounts(device, 0) != NVML_SUCCESS ||
            nvmlDeviceResetNvLinkErrorCounters(device, 11) != NVML_SUCCESS)
            return 5;
        if (nvmlDeviceGetName((nvmlDevice_t)(void *)name, name, sizeof name) != NVML_ERROR_INVALID_ARGUMENT)
            return 3;
    }
    printf("%u GPUs\n", count);
    return nvmlShutdown() == NVML_SUCCESS ? 0 : 4;
}
"""
