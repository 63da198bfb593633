# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""What an Xid number means: the driver's own name for what went wrong on a GPU, written to the kernel log.

Numbers, names and what to do at once are those of NVIDIA's catalogue for Ampere and newer
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, release of October 2025; the column "Resolution
Bucket (Immediate Action)" is ``bucket`` here). What a row-remapping failure and a pending one mean is in
https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/. Numbers that the catalogue calls unused are left out.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

CATALOGUE = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"

# What the event asks for, and how grave that is in the boot in which it happened.
IGNORE = "ignore"
RESTART_APP = "restart_app"
WATCH = "watch"
NVLINK = "nvlink"
RESET_GPU = "reset_gpu"
REBOOT = "reboot"
SERVICE = "service"
RECOVERY = "recovery"

SEVERITY: t.Mapping[str, str] = {
    IGNORE: "info",
    # Most often a fault of the program. One program's fault is no fault of the host.
    RESTART_APP: "info",
    WATCH: "warn",
    NVLINK: "warn",
    RESET_GPU: "fail",
    REBOOT: "fail",
    SERVICE: "fail",
    # Xid 154 says itself what is to be done.
    RECOVERY: "fail",
}
_ACTION: t.Mapping[str, str] = {
    IGNORE: "Leave it; look at the other events of the same time.",
    RESTART_APP: (
        "Restart the program; when different programs meet it on this GPU, drain the host and run 'dcgmi diag -r 3'."
    ),
    WATCH: "Watch this GPU; when it happens again, drain the host, run 'dcgmi diag -r 3' and call the vendor's support.",
    NVLINK: (
        "Look at the NVLink checks of this report; when a link is down or errors rise, stop what uses the GPUs, reset"
        " them or reboot, and when it comes back, have the GPU or baseboard checked."
    ),
    RESET_GPU: (
        "Drain the host, stop what uses the GPU and run 'nvidia-smi --gpu-reset -i {gpu}', or reboot; when it comes"
        " back, call the vendor's support."
    ),
    REBOOT: (
        "Drain and reboot the host (power-cycle it when the GPU stays away); when it comes back, have the GPU, its"
        " slot or riser and its power supply checked."
    ),
    SERVICE: "Drain the host and have the GPU checked by the vendor's support.",
    RECOVERY: "Do what the driver asks for: {action}.",
}


@dataclass(frozen=True)
class Xid:
    number: int
    meaning: str
    bucket: str

    def action(self, gpu: str, recovery: str = "") -> str:
        return _ACTION[self.bucket].format(gpu=gpu, action=recovery or "look at Xid 154 in the kernel log")


def _catalogue(*entries: tuple[str, str, t.Iterable[int]]) -> t.Mapping[int, Xid]:
    return {number: Xid(number, meaning, bucket) for bucket, meaning, numbers in entries for number in numbers}


XIDS: t.Mapping[int, Xid] = _catalogue(
    (RESTART_APP, "the GPU stopped processing", (8,)),
    (RESTART_APP, "invalid or corrupted commands were sent to the GPU", (11, 25, 32, 80)),
    (RESTART_APP, "exception in the graphics engine, most often an error of the program", (13,)),
    (RESTART_APP, "page fault in GPU memory, most often an error of the program", (31,)),
    (IGNORE, "error in the driver's firmware", (37, 38)),
    (RESTART_APP, "exception in a copy engine", (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136))),
    (IGNORE, "a channel of a program was stopped", (43,)),
    (IGNORE, "fault of the graphics engine in a context switch", (44,)),
    (IGNORE, "clean-up after another event, or a program that was killed", (45,)),
    (RESET_GPU, "the GPU stopped processing and did not recover", (46,)),
    (RESET_GPU, "uncorrectable (double bit) memory error", (48,)),
    (SERVICE, "auxiliary power is not connected to the board: check its power cables", (54,)),
    (RESTART_APP, "exception in a video engine", (60, 68, 82, 83, 84, 86, 88, 89, *range(96, 106), 139)),
    (RESET_GPU, "an internal microcontroller halted", (62,)),
    # How many rows there are, and whether one waits or failed, NVML says.
    (IGNORE, "a row of memory is marked to be replaced by a spare one", (63,)),
    (SERVICE, "a row of memory could not be replaced: the GPU's self-repair is exhausted", (64,)),
    (IGNORE, "illegal access by the driver", (66, 67)),
    (RESTART_APP, "class error in the graphics engine", (69,)),
    (NVLINK, "NVLink error", (74,)),
    (WATCH, "a vGPU did not start: driver of host and guest do not fit", (78,)),
    (REBOOT, "the GPU has fallen off the bus", (79,)),
    (WATCH, "high rate of corrected memory errors", (92,)),
    (IGNORE, "the infoROM is written too often", (93,)),
    (WATCH, "uncorrectable memory error that was contained: one program was stopped", (94,)),
    (RESET_GPU, "uncorrectable memory error that was not contained: all programs of the GPU are in doubt", (95,)),
    (IGNORE, "test message", (106, 107)),
    (RESET_GPU, "a context switch timed out", (109,)),
    (RESET_GPU, "security fault", (110,)),
    (RESET_GPU, "the GPU's system processor (GSP) did not answer in time", (119,)),
    (RESET_GPU, "error of the GPU's system processor (GSP)", (120,)),
    (IGNORE, "error of the link to the processor (C2C)", (121,)),
    (RESET_GPU, "an NVLink could not be trained", (136,)),
    (IGNORE, "an NVLink peer refused an access; follow the events of the other GPU", (108, 137)),
    (RESET_GPU, "unrecovered memory error", (140,)),
    (IGNORE, "error of the fast path of CUDA", (141,)),
    (SERVICE, "error of a video encoder", (142,)),
    (RESET_GPU, "the GPU could not be initialised", (143,)),
    (NVLINK, "NVLink error", range(144, 151)),
    (RESTART_APP, "error in changing keys", (151,)),
    (IGNORE, "error of the deep learning accelerator", (152, 153)),
    (RECOVERY, "the driver says what recovers the GPU", (154,)),
    (RESET_GPU, "NVLink error found by software", (155,)),
    (RESET_GPU, "a part of the GPU was retired", (156,)),
    (SERVICE, "a part of the GPU could not be retired", (157,)),
    (RESET_GPU, "fatal timeout of the GPU", (158,)),
    (WATCH, "error on the way to the processor's memory", (159,)),
    (IGNORE, "a channel of memory was retired", (160,)),
    (WATCH, "a channel of memory could not be retired", (161,)),
    (IGNORE, "power smoothing was switched", (162, 163)),
    (WATCH, "power smoothing hardware is near the end of its life", (164, 165)),
    (IGNORE, "more about the memory error of the same time (Xid 48)", (171, 172)),
)
