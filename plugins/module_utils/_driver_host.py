# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""Traces that NVIDIA's driver leaves on a host: kernels and their modules, DKMS, libraries, signatures, nouveau, units.

Files are read below a folder that stands for "/", so that an image, or a test, can be read like the host itself.
Commands only print. Sources: depmod(8) and modules.dep(5), modinfo(8), dkms(8), mokutil(1), systemctl(1), modprobe.d(5).
"""

from __future__ import annotations

import os
import re
import typing as t
from dataclasses import dataclass

from ansible_collections.baremetal.inference.plugins.module_utils._preflight_host import Files

if t.TYPE_CHECKING:
    from ansible_collections.baremetal.inference.plugins.module_utils._preflight_log import Command

Which = t.Callable[[str], "str | None"]

# Debian names its modules nvidia-current.ko and so on, and maps "nvidia" to one of them in modprobe.d.
_MODULE_FILE = re.compile(r"nvidia(?:-current|-tesla(?:-[0-9]+)?)?(?:-open)?\.ko(?:\.(?:xz|zst|gz))?")
# Where drivers put modules: DKMS and vendors' packages, weak updates, the runfile, Ubuntu's prebuilt ones.
_MODULE_FOLDERS = ("updates", "extra", "weak-updates", "kernel/drivers/video", "kernel/drivers/char/drm", "kernel")
# DKMS's names of the driver itself; nvidia-fs and others are not it.
_DKMS_NAME = re.compile(r"nvidia(?:-(?:srv|open|current|tesla)[a-z0-9-]*)?")
# "nvidia/580.95.05, 6.8.0-60-generic, x86_64: installed"; before DKMS 3 there was ", " for the "/".
_DKMS_LINE = re.compile(
    r"(?P<name>[^/,\s]+)(?:/|,\s*)(?P<version>[^,:\s]+)(?:,\s*(?P<kernel>[^,\s]+),\s*(?P<arch>[^:,\s]+))?\s*:\s*(?P<state>.+)"
)
# Where some clouds mount a driver that is not the image's own.
_MOUNT = "usr/local/nvidia"
_LIBRARY = re.compile(r"libnvidia-ml\.so\.([0-9]+(?:\.[0-9]+)+)")
_LIBRARY_FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    f"{_MOUNT}/lib64",
    f"{_MOUNT}/lib",
)
_MODPROBE_FOLDERS = ("etc/modprobe.d", "run/modprobe.d", "usr/local/lib/modprobe.d", "usr/lib/modprobe.d")
_NUMBERS = re.compile(r"[0-9]+(?:[.-][0-9]+)*")
_COMMON_NAME = re.compile(r"^\s*Subject:.*?\bCN\s?=\s?([^,/\n]+)", re.MULTILINE)
_KEY = re.compile(r"\basymmetri\s+(.+?): [0-9a-f]+: X509")
# "NVIDIA System Management Interface -- v580.95.05", the first line of its help, which opens no session.
_SMI_VERSION = re.compile(r"System Management Interface -- v([0-9.]+)")
_MAX_LINKS = 100


class Root(Files):
    """The files of a host."""

    def resolve(self, path: str) -> str | None:
        """Where a path of the host leads, as a path of the host; None when it leads nowhere."""
        rest = _parts(path)
        done: list[str] = []
        links = 0
        while rest:
            part = rest.pop()
            if part == "..":
                done[-1:] = []
                continue
            here = self.path(*done, part)
            if os.path.islink(here):
                links += 1
                if links > _MAX_LINKS:
                    return None
                target = os.readlink(here)
                # Links of the host count from its own top.
                done = [] if target.startswith("/") else done
                rest += _parts(target)
            elif os.path.exists(here):
                done.append(part)
            else:
                return None
        return "/" + "/".join(done)

    def has(self, path: str) -> bool:
        return self.resolve(path) is not None

    def at(self, path: str) -> str:
        """The path by which we reach a path of the host."""
        return self.path(path.lstrip("/"))


def said(command: Command, arguments: t.Sequence[str]) -> str | None:
    """What a program printed; None when it failed."""
    status, output = command(arguments)[:2]
    return output if status == 0 else None


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")][::-1]


def kernel_order(release: str) -> tuple[int, ...]:
    """Sort key: the numbers before the flavour, so that 6.8.0-100-generic is newer than 6.8.0-60-generic."""
    match = _NUMBERS.match(release)
    return tuple(int(number) for number in re.split(r"[.-]", match.group(0))) if match else ()


@dataclass(frozen=True)
class ModuleFile:
    """The nvidia module that modprobe would load for a kernel. None is what modinfo did not tell."""

    path: str
    version: str | None
    flavour: str | None
    signer: str | None
    # Whether modules.dep has it: modprobe does not find it else.
    indexed: bool


@dataclass(frozen=True)
class DkmsBuild:
    name: str
    version: str
    kernel: str | None
    # "added", "built" or "installed"; more words where DKMS warns.
    state: str


@dataclass(frozen=True)
class Kernel:
    release: str
    running: bool
    newest: bool
    headers: bool
    module: ModuleFile | None
    # States of the DKMS builds for it.
    dkms: tuple[DkmsBuild, ...]


def read_kernels(
    root: Root, running: str | None, builds: t.Sequence[DkmsBuild], command: Command, which: Which
) -> list[Kernel]:
    """Installed kernels and the running one, oldest first."""
    folders = [name for name in root.names("lib", "modules") if kernel_order(name)]
    installed = [
        name for name in folders if root.has(f"/boot/vmlinuz-{name}") or root.has(f"/lib/modules/{name}/vmlinuz")
    ]
    # In a container, and where the boot partition is not mounted, no kernel has its image. A folder that a removed
    # kernel left behind has no index of modules.
    installed = installed or [name for name in folders if root.has(f"/lib/modules/{name}/modules.dep")]
    releases = sorted({*installed, *([running] if running else [])}, key=kernel_order)
    newest = releases[-1] if releases else None
    modinfo = which("modinfo")
    return [
        Kernel(
            release=release,
            running=release == running,
            newest=release == newest,
            headers=root.has(f"/lib/modules/{release}/build/Makefile"),
            module=_module_file(root, release, command, modinfo),
            dkms=tuple(build for build in builds if build.kernel == release),
        )
        for release in releases
    ]


def _module_file(root: Root, release: str, command: Command, modinfo: str | None) -> ModuleFile | None:
    folder = f"/lib/modules/{release}"
    path, indexed = _indexed_module(root, folder), True
    if path is None:
        path, indexed = _stray_module(root, folder), False
    if path is None:
        return None
    fields: dict[str, str] = {}
    if modinfo:
        for line in (said(command, [modinfo, root.at(path)]) or "").splitlines():
            key, colon, value = line.partition(":")
            if colon:
                fields.setdefault(key, value.strip())
    return ModuleFile(
        path=path,
        version=fields.get("version"),
        flavour=license_flavour(fields.get("license")),
        signer=fields.get("signer") or None,
        indexed=indexed,
    )


def license_flavour(text: str | None) -> str | None:
    """The open modules are under "Dual MIT/GPL", the others under "NVIDIA"."""
    if not text:
        return None
    return "proprietary" if text == "NVIDIA" else "open"


def _indexed_module(root: Root, folder: str) -> str | None:
    """depmod lists the one file of a name that its search order prefers."""
    for line in (root.text(folder.lstrip("/"), "modules.dep") or "").splitlines():
        path = line.partition(":")[0]
        if _MODULE_FILE.fullmatch(os.path.basename(path)):
            # Some distributions write whole paths there.
            return path if path.startswith("/") else f"{folder}/{path}"
    return None


def _stray_module(root: Root, folder: str) -> str | None:
    for part in _MODULE_FOLDERS:
        top = root.at(f"{folder}/{part}")
        for where, folders, files in os.walk(top):
            folders.sort()
            for name in sorted(files):
                if _MODULE_FILE.fullmatch(name):
                    inside = os.path.relpath(os.path.join(where, name), top)
                    return f"{folder}/{part}/{inside}"
    return None


def read_dkms(command: Command, which: Which) -> list[DkmsBuild]:
    dkms = which("dkms")
    return parse_dkms(said(command, [dkms, "status"]) or "") if dkms else []


def parse_dkms(output: str) -> list[DkmsBuild]:
    matches = (_DKMS_LINE.fullmatch(line.strip()) for line in output.splitlines())
    return [
        DkmsBuild(name=match["name"], version=match["version"], kernel=match["kernel"], state=match["state"].strip())
        for match in matches
        if match and _DKMS_NAME.fullmatch(match["name"])
    ]


@dataclass(frozen=True)
class LibraryFiles:
    # What libnvidia-ml.so.1 leads to; None when there is no such file, or it does not tell its version.
    path: str | None
    version: str | None
    # Of all files of that library in the system's folders, newest first.
    versions: tuple[str, ...]


def read_library_files(root: Root) -> LibraryFiles:
    linked: tuple[str, str] | None = None
    versions: set[str] = set()
    for folder in _LIBRARY_FOLDERS:
        for name in root.names(folder):
            match = _LIBRARY.fullmatch(name)
            if match:
                versions.add(match.group(1))
        target = root.resolve(f"{folder}/libnvidia-ml.so.1")
        match = _LIBRARY.fullmatch(os.path.basename(target or ""))
        if linked is None and target and match:
            linked = (target, match.group(1))
    return LibraryFiles(
        path=linked[0] if linked else None,
        version=linked[1] if linked else None,
        versions=tuple(sorted(versions, key=kernel_order, reverse=True)),
    )


def read_smi_version(command: Command, which: Which) -> str | None:
    smi = which("nvidia-smi")
    if not smi:
        return None
    match = _SMI_VERSION.search(said(command, [smi, "-h"]) or "")
    return match.group(1) if match else None


@dataclass(frozen=True)
class Unit:
    """A systemd unit. All are None where systemd cannot be asked."""

    load_state: str | None
    active_state: str | None
    file_state: str | None

    @property
    def masked(self) -> bool:
        return "masked" in (self.load_state or "") or "masked" in (self.file_state or "")

    @property
    def there(self) -> bool:
        return self.load_state not in (None, "not-found")


def read_unit(name: str, command: Command, which: Which) -> Unit:
    systemctl = which("systemctl")
    if not systemctl:
        return Unit(None, None, None)
    output = said(command, [systemctl, "show", "--property=LoadState,ActiveState,UnitFileState", name]) or ""
    values = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
    return Unit(*(values.get(key) or None for key in ("LoadState", "ActiveState", "UnitFileState")))


def nouveau_blacklists(root: Root, command_line: str | None) -> list[str]:
    """What keeps nouveau from being loaded: files, and words of the kernel's command line."""
    found = []
    for folder in _MODPROBE_FOLDERS:
        for name in root.names(folder):
            # Debian leads from there to one of its alternatives.
            path = root.resolve(f"{folder}/{name}") if name.endswith(".conf") else None
            lines = (root.text(path.lstrip("/")) or "").splitlines() if path else []
            if any(line.split()[:2] == ["blacklist", "nouveau"] for line in lines):
                found.append(f"/{folder}/{name}")
    for word in (command_line or "").split():
        key, value = word.partition("=")[::2]
        if key in ("modprobe.blacklist", "module_blacklist", "rd.driver.blacklist") and "nouveau" in value.split(","):
            found.append(word)
    return found


@dataclass(frozen=True)
class Signatures:
    """What the kernel asks of a module's signature. None is what cannot be read."""

    secure_boot: bool | None
    # Whether the running kernel refuses modules that are not signed.
    enforced: bool | None
    # Names of the keys that the running kernel trusts.
    trusted: tuple[str, ...] | None
    # Names of keys of the machine's owner: enrolled, and to be confirmed at the next boot.
    enrolled: tuple[str, ...] | None
    pending: tuple[str, ...] | None

    def trusts(self, signer: str | None) -> bool | None:
        if self.trusted is None or signer is None:
            return None
        # A key's description is its name, with the organisation before it where that is not part of it.
        return any(key == signer or key.endswith(f": {signer}") for key in self.trusted)


def read_signatures(sysfs: Files, proc: Files, secure_boot: bool | None, command: Command, which: Which) -> Signatures:
    lockdown = sysfs.text("kernel", "security", "lockdown")
    parameter = sysfs.text("module", "module", "parameters", "sig_enforce")
    enforced: bool | None = None
    if parameter is not None or lockdown is not None:
        enforced = parameter == "Y" or bool(re.search(r"\[(?:integrity|confidentiality)\]", lockdown or ""))
    # A user sees none of the kernel's own keys.
    trusted = tuple(_KEY.findall(proc.text("keys") or ""))
    mokutil = which("mokutil")
    enrolled = pending = None
    if mokutil and secure_boot is not None:
        enrolled, pending = (_mok(command, mokutil, option) for option in ("--list-enrolled", "--list-new"))
    return Signatures(secure_boot, enforced, trusted or None, enrolled, pending)


def _mok(command: Command, mokutil: str, option: str) -> tuple[str, ...] | None:
    status, output, errors = command([mokutil, option])
    # It ends with an error when the list is empty, and says so.
    if status != 0 and "empty" not in output + errors:
        return None
    return tuple(name.strip() for name in _COMMON_NAME.findall(output))


def read_gsp_firmware(proc: Files) -> str | None:
    """Version of the firmware that runs on the GPUs; None where they have none, or differ."""
    found = set()
    for name in proc.names("driver", "nvidia", "gpus"):
        match = re.search(
            r"^GPU Firmware:\s*([0-9.]+)\s*$",
            proc.text("driver", "nvidia", "gpus", name, "information") or "",
            re.MULTILINE,
        )
        found.add(match.group(1) if match else None)
    return found.pop() if len(found) == 1 else None


def mounted_driver(proc: Files) -> str | None:
    """Mount point of a driver that is brought from outside: its library alone, as containers' runtimes do, or a folder."""
    for line in (proc.text("self", "mounts") or "").splitlines():
        words = line.split()
        if len(words) > 1 and (words[1] == f"/{_MOUNT}" or _LIBRARY.fullmatch(os.path.basename(words[1]))):
            return words[1]
    return None
