# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A host without pynvml gets it, although the module does not fail there."""

from __future__ import annotations

import typing as t
from types import SimpleNamespace

import pytest

from ansible.plugins.action import ActionBase
from ansible_collections.baremetal.inference.plugins.action.gpu_preflight import ActionModule
from ansible_collections.baremetal.inference.plugins.plugin_utils import _nvml_action


class Action(ActionModule):
    """The connection's part replaced."""

    def __init__(self, *results: dict[str, t.Any]) -> None:
        self._task = SimpleNamespace(args={"gpu_count": 8})
        self._connection = SimpleNamespace(
            _shell=SimpleNamespace(tmpdir="/remote", join_path=lambda *parts: "/".join(parts))
        )
        self.results = list(results)
        self.arguments: list[t.Any] = []

    def _execute_module(self, module_args: t.Any = None, task_vars: t.Any = None, **unused: t.Any) -> dict[str, t.Any]:
        self.arguments.append(module_args)
        return dict(self.results.pop(0))

    def _transfer_file(self, local_path: str, remote_path: str) -> str:
        return remote_path

    def _fixup_perms2(self, remote_paths: t.Any, remote_user: t.Any = None, execute: bool = True) -> None:
        pass


@pytest.fixture(autouse=True)
def controller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActionBase, "run", lambda self, tmp=None, task_vars=None: {})
    monkeypatch.setattr(_nvml_action, "controller_pynvml", lambda: "/site/pynvml.py")


def test_a_report_that_lacks_nvml_is_made_again() -> None:
    action = Action(
        {"changed": False, "reason": "python_library_missing", "verdict": "unknown"},
        {"changed": False, "reason": None, "verdict": "info"},
    )
    assert action.run() == {"changed": False, "reason": None, "verdict": "info"}
    assert action.arguments == [None, {"gpu_count": 8, "pynvml_path": "/remote/pynvml.py"}]


@pytest.mark.parametrize("reason", [None, "driver_not_loaded"])
def test_any_other_report_is_the_report(reason: str | None) -> None:
    action = Action({"changed": False, "reason": reason, "verdict": "info"})
    assert action.run()["reason"] == reason
    assert len(action.arguments) == 1
