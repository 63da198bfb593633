# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""Read, measure and judge the PCIe links of a host's GPUs: the body of pcie_linkspeed.

Every GPU is read, then every GPU measured, then all judged, and only then anything is said to have failed.
"""

from __future__ import annotations

import os
import typing as t
from dataclasses import dataclass, field, replace

from ansible_collections.baremetal.inference.plugins.module_utils._cuda import (
    MEBIBYTE,
    Bandwidth,
    CudaFailure,
    CudaTarget,
    measure_bandwidth,
)
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_errors import GpuFailure
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_model import UnavailableGpu, as_dict
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_select import (
    ALL,
    no_gpus,
    not_among_all,
    select_gpus,
)
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_skus import Catalog, Sku, override, sku_for
from ansible_collections.baremetal.inference.plugins.module_utils._nvml import (
    Device,
    Nvml,
    NvmlFailure,
    nvml_session,
    unavailable,
)
from ansible_collections.baremetal.inference.plugins.module_utils._pci import PciLocality, Sysfs, gpus_of
from ansible_collections.baremetal.inference.plugins.module_utils._pci_slots import Slot, Slots, path_to
from ansible_collections.baremetal.inference.plugins.module_utils._pcie import (
    BELOW,
    OK,
    UNPROVEN,
    Judgement,
    Link,
    Port,
    Problem,
    Reading,
    Wanted,
    expected_generation,
    expected_width,
    judge,
)

# What is wrong with the host is wrong with each of its GPUs: the others need not be tried.
_HOST_WIDE = ("library_missing", "stub_library", "system_not_ready", "version_mismatch", "compat_not_supported", "mps")
_SEVERITY = (OK, UNPROVEN, BELOW)


@dataclass
class _Gpu:
    """One GPU on its way through the module."""

    device: Device
    name: str | None
    sku: Sku | None
    locality: PciLocality
    ports: list[str]
    slot: Slot | None
    mig: bool
    link: Link
    replay_count: int | None
    bandwidth: Bandwidth | None = None
    failure: GpuFailure | None = None
    wanted: Wanted | None = None
    judgement: Judgement | None = None
    readings: list[Reading] = field(default_factory=list)

    def place(self) -> str:
        """How texts name it, and where a person finds it."""
        if self.slot is not None:
            return f"{self.device.identity.label()} in slot '{self.slot.name}'"
        if not self.ports:
            return self.device.identity.label()
        return f"{self.device.identity.label()} below {' > '.join(reversed(self.ports))} (no slot has a name there)"


def check_links(params: t.Mapping[str, t.Any], warn: t.Callable[[str], None]) -> dict[str, t.Any]:
    """The result of pcie_linkspeed. Raises GpuFailure, with all results in it, when a link is not as it should be."""
    _check_options(params)
    catalog = override(params["expectations"])
    sysfs = Sysfs(params["sysfs_root"])
    slots = Slots(params["sysfs_root"])
    with nvml_session(params["pynvml_path"]) as nvml:
        devices, lost = _selected(nvml, params, sysfs, warn)
        gpus: list[_Gpu] = []
        for device in devices:
            try:
                gpus.append(_read(device, sysfs, slots, catalog))
            except NvmlFailure as failure:
                lost.append(unavailable(device.identity, failure))
        if params["measure"] == "load":
            _measure_all(gpus, sysfs, params)
    for gpu in gpus:
        gpu.wanted = _wanted(gpu, params)
        gpu.judgement = _with_failure(judge(gpu.link, gpu.wanted), gpu.failure)
    return _outcome(gpus, lost, params, warn)


def _check_options(params: t.Mapping[str, t.Any]) -> None:
    if not os.path.isdir(params["sysfs_root"]):
        raise GpuFailure(
            f"sysfs_root: '{params['sysfs_root']}' is not a directory on this host. Leave the option out for /sys.",
            reason="invalid_sysfs_root",
        )
    limits = {
        "rounds": (1, 10000),
        "buffer_mebibytes": (1, 4096),
        "timeout_seconds": (1, 3600),
        "host_to_device_min_gb_per_s": (0, 10000),
        "device_to_host_min_gb_per_s": (0, 10000),
        "max_replays": (0, 2**31 - 1),
    }
    for name, (least, most) in limits.items():
        value = params[name]
        if value is not None and not least <= value <= most:
            raise GpuFailure(f"{name}: {value} is not within {least} and {most}.", reason="invalid_option")
    for name in ("host_to_device_min_gb_per_s", "device_to_host_min_gb_per_s", "max_replays"):
        if params[name] is not None and params["measure"] != "load":
            raise GpuFailure(
                f"{name}: {params[name]} asks for something that only measure: load can see, and measure is"
                f" {params['measure']}. Add measure: load, or leave {name} out.",
                reason="invalid_option",
            )


def _selected(
    nvml: Nvml, params: t.Mapping[str, t.Any], sysfs: Sysfs, warn: t.Callable[[str], None]
) -> tuple[list[Device], list[UnavailableGpu]]:
    """The GPUs that are meant: those that answer, and, among "all", those that do not."""
    devices, silent = nvml.devices()
    identities = [device.identity for device in devices]
    chosen = {gpu.index for gpu in select_gpus(params["gpus"], identities, silent)}
    everything = any(str(selector).strip().lower() == ALL for selector in params["gpus"])
    missing = [
        gpu.pci_bus_id
        for gpu in gpus_of(sysfs.nvidia_devices())
        if gpu.pci_bus_id not in {identity.pci_bus_id for identity in identities}
    ]
    if not chosen and not silent:
        raise no_gpus()
    if everything and len(missing) > len(silent):
        warn(not_among_all(len(devices) + len(silent), missing))
    return [device for device in devices if device.identity.index in chosen], list(silent) if everything else []


def _read(device: Device, sysfs: Sysfs, slots: Slots, catalog: Catalog) -> _Gpu:
    bus_id = device.identity.pci_bus_id
    ports = path_to(sysfs, bus_id) if bus_id else []
    product, subsystem_vendor, subsystem_product = device.pci_ids()[1:]
    name = device.text("nvmlDeviceGetName")
    mig = device.mig_mode()
    return _Gpu(
        device=device,
        name=name,
        sku=sku_for(product, f"{subsystem_vendor}:{subsystem_product}" if subsystem_vendor else None, name, catalog),
        locality=sysfs.locality(bus_id) if bus_id else PciLocality(numa_node=None, local_cpulist=None),
        ports=ports,
        slot=slots.slot_of(bus_id, ports) if bus_id else None,
        mig=mig is not None and mig.current == "enabled",
        link=Link(
            generation_gpu_max=device.number("nvmlDeviceGetGpuMaxPcieLinkGeneration"),
            generation_max=device.number("nvmlDeviceGetMaxPcieLinkGeneration"),
            width_max=device.number("nvmlDeviceGetMaxPcieLinkWidth"),
            idle=_reading(device, sysfs, ports),
            loaded=None,
            host_to_device_gb_per_s=None,
            device_to_host_gb_per_s=None,
            replays=None,
            path=_path(sysfs, ports),
        ),
        replay_count=device.number("nvmlDeviceGetPcieReplayCounter"),
    )


def _reading(device: Device, sysfs: Sysfs, ports: t.Sequence[str]) -> Reading:
    bus_id = device.identity.pci_bus_id
    reading = Reading(
        generation=device.number("nvmlDeviceGetCurrPcieLinkGeneration"),
        width=device.number("nvmlDeviceGetCurrPcieLinkWidth"),
        gpu=sysfs.link(bus_id) if bus_id else None,
        upstream_port=sysfs.link(ports[0]) if ports else None,
    )
    return replace(reading, generation=reading.best_generation(), width=reading.best_width())


def _path(sysfs: Sysfs, ports: t.Sequence[str]) -> tuple[Port, ...]:
    return tuple(Port(port, sysfs.link(port)) for port in ports)


def _measure_all(gpus: t.Sequence[_Gpu], sysfs: Sysfs, params: t.Mapping[str, t.Any]) -> None:
    host_wide: CudaFailure | None = None
    for gpu in gpus:
        try:
            if host_wide is not None:
                raise host_wide
            _refuse(gpu)
            _measure(gpu, sysfs, params)
        except GpuFailure as failure:
            gpu.failure = failure
            if isinstance(failure, CudaFailure) and failure.reason in _HOST_WIDE:
                host_wide = failure


def _refuse(gpu: _Gpu) -> None:
    if gpu.mig:
        raise CudaFailure(
            f"{gpu.device.identity.label()} is in MIG mode, in which CUDA shows parts of it only.",
            reason="mig_enabled",
            advice="Measure it before MIG is enabled, or read its link with measure: none.",
        )
    processes = [process for process in gpu.device.processes() or () if process.type != "graphics"]
    if processes:
        listed = ", ".join(f"{process.pid} ({process.name or 'unknown'})" for process in processes)
        raise CudaFailure(
            f"{gpu.device.identity.label()} is in use by process {listed}: what it copies would be missing from the"
            " measurement, and what is measured from its own speed.",
            reason="gpu_in_use",
            advice="Stop these, or read its link with measure: none.",
        )


def _measure(gpu: _Gpu, sysfs: Sysfs, params: t.Mapping[str, t.Any]) -> None:
    identity = gpu.device.identity
    target = CudaTarget(
        label=identity.label(),
        uuid=identity.uuid,
        pci_bus_id=identity.pci_bus_id,
        cpulist=gpu.locality.local_cpulist,
    )
    paths: list[tuple[Port, ...]] = []

    def sample() -> None:
        gpu.readings.append(_reading(gpu.device, sysfs, gpu.ports))
        paths.append(_path(sysfs, gpu.ports))

    gpu.bandwidth = measure_bandwidth(
        target,
        sample,
        buffer_bytes=params["buffer_mebibytes"] * MEBIBYTE,
        rounds=params["rounds"],
        timeout_seconds=params["timeout_seconds"],
    )
    before, gpu.replay_count = gpu.replay_count, gpu.device.number("nvmlDeviceGetPcieReplayCounter")
    gpu.link = replace(
        gpu.link,
        loaded=gpu.readings[-1],
        host_to_device_gb_per_s=gpu.bandwidth.host_to_device.best_gb_per_s,
        device_to_host_gb_per_s=gpu.bandwidth.device_to_host.best_gb_per_s,
        replays=None if before is None or gpu.replay_count is None else gpu.replay_count - before,
        path=paths[-1],
    )


def _wanted(gpu: _Gpu, params: t.Mapping[str, t.Any]) -> Wanted:
    generation = None if params["generation"] == "max" else int(params["generation"])
    width = None if params["width"] == "max" else int(params["width"])
    wanted = Wanted(generation, width, None, None, params["max_replays"])
    host_to_device, device_to_host = (
        params["host_to_device_min_gb_per_s"],
        params["device_to_host_min_gb_per_s"],
    )
    sku = gpu.sku
    # What is known of a kind of GPU is of its full link.
    full = sku is not None and (
        (sku.pcie_generation.value, sku.pcie_width.value)
        == (expected_generation(gpu.link, wanted), expected_width(gpu.link, wanted))
    )
    if params["measure"] == "load" and sku is not None and full:
        host_to_device = sku.h2d_gigabytes_per_second.value if host_to_device is None else host_to_device
        device_to_host = sku.d2h_gigabytes_per_second.value if device_to_host is None else device_to_host
    return replace(
        wanted, host_to_device_gb_per_s=host_to_device or None, device_to_host_gb_per_s=device_to_host or None
    )


def _with_failure(judgement: Judgement, failure: GpuFailure | None) -> Judgement:
    if failure is None:
        return judgement
    observed, fix = (failure.what, failure.advice) if isinstance(failure, CudaFailure) else (failure.msg, "")
    # What an idle link did not prove, the load was to prove; why it did not is the one thing to say of it.
    others = tuple(problem for problem in judgement.problems if problem.verdict == BELOW)
    problem = Problem("measurement", UNPROVEN, observed, "a measurement under load", fix)
    return replace(judgement, verdict=BELOW if others else UNPROVEN, problems=(*others, problem))


def _result(gpu: _Gpu) -> dict[str, t.Any]:
    judgement, wanted = t.cast(Judgement, gpu.judgement), t.cast(Wanted, gpu.wanted)
    link = as_dict(gpu.link)
    return {
        **vars(gpu.device.identity),
        "name": gpu.name,
        "slot": gpu.slot.name if gpu.slot else None,
        "slot_source": gpu.slot.source if gpu.slot else None,
        "numa_node": gpu.locality.numa_node,
        "local_cpulist": gpu.locality.local_cpulist,
        "generation_max": gpu.link.generation_max,
        "generation_gpu_max": gpu.link.generation_gpu_max,
        "width_max": gpu.link.width_max,
        "idle": link["idle"],
        "load": link["loaded"],
        "path": link["path"],
        "replay_count": gpu.replay_count,
        "replays_under_load": gpu.link.replays,
        "measured": gpu.bandwidth is not None,
        "bandwidth": None if gpu.bandwidth is None else as_dict(gpu.bandwidth),
        "expected": {
            "generation": judgement.expected_generation,
            "width": judgement.expected_width,
            "host_to_device_gb_per_s": wanted.host_to_device_gb_per_s,
            "device_to_host_gb_per_s": wanted.device_to_host_gb_per_s,
            "replays": wanted.replays,
        },
        "verdict": judgement.verdict,
        "problems": [vars(problem) for problem in judgement.problems],
    }


def _outcome(
    gpus: t.Sequence[_Gpu],
    lost: t.Sequence[UnavailableGpu],
    params: t.Mapping[str, t.Any],
    warn: t.Callable[[str], None],
) -> dict[str, t.Any]:
    verdicts = [t.cast(Judgement, gpu.judgement).verdict for gpu in gpus] + [UNPROVEN for unused in lost]
    result = {
        "changed": False,
        "verdict": max(verdicts, key=_SEVERITY.index),
        "gpus": [_result(gpu) for gpu in gpus],
        "unavailable_gpus": [as_dict(gpu) for gpu in sorted(lost, key=lambda gpu: gpu.index)],
    }
    bad = [gpu for gpu in gpus if t.cast(Judgement, gpu.judgement).verdict != OK]
    if not lost and params["measure"] == "none" and result["verdict"] != BELOW:
        for gpu in bad:
            warn(_sentence(gpu))
        return result
    if not lost and not bad:
        return result
    texts = _texts(bad) + [gpu.msg for gpu in lost]
    fields = {key: value for key, value in result.items() if key != "changed"}
    first = next((gpu.failure for gpu in gpus if gpu.failure is not None), None)
    if result["verdict"] == BELOW:
        reason = "link_below"
    elif first is not None:
        reason = first.reason
        fields.update(first.fields)
    elif lost:
        reason = lost[0].reason
        fields["nvml_code"] = lost[0].nvml_code
    else:
        reason = "link_unproven"
    raise GpuFailure(
        f"{len(bad) + len(lost)} of {len(gpus) + len(lost)} GPU(s) did not show the PCIe link that is asked for."
        f" {' '.join(texts)}",
        reason=reason,
        **fields,
    )


def _texts(bad: t.Sequence[_Gpu]) -> list[str]:
    """One sentence for each GPU; what is wrong with the host is said once."""
    texts: dict[str, None] = {}
    for gpu in bad:
        failure = gpu.failure
        if isinstance(failure, CudaFailure) and failure.reason in _HOST_WIDE:
            texts[failure.msg] = None
        if failure is None or failure.reason not in _HOST_WIDE or t.cast(Judgement, gpu.judgement).verdict == BELOW:
            texts[_sentence(gpu)] = None
    return list(texts)


def _sentence(gpu: _Gpu) -> str:
    parts = []
    for problem in t.cast(Judgement, gpu.judgement).problems:
        if problem.check == "measurement":
            parts.append(f"not measured: {problem.observed} {problem.fix}".strip())
        else:
            parts.append(f"{problem.observed}, expected {problem.expected}. {problem.fix}".strip())
    return f"{gpu.place()}: {' '.join(parts)}"
