# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""Whether a GPU's PCIe link is what it should be. Pure: no NVML, no CUDA, no files, no Ansible.

What the readings mean, by nvml.h and the nvidia-smi manual ("GPU Link information"): the current generation may be
lower while the GPU is idle, so a low one proves nothing then; the width does not save power, so lanes that are missing
are missing. nvmlDeviceGetMaxPcieLinkGeneration is the most that GPU and slot can both do,
nvmlDeviceGetGpuMaxPcieLinkGeneration the most that the GPU can.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.baremetal.inference.plugins.module_utils._pci import PciLink

OK = "ok"
BELOW = "below"
UNPROVEN = "unproven"

# Gigatransfers per second and lane of each generation (PCI Express base specification).
_GENERATIONS: t.Mapping[float, int] = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


def generation_of(gt_per_s: float | None) -> int | None:
    return None if gt_per_s is None else _GENERATIONS.get(gt_per_s)


@dataclass(frozen=True)
class Reading:
    """One look at a link: what NVML says, and both its ends in sysfs."""

    generation: int | None
    width: int | None
    gpu: PciLink | None
    upstream_port: PciLink | None

    def best_generation(self) -> int | None:
        """NVML's; where it has none, sysfs's of either end."""
        if self.generation is not None:
            return self.generation
        for end in (self.gpu, self.upstream_port):
            generation = generation_of(end.current_speed_gt_per_s) if end else None
            if generation is not None:
                return generation
        return None

    def best_width(self) -> int | None:
        if self.width is not None:
            return self.width
        for end in (self.gpu, self.upstream_port):
            if end and end.current_width is not None:
                return end.current_width
        return None


@dataclass(frozen=True)
class Port:
    """One device on the way from the processor to the GPU."""

    pci_bus_id: str
    link: PciLink | None


@dataclass(frozen=True)
class Wanted:
    """What is asked for; None means as much as the GPU can, and for the others that it is not judged."""

    generation: int | None
    width: int | None
    host_to_device_gb_per_s: float | None
    device_to_host_gb_per_s: float | None
    replays: int | None


@dataclass(frozen=True)
class Link:
    """What was seen of one GPU's link. ``loaded`` is None when it was not put under load."""

    generation_gpu_max: int | None
    generation_max: int | None
    width_max: int | None
    idle: Reading
    loaded: Reading | None
    host_to_device_gb_per_s: float | None
    device_to_host_gb_per_s: float | None
    # How much the replay counter rose while there was load.
    replays: int | None
    # The nearest to the GPU first.
    path: tuple[Port, ...]


@dataclass(frozen=True)
class Problem:
    """One thing that stands against a link. ``fix`` is empty where another problem of the link explains this one."""

    check: str
    verdict: str
    observed: str
    expected: str
    fix: str


@dataclass(frozen=True)
class Judgement:
    verdict: str
    expected_generation: int | None
    expected_width: int | None
    problems: tuple[Problem, ...]


_RETRAIN = (
    "Reseat the GPU; check its riser, cable or retimer; look for AER lines in the kernel log (journalctl -k -g AER); see"
    " that the firmware setup leaves the slot's link speed at automatic."
)
_SLOT = (
    "The slot holds the link back, not the GPU: set its link speed to automatic in the firmware setup, and check that"
    " board, processor, riser and retimer can do this generation. If they cannot, ask for what they can."
)
_LANES = (
    "Lanes are missing also without load, since width saves no power: reseat the GPU, clean and look at its contacts,"
    " check riser or cable, the bifurcation setting of the firmware, and how many lanes the slot is wired with."
)
_MEASURE = "Run again with measure: load, which wakes the link up before it is read."


def expected_generation(link: Link, wanted: Wanted) -> int | None:
    """The number behind "max": what the GPU alone can do, so that a slow slot is noticed."""
    if wanted.generation is not None:
        return wanted.generation
    if link.generation_gpu_max is not None:
        return link.generation_gpu_max
    own = generation_of(link.idle.gpu.max_speed_gt_per_s) if link.idle.gpu else None
    return own if own is not None else link.generation_max


def expected_width(link: Link, wanted: Wanted) -> int | None:
    """The number behind "max": the GPU's own end, where sysfs shows it; NVML's is the least of GPU and slot."""
    if wanted.width is not None:
        return wanted.width
    own = link.idle.gpu.max_width if link.idle.gpu else None
    return own if own is not None else link.width_max


def judge(link: Link, wanted: Wanted) -> Judgement:
    """Verdict of one link: the worst of its problems'. ``below`` is a fault; ``unproven`` is one not ruled out."""
    generation, width = expected_generation(link, wanted), expected_width(link, wanted)
    problems = [*_judge_generation(link, generation), *_judge_width(link, width)]
    # A link that is slow or narrow explains the rest.
    problems += _judge_load(link, wanted, any(problem.verdict == BELOW for problem in problems))
    verdicts = {problem.verdict for problem in problems}
    verdict = BELOW if BELOW in verdicts else UNPROVEN if UNPROVEN in verdicts else OK
    return Judgement(verdict, generation, width, tuple(problems))


def _judge_generation(link: Link, expected: int | None) -> t.Iterator[Problem]:
    seen = (link.loaded or link.idle).best_generation()
    when = "under load" if link.loaded else "idle"
    if expected is None or seen is None:
        missing = "what the GPU can do" if expected is None else f"the link {when}"
        yield Problem(
            "generation",
            UNPROVEN,
            f"neither NVML nor sysfs says the PCIe generation of {missing}",
            "a readable link" if expected is None else f"generation {expected}",
            "Name the generation that is wanted."
            if expected is None
            else "Look at it from the host, not from a guest.",
        )
        return
    wanted = f"generation {expected}"
    if link.generation_gpu_max is not None and link.generation_gpu_max < expected:
        yield Problem(
            "generation",
            BELOW,
            f"the GPU can do PCIe generation {link.generation_gpu_max}",
            wanted,
            f"This kind of GPU can do no more: ask for generation {link.generation_gpu_max} or max.",
        )
    elif seen >= expected:
        return
    elif _slot_generation(link) is not None and t.cast(int, _slot_generation(link)) < expected:
        yield Problem("generation", BELOW, f"the slot can do PCIe generation {_slot_generation(link)}", wanted, _SLOT)
    elif link.loaded:
        yield Problem("generation", BELOW, f"PCIe generation {seen} under load", wanted, _RETRAIN)
    else:
        # Saving power looks the same as a bad link.
        yield Problem("generation", UNPROVEN, f"PCIe generation {seen} while idle", wanted, _MEASURE)


def _slot_generation(link: Link) -> int | None:
    """What the slot can do: NVML knows the least of both ends; the port above says its own."""
    port = generation_of(link.idle.upstream_port.max_speed_gt_per_s) if link.idle.upstream_port else None
    known = [generation for generation in (link.generation_max, port) if generation is not None]
    return min(known) if known else None


def _judge_width(link: Link, expected: int | None) -> t.Iterator[Problem]:
    reading = link.loaded or link.idle
    seen = reading.best_width()
    if expected is None or seen is None:
        yield Problem(
            "width",
            UNPROVEN,
            "neither NVML nor sysfs says the width of the link",
            "a readable link" if expected is None else f"x{expected}",
            "Look at it from the host, not from a guest.",
        )
        return
    own = link.idle.gpu.max_width if link.idle.gpu else None
    if seen >= expected:
        return
    fix = f"This GPU has no more than {own} lanes: ask for width {own} or max." if own and own < expected else _LANES
    yield Problem("width", BELOW, f"x{seen} {'under load' if link.loaded else 'while idle'}", f"x{expected}", fix)


def _judge_load(link: Link, wanted: Wanted, link_is_bad: bool) -> t.Iterator[Problem]:
    directions = (
        ("host_to_device", "from host to GPU", link.host_to_device_gb_per_s, wanted.host_to_device_gb_per_s),
        ("device_to_host", "from GPU to host", link.device_to_host_gb_per_s, wanted.device_to_host_gb_per_s),
    )
    fix = "" if link_is_bad else _bandwidth_fix(link)
    for check, words, seen, least in directions:
        if seen is not None and least is not None and seen < least:
            yield Problem(check, BELOW, f"{seen:g} GB/s {words}", f"at least {least:g} GB/s", fix)
            # It is the same for both directions, and said once.
            fix = ""
    if link.replays is not None and wanted.replays is not None and link.replays > wanted.replays:
        yield Problem(
            "replays",
            BELOW,
            f"{link.replays} packets sent again under load",
            f"at most {wanted.replays}",
            "The signal is bad: reseat the GPU, and check its riser, cable or retimer.",
        )


def _bandwidth_fix(link: Link) -> str:
    slow = slow_ports(link.path[1:])
    if slow:
        return f"A link further up is slower than it can be: {'; '.join(slow)}. {_RETRAIN}"
    return (
        "The link itself reads as it should, so look beyond it: stop whatever else uses this GPU or the switch above it,"
        " see that the memory of the GPU's own NUMA node is populated and free, and that the IOMMU does not translate"
        " (iommu=pt)."
    )


def slow_ports(path: t.Iterable[Port]) -> list[str]:
    """Those that run below what they can, in words."""
    found = []
    for port in path:
        link = port.link
        if link is None:
            continue
        slower = (link.current_speed_gt_per_s or 0) < (link.max_speed_gt_per_s or 0) and link.current_speed_gt_per_s
        narrower = (link.current_width or 0) < (link.max_width or 0) and link.current_width
        if slower or narrower:
            found.append(
                f"{port.pci_bus_id} runs at {_speed(link.current_speed_gt_per_s)} x{link.current_width} and can do"
                f" {_speed(link.max_speed_gt_per_s)} x{link.max_width}"
            )
    return found


def _speed(gt_per_s: float | None) -> str:
    return "an unknown speed" if gt_per_s is None else f"{gt_per_s:g} GT/s"
