# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A finished page, read by two parsers that know nothing of how it was made."""

from __future__ import annotations

import re
import typing as t
from html.parser import HTMLParser
from xml.etree import ElementTree

VOID = {"br", "col", "hr", "img", "link", "meta"}


class _Balance(HTMLParser):
    """An HTML parser that objects to what browsers silently repair."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _value in attrs]
        assert len(names) == len(set(names)), f"<{tag}> has an attribute twice: {names}"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        assert self.open, f"</{tag}> ends nothing"
        assert self.open[-1] == tag, f"</{tag}> inside <{self.open[-1]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text.append(data)


class Page:
    def __init__(self, source: str) -> None:
        self.source = source
        parser = _Balance()
        parser.feed(source)
        parser.close()
        assert parser.open == []
        self.tags = parser.tags
        self.text = " ".join(" ".join(parser.text).split())
        # The same as XML: every drawing in it is well-formed.
        self.tree = ElementTree.fromstring(re.sub(r"^<!DOCTYPE html>\n", "", source))

    def find(self, tag: str, **attributes: str) -> list[ElementTree.Element]:
        """Elements by name, and by attributes; of a class, one of its words is enough."""

        def fits(element: ElementTree.Element) -> bool:
            for name, value in attributes.items():
                found = element.get(name.rstrip("_").replace("_", "-"), "")
                if value not in (found.split() if name == "class_" else [found]):
                    return False
            return True

        return [element for element in self.tree.iter(tag) if fits(element)]

    def section(self, id_: str) -> ElementTree.Element | None:
        found = self.find("section", id=id_)
        assert len(found) <= 1
        return found[0] if found else None


def words(element: ElementTree.Element | None) -> str:
    assert element is not None
    return " ".join(" ".join(element.itertext()).split())


def rows(element: ElementTree.Element | None) -> list[list[str]]:
    """The cells of every row of the tables in an element."""
    assert element is not None
    return [[words(cell) for cell in row if cell.tag in ("td", "th")] for row in element.iter("tr")]


def classes(elements: t.Iterable[ElementTree.Element]) -> list[str]:
    return [element.get("class", "") for element in elements]
