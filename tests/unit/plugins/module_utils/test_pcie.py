# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The judge of PCIe links, and the names of slots."""

from __future__ import annotations

import typing as t
from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.baremetal.inference.plugins.module_utils._pci import PciLink, Sysfs
from ansible_collections.baremetal.inference.plugins.module_utils._pci_slots import Slot, Slots, parse_slots, path_to
from ansible_collections.baremetal.inference.plugins.module_utils._pcie import (
    Link,
    Port,
    Reading,
    Wanted,
    generation_of,
    judge,
    slow_ports,
)

SPEEDS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}


def end(generation: int, width: int = 16, *, most: int = 4, lanes: int = 16) -> PciLink:
    return PciLink(SPEEDS[generation], SPEEDS[most], width, lanes)


def reading(generation: int | None = 4, width: int | None = 16, **ends: PciLink | None) -> Reading:
    return Reading(generation, width, ends.get("gpu", end(4)), ends.get("port", end(4)))


HEALTHY = Link(
    generation_gpu_max=4,
    generation_max=4,
    width_max=16,
    idle=reading(),
    loaded=None,
    host_to_device_gb_per_s=None,
    device_to_host_gb_per_s=None,
    replays=None,
    path=(Port("0000:06:00.0", end(4)), Port("0000:00:01.1", end(4))),
)
LOADED = replace(HEALTHY, loaded=reading(), host_to_device_gb_per_s=25.2, device_to_host_gb_per_s=25.4, replays=0)
MOST = Wanted(None, None, None, None, None)


def verdict(link: Link, **wanted: t.Any) -> tuple[str, list[str]]:
    judgement = judge(link, replace(MOST, **wanted))
    return judgement.verdict, [problem.check for problem in judgement.problems]


@pytest.mark.parametrize(
    ("link", "wanted", "expected"),
    [
        (HEALTHY, {}, ("ok", [])),
        (LOADED, {}, ("ok", [])),
        (LOADED, {"generation": 3, "width": 8}, ("ok", [])),
        # Idle and slow: nothing is proven. Under load it is a fault, or was only asleep.
        (replace(HEALTHY, idle=reading(1)), {}, ("unproven", ["generation"])),
        (replace(HEALTHY, idle=reading(3)), {"generation": 3}, ("ok", [])),
        (replace(LOADED, idle=reading(1)), {}, ("ok", [])),
        (replace(LOADED, idle=reading(1), loaded=reading(3)), {}, ("below", ["generation"])),
        (replace(LOADED, loaded=reading(1)), {"generation": 2}, ("below", ["generation"])),
        # Idle and narrow is a fault at once.
        (replace(HEALTHY, idle=reading(4, 8)), {}, ("below", ["width"])),
        (replace(HEALTHY, idle=reading(1, 8)), {}, ("below", ["generation", "width"])),
        (replace(HEALTHY, idle=reading(4, 8)), {"width": 8}, ("ok", [])),
        (replace(LOADED, loaded=reading(4, 4)), {"width": 8}, ("below", ["width"])),
        # A slow slot shows without load, whether NVML says it or the port.
        (replace(HEALTHY, generation_max=3, idle=reading(3)), {}, ("below", ["generation"])),
        (replace(HEALTHY, idle=reading(1, port=end(1, most=3))), {}, ("below", ["generation"])),
        (replace(HEALTHY, generation_max=3, idle=reading(3)), {"generation": 3}, ("ok", [])),
        (replace(HEALTHY, generation_max=3, idle=reading(1)), {"generation": 3}, ("unproven", ["generation"])),
        # More than the GPU has.
        (HEALTHY, {"generation": 5}, ("below", ["generation"])),
        (replace(HEALTHY, idle=reading(4, 8, gpu=end(4, 8, lanes=8))), {"width": 16}, ("below", ["width"])),
        # "max" is the GPU's own end, not the least of both.
        (replace(HEALTHY, width_max=8, idle=reading(4, 8)), {}, ("below", ["width"])),
        (replace(HEALTHY, generation_gpu_max=5, generation_max=4), {}, ("below", ["generation"])),
        (replace(HEALTHY, generation_gpu_max=None, idle=reading(4, gpu=end(4, most=5))), {}, ("below", ["generation"])),
        # Bandwidth and replays, whatever the reading says.
        (LOADED, {"host_to_device_gb_per_s": 25.2, "device_to_host_gb_per_s": 25.4}, ("ok", [])),
        (LOADED, {"host_to_device_gb_per_s": 25.21}, ("below", ["host_to_device"])),
        (LOADED, {"device_to_host_gb_per_s": 26.0}, ("below", ["device_to_host"])),
        (HEALTHY, {"host_to_device_gb_per_s": 99.0, "replays": 0}, ("ok", [])),
        (replace(LOADED, replays=3), {}, ("ok", [])),
        (replace(LOADED, replays=3), {"replays": 3}, ("ok", [])),
        (replace(LOADED, replays=3), {"replays": 2}, ("below", ["replays"])),
        (replace(LOADED, replays=None), {"replays": 0}, ("ok", [])),
    ],
)
def test_verdicts(link: Link, wanted: dict[str, t.Any], expected: tuple[str, list[str]]) -> None:
    assert verdict(link, **wanted) == expected


def test_readings_of_sysfs_stand_in_for_those_of_nvml() -> None:
    silent = replace(HEALTHY, generation_gpu_max=None, generation_max=None, width_max=None, idle=reading(None, None))
    assert verdict(silent) == ("ok", [])
    assert judge(silent, MOST).expected_generation == 4
    slow = replace(silent, idle=reading(None, None, gpu=end(1)))
    assert verdict(slow) == ("unproven", ["generation"])
    # The GPU's end cannot be read: the other one will do.
    half = replace(silent, idle=reading(None, None, gpu=None, port=end(4, 8)))
    assert verdict(half, generation=4, width=16) == ("below", ["width"])


def test_what_nobody_says_is_not_proven() -> None:
    dark = replace(HEALTHY, idle=Reading(None, None, None, None), generation_gpu_max=None)
    assert verdict(dark) == ("unproven", ["generation", "width"])
    darker = replace(dark, generation_max=None, width_max=None)
    judgement = judge(darker, MOST)
    assert (judgement.verdict, judgement.expected_generation, judgement.expected_width) == ("unproven", None, None)
    assert "neither NVML nor sysfs" in judgement.problems[0].observed


def test_words_name_both_sides_and_the_remedy() -> None:
    (problem,) = judge(replace(LOADED, loaded=reading(3)), MOST).problems
    assert (problem.observed, problem.expected) == ("PCIe generation 3 under load", "generation 4")
    assert "Reseat" in problem.fix
    (problem,) = judge(replace(HEALTHY, generation_max=3, idle=reading(3)), MOST).problems
    assert problem.observed == "the slot can do PCIe generation 3" and "not the GPU" in problem.fix
    (problem,) = judge(HEALTHY, replace(MOST, generation=5)).problems
    assert problem.observed == "the GPU can do PCIe generation 4" and "ask for generation 4 or max" in problem.fix
    (problem,) = judge(replace(HEALTHY, idle=reading(1)), MOST).problems
    assert "measure: load" in problem.fix


def test_bad_link_explains_its_bandwidth_and_is_said_once() -> None:
    wanted = replace(MOST, host_to_device_gb_per_s=23.0, device_to_host_gb_per_s=23.0)
    slow = replace(LOADED, host_to_device_gb_per_s=12.5, device_to_host_gb_per_s=12.6)
    problems = judge(replace(slow, loaded=reading(3)), wanted).problems
    assert [problem.check for problem in problems] == ["generation", "host_to_device", "device_to_host"]
    assert [bool(problem.fix) for problem in problems] == [True, False, False]
    problems = judge(slow, wanted).problems
    assert [bool(problem.fix) for problem in problems] == [True, False]
    assert "look beyond it" in problems[0].fix
    # A link between switch and processor is the one to look at.
    narrow = (Port("0000:06:00.0", end(4)), Port("0000:00:01.1", end(3, 8)), Port("0000:00:01.0", None))
    problem = judge(replace(slow, path=narrow), wanted).problems[0]
    assert "0000:00:01.1 runs at 8 GT/s x8 and can do 16 GT/s x16" in problem.fix


def test_ports_that_do_not_say_are_not_blamed() -> None:
    assert slow_ports([Port("a", None), Port("b", PciLink(None, 16.0, None, 16)), Port("c", end(4))]) == []
    assert slow_ports([Port("d", PciLink(16.0, 16.0, 8, 16))]) == ["d runs at 16 GT/s x8 and can do 16 GT/s x16"]


def test_generations() -> None:
    assert [generation_of(speed) for speed in SPEEDS.values()] == list(SPEEDS)
    assert generation_of(None) is None and generation_of(3.0) is None


def structure(kind: int, fields: bytes, *strings: bytes) -> bytes:
    texts = b"".join(text + b"\0" for text in strings) or b"\0"
    return bytes([kind, 4 + len(fields)]) + b"\x10\x00" + fields + texts + b"\0"


def slot(designation: int, segment: int, bus: int, device: int, *strings: bytes) -> bytes:
    """Type 9 of SMBIOS 2.6: type, width, usage, length, id (2), two of characteristics, then the address."""
    fields = bytes([designation, 0xB6, 0x0D, 4, 4, 1, 0, 0x0C, 1])
    return structure(9, fields + segment.to_bytes(2, "little") + bytes([bus, device << 3]), *strings)


TABLE = (
    structure(1, b"\x01\x02", b"Vendor", b"Machine")
    + slot(1, 0, 0x07, 0, b"PCIe Slot 1")
    + slot(2, 1, 0x4E, 3, b"other", b"SLOT5 ")
    # Empty, unnamed, too old to have an address, with a string that is not there.
    + slot(1, 0xFFFF, 0xFF, 0x1F, b"PCIe Slot 9").replace(b"\xf8", b"\xff")
    + slot(0, 0, 0x08, 0)
    + structure(9, bytes([1, 0xB6, 0x0D, 4, 4, 1, 0, 0x0C]), b"Old")
    + slot(3, 0, 0x09, 0, b"x")
    + slot(1, 0, 0x0A, 0, b"Last")
    + structure(127, b"")
    + slot(1, 0, 0x0B, 0, b"After the end")
)
SLOTS = [("0000:07:00", "PCIe Slot 1"), ("0001:4e:03", "SLOT5"), ("0000:0a:00", "Last")]


def test_slots_of_the_firmware() -> None:
    assert list(parse_slots(TABLE)) == SLOTS


def test_firmware_table_that_is_cut_off_anywhere() -> None:
    for length in range(len(TABLE)):
        found = list(parse_slots(TABLE[:length]))
        assert found == SLOTS[: len(found)]
    assert list(parse_slots(b"")) == list(parse_slots(b"\x09\x00\x00\x00\x00\x00")) == []


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """A GPU behind a switch, one on a root bus."""
    devices = tmp_path / "bus/pci/devices"
    devices.mkdir(parents=True)
    chain = tmp_path / "devices/pci0000:00/0000:00:01.1/0000:05:00.0/0000:06:00.0/0000:07:00.0"
    chain.mkdir(parents=True)
    lonely = tmp_path / "devices/pci0000:40/0000:40:06.0"
    lonely.mkdir(parents=True)
    for folder in (*list(chain.parents)[:3], chain, lonely):
        (devices / folder.name).symlink_to(folder)
    return tmp_path


def test_path_to_the_processor(sysfs: Path) -> None:
    reader = Sysfs(str(sysfs))
    assert path_to(reader, "0000:07:00.0") == ["0000:06:00.0", "0000:05:00.0", "0000:00:01.1"]
    assert path_to(reader, "0000:40:06.0") == []
    assert path_to(reader, "0000:99:00.0") == []


def test_names_of_slots(sysfs: Path) -> None:
    ports = path_to(Sysfs(str(sysfs)), "0000:07:00.0")
    assert Slots(str(sysfs)).slot_of("0000:07:00.0", ports) is None
    tables = sysfs / "firmware/dmi/tables"
    tables.mkdir(parents=True)
    (tables / "DMI").write_bytes(TABLE)
    assert Slots(str(sysfs)).slot_of("0000:07:00.0", ports) == Slot("PCIe Slot 1", "smbios")
    slots = sysfs / "bus/pci/slots"
    # A slot that covers a whole bus, one without an address, and one of the port above.
    for name, address in (("12", "0000:05:00"), ("bus 40", "0000:40")):
        (slots / name).mkdir(parents=True)
        (slots / name / "address").write_text(address + "\n")
    (slots / "gone").mkdir()
    names = Slots(str(sysfs))
    # The nearest counts, whoever names it.
    assert names.slot_of("0000:07:00.0", ports) == Slot("PCIe Slot 1", "smbios")
    assert names.slot_of("0000:08:00.0", ports) == Slot("12", "pci_slots")
    assert names.slot_of("0000:40:06.0", []) == Slot("bus 40", "pci_slots")
    (slots / "3").mkdir()
    (slots / "3/address").write_text("0000:07:00\n")
    assert Slots(str(sysfs)).slot_of("0000:07:00.0", ports) == Slot("3", "pci_slots")
