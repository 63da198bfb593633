# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.baremetal.inference.plugins.module_utils._ecc import ecc_change_needed, ecc_reboot_required
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_errors import GpuFailure
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_model import EccErrors, EccState, GpuIdentity

GPU = GpuIdentity(index=3, uuid="GPU-3", pci_bus_id="0000:4e:00.0")
NONE = EccErrors(corrected=None, uncorrected=None)


def ecc(current: str | None, pending: str | None) -> EccState:
    return EccState(
        supported=current is not None, current=current, pending=pending, default=current, volatile=NONE, aggregate=NONE
    )


@pytest.mark.parametrize(
    ("current", "pending", "wanted", "change", "reboot_before"),
    [
        ("enabled", "enabled", "enabled", False, False),
        ("enabled", "enabled", "disabled", True, False),
        # Set by an earlier run that was not followed by a reboot: nothing to do but that reboot.
        ("enabled", "disabled", "disabled", False, True),
        # Set by an earlier run, and wanted no more: the mode in force is right, and would be lost.
        ("enabled", "disabled", "enabled", True, True),
        ("disabled", "enabled", "enabled", False, True),
        ("disabled", "disabled", "enabled", True, False),
    ],
)
def test_the_mode_of_the_next_reboot_decides(
    current: str, pending: str, wanted: str, change: bool, reboot_before: bool
) -> None:
    assert ecc_change_needed(GPU, ecc(current, pending), wanted) is change
    assert ecc_reboot_required(ecc(current, pending)) is reboot_before


def test_without_ecc_disabled_is_true_already() -> None:
    assert ecc_change_needed(GPU, ecc(None, None), "disabled") is False
    assert ecc_reboot_required(ecc(None, None)) is False


def test_without_ecc_enabled_is_refused_by_name() -> None:
    with pytest.raises(GpuFailure) as caught:
        ecc_change_needed(GPU, ecc(None, None), "enabled")
    assert caught.value.reason == "ecc_not_supported"
    assert "GPU 3 (0000:4e:00.0)" in caught.value.msg
