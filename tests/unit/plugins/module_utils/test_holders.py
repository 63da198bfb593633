# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import subprocess
import sys
import typing as t
from dataclasses import asdict
from pathlib import Path

import pytest

from ansible_collections.baremetal.inference.plugins.module_utils import _holders
from ansible_collections.baremetal.inference.plugins.module_utils._holders import (
    HoldersUnseen,
    describe,
    find_holders,
    kind_of,
)


class Proc:
    """A process tree with the files that are looked at."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.add(1, "/usr/lib/systemd/systemd", "systemd", "0::/init.scope")

    def add(
        self, pid: int, program: str, name: str, cgroup: str, nodes: t.Sequence[str] = (), mapped: str = ""
    ) -> Path:
        folder = self.root / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "exe").symlink_to(program)
        (folder / "comm").write_text(name + "\n")
        (folder / "cgroup").write_text(cgroup + "\n")
        # Arguments hold what nobody may see.
        (folder / "cmdline").write_text(f"{program}\0--api-key\0secret-in-argv\0")
        (folder / "maps").write_text(f"7f00-7f01 rw-s 00000000 00:05 449    {mapped}\n" if mapped else "")
        (folder / "fd/0").symlink_to("/dev/null")
        for number, node in enumerate(nodes, start=3):
            (folder / "fd" / str(number)).symlink_to(node)
        return folder


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_nobody(proc: Proc) -> None:
    proc.add(700, "/usr/bin/bash", "bash", "0::/user.slice/user-1000.slice/session-3.scope", ["/dev/pts/0"])
    assert find_holders(str(proc.root)) == []


def test_holders_with_what_they_hold(proc: Proc) -> None:
    proc.add(
        4242,
        "/opt/vllm/bin/python3.12",
        "VLLM::Worker",
        "0::/system.slice/vllm@main.service",
        ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia10", "/dev/nvidia2", "/dev/nvidia2", "/dev/zero"],
    )
    proc.add(
        900,
        "/usr/bin/nvidia-persistenced",
        "nvidia-persiste",
        "0::/system.slice/nvidia-persistenced.service",
        ["/dev/nvidia0", "/dev/nvidia-modeset"],
    )
    daemon, worker = find_holders(str(proc.root))
    assert (daemon.pid, daemon.kind, daemon.unit) == (900, "persistence_daemon", "nvidia-persistenced.service")
    assert daemon.stop == "systemctl stop nvidia-persistenced.service"
    assert asdict(worker) == {
        "pid": 4242,
        "program": "/opt/vllm/bin/python3.12",
        "name": "VLLM::Worker",
        "unit": "vllm@main.service",
        "kind": "program",
        "nodes": ("nvidia2", "nvidia10", "nvidia-uvm", "nvidiactl"),
        "stop": "systemctl stop vllm@main.service",
    }
    text = describe(worker)
    assert "pid 4242 (/opt/vllm/bin/python3.12, unit vllm@main.service) holds /dev/nvidia2, /dev/nvidia10" in text
    assert "secret" not in text


@pytest.mark.parametrize(
    ("target", "node"),
    [
        ("/dev/nvidia0", "nvidia0"),
        ("/dev/nvidia0 (deleted)", "nvidia0"),
        ("/dev/nvidiactl", "nvidiactl"),
        ("/dev/nvidia-uvm-tools", "nvidia-uvm-tools"),
        ("/dev/nvidia-nvswitch3", "nvidia-nvswitch3"),
        ("/dev/nvidia-nvswitchctl", "nvidia-nvswitchctl"),
        ("/dev/nvidia-caps/nvidia-cap12", "nvidia-caps/nvidia-cap12"),
        # As another mount namespace names it.
        ("/host/dev/nvidia1", "nvidia1"),
        ("/dev/nvidia", None),
        ("/dev/nvidia0.txt", None),
        ("/srv/x/nvidia0", None),
        ("/var/log/nvidia-installer.log", None),
        ("socket:[12345]", None),
    ],
)
def test_nodes(proc: Proc, target: str, node: str | None) -> None:
    proc.add(50, "/usr/bin/x", "x", "0::/system.slice/x.service", [target])
    assert [holder.nodes for holder in find_holders(str(proc.root))] == ([(node,)] if node else [])


def test_mapping_without_a_descriptor(proc: Proc) -> None:
    proc.add(50, "/usr/bin/x", "x", "0::/", mapped="/dev/nvidia3")
    (holder,) = find_holders(str(proc.root))
    assert (holder.nodes, holder.unit, holder.stop) == (("nvidia3",), None, "kill 50")


def test_own_process_and_those_that_nvml_names(proc: Proc) -> None:
    proc.add(60, "/usr/bin/python3", "python3", "0::/", ["/dev/nvidia0"])
    proc.add(61, "/usr/bin/app", "app", "0::/system.slice/app.service")
    assert [holder.pid for holder in find_holders(str(proc.root), ignore_pids={60})] == []
    (holder,) = find_holders(str(proc.root), nvml_pids={61}, ignore_pids={60})
    assert (holder.pid, holder.nodes) == (61, ())
    assert "holds a GPU, says NVML" in describe(holder)


def test_process_that_only_nvml_knows(proc: Proc) -> None:
    with pytest.raises(HoldersUnseen, match="NVML says that process 4711 uses a GPU") as caught:
        find_holders(str(proc.root), nvml_pids={4711})
    assert caught.value.reason == "holders_unseen"


@pytest.mark.parametrize(
    ("program", "name", "unit", "kind"),
    [
        # A helper of a daemon, and a script that stands for one.
        ("/usr/bin/nvlsm", "nvlsm", "nvidia-fabricmanager.service", "fabric_manager"),
        ("/usr/bin/bash", "bash", "nvidia-persistenced.service", "persistence_daemon"),
        ("/usr/bin/bash", "bash", "nvidia-dcgm.service", "exporter"),
        ("/usr/bin/bash", "bash", "other.service", "program"),
        ("/usr/bin/nvidia-persistenced", "nvidia-persiste", None, "persistence_daemon"),
        ("/usr/bin/nv-fabricmanager", "nv-fabricmanage", None, "fabric_manager"),
        (None, "nv-fabricmanage", None, "fabric_manager"),
        ("/usr/bin/nv-hostengine", "nv-hostengine", None, "exporter"),
        ("/usr/bin/dcgm-exporter", "dcgm-exporter", None, "exporter"),
        ("/usr/local/bin/nvidia_gpu_exporter", "nvidia_gpu_expo", None, "exporter"),
        ("/usr/bin/nvidia-smi", "nvidia-smi", None, "exporter"),
        ("/usr/lib/xorg/Xorg", "Xorg", None, "display"),
        ("/usr/bin/python3.12", "python3", None, "program"),
        (None, None, None, "program"),
    ],
)
def test_kinds(program: str | None, name: str | None, unit: str | None, kind: str) -> None:
    assert kind_of(program, name, unit) == kind


DOCKER = "docker-" + "0123456789abcdef" * 4 + ".scope"


@pytest.mark.parametrize(
    ("cgroup", "unit", "stop"),
    [
        ("0::/system.slice/dcgm.service", "dcgm.service", "systemctl stop dcgm.service"),
        # Version 1 has a line per controller.
        (
            "12:devices:/system.slice/x.service\n1:name=systemd:/system.slice/dcgm.service\n0::/",
            "dcgm.service",
            "systemctl stop dcgm.service",
        ),
        (f"0::/system.slice/{DOCKER}", DOCKER, "docker stop 0123456789ab"),
        (
            f"0::/machine.slice/libpod-{'ab' * 32}.scope/container",
            f"libpod-{'ab' * 32}.scope",
            "podman stop abababababab",
        ),
        (
            "0::/kubepods.slice/kubepods-burstable.slice/cri-containerd-" + "cd" * 32 + ".scope",
            "cri-containerd-" + "cd" * 32 + ".scope",
            "drain the node, or delete the pod that it is in",
        ),
        (
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/jupyter.service",
            "jupyter.service",
            "systemctl --user --machine=1000@.host stop jupyter.service",
        ),
        (
            "0::/user.slice/user-1000.slice/session-3.scope",
            "session-3.scope",
            "end it in the session that it belongs to (session-3.scope), or: kill 77",
        ),
        ("0::/", None, "kill 77"),
    ],
)
def test_units_and_how_to_stop_them(proc: Proc, cgroup: str, unit: str | None, stop: str) -> None:
    proc.add(77, "/usr/bin/x", "x", cgroup, ["/dev/nvidia0"])
    (holder,) = find_holders(str(proc.root))
    assert (holder.unit, holder.stop) == (unit, stop)


def test_a_service_that_replaced_its_program(proc: Proc) -> None:
    proc.add(50, "/usr/bin/nv-hostengine (deleted)", "nv-hostengine", "0::/", ["/dev/nvidia0"])
    (holder,) = find_holders(str(proc.root))
    assert (holder.program, holder.kind) == ("/usr/bin/nv-hostengine", "exporter")


def test_what_cannot_be_seen_is_refused(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    proc.add(50, "/usr/bin/x", "x", "0::/", ["/dev/nvidia0"])
    real = os.listdir

    def refuse(path: str) -> list[str]:
        if str(path).endswith("/50/fd"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(HoldersUnseen, match="process 50 .* become: true") as caught:
        find_holders(str(proc.root))
    assert caught.value.reason == "no_permission"


def test_hidden_processes_are_refused(proc: Proc) -> None:
    for file in sorted((proc.root / "1").rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() and not file.is_symlink() else file.unlink()
    (proc.root / "1").rmdir()
    with pytest.raises(HoldersUnseen, match="does not show process 1"):
        find_holders(str(proc.root))


def test_tree_that_is_not_there() -> None:
    with pytest.raises(HoldersUnseen, match="proc_root: '/surely/not/there' cannot be read") as caught:
        find_holders("/surely/not/there")
    assert caught.value.reason == "invalid_proc_root"


def test_process_that_ends_while_it_is_looked_at(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    proc.add(50, "/usr/bin/x", "x", "0::/", ["/dev/nvidia0"])
    monkeypatch.setattr(_holders, "_pids", lambda root: [1, 50, 51])
    assert [holder.pid for holder in find_holders(str(proc.root))] == [50]


@pytest.mark.parametrize("mapped", [False, True])
def test_a_real_process(tmp_path: Path, mapped: bool) -> None:
    """The kernel's own links and maps, of a file that is called as the node is."""
    node = tmp_path / "dev" / "nvidia0"
    node.parent.mkdir()
    node.write_bytes(b"x" * 4096)
    keep = "kept = mmap.mmap(file.fileno(), 4096); file.close()" if mapped else "kept = file"
    program = (
        f"import mmap, sys; file = open({str(node)!r}, 'r+b'); {keep}; print('ready', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, "secret-in-argv"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"ready\n"
        assert _holders._nodes_of("/proc", process.pid) == ("nvidia0",)
        holder = _holders._holder("/proc", process.pid, ("nvidia0",))
        process.stdin.close()
    assert holder.program == os.path.realpath(sys.executable)
    assert "secret" not in str(holder)
    # It has ended.
    assert _holders._nodes_of("/proc", process.pid) is None
