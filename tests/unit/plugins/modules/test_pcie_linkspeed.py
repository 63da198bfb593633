# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""pcie_linkspeed on the simulated NVML, sysfs and CUDA."""

from __future__ import annotations

import ctypes.util
import subprocess
import typing as t
from pathlib import Path

import pytest

from ansible_collections.baremetal.inference.plugins.modules import pcie_linkspeed

QUICK: dict[str, t.Any] = {"buffer_mebibytes": 1, "rounds": 3}
BUS_IDS = ["0000:07:00.0", "0000:0f:00.0", "0000:47:00.0", "0000:4e:00.0"]
CHAIN_OF_3 = "0000:40:01.1 > 0000:41:00.0 > 0000:42:04.0 > 0000:49:00.0 > 0000:4a:10.0 > 0000:4c:00.0 > 0000:4d:00.0"


@pytest.fixture
def dgx(simulated_host: t.Any) -> t.Any:
    """Four GPUs of a DGX A100, in slots that its kernel names."""
    simulated_host.create("dgx-a100-80gb", "--gpus", "4")
    for number, bus_id in enumerate(BUS_IDS):
        folder = simulated_host.state / f"sysfs/bus/pci/slots/GPU bay {number}"
        folder.mkdir(parents=True)
        (folder / "address").write_text(bus_id.rsplit(".", 1)[0] + "\n")
    return simulated_host


def load(host: t.Any, **options: t.Any) -> dict[str, t.Any]:
    result: dict[str, t.Any] = host.run("pcie_linkspeed", measure="load", **{**QUICK, **options})
    return result


def sleepy(host: t.Any, number: int, awake: int) -> None:
    """A GPU whose link is at generation 1 until there is load."""
    host.set(f"gpu{number}/pci/current_link_generation", 1)
    host.set(f"gpu{number}/loaded/pci/current_link_generation", awake)
    folder = (host.state / "sysfs/bus/pci/devices" / BUS_IDS[number]).resolve()
    for end in (folder, folder.parent):
        (end / "current_link_speed").write_text("2.5 GT/s PCIe\n")


def test_healthy_without_load(dgx: t.Any, undocumented: t.Any) -> None:
    result = dgx.run("pcie_linkspeed")
    assert (result["changed"], result["verdict"], result["unavailable_gpus"]) == (False, "ok", [])
    assert "warnings" not in result
    assert [gpu["pci_bus_id"] for gpu in result["gpus"]] == BUS_IDS
    assert [gpu["slot"] for gpu in result["gpus"]] == [f"GPU bay {number}" for number in range(4)]
    gpu = result["gpus"][3]
    assert (gpu["verdict"], gpu["problems"], gpu["measured"], gpu["bandwidth"], gpu["load"]) == (
        "ok",
        [],
        False,
        None,
        None,
    )
    assert (gpu["slot_source"], gpu["numa_node"], gpu["local_cpulist"]) == ("pci_slots", 1, "16-31,144-159")
    assert (gpu["generation_max"], gpu["generation_gpu_max"], gpu["width_max"]) == (4, 4, 16)
    end = {"current_speed_gt_per_s": 16.0, "max_speed_gt_per_s": 16.0, "current_width": 16, "max_width": 16}
    assert gpu["idle"] == {"generation": 4, "width": 16, "gpu": end, "upstream_port": end}
    assert " > ".join(port["pci_bus_id"] for port in reversed(gpu["path"])) == CHAIN_OF_3
    # Nothing measures it, so nothing is asked for.
    assert gpu["expected"] == {
        "generation": 4,
        "width": 16,
        "host_to_device_gb_per_s": None,
        "device_to_host_gb_per_s": None,
        "replays": None,
    }
    assert undocumented(pcie_linkspeed, result, "success") == []


def test_sleeping_link_is_unproven_and_fine_under_load(dgx: t.Any, undocumented: t.Any) -> None:
    sleepy(dgx, 2, 4)
    result = dgx.run("pcie_linkspeed")
    assert result["verdict"] == "unproven"
    assert [gpu["verdict"] for gpu in result["gpus"]] == ["ok", "ok", "unproven", "ok"]
    (warning,) = result["warnings"]
    assert "GPU 2 (0000:47:00.0) in slot 'GPU bay 2': PCIe generation 1 while idle, expected generation 4." in warning
    assert "measure: load" in warning
    result = load(dgx, max_replays=0)
    assert (result["verdict"], result["changed"]) == ("ok", False)
    gpu = result["gpus"][2]
    assert (gpu["idle"]["generation"], gpu["load"]["generation"], gpu["measured"]) == (1, 4, True)
    assert gpu["idle"]["gpu"]["current_speed_gt_per_s"] == 2.5
    for end in ("gpu", "upstream_port"):
        assert gpu["load"][end]["current_speed_gt_per_s"] == 16.0
    assert gpu["path"][0]["link"]["current_speed_gt_per_s"] == 16.0
    assert gpu["bandwidth"]["host_to_device"] == {"best_gb_per_s": 25.2, "median_gb_per_s": 25.2, "rounds": 3}
    assert (gpu["replay_count"], gpu["replays_under_load"]) == (0, 0)
    # What the collection expects of an A100 with its full link.
    assert gpu["expected"]["host_to_device_gb_per_s"] == gpu["expected"]["device_to_host_gb_per_s"] == 23.0
    assert undocumented(pcie_linkspeed, result, "success") == []
    # The load is over.
    assert dgx.run("pcie_linkspeed")["verdict"] == "unproven"


def test_check_mode_is_the_same(dgx: t.Any) -> None:
    assert dgx.run("pcie_linkspeed") == dgx.run("pcie_linkspeed", check_mode=True, diff=True)


def test_bad_links_are_all_told(dgx: t.Any, undocumented: t.Any) -> None:
    """Not the first alone; and what is bad without load is bad without load."""
    dgx.set("gpu1/pci/current_link_width", 8)
    dgx.set("gpu3/pci/max_link_generation", 3)
    dgx.set("gpu3/pci/current_link_generation", 3)
    result = dgx.run("pcie_linkspeed")
    assert (result["failed"], result["reason"], result["verdict"]) == (True, "link_below", "below")
    assert [gpu["verdict"] for gpu in result["gpus"]] == ["ok", "below", "ok", "below"]
    assert result["msg"].startswith("2 of 4 GPU(s) did not show the PCIe link that is asked for.")
    assert "GPU 1 (0000:0f:00.0) in slot 'GPU bay 1': x8 while idle, expected x16." in result["msg"]
    assert "bifurcation" in result["msg"]
    assert (
        "GPU 3 (0000:4e:00.0) in slot 'GPU bay 3': the slot can do PCIe generation 3, expected generation 4."
        in result["msg"]
    )
    assert undocumented(pcie_linkspeed, result, "failure") == []
    # Asked for what they have, they are fine.
    assert dgx.run("pcie_linkspeed", width="8", generation="3")["verdict"] == "ok"
    assert dgx.run("pcie_linkspeed", gpus=["0", BUS_IDS[2]])["verdict"] == "ok"


def test_slow_under_load(dgx: t.Any) -> None:
    sleepy(dgx, 3, 3)
    assert dgx.run("pcie_linkspeed")["verdict"] == "unproven"
    result = load(dgx)
    assert (result["failed"], result["reason"]) == (True, "link_below")
    assert "in slot 'GPU bay 3': PCIe generation 3 under load, expected generation 4. Reseat the GPU" in result["msg"]
    assert "12.61 GB/s from host to GPU, expected at least 23 GB/s." in result["msg"]
    assert [problem["check"] for problem in result["gpus"][3]["problems"]] == [
        "generation",
        "host_to_device",
        "device_to_host",
    ]
    # The figures of the kind are of the full link.
    result = load(dgx, generation="3")
    assert result["verdict"] == "ok"
    assert result["gpus"][3]["expected"]["host_to_device_gb_per_s"] is None


def test_bandwidth_below(dgx: t.Any) -> None:
    """The reading is fine, and the link is not: something on the way to the processor."""
    dgx.set("gpu0/cuda/h2d_mb_per_s", 11000)
    port = dgx.state / "sysfs/bus/pci/devices/0000:00:01.1/current_link_width"
    port.write_text("8\n")
    result = load(dgx, gpus=["0"])
    assert result["reason"] == "link_below"
    assert "11 GB/s from host to GPU, expected at least 23 GB/s." in result["msg"]
    assert "0000:00:01.1 runs at 16 GT/s x8 and can do 16 GT/s x16" in result["msg"]
    # One's own threshold, another kind's figure, none.
    assert load(dgx, gpus=["0"], host_to_device_min_gb_per_s=10.9)["verdict"] == "ok"
    assert load(dgx, gpus=["0"], host_to_device_min_gb_per_s=0)["verdict"] == "ok"
    figures = {"h2d_gigabytes_per_second": 10.5, "d2h_gigabytes_per_second": 99}
    result = load(dgx, gpus=["0"], expectations={"skus": {"a100-sxm4-80gb": figures}})
    assert [problem["check"] for problem in result["gpus"][0]["problems"]] == ["device_to_host"]
    assert "device_to_host" not in load(dgx, gpus=["0"], device_to_host_min_gb_per_s=25.2)["msg"]


def test_replays(dgx: t.Any, undocumented: t.Any) -> None:
    """What counts is how far the counter rises under load, not where it stands."""
    dgx.set("gpu1/pci/replay_counter", 5)
    gpu = load(dgx, gpus=["1"], max_replays=0)["gpus"][0]
    assert (gpu["replay_count"], gpu["replays_under_load"], gpu["verdict"]) == (5, 0, "ok")
    sleepy(dgx, 1, 4)
    rise = f"""
        while ! [ -e {dgx.state}/run/gpu1/pci/current_link_generation ]; do sleep 0.005; done
        echo 9 >{dgx.state}/gpu1/pci/replay_counter
    """
    with subprocess.Popen(["/bin/sh", "-c", rise]):
        result = load(dgx, gpus=["1"], max_replays=3)
    assert result["reason"] == "link_below"
    assert "4 packets sent again under load, expected at most 3. The signal is bad" in result["msg"]
    assert (result["gpus"][0]["replay_count"], result["gpus"][0]["replays_under_load"]) == (9, 4)
    assert undocumented(pcie_linkspeed, result, "failure") == []


def test_slot_without_a_name(dgx: t.Any) -> None:
    (dgx.state / "sysfs/bus/pci/slots/GPU bay 3/address").unlink()
    dgx.set("gpu3/pci/current_link_width", 4)
    result = dgx.run("pcie_linkspeed")
    assert result["gpus"][3]["slot"] is None
    assert f"GPU 3 (0000:4e:00.0) below {CHAIN_OF_3} (no slot has a name there): x4 while idle" in result["msg"]


def test_virtual_machine(simulated_host: t.Any, undocumented: t.Any) -> None:
    """No port above the GPU is to be seen, no slot, no NUMA node."""
    simulated_host.create("h200-sxm-x2")
    result = load(simulated_host)
    assert result["verdict"] == "ok"
    for gpu in result["gpus"]:
        assert (gpu["path"], gpu["idle"]["upstream_port"], gpu["slot"], gpu["load"]["generation"]) == (
            [],
            None,
            None,
            5,
        )
    assert undocumented(pcie_linkspeed, result, "success") == []
    simulated_host.set("gpu0/pci/current_link_width", 8)
    assert "GPU 0 (0000:00:06.0): x8 while idle" in simulated_host.run("pcie_linkspeed")["msg"]


def test_lost_gpu(dgx: t.Any, undocumented: t.Any) -> None:
    dgx.tool("lose", "gpu1")
    result = load(dgx)
    assert (result["failed"], result["reason"], result["nvml_code"]) == (True, "gpu_lost", 15)
    assert result["msg"].startswith("1 of 4 GPU(s)") and "Xid 79" in result["msg"]
    assert [gpu["index"] for gpu in result["gpus"]] == [0, 2, 3]
    assert all(gpu["verdict"] == "ok" and gpu["measured"] for gpu in result["gpus"])
    assert [gpu["index"] for gpu in result["unavailable_gpus"]] == [1]
    assert undocumented(pcie_linkspeed, result, "failure") == []
    # A fault of another is what the failure is called by; both are told.
    dgx.set("gpu3/pci/current_link_width", 8)
    result = dgx.run("pcie_linkspeed")
    assert result["reason"] == "link_below" and result["msg"].startswith("2 of 4 GPU(s)")
    assert dgx.run("pcie_linkspeed", gpus=["0", "2"])["verdict"] == "ok"


def test_gpu_that_is_lost_under_load(dgx: t.Any, undocumented: t.Any) -> None:
    dgx.fault("nvmlDeviceGetCurrPcieLinkGeneration gpu1 = GPU_IS_LOST from 2")
    result = load(dgx)
    assert (result["failed"], result["reason"], result["nvml_code"]) == (True, "gpu_lost", 15)
    assert [gpu["measured"] for gpu in result["gpus"]] == [True, False, True, True]
    assert result["gpus"][1]["verdict"] == "unproven"
    assert "GPU 1 (0000:0f:00.0) in slot 'GPU bay 1': not measured:" in result["msg"] and "Xid 79" in result["msg"]
    assert undocumented(pcie_linkspeed, result, "failure") == []


def test_machine_that_is_not_ready_is_told_once(dgx: t.Any, undocumented: t.Any) -> None:
    dgx.fault("cuInit = 802")
    dgx.set("gpu2/pci/current_link_width", 8)
    result = load(dgx, gpus=["0", "1", "3"])
    assert (result["failed"], result["reason"], result["cuda_code"], result["cuda_call"]) == (
        True,
        "system_not_ready",
        802,
        "cuInit",
    )
    assert result["msg"].count("systemctl start nvidia-fabricmanager") == 1
    assert [gpu["verdict"] for gpu in result["gpus"]] == ["unproven"] * 3
    assert undocumented(pcie_linkspeed, result, "failure") == []
    # What the link shows without load is told all the same.
    result = load(dgx)
    assert result["reason"] == "link_below"
    assert "x8 while idle" in result["msg"] and "nvidia-fabricmanager" in result["msg"]


@pytest.mark.skipif(ctypes.util.find_library("cuda") is not None, reason="this machine has the real library")
def test_cuda_library_that_is_not_there(dgx: t.Any, tmp_path: Path, undocumented: t.Any) -> None:
    (tmp_path / "libnvidia-ml.so.1").symlink_to(dgx.sim.libraries / "libnvidia-ml.so.1")
    dgx.environment["LD_LIBRARY_PATH"] = str(tmp_path)
    assert dgx.run("pcie_linkspeed")["verdict"] == "ok"
    result = load(dgx)
    assert (result["failed"], result["reason"], result["cuda_code"]) == (True, "library_missing", None)
    assert result["msg"].count("libcuda.so.1: cannot open shared object file") == 1
    assert undocumented(pcie_linkspeed, result, "failure") == []


def test_gpu_that_hangs_does_not_stop_the_others(dgx: t.Any) -> None:
    dgx.set("gpu0/cuda/hang", "cuCtxCreate_v2")
    result = load(dgx, gpus=["0", "1"], timeout_seconds=2)
    assert (result["failed"], result["reason"], result["cuda_code"]) == (True, "timeout", None)
    assert "cuCtxCreate_v2 on GPU 0 (0000:07:00.0) did not return within 2 s." in result["msg"]
    assert [gpu["measured"] for gpu in result["gpus"]] == [False, True]


def test_gpus_that_must_not_be_measured(dgx: t.Any) -> None:
    dgx.set("gpu0/mig/pending", 1)
    dgx.set("gpu0/mig/current", 1)
    (dgx.state / "gpu1/processes").write_text("4242 compute 70000000000\n")
    (dgx.state / "system/process_names").write_text("4242 = /opt/vllm/bin/python\n")
    (dgx.state / "gpu2/processes").write_text("77 graphics 1000\n")
    dgx.set("gpu3/compute_mode", 2)
    # Their links can be read.
    assert dgx.run("pcie_linkspeed")["verdict"] == "ok"
    result = load(dgx)
    assert [gpu["measured"] for gpu in result["gpus"]] == [False, False, True, False]
    assert result["reason"] == "mig_enabled"
    for text in (
        "GPU 0 (0000:07:00.0) is in MIG mode",
        "is in use by process 4242 (/opt/vllm/bin/python)",
        "The compute mode of GPU 3 (0000:4e:00.0) is prohibited",
    ):
        assert text in result["msg"]
    assert load(dgx, gpus=["1"])["reason"] == "gpu_in_use"
    assert load(dgx, gpus=["3"])["reason"] == "compute_mode_prohibited"


def test_link_that_nobody_can_read(dgx: t.Any) -> None:
    """Without load it is unproven; where load was to prove it, that is a failure."""
    dgx.set("gpu0/pci/current_link_width", "!NOT_SUPPORTED")
    dgx.set("gpu0/cuda/h2d_mb_per_s", 25000)
    dgx.set("gpu0/cuda/d2h_mb_per_s", 25000)
    folder = (dgx.state / "sysfs/bus/pci/devices" / BUS_IDS[0]).resolve()
    for place in (folder, folder.parent):
        (place / "current_link_width").unlink()
    assert dgx.run("pcie_linkspeed")["verdict"] == "unproven"
    result = load(dgx)
    assert (result["failed"], result["reason"]) == (True, "link_unproven")
    assert "neither NVML nor sysfs says the width of the link" in result["msg"]


@pytest.mark.parametrize(
    ("options", "reason", "text"),
    [
        ({"host_to_device_min_gb_per_s": 20}, "invalid_option", "host_to_device_min_gb_per_s: 20.0 asks for something"),
        ({"max_replays": 0}, "invalid_option", "Add measure: load, or leave max_replays out"),
        ({"measure": "load", "max_replays": -1}, "invalid_option", "max_replays: -1 is not within 0 and"),
        ({"rounds": 0}, "invalid_option", "rounds: 0 is not within 1 and 10000"),
        ({"buffer_mebibytes": 8192}, "invalid_option", "buffer_mebibytes: 8192 is not within 1 and 4096"),
        ({"timeout_seconds": 0}, "invalid_option", "timeout_seconds: 0 is not within 1 and 3600"),
        ({"gpus": ["9"]}, "gpu_not_found", "gpus: no GPU matches '9'"),
        ({"sysfs_root": "/nowhere"}, "invalid_sysfs_root", "sysfs_root: '/nowhere' is not a directory"),
        ({"expectations": {"skus": {"h100": 1}}}, "invalid_expectations", "expectations.skus.h100"),
    ],
)
def test_bad_input(dgx: t.Any, undocumented: t.Any, options: dict[str, t.Any], reason: str, text: str) -> None:
    result = dgx.run("pcie_linkspeed", **options)
    assert (result["failed"], result["reason"]) == (True, reason)
    assert text in result["msg"]
    # Nothing was read yet, so there is nothing to report but what is wrong.
    assert undocumented(pcie_linkspeed, result, "failure") == []


def test_no_gpus(simulated_host: t.Any) -> None:
    simulated_host.create("h200-sxm-x2", "--gpus", "0")
    result = simulated_host.run("pcie_linkspeed")
    assert (result["failed"], result["reason"]) == (True, "no_gpus")


def test_gpu_that_the_driver_does_not_have(dgx: t.Any) -> None:
    (dgx.state / "gpu3").rename(dgx.state / "gone")
    result = dgx.run("pcie_linkspeed")
    assert result["verdict"] == "ok" and len(result["gpus"]) == 3
    assert "The PCI bus also has 0000:4e:00.0" in result["warnings"][0]


def test_every_python(simulated_host_on_every_python: t.Any, undocumented: t.Any) -> None:
    host = simulated_host_on_every_python
    host.create("dgx-a100-80gb", "--gpus", "2")
    result = load(host)
    assert result["verdict"] == "ok" and [gpu["measured"] for gpu in result["gpus"]] == [True, True]
    assert undocumented(pcie_linkspeed, result, "success") == []
    host.set("gpu1/cuda/d2h_mb_per_s", 9000)
    result = load(host)
    assert result["reason"] == "link_below" and "9 GB/s from GPU to host" in result["msg"]
