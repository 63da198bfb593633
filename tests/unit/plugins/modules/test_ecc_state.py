# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The whole module in processes of its own on the simulated library, from one reboot to the next."""

from __future__ import annotations

import shutil
import typing as t

import pytest

from ansible_collections.baremetal.inference.plugins.modules import ecc_state

if t.TYPE_CHECKING:
    from tests.unit.conftest import SimulatedHost

    Undocumented = t.Callable[[t.Any, t.Mapping[str, t.Any], str], list[str]]


def column(result: t.Mapping[str, t.Any], name: str) -> list[t.Any]:
    return [gpu[name] for gpu in result["gpus"]]


def test_from_one_mode_to_the_other(simulated_host_on_every_python: SimulatedHost, undocumented: Undocumented) -> None:
    host = simulated_host_on_every_python
    host.create("dgx-a100-80gb")

    foreseen = host.run("ecc_state", state="disabled", check_mode=True, diff=True)
    assert foreseen["changed"] and foreseen["reboot_required"]
    assert set(foreseen["diff"]["before"].values()) == {"enabled"}
    assert set(foreseen["diff"]["after"].values()) == {"disabled"}
    assert len(foreseen["diff"]["after"]) == 8
    untouched = host.run("ecc_state", state="enabled")
    assert not untouched["changed"] and not untouched["reboot_required"]

    changed = host.run("ecc_state", state="disabled", diff=True)
    assert undocumented(ecc_state, changed, "success") in (
        [],
        ["diff: returned, not documented"],
    )
    # What was foreseen came true, to the last value.
    assert {key: changed[key] for key in foreseen} == foreseen
    assert column(changed, "changed") == [True] * 8
    assert column(changed, "current") == ["enabled"] * 8
    assert column(changed, "pending") == column(changed, "wanted") == ["disabled"] * 8

    again = host.run("ecc_state", state="disabled")
    assert not again["changed"], "only the reboot is missing, and that is no change of ours"
    assert again["reboot_required"]
    assert column(again, "reboot_required") == [True] * 8

    host.tool("reboot")
    after = host.run("ecc_state", state="disabled")
    assert not after["changed"] and not after["reboot_required"]
    assert column(after, "current") == ["disabled"] * 8


def test_a_wish_that_is_taken_back_before_the_reboot(simulated_host: SimulatedHost) -> None:
    simulated_host.create("dgx-a100-80gb", "--gpus", "2")
    simulated_host.run("ecc_state", state="disabled")
    back = simulated_host.run("ecc_state", state="enabled")
    assert back["changed"] and not back["reboot_required"]


def test_only_the_gpus_that_are_named(simulated_host: SimulatedHost) -> None:
    simulated_host.create("dgx-a100-80gb")
    every = simulated_host.run("ecc_state", state="enabled")["gpus"]
    named = ["0", every[1]["uuid"], every[2]["pci_bus_id"]]
    result = simulated_host.run("ecc_state", state="disabled", gpus=named)
    assert column(result, "index") == [0, 1, 2]
    assert column(simulated_host.run("ecc_state", state="enabled", check_mode=True), "pending") == ["enabled"] * 8
    assert (
        column(simulated_host.run("ecc_state", state="enabled", check_mode=True), "changed") == [True] * 3 + [False] * 5
    )


def test_counters_and_remapped_rows(simulated_host: SimulatedHost) -> None:
    simulated_host.create("dgx-a100-80gb", "--gpus", "1")
    for key, value in {
        "ecc/volatile/corrected/dram": 5,
        "ecc/volatile/uncorrected/sram": 1,
        "ecc/aggregate/uncorrected/dram": 9,
        "remapped_rows/uncorrectable": 2,
        "remapped_rows/pending": 1,
    }.items():
        simulated_host.set(f"gpu0/{key}", value)
    (gpu,) = simulated_host.run("ecc_state", state="enabled")["gpus"]
    assert gpu["volatile"] == {"corrected": 5, "uncorrected": 1}
    assert gpu["aggregate"] == {"corrected": 0, "uncorrected": 9}
    assert gpu["remapped_rows"] == {"correctable": 0, "uncorrectable": 2, "pending": True, "failure": False}


def test_a_gpu_in_use_is_set_all_the_same(simulated_host: SimulatedHost) -> None:
    state = simulated_host.create("dgx-a100-80gb", "--gpus", "1")
    (state / "gpu0/processes").write_text("4711 compute 1073741824\n")
    result = simulated_host.run("ecc_state", state="disabled")
    assert result["changed"] and result["reboot_required"]


def test_a_gpu_without_ecc(simulated_host: SimulatedHost) -> None:
    simulated_host.create("dgx-a100-80gb", "--gpus", "2")
    simulated_host.set("gpu1/ecc/pending", "!NOT_SUPPORTED")
    fine = simulated_host.run("ecc_state", state="disabled", gpus=["1"])
    assert not fine["changed"] and not fine["reboot_required"]
    assert fine["gpus"][0]["supported"] is False
    assert fine["gpus"][0]["volatile"] == {"corrected": None, "uncorrected": None}
    simulated_host.run("ecc_state", state="disabled", gpus=["0"])
    refused = simulated_host.run("ecc_state", state="enabled")
    assert refused["reason"] == "ecc_not_supported" and refused["gpu"]["index"] == 1
    # GPU 0 was due, and was not touched.
    assert simulated_host.run("ecc_state", state="disabled", gpus=["0"])["changed"] is False


def test_mig_is_named_where_the_driver_refuses(simulated_host: SimulatedHost) -> None:
    simulated_host.create("dgx-a100-80gb", "--gpus", "2")
    simulated_host.set("gpu1/mig/current", 1)
    taken = simulated_host.run("ecc_state", state="disabled")
    assert column(taken, "mig_mode") == ["disabled", "enabled"] and taken["changed"]
    simulated_host.fault("nvmlDeviceSetEccMode gpu1 = NOT_SUPPORTED")
    refused = simulated_host.run("ecc_state", state="enabled")
    assert "MIG is enabled on this GPU" in refused["msg"]
    assert refused["changed"] is True and refused["changed_gpus"] == ["0000:07:00.0"]


def test_half_of_it_fails_and_a_rerun_converges(simulated_host: SimulatedHost, undocumented: Undocumented) -> None:
    simulated_host.create("dgx-a100-80gb")
    simulated_host.fault("nvmlDeviceSetEccMode gpu3 = GPU_IS_LOST")
    result = simulated_host.run("ecc_state", state="disabled")
    assert result["failed"] and result["changed"]
    assert undocumented(ecc_state, result, "failure") == []
    assert result["reason"] == "gpu_lost" and result["nvml_code"] == 15
    assert result["nvml_call"] == "nvmlDeviceSetEccMode"
    assert result["gpu"]["pci_bus_id"] == "0000:4e:00.0" and result["failed_gpus"] == ["0000:4e:00.0"]
    assert len(result["changed_gpus"]) == 7
    assert column(result, "pending") == ["disabled"] * 3 + ["enabled"] + ["disabled"] * 4
    assert result["msg"].startswith("1 of 8 GPUs failed. nvmlDeviceSetEccMode failed for GPU 3 (0000:4e:00.0)")
    assert "a rerun does the rest" in result["msg"]
    simulated_host.no_faults()
    rerun = simulated_host.run("ecc_state", state="disabled")
    assert column(rerun, "changed") == [False] * 3 + [True] + [False] * 4


def test_a_gpu_that_is_lost_between_two_calls(simulated_host: SimulatedHost) -> None:
    """Read, set, and gone when it is read again: what the others have become is told, and which one is gone."""
    simulated_host.create("dgx-a100-80gb", "--gpus", "4")
    simulated_host.fault("nvmlDeviceGetEccMode gpu2 = GPU_IS_LOST on 2")
    result = simulated_host.run("ecc_state", state="disabled")
    assert result["reason"] == "gpu_lost" and result["failed_gpus"] == ["0000:47:00.0"]
    assert column(result, "pending") == ["disabled", "disabled", "enabled", "disabled"]


def test_not_root(simulated_host: SimulatedHost) -> None:
    simulated_host.create("dgx-a100-80gb")
    simulated_host.fault("nvmlDeviceSetEccMode = NO_PERMISSION")
    result = simulated_host.run("ecc_state", state="disabled")
    assert result["reason"] == "no_permission" and result["changed"] is False
    assert result["msg"].count("become: true") == 1 and result["msg"].endswith("Nothing was changed.")
    assert not simulated_host.run("ecc_state", state="enabled")["changed"], "reading needs no root"


def test_the_driver_says_yes_and_does_no(simulated_host: SimulatedHost) -> None:
    simulated_host.create("dgx-a100-80gb", "--gpus", "1")
    simulated_host.fault("nvmlDeviceSetEccMode gpu0 = SUCCESS")
    result = simulated_host.run("ecc_state", state="disabled")
    assert result["reason"] == "not_taken" and result["changed"] is False


@pytest.mark.parametrize(
    "selector", ["8", "GPU-00000000-0000-4000-8000-000000000000", "0000:99:00.0", "MIG-1", "", "-1"]
)
def test_a_selector_that_is_wrong(simulated_host: SimulatedHost, selector: str) -> None:
    simulated_host.create("dgx-a100-80gb")
    result = simulated_host.run("ecc_state", state="disabled", gpus=["0", selector])
    assert result["failed"] and result["selector"] == selector
    assert not simulated_host.run("ecc_state", state="enabled")["changed"], "GPU 0 was named too, and was left alone"


def test_a_lost_gpu_is_not_passed_over(simulated_host: SimulatedHost) -> None:
    simulated_host.create("dgx-a100-80gb")
    simulated_host.fault("* gpu5 = GPU_IS_LOST")
    result = simulated_host.run("ecc_state", state="disabled")
    assert result["reason"] == "gpu_lost" and result["gpu"]["index"] == 5
    assert "gpus: [0, 1, 2, 3, 4, 6, 7]" in result["msg"]
    others = simulated_host.run("ecc_state", state="disabled", gpus=["0", "1", "2", "3", "4", "6", "7"])
    assert column(others, "changed") == [True] * 7


def test_a_gpu_that_the_driver_did_not_take_is_told(simulated_host: SimulatedHost) -> None:
    state = simulated_host.create("dgx-a100-80gb")
    shutil.rmtree(state / "gpu7")
    (warning,) = simulated_host.run("ecc_state", state="enabled")["warnings"]
    assert "0000:bd:00.0" in warning and "7 GPU(s)" in warning


@pytest.mark.parametrize(("code", "reason"), [(9, "driver_not_loaded"), (18, "version_mismatch")])
def test_the_driver_cannot_be_asked(simulated_host: SimulatedHost, code: int, reason: str) -> None:
    state = simulated_host.create("dgx-a100-80gb")
    (state / "init_error").write_text(f"{code}\n")
    result = simulated_host.run("ecc_state", state="enabled")
    assert result["reason"] == reason and result["pci_gpu_count"] == 8


def test_no_gpu_at_all(simulated_host: SimulatedHost) -> None:
    simulated_host.create("dgx-a100-80gb", "--gpus", "0")
    result = simulated_host.run("ecc_state", state="enabled")
    assert result["reason"] == "no_gpus"
