# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""States for tests, and the library over them, asked through the unmodified pynvml."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import typing as t
from pathlib import Path

from tests.nvml_sim import nvml_sim

HERE = Path(__file__).resolve().parent
TOOL = HERE / "nvml_sim.py"

Call = t.Sequence[t.Any]
Answer = dict[str, t.Any]


class Simulation:
    """One state directory and the library over it."""

    def __init__(self, library: Path, directory: Path) -> None:
        self.library = library
        self.directory = directory

    def environment(self) -> dict[str, str]:
        return {**os.environ, "LD_LIBRARY_PATH": str(self.library), "NVML_SIM_STATE": str(self.directory)}

    def python(self, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            input=text,
            env={**self.environment(), "PYTHONPATH": str(HERE.parents[1])},
            capture_output=True,
            text=True,
            check=False,
        )

    def ask(self, *calls: Call, init: bool = True) -> list[Answer]:
        """Answers to the calls, in one session of NVML unless ``init`` is false."""
        wanted = [["nvmlInit"], *calls] if init else list(calls)
        done = self.python(str(HERE / "ask.py"), text=json.dumps(wanted))
        assert done.returncode == 0, done.stderr
        answers: list[Answer] = json.loads(done.stdout)
        if init:
            assert answers[0] == {"ok": None}, answers[0]
            answers = answers[1:]
        return answers

    def one(self, *call: t.Any) -> t.Any:
        """The result of one call that must succeed."""
        (answer,) = self.ask(call)
        assert "ok" in answer, answer
        return answer["ok"]

    def set(self, key: str, value: object) -> None:
        self.command("set", key, str(value))

    def command(self, name: str, *arguments: str, code: int = 0) -> str:
        """A command of nvml-sim on this state, in this process: what it printed, or its complaint."""
        output, complaint = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(complaint):
            returned = nvml_sim.main([name, str(self.directory), *arguments])
        assert returned == code, complaint.getvalue()
        return complaint.getvalue() if code else output.getvalue()

    def smi(self, *arguments: str, code: int = 0, user: int | None = None) -> str:
        """What nvidia-smi printed, with its complaints."""
        done = subprocess.run(
            [str(self.library / "nvidia-smi"), *arguments],
            env=self.environment(),
            user=user,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout
        return done.stdout


def tool(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, str(TOOL), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done
