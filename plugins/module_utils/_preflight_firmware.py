# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""Checks of what firmware and kernel set up before any driver: boot, address space, idle states, IOMMU, NUMA. Pure.

From Linux most firmware settings can only be told by what they lead to. So a check names the setting to look for, and
is silent about a setting that leads to nothing bad: SR-IOV that is merely possible, idle states, an IOMMU on a machine
whose GPUs reach each other over NVLink.
"""

from __future__ import annotations

import typing as t

from ansible_collections.baremetal.inference.plugins.module_utils._preflight import (
    BECOME_ROOT,
    FAIL,
    GIB,
    INFO,
    PASS,
    SKIPPED,
    UNKNOWN,
    WARN,
    Check,
    Subject,
    listed,
    size,
)
from ansible_collections.baremetal.inference.plugins.module_utils._preflight_host import (
    IORESOURCE_MEM,
    IORESOURCE_PREFETCH,
    Bar,
    GpuOnBus,
    HostFacts,
)

_FOUR_GIB = 4 * GIB
_ABOVE_4G = (
    "In the firmware setup, enable 'Above 4G Decoding' (also called 'Memory Mapped I/O above 4GB') and boot by UEFI"
)
# P2P request redirect, P2P completion redirect and egress control of the ACS control register: with any of them a
# switch sends traffic between two of its devices up to the processor. The kernel's pci=disable_acs_redir= clears these.
_ACS_REDIRECT = 0x04 | 0x08 | 0x20
# With these drivers "powersave" scales with load (the kernel's admin-guide/pm/{intel_pstate,amd-pstate}.rst); with any
# other it pins the lowest frequency (admin-guide/pm/cpufreq.rst).
_SCALING_POWERSAVE = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")


def firmware_checks(
    host: HostFacts, gpus: t.Sequence[t.Mapping[str, t.Any]], pairs: t.Sequence[t.Mapping[str, t.Any]]
) -> list[Check]:
    """``gpus`` and ``pairs`` are gpu_info's, both empty when the driver could not be asked."""
    by_bus = {gpu["pci_bus_id"]: gpu for gpu in gpus}
    checks = [_boot_mode(host), _secure_boot(host), _idle_states(host), _governor(host), _numa_balancing(host)]
    checks += [_iommu(host, pairs), _acs(host, pairs)]
    for on_bus in host.gpus:
        gpu = by_bus.get(on_bus.bus_id)
        on = Subject(on_bus.bus_id, None if gpu is None else gpu["index"])
        checks += [_above_4g(on_bus, gpu, on), _sriov(on_bus, on), _numa(host, on_bus, on)]
        if gpu is not None:
            checks.append(_bar1(gpu, host.machine.virtual, on))
    return checks


def _boot_mode(host: HostFacts) -> Check:
    # An A100 works with either; firmware without UEFI often has no room above 4 GiB, which is checked by itself.
    return Check(
        "firmware.boot_mode",
        "Boot mode",
        PASS if host.firmware.efi else INFO,
        "UEFI" if host.firmware.efi else "no UEFI (legacy boot, or a virtual machine without it)",
        "UEFI",
    )


def _secure_boot(host: HostFacts) -> Check:
    name, title, expected = "firmware.secure_boot", "Secure Boot", "either; when enabled, the driver must be signed"
    if not host.firmware.efi:
        return Check(name, title, SKIPPED, "no UEFI", expected)
    if host.firmware.secure_boot_denied:
        return Check(name, title, UNKNOWN, "the firmware variable may not be read", expected, BECOME_ROOT)
    if host.firmware.secure_boot is None:
        return Check(name, title, INFO, "the firmware has no such variable", expected)
    if not host.firmware.secure_boot:
        return Check(name, title, INFO, "disabled", expected)
    loaded = "nvidia" in host.driver.modules
    # What to do about a module that is not loaded is said where that is checked.
    return Check(name, title, PASS if loaded else INFO, "enabled", expected)


def _idle_states(host: HostFacts) -> Check:
    name, title = "firmware.idle_states", "Processor idle states"
    expected = "a trade of wake-up time against power; deep states can add latency to short requests"
    firmware = host.firmware
    enabled = [state for state in firmware.idle_states if not state.disabled]
    if not firmware.idle_driver or firmware.idle_driver == "none" or not enabled:
        return Check(name, title, INFO, "the kernel controls none", expected)
    deepest = max(enabled, key=lambda state: state.latency_us or 0)
    return Check(
        name,
        title,
        INFO,
        f"driver {firmware.idle_driver}, governor {firmware.idle_governor or 'unknown'}; deepest enabled state"
        f" {deepest.name} ({deepest.latency_us} us to wake)",
        expected,
    )


def _governor(host: HostFacts) -> Check:
    name, title, expected = (
        "firmware.frequency_governor",
        "Processor frequency governor",
        "performance, or one that scales",
    )
    governors = host.firmware.frequency_governors
    if not governors:
        return Check(name, title, INFO, "the kernel does not set frequencies", expected)
    observed = f"{host.firmware.frequency_driver or 'unknown driver'}: " + listed(
        f"{governor} on {count}" for governor, count in sorted(governors.items())
    )
    slow = "powersave" in governors and host.firmware.frequency_driver not in _SCALING_POWERSAVE
    if slow:
        return Check(
            name,
            title,
            WARN,
            observed,
            expected,
            "Set the governor with 'cpupower frequency-set -g performance' and let tuned keep it"
            " ('tuned-adm profile throughput-performance'): with this driver, powersave pins the lowest frequency.",
        )
    return Check(name, title, PASS if set(governors) == {"performance"} else INFO, observed, expected)


def _numa_balancing(host: HostFacts) -> Check:
    name, title, expected = "firmware.numa_balancing", "Automatic NUMA balancing", "either"
    setting = host.firmware.numa_balancing
    if setting is None or len(host.machine.nodes) < 2:
        return Check(name, title, SKIPPED, "one NUMA node" if host.machine.nodes else "no NUMA", expected)
    observed = "on: the kernel moves memory after the program that uses it" if setting else "off"
    return Check(name, title, INFO, observed, expected)


def _over_pcie(pairs: t.Sequence[t.Mapping[str, t.Any]]) -> list[t.Mapping[str, t.Any]]:
    """Pairs that reach each other over PCIe: no NVLink joins them, and the driver does not rule it out."""
    return [pair for pair in pairs if not pair["nvlink_count"] and pair["p2p"]["read"] in ("ok", None)]


def _ports_between(host: HostFacts, pairs: t.Sequence[t.Mapping[str, t.Any]]) -> set[str]:
    """Ports that traffic between two GPUs below a common PCIe switch comes by, of those that reach each other so."""
    # The port at the root is the end of each path: traffic that comes so far has to pass the processor anyway.
    above = {gpu.bus_id: gpu.ports[:-1] for gpu in host.gpus}
    found: set[str] = set()
    for pair in _over_pcie(pairs):
        a, b = above.get(pair["a"], ()), above.get(pair["b"], ())
        if set(a) & set(b):
            found |= set(a) ^ set(b)
    return found


def _iommu(host: HostFacts, pairs: t.Sequence[t.Mapping[str, t.Any]]) -> Check:
    """NVIDIA: on bare metal, peer copies over PCIe are not supported through a translating IOMMU; use iommu=pt.

    CUDA programming guide, "Host IOMMU Hardware, PCI Access Control Services, and VMs".
    """
    name, title, expected = "firmware.iommu", "IOMMU", "off, or pass-through (iommu=pt), where GPUs are peers over PCIe"
    if not host.firmware.iommus:
        return Check(name, title, PASS, "off, or the machine has none", expected)
    types = sorted({gpu.iommu_type for gpu in host.gpus if gpu.iommu_type})
    if not types:
        grouped = any(gpu.iommu_group for gpu in host.gpus)
        return Check(
            name,
            title,
            INFO,
            "on; the kernel does not say how it treats the GPUs" if grouped else "on, not for the GPUs",
            expected,
        )
    if types == ["identity"]:
        return Check(name, title, PASS, "on, pass-through (identity)", expected)
    observed = f"on, translating ({', '.join(types)})"
    if host.machine.virtual or not _over_pcie(pairs):
        unknown = len(host.gpus) > 1 and not pairs
        reason = "how the GPUs reach each other is not known" if unknown else "no two GPUs are peers over PCIe alone"
        return Check(name, title, INFO, f"{observed}; {reason}", expected)
    return Check(
        name,
        title,
        WARN,
        observed,
        expected,
        "Add iommu=pt to the kernel command line, write the boot loader's configuration anew and reboot.",
    )


def _acs(host: HostFacts, pairs: t.Sequence[t.Mapping[str, t.Any]]) -> Check:
    name, title = "firmware.acs", "PCIe access control services"
    expected = "no redirection in PCIe switches between GPUs that reach each other through them"
    ports = sorted({port for gpu in host.gpus for port in gpu.ports[:-1]})
    if not ports or len(host.gpus) < 2:
        observed = "no PCIe switch above a GPU" if not ports else "one GPU: it has no peer"
        return Check(name, title, SKIPPED, observed, expected)
    between = _ports_between(host, pairs)
    beside = "no GPUs reach each other through one switch" if pairs else "how the GPUs reach each other is not known"
    unreadable = [port for port in ports if not host.acs[port].readable]
    if unreadable:
        observed = f"the configuration space of {len(unreadable)} of {len(ports)} ports cannot be read"
        if pairs and not between:
            return Check(name, title, SKIPPED, f"{observed}; {beside}", expected)
        fix = "Run 'lspci -vvv' as root on the host and look at ACSCtl of these ports." if host.root else BECOME_ROOT
        return Check(name, title, UNKNOWN, observed, expected, fix)
    redirecting = [port for port in ports if (host.acs[port].control or 0) & _ACS_REDIRECT]
    if not redirecting:
        return Check(name, title, PASS, f"no redirection in {len(ports)} ports", expected)
    observed = f"redirection in {listed(redirecting, 4)}"
    harmful = [port for port in redirecting if port in between]
    if not harmful:
        return Check(name, title, INFO, f"{observed}; {beside}", expected)
    return Check(
        name,
        title,
        WARN,
        observed,
        expected,
        "Disable ACS (or the IOMMU, which turns it on) in the firmware setup, or clear it at boot with the kernel"
        f" parameter pci=disable_acs_redir={';'.join(harmful[:4])}{';...' if len(harmful) > 4 else ''}; leave it when"
        " GPUs are handed to virtual machines.",
    )


def _window(on_bus: GpuOnBus) -> Bar | None:
    """The window onto the GPU's memory: the largest prefetchable BAR."""
    windows = [one for one in on_bus.bars or () if one.flags & IORESOURCE_MEM and one.flags & IORESOURCE_PREFETCH]
    return max(windows, key=lambda one: one.size, default=None)


def _figure(gpu: t.Mapping[str, t.Any] | None, name: str) -> t.Any:
    """What this kind of GPU should have; None when there is no such expectation."""
    expectations = (gpu or {}).get("expectations")
    return None if expectations is None else expectations["figures"][name]["value"]


def _above_4g(on_bus: GpuOnBus, gpu: t.Mapping[str, t.Any] | None, on: Subject) -> Check:
    name, title, expected = (
        "firmware.above_4g",
        "Memory window in the address space",
        "placed; above 4 GiB when it is large",
    )
    if on_bus.bars is None:
        return Check(
            name,
            title,
            UNKNOWN,
            "sysfs has no resource file for the device",
            expected,
            f"Look at the regions that 'lspci -vv -s {on_bus.bus_id}' prints.",
            on=on,
        )
    window = _window(on_bus)
    if window is None or not window.placed:
        return Check(
            name,
            title,
            FAIL,
            "the kernel found no room for it" if window else "none",
            expected,
            f"{_ABOVE_4G}; when it is enabled, update the firmware or boot with pci=realloc.",
            on=on,
        )
    observed = f"{size(window.size)} at {window.start:#x}"
    wanted = _figure(gpu, "bar1_bytes")
    if window.start >= _FOUR_GIB or wanted is None or window.size >= wanted:
        return Check(name, title, PASS, observed, expected, on=on)
    return Check(name, title, WARN, observed, expected, f"{_ABOVE_4G}.", on=on)


def _bar1(gpu: t.Mapping[str, t.Any], virtual: bool, on: Subject) -> Check:
    name, title = "firmware.bar1_size", "BAR1"
    wanted = _figure(gpu, "bar1_bytes")
    memory = None if gpu["memory"] is None else gpu["memory"]["total_bytes"]
    total = None if gpu["bar1"] is None else gpu["bar1"]["total_bytes"]
    expected = (
        f"{size(wanted)} ({gpu['expectations']['name']})" if wanted else "the size of the memory, where the board can"
    )
    if total is None:
        return Check(name, title, INFO, "the driver gives none", expected, on=on)
    if total >= (wanted or 0) and (wanted or (memory is not None and total >= memory)):
        return Check(name, title, PASS, size(total), expected, on=on)
    if wanted is None or virtual:
        # A virtual machine gets the window that its host gives; of other boards nothing is known.
        return Check(name, title, INFO, size(total), expected, on=on)
    return Check(
        name,
        title,
        WARN,
        size(total),
        expected,
        f"{_ABOVE_4G}; enable 'Resizable BAR' too where there is such a setting.",
        on=on,
    )


def _sriov(on_bus: GpuOnBus, on: Subject) -> Check:
    name, title, expected = "firmware.sriov", "SR-IOV", "no virtual functions in use, unless for vGPU"
    if not on_bus.sriov_total:
        return Check(name, title, INFO, "not offered", expected, on=on)
    if on_bus.sriov_used:
        return Check(
            name,
            title,
            WARN,
            f"{on_bus.sriov_used} of {on_bus.sriov_total} virtual functions in use",
            expected,
            f"If no virtual machine uses this GPU, write 0 to /sys/bus/pci/devices/{on_bus.bus_id}/sriov_numvfs.",
            on=on,
        )
    # Being able to is harmless: nothing uses it on bare metal.
    return Check(name, title, PASS, f"none of {on_bus.sriov_total} virtual functions in use", expected, on=on)


def _numa(host: HostFacts, on_bus: GpuOnBus, on: Subject) -> Check:
    name, title, expected = "firmware.numa", "NUMA node", "a node that has processors and memory"
    nodes = {node.node: node for node in host.machine.nodes}
    if on_bus.numa_node is None:
        if len(nodes) < 2:
            return Check(name, title, PASS, "the machine has one node", expected, on=on)
        if host.machine.virtual:
            return Check(name, title, INFO, "the virtual machine does not say", expected, on=on)
        return Check(
            name,
            title,
            WARN,
            f"the firmware names none of {len(nodes)}",
            expected,
            "Update the firmware, and enable NUMA (disable 'Node Interleaving') in its setup.",
            on=on,
        )
    node = nodes.get(on_bus.numa_node)
    if node is None:
        return Check(name, title, INFO, f"node {on_bus.numa_node}, of which the kernel says nothing", expected, on=on)
    cpus = f"processors {node.cpulist}" if node.cpulist else "no processors"
    observed = f"node {node.node}: {cpus}, {size(node.memory_bytes)}"
    if node.memory_bytes == 0:
        return Check(
            name,
            title,
            WARN,
            observed,
            expected,
            f"Fit memory to the processor of node {node.node}: all transfers of this GPU cross to another one.",
            on=on,
        )
    return Check(name, title, PASS if node.cpulist else INFO, observed, expected, on=on)
