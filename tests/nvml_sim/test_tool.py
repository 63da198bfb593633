# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""nvml-sim, the tool: states made, shown, changed, rebooted; refusals."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import typing as t
from pathlib import Path

import pynvml
import pytest

from tests.nvml_sim import nvml_sim
from tests.nvml_sim.nvml_simulation import HERE, Simulation, tool


def test_profiles_are_listed() -> None:
    lines = tool("profiles").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["a100-pcie-40gb-x4", "dgx-a100-80gb", "h200-sxm-x2"]


def test_command(tmp_path: Path) -> None:
    """The executable beside the Python file, also through a link from elsewhere."""
    link = tmp_path / "nvml-sim"
    link.symlink_to(HERE / "nvml-sim")
    done = subprocess.run([str(link), "profiles"], check=True, capture_output=True, text=True)
    assert "dgx-a100-80gb" in done.stdout


def test_state_is_readable_by_everybody(dgx: Simulation) -> None:
    for path in [dgx.directory, *dgx.directory.rglob("*")]:
        if not path.is_symlink():
            mode = path.stat().st_mode & 0o777
            assert mode & 0o444 == 0o444, path
            assert not path.is_dir() or mode & 0o111 == 0o111, path


def test_show(dgx: Simulation) -> None:
    lines = tool("show", str(dgx.directory), "gpu7/power").stdout.splitlines()
    assert "gpu7/power/limit 400000" in lines
    assert "gpu7/nvlink/11#remote_bus_id 00000000:C9:00.0" in tool("show", str(dgx.directory)).stdout.splitlines()
    # Numbers in order, as a person counts.
    links = [line.split("#")[0] for line in tool("show", str(dgx.directory), "gpu0/nvlink").stdout.splitlines()]
    assert list(dict.fromkeys(links)) == [f"gpu0/nvlink/{number}" for number in range(12)]


def test_reader_that_stops_early(dgx: Simulation) -> None:
    script = f"{sys.executable} {HERE / 'nvml_sim.py'} show {dgx.directory} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[1:] == ["0"]
    assert done.stderr == ""


def test_set_what_lasts_and_what_a_reboot_loses(dgx: Simulation) -> None:
    dgx.set("gpu0/ecc/pending", 0)
    dgx.set("gpu0/ecc/current", 1)
    dgx.set("gpu0/power/limit", 300000)
    dgx.set("gpu0/persistence_mode", 1)
    dgx.set("gpu0/nvlink/3#state", 0)
    calls: list[list[t.Any]] = [
        ["nvmlDeviceGetEccMode", "@0"],
        ["nvmlDeviceGetPowerManagementLimit", "@0"],
        ["nvmlDeviceGetPersistenceMode", "@0"],
        ["nvmlDeviceGetNvLinkState", "@0", 3],
        ["nvmlDeviceGetNvLinkVersion", "@0", 3],
    ]
    assert [answer["ok"] for answer in dgx.ask(*calls)] == [[1, 0], 300000, 1, 0, 5]
    assert "gpu0/power/limit 300000" in tool("show", str(dgx.directory), "gpu0/power").stdout.splitlines()
    tool("reboot", str(dgx.directory))
    # The InfoROM keeps the ECC mode, and a boot makes it current; all else is lost.
    assert [answer["ok"] for answer in dgx.ask(*calls)] == [[0, 0], 400000, 0, 1, 5]


def test_run_directory_elsewhere(make_simulation: t.Callable[..., Simulation], tmp_path: Path) -> None:
    """On a host it lies in /run, which the kernel empties: after a boot the link points to nothing."""
    run = tmp_path / "run"
    simulation = make_simulation("a100-pcie-40gb-x4", "--run-dir", str(run))
    assert os.readlink(simulation.directory / "run") == str(run)
    assert simulation.one("nvmlDeviceGetPowerManagementLimit", "@1") == 250000
    simulation.set("gpu1/power/limit", 200000)
    assert (run / "gpu1/power/limit").read_text(encoding="utf-8") == "200000\n"
    assert simulation.one("nvmlDeviceGetPowerManagementLimit", "@1") == 200000


def test_unset(dgx: Simulation) -> None:
    dgx.set("gpu0/power/limit", 300000)
    dgx.set("gpu0/nvlink/3#state", 0)
    dgx.command("unset", "gpu0/power/limit")
    dgx.command("unset", "gpu0/nvlink/3#state")
    # What lasts is seen again, and can be taken away as well.
    assert dgx.one("nvmlDeviceGetPowerManagementLimit", "@0") == 400000
    assert dgx.one("nvmlDeviceGetNvLinkState", "@0", 3) == 1
    dgx.command("unset", "gpu0/serial")
    (answer,) = dgx.ask(["nvmlDeviceGetSerial", "@0"])
    assert answer["error"] == 3
    dgx.command("unset", "gpu0/serial")


def test_link_comes_up_again(dgx: Simulation) -> None:
    for state, seen in (("down", 0), ("up", 1), ("broken", 0), ("up", 1), ("broken", 0), ("down", 0), ("up", 1)):
        dgx.command("link", "gpu4", "7", state)
        assert dgx.one("nvmlDeviceGetNvLinkState", "@4", 7) == seen, state


def test_calls_are_counted_from_one(dgx: Simulation) -> None:
    done = tool("fault", str(dgx.directory), "nvmlDeviceGetName", "TIMEOUT", "--on", "0", code=2)
    assert "calls are counted from 1" in done.stderr


def test_every_error_has_a_name(dgx: Simulation) -> None:
    """As src/state.c has them, and each answers its own number."""
    text = (HERE / "src" / "state.c").read_text(encoding="utf-8")
    assert re.findall(r'\{"([A-Z_]+)", NVML_ERROR_\1\}', text) == list(nvml_sim.ERRORS)
    for name in ("NOT_SUPPORTED", "UNKNOWN", "RESET_TYPE_NOT_SUPPORTED"):
        dgx.command("faults", "--clear")
        dgx.command("fault", "nvmlDeviceGetName", name)
        (answer,) = dgx.ask(["nvmlDeviceGetName", "@0"])
        assert answer["error"] == getattr(pynvml, f"NVML_ERROR_{name}")


def test_fewer_gpus(make_simulation: t.Callable[..., Simulation]) -> None:
    simulation = make_simulation("dgx-a100-80gb", "--gpus", "2")
    assert simulation.one("nvmlDeviceGetCount") == 2
    assert simulation.one("nvmlDeviceGetTopologyNearestGpus", "@0", 20) == [1]
    names = {path.name for path in (simulation.directory / "sysfs/bus/pci/drivers/nvidia").iterdir()}
    assert names == {"0000:07:00.0", "0000:0f:00.0"}


def test_replace(dgx: Simulation) -> None:
    dgx.set("gpu0/name", "Spoiled")
    refused = tool("create", "--profile", "dgx-a100-80gb", str(dgx.directory), code=1)
    assert "give --replace to make it anew" in refused.stderr
    assert dgx.one("nvmlDeviceGetName", "@0") == "Spoiled"
    tool("create", "--profile", "dgx-a100-80gb", "--replace", str(dgx.directory))
    assert dgx.one("nvmlDeviceGetName", "@0") == "NVIDIA A100-SXM4-80GB"
    assert [path.name for path in dgx.directory.parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["create", "--profile", "dgx-h100", "{new}"],
            "--profile: there is no profile 'dgx-h100'; there are: a100-pcie",
        ),
        (["create", "--profile", "dgx-a100-80gb", "--gpus", "9", "{new}"], "--gpus: 9 is not within 0 and the 8 of"),
        (
            ["create", "--profile", "dgx-a100-80gb", "--run-dir", "run", "{new}"],
            "--run-dir: 'run' must be an absolute path",
        ),
        (["create", "--profile", "dgx-a100-80gb", "--replace", "{foreign}"], "was not made by nvml-sim"),
        (["show", "{foreign}"], "holds no state of nvml-sim"),
        (["set", "{state}", "gpu9/name", "x"], "there is no gpu9"),
        (["set", "{state}", "name", "x"], "key: 'name' is no key"),
        (["set", "{state}", "gpu0/../profile", "x"], "is no key"),
        (["set", "{state}", "run/gpu0/name", "x"], "is no key"),
        (["set", "{state}", "gpu0/power", "x"], "is a folder"),
        (["set", "{state}", "gpu0/name", " "], "value: must be one line that is not empty"),
        (["set", "{state}", "gpu0/name", "a\nb"], "value: must be one line that is not empty"),
        (["show", "{state}", "gpu0/nothing"], "no key of"),
        (["unset", "{state}", "gpu9/name"], "there is no gpu9"),
        (["reset", "{state}", "gpu0", "gpu9"], "there is no gpu9 in"),
        (["lose", "{state}", "gpu9"], "there is no gpu9 in"),
        (["link", "{state}", "gpu0", "18", "down"], "LINK: gpu0 has no link 18"),
        (["fault", "{state}", "nvmlDeviceGetFoo", "TIMEOUT"], "have no 'nvmlDeviceGetFoo', so it could never fail"),
        (["fault", "{state}", "getName", "TIMEOUT"], "'getName' is neither a function of NVML or CUDA nor *"),
        (
            ["fault", "{state}", "nvmlDeviceGetName", "FOO"],
            "ERROR: 'FOO' is neither a number nor one of SUCCESS, UNINI",
        ),
        (["fault", "{state}", "nvmlDeviceGetName", "1000"], "ERROR: 1000 is not within 1 and 999"),
        (["fault", "{state}", "nvmlDeviceGetName", "TIMEOUT", "--gpu", "gpu9"], "there is no gpu9 in"),
        (["fault", "{state}", "*", "SUCCESS"], "SUCCESS is for a function that changes something"),
    ],
)
def test_refusals(arguments: list[str], message: str, h200: Simulation, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "precious").write_text("data", encoding="utf-8")
    before = tool("show", str(h200.directory)).stdout
    places = {"new": str(tmp_path / "new"), "foreign": str(foreign), "state": str(h200.directory)}
    done = tool(*(argument.format(**places) for argument in arguments), code=1)
    assert message in done.stderr
    assert done.stderr.startswith("nvml-sim: ")
    assert not (tmp_path / "new").exists()
    assert (foreign / "precious").read_text(encoding="utf-8") == "data"
    assert tool("show", str(h200.directory)).stdout == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["foreign", "state"]
