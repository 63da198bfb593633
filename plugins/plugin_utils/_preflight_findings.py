# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""What a preflight result says, put in order for people: verdicts in words, checks of many GPUs told once."""

from __future__ import annotations

import typing as t
from collections import Counter
from dataclasses import dataclass, replace

SCHEMA = "baremetal.inference.preflight/1"

Check = t.Mapping[str, t.Any]
Result = t.Mapping[str, t.Any]


@dataclass(frozen=True)
class Verdict:
    """How one verdict is shown. The symbol and the word carry it as well as the colour does."""

    name: str
    symbol: str
    headline: str
    meaning: str


# From harmless to grave, as in the result's own order.
VERDICTS: dict[str, Verdict] = {
    verdict.name: verdict
    for verdict in (
        Verdict("pass", "\N{CHECK MARK}", "Ready", "is as it should be"),
        Verdict("info", "i", "Ready", "is worth knowing, and judged neither good nor bad"),
        Verdict(
            "skipped",
            "\N{EN DASH}",
            "Nothing was checked",
            "was not looked at, because it does not apply or was not asked for",
        ),
        Verdict("unknown", "?", "Not everything could be checked", "could not be found out"),
        Verdict("warn", "!", "Ready, with warnings", "works, and should be put right"),
        Verdict("fail", "\N{MULTIPLICATION X}", "Not ready", "must be put right before the machine serves"),
    )
}
GRAVE = ("fail", "warn", "unknown")

GROUPS: t.Mapping[str, str] = {
    "firmware": "Firmware",
    "driver": "Driver",
    "cuda": "CUDA",
    "nvlink": "NVLink",
    "ecc": "ECC and rows",
    "pcie": "PCIe",
    "power": "Power and heat",
    "host": "Host",
    "topology": "Topology",
    "mig": "MIG",
    "kernel_log": "Kernel log",
}


_CHECK_TEXTS = ("check", "group", "title", "subject", "verdict", "observed", "expected", "fix")


def plain(value: t.Any) -> t.Any:
    """The same in ordinary containers and types, whatever Ansible wrapped it in."""
    if isinstance(value, t.Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, str) else value


def validated(result: t.Any) -> Result:
    """The result, which is one of gpu_preflight in the schema that is understood here."""
    if not isinstance(result, dict):
        raise ValueError(f"expected 'preflight' of a gpu_preflight result, a dictionary; got {result!r:.80}")
    if result.get("schema") != SCHEMA:
        raise ValueError(f"the result's schema is {result.get('schema')!r}; this version understands {SCHEMA!r}")
    if not isinstance(result.get("host"), str) or not result["host"]:
        raise ValueError(f"the result's host is {result.get('host')!r}; it must be the host's name")
    for position, check in enumerate(result.get("checks") or ()):
        lacking = [name for name in _CHECK_TEXTS if not isinstance(check.get(name), str)]
        if lacking:
            raise ValueError(f"checks[{position}] of {result['host']} has no text for {', '.join(lacking)}")
    return result


def group_title(group: str) -> str:
    return GROUPS.get(group) or group.replace("_", " ").capitalize()


def severity(verdict: str) -> int:
    # A verdict that this version does not know is one that it cannot judge.
    return list(VERDICTS).index(verdict if verdict in VERDICTS else "unknown")


def look(verdict: str) -> Verdict:
    return VERDICTS.get(verdict, VERDICTS["unknown"])


def worst(verdicts: t.Iterable[str]) -> str:
    """The gravest; nothing at all is skipped."""
    return max(verdicts, key=severity, default="skipped")


def shown(verdicts: t.Iterable[str]) -> str:
    """One verdict for many, as people mean it: what passed is not overshadowed by what was skipped beside it."""
    found = set(verdicts)
    for verdict in (*GRAVE, "pass", "info", "skipped"):
        if verdict in found:
            return verdict
    return worst(found)


def counts(checks: t.Iterable[Check]) -> dict[str, int]:
    """How many checks have each verdict, gravest first, without those that none has."""
    found = Counter(look(check["verdict"]).name for check in checks)
    return {name: found[name] for name in reversed(VERDICTS) if found[name]}


def in_words(numbers: t.Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in numbers.items())


def by_group(result: Result) -> dict[str, list[Check]]:
    """The checks of each group, in the order of GROUPS; groups that this version does not know come last."""
    found: dict[str, list[Check]] = {group: [] for group in GROUPS}
    for check in result.get("checks") or ():
        found.setdefault(str(check["group"]), []).append(check)
    return {group: checks for group, checks in found.items() if checks}


def gpu_health(result: Result, gpu: t.Mapping[str, t.Any]) -> str:
    """The verdict on one GPU. What is only worth knowing, or was skipped, makes no GPU ill."""
    grave = [
        check["verdict"]
        for check in result.get("checks") or ()
        if severity(check["verdict"]) >= severity("unknown") and _concerns(check, gpu)
    ]
    return worst(grave) if grave else "pass"


def _concerns(check: Check, gpu: t.Mapping[str, t.Any]) -> bool:
    bus_id = gpu.get("pci_bus_id")
    if bus_id is not None and check.get("subject") == bus_id:
        return True
    # GPUs that do not answer have an index and perhaps no bus id.
    return check.get("gpu") is not None and check.get("gpu") == gpu.get("index")


@dataclass(frozen=True)
class Finding:
    """One check with one outcome, whether it is about one subject or about all."""

    check: str
    group: str
    title: str
    verdict: str
    expected: str
    fix: str
    # What was seen, and where.
    seen: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def subjects(self) -> tuple[str, ...]:
        return tuple(subject for _observed, subjects in self.seen for subject in subjects)


def findings(checks: t.Iterable[Check]) -> list[Finding]:
    """Checks that differ in nothing but their subject and what was seen there become one finding."""
    seen: dict[Finding, dict[str, list[str]]] = {}
    for check in checks:
        told = [str(check.get(name) or "") for name in ("check", "group", "title", "verdict", "expected", "fix")]
        places = seen.setdefault(Finding(told[0], told[1], told[2], told[3], told[4], told[5]), {})
        places.setdefault(str(check.get("observed") or ""), []).append(str(check.get("subject") or ""))
    return [
        replace(finding, seen=tuple((observed, tuple(subjects)) for observed, subjects in places.items()))
        for finding, places in seen.items()
    ]


def gravest_first(found: t.Iterable[Finding]) -> list[Finding]:
    return sorted(found, key=lambda finding: -severity(finding.verdict))


class Subjects:
    """Names of what checks are about, as short as the machine allows."""

    def __init__(self, result: Result) -> None:
        self.gpus = {
            gpu["pci_bus_id"]: gpu["index"] for gpu in result.get("gpus") or () if gpu.get("pci_bus_id") is not None
        }

    def name(self, subject: str) -> str:
        if subject in self.gpus:
            return f"GPU {self.gpus[subject]} ({subject})"
        a, dash, b = subject.partition(" - ")
        if dash and a in self.gpus and b in self.gpus:
            return f"GPU {self.gpus[a]} and GPU {self.gpus[b]}"
        return subject

    def names(self, subjects: t.Sequence[str]) -> str:
        if len(subjects) == 1:
            return self.name(subjects[0])
        if all(subject in self.gpus for subject in subjects):
            indexes = sorted({self.gpus[subject] for subject in subjects})
            if len(indexes) == len(self.gpus):
                return f"all {len(indexes)} GPUs"
            return f"GPUs {ranges(indexes)}"
        if len(subjects) > 4 and all(" - " in subject for subject in subjects):
            return f"{len(subjects)} pairs of GPUs"
        return ", ".join(self.name(subject) for subject in subjects)


def ranges(numbers: t.Sequence[int]) -> str:
    """0, 1, 2, 5 as "0-2, 5"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
