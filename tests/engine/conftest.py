# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which engines the tests of this folder ask: those that tests/engine/prepare prints."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One run for each engine. The variable has the lines of tests/engine/prepare, or the name of a file that has them."""
    if "engine" not in metafunc.fixturenames:
        return
    given = os.environ.get("BAREMETAL_INFERENCE_ENGINES", "")
    if given and "\n" not in given and Path(given).is_file():
        given = Path(given).read_text()
    engines = [line.split() for line in given.splitlines() if line.strip()]
    if not engines:
        raise pytest.UsageError(
            "BAREMETAL_INFERENCE_ENGINES is empty. These tests need the real engine:"
            ' BAREMETAL_INFERENCE_ENGINES="$(tests/engine/prepare)" pytest tests/engine'
        )
    metafunc.parametrize("engine", engines, ids=[engine[0] for engine in engines], indirect=True, scope="session")
