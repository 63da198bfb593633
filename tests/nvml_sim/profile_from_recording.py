# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make profiles/h200-sxm-x2.json from the recordings of real cards.

    python3 profile_from_recording.py > profiles/h200-sxm-x2.json

The general recording holds what two H200 of one virtual machine answered; "answers" (record_answers.py) holds what
the general one lacks, from a machine with one H200 and the same driver.
"""

from __future__ import annotations

import json
import sys
import typing as t
from pathlib import Path

HERE = Path(__file__).resolve().parent
GENERAL = HERE / "recordings" / "nvml-h200x2-driver580.json"
ANSWERS = HERE / "recordings" / "nvml-h200-driver580-answers.json"

Json = t.Any

# Recorded getter -> state key, for getters of one value.
SCALARS = {
    "nvmlDeviceGetName": "name",
    "nvmlDeviceGetUUID": "uuid",
    "nvmlDeviceGetSerial": "serial",
    "nvmlDeviceGetVbiosVersion": "vbios_version",
    "nvmlDeviceGetBoardPartNumber": "board_part_number",
    "nvmlDeviceGetInforomImageVersion": "inforom/image_version",
    "nvmlDeviceGetInforomConfigurationChecksum": "inforom/checksum",
    "nvmlDeviceGetBrand": "brand",
    "nvmlDeviceGetArchitecture": "architecture",
    "nvmlDeviceGetMinorNumber": "minor_number",
    "nvmlDeviceGetBoardId": "board_id",
    "nvmlDeviceGetMultiGpuBoard": "multi_gpu_board",
    "nvmlDeviceGetModuleId": "module_id",
    "nvmlDeviceGetNumGpuCores": "num_cores",
    "nvmlDeviceGetBusType": "bus_type",
    "nvmlDeviceGetIrqNum": "irq",
    "nvmlDeviceGetPowerSource": "power_source",
    "nvmlDeviceGetAdaptiveClockInfoStatus": "adaptive_clocks",
    "nvmlDeviceGetDisplayMode": "display_mode",
    "nvmlDeviceGetDisplayActive": "display_active",
    "nvmlDeviceGetVirtualizationMode": "virtualization_mode",
    "nvmlDeviceGetSupportedEventTypes": "supported_event_types",
    "nvmlDeviceGetAddressingMode": "addressing_mode",
    "nvmlDeviceGetPdi": "pdi",
    "nvmlDeviceGetUnrepairableMemoryFlag_v1": "unrepairable_memory",
    "nvmlDeviceGetPersistenceMode": "persistence_mode",
    "nvmlDeviceGetComputeMode": "compute_mode",
    "nvmlDeviceGetPerformanceState": "performance_state",
    "nvmlDeviceGetMaxMigDeviceCount": "mig/max_devices",
    "nvmlDeviceGetMemoryBusWidth": "memory/bus_width",
    "nvmlDeviceGetCurrPcieLinkGeneration": "pci/current_link_generation",
    "nvmlDeviceGetMaxPcieLinkGeneration": "pci/max_link_generation",
    "nvmlDeviceGetGpuMaxPcieLinkGeneration": "pci/gpu_max_link_generation",
    "nvmlDeviceGetCurrPcieLinkWidth": "pci/current_link_width",
    "nvmlDeviceGetMaxPcieLinkWidth": "pci/max_link_width",
    "nvmlDeviceGetPcieSpeed": "pci/speed_mbps",
    "nvmlDeviceGetPcieLinkMaxSpeed": "pci/max_speed",
    "nvmlDeviceGetPcieReplayCounter": "pci/replay_counter",
    "nvmlDeviceGetPowerUsage": "power/usage",
    "nvmlDeviceGetPowerManagementMode": "power/management_mode",
    "nvmlDeviceGetPowerManagementLimit": "power/limit",
    "nvmlDeviceGetPowerManagementDefaultLimit": "power/default_limit",
    "nvmlDeviceGetTotalEnergyConsumption": "power/energy",
    "temp": "temperature/gpu",
    "nvmlDeviceGetMarginTemperature": "temperature/margin",
    "tempthr 0": "temperature/threshold/shutdown",
    "tempthr 1": "temperature/threshold/slowdown",
    "tempthr 2": "temperature/threshold/memory_max",
    "tempthr 3": "temperature/threshold/gpu_max",
    "clocks 0": "clocks/current/graphics",
    "clocks 1": "clocks/current/sm",
    "clocks 2": "clocks/current/memory",
    "maxclocks 0": "clocks/max/graphics",
    "maxclocks 1": "clocks/max/sm",
    "maxclocks 2": "clocks/max/memory",
    "nvmlDeviceGetCurrentClocksEventReasons": "clocks/event_reasons",
    "nvmlDeviceGetSupportedClocksEventReasons": "clocks/supported_event_reasons",
    "nvmlDeviceGetGspFirmwareVersion": "gsp/version",
}
# Recorded getter -> state keys, for getters of several values.
TUPLES = {
    "nvmlDeviceGetGspFirmwareMode": ("gsp/mode", "gsp/default_mode"),
    "nvmlDeviceGetPowerManagementLimitConstraints": ("power/min_limit", "power/max_limit"),
    "nvmlDeviceGetRemappedRows": (
        "remapped_rows/correctable",
        "remapped_rows/uncorrectable",
        "remapped_rows/pending",
        "remapped_rows/failure",
    ),
    "nvmlDeviceGetRepairStatus": ("repair/channel_pending", "repair/tpc_pending"),
    "nvmlDeviceGetEncoderUtilization": ("utilization/encoder", "utilization/sampling_period_us"),
    "nvmlDeviceGetDecoderUtilization": ("utilization/decoder", "utilization/sampling_period_us"),
    "nvmlDeviceGetJpgUtilization": ("utilization/jpeg", "utilization/sampling_period_us"),
    "nvmlDeviceGetOfaUtilization": ("utilization/ofa", "utilization/sampling_period_us"),
}
# Fields that the library takes from state keys of their own; src/fields.c has the whole table.
FIELD_KEYS = {
    "MEMORY_TEMP": "temperature/memory",
    "PCIE_REPLAY_ROLLOVER_COUNTER": "pci/replay_rollover_counter",
    "POWER_AVERAGE": "power/average",
    "POWER_INSTANT": "power/instant",
    "TEMPERATURE_SHUTDOWN_TLIMIT": "temperature/tlimit/shutdown",
    "TEMPERATURE_SLOWDOWN_TLIMIT": "temperature/tlimit/slowdown",
    "TEMPERATURE_MEM_MAX_TLIMIT": "temperature/tlimit/memory_max",
    "TEMPERATURE_GPU_MAX_TLIMIT": "temperature/tlimit/gpu_max",
    "RESET_STATUS": "reset_status",
    "DRAIN_AND_RESET_STATUS": "drain_and_reset_status",
    "GET_GPU_RECOVERY_ACTION": "recovery_action",
    "REMAPPED_ROWS_COR_INACTIVE": "remapped_rows/correctable_inactive",
    "REMAPPED_ROWS_UNC_INACTIVE": "remapped_rows/uncorrectable_inactive",
}
# Fields whose values are in the state already, through the functions that answer the same.
FIELDS_FROM_FUNCTIONS = frozenset(
    (
        "ECC_CURRENT ECC_PENDING ECC_SBE_VOL_TOTAL ECC_DBE_VOL_TOTAL ECC_SBE_AGG_TOTAL ECC_DBE_AGG_TOTAL"
        " TOTAL_ENERGY_CONSUMPTION ENERGY PCIE_REPLAY_COUNTER REMAPPED_COR REMAPPED_UNC REMAPPED_PENDING REMAPPED_FAILURE"
        " NVLINK_LINK_COUNT NVSWITCH_CONNECTED_LINK_COUNT NVLINK_REMOTE_NVLINK_ID NVLINK_ERROR_DL_REPLAY"
        " NVLINK_ERROR_DL_RECOVERY NVLINK_ERROR_DL_CRC NVLINK_GET_SPEED NVLINK_GET_STATE NVLINK_GET_VERSION"
        " NVLINK_GET_POWER_STATE POWER_MIN_LIMIT POWER_MAX_LIMIT POWER_DEFAULT_LIMIT POWER_CURRENT_LIMIT"
        " POWER_REQUESTED_LIMIT"
    ).split()
)
TYPE_NAMES = {0: "double", 1: "u32", 2: "ulong", 3: "u64", 4: "s64", 5: "s32", 6: "u16"}
CAPABILITIES = ("cap_p2p", "cap_sysmem", "cap_p2p_atomics", "cap_sysmem_atomics", "cap_sli_bridge", "cap_valid")
LINK_COUNTERS = ("error_replay", "error_recovery", "error_crc_flit", "error_crc_data", "error_ecc_data")
P2P = ("read", "write", "nvlink", "atomics", "pci")


def put(tree: dict[str, Json], path: str, value: Json) -> None:
    *folders, name = path.split("/")
    for folder in folders:
        tree = tree.setdefault(folder, {})
    tree[name] = value


def answer(device: dict[str, Json], name: str) -> Json:
    """What a getter returned; an error as the state writes it, None for "not supported", which is no file at all."""
    value = device[name]["r"]
    if isinstance(value, dict) and "error" in value:
        return None if value["error"] == 3 else f"!{value['error']}"
    return value


def field_ids() -> dict[str, int]:
    with open(HERE / "recordings" / "field-ids.json", encoding="utf-8") as stream:
        return t.cast("dict[str, int]", json.load(stream))


def fields(device: dict[str, Json]) -> dict[str, str]:
    """Lines of the file "fields": all that differs from what the library answers without it."""
    lines: dict[str, str] = {}
    for name, number in sorted(field_ids().items(), key=lambda item: item[1]):
        value = device.get(f"field NVML_FI_DEV_{name}")
        if value is None or name in FIELDS_FROM_FUNCTIONS or name in FIELD_KEYS:
            continue
        if value["ret"] == 0:
            lines[str(number)] = f"{TYPE_NAMES[value['type']]} {value['ull']}"
        elif value["ret"] == 3 and value["type"] == 0 and library_would_answer(name):
            lines[str(number)] = "!NOT_SUPPORTED"
    return lines


def library_would_answer(name: str) -> bool:
    """Per-link and summed link fields: the library knows them from the links, this card refuses them."""
    return name.startswith("NVLINK_") and any(part in name for part in ("_ERROR_COUNT_", "_SPEED_MBPS_"))


def gpu(recording: dict[str, Json], answers: dict[str, Json], index: int) -> dict[str, Json]:
    device = recording["devices"][index]
    tree: dict[str, Json] = {}
    for name, key in SCALARS.items():
        value = answer(device, name)
        if value is not None:
            put(tree, key, value)
    for name, keys in TUPLES.items():
        for key, value in zip(keys, answer(device, name), strict=True):
            put(tree, key, value)
    for name, key in FIELD_KEYS.items():
        value = device[f"field NVML_FI_DEV_{name}"]["ull"]
        if device[f"field NVML_FI_DEV_{name}"]["type"] == 5 and value >= 1 << 31:
            value -= 1 << 32
        put(tree, key, value)
    put(tree, "compute_capability", "{}.{}".format(*answer(device, "nvmlDeviceGetCudaComputeCapability")))
    pci = answer(device, "nvmlDeviceGetPciInfo_v3")
    put(tree, "pci/bus_id", pci["busId"])
    put(tree, "pci/device_id", f"0x{pci['pciDeviceId']:08X}")
    put(tree, "pci/subsystem_id", f"0x{pci['pciSubSystemId']:08X}")
    put(tree, "pci/base_class", answers["pci ext"][1]["baseClass"])
    put(tree, "pci/sub_class", answers["pci ext"][1]["subClass"])
    for number, name in enumerate(("throughput_tx", "throughput_rx")):
        put(tree, f"pci/{name}", answers[f"pcie throughput {number}"])
    memory = answer(device, "nvmlDeviceGetMemoryInfo")
    idle = answers["idle memory v2"]
    if (memory["total"], memory["free"]) != (idle["total"], idle["free"]):
        raise SystemExit("the two recordings disagree about the memory of an idle card")
    put(tree, "memory/total", memory["total"])
    put(tree, "memory/reserved", idle["reserved"])
    put(tree, "memory/used", idle["used"])
    bar1 = answer(device, "nvmlDeviceGetBAR1MemoryInfo")
    put(tree, "bar1/total", bar1["bar1Total"])
    put(tree, "bar1/used", bar1["bar1Used"])
    current, pending = answer(device, "nvmlDeviceGetEccMode")
    if current != pending:
        raise SystemExit("recorded with a pending ECC change")
    put(tree, "ecc/pending", pending)
    put(tree, "ecc/default", answer(device, "nvmlDeviceGetDefaultEccMode")[0])
    for kind, kind_name in enumerate(("corrected", "uncorrected")):
        for counter, counter_name in enumerate(("volatile", "aggregate")):
            # The general recording has the sum alone; it is zero, so both parts are.
            if answer(device, f"ecc total err{kind} counter{counter}") != 0:
                raise SystemExit("recorded with ECC errors: the parts of the sum are unknown")
            for place in ("dram", "sram"):
                put(tree, f"ecc/{counter_name}/{kind_name}/{place}", 0)
    current, pending = answer(device, "nvmlDeviceGetMigMode")
    put(tree, "mig/pending", pending)
    if current != pending:
        put(tree, "mig/current", current)
    rates = answer(device, "nvmlDeviceGetUtilizationRates")
    put(tree, "utilization/gpu", rates["gpu"])
    put(tree, "utilization/memory", rates["memory"])
    histogram = answer(device, "nvmlDeviceGetRowRemapperHistogram")
    put(tree, "remapped_rows/histogram=", {name: histogram[name] for name in ("max", "high", "partial", "low", "none")})
    for number, name in enumerate(("oem", "ecc")):
        put(tree, f"inforom/{name}", answers[f"inforom {number}"])
    put(tree, "clocks/current/video", answers["clock 3"])
    put(tree, "clocks/max/video", answers["max clock 3"])
    for number, name in enumerate(("graphics", "sm", "memory")):
        put(tree, f"clocks/application/{name}", answers[f"application clock {number}"])
        put(tree, f"clocks/default_application/{name}", answers[f"default application clock {number}"])
        if not isinstance(answers[f"max boost clock {number}"], dict):
            put(tree, f"clocks/max_boost/{name}", answers[f"max boost clock {number}"])
    fabric = answers["fabric v3"][1]
    put(tree, "fabric/state", fabric["state"])
    put(tree, "fabric/status", fabric["status"])
    put(tree, "fabric/clique_id", fabric["cliqueId"])
    put(tree, "fabric/health_mask", fabric["healthMask"])
    put(tree, "fabric/health_summary", fabric["healthSummary"])
    put(tree, "fabric/cluster_uuid", bytes(fabric["clusterUuid"]).hex())
    put(tree, "cpu_affinity", bit_list(answers["cpu affinity 16 scope 0"][1]))
    put(tree, "cpu_affinity_socket", bit_list(answers["cpu affinity 16 scope 1"][1]))
    put(tree, "memory_affinity", bit_list(answers["memory affinity 16 scope 0"][1]))
    put(tree, "memory_affinity_socket", bit_list(answers["memory affinity 16 scope 1"][1]))
    put(tree, "fields=", fields(device))
    return tree


def bit_list(words: list[int]) -> str:
    """[65535] -> "0-15"."""
    numbers = [64 * place + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1]
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def link(device: dict[str, Json], number: int) -> dict[str, Json]:
    pci = answer(device, f"nvmlDeviceGetNvLinkRemotePciInfo[{number}]")
    values = {
        "state": answer(device, f"nvmlDeviceGetNvLinkState[{number}]"),
        "version": answer(device, f"nvmlDeviceGetNvLinkVersion[{number}]"),
        # Fields were recorded for link 0; the links of a card do not differ in these.
        "speed_mbps": device["field NVML_FI_DEV_NVLINK_GET_SPEED"]["ull"],
        "power_state": device["field NVML_FI_DEV_NVLINK_GET_POWER_STATE"]["ull"],
        "remote_type": answer(device, f"nvmlDeviceGetNvLinkRemoteDeviceType[{number}]"),
        "remote_bus_id": pci["busId"],
        "remote_device_id": f"0x{pci['pciDeviceId']:08X}",
        "remote_subsystem_id": pci["pciSubSystemId"],
        "remote_link": device["field NVML_FI_DEV_NVLINK_REMOTE_NVLINK_ID"]["ull"] if number == 0 else "!NOT_SUPPORTED",
    }
    for place, name in enumerate(CAPABILITIES):
        values[name] = answer(device, f"nvmlDeviceGetNvLinkCapability[{number}][{place}]")
    for place, name in enumerate(LINK_COUNTERS):
        values[name] = answer(device, f"nvmlDeviceGetNvLinkErrorCounter[{number}][{place}]")
    return {"kind": "recorded", **values}


def pci_devices(recording: dict[str, Json], answers: dict[str, Json]) -> dict[str, Json]:
    """Both cards hang below the root, as the one whose sysfs was recorded."""
    (attributes,) = answers["sysfs"].values()
    devices = []
    for device in recording["devices"]:
        bus_id = answer(device, "nvmlDeviceGetPciInfo_v3")["busId"].lower()[4:]
        devices.append({"address": bus_id, "parent": f"pci{bus_id[:7]}", "kind": "gpu"})
    return {"kinds": {"gpu": attributes}, "devices": devices}


def profile() -> dict[str, Json]:
    with open(GENERAL, encoding="utf-8") as stream:
        recording = json.load(stream)
    with open(ANSWERS, encoding="utf-8") as stream:
        answers = json.load(stream)
    devices = recording["devices"]
    count = len(devices)
    pairs = {
        name: {answer(devices[i], f"p2p {j} cap{place}") for i in range(count) for j in range(count) if i != j}
        for place, name in enumerate(P2P)
    }
    if any(len(values) != 1 for values in pairs.values()):
        raise SystemExit("the pairs differ in their P2P status: the profile needs more than one kind of pair")
    p2p = {name: values.pop() for name, values in pairs.items()}
    return {
        "name": "h200-sxm-x2",
        "description": "2 x H200 SXM of a virtual machine on an HGX board, as recorded",
        "sources": {
            "everything not named here": f"recordings/{GENERAL.name}: two real H200, driver {recording['driver']}",
            "memory/reserved and used, fabric, inforom/oem and ecc, clocks/*/video, clocks/application, clocks/max_boost,"
            " affinities, pci/base_class, pci/throughput, sysfs": f"recordings/{ANSWERS.name}: one real H200, same driver,"
            " on another virtual machine",
            "NOT SOURCED": "cpu_affinity and NUMA of the second card are those of the machine with one card;"
            " nvlink/*#speed_mbps and power_state of links other than 0",
        },
        "system": {
            "driver_version": recording["driver"],
            "nvml_version": recording["nvml"],
            "cuda_driver_version": recording["cuda"],
        },
        "gpus": [gpu(recording, answers, index) for index in range(count)],
        "topology": [[0 if i == j else answer(devices[i], f"topo {j}") for j in range(count)] for i in range(count)],
        "p2p": {"nvlink_groups": [list(range(count))], "linked": p2p, "other": p2p},
        "nvlink": {
            "link": {},
            "remote_kinds": {"recorded": {}},
            "remotes": [
                [link(device, number) for number in range(device["field NVML_FI_DEV_NVLINK_LINK_COUNT"]["ull"])]
                for device in devices
            ],
        },
        "pci": pci_devices(recording, answers),
    }


def main() -> None:
    json.dump(profile(), sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
