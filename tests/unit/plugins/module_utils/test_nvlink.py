# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The judge, on what gpu_info says of simulated machines, with one thing at a time made different."""

from __future__ import annotations

import copy
import itertools
import json
import sys
import typing as t
from pathlib import Path

import pytest

from ansible_collections.baremetal.inference.plugins.module_utils import _nvlink as nvlink
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_model import RECOVERY_ACTIONS
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_skus import override
from ansible_collections.baremetal.inference.plugins.module_utils._nvlink import (
    HEALTHY,
    UNHEALTHY,
    UNKNOWN,
    WARNING,
    FabricManagerState,
    Finding,
    concerning,
    domains,
    judge,
    next_rung,
    worst,
)

RECORDINGS = Path(__file__).resolve().parents[4] / "tests/gpu/recordings/h200x2"
Facts = dict[str, t.Any]

# Links of every GPU of four, one row each, as a board without switches has them: to the three others.
MESH = 4


@pytest.fixture(scope="module")
def readings(nvml_sim: t.Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Facts]:
    from tests.unit.conftest import SimulatedHost

    found = {}
    for profile in ("dgx-a100-80gb", "a100-pcie-40gb-x4", "h200-sxm-x2"):
        host = SimulatedHost(nvml_sim, tmp_path_factory.mktemp(profile), sys.executable)
        host.create(profile)
        found[profile] = host.run("gpu_info", gather=["nvlink", "topology"])
    return found


@pytest.fixture
def dgx(readings: dict[str, Facts]) -> Facts:
    return copy.deepcopy(readings["dgx-a100-80gb"])


@pytest.fixture
def pcie(readings: dict[str, Facts]) -> Facts:
    return copy.deepcopy(readings["a100-pcie-40gb-x4"])


@pytest.fixture
def h200(readings: dict[str, Facts]) -> Facts:
    return copy.deepcopy(readings["h200-sxm-x2"])


@pytest.fixture
def mesh(dgx: Facts) -> Facts:
    """HGX A100 4-GPU: four of those GPUs, each with four links to each other one."""
    gpus = dgx["gpus"] = dgx["gpus"][:MESH]
    ids = [gpu["pci_bus_id"] for gpu in gpus]
    for gpu in gpus:
        others = [bus_id for bus_id in ids if bus_id != gpu["pci_bus_id"]]
        for link in gpu["nvlink"]["links"]:
            link.update(remote_device_type="gpu", remote_pci_bus_id=others[link["link"] // 4])
    dgx["topology"] = [pair for pair in dgx["topology"] if pair["a"] in ids and pair["b"] in ids]
    for pair in dgx["topology"]:
        pair.update(nvlink_count=4, level="NV4")
    dgx.update(nvswitches=[], gpu_count=MESH, pci_gpu_count=MESH)
    return dgx


def bad(findings: t.Sequence[Finding]) -> list[tuple[str, str, str]]:
    return [(finding.check, finding.subject, finding.verdict) for finding in findings if finding.verdict != HEALTHY]


def one(findings: t.Sequence[Finding], check: str, subject: str) -> Finding:
    (found,) = [finding for finding in findings if (finding.check, finding.subject) == (check, subject)]
    return found


def take_down(gpu: Facts, *links: int, state: str = "inactive") -> None:
    for link in gpu["nvlink"]["links"]:
        if link["link"] in links:
            link.update(state=state, speed_megabytes_per_second=None, remote_device_type=None, remote_pci_bus_id=None)
    gpu["nvlink"]["active_count"] = sum(1 for link in gpu["nvlink"]["links"] if link["state"] == "active")


@pytest.mark.parametrize("machine", ["dgx", "pcie", "h200", "mesh"])
def test_healthy_machines(machine: str, request: pytest.FixtureRequest) -> None:
    facts: Facts = request.getfixturevalue(machine)
    findings = judge(facts)
    assert bad(findings) == []
    assert worst(findings) == HEALTHY
    assert next_rung(findings)[0] == "none"
    assert sum(finding.check == "links" for finding in findings) == len(facts["gpus"])
    # Every pair that NVLink should join is looked at.
    pairs = {"dgx": 28, "pcie": 2, "h200": 1, "mesh": 6}[machine]
    assert sum(finding.check == "pair" for finding in findings) == pairs
    for finding in findings:
        assert finding.observed and finding.expected and finding.fix == "" and finding.rung == "none"


def test_one_link_of_a_dgx_is_down(dgx: Facts) -> None:
    take_down(dgx["gpus"][2], 3)
    bus_id = dgx["gpus"][2]["pci_bus_id"]
    for pair in dgx["topology"]:
        if bus_id in (pair["a"], pair["b"]):
            pair["nvlink_count"] = 11
    findings = judge(dgx)
    link = one(findings, "links", bus_id)
    assert (link.verdict, link.observed) == (UNHEALTHY, "11 of 12 links up; link 3 inactive")
    assert link.expected == "12 links up (NVIDIA A100 SXM4 80GB)" and "scope: gpu" in link.fix
    # The pairs of that GPU have fewer links, and nothing else is wrong.
    assert {finding.check for finding in findings if finding.verdict != HEALTHY} == {"links", "pair"}
    assert all(bus_id in finding.gpus for finding in findings if finding.verdict != HEALTHY)
    assert next_rung(findings, switches=True)[0] == "gpu"
    assert next_rung(findings, "counters", switches=True)[0] == "gpu"
    assert next_rung(findings, "gpu", switches=True)[0] == "fabric"
    assert next_rung(findings, "fabric", switches=True)[0] == "reboot"
    assert next_rung(findings, "gpu", switches=False)[0] == "reboot"
    assert next_rung(findings, "reboot", switches=True)[0] == "hardware"


def test_link_that_is_held_back_is_not_up_and_a_sleeping_one_is(dgx: Facts) -> None:
    dgx["gpus"][0]["nvlink"]["links"][5]["state"] = "active_traffic_disabled"
    dgx["gpus"][1]["nvlink"]["links"][5]["state"] = "sleep"
    assert bad(judge(dgx)) == [("links", dgx["gpus"][0]["pci_bus_id"], UNHEALTHY)]


def test_all_links_of_all_gpus_are_down(dgx: Facts) -> None:
    for gpu in dgx["gpus"]:
        take_down(gpu, *range(12))
    for pair in dgx["topology"]:
        pair.update(nvlink_count=0, p2p={"read": "not_supported", "write": "not_supported", "nvlink": "not_supported"})
    findings = judge(dgx)
    assert one(findings, "links", "0000:07:00.0").observed == "0 of 12 links up"
    assert sum(finding.verdict == UNHEALTHY for finding in findings) == 8 + 28


def test_links_up_without_p2p_is_the_fabric(dgx: Facts) -> None:
    """What a stopped Fabric Manager leaves: trained links and no routes."""
    for pair in dgx["topology"]:
        pair.update(nvlink_count=0, p2p={"read": "not_supported", "write": "not_supported", "nvlink": "not_supported"})
    findings = judge(dgx, fabric_manager=FabricManagerState("inactive", None))
    pairs = [finding for finding in findings if finding.check == "pair"]
    assert {finding.rung for finding in pairs} == {"fabric"}
    assert "read not_supported" in pairs[0].observed
    assert one(findings, "fabric_manager", "host").verdict == UNHEALTHY
    assert next_rung(findings, switches=True)[0] == "fabric"


@pytest.mark.parametrize(
    ("state", "version", "verdict"),
    [
        ("active", "same", HEALTHY),
        ("active", None, HEALTHY),
        ("active", "570.1.1", UNHEALTHY),
        ("failed", "same", UNHEALTHY),
    ],
)
def test_fabric_manager(dgx: Facts, state: str, version: str | None, verdict: str) -> None:
    version = dgx["driver_version"] if version == "same" else version
    finding = one(judge(dgx, fabric_manager=FabricManagerState(state, version)), "fabric_manager", "host")
    assert finding.verdict == verdict
    assert (dgx["driver_version"] in finding.fix) == (verdict == UNHEALTHY)


def test_fabric_manager_matters_only_with_switches(pcie: Facts, h200: Facts, dgx: Facts) -> None:
    for facts in (pcie, h200):
        assert bad(judge(facts, fabric_manager=FabricManagerState("inactive", None))) == []
    # Nothing is said where it could not be asked.
    assert [finding.check for finding in judge(dgx, fabric_manager=FabricManagerState())].count("fabric_manager") == 0


def test_bridge_that_is_half_seated(pcie: Facts) -> None:
    take_down(pcie["gpus"][0], 8, 9, 10, 11)
    findings = judge(pcie)
    link = one(findings, "links", pcie["gpus"][0]["pci_bus_id"])
    assert (link.verdict, link.rung) == (UNHEALTHY, "gpu")
    assert link.observed.startswith("8 of 12 links up; link 8 inactive") and "Seat all bridges" in link.fix


def test_cards_without_bridges_are_fine_unless_said_otherwise(pcie: Facts) -> None:
    for gpu in pcie["gpus"]:
        take_down(gpu, *range(12))
    for pair in pcie["topology"]:
        pair.update(nvlink_count=0, p2p={"read": "ok", "write": "ok", "nvlink": "not_supported"})
    assert bad(judge(pcie)) == []
    catalog = override({"skus": {"a100-pcie-40gb": {"nvlink_bridged": True}}})
    findings = judge(pcie, catalog)
    assert len(bad(findings)) == 4
    assert "expectations say" in findings[0].expected


def test_bridge_seen_from_one_side(pcie: Facts) -> None:
    take_down(pcie["gpus"][0], *range(12))
    findings = judge(pcie)
    link = one(findings, "links", pcie["gpus"][0]["pci_bus_id"])
    assert link.verdict == UNHEALTHY and "another card's links lead here" in link.expected


def test_bridges_to_two_cards(pcie: Facts) -> None:
    wrong = pcie["gpus"][3]["pci_bus_id"]
    for link in pcie["gpus"][0]["nvlink"]["links"][:4]:
        link["remote_pci_bus_id"] = wrong
    finding = one(judge(pcie), "links", pcie["gpus"][0]["pci_bus_id"])
    assert finding.verdict == UNHEALTHY and f"4 to {wrong}" in finding.observed


def test_mesh_with_a_pair_that_lost_a_link(mesh: Facts) -> None:
    a, b = mesh["gpus"][0], mesh["gpus"][1]
    take_down(a, 0)
    take_down(b, 0)
    pair = next(p for p in mesh["topology"] if {p["a"], p["b"]} == {a["pci_bus_id"], b["pci_bus_id"]})
    pair["nvlink_count"] = 3
    findings = judge(mesh)
    assert [check for check, unused, unused_too in bad(findings)] == ["links", "links", "pair"]
    found = one(findings, "pair", f"{a['pci_bus_id']} - {b['pci_bus_id']}")
    assert found.expected == "4 NVLink(s) (HGX A100 4-GPU), P2P ok"


def test_far_ends_that_are_not_the_boards(dgx: Facts) -> None:
    dgx["gpus"][0]["nvlink"]["links"][0].update(remote_device_type="gpu", remote_pci_bus_id="0000:47:00.0")
    finding = one(judge(dgx), "links", dgx["gpus"][0]["pci_bus_id"])
    assert finding.verdict == UNHEALTHY and "to gpu, switch" in finding.observed


def test_error_counters_are_a_warning_and_never_down(dgx: Facts) -> None:
    dgx["gpus"][1]["nvlink"]["links"][4]["errors"].update(replay=7, crc=2)
    findings = judge(dgx)
    (finding,) = [finding for finding in findings if finding.verdict != HEALTHY]
    assert (finding.check, finding.verdict, finding.observed) == ("counters", WARNING, "link 4: replay 7, crc 2")
    assert worst(findings) == WARNING
    assert next_rung(findings)[0] == "counters"
    # After they were cleared and count again, nothing rougher is due for links that are up.
    assert next_rung(findings, "counters")[0] == "counters"


def test_slow_link(h200: Facts) -> None:
    h200["gpus"][1]["nvlink"]["links"][2]["speed_megabytes_per_second"] = 13281
    finding = one(judge(h200), "speed", h200["gpus"][1]["pci_bus_id"])
    assert (finding.verdict, finding.observed) == (UNHEALTHY, "link 2 at 13281 MB/s")
    # Rounding is no fault.
    h200["gpus"][1]["nvlink"]["links"][2]["speed_megabytes_per_second"] = 26000
    assert bad(judge(h200)) == []


def test_mig_is_no_fault(dgx: Facts) -> None:
    gpu = dgx["gpus"][0]
    gpu["mig_mode"]["current"] = "enabled"
    take_down(gpu, *range(12))
    for pair in dgx["topology"]:
        if gpu["pci_bus_id"] in (pair["a"], pair["b"]):
            pair["nvlink_count"] = 0
            pair["p2p"] = {"read": "not_supported", "write": "not_supported", "nvlink": "not_supported"}
    findings = judge(dgx)
    assert bad(findings) == []
    assert one(findings, "links", gpu["pci_bus_id"]).observed == "MIG is enabled; 0 of 12 links up"


def test_kind_that_is_not_known_never_fails(dgx: Facts) -> None:
    for gpu in dgx["gpus"]:
        gpu["name"] = "NVIDIA A800-SXM4-80GB"
        gpu["pci"].update(device_id="20f3", subsystem_device_id="0001")
    take_down(dgx["gpus"][0], 1)
    findings = judge(dgx)
    assert worst(findings) == UNKNOWN
    assert [finding.verdict for finding in findings] == [UNKNOWN] * 8
    assert "expectations" in findings[0].fix
    # Until somebody says what it should be.
    catalog = override(
        {
            "skus": {
                "a800": {
                    "name": "A800",
                    "device_ids": ["20f3"],
                    "nvlink_links": 12,
                    "nvlink_layout": "board",
                }
            }
        }
    )
    assert one(judge(dgx, catalog), "links", dgx["gpus"][0]["pci_bus_id"]).verdict == UNHEALTHY


def test_gpu_without_nvlink(pcie: Facts) -> None:
    gpu = pcie["gpus"] = pcie["gpus"][:1]
    gpu[0]["name"] = "Orin (nvgpu)"
    gpu[0].update(pci_bus_id=None, nvlink={"total_count": 0, "active_count": 0, "links": []}, mig_mode=None)
    gpu[0]["pci"] = dict.fromkeys(gpu[0]["pci"])
    pcie.update(topology=[], gpu_count=1, pci_gpu_count=0)
    (finding,) = judge(pcie)
    assert (finding.verdict, finding.observed) == (HEALTHY, "no NVLink")
    assert domains(pcie) == [(gpu[0]["uuid"],)]


def test_only_gpu_of_a_host_has_nothing_to_reach(h200: Facts) -> None:
    h200["gpus"] = h200["gpus"][:1]
    h200.update(topology=[], gpu_count=1, pci_gpu_count=1)
    take_down(h200["gpus"][0], *range(18))
    (finding,) = judge(h200)
    assert finding.verdict == HEALTHY and "only GPU" in finding.expected


def test_gpu_or_switch_that_is_missing(dgx: Facts) -> None:
    dgx["pci_gpu_count"] = dgx["gpu_count"] = 7
    dgx["nvswitches"].pop()
    findings = judge(dgx)
    assert [(finding.check, finding.observed, finding.rung) for finding in findings[:2]] == [
        ("gpus", "7 GPU(s) on the PCI bus", "reboot"),
        ("switches", "5 NVSwitch(es) on the PCI bus", "reboot"),
    ]


def test_lost_gpu(dgx: Facts) -> None:
    dgx["gpus"].pop(3)
    dgx["unavailable_gpus"] = [
        {"index": 3, "uuid": None, "pci_bus_id": "0000:4e:00.0", "reason": "gpu_lost", "nvml_code": 15, "msg": "Xid 79"}
    ]
    finding = one(judge(dgx), "gpu", "0000:4e:00.0")
    assert (finding.verdict, finding.gpu, finding.fix, finding.rung) == (UNHEALTHY, 3, "Xid 79", "reboot")


@pytest.mark.parametrize("action", sorted(set(RECOVERY_ACTIONS.values()) - {"none"}))
def test_recovery_action_names_the_rung(h200: Facts, action: str) -> None:
    h200["gpus"][0]["recovery_action"] = action
    findings = judge(h200)
    finding = one(findings, "recovery", h200["gpus"][0]["pci_bus_id"])
    assert finding.verdict == UNHEALTHY and action in finding.observed
    expected = "gpu" if action in ("gpu_reset", "drain_p2p", "drain_and_reset") else "reboot"
    assert next_rung(findings)[0] == expected


def test_domains(readings: dict[str, Facts], pcie: Facts, h200: Facts, mesh: Facts) -> None:
    assert [len(members) for members in domains(readings["dgx-a100-80gb"])] == [8]
    assert [len(members) for members in domains(pcie)] == [2, 2]
    assert [len(members) for members in domains(h200)] == [2]
    assert [len(members) for members in domains(mesh)] == [4]


def test_domain_of_a_board_is_whole_while_links_are_down(readings: dict[str, Facts], mesh: Facts) -> None:
    facts = copy.deepcopy(readings["dgx-a100-80gb"])
    take_down(facts["gpus"][0], *range(12))
    (members,) = domains(facts)
    assert members == tuple(gpu["pci_bus_id"] for gpu in facts["gpus"])
    take_down(mesh["gpus"][2], *range(12))
    assert len(domains(mesh)) == 1


def test_cards_without_bridges_are_domains_of_their_own(pcie: Facts) -> None:
    for gpu in pcie["gpus"]:
        take_down(gpu, *range(12))
    assert [len(members) for members in domains(pcie)] == [1, 1, 1, 1]


@pytest.fixture
def nvl(h200: Facts) -> Facts:
    """Four H200 NVL under one bridge, each with six links to each other one."""
    template = h200["gpus"][0]
    ids = [f"0000:{bus}:00.0" for bus in ("17", "2a", "3d", "60")]
    h200["gpus"] = []
    for index, bus_id in enumerate(ids):
        gpu = copy.deepcopy(template)
        gpu.update(index=index, uuid=f"GPU-{index}", pci_bus_id=bus_id, name="NVIDIA H200 NVL")
        gpu["pci"].update(device_id="233b", subsystem_device_id="1996")
        others = [other for other in ids if other != bus_id]
        for link in gpu["nvlink"]["links"]:
            link.update(remote_device_type="gpu", remote_pci_bus_id=others[link["link"] // 6])
        h200["gpus"].append(gpu)
    ok = {"read": "ok", "write": "ok", "nvlink": "ok"}
    h200["topology"] = [
        {"a": a, "b": b, "level": "NV6", "pcie_level": "NODE", "nvlink_count": 6, "p2p": ok}
        for a, b in itertools.combinations(ids, 2)
    ]
    h200.update(gpu_count=4, pci_gpu_count=4)
    return h200


def test_bridge_of_four_cards(nvl: Facts) -> None:
    findings = judge(nvl)
    assert bad(findings) == []
    assert sum(finding.check == "pair" for finding in findings) == 6
    assert [len(members) for members in domains(nvl)] == [4]
    # One link leads to the wrong card.
    nvl["gpus"][0]["nvlink"]["links"][0]["remote_pci_bus_id"] = "0000:60:00.0"
    finding = one(judge(nvl), "links", "0000:17:00.0")
    assert (
        finding.verdict == UNHEALTHY and "5 to 0000:2a:00.0, 6 to 0000:3d:00.0, 7 to 0000:60:00.0" in finding.observed
    )


def test_bridge_of_three_cards_is_none(nvl: Facts) -> None:
    for link in nvl["gpus"][0]["nvlink"]["links"]:
        if link["remote_pci_bus_id"] == "0000:60:00.0":
            link["remote_pci_bus_id"] = "0000:2a:00.0"
    assert one(judge(nvl), "links", "0000:17:00.0").verdict == UNHEALTHY


def test_two_real_h200() -> None:
    """What gpu_info and nvlink_reset said of them, on a virtual machine that does not see its NVSwitches."""
    facts = json.loads((RECORDINGS / "gpu_info.json").read_text())
    findings = judge(facts)
    assert bad(findings) == []
    assert [(finding.check, finding.observed) for finding in findings] == [
        ("links", "18 of 18 links up, to switch"),
        ("links", "18 of 18 links up, to switch"),
        ("pair", "18 NVLink(s); P2P over NVLink ok"),
    ]
    recorded = json.loads((RECORDINGS / "nvlink_reset_counters.json").read_text())
    assert recorded["healthy"] is True and recorded["changed"] is False
    assert [(finding["check"], finding["observed"]) for finding in recorded["findings"]] == [
        (finding.check, finding.observed) for finding in findings
    ]


def test_concerning(dgx: Facts) -> None:
    dgx["pci_gpu_count"] = dgx["gpu_count"] = 7
    findings = judge(dgx)
    chosen = concerning(findings, {"0000:07:00.0"})
    assert sum(finding.check == "links" for finding in chosen) == 1
    assert sum(finding.check == "pair" for finding in chosen) == 7
    assert [finding.check for finding in chosen if not finding.gpus] == ["gpus", "switches"]


def test_links_that_were_not_read(dgx: Facts) -> None:
    dgx["gpus"][0]["nvlink"] = None
    assert one(judge(dgx), "links", "0000:07:00.0").verdict == UNKNOWN


def test_p2p_that_is_not_told(h200: Facts) -> None:
    h200["topology"][0]["p2p"] = {"read": None, "write": None, "nvlink": None}
    (finding,) = [finding for finding in judge(h200) if finding.check == "pair"]
    assert (finding.verdict, finding.fix != "") == (UNKNOWN, True)


def test_every_bad_finding_says_what_to_do() -> None:
    assert set(nvlink._RUNG_TEXT) == set(nvlink.LADDER)
    assert set(nvlink._RECOVERY) <= set(RECOVERY_ACTIONS.values())
