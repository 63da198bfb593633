# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What changes a card: the setters, who may call them, what lasts and what a reset, a driver load or a boot loses."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

from tests.nvml_sim import nvml_sim
from tests.nvml_sim.nvml_simulation import HERE, Call, Simulation

PROFILES = sorted(path.stem for path in (HERE / "profiles").glob("*.json"))
NOBODY = 65534

INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION = 2, 3, 4
GPU_IS_LOST, IN_USE, VERSION_MISMATCH, UNKNOWN = 15, 19, 25, 999

CHANGES: list[Call] = [
    ["nvmlDeviceSetEccMode", "@0", 0],
    ["nvmlDeviceClearEccErrorCounts", "@0", 0],
    ["nvmlDeviceSetPowerManagementLimit", "@0", 300000],
    ["nvmlDeviceSetPersistenceMode", "@0", 1],
    ["nvmlDeviceSetMigMode", "@0", 1],
    ["nvmlDeviceResetNvLinkErrorCounters", "@0", 0],
]


def results(simulation: Simulation, *calls: Call) -> list[t.Any]:
    """Results, or NVML's error numbers in a tuple of one."""
    return [answer["ok"] if "ok" in answer else (answer["error"],) for answer in simulation.ask(*calls)]


def tree(simulation: Simulation) -> dict[str, str]:
    """All files of the state but its sysfs."""
    top = simulation.directory
    return {
        str(path.relative_to(top)): path.read_text(encoding="utf-8")
        for path in sorted(top.rglob("*"))
        if path.is_file() and "sysfs" not in path.relative_to(top).parts
    }


@pytest.mark.parametrize("profile", PROFILES)
def test_round_trip(profile: str, make_simulation: t.Callable[..., Simulation]) -> None:
    """Every setter on every card: the getters and the field values see it, and no other GPU does."""
    simulation = make_simulation(profile)
    lowest, _highest = simulation.one("nvmlDeviceGetPowerManagementLimitConstraints", "@0")
    getters = (
        "nvmlDeviceGetEccMode",
        "nvmlDeviceGetPowerManagementLimit",
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetPersistenceMode",
        "nvmlDeviceGetMigMode",
    )
    others = [[name, "@1"] for name in getters]
    before = results(simulation, *others)
    assert results(
        simulation,
        ["nvmlDeviceSetEccMode", "@0", 0],
        ["nvmlDeviceSetPowerManagementLimit", "@0", lowest],
        ["nvmlDeviceSetPersistenceMode", "@0", 1],
        ["nvmlDeviceSetMigMode", "@0", 1],
    ) == [None, None, None, 0]
    assert results(simulation, *([name, "@0"] for name in getters)) == [[1, 0], lowest, lowest, 1, [1, 1]]
    fields = simulation.one("nvmlDeviceGetFieldValues", "@0", [1, 2, 192, 190])
    assert [value for _kind, _ret, value in fields] == [1, 0, lowest, lowest]
    assert {ret for _kind, ret, _value in fields} == {0}
    assert results(simulation, *others) == before
    # And back.
    default = simulation.one("nvmlDeviceGetPowerManagementDefaultLimit", "@0")
    results(
        simulation,
        ["nvmlDeviceSetEccMode", "@0", 1],
        ["nvmlDeviceSetPowerManagementLimit", "@0", default],
        ["nvmlDeviceSetPersistenceMode", "@0", 0],
        ["nvmlDeviceSetMigMode", "@0", 0],
    )
    assert results(simulation, *([name, "@0"] for name in getters)) == [[1, 1], default, default, 0, [0, 0]]


def test_bad_values(dgx: Simulation) -> None:
    state = tree(dgx)
    assert (
        results(
            dgx,
            ["nvmlDeviceSetEccMode", "@0", 2],
            ["nvmlDeviceSetPowerManagementLimit", "@0", 99999],
            ["nvmlDeviceSetPowerManagementLimit", "@0", 400001],
            ["nvmlDeviceSetPersistenceMode", "@0", 2],
            ["nvmlDeviceSetMigMode", "@0", 2],
            ["nvmlDeviceClearEccErrorCounts", "@0", 2],
            ["nvmlDeviceResetNvLinkErrorCounters", "@0", 12],
        )
        == [(INVALID_ARGUMENT,)] * 7
    )
    assert tree(dgx) == state


def test_second_version_of_the_power_limit(dgx: Simulation) -> None:
    """Called through ctypes: pynvml's wrapper does not look at the answer."""
    script = """
import ctypes, json, pynvml
pynvml.nvmlInit()
function = ctypes.CDLL("libnvidia-ml.so.1").nvmlDeviceSetPowerManagementLimit_v2
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
answers = []
for version, scope, milliwatts in (
    (0x0200000C, 0, 250000), (0x0100000C, 0, 260000), (0x0200000C, 1, 260000), (0x0200000C, 9, 1), (0x0200000C, 0, 1),
):
    value = (ctypes.c_uint * 3)(version, scope, milliwatts)
    answers.append(function(handle, ctypes.byref(value)))
answers.append(function(handle, None))
print(json.dumps([*answers, pynvml.nvmlDeviceGetPowerManagementLimit(handle)]))
"""
    done = dgx.python("-c", script)
    assert done.returncode == 0, done.stderr
    invalid = INVALID_ARGUMENT
    assert json.loads(done.stdout) == [0, VERSION_MISMATCH, NOT_SUPPORTED, invalid, invalid, invalid, 250000]
    # And pynvml's own, whose structure and version are those.
    dgx.ask(["nvmlDeviceSetPowerManagementLimit_v2", "@1", 0, 200000])
    assert dgx.one("nvmlDeviceGetPowerManagementLimit", "@1") == 200000


def test_cards_that_lack_it(dgx: Simulation) -> None:
    for key in ("ecc/pending", "power/min_limit", "mig/pending", "persistence_mode"):
        (dgx.directory / "gpu0" / key).unlink()
    for path in (dgx.directory / "gpu0" / "nvlink").iterdir():
        path.unlink()
    state = tree(dgx)
    assert results(dgx, *CHANGES) == [(NOT_SUPPORTED,)] * len(CHANGES)
    assert tree(dgx) == state


AS_USER = """
import json, os, sys
import pynvml
from tests.nvml_sim.ask import answer
calls = json.load(sys.stdin)
if os.geteuid() == 0:
    os.seteuid(int(sys.argv[1]))
json.dump([answer(call) for call in calls], sys.stdout)
"""


def ask_as_user(simulation: Simulation, *calls: Call) -> list[t.Any]:
    done = simulation.python("-c", AS_USER, str(NOBODY), text=json.dumps([["nvmlInit"], *calls]))
    assert done.returncode == 0, done.stderr
    session, *answers = json.loads(done.stdout)
    assert session == {"ok": None}
    return [answer.get("ok", (answer.get("error"),)) for answer in answers]


@pytest.fixture(name="open_path")
def fixture_open_path(tmp_path: Path) -> Path:
    """A folder of one's own is closed to others, and so are those of pytest above it; here they may pass and look."""
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents:
        if folder.stat().st_uid != os.geteuid() or folder.stat().st_mode & 0o001:
            break
        folder.chmod(folder.stat().st_mode | 0o011)
    return tmp_path


def test_only_root_changes_a_card(dgx: Simulation, open_path: Path) -> None:
    assert dgx.directory.is_relative_to(open_path)
    dgx.command("unset", "system/allow_users")
    state = tree(dgx)
    # Neither a bad value nor a variable of the environment makes a difference.
    bad = ["nvmlDeviceSetPowerManagementLimit", "@0", 1]
    assert ask_as_user(dgx, *CHANGES, bad) == [(NO_PERMISSION,)] * (len(CHANGES) + 1)
    assert ask_as_user(dgx, ["nvmlDeviceGetEccMode", "@0"]) == [[1, 1]]
    assert tree(dgx) == state


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_users_may_where_the_state_says_so(dgx: Simulation, open_path: Path) -> None:
    assert dgx.directory.is_relative_to(open_path)
    dgx.set("system/allow_users", 1)
    # It is not theirs, so that writing fails as it would in any other program.
    assert ask_as_user(dgx, ["nvmlDeviceSetEccMode", "@0", 0]) == [(NO_PERMISSION,)]
    for path in [dgx.directory, *dgx.directory.rglob("*")]:
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    assert ask_as_user(dgx, *CHANGES) == [None, None, None, None, 0, None]
    assert dgx.one("nvmlDeviceGetEccMode", "@0") == [1, 0]


def test_enforced_below_requested(dgx: Simulation) -> None:
    dgx.set("gpu0/power/enforced_cap", 250000)
    limits: list[Call] = [["nvmlDeviceGetPowerManagementLimit", "@0"], ["nvmlDeviceGetEnforcedPowerLimit", "@0"]]
    assert results(dgx, *limits) == [400000, 250000]
    assert results(dgx, ["nvmlDeviceSetPowerManagementLimit", "@0", 300000], *limits) == [None, 300000, 250000]
    assert results(dgx, ["nvmlDeviceSetPowerManagementLimit", "@0", 200000], *limits) == [None, 200000, 200000]
    assert [value for _kind, _ret, value in dgx.one("nvmlDeviceGetFieldValues", "@0", [190, 192])] == [200000, 200000]
    # A BMC's cap is not the host's to lose.
    dgx.command("reboot")
    assert results(dgx, *limits) == [400000, 250000]


def test_ecc_pending_becomes_current_at_a_boot_that_only_empties_run(
    make_simulation: t.Callable[..., Simulation], tmp_path: Path
) -> None:
    """On a host no command of ours runs at a boot: the folder in /run is gone, and that must be enough."""
    run = tmp_path / "run"
    simulation = make_simulation("dgx-a100-80gb", "--run-dir", str(run))
    mode: Call = ["nvmlDeviceGetEccMode", "@2"]
    assert results(simulation, ["nvmlDeviceSetEccMode", "@2", 0], mode) == [None, [1, 0]]
    # Twice is once.
    assert results(simulation, ["nvmlDeviceSetEccMode", "@2", 0], mode) == [None, [1, 0]]
    simulation.set("gpu2/remapped_rows/pending", 1)
    shutil.rmtree(run)
    assert results(simulation, mode) == [[0, 0]]
    assert results(simulation, ["nvmlDeviceGetRemappedRows", "@2"]) == [[0, 0, 0, 0]]
    assert results(simulation, ["nvmlDeviceSetEccMode", "@2", 1], mode) == [None, [0, 1]]
    # Back to what is current: nothing is pending, and nothing is left of it.
    assert results(simulation, ["nvmlDeviceSetEccMode", "@2", 0], mode) == [None, [0, 0]]
    assert list(run.rglob("current")) == []
    shutil.rmtree(run)
    assert results(simulation, mode) == [[0, 0]]


def test_counters_are_cleared(dgx: Simulation) -> None:
    for kind in ("volatile", "aggregate"):
        for error in ("corrected", "uncorrected"):
            dgx.set(f"gpu0/ecc/{kind}/{error}/dram", 3)
            dgx.set(f"gpu1/ecc/{kind}/{error}/dram", 3)
    totals: list[Call] = [
        ["nvmlDeviceGetTotalEccErrors", gpu, error, counter]
        for gpu in ("@0", "@1")
        for counter in (0, 1)
        for error in (0, 1)
    ]
    assert results(dgx, *totals) == [3] * 8
    assert results(dgx, ["nvmlDeviceClearEccErrorCounts", "@0", 0], *totals) == [None, 0, 0, 3, 3, 3, 3, 3, 3]
    # Those of the card's life stay, from Ampere on; older cards clear them.
    assert results(dgx, ["nvmlDeviceClearEccErrorCounts", "@0", 1]) == [(NOT_SUPPORTED,)]
    dgx.set("gpu1/architecture", 5)
    assert results(dgx, ["nvmlDeviceClearEccErrorCounts", "@1", 1], *totals) == [None, 0, 0, 3, 3, 3, 3, 0, 0]


def test_nothing_is_counted_without_ecc(dgx: Simulation) -> None:
    """nvml.h asks for ECC to be enabled for the counts."""
    counts: list[Call] = [
        ["nvmlDeviceGetTotalEccErrors", "@0", 0, 1],
        ["nvmlDeviceGetMemoryErrorCounter", "@0", 0, 1, 2],
        ["nvmlDeviceClearEccErrorCounts", "@0", 0],
    ]
    field: Call = ["nvmlDeviceGetFieldValues", "@0", [3, 6]]
    assert results(dgx, ["nvmlDeviceSetEccMode", "@0", 0], *counts) == [None, 0, 0, None]
    dgx.command("reboot")
    assert results(dgx, *counts) == [(NOT_SUPPORTED,)] * 3
    assert [ret for _kind, ret, _value in dgx.one(*field)] == [NOT_SUPPORTED] * 2
    results(dgx, ["nvmlDeviceSetEccMode", "@0", 1])
    dgx.command("reboot")
    assert results(dgx, *counts) == [0, 0, None]
    assert [ret for _kind, ret, _value in dgx.one(*field)] == [0, 0]


def test_link_counters_are_cleared(dgx: Simulation) -> None:
    names = ("error_replay", "error_recovery", "error_crc_flit", "error_crc_data", "error_ecc_data")
    for link in (3, 4):
        for number, name in enumerate(names):
            dgx.set(f"gpu0/nvlink/{link}#{name}", 10 + number)
    dgx.set("gpu0/nvlink/3#state", 0)
    counters = [["nvmlDeviceGetNvLinkErrorCounter", "@0", link, counter] for link in (3, 4) for counter in range(5)]
    numbers = [10, 11, 12, 13, 14]
    assert results(dgx, *counters) == numbers * 2
    assert results(dgx, ["nvmlDeviceResetNvLinkErrorCounters", "@0", 3], *counters) == [None, *[0] * 5, *numbers]
    # It is no reset of the link.
    assert dgx.one("nvmlDeviceGetNvLinkState", "@0", 3) == 0


def test_mig_of_ampere(dgx: Simulation) -> None:
    """Kept by the InfoROM; pending while something uses the GPU, until a reset."""
    mode: Call = ["nvmlDeviceGetMigMode", "@0"]
    assert results(dgx, ["nvmlDeviceSetMigMode", "@0", 1], mode) == [0, [1, 1]]
    dgx.command("reboot")
    assert results(dgx, mode) == [[1, 1]]
    dgx.set("gpu0/processes", "4242 compute 1048576")
    assert results(dgx, ["nvmlDeviceSetMigMode", "@0", 0], mode) == [IN_USE, [1, 0]]
    dgx.command("unset", "gpu0/processes")
    assert results(dgx, mode) == [[1, 0]]
    dgx.command("reset", "gpu0")
    assert results(dgx, mode) == [[0, 0]]


def test_mig_of_hopper_is_lost_at_a_reboot(h200: Simulation) -> None:
    mode: Call = ["nvmlDeviceGetMigMode", "@1"]
    assert results(h200, ["nvmlDeviceSetMigMode", "@1", 1], mode) == [0, [1, 1]]
    h200.command("reset", "gpu1")
    assert results(h200, mode) == [[1, 1]]
    h200.command("reboot")
    assert results(h200, mode) == [[0, 0]]


# What each of the three loses: the calls, and their results before and after.
STATE: list[Call] = [
    ["nvmlDeviceGetEccMode", "@0"],
    ["nvmlDeviceGetPowerManagementLimit", "@0"],
    ["nvmlDeviceGetPersistenceMode", "@0"],
    ["nvmlDeviceGetTotalEccErrors", "@0", 1, 0],
    ["nvmlDeviceGetTotalEccErrors", "@0", 1, 1],
    ["nvmlDeviceGetRemappedRows", "@0"],
    ["nvmlDeviceGetNvLinkErrorCounter", "@0", 5, 0],
    ["nvmlDeviceGetNvLinkState", "@0", 5],
    ["nvmlDeviceGetNvLinkState", "@0", 6],
]
CHANGED = [[1, 0], 300000, 1, 2, 7, [0, 1, 1, 0], 9, 0, 0]


def spoil(simulation: Simulation) -> None:
    results(
        simulation,
        ["nvmlDeviceSetEccMode", "@0", 0],
        ["nvmlDeviceSetPowerManagementLimit", "@0", 300000],
        ["nvmlDeviceSetPersistenceMode", "@0", 1],
    )
    simulation.set("gpu0/ecc/volatile/uncorrected/dram", 2)
    simulation.set("gpu0/ecc/aggregate/uncorrected/dram", 7)
    simulation.set("gpu0/remapped_rows/uncorrectable", 1)
    simulation.set("gpu0/remapped_rows/pending", 1)
    simulation.set("gpu0/nvlink/5#error_replay", 9)
    simulation.command("link", "gpu0", "5", "down")
    simulation.command("link", "gpu0", "6", "broken")
    assert results(simulation, *STATE) == CHANGED


@pytest.mark.parametrize(
    ("command", "after"),
    [
        ("reboot", [[0, 0], 400000, 0, (NOT_SUPPORTED,), (NOT_SUPPORTED,), [0, 1, 0, 0], 0, 1, 0]),
        ("driver-reload", [[1, 0], 400000, 0, 0, 7, [0, 1, 1, 0], 0, 1, 0]),
        ("reset", [[1, 0], 400000, 1, 0, 7, [0, 1, 0, 0], 0, 1, 0]),
    ],
)
def test_what_is_lost(command: str, after: list[t.Any], dgx: Simulation) -> None:
    spoil(dgx)
    dgx.command(command)
    assert results(dgx, *STATE) == after


def test_reset_of_one_leaves_the_others(dgx: Simulation) -> None:
    results(dgx, *(["nvmlDeviceSetPowerManagementLimit", f"@{gpu}", 300000] for gpu in range(8)))
    dgx.command("reset", "gpu3", "gpu5")
    limits = results(dgx, *(["nvmlDeviceGetPowerManagementLimit", f"@{gpu}"] for gpu in range(8)))
    assert limits == [400000 if gpu in (3, 5) else 300000 for gpu in range(8)]


@pytest.mark.parametrize("command", ["reset", "driver-reload"])
def test_a_used_gpu_is_left_alone(command: str, dgx: Simulation) -> None:
    results(dgx, ["nvmlDeviceSetPowerManagementLimit", "@0", 300000])
    dgx.set("gpu2/processes", "4242 compute 1048576")
    state = tree(dgx)
    complaint = dgx.command(command, code=1)
    assert "gpu2 is used by process 4242" in complaint
    assert tree(dgx) == state


def test_reset_by_nvidia_smi_is_the_same(dgx: Simulation, make_simulation: t.Callable[..., Simulation]) -> None:
    """Two programs, one meaning: the same files are left."""
    spoil(dgx)
    results(dgx, ["nvmlDeviceSetPersistenceMode", "@0", 0])
    before = tree(dgx)
    dgx.command("reset")
    by_tool = tree(dgx)
    assert by_tool != before
    for path, text in before.items():
        (dgx.directory / path).parent.mkdir(parents=True, exist_ok=True)
        (dgx.directory / path).write_text(text, encoding="utf-8")
    assert tree(dgx) == before
    dgx.smi("--gpu-reset")
    assert tree(dgx) == by_tool


def names_in(source: str, table: str) -> list[str]:
    text = (HERE / "src" / source).read_text(encoding="utf-8")
    (body,) = re.findall(rf"{table}\[\] = \{{(.*?)\}};", text, flags=re.DOTALL)
    return re.findall(r'"([^"]+)"', body)


def test_both_languages_have_the_same_lists() -> None:
    assert names_in("state.c", "lost_at_reboot") == list(nvml_sim.LOST_AT_REBOOT)
    assert names_in("reset.c", "kept_at_reset") == list(nvml_sim.KEPT_AT_RESET)


# ---- faults ----


def test_fault_always_and_for_one_gpu(dgx: Simulation) -> None:
    dgx.command("fault", "nvmlDeviceSetEccMode", "IN_USE", "--gpu", "gpu3")
    calls = [["nvmlDeviceSetEccMode", f"@{gpu}", 0] for gpu in (2, 3, 3)]
    assert results(dgx, *calls) == [None, (IN_USE,), (IN_USE,)]
    assert dgx.one("nvmlDeviceGetEccMode", "@3") == [1, 1]
    assert dgx.command("faults") == "nvmlDeviceSetEccMode gpu3 = IN_USE\n"
    assert dgx.command("faults", "--clear") == ""
    assert results(dgx, *calls) == [None] * 3


@pytest.mark.parametrize(
    ("options", "failing"),
    [
        (("--once",), {1}),
        (("--on", "3"), {3}),
        (("--from", "3"), {3, 4, 5, 6}),
        (("--until", "2"), {1, 2}),
    ],
)
def test_fault_by_count(options: tuple[str, ...], failing: set[int], dgx: Simulation) -> None:
    """Calls are counted over all processes, and only those of that function."""
    dgx.command("fault", "nvmlDeviceGetPowerUsage", "999", *options)
    answers = []
    for _process in range(2):
        for _call in range(3):
            answers.append(["nvmlDeviceGetPowerUsage", "@0"])
    got = [results(dgx, ["nvmlDeviceGetUUID", "@0"], *answers[start : start + 3])[1:] for start in (0, 3)]
    assert {number for number, result in enumerate(got[0] + got[1], 1) if result == (UNKNOWN,)} == failing
    # Asked for again, it counts anew.
    dgx.command("fault", "nvmlDeviceGetPowerUsage", "999", *options)
    assert (results(dgx, ["nvmlDeviceGetPowerUsage", "@0"]) == [(UNKNOWN,)]) == (1 in failing)


def test_fault_of_init_and_of_every_function(dgx: Simulation) -> None:
    dgx.command("fault", "nvmlInit", "TIMEOUT", "--once")
    (answer,) = dgx.ask(["nvmlInit"], init=False)
    assert answer["error"] == 10
    dgx.command("fault", "*", "IRQ_ISSUE", "--gpu", "gpu1")
    assert results(dgx, ["nvmlDeviceGetCount"], ["nvmlDeviceGetName", "@0"], ["nvmlDeviceGetHandleByIndex", 1]) == [
        8,
        "NVIDIA A100-SXM4-80GB",
        (11,),
    ]


def test_fault_of_a_version_of_a_function(dgx: Simulation) -> None:
    dgx.command("fault", "nvmlDeviceGetMemoryInfo_v2", "MEMORY")
    calls: list[Call] = [["nvmlDeviceGetMemoryInfo", "@0"], ["nvmlDeviceGetMemoryInfo", "@0", 0x02000028]]
    assert results(dgx, *calls)[1] == (20,)
    assert results(dgx, *calls)[0]["total"] == 85899345920
    dgx.command("fault", "nvmlDeviceGetMemoryInfo", "MEMORY")
    assert results(dgx, *calls) == [(20,), (20,)]


def test_success_that_did_nothing(dgx: Simulation) -> None:
    dgx.command("fault", "nvmlDeviceSetPowerManagementLimit", "SUCCESS")
    calls: list[Call] = [
        ["nvmlDeviceSetPowerManagementLimit", "@0", 300000],
        ["nvmlDeviceGetPowerManagementLimit", "@0"],
    ]
    assert results(dgx, *calls) == [None, 400000]
    assert "name it" in dgx.command("fault", "*", "SUCCESS", code=1)


def exported(library: Path) -> list[str]:
    table = subprocess.run(
        ["readelf", "--dyn-syms", "--wide", str(library / "libnvidia-ml.so.1")],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return sorted(set(re.findall(r" (nvml\w+)$", table, flags=re.MULTILINE)) - {"nvmlErrorString"})


EVERY_FUNCTION = """
import ctypes, json, pathlib, sys
library = ctypes.CDLL("libnvidia-ml.so.1")
state = pathlib.Path(sys.argv[1])
handle = ctypes.c_void_p()
library.nvmlInit_v2()
library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))
answers = {}
for name in json.load(sys.stdin):
    (state / "faults").write_text(f"{name} = OPERATING_SYSTEM from 2\\n")
    takes_device = name.startswith("nvmlDevice") and "GetHandle" not in name and "GetCount" not in name
    first = handle if takes_device else None
    second = handle if "OnSameBoard" in name or "CommonAncestor" in name or "P2PStatus" in name else None
    if name.startswith("nvmlInit"):
        # Within a session an init starts nothing.
        library.nvmlShutdown()
    if name == "nvmlShutdown":
        library.nvmlInit_v2()
    answers[name] = [getattr(library, name)(first, second, None, None, None, None) for _ in range(2)]
    if name.startswith("nvmlInit"):
        library.nvmlShutdown()
        library.nvmlShutdown()
        answers[name].append(getattr(library, name)(None))
        (state / "faults").unlink()
        library.nvmlInit_v2()
print(json.dumps(answers))
"""


def test_every_exported_function_can_fail_and_counts_once(dgx: Simulation) -> None:
    """Each is called twice with null pointers and must fail at the second: one that counts twice fails at the first."""
    functions = exported(dgx.library)
    assert len(functions) > 100
    done = dgx.python("-c", EVERY_FUNCTION, str(dgx.directory), text=json.dumps(functions))
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert set(answers) == set(functions)
    failing = {name: [number for number, code in enumerate(codes) if code == 17] for name, codes in answers.items()}
    # After an init, a second one within the session starts nothing; the one of the next session does.
    assert failing == {name: [2] if name.startswith("nvmlInit") else [1] for name in functions}


def test_lost_gpu(dgx: Simulation) -> None:
    place = dgx.directory / "sysfs/bus/pci/devices/0000:4e:00.0"
    assert (place / "current_link_width").read_text(encoding="utf-8") == "16\n"
    dgx.command("lose", "gpu3")
    uuid = "GPU-a1000000-0000-4000-8000-000000000003"
    assert results(
        dgx,
        ["nvmlDeviceGetCount"],
        ["nvmlDeviceGetHandleByIndex", 3],
        ["nvmlDeviceGetHandleByUUID", uuid],
        ["nvmlDeviceGetHandleByPciBusId", "00000000:4E:00.0"],
        ["nvmlDeviceGetName", "@2"],
    ) == [8, (GPU_IS_LOST,), (GPU_IS_LOST,), (GPU_IS_LOST,), "NVIDIA A100-SXM4-80GB"]
    # The kernel still lists it, with a link that reads as all ones.
    assert (place / "device").read_text(encoding="utf-8") == "0x20b2\n"
    assert (place / "current_link_width").read_text(encoding="utf-8") == "63\n"
    assert (place / "current_link_speed").read_text(encoding="utf-8") == "Unknown\n"
    assert "gpu3 is lost, so it cannot be reset" in dgx.command("reset", code=1)
    dgx.command("driver-reload")
    assert results(dgx, ["nvmlDeviceGetHandleByIndex", 3]) == [(GPU_IS_LOST,)]
    dgx.command("reboot")
    assert results(dgx, ["nvmlDeviceGetHandleByIndex", 3]) == [3]
    assert (place / "current_link_width").read_text(encoding="utf-8") == "16\n"
    assert (place / "current_link_speed").read_text(encoding="utf-8") == "16.0 GT/s PCIe\n"


def test_gpu_lost_between_two_calls(dgx: Simulation) -> None:
    dgx.command("lose", "gpu3", "--from", "4")
    script = """
import pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(3)
print(pynvml.nvmlDeviceGetMinorNumber(handle))
pynvml.nvmlDeviceSetEccMode(handle, 0)
for call in (
    lambda: pynvml.nvmlDeviceGetEccMode(handle),
    lambda: pynvml.nvmlDeviceGetHandleByIndex(3),
    lambda: pynvml.nvmlDeviceGetTopologyCommonAncestor(handle, pynvml.nvmlDeviceGetHandleByIndex(0)),
):
    try:
        print(call())
    except pynvml.NVMLError_GpuIsLost:
        print("lost")
other = pynvml.nvmlDeviceGetHandleByIndex(0)
print(pynvml.nvmlDeviceGetMinorNumber(other))
"""
    done = dgx.python("-c", script)
    assert done.stdout.split() == ["3", "lost", "lost", "lost", "0"], done.stderr
    assert (dgx.directory / "gpu3/ecc/pending").read_text(encoding="utf-8") == "0\n"


def test_second_gpu_of_a_call_is_lost(dgx: Simulation) -> None:
    script = """
import pathlib, sys, pynvml
pynvml.nvmlInit()
one, other = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in (0, 3))
path = pathlib.Path(sys.argv[1]) / "run" / "gpu3" / "lost"
path.parent.mkdir()
path.write_text("1")
for call in (
    lambda: pynvml.nvmlDeviceGetP2PStatus(one, other, 0),
    lambda: pynvml.nvmlDeviceGetTopologyCommonAncestor(one, other),
    lambda: pynvml.nvmlDeviceOnSameBoard(one, other),
):
    try:
        print(call())
    except pynvml.NVMLError_GpuIsLost:
        print("lost")
"""
    done = dgx.python("-c", script, str(dgx.directory))
    assert done.stdout.split() == ["lost"] * 3, done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "nvmlDeviceGetName",
        "nvmlDeviceGetName = ",
        "nvmlDeviceGetName = FOO",
        "nvmlDeviceGetName = 1000",
        "nvmlDeviceGetName gpux = TIMEOUT",
        "nvmlDeviceGetName gpu0 gpu1 = TIMEOUT",
        "nvmlDeviceGetName = TIMEOUT on",
        "nvmlDeviceGetName = TIMEOUT on 0",
        "nvmlDeviceGetName = TIMEOUT sometimes",
        "nvmlDeviceGetName = TIMEOUT once 1",
        "= TIMEOUT",
    ],
)
def test_malformed_fault_is_noticed_by_every_call(line: str, dgx: Simulation) -> None:
    (dgx.directory / "faults").write_text(f"# a comment\n\n{line}\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", "import pynvml; pynvml.nvmlInit()"],
        env={**dgx.environment(), "NVML_SIM_DEBUG": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "NVMLError_Unknown" in done.stderr
    assert f"nvml-sim: faults: '{line.strip()}' is not '<function>" in done.stderr


# ---- writers beside each other ----


WRITER = """
import sys, pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
for number in range(150):
    pynvml.nvmlDeviceSetPowerManagementLimit(handle, int(sys.argv[1]))
    pynvml.nvmlDeviceSetEccMode(handle, number % 2)
    current, pending = pynvml.nvmlDeviceGetEccMode(handle)
    assert current == 1
    pynvml.nvmlDeviceResetNvLinkErrorCounters(handle, 0)
    pynvml.nvmlDeviceGetUUID(handle)
"""


def test_two_writers(dgx: Simulation) -> None:
    """Neither loses what the other wrote, and calls are counted exactly."""
    dgx.set("gpu0/nvlink/0#error_replay", 1)
    dgx.command("fault", "nvmlDeviceGetUUID", "TIMEOUT", "--on", "100000")
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, limit],
            env=dgx.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for limit in ("200000", "300000")
    ]
    for number in range(10):
        dgx.set("gpu0/nvlink/0#error_recovery", number)
    outputs = [writer.communicate(timeout=120)[0] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], outputs
    assert dgx.one("nvmlDeviceGetPowerManagementLimit", "@0") in (200000, 300000)
    assert dgx.one("nvmlDeviceGetEccMode", "@0") == [1, 1]
    assert [path for path in dgx.directory.rglob("*") if path.name.startswith(".new-")] == []
    counts = (dgx.directory / "run" / "fault_counts").read_text(encoding="utf-8")
    assert counts == "nvmlDeviceGetUUID___TIMEOUT_on_100000 = 300\n"


def test_threads_of_one_process_are_writers_too(dgx: Simulation) -> None:
    dgx.command("fault", "nvmlDeviceGetUUID", "TIMEOUT", "--on", "100000")
    script = """
import threading, pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
def call():
    for _ in range(200):
        pynvml.nvmlDeviceGetUUID(handle)
threads = [threading.Thread(target=call) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
    done = dgx.python("-c", script)
    assert done.returncode == 0, done.stderr
    counts = (dgx.directory / "run" / "fault_counts").read_text(encoding="utf-8")
    assert counts == "nvmlDeviceGetUUID___TIMEOUT_on_100000 = 800\n"
