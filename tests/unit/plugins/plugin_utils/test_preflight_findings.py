# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verdicts, groups and findings."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.baremetal.inference.plugins.plugin_utils import _preflight_findings as findings

from tests.unit.plugins.plugin_utils import preflight_example as example


@pytest.mark.parametrize(
    ("verdicts", "worst", "shown"),
    [
        ([], "skipped", "skipped"),
        (["pass", "info", "skipped"], "skipped", "pass"),
        (["info", "skipped"], "skipped", "info"),
        (["pass", "unknown", "warn"], "warn", "warn"),
        (["warn", "fail", "unknown"], "fail", "fail"),
        (["pass", "unknown"], "unknown", "unknown"),
    ],
)
def test_one_verdict_for_many(verdicts: list[str], worst: str, shown: str) -> None:
    assert findings.worst(verdicts) == worst
    assert findings.shown(verdicts) == shown


def test_counts_are_gravest_first_without_zeros() -> None:
    checks = [example.check("a.b", verdict) for verdict in ("pass", "fail", "pass", "info")]
    assert list(findings.counts(checks).items()) == [("fail", 1), ("info", 1), ("pass", 2)]


def test_checks_that_differ_in_subject_alone_are_one_finding() -> None:
    checks = [
        example.check("ecc.mode", subject=example.bus_id(0), index=0, observed="on"),
        example.check("ecc.mode", subject=example.bus_id(1), index=1, observed="off"),
        example.check("ecc.mode", subject=example.bus_id(2), index=2, observed="on"),
        example.check("ecc.mode", "fail", subject=example.bus_id(3), index=3, observed="on"),
    ]
    first, second = findings.findings(checks)
    assert first.seen == (("on", (example.bus_id(0), example.bus_id(2))), ("off", (example.bus_id(1),)))
    assert first.subjects == (example.bus_id(0), example.bus_id(2), example.bus_id(1))
    assert second.verdict == "fail"
    assert findings.gravest_first([first, second]) == [second, first]


@pytest.mark.parametrize(
    ("subjects", "name"),
    [
        (["host"], "host"),
        ([example.bus_id(2)], "GPU 2 (0000:47:00.0)"),
        ([example.bus_id(n) for n in (0, 1, 2, 5)], "GPUs 0-2, 5"),
        ([example.bus_id(n) for n in range(8)], "all 8 GPUs"),
        ([f"{example.bus_id(0)} - {example.bus_id(3)}"], "GPU 0 and GPU 3"),
        ([f"{example.bus_id(0)} - {example.bus_id(n)}" for n in range(1, 7)], "6 pairs of GPUs"),
        (["0000:ff:00.0"], "0000:ff:00.0"),
        ([f"n{n}" for n in range(6)], "n0, n1, n2, n3, n4, n5"),
        ([f"{example.bus_id(0)} - {example.bus_id(n)}" for n in (1, 2)], "GPU 0 and GPU 1, GPU 0 and GPU 2"),
        (["host", example.bus_id(1)], "host, GPU 1 (0000:0f:00.0)"),
    ],
)
def test_subjects_are_named_shortly(subjects: list[str], name: str) -> None:
    assert findings.Subjects(example.result()).names(subjects) == name


def test_the_health_of_a_gpu_is_what_is_grave_about_it() -> None:
    result = example.result(
        checks=[
            example.check("mig.mode", "info", subject=example.bus_id(0), index=0),
            example.check("ecc.rows", "warn", subject=example.bus_id(1), index=1),
            example.check("driver.answers", "fail", index=2),
            example.check("driver.bound", "fail", subject=example.bus_id(3)),
            example.check("host.disk", "fail"),
        ]
    )
    assert [findings.gpu_health(result, gpu) for gpu in result["gpus"]] == [
        "pass",
        "warn",
        "fail",
        "fail",
        *["pass"] * 4,
    ]


def test_groups_come_in_their_order_and_unknown_ones_last() -> None:
    checks = [example.check(name) for name in ("zeta.a", "mig.a", "firmware.a")]
    assert list(findings.by_group({"checks": checks})) == ["firmware", "mig", "zeta"]
    assert findings.group_title("kernel_log") == "Kernel log"
    assert findings.group_title("water_cooling") == "Water cooling"


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (None, "got None"),
        ({"schema": "x/1"}, "schema is 'x/1'; this version understands 'baremetal.inference.preflight/1'"),
        ({"schema": findings.SCHEMA}, "host is None"),
        (
            {"schema": findings.SCHEMA, "host": "a", "checks": [{"check": "a.b"}]},
            r"checks\[0\] of a has no text for group",
        ),
    ],
)
def test_what_is_no_result_is_refused(result: t.Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        findings.validated(result)


def test_plain_takes_every_wrapping_off() -> None:
    class Tagged(str):
        __slots__ = ()

    found = findings.plain({Tagged("a"): (Tagged("b"), 1, None)})
    assert found == {"a": ["b", 1, None]}
    assert {type(key) for key in found} | {type(found["a"][0])} == {str}
