# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Fixtures for all unit tests. They run on every Python that modules run on, from 3.9."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OLDEST_TARGET = (3, 9)
# More interpreters than those on PATH, separated by colons: BAREMETAL_INFERENCE_TEST_PYTHONS.
PYTHONS_VARIABLE = "BAREMETAL_INFERENCE_TEST_PYTHONS"


@functools.cache
def interpreters() -> t.Mapping[str, str]:
    """One interpreter per Python version that modules support, of those found on this machine, by version."""
    candidates = [sys.executable]
    candidates += [entry for entry in os.environ.get(PYTHONS_VARIABLE, "").split(os.pathsep) if entry]
    candidates += [path for minor in range(9, 15) for path in [shutil.which(f"python3.{minor}")] if path]
    found: dict[tuple[int, int], str] = {}
    for candidate in candidates:
        # Version managers put shims on PATH for versions that are switched off: those do not start.
        answer = subprocess.run(
            [candidate, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True, check=False
        )
        if answer.returncode == 0:
            major, minor = (int(part) for part in answer.stdout.split())
            if (major, minor) >= OLDEST_TARGET:
                found.setdefault((major, minor), candidate)
    return {f"{major}.{minor}": found[major, minor] for major, minor in sorted(found)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that take "interpreter" run once for each."""
    if "interpreter" in metafunc.fixturenames:
        metafunc.parametrize("interpreter", list(interpreters().values()), ids=list(interpreters()))


class ModuleServer:
    """Runs modules in forks of one process (module_server.py), which is started when it is needed."""

    def __init__(self, libraries: Path) -> None:
        self._libraries = str(libraries)
        self._process: subprocess.Popen[str] | None = None

    def run(self, module: str, arguments: t.Mapping[str, t.Any], environment: dict[str, str]) -> tuple[int, str]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-B", str(ROOT / "tests" / "unit" / "module_server.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={
                    **os.environ,
                    "LD_LIBRARY_PATH": self._libraries,
                    "PYTHONPATH": str(ROOT / "collections"),
                },
            )
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(
            json.dumps({"module": module, "arguments": arguments, "environment": environment}) + "\n"
        )
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return answer["status"], answer["output"]

    def stop(self) -> None:
        if self._process is not None:
            self._process.communicate()


class NvmlSim:
    """The simulated NVML library, built, and its states (tests/nvml_sim/README.md)."""

    def __init__(self, folder: Path, templates: Path) -> None:
        self.tool = folder / "nvml-sim"
        self.libraries = folder / "build"
        self._templates = templates
        self._made: dict[tuple[str, ...], Path] = {}
        self.server = ModuleServer(self.libraries)

    def create(self, profile: str, state: Path, *options: str) -> Path:
        """Each kind of state is made once, and copied: that is quicker."""
        wanted = (profile, *options)
        if wanted not in self._made:
            template = self._templates / str(len(self._made))
            command = [str(self.tool), "create", "--profile", profile, *options, str(template)]
            subprocess.run(command, check=True, capture_output=True)
            self._made[wanted] = template
        if "--replace" in options and state.exists():
            shutil.rmtree(state)
        shutil.copytree(self._made[wanted], state, symlinks=True)
        return state

    def environment(self, state: Path) -> dict[str, str]:
        """What makes a program load the library and see this state."""
        return {"LD_LIBRARY_PATH": str(self.libraries), "NVML_SIM_STATE": str(state)}


@pytest.fixture(scope="session")
def nvml_sim(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[NvmlSim]:
    folder = ROOT / "tests" / "nvml_sim"
    built = subprocess.run(["make", "-C", str(folder)], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    sim = NvmlSim(folder, tmp_path_factory.mktemp("states"))
    yield sim
    sim.server.stop()


class SimulatedHost:
    """A host with simulated GPUs, and the collection's modules on it, each run in a process of its own."""

    def __init__(self, sim: NvmlSim, folder: Path, interpreter: str | None) -> None:
        self.sim = sim
        self.interpreter = interpreter
        self.libraries = folder / "python"
        self.libraries.mkdir()
        (self.libraries / "ansible").symlink_to(Path(pytest.importorskip("ansible").__file__).parent)
        shutil.copy(pytest.importorskip("pynvml").__file__, self.libraries)
        self.state = folder / "state"
        self.environment: dict[str, str] = {"PATH": "/usr/bin:/bin", **sim.environment(self.state)}

    def create(self, profile: str, *options: str) -> Path:
        """What a GPU lets root alone change, whoever runs the tests may change here."""
        self.sim.create(profile, self.state, *options)
        self.set("system/allow_users", 1)
        return self.state

    def fault(self, line: str) -> None:
        """Add a line to the state's faults (tests/nvml_sim/README.md)."""
        with open(self.state / "faults", "a", encoding="utf-8") as faults:
            faults.write(line + "\n")

    def no_faults(self) -> None:
        (self.state / "faults").unlink()

    def tool(self, command: str, *arguments: str) -> str:
        """Run nvml-sim on this host's state."""
        done = subprocess.run(
            [str(self.sim.tool), command, str(self.state), *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def set(self, key: str, value: object) -> None:
        self.tool("set", key, str(value))

    def run(self, module: str, *, check_mode: bool = False, diff: bool = False, **params: t.Any) -> dict[str, t.Any]:
        """The module's result; ``warnings`` in it are plain texts."""
        if (self.state / "sysfs").is_dir():
            params.setdefault("sysfs_root", str(self.state / "sysfs"))
        arguments = {**params, "_ansible_check_mode": check_mode, "_ansible_diff": diff}
        # Where libraries are looked for is settled when a process starts.
        quickly = self.interpreter is None and self.environment["LD_LIBRARY_PATH"] == str(self.sim.libraries)
        run = self._run_forked if quickly else self._run_elsewhere
        code, output = run(module, json.dumps(arguments))
        assert output.lstrip().startswith("{"), output
        result: dict[str, t.Any] = json.loads(output)
        assert code == (1 if result.get("failed") else 0)
        if "warnings" in result:
            # Newer Ansible has records there.
            result["warnings"] = [
                text if isinstance(text, str) else text["event"]["msg"] for text in result["warnings"]
            ]
        return result

    def _run_elsewhere(self, module: str, arguments: str) -> tuple[int, str]:
        """In a new process, which finds there what it would find on a host, and nothing else."""
        done = subprocess.run(
            [self.interpreter or sys.executable, "-B", "-c", _RUN_MODULE, module],
            input=arguments,
            env={"PYTHONPATH": f"{self.libraries}:{ROOT / 'collections'}", **self.environment},
            cwd=self.libraries,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout or done.stderr

    def _run_forked(self, module: str, arguments: str) -> tuple[int, str]:
        return self.sim.server.run(module, json.loads(arguments), self.environment)


_RUN_MODULE = """
import importlib, json, sys
from ansible.module_utils.testing import patch_module_args
module = importlib.import_module("ansible_collections.baremetal.inference.plugins.modules." + sys.argv[1])
with patch_module_args(json.load(sys.stdin)):
    module.main()
"""


@pytest.fixture
def simulated_host(nvml_sim: NvmlSim, tmp_path: Path) -> SimulatedHost:
    return SimulatedHost(nvml_sim, tmp_path, None)


@pytest.fixture
def simulated_host_on_every_python(nvml_sim: NvmlSim, tmp_path: Path, interpreter: str) -> SimulatedHost:
    return SimulatedHost(nvml_sim, tmp_path, interpreter)


_TYPES = {"str": str, "int": int, "float": float, "bool": bool, "list": list, "dict": dict}


def _differences(value: t.Any, documentation: t.Mapping[str, t.Any], path: str) -> t.Iterator[str]:
    if value is None:
        return
    kind = documentation.get("type", "str")
    # A bool is an int to Python, not to people.
    matches = isinstance(value, _TYPES[kind]) and isinstance(value, bool) == (kind == "bool")
    if not matches:
        yield f"{path}: documented as {kind}, is {value!r}"
    elif kind == "list":
        for position, item in enumerate(value):
            element = {"type": documentation.get("elements", "str"), "contains": documentation.get("contains")}
            yield from _differences(item, element, f"{path}[{position}]")
    elif kind == "dict" and documentation.get("contains"):
        contains = documentation["contains"]
        for key in contains.keys() - value.keys():
            yield f"{path}.{key}: documented, not returned"
        for key in value.keys() - contains.keys():
            yield f"{path}.{key}: returned, not documented"
        for key in contains.keys() & value.keys():
            yield from _differences(value[key], contains[key], f"{path}.{key}")


@pytest.fixture
def undocumented() -> t.Callable[[t.Any, t.Mapping[str, t.Any], str], list[str]]:
    """Differences between a module's result and its RETURN: keys on either side alone, and wrong types.

    The third argument is "success" or "failure". A None stands for a fact that is not known, whatever its type.
    """

    def compare(module: t.Any, result: t.Mapping[str, t.Any], outcome: str) -> list[str]:
        yaml = pytest.importorskip("yaml")
        documentation = yaml.safe_load(module.RETURN)
        # Documented by Ansible for all modules.
        common = {"changed", "diff", "failed", "msg", "warnings", "invocation", "exception", "ansible_facts"}
        found = []
        for key in sorted(result.keys() - common):
            if key not in documentation:
                found.append(f"{key}: returned, not documented")
            else:
                found.extend(_differences(result[key], documentation[key], key))
        for key, entry in documentation.items():
            if entry["returned"] in ("always", outcome) and key not in result:
                found.append(f"{key}: documented, not returned")
        return found

    return compare
