# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Packages and owners, from what dpkg, apt, rpm and dnf print."""

from __future__ import annotations

import typing as t
from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.baremetal.inference.plugins.module_utils._driver_host import DkmsBuild, Root
from ansible_collections.baremetal.inference.plugins.module_utils._driver_packages import (
    Package,
    Packages,
    Pin,
    Policy,
    Source,
    Traces,
    Unattended,
    driver_version,
    origin_allowed,
    owners,
    package_of,
    parse_apt_options,
    parse_policy,
    parse_sources,
    read_packages,
    read_pins,
)

from tests.unit.driver_tree import APT_CONFIG, REPOSITORY, SOURCES, UBUNTU_SECURITY, policy

UBUNTU = {"ID": "ubuntu", "VERSION_CODENAME": "noble"}
POLICY = f"""libnvidia-compute-580:
  Installed: 580.95.05-0ubuntu1
  Candidate: 580.159.04-0ubuntu1
  Version table:
     590.44.01-0ubuntu1 100
        100 {REPOSITORY}
     580.159.04-0ubuntu1 1001
        600 {REPOSITORY}
        500 {UBUNTU_SECURITY}
 *** 580.95.05-0ubuntu1 1001
        600 {REPOSITORY}
        100 /var/lib/dpkg/status
nvidia-utils-580:
  Installed: (none)
  Candidate: (none)
  Version table:
     580.95.05-0ubuntu0.24.04.1 -1
        100 /var/lib/dpkg/status
"""


def test_policy() -> None:
    assert parse_policy(POLICY) == {
        "libnvidia-compute-580": Policy(
            "580.95.05-0ubuntu1",
            "580.159.04-0ubuntu1",
            (REPOSITORY,),
            (REPOSITORY, REPOSITORY, UBUNTU_SECURITY, REPOSITORY),
        ),
        "nvidia-utils-580": Policy(None, None, (), ()),
    }
    assert parse_policy("") == {}


def test_sources() -> None:
    sources = parse_sources(SOURCES)
    assert sources[REPOSITORY].release == {"o": "NVIDIA", "l": "NVIDIA CUDA", "c": ""}
    assert sources[UBUNTU_SECURITY].release["a"] == "noble-security"


@pytest.mark.parametrize(
    ("text", "release", "owner"),
    [
        (REPOSITORY, {}, "nvidia_repository"),
        # A mirror keeps the signed Release file.
        ("http://mirror.example.org/cuda  Packages", {"o": "NVIDIA"}, "nvidia_repository"),
        (UBUNTU_SECURITY, {"o": "Ubuntu"}, "ubuntu_archive"),
        ("http://mirror.example.org/debian trixie/non-free amd64 Packages", {"o": "Debian"}, "debian_archive"),
        ("https://repo.download.nvidia.com/baseos/ubuntu/noble/x86_64 noble/dgx amd64 Packages", {}, "dgx_os"),
        ("http://ppa.example.org noble/main amd64 Packages", {"o": "LP-PPA-graphics-drivers"}, "unknown"),
    ],
)
def test_owner_of_a_source(text: str, release: dict[str, str], owner: str) -> None:
    assert Source(text, release).owner == owner


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("580.95.05-0ubuntu1", "580.95.05"),
        ("1:580.159.04-1ubuntu1", "580.159.04"),
        ("550.163.01-2~deb12u1", "550.163.01"),
        ("580.95.05", "580.95.05"),
        ("590.44.01+really-1", "590.44.01"),
        ("1.18.0-1", None),
        ("12.0.140~12.0.1-4", None),
        ("6.8.0-60.63", None),
        ("580-1", None),
    ],
)
def test_driver_version(version: str, expected: str | None) -> None:
    assert driver_version(version) == expected


def test_pins(tmp_path: Path) -> None:
    folder = tmp_path / "etc" / "apt" / "preferences.d"
    folder.mkdir(parents=True)
    (folder / "nvidia-driver-pinning-580.pref").write_text(
        "# comment: yes\nPackage: *nvidia* /^cuda-drivers/\nPin: version 580.*\nPin-Priority: 1000\n"
        "\nPackage: *\nPin: release o=NVIDIA\nPin-Priority: 600\n"
    )
    (folder / "old.pref.dpkg-old").write_text("Package: *\nPin: version 1\nPin-Priority: 1000\n")
    (folder.parent / "preferences").write_text("Package: vim\nPin: version 9*\nPin-Priority: -1\n")
    pins = read_pins(Root(str(tmp_path)))
    assert pins == [
        Pin("/etc/apt/preferences", ("vim",), "9*", -1),
        Pin("/etc/apt/preferences.d/nvidia-driver-pinning-580.pref", ("*nvidia*", "/^cuda-drivers/"), "580.*", 1000),
    ]
    assert [pins[1].covers(name) for name in ("libnvidia-cfg1", "cuda-drivers-580", "cuda-toolkit")] == [
        True,
        True,
        False,
    ]


PACKAGE = Package(
    name="libnvidia-compute-580",
    version="580.159.04-0ubuntu1",
    driver_version="580.159.04",
    architecture="amd64",
    origin="nvidia_repository",
    evidence=REPOSITORY,
    held=False,
    pin=None,
    candidate=None,
)


@pytest.mark.parametrize(
    ("changes", "fixed"),
    [
        ({}, False),
        ({"held": True}, True),
        ({"pin": "580.159.04-*"}, True),
        ({"pin": "580.159.04*"}, True),
        # A branch still moves.
        ({"pin": "580.*"}, False),
        ({"pin": "580*"}, False),
        # A pin to another version: the next upgrade leaves this one.
        ({"pin": "580.95.05-*"}, False),
    ],
)
def test_fixed(changes: dict[str, t.Any], fixed: bool) -> None:
    assert replace(PACKAGE, **changes).fixed is fixed


@pytest.mark.parametrize(
    ("name", "core"),
    [
        ("libnvidia-compute-580", True),
        ("nvidia-dkms-open", True),
        ("nvidia-settings", False),
        ("nvidia-fabricmanager-580", False),
        ("cuda-drivers-fabricmanager-580", False),
        ("nvidia-firmware-570-570.172.08", False),
    ],
)
def test_core_packages(name: str, core: bool) -> None:
    assert replace(PACKAGE, name=name).core is core


@pytest.mark.parametrize(
    ("pattern", "allowed"),
    [
        ("origin=Ubuntu,archive=noble-security", True),
        ("o=Ubuntu,a=noble*,l=Ubuntu", True),
        ("origin=Ubuntu,codename=noble,component=main", False),
        ("site=security.ubuntu.com", True),
        ("site=ubuntu.com", False),
        ("origin=Debian", False),
        ("origin=*", True),
        ("", False),
    ],
)
def test_origins_of_unattended_upgrades(pattern: str, allowed: bool) -> None:
    assert origin_allowed(pattern, parse_sources(SOURCES)[UBUNTU_SECURITY]) is allowed


class Host:
    """A host's programs; ``answers`` by program and first argument, or by program."""

    def __init__(self, answers: t.Mapping[str, str]) -> None:
        self.answers = answers

    def which(self, name: str) -> str | None:
        return f"/usr/bin/{name}" if any(key.split()[0] == name for key in self.answers) else None

    def __call__(self, arguments: t.Sequence[str]) -> tuple[int, str, str]:
        name = Path(arguments[0]).name
        for key in (f"{name} {' '.join(arguments[1:])}", f"{name} {arguments[1]}", name):
            if key in self.answers:
                return 0, self.answers[key], ""
        return 1, "", "no"


def debian(root: Path, answers: t.Mapping[str, str], *, unattended: bool = True) -> Packages:
    (root / "var" / "lib" / "dpkg").mkdir(parents=True, exist_ok=True)
    (root / "var" / "lib" / "dpkg" / "status").write_text("")
    if unattended:
        (root / "usr" / "bin").mkdir(parents=True, exist_ok=True)
        (root / "usr" / "bin" / "unattended-upgrade").write_text("")
    host = Host(answers)
    return read_packages(Root(str(root)), host, host.which, UBUNTU, lambda unit: None)


def row(name: str, version: str, want: str = "install", maintainer: str = "x") -> str:
    return f"{want}\tinstalled\t{name}\t{version}\tamd64\t{maintainer}\n"


def test_minor_upgrade_that_takes_some_packages_along(tmp_path: Path) -> None:
    """Holds on the driver, none on its library: the library alone moves."""
    versions = {
        "nvidia-dkms-580-server": "580.95.05-0ubuntu0.24.04.1",
        "libnvidia-compute-580-server": "580.95.05-0ubuntu0.24.04.1",
    }
    packages = debian(
        tmp_path,
        {
            "dpkg-query": row("nvidia-dkms-580-server", versions["nvidia-dkms-580-server"], "hold")
            + row("libnvidia-compute-580-server", versions["libnvidia-compute-580-server"])
            + row("linux-modules-nvidia-580-server-6.8.0-60-generic", "6.8.0-60.63", "hold"),
            "apt-cache policy": SOURCES,
            "apt-cache policy "
            + " ".join(sorted([*versions, "linux-modules-nvidia-580-server-6.8.0-60-generic"])): "".join(
                policy(name, version, UBUNTU_SECURITY, candidate="580.126.09-0ubuntu0.24.04.1")
                for name, version in versions.items()
            ),
            "apt-config": APT_CONFIG,
        },
    )
    assert [(package.name, package.held, package.driver_version) for package in packages.packages] == [
        ("libnvidia-compute-580-server", False, "580.95.05"),
        ("linux-modules-nvidia-580-server-6.8.0-60-generic", True, None),
        ("nvidia-dkms-580-server", True, "580.95.05"),
    ]
    assert packages.packages[0].candidate == "580.126.09-0ubuntu0.24.04.1"
    assert packages.packages[0].origin == "ubuntu_archive"
    assert packages.unattended == Unattended("unattended-upgrades", True, (), ("libnvidia-compute-580-server",))


@pytest.mark.parametrize(
    ("configuration", "expected"),
    [
        (APT_CONFIG, (True, (), ("libnvidia-compute-580",))),
        (APT_CONFIG.replace('Unattended-Upgrade "1"', 'Unattended-Upgrade "0"'), (False, (), ())),
        (
            APT_CONFIG + 'Unattended-Upgrade::Package-Blacklist:: "libnvidia-";\n',
            (True, ("libnvidia-",), ()),
        ),
        (
            APT_CONFIG + 'Unattended-Upgrade::Package-Blacklist:: "nvidia-";\n',
            (True, ("nvidia-",), ("libnvidia-compute-580",)),
        ),
    ],
)
def test_unattended_upgrades(tmp_path: Path, configuration: str, expected: tuple[t.Any, ...]) -> None:
    packages = debian(
        tmp_path,
        {
            "dpkg-query": row("libnvidia-compute-580", "580.95.05-0ubuntu1"),
            "apt-cache policy": SOURCES,
            "apt-cache policy libnvidia-compute-580": POLICY,
            "apt-config": configuration,
        },
    )
    unattended = packages.unattended
    assert (unattended.enabled, unattended.excluded, unattended.may_upgrade) == expected


def test_no_unattended_upgrades(tmp_path: Path) -> None:
    packages = debian(tmp_path, {"dpkg-query": "", "apt-config": APT_CONFIG}, unattended=False)
    assert packages == Packages("dpkg", (), Unattended(None, False, (), ()))


@pytest.mark.parametrize(
    ("maintainer", "origin"),
    [
        ("NVIDIA CORPORATION <cudatools@nvidia.com>", "nvidia_repository"),
        ("Ubuntu Core Developers <ubuntu-devel-discuss@lists.ubuntu.com>", "ubuntu_archive"),
        ("Debian NVIDIA Maintainers <pkg-nvidia-devel@lists.alioth.debian.org>", "debian_archive"),
        ("Somebody <somebody@example.org>", "unknown"),
    ],
)
def test_packages_that_no_source_has_any_more(tmp_path: Path, maintainer: str, origin: str) -> None:
    (package,) = debian(tmp_path, {"dpkg-query": row("nvidia-open", "580.95.05-1", maintainer=maintainer)}).packages
    assert package.origin == origin
    assert maintainer in package.evidence or origin == "unknown"


def test_apt_options() -> None:
    options = parse_apt_options(APT_CONFIG)
    assert options["Unattended-Upgrade::Allowed-Origins::"] == [
        "${distro_id}:${distro_codename}",
        "${distro_id}:${distro_codename}-security",
    ]


RPM = (
    "kmod-nvidia-open-dkms\t3\t580.159.04\t1.el9\tnoarch\tNVIDIA Corporation\n"
    "nvidia-driver-cuda-libs\t3\t580.159.04\t1.el9\tx86_64\t(none)\n"
    "nvidia-fabricmanager\t0\t580.159.04\t1\tx86_64\t(none)\n"
    "nvidia-container-toolkit\t0\t1.18.0\t1\tx86_64\tNVIDIA CORPORATION\n"
)
FROM_REPOSITORY = (
    "kmod-nvidia-open-dkms\tcuda-rhel9-x86_64\n"
    "nvidia-driver-cuda-libs\tcuda-rhel9-x86_64\n"
    "nvidia-fabricmanager\t@commandline\n"
)


def redhat(root: Path, *, active: t.Collection[str] = ()) -> Packages:
    host = Host({"rpm": RPM, "dnf": FROM_REPOSITORY})
    return read_packages(Root(str(root)), host, host.which, {"ID": "rhel"}, lambda unit: unit in active)


def test_rpm(tmp_path: Path) -> None:
    folder = tmp_path / "etc" / "dnf" / "plugins"
    folder.mkdir(parents=True)
    (folder / "versionlock.list").write_text(
        "# Added lock on Mon Nov 30 10:00:00 2026\nnvidia-driver-cuda-libs-3:580.159.04-1.el9.*\n!kmod-nvidia-open-dkms-3:600*\n"
    )
    packages = redhat(tmp_path)
    assert packages.manager == "rpm"
    assert [(package.name, package.version, package.held, package.origin) for package in packages.packages] == [
        ("kmod-nvidia-open-dkms", "3:580.159.04-1.el9", False, "nvidia_repository"),
        ("nvidia-driver-cuda-libs", "3:580.159.04-1.el9", True, "nvidia_repository"),
        ("nvidia-fabricmanager", "580.159.04-1", False, "unknown"),
    ]
    assert packages.packages[0].evidence == "repository cuda-rhel9-x86_64"
    assert packages.unattended == Unattended(None, False, (), ())


@pytest.mark.parametrize(
    ("active", "apply", "excludes", "enabled", "may"),
    [
        ((), "yes", "", False, 0),
        (("dnf-automatic-install.timer",), "no", "", True, 3),
        (("dnf-automatic.timer",), "no", "", False, 0),
        (("dnf-automatic.timer",), "yes", "", True, 3),
        (("dnf-automatic.timer",), "yes", "excludepkgs=nvidia-*, kmod-nvidia-*\n", True, 0),
    ],
)
def test_dnf_automatic(
    tmp_path: Path, active: tuple[str, ...], apply: str, excludes: str, enabled: bool, may: int
) -> None:
    for name, text in (
        ("usr/bin/dnf-automatic", ""),
        ("etc/dnf/automatic.conf", f"[commands]\napply_updates = {apply}\n"),
        ("etc/dnf/dnf.conf", f"[main]\n{excludes}"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    unattended = redhat(tmp_path, active=active).unattended
    assert (unattended.kind, unattended.enabled, len(unattended.may_upgrade)) == ("dnf-automatic", enabled, may)


def test_no_package_manager(tmp_path: Path) -> None:
    host = Host({})
    assert read_packages(Root(str(tmp_path)), host, host.which, {}, lambda unit: None).manager is None


def test_package_of_a_file() -> None:
    path = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
    host = Host(
        {
            # Merged /usr: the database still has the path below /lib.
            f"dpkg-query --search {path[4:]}": "diversion by glx from: /x\nlibnvidia-compute-580:amd64, b:i386: /lib/x\n",
            "rpm": "nvidia-driver-cuda-libs\n",
        }
    )
    assert package_of(path, "dpkg", host, host.which) == "libnvidia-compute-580"
    assert package_of("/usr/bin/x", "dpkg", host, host.which) is None
    assert package_of(path, "rpm", host, host.which) == "nvidia-driver-cuda-libs"
    assert package_of(path, None, host, host.which) is None


LIBRARY = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.159.04"
NOTHING = Traces(
    packages=Packages("dpkg", (), Unattended(None, False, (), ())),
    library=None,
    library_package=None,
    mounted=None,
    driver_container=False,
    dgx_release=False,
    uninstaller=False,
    installer_log=False,
    own_builds=(),
    module=False,
)
WITH = Packages("dpkg", (PACKAGE,), Unattended(None, False, (), ()))
MIXED = Packages(
    "dpkg",
    (PACKAGE, replace(PACKAGE, name="nvidia-utils-580-server", origin="ubuntu_archive")),
    Unattended(None, False, (), ()),
)
SETTINGS = Packages("dpkg", (replace(PACKAGE, name="nvidia-settings"),), Unattended(None, False, (), ()))
OWN = DkmsBuild("nvidia", "580.159.04", None, "added")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["none"]),
        ({"packages": WITH}, ["nvidia_repository"]),
        ({"packages": MIXED}, ["nvidia_repository", "ubuntu_archive"]),
        ({"packages": SETTINGS}, ["none"]),
        ({"packages": WITH, "dgx_release": True}, ["dgx_os"]),
        # DGX OS whose driver was removed.
        ({"dgx_release": True}, ["none"]),
        ({"uninstaller": True, "library": LIBRARY}, ["runfile"]),
        ({"installer_log": True, "library": LIBRARY}, ["runfile"]),
        # The log of an installation that packages followed.
        (
            {"installer_log": True, "library": LIBRARY, "library_package": PACKAGE.name, "packages": WITH},
            ["nvidia_repository"],
        ),
        ({"uninstaller": True, "packages": WITH}, ["runfile", "nvidia_repository"]),
        # The runfile's own --dkms.
        ({"uninstaller": True, "own_builds": (OWN,)}, ["runfile"]),
        ({"own_builds": (OWN,)}, ["dkms_source"]),
        ({"driver_container": True, "module": True}, ["container"]),
        ({"driver_container": True, "packages": WITH}, ["container", "nvidia_repository"]),
        ({"mounted": LIBRARY, "library": LIBRARY, "module": True}, ["container"]),
        ({"library": LIBRARY}, ["unknown"]),
        ({"module": True}, ["unknown"]),
    ],
)
def test_owners(changes: dict[str, t.Any], expected: list[str]) -> None:
    found = owners(replace(NOTHING, **changes))
    assert [owner.owner for owner in found] == expected
    assert all(owner.evidence for owner in found)
