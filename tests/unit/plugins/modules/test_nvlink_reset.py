# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The whole module on simulated machines: their NVML, their nvidia-smi, a process tree and a systemctl of the test's."""

from __future__ import annotations

import json
import shutil
import typing as t
from pathlib import Path

import pytest
import yaml

from ansible_collections.baremetal.inference.plugins.module_utils import _nvlink_reset
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_errors import GpuFailure
from ansible_collections.baremetal.inference.plugins.module_utils._holders import Holder, HoldersUnseen
from ansible_collections.baremetal.inference.plugins.module_utils._nvlink_reset import in_the_way, require_unused
from ansible_collections.baremetal.inference.plugins.modules import nvlink_reset

from tests.unit.plugins.module_utils.test_holders import Proc

if t.TYPE_CHECKING:
    Undocumented = t.Callable[[t.Any, t.Mapping[str, t.Any], str], list[str]]
    Result = dict[str, t.Any]

DGX, PCIE, H200 = "dgx-a100-80gb", "a100-pcie-40gb-x4", "h200-sxm-x2"

# As systemd's, for one unit whose state lies in a file. A restart brings it up and, with it, links that wait for it.
SYSTEMCTL = """#!/bin/sh
echo "$@" >>{folder}/systemctl.log
case "$1" in
show)
  cat {folder}/unit
  ;;
restart)
  if [ -e {folder}/refuse ]; then
    echo "Job for nvidia-fabricmanager.service failed because the control process exited with error code."
    exit 1
  fi
  printf 'LoadState=loaded\\nActiveState=active\\n' >{folder}/unit
  if [ -e {folder}/heal ]; then sh {folder}/heal; fi
  ;;
esac
"""


class Machine:
    """A simulated host with all that the module looks at."""

    def __init__(self, host: t.Any, folder: Path) -> None:
        self.host = host
        self.folder = folder
        self.proc = Proc(folder / "proc")
        self.programs = folder / "programs"
        self.programs.mkdir()
        self.program("systemctl", SYSTEMCTL.format(folder=folder))
        self.unit()
        host.environment["PATH"] = f"{self.programs}:/usr/bin:/bin"

    def program(self, name: str, text: str) -> Path:
        file = self.programs / name
        file.write_text(text)
        file.chmod(0o755)
        return file

    def unit(self, state: str = "active", load: str = "loaded") -> None:
        (self.folder / "unit").write_text(f"LoadState={load}\nActiveState={state}\n")

    def create(self, profile: str, *options: str) -> None:
        self.host.create(profile, *options)
        if profile == H200:
            # It was recorded with persistence mode on.
            for gpu in self.host.state.glob("gpu*"):
                self.host.set(f"{gpu.name}/persistence_mode", 0)
        link = self.programs / "nvidia-smi"
        if not link.is_symlink():
            link.symlink_to(self.host.sim.libraries / "nvidia-smi")

    def log(self) -> list[str]:
        file = self.folder / "systemctl.log"
        return [line for line in file.read_text().splitlines() if not line.startswith("show")] if file.exists() else []

    def __call__(self, **params: t.Any) -> Result:
        result: Result = self.host.run(
            "nvlink_reset", **{"proc_root": str(self.folder / "proc"), "timeout": 5, **params}
        )
        assert "secret-in-argv" not in json.dumps(result)
        return result

    def shown(self, key: str) -> str:
        return str(self.host.tool("show", key)).split()[-1]


@pytest.fixture
def machine(simulated_host: t.Any, tmp_path: Path) -> Machine:
    return Machine(simulated_host, tmp_path)


def bad(result: Result, key: str = "findings") -> set[tuple[str, str]]:
    return {(finding["check"], finding["verdict"]) for finding in result[key] if finding["verdict"] != "healthy"}


# ---- healthy machines ----


def test_healthy_machine_on_every_python(
    simulated_host_on_every_python: t.Any, tmp_path: Path, undocumented: Undocumented
) -> None:
    machine = Machine(simulated_host_on_every_python, tmp_path)
    machine.create(DGX)
    result = machine(scope="gpu")
    assert (result.get("failed"), result["changed"], result["healthy"], result["verdict"]) == (
        None,
        False,
        True,
        "healthy",
    )
    assert result["system"] == "hgx-a100-8gpu" and len(result["pairs"]) == 28
    assert [gpu["expected_links"] for gpu in result["gpus"]] == [12] * 8
    assert result["fabric_manager"] == {"state": "active", "version": None}
    assert result["next_step"]["scope"] == "none" and result["reset_gpus"] == []
    assert undocumented(nvlink_reset, result, "success") == []


@pytest.mark.parametrize(
    ("profile", "scope"), [(DGX, "counters"), (DGX, "fabric"), (PCIE, "counters"), (PCIE, "gpu"), (H200, "gpu")]
)
def test_healthy_machines_are_left_alone(machine: Machine, profile: str, scope: str) -> None:
    machine.create(profile)
    # Not even who holds what is asked.
    result = machine(scope=scope, proc_root="/surely/not/there")
    assert (result["changed"], result["healthy"], bad(result)) == (False, True, set())
    assert machine.log() == []
    assert result["gpus"][0]["links_before"] == result["gpus"][0]["links_after"]
    assert machine(scope=scope, check_mode=True, proc_root="/surely/not/there")["changed"] is False


# ---- counters ----


def test_counters(machine: Machine, undocumented: Undocumented) -> None:
    machine.create(DGX)
    machine.host.set("gpu1/nvlink/4#error_replay", 7)
    machine.host.set("gpu1/nvlink/4#error_crc_flit", 2)
    machine.host.set("gpu6/nvlink/0#error_recovery", 1)
    expected = [
        {"pci_bus_id": "0000:0f:00.0", "link": 4, "replay": 7, "recovery": 0, "crc": 2},
        {"pci_bus_id": "0000:b7:00.0", "link": 0, "replay": 0, "recovery": 1, "crc": 0},
    ]
    forecast = machine(check_mode=True, diff=True)
    assert (forecast["changed"], forecast["cleared_links"]) == (True, expected)
    assert machine.shown("gpu1/nvlink/4#error_replay") == "7"
    result = machine(diff=True)
    assert (result["changed"], result["cleared_links"]) == (True, expected)
    assert machine.shown("gpu1/nvlink/4#error_replay") == "0"
    # Nothing claims that a link was reset, and the links were healthy all the time.
    assert (result["healthy"], result["reset_gpus"], result["fabric_manager_restarted"]) == (True, [], False)
    assert bad(result) == set() and bad(result, "findings_before") == {("counters", "warning")}
    assert result["diff"]["before"]["0000:0f:00.0"] == {
        "links": "12 of 12 links up",
        "errors": "link 4: replay 7, crc 2",
    }
    assert result["diff"]["after"]["0000:0f:00.0"]["errors"] == ""
    # Check mode foresaw it.
    assert forecast["diff"] == result["diff"] and forecast["gpus"] == result["gpus"]
    assert undocumented(nvlink_reset, result, "success") == []
    again = machine(diff=True)
    assert (again["changed"], again["cleared_links"]) == (False, [])
    assert again["diff"]["before"] == again["diff"]["after"]


def test_counters_of_selected_gpus_only(machine: Machine) -> None:
    machine.create(PCIE)
    machine.host.set("gpu0/nvlink/1#error_replay", 3)
    machine.host.set("gpu2/nvlink/1#error_replay", 3)
    result = machine(gpus=["2"])
    assert [entry["pci_bus_id"] for entry in result["cleared_links"]] == [result["gpus"][0]["pci_bus_id"]]
    assert machine.shown("gpu0/nvlink/1#error_replay") == "3"


def test_counters_that_are_refused_half_way(machine: Machine, undocumented: Undocumented) -> None:
    machine.create(DGX)
    for gpu in (1, 3, 5):
        machine.host.set(f"gpu{gpu}/nvlink/2#error_replay", 1)
        machine.host.set(f"gpu{gpu}/nvlink/7#error_replay", 1)
    # The second link of GPU 3.
    machine.host.tool("fault", "nvmlDeviceResetNvLinkErrorCounters", "UNKNOWN", "--gpu", "gpu3", "--on", "2")
    result = machine()
    assert (result["failed"], result["changed"], result["reason"]) == (True, True, "unknown")
    assert "GPU 3 (0000:4e:00.0)" in result["msg"] and "a rerun does the rest" in result["msg"]
    assert result["failed_gpus"] == ["0000:4e:00.0"]
    assert result["changed_gpus"] == ["0000:0f:00.0", "0000:4e:00.0", "0000:90:00.0"]
    assert [entry["link"] for entry in result["cleared_links"]] == [2, 7, 2, 2, 7]
    assert undocumented(nvlink_reset, result, "failure") == []
    machine.host.tool("faults", "--clear")
    again = machine()
    assert [(entry["pci_bus_id"], entry["link"]) for entry in again["cleared_links"]] == [("0000:4e:00.0", 7)]


def test_counters_without_permission(machine: Machine) -> None:
    machine.create(DGX)
    machine.host.set("gpu1/nvlink/4#error_replay", 7)
    machine.host.tool("fault", "nvmlDeviceResetNvLinkErrorCounters", "NO_PERMISSION")
    result = machine()
    assert (result["failed"], result["reason"], result["changed"]) == (True, "no_permission", False)
    assert "become: true" in result["msg"]


# ---- GPU reset ----


def test_link_down_on_a_dgx(machine: Machine, undocumented: Undocumented) -> None:
    machine.create(DGX)
    machine.host.tool("link", "gpu2", "3", "down")
    machine.host.set("gpu5/power/limit", 300000)
    forecast = machine(scope="gpu", check_mode=True, diff=True)
    assert (forecast["changed"], len(forecast["reset_gpus"]), forecast["healthy"]) == (True, 8, False)
    assert machine.shown("gpu5/power/limit") == "300000"
    assert bad(forecast) == {("links", "unhealthy"), ("pair", "unhealthy")}
    result = machine(scope="gpu", diff=True)
    assert (result["changed"], result["healthy"]) == (True, True)
    # All of the board, in one go: a link has two ends.
    assert result["reset_gpus"] == [gpu["pci_bus_id"] for gpu in result["gpus"]] == forecast["reset_gpus"]
    assert machine.shown("gpu5/power/limit") == "400000"
    wounded = result["gpus"][2]
    assert (wounded["active_before"], wounded["active_after"]) == (11, 12)
    assert [pair["nvlink_count_before"] for pair in result["pairs"]].count(11) == 7
    assert {pair["nvlink_count_after"] for pair in result["pairs"]} == {12}
    assert result["diff"]["before"][wounded["pci_bus_id"]]["links"] == "11 of 12 links up; link 3 inactive"
    assert undocumented(nvlink_reset, result, "success") == []
    assert machine(scope="gpu")["changed"] is False


def test_only_the_counters_scope_clears_a_link_that_is_down_of_errors(machine: Machine) -> None:
    """And the link stays what it is."""
    machine.create(H200)
    machine.host.tool("link", "gpu0", "3", "down")
    machine.host.set("gpu0/nvlink/3#error_replay", 9)
    result = machine(scope="counters")
    assert (result["changed"], result["healthy"], result["verdict"]) == (True, False, "unhealthy")
    assert result["next_step"]["scope"] == "gpu"


def test_domain_of_two_cards(machine: Machine) -> None:
    machine.create(PCIE)
    machine.host.tool("link", "gpu3", "0", "down")
    result = machine(scope="gpu")
    assert result["changed"] and result["healthy"]
    pair = [gpu["pci_bus_id"] for gpu in result["gpus"] if gpu["index"] in (2, 3)]
    assert result["reset_gpus"] == pair
    assert [gpu["domain"] for gpu in result["gpus"]][2:] == [pair, pair]
    # Another card was selected: that pair is not its business.
    machine.host.tool("link", "gpu3", "0", "down")
    assert machine(scope="gpu", gpus=["0"])["changed"] is False
    # Its bridge partner was.
    assert machine(scope="gpu", gpus=["2"])["reset_gpus"] == pair


def test_h200_behind_hidden_switches(machine: Machine) -> None:
    machine.create(H200)
    machine.host.tool("link", "gpu0", "17", "down")
    result = machine(scope="gpu")
    assert (result["changed"], len(result["reset_gpus"]), result["healthy"]) == (True, 2, True)
    assert result["fabric_manager"] is None and result["system"] is None


def test_always(machine: Machine) -> None:
    machine.create(PCIE)
    assert machine(scope="gpu", when="always", gpus=["0"])["reset_gpus"] == [
        "0000:17:00.0",
        "0000:65:00.0",
    ]
    assert machine(scope="gpu", condition="always")["changed"] is True


def test_link_that_stays_down(machine: Machine, undocumented: Undocumented) -> None:
    machine.create(DGX)
    machine.host.tool("link", "gpu2", "3", "broken")
    result = machine(scope="gpu", timeout=1)
    assert (result["failed"], result["reason"], result["changed"]) == (True, "still_unhealthy", True)
    assert len(result["reset_gpus"]) == 8
    assert "it did not help" in result["msg"] and "11 of 12 links up" in result["msg"]
    assert result["next_step"]["scope"] == "fabric" and "scope: fabric" in result["msg"]
    assert undocumented(nvlink_reset, result, "failure") == []
    result = machine(scope="fabric", timeout=1)
    assert (result["reason"], result["next_step"]["scope"]) == ("still_unhealthy", "reboot")
    # Two cards have no Fabric Manager: there, a reboot is next.
    machine.create(H200, "--replace")
    machine.host.tool("link", "gpu0", "3", "broken")
    assert machine(scope="gpu", timeout=1)["next_step"]["scope"] == "reboot"


# ---- what is in the way ----


def test_holders_are_listed_and_left_alone(machine: Machine, undocumented: Undocumented) -> None:
    machine.create(DGX)
    machine.host.tool("link", "gpu2", "3", "down")
    machine.proc.add(
        4242,
        "/opt/vllm/bin/python3.12",
        "VLLM::Worker",
        "0::/system.slice/vllm@main.service",
        ["/dev/nvidiactl", "/dev/nvidia0"],
    )
    machine.proc.add(
        800,
        "/usr/bin/nvidia-persistenced",
        "nvidia-persiste",
        "0::/system.slice/nvidia-persistenced.service",
        [f"/dev/nvidia{number}" for number in range(8)],
    )
    machine.proc.add(
        810, "/usr/bin/nv-hostengine", "nv-hostengine", "0::/system.slice/nvidia-dcgm.service", ["/dev/nvidiactl"]
    )
    # This one is needed.
    machine.proc.add(
        820,
        "/usr/bin/nv-fabricmanager",
        "nv-fabricmanage",
        "0::/system.slice/nvidia-fabricmanager.service",
        ["/dev/nvidia-nvswitch0", "/dev/nvidiactl"],
    )
    for check_mode in (True, False):
        result = machine(scope="gpu", check_mode=check_mode)
        assert (result["failed"], result["reason"]) == (True, "in_use")
        assert [(holder["pid"], holder["kind"]) for holder in result["holders"]] == [
            (800, "persistence_daemon"),
            (810, "exporter"),
            (4242, "program"),
        ]
        assert "Pid 4242 (/opt/vllm/bin/python3.12, unit vllm@main.service)" in result["msg"] or (
            "pid 4242 (/opt/vllm/bin/python3.12, unit vllm@main.service)" in result["msg"].lower()
        )
        assert "systemctl stop nvidia-dcgm.service" in result["msg"]
        assert result["persistence_mode"] == []
        assert undocumented(nvlink_reset, result, "failure") == []
    assert machine.shown("gpu2/nvlink/3#state") == "0"
    # The same for the fabric, where everybody counts.
    machine.unit("failed")
    assert [holder["pid"] for holder in machine(scope="fabric")["holders"]] == [800, 810, 4242]
    assert machine.log() == []


def test_fabric_manager_may_run(machine: Machine) -> None:
    machine.create(DGX)
    machine.host.tool("link", "gpu2", "3", "down")
    machine.proc.add(820, "/usr/bin/nv-fabricmanager", "nv-fabricmanage", "0::/", ["/dev/nvidia-nvswitch0"])
    assert machine(scope="gpu")["healthy"] is True


def test_persistence_mode_is_in_the_way(machine: Machine) -> None:
    machine.create(PCIE)
    machine.host.tool("link", "gpu3", "0", "down")
    machine.host.set("gpu2/persistence_mode", 1)
    result = machine(scope="gpu")
    assert (result["failed"], result["reason"], result["holders"]) == (True, "in_use", [])
    assert len(result["persistence_mode"]) == 1
    assert "gpu_persistence_mode with state: disabled" in result["msg"]


def test_work_on_other_cards_goes_on(machine: Machine) -> None:
    machine.create(PCIE)
    machine.host.tool("link", "gpu3", "0", "down")
    machine.proc.add(70, "/usr/bin/app", "app", "0::/", ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm"])
    assert machine(scope="gpu")["healthy"] is True
    machine.host.tool("link", "gpu3", "0", "down")
    machine.proc.add(71, "/usr/bin/app", "app", "0::/", ["/dev/nvidia3"])
    assert [holder["pid"] for holder in machine(scope="gpu")["holders"]] == [71]


def test_process_that_nvml_alone_knows(machine: Machine) -> None:
    machine.create(PCIE)
    machine.host.tool("link", "gpu3", "0", "down")
    machine.host.set("gpu3/processes", "4711 compute 1048576")
    result = machine(scope="gpu")
    assert (result["failed"], result["reason"]) == (True, "holders_unseen")
    assert "4711" in result["msg"]


def _gpu(minor: int | None, persistence: str = "disabled", *pids: int) -> dict[str, t.Any]:
    return {
        "index": minor or 0,
        "uuid": f"GPU-{minor}",
        "pci_bus_id": f"0000:0{minor or 0}:00.0",
        "minor_number": minor,
        "persistence_mode": persistence,
        "processes": [{"pid": pid} for pid in pids],
    }


def _holder(pid: int, *nodes: str, kind: str = "program") -> Holder:
    return Holder(pid, "/usr/bin/x", "x", None, kind, nodes, f"kill {pid}")


@pytest.mark.parametrize(
    ("gpus", "holder", "whole_host", "blocked"),
    [
        ([_gpu(0)], _holder(1, "nvidia0"), False, True),
        ([_gpu(0)], _holder(1, "nvidia1", "nvidiactl"), False, False),
        ([_gpu(0)], _holder(1, "nvidia1", "nvidiactl"), True, True),
        # Control nodes alone may be the start of anything.
        ([_gpu(0)], _holder(1, "nvidiactl"), False, True),
        ([_gpu(0)], _holder(1, "nvidia-caps/nvidia-cap1"), False, True),
        # Whose node is which is not known.
        ([_gpu(None)], _holder(1, "nvidia1"), False, True),
        ([_gpu(0, "disabled", 1)], _holder(1, "nvidia1"), False, True),
        ([_gpu(0)], _holder(1, "nvidia0", kind="fabric_manager"), False, False),
        ([_gpu(0)], _holder(1, "nvidia0", kind="fabric_manager"), True, False),
        ([_gpu(1)], _holder(1, "nvidia10"), False, False),
    ],
)
def test_in_the_way(gpus: list[dict[str, t.Any]], holder: Holder, whole_host: bool, blocked: bool) -> None:
    assert in_the_way(gpus, [holder], whole_host=whole_host) == ([holder] if blocked else [], [])


def test_unit_that_is_called_otherwise() -> None:
    holder = Holder(1, "/opt/fm", "fm", "my-fabric.service", "program", ("nvidia0",), "kill 1")
    for unit, blocking in (("my-fabric.service", []), ("nvidia-fabricmanager.service", [holder])):
        assert in_the_way([_gpu(0)], [holder], whole_host=True, fabric_unit=unit) == (blocking, [])


def test_persistence_mode_is_the_daemons_when_there_is_one() -> None:
    gpu = _gpu(0, "enabled")
    daemon = _holder(1, "nvidia0", kind="persistence_daemon")
    assert in_the_way([gpu], [], whole_host=False) == ([], [gpu])
    assert in_the_way([gpu], [daemon], whole_host=False) == ([daemon], [])
    assert in_the_way([gpu], [], whole_host=True) == ([], [])


def test_without_root_check_mode_warns_and_the_rest_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: t.Any) -> t.NoReturn:
        raise HoldersUnseen("Only root sees it.", reason="no_permission")

    monkeypatch.setattr(_nvlink_reset, "find_holders", refuse)
    warnings: list[str] = []
    params = {"proc_root": "/proc", "fabric_manager_unit": "nvidia-fabricmanager.service"}
    require_unused(params, [_gpu(0)], whole_host=False, check_mode=True, warn=warnings.append)
    assert warnings == ["Only root sees it. Outside check mode this would fail."]
    with pytest.raises(GpuFailure, match="Only root"):
        require_unused(params, [_gpu(0)], whole_host=False, check_mode=False, warn=warnings.append)


# ---- nvidia-smi ----


def test_command_line(machine: Machine, tmp_path: Path) -> None:
    machine.create(PCIE)
    smi = machine.program("my-smi", f'#!/bin/sh\necho "$@" >>{tmp_path}/smi.log\n')
    machine.host.tool("link", "gpu3", "0", "down")
    result = machine(scope="gpu", nvidia_smi=str(smi), timeout=1)
    # It said yes and did nothing.
    assert result["reason"] == "still_unhealthy"
    assert (tmp_path / "smi.log").read_text() == "--gpu-reset -i 00000000:CA:00.0,00000000:E3:00.0\n"


def test_reset_that_is_refused(machine: Machine, undocumented: Undocumented) -> None:
    machine.create(PCIE)
    machine.host.tool("link", "gpu3", "0", "down")
    machine.host.tool("fault", "gpuReset", "IN_USE", "--gpu", "gpu3")
    result = machine(scope="gpu")
    assert (result["failed"], result["reason"], result["return_code"]) == (True, "reset_refused", 255)
    assert "In use by another client" in result["msg"] and "nvidia_drm" in result["msg"]
    # The other one of the pair was reset, which is told.
    assert (result["changed"], result["reset_gpus"]) == (True, ["0000:ca:00.0"])
    assert result["command"][1:3] == ["--gpu-reset", "-i"]
    assert undocumented(nvlink_reset, result, "failure") == []
    machine.host.tool("faults", "--clear")
    assert machine(scope="gpu")["healthy"] is True


def test_exit_code_is_explained(machine: Machine) -> None:
    machine.create(H200)
    machine.host.tool("link", "gpu0", "0", "down")
    smi = machine.program("my-smi", '#!/bin/sh\necho "Not Supported"\nexit 3\n')
    result = machine(scope="gpu", nvidia_smi=str(smi))
    assert "ended with 3 (the GPU cannot do this" in result["msg"] and "Not Supported" in result["msg"]
    assert (result["changed"], result["reset_gpus"]) == (False, [])


def test_nvidia_smi_that_hangs(machine: Machine, tmp_path: Path, undocumented: Undocumented) -> None:
    machine.create(H200)
    machine.host.tool("link", "gpu0", "0", "down")
    # Not the program itself, but one that it started, holds its output.
    smi = machine.program("my-smi", f"#!/bin/sh\nsleep 600 &\necho $! >{tmp_path}/pid\nwait\n")
    result = machine(scope="gpu", nvidia_smi=str(smi), timeout=1)
    # It has ended, and at most waits for the machine's first process to take notice.
    status = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/status")
    assert not status.exists() or "(zombie)" in status.read_text()
    assert (result["failed"], result["reason"]) == (True, "timeout")
    assert "did not end within 1 s" in result["msg"]
    assert undocumented(nvlink_reset, result, "failure") == []


def test_nvidia_smi_that_is_not_there(machine: Machine) -> None:
    machine.create(H200)
    (machine.programs / "nvidia-smi").unlink()
    machine.host.tool("link", "gpu0", "0", "down")
    assert machine(scope="gpu")["reason"] == "nvidia_smi_missing"
    result = machine(scope="gpu", nvidia_smi="/surely/not/there")
    assert result["reason"] == "nvidia_smi_missing"
    assert "nvidia_smi: '/surely/not/there' is no program" in result["msg"]


# ---- Fabric Manager ----


def test_links_without_a_fabric(machine: Machine, tmp_path: Path, undocumented: Undocumented) -> None:
    """Fabric Manager has died: links are up, and lead nowhere."""
    machine.create(DGX)
    machine.unit("failed")
    # What P2P status each pair has lies in the state; the restart brings the old one back.
    heal = []
    for number, file in enumerate(sorted(machine.host.state.glob("gpu*/p2p/gpu*"))):
        shutil.copy(file, tmp_path / f"sound{number}")
        file.write_text("read = 5\nwrite = 5\nnvlink = 5\n")
        heal.append(f"cp {tmp_path}/sound{number} {file}\n")
    (tmp_path / "heal").write_text("".join(heal))
    # Resetting GPUs would not bring it back.
    result = machine(scope="gpu")
    assert (result["reason"], result["next_step"]["scope"]) == ("scope_too_gentle", "fabric")
    assert "nothing was changed" in result["msg"] and undocumented(nvlink_reset, result, "failure") == []
    result = machine(scope="gpu", condition="always")
    assert result["reason"] == "fabric_manager_not_running"
    forecast = machine(scope="fabric", check_mode=True)
    assert (forecast["changed"], forecast["fabric_manager_restarted"], machine.log()) == (True, True, [])
    result = machine(scope="fabric")
    assert (result["changed"], result["healthy"], result["fabric_manager_restarted"]) == (True, True, True)
    assert bad(result, "findings_before") == {("fabric_manager", "unhealthy"), ("pair", "unhealthy")}
    assert result["pairs"][0]["p2p_before"]["nvlink"] != "ok" and result["pairs"][0]["p2p_after"]["nvlink"] == "ok"
    assert machine.log() == ["restart nvidia-fabricmanager.service"]
    assert undocumented(nvlink_reset, result, "success") == []
    assert machine(scope="fabric")["changed"] is False


def test_fabric_manager_of_another_version(machine: Machine) -> None:
    machine.create(DGX)
    machine.program("nv-fabricmanager", '#!/bin/sh\necho "Fabric Manager version is : 570.1.1"\n')
    result = machine(scope="counters")
    assert result["fabric_manager"] == {"state": "active", "version": "570.1.1"}
    assert bad(result) == {("fabric_manager", "unhealthy")}


def test_fabric_manager_that_does_not_start(machine: Machine, tmp_path: Path, undocumented: Undocumented) -> None:
    machine.create(DGX)
    machine.unit("failed")
    (tmp_path / "refuse").touch()
    result = machine(scope="fabric")
    assert (result["failed"], result["reason"], result["changed"]) == (True, "restart_failed", True)
    assert "control process exited" in result["msg"] and "journalctl -u nvidia-fabricmanager.service" in result["msg"]
    assert undocumented(nvlink_reset, result, "failure") == []


def test_fabric_manager_that_is_not_installed(machine: Machine) -> None:
    machine.create(DGX)
    machine.unit("inactive", "not-found")
    result = machine(scope="fabric")
    assert (result["failed"], result["reason"]) == (True, "fabric_manager_missing")
    assert "exactly the driver's version" in result["msg"]


@pytest.mark.parametrize("profile", [PCIE, H200])
def test_fabric_where_there_is_none(machine: Machine, profile: str, undocumented: Undocumented) -> None:
    machine.create(profile)
    result = machine(scope="fabric", condition="always")
    assert (result["failed"], result["reason"]) == (True, "no_nvswitch")
    assert undocumented(nvlink_reset, result, "failure") == []


# ---- GPUs that are lost, wrong input ----


def test_lost_gpu(machine: Machine) -> None:
    machine.create(DGX)
    machine.host.tool("lose", "gpu3")
    result = machine(scope="gpu")
    assert (result["failed"], result["reason"]) == (True, "scope_too_gentle")
    assert result["next_step"]["scope"] == "reboot" and "Xid 79" in result["msg"]
    assert machine(scope="counters")["reason"] == "gpu_lost"
    assert machine(scope="counters", gpus=["3"])["reason"] == "gpu_lost"
    # The others can still be worked on, and are judged without it.
    others = [str(index) for index in range(8) if index != 3]
    result = machine(scope="counters", gpus=others)
    assert (result.get("failed"), result["healthy"]) == (None, True)


def test_gpu_that_is_lost_while_counters_are_cleared(machine: Machine) -> None:
    machine.create(DGX)
    machine.host.set("gpu1/nvlink/2#error_replay", 1)
    machine.host.set("gpu5/nvlink/2#error_replay", 1)
    machine.host.tool("fault", "nvmlDeviceResetNvLinkErrorCounters", "GPU_IS_LOST", "--gpu", "gpu5")
    result = machine()
    assert (result["failed"], result["reason"], result["changed"]) == (True, "gpu_lost", True)
    assert result["changed_gpus"] == ["0000:0f:00.0"]


@pytest.mark.parametrize(
    ("params", "reason", "says"),
    [
        ({"gpus": ["9"]}, "gpu_not_found", "gpus: no GPU matches '9'"),
        ({"gpus": ["GPU-nobody"], "scope": "gpu"}, "gpu_not_found", "gpus: no GPU matches 'GPU-nobody'"),
        ({"timeout": 0}, "invalid_timeout", "timeout: 0 is no number of seconds"),
        ({"expectations": {"skus": {"x": {}}}}, "invalid_expectations", "expectations.skus.x: "),
        ({"sysfs_root": "/surely/not/there"}, "invalid_sysfs_root", "sysfs_root: "),
    ],
)
def test_wrong_input(
    machine: Machine, undocumented: Undocumented, params: dict[str, t.Any], reason: str, says: str
) -> None:
    machine.create(H200)
    result = machine(**params)
    assert (result["failed"], result["reason"]) == (True, reason)
    assert says in result["msg"]
    assert undocumented(nvlink_reset, result, "failure") == []


def test_no_gpus(machine: Machine) -> None:
    machine.create(H200, "--gpus", "0")
    for scope in ("counters", "gpu"):
        assert machine(scope=scope)["reason"] == "no_gpus"


def test_bridges_that_are_expected(machine: Machine) -> None:
    machine.create(PCIE)
    for gpu in ("gpu0", "gpu1"):
        for link in range(12):
            machine.host.set(f"{gpu}/nvlink/{link}#state", 0)
    assert machine(check_mode=True)["healthy"] is True
    expectations = {"skus": {"a100-pcie-40gb": {"nvlink_bridged": True}}}
    result = machine(check_mode=True, expectations=expectations)
    assert (result["healthy"], bad(result)) == (False, {("links", "unhealthy")})


def test_options_are_documented_as_they_are_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    declared: dict[str, t.Any] = {}

    class Declared(Exception):
        pass

    def note(**spec: t.Any) -> t.NoReturn:
        declared.update(spec["argument_spec"])
        raise Declared

    monkeypatch.setattr(nvlink_reset, "AnsibleModule", note)
    with pytest.raises(Declared):
        nvlink_reset.main()
    documented = yaml.safe_load(nvlink_reset.DOCUMENTATION)["options"]
    for name, entry in documented.items():
        assert {key: value for key, value in entry.items() if key != "description"} == declared[name], name
    assert declared.keys() - documented.keys() == {"gpus", "sysfs_root", "pynvml_path"}
