# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""Checks that need CUDA or compare with other judges: cuInit, NVLink, and how the GPUs bear load for some minutes.

The judging is pure. ``soak`` puts load on GPUs that nobody uses, and reads them meanwhile.
"""

from __future__ import annotations

import typing as t
from collections import Counter
from dataclasses import dataclass, field

from ansible_collections.baremetal.inference.plugins.module_utils._cuda import Burn, CudaInit, CudaTarget, burn
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_errors import GpuFailure
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_skus import Catalog
from ansible_collections.baremetal.inference.plugins.module_utils._nvlink import Finding, judge
from ansible_collections.baremetal.inference.plugins.module_utils._nvml import Device, NvmlFailure, nvml_session
from ansible_collections.baremetal.inference.plugins.module_utils._preflight import (
    FAIL,
    INFO,
    PASS,
    SKIPPED,
    UNKNOWN,
    WARN,
    Check,
    Subject,
    listed,
    worst,
)
from ansible_collections.baremetal.inference.plugins.module_utils._preflight_driver import subject
from ansible_collections.baremetal.inference.plugins.module_utils._preflight_gpu import throttle_verdict
from ansible_collections.baremetal.inference.plugins.module_utils._preflight_log import LogEvent

Gpu = t.Mapping[str, t.Any]

# What the judge of NVLink calls healthy is a pass here. Its other findings (board, Fabric Manager, lost GPUs, recovery)
# are among the driver's checks.
_VERDICTS: t.Mapping[str, str] = {"healthy": PASS, "warning": WARN, "unknown": UNKNOWN, "unhealthy": FAIL}
_NVLINK_TITLES: t.Mapping[str, str] = {
    "links": "NVLinks",
    "speed": "Speed of the NVLinks",
    "counters": "Error counters of the NVLinks",
    "pair": "NVLink between two GPUs",
}
_LOOK_IN_LOG = "Look at the NVRM and Xid lines of that time in the kernel log ('journalctl -k -g NVRM')."
SAMPLE_SECONDS = 5.0


def nvlink_checks(facts: t.Mapping[str, t.Any], catalog: Catalog) -> list[Check]:
    return [_nvlink(finding) for finding in judge(facts, catalog) if finding.check in _NVLINK_TITLES]


def _nvlink(finding: Finding) -> Check:
    verdict = _VERDICTS[finding.verdict]
    return Check(
        f"nvlink.{finding.check}",
        _NVLINK_TITLES[finding.check],
        verdict,
        finding.observed,
        finding.expected,
        finding.fix if verdict != PASS else "",
        Subject(finding.subject, finding.gpu),
    )


def cuda_checks(init: CudaInit | None, gpus: t.Sequence[Gpu]) -> list[Check]:
    """``init`` is None when it was not tried, as there is no driver to try it with."""
    name, title, expected = "cuda.init", "CUDA initialises", "cuInit answers 0"
    if init is None:
        return [Check(name, title, SKIPPED, "not tried: no GPU answers the driver", expected)]
    if not init.ok:
        return [Check(name, title, FAIL, init.msg, expected, init.advice or _LOOK_IN_LOG)]
    return [Check(name, title, PASS, init.msg.rstrip("."), expected), _devices(init, gpus)]


def _devices(init: CudaInit, gpus: t.Sequence[Gpu]) -> Check:
    name, title, expected = "cuda.devices", "GPUs that CUDA shows", "all that NVML has"
    if not gpus:
        return Check(name, title, INFO, f"{len(init.devices)} device(s); NVML could not be asked", expected)
    shown = {key for device in init.devices for key in (device.uuid, device.pci_bus_id) if key}
    hidden = [gpu for gpu in gpus if gpu["uuid"] not in shown and gpu["pci_bus_id"] not in shown]
    observed = f"{len(init.devices)} device(s)"
    if not hidden:
        return Check(name, title, PASS, observed, expected)
    observed += f"; not shown: {listed(gpu['pci_bus_id'] or gpu['uuid'] for gpu in hidden)}"
    if any((gpu["mig_mode"] or {}).get("current") == "enabled" for gpu in gpus):
        return Check(name, title, INFO, f"{observed}; with MIG, CUDA shows instances instead", expected)
    return Check(
        name,
        title,
        FAIL,
        observed,
        expected,
        "Look at the device nodes and the compute mode of these GPUs ('nvidia-smi -q -d COMPUTE'), and at the NVRM lines"
        " of the kernel log.",
    )


@dataclass
class Soaked:
    """What was read of one GPU under load."""

    gpu: Gpu
    sm_clock_mhz_min: int | None = None
    temperature_celsius_max: int | None = None
    power_watts_max: float | None = None
    reasons: set[str] = field(default_factory=set)
    samples: list[dict[str, t.Any]] = field(default_factory=list)
    burn: Burn | None = None
    # Why there was no load on it.
    skipped: str | None = None
    failure: str | None = None

    def take(
        self, second: float, sm_mhz: int | None, celsius: int | None, watts: float | None, reasons: t.Iterable[str]
    ) -> None:
        if sm_mhz is not None:
            self.sm_clock_mhz_min = min(sm_mhz, self.sm_clock_mhz_min if self.sm_clock_mhz_min is not None else sm_mhz)
        if celsius is not None:
            self.temperature_celsius_max = max(celsius, self.temperature_celsius_max or celsius)
        if watts is not None:
            self.power_watts_max = max(watts, self.power_watts_max or watts)
        self.reasons.update(reasons)
        self.samples.append(
            {
                "seconds": round(second, 1),
                "pci_bus_id": self.gpu["pci_bus_id"],
                "power_watts": watts,
                "temperature_celsius": celsius,
                "sm_mhz": sm_mhz,
            }
        )


def soak(
    gpus: t.Sequence[Gpu], minutes: float, pynvml_path: str | None, monotonic: t.Callable[[], float]
) -> list[Soaked]:
    """Load on all the GPUs that no program uses, at once."""
    soaked = [Soaked(gpu) for gpu in gpus]
    try:
        _load(soaked, minutes, pynvml_path, monotonic)
    except GpuFailure as failure:
        # The driver went away meanwhile: that is what the load has shown.
        for one in soaked:
            one.failure = one.failure or failure.msg
    return soaked


def _load(
    soaked: t.Sequence[Soaked], minutes: float, pynvml_path: str | None, monotonic: t.Callable[[], float]
) -> None:
    with nvml_session(pynvml_path) as nvml:
        devices = {device.identity.uuid: device for device in nvml.devices()[0]}
        targets: list[CudaTarget] = []
        loaded: list[Soaked] = []
        for one in soaked:
            one.skipped = _why_not(one.gpu, devices)
            if one.skipped is None:
                loaded.append(one)
                targets.append(
                    CudaTarget(
                        label=f"GPU {one.gpu['index']} ({one.gpu['pci_bus_id']})",
                        uuid=one.gpu["uuid"],
                        pci_bus_id=one.gpu["pci_bus_id"],
                        cpulist=one.gpu["pci"]["local_cpulist"],
                    )
                )
        by_uuid = {one.gpu["uuid"]: one for one in loaded}
        started = monotonic()

        def sample(target: CudaTarget) -> None:
            one = by_uuid[target.uuid]
            _sample(devices[target.uuid], one, monotonic() - started)

        burns = burn(targets, minutes * 60.0, sample, sample_interval=SAMPLE_SECONDS) if targets else []
        for one, result in zip(loaded, burns):
            one.burn = result


def _why_not(gpu: Gpu, devices: t.Mapping[str | None, Device]) -> str | None:
    if gpu["uuid"] not in devices:
        return "the GPU does not answer any more"
    if (gpu["mig_mode"] or {}).get("current") == "enabled":
        return "MIG is enabled"
    users = sorted({process["pid"] for process in gpu["processes"] or () if process["type"] != "graphics"})
    return f"in use by process {listed(users, 4)}" if users else None


def _sample(device: Device, one: Soaked, second: float) -> None:
    device.tolerate_errors()
    try:
        power = device.number("nvmlDeviceGetPowerUsage")
        one.take(
            second,
            # Clock type 1: the streaming multiprocessors.
            device.number("nvmlDeviceGetClockInfo", 1),
            device.temperatures().gpu_celsius,
            None if power is None else power / 1000,
            device.clocks_event_reasons() or (),
        )
    except NvmlFailure as failure:
        # A GPU that is lost under load is the finding; the load on the others goes on.
        one.failure = failure.msg


def soak_checks(soaked: t.Sequence[Soaked], minutes: float, new_xids: t.Sequence[LogEvent]) -> list[Check]:
    """``new_xids`` are those that came during the load."""
    return [
        _soak(one, minutes, [event.number or 0 for event in new_xids if event.bus_id == one.gpu["pci_bus_id"]])
        for one in soaked
    ]


def _soak(one: Soaked, minutes: float, xids: t.Sequence[int]) -> Check:
    name, title, on = "power.soak", "Under load", subject(one.gpu)
    expected = f"{minutes:g} min of load without a fault, heat or Xid"
    if one.skipped is not None:
        return Check(name, title, SKIPPED, one.skipped, expected, on=on)
    failure = one.failure or (None if one.burn is None or one.burn.failure is None else one.burn.failure.msg)
    if failure is not None:
        return Check(name, title, FAIL, failure.split(". ", 1)[0].rstrip("."), expected, _LOOK_IN_LOG, on)
    threshold = one.gpu["temperature"]["threshold_gpu_max_celsius"]
    hot = threshold is not None and one.temperature_celsius_max is not None and one.temperature_celsius_max >= threshold
    held, held_fix = throttle_verdict(one.reasons)
    found: list[tuple[str, str]] = []
    if one.burn is not None and one.burn.wrong_results:
        found.append((FAIL, "Drain the host and have the GPU replaced: it miscalculates."))
    if xids:
        counted = Counter(xids)
        found.append((FAIL, f"Do what this report says of Xid {listed(sorted(counted))}."))
    if held != PASS:
        found.append((held, held_fix))
    if hot:
        found.append((WARN, "Look at the fans, the air flow and the air's temperature."))
    observed = _observed(one, xids)
    verdict = worst(entry[0] for entry in found)
    fix = next((text for weight, text in found if weight == verdict), "")
    return Check(name, title, verdict, observed, expected, fix, on)


def _observed(one: Soaked, xids: t.Sequence[int]) -> str:
    parts = []
    if one.burn is not None and one.burn.teraflops is not None:
        parts.append(f"{one.burn.teraflops:g} TFLOP/s ({one.burn.kernel})")
    if one.power_watts_max is not None:
        parts.append(f"up to {one.power_watts_max:.0f} W")
    if one.temperature_celsius_max is not None:
        parts.append(f"up to {one.temperature_celsius_max} C")
    if one.sm_clock_mhz_min is not None:
        parts.append(f"at least {one.sm_clock_mhz_min} MHz")
    reasons = sorted(one.reasons - {"gpu_idle"})
    parts.append(f"held down by {listed(reasons)}" if reasons else "clocks held down by nothing")
    if one.burn is not None and one.burn.wrong_results:
        parts.append(f"{one.burn.wrong_results} wrong results")
    if xids:
        parts.append(f"Xid {listed(xids)}")
    return ", ".join(parts)


def soak_result(soaked: t.Sequence[Soaked], minutes: float, new_xids: t.Sequence[LogEvent]) -> dict[str, t.Any]:
    """The readings, as the report draws them."""
    moments: dict[float, list[dict[str, t.Any]]] = {}
    for one in soaked:
        for sample in one.samples:
            # GPUs are read one after the other; those of one round make one moment.
            moment = round(sample["seconds"] / SAMPLE_SECONDS) * SAMPLE_SECONDS
            moments.setdefault(moment, []).append({key: value for key, value in sample.items() if key != "seconds"})
    return {
        "minutes": minutes,
        "gpus": [
            {
                "pci_bus_id": one.gpu["pci_bus_id"],
                "skipped": one.skipped,
                "sm_clock_mhz_min": one.sm_clock_mhz_min,
                "temperature_celsius_max": one.temperature_celsius_max,
                "power_watts_max": one.power_watts_max,
                "teraflops": None if one.burn is None else one.burn.teraflops,
                "wrong_results": None if one.burn is None else one.burn.wrong_results,
                "reasons": sorted(one.reasons),
            }
            for one in soaked
        ],
        "samples": [{"seconds": moment, "gpus": moments[moment]} for moment in sorted(moments)],
        "new_xids": [f"{event.bus_id}: {event.number}" for event in new_xids],
    }
