# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""What a preflight result says on a terminal."""

from __future__ import annotations

import typing as t

from ansible_collections.baremetal.inference.plugins.plugin_utils._html import clean
from ansible_collections.baremetal.inference.plugins.plugin_utils._preflight_findings import (
    GRAVE,
    Finding,
    Result,
    Subjects,
    by_group,
    counts,
    findings,
    gravest_first,
    group_title,
    in_words,
    look,
    severity,
    shown,
)

FAIL_ON = ("fail", "warn", "never")


def _one_line(words: object) -> str:
    return " ".join(clean(words).split())


def told(finding: Finding, subjects: Subjects) -> list[str]:
    """A finding in two lines: what was found where, and what to do."""
    seen = [
        f"{_one_line(observed)}{f' ({_one_line(subjects.names(places))})' if len(finding.seen) > 1 else ''}"
        for observed, places in finding.seen
    ]
    wanted = f", wanted: {_one_line(finding.expected)}" if finding.expected else ""
    lines = [
        f"{look(finding.verdict).name.upper()} {_one_line(finding.check)}: {_one_line(finding.title)}, "
        f"{_one_line(subjects.names(finding.subjects))}. Found: {'; '.join(seen)}{wanted}"
    ]
    if finding.fix:
        lines.append(f"  -> {_one_line(finding.fix)}")
    return lines


def summary(result: Result) -> list[str]:
    """A line for each group, gravest first; then what is wrong, and what to do about each."""
    checks = result.get("checks") or ()
    verdict = shown(look(check["verdict"]).name for check in checks)
    lines = [f"{_one_line(result.get('host'))}: {look(verdict).headline} ({in_words(counts(checks))})"]
    groups = [
        (shown(look(check["verdict"]).name for check in members), group, members)
        for group, members in by_group(result).items()
    ]
    for judged, group, members in sorted(groups, key=lambda item: -severity(item[0]) if item[0] in GRAVE else 0):
        lines.append(f"{judged:<8} {_one_line(group_title(group)):<15} {in_words(counts(members))}")
    subjects = Subjects(result)
    for finding in gravest_first(findings(checks)):
        if look(finding.verdict).name in GRAVE:
            lines.extend(told(finding, subjects))
    return lines


def failure(result: Result, fail_on: str) -> str:
    """Why the play must fail, with what to do; nothing when it need not."""
    if fail_on not in FAIL_ON:
        raise ValueError(f"fail_on is {fail_on!r}; it must be one of {', '.join(FAIL_ON)}")
    if fail_on == "never":
        return ""
    subjects = Subjects(result)
    bad = [
        finding
        for finding in gravest_first(findings(result.get("checks") or ()))
        if severity(finding.verdict) >= severity(fail_on)
    ]
    if not bad:
        return ""
    many = f"{len(bad)} things are" if len(bad) > 1 else "One thing is"
    lines: t.Iterable[str] = (line for finding in bad for line in told(finding, subjects))
    return "\n".join(
        [f"{_one_line(result.get('host'))}: {look(bad[0].verdict).headline}. {many} to be put right:", *lines]
    )
