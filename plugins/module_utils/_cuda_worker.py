# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""The process that calls CUDA: one request of _cuda.py, one GPU, one result.

The CUDA driver API (libcuda.so.1) through ctypes. Calls, structures and numbers are those of cuda.h of CUDA 13.0. This
file imports nothing but the standard library, since it is all that the process loads.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import sys
import time
import traceback
import typing as t
import uuid as uuid_module
from dataclasses import dataclass

LIBRARY = "libcuda.so.1"

LIBRARY_MISSING_ADVICE = (
    "Install the NVIDIA driver's user-space part with CUDA (Debian: libcuda1; Ubuntu: libnvidia-compute-*; RHEL:"
    " nvidia-driver-cuda-libs), then run ldconfig. A driver installed for display or monitoring only lacks it."
)


@dataclass(frozen=True)
class CudaDevice:
    """A GPU as CUDA shows it."""

    ordinal: int
    name: str | None
    uuid: str | None
    pci_bus_id: str | None


# Flags and attributes of cuda.h.
_CTX_SCHED_BLOCKING_SYNC = 0x04
_EVENT_BLOCKING_SYNC = 0x1
_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16
_ATTRIBUTE_COMPUTE_MODE = 20
_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
_COMPUTE_MODE_PROHIBITED = 2
# "[domain]:[bus]:[device].[function]" and its NUL; room for domains of eight digits.
_BUS_ID_SIZE = 20
_NAME_SIZE = 256
# However slow the link: this many rounds, and after that no more than so many seconds for one direction.
_MIN_ROUNDS = 3
_MAX_SECONDS = 10.0


class CudaError(Exception):
    def __init__(self, call: str, code: int, name: str | None) -> None:
        super().__init__(call, code)
        self.call = call
        self.code = code
        self.name = name


class Refusal(Exception):
    """Not an error of a call: why the work cannot be done. ``{label}`` in its text stands for the GPU."""

    def __init__(self, reason: str, msg: str, advice: str) -> None:
        super().__init__(msg)
        self.reason = reason
        self.msg = msg
        self.advice = advice


class Channel:
    """The other end of the pipes to _cuda.py."""

    def __init__(self, requests: int, events: int) -> None:
        self._requests = requests
        self._events = events
        self._pending = b""

    def emit(self, event: str, **fields: t.Any) -> None:
        data = json.dumps({"event": event, **fields}).encode() + b"\n"
        while data:
            data = data[os.write(self._events, data) :]

    def request(self) -> t.Any:
        while b"\n" not in self._pending:
            data = os.read(self._requests, 65536)
            if not data:
                raise EOFError("nobody asks any more")
            self._pending += data
        line, self._pending = self._pending.split(b"\n", 1)
        return json.loads(line)

    def told_to_finish(self) -> bool:
        """Without waiting. Raises EOFError when the other side is gone: then nobody wants the result."""
        if not self._pending and not select.select([self._requests], [], [], 0)[0]:
            return False
        self.request()
        return True


class Driver:
    """libcuda: each call by its exported name, and its CUresult as an exception."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        channel.emit("stage", stage="loading libcuda")
        try:
            self.library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise Refusal(
                "library_missing", f"The CUDA library cannot be loaded: {error}.", LIBRARY_MISSING_ADVICE
            ) from error

    def has(self, name: str) -> bool:
        return hasattr(self.library, name)

    def call(self, name: str, *args: t.Any) -> None:
        try:
            function = getattr(self.library, name)
        except AttributeError as error:
            raise Refusal(
                "library_missing",
                f"{LIBRARY} has no {name}, so it is no CUDA driver library of 11.0 or later.",
                LIBRARY_MISSING_ADVICE,
            ) from error
        function.restype = ctypes.c_int
        code = function(*args)
        if code:
            raise CudaError(name, code, self._error_name(code))

    def stage(self, name: str, *args: t.Any) -> None:
        """A call that may hang: the other side is told first which it is."""
        self._channel.emit("stage", stage=name)
        self.call(name, *args)

    def _error_name(self, code: int) -> str | None:
        text = ctypes.c_char_p()
        function = getattr(self.library, "cuGetErrorName", None)
        if function is None or function(ctypes.c_int(code), ctypes.byref(text)) or text.value is None:
            return None
        return text.value.decode("ascii", errors="replace")

    def number(self, name: str, *args: t.Any) -> int:
        """A call whose first parameter is an int to fill."""
        value = ctypes.c_int()
        self.call(name, ctypes.byref(value), *args)
        return value.value

    def handle(self, name: str, *args: t.Any) -> ctypes.c_void_p:
        """A call whose first parameter is a pointer to fill."""
        value = ctypes.c_void_p()
        self.call(name, ctypes.byref(value), *args)
        return value

    def version(self) -> str:
        number = self.number("cuDriverGetVersion")
        return f"{number // 1000}.{number % 1000 // 10}"

    def attribute(self, device: int, attribute: int) -> int:
        return self.number("cuDeviceGetAttribute", ctypes.c_int(attribute), ctypes.c_int(device))

    def devices(self) -> list[tuple[int, CudaDevice]]:
        return [
            (device, self._describe(ordinal, device))
            for ordinal in range(self.number("cuDeviceGetCount"))
            for device in [self.number("cuDeviceGet", ctypes.c_int(ordinal))]
        ]

    def _describe(self, ordinal: int, device: int) -> CudaDevice:
        name = ctypes.create_string_buffer(_NAME_SIZE)
        self.call("cuDeviceGetName", name, ctypes.c_int(_NAME_SIZE), ctypes.c_int(device))
        # The first version gives the UUID of the whole GPU also for a MIG instance; before CUDA 11.4 it is all there is.
        octets = ctypes.create_string_buffer(16)
        version = "cuDeviceGetUuid_v2" if self.has("cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
        self.call(version, octets, ctypes.c_int(device))
        bus_id = ctypes.create_string_buffer(_BUS_ID_SIZE)
        self.call("cuDeviceGetPCIBusId", bus_id, ctypes.c_int(_BUS_ID_SIZE), ctypes.c_int(device))
        return CudaDevice(
            ordinal=ordinal,
            name=name.value.decode("utf-8", errors="replace"),
            uuid=f"GPU-{uuid_module.UUID(bytes=octets.raw)}",
            pci_bus_id=bus_id.value.decode("ascii", errors="replace").lower(),
        )

    def find(self, target: t.Mapping[str, t.Any]) -> int:
        devices = self.devices()
        for device, description in devices:
            if target["uuid"] is not None and description.uuid == target["uuid"].lower().replace("gpu-", "GPU-"):
                return device
        for device, description in devices:
            if target["pci_bus_id"] is None or description.pci_bus_id != target["pci_bus_id"]:
                continue
            if target["uuid"] is None:
                return device
            raise Refusal(
                "mig_enabled",
                f"CUDA shows {description.uuid} in the place of {{label}}: a MIG instance.",
                "Only whole GPUs can be put under load: switch MIG mode off first, or leave this GPU out.",
            )
        raise Refusal(
            "not_offered",
            "CUDA initialised, and does not show {label}.",
            "Check that MIG mode is off and that this user may open the GPU's device node; look in the kernel log for"
            " NVRM and Xid lines.",
        )


class Context:
    """A CUDA context with all that was made in it. Destroying it frees the rest."""

    def __init__(self, driver: Driver, device: int) -> None:
        self.driver = driver
        self.device = device
        if driver.attribute(device, _ATTRIBUTE_COMPUTE_MODE) == _COMPUTE_MODE_PROHIBITED:
            raise Refusal(
                "compute_mode_prohibited",
                "The compute mode of {label} is prohibited, which lets no program use it.",
                "Run 'nvidia-smi --compute-mode=DEFAULT' for that GPU, or leave it out.",
            )
        self._context = ctypes.c_void_p()
        driver.stage(
            "cuCtxCreate_v2",
            ctypes.byref(self._context),
            ctypes.c_uint(_CTX_SCHED_BLOCKING_SYNC),
            ctypes.c_int(device),
        )

    def __enter__(self) -> Context:
        return self

    def __exit__(self, kind: type[BaseException] | None, *unused: t.Any) -> None:
        try:
            self.driver.stage("cuCtxDestroy_v2", self._context)
        except CudaError:
            # After an error on the GPU every call of the context gives that error again; the first one is reported.
            if kind is None:
                raise

    def host_memory(self, size: int) -> ctypes.c_void_p:
        pointer = ctypes.c_void_p()
        self.driver.stage("cuMemAllocHost_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer

    def device_memory(self, size: int) -> ctypes.c_uint64:
        pointer = ctypes.c_uint64()
        self.driver.stage("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer

    def timed(self, work: t.Callable[[ctypes.c_void_p], None]) -> float:
        """Milliseconds, by the GPU's clock, of what ``work`` puts into the stream."""
        driver = self.driver
        stream = driver.handle("cuStreamCreate", ctypes.c_uint(0))
        start = driver.handle("cuEventCreate", ctypes.c_uint(_EVENT_BLOCKING_SYNC))
        stop = driver.handle("cuEventCreate", ctypes.c_uint(_EVENT_BLOCKING_SYNC))
        driver.call("cuEventRecord", start, stream)
        work(stream)
        driver.call("cuEventRecord", stop, stream)
        driver.call("cuEventSynchronize", stop)
        elapsed = ctypes.c_float()
        driver.call("cuEventElapsedTime", ctypes.byref(elapsed), start, stop)
        driver.call("cuEventDestroy_v2", start)
        driver.call("cuEventDestroy_v2", stop)
        driver.call("cuStreamDestroy_v2", stream)
        return elapsed.value


def parse_cpulist(text: str | None) -> set[int]:
    """The numbers of "48-63,176-191"."""
    found: set[int] = set()
    for part in (text or "").split(","):
        first, dash, last = part.strip().partition("-")
        if first.isdigit() and (not dash or last.isdigit()):
            found.update(range(int(first), int(last if dash else first) + 1))
    return found


def format_cpulist(numbers: t.Iterable[int]) -> str:
    """The other way round."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in parts)


def _go_near(cpulist: str | None) -> str | None:
    """Run on those processors from now on: memory of the far socket would be measured through the link between both.

    None when this task may use none of them.
    """
    wanted = parse_cpulist(cpulist) & os.sched_getaffinity(0)
    if not wanted:
        return None
    os.sched_setaffinity(0, wanted)
    return format_cpulist(wanted)


def _list_devices(driver: Driver) -> dict[str, t.Any]:
    return {"version": driver.version(), "devices": [vars(device) for unused, device in driver.devices()]}


def _copy_rounds(
    context: Context, name: str, to: t.Any, source: t.Any, request: t.Mapping[str, t.Any]
) -> t.Iterator[float]:
    """Milliseconds of one round after the other, for ever."""
    size = ctypes.c_size_t(request["buffer_bytes"])

    def copies(stream: ctypes.c_void_p) -> None:
        for _number in range(request["copies_per_round"]):
            context.driver.call(name, to, source, size, stream)

    while True:
        yield context.timed(copies)


def _measure(driver: Driver, request: t.Mapping[str, t.Any], channel: Channel) -> dict[str, t.Any]:
    with Context(driver, driver.find(request["target"])) as context:
        host = context.host_memory(request["buffer_bytes"])
        device = context.device_memory(request["buffer_bytes"])
        # The link wakes up, and pages are touched, before anything is timed.
        channel.emit("stage", stage="cuMemcpyHtoDAsync_v2")
        to_device = _copy_rounds(context, "cuMemcpyHtoDAsync_v2", device, host, request)
        to_host = _copy_rounds(context, "cuMemcpyDtoHAsync_v2", host, device, request)
        next(to_device)
        next(to_host)
        channel.emit("running")
        finish = channel.told_to_finish()
        times: list[list[float]] = []
        for rounds in (to_device, to_host):
            began = time.monotonic()
            measured: list[float] = []
            while len(measured) < request["rounds"]:
                measured.append(next(rounds))
                finish = finish or channel.told_to_finish()
                if len(measured) >= _MIN_ROUNDS and time.monotonic() - began > _MAX_SECONDS:
                    break
            times.append(measured)
        while not finish:
            # The other side still reads the link, which has to stay busy for that.
            next(to_device)
            next(to_host)
            finish = channel.told_to_finish()
    return {"host_to_device_ms": times[0], "device_to_host_ms": times[1]}


# The load, in PTX, which the driver compiles for the GPU at hand. PTX names the oldest GPU and driver that take it:
# 7.0 with sm_80 is CUDA 11.0 and A100 onwards, 6.0 with sm_50 is CUDA 9.0 and Maxwell onwards (PTX ISA, release
# notes and "Target ISA notes" of mma). Both were compiled with ptxas of CUDA 13.0, for sm_80 to sm_120 and for sm_75
# to sm_120. Each thread's numbers depend on its place alone, so that the same launch gives the same results every time.
_TENSOR_SETS = 8
_TENSOR_FLOPS = 2 * 16 * 8 * 16
_FMA_SETS = 16
_THREADS = 256
_BLOCKS_PER_MULTIPROCESSOR = 4
_LAUNCH_MILLISECONDS = 100.0
_FIRST_ROUNDS = 1000
_MAX_LOOP = 2**31 - 1

_PTX_FRAME = """.version {version}
.target {target}
.address_size 64
.visible .entry burn(.param .u64 results, .param .u32 rounds)
{{
.reg .f32 %f<{registers}>;
.reg .f32 %x<2>;
.reg .b32 %a<6>;
.reg .u32 %r<5>;
.reg .u64 %d<2>;
.reg .pred %p;
ld.param.u64 %d0, [results];
ld.param.u32 %r0, [rounds];
mov.u32 %r1, %tid.x;
mov.u32 %r2, %ctaid.x;
mov.u32 %r3, %ntid.x;
mad.lo.u32 %r1, %r2, %r3, %r1;
{begin}
again:
{work}
sub.u32 %r0, %r0, 1;
setp.ne.u32 %p, %r0, 0;
@%p bra again;
{end}
cvta.to.global.u64 %d0, %d0;
mul.wide.u32 %d1, %r1, 4;
add.u64 %d0, %d0, %d1;
st.global.f32 [%d0], %f0;
ret;
}}
"""


def _ptx(version: str, target: str, registers: int, begin: t.Sequence[str], work: t.Sequence[str]) -> str:
    return _PTX_FRAME.format(
        version=version,
        target=target,
        registers=registers,
        begin="\n".join(begin),
        work="\n".join(work),
        end="\n".join(f"add.f32 %f0, %f0, %f{number};" for number in range(1, registers)),
    )


def tensor_ptx() -> str:
    """Products of 16-bit matrices in the tensor cores, which draw the most power."""
    begin = ["mov.u32 %r4, %r1;"]
    for register in range(6):
        # Pairs of pseudo-random halves of either sign with a size of 0.5 to 1: zeros would toggle nothing.
        begin += [
            "mad.lo.u32 %r4, %r4, 1664525, 1013904223;",
            f"and.b32 %a{register}, %r4, 0x83ff83ff;",
            f"or.b32 %a{register}, %a{register}, 0x38003800;",
        ]
    work = []
    for number in range(_TENSOR_SETS):
        names = [f"%f{4 * number + part}" for part in range(4)]
        # Different from set to set, so that no compiler finds that one would do.
        begin += [f"mov.f32 {name}, 0f{0x3F800000 + 0x10000 * number:08X};" for name in names]
        sums = "{" + ", ".join(names) + "}"
        work.append(
            f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {sums}, {{%a0, %a1, %a2, %a3}}, {{%a4, %a5}}, {sums};"
        )
    return _ptx("7.0", "sm_80", 4 * _TENSOR_SETS, begin, work)


def fma_ptx() -> str:
    """Multiplications and additions, for GPUs before A100. They converge, so that no number overflows."""
    begin = ["cvt.rn.f32.u32 %x0, %r1;", "mul.f32 %x0, %x0, 0f33800000;", "mov.f32 %x1, 0f3F7FFFFF;"]
    begin += [f"add.f32 %f{number}, %x0, 0f{0x3F800000 + 0x10000 * number:08X};" for number in range(_FMA_SETS)]
    work = [f"fma.rn.f32 %f{number}, %f{number}, %x1, %x0;" for number in range(_FMA_SETS)]
    return _ptx("6.0", "sm_50", _FMA_SETS, begin, work)


def _burn(driver: Driver, request: t.Mapping[str, t.Any], channel: Channel) -> dict[str, t.Any]:
    device = driver.find(request["target"])
    tensor = driver.attribute(device, _ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) >= 8
    blocks = driver.attribute(device, _ATTRIBUTE_MULTIPROCESSOR_COUNT) * _BLOCKS_PER_MULTIPROCESSOR
    threads = blocks * _THREADS
    per_round = threads // 32 * _TENSOR_SETS * _TENSOR_FLOPS if tensor else threads * _FMA_SETS * 2
    with Context(driver, device) as context:
        module = ctypes.c_void_p()
        image = ctypes.create_string_buffer((tensor_ptx() if tensor else fma_ptx()).encode("ascii"))
        driver.stage("cuModuleLoadData", ctypes.byref(module), image)
        function = driver.handle("cuModuleGetFunction", module, b"burn")
        results = context.device_memory(4 * threads)
        host = context.host_memory(4 * threads)

        def launch(rounds: int) -> float:
            parameters = [results, ctypes.c_uint32(rounds)]
            pointers = (ctypes.c_void_p * len(parameters))(
                *(ctypes.cast(ctypes.byref(parameter), ctypes.c_void_p) for parameter in parameters)
            )
            grid = [ctypes.c_uint(size) for size in (blocks, 1, 1, _THREADS, 1, 1, 0)]
            return context.timed(
                lambda stream: driver.call("cuLaunchKernel", function, *grid, stream, pointers, ctypes.c_void_p())
            )

        def computed() -> memoryview:
            context.timed(
                lambda stream: driver.call("cuMemcpyDtoHAsync_v2", host, results, ctypes.c_size_t(4 * threads), stream)
            )
            return memoryview(ctypes.string_at(host, 4 * threads)).cast("I")

        channel.emit("stage", stage="cuLaunchKernel")
        launch(_FIRST_ROUNDS)
        rounds = _FIRST_ROUNDS
        while True:
            milliseconds = launch(rounds)
            if milliseconds >= _LAUNCH_MILLISECONDS / 4 or rounds > _MAX_LOOP // 8:
                break
            rounds *= 4
        launch(rounds)
        first = computed()
        channel.emit("running")
        began = time.monotonic()
        launches, busy = 0, 0.0
        while not channel.told_to_finish():
            busy += launch(rounds)
            launches += 1
        seconds = time.monotonic() - began
        wrong = sum(1 for before, after in zip(first, computed()) if before != after)
    return {
        "kernel": "tensor_fp16" if tensor else "fp32",
        "seconds": round(seconds, 3),
        "launches": launches,
        "teraflops": 0.0 if not busy else per_round * rounds * launches / (busy / 1000.0) / 1e12,
        "wrong_results": wrong,
    }


def main() -> None:
    """One request, events, one result."""
    # Libraries may write to standard output, which is not theirs here.
    channel = Channel(os.dup(0), os.dup(1))
    os.dup2(2, 1)
    try:
        request = channel.request()
        cpulist = _go_near(request["cpulist"])
        driver = Driver(channel)
        driver.stage("cuInit", ctypes.c_uint(0))
        task = request["task"]
        if task == "init":
            result = _list_devices(driver)
        elif task == "bandwidth":
            result = _measure(driver, request, channel)
        else:
            result = _burn(driver, request, channel)
        channel.emit("done", result={**result, "cpulist": cpulist})
    except CudaError as error:
        channel.emit("cuda_error", call=error.call, code=error.code, name=error.name)
    except Refusal as refusal:
        channel.emit("refused", reason=refusal.reason, msg=refusal.msg, advice=refusal.advice)
    except (EOFError, BrokenPipeError):
        # The task was stopped. Nobody is left to tell.
        pass
    finally:
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        # Libraries' own farewells can hang where their work did not.
        sys.stderr.flush()
        os._exit(1 if sys.exc_info()[0] is not None else 0)
