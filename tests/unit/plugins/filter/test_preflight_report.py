# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The two filters of the preflight as a playbook calls them."""

from __future__ import annotations

import json
import typing as t

import pytest

from ansible.errors import AnsibleFilterError
from ansible_collections.baremetal.inference.plugins.filter.preflight_fleet import preflight_fleet
from ansible_collections.baremetal.inference.plugins.filter.preflight_report import FilterModule, preflight_report

from tests.unit.plugins.plugin_utils import preflight_example as example
from tests.unit.plugins.plugin_utils.page import Page


def test_the_filter_is_found_by_its_name() -> None:
    assert FilterModule().filters() == {"preflight_report": preflight_report}


def test_json_is_the_result() -> None:
    found = example.troubled()
    made = preflight_report(found, "json")
    assert isinstance(made, str)
    assert json.loads(made) == found
    assert made.endswith("}\n")


def test_json_of_bytes_that_are_no_text_can_be_written() -> None:
    made = preflight_report(example.result(host="a\udcff"), "json")
    assert isinstance(made, str)
    made.encode("ascii")


@pytest.mark.parametrize("beside", [True, False])
def test_html_links_to_the_json_beside_it(beside: bool) -> None:
    made = preflight_report(example.result(host="a/b"), "html", json_beside=beside)
    assert isinstance(made, str)
    links = [link.get("href") for link in Page(made).find("footer")[0].iter("a")]
    assert links == (["a%252Fb.json"] if beside else [])


def test_lines_failure_and_name() -> None:
    assert preflight_report(example.result(), "lines")[0].startswith("dgx-01: Ready")
    assert preflight_report(example.result(), "failure") == ""
    assert "ecc.rows_failed" in preflight_report(example.troubled(), "failure", fail_on="fail")
    assert preflight_report(example.result(host="a/b"), "file_name") == "a%2Fb"


@pytest.mark.parametrize(
    ("result", "form", "said"),
    [
        (
            example.result(),
            "pdf",
            "preflight_report: form is 'pdf'; it must be one of html, json, lines, failure, file_name",
        ),
        ({}, "html", "preflight_report: the result's schema is None"),
        ("text", "html", "preflight_report: expected 'preflight' of a gpu_preflight result"),
    ],
)
def test_wrong_input_is_named(result: t.Any, form: str, said: str) -> None:
    with pytest.raises(AnsibleFilterError, match=said):
        preflight_report(result, form)


def test_the_fleet_as_page_and_as_data() -> None:
    outcomes = [{"host": "a", "state": "examined", "preflight": example.result(host="a")}]
    assert "GPU preflight of 1 host" in Page(preflight_fleet(outcomes, "html", time="now")).text
    assert json.loads(preflight_fleet(outcomes, "json", time="now", files=["json"]))["hosts"][0]["files"] == ["a.json"]


@pytest.mark.parametrize(
    ("outcomes", "form", "said"),
    [
        ([], "pdf", "preflight_fleet: form is 'pdf'; it must be one of html, json"),
        ([{}], "html", "preflight_fleet: each host is a dictionary"),
    ],
)
def test_a_wrong_fleet_is_named(outcomes: t.Any, form: str, said: str) -> None:
    with pytest.raises(AnsibleFilterError, match=said):
        preflight_fleet(outcomes, form, time="now")
