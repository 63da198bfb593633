# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The pictures: where things are, and that nothing is drawn over something else."""

from __future__ import annotations

import re
import typing as t
from xml.etree import ElementTree

import pytest

from ansible_collections.baremetal.inference.plugins.plugin_utils import _preflight_drawing as drawing

from tests.unit.plugins.plugin_utils import preflight_example as example


def parse(result: dict[str, t.Any]) -> ElementTree.Element:
    return ElementTree.fromstring(drawing.machine(result))


def of_class(picture: ElementTree.Element, tag: str, name: str) -> list[ElementTree.Element]:
    return [element for element in picture.iter(tag) if name in element.get("class", "").split()]


def numbers(element: ElementTree.Element, *names: str) -> list[float]:
    return [float(element.get(name, "nan")) for name in names]


def texts(picture: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in picture.iter("text")]


def machine_of(count: int, remote: str = "switch", links: int = 12) -> dict[str, t.Any]:
    return example.result([example.gpu(index, remote=remote, links=links) for index in range(count)], remote=remote)


@pytest.mark.parametrize("remote", ["switch", "gpu"])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 8, 9, 10, 16])
def test_boxes_do_not_overlap_and_stay_inside(count: int, remote: str) -> None:
    picture = parse(machine_of(count, remote))
    _left, _top, width, height = (float(part) for part in picture.get("viewBox", "").split())
    boxes = [numbers(box, "x", "y", "width", "height") for box in of_class(picture, "rect", "box")]
    assert len(boxes) == count
    for position, (x, y, w, h) in enumerate(boxes):
        assert 0 <= x <= x + w <= width and 0 <= y <= y + h <= height
        for other_x, other_y, other_w, other_h in boxes[position + 1 :]:
            assert x + w <= other_x or other_x + other_w <= x or y + h <= other_y or other_y + other_h <= y
    for line in picture.iter("line"):
        x1, y1, x2, y2 = numbers(line, "x1", "y1", "x2", "y2")
        assert 0 <= min(x1, x2) <= max(x1, x2) <= width and 0 <= min(y1, y2) <= max(y1, y2) <= height


@pytest.mark.parametrize("remote", ["switch", "gpu"])
@pytest.mark.parametrize("count", [1, 8, 16])
def test_everything_is_inside_the_picture_and_each_part_in_its_node(count: int, remote: str) -> None:
    picture = parse(machine_of(count, remote))
    _left, _top, width, height = (float(part) for part in picture.get("viewBox", "").split())
    for text in picture.iter("text"):
        x, y = numbers(text, "x", "y")
        assert 0 < x < width and 8 < y < height, text.text
    for rect in picture.iter("rect"):
        x, y, w, h = numbers(rect, "x", "y", "width", "height")
        assert 0 <= x <= x + w <= width and 0 <= y <= y + h <= height, rect.get("class")
    nodes = [numbers(node, "x", "y", "width", "height") for node in of_class(picture, "rect", "node")]
    boxes = [numbers(box, "x", "y", "width", "height") for box in of_class(picture, "rect", "box")]
    for switch in of_class(picture, "rect", "switch"):
        x, y, w, h = numbers(switch, "x", "y", "width", "height")
        assert any(nx <= x and x + w <= nx + nw and ny <= y and y + h <= ny + nh for nx, ny, nw, nh in nodes)
        # Between a switch and its GPUs there is room for the lines.
        assert not any(bx < x + w and x < bx + bw and by < y + h and y < by + bh for bx, by, bw, bh in boxes)
    for path in of_class(picture, "path", "nvlink"):
        depths = [float(part) for part in re.findall(r"C\S+ (\S+) \S+ (\S+) ", path.get("d", ""))[0]]
        start = float(re.findall(r"M\S+ (\S+) ", path.get("d", ""))[0])
        # Three quarters of the way to the control points is how far the curve reaches.
        reach = start + (depths[0] - start) * 0.75
        assert depths[0] == depths[1]
        assert 0 < reach < height


def test_gpus_are_grouped_by_node_and_switch() -> None:
    picture = parse(machine_of(8))
    nodes = [numbers(node, "x", "width") for node in of_class(picture, "rect", "node")]
    assert len(nodes) == 4
    boxes = sorted(numbers(box, "x", "width") for box in of_class(picture, "rect", "box"))
    for position, (x, width) in enumerate(nodes):
        inside = [box for box in boxes if x <= box[0] and box[0] + box[1] <= x + width]
        assert inside == boxes[2 * position : 2 * position + 2]
    assert [text for text in texts(picture) if text.startswith("NUMA")] == [f"NUMA node {n}" for n in (3, 1, 7, 5)]
    assert texts(picture).count("PCIe switch") == 4


def test_gpus_of_one_node_without_a_common_switch_have_ports_of_their_own() -> None:
    result = machine_of(2, "gpu")
    result["topology"][0]["pcie_level"] = "NODE"
    picture = parse(result)
    assert texts(picture).count("PCIe port") == 2
    assert len(of_class(picture, "rect", "node")) == 1


def test_a_gpu_on_a_root_bus_hangs_on_no_switch() -> None:
    result = machine_of(1, links=0)
    result["nvswitches"] = []
    result["gpus"][0]["pcie"]["upstream_port"] = None
    assert "PCI root" in texts(parse(result))


def test_sockets_are_named_where_they_are_told() -> None:
    result = machine_of(2)
    result["machine"]["numa"] = [{"node": 3, "socket": 0, "cpus": "48-63"}, {"node": 1, "socket": None, "cpus": ""}]
    assert "NUMA node 3 · socket 0" in texts(parse(result))


def test_every_gpu_has_a_line_to_the_nvswitches() -> None:
    picture = parse(machine_of(16))
    (fabric,) = of_class(picture, "rect", "fabric")
    y, height = numbers(fabric, "y", "height")
    ends = [numbers(line, "y1", "y2") for line in of_class(picture, "line", "nvlink")]
    assert len(ends) == 16
    assert {end for _start, end in ends} == {y, y + height}
    assert len(of_class(picture, "rect", "chip")) == 6


def test_links_that_are_down_are_told_by_line_and_word() -> None:
    gpus = [example.gpu(0), example.gpu(1, down=(3,)), example.gpu(2, down=tuple(range(12)))]
    picture = parse(example.result(gpus))
    assert [line.get("class") for line in of_class(picture, "line", "nvlink")] == [
        "nvlink",
        "nvlink some",
        "nvlink none",
    ]
    assert {"12 links", "11 of 12 links", "0 of 12 links"} <= set(texts(picture))


def test_nvswitches_that_the_bus_does_not_show_are_known_from_the_links() -> None:
    result = machine_of(2)
    result["nvswitches"] = []
    assert "6 NVSwitches" in texts(parse(result))
    assert texts(parse(result)).count("c4:00.0") == 1


def test_nvswitches_that_a_virtual_machine_does_not_see() -> None:
    result = machine_of(2)
    result["nvswitches"] = []
    for gpu in result["gpus"]:
        for link in gpu["nvlink"]["links"]:
            link["remote_pci_bus_id"] = None
    picture = parse(result)
    assert "NVSwitches, not on this system's PCI bus" in texts(picture)
    assert picture.get("aria-label", "").startswith("2 GPUs on 1 NUMA node, joined by hidden NVSwitches.")


@pytest.mark.parametrize("count", [4, 16])
def test_bridges_are_arcs_between_pairs(count: int) -> None:
    picture = parse(machine_of(count, "gpu"))
    assert len(of_class(picture, "path", "nvlink")) == count // 2
    assert texts(picture).count("NV12") == count // 2
    assert of_class(picture, "rect", "fabric") == []


def test_the_verdict_of_a_gpu_is_colour_symbol_and_word() -> None:
    picture = parse(example.troubled())
    groups = {text: group for group in picture.iter("g") for text in texts(group) if text.startswith("GPU ")}
    assert [of_class(groups[f"GPU {index}"], "rect", "box")[0].get("class") for index in range(8)] == [
        "box warn", "box warn", "box fail", "box warn", "box warn", "box fail", "box warn", "box warn",
    ]  # fmt: skip
    assert {"✕", "fail"} <= set(texts(groups["GPU 2"]))
    assert {"!", "warn"} <= set(texts(groups["GPU 0"]))


def test_the_picture_in_words() -> None:
    assert parse(machine_of(8)).get("aria-label") == (
        "8 GPUs on 4 NUMA nodes, joined by 6 NVSwitches. All are as they should be."
    )
    assert parse(example.troubled()).get("aria-label") == (
        "8 GPUs on 4 NUMA nodes, joined by 6 NVSwitches. fail: GPUs 2, 5. warn: GPUs 0-1, 3-4, 6-7."
    )


def test_a_picture_for_a_file_of_its_own_brings_its_style() -> None:
    picture = ElementTree.fromstring(drawing.machine(machine_of(2), alone=True))
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    (style,) = picture.iter("{http://www.w3.org/2000/svg}style")
    assert "--pass-tint" in (style.text or "")


@pytest.mark.parametrize(("value", "full", "share"), [(0, 10, 0), (5, 10, 0.5), (20, 10, 1), (-3, 10, 0), (3, 0, 0)])
def test_a_bar_is_never_longer_than_its_track(value: float, full: float, share: float) -> None:
    track, fill = list(ElementTree.fromstring(drawing.meter(value, full, "x")).iter("rect"))
    assert float(fill.get("width", "")) == pytest.approx(share * float(track.get("width", "")))


def test_a_tick_stands_where_the_limit_is() -> None:
    (tick,) = ElementTree.fromstring(drawing.meter(50, 400, "x", ticks=[300])).iter("line")
    assert numbers(tick, "x1", "x2") == [63, 63]
    (last,) = ElementTree.fromstring(drawing.meter(50, 400, "x", ticks=[400])).iter("line")
    assert numbers(last, "x1", "x2") == [83, 83]


def test_a_link_that_is_down_is_crossed_out_within_its_square() -> None:
    links = [{"link": 0, "state": "active"}, {"link": 1, "state": "inactive"}, {"link": 2, "state": "sleep"}]
    picture = ElementTree.fromstring(drawing.link_squares(links))
    assert picture.get("aria-label") == "2 of 3 NVLinks up"
    (line,) = picture.iter("line")
    (square,) = of_class(picture, "rect", "down")
    x, y, width, height = numbers(square, "x", "y", "width", "height")
    x1, y1, x2, y2 = numbers(line, "x1", "y1", "x2", "y2")
    assert x < x1 < x2 < x + width and y < y1 < y2 < y + height


def test_the_shares_of_verdicts_fill_the_line() -> None:
    picture = ElementTree.fromstring(drawing.shares({"fail": 1, "pass": 3}))
    assert [numbers(part, "x", "width") for part in picture.iter("rect")] == [[0, 248], [250, 748]]


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (80 << 30, "80 GiB"),
        (2 << 40, "2 TiB"),
        ((1 << 40) * 1.9569, "1.96 TiB"),
        (1536, "1.5 KiB"),
    ],
)
def test_sizes(count: float, words: str) -> None:
    assert drawing.size(count) == words


@pytest.mark.parametrize("text", ["", None, "yesterday", 3])
def test_what_is_no_time(text: object) -> None:
    assert drawing.moment(text) is None


def test_times_without_a_zone_are_utc() -> None:
    assert drawing.moment("2026-11-30T10:00:00") == drawing.moment("2026-11-30T10:00:00Z")


def test_times_are_marked_in_proportion_and_within_the_axis() -> None:
    since, until = drawing.moment("2026-11-01T00:00:00Z"), drawing.moment("2026-11-05T00:00:00Z")
    assert since and until
    times = ["2026-11-01T00:00:00Z", "2026-11-03T00:00:00Z", "2026-11-05T00:00:00Z"]
    events = [{"time": time, "xid": 31, "pci_bus_id": f"{lane}"} for lane, time in enumerate(times)]
    picture = ElementTree.fromstring(drawing.timeline(events, since, until, {"0": "GPU 0"}))
    _left, _top, width, height = (float(part) for part in picture.get("viewBox", "").split())
    marks = [[float(n) for n in re.findall(r"M(\S+) (\S+)", mark.get("d", ""))[0]] for mark in picture.iter("path")]
    assert marks[1][0] - marks[0][0] == pytest.approx(marks[2][0] - marks[1][0])
    (axis, *_rest) = of_class(picture, "line", "axis")
    assert [marks[0][0], marks[2][0]] == numbers(axis, "x1", "x2")
    # A lane for each GPU, below one another.
    assert len({y for _x, y in marks}) == 3
    for text in picture.iter("text"):
        x, y = numbers(text, "x", "y")
        assert 0 < x < width and 0 < y < height
    assert "GPU 0" in texts(picture)


def test_xids_at_the_same_time_do_not_write_over_one_another() -> None:
    since, until = drawing.moment("2026-11-01T00:00:00Z"), drawing.moment("2026-11-30T00:00:00Z")
    assert since and until
    events = [{"time": f"2026-11-12T00:00:{second:02}Z", "xid": 31, "pci_bus_id": None} for second in range(20)]
    picture = ElementTree.fromstring(drawing.timeline(events, since, until, {}))
    assert len(of_class(picture, "path", "solid")) == 20
    assert texts(picture).count("31") == 1
    assert "host" in texts(picture)
