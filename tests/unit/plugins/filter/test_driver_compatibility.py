# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The filter as a playbook calls it."""

from __future__ import annotations

import typing as t

import pytest

from ansible.errors import AnsibleFilterError
from ansible_collections.baremetal.inference.plugins.filter.driver_compatibility import (
    FilterModule,
    driver_compatibility,
)
from ansible_collections.baremetal.inference.plugins.module_utils._compatibility import judge

ENGINE = {"engine": "0.33.0", "cuda": "13.0"}
TODAY = "2026-11-30"


def test_the_filter_is_found_by_its_name() -> None:
    assert FilterModule().filters() == {"driver_compatibility": driver_compatibility}


@pytest.mark.parametrize("driver", ["580.159.04", "535.104.05", None])
def test_it_says_what_the_function_says(driver: str | None) -> None:
    host = {"driver": driver, "gpus": [{"architecture": "ampere", "data_center": True}]}
    assert driver_compatibility(ENGINE, host, TODAY) == judge(ENGINE, host, TODAY)


@pytest.mark.parametrize(
    ("engine", "host", "today", "said"),
    [
        ({**ENGINE, "cuda": 13.0}, {}, TODAY, "driver_compatibility: engine.cuda is 13.0"),
        (ENGINE, {"driver": "newest"}, TODAY, "driver_compatibility: host.driver is 'newest'"),
        (ENGINE, {}, "today", "driver_compatibility: today is 'today'"),
    ],
)
def test_what_makes_no_sense_is_an_error_of_the_filter(engine: t.Any, host: t.Any, today: str, said: str) -> None:
    with pytest.raises(AnsibleFilterError) as caught:
        driver_compatibility(engine, host, today)
    assert said in str(caught.value)
