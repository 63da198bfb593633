# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""Checks of the driver: module, library and Fabric Manager of one version, and every GPU of the bus in its hands.

The one part that is not pure, ``read_fabric_manager``, asks programs that only read.
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass

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
)

if t.TYPE_CHECKING:
    from ansible_collections.baremetal.inference.plugins.module_utils._gpu_errors import GpuFailure
    from ansible_collections.baremetal.inference.plugins.module_utils._preflight_host import GpuOnBus, HostFacts
    from ansible_collections.baremetal.inference.plugins.module_utils._preflight_log import Command

FABRIC_MANAGER_UNIT = "nvidia-fabricmanager.service"
# It prints "Fabric Manager version is : 580.95.05" (Fabric Manager User Guide, command-line options).
_FABRIC_MANAGER_VERSION = re.compile(r"Fabric Manager version is\s*:\s*([0-9.]+)")
_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+)+")

_OTHER_DRIVERS: t.Mapping[str, str] = {
    "nouveau": (
        "Put 'blacklist nouveau' and 'options nouveau modeset=0' into a file in /etc/modprobe.d, rebuild the initramfs"
        " and reboot."
    ),
    "nova_core": "Put 'blacklist nova_core' into a file in /etc/modprobe.d, rebuild the initramfs and reboot.",
    "vfio-pci": (
        "Give the GPU back to the host: remove it from the vfio-pci ids (kernel command line and /etc/modprobe.d) and"
        " reboot."
    ),
}
_KERNEL_MODULE_NAMES = ("nouveau", "nova_core", "nova_drm")
_LOOK_IN_LOG = "Look at the NVRM lines of that time in the kernel log ('journalctl -k -g NVRM'); they name the cause."
_LIBRARY_FIXES: t.Mapping[str, str] = {
    "library_missing": (
        "Install the driver's user-space part, the package that holds libnvidia-ml.so.1, in the version of the kernel"
        " module, and run 'ldconfig'."
    ),
    "driver_not_loaded": "Load the driver with 'modprobe nvidia'; if that fails, the kernel log says why.",
    "version_mismatch": (
        "Reboot, or stop everything that uses the GPUs and run 'modprobe -r nvidia_uvm nvidia_drm nvidia_modeset"
        " nvidia' and 'modprobe -a nvidia nvidia_uvm': the loaded module is older or newer than the library."
    ),
    "no_permission": "Run the task with become: true, or give the user access to /dev/nvidiactl and /dev/nvidia0 and so on.",
    "python_library_missing": "Install nvidia-ml-py for the Python that runs Ansible ('pip install nvidia-ml-py').",
}
# The checks could not be made, which says nothing about the driver.
_NOT_THE_DRIVER = ("python_library_missing", "no_permission")
_RECOVERY: t.Mapping[str, str] = {
    "gpu_reset": "Stop what uses the GPU and run 'nvidia-smi --gpu-reset -i {gpu}', or reboot.",
    "bus_reset": "Stop what uses the GPU and run 'nvidia-smi --gpu-reset -i {gpu}', or reboot.",
    "node_reboot": "Drain and reboot the host.",
    "system_reboot": "Drain and reboot the host.",
    "drain_p2p": "Stop programs that use NVLink or peer access on this GPU, and do not start new ones before it is reset.",
    "drain_and_reset": "Let its programs end, start no new ones, and run 'nvidia-smi --gpu-reset -i {gpu}'.",
    "recover_imex_domain": "Recover the IMEX domain: restart nvidia-imex on all of its nodes.",
}


@dataclass(frozen=True)
class FabricManager:
    """None is what could not be found out."""

    version: str | None
    # Where the version is from.
    source: str | None
    # systemd's ActiveState; "absent" when there is no such unit.
    state: str | None


def read_fabric_manager(command: Command, which: t.Callable[[str], str | None]) -> FabricManager:
    """The version of the program that would run; where that does not tell, of its package."""
    version, source = None, None
    binary = which("nv-fabricmanager")
    if binary:
        status, output, errors = command([binary, "--version"])
        match = _FABRIC_MANAGER_VERSION.search(output + errors)
        if match:
            version, source = match.group(1), "program"
    dpkg, rpm = which("dpkg-query"), which("rpm")
    if version is None and dpkg:
        status, output, errors = command(
            [dpkg, "--show", "--showformat=${db:Status-Status} ${Version}\\n", "nvidia-fabricmanager*"]
        )
        version, source = _package_version([line for line in output.splitlines() if line.startswith("installed ")])
    if version is None and rpm:
        status, output, errors = command(
            [rpm, "--query", "--all", "--queryformat", "%{VERSION}\\n", "nvidia-fabric*manager*"]
        )
        version, source = _package_version(output.splitlines())
    state = None
    systemctl = which("systemctl")
    if systemctl:
        status, output, errors = command([systemctl, "show", "--property=LoadState,ActiveState", FABRIC_MANAGER_UNIT])
        values = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
        if status == 0 and values:
            state = "absent" if values.get("LoadState") == "not-found" else values.get("ActiveState")
    return FabricManager(version=version, source=source, state=state)


def _package_version(lines: t.Sequence[str]) -> tuple[str | None, str | None]:
    """Of "installed 1:580.95.05-0ubuntu1": 580.95.05."""
    for line in lines:
        match = _VERSION.search(line.rsplit(":", 1)[-1])
        if match:
            return match.group(0), "package"
    return None, None


def module_flavour(version_line: str | None) -> str | None:
    """Open modules say so in /proc/driver/nvidia/version; the proprietary one says "Kernel Module" alone."""
    if version_line is None:
        return None
    return "open" if "Open Kernel Module" in version_line else "proprietary"


def version_parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]+", version))


def kernel_module_version(host: HostFacts) -> str | None:
    """As sysfs has it, else as procfs has it: in a container there may be only the latter."""
    version = host.driver.modules.get("nvidia")
    if version:
        return version
    match = _VERSION.search(host.driver.version_line or "")
    return match.group(0) if match else None


@dataclass(frozen=True)
class DriverFacts:
    """What was found out about the driver, by NVML and beside it."""

    # gpu_info's result, or why there is none.
    facts: t.Mapping[str, t.Any] | None
    failure: GpuFailure | None
    fabric_manager: FabricManager
    # Figures of the board that carries the GPUs, by name; empty when the board is not known.
    board: t.Mapping[str, t.Any]


def driver_checks(host: HostFacts, driver: DriverFacts, *, min_version: str, gpu_count: int | None) -> list[Check]:
    facts = driver.facts
    checks = [
        _kernel_module(host, min_version),
        _other_drivers(host),
        _companion_modules(host, facts),
        _library(driver, host),
        _versions_equal(host, facts),
        _minimum(host, facts, min_version),
        _fabric_manager(host, driver),
        _nvswitches(host, driver.board),
        _device_nodes(host, facts),
        _count(host, driver, gpu_count),
    ]
    seen = {} if facts is None else {gpu["pci_bus_id"]: gpu for gpu in facts["gpus"]}
    checks += [_bound(on_bus, seen.get(on_bus.bus_id)) for on_bus in host.gpus]
    if facts is None:
        return checks
    slots = {on_bus.bus_id: on_bus for on_bus in host.gpus}
    checks += [_answers(gpu) for gpu in facts["gpus"]]
    checks += [_silent(gpu, slots) for gpu in facts["unavailable_gpus"]]
    silent = {gpu["pci_bus_id"] for gpu in facts["unavailable_gpus"]}
    checks += [
        _missing(slots[bus_id]) for bus_id in facts["missing_from_nvml"] if bus_id not in silent and bus_id in slots
    ]
    for gpu in facts["gpus"]:
        checks += _recovery(gpu)
        checks.append(_persistence(gpu))
        checks += _read_errors(gpu)
    return checks


def subject(gpu: t.Mapping[str, t.Any]) -> Subject:
    """A GPU by its bus id; one that is not on a bus by its UUID."""
    return Subject(gpu["pci_bus_id"] or gpu["uuid"] or f"GPU {gpu['index']}", gpu["index"])


def _kernel_module(host: HostFacts, min_version: str) -> Check:
    name, title, expected = "driver.kernel_module", "Kernel module", "the nvidia module loaded"
    version = kernel_module_version(host)
    if version or "nvidia" in host.driver.modules:
        flavour = module_flavour(host.driver.version_line)
        return Check(
            name, title, PASS, f"nvidia {version or '(no version)'}" + (f", {flavour}" if flavour else ""), expected
        )
    if not host.gpus:
        return Check(name, title, SKIPPED, "not loaded, and no NVIDIA GPU on the PCI bus", expected)
    holders = sorted({gpu.device.driver or "" for gpu in host.gpus if gpu.device.driver in _OTHER_DRIVERS})
    if holders:
        fix = f"Take the GPUs from {listed(holders)} first, then install and load the NVIDIA driver."
    else:
        fix = (
            f"Install the NVIDIA driver, branch {min_version} or newer, with its module for the kernel"
            f" {host.machine.kernel or 'that runs'}; when it is installed, run 'modprobe nvidia'."
        )
        if host.firmware.secure_boot:
            fix += (
                " Secure Boot is enabled: the module must be signed, by the distribution's prebuilt modules or with a"
                " key of your own ('mokutil --import', confirmed on the console at the next boot)."
            )
    return Check(name, title, FAIL, "not loaded", expected, fix)


def _other_drivers(host: HostFacts) -> Check:
    name, title, expected = "driver.other_drivers", "Other drivers for NVIDIA GPUs", "neither nouveau nor nova loaded"
    loaded = [module for module in _KERNEL_MODULE_NAMES if module in host.driver.modules]
    if not loaded:
        return Check(name, title, PASS, "none", expected)
    bound = any(gpu.device.driver in _KERNEL_MODULE_NAMES for gpu in host.gpus)
    return Check(
        name,
        title,
        FAIL if bound else WARN,
        f"{listed(loaded)} loaded",
        expected,
        _OTHER_DRIVERS["nouveau" if "nouveau" in loaded else "nova_core"],
    )


def _integrated(facts: t.Mapping[str, t.Any] | None) -> bool:
    """Whether all GPUs are part of the processor (Jetson): their driver has other modules and nodes."""
    gpus = [] if facts is None else facts["gpus"]
    return bool(gpus) and all(gpu["pci_bus_id"] is None for gpu in gpus)


def _companion_modules(host: HostFacts, facts: t.Mapping[str, t.Any] | None) -> Check:
    name, title, expected = "driver.companion_modules", "Companion modules", "nvidia_uvm, which CUDA needs"
    modules = host.driver.modules
    if "nvidia" not in modules or _integrated(facts):
        reason = "integrated GPU" if _integrated(facts) else "the nvidia module is not loaded"
        return Check(name, title, SKIPPED, reason, expected)
    present = [module for module in ("nvidia_uvm", "nvidia_modeset", "nvidia_drm") if module in modules]
    if "nvidia_uvm" in modules or "nvidia-uvm" in host.driver.device_nodes:
        return Check(name, title, PASS, listed(present), expected)
    return Check(
        name,
        title,
        WARN,
        f"nvidia_uvm is not loaded (loaded: {listed(present)})",
        expected,
        "Run 'modprobe nvidia_uvm', and put nvidia_uvm into a file in /etc/modules-load.d: a service that starts before"
        " somebody loads it finds no CUDA.",
    )


def _library(driver: DriverFacts, host: HostFacts) -> Check:
    name, title, expected = "driver.library", "NVML library", "opens a session with the driver"
    if driver.failure is None:
        facts = driver.facts or {}
        return Check(
            name, title, PASS, f"NVML {facts.get('nvml_version')}, driver {facts.get('driver_version')}", expected
        )
    reason = driver.failure.reason
    verdict = UNKNOWN if reason in _NOT_THE_DRIVER else FAIL
    if reason == "library_missing" and not host.gpus:
        return Check(name, title, SKIPPED, "not installed, and no NVIDIA GPU on the PCI bus", expected)
    return Check(
        name, title, verdict, _first_sentence(driver.failure.msg), expected, _LIBRARY_FIXES.get(reason, _LOOK_IN_LOG)
    )


def _first_sentence(text: str) -> str:
    return text.split(". ", 1)[0].rstrip(".")


def _versions_equal(host: HostFacts, facts: t.Mapping[str, t.Any] | None) -> Check:
    name, title, expected = "driver.versions_equal", "Module and library", "of one version"
    module = kernel_module_version(host)
    if facts is None or module is None:
        return Check(name, title, SKIPPED, "one of the two is not there", expected)
    # The library's version is the CUDA version's first number and the driver's version: 13.580.159.04.
    library = (facts["nvml_version"] or "").partition(".")[2]
    observed = f"module {module}, library {library or 'unknown'}"
    if not library:
        return Check(name, title, INFO, observed, expected)
    if library == module:
        return Check(name, title, PASS, observed, expected)
    return Check(name, title, FAIL, observed, expected, _LIBRARY_FIXES["version_mismatch"])


def _minimum(host: HostFacts, facts: t.Mapping[str, t.Any] | None, min_version: str) -> Check:
    name, title, expected = "driver.minimum_version", "Driver branch", f"{min_version} or newer"
    version = (facts or {}).get("driver_version") or kernel_module_version(host)
    if not version:
        return Check(name, title, SKIPPED, "no driver", expected)
    if version_parts(version) >= version_parts(min_version):
        return Check(name, title, PASS, version, expected)
    return Check(
        name,
        title,
        FAIL,
        version,
        expected,
        f"Install a driver of branch {min_version} or newer (a long-term branch is best) and reboot: the inference"
        " engine's CUDA libraries need it.",
    )


def _fabric_manager(host: HostFacts, driver: DriverFacts) -> Check:
    name, title = "driver.fabric_manager", "Fabric Manager"
    manager = driver.fabric_manager
    installed = f"{manager.version or 'not installed'}" + (f", {manager.state}" if manager.state else "")
    if not host.nvswitches:
        return Check(name, title, SKIPPED, f"no NVSwitch on the PCI bus ({installed})", "only needed with NVSwitches")
    wanted = (driver.facts or {}).get("driver_version") or kernel_module_version(host)
    expected = f"{wanted or 'the version of the driver'}, active"
    if manager.version is None and manager.state in (None, "absent"):
        return Check(
            name,
            title,
            FAIL,
            "not installed",
            expected,
            f"Install the Fabric Manager package in exactly the driver's version ({wanted or 'unknown'}) and run"
            " 'systemctl enable --now nvidia-fabricmanager': without it CUDA does not start on NVSwitch machines.",
        )
    if manager.version and wanted and manager.version != wanted:
        return Check(
            name,
            title,
            FAIL,
            installed,
            expected,
            f"Install the Fabric Manager package in exactly the version {wanted}, hold it together with the driver, and"
            " run 'systemctl restart nvidia-fabricmanager' while no CUDA program runs.",
        )
    if manager.state not in (None, "active"):
        return Check(
            name,
            title,
            FAIL,
            installed,
            expected,
            "Run 'systemctl enable --now nvidia-fabricmanager'; if it does not stay up, 'journalctl -u"
            " nvidia-fabricmanager' and /var/log/fabricmanager.log say why.",
        )
    if manager.version is None or manager.state is None or wanted is None:
        return Check(
            name,
            title,
            UNKNOWN,
            installed,
            expected,
            "Compare 'nv-fabricmanager --version' with the driver's version, and look at 'systemctl status"
            " nvidia-fabricmanager'.",
        )
    return Check(name, title, PASS, installed, expected)


def _nvswitches(host: HostFacts, board: t.Mapping[str, t.Any]) -> Check:
    name, title = "driver.nvswitches", "NVSwitches"
    found = len(host.nvswitches)
    wanted = board.get("nvswitch_count") or None
    unbound = [switch.pci_bus_id for switch in host.nvswitches if not switch.driver]
    expected = f"{wanted} on the PCI bus" if wanted is not None else "each with a driver"
    if wanted is not None and found < wanted:
        return Check(
            name,
            title,
            FAIL,
            f"{found} on the PCI bus",
            expected,
            "Power-cycle the host; when a switch stays away, have the GPU baseboard checked.",
        )
    if unbound and "nvidia" in host.driver.modules:
        return Check(
            name,
            title,
            FAIL,
            f"{listed(unbound)} without a driver",
            expected,
            "Look in the kernel log for nvidia-nvswitch lines; reload the driver or reboot.",
        )
    if not found:
        return Check(name, title, SKIPPED, "none on the PCI bus", expected)
    return Check(name, title, PASS, f"{found} on the PCI bus", expected)


def _device_nodes(host: HostFacts, facts: t.Mapping[str, t.Any] | None) -> Check:
    name, title = "driver.device_nodes", "Device nodes"
    minors = {gpu["minor_number"] for gpu in (facts or {}).get("gpus", ()) if gpu["minor_number"] is not None}
    minors |= set(host.driver.minors.values())
    wanted = ["nvidiactl", *(f"nvidia{minor}" for minor in sorted(minors)), "nvidia-uvm"]
    expected = listed((f"/dev/{node}" for node in wanted), 12)
    if _integrated(facts) or (facts is None and "nvidia" not in host.driver.modules):
        return Check(name, title, SKIPPED, "integrated GPU" if _integrated(facts) else "no driver", expected)
    missing = [node for node in wanted if node not in host.driver.device_nodes]
    if not missing:
        return Check(name, title, PASS, f"all {len(wanted)} are there", expected)
    observed = f"missing: {listed(f'/dev/{node}' for node in missing)}"
    # The node of unified memory appears with the first CUDA program, if that may create it.
    verdict = WARN if missing == ["nvidia-uvm"] else FAIL
    # In nvidia-modprobe, -u is about the node of unified memory instead of those of GPUs, and 0 its number.
    makers = ["'nvidia-smi'"] if missing != ["nvidia-uvm"] else []
    makers += ["'nvidia-modprobe -u -c=0'"] if "nvidia-uvm" in missing else []
    return Check(
        name,
        title,
        verdict,
        observed,
        expected,
        f"Run {' and '.join(makers)} as root, which makes the nodes, and enable nvidia-persistenced, which makes them at"
        " boot.",
    )


def _count(host: HostFacts, driver: DriverFacts, gpu_count: int | None) -> Check:
    name, title = "driver.gpu_count", "GPUs"
    on_bus = len(host.gpus)
    in_nvml = None if driver.facts is None else driver.facts["gpu_count"]
    wanted = gpu_count if gpu_count is not None else driver.board.get("gpu_count")
    observed = f"{on_bus} on the PCI bus, {'unknown' if in_nvml is None else in_nvml} in NVML"
    expected = f"{wanted}" if wanted is not None else "at least one, and as many in NVML as on the bus"
    # Integrated GPUs are not on the bus, and a container may not see it.
    there = max(on_bus, in_nvml or 0)
    if wanted is not None and there < wanted:
        return Check(
            name,
            title,
            FAIL,
            observed,
            expected,
            "Find the GPU that is missing: power-cycle the host, look at the BMC's inventory, and have it reseated or"
            " replaced; if the host was built with fewer, set the expected number.",
        )
    if gpu_count is not None and there > gpu_count:
        return Check(
            name, title, WARN, observed, expected, "Correct the expected number of GPUs of this host in the inventory."
        )
    if not there:
        return Check(
            name,
            title,
            FAIL,
            observed,
            expected,
            "Take the host out of the group of GPU hosts, or look for the card: its seat, its power cables, the slot in"
            " the firmware setup.",
        )
    return Check(name, title, PASS if in_nvml is not None else INFO, observed, expected)


def _bound(on_bus: GpuOnBus, gpu: t.Mapping[str, t.Any] | None) -> Check:
    name, title, expected = "driver.bound", "Kernel driver of the GPU", "nvidia"
    on = Subject(on_bus.bus_id, None if gpu is None else gpu["index"])
    holder = on_bus.device.driver
    if holder == "nvidia":
        return Check(name, title, PASS, holder, expected, on=on)
    if gpu is not None:
        # A container's sysfs need not show drivers; NVML has the GPU.
        return Check(name, title, INFO, holder or "sysfs names none", expected, on=on)
    fix = _OTHER_DRIVERS.get(
        holder or "", f"Load the NVIDIA driver; if it leaves this GPU alone, the kernel log says why. {_LOOK_IN_LOG}"
    )
    return Check(name, title, FAIL, holder or "none", expected, fix, on)


def _answers(gpu: t.Mapping[str, t.Any]) -> Check:
    return Check("driver.gpu_answers", "Answers the driver", PASS, "yes", "yes", on=subject(gpu))


def _place(bus_id: str | None, slots: t.Mapping[str, GpuOnBus]) -> str:
    on_bus = slots.get(bus_id or "")
    return f"slot {on_bus.slot}" if on_bus and on_bus.slot else "slot not named by the firmware"


def _silent(gpu: t.Mapping[str, t.Any], slots: t.Mapping[str, GpuOnBus]) -> Check:
    on = subject(gpu)
    msg = gpu["msg"]
    fix = msg.split(". ", 1)[1] if ". " in msg else _LOOK_IN_LOG
    observed = f"{_first_sentence(msg)}; {_place(gpu['pci_bus_id'], slots)}"
    return Check("driver.gpu_answers", "Answers the driver", FAIL, observed, "yes", fix, on)


def _missing(on_bus: GpuOnBus) -> Check:
    place = f"slot {on_bus.slot}" if on_bus.slot else "slot not named by the firmware"
    return Check(
        "driver.gpu_answers",
        "Answers the driver",
        FAIL,
        f"on the PCI bus, not in NVML; {place}",
        "yes",
        f"Look in the kernel log for {on_bus.bus_id} ('journalctl -k -g {on_bus.bus_id}'), power-cycle the host, and have"
        " the GPU reseated or replaced when it stays away.",
        Subject(on_bus.bus_id),
    )


def _recovery(gpu: t.Mapping[str, t.Any]) -> list[Check]:
    action = gpu["recovery_action"]
    if action is None:
        # Drivers before R570 have no such field.
        return []
    name, title, on = "driver.recovery_action", "Recovery asked for by the driver", subject(gpu)
    if action == "none":
        return [Check(name, title, PASS, action, "none", on=on)]
    fix = _RECOVERY.get(action, "Drain and reboot the host.").format(gpu=gpu["pci_bus_id"] or gpu["index"])
    return [Check(name, title, FAIL, action, "none", fix, on)]


def _persistence(gpu: t.Mapping[str, t.Any]) -> Check:
    name, title, expected, on = "driver.persistence", "Persistence mode", "enabled", subject(gpu)
    mode = gpu["persistence_mode"]
    if mode is None:
        return Check(name, title, INFO, "this GPU has none", expected, on=on)
    if mode == "enabled":
        return Check(name, title, PASS, mode, expected, on=on)
    return Check(
        name,
        title,
        WARN,
        mode,
        expected,
        "Run 'systemctl enable --now nvidia-persistenced': without it the driver forgets power limits, and the first"
        " program waits for the GPU to start.",
        on,
    )


def _read_errors(gpu: t.Mapping[str, t.Any]) -> list[Check]:
    errors = gpu["read_errors"]
    if not errors:
        return []
    return [
        Check(
            "driver.facts",
            "Facts that could not be read",
            UNKNOWN,
            listed((_first_sentence(error["msg"]) for error in errors), 3),
            "all can be read",
            _LOOK_IN_LOG,
            subject(gpu),
        )
    ]
