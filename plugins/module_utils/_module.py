# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""What all GPU modules share: their common options and the one place where a failure becomes a failed result.

The options are documented in plugins/doc_fragments/_gpus.py; keep both in step.
"""

from __future__ import annotations

import typing as t
from dataclasses import asdict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_errors import GpuFailure
from ansible_collections.baremetal.inference.plugins.module_utils._pci import PciDevice, Sysfs, gpus_of

# Kernel drivers that keep the NVIDIA driver off a GPU, and what to do about each.
_OTHER_DRIVERS: t.Mapping[str, str] = {
    "nouveau": "blacklist it (options nouveau modeset=0, blacklist nouveau), rebuild the initramfs and reboot",
    "nova_core": "blacklist it, rebuild the initramfs and reboot",
    "vfio-pci": "it is set aside for a virtual machine; give it back to the host first",
}


def gpu_argument_spec(**own: t.Any) -> dict[str, t.Any]:
    """Options of every GPU module, and the module's own."""
    return {
        "gpus": {"type": "list", "elements": "str", "default": ["all"]},
        "sysfs_root": {"type": "path", "default": "/sys"},
        "pynvml_path": {"type": "path"},
        **own,
    }


class Run(t.Protocol):
    """What a module does, without Ansible: parameters in, result out."""

    def __call__(
        self, params: t.Mapping[str, t.Any], *, check_mode: bool, warn: t.Callable[[str], None]
    ) -> dict[str, t.Any]: ...


def run_gpu_module(module: AnsibleModule, run: Run) -> None:
    """Run, and leave: both ways out end the process."""
    try:
        result = run(module.params, check_mode=module.check_mode, warn=module.warn)
    except GpuFailure as failure:
        module.fail_json(**failed_result(failure, Sysfs(module.params["sysfs_root"])))
    module.exit_json(**result)


def failed_result(failure: GpuFailure, sysfs: Sysfs) -> dict[str, t.Any]:
    """The failure, and what the PCI bus says about it: that needs no driver."""
    gpus = gpus_of(sysfs.nvidia_devices())
    result = failure.as_result()
    if failure.reason in ("driver_not_loaded", "library_missing", "version_mismatch"):
        result["msg"] = f"{failure.msg} {explain(gpus, sysfs.module_version('nvidia'))}"
    return {
        **result,
        "pci_gpu_count": len(gpus),
        "pci_gpus": [asdict(gpu) for gpu in gpus],
        "kernel_module_version": sysfs.module_version("nvidia"),
    }


def explain(gpus: t.Sequence[PciDevice], kernel_module_version: str | None) -> str:
    """What the bus and the kernel know when NVML knows nothing."""
    if not gpus:
        return "The PCI bus has no NVIDIA GPU either (10de, class 0300 or 0302), so there is nothing to drive."
    parts = [f"The PCI bus has {len(gpus)} NVIDIA GPU(s)"]
    parts.append(
        f"the loaded nvidia kernel module is version {kernel_module_version}"
        if kernel_module_version
        else "no nvidia kernel module is loaded"
    )
    for driver, advice in _OTHER_DRIVERS.items():
        held = [gpu.pci_bus_id for gpu in gpus if gpu.driver == driver]
        if held:
            parts.append(f"{driver} holds {', '.join(held)}: {advice}")
    return "; ".join(parts) + "."
