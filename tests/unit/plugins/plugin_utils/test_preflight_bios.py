# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""BIOS attributes against wishes. tests/redfish shows the same with a BMC."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.baremetal.inference.plugins.filter.preflight_bios import FilterModule, preflight_bios
from ansible_collections.baremetal.inference.plugins.plugin_utils import _preflight_bios as bios

from tests.unit.plugins.plugin_utils import preflight_example as example

# As community.general.redfish_info tells them.
ONE = [[{"system_uri": "/redfish/v1/Systems/1"}, {"A": "On", "B": 4, "C": True}]]
TWO = [*ONE, [{"system_uri": "/redfish/v1/Systems/2/"}, {"A": "Off"}]]


def judged(wanted: dict[str, t.Any], **pending: t.Any) -> dict[str, t.Any]:
    (check,) = preflight_bios(ONE, wanted, pending=pending)["checks"]
    return dict(check)


@pytest.mark.parametrize(
    ("wanted", "verdict"),
    [
        ({"A": "On"}, "pass"),
        ({"B": 4}, "pass"),
        ({"B": "4"}, "pass"),
        ({"C": True}, "pass"),
        ({"C": 1}, "fail"),
        ({"A": "Off"}, "fail"),
        ({"Z": "On"}, "unknown"),
    ],
)
def test_each_wish_is_judged(wanted: dict[str, t.Any], verdict: str) -> None:
    check = judged(wanted)
    assert (check["check"], check["verdict"]) == ("firmware.bios_attribute", verdict)
    assert bool(check["fix"]) == (verdict != "pass")


def test_a_yaml_truth_is_no_text_and_says_so() -> None:
    check = judged({"A": True})
    assert check["verdict"] == "fail"
    assert check["fix"].startswith("Put the wanted value in quotes")


def test_what_is_pending_waits_for_a_reboot() -> None:
    check = judged({"A": "Off"}, A="Off")
    assert (check["verdict"], check["observed"]) == ("warn", "On now, Off after the next reboot")
    assert judged({"A": "Off"}, A="Auto")["verdict"] == "fail"


def test_only_what_differs_and_is_not_pending_is_to_be_set() -> None:
    wanted = {"A": "Off", "B": 2, "C": True, "Z": 1}
    found = preflight_bios(ONE, wanted, pending={"A": "Off", "B": 4, "C": True})
    assert found["differing"] == {"A": "Off", "B": 2}
    assert found["to_set"] == {"B": 2}
    assert found["unknown"] == ["BIOS attribute Z: the BMC has no such attribute"]
    assert found["system_uri"] == "/redfish/v1/Systems/1"


@pytest.mark.parametrize(
    ("entries", "system", "said"),
    [
        (TWO, "", "the BMC has 2 systems (1, 2); name one in 'system'"),
        (TWO, "3", "the BMC has no system '3'; it has 1, 2"),
        ([], "", "the BMC has 0 systems (none)"),
    ],
)
def test_a_system_that_cannot_be_told_is_unknown(entries: t.Any, system: str, said: str) -> None:
    found = preflight_bios(entries, {"A": "On"}, system=system)
    assert found["checks"][0]["verdict"] == "unknown"
    assert said in found["checks"][0]["observed"]
    assert (found["differing"], found["to_set"], found["system_uri"]) == ({}, {}, "")
    assert found["unknown"]


def test_one_of_several_systems_is_chosen_by_its_id() -> None:
    assert preflight_bios(TWO, {"A": "On"}, system="2")["differing"] == {"A": "On"}


def test_the_result_with_the_checks_is_summed_up_anew() -> None:
    before = example.result()
    found = preflight_bios(ONE, {"A": "Off", "B": 4}, preflight=before)["preflight"]
    assert len(found["checks"]) == len(before["checks"]) + 2
    assert found["verdict"] == "fail"
    assert found["counts"] == {**before["counts"], "fail": 1, "pass": before["counts"]["pass"] + 1}
    assert before["verdict"] != "fail"
    every = dict.fromkeys(("pass", "info", "skipped", "unknown", "warn", "fail"), 0)
    assert bios.with_checks({"checks": [], "counts": every}, [])["counts"] == every


def test_the_filter_is_found_by_its_name() -> None:
    assert FilterModule().filters() == {"preflight_bios": preflight_bios}
