# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: gpu_state_plan
short_description: Work out what the gpu_state role has to do on a host
version_added: 0.1.0
description:
  - Resolves GPU selectors to UUIDs, lays the overrides over the role's variables, judges each wish by what the card reports,
    and groups GPUs that are to have the same. It asks the host nothing.
author:
  - The baremetal.inference contributors (@baremetal-inference)
positional: _input
options:
  _input:
    description: The role's variables without their prefix - C(gpus), C(ecc), C(ecc_allow_disabled), C(power_limit),
      C(persistence), C(overrides), C(reboot), C(reboot_force).
    type: dict
    required: true
  observed:
    description: The result of M(baremetal.inference.gpu_info) for all GPUs, with C(processes) gathered.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: See what would be done
  ansible.builtin.debug:
    msg: "{{ wishes | baremetal.inference.gpu_state_plan(gpu_info_result) }}"
"""

RETURN = r"""
_value:
  description: C(problems), one text for each thing that is wrong; C(ecc), C(power_limits) and C(persistent_gpus), what to
    set on which UUIDs; C(reboot_gpus), whose ECC mode then needs a reboot; C(users), programs that a reboot would end;
    C(boot), what the boot unit's file is to hold.
  type: dict
"""

import typing as t

from ansible_collections.baremetal.inference.plugins.module_utils._gpu_state_plan import plan_gpu_state


def gpu_state_plan(wishes: dict[str, t.Any], observed: dict[str, t.Any]) -> dict[str, t.Any]:
    return plan_gpu_state(wishes, observed)


class FilterModule:
    """The filter by its name."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"gpu_state_plan": gpu_state_plan}
