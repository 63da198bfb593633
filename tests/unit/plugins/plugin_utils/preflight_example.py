# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Results of gpu_preflight for machines of any size, in the shape that the module documents."""

from __future__ import annotations

import typing as t
from itertools import combinations

GIB = 1 << 30
ORDER = ("pass", "info", "skipped", "unknown", "warn", "fail")
BUSES = (0x07, 0x0F, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD)


def bus_id(index: int) -> str:
    # Machines with more than eight GPUs continue in another PCI domain.
    return f"{index // 8:04x}:{BUSES[index % 8]:02x}:00.0"


def nvlinks(index: int, count: int, remote: str, down: t.Collection[int] = ()) -> dict[str, t.Any]:
    links = []
    for link in range(count):
        up = link not in down
        if remote == "switch":
            far: str | None = f"0000:{0xC4 + link % 6:02x}:00.0"
        else:
            far = bus_id(index ^ 1)
        links.append(
            {
                "link": link,
                "state": "active" if up else "inactive",
                "version": "3.0",
                "speed_megabytes_per_second": 25000 if up else None,
                "remote_device_type": remote if up else None,
                "remote_pci_bus_id": far if up else None,
                "errors": {"replay": 0, "recovery": 0, "crc": 0},
            }
        )
    return {"total_count": count, "active_count": count - len(down), "links": links}


def gpu(index: int, *, links: int = 12, remote: str = "switch", down: t.Collection[int] = ()) -> dict[str, t.Any]:
    link = {"current_speed_gt_per_s": 16.0, "max_speed_gt_per_s": 16.0, "current_width": 16, "max_width": 16}
    return {
        "index": index,
        "uuid": f"GPU-a1000000-0000-4000-8000-{index:012d}",
        "pci_bus_id": bus_id(index),
        "minor_number": index,
        "name": "NVIDIA A100-SXM4-80GB",
        "serial": f"{1560000000000 + index}",
        "board_part_number": "692-2G506-0210-002",
        "vbios_version": "92.00.45.00.05",
        "brand": "nvidia",
        "architecture": "ampere",
        "compute_capability": "8.0",
        "persistence_mode": "enabled",
        "compute_mode": "default",
        "performance_state": "P0",
        "recovery_action": "none",
        "mig_mode": {"current": "disabled", "pending": "disabled"},
        "pci": {
            "nvml_bus_id": f"0000{bus_id(index)}",
            "vendor_id": "10de",
            "device_id": "20b2",
            "subsystem_vendor_id": "10de",
            "subsystem_device_id": "1463",
            "numa_node": (3, 1, 7, 5)[index // 2 % 4] + 8 * (index // 8),
            "local_cpulist": "48-63,176-191",
        },
        "pcie": {
            "generation_current": 4,
            "generation_max": 4,
            "generation_gpu_max": 4,
            "width_current": 16,
            "width_max": 16,
            "replay_count": 0,
            "link": link,
            "upstream_port": {"pci_bus_id": f"{index // 8:04x}:{BUSES[index % 8] - 1:02x}:00.0", "link": link},
        },
        "memory": {
            "total_bytes": 80 * GIB,
            "used_bytes": 0,
            "free_bytes": 80 * GIB - 911212544,
            "reserved_bytes": 911212544,
        },
        "bar1": {"total_bytes": 128 * GIB, "used_bytes": 1 << 20, "free_bytes": 128 * GIB - (1 << 20)},
        "ecc": {
            "supported": True,
            "current": "enabled",
            "pending": "enabled",
            "default": "enabled",
            "volatile": {"corrected": 0, "uncorrected": 0},
            "aggregate": {"corrected": 0, "uncorrected": 0},
        },
        "remapped_rows": {"correctable": 0, "uncorrectable": 0, "pending": False, "failure": False},
        "power": {
            "usage_watts": 52.0 + index,
            "limit_requested_watts": 400.0,
            "limit_enforced_watts": 400.0,
            "limit_default_watts": 400.0,
            "limit_min_watts": 100.0,
            "limit_max_watts": 400.0,
        },
        "temperature": {
            "gpu_celsius": 28 + index,
            "memory_celsius": 46,
            "threshold_slowdown_celsius": 89,
            "threshold_shutdown_celsius": 92,
            "threshold_gpu_max_celsius": 85,
            "threshold_memory_max_celsius": 95,
        },
        "utilization": {"gpu_percent": 0, "memory_percent": 0},
        "clocks": {
            "graphics_mhz": 1155,
            "sm_mhz": 1155,
            "memory_mhz": 1593,
            "video_mhz": 1050,
            "graphics_max_mhz": 1410,
            "sm_max_mhz": 1410,
            "memory_max_mhz": 1593,
            "video_max_mhz": 1290,
        },
        "clocks_event_reasons": ["gpu_idle"],
        "nvlink": nvlinks(index, links, remote, down),
        "processes": [],
        "read_errors": [],
    }


def topology(gpus: t.Sequence[dict[str, t.Any]], *, remote: str = "switch") -> list[dict[str, t.Any]]:
    pairs = []
    for a, b in combinations(gpus, 2):
        near = a["index"] // 2 == b["index"] // 2
        pcie_level = "PXB" if near else "SYS"
        count = min(a["nvlink"]["active_count"], b["nvlink"]["active_count"])
        if remote == "gpu" and not near:
            count = 0
        pairs.append(
            {
                "a": a["pci_bus_id"],
                "b": b["pci_bus_id"],
                "level": f"NV{count}" if count else pcie_level,
                "pcie_level": pcie_level,
                "nvlink_count": count,
                "p2p": {"read": "ok", "write": "ok", "nvlink": "ok" if count else "not_supported"},
            }
        )
    return pairs


def check(
    name: str,
    verdict: str = "pass",
    *,
    title: str = "",
    subject: str = "host",
    index: int | None = None,
    observed: str = "as it should be",
    expected: str = "as it should be",
    fix: str = "",
) -> dict[str, t.Any]:
    return {
        "check": name,
        "group": name.partition(".")[0],
        "title": title or name.partition(".")[2].replace("_", " ").capitalize(),
        "subject": subject,
        "gpu": index,
        "verdict": verdict,
        "observed": observed,
        "expected": expected,
        "fix": fix or (f"Repair {name}." if verdict in ("unknown", "warn", "fail") else ""),
    }


def result(
    gpus: t.Sequence[dict[str, t.Any]] | None = None,
    checks: t.Sequence[dict[str, t.Any]] = (),
    *,
    host: str = "dgx-01",
    remote: str = "switch",
) -> dict[str, t.Any]:
    gpus = [gpu(index) for index in range(8)] if gpus is None else list(gpus)
    every = [
        check("firmware.secure_boot", observed="off", expected="off, or the module signed"),
        check("driver.version", observed="580.159.04", expected="525 or newer"),
        check("cuda.initialises", observed="cuInit: no error", expected="cuInit: no error"),
        check("power.soak", "skipped", observed="not asked for", expected="no slowdown under load"),
        check("host.kernel", "info", observed="6.8.0-1043-nvidia", expected="none in particular"),
    ]
    for item in gpus:
        at: dict[str, t.Any] = {"subject": item["pci_bus_id"], "index": item["index"]}
        every.append(check("firmware.bar1_size", observed="128 GiB", expected="80 GiB or more", **at))
        every.append(check("ecc.mode", observed="enabled", expected="enabled", **at))
        every.append(check("pcie.width", observed="x16", expected="x16", **at))
        every.append(check("nvlink.links_up", observed="12 of 12", expected="12 of 12", **at))
    every.extend(checks)
    counts = {verdict: sum(1 for item in every if item["verdict"] == verdict) for verdict in ORDER}
    return {
        "schema": "baremetal.inference.preflight/1",
        "host": host,
        "time": "2026-11-30T10:00:00Z",
        "verdict": max((item["verdict"] for item in every), key=ORDER.index),
        "counts": {verdict: count for verdict, count in counts.items() if count},
        "checks": every,
        "machine": {
            "vendor": "NVIDIA",
            "product": "DGXA100 920-23687-2530-000",
            "serial": None,
            "cpu_model": "AMD EPYC 7742 64-Core Processor",
            "sockets": 2,
            "numa_nodes": 8,
            "memory_bytes": 2048 * GIB,
            "kernel": "6.8.0-1043-nvidia",
            "os": "Ubuntu 24.04.3 LTS",
        },
        "driver": {
            "driver_version": "580.159.04",
            "nvml_version": "13.580.159.04",
            "cuda_driver_version": "13.0",
            "kernel_module_version": "580.159.04",
        },
        "gpus": gpus,
        "topology": topology(gpus, remote=remote),
        "nvswitches": [
            {
                "pci_bus_id": f"0000:{0xC4 + number:02x}:00.0",
                "vendor_id": "10de",
                "device_id": "1af1",
                "class_id": "0680",
                "driver": "nvidia-nvswitch",
            }
            for number in range(6 if remote == "switch" and gpus else 0)
        ],
        "sku": "dgx-a100-80gb" if gpus else None,
        "soak": None,
    }


def troubled() -> dict[str, t.Any]:
    """Eight GPUs of which several have something."""
    gpus = [gpu(index, down=(3, 7) if index == 5 else ()) for index in range(8)]
    gpus[2]["remapped_rows"] = {"correctable": 1, "uncorrectable": 2, "pending": False, "failure": True}
    gpus[2]["ecc"]["aggregate"] = {"corrected": 19, "uncorrected": 3}
    gpus[4]["pcie"]["width_current"] = 8
    gpus[4]["pcie"]["replay_count"] = 212
    gpus[6]["memory"].update(used_bytes=61 * GIB, free_bytes=18 * GIB)
    gpus[6]["power"]["usage_watts"] = 371.4
    gpus[6]["temperature"]["gpu_celsius"] = 84
    gpus[7]["power"]["limit_enforced_watts"] = 300.0
    found = result(
        gpus,
        [
            check(
                "ecc.rows_failed",
                "fail",
                title="Row remapping",
                subject=bus_id(2),
                index=2,
                observed="a row could not be replaced; 3 rows replaced so far",
                expected="no failure",
                fix="Replace the GPU: it has run out of spare rows in one bank. Until then keep work off it.",
            ),
            check(
                "nvlink.links_up",
                "fail",
                title="NVLinks up",
                subject=bus_id(5),
                index=5,
                observed="10 of 12 links up; down: 3, 7",
                expected="12 of 12",
                fix="Look at the state and the errors of the links with baremetal.inference.nvlink_reset, scope counters; then "
                "reset the GPUs of the domain.",
            ),
            check(
                "pcie.width",
                "warn",
                title="PCIe width",
                subject=bus_id(4),
                index=4,
                observed="x8",
                expected="x16",
                fix="Reseat the GPU's baseboard or riser; power saving does not lower the width.",
            ),
            *(
                check(
                    "driver.persistence",
                    "warn",
                    title="Persistence",
                    subject=bus_id(index),
                    index=index,
                    observed="disabled",
                    expected="enabled",
                    fix="systemctl enable --now nvidia-persistenced",
                )
                for index in range(8)
            ),
            check(
                "firmware.acs",
                "unknown",
                title="PCIe access control",
                observed="the configuration space could not be read",
                expected="off below the GPUs' switches",
                fix="Run the play with become: true.",
            ),
            check(
                "kernel_log.xid",
                "warn",
                title="Xid errors",
                subject=bus_id(2),
                index=2,
                observed="Xid 63 on 2026-11-21, Xid 64 on 2026-11-28",
                expected="none",
                fix="Xid 64 is a row that could not be remapped: see ecc.rows_failed.",
            ),
        ],
    )
    found["kernel_log"] = {
        "since": "2026-10-31T10:00:00Z",
        "xids": [
            {
                "time": "2026-11-21T03:12:44Z",
                "xid": 63,
                "current_boot": False,
                "pci_bus_id": bus_id(2),
                "text": "pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping",
            },
            {
                "time": "2026-11-28T18:40:02Z",
                "xid": 64,
                "current_boot": True,
                "pci_bus_id": bus_id(2),
                "text": "pid='<unknown>', name=<unknown>, Row Remapper: failed",
            },
        ],
    }
    found["soak"] = {
        "minutes": 2,
        "samples": [
            {
                "seconds": second,
                "gpus": [
                    {
                        "pci_bus_id": item["pci_bus_id"],
                        "power_watts": min(395.0, 60 + 12.0 * second - 3 * item["index"]),
                        "temperature_celsius": min(78, 30 + second // 2 + item["index"]),
                        "sm_mhz": 1410 - (second // 20) * 15,
                    }
                    for item in gpus
                ],
            }
            for second in range(0, 121, 5)
        ],
    }
    return found
