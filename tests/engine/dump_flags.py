# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Print what `vllm serve` takes, as JSON, asked of its own parser. Run with the engine's own Python:

PYTHON_OF_THE_ENGINE tests/engine/dump_flags.py >roles/vllm_service/files/flags/0.33.0.json
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import typing as t

# What a value looks like, and one that looks so. Each flag's own converter is asked which of them it takes.
PROBES = {
    "word": "some-word",
    "int": "1",
    "float": "1.5",
    "size": "1k",
    "auto": "auto",
    "object": "{}",
    "array": "[]",
}


def serve_parser() -> argparse.ArgumentParser:
    # Where it is defined moves from version to version; the command's own module always has it.
    from vllm.entrypoints.cli.serve import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))


def accepted(action: argparse.Action) -> list[str]:
    if action.nargs == 0:
        return []
    if action.type is None:
        return list(PROBES)
    convert = t.cast("t.Callable[[str], t.Any]", action.type)
    taken = []
    for name, text in PROBES.items():
        try:
            convert(text)
        except Exception as error:  # noqa: BLE001 - each converter has refusals of its own kind
            # A dataclass that needs some field refuses an empty object, but it reads objects.
            if name == "object" and "validation error" in str(error).lower():
                taken.append(name)
            continue
        taken.append(name)
    return taken


def kind_of(action: argparse.Action) -> str:
    if isinstance(action, argparse.BooleanOptionalAction):
        return "toggle"
    if action.nargs == 0:
        return "switch"
    if isinstance(action, argparse._AppendAction):
        return "append"
    return "value"


def describe(action: argparse.Action, spellings: list[str]) -> dict[str, t.Any]:
    first = action.option_strings[0]
    return {
        # The first is the positive form; long ones come before short ones.
        "flags": [first, *sorted(set(spellings) - {first}, key=lambda flag: (not flag.startswith("--"), flag))],
        "kind": kind_of(action),
        "many": action.nargs in ("+", "*"),
        "accepts": accepted(action),
        "choices": sorted({str(choice) for choice in action.choices if choice is not None}) if action.choices else None,
    }


def names_of(module: str, manager: str) -> list[str]:
    """Names that only the engine's registry knows: its parser takes any word, and it stops much later."""
    return sorted(getattr(importlib.import_module(module), manager).list_registered())


def dump() -> dict[str, t.Any]:
    import vllm

    # An action's own list leaves out spellings that are taken and not shown.
    spellings: dict[int, list[str]] = {}
    parser = serve_parser()
    for spelling, action in parser._option_string_actions.items():
        spellings.setdefault(id(action), []).append(spelling)
    actions = [action for action in parser._actions if action.option_strings and "--help" not in action.option_strings]
    return {
        "engine": vllm.__version__.partition("+")[0],
        "flags": sorted(
            (describe(action, spellings[id(action)]) for action in actions), key=lambda flag: flag["flags"]
        ),
        "names": {
            "--reasoning-parser": names_of("vllm.reasoning", "ReasoningParserManager"),
            "--tool-call-parser": names_of("vllm.tool_parsers", "ToolParserManager"),
        },
    }


def as_text(flags: dict[str, t.Any]) -> str:
    """One line for each flag: small differences between versions are small differences between files."""
    lines = ",\n  ".join(json.dumps(flag) for flag in flags["flags"])
    names = ",\n  ".join(f"{json.dumps(flag)}: {json.dumps(names)}" for flag, names in flags["names"].items())
    return f'{{\n "engine": {json.dumps(flags["engine"])},\n "flags": [\n  {lines}\n ],\n "names": {{\n  {names}\n }}\n}}\n'


if __name__ == "__main__":
    sys.stdout.write(as_text(dump()))
