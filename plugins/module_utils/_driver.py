# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""The driver of a host, found out and judged: what the module nvidia_driver_info returns.

Nothing that is not there ends it; only wrong options do.
"""

from __future__ import annotations

import math
import os
import typing as t
from dataclasses import asdict, dataclass

from ansible_collections.baremetal.inference.plugins.module_utils._cuda import CudaInit, cuda_init
from ansible_collections.baremetal.inference.plugins.module_utils._driver_host import (
    Root,
    mounted_driver,
    nouveau_blacklists,
    read_dkms,
    read_gsp_firmware,
    read_kernels,
    read_library_files,
    read_signatures,
    read_smi_version,
    read_unit,
)
from ansible_collections.baremetal.inference.plugins.module_utils._driver_packages import (
    Traces,
    owners,
    package_of,
    read_packages,
    source_paths,
)
from ansible_collections.baremetal.inference.plugins.module_utils._driver_state import (
    DriverState,
    branch,
    consistent,
    mismatches,
    reboot,
)
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_errors import GpuFailure
from ansible_collections.baremetal.inference.plugins.module_utils._holders import HoldersUnseen, find_holders
from ansible_collections.baremetal.inference.plugins.module_utils._nvml import DriverVersions, NvmlFailure, nvml_session
from ansible_collections.baremetal.inference.plugins.module_utils._preflight_driver import (
    FABRIC_MANAGER_UNIT,
    kernel_module_version,
    module_flavour,
    read_fabric_manager,
)
from ansible_collections.baremetal.inference.plugins.module_utils._preflight_host import Files, Roots, read_host

if t.TYPE_CHECKING:
    from ansible_collections.baremetal.inference.plugins.module_utils._driver_host import Kernel, Unit, Which
    from ansible_collections.baremetal.inference.plugins.module_utils._driver_packages import Packages
    from ansible_collections.baremetal.inference.plugins.module_utils._preflight_log import Command

PERSISTENCED_UNIT = "nvidia-persistenced.service"
_DRIVER_CONTAINER = "/run/nvidia/driver/usr"


@dataclass(frozen=True)
class System:
    """What of the running system does not come from files."""

    command: Command
    which: Which
    root: bool


@dataclass(frozen=True)
class Session:
    """What NVML said, or why it said nothing."""

    versions: DriverVersions
    gpus: int | None
    failure: GpuFailure | None

    @property
    def library(self) -> str | None:
        """Of 13.580.159.04, CUDA's number and the driver's version: the latter."""
        return (self.versions.nvml_version or "").partition(".")[2] or None


def check_options(params: t.Mapping[str, t.Any]) -> None:
    """Say what is wrong with the options before anything is read."""
    for option in ("sysfs_root", "proc_root", "root"):
        if not os.path.isdir(params[option]):
            raise GpuFailure(
                f"{option}: '{params[option]}' is no directory on this host. Leave the option out for the system's own.",
                reason="invalid_option",
                option=option,
            )
    if not 0 < params["cuda_timeout"] < math.inf:
        raise GpuFailure(
            f"cuda_timeout: '{params['cuda_timeout']}' is not usable. Expected a number of seconds above 0.",
            reason="invalid_option",
            option="cuda_timeout",
        )


def ask_nvml(pynvml_path: str | None) -> Session:
    versions = DriverVersions(None, None, None)
    try:
        with nvml_session(pynvml_path) as nvml:
            versions = nvml.versions()
            return Session(versions, len(nvml.devices()[0]), None)
    except NvmlFailure as failure:
        return Session(versions, None, failure)


def driver_info(params: t.Mapping[str, t.Any], system: System) -> dict[str, t.Any]:
    """The module's result."""
    check_options(params)
    command, which = system.command, system.which
    root, sysfs, proc = Root(params["root"]), Files(params["sysfs_root"]), Files(params["proc_root"])
    host = read_host(
        Roots(params["sysfs_root"], params["proc_root"], root.path("dev"), root.path("etc")), None, root=system.root
    )
    session = ask_nvml(params["pynvml_path"])
    builds = read_dkms(command, which)
    kernels = read_kernels(root, host.machine.kernel, builds, command, which)
    library_files = read_library_files(root)
    packages = read_packages(
        root, command, which, _os_release(root), lambda unit: _active(read_unit(unit, command, which).active_state)
    )
    library_package = package_of(library_files.path, packages.manager, command, which) if library_files.path else None
    installed_builds = {(build.name, build.version): build for build in builds}
    traces = Traces(
        packages=packages,
        library=library_files.path,
        library_package=library_package,
        mounted=mounted_driver(proc),
        driver_container=bool(root.names(_DRIVER_CONTAINER.lstrip("/"))),
        dgx_release=root.has("/etc/dgx-release"),
        uninstaller=root.has("/usr/bin/nvidia-uninstall"),
        installer_log=root.has("/var/log/nvidia-installer.log"),
        own_builds=tuple(
            build
            for build in installed_builds.values()
            if all(package_of(path, packages.manager, command, which) is None for path in source_paths(build))
        ),
        module="nvidia" in host.driver.modules,
    )
    bound = [gpu.bus_id for gpu in host.gpus if gpu.device.driver == "nouveau"]
    state = DriverState(
        module_loaded="nvidia" in host.driver.modules or host.driver.version_line is not None,
        module=kernel_module_version(host),
        kernels=kernels,
        session_library=session.library,
        library_files=library_files,
        smi=read_smi_version(command, which),
        fabric_manager=read_fabric_manager(command, which),
        fabric_manager_unit=read_unit(FABRIC_MANAGER_UNIT, command, which),
        persistenced_unit=read_unit(PERSISTENCED_UNIT, command, which),
        nvswitches=len(host.nvswitches),
        gpus_on_bus=len(host.gpus),
        gpus_in_nvml=session.gpus,
        nouveau_loaded="nouveau" in host.driver.modules,
        nouveau_bound=bound,
        nouveau_blacklists=nouveau_blacklists(root, proc.text("cmdline")),
        signatures=read_signatures(sysfs, proc, host.firmware.secure_boot, command, which),
        packages=packages,
        owners=owners(traces),
    )
    holders, unseen = _holders(params) if params["holders"] else (None, None)
    return {
        "changed": False,
        "reason": session.failure.reason if session.failure else None,
        "nvml_message": session.failure.msg if session.failure else None,
        **_judged(state),
        "kernel_module": {
            "loaded": state.module_loaded,
            "version": state.module,
            "flavour": module_flavour(host.driver.version_line),
            "companions": sorted(name for name in host.driver.modules if name.startswith("nvidia_")),
        },
        "kernels": [_kernel(state, kernel) for kernel in kernels],
        "dkms": [asdict(build) for build in builds],
        "library": {
            "version": state.library,
            "nvml_version": session.versions.nvml_version,
            "path": library_files.path,
            "file_version": library_files.version,
            "file_versions": list(library_files.versions),
            "package": library_package,
        },
        "nvidia_smi_version": state.smi,
        "cuda_driver_version": session.versions.cuda_driver_version,
        "gsp_firmware_version": read_gsp_firmware(proc),
        "fabric_manager": {
            "needed": state.fabric_manager_needed,
            "version": state.fabric_manager.version,
            "source": state.fabric_manager.source,
            **_unit(state.fabric_manager_unit),
        },
        "persistenced": _unit(state.persistenced_unit),
        "nouveau": {
            "loaded": state.nouveau_loaded,
            "bound": bound,
            "blacklisted_by": list(state.nouveau_blacklists),
        },
        "secure_boot": _secure_boot(state),
        "package_manager": packages.manager,
        "packages": _packages(packages),
        "unattended_upgrades": {**asdict(packages.unattended), **_lists(packages)},
        "pci_gpu_count": state.gpus_on_bus,
        "nvml_gpu_count": state.gpus_in_nvml,
        "nvswitch_count": state.nvswitches,
        "cuda": _cuda(cuda_init(params["cuda_timeout"])) if params["cuda"] else None,
        "holders": holders,
        "holders_message": unseen,
    }


def _judged(state: DriverState) -> dict[str, t.Any]:
    due = reboot(state)
    return {
        "owner": state.owner,
        "owners": [asdict(owner) for owner in state.owners],
        "branch": branch(state),
        "consistent": consistent(state),
        "mismatches": [
            {**asdict(mismatch), "module": state.module, "library": state.library} for mismatch in mismatches(state)
        ],
        "reboot_required": due.required,
        "reboot_reasons": list(due.reasons),
        "reboot_blockers": list(due.blockers),
        "reload_suffices": due.reload_suffices,
    }


def _kernel(state: DriverState, kernel: Kernel) -> dict[str, t.Any]:
    module = kernel.module
    return {
        "release": kernel.release,
        "running": kernel.running,
        "newest": kernel.newest,
        "headers": kernel.headers,
        "dkms": [f"{build.name}/{build.version}: {build.state}" for build in kernel.dkms],
        "module": None
        if module is None
        else {
            **asdict(module),
            # Without modinfo nobody looked.
            "signed": None if module.version is None else module.signer is not None,
            "signer_trusted": state.signatures.trusts(module.signer),
        },
    }


def _unit(unit: Unit) -> dict[str, t.Any]:
    return {
        "unit": None if unit.load_state is None else unit.there,
        "state": unit.active_state if unit.there else None,
        "enabled": unit.file_state if unit.there else None,
        "masked": None if unit.load_state is None else unit.masked,
    }


def _secure_boot(state: DriverState) -> dict[str, t.Any]:
    signatures = state.signatures
    return {
        "enabled": signatures.secure_boot,
        "enforced": signatures.enforced,
        "enrolled_keys": None if signatures.enrolled is None else list(signatures.enrolled),
        "pending_keys": None if signatures.pending is None else list(signatures.pending),
    }


def _packages(packages: Packages) -> list[dict[str, t.Any]]:
    return [{**asdict(package), "fixed": package.fixed} for package in packages.packages]


def _lists(packages: Packages) -> dict[str, t.Any]:
    unattended = packages.unattended
    return {"excluded": list(unattended.excluded), "may_upgrade": list(unattended.may_upgrade)}


def _cuda(init: CudaInit) -> dict[str, t.Any]:
    return {
        "ok": init.ok,
        "code": init.code,
        "name": init.name,
        "message": f"{init.msg} {init.advice}".strip(),
        "cuda_driver_version": init.cuda_driver_version,
        "device_count": len(init.devices) if init.ok else None,
        "seconds": init.seconds,
    }


def _holders(params: t.Mapping[str, t.Any]) -> tuple[list[dict[str, t.Any]] | None, str | None]:
    try:
        found = find_holders(params["proc_root"], ignore_pids=(os.getpid(),))
    except HoldersUnseen as unseen:
        return None, unseen.msg
    return [{**asdict(holder), "nodes": list(holder.nodes)} for holder in found], None


def _os_release(root: Root) -> dict[str, str]:
    pairs = (line.partition("=") for line in (root.text("etc", "os-release") or "").splitlines())
    return {key: value.strip("\"'") for key, sign, value in pairs if sign}


def _active(state: str | None) -> bool | None:
    return None if state is None else state == "active"
