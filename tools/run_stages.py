# Copyright: (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the stages of tools/stages.toml, all or those that are named, and print what each took.

Lanes run side by side, the stages of one lane in order. The first failure stops everything: the end of its log is
printed, and what ran beside it is asked to stop and given time to clean up. A single stage prints as it goes.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
STAGES = ROOT / "tools" / "stages.toml"
LOGS = ROOT / ".cache" / "logs"
PYTHONS = "BAREMETAL_INFERENCE_TEST_PYTHONS"
# How much of a failed stage's log is printed.
TAIL_LINES = 80
# Sign of life of stages that take long, and time to clean up for one that is stopped.
HEARTBEAT_S = 60.0
GRACE_S = 120.0


@dataclass
class Stage:
    """One stage, and how it went."""

    name: str
    about: str
    lane: str
    command: str
    minutes: float
    log: Path
    cleanup: str = ""
    result: str = "not run"
    seconds: float = 0.0
    started: float = 0.0
    stop_reason: str = ""
    stop_deadline: float = 0.0
    last_sign: float = 0.0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)


def load(path: Path, logs: Path) -> dict[str, Stage]:
    """The stages in their order. A key that is missing or unknown is an error."""
    with path.open("rb") as file:
        return {
            name: Stage(name=name, log=logs / f"{name}.log", **values) for name, values in tomllib.load(file).items()
        }


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def other_pythons() -> list[str]:
    """The interpreters of this machine, by their real paths."""
    listed = subprocess.run([ROOT / "tools" / "pythons"], check=True, capture_output=True, text=True)
    return [line.split(" ", 1)[1] for line in listed.stdout.splitlines()]


def environment() -> dict[str, str]:
    """What each stage runs with: this virtual environment's tools first, and a locale that Ansible accepts."""
    own_bin = str(Path(sys.executable).parent)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return {
        **kept,
        "PATH": own_bin + os.pathsep + os.environ.get("PATH", ""),
        "LC_ALL": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        # Output goes to a log.
        "NO_COLOR": "1",
        # Unit tests run modules with each Python that hosts can have.
        PYTHONS: os.environ.get(PYTHONS) or ":".join(other_pythons()),
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
    }


def short(path: Path) -> str:
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def last_line(log: Path) -> str:
    """The last line of a log that says anything."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "")[:140]


class Runner:
    """Runs stages until all passed or one failed."""

    def __init__(self, stages: list[Stage]) -> None:
        self.stages = stages
        self.lanes: dict[str, deque[Stage]] = {}
        for stage in stages:
            self.lanes.setdefault(stage.lane, deque()).append(stage)
        self.running: list[Stage] = []
        self.failed: Stage | None = None
        self.interrupted = ""
        self.environment = environment()

    def start(self, stage: Stage) -> None:
        stage.process = self.spawn(stage.command, stage.log, "wb")
        stage.started = stage.last_sign = time.monotonic()
        stage.result = "running"
        self.running.append(stage)
        say(f"{stage.name}: {stage.about}")

    def spawn(self, command: str, log: Path, mode: str) -> subprocess.Popen[bytes]:
        with log.open(mode) as file:
            # A session of its own: a stop reaches everything that the stage started, and Ctrl-C comes from here alone.
            return subprocess.Popen(
                ["bash", "-c", command],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def stop(self, stage: Stage, reason: str, number: signal.Signals = signal.SIGINT) -> None:
        """Ask a stage to stop, as Ctrl-C would; who does not is killed later."""
        if stage.process is None or stage.stop_reason:
            return
        stage.stop_reason = reason
        stage.stop_deadline = time.monotonic() + GRACE_S
        os.killpg(stage.process.pid, number)

    def look(self, stage: Stage) -> None:
        """Note the end of a stage, or watch its time."""
        assert stage.process is not None
        now = time.monotonic()
        stage.seconds = now - stage.started
        status = stage.process.poll()
        if status is None:
            if stage.stop_reason and now > stage.stop_deadline:
                os.killpg(stage.process.pid, signal.SIGKILL)
            elif not stage.stop_reason and stage.seconds > 2 * 60 * stage.minutes:
                self.stop(stage, f"it took more than {2 * stage.minutes:g} minutes")
                self.failed = self.failed or stage
            elif len(self.stages) > 1 and now - stage.last_sign > HEARTBEAT_S:
                stage.last_sign = now
                say(f"{stage.name}: {clock(stage.seconds)}  {last_line(stage.log)}")
            return
        self.running.remove(stage)
        if stage.cleanup and (status != 0 or stage.stop_reason):
            say(f"{stage.name}: cleaning up")
            try:
                status_of_cleanup = self.spawn(stage.cleanup, stage.log, "ab").wait(GRACE_S)
            except subprocess.TimeoutExpired:
                status_of_cleanup = -1
            if status_of_cleanup != 0:
                say(f"{stage.name}: could not clean up; do it by hand: {stage.cleanup}")
        if status == 0 and not stage.stop_reason:
            stage.result = "passed"
            say(f"{stage.name}: passed in {clock(stage.seconds)}")
        elif stage is self.failed or not stage.stop_reason:
            self.failed = self.failed or stage
            stage.result = "failed"
            say(f"{stage.name}: FAILED after {clock(stage.seconds)}, {stage.stop_reason or f'status {status}'}")
        else:
            stage.result = "stopped"
            say(f"{stage.name}: stopped, {stage.stop_reason}")

    def interrupt(self, number: int, _frame: FrameType | None) -> None:
        self.interrupted = signal.Signals(number).name

    def run(self) -> int:
        signal.signal(signal.SIGINT, self.interrupt)
        signal.signal(signal.SIGTERM, self.interrupt)
        # `make test` over ssh: the connection that breaks must not leave hosts behind.
        signal.signal(signal.SIGHUP, self.interrupt)
        follower = Follower(self.stages[0].log) if len(self.stages) == 1 else None
        while True:
            busy = {stage.lane for stage in self.running}
            if not self.failed and not self.interrupted:
                for lane, waiting in self.lanes.items():
                    if waiting and lane not in busy:
                        self.start(waiting.popleft())
            if not self.running:
                break
            time.sleep(0.2)
            if follower:
                follower.copy()
            for stage in list(self.running):
                self.look(stage)
            for stage in list(self.running):
                if self.interrupted:
                    self.stop(stage, f"{self.interrupted} was received")
                elif self.failed and stage is not self.failed:
                    self.stop(stage, f"because {self.failed.name} failed")
        if follower:
            follower.copy()
        elif self.failed:
            print(f"\n----- the last lines of {short(self.failed.log)}", flush=True)
            lines = self.failed.log.read_text(errors="replace").splitlines()
            print("\n".join(lines[-TAIL_LINES:]), flush=True)
        self.report()
        if self.interrupted:
            return 130
        return 1 if self.failed else 0

    def report(self) -> None:
        width = max(len(stage.name) for stage in self.stages)
        print()
        for stage in self.stages:
            duration = clock(stage.seconds) if stage.started else ""
            log = short(stage.log) if stage.started else ""
            print(f"{stage.name:{width}}  {stage.result:8}  {duration:>6}  {log}")
        passed = sum(stage.result == "passed" for stage in self.stages)
        print(f"\n{passed} of {len(self.stages)} stages passed.", flush=True)


class Follower:
    """Copies to the terminal what a log gains."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.position = 0

    def copy(self) -> None:
        with self.log.open("rb") as file:
            file.seek(self.position)
            sys.stdout.flush()
            sys.stdout.buffer.write(file.read())
            sys.stdout.buffer.flush()
            self.position = file.tell()


def choose(all_stages: Mapping[str, Stage], names: list[str]) -> list[Stage]:
    """The named stages in the order of the file; all of them without names."""
    unknown = [name for name in names if name not in all_stages]
    if unknown:
        raise SystemExit(f"No such stage: {', '.join(unknown)}. There are: {', '.join(all_stages)}")
    return [stage for name, stage in all_stages.items() if not names or name in names]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("names", nargs="*", metavar="STAGE", help="run these alone")
    parser.add_argument("--list", action="store_true", help="print the stages")
    parser.add_argument("--stages", type=Path, default=STAGES, help="the file that describes them (%(default)s)")
    parser.add_argument("--logs", type=Path, default=LOGS, help="where their output is kept (%(default)s)")
    arguments = parser.parse_args()
    stages = choose(load(arguments.stages, arguments.logs), arguments.names)
    if arguments.list:
        for stage in stages:
            print(f"{stage.name:14}{stage.lane:8}{stage.about}")
        return 0
    arguments.logs.mkdir(parents=True, exist_ok=True)
    return Runner(stages).run()


if __name__ == "__main__":
    sys.exit(main())
