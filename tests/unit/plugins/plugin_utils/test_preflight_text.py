# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a terminal shows."""

from __future__ import annotations

import pytest

from ansible_collections.baremetal.inference.plugins.plugin_utils._preflight_text import failure, summary

from tests.unit.plugins.plugin_utils import preflight_example as example


def test_the_summary_has_groups_gravest_first_and_each_fix() -> None:
    lines = summary(example.troubled())
    assert lines[0] == "dgx-01: Not ready (2 fail, 10 warn, 1 unknown, 1 skipped, 1 info, 35 pass)"
    groups = [line.split()[0] for line in lines[1:10]]
    assert groups == ["fail", "fail", "warn", "warn", "warn", "unknown", "pass", "skipped", "info"]
    assert lines[1] == "fail     NVLink          1 fail, 8 pass"
    assert lines[10:12] == [
        "FAIL ecc.rows_failed: Row remapping, GPU 2 (0000:47:00.0). Found: a row could not be replaced; 3 rows replaced so "
        "far, wanted: no failure",
        "  -> Replace the GPU: it has run out of spare rows in one bank. Until then keep work off it.",
    ]
    assert [line for line in lines if line.startswith("WARN driver.persistence")] == [
        "WARN driver.persistence: Persistence, all 8 GPUs. Found: disabled, wanted: enabled"
    ]


def test_a_healthy_host_is_a_line_and_its_groups() -> None:
    lines = summary(example.result())
    assert lines[0] == "dgx-01: Ready (1 skipped, 1 info, 35 pass)"
    assert len(lines) == 1 + 8


def test_different_findings_say_where() -> None:
    checks = [
        example.check(
            "pcie.width", "warn", title="PCIe width", subject=example.bus_id(n), index=n, observed=f"x{width}"
        )
        for n, width in ((1, 8), (2, 4))
    ]
    (line,) = [line for line in summary(example.result(checks=checks)) if line.startswith("WARN")]
    assert "GPUs 1-2. Found: x8 (GPU 1 (0000:0f:00.0)); x4 (GPU 2 (0000:47:00.0))" in line


def test_a_terminal_gets_no_control_characters() -> None:
    evil = example.check("kernel_log.xid", "warn", observed="a\x1b]0;title\x07\nb", fix="c\x9b31m\r\nd")
    text = "\n".join(summary(example.result(checks=[evil])))
    assert not {"\x1b", "\x07", "\x9b", "\r"} & set(text)
    assert "b, wanted" in text
    assert "  -> c" in text


@pytest.mark.parametrize(
    ("fail_on", "checks"),
    [("fail", ["ecc.rows_failed", "nvlink.links_up"]), ("never", [])],
)
def test_failing_names_what_is_as_grave(fail_on: str, checks: list[str]) -> None:
    message = failure(example.troubled(), fail_on)
    assert [line.split()[1].rstrip(":") for line in message.splitlines() if line.startswith(("FAIL", "WARN"))] == checks


def test_failing_on_warnings_has_failures_first() -> None:
    lines = failure(example.troubled(), "warn").splitlines()
    assert lines[0] == "dgx-01: Not ready. 5 things are to be put right:"
    assert [line.split()[0] for line in lines[1::2]] == ["FAIL", "FAIL", "WARN", "WARN", "WARN"]
    # What could not be found out is no reason to fail.
    assert "firmware.acs" not in "".join(lines)


def test_nothing_grave_is_no_failure() -> None:
    assert failure(example.result(), "warn") == ""
    assert failure(example.result(checks=[example.check("a.b", "warn")]), "fail") == ""


def test_an_unknown_severity_is_refused() -> None:
    with pytest.raises(ValueError, match="fail_on is 'error'; it must be one of fail, warn, never"):
        failure(example.result(), "error")
