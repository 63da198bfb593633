# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The judging, on a healthy DGX A100 of which one thing after the other is broken: each fault has its own check, alone."""

from __future__ import annotations

import copy
import sys
import typing as t
from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.baremetal.inference.plugins.module_utils._cuda import (
    Burn,
    CudaDevice,
    CudaFailure,
    CudaInit,
    CudaTarget,
)
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_skus import CATALOG, SYSTEM_FIGURES, system_of
from ansible_collections.baremetal.inference.plugins.module_utils._nvml import NvmlFailure
from ansible_collections.baremetal.inference.plugins.module_utils._preflight import VERDICTS, Check, overall
from ansible_collections.baremetal.inference.plugins.module_utils._preflight_driver import DriverFacts, FabricManager
from ansible_collections.baremetal.inference.plugins.module_utils._preflight_host import (
    IORESOURCE_UNSET,
    Acs,
    Bar,
    Disk,
    GpuOnBus,
    IdleState,
    Roots,
    read_host,
)
from ansible_collections.baremetal.inference.plugins.module_utils._preflight_load import Soaked
from ansible_collections.baremetal.inference.plugins.module_utils._preflight_log import KernelLog, LogEvent
from ansible_collections.baremetal.inference.plugins.module_utils._preflight_run import Gathered, judge

from tests.unit.conftest import NvmlSim, SimulatedHost
from tests.unit.preflight_tree import DRIVER, GIB, WINDOW_FLAGS, Tree

FIRST = "0000:07:00.0"
THIRD = "0000:47:00.0"
PARAMS: dict[str, t.Any] = {
    "min_driver_version": "580",
    "gpu_count": None,
    "ecc": "enabled",
    "model_bytes": None,
    "soak_minutes": 0,
}
Verdicts = t.Mapping[tuple[str, str], str]
Change = t.Callable[[Gathered], Gathered]


def gathered_from(nvml_sim: NvmlSim, folder: Path, profile: str, bar1: int) -> Gathered:
    """A healthy machine: what the simulated library says, and files around it."""
    simulated = SimulatedHost(nvml_sim, folder, sys.executable)
    state = simulated.create(profile)
    for folder_of_gpu in state.glob("gpu*"):
        (folder_of_gpu / "persistence_mode").write_text("1\n")
    tree = Tree(folder, state / "sysfs")
    tree.with_gpus(bar1=bar1)
    tree.with_driver()
    host = read_host(Roots(*(str(path) for path in (tree.sysfs, tree.proc, tree.dev, tree.etc))), None, root=True)
    facts = simulated.run("gpu_info")
    links = simulated.run("pcie_linkspeed")["gpus"]
    board = system_of(facts, CATALOG)
    switches = bool(host.nvswitches)
    return Gathered(
        host=host,
        driver=DriverFacts(
            facts=facts,
            failure=None,
            fabric_manager=FabricManager(*((DRIVER, "program", "active") if switches else (None, None, "absent"))),
            board={} if board is None else {name: getattr(board, name).value for name in SYSTEM_FIGURES},
        ),
        cuda=CudaInit(
            ok=True,
            code=0,
            name="CUDA_SUCCESS",
            reason="ok",
            msg="CUDA 13.0 initialised.",
            advice="",
            cuda_driver_version="13.0",
            devices=tuple(
                CudaDevice(position, gpu["name"], gpu["uuid"], gpu["pci_bus_id"])
                for position, gpu in enumerate(facts["gpus"])
            ),
            seconds=0.5,
        ),
        links={link["index"]: link for link in links},
        soaked=(),
        soak_xids=(),
        log=KernelLog(source="journal", since="2026-11-16T10:00:00Z", boots=3, events=()),
    )


@pytest.fixture(scope="session")
def dgx(nvml_sim: NvmlSim, tmp_path_factory: pytest.TempPathFactory) -> Gathered:
    return gathered_from(nvml_sim, tmp_path_factory.mktemp("dgx"), "dgx-a100-80gb", 128 * GIB)


@pytest.fixture(scope="session")
def pcie_box(nvml_sim: NvmlSim, tmp_path_factory: pytest.TempPathFactory) -> Gathered:
    """Four PCIe cards, of which bridges join two and two: the others are peers over PCIe."""
    return gathered_from(nvml_sim, tmp_path_factory.mktemp("pcie"), "a100-pcie-40gb-x4", 64 * GIB)


def judged(gathered: Gathered, **params: t.Any) -> list[Check]:
    return judge(gathered, {**PARAMS, **params}, CATALOG)


def verdicts(checks: t.Iterable[Check]) -> dict[tuple[str, str], str]:
    return {(check.check, check.on.name): check.verdict for check in checks}


def news(gathered: Gathered, healthy: Gathered, **params: t.Any) -> dict[tuple[str, str], str]:
    """What is judged otherwise than on the healthy machine."""
    before, after = verdicts(judged(healthy, **params)), verdicts(judged(gathered, **params))
    return {key: after[key] for key in after if before.get(key) != after[key]}


def test_nothing_is_wrong_with_a_healthy_dgx(dgx: Gathered) -> None:
    checks = judged(dgx, gpu_count=8, model_bytes=67 * 10**9)
    assert [check for check in checks if check.verdict not in ("pass", "info", "skipped")] == []
    assert overall(checks) == "info"
    assert {check.group for check in checks} == {
        "firmware",
        "driver",
        "cuda",
        "nvlink",
        "ecc",
        "pcie",
        "power",
        "host",
        "topology",
        "mig",
        "kernel_log",
    }
    # What is skipped does not apply; little does not apply to a DGX.
    assert {check.check for check in checks if check.verdict == "skipped"} == {"host.disk"}


def test_nothing_is_wrong_with_a_healthy_pcie_box(pcie_box: Gathered) -> None:
    checks = judged(pcie_box)
    assert [check for check in checks if check.verdict not in ("pass", "info", "skipped")] == []


def test_each_check_and_subject_is_there_once(dgx: Gathered) -> None:
    checks = judged(dgx)
    assert len(verdicts(checks)) == len(checks)


# ---- how to break it ----


def facts_with(gathered: Gathered, change: t.Callable[[dict[str, t.Any]], None]) -> Gathered:
    facts = copy.deepcopy(t.cast("dict[str, t.Any]", gathered.driver.facts))
    change(facts)
    return replace(gathered, driver=replace(gathered.driver, facts=facts))


def gpu(path: str, value: t.Any, position: int = 0) -> Change:
    """Another value in the facts of one GPU."""

    def apply(facts: dict[str, t.Any]) -> None:
        record = facts["gpus"][position]
        *parents, last = path.split(".")
        for parent in parents:
            record = record[parent]
        assert last in record
        record[last] = value

    return lambda gathered: facts_with(gathered, apply)


def link(path: str, value: t.Any, position: int = 0) -> Change:
    def apply(gathered: Gathered) -> Gathered:
        links = copy.deepcopy(dict(gathered.links))
        record: t.Any = links[position]
        *parents, last = path.split(".")
        for parent in parents:
            record = record[parent]
        assert last in record
        record[last] = value
        return replace(gathered, links=links)

    return apply


def on_bus(position: int = 0, **changes: t.Any) -> Change:
    def apply(gathered: Gathered) -> Gathered:
        gpus = list(gathered.host.gpus)
        gpus[position] = replace(gpus[position], **changes)
        return replace(gathered, host=replace(gathered.host, gpus=tuple(gpus)))

    return apply


def firmware(**changes: t.Any) -> Change:
    return lambda gathered: replace(
        gathered, host=replace(gathered.host, firmware=replace(gathered.host.firmware, **changes))
    )


def machine(**changes: t.Any) -> Change:
    return lambda gathered: replace(
        gathered, host=replace(gathered.host, machine=replace(gathered.host.machine, **changes))
    )


def files(**changes: t.Any) -> Change:
    return lambda gathered: replace(
        gathered, host=replace(gathered.host, driver=replace(gathered.host.driver, **changes))
    )


def host(**changes: t.Any) -> Change:
    return lambda gathered: replace(gathered, host=replace(gathered.host, **changes))


def driver(**changes: t.Any) -> Change:
    return lambda gathered: replace(gathered, driver=replace(gathered.driver, **changes))


def cuda(**changes: t.Any) -> Change:
    return lambda gathered: replace(gathered, cuda=replace(t.cast(CudaInit, gathered.cuda), **changes))


def event(
    number: int, bus_id: str = FIRST, *, kind: str = "xid", now: bool = True, text: str = "x", **more: t.Any
) -> LogEvent:
    return LogEvent(kind, number, bus_id, "2026-11-29T10:00:00Z", now, text, **more)


def log(*events: LogEvent) -> Change:
    return lambda gathered: replace(gathered, log=replace(gathered.log, events=events))


def both(*changes: Change) -> Change:
    def apply(gathered: Gathered) -> Gathered:
        for change in changes:
            gathered = change(gathered)
        return gathered

    return apply


def without(modules: t.Sequence[str], extra: t.Mapping[str, str | None] | None = None) -> Change:
    def apply(gathered: Gathered) -> Gathered:
        left = {name: version for name, version in gathered.host.driver.modules.items() if name not in modules}
        return files(modules={**left, **(extra or {})})(gathered)

    return apply


def all_ports(control: int | None, readable: bool = True) -> Change:
    def apply(gathered: Gathered) -> Gathered:
        ports = {port for on_bus in gathered.host.gpus for port in on_bus.ports}
        return host(acs={port: Acs(readable, control) for port in ports})(gathered)

    return apply


def below_a_switch(gathered: Gathered) -> Gathered:
    """The cards of a PCIe box, as if they hung below one switch."""
    gpus = tuple(
        replace(on_bus, ports=(f"0000:02:{position:02x}.0", "0000:01:00.0", "0000:00:01.1"))
        for position, on_bus in enumerate(gathered.host.gpus)
    )
    return host(gpus=gpus)(gathered)


def translating(gathered: Gathered) -> Gathered:
    gpus = tuple(replace(on_bus, iommu_group="7", iommu_type="DMA-FQ") for on_bus in gathered.host.gpus)
    return both(host(gpus=gpus), firmware(iommus=("ivhd0",)))(gathered)


def window(start: int, size: int, flags: int = WINDOW_FLAGS) -> Change:
    return on_bus(bars=(Bar(0, 0xE4000000, 2**24, 0x40200), Bar(1, start, size, flags)))


def lost(gathered: Gathered) -> Gathered:
    """A GPU that the driver counts and that does not answer."""

    def apply(facts: dict[str, t.Any]) -> None:
        record = facts["gpus"].pop(0)
        facts["topology"] = [pair for pair in facts["topology"] if FIRST not in (pair["a"], pair["b"])]
        facts["missing_from_nvml"] = [FIRST]
        facts["unavailable_gpus"] = [
            {
                "index": record["index"],
                "uuid": record["uuid"],
                "pci_bus_id": FIRST,
                "reason": "gpu_lost",
                "nvml_code": 15,
                "msg": "nvmlDeviceGetUUID failed for GPU 0: GPU is lost (NVML error 15). Look for Xid 79.",
            }
        ]

    return facts_with(gathered, apply)


def unseen(gathered: Gathered) -> Gathered:
    """A GPU of the bus that the driver does not count."""

    def apply(facts: dict[str, t.Any]) -> None:
        facts["gpus"].pop(0)
        facts["topology"] = [pair for pair in facts["topology"] if FIRST not in (pair["a"], pair["b"])]
        facts["gpu_count"] = 7
        facts["missing_from_nvml"] = [FIRST]

    return facts_with(gathered, apply)


def gone(gathered: Gathered) -> Gathered:
    """A GPU that is not even on the bus."""

    def apply(facts: dict[str, t.Any]) -> None:
        facts["gpus"].pop(0)
        facts["topology"] = [pair for pair in facts["topology"] if FIRST not in (pair["a"], pair["b"])]
        facts["gpu_count"] = facts["pci_gpu_count"] = 7
        facts["pci_gpus"].pop(0)

    return both(host(gpus=gathered.host.gpus[1:]))(facts_with(gathered, apply))


FAULTS: dict[str, tuple[Change, Verdicts]] = {
    # firmware
    "window not placed": (window(0, 128 * GIB), {("firmware.above_4g", FIRST): "fail"}),
    "window unset": (
        window(0x20000000000, 128 * GIB, WINDOW_FLAGS | IORESOURCE_UNSET),
        {("firmware.above_4g", FIRST): "fail"},
    ),
    "no window": (on_bus(bars=(Bar(0, 0xE4000000, 2**24, 0x40200),)), {("firmware.above_4g", FIRST): "fail"}),
    "window below 4 GiB": (window(0xD0000000, 2**28), {("firmware.above_4g", FIRST): "warn"}),
    "no resource file": (on_bus(bars=None), {("firmware.above_4g", FIRST): "unknown"}),
    "small BAR1": (gpu("bar1.total_bytes", 2**28), {("firmware.bar1_size", FIRST): "warn"}),
    "virtual functions in use": (on_bus(sriov_used=4), {("firmware.sriov", FIRST): "warn"}),
    "SR-IOV not offered": (on_bus(sriov_total=None, sriov_used=None), {("firmware.sriov", FIRST): "info"}),
    "slowest frequency": (
        firmware(frequency_governors={"powersave": 256}, frequency_driver="acpi-cpufreq"),
        {("firmware.frequency_governor", "host"): "warn"},
    ),
    "powersave that scales": (
        firmware(frequency_governors={"powersave": 256}, frequency_driver="amd-pstate-epp"),
        {("firmware.frequency_governor", "host"): "info"},
    ),
    "frequencies are not set by the kernel": (
        firmware(frequency_governors={}, frequency_driver=None),
        {("firmware.frequency_governor", "host"): "info"},
    ),
    "no idle states": (firmware(idle_driver="none", idle_states=()), {}),
    "deep idle state": (firmware(idle_states=(IdleState("C6", 890, False),)), {}),
    "legacy boot": (
        firmware(efi=False, secure_boot=None),
        {("firmware.boot_mode", "host"): "info", ("firmware.secure_boot", "host"): "skipped"},
    ),
    "Secure Boot": (firmware(secure_boot=True), {("firmware.secure_boot", "host"): "pass"}),
    "Secure Boot may not be read": (
        firmware(secure_boot=None, secure_boot_denied=True),
        {("firmware.secure_boot", "host"): "unknown"},
    ),
    "no NUMA node": (on_bus(numa_node=None), {("firmware.numa", FIRST): "warn"}),
    "no NUMA node in a virtual machine": (
        both(on_bus(numa_node=None), machine(virtual=True)),
        {("firmware.numa", FIRST): "info", ("host.hypervisor", "host"): "info"},
    ),
    "translating IOMMU with NVLink": (translating, {("firmware.iommu", "host"): "info"}),
    "redirection with NVLink": (all_ports(0x1D), {("firmware.acs", "host"): "info"}),
    "ports not readable with NVLink": (all_ports(None, readable=False), {("firmware.acs", "host"): "skipped"}),
    # driver
    "nouveau loaded beside": (without((), {"nouveau": None}), {("driver.other_drivers", "host"): "warn"}),
    "no uvm": (
        both(
            without(["nvidia_uvm"]),
            lambda gathered: files(device_nodes=gathered.host.driver.device_nodes - {"nvidia-uvm"})(gathered),
        ),
        {("driver.companion_modules", "host"): "warn", ("driver.device_nodes", "host"): "warn"},
    ),
    "no uvm module, and its node": (without(["nvidia_uvm"]), {}),
    "no node": (
        lambda gathered: files(device_nodes=gathered.host.driver.device_nodes - {"nvidia3"})(gathered),
        {("driver.device_nodes", "host"): "fail"},
    ),
    "other library": (
        lambda gathered: facts_with(gathered, lambda facts: facts.update(nvml_version="13.580.95.05")),
        {("driver.versions_equal", "host"): "fail"},
    ),
    "no Fabric Manager": (
        driver(fabric_manager=FabricManager(None, None, "absent")),
        {("driver.fabric_manager", "host"): "fail"},
    ),
    "Fabric Manager of another version": (
        driver(fabric_manager=FabricManager("580.95.05", "package", "active")),
        {("driver.fabric_manager", "host"): "fail"},
    ),
    "Fabric Manager failed": (
        driver(fabric_manager=FabricManager(DRIVER, "program", "failed")),
        {("driver.fabric_manager", "host"): "fail"},
    ),
    "Fabric Manager of which systemd says nothing": (
        driver(fabric_manager=FabricManager(DRIVER, "program", None)),
        {("driver.fabric_manager", "host"): "unknown"},
    ),
    "a switch is missing": (
        lambda gathered: host(nvswitches=gathered.host.nvswitches[1:])(gathered),
        {("driver.nvswitches", "host"): "fail"},
    ),
    "a switch without driver": (
        lambda gathered: host(
            nvswitches=(replace(gathered.host.nvswitches[0], driver=None), *gathered.host.nvswitches[1:])
        )(gathered),
        {("driver.nvswitches", "host"): "fail"},
    ),
    "persistence mode off": (gpu("persistence_mode", "disabled"), {("driver.persistence", FIRST): "warn"}),
    "persistence mode not there": (gpu("persistence_mode", None), {("driver.persistence", FIRST): "info"}),
    "reset asked for": (gpu("recovery_action", "gpu_reset"), {("driver.recovery_action", FIRST): "fail"}),
    "an action newer than we": (gpu("recovery_action", "unknown_9"), {("driver.recovery_action", FIRST): "fail"}),
    "facts that could not be read": (
        gpu(
            "read_errors", [{"call": "x", "nvml_code": 999, "reason": "unknown", "msg": "nvmlX failed: Unknown. Look."}]
        ),
        {("driver.facts", FIRST): "unknown"},
    ),
    "lost": (lost, {("driver.gpu_answers", FIRST): "fail"}),
    "on the bus, not in NVML": (unseen, {("driver.gpu_answers", FIRST): "fail"}),
    "not on the bus": (gone, {("driver.gpu_count", "host"): "fail"}),
    # cuda
    "CUDA does not start": (
        cuda(
            ok=False,
            code=802,
            msg="cuInit failed: CUDA_ERROR_SYSTEM_NOT_READY (CUDA error 802).",
            advice="Start it.",
            devices=(),
        ),
        {("cuda.init", "host"): "fail"},
    ),
    "CUDA hides a GPU": (
        lambda gathered: cuda(devices=t.cast(CudaInit, gathered.cuda).devices[1:])(gathered),
        {("cuda.devices", "host"): "fail"},
    ),
    # ecc
    "ECC off": (
        both(gpu("ecc.current", "disabled"), gpu("ecc.pending", "disabled")),
        {("ecc.mode", FIRST): "fail"},
    ),
    "ECC off until the next reboot": (
        gpu("ecc.current", "disabled"),
        {("ecc.mode", FIRST): "info", ("ecc.pending", FIRST): "warn"},
    ),
    "ECC off from the next reboot on": (gpu("ecc.pending", "disabled"), {("ecc.pending", FIRST): "warn"}),
    "a GPU without ECC": (
        gpu(
            "ecc",
            {
                "supported": False,
                "current": None,
                "pending": None,
                "default": None,
                "volatile": {"corrected": None, "uncorrected": None},
                "aggregate": {"corrected": None, "uncorrected": None},
            },
        ),
        {("ecc.mode", FIRST): "info"},
    ),
    "uncorrected errors": (gpu("ecc.volatile.uncorrected", 1), {("ecc.uncorrected", FIRST): "fail"}),
    "uncorrected errors of long ago": (gpu("ecc.aggregate.uncorrected", 7), {}),
    "corrected errors": (gpu("ecc.volatile.corrected", 4711), {("ecc.corrected", FIRST): "info"}),
    "row that could not be replaced": (gpu("remapped_rows.failure", True), {("ecc.row_remap_failure", FIRST): "fail"}),
    "row that waits": (gpu("remapped_rows.pending", True), {("ecc.row_remap_pending", FIRST): "warn"}),
    "rows replaced": (gpu("remapped_rows.correctable", 3), {("ecc.remapped_rows", FIRST): "info"}),
    # power
    "limit lowered": (
        both(gpu("power.limit_requested_watts", 300.0), gpu("power.limit_enforced_watts", 300.0)),
        {("power.limit", FIRST): "info"},
    ),
    "limit outside": (
        both(gpu("power.limit_requested_watts", 50.0), gpu("power.limit_enforced_watts", 50.0)),
        {("power.limit", FIRST): "warn"},
    ),
    "limit not enforced": (gpu("power.limit_enforced_watts", 250.0), {("power.enforced", FIRST): "warn"}),
    "no limits at all": (
        both(
            *(
                gpu(f"power.{name}", None)
                for name in (
                    "limit_requested_watts",
                    "limit_enforced_watts",
                    "limit_default_watts",
                    "limit_min_watts",
                    "limit_max_watts",
                )
            )
        ),
        {("power.limit", FIRST): "info"},
    ),
    "throttled by heat": (
        gpu("clocks_event_reasons", ["hw_slowdown", "hw_thermal_slowdown"]),
        {("power.throttle", FIRST): "fail"},
    ),
    "power brake": (gpu("clocks_event_reasons", ["hw_power_brake_slowdown"]), {("power.throttle", FIRST): "fail"}),
    "slowed down": (gpu("clocks_event_reasons", ["hw_slowdown"]), {("power.throttle", FIRST): "warn"}),
    "slowed down by the driver": (
        gpu("clocks_event_reasons", ["sw_thermal_slowdown"]),
        {("power.throttle", FIRST): "warn"},
    ),
    "at its power limit": (gpu("clocks_event_reasons", ["sw_power_cap"]), {}),
    "reasons not told": (gpu("clocks_event_reasons", None), {("power.throttle", FIRST): "info"}),
    "hot": (gpu("temperature.gpu_celsius", 86), {("power.temperature", FIRST): "warn"}),
    "too hot": (gpu("temperature.gpu_celsius", 90), {("power.temperature", FIRST): "fail"}),
    "hot memory": (gpu("temperature.memory_celsius", 95), {("power.temperature", FIRST): "warn"}),
    "warm": (gpu("temperature.gpu_celsius", 84), {}),
    # mig
    "MIG": (
        gpu("mig_mode", {"current": "enabled", "pending": "enabled"}),
        {("mig.mode", FIRST): "warn"},
    ),
    "MIG from the next reset on": (
        gpu("mig_mode", {"current": "disabled", "pending": "enabled"}),
        {("mig.mode", FIRST): "warn"},
    ),
    "no MIG": (gpu("mig_mode", None), {("mig.mode", FIRST): "skipped"}),
    # host
    "model does not fit the disk": (
        host(disk=Disk("/srv/models", "/srv", "ext4", 10**12, 10**9, None)),
        {("host.disk", "host"): "fail"},
    ),
    "disk of the network": (
        host(disk=Disk("/srv/models", "/srv/models", "nfs4", 10**13, 10**12, None)),
        {("host.disk", "host"): "info"},
    ),
    "disk that cannot be asked": (
        host(disk=Disk("/srv/models", "/srv", None, None, None, "Stale file handle")),
        {("host.disk", "host"): "unknown"},
    ),
    "little memory": (machine(memory_bytes=32 * GIB), {("host.memory", "host"): "warn"}),
    "little memory free": (machine(memory_available_bytes=32 * GIB), {("host.memory", "host"): "info"}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_has_its_check_alone(dgx: Gathered, name: str) -> None:
    change, expected = FAULTS[name]
    assert news(change(dgx), dgx, model_bytes=67 * 10**9) == expected


def nvlink_down(gathered: Gathered) -> Gathered:
    def apply(facts: dict[str, t.Any]) -> None:
        links = facts["gpus"][0]["nvlink"]
        links["links"][3]["state"] = "inactive"
        links["active_count"] = 11

    return facts_with(gathered, apply)


def p2p_refused(gathered: Gathered) -> Gathered:
    def apply(facts: dict[str, t.Any]) -> None:
        facts["topology"][0]["p2p"]["nvlink"] = "not_supported"
        facts["topology"][0]["nvlink_count"] = 0

    return facts_with(gathered, apply)


def nvlink_errors(gathered: Gathered) -> Gathered:
    return facts_with(gathered, lambda facts: facts["gpus"][0]["nvlink"]["links"][3]["errors"].update(crc=9))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (nvlink_down, {("nvlink.links", FIRST): "fail"}),
        (nvlink_errors, {("nvlink.counters", FIRST): "warn"}),
        # That NVLink joins fewer pairs is a fact of the topology too, which is not judged.
        (p2p_refused, {("nvlink.pair", f"{FIRST} - 0000:0f:00.0"): "fail"}),
    ],
)
def test_nvlink(dgx: Gathered, change: Change, expected: Verdicts) -> None:
    assert news(change(dgx), dgx) == expected


def problem(check: str, verdict: str, observed: str, fix: str = "Reseat it.") -> dict[str, str]:
    return {"check": check, "verdict": verdict, "observed": observed, "expected": "more", "fix": fix}


LOADED = {"generation": 4, "width": 16, "gpu": None, "upstream_port": None}
RATES = {
    name: {"best_gb_per_s": 25.2, "median_gb_per_s": 25.1, "rounds": 10}
    for name in ("host_to_device", "device_to_host")
}
MEASURED: Change = both(link("load", LOADED), link("bandwidth", RATES), link("expected.host_to_device_gb_per_s", 23.0))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (link("problems", [problem("width", "below", "x8 while idle")]), {("pcie.width", FIRST): "fail"}),
        # Saving power while idle is no fault, and proves nothing.
        (
            link("problems", [problem("generation", "unproven", "PCIe generation 1 while idle")]),
            {("pcie.generation", FIRST): "info"},
        ),
        (
            link("problems", [problem("generation", "below", "the slot can do PCIe generation 3")]),
            {("pcie.generation", FIRST): "warn"},
        ),
        (
            both(
                link("load", {**LOADED, "generation": 3}),
                link("problems", [problem("generation", "below", "PCIe generation 3 under load")]),
            ),
            {("pcie.generation", FIRST): "fail"},
        ),
        (
            both(link("idle.width", None), link("problems", [problem("width", "unproven", "neither says the width")])),
            {("pcie.width", FIRST): "unknown"},
        ),
        (link("replay_count", 1), {("pcie.replays", FIRST): "info"}),
        (MEASURED, {("pcie.host_to_device", FIRST): "pass", ("pcie.device_to_host", FIRST): "info"}),
        (
            both(MEASURED, link("problems", [problem("host_to_device", "below", "9 GB/s from host to GPU")])),
            {("pcie.host_to_device", FIRST): "fail", ("pcie.device_to_host", FIRST): "info"},
        ),
        (
            link("problems", [problem("measurement", "unproven", "cuCtxCreate failed", fix="")]),
            {("pcie.measurement", FIRST): "fail"},
        ),
        (
            both(
                link("problems", [problem("measurement", "unproven", "GPU 0 is in use by process 42")]),
                gpu("processes", [{"pid": 42, "name": "python", "type": "compute", "used_memory_bytes": 1}]),
            ),
            {("pcie.measurement", FIRST): "skipped"},
        ),
        (lambda gathered: replace(gathered, links={}), "each"),
    ],
)
def test_pcie(dgx: Gathered, change: Change, expected: Verdicts | str) -> None:
    found = news(change(dgx), dgx)
    if expected == "each":
        assert (
            set(found.values()) == {"unknown"}
            and {check for check, unused in found} == {"pcie.link"}
            and len(found) == 8
        )
    else:
        assert found == expected


def test_a_bad_link_names_its_slot(dgx: Gathered) -> None:
    changed = both(link("slot", "PCIe Slot 4"), link("problems", [problem("width", "below", "x8 while idle")]))(dgx)
    (check,) = [check for check in judged(changed) if check.verdict == "fail"]
    assert check.observed == "x8 while idle; slot PCIe Slot 4"


class TestPeersOverPcie:
    """Where GPUs have no NVLink to each other, what stands in the way of PCIe counts."""

    def test_translating_iommu(self, pcie_box: Gathered) -> None:
        assert news(translating(pcie_box), pcie_box) == {("firmware.iommu", "host"): "warn"}

    def test_pass_through(self, pcie_box: Gathered) -> None:
        gpus = tuple(replace(on_bus, iommu_group="7", iommu_type="identity") for on_bus in pcie_box.host.gpus)
        changed = both(host(gpus=gpus), firmware(iommus=("dmar0",)))(pcie_box)
        assert news(changed, pcie_box) == {}

    def test_redirection(self, pcie_box: Gathered) -> None:
        switched = below_a_switch(pcie_box)
        assert news(all_ports(0)(switched), pcie_box) == {("firmware.acs", "host"): "pass"}
        assert news(all_ports(0x1D)(switched), pcie_box) == {("firmware.acs", "host"): "warn"}
        # Source validation alone redirects nothing.
        assert news(all_ports(0x01)(switched), pcie_box) == {("firmware.acs", "host"): "pass"}

    def test_ports_of_which_a_user_sees_nothing(self, pcie_box: Gathered) -> None:
        changed = both(all_ports(None, readable=False), host(root=False))(below_a_switch(pcie_box))
        assert news(changed, pcie_box) == {("firmware.acs", "host"): "unknown"}
        (check,) = [check for check in judged(changed) if check.verdict == "unknown"]
        assert check.fix == "Run the task with become: true."

    def test_cards_behind_switches_of_their_own(self, pcie_box: Gathered) -> None:
        gpus = tuple(
            replace(on_bus, ports=(f"0000:{position}2:00.0", f"0000:{position}1:00.0", f"0000:{position}0:01.1"))
            for position, on_bus in enumerate(pcie_box.host.gpus)
        )
        changed = all_ports(0x1D)(host(gpus=gpus)(pcie_box))
        assert news(changed, pcie_box) == {("firmware.acs", "host"): "info"}

    def test_peers_that_the_driver_rules_out(self, pcie_box: Gathered) -> None:
        def apply(facts: dict[str, t.Any]) -> None:
            for pair in facts["topology"]:
                if not pair["nvlink_count"]:
                    pair["p2p"].update(read="chipset_not_supported", write="chipset_not_supported")

        changed = facts_with(pcie_box, apply)
        assert verdicts(judged(translating(changed)))["firmware.iommu", "host"] == "info"

    def test_the_port_at_the_root_does_not_count(self, pcie_box: Gathered) -> None:
        # Traffic that came so far has to pass the processor.
        gpus = tuple(replace(on_bus, ports=("0000:00:01.1",)) for on_bus in pcie_box.host.gpus)
        changed = all_ports(0x1D)(host(gpus=gpus)(pcie_box))
        assert news(changed, pcie_box) == {}


class TestLog:
    @pytest.mark.parametrize(
        ("events", "expected"),
        [
            ([event(79)], {("kernel_log.xid_79", FIRST): "fail"}),
            ([event(64)], {("kernel_log.xid_64", FIRST): "fail"}),
            # The driver says that there is nothing left to recover.
            ([event(119)], {("kernel_log.xid_119", FIRST): "warn"}),
            ([event(74)], {("kernel_log.xid_74", FIRST): "warn"}),
            (
                [event(145, text="RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2)")],
                {("kernel_log.xid_145", FIRST): "warn"},
            ),
            (
                [event(149, text="NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6)")],
                {("kernel_log.xid_149", FIRST): "fail"},
            ),
            ([event(13), event(31), event(43), event(45), event(63)], {}),
            ([event(777)], {("kernel_log.xid_777", FIRST): "unknown"}),
            # Over with the reboot: one step less.
            ([event(79, now=False)], {("kernel_log.xid_79", FIRST): "warn"}),
            ([event(94, now=False)], {}),
            ([event(79, now=False), event(79)], {("kernel_log.xid_79", FIRST): "fail"}),
            ([event(154, recovery="Node Reboot Required")], {("kernel_log.xid_154", FIRST): "warn"}),
            ([event(154, recovery="GPU Reset Required"), event(154, recovery="None")], {}),
            ([event(12028, "0000:c4:00.0", kind="sxid", severity="non-fatal")], {}),
            (
                [event(24007, "0000:c4:00.0", kind="sxid", severity="fatal")],
                {("kernel_log.sxid_24007", "0000:c4:00.0"): "fail"},
            ),
            (
                [event(24007, "0000:c4:00.0", kind="sxid", severity="fatal", now=False)],
                {("kernel_log.sxid_24007", "0000:c4:00.0"): "warn"},
            ),
            ([event(0, kind="bus_error", severity="corrected")], {}),
            ([event(0, kind="bus_error", severity="uncorrected")], {("kernel_log.pcie_uncorrected", FIRST): "warn"}),
            # Somebody else's.
            ([event(0, "0000:ff:00.0", kind="bus_error", severity="uncorrected")], {}),
            ([event(1, kind="no_space")], {}),
            # It answers: it was initialised since.
            ([event(0, kind="init_failed")], {}),
        ],
    )
    def test_what_counts(self, dgx: Gathered, events: list[LogEvent], expected: Verdicts) -> None:
        found = news(log(*events)(dgx), dgx)
        assert {key: verdict for key, verdict in found.items() if verdict not in ("info", "pass")} == expected

    def test_a_reset_that_is_due(self, dgx: Gathered) -> None:
        changed = both(log(event(119)), gpu("recovery_action", "gpu_reset"))(dgx)
        assert news(changed, dgx)["kernel_log.xid_119", FIRST] == "fail"
        # A driver that does not say.
        changed = both(log(event(119)), gpu("recovery_action", None))(dgx)
        assert news(changed, dgx)["kernel_log.xid_119", FIRST] == "fail"

    def test_a_gpu_that_could_not_be_initialised(self, dgx: Gathered) -> None:
        found = news(both(unseen, log(event(0, kind="init_failed")))(dgx), dgx)
        assert found["kernel_log.init_failed", FIRST] == "fail"

    def test_how_often_and_when(self, dgx: Gathered) -> None:
        events = [event(94, text="Contained: SM"), event(94, THIRD), event(94, text="Contained: CE", now=False)]
        checks = {check.on.name: check for check in judged(log(*events)(dgx)) if check.check == "kernel_log.xid_94"}
        assert checks[FIRST].observed == "2 times, last at 2026-11-29T10:00:00Z, 1 in this boot: Contained: CE"
        assert checks[FIRST].on.gpu == 0 and checks[THIRD].on.gpu == 2

    def test_actions(self, dgx: Gathered) -> None:
        (check,) = [
            check
            for check in judged(
                both(log(event(154, recovery="Node Reboot Required")), gpu("recovery_action", "node_reboot"))(dgx)
            )
            if check.check == "kernel_log.xid_154"
        ]
        assert check.verdict == "fail" and "Node Reboot Required" in check.fix
        (check,) = [check for check in judged(log(event(79, now=False))(dgx)) if check.check == "kernel_log.xid_79"]
        assert check.fix.startswith("Watch for it") and "riser" in check.fix

    def test_not_readable(self, dgx: Gathered) -> None:
        changed = replace(dgx, log=replace(dgx.log, error="no journal", fix="Name a file."))
        assert news(changed, dgx) == {("kernel_log.readable", "host"): "unknown"}
        fixes = [check.fix for check in judged(changed) if check.verdict == "unknown"]
        # Who is not root may see it as root.
        fixes += [check.fix for check in judged(host(root=False)(changed)) if check.verdict == "unknown"]
        assert fixes == ["Name a file.", "Run the task with become: true."]

    def test_nodes_are_made_by_what_makes_them(self, dgx: Gathered) -> None:
        def fix(*missing: str) -> str:
            changed = files(device_nodes=dgx.host.driver.device_nodes - set(missing))(dgx)
            (check,) = [check for check in judged(changed) if check.check == "driver.device_nodes"]
            return check.fix

        assert "'nvidia-smi' as root" in fix("nvidia3") and "modprobe" not in fix("nvidia3")
        assert "'nvidia-modprobe -u -c=0' as root" in fix("nvidia-uvm") and "nvidia-smi" not in fix("nvidia-uvm")


class TestOptions:
    def test_fewer_gpus_than_wanted(self, dgx: Gathered) -> None:
        assert verdicts(judged(dgx, gpu_count=9))["driver.gpu_count", "host"] == "fail"
        assert verdicts(judged(dgx, gpu_count=8))["driver.gpu_count", "host"] == "pass"
        assert verdicts(judged(dgx, gpu_count=4))["driver.gpu_count", "host"] == "warn"
        # The owner knows better than the board.
        assert verdicts(judged(gone(dgx), gpu_count=7))["driver.gpu_count", "host"] == "pass"

    @pytest.mark.parametrize(
        ("wanted", "verdict"),
        [("580", "pass"), ("580.159.04", "pass"), ("580.159.05", "fail"), ("595", "fail"), ("5", "pass")],
    )
    def test_driver(self, dgx: Gathered, wanted: str, verdict: str) -> None:
        assert verdicts(judged(dgx, min_driver_version=wanted))["driver.minimum_version", "host"] == verdict

    @pytest.mark.parametrize(
        ("wanted", "state", "verdict"),
        [
            ("any", "enabled", "info"),
            ("any", "disabled", "info"),
            ("disabled", "disabled", "pass"),
            ("disabled", "enabled", "fail"),
        ],
    )
    def test_ecc(self, dgx: Gathered, wanted: str, state: str, verdict: str) -> None:
        changed = both(gpu("ecc.current", state), gpu("ecc.pending", state))(dgx)
        assert verdicts(judged(changed, ecc=wanted))["ecc.mode", FIRST] == verdict

    def test_a_model_that_does_not_fit(self, dgx: Gathered) -> None:
        found = verdicts(judged(dgx, model_bytes=700 * GIB))
        assert found["host.gpu_memory", "host"] == "fail"
        assert ("host.gpu_memory", "host") not in verdicts(judged(dgx))


class TestNoDriver:
    def broken(self, dgx: Gathered, reason: str, msg: str = "It failed: why. Do that.") -> Gathered:
        failure = NvmlFailure(msg, reason=reason)
        return replace(dgx, driver=replace(dgx.driver, facts=None, failure=failure, board={}), cuda=None, links={})

    def test_not_installed(self, dgx: Gathered) -> None:
        gpus = tuple(replace(on_bus, device=replace(on_bus.device, driver=None)) for on_bus in dgx.host.gpus)
        bare = both(
            host(gpus=gpus),
            files(modules={}, version_line=None, device_nodes=frozenset(), minors={}),
            driver(fabric_manager=FabricManager(None, None, "absent")),
        )(self.broken(dgx, "library_missing"))
        checks = judged(bare)
        bad = {(check.check, check.on.name): check for check in checks if check.verdict == "fail"}
        assert set(bad) == {
            ("driver.kernel_module", "host"),
            ("driver.library", "host"),
            ("driver.fabric_manager", "host"),
            *(("driver.bound", on_bus.bus_id) for on_bus in gpus),
        }
        assert (
            "580" in bad["driver.kernel_module", "host"].fix
            and "6.8.0-60-generic" in bad["driver.kernel_module", "host"].fix
        )
        # What firmware did can be told without a driver.
        assert verdicts(checks)["firmware.above_4g", FIRST] == "pass"
        assert verdicts(checks)["cuda.init", "host"] == "skipped"

    def test_secure_boot_is_named(self, dgx: Gathered) -> None:
        bare = both(firmware(secure_boot=True), files(modules={}, version_line=None))(
            self.broken(dgx, "driver_not_loaded")
        )
        (check,) = [check for check in judged(bare) if check.check == "driver.kernel_module"]
        assert "Secure Boot is enabled" in check.fix and "mokutil" in check.fix

    def test_nouveau_has_the_gpus(self, dgx: Gathered) -> None:
        gpus = tuple(replace(on_bus, device=replace(on_bus.device, driver="nouveau")) for on_bus in dgx.host.gpus)
        bare = both(host(gpus=gpus), files(modules={"nouveau": None}, version_line=None))(
            self.broken(dgx, "driver_not_loaded")
        )
        found = {check.check: check for check in judged(bare)}
        assert found["driver.other_drivers"].verdict == found["driver.bound"].verdict == "fail"
        assert "blacklist nouveau" in found["driver.bound"].fix
        assert "nouveau" in found["driver.kernel_module"].fix

    def test_set_aside_for_a_virtual_machine(self, dgx: Gathered) -> None:
        def apply(gathered: Gathered) -> Gathered:
            first: GpuOnBus = gathered.host.gpus[0]
            return on_bus(device=replace(first.device, driver="vfio-pci"))(gathered)

        found = {(check.check, check.on.name): check for check in judged(apply(unseen(dgx)))}
        assert found["driver.bound", FIRST].verdict == "fail" and "vfio-pci" in found["driver.bound", FIRST].fix

    @pytest.mark.parametrize(
        ("reason", "verdict"),
        [
            ("library_missing", "fail"),
            ("version_mismatch", "fail"),
            ("driver_not_loaded", "fail"),
            ("unknown", "fail"),
            # Nothing is known of the driver.
            ("no_permission", "unknown"),
            ("python_library_missing", "unknown"),
        ],
    )
    def test_reasons(self, dgx: Gathered, reason: str, verdict: str) -> None:
        (check,) = [check for check in judged(self.broken(dgx, reason)) if check.check == "driver.library"]
        assert (check.verdict, check.observed) == (verdict, "It failed: why") and check.fix


def soaked(dgx: Gathered, **changes: t.Any) -> Soaked:
    record = t.cast("dict[str, t.Any]", dgx.gpus[0])
    one = Soaked(record)
    one.burn = Burn(CudaTarget("GPU 0", record["uuid"], FIRST), "tensor_fp16", 60.0, 600, 251.3, 0, None)
    one.take(0.0, 1410, 40, 390.0, ["gpu_idle"])
    one.take(5.0, 1275, 64, 399.5, ["sw_power_cap"])
    for name, value in changes.items():
        setattr(one, name, value)
    return one


class TestSoak:
    def run(self, dgx: Gathered, one: Soaked, *xids: LogEvent) -> Check:
        checks = judged(replace(dgx, soaked=(one,), soak_xids=xids), soak_minutes=1)
        (check,) = [check for check in checks if check.check == "power.soak"]
        return check

    def test_well(self, dgx: Gathered) -> None:
        check = self.run(dgx, soaked(dgx))
        assert check.verdict == "pass"
        assert check.observed == (
            "251.3 TFLOP/s (tensor_fp16), up to 400 W, up to 64 C, at least 1275 MHz, held down by sw_power_cap"
        )

    @pytest.mark.parametrize(
        ("changes", "verdict"),
        [
            ({"reasons": {"hw_thermal_slowdown"}}, "fail"),
            ({"reasons": {"sw_thermal_slowdown"}}, "warn"),
            ({"temperature_celsius_max": 85}, "warn"),
            ({"failure": "nvmlX failed: GPU is lost. Look."}, "fail"),
            ({"skipped": "in use by process 42"}, "skipped"),
            ({"burn": Burn(CudaTarget("GPU 0", None, FIRST), "fp32", 60.0, 1, 1.0, 3, None)}, "fail"),
            (
                {
                    "burn": Burn(
                        CudaTarget("GPU 0", None, FIRST),
                        None,
                        0.0,
                        0,
                        None,
                        None,
                        CudaFailure("It hangs.", reason="timeout"),
                    )
                },
                "fail",
            ),
        ],
    )
    def test_badly(self, dgx: Gathered, changes: dict[str, t.Any], verdict: str) -> None:
        assert self.run(dgx, soaked(dgx, **changes)).verdict == verdict

    def test_an_xid_meanwhile(self, dgx: Gathered) -> None:
        check = self.run(dgx, soaked(dgx), event(94))
        assert check.verdict == "fail" and "94" in check.observed and "94" in check.fix
        # Another GPU's.
        assert self.run(dgx, soaked(dgx), event(94, THIRD)).verdict == "pass"


class TestKindsThatAreNotKnown:
    """Nothing is held against them."""

    def test_gpu(self, dgx: Gathered) -> None:
        def apply(facts: dict[str, t.Any]) -> None:
            for record in facts["gpus"]:
                record.update(expectations=None, name="NVIDIA X999")
                record["pci"]["device_id"] = "ffff"
                record["bar1"]["total_bytes"] = 2**28

        strange = driver(board={})(facts_with(dgx, apply))
        bad = {check.check for check in judged(window(0xD0000000, 2**28)(strange)) if check.verdict in ("warn", "fail")}
        assert bad == set()

    def test_integrated(self, dgx: Gathered) -> None:
        def apply(facts: dict[str, t.Any]) -> None:
            del facts["gpus"][1:]
            facts.update(gpu_count=1, pci_gpu_count=0, pci_gpus=[], topology=[], nvswitches=[])
            facts["gpus"][0].update(
                pci_bus_id=None, remapped_rows=None, bar1=None, expectations=None, name="Orin (nvgpu)"
            )

        bare = both(
            host(gpus=(), nvswitches=(), acs={}),
            files(modules={"nvidia": DRIVER}, device_nodes=frozenset({"nvidiactl"}), minors={}),
            driver(board={}, fabric_manager=FabricManager(None, None, "absent")),
        )(facts_with(dgx, apply))
        assert {check.check for check in judged(bare) if check.verdict in ("warn", "fail")} == set()

    def test_container_that_sees_no_bus(self, dgx: Gathered) -> None:
        bare = host(gpus=(), acs={}, nvswitches=())(dgx)
        bad = {check.check for check in judged(bare) if check.verdict in ("warn", "fail")}
        # That the switches are hidden cannot be told from their being gone.
        assert bad <= {"driver.nvswitches"}


def test_what_a_check_must_have() -> None:
    Check("mig.mode", "MIG", "warn", "enabled", "disabled", "Disable it.")
    with pytest.raises(ValueError, match="fix"):
        Check("mig.mode", "MIG", "warn", "enabled", "disabled")
    with pytest.raises(ValueError, match="fix"):
        Check("mig.mode", "MIG", "pass", "disabled", "disabled", "Disable it.")
    with pytest.raises(ValueError, match="no such group"):
        Check("mik.mode", "MIG", "pass", "disabled", "disabled")
    with pytest.raises(ValueError, match="no such"):
        Check("mig.mode", "MIG", "good", "disabled", "disabled")
    assert VERDICTS == ("pass", "info", "skipped", "unknown", "warn", "fail")
