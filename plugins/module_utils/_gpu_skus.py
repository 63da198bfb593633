# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""What is known of each kind of GPU and of the boards that carry several: figures, each with its source beside it.

This is what a card should be like, for comparing; what a card is like, the card says. Above all, power limits and
temperatures are here only to tell a plausible reading from an odd one: what may be set, the card decides. A figure for
which no source was found is None, and its source says what is missing. A kind of GPU that is not in here has no
expectations, and nothing is ever held against it.
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass, fields, replace

from ansible_collections.baremetal.inference.plugins.module_utils._gpu_errors import GpuFailure

LAYOUT_NONE = "none"
LAYOUT_BRIDGE = "bridge"
LAYOUT_BOARD = "board"
LAYOUT_SWITCH = "switch"
LAYOUT_MESH = "mesh"

_MIB = 2**20
_GIB = 2**30

Value = t.TypeVar("Value")


@dataclass(frozen=True)
class Figure(t.Generic[Value]):
    """A value and where it is from. None: no source says, or there is no such thing; the source tells which."""

    value: Value | None
    source: str


@dataclass(frozen=True)
class PciId:
    """A device id and, where boards of other kinds share it, the subsystem ids (as vendor:device) that are meant."""

    device: str
    subsystems: tuple[str, ...] = ()
    other_subsystems: tuple[str, ...] = ()

    def matches(self, device: str | None, subsystem: str | None) -> bool:
        if device != self.device:
            return False
        return subsystem in self.subsystems if self.subsystems else subsystem not in self.other_subsystems


@dataclass(frozen=True)
class Sku:
    """One kind of GPU. Where cards of one kind differ, a figure is the tuple of what has been seen."""

    id: str
    name: str
    pci_ids: Figure[tuple[PciId, ...]]
    # What NVML calls it; asked only when the PCI ids decide nothing.
    name_pattern: str
    # Links that are up on a card that is wired completely. A card without its bridge has none up.
    nvlink_links: Figure[int]
    nvlink_versions: Figure[tuple[str, ...]]
    # Of one link, in each direction.
    nvlink_megabytes_per_second: Figure[int]
    # none: no NVLink. bridge: plugged between cards, or not. board: soldered, see the systems.
    nvlink_layout: Figure[str]
    # How many cards one bridge joins.
    nvlink_bridge_sizes: Figure[tuple[int, ...]]
    # Whether the cards of this host have bridges. Nobody but the owner knows.
    nvlink_bridged: Figure[bool]
    pcie_generation: Figure[int]
    pcie_width: Figure[int]
    # The whole memory is visible through it when firmware lets it.
    bar1_bytes: Figure[int]
    framebuffer_bytes: Figure[int]
    power_default_watts: Figure[tuple[float, ...]]
    power_min_watts: Figure[tuple[float, ...]]
    power_max_watts: Figure[tuple[float, ...]]
    temperature_slowdown_celsius: Figure[tuple[int, ...]]
    temperature_shutdown_celsius: Figure[tuple[int, ...]]
    # Least bandwidth of a healthy link under load, pinned host memory, decimal gigabytes.
    h2d_gigabytes_per_second: Figure[float]
    d2h_gigabytes_per_second: Figure[float]


@dataclass(frozen=True)
class System:
    """A board or machine with several GPUs whose NVLinks are soldered."""

    id: str
    name: str
    sku_ids: tuple[str, ...]
    gpu_count: Figure[int]
    nvswitch_count: Figure[int]
    # switch: every link leads to an NVSwitch. mesh: links lead from GPU to GPU.
    nvlink_layout: Figure[str]
    links_per_pair: Figure[int]

    @property
    def far_end(self) -> str:
        """What NVML calls the far end of each link."""
        return "switch" if self.nvlink_layout.value == LAYOUT_SWITCH else "gpu"


_IDS = "README of NVIDIA/open-gpu-kernel-modules, table of supported GPUs"
_FM_GUIDE = "NVIDIA Fabric Manager User Guide, 'NVSwitch-Based Systems'"
_HGX_A100 = "NVIDIA developer blog, 'Introducing NVIDIA HGX A100'"
_HGX_H100 = "NVIDIA developer blog, 'Introducing NVIDIA HGX H100'"
_H200 = "NVML of two H200, driver 580.159.04 (tests/nvml_sim/recordings/nvml-h200x2-driver580.json)"
_A100_BRIEF_40 = "NVIDIA A100 40GB PCIe product brief, PB-10137-001"
_A100_TABLE = "thundercompute.com, 'NVIDIA A100 specs', table by form factor"
_NVLINK_PAGE = "nvidia.com/data-center/nvlink: A100 has up to twelve links, with PCIe cards between two GPUs"
_A100_BRIEF_80 = "NVIDIA A100 80GB PCIe product brief, PB-10577-001"
_H100_BRIEF = "NVIDIA H100 PCIe product brief, PB-11133-001"
_H100_SHEET = "NVIDIA H100 data sheet, as quoted at realworldtech.com/forum/?threadid=206399"
_H100_PAIR = f"{_H100_SHEET}: 600 GB/s of NVLink on PCIe cards, which is two joined by bridges"
_H100_SXM = "hawkvelt.id.au, 'Unpacking the NVIDIA H100', section SXM5"
_H200_NVL = "report of the H200 NVL's announcement, gixtools.net/2024/11/nvidia-hpc-ai-chip-is-actually-six-chips"
_SXM4_80 = "public 'nvidia-smi -q' of an A100-SXM4-80GB, board 692-2G506-0210-002 (tests/nvml_sim, dgx-a100-80gb)"
_SXM4_40 = "'nvidia-smi -q' of an A100 SXM4 with 40960 MiB in github.com/NVIDIA/nvidia-docker/issues/1648"
_SXM4_500 = "influxdata/telegraf, nvidia_smi/testdata/a100-sxm4-v12.xml (board 692-2G506-0212: 500 W)"
_PCIE_40 = "'nvidia-smi -q' of A100-PCIE-40GB cards in github.com/NVIDIA/nvidia-docker/issues/1473"
_AMPERE_LINKS = "'nvidia-smi nvlink --status' of 8 A100-SXM4-80GB in leptonai/gpud: 12 links of 25 GB/s each"
_AMPERE_VERSION = (
    "NVLink 3; NVML's numbers 4 (3.0) and 5 (3.1): github.com/open-mpi/hwloc/issues/658 saw 5 on an A100, and which"
    " board or driver says 4 is not known"
)
_HOPPER_LINKS = "recorded 18 links of 26562 MB/s on H200; 'nvidia-smi nvlink --status' of public H100 hosts says 26.562"
_HOPPER_VERSION = "NVML_NVLINK_VERSION 6 (4.0), recorded on H200; H100 has the same NVLink 4"
_SOLDERED = "SXM module: its links are on the baseboard"
_NO_BRIDGE_SIZES = "not a bridged card"
_OWNER_KNOWS = "cards are sold with and without bridges: say which yours are with the option 'expectations'"
_NOT_BRIDGED = "not a bridged card"
_GEN4 = (
    "derived: generation 4 x16 carries 16 GT/s x 16 lanes x 128/130 / 8 = 31.5 GB/s, and 73 % of it is 23; measured"
    " 24.8 to 25 on healthy A100-SXM4 (github.com/NVIDIA/nvbandwidth/issues/53); Azure/azurehpc-health-checks asks for"
    " 24 of SXM4 and, in virtual machines, 21 of PCIe cards"
)
_GEN5 = (
    "derived: generation 5 x16 carries 32 GT/s x 16 lanes x 128/130 / 8 = 63.0 GB/s, and 73 % of it is 46;"
    " Azure/azurehpc-health-checks asks for 52 of H100 and 48 of H200; measured 55 each way on two H200 (tests/gpu) and"
    " 52.8 device to host on H100 (github.com/NVIDIA/nvbandwidth/issues/24)"
)
_POWER_OF_TWO = (
    "derived: a BAR is a power of two (PCI), so the least that shows the whole memory; as read on A100 SXM4 (40 -> 64"
    " and 80 -> 128 GiB) and H200 (140 -> 256 GiB)"
)
_NO_SOURCE = "no public reading of this card was found"
_NO_PCIE = "integrated GPU: not on the PCI bus (NVML gives no bus id; nvidia-smi on Orin prints N/A)"
_NO_NVLINK = "integrated GPU: no NVLink"
_NO_LIMITS = "integrated GPU: NVML has no power limits, nvpmodel sets the board's (nvidia-smi on Orin prints N/A)"

_NO_BRIDGES: Figure[tuple[int, ...]] = Figure(None, _NO_BRIDGE_SIZES)
_BRIDGED_OR_NOT: Figure[bool] = Figure(None, _OWNER_KNOWS)
_NO_CARD_BRIDGE: Figure[bool] = Figure(None, _NOT_BRIDGED)
_NO_TEMPERATURE: Figure[tuple[int, ...]] = Figure(None, _NO_SOURCE)

A100_PCIE_40GB = Sku(
    id="a100-pcie-40gb",
    name="NVIDIA A100 PCIe 40GB",
    pci_ids=Figure((PciId("20f1", ("10de:145f",)), PciId("20b1", ("10de:145f",))), f"{_IDS}; 20b1 in older releases"),
    name_pattern=r"(NVIDIA )?A100-PCIE-40GB",
    nvlink_links=Figure(12, _NVLINK_PAGE),
    nvlink_versions=Figure(("3.0", "3.1"), _AMPERE_VERSION),
    nvlink_megabytes_per_second=Figure(25000, f"{_AMPERE_LINKS}; the same GPU chip"),
    nvlink_layout=Figure(LAYOUT_BRIDGE, f"{_A100_BRIEF_40}: 'NVLink Bridge Support'"),
    nvlink_bridge_sizes=Figure((2,), _NVLINK_PAGE),
    nvlink_bridged=_BRIDGED_OR_NOT,
    pcie_generation=Figure(4, f"{_A100_BRIEF_40}: PCI Express Gen4 card"),
    pcie_width=Figure(16, f"{_A100_TABLE}: PCIe 4.0 x16"),
    bar1_bytes=Figure(65536 * _MIB, _PCIE_40),
    framebuffer_bytes=Figure(40960 * _MIB, "public nvidia-smi of A100-PCIE-40GB; drivers before R510 say 40536 MiB"),
    power_default_watts=Figure((250.0,), f"{_A100_TABLE}: 250 W; public nvidia-smi: '36W / 250W'"),
    power_min_watts=Figure(None, f"{_NO_SOURCE}: 150 W is often said, and nowhere shown"),
    power_max_watts=Figure((250.0,), f"{_A100_TABLE}: 250 W is the design power"),
    temperature_slowdown_celsius=_NO_TEMPERATURE,
    temperature_shutdown_celsius=_NO_TEMPERATURE,
    h2d_gigabytes_per_second=Figure(23.0, _GEN4),
    d2h_gigabytes_per_second=Figure(23.0, _GEN4),
)
A100_PCIE_80GB = replace(
    A100_PCIE_40GB,
    id="a100-pcie-80gb",
    name="NVIDIA A100 PCIe 80GB",
    pci_ids=Figure((PciId("20b5", ("10de:1533", "10de:1642")),), _IDS),
    name_pattern=r"(NVIDIA )?A100([ -]80GB PCIe|-PCIE-80GB)",
    nvlink_links=Figure(12, _NVLINK_PAGE),
    nvlink_layout=Figure(LAYOUT_BRIDGE, f"{_A100_BRIEF_80}: 'NVLink Bridge Support'"),
    nvlink_bridge_sizes=Figure((2,), _NVLINK_PAGE),
    pcie_generation=Figure(4, f"{_A100_TABLE}: PCIe 4.0 x16"),
    pcie_width=Figure(16, f"{_A100_TABLE}: PCIe 4.0 x16"),
    bar1_bytes=Figure(128 * _GIB, _POWER_OF_TWO),
    framebuffer_bytes=Figure(81920 * _MIB, "nvidia-smi of A100 80GB PCIe in github.com/ollama/ollama/issues/4814"),
    power_default_watts=Figure((300.0,), "nvidia-smi of A100 80GB PCIe in github.com/ollama/ollama/issues/4814: 300 W"),
    power_min_watts=Figure(None, f"{_NO_SOURCE}: 150 W is often said, and nowhere shown"),
    power_max_watts=Figure((300.0,), f"{_A100_TABLE}: 300 W is the design power"),
)
A100_SXM4_40GB = replace(
    A100_PCIE_40GB,
    id="a100-sxm4-40gb",
    name="NVIDIA A100 SXM4 40GB",
    pci_ids=Figure((PciId("20b0", other_subsystems=("10de:1450",)),), f"{_IDS}; 10de:1450 is another board"),
    name_pattern=r"(NVIDIA )?A100-SXM4-40GB",
    nvlink_links=Figure(12, f"{_HGX_A100}: 12 NVLink ports"),
    nvlink_layout=Figure(LAYOUT_BOARD, _SOLDERED),
    nvlink_bridge_sizes=_NO_BRIDGES,
    nvlink_bridged=_NO_CARD_BRIDGE,
    pcie_generation=Figure(
        4, "25 GB/s measured by github.com/NVIDIA/nvbandwidth/issues/42: more than generation 3 has"
    ),
    pcie_width=Figure(16, "25 GB/s measured by github.com/NVIDIA/nvbandwidth/issues/42: more than x8 of generation 4"),
    bar1_bytes=Figure(65536 * _MIB, _SXM4_40),
    framebuffer_bytes=Figure(40960 * _MIB, f"{_SXM4_40}; drivers before R510 say less"),
    power_default_watts=Figure((400.0,), _SXM4_40),
    power_min_watts=Figure((100.0,), _SXM4_40),
    power_max_watts=Figure((400.0,), _SXM4_40),
)
A100_SXM4_80GB = replace(
    A100_SXM4_40GB,
    id="a100-sxm4-80gb",
    name="NVIDIA A100 SXM4 80GB",
    pci_ids=Figure(
        (PciId("20b2", ("10de:1463", "10de:147f", "10de:1484", "10de:1622", "10de:1623")),),
        f"{_IDS}; 10de:1484 in older releases, 10de:1625 is another board",
    ),
    name_pattern=r"(NVIDIA )?A100-SXM4-80GB",
    nvlink_links=Figure(12, _AMPERE_LINKS),
    nvlink_megabytes_per_second=Figure(25000, _AMPERE_LINKS),
    pcie_generation=Figure(4, _SXM4_80),
    pcie_width=Figure(16, _SXM4_80),
    bar1_bytes=Figure(131072 * _MIB, _SXM4_80),
    framebuffer_bytes=Figure(81920 * _MIB, _SXM4_80),
    power_default_watts=Figure((400.0, 500.0), f"{_SXM4_80}: 400 W; {_SXM4_500}"),
    power_min_watts=Figure((100.0,), f"{_SXM4_80}; {_SXM4_500}"),
    power_max_watts=Figure((400.0, 500.0), f"{_SXM4_80}: 400 W; {_SXM4_500}"),
    temperature_slowdown_celsius=Figure((89,), f"{_SXM4_80}; {_SXM4_500}"),
    temperature_shutdown_celsius=Figure((92,), f"{_SXM4_80}; {_SXM4_500}"),
)
H100_PCIE_80GB = replace(
    A100_PCIE_40GB,
    id="h100-pcie-80gb",
    name="NVIDIA H100 PCIe 80GB",
    pci_ids=Figure((PciId("2331", ("10de:1626",)),), _IDS),
    name_pattern=r"NVIDIA H100 PCIe",
    nvlink_links=Figure(
        12,
        f"derived: {_H100_SHEET}: 600 GB/s on PCIe cards (900 on SXM), and a link has 50 both ways",
    ),
    nvlink_versions=Figure(("4.0",), _HOPPER_VERSION),
    nvlink_megabytes_per_second=Figure(26562, _HOPPER_LINKS),
    nvlink_layout=Figure(LAYOUT_BRIDGE, _H100_PAIR),
    nvlink_bridge_sizes=Figure((2,), _H100_PAIR),
    pcie_generation=Figure(5, f"{_H100_BRIEF}: PCI Express Gen5 card"),
    pcie_width=Figure(16, "doyoumoney.com/posts/172, table of interfaces: H100 has PCIe 5.0 x16"),
    bar1_bytes=Figure(128 * _GIB, _POWER_OF_TWO),
    framebuffer_bytes=Figure(81559 * _MIB, "public test report of NVIDIA/TensorRT-LLM: 'NVIDIA H100 PCIe (81559 MiB)'"),
    power_default_watts=Figure(None, f"{_NO_SOURCE}: the brief says only what it can take"),
    power_min_watts=Figure(None, _NO_SOURCE),
    power_max_watts=Figure((350.0,), f"{_H100_BRIEF}: unconstrained up to its maximum of 350 W"),
    h2d_gigabytes_per_second=Figure(46.0, _GEN5),
    d2h_gigabytes_per_second=Figure(46.0, _GEN5),
)
H100_SXM5_80GB = replace(
    H100_PCIE_80GB,
    id="h100-sxm5-80gb",
    name="NVIDIA H100 SXM5 80GB",
    pci_ids=Figure((PciId("2330", ("10de:16c0", "10de:16c1")),), _IDS),
    name_pattern=r"NVIDIA H100 80GB HBM3",
    nvlink_links=Figure(18, "'nvidia-smi nvlink -R' of H100 80GB HBM3 in github.com/NVIDIA/nccl/issues/1182"),
    nvlink_layout=Figure(LAYOUT_BOARD, _SOLDERED),
    nvlink_bridge_sizes=_NO_BRIDGES,
    nvlink_bridged=_NO_CARD_BRIDGE,
    pcie_generation=Figure(5, f"{_H100_SXM}: PCIe Gen5, 128 GB/s"),
    pcie_width=Figure(16, f"{_H100_SXM}: PCIe Gen5, 128 GB/s (both ways: x16)"),
    framebuffer_bytes=Figure(81559 * _MIB, "public job logs: 'NVIDIA H100 80GB HBM3, 81559 MiB'"),
    power_default_watts=Figure((700.0,), f"{_H100_SXM}: up to 700 W; operators set less"),
    power_min_watts=Figure(None, _NO_SOURCE),
    power_max_watts=Figure((700.0,), f"{_H100_SXM}: up to 700 W"),
)
H200_SXM5_141GB = replace(
    H100_SXM5_80GB,
    id="h200-sxm5-141gb",
    name="NVIDIA H200 SXM5 141GB",
    pci_ids=Figure((PciId("2335", ("10de:18be", "10de:18bf")),), f"{_IDS}; 10de:18bf recorded"),
    name_pattern=r"NVIDIA H200",
    nvlink_links=Figure(18, _H200),
    nvlink_versions=Figure(("4.0",), _H200),
    nvlink_megabytes_per_second=Figure(26562, f"{_H200}: field 164"),
    pcie_generation=Figure(5, _H200),
    pcie_width=Figure(16, _H200),
    bar1_bytes=Figure(256 * _GIB, _H200),
    framebuffer_bytes=Figure(143771 * _MIB, _H200),
    power_default_watts=Figure((700.0,), _H200),
    power_min_watts=Figure((200.0,), _H200),
    power_max_watts=Figure((700.0,), _H200),
    temperature_slowdown_celsius=Figure((89,), _H200),
    temperature_shutdown_celsius=Figure((95,), _H200),
)
H200_NVL_141GB = replace(
    H100_PCIE_80GB,
    id="h200-nvl-141gb",
    name="NVIDIA H200 NVL 141GB",
    pci_ids=Figure((PciId("233b", ("10de:1996",)),), _IDS),
    name_pattern=r"NVIDIA H200 NVL",
    nvlink_links=Figure(18, "a public repository's description of a node with 8 H200 NVL: 18 links/GPU at 26.562 GB/s"),
    nvlink_layout=Figure(LAYOUT_BRIDGE, f"{_H200_NVL}: an NVLink bridge joins the cards at 900 GB/s"),
    nvlink_bridge_sizes=Figure((2, 4), f"{_H200_NVL}: joins four cards, twice as many as H100 NVL"),
    pcie_generation=Figure(5, f"{_H200_NVL}: its NVLink is seven times PCIe 5"),
    pcie_width=Figure(16, f"derived: {_H200_NVL}: 900 GB/s is seven times PCIe 5, so 128 both ways, which is x16"),
    bar1_bytes=Figure(256 * _GIB, _POWER_OF_TWO),
    framebuffer_bytes=Figure(143771 * _MIB, "a public repository's description of a node with 8 H200 NVL: 143771 MiB"),
    power_default_watts=Figure(None, _NO_SOURCE),
    power_max_watts=Figure((600.0,), "onestopsystems.com/pages/one-stop-systems-blog: H200 NVL at 600 W"),
)
JETSON_ORIN = Sku(
    id="jetson-orin",
    name="NVIDIA Jetson Orin",
    pci_ids=Figure(None, _NO_PCIE),
    name_pattern=r"(NVIDIA )?((Tegra|Jetson( AGX)?) )?Orin( NX| Nano)?( \(nvgpu\))?",
    nvlink_links=Figure(0, _NO_NVLINK),
    nvlink_versions=Figure(None, _NO_NVLINK),
    nvlink_megabytes_per_second=Figure(None, _NO_NVLINK),
    nvlink_layout=Figure(LAYOUT_NONE, _NO_NVLINK),
    nvlink_bridge_sizes=Figure(None, _NO_NVLINK),
    nvlink_bridged=Figure(None, _NO_NVLINK),
    pcie_generation=Figure(None, _NO_PCIE),
    pcie_width=Figure(None, _NO_PCIE),
    bar1_bytes=Figure(None, _NO_PCIE),
    framebuffer_bytes=Figure(None, "integrated GPU: shares the host's memory, of which modules have 4 to 64 GB"),
    power_default_watts=Figure(None, _NO_LIMITS),
    power_min_watts=Figure(None, _NO_LIMITS),
    power_max_watts=Figure(None, _NO_LIMITS),
    temperature_slowdown_celsius=Figure(None, _NO_LIMITS),
    temperature_shutdown_celsius=Figure(None, _NO_LIMITS),
    h2d_gigabytes_per_second=Figure(None, _NO_PCIE),
    d2h_gigabytes_per_second=Figure(None, _NO_PCIE),
)

SKUS: tuple[Sku, ...] = (
    A100_PCIE_40GB,
    A100_PCIE_80GB,
    A100_SXM4_40GB,
    A100_SXM4_80GB,
    H100_PCIE_80GB,
    H100_SXM5_80GB,
    H200_SXM5_141GB,
    H200_NVL_141GB,
    JETSON_ORIN,
)

_A100_SXM4 = (A100_SXM4_40GB.id, A100_SXM4_80GB.id)
_H200_SWITCHES = (
    "ai-hpc.github.io, 'H200 Hardware Architecture': 8 GPUs and four NVSwitch 3.0 chips; NVIDIA vGPU documentation,"
    " 'NVIDIA NVSwitch', has the HGX H200 8-GPU baseboard"
)
SYSTEMS: tuple[System, ...] = (
    System(
        id="hgx-a100-8gpu",
        name="DGX A100 or HGX A100 8-GPU",
        sku_ids=_A100_SXM4,
        gpu_count=Figure(8, _FM_GUIDE),
        nvswitch_count=Figure(6, _FM_GUIDE),
        nvlink_layout=Figure(LAYOUT_SWITCH, f"{_FM_GUIDE}: two links from each GPU to each of six switches"),
        links_per_pair=Figure(12, "NV12 for every pair of a DGX A100 in github.com/NVIDIA/nccl/issues/1505"),
    ),
    System(
        id="hgx-a100-16gpu",
        name="HGX A100 16-GPU (two baseboards)",
        sku_ids=_A100_SXM4,
        gpu_count=Figure(16, f"{_FM_GUIDE}: two baseboards of 8"),
        nvswitch_count=Figure(12, f"{_FM_GUIDE}: two baseboards of 6"),
        nvlink_layout=Figure(LAYOUT_SWITCH, _FM_GUIDE),
        links_per_pair=Figure(12, f"derived: {_FM_GUIDE} has all 12 links of each GPU at the switches"),
    ),
    System(
        id="hgx-a100-4gpu",
        name="HGX A100 4-GPU",
        sku_ids=_A100_SXM4,
        gpu_count=Figure(4, f"{_HGX_A100}: HGX A100 4-GPU connected with NVLink"),
        nvswitch_count=Figure(0, f"{_HGX_A100}: HGX A100 4-GPU connected with NVLink, the 8-GPU board with NVSwitch"),
        nvlink_layout=Figure(LAYOUT_MESH, f"{_HGX_A100}: HGX A100 4-GPU connected with NVLink"),
        links_per_pair=Figure(4, "derived: 12 links over 3 other GPUs"),
    ),
    System(
        id="hgx-h100-8gpu",
        name="DGX H100 or HGX H100 8-GPU",
        sku_ids=(H100_SXM5_80GB.id,),
        gpu_count=Figure(8, _HGX_H100),
        nvswitch_count=Figure(4, _HGX_H100),
        nvlink_layout=Figure(LAYOUT_SWITCH, f"{_HGX_H100}: each GPU connects to all four NVSwitches"),
        links_per_pair=Figure(18, "NV18 for every pair of an HGX H100 in github.com/NVIDIA/nccl/issues/1264"),
    ),
    System(
        id="hgx-h100-4gpu",
        name="HGX H100 4-GPU",
        sku_ids=(H100_SXM5_80GB.id,),
        gpu_count=Figure(4, "4 x H100 with NV6 for every pair in github.com/NVIDIA/nccl/issues/1617"),
        nvswitch_count=Figure(0, "4 x H100 with NV6 for every pair in github.com/NVIDIA/nccl/issues/1617"),
        nvlink_layout=Figure(LAYOUT_MESH, "4 x H100 with NV6 for every pair in github.com/NVIDIA/nccl/issues/1617"),
        links_per_pair=Figure(6, "4 x H100 with NV6 for every pair in github.com/NVIDIA/nccl/issues/1617: 18 over 3"),
    ),
    System(
        id="hgx-h200-8gpu",
        name="DGX H200 or HGX H200 8-GPU",
        sku_ids=(H200_SXM5_141GB.id,),
        gpu_count=Figure(8, _H200_SWITCHES),
        nvswitch_count=Figure(4, _H200_SWITCHES),
        nvlink_layout=Figure(LAYOUT_SWITCH, _H200_SWITCHES),
        links_per_pair=Figure(18, f"{_H200}: field NVSWITCH_CONNECTED_LINK_COUNT is 18"),
    ),
)


@dataclass(frozen=True)
class Catalog:
    """The kinds that are known, with the user's corrections."""

    skus: tuple[Sku, ...] = SKUS
    systems: tuple[System, ...] = SYSTEMS


CATALOG = Catalog()


def _hex(text: str | None) -> str | None:
    if text is None:
        return None
    text = str(text).strip().lower()
    return text[2:] if text.startswith("0x") else text


def sku_for(
    device_id: str | None,
    subsystem_id: str | None = None,
    name: str | None = None,
    catalog: Catalog = CATALOG,
) -> Sku | None:
    """The kind of a GPU, by its PCI device id ("20b2"), its subsystem ("10de:1463") and, failing these, its name."""
    device = _hex(device_id)
    subsystem = None if subsystem_id is None else ":".join(_hex(part) or "" for part in str(subsystem_id).split(":"))
    # Later entries are the user's.
    for sku in reversed(catalog.skus):
        if any(entry.matches(device, subsystem) for entry in sku.pci_ids.value or ()):
            return sku
    for sku in reversed(catalog.skus):
        if name is not None and re.fullmatch(sku.name_pattern, name.strip()):
            return sku
    return None


def sku_of(gpu: t.Mapping[str, t.Any], catalog: Catalog = CATALOG) -> Sku | None:
    """The kind of one of gpu_info's GPUs."""
    pci = gpu["pci"]
    vendor, device = pci["subsystem_vendor_id"], pci["subsystem_device_id"]
    return sku_for(pci["device_id"], f"{vendor}:{device}" if vendor and device else None, gpu["name"], catalog)


def system_of(facts: t.Mapping[str, t.Any], catalog: Catalog = CATALOG) -> System | None:
    """The board that carries the GPUs of gpu_info's result."""
    if not facts["nvswitches"] and any(gpu["nvlink"] is None for gpu in facts["gpus"]):
        # A board of few GPUs, or some of many whose switches are hidden: only the far ends tell.
        return None
    links = [link for gpu in facts["gpus"] for link in (gpu["nvlink"] or {}).get("links", ())]
    return system_for(
        [sku_of(gpu, catalog) for gpu in facts["gpus"]],
        # Containers need not see the bus.
        max(facts["pci_gpu_count"], facts["gpu_count"]),
        len(facts["nvswitches"]),
        {link["remote_device_type"] for link in links if link["remote_device_type"]},
        catalog,
    )


def system_for(
    skus: t.Sequence[Sku | None],
    gpu_count: int,
    nvswitch_count: int,
    far_ends: t.Collection[str] = (),
    catalog: Catalog = CATALOG,
) -> System | None:
    """The board that carries these GPUs, or None when they are single cards or the board is not known.

    ``gpu_count`` and ``nvswitch_count`` are what the PCI bus has. A GPU or NVSwitch that is missing is a fault of the
    board and leaves it what it is. ``far_ends`` are the kinds of NVLink's far ends: a virtual machine need not see the
    NVSwitches that its links lead to, and then nobody can say which board that is.
    """
    kinds = {sku.id for sku in skus if sku is not None}
    if len(kinds) != 1 or None in skus or gpu_count < 1:
        return None
    (kind,) = kinds
    candidates = []
    for system in catalog.systems:
        count, switches = system.gpu_count.value or 0, system.nvswitch_count.value or 0
        if kind not in system.sku_ids or gpu_count > count:
            continue
        if (nvswitch_count > 0) != (switches > 0) or nvswitch_count > switches:
            continue
        # Without switches nothing but the number tells a board from a few cards of it handed to a virtual machine.
        if not switches and (gpu_count != count or "switch" in far_ends):
            continue
        candidates.append((count, system))
    return min(candidates, key=lambda candidate: candidate[0])[1] if candidates else None


# What each figure holds; the order is that of the results.
_KINDS: t.Mapping[str, str] = {
    "nvlink_links": "int",
    "nvlink_versions": "strings",
    "nvlink_megabytes_per_second": "int",
    "nvlink_layout": "layout",
    "nvlink_bridge_sizes": "ints",
    "nvlink_bridged": "bool",
    "pcie_generation": "int",
    "pcie_width": "int",
    "bar1_bytes": "int",
    "framebuffer_bytes": "int",
    "power_default_watts": "floats",
    "power_min_watts": "floats",
    "power_max_watts": "floats",
    "temperature_slowdown_celsius": "ints",
    "temperature_shutdown_celsius": "ints",
    "h2d_gigabytes_per_second": "float",
    "d2h_gigabytes_per_second": "float",
}
_SYSTEM_KINDS: t.Mapping[str, str] = {
    "gpu_count": "int",
    "nvswitch_count": "int",
    "nvlink_layout": "system_layout",
    "links_per_pair": "int",
}
SKU_FIGURES = tuple(_KINDS)
SYSTEM_FIGURES = tuple(_SYSTEM_KINDS)
_WORDS: t.Mapping[str, str] = {
    "int": "a whole number from 0",
    "float": "a number above 0",
    "bool": "true or false",
    "strings": "a list of texts",
    "ints": "a whole number from 0, or a list of them",
    "floats": "a number above 0, or a list of them",
    "layout": f"{LAYOUT_NONE}, {LAYOUT_BRIDGE} or {LAYOUT_BOARD}",
    "system_layout": f"{LAYOUT_SWITCH} or {LAYOUT_MESH}",
}
_CHOICES: t.Mapping[str, tuple[str, ...]] = {
    "layout": (LAYOUT_NONE, LAYOUT_BRIDGE, LAYOUT_BOARD),
    "system_layout": (LAYOUT_SWITCH, LAYOUT_MESH),
}
OPTION_SOURCE = "the option 'expectations'"


def _plain(value: t.Any) -> t.Any:
    return list(value) if isinstance(value, tuple) else value


def _figures(record: Sku | System, names: t.Iterable[str]) -> dict[str, dict[str, t.Any]]:
    return {
        name: {"value": _plain(getattr(record, name).value), "source": getattr(record, name).source} for name in names
    }


def as_result(sku: Sku | None) -> dict[str, t.Any] | None:
    """What a module returns of a kind of GPU."""
    if sku is None:
        return None
    return {"id": sku.id, "name": sku.name, "figures": _figures(sku, SKU_FIGURES)}


def system_as_result(system: System | None) -> dict[str, t.Any] | None:
    if system is None:
        return None
    return {"id": system.id, "name": system.name, "figures": _figures(system, SYSTEM_FIGURES)}


class ExpectationsError(GpuFailure):
    """The option is wrong; ``path`` says where."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(f"{path}: {text}", reason="invalid_expectations", path=path)


def override(expectations: t.Mapping[str, t.Any] | None, catalog: Catalog = CATALOG) -> Catalog:
    """The catalog with the user's figures: known kinds corrected, new ones added.

    ``expectations`` has ``skus`` and ``systems``, each a dictionary by id. An entry names figures as the results do;
    null means that nothing is expected. New kinds of GPU need name and device_ids (or name_pattern), new systems need
    name, skus and all their figures.
    """
    if not expectations:
        return catalog
    _require_mapping("expectations", expectations, ("skus", "systems"))
    skus = {sku.id: sku for sku in catalog.skus}
    for sku_id, entry in (expectations.get("skus") or {}).items():
        # Put last, since the user's word counts before ours.
        skus[sku_id] = _override_sku(f"expectations.skus.{sku_id}", str(sku_id), skus.pop(sku_id, None), entry)
    systems = {system.id: system for system in catalog.systems}
    for system_id, entry in (expectations.get("systems") or {}).items():
        path = f"expectations.systems.{system_id}"
        systems[system_id] = _override_system(path, str(system_id), systems.get(system_id), entry, tuple(skus))
    return Catalog(tuple(skus.values()), tuple(systems.values()))


def _require_mapping(path: str, value: t.Any, allowed: t.Sequence[str]) -> None:
    if not isinstance(value, dict):
        raise ExpectationsError(path, f"{value!r} is no dictionary. Its keys may be: {', '.join(allowed)}.")
    for key in value:
        if key not in allowed:
            raise ExpectationsError(f"{path}.{key}", f"there is no such key. Allowed are: {', '.join(allowed)}.")
    for key in ("skus", "systems"):
        inner = value.get(key)
        if path == "expectations" and inner is not None and not isinstance(inner, dict):
            raise ExpectationsError(f"{path}.{key}", f"{inner!r} is no dictionary of entries by id.")


def _override_sku(path: str, sku_id: str, known: Sku | None, entry: t.Any) -> Sku:
    _require_mapping(path, entry, ("name", "device_ids", "name_pattern", *SKU_FIGURES))
    figures = {
        name: Figure(_converted(f"{path}.{name}", kind, entry[name]), OPTION_SOURCE)
        for name, kind in _KINDS.items()
        if name in entry
    }
    if known is None:
        if "name" not in entry or not ("device_ids" in entry or "name_pattern" in entry):
            raise ExpectationsError(
                path,
                "a kind of GPU that is not known needs name, and device_ids or name_pattern to tell it by. Known are:"
                f" {', '.join(sku.id for sku in SKUS)}.",
            )
        empty: dict[str, t.Any] = {name: Figure(None, "not given in the option 'expectations'") for name in SKU_FIGURES}
        known = Sku(id=sku_id, name="", pci_ids=Figure(None, OPTION_SOURCE), name_pattern="(?!)", **empty)
    changes: dict[str, t.Any] = dict(figures)
    if "name" in entry:
        changes["name"] = _text(f"{path}.name", entry["name"])
    if "device_ids" in entry:
        changes["pci_ids"] = Figure(_pci_ids(f"{path}.device_ids", entry["device_ids"]), OPTION_SOURCE)
    if "name_pattern" in entry:
        changes["name_pattern"] = _pattern(f"{path}.name_pattern", entry["name_pattern"])
    return replace(known, **changes)


def _override_system(path: str, system_id: str, known: System | None, entry: t.Any, sku_ids: tuple[str, ...]) -> System:
    _require_mapping(path, entry, ("name", "skus", *SYSTEM_FIGURES))
    changes: dict[str, t.Any] = {
        name: Figure(_converted(f"{path}.{name}", kind, entry[name]), OPTION_SOURCE)
        for name, kind in _SYSTEM_KINDS.items()
        if name in entry
    }
    if "name" in entry:
        changes["name"] = _text(f"{path}.name", entry["name"])
    if "skus" in entry:
        listed = entry["skus"] if isinstance(entry["skus"], list) else [entry["skus"]]
        for sku_id in listed:
            if sku_id not in sku_ids:
                raise ExpectationsError(f"{path}.skus", f"'{sku_id}' is no known SKU. Known are: {', '.join(sku_ids)}.")
        changes["sku_ids"] = tuple(listed)
    if known is not None:
        return replace(known, **changes)
    missing = [key for key in ("name", "skus", *SYSTEM_FIGURES) if key not in entry]
    if missing:
        raise ExpectationsError(path, f"a system that is not known needs {', '.join(missing)} as well.")
    return System(id=system_id, **changes)


def _text(path: str, value: t.Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ExpectationsError(path, f"{value!r} is no text.")
    return value.strip()


def _pattern(path: str, value: t.Any) -> str:
    text = _text(path, value)
    try:
        re.compile(text)
    except re.error as error:
        raise ExpectationsError(path, f"'{text}' is no regular expression: {error}.") from error
    return text


def _pci_ids(path: str, value: t.Any) -> tuple[PciId, ...]:
    listed = value if isinstance(value, list) else [value]
    found = []
    for item in listed:
        device = _hex(str(item)) or ""
        if not re.fullmatch(r"[0-9a-f]{4}", device):
            raise ExpectationsError(
                path,
                f"{item!r} is no PCI device id: four hexadecimal digits in quotes, such as '20b2' (without quotes YAML"
                " may read it as a number).",
            )
        found.append(PciId(device))
    return tuple(found)


def _converted(path: str, kind: str, value: t.Any) -> t.Any:
    """The value as the figure has it; templates hand numbers over as texts."""
    if value is None:
        return None
    try:
        if kind in ("ints", "floats", "strings"):
            listed = value if isinstance(value, list) else [value]
            single = {"ints": "int", "floats": "float", "strings": "string"}[kind]
            return tuple(_single(single, item) for item in listed)
        return _single(kind, value)
    except ValueError as error:
        raise ExpectationsError(path, f"{value!r} is not what it must be: {_WORDS[kind]}, or null.") from error


def _single(kind: str, value: t.Any) -> t.Any:
    if kind == "bool":
        text = str(value).strip().lower()
        if text not in ("true", "false", "yes", "no"):
            raise ValueError(text)
        return text in ("true", "yes")
    if isinstance(value, (bool, list, dict)):
        raise ValueError(value)
    if kind in _CHOICES:
        if value not in _CHOICES[kind]:
            raise ValueError(value)
        return value
    if kind == "string":
        return str(value)
    if kind == "int":
        number = int(str(value).strip())
        if number < 0:
            raise ValueError(number)
        return number
    watts = float(str(value).strip())
    if not 0 < watts < float("inf"):
        raise ValueError(watts)
    return watts


def figure_names(record: type[Sku] | type[System]) -> tuple[str, ...]:
    """All fields of a record that hold figures."""
    return tuple(field.name for field in fields(record) if str(field.type).startswith("Figure["))
