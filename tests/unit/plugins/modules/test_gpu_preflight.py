# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The whole module in a process of its own: on a simulated DGX, without a driver, and with one thing broken."""

from __future__ import annotations

import ctypes.util
import json
import shutil
import subprocess
import sys
import time
import typing as t
from pathlib import Path

import pytest

from ansible_collections.baremetal.inference.plugins.module_utils._compatibility import driver_branch_minimum
from ansible_collections.baremetal.inference.plugins.modules import gpu_preflight

from tests.unit.conftest import SimulatedHost
from tests.unit.preflight_tree import BOOT_ID, DRIVER, EARLIER_BOOT_ID, GIB, Tree

if t.TYPE_CHECKING:
    from tests.unit.conftest import NvmlSim

    Undocumented = t.Callable[[t.Any, t.Mapping[str, t.Any], str], list[str]]

ROOT = Path(__file__).resolve().parents[4]
LAST = "0000:bd:00.0"
XID = "NVRM: Xid (PCI:0000:bd:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def record(message: str, boot: str = BOOT_ID, days_ago: float = 0.5) -> str:
    microseconds = str(int((time.time() - days_ago * 86400) * 1e6))
    return json.dumps({"MESSAGE": message, "_BOOT_ID": boot.replace("-", ""), "__REALTIME_TIMESTAMP": microseconds})


BOOTS = [
    record("Linux version 6.8.0-60-generic", EARLIER_BOOT_ID, 9),
    record("Linux version 6.8.0-60-generic", BOOT_ID, 1),
]


class Dgx:
    """A DGX A100 in good health."""

    def __init__(self, simulated: SimulatedHost, folder: Path, *, driver: bool = True) -> None:
        self.simulated = simulated
        state = simulated.create("dgx-a100-80gb")
        for gpu in range(8):
            (state / f"gpu{gpu}" / "persistence_mode").write_text("1\n")
        self.tree = Tree(folder, state / "sysfs")
        self.tree.with_gpus(bar1=128 * GIB)
        if driver:
            self.tree.with_driver()
            self.tree.fabric_manager()
        else:
            self.tree.without_driver()
            del simulated.environment["LD_LIBRARY_PATH"]
        self.tree.journal(BOOTS)
        simulated.environment["PATH"] = f"{self.tree.bin}:/usr/bin:/bin"

    def run(self, **params: t.Any) -> dict[str, t.Any]:
        return self.simulated.run("gpu_preflight", **{**self.tree.options(), **params})


def bad(result: t.Mapping[str, t.Any]) -> dict[tuple[str, str], str]:
    return {
        (check["check"], check["subject"]): check["verdict"]
        for check in result["preflight"]["checks"]
        if check["verdict"] in ("unknown", "warn", "fail")
    }


def check_of(result: t.Mapping[str, t.Any], name: str, subject: str = "host") -> dict[str, t.Any]:
    (found,) = [
        check for check in result["preflight"]["checks"] if (check["check"], check["subject"]) == (name, subject)
    ]
    assert isinstance(found, dict)
    return found


@pytest.fixture
def dgx(simulated_host: SimulatedHost, tmp_path: Path) -> Dgx:
    return Dgx(simulated_host, tmp_path)


@pytest.fixture(scope="module")
def untouched(nvml_sim: NvmlSim, tmp_path_factory: pytest.TempPathFactory) -> Dgx:
    """One for all the tests that break nothing."""
    folder = tmp_path_factory.mktemp("untouched")
    return Dgx(SimulatedHost(nvml_sim, folder, None), folder)


def test_healthy(simulated_host_on_every_python: SimulatedHost, tmp_path: Path, undocumented: Undocumented) -> None:
    result = Dgx(simulated_host_on_every_python, tmp_path).run(
        gpu_count=8, model_path=str(tmp_path / "models"), model_bytes=1000
    )
    assert bad(result) == {}
    assert (result["verdict"], result["failed_checks"], result["reason"], result["changed"]) == (
        "info",
        [],
        None,
        False,
    )
    assert "warnings" not in result
    assert undocumented(gpu_preflight, result, "success") == []
    report = result["preflight"]
    assert report["schema"] == "baremetal.inference.preflight/1"
    assert report["counts"]["fail"] == report["counts"]["warn"] == 0
    assert sum(report["counts"].values()) == len(report["checks"])
    assert (report["sku"], report["system"]) == ("a100-sxm4-80gb", "hgx-a100-8gpu")
    assert len(report["gpus"]) == len(report["pci_gpus"]) == 8 and len(report["topology"]) == 28
    assert report["driver"]["kernel_module_flavour"] == "open"
    assert report["driver"]["fabric_manager_version"] == DRIVER and report["driver"]["cuda_init_code"] == 0
    assert (report["machine"]["vendor"], report["machine"]["numa_nodes"]) == ("NVIDIA", 8)
    assert (report["kernel_log"]["source"], report["kernel_log"]["boots"]) == ("journal", 2)
    assert report["soak"] is None
    groups = [check["group"] for check in report["checks"]]
    assert sorted(set(groups), key=groups.index) == [
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
    ]


def test_check_mode_reads_the_same(untouched: Dgx) -> None:
    checks = [
        [
            {**check, "observed": ""} if check["check"] == "cuda.init" else check
            for check in result["preflight"]["checks"]
        ]
        for result in (untouched.run(), untouched.run(check_mode=True, diff=True))
    ]
    assert checks[0] == checks[1]


@pytest.mark.skipif(ctypes.util.find_library("nvidia-ml") is not None, reason="this machine has the real library")
def test_no_driver(simulated_host_on_every_python: SimulatedHost, tmp_path: Path, undocumented: Undocumented) -> None:
    """A machine as it was delivered. The GPUs are on the bus, and that is all."""
    host = Dgx(simulated_host_on_every_python, tmp_path, driver=False)
    result = host.run()
    assert "failed" not in result
    assert bad(result) == {
        ("driver.kernel_module", "host"): "fail",
        ("driver.library", "host"): "fail",
        ("driver.fabric_manager", "host"): "fail",
        **{("driver.bound", bus_id): "fail" for bus_id in host.tree.bus_ids},
    }
    assert (result["verdict"], result["reason"]) == ("fail", "library_missing")
    assert len(result["failed_checks"]) == 11
    assert all(check["fix"] for check in result["failed_checks"])
    assert [gpu["pci_bus_id"] for gpu in result["preflight"]["pci_gpus"]] == host.tree.bus_ids
    assert undocumented(gpu_preflight, result, "success") == []


@pytest.mark.skipif(ctypes.util.find_library("nvidia-ml") is not None, reason="this machine has the real library")
def test_no_gpu(simulated_host: SimulatedHost, tmp_path: Path) -> None:
    for name in ("sys", "proc", "dev", "etc", "bin"):
        (tmp_path / name).mkdir()
    # A process of its own: what loads the simulated library into this one must not have run.
    simulated_host.interpreter = sys.executable
    simulated_host.environment = {"PATH": str(tmp_path / "bin")}
    roots: dict[str, t.Any] = {f"{name}_root": str(tmp_path / name) for name in ("proc", "dev", "etc")}
    result = simulated_host.run("gpu_preflight", sysfs_root=str(tmp_path / "sys"), **roots)
    assert "failed" not in result
    # Neither journalctl nor /dev/kmsg is there.
    assert bad(result) == {("driver.gpu_count", "host"): "fail", ("kernel_log.readable", "host"): "unknown"}


def test_without_pynvml(dgx: Dgx) -> None:
    """The action plugin looks for this reason, and brings pynvml along."""
    (dgx.simulated.libraries / "pynvml.py").rename(dgx.simulated.libraries / "elsewhere.py")
    folder = dgx.simulated.libraries / "bare"
    # An installed one of the interpreter itself would step in.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    dgx.simulated.interpreter = str(folder / "bin" / "python")
    result = dgx.run()
    assert (result["reason"], bad(result)["driver.library", "host"]) == ("python_library_missing", "unknown")
    assert "nvidia-ml-py" in check_of(result, "driver.library")["fix"]
    # CUDA needs no pynvml.
    assert check_of(result, "cuda.init")["verdict"] == "pass"
    result = dgx.run(pynvml_path=str(dgx.simulated.libraries / "elsewhere.py"))
    assert (result["reason"], bad(result)) == (None, {})


class TestFaults:
    def test_lost_gpu(self, dgx: Dgx, undocumented: Undocumented) -> None:
        dgx.simulated.fault("nvmlDeviceGetUUID gpu7 = GPU_IS_LOST")
        dgx.tree.journal([*BOOTS, record(XID)])
        result = dgx.run()
        assert bad(result) == {("driver.gpu_answers", LAST): "fail", ("kernel_log.xid_79", LAST): "fail"}
        check = check_of(result, "driver.gpu_answers", LAST)
        # Its slot, for who has to open the machine.
        assert "slot 8" in check["observed"] and "Xid 79" in check["fix"]
        (xid,) = result["preflight"]["kernel_log"]["xids"]
        assert (xid["xid"], xid["pci_bus_id"], xid["current_boot"]) == (79, LAST, True)
        assert undocumented(gpu_preflight, result, "success") == []

    def test_gpu_that_nvml_does_not_count(self, simulated_host: SimulatedHost, tmp_path: Path) -> None:
        dgx = Dgx(simulated_host, tmp_path)
        shutil.rmtree(dgx.simulated.state / "gpu7")
        result = dgx.run()
        assert bad(result) == {("driver.gpu_answers", LAST): "fail"}
        observed = check_of(result, "driver.gpu_answers", LAST)["observed"]
        assert "on the PCI bus, not in NVML" in observed and "slot 8" in observed

    def test_cuda_does_not_start(self, dgx: Dgx) -> None:
        dgx.simulated.fault("cuInit = 802")
        dgx.tree.fabric_manager("580.95.05")
        result = dgx.run()
        assert bad(result) == {("cuda.init", "host"): "fail", ("driver.fabric_manager", "host"): "fail"}
        assert "802" in check_of(result, "cuda.init")["observed"]
        assert DRIVER in check_of(result, "driver.fabric_manager")["fix"]

    def test_driver_of_another_version(self, dgx: Dgx) -> None:
        (dgx.simulated.state / "init_error").write_text("18\n")
        result = dgx.run()
        assert bad(result) == {("driver.library", "host"): "fail"}
        assert "Reboot" in check_of(result, "driver.library")["fix"]

    def test_link_down(self, dgx: Dgx) -> None:
        dgx.simulated.tool("link", "gpu3", "7", "down")
        checks = {check for check, unused in bad(dgx.run())}
        assert checks == {"nvlink.links", "nvlink.pair"}

    def test_narrow_slot(self, dgx: Dgx) -> None:
        dgx.simulated.set("gpu7/pci/current_link_width", 8)
        result = dgx.run()
        assert bad(result) == {("pcie.width", LAST): "fail"}
        assert check_of(result, "pcie.width", LAST)["observed"] == "x8 while idle; slot 8"

    def test_persistence_and_ecc(self, dgx: Dgx) -> None:
        dgx.simulated.set("gpu7/persistence_mode", 0)
        dgx.simulated.run("ecc_state", state="disabled", gpus=[LAST])
        assert bad(dgx.run()) == {("driver.persistence", LAST): "warn", ("ecc.pending", LAST): "warn"}
        assert ("ecc.pending", LAST) in bad(dgx.run(ecc="any"))

    def test_program_that_does_not_start(self, dgx: Dgx) -> None:
        """Nothing that the host's programs do ends the module."""
        dgx.tree.write(dgx.tree.bin / "nv-fabricmanager", b"\x7fELF of another machine").chmod(0o755)
        assert set(bad(dgx.run())) == {("driver.fabric_manager", "host")}

    def test_an_earlier_boot(self, dgx: Dgx) -> None:
        dgx.tree.journal([BOOTS[0], record(XID, EARLIER_BOOT_ID, 8), BOOTS[1]])
        assert bad(dgx.run()) == {("kernel_log.xid_79", LAST): "warn"}
        # Before the days that count.
        assert bad(dgx.run(kernel_log_days=3)) == {}


def test_kernel_log_of_a_file(untouched: Dgx, tmp_path: Path) -> None:
    log = tmp_path / "dmesg.txt"
    log.write_text(f"[    0.000000] Linux version 6.8.0-60-generic\n[  100.000000] {XID}\n")
    result = untouched.run(kernel_log=str(log))
    assert bad(result) == {("kernel_log.xid_79", LAST): "fail"}
    assert result["preflight"]["kernel_log"]["source"] == str(log)


def test_under_load(dgx: Dgx, undocumented: Undocumented) -> None:
    dgx.simulated.set("gpu0/processes", "4242 compute 1073741824")
    first = "0000:07:00.0"
    result = dgx.run(pcie_measure="load", soak_minutes=0.02, gpus=[first, LAST])
    assert bad(result) == {}
    assert undocumented(gpu_preflight, result, "success") == []
    assert check_of(result, "power.soak", first)["verdict"] == "skipped"
    assert check_of(result, "pcie.measurement", first)["verdict"] == "skipped"
    assert "4242" in check_of(result, "power.soak", first)["observed"]
    assert check_of(result, "power.soak", LAST)["verdict"] == "pass"
    assert check_of(result, "pcie.host_to_device", LAST)["verdict"] == "pass"
    soak = result["preflight"]["soak"]
    assert (soak["minutes"], soak["new_xids"]) == (0.02, [])
    assert {gpu["pci_bus_id"]: gpu["skipped"] for gpu in soak["gpus"]}[LAST] is None
    assert [gpu["pci_bus_id"] for gpu in soak["samples"][0]["gpus"]] == [LAST]
    assert soak["samples"][0]["gpus"][0]["power_watts"] is not None


def test_one_gpu(untouched: Dgx) -> None:
    result = untouched.run(gpus=[LAST])
    assert bad(result) == {}
    assert [gpu["pci_bus_id"] for gpu in result["preflight"]["gpus"]] == [LAST]
    # The bus is the host's, and is looked at as a whole.
    assert check_of(result, "driver.gpu_count")["observed"] == "8 on the PCI bus, 8 in NVML"


class TestFailOn:
    def test_warnings_only(self, dgx: Dgx, undocumented: Undocumented) -> None:
        dgx.simulated.set("gpu7/persistence_mode", 0)
        assert "failed" not in dgx.run(fail_on="fail")
        result = dgx.run(fail_on="warn")
        assert result["failed"] is True
        assert "1 check(s)" in result["msg"] and "nvidia-persistenced" in result["msg"] and LAST in result["msg"]
        # The report comes all the same.
        assert result["preflight"]["verdict"] == "warn" and len(result["failed_checks"]) == 1

    def test_failures(self, dgx: Dgx) -> None:
        dgx.simulated.set("gpu7/pci/current_link_width", 8)
        assert "failed" not in dgx.run()
        assert len(dgx.run()["failed_checks"]) == 1
        assert dgx.run(fail_on="fail")["failed"] is True


@pytest.mark.parametrize(
    ("params", "reason", "words"),
    [
        ({"gpus": ["9"]}, "gpu_not_found", "no GPU matches '9'"),
        ({"gpus": ["nonsense"]}, "invalid_selector", "nonsense"),
        ({"proc_root": "/nonexistent"}, "invalid_option", "proc_root: '/nonexistent'"),
        ({"kernel_log": "/nonexistent.log"}, "invalid_option", "kernel_log: '/nonexistent.log'"),
        ({"kernel_log_days": -1}, "invalid_option", "kernel_log_days: '-1'"),
        ({"soak_minutes": -0.5}, "invalid_option", "soak_minutes: '-0.5'"),
        ({"soak_minutes": "nan"}, "invalid_option", "soak_minutes: 'nan'"),
        ({"soak_minutes": "inf"}, "invalid_option", "soak_minutes: 'inf'"),
        ({"cuda_timeout": 0}, "invalid_option", "cuda_timeout"),
        ({"cuda_timeout": "nan"}, "invalid_option", "cuda_timeout"),
        ({"min_driver_version": "newest"}, "invalid_option", "min_driver_version: 'newest'"),
        ({"model_path": "models"}, "invalid_option", "model_path: 'models'"),
        ({"expectations": {"skus": {"a100": {}}}}, "invalid_expectations", "expectations.skus.a100"),
    ],
)
def test_wrong_options(
    untouched: Dgx, undocumented: Undocumented, params: dict[str, t.Any], reason: str, words: str
) -> None:
    result = untouched.run(**params)
    assert (result.get("failed"), result.get("reason")) == (True, reason)
    assert words in result["msg"]
    assert "preflight" not in result


def test_expectations_of_the_user(untouched: Dgx) -> None:
    result = untouched.run(expectations={"skus": {"a100-sxm4-80gb": {"bar1_bytes": 256 * GIB}}})
    assert set(bad(result)) == {("firmware.bar1_size", bus_id) for bus_id in untouched.tree.bus_ids}


def test_the_oldest_driver_is_the_engines(nvml_sim: NvmlSim) -> None:
    """The default is a copy of a figure that belongs to the role of the engine."""
    yaml = pytest.importorskip("yaml")
    versions = yaml.safe_load((ROOT / "roles/vllm_service/vars/main/versions.yml").read_text(encoding="utf-8"))
    documentation = yaml.safe_load(gpu_preflight.DOCUMENTATION)
    cudas = {release["cuda"] for release in versions["__vllm_service_versions"].values() if "cuda" in release}
    wanted = {driver_branch_minimum(cuda) for cuda in cudas}
    assert {documentation["options"]["min_driver_version"]["default"]} == {str(branch) for branch in wanted}
