#!/usr/bin/python
# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_power_limit
short_description: Set the power limit of NVIDIA GPUs, within what each card allows
version_added: 0.1.0
description:
  - Sets the power limit of all selected GPUs in one NVML session. Default, smallest and largest limit are read from each
    card; a limit outside of them is an error before anything is changed, on any GPU.
  - The limit is read back after setting. The limit that is enforced can be lower than the one asked for, since the
    lowest of all limits wins and the BMC can set one too. Both are returned, and a difference is a warning.
author:
  - The baremetal.inference contributors (@baremetal-inference)
extends_documentation_fragment:
  - baremetal.inference._attributes
  - baremetal.inference._attributes.declared_state
  - baremetal.inference._gpus
options:
  watts:
    description:
      - The limit in watts.
      - Exactly one of O(watts), O(percent) and O(limit) must be given.
    type: int
  percent:
    description:
      - The limit as percentage of the card's default, rounded to whole watts. It suits hosts with different cards.
    type: float
  limit:
    description:
      - V(default) is the limit that the card has after a boot, V(max) the largest that it allows.
    type: str
    choices: [default, max]
notes:
  - Setting needs root, reading does not.
  - The limit is lost at a reboot, and when the driver unloads the GPU, which it does as soon as nothing uses it while
    persistence mode is off. See M(baremetal.inference.gpu_persistence_mode), and the role
    P(baremetal.inference.gpu_state#role), which brings the limit back at boot.
  - GPUs may be in use. What runs goes on under the new limit.
  - When C(gpus=all) and one GPU does not answer, it fails before anything is changed, and names the GPU.
"""

EXAMPLES = r"""
- name: Let each GPU draw four fifths of its default
  baremetal.inference.gpu_power_limit:
    percent: 80
  become: true

- name: Back to what the cards ship with
  baremetal.inference.gpu_power_limit:
    limit: default
  become: true

- name: See which GPUs would get another limit
  baremetal.inference.gpu_power_limit:
    watts: 300
    gpus: [0, 1]
  check_mode: true
  diff: true
  register: power

- name: Require that nothing else holds the GPUs down
  ansible.builtin.assert:
    that: not power.gpus | selectattr('enforced_below_requested')
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
    name:
      description: Product name.
      type: str
      sample: NVIDIA A100-SXM4-80GB
    wanted_watts:
      description: What was asked for, on this GPU.
      type: float
      sample: 320.0
    limit_requested_watts:
      description: The limit that the driver was told. In check mode, what it would be.
      type: float
      sample: 320.0
    limit_enforced_watts:
      description: The limit that the GPU keeps, the lowest of all. In check mode V(null) for a GPU that would be changed,
        since only setting shows it.
      type: float
      sample: 320.0
    limit_default_watts:
      description: The card's default.
      type: float
      sample: 400.0
    limit_min_watts:
      description: Smallest limit that the card allows.
      type: float
      sample: 100.0
    limit_max_watts:
      description: Largest limit that the card allows.
      type: float
      sample: 400.0
    usage_watts:
      description: What the GPU draws.
      type: float
      sample: 52.0
    enforced_below_requested:
      description: Whether something else holds the GPU below the limit asked for.
      type: bool
      sample: false
    persistence_mode:
      description: V(enabled) or V(disabled). While it is disabled, the limit is lost as soon as nothing uses the GPU.
      type: str
      sample: enabled
    changed:
      description: Whether this run set the limit. In check mode, whether it would.
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
limit_min_watts:
  description: Smallest limit that the card allows.
  returned: failure because the limit is out of range
  type: float
  sample: 100.0
limit_max_watts:
  description: Largest limit that the card allows.
  returned: failure because the limit is out of range
  type: float
  sample: 400.0
limit_default_watts:
  description: The card's default.
  returned: failure because the limit is out of range
  type: float
  sample: 400.0
reason:
  description:
    - Why it failed - V(power_limit_out_of_range), V(power_limit_not_supported), V(invalid_power_limit), V(not_taken)
      (NVML accepted the limit, and a new reading does not show it), V(no_gpus), or one of the reasons of
      M(baremetal.inference.gpu_info).
  returned: failure
  type: str
  sample: power_limit_out_of_range
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
  sample: nvmlDeviceSetPowerManagementLimit
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

import math
import typing as t
from dataclasses import dataclass, replace

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_changes import (
    GpuPlan,
    converge,
    diff_of,
    raise_failures,
)
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_errors import GpuFailure
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_model import PowerState
from ansible_collections.baremetal.inference.plugins.module_utils._module import gpu_argument_spec, run_gpu_module
from ansible_collections.baremetal.inference.plugins.module_utils._nvml import Device
from ansible_collections.baremetal.inference.plugins.module_utils._power import (
    WantedLimit,
    enforced_below_requested,
    same_limit,
    wanted_watts,
)


@dataclass(frozen=True)
class Observed:
    name: str | None
    power: PowerState
    persistence_mode: str | None


def observe(device: Device) -> Observed:
    return Observed(
        name=device.text("nvmlDeviceGetName"), power=device.power(), persistence_mode=device.persistence_mode()
    )


def wanted_limit(params: t.Mapping[str, t.Any]) -> WantedLimit:
    """Raises GpuFailure for numbers that no card could mean."""
    watts, percent = params["watts"], params["percent"]
    for option, value in (("watts", watts), ("percent", percent)):
        # Infinity and "not a number" are floats too.
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise GpuFailure(
                f"{option}: {value} is no power limit: expected a number above 0. Nothing was changed.",
                reason="invalid_power_limit",
            )
    return WantedLimit(watts=watts, percent=percent, named=params["limit"])


def verify(plan: GpuPlan[Observed]) -> None:
    """A limit that was set and does not show is a failure of its own."""
    requested = plan.after.power.limit_requested_watts
    if not same_limit(requested, plan.wanted):
        plan.failure = GpuFailure(
            f"{plan.device.identity.label()}: NVML accepted a power limit of {plan.wanted:g} W, and it still reads"
            f" {requested} W. Look whether something else sets limits on this host (dcgm, nvidia-smi in a boot script),"
            " and in the kernel log of that time for NVRM and Xid lines.",
            reason="not_taken",
        )


def warn_of(plans: t.Sequence[GpuPlan[Observed]], warn: t.Callable[[str], None]) -> None:
    """Tell what setting alone does not do: limits that something else holds lower, and limits that will not last."""
    for plan in plans:
        power = plan.after.power
        if enforced_below_requested(power):
            warn(
                f"{plan.device.identity.label()}: {power.limit_requested_watts:g} W are asked for and"
                f" {power.limit_enforced_watts:g} W are enforced: something outside of the driver holds it lower, as a"
                " power cap of the BMC or of the chassis."
            )
    fleeting = [
        plan.device.identity.label()
        for plan in plans
        if plan.after.persistence_mode == "disabled"
        and not same_limit(plan.wanted, plan.after.power.limit_default_watts)
    ]
    if fleeting:
        warn(
            f"Persistence mode is off, so the power limit is lost as soon as nothing uses the GPU: {', '.join(fleeting)}."
            " Run nvidia-persistenced, or use baremetal.inference.gpu_persistence_mode."
        )


def result_of(plan: GpuPlan[Observed]) -> dict[str, t.Any]:
    return {
        **vars(plan.device.identity),
        "name": plan.after.name,
        "wanted_watts": plan.wanted,
        **vars(plan.after.power),
        "enforced_below_requested": enforced_below_requested(plan.after.power),
        "persistence_mode": plan.after.persistence_mode,
        "changed": plan.changed,
    }


def foresee(observed: Observed, limit: float) -> Observed:
    """What the driver would be told. What would be enforced then, only setting shows: so no difference is claimed."""
    return replace(observed, power=replace(observed.power, limit_requested_watts=limit, limit_enforced_watts=None))


def run(params: t.Mapping[str, t.Any], *, check_mode: bool, warn: t.Callable[[str], None]) -> dict[str, t.Any]:
    wanted = wanted_limit(params)

    def decide(device: Device, observed: Observed) -> tuple[float, t.Callable[[], None] | None]:
        limit = wanted_watts(device.identity, observed.power, wanted)
        if same_limit(observed.power.limit_requested_watts, limit):
            return limit, None
        return limit, lambda: device.set_power_limit(round(limit * 1000))

    plans = converge(
        params,
        observe=observe,
        decide=decide,
        foresee=foresee,
        verify=verify,
        check_mode=check_mode,
        warn=warn,
    )
    warn_of(plans, warn)
    results = [result_of(plan) for plan in plans]
    raise_failures(plans, results)
    return {
        "changed": any(plan.changed for plan in plans),
        "gpus": results,
        "diff": diff_of("power limit in watts", plans, lambda observed: observed.power.limit_requested_watts),
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec=gpu_argument_spec(
            watts={"type": "int"},
            percent={"type": "float"},
            limit={"type": "str", "choices": ["default", "max"]},
        ),
        mutually_exclusive=[("watts", "percent", "limit")],
        required_one_of=[("watts", "percent", "limit")],
        supports_check_mode=True,
    )
    run_gpu_module(module, run)


if __name__ == "__main__":
    main()
