# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The whole module in a process of its own, on a host of files, programs and a simulated NVML, with one thing broken."""

from __future__ import annotations

import re
import typing as t
from pathlib import Path

import pytest
import yaml

from ansible_collections.baremetal.inference.plugins.module_utils import _driver_state
from ansible_collections.baremetal.inference.plugins.modules import nvidia_driver_info

from tests.unit.conftest import SimulatedHost
from tests.unit.driver_tree import (
    KERNEL,
    LIBRARY_FOLDER,
    NEWER_KERNEL,
    PACKAGES,
    SIGNER,
    UBUNTU_MAINTAINER,
    UBUNTU_SECURITY,
    DriverTree,
)
from tests.unit.preflight_tree import DRIVER

if t.TYPE_CHECKING:
    Undocumented = t.Callable[[t.Any, t.Mapping[str, t.Any], str], list[str]]

OLDER = "580.95.05"


class Dgx:
    """A DGX A100 with its driver in good order."""

    def __init__(self, simulated: SimulatedHost, folder: Path) -> None:
        self.simulated = simulated
        state = simulated.create("dgx-a100-80gb")
        self.tree = DriverTree(folder, state / "sysfs")
        self.tree.with_driver()
        self.tree.module(KERNEL)
        simulated.environment["PATH"] = f"{self.tree.bin}:/usr/bin:/bin"

    def run(self, **params: t.Any) -> dict[str, t.Any]:
        return self.simulated.run("nvidia_driver_info", **{**self.tree.root_options(), **params})

    def load(self, version: str) -> None:
        """Another version of the module runs than the one that is installed."""
        for module in ("nvidia", "nvidia_uvm", "nvidia_modeset"):
            self.tree.write(self.tree.sysfs / "module" / module / "version", version)

    def without_session(self) -> None:
        """No library that a program could load."""
        self.simulated.environment["LD_LIBRARY_PATH"] = str(self.tree.said)

    def refuse(self, code: int) -> None:
        """The library's answer to every session."""
        self.tree.write(self.simulated.state / "init_error", str(code))


def found(result: t.Mapping[str, t.Any]) -> list[str]:
    return [mismatch["what"] for mismatch in result["mismatches"]]


@pytest.fixture
def dgx(simulated_host: SimulatedHost, tmp_path: Path) -> Dgx:
    return Dgx(simulated_host, tmp_path)


def test_in_order(simulated_host_on_every_python: SimulatedHost, tmp_path: Path, undocumented: Undocumented) -> None:
    dgx = Dgx(simulated_host_on_every_python, tmp_path)
    result = dgx.run(cuda=True, holders=True)
    assert found(result) == []
    assert undocumented(nvidia_driver_info, result, "success") == []
    assert (result["consistent"], result["changed"], result["reason"]) == (True, False, None)
    assert (result["reboot_required"], result["reboot_reasons"], result["reboot_blockers"]) == (False, [], [])
    assert (result["owner"], result["branch"], len(result["owners"])) == ("nvidia_repository", "580", 1)
    assert result["kernel_module"] == {
        "loaded": True,
        "version": DRIVER,
        "flavour": "open",
        "companions": ["nvidia_modeset", "nvidia_uvm"],
    }
    (kernel,) = result["kernels"]
    assert kernel["dkms"] == [f"nvidia/{DRIVER}: installed"] and kernel["headers"]
    assert kernel["module"]["path"] == f"/lib/modules/{KERNEL}/updates/dkms/nvidia.ko.zst"
    assert (kernel["module"]["flavour"], kernel["module"]["signed"]) == ("open", True)
    assert result["library"] == {
        "version": DRIVER,
        "nvml_version": f"13.{DRIVER}",
        "path": f"/{LIBRARY_FOLDER}/libnvidia-ml.so.{DRIVER}",
        "file_version": DRIVER,
        "file_versions": [DRIVER],
        "package": "libnvidia-compute-580",
    }
    assert result["nvidia_smi_version"] == DRIVER
    assert (result["pci_gpu_count"], result["nvml_gpu_count"], result["nvswitch_count"]) == (8, 8, 6)
    assert (result["fabric_manager"]["needed"], result["fabric_manager"]["version"]) == (True, DRIVER)
    # Neither what is gone but for its configuration, nor what has a version of its own.
    assert [package["name"] for package in result["packages"]] == list(PACKAGES)
    assert {package["held"] for package in result["packages"]} == {True}
    assert (result["cuda"]["ok"], result["cuda"]["device_count"]) == (True, 8)


def test_check_mode_makes_no_difference(dgx: Dgx) -> None:
    assert dgx.simulated.run("nvidia_driver_info", check_mode=True, **dgx.tree.root_options()) == dgx.run()


def test_nothing_at_all(simulated_host: SimulatedHost, tmp_path: Path, undocumented: Undocumented) -> None:
    simulated_host.environment.update(LD_LIBRARY_PATH=str(tmp_path), PATH=str(tmp_path))
    for name in ("sys", "proc", "root"):
        (tmp_path / name).mkdir()
    result = simulated_host.run(
        "nvidia_driver_info",
        sysfs_root=str(tmp_path / "sys"),
        proc_root=str(tmp_path / "proc"),
        root=str(tmp_path / "root"),
        holders=True,
    )
    assert undocumented(nvidia_driver_info, result, "success") == []
    assert (result["owner"], result["reason"], result["branch"]) == ("none", "library_missing", None)
    assert (result["mismatches"], result["reboot_required"], result["consistent"]) == ([], False, False)
    assert result["holders"] is None and "does not show process 1" in result["holders_message"]


@pytest.mark.parametrize("option", ["sysfs_root", "proc_root", "root"])
def test_a_folder_that_is_not_there(dgx: Dgx, undocumented: Undocumented, option: str) -> None:
    result = dgx.run(**{option: "/nowhere"})
    assert result["failed"] and (result["reason"], result["option"]) == ("invalid_option", option)
    assert f"{option}: '/nowhere'" in result["msg"]
    assert undocumented(nvidia_driver_info, result, "failure") == []


def test_kernel_upgrade_without_driver(dgx: Dgx) -> None:
    dgx.tree.kernel(NEWER_KERNEL, headers=False)
    result = dgx.run()
    assert found(result) == ["newest_kernel_module", "newest_kernel_headers"]
    assert f"linux-headers-{NEWER_KERNEL}" in result["mismatches"][0]["fix"]
    assert "dkms autoinstall" in result["mismatches"][0]["fix"]
    # It still works, and would not after a reboot.
    assert result["consistent"] and not result["reboot_required"]
    assert result["reboot_blockers"] == [f"the kernel that boots next, {NEWER_KERNEL}, has no nvidia module"]
    assert [(kernel["release"], kernel["running"], kernel["newest"]) for kernel in result["kernels"]] == [
        (KERNEL, True, False),
        (NEWER_KERNEL, False, True),
    ]


def test_kernel_upgrade_with_driver_needs_no_reboot(dgx: Dgx) -> None:
    dgx.tree.kernel(NEWER_KERNEL)
    dgx.tree.module(NEWER_KERNEL)
    result = dgx.run()
    assert (found(result), result["reboot_required"], result["reboot_blockers"]) == ([], False, [])


def test_driver_built_for_the_newest_kernel_alone(dgx: Dgx) -> None:
    dgx.tree.without_driver()
    dgx.tree.kernel(NEWER_KERNEL)
    dgx.tree.module(NEWER_KERNEL)
    (dgx.tree.root / "lib" / "modules" / KERNEL / "updates" / "dkms" / "nvidia.ko.zst").unlink()
    dgx.tree.write(dgx.tree.root / "lib" / "modules" / KERNEL / "modules.dep", "")
    dgx.tree.write(dgx.tree.proc / "driver" / "nvidia" / "version", "")
    dgx.without_session()
    result = dgx.run()
    assert result["reboot_reasons"] == [
        f"the running kernel {KERNEL} has no nvidia module, the newest one {NEWER_KERNEL} has"
    ]
    assert (result["reboot_required"], result["reload_suffices"], result["reboot_blockers"]) == (True, False, [])


def test_module_that_depmod_has_not_listed(dgx: Dgx) -> None:
    dgx.tree.write(dgx.tree.root / "lib" / "modules" / KERNEL / "modules.dep", "kernel/fs/fat/fat.ko.zst:")
    result = dgx.run()
    assert found(result) == ["running_kernel_module_index"]
    assert result["mismatches"][0]["fix"] == f"Run 'depmod {KERNEL}'."


def test_library_upgraded_without_reload(dgx: Dgx) -> None:
    dgx.load(OLDER)
    dgx.refuse(18)
    result = dgx.run()
    assert result["reason"] == "version_mismatch"
    assert found(result) == ["loaded_module", "module_and_library"]
    assert (result["mismatches"][1]["module"], result["mismatches"][1]["library"]) == (OLDER, DRIVER)
    assert not result["consistent"] and result["reboot_required"] and result["reload_suffices"]
    assert result["reboot_reasons"] == [f"the loaded module is {OLDER}, the installed library {DRIVER}"]


def test_library_upgraded_and_module_not_built(dgx: Dgx) -> None:
    dgx.load(OLDER)
    dgx.tree.module(KERNEL, OLDER)
    dgx.refuse(18)
    result = dgx.run()
    assert found(result) == ["running_kernel_module_version", "module_and_library"]
    assert "build or install that first" in result["mismatches"][1]["fix"]
    assert result["reboot_required"] and not result["reload_suffices"]
    assert result["reboot_blockers"] == [f"the nvidia module of {KERNEL} is {OLDER}, the library {DRIVER}"]


@pytest.mark.parametrize("version", ["590.44.01", OLDER])
def test_fabric_manager_of_another_version(dgx: Dgx, version: str) -> None:
    dgx.tree.program("nv-fabricmanager", f"echo 'Fabric Manager version is : {version}'")
    result = dgx.run()
    assert found(result) == ["fabric_manager_version"] and not result["consistent"]
    assert f"exactly the version {DRIVER}" in result["mismatches"][0]["fix"]
    assert not result["reboot_required"]


def test_fabric_manager_missing(dgx: Dgx) -> None:
    dgx.tree.program("nv-fabricmanager", "exit 1")
    (dgx.tree.said / "nvidia-fabricmanager.service").unlink()
    result = dgx.run()
    assert found(result) == ["fabric_manager_missing"] and not result["consistent"]
    assert result["fabric_manager"]["unit"] is False


def test_fabric_manager_failed(dgx: Dgx) -> None:
    dgx.tree.unit("nvidia-fabricmanager.service", active="failed")
    result = dgx.run()
    assert found(result) == ["fabric_manager_unit"] and result["fabric_manager"]["state"] == "failed"


def test_runfile_beside_packages(dgx: Dgx) -> None:
    dgx.tree.write(dgx.tree.root / "usr" / "bin" / "nvidia-uninstall", "")
    result = dgx.run()
    assert result["owner"] == "runfile" and found(result) == ["ownership"]
    assert [owner["owner"] for owner in result["owners"]] == ["runfile", "nvidia_repository"]
    assert "nvidia-uninstall" in result["mismatches"][0]["fix"]


def test_runfile_alone(dgx: Dgx) -> None:
    dgx.tree.packages({})
    dgx.tree.say("unowned", "")
    dgx.tree.say("dkms", "")
    dgx.tree.write(dgx.tree.root / "var" / "log" / "nvidia-installer.log", "nvidia-installer log file")
    result = dgx.run()
    assert (result["owner"], result["library"]["package"], found(result)) == ("runfile", None, [])


def test_sources_in_dkms_that_belong_to_no_package(dgx: Dgx) -> None:
    dgx.tree.packages({})
    dgx.tree.say("unowned", "")
    assert dgx.run()["owner"] == "dkms_source"


def test_ubuntus_packages(dgx: Dgx) -> None:
    dgx.tree.packages(
        dict.fromkeys(PACKAGES, f"{DRIVER}-0ubuntu0.24.04.1"), source=UBUNTU_SECURITY, maintainer=UBUNTU_MAINTAINER
    )
    assert (dgx.run()["owner"], found(dgx.run())) == ("ubuntu_archive", [])


def test_unattended_upgrades_reach_the_driver(dgx: Dgx) -> None:
    dgx.tree.packages(
        dict.fromkeys(PACKAGES, f"{DRIVER}-0ubuntu0.24.04.1"),
        hold=False,
        source=UBUNTU_SECURITY,
        maintainer=UBUNTU_MAINTAINER,
    )
    result = dgx.run()
    assert found(result) == ["unattended_upgrades"]
    assert result["unattended_upgrades"]["may_upgrade"] == list(PACKAGES)
    # NVIDIA's repository is not among the origins that they take packages from.
    dgx.tree.packages(dict.fromkeys(PACKAGES, f"{DRIVER}-0ubuntu1"), hold=False)
    assert found(dgx.run()) == []


def test_one_library_left_behind_by_an_upgrade(dgx: Dgx) -> None:
    dgx.tree.packages({**dict.fromkeys(PACKAGES, f"{DRIVER}-0ubuntu1"), "libnvidia-cfg1-580": f"{OLDER}-0ubuntu1"})
    result = dgx.run()
    assert found(result) == ["package_versions"]
    assert f"{OLDER}: libnvidia-cfg1-580" in result["mismatches"][0]["observed"]


def test_dgx_os(dgx: Dgx) -> None:
    dgx.tree.write(dgx.tree.root / "etc" / "dgx-release", 'DGX_NAME="DGX Server"')
    result = dgx.run()
    assert (result["owner"], len(result["owners"]), found(result)) == ("dgx_os", 1, [])


def test_driver_of_a_container(dgx: Dgx) -> None:
    dgx.tree.packages({})
    dgx.tree.say("dkms", "")
    dgx.tree.write(dgx.tree.root / "run" / "nvidia" / "driver" / "usr" / "bin" / "nvidia-smi", "")
    result = dgx.run()
    assert result["owner"] == "container"
    # The operator builds its own modules for its own kernels.
    assert (found(result), result["reboot_blockers"]) == ([], [])


def test_library_that_is_mounted_into_a_container(dgx: Dgx) -> None:
    dgx.tree.packages({})
    dgx.tree.say("dkms", "")
    dgx.tree.say("unowned", "")
    path = f"/{LIBRARY_FOLDER}/libnvidia-ml.so.{DRIVER}"
    dgx.tree.write(dgx.tree.proc / "self" / "mounts", f"overlay / overlay rw 0 0\n/dev/md0 {path} ext4 ro,nosuid 0 0")
    result = dgx.run()
    assert result["owner"] == "container" and path in result["owners"][0]["evidence"]


def test_persistenced_masked(dgx: Dgx) -> None:
    dgx.tree.unit("nvidia-persistenced.service", load="masked", active="inactive", file="masked")
    result = dgx.run()
    assert found(result) == ["persistenced"] and result["persistenced"]["masked"]
    assert "systemctl unmask nvidia-persistenced" in result["mismatches"][0]["fix"]


def test_nouveau_still_bound(dgx: Dgx) -> None:
    dgx.tree.without_driver()
    dgx.without_session()
    dgx.tree.write(dgx.tree.proc / "driver" / "nvidia" / "version", "")
    dgx.tree.write(dgx.tree.sysfs / "module" / "nouveau" / "initstate", "live")
    first = dgx.tree.bus_ids[0]
    (dgx.tree.devices / first / "driver").symlink_to("../../../bus/pci/drivers/nouveau")
    result = dgx.run()
    assert result["nouveau"]["bound"] == [first]
    assert found(result) == ["nouveau"] and "rebuild the initramfs and reboot" in result["mismatches"][0]["fix"]
    assert result["reboot_reasons"] == ["nouveau is still loaded, and blacklisted"]
    (dgx.tree.root / "usr" / "lib" / "modprobe.d" / "nvidia-graphics-drivers.conf").unlink()
    result = dgx.run()
    assert (result["reboot_required"], result["reboot_blockers"]) == (
        False,
        ["nouveau is loaded and would be again: it is not blacklisted"],
    )


def test_secure_boot_with_unsigned_module(dgx: Dgx) -> None:
    dgx.tree.secure_boot(["Canonical Ltd. Kernel Module Signing"])
    dgx.tree.module(KERNEL, signer=None)
    result = dgx.run()
    assert (result["secure_boot"]["enabled"], result["secure_boot"]["enforced"]) == (True, True)
    assert found(result) == ["module_signature"]
    assert result["reboot_blockers"] == [f"Secure Boot is on, and the nvidia module of {KERNEL} is not signed"]
    assert "console" in result["mismatches"][0]["fix"]


def test_secure_boot_with_a_key_that_is_not_enrolled(dgx: Dgx) -> None:
    dgx.tree.secure_boot(["Canonical Ltd. Kernel Module Signing"])
    dgx.tree.say("enrolled", "MokListRT is empty")
    result = dgx.run()
    assert found(result) == ["module_signer"] and result["secure_boot"]["enrolled_keys"] == []
    dgx.tree.secure_boot(["Canonical Ltd. Kernel Module Signing", SIGNER])
    result = dgx.run()
    assert found(result) == []
    assert result["kernels"][0]["module"]["signer_trusted"] is True


def test_a_gpu_fell_off_the_driver(dgx: Dgx) -> None:
    dgx.tree.write(dgx.simulated.state / "gpu3" / "lost", "1")
    result = dgx.run()
    assert (result["pci_gpu_count"], result["nvml_gpu_count"], found(result)) == (8, 7, ["gpu_count"])


def test_an_older_copy_of_nvidia_smi(dgx: Dgx) -> None:
    dgx.tree.program("nvidia-smi", f"echo 'NVIDIA System Management Interface -- v{OLDER}'")
    result = dgx.run()
    assert (result["nvidia_smi_version"], found(result)) == (OLDER, ["nvidia_smi"])


def test_who_holds_the_driver_when_it_has_to_be_loaded_anew(dgx: Dgx, undocumented: Undocumented) -> None:
    dgx.load(OLDER)
    dgx.refuse(18)
    for pid, program, unit in (
        ("1", "/usr/lib/systemd/systemd", "init.scope"),
        ("42", "/opt/engine", "engine.service"),
    ):
        folder = dgx.tree.proc / pid
        (folder / "fd").mkdir(parents=True)
        (folder / "exe").symlink_to(program)
        for name, text in (("comm", Path(program).name), ("maps", ""), ("cgroup", f"0::/system.slice/{unit}")):
            dgx.tree.write(folder / name, text)
    (dgx.tree.proc / "42" / "fd" / "3").symlink_to("/dev/nvidia0")
    result = dgx.run(holders=True)
    assert undocumented(nvidia_driver_info, result, "success") == []
    (holder,) = result["holders"]
    assert (holder["pid"], holder["program"], holder["nodes"]) == (42, "/opt/engine", ["nvidia0"])
    assert holder["stop"] == "systemctl stop engine.service" and result["holders_message"] is None
    assert result["reload_suffices"]


def test_every_kind_of_mismatch_is_documented() -> None:
    source = Path(_driver_state.__file__ or "").read_text(encoding="utf-8")
    kinds = set(re.findall(r'Mismatch\(\s*f?"([a-z_{}]+)"', source))
    made = {kind.replace("{subject}", subject) for kind in kinds for subject in ("running_kernel", "newest_kernel")}
    text = yaml.safe_load(nvidia_driver_info.RETURN)["mismatches"]["contains"]["what"]["description"][0]
    assert set(re.findall(r"V\(([a-z_]+)\)", text)) == made and len(made) > 20
