# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: preflight_bios
short_description: Judge BIOS attributes that a BMC told through Redfish
version_added: 0.1.0
description:
  - Compares the BIOS attributes of one system with those that are wanted. Names and values are the vendor's own; only
    attributes that are named in O(wanted) are looked at.
author:
  - The baremetal.inference contributors (@baremetal-inference)
positional: _input
options:
  _input:
    description: C(redfish_facts.bios_attribute.entries) of C(community.general.redfish_info) with the command
      C(GetBiosAttributes). Empty when there is O(problem).
    type: list
    elements: raw
    required: true
  wanted:
    description: The attributes that matter, and what each should be.
    type: dict
    default: {}
  system:
    description: Id of the system, where the BMC has several.
    type: str
    default: ""
  pending:
    description: What the attributes will be after the next reboot, as far as it is known.
    type: dict
    default: {}
  problem:
    description: Why the attributes could not be read.
    type: str
    default: ""
  preflight:
    description: C(preflight) of M(baremetal.inference.gpu_preflight), to which the checks are added.
    type: dict
"""

EXAMPLES = r"""
- name: Read the BIOS attributes
  community.general.redfish_info:
    category: Systems
    command: GetBiosAttributes
    baseuri: bmc-dgx-01.example.com
    username: "{{ bmc_username }}"
    password: "{{ bmc_password }}"
    validate_certs: true
  register: bios
  delegate_to: localhost

- name: Show which of them differ from what is wanted
  ansible.builtin.debug:
    msg: "{{ bios.redfish_facts.bios_attribute.entries | baremetal.inference.preflight_bios(wanted) }}"
  vars:
    wanted: "{{ bios_attributes_of_this_vendor }}"
"""

RETURN = r"""
_value:
  description:
    - C(differing), the wanted values of attributes that have others; C(to_set), those of them that are not pending either.
    - C(system_uri), where the BMC has the system, or empty.
    - C(unknown), texts of what could not be compared.
    - C(checks), in the shape of C(preflight.checks) of M(baremetal.inference.gpu_preflight), and C(preflight), O(preflight)
      with them.
  type: dict
"""

import typing as t

from ansible_collections.baremetal.inference.plugins.plugin_utils import _preflight_bios as bios
from ansible_collections.baremetal.inference.plugins.plugin_utils._preflight_findings import plain


def preflight_bios(
    entries: t.Any,
    wanted: t.Mapping[str, t.Any] | None = None,
    system: str = "",
    pending: t.Mapping[str, t.Any] | None = None,
    problem: str = "",
    preflight: t.Mapping[str, t.Any] | None = None,
) -> dict[str, t.Any]:
    wanted, pending = plain(wanted or {}), plain(pending or {})
    uri, differing = "", {}
    try:
        if problem:
            raise ValueError(problem)
        found = bios.chosen(bios.systems_of(plain(entries)), str(system))
        uri, differing = found.uri, bios.differing(found.attributes, wanted)
        checks = bios.checks(found.attributes, wanted, pending)
    except ValueError as error:
        checks = bios.unreadable(str(error))
    return {
        "differing": differing,
        "to_set": bios.differing({**dict.fromkeys(differing), **pending}, differing),
        "system_uri": uri,
        "unknown": [f"{check['title']}: {check['observed']}" for check in checks if check["verdict"] == "unknown"],
        "checks": checks,
        "preflight": bios.with_checks(plain(preflight), checks) if preflight else {},
    }


class FilterModule:
    """The filter by its name."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"preflight_bios": preflight_bios}
