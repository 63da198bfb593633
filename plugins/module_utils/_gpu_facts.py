# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""All facts of all GPUs of a host and of what is between them: what the module gpu_info returns."""

from __future__ import annotations

import os
import typing as t
from dataclasses import replace
from itertools import combinations

from ansible_collections.baremetal.inference.plugins.module_utils._gpu_errors import GpuFailure
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_model import (
    Gpu,
    PcieState,
    PciIds,
    TopologyPair,
    UnavailableGpu,
    UpstreamPort,
    as_dict,
    nvlinks_between,
    topology_level,
)
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_select import select_gpus
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_skus import (
    as_result,
    override,
    sku_of,
    system_of,
)
from ansible_collections.baremetal.inference.plugins.module_utils._nvml import (
    Device,
    Nvml,
    NvmlFailure,
    nvml_session,
    read_error,
    unavailable,
)
from ansible_collections.baremetal.inference.plugins.module_utils._pci import (
    PciDevice,
    Sysfs,
    gpus_of,
    nvswitches_of,
)

GATHER = ["nvlink", "topology", "processes"]


def read_gpu(device: Device, sysfs: Sysfs, gather: t.Collection[str]) -> Gpu:
    """All of one GPU. Facts that cannot be read are noted in the device; a lost GPU raises."""
    device.tolerate_errors()
    identity = device.identity
    bus_id = identity.pci_bus_id
    vendor, product, subsystem_vendor, subsystem_product = device.pci_ids()
    locality = sysfs.locality(bus_id) if bus_id else None
    port = sysfs.upstream_port(bus_id) if bus_id else None
    return Gpu(
        index=identity.index,
        uuid=identity.uuid,
        pci_bus_id=bus_id,
        minor_number=device.number("nvmlDeviceGetMinorNumber"),
        name=device.text("nvmlDeviceGetName"),
        serial=device.text("nvmlDeviceGetSerial"),
        board_part_number=device.text("nvmlDeviceGetBoardPartNumber"),
        vbios_version=device.text("nvmlDeviceGetVbiosVersion"),
        brand=device.brand(),
        architecture=device.architecture(),
        compute_capability=device.compute_capability(),
        persistence_mode=device.persistence_mode(),
        compute_mode=device.compute_mode(),
        performance_state=device.performance_state(),
        recovery_action=device.recovery_action(),
        mig_mode=device.mig_mode(),
        pci=PciIds(
            nvml_bus_id=device.nvml_bus_id(),
            vendor_id=vendor,
            device_id=product,
            subsystem_vendor_id=subsystem_vendor,
            subsystem_device_id=subsystem_product,
            numa_node=locality.numa_node if locality else None,
            local_cpulist=locality.local_cpulist if locality else None,
        ),
        pcie=PcieState(
            generation_current=device.number("nvmlDeviceGetCurrPcieLinkGeneration"),
            generation_max=device.number("nvmlDeviceGetMaxPcieLinkGeneration"),
            generation_gpu_max=device.number("nvmlDeviceGetGpuMaxPcieLinkGeneration"),
            width_current=device.number("nvmlDeviceGetCurrPcieLinkWidth"),
            width_max=device.number("nvmlDeviceGetMaxPcieLinkWidth"),
            replay_count=device.number("nvmlDeviceGetPcieReplayCounter"),
            link=sysfs.link(bus_id) if bus_id else None,
            upstream_port=UpstreamPort(pci_bus_id=port, link=sysfs.link(port)) if port else None,
        ),
        memory=device.memory(),
        bar1=device.bar1(),
        ecc=device.ecc(),
        remapped_rows=device.remapped_rows(),
        power=device.power(),
        temperature=device.temperatures(),
        utilization=device.utilization(),
        clocks=device.clocks(),
        clocks_event_reasons=device.clocks_event_reasons(),
        # The topology counts the links of each pair.
        nvlink=device.nvlink() if "nvlink" in gather or "topology" in gather else None,
        processes=device.processes() if "processes" in gather else None,
        read_errors=(),
    )


def read_pair(nvml: Nvml, a: tuple[Device, Gpu], b: tuple[Device, Gpu]) -> TopologyPair:
    pcie_level = nvml.topology_level(a[0], b[0])
    p2p = nvml.p2p_status(a[0], b[0])
    links = nvlinks_between(a[1].pci_bus_id, a[1].nvlink, b[1].nvlink, p2p.nvlink)
    return TopologyPair(
        a=a[1].pci_bus_id,
        b=b[1].pci_bus_id,
        level=topology_level(pcie_level, links),
        pcie_level=pcie_level,
        nvlink_count=links,
        p2p=p2p,
    )


def missing_from_nvml(on_bus: t.Sequence[PciDevice], seen: t.Collection[str | None]) -> list[str]:
    return [gpu.pci_bus_id for gpu in on_bus if gpu.pci_bus_id not in seen]


def locate(lost: t.Sequence[UnavailableGpu], missing: t.Sequence[str]) -> list[UnavailableGpu]:
    """Give the one GPU that did not say its bus id the one bus id that is left over."""
    nameless = [gpu for gpu in lost if gpu.pci_bus_id is None]
    left_over = [bus_id for bus_id in missing if bus_id not in {gpu.pci_bus_id for gpu in lost}]
    if len(nameless) != 1 or len(left_over) != 1:
        return list(lost)
    return [replace(gpu, pci_bus_id=left_over[0]) if gpu.pci_bus_id is None else gpu for gpu in lost]


def gpu_facts(params: t.Mapping[str, t.Any], warn: t.Callable[[str], None]) -> dict[str, t.Any]:
    """The whole result of gpu_info.

    ``params``: gpus, gather, sysfs_root, pynvml_path and expectations (may be left out), as that module has them.

    Raises GpuFailure where the driver cannot be asked. ``warn`` gets a text for each fact that could not be read.
    """
    if not os.path.isdir(params["sysfs_root"]):
        raise GpuFailure(
            f"sysfs_root: '{params['sysfs_root']}' is not a directory on this host. Leave the option out for /sys.",
            reason="invalid_sysfs_root",
        )
    catalog = override(params.get("expectations"))
    sysfs = Sysfs(params["sysfs_root"])
    nvidia_devices = sysfs.nvidia_devices()
    on_bus = gpus_of(nvidia_devices)
    gather = params["gather"]
    with nvml_session(params["pynvml_path"]) as nvml:
        versions = nvml.versions()
        devices, lost = nvml.devices()
        missing = missing_from_nvml(on_bus, {device.identity.pci_bus_id for device in devices})
        lost = locate(lost, missing)
        wanted = {gpu.index for gpu in select_gpus(params["gpus"], [device.identity for device in devices], lost)}
        read: list[tuple[Device, Gpu]] = []
        for device in devices:
            if device.identity.index not in wanted:
                continue
            try:
                read.append((device, read_gpu(device, sysfs, gather)))
            except NvmlFailure as failure:
                lost.append(unavailable(device.identity, failure))
        pairs = []
        for a, b in combinations(read, 2) if "topology" in gather else ():
            try:
                pairs.append(read_pair(nvml, a, b))
            except NvmlFailure as failure:
                # One of the two was lost since it was read: the other pairs still count.
                a[0].read_errors.append(read_error(failure))
        gpus = [
            replace(
                gpu,
                nvlink=gpu.nvlink if "nvlink" in gather else None,
                read_errors=tuple(device.read_errors),
            )
            for device, gpu in read
        ]
    for text in [gpu.msg for gpu in lost] + [error.msg for gpu in gpus for error in gpu.read_errors]:
        warn(text)
    facts: dict[str, t.Any] = {
        "changed": False,
        "driver_version": versions.driver_version,
        "nvml_version": versions.nvml_version,
        "cuda_driver_version": versions.cuda_driver_version,
        "kernel_module_version": sysfs.module_version("nvidia"),
        "gpu_count": len(devices) + len([gpu for gpu in lost if gpu.index not in {d.identity.index for d in devices}]),
        "gpus": [as_dict(gpu) for gpu in gpus],
        "gpu_positions": {
            key: position for position, gpu in enumerate(gpus) for key in (gpu.uuid, gpu.pci_bus_id) if key
        },
        "unavailable_gpus": [as_dict(gpu) for gpu in sorted(lost, key=lambda gpu: gpu.index)],
        "topology": [as_dict(pair) for pair in pairs],
        "nvswitches": [as_dict(switch) for switch in nvswitches_of(nvidia_devices)],
        "pci_gpu_count": len(on_bus),
        "pci_gpus": [as_dict(gpu) for gpu in on_bus],
        "missing_from_nvml": missing,
    }
    # Of what was read, not of what is shown: the far ends of the links are needed, shown or not.
    board = system_of({**facts, "gpus": [as_dict(gpu) for unused, gpu in read]}, catalog)
    for gpu in facts["gpus"]:
        gpu["expectations"] = as_result(sku_of(gpu, catalog))
    facts["system"] = board.id if board else None
    return facts
