# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Give the NVIDIA GPUs of this host back what they lose at a reboot or when their driver is unloaded.

That is the power limit and the persistence mode. What each GPU is to have stands in a JSON file, by UUID:

    {"version": 1, "gpus": [
      {"uuid": "GPU-...", "pci_bus_id": "0000:07:00.0", "persistence_mode": "enabled", "power_limit": {"watts": 350}},
      {"uuid": "GPU-...", "pci_bus_id": "0000:0f:00.0", "persistence_mode": null, "power_limit": {"limit": "max"}}]}

A power_limit is {"watts": N}, {"percent": N} of the card's default, {"limit": "default"}, {"limit": "max"} or null. The
bus id only says in messages which card is meant. null leaves things as they are.

It runs as a oneshot unit at boot, needs the NVIDIA driver's libnvidia-ml.so.1 and Python 3.9 or later, and nothing else.
Calls, units and meanings are those of NVIDIA's nvml.h.

Exit status: 0 every GPU is as it is to be; 1 some GPU is not, and each is named; 2 the file or the command line is
wrong; 3 the driver cannot be used.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import stat
import sys
import time
import typing as t
from dataclasses import dataclass, field

LIBRARY = "libnvidia-ml.so.1"
DEFAULT_FILE = "/etc/inference/gpu-state.json"
VERSION = 1

# Codes of nvmlReturn_t.
SUCCESS = 0
NOT_SUPPORTED = 3
NO_PERMISSION = 4
DRIVER_NOT_LOADED = 9
# Length of a UUID with its end, from nvml.h: NVML_DEVICE_UUID_V2_BUFFER_SIZE.
UUID_SIZE = 96

OK, WRONG_STATE, WRONG_INPUT, NO_DRIVER = range(4)


class InputError(Exception):
    """The file says something that cannot be done for any card."""


class DriverError(Exception):
    """NVML cannot be used at all."""


class LibraryMissing(DriverError):
    """There is no libnvidia-ml.so.1 on this host."""


class NvmlError(Exception):
    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"{call}: {text} (NVML error {code})")
        self.code = code


# ---- What is wanted --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """What one GPU is to have. None leaves it as it is."""

    uuid: str
    pci_bus_id: str | None
    persistent: bool | None
    # ("watts", 350), ("percent", 80), ("limit", "max")
    power_limit: tuple[str, float | str] | None

    @property
    def label(self) -> str:
        return f"GPU {self.pci_bus_id} ({self.uuid})" if self.pci_bus_id else f"GPU {self.uuid}"


def parse_power_limit(value: t.Any, where: str) -> tuple[str, float | str] | None:
    if value is None:
        return None
    if isinstance(value, dict) and len(value) == 1:
        ((kind, amount),) = value.items()
        is_number = isinstance(amount, (int, float)) and not isinstance(amount, bool)
        if kind in ("watts", "percent") and is_number and amount > 0:
            return kind, float(amount)
        if kind == "limit" and amount in ("default", "max"):
            return kind, str(amount)
    raise InputError(
        f"{where}.power_limit is {json.dumps(value)}: expected one of {{'watts': N}}, {{'percent': N}},"
        " {'limit': 'default'}, {'limit': 'max'} or null"
    )


def parse_wanted(document: t.Any) -> list[Wanted]:
    """What the file asks for; raises InputError with the key, its value, and what was expected."""
    if not isinstance(document, dict) or document.get("version") != VERSION:
        found = document.get("version") if isinstance(document, dict) else document
        raise InputError(f"version is {json.dumps(found)}: expected {VERSION}")
    entries = document.get("gpus")
    if not isinstance(entries, list):
        raise InputError(f"gpus is {json.dumps(entries)}: expected a list")
    wanted: list[Wanted] = []
    for number, entry in enumerate(entries):
        where = f"gpus[{number}]"
        if not isinstance(entry, dict):
            raise InputError(
                f"{where} is {json.dumps(entry)}: expected a mapping with uuid, persistence_mode, power_limit"
            )
        unknown = sorted(entry.keys() - {"uuid", "pci_bus_id", "persistence_mode", "power_limit"})
        if unknown:
            raise InputError(
                f"{where} has {', '.join(unknown)}: expected uuid, pci_bus_id, persistence_mode, power_limit"
            )
        uuid, bus_id, mode = entry.get("uuid"), entry.get("pci_bus_id"), entry.get("persistence_mode")
        if not isinstance(uuid, str) or not uuid.startswith("GPU-"):
            raise InputError(f"{where}.uuid is {json.dumps(uuid)}: expected a text like GPU-5f1d8a7e-...")
        if uuid in {other.uuid for other in wanted}:
            raise InputError(f"{where}.uuid is {uuid}, which an entry before it has: expected each GPU once")
        if bus_id is not None and not isinstance(bus_id, str):
            raise InputError(f"{where}.pci_bus_id is {json.dumps(bus_id)}: expected a text like 0000:07:00.0, or null")
        if mode not in ("enabled", None):
            raise InputError(f"{where}.persistence_mode is {json.dumps(mode)}: expected 'enabled' or null")
        limit = parse_power_limit(entry.get("power_limit"), where)
        wanted.append(Wanted(uuid=uuid, pci_bus_id=bus_id, persistent=True if mode else None, power_limit=limit))
    return wanted


def read_wanted(path: str) -> list[Wanted]:
    try:
        with open(path, encoding="utf-8") as stream:
            found = os.fstat(stream.fileno())
            # It decides what root does with the hardware.
            if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or found.st_uid not in (0, os.geteuid()):
                raise InputError("others than root may write to it: chown root it, and chmod go-w")
            return parse_wanted(json.load(stream))
    except OSError as error:
        raise InputError(f"it cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"it is no JSON: {error}") from error


# ---- What to do about it ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Power:
    """Limits in milliwatts: what is set, what is in force, and what the card takes."""

    requested: int
    enforced: int | None
    default: int
    minimum: int
    maximum: int


def watts(milliwatts: float) -> str:
    return f"{milliwatts / 1000:g} W"


def wanted_milliwatts(limit: tuple[str, float | str], power: Power) -> int:
    """The limit in milliwatts; raises ValueError, with what the card takes, when it is outside of that."""
    kind, amount = limit
    if kind == "limit":
        return power.default if amount == "default" else power.maximum
    if kind == "watts":
        target, told = round(float(amount) * 1000), f"{float(amount):g} W"
    else:
        # Whole watts, as the module gpu_power_limit has them.
        target = round(power.default / 1000 * float(amount) / 100) * 1000
        told = f"{float(amount):g} % of {watts(power.default)}, which is {watts(target)},"
    if not power.minimum <= target <= power.maximum:
        raise ValueError(
            f"a power limit of {told} is wanted, and the card takes {watts(power.minimum)} to {watts(power.maximum)}"
        )
    return target


def same_limit(a: int, b: int) -> bool:
    """NVML counts in milliwatts. Less than half a watt is somebody's rounding, not another limit."""
    return abs(a - b) < 500


def limit_warning(power: Power) -> str | None:
    """The limit in force is the least of several, and only one of them is set from here."""
    if power.enforced is None or power.requested - power.enforced < 500:
        return None
    return (
        f"the power limit is set to {watts(power.requested)}, but {watts(power.enforced)} is in force: something"
        " else limits the card further, such as the BMC or the platform's power management"
    )


# ---- NVML ------------------------------------------------------------------------------------------------------------


class Nvml:
    """The few calls that are needed, through the library itself: no Python package has to be there at boot."""

    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise LibraryMissing(f"no NVIDIA driver is installed on this host: {error}") from error
        self.library.nvmlErrorString.restype = ctypes.c_char_p

    def call(self, name: str, *arguments: t.Any) -> None:
        function = getattr(self.library, name, None)
        if function is None:
            raise NvmlError(name, 13, "the installed library does not have this function")
        code = function(*arguments)
        if code != SUCCESS:
            text = self.library.nvmlErrorString(code)
            raise NvmlError(name, code, text.decode("utf-8", errors="replace") if text else "unknown error")

    def number(self, name: str, *arguments: t.Any) -> int:
        """The answer of a function whose last argument is where to put an unsigned int."""
        value = ctypes.c_uint()
        self.call(name, *arguments, ctypes.byref(value))
        return value.value

    def open(self, wait: float, sleep: t.Callable[[float], None] = time.sleep) -> None:
        """Begin, waiting up to so many seconds for a kernel module that is still being loaded."""
        deadline = time.monotonic() + wait
        while True:
            try:
                self.call("nvmlInit_v2")
                return
            except NvmlError as error:
                if error.code != DRIVER_NOT_LOADED or time.monotonic() >= deadline:
                    raise DriverError(f"the NVIDIA driver cannot be used: {error}") from error
            sleep(0.5)

    def close(self) -> None:
        # What was read and set stays so when the goodbye fails.
        with contextlib.suppress(NvmlError):
            self.call("nvmlShutdown")

    def gpus(self) -> tuple[dict[str, ctypes.c_void_p], list[str]]:
        """Handles by UUID, and what the GPUs say that do not answer.

        nvmlDeviceGetHandleByUUID would do the search itself, but it fails when any GPU at all is lost, also for one
        that is well.
        """
        handles: dict[str, ctypes.c_void_p] = {}
        silent: list[str] = []
        for index in range(self.number("nvmlDeviceGetCount_v2")):
            handle = ctypes.c_void_p()
            buffer = ctypes.create_string_buffer(UUID_SIZE)
            try:
                self.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
                self.call("nvmlDeviceGetUUID", handle, buffer, ctypes.c_uint(UUID_SIZE))
            except NvmlError as error:
                silent.append(f"the GPU that NVML counts as number {index} does not answer: {error}")
                continue
            handles[buffer.value.decode()] = handle
        return handles, silent

    def persistent(self, handle: ctypes.c_void_p) -> bool:
        return bool(self.number("nvmlDeviceGetPersistenceMode", handle))

    def set_persistent(self, handle: ctypes.c_void_p) -> None:
        self.call("nvmlDeviceSetPersistenceMode", handle, ctypes.c_uint(1))

    def power(self, handle: ctypes.c_void_p) -> Power:
        least, most = ctypes.c_uint(), ctypes.c_uint()
        constraints = "nvmlDeviceGetPowerManagementLimitConstraints"
        self.call(constraints, handle, ctypes.byref(least), ctypes.byref(most))
        return Power(
            requested=self.number("nvmlDeviceGetPowerManagementLimit", handle),
            enforced=self._enforced(handle),
            default=self.number("nvmlDeviceGetPowerManagementDefaultLimit", handle),
            minimum=least.value,
            maximum=most.value,
        )

    def _enforced(self, handle: ctypes.c_void_p) -> int | None:
        try:
            return self.number("nvmlDeviceGetEnforcedPowerLimit", handle)
        except NvmlError as error:
            if error.code == NOT_SUPPORTED:
                return None
            raise

    def set_power_limit(self, handle: ctypes.c_void_p, milliwatts: int) -> None:
        self.call("nvmlDeviceSetPowerManagementLimit", handle, ctypes.c_uint(milliwatts))


# ---- One GPU after the other -----------------------------------------------------------------------------------------


@dataclass
class Report:
    """What happened to one GPU."""

    wanted: Wanted
    changes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    persistent: bool | None = None
    power: Power | None = None
    target: int | None = None

    def as_dict(self) -> dict[str, t.Any]:
        power = self.power
        return {
            "uuid": self.wanted.uuid,
            "pci_bus_id": self.wanted.pci_bus_id,
            "ok": not self.problems,
            "changes": self.changes,
            "problems": self.problems,
            "warnings": self.warnings,
            "persistence_mode": None if self.persistent is None else ("enabled" if self.persistent else "disabled"),
            "wanted_watts": None if self.target is None else self.target / 1000,
            "requested_watts": None if power is None else power.requested / 1000,
            "enforced_watts": None if power is None or power.enforced is None else power.enforced / 1000,
        }


def refused(error: NvmlError) -> str:
    return f"{error}. Only root may set this: run it with sudo" if error.code == NO_PERMISSION else str(error)


def restore_persistence(nvml: Nvml, handle: ctypes.c_void_p, report: Report, *, check: bool) -> None:
    report.persistent = nvml.persistent(handle)
    if report.persistent:
        return
    if check:
        report.problems.append("persistence mode is disabled, and enabled is wanted")
        return
    nvml.set_persistent(handle)
    report.persistent = nvml.persistent(handle)
    if report.persistent:
        report.changes.append("persistence mode disabled -> enabled")
    else:
        report.problems.append("persistence mode was set to enabled, and still reads disabled")


def restore_power(nvml: Nvml, handle: ctypes.c_void_p, report: Report, *, check: bool) -> None:
    assert report.wanted.power_limit is not None
    report.power = before = nvml.power(handle)
    try:
        report.target = target = wanted_milliwatts(report.wanted.power_limit, before)
    except ValueError as error:
        report.problems.append(str(error))
        return
    if check and not same_limit(before.requested, target):
        report.problems.append(f"the power limit is {watts(before.requested)}, and {watts(target)} is wanted")
    elif not same_limit(before.requested, target):
        nvml.set_power_limit(handle, target)
        report.power = after = nvml.power(handle)
        if same_limit(after.requested, target):
            report.changes.append(f"power limit {watts(before.requested)} -> {watts(target)}")
        else:
            report.problems.append(
                f"the power limit was set to {watts(target)}, and then reads {watts(after.requested)}"
            )
    warning = limit_warning(report.power)
    if warning:
        report.warnings.append(warning)


def restore(nvml: Nvml, wanted: t.Sequence[Wanted], *, check: bool) -> list[Report]:
    """Bring each GPU to what is wanted. One that fails does not keep the others from it."""
    handles, silent = nvml.gpus()
    reports = []
    for entry in wanted:
        report = Report(entry)
        reports.append(report)
        handle = handles.get(entry.uuid)
        if handle is None:
            found = f"the driver has {len(handles)} other GPUs" if handles else "the driver has no GPU that answers"
            report.problems.append("; ".join([f"it is not there ({found})", *silent]))
            continue
        # Persistence first: without it the driver may forget the limit as soon as this program ends.
        steps: list[t.Callable[..., None]] = []
        if entry.persistent:
            steps.append(restore_persistence)
        if entry.power_limit is not None:
            steps.append(restore_power)
        for step in steps:
            try:
                step(nvml, handle, report, check=check)
            except NvmlError as error:
                report.problems.append(refused(error))
    return reports


# ---- The command -----------------------------------------------------------------------------------------------------


def to_journal() -> bool:
    """Whether standard error is a stream of the journal, which takes a level in front of each line."""
    device, _colon, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    found = os.fstat(sys.stderr.fileno())
    return (device, inode) == (str(found.st_dev), str(found.st_ino))


class Printer:
    def __init__(self) -> None:
        self.journal = to_journal()

    def say(self, text: str, level: int) -> None:
        """Levels are those of syslog: 3 error, 4 warning, 6 information."""
        print(f"<{level}>{text}" if self.journal else text, file=sys.stderr if level < 5 else sys.stdout)

    def failure(self, text: str, *, as_json: bool) -> None:
        if as_json:
            print(json.dumps({"ok": False, "problems": [text], "gpus": []}, indent=2))
        self.say(text, 3)

    def reports(self, reports: t.Sequence[Report]) -> None:
        for report in reports:
            for change in report.changes:
                self.say(f"{report.wanted.label}: {change}", 6)
            for warning in report.warnings:
                self.say(f"{report.wanted.label}: {warning}", 4)
            for problem in report.problems:
                self.say(f"{report.wanted.label}: {problem}", 3)
        good = sum(not report.problems for report in reports)
        changed = sum(bool(report.changes) for report in reports)
        self.say(f"{good} of {len(reports)} GPUs are as they are to be, {changed} of them were changed now", 6)


def arguments_of(words: t.Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="inference-gpu-state",
        description="Give the GPUs of this host back the power limits and the persistence mode that they are to have.",
        epilog="Exit status: 0 all is as wanted; 1 some GPU is not; 2 wrong file or command line; 3 no usable driver.",
    )
    parser.add_argument("--file", default=DEFAULT_FILE, help="what is wanted (%(default)s)")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when something differs")
    parser.add_argument("--json", action="store_true", help="print what was found and done as JSON")
    parser.add_argument(
        "--wait", type=float, default=0, metavar="SECONDS", help="wait so long for a driver that is being loaded"
    )
    parser.add_argument(
        "--condition", action="store_true", help="only say whether a driver is installed: exit 0 if so, else 1"
    )
    return parser.parse_args(words)


def main(words: t.Sequence[str] | None = None) -> int:
    arguments = arguments_of(words)
    printer = Printer()
    try:
        if arguments.condition:
            Nvml()
            return OK
        wanted = read_wanted(arguments.file)
        nvml = Nvml()
        nvml.open(arguments.wait)
        try:
            reports = restore(nvml, wanted, check=arguments.check)
        finally:
            nvml.close()
    except InputError as error:
        printer.failure(f"{arguments.file}: {error}", as_json=arguments.json)
        return WRONG_INPUT
    except LibraryMissing as error:
        printer.failure(f"{error}. Nothing is done to the GPUs.", as_json=arguments.json)
        return WRONG_STATE if arguments.condition else NO_DRIVER
    except (DriverError, NvmlError) as error:
        printer.failure(str(error), as_json=arguments.json)
        return NO_DRIVER
    good = not any(report.problems for report in reports)
    if arguments.json:
        print(json.dumps({"ok": good, "problems": [], "gpus": [report.as_dict() for report in reports]}, indent=2))
    else:
        printer.reports(reports)
    return OK if good else WRONG_STATE


if __name__ == "__main__":
    sys.exit(main())
