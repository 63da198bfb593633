# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An Ubuntu host with NVIDIA's driver from NVIDIA's repository, in files and programs, for tests to break.

The programs print files that lie beside them, so a test changes what they say by writing a file.
"""

from __future__ import annotations

import typing as t
from pathlib import Path

from tests.unit.preflight_tree import DRIVER, Tree

KERNEL = "6.8.0-60-generic"
NEWER_KERNEL = "6.8.0-100-generic"
SIGNER = "dgx-a100-1 Secure Boot Module Signature key"
LIBRARY_FOLDER = "usr/lib/x86_64-linux-gnu"
REPOSITORY = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64  Packages"
UBUNTU_SECURITY = "http://security.ubuntu.com/ubuntu noble-security/restricted amd64 Packages"
NVIDIA_MAINTAINER = "NVIDIA CORPORATION <cudatools@nvidia.com>"
UBUNTU_MAINTAINER = "Ubuntu Core Developers <ubuntu-devel-discuss@lists.ubuntu.com>"
PACKAGES = (
    "libnvidia-cfg1-580",
    "libnvidia-compute-580",
    "nvidia-compute-utils-580",
    "nvidia-dkms-580-open",
    "nvidia-kernel-common-580",
    "nvidia-utils-580",
)
SOURCES = f"""Package files:
 100 /var/lib/dpkg/status
     release a=now
 600 {REPOSITORY}
     release o=NVIDIA,l=NVIDIA CUDA,c=
     origin developer.download.nvidia.com
 500 {UBUNTU_SECURITY}
     release v=24.04,o=Ubuntu,a=noble-security,n=noble,l=Ubuntu,c=restricted,b=amd64
     origin security.ubuntu.com
Pinned packages:
"""
APT_CONFIG = """APT "";
APT::Periodic "";
APT::Periodic::Update-Package-Lists "1";
APT::Periodic::Unattended-Upgrade "1";
Unattended-Upgrade "";
Unattended-Upgrade::Allowed-Origins "";
Unattended-Upgrade::Allowed-Origins:: "${distro_id}:${distro_codename}";
Unattended-Upgrade::Allowed-Origins:: "${distro_id}:${distro_codename}-security";
"""


def policy(name: str, version: str, source: str, *, candidate: str | None = None, priority: int = 600) -> str:
    newer = f"     {candidate} {priority}\n        {priority} {source}\n" if candidate else ""
    return (
        f"{name}:\n  Installed: {version}\n  Candidate: {candidate or version}\n  Version table:\n{newer}"
        f" *** {version} {priority}\n        {priority} {source}\n        100 /var/lib/dpkg/status\n"
    )


class DriverTree(Tree):
    """With ``root``, the folder that stands for "/"."""

    def __init__(self, folder: Path, sysfs: Path) -> None:
        super().__init__(folder, sysfs)
        self.root = folder / "root"
        self.said = folder / "said"
        self.said.mkdir()
        self.write(self.proc / "sys" / "kernel" / "osrelease", KERNEL)
        self.write(self.proc / "cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/md0 ro quiet")
        self.write(
            self.root / "etc" / "os-release", 'ID=ubuntu\nVERSION_CODENAME="noble"\nPRETTY_NAME="Ubuntu 24.04.2 LTS"'
        )
        self.write(self.root / "var" / "lib" / "dpkg" / "status", "")
        self.write(self.root / "usr" / "bin" / "unattended-upgrade", "")
        self.write(
            self.root / "usr" / "lib" / "modprobe.d" / "nvidia-graphics-drivers.conf",
            "blacklist nouveau\nblacklist nvidiafb",
        )
        self.kernel(KERNEL)
        self.library(DRIVER)
        self._programs()
        self.packages(dict.fromkeys(PACKAGES, f"{DRIVER}-0ubuntu1"))
        self.say("dkms", f"nvidia/{DRIVER}, {KERNEL}, x86_64: installed\nnvidia-fs/2.26.6, {KERNEL}, x86_64: installed")
        self.say("sources", SOURCES)
        self.say("apt-config", APT_CONFIG)
        self.unit("nvidia-fabricmanager.service")
        self.unit("nvidia-persistenced.service")

    def root_options(self) -> dict[str, t.Any]:
        return {"sysfs_root": str(self.sysfs), "proc_root": str(self.proc), "root": str(self.root)}

    def say(self, name: str, text: str) -> None:
        self.write(self.said / name, text.rstrip("\n"))

    def kernel(self, release: str, *, headers: bool = True) -> None:
        self.write(self.root / "boot" / f"vmlinuz-{release}", "")
        self.write(self.root / "lib" / "modules" / release / "modules.dep", "kernel/fs/fat/fat.ko.zst:")
        if headers:
            self.write(self.root / "usr" / "src" / f"linux-headers-{release}" / "Makefile", "")
            (self.root / "lib" / "modules" / release / "build").symlink_to(f"/usr/src/linux-headers-{release}")

    def module(
        self, release: str, version: str = DRIVER, *, signer: str | None = SIGNER, licence: str = "Dual MIT/GPL"
    ) -> Path:
        """The file of the module holds what modinfo prints of it."""
        inside = "updates/dkms/nvidia.ko.zst"
        index = self.root / "lib" / "modules" / release / "modules.dep"
        lines = [line for line in index.read_text().splitlines() if inside not in line]
        self.write(index, "\n".join([*lines, f"{inside}:", "updates/dkms/nvidia-uvm.ko.zst: " + inside]))
        text = f"filename:       {inside}\nversion:        {version}\nlicense:        {licence}\nname:           nvidia"
        signature = f"\nsig_id:         PKCS#7\nsigner:         {signer}\nsig_hashalgo:   sha512" if signer else ""
        return self.write(index.parent / inside, text + signature)

    def library(self, version: str) -> None:
        folder = self.root / LIBRARY_FOLDER
        for path in folder.glob("libnvidia-ml.so*"):
            path.unlink()
        self.write(folder / f"libnvidia-ml.so.{version}", "")
        (folder / "libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{version}")

    def packages(
        self,
        versions: t.Mapping[str, str],
        *,
        hold: bool = True,
        source: str = REPOSITORY,
        candidate: str | None = None,
        maintainer: str = NVIDIA_MAINTAINER,
    ) -> None:
        want = "hold" if hold else "install"
        rows = [f"{want}\tinstalled\t{name}\t{version}\tamd64\t{maintainer}" for name, version in versions.items()]
        rows += ["deinstall\tconfig-files\tnvidia-compute-utils-535\t535.183.01-0ubuntu1\tamd64\tx"]
        rows += ["install\tinstalled\tnvidia-container-toolkit\t1.18.0-1\tamd64\tx"]
        self.say("dpkg", "\n".join(rows))
        self.say(
            "policy", "".join(policy(name, version, source, candidate=candidate) for name, version in versions.items())
        )

    def unit(self, name: str, load: str = "loaded", active: str = "active", file: str = "enabled") -> None:
        self.say(name, f"LoadState={load}\nActiveState={active}\nUnitFileState={file}")

    def secure_boot(self, trusted: t.Sequence[str]) -> None:
        self.write(
            self.sysfs / "firmware" / "efi" / "efivars" / "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c",
            b"\x06\0\0\0\1",
        )
        self.write(self.sysfs / "kernel" / "security" / "lockdown", "none [integrity] confidentiality")
        self.write(
            self.proc / "keys",
            "\n".join(
                f"0{number}2b1c3d I------     1 perm 1f030000     0     0 asymmetri {name}:"
                " 88f752e560a1e0737e31163a466ad7b70a850c19: X509.rsa 6ad7b70a850c19 []"
                for number, name in enumerate(trusted, 1)
            ),
        )

    def _programs(self) -> None:
        said = self.said
        self.program("modinfo", 'cat "$1"')
        self.program("dkms", f"cat {said}/dkms")
        self.program("nvidia-smi", f"echo 'NVIDIA System Management Interface -- v{DRIVER}'; echo")
        self.program("nv-fabricmanager", f"echo 'Fabric Manager version is : {DRIVER}'")
        self.program("systemctl", f'for unit; do :; done; cat "{said}/$unit" 2>/dev/null || echo LoadState=not-found')
        self.program("apt-cache", f"if [ $# -gt 1 ]; then cat {said}/policy; else cat {said}/sources; fi")
        self.program("apt-config", f"cat {said}/apt-config")
        self.say(
            "enrolled",
            f"[key 1]\nSHA1 Fingerprint: 76:00\nCertificate:\n    Data:\n        Issuer: CN={SIGNER}\n"
            f"        Subject: CN={SIGNER}",
        )
        self.program(
            "mokutil", f"case $1 in --list-enrolled) cat {said}/enrolled;; *) echo 'MokNew is empty'; exit 1;; esac"
        )
        # The library belongs to a package, and so do DKMS's sources, unless a file says that they do not.
        self.program(
            "dpkg-query",
            f"case $1 in --show) cat {said}/dpkg;; --search) if [ -e {said}/unowned ]; then exit 1; fi;"
            ' echo "libnvidia-compute-580:amd64: $2";; esac',
        )
