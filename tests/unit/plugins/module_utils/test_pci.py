# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.baremetal.inference.plugins.module_utils._pci import (
    PciLink,
    Sysfs,
    bus_id_order,
    gpus_of,
    normalize_bus_id,
    nvswitches_of,
    parse_speed,
    parse_width,
)

if t.TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0000:07:00.0", "0000:07:00.0"),
        ("00000000:07:00.0", "0000:07:00.0"),
        ("00000000:C4:00.0", "0000:c4:00.0"),
        ("07:00.0", "0000:07:00.0"),
        ("7:0.0", "0000:07:00.0"),
        (" 0000:07:00.0 ", "0000:07:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("0008:01:1f.7", "0008:01:1f.7"),
        ("FFFFFFFF:FF:FF.0", None),
        ("0000:07:20.0", None),
        ("0000:07:00.8", None),
        ("0000:07:00", None),
        ("07", None),
        ("0000:07:00.0\n0000:08:00.0", None),
        ("", None),
    ],
)
def test_normalize_bus_id(text: str, expected: str | None) -> None:
    assert normalize_bus_id(text) == expected


def test_bus_ids_are_ordered_by_domain_as_a_number() -> None:
    ids = ["10000:01:00.0", None, "0001:01:00.0", "0000:c4:00.0", "0000:07:00.0"]
    assert sorted(ids, key=bus_id_order) == ["0000:07:00.0", "0000:c4:00.0", "0001:01:00.0", "10000:01:00.0", None]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("16.0 GT/s PCIe", 16.0), ("2.5 GT/s PCIe", 2.5), ("8 GT/s", 8.0), ("Unknown", None), ("", None), (None, None)],
)
def test_parse_speed(text: str | None, expected: float | None) -> None:
    assert parse_speed(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("16", 16), ("1", 1), ("0", None), ("255", None), ("Unknown", None), (None, None)]
)
def test_parse_width(text: str | None, expected: int | None) -> None:
    assert parse_width(text) == expected


class Tree:
    """A sysfs below a temporary folder, shaped as the kernel's: real folders nest as the bus does, links name them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "bus/pci/devices").mkdir(parents=True)

    def device(self, nest: str, driver: str | None = None, **files: str) -> None:
        folder = self.root / "devices" / nest
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_text(content + "\n")
        if driver:
            (self.root / "bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
            (folder / "driver").symlink_to(self.root / "bus/pci/drivers" / driver)
        (self.root / "bus/pci/devices" / folder.name).symlink_to(folder)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path)
    port = "pci0000:00/0000:00:01.0"
    tree.device(port, vendor="0x1022", device="0x1234", **{"class": "0x060400"}, max_link_speed="32.0 GT/s PCIe")
    tree.device(
        f"{port}/0000:07:00.0",
        driver="nvidia",
        vendor="0x10de",
        device="0x20b2",
        numa_node="3",
        local_cpulist="48-63",
        current_link_speed="2.5 GT/s PCIe",
        max_link_speed="16.0 GT/s PCIe",
        current_link_width="8",
        max_link_width="16",
        **{"class": "0x030200"},
    )
    tree.device("pci0000:00/0000:0a:00.0", vendor="0x10de", device="0x1DB6", numa_node="-1", **{"class": "0x030000"})
    tree.device("pci0000:80/0000:c4:00.0", vendor="0x10de", device="0x1af1", **{"class": "0x068000"})
    tree.device("pci0000:80/0000:c5:00.0", vendor="0x10de", device="0x1aef", **{"class": "0x040300"})
    tree.device("pci0000:80/0000:81:00.0", vendor="0x15b3", device="0x101b", **{"class": "0x020700"})
    return tree


def test_nvidia_devices_by_class(tree: Tree) -> None:
    devices = Sysfs(str(tree.root)).nvidia_devices()
    assert [(gpu.pci_bus_id, gpu.device_id, gpu.class_id, gpu.driver) for gpu in gpus_of(devices)] == [
        ("0000:07:00.0", "20b2", "0302", "nvidia"),
        ("0000:0a:00.0", "1db6", "0300", None),
    ]
    # An audio function is neither.
    assert [switch.pci_bus_id for switch in nvswitches_of(devices)] == ["0000:c4:00.0"]
    assert len(devices) == 4


def test_link_and_upstream_port(tree: Tree) -> None:
    sysfs = Sysfs(str(tree.root))
    assert sysfs.link("0000:07:00.0") == PciLink(
        current_speed_gt_per_s=2.5, max_speed_gt_per_s=16.0, current_width=8, max_width=16
    )
    port = sysfs.upstream_port("0000:07:00.0")
    assert port == "0000:00:01.0"
    link = sysfs.link(port)
    assert link is not None and link.max_speed_gt_per_s == 32.0 and link.current_width is None
    # Directly on the root bus.
    assert sysfs.upstream_port("0000:0a:00.0") is None
    # Not there at all.
    assert sysfs.link("0000:77:00.0") is None and sysfs.upstream_port("0000:77:00.0") is None


def test_locality(tree: Tree) -> None:
    sysfs = Sysfs(str(tree.root))
    assert (sysfs.locality("0000:07:00.0").numa_node, sysfs.locality("0000:07:00.0").local_cpulist) == (3, "48-63")
    # -1 is "not known", and no node number.
    assert sysfs.locality("0000:0a:00.0").numa_node is None


def test_machine_without_pci(tmp_path: Path) -> None:
    assert Sysfs(str(tmp_path)).nvidia_devices() == []


def test_kernel_module(tmp_path: Path) -> None:
    sysfs = Sysfs(str(tmp_path))
    assert sysfs.module_version("nvidia") is None and not sysfs.module_loaded("nvidia")
    (tmp_path / "module/nvidia").mkdir(parents=True)
    (tmp_path / "module/nvidia/version").write_text("580.95.05\n")
    assert sysfs.module_version("nvidia") == "580.95.05" and sysfs.module_loaded("nvidia")
