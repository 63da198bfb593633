# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Markup that cannot be forgotten to be escaped."""

from __future__ import annotations

import pytest

from ansible_collections.baremetal.inference.plugins.plugin_utils._html import Html, clean, join, tag


def test_text_is_escaped_and_markup_is_not() -> None:
    assert tag("p", "<b> & ", tag("b", 'x"')) == '<p>&lt;b&gt; &amp; <b>x"</b></p>'


def test_attributes_are_escaped_and_named_as_html_does() -> None:
    made = tag("a", "x", class_="a b", aria_label='"<', data_x=None, href="?a&b")
    assert made == '<a class="a b" aria-label="&quot;&lt;" href="?a&amp;b">x</a>'


def test_a_text_that_was_joined_to_markup_is_text_again() -> None:
    """str methods give plain strings: nothing becomes trusted by accident."""
    assert not isinstance(Html("<b>") + "<i>", Html)
    assert tag("p", Html("<b>") + "<i>") == "<p>&lt;b&gt;&lt;i&gt;</p>"


def test_children_may_be_lists_numbers_or_nothing() -> None:
    assert join(["a", ["b", None]], 1, 2.5, iter("cd")) == "ab12.5cd"


@pytest.mark.parametrize(("number", "written"), [(3.0, "3"), (2.5, "2.5"), (1 / 3, "0.33"), (100.0, "100"), (7, "7")])
def test_numbers_in_attributes_are_short(number: float, written: str) -> None:
    assert tag("rect", x=number) == f'<rect x="{written}"></rect>'


def test_void_elements_have_no_end() -> None:
    assert tag("br") == "<br/>"


@pytest.mark.parametrize(
    "unwanted", ["\x00", "\x1b", "\x7f", "\x85", "\u200f", "\u2028", "\u202e", "\u2066", "\udcff", "\uffff"]
)
def test_what_no_reader_would_see_becomes_visible(unwanted: str) -> None:
    assert clean(f"a{unwanted}b") == "a\N{REPLACEMENT CHARACTER}b"
    assert unwanted not in tag("p", unwanted, title=unwanted)


def test_lines_and_other_languages_stay() -> None:
    text = "a\tb\r\nc \N{GREEK SMALL LETTER MU} \N{CJK UNIFIED IDEOGRAPH-4E00}"
    assert clean(text) == text.replace("\r\n", "\n")
