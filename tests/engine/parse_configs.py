# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Give lists of arguments to the parser of `vllm serve`, in one process. Run with the engine's own Python.

Reads JSON from standard input, a list of lists of arguments; prints JSON, for each what it came to: {"values": ...} or
{"error": ...}. Importing the engine takes half a minute, so one process takes all.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import typing as t

from dump_flags import serve_parser  # type: ignore[import-not-found] # a script finds its neighbours


def plain(value: t.Any) -> t.Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    # Some make a name or a port of their own each time.
    return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<=_port=)\d+", "*", repr(value))


def parse(parser: t.Any, arguments: list[str]) -> dict[str, t.Any]:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            values = vars(parser.parse_args(["serve", *arguments]))
    except SystemExit:
        return {"error": said.getvalue().strip().splitlines()[-1]}
    except Exception as error:  # noqa: BLE001 - each option has refusals of its own kind
        return {"error": f"{type(error).__name__}: {error}"}
    values.pop("model_tag", None)
    return {"values": {key: plain(value) for key, value in values.items()}}


def main() -> None:
    import argparse

    # As the command itself has it: the options belong to a subcommand.
    top = type(serve_parser())(prog="vllm")
    commands = top.add_subparsers(dest="subparser")
    from vllm.entrypoints.cli.serve import ServeSubcommand

    ServeSubcommand().subparser_init(commands)
    assert isinstance(top, argparse.ArgumentParser)
    json.dump([parse(top, arguments) for arguments in json.load(sys.stdin)], sys.stdout)


main()
