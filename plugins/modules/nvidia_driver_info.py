#!/usr/bin/python
# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_driver_info
short_description: Tell which NVIDIA driver a host has, who installed it, and whether its parts fit
version_added: 0.1.0
description:
  - Reads the loaded kernel module, the module files of the running and of the newest kernel, DKMS, the libraries, Fabric
    Manager, the persistence daemon, nouveau, Secure Boot, and the packages with what holds or upgrades them.
  - Says what does not fit (RV(mismatches)), whether only a reboot makes what is installed what runs
    (RV(reboot_required)), and what would leave the host without its driver after one (RV(reboot_blockers)).
  - Changes nothing. The programs that it runs only print (C(modinfo), C(dkms status), C(mokutil), C(systemctl show),
    C(dpkg-query), C(apt-cache policy), C(apt-config dump), C(rpm --query), C(dnf repoquery), C(nvidia-smi -h),
    C(nv-fabricmanager --version)).
  - Never fails because something is absent, NVML included. Only wrong options make it fail.
author:
  - The baremetal.inference contributors (@baremetal-inference)
extends_documentation_fragment:
  - baremetal.inference._attributes
  - baremetal.inference._attributes.read_only
options:
  cuda:
    description:
      - Whether to start CUDA too, in a process of its own, and count its devices.
    type: bool
    default: false
  cuda_timeout:
    description:
      - Seconds within which CUDA has to answer. Without persistence mode each GPU takes some.
    type: float
    default: 120
  holders:
    description:
      - Whether to list the processes that hold the driver's device nodes. They have to end before its modules can be
        loaded anew.
    type: bool
    default: false
  sysfs_root:
    description:
      - Where sysfs is mounted on the host.
    type: path
    default: /sys
  proc_root:
    description:
      - Where procfs is mounted on the host.
    type: path
    default: /proc
  root:
    description:
      - Folder that stands for C(/) where files are looked for, those below C(/boot), C(/etc), C(/lib/modules), C(/run),
        C(/usr) and C(/var). Programs are the host's own all the same.
    type: path
    default: /
  pynvml_path:
    description:
      - File C(pynvml.py) of C(nvidia-ml-py) on the host, for when the package is not installed there.
      - Normally left out. When a host lacks the package and the Python that runs Ansible has it, the task brings the
        file along by itself, for that one task.
    type: path
notes:
  - Run it as root. A user sees neither the keys that the kernel trusts nor, on many systems, the firmware's variables.
  - On RHEL and its relatives the origin of a package is what DNF noted when it installed it.
seealso:
  - module: baremetal.inference.gpu_info
  - module: baremetal.inference.gpu_preflight
requirements:
  - nvidia-ml-py (on the host, or for the Python that runs Ansible), for what NVML alone knows
"""

EXAMPLES = r"""
- name: Look at the driver
  baremetal.inference.nvidia_driver_info:
  become: true
  register: driver

- name: Print what does not fit, and what to do about it
  ansible.builtin.debug:
    msg: "{{ item.observed }} (expected: {{ item.expected }}) -> {{ item.fix }}"
  loop: "{{ driver.mismatches }}"
  loop_control:
    label: "{{ item.what }}"

- name: Stop unless packages of NVIDIA's repository own the driver, or nobody does
  ansible.builtin.assert:
    that: driver.owner in ['none', 'nvidia_repository']
    fail_msg: "The driver belongs to {{ driver.owner }}: {{ driver.owners[0].evidence }}"

- name: Reboot when the driver needs it, and nothing stands in the way
  ansible.builtin.reboot:
  become: true
  when: driver.reboot_required and not driver.reboot_blockers

- name: Prove the driver, CUDA included
  baremetal.inference.nvidia_driver_info:
    cuda: true
  become: true
  register: proof
  failed_when: not proof.consistent or not proof.cuda.ok or proof.nvml_gpu_count != proof.pci_gpu_count

- name: See what would have to end before the modules can be loaded anew
  baremetal.inference.nvidia_driver_info:
    holders: true
  become: true
  register: reload
"""

RETURN = r"""
owner:
  description:
    - Who installed the driver. V(none), V(nvidia_repository), V(ubuntu_archive), V(debian_archive), V(runfile),
      V(dgx_os), V(container) (a driver that a container brings, or that is mounted into this one), V(dkms_source)
      (sources in DKMS that belong to no package) or V(unknown).
    - When there are several, the one whose files count.
  returned: success
  type: str
  sample: nvidia_repository
owners:
  description: All who left a driver here. More than one is a mismatch of its own.
  returned: success
  type: list
  elements: dict
  contains:
    owner:
      description: As RV(owner).
      type: str
      sample: nvidia_repository
    evidence:
      description: What says so.
      type: str
      sample: 12 package(s), such as libnvidia-compute-580 580.159.04-0ubuntu1 (https://developer.download.nvidia.com/...)
branch:
  description: Branch of the installed driver. V(null) when there is none.
  returned: success
  type: str
  sample: "580"
consistent:
  description:
    - Whether the loaded module, the library and, where there are NVSwitches, Fabric Manager are there and of one version.
  returned: success
  type: bool
  sample: true
mismatches:
  description: What does not fit, the root of it first.
  returned: success
  type: list
  elements: dict
  contains:
    what:
      description:
        - Stable id. V(ownership), V(package_versions), V(running_kernel_module), V(newest_kernel_module),
          V(running_kernel_module_index), V(newest_kernel_module_index), V(running_kernel_module_version),
          V(newest_kernel_module_version), V(running_kernel_headers), V(newest_kernel_headers), V(loaded_module),
          V(module_not_loaded), V(module_signature), V(module_signer), V(nouveau), V(nouveau_blacklist),
          V(module_and_library), V(library), V(nvidia_smi), V(fabric_manager_missing), V(fabric_manager_version),
          V(fabric_manager_unit), V(persistenced), V(unattended_upgrades) or V(gpu_count).
      type: str
      sample: module_and_library
    observed:
      description: What was seen.
      type: str
      sample: module 580.95.05, library 580.159.04
    expected:
      description: What should be.
      type: str
      sample: of one version
    fix:
      description: What to do.
      type: str
      sample: Reboot, or stop everything that uses the GPUs, ...
    module:
      description: Version of the loaded module.
      type: str
      sample: 580.95.05
    library:
      description: Version of the library.
      type: str
      sample: 580.159.04
reboot_required:
  description:
    - Whether what is installed and what runs differ in a way that a reboot ends. A newer kernel alone is no reason, as
      long as the running one has its module.
  returned: success
  type: bool
  sample: true
reboot_reasons:
  description: Why. Empty when it is not required.
  returned: success
  type: list
  elements: str
  sample: [the loaded module is 580.95.05, the installed library 580.159.04]
reboot_blockers:
  description:
    - What to put right before any reboot, required or not. The host would come back without its driver.
  returned: success
  type: list
  elements: str
  sample: ["the kernel that boots next, 6.8.0-100-generic, has no nvidia module"]
reload_suffices:
  description: Whether to unload and load the modules would do instead of the reboot.
  returned: success
  type: bool
  sample: true
reason:
  description:
    - Why NVML could not be asked, as RV(baremetal.inference.gpu_info#module:reason) has it; V(null) when it could be.
    - V(invalid_option) when an option is wrong.
  returned: always
  type: str
  sample: version_mismatch
option:
  description: The option that is wrong.
  returned: failure
  type: str
  sample: root
nvml_message:
  description: The same in words. V(null) when NVML could be asked.
  returned: success
  type: str
  sample: "nvmlInitWithFlags failed: Driver/library version mismatch (NVML error 18). ..."
kernel_module:
  description: The kernel module nvidia as it is loaded.
  returned: success
  type: dict
  contains:
    loaded:
      description: Whether it is.
      type: bool
      sample: true
    version:
      description: Its version.
      type: str
      sample: 580.159.04
    flavour:
      description: V(open) or V(proprietary).
      type: str
      sample: open
    companions:
      description: Other modules of the driver that are loaded.
      type: list
      elements: str
      sample: [nvidia_modeset, nvidia_uvm]
kernels:
  description: The installed kernels and the running one, oldest first.
  returned: success
  type: list
  elements: dict
  contains:
    release:
      description: Its release.
      type: str
      sample: 6.8.0-60-generic
    running:
      description: Whether it runs.
      type: bool
      sample: true
    newest:
      description: Whether it is the newest, which boots next unless the boot loader was told otherwise.
      type: bool
      sample: true
    headers:
      description: Whether its headers are there, which DKMS builds with.
      type: bool
      sample: true
    dkms:
      description: DKMS's builds of the driver for it.
      type: list
      elements: str
      sample: ["nvidia/580.159.04: installed"]
    module:
      description: The nvidia module that it would load. V(null) when it has none.
      type: dict
      contains:
        path:
          description: Its file.
          type: str
          sample: /lib/modules/6.8.0-60-generic/updates/dkms/nvidia.ko.zst
        version:
          description: Its version.
          type: str
          sample: 580.159.04
        flavour:
          description: V(open) or V(proprietary).
          type: str
          sample: open
        indexed:
          description: Whether C(depmod) has listed it. C(modprobe) does not find it else.
          type: bool
          sample: true
        signed:
          description: Whether it has a signature.
          type: bool
          sample: true
        signer:
          description: Name of the key that signed it.
          type: str
          sample: DKMS module signing key
        signer_trusted:
          description: Whether the running kernel trusts that key. V(null) when that cannot be seen.
          type: bool
          sample: true
dkms:
  description: What DKMS has of the driver.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: DKMS's name for it.
      type: str
      sample: nvidia
    version:
      description: Version.
      type: str
      sample: 580.159.04
    kernel:
      description: Kernel that it was built for. V(null) when it was not built.
      type: str
      sample: 6.8.0-60-generic
    state:
      description: V(added), V(built) or V(installed), with DKMS's warnings behind it.
      type: str
      sample: installed
library:
  description: The driver's user-space part, told by the NVML library.
  returned: success
  type: dict
  contains:
    version:
      description: Its version as it states it, else as its file's name has it.
      type: str
      sample: 580.159.04
    nvml_version:
      description: Version as NVML writes it, with CUDA's number before it. V(null) when NVML could not be asked.
      type: str
      sample: 13.580.159.04
    path:
      description: The file that C(libnvidia-ml.so.1) leads to.
      type: str
      sample: /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.159.04
    file_version:
      description: Version in that file's name.
      type: str
      sample: 580.159.04
    file_versions:
      description: Versions of all such files, newest first. More than one is what an installer left behind.
      type: list
      elements: str
      sample: [580.159.04]
    package:
      description: The package that the file belongs to. V(null) when to none.
      type: str
      sample: libnvidia-compute-580
nvidia_smi_version:
  description: Version of C(nvidia-smi).
  returned: success
  type: str
  sample: 580.159.04
cuda_driver_version:
  description: Newest CUDA version that the driver can run, as NVML has it.
  returned: success
  type: str
  sample: "13.0"
gsp_firmware_version:
  description: Version of the firmware that runs on the GPUs. V(null) when there is none, or they differ.
  returned: success
  type: str
  sample: 580.159.04
fabric_manager:
  description: Fabric Manager.
  returned: success
  type: dict
  contains:
    needed:
      description: Whether there are NVSwitches on the PCI bus.
      type: bool
      sample: true
    version:
      description: Its version. V(null) when it is not installed.
      type: str
      sample: 580.159.04
    source:
      description: Whether the V(program) or its V(package) told the version.
      type: str
      sample: program
    unit:
      description: Whether its unit is there. V(null) where systemd cannot be asked.
      type: bool
      sample: true
    state:
      description: Such as V(active), V(inactive) or V(failed).
      type: str
      sample: active
    enabled:
      description: State of the unit's file, such as V(enabled), V(disabled) or V(static).
      type: str
      sample: enabled
    masked:
      description: Whether the unit is masked.
      type: bool
      sample: false
persistenced:
  description: The persistence daemon.
  returned: success
  type: dict
  contains:
    unit:
      description: As of RV(fabric_manager.unit).
      type: bool
      sample: true
    state:
      description: As of RV(fabric_manager.state).
      type: str
      sample: active
    enabled:
      description: As of RV(fabric_manager.enabled).
      type: str
      sample: enabled
    masked:
      description: As of RV(fabric_manager.masked).
      type: bool
      sample: false
nouveau:
  description: The kernel's own driver for NVIDIA GPUs.
  returned: success
  type: dict
  contains:
    loaded:
      description: Whether it is loaded.
      type: bool
      sample: false
    bound:
      description: PCI bus ids of the GPUs that it has.
      type: list
      elements: str
      sample: []
    blacklisted_by:
      description: Files and words of the kernel's command line that keep it from being loaded.
      type: list
      elements: str
      sample: [/usr/lib/modprobe.d/nvidia-graphics-drivers.conf]
secure_boot:
  description: What the machine asks of a module's signature.
  returned: success
  type: dict
  contains:
    enabled:
      description: Whether Secure Boot is on. V(null) without UEFI, or when it may not be read.
      type: bool
      sample: false
    enforced:
      description: Whether the running kernel refuses modules that are not signed. V(null) when it does not tell.
      type: bool
      sample: false
    enrolled_keys:
      description: Names of the keys that the machine's owner has enrolled. V(null) without C(mokutil) or UEFI.
      type: list
      elements: str
      sample: [DKMS module signing key]
    pending_keys:
      description: Names of the keys that wait to be confirmed on the console at the next boot.
      type: list
      elements: str
      sample: []
package_manager:
  description: V(dpkg), V(rpm) or V(null).
  returned: success
  type: str
  sample: dpkg
packages:
  description: Installed packages of the driver.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Name.
      type: str
      sample: libnvidia-compute-580
    version:
      description: Version of the package.
      type: str
      sample: 580.159.04-0ubuntu1
    driver_version:
      description: The driver's version in it. V(null) for packages that have the kernel's version.
      type: str
      sample: 580.159.04
    architecture:
      description: Architecture.
      type: str
      sample: amd64
    origin:
      description: One of RV(owner).
      type: str
      sample: nvidia_repository
    evidence:
      description: What says so.
      type: str
      sample: https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64  Packages
    held:
      description: Whether it is on hold, or locked to its version by DNF.
      type: bool
      sample: true
    pin:
      description: Version pattern that apt's preferences keep it to, of priority 1000 or more.
      type: str
      sample: 580.159.04-*
    candidate:
      description: What C(apt upgrade) would install. V(null) where apt is not used.
      type: str
      sample: 580.159.04-0ubuntu1
    fixed:
      description: Whether upgrades leave it alone, since it is held or pinned to one version of the driver.
      type: bool
      sample: true
unattended_upgrades:
  description: Upgrades that nobody starts.
  returned: success
  type: dict
  contains:
    kind:
      description: V(unattended-upgrades), V(dnf-automatic), or V(null) when there are none.
      type: str
      sample: unattended-upgrades
    enabled:
      description: Whether they run.
      type: bool
      sample: true
    excluded:
      description: Patterns of packages that they leave alone.
      type: list
      elements: str
      sample: [nvidia, libnvidia]
    may_upgrade:
      description: Packages of the driver that they may change.
      type: list
      elements: str
      sample: []
pci_gpu_count:
  description: How many NVIDIA GPUs are on the PCI bus.
  returned: success
  type: int
  sample: 8
nvml_gpu_count:
  description: How many GPUs answer through NVML. V(null) when it could not be asked.
  returned: success
  type: int
  sample: 8
nvswitch_count:
  description: How many NVSwitches are on the PCI bus.
  returned: success
  type: int
  sample: 6
cuda:
  description: How CUDA started. V(null) without O(cuda).
  returned: success
  type: dict
  contains:
    ok:
      description: Whether it did.
      type: bool
      sample: true
    code:
      description: What C(cuInit) answered. V(null) when it did not.
      type: int
      sample: 0
    name:
      description: Name of that code.
      type: str
      sample: CUDA_SUCCESS
    message:
      description: The same in words, and what to do.
      type: str
      sample: CUDA 13.0 initialised with 8 device(s) in 1.4 s.
    cuda_driver_version:
      description: CUDA version of the driver.
      type: str
      sample: "13.0"
    device_count:
      description: How many devices CUDA has. V(null) when it did not start.
      type: int
      sample: 8
    seconds:
      description: How long it took.
      type: float
      sample: 1.4
holders:
  description: Processes that hold the driver's device nodes. V(null) without O(holders), or when they cannot be seen.
  returned: success
  type: list
  elements: dict
  contains:
    pid:
      description: Its number.
      type: int
      sample: 4242
    program:
      description: Its program.
      type: str
      sample: /usr/bin/nvidia-persistenced
    name:
      description: The name that it gives itself.
      type: str
      sample: nvidia-persiste
    unit:
      description: The systemd unit that it belongs to.
      type: str
      sample: nvidia-persistenced.service
    kind:
      description: V(persistence_daemon), V(fabric_manager), V(exporter), V(display) or V(program).
      type: str
      sample: persistence_daemon
    nodes:
      description: The nodes below C(/dev) that it holds.
      type: list
      elements: str
      sample: [nvidia0, nvidiactl]
    stop:
      description: What ends it.
      type: str
      sample: systemctl stop nvidia-persistenced.service
holders_message:
  description: Why the holders cannot be seen. V(null) when they can, and without O(holders).
  returned: success
  type: str
  sample: Only root, and not root of a container, sees what all processes have open ...
"""

import os
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.baremetal.inference.plugins.module_utils._driver import System, driver_info
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_errors import GpuFailure


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

    return System(command=command, which=module.get_bin_path, root=os.geteuid() == 0)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "cuda": {"type": "bool", "default": False},
            "cuda_timeout": {"type": "float", "default": 120},
            "holders": {"type": "bool", "default": False},
            "sysfs_root": {"type": "path", "default": "/sys"},
            "proc_root": {"type": "path", "default": "/proc"},
            "root": {"type": "path", "default": "/"},
            "pynvml_path": {"type": "path"},
        },
        supports_check_mode=True,
    )
    try:
        result = driver_info(module.params, system_of(module))
    except GpuFailure as failure:
        module.fail_json(**failure.as_result())
    module.exit_json(**result)


if __name__ == "__main__":
    main()
