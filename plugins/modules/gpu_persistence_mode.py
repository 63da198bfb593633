#!/usr/bin/python
# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_persistence_mode
short_description: Keep the NVIDIA driver loaded on GPUs that nothing uses, or let it go
version_added: 0.1.0
description:
  - Sets persistence mode of all selected GPUs in one NVML session.
  - While it is off, the driver leaves a GPU as soon as nothing uses it. The next program then waits for the GPU to be
    initialised, and settings such as the power limit are lost.
author:
  - The baremetal.inference contributors (@baremetal-inference)
extends_documentation_fragment:
  - baremetal.inference._attributes
  - baremetal.inference._attributes.declared_state
  - baremetal.inference._gpus
options:
  state:
    description:
      - What persistence mode is to be.
    type: str
    choices: [enabled, disabled]
    default: enabled
notes:
  - Setting needs root, reading does not.
  - It is lost when the driver is unloaded and at reboots. NVIDIA's means to keep it is the daemon C(nvidia-persistenced),
    which sets it while it runs; where that is a service of the host, start that instead of using this module. The role
    P(baremetal.inference.gpu_state#role) does.
  - When C(gpus=all) and one GPU does not answer, it fails before anything is changed, and names the GPU.
"""

EXAMPLES = r"""
- name: Keep the driver on all GPUs
  baremetal.inference.gpu_persistence_mode:
  become: true

- name: Let go of one, before it is reset
  baremetal.inference.gpu_persistence_mode:
    gpus: ["0000:47:00.0"]
    state: disabled
  become: true
"""

RETURN = r"""
gpus:
  description: The selected GPUs, ordered by PCI bus id. After a failure that left changes behind, their state then.
  returned: success
  type: list
  elements: dict
  contains:
    index:
      description: NVML's index.
      type: int
      sample: 0
    uuid:
      description: UUID.
      type: str
      sample: GPU-5f1d8a7e-3f0b-4a53-9c55-2f9f9b7a1c11
    pci_bus_id:
      description: PCI bus id as sysfs spells it.
      type: str
      sample: "0000:07:00.0"
    persistence_mode:
      description: V(enabled) or V(disabled). In check mode, what it would be.
      type: str
      sample: enabled
    changed:
      description: Whether this run set it. In check mode, whether it would.
      type: bool
      sample: false
changed_gpus:
  description: PCI bus ids of the GPUs that were changed before a failure.
  returned: failure to change or read some GPU
  type: list
  elements: str
  sample: ["0000:07:00.0"]
failed_gpus:
  description: PCI bus ids of the GPUs that could not be changed.
  returned: failure to change or read some GPU
  type: list
  elements: str
  sample: ["0000:0f:00.0"]
reason:
  description:
    - Why it failed - V(persistence_mode_not_supported), V(not_taken) (NVML accepted the mode, and a new reading does not
      show it), V(no_gpus), or one of the reasons of M(baremetal.inference.gpu_info).
  returned: failure
  type: str
  sample: no_permission
gpu:
  description: The GPU that the failure is about - index, UUID and PCI bus id.
  returned: failure about one GPU
  type: dict
nvml_code:
  description: NVML's error code.
  returned: failure of NVML
  type: int
  sample: 4
nvml_call:
  description: The NVML function that failed.
  returned: failure of NVML
  type: str
  sample: nvmlDeviceSetPersistenceMode
selector:
  description: The element of O(gpus) that is wrong.
  returned: failure about O(gpus)
  type: str
  sample: "9"
pci_gpu_count:
  description: How many NVIDIA GPUs are on the PCI bus.
  returned: failure
  type: int
  sample: 8
pci_gpus:
  description: NVIDIA GPUs on the PCI bus, as M(baremetal.inference.gpu_info) returns them.
  returned: failure
  type: list
  elements: dict
kernel_module_version:
  description: Version of the loaded C(nvidia) kernel module; V(null) when none is loaded.
  returned: failure
  type: str
  sample: 580.159.04
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_changes import (
    GpuPlan,
    converge,
    diff_of,
    raise_failures,
)
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_errors import GpuFailure
from ansible_collections.baremetal.inference.plugins.module_utils._module import gpu_argument_spec, run_gpu_module
from ansible_collections.baremetal.inference.plugins.module_utils._nvml import Device


def observe(device: Device) -> str:
    mode = device.persistence_mode()
    if mode is None:
        raise GpuFailure(
            f"{device.identity.label()} has no persistence mode. Leave it out of gpus. Nothing was changed.",
            reason="persistence_mode_not_supported",
            gpu=vars(device.identity),
        )
    return mode


def verify(plan: GpuPlan[str]) -> None:
    """A mode that was set and does not show is a failure of its own."""
    if plan.after != plan.wanted:
        plan.failure = GpuFailure(
            f"{plan.device.identity.label()}: NVML accepted persistence mode {plan.wanted}, and it still reads"
            f" {plan.after}. Look whether nvidia-persistenced sets it back (journalctl -u nvidia-persistenced), and in"
            " the kernel log.",
            reason="not_taken",
        )


def run(params: t.Mapping[str, t.Any], *, check_mode: bool, warn: t.Callable[[str], None]) -> dict[str, t.Any]:
    wanted: str = params["state"]

    def decide(device: Device, mode: str) -> tuple[str, t.Callable[[], None] | None]:
        return wanted, None if mode == wanted else (lambda: device.set_persistence_mode(wanted == "enabled"))

    plans = converge(
        params,
        observe=observe,
        decide=decide,
        foresee=lambda before, after: str(after),
        verify=verify,
        check_mode=check_mode,
        warn=warn,
    )
    results = [
        {**vars(plan.device.identity), "persistence_mode": plan.after, "changed": plan.changed} for plan in plans
    ]
    raise_failures(plans, results)
    return {
        "changed": any(plan.changed for plan in plans),
        "gpus": results,
        "diff": diff_of("persistence mode", plans, lambda mode: mode),
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec=gpu_argument_spec(
            state={"type": "str", "choices": ["enabled", "disabled"], "default": "enabled"}
        ),
        supports_check_mode=True,
    )
    run_gpu_module(module, run)


if __name__ == "__main__":
    main()
