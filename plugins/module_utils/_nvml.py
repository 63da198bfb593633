# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""The only file that touches pynvml (from nvidia-ml-py): one NVML session, reads into records, errors into words.

Calls, units and meanings are those of nvml.h and of NVIDIA's NVML API reference. A getter that answers "not supported"
or "function not found" gives None: this GPU or driver has no such fact. Every other error is a NvmlFailure.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import sys
import typing as t
from dataclasses import dataclass, replace

from ansible.module_utils.basic import missing_required_lib
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_errors import GpuFailure
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_model import (
    ARCHITECTURES,
    BRANDS,
    COMPUTE_MODES,
    NVLINK_REMOTES,
    NVLINK_STATES,
    NVLINK_VERSIONS,
    P2P_NVLINK,
    P2P_READ,
    P2P_STATUSES,
    P2P_WRITE,
    P_STATE_UNKNOWN,
    RECOVERY_ACTIONS,
    SWITCHES,
    TOPOLOGY_LEVELS,
    Bar1State,
    Clocks,
    EccErrors,
    EccState,
    GpuIdentity,
    GpuProcess,
    MemoryState,
    ModePair,
    NvLink,
    NvLinkErrors,
    NvLinkState,
    P2pStatus,
    PowerState,
    ReadError,
    RemappedRows,
    Temperatures,
    UnavailableGpu,
    Utilization,
    cuda_version,
    event_reasons,
    named,
    watts,
)
from ansible_collections.baremetal.inference.plugins.module_utils._pci import bus_id_order, normalize_bus_id

if t.TYPE_CHECKING:
    from types import ModuleType

LIBRARY = "libnvidia-ml.so.1"

# Codes of nvmlReturn_t.
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
_ABSENT = (NOT_SUPPORTED, FUNCTION_NOT_FOUND)

# nvmlInit fails on a machine without GPUs unless told that this is fine.
_INIT_FLAG_NO_GPUS = 1
_MAX_NVLINKS = 36
_MEMORY_V2 = 0x02000028

_FIELD_MEMORY_TEMPERATURE = 82
_FIELD_NVLINK_SPEED_COMMON = 90
_FIELD_NVLINK_COUNT = 91
_FIELD_NVLINK_REPLAY = 161
_FIELD_NVLINK_RECOVERY = 162
_FIELD_NVLINK_CRC = 163
_FIELD_NVLINK_SPEED = 164
_FIELD_NVLINK_STATE = 165
_FIELD_RECOVERY_ACTION = 230
# Which member of the value's union holds it, by nvmlValueType_t.
_FIELD_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_VALUE_NOT_AVAILABLE = 0xFFFFFFFFFFFFFFFF

_P2P_CAPS = (P2P_READ, P2P_WRITE, P2P_NVLINK)

# What a code means for the operator. Other codes get the library's own text and this:
_ADVICE_UNKNOWN = (
    "Look at the kernel log of that time for NVRM and Xid lines (journalctl -k -g 'NVRM|Xid'); they name the cause."
)
_MEANING: t.Mapping[int, tuple[str, str]] = {
    NO_PERMISSION: (
        "no_permission",
        "Run the task with become: true, or give the user access to /dev/nvidiactl and /dev/nvidia0 and so on"
        " (in a container: pass these devices in).",
    ),
    8: (
        "insufficient_power",
        "The GPU's external power is not connected or not sufficient: check the cables, then power-cycle the host.",
    ),
    9: ("driver_not_loaded", "Load it with 'modprobe nvidia', and look in the kernel log for why it was not loaded."),
    11: ("irq_issue", "The kernel did not give the GPU its interrupt: check the firmware settings, then reboot."),
    LIBRARY_NOT_FOUND: (
        "library_missing",
        "Install the NVIDIA driver's user-space part (the package that holds libnvidia-ml.so.1), then run ldconfig.",
    ),
    14: ("corrupted_inforom", "The GPU's infoROM is damaged: keep work off this GPU and have it replaced."),
    GPU_IS_LOST: (
        "gpu_lost",
        "The GPU has fallen off the bus: look for Xid 79 in the kernel log (journalctl -k -g Xid), keep work off this"
        " host and reboot it; when it happens again, have the GPU, its riser and its power supply checked.",
    ),
    16: (
        "reset_required",
        "The GPU must be reset before it can be used: stop everything that uses it and run 'nvidia-smi --gpu-reset', or"
        " reboot.",
    ),
    18: (
        "version_mismatch",
        "The loaded kernel module and the user-space library are of different driver versions, as after an upgrade"
        " without a reboot. Reboot, or stop everything that uses the GPUs, unload the nvidia modules (modprobe -r"
        " nvidia_uvm nvidia_drm nvidia_modeset nvidia) and load them again.",
    ),
}


class NvmlFailure(GpuFailure):
    """An NVML error, with what to do about it in its text.

    ``reason`` is one of python_library_missing, library_missing, driver_not_loaded, version_mismatch, no_permission,
    gpu_lost, reset_required, insufficient_power, irq_issue, corrupted_inforom, unknown.
    """

    def __init__(
        self, msg: str, *, reason: str, nvml_code: int | None = None, call: str | None = None, **fields: t.Any
    ) -> None:
        super().__init__(msg, reason=reason, nvml_code=nvml_code, nvml_call=call, **fields)
        self.nvml_code = nvml_code
        self.call = call


def _failure(call: str, error: Exception, subject: str | None, identity: GpuIdentity | None = None) -> NvmlFailure:
    code: int | None = getattr(error, "value", None)
    reason, advice = _MEANING.get(-1 if code is None else code, ("unknown", _ADVICE_UNKNOWN))
    where = f" for {subject}" if subject else ""
    number = f" (NVML error {code})" if code is not None else ""
    fields = {} if identity is None else {"gpu": vars(identity)}
    return NvmlFailure(
        f"{call} failed{where}: {_text(str(error)).rstrip('.')}{number}. {advice}",
        reason=reason,
        nvml_code=code,
        call=call,
        **fields,
    )


def _text(value: t.Any) -> t.Any:
    """Older pynvml releases hand out bytes."""
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value


def load_pynvml(path: str | None = None) -> ModuleType:
    """Import pynvml: the installed one, else the single file at ``path``."""
    try:
        return importlib.import_module("pynvml")
    except ImportError as error:
        if path is None:
            raise NvmlFailure(
                f"{missing_required_lib('nvidia-ml-py')} Either will do: install it for the Python that runs Ansible"
                " (pip install nvidia-ml-py), and the task brings it along to hosts that lack it; or install it on the"
                f" host for {sys.executable}.",
                reason="python_library_missing",
            ) from error
    spec = importlib.util.spec_from_file_location("pynvml", path)
    if spec is None or spec.loader is None:
        raise NvmlFailure(
            f"pynvml_path: '{path}' is no Python file. Name the pynvml.py of nvidia-ml-py.",
            reason="python_library_missing",
        )
    module = importlib.util.module_from_spec(spec)
    # pynvml looks itself up there while it makes its exception classes.
    sys.modules["pynvml"] = module
    # A byte-code folder written by root beside the file could not be removed by the user who put the file there.
    previous, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    except (OSError, SyntaxError, ImportError) as error:
        del sys.modules["pynvml"]
        raise NvmlFailure(
            f"pynvml_path: '{path}' cannot be loaded: {error}. Name the pynvml.py of nvidia-ml-py.",
            reason="python_library_missing",
        ) from error
    finally:
        sys.dont_write_bytecode = previous
    return module


@contextlib.contextmanager
def nvml_session(pynvml_path: str | None = None) -> t.Iterator[Nvml]:
    """One nvmlInit and one nvmlShutdown around all that a module does."""
    library = load_pynvml(pynvml_path)
    call = "nvmlInitWithFlags"
    try:
        library.nvmlInitWithFlags(_INIT_FLAG_NO_GPUS)
    except library.NVMLError as error:
        if getattr(error, "value", None) == LIBRARY_NOT_FOUND:
            raise _library_missing() from error
        raise _failure(call, error, None) from error
    try:
        yield Nvml(library)
    finally:
        # What was read stays true when the goodbye fails, and an error on its way out says more than that would.
        with contextlib.suppress(library.NVMLError):
            library.nvmlShutdown()


def _library_missing() -> NvmlFailure:
    """pynvml gives the same code for each reason why the loader refuses; the loader's own words tell them apart."""
    detail = f"{LIBRARY} could be loaded in a second try"
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        detail = str(error)
    reason, advice = _MEANING[LIBRARY_NOT_FOUND]
    return NvmlFailure(
        f"The NVML library cannot be loaded: {detail}. {advice}",
        reason=reason,
        nvml_code=LIBRARY_NOT_FOUND,
        call="nvmlInitWithFlags",
    )


@dataclass(frozen=True)
class DriverVersions:
    driver_version: str | None
    nvml_version: str | None
    cuda_driver_version: str | None


class Nvml:
    """An open session."""

    def __init__(self, library: t.Any) -> None:
        self.library = library

    def call(self, name: str, *args: t.Any, subject: str | None = None, identity: GpuIdentity | None = None) -> t.Any:
        """Call one NVML function; NvmlFailure names it and whom it was about."""
        function = getattr(self.library, name, None)
        try:
            if function is None:
                # This pynvml release does not wrap it: the same to us as a driver that lacks it.
                raise self.library.NVMLError(FUNCTION_NOT_FOUND)
            return _text(function(*args))
        except self.library.NVMLError as error:
            raise _failure(name, error, subject, identity) from error
        except UnicodeDecodeError as error:
            raise _failure(name, error, subject, identity) from error

    def optional(self, name: str, *args: t.Any, absent: t.Sequence[int] = ()) -> t.Any:
        try:
            return self.call(name, *args)
        except NvmlFailure as failure:
            if failure.nvml_code in _ABSENT or failure.nvml_code in absent:
                return None
            raise

    def versions(self) -> DriverVersions:
        return DriverVersions(
            driver_version=self.optional("nvmlSystemGetDriverVersion"),
            nvml_version=self.optional("nvmlSystemGetNVMLVersion"),
            # A host set up for monitoring only has NVML and no libcuda: that is what the code says here.
            cuda_driver_version=cuda_version(
                self.optional("nvmlSystemGetCudaDriverVersion", absent=(LIBRARY_NOT_FOUND,))
            ),
        )

    def devices(self) -> tuple[list[Device], list[UnavailableGpu]]:
        """All GPUs that the driver counts: those that answer, ordered by PCI bus id, and those that do not."""
        answering: list[Device] = []
        silent: list[UnavailableGpu] = []
        for index in range(self.call("nvmlDeviceGetCount")):
            identity = GpuIdentity(index=index, uuid=None, pci_bus_id=None)
            device: Device | None = None
            try:
                handle = self.call("nvmlDeviceGetHandleByIndex", index, subject=f"GPU {index}", identity=identity)
                device = Device(self, handle, identity)
                device.identify()
                answering.append(device)
            except NvmlFailure as failure:
                silent.append(unavailable(device.identity if device else identity, failure))
        answering.sort(key=lambda device: (bus_id_order(device.identity.pci_bus_id), device.identity.index))
        return answering, silent

    def topology_level(self, a: Device, b: Device) -> str | None:
        return named(TOPOLOGY_LEVELS, a.optional("nvmlDeviceGetTopologyCommonAncestor", b.handle))

    def p2p_status(self, a: Device, b: Device) -> P2pStatus:
        read, write, nvlink = (
            named(P2P_STATUSES, a.optional("nvmlDeviceGetP2PStatus", b.handle, capability)) for capability in _P2P_CAPS
        )
        return P2pStatus(read=read, write=write, nvlink=nvlink)


def unavailable(identity: GpuIdentity, failure: NvmlFailure) -> UnavailableGpu:
    return UnavailableGpu(
        index=identity.index,
        uuid=identity.uuid,
        pci_bus_id=identity.pci_bus_id,
        reason=failure.reason,
        nvml_code=failure.nvml_code,
        msg=failure.msg,
    )


def read_error(failure: NvmlFailure) -> ReadError:
    return ReadError(call=failure.call or "", nvml_code=failure.nvml_code, reason=failure.reason, msg=failure.msg)


class Device:
    """One GPU of a session.

    A fact that should be there and cannot be read raises, unless ``tolerate_errors`` was called: then it is None and
    noted in ``read_errors``. A lost GPU raises always, since nothing more can be read from it.
    """

    def __init__(self, nvml: Nvml, handle: t.Any, identity: GpuIdentity) -> None:
        self.nvml = nvml
        self.handle = handle
        self.identity = identity
        self.pci: t.Any = None
        self.read_errors: list[ReadError] = []
        self._tolerant = False

    def tolerate_errors(self) -> None:
        self._tolerant = True

    def call(self, name: str, *args: t.Any) -> t.Any:
        return self.nvml.call(name, self.handle, *args, subject=self.identity.label(), identity=self.identity)

    def optional(self, name: str, *args: t.Any, absent: t.Sequence[int] = ()) -> t.Any:
        """The answer, or None when there is no such thing; ``absent`` are further codes that say so for this call."""
        try:
            return self.call(name, *args)
        except NvmlFailure as failure:
            if failure.nvml_code in _ABSENT or failure.nvml_code in absent:
                return None
            self._note(failure)
            return None

    def _note(self, failure: NvmlFailure) -> None:
        if not self._tolerant or failure.nvml_code == GPU_IS_LOST:
            raise failure
        self.read_errors.append(read_error(failure))

    def fields(self, wanted: t.Sequence[tuple[int, int]]) -> list[int | None]:
        """Values of (field id, scope id) pairs in one call. Per-link fields have the link as scope."""
        values = self.optional("nvmlDeviceGetFieldValues", list(wanted))
        if values is None:
            return [None] * len(wanted)
        result: list[int | None] = []
        for (field, scope), value in zip(wanted, values):
            code = value.nvmlReturn
            if code == 0 and 0 <= value.valueType < len(_FIELD_MEMBERS):
                result.append(int(getattr(value.value, _FIELD_MEMBERS[value.valueType])))
                continue
            # A driver that does not know a field calls it an invalid argument.
            if code not in (0, INVALID_ARGUMENT, *_ABSENT):
                self._note(
                    _failure(
                        f"nvmlDeviceGetFieldValues (field {field}, scope {scope})",
                        self.nvml.library.NVMLError(code),
                        self.identity.label(),
                        self.identity,
                    )
                )
            result.append(None)
        return result

    def field(self, field: int) -> int | None:
        return self.fields([(field, 0)])[0]

    def identify(self) -> None:
        """Ask for bus id and UUID. Integrated GPUs (Jetson) have no PCI bus id."""
        self.pci = self.optional("nvmlDeviceGetPciInfo")
        if self.pci is not None:
            self.identity = replace(self.identity, pci_bus_id=normalize_bus_id(_text(self.pci.busId)))
        self.identity = replace(self.identity, uuid=self.optional("nvmlDeviceGetUUID"))

    def nvml_bus_id(self) -> str | None:
        return None if self.pci is None else _text(self.pci.busId)

    def pci_ids(self) -> tuple[str | None, str | None, str | None, str | None]:
        """Vendor, device, subsystem vendor and subsystem device id; NVML packs each pair as device << 16 | vendor."""
        if self.pci is None:
            return (None, None, None, None)
        ids = (self.pci.pciDeviceId, self.pci.pciSubSystemId)
        vendor, device, subsystem_vendor, subsystem_device = (
            f"{half:04x}" for packed in ids for half in (packed & 0xFFFF, packed >> 16)
        )
        return (vendor, device, subsystem_vendor, subsystem_device)

    def text(self, call: str) -> str | None:
        return t.cast("str | None", self.optional(call))

    def number(self, call: str, *args: t.Any) -> int | None:
        return t.cast("int | None", self.optional(call, *args))

    def compute_capability(self) -> str | None:
        pair = self.optional("nvmlDeviceGetCudaComputeCapability")
        return None if pair is None else f"{pair[0]}.{pair[1]}"

    def brand(self) -> str | None:
        return named(BRANDS, self.number("nvmlDeviceGetBrand"))

    def architecture(self) -> str | None:
        return named(ARCHITECTURES, self.number("nvmlDeviceGetArchitecture"))

    def persistence_mode(self) -> str | None:
        return named(SWITCHES, self.number("nvmlDeviceGetPersistenceMode"))

    def compute_mode(self) -> str | None:
        return named(COMPUTE_MODES, self.number("nvmlDeviceGetComputeMode"))

    def performance_state(self) -> str | None:
        state = self.number("nvmlDeviceGetPerformanceState")
        return None if state is None or state == P_STATE_UNKNOWN else f"P{state}"

    def recovery_action(self) -> str | None:
        return named(RECOVERY_ACTIONS, self.field(_FIELD_RECOVERY_ACTION))

    def mig_mode(self) -> ModePair | None:
        pair = self.optional("nvmlDeviceGetMigMode")
        return None if pair is None else ModePair(current=named(SWITCHES, pair[0]), pending=named(SWITCHES, pair[1]))

    def memory(self) -> MemoryState | None:
        # Version 2 tells what the driver reserves from what programs use; drivers before R510 have version 1 only.
        info = self.optional("nvmlDeviceGetMemoryInfo", _MEMORY_V2)
        reserved = None if info is None else info.reserved
        if info is None:
            info = self.optional("nvmlDeviceGetMemoryInfo")
        if info is None:
            return None
        return MemoryState(total_bytes=info.total, used_bytes=info.used, free_bytes=info.free, reserved_bytes=reserved)

    def bar1(self) -> Bar1State | None:
        info = self.optional("nvmlDeviceGetBAR1MemoryInfo")
        if info is None:
            return None
        return Bar1State(total_bytes=info.bar1Total, used_bytes=info.bar1Used, free_bytes=info.bar1Free)

    def ecc(self) -> EccState:
        pair = self.optional("nvmlDeviceGetEccMode")
        current, pending = (None, None) if pair is None else (named(SWITCHES, pair[0]), named(SWITCHES, pair[1]))
        default = None if pair is None else self.optional("nvmlDeviceGetDefaultEccMode")
        if isinstance(default, (list, tuple)):
            # pynvml wraps this one in a list.
            default = default[0]
        # Types: 0 corrected, 1 uncorrected. Counters: 0 volatile (since the driver was loaded), 1 aggregate (lifetime).
        volatile, aggregate = (
            EccErrors(
                corrected=None if pair is None else self.number("nvmlDeviceGetTotalEccErrors", 0, counter),
                uncorrected=None if pair is None else self.number("nvmlDeviceGetTotalEccErrors", 1, counter),
            )
            for counter in (0, 1)
        )
        return EccState(
            supported=pair is not None,
            current=current,
            pending=pending,
            default=named(SWITCHES, default),
            volatile=volatile,
            aggregate=aggregate,
        )

    def remapped_rows(self) -> RemappedRows | None:
        rows = self.optional("nvmlDeviceGetRemappedRows")
        if rows is None:
            return None
        return RemappedRows(correctable=rows[0], uncorrectable=rows[1], pending=bool(rows[2]), failure=bool(rows[3]))

    def power(self) -> PowerState:
        constraints = self.optional("nvmlDeviceGetPowerManagementLimitConstraints") or (None, None)
        return PowerState(
            usage_watts=watts(self.number("nvmlDeviceGetPowerUsage")),
            limit_requested_watts=watts(self.number("nvmlDeviceGetPowerManagementLimit")),
            limit_enforced_watts=watts(self.number("nvmlDeviceGetEnforcedPowerLimit")),
            limit_default_watts=watts(self.number("nvmlDeviceGetPowerManagementDefaultLimit")),
            limit_min_watts=watts(constraints[0]),
            limit_max_watts=watts(constraints[1]),
        )

    def temperatures(self) -> Temperatures:
        shutdown, slowdown, memory_max, gpu_max = (
            self.number("nvmlDeviceGetTemperatureThreshold", threshold) for threshold in range(4)
        )
        celsius = self.number("nvmlDeviceGetTemperatureV", 0)
        return Temperatures(
            # The older call is deprecated from NVML 13 on, and drivers before R560 have nothing else.
            gpu_celsius=celsius if celsius is not None else self.number("nvmlDeviceGetTemperature", 0),
            memory_celsius=self.field(_FIELD_MEMORY_TEMPERATURE),
            threshold_slowdown_celsius=slowdown,
            threshold_shutdown_celsius=shutdown,
            threshold_gpu_max_celsius=gpu_max,
            threshold_memory_max_celsius=memory_max,
        )

    def utilization(self) -> Utilization | None:
        rates = self.optional("nvmlDeviceGetUtilizationRates")
        return None if rates is None else Utilization(gpu_percent=rates.gpu, memory_percent=rates.memory)

    def clocks(self) -> Clocks:
        # Clock types: 0 graphics, 1 SM, 2 memory, 3 video.
        graphics, sm, memory, video = (self.number("nvmlDeviceGetClockInfo", clock) for clock in range(4))
        graphics_max, sm_max, memory_max, video_max = (
            self.number("nvmlDeviceGetMaxClockInfo", clock) for clock in range(4)
        )
        return Clocks(
            graphics_mhz=graphics,
            sm_mhz=sm,
            memory_mhz=memory,
            video_mhz=video,
            graphics_max_mhz=graphics_max,
            sm_max_mhz=sm_max,
            memory_max_mhz=memory_max,
            video_max_mhz=video_max,
        )

    def clocks_event_reasons(self) -> list[str] | None:
        mask = self.number("nvmlDeviceGetCurrentClocksEventReasons")
        if mask is None:
            # Its name before R535.
            mask = self.number("nvmlDeviceGetCurrentClocksThrottleReasons")
        return event_reasons(mask)

    def nvlink(self) -> NvLinkState:
        """All links of the GPU, up or down. A GPU without NVLink has none."""
        count = self.field(_FIELD_NVLINK_COUNT)
        states: list[tuple[int, int]] = []
        for link in range(_MAX_NVLINKS if count is None else min(count, _MAX_NVLINKS)):
            # Without the count, the first link that the GPU does not have says so with an invalid argument.
            state = self.optional("nvmlDeviceGetNvLinkState", link, absent=(INVALID_ARGUMENT,) if count is None else ())
            if state is None:
                if count is None:
                    break
                continue
            states.append((link, state))
        per_link = (
            _FIELD_NVLINK_STATE,
            _FIELD_NVLINK_SPEED,
            _FIELD_NVLINK_REPLAY,
            _FIELD_NVLINK_RECOVERY,
            _FIELD_NVLINK_CRC,
        )
        # One call for all links and fields: each error counter asked for by itself takes most of a millisecond.
        values = self.fields([(field, link) for link, unused in states for field in per_link]) if states else []
        common_speed: int | None = None
        if any(speed is None for speed in values[1 :: len(per_link)]):
            common_speed = self.field(_FIELD_NVLINK_SPEED_COMMON)
        links = []
        for position, (link, state) in enumerate(states):
            exact, speed, replay, recovery, crc = values[position * len(per_link) : (position + 1) * len(per_link)]
            up = state == 1
            if speed is None and up:
                speed = common_speed
            if replay is None and recovery is None and crc is None:
                # Counter types: 0 replay, 1 recovery, 2 CRC of flow control units.
                replay, recovery, crc = (
                    self.optional("nvmlDeviceGetNvLinkErrorCounter", link, counter, absent=(INVALID_ARGUMENT,))
                    for counter in range(3)
                )
            # The plain state knows up and down only; the field also knows links that sleep or are held back.
            links.append(
                self._link(
                    link,
                    up,
                    named(NVLINK_STATES, exact if exact in (2, 3) else state),
                    speed,
                    NvLinkErrors(replay=replay, recovery=recovery, crc=crc),
                )
            )
        return NvLinkState(
            total_count=len(links), active_count=sum(1 for link in links if link.active), links=tuple(links)
        )

    def _link(self, link: int, up: bool, state: str | None, speed: int | None, errors: NvLinkErrors) -> NvLink:
        # A link that is down need not know its far end.
        absent = () if up else (INVALID_ARGUMENT,)
        remote = self.optional("nvmlDeviceGetNvLinkRemotePciInfo", link, absent=absent)
        return NvLink(
            link=link,
            state=state or "unknown",
            version=named(NVLINK_VERSIONS, self.optional("nvmlDeviceGetNvLinkVersion", link, absent=absent) or None),
            speed_megabytes_per_second=speed if up else None,
            remote_device_type=named(
                NVLINK_REMOTES, self.optional("nvmlDeviceGetNvLinkRemoteDeviceType", link, absent=absent)
            ),
            # Virtual machines hide the far end behind FFFFFFFF:FF:FF.0, which is no bus id.
            remote_pci_bus_id=None if remote is None else normalize_bus_id(_text(remote.busId)),
            errors=errors,
        )

    def processes(self) -> tuple[GpuProcess, ...] | None:
        """Programs that hold the GPU. One that computes and draws is there twice, once per type."""
        found = []
        answered = False
        for kind, call in (
            ("compute", "nvmlDeviceGetComputeRunningProcesses"),
            ("graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
            ("mps_compute", "nvmlDeviceGetMPSComputeRunningProcesses"),
        ):
            running = self.optional(call)
            answered = answered or running is not None
            for process in running or ():
                used = process.usedGpuMemory
                found.append(
                    GpuProcess(
                        pid=process.pid,
                        name=self._process_name(process.pid),
                        type=kind,
                        used_memory_bytes=None if used == _VALUE_NOT_AVAILABLE else used,
                    )
                )
        return tuple(sorted(found, key=lambda process: (process.pid, process.type))) if answered else None

    # Setters. Each raises NvmlFailure when NVML refuses; whether the value took, only a new reading says.

    def set_ecc_mode(self, enabled: bool) -> None:
        """Mode of the next reboot: it is written to the InfoROM, and the mode in force stays as it is."""
        self.call("nvmlDeviceSetEccMode", int(enabled))

    def set_power_limit(self, milliwatts: int) -> None:
        """In force at once. A reboot, and the driver's unloading of the GPU, bring the default back."""
        self.call("nvmlDeviceSetPowerManagementLimit", milliwatts)

    def set_persistence_mode(self, enabled: bool) -> None:
        """In force at once, until the driver is unloaded."""
        self.call("nvmlDeviceSetPersistenceMode", int(enabled))

    def clear_nvlink_errors(self, link: int) -> None:
        """Set the link's error counters to zero. The link itself is not touched."""
        self.call("nvmlDeviceResetNvLinkErrorCounters", link)

    def _process_name(self, pid: int) -> str | None:
        try:
            return t.cast("str | None", self.nvml.call("nvmlSystemGetProcessName", pid))
        except NvmlFailure as failure:
            # The program may have ended since, belong to somebody else, or have a name that is not UTF-8 (no code).
            if failure.nvml_code in (None, INVALID_ARGUMENT, NO_PERMISSION, NOT_FOUND, *_ABSENT):
                return None
            self._note(failure)
            return None
