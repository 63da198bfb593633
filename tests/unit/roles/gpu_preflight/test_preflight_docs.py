# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""docs/preflight.md tells every check that there is, and none that there is not."""

from __future__ import annotations

import re
from pathlib import Path

from ansible_collections.baremetal.inference.plugins.module_utils import _preflight, _preflight_load, _preflight_pcie
from ansible_collections.baremetal.inference.plugins.plugin_utils import _preflight_drawing as drawing
from ansible_collections.baremetal.inference.plugins.plugin_utils._preflight_findings import GROUPS, SCHEMA, VERDICTS

from tests.unit.plugins.plugin_utils import preflight_example as example

ROOT = Path(__file__).resolve().parents[4]
DOCUMENT = (ROOT / "docs" / "preflight.md").read_text()
ID = rf"(?:{'|'.join(_preflight.GROUPS)})\.[a-z0-9_]+"
# Those that the role adds, when a BMC is asked.
OF_THE_ROLE = {"firmware.bios_attribute", "firmware.bios_attributes"}
# Made of the kernel's own numbers.
NUMBERED = {"kernel_log.xid_79", "kernel_log.sxid_12028", "kernel_log.pcie_corrected", "kernel_log.pcie_uncorrected"}


def checks() -> set[str]:
    """Every id that stands in the sources, and those that are put together there."""
    found = NUMBERED | OF_THE_ROLE
    for path in (ROOT / "plugins" / "module_utils").glob("_preflight*.py"):
        found |= set(re.findall(rf'"({ID})"', path.read_text()))
    found |= {f"nvlink.{name}" for name in _preflight_load._NVLINK_TITLES}
    found |= {f"pcie.{name}" for name in _preflight_pcie._TITLES}
    return found


def test_the_document_tells_every_check_and_no_other() -> None:
    told = set(re.findall(rf"`({ID})`", DOCUMENT))
    assert sorted(checks() - told) == []
    assert sorted(told - checks()) == []


def test_the_documents_variables_exist() -> None:
    readme = (ROOT / "roles" / "gpu_preflight" / "README.md").read_text()
    assert {name for name in re.findall(r"gpu_preflight_[a-z_]+", DOCUMENT) if f"`{name}`" not in readme} == set()


def test_the_report_knows_what_the_module_returns() -> None:
    assert SCHEMA == _preflight.SCHEMA
    assert tuple(VERDICTS) == _preflight.VERDICTS
    assert tuple(GROUPS) == _preflight.GROUPS
    for verdict in VERDICTS:
        assert re.search(rf"^\| `{verdict}` \|", DOCUMENT, re.MULTILINE)


def test_the_picture_in_the_document_is_what_is_drawn_today() -> None:
    """If not, write that into the file, and look at it."""
    drawn = drawing.machine(example.troubled(), alone=True)
    assert (ROOT / "docs" / "preflight-machine.svg").read_text() == f"{drawn}\n"
