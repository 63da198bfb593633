# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""Checks of what NVML says of each GPU by itself: memory errors, power and heat, MIG. Pure.

A fact that a GPU does not have (None) is never held against it, and limits are those that the card itself reports.
"""

from __future__ import annotations

import typing as t

from ansible_collections.baremetal.inference.plugins.module_utils._power import ROUNDING_WATTS
from ansible_collections.baremetal.inference.plugins.module_utils._preflight import (
    FAIL,
    INFO,
    PASS,
    SKIPPED,
    WARN,
    Check,
    Subject,
    listed,
)
from ansible_collections.baremetal.inference.plugins.module_utils._preflight_driver import subject

Gpu = t.Mapping[str, t.Any]

# Reasons for low clocks that are a fault of cooling or power supply, gravest first. The rest is how a GPU works:
# idle, at its power limit, at clocks that somebody asked for. (nvml.h, nvmlClocksEventReasons)
_THROTTLE: t.Mapping[str, tuple[str, str]] = {
    "hw_thermal_slowdown": (
        FAIL,
        "Look at the fans, the air flow and the air's temperature at once: the GPU is so hot that it halves its clocks.",
    ),
    "hw_power_brake_slowdown": (
        FAIL,
        "Look at the power supplies and the BMC's power capping: the system tells the GPU to draw less at once.",
    ),
    "hw_slowdown": (
        WARN,
        "Look at the temperature, the power cables and the power supplies: the hardware holds the clocks down.",
    ),
    "sw_thermal_slowdown": (
        WARN,
        "Look at the fans, the air flow and the air's temperature: the driver lowers clocks to keep the GPU cool.",
    ),
}


def gpu_checks(gpus: t.Sequence[Gpu], *, ecc: str) -> list[Check]:
    """``ecc`` is what the user wants: enabled, disabled or any."""
    checks: list[Check] = []
    for gpu in gpus:
        on = subject(gpu)
        checks += [_ecc_mode(gpu, ecc, on), *_ecc_pending(gpu, on), *_ecc_errors(gpu, on), *_rows(gpu, on)]
        checks += [_limit(gpu, on), *_enforced(gpu, on), _throttle(gpu, on), _temperature(gpu, on), _mig(gpu, on)]
    return checks


def _name(gpu: Gpu) -> str:
    """How nvidia-smi -i is told which GPU."""
    return str(gpu["pci_bus_id"] or gpu["index"])


def _ecc_mode(gpu: Gpu, wanted: str, on: Subject) -> Check:
    name, title, state = "ecc.mode", "ECC", gpu["ecc"]
    expected = "either" if wanted == "any" else wanted
    if not state["supported"]:
        return Check(name, title, INFO, "this GPU has none", expected, on=on)
    if wanted in ("any", state["current"]):
        return Check(name, title, PASS if wanted != "any" else INFO, str(state["current"]), expected, on=on)
    if state["pending"] == wanted:
        # That it waits for a reboot is said by ecc.pending.
        return Check(name, title, INFO, f"{state['current']}, {wanted} after the next reboot", expected, on=on)
    number = 1 if wanted == "enabled" else 0
    fix = f"Run 'nvidia-smi --ecc-config={number} -i {_name(gpu)}' and reboot, or use the module ecc_state."
    return Check(name, title, FAIL, str(state["current"]), expected, fix, on)


def _ecc_pending(gpu: Gpu, on: Subject) -> list[Check]:
    state = gpu["ecc"]
    if not state["supported"] or state["pending"] is None:
        return []
    name, title, expected = "ecc.pending", "ECC after the next reboot", "as it is now"
    if state["pending"] == state["current"]:
        return [Check(name, title, PASS, str(state["pending"]), expected, on=on)]
    observed = f"{state['current']} now, {state['pending']} after the next reboot"
    return [
        Check(
            name, title, WARN, observed, expected, "Reboot the host when it is idle, so that the setting counts.", on=on
        )
    ]


def _ecc_errors(gpu: Gpu, on: Subject) -> list[Check]:
    checks = []
    volatile, aggregate = gpu["ecc"]["volatile"], gpu["ecc"]["aggregate"]
    if volatile["uncorrected"] is not None:
        name, title, expected = "ecc.uncorrected", "Uncorrected memory errors", "none since the driver was loaded"
        life = f", {aggregate['uncorrected']} in the GPU's life" if aggregate["uncorrected"] is not None else ""
        observed = f"{volatile['uncorrected']} since the driver was loaded{life}"
        if volatile["uncorrected"] == 0:
            checks.append(Check(name, title, PASS, observed, expected, on=on))
        else:
            fix = (
                f"Drain the host, stop what uses the GPU and run 'nvidia-smi --gpu-reset -i {_name(gpu)}', or reboot; when"
                " errors come back, have the GPU replaced."
            )
            checks.append(Check(name, title, FAIL, observed, expected, fix, on))
    if volatile["corrected"] is not None:
        life = f", {aggregate['corrected']} in the GPU's life" if aggregate["corrected"] is not None else ""
        observed = f"{volatile['corrected']} since the driver was loaded{life}"
        # They are corrected; how many are too many the GPU decides, and then replaces a row.
        verdict = INFO if volatile["corrected"] else PASS
        checks.append(Check("ecc.corrected", "Corrected memory errors", verdict, observed, "few", on=on))
    return checks


def _rows(gpu: Gpu, on: Subject) -> list[Check]:
    rows = gpu["remapped_rows"]
    if rows is None:
        return []
    name = "ecc.row_remap_failure"
    observed = "a row could not be replaced" if rows["failure"] else "none failed"
    fix = (
        "Drain the host and have the GPU replaced: it has no spare row left for the one that is bad (run the vendor's"
        " field diagnostics for the RMA)."
        if rows["failure"]
        else ""
    )
    checks = [
        Check(name, "Failed row replacements", FAIL if rows["failure"] else PASS, observed, "none failed", fix, on)
    ]
    name = "ecc.row_remap_pending"
    if rows["pending"]:
        # Programs stay clear of the bad row meanwhile, so this is no failure.
        fix = f"When the GPU is idle, run 'nvidia-smi --gpu-reset -i {_name(gpu)}', or reboot: that replaces the row."
        checks.append(
            Check(name, "Rows waiting for replacement", WARN, "at least one waits for a reset", "none", fix, on)
        )
    else:
        checks.append(Check(name, "Rows waiting for replacement", PASS, "none", "none", on=on))
    observed = f"{rows['correctable']} after corrected errors, {rows['uncorrectable']} after uncorrected ones"
    replaced = rows["correctable"] or rows["uncorrectable"]
    checks.append(Check("ecc.remapped_rows", "Replaced rows", INFO if replaced else PASS, observed, "few", on=on))
    return checks


def _watts(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g} W"


def _limit(gpu: Gpu, on: Subject) -> Check:
    name, title, power = "power.limit", "Power limit", gpu["power"]
    limit, low, high = power["limit_requested_watts"], power["limit_min_watts"], power["limit_max_watts"]
    default = power["limit_default_watts"]
    if limit is None:
        return Check(name, title, INFO, "this GPU has none that could be set", "any", on=on)
    if low is None or high is None:
        return Check(name, title, INFO, _watts(limit), "within the limits of the card, which it does not tell", on=on)
    expected = f"{_watts(low)} to {_watts(high)}"
    if not low - ROUNDING_WATTS <= limit <= high + ROUNDING_WATTS:
        fix = f"Set the default of {_watts(default)} with 'nvidia-smi -i {_name(gpu)} -pl {(default or high):g}'."
        return Check(name, title, WARN, _watts(limit), expected, fix, on)
    lowered = default is not None and abs(limit - default) >= ROUNDING_WATTS
    observed = f"{_watts(limit)}, default {_watts(default)}" if lowered else _watts(limit)
    return Check(name, title, INFO if lowered else PASS, observed, expected, on=on)


def _enforced(gpu: Gpu, on: Subject) -> list[Check]:
    power = gpu["power"]
    limit, enforced = power["limit_requested_watts"], power["limit_enforced_watts"]
    if limit is None or enforced is None:
        return []
    name, title, expected = "power.enforced", "Power limit in force", f"{_watts(limit)}, as set"
    if enforced >= limit - ROUNDING_WATTS:
        return [Check(name, title, PASS, _watts(enforced), expected, on=on)]
    return [
        Check(
            name,
            title,
            WARN,
            _watts(enforced),
            expected,
            "Look for a power cap in the BMC or the chassis manager: it holds the GPU below the limit that was set.",
            on,
        )
    ]


def throttle_verdict(reasons: t.Iterable[str]) -> tuple[str, str]:
    """The gravest of the reasons and what to do about it; pass when there is none to act on."""
    for reason, (verdict, fix) in _THROTTLE.items():
        if reason in reasons:
            return verdict, fix
    return PASS, ""


def _throttle(gpu: Gpu, on: Subject) -> Check:
    name, title, expected = "power.throttle", "What holds clocks down", "neither heat nor the power supply"
    reasons = gpu["clocks_event_reasons"]
    if reasons is None:
        return Check(name, title, INFO, "this GPU does not tell", expected, on=on)
    verdict, fix = throttle_verdict(reasons)
    return Check(name, title, verdict, listed(reasons) if reasons else "nothing", expected, fix, on)


def _temperature(gpu: Gpu, on: Subject) -> Check:
    name, title, heat = "power.temperature", "Temperature", gpu["temperature"]
    readings = []
    verdict = PASS
    for what, celsius, soft, hard in (
        ("GPU", heat["gpu_celsius"], heat["threshold_gpu_max_celsius"], heat["threshold_slowdown_celsius"]),
        ("memory", heat["memory_celsius"], heat["threshold_memory_max_celsius"], None),
    ):
        if celsius is None:
            continue
        readings.append(f"{what} {celsius} C")
        if hard is not None and celsius >= hard:
            verdict = FAIL
        elif soft is not None and celsius >= soft and verdict == PASS:
            verdict = WARN
    limits = [
        f"{what} below {celsius} C"
        for what, celsius in (
            ("GPU", heat["threshold_gpu_max_celsius"] or heat["threshold_slowdown_celsius"]),
            ("memory", heat["threshold_memory_max_celsius"]),
        )
        if celsius is not None
    ]
    expected = ", ".join(limits) or "below the card's thresholds, which it does not tell"
    if not readings:
        return Check(name, title, INFO, "this GPU does not tell", expected, on=on)
    if verdict == PASS:
        return Check(name, title, PASS if limits else INFO, ", ".join(readings), expected, on=on)
    fix = "Look at the fans, the air flow and the air's temperature; keep load off the GPU until it is cooler."
    return Check(name, title, verdict, ", ".join(readings), expected, fix, on)


def _mig(gpu: Gpu, on: Subject) -> Check:
    name, title, expected = "mig.mode", "MIG", "disabled, unless the GPU is split on purpose"
    mode = gpu["mig_mode"]
    if mode is None:
        return Check(name, title, SKIPPED, "this GPU has none", expected, on=on)
    if mode["current"] != mode["pending"]:
        return Check(
            name,
            title,
            WARN,
            f"{mode['current']} now, {mode['pending']} after the next reset",
            expected,
            f"Stop what uses the GPU and run 'nvidia-smi --gpu-reset -i {_name(gpu)}', or reboot, so that the setting counts.",
            on,
        )
    if mode["current"] == "disabled":
        return Check(name, title, PASS, "disabled", expected, on=on)
    return Check(
        name,
        title,
        WARN,
        str(mode["current"]),
        expected,
        f"If this GPU should serve one large model, run 'nvidia-smi -i {_name(gpu)} -mig 0': parts of a GPU have no NVLink"
        " and no peer access, so tensor parallelism does not work with them.",
        on,
    )
