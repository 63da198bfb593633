# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.baremetal.inference.plugins.module_utils import _gpu_model as model


@pytest.mark.parametrize(
    ("number", "text"), [(13000, "13.0"), (12080, "12.8"), (12010, "12.1"), (13050, "13.5"), (None, None)]
)
def test_cuda_version(number: int | None, text: str | None) -> None:
    assert model.cuda_version(number) == text


@pytest.mark.parametrize(("milliwatts", "watts"), [(400000, 400.0), (61254, 61.254), (0, 0.0), (None, None)])
def test_watts(milliwatts: int | None, watts: float | None) -> None:
    assert model.watts(milliwatts) == watts


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        (None, None),
        (0, []),
        (0x1, ["gpu_idle"]),
        (0x4 | 0x40 | 0x8, ["sw_power_cap", "hw_slowdown", "hw_thermal_slowdown"]),
        (0x1000, ["unknown_0x1000"]),
    ],
)
def test_event_reasons(mask: int | None, names: list[str] | None) -> None:
    assert model.event_reasons(mask) == names


def test_a_number_that_the_tables_lack_is_shown() -> None:
    assert model.named(model.ARCHITECTURES, 7) == "ampere"
    assert model.named(model.ARCHITECTURES, 99) == "unknown_99"
    assert model.named(model.ARCHITECTURES, None) is None


def _link(number: int, state: str = "active", remote: str | None = "switch", bus_id: str | None = None) -> model.NvLink:
    return model.NvLink(
        link=number,
        state=state,
        version="3.0",
        speed_megabytes_per_second=25000,
        remote_device_type=remote,
        remote_pci_bus_id=bus_id,
        errors=model.NvLinkErrors(replay=0, recovery=0, crc=0),
    )


def _links(*links: model.NvLink) -> model.NvLinkState:
    return model.NvLinkState(
        total_count=len(links), active_count=sum(link.active for link in links), links=tuple(links)
    )


A = "0000:07:00.0"
SWITCHED_12 = _links(*(_link(number) for number in range(12)))
SWITCHED_11 = _links(*(_link(number, "active" if number else "inactive") for number in range(12)))
BRIDGED_TO_A = _links(*(_link(number, remote="gpu", bus_id=A) for number in range(4)))
ELSEWHERE = _links(*(_link(number, remote="gpu", bus_id="0000:47:00.0") for number in range(4)))
NO_LINKS = _links()


@pytest.mark.parametrize(
    ("a", "b", "p2p", "count"),
    [
        # Through switches: as many as the weaker one has, if NVML says that they do reach each other.
        (SWITCHED_12, SWITCHED_12, "ok", 12),
        (SWITCHED_12, SWITCHED_11, "ok", 11),
        (SWITCHED_11, SWITCHED_12, "ok", 11),
        (SWITCHED_12, SWITCHED_12, "not_supported", 0),
        (SWITCHED_12, SWITCHED_12, None, 12),
        (SWITCHED_12, NO_LINKS, "ok", 0),
        # A bridge: only what leads to this very GPU counts, whatever P2P says.
        (BRIDGED_TO_A, BRIDGED_TO_A, "ok", 4),
        (BRIDGED_TO_A, BRIDGED_TO_A, "disabled_by_regkey", 4),
        (ELSEWHERE, ELSEWHERE, "ok", 0),
        (None, SWITCHED_12, "ok", 0),
        (SWITCHED_12, None, "ok", 0),
    ],
)
def test_nvlinks_between(a: model.NvLinkState | None, b: model.NvLinkState | None, p2p: str | None, count: int) -> None:
    assert model.nvlinks_between(A, a, b, p2p) == count


def test_inactive_bridge_does_not_count() -> None:
    down = _links(*(_link(number, "inactive", remote="gpu", bus_id=A) for number in range(4)))
    assert model.nvlinks_between(A, down, down, "ok") == 0


def test_sleeping_link_is_up_and_a_held_back_one_is_not() -> None:
    assert _links(_link(0, "sleep"), _link(1, "active_traffic_disabled"), _link(2, "inactive")).active_count == 1


@pytest.mark.parametrize(("pcie", "links", "level"), [("PXB", 12, "NV12"), ("PXB", 0, "PXB"), (None, 0, None)])
def test_topology_level(pcie: str | None, links: int, level: str | None) -> None:
    assert model.topology_level(pcie, links) == level


def test_as_dict_is_plain_all_the_way_down() -> None:
    plain = model.as_dict(_links(_link(0)))
    assert plain == {
        "total_count": 1,
        "active_count": 1,
        "links": [
            {
                "link": 0,
                "state": "active",
                "version": "3.0",
                "speed_megabytes_per_second": 25000,
                "remote_device_type": "switch",
                "remote_pci_bus_id": None,
                "errors": {"replay": 0, "recovery": 0, "crc": 0},
            }
        ],
    }


def test_numbers_are_those_of_pynvml() -> None:
    """Where pynvml has a number, ours is the same; NVML_P2P_CAPS_INDEX_READ it has wrong, as a tuple."""
    pynvml = pytest.importorskip("pynvml")
    assert (model.P2P_WRITE, model.P2P_NVLINK) == (pynvml.NVML_P2P_CAPS_INDEX_WRITE, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
    for table, prefix in (
        (model.BRANDS, "NVML_BRAND_"),
        (model.ARCHITECTURES, "NVML_DEVICE_ARCH_"),
        (model.COMPUTE_MODES, "NVML_COMPUTEMODE_"),
        (model.RECOVERY_ACTIONS, "NVML_GPU_RECOVERY_ACTION_"),
        (model.NVLINK_STATES, "NVML_NVLINK_STATE_"),
    ):
        for number, name in table.items():
            assert getattr(pynvml, prefix + name.upper()) == number, prefix + name
    for number, version in model.NVLINK_VERSIONS.items():
        assert getattr(pynvml, "NVML_NVLINK_VERSION_" + version.replace(".", "_")) == number
    for number, constant in {
        0: "INTERNAL",
        10: "SINGLE",
        20: "MULTIPLE",
        30: "HOSTBRIDGE",
        40: "NODE",
        50: "SYSTEM",
    }.items():
        assert getattr(pynvml, f"NVML_TOPOLOGY_{constant}") == number and number in model.TOPOLOGY_LEVELS
