# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""The preflight of many hosts: one page, one JSON document, and the names of the files of each host."""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass
from urllib.parse import quote

from ansible_collections.baremetal.inference.plugins.plugin_utils._html import Child, Html, tag
from ansible_collections.baremetal.inference.plugins.plugin_utils._preflight_findings import (
    GRAVE,
    GROUPS,
    Finding,
    Result,
    by_group,
    counts,
    findings,
    group_title,
    in_words,
    look,
    severity,
    shown,
    validated,
)
from ansible_collections.baremetal.inference.plugins.plugin_utils._preflight_report import (
    badge,
    banner,
    count_of,
    gpu_names,
    legend_of_verdicts,
    page,
    task,
)

SCHEMA = "baremetal.inference.preflight-fleet/1"
# Files of the fleet, which no host's may replace.
_RESERVED = ("index", "preflight")
# How far the examination of a host came. Whatever is not "examined" is no better than a failed check.
STATES = {
    "examined": "examined",
    "pending": "not examined yet",
    "unreachable": "unreachable",
    "failed": "could not be examined",
}
_HOSTS_NAMED = 12


def file_name(host: str) -> str:
    """A host's name as the name of a file, whatever is in it; two hosts never get the same."""
    name = quote(host, safe="")
    return f"%{ord(name[0]):02x}{name[1:]}" if name.lower() in _RESERVED or name.startswith(".") else name


@dataclass(frozen=True)
class Host:
    """One host of the fleet."""

    name: str
    state: str
    problem: str
    result: Result

    @property
    def verdict(self) -> str:
        if self.state != "examined":
            return "fail"
        return shown(look(check["verdict"]).name for check in self.result.get("checks") or ())

    @property
    def word(self) -> str:
        return look(self.verdict).name if self.state == "examined" else STATES[self.state]


def hosts_of(outcomes: t.Iterable[t.Mapping[str, t.Any]]) -> list[Host]:
    """The hosts as the play tells them: `host`, `state`, `problem`, and `preflight`, the result of the module."""
    hosts = []
    for outcome in outcomes:
        if not isinstance(outcome, dict) or "host" not in outcome or "state" not in outcome:
            raise ValueError(f"each host is a dictionary with host and state; got {outcome!r:.80}")
        state = str(outcome["state"])
        if state not in STATES:
            raise ValueError(f"{outcome['host']}: state is {state!r}; it must be one of {', '.join(STATES)}")
        result = outcome.get("preflight")
        if state == "examined" and result:
            validated(result)
        elif state == "examined" or result:
            raise ValueError(
                f"{outcome['host']}: state is {state!r}, and preflight is {'given' if result else 'empty'}"
            )
        hosts.append(Host(str(outcome["host"]), state, str(outcome.get("problem") or ""), result or {}))
    return hosts


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts dgx-9 before dgx-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def gravest_hosts_first(hosts: t.Iterable[Host]) -> list[Host]:
    return sorted(hosts, key=lambda host: (-severity(host.verdict), host.state == "examined", _natural(host.name)))


def _tally(hosts: t.Iterable[Host]) -> dict[str, int]:
    return counts({"verdict": host.verdict} for host in hosts)


def as_data(hosts: t.Sequence[Host], time: str, files: t.Collection[str]) -> dict[str, t.Any]:
    """The fleet for programs; hosts in the order of the inventory."""
    return {
        "schema": SCHEMA,
        "time": time,
        "verdict": shown(host.verdict for host in hosts),
        "counts": _tally(hosts),
        "hosts": [
            {
                "host": host.name,
                "state": host.state,
                "problem": host.problem,
                "verdict": host.verdict,
                "counts": counts(host.result.get("checks") or ()),
                "groups": {
                    group: shown(look(check["verdict"]).name for check in checks)
                    for group, checks in by_group(host.result).items()
                },
                "time": host.result.get("time"),
                "files": [f"{file_name(host.name)}.{kind}" for kind in files] if host.state == "examined" else [],
            }
            for host in hosts
        ],
    }


def render(hosts: t.Sequence[Host], time: str, files: t.Collection[str]) -> str:
    """The fleet's page: hosts down, groups of checks across."""
    verdict = shown(host.verdict for host in hosts)
    gpus = [gpu for host in hosts for gpu in host.result.get("gpus") or ()]
    facts: list[Child] = [tag("b", count_of(len(hosts), "host")), tag("b", gpu_names(gpus)), f"examined {time}"]
    title = f"GPU preflight of {count_of(len(hosts), 'host')}"
    return page(
        f"{title}: {look(verdict).headline}",
        verdict,
        banner(verdict, title, _headline(hosts, verdict), facts, _tally(hosts)),
        tag(
            "section",
            tag("h2", "Hosts"),
            tag("p", "Each cell is the gravest verdict of its group of checks, and how many have it.", class_="note"),
            tag("div", _matrix(hosts, files), class_="scroll"),
            id="hosts",
        ),
        _tasks(hosts),
        tag("footer", legend_of_verdicts(), _source("json" in files)),
    )


def _headline(hosts: t.Sequence[Host], verdict: str) -> str:
    bad = sum(1 for host in hosts if host.verdict == "fail")
    if bad:
        return f"{bad} of {count_of(len(hosts), 'host')} not ready"
    return look(verdict).headline


def _source(as_json: bool) -> Html:
    return tag(
        "p",
        "Made by baremetal.inference.gpu_preflight. The same as data: ",
        tag("a", "preflight.json", href="preflight.json"),
        ", and a JSON file beside each host's page." if as_json else ".",
    )


def _matrix(hosts: t.Sequence[Host], files: t.Collection[str]) -> Html:
    present = {group for host in hosts for group in by_group(host.result)}
    groups = [group for group in GROUPS if group in present] + sorted(present - GROUPS.keys())
    columns = ["Host", "Verdict", *(group_title(group) for group in groups)]
    head = tag("tr", [tag("th", name, scope="col") for name in columns])
    rows = []
    for host in gravest_hosts_first(hosts):
        name: Child = host.name
        if host.state == "examined" and "html" in files:
            # A page's address is the file's name, whose own percent signs are to be taken as they stand.
            name = tag("a", host.name, href=f"{quote(file_name(host.name))}.html")
        what: Child = None
        if host.state == "examined":
            driver = (host.result.get("driver") or {}).get("driver_version")
            names = gpu_names(host.result.get("gpus") or ())
            what = tag("span", names, f", driver {driver}" if driver else None, class_="sub")
        cells: list[Child] = [
            tag("th", name, what, scope="row"),
            tag("td", badge(host.verdict, host.word), class_="left"),
        ]
        if host.state == "examined":
            found = by_group(host.result)
            cells.extend(_cell(found.get(group) or ()) for group in groups)
        else:
            cells.append(tag("td", host.problem, colspan=max(1, len(groups)), class_="left wrap"))
        rows.append(tag("tr", cells))
    return tag("table", tag("thead", head), tag("tbody", rows), class_="fleet number")


def _cell(checks: t.Sequence[t.Mapping[str, t.Any]]) -> Html:
    if not checks:
        return tag("td", tag("span", "\N{EN DASH}", class_="sub", title="no check"))
    verdict = shown(look(check["verdict"]).name for check in checks)
    numbers = counts(checks)
    shape = look(verdict)
    # How many are well is of no interest; how many are not, is.
    words = f"{numbers[verdict]} {shape.name}" if verdict in GRAVE else shape.name
    return tag(
        "td",
        tag("span", f"{shape.symbol} {words}", class_=f"cell {shape.name}", title=in_words(numbers)),
    )


def _tasks(hosts: t.Sequence[Host]) -> Html:
    """What is to be done, told once for all hosts that it is to be done on."""
    places: dict[Finding, list[str]] = {}
    for host in hosts:
        grave = (check for check in host.result.get("checks") or () if look(check["verdict"]).name in GRAVE)
        # A finding's places are GPUs of one host; what matters here is which hosts have it, and what they showed.
        for finding in findings({**check, "subject": host.name} for check in grave):
            alike = next((other for other in places if _same_task(other, finding)), finding)
            if host.name not in places.setdefault(alike, []):
                places[alike].append(host.name)
    ordered = sorted(places.items(), key=lambda item: (-severity(item[0].verdict), -len(item[1])))
    if not ordered:
        nothing = "Nothing on the hosts that were examined. Every check that could be made came out well."
        return tag("section", tag("h2", "What to do"), tag("p", nothing, class_="note"), id="to-do")
    content = [task(finding, _named(sorted(names, key=_natural), len(hosts))) for finding, names in ordered]
    return tag("section", tag("h2", "What to do"), content, id="to-do")


def _same_task(a: Finding, b: Finding) -> bool:
    return (a.check, a.verdict, a.expected, a.fix) == (b.check, b.verdict, b.expected, b.fix)


def _named(names: t.Sequence[str], total: int) -> str:
    if len(names) == total and total > 2:
        return f"all {total} hosts"
    rest = len(names) - _HOSTS_NAMED
    if rest > 1:
        return f"{', '.join(names[:_HOSTS_NAMED])} and {rest} more hosts"
    return ", ".join(names)
