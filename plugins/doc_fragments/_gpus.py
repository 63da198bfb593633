# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this doc fragment is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

from __future__ import annotations


class ModuleDocFragment:
    # Options of all GPU modules. They are declared in plugins/module_utils/_module.py; keep both in step.
    DOCUMENTATION = r"""
options:
  gpus:
    description:
      - Which GPUs to work on - V(all), or any of NVML's index, UUID and PCI bus id (the domain may be left out).
      - Put PCI bus ids in quotes. YAML reads C(0000:07:00.0) without them as a number.
      - A GPU that is named twice counts once. A selector that matches no GPU is an error, and nothing is done.
      - MIG instances cannot be selected, since what these modules handle belongs to the whole GPU.
    type: list
    elements: str
    default: [all]
  sysfs_root:
    description:
      - Where sysfs is mounted on the host.
    type: path
    default: /sys
  pynvml_path:
    description:
      - File C(pynvml.py) of C(nvidia-ml-py) on the host, for when the package is not installed there.
      - Normally left out. When a host lacks the package and the Python that runs Ansible has it, the task brings the
        file along by itself, for that one task.
    type: path
requirements:
  - NVIDIA driver (on the host)
  - nvidia-ml-py (on the host, or for the Python that runs Ansible)
"""
