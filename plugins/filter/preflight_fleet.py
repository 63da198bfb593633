# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: preflight_fleet
short_description: Tell the preflight of many hosts as one page or as JSON
version_added: 0.1.0
description:
  - Puts the results of M(baremetal.inference.gpu_preflight) of all hosts of a play on one page - hosts down, groups of checks
    across - with links to the pages that P(baremetal.inference.preflight_report#filter) makes.
  - A host that was not examined is there too, and counts as one that failed.
author:
  - The baremetal.inference contributors (@baremetal-inference)
positional: _input, form
options:
  _input:
    description:
      - A dictionary for each host. C(host) is its name.
      - C(state) is V(examined), V(pending) (not examined yet), V(unreachable) or V(failed).
      - C(preflight) is the result of an examined host. C(problem) is why another one has none.
    type: list
    elements: dict
    required: true
  form:
    description: V(html) is a page, V(json) the same as data.
    type: str
    choices: [html, json]
    required: true
  time:
    description: When the hosts were examined, as the page is to show it.
    type: str
    required: true
  files:
    description: Which files each host has beside the page, by their endings.
    type: list
    elements: str
    choices: [html, json]
    default: [html, json]
"""

EXAMPLES = r"""
- name: Write a page about all hosts
  ansible.builtin.copy:
    content: "{{ outcomes | baremetal.inference.preflight_fleet('html', time=now(utc=true).strftime('%Y-%m-%dT%H:%M:%SZ')) }}"
    dest: ./index.html
    mode: "0640"
  delegate_to: localhost
  run_once: true
  vars:
    outcomes:
      - host: dgx-01
        state: examined
        preflight: "{{ hostvars['dgx-01'].gpu_preflight_result }}"
      - host: dgx-02
        state: unreachable
        problem: No route to host
"""

RETURN = r"""
_value:
  description: The text of a file.
  type: str
"""

import json
import typing as t

from ansible.errors import AnsibleFilterError
from ansible_collections.baremetal.inference.plugins.plugin_utils._preflight_findings import plain
from ansible_collections.baremetal.inference.plugins.plugin_utils._preflight_fleet import as_data, hosts_of, render


def preflight_fleet(outcomes: t.Any, form: str, time: str, files: t.Sequence[str] = ("html", "json")) -> str:
    try:
        hosts = hosts_of(plain(outcomes))
        if form == "html":
            return render(hosts, str(time), list(files))
        if form == "json":
            return json.dumps(as_data(hosts, str(time), list(files)), indent=2) + "\n"
        raise ValueError(f"form is {form!r}; it must be one of html, json")
    except ValueError as error:
        raise AnsibleFilterError(f"preflight_fleet: {error}") from error


class FilterModule:
    """The filter by its name."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"preflight_fleet": preflight_fleet}
