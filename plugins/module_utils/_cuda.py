# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""What only CUDA can show: whether it initialises, how fast a GPU's PCIe link really is, and how a GPU bears load.

The CUDA driver API (libcuda.so.1, part of the NVIDIA driver) through ctypes: no toolkit, no compiler, no package.
Calls, structures and error numbers are those of cuda.h of CUDA 13.0 and of NVIDIA's CUDA Driver API reference.

Every CUDA call is made by a process of its own, one for each GPU, which is killed when it does not answer in time:
on a broken host cuInit can hang; a process that has called it keeps the device nodes open until it ends, which would
stand in the way of a reset; and which GPUs CUDA shows is settled by the environment at its start. While one works, this
process takes the readings, through a function that the caller gives.

The process itself is _cuda_worker.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import typing as t
from dataclasses import dataclass

from ansible_collections.baremetal.inference.plugins.module_utils._cuda_worker import CudaDevice
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_errors import GpuFailure

MEBIBYTE = 1024 * 1024
# "Around 0.5 microseconds" (cuda.h, cuEventElapsedTime), in milliseconds: a time of zero is one shorter than that.
_EVENT_RESOLUTION = 0.0005
# Hosts without persistence mode initialise every GPU anew: seconds for each.
DEFAULT_TIMEOUT = 120.0

_KERNEL_LOG = "Look at the kernel log of that time for NVRM and Xid lines (journalctl -k -g 'NVRM|Xid')."

# CUresult: its name, our short word for it, and what it means for the operator. Other codes are named by
# cuGetErrorName.
_MEANING: t.Mapping[int, tuple[str, str, str]] = {
    2: (
        "CUDA_ERROR_OUT_OF_MEMORY",
        "out_of_memory",
        "Not enough memory is free, on the GPU or as page-locked memory of the host: stop what uses the GPU, or ask for"
        " a smaller buffer.",
    ),
    3: (
        "CUDA_ERROR_NOT_INITIALIZED",
        "not_initialized",
        f"The driver could not be initialised. {_KERNEL_LOG}",
    ),
    34: (
        "CUDA_ERROR_STUB_LIBRARY",
        "stub_library",
        "The loader found the stub library of the CUDA toolkit, made for linking only: take its folder (stubs) out of"
        " LD_LIBRARY_PATH and /etc/ld.so.conf.d, and run ldconfig.",
    ),
    46: (
        "CUDA_ERROR_DEVICE_UNAVAILABLE",
        "device_unavailable",
        "Another process holds the GPU in compute mode exclusive_process, or its compute mode is prohibited: stop that"
        " process, or run 'nvidia-smi --compute-mode=DEFAULT'.",
    ),
    100: (
        "CUDA_ERROR_NO_DEVICE",
        "no_device",
        "CUDA sees no GPU. Where nvidia-smi lists them: look for missing or forbidden device nodes (/dev/nvidia*), for"
        " MIG mode without instances, and in the kernel log for NVRM and Xid lines.",
    ),
    101: (
        "CUDA_ERROR_INVALID_DEVICE",
        "invalid_device",
        f"The driver does not accept one of the GPUs. {_KERNEL_LOG}",
    ),
    102: ("CUDA_ERROR_DEVICE_NOT_LICENSED", "not_licensed", "The virtual GPU has no licence: configure nvidia-gridd."),
    214: (
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "ecc_uncorrectable",
        "The GPU's memory had an error that ECC could not correct: keep work off this GPU, look for Xid 48, 63, 64, 94"
        " and 95 in the kernel log, and reset it; when it comes back, have the GPU replaced.",
    ),
    221: (
        "CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
        "jit_missing",
        "The driver's compiler library (libnvidia-ptxjitcompiler.so.1) is missing: install all of the driver's"
        " user-space part.",
    ),
    222: (
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        "ptx_version",
        "The driver is too old for this load: it needs one of CUDA 11.0 or later (R450).",
    ),
    304: (
        "CUDA_ERROR_OPERATING_SYSTEM",
        "operating_system",
        "A system call of the driver failed, mostly on device nodes: check that the nvidia_uvm module is loaded"
        " (modprobe nvidia_uvm) and that this user may open /dev/nvidia-uvm and /dev/nvidia*.",
    ),
    719: (
        "CUDA_ERROR_LAUNCH_FAILED",
        "launch_failed",
        f"The GPU failed while it computed. {_KERNEL_LOG}",
    ),
    802: (
        "CUDA_ERROR_SYSTEM_NOT_READY",
        "system_not_ready",
        "On machines with NVSwitches, Fabric Manager must run before CUDA can: start it (systemctl start"
        " nvidia-fabricmanager), check that its version equals the driver's, and read its log (journalctl -u"
        " nvidia-fabricmanager). On other machines wait until all daemons of the driver run.",
    ),
    803: (
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "version_mismatch",
        "libcuda and the loaded kernel module are of different driver versions, as after an upgrade without a reboot,"
        " or with a compatibility library (cuda-compat) that this driver does not support. Reboot, or take the"
        " compatibility library out of LD_LIBRARY_PATH and /etc/ld.so.conf.d.",
    ),
    804: (
        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "compat_not_supported",
        "A compatibility library (cuda-compat) is in use that these GPUs do not support: take it out of LD_LIBRARY_PATH"
        " and /etc/ld.so.conf.d, run ldconfig, and install a driver that is new enough.",
    ),
    805: (
        "CUDA_ERROR_MPS_CONNECTION_FAILED",
        "mps",
        "The Multi-Process Service does not answer: restart nvidia-cuda-mps-control, or stop it.",
    ),
    807: (
        "CUDA_ERROR_MPS_SERVER_NOT_READY",
        "mps",
        "The Multi-Process Service is recovering from a failure: wait, or restart nvidia-cuda-mps-control.",
    ),
    999: (
        "CUDA_ERROR_UNKNOWN",
        "unknown",
        "Often the nvidia_uvm module is missing or of another version (modprobe nvidia_uvm), or the driver stopped after"
        f" a fault. {_KERNEL_LOG}",
    ),
}

TIMEOUT_ADVICE = (
    "The driver hangs: look in the kernel log for Xid, NVRM and 'blocked for more than' lines (journalctl -k), keep work"
    " off this host and reboot it."
)
_CRASH_ADVICE = f"{_KERNEL_LOG} Check that libcuda and the kernel module are of one driver version."


class CudaFailure(GpuFailure):
    """A CUDA error, with what to do about it in its text.

    ``reason`` is the short word of the error number, or one of library_missing, timeout, crashed, mig_enabled,
    compute_mode_prohibited, not_offered.
    """

    def __init__(
        self,
        msg: str,
        *,
        reason: str,
        cuda_code: int | None = None,
        cuda_name: str | None = None,
        cuda_call: str | None = None,
        advice: str = "",
    ) -> None:
        super().__init__(f"{msg} {advice}".strip(), reason=reason, cuda_code=cuda_code, cuda_call=cuda_call)
        self.cuda_code = cuda_code
        self.cuda_name = cuda_name
        self.cuda_call = cuda_call
        self.what = msg
        self.advice = advice


@dataclass(frozen=True)
class CudaInit:
    """How cuInit went. ``code`` is its CUresult; None when it did not answer or could not be called."""

    ok: bool
    code: int | None
    name: str | None
    # "ok", or as in CudaFailure.
    reason: str
    msg: str
    advice: str
    cuda_driver_version: str | None
    devices: tuple[CudaDevice, ...]
    seconds: float


@dataclass(frozen=True)
class CudaTarget:
    """Which GPU to work on, and how error texts name it. By UUID, or without one by PCI bus id."""

    label: str
    uuid: str | None
    pci_bus_id: str | None
    # Processors near the GPU, as in sysfs: the work is done and the host's memory taken there.
    cpulist: str | None = None


@dataclass(frozen=True)
class Throughput:
    """Of one direction, in gigabytes (1e9 bytes) per second."""

    best_gb_per_s: float
    median_gb_per_s: float
    rounds: int


@dataclass(frozen=True)
class Bandwidth:
    host_to_device: Throughput
    device_to_host: Throughput
    buffer_bytes: int
    copies_per_round: int
    # Where the copies were made from; None when the process could not be put near the GPU.
    cpulist: str | None
    seconds: float


@dataclass(frozen=True)
class Burn:
    """How one GPU bore the load. ``failure`` is None when it did."""

    target: CudaTarget
    # "tensor_fp16" or "fp32".
    kernel: str | None
    seconds: float
    launches: int
    teraflops: float | None
    # Results that differed from those of the first launch: the GPU miscalculated.
    wrong_results: int | None
    failure: CudaFailure | None


# ---- what the modules call ----


def cuda_init(timeout_seconds: float = DEFAULT_TIMEOUT) -> CudaInit:
    """Call cuInit and list the devices, all of them, in a process of its own. Never raises for what it finds."""
    started = time.monotonic()
    worker = _Worker({"task": "init"}, None, timeout_seconds)
    try:
        answer = _converse([worker], lambda worker: None, 0.0, lambda worker: True)[0]
    finally:
        worker.close()
    seconds = round(time.monotonic() - started, 3)
    if isinstance(answer, CudaFailure):
        return CudaInit(
            ok=False,
            code=answer.cuda_code,
            name=answer.cuda_name,
            reason=answer.reason,
            msg=answer.what,
            advice=answer.advice,
            cuda_driver_version=None,
            devices=(),
            seconds=seconds,
        )
    return CudaInit(
        ok=True,
        code=0,
        name="CUDA_SUCCESS",
        reason="ok",
        msg=f"CUDA {answer['version']} initialised with {len(answer['devices'])} device(s) in {seconds:.1f} s.",
        advice="",
        cuda_driver_version=answer["version"],
        devices=tuple(CudaDevice(**device) for device in answer["devices"]),
        seconds=seconds,
    )


def measure_bandwidth(
    target: CudaTarget,
    sample: t.Callable[[], None],
    *,
    samples: int = 5,
    sample_interval: float = 0.02,
    buffer_bytes: int = 256 * MEBIBYTE,
    rounds: int = 10,
    copies_per_round: int = 2,
    timeout_seconds: float = DEFAULT_TIMEOUT,
) -> Bandwidth:
    """Copy between page-locked memory of the host and one GPU, both ways, and time it with the GPU's own events.

    ``sample`` is called ``samples`` times while copies run: they go on until it has been. What it raises goes through.
    """
    started = time.monotonic()
    request = {
        "task": "bandwidth",
        "buffer_bytes": buffer_bytes,
        "rounds": rounds,
        "copies_per_round": copies_per_round,
    }
    worker = _Worker(request, target, timeout_seconds)
    taken = 0

    def tick(running: _Worker) -> None:
        nonlocal taken
        sample()
        taken += 1

    try:
        answer = _converse([worker], tick, sample_interval, lambda running: taken >= samples)[0]
    finally:
        worker.close()
    if isinstance(answer, CudaFailure):
        raise answer
    return Bandwidth(
        host_to_device=_throughput(answer["host_to_device_ms"], buffer_bytes * copies_per_round),
        device_to_host=_throughput(answer["device_to_host_ms"], buffer_bytes * copies_per_round),
        buffer_bytes=buffer_bytes,
        copies_per_round=copies_per_round,
        cpulist=answer["cpulist"],
        seconds=round(time.monotonic() - started, 3),
    )


def burn(
    targets: t.Sequence[CudaTarget],
    seconds: float,
    sample: t.Callable[[CudaTarget], None],
    *,
    sample_interval: float = 1.0,
    timeout_seconds: float = DEFAULT_TIMEOUT,
) -> list[Burn]:
    """Let all the GPUs compute at once for so long. Results are in the order of ``targets``.

    ``sample`` is called for each GPU that computes, once every interval; it takes the readings. What it raises ends the
    load and goes through. A GPU that fails does not end the load of the others.
    """
    workers: list[_Worker] = []

    def tick(worker: _Worker) -> None:
        sample(t.cast(CudaTarget, worker.target))

    try:
        for target in targets:
            workers.append(_Worker({"task": "burn"}, target, timeout_seconds))
        answers = _converse(workers, tick, sample_interval, lambda worker: worker.running_for() >= seconds)
    finally:
        for worker in workers:
            worker.close()
    results = []
    for target, answer in zip(targets, answers):
        failed = isinstance(answer, CudaFailure)
        results.append(
            Burn(
                target=target,
                kernel=None if failed else answer["kernel"],
                seconds=0.0 if failed else answer["seconds"],
                launches=0 if failed else answer["launches"],
                teraflops=None if failed else round(answer["teraflops"], 1),
                wrong_results=None if failed else answer["wrong_results"],
                failure=answer if failed else None,
            )
        )
    return results


def _throughput(milliseconds: t.Sequence[float], size: int) -> Throughput:
    rates = sorted(size / (max(value, _EVENT_RESOLUTION) / 1000.0) / 1e9 for value in milliseconds)
    middle = len(rates) // 2
    median = rates[middle] if len(rates) % 2 else (rates[middle - 1] + rates[middle]) / 2
    return Throughput(best_gb_per_s=round(rates[-1], 2), median_gb_per_s=round(median, 2), rounds=len(rates))


def failure_of(code: int, name: str | None, call: str, label: str | None) -> CudaFailure:
    """The error of a call, in words."""
    known, reason, advice = _MEANING.get(code, (name, "unknown", _KERNEL_LOG))
    where = f" for {label}" if label else ""
    return CudaFailure(
        f"{call} failed{where}: {known or 'an error that this driver has no name for'} (CUDA error {code}).",
        reason=reason,
        cuda_code=code,
        cuda_name=known,
        cuda_call=call,
        advice=advice,
    )


# ---- the processes, seen from here ----

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    " from ansible_collections.baremetal.inference.plugins.module_utils._cuda_worker import main; main()"
)
# The program that a user has set these for is another one: hidden GPUs, or slow launches, would be measured here.
# Where the Multi-Process Service listens stays true.
_KEPT_VARIABLES = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
# How long a killed process may take to go away. One that waits inside the kernel cannot be killed.
_KILL_SECONDS = 2.0


def _environment(target: CudaTarget | None) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("CUDA_") or key in _KEPT_VARIABLES}
    kept["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    # Nothing is left behind in the user's home.
    kept["CUDA_CACHE_DISABLE"] = "1"
    if target is not None and target.uuid is not None:
        # NVIDIA's MIG guide: a process that is shown any MIG instance is shown nothing but one instance. So each
        # process is shown the one GPU that it is for.
        kept["CUDA_VISIBLE_DEVICES"] = target.uuid
    return kept


class _Worker:
    """One such process: requests and events are lines of JSON."""

    def __init__(self, request: t.Mapping[str, t.Any], target: CudaTarget | None, timeout_seconds: float) -> None:
        self.target = target
        self.timeout_seconds = timeout_seconds
        self.stage = "start"
        self.result: dict[str, t.Any] | CudaFailure | None = None
        self.started = time.monotonic()
        self.deadline = self.started + timeout_seconds
        self.running_since: float | None = None
        self.sampled_at = 0.0
        self.told = False
        self._pending = b""
        self._errors = b""
        # AnsibleModule.run_command waits for the end, talks to no program meanwhile, and knows no time-out.
        self._process = subprocess.Popen(  # pylint: disable=ansible-bad-function
            [sys.executable, "-B", "-c", _START, json.dumps([os.path.abspath(path) for path in sys.path])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(target),
            # Signals to the task's terminal are for the task. This one ends, in order, when its standard input does.
            start_new_session=True,
        )
        # All three are pipes, as asked for above.
        self._input, output, errors = (
            t.cast("t.IO[bytes]", pipe) for pipe in (self._process.stdin, self._process.stdout, self._process.stderr)
        )
        self._pipes = (self._input, output, errors)
        self.stdout, self.stderr = output.fileno(), errors.fileno()
        self.open = {self.stdout, self.stderr}
        details = None if target is None else {"uuid": target.uuid, "pci_bus_id": target.pci_bus_id}
        self.send({**request, "target": details, "cpulist": None if target is None else target.cpulist})

    def send(self, message: t.Any) -> None:
        # It has ended: what it left on its other pipes says why.
        with contextlib.suppress(BrokenPipeError):
            self._input.write(json.dumps(message).encode() + b"\n")
            self._input.flush()

    def running_for(self) -> float:
        return 0.0 if self.running_since is None else time.monotonic() - self.running_since

    def finish(self) -> None:
        """No more readings are wanted."""
        if not self.told:
            self.told = True
            self.send("finish")
            self.deadline = time.monotonic() + self.timeout_seconds

    def read(self, pipe: int) -> None:
        data = os.read(pipe, 65536)
        if not data:
            self.open.discard(pipe)
            if not self.open and self.result is None:
                self.result = self._ended()
        elif pipe == self.stderr:
            self._errors = (self._errors + data)[-4000:]
        else:
            self._pending += data
            *lines, self._pending = self._pending.split(b"\n")
            for line in lines:
                self._event(json.loads(line))

    def _event(self, event: t.Mapping[str, t.Any]) -> None:
        kind = event["event"]
        if kind == "stage":
            self.stage = event["stage"]
        elif kind == "running":
            self.stage = "the load"
            self.running_since = time.monotonic()
        elif kind == "done":
            self.result = event["result"]
        elif kind == "cuda_error":
            self.result = failure_of(event["code"], event["name"], event["call"], self._label())
        else:
            self.result = CudaFailure(
                event["msg"].replace("{label}", self._label() or "the GPUs"),
                reason=event["reason"],
                advice=event["advice"],
            )

    def _label(self) -> str | None:
        return None if self.target is None else self.target.label

    def _where(self) -> str:
        return f" on {self.target.label}" if self.target is not None else ""

    def _call(self) -> str | None:
        """The CUDA function that it was in, where that is known."""
        return self.stage if self.stage.startswith("cu") else None

    def expired(self) -> bool:
        return time.monotonic() > self.deadline and (self.running_since is None or self.told)

    def expire(self) -> None:
        stuck = "" if self.kill() else f" Process {self._process.pid} cannot be killed: it waits inside the kernel."
        self.result = CudaFailure(
            f"{self.stage}{self._where()} did not return within {self.timeout_seconds:g} s.{stuck}",
            reason="timeout",
            cuda_call=self._call(),
            advice=TIMEOUT_ADVICE,
        )

    def _ended(self) -> CudaFailure:
        """It went without a word."""
        self.kill()
        code = self._process.returncode
        how = f"was ended by {signal.Signals(-code).name}" if code is not None and code < 0 else f"ended with {code}"
        said = self._errors.decode("utf-8", errors="replace").strip()
        return CudaFailure(
            f"The process that calls CUDA{self._where()} {how} in {self.stage}."
            + (f" It said: {said}" if said else ""),
            reason="crashed",
            cuda_call=self._call(),
            advice=_CRASH_ADVICE,
        )

    def kill(self) -> bool:
        """Whether it is gone."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        try:
            self._process.wait(_KILL_SECONDS)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()
        for pipe in self._pipes:
            # What is still unwritten was for a process that is gone.
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def _converse(
    workers: t.Sequence[_Worker],
    tick: t.Callable[[_Worker], None],
    interval: float,
    enough: t.Callable[[_Worker], bool],
) -> list[t.Any]:
    """Serve all until each has a result: the answer, or a CudaFailure."""
    while True:
        open_ones = [worker for worker in workers if worker.result is None]
        if not open_ones:
            return [worker.result for worker in workers]
        now = time.monotonic()
        for worker in open_ones:
            if worker.running_since is None or worker.told or now - worker.sampled_at < interval:
                continue
            if enough(worker):
                worker.finish()
            else:
                tick(worker)
                worker.sampled_at = time.monotonic()
        pipes = {pipe: worker for worker in open_ones for pipe in worker.open}
        wait = min(0.05, interval) if interval else 0.05
        for pipe in select.select(list(pipes), [], [], wait)[0]:
            pipes[pipe].read(pipe)
        for worker in open_ones:
            if worker.result is None and worker.expired():
                worker.expire()
