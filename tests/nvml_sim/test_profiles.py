# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each profile is, through NVML and through its sysfs."""

from __future__ import annotations

import itertools
import json
import typing as t
from pathlib import Path

import pytest

from tests.nvml_sim.nvml_simulation import HERE, Simulation
from tests.nvml_sim.profile_from_recording import profile as recorded_profile

MIB = 1 << 20
PROFILES = sorted(path.stem for path in (HERE / "profiles").glob("*.json"))

DGX_BUS_IDS = [f"00000000:{bus}:00.0" for bus in ("07", "0F", "47", "4E", "87", "90", "B7", "BD")]


def per_gpu(simulation: Simulation, function: str, *arguments: t.Any) -> list[t.Any]:
    """The function's results for all GPUs."""
    count = len(list(simulation.directory.glob("gpu*")))
    answers = simulation.ask(*([function, f"@{index}", *arguments] for index in range(count)))
    return [answer.get("ok", answer) for answer in answers]


def matrix(simulation: Simulation, function: str, *arguments: t.Any) -> list[list[t.Any]]:
    """The function's results, or errors, for all pairs."""
    count = len(list(simulation.directory.glob("gpu*")))
    pairs = [(i, j) for i in range(count) for j in range(count)]
    answers = simulation.ask(*([function, f"@{i}", f"@{j}", *arguments] for i, j in pairs))
    flat = [answer.get("ok", "error") for answer in answers]
    return [flat[i * count : (i + 1) * count] for i in range(count)]


def test_dgx_identity(dgx: Simulation) -> None:
    assert dgx.one("nvmlDeviceGetCount") == 8
    assert per_gpu(dgx, "nvmlDeviceGetName") == ["NVIDIA A100-SXM4-80GB"] * 8
    pcis = per_gpu(dgx, "nvmlDeviceGetPciInfo")
    assert [pci["busId"] for pci in pcis] == DGX_BUS_IDS
    assert {pci["pciDeviceId"] for pci in pcis} == {0x20B210DE}
    assert per_gpu(dgx, "nvmlDeviceGetCudaComputeCapability") == [[8, 0]] * 8
    assert per_gpu(dgx, "nvmlDeviceGetArchitecture") == [7] * 8
    assert dgx.one("nvmlSystemGetDriverVersion") == "580.159.04"


def test_dgx_memory_and_power(dgx: Simulation) -> None:
    memory = per_gpu(dgx, "nvmlDeviceGetMemoryInfo", 0x02000028)[0]
    assert memory["total"] == 81920 * MIB
    assert memory["free"] == memory["total"] - memory["reserved"] - memory["used"]
    assert per_gpu(dgx, "nvmlDeviceGetBAR1MemoryInfo")[0]["bar1Total"] == 131072 * MIB
    assert per_gpu(dgx, "nvmlDeviceGetPowerManagementLimitConstraints") == [[100000, 400000]] * 8
    assert per_gpu(dgx, "nvmlDeviceGetPowerManagementDefaultLimit") == [400000] * 8
    assert per_gpu(dgx, "nvmlDeviceGetEnforcedPowerLimit") == [400000] * 8


def test_dgx_fabric(dgx: Simulation) -> None:
    """Twelve links to six switches; every pair joined; two GPUs below each PCIe switch."""
    switches = [f"00000000:C{number}:00.0" for number in range(4, 10)]
    calls = [["nvmlDeviceGetNvLinkRemotePciInfo", "@3", link] for link in range(12)]
    assert [answer["ok"]["busId"] for answer in dgx.ask(*calls)] == [bus for bus in switches for _link in range(2)]
    assert dgx.one("nvmlDeviceGetNvLinkRemoteDeviceType", "@3", 11) == 2
    # Link count, common speed, links to switches; state, speed and version of link 5.
    fields = [91, 90, 147, [165, 5], [164, 5], [166, 5]]
    assert dgx.one("nvmlDeviceGetFieldValues", "@3", fields) == [
        [1, 0, 12],
        [3, 0, 25000],
        [1, 0, 12],
        [1, 0, 1],
        [1, 0, 25000],
        [1, 0, 5],
    ]
    assert matrix(dgx, "nvmlDeviceGetP2PStatus", 2) == [[5 if i == j else 0 for j in range(8)] for i in range(8)]
    assert matrix(dgx, "nvmlDeviceGetTopologyCommonAncestor") == [
        ["error" if i == j else 20 if i // 2 == j // 2 else 50 for j in range(8)] for i in range(8)
    ]
    assert dgx.one("nvmlDeviceGetTopologyNearestGpus", "@4", 20) == [5]
    assert dgx.one("nvmlDeviceGetTopologyNearestGpus", "@4", 50) == [0, 1, 2, 3, 6, 7]


def test_dgx_refuses_what_ampere_lacks(dgx: Simulation) -> None:
    answers = dgx.ask(
        ["nvmlDeviceGetRetiredPages", "@0", 0],
        ["nvmlDeviceGetRetiredPagesPendingStatus", "@0"],
        ["nvmlDeviceGetMarginTemperature", "@0"],
        ["nvmlDeviceGetGpuFabricInfoV", "@0", "*c_nvmlGpuFabricInfo_v3_t nvmlGpuFabricInfo_v3"],
        ["nvmlDeviceGetNvLinkState", "@0", 12],
    )
    assert [answer["error"] for answer in answers] == [3, 3, 3, 3, 2]


def test_dgx_affinity(dgx: Simulation) -> None:
    first, second = (
        sum(word << (64 * place) for place, word in enumerate(words))
        for words in (
            dgx.one("nvmlDeviceGetCpuAffinity", "@0", 4),
            dgx.one("nvmlDeviceGetCpuAffinity", "@4", 4),
        )
    )
    assert [n for n in range(256) if first >> n & 1] == [*range(48, 64), *range(176, 192)]
    assert [n for n in range(256) if second >> n & 1] == [*range(112, 128), *range(240, 256)]
    assert dgx.one("nvmlDeviceGetMemoryAffinity", "@4", 1, 0) == [1 << 7]
    assert dgx.one("nvmlSystemGetTopologyGpuSet", 16) == [2, 3]


def test_pcie_pairs(pcie: Simulation) -> None:
    assert per_gpu(pcie, "nvmlDeviceGetName") == ["NVIDIA A100-PCIE-40GB"] * 4
    assert per_gpu(pcie, "nvmlDeviceGetMemoryInfo")[0]["total"] == 40960 * MIB
    assert per_gpu(pcie, "nvmlDeviceGetPowerManagementDefaultLimit") == [250000] * 4
    assert matrix(pcie, "nvmlDeviceGetP2PStatus", 2) == [
        [0 if i != j and i // 2 == j // 2 else 5 for j in range(4)] for i in range(4)
    ]
    bus_ids = [pci["busId"] for pci in per_gpu(pcie, "nvmlDeviceGetPciInfo")]
    for index, peer in enumerate((1, 0, 3, 2)):
        assert pcie.one("nvmlDeviceGetNvLinkRemotePciInfo", f"@{index}", 7)["busId"] == bus_ids[peer]
    assert pcie.one("nvmlDeviceGetNvLinkRemoteDeviceType", "@0", 7) == 0


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()


@pytest.mark.parametrize("profile", PROFILES)
def test_sysfs_agrees_with_nvml(profile: str, make_simulation: t.Callable[..., Simulation]) -> None:
    simulation = make_simulation(profile)
    devices = simulation.directory / "sysfs" / "bus" / "pci" / "devices"
    gpus = sorted(path.name for path in devices.iterdir() if read(path / "class") == "0x030200")
    pcis = per_gpu(simulation, "nvmlDeviceGetPciInfo")
    assert gpus == sorted(pci["busId"].lower()[4:] for pci in pcis)
    generations = per_gpu(simulation, "nvmlDeviceGetMaxPcieLinkGeneration")
    widths = per_gpu(simulation, "nvmlDeviceGetMaxPcieLinkWidth")
    speeds = {4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe"}
    for pci, generation, width in zip(pcis, generations, widths, strict=True):
        place = devices / pci["busId"].lower()[4:]
        assert (
            f"{int(read(place / 'device'), 16):04X}{int(read(place / 'vendor'), 16):04X}" == f"{pci['pciDeviceId']:08X}"
        )
        subsystem = int(read(place / "subsystem_device"), 16) << 16 | int(read(place / "subsystem_vendor"), 16)
        assert subsystem == pci["pciSubSystemId"]
        assert read(place / "max_link_speed") == read(place / "current_link_speed") == speeds[generation]
        assert int(read(place / "max_link_width")) == int(read(place / "current_link_width")) == width
        assert (place / "driver").resolve().name == "nvidia"
    for module in ("nvidia", "nvidia_modeset", "nvidia_uvm"):
        version = read(simulation.directory / "sysfs/module" / module / "version")
        assert version == simulation.one("nvmlSystemGetDriverVersion")


@pytest.mark.parametrize("profile", PROFILES)
def test_windows_of_the_gpus(profile: str, make_simulation: t.Callable[..., Simulation]) -> None:
    """Each has its memory above 4 GiB, as large as NVML says, and no two overlap."""
    simulation = make_simulation(profile)
    devices = simulation.directory / "sysfs" / "bus" / "pci" / "devices"
    windows = []
    for pci, bar1 in zip(
        per_gpu(simulation, "nvmlDeviceGetPciInfo"), per_gpu(simulation, "nvmlDeviceGetBAR1MemoryInfo"), strict=True
    ):
        lines = [
            [int(word, 16) for word in line.split()]
            for line in read(devices / pci["busId"].lower()[4:] / "resource").splitlines()
        ]
        assert len(lines) == 13
        registers, memory = lines[0], lines[1]
        assert registers[1] < 1 << 32
        assert registers[2] & 0x4 == 0
        size = memory[1] - memory[0] + 1
        assert bar1["bar1Total"] <= size < 2 * bar1["bar1Total"]
        assert memory[0] % size == 0
        assert memory[0] >= 1 << 32
        assert memory[2] == 0x14220C
        windows += [line for line in lines if line[1]]
    windows.sort()
    assert all(before[1] < after[0] for before, after in itertools.pairwise(windows))


@pytest.mark.parametrize("profile", PROFILES)
def test_sysfs_is_a_tree(profile: str, make_simulation: t.Callable[..., Simulation]) -> None:
    """As in the real one: a device lies below its bridge, and bus/pci/devices holds links."""
    root = make_simulation(profile).directory / "sysfs"
    for link in (root / "bus" / "pci" / "devices").iterdir():
        assert link.is_symlink()
        place = link.resolve()
        assert place.name == link.name
        assert place.is_relative_to(root.resolve() / "devices")
        domain_and_bus = link.name.rsplit(":", 1)[0]
        above = place.parent.name
        assert above == f"pci{domain_and_bus}" or (place.parent / "vendor").is_file()
        for name in ("numa_node", "current_link_speed", "max_link_speed", "current_link_width", "max_link_width"):
            assert (place / name).is_file()


def test_dgx_sysfs_has_switches_and_upstream_ports(dgx: Simulation) -> None:
    devices = dgx.directory / "sysfs" / "bus" / "pci" / "devices"
    switches = sorted(path.name for path in devices.iterdir() if read(path / "device") == "0x1af1")
    assert switches == [f"0000:c{number}:00.0" for number in range(4, 10)]
    assert {read(devices / name / "class") for name in switches} == {"0x068000"}
    upstream = (devices / "0000:07:00.0").resolve().parent
    assert upstream.name == "0000:06:00.0"
    assert read(upstream / "class") == "0x060400"
    assert read(upstream / "max_link_width") == "16"
    # GPUs 0 and 1 meet at one switch, 0 and 2 nowhere below the root.
    paths = [(devices / f"0000:{bus}:00.0").resolve() for bus in ("07", "0f", "47")]
    assert "0000:01:00.0" in paths[0].parts
    assert "0000:01:00.0" in paths[1].parts
    assert "pci0000:40" in paths[2].parts


@pytest.mark.parametrize("profile", PROFILES)
def test_profile_says_where_its_figures_come_from(profile: str) -> None:
    content = json.loads((HERE / "profiles" / f"{profile}.json").read_text(encoding="utf-8"))
    assert content["name"] == profile
    assert content["sources"]
    assert content["sources"]["NOT SOURCED"]


def test_recorded_profile_is_what_the_recordings_give() -> None:
    content = json.loads((HERE / "profiles" / "h200-sxm-x2.json").read_text(encoding="utf-8"))
    assert content == recorded_profile()
