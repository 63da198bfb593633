# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""HTML and SVG from nested calls. Text is escaped unless it came from here, so that forgetting to escape is impossible.

What is written is also well-formed XML: one parser reads pages and drawings alike.
"""

from __future__ import annotations

import re
import typing as t
from html import escape

# Elements that HTML knows without an end.
_VOID = frozenset({"br", "col", "hr", "img", "link", "meta"})
# What no text on a page or a terminal needs, and what kernel logs and device names can bring along: control characters,
# marks that turn the direction of writing, halves of surrogate pairs (bytes that were no UTF-8), and noncharacters.
_UNWANTED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


class Html(str):
    """Markup that is written as it is."""

    __slots__ = ()


def clean(value: object) -> str:
    """Text that shows what it is."""
    return _UNWANTED.sub("\N{REPLACEMENT CHARACTER}", str(value).replace("\r\n", "\n"))


type Child = str | int | float | t.Iterable[Child] | None


def _content(children: t.Iterable[Child]) -> t.Iterator[str]:
    for child in children:
        if isinstance(child, Html):
            yield child
        elif isinstance(child, (str, int, float)):
            yield escape(clean(child), quote=False)
        elif child is not None:
            yield from _content(child)


def _attribute(value: object) -> str:
    # Hundredths of a pixel are enough, and 3.0 is 3.
    text = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    return escape(clean(text), quote=True)


def join(*children: Child) -> Html:
    return Html("".join(_content(children)))


def tag(element: str, /, *children: Child, **attributes: object) -> Html:
    """An element. `class_` is class, `aria_label` is aria-label, and None leaves an attribute out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if element in _VOID:
        return Html(f"<{element}{written}/>")
    return Html(f"<{element}{written}>{join(*children)}</{element}>")
