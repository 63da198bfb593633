# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Trees of files as a healthy GPU server shows them in /sys, /proc, /dev and /etc, for tests to break one by one.

The PCI tree is that of the simulated NVML; the rest is written here, as the kernel writes it (Linux 6.8).
"""

from __future__ import annotations

import shutil
import stat
import struct
import typing as t
from pathlib import Path

GIB = 1024**3
DRIVER = "580.159.04"
BOOT_ID = "0f4c1a52-6d1f-4a0c-9a3e-6b1f7f0c2d11"
EARLIER_BOOT_ID = "7b9b1f5e-31c4-4f5a-8f77-0d2f3e9c5a10"
UPTIME = 86400.0
# Memory BAR, 64 bit, prefetchable (include/linux/ioport.h and PCI's own low bits, as sysfs shows them).
WINDOW_FLAGS = 0x14220C
CONTROL_FLAGS = 0x40200
SECURE_BOOT = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


def config_space(acs_control: int | None) -> bytes:
    """Configuration space of a port: with ACS as the second of two extended capabilities, or without it."""
    config = bytearray(4096)
    # 0x0001: advanced error reporting; the next one is at 0x148.
    struct.pack_into("<I", config, 0x100, 0x0001 | 1 << 16 | (0x148 << 20 if acs_control is not None else 0))
    if acs_control is not None:
        struct.pack_into("<IHH", config, 0x148, 0x000D | 1 << 16, 0x007F, acs_control)
    return bytes(config)


class Tree:
    """The files of one host. ``bus_ids`` are its GPUs, ``nodes`` its NUMA nodes, four of them to a socket."""

    def __init__(self, folder: Path, sysfs: Path, *, nodes: int = 8) -> None:
        self.sysfs = sysfs
        self.proc = folder / "proc"
        self.dev = folder / "dev"
        self.etc = folder / "etc"
        self.bin = folder / "bin"
        for path in (self.proc, self.dev, self.etc, self.bin):
            path.mkdir()
        self.devices = self.sysfs / "bus" / "pci" / "devices"
        self.nodes = nodes
        self._machine()
        self._firmware()

    @property
    def bus_ids(self) -> list[str]:
        """GPUs on the bus."""
        names = sorted(path.name for path in self.devices.iterdir())
        return [
            name for name in names if (self.devices / name / "class").read_text().strip() in ("0x030200", "0x030000")
        ]

    def options(self) -> dict[str, str]:
        return {
            "sysfs_root": str(self.sysfs),
            "proc_root": str(self.proc),
            "dev_root": str(self.dev),
            "etc_root": str(self.etc),
        }

    def write(self, path: Path, content: str | bytes) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else (content + "\n").encode())
        return path

    def program(self, name: str, script: str) -> None:
        """A program of the host, in the folder that its PATH begins with."""
        path = self.write(self.bin / name, f"#!/bin/sh\n{script}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)

    def _machine(self) -> None:
        dmi = self.sysfs / "class" / "dmi" / "id"
        self.write(dmi / "sys_vendor", "NVIDIA")
        self.write(dmi / "product_name", "DGXA100 920-23687-2530-000")
        self.write(dmi / "product_serial", "1560000000001")
        self.write(
            self.proc / "meminfo",
            "MemTotal:       2101247776 kB\nMemFree:        2000000000 kB\nMemAvailable:   2050000000 kB",
        )
        block = "processor\t: {0}\nmodel name\t: AMD EPYC 7742 64-Core Processor\nflags\t\t: fpu vme de svm"
        cpus = 4 * self.nodes
        self.write(self.proc / "cpuinfo", "\n\n".join(block.format(cpu) for cpu in range(cpus)))
        system = self.sysfs / "devices" / "system"
        for cpu in range(cpus):
            topology = system / "cpu" / f"cpu{cpu}" / "topology"
            self.write(topology / "physical_package_id", str(cpu // 4 * 2 // self.nodes))
            self.write(topology / "core_id", str(cpu))
            self.write(system / "cpu" / f"cpu{cpu}" / "cpufreq" / "scaling_governor", "performance")
        for node in range(self.nodes):
            folder = system / "node" / f"node{node}"
            self.write(folder / "cpulist", f"{4 * node}-{4 * node + 3}")
            self.write(
                folder / "meminfo",
                f"Node {node} MemTotal:       264000000 kB\nNode {node} MemFree:        260000000 kB",
            )
        self.write(self.etc / "os-release", 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.2 LTS"')
        self.write(self.proc / "sys" / "kernel" / "osrelease", "6.8.0-60-generic")
        self.write(self.proc / "sys" / "kernel" / "random" / "boot_id", BOOT_ID)
        self.write(self.proc / "uptime", f"{UPTIME:.2f} 9000000.00")
        self.write(self.proc / "mounts", "/dev/root / ext4 rw 0 0\nproc /proc proc rw 0 0")

    def _firmware(self) -> None:
        cpu = self.sysfs / "devices" / "system" / "cpu"
        self.write(self.sysfs / "firmware" / "efi" / "efivars" / SECURE_BOOT, b"\x06\0\0\0\0")
        self.write(cpu / "cpuidle" / "current_driver", "acpi_idle")
        self.write(cpu / "cpuidle" / "current_governor", "menu")
        for number, (name, latency) in enumerate((("POLL", 0), ("C1", 1), ("C2", 400))):
            state = cpu / "cpu0" / "cpuidle" / f"state{number}"
            self.write(state / "name", name)
            self.write(state / "latency", str(latency))
            self.write(state / "disable", "0")
        self.write(cpu / "cpu0" / "cpufreq" / "scaling_driver", "acpi-cpufreq")
        self.write(self.proc / "sys" / "kernel" / "numa_balancing", "1")

    def with_gpus(self, *, bar1: int, firmware_nodes: bool = True) -> None:
        """What the kernel adds for each GPU to the simulated bus."""
        for position, bus_id in enumerate(self.bus_ids):
            folder = self.devices / bus_id
            self.bars(bus_id, window=0x20000000000 + position * bar1, size=bar1)
            self.write(folder / "sriov_totalvfs", "16")
            self.write(folder / "sriov_numvfs", "0")
            for port in self.ports(bus_id):
                self.write(self.devices / port / "config", config_space(0x0000))
            if not firmware_nodes:
                self.write(folder / "numa_node", "-1")
        for number, bus_id in enumerate(self.bus_ids):
            self.slot(f"{number + 1}", bus_id)

    def bars(self, bus_id: str, *, window: int, size: int, flags: int = WINDOW_FLAGS) -> None:
        empty = (0, 0, 0)
        lines = [(0xE4000000, 0xE4FFFFFF, CONTROL_FLAGS), (window, window + size - 1, flags), empty]
        lines += [(0x30000000000, 0x30001FFFFFF, WINDOW_FLAGS), *[empty] * 9]
        text = "\n".join(f"0x{start:016x} 0x{end:016x} 0x{bits:016x}" for start, end, bits in lines)
        self.write(self.devices / bus_id / "resource", text)

    def ports(self, bus_id: str) -> list[str]:
        path = (self.devices / bus_id).resolve().parent
        found = []
        while path.name.count(":") == 2:
            found.append(path.name)
            path = path.parent
        return found

    def slot(self, name: str, bus_id: str) -> None:
        self.write(self.sysfs / "bus" / "pci" / "slots" / name / "address", bus_id.rsplit(".", 1)[0])

    def with_driver(self, *, flavour: str = "Open Kernel Module for x86_64") -> None:
        """The loaded driver's traces."""
        for module in ("nvidia", "nvidia_uvm", "nvidia_modeset"):
            self.write(self.sysfs / "module" / module / "version", DRIVER)
        self.write(
            self.proc / "driver" / "nvidia" / "version",
            f"NVRM version: NVIDIA UNIX {flavour}  {DRIVER}  Release Build  (dvs-builder@U22)  Mon Oct  5 09:55:41 UTC 2026"
            "\nGCC version:  gcc version 13.3.0",
        )
        for minor, bus_id in enumerate(self.bus_ids):
            self.write(
                self.proc / "driver" / "nvidia" / "gpus" / bus_id / "information",
                f"Model: \t\t NVIDIA A100-SXM4-80GB\nIRQ:   \t\t 88\nBus Location: \t {bus_id}\nDevice Minor: \t {minor}",
            )
            self.write(self.dev / f"nvidia{minor}", "")
        for node in ("nvidiactl", "nvidia-uvm", "nvidia-modeset"):
            self.write(self.dev / node, "")

    def without_driver(self) -> None:
        """A bus whose GPUs nobody has."""
        shutil.rmtree(self.sysfs / "module")
        for bus_id in self.bus_ids:
            (self.devices / bus_id / "driver").unlink()

    def fabric_manager(self, version: str = DRIVER, state: str = "active") -> None:
        self.program("nv-fabricmanager", f"echo 'Fabric Manager version is : {version}'")
        self.program("systemctl", f"echo LoadState=loaded; echo ActiveState={state}")

    def journal(self, lines: t.Sequence[str]) -> None:
        """A journal that answers with these records, whatever it is asked."""
        self.write(self.bin / "journal.json", "\n".join(lines))
        self.program("journalctl", f"cat {self.bin / 'journal.json'}")
