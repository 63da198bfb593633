# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The whole module in processes of its own on the simulated library."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.baremetal.inference.plugins.modules import gpu_power_limit

if t.TYPE_CHECKING:
    from tests.unit.conftest import SimulatedHost

    Undocumented = t.Callable[[t.Any, t.Mapping[str, t.Any], str], list[str]]


def column(result: t.Mapping[str, t.Any], name: str) -> list[t.Any]:
    return [gpu[name] for gpu in result["gpus"]]


def test_set_once_and_no_more(simulated_host_on_every_python: SimulatedHost, undocumented: Undocumented) -> None:
    host = simulated_host_on_every_python
    host.create("dgx-a100-80gb")
    host.run("gpu_persistence_mode")

    foreseen = host.run("gpu_power_limit", percent=80, check_mode=True, diff=True)
    assert foreseen["changed"]
    assert set(foreseen["diff"]["before"].values()) == {400.0}
    assert set(foreseen["diff"]["after"].values()) == {320.0}
    assert column(foreseen, "limit_enforced_watts") == [None] * 8, "what would be enforced, nobody knows"
    assert not host.run("gpu_power_limit", limit="default")["changed"], "check mode changed nothing"

    changed = host.run("gpu_power_limit", percent=80)
    assert undocumented(gpu_power_limit, changed, "success") == []
    assert column(changed, "changed") == [True] * 8
    assert column(changed, "limit_requested_watts") == column(changed, "limit_enforced_watts") == [320.0] * 8
    assert "warnings" not in changed

    assert not host.run("gpu_power_limit", percent=80)["changed"]
    assert not host.run("gpu_power_limit", watts=320)["changed"]
    assert host.run("gpu_power_limit", limit="max")["changed"]
    assert not host.run("gpu_power_limit", limit="default")["changed"]


def test_limits_of_each_card_are_its_own(simulated_host: SimulatedHost) -> None:
    simulated_host.create("dgx-a100-80gb", "--gpus", "2")
    # A board of the same name with another limit, as there are.
    for key in ("default_limit", "max_limit", "limit"):
        simulated_host.set(f"gpu1/power/{key}", 500000)
    result = simulated_host.run("gpu_power_limit", percent=50)
    assert column(result, "wanted_watts") == [200.0, 250.0]
    refused = simulated_host.run("gpu_power_limit", watts=450)
    assert refused["reason"] == "power_limit_out_of_range" and refused["gpu"]["index"] == 0
    assert column(simulated_host.run("gpu_power_limit", percent=50), "changed") == [False, False], "both left alone"


def test_the_bmc_holds_it_lower(simulated_host: SimulatedHost) -> None:
    simulated_host.create("dgx-a100-80gb", "--gpus", "2")
    simulated_host.run("gpu_persistence_mode")
    simulated_host.set("gpu1/power/enforced_cap", 250000)
    first = simulated_host.run("gpu_power_limit", watts=300)
    assert first["changed"]
    for result in (first, simulated_host.run("gpu_power_limit", watts=300)):
        assert column(result, "limit_requested_watts") == [300.0, 300.0]
        assert column(result, "limit_enforced_watts") == [300.0, 250.0]
        assert column(result, "enforced_below_requested") == [False, True]
        (warning,) = result["warnings"]
        assert "GPU 1 (0000:0f:00.0): 300 W are asked for and 250 W are enforced" in warning
    assert not simulated_host.run("gpu_power_limit", watts=300)["changed"], "the driver has what was asked for"


def test_a_limit_that_will_not_last_is_told(simulated_host: SimulatedHost) -> None:
    simulated_host.create("dgx-a100-80gb", "--gpus", "2")
    (warning,) = simulated_host.run("gpu_power_limit", watts=300)["warnings"]
    assert "Persistence mode is off" in warning and "GPU 0 (0000:07:00.0), GPU 1" in warning
    assert "warnings" not in simulated_host.run("gpu_power_limit", limit="default"), "the default comes back by itself"


def test_lost_at_reboot_and_set_again(simulated_host: SimulatedHost) -> None:
    simulated_host.create("dgx-a100-80gb", "--gpus", "2")
    simulated_host.run("gpu_power_limit", watts=300)
    simulated_host.tool("reboot")
    assert column(simulated_host.run("gpu_power_limit", watts=300), "changed") == [True, True]


def test_half_of_it_fails_and_a_rerun_converges(simulated_host: SimulatedHost, undocumented: Undocumented) -> None:
    simulated_host.create("dgx-a100-80gb")
    simulated_host.fault("nvmlDeviceSetPowerManagementLimit gpu3 = UNKNOWN once")
    result = simulated_host.run("gpu_power_limit", watts=300)
    assert result["failed"] and result["changed"]
    assert undocumented(gpu_power_limit, result, "failure") == []
    assert result["failed_gpus"] == ["0000:4e:00.0"] and len(result["changed_gpus"]) == 7
    assert column(result, "limit_requested_watts") == [300.0] * 3 + [400.0] + [300.0] * 4
    assert column(simulated_host.run("gpu_power_limit", watts=300), "changed") == [False] * 3 + [True] + [False] * 4


def test_not_root(simulated_host: SimulatedHost) -> None:
    simulated_host.create("dgx-a100-80gb")
    simulated_host.fault("nvmlDeviceSetPowerManagementLimit = NO_PERMISSION")
    result = simulated_host.run("gpu_power_limit", watts=300)
    assert result["reason"] == "no_permission" and result["changed"] is False
    assert not simulated_host.run("gpu_power_limit", limit="default")["changed"], "reading needs no root"


def test_a_gpu_without_a_limit(simulated_host: SimulatedHost) -> None:
    simulated_host.create("dgx-a100-80gb", "--gpus", "2")
    simulated_host.set("gpu1/power/min_limit", "!NOT_SUPPORTED")
    result = simulated_host.run("gpu_power_limit", watts=300)
    assert result["reason"] == "power_limit_not_supported" and result["gpu"]["index"] == 1
    assert not simulated_host.run("gpu_power_limit", limit="default", gpus=["0"])["changed"]


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"watts": 99}, "the card allows 100 W to 400 W (default 400 W)"),
        ({"watts": 401}, "the card allows 100 W to 400 W (default 400 W)"),
        ({"watts": 0}, "watts: 0 is no power limit"),
        ({"watts": -300}, "watts: -300 is no power limit"),
        ({"percent": 101}, "percent: 101 is 404 W"),
        ({"percent": "nan"}, "percent: nan is no power limit"),
        ({"percent": "inf"}, "percent: inf is no power limit"),
        ({"watts": 300, "percent": 80}, "mutually exclusive"),
        ({}, "one of the following is required: watts, percent, limit"),
        ({"limit": "min"}, "value of limit must be one of: default, max, got: min"),
        ({"watts": "300W"}, "300W"),
    ],
)
def test_wishes_that_are_wrong(simulated_host: SimulatedHost, params: dict[str, t.Any], told: str) -> None:
    simulated_host.create("dgx-a100-80gb", "--gpus", "2")
    result = simulated_host.run("gpu_power_limit", **params)
    assert result["failed"] and told in result["msg"]
    assert not simulated_host.run("gpu_power_limit", limit="default")["changed"], "nothing was changed"


def test_the_driver_says_yes_and_does_no(simulated_host: SimulatedHost) -> None:
    simulated_host.create("dgx-a100-80gb", "--gpus", "2")
    simulated_host.fault("nvmlDeviceSetPowerManagementLimit gpu0 = SUCCESS")
    result = simulated_host.run("gpu_power_limit", watts=300)
    assert result["reason"] == "not_taken" and result["failed_gpus"] == ["0000:07:00.0"]
    assert result["changed_gpus"] == ["0000:0f:00.0"] and column(result, "changed") == [False, True]
