# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""PCI facts from sysfs. They are there without any driver, so they say what the driver should have found.

Attributes: the kernel's Documentation/ABI/testing/sysfs-bus-pci and Documentation/PCI/sysfs-pci.rst.
"""

from __future__ import annotations

import os
import re
import typing as t
from dataclasses import dataclass

NVIDIA_VENDOR_ID = "10de"
# PCI base class and subclass: VGA controller (boards with a display engine), 3D controller (data-center boards).
GPU_CLASSES = ("0300", "0302")
# "Bridge, other": what an NVSwitch announces itself as.
NVSWITCH_CLASS = "0680"

_BUS_ID = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])", re.IGNORECASE)
_SPEED = re.compile(r"([0-9]+(?:\.[0-9]+)?) GT/s")
# What the kernel reports as width of a link that it could not read.
_WIDTH_UNKNOWN = 255


def normalize_bus_id(text: str) -> str | None:
    """Any usual spelling of a PCI bus id as sysfs spells it, or None when it is no bus id.

    NVML writes an eight-digit domain in upper case, people leave the domain out, sysfs has four digits or more.
    """
    match = _BUS_ID.fullmatch(text.strip())
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    if int(device, 16) > 0x1F:
        return None
    return f"{int(domain or '0', 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{function}"


def bus_id_order(bus_id: str | None) -> tuple[bool, int, str]:
    """Sort key: by domain as a number, since the text has four digits or more of it; GPUs without an id come last."""
    if bus_id is None:
        return (True, 0, "")
    domain, rest = bus_id.split(":", 1)
    return (False, int(domain, 16), rest)


@dataclass(frozen=True)
class PciDevice:
    """One device on the bus, as the kernel lists it."""

    pci_bus_id: str
    vendor_id: str | None
    device_id: str | None
    class_id: str
    driver: str | None


@dataclass(frozen=True)
class PciLink:
    """Link of one port as sysfs has it. The current speed of an idle GPU may be below what it does under load."""

    current_speed_gt_per_s: float | None
    max_speed_gt_per_s: float | None
    current_width: int | None
    max_width: int | None


@dataclass(frozen=True)
class PciLocality:
    """Which processors are near the device."""

    numa_node: int | None
    local_cpulist: str | None


class Sysfs:
    """Reads below one sysfs mount. A file that is not there gives None."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._devices = os.path.join(root, "bus", "pci", "devices")

    def _read(self, *parts: str) -> str | None:
        try:
            with open(os.path.join(*parts), encoding="ascii", errors="replace") as file:
                return file.read().strip()
        except OSError:
            # Not there on this kernel or device, or the device fell off the bus and answers with an I/O error:
            # either way the fact is unknown.
            return None

    def _read_id(self, *parts: str) -> str | None:
        """The hexadecimal number of a file like "vendor", without its 0x."""
        text = self._read(*parts)
        return text[2:].lower() if text is not None and text.startswith("0x") else text

    def nvidia_devices(self) -> list[PciDevice]:
        """All NVIDIA devices, ordered by bus id."""
        try:
            names = os.listdir(self._devices)
        except FileNotFoundError:
            # A machine without PCI.
            return []
        found = []
        for name in names:
            folder = os.path.join(self._devices, name)
            if self._read_id(folder, "vendor") != NVIDIA_VENDOR_ID:
                continue
            driver = os.path.join(folder, "driver")
            found.append(
                PciDevice(
                    pci_bus_id=name,
                    vendor_id=NVIDIA_VENDOR_ID,
                    device_id=self._read_id(folder, "device"),
                    class_id=(self._read_id(folder, "class") or "")[:4],
                    driver=os.path.basename(os.path.realpath(driver)) if os.path.lexists(driver) else None,
                )
            )
        return sorted(found, key=lambda device: bus_id_order(device.pci_bus_id))

    def locality(self, bus_id: str) -> PciLocality:
        folder = os.path.join(self._devices, bus_id)
        node = _integer(self._read(folder, "numa_node"))
        return PciLocality(
            # The kernel says -1 when the firmware names no node.
            numa_node=node if node is not None and node >= 0 else None,
            local_cpulist=self._read(folder, "local_cpulist") or None,
        )

    def link(self, bus_id: str) -> PciLink | None:
        """The device's end of its link, or None when the device is not there."""
        folder = os.path.join(self._devices, bus_id)
        if not os.path.isdir(folder):
            return None
        return PciLink(
            current_speed_gt_per_s=parse_speed(self._read(folder, "current_link_speed")),
            max_speed_gt_per_s=parse_speed(self._read(folder, "max_link_speed")),
            current_width=parse_width(self._read(folder, "current_link_width")),
            max_width=parse_width(self._read(folder, "max_link_width")),
        )

    def upstream_port(self, bus_id: str) -> str | None:
        """Bus id of the port that the device hangs on, or None when it sits on a root bus (as in most VMs)."""
        parent = os.path.basename(os.path.dirname(os.path.realpath(os.path.join(self._devices, bus_id))))
        return parent if _BUS_ID.fullmatch(parent) else None

    def module_loaded(self, name: str) -> bool:
        return os.path.isdir(os.path.join(self._root, "module", name))

    def module_version(self, name: str) -> str | None:
        """Version of a loaded kernel module, if it states one."""
        return self._read(self._root, "module", name, "version")


def gpus_of(devices: t.Iterable[PciDevice]) -> list[PciDevice]:
    return [device for device in devices if device.class_id in GPU_CLASSES]


def nvswitches_of(devices: t.Iterable[PciDevice]) -> list[PciDevice]:
    return [device for device in devices if device.class_id == NVSWITCH_CLASS]


def parse_speed(text: str | None) -> float | None:
    """The number of "16.0 GT/s PCIe"; None for "Unknown"."""
    match = _SPEED.match(text or "")
    return float(match.group(1)) if match else None


def parse_width(text: str | None) -> int | None:
    width = _integer(text)
    return width if width is not None and 0 < width < _WIDTH_UNKNOWN else None


def _integer(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None
