# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""Judges NVLink: gpu_info's facts against what this kind of GPU and this board should have. Pure: it reads nothing.

There is no command that trains a link again. What there is, from gentle to rough: clear the error counters (which does
nothing to a link), reset the GPUs, restart Fabric Manager, reboot, power-cycle. ``next_rung`` says which one is due.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.baremetal.inference.plugins.module_utils._gpu_skus import (
    CATALOG,
    LAYOUT_BRIDGE,
    LAYOUT_NONE,
    Catalog,
    Sku,
    System,
    sku_of,
    system_of,
)
from ansible_collections.baremetal.inference.plugins.module_utils._pci import bus_id_order

HEALTHY = "healthy"
WARNING = "warning"
UNKNOWN = "unknown"
UNHEALTHY = "unhealthy"
# From best to worst.
VERDICTS = (HEALTHY, WARNING, UNKNOWN, UNHEALTHY)

COUNTERS = ("replay", "recovery", "crc")

SCOPE_NONE = "none"
SCOPE_COUNTERS = "counters"
SCOPE_GPU = "gpu"
SCOPE_FABRIC = "fabric"
SCOPE_REBOOT = "reboot"
SCOPE_HARDWARE = "hardware"
LADDER = (SCOPE_NONE, SCOPE_COUNTERS, SCOPE_GPU, SCOPE_FABRIC, SCOPE_REBOOT, SCOPE_HARDWARE)

_UP = ("active", "sleep")
# Drivers round a link's speed in their own ways; a link that lost a lane is far below this.
_SPEED_TOLERANCE = 0.95

GPU, FABRIC, REBOOT, HARDWARE = (
    "Reset the GPUs of this NVLink domain: nvlink_reset with scope: gpu, after everything that uses them is stopped.",
    "Restart Fabric Manager: nvlink_reset with scope: fabric, after all CUDA programs are stopped; its log is"
    " /var/log/fabricmanager.log.",
    "Reboot the host.",
    "Power-cycle the host; when that does not help, have the GPU, its bridges and its baseboard checked.",
)
_RUNG_TEXT: t.Mapping[str, str] = {
    SCOPE_NONE: "Nothing needs to be done.",
    SCOPE_COUNTERS: "Clear the error counters (nvlink_reset with scope: counters) and see whether they rise again.",
    SCOPE_GPU: GPU,
    SCOPE_FABRIC: FABRIC,
    SCOPE_REBOOT: REBOOT,
    SCOPE_HARDWARE: HARDWARE,
}
# nvmlDeviceGpuRecoveryAction_t, as gpu_info names it.
_RECOVERY: t.Mapping[str, tuple[str, str]] = {
    "gpu_reset": (SCOPE_GPU, GPU),
    "node_reboot": (SCOPE_REBOOT, REBOOT),
    "system_reboot": (SCOPE_REBOOT, REBOOT),
    "drain_p2p": (SCOPE_GPU, f"Stop the programs that use peer-to-peer access to this GPU. {GPU}"),
    "drain_and_reset": (SCOPE_GPU, f"Let the work on this GPU end and give it no more. {GPU}"),
    "bus_reset": (SCOPE_REBOOT, f"The driver asks for a bus reset, which only some machines can do. {REBOOT}"),
}
_ADD = "Say what it should be with the option 'expectations'."
# NVIDIA MIG User Guide, application considerations: no P2P, neither over PCIe nor over NVLink, in MIG mode.
_MIG = "nothing: with MIG there is no peer-to-peer, neither over NVLink nor over PCIe"


@dataclass(frozen=True)
class Finding:
    """One judgement. ``gpus`` are the PCI bus ids that it is about; none when it is about the host."""

    check: str
    subject: str
    gpu: int | None
    verdict: str
    observed: str
    expected: str
    fix: str
    gpus: tuple[str, ...]
    # The rung of the ladder that would cure it.
    rung: str = SCOPE_NONE


@dataclass(frozen=True)
class FabricManagerState:
    """What systemd and the program itself say; None when it could not be asked."""

    state: str | None = None
    version: str | None = None


Gpu = t.Mapping[str, t.Any]


class _Host:
    """gpu_info's facts, indexed."""

    def __init__(self, facts: t.Mapping[str, t.Any], catalog: Catalog) -> None:
        self.facts = facts
        self.gpus: list[Gpu] = list(facts["gpus"])
        self.skus: dict[str, Sku | None] = {name_of(gpu): sku_of(gpu, catalog) for gpu in self.gpus}
        self.system: System | None = system_of(facts, catalog)
        self.by_bus_id = {gpu["pci_bus_id"]: gpu for gpu in self.gpus if gpu["pci_bus_id"]}
        self.count = max(facts["pci_gpu_count"], facts["gpu_count"])

    @property
    def switched(self) -> bool:
        """Whether links lead to NVSwitches, seen on the bus or not."""
        return bool(self.facts["nvswitches"]) or any(
            link["remote_device_type"] == "switch" for gpu in self.gpus for link in up_links(gpu)
        )


def name_of(gpu: Gpu) -> str:
    return str(gpu["pci_bus_id"] or gpu["uuid"] or gpu["index"])


def links_of(gpu: Gpu) -> list[t.Mapping[str, t.Any]]:
    return list((gpu["nvlink"] or {}).get("links", ()))


def up_links(gpu: Gpu) -> list[t.Mapping[str, t.Any]]:
    return [link for link in links_of(gpu) if link["state"] in _UP]


def mig_enabled(gpu: Gpu) -> bool:
    return (gpu["mig_mode"] or {}).get("current") == "enabled"


def error_counts(gpu: Gpu) -> dict[int, dict[str, int]]:
    """Links whose error counters are not zero, with those counters."""
    found = {}
    for link in links_of(gpu):
        counts = {name: link["errors"][name] for name in COUNTERS if link["errors"][name]}
        if counts:
            found[link["link"]] = counts
    return found


def judge(
    facts: t.Mapping[str, t.Any],
    catalog: Catalog = CATALOG,
    fabric_manager: FabricManagerState | None = None,
) -> list[Finding]:
    """All findings about the NVLinks of a host, good ones too.

    ``facts`` is gpu_info's result with nvlink and topology gathered.
    """
    host = _Host(facts, catalog)
    return [
        *_board(host),
        *_fabric_manager(host, fabric_manager),
        *_lost(host),
        *(finding for gpu in host.gpus for finding in _gpu(host, gpu)),
        *(finding for pair in facts["topology"] for finding in _pair(host, pair)),
    ]


def worst(findings: t.Iterable[Finding]) -> str:
    return max((finding.verdict for finding in findings), key=VERDICTS.index, default=HEALTHY)


def concerning(findings: t.Iterable[Finding], gpus: t.Collection[str]) -> list[Finding]:
    """Those about the host, or about one of these GPUs (by name_of)."""
    return [finding for finding in findings if not finding.gpus or set(finding.gpus) & set(gpus)]


def _board(host: _Host) -> t.Iterator[Finding]:
    system = host.system
    if system is None:
        return
    for check, what, present, figure in (
        ("gpus", "GPU(s)", host.count, system.gpu_count.value),
        ("switches", "NVSwitch(es)", len(host.facts["nvswitches"]), system.nvswitch_count.value),
    ):
        if figure is None or (check == "switches" and figure == 0):
            continue
        yield Finding(
            check=check,
            subject="host",
            gpu=None,
            verdict=HEALTHY if present >= figure else UNHEALTHY,
            observed=f"{present} {what} on the PCI bus",
            expected=f"{figure} ({system.name})",
            fix="" if present >= figure else f"One is missing from the PCI bus. {REBOOT} If it stays away: {HARDWARE}",
            gpus=(),
            rung=SCOPE_NONE if present >= figure else SCOPE_REBOOT,
        )


def _fabric_manager(host: _Host, manager: FabricManagerState | None) -> t.Iterator[Finding]:
    # Where a virtual machine does not see the switches, Fabric Manager runs on the host below.
    if manager is None or manager.state is None or not host.facts["nvswitches"]:
        return
    driver = host.facts["driver_version"]
    version = manager.version
    if manager.state != "active":
        verdict, rung = UNHEALTHY, SCOPE_FABRIC
        fix = f"Install it in exactly the driver's version ({driver}) if it is not there. {FABRIC}"
    elif version is not None and driver is not None and version != driver:
        verdict, rung = UNHEALTHY, SCOPE_FABRIC
        fix = f"Install Fabric Manager in exactly the driver's version, {driver}. {FABRIC}"
    else:
        verdict, rung, fix = HEALTHY, SCOPE_NONE, ""
    yield Finding(
        check="fabric_manager",
        subject="host",
        gpu=None,
        verdict=verdict,
        observed=f"Fabric Manager is {manager.state}, version {version or 'not known'}",
        expected=f"active, in the driver's version {driver}",
        fix=fix,
        gpus=(),
        rung=rung,
    )


def _lost(host: _Host) -> t.Iterator[Finding]:
    for lost in host.facts["unavailable_gpus"]:
        name = str(lost["pci_bus_id"] or lost["uuid"] or lost["index"])
        reset = lost["reason"] == "reset_required"
        yield Finding(
            check="gpu",
            subject=name,
            gpu=lost["index"],
            verdict=UNHEALTHY,
            observed=f"GPU {lost['index']} does not answer ({lost['reason']})",
            expected="a GPU that answers",
            fix=lost["msg"],
            gpus=(name,),
            rung=SCOPE_GPU if reset else SCOPE_REBOOT,
        )


def _gpu(host: _Host, gpu: Gpu) -> t.Iterator[Finding]:
    name = name_of(gpu)

    def finding(check: str, verdict: str, observed: str, expected: str, fix: str = "", rung: str = "") -> Finding:
        return Finding(check, name, gpu["index"], verdict, observed, expected, fix, (name,), rung or SCOPE_NONE)

    action = gpu["recovery_action"]
    if action not in (None, "none"):
        rung, fix = _RECOVERY.get(action, (SCOPE_REBOOT, f"Look the action up in NVML's documentation. {REBOOT}"))
        yield finding("recovery", UNHEALTHY, f"the driver asks for {action}", "none", fix, rung)
    if gpu["nvlink"] is None:
        yield finding("links", UNKNOWN, "the links were not read", "all links of the GPU", "Gather nvlink.")
        return
    yield _links(host, gpu, finding)
    slow = _slow_links(host.skus[name], gpu)
    if slow:
        speed = t.cast(Sku, host.skus[name]).nvlink_megabytes_per_second.value
        yield finding(
            "speed",
            UNHEALTHY,
            "; ".join(f"link {link['link']} at {link['speed_megabytes_per_second']} MB/s" for link in slow),
            f"{speed} MB/s in each direction",
            GPU,
            SCOPE_GPU,
        )
    counts = error_counts(gpu)
    if counts:
        yield finding(
            "counters",
            WARNING,
            counters_text(counts),
            "no errors",
            "The links are up: errors were corrected. "
            f"{_RUNG_TEXT[SCOPE_COUNTERS]} Counters that rise under load point at a bad link.",
            SCOPE_COUNTERS,
        )


def counters_text(counts: t.Mapping[int, t.Mapping[str, int]]) -> str:
    return "; ".join(
        f"link {link}: {', '.join(f'{name} {number}' for name, number in found.items())}"
        for link, found in counts.items()
    )


class _Make(t.Protocol):
    def __call__(
        self, check: str, verdict: str, observed: str, expected: str, fix: str = "", rung: str = ""
    ) -> Finding: ...


def links_text(gpu: Gpu) -> str:
    """ "11 of 12 links up; link 3 inactive" """
    links, up = links_of(gpu), up_links(gpu)
    down = "".join(f"; link {link['link']} {link['state']}" for link in links if link["state"] not in _UP)
    # Twelve dead links are said once.
    return f"{len(up)} of {len(links)} links up{down if up else ''}"


def _links(host: _Host, gpu: Gpu, finding: _Make) -> Finding:
    sku = host.skus[name_of(gpu)]
    links, up = links_of(gpu), up_links(gpu)
    observed = links_text(gpu) if links else "no NVLink"
    if mig_enabled(gpu):
        return finding("links", HEALTHY, f"MIG is enabled; {observed}", _MIG)
    if sku is None:
        if not links:
            return finding("links", HEALTHY, observed, "nothing is expected of this kind of GPU")
        return finding("links", UNKNOWN, observed, f"not known for '{gpu['name']}'", _ADD)
    layout, wanted = sku.nvlink_layout.value, sku.nvlink_links.value
    if layout == LAYOUT_NONE or wanted == 0:
        return finding("links", HEALTHY, observed, f"no NVLink ({sku.name})")
    if wanted is None or layout is None:
        return finding("links", UNKNOWN, observed, f"not known ({sku.name})", _ADD)
    if host.count == 1:
        return finding("links", HEALTHY, observed, "nothing: the only GPU of this host has no other to reach")
    if layout == LAYOUT_BRIDGE:
        named = any(name_of(gpu) in _peers(other) for other in host.gpus)
        return _bridge(sku, gpu, observed, wanted, named, finding)
    expected = f"{wanted} links up ({sku.name})"
    if len(up) < wanted:
        return finding("links", UNHEALTHY, observed, expected, GPU, SCOPE_GPU)
    kinds = {link["remote_device_type"] for link in up if link["remote_device_type"] not in (None, "unknown")}
    far_end = host.system.far_end if host.system else (min(kinds) if len(kinds) == 1 else None)
    if kinds and kinds != {far_end}:
        leads = ", ".join(sorted(kinds))
        return finding(
            "links",
            UNHEALTHY,
            f"{observed}, to {leads}",
            f"{expected}, all to {far_end or 'one kind of far end'}",
            "The board is not what it was taken for: give its layout with the option 'expectations'.",
        )
    return finding("links", HEALTHY, f"{observed}, to {far_end}" if kinds else observed, expected)


def _bridge(sku: Sku, gpu: Gpu, observed: str, wanted: int, named: bool, finding: _Make) -> Finding:
    """``named``: whether another card has links up that lead here, so that there must be a bridge."""
    up = up_links(gpu)
    if not up:
        if named or sku.nvlink_bridged.value:
            why = "another card's links lead here" if named else "expectations say that this host's cards are bridged"
            return finding(
                "links",
                UNHEALTHY,
                observed,
                f"{wanted} links up: {why}",
                f"Seat the bridges (all of them, between the same two cards). {GPU}",
                SCOPE_GPU,
            )
        return finding("links", HEALTHY, f"{observed}: no bridge", f"no bridge, or all {wanted} links up")
    expected = f"all {wanted} links up, since there is a bridge"
    if len(up) < wanted:
        return finding(
            "links", UNHEALTHY, observed, expected, f"Seat all bridges between the two cards. {GPU}", SCOPE_GPU
        )
    peers: dict[str, int] = {}
    for link in up:
        if link["remote_device_type"] == "gpu" and link["remote_pci_bus_id"]:
            peers[link["remote_pci_bus_id"]] = peers.get(link["remote_pci_bus_id"], 0) + 1
    shown = ", ".join(f"{count} to {peer}" for peer, count in sorted(peers.items()))
    sizes = sku.nvlink_bridge_sizes.value
    if peers and sizes and (len(peers) + 1 not in sizes or len(set(peers.values())) > 1):
        return finding(
            "links",
            UNHEALTHY,
            f"{observed}, {shown}",
            f"{expected}, in equal numbers to the other cards of one bridge of {' or '.join(map(str, sizes))}",
            "Seat all bridges between the same cards.",
            SCOPE_HARDWARE,
        )
    return finding("links", HEALTHY, f"{observed}, {shown}" if shown else observed, expected)


def _slow_links(sku: Sku | None, gpu: Gpu) -> list[t.Mapping[str, t.Any]]:
    speed = sku.nvlink_megabytes_per_second.value if sku else None
    if speed is None:
        return []
    return [
        link
        for link in up_links(gpu)
        if link["speed_megabytes_per_second"] is not None
        and link["speed_megabytes_per_second"] < speed * _SPEED_TOLERANCE
    ]


def _pair(host: _Host, pair: t.Mapping[str, t.Any]) -> t.Iterator[Finding]:
    a, b = host.by_bus_id.get(pair["a"]), host.by_bus_id.get(pair["b"])
    if a is None or b is None or a["nvlink"] is None or b["nvlink"] is None:
        return
    wanted, why = _links_between(host, a, b, pair["nvlink_count"])
    if wanted is None:
        return
    names = (name_of(a), name_of(b))
    p2p = pair["p2p"]
    observed = f"{pair['nvlink_count']} NVLink(s); P2P over NVLink {p2p['nvlink'] or 'not told'}" + "".join(
        f", {direction} {p2p[direction]}" for direction in ("read", "write") if p2p[direction] not in (None, "ok")
    )

    def finding(verdict: str, expected: str, fix: str = "", rung: str = SCOPE_NONE) -> Finding:
        return Finding("pair", f"{names[0]} - {names[1]}", None, verdict, observed, expected, fix, names, rung)

    if mig_enabled(a) or mig_enabled(b):
        yield finding(HEALTHY, _MIG)
        return
    expected = f"{wanted} NVLink(s) {why}, P2P ok"
    statuses = [p2p[kind] for kind in ("nvlink", "read", "write")]
    if any(status not in (None, "ok", "unknown") for status in statuses):
        # With every link up and no P2P, the fabric between them is what is missing.
        whole = all(len(up_links(gpu)) == len(links_of(gpu)) for gpu in (a, b))
        if host.facts["nvswitches"] and whole:
            yield finding(UNHEALTHY, expected, FABRIC, SCOPE_FABRIC)
        else:
            yield finding(UNHEALTHY, expected, GPU, SCOPE_GPU)
    elif pair["nvlink_count"] < wanted:
        yield finding(UNHEALTHY, expected, GPU, SCOPE_GPU)
    elif any(status in (None, "unknown") for status in statuses):
        yield finding(UNKNOWN, expected, "The driver does not say whether the two may use it: measure a copy.")
    else:
        yield finding(HEALTHY, expected)


def _links_between(host: _Host, a: Gpu, b: Gpu, seen: int) -> tuple[int | None, str]:
    """How many links should join the two, and why; None when nothing is expected of this pair."""
    sku_a, sku_b = host.skus[name_of(a)], host.skus[name_of(b)]
    if sku_a is None or sku_b is None or sku_a.nvlink_links.value is None or sku_b.nvlink_links.value is None:
        return None, ""
    links = min(sku_a.nvlink_links.value, sku_b.nvlink_links.value)
    if links == 0:
        return None, ""
    if LAYOUT_BRIDGE in (sku_a.nvlink_layout.value, sku_b.nvlink_layout.value):
        joined = _peers(a) | _peers(b)
        if name_of(a) not in joined and name_of(b) not in joined:
            # Cards without a bridge between them.
            return None, ""
        others = max(len(_peers(a)), len(_peers(b)), 1)
        return links // others, "over the bridge"
    if host.system is not None:
        if host.system.links_per_pair.value is None:
            return None, ""
        return host.system.links_per_pair.value, f"({host.system.name})"
    if host.switched:
        return links, "over NVSwitches"
    if seen or _peers(a) or _peers(b):
        # An unknown board without switches: as many for this pair as for the others.
        others = max(len(_peers(a)), len(_peers(b)), 1)
        return links // others, "between GPUs"
    return None, ""


def _peers(gpu: Gpu) -> set[str]:
    return {
        link["remote_pci_bus_id"]
        for link in up_links(gpu)
        if link["remote_device_type"] == "gpu" and link["remote_pci_bus_id"]
    }


def domains(facts: t.Mapping[str, t.Any], catalog: Catalog = CATALOG) -> list[tuple[str, ...]]:
    """GPUs that NVLink joins, by name_of and ordered by bus id: a GPU without links is a domain of its own.

    Behind NVSwitches all GPUs are one domain, and so are those of a mesh, also while links are down.
    """
    host = _Host(facts, catalog)
    soldered = {
        name
        for name, sku in host.skus.items()
        if sku is not None and sku.nvlink_layout.value not in (LAYOUT_BRIDGE, LAYOUT_NONE, None)
    }
    group = {name_of(gpu): {name_of(gpu)} for gpu in host.gpus}

    def join(names: t.Collection[str]) -> None:
        merged = set().union(*(group[name] for name in names)) if names else set()
        for name in merged:
            group[name] = merged

    if host.switched or host.system is not None:
        join(soldered | {name_of(gpu) for gpu in host.gpus if "switch" in _far_ends(gpu)})
    for gpu in host.gpus:
        join({name_of(gpu)} | (_peers(gpu) & set(group)))
    unique = {tuple(sorted(members, key=_order)) for members in group.values()}
    return sorted(unique, key=lambda members: _order(members[0]))


def _far_ends(gpu: Gpu) -> set[str]:
    return {link["remote_device_type"] for link in up_links(gpu) if link["remote_device_type"]}


def _order(name: str) -> tuple[t.Any, ...]:
    return bus_id_order(name) if ":" in name else (True, 1, name)


def next_rung(findings: t.Iterable[Finding], done: str = SCOPE_NONE, *, switches: bool = False) -> tuple[str, str]:
    """The step that is due, and what to do, when ``done`` was done and these are the findings after it.

    ``switches``: whether there are NVSwitches here, so that there is a Fabric Manager to restart.
    """
    bad = [finding for finding in findings if finding.verdict in (UNHEALTHY, WARNING)]
    if not bad:
        return SCOPE_NONE, _RUNG_TEXT[SCOPE_NONE]
    wanted = max((finding.rung for finding in bad), key=LADDER.index)
    if all(finding.verdict == WARNING for finding in bad):
        # Counters count again: nothing rougher is due for links that are up.
        return wanted, _RUNG_TEXT[wanted]
    due = LADDER.index(wanted)
    if done in (SCOPE_GPU, SCOPE_FABRIC, SCOPE_REBOOT):
        due = max(due, LADDER.index(done) + 1)
    if LADDER[due] == SCOPE_FABRIC and not switches:
        due += 1
    texts = {finding.fix for finding in bad if finding.rung == LADDER[due] and finding.fix}
    return LADDER[due], next(iter(texts)) if len(texts) == 1 else _RUNG_TEXT[LADDER[due]]
