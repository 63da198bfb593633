# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""Options of ``vllm serve``: checked against the pinned engine's own list, and written so that --config means them. Pure.

The list (roles/vllm_service/files/flags) is made by asking the engine's parser, see tests/engine/dump_flags.py.
"""

from __future__ import annotations

import difflib
import json
import re
import typing as t

# What the role sets itself, and the variable to use instead.
MANAGED = {
    "--model": "model",
    "--served-model-name": "served_model_name",
    "--host": "host",
    "--port": "port",
    "--uds": "uds",
    "--api-key": None,
    "--config": None,
    "--headless": None,
    "--grpc": None,
    "--ssl-keyfile": None,
    "--ssl-certfile": None,
    "--ssl-ca-certs": None,
    "--ssl-cert-reqs": None,
    "--ssl-ciphers": None,
    "--enable-ssl-refresh": None,
}
WHY_MANAGED = {
    "--api-key": "the role makes a key on the host and keeps it in /etc/vllm/<instance>.key",
    "--config": "the role writes that file from args",
    "--headless": "an instance must answer on its own address to be proven",
    "--grpc": "an instance must answer over HTTP to be proven",
}
WHY_NO_TLS = "the engine listens on this host alone; TLS belongs to the gateway (role nginx_auth)"

# Options that other guides still name, and what became of them.
GONE = {
    "awq-ckpt": "never existed: point model at the quantised folder, the engine reads the method from its config.json",
    "disable-log-requests": "requests are not logged unless enable_log_requests is true",
    "fp8-padding-threshold": "never existed",
    "guided-decoding-backend": "use structured_outputs_config",
    "num-scheduler-steps": "removed with the engine's first generation; leave it out",
    "swap-space": "removed with the engine's first generation; leave it out",
    "use-v2-block-manager": "removed with the engine's first generation; leave it out",
    "worker-use-ray": "use distributed_executor_backend: ray",
}

# What the engine says to "1k" and the like.
SIZE = re.compile(r"\d+(\.\d+)?[kKmMgGtT]")
INTEGER = re.compile(r"[+-]?\d+")


class ArgsError(ValueError):
    """Options that the engine would refuse or misread."""

    def __init__(self, problems: t.Sequence[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


class EngineFlags:
    """The options of one version of the engine."""

    def __init__(self, data: dict[str, t.Any]) -> None:
        self.engine: str = data["engine"]
        self.names: dict[str, list[str]] = data["names"]
        self.by_flag: dict[str, dict[str, t.Any]] = {name: flag for flag in data["flags"] for name in flag["flags"]}

    def find(self, key: str) -> dict[str, t.Any] | None:
        return self.by_flag.get(long_flag(key))

    def suggest(self, key: str) -> list[str]:
        plain = key.strip("-_").replace("_", "-")
        short = self.by_flag.get("-" + plain)
        if short:
            return [as_key(short["flags"][0])]
        known = sorted({flag["flags"][0][2:] for flag in self.by_flag.values()} - {name[2:] for name in MANAGED})
        return [name.replace("-", "_") for name in difflib.get_close_matches(plain, known, n=3, cutoff=0.6)]


def long_flag(key: str) -> str:
    return "--" + key.replace("_", "-")


def as_key(flag: str) -> str:
    """How a flag is written as a key of args."""
    return flag.lstrip("-").replace("-", "_")


def render_args(args: t.Any, flags: EngineFlags, *, where: str = "args") -> dict[str, t.Any]:
    """The options as the --config file must have them.

    The engine's loader drops every ``false``: it looks for the option's negative form among the options of ``vllm``, not of
    ``vllm serve``. It turns ``null`` into the word None, and gives a list to an option of one value as several. So ``false``
    is written as the negative form, and values as the loader passes them on unharmed.

    Raises ArgsError with every problem found; ``where`` is how their texts call the input.
    """
    if not isinstance(args, dict):
        raise ArgsError([f"{where} is {args!r}, but must be a mapping of options of vllm serve to values."])
    problems: list[str] = []
    rendered: dict[str, t.Any] = {}
    given: dict[str, str] = {}
    for key, value in args.items():
        try:
            flag, name = _flag_of(key, flags)
            canonical = flag["flags"][0]
            if canonical in given:
                raise _Problem(f"is the same option as {given[canonical]}. Keep one of them.")
            given[canonical] = str(key)
            converted = _convert(flag, name, value, flags, args)
        except _Problem as problem:
            problems.append(f"{where}.{key} {problem}")
            continue
        if converted is _LEFT_OUT:
            continue
        if flag["kind"] == "toggle" and not converted:
            rendered[f"no-{canonical[2:]}"] = True
        else:
            rendered[canonical[2:]] = converted
    problems.extend(f"{where}: {text}" for text in _relations(given, rendered))
    if problems:
        raise ArgsError(problems)
    return rendered


class _Problem(Exception):
    pass


_LEFT_OUT = object()


def _flag_of(key: t.Any, flags: EngineFlags) -> tuple[dict[str, t.Any], str]:
    if not isinstance(key, str) or not key:
        raise _Problem("is no option: its name must be a word.")
    if key.startswith("-"):
        raise _Problem(f"must be written without leading dashes: {as_key(key)}.")
    name = long_flag(key)
    flag = flags.find(key)
    canonical = flag["flags"][0] if flag else name
    if canonical in MANAGED:
        variable = MANAGED[canonical]
        if variable:
            raise _Problem(f"is set by the role: use {variable} of the instance (or vllm_service_{variable}) instead.")
        raise _Problem(f"cannot be set: {WHY_MANAGED.get(canonical, WHY_NO_TLS)}. Remove it.")
    if flag is None:
        gone = GONE.get(name[2:])
        if gone:
            raise _Problem(f"is no option of vLLM {flags.engine}: {gone}.")
        near = flags.suggest(key)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise _Problem(f"is no option of vLLM {flags.engine}.{hint} `vllm serve --help=all` lists them all.")
    return flag, name


def _convert(flag: dict[str, t.Any], name: str, value: t.Any, flags: EngineFlags, args: dict[str, t.Any]) -> t.Any:
    if value is None:
        raise _Problem("is null, which the engine would read as the word None. Leave it out, or give it a value.")
    kind = flag["kind"]
    if kind in ("toggle", "switch"):
        if not isinstance(value, bool):
            raise _Problem(f"is {value!r}, but takes true or false only.")
        if kind == "switch":
            # It can only be switched on, and is off by itself.
            return value or _LEFT_OUT
        return value if name == flag["flags"][0] else not value
    if isinstance(value, bool):
        raise _Problem(f"is {str(value).lower()}, but takes {_expected(flag)}.")
    if flag["many"]:
        items = value if isinstance(value, list) else [value]
        if not items:
            raise _Problem("is an empty list. Leave it out, or give it a value.")
        return [_one(flag, item, flags, args) for item in items]
    if isinstance(value, list):
        if "array" not in flag["accepts"] or "word" in flag["accepts"]:
            raise _Problem(f"is a list, but takes one value: {_expected(flag)}.")
        # Several arguments otherwise.
        return json.dumps(value)
    return _one(flag, value, flags, args)


def _one(flag: dict[str, t.Any], value: t.Any, flags: EngineFlags, args: dict[str, t.Any]) -> t.Any:
    accepts = flag["accepts"]
    if isinstance(value, bool) or value is None or isinstance(value, list):
        raise _Problem(f"has {json.dumps(value)} in its list, but takes {_expected(flag)}.")
    if isinstance(value, dict):
        if "object" not in accepts:
            raise _Problem(f"is a mapping, but takes {_expected(flag)}.")
        # The loader turns a mapping into JSON by itself, but not one inside a list.
        return json.dumps(value) if flag["many"] else value
    text = str(value)
    if text.startswith("-") and not INTEGER.fullmatch(text):
        raise _Problem(f"is '{text}'; the engine takes a value that begins with a dash for an option.")
    if not _looks_right(text, value, accepts):
        raise _Problem(f"is '{text}', but takes {_expected(flag)}.")
    if flag["choices"] and text not in flag["choices"]:
        near = difflib.get_close_matches(text, flag["choices"], n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise _Problem(f"is '{text}', but takes one of: {', '.join(flag['choices'])}.{hint}")
    _check_registered(flag, text, flags, args)
    return value


def _looks_right(text: str, value: t.Any, accepts: t.Sequence[str]) -> bool:
    if "word" in accepts:
        return True
    if text == "auto" and "auto" in accepts:
        return True
    if INTEGER.fullmatch(text):
        return "int" in accepts
    if SIZE.fullmatch(text):
        return "size" in accepts
    try:
        float(text)
    except ValueError:
        pass
    else:
        return "float" in accepts
    if isinstance(value, str):
        try:
            parsed = json.loads(text)
        except ValueError:
            return False
        return (isinstance(parsed, dict) and "object" in accepts) or (isinstance(parsed, list) and "array" in accepts)
    return False


def _check_registered(flag: dict[str, t.Any], text: str, flags: EngineFlags, args: dict[str, t.Any]) -> None:
    """Names that the engine knows from a registry. It would stop too, but half a minute after the start."""
    canonical = flag["flags"][0]
    known = flags.names.get(canonical)
    if not known or text in known:
        return
    plugin = {"--reasoning-parser": "reasoning-parser-plugin", "--tool-call-parser": "tool-parser-plugin"}[canonical]
    if any(long_flag(str(key)) == "--" + plugin for key in args):
        return
    near = difflib.get_close_matches(text, known, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise _Problem(
        f"is '{text}', which vLLM {flags.engine} has no parser for.{hint} It has: {', '.join(known)}."
        f" One of your own needs {as_key(plugin)}."
    )


def _relations(given: dict[str, str], rendered: dict[str, t.Any]) -> list[str]:
    problems = []
    if rendered.get("enable-auto-tool-choice") and "--tool-call-parser" not in given:
        problems.append("enable_auto_tool_choice needs tool_call_parser. Set it, or remove enable_auto_tool_choice.")
    return problems


def _expected(flag: dict[str, t.Any]) -> str:
    if flag["choices"]:
        return f"one of: {', '.join(flag['choices'])}"
    accepts = flag["accepts"]
    if "word" in accepts:
        return "text"
    words = {
        "int": "a whole number",
        "float": "a number",
        "size": "a size such as 32k",
        "auto": "the word auto",
        "object": "a mapping",
        "array": "a list",
    }
    skipped = {"int"} if "float" in accepts else set()
    if "object" in accepts:
        skipped |= {"int", "float"}
    return " or ".join(text for name, text in words.items() if name in accepts and name not in skipped)


def spans_hosts(rendered: dict[str, t.Any]) -> bool:
    """Whether the options make the engine work together with other hosts."""
    spread = (
        "data-parallel-address",
        "data-parallel-rank",
        "data-parallel-size-local",
        "data-parallel-start-rank",
        "master-addr",
        "nnodes",
        "node-rank",
    )
    return any(key in rendered for key in spread) or rendered.get("distributed-executor-backend") in (
        "ray",
        "external_launcher",
    )


def workers_needed(rendered: dict[str, t.Any]) -> int | None:
    """How many GPUs of this host the options make the engine use; None when they leave that open."""
    if spans_hosts(rendered) or "device-ids" in rendered:
        return None
    product = 1
    for key in (
        "tensor-parallel-size",
        "pipeline-parallel-size",
        "data-parallel-size",
        "prefill-context-parallel-size",
    ):
        product *= int(rendered.get(key, 1))
    return product
