# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""Who holds the GPUs' device nodes: read from the process tree, so that it is the same whatever the driver says.

Of a process only the program is told, never its arguments: they can hold passwords and keys.
"""

from __future__ import annotations

import os
import re
import typing as t
from dataclasses import dataclass

from ansible_collections.baremetal.inference.plugins.module_utils._gpu_errors import GpuFailure

PERSISTENCE_DAEMON = "persistence_daemon"
FABRIC_MANAGER = "fabric_manager"
EXPORTER = "exporter"
DISPLAY = "display"
PROGRAM = "program"

# The nodes of NVIDIA's driver (nvidia-modprobe makes them): GPUs, control, unified memory, modes, NVSwitches, MIG.
_NODE = re.compile(
    r"(?:^|/)dev/(nvidia(?:[0-9]+|ctl|-modeset|-uvm|-uvm-tools|-nvswitchctl|-nvswitch[0-9]+|-caps/nvidia-cap[0-9]+))"
    r"(?: \(deleted\))?$"
)
# By the name of the program's file.
_KINDS: t.Mapping[str, tuple[str, ...]] = {
    PERSISTENCE_DAEMON: ("nvidia-persistenced",),
    FABRIC_MANAGER: ("nv-fabricmanager",),
    EXPORTER: (
        "dcgm-exporter",
        "dcgmi",
        "dcgmproftester12",
        "gpud",
        "nv-hostengine",
        "nvidia-smi",
        "nvidia_gpu_exporter",
        "nvidia_gpu_prometheus_exporter",
        "nvitop",
        "nvsm_api_gateway",
        "nvsm_core",
        "nvtop",
        "telegraf",
    ),
    DISPLAY: ("Xorg", "Xwayland", "gnome-shell", "gdm-x-session"),
}
# By the unit that started it, whatever helpers it has (Fabric Manager brings NVLink's subnet manager along).
_UNIT_KINDS: t.Mapping[str, str] = {
    "nvidia-persistenced.service": PERSISTENCE_DAEMON,
    "nvidia-fabricmanager.service": FABRIC_MANAGER,
    "nvidia-dcgm.service": EXPORTER,
    "nvidia-dcgm-exporter.service": EXPORTER,
}
# The kernel cuts a process's own name to this.
_COMM_LENGTH = 15
_UNIT = re.compile(r"[^/]+\.(?:service|scope)")
_CONTAINER = re.compile(r"(docker|crio|cri-containerd|libpod)-([0-9a-f]{12})[0-9a-f]*\.scope")


@dataclass(frozen=True)
class Holder:
    """One process that has nodes open, or that the driver counts among those that use a GPU."""

    pid: int
    # The program's file; None when it may not be seen or has ended.
    program: str | None
    # The name that the process gives itself.
    name: str | None
    unit: str | None
    kind: str
    # Names below /dev, in order.
    nodes: tuple[str, ...]
    # What ends it, in words.
    stop: str


class HoldersUnseen(GpuFailure):
    """Not all processes can be looked into, so nobody can say that nothing holds a GPU."""


def find_holders(
    proc_root: str, nvml_pids: t.Collection[int] = (), ignore_pids: t.Collection[int] = ()
) -> list[Holder]:
    """Every process below ``proc_root`` that holds one of the nodes, and those that NVML names, ordered by pid.

    ``ignore_pids`` are our own. Raises HoldersUnseen when a process cannot be looked into, as without root.
    """
    pids = _pids(proc_root)
    found = {}
    for pid in pids:
        if pid in ignore_pids:
            continue
        nodes = _nodes_of(proc_root, pid)
        if nodes is None:
            # It ended while we looked.
            continue
        if nodes or pid in nvml_pids:
            found[pid] = _holder(proc_root, pid, nodes)
    foreign = sorted(set(nvml_pids) - set(pids) - set(ignore_pids))
    for pid in foreign:
        if os.path.isdir(os.path.join(proc_root, str(pid))):
            # Started since.
            found[pid] = _holder(proc_root, pid, _nodes_of(proc_root, pid) or ())
    missing = [pid for pid in foreign if pid not in found]
    if missing:
        raise HoldersUnseen(
            f"proc_root: NVML says that process {', '.join(map(str, missing))} uses a GPU, and '{proc_root}' has no"
            " such process: it has just ended, or this is a container with process numbers of its own, which cannot see who"
            " holds the GPUs. Run this on the host itself.",
            reason="holders_unseen",
        )
    return [found[pid] for pid in sorted(found)]


def _pids(proc_root: str) -> list[int]:
    try:
        names = os.listdir(proc_root)
    except OSError as error:
        raise HoldersUnseen(
            f"proc_root: '{proc_root}' cannot be read: {error.strerror}. Leave the option out for /proc.",
            reason="invalid_proc_root",
        ) from error
    pids = sorted(int(name) for name in names if name.isdigit())
    # The first process is always there. Mounts with hidepid hide it from users who may not look into it.
    if 1 not in pids:
        raise HoldersUnseen(
            f"proc_root: '{proc_root}' does not show process 1, so it is no mount of procfs, or it hides processes from"
            " this user (hidepid). Run the task with become: true, and leave the option out for /proc.",
            reason="no_permission",
        )
    return pids


def _nodes_of(proc_root: str, pid: int) -> tuple[str, ...] | None:
    """Names of the nodes that the process has open or mapped; None when the process has ended."""
    folder = os.path.join(proc_root, str(pid))
    nodes: set[str] = set()
    try:
        for descriptor in os.listdir(os.path.join(folder, "fd")):
            try:
                target = os.readlink(os.path.join(folder, "fd", descriptor))
            except FileNotFoundError:
                # Closed since.
                continue
            match = _NODE.search(target)
            if match:
                nodes.add(match.group(1))
        if not nodes:
            # A mapping keeps the device in use after its descriptor is closed.
            nodes.update(_mapped(os.path.join(folder, "maps")))
    except (FileNotFoundError, ProcessLookupError):
        return None
    except PermissionError as error:
        raise HoldersUnseen(
            f"Whether process {pid} holds a GPU cannot be seen: {error.strerror} ({error.filename}). Only root, and"
            " not root of a container, sees what all processes have open: run the task on the host with become: true.",
            reason="no_permission",
        ) from error
    return tuple(sorted(nodes, key=_node_order))


def _mapped(path: str) -> set[str]:
    found = set()
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                match = _NODE.search(line.rstrip("\n"))
                if match:
                    found.add(match.group(1))
    except ProcessLookupError:
        # What the kernel says of a process that ended while its maps were read.
        pass
    return found


def _node_order(node: str) -> tuple[str, int]:
    digits = re.search(r"[0-9]+$", node)
    return (node.rstrip("0123456789"), int(digits.group()) if digits else -1)


def _holder(proc_root: str, pid: int, nodes: tuple[str, ...]) -> Holder:
    folder = os.path.join(proc_root, str(pid))
    program = _program(os.path.join(folder, "exe"))
    name = _first_line(os.path.join(folder, "comm"))
    cgroup = _cgroup(os.path.join(folder, "cgroup"))
    units = _UNIT.findall(cgroup or "")
    unit = units[-1] if units else None
    return Holder(
        pid=pid,
        program=program,
        name=name,
        unit=unit,
        kind=kind_of(program, name, unit),
        nodes=nodes,
        stop=how_to_stop(pid, cgroup, unit),
    )


def kind_of(program: str | None, name: str | None, unit: str | None = None) -> str:
    file = os.path.basename(program) if program else None
    for kind, known in _KINDS.items():
        if file in known or (name and name in {entry[:_COMM_LENGTH] for entry in known}):
            return kind
    return _UNIT_KINDS.get(unit or "", PROGRAM)


def how_to_stop(pid: int, cgroup: str | None, unit: str | None) -> str:
    """In words, for people: what started it is what should end it."""
    container = _CONTAINER.search(cgroup or "")
    if cgroup and "kubepods" in cgroup:
        return "drain the node, or delete the pod that it is in"
    if container:
        tool = "podman" if container.group(1) == "libpod" else "docker"
        if container.group(1) in ("docker", "libpod"):
            return f"{tool} stop {container.group(2)}"
        return f"stop the container {container.group(2)}"
    user = re.search(r"/user@([0-9]+)\.service/", cgroup or "")
    if unit and unit.endswith(".service"):
        if user and not unit.startswith("user@"):
            return f"systemctl --user --machine={user.group(1)}@.host stop {unit}"
        if not unit.startswith("user@"):
            return f"systemctl stop {unit}"
    return f"end it in the session that it belongs to ({unit}), or: kill {pid}" if unit else f"kill {pid}"


def describe(holder: Holder) -> str:
    """One line for error texts."""
    nodes = ", ".join(f"/dev/{node}" for node in holder.nodes) or "a GPU, says NVML"
    kind = "" if holder.kind == PROGRAM else f", {holder.kind.replace('_', ' ')}"
    unit = f", unit {holder.unit}" if holder.unit else ""
    command = holder.program or holder.name or "unknown program"
    return f"pid {holder.pid} ({command}{kind}{unit}) holds {nodes}; to stop it: {holder.stop}"


def _program(path: str) -> str | None:
    try:
        target = os.readlink(path)
    except OSError:
        # Kernel threads have none, and a process that ended has none left.
        return None
    return target[: -len(" (deleted)")] if target.endswith(" (deleted)") else target


def _first_line(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().rstrip("\n") or None
    except OSError:
        # It ended: what it was called is then not known.
        return None


def _cgroup(path: str) -> str | None:
    """The process's group in systemd's tree: the only one of version 2, the one named systemd of version 1."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return None
    for wanted in ("", "name=systemd"):
        for line in lines:
            if len(line) == 3 and line[1] == wanted and line[2] not in ("", "/"):
                return line[2]
    return None
