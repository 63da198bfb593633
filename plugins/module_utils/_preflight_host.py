# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""What a host says about itself without any driver: read from sysfs, procfs, /dev and /etc, judged elsewhere.

A file that is not there gives None. A file that may not be read gives None too and is kept in ``Files.denied``, so that
a check can tell "there is none" from "root can see it". Attributes: the kernel's Documentation/ABI/testing/
{sysfs-bus-pci,sysfs-kernel-iommu_groups,sysfs-devices-system-cpu,sysfs-firmware-dmi-entries,procfs-*},
Documentation/admin-guide/pm/{cpuidle,cpufreq}.rst and Documentation/filesystems/{proc,efivarfs}.rst.
"""

from __future__ import annotations

import os
import re
import struct
import typing as t
from collections import Counter
from dataclasses import dataclass

from ansible_collections.baremetal.inference.plugins.module_utils._pci import PciDevice, Sysfs, gpus_of, nvswitches_of
from ansible_collections.baremetal.inference.plugins.module_utils._pci_slots import Slots, path_to

# The variable "SecureBoot" of the firmware's global namespace (UEFI specification, section 3.3). In efivarfs four bytes
# of attributes come before the value.
_SECURE_BOOT = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
_EFI_ATTRIBUTES = 4

# Flags of the kernel's include/linux/ioport.h, which sysfs shows as they are.
IORESOURCE_MEM = 0x00000200
IORESOURCE_PREFETCH = 0x00002000
IORESOURCE_UNSET = 0x20000000
_BARS = 6

# PCI Express base specification, extended capabilities: a list from 0x100 on; 0x000d is access control services, whose
# control register is 6 bytes in.
_EXTENDED_CAPABILITIES = 0x100
_CONFIG_SIZE = 0x1000
_ACS_CAPABILITY = 0x000D
_ACS_CONTROL = 6

_DMI_PLACEHOLDERS = ("", "none", "not specified", "to be filled by o.e.m.", "default string", "system serial number")


class Files:
    """Reads below a folder, and remembers what it was not allowed to read."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.denied: set[str] = set()

    def path(self, *parts: str) -> str:
        return os.path.join(self.root, *parts)

    def data(self, *parts: str, limit: int = -1) -> bytes | None:
        path = self.path(*parts)
        try:
            with open(path, "rb") as file:
                return file.read(limit)
        except PermissionError:
            self.denied.add(path)
        except OSError:
            # Not there on this kernel, or a device that has gone and answers with an I/O error: the fact is unknown.
            pass
        return None

    def text(self, *parts: str) -> str | None:
        data = self.data(*parts)
        return None if data is None else data.decode("utf-8", errors="replace").strip()

    def number(self, *parts: str) -> int | None:
        return whole(self.text(*parts))

    def names(self, *parts: str) -> list[str]:
        try:
            return sorted(os.listdir(self.path(*parts)))
        except PermissionError:
            self.denied.add(self.path(*parts))
        except OSError:
            # As above.
            pass
        return []

    def link(self, *parts: str) -> str | None:
        """The last part of where a link points to."""
        path = self.path(*parts)
        return os.path.basename(os.path.realpath(path)) if os.path.lexists(path) else None


def whole(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


def parse_cpulist(text: str | None) -> tuple[int, ...]:
    """The processors of a list like 0-3,8."""
    cpus: list[int] = []
    for part in (text or "").split(","):
        first, dash, last = part.strip().partition("-")
        start, end = whole(first), whole(last if dash else first)
        if start is not None and end is not None:
            cpus.extend(range(start, end + 1))
    return tuple(cpus)


@dataclass(frozen=True)
class Bar:
    """A window of a device in the address space. One that the kernel found no room for starts at 0 or is unset."""

    number: int
    start: int
    size: int
    flags: int

    @property
    def placed(self) -> bool:
        return self.start > 0 and not self.flags & IORESOURCE_UNSET


def parse_bars(text: str | None) -> tuple[Bar, ...] | None:
    """The six BARs of a "resource" file: lines of start, end and flags. Empty ones are left out."""
    if text is None:
        return None
    bars = []
    for number, line in enumerate(text.splitlines()[:_BARS]):
        try:
            start, end, flags = (int(word, 16) for word in line.split())
        except ValueError:
            continue
        if flags:
            bars.append(Bar(number=number, start=start, size=end - start + 1, flags=flags))
    return tuple(bars)


@dataclass(frozen=True)
class Acs:
    """Access control services of a port. ``control`` is None when the port has none."""

    readable: bool
    control: int | None


def parse_acs(config: bytes | None) -> Acs:
    """Find the capability in a device's configuration space. Who is not root sees the first 64 bytes alone."""
    if config is None or len(config) < 256:
        return Acs(readable=False, control=None)
    offset = _EXTENDED_CAPABILITIES
    seen: set[int] = set()
    while offset >= _EXTENDED_CAPABILITIES and offset + 8 <= len(config) and offset not in seen:
        seen.add(offset)
        (header,) = struct.unpack_from("<I", config, offset)
        if header in (0, 0xFFFFFFFF):
            break
        if header & 0xFFFF == _ACS_CAPABILITY:
            (control,) = struct.unpack_from("<H", config, offset + _ACS_CONTROL)
            return Acs(readable=True, control=control)
        offset = header >> 20
    return Acs(readable=True, control=None)


@dataclass(frozen=True)
class GpuOnBus:
    """A GPU as the PCI bus has it."""

    device: PciDevice
    bars: tuple[Bar, ...] | None
    sriov_total: int | None
    sriov_used: int | None
    iommu_group: str | None
    iommu_type: str | None
    numa_node: int | None
    slot: str | None
    # From the GPU up to the root port.
    ports: tuple[str, ...]

    @property
    def bus_id(self) -> str:
        return self.device.pci_bus_id


@dataclass(frozen=True)
class NumaNode:
    node: int
    cpulist: str
    memory_bytes: int | None
    socket: int | None


@dataclass(frozen=True)
class IdleState:
    name: str
    latency_us: int | None
    disabled: bool


@dataclass(frozen=True)
class Machine:
    vendor: str | None
    product: str | None
    serial: str | None
    board_vendor: str | None
    cpu_model: str | None
    sockets: int | None
    cores: int | None
    threads: int
    virtual: bool
    memory_bytes: int | None
    memory_available_bytes: int | None
    kernel: str | None
    os: str | None
    boot_id: str | None
    uptime_seconds: float | None
    nodes: tuple[NumaNode, ...]


@dataclass(frozen=True)
class Firmware:
    efi: bool
    # None: there is no such variable, or it may not be read (see ``secure_boot_denied``).
    secure_boot: bool | None
    secure_boot_denied: bool
    idle_driver: str | None
    idle_governor: str | None
    idle_states: tuple[IdleState, ...]
    frequency_driver: str | None
    frequency_governors: t.Mapping[str, int]
    iommus: tuple[str, ...]
    numa_balancing: int | None


@dataclass(frozen=True)
class DriverFiles:
    """Traces of the driver outside its libraries."""

    modules: t.Mapping[str, str | None]
    # The line of /proc/driver/nvidia/version.
    version_line: str | None
    device_nodes: frozenset[str]
    # Number of the device node, by bus id.
    minors: t.Mapping[str, int]


@dataclass(frozen=True)
class Disk:
    """The file system that holds, or would hold, a path."""

    path: str
    # The path itself, or its nearest parent that exists.
    existing: str
    filesystem: str | None
    total_bytes: int | None
    free_bytes: int | None
    error: str | None


@dataclass(frozen=True)
class HostFacts:
    root: bool
    machine: Machine
    firmware: Firmware
    driver: DriverFiles
    gpus: tuple[GpuOnBus, ...]
    nvswitches: tuple[PciDevice, ...]
    acs: t.Mapping[str, Acs]
    disk: Disk | None


@dataclass(frozen=True)
class Roots:
    sysfs: str = "/sys"
    proc: str = "/proc"
    dev: str = "/dev"
    etc: str = "/etc"


def read_host(roots: Roots, model_path: str | None, *, root: bool) -> HostFacts:
    sysfs, proc = Files(roots.sysfs), Files(roots.proc)
    pci = Sysfs(roots.sysfs)
    devices = pci.nvidia_devices()
    slots = Slots(roots.sysfs)
    gpus = tuple(_gpu_on_bus(sysfs, pci, slots, device) for device in gpus_of(devices))
    ports = sorted({port for gpu in gpus for port in gpu.ports})
    return HostFacts(
        root=root,
        machine=_machine(sysfs, proc, Files(roots.etc)),
        firmware=_firmware(sysfs, proc),
        driver=_driver_files(sysfs, proc, Files(roots.dev)),
        gpus=gpus,
        nvswitches=tuple(nvswitches_of(devices)),
        acs={
            port: parse_acs(sysfs.data("bus", "pci", "devices", port, "config", limit=_CONFIG_SIZE)) for port in ports
        },
        disk=_disk(model_path, proc) if model_path else None,
    )


def _gpu_on_bus(sysfs: Files, pci: Sysfs, slots: Slots, device: PciDevice) -> GpuOnBus:
    folder = ("bus", "pci", "devices", device.pci_bus_id)
    ports = path_to(pci, device.pci_bus_id)
    slot = slots.slot_of(device.pci_bus_id, ports)
    return GpuOnBus(
        device=device,
        bars=parse_bars(sysfs.text(*folder, "resource")),
        sriov_total=sysfs.number(*folder, "sriov_totalvfs"),
        sriov_used=sysfs.number(*folder, "sriov_numvfs"),
        iommu_group=sysfs.link(*folder, "iommu_group"),
        iommu_type=sysfs.text(*folder, "iommu_group", "type"),
        numa_node=pci.locality(device.pci_bus_id).numa_node,
        slot=slot.name if slot else None,
        ports=tuple(ports),
    )


def _machine(sysfs: Files, proc: Files, etc: Files) -> Machine:
    memory = _colon_lines(proc.text("meminfo"))
    cpuinfo = proc.text("cpuinfo") or ""
    first = _colon_lines(cpuinfo.split("\n\n")[0])
    threads = sum(1 for line in cpuinfo.splitlines() if line.startswith("processor"))
    topology = [
        (
            sysfs.number("devices", "system", "cpu", name, "topology", "physical_package_id"),
            sysfs.number("devices", "system", "cpu", name, "topology", "core_id"),
        )
        for name in sysfs.names("devices", "system", "cpu")
        if re.fullmatch(r"cpu[0-9]+", name)
    ]
    known = {pair for pair in topology if None not in pair}
    release = _shell_lines(etc.text("os-release"))
    uptime = (proc.text("uptime") or "").split()
    return Machine(
        vendor=_dmi(sysfs, "sys_vendor"),
        product=_dmi(sysfs, "product_name"),
        serial=_dmi(sysfs, "product_serial"),
        board_vendor=_dmi(sysfs, "board_vendor"),
        # On 64-bit Arm the kernel gives no name.
        cpu_model=first.get("model name") or first.get("CPU implementer"),
        sockets=len({package for package, unused in known}) or None,
        cores=len(known) or None,
        threads=threads,
        virtual="hypervisor" in first.get("flags", "").split() or sysfs.text("hypervisor", "type") is not None,
        memory_bytes=_kibibytes(memory.get("MemTotal")),
        memory_available_bytes=_kibibytes(memory.get("MemAvailable")),
        kernel=proc.text("sys", "kernel", "osrelease"),
        os=release.get("PRETTY_NAME"),
        boot_id=(proc.text("sys", "kernel", "random", "boot_id") or "").replace("-", "") or None,
        uptime_seconds=float(uptime[0]) if uptime and re.fullmatch(r"[0-9.]+", uptime[0]) else None,
        nodes=tuple(_nodes(sysfs)),
    )


def _dmi(sysfs: Files, name: str) -> str | None:
    text = sysfs.text("class", "dmi", "id", name)
    return None if text is None or text.lower() in _DMI_PLACEHOLDERS else text


def _nodes(sysfs: Files) -> t.Iterator[NumaNode]:
    base = ("devices", "system", "node")
    for name in sysfs.names(*base):
        match = re.fullmatch(r"node([0-9]+)", name)
        if match is None:
            continue
        cpulist = sysfs.text(*base, name, "cpulist") or ""
        cpus = parse_cpulist(cpulist)
        total = re.search(r"MemTotal:\s*([0-9]+) kB", sysfs.text(*base, name, "meminfo") or "")
        yield NumaNode(
            node=int(match.group(1)),
            cpulist=cpulist,
            memory_bytes=int(total.group(1)) * 1024 if total else None,
            socket=(
                sysfs.number("devices", "system", "cpu", f"cpu{cpus[0]}", "topology", "physical_package_id")
                if cpus
                else None
            ),
        )


def _firmware(sysfs: Files, proc: Files) -> Firmware:
    cpu = ("devices", "system", "cpu")
    variable = sysfs.data("firmware", "efi", "efivars", _SECURE_BOOT)
    governors = Counter(
        governor
        for name in sysfs.names(*cpu)
        if re.fullmatch(r"cpu[0-9]+", name)
        for governor in [sysfs.text(*cpu, name, "cpufreq", "scaling_governor")]
        if governor
    )
    states = tuple(
        IdleState(
            name=sysfs.text(*cpu, "cpu0", "cpuidle", state, "name") or state,
            latency_us=sysfs.number(*cpu, "cpu0", "cpuidle", state, "latency"),
            disabled=sysfs.number(*cpu, "cpu0", "cpuidle", state, "disable") == 1,
        )
        for state in sysfs.names(*cpu, "cpu0", "cpuidle")
        if re.fullmatch(r"state[0-9]+", state)
    )
    return Firmware(
        efi=os.path.isdir(sysfs.path("firmware", "efi")),
        secure_boot=None if variable is None or len(variable) <= _EFI_ATTRIBUTES else variable[_EFI_ATTRIBUTES] == 1,
        secure_boot_denied=any(path.endswith(_SECURE_BOOT) for path in sysfs.denied),
        idle_driver=sysfs.text(*cpu, "cpuidle", "current_driver"),
        idle_governor=(
            sysfs.text(*cpu, "cpuidle", "current_governor") or sysfs.text(*cpu, "cpuidle", "current_governor_ro")
        ),
        idle_states=states,
        frequency_driver=sysfs.text(*cpu, "cpu0", "cpufreq", "scaling_driver"),
        frequency_governors=dict(governors),
        iommus=tuple(sysfs.names("class", "iommu")),
        numa_balancing=proc.number("sys", "kernel", "numa_balancing"),
    )


def _driver_files(sysfs: Files, proc: Files, dev: Files) -> DriverFiles:
    watched = ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nouveau", "nova_core", "nova_drm")
    minors = {}
    for name in proc.names("driver", "nvidia", "gpus"):
        minor = whole(_colon_lines(proc.text("driver", "nvidia", "gpus", name, "information")).get("Device Minor"))
        if minor is not None:
            minors[name] = minor
    version = proc.text("driver", "nvidia", "version")
    return DriverFiles(
        modules={
            name: sysfs.text("module", name, "version") for name in watched if os.path.isdir(sysfs.path("module", name))
        },
        version_line=version.splitlines()[0] if version else None,
        device_nodes=frozenset(name for name in dev.names() if name.startswith("nvidia")),
        minors=minors,
    )


def _disk(path: str, proc: Files) -> Disk:
    existing = os.path.realpath(path)
    while not os.path.isdir(existing):
        existing = os.path.dirname(existing)
    try:
        space = os.statvfs(existing)
    except OSError as error:
        return Disk(path, existing, None, None, None, str(error))
    return Disk(
        path=path,
        existing=existing,
        filesystem=_filesystem(existing, proc.text("self", "mounts") or proc.text("mounts")),
        total_bytes=space.f_frsize * space.f_blocks,
        # What is kept for root counts for nobody else.
        free_bytes=space.f_frsize * space.f_bavail,
        error=None,
    )


def _filesystem(path: str, mounts: str | None) -> str | None:
    """Type of the file system that a path lies on: that of the longest mount point above it, the last one mounted."""
    best, kind = "", None
    for line in (mounts or "").splitlines():
        words = line.split()
        if len(words) < 3:
            continue
        point = words[1].replace("\\040", " ")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, words[2]
    return kind


def _colon_lines(text: str | None) -> dict[str, str]:
    pairs = (line.partition(":") for line in (text or "").splitlines())
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}


def _shell_lines(text: str | None) -> dict[str, str]:
    pairs = (line.partition("=") for line in (text or "").splitlines())
    return {key: value.strip("\"'") for key, sign, value in pairs if sign}


def _kibibytes(text: str | None) -> int | None:
    number = whole((text or "").split(" ")[0])
    return None if number is None else number * 1024
