# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures: the library, built once, and a state of each profile."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import typing as t
from pathlib import Path

import pytest

from tests.nvml_sim.nvml_simulation import HERE, Simulation, tool


@pytest.fixture(scope="session")
def library() -> Path:
    """The folder that holds libnvidia-ml.so.1; NVML_SIM_LIBRARY names one that is built already."""
    given = os.environ.get("NVML_SIM_LIBRARY")
    if given:
        return Path(given)
    subprocess.run(["make", "-C", str(HERE)], check=True, stdout=subprocess.DEVNULL)
    return HERE / "build"


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> t.Callable[[str], Path]:
    """A state of each profile, made once, to be copied."""

    @functools.cache
    def template(profile: str) -> Path:
        directory = tmp_path_factory.mktemp("template") / "state"
        tool("create", "--profile", profile, str(directory))
        return directory

    return template


@pytest.fixture(name="make_simulation")
def _make_simulation(library: Path, tmp_path: Path, templates: t.Callable[[str], Path]) -> t.Callable[..., Simulation]:
    def make(profile: str, *options: str) -> Simulation:
        directory = tmp_path / "state"
        if options:
            tool("create", "--profile", profile, *options, str(directory))
        else:
            shutil.copytree(templates(profile), directory, symlinks=True)
        simulation = Simulation(library, directory)
        if os.geteuid() != 0:
            simulation.set("system/allow_users", 1)
        return simulation

    return make


@pytest.fixture
def dgx(make_simulation: t.Callable[..., Simulation]) -> Simulation:
    return make_simulation("dgx-a100-80gb")


@pytest.fixture
def pcie(make_simulation: t.Callable[..., Simulation]) -> Simulation:
    return make_simulation("a100-pcie-40gb-x4")


@pytest.fixture
def h200(make_simulation: t.Callable[..., Simulation]) -> Simulation:
    return make_simulation("h200-sxm-x2")
