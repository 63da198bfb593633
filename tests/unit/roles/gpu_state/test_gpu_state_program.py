# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The program of the boot unit, over the simulated library of a DGX A100: eight cards, 100 to 400 W, default 400 W."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import typing as t
from pathlib import Path
from types import ModuleType

import pytest

from ansible_collections.baremetal.inference.plugins.module_utils._gpu_errors import GpuFailure
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_model import GpuIdentity, PowerState
from ansible_collections.baremetal.inference.plugins.module_utils._power import (
    WantedLimit,
    enforced_below_requested,
    wanted_watts,
)

if t.TYPE_CHECKING:
    from tests.unit.conftest import NvmlSim

PROGRAM = Path(__file__).parents[4] / "roles/gpu_state/files/gpu_state.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_state_program", PROGRAM)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their own module up there.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


program = load()


def uuid(number: int) -> str:
    return f"GPU-a1000000-0000-4000-8000-{number:012}"


def entry(number: int, **keys: t.Any) -> dict[str, t.Any]:
    return {"uuid": uuid(number), "pci_bus_id": None, "persistence_mode": "enabled", "power_limit": None, **keys}


class Host:
    """A host with eight simulated cards, and the program's file on it."""

    def __init__(self, sim: NvmlSim, folder: Path, interpreter: str) -> None:
        self.sim = sim
        self.state = sim.create("dgx-a100-80gb", folder / "state")
        self.file = folder / "gpu-state.json"
        self.interpreter = interpreter
        # Whoever runs the tests may set things.
        self.set("system/allow_users", 1)

    def set(self, key: str, value: object) -> None:
        subprocess.run([self.sim.tool, "set", self.state, key, str(value)], check=True, capture_output=True)

    def get(self, key: str) -> str:
        shown = subprocess.run([self.sim.tool, "show", self.state, key], check=True, capture_output=True, text=True)
        return shown.stdout.split()[-1]

    def tool(self, *words: str) -> None:
        command = [str(self.sim.tool), words[0], str(self.state), *words[1:]]
        subprocess.run(command, check=True, capture_output=True)

    def want(self, *entries: dict[str, t.Any]) -> None:
        self.file.write_text(json.dumps({"version": 1, "gpus": entries}))
        self.file.chmod(0o644)

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.interpreter, "-IB", PROGRAM, "--file", self.file, *words],
            env={**self.sim.environment(self.state), **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def host(nvml_sim: NvmlSim, tmp_path: Path) -> Host:
    return Host(nvml_sim, tmp_path, sys.executable)


@pytest.fixture
def host_on_every_python(nvml_sim: NvmlSim, tmp_path: Path, interpreter: str) -> Host:
    return Host(nvml_sim, tmp_path, interpreter)


# ---- What it does ----------------------------------------------------------------------------------------------------


def test_it_gives_each_card_its_own_back_once(host_on_every_python: Host) -> None:
    host = host_on_every_python
    host.want(
        entry(0, power_limit={"watts": 350}),
        entry(1, power_limit={"percent": 80}),
        entry(2, power_limit={"limit": "max"}, persistence_mode=None),
        entry(3, pci_bus_id="0000:4e:00.0"),
    )
    host.set("gpu2/power/limit", 200000)
    done = host.run()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"GPU {uuid(0)}: persistence mode disabled -> enabled",
        f"GPU {uuid(0)}: power limit 400 W -> 350 W",
        f"GPU {uuid(1)}: persistence mode disabled -> enabled",
        f"GPU {uuid(1)}: power limit 400 W -> 320 W",
        f"GPU {uuid(2)}: power limit 200 W -> 400 W",
        f"GPU 0000:4e:00.0 ({uuid(3)}): persistence mode disabled -> enabled",
        "4 of 4 GPUs are as they are to be, 4 of them were changed now",
    ]
    assert [host.get(f"gpu{number}/power/limit") for number in range(5)] == [
        "350000",
        "320000",
        "400000",
        "400000",
        "400000",
    ]
    assert [host.get(f"gpu{number}/persistence_mode") for number in range(5)] == ["1", "1", "0", "1", "0"]
    again = host.run()
    assert again.returncode == 0
    assert again.stdout == "4 of 4 GPUs are as they are to be, 0 of them were changed now\n"


def test_it_finds_the_cards_by_uuid_wherever_they_are(host: Host) -> None:
    """A card that fails moves the numbers of those behind it."""
    first, second = host.get("gpu0/uuid"), host.get("gpu1/uuid")
    host.want(entry(0, power_limit={"watts": 300}))
    host.set("gpu0/uuid", second)
    host.set("gpu1/uuid", first)
    assert host.run().returncode == 0
    assert [host.get(f"gpu{number}/power/limit") for number in (0, 1)] == ["400000", "300000"]


def test_check_tells_what_differs_and_changes_nothing(host: Host) -> None:
    host.want(entry(0, power_limit={"watts": 350}), entry(1, persistence_mode=None))
    done = host.run("--check")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"GPU {uuid(0)}: persistence mode is disabled, and enabled is wanted",
        f"GPU {uuid(0)}: the power limit is 400 W, and 350 W is wanted",
    ]
    assert (host.get("gpu0/power/limit"), host.get("gpu0/persistence_mode")) == ("400000", "0")
    assert host.run().returncode == 0
    assert host.run("--check").returncode == 0


def test_json_says_all_of_it(host: Host) -> None:
    host.want(entry(0, pci_bus_id="0000:07:00.0", power_limit={"percent": 50}))
    done = host.run("--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {
        "ok": True,
        "problems": [],
        "gpus": [
            {
                "uuid": uuid(0),
                "pci_bus_id": "0000:07:00.0",
                "ok": True,
                "changes": ["persistence mode disabled -> enabled", "power limit 400 W -> 200 W"],
                "problems": [],
                "warnings": [],
                "persistence_mode": "enabled",
                "wanted_watts": 200,
                "requested_watts": 200,
                "enforced_watts": 200,
            }
        ],
    }


def test_a_host_with_nothing_to_restore_is_right(host: Host) -> None:
    host.want()
    assert host.run().stdout == "0 of 0 GPUs are as they are to be, 0 of them were changed now\n"


# ---- What goes wrong -------------------------------------------------------------------------------------------------


def everyone(**keys: t.Any) -> list[dict[str, t.Any]]:
    return [entry(number, **keys) for number in range(8)]


def test_a_lost_card_is_named_and_the_others_are_restored(host: Host) -> None:
    host.want(*everyone(power_limit={"watts": 300}))
    host.tool("lose", "gpu3")
    done = host.run()
    assert done.returncode == 1
    (said,) = done.stderr.splitlines()
    assert said.startswith(f"GPU {uuid(3)}: it is not there (the driver has 7 other GPUs); ")
    assert "the GPU that NVML counts as number 3 does not answer" in said
    assert "GPU is lost (NVML error 15)" in said
    assert [host.get(f"gpu{number}/power/limit") for number in range(8) if number != 3] == ["300000"] * 7
    assert done.stdout.splitlines()[-1] == "7 of 8 GPUs are as they are to be, 7 of them were changed now"


def test_a_card_that_is_lost_in_the_middle_is_named(host: Host) -> None:
    host.want(*everyone(power_limit={"watts": 300}))
    host.tool("fault", "nvmlDeviceSetPowerManagementLimit", "GPU_IS_LOST", "--gpu", "gpu2")
    done = host.run()
    assert done.returncode == 1
    (said,) = done.stderr.splitlines()
    assert said.startswith(f"GPU {uuid(2)}: nvmlDeviceSetPowerManagementLimit: GPU is lost")
    assert [host.get(f"gpu{number}/power/limit") for number in (1, 2, 3)] == ["300000", "400000", "300000"]


def test_a_uuid_that_is_not_there_is_named(host: Host) -> None:
    host.want(entry(77), entry(0))
    done = host.run()
    assert done.returncode == 1
    assert done.stderr == f"GPU {uuid(77)}: it is not there (the driver has 8 other GPUs)\n"
    assert host.get("gpu0/persistence_mode") == "1"


def test_a_limit_that_something_else_holds_lower_is_told_and_no_failure(host: Host) -> None:
    host.set("gpu0/power/enforced_cap", 300000)
    host.want(entry(0, power_limit={"watts": 350}), entry(1, power_limit={"watts": 350}))
    done = host.run()
    assert done.returncode == 0
    (said,) = done.stderr.splitlines()
    assert said.startswith(f"GPU {uuid(0)}: the power limit is set to 350 W, but 300 W is in force")
    (first, second) = json.loads(host.run("--check", "--json").stdout)["gpus"]
    assert (first["ok"], first["requested_watts"], first["enforced_watts"]) == (True, 350, 300)
    assert len(first["warnings"]) == 1
    assert second["warnings"] == []


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"watts": 450}, "a power limit of 450 W is wanted, and the card takes 100 W to 400 W"),
        ({"watts": 99}, "a power limit of 99 W is wanted, and the card takes 100 W to 400 W"),
        (
            {"percent": 20},
            "a power limit of 20 % of 400 W, which is 80 W, is wanted, and the card takes 100 W to 400 W",
        ),
    ],
)
def test_a_limit_that_the_card_does_not_take_is_refused(host: Host, limit: dict[str, t.Any], words: str) -> None:
    host.want(entry(0, power_limit=limit))
    done = host.run()
    assert (done.returncode, done.stderr) == (1, f"GPU {uuid(0)}: {words}\n")
    assert host.get("gpu0/power/limit") == "400000"


def test_a_driver_that_says_yes_and_does_no_is_caught(host: Host) -> None:
    host.want(entry(0, power_limit={"watts": 350}))
    host.tool("fault", "nvmlDeviceSetPowerManagementLimit", "SUCCESS")
    host.tool("fault", "nvmlDeviceSetPersistenceMode", "SUCCESS")
    done = host.run()
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"GPU {uuid(0)}: persistence mode was set to enabled, and still reads disabled",
        f"GPU {uuid(0)}: the power limit was set to 350 W, and then reads 400 W",
    ]


def test_a_card_without_a_power_limit_is_named(host: Host) -> None:
    host.want(entry(0, power_limit={"watts": 350}))
    host.tool("fault", "nvmlDeviceGetPowerManagementLimitConstraints", "NOT_SUPPORTED")
    done = host.run()
    assert done.returncode == 1
    assert "nvmlDeviceGetPowerManagementLimitConstraints: Not Supported (NVML error 3)" in done.stderr


def test_a_card_that_does_not_tell_what_it_enforces_is_fine(host: Host) -> None:
    host.want(entry(0, power_limit={"watts": 350}))
    host.tool("fault", "nvmlDeviceGetEnforcedPowerLimit", "NOT_SUPPORTED")
    (told,) = json.loads(host.run("--json").stdout)["gpus"]
    assert (told["ok"], told["requested_watts"], told["enforced_watts"]) == (True, 350, None)


def test_without_permission_it_says_who_has_it(host: Host) -> None:
    host.want(entry(0, power_limit={"watts": 350}))
    host.tool("fault", "nvmlDeviceSetPowerManagementLimit", "NO_PERMISSION")
    done = host.run()
    assert done.returncode == 1
    assert "Insufficient Permissions (NVML error 4). Only root may set this: run it with sudo" in done.stderr


# ---- The driver ------------------------------------------------------------------------------------------------------


def test_a_host_without_the_library_is_told_apart(host: Host, tmp_path: Path) -> None:
    host.want(entry(0))
    # Another folder in front of the loader's own: this machine may have a driver, which is then found.
    nowhere = {"LD_LIBRARY_PATH": str(tmp_path)}
    found = subprocess.run(
        [sys.executable, "-c", "import ctypes; ctypes.CDLL('libnvidia-ml.so.1')"], check=False, capture_output=True
    )
    if found.returncode == 0:
        pytest.skip("this machine has an NVIDIA driver")
    done = host.run(**nowhere)
    assert done.returncode == 3
    assert (
        "no NVIDIA driver is installed on this host: libnvidia-ml.so.1: cannot open shared object file" in done.stderr
    )
    assert host.run("--condition", **nowhere).returncode == 1


def test_the_condition_is_only_the_library(host: Host) -> None:
    """A driver that is installed and broken is a failure, and not a host without GPUs."""
    host.set("system/driver_version", "580.159.04")
    (host.state / "init_error").write_text("9\n")
    done = host.run("--condition")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_driver_that_is_not_loaded_is_waited_for(host: Host) -> None:
    host.want(entry(0))
    host.tool("fault", "nvmlInit", "DRIVER_NOT_LOADED", "--until", "2")
    assert host.run("--wait", "30").returncode == 0
    host.tool("fault", "nvmlInit", "DRIVER_NOT_LOADED")
    done = host.run("--wait", "0.6")
    assert done.returncode == 3
    assert "the NVIDIA driver cannot be used: nvmlInit_v2: Driver Not Loaded (NVML error 9)" in done.stderr


def test_a_driver_of_another_version_is_not_waited_for(host: Host) -> None:
    host.want(entry(0))
    (host.state / "init_error").write_text("18\n")
    # Far beyond the time that the test has.
    done = host.run("--wait", "3600", "--json")
    assert done.returncode == 3
    assert "NVML error 18" in json.loads(done.stdout)["problems"][0]


# ---- Its file --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "it is no JSON"),
        ("[]", "version is []: expected 1"),
        ('{"version": 2, "gpus": []}', "version is 2: expected 1"),
        ('{"version": 1}', "gpus is null: expected a list"),
        ('{"version": 1, "gpus": [3]}', "gpus[0] is 3: expected a mapping"),
        ('{"version": 1, "gpus": [{}]}', "gpus[0].uuid is null: expected a text like GPU-"),
        ('{"version": 1, "gpus": [{"uuid": "0"}]}', 'gpus[0].uuid is "0": expected'),
        ('{"version": 1, "gpus": [{"uuid": "GPU-1", "ecc": 1}]}', "gpus[0] has ecc: expected"),
        (
            '{"version": 1, "gpus": [{"uuid": "GPU-1"}, {"uuid": "GPU-1"}]}',
            "gpus[1].uuid is GPU-1, which an entry before",
        ),
        ('{"version": 1, "gpus": [{"uuid": "GPU-1", "pci_bus_id": 7}]}', "gpus[0].pci_bus_id is 7: expected"),
        (
            '{"version": 1, "gpus": [{"uuid": "GPU-1", "persistence_mode": "off"}]}',
            'persistence_mode is "off": expected',
        ),
        ('{"version": 1, "gpus": [{"uuid": "GPU-1", "power_limit": 350}]}', "gpus[0].power_limit is 350: expected"),
        ('{"version": 1, "gpus": [{"uuid": "GPU-1", "power_limit": {"watts": true}}]}', 'is {"watts": true}: expected'),
        ('{"version": 1, "gpus": [{"uuid": "GPU-1", "power_limit": {"watts": -1}}]}', 'is {"watts": -1}: expected'),
        (
            '{"version": 1, "gpus": [{"uuid": "GPU-1", "power_limit": {"limit": "min"}}]}',
            'is {"limit": "min"}: expected',
        ),
        (
            '{"version": 1, "gpus": [{"uuid": "GPU-1", "power_limit": {"watts": 1, "percent": 2}}]}',
            'is {"watts": 1, "percent": 2}: expected',
        ),
    ],
)
def test_a_wrong_file_is_refused_with_key_and_value(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], content: str, words: str
) -> None:
    """Before the driver is asked for anything: there is none here."""
    file = tmp_path / "gpu-state.json"
    file.write_text(content)
    file.chmod(0o644)
    assert program.main(["--file", str(file)]) == 2
    said = capfd.readouterr().err
    assert said.startswith(f"{file}: ")
    assert words in said


def test_a_file_that_is_not_there_is_named(host: Host) -> None:
    done = host.run()
    assert (done.returncode, done.stderr) == (2, f"{host.file}: it cannot be read: No such file or directory\n")


def test_a_file_that_others_may_write_to_is_refused(host: Host) -> None:
    host.want(entry(0))
    host.file.chmod(0o664)
    done = host.run()
    assert done.returncode == 2
    assert "others than root may write to it" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away, which root alone may")
def test_a_file_of_another_user_is_refused(host: Host) -> None:
    host.want(entry(0))
    os.chown(host.file, 65534, 65534)
    assert host.run().returncode == 2


def test_an_unknown_option_is_a_wrong_command_line(host: Host) -> None:
    assert host.run("--chek").returncode == 2


# ---- The journal -----------------------------------------------------------------------------------------------------


def test_lines_for_the_journal_carry_their_level(host: Host, tmp_path: Path) -> None:
    host.set("gpu0/power/enforced_cap", 300000)
    host.want(entry(0, power_limit={"watts": 350}), entry(77))
    output = tmp_path / "journal"
    with open(output, "w") as stream:
        found = os.fstat(stream.fileno())
        subprocess.run(
            [sys.executable, "-IB", PROGRAM, "--file", host.file],
            env={**host.sim.environment(host.state), "JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"},
            stdout=stream,
            stderr=stream,
            check=False,
        )
    levels = sorted(re.findall(r"^<(\d)>", output.read_text(), re.MULTILINE))
    assert levels == ["3", "4", "6", "6", "6"]
    # With the variable of another stream, as in a shell that a unit started.
    assert not host.run(JOURNAL_STREAM="1:2").stderr.startswith("<")


# ---- It agrees with the modules --------------------------------------------------------------------------------------

LIMITS = [
    *({"watts": number} for number in (99, 100, 101, 250, 400, 401)),
    *({"percent": number} for number in (24, 25, 33.3, 62.5, 80, 99.9, 100, 101)),
    {"limit": "default"},
    {"limit": "max"},
]
CARDS = [(100, 400, 400), (150, 250, 250), (100, 500, 400), (200, 700.5, 700.5)]


@pytest.mark.parametrize("limit", LIMITS, ids=str)
@pytest.mark.parametrize("card", CARDS, ids=str)
def test_a_limit_means_what_it_means_to_the_module(limit: dict[str, t.Any], card: tuple[float, float, float]) -> None:
    smallest, largest, default = card
    state = PowerState(
        usage_watts=None,
        limit_requested_watts=default,
        limit_enforced_watts=default,
        limit_default_watts=default,
        limit_min_watts=smallest,
        limit_max_watts=largest,
    )
    own = program.Power(
        requested=round(default * 1000),
        enforced=round(default * 1000),
        default=round(default * 1000),
        minimum=round(smallest * 1000),
        maximum=round(largest * 1000),
    )
    asked = WantedLimit(watts=limit.get("watts"), percent=limit.get("percent"), named=limit.get("limit"))
    try:
        of_module: int | None = round(wanted_watts(GpuIdentity(0, "GPU-1", None), state, asked) * 1000)
    except GpuFailure:
        of_module = None
    try:
        of_program: int | None = program.wanted_milliwatts(program.parse_power_limit(limit, "gpus[0]"), own)
    except ValueError:
        of_program = None
    assert of_program == of_module


@pytest.mark.parametrize("enforced", [None, 299.4, 299.5, 299.6, 300, 301])
def test_a_lower_limit_in_force_is_one_for_both(enforced: float | None) -> None:
    state = PowerState(None, 300, enforced, 400, 100, 400)
    own = program.Power(300000, None if enforced is None else round(enforced * 1000), 400000, 100000, 400000)
    assert (program.limit_warning(own) is not None) == enforced_below_requested(state)
