# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.baremetal.inference.plugins.module_utils._gpu_model import GpuIdentity, UnavailableGpu
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_select import GpuSelectorError, select_gpus

# NVML's index order and bus order differ on purpose.
GPUS = [
    GpuIdentity(index=0, uuid="GPU-aaaaaaaa-0000-4000-8000-000000000000", pci_bus_id="0000:47:00.0"),
    GpuIdentity(index=1, uuid="GPU-bbbbbbbb-0000-4000-8000-000000000000", pci_bus_id="0000:07:00.0"),
    GpuIdentity(index=2, uuid="GPU-cccccccc-0000-4000-8000-000000000000", pci_bus_id="0001:07:00.0"),
]
LOST = [
    UnavailableGpu(
        index=3, uuid=None, pci_bus_id="0000:bd:00.0", reason="gpu_lost", nvml_code=15, msg="It fell off the bus."
    )
]


@pytest.mark.parametrize(
    ("selectors", "indices"),
    [
        (["all"], [1, 0, 2]),
        (["ALL"], [1, 0, 2]),
        (["0"], [0]),
        (["2", "0"], [0, 2]),
        (["GPU-bbbbbbbb-0000-4000-8000-000000000000"], [1]),
        (["gpu-BBBBBBBB-0000-4000-8000-000000000000"], [1]),
        (["0000:07:00.0"], [1]),
        (["00000000:07:00.0"], [1]),
        (["07:00.0"], [1]),
        (["0001:07:00.0"], [2]),
        # One GPU by all of its names is one GPU.
        (["0", "GPU-aaaaaaaa-0000-4000-8000-000000000000", "47:00.0", " 0 "], [0]),
        (["1", "all"], [1, 0, 2]),
    ],
)
def test_select(selectors: list[str], indices: list[int]) -> None:
    assert [gpu.index for gpu in select_gpus(selectors, GPUS)] == indices


def test_all_of_none_is_none() -> None:
    assert select_gpus(["all"], []) == []


def test_all_does_not_stumble_over_a_lost_gpu() -> None:
    assert len(select_gpus(["all"], GPUS, LOST)) == 3


@pytest.mark.parametrize(
    ("selector", "reason", "says"),
    [
        ("9", "gpu_not_found", "no GPU matches '9'"),
        ("GPU-dddddddd-0000-4000-8000-000000000000", "gpu_not_found", "no GPU matches 'GPU-dddddddd"),
        # The beginning of a UUID is not enough.
        ("GPU-aaaaaaaa", "gpu_not_found", "no GPU matches 'GPU-aaaaaaaa'"),
        ("0000:99:00.0", "gpu_not_found", "no GPU matches '0000:99:00.0'"),
        ("-1", "invalid_selector", "'-1' is no GPU selector"),
        (
            "A100",
            "invalid_selector",
            "Expected 'all', an index (0), a UUID (GPU-...) or a PCI bus id ('0000:07:00.0'). This host",
        ),
        ("", "invalid_selector", "'' is no GPU selector"),
        ("0,1", "invalid_selector", "'0,1' is no GPU selector"),
        ("٣", "invalid_selector", "is no GPU selector"),
        # What YAML makes of 0000:07:00.0 without quotes.
        ("420.0", "invalid_selector", "A PCI bus id must stand in quotes"),
        ("MIG-aaaaaaaa-0000-4000-8000-000000000000", "invalid_selector", "is a MIG instance"),
        ("3", "gpu_lost", "'3' is a GPU that cannot be used: It fell off the bus."),
        ("bd:00.0", "gpu_lost", "'bd:00.0' is a GPU that cannot be used"),
    ],
)
def test_wrong_selector(selector: str, reason: str, says: str) -> None:
    with pytest.raises(GpuSelectorError) as caught:
        select_gpus(["0", selector], GPUS, LOST)
    assert says in caught.value.msg
    assert caught.value.msg.startswith("gpus: ")
    result = caught.value.as_result()
    assert result["reason"] == reason
    assert result["selector"] == selector


def test_wrong_selector_lists_what_there_is() -> None:
    with pytest.raises(GpuSelectorError) as caught:
        select_gpus(["9"], GPUS, option="vllm_service_gpus")
    assert caught.value.msg == (
        "vllm_service_gpus: no GPU matches '9'. This host has:"
        " 0 = GPU-aaaaaaaa-0000-4000-8000-000000000000 = 0000:47:00.0;"
        " 1 = GPU-bbbbbbbb-0000-4000-8000-000000000000 = 0000:07:00.0;"
        " 2 = GPU-cccccccc-0000-4000-8000-000000000000 = 0001:07:00.0."
    )


def test_wrong_selector_without_gpus() -> None:
    with pytest.raises(GpuSelectorError, match="no GPU matches '0'. This host has no usable GPU"):
        select_gpus(["0"], [])


def test_empty_list() -> None:
    with pytest.raises(GpuSelectorError, match="gpus: the list is empty") as caught:
        select_gpus([], GPUS)
    assert caught.value.reason == "invalid_selector"
