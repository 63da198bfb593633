# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""What a preflight check says, and how many of them become one verdict. Pure."""

from __future__ import annotations

import typing as t
from collections import Counter
from dataclasses import dataclass

SCHEMA = "baremetal.inference.preflight/1"
# In the order in which a report shows them.
GROUPS = ("firmware", "driver", "cuda", "nvlink", "ecc", "pcie", "power", "host", "topology", "mig", "kernel_log")
PASS, INFO, SKIPPED, UNKNOWN, WARN, FAIL = "pass", "info", "skipped", "unknown", "warn", "fail"
# From harmless to grave.
VERDICTS = (PASS, INFO, SKIPPED, UNKNOWN, WARN, FAIL)
_NEEDS_FIX = (UNKNOWN, WARN, FAIL)

BECOME_ROOT = "Run the task with become: true."
GIB = 1024**3


@dataclass(frozen=True)
class Subject:
    """Whom a check is about: the host, a GPU, or a pair of GPUs."""

    name: str = "host"
    gpu: int | None = None


HOST = Subject()


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. ``check`` is a stable id: its group, a dot, its name."""

    check: str
    title: str
    verdict: str
    observed: str
    expected: str
    # An imperative sentence: the command or the setting.
    fix: str = ""
    on: Subject = HOST

    def __post_init__(self) -> None:
        if self.group not in GROUPS or self.verdict not in VERDICTS:
            raise ValueError(f"{self.check}: no such group, or no such verdict as {self.verdict}")
        if bool(self.fix) != (self.verdict in _NEEDS_FIX):
            raise ValueError(f"{self.check} ({self.on.name}): {self.verdict} with the fix {self.fix!r}")

    @property
    def group(self) -> str:
        return self.check.split(".", 1)[0]

    def as_dict(self) -> dict[str, t.Any]:
        return {
            "check": self.check,
            "group": self.group,
            "title": self.title,
            "subject": self.on.name,
            "gpu": self.on.gpu,
            "verdict": self.verdict,
            "observed": self.observed,
            "expected": self.expected,
            "fix": self.fix,
        }


def gravity(verdict: str) -> int:
    return VERDICTS.index(verdict)


def worst(verdicts: t.Iterable[str]) -> str:
    """The gravest of them; of none, it is pass."""
    return max(verdicts, key=gravity, default=PASS)


def overall(checks: t.Iterable[Check]) -> str:
    """The gravest verdict of the checks that were made: one that does not apply says nothing of the host."""
    return worst(check.verdict for check in checks if check.verdict != SKIPPED)


def counts(checks: t.Iterable[Check]) -> dict[str, int]:
    counted = Counter(check.verdict for check in checks)
    return {verdict: counted[verdict] for verdict in VERDICTS}


def failing(checks: t.Iterable[Check], fail_on: str) -> list[Check]:
    """The checks that are as grave as ``fail_on`` (fail or warn) or graver; with never, those that failed."""
    limit = gravity(WARN if fail_on == WARN else FAIL)
    return [check for check in checks if gravity(check.verdict) >= limit]


def ordered(checks: t.Iterable[Check]) -> list[Check]:
    """By group; within it as they were made."""
    return sorted(checks, key=lambda check: GROUPS.index(check.group))


def size(number: int | None) -> str:
    """Bytes for people."""
    if number is None:
        return "unknown"
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit in ("B", "KiB") else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def listed(items: t.Iterable[t.Any], most: int = 8) -> str:
    """A list in words, cut off where nobody reads on."""
    texts = [str(item) for item in items]
    if len(texts) > most:
        return ", ".join(texts[:most]) + f" and {len(texts) - most} more"
    return ", ".join(texts) if texts else "none"
