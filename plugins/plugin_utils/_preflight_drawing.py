# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""The pictures of the preflight report, as SVG: the machine, bars, links, a timeline, curves."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

from ansible_collections.baremetal.inference.plugins.plugin_utils._html import Html, join, tag
from ansible_collections.baremetal.inference.plugins.plugin_utils._preflight_findings import (
    Result,
    gpu_health,
    look,
    ranges,
)
from ansible_collections.baremetal.inference.plugins.plugin_utils._preflight_style import DRAWING

Gpu = t.Mapping[str, t.Any]

# Measures of the machine's picture, in its own units.
_GPU_WIDTH, _GPU_HEIGHT, _GPU_GAP = 118, 96, 10
_PADDING, _NODE_GAP, _SWITCH_GAP = 12, 14, 18
_TO_SWITCH, _SWITCH_HEIGHT, _TO_GPU = 30, 20, 74
_LINKS_HEIGHT, _FABRIC_HEIGHT = 62, 58
_MARGIN = 4
# More than these make two rows, with the NVSwitches between them.
_GPUS_IN_A_ROW = 8
# Levels of gpu_info's topology at which two GPUs hang on the same PCIe switches.
_SWITCHED_LEVELS = ("INT", "PIX", "PXB")


def watts(value: float) -> str:
    return f"{value:.0f} W"


def size(count: float) -> str:
    """Bytes as people say them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.3g} {unit}" if count % 1 else f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


def _svg(wide: float, high: float, label: str, /, *children: t.Any, **attributes: object) -> Html:
    return tag(
        "svg",
        *children,
        viewBox=f"0 0 {wide:g} {high:g}",
        role="img",
        aria_label=label,
        **attributes,
    )


def _text(x: float, y: float, words: str, class_: str | None = None) -> Html:
    return tag("text", words, x=x, y=y, class_=class_)


def _line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Html:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def _rect(x: float, y: float, width: float, height: float, class_: str, *children: t.Any, rx: float = 3) -> Html:
    return tag("rect", *children, x=x, y=y, width=width, height=height, rx=rx, class_=class_)


# ---- The machine -----------------------------------------------------------------------------------------------------


@dataclass
class _Seat:
    """A GPU and where it is drawn. One that does not answer has nothing but its names."""

    gpu: Gpu
    verdict: str
    answers: bool
    x: float = 0
    y: float = 0
    # Whether it is in the lower row, with its NVLinks above it.
    lower: bool = False

    @property
    def links(self) -> tuple[int, int]:
        nvlink = self.gpu.get("nvlink") or {}
        return nvlink.get("active_count") or 0, nvlink.get("total_count") or 0

    def remotes(self) -> set[str]:
        links = (self.gpu.get("nvlink") or {}).get("links") or ()
        return {link["remote_device_type"] for link in links if link.get("remote_device_type")}

    def port(self) -> tuple[float, float]:
        """Where its NVLinks leave it."""
        return self.x + _GPU_WIDTH / 2, self.y if self.lower else self.y + _GPU_HEIGHT


@dataclass
class _Node:
    """A NUMA node with the PCIe switches on it, and the GPUs on those."""

    title: str
    switches: list[list[_Seat]] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(len(seats) for seats in self.switches)

    @property
    def width(self) -> float:
        gpus = self.count * _GPU_WIDTH + (self.count - len(self.switches)) * _GPU_GAP
        return gpus + (len(self.switches) - 1) * _SWITCH_GAP + 2 * _PADDING


_NODE_HEIGHT = _TO_GPU + _GPU_HEIGHT + _PADDING


def _seats(result: Result) -> list[_Seat]:
    seats = [_Seat(gpu, gpu_health(result, gpu), True) for gpu in result.get("gpus") or ()]
    known = {seat.gpu.get("pci_bus_id") for seat in seats}
    for gone in result.get("unavailable_gpus") or ():
        seats.append(_Seat(gone, "fail", False))
        known.add(gone.get("pci_bus_id"))
    on_the_bus = {gpu["pci_bus_id"]: gpu for gpu in result.get("pci_gpus") or ()}
    # Of a driver that cannot be asked, the bus still says what there is. Of one that can, it is asked about some perhaps.
    lost = result.get("missing_from_nvml") or (() if seats else on_the_bus)
    for bus_id in lost:
        if bus_id not in known:
            numa_node = on_the_bus.get(bus_id, {}).get("numa_node")
            seats.append(_Seat({"pci_bus_id": bus_id, "index": None, "pci": {"numa_node": numa_node}}, "fail", False))
    return sorted(seats, key=lambda seat: seat.gpu.get("pci_bus_id") or "~")


def _nodes(seats: t.Sequence[_Seat], result: Result) -> list[_Node]:
    sockets = {
        numa["node"]: numa["socket"]
        for numa in (result.get("machine") or {}).get("numa") or ()
        if numa.get("socket") is not None
    }
    switched = {
        frozenset((pair["a"], pair["b"]))
        for pair in result.get("topology") or ()
        if pair.get("pcie_level") in _SWITCHED_LEVELS
    }
    nodes: dict[int | None, _Node] = {}
    for seat in seats:
        number = (seat.gpu.get("pci") or {}).get("numa_node")
        if number not in nodes:
            title = "NUMA node not told" if number is None else f"NUMA node {number}"
            if number in sockets:
                title += f" \N{MIDDLE DOT} socket {sockets[number]}"
            nodes[number] = _Node(title)
        bus_id = seat.gpu.get("pci_bus_id")
        for seats_of_switch in nodes[number].switches:
            if any(frozenset((bus_id, other.gpu.get("pci_bus_id"))) in switched for other in seats_of_switch):
                seats_of_switch.append(seat)
                break
        else:
            nodes[number].switches.append([seat])
    return list(nodes.values())


def _rows(nodes: t.Sequence[_Node]) -> list[list[_Node]]:
    total = sum(node.count for node in nodes)
    if total <= _GPUS_IN_A_ROW or len(nodes) == 1:
        return [list(nodes)]
    upper: list[_Node] = []
    rest = list(nodes)
    while rest and sum(node.count for node in upper) + rest[0].count <= (total + 1) // 2:
        upper.append(rest.pop(0))
    return [row for row in (upper, rest) if row]


def _place_row(row: t.Sequence[_Node], width: float, top: float, lower: bool) -> list[Html]:
    drawn: list[Html] = []
    x = (width - _row_width(row)) / 2
    for node in row:
        drawn.append(_rect(x, top, node.width, _NODE_HEIGHT, "node", rx=10))
        drawn.append(_text(x + _PADDING, top + _NODE_HEIGHT - 10 if lower else top + 19, node.title, "small strong"))
        left = x + _PADDING
        for seats in node.switches:
            wide = len(seats) * (_GPU_WIDTH + _GPU_GAP) - _GPU_GAP
            gpu_top = top + _PADDING if lower else top + _TO_GPU
            switch_top = top + _NODE_HEIGHT - _TO_SWITCH - _SWITCH_HEIGHT if lower else top + _TO_SWITCH
            behind = any((seat.gpu.get("pcie") or {}).get("upstream_port") for seat in seats)
            drawn.append(_rect(left, switch_top, wide, _SWITCH_HEIGHT, "switch", rx=5))
            title = "PCIe switch" if len(seats) > 1 else "PCIe port" if behind else "PCI root"
            drawn.append(_text(left + wide / 2, switch_top + 14, title, "small middle"))
            for position, seat in enumerate(seats):
                seat.x, seat.y, seat.lower = left + position * (_GPU_WIDTH + _GPU_GAP), gpu_top, lower
                middle = seat.x + _GPU_WIDTH / 2
                ends = (gpu_top + _GPU_HEIGHT, switch_top) if lower else (switch_top + _SWITCH_HEIGHT, gpu_top)
                drawn.append(_line(middle, ends[0], middle, ends[1], "wire"))
            left += wide + _SWITCH_GAP
        x += node.width + _NODE_GAP
    return drawn


def _row_width(row: t.Sequence[_Node]) -> float:
    return sum(node.width for node in row) + _NODE_GAP * (len(row) - 1)


def _box(seat: _Seat) -> Html:
    gpu, verdict = seat.gpu, look(seat.verdict)
    index = gpu.get("index")
    name = "GPU ?" if index is None else f"GPU {index}"
    x, y = seat.x, seat.y
    lines = [name, str(gpu.get("name") or ""), str(gpu.get("uuid") or ""), f"{verdict.name}: {verdict.meaning}"]
    drawn = [
        tag("title", "\n".join(line for line in lines if line)),
        _rect(x, y, _GPU_WIDTH, _GPU_HEIGHT, f"box {verdict.name}{'' if seat.answers else ' gone'}", rx=9),
        tag("circle", cx=x + 17, cy=y + 18, r=9, class_=f"solid {verdict.name}"),
        _text(x + 17, y + 22.5, verdict.symbol, "on-solid middle"),
        _text(x + 32, y + 22.5, name, "strong"),
        _text(x + 10, y + 43, str(gpu.get("pci_bus_id") or "no PCI bus id"), "mono"),
    ]
    if seat.answers:
        drawn.append(_text(x + _GPU_WIDTH - 10, y + 79, verdict.name, f"small word strong end {verdict.name}"))
    else:
        drawn.append(
            _text(
                x + 10,
                y + 63,
                "unknown to driver" if index is None else "does not answer",
                f"small word strong {verdict.name}",
            )
        )
        return tag("g", *drawn)
    temperature = (gpu.get("temperature") or {}).get("gpu_celsius")
    usage = (gpu.get("power") or {}).get("usage_watts")
    readings = []
    if temperature is not None:
        readings.append(f"{temperature} \N{DEGREE SIGN}C")
    if usage is not None:
        readings.append(watts(usage))
    drawn.append(_text(x + 10, y + 62, " \N{MIDDLE DOT} ".join(readings), "small"))
    memory = gpu.get("memory")
    if memory and memory["total_bytes"]:
        inner = _GPU_WIDTH - 20
        drawn.append(_rect(x + 10, y + 84, inner, 4, "track", rx=2))
        drawn.append(_rect(x + 10, y + 84, inner * memory["used_bytes"] / memory["total_bytes"], 4, "fill", rx=2))
        drawn.append(_text(x + 10, y + 79, size(memory["total_bytes"]), "small"))
    return tag("g", *drawn)


def _wire_class(active: int, total: int) -> str:
    return "nvlink" if active == total else "nvlink some" if active else "nvlink none"


def _wires_to_fabric(seats: t.Iterable[_Seat], upper_edge: float, lower_edge: float) -> list[Html]:
    drawn = []
    for seat in seats:
        active, total = seat.links
        if not total:
            continue
        x, y = seat.port()
        end = lower_edge if seat.lower else upper_edge
        drawn.append(_line(x, y, x, end, _wire_class(active, total)))
        drawn.append(_text(x, (y + end) / 2 + 10, _of(active, total), "small strong middle halo"))
    return drawn


def _of(active: int, total: int) -> str:
    return f"{total} links" if active == total else f"{active} of {total} links"


def _switches(result: Result, seats: t.Iterable[_Seat]) -> list[str]:
    """NVSwitches by PCI bus id, from the bus, or else from what the links say is at their far ends."""
    on_the_bus = [switch["pci_bus_id"] for switch in result.get("nvswitches") or ()]
    if on_the_bus:
        return on_the_bus
    links = [link for seat in seats for link in (seat.gpu.get("nvlink") or {}).get("links") or ()]
    return sorted(
        {
            link["remote_pci_bus_id"]
            for link in links
            if link.get("remote_device_type") == "switch" and link.get("remote_pci_bus_id")
        }
    )


def _fabric(switches: t.Sequence[str], width: float, top: float) -> list[Html]:
    drawn = [_rect(_MARGIN, top, width - 2 * _MARGIN, _FABRIC_HEIGHT, "fabric", rx=10)]
    if not switches:
        words = "NVSwitches, not on this system's PCI bus"
        return [*drawn, _text(width / 2, top + _FABRIC_HEIGHT / 2 + 4, words, "strong middle")]
    title = f"{len(switches)} NVSwitch{'es' if len(switches) > 1 else ''}"
    drawn.append(_text(width / 2, top + 20, title, "strong middle"))
    step = min(112.0, (width - 40) / len(switches))
    left = (width - step * len(switches)) / 2
    for position, bus_id in enumerate(switches):
        x = left + position * step
        drawn.append(_rect(x + 5, top + 29, step - 10, 20, "chip", tag("title", f"NVSwitch {bus_id}"), rx=5))
        # Where they are many, the domain, which they share, makes room.
        words = bus_id if step > 96 else bus_id.partition(":")[2]
        drawn.append(_text(x + step / 2, top + 43, words, "mono middle"))
    return drawn


def _bridges(seats: t.Sequence[_Seat], result: Result) -> tuple[list[Html], float]:
    """Arcs between GPUs that NVLinks join directly, and how deep they hang."""
    at = {seat.gpu.get("pci_bus_id"): seat for seat in seats}
    drawn: list[Html] = []
    labels: list[Html] = []
    deepest = 0.0
    for pair in result.get("topology") or ():
        a, b = at.get(pair["a"]), at.get(pair["b"])
        if not pair.get("nvlink_count") or a is None or b is None:
            continue
        (ax, ay), (bx, by) = a.port(), b.port()
        words = f"NV{pair['nvlink_count']}"
        if a.lower != b.lower:
            drawn.append(_line(ax, ay, bx, by, "nvlink"))
            labels.append(_text((ax + bx) / 2, (ay + by) / 2, words, "small strong middle halo"))
            continue
        depth = 22 + abs(bx - ax) / 9
        deepest = max(deepest, depth)
        sign = -1 if a.lower else 1
        # A cubic curve reaches three quarters of the way to its control points.
        control = ay + sign * depth * 4 / 3
        drawn.append(
            tag("path", d=f"M{ax:g} {ay:g} C{ax:g} {control:.1f} {bx:g} {control:.1f} {bx:g} {by:g}", class_="nvlink")
        )
        labels.append(_text((ax + bx) / 2, ay + sign * depth + 4, words, "small strong middle halo"))
    return drawn + labels, deepest


def machine(result: Result, *, alone: bool = False) -> Html:
    """The machine from its NUMA nodes down to NVLink. `alone` makes it a file of its own."""
    seats = _seats(result)
    standalone: dict[str, object] = {"xmlns": "http://www.w3.org/2000/svg"} if alone else {"class_": "picture"}
    style = [tag("style", Html(DRAWING))] if alone else []
    if not seats:
        words = "No GPU that the driver can see"
        if not alone:
            standalone["style"] = "max-width:640px"
        empty = [_rect(4, 4, 632, 112, "box skipped gone", rx=10), _text(320, 64, words, "strong middle")]
        return _svg(640, 120, words, style, empty, **standalone)

    rows = _rows(_nodes(seats, result))
    # Room for what is written into the bar of the switches.
    width = max(340, *(_row_width(row) + 2 * _MARGIN for row in rows))
    if not alone:
        # A small machine's picture is not blown up to fill the page.
        standalone["style"] = f"max-width:{width * 1.1:.0f}px"
    switches = _switches(result, seats)
    switched = bool(switches) or any("switch" in seat.remotes() for seat in seats)
    drawn = _place_row(rows[0], width, _MARGIN, lower=False)
    bottom: float = _MARGIN + _NODE_HEIGHT
    if len(rows) > 1:
        # Across, everybody's place is settled now; how far down the lower row is depends on what comes between.
        _place_row(rows[1], width, 0, lower=True)
    if switched:
        below: float = _LINKS_HEIGHT + _FABRIC_HEIGHT + (_LINKS_HEIGHT if len(rows) > 1 else 0)
    else:
        depth = _bridges(seats, result)[1]
        below = 2 * depth + 24 if len(rows) > 1 else max(0.0, depth - _PADDING) + 12 if depth else 0
    height = bottom + below + _MARGIN
    if len(rows) > 1:
        drawn += _place_row(rows[1], width, bottom + below, lower=True)
        height += _NODE_HEIGHT
    if switched:
        top = bottom + _LINKS_HEIGHT
        wires = _wires_to_fabric(seats, top, top + _FABRIC_HEIGHT) + _fabric(switches, width, top)
    else:
        wires = _bridges(seats, result)[0]
    return _svg(
        width,
        height,
        describe(seats, rows, len(switches) if switched else None),
        style,
        drawn,
        wires,
        map(_box, seats),
        **standalone,
    )


def describe(seats: t.Sequence[_Seat], rows: t.Sequence[t.Sequence[_Node]], switches: int | None) -> str:
    """The picture in words, for those who do not see it."""
    nodes = sum(len(row) for row in rows)
    words = f"{len(seats)} GPU{'s' if len(seats) > 1 else ''} on {nodes} NUMA node{'s' if nodes > 1 else ''}"
    if switches is not None:
        words += f", joined by {switches or 'hidden'} NVSwitch{'' if switches == 1 else 'es'}"
    parts = [f"{words}."]
    for verdict in ("fail", "warn", "unknown"):
        ill = sorted(
            seat.gpu["index"] for seat in seats if seat.verdict == verdict and seat.gpu.get("index") is not None
        )
        if ill:
            parts.append(f"{verdict}: GPU{'s' if len(ill) > 1 else ''} {ranges(ill)}.")
    if all(seat.verdict == "pass" for seat in seats):
        parts.append("All are as they should be.")
    return " ".join(parts)


# ---- Small pictures for tables ---------------------------------------------------------------------------------------


def meter(value: float, full: float, words: str, *, ticks: t.Iterable[float] = (), verdict: str | None = None) -> Html:
    """How much of something; a tick for each limit on the way."""
    width, height = 84, 9
    filled = 0.0 if full <= 0 else min(1.0, max(0.0, value / full))
    marks = [
        _line(min(width - 1, width * tick / full), 0, min(width - 1, width * tick / full), height, "tick")
        for tick in ticks
        if full > 0
    ]
    return _svg(
        width,
        height,
        words,
        _rect(0, 1.5, width, 6, "track"),
        _rect(0, 1.5, width * filled, 6, f"solid {verdict}" if verdict else "fill"),
        marks,
        width=width,
        height=height,
    )


def link_squares(links: t.Sequence[t.Mapping[str, t.Any]]) -> Html:
    """One square for each NVLink, in rows of six; one that is down is hollow and crossed out."""
    step, edge = 14, 11
    columns = min(6, len(links))
    lines = -(-len(links) // 6)
    drawn = []
    up = 0
    for position, link in enumerate(links):
        x, y = position % 6 * step + 0.5, position // 6 * step + 0.5
        words = tag("title", f"link {link.get('link')}: {link.get('state')}")
        if link.get("state") in ("active", "sleep"):
            up += 1
            drawn.append(_rect(x, y, edge, edge, "up", words, rx=2))
        else:
            drawn.append(_rect(x, y, edge, edge, "down", words, rx=2))
            drawn.append(_line(x + 2, y + 2, x + edge - 2, y + edge - 2, "limit"))
    width, height = columns * step, lines * step
    return _svg(width, height, f"{up} of {len(links)} NVLinks up", drawn, width=width, height=height)


def shares(numbers: t.Mapping[str, int]) -> Html:
    """How the verdicts share the whole, gravest first."""
    total = sum(numbers.values())
    drawn = []
    x = 0.0
    for name, number in numbers.items():
        width = 1000 * number / total
        words = tag("title", f"{number} {name}")
        drawn.append(_rect(x, 0, max(2.0, width - 2), 10, f"solid {look(name).name}", words, rx=0))
        x += width
    label = ", ".join(f"{number} {name}" for name, number in numbers.items())
    return _svg(1000, 10, label, drawn, class_="share", preserveAspectRatio="none")


# ---- Over time -------------------------------------------------------------------------------------------------------


def moment(text: object) -> datetime | None:
    """A time as ISO 8601 writes it; None for what is none."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def timeline(
    events: t.Sequence[t.Mapping[str, t.Any]], since: datetime, until: datetime, names: t.Mapping[str, str]
) -> Html:
    """Xid events as marks in time, a lane for each GPU that has any."""
    dated = [(at, event) for event in events if (at := moment(event.get("time"))) is not None]
    lanes = sorted({str(event.get("pci_bus_id") or "host") for _at, event in dated})
    left, right, lane_height, top = 150, 1084, 38, 12
    bottom = top + lane_height * len(lanes)
    span = max((until - since).total_seconds(), 1.0)

    def across(at: datetime) -> float:
        return left + (right - left) * min(1.0, max(0.0, (at - since).total_seconds() / span))

    drawn = [_line(left, bottom, right, bottom, "axis")]
    for part in range(5):
        at = since + timedelta(seconds=span * part / 4)
        drawn.append(_line(across(at), top, across(at), bottom + 5, "axis"))
        form = "%d %b" if span > 3 * 86400 else "%d %b %H:%M"
        drawn.append(_text(across(at), bottom + 20, at.strftime(form), "small middle"))
    for position, lane in enumerate(lanes):
        y = top + lane_height * position + lane_height / 2
        drawn.append(_text(left - 14, y + 4, names.get(lane, lane), "small end"))
        drawn.append(_line(left, y, right, y, "axis"))
        previous = -100.0
        for at, event in dated:
            if str(event.get("pci_bus_id") or "host") != lane:
                continue
            x = across(at)
            diamond = f"M{x:.1f} {y - 7:g} l6 7 l-6 7 l-6 -7 z"
            words = tag("title", f"{event.get('time')}  Xid {event.get('xid')}  {event.get('text') or ''}")
            # What happened before the last reboot is over, perhaps.
            recent = event.get("current_boot") is not False
            drawn.append(tag("path", words, d=diamond, class_="solid warn" if recent else "earlier"))
            # Numbers are left out where they would cover one another; the table below has them all.
            if x - previous > 34:
                drawn.append(_text(x, y - 9, str(event.get("xid")), "small strong middle"))
                previous = x
    label = f"{len(dated)} Xid errors between {since:%Y-%m-%d} and {until:%Y-%m-%d}"
    return _svg(1104, bottom + 28, label, drawn, class_="picture")


def curve(points: t.Sequence[tuple[float, float]], unit: str, words: str, limit: float | None = None) -> Html:
    """One reading over the minutes of a soak, from zero up, with its limit."""
    width, height, left, bottom = 270, 84, 4, 66
    top_value = max([value for _at, value in points] + ([limit] if limit else []) + [1.0]) * 1.08
    last = max(points[-1][0], 1.0)

    def at(second: float, value: float) -> tuple[float, float]:
        return left + (width - 2 * left) * second / last, bottom - (bottom - 8) * max(0.0, value) / top_value

    drawn = [_line(left, bottom, width - left, bottom, "axis")]
    if limit:
        y = at(0, limit)[1]
        drawn.append(_line(left, y, width - left, y, "limit"))
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in points))
    drawn.append(tag("polyline", points=path, class_="curve"))
    values = [value for _at, value in points]
    extent = f"{words} {min(values):.0f} to {max(values):.0f} {unit}"
    drawn.append(_text(left, height - 4, extent + (f", at most {limit:.0f}" if limit else ""), "small"))
    drawn.append(_text(width - left, height - 4, f"{last:.0f} s", "small end"))
    return _svg(width, height, f"{extent} in {last:.0f} s", drawn, class_="picture")


def icon(verdict: str, colour: str) -> str:
    """A tab's icon as a data URL: it needs no request."""
    drawing = join(
        tag(
            "svg",
            tag("circle", cx=8, cy=8, r=8, fill=colour),
            tag(
                "text",
                look(verdict).symbol,
                x=8,
                y=12,
                font_size=11,
                font_weight="bold",
                text_anchor="middle",
                font_family="sans-serif",
                fill="#fff",
            ),
            xmlns="http://www.w3.org/2000/svg",
            viewBox="0 0 16 16",
        )
    )
    return f"data:image/svg+xml,{quote(drawing)}"
