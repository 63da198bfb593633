# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""Packages of the driver: which there are, where they are from, what keeps or changes them, and who owns the driver.

Formats: dpkg-query(1), apt-cache(8) "policy", apt_preferences(5), apt.conf(5), rpm(8), DNF's plugin versionlock.
"""

from __future__ import annotations

import os
import re
import typing as t
from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ansible_collections.baremetal.inference.plugins.module_utils._driver_host import said

if t.TYPE_CHECKING:
    from ansible_collections.baremetal.inference.plugins.module_utils._driver_host import DkmsBuild, Root, Which
    from ansible_collections.baremetal.inference.plugins.module_utils._preflight_log import Command

NONE = "none"
NVIDIA = "nvidia_repository"
UBUNTU = "ubuntu_archive"
DEBIAN = "debian_archive"
RUNFILE = "runfile"
DGX_OS = "dgx_os"
CONTAINER = "container"
DKMS_SOURCE = "dkms_source"
UNKNOWN = "unknown"

_PATTERNS = (
    "nvidia-*",
    "libnvidia-*",
    "libcuda1*",
    "cuda-drivers*",
    "linux-modules-nvidia-*",
    "linux-objects-nvidia-*",
    "linux-signatures-nvidia-*",
    "xserver-xorg-video-nvidia*",
)
_RPM_PATTERNS = ("*nvidia*", "cuda-drivers*")
# Ubuntu's prebuilt modules have the kernel's version.
_PREBUILT = ("linux-modules-nvidia-", "linux-objects-nvidia-", "linux-signatures-nvidia-")
# A driver's version: 580.95.05, 590.44, with an epoch before it and a package revision behind it.
_DRIVER_VERSION = re.compile(r"(?:[0-9]+:)?([0-9]{3}\.[0-9]{2,3}(?:\.[0-9]{2})?)(?:[-+~].*)?")
# Packages that may be of another version than the driver, or that stay behind on purpose.
_LOOSE = re.compile(
    r"nvidia-(?:settings|prime|modprobe|persistenced|xconfig|alternative|firmware|imex|driver-pinning|support"
    r"|installer-cleanup|suspend-common).*|libnvidia-(?:egl|nscq|cfg1-any).*|nvidia-fabric-?manager.*"
    r"|cuda-drivers-fabricmanager.*"
)
_FABRIC_MANAGER = re.compile(r"(?:nvidia-fabric-?manager|cuda-drivers-fabricmanager).*")
_APT_OPTION = re.compile(r'(\S+) "(.*)";')
_UNATTENDED_KEYS: t.Mapping[str, str] = {
    "origin": "o",
    "label": "l",
    "suite": "a",
    "archive": "a",
    "component": "c",
    "codename": "n",
}
_NVIDIA_SITE = "developer.download.nvidia.com"
# DGX OS's own repositories.
_DGX_SITE = "repo.download.nvidia.com/baseos"
_NVIDIA_RPM_REPOSITORY = re.compile(r"cuda-(?:rhel|fedora|sles|opensuse|amzn|cm|kylin|azl)[a-z0-9]*-.*")


@dataclass(frozen=True)
class Source:
    """A package source as apt has it. ``release`` are the fields of its Release file, by their letters."""

    text: str
    release: t.Mapping[str, str]

    @property
    def owner(self) -> str:
        if _DGX_SITE in self.text:
            return DGX_OS
        origin = self.release.get("o", "")
        if origin == "NVIDIA" or _NVIDIA_SITE in self.text:
            return NVIDIA
        return {"Ubuntu": UBUNTU, "Debian": DEBIAN}.get(origin, UNKNOWN)


@dataclass(frozen=True)
class Policy:
    """One package in "apt-cache policy"."""

    installed: str | None
    candidate: str | None
    # Sources that have the installed version, and those that have any.
    installed_from: tuple[str, ...]
    offered_by: tuple[str, ...]


@dataclass(frozen=True)
class Pin:
    """A record of apt's preferences that pins a version."""

    file: str
    packages: tuple[str, ...]
    version: str
    priority: int

    def covers(self, name: str) -> bool:
        return any(
            re.search(pattern[1:-1], name) is not None
            if len(pattern) > 1 and pattern.startswith("/") and pattern.endswith("/")
            else fnmatchcase(name, pattern)
            for pattern in self.packages
        )


@dataclass(frozen=True)
class Package:
    name: str
    version: str
    # Of the driver; None for packages that have the kernel's version.
    driver_version: str | None
    architecture: str
    # One of the owners above, and how that is known.
    origin: str
    evidence: str
    held: bool
    # Version pattern that apt's preferences pin it to.
    pin: str | None
    # What an upgrade would install.
    candidate: str | None

    @property
    def core(self) -> bool:
        """Whether it must be of one version with the driver."""
        return self.driver_version is not None and _LOOSE.fullmatch(self.name) is None

    @property
    def counts(self) -> bool:
        """Whether it says who owns the driver."""
        return _LOOSE.fullmatch(self.name) is None

    @property
    def fabric_manager(self) -> bool:
        return _FABRIC_MANAGER.fullmatch(self.name) is not None

    @property
    def fixed(self) -> bool:
        """Whether upgrades leave it alone: held, or pinned to one version of the driver."""
        if self.held:
            return True
        driver = _DRIVER_VERSION.match((self.pin or "").rstrip("*"))
        # 580.* is a branch; 580.95.05* is one version.
        return bool(driver and driver.group(1) == self.driver_version)


@dataclass(frozen=True)
class Unattended:
    """Upgrades that nobody starts."""

    # "unattended-upgrades" or "dnf-automatic"; None when there are none.
    kind: str | None
    enabled: bool | None
    # Patterns of packages that they leave alone.
    excluded: tuple[str, ...]
    # Driver packages that they may change.
    may_upgrade: tuple[str, ...]


@dataclass(frozen=True)
class Packages:
    # "dpkg", "rpm" or None.
    manager: str | None
    packages: tuple[Package, ...]
    unattended: Unattended


@dataclass(frozen=True)
class Owner:
    owner: str
    evidence: str


def driver_version(version: str) -> str | None:
    match = _DRIVER_VERSION.fullmatch(version)
    return match.group(1) if match else None


# ---- dpkg and apt ----


def parse_policy(output: str) -> dict[str, Policy]:
    """Of "apt-cache policy" with packages."""
    found: dict[str, Policy] = {}
    for block in re.split(r"^(?=\S)", output, flags=re.MULTILINE):
        lines = block.splitlines()
        if not lines or not lines[0].endswith(":"):
            continue
        values: dict[str, str] = {}
        current, installed_from, offered_by = False, [], []
        for line in lines[1:]:
            key, colon, value = line.strip().partition(": ")
            if line.startswith("  ") and not line.startswith("   ") and colon:
                values[key] = value.strip()
                continue
            source = re.fullmatch(r" {7,}-?[0-9]+ (.+)", line)
            version = re.fullmatch(r" (\*\*\*|   ) (\S+)(?: -?[0-9]+)?", line)
            if version:
                current = version.group(1) == "***"
            elif source and source.group(1) != "/var/lib/dpkg/status":
                offered_by.append(source.group(1))
                if current:
                    installed_from.append(source.group(1))
        installed, candidate = (
            None if values.get(key) in (None, "(none)") else values[key] for key in ("Installed", "Candidate")
        )
        found[lines[0][:-1]] = Policy(installed, candidate, tuple(installed_from), tuple(offered_by))
    return found


def parse_sources(output: str) -> dict[str, Source]:
    """Of "apt-cache policy" without packages: the sources by their text."""
    found: dict[str, Source] = {}
    text = None
    for line in output.splitlines():
        source = re.fullmatch(r" *-?[0-9]+ (.+)", line)
        release = re.fullmatch(r" +release (.+)", line)
        if source:
            text = source.group(1)
            found[text] = Source(text, {})
        elif release and text is not None:
            fields = (field.partition("=") for field in release.group(1).split(","))
            found[text] = Source(text, {key: value for key, sign, value in fields if sign})
    return found


def read_pins(root: Root) -> list[Pin]:
    files = [("etc/apt", "preferences")]
    folder = "etc/apt/preferences.d"
    # apt reads files that end in .pref, and those without an ending.
    files += [(folder, name) for name in root.names(folder) if name.endswith(".pref") or "." not in name]
    pins = []
    for folder, name in files:
        for block in re.split(r"\n\s*\n", root.text(folder, name) or ""):
            fields: dict[str, str] = {}
            for line in block.splitlines():
                key, colon, value = line.partition(":")
                if colon and not line.startswith("#"):
                    fields[key.strip().lower()] = value.strip()
            version = re.fullmatch(r"version\s+(\S+)", fields.get("pin", ""))
            priority = re.fullmatch(r"-?[0-9]+", fields.get("pin-priority", ""))
            if version and priority:
                pins.append(
                    Pin(
                        f"/{folder}/{name}",
                        tuple(fields.get("package", "").split()),
                        version.group(1),
                        int(priority.group()),
                    )
                )
    return pins


def _dpkg(root: Root, dpkg: str, command: Command, which: Which, os_release: t.Mapping[str, str]) -> Packages:
    # With a pattern that matches nothing it prints the others and ends with 1.
    output = command(
        [
            dpkg,
            "--show",
            "--showformat=${db:Status-Want}\\t${db:Status-Status}\\t${Package}\\t${Version}\\t${Architecture}\\t${Maintainer}\\n",
            *_PATTERNS,
        ]
    )[1]
    rows = [line.split("\t") for line in output.splitlines()]
    rows = [
        row
        for row in rows
        if len(row) == 6 and row[1] == "installed" and (driver_version(row[3]) or row[2].startswith(_PREBUILT))
    ]
    policies: dict[str, Policy] = {}
    sources: dict[str, Source] = {}
    apt_cache = which("apt-cache")
    if apt_cache and rows:
        policies = parse_policy(command([apt_cache, "policy", *sorted({row[2] for row in rows})])[1])
        sources = parse_sources(command([apt_cache, "policy"])[1])
    pins = read_pins(root)
    packages = []
    for row in sorted(rows, key=lambda row: (row[2], row[4])):
        want, name, version, architecture, maintainer = row[0], *row[2:]
        policy = policies.get(name)
        origin, evidence = _apt_origin(policy, sources, maintainer)
        pin = max((pin for pin in pins if pin.covers(name)), key=lambda pin: pin.priority, default=None)
        packages.append(
            Package(
                name=name,
                version=version,
                driver_version=None if name.startswith(_PREBUILT) else driver_version(version),
                architecture=architecture,
                origin=origin,
                evidence=evidence,
                held=want == "hold",
                # From 1000 on a pin keeps its version, or brings it back (apt_preferences).
                pin=pin.version if pin and pin.priority >= 1000 else None,
                candidate=policy.candidate if policy else None,
            )
        )
    return Packages(
        "dpkg", tuple(packages), _unattended_upgrades(root, command, which, os_release, packages, policies, sources)
    )


def _apt_origin(policy: Policy | None, sources: t.Mapping[str, Source], maintainer: str) -> tuple[str, str]:
    for text in policy.installed_from if policy else ():
        source = sources.get(text, Source(text, {}))
        if source.owner != UNKNOWN:
            return source.owner, text
    # No source has it any more, or it came as a file.
    for mark, owner in (("nvidia.com", NVIDIA), ("ubuntu.com", UBUNTU), ("debian", DEBIAN)):
        if mark in maintainer.lower():
            return owner, f"maintainer {maintainer}"
    where = (
        policy.installed_from[0] if policy and policy.installed_from else "no source that apt knows has this version"
    )
    return UNKNOWN, where


def parse_apt_options(output: str) -> dict[str, list[str]]:
    """Of "apt-config dump": values by key; those of a list have the list's name with :: at its end."""
    found: dict[str, list[str]] = {}
    for line in output.splitlines():
        match = _APT_OPTION.fullmatch(line)
        if match:
            found.setdefault(match.group(1), []).append(match.group(2))
    return found


def _unattended_upgrades(
    root: Root,
    command: Command,
    which: Which,
    os_release: t.Mapping[str, str],
    packages: t.Sequence[Package],
    policies: t.Mapping[str, Policy],
    sources: t.Mapping[str, Source],
) -> Unattended:
    if not root.has("/usr/bin/unattended-upgrade"):
        return Unattended(None, False, (), ())
    apt_config = which("apt-config")
    if not apt_config:
        return Unattended("unattended-upgrades", None, (), ())
    output = said(command, [apt_config, "dump"])
    if output is None:
        return Unattended("unattended-upgrades", None, (), ())
    options = parse_apt_options(output)
    enabled = options.get("APT::Periodic::Unattended-Upgrade", ["0"])[-1] not in ("", "0")
    excluded = tuple(options.get("Unattended-Upgrade::Package-Blacklist::", ()))
    patterns = [_allowed_origin(value) for value in options.get("Unattended-Upgrade::Allowed-Origins::", ())]
    patterns += options.get("Unattended-Upgrade::Origins-Pattern::", [])
    values = {
        "${distro_id}": os_release.get("ID", "").capitalize(),
        "${distro_codename}": os_release.get("VERSION_CODENAME", ""),
    }
    for mark, value in values.items():
        patterns = [pattern.replace(mark, value) for pattern in patterns]
    may = []
    for package in packages:
        policy = policies.get(package.name)
        offered = [sources[text] for text in (policy.offered_by if policy else ()) if text in sources]
        if (
            enabled
            and not package.fixed
            and not any(re.match(pattern, package.name) for pattern in excluded)
            and any(origin_allowed(pattern, source) for pattern in patterns for source in offered)
        ):
            may.append(package.name)
    return Unattended("unattended-upgrades", enabled, excluded, tuple(may))


def _allowed_origin(value: str) -> str:
    """The older way to write an origin, in the newer one."""
    origin, archive = value.rpartition(":")[::2]
    return f"origin={origin},archive={archive}"


def origin_allowed(pattern: str, source: Source) -> bool:
    """Whether a source matches a pattern of unattended-upgrades: all its parts do, with wildcards."""
    parts = [part.strip().partition("=")[::2] for part in pattern.split(",") if part.strip()]
    for key, value in parts:
        if key == "site":
            match = re.match(r"[a-z+]+://([^/\s:]+)", source.text)
            have = match.group(1) if match else ""
        else:
            have = source.release.get(_UNATTENDED_KEYS.get(key, key), "")
        if not fnmatchcase(have, value):
            return False
    return bool(parts)


# ---- rpm and dnf ----


def _rpm(
    root: Root, rpm: str, command: Command, which: Which, timer_active: t.Callable[[str], bool | None]
) -> Packages:
    output = said(
        command,
        [
            rpm,
            "--query",
            "--all",
            "--queryformat",
            "%{NAME}\\t%{EPOCHNUM}\\t%{VERSION}\\t%{RELEASE}\\t%{ARCH}\\t%{VENDOR}\\n",
            *_RPM_PATTERNS,
        ],
    )
    rows = [line.split("\t") for line in (output or "").splitlines()]
    rows = [row for row in rows if len(row) == 6 and driver_version(row[2])]
    repositories: dict[str, str] = {}
    dnf = which("dnf")
    if dnf and rows:
        output = said(
            command,
            [
                dnf,
                "--quiet",
                "--cacheonly",
                "repoquery",
                "--installed",
                "--queryformat",
                "%{name}\\t%{from_repo}\\n",
                *sorted({row[0] for row in rows}),
            ],
        )
        pairs = (line.partition("\t")[::2] for line in (output or "").splitlines())
        repositories = {name: repository for name, repository in pairs if repository}
    locks = [
        line.strip()
        for line in (root.text("etc/dnf/plugins/versionlock.list") or "").splitlines()
        if line.strip() and line.strip()[0] not in "#!"
    ]
    packages = []
    for name, epoch, version, release, architecture, vendor in sorted(rows):
        origin, evidence = _rpm_origin(repositories.get(name), vendor)
        spellings = (
            name,
            f"{name}-{epoch}:{version}-{release}.{architecture}",
            f"{name}-{version}-{release}.{architecture}",
        )
        packages.append(
            Package(
                name=name,
                version=f"{epoch}:{version}-{release}" if epoch != "0" else f"{version}-{release}",
                driver_version=driver_version(version),
                architecture=architecture,
                origin=origin,
                evidence=evidence,
                held=any(fnmatchcase(spelling, lock) for lock in locks for spelling in spellings),
                pin=None,
                candidate=None,
            )
        )
    return Packages("rpm", tuple(packages), _dnf_automatic(root, timer_active, packages))


def _rpm_origin(repository: str | None, vendor: str) -> tuple[str, str]:
    if repository and _NVIDIA_RPM_REPOSITORY.fullmatch(repository):
        return NVIDIA, f"repository {repository}"
    if "nvidia" in vendor.lower():
        return NVIDIA, f"vendor {vendor}"
    return UNKNOWN, f"repository {repository}" if repository else f"vendor {vendor}"


def _dnf_automatic(
    root: Root, timer_active: t.Callable[[str], bool | None], packages: t.Sequence[Package]
) -> Unattended:
    if not root.has("/usr/bin/dnf-automatic"):
        return Unattended(None, False, (), ())
    enabled = timer_active("dnf-automatic-install.timer")
    if enabled is False and timer_active("dnf-automatic.timer"):
        # The general timer does what its file says.
        text = root.text("etc/dnf/automatic.conf") or ""
        enabled = (
            re.search(r"^\s*apply_updates\s*=\s*(?:yes|true|1|on)\s*$", text, re.MULTILINE | re.IGNORECASE) is not None
        )
    configuration = root.text("etc/dnf/dnf.conf") or ""
    match = re.search(r"^\s*exclude(?:pkgs)?\s*=\s*(.+)$", configuration, re.MULTILINE)
    excluded = tuple(re.split(r"[,\s]+", match.group(1).strip())) if match else ()
    may = tuple(
        package.name
        for package in packages
        if enabled and not package.fixed and not any(fnmatchcase(package.name, pattern) for pattern in excluded)
    )
    return Unattended("dnf-automatic", enabled, excluded, may)


# ---- both ----


def read_packages(
    root: Root,
    command: Command,
    which: Which,
    os_release: t.Mapping[str, str],
    timer_active: t.Callable[[str], bool | None],
) -> Packages:
    """``timer_active`` tells whether a unit is active; None where nobody can tell."""
    dpkg, rpm = which("dpkg-query"), which("rpm")
    # On Debian rpm is a tool for other people's packages, and the other way round: the database tells.
    if dpkg and root.has("/var/lib/dpkg/status"):
        return _dpkg(root, dpkg, command, which, os_release)
    if rpm:
        return _rpm(root, rpm, command, which, timer_active)
    return Packages(None, (), Unattended(None, None, (), ()))


def package_of(path: str, manager: str | None, command: Command, which: Which) -> str | None:
    """The package that a file belongs to; None when to none, or there is no package manager."""
    dpkg, rpm = which("dpkg-query"), which("rpm")
    if manager == "dpkg" and dpkg:
        # With merged /usr the database may still have the file under /lib.
        for spelling in (path, path[len("/usr") :] if path.startswith("/usr/lib") else path):
            output = said(command, [dpkg, "--search", spelling])
            # "libnvidia-compute-580:amd64: /usr/lib/...". Lines of diversions name a path that was moved away.
            for line in (output or "").splitlines():
                if not line.startswith("diversion by "):
                    return line.split(": ", 1)[0].split(",")[0].partition(":")[0]
    if manager == "rpm" and rpm:
        output = said(command, [rpm, "--query", "--file", "--queryformat", "%{NAME}\\n", path])
        if output:
            return output.splitlines()[0]
    return None


@dataclass(frozen=True)
class Traces:
    """What says who installed the driver."""

    packages: Packages
    # The library that is in use, and the package that it belongs to.
    library: str | None
    library_package: str | None
    # Mount point of a driver that is brought from outside.
    mounted: str | None
    # Whether an operator's container keeps a driver in /run/nvidia/driver.
    driver_container: bool
    dgx_release: bool
    uninstaller: bool
    installer_log: bool
    # Builds whose sources belong to no package.
    own_builds: tuple[DkmsBuild, ...]
    module: bool


def owners(traces: Traces) -> list[Owner]:
    """Everybody who has put a driver here, the one that counts first. One entry of "none" when nobody has."""
    found = []
    if traces.mounted:
        found.append(Owner(CONTAINER, f"{traces.mounted} is mounted from outside"))
    if traces.driver_container:
        found.append(Owner(CONTAINER, "/run/nvidia/driver holds the driver of a container"))
    counted = [package for package in traces.packages.packages if package.counts]
    if traces.dgx_release and counted:
        found.append(Owner(DGX_OS, f"/etc/dgx-release, and {counted[0].name} {counted[0].version}"))
    unowned = traces.library is not None and traces.packages.manager is not None and not traces.library_package
    if traces.uninstaller:
        found.append(Owner(RUNFILE, "/usr/bin/nvidia-uninstall"))
    elif traces.installer_log and unowned and not found:
        found.append(Owner(RUNFILE, f"/var/log/nvidia-installer.log, and {traces.library} belongs to no package"))
    if not traces.dgx_release:
        origins = Counter(package.origin for package in counted)
        for origin, count in sorted(origins.items(), key=lambda pair: (-pair[1], pair[0])):
            first = next(package for package in counted if package.origin == origin)
            found.append(Owner(origin, f"{count} package(s), such as {first.name} {first.version} ({first.evidence})"))
    if traces.own_builds and not traces.uninstaller:
        build = traces.own_builds[0]
        found.append(Owner(DKMS_SOURCE, f"DKMS has {build.name}/{build.version}, whose sources belong to no package"))
    if not found and (traces.library or traces.module):
        what = traces.library or "the loaded nvidia module"
        found.append(Owner(UNKNOWN, f"{what} belongs to no package, and no installer left a trace"))
    return found or [Owner(NONE, "no package, no library, no module")]


def source_paths(build: DkmsBuild) -> tuple[str, str]:
    """Where DKMS expects the sources of a build: a package may own the folder, or make that file when it is installed."""
    folder = os.path.join("/usr/src", f"{build.name}-{build.version}")
    return os.path.join(folder, "dkms.conf"), folder
