# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The page and the data of many hosts."""

from __future__ import annotations

import typing as t
from urllib.parse import unquote

import pytest

from ansible_collections.baremetal.inference.plugins.plugin_utils import _preflight_fleet as fleet

from tests.unit.plugins.plugin_utils import preflight_example as example
from tests.unit.plugins.plugin_utils.page import Page, classes, rows, words

TIME = "2026-11-30T10:00:00Z"


def outcome(host: str, *checks: dict[str, t.Any]) -> dict[str, t.Any]:
    return {"host": host, "state": "examined", "preflight": example.result([example.gpu(0)], checks, host=host)}


WARNED = example.check("firmware.iommu", "warn", title="IOMMU", observed="on", fix="Turn it off.")


@pytest.fixture
def hosts() -> list[fleet.Host]:
    return fleet.hosts_of(
        [
            outcome("dgx-10"),
            outcome("dgx-9"),
            outcome("dgx-2", WARNED),
            outcome("dgx-1", WARNED),
            {"host": "dgx-3", "state": "unreachable", "problem": "ssh: <no route>"},
            outcome("dgx-4", example.check("driver.loaded", "fail", title="Driver loaded")),
            {"host": "dgx-5", "state": "failed", "problem": "no python"},
        ]
    )


def test_hosts_are_gravest_first_and_in_natural_order(hosts: list[fleet.Host]) -> None:
    page = Page(fleet.render(hosts, TIME, ["html", "json"]))
    table = rows(page.section("hosts"))
    assert [row[0].split()[0] for row in table[1:]] == ["dgx-3", "dgx-5", "dgx-4", "dgx-1", "dgx-2", "dgx-9", "dgx-10"]
    assert table[0][:5] == ["Host", "Verdict", "Firmware", "Driver", "CUDA"]
    assert table[1] == ["dgx-3", "\N{MULTIPLICATION X} unreachable", "ssh: <no route>"]
    assert table[2][1:] == ["\N{MULTIPLICATION X} could not be examined", "no python"]
    assert table[3][1:4] == ["\N{MULTIPLICATION X} fail", "\N{CHECK MARK} pass", "\N{MULTIPLICATION X} 1 fail"]
    assert table[4][0] == "dgx-1 1 \N{MULTIPLICATION SIGN} NVIDIA A100-SXM4-80GB, driver 580.159.04"
    assert table[4][1:3] == ["! warn", "! 1 warn"]
    assert {len(row) for row in table[3:]} == {len(table[0])}


def test_the_head_counts_hosts(hosts: list[fleet.Host]) -> None:
    banner = words(Page(fleet.render(hosts, TIME, [])).find("header")[0])
    for part in (
        "GPU preflight of 7 hosts",
        "3 of 7 hosts not ready",
        "3 fail",
        "2 warn",
        "2 pass",
        "5 \N{MULTIPLICATION SIGN} NVIDIA A100",
    ):
        assert part in banner


def test_examined_hosts_lead_to_their_pages(hosts: list[fleet.Host]) -> None:
    page = Page(fleet.render(hosts, TIME, ["html"]))
    section = page.section("hosts")
    assert section is not None
    assert [link.get("href") for link in section.iter("a")] == [f"dgx-{n}.html" for n in (4, 1, 2, 9, 10)]
    without = Page(fleet.render(hosts, TIME, ["json"])).section("hosts")
    assert without is not None
    assert list(without.iter("a")) == []


def test_what_to_do_is_told_once_for_all_hosts(hosts: list[fleet.Host]) -> None:
    tasks = Page(fleet.render(hosts, TIME, [])).find("div", class_="task")
    assert classes(tasks) == ["task fail", "task warn"]
    assert "dgx-1, dgx-2" in words(tasks[1])
    assert words(tasks[1]).count("Turn it off.") == 1


def test_many_hosts_are_not_all_named() -> None:
    many = fleet.hosts_of([outcome(f"n{number}", WARNED) for number in range(20)] + [outcome("well")])
    page = Page(fleet.render(many, TIME, []))
    assert "n11 and 8 more hosts" in words(page.section("to-do"))
    every = fleet.hosts_of([outcome(f"n{number}", WARNED) for number in range(20)])
    assert "all 20 hosts" in words(Page(fleet.render(every, TIME, [])).section("to-do"))


def test_a_well_fleet() -> None:
    page = Page(fleet.render(fleet.hosts_of([outcome("a"), outcome("b")]), TIME, ["html"]))
    assert words(page.find("p", class_="verdict")[0]) == "Ready"
    assert "Nothing on the hosts that were examined" in words(page.section("to-do"))


def test_before_anything_was_examined() -> None:
    pending = fleet.hosts_of([{"host": "a", "state": "pending", "problem": "The run has not come here yet."}])
    page = Page(fleet.render(pending, TIME, ["html"]))
    assert rows(page.section("hosts"))[1] == [
        "a",
        "\N{MULTIPLICATION X} not examined yet",
        "The run has not come here yet.",
    ]


def test_the_data(hosts: list[fleet.Host]) -> None:
    data = fleet.as_data(hosts, TIME, ["html", "json"])
    assert data["schema"] == "baremetal.inference.preflight-fleet/1"
    assert (data["time"], data["verdict"], data["counts"]) == (TIME, "fail", {"fail": 3, "warn": 2, "pass": 2})
    found = {host["host"]: host for host in data["hosts"]}
    assert list(found) == ["dgx-10", "dgx-9", "dgx-2", "dgx-1", "dgx-3", "dgx-4", "dgx-5"]
    assert found["dgx-2"]["groups"]["firmware"] == "warn"
    assert found["dgx-2"]["files"] == ["dgx-2.html", "dgx-2.json"]
    assert found["dgx-3"] == {
        "host": "dgx-3", "state": "unreachable", "problem": "ssh: <no route>", "verdict": "fail", "counts": {},
        "groups": {}, "time": None, "files": [],
    }  # fmt: skip


NAMES = ["a", "A", "10.0.0.1", "[fe80::1]:22", "a/b", "a_b", "../../etc/passwd", "..", ".hidden", "index", "Index", "preflight",
         "%69ndex", "ho st", "\N{LATIN SMALL LETTER E WITH ACUTE}", "a\\b", "<b>", "a%2Fb", "a\x00b"]  # fmt: skip


def test_file_names_are_safe_and_differ() -> None:
    made = [fleet.file_name(name) for name in NAMES]
    assert len(set(made)) == len(NAMES)
    for name in made:
        assert not set(name) & set("/\\\x00 <>:")
        assert not name.startswith(".")
        assert name.lower() not in ("index", "preflight")
    assert fleet.file_name("dgx-01.example.com") == "dgx-01.example.com"


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_the_files(name: str) -> None:
    section = Page(fleet.render(fleet.hosts_of([outcome(name)]), TIME, ["html"])).section("hosts")
    assert section is not None
    (link,) = section.iter("a")
    assert unquote(link.get("href", "")) == f"{fleet.file_name(name)}.html"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            {"host": "a", "state": "fine"},
            "a: state is 'fine'; it must be one of examined, pending, unreachable, failed",
        ),
        ({"host": "a", "state": "examined"}, "a: state is 'examined', and preflight is empty"),
        ({"host": "a", "state": "failed", "preflight": {"x": 1}}, "a: state is 'failed', and preflight is given"),
        ({"host": "a", "state": "examined", "preflight": {"schema": "x"}}, "schema is 'x'"),
        ({"state": "failed"}, "each host is a dictionary with host and state"),
    ],
)
def test_outcomes_that_contradict_themselves_are_refused(wrong: dict[str, t.Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        fleet.hosts_of([wrong])
