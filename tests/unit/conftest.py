# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Fixtures for all unit tests. They run on every Python that modules run on, from 3.9."""

from __future__ import annotations

import functools
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


class NvmlSim:
    """The simulated NVML library, built, and its states (tests/nvml_sim/README.md)."""

    def __init__(self, folder: Path) -> None:
        self.tool = folder / "nvml-sim"
        self.libraries = folder / "build"

    def create(self, profile: str, state: Path, *options: str) -> Path:
        command = [str(self.tool), "create", "--profile", profile, *options, str(state)]
        subprocess.run(command, check=True, capture_output=True)
        return state

    def environment(self, state: Path) -> dict[str, str]:
        """What makes a program load the library and see this state."""
        return {"LD_LIBRARY_PATH": str(self.libraries), "NVML_SIM_STATE": str(state)}


@pytest.fixture(scope="session")
def nvml_sim() -> NvmlSim:
    folder = ROOT / "tests" / "nvml_sim"
    built = subprocess.run(["make", "-C", str(folder)], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return NvmlSim(folder)


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
        common = {"changed", "failed", "msg", "warnings", "invocation", "exception", "ansible_facts"}
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
