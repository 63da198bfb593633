# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is read of a driver's traces, in the forms that kernels, DKMS, mokutil and distributions write them."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest

from ansible_collections.baremetal.inference.plugins.module_utils._driver_host import (
    DkmsBuild,
    LibraryFiles,
    ModuleFile,
    Root,
    Signatures,
    Unit,
    kernel_order,
    license_flavour,
    mounted_driver,
    nouveau_blacklists,
    parse_dkms,
    read_gsp_firmware,
    read_kernels,
    read_library_files,
    read_signatures,
    read_smi_version,
    read_unit,
)
from ansible_collections.baremetal.inference.plugins.module_utils._preflight_host import Files


class Programs:
    """Programs of a host, and what each prints; ``asked`` is what they were asked."""

    def __init__(self, **answers: tuple[int, str]) -> None:
        self.answers = {name.replace("_", "-"): answer for name, answer in answers.items()}
        self.asked: list[list[str]] = []

    def which(self, name: str) -> str | None:
        return f"/usr/bin/{name}" if name in self.answers else None

    def __call__(self, arguments: t.Sequence[str]) -> tuple[int, str, str]:
        self.asked.append(list(arguments))
        return (*self.answers[Path(arguments[0]).name], "")


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(str(tmp_path))


def test_links_of_the_host_count_from_its_own_top(root: Root, tmp_path: Path) -> None:
    write(tmp_path / "usr" / "src" / "headers" / "Makefile")
    (tmp_path / "lib").symlink_to("usr/lib")
    (tmp_path / "usr" / "lib" / "modules").mkdir(parents=True)
    (tmp_path / "usr" / "lib" / "modules" / "build").symlink_to("/usr/src/headers")
    (tmp_path / "usr" / "lib" / "modules" / "relative").symlink_to("../../src/headers")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").symlink_to("/usr/src/none")
    assert root.resolve("/lib/modules/build/Makefile") == "/usr/src/headers/Makefile"
    assert root.resolve("lib/modules/relative/../headers/./Makefile") == "/usr/src/headers/Makefile"
    assert root.resolve("/loop") is None and root.resolve("/gone") is None and root.resolve("/nothing") is None
    assert root.resolve("/") == "/" and root.resolve("/..") == "/"


def test_kernels_in_order() -> None:
    releases = [
        "6.8.0-100-generic",
        "6.8.0-60-generic",
        "5.14.0-570.5.1.el9_6.x86_64",
        "5.14.0-570.el9.x86_64",
        "6.12.9+bpo-amd64",
        "6.1.0-40-amd64",
    ]
    assert sorted(releases, key=kernel_order) == [
        "5.14.0-570.el9.x86_64",
        "5.14.0-570.5.1.el9_6.x86_64",
        "6.1.0-40-amd64",
        "6.8.0-60-generic",
        "6.8.0-100-generic",
        "6.12.9+bpo-amd64",
    ]
    assert kernel_order("extramodules") == ()


def test_kernels(root: Root, tmp_path: Path) -> None:
    modules = tmp_path / "lib" / "modules"
    write(tmp_path / "boot" / "vmlinuz-6.1.0-40-amd64")
    write(modules / "6.1.0-40-amd64" / "modules.dep", "kernel/a.ko:\nupdates/dkms/nvidia-current.ko.xz: kernel/a.ko\n")
    # With the image in the folder, as Fedora and RHEL have it, and modules of a vendor's package.
    write(modules / "6.1.0-9-amd64" / "vmlinuz")
    write(modules / "6.1.0-9-amd64" / "modules.dep", "/lib/modules/6.1.0-9-amd64/extra/nvidia.ko:\n")
    # Removed: DKMS's file stayed behind.
    write(modules / "6.1.0-50-amd64" / "updates" / "dkms" / "nvidia-current.ko")
    builds = [DkmsBuild("nvidia-current", "550.163.01", "6.1.0-40-amd64", "installed")]
    programs = Programs(
        modinfo=(
            0,
            "version:        550.163.01\nlicense:        NVIDIA\nfirmware:       nvidia/550.163.01/gsp_ga10x.bin\n",
        )
    )
    older, newest = read_kernels(root, "6.1.0-9-amd64", builds, programs, programs.which)
    assert (older.release, older.running, older.newest, older.headers, older.dkms) == (
        "6.1.0-9-amd64",
        True,
        False,
        False,
        (),
    )
    assert older.module is not None and older.module.path == "/lib/modules/6.1.0-9-amd64/extra/nvidia.ko"
    assert (newest.release, newest.newest, newest.dkms) == ("6.1.0-40-amd64", True, tuple(builds))
    assert newest.module == ModuleFile(
        "/lib/modules/6.1.0-40-amd64/updates/dkms/nvidia-current.ko.xz", "550.163.01", "proprietary", None, True
    )
    assert programs.asked[-1] == ["/usr/bin/modinfo", str(modules / "6.1.0-40-amd64/updates/dkms/nvidia-current.ko.xz")]


def test_module_of_the_runfile_without_modinfo(root: Root, tmp_path: Path) -> None:
    folder = tmp_path / "lib" / "modules" / "6.8.0-60-generic"
    write(folder / "modules.dep", "kernel/fs/fat/fat.ko:\nkernel/drivers/video/nvidiafb.ko:\n")
    write(folder / "kernel" / "drivers" / "video" / "nvidia.ko")
    programs = Programs()
    (kernel,) = read_kernels(root, None, [], programs, programs.which)
    assert kernel.module == ModuleFile(
        "/lib/modules/6.8.0-60-generic/kernel/drivers/video/nvidia.ko", None, None, None, False
    )
    assert (kernel.running, kernel.newest) == (False, True)


def test_no_kernels(root: Root) -> None:
    programs = Programs()
    assert read_kernels(root, None, [], programs, programs.which) == []


def test_flavour_by_licence() -> None:
    assert [license_flavour(text) for text in ("NVIDIA", "Dual MIT/GPL", "", None)] == [
        "proprietary",
        "open",
        None,
        None,
    ]


def test_dkms_status() -> None:
    assert parse_dkms(
        "nvidia/580.159.04, 6.8.0-60-generic, x86_64: installed\n"
        "nvidia-srv/580.95.05, 6.8.0-60-generic, x86_64: installed (WARNING! Diff between built and installed module!)\n"
        "nvidia/590.44.01: added\n"
        # Before version 3.
        "nvidia, 470.57.02, 5.4.0-80-generic, x86_64: installed\n"
        "nvidia-fs/2.26.6, 6.8.0-60-generic, x86_64: installed\n"
        "zfs/2.2.2, 6.8.0-60-generic, x86_64: installed\n"
        "Error! Could not locate dkms.conf file.\n"
    ) == [
        DkmsBuild("nvidia", "580.159.04", "6.8.0-60-generic", "installed"),
        DkmsBuild(
            "nvidia-srv",
            "580.95.05",
            "6.8.0-60-generic",
            "installed (WARNING! Diff between built and installed module!)",
        ),
        DkmsBuild("nvidia", "590.44.01", None, "added"),
        DkmsBuild("nvidia", "470.57.02", "5.4.0-80-generic", "installed"),
    ]


def test_library_files(root: Root, tmp_path: Path) -> None:
    assert read_library_files(root) == LibraryFiles(None, None, ())
    folder = tmp_path / "usr" / "lib" / "x86_64-linux-gnu"
    write(folder / "nvidia" / "current" / "libnvidia-ml.so.535.183.01")
    (folder / "nvidia" / "current" / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.535.183.01")
    # Debian leads there by its alternatives.
    (folder / "libnvidia-ml.so.1").symlink_to("/etc/alternatives/glx--libnvidia-ml.so.1-x86_64-linux-gnu")
    (tmp_path / "etc" / "alternatives").mkdir(parents=True)
    (tmp_path / "etc" / "alternatives" / "glx--libnvidia-ml.so.1-x86_64-linux-gnu").symlink_to(
        "/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1"
    )
    write(tmp_path / "usr" / "lib64" / "libnvidia-ml.so.580.95.05")
    assert read_library_files(root) == LibraryFiles(
        "/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.535.183.01", "535.183.01", ("580.95.05", "535.183.01")
    )


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            (0, "NVIDIA System Management Interface -- v580.159.04\n\nNVSMI provides monitoring information"),
            "580.159.04",
        ),
        ((0, "something else"), None),
        ((127, ""), None),
    ],
)
def test_nvidia_smi(answer: tuple[int, str], expected: str | None) -> None:
    programs = Programs(nvidia_smi=answer)
    assert read_smi_version(programs, programs.which) == expected
    assert programs.asked == [["/usr/bin/nvidia-smi", "-h"]]


@pytest.mark.parametrize(
    ("answer", "expected", "masked", "there"),
    [
        (
            "LoadState=loaded\nActiveState=active\nUnitFileState=enabled\n",
            Unit("loaded", "active", "enabled"),
            False,
            True,
        ),
        (
            "LoadState=masked\nActiveState=inactive\nUnitFileState=masked\n",
            Unit("masked", "inactive", "masked"),
            True,
            True,
        ),
        # Masked while it ran.
        (
            "LoadState=loaded\nActiveState=active\nUnitFileState=masked-runtime\n",
            Unit("loaded", "active", "masked-runtime"),
            True,
            True,
        ),
        (
            "LoadState=not-found\nActiveState=inactive\nUnitFileState=\n",
            Unit("not-found", "inactive", None),
            False,
            False,
        ),
        ("", Unit(None, None, None), False, False),
    ],
)
def test_units(answer: str, expected: Unit, masked: bool, there: bool) -> None:
    programs = Programs(systemctl=(0, answer))
    unit = read_unit("x.service", programs, programs.which)
    assert (unit, unit.masked, unit.there) == (expected, masked, there)
    nobody = Programs()
    assert read_unit("x.service", nobody, nobody.which) == Unit(None, None, None)


def test_nouveau_blacklists(root: Root, tmp_path: Path) -> None:
    assert nouveau_blacklists(root, "ro quiet nouveau.config=x") == []
    write(tmp_path / "etc" / "modprobe.d" / "a.conf", "# blacklist nouveau\nblacklist nouveaux\n")
    write(tmp_path / "etc" / "modprobe.d" / "b.conf", "options x y=1\n  blacklist   nouveau\n")
    write(tmp_path / "etc" / "modprobe.d" / "c.conf.bak", "blacklist nouveau\n")
    write(tmp_path / "etc" / "nvidia" / "blacklist", "blacklist nouveau\n")
    (tmp_path / "etc" / "modprobe.d" / "d.conf").symlink_to("/etc/nvidia/blacklist")
    (tmp_path / "etc" / "modprobe.d" / "e.conf").symlink_to("/etc/nvidia/gone")
    assert nouveau_blacklists(root, "ro modprobe.blacklist=pcspkr,nouveau rd.driver.blacklist=nouveau") == [
        "/etc/modprobe.d/b.conf",
        "/etc/modprobe.d/d.conf",
        "modprobe.blacklist=pcspkr,nouveau",
        "rd.driver.blacklist=nouveau",
    ]


KEYS = (
    "0a2b1c3d I------     1 perm 1f030000     0     0 asymmetri Canonical Ltd. Kernel Module Signing:"
    " 88f752e560a1e0737e31163a466ad7b70a850c19: X509.rsa 0a850c19 []\n"
    "0b2b1c3d I------     1 perm 1f030000     0     0 asymmetri Example Corp: DKMS module signing key:"
    " 22f6ff0da4ede85c: X509.rsa a8bce2c5 []\n"
    "0c2b1c3d I--Q---     1 perm 1f030000     0     0 keyring   .builtin_trusted_keys: 3\n"
)


def test_signatures(tmp_path: Path) -> None:
    sysfs, proc = Files(str(tmp_path / "sys")), Files(str(tmp_path / "proc"))
    nobody = Programs()
    assert read_signatures(sysfs, proc, None, nobody, nobody.which) == Signatures(None, None, None, None, None)
    write(tmp_path / "proc" / "keys", KEYS)
    write(tmp_path / "sys" / "kernel" / "security" / "lockdown", "[none] integrity confidentiality\n")
    programs = Programs(
        mokutil=(
            0,
            "[key 1]\n        Issuer: CN = Somebody\n        Subject: O = Example Corp, CN = DKMS module signing key\n",
        )
    )
    signatures = read_signatures(sysfs, proc, True, programs, programs.which)
    assert (signatures.enforced, signatures.enrolled) == (False, ("DKMS module signing key",))
    assert [arguments[1] for arguments in programs.asked] == ["--list-enrolled", "--list-new"]
    assert signatures.trusts("Canonical Ltd. Kernel Module Signing") is True
    assert signatures.trusts("DKMS module signing key") is True
    assert signatures.trusts("signing key") is False
    assert signatures.trusts(None) is None
    write(tmp_path / "sys" / "module" / "module" / "parameters" / "sig_enforce", "Y\n")
    refusing = Programs(mokutil=(255, "This system doesn't support Secure Boot\n"))
    signatures = read_signatures(sysfs, proc, True, refusing, refusing.which)
    assert (signatures.enforced, signatures.enrolled, signatures.pending) == (True, None, None)
    empty = Programs(mokutil=(1, "MokListRT is empty\n"))
    assert read_signatures(sysfs, proc, False, empty, empty.which).enrolled == ()


def test_gsp_firmware(tmp_path: Path) -> None:
    proc = Files(str(tmp_path))
    assert read_gsp_firmware(proc) is None
    for bus_id in ("0000:07:00.0", "0000:0f:00.0"):
        write(
            tmp_path / "driver" / "nvidia" / "gpus" / bus_id / "information",
            "Model: \t\t NVIDIA H200\nIRQ:   \t\t 41\nVideo BIOS: \t 96.00.a5.00.1a\nBus Type: \t PCIe\n"
            "Device Minor: \t 0\nGPU Firmware: \t 580.159.04\nGPU Excluded:\t No\n",
        )
    assert read_gsp_firmware(proc) == "580.159.04"
    write(tmp_path / "driver" / "nvidia" / "gpus" / "0000:0f:00.0" / "information", "GPU Firmware: \t N/A\n")
    assert read_gsp_firmware(proc) is None


def test_driver_that_is_mounted(tmp_path: Path) -> None:
    proc = Files(str(tmp_path))
    write(tmp_path / "self" / "mounts", "overlay / overlay rw 0 0\nproc /proc proc rw 0 0\n")
    assert mounted_driver(proc) is None
    path = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.159.04"
    write(tmp_path / "self" / "mounts", f"overlay / overlay rw 0 0\n/dev/vda1 {path} ext4 ro 0 0\n")
    assert mounted_driver(proc) == path
    write(tmp_path / "self" / "mounts", "/dev/vdb /usr/local/nvidia squashfs ro,nosuid,nodev,relatime 0 0\n")
    assert mounted_driver(proc) == "/usr/local/nvidia"
