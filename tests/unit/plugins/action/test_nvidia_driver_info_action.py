# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module tells the reason by which its action part knows that the host lacks pynvml, and goes on without it."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.baremetal.inference.plugins.action.nvidia_driver_info import ActionModule
from ansible_collections.baremetal.inference.plugins.module_utils import _driver
from ansible_collections.baremetal.inference.plugins.module_utils._nvml import NvmlFailure
from ansible_collections.baremetal.inference.plugins.plugin_utils._nvml_action import NvmlActionBase


def test_it_is_an_nvml_action() -> None:
    assert issubclass(ActionModule, NvmlActionBase)


def test_a_host_without_pynvml(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str | None) -> t.NoReturn:
        raise NvmlFailure(f"no pynvml at {path}", reason="python_library_missing")

    monkeypatch.setattr(_driver, "nvml_session", refuse)
    session = _driver.ask_nvml("/remote/pynvml.py")
    assert (session.gpus, session.library) == (None, None)
    assert session.failure is not None and session.failure.reason == "python_library_missing"
