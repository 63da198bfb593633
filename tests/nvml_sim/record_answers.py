# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Record how a real NVML answers: structures, error codes, buffer sizes and bad arguments.

Run it on a host with an NVIDIA GPU; it needs pynvml (nvidia-ml-py) and writes JSON to standard output. It only calls
getters: it changes no setting of the card. UUIDs, serial numbers and host names are replaced before anything is
printed, so that a recording can be published.

    python3 record_answers.py > recordings/<card>-answers.json
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import typing as t
from pathlib import Path

import pynvml

LIBRARY = "libnvidia-ml.so.1"
U32 = ctypes.c_uint
ATTRIBUTES = (
    "vendor device class subsystem_vendor subsystem_device numa_node local_cpulist current_link_speed max_link_speed"
    " current_link_width max_link_width"
).split()


def plain(value: t.Any) -> t.Any:
    """ctypes to JSON."""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    if isinstance(value, (ctypes.Structure, ctypes.Union)):
        return {field[0]: plain(getattr(value, field[0])) for field in value._fields_}
    if isinstance(value, ctypes.Array):
        return [plain(item) for item in value]
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "__dict__") and not isinstance(value, type):
        return {key: plain(item) for key, item in vars(value).items()}
    return value


def attribute(path: Path) -> str | dict[str, int | None]:
    """Content of a file of sysfs."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        return {"errno": error.errno}


class Recorder:
    """Asks the library and keeps its answers."""

    def __init__(self) -> None:
        self.answers: dict[str, t.Any] = {}
        # (real, published) pairs; filled once the cards are known.
        self.identifiers: list[tuple[str, str]] = []
        self.library = ctypes.CDLL(LIBRARY)
        self.library.nvmlErrorString.restype = ctypes.c_char_p
        # Of the first card.
        self.handle: t.Any = None
        self.uuid = ""
        self.serial = ""
        self.count = 0

    def ask(self, name: str, call: t.Callable[..., t.Any], *arguments: t.Any) -> None:
        """The answer of ``call`` under ``name``; an NVML error is an answer too."""
        try:
            self.answers[name] = plain(call(*arguments))
        except pynvml.NVMLError as error:
            self.answers[name] = {"error": error.value}

    def raw(self, function: str, *arguments: t.Any) -> dict[str, int] | str:
        """The bare return code of a call."""
        try:
            pointer = getattr(self.library, function)
        except AttributeError:
            return "no such symbol"
        return {"ret": pointer(*arguments)}

    def risky(self, function: str, *arguments: t.Any) -> dict[str, int] | str:
        """The same in a child process: with some null pointers the real library crashes.

        NVML is not initialised in a forked child, so it does that again.
        """
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            self.library.nvmlInit_v2()
            os.write(write_end, json.dumps(self.raw(function, *arguments)).encode())
            os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end) as stream:
            answer = stream.read()
        status = os.waitpid(child, 0)[1]
        return json.loads(answer) if answer else {"signal": os.WTERMSIG(status)}

    def text(self, function: str, *before: t.Any, size: int, claim: int | None = None) -> dict[str, t.Any]:
        buffer = ctypes.create_string_buffer(size)
        ret = getattr(self.library, function)(*before, buffer, U32(size if claim is None else claim))
        return {"ret": ret, "text": buffer.value.decode()}

    def filled(self, function: t.Callable[..., t.Any], structure: ctypes.Structure) -> list[t.Any]:
        """What a function that fills a structure returned, and the structure."""
        return [function(self.handle, ctypes.byref(structure)), structure]

    def field_values(self, field: int | tuple[int, int]) -> list[list[int]]:
        """Type, error and value of one field, of one scope where the field has scopes."""
        return [
            [v.valueType, v.nvmlReturn, v.value.ullVal] for v in pynvml.nvmlDeviceGetFieldValues(self.handle, [field])
        ]

    def session(self) -> None:
        """Init, shutdown and what needs no card."""
        self.answers["error strings"] = {
            str(code): self.library.nvmlErrorString(code).decode() for code in [*range(33), 998, 999, 1000]
        }
        count = U32()
        self.answers["before init: count"] = self.raw("nvmlDeviceGetCount_v2", ctypes.byref(count))
        self.answers["before init: driver"] = self.text("nvmlSystemGetDriverVersion", size=80)
        self.answers["before init: shutdown"] = self.raw("nvmlShutdown")
        self.answers["init twice"] = [self.raw("nvmlInit_v2"), self.raw("nvmlInit_v2")]
        self.answers["shutdown once of two"] = self.raw("nvmlShutdown")
        self.answers["count after one shutdown of two"] = self.raw("nvmlDeviceGetCount_v2", ctypes.byref(count))
        self.answers["shutdown twice of two"] = self.raw("nvmlShutdown")
        self.answers["count after both"] = self.raw("nvmlDeviceGetCount_v2", ctypes.byref(count))
        self.answers["init v1"] = self.raw("nvmlInit")
        pynvml.nvmlInit()
        self.answers["symbols"] = sorted(
            {
                name
                for name in re.findall(
                    r'_nvmlGetFunctionPointer\("(nvml\w+)"', Path(pynvml.__file__).read_text(encoding="utf-8")
                )
                if hasattr(self.library, name)
            }
        )
        self.answers["count"] = self.raw("nvmlDeviceGetCount", ctypes.byref(count))
        self.ask("driver branch", pynvml.nvmlSystemGetDriverBranch)

    def choose(self) -> None:
        """Take the first card; note the identifiers of all."""
        self.count = pynvml.nvmlDeviceGetCount()
        for index in range(self.count):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            self.identifiers.append((pynvml.nvmlDeviceGetUUID(handle), f"GPU-00000000-0000-4000-8000-{index:012d}"))
            self.identifiers.append((pynvml.nvmlDeviceGetSerial(handle), str(1650000000000 + index)))
        self.handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        self.uuid = pynvml.nvmlDeviceGetUUID(self.handle)
        self.serial = pynvml.nvmlDeviceGetSerial(self.handle)

    def selectors(self) -> None:
        """Ways to name a card."""
        found = pynvml.c_nvmlDevice_t()
        uuid = self.uuid
        bus = pynvml.nvmlDeviceGetPciInfo(self.handle).busId
        domain, rest = bus.split(":", 1)
        for index in (self.count, 1000, 0xFFFFFFFF):
            self.answers[f"by index {index}"] = self.raw(
                "nvmlDeviceGetHandleByIndex_v2", U32(index), ctypes.byref(found)
            )
        self.answers["by index, no result pointer"] = self.risky("nvmlDeviceGetHandleByIndex_v2", U32(0), None)
        for label, what in {
            "own": uuid,
            "own lower": uuid.lower(),
            "own upper": uuid.upper(),
            "own without GPU-": uuid[4:],
            "own with tail": uuid + "x",
            "own cut": uuid[:-1],
            "unknown": "GPU-ffffffff-ffff-ffff-ffff-ffffffffffff",
            "garbage": "abc",
            "empty": "",
            "MIG unknown": "MIG-ffffffff-ffff-ffff-ffff-ffffffffffff",
        }.items():
            self.answers[f"by uuid {label}"] = self.raw(
                "nvmlDeviceGetHandleByUUID", ctypes.c_char_p(what.encode()), ctypes.byref(found)
            )
        self.answers["by uuid none"] = self.risky("nvmlDeviceGetHandleByUUID", None, ctypes.byref(found))
        for label, what in {
            "8 digits": bus,
            "4 digits": f"{domain[-4:]}:{rest}",
            "4 digits lower": f"{domain[-4:]}:{rest}".lower(),
            "1 digit domain": f"0:{rest}",
            "no domain": rest,
            "no function": bus.rsplit(".", 1)[0],
            "other function": bus.rsplit(".", 1)[0] + ".1",
            "unknown": "00000000:FE:00.0",
            "garbage": "xyz",
            "empty": "",
            "9 digits": "0" + bus,
            "with tail": bus + "x",
            "with space": " " + bus,
        }.items():
            for version in ("", "_v2"):
                self.answers[f"by bus id{version} {label}"] = self.raw(
                    f"nvmlDeviceGetHandleByPciBusId{version}", ctypes.c_char_p(what.encode()), ctypes.byref(found)
                )
        for label, what in {"own": self.serial, "unknown": "1234567890123", "empty": ""}.items():
            self.answers[f"by serial {label}"] = self.raw(
                "nvmlDeviceGetHandleBySerial", ctypes.c_char_p(what.encode()), ctypes.byref(found)
            )
        uuid_v = pynvml.c_nvmlUUID_t()
        uuid_v.type = pynvml.NVML_UUID_TYPE_ASCII
        uuid_v.value.str = uuid.encode()
        self.answers["by uuid v ascii"] = self.raw(
            "nvmlDeviceGetHandleByUUIDV", ctypes.byref(uuid_v), ctypes.byref(found)
        )
        uuid_v.type = 7
        self.answers["by uuid v bad type"] = self.raw(
            "nvmlDeviceGetHandleByUUIDV", ctypes.byref(uuid_v), ctypes.byref(found)
        )
        uuid_v.type = pynvml.NVML_UUID_TYPE_BINARY
        ctypes.memmove(uuid_v.value.bytes, bytes.fromhex(uuid[4:].replace("-", "")), 16)
        self.answers["by uuid v binary"] = self.raw(
            "nvmlDeviceGetHandleByUUIDV", ctypes.byref(uuid_v), ctypes.byref(found)
        )
        uuid_v.version = 1
        self.answers["by uuid v bad version"] = self.raw(
            "nvmlDeviceGetHandleByUUIDV", ctypes.byref(uuid_v), ctypes.byref(found)
        )

    def buffers(self) -> None:
        """Too small buffers and null pointers."""
        for function, value in {
            "nvmlDeviceGetName": pynvml.nvmlDeviceGetName(self.handle),
            "nvmlDeviceGetUUID": self.uuid,
            "nvmlDeviceGetSerial": self.serial,
            "nvmlDeviceGetVbiosVersion": pynvml.nvmlDeviceGetVbiosVersion(self.handle),
            "nvmlDeviceGetBoardPartNumber": pynvml.nvmlDeviceGetBoardPartNumber(self.handle),
        }.items():
            for label, claim in {"0": 0, "1": 1, "length": len(value), "length+1": len(value) + 1}.items():
                self.answers[f"{function} buffer {label}"] = self.text(function, self.handle, size=128, claim=claim)
            self.answers[f"{function} no buffer"] = self.risky(function, self.handle, None, U32(64))
            self.answers[f"{function} no device"] = self.risky(
                function, None, ctypes.create_string_buffer(128), U32(128)
            )
        for claim in (0, 1, 5, len(pynvml.nvmlSystemGetDriverVersion()), 80):
            self.answers[f"nvmlSystemGetDriverVersion buffer {claim}"] = self.text(
                "nvmlSystemGetDriverVersion", size=128, claim=claim
            )
        for who, pid in {"0": 0, "self": os.getpid(), "4194303": 4194303}.items():
            for claim in (1, 6, 1024):
                answer = self.text("nvmlSystemGetProcessName", U32(pid), size=1024, claim=claim)
                self.answers[f"nvmlSystemGetProcessName pid {who} buffer {claim}"] = answer
        self.answers["no result pointer"] = self.risky("nvmlDeviceGetPowerUsage", self.handle, None)
        self.answers["no device"] = self.risky("nvmlDeviceGetPowerUsage", None, ctypes.byref(U32()))

    def structures(self) -> None:
        """Structures and arguments that the general recording lacks."""
        self.ask("memory v2", pynvml.nvmlDeviceGetMemoryInfo, self.handle, pynvml.nvmlMemory_v2)
        self.ask("memory v1", pynvml.nvmlDeviceGetMemoryInfo, self.handle)
        self.ask("memory v2 bad version", pynvml.nvmlDeviceGetMemoryInfo, self.handle, 0x01000028)
        fabric1 = pynvml.c_nvmlGpuFabricInfo_t()
        fabric2 = pynvml.c_nvmlGpuFabricInfo_v2_t()
        fabric3 = pynvml.c_nvmlGpuFabricInfo_v3_t()
        fabric2.version, fabric3.version = pynvml.nvmlGpuFabricInfo_v2, pynvml.nvmlGpuFabricInfo_v3
        self.ask("fabric v1", self.filled, pynvml.nvmlDeviceGetGpuFabricInfo, fabric1)
        self.ask("fabric v2", self.filled, pynvml.nvmlDeviceGetGpuFabricInfoV, fabric2)
        self.ask("fabric v3", self.filled, pynvml.nvmlDeviceGetGpuFabricInfoV, fabric3)
        fabric3.version = 0x09000028
        self.answers["fabric bad version"] = self.raw("nvmlDeviceGetGpuFabricInfoV", self.handle, ctypes.byref(fabric3))
        ext = pynvml.nvmlPciInfoExt_v1_t()
        ext.version = pynvml.nvmlPciInfoExt_v1
        self.ask("pci ext", self.filled, pynvml.nvmlDeviceGetPciInfoExt, ext)
        ext.version = 1
        self.answers["pci ext bad version"] = self.raw("nvmlDeviceGetPciInfoExt", self.handle, ctypes.byref(ext))
        for name in ("nvmlDeviceGetPciInfo", "nvmlDeviceGetPciInfo_v2"):
            pci = pynvml.nvmlPciInfo_t()
            self.answers[name] = [self.raw(name, self.handle, ctypes.byref(pci)), plain(pci)]
        for kind in range(3):
            for counter in range(3):
                for place in range(9):
                    self.ask(
                        f"memory errors {kind} {counter} {place}",
                        pynvml.nvmlDeviceGetMemoryErrorCounter,
                        self.handle,
                        kind,
                        counter,
                        place,
                    )
                self.ask(
                    f"total errors {kind} {counter}", pynvml.nvmlDeviceGetTotalEccErrors, self.handle, kind, counter
                )
        for cause in range(3):
            self.ask(f"retired pages {cause}", pynvml.nvmlDeviceGetRetiredPages, self.handle, cause)
        for clock in range(6):
            self.ask(f"clock {clock}", pynvml.nvmlDeviceGetClockInfo, self.handle, clock)
            self.ask(f"max clock {clock}", pynvml.nvmlDeviceGetMaxClockInfo, self.handle, clock)
            self.ask(f"application clock {clock}", pynvml.nvmlDeviceGetApplicationsClock, self.handle, clock)
            self.ask(
                f"default application clock {clock}", pynvml.nvmlDeviceGetDefaultApplicationsClock, self.handle, clock
            )
            self.ask(f"max boost clock {clock}", pynvml.nvmlDeviceGetMaxCustomerBoostClock, self.handle, clock)
        for sensor in range(3):
            self.ask(f"temperature {sensor}", pynvml.nvmlDeviceGetTemperature, self.handle, sensor)
            self.ask(f"temperature v {sensor}", pynvml.nvmlDeviceGetTemperatureV, self.handle, sensor)
        for threshold in range(10):
            self.ask(f"threshold {threshold}", pynvml.nvmlDeviceGetTemperatureThreshold, self.handle, threshold)
        for counter in range(3):
            self.ask(f"pcie throughput {counter}", pynvml.nvmlDeviceGetPcieThroughput, self.handle, counter)
        for item in range(5):
            self.ask(f"inforom {item}", pynvml.nvmlDeviceGetInforomVersion, self.handle, item)
        rows = pynvml.c_nvmlRemappedRowsInfo_v2_t()
        self.ask("remapped rows v2", self.filled, pynvml.nvmlDeviceGetRemappedRows_v2, rows)
        sram = pynvml.c_nvmlEccSramErrorStatus_v1_t()
        sram.version = pynvml.nvmlEccSramErrorStatus_v1
        self.ask("sram ecc status", self.filled, pynvml.nvmlDeviceGetSramEccErrorStatus, sram)

    def links(self) -> None:
        """Links that there are and that there are not."""
        for link in (0, 17, 18, 35, 36, 1000):
            pci = pynvml.nvmlPciInfo_t()
            self.ask(f"link {link} state", pynvml.nvmlDeviceGetNvLinkState, self.handle, link)
            self.ask(f"link {link} version", pynvml.nvmlDeviceGetNvLinkVersion, self.handle, link)
            self.ask(f"link {link} remote type", pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, self.handle, link)
            self.answers[f"link {link} remote pci"] = [
                self.raw("nvmlDeviceGetNvLinkRemotePciInfo_v2", self.handle, link, ctypes.byref(pci)),
                plain(pci),
            ]
            for what in (0, 5, 6, 7):
                self.ask(
                    f"link {link} capability {what}", pynvml.nvmlDeviceGetNvLinkCapability, self.handle, link, what
                )
                self.ask(f"link {link} errors {what}", pynvml.nvmlDeviceGetNvLinkErrorCounter, self.handle, link, what)
            for field in (84, 90, 91, 146, 161, 162, 163, 164, 165, 166, 167, 38, 82, 1, 142, 230):
                self.ask(f"field {field} scope {link}", self.field_values, (field, link))
        for field in (0, 252, 253, 260, 268, 275, 288, 300, 303, 307, 308, 400, 1000, 0xFFFFFFFF):
            self.ask(f"field {field}", self.field_values, field)
        sample = pynvml.nvmlDeviceGetFieldValues(self.handle, [82])[0]
        self.answers["field has timestamp"] = {"timestamp set": sample.timestamp > 0, "latency": sample.latencyUsec}
        one = (pynvml.c_nvmlFieldValue_t * 1)()
        self.answers["fields: none"] = self.risky("nvmlDeviceGetFieldValues", self.handle, 0, ctypes.byref(one))
        self.answers["fields: negative"] = self.risky("nvmlDeviceGetFieldValues", self.handle, -1, ctypes.byref(one))
        self.answers["fields: no array"] = self.risky("nvmlDeviceGetFieldValues", self.handle, 1, None)

    def topology(self) -> None:
        """Topology and affinity."""
        level = U32(99)
        self.answers["topology with itself"] = [
            self.raw("nvmlDeviceGetTopologyCommonAncestor", self.handle, self.handle, ctypes.byref(level)),
            level.value,
        ]
        for cap in range(7):
            status = U32(99)
            self.answers[f"p2p with itself {cap}"] = [
                self.raw("nvmlDeviceGetP2PStatus", self.handle, self.handle, cap, ctypes.byref(status)),
                status.value,
            ]
        for what in (0, 10, 20, 30, 40, 50, 15, 60):
            size = U32(0)
            self.answers[f"nearest {what}"] = [
                self.raw("nvmlDeviceGetTopologyNearestGpus", self.handle, what, ctypes.byref(size), None),
                size.value,
            ]
        for words in (0, 1, 2, 16):
            cpus = (ctypes.c_ulong * 16)()
            self.answers[f"cpu affinity {words}"] = [
                self.raw("nvmlDeviceGetCpuAffinity", self.handle, words, ctypes.byref(cpus)),
                list(cpus),
            ]
            for scope in (0, 1, 2):
                cpus = (ctypes.c_ulong * 16)()
                self.answers[f"cpu affinity {words} scope {scope}"] = [
                    self.raw("nvmlDeviceGetCpuAffinityWithinScope", self.handle, words, ctypes.byref(cpus), scope),
                    list(cpus),
                ]
                cpus = (ctypes.c_ulong * 16)()
                self.answers[f"memory affinity {words} scope {scope}"] = [
                    self.raw("nvmlDeviceGetMemoryAffinity", self.handle, words, ctypes.byref(cpus), scope),
                    list(cpus),
                ]
        for cpu in (0, 100000):
            size = U32(0)
            self.answers[f"gpu set of cpu {cpu}"] = [
                self.raw("nvmlSystemGetTopologyGpuSet", cpu, ctypes.byref(size), None),
                size.value,
            ]
        same = ctypes.c_int(9)
        self.answers["same board"] = [
            self.raw("nvmlDeviceOnSameBoard", self.handle, self.handle, ctypes.byref(same)),
            same.value,
        ]

    def processes(self) -> None:
        """Without any process on the card, then with this one holding a context."""
        cuda = None
        for phase in ("idle", "busy"):
            if phase == "busy":
                try:
                    cuda = ctypes.CDLL("libcuda.so.1")
                except OSError:
                    break
                context = ctypes.c_void_p()
                self.answers["cuInit"] = cuda.cuInit(0)
                self.answers["cuCtxCreate"] = cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
            for what in ("Compute", "Graphics", "MPSCompute"):
                for version in ("", "_v2", "_v3"):
                    name = f"nvmlDeviceGet{what}RunningProcesses{version}"
                    size = U32(0)
                    self.answers[f"{phase} {name} size"] = [
                        self.raw(name, self.handle, ctypes.byref(size), None),
                        size.value,
                    ]
                    size = U32(0)
                    infos = (pynvml.c_nvmlProcessInfo_v3_t * 8)()
                    self.answers[f"{phase} {name} room for none"] = [
                        self.raw(name, self.handle, ctypes.byref(size), ctypes.byref(infos)),
                        size.value,
                    ]
                    size = U32(8)
                    answer = self.raw(name, self.handle, ctypes.byref(size), ctypes.byref(infos))
                    if version:
                        listed = [plain(infos[n]) for n in range(min(size.value, 8))]
                        for item in listed:
                            item["pid"] = "self" if item["pid"] == os.getpid() else "other"
                        self.answers[f"{phase} {name}"] = [answer, size.value, listed]
            self.answers[f"{phase} memory v2"] = plain(
                pynvml.nvmlDeviceGetMemoryInfo(self.handle, version=pynvml.nvmlMemory_v2)
            )
            self.answers[f"{phase} persistence"] = pynvml.nvmlDeviceGetPersistenceMode(self.handle)

    def sysfs(self) -> None:
        """The same card as the kernel sees it, and the bridges above it."""
        tree: dict[str, t.Any] = {}
        for path in sorted(Path("/sys/bus/pci/devices").iterdir()):
            if attribute(path / "vendor") != "0x10de":
                continue
            place = path.resolve()
            while (place / "vendor").exists():
                tree[str(place)] = {name: attribute(place / name) for name in ATTRIBUTES}
                place = place.parent
        self.answers["sysfs"] = tree

    def published(self) -> str:
        output = json.dumps(self.answers, indent=1, sort_keys=True)
        for real, public in self.identifiers:
            output = output.replace(real, public).replace(real.lower(), public.lower())
        return output


def main() -> None:
    recorder = Recorder()
    recorder.session()
    recorder.choose()
    recorder.selectors()
    recorder.buffers()
    recorder.structures()
    recorder.links()
    recorder.topology()
    recorder.processes()
    recorder.sysfs()
    print(recorder.published())


if __name__ == "__main__":
    main()
