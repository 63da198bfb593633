# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reading GPU events from kernel logs in all their forms. The lines are from public logs and bug reports."""

from __future__ import annotations

import json
import os
import time
import typing as t
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ansible_collections.baremetal.inference.plugins.module_utils._preflight_log import (
    BUS_ERROR,
    INIT_FAILED,
    NO_SPACE,
    SXID,
    XID,
    Clock,
    KernelLog,
    read_kernel_log,
)

NOW = datetime(2026, 11, 30, 10, 0, tzinfo=UTC)
BOOT = "0f4c1a526d1f4a0c9a3e6b1f7f0c2d11"
EARLIER = "7b9b1f5e31c44f5a8f770d2f3e9c5a10"
CLOCK = Clock(now=NOW, uptime_seconds=1000.0, boot_id=BOOT)


def no_command(arguments: t.Sequence[str]) -> tuple[int, str, str]:
    raise AssertionError(f"{arguments} must not run")


def read(path: Path, days: int = 0, clock: Clock = CLOCK) -> KernelLog:
    return read_kernel_log(str(path), days, "/nonexistent", clock, no_command, lambda name: None)


def read_text(tmp_path: Path, *lines: str, days: int = 0) -> KernelLog:
    file = tmp_path / "kernel.log"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read(file, days)


@pytest.mark.parametrize(
    ("line", "number", "bus_id", "text"),
    [
        (
            "[111111111.111] NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            79,
            "0000:05:00.0",
            "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        ),
        # Drivers before R340 name no bus type.
        ("[...] NVRM: Xid (0000:03:00): 14, Channel 00000001", 14, "0000:03:00.0", "Channel 00000001"),
        # With MIG, the instance is named too.
        (
            "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No",
            94,
            "0000:01:00.0",
            "pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No",
        ),
        ("NVRM: Xid (PCI:0000:3b:00 GPU-I:01 GPU-CI:02): 13, pid=9, name=a, x", 13, "0000:3b:00.0", "pid=9, name=a, x"),
        (
            "kernel: NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149",
            45,
            "0000:dc:00.0",
            "pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149",
        ),
        # A line that was cut after the number.
        ("NVRM: Xid (PCI:0000:83:00): 48", 48, "0000:83:00.0", ""),
        ("NVRM: Xid (PCI:10000:01:00): 63, Row Remapper", 63, "10000:01:00.0", "Row Remapper"),
    ],
)
def test_xid(tmp_path: Path, line: str, number: int, bus_id: str, text: str) -> None:
    (event,) = read_text(tmp_path, line).events
    assert (event.kind, event.number, event.bus_id, event.text) == (XID, number, bus_id, text)
    assert event.current_boot and event.recovery is None


@pytest.mark.parametrize(
    "line",
    [
        "Regular log content without Xid errors",
        "NVRM: Xid error: xyz, invalid data",
        "NVRM: Xid (invalid): some error",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024",
        "NVRM: GPU at PCI:0000:00:05: GPU-efbdfde9-5798-a6e7-4c46-12518fa15375",
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): garbled, Fatal",
        # Details of the line before.
        "nvidia-nvswitch1: SXid (PCI:0000:c3:00.0): 19084, Severity 1 Engine instance 07 Sub-engine instance 00",
        # Virtual functions have windows of their own, which nobody needs without vGPU.
        "pci 0006:03:00.0: VF BAR 0 [mem size 0x02000000 64bit pref]: can't assign; no space",
        "pci 0000:06:00.0: BAR 0: no space for [io  size 0x0008]",
        "Buffer I/O error on dev sda: no space left",
    ],
)
def test_lines_that_are_no_events(tmp_path: Path, line: str) -> None:
    assert read_text(tmp_path, line).events == ()


def test_what_the_driver_asks_for(tmp_path: Path) -> None:
    log = read_text(
        tmp_path,
        "[171167.621162] NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)",
        "[171167.897562] NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x4 (Drain and Reset) to"
        " 0x1 (GPU Reset Required)",
    )
    assert [event.recovery for event in log.events] == ["Drain and Reset", "GPU Reset Required"]


@pytest.mark.parametrize(
    ("line", "number", "severity", "bus_id"),
    [
        (
            "kernel: [123.456789] nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 20009, Non-fatal, Link 28 RX Short Error Rate",
            20009,
            "non-fatal",
            "0000:c3:00.0",
        ),
        (
            "nvidia-nvswitch1: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 30 sourcetrack timeout error",
            24007,
            "fatal",
            "0000:c3:00.0",
        ),
    ],
)
def test_sxid(tmp_path: Path, line: str, number: int, severity: str, bus_id: str) -> None:
    (event,) = read_text(tmp_path, line).events
    assert (event.kind, event.number, event.severity, event.bus_id) == (SXID, number, severity, bus_id)


@pytest.mark.parametrize(
    ("line", "kind", "number", "severity", "bus_id"),
    [
        (
            "[    8.600582] NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x25:0x65:1468)",
            INIT_FAILED,
            None,
            None,
            "0000:01:00.0",
        ),
        (
            "pcieport 0000:c0:01.1: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)",
            BUS_ERROR,
            None,
            "uncorrected",
            "0000:c0:01.1",
        ),
        (
            "nvidia 0000:09:00.0: AER: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)",
            BUS_ERROR,
            None,
            "uncorrected",
            "0000:09:00.0",
        ),
        (
            "pcieport 0000:00:1c.4: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Receiver ID)",
            BUS_ERROR,
            None,
            "corrected",
            "0000:00:1c.4",
        ),
        ("pci 0000:01:00.0: BAR 1: no space for [mem size 0x400000000 64bit pref]", NO_SPACE, 1, None, "0000:01:00.0"),
        (
            "pci 0000:01:00.0: BAR 1 [mem size 0x400000000 64bit pref]: can't assign; no space",
            NO_SPACE,
            1,
            None,
            "0000:01:00.0",
        ),
    ],
)
def test_other_events(
    tmp_path: Path, line: str, kind: str, number: int | None, severity: str | None, bus_id: str
) -> None:
    (event,) = read_text(tmp_path, line).events
    assert (event.kind, event.number, event.severity, event.bus_id) == (kind, number, severity, bus_id)


class TestALossThatIsToldInOtherWords:
    def test_without_its_number(self, tmp_path: Path) -> None:
        (event,) = read_text(tmp_path, "NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.").events
        assert (event.kind, event.number, event.bus_id, event.severity) == (XID, 79, "0000:29:00.0", None)

    def test_over_three_lines(self, tmp_path: Path) -> None:
        (event,) = read_text(
            tmp_path,
            "[ 5.1] NVRM: The NVIDIA GPU 0000:18:00.0",
            "[ 5.1] NVRM: (PCI ID: 10de:2901) installed in this system has",
            "[ 5.1] NVRM: fallen off the bus and is not responding to commands.",
        ).events
        assert (event.number, event.bus_id) == (79, "0000:18:00.0")

    def test_counts_once_beside_its_number(self, tmp_path: Path) -> None:
        log = read_text(
            tmp_path,
            "Okt 06 17:59:27 balrog kernel: NVRM: Xid (PCI:0000:01:00): 79, pid=1122, GPU has fallen off the bus.",
            "Okt 06 17:59:27 balrog kernel: NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.",
            "NVRM: GPU 0000:02:00.0: GPU has fallen off the bus.",
        )
        assert [(event.number, event.bus_id) for event in log.events] == [(79, "0000:01:00.0"), (79, "0000:02:00.0")]


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> t.Iterator[None]:
    """A host whose local time is UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


LINE = "NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics Exception"


@pytest.mark.parametrize(
    ("prefix", "when"),
    [
        # dmesg -T, in the local time of the host: UTC here.
        ("[Fri Nov 27 11:43:09 2026] ", "2026-11-27T11:43:09Z"),
        ("[Sun Nov  8 11:43:09 2026] ", "2026-11-08T11:43:09Z"),
        # dmesg, and the same as syslog hands it on: seconds since boot.
        ("[  400.000000] ", "2026-11-30T09:50:00Z"),
        ("<3>[  400.000000] ", "2026-11-30T09:50:00Z"),
        # journalctl -o short-iso, and rsyslog's.
        ("2026-11-27T11:43:09+0100 dgx kernel: ", "2026-11-27T10:43:09Z"),
        ("2026-11-27T11:43:09.123456+01:00 dgx kernel: ", "2026-11-27T10:43:09Z"),
        ("2026-11-27T11:43:09Z dgx kernel: ", "2026-11-27T11:43:09Z"),
        # Old syslog leaves the year out: it was the last such day.
        ("Nov 27 11:43:09 dgx kernel: ", "2026-11-27T11:43:09Z"),
        ("Dec  3 11:43:09 dgx kernel: ", "2025-12-03T11:43:09Z"),
        # Another language's month.
        ("Okt 27 11:43:09 dgx kernel: ", None),
        ("", None),
        # /dev/kmsg.
        ("3,1042,400000000,-;", "2026-11-30T09:50:00Z"),
        ("3,1042,400000000,-,caller=T1234;", "2026-11-30T09:50:00Z"),
    ],
)
@pytest.mark.usefixtures("utc")
def test_times(tmp_path: Path, prefix: str, when: str | None) -> None:
    (event,) = read_text(tmp_path, prefix + LINE).events
    assert (event.time, event.number) == (when, 13)
    assert event.text.endswith("Graphics Exception")


def test_days(tmp_path: Path) -> None:
    lines = ["2026-11-01T00:00:00Z dgx kernel: " + LINE, "2026-11-29T00:00:00Z dgx kernel: " + LINE]
    assert [event.time for event in read_text(tmp_path, *lines, days=14).events] == ["2026-11-29T00:00:00Z"]
    assert len(read_text(tmp_path, *lines).events) == 2
    # What has no time may be of any day.
    assert len(read_text(tmp_path, LINE, days=14).events) == 1


def test_boots_of_a_text_file(tmp_path: Path) -> None:
    log = read_text(
        tmp_path,
        LINE,
        "[    0.000000] Linux version 6.8.0-60-generic (buildd@lcy02) (gcc 13.3.0) #63-Ubuntu SMP",
        LINE,
        "Nov 30 09:00:00 dgx kernel: Linux version 6.8.0-60-generic (buildd@lcy02)",
        LINE,
        LINE,
    )
    assert [event.current_boot for event in log.events] == [False, False, True, True]
    assert log.boots == 3


def record(message: t.Any, boot: str = BOOT, seconds_ago: float = 0) -> str:
    microseconds = int((NOW.timestamp() - seconds_ago) * 1e6)
    return json.dumps({"MESSAGE": message, "_BOOT_ID": boot, "__REALTIME_TIMESTAMP": str(microseconds)})


def test_records_of_the_journal_in_a_file(tmp_path: Path) -> None:
    log = read_text(
        tmp_path,
        record("Linux version 6.8.0", EARLIER, 9000),
        record(LINE, EARLIER, 8000),
        # What is no UTF-8 comes as bytes, what is too long as null, and the last line may be cut.
        record(list(LINE.encode() + b"\xff"), BOOT, 60),
        record(None),
        record(LINE)[:40],
    )
    assert [(event.time, event.current_boot) for event in log.events] == [
        ("2026-11-30T07:46:40Z", False),
        ("2026-11-30T09:59:00Z", True),
    ]
    assert (log.boots, log.since) == (2, "2026-11-30T07:30:00Z")


def test_a_message_of_several_lines(tmp_path: Path) -> None:
    message = (
        "NVRM: The NVIDIA GPU 0000:18:00.0\nNVRM: (PCI ID: 10de:2901) installed in this system has\n"
        "NVRM: fallen off the bus and is not responding to commands."
    )
    (event,) = read_text(tmp_path, record(message)).events
    assert (event.number, event.bus_id) == (79, "0000:18:00.0")


class Journal:
    """A journalctl: what it is asked, and answers in turn."""

    def __init__(self, *answers: tuple[int, str, str]) -> None:
        self.answers = list(answers)
        self.asked: list[t.Sequence[str]] = []

    def __call__(self, arguments: t.Sequence[str]) -> tuple[int, str, str]:
        self.asked.append(arguments)
        return self.answers.pop(0)


def auto(journal: t.Any, dev: Path, days: int = 14, programs: t.Sequence[str] = ("journalctl",)) -> KernelLog:
    return read_kernel_log(
        "auto", days, str(dev), CLOCK, journal, lambda name: f"/usr/bin/{name}" if name in programs else None
    )


class TestJournal:
    def test_all_boots_are_asked_for(self, tmp_path: Path) -> None:
        journal = Journal((0, record(LINE, EARLIER) + "\n" + record(LINE) + "\n", ""))
        log = auto(journal, tmp_path)
        assert [event.current_boot for event in log.events] == [False, True]
        (asked,) = journal.asked
        assert asked[0] == "/usr/bin/journalctl" and asked[-1] == "_TRANSPORT=kernel"
        # -k and --dmesg would mean this boot alone.
        assert not {"-k", "--dmesg", "-b"} & set(asked)
        assert f"--since=@{int(NOW.timestamp()) - 14 * 86400}" in asked
        assert (log.source, log.error) == ("journal", None)

    def test_all_there_is(self, tmp_path: Path) -> None:
        journal = Journal((0, record(LINE), ""))
        auto(journal, tmp_path, days=0)
        assert not any(option.startswith("--since") for option in journal.asked[0])

    def test_without_pattern_matching(self, tmp_path: Path) -> None:
        journal = Journal((1, "", "Compiled without pattern matching support\n"), (0, record(LINE), ""))
        assert len(auto(journal, tmp_path).events) == 1
        assert any(option.startswith("--grep=") for option in journal.asked[0])
        assert not any(option.startswith("--grep=") for option in journal.asked[1])

    def test_nothing_about_gpus(self, tmp_path: Path) -> None:
        log = auto(Journal((1, "", ""), (0, record("usb 1-1: new device"), "")), tmp_path)
        assert (log.error, log.events, log.since) == (None, (), "2026-11-16T10:00:00Z")

    def test_a_user_who_may_not_see_it_gets_the_ring_buffer(self, tmp_path: Path) -> None:
        (tmp_path / "kmsg").write_text(f"4,1,900000000,-;{LINE}\n SUBSYSTEM=pci\n")
        log = auto(Journal((1, "", ""), (0, "", "")), tmp_path)
        assert (log.source, log.error, len(log.events)) == (str(tmp_path / "kmsg"), None, 1)

    def test_neither(self, tmp_path: Path) -> None:
        log = auto(Journal((1, "", ""), (0, "", "")), tmp_path)
        assert log.error is not None and "may read" in log.error and "kmsg" in log.error
        assert log.fix is not None and "kernel_log" in log.fix

    def test_it_fails(self, tmp_path: Path) -> None:
        log = auto(Journal((1, "", "Failed to open files: Bad message")), tmp_path)
        assert log.error is not None and "Bad message" in log.error

    def test_a_container_without_the_node(self, tmp_path: Path) -> None:
        dmesg = Journal((0, f"[    0.000000] Linux version 6.8.0-60-generic\n[  900.000000] {LINE}\n", ""))
        log = auto(dmesg, tmp_path, programs=("dmesg",))
        assert (log.source, [event.time for event in log.events]) == ("dmesg", ["2026-11-30T09:58:20Z"])

    def test_a_user_who_may_see_nothing(self, tmp_path: Path) -> None:
        denied = (1, "", "dmesg: read kernel buffer failed: Operation not permitted\n")
        log = auto(Journal(denied), tmp_path, programs=("dmesg",))
        assert log.error is not None and "Operation not permitted" in log.error

    def test_no_journal_at_all(self, tmp_path: Path) -> None:
        (tmp_path / "kmsg").write_text(f"6,1,0,-;Linux version 6.8.0-60-generic\n4,2,900000000,-;{LINE}\n")
        log = auto(no_command, tmp_path, programs=())
        assert [event.time for event in log.events] == ["2026-11-30T09:58:20Z"]
        assert all(event.current_boot for event in log.events)


@pytest.mark.parametrize("source", ["auto", "file"])
def test_what_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    file = tmp_path / "kmsg"
    file.write_text(LINE)

    def denied(path: t.Any, *arguments: t.Any, **more: t.Any) -> t.NoReturn:
        raise PermissionError(13, "Permission denied", str(path))

    # Root, who runs the tests on many machines, may read everything.
    monkeypatch.setattr(os, "open", denied)
    monkeypatch.setattr("builtins.open", denied)
    log = auto(no_command, tmp_path, programs=()) if source == "auto" else read(file)
    monkeypatch.undo()
    assert log.error is not None and "may not be read" in log.error
    assert log.fix == "Run the task with become: true."


def test_file_that_is_a_folder(tmp_path: Path) -> None:
    log = read(tmp_path)
    assert log.error is not None and "directory" in log.error.lower()


def test_long_text_is_cut(tmp_path: Path) -> None:
    (event,) = read_text(tmp_path, "NVRM: Xid (PCI:0000:cb:00): 62, " + "0af1 " * 200).events
    assert len(event.text) == 240
