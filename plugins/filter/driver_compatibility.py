# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: driver_compatibility
short_description: Judge whether an engine, a driver and GPUs go together, and name the pairs that do
version_added: 0.1.0
description:
  - Knows which driver branch runs which CUDA, which GPUs which driver and CUDA support, how long each branch gets fixes, and
    which older drivers the compatibility package accepts. The figures are dated, and each has its source.
  - It asks the host nothing, and reads no clock.
author:
  - The baremetal.inference contributors (@baremetal-inference)
positional: _input, host, today
options:
  _input:
    description: The engine - C(engine), its release, and C(cuda), what it is built for; where known,
      C(compute_capability_minimum) and C(python), two versions, from and below. Versions are texts, in quotes.
    type: dict
    required: true
  host:
    description:
      - C(driver), a driver's version or a branch that is wanted; null for none.
      - C(gpus), GPUs as M(baremetal.inference.gpu_info) returns them; while there is no driver, C(architecture) and
        C(data_center) of each, as far as they are known.
      - C(python), its version; C(open_modules), whether the kernel modules are, or will be, the open ones. What is left out
        or null is not judged.
      - C(environments), one dictionary of environment variables for each engine; C(compat_folders), those of the result's
        C(compat_folders) that are there.
    type: dict
    required: true
  today:
    description: The date that life cycles are judged by, YYYY-MM-DD.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Read the GPUs
  baremetal.inference.gpu_info:
    gather: []
  register: found

- name: Stop where the engine cannot run, and say what can
  ansible.builtin.assert:
    that: judged.ok
    fail_msg: "{{ judged.message }}"
  vars:
    judged: >-
      {{ {'engine': '0.33.0', 'cuda': '13.0', 'compute_capability_minimum': '7.5'}
         | baremetal.inference.driver_compatibility({'driver': found.driver_version, 'gpus': found.gpus},
                                                    now(utc=true, fmt='%Y-%m-%d')) }}

- name: See which driver branches would do for A100s, before there is a driver
  ansible.builtin.debug:
    msg: "{{ judged.pairs | map(attribute='text') }}"
  vars:
    judged: >-
      {{ {'engine': '0.33.0', 'cuda': '13.0'}
         | baremetal.inference.driver_compatibility(
             {'driver': none, 'gpus': [{'architecture': 'ampere', 'data_center': true}]}, '2026-11-30') }}
"""

RETURN = r"""
_value:
  description:
    - C(ok); C(problems), one text for each thing that cannot work; C(warnings), one text for each that will not work for
      long or is not known.
    - C(pairs), what can work instead, when driver or GPUs are the problem - dictionaries with C(kind) (V(driver),
      V(cuda_compat) or V(engine)), C(text) and the figures in it.
    - C(message), problems and pairs as one text.
    - C(driver_branch_minimum), the oldest branch that runs the engine by itself; C(compat_folders), where the engine will
      look for compatibility libraries, empty unless an environment asks for them.
  type: dict
"""

import typing as t

from ansible.errors import AnsibleFilterError
from ansible_collections.baremetal.inference.plugins.module_utils._compatibility import CompatibilityError, judge


def driver_compatibility(engine: t.Any, host: t.Any, today: t.Any) -> dict[str, t.Any]:
    try:
        return judge(engine, host, today)
    except CompatibilityError as error:
        raise AnsibleFilterError(f"driver_compatibility: {error}") from error


class FilterModule:
    """The filter by its name."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"driver_compatibility": driver_compatibility}
