# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the role gpu_state plans: tables of wishes and facts."""

from __future__ import annotations

import copy
import typing as t

import pytest

from ansible_collections.baremetal.inference.plugins.filter.gpu_state_plan import FilterModule
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_state_plan import plan_gpu_state

WISHES: dict[str, t.Any] = {
    "gpus": ["all"],
    "ecc": "enabled",
    "ecc_allow_disabled": False,
    "power_limit": "unchanged",
    "persistence": "enabled",
    "overrides": [],
    "reboot": "never",
    "reboot_force": False,
}


def gpu(number: int, **changes: t.Any) -> dict[str, t.Any]:
    """A card as gpu_info returns it, as far as the plan reads it."""
    facts: dict[str, t.Any] = {
        "index": number,
        "uuid": f"GPU-{number}",
        "pci_bus_id": f"0000:0{number}:00.0",
        "persistence_mode": "enabled",
        "ecc": {"supported": True, "current": "enabled", "pending": "enabled", "default": "enabled"},
        "power": {
            "usage_watts": 50.0,
            "limit_requested_watts": 400.0,
            "limit_enforced_watts": 400.0,
            "limit_default_watts": 400.0,
            "limit_min_watts": 100.0,
            "limit_max_watts": 400.0,
        },
        "processes": [],
    }
    for key, value in changes.items():
        facts[key] = {**facts[key], **value} if isinstance(facts[key], dict) else value
    return facts


def plan(*gpus: dict[str, t.Any], unavailable: t.Sequence[dict[str, t.Any]] = (), **wishes: t.Any) -> dict[str, t.Any]:
    observed = {"gpus": list(gpus) or [gpu(0), gpu(1)], "unavailable_gpus": list(unavailable)}
    before = copy.deepcopy((wishes, observed))
    result = plan_gpu_state({**WISHES, **wishes}, observed)
    assert (wishes, observed) == before
    return result


def problem(*gpus: dict[str, t.Any], **wishes: t.Any) -> str:
    problems = plan(*gpus, **wishes)["problems"]
    assert len(problems) == 1, problems
    return t.cast(str, problems[0])


def process(pid: int, kind: str = "compute", name: str | None = "/usr/bin/vllm") -> dict[str, t.Any]:
    return {"pid": pid, "name": name, "type": kind, "used_memory_bytes": 1}


def test_the_filter_is_the_function() -> None:
    planned = FilterModule().filters()["gpu_state_plan"](WISHES, {"gpus": [gpu(0)], "unavailable_gpus": []})
    assert planned == plan(gpu(0))


def test_the_defaults_keep_ecc_and_persistence_and_touch_no_power_limit() -> None:
    assert plan() == {
        "problems": [],
        "ecc": [{"state": "enabled", "gpus": ["GPU-0", "GPU-1"]}],
        "power_limits": [],
        "persistent_gpus": ["GPU-0", "GPU-1"],
        "reboot_gpus": [],
        "users": [],
        "boot": {
            "version": 1,
            "gpus": [
                {
                    "uuid": f"GPU-{number}",
                    "pci_bus_id": f"0000:0{number}:00.0",
                    "persistence_mode": "enabled",
                    "power_limit": None,
                }
                for number in (0, 1)
            ],
        },
    }


def test_unchanged_touches_nothing() -> None:
    planned = plan(ecc="unchanged", persistence="unchanged")
    assert (planned["ecc"], planned["power_limits"], planned["persistent_gpus"]) == ([], [], [])
    assert [entry["persistence_mode"] for entry in planned["boot"]["gpus"]] == [None, None]


@pytest.mark.parametrize(
    ("limit", "option"),
    [
        ("default", {"limit": "default"}),
        ("max", {"limit": "max"}),
        ({"watts": 350}, {"watts": 350}),
        ({"watts": "350"}, {"watts": 350}),
        ({"percent": 80}, {"percent": 80}),
        ({"percent": "62.5"}, {"percent": 62.5}),
    ],
)
def test_a_power_limit_reaches_module_and_boot_unit_in_one_form(limit: t.Any, option: dict[str, t.Any]) -> None:
    planned = plan(power_limit=limit)
    assert planned["problems"] == []
    assert planned["power_limits"] == [{"option": option, "gpus": ["GPU-0", "GPU-1"]}]
    assert [entry["power_limit"] for entry in planned["boot"]["gpus"]] == [option, option]


@pytest.mark.parametrize(
    "limit",
    [
        None,
        "",
        "350",
        350,
        True,
        [],
        {},
        {"watt": 350},
        {"watts": 0},
        {"watts": -5},
        {"watts": 350.5},
        {"watts": True},
        {"watts": "many"},
        {"watts": "nan"},
        {"percent": "inf"},
        {"percent": None},
        {"watts": 350, "percent": 80},
    ],
    ids=str,
)
def test_a_power_limit_that_is_none_is_refused(limit: t.Any) -> None:
    text = problem(power_limit=limit)
    assert text.startswith(
        f"gpu_state_power_limit is {limit!r}: expected unchanged, default, max, a mapping with watts"
    )


def test_overrides_lie_over_the_variables() -> None:
    planned = plan(
        *map(gpu, range(4)),
        power_limit={"percent": 80},
        overrides=[
            {"gpus": [1], "power_limit": {"watts": 250}, "ecc": None, "persistence": None},
            {"gpus": ["GPU-2", "0000:03:00.0"], "power_limit": "unchanged", "persistence": "unchanged"},
            {"gpus": [3], "ecc": "unchanged"},
        ],
    )
    assert planned["problems"] == []
    assert planned["power_limits"] == [
        {"option": {"percent": 80}, "gpus": ["GPU-0"]},
        {"option": {"watts": 250}, "gpus": ["GPU-1"]},
    ]
    assert planned["ecc"] == [{"state": "enabled", "gpus": ["GPU-0", "GPU-1", "GPU-2"]}]
    assert planned["persistent_gpus"] == ["GPU-0", "GPU-1"]
    assert [entry["power_limit"] for entry in planned["boot"]["gpus"]] == [{"percent": 80}, {"watts": 250}, None, None]


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"gpus": []}, "gpu_state_gpus: the list is empty"),
        ({"gpus": "all"}, "gpu_state_gpus is 'all': expected a list"),
        ({"gpus": [7]}, "gpu_state_gpus: no GPU matches '7'. This host has: 0 = GPU-0 = 0000:00:00.0"),
        ({"gpus": ["GPU-7"]}, "gpu_state_gpus: no GPU matches 'GPU-7'"),
        ({"ecc": "on"}, "gpu_state_ecc is 'on': expected enabled, disabled or unchanged."),
        ({"persistence": "off"}, "gpu_state_persistence is 'off': expected enabled or unchanged."),
        ({"overrides": [{"gpus": [9]}]}, "gpu_state_overrides[0].gpus: no GPU matches '9'"),
        ({"overrides": [{"ecc": "enabled"}]}, "gpu_state_overrides[0].gpus is None: expected a list"),
        (
            {"overrides": [{"gpus": [0], "watts": 3}]},
            "gpu_state_overrides[0] has watts: expected gpus, ecc, power_limit,",
        ),
        ({"overrides": [{"gpus": [0], "ecc": 0}]}, "gpu_state_overrides[0].ecc is 0: expected enabled"),
        ({"overrides": [{"gpus": [0], "power_limit": 300}]}, "gpu_state_overrides[0].power_limit is 300: expected"),
        (
            {"overrides": [{"gpus": [1], "ecc": "enabled"}], "gpus": [0]},
            "gpu_state_overrides[0].gpus: GPU 1 (0000:01:00.0) is not among gpu_state_gpus",
        ),
        (
            {"overrides": [{"gpus": ["all"], "power_limit": "max"}, {"gpus": [1], "power_limit": "default"}]},
            "gpu_state_overrides[1] and gpu_state_overrides[0] both say what power_limit of GPU 1 (0000:01:00.0) is to be",
        ),
    ],
)
def test_wrong_input_is_refused_by_its_name(wishes: dict[str, t.Any], words: str) -> None:
    assert problem(**wishes).startswith(words)


def test_all_problems_are_told_at_once() -> None:
    planned = plan(
        ecc="disabled", power_limit={"watts": 900}, overrides=[{"gpus": [9]}, {"gpus": [0], "persistence": "maybe"}]
    )
    assert [text.split(" ")[0].rstrip(":") for text in planned["problems"]] == [
        "gpu_state_overrides[0].gpus",
        "gpu_state_overrides[1].persistence",
        "gpu_state_ecc",
        "gpu_state_power_limit",
    ]


def test_switching_ecc_off_has_to_be_meant() -> None:
    text = problem(ecc="disabled")
    assert text.startswith("gpu_state_ecc is 'disabled', for GPU 0 (0000:00:00.0), GPU 1 (0000:01:00.0). Without ECC,")
    assert "gpu_state_ecc_allow_disabled" in text
    assert "gpu_state_overrides[0].ecc is 'disabled', for GPU 1 " in problem(
        overrides=[{"gpus": [1], "ecc": "disabled"}]
    )
    planned = plan(ecc="disabled", ecc_allow_disabled=True)
    assert planned["problems"] == []
    assert planned["ecc"] == [{"state": "disabled", "gpus": ["GPU-0", "GPU-1"]}]


def test_a_card_without_ecc() -> None:
    none = gpu(1, ecc={"supported": False, "current": None, "pending": None, "default": None})
    text = problem(gpu(0), none)
    assert text.startswith("gpu_state_ecc is 'enabled', and this has no ECC that could be: GPU 1 (0000:01:00.0).")
    assert plan(gpu(0), none, overrides=[{"gpus": [1], "ecc": "unchanged"}])["problems"] == []
    # It is off there already, so nothing is switched off.
    assert plan(none, ecc="disabled")["problems"] == []
    assert plan(none, ecc="disabled")["reboot_gpus"] == []


def test_a_power_limit_outside_of_what_the_card_takes_is_told_once_for_all_cards() -> None:
    text = problem(power_limit={"watts": 450})
    assert text.startswith(
        "gpu_state_power_limit: watts: 450 is 450 W on GPU 0 (0000:00:00.0), GPU 1 (0000:01:00.0), and"
    )
    assert "100 W to 400 W" in text
    other = gpu(1, power={"limit_max_watts": 500.0})
    assert "GPU 1" not in problem(gpu(0), other, power_limit={"watts": 450})


def test_a_power_limit_without_persistence_would_not_last() -> None:
    off = gpu(1, persistence_mode="disabled")
    text = problem(gpu(0), off, power_limit="max", persistence="unchanged")
    assert text.startswith(
        "gpu_state_power_limit sets a power limit where persistence mode is off: GPU 1 (0000:01:00.0)."
    )
    assert plan(gpu(0), off, power_limit="max")["problems"] == []
    assert plan(gpu(0), off, persistence="unchanged")["problems"] == []


@pytest.mark.parametrize(
    ("current", "pending", "wanted", "needed"),
    [
        ("enabled", "enabled", "enabled", False),
        ("disabled", "disabled", "enabled", True),
        ("disabled", "enabled", "enabled", True),
        # Somebody has set it to change, and the role takes that back.
        ("enabled", "disabled", "enabled", False),
        ("disabled", "enabled", "unchanged", False),
    ],
)
def test_which_cards_need_a_reboot(current: str, pending: str, wanted: str, needed: bool) -> None:
    planned = plan(gpu(0), gpu(1, ecc={"current": current, "pending": pending}), ecc=wanted)
    assert planned["reboot_gpus"] == (["GPU 1 (0000:01:00.0)"] if needed else [])


OFF = {"current": "disabled", "pending": "disabled"}


def test_a_reboot_under_programs_is_refused_before_anything_is_changed() -> None:
    # The program computes on another card than the one that needs the reboot.
    busy = [
        gpu(0, ecc=OFF),
        gpu(1, processes=[process(42), process(7, name=None), process(42), process(9, "graphics")]),
    ]
    text = problem(*busy, reboot="if_required")
    assert "ECC of GPU 0 (0000:00:00.0) needs a reboot" in text
    assert "process 7 (name unknown); process 42 (/usr/bin/vllm)." in text
    for wishes in (
        {"reboot": "never"},
        {"reboot": "if_idle"},
        {"reboot": "if_required", "reboot_force": True},
        {"reboot": "if_required", "ecc": "unchanged"},
    ):
        assert plan(*busy, **wishes)["problems"] == []


def test_nobody_computes_where_the_driver_does_not_tell() -> None:
    assert plan(gpu(0, processes=None))["users"] == []


LOST = {"index": 1, "uuid": None, "pci_bus_id": None, "reason": "gpu_lost", "nvml_code": 15, "msg": "GPU 1 is lost."}


def test_all_is_not_all_while_one_is_lost() -> None:
    text = problem(gpu(0), unavailable=[LOST])
    assert text == (
        "gpu_state_gpus: 'all' includes GPU 1, which cannot be used: GPU 1 is lost. To go on without it, name the others:"
        " ['0000:00:00.0']."
    )
    assert plan(gpu(0), unavailable=[LOST], gpus=["0000:00:00.0"])["problems"] == []


def test_a_host_without_gpus_is_no_success() -> None:
    observed: dict[str, t.Any] = {"gpus": [], "unavailable_gpus": []}
    (text,) = plan_gpu_state(WISHES, observed)["problems"]
    assert text.startswith("gpu_state_gpus: 'all' selects nothing")
