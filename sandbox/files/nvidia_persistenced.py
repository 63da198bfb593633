# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A simulated nvidia-persistenced: what the daemon does to the GPUs, done to simulated ones (tests/nvml_sim).

As NVIDIA's (github.com/NVIDIA/nvidia-persistenced) it forks, answers its parent when it is ready, writes
/run/nvidia-persistenced/nvidia-persistenced.pid, holds the device files of all GPUs open, has persistence mode on while
it runs, unless it is told --no-persistence-mode, and switches it off when it ends. Where it was the last to hold the
devices, the driver then lets go of the GPUs, and they forget what was set. It has no socket: simulated NVML sets
persistence mode itself.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import signal
import subprocess
import sys
import syslog
import typing as t
from pathlib import Path

RUNTIME = Path("/run/nvidia-persistenced")
PID_FILE = RUNTIME / "nvidia-persistenced.pid"
TOOL = Path("/opt/nvml-sim/nvml-sim")
STATE = Path("/var/lib/nvml-sim")


class Failure(Exception):
    pass


class Driver:
    """The GPUs, through NVML."""

    def __init__(self) -> None:
        self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self.call("nvmlInit_v2")
        count = ctypes.c_uint()
        self.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        self.gpus: list[ctypes.c_void_p] = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            try:
                self.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
            except Failure as failure:
                syslog.syslog(syslog.LOG_ERR, f"GPU {index}: failed to open: {failure}")
                continue
            self.gpus.append(handle)
        if not self.gpus:
            raise Failure("Unable to find any NVIDIA devices")

    def call(self, name: str, *arguments: t.Any) -> None:
        code = getattr(self.nvml, name)(*arguments)
        if code:
            raise Failure(f"{name}: NVML error {code}")

    def device_files(self) -> list[str]:
        files = ["/dev/nvidiactl"]
        for gpu in self.gpus:
            minor = ctypes.c_uint()
            self.call("nvmlDeviceGetMinorNumber", gpu, ctypes.byref(minor))
            files.append(f"/dev/nvidia{minor.value}")
        return files

    def persistence_mode(self, mode: bool) -> None:
        for number, gpu in enumerate(self.gpus):
            try:
                self.call("nvmlDeviceSetPersistenceMode", gpu, ctypes.c_uint(mode))
            except Failure as failure:
                # NVIDIA's goes on with the other devices too.
                syslog.syslog(syslog.LOG_ERR, f"GPU {number}: {failure}")


def held_by_others() -> bool:
    """Whether another process has a device file of a GPU open."""
    for process in Path("/proc").glob("[0-9]*"):
        if process.name == str(os.getpid()):
            continue
        try:
            targets = [os.readlink(link) for link in (process / "fd").iterdir()]
        except OSError:
            # It has ended, or one of its files was closed, while we looked.
            continue
        if any(re.fullmatch(r"/dev/nvidia\d+", target) for target in targets):
            return True
    return False


def serve(ready: int, persistence_mode: bool) -> None:
    os.setsid()
    os.chdir("/")
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    driver = Driver()
    for path in driver.device_files():
        os.open(path, os.O_RDWR | os.O_CLOEXEC)
    if persistence_mode:
        driver.persistence_mode(True)
    RUNTIME.mkdir(exist_ok=True)
    PID_FILE.write_text(f"{os.getpid()}\n")
    syslog.syslog(syslog.LOG_NOTICE, f"Started ({os.getpid()})")
    os.write(ready, b"\1")
    os.close(ready)
    signal.sigwait(signals)
    driver.persistence_mode(False)
    if not held_by_others():
        subprocess.run([TOOL, "driver-reload", STATE], check=True)
    PID_FILE.unlink()
    syslog.syslog(syslog.LOG_NOTICE, f"Shutdown ({os.getpid()})")


def main() -> int:
    parser = argparse.ArgumentParser(prog="nvidia-persistenced", description=__doc__)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--persistence-mode", action=argparse.BooleanOptionalAction, default=True)
    arguments = parser.parse_args()
    syslog.openlog("nvidia-persistenced", facility=syslog.LOG_DAEMON)
    read_end, write_end = os.pipe()
    if os.fork():
        os.close(write_end)
        if os.read(read_end, 1) == b"\1":
            return 0
        print("nvidia-persistenced failed to initialize. Check syslog for more details.", file=sys.stderr)
        return 1
    os.close(read_end)
    try:
        serve(write_end, arguments.persistence_mode)
    except (Failure, OSError) as failure:
        syslog.syslog(syslog.LOG_ERR, str(failure))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
