# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each benchmark runs and says what it must. How long anything takes is not judged here."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent


def test_every_benchmark_is_described() -> None:
    described = (HERE / "README.md").read_text(encoding="utf-8")
    for script in HERE.glob("*/run"):
        assert f"| `{script.parent.name}` |" in described


def test_gpu_state() -> None:
    done = subprocess.run(
        [HERE / "gpu_state" / "run", "--rounds", "1", "--gpus", "1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["name"] == "gpu_state" and result["ratio"] > 0 and result["runs"] == 1
    assert result["modules"]["tasks"] == 5 and result["modules"]["changed"] == 0, "the state was there already"
    assert result["shell"]["module_runs"] == 8 * result["gpus"]
