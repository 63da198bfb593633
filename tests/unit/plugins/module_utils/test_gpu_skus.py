# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses
import json
import re
import typing as t
from pathlib import Path

import pytest
import yaml

from ansible_collections.baremetal.inference.plugins.module_utils import _gpu_skus as skus
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_model import NVLINK_VERSIONS
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_skus import (
    CATALOG,
    ExpectationsError,
    Figure,
    Sku,
    System,
    override,
    sku_for,
    system_for,
)
from ansible_collections.baremetal.inference.plugins.modules import gpu_info

ROOT = Path(__file__).resolve().parents[4]
BY_ID = {sku.id: sku for sku in CATALOG.skus}
A100 = BY_ID["a100-sxm4-80gb"]
H200 = BY_ID["h200-sxm5-141gb"]
PROFILES = {
    "dgx-a100-80gb": "a100-sxm4-80gb",
    "a100-pcie-40gb-x4": "a100-pcie-40gb",
    "h200-sxm-x2": "h200-sxm5-141gb",
}


def _figures(record: Sku | System) -> dict[str, Figure[t.Any]]:
    return {
        field.name: getattr(record, field.name)
        for field in dataclasses.fields(record)
        if isinstance(getattr(record, field.name), Figure)
    }


@pytest.mark.parametrize("record", [*CATALOG.skus, *CATALOG.systems], ids=lambda record: record.id)
def test_every_figure_has_a_source(record: Sku | System) -> None:
    plain = {"id", "name", "name_pattern", "sku_ids"}
    figures = _figures(record)
    # Nothing but names and figures: a bare number would be one without a source.
    assert {field.name for field in dataclasses.fields(record)} == plain & set(vars(record)) | set(figures)
    for name, figure in figures.items():
        assert isinstance(figure.source, str) and len(figure.source) > 10, name
        if "derived" in figure.source and figure.value is not None:
            assert re.search(r"\d", figure.source), f"{name}: derived from what?"


def test_results_have_every_figure() -> None:
    assert set(skus.SKU_FIGURES) == set(_figures(A100)) - {"pci_ids"}
    assert set(skus.SYSTEM_FIGURES) == set(_figures(CATALOG.systems[0]))


@pytest.mark.parametrize("record", [*CATALOG.skus, *CATALOG.systems], ids=lambda record: record.id)
def test_figures_are_of_their_kind(record: Sku | System) -> None:
    """What the option would refuse must not be in the data either."""
    kinds = skus._KINDS if isinstance(record, Sku) else skus._SYSTEM_KINDS
    for name, kind in kinds.items():
        value = getattr(record, name).value
        given = list(value) if isinstance(value, tuple) else value
        assert skus._converted(name, kind, given) == value
        assert type(skus._converted(name, kind, given)) is type(value)


def test_ids_are_told_apart() -> None:
    assert len(BY_ID) == len(CATALOG.skus)
    assert len({system.id for system in CATALOG.systems}) == len(CATALOG.systems)
    for system in CATALOG.systems:
        assert set(system.sku_ids) <= set(BY_ID)
    for sku in CATALOG.skus:
        for version in sku.nvlink_versions.value or ():
            assert version in NVLINK_VERSIONS.values()


@pytest.mark.parametrize(
    ("device", "subsystem", "name", "expected"),
    [
        ("20b2", "10de:1463", "NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("0x20B2", "10DE:1463", None, "a100-sxm4-80gb"),
        ("20b0", "10de:134f", None, "a100-sxm4-40gb"),
        ("20b0", None, None, "a100-sxm4-40gb"),
        ("20f1", "10de:145f", None, "a100-pcie-40gb"),
        ("20b5", "10de:1533", None, "a100-pcie-80gb"),
        ("2331", "10de:1626", None, "h100-pcie-80gb"),
        ("2330", "10de:16c1", None, "h100-sxm5-80gb"),
        ("2335", "10de:18bf", None, "h200-sxm5-141gb"),
        ("233b", "10de:1996", None, "h200-nvl-141gb"),
        # A board with a subsystem that nobody listed yet: its name says it.
        ("20b2", "10de:ffff", "NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("20b5", "10de:ffff", "NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        (None, None, "Orin (nvgpu)", "jetson-orin"),
        (None, None, "NVIDIA H200", "h200-sxm5-141gb"),
        (None, None, "NVIDIA H200 NVL", "h200-nvl-141gb"),
        # Other boards that share a device id.
        ("20b2", "10de:1625", "NVIDIA PG509-210", None),
        ("20b0", "10de:1450", "NVIDIA A100-PG509-200", None),
        # Other kinds.
        ("2324", "10de:17a6", "NVIDIA H800", None),
        ("2329", "10de:198b", "NVIDIA H20", None),
        ("20bd", "10de:17f4", "NVIDIA A800-SXM4-40GB", None),
        ("2684", "1458:40bf", "NVIDIA GeForce RTX 4090", None),
        (None, None, None, None),
    ],
)
def test_sku_for(device: str | None, subsystem: str | None, name: str | None, expected: str | None) -> None:
    sku = sku_for(device, subsystem, name)
    assert (sku.id if sku else None) == expected


@pytest.mark.parametrize(
    ("kind", "gpus", "switches", "far_ends", "expected"),
    [
        ("a100-sxm4-80gb", 8, 6, {"switch"}, "hgx-a100-8gpu"),
        ("a100-sxm4-40gb", 8, 6, {"switch"}, "hgx-a100-8gpu"),
        ("a100-sxm4-80gb", 16, 12, {"switch"}, "hgx-a100-16gpu"),
        ("a100-sxm4-80gb", 4, 0, {"gpu"}, "hgx-a100-4gpu"),
        ("h100-sxm5-80gb", 8, 4, {"switch"}, "hgx-h100-8gpu"),
        ("h100-sxm5-80gb", 4, 0, {"gpu"}, "hgx-h100-4gpu"),
        ("h200-sxm5-141gb", 8, 4, {"switch"}, "hgx-h200-8gpu"),
        # A GPU or a switch that is missing does not make it another board.
        ("a100-sxm4-80gb", 7, 6, {"switch"}, "hgx-a100-8gpu"),
        ("a100-sxm4-80gb", 8, 5, {"switch"}, "hgx-a100-8gpu"),
        # All links down: no far ends.
        ("a100-sxm4-80gb", 4, 0, set(), "hgx-a100-4gpu"),
        # Some GPUs of a bigger board in a virtual machine.
        ("a100-sxm4-80gb", 4, 0, {"switch"}, None),
        ("h200-sxm5-141gb", 2, 0, {"switch"}, None),
        ("a100-sxm4-80gb", 8, 0, {"switch"}, None),
        ("a100-pcie-40gb", 4, 0, {"gpu"}, None),
        ("a100-sxm4-80gb", 8, 13, {"switch"}, None),
        ("jetson-orin", 1, 0, set(), None),
    ],
)
def test_system_for(kind: str, gpus: int, switches: int, far_ends: set[str], expected: str | None) -> None:
    system = system_for([BY_ID[kind]] * gpus, gpus, switches, far_ends)
    assert (system.id if system else None) == expected


def test_system_of_what_is_not_known_or_mixed() -> None:
    assert system_for([], 0, 0) is None
    assert system_for([None] * 8, 8, 6) is None
    assert system_for([A100] * 7 + [None], 8, 6) is None
    assert system_for([A100, H200], 2, 6) is None


@pytest.mark.parametrize(("profile", "kind"), PROFILES.items())
def test_profiles_are_as_expected(profile: str, kind: str) -> None:
    """The simulated cards, two of them recorded, are healthy cards of their kinds."""
    content = json.loads((ROOT / "tests/nvml_sim/profiles" / f"{profile}.json").read_text())
    gpu = {**content.get("gpu", {}), **content["gpus"][0]}
    for key in ("pci", "memory", "bar1", "power", "temperature"):
        gpu[key] = {**content.get("gpu", {}).get(key, {}), **content["gpus"][0].get(key, {})}
    device, vendor = gpu["pci"]["device_id"][2:6], gpu["pci"]["device_id"][6:]
    subsystem = gpu["pci"]["subsystem_id"]
    assert vendor == "10DE"
    sku = sku_for(device, f"{subsystem[6:]}:{subsystem[2:6]}", None)
    assert sku is not None and sku.id == kind
    by_name = sku_for(None, None, gpu["name"])
    assert by_name is sku
    assert gpu["bar1"]["total"] == sku.bar1_bytes.value
    assert gpu["memory"]["total"] == sku.framebuffer_bytes.value
    assert gpu["pci"]["max_link_generation"] == sku.pcie_generation.value
    assert gpu["pci"]["max_link_width"] == sku.pcie_width.value
    assert gpu["power"]["default_limit"] / 1000 in (sku.power_default_watts.value or ())
    for key, figure in (("slowdown", sku.temperature_slowdown_celsius), ("shutdown", sku.temperature_shutdown_celsius)):
        assert figure.value is None or gpu["temperature"]["threshold"][key] in figure.value
    links = content["nvlink"]["remotes"][0]
    assert len(links) == sku.nvlink_links.value
    link = {**content["nvlink"]["link"], **links[0]}
    assert link["speed_mbps"] == sku.nvlink_megabytes_per_second.value
    assert NVLINK_VERSIONS[link["version"]] in (sku.nvlink_versions.value or ())


def test_override_corrects_a_known_kind_and_says_so() -> None:
    catalog = override({"skus": {"h200-sxm5-141gb": {"power_default_watts": "600", "nvlink_links": None}}})
    sku = sku_for("2335", "10de:18bf", None, catalog)
    assert sku is not None
    assert sku.power_default_watts == Figure((600.0,), skus.OPTION_SOURCE)
    assert sku.nvlink_links == Figure(None, skus.OPTION_SOURCE)
    # All else is as it was, and so is the catalog itself.
    assert sku.bar1_bytes == H200.bar1_bytes
    assert sku_for("2335", "10de:18bf") is H200


def test_override_adds_a_kind_and_a_board() -> None:
    catalog = override(
        {
            "skus": {
                "a800": {"name": "NVIDIA A800", "device_ids": "20BD", "nvlink_links": 8, "nvlink_layout": "board"}
            },
            "systems": {
                "hgx-a800": {
                    "name": "HGX A800",
                    "skus": ["a800"],
                    "gpu_count": 8,
                    "nvswitch_count": 6,
                    "nvlink_layout": "switch",
                    "links_per_pair": 8,
                }
            },
        }
    )
    sku = sku_for("20bd", "10de:17f4", "NVIDIA A800-SXM4-40GB", catalog)
    assert sku is not None and (sku.id, sku.nvlink_links.value, sku.bar1_bytes.value) == ("a800", 8, None)
    system = system_for([sku] * 8, 8, 6, (), catalog)
    assert system is not None and (system.id, system.far_end) == ("hgx-a800", "switch")
    # By its name, when a device id says nothing.
    named = override({"skus": {"a800": {"name": "NVIDIA A800", "name_pattern": "NVIDIA A800.*"}}})
    by_name = sku_for(None, None, "NVIDIA A800-SXM4-40GB", named)
    assert by_name is not None and by_name.id == "a800"


def test_the_users_kind_counts_before_ours() -> None:
    catalog = override({"skus": {"mine": {"name": "Mine", "device_ids": ["20b2"]}}})
    sku = sku_for("20b2", "10de:1463", "NVIDIA A100-SXM4-80GB", catalog)
    assert sku is not None and sku.id == "mine"


@pytest.mark.parametrize(
    ("expectations", "path", "says"),
    [
        ({"gpus": {}}, "expectations.gpus", "no such key. Allowed are: skus, systems"),
        ({"skus": []}, "expectations.skus", "[] is no dictionary"),
        ({"skus": {"a100-sxm4-80gb": 3}}, "expectations.skus.a100-sxm4-80gb", "3 is no dictionary"),
        ({"skus": {"a100-sxm4-80gb": {"pcie": 4}}}, "expectations.skus.a100-sxm4-80gb.pcie", "Allowed are: name"),
        (
            {"skus": {"a100-sxm4-80gb": {"pcie_width": "wide"}}},
            "expectations.skus.a100-sxm4-80gb.pcie_width",
            "'wide' is not what it must be: a whole number from 0, or null",
        ),
        ({"skus": {"a100-sxm4-80gb": {"pcie_width": -1}}}, "expectations.skus.a100-sxm4-80gb.pcie_width", "-1 is not"),
        ({"skus": {"a100-sxm4-80gb": {"pcie_width": True}}}, "expectations.skus.a100-sxm4-80gb.pcie_width", "True is"),
        (
            {"skus": {"a100-sxm4-80gb": {"h2d_gigabytes_per_second": 0}}},
            "expectations.skus.a100-sxm4-80gb.h2d_gigabytes_per_second",
            "a number above 0",
        ),
        (
            {"skus": {"a100-sxm4-80gb": {"power_max_watts": [400, "lots"]}}},
            "expectations.skus.a100-sxm4-80gb.power_max_watts",
            "or a list of them",
        ),
        (
            {"skus": {"a100-sxm4-80gb": {"nvlink_layout": "ring"}}},
            "expectations.skus.a100-sxm4-80gb.nvlink_layout",
            "none, bridge or board",
        ),
        (
            {"skus": {"a100-pcie-40gb": {"nvlink_bridged": "maybe"}}},
            "expectations.skus.a100-pcie-40gb.nvlink_bridged",
            "true or false",
        ),
        ({"skus": {"new": {"pcie_width": 16}}}, "expectations.skus.new", "needs name, and device_ids or name_pattern"),
        (
            {"skus": {"new": {"name": "New", "device_ids": [420]}}},
            "expectations.skus.new.device_ids",
            "420 is no PCI device id: four hexadecimal digits in quotes",
        ),
        (
            {"skus": {"new": {"name": "New", "name_pattern": "("}}},
            "expectations.skus.new.name_pattern",
            "'(' is no regular expression",
        ),
        ({"skus": {"a100-sxm4-80gb": {"name": ""}}}, "expectations.skus.a100-sxm4-80gb.name", "'' is no text"),
        ({"systems": {"new": {"name": "New"}}}, "expectations.systems.new", "needs skus, gpu_count"),
        ({"systems": {"hgx-a100-8gpu": {"skus": ["x"]}}}, "expectations.systems.hgx-a100-8gpu.skus", "'x' is no known"),
        (
            {"systems": {"hgx-a100-8gpu": {"nvlink_layout": "ring"}}},
            "expectations.systems.hgx-a100-8gpu.nvlink_layout",
            "switch or mesh",
        ),
    ],
)
def test_wrong_expectations(expectations: dict[str, t.Any], path: str, says: str) -> None:
    with pytest.raises(ExpectationsError) as caught:
        override(expectations)
    assert caught.value.msg.startswith(f"{path}: ")
    assert says in caught.value.msg
    assert caught.value.as_result()["path"] == path


def test_no_expectations() -> None:
    assert override(None) is CATALOG
    assert override({}) is CATALOG


def test_results_are_plain() -> None:
    for sku in CATALOG.skus:
        result = skus.as_result(sku)
        assert json.loads(json.dumps(result)) == result
        assert result is not None and list(result["figures"]) == list(skus.SKU_FIGURES)
    for system in CATALOG.systems:
        result = skus.system_as_result(system)
        assert json.loads(json.dumps(result)) == result
    assert skus.as_result(None) is None and skus.system_as_result(None) is None


def test_figures_are_documented() -> None:
    (entry,) = (
        documented["contains"]["expectations"]["contains"]["figures"]["contains"]
        for name, documented in yaml.safe_load(gpu_info.RETURN).items()
        if name == "gpus"
    )
    assert list(entry) == list(skus.SKU_FIGURES)
    for name, documented in entry.items():
        figure = getattr(A100, name)
        if figure.value is not None:
            assert documented["sample"]["value"] == skus._plain(figure.value), name
