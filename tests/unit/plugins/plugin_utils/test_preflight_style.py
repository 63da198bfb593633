# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Colours that everybody can read, and a style sheet that knows every name that the pages use."""

from __future__ import annotations

import re
import typing as t

import pytest

from ansible_collections.baremetal.inference.plugins.plugin_utils import _preflight_style as style
from ansible_collections.baremetal.inference.plugins.plugin_utils._preflight_findings import VERDICTS
from ansible_collections.baremetal.inference.plugins.plugin_utils._preflight_fleet import hosts_of
from ansible_collections.baremetal.inference.plugins.plugin_utils._preflight_fleet import render as render_fleet
from ansible_collections.baremetal.inference.plugins.plugin_utils._preflight_report import render

from tests.unit.plugins.plugin_utils import preflight_example as example
from tests.unit.plugins.plugin_utils.page import Page

PALETTES = {"light": style.LIGHT, "dark": style.DARK}
LEVELS = ("nv", "pix", "pxb", "phb", "node", "sys")


def luminance(colour: str) -> float:
    """WCAG 2.2, "relative luminance"."""
    full = colour if len(colour) == 7 else "#" + "".join(letter * 2 for letter in colour[1:])
    channels = [int(full[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(a: str, b: str) -> float:
    lighter, darker = sorted((luminance(a), luminance(b)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_contrast_is_computed_as_wcag_does() -> None:
    assert contrast("#fff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("name", PALETTES)
def test_text_has_the_contrast_of_wcag_aa(name: str) -> None:
    palette = PALETTES[name]
    pairs = [(ink, under) for ink in ("ink", "muted", "info-ink") for under in ("page", "card")]
    for word in (*VERDICTS, *LEVELS):
        pairs.append((f"{word}-ink", f"{word}-tint"))
    for verdict in VERDICTS:
        pairs += [(f"{verdict}-ink", "card"), (f"{verdict}-ink", "page"), ("ink", f"{verdict}-tint")]
        pairs.append(("muted", f"{verdict}-tint"))
    poor = {pair: contrast(palette[pair[0]], palette[pair[1]]) for pair in pairs}
    assert {pair: ratio for pair, ratio in poor.items() if ratio < 4.5} == {}


@pytest.mark.parametrize("name", PALETTES)
def test_shapes_have_the_contrast_of_wcag_aa(name: str) -> None:
    """3:1 for what is no text, and for the bold symbol on a seal."""
    palette = PALETTES[name]
    pairs = [("#ffffff", palette[f"{verdict}-solid"]) for verdict in VERDICTS if verdict != "warn"]
    pairs += [(palette[f"{verdict}-solid"], palette["card"]) for verdict in VERDICTS if verdict != "warn"]
    pairs += [(palette["accent"], palette["card"]), (palette["accent"], palette["track"])]
    assert [pair for pair in pairs if contrast(*pair) < 3] == []


def test_verdicts_differ_in_more_than_colour() -> None:
    assert len({verdict.symbol for verdict in VERDICTS.values()}) == len(VERDICTS)


@pytest.mark.parametrize("name", PALETTES)
def test_both_palettes_have_the_same_names(name: str) -> None:
    assert PALETTES[name].keys() == style.LIGHT.keys()


def test_every_variable_is_defined() -> None:
    used = set(re.findall(r"var\(--([\w-]+)\)", style.PAGE))
    own = set(re.findall(r"--([\w-]+):", style.PAGE))
    assert used <= own
    assert set(re.findall(r"var\(--([\w-]+)\)", style.DRAWING)) <= style.LIGHT.keys()


def test_every_class_is_styled_and_every_style_is_used() -> None:
    """Over pages that between them show everything."""
    small = example.result([example.gpu(0, remote="gpu"), example.gpu(1, remote="gpu")], remote="gpu")
    small["unavailable_gpus"] = [{"index": 2, "pci_bus_id": None}]
    pair_check = example.check("nvlink.p2p", "fail", subject=f"{example.bus_id(0)} - {example.bus_id(1)}")
    outcomes: list[dict[str, t.Any]] = [
        {"host": "a", "state": "examined", "preflight": example.troubled()},
        {"host": "b", "state": "unreachable", "problem": "no route"},
    ]
    pages = [
        render(example.troubled(), json_name="a.json"),
        render({**small, "checks": [*small["checks"], pair_check]}),
        render(example.result([example.gpu(0), example.gpu(1, down=range(12))])),
        render(example.result([], [])),
        render_fleet(hosts_of(outcomes), "now", ["html"]),
    ]
    used = {word for page in pages for element in Page(page).tree.iter() for word in element.get("class", "").split()}
    sheet = re.sub(r"@media[^{]*\{", "", style.PAGE)
    selectors = " ".join(re.findall(r"([^{}]+)\{", sheet))
    styled = set(re.findall(r"\.([a-z][\w-]*)", selectors))
    assert used - styled == set()
    # Levels that none of these machines has.
    assert styled - used == {"level-pix", "level-phb", "level-node"}
