# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""Names of PCI slots, as printed on the board or in its manual: which one to open when a link is bad.

Two sources. /sys/bus/pci/slots has a folder for each slot that a hot-plug driver or ACPI knows, with the file address:
"domain:bus:device", or "domain:bus" for a whole bus (kernel, drivers/pci/slot.c). And the firmware's SMBIOS table, type
9 "System Slots" (SMBIOS specification, 7.10), which root can read in /sys/firmware/dmi/tables/DMI.
"""

from __future__ import annotations

import os
import typing as t
from dataclasses import dataclass

from ansible_collections.baremetal.inference.plugins.module_utils._pci import Sysfs

_SYSTEM_SLOTS = 9
_END_OF_TABLE = 127
# Offsets in a structure of type 9: number of the designation's string; segment group, bus, device and function.
_DESIGNATION = 4
_SEGMENT = 13
_BUS = 15
_DEVICE_FUNCTION = 16


@dataclass(frozen=True)
class Slot:
    name: str
    # "pci_slots" or "smbios".
    source: str


def path_to(sysfs: Sysfs, bus_id: str) -> list[str]:
    """The ports between the device and the processor, the nearest to the device first. Empty on a root bus."""
    ports: list[str] = []
    port = sysfs.upstream_port(bus_id)
    while port is not None and port not in ports:
        ports.append(port)
        port = sysfs.upstream_port(port)
    return ports


class Slots:
    """All slots of one host."""

    def __init__(self, sysfs_root: str) -> None:
        self._by_address = {
            **{address: Slot(name, "smbios") for address, name in _smbios_slots(sysfs_root)},
            # The kernel's names come from the same firmware, and it has sorted out which of them are real.
            **{address: Slot(name, "pci_slots") for address, name in _kernel_slots(sysfs_root)},
        }

    def slot_of(self, bus_id: str, ports: t.Sequence[str]) -> Slot | None:
        """The slot of the device, or of the nearest port above it: a card may have a switch of its own."""
        for place in (bus_id, *ports):
            device = place.rsplit(".", 1)[0]
            for address in (device, device.rsplit(":", 1)[0]):
                if address in self._by_address:
                    return self._by_address[address]
        return None


def _kernel_slots(root: str) -> t.Iterator[tuple[str, str]]:
    folder = os.path.join(root, "bus", "pci", "slots")
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        # No driver has named any.
        return
    for name in names:
        try:
            with open(os.path.join(folder, name, "address"), encoding="ascii", errors="replace") as file:
                yield file.read().strip().lower(), name
        except OSError:
            # Gone since: a slot without an address names no device.
            continue


def _smbios_slots(root: str) -> t.Iterator[tuple[str, str]]:
    try:
        with open(os.path.join(root, "firmware", "dmi", "tables", "DMI"), "rb") as file:
            table = file.read()
    except OSError:
        # No SMBIOS on this machine, or not for this user.
        return
    yield from parse_slots(table)


def parse_slots(table: bytes) -> t.Iterator[tuple[str, str]]:
    """Addresses ("0000:07:00") and designations of a table's slots. A table that is cut off ends where it ends.

    A structure is its type, its length without strings, its handle and its fields; then its strings, each with a NUL,
    and another NUL.
    """
    at = 0
    while at + 4 <= len(table):
        kind, length = table[at], table[at + 1]
        end = table.find(b"\0\0", at + length)
        if kind == _END_OF_TABLE or length < 4 or end < 0:
            return
        if kind == _SYSTEM_SLOTS and length > _DEVICE_FUNCTION:
            strings = table[at + length : end].split(b"\0")
            number = table[at + _DESIGNATION]
            segment = int.from_bytes(table[at + _SEGMENT : at + _SEGMENT + 2], "little")
            bus, device = table[at + _BUS], table[at + _DEVICE_FUNCTION] >> 3
            # All ones: the slot is empty, or its address not known.
            known = (segment, bus, table[at + _DEVICE_FUNCTION]) != (0xFFFF, 0xFF, 0xFF)
            if known and 0 < number <= len(strings):
                name = strings[number - 1].decode("ascii", errors="replace").strip()
                if name:
                    yield f"{segment:04x}:{bus:02x}:{device:02x}", name
        at = end + 2
