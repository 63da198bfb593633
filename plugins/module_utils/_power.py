# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""Which power limit is meant, and whether the GPU allows it. Pure: no NVML, no Ansible.

A limit is never taken from a table of products: default, smallest and largest are what the card itself reports.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.baremetal.inference.plugins.module_utils._gpu_errors import GpuFailure

if t.TYPE_CHECKING:
    from ansible_collections.baremetal.inference.plugins.module_utils._gpu_model import GpuIdentity, PowerState

# NVML counts in milliwatts, people set whole watts. A difference below this is somebody's rounding, not another limit.
ROUNDING_WATTS = 0.5


@dataclass(frozen=True)
class WantedLimit:
    """Exactly one of the three is set. ``named`` is "default" or "max"."""

    watts: int | None = None
    percent: float | None = None
    named: str | None = None

    def __str__(self) -> str:
        if self.watts is not None:
            return f"watts: {self.watts}"
        if self.percent is not None:
            return f"percent: {self.percent:g}"
        return f"limit: {self.named}"


def same_limit(a: float | None, b: float | None) -> bool:
    return a is not None and b is not None and abs(a - b) < ROUNDING_WATTS


def wanted_watts(gpu: GpuIdentity, power: PowerState, wanted: WantedLimit) -> float:
    """The limit in watts on this GPU.

    Raises GpuFailure when the GPU has no limit that can be set, or when the limit is outside of what it allows.
    """
    smallest, largest, default = power.limit_min_watts, power.limit_max_watts, power.limit_default_watts
    if power.limit_requested_watts is None or smallest is None or largest is None:
        raise GpuFailure(
            f"{wanted}: {gpu.label()} reports no power limit that can be set"
            f" (limit {_shown(power.limit_requested_watts)}, smallest {_shown(smallest)}, largest {_shown(largest)})."
            " Leave it out of gpus. Nothing was changed.",
            reason="power_limit_not_supported",
            gpu=vars(gpu),
        )
    if wanted.watts is not None:
        limit = float(wanted.watts)
    elif wanted.named == "max":
        limit = largest
    elif default is None:
        raise GpuFailure(
            f"{wanted}: {gpu.label()} does not report its default power limit. Give watts, from {smallest:g} to"
            f" {largest:g}. Nothing was changed.",
            reason="power_limit_not_supported",
            gpu=vars(gpu),
        )
    elif wanted.percent is not None:
        # Whole watts, so that a driver that rounds and one that does not agree.
        limit = float(round(default * wanted.percent / 100))
    else:
        limit = default
    if not smallest <= limit <= largest:
        raise GpuFailure(
            f"{wanted} is {limit:g} W on {gpu.label()}, and the card allows {smallest:g} W to {largest:g} W (default"
            f" {_shown(default)}). Choose a limit within that. Nothing was changed.",
            reason="power_limit_out_of_range",
            gpu=vars(gpu),
            limit_min_watts=smallest,
            limit_max_watts=largest,
            limit_default_watts=default,
        )
    return limit


def enforced_below_requested(power: PowerState) -> bool:
    """Whether something else, as the BMC, holds the GPU below the limit that was asked for."""
    requested, enforced = power.limit_requested_watts, power.limit_enforced_watts
    return requested is not None and enforced is not None and requested - enforced >= ROUNDING_WATTS


def _shown(watts: float | None) -> str:
    return "not reported" if watts is None else f"{watts:g} W"
