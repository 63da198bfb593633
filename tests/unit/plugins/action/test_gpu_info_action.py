# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import typing as t
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace

import pytest

from ansible.plugins.action import ActionBase
from ansible_collections.baremetal.inference.plugins.action.gpu_info import ActionModule
from ansible_collections.baremetal.inference.plugins.plugin_utils import _nvml_action

ROOT = Path(__file__).resolve().parents[4]
MISSING = {"failed": True, "reason": "python_library_missing", "msg": "pip install nvidia-ml-py"}
FOUND = {"changed": False, "gpu_count": 8}


class Action(ActionModule):
    """The action with the connection's part replaced: what was run, sent and made readable is noted."""

    def __init__(self, results: list[dict[str, t.Any]], tmpdir: str | None = None, **args: t.Any) -> None:
        self._task = SimpleNamespace(args=args)
        self._connection = SimpleNamespace(
            _shell=SimpleNamespace(tmpdir=tmpdir, join_path=lambda *parts: "/".join(parts))
        )
        self.results = results
        self.log: list[t.Any] = []

    def _execute_module(self, module_args: t.Any = None, task_vars: t.Any = None, **unused: t.Any) -> dict[str, t.Any]:
        self.log.append(("run", self._task.args.copy() if module_args is None else module_args))
        # As Ansible does: it adds its own arguments to those of the task.
        self._task.args["_ansible_check_mode"] = False
        return dict(self.results.pop(0))

    def _make_tmp_path(self, remote_user: t.Any = None) -> str:
        self.log.append("mkdir")
        return "/remote/made"

    def _transfer_file(self, local_path: str, remote_path: str) -> str:
        self.log.append(("send", local_path, remote_path))
        return remote_path

    def _fixup_perms2(self, remote_paths: t.Any, remote_user: t.Any = None, execute: bool = True) -> None:
        self.log.append(("readable", list(remote_paths), execute))


@pytest.fixture(autouse=True)
def base_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActionBase, "run", lambda self, tmp=None, task_vars=None: {})


def installed(monkeypatch: pytest.MonkeyPatch, origin: str | None) -> None:
    spec = None if origin is None else ModuleSpec("pynvml", None, origin=origin)
    monkeypatch.setattr(_nvml_action.importlib.util, "find_spec", lambda name: spec)


@pytest.mark.parametrize("result", [FOUND, {"failed": True, "reason": "driver_not_loaded", "msg": "..."}])
def test_host_that_has_the_library_costs_one_run(monkeypatch: pytest.MonkeyPatch, result: dict[str, t.Any]) -> None:
    installed(monkeypatch, "/controller/pynvml.py")
    action = Action([result], gpus=["0"])
    assert action.run() == result
    assert action.log == [("run", {"gpus": ["0"]})]


@pytest.mark.parametrize(("tmpdir", "made"), [(None, ["mkdir"]), ("/remote/tmp", [])])
def test_host_without_it_gets_the_controllers(
    monkeypatch: pytest.MonkeyPatch, tmpdir: str | None, made: list[str]
) -> None:
    installed(monkeypatch, "/controller/pynvml.py")
    action = Action([MISSING, FOUND], tmpdir=tmpdir, gpus=["0"])
    assert action.run() == FOUND
    folder = tmpdir or "/remote/made"
    assert action.log == [
        ("run", {"gpus": ["0"]}),
        *made,
        ("send", "/controller/pynvml.py", f"{folder}/pynvml.py"),
        ("readable", [folder, f"{folder}/pynvml.py"], False),
        ("run", {"gpus": ["0"], "pynvml_path": f"{folder}/pynvml.py"}),
    ]


@pytest.mark.parametrize("origin", [None, "/controller/pynvml/__init__.py"])
def test_controller_without_it_leaves_the_hosts_error(monkeypatch: pytest.MonkeyPatch, origin: str | None) -> None:
    installed(monkeypatch, origin)
    action = Action([MISSING])
    assert action.run() == MISSING
    assert len(action.log) == 1


def test_a_path_that_the_user_gave_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "/controller/pynvml.py")
    action = Action([MISSING], pynvml_path="/opt/pynvml.py")
    assert action.run() == MISSING
    assert len(action.log) == 1


def test_the_installed_pynvml_stands_alone(tmp_path: Path) -> None:
    """One file is sent, so it may need nothing but the standard library."""
    origin = _nvml_action.controller_pynvml()
    assert origin is not None
    shutil.copy(origin, tmp_path)
    code = "import sys; sys.path.insert(0, sys.argv[1]); import pynvml; print(pynvml.__file__)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(tmp_path)], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == str(tmp_path / "pynvml.py")


def bare(interpreter: str, folder: Path) -> Path:
    """An interpreter that certainly has no pynvml."""
    subprocess.run([interpreter, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin/python"
    assert subprocess.run([str(python), "-c", "import pynvml"], capture_output=True, check=False).returncode != 0
    return python


def ad_hoc(python: Path | str, environment: dict[str, str], remote_tmp: Path, *extra: str) -> tuple[t.Any, str]:
    """Run the module as users do. The result, and what Ansible printed on the way."""
    command = ["ansible", "localhost", "-i", "localhost,", "-c", "local", "-m", "baremetal.inference.gpu_info", "-vvv"]
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / command[0]),
            *command[1:],
            "-e",
            f"ansible_python_interpreter={python}",
            *extra,
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
            "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
            "ANSIBLE_REMOTE_TMP": str(remote_tmp),
            "LC_ALL": "C.UTF-8",
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    marker = "localhost | SUCCESS => " if done.returncode == 0 else "localhost | FAILED! => "
    assert marker in done.stdout, done.stdout + done.stderr
    result, unused = json.JSONDecoder().raw_decode(done.stdout.split(marker, 1)[1])
    return result, done.stdout


def leftovers(remote_tmp: Path) -> list[Path]:
    return list(remote_tmp.glob("*")) if remote_tmp.exists() else []


def test_all_the_way_on_a_host_without_pynvml(nvml_sim: t.Any, interpreter: str, tmp_path: Path) -> None:
    environment = nvml_sim.environment(nvml_sim.create("a100-pcie-40gb-x4", tmp_path / "state"))
    python = bare(interpreter, tmp_path / "bare")
    result, printed = ad_hoc(python, {**environment, "ANSIBLE_PIPELINING": "true"}, tmp_path / "remote")
    assert result["gpu_count"] == 4 and result["changed"] is False
    assert len(re.findall(r"PUT \S+/pynvml\.py TO ", printed)) == 1
    assert leftovers(tmp_path / "remote") == []


def test_all_the_way_in_check_mode_without_pipelining(nvml_sim: t.Any, tmp_path: Path) -> None:
    environment = nvml_sim.environment(nvml_sim.create("a100-pcie-40gb-x4", tmp_path / "state"))
    python = bare(sys.executable, tmp_path / "bare")
    result, printed = ad_hoc(
        python, {**environment, "ANSIBLE_PIPELINING": "false"}, tmp_path / "remote", "--check", "--diff"
    )
    assert result["gpu_count"] == 4 and result["changed"] is False
    assert leftovers(tmp_path / "remote") == []


def test_all_the_way_on_a_host_with_pynvml(nvml_sim: t.Any, tmp_path: Path) -> None:
    environment = nvml_sim.environment(nvml_sim.create("a100-pcie-40gb-x4", tmp_path / "state"))
    result, printed = ad_hoc(sys.executable, environment, tmp_path / "remote")
    assert result["gpu_count"] == 4
    assert "pynvml.py TO " not in printed
