# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: vllm_placement
short_description: Judge the instances of the vllm_service role against what their host has
version_added: 0.1.0
description:
  - Resolves GPU selectors to UUIDs, checks the models' folders and ports, and computes how long each instance may take to
    start. It asks the host nothing, and judges what the role's tasks have read there. The driver is judged by
    P(baremetal.inference.driver_compatibility#filter).
author:
  - The baremetal.inference contributors (@baremetal-inference)
positional: _input
options:
  _input:
    description: The complete instances, C(present) in the result of P(baremetal.inference.vllm_instances#filter).
    type: list
    elements: dict
    required: true
  observed:
    description: C(gpus), the result of M(baremetal.inference.gpu_info) or null; C(models), what is in each instance's
      folder; C(sockets), what listens on the host.
    type: dict
    required: true
  settings:
    description: C(build), C(gpus_shared) and C(user).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: See which GPUs each instance would get
  ansible.builtin.debug:
    msg: "{{ instances | baremetal.inference.vllm_placement(observed, settings) }}"
"""

RETURN = r"""
_value:
  description: C(instances), with C(gpu_uuids), C(weights_bytes) and C(start_timeout); C(problems), one text for each thing
    that is wrong.
  type: dict
"""

import typing as t

from ansible_collections.baremetal.inference.plugins.module_utils._engine_instances import place


def vllm_placement(
    instances: list[dict[str, t.Any]], observed: dict[str, t.Any], settings: dict[str, t.Any]
) -> dict[str, t.Any]:
    return place(instances, observed, settings)


class FilterModule:
    """The filter by its name."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"vllm_placement": vllm_placement}
