# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reading a host's files, and what its programs print."""

from __future__ import annotations

import shutil
import typing as t
from pathlib import Path

import pytest

from ansible_collections.baremetal.inference.plugins.module_utils._preflight_driver import (
    FabricManager,
    module_flavour,
    read_fabric_manager,
)
from ansible_collections.baremetal.inference.plugins.module_utils._preflight_host import (
    Acs,
    Bar,
    Files,
    HostFacts,
    IdleState,
    NumaNode,
    Roots,
    parse_acs,
    parse_bars,
    parse_cpulist,
    read_host,
)

from tests.unit.preflight_tree import BOOT_ID, DRIVER, GIB, SECURE_BOOT, WINDOW_FLAGS, Tree, config_space

if t.TYPE_CHECKING:
    from tests.unit.conftest import NvmlSim


@pytest.fixture(scope="session")
def bus(nvml_sim: NvmlSim, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated machine's sysfs."""
    return nvml_sim.create("dgx-a100-80gb", tmp_path_factory.mktemp("sim") / "state") / "sysfs"


@pytest.fixture
def tree(bus: Path, tmp_path: Path) -> Tree:
    shutil.copytree(bus, tmp_path / "sys", symlinks=True)
    tree = Tree(tmp_path, tmp_path / "sys")
    tree.with_gpus(bar1=128 * GIB)
    tree.with_driver()
    return tree


def read(tree: Tree, model_path: str | None = None) -> HostFacts:
    return read_host(Roots(str(tree.sysfs), str(tree.proc), str(tree.dev), str(tree.etc)), model_path, root=True)


class TestDgx:
    def test_machine(self, tree: Tree) -> None:
        machine = read(tree).machine
        assert (machine.vendor, machine.serial) == ("NVIDIA", "1560000000001")
        assert (machine.sockets, machine.cores, machine.threads) == (2, 32, 32)
        assert machine.memory_bytes == 2101247776 * 1024
        assert (machine.kernel, machine.os, machine.virtual) == ("6.8.0-60-generic", "Ubuntu 24.04.2 LTS", False)
        assert machine.boot_id == BOOT_ID.replace("-", "") and machine.uptime_seconds == 86400.0
        assert len(machine.nodes) == 8
        assert machine.nodes[7] == NumaNode(node=7, cpulist="28-31", memory_bytes=264000000 * 1024, socket=1)

    def test_gpus(self, tree: Tree) -> None:
        host = read(tree)
        assert [gpu.bus_id for gpu in host.gpus] == tree.bus_ids
        first = host.gpus[0]
        assert (first.device.driver, first.numa_node, first.slot) == ("nvidia", 3, "1")
        assert (first.sriov_total, first.sriov_used) == (16, 0)
        assert first.ports[0] == "0000:06:00.0" and first.ports[-1] == "0000:00:01.1"
        assert first.bars is not None
        assert first.bars[1] == Bar(number=1, start=0x20000000000, size=128 * GIB, flags=WINDOW_FLAGS)
        assert len(host.nvswitches) == 6
        assert set(host.acs) == {port for gpu in host.gpus for port in gpu.ports}
        assert host.acs["0000:06:00.0"] == Acs(readable=True, control=0)

    def test_firmware(self, tree: Tree) -> None:
        firmware = read(tree).firmware
        assert (firmware.efi, firmware.secure_boot, firmware.secure_boot_denied) == (True, False, False)
        assert (firmware.idle_driver, firmware.idle_governor) == ("acpi_idle", "menu")
        assert firmware.idle_states[-1] == IdleState("C2", 400, disabled=False)
        assert (firmware.frequency_driver, firmware.frequency_governors) == ("acpi-cpufreq", {"performance": 32})
        assert (firmware.iommus, firmware.numa_balancing) == ((), 1)

    def test_driver(self, tree: Tree) -> None:
        driver = read(tree).driver
        assert driver.modules == {"nvidia": DRIVER, "nvidia_uvm": DRIVER, "nvidia_modeset": DRIVER}
        assert driver.version_line is not None and DRIVER in driver.version_line
        assert driver.minors[tree.bus_ids[7]] == 7
        assert {"nvidia0", "nvidia7", "nvidiactl", "nvidia-uvm"} <= driver.device_nodes


def test_secure_boot(tree: Tree) -> None:
    tree.write(tree.sysfs / "firmware" / "efi" / "efivars" / SECURE_BOOT, b"\x06\0\0\0\x01")
    assert read(tree).firmware.secure_boot is True


@pytest.mark.parametrize("content", [b"", b"\x06\0\0\0"])
def test_secure_boot_cut_short(tree: Tree, content: bytes) -> None:
    tree.write(tree.sysfs / "firmware" / "efi" / "efivars" / SECURE_BOOT, content)
    assert read(tree).firmware.secure_boot is None


def test_legacy_boot(tree: Tree) -> None:
    shutil.rmtree(tree.sysfs / "firmware")
    assert (read(tree).firmware.efi, read(tree).firmware.secure_boot) == (False, None)


def test_iommu(tree: Tree) -> None:
    group = tree.sysfs / "kernel" / "iommu_groups" / "17"
    tree.write(group / "type", "DMA-FQ")
    (tree.devices / tree.bus_ids[0] / "iommu_group").symlink_to(group)
    (tree.sysfs / "class" / "iommu" / "ivhd0").mkdir(parents=True)
    host = read(tree)
    assert (host.gpus[0].iommu_group, host.gpus[0].iommu_type) == ("17", "DMA-FQ")
    assert (host.gpus[1].iommu_group, host.gpus[1].iommu_type) == (None, None)
    assert host.firmware.iommus == ("ivhd0",)


def test_redirecting_port(tree: Tree) -> None:
    tree.write(tree.devices / "0000:06:00.0" / "config", config_space(0x1D))
    assert read(tree).acs["0000:06:00.0"] == Acs(readable=True, control=0x1D)


def test_virtual_machine(tree: Tree) -> None:
    tree.write(tree.proc / "cpuinfo", "processor\t: 0\nmodel name\t: X\nflags\t\t: fpu hypervisor svm")
    assert read(tree).machine.virtual


def test_placeholders_of_vendors_are_no_names(tree: Tree) -> None:
    tree.write(tree.sysfs / "class" / "dmi" / "id" / "product_serial", "To be filled by O.E.M.")
    assert read(tree).machine.serial is None


def test_empty_roots(tmp_path: Path) -> None:
    """A machine that shows nothing is no error."""
    empty = str(tmp_path)
    host = read_host(Roots(empty, empty, empty, empty), None, root=False)
    assert (host.gpus, host.nvswitches, host.acs, host.disk) == ((), (), {}, None)
    assert host.machine.cpu_model is None and host.machine.nodes == ()


def test_what_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: t.Any, *arguments: t.Any, **more: t.Any) -> t.NoReturn:
        raise PermissionError(13, "Permission denied", str(path))

    files = Files(str(tmp_path))
    assert files.text("absent") is None and files.denied == set()
    # Root, who runs the tests on many machines, may read everything.
    monkeypatch.setattr("builtins.open", denied)
    monkeypatch.setattr("os.listdir", denied)
    assert files.text("serial") is None and files.names("slots") == []
    assert files.denied == {str(tmp_path / "serial"), str(tmp_path / "slots")}


class TestDisk:
    def test_path_that_is_not_there_yet(self, tree: Tree, tmp_path: Path) -> None:
        disk = read(tree, str(tmp_path / "srv" / "models")).disk
        assert disk is not None
        assert (disk.existing, disk.filesystem, disk.error) == (str(tmp_path), "ext4", None)
        assert disk.total_bytes and disk.free_bytes and 0 < disk.free_bytes <= disk.total_bytes

    def test_the_nearest_mount_point_counts(self, tree: Tree, tmp_path: Path) -> None:
        (tmp_path / "a b" / "models").mkdir(parents=True)
        mounts = [
            "/dev/root / ext4 rw 0 0",
            f"server:/x {tmp_path}/a\\040b nfs4 rw 0 0",
            f"none {tmp_path}/a tmpfs rw 0 0",
        ]
        tree.write(tree.proc / "mounts", "\n".join(mounts))
        disk = read(tree, str(tmp_path / "a b" / "models")).disk
        assert disk is not None and disk.filesystem == "nfs4"


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-3,8", (0, 1, 2, 3, 8)), ("5", (5,)), ("", ()), (None, ()), ("x", ()), ("0-1,y-z", (0, 1))]
)
def test_cpulist(text: str | None, cpus: tuple[int, ...]) -> None:
    assert parse_cpulist(text) == cpus


class TestBars:
    def test_none(self) -> None:
        assert parse_bars(None) is None
        assert parse_bars("") == ()

    def test_only_the_six_of_the_device(self) -> None:
        # Line 7 is the ROM, and behind it come the windows of virtual functions.
        lines = ["0x0 0x0 0x0"] * 6 + ["0x0000000000001000 0x0000000000001fff 0x0000000000046200"]
        assert parse_bars("\n".join(lines)) == ()

    def test_lines_of_another_form(self) -> None:
        assert parse_bars("nonsense\n0x1000 0x1fff 0x200\n") == (Bar(1, 0x1000, 0x1000, 0x200),)

    def test_not_placed(self) -> None:
        (window,) = t.cast("tuple[Bar, ...]", parse_bars(f"0x0 {128 * GIB - 1:#x} {WINDOW_FLAGS:#x}"))
        assert not window.placed and window.size == 128 * GIB


class TestAcs:
    def test_a_user_sees_the_header_only(self) -> None:
        assert parse_acs(config_space(0x1D)[:64]) == Acs(readable=False, control=None)
        assert parse_acs(None) == Acs(readable=False, control=None)

    def test_without_the_capability(self) -> None:
        assert parse_acs(config_space(None)) == Acs(readable=True, control=None)

    def test_conventional_device(self) -> None:
        assert parse_acs(bytes(256)) == Acs(readable=True, control=None)

    @pytest.mark.parametrize("fill", [b"\0", b"\xff"])
    def test_device_that_has_gone(self, fill: bytes) -> None:
        assert parse_acs(fill * 4096) == Acs(readable=True, control=None)

    def test_list_that_runs_in_a_circle(self) -> None:
        config = bytearray(config_space(None))
        config[0x100:0x104] = (0x0001 | 1 << 16 | 0x100 << 20).to_bytes(4, "little")
        assert parse_acs(bytes(config)) == Acs(readable=True, control=None)


@pytest.mark.parametrize(
    ("line", "flavour"),
    [
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22-I3-B17)"
            "  Tue Sep 23 09:55:41 UTC 2025",
            "open",
        ),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.135  Fri Jan 10 20:00:00 UTC 2025", "proprietary"),
        (None, None),
    ],
)
def test_flavour(line: str | None, flavour: str | None) -> None:
    assert module_flavour(line) == flavour


class Programs:
    """Programs of a host: what each prints."""

    def __init__(self, **answers: tuple[int, str, str]) -> None:
        self.answers = {name.replace("_", "-"): answer for name, answer in answers.items()}

    def which(self, name: str) -> str | None:
        return f"/usr/bin/{name}" if name in self.answers else None

    def __call__(self, arguments: t.Sequence[str]) -> tuple[int, str, str]:
        return self.answers[Path(arguments[0]).name]


@pytest.mark.parametrize(
    ("programs", "expected"),
    [
        (Programs(), FabricManager(None, None, None)),
        (
            Programs(
                nv_fabricmanager=(0, "\n\n\n\tFabric Manager version is : 580.159.04\n\n", ""),
                systemctl=(0, "LoadState=loaded\nActiveState=active\n", ""),
            ),
            FabricManager("580.159.04", "program", "active"),
        ),
        (
            Programs(
                dpkg_query=(0, "installed 580.159.04-1\nnot-installed \n", ""),
                systemctl=(0, "LoadState=loaded\nActiveState=failed\n", ""),
            ),
            FabricManager("580.159.04", "package", "failed"),
        ),
        # Ubuntu's own, with an epoch; an old one whose configuration is left.
        (
            Programs(dpkg_query=(0, "config-files 535.183.01-1\ninstalled 1:580.95.05-0ubuntu0.24.04.1\n", "")),
            FabricManager("580.95.05", "package", None),
        ),
        (Programs(rpm=(0, "580.95.05\n", "")), FabricManager("580.95.05", "package", None)),
        (
            Programs(
                dpkg_query=(1, "", "dpkg-query: no packages found matching nvidia-fabricmanager*\n"),
                systemctl=(0, "LoadState=not-found\nActiveState=inactive\n", ""),
            ),
            FabricManager(None, None, "absent"),
        ),
        # No systemd runs here.
        (
            Programs(systemctl=(1, "", "System has not been booted with systemd as init system (PID 1).\n")),
            FabricManager(None, None, None),
        ),
    ],
)
def test_fabric_manager(programs: Programs, expected: FabricManager) -> None:
    assert read_fabric_manager(programs, programs.which) == expected
