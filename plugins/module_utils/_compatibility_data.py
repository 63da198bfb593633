# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""Which driver, CUDA and GPU go together: figures as of CHECKED, each with its source beside it.

docs/compatibility.md shows them to people, and a unit test holds the two equal. What the pinned engine is built for is not in
here but in roles/vllm_service/vars/main/versions.yml.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

# When the sources were read last.
CHECKED = "2026-11-30"

LONG_TERM = "long-term support"
PRODUCTION = "production"
FEATURE = "new feature"

OPEN_NEVER = "never"
OPEN_EITHER = "either"
OPEN_ONLY = "only"


@dataclass(frozen=True)
class CudaMajor:
    """A driver of this branch or any newer one runs what was built with any toolkit of this major version."""

    major: int
    driver_branch_minimum: int
    source: str


@dataclass(frozen=True)
class Branch:
    """A branch of data-center drivers."""

    number: int
    kind: str
    # Year and month; None where NVIDIA gives none.
    end_of_life: str | None
    source: str


@dataclass(frozen=True)
class Architecture:
    """A generation of GPUs, by the name that gpu_info gives it. None: no limit is known."""

    name: str
    # The lowest; up to the next generation's.
    compute_capability: str
    first_driver_branch: int | None
    last_driver_branch: int | None
    last_cuda_major: int | None
    # Which flavour of kernel modules drives it: open ones never, either, or only open ones.
    open_modules: str
    source: str


@dataclass(frozen=True)
class ForwardCompatibility:
    """A package of libraries that lets an older driver run a newer CUDA, on data-center GPUs."""

    cuda: str
    package: str
    # Where the engine looks for it when nothing else is said.
    folder: str
    # Whose libraries it holds: a driver that is newer than them refuses them.
    built_from_branch: int
    accepted_branches: tuple[int, ...]
    source: str


@dataclass(frozen=True)
class EngineRelease:
    """A release of the engine that is known to have a wheel for an older CUDA."""

    engine: str
    wheel: str
    cuda: str
    compute_capability_minimum: str
    source: str


_MINOR = "docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html, table 1"
_620 = "docs.nvidia.com/datacenter/tesla/drivers/620/supported-drivers-and-cuda-toolkit-versions.html, table 2"
_615 = "docs.nvidia.com/datacenter/tesla/drivers/615/supported-drivers-and-cuda-toolkit-versions.html, table 2"
# It has 580, of August 2025, and lacks 590, whose redistrib_590.48.01.json is of 2025-12-22.
_2025 = (
    "docs.nvidia.com/datacenter/tesla/drivers/supported-drivers-and-cuda-toolkit-versions.html of late 2025, table 2"
)
_MATRIX = "docs.nvidia.com/datacenter/tesla/drivers/cuda-toolkit-driver-and-architecture-matrix.html"
_OPEN = "docs.nvidia.com/datacenter/tesla/driver-installation-guide/kernel-modules.html: open modules from Turing on"
_OPEN_ONLY = (
    "developer.nvidia.com/blog/nvidia-transitions-fully-towards-open-source-gpu-kernel-modules: proprietary ones are"
    " unsupported on Blackwell"
)

CUDA_MAJORS: tuple[CudaMajor, ...] = (
    CudaMajor(11, 450, f"{_MINOR}: >= 450"),
    CudaMajor(12, 525, f"{_MINOR}: >= 525"),
    CudaMajor(13, 580, f"{_MINOR}: >= 580"),
)

BRANCHES: tuple[Branch, ...] = (
    Branch(535, LONG_TERM, "2026-06", _615),
    Branch(570, PRODUCTION, "2026-02", _2025),
    # The page of late 2025 said August 2028; the newer one counts.
    Branch(580, LONG_TERM, "2028-06", _620),
    Branch(590, FEATURE, None, "nvidia.com/en-us/drivers/unix.html: 590.48.01 is of the new feature branch"),
    Branch(595, PRODUCTION, "2027-03", _620),
    Branch(610, FEATURE, "2026-08", _615),
    Branch(615, FEATURE, None, f"{_620}: lists all long-term support and production branches, and 615 is not there"),
    Branch(620, LONG_TERM, "2029-09", _620),
)
# Whatever is older than this and not above had ended by then.
UNLISTED_ENDED_BELOW = 580
UNLISTED_ENDED_BY = "2025-12"
UNLISTED_SOURCE = f"{_2025}: all other previous branches, such as R575, R565, R560 and R550, are end of life"

ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture("kepler", "3.0", None, 470, 11, OPEN_NEVER, f"{_MATRIX}; {_OPEN}"),
    Architecture("maxwell", "5.0", None, 580, 12, OPEN_NEVER, f"{_MATRIX}; {_OPEN}"),
    Architecture("pascal", "6.0", None, 580, 12, OPEN_NEVER, f"{_MATRIX}; {_OPEN}"),
    Architecture("volta", "7.0", None, 580, 12, OPEN_NEVER, f"{_MATRIX}; {_OPEN}"),
    Architecture(
        "turing",
        "7.5",
        410,
        None,
        None,
        OPEN_EITHER,
        f"{_MATRIX}: first in CUDA 10.0, whose release notes ask for 410.48; {_OPEN}",
    ),
    Architecture(
        "ampere",
        "8.0",
        450,
        None,
        None,
        OPEN_EITHER,
        f"{_MATRIX}: first in CUDA 11.0, whose release notes ask for 450.36.06; {_OPEN}",
    ),
    Architecture(
        "ada",
        "8.9",
        520,
        None,
        None,
        OPEN_EITHER,
        f"{_MATRIX}: first in CUDA 11.8, whose installer carries 520.61.05; {_OPEN}",
    ),
    # Of Hopper, Grace Hopper takes the open modules alone; NVML does not tell the two apart by architecture.
    Architecture(
        "hopper",
        "9.0",
        520,
        None,
        None,
        OPEN_EITHER,
        f"{_MATRIX}: first in CUDA 11.8, whose installer carries 520.61.05; {_OPEN}",
    ),
    Architecture(
        "blackwell",
        "10.0",
        570,
        None,
        None,
        OPEN_ONLY,
        f"{_MATRIX}: first in CUDA 12.8, whose installer carries 570.86.10; {_OPEN_ONLY}",
    ),
)
# From here on nothing is known.
UNKNOWN_CAPABILITY = "13.0"

FORWARD_COMPATIBILITIES: tuple[ForwardCompatibility, ...] = (
    ForwardCompatibility(
        "13.0",
        "cuda-compat-13-0",
        "/usr/local/cuda-13.0/compat",
        580,
        (535, 550, 565, 570, 575),
        "docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html; branches: NVIDIA_REQUIRE_CUDA of NVIDIA's image"
        " nvidia/cuda:13.0.2-base-ubuntu22.04; folder: vllm/env_override.py of vLLM 0.33.0; libraries of 580:"
        " cuda-compat-13-0_580.173.02-1_amd64.deb",
    ),
)
# GPUs by NVML's brand. What is not in here may be accepted or not: NVIDIA says "select" RTX cards.
FORWARD_BRANDS: t.Mapping[str, bool] = {
    "tesla": True,
    "nvidia": True,
    "geforce": False,
    "geforce_rtx": False,
    "titan": False,
    "titan_rtx": False,
}
FORWARD_BRANDS_SOURCE = (
    "docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html: data-center GPUs and select RTX cards; brands:"
    " NVIDIA_REQUIRE_CUDA of nvidia/cuda:13.0.2-base-ubuntu22.04, which has tesla and nvidia, and neither geforce nor titan;"
    " NVML says nvidia of H200 (tests/nvml_sim/recordings) and of A100 (tests/nvml_sim/profiles)"
)
FORWARD_REFUSED_SOURCE = (
    "vllm/env_override.py of vLLM 0.33.0: GeForce gets error 803; github.com/NVIDIA-NeMo/labs-molt/pull/44: so does a driver of"
    " branch 595 that is given the libraries of 580"
)

ENGINE_RELEASES: tuple[EngineRelease, ...] = (
    EngineRelease(
        "0.31.0",
        "vllm-0.31.0+cu129",
        "12.9",
        "7.5",
        "github.com/vllm-project/vllm/releases/tag/v0.31.0 has vllm-0.31.0+cu129 wheels for x86_64 and aarch64; of later releases"
        " none was seen. Capability: docs/getting_started/installation/gpu.cuda.inc.md of vLLM",
    ),
)
