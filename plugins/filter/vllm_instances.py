# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: vllm_instances
short_description: Complete and check the instances of the vllm_service role
version_added: 0.1.0
description:
  - Fills each instance from the role's defaults, checks names, addresses, options and environment, and writes the options
    as C(vllm serve --config) must have them. It asks the host nothing.
author:
  - The baremetal.inference contributors (@baremetal-inference)
positional: _input
options:
  _input:
    description: The instances, as in RV(ignore:vllm_service_instances).
    type: list
    elements: dict
    required: true
  defaults:
    description: What an instance has that does not say otherwise.
    type: dict
    required: true
  flags:
    description: The options of the engine, as in the role's folder C(files/flags).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: See what would be written
  ansible.builtin.debug:
    msg: "{{ instances | baremetal.inference.vllm_instances(defaults, flags) }}"
"""

RETURN = r"""
_value:
  description: C(present), the complete instances; C(absent), names; C(problems), one text for each thing that is wrong.
  type: dict
"""

import typing as t

from ansible_collections.baremetal.inference.plugins.module_utils._engine_args import EngineFlags
from ansible_collections.baremetal.inference.plugins.module_utils._engine_instances import complete


def vllm_instances(instances: t.Any, defaults: dict[str, t.Any], flags: dict[str, t.Any]) -> dict[str, t.Any]:
    return complete(instances, defaults, EngineFlags(flags))


class FilterModule:
    """The filter by its name."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"vllm_instances": vllm_instances}
