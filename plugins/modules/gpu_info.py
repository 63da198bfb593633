#!/usr/bin/python
# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_info
short_description: Read every fact of every NVIDIA GPU and of the links between them
version_added: 0.1.0
description:
  - Reads identity, driver, memory, PCIe, ECC, power, temperature, clocks, NVLink, topology and processes of all GPUs of
    a host in one NVML session. It changes nothing, starts no program and parses no text of C(nvidia-smi).
  - Also reads from sysfs which NVIDIA GPUs and NVSwitches are on the PCI bus, so that a GPU that the driver does not
    see is noticed.
  - A host without GPUs is no failure - RV(gpu_count) is then 0. A host whose driver cannot be asked is one, and
    RV(reason) says why.
  - A GPU that does not answer, as one that has fallen off the bus, is in RV(unavailable_gpus), and the others are read
    all the same.
author:
  - The baremetal.inference contributors (@baremetal-inference)
extends_documentation_fragment:
  - baremetal.inference._attributes
  - baremetal.inference._attributes.read_only
  - baremetal.inference._gpus
options:
  gather:
    description:
      - Which of the longer readings to take as well. All else is always read.
      - V(nvlink) is every link of every GPU, V(topology) is how each pair of GPUs is joined, V(processes) is what
        runs on the GPUs.
      - An empty list is quickest.
    type: list
    elements: str
    choices: [nvlink, topology, processes]
    default: [nvlink, topology, processes]
  expectations:
    description:
      - What GPUs and boards should be like, where it differs from what the collection knows, or is not known to it. It
        ends up in RV(gpus[].expectations) and RV(system), and modules that judge use it.
      - Has the keys C(skus) and C(systems), each a dictionary by id.
      - An entry of C(skus) has the figures of RV(gpus[].expectations.figures) by name, without their sources. V(null)
        means that nothing is expected. A kind of GPU that is not known also needs C(name), and C(device_ids) (PCI
        device ids, in quotes) or C(name_pattern) (a regular expression for the whole of NVML's name).
      - An entry of C(systems) has C(gpu_count), C(nvswitch_count), C(nvlink_layout) (V(switch) or V(mesh)) and
        C(links_per_pair). A system that is not known also needs C(name) and C(skus), a list of ids.
      - An unknown key or a value of the wrong kind is an error.
    type: dict
notes:
  - RV(gpus[].index) is NVML's, which NVML does not promise to keep over a reboot. CUDA counts in an order of its own
    unless E(CUDA_DEVICE_ORDER=PCI_BUS_ID) is set. Hand GPUs to programs by UUID.
  - A fact that a GPU or driver does not have is V(null), never a guess.
"""

EXAMPLES = r"""
- name: Read the GPUs
  baremetal.inference.gpu_info:
  register: gpu_facts

- name: Require eight A100s with ECC on, and all of the bus seen by the driver
  ansible.builtin.assert:
    that:
      - gpu_facts.gpu_count == 8
      - gpu_facts.gpus | rejectattr('name', 'search', 'A100') | length == 0
      - gpu_facts.gpus | rejectattr('ecc.current', 'equalto', 'enabled') | length == 0
      - gpu_facts.missing_from_nvml | length == 0
      - gpu_facts.unavailable_gpus | length == 0
    fail_msg: "GPUs of {{ inventory_hostname }} are not as they should be: {{ gpu_facts.gpus | map(attribute='name') }}"

- name: Print a table of the GPUs
  ansible.builtin.debug:
    msg: |-
      {% for gpu in gpu_facts.gpus %}
      {{ '%-4s%-14s%-26s%8.0f MiB%6.0f W of %4.0f W%5d C  ECC %s' | format(gpu.index, gpu.pci_bus_id, gpu.name,
         gpu.memory.total_bytes / 1048576, gpu.power.usage_watts, gpu.power.limit_enforced_watts,
         gpu.temperature.gpu_celsius, gpu.ecc.current) }}
      {% endfor %}

- name: Read two GPUs only, one by UUID and one by PCI bus id, without the longer readings
  baremetal.inference.gpu_info:
    gpus:
      - GPU-5f1d8a7e-3f0b-4a53-9c55-2f9f9b7a1c11
      - "0000:47:00.0"
    gather: []
  register: two_gpus

- name: Find one GPU in the result by its UUID or its PCI bus id
  ansible.builtin.debug:
    msg: "{{ gpu_facts.gpus[gpu_facts.gpu_positions['0000:47:00.0']].power.limit_enforced_watts }} W"

- name: Say that the PCIe cards of this host are joined by bridges, and that H200s are bought with 600 W
  baremetal.inference.gpu_info:
    expectations:
      skus:
        a100-pcie-80gb:
          nvlink_bridged: true
        h200-sxm5-141gb:
          power_default_watts: 600
  register: gpu_facts

- name: Compare the memory that is visible through BAR1 with what this kind of GPU should have
  ansible.builtin.assert:
    that: item.bar1.total_bytes >= (item.expectations.figures.bar1_bytes.value or 0)
    fail_msg: "{{ item.pci_bus_id }}: BAR1 has {{ item.bar1.total_bytes }} bytes"
  loop: "{{ gpu_facts.gpus | selectattr('expectations') }}"
  loop_control:
    label: "{{ item.pci_bus_id }}"

- name: Require that every pair of GPUs has twelve NVLinks between them and may use them
  ansible.builtin.assert:
    that:
      - gpu_facts.topology | rejectattr('level', 'equalto', 'NV12') | length == 0
      - gpu_facts.topology | rejectattr('p2p.nvlink', 'equalto', 'ok') | length == 0
"""

RETURN = r"""
driver_version:
  description: Version of the NVIDIA driver.
  returned: success
  type: str
  sample: 580.159.04
nvml_version:
  description: Version of the NVML library.
  returned: success
  type: str
  sample: 13.580.159.04
cuda_driver_version:
  description: Newest CUDA version that the driver can run.
  returned: success
  type: str
  sample: "13.0"
kernel_module_version:
  description: Version of the loaded C(nvidia) kernel module as sysfs has it; V(null) when none is loaded.
  returned: always
  type: str
  sample: 580.159.04
gpu_count:
  description: How many GPUs the driver counts, whether selected or not, and whether they answer or not.
  returned: success
  type: int
  sample: 8
gpus:
  description: The selected GPUs, ordered by PCI bus id.
  returned: success
  type: list
  elements: dict
  contains:
    index:
      description: NVML's index. It changes when GPUs come or go.
      type: int
      sample: 0
    uuid:
      description: UUID of the GPU.
      type: str
      sample: GPU-5f1d8a7e-3f0b-4a53-9c55-2f9f9b7a1c11
    pci_bus_id:
      description: PCI bus id as in sysfs. V(null) for integrated GPUs.
      type: str
      sample: "0000:07:00.0"
    minor_number:
      description: Number of the device node, as in C(/dev/nvidia0).
      type: int
      sample: 0
    name:
      description: Product name.
      type: str
      sample: NVIDIA A100-SXM4-80GB
    serial:
      description: Serial number printed on the board.
      type: str
      sample: "1560000000000"
    board_part_number:
      description: Part number of the board.
      type: str
      sample: 692-2G506-0212-002
    vbios_version:
      description: Version of the video BIOS.
      type: str
      sample: 92.00.45.00.05
    brand:
      description: Brand, such as V(tesla) or V(nvidia).
      type: str
      sample: nvidia
    architecture:
      description: Architecture, such as V(ampere) or V(hopper).
      type: str
      sample: ampere
    compute_capability:
      description: CUDA compute capability.
      type: str
      sample: "8.0"
    persistence_mode:
      description: V(enabled) or V(disabled).
      type: str
      sample: enabled
    compute_mode:
      description: V(default), V(exclusive_process), V(exclusive_thread) or V(prohibited).
      type: str
      sample: default
    performance_state:
      description: From V(P0), the fastest, to V(P15).
      type: str
      sample: P0
    recovery_action:
      description: What the driver says must be done to recover the GPU. V(none) when it is well.
      type: str
      sample: none
    mig_mode:
      description: Multi-instance mode. V(null) when the GPU has none.
      type: dict
      contains: &mode_pair
        current:
          description: What is in force, V(enabled) or V(disabled).
          type: str
          sample: disabled
        pending:
          description: What will be in force after the next reset or reboot.
          type: str
          sample: disabled
    pci:
      description: Where the GPU is on the PCI bus, and what it announces itself as.
      type: dict
      contains:
        nvml_bus_id:
          description: Bus id as NVML and C(nvidia-smi) write it.
          type: str
          sample: "00000000:07:00.0"
        vendor_id:
          description: Vendor id, hexadecimal.
          type: str
          sample: 10de
        device_id:
          description: Device id, hexadecimal.
          type: str
          sample: 20b2
        subsystem_vendor_id:
          description: Vendor id of the subsystem, hexadecimal.
          type: str
          sample: 10de
        subsystem_device_id:
          description: Device id of the subsystem, hexadecimal.
          type: str
          sample: "1463"
        numa_node:
          description: NUMA node that the GPU is near.
          type: int
          sample: 3
        local_cpulist:
          description: Processors that are near the GPU.
          type: str
          sample: 48-63,176-191
    pcie:
      description: The link of the GPU to its slot.
      type: dict
      contains:
        generation_current:
          description: PCIe generation now. An idle GPU may use a lower one than it can.
          type: int
          sample: 4
        generation_max:
          description: Highest generation that GPU and slot can both do.
          type: int
          sample: 4
        generation_gpu_max:
          description: Highest generation that the GPU can do.
          type: int
          sample: 4
        width_current:
          description: Lanes in use. Saving power does not lower it, so fewer than RV(gpus[].pcie.width_max) is a fault.
          type: int
          sample: 16
        width_max:
          description: Lanes that GPU and slot both have.
          type: int
          sample: 16
        replay_count:
          description: Packets that had to be sent again. A rising count points at slot, riser or cable.
          type: int
          sample: 0
        link:
          description: The GPU's end of the link as sysfs has it. V(null) when the GPU is not in sysfs.
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
          description: The port that the GPU hangs on. V(null) when it hangs on a root bus, as in most virtual machines.
          type: dict
          contains:
            pci_bus_id:
              description: PCI bus id of the port.
              type: str
              sample: "0000:05:00.0"
            link:
              description: The port's end of the link.
              type: dict
              contains: *pci_link
    memory:
      description: Memory of the GPU.
      type: dict
      contains:
        total_bytes:
          description: All of it.
          type: int
          sample: 85899345920
        used_bytes:
          description: What programs use; with drivers that do not tell it apart, also what the driver reserves.
          type: int
          sample: 0
        free_bytes:
          description: What is free.
          type: int
          sample: 85226946560
        reserved_bytes:
          description: What driver and firmware reserve.
          type: int
          sample: 672399360
    bar1:
      description: Window through which processors and other devices see the GPU's memory.
      type: dict
      contains:
        total_bytes:
          description: All of it. Smaller than the memory when firmware does not decode above 4 GiB.
          type: int
          sample: 137438953472
        used_bytes:
          description: What is used.
          type: int
          sample: 1048576
        free_bytes:
          description: What is free.
          type: int
          sample: 137437904896
    ecc:
      description: Error correction of the memory.
      type: dict
      contains:
        supported:
          description: Whether the GPU has it.
          type: bool
          sample: true
        current:
          description: What is in force, V(enabled) or V(disabled).
          type: str
          sample: enabled
        pending:
          description: What will be in force after the next reboot.
          type: str
          sample: enabled
        default:
          description: How the GPU left the factory.
          type: str
          sample: enabled
        volatile:
          description: Errors since the driver was loaded.
          type: dict
          contains: &ecc_errors
            corrected:
              description: Errors that were corrected.
              type: int
              sample: 0
            uncorrected:
              description: Errors that were not.
              type: int
              sample: 0
        aggregate:
          description: Errors in the life of the GPU.
          type: dict
          contains: *ecc_errors
    remapped_rows:
      description: Rows of memory that were replaced by spare ones. V(null) before Ampere.
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
          description: Whether a row waits for the next reset to be replaced.
          type: bool
          sample: false
        failure:
          description: Whether a row could not be replaced. The GPU should then be.
          type: bool
          sample: false
    power:
      description: Power draw and its limits.
      type: dict
      contains:
        usage_watts:
          description: What the board draws.
          type: float
          sample: 61.254
        limit_requested_watts:
          description: The limit that was set.
          type: float
          sample: 400.0
        limit_enforced_watts:
          description: The limit in force, which management hardware can hold below the one that was set.
          type: float
          sample: 400.0
        limit_default_watts:
          description: The limit that the board has by default.
          type: float
          sample: 400.0
        limit_min_watts:
          description: Lowest limit that can be set.
          type: float
          sample: 100.0
        limit_max_watts:
          description: Highest limit that can be set.
          type: float
          sample: 400.0
    temperature:
      description: Temperatures and the thresholds of this board.
      type: dict
      contains:
        gpu_celsius:
          description: Of the GPU.
          type: int
          sample: 31
        memory_celsius:
          description: Of the memory.
          type: int
          sample: 44
        threshold_slowdown_celsius:
          description: From here on hardware slows the GPU down.
          type: int
          sample: 89
        threshold_shutdown_celsius:
          description: From here on the GPU shuts itself down.
          type: int
          sample: 92
        threshold_gpu_max_celsius:
          description: From here on software slows the GPU down.
          type: int
          sample: 85
        threshold_memory_max_celsius:
          description: From here on software slows the GPU down to spare the memory.
          type: int
          sample: 95
    utilization:
      description: How busy the GPU was in the last sampling period. V(null) with MIG.
      type: dict
      contains:
        gpu_percent:
          description: Share of the time in which something ran on the GPU.
          type: int
          sample: 0
        memory_percent:
          description: Share of the time in which memory was read or written.
          type: int
          sample: 0
    clocks:
      description: Clocks now and at most.
      type: dict
      contains:
        graphics_mhz:
          description: Graphics clock.
          type: int
          sample: 210
        sm_mhz:
          description: Clock of the streaming multiprocessors.
          type: int
          sample: 210
        memory_mhz:
          description: Memory clock.
          type: int
          sample: 1593
        video_mhz:
          description: Clock of the video engines.
          type: int
          sample: 585
        graphics_max_mhz:
          description: Highest graphics clock.
          type: int
          sample: 1410
        sm_max_mhz:
          description: Highest clock of the streaming multiprocessors.
          type: int
          sample: 1410
        memory_max_mhz:
          description: Highest memory clock.
          type: int
          sample: 1593
        video_max_mhz:
          description: Highest clock of the video engines.
          type: int
          sample: 1290
    clocks_event_reasons:
      description:
        - Why clocks are not higher - V(gpu_idle), V(applications_clocks_setting), V(sw_power_cap), V(hw_slowdown),
          V(sync_boost), V(sw_thermal_slowdown), V(hw_thermal_slowdown), V(hw_power_brake_slowdown),
          V(display_clock_setting), V(board_limit), V(reliability). Empty when nothing holds them down.
      type: list
      elements: str
      sample: [gpu_idle]
    nvlink:
      description: NVLinks of the GPU. V(null) unless O(gather) has V(nvlink).
      type: dict
      contains:
        total_count:
          description: Links that the GPU has.
          type: int
          sample: 12
        active_count:
          description: Links that are up.
          type: int
          sample: 12
        links:
          description: Each link. Empty when the GPU has none.
          type: list
          elements: dict
          contains:
            link:
              description: Number of the link.
              type: int
              sample: 0
            state:
              description: V(active), V(sleep) (up, saving power), V(active_traffic_disabled) or V(inactive).
              type: str
              sample: active
            version:
              description: NVLink version.
              type: str
              sample: "3.0"
            speed_megabytes_per_second:
              description: Speed in each direction. V(null) for a link that is down.
              type: int
              sample: 25000
            remote_device_type:
              description: What the far end is - V(gpu), V(switch), V(ibmnpu) or V(unknown).
              type: str
              sample: switch
            remote_pci_bus_id:
              description: PCI bus id of the far end. V(null) when it is hidden, as in virtual machines.
              type: str
              sample: "0000:c4:00.0"
            errors:
              description: Error counters.
              type: dict
              contains:
                replay:
                  description: Packets that had to be sent again.
                  type: int
                  sample: 0
                recovery:
                  description: Times that the link had to be trained again.
                  type: int
                  sample: 0
                crc:
                  description: Checksum errors.
                  type: int
                  sample: 0
    processes:
      description: What runs on the GPU. V(null) unless O(gather) has V(processes), or when the driver does not tell.
      type: list
      elements: dict
      contains:
        pid:
          description: Process id, as the host has it.
          type: int
          sample: 4242
        name:
          description: Name of the program. V(null) when it has ended or may not be seen.
          type: str
          sample: /opt/vllm/current/bin/python
        type:
          description: V(compute), V(graphics) or V(mps_compute). A process that is of two types is listed twice.
          type: str
          sample: compute
        used_memory_bytes:
          description: Memory of the GPU that it uses.
          type: int
          sample: 76236718080
    read_errors:
      description: Facts that this GPU should have and that could not be read. Each is V(null) above, and warned about.
      type: list
      elements: dict
      contains:
        call:
          description: The NVML function that failed.
          type: str
          sample: nvmlDeviceGetRemappedRows
        nvml_code:
          description: NVML's error code.
          type: int
          sample: 999
        reason:
          description: The same values as RV(reason).
          type: str
          sample: unknown
        msg:
          description: The error in full, and what to do.
          type: str
          sample: "nvmlDeviceGetRemappedRows failed for GPU 3 (0000:4e:00.0): Unknown Error (NVML error 999). ..."
    expectations:
      description:
        - What a GPU of this kind should be like, for comparing. V(null) when the kind is not known, which is no fault.
        - Each figure has its C(value) and its C(source). A value is V(null) when no source was found, or when there is
          no such thing.
      type: dict
      contains:
        id:
          description: Kind of GPU.
          type: str
          sample: a100-sxm4-80gb
        name:
          description: Its name.
          type: str
          sample: NVIDIA A100 SXM4 80GB
        figures:
          description: The figures.
          type: dict
          contains:
            nvlink_links:
              description: Links that are up on a GPU whose NVLinks are all wired.
              type: dict
              sample: {value: 12, source: "..."}
            nvlink_versions:
              description: NVLink versions that have been seen.
              type: dict
              sample: {value: ["3.0", "3.1"], source: "..."}
            nvlink_megabytes_per_second:
              description: Speed of one link in each direction.
              type: dict
              sample: {value: 25000, source: "..."}
            nvlink_layout:
              description: V(none), V(bridge) (plugged between cards, or not) or V(board) (soldered, see RV(system)).
              type: dict
              sample: {value: "board", source: "..."}
            nvlink_bridge_sizes:
              description: How many cards one bridge joins.
              type: dict
              sample: {value: [2], source: "..."}
            nvlink_bridged:
              description: Whether the cards of this host have bridges. Known only when O(expectations) says it.
              type: dict
              sample: {value: true, source: "..."}
            pcie_generation:
              description: PCIe generation.
              type: dict
              sample: {value: 4, source: "..."}
            pcie_width:
              description: Lanes.
              type: dict
              sample: {value: 16, source: "..."}
            bar1_bytes:
              description: Size of BAR1 when firmware lets the whole memory be visible.
              type: dict
              sample: {value: 137438953472, source: "..."}
            framebuffer_bytes:
              description: Memory as NVML counts it.
              type: dict
              sample: {value: 85899345920, source: "..."}
            power_default_watts:
              description: Default power limits that have been seen. For plausibility only.
              type: dict
              sample: {value: [400.0, 500.0], source: "..."}
            power_min_watts:
              description: Lowest power limits that have been seen. For plausibility only.
              type: dict
              sample: {value: [100.0], source: "..."}
            power_max_watts:
              description: Highest power limits that have been seen. For plausibility only.
              type: dict
              sample: {value: [400.0, 500.0], source: "..."}
            temperature_slowdown_celsius:
              description: Slowdown thresholds that have been seen. For plausibility only.
              type: dict
              sample: {value: [89], source: "..."}
            temperature_shutdown_celsius:
              description: Shutdown thresholds that have been seen. For plausibility only.
              type: dict
              sample: {value: [92], source: "..."}
            h2d_gigabytes_per_second:
              description: Least bandwidth from host to GPU under load, pinned memory.
              type: dict
              sample: {value: 23.0, source: "..."}
            d2h_gigabytes_per_second:
              description: Least bandwidth from GPU to host under load, pinned memory.
              type: dict
              sample: {value: 23.0, source: "..."}
gpu_positions:
  description: Position in RV(gpus) of each GPU, by its UUID and by its PCI bus id.
  returned: success
  type: dict
  sample:
    GPU-5f1d8a7e-3f0b-4a53-9c55-2f9f9b7a1c11: 0
    "0000:07:00.0": 0
unavailable_gpus:
  description: GPUs that the driver counts and that do not answer. Each is warned about.
  returned: success
  type: list
  elements: dict
  contains:
    index:
      description: NVML's index.
      type: int
      sample: 3
    uuid:
      description: UUID, if it could still be read.
      type: str
      sample: GPU-0e4b6c1a-5a38-4c0e-9b0d-1f1b8ad80d33
    pci_bus_id:
      description: PCI bus id, if it could still be read or if only one GPU of RV(pci_gpus) can be meant.
      type: str
      sample: "0000:4e:00.0"
    reason:
      description: The same values as RV(reason).
      type: str
      sample: gpu_lost
    nvml_code:
      description: NVML's error code.
      type: int
      sample: 15
    msg:
      description: The error in full, and what to do.
      type: str
      sample: "nvmlDeviceGetHandleByIndex failed for GPU 3: GPU is lost (NVML error 15). ..."
topology:
  description:
    - How each pair of the selected GPUs is joined. Empty unless O(gather) has V(topology).
  returned: success
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
    level:
      description:
        - As C(nvidia-smi topo -m) has it - C(NV) and the number of active NVLinks between the two, else
          RV(topology[].pcie_level).
      type: str
      sample: NV12
    pcie_level:
      description:
        - The nearest thing that both hang on - V(INT) same board, V(PIX) one PCIe switch, V(PXB) several PCIe switches,
          V(PHB) a PCIe host bridge, V(NODE) a NUMA node, V(SYS) the system.
      type: str
      sample: PXB
    nvlink_count:
      description:
        - Active NVLinks between the two. With NVSwitches these are the links of each to the switches, and they count
          only when RV(topology[].p2p.nvlink) is V(ok), since only this proves that the switches join the two.
      type: int
      sample: 12
    p2p:
      description:
        - Whether each can reach the other's memory - V(ok), V(chipset_not_supported), V(gpu_not_supported),
          V(topology_not_supported), V(disabled_by_regkey), V(not_supported) or V(unknown).
      type: dict
      contains:
        read:
          description: Reading.
          type: str
          sample: ok
        write:
          description: Writing.
          type: str
          sample: ok
        nvlink:
          description: Over NVLink.
          type: str
          sample: ok
nvswitches:
  description: NVSwitches on the PCI bus, ordered by PCI bus id.
  returned: success
  type: list
  elements: dict
  contains: &pci_device
    pci_bus_id:
      description: PCI bus id as in sysfs.
      type: str
      sample: "0000:c4:00.0"
    vendor_id:
      description: Vendor id, hexadecimal.
      type: str
      sample: 10de
    device_id:
      description: Device id, hexadecimal.
      type: str
      sample: 1af1
    class_id:
      description: Base class and subclass, hexadecimal - V(0300) and V(0302) are GPUs, V(0680) are NVSwitches.
      type: str
      sample: "0680"
    driver:
      description: Kernel driver that holds the device.
      type: str
      sample: nvidia
system:
  description:
    - Board that carries the GPUs, such as V(hgx-a100-8gpu) for a DGX A100. V(null) for single cards, for boards that
      are not known, and where it cannot be told, as in virtual machines that do not see their NVSwitches, or without
      NVSwitches when the links were not read (O(gather)).
  returned: success
  type: str
  sample: hgx-a100-8gpu
pci_gpu_count:
  description: How many NVIDIA GPUs are on the PCI bus, whether a driver sees them or not.
  returned: always
  type: int
  sample: 8
pci_gpus:
  description: NVIDIA GPUs on the PCI bus, ordered by PCI bus id.
  returned: always
  type: list
  elements: dict
  contains: *pci_device
missing_from_nvml:
  description: PCI bus ids of GPUs that are on the bus and that NVML could not give a handle for.
  returned: success
  type: list
  elements: str
  sample: []
reason:
  description:
    - Why it failed - V(python_library_missing), V(library_missing), V(driver_not_loaded), V(version_mismatch),
      V(no_permission), V(gpu_lost), V(reset_required), V(insufficient_power), V(irq_issue), V(corrupted_inforom),
      V(gpu_not_found) and V(invalid_selector) (both about O(gpus)), V(invalid_sysfs_root), V(invalid_expectations) or
      V(unknown).
  returned: failure
  type: str
  sample: driver_not_loaded
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
path:
  description: Where O(expectations) is wrong.
  returned: failure about O(expectations)
  type: str
  sample: expectations.skus.h200-sxm5-141gb.pcie_width
selector:
  description: The element of O(gpus) that is wrong.
  returned: failure about O(gpus)
  type: str
  sample: "9"
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_facts import GATHER, gpu_facts
from ansible_collections.baremetal.inference.plugins.module_utils._module import (
    gpu_argument_spec,
    run_gpu_module,
)


def run(params: t.Mapping[str, t.Any], *, check_mode: bool, warn: t.Callable[[str], None]) -> dict[str, t.Any]:
    """Read everything. Reading is the same in check mode."""
    return gpu_facts(params, warn)


def main() -> None:
    module = AnsibleModule(
        argument_spec=gpu_argument_spec(
            gather={"type": "list", "elements": "str", "choices": GATHER, "default": GATHER},
            expectations={"type": "dict"},
        ),
        supports_check_mode=True,
    )
    run_gpu_module(module, run)


if __name__ == "__main__":
    main()
