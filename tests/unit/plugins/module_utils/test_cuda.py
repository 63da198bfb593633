# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The CUDA part, with its processes, on the simulated libcuda."""

from __future__ import annotations

import ctypes.util
import json
import os
import re
import signal
import subprocess
import sys
import time
import typing as t
from pathlib import Path

import pytest

from ansible_collections.baremetal.inference.plugins.module_utils import _cuda
from ansible_collections.baremetal.inference.plugins.module_utils._cuda import (
    CudaFailure,
    CudaTarget,
    burn,
    cuda_init,
    measure_bandwidth,
)
from ansible_collections.baremetal.inference.plugins.module_utils._cuda_worker import (
    CudaDevice,
    Driver,
    Refusal,
    fma_ptx,
    format_cpulist,
    parse_cpulist,
    tensor_ptx,
)

SMALL: dict[str, t.Any] = {"buffer_bytes": 1 << 20, "rounds": 4, "samples": 2, "sample_interval": 0.005}


@pytest.fixture
def host(simulated_host: t.Any, monkeypatch: pytest.MonkeyPatch) -> t.Any:
    """Four GPUs of a simulated DGX, for the processes that are started here."""
    simulated_host.create("dgx-a100-80gb", "--gpus", "4")
    for name, value in simulated_host.environment.items():
        if name != "PATH":
            monkeypatch.setenv(name, value)
    return simulated_host


def target(host: t.Any, number: int, **more: t.Any) -> CudaTarget:
    folder = host.state / f"gpu{number}"
    bus_id = (folder / "pci/bus_id").read_text().strip().lower()[4:]
    return CudaTarget(f"GPU {number} ({bus_id})", (folder / "uuid").read_text().strip(), bus_id, **more)


def nothing(*unused: t.Any) -> None:
    pass


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def test_init_shows_all_gpus(host: t.Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    init = cuda_init(20)
    assert (init.ok, init.code, init.name, init.reason, init.advice) == (True, 0, "CUDA_SUCCESS", "ok", "")
    assert init.cuda_driver_version == "13.0" and "4 device(s)" in init.msg
    assert [device.ordinal for device in init.devices] == list(range(4))
    for number, device in enumerate(init.devices):
        expected = target(host, number)
        assert (device.uuid, device.pci_bus_id) == (expected.uuid, expected.pci_bus_id)
        assert device.name == "NVIDIA A100-SXM4-80GB"
    assert children() == []


# What a user has to read for each number: the word of cuda.h, ours, and the remedy.
@pytest.mark.parametrize(
    ("code", "name", "reason", "advice"),
    [
        (3, "CUDA_ERROR_NOT_INITIALIZED", "not_initialized", "kernel log"),
        (34, "CUDA_ERROR_STUB_LIBRARY", "stub_library", "LD_LIBRARY_PATH"),
        (46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "device_unavailable", "--compute-mode=DEFAULT"),
        (100, "CUDA_ERROR_NO_DEVICE", "no_device", "/dev/nvidia*"),
        (304, "CUDA_ERROR_OPERATING_SYSTEM", "operating_system", "modprobe nvidia_uvm"),
        (802, "CUDA_ERROR_SYSTEM_NOT_READY", "system_not_ready", "nvidia-fabricmanager"),
        (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "version_mismatch", "Reboot"),
        (804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "compat_not_supported", "cuda-compat"),
        (999, "CUDA_ERROR_UNKNOWN", "unknown", "nvidia_uvm"),
        # Numbers without a text of ours have the library's name; the simulated library knows one and not the other.
        (700, "CUDA_ERROR_ILLEGAL_ADDRESS", "unknown", "kernel log"),
        (911, None, "unknown", "kernel log"),
    ],
)
def test_init_errors(host: t.Any, code: int, name: str | None, reason: str, advice: str) -> None:
    host.fault(f"cuInit = {code}")
    init = cuda_init(20)
    assert (init.ok, init.code, init.name, init.reason) == (False, code, name, reason)
    assert init.msg == f"cuInit failed: {name or 'an error that this driver has no name for'} (CUDA error {code})."
    assert advice in init.advice
    assert init.devices == () and init.cuda_driver_version is None


def test_driver_that_is_not_there(host: t.Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NVML_SIM_STATE", str(tmp_path / "nothing"))
    assert (cuda_init(20).code, cuda_init(20).reason) == (100, "no_device")


@pytest.mark.skipif(ctypes.util.find_library("cuda") is not None, reason="this machine has the real library")
def test_library_that_is_not_there(host: t.Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH")
    init = cuda_init(20)
    assert (init.ok, init.code, init.name, init.reason) == (False, None, None, "library_missing")
    assert "libcuda.so.1: cannot open shared object file" in init.msg
    assert "ldconfig" in init.advice
    with pytest.raises(CudaFailure, match="cannot open shared object file") as caught:
        measure_bandwidth(target(host, 0), nothing, **SMALL)
    assert caught.value.reason == "library_missing"


def test_library_of_something_else(host: t.Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It can be loaded, and has none of the functions."""
    (tmp_path / "libcuda.so.1").symlink_to(host.sim.libraries / "libnvidia-ml.so.1")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    init = cuda_init(20)
    assert init.reason == "library_missing" and "has no cuInit" in init.msg


def test_hang(host: t.Any) -> None:
    host.set("system/cuda/hang", "cuInit")
    started = time.monotonic()
    init = cuda_init(1.0)
    assert 1.0 <= time.monotonic() - started < 5.0
    assert (init.ok, init.code, init.reason) == (False, None, "timeout")
    assert init.msg == "cuInit did not return within 1 s."
    assert "reboot" in init.advice
    assert children() == []


def test_hang_inside_the_kernel(host: t.Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in uninterruptible sleep outlives being killed. The task goes on without it, and says so."""
    host.set("system/cuda/hang", "cuInit")
    with monkeypatch.context() as patched:
        patched.setattr(subprocess.Popen, "kill", nothing)
        patched.setattr(_cuda, "_KILL_SECONDS", 0.1)
        init = cuda_init(1.0)
    (survivor,) = children()
    assert f"Process {survivor} cannot be killed: it waits inside the kernel." in init.msg
    os.kill(int(survivor), signal.SIGKILL)
    os.waitpid(int(survivor), 0)


def test_crash(host: t.Any) -> None:
    host.set("system/cuda/crash", "cuDriverGetVersion")
    init = cuda_init(20)
    assert (init.ok, init.reason) == (False, "crashed")
    assert "was ended by SIGSEGV" in init.msg
    assert children() == []


def test_interpreter_that_cannot_load_the_collection(host: t.Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    init = cuda_init(20)
    assert (init.ok, init.reason) == (False, "crashed")
    assert "ended with 1" in init.msg and "No module named" in init.msg


def test_bandwidth_is_timed_by_the_gpu(host: t.Any, monkeypatch: pytest.MonkeyPatch) -> None:
    host.set("gpu2/cuda/h2d_mb_per_s", 24000)
    host.set("gpu2/cuda/d2h_mb_per_s", 12500)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    taken = []
    processor = min(os.sched_getaffinity(0))
    result = measure_bandwidth(
        target(host, 2, cpulist=f"{processor},4000-4001"), lambda: taken.append(time.monotonic()), **SMALL
    )
    assert (result.host_to_device.best_gb_per_s, result.device_to_host.best_gb_per_s) == (24.0, 12.5)
    assert (result.host_to_device.median_gb_per_s, result.host_to_device.rounds) == (24.0, 4)
    assert (result.buffer_bytes, result.copies_per_round, result.cpulist) == (1 << 20, 2, str(processor))
    assert len(taken) == 2
    assert children() == []


def test_processors_that_are_not_ours(host: t.Any) -> None:
    assert measure_bandwidth(target(host, 2, cpulist="4000-4010"), nothing, **SMALL).cpulist is None


def test_samples_are_taken_while_there_is_load(host: t.Any) -> None:
    """However many are wanted: the copies wait for them."""
    host.set("gpu1/pci/current_link_generation", 1)
    host.set("gpu1/loaded/pci/current_link_generation", 4)
    seen = []

    def sample() -> None:
        seen.append((host.state / "run/gpu1/pci/current_link_generation").read_text().strip())

    measure_bandwidth(target(host, 1), sample, **{**SMALL, "samples": 30})
    assert seen == ["4"] * 30
    assert not (host.state / "run/gpu1/pci/current_link_generation").exists()


def test_gpu_without_a_uuid_is_found_by_its_bus_id(host: t.Any) -> None:
    host.set("gpu3/cuda/h2d_mb_per_s", 5000)
    last = target(host, 3)
    result = measure_bandwidth(CudaTarget(last.label, None, last.pci_bus_id), nothing, **SMALL)
    assert result.host_to_device.best_gb_per_s == 5.0


@pytest.mark.parametrize(
    ("prepare", "reason", "text"),
    [
        ("mig/pending = 1", "no_device", "CUDA sees no GPU"),
        ("compute_mode = 2", "compute_mode_prohibited", "The compute mode of GPU 1 (0000:0f:00.0) is prohibited"),
        ("memory/used = 85899345920", "out_of_memory", "cuMemAlloc_v2 failed for GPU 1 (0000:0f:00.0)"),
        ("cuda/hang = cuMemcpyHtoDAsync_v2", "timeout", "cuMemcpyHtoDAsync_v2 on GPU 1 (0000:0f:00.0) did not return"),
        ("cuda/hang = cuCtxDestroy_v2", "timeout", "cuCtxDestroy_v2 on GPU 1 (0000:0f:00.0) did not return"),
        ("cuda/crash = cuCtxCreate_v2", "crashed", "ended by SIGSEGV in cuCtxCreate_v2"),
        ("run/lost = 1", "no_device", "CUDA sees no GPU"),
    ],
)
def test_gpu_that_cannot_be_measured(host: t.Any, prepare: str, reason: str, text: str) -> None:
    key, value = prepare.split(" = ")
    if key == "run/lost":
        host.tool("lose", "gpu1")
    else:
        host.set(f"gpu1/{key}", value)
    with pytest.raises(CudaFailure) as caught:
        measure_bandwidth(target(host, 1), nothing, **SMALL, timeout_seconds=1.5)
    assert caught.value.reason == reason
    assert text in caught.value.msg
    assert children() == []
    # The others are as they were.
    assert measure_bandwidth(target(host, 0), nothing, **SMALL).host_to_device.best_gb_per_s > 0


def test_gpu_in_exclusive_mode_that_is_taken(host: t.Any) -> None:
    host.set("gpu1/compute_mode", 3)
    assert measure_bandwidth(target(host, 1), nothing, **SMALL).host_to_device.best_gb_per_s > 0
    (host.state / "gpu1/processes").write_text("77 compute 1048576\n")
    with pytest.raises(CudaFailure, match="cuCtxCreate_v2 failed .* Another process holds the GPU") as caught:
        measure_bandwidth(target(host, 1), nothing, **SMALL)
    assert (caught.value.cuda_code, caught.value.cuda_call) == (46, "cuCtxCreate_v2")


def test_error_on_the_gpu_is_the_one_that_is_told(host: t.Any) -> None:
    """Not the one of tidying up after it, which such a context answers too."""
    host.fault("cuEventSynchronize gpu1 = 214")
    host.fault("cuCtxDestroy gpu1 = 214")
    with pytest.raises(CudaFailure) as caught:
        measure_bandwidth(target(host, 1), nothing, **SMALL)
    assert (caught.value.reason, caught.value.cuda_call) == ("ecc_uncorrectable", "cuEventSynchronize")
    assert caught.value.as_result()["cuda_code"] == 214


def test_gpu_that_hangs_under_load(host: t.Any) -> None:
    def sample() -> None:
        host.set("gpu1/cuda/hang", "cuEventRecord")

    with pytest.raises(CudaFailure, match=r"the load on GPU 1 .* did not return within 1\.5 s") as caught:
        measure_bandwidth(target(host, 1), sample, **{**SMALL, "samples": 1}, timeout_seconds=1.5)
    assert (caught.value.reason, caught.value.cuda_call) == ("timeout", None)
    assert children() == []


def test_what_a_sample_raises_goes_through(host: t.Any) -> None:
    def sample() -> None:
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        measure_bandwidth(target(host, 1), sample, **SMALL)
    assert children() == []


@pytest.mark.parametrize("uuid", ["GPU-a1000000-0000-4000-8000-000000000001", None])
def test_mig_instance_in_the_place_of_a_gpu(uuid: str | None) -> None:
    """CUDA gives an instance the bus id of its GPU and a UUID of its own. No instance is simulated."""

    class MigDriver(Driver):
        def __init__(self) -> None:
            pass

        def devices(self) -> list[tuple[int, CudaDevice]]:
            return [(7, CudaDevice(0, "A100", "GPU-11111111-0000-4000-8000-000000000001", "0000:0f:00.0"))]

    wanted = {"uuid": uuid, "pci_bus_id": "0000:0f:00.0"}
    if uuid is None:
        assert MigDriver().find(wanted) == 7
        return
    with pytest.raises(Refusal) as caught:
        MigDriver().find(wanted)
    assert caught.value.reason == "mig_enabled"
    with pytest.raises(Refusal) as caught:
        MigDriver().find({"uuid": uuid, "pci_bus_id": None})
    assert caught.value.reason == "not_offered"


def test_all_gpus_burn_at_once(host: t.Any) -> None:
    host.set("gpu1/cuda/teraflops", 100)
    targets = [target(host, number) for number in range(3)]
    seen: dict[str, int] = {}

    def sample(sampled: CudaTarget) -> None:
        seen[sampled.label] = seen.get(sampled.label, 0) + 1

    started = time.monotonic()
    results = burn(targets, 1.0, sample, sample_interval=0.2)
    assert 1.0 <= time.monotonic() - started < 6.0
    assert [result.target for result in results] == targets
    assert [result.failure for result in results] == [None] * 3
    assert [result.teraflops for result in results] == [200.0, 100.0, 200.0]
    assert {result.kernel for result in results} == {"tensor_fp16"}
    assert all(result.launches > 0 and result.seconds >= 1.0 and result.wrong_results == 0 for result in results)
    assert all(seen[one.label] >= 3 for one in targets)
    assert children() == []


def test_gpu_that_fails_under_load_leaves_the_others(host: t.Any) -> None:
    host.fault("cuLaunchKernel gpu1 = 719 from 4")
    host.set("gpu2/cuda/wrong_results", 3)
    host.set("gpu3/cuda/hang", "cuModuleLoadData")
    results = burn([target(host, number) for number in range(4)], 0.5, nothing, sample_interval=0.1, timeout_seconds=3)
    assert [result.wrong_results for result in results] == [0, None, 3, None]
    failures = [result.failure for result in results]
    assert failures[0] is None and failures[2] is None
    assert failures[1] is not None and (failures[1].reason, failures[1].cuda_code) == ("launch_failed", 719)
    assert failures[3] is not None and failures[3].reason == "timeout" and "cuModuleLoadData" in failures[3].msg
    assert results[0].launches > 0 and results[1].launches == 0
    assert children() == []


def test_older_gpus_get_the_other_load(host: t.Any) -> None:
    host.set("gpu0/compute_capability", "7.5")
    (result,) = burn([target(host, 0)], 0.1, nothing, sample_interval=0.05)
    assert (result.kernel, result.failure) == ("fp32", None)


@pytest.mark.parametrize(("ptx", "version", "gpu"), [(tensor_ptx(), "7.0", "sm_80"), (fma_ptx(), "6.0", "sm_50")])
def test_ptx_declares_what_it_uses(ptx: str, version: str, gpu: str) -> None:
    """Whether it compiles, ptxas says; here only what a slip in making the text would break."""
    lines = ptx.splitlines()
    assert lines[:2] == [f".version {version}", f".target {gpu}"]
    assert ptx.isascii() and ptx.count("{") == ptx.count("}")
    assert all(line.endswith((";", "{", "}", ":")) for line in lines[4:])
    (floats,) = (int(number) for number in re.findall(r"%f<([0-9]+)>", ptx))
    used = {int(number) for number in re.findall(r"%f([0-9]+)", ptx)}
    assert used == set(range(floats))


def test_process_ends_with_the_one_that_started_it(host: t.Any, tmp_path: Path) -> None:
    """A task that is killed leaves no load behind."""
    program = (
        "import os, sys\n"
        "from ansible_collections.baremetal.inference.plugins.module_utils._cuda import CudaTarget, burn\n"
        "def sample(target):\n"
        "    children = open(f'/proc/self/task/{os.getpid()}/children').read()\n"
        "    print(children, flush=True)\n"
        f"burn([CudaTarget('GPU 0', {target(host, 0).uuid!r}, None)], 60, sample, sample_interval=0.1)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while _runs(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(worker)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    # Ended; nobody has asked for how.
    return state != "Z"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("48-50,176", {48, 49, 50, 176}),
        ("3", {3}),
        ("0-1, 4", {0, 1, 4}),
        ("", set()),
        (None, set()),
        ("x", set()),
        ("5-", set()),
        ("7-6", set()),
    ],
)
def test_lists_of_processors(text: str | None, expected: set[int]) -> None:
    assert parse_cpulist(text) == expected
    assert parse_cpulist(format_cpulist(expected)) == expected


def test_lists_of_processors_are_short() -> None:
    assert format_cpulist({176, 48, 50, 49, 177}) == "48-50,176-177"
    assert format_cpulist({3}) == "3" and format_cpulist([]) == ""


def test_environment_is_the_host_s_and_not_the_user_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/run/mps")
    kept = {key: value for key, value in _cuda._environment(None).items() if key.startswith("CUDA_")}
    assert kept == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_CACHE_DISABLE": "1",
        "CUDA_MPS_PIPE_DIRECTORY": "/run/mps",
    }


_EVERY = """
import json, sys
from ansible_collections.baremetal.inference.plugins.module_utils import _cuda
init = _cuda.cuda_init(20)
target = _cuda.CudaTarget("GPU 0", init.devices[0].uuid, init.devices[0].pci_bus_id, "0-4095")
band = _cuda.measure_bandwidth(target, lambda: None, buffer_bytes=1 << 20, rounds=3, samples=1)
(burn,) = _cuda.burn([target], 0.1, lambda target: None, sample_interval=0.05)
print(json.dumps([len(init.devices), band.host_to_device.best_gb_per_s, burn.kernel, burn.wrong_results]))
"""


def test_every_python(host: t.Any, interpreter: str) -> None:
    root = Path(__file__).resolve().parents[4]
    done = subprocess.run(
        [interpreter, "-B", "-c", _EVERY],
        env={"PYTHONPATH": str(root / "collections"), **host.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [4, 25.2, "tensor_fp16", 0]
