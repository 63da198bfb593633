# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run both playbooks in turn on the same simulated DGX A100; print a table, and one JSON object as the last line."""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import typing as t
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
SIM = ROOT / "tests" / "nvml_sim"
PROFILE, GPUS, WATTS = "dgx-a100-80gb", 8, 320
SIDES = ("modules", "shell")
_RECAP = re.compile(r"ok=(\d+)\s+changed=(\d+)\s+unreachable=0\s+failed=0\s")


@dataclass(frozen=True)
class Measured:
    seconds: float
    processes: int
    tasks: int
    items: int
    changed: int


def processes_started() -> int:
    """How many processes and threads this machine has started since its boot (proc(5), /proc/stat)."""
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        if line.startswith("processes "):
            return int(line.split()[1])
    raise SystemExit("run: /proc/stat has no line 'processes'")


def measure(side: str, environment: t.Mapping[str, str], state: Path, gpus: int) -> Measured:
    command = [
        str(Path(sys.executable).parent / "ansible-playbook"),
        str(HERE / f"{side}.yml"),
        "-e",
        json.dumps(
            {
                "state": str(state),
                "gpus": gpus,
                "watts": WATTS,
                "ansible_connection": "local",
                "ansible_python_interpreter": sys.executable,
            }
        ),
    ]
    before = processes_started()
    start = time.monotonic()
    done = subprocess.run(command, env=dict(environment), cwd=ROOT, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - start
    processes = processes_started() - before
    recap = _RECAP.search(done.stdout)
    if done.returncode != 0 or recap is None:
        raise SystemExit(f"run: {' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return Measured(
        seconds=seconds,
        processes=processes,
        tasks=int(recap.group(1)),
        items=len(re.findall(r"^(?:ok|changed): ", done.stdout, re.MULTILINE)),
        changed=int(recap.group(2)),
    )


def compare(rounds: int, gpus: int) -> dict[str, list[Measured]]:
    results: dict[str, list[Measured]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        subprocess.run([SIM / "nvml-sim", "create", "--profile", PROFILE, "--gpus", str(gpus), state], check=True)
        subprocess.run([SIM / "nvml-sim", "set", state, "system/allow_users", "1"], check=True)
        inventory = Path(folder) / "hosts.yml"
        inventory.write_text("gpu_nodes: {hosts: {sim: {}}}\n", encoding="utf-8")
        environment = {
            **os.environ,
            "PATH": f"{SIM / 'build'}:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": str(SIM / "build"),
            "NVML_SIM_STATE": str(state),
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_INVENTORY": str(inventory),
            "ANSIBLE_NOCOLOR": "1",
        }
        # The first run of each fills caches and sets what has to be set; what is measured is asserting what is so.
        for count in range(rounds + 1):
            for side in SIDES:
                measured = measure(side, environment, state, gpus)
                if count:
                    results[side].append(measured)
                    print(f"round {count}: {side:8} {measured.seconds:6.2f} s", file=sys.stderr)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests/benchmarks/gpu_state/run", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often each side is measured (default: 5)")
    parser.add_argument("--gpus", type=int, default=GPUS, help=f"how many GPUs the machine has (default: {GPUS})")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds: {options.rounds} must be 1 or more")
    if not 1 <= options.gpus <= GPUS:
        parser.error(f"--gpus: {options.gpus} must be from 1 to {GPUS}")
    results = compare(options.rounds, options.gpus)
    print(
        f"Asserting the state of {options.gpus} GPUs, median of {options.rounds} (whole ansible-playbook run, local connection)\n"
    )
    print(f"{'':10}{'seconds':>10}{'spread':>16}{'tasks':>8}{'module runs':>14}{'processes':>12}{'changed':>10}")
    table = {}
    for side in SIDES:
        runs = results[side]
        seconds = [run.seconds for run in runs]
        table[side] = {
            "seconds": round(statistics.median(seconds), 3),
            "tasks": runs[0].tasks,
            "module_runs": runs[0].items,
            # Others start processes too: the fewest is nearest to the truth.
            "processes": min(run.processes for run in runs),
            "changed": runs[0].changed,
        }
        row = table[side]
        print(
            f"{side:10}{row['seconds']:10.2f}{f'{min(seconds):.2f} - {max(seconds):.2f}':>16}{row['tasks']:8}"
            f"{row['module_runs']:14}{row['processes']:12}{row['changed']:10}"
        )
    ratios = [shell.seconds / ours.seconds for ours, shell in zip(results["modules"], results["shell"], strict=True)]
    print()
    print(
        json.dumps(
            {
                "name": "gpu_state",
                "ratio": round(statistics.median(ratios), 2),
                "peer": "ansible.builtin.shell with nvidia-smi, one command per setting per GPU (simulated nvidia-smi)",
                "peer_version": f"ansible-core {version('ansible-core')}",
                "runs": options.rounds,
                "gpus": options.gpus,
                **table,
            }
        )
    )


if __name__ == "__main__":
    main()
