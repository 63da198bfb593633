# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The catalogue of Xid numbers."""

from __future__ import annotations

import pytest

from ansible_collections.baremetal.inference.plugins.module_utils._preflight import VERDICTS
from ansible_collections.baremetal.inference.plugins.module_utils._xid import SEVERITY, XIDS


def test_every_entry_is_whole() -> None:
    assert set(SEVERITY.values()) <= set(VERDICTS)
    for number, xid in XIDS.items():
        assert xid.number == number
        assert xid.bucket in SEVERITY
        action = xid.action("0000:07:00.0", "Node Reboot Required")
        assert action.endswith(".") and "{" not in action and action[0].isupper()
        assert xid.meaning == xid.meaning.strip() and not xid.meaning.endswith(".")


@pytest.mark.parametrize(
    ("severity", "numbers"),
    [
        # What NVIDIA's catalogue answers with RESET_GPU or RESTART_BM, or what asks for its support at once.
        ("fail", [46, 48, 62, 64, 79, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158]),
        ("warn", [74, 92, 94, *range(144, 151)]),
        # RESTART_APP and IGNORE: no fault of the host.
        ("info", [8, 13, 31, 32, 43, 45, 63, 69, 137]),
    ],
)
def test_severities(severity: str, numbers: list[int]) -> None:
    assert {number: SEVERITY[XIDS[number].bucket] for number in numbers} == dict.fromkeys(numbers, severity)


def test_the_gpu_is_named_where_it_is_reset() -> None:
    assert "nvidia-smi --gpu-reset -i 0000:07:00.0" in XIDS[95].action("0000:07:00.0")


def test_what_the_driver_asks_for_is_repeated() -> None:
    assert "Drain and Reset" in XIDS[154].action("0000:07:00.0", "Drain and Reset")
    assert "Xid 154" in XIDS[154].action("0000:07:00.0")
