# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""What to do about ECC. Pure: no NVML, no Ansible."""

from __future__ import annotations

import typing as t

from ansible_collections.baremetal.inference.plugins.module_utils._gpu_errors import GpuFailure

if t.TYPE_CHECKING:
    from ansible_collections.baremetal.inference.plugins.module_utils._gpu_model import EccState, GpuIdentity


def ecc_change_needed(gpu: GpuIdentity, observed: EccState, wanted: str) -> bool:
    """Whether the mode of the next reboot has to be set.

    The mode in force does not count: it follows at the reboot. Raises GpuFailure for a GPU that cannot have ECC.
    """
    if not observed.supported:
        if wanted == "disabled":
            return False
        raise GpuFailure(
            f"state: {gpu.label()} has no ECC that could be enabled. Leave it out of gpus, or do without ECC on it."
            " Nothing was changed.",
            reason="ecc_not_supported",
            gpu=vars(gpu),
        )
    return observed.pending != wanted


def ecc_reboot_required(observed: EccState) -> bool:
    """Whether the GPU still runs in another mode than the one that is set."""
    return observed.supported and observed.current != observed.pending
