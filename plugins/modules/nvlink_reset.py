#!/usr/bin/python
# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvlink_reset
short_description: Judge the NVLinks of a host, and clear error counters, reset GPUs or restart Fabric Manager
version_added: 0.1.0
description:
  - Looks at every NVLink of every GPU (state, version, speed, error counters, far end) and at peer-to-peer access of
    each pair, and judges them against what this kind of GPU and this board should have. PCIe cards are joined in pairs
    by bridges, or not at all; behind NVSwitches all links of all GPUs must be up.
  - There is no command that trains a link again. What O(scope) offers is what really exists, and each step is harder on
    the host than the one before - clear the error counters, reset the GPUs, restart Fabric Manager. After that only a
    reboot is left. RV(next_step) names the step that is due.
  - GPUs are reset, and Fabric Manager is restarted, only after it is proven that nothing holds a GPU - no program, no
    persistence daemon, no monitor. Otherwise it fails with RV(holders) and how to stop each. It never stops anything
    itself.
  - Afterwards everything is read again in a new NVML session, until the links are as they should be or O(timeout) is
    over. When they are still not, it fails and names the next step.
author:
  - The baremetal.inference contributors (@baremetal-inference)
extends_documentation_fragment:
  - baremetal.inference._attributes
  - baremetal.inference._gpus
attributes:
  check_mode:
    support: full
    details:
      - Says which counters would be cleared and which GPUs would be reset, after the same checks. How links would be
        after a reset cannot be foreseen, and is shown as before.
  diff_mode:
    support: full
  idempotent:
    support: partial
    details:
      - With O(condition=always) the GPUs are reset, or Fabric Manager is restarted, each time.
options:
  scope:
    description:
      - V(counters) sets the error counters of the selected GPUs to zero, on links where one is not. It does nothing to
        a link, and is never reported as if it did.
      - V(gpu) resets the selected GPUs together with all GPUs that NVLink joins them to, in one command of
        C(nvidia-smi --gpu-reset), since NVML has no such call. Behind NVSwitches that is all GPUs of the board. On
        NVSwitch machines up to Ampere, Fabric Manager must be running.
      - V(fabric) restarts Fabric Manager. Only on machines with NVSwitches on the PCI bus.
    type: str
    choices: [counters, gpu, fabric]
    default: counters
  condition:
    description:
      - When to do what O(scope) says - V(unhealthy) only if something is wrong with the links of the selected GPUs, or
        V(always).
      - Makes no difference for O(scope=counters), which looks at the counters.
    type: str
    choices: [unhealthy, always]
    default: unhealthy
    aliases: [when]
  expectations:
    description:
      - What GPUs and boards should be like, as for O(baremetal.inference.gpu_info#module:expectations).
      - With C(nvlink_bridged) set to V(true) for a kind of PCIe card, cards without a bridge are unhealthy.
    type: dict
  timeout:
    description:
      - How many seconds each program may take, and how long to wait afterwards for the links.
    type: int
    default: 60
  nvidia_smi:
    description:
      - The driver's C(nvidia-smi) on the host. Left out, it is found in E(PATH).
    type: path
  fabric_manager_unit:
    description:
      - Fabric Manager's systemd unit.
    type: str
    default: nvidia-fabricmanager.service
  proc_root:
    description:
      - Where procfs is mounted on the host.
    type: path
    default: /proc
notes:
  - Everything but reading needs root. Only root sees who holds a GPU.
  - NVIDIA does not promise that a GPU reset works, and does not recommend it in production (nvidia-smi manual). Keep
    work off the GPUs until a run has said that they are healthy.
  - A GPU reset brings settings of the driver back to their defaults, such as the power limit. Apply them again
    afterwards.
  - Error counters that are not zero are a warning in RV(findings), never a link that is down. Clear them and see
    whether they rise under load.
  - With MIG enabled a GPU has no peer-to-peer access and its links say nothing, which is no fault (NVIDIA MIG User
    Guide).
  - Nothing is expected of a kind of GPU that is not known, and it is never unhealthy. Say what it should be like with
    O(expectations).
seealso:
  - module: baremetal.inference.gpu_info
  - module: baremetal.inference.gpu_persistence_mode
"""

EXAMPLES = r"""
- name: Judge the links, and change nothing
  baremetal.inference.nvlink_reset:
  check_mode: true
  register: links

- name: Print what is wrong
  ansible.builtin.debug:
    msg: "{{ links.findings | rejectattr('verdict', 'equalto', 'healthy') }}"

- name: Clear error counters, to see whether they rise again
  baremetal.inference.nvlink_reset:
    scope: counters
  become: true

- name: Reset the GPUs if a link is down, after their users were stopped
  become: true
  block:
    - name: Stop what holds the GPUs
      ansible.builtin.systemd_service:
        name: "{{ item }}"
        state: stopped
      loop: [vllm@main.service, nvidia-dcgm.service, nvidia-persistenced.service]

    - name: Reset the GPUs of the NVLink domain if a link is down
      baremetal.inference.nvlink_reset:
        scope: gpu
        condition: unhealthy
  always:
    - name: Start it again
      ansible.builtin.systemd_service:
        name: "{{ item }}"
        state: started
      loop: [nvidia-persistenced.service, nvidia-dcgm.service, vllm@main.service]

- name: Restart Fabric Manager if the links are up and lead nowhere
  baremetal.inference.nvlink_reset:
    scope: fabric
  become: true

- name: Require bridges on PCIe cards
  baremetal.inference.nvlink_reset:
    expectations:
      skus:
        a100-pcie-80gb:
          nvlink_bridged: true
  check_mode: true
  register: links
  failed_when: not links.healthy
"""

RETURN = r"""
healthy:
  description: Whether nothing is wrong with the links of the selected GPUs. Afterwards; in check mode, now.
  returned: success
  type: bool
  sample: true
verdict:
  description: The worst of RV(findings).
  returned: success
  type: str
  sample: healthy
system:
  description: Board that carries the GPUs, as RV(baremetal.inference.gpu_info#module:system).
  returned: success
  type: str
  sample: hgx-a100-8gpu
reset_gpus:
  description:
    - PCI bus ids of the GPUs that were reset together; in check mode, that would be. After a failure, those that were
      reset before it.
  returned: success, and when a reset failed
  type: list
  elements: str
  sample: ["0000:07:00.0", "0000:0f:00.0"]
fabric_manager_restarted:
  description: Whether Fabric Manager was restarted; in check mode, whether it would be.
  returned: success
  type: bool
  sample: false
cleared_links:
  description: Links whose error counters were cleared, with the counters before; in check mode, that would be.
  returned: success
  type: list
  elements: dict
  contains:
    pci_bus_id:
      description: PCI bus id of the GPU.
      type: str
      sample: "0000:07:00.0"
    link:
      description: Number of the link.
      type: int
      sample: 3
    replay:
      description: Packets that had to be sent again.
      type: int
      sample: 7
    recovery:
      description: Times that the link had to be trained again.
      type: int
      sample: 0
    crc:
      description: Checksum errors.
      type: int
      sample: 2
findings:
  description: All judgements about the host and the selected GPUs afterwards, good ones too; in check mode, now.
  returned: success, and when links stay unhealthy
  type: list
  elements: dict
  contains: &finding
    check:
      description:
        - V(gpus) and V(switches) (all on the bus), V(fabric_manager), V(gpu) (answers), V(recovery) (what the driver
          asks for), V(links), V(speed), V(counters) or V(pair) (links and peer-to-peer access of two GPUs).
      type: str
      sample: links
    subject:
      description: V(host), the GPU's PCI bus id, or both ids of a pair.
      type: str
      sample: "0000:07:00.0"
    gpu:
      description: NVML's index of the GPU.
      type: int
      sample: 0
    verdict:
      description: V(healthy), V(warning) (error counters), V(unknown) or V(unhealthy).
      type: str
      sample: unhealthy
    observed:
      description: What is.
      type: str
      sample: 11 of 12 links up; link 3 inactive
    expected:
      description: What should be.
      type: str
      sample: 12 links up (NVIDIA A100 SXM4 80GB)
    fix:
      description: What to do. Empty when healthy.
      type: str
      sample: "Reset the GPUs of this NVLink domain: ..."
findings_before:
  description: The same before anything was done.
  returned: success, and when links stay unhealthy
  type: list
  elements: dict
  contains: *finding
next_step:
  description: The step that is due after this run.
  returned: success, and when links stay unhealthy
  type: dict
  contains:
    scope:
      description: V(none), V(counters), V(gpu), V(fabric), V(reboot) or V(hardware).
      type: str
      sample: none
    what:
      description: What to do.
      type: str
      sample: Nothing needs to be done.
gpus:
  description: The selected GPUs and those that were reset with them, ordered by PCI bus id.
  returned: success, and when links stay unhealthy
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
      description: PCI bus id as in sysfs.
      type: str
      sample: "0000:07:00.0"
    name:
      description: Product name.
      type: str
      sample: NVIDIA A100-SXM4-80GB
    recovery_action:
      description: What the driver said must be done to recover the GPU.
      type: str
      sample: none
    sku:
      description: Kind of GPU. V(null) when it is not known.
      type: str
      sample: a100-sxm4-80gb
    expected_links:
      description: Links that should be up when all are wired.
      type: int
      sample: 12
    mig_enabled:
      description: Whether MIG is enabled, with which links say nothing.
      type: bool
      sample: false
    domain:
      description: PCI bus ids of the GPUs that NVLink joins, this one included. They are reset together.
      type: list
      elements: str
      sample: ["0000:07:00.0", "0000:0f:00.0"]
    active_before:
      description: Links that were up.
      type: int
      sample: 11
    active_after:
      description: Links that are up. V(null) when the GPU does not answer any more.
      type: int
      sample: 12
    links_before:
      description: Each link, as RV(baremetal.inference.gpu_info#module:gpus[].nvlink.links).
      type: list
      elements: dict
    links_after:
      description: The same afterwards. In check mode only error counters differ.
      type: list
      elements: dict
pairs:
  description: Each pair with a selected GPU in it.
  returned: success, and when links stay unhealthy
  type: list
  elements: dict
  contains:
    a:
      description: PCI bus id of the one.
      type: str
      sample: "0000:07:00.0"
    b:
      description: PCI bus id of the other.
      type: str
      sample: "0000:0f:00.0"
    nvlink_count_before:
      description: Active NVLinks between the two.
      type: int
      sample: 11
    nvlink_count_after:
      description: The same afterwards.
      type: int
      sample: 12
    p2p_before:
      description: Peer-to-peer access, as RV(baremetal.inference.gpu_info#module:topology[].p2p).
      type: dict
      sample: {read: ok, write: ok, nvlink: ok}
    p2p_after:
      description: The same afterwards.
      type: dict
      sample: {read: ok, write: ok, nvlink: ok}
fabric_manager:
  description: Fabric Manager afterwards. V(null) without NVSwitches on the bus.
  returned: success
  type: dict
  contains:
    state:
      description: State of its unit.
      type: str
      sample: active
    version:
      description: Its version.
      type: str
      sample: 580.159.04
holders:
  description: Processes that hold what should be reset.
  returned: failure because GPUs are in use
  type: list
  elements: dict
  contains:
    pid:
      description: Process id.
      type: int
      sample: 4242
    program:
      description: The program's file. Never its arguments, which can hold secrets.
      type: str
      sample: /opt/vllm/current/bin/python3.12
    name:
      description: The name that the process gives itself.
      type: str
      sample: VLLM::Worker
    unit:
      description: systemd unit that it belongs to.
      type: str
      sample: vllm@main.service
    kind:
      description: V(program), V(persistence_daemon), V(exporter) (monitors), V(display) or V(fabric_manager).
      type: str
      sample: program
    nodes:
      description: Device nodes that it holds. Empty when only NVML names it.
      type: list
      elements: str
      sample: [/dev/nvidia0, /dev/nvidiactl]
    stop:
      description: How to stop it.
      type: str
      sample: systemctl stop vllm@main.service
persistence_mode:
  description: PCI bus ids of GPUs that persistence mode keeps attached to the driver.
  returned: failure because GPUs are in use
  type: list
  elements: str
  sample: []
command:
  description: The program that failed, and its arguments.
  returned: failure of a program
  type: list
  elements: str
  sample: [/usr/bin/nvidia-smi, --gpu-reset, -i, "00000000:07:00.0"]
return_code:
  description: Its exit status.
  returned: failure of a program
  type: int
  sample: 255
output:
  description: What it printed.
  returned: failure of a program
  type: str
  sample: "The following GPUs could not be reset: ..."
reason:
  description:
    - Why it failed - V(in_use), V(still_unhealthy), V(scope_too_gentle) (what is wrong needs a harder step),
      V(fabric_manager_not_running), V(no_nvswitch), V(fabric_manager_missing), V(reset_refused), V(restart_failed),
      V(timeout), V(invalid_timeout), V(command_failed), V(nvidia_smi_missing), V(systemctl_missing), V(holders_unseen),
      V(invalid_proc_root), V(no_gpus), or one of those of M(baremetal.inference.gpu_info).
  returned: failure
  type: str
  sample: in_use
nvml_code:
  description: NVML's error code.
  returned: failure of NVML
  type: int
  sample: 4
nvml_call:
  description: The NVML function that failed.
  returned: failure of NVML
  type: str
  sample: nvmlDeviceResetNvLinkErrorCounters
gpu:
  description: The GPU that the failure is about.
  returned: failure about one GPU
  type: dict
failed_gpus:
  description: PCI bus ids of the GPUs whose counters could not be cleared.
  returned: failure while counters were cleared
  type: list
  elements: str
  sample: ["0000:47:00.0"]
changed_gpus:
  description: PCI bus ids of the GPUs whose counters were cleared before the failure.
  returned: failure while counters were cleared
  type: list
  elements: str
  sample: ["0000:07:00.0"]
path:
  description: Where O(expectations) is wrong.
  returned: failure about O(expectations)
  type: str
  sample: expectations.skus.a100-pcie-80gb.nvlink_bridged
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
from dataclasses import asdict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_changes import (
    GpuPlan,
    carry_out,
    diff,
    raise_failures,
    selected_gpus,
)
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_errors import GpuFailure
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_select import ALL
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_skus import Catalog, override, system_of
from ansible_collections.baremetal.inference.plugins.module_utils._module import gpu_argument_spec, run_gpu_module
from ansible_collections.baremetal.inference.plugins.module_utils._nvlink import (
    COUNTERS,
    LADDER,
    SCOPE_COUNTERS,
    SCOPE_FABRIC,
    SCOPE_GPU,
    SCOPE_NONE,
    UNHEALTHY,
    Finding,
    Gpu,
    concerning,
    domains,
    error_counts,
    name_of,
    next_rung,
    worst,
)
from ansible_collections.baremetal.inference.plugins.module_utils._nvlink_reset import (
    Reading,
    Tools,
    chosen_gpus,
    gpu_result,
    pair_results,
    read,
    read_until_healthy,
    require_fabric_manager,
    require_unused,
    reset_command,
    reset_gpus,
    restart_fabric_manager,
    state_text,
    without_errors,
)
from ansible_collections.baremetal.inference.plugins.module_utils._nvml import Device


class Work:
    """One run: the options, what was read first, and who is meant."""

    def __init__(self, params: t.Mapping[str, t.Any], *, check_mode: bool, warn: t.Callable[[str], None]) -> None:
        self.params = params
        self.check_mode = check_mode
        self.warn = warn
        if params["timeout"] < 1:
            raise GpuFailure(
                f"timeout: {params['timeout']} is no number of seconds to wait. Give 1 or more.",
                reason="invalid_timeout",
            )
        self.catalog: Catalog = override(params["expectations"])
        self.tools = Tools(params)
        self.before: Reading = read(params, self.catalog, self.tools, warn)
        self.chosen = chosen_gpus(params, self.before.facts)
        self.names = {name_of(gpu) for gpu in self.chosen}
        # Whom findings are about: with "all", also GPUs that do not answer.
        self.meant = set(self.names)
        if any(str(selector).strip().lower() == ALL for selector in params["gpus"]):
            self.meant.update(name_of(gpu) for gpu in self.before.facts["unavailable_gpus"])
        self.domains = domains(self.before.facts, self.catalog)

    def domain_of(self, gpu: Gpu) -> tuple[str, ...]:
        return next(members for members in self.domains if name_of(gpu) in members)

    def read_again(self, warn: t.Callable[[str], None]) -> Reading:
        return read(self.params, self.catalog, self.tools, warn)

    def result(self, after: Reading, done: str = SCOPE_NONE, **own: t.Any) -> dict[str, t.Any]:
        """All that success and failure have in common. ``done`` is the step that was taken."""
        reset = set(own.get("reset_gpus", ()))
        shown = [gpu for gpu in self.before.facts["gpus"] if name_of(gpu) in self.names | reset]
        later = {name_of(gpu): gpu for gpu in after.facts["gpus"]}
        findings = concerning(after.findings, self.meant)
        step, what = next_rung(findings, done, switches=after.switches)
        system = system_of(self.before.facts, self.catalog)
        return {
            "changed": False,
            "healthy": not after.unhealthy(self.meant),
            "verdict": worst(findings),
            "system": system.id if system else None,
            "reset_gpus": [],
            "fabric_manager_restarted": False,
            "cleared_links": [],
            "findings": [_finding(finding) for finding in findings],
            "findings_before": [_finding(finding) for finding in concerning(self.before.findings, self.meant)],
            "next_step": {"scope": step, "what": what},
            "gpus": [gpu_result(gpu, later.get(name_of(gpu)), self.domain_of(gpu)) for gpu in shown],
            "pairs": pair_results(self.before.facts, after.facts, self.names | reset),
            "fabric_manager": asdict(after.manager) if after.manager else None,
            "diff": diff(
                "NVLink",
                {name_of(gpu): state_text(gpu) for gpu in shown},
                {name_of(gpu): state_text(later.get(name_of(gpu))) for gpu in shown},
            ),
            **own,
        }


def _finding(finding: Finding) -> dict[str, t.Any]:
    return {key: value for key, value in vars(finding).items() if key not in ("gpus", "rung")}


def clear_counters(work: Work) -> dict[str, t.Any]:
    counted = {name_of(gpu): error_counts(gpu) for gpu in work.chosen}
    cleared: list[dict[str, t.Any]] = []

    def clear(device: Device, name: str) -> None:
        for link, counts in counted[name].items():
            if not work.check_mode:
                device.clear_nvlink_errors(link)
            cleared.append({"pci_bus_id": name, "link": link, **{key: counts.get(key, 0) for key in COUNTERS}})

    plans = []
    # In check mode too, for what it refuses: a GPU that does not answer.
    with selected_gpus(work.params, lambda text: None) as devices:
        for device in devices:
            name = name_of(vars(device.identity))
            change = (lambda gpu=device, key=name: clear(gpu, key)) if counted.get(name) else None
            plans.append(GpuPlan(device=device, before=None, change=change))
        carry_out(plans, check_mode=work.check_mode, warn=work.warn)
    if work.check_mode:
        for plan in plans:
            if plan.changed:
                clear(plan.device, name_of(vars(plan.device.identity)))
        gpus = [without_errors(gpu) if name_of(gpu) in work.names else gpu for gpu in work.before.facts["gpus"]]
        after = Reading({**work.before.facts, "gpus": gpus}, work.before.manager, work.before.findings)
        return work.result(after, changed=bool(cleared), cleared_links=cleared)
    after = work.read_again(work.warn) if cleared else work.before
    result = work.result(after, SCOPE_COUNTERS, changed=bool(cleared), cleared_links=cleared)
    for plan in plans:
        # A GPU can fail at its fifth link.
        plan.changed = name_of(vars(plan.device.identity)) in {entry["pci_bus_id"] for entry in cleared}
    try:
        raise_failures(plans, result["gpus"])
    except GpuFailure as failure:
        failure.fields["cleared_links"] = cleared
        raise
    return result


def reset(work: Work, scope: str) -> dict[str, t.Any]:
    """Both harder steps: check everything, do it, read again."""
    fabric = scope == SCOPE_FABRIC
    unit = work.params["fabric_manager_unit"]
    if fabric and not work.before.switches:
        raise GpuFailure(
            "scope: 'fabric' is for machines with NVSwitches, and there is none on this host's PCI bus: Fabric Manager"
            " has nothing to do here. Use scope: gpu.",
            reason="no_nvswitch",
        )
    wrong = work.before.unhealthy(work.meant)
    if not wrong and work.params["condition"] == UNHEALTHY:
        return work.result(work.before)
    command = work.tools.restart_command() if fabric else [work.tools.nvidia_smi()]
    if fabric and work.before.manager and work.before.manager.state == "not-found":
        raise GpuFailure(
            f"fabric_manager_unit: there is no unit '{unit}' on this host. Install Fabric Manager in exactly the"
            f" driver's version ({work.before.facts['driver_version']}).",
            reason="fabric_manager_missing",
        )
    due, what = next_rung(wrong, switches=work.before.switches)
    if work.params["condition"] == UNHEALTHY and LADDER.index(due) > LADDER.index(scope):
        texts = "; ".join(f"{finding.subject}: {finding.observed}" for finding in wrong)
        raise GpuFailure(
            f"scope: '{scope}' does not cure what is wrong, and nothing was changed ({texts}). {what} With"
            " condition: always it is done all the same.",
            **{**work.result(work.before), "reason": "scope_too_gentle", "next_step": {"scope": due, "what": what}},
        )
    # A finding about the host is about all that are selected.
    concerned = work.names & {name for finding in wrong for name in finding.gpus or work.names}
    if fabric or work.params["condition"] != UNHEALTHY:
        concerned = work.names
    members = {name for gpu in work.chosen if name_of(gpu) in concerned for name in work.domain_of(gpu)}
    targets = [gpu for gpu in work.before.facts["gpus"] if fabric or name_of(gpu) in members]
    require_unused(work.params, targets, whole_host=fabric, check_mode=work.check_mode, warn=work.warn)
    own: dict[str, t.Any] = {"changed": True}
    if fabric:
        own["fabric_manager_restarted"] = True
    else:
        require_fabric_manager(work.before, targets, unit)
        command = reset_command(command[0], targets)
        own["reset_gpus"] = [name_of(gpu) for gpu in targets]
    if work.check_mode:
        return work.result(work.before, **own)
    if fabric:
        restart_fabric_manager(work.tools, command)
    else:
        reset_gpus(work.tools, command, targets)
    watched = work.names | set(own.get("reset_gpus", ()))
    after = read_until_healthy(work.read_again, watched, work.params["timeout"], work.warn)
    result = work.result(after, scope, **own)
    still = after.unhealthy(watched)
    if still:
        texts = "; ".join(f"{finding.subject}: {finding.observed}, expected {finding.expected}" for finding in still)
        done = "Fabric Manager was restarted" if fabric else f"GPU {', '.join(own['reset_gpus'])} were reset"
        step, what = next_rung(still, scope, switches=after.switches)
        raise GpuFailure(
            f"{done}, and it did not help: {texts}. Next: {what}",
            **{**result, "reason": "still_unhealthy", "next_step": {"scope": step, "what": what}},
        )
    return result


def run(params: t.Mapping[str, t.Any], *, check_mode: bool, warn: t.Callable[[str], None]) -> dict[str, t.Any]:
    work = Work(params, check_mode=check_mode, warn=warn)
    scope = params["scope"]
    return reset(work, scope) if scope in (SCOPE_GPU, SCOPE_FABRIC) else clear_counters(work)


def main() -> None:
    module = AnsibleModule(
        argument_spec=gpu_argument_spec(
            scope={"type": "str", "choices": [SCOPE_COUNTERS, SCOPE_GPU, SCOPE_FABRIC], "default": SCOPE_COUNTERS},
            condition={
                "type": "str",
                "choices": ["unhealthy", "always"],
                "default": "unhealthy",
                "aliases": ["when"],
            },
            expectations={"type": "dict"},
            timeout={"type": "int", "default": 60},
            nvidia_smi={"type": "path"},
            fabric_manager_unit={"type": "str", "default": "nvidia-fabricmanager.service"},
            proc_root={"type": "path", "default": "/proc"},
        ),
        supports_check_mode=True,
    )
    run_gpu_module(module, run)


if __name__ == "__main__":
    main()
