#!/usr/bin/python
# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_preflight
short_description: Check whether a GPU host is ready to serve, from firmware to kernel log
version_added: 0.1.0
description:
  - Looks at firmware settings by what they lead to, the driver and its parts, CUDA's own start, NVLink, ECC and row
    replacement, PCIe, power and heat, the machine around the GPUs, their layout, MIG, and GPU events in the kernel log.
    Each check says what was seen, what was expected, and what to do.
  - Changes nothing. What the programs that it runs do is print (C(journalctl), C(dmesg), C(systemctl show),
    C(dpkg-query), C(rpm --query), C(nv-fabricmanager --version)).
  - Judges each GPU by what its kind should have. Nothing is held against a kind of GPU that is not known, and what a
    virtual machine hides is not missed.
  - Works without a driver, without root and in a container. What cannot be read is a check of verdict V(unknown) that
    says what is needed; only wrong options make the module fail, unless O(fail_on) asks for more.
author:
  - The baremetal.inference contributors (@baremetal-inference)
extends_documentation_fragment:
  - baremetal.inference._attributes
  - baremetal.inference._attributes.read_only
  - baremetal.inference._gpus
options:
  gpu_count:
    description:
      - How many GPUs the host should have. When left out, as many as its board has, where that is known, else as many
        as the PCI bus shows.
    type: int
  min_driver_version:
    description:
      - Oldest driver that will do, as a branch or as a full version.
      - The default is what the engine of the role baremetal.inference.vllm_service needs. Its CUDA 13 libraries run on
        branch 580 or newer.
    type: str
    default: "580"
  ecc:
    description:
      - What ECC should be. GPUs that have none pass.
    type: str
    choices: [enabled, disabled, any]
    default: enabled
  pcie_measure:
    description:
      - V(none) reads the links as they are. An idle GPU may have slowed its link down, so a low generation proves
        nothing then.
      - V(load) copies between the host and each GPU that no program uses, for some seconds, reads the links meanwhile
        and judges the bandwidth too.
    type: str
    choices: [none, load]
    default: none
  soak_minutes:
    description:
      - How long to let all GPUs that no program uses compute at once, watching clocks, heat, power and the kernel log.
        V(0) leaves this out.
      - The task takes that much longer, and prints nothing meanwhile.
    type: float
    default: 0
  model_path:
    description:
      - Where models will lie on the host. It need not exist yet.
    type: path
  model_bytes:
    description:
      - Size of the model that is to be served. Disk, memory and GPU memory are compared with it.
    type: int
  kernel_log:
    description:
      - V(auto) reads the journal of this boot and earlier ones, and where there is none, what the kernel itself still has
        of this boot.
      - Else a file on the host that holds the kernel log, as C(dmesg), C(journalctl), also with C(-o json), or syslog
        write it.
    type: path
    default: auto
  kernel_log_days:
    description:
      - How many days of the kernel log count. V(0) means all there is.
    type: int
    default: 14
  expectations:
    description:
      - Corrections of what each kind of GPU and board should have, as O(baremetal.inference.gpu_info#module:expectations)
        takes them.
    type: dict
  cuda_timeout:
    description:
      - Seconds within which CUDA has to answer. Without persistence mode each GPU takes some.
    type: float
    default: 120
  fail_on:
    description:
      - V(never) returns the report whatever is in it.
      - V(fail) makes the task fail when a check failed, and V(warn) when one warned too. The report is returned all the
        same.
    type: str
    choices: [never, fail, warn]
    default: never
  proc_root:
    description:
      - Where procfs is mounted on the host.
    type: path
    default: /proc
  dev_root:
    description:
      - Where the device nodes of the host are.
    type: path
    default: /dev
  etc_root:
    description:
      - Where the host's C(os-release) is.
    type: path
    default: /etc
notes:
  - Run it as root. A user sees neither the PCI configuration space of switches, the host's serial number, nor, on many
    systems, the kernel log.
  - Checks of one kind have one C(check) for all GPUs, and the GPU in C(subject). Their ids are stable.
"""

EXAMPLES = r"""
- name: Look at the host
  baremetal.inference.gpu_preflight:
  become: true
  register: look

- name: Print what is to be done
  ansible.builtin.debug:
    msg: "{{ item.subject }}: {{ item.title }}: {{ item.observed }} -> {{ item.fix }}"
  loop: "{{ look.preflight.checks | selectattr('verdict', 'in', ['warn', 'fail']) }}"
  loop_control:
    label: "{{ item.check }}"

- name: Stop here unless eight healthy GPUs and room for the model are there
  baremetal.inference.gpu_preflight:
    gpu_count: 8
    model_path: /srv/models
    model_bytes: 67000000000
    fail_on: fail
  become: true

- name: Measure the PCIe links and let the GPUs run hot for ten minutes
  baremetal.inference.gpu_preflight:
    pcie_measure: load
    soak_minutes: 10
  become: true

- name: Judge a kernel log that was kept, as far back as it goes
  baremetal.inference.gpu_preflight:
    kernel_log: /srv/logs/kernel-before-the-repair.log
    kernel_log_days: 0
"""

RETURN = r"""
verdict:
  description:
    - The gravest verdict of all checks that apply, from V(pass), V(info), V(unknown) and V(warn) to V(fail).
  returned: success
  type: str
  sample: warn
failed_checks:
  description: The checks that failed; with O(fail_on=warn) also those that warned. Each as in RV(preflight.checks).
  returned: success
  type: list
  elements: dict
  sample: []
reason:
  description:
    - Why the driver could not be asked, as RV(baremetal.inference.gpu_info#module:reason) has it; V(null) when it could
      be asked.
    - When an option is wrong, V(invalid_option), V(invalid_selector), V(gpu_not_found) or V(invalid_expectations).
  returned: always
  type: str
  sample: driver_not_loaded
option:
  description: The option that is wrong.
  returned: failure
  type: str
  sample: kernel_log
preflight:
  description: The report. Its shape changes only with RV(preflight.schema).
  returned: success
  type: dict
  contains:
    schema:
      description: Name and version of this shape.
      type: str
      sample: baremetal.inference.preflight/1
    host:
      description: Name that the host gives itself.
      type: str
      sample: dgx-a100-1
    time:
      description: When the report was made, in UTC.
      type: str
      sample: "2026-11-30T10:00:00Z"
    verdict:
      description: As RV(verdict).
      type: str
      sample: warn
    counts:
      description: How many checks there are of each verdict.
      type: dict
      sample: {"pass": 96, "info": 31, "skipped": 2, "unknown": 0, "warn": 1, "fail": 0}
    checks:
      description: All checks, by group.
      type: list
      elements: dict
      contains:
        check:
          description: Stable id, the group and a name.
          type: str
          sample: driver.fabric_manager
        group:
          description:
            - V(firmware), V(driver), V(cuda), V(nvlink), V(ecc), V(pcie), V(power), V(host), V(topology), V(mig) or
              V(kernel_log).
          type: str
          sample: driver
        title:
          description: The same for people.
          type: str
          sample: Fabric Manager
        subject:
          description: V(host), the PCI bus id of a GPU, or those of two with C( - ) between them.
          type: str
          sample: host
        gpu:
          description: NVML's index of the GPU. V(null) when the check is not about one GPU that NVML has.
          type: int
          sample: 3
        verdict:
          description:
            - V(pass), V(info) (a fact, good or bad for nobody in general), V(skipped) (does not apply), V(unknown) (could
              not be found out), V(warn) or V(fail).
          type: str
          sample: fail
        observed:
          description: What was seen.
          type: str
          sample: 580.126.20, active
        expected:
          description: What should be.
          type: str
          sample: 580.159.04, active
        fix:
          description: What to do. Empty unless the verdict is V(unknown), V(warn) or V(fail).
          type: str
          sample: Install the Fabric Manager package in exactly the version 580.159.04, ...
    machine:
      description: The machine. What cannot be read is V(null).
      type: dict
      contains:
        vendor:
          description: Who made it.
          type: str
          sample: NVIDIA
        product:
          description: Its model.
          type: str
          sample: DGXA100 920-23687-2530-000
        serial:
          description: Its serial number, which root alone can read.
          type: str
          sample: "1560000000001"
        cpu_model:
          description: The processors.
          type: str
          sample: AMD EPYC 7742 64-Core Processor
        sockets:
          description: How many processors there are.
          type: int
          sample: 2
        cores:
          description: How many cores they have together.
          type: int
          sample: 128
        threads:
          description: How many programs they run at a time.
          type: int
          sample: 256
        numa_nodes:
          description: How many NUMA nodes there are.
          type: int
          sample: 8
        numa:
          description: The NUMA nodes.
          type: list
          elements: dict
          contains:
            node:
              description: Its number.
              type: int
              sample: 0
            socket:
              description: The processor that it belongs to.
              type: int
              sample: 0
            cpus:
              description: Its threads.
              type: str
              sample: 0-15,128-143
        memory_bytes:
          description: Memory.
          type: int
          sample: 2151677722624
        kernel:
          description: Version of the running kernel.
          type: str
          sample: 6.8.0-60-generic
        os:
          description: The operating system.
          type: str
          sample: Ubuntu 24.04.2 LTS
        virtual:
          description: Whether this is a virtual machine.
          type: bool
          sample: false
    driver:
      description: The driver and its parts. What is not there is V(null).
      type: dict
      contains:
        driver_version:
          description: Version of the driver as NVML has it.
          type: str
          sample: 580.159.04
        nvml_version:
          description: Version of the NVML library.
          type: str
          sample: 13.580.159.04
        cuda_driver_version:
          description: Newest CUDA version that the driver can run.
          type: str
          sample: "13.0"
        kernel_module_version:
          description: Version of the loaded kernel module.
          type: str
          sample: 580.159.04
        kernel_module_flavour:
          description: V(open) or V(proprietary).
          type: str
          sample: open
        fabric_manager_version:
          description: Version of Fabric Manager.
          type: str
          sample: 580.159.04
        fabric_manager_state:
          description: State of its unit, such as V(active), V(inactive) or V(failed); V(absent) when there is no unit.
          type: str
          sample: active
        cuda_init_code:
          description: What C(cuInit) answered. V(null) when it did not, or was not tried.
          type: int
          sample: 0
        cuda_init_seconds:
          description: How long CUDA took to start.
          type: float
          sample: 1.4
    gpus:
      description: The GPUs, each as in RV(baremetal.inference.gpu_info#module:gpus).
      type: list
      elements: dict
    unavailable_gpus:
      description: As RV(baremetal.inference.gpu_info#module:unavailable_gpus).
      type: list
      elements: dict
    missing_from_nvml:
      description: As RV(baremetal.inference.gpu_info#module:missing_from_nvml).
      type: list
      elements: str
    pci_gpus:
      description: The GPUs on the PCI bus, which are there without a driver too.
      type: list
      elements: dict
      contains:
        pci_bus_id:
          description: PCI bus id as in sysfs.
          type: str
          sample: "0000:07:00.0"
        device_id:
          description: Device id, hexadecimal.
          type: str
          sample: 20b2
        driver:
          description: Kernel driver that holds it.
          type: str
          sample: nvidia
        slot:
          description: Name of the slot. V(null) when the firmware names none.
          type: str
          sample: "4"
        numa_node:
          description: NUMA node that it is near.
          type: int
          sample: 3
    topology:
      description: How each pair of GPUs is joined, as RV(baremetal.inference.gpu_info#module:topology).
      type: list
      elements: dict
    nvswitches:
      description: NVSwitches on the PCI bus, as RV(baremetal.inference.gpu_info#module:nvswitches).
      type: list
      elements: dict
    sku:
      description: The kind of all GPUs. V(null) when it is not known, or when there are several.
      type: str
      sample: a100-sxm4-80gb
    system:
      description: The board that carries the GPUs. V(null) when they are single cards or it is not known.
      type: str
      sample: hgx-a100-8gpu
    kernel_log:
      description: Where GPU events were looked for, and the Xid events.
      type: dict
      contains:
        source:
          description: V(journal), V(dmesg) or a file.
          type: str
          sample: journal
        since:
          description: The oldest time that it reaches back to, in UTC. V(null) when that is not known.
          type: str
          sample: "2026-11-16T10:00:00Z"
        boots:
          description: How many boots it is of.
          type: int
          sample: 3
        xids:
          description: Xid events, oldest first.
          type: list
          elements: dict
          contains:
            time:
              description: When, in UTC. V(null) when the log does not tell.
              type: str
              sample: "2026-11-21T03:14:15Z"
            xid:
              description: Its number.
              type: int
              sample: 79
            pci_bus_id:
              description: PCI bus id of the GPU.
              type: str
              sample: "0000:b7:00.0"
            current_boot:
              description: Whether it was in the boot that goes on.
              type: bool
              sample: false
            text:
              description: What the driver wrote beside it.
              type: str
              sample: pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
    soak:
      description: Readings under load. V(null) without O(soak_minutes).
      type: dict
      contains:
        minutes:
          description: How long.
          type: float
          sample: 10.0
        gpus:
          description: Each GPU.
          type: list
          elements: dict
          contains:
            pci_bus_id:
              description: PCI bus id.
              type: str
              sample: "0000:07:00.0"
            skipped:
              description: Why there was no load on it. V(null) when there was.
              type: str
              sample: in use by process 4242
            sm_clock_mhz_min:
              description: Lowest clock of the streaming multiprocessors.
              type: int
              sample: 1275
            temperature_celsius_max:
              description: Highest temperature.
              type: int
              sample: 64
            power_watts_max:
              description: Highest power draw.
              type: float
              sample: 399.2
            teraflops:
              description: What it computed, in 1e12 operations per second.
              type: float
              sample: 251.3
            wrong_results:
              description: Results that differed although they should not.
              type: int
              sample: 0
            reasons:
              description: What held the clocks down, as RV(baremetal.inference.gpu_info#module:gpus[].clocks_event_reasons).
              type: list
              elements: str
              sample: [sw_power_cap]
        samples:
          description: Readings over time.
          type: list
          elements: dict
          contains:
            seconds:
              description: Seconds since the load began.
              type: float
              sample: 5.0
            gpus:
              description: Each GPU that was read then.
              type: list
              elements: dict
              contains:
                pci_bus_id:
                  description: PCI bus id.
                  type: str
                  sample: "0000:07:00.0"
                power_watts:
                  description: Power draw.
                  type: float
                  sample: 391.0
                temperature_celsius:
                  description: Temperature.
                  type: int
                  sample: 61
                sm_mhz:
                  description: Clock of the streaming multiprocessors.
                  type: int
                  sample: 1410
        new_xids:
          description: Xid events that came during the load, as bus id and number.
          type: list
          elements: str
          sample: []
"""

import os
import platform
import time
import typing as t
from datetime import datetime, timezone

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_errors import GpuFailure
from ansible_collections.baremetal.inference.plugins.module_utils._module import gpu_argument_spec
from ansible_collections.baremetal.inference.plugins.module_utils._preflight_run import System, preflight


def system_of(module: AnsibleModule) -> System:
    def command(arguments: t.Sequence[str]) -> tuple[int, str, str]:
        try:
            status, output, errors = module.run_command(
                list(arguments),
                # The texts that are looked for are those of the C locale.
                environ_update={"LC_ALL": "C", "LANGUAGE": "C"},
                errors="replace",
                handle_exceptions=False,
            )
        except OSError as error:
            # A program that does not start tells nothing, as one that is not there.
            return 127, "", str(error)
        return status, output, errors

    return System(
        command=command,
        which=module.get_bin_path,
        host_name=platform.node(),
        root=os.geteuid() == 0,
        now=lambda: datetime.now(tz=timezone.utc),
        monotonic=time.monotonic,
    )


def main() -> None:
    module = AnsibleModule(
        argument_spec=gpu_argument_spec(
            gpu_count={"type": "int"},
            min_driver_version={"type": "str", "default": "580"},
            ecc={"type": "str", "choices": ["enabled", "disabled", "any"], "default": "enabled"},
            pcie_measure={"type": "str", "choices": ["none", "load"], "default": "none"},
            soak_minutes={"type": "float", "default": 0},
            model_path={"type": "path"},
            model_bytes={"type": "int"},
            kernel_log={"type": "path", "default": "auto"},
            kernel_log_days={"type": "int", "default": 14},
            expectations={"type": "dict"},
            cuda_timeout={"type": "float", "default": 120},
            fail_on={"type": "str", "choices": ["never", "fail", "warn"], "default": "never"},
            proc_root={"type": "path", "default": "/proc"},
            dev_root={"type": "path", "default": "/dev"},
            etc_root={"type": "path", "default": "/etc"},
        ),
        supports_check_mode=True,
    )
    try:
        result = preflight(module.params, system_of(module))
    except GpuFailure as failure:
        module.fail_json(**failure.as_result())
    failed = result["failed_checks"]
    if failed and module.params["fail_on"] != "never":
        first = failed[0]
        module.fail_json(
            msg=(
                f"{len(failed)} check(s) of this host did not pass. The first: {first['title']} ({first['subject']}):"
                f" {first['observed']}; expected: {first['expected']}. {first['fix']}"
            ),
            **result,
        )
    module.exit_json(**result)


if __name__ == "__main__":
    main()
