# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""BIOS attributes as a BMC tells them through Redfish, against those that somebody wants. Pure.

Names and values of attributes are each vendor's own, so none is known here: only what the user names is looked at.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass
from difflib import get_close_matches

from ansible_collections.baremetal.inference.plugins.plugin_utils._preflight_findings import (
    Check,
    Result,
    counts,
    worst,
)

Attributes = t.Mapping[str, t.Any]


@dataclass(frozen=True)
class System:
    """One computer behind the BMC."""

    uri: str
    attributes: Attributes

    @property
    def id(self) -> str:
        return self.uri.rstrip("/").rpartition("/")[2]


def systems_of(entries: t.Any) -> list[System]:
    """From community.general.redfish_info, which tells each system as its address and its attributes."""
    return [System(str(place["system_uri"]), attributes) for place, attributes in entries or ()]


def chosen(systems: t.Sequence[System], system_id: str) -> System:
    ids = [system.id for system in systems]
    if system_id:
        for system in systems:
            if system.id == system_id:
                return system
        raise ValueError(f"the BMC has no system {system_id!r}; it has {', '.join(ids) or 'none'}")
    if len(systems) != 1:
        raise ValueError(f"the BMC has {len(systems)} systems ({', '.join(ids) or 'none'}); name one in 'system'")
    return systems[0]


def same(found: t.Any, wanted: t.Any) -> bool:
    """YAML has more than one way to write a value; what reads the same is the same, but true is not "True"."""
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    return str(found) == str(wanted)


def differing(attributes: Attributes, wanted: Attributes) -> dict[str, t.Any]:
    """What would have to be set, of what can be: an attribute that the BMC does not have cannot."""
    return {name: value for name, value in wanted.items() if name in attributes and not same(attributes[name], value)}


def _check(name: str, title: str, verdict: str, observed: str, expected: str, fix: str = "") -> Check:
    return {
        "check": f"firmware.{name}",
        "group": "firmware",
        "title": title,
        "subject": "host",
        "gpu": None,
        "verdict": verdict,
        "observed": observed,
        "expected": expected,
        "fix": fix,
    }


def _shown(value: t.Any) -> str:
    return value if isinstance(value, str) else repr(value)


def checks(attributes: Attributes, wanted: Attributes, pending: Attributes) -> list[Check]:
    """A check for each attribute that is wanted; when none is, what there is to want."""
    if not wanted:
        told = f"{len(attributes)} attributes can be read"
        return [_check("bios_attributes", "BIOS attributes", "info", told, "none in particular")]
    return [_judged(name, value, attributes, pending) for name, value in wanted.items()]


def _judged(name: str, value: t.Any, attributes: Attributes, pending: Attributes) -> Check:
    title = f"BIOS attribute {name}"
    if name not in attributes:
        alike = get_close_matches(name, attributes, n=3)
        hint = f" Alike: {', '.join(alike)}." if alike else ""
        fix = f"Correct the name in gpu_preflight_redfish.attributes; the BMC's own list is what counts.{hint}"
        return _check("bios_attribute", title, "unknown", "the BMC has no such attribute", _shown(value), fix)
    found = attributes[name]
    if same(found, value):
        return _check("bios_attribute", title, "pass", _shown(found), _shown(value))
    if name in pending and same(pending[name], value):
        observed = f"{_shown(found)} now, {_shown(pending[name])} after the next reboot"
        return _check("bios_attribute", title, "warn", observed, _shown(value), "Reboot the host when it is idle.")
    fix = f"Set it to {_shown(value)} in the firmware setup, or run again with gpu_preflight_redfish_apply: true; then reboot."
    if isinstance(value, bool) and isinstance(found, str):
        fix = f"Put the wanted value in quotes, if a text such as {found!r} is meant: YAML reads On and Yes as true. {fix}"
    return _check("bios_attribute", title, "fail", _shown(found), _shown(value), fix)


def unreadable(problem: str) -> list[Check]:
    fix = "Look at address, account and certificate in gpu_preflight_redfish, and whether the BMC serves Redfish."
    return [_check("bios_attributes", "BIOS attributes", "unknown", problem, "readable through Redfish", fix)]


def with_checks(result: Result, added: t.Sequence[Check]) -> dict[str, t.Any]:
    """The result with more checks, and with what is summed up from all of them."""
    every = [*result["checks"], *added]
    # Every verdict has a number in the module's result.
    numbers = {**dict.fromkeys(result.get("counts") or {}, 0), **counts(every)}
    return {**result, "checks": every, "counts": numbers, "verdict": worst(check["verdict"] for check in every)}
