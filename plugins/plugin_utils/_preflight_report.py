# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""The preflight report of one host as a page of its own: no script, and nothing fetched from anywhere."""

from __future__ import annotations

import typing as t
from datetime import datetime, timedelta
from urllib.parse import quote

from ansible_collections.baremetal.inference.plugins.plugin_utils import _preflight_drawing as drawing
from ansible_collections.baremetal.inference.plugins.plugin_utils._html import Child, Html, tag
from ansible_collections.baremetal.inference.plugins.plugin_utils._preflight_findings import (
    GRAVE,
    VERDICTS,
    Finding,
    Result,
    Subjects,
    by_group,
    counts,
    findings,
    gpu_health,
    gravest_first,
    group_title,
    in_words,
    look,
    shown,
    worst,
)
from ansible_collections.baremetal.inference.plugins.plugin_utils._preflight_style import LIGHT, PAGE

Gpu = t.Mapping[str, t.Any]

_DOT = "\N{MIDDLE DOT}"
_TIMES = "\N{MULTIPLICATION SIGN}"
_CELSIUS = "\N{DEGREE SIGN}C"
# Kernel logs can hold the same Xid thousands of times. The JSON beside the page has all.
_XIDS_SHOWN = 60
_LEVELS = {
    "NV#": ("nv", "joined by that many NVLinks"),
    "PIX": ("pix", "through one PCIe switch"),
    "PXB": ("pxb", "through several PCIe switches"),
    "PHB": ("phb", "through a PCIe host bridge, that is the processor"),
    "NODE": ("node", "between host bridges of one NUMA node"),
    "SYS": ("sys", "between NUMA nodes: the longest way"),
}


def page(title: str, verdict: str, *body: Child) -> str:
    """A whole document. The policy makes browsers refuse whatever would be fetched or run, were any of it there."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag(
            "meta",
            http_equiv="Content-Security-Policy",
            content="default-src 'none'; style-src 'unsafe-inline'; img-src data:",
        ),
        tag("title", title),
        tag("link", rel="icon", href=drawing.icon(verdict, LIGHT[f"{look(verdict).name}-solid"])),
        tag("style", Html(PAGE)),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', tag('main', *body)), lang='en')}\n"


def badge(verdict: str, words: str | None = None) -> Html:
    shape = look(verdict)
    return tag(
        "span",
        tag("span", shape.symbol, class_="symbol", aria_hidden="true"),
        tag("span", shape.name if words is None else words),
        class_=f"badge {shape.name}",
    )


def banner(verdict: str, title: str, headline: str, facts: t.Iterable[Child], numbers: t.Mapping[str, int]) -> Html:
    return tag(
        "header",
        tag("div", look(verdict).symbol, class_="seal", aria_hidden="true"),
        tag(
            "div",
            tag("h1", title),
            tag("p", headline, class_="verdict"),
            tag("p", [tag("span", fact) for fact in facts], class_="facts"),
            tag("div", [badge(name, f"{number} {name}") for name, number in numbers.items()], class_="badges"),
            drawing.shares(numbers) if numbers else None,
            style="flex:1;min-width:0",
        ),
        class_=f"banner {look(verdict).name}",
    )


def task(finding: Finding, where: Child) -> Html:
    """Something to do: what was seen, what was wanted, what to do about it."""
    return tag(
        "div",
        tag(
            "div",
            badge(finding.verdict),
            tag("h3", finding.title),
            tag("span", group_title(finding.group), f" {_DOT} ", where, class_="muted"),
            class_="head",
        ),
        tag(
            "dl",
            tag("dt", "Found"),
            tag("dd", "; ".join(observed for observed, _subjects in finding.seen[:4])),
            [tag("dt", "Wanted"), tag("dd", finding.expected)] if finding.expected else None,
            [tag("dt", "What to do"), tag("dd", finding.fix, class_="fix")] if finding.fix else None,
        ),
        class_=f"task {look(finding.verdict).name}",
    )


def legend_of_verdicts() -> Html:
    items = [tag("li", badge(name), " ", shape.meaning) for name, shape in reversed(VERDICTS.items())]
    return tag("ul", items)


def count_of(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def render(result: Result, *, json_name: str | None = None) -> str:
    """The page of one host."""
    subjects = Subjects(result)
    host = str(result.get("host") or "unnamed host")
    verdict = shown(look(check["verdict"]).name for check in result.get("checks") or ())
    numbers = counts(result.get("checks") or ())
    return page(
        f"{host}: {look(verdict).headline}",
        verdict,
        banner(verdict, host, look(verdict).headline, _facts(result), numbers),
        _tiles(result),
        _tasks(result, subjects),
        _machine(result),
        _matrix(result),
        _gpus(result),
        _xids(result, subjects),
        _soak(result, subjects),
        _checks(result, subjects),
        _footer(result, json_name),
    )


# ---- At a glance -----------------------------------------------------------------------------------------------------


def gpu_names(gpus: t.Sequence[Gpu]) -> str:
    """8 x NVIDIA A100-SXM4-80GB"""
    names: dict[str, int] = {}
    for gpu in gpus:
        name = str(gpu.get("name") or "GPU of unknown name")
        names[name] = names.get(name, 0) + 1
    return ", ".join(f"{number} {_TIMES} {name}" for name, number in names.items()) or "no GPU"


def _facts(result: Result) -> t.Iterator[Child]:
    machine = result.get("machine") or {}
    driver = result.get("driver") or {}
    product = " ".join(str(machine[key]) for key in ("vendor", "product") if machine.get(key))
    if product:
        yield [tag("b", product), f", serial {machine['serial']}" if machine.get("serial") else None]
    yield tag("b", gpu_names(result.get("gpus") or ()))
    if machine.get("cpu_model"):
        sockets = f"{machine['sockets']} {_TIMES} " if machine.get("sockets") else ""
        yield f"{sockets}{machine['cpu_model']}"
    if machine.get("numa_nodes"):
        yield count_of(machine["numa_nodes"], "NUMA node")
    if machine.get("memory_bytes"):
        yield f"{drawing.size(machine['memory_bytes'])} memory"
    system = ", ".join(str(machine[key]) for key in ("os", "kernel") if machine.get(key))
    if system:
        yield system
    if driver.get("driver_version"):
        cuda = f", CUDA {driver['cuda_driver_version']}" if driver.get("cuda_driver_version") else ""
        yield f"driver {driver['driver_version']}{cuda}"
    if machine.get("virtual"):
        yield "virtual machine"
    if result.get("time"):
        yield f"examined {result['time']}"


def _tiles(result: Result) -> Html:
    tiles = []
    for group, checks in by_group(result).items():
        verdict = shown(look(check["verdict"]).name for check in checks)
        rest = in_words(counts(checks))
        tiles.append(
            tag(
                "a",
                tag("strong", group_title(group)),
                tag("span", f"{look(verdict).symbol} {look(verdict).name}", class_="word"),
                tag("span", rest, class_="rest"),
                href=f"#group-{_anchor(group)}",
                class_=f"tile {look(verdict).name}",
            )
        )
    return tag("nav", tiles, class_="tiles", aria_label="Groups of checks")


def _anchor(group: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in group)


def _tasks(result: Result, subjects: Subjects) -> Html:
    found = gravest_first(
        finding for finding in findings(result.get("checks") or ()) if look(finding.verdict).name in GRAVE
    )
    if found:
        content: Child = [task(finding, subjects.names(finding.subjects)) for finding in found]
    else:
        content = tag("p", "Nothing. Every check that could be made came out well.", class_="note")
    return tag("section", tag("h2", "What to do"), content, id="to-do")


# ---- The machine -----------------------------------------------------------------------------------------------------


def _machine(result: Result) -> Html:
    note = (
        "GPUs under the PCIe switches and NUMA nodes that they hang on, coloured by the gravest thing found about each."
    )
    return tag(
        "section",
        tag("h2", "The machine"),
        tag("p", note, class_="note"),
        tag("div", drawing.machine(result), class_="scroll"),
        id="machine",
    )


def level_class(level: str | None) -> str | None:
    if level is None:
        return None
    if level.startswith("NV"):
        return "nv"
    return {"INT": "pix", **{name: class_ for name, (class_, _words) in _LEVELS.items()}}.get(level)


def _matrix(result: Result) -> Html | None:
    gpus = result.get("gpus") or ()
    pairs = {}
    for pair in result.get("topology") or ():
        pairs[pair["a"], pair["b"]] = pairs[pair["b"], pair["a"]] = pair
    if len(gpus) < 2 or not pairs:
        return None
    troubles = {
        frozenset(str(check["subject"]).split(" - ")): check
        for check in result.get("checks") or ()
        if look(check["verdict"]).name in ("warn", "fail") and " - " in str(check["subject"])
    }
    tables = [_levels(gpus, pairs, troubles, "level", "The best way between each two")]
    if any(pair.get("level") != pair.get("pcie_level") for pair in pairs.values()):
        tables.append(_levels(gpus, pairs, {}, "pcie_level", "The same without NVLink"))
    used = {level_class(pair.get(key)) for pair in pairs.values() for key in ("level", "pcie_level")}
    legend = [
        tag("li", tag("span", name, class_=f"swatch level-{class_}"), words)
        for name, (class_, words) in _LEVELS.items()
        if class_ in used
    ]
    if troubles:
        legend.append(tag("li", "\N{WARNING SIGN} a check found fault with this pair"))
    return tag(
        "section",
        tag("h2", "How the GPUs reach each other"),
        tag("div", tables, class_="matrices"),
        tag("ul", legend, class_="legend"),
        id="topology",
    )


def _levels(
    gpus: t.Sequence[Gpu],
    pairs: t.Mapping[tuple[str, str], t.Mapping[str, t.Any]],
    troubles: t.Mapping[frozenset[str], t.Mapping[str, t.Any]],
    key: str,
    caption: str,
) -> Html:
    head = tag("tr", tag("td", class_="self"), [tag("th", str(gpu["index"]), scope="col") for gpu in gpus])
    rows = []
    for row in gpus:
        cells = []
        for column in gpus:
            if row is column:
                cells.append(tag("td", "\N{EM DASH}", class_="self", aria_label="itself"))
                continue
            ends = (row["pci_bus_id"], column["pci_bus_id"])
            cells.append(_cell(pairs.get(ends) or {}, key, troubles.get(frozenset(ends))))
        rows.append(tag("tr", tag("th", f"GPU {row['index']}", scope="row", title=row["pci_bus_id"]), cells))
    table = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", rows), class_="matrix")
    return tag("div", table, class_="scroll")


def _cell(pair: t.Mapping[str, t.Any], key: str, trouble: t.Mapping[str, t.Any] | None) -> Html:
    level = pair.get(key)
    p2p = pair.get("p2p") or {}
    reach = ", ".join(f"{way} {p2p[way]}" for way in ("read", "write", "nvlink") if p2p.get(way))
    class_ = level_class(level)
    classes = [f"level-{class_}" if class_ else "self"] + (["trouble"] if trouble else [])
    words = f"{pair.get('a')} and {pair.get('b')}; peer access: {reach or 'not told'}"
    if trouble:
        words += f"; {trouble['title']}: {trouble['observed']}"
    return tag("td", level or "?", " \N{WARNING SIGN}" if trouble else None, class_=" ".join(classes), title=words)


# ---- GPUs ------------------------------------------------------------------------------------------------------------


class _Row:
    """One GPU's row; a cell shows the verdict of its group where that is grave."""

    def __init__(self, result: Result, gpu: Gpu) -> None:
        self.gpu = gpu
        self.health = gpu_health(result, gpu)
        self.verdicts: dict[str, list[str]] = {}
        for check in result.get("checks") or ():
            if check.get("subject") == gpu.get("pci_bus_id") or (
                check.get("gpu") is not None and check.get("gpu") == gpu.get("index")
            ):
                self.verdicts.setdefault(str(check["group"]), []).append(look(check["verdict"]).name)

    def grave(self, group: str) -> str | None:
        verdict = worst(self.verdicts.get(group, ()))
        return verdict if verdict in GRAVE else None

    def cell(self, group: str | None, *content: Child) -> Html:
        verdict = self.grave(group) if group else None
        return tag("td", content, badge(verdict) if verdict else None)


def _sub(*words: Child) -> Html:
    return tag("span", *words, class_="sub")


def _gpus(result: Result) -> Html | None:
    gpus = result.get("gpus") or ()
    if not gpus:
        return None
    columns = ("GPU", "Memory in use", "Power", "Temperature", "PCIe", "ECC", "Replaced rows", "NVLinks", "Modes")
    # The page's head says what they are when they are all the same.
    mixed = len({gpu.get("name") for gpu in gpus}) > 1
    rows = []
    for gpu in gpus:
        row = _Row(result, gpu)
        name = [
            f"GPU {gpu['index']} ",
            badge(row.health),
            tag("span", str(gpu.get("pci_bus_id") or ""), class_="sub mono"),
            _sub(str(gpu.get("name") or "")) if mixed else None,
        ]
        cells = [
            row.cell(None, _memory(gpu)),
            row.cell("power", _power(gpu, row.grave("power"))),
            # Heat is in the group of power, whose verdict stands beside it already.
            row.cell(None, _temperature(gpu, row.grave("power"))),
            row.cell("pcie", _pcie(gpu)),
            row.cell("ecc", _ecc(gpu)),
            row.cell(None, _rows(gpu)),
            row.cell("nvlink", _links(gpu)),
            row.cell("mig", _modes(gpu)),
        ]
        rows.append(tag("tr", tag("th", name, scope="row"), cells))
    head = tag("tr", [tag("th", column, scope="col") for column in columns])
    return tag(
        "section",
        tag("h2", "GPUs"),
        tag(
            "p",
            "Readings at the time of the examination. An idle GPU may run a slower PCIe link than it can.",
            class_="note",
        ),
        tag("div", tag("table", tag("thead", head), tag("tbody", rows), class_="gpus number"), class_="scroll"),
        _identities(gpus),
        id="gpus",
    )


def _memory(gpu: Gpu) -> Child:
    memory = gpu.get("memory")
    if not memory:
        return "not told"
    words = f"{drawing.size(memory['used_bytes'])} of {drawing.size(memory['total_bytes'])}"
    bar1 = (gpu.get("bar1") or {}).get("total_bytes")
    return [
        words,
        drawing.meter(memory["used_bytes"], memory["total_bytes"], words),
        _sub(f"BAR1 {drawing.size(bar1)}") if bar1 else None,
    ]


def _power(gpu: Gpu, verdict: str | None) -> Child:
    power = gpu.get("power") or {}
    usage, limit = power.get("usage_watts"), power.get("limit_enforced_watts")
    if usage is None or limit is None:
        return "not told" if usage is None else drawing.watts(usage)
    words = f"{usage:.0f} of {drawing.watts(limit)}"
    full = max(limit, power.get("limit_max_watts") or 0, power.get("limit_default_watts") or 0)
    default = power.get("limit_default_watts")
    return [
        words,
        drawing.meter(usage, full, words, ticks=[limit], verdict=verdict),
        _sub(f"default {drawing.watts(default)}") if default is not None and default != limit else None,
    ]


def _temperature(gpu: Gpu, verdict: str | None) -> Child:
    temperature = gpu.get("temperature") or {}
    now, slowdown = temperature.get("gpu_celsius"), temperature.get("threshold_slowdown_celsius")
    if now is None:
        return "not told"
    if slowdown is None:
        return f"{now} \N{DEGREE SIGN}C"
    words = f"{now} of {slowdown} \N{DEGREE SIGN}C"
    memory = temperature.get("memory_celsius")
    soft = temperature.get("threshold_gpu_max_celsius")
    return [
        words,
        drawing.meter(now, slowdown, words, ticks=[soft] if soft is not None else [], verdict=verdict),
        _sub(f"memory {memory} \N{DEGREE SIGN}C") if memory is not None else None,
    ]


def _pcie(gpu: Gpu) -> Child:
    pcie = gpu.get("pcie") or {}
    if pcie.get("generation_current") is None or pcie.get("width_current") is None:
        return "not told"
    now = f"Gen {pcie['generation_current']} {_TIMES}{pcie['width_current']}"
    # The slot can be the weaker end: NVML's maximum is what both can do.
    most = [f"Gen {pcie['generation_max']}" if pcie.get("generation_max") is not None else None]
    most.append(f"{_TIMES}{pcie['width_max']}" if pcie.get("width_max") is not None else None)
    words = " ".join(part for part in most if part)
    replays = pcie.get("replay_count")
    return [
        now,
        _sub(f"at most {words}") if words else None,
        _sub(f"{count_of(replays, 'replay')}") if replays else None,
    ]


def _ecc(gpu: Gpu) -> Child:
    ecc = gpu.get("ecc") or {}
    if not ecc.get("supported"):
        return "no ECC"
    current, pending = ecc.get("current"), ecc.get("pending")
    mode = str(current or "not told")
    if pending and pending != current:
        mode += f", {pending} after a reboot"
    lines: list[Child] = [mode]
    told = False
    for name, words in (("volatile", "since driver load"), ("aggregate", "in its life")):
        errors = ecc.get(name) or {}
        corrected, uncorrected = errors.get("corrected"), errors.get("uncorrected")
        told = told or corrected is not None or uncorrected is not None
        if corrected or uncorrected:
            numbers = [
                f"{corrected} corrected" if corrected else None,
                f"{uncorrected} uncorrected" if uncorrected else None,
            ]
            lines.append(_sub([[number, tag("br")] for number in numbers if number], words))
    if len(lines) == 1:
        lines.append(_sub("no errors" if told else "errors not told"))
    return lines


def _rows(gpu: Gpu) -> Child:
    rows = gpu.get("remapped_rows")
    if not rows:
        return "not told"
    replaced = rows["correctable"] + rows["uncorrectable"]
    return [
        "none" if not replaced else f"{replaced}",
        _sub(f"{rows['uncorrectable']} uncorrectable") if rows["uncorrectable"] else None,
        _sub("one waits for a reset") if rows.get("pending") else None,
        _sub(tag("b", "one had no spare")) if rows.get("failure") else None,
    ]


def _links(gpu: Gpu) -> Child:
    nvlink = gpu.get("nvlink")
    if not nvlink:
        return "not told"
    if not nvlink.get("links"):
        return "has none"
    errors = sum(value or 0 for link in nvlink["links"] for value in (link.get("errors") or {}).values())
    return [
        f"{nvlink['active_count']} of {nvlink['total_count']} up",
        drawing.link_squares(nvlink["links"]),
        _sub(count_of(errors, "link error")) if errors else None,
    ]


def _modes(gpu: Gpu) -> Child:
    mig = gpu.get("mig_mode") or {}
    lines: list[Child] = [f"persistence {gpu.get('persistence_mode') or 'not told'}"]
    if mig.get("current"):
        later = f", {mig['pending']} after a reset" if mig.get("pending") not in (None, mig["current"]) else ""
        lines.append(_sub(f"MIG {mig['current']}{later}"))
    if gpu.get("compute_mode") not in (None, "default"):
        lines.append(_sub(f"compute mode {gpu['compute_mode']}"))
    slow = [reason for reason in gpu.get("clocks_event_reasons") or () if reason != "gpu_idle"]
    if slow:
        lines.append(_sub(f"held back: {', '.join(slow)}"))
    return lines


def _identities(gpus: t.Sequence[Gpu]) -> Html:
    rows = [
        tag(
            "tr",
            tag("th", f"GPU {gpu['index']}", scope="row"),
            [
                tag("td", str(gpu.get(key) or "not told"), class_="mono")
                for key in ("uuid", "serial", "board_part_number", "vbios_version")
            ],
        )
        for gpu in gpus
    ]
    head = tag("tr", [tag("th", name, scope="col") for name in ("GPU", "UUID", "Serial", "Board", "Video BIOS")])
    return tag("div", tag("table", tag("thead", head), tag("tbody", rows)), class_="scroll", style="margin-top:22px")


# ---- Over time -------------------------------------------------------------------------------------------------------


def _xids(result: Result, subjects: Subjects) -> Html | None:
    log = result.get("kernel_log") or {}
    events = [event for event in log.get("xids") or () if isinstance(event, dict)]
    if not events:
        return None
    times = [at for event in events if (at := drawing.moment(event.get("time"))) is not None]
    until = drawing.moment(result.get("time")) or (max(times) if times else None)
    picture = None
    if times and until is not None:
        since = drawing.moment(log.get("since")) or min(times) - timedelta(hours=1)
        lanes = {bus_id: f"GPU {index} ({bus_id})" for bus_id, index in subjects.gpus.items()}
        picture = tag(
            "div", drawing.timeline(events, min([since, *times]), max([until, *times]), lanes), class_="scroll"
        )
    newest = sorted(events, key=_when, reverse=True)
    rows = [
        tag(
            "tr",
            tag(
                "td",
                str(event.get("time") or "not told"),
                _sub("before the last boot") if event.get("current_boot") is False else None,
                class_="number",
            ),
            tag("td", subjects.name(str(event.get("pci_bus_id") or "host"))),
            tag("td", str(event.get("xid"))),
            tag("td", tag("span", str(event.get("text") or ""), class_="mono"), class_="wrap"),
        )
        for event in newest[:_XIDS_SHOWN]
    ]
    head = tag("tr", [tag("th", name, scope="col") for name in ("Time", "GPU", "Xid", "Kernel's words")])
    left_out = len(newest) - len(rows)
    return tag(
        "section",
        tag("h2", "Xid errors in the kernel log"),
        tag(
            "p",
            "What the driver reported about the GPUs, newest first. Hollow marks are of earlier boots.",
            class_="note",
        ),
        picture,
        tag("div", tag("table", tag("thead", head), tag("tbody", rows)), class_="scroll"),
        tag("p", f"{left_out} older ones are in the JSON file.", class_="note") if left_out > 0 else None,
        id="xids",
    )


def _when(event: t.Mapping[str, t.Any]) -> float:
    at: datetime | None = drawing.moment(event.get("time"))
    return at.timestamp() if at else 0.0


def _soak(result: Result, subjects: Subjects) -> Html | None:
    soak = result.get("soak") or {}
    content = [
        part for part in (_extremes(result, soak, subjects), _samples(result, soak.get("samples") or ())) if part
    ]
    if not content:
        return None
    minutes = soak.get("minutes")
    xids = [str(text) for text in soak.get("new_xids") or ()]
    return tag(
        "section",
        tag("h2", "Under load"),
        tag(
            "p", f"{_duration(minutes)} of load on all GPUs at once." if minutes else "All GPUs at once.", class_="note"
        ),
        content,
        tag("p", "New Xid errors meanwhile: ", "; ".join(xids), class_="note") if xids else None,
        id="soak",
    )


def _duration(minutes: float) -> str:
    return f"{minutes:g} minutes" if minutes > 1 else f"{minutes * 60:.0f} seconds"


def _samples(result: Result, samples: t.Sequence[t.Mapping[str, t.Any]]) -> Html | None:
    figures = [figure for gpu in result.get("gpus") or () if (figure := _curves(gpu, samples))]
    if not figures:
        return None
    return tag("div", figures, class_="small-multiples")


def _curves(gpu: Gpu, samples: t.Iterable[t.Mapping[str, t.Any]]) -> Html | None:
    series: dict[str, list[tuple[float, float]]] = {"temperature_celsius": [], "power_watts": [], "sm_mhz": []}
    for sample in samples:
        for reading in sample.get("gpus") or ():
            if reading.get("pci_bus_id") == gpu.get("pci_bus_id"):
                for key, points in series.items():
                    if reading.get(key) is not None:
                        points.append((float(sample["seconds"]), float(reading[key])))
    curves = [
        drawing.curve(series[key], unit, words, most)
        for key, unit, words, most in (
            (
                "temperature_celsius",
                _CELSIUS,
                "temperature",
                (gpu.get("temperature") or {}).get("threshold_slowdown_celsius"),
            ),
            ("power_watts", "W", "power", (gpu.get("power") or {}).get("limit_enforced_watts")),
            ("sm_mhz", "MHz", "clock", (gpu.get("clocks") or {}).get("sm_max_mhz")),
        )
        if series[key]
    ]
    if not curves:
        return None
    caption = tag("figcaption", f"GPU {gpu['index']} ", tag("span", str(gpu.get("pci_bus_id")), class_="mono muted"))
    return tag("figure", caption, curves)


def _extremes(result: Result, soak: t.Mapping[str, t.Any], subjects: Subjects) -> Html | None:
    """What the load brought each GPU to: a bar for heat, power and clock each, against its limit."""
    gpus = {gpu.get("pci_bus_id"): gpu for gpu in result.get("gpus") or ()}
    rows = []
    for reading in soak.get("gpus") or ():
        gpu = gpus.get(reading.get("pci_bus_id")) or {}
        head = tag("th", subjects.name(str(reading.get("pci_bus_id"))), scope="row")
        if reading.get("skipped"):
            rows.append(tag("tr", head, tag("td", f"No load: {reading['skipped']}", colspan=5)))
            continue
        cells = []
        for key, unit, most in (
            ("temperature_celsius_max", _CELSIUS, (gpu.get("temperature") or {}).get("threshold_slowdown_celsius")),
            ("power_watts_max", "W", (gpu.get("power") or {}).get("limit_enforced_watts")),
            ("sm_clock_mhz_min", "MHz", (gpu.get("clocks") or {}).get("sm_max_mhz")),
        ):
            value = reading.get(key)
            if value is None:
                cells.append(tag("td", "not told"))
                continue
            words = f"{value:.0f} {unit}" if most is None else f"{value:.0f} of {most:.0f} {unit}"
            cells.append(tag("td", words, drawing.meter(value, most, words) if most else None))
        cells.append(tag("td", _computed(reading)))
        reasons = ", ".join(str(reason) for reason in reading.get("reasons") or ()) or "nothing"
        cells.append(tag("td", reasons, class_="wrap"))
        rows.append(tag("tr", head, cells))
    if not rows:
        return None
    columns = ("GPU", "Hottest", "Most power", "Lowest clock", "Computed", "What held the clocks back")
    head = tag("tr", [tag("th", name, scope="col") for name in columns])
    return tag("div", tag("table", tag("thead", head), tag("tbody", rows), class_="gpus number"), class_="scroll")


def _computed(reading: t.Mapping[str, t.Any]) -> Child:
    speed, wrong = reading.get("teraflops"), reading.get("wrong_results")
    return [
        "not told" if speed is None else f"{speed:.1f} TFLOP/s",
        _sub(tag("b", count_of(wrong, "wrong result"))) if wrong else None,
    ]


# ---- Everything ------------------------------------------------------------------------------------------------------


def _checks(result: Result, subjects: Subjects) -> Html:
    bodies = []
    for group, checks in by_group(result).items():
        rows = [
            tag(
                "tr",
                tag("th", group_title(group), colspan=6, scope="colgroup"),
                class_="group",
                id=f"group-{_anchor(group)}",
            )
        ]
        for finding in gravest_first(findings(checks)):
            first = True
            for observed, places in finding.seen:
                rows.append(
                    tag(
                        "tr",
                        tag("td", badge(finding.verdict)),
                        tag("td", finding.title, tag("code", finding.check, class_="sub"))
                        if first
                        else tag("td", class_="muted"),
                        tag("td", subjects.names(places)),
                        tag("td", observed, class_="wrap"),
                        tag("td", finding.expected, class_="wrap"),
                        tag("td", finding.fix, class_="wrap"),
                    )
                )
                first = False
        bodies.append(tag("tbody", rows))
    columns = ("Verdict", "Check", "About", "Found", "Wanted", "What to do")
    head = tag("tr", [tag("th", name, scope="col") for name in columns])
    return tag(
        "section",
        tag("h2", "Every check"),
        tag("p", "What is the same for several GPUs is told once.", class_="note"),
        tag("div", tag("table", tag("thead", head), bodies), class_="scroll"),
        id="checks",
    )


def _footer(result: Result, json_name: str | None) -> Html:
    source: list[Child] = [
        f"Made by baremetal.inference.gpu_preflight from {result.get('schema') or 'an unnamed schema'}"
    ]
    if result.get("sku"):
        source.append(f", judged as {result['sku']}")
    if json_name:
        source.append([". The same as data: ", tag("a", json_name, href=quote(json_name))])
    return tag("footer", legend_of_verdicts(), tag("p", source, "."))
