# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""GPU events of the kernel log, of this boot and earlier ones: from the journal, the kernel's ring buffer or a file.

The formats: "NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, pid=..., text" is printed by the open kernel modules (krcErrorLog),
where the parenthesis names domain, bus and device and, with MIG, the instance; older drivers leave "PCI:" out. NVSwitches
print "nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 12028, Non-fatal, Link 32 ...", and details of it on further lines of the
same number, without the word (Fabric Manager User Guide, "NVSwitch SXid errors"). Records of /dev/kmsg are described in
the kernel's Documentation/ABI/testing/dev-kmsg, those of the journal in systemd.journal-fields(7). Logs differ in
their prefixes and are cut and split, so all that counts here is found anywhere in a line.
"""

from __future__ import annotations

import json
import os
import re
import typing as t
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

from ansible_collections.baremetal.inference.plugins.module_utils._pci import normalize_bus_id

XID, SXID, BUS_ERROR, INIT_FAILED, NO_SPACE = "xid", "sxid", "bus_error", "init_failed", "no_space"
FALLEN_OFF_THE_BUS = 79
# Marks a loss that the log tells without its number.
_UNNUMBERED = "unnumbered"

# Lines that one of the patterns below is looked for in; the journal is asked for these alone.
_WORDS = ("NVRM", "SXid", "PCIe Bus Error", "no space", "Linux version ")
_JOURNAL_PATTERN = "NVRM|SXid|PCIe Bus Error|no space|^Linux version "
_NO_GREP = "Compiled without pattern matching support"

_BUS = r"[0-9a-f]{1,8}:[0-9a-f]{2}:[0-9a-f]{2}"
_XID = re.compile(rf"NVRM: Xid \((?:PCI:)?({_BUS})[^)]*\):? *(\d+)\b[,:]? *(.*)", re.IGNORECASE)
_SXID = re.compile(rf"SXid \((?:PCI:)?({_BUS})(?:\.[0-7])?\): *(\d+), *(Non-fatal|Fatal)\b,? *(.*)", re.IGNORECASE)
_FALLEN = re.compile(rf"NVRM: GPU (?:at )?(?:PCI:)?({_BUS})(?:\.[0-7])?[: ].*fallen off the bus", re.IGNORECASE)
_FALLEN_NAME = re.compile(rf"NVRM: The NVIDIA GPU ({_BUS})\.[0-7]", re.IGNORECASE)
_FALLEN_TEXT = re.compile(r"NVRM: fallen off the bus and is not responding")
_INIT = re.compile(rf"NVRM: GPU (?:at )?(?:PCI:)?({_BUS})(?:\.[0-7])?: (RmInitAdapter failed!.*)", re.IGNORECASE)
_AER = re.compile(
    rf"({_BUS}\.[0-7]): (?:AER: )?PCIe Bus Error: severity=([A-Za-z]+(?: \([A-Za-z-]+\))?)", re.IGNORECASE
)
# Before Linux 6.8 "BAR 1: no space for [mem size 0x2000000000 64bit pref]", since then "BAR 1 [mem size ...]: can't
# assign; no space". Windows of virtual functions ("VF BAR") are left out: without vGPU nobody needs them.
_SPACE = re.compile(
    rf"({_BUS}\.[0-7]): BAR ([0-9]+)(?:: no space for (\[mem [^\]]*\])| (\[mem [^\]]*\]): can't assign; no space)",
    re.IGNORECASE,
)
_BOOT = re.compile(r"(?:^|[\s:\]])Linux version [0-9]")
# Xid 154: "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)".
_RECOVERY = re.compile(r"recovery action changed from \S+ \([^)]*\) to \S+ \(([^)]*)\)", re.IGNORECASE)

_KMSG = re.compile(r"(\d+),\d+,(\d+),[^;]*;(.*)")
_SECONDS = re.compile(r"(?:<\d+>)?\[ *(\d+\.\d+)\] ")
_CALENDAR = re.compile(r"\[(\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4})\] ")
_ISO = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:[.,]\d+)?(Z|[+-]\d\d:?\d\d)? ")
_SYSLOG = re.compile(r"(\w{3} [ \d]\d \d\d:\d\d:\d\d) ")

_KMSG_CHUNK = 16384
_TEXT_LIMIT = 240

# Runs a command: arguments in; exit status, output and error output out.
Command = t.Callable[[t.Sequence[str]], "tuple[int, str, str]"]


@dataclass(frozen=True)
class LogLine:
    text: str
    time: datetime | None
    # Whatever tells boots apart; the same for all lines of one.
    boot: str


@dataclass(frozen=True)
class LogEvent:
    kind: str
    # Of the Xid or SXid, or of the BAR.
    number: int | None
    bus_id: str | None
    time: str | None
    current_boot: bool
    text: str
    # What the line itself says: fatal or non-fatal, corrected or not.
    severity: str | None = None
    # What Xid 154 asks for.
    recovery: str | None = None


@dataclass(frozen=True)
class KernelLog:
    source: str
    # The oldest time that it reaches back to, as far as that is known.
    since: str | None
    boots: int
    events: tuple[LogEvent, ...]
    # Why nothing could be read, and what to do about it.
    error: str | None = None
    fix: str | None = None


@dataclass(frozen=True)
class Clock:
    """Now, and what ties the kernel's seconds since boot to it."""

    now: datetime
    uptime_seconds: float | None
    boot_id: str | None

    def since_boot(self, seconds: float) -> datetime | None:
        if self.uptime_seconds is None:
            return None
        return self.now + timedelta(seconds=seconds - self.uptime_seconds)


def iso(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_kernel_log(
    source: str, days: int, dev_root: str, clock: Clock, command: Command, which: t.Callable[[str], str | None]
) -> KernelLog:
    """``source`` is "auto" or a file. ``days`` 0 means all there is."""
    earliest = clock.now - timedelta(days=days) if days else None
    if source != "auto":
        return _from_file(source, earliest, clock)
    failures = []
    journalctl = which("journalctl")
    if journalctl:
        log = _from_journal(journalctl, earliest, clock, command)
        if log.error is None:
            return log
        failures.append(log.error)
    kmsg = _from_kmsg(os.path.join(dev_root, "kmsg"), earliest, clock)
    if kmsg.error is None:
        return kmsg
    failures.append(kmsg.error)
    dmesg = which("dmesg")
    if dmesg:
        # Where there is no such node, as in containers, it asks the kernel by a system call.
        status, output, errors = command([dmesg])
        if status == 0 and output.strip():
            return summarize("dmesg", [*text_lines(output, clock)], earliest, clock, boot=None)
        failures.append(f"dmesg ended with {status}: {errors.strip() or 'it printed nothing'}")
    return replace(kmsg, error="; ".join(failures))


def _from_journal(journalctl: str, earliest: datetime | None, clock: Clock, command: Command) -> KernelLog:
    # -k would mean this boot alone, so the match that it stands for. --all: else long messages come as null.
    base = [journalctl, "--quiet", "--no-pager", "--all", "--output=json", "--output-fields=MESSAGE,_BOOT_ID"]
    options = base if earliest is None else [*base, f"--since=@{int(earliest.timestamp())}"]
    match = "_TRANSPORT=kernel"
    unreadable = KernelLog(source="journal", since=None, boots=0, events=(), fix="Run the task with become: true.")
    status, output, errors = command([*options, f"--grep={_JOURNAL_PATTERN}", match])
    if _NO_GREP in errors:
        status, output, errors = command([*options, match])
    # No match at all is an exit status of 1 and no word.
    if status != 0 and (errors.strip() or output.strip()):
        return replace(unreadable, error=f"journalctl ended with {status}: {errors.strip() or 'no reason given'}")
    if not output.strip():
        # Nothing about GPUs, or nothing that this user may see: some kernel message there always is.
        status, anything, errors = command([*base, "--lines=1", match])
        if not anything.strip():
            return replace(
                unreadable,
                error="the journal has no kernel messages that this user may read"
                + (f" ({errors.strip()})" if errors.strip() else ""),
            )
    lines = [line for text in output.splitlines() for line in [_journal_line(text)] if line is not None]
    return summarize("journal", lines, earliest, clock, boot=clock.boot_id or _last_boot(lines))


def _from_kmsg(path: str, earliest: datetime | None, clock: Clock) -> KernelLog:
    try:
        data = _read_kmsg(path)
    except PermissionError:
        error, fix = f"{path} may not be read by this user", "Run the task with become: true."
    except OSError as failure:
        error = f"{path} cannot be read: {failure.strerror}"
        fix = "Name a file that holds the kernel log in the option kernel_log."
    else:
        return summarize(path, [*text_lines(data, clock)], earliest, clock, boot=None)
    return KernelLog(source=path, since=None, boots=0, events=(), error=error, fix=fix)


def _read_kmsg(path: str) -> str:
    """All records that the kernel still holds. Each read gives one; the read after the last would block."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    chunks = []
    try:
        while True:
            try:
                chunk = os.read(descriptor, _KMSG_CHUNK)
            except BlockingIOError:
                break
            except BrokenPipeError:
                # The record was overwritten by newer ones; the next read gives the oldest that is left.
                continue
            if not chunk:
                break
            chunks.append(chunk)
    finally:
        os.close(descriptor)
    return b"".join(chunks).decode("utf-8", errors="replace")


def _from_file(path: str, earliest: datetime | None, clock: Clock) -> KernelLog:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [*text_lines(file.read(), clock)]
    except PermissionError:
        error, fix = f"{path} may not be read by this user", "Run the task with become: true."
    except OSError as failure:
        error = f"{path} cannot be read: {failure.strerror}"
        fix = "Name a file that holds the kernel log in the option kernel_log, or leave it out for the host's own log."
    else:
        return summarize(path, lines, earliest, clock, boot=_boot_of_file(lines, clock))
    return KernelLog(source=path, since=None, boots=0, events=(), error=error, fix=fix)


def _boot_of_file(lines: t.Sequence[LogLine], clock: Clock) -> str | None:
    """A file of the journal names boots; in others the last boot of the file is the one that goes on."""
    if clock.boot_id and any(line.boot == clock.boot_id for line in lines):
        return clock.boot_id
    return _last_boot(lines)


def _last_boot(lines: t.Sequence[LogLine]) -> str | None:
    return lines[-1].boot if lines else None


def _journal_line(text: str) -> LogLine | None:
    try:
        record = json.loads(text)
    except ValueError:
        # A line that was cut.
        return None
    message = record.get("MESSAGE") if isinstance(record, dict) else None
    if isinstance(message, list):
        # Bytes that are no UTF-8 come as numbers.
        message = bytes(message).decode("utf-8", errors="replace")
    if not isinstance(message, str):
        return None
    microseconds = str(record.get("__REALTIME_TIMESTAMP", ""))
    time = datetime.fromtimestamp(int(microseconds) / 1e6, tz=timezone.utc) if microseconds.isdigit() else None
    return LogLine(text=message, time=time, boot=str(record.get("_BOOT_ID", "")))


def text_lines(data: str, clock: Clock) -> t.Iterator[LogLine]:
    """Lines of a log in any of the usual forms. A kernel that greets begins a boot."""
    boot = 0
    for raw in data.splitlines():
        if raw.startswith("{"):
            line = _journal_line(raw)
            if line is not None:
                yield line
            continue
        if _BOOT.search(raw):
            boot += 1
        if any(word in raw for word in _WORDS):
            yield LogLine(text=_without_record(raw), time=_time_of(raw, clock), boot=str(boot))


def _without_record(raw: str) -> str:
    match = _KMSG.match(raw)
    return match.group(3) if match else raw


def _time_of(raw: str, clock: Clock) -> datetime | None:
    match = _KMSG.match(raw)
    if match:
        return clock.since_boot(int(match.group(2)) / 1e6)
    match = _ISO.match(raw)
    if match:
        zone = (match.group(2) or "Z").replace("Z", "+0000").replace(":", "")
        return datetime.strptime(match.group(1) + zone, "%Y-%m-%dT%H:%M:%S%z")
    match = _CALENDAR.match(raw)
    if match:
        # Local time of the host that printed it.
        return _local(match.group(1), "%a %b %d %H:%M:%S %Y")
    match = _SYSLOG.match(raw)
    if match:
        # Without a year: the last such day.
        time = _local(f"{clock.now.year} {match.group(1)}", "%Y %b %d %H:%M:%S")
        if time is not None and time > clock.now + timedelta(days=1):
            time = _local(f"{clock.now.year - 1} {match.group(1)}", "%Y %b %d %H:%M:%S")
        return time
    match = _SECONDS.match(raw)
    return clock.since_boot(float(match.group(1))) if match else None


def _local(text: str, form: str) -> datetime | None:
    try:
        return datetime.strptime(text, form).astimezone()
    except ValueError:
        # Names of months and days in another language.
        return None


def summarize(
    source: str, lines: t.Sequence[LogLine], earliest: datetime | None, clock: Clock, boot: str | None
) -> KernelLog:
    """``boot`` is the one that goes on; None: all lines are of it."""
    lines = [line for line in lines if earliest is None or line.time is None or line.time >= earliest]
    times = [line.time for line in lines if line.time is not None]
    return KernelLog(
        source=source,
        since=iso(min(times, default=None)) or iso(earliest),
        boots=max(1, len({line.boot for line in lines})),
        events=tuple(_events(lines, boot)),
    )


def _events(lines: t.Sequence[LogLine], boot: str | None) -> list[LogEvent]:
    found: list[LogEvent] = []
    # A report of several lines names the GPU in the first and says what happened in the last.
    named: str | None = None
    for line in lines:
        for text in line.text.split("\n"):
            match = _FALLEN_NAME.search(text)
            if match:
                named = match.group(1)
            event = _event(text, named)
            if event is not None:
                found.append(
                    replace(
                        event,
                        time=iso(line.time),
                        current_boot=boot is None or line.boot == boot,
                        text=event.text.strip()[:_TEXT_LIMIT],
                    )
                )
    # The same loss said in other words, with or without its number.
    numbered = {
        (event.bus_id, event.current_boot)
        for event in found
        if event.kind == XID and event.number == FALLEN_OFF_THE_BUS and event.severity is None
    }
    return [
        replace(event, severity=None) if event.severity == _UNNUMBERED else event
        for event in found
        if event.severity != _UNNUMBERED or (event.bus_id, event.current_boot) not in numbered
    ]


def _event(text: str, named: str | None) -> LogEvent | None:
    def event(kind: str, bus: str, number: int | None = None, **more: t.Any) -> LogEvent:
        bus_id = normalize_bus_id(bus if "." in bus else f"{bus}.0")
        return LogEvent(kind=kind, number=number, bus_id=bus_id, time=None, current_boot=True, text=text, **more)

    match = _XID.search(text)
    if match:
        recovery = _RECOVERY.search(text)
        return replace(
            event(XID, match.group(1), int(match.group(2)), recovery=recovery.group(1) if recovery else None),
            text=match.group(3),
        )
    match = _SXID.search(text)
    if match:
        return replace(
            event(SXID, match.group(1), int(match.group(2)), severity=match.group(3).lower()), text=match.group(4)
        )
    match = _INIT.search(text)
    if match:
        return replace(event(INIT_FAILED, match.group(1)), text=match.group(2))
    match = _FALLEN.search(text)
    if match:
        return event(XID, match.group(1), FALLEN_OFF_THE_BUS, severity=_UNNUMBERED)
    if named and _FALLEN_TEXT.search(text):
        return event(XID, named, FALLEN_OFF_THE_BUS, severity=_UNNUMBERED)
    match = _AER.search(text)
    if match:
        severity = "corrected" if match.group(2).lower().startswith("correct") else "uncorrected"
        return event(BUS_ERROR, match.group(1), severity=severity)
    match = _SPACE.search(text)
    if match:
        return replace(
            event(NO_SPACE, match.group(1), int(match.group(2))), text=(match.group(3) or match.group(4)).strip("[]")
        )
    return None
