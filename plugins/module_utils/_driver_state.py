# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""What the traces of a driver mean together: what does not fit, whether a reboot is due, what stands in its way. Pure."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.baremetal.inference.plugins.module_utils._driver_packages import (
    CONTAINER,
    DGX_OS,
    NONE,
    RUNFILE,
)
from ansible_collections.baremetal.inference.plugins.module_utils._preflight import listed

if t.TYPE_CHECKING:
    from ansible_collections.baremetal.inference.plugins.module_utils._driver_host import (
        Kernel,
        LibraryFiles,
        Signatures,
        Unit,
    )
    from ansible_collections.baremetal.inference.plugins.module_utils._driver_packages import Owner, Packages
    from ansible_collections.baremetal.inference.plugins.module_utils._preflight_driver import FabricManager

RELOAD = (
    "stop everything that uses the GPUs, run 'modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia' and"
    " 'modprobe -a nvidia nvidia_uvm'"
)


@dataclass(frozen=True)
class DriverState:
    """All that was found out. None is what is not there or cannot be told."""

    # Loaded, with its version.
    module_loaded: bool
    module: str | None
    # Oldest first.
    kernels: t.Sequence[Kernel]
    # The version that the library itself states in a session; None without one.
    session_library: str | None
    library_files: LibraryFiles
    smi: str | None
    fabric_manager: FabricManager
    fabric_manager_unit: Unit
    persistenced_unit: Unit
    nvswitches: int
    gpus_on_bus: int
    gpus_in_nvml: int | None
    nouveau_loaded: bool
    # Bus ids of the GPUs that nouveau has.
    nouveau_bound: t.Sequence[str]
    nouveau_blacklists: t.Sequence[str]
    signatures: Signatures
    packages: Packages
    owners: t.Sequence[Owner]

    @property
    def library(self) -> str | None:
        """Version of the library that programs load."""
        return self.session_library or self.library_files.version

    @property
    def running(self) -> Kernel | None:
        return next((kernel for kernel in self.kernels if kernel.running), None)

    @property
    def newest(self) -> Kernel | None:
        return next((kernel for kernel in self.kernels if kernel.newest), None)

    @property
    def owner(self) -> str:
        return self.owners[0].owner

    @property
    def fabric_manager_needed(self) -> bool:
        return self.nvswitches > 0

    @property
    def installed(self) -> bool:
        """Whether a driver is meant to run with this host's own kernels."""
        return self.owner not in (NONE, CONTAINER)

    @property
    def from_dkms(self) -> bool:
        return any(kernel.dkms for kernel in self.kernels) or any(
            "dkms" in package.name for package in self.packages.packages
        )


@dataclass(frozen=True)
class Mismatch:
    """Two things that do not fit. ``what`` is a stable id."""

    what: str
    observed: str
    expected: str
    fix: str


@dataclass(frozen=True)
class Reboot:
    required: bool
    # Why; empty when it is not required.
    reasons: tuple[str, ...]
    # What has to be put right before any reboot: the host would come back without its driver.
    blockers: tuple[str, ...]
    # Whether to load the modules anew would do instead.
    reload_suffices: bool


def branch(state: DriverState) -> str | None:
    """Of the installed user-space part; without one, of its packages or of the module."""
    versions = [state.library_files.version, state.session_library]
    versions += [package.driver_version for package in state.packages.packages if package.core]
    versions.append(state.module)
    return next((version.partition(".")[0] for version in versions if version), None)


def consistent(state: DriverState) -> bool:
    """Module, library and, where there are NVSwitches, Fabric Manager: all there, and of one version."""
    versions = {state.module, state.library}
    if state.fabric_manager_needed:
        versions.add(state.fabric_manager.version)
    return len(versions) == 1 and None not in versions


def mismatches(state: DriverState) -> list[Mismatch]:
    return [
        *_ownership(state),
        *_packages(state),
        *_kernels(state),
        *_module(state),
        *_signatures(state),
        *_nouveau(state),
        *_library(state),
        *_fabric_manager(state),
        *_persistenced(state),
        *_unattended(state),
        *_gpus(state),
    ]


def _ownership(state: DriverState) -> t.Iterator[Mismatch]:
    names = list(dict.fromkeys(owner.owner for owner in state.owners))
    if len(names) < 2:
        return
    if RUNFILE in names:
        fix = (
            "Run 'nvidia-uninstall', then reinstall the packages: the runfile has written over files of theirs. Where the"
            " runfile is to stay, remove the packages."
        )
    elif CONTAINER in names:
        fix = "Leave the driver to one of the two: remove the host's packages, or take the host from the operator's driver."
    else:
        fix = "Remove the packages of one origin in one transaction, and install all of the driver from the other."
    yield Mismatch(
        "ownership",
        "; ".join(f"{owner.owner}: {owner.evidence}" for owner in state.owners),
        "one owner of the driver",
        fix,
    )


def _packages(state: DriverState) -> t.Iterator[Mismatch]:
    versions: dict[str, list[str]] = {}
    for package in state.packages.packages:
        if package.core and package.driver_version:
            versions.setdefault(package.driver_version, []).append(package.name)
    if len(versions) > 1:
        yield Mismatch(
            "package_versions",
            "; ".join(f"{version}: {listed(names)}" for version, names in sorted(versions.items())),
            "all driver packages of one version",
            "Install all of them in one version, in one transaction, and hold all of them, the libraries too.",
        )


def _kernels(state: DriverState) -> t.Iterator[Mismatch]:
    if not state.installed:
        return
    for kernel in state.kernels:
        if not kernel.running and not kernel.newest:
            continue
        which = " and ".join(
            word for word, applies in (("running", kernel.running), ("newest", kernel.newest)) if applies
        )
        subject = "running_kernel" if kernel.running else "newest_kernel"
        module = kernel.module
        if module is None:
            yield Mismatch(
                f"{subject}_module",
                f"no nvidia module for {kernel.release}",
                f"one for the {which} kernel",
                _build(state, kernel),
            )
        elif not module.indexed:
            yield Mismatch(
                f"{subject}_module_index",
                f"{module.path} is not in modules.dep",
                "indexed, so that modprobe finds it",
                f"Run 'depmod {kernel.release}'.",
            )
        if module and module.version and state.library_files.version and module.version != state.library_files.version:
            yield Mismatch(
                f"{subject}_module_version",
                f"{module.version} in {module.path}",
                f"{state.library_files.version}, as the library",
                _build(state, kernel),
            )
        if state.from_dkms and not kernel.headers:
            yield Mismatch(
                f"{subject}_headers",
                f"no headers for {kernel.release}",
                f"those of the {which} kernel: DKMS builds with them",
                f"Install {_headers(state, kernel.release)}.",
            )


def _headers(state: DriverState, release: str) -> str:
    return f"kernel-devel-{release}" if state.packages.manager == "rpm" else f"linux-headers-{release}"


def _build(state: DriverState, kernel: Kernel) -> str:
    if state.owner == RUNFILE:
        return (
            f"Run the driver's installer again with '--kernel-name={kernel.release}', or let packages own the driver."
        )
    if state.from_dkms:
        first = "" if kernel.headers else f"Install {_headers(state, kernel.release)}, then run"
        return (
            f"{first or 'Run'} 'dkms autoinstall -k {kernel.release}'; when that fails, make.log below /var/lib/dkms says"
            " why."
        )
    return f"Install the package that has the driver's modules for {kernel.release}, in the version of the library."


def _module(state: DriverState) -> t.Iterator[Mismatch]:
    on_disk = state.running.module if state.running else None
    if state.module_loaded:
        if on_disk and on_disk.version and state.module and on_disk.version != state.module:
            yield Mismatch(
                "loaded_module",
                f"{state.module} is loaded, {on_disk.version} is installed for the running kernel",
                "the installed one loaded",
                f"Reboot, or {RELOAD}.",
            )
    elif state.installed and state.gpus_on_bus and on_disk is not None and not state.nouveau_bound:
        yield Mismatch(
            "module_not_loaded",
            f"{on_disk.path} is there and not loaded",
            "nvidia loaded",
            "Run 'modprobe -a nvidia nvidia_uvm'; when that fails, the kernel log says why.",
        )


def _signatures(state: DriverState) -> t.Iterator[Mismatch]:
    signatures = state.signatures
    if not (signatures.secure_boot or signatures.enforced):
        return
    for kernel in state.kernels:
        module = kernel.module
        if module is None or module.version is None or not (kernel.running or kernel.newest):
            continue
        if module.signer is None:
            yield Mismatch(
                "module_signature",
                f"{module.path} is not signed, and Secure Boot is on",
                "signed with a key that the machine trusts",
                "Install the distribution's signed modules for this kernel; or sign with a key of your own, enrol it with"
                " 'mokutil --import', and confirm that on the console at the next boot.",
            )
        elif signatures.trusts(module.signer) is False:
            pending = module.signer in (signatures.pending or ())
            yield Mismatch(
                "module_signer",
                f"{module.path} is signed by '{module.signer}', whose key the running kernel does not trust",
                "a key that the machine trusts",
                "Reboot with somebody at the console, who confirms the key that waits to be enrolled."
                if pending
                else "Enrol that key with 'mokutil --import', and confirm it on the console at the next boot; or install"
                " the distribution's signed modules.",
            )


def _nouveau(state: DriverState) -> t.Iterator[Mismatch]:
    if state.nouveau_loaded:
        bound = f" and holds {listed(state.nouveau_bound)}" if state.nouveau_bound else ""
        yield Mismatch(
            "nouveau",
            f"nouveau is loaded{bound}",
            "not loaded",
            "It is blacklisted: rebuild the initramfs and reboot."
            if state.nouveau_blacklists
            else "Put 'blacklist nouveau' and 'options nouveau modeset=0' into a file in /etc/modprobe.d, rebuild the"
            " initramfs and reboot.",
        )
    elif state.installed and state.gpus_on_bus and not state.nouveau_blacklists:
        yield Mismatch(
            "nouveau_blacklist",
            "nothing keeps nouveau from the GPUs",
            "blacklisted",
            "Put 'blacklist nouveau' and 'options nouveau modeset=0' into a file in /etc/modprobe.d, and rebuild the"
            " initramfs.",
        )


def _library(state: DriverState) -> t.Iterator[Mismatch]:
    if state.module and state.library and state.module != state.library:
        on_disk = state.running.module if state.running else None
        ready = on_disk is not None and on_disk.version == state.library
        yield Mismatch(
            "module_and_library",
            f"module {state.module}, library {state.library}",
            "of one version",
            f"Reboot, or {RELOAD}."
            if ready
            else f"The running kernel has no module of version {state.library}: build or install that first, then reboot.",
        )
    if state.module_loaded and state.library is None:
        yield Mismatch(
            "library",
            "no libnvidia-ml.so.1 in the system's folders",
            f"version {state.module or 'of the module'}",
            "Install the driver's user-space part in the version of the module, and run 'ldconfig'.",
        )
    if state.smi and state.library and state.smi != state.library:
        yield Mismatch(
            "nvidia_smi",
            f"nvidia-smi {state.smi}, library {state.library}",
            "of one version",
            "Install the package that has nvidia-smi in the version of the library; an older copy may come first in PATH.",
        )


def _fabric_manager(state: DriverState) -> t.Iterator[Mismatch]:
    manager, unit = state.fabric_manager, state.fabric_manager_unit
    wanted = state.library or state.module
    if not state.fabric_manager_needed or not state.installed:
        # Without NVSwitches it has nothing to do, of whatever version it is.
        return
    if manager.version is None:
        yield Mismatch(
            "fabric_manager_missing",
            "not installed",
            f"version {wanted or 'of the driver'}: there are {state.nvswitches} NVSwitches",
            f"Install the Fabric Manager package in exactly the version {wanted or 'of the driver'}.",
        )
    elif wanted and manager.version != wanted:
        yield Mismatch(
            "fabric_manager_version",
            f"Fabric Manager {manager.version}, driver {wanted}",
            "of one version",
            f"Install the Fabric Manager package in exactly the version {wanted}, and hold it together with the driver.",
        )
    if manager.version and unit.load_state and (unit.masked or unit.active_state != "active"):
        yield Mismatch(
            "fabric_manager_unit",
            _unit(unit),
            "active",
            f"Run '{'systemctl unmask nvidia-fabricmanager' if unit.masked else 'systemctl enable --now nvidia-fabricmanager'}';"
            " when it does not stay up, 'journalctl -u nvidia-fabricmanager' says why.",
        )


def _unit(unit: Unit) -> str:
    if unit.masked:
        return "the unit is masked"
    if not unit.there:
        return "there is no such unit"
    return f"the unit is {unit.active_state}, {unit.file_state or 'no unit file'}"


def _persistenced(state: DriverState) -> t.Iterator[Mismatch]:
    unit = state.persistenced_unit
    if not state.installed or unit.load_state is None or not state.gpus_on_bus:
        return
    if unit.masked:
        fix = "Run 'systemctl unmask nvidia-persistenced' and 'systemctl enable --now nvidia-persistenced'."
    elif not unit.there:
        fix = "Install the package that has nvidia-persistenced."
    elif unit.active_state != "active" and state.module_loaded:
        fix = (
            "Run 'systemctl enable --now nvidia-persistenced'; when it does not stay up, 'journalctl -u"
            " nvidia-persistenced' says why."
        )
    else:
        return
    yield Mismatch("persistenced", _unit(unit), "active", fix)


def _unattended(state: DriverState) -> t.Iterator[Mismatch]:
    unattended = state.packages.unattended
    # DGX OS tests its driver and its own upgrades together.
    if unattended.may_upgrade and state.owner != DGX_OS:
        yield Mismatch(
            "unattended_upgrades",
            f"{unattended.kind} may upgrade {listed(unattended.may_upgrade)}",
            "driver packages held, or pinned to one version",
            "Hold every package of the driver, its libraries and Fabric Manager, or exclude them from unattended upgrades.",
        )


def _gpus(state: DriverState) -> t.Iterator[Mismatch]:
    if state.gpus_in_nvml is not None and state.gpus_in_nvml < state.gpus_on_bus:
        yield Mismatch(
            "gpu_count",
            f"{state.gpus_in_nvml} GPU(s) in NVML, {state.gpus_on_bus} on the PCI bus",
            "every GPU of the bus in NVML",
            "Look for NVRM and Xid lines in the kernel log ('journalctl -k -g NVRM'); they name the cause.",
        )


def reboot(state: DriverState) -> Reboot:
    """Whether only a reboot, or in the simplest case new loading of the modules, makes what is installed what runs."""
    reasons: list[str] = []
    reload_suffices = False
    running, newest = state.running, state.newest
    if not state.installed:
        return Reboot(False, (), (), False)
    target = state.library_files.version or state.library
    on_disk = running.module.version if running and running.module else None
    if running and newest and not newest.running and running.module is None and newest.module is not None:
        reasons.append(
            f"the running kernel {running.release} has no nvidia module, the newest one {newest.release} has"
        )
    if state.module and target and state.module != target:
        reasons.append(f"the loaded module is {state.module}, the installed library {target}")
        reload_suffices = on_disk == target
    elif state.module and on_disk and state.module != on_disk:
        reasons.append(f"the loaded module is {state.module}, the one installed for this kernel {on_disk}")
        reload_suffices = True
    if state.nouveau_loaded and state.nouveau_blacklists:
        reasons.append("nouveau is still loaded, and blacklisted")
        reload_suffices = False
    blockers = _blockers(state, newest) if newest else []
    return Reboot(
        bool(reasons), tuple(reasons), tuple(blockers), bool(reasons) and reload_suffices and len(reasons) == 1
    )


def _blockers(state: DriverState, newest: Kernel) -> list[str]:
    module = newest.module
    if module is None:
        return [f"the kernel that boots next, {newest.release}, has no nvidia module"]
    blockers = []
    if not module.indexed:
        blockers.append(f"the nvidia module of the kernel that boots next, {newest.release}, is not in modules.dep")
    target = state.library_files.version
    if module.version and target and module.version != target:
        blockers.append(f"the nvidia module of {newest.release} is {module.version}, the library {target}")
    signatures = state.signatures
    if (signatures.secure_boot or signatures.enforced) and module.version:
        if module.signer is None:
            blockers.append(f"Secure Boot is on, and the nvidia module of {newest.release} is not signed")
        elif signatures.trusts(module.signer) is False and module.signer not in (signatures.pending or ()):
            blockers.append(f"Secure Boot is on, and the key of '{module.signer}' is not enrolled")
    if state.nouveau_loaded and not state.nouveau_blacklists:
        blockers.append("nouveau is loaded and would be again: it is not blacklisted")
    return blockers
