# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Call the unmodified pynvml in a process of its own, as the tests need it: the library's path is fixed at its start.

Standard input: a JSON list of calls [function, argument...]. An argument "@2" is the handle of GPU 2, "*NAME VERSION"
a structure of pynvml for the function to fill, with that constant as its version; it is the result then. Standard
output: a JSON list with {"ok": result} or {"error": NVML's code, "class": ..., "text": ...} for each call.
"""

from __future__ import annotations

import ctypes
import json
import sys
import typing as t

import pynvml

from tests.nvml_sim.record_answers import plain


def argument(value: t.Any) -> t.Any:
    if isinstance(value, str) and value.startswith("@"):
        return pynvml.nvmlDeviceGetHandleByIndex(int(value[1:]))
    if isinstance(value, str) and value.startswith("*"):
        name, version = value[1:].split()
        structure = getattr(pynvml, name)()
        structure.version = getattr(pynvml, version)
        return structure
    if isinstance(value, list):
        return [tuple(item) if isinstance(item, list) else item for item in value]
    return value


def answer(call: list[t.Any]) -> dict[str, t.Any]:
    function, *arguments = call
    try:
        values = [argument(value) for value in arguments]
        filled = [value for value in values if isinstance(value, ctypes.Structure)]
        values = [ctypes.byref(value) if isinstance(value, ctypes.Structure) else value for value in values]
        result = getattr(pynvml, function)(*values)
    except pynvml.NVMLError as error:
        return {"error": error.value, "class": type(error).__name__, "text": str(error)}
    if filled:
        return {"ok": plain(filled[0])}
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
