# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: preflight_report
short_description: Tell the preflight of one host as a page, as JSON or as lines for a terminal
version_added: 0.1.0
description:
  - Turns C(preflight) of M(baremetal.inference.gpu_preflight) into what people and programs read. It asks the host nothing,
    and the same input always gives the same output.
  - The page is one HTML file with its style and its drawings in it. It runs no script and fetches nothing. Whatever came
    from the host is escaped.
author:
  - The baremetal.inference contributors (@baremetal-inference)
positional: _input, form
options:
  _input:
    description: C(preflight) in the result of M(baremetal.inference.gpu_preflight).
    type: dict
    required: true
  form:
    description:
      - V(html) is a page, V(json) the same as data, V(lines) a summary for a terminal.
      - V(failure) is why the play must fail, and empty when it need not; see O(fail_on).
      - V(file_name) is what the host's files are called, without the ending. It is the host's name, with percent signs in
        place of characters that file names do not take.
    type: str
    choices: [html, json, lines, failure, file_name]
    required: true
  fail_on:
    description: With O(form=failure), the mildest verdict that is a reason to fail, or V(never).
    type: str
    choices: [fail, warn, never]
    default: fail
  json_beside:
    description: With O(form=html), whether the page links to a JSON file beside it.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Examine the host
  baremetal.inference.gpu_preflight:
  register: examined

- name: Write a page about it
  ansible.builtin.copy:
    content: "{{ examined.preflight | baremetal.inference.preflight_report('html') }}"
    dest: "./{{ examined.preflight | baremetal.inference.preflight_report('file_name') }}.html"
    mode: "0640"
  delegate_to: localhost

- name: Stop where something is graver than a warning
  ansible.builtin.assert:
    that: problem | length == 0
    fail_msg: "{{ problem }}"
  vars:
    problem: "{{ examined.preflight | baremetal.inference.preflight_report('failure') }}"
"""

RETURN = r"""
_value:
  description: A text; with O(form=lines), a list of texts.
  type: raw
"""

import json
import typing as t

from ansible.errors import AnsibleFilterError
from ansible_collections.baremetal.inference.plugins.plugin_utils import _preflight_text
from ansible_collections.baremetal.inference.plugins.plugin_utils._preflight_findings import plain, validated
from ansible_collections.baremetal.inference.plugins.plugin_utils._preflight_fleet import file_name
from ansible_collections.baremetal.inference.plugins.plugin_utils._preflight_report import render


def preflight_report(result: t.Any, form: str, fail_on: str = "fail", json_beside: bool = False) -> str | list[str]:
    forms: dict[str, t.Callable[[t.Any], str | list[str]]] = {
        "html": lambda found: render(found, json_name=f"{file_name(found['host'])}.json" if json_beside else None),
        "json": lambda found: json.dumps(found, indent=2) + "\n",
        "lines": _preflight_text.summary,
        "failure": lambda found: _preflight_text.failure(found, fail_on),
        "file_name": lambda found: file_name(found["host"]),
    }
    try:
        if form not in forms:
            raise ValueError(f"form is {form!r}; it must be one of {', '.join(forms)}")
        return forms[form](validated(plain(result)))
    except ValueError as error:
        raise AnsibleFilterError(f"preflight_report: {error}") from error


class FilterModule:
    """The filter by its name."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"preflight_report": preflight_report}
