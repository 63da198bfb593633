# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""Checks of the machine around the GPUs, and of how they lie in it: processors, memory, disk, sockets, switches. Pure."""

from __future__ import annotations

import typing as t

from ansible_collections.baremetal.inference.plugins.module_utils._preflight import (
    FAIL,
    INFO,
    PASS,
    SKIPPED,
    UNKNOWN,
    WARN,
    Check,
    size,
)
from ansible_collections.baremetal.inference.plugins.module_utils._preflight_host import HostFacts

# File systems on which a model is read over the network by every start.
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "glusterfs", "fuse.sshfs", "9p")


def host_checks(host: HostFacts, gpus: t.Sequence[t.Mapping[str, t.Any]], model_bytes: int | None) -> list[Check]:
    checks = [_hypervisor(host), _cpu(host), _memory(host, model_bytes), _disk(host, model_bytes)]
    if model_bytes:
        checks.append(_gpu_memory(gpus, model_bytes))
    return checks


def _hypervisor(host: HostFacts) -> Check:
    observed = "a virtual machine" if host.machine.virtual else "no sign of a hypervisor"
    # What a virtual machine hides (ports, slots, switches) is left out of the other checks.
    return Check("host.hypervisor", "Bare metal", INFO if host.machine.virtual else PASS, observed, "either")


def _cpu(host: HostFacts) -> Check:
    machine = host.machine
    parts = [machine.cpu_model or "unknown model"]
    if machine.sockets and machine.cores:
        parts.append(f"{machine.sockets} socket(s), {machine.cores} cores")
    parts.append(f"{machine.threads} threads")
    return Check("host.cpu", "Processors", INFO, ", ".join(parts), "any")


def _memory(host: HostFacts, model_bytes: int | None) -> Check:
    name, title = "host.memory", "Memory"
    total, available = host.machine.memory_bytes, host.machine.memory_available_bytes
    expected = f"room for the model's {size(model_bytes)} in the page cache" if model_bytes else "any"
    if total is None:
        return Check(name, title, INFO, "unknown", expected)
    observed = f"{size(total)}, {size(available)} available"
    if not model_bytes:
        return Check(name, title, INFO, observed, expected)
    if total > model_bytes:
        return Check(name, title, PASS if (available or 0) > model_bytes else INFO, observed, expected)
    return Check(
        name,
        title,
        WARN,
        observed,
        expected,
        "Fit more memory, or expect every start to read the whole model from disk, once for each GPU when the disk cannot"
        " keep up.",
    )


def _disk(host: HostFacts, model_bytes: int | None) -> Check:
    name, title, disk = "host.disk", "Disk space for the model", host.disk
    expected = f"{size(model_bytes)} free" if model_bytes else "any"
    if disk is None:
        return Check(name, title, SKIPPED, "no path for models was given", expected)
    if disk.free_bytes is None:
        return Check(
            name, title, UNKNOWN, f"{disk.path}: {disk.error}", expected, f"Look at 'df {disk.existing}' on the host."
        )
    where = disk.path if disk.existing == disk.path else f"{disk.path} (will be made in {disk.existing})"
    observed = (
        f"{where} on {disk.filesystem or 'an unknown file system'}: {size(disk.free_bytes)} free of"
        f" {size(disk.total_bytes)}"
    )
    if model_bytes and disk.free_bytes < model_bytes:
        return Check(
            name,
            title,
            FAIL,
            observed,
            expected,
            f"Free {size(model_bytes - disk.free_bytes)} in {disk.existing}, or put the models on another file system.",
        )
    if disk.filesystem in _NETWORK:
        return Check(name, title, INFO, observed + "; a network file system", expected)
    return Check(name, title, PASS if model_bytes else INFO, observed, expected)


def _gpu_memory(gpus: t.Sequence[t.Mapping[str, t.Any]], model_bytes: int) -> Check:
    name, title = "host.gpu_memory", "Memory of all GPUs"
    total = sum(gpu["memory"]["total_bytes"] for gpu in gpus if gpu["memory"] is not None)
    expected = f"more than the model's {size(model_bytes)}"
    if not total:
        return Check(name, title, SKIPPED, "unknown", expected)
    if total > model_bytes:
        return Check(name, title, PASS, size(total), expected)
    return Check(
        name,
        title,
        FAIL,
        size(total),
        expected,
        "Take a smaller or a quantised model, or more GPUs: the weights alone do not fit.",
    )


def _groups(members: t.Sequence[str], joined: t.Callable[[str, str], bool]) -> list[list[str]]:
    """Members that are joined with each other, directly or through others."""
    groups: list[list[str]] = []
    for member in members:
        mine = [group for group in groups if any(joined(member, other) for other in group)]
        groups = [group for group in groups if group not in mine] + [[*(m for group in mine for m in group), member]]
    return sorted(sorted(group) for group in groups)


def _shown(groups: t.Sequence[t.Sequence[str]]) -> str:
    return "; ".join(", ".join(group) for group in groups)


def topology_checks(
    host: HostFacts, gpus: t.Sequence[t.Mapping[str, t.Any]], pairs: t.Sequence[t.Mapping[str, t.Any]]
) -> list[Check]:
    """Facts more than judgements: which layout is right depends on what will be served."""
    on_bus = [gpu.bus_id for gpu in host.gpus]
    if len(on_bus) < 2 and len(gpus) < 2:
        return [Check("topology.layout", "Layout of the GPUs", SKIPPED, "fewer than two GPUs", "any")]
    return [_switches(host, on_bus), _sockets(host), _nvlink_groups(gpus, pairs)]


def _switches(host: HostFacts, on_bus: t.Sequence[str]) -> Check:
    # The last port of a path is at the root: sharing it alone is sharing a host bridge's port, not a switch.
    above = {gpu.bus_id: set(gpu.ports[:-1]) for gpu in host.gpus}
    groups = [group for group in _groups(on_bus, lambda a, b: bool(above[a] & above[b])) if len(group) > 1]
    observed = _shown(groups) if groups else "none share one"
    return Check("topology.switches", "GPUs behind a common PCIe switch", INFO, observed, "any")


def _sockets(host: HostFacts) -> Check:
    name, title, expected = "topology.sockets", "GPUs of each socket", "any; spread evenly where there are several"
    sockets = {node.node: node.socket for node in host.machine.nodes}
    of: dict[str, list[str]] = {}
    for gpu in host.gpus:
        socket = None if gpu.numa_node is None else sockets.get(gpu.numa_node)
        of.setdefault("unknown socket" if socket is None else f"socket {socket}", []).append(gpu.bus_id)
    observed = "; ".join(f"{socket}: {', '.join(of[socket])}" for socket in sorted(of))
    return Check(name, title, INFO, observed or "none on the PCI bus", expected)


def _nvlink_groups(gpus: t.Sequence[t.Mapping[str, t.Any]], pairs: t.Sequence[t.Mapping[str, t.Any]]) -> Check:
    name, title, expected = "topology.nvlink", "GPUs that NVLink joins", "any"
    if not pairs:
        return Check(name, title, SKIPPED, "not known without the driver", expected)
    joined = {frozenset((pair["a"], pair["b"])) for pair in pairs if pair["nvlink_count"]}
    names = [gpu["pci_bus_id"] for gpu in gpus if gpu["pci_bus_id"]]
    groups = [group for group in _groups(names, lambda a, b: frozenset((a, b)) in joined) if len(group) > 1]
    if len(groups) == 1 and len(groups[0]) == len(names) and len(joined) == len(pairs):
        return Check(name, title, INFO, f"all {len(names)}, each with each", expected)
    return Check(name, title, INFO, _shown(groups) if groups else "none", expected)
