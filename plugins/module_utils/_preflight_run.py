# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""The whole preflight: gather, judge, put together. What it reads and runs, it only reads.

Nothing that cannot be read ends it. That is a verdict; only wrong options are a failure.
"""

from __future__ import annotations

import math
import os
import re
import typing as t
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timezone

from ansible_collections.baremetal.inference.plugins.module_utils._cuda import CudaInit, cuda_init
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_errors import GpuFailure
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_facts import GATHER, gpu_facts
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_skus import (
    SYSTEM_FIGURES,
    Catalog,
    override,
    system_of,
)
from ansible_collections.baremetal.inference.plugins.module_utils._nvml import NvmlFailure
from ansible_collections.baremetal.inference.plugins.module_utils._preflight import (
    SCHEMA,
    Check,
    counts,
    failing,
    ordered,
    overall,
)
from ansible_collections.baremetal.inference.plugins.module_utils._preflight_driver import (
    DriverFacts,
    driver_checks,
    kernel_module_version,
    module_flavour,
    read_fabric_manager,
)
from ansible_collections.baremetal.inference.plugins.module_utils._preflight_events import log_checks
from ansible_collections.baremetal.inference.plugins.module_utils._preflight_firmware import firmware_checks
from ansible_collections.baremetal.inference.plugins.module_utils._preflight_gpu import gpu_checks
from ansible_collections.baremetal.inference.plugins.module_utils._preflight_host import HostFacts, Roots, read_host
from ansible_collections.baremetal.inference.plugins.module_utils._preflight_layout import host_checks, topology_checks
from ansible_collections.baremetal.inference.plugins.module_utils._preflight_load import (
    Soaked,
    cuda_checks,
    nvlink_checks,
    soak,
    soak_checks,
    soak_result,
)
from ansible_collections.baremetal.inference.plugins.module_utils._preflight_log import (
    XID,
    Clock,
    Command,
    KernelLog,
    LogEvent,
    iso,
    read_kernel_log,
)
from ansible_collections.baremetal.inference.plugins.module_utils._preflight_pcie import pcie_checks, read_links

_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*")


@dataclass(frozen=True)
class System:
    """What of the running system does not come from files."""

    command: Command
    which: t.Callable[[str], str | None]
    host_name: str
    root: bool
    now: t.Callable[[], datetime]
    monotonic: t.Callable[[], float]


def check_options(params: t.Mapping[str, t.Any]) -> None:
    """Say what is wrong with the options before anything is read."""

    def wrong(option: str, expected: str) -> GpuFailure:
        return GpuFailure(
            f"{option}: '{params[option]}' is not usable. {expected}", reason="invalid_option", option=option
        )

    for option in ("sysfs_root", "proc_root", "dev_root", "etc_root"):
        if not os.path.isdir(params[option]):
            raise wrong(option, "It is no directory on this host: leave the option out for the system's own.")
    for option in ("kernel_log_days", "soak_minutes", "gpu_count", "model_bytes"):
        # Infinity and "not a number" are floats too.
        if not 0 <= (params[option] or 0) < math.inf:
            raise wrong(option, "Expected a number from 0.")
    if not 0 < params["cuda_timeout"] < math.inf:
        raise wrong("cuda_timeout", "Expected a number of seconds above 0.")
    if not _VERSION.fullmatch(params["min_driver_version"]):
        raise wrong("min_driver_version", "Expected a branch as 580, or a version as 580.95.05.")
    if params["kernel_log"] != "auto" and not os.path.exists(params["kernel_log"]):
        raise wrong("kernel_log", "There is no such file on this host: leave the option out for the host's own log.")
    if params["model_path"] is not None and not os.path.isabs(params["model_path"]):
        raise wrong("model_path", "Expected an absolute path.")


@dataclass(frozen=True)
class Gathered:
    """All that was found out about a host; what it means is another matter."""

    host: HostFacts
    driver: DriverFacts
    # None: not tried.
    cuda: CudaInit | None
    # pcie_linkspeed's results, by index.
    links: t.Mapping[int, t.Mapping[str, t.Any]]
    soaked: t.Sequence[Soaked]
    # Xid events that came during the load.
    soak_xids: t.Sequence[LogEvent]
    log: KernelLog

    @property
    def facts(self) -> t.Mapping[str, t.Any] | None:
        return self.driver.facts

    @property
    def gpus(self) -> t.Sequence[t.Mapping[str, t.Any]]:
        return [] if self.facts is None else t.cast("list[dict[str, t.Any]]", self.facts["gpus"])


def preflight(params: t.Mapping[str, t.Any], system: System) -> dict[str, t.Any]:
    """The module's result, with ``preflight`` as its main part."""
    check_options(params)
    catalog = override(params["expectations"])
    gathered = gather(params, system, catalog)
    return _result(params, system, gathered, judge(gathered, params, catalog))


def gather(params: t.Mapping[str, t.Any], system: System, catalog: Catalog) -> Gathered:
    roots = Roots(params["sysfs_root"], params["proc_root"], params["dev_root"], params["etc_root"])
    host = read_host(roots, params["model_path"], root=system.root)
    facts, failure = _facts(params)
    gpus = [] if facts is None else facts["gpus"]
    driver = DriverFacts(
        facts=facts,
        failure=failure,
        fabric_manager=read_fabric_manager(system.command, system.which),
        board=_board(facts, catalog),
    )
    # A driver that has no GPU for NVML has none for CUDA; without pynvml nobody asked NVML.
    unasked = failure is not None and failure.reason == "python_library_missing" and kernel_module_version(host)
    init = cuda_init(params["cuda_timeout"]) if gpus or unasked else None
    links = read_links(params) if gpus else {}
    log = _log(params, host, system)
    soaked: list[Soaked] = []
    soak_xids: list[LogEvent] = []
    if params["soak_minutes"] and gpus and init is not None and init.ok:
        soaked = soak(gpus, params["soak_minutes"], params["pynvml_path"], system.monotonic)
        before, log = log, _log(params, host, system)
        soak_xids = _new_xids(before, log)
    return Gathered(host, driver, init, links, soaked, soak_xids, log)


def judge(gathered: Gathered, params: t.Mapping[str, t.Any], catalog: Catalog) -> list[Check]:
    """All checks of what was gathered. Pure."""
    host, facts, gpus = gathered.host, gathered.facts, gathered.gpus
    pairs = [] if facts is None else facts["topology"]
    checks = firmware_checks(host, gpus, pairs)
    checks += driver_checks(
        host, gathered.driver, min_version=params["min_driver_version"], gpu_count=params["gpu_count"]
    )
    checks += cuda_checks(gathered.cuda, gpus)
    if facts is not None:
        checks += nvlink_checks(facts, catalog)
    checks += pcie_checks(
        gpus,
        gathered.links,
        cuda_ok=gathered.cuda is not None and gathered.cuda.ok,
        virtual=host.machine.virtual,
    )
    checks += gpu_checks(gpus, ecc=params["ecc"])
    checks += host_checks(host, gpus, params["model_bytes"])
    checks += topology_checks(host, gpus, pairs)
    checks += soak_checks(gathered.soaked, params["soak_minutes"], gathered.soak_xids)
    checks += log_checks(gathered.log, host, gpus, _silent(host, facts))
    return ordered(checks)


def _silent(host: HostFacts, facts: t.Mapping[str, t.Any] | None) -> set[str]:
    """GPUs of the bus that NVML does not have."""
    if facts is None:
        return {gpu.bus_id for gpu in host.gpus}
    return {*facts["missing_from_nvml"], *(gpu["pci_bus_id"] for gpu in facts["unavailable_gpus"] if gpu["pci_bus_id"])}


def _facts(params: t.Mapping[str, t.Any]) -> tuple[dict[str, t.Any] | None, GpuFailure | None]:
    try:
        # What could not be read is in the facts, and becomes a check each.
        return gpu_facts({**params, "gather": GATHER}, lambda text: None), None
    except NvmlFailure as failure:
        return None, failure


def _board(facts: t.Mapping[str, t.Any] | None, catalog: Catalog) -> dict[str, t.Any]:
    board = None if facts is None else system_of(facts, catalog)
    return {} if board is None else {name: getattr(board, name).value for name in SYSTEM_FIGURES}


def _log(params: t.Mapping[str, t.Any], host: HostFacts, system: System) -> KernelLog:
    clock = Clock(system.now(), host.machine.uptime_seconds, host.machine.boot_id)
    return read_kernel_log(
        params["kernel_log"], params["kernel_log_days"], params["dev_root"], clock, system.command, system.which
    )


def _new_xids(before: KernelLog, after: KernelLog) -> list[LogEvent]:
    """Those of the second reading that the first did not have; the same line may well come twice."""
    known = Counter((event.bus_id, event.number, event.text) for event in before.events if event.kind == XID)
    new = []
    for event in after.events:
        key = (event.bus_id, event.number, event.text)
        if event.kind != XID:
            continue
        if known[key]:
            known[key] -= 1
        else:
            new.append(event)
    return new


def _result(
    params: t.Mapping[str, t.Any], system: System, gathered: Gathered, checks: t.Sequence[Check]
) -> dict[str, t.Any]:
    host, driver, init, log = gathered.host, gathered.driver, gathered.cuda, gathered.log
    facts = gathered.facts or {}
    gpus = gathered.gpus
    kinds = {gpu["expectations"]["id"] if gpu["expectations"] else None for gpu in gpus}
    verdict = overall(checks)
    machine = host.machine
    report = {
        "schema": SCHEMA,
        "host": system.host_name,
        "time": iso(system.now().astimezone(timezone.utc)),
        "verdict": verdict,
        "counts": counts(checks),
        "checks": [check.as_dict() for check in checks],
        "machine": {
            "vendor": machine.vendor,
            "product": machine.product,
            "serial": machine.serial,
            "cpu_model": machine.cpu_model,
            "sockets": machine.sockets,
            "cores": machine.cores,
            "threads": machine.threads,
            "numa_nodes": len(machine.nodes) or None,
            "numa": [{"node": node.node, "socket": node.socket, "cpus": node.cpulist} for node in machine.nodes],
            "memory_bytes": machine.memory_bytes,
            "kernel": machine.kernel,
            "os": machine.os,
            "virtual": machine.virtual,
        },
        "driver": {
            "driver_version": facts.get("driver_version"),
            "nvml_version": facts.get("nvml_version"),
            "cuda_driver_version": facts.get("cuda_driver_version"),
            "kernel_module_version": kernel_module_version(host),
            "kernel_module_flavour": module_flavour(host.driver.version_line),
            "fabric_manager_version": driver.fabric_manager.version,
            "fabric_manager_state": driver.fabric_manager.state,
            "cuda_init_code": None if init is None else init.code,
            "cuda_init_seconds": None if init is None else init.seconds,
        },
        "gpus": list(gpus),
        "unavailable_gpus": facts.get("unavailable_gpus", []),
        "missing_from_nvml": facts.get("missing_from_nvml", []),
        "pci_gpus": [
            {
                "pci_bus_id": gpu.bus_id,
                "device_id": gpu.device.device_id,
                "driver": gpu.device.driver,
                "slot": gpu.slot,
                "numa_node": gpu.numa_node,
            }
            for gpu in host.gpus
        ],
        "topology": facts.get("topology", []),
        "nvswitches": [
            {
                "pci_bus_id": switch.pci_bus_id,
                "vendor_id": switch.vendor_id,
                "device_id": switch.device_id,
                "class_id": switch.class_id,
                "driver": switch.driver,
            }
            for switch in host.nvswitches
        ],
        "sku": next(iter(kinds)) if len(kinds) == 1 else None,
        "system": facts.get("system"),
        "kernel_log": {
            "source": log.source,
            "since": log.since,
            "boots": log.boots,
            "xids": [
                {
                    "time": event.time,
                    "xid": event.number,
                    "pci_bus_id": event.bus_id,
                    "current_boot": event.current_boot,
                    "text": event.text,
                }
                for event in log.events
                if event.kind == XID
            ],
        },
        "soak": soak_result(gathered.soaked, params["soak_minutes"], gathered.soak_xids) if gathered.soaked else None,
    }
    return {
        "changed": False,
        "preflight": report,
        "verdict": verdict,
        "failed_checks": [check.as_dict() for check in failing(checks, params["fail_on"])],
        "reason": None if driver.failure is None else driver.failure.reason,
    }
