# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The whole module in processes of its own on the simulated library."""

from __future__ import annotations

import typing as t

from ansible_collections.baremetal.inference.plugins.modules import gpu_persistence_mode

if t.TYPE_CHECKING:
    from tests.unit.conftest import SimulatedHost

    Undocumented = t.Callable[[t.Any, t.Mapping[str, t.Any], str], list[str]]


def column(result: t.Mapping[str, t.Any], name: str) -> list[t.Any]:
    return [gpu[name] for gpu in result["gpus"]]


def test_set_once_and_no_more(simulated_host_on_every_python: SimulatedHost, undocumented: Undocumented) -> None:
    host = simulated_host_on_every_python
    host.create("dgx-a100-80gb")
    foreseen = host.run("gpu_persistence_mode", check_mode=True, diff=True)
    assert set(foreseen["diff"]["before"].values()) == {"disabled"}
    changed = host.run("gpu_persistence_mode", diff=True)
    assert changed == foreseen, "what was foreseen came true, and nothing had been changed by foreseeing"
    assert undocumented(gpu_persistence_mode, changed, "success") == []
    assert column(changed, "changed") == [True] * 8
    assert not host.run("gpu_persistence_mode")["changed"]
    one = host.run("gpu_persistence_mode", state="disabled", gpus=["0000:0f:00.0"])
    assert column(one, "index") == [1]
    host.tool("reboot")
    assert column(host.run("gpu_persistence_mode", check_mode=True), "changed") == [True] * 8


def test_half_of_it_fails_and_a_rerun_converges(simulated_host: SimulatedHost, undocumented: Undocumented) -> None:
    simulated_host.create("dgx-a100-80gb")
    simulated_host.fault("nvmlDeviceSetPersistenceMode gpu7 = GPU_IS_LOST once")
    result = simulated_host.run("gpu_persistence_mode")
    assert undocumented(gpu_persistence_mode, result, "failure") == []
    assert result["reason"] == "gpu_lost" and result["failed_gpus"] == ["0000:bd:00.0"]
    assert column(simulated_host.run("gpu_persistence_mode"), "changed") == [False] * 7 + [True]


def test_a_gpu_without_it(simulated_host: SimulatedHost) -> None:
    simulated_host.create("dgx-a100-80gb", "--gpus", "2")
    simulated_host.set("gpu1/persistence_mode", "!NOT_SUPPORTED")
    result = simulated_host.run("gpu_persistence_mode")
    assert result["reason"] == "persistence_mode_not_supported" and result["gpu"]["index"] == 1
    assert simulated_host.run("gpu_persistence_mode", gpus=["0"], check_mode=True)["changed"], "GPU 0 was left alone"


def test_the_driver_says_yes_and_does_no(simulated_host: SimulatedHost) -> None:
    simulated_host.create("dgx-a100-80gb", "--gpus", "2")
    simulated_host.fault("nvmlDeviceSetPersistenceMode gpu0 = SUCCESS")
    result = simulated_host.run("gpu_persistence_mode")
    assert result["reason"] == "not_taken" and result["failed_gpus"] == ["0000:07:00.0"]
    assert result["changed_gpus"] == ["0000:0f:00.0"] and column(result, "changed") == [False, True]
