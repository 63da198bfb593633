# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the traces of a driver mean: each case breaks one thing of a driver in good order."""

from __future__ import annotations

import typing as t
from dataclasses import replace

import pytest

from ansible_collections.baremetal.inference.plugins.module_utils._driver_host import (
    DkmsBuild,
    Kernel,
    LibraryFiles,
    ModuleFile,
    Signatures,
    Unit,
)
from ansible_collections.baremetal.inference.plugins.module_utils._driver_packages import (
    Owner,
    Package,
    Packages,
    Unattended,
)
from ansible_collections.baremetal.inference.plugins.module_utils._driver_state import (
    DriverState,
    Reboot,
    branch,
    consistent,
    mismatches,
    reboot,
)
from ansible_collections.baremetal.inference.plugins.module_utils._preflight_driver import FabricManager

NEW, OLD = "580.159.04", "580.95.05"
RUNNING, NEWER = "5.14.0-570.el9.x86_64", "5.14.0-611.el9.x86_64"
LIBRARY = f"/usr/lib64/libnvidia-ml.so.{NEW}"
ACTIVE = Unit("loaded", "active", "enabled")
GONE = Unit("not-found", "inactive", None)
SIGNER = "RHEL signing key"


def module(release: str = RUNNING, version: str | None = NEW, signer: str | None = SIGNER) -> ModuleFile:
    return ModuleFile(f"/lib/modules/{release}/extra/nvidia.ko.xz", version, "open", signer, True)


KERNEL = Kernel(RUNNING, True, True, True, module(), ())
OLD_RUNNING = replace(KERNEL, newest=False)
NEWEST = Kernel(NEWER, False, True, True, module(NEWER), ())
PACKAGE = Package(
    "nvidia-driver-cuda-libs", f"3:{NEW}-1.el9", NEW, "x86_64", "nvidia_repository", "vendor", True, None, None
)
QUIET = Unattended(None, False, (), ())
GOOD = DriverState(
    module_loaded=True,
    module=NEW,
    kernels=(KERNEL,),
    session_library=NEW,
    library_files=LibraryFiles(LIBRARY, NEW, (NEW,)),
    smi=NEW,
    fabric_manager=FabricManager(NEW, "program", "active"),
    fabric_manager_unit=ACTIVE,
    persistenced_unit=ACTIVE,
    nvswitches=6,
    gpus_on_bus=8,
    gpus_in_nvml=8,
    nouveau_loaded=False,
    nouveau_bound=(),
    nouveau_blacklists=("/etc/modprobe.d/nvidia.conf",),
    signatures=Signatures(False, False, (SIGNER,), (), ()),
    packages=Packages("rpm", (PACKAGE,), QUIET),
    owners=(Owner("nvidia_repository", "1 package"),),
)
NOTHING = replace(
    GOOD,
    module_loaded=False,
    module=None,
    kernels=(replace(KERNEL, module=None),),
    session_library=None,
    library_files=LibraryFiles(None, None, ()),
    smi=None,
    fabric_manager=FabricManager(None, None, "absent"),
    fabric_manager_unit=GONE,
    persistenced_unit=GONE,
    gpus_in_nvml=None,
    nouveau_blacklists=(),
    packages=Packages("rpm", (), QUIET),
    owners=(Owner("none", "nothing"),),
)


def found(state: DriverState) -> list[str]:
    return [mismatch.what for mismatch in mismatches(state)]


def test_in_order() -> None:
    assert found(GOOD) == [] and consistent(GOOD) and branch(GOOD) == "580"
    assert reboot(GOOD) == Reboot(False, (), (), False)


def test_a_host_that_has_no_driver_yet() -> None:
    assert found(NOTHING) == [] and not consistent(NOTHING) and branch(NOTHING) is None
    assert reboot(NOTHING) == Reboot(False, (), (), False)
    # What stands in the driver's way is told before it is installed.
    assert found(replace(NOTHING, nouveau_loaded=True, nouveau_bound=("0000:07:00.0",))) == ["nouveau"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"owners": (Owner("nvidia_repository", "a"), Owner("ubuntu_archive", "b"))}, ["ownership"]),
        ({"owners": (Owner("container", "a"), Owner("nvidia_repository", "b"))}, ["ownership"]),
        ({"owners": (Owner("container", "a"), Owner("container", "b"))}, []),
        (
            {
                "packages": Packages(
                    "rpm", (PACKAGE, replace(PACKAGE, name="nvidia-driver-cuda", driver_version=OLD)), QUIET
                )
            },
            ["package_versions"],
        ),
        ({"kernels": (replace(KERNEL, module=None),)}, ["running_kernel_module"]),
        ({"kernels": (OLD_RUNNING, replace(NEWEST, module=None))}, ["newest_kernel_module"]),
        ({"kernels": (OLD_RUNNING, NEWEST)}, []),
        # A kernel between the two is nobody's next.
        ({"kernels": (OLD_RUNNING, replace(NEWEST, newest=False, module=None), NEWEST)}, []),
        ({"kernels": (replace(KERNEL, module=replace(module(), indexed=False)),)}, ["running_kernel_module_index"]),
        ({"kernels": (OLD_RUNNING, replace(NEWEST, module=module(NEWER, OLD)))}, ["newest_kernel_module_version"]),
        # Headers count where DKMS builds.
        ({"kernels": (replace(KERNEL, headers=False),)}, []),
        (
            {"kernels": (replace(KERNEL, headers=False, dkms=(DkmsBuild("nvidia", NEW, RUNNING, "installed"),)),)},
            ["running_kernel_headers"],
        ),
        ({"module_loaded": False, "module": None}, ["module_not_loaded"]),
        ({"module_loaded": False, "module": None, "gpus_on_bus": 0}, []),
        ({"module": OLD}, ["loaded_module", "module_and_library"]),
        ({"session_library": None, "library_files": LibraryFiles(None, None, ())}, ["library"]),
        ({"smi": OLD}, ["nvidia_smi"]),
        ({"smi": None}, []),
        ({"nouveau_blacklists": ()}, ["nouveau_blacklist"]),
        ({"nouveau_blacklists": (), "gpus_on_bus": 0}, []),
        ({"nouveau_loaded": True}, ["nouveau"]),
        ({"fabric_manager": FabricManager("590.44.01", "program", "active")}, ["fabric_manager_version"]),
        # No NVSwitch: it has nothing to do, of whatever version it is.
        (
            {
                "nvswitches": 0,
                "fabric_manager": FabricManager("590.44.01", "program", "failed"),
                "fabric_manager_unit": Unit("loaded", "failed", "enabled"),
            },
            [],
        ),
        ({"fabric_manager_unit": Unit("loaded", "failed", "enabled")}, ["fabric_manager_unit"]),
        ({"fabric_manager_unit": Unit("masked", "inactive", "masked")}, ["fabric_manager_unit"]),
        # Nobody could ask systemd.
        ({"fabric_manager_unit": Unit(None, None, None), "persistenced_unit": Unit(None, None, None)}, []),
        ({"persistenced_unit": GONE}, ["persistenced"]),
        ({"persistenced_unit": Unit("loaded", "inactive", "disabled")}, ["persistenced"]),
        # It cannot start before the module is there.
        (
            {"persistenced_unit": Unit("loaded", "failed", "enabled"), "module_loaded": False, "module": None},
            ["module_not_loaded"],
        ),
        (
            {"packages": Packages("rpm", (PACKAGE,), Unattended("dnf-automatic", True, (), (PACKAGE.name,)))},
            ["unattended_upgrades"],
        ),
        ({"gpus_in_nvml": 7}, ["gpu_count"]),
        # NVML sees a GPU that the bus hides, as in some virtual machines.
        ({"gpus_in_nvml": 9}, []),
        ({"gpus_in_nvml": None}, []),
    ],
)
def test_one_thing_broken(changes: dict[str, t.Any], expected: list[str]) -> None:
    broken = mismatches(replace(GOOD, **changes))
    assert [mismatch.what for mismatch in broken] == expected
    assert all(mismatch.observed and mismatch.expected and mismatch.fix.endswith(".") for mismatch in broken)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        (
            {"kernels": (replace(KERNEL, module=None, headers=False),)},
            "Install the package that has the driver's modules",
        ),
        (
            {
                "kernels": (
                    replace(KERNEL, module=None, headers=False, dkms=(DkmsBuild("nvidia", NEW, RUNNING, "added"),)),
                )
            },
            f"Install kernel-devel-{RUNNING}, then run 'dkms autoinstall -k {RUNNING}'",
        ),
        (
            {"kernels": (replace(KERNEL, module=None),), "owners": (Owner("runfile", "x"),)},
            f"--kernel-name={RUNNING}",
        ),
    ],
)
def test_how_a_kernel_gets_its_module(changes: dict[str, t.Any], word: str) -> None:
    assert word in mismatches(replace(GOOD, **changes))[0].fix


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"module": OLD}, Reboot(True, (f"the loaded module is {OLD}, the installed library {NEW}",), (), True)),
        # No session, as after an upgrade: the file tells.
        (
            {"module": OLD, "session_library": None},
            Reboot(True, (f"the loaded module is {OLD}, the installed library {NEW}",), (), True),
        ),
        (
            {"module": OLD, "kernels": (replace(KERNEL, module=module(version=OLD)),)},
            Reboot(
                True,
                (f"the loaded module is {OLD}, the installed library {NEW}",),
                (f"the nvidia module of {RUNNING} is {OLD}, the library {NEW}",),
                False,
            ),
        ),
        (
            {"kernels": (replace(OLD_RUNNING, module=None), NEWEST), "module_loaded": False, "module": None},
            Reboot(
                True, (f"the running kernel {RUNNING} has no nvidia module, the newest one {NEWER} has",), (), False
            ),
        ),
        # Neither has one: a reboot would change nothing.
        (
            {"kernels": (replace(OLD_RUNNING, module=None), replace(NEWEST, module=None))},
            Reboot(False, (), (f"the kernel that boots next, {NEWER}, has no nvidia module",), False),
        ),
        ({"kernels": (OLD_RUNNING, NEWEST)}, Reboot(False, (), (), False)),
        ({"nouveau_loaded": True}, Reboot(True, ("nouveau is still loaded, and blacklisted",), (), False)),
        (
            {"nouveau_loaded": True, "nouveau_blacklists": ()},
            Reboot(False, (), ("nouveau is loaded and would be again: it is not blacklisted",), False),
        ),
        (
            {"kernels": (replace(KERNEL, module=replace(module(), indexed=False)),)},
            Reboot(
                False,
                (),
                (f"the nvidia module of the kernel that boots next, {RUNNING}, is not in modules.dep",),
                False,
            ),
        ),
        # The operator's container brings its own.
        ({"module": OLD, "owners": (Owner("container", "x"),)}, Reboot(False, (), (), False)),
    ],
)
def test_reboot(changes: dict[str, t.Any], expected: Reboot) -> None:
    assert reboot(replace(GOOD, **changes)) == expected


@pytest.mark.parametrize(
    ("signer", "signatures", "what", "blocked"),
    [
        (None, Signatures(True, True, (SIGNER,), (), ()), ["module_signature"], 1),
        (None, Signatures(None, True, None, None, None), ["module_signature"], 1),
        (None, Signatures(False, False, (SIGNER,), (), ()), [], 0),
        (SIGNER, Signatures(True, True, (SIGNER,), (), ()), [], 0),
        ("mine", Signatures(True, True, (SIGNER,), (), ()), ["module_signer"], 1),
        # Confirmed on the console, the reboot is what helps.
        ("mine", Signatures(True, True, (SIGNER,), (), ("mine",)), ["module_signer"], 0),
        # A user does not see the kernel's keys, so nobody can say.
        ("mine", Signatures(True, True, None, (), ()), [], 0),
    ],
)
def test_secure_boot(signer: str | None, signatures: Signatures, what: list[str], blocked: int) -> None:
    state = replace(GOOD, kernels=(replace(KERNEL, module=module(signer=signer)),), signatures=signatures)
    assert found(state) == what
    assert len(reboot(state).blockers) == blocked
    assert not any(
        "disable" in mismatch.fix.lower() or "turn" in mismatch.fix.lower() for mismatch in mismatches(state)
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"module": OLD}, False),
        ({"module": None}, False),
        ({"module": None, "session_library": None, "library_files": LibraryFiles(None, None, ())}, False),
        ({"fabric_manager": FabricManager(None, None, None)}, False),
        ({"fabric_manager": FabricManager(None, None, None), "nvswitches": 0}, True),
        ({"fabric_manager": FabricManager(OLD, "program", "active"), "nvswitches": 0}, True),
    ],
)
def test_consistent(changes: dict[str, t.Any], expected: bool) -> None:
    assert consistent(replace(GOOD, **changes)) is expected
