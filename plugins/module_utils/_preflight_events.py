# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""Checks of the kernel log: which GPU had which Xid, how often, when last, and what to do about it. Pure.

What happened in an earlier boot is over: a reboot is the strongest thing that anybody could have done about it. So it
weighs one step less, and tells the operator where to look when it comes again. The same holds for what a reset
recovers, when the driver says that the GPU needs no recovery.
"""

from __future__ import annotations

import typing as t

from ansible_collections.baremetal.inference.plugins.module_utils._preflight import (
    BECOME_ROOT,
    FAIL,
    INFO,
    PASS,
    UNKNOWN,
    WARN,
    Check,
    Subject,
    gravity,
    worst,
)
from ansible_collections.baremetal.inference.plugins.module_utils._preflight_log import (
    BUS_ERROR,
    INIT_FAILED,
    NO_SPACE,
    SXID,
    XID,
    KernelLog,
    LogEvent,
)
from ansible_collections.baremetal.inference.plugins.module_utils._xid import (
    CATALOGUE,
    NVLINK,
    RECOVERY,
    RESET_GPU,
    SEVERITY,
    XIDS,
)

if t.TYPE_CHECKING:
    from ansible_collections.baremetal.inference.plugins.module_utils._preflight_host import HostFacts

_MILDER: t.Mapping[str, str] = {FAIL: WARN, WARN: INFO}


def log_checks(
    log: KernelLog, host: HostFacts, gpus: t.Sequence[t.Mapping[str, t.Any]], silent: t.Collection[str]
) -> list[Check]:
    """``silent`` are the bus ids of GPUs that the driver does not have."""
    name, title, expected = "kernel_log.readable", "Kernel log", "readable"
    if log.error is not None:
        fix = log.fix if host.root and log.fix else BECOME_ROOT
        return [Check(name, title, UNKNOWN, log.error, expected, fix)]
    reach = f"{log.source}, {log.boots} boot(s)" + (f", since {log.since}" if log.since else "")
    checks = [Check(name, title, PASS, reach, expected)]
    by_bus = {gpu["pci_bus_id"]: gpu for gpu in gpus}
    on_bus = {gpu.bus_id for gpu in host.gpus}
    near = on_bus | {port for gpu in host.gpus for port in gpu.ports}
    checks += _xid_checks([event for event in log.events if event.kind == XID], by_bus)
    checks += _sxid_checks([event for event in log.events if event.kind == SXID])
    judges: t.Mapping[str, t.Callable[[Subject, t.Sequence[LogEvent]], list[Check]]] = {
        INIT_FAILED: lambda on, events: _init_failed(on, events, on.name in silent),
        BUS_ERROR: _bus_errors,
        NO_SPACE: _no_space,
    }
    for kind, judge in judges.items():
        about = near if kind == BUS_ERROR else on_bus
        events = [
            event for event in log.events if event.kind == kind and (kind == INIT_FAILED or event.bus_id in about)
        ]
        for bus_id, group in _grouped(events, lambda event: event.bus_id).items():
            checks += judge(Subject(bus_id or "host", _index(by_bus, bus_id)), group)
    return checks


def _index(by_bus: t.Mapping[str | None, t.Mapping[str, t.Any]], bus_id: str | None) -> int | None:
    gpu = by_bus.get(bus_id)
    return None if gpu is None else gpu["index"]


Key = t.TypeVar("Key")


def _grouped(events: t.Iterable[LogEvent], key: t.Callable[[LogEvent], Key]) -> dict[Key, list[LogEvent]]:
    groups: dict[Key, list[LogEvent]] = {}
    for event in events:
        groups.setdefault(key(event), []).append(event)
    return groups


def _times(events: t.Sequence[LogEvent]) -> str:
    """How often, when last, and whether in this boot."""
    now = [event for event in events if event.current_boot]
    last = (now or events)[-1]
    often = "once" if len(events) == 1 else f"{len(events)} times"
    when = f", last at {last.time}" if last.time else ""
    if not now:
        return f"{often}{when}, in an earlier boot"
    return f"{often}{when}" + (f", {len(now)} in this boot" if len(now) < len(events) else "")


def _xid_checks(events: t.Sequence[LogEvent], by_bus: t.Mapping[str | None, t.Mapping[str, t.Any]]) -> list[Check]:
    if not events:
        return [Check("kernel_log.xid", "Xid events", PASS, "none", "none")]
    checks = []
    for (bus_id, number), group in sorted(
        _grouped(events, lambda event: (event.bus_id or "", event.number or 0)).items()
    ):
        checks.append(_xid_check(number, bus_id, group, by_bus.get(bus_id)))
    gravest = worst(check.verdict for check in checks)
    gpus = len({event.bus_id for event in events})
    # The events speak for themselves; this line is for finding the host in a list.
    summary = INFO if gravity(gravest) > gravity(INFO) else gravest
    return [
        Check(
            "kernel_log.xid", "Xid events", summary, f"{len(events)} of {len(checks)} kind(s) on {gpus} GPU(s)", "none"
        ),
        *checks,
    ]


def _xid_check(number: int, bus_id: str, events: t.Sequence[LogEvent], gpu: t.Mapping[str, t.Any] | None) -> Check:
    known = XIDS.get(number)
    on = Subject(bus_id, None if gpu is None else gpu["index"])
    name, expected = f"kernel_log.xid_{number}", "none"
    observed = f"{_times(events)}: {events[-1].text}" if events[-1].text else _times(events)
    if known is None:
        return Check(
            name,
            f"Xid {number}",
            UNKNOWN,
            observed,
            expected,
            f"Look Xid {number} up in NVIDIA's catalogue: {CATALOGUE}",
            on,
        )
    title = f"Xid {number}: {known.meaning}"
    current = [event for event in events if event.current_boot]
    verdict, recovery = _weigh(SEVERITY[known.bucket], known.bucket, current or events)
    # The driver's word on what is left to do, if it has one.
    recovered = gpu is not None and gpu["recovery_action"] == "none"
    if verdict == FAIL and known.bucket in (RESET_GPU, RECOVERY) and recovered:
        verdict = WARN
        observed += "; the driver asks for no recovery now"
    if not current:
        verdict = _MILDER.get(verdict, verdict)
    fix = known.action(bus_id, recovery)
    if not current:
        fix = f"Watch for it: since then the host was rebooted. When it comes again: {fix}"
    return Check(name, title, verdict, observed, expected, fix if gravity(verdict) >= gravity(UNKNOWN) else "", on)


def _weigh(verdict: str, bucket: str, events: t.Sequence[LogEvent]) -> tuple[str, str]:
    """What the lines themselves say beside the number."""
    if bucket == RECOVERY:
        # Each line replaces the one before.
        action = events[-1].recovery or ""
        return (INFO, "") if action.lower() == "none" else (verdict, action)
    if bucket == NVLINK and any(word in event.text.split() for event in events for word in ("Fatal", "fatal")):
        return FAIL, ""
    return verdict, ""


def _sxid_checks(events: t.Sequence[LogEvent]) -> list[Check]:
    checks = []
    for (bus_id, number), group in sorted(
        _grouped(events, lambda event: (event.bus_id or "", event.number or 0)).items()
    ):
        current = [event for event in group if event.current_boot]
        fatal = any(event.severity == "fatal" for event in current or group)
        verdict = FAIL if fatal else INFO
        if not current:
            verdict = _MILDER.get(verdict, verdict)
        fix = (
            "Stop what uses the GPUs and restart nvidia-fabricmanager, or reboot; when it comes back, have the NVSwitch"
            " and its baseboard checked."
        )
        checks.append(
            Check(
                f"kernel_log.sxid_{number}",
                f"NVSwitch error {number}, {'fatal' if fatal else 'not fatal'}",
                verdict,
                f"{_times(group)}: {group[-1].text}",
                "none",
                fix if verdict != INFO else "",
                Subject(bus_id),
            )
        )
    return checks


def _init_failed(on: Subject, events: t.Sequence[LogEvent], silent: bool) -> list[Check]:
    name, title = "kernel_log.init_failed", "The driver could not initialise the GPU"
    current = [event for event in events if event.current_boot]
    # A GPU that answers was initialised since.
    verdict = FAIL if current and silent else INFO
    fix = (
        "Power-cycle the host; when it fails again, reseat the GPU, and look at the lines around it in the kernel log"
        f" ('journalctl -k -g {on.name}')."
    )
    return [
        Check(name, title, verdict, f"{_times(events)}: {events[-1].text}", "never", fix if verdict == FAIL else "", on)
    ]


def _bus_errors(on: Subject, events: t.Sequence[LogEvent]) -> list[Check]:
    checks = []
    for severity, group in sorted(_grouped(events, lambda event: event.severity or "").items()):
        current = [event for event in group if event.current_boot]
        # Corrected errors are sent again by the link itself; many of them show in the replay counter of the PCIe checks.
        verdict = (WARN if current else INFO) if severity == "uncorrected" else INFO
        fix = "Reseat the card or riser at this port, update the firmware, and watch the replay counter under load."
        checks.append(
            Check(
                f"kernel_log.pcie_{severity}",
                f"PCIe errors, {severity}",
                verdict,
                _times(group),
                "none",
                fix if verdict == WARN else "",
                on,
            )
        )
    return checks


def _no_space(on: Subject, events: t.Sequence[LogEvent]) -> list[Check]:
    # The kernel often finds room in a second try; whether it did, firmware.above_4g says.
    observed = f"{_times(events)}: BAR {events[-1].number}, {events[-1].text}"
    return [Check("kernel_log.no_space", "No room for a memory window at first", INFO, observed, "never", on=on)]
