#!/usr/bin/python
# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: pcie_linkspeed
short_description: Prove that GPUs have the PCIe links that they should have
version_added: 0.1.0
description:
  - Reads generation and width of the PCIe link of each GPU, now and at most, at the GPU and at the port above it, and
    fails with the name of the slot when a link is below what is asked for.
  - A GPU that is idle may use a lower generation than it can, to save power. A low reading proves nothing then, and the
    verdict is V(unproven). With O(measure=load) the module wakes each GPU, copies data to and from it through the CUDA
    driver, and judges what it reads while the copies run, and how fast they are.
  - The width saves no power, so missing lanes are a fault also in an idle link.
  - All selected GPUs are read, measured and judged before the module fails, and the failure has the results of all.
author:
  - The baremetal.inference contributors (@baremetal-inference)
extends_documentation_fragment:
  - baremetal.inference._attributes
  - baremetal.inference._attributes.read_only
  - baremetal.inference._gpus
options:
  generation:
    description:
      - The PCIe generation that each link must have.
      - V(max) is what the GPU can do by itself, whatever its slot can. Name a number where the slots can do less and
        that is right, as with cards of generation 5 on a board of generation 4.
    type: str
    choices: [max, "1", "2", "3", "4", "5", "6"]
    default: max
  width:
    description:
      - How many lanes each link must have. V(max) is as many as the GPU has.
    type: str
    choices: [max, "1", "2", "4", "8", "16"]
    default: max
  measure:
    description:
      - V(none) only reads. Nothing is put under load, and programs on the GPUs are not disturbed.
      - V(load) copies from page-locked memory of the host to each GPU and back, one GPU after the other, for about a
        second each, from processors that are near the GPU. It takes twice O(buffer_mebibytes) of memory, half of it on
        the GPU, next to what CUDA needs for itself.
      - A GPU that runs programs is not measured, since both would suffer, nor is one in MIG mode, which CUDA shows in
        parts only. Both are failures then, as is everything else that leaves a link unproven.
    type: str
    choices: [none, load]
    default: none
  host_to_device_min_gb_per_s:
    description:
      - Fail when data goes from the host to a GPU at less than so many gigabytes (1e9 bytes) per second, in the best of
        O(rounds). V(0) asks for nothing.
      - By default what the collection expects of this kind of GPU, where it is known and O(generation) and O(width) ask
        for its full link.
      - Needs O(measure=load).
    type: float
  device_to_host_min_gb_per_s:
    description:
      - As O(host_to_device_min_gb_per_s), from a GPU to the host.
    type: float
  max_replays:
    description:
      - Fail when more packets than this had to be sent again while a GPU was under load. By default the number is
        returned and not judged.
      - Needs O(measure=load).
    type: int
  expectations:
    description:
      - What GPUs should be like, where it differs from what the collection knows. Described at
        O(baremetal.inference.gpu_info#module:expectations); the bandwidths are used here.
    type: dict
  rounds:
    description:
      - How often to measure each direction.
    type: int
    default: 10
  buffer_mebibytes:
    description:
      - Size of what is copied at once.
    type: int
    default: 256
  timeout_seconds:
    description:
      - How long CUDA may take to start, and to copy, before that GPU counts as hanging. Hosts without persistence mode
        take seconds to start.
    type: int
    default: 120
notes:
  - O(measure=load) needs the driver's library C(libcuda.so.1). It needs no CUDA toolkit, compiler or Python package.
  - The CUDA calls are made by processes of their own, which end with the measurement, so that no device node stays open.
  - V(all) of O(gpus) means the GPUs that the driver has. One that does not answer is a failure, after the others were
    judged; one that is on the PCI bus only is a warning, and in RV(baremetal.inference.gpu_info#module:missing_from_nvml).
  - What the environment says of CUDA, such as E(CUDA_VISIBLE_DEVICES), has no effect here.
seealso:
  - module: baremetal.inference.gpu_info
"""

EXAMPLES = r"""
- name: Look at the links of all GPUs, and fail when lanes are missing or a slot is too slow
  baremetal.inference.pcie_linkspeed:

- name: Prove that each GPU has generation 4 with 16 lanes, and the bandwidth that its kind should have
  baremetal.inference.pcie_linkspeed:
    generation: "4"
    width: "16"
    measure: load
  register: links

- name: Print what was measured
  ansible.builtin.debug:
    msg: |-
      {% for gpu in links.gpus %}
      {{ '%s  generation %s x%s  to GPU %5.1f GB/s  to host %5.1f GB/s  slot %s' | format(gpu.pci_bus_id,
         gpu.load.generation, gpu.load.width, gpu.bandwidth.host_to_device.best_gb_per_s,
         gpu.bandwidth.device_to_host.best_gb_per_s, gpu.slot) }}
      {% endfor %}

- name: Ask for a bandwidth of one's own, and for a clean signal
  baremetal.inference.pcie_linkspeed:
    gpus: ["0000:07:00.0"]
    measure: load
    host_to_device_min_gb_per_s: 24
    max_replays: 0
"""

RETURN = r"""
verdict:
  description: The worst of the GPUs' - V(ok), V(unproven) or V(below).
  returned: success, and failure after reading
  type: str
  sample: ok
gpus:
  description: The selected GPUs that answer, ordered by PCI bus id.
  returned: success, and failure after reading
  type: list
  elements: dict
  contains:
    index:
      description: NVML's index.
      type: int
      sample: 0
    uuid:
      description: UUID of the GPU.
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
    slot:
      description: Name of the slot. V(null) when neither the kernel nor the firmware names it, as with soldered modules.
      type: str
      sample: PCIe Slot 3
    slot_source:
      description: Who names it - V(pci_slots), the kernel, or V(smbios), the firmware, which only root can read.
      type: str
      sample: pci_slots
    numa_node:
      description: NUMA node that the GPU is near.
      type: int
      sample: 3
    local_cpulist:
      description: Processors that are near the GPU.
      type: str
      sample: 48-63,176-191
    generation_max:
      description: Highest generation that GPU and slot can both do.
      type: int
      sample: 4
    generation_gpu_max:
      description: Highest generation that the GPU can do.
      type: int
      sample: 4
    width_max:
      description: Lanes that GPU and slot both have.
      type: int
      sample: 16
    idle:
      description: The link before any load.
      type: dict
      contains: &reading
        generation:
          description: Generation by NVML, or else by sysfs.
          type: int
          sample: 4
        width:
          description: Lanes in use.
          type: int
          sample: 16
        gpu:
          description: The GPU's end in sysfs. V(null) when the GPU is not there.
          type: dict
          contains: &pci_link
            current_speed_gt_per_s:
              description: Speed now, in gigatransfers per second and lane.
              type: float
              sample: 16.0
            max_speed_gt_per_s:
              description: Highest speed of this end.
              type: float
              sample: 16.0
            current_width:
              description: Lanes in use.
              type: int
              sample: 16
            max_width:
              description: Lanes of this end.
              type: int
              sample: 16
        upstream_port:
          description: The port's end in sysfs. V(null) when the GPU hangs on a root bus, as in most virtual machines.
          type: dict
          contains: *pci_link
    load:
      description: The link while data was copied, by the last of several readings. V(null) without load.
      type: dict
      contains: *reading
    path:
      description: The ports between GPU and processor, the nearest to the GPU first, read under load where there was any.
      type: list
      elements: dict
      contains:
        pci_bus_id:
          description: PCI bus id of the port.
          type: str
          sample: "0000:06:00.0"
        link:
          description: Its link.
          type: dict
          contains: *pci_link
    replay_count:
      description: Packets that had to be sent again since the driver was loaded. V(null) when the GPU does not say.
      type: int
      sample: 0
    replays_under_load:
      description: How many of them while there was load. V(null) without load.
      type: int
      sample: 0
    measured:
      description: Whether the link was measured under load.
      type: bool
      sample: true
    bandwidth:
      description: What was measured. V(null) without load.
      type: dict
      contains:
        host_to_device:
          description: From the host to the GPU.
          type: dict
          contains: &throughput
            best_gb_per_s:
              description: Of the best round, in gigabytes (1e9 bytes) per second. This is what is judged.
              type: float
              sample: 25.2
            median_gb_per_s:
              description: Of the median round.
              type: float
              sample: 25.1
            rounds:
              description: How many rounds there were. Fewer than asked for when the link is very slow.
              type: int
              sample: 10
        device_to_host:
          description: From the GPU to the host.
          type: dict
          contains: *throughput
        buffer_bytes:
          description: What was copied at once.
          type: int
          sample: 268435456
        copies_per_round:
          description: How many copies make a round.
          type: int
          sample: 2
        cpulist:
          description:
            - Processors that the copies were made from. V(null) when the process could not run near the GPU; what is
              measured then may be the way between two sockets.
          type: str
          sample: 48-63,176-191
        seconds:
          description: How long all took, with the start of CUDA.
          type: float
          sample: 1.0
    expected:
      description: What was asked for, in numbers.
      type: dict
      contains:
        generation:
          description: Generation.
          type: int
          sample: 4
        width:
          description: Lanes.
          type: int
          sample: 16
        host_to_device_gb_per_s:
          description: Least bandwidth from the host to the GPU. V(null) when none is asked for.
          type: float
          sample: 23.0
        device_to_host_gb_per_s:
          description: Least bandwidth from the GPU to the host.
          type: float
          sample: 23.0
        replays:
          description: O(max_replays).
          type: int
          sample: 0
    verdict:
      description: V(ok), V(unproven) or V(below).
      type: str
      sample: ok
    problems:
      description: What stands against V(ok).
      type: list
      elements: dict
      contains:
        check:
          description: V(generation), V(width), V(host_to_device), V(device_to_host), V(replays) or V(measurement).
          type: str
          sample: generation
        verdict:
          description: V(below) or V(unproven).
          type: str
          sample: below
        observed:
          description: What was seen.
          type: str
          sample: PCIe generation 3 under load
        expected:
          description: What was asked for.
          type: str
          sample: generation 4
        fix:
          description: What to do. Empty when another problem of the link explains this one.
          type: str
          sample: Reseat the GPU.
unavailable_gpus:
  description: GPUs that the driver counts and that do not answer, or were lost while they were measured.
  returned: success, and failure after reading
  type: list
  elements: dict
  contains:
    index:
      description: NVML's index.
      type: int
      sample: 3
    uuid:
      description: UUID, where it is known.
      type: str
    pci_bus_id:
      description: PCI bus id, where it is known.
      type: str
      sample: "0000:4e:00.0"
    reason:
      description: Why, as in RV(reason).
      type: str
      sample: gpu_lost
    nvml_code:
      description: NVML's error code.
      type: int
      sample: 15
    msg:
      description: The same in words.
      type: str
      sample: GPU is lost
reason:
  description:
    - Why it failed. V(link_below) - a link is not what it should be. V(link_unproven) - with O(measure=load), what a
      link should show could not be read. V(gpu_in_use) and V(mig_enabled) - the GPU could not be measured.
    - Of CUDA - V(library_missing), V(system_not_ready), V(version_mismatch), V(operating_system), V(no_device),
      V(not_offered), V(out_of_memory), V(device_unavailable), V(compute_mode_prohibited), V(ecc_uncorrectable),
      V(timeout), V(crashed) and others. Of NVML - as RV(baremetal.inference.gpu_info#module:reason).
    - V(invalid_option) - an option is out of range or needs another.
  returned: failure
  type: str
  sample: link_below
nvml_code:
  description: NVML's error code. V(null) when the failure is not NVML's.
  returned: failure of NVML
  type: int
  sample: 9
nvml_call:
  description: The NVML function that failed.
  returned: failure of NVML
  type: str
  sample: nvmlInitWithFlags
cuda_code:
  description: CUDA's error code. V(null) when it did not come to one.
  returned: failure of CUDA
  type: int
  sample: 802
cuda_call:
  description: The CUDA function that failed.
  returned: failure of CUDA
  type: str
  sample: cuInit
selector:
  description: The element of O(gpus) that is wrong.
  returned: failure about O(gpus)
  type: str
  sample: "9"
path:
  description: Where O(expectations) is wrong.
  returned: failure about O(expectations)
  type: str
  sample: expectations.skus.a100-sxm4-80gb.pcie_width
gpu:
  description: The GPU that the failure is about.
  returned: failure of one GPU
  type: dict
  contains:
    index:
      description: NVML's index.
      type: int
      sample: 3
    uuid:
      description: UUID, where it is known.
      type: str
    pci_bus_id:
      description: PCI bus id, where it is known.
      type: str
      sample: "0000:4e:00.0"
pci_gpu_count:
  description: How many NVIDIA GPUs are on the PCI bus, whether a driver sees them or not.
  returned: failure
  type: int
  sample: 8
pci_gpus:
  description: NVIDIA GPUs on the PCI bus.
  returned: failure
  type: list
  elements: dict
  contains:
    pci_bus_id:
      description: PCI bus id.
      type: str
      sample: "0000:07:00.0"
    vendor_id:
      description: Vendor id, hexadecimal.
      type: str
      sample: 10de
    device_id:
      description: Device id, hexadecimal.
      type: str
      sample: 20b2
    class_id:
      description: Class and subclass, hexadecimal.
      type: str
      sample: "0302"
    driver:
      description: Kernel driver that has it.
      type: str
      sample: nvidia
kernel_module_version:
  description: Version of the loaded C(nvidia) kernel module as sysfs has it.
  returned: failure
  type: str
  sample: 580.159.04
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.baremetal.inference.plugins.module_utils._module import gpu_argument_spec, run_gpu_module
from ansible_collections.baremetal.inference.plugins.module_utils._pcie_links import check_links


def run(params: t.Mapping[str, t.Any], *, check_mode: bool, warn: t.Callable[[str], None]) -> dict[str, t.Any]:
    """Nothing is changed, so check mode makes no difference."""
    return check_links(params, warn)


def main() -> None:
    module = AnsibleModule(
        argument_spec=gpu_argument_spec(
            generation={"type": "str", "choices": ["max", "1", "2", "3", "4", "5", "6"], "default": "max"},
            width={"type": "str", "choices": ["max", "1", "2", "4", "8", "16"], "default": "max"},
            measure={"type": "str", "choices": ["none", "load"], "default": "none"},
            host_to_device_min_gb_per_s={"type": "float"},
            device_to_host_min_gb_per_s={"type": "float"},
            max_replays={"type": "int"},
            expectations={"type": "dict"},
            rounds={"type": "int", "default": 10},
            buffer_mebibytes={"type": "int", "default": 256},
            timeout_seconds={"type": "int", "default": 120},
        ),
        supports_check_mode=True,
    )
    run_gpu_module(module, run)


if __name__ == "__main__":
    main()
