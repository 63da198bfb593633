# Copyright: (c) 2026, the baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the sandbox keeps what is slow to get, and which of the engine's wheels this machine has at hand.

As a program it collects the wheels and prints their folder. tests/engine/prepare and Molecule call it so.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ENGINE_LOCK = Path(__file__).resolve().parents[1] / "roles" / "vllm_service" / "files" / "requirements" / "cpu.txt"


def cache_folder() -> Path:
    """Where everything that is slow to get is kept, outside the clone. inventories/sandbox computes the same path."""
    given = os.environ.get("BAREMETAL_INFERENCE_CACHE")
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "baremetal-inference"


def collect_wheels() -> Path:
    """Copy those wheels of pip's local folders that the engine's lock names into the cache; return the cache's folder.

    A machine can be configured to take some packages from a folder (pip's `find-links`) instead of its index; the
    host that the engine is installed on does not see that folder.
    """
    wheels = cache_folder() / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    listed = ""
    if importlib.util.find_spec("pip"):
        command = [sys.executable, "-m", "pip", "config", "list"]
        listed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    configured = re.findall(r"find-links='([^']*)'", listed) + [os.environ.get("PIP_FIND_LINKS", "")]
    folders = {Path(item) for value in configured for item in value.split() if "://" not in item}
    pinned = {
        (re.sub(r"[-_.]+", "_", name).lower(), version)
        for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", ENGINE_LOCK.read_text(), re.MULTILINE)
    }
    for folder in sorted(folders):
        for wheel in sorted(folder.glob("*.whl")):
            name, version = wheel.name.split("-")[:2]
            target = wheels / wheel.name
            known = (re.sub(r"[-_.]+", "_", name).lower(), version) in pinned
            if known and not (target.exists() and target.stat().st_size == wheel.stat().st_size):
                print(f"Taking {wheel.name} from {folder}", file=sys.stderr, flush=True)
                partial = target.with_suffix(".partial")
                shutil.copyfile(wheel, partial)
                partial.rename(target)
    return wheels


if __name__ == "__main__":
    print(collect_wheels())
