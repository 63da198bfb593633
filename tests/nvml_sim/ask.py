#!/usr/bin/env python3
# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Call the unmodified pynvml in a process of its own, as the tests need it: the library's path is fixed at its start.

Standard input: a JSON list of calls [function, argument...]. An argument "@2" is the handle of GPU 2. Standard
output: a JSON list with, for each call, {"ok": result}, {"error": NVML's code} or {"raised": name of an exception}.
"""

from __future__ import annotations

import json
import sys
import typing as t

import pynvml
from record_answers import plain


def argument(value: t.Any) -> t.Any:
    if isinstance(value, str) and value.startswith("@"):
        return pynvml.nvmlDeviceGetHandleByIndex(int(value[1:]))
    if isinstance(value, list):
        return [tuple(item) if isinstance(item, list) else item for item in value]
    return value


def answer(call: list[t.Any]) -> dict[str, t.Any]:
    function, *arguments = call
    try:
        result = getattr(pynvml, function)(*map(argument, arguments))
    except pynvml.NVMLError as error:
        return {"error": error.value, "class": type(error).__name__, "text": str(error)}
    if function == "nvmlDeviceGetFieldValues":
        return {"ok": [[item.valueType, item.nvmlReturn, item.value.ullVal] for item in result]}
    if isinstance(result, pynvml.c_nvmlDevice_t):
        return {"ok": pynvml.nvmlDeviceGetIndex(result)}
    if isinstance(result, list) and result and isinstance(result[0], pynvml.c_nvmlDevice_t):
        return {"ok": [pynvml.nvmlDeviceGetIndex(item) for item in result]}
    return {"ok": plain(result)}


def main() -> None:
    calls = json.load(sys.stdin)
    json.dump([answer(call) for call in calls], sys.stdout)


if __name__ == "__main__":
    main()
