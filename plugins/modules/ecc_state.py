#!/usr/bin/python
# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ecc_state
short_description: Switch ECC of NVIDIA GPUs on or off, and say what is still missing for that
version_added: 0.1.0
description:
  - Sets the ECC mode that GPUs take at their next reboot, on all selected GPUs in one NVML session, and tells it from the
    mode in force. A GPU is changed when the mode of its next reboot is not the wanted one.
  - Nothing is in force before the reboot. Until then each run says RV(reboot_required) and changes nothing.
  - Also returns the error counters and the remapped rows, so that one call answers whether the memory is sound.
author:
  - The baremetal.inference contributors (@baremetal-inference)
extends_documentation_fragment:
  - baremetal.inference._attributes
  - baremetal.inference._attributes.declared_state
  - baremetal.inference._gpus
options:
  state:
    description:
      - V(enabled) is what these GPUs ship with, and what serving needs. Without ECC an error in memory goes unseen into
        weights, caches and answers, and row remapping and page offlining, which act on detected errors, do not act.
      - V(disabled) gains nothing on GPUs with HBM (A100, H100, H200), whose ECC bits have memory of their own.
    type: str
    choices: [enabled, disabled]
    required: true
notes:
  - Setting needs root, reading does not.
  - GPUs may be in use. What runs goes on with the mode in force.
  - For a GPU without ECC V(disabled) is true already, and V(enabled) is an error before anything is changed.
  - On a GPU with MIG enabled the driver decides whether it takes the setting. When it refuses, the error says that MIG
    is enabled. The counters are those of the whole GPU.
  - The mode is kept in the GPU itself and is not lost at reboots. There is nothing to repeat at boot.
  - A GPU reset need not bring the pending mode into force (nvidia-smi manual, known issues). Reboot.
  - When C(gpus=all) and one GPU does not answer, it fails before anything is changed, and names the GPU.
"""

EXAMPLES = r"""
- name: Keep ECC on
  baremetal.inference.ecc_state:
    state: enabled
  become: true
  register: ecc

- name: Reboot when the mode in force is another
  ansible.builtin.reboot:
  when: ecc.reboot_required
  become: true

- name: See what would change, and change nothing
  baremetal.inference.ecc_state:
    state: enabled
  check_mode: true
  diff: true
  register: ecc

- name: Fail when memory is going bad
  ansible.builtin.assert:
    that:
      - ecc.gpus | selectattr('volatile.uncorrected', 'gt', 0) | length == 0
      - ecc.gpus | selectattr('remapped_rows.failure') | length == 0

- name: Switch it off on one GPU
  baremetal.inference.ecc_state:
    gpus: ["0000:47:00.0"]
    state: disabled
  become: true
"""

RETURN = r"""
reboot_required:
  description:
    - Whether a selected GPU runs in another mode than the one that is set. In check mode, whether it would.
  returned: success
  type: bool
  sample: true
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
    name:
      description: Product name.
      type: str
      sample: NVIDIA A100-SXM4-80GB
    supported:
      description: Whether the GPU has ECC. If not, all modes and counters are V(null).
      type: bool
      sample: true
    current:
      description: Mode in force, V(enabled) or V(disabled).
      type: str
      sample: enabled
    pending:
      description: Mode of the next reboot. In check mode, what it would be.
      type: str
      sample: enabled
    default:
      description: Mode that the GPU shipped with.
      type: str
      sample: enabled
    wanted:
      description: What was asked for.
      type: str
      sample: enabled
    changed:
      description: Whether this run set the mode of the next reboot. In check mode, whether it would.
      type: bool
      sample: false
    reboot_required:
      description: Whether RV(gpus[].current) differs from RV(gpus[].pending).
      type: bool
      sample: false
    mig_mode:
      description: Whether the GPU is split into MIG instances. V(null) where the GPU cannot be.
      type: str
      sample: disabled
    volatile:
      description: Errors since the driver was loaded.
      type: dict
      contains: &counters
        corrected:
          description: Errors that ECC has put right.
          type: int
          sample: 0
        uncorrected:
          description: Errors that it could not put right.
          type: int
          sample: 0
    aggregate:
      description: Errors in the GPU's life.
      type: dict
      contains: *counters
    remapped_rows:
      description: Rows of memory that spare ones stand in for. V(null) where the GPU cannot do this.
      type: dict
      contains:
        correctable:
          description: Rows replaced because of corrected errors.
          type: int
          sample: 0
        uncorrectable:
          description: Rows replaced because of uncorrected errors.
          type: int
          sample: 0
        pending:
          description: Whether a row is to be replaced at the next reset of the GPU.
          type: bool
          sample: false
        failure:
          description: Whether a row could not be replaced. The GPU should then be.
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
    - Why it failed - V(ecc_not_supported), V(not_taken) (NVML accepted the mode, and a new reading does not show it),
      V(no_gpus), or one of the reasons of M(baremetal.inference.gpu_info).
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
  sample: nvmlDeviceSetEccMode
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
from dataclasses import dataclass, replace

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.baremetal.inference.plugins.module_utils._ecc import ecc_change_needed, ecc_reboot_required
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_changes import (
    GpuPlan,
    converge,
    diff_of,
    raise_failures,
)
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_errors import GpuFailure
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_model import EccState, RemappedRows, as_dict
from ansible_collections.baremetal.inference.plugins.module_utils._module import gpu_argument_spec, run_gpu_module
from ansible_collections.baremetal.inference.plugins.module_utils._nvml import Device, NvmlFailure


@dataclass(frozen=True)
class Observed:
    name: str | None
    ecc: EccState
    mig_mode: str | None
    remapped_rows: RemappedRows | None


def observe(device: Device) -> Observed:
    mig = device.mig_mode()
    return Observed(
        name=device.text("nvmlDeviceGetName"),
        ecc=device.ecc(),
        mig_mode=mig.current if mig else None,
        remapped_rows=device.remapped_rows(),
    )


def set_mode(device: Device, wanted: str, observed: Observed) -> None:
    try:
        device.set_ecc_mode(wanted == "enabled")
    except NvmlFailure as failure:
        if observed.mig_mode == "enabled" and failure.reason == "unknown":
            failure.msg += (
                " MIG is enabled on this GPU: if the driver refuses because of that, stop what runs on its instances,"
                " disable MIG and try again."
            )
        raise


def result_of(plan: GpuPlan[Observed]) -> dict[str, t.Any]:
    ecc, rows = plan.after.ecc, plan.after.remapped_rows
    return {
        **vars(plan.device.identity),
        "name": plan.after.name,
        "supported": ecc.supported,
        "current": ecc.current,
        "pending": ecc.pending,
        "default": ecc.default,
        "wanted": plan.wanted,
        "changed": plan.changed,
        "reboot_required": ecc_reboot_required(ecc),
        "mig_mode": plan.after.mig_mode,
        "volatile": vars(ecc.volatile),
        "aggregate": vars(ecc.aggregate),
        "remapped_rows": None if rows is None else as_dict(rows),
    }


def verify(plan: GpuPlan[Observed]) -> None:
    """A mode that was set and does not show is a failure of its own: the driver said yes and did no."""
    if plan.after.ecc.pending != plan.wanted:
        plan.failure = GpuFailure(
            f"{plan.device.identity.label()}: NVML accepted ECC {plan.wanted}, and the mode of the next reboot still"
            f" reads {plan.after.ecc.pending}. Look at the kernel log of that time for NVRM and Xid lines.",
            reason="not_taken",
        )


def run(params: t.Mapping[str, t.Any], *, check_mode: bool, warn: t.Callable[[str], None]) -> dict[str, t.Any]:
    wanted: str = params["state"]

    def decide(device: Device, observed: Observed) -> tuple[str, t.Callable[[], None] | None]:
        needed = ecc_change_needed(device.identity, observed.ecc, wanted)
        return wanted, (lambda: set_mode(device, wanted, observed)) if needed else None

    plans = converge(
        params,
        observe=observe,
        decide=decide,
        foresee=lambda observed, mode: replace(observed, ecc=replace(observed.ecc, pending=mode)),
        verify=verify,
        check_mode=check_mode,
        warn=warn,
    )
    results = [result_of(plan) for plan in plans]
    raise_failures(plans, results)
    return {
        "changed": any(plan.changed for plan in plans),
        "reboot_required": any(result["reboot_required"] for result in results),
        "gpus": results,
        "diff": diff_of("ECC mode of the next reboot", plans, lambda observed: observed.ecc.pending),
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec=gpu_argument_spec(state={"type": "str", "choices": ["enabled", "disabled"], "required": True}),
        supports_check_mode=True,
    )
    run_gpu_module(module, run)


if __name__ == "__main__":
    main()
