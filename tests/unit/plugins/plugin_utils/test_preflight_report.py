# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The page of one host: what it says, what it draws, and what it must never do."""

from __future__ import annotations

import re
import typing as t

import pytest

from ansible_collections.baremetal.inference.plugins.plugin_utils._preflight_report import render

from tests.unit.plugins.plugin_utils import preflight_example as example
from tests.unit.plugins.plugin_utils.page import Page, classes, rows, words

TIMES = "\N{MULTIPLICATION SIGN}"
SIZES = (0, 1, 2, 4, 8, 16)


def machine_of(count: int, remote: str = "switch") -> dict[str, t.Any]:
    return example.result([example.gpu(index, remote=remote) for index in range(count)], remote=remote)


@pytest.fixture(scope="module")
def troubled() -> Page:
    return Page(render(example.troubled(), json_name="dgx-01.json"))


@pytest.mark.parametrize("remote", ["switch", "gpu"])
@pytest.mark.parametrize("count", SIZES)
def test_machines_of_every_size(count: int, remote: str) -> None:
    page = Page(render(machine_of(count, remote)))
    assert words(page.find("p", class_="verdict")[0]) == "Ready"
    boxes = page.find("rect", class_="box")
    assert len(boxes) == max(count, 1)
    if count:
        assert set(classes(boxes)) == {"box pass"}
        table = rows(page.section("gpus"))
        # A heading, the GPUs; a heading, their identities.
        assert len(table) == 2 * (1 + count)
        assert [row[0].split(" ")[1] for row in table[1 : 1 + count]] == [str(index) for index in range(count)]
    else:
        assert page.section("gpus") is None
        assert "No GPU that the driver can see" in words(page.section("machine"))
    assert (page.section("topology") is not None) == (count > 1)


def test_nothing_is_fetched_and_nothing_runs(troubled: Page) -> None:
    assert {tag for tag, _attributes in troubled.tags} & {
        "script",
        "iframe",
        "object",
        "embed",
        "img",
        "base",
        "form",
    } == set()
    for tag, attributes in troubled.tags:
        assert not [name for name in attributes if name.startswith("on") or name == "src"], tag
        if "href" in attributes:
            assert re.match(r"#|data:image/svg\+xml,|dgx-01\.json$", attributes["href"] or ""), attributes
    style = "".join(element.text or "" for element in troubled.find("style"))
    assert "url(" not in style
    assert "@import" not in style
    policy = [
        attributes for tag, attributes in troubled.tags if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert [attributes["content"] for attributes in policy] == [
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    ]


def test_the_head_names_host_verdict_and_machine(troubled: Page) -> None:
    banner = words(troubled.find("header")[0])
    for part in (
        "dgx-01",
        "Not ready",
        f"8 {TIMES} NVIDIA A100-SXM4-80GB",
        f"2 {TIMES} AMD EPYC 7742",
        "2 TiB",
        "driver 580.159.04, CUDA 13.0",
    ):
        assert part in banner
    assert "2 fail" in banner
    assert "10 warn" in banner
    assert words(troubled.find("title")[0]) == "dgx-01: Not ready"


def test_what_to_do_is_gravest_first_and_told_once(troubled: Page) -> None:
    tasks = troubled.find("div", class_="task")
    assert [words(task.find(".//h3")) for task in tasks] == [
        "Row remapping",
        "NVLinks up",
        "PCIe width",
        "Persistence",
        "Xid errors",
        "PCIe access control",
    ]
    assert "GPU 2 (0000:47:00.0)" in words(tasks[0])
    assert "Replace the GPU" in words(tasks[0])
    # The same for eight GPUs is one thing to do.
    assert "all 8 GPUs" in words(tasks[3])
    assert classes(tasks) == ["task fail", "task fail", "task warn", "task warn", "task warn", "task unknown"]


def test_a_healthy_machine_has_nothing_to_do() -> None:
    page = Page(render(example.result()))
    assert words(page.section("to-do")) == "What to do Nothing. Every check that could be made came out well."
    # What was skipped beside it does not take the green away from what passed.
    assert classes(page.find("header")) == ["banner pass"]


def test_groups_are_tiles_that_lead_to_their_checks(troubled: Page) -> None:
    tiles = troubled.find("a", class_="tile")
    shown = {words(tile.find("strong")): words(tile.find("span")) for tile in tiles}
    assert shown["ECC and rows"] == "✕ fail"
    assert shown["PCIe"] == "! warn"
    assert shown["Firmware"] == "? unknown"
    assert shown["CUDA"] == "✓ pass"
    assert shown["Power and heat"] == "\N{EN DASH} skipped"
    ids = [element.get("id") for element in troubled.tree.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    assert {tile.get("href", "")[1:] for tile in tiles} <= set(ids)


def test_the_matrix_shows_every_pair() -> None:
    page = Page(render(machine_of(4, "gpu")))
    best, without = page.find("table", class_="matrix")
    assert rows(best) == [
        ["", "0", "1", "2", "3"],
        ["GPU 0", "—", "NV12", "SYS", "SYS"],
        ["GPU 1", "NV12", "—", "SYS", "SYS"],
        ["GPU 2", "SYS", "SYS", "—", "NV12"],
        ["GPU 3", "SYS", "SYS", "NV12", "—"],
    ]
    assert [row[1:3] for row in rows(without)[1:3]] == [["—", "PXB"], ["PXB", "—"]]
    legend = words(page.section("topology"))
    assert "joined by that many NVLinks" in legend
    assert "through a PCIe host bridge" not in legend
    assert {cell.get("class") for cell in best.iter("td")} == {"self", "level-nv", "level-sys"}


def test_a_pair_with_trouble_is_marked_in_the_matrix() -> None:
    pair = f"{example.bus_id(0)} - {example.bus_id(3)}"
    found = example.result(checks=[example.check("nvlink.p2p", "fail", subject=pair, observed="chipset_not_supported")])
    page = Page(render(found))
    marked = page.find("td", class_="trouble")
    assert [words(cell) for cell in marked] == ["NV12 ⚠", "NV12 ⚠"]
    assert all("chipset_not_supported" in cell.get("title", "") for cell in marked)
    assert "a check found fault with this pair" in words(page.section("topology"))
    assert "GPU 0 and GPU 3" in words(page.section("to-do"))


def test_a_row_has_the_readings_of_its_gpu(troubled: Page) -> None:
    table = {row[0].split(" ")[1]: row for row in rows(troubled.section("gpus"))[1:9]}
    assert "3" in table["2"][6]
    assert "one had no spare" in table["2"][6]
    assert "19 corrected" in table["2"][5]
    assert table["4"][4].startswith(f"Gen 4 {TIMES}8 at most Gen 4 {TIMES}16 212 replays")
    assert table["4"][4].endswith("warn")
    assert table["6"][1].startswith("61 GiB of 80 GiB")
    assert table["6"][2].startswith("371 of 400 W")
    assert table["7"][2].startswith("59 of 300 W")
    assert "default 400 W" in table["7"][2]
    assert table["6"][3].startswith("84 of 89 °C")
    assert table["5"][7].startswith("10 of 12 up")
    assert table["5"][7].endswith("fail")
    assert "no errors" in table["0"][5]


def row_of(gpu: dict[str, t.Any]) -> dict[str, str]:
    """The cells of one GPU's row, by their headings."""
    headings, cells = rows(Page(render(example.result([gpu]))).section("gpus"))[:2]
    return dict(zip(headings, cells, strict=True))


def test_modes_and_errors_are_in_words() -> None:
    gpu = example.gpu(0)
    gpu["ecc"].update(pending="disabled", volatile={"corrected": 2, "uncorrected": None})
    gpu["mig_mode"] = {"current": "disabled", "pending": "enabled"}
    gpu["compute_mode"] = "prohibited"
    gpu["clocks_event_reasons"] = ["gpu_idle", "sw_power_cap"]
    gpu["nvlink"]["links"][3]["errors"] = {"replay": 2, "recovery": 1, "crc": None}
    row = row_of(gpu)
    assert row["ECC"] == "enabled, disabled after a reboot 2 corrected since driver load"
    assert row["Modes"] == (
        "persistence enabled MIG disabled, enabled after a reset compute mode prohibited held back: sw_power_cap"
    )
    assert row["NVLinks"].startswith("12 of 12 up")
    assert row["NVLinks"].endswith(" 3 link errors")
    assert row["Replaced rows"] == "none"


def test_ecc_that_does_not_tell_its_errors_is_not_called_free_of_them() -> None:
    gpu = example.gpu(0)
    assert row_of(gpu)["ECC"] == "enabled no errors"
    nothing = {"corrected": None, "uncorrected": None}
    gpu["ecc"].update(volatile=nothing, aggregate=nothing)
    assert row_of(gpu)["ECC"] == "enabled errors not told"
    gpu["ecc"].update(volatile={"corrected": None, "uncorrected": 0})
    assert row_of(gpu)["ECC"] == "enabled no errors"
    gpu["ecc"]["supported"] = False
    assert row_of(gpu)["ECC"] == "no ECC"


def test_a_power_bar_reaches_to_the_card_s_maximum() -> None:
    gpu = example.gpu(0)
    gpu["power"].update(usage_watts=100.0, limit_enforced_watts=200.0)
    section = Page(render(example.result([gpu]))).section("gpus")
    assert section is not None
    (picture,) = [picture for picture in section.iter("svg") if picture.get("aria-label") == "100 of 200 W"]
    track, fill = picture.iter("rect")
    assert float(fill.get("width", "")) == float(track.get("width", "")) / 4
    (tick,) = picture.iter("line")
    assert float(tick.get("x1", "")) == float(track.get("width", "")) / 2


def test_a_gpu_without_a_bus_id_has_the_checks_of_its_index() -> None:
    gpu = {**example.gpu(0), "pci_bus_id": None}
    found = example.result([gpu], [example.check("ecc.rows", "fail", subject="GPU-uuid", index=0)])
    assert rows(Page(render(found)).section("gpus"))[1][5].endswith("fail")
    other = example.result([gpu], [example.check("ecc.rows", "fail", subject="GPU-uuid", index=1)])
    assert "fail" not in " ".join(rows(Page(render(other)).section("gpus"))[1])


def test_each_nvlink_is_a_square_and_one_that_is_down_is_told(troubled: Page) -> None:
    section = troubled.section("gpus")
    assert section is not None
    pictures = [picture for picture in section.iter("svg") if "NVLinks up" in picture.get("aria-label", "")]
    assert [picture.get("aria-label") for picture in pictures] == [
        "10 of 12 NVLinks up" if index == 5 else "12 of 12 NVLinks up" for index in range(8)
    ]
    squares = list(pictures[5].iter("rect"))
    assert len(squares) == 12
    assert [words(square) for square in squares if square.get("class") == "down"] == [
        "link 3: inactive",
        "link 7: inactive",
    ]


def test_bars_are_as_long_as_what_they_show(troubled: Page) -> None:
    section = troubled.section("gpus")
    assert section is not None
    bars = {picture.get("aria-label"): list(picture.iter("rect")) for picture in section.iter("svg")}
    track, fill = bars["61 GiB of 80 GiB"]
    assert float(fill.get("width", "")) == pytest.approx(float(track.get("width", "")) * 61 / 80, abs=0.01)


def test_xids_are_a_timeline_and_a_table(troubled: Page) -> None:
    section = troubled.section("xids")
    assert section is not None
    marks = list(section.iter("path"))
    assert [words(mark).split("  ")[0][:28] for mark in marks] == [
        "2026-11-21T03:12:44Z Xid 63 ",
        "2026-11-28T18:40:02Z Xid 64 ",
    ]
    across = [float(re.match(r"M([\d.]+) ", mark.get("d", ""))[1]) for mark in marks]  # type: ignore[index]
    assert across == sorted(across)
    assert [row[:3] for row in rows(section)[1:]] == [
        ["2026-11-28T18:40:02Z", "GPU 2 (0000:47:00.0)", "64"],
        ["2026-11-21T03:12:44Z before the last boot", "GPU 2 (0000:47:00.0)", "63"],
    ]


def test_many_xids_are_cut_off_and_say_so() -> None:
    found = example.troubled()
    found["kernel_log"]["xids"] *= 50
    section = Page(render(found)).section("xids")
    assert len(rows(section)) == 61
    assert "40 older ones are in the JSON file." in words(section)


def test_xids_without_a_time_are_in_the_table_alone() -> None:
    found = example.troubled()
    for event in found["kernel_log"]["xids"]:
        event["time"] = None
    section = Page(render(found)).section("xids")
    assert section is not None
    assert list(section.iter("svg")) == []
    assert [row[0] for row in rows(section)[1:]] == ["not told before the last boot", "not told"]


def test_a_soak_with_samples_is_a_curve_for_each_gpu(troubled: Page) -> None:
    section = troubled.section("soak")
    assert section is not None
    assert len(list(section.iter("figure"))) == 8
    curves = list(section.iter("polyline"))
    assert len(curves) == 3 * 8
    assert {len(curve.get("points", "").split()) for curve in curves} == {25}
    assert "temperature 30 to 78 °C" in words(section)


def test_a_soak_with_extremes_is_a_table() -> None:
    found = example.result()
    common = {"skipped": None, "sm_clock_mhz_min": 1290, "temperature_celsius_max": 71, "power_watts_max": 398.5}
    found["soak"] = {
        "minutes": 10.0,
        "gpus": [
            {
                "pci_bus_id": example.bus_id(1),
                **common,
                "teraflops": 251.34,
                "wrong_results": 2,
                "reasons": ["sw_power_cap"],
            },
            {"pci_bus_id": example.bus_id(2), "skipped": "in use by process 4242"},
        ],
        "samples": [],
        "new_xids": [f"{example.bus_id(1)}: 31"],
    }
    section = Page(render(found)).section("soak")
    measured = ["71 of 89 °C", "398 of 400 W", "1290 of 1410 MHz", "251.3 TFLOP/s 2 wrong results", "sw_power_cap"]
    assert rows(section)[1:] == [
        ["GPU 1 (0000:0f:00.0)", *measured],
        ["GPU 2 (0000:47:00.0)", "No load: in use by process 4242"],
    ]
    assert "10 minutes" in words(section)
    assert "0000:0f:00.0: 31" in words(section)


def test_without_xids_and_soak_there_are_no_empty_sections() -> None:
    page = Page(render(example.result()))
    assert page.section("xids") is None
    assert page.section("soak") is None


def test_every_check_is_in_the_table(troubled: Page) -> None:
    section = troubled.section("checks")
    named = {words(code) for code in section.iter("code")} if section is not None else set()
    assert named == {check["check"] for check in example.troubled()["checks"]}


def test_a_check_with_several_outcomes_is_named_once() -> None:
    checks = [
        example.check("pcie.replays", "info", title="Replays", subject=example.bus_id(n), index=n, observed=f"{n}")
        for n in (1, 2, 3)
    ]
    table = rows(Page(render(example.result(checks=checks))).section("checks"))
    lines = [row for row in table if len(row) > 2 and row[3] in ("1", "2", "3")]
    assert [row[1] for row in lines] == ["Replays pcie.replays", "", ""]
    assert [row[2].split()[1] for row in lines] == ["1", "2", "3"]


def test_only_warnings_and_failures_of_pairs_mark_the_matrix() -> None:
    pair = f"{example.bus_id(0)} - {example.bus_id(1)}"
    checks = [
        example.check("nvlink.pair", "info", subject=pair),
        example.check("ecc.x", "fail", subject=example.bus_id(0)),
    ]
    assert Page(render(example.result(checks=checks))).find("td", class_="trouble") == []


def test_the_json_beside_is_linked_and_only_then(troubled: Page) -> None:
    assert [link.get("href") for link in troubled.find("footer")[0].iter("a")] == ["dgx-01.json"]
    assert list(Page(render(example.result())).find("footer")[0].iter("a")) == []


def test_a_gpu_that_does_not_answer_is_drawn_all_the_same() -> None:
    found = machine_of(7)
    found["unavailable_gpus"] = [{"index": 7, "uuid": None, "pci_bus_id": example.bus_id(7), "reason": "gpu_lost"}]
    found["missing_from_nvml"] = [example.bus_id(7)]
    page = Page(render(found))
    assert len(page.find("rect", class_="box")) == 8
    assert classes(page.find("rect", class_="gone")) == ["box fail gone"]
    assert "does not answer" in words(page.section("machine"))


def test_gpus_that_no_driver_knows_are_drawn_from_the_bus() -> None:
    found = machine_of(0)
    found["pci_gpus"] = [{"pci_bus_id": example.bus_id(n), "driver": None, "numa_node": n // 2} for n in range(4)]
    page = Page(render(found))
    assert classes(page.find("rect", class_="box")) == ["box fail gone"] * 4
    assert words(page.section("machine")).count("NUMA node") == 3  # One in the heading's text.
    assert "unknown to driver" in words(page.section("machine"))


def test_gpus_that_were_not_asked_about_are_not_called_lost() -> None:
    found = machine_of(2)
    found["pci_gpus"] = [{"pci_bus_id": example.bus_id(n), "driver": "nvidia", "numa_node": 0} for n in range(8)]
    assert len(Page(render(found)).find("rect", class_="box")) == 2


def test_xids_of_earlier_boots_are_hollow() -> None:
    found = example.troubled()
    found["kernel_log"]["xids"][0]["current_boot"] = False
    found["kernel_log"]["xids"][1]["current_boot"] = True
    section = Page(render(found)).section("xids")
    assert section is not None
    assert classes(section.iter("path")) == ["earlier", "solid warn"]
    assert [("before the last boot" in row[0]) for row in rows(section)[1:]] == [False, True]


# ---- What comes from a host is not trusted ----------------------------------------------------------------------------

EVIL = (
    "</style></title><script>alert(1)</script><img src=x onerror=alert(1)>\" onload='x' &amp; \x1b[31m\u202e\x00 \ud800"
)


def poisoned(value: t.Any) -> t.Any:
    """Every text of a result, with something evil behind it."""
    if isinstance(value, dict):
        return {key: poisoned(item) for key, item in value.items()}
    if isinstance(value, list):
        return [poisoned(item) for item in value]
    return value + EVIL if isinstance(value, str) else value


def test_texts_of_a_host_cannot_become_markup() -> None:
    clean = Page(render(example.troubled()))
    dirty = Page(render(poisoned(example.troubled())))
    # The same elements as without them, or fewer: what is evil now fits no known level or verdict. None is new.
    assert {tag for tag, _attributes in dirty.tags} <= {tag for tag, _attributes in clean.tags}
    known = {name for _tag, attributes in clean.tags for name in attributes}
    assert {name for _tag, attributes in dirty.tags for name in attributes} <= known
    assert "<script>alert(1)</script>" in dirty.text
    assert "<script" not in dirty.source
    assert "<img" not in dirty.source
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e\ud800]", dirty.source)
    dirty.source.encode()


def test_kernel_log_and_names_are_escaped_one_by_one() -> None:
    found = example.troubled()
    found["host"] = "<b>host</b>"
    found["gpus"][0]["name"] = "<i>GPU</i>"
    found["kernel_log"]["xids"][0]["text"] = "<u>log</u>"
    page = Page(render(found, json_name="x&y.json"))
    for raw in ("<b>host", "<i>GPU", "<u>log"):
        assert raw not in page.source
        assert raw in page.text
    assert [link.get("href") for link in page.find("footer")[0].iter("a")] == ["x%26y.json"]


# ---- Facts that are not known -----------------------------------------------------------------------------------------


def unknown(value: t.Any) -> t.Any:
    """A GPU that says nothing but who it is."""
    return {
        key: item
        if key in ("index", "pci_bus_id")
        else {}
        if key in ("pci", "pcie", "ecc", "power", "temperature")
        else None
        for key, item in value.items()
    }


def test_gpus_that_tell_nothing() -> None:
    found = example.result([example.gpu(0), example.gpu(1)])
    found["gpus"] = [unknown(gpu) for gpu in found["gpus"]]
    page = Page(render(found))
    table = rows(page.section("gpus"))
    assert table[1][1:5] == ["not told"] * 4
    assert len(page.find("rect", class_="box")) == 2
    assert "NUMA node not told" in words(page.section("machine"))


def test_a_result_with_nothing_in_it() -> None:
    page = Page(render({"schema": "baremetal.inference.preflight/1", "host": "bare", "checks": []}))
    assert "Nothing was checked" in words(page.find("header")[0])


def test_verdicts_and_groups_of_a_newer_module_are_shown_as_unknown() -> None:
    found = example.result()
    found["checks"].append({**example.check("cooling.pumps", title="Pumps"), "verdict": "dire"})
    page = Page(render(found))
    assert "Cooling" in words(page.find("nav")[0])
    assert classes(page.find("header")) == ["banner unknown"]
    assert "Pumps" in words(page.section("to-do"))
