# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.baremetal.inference.plugins.module_utils._gpu_errors import GpuFailure
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_model import GpuIdentity, PowerState
from ansible_collections.baremetal.inference.plugins.module_utils._power import (
    WantedLimit,
    enforced_below_requested,
    same_limit,
    wanted_watts,
)

GPU = GpuIdentity(index=3, uuid="GPU-3", pci_bus_id="0000:4e:00.0")


def power(
    requested: float | None = 400.0,
    enforced: float | None = 400.0,
    default: float | None = 400.0,
    smallest: float | None = 100.0,
    largest: float | None = 400.0,
) -> PowerState:
    return PowerState(
        usage_watts=52.0,
        limit_requested_watts=requested,
        limit_enforced_watts=enforced,
        limit_default_watts=default,
        limit_min_watts=smallest,
        limit_max_watts=largest,
    )


@pytest.mark.parametrize(
    ("wanted", "watts"),
    [
        (WantedLimit(watts=300), 300.0),
        (WantedLimit(watts=100), 100.0),
        (WantedLimit(watts=400), 400.0),
        (WantedLimit(percent=80), 320.0),
        (WantedLimit(percent=33.3), 133.0),
        (WantedLimit(named="default"), 400.0),
        (WantedLimit(named="max"), 400.0),
    ],
)
def test_wanted(wanted: WantedLimit, watts: float) -> None:
    assert wanted_watts(GPU, power(), wanted) == watts


def test_default_and_max_come_from_the_card() -> None:
    # A board of the same name with another default, as they exist (500 W beside 400 W).
    other = power(default=450.5, largest=500.0)
    assert wanted_watts(GPU, other, WantedLimit(named="default")) == 450.5
    assert wanted_watts(GPU, other, WantedLimit(named="max")) == 500.0
    assert wanted_watts(GPU, other, WantedLimit(percent=100)) == 450.0


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (WantedLimit(watts=99), "watts: 99 is 99 W"),
        (WantedLimit(watts=401), "watts: 401 is 401 W"),
        (WantedLimit(percent=120), "percent: 120 is 480 W"),
        (WantedLimit(percent=1), "percent: 1 is 4 W"),
    ],
)
def test_out_of_range(wanted: WantedLimit, told: str) -> None:
    with pytest.raises(GpuFailure) as caught:
        wanted_watts(GPU, power(), wanted)
    assert caught.value.reason == "power_limit_out_of_range"
    assert told in caught.value.msg
    assert "GPU 3 (0000:4e:00.0)" in caught.value.msg
    assert "100 W to 400 W" in caught.value.msg
    assert caught.value.fields["limit_max_watts"] == 400.0


@pytest.mark.parametrize("missing", ["requested", "smallest", "largest"])
def test_a_gpu_without_limits(missing: str) -> None:
    with pytest.raises(GpuFailure) as caught:
        wanted_watts(GPU, power(**{missing: None}), WantedLimit(watts=300))
    assert caught.value.reason == "power_limit_not_supported"
    assert "not reported" in caught.value.msg


@pytest.mark.parametrize("wanted", [WantedLimit(percent=80), WantedLimit(named="default")])
def test_no_default_is_known(wanted: WantedLimit) -> None:
    with pytest.raises(GpuFailure, match="does not report its default"):
        wanted_watts(GPU, power(default=None), wanted)


def test_no_default_is_needed_for_watts() -> None:
    assert wanted_watts(GPU, power(default=None), WantedLimit(watts=300)) == 300.0


@pytest.mark.parametrize(
    ("requested", "enforced", "below"),
    [(400.0, 400.0, False), (400.0, 399.7, False), (400.0, 350.0, True), (300.0, 400.0, False), (400.0, None, False)],
)
def test_enforced_below_requested(requested: float, enforced: float | None, below: bool) -> None:
    assert enforced_below_requested(power(requested=requested, enforced=enforced)) is below


def test_rounding_is_no_difference() -> None:
    assert same_limit(300.0, 300.4)
    assert not same_limit(300.0, 301.0)
    assert not same_limit(None, None)
