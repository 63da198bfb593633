# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""What is known of a GPU: frozen records with the field names of the modules' results, and NVML's numbers in words.

None always means "this GPU, driver or machine does not say". Numbers and their names are those of nvml.h; they are
written out because some pynvml releases lack the newer ones and get NVML_P2P_CAPS_INDEX_READ wrong (a tuple).
"""

from __future__ import annotations

import typing as t
from dataclasses import asdict, dataclass

from ansible_collections.baremetal.inference.plugins.module_utils._pci import PciLink

BRANDS: t.Mapping[int, str] = {
    0: "unknown",
    1: "quadro",
    2: "tesla",
    3: "nvs",
    4: "grid",
    5: "geforce",
    6: "titan",
    7: "nvidia_vapps",
    8: "nvidia_vpc",
    9: "nvidia_vcs",
    10: "nvidia_vws",
    11: "nvidia_cloud_gaming",
    12: "quadro_rtx",
    13: "nvidia_rtx",
    14: "nvidia",
    15: "geforce_rtx",
    16: "titan_rtx",
}
ARCHITECTURES: t.Mapping[int, str] = {
    2: "kepler",
    3: "maxwell",
    4: "pascal",
    5: "volta",
    6: "turing",
    7: "ampere",
    8: "ada",
    9: "hopper",
    10: "blackwell",
    13: "rubin",
}
COMPUTE_MODES: t.Mapping[int, str] = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
SWITCHES: t.Mapping[int, str] = {0: "disabled", 1: "enabled"}
RECOVERY_ACTIONS: t.Mapping[int, str] = {
    0: "none",
    1: "gpu_reset",
    2: "node_reboot",
    3: "drain_p2p",
    4: "drain_and_reset",
    5: "recover_imex_domain",
    6: "bus_reset",
    7: "system_reboot",
}
# The letters of "nvidia-smi topo -m".
TOPOLOGY_LEVELS: t.Mapping[int, str] = {0: "INT", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
P2P_READ, P2P_WRITE, P2P_NVLINK = 0, 1, 2
P2P_STATUSES: t.Mapping[int, str] = {
    0: "ok",
    1: "chipset_not_supported",
    2: "gpu_not_supported",
    3: "topology_not_supported",
    4: "disabled_by_regkey",
    5: "not_supported",
    6: "unknown",
}
NVLINK_STATES: t.Mapping[int, str] = {0: "inactive", 1: "active", 2: "sleep", 3: "active_traffic_disabled"}
NVLINK_VERSIONS: t.Mapping[int, str] = {
    1: "1.0",
    2: "2.0",
    3: "2.2",
    4: "3.0",
    5: "3.1",
    6: "4.0",
    7: "5.0",
    8: "6.0",
}
NVLINK_REMOTES: t.Mapping[int, str] = {0: "gpu", 1: "ibmnpu", 2: "switch", 255: "unknown"}
CLOCK_EVENT_REASONS: t.Mapping[int, str] = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}
P_STATE_UNKNOWN = 32


def named(table: t.Mapping[int, str], number: int | None) -> str | None:
    """The name of a number; a number newer than this table is shown as it is, not lost."""
    if number is None:
        return None
    return table.get(number, f"unknown_{number}")


def event_reasons(mask: int | None) -> list[str] | None:
    """Names of the bits that are set, lowest first."""
    if mask is None:
        return None
    return [
        CLOCK_EVENT_REASONS.get(1 << bit, f"unknown_{1 << bit:#x}")
        for bit in range(mask.bit_length())
        if mask & (1 << bit)
    ]


def cuda_version(number: int | None) -> str | None:
    """NVML packs CUDA 13.0 as 13000: 1000 * major + 10 * minor."""
    return None if number is None else f"{number // 1000}.{number % 1000 // 10}"


def watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


@dataclass(frozen=True)
class GpuIdentity:
    """The three names of a GPU. The index is NVML's, and changes with the set of GPUs; the others stay."""

    index: int
    uuid: str | None
    pci_bus_id: str | None

    def label(self) -> str:
        """How error texts name the GPU."""
        return f"GPU {self.index} ({self.pci_bus_id or self.uuid or 'no PCI bus id'})"


@dataclass(frozen=True)
class UnavailableGpu:
    """A GPU that the driver counts and that does not answer."""

    index: int
    uuid: str | None
    pci_bus_id: str | None
    reason: str
    nvml_code: int | None
    msg: str


@dataclass(frozen=True)
class ReadError:
    """One fact that could not be read although the GPU should have it."""

    call: str
    nvml_code: int | None
    reason: str
    msg: str


@dataclass(frozen=True)
class PciIds:
    nvml_bus_id: str | None
    vendor_id: str | None
    device_id: str | None
    subsystem_vendor_id: str | None
    subsystem_device_id: str | None
    numa_node: int | None
    local_cpulist: str | None


@dataclass(frozen=True)
class PcieState:
    generation_current: int | None
    generation_max: int | None
    generation_gpu_max: int | None
    width_current: int | None
    width_max: int | None
    replay_count: int | None
    link: PciLink | None
    upstream_port: UpstreamPort | None


@dataclass(frozen=True)
class UpstreamPort:
    pci_bus_id: str
    link: PciLink | None


@dataclass(frozen=True)
class MemoryState:
    total_bytes: int
    used_bytes: int
    free_bytes: int
    reserved_bytes: int | None


@dataclass(frozen=True)
class Bar1State:
    total_bytes: int
    used_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class ModePair:
    """A setting that is in force now, and what it will be after the next reset or reboot."""

    current: str | None
    pending: str | None


@dataclass(frozen=True)
class EccErrors:
    corrected: int | None
    uncorrected: int | None


@dataclass(frozen=True)
class EccState:
    supported: bool
    current: str | None
    pending: str | None
    default: str | None
    volatile: EccErrors
    aggregate: EccErrors


@dataclass(frozen=True)
class RemappedRows:
    correctable: int
    uncorrectable: int
    pending: bool
    failure: bool


@dataclass(frozen=True)
class PowerState:
    usage_watts: float | None
    limit_requested_watts: float | None
    limit_enforced_watts: float | None
    limit_default_watts: float | None
    limit_min_watts: float | None
    limit_max_watts: float | None


@dataclass(frozen=True)
class Clocks:
    graphics_mhz: int | None
    sm_mhz: int | None
    memory_mhz: int | None
    video_mhz: int | None
    graphics_max_mhz: int | None
    sm_max_mhz: int | None
    memory_max_mhz: int | None
    video_max_mhz: int | None


@dataclass(frozen=True)
class Temperatures:
    gpu_celsius: int | None
    memory_celsius: int | None
    threshold_slowdown_celsius: int | None
    threshold_shutdown_celsius: int | None
    threshold_gpu_max_celsius: int | None
    threshold_memory_max_celsius: int | None


@dataclass(frozen=True)
class Utilization:
    gpu_percent: int
    memory_percent: int


@dataclass(frozen=True)
class NvLinkErrors:
    replay: int | None
    recovery: int | None
    crc: int | None


@dataclass(frozen=True)
class NvLink:
    link: int
    state: str
    version: str | None
    speed_megabytes_per_second: int | None
    remote_device_type: str | None
    remote_pci_bus_id: str | None
    errors: NvLinkErrors

    @property
    def active(self) -> bool:
        # A sleeping link is up: it saves power until there is traffic.
        return self.state in ("active", "sleep")


@dataclass(frozen=True)
class NvLinkState:
    total_count: int
    active_count: int
    links: tuple[NvLink, ...]


@dataclass(frozen=True)
class GpuProcess:
    pid: int
    name: str | None
    type: str
    used_memory_bytes: int | None


@dataclass(frozen=True)
class Gpu:
    """All of one GPU. Field order is the order of the result."""

    index: int
    uuid: str | None
    pci_bus_id: str | None
    minor_number: int | None
    name: str | None
    serial: str | None
    board_part_number: str | None
    vbios_version: str | None
    brand: str | None
    architecture: str | None
    compute_capability: str | None
    persistence_mode: str | None
    compute_mode: str | None
    performance_state: str | None
    recovery_action: str | None
    mig_mode: ModePair | None
    pci: PciIds
    pcie: PcieState
    memory: MemoryState | None
    bar1: Bar1State | None
    ecc: EccState
    remapped_rows: RemappedRows | None
    power: PowerState
    temperature: Temperatures
    utilization: Utilization | None
    clocks: Clocks
    clocks_event_reasons: list[str] | None
    nvlink: NvLinkState | None
    processes: tuple[GpuProcess, ...] | None
    read_errors: tuple[ReadError, ...]


@dataclass(frozen=True)
class P2pStatus:
    read: str | None
    write: str | None
    nvlink: str | None


@dataclass(frozen=True)
class TopologyPair:
    """How two GPUs reach each other."""

    a: str | None
    b: str | None
    level: str | None
    pcie_level: str | None
    nvlink_count: int
    p2p: P2pStatus


def nvlinks_between(a_bus_id: str | None, a: NvLinkState | None, b: NvLinkState | None, p2p_nvlink: str | None) -> int:
    """How many active NVLinks join two GPUs, in the sense of the NV# of "nvidia-smi topo -m". b's far ends name a."""
    if a is None or b is None:
        return 0
    direct = sum(
        1
        for link in b.links
        if link.active and link.remote_device_type == "gpu" and link.remote_pci_bus_id == a_bus_id and a_bus_id
    )
    if direct:
        return direct
    if p2p_nvlink not in ("ok", None):
        # A switch end only says that there is a switch. Whether it leads to the other GPU, NVML's P2P status says.
        return 0
    switched = [sum(1 for link in gpu.links if link.active and link.remote_device_type == "switch") for gpu in (a, b)]
    return min(switched)


def topology_level(pcie_level: str | None, nvlink_count: int) -> str | None:
    return f"NV{nvlink_count}" if nvlink_count else pcie_level


def as_dict(record: t.Any) -> dict[str, t.Any]:
    """A record as plain dictionaries and lists, ready to be a module's result."""
    return t.cast("dict[str, t.Any]", _plain(asdict(record)))


def _plain(value: t.Any) -> t.Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
