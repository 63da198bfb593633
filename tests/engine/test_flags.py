# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every option that the role can write, given to the real engine's own parser, in a --config file and on the command line.

BAREMETAL_INFERENCE_ENGINES="$(tests/engine/prepare)" pytest tests/engine
"""

from __future__ import annotations

import json
import os
import subprocess
import typing as t
from pathlib import Path

import jinja2
import pytest
import yaml

from ansible_collections.baremetal.inference.plugins.module_utils._engine_args import MANAGED, EngineFlags, render_args

HERE = Path(__file__).parent
ROLE = HERE.parents[1] / "roles/vllm_service"
MODEL = "/srv/models/some-model"
OWN = {"model": MODEL, "served-model-name": ["a", "b"], "host": "127.0.0.1", "port": 8001}


class Engine:
    """One version of the engine, and its flags as the role has them."""

    def __init__(self, version: str, python: str, pythonpath: str) -> None:
        self.version = version
        self.python = python
        self.environment = {**os.environ, "VLLM_TARGET_DEVICE": "cpu", "VLLM_NO_USAGE_STATS": "1"}
        if pythonpath != "-":
            self.environment["PYTHONPATH"] = pythonpath
        self.file = ROLE / f"files/flags/{version}.json"
        self.flags = EngineFlags(json.loads(self.file.read_text()))
        self.options = json.loads(self.file.read_text())["flags"]

    def run(self, script: str, text: str | None = None) -> str:
        done = subprocess.run(
            [self.python, str(HERE / script)],
            input=text,
            env=self.environment,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest) -> Engine:
    return Engine(*request.param)


def test_the_role_has_the_options_that_the_parser_has(engine: Engine) -> None:
    assert engine.run("dump_flags.py") == engine.file.read_text()


def values_for(flag: dict[str, t.Any], flags: EngineFlags) -> list[t.Any]:
    """Valid values, one of each type that the option takes."""
    if flag["kind"] in ("toggle", "switch"):
        return [True, False]
    name = flag["flags"][0]
    if name == "--lora-modules":
        return ["a=/srv/a", ["a=/srv/a", "b=/srv/b"], [{"name": "c", "path": "/srv/c"}]]
    if flag["choices"]:
        single: list[t.Any] = [flag["choices"][0], flag["choices"][-1]]
    elif name in flags.names:
        single = [flags.names[name][0]]
    else:
        example = {"int": 1, "float": 0.5, "size": "1k", "auto": "auto", "word": "some-word", "object": {}}
        if "word" in flag["accepts"]:
            single = ["some-word", 1]
        elif "object" in flag["accepts"]:
            single = [example["object"]] + ([["a", "b"]] if "array" in flag["accepts"] else [])
        else:
            single = [value for kind, value in example.items() if kind in flag["accepts"]]
    return [[value] for value in single] + [single] if flag["many"] else single


def on_the_command_line(flag: dict[str, t.Any], value: t.Any) -> list[str]:
    """What a person would type; written without the code under test."""
    name = flag["flags"][0]
    if flag["kind"] == "toggle":
        return [name] if value else [next(other for other in flag["flags"] if other.startswith("--no-"))]
    if flag["kind"] == "switch":
        return [name] if value else []
    if flag["many"]:
        items = value if isinstance(value, list) else [value]
        return [name, *(item if isinstance(item, str) else json.dumps(item) for item in items)]
    return [name, value if isinstance(value, str) else json.dumps(value)]


def spellings(flag: dict[str, t.Any]) -> list[str]:
    long = [name[2:] for name in flag["flags"] if name.startswith("--")]
    return sorted({*long, *(name.replace("-", "_") for name in long)})


def config_file(folder: Path, number: int, content: dict[str, t.Any]) -> str:
    """As the role's template writes it."""
    environment = jinja2.Environment(trim_blocks=True)
    environment.filters.update(
        {
            "comment": lambda text: f"# {text}",
            "combine": lambda first, second: {**first, **second},
            "to_nice_yaml": lambda data, indent, width, sort_keys: yaml.safe_dump(
                data, indent=indent, width=width, sort_keys=sort_keys, default_flow_style=False
            ),
        }
    )
    template = environment.from_string((ROLE / "templates/instance.yaml.j2").read_text())
    item = {
        "model": OWN["model"],
        "served_model_name": OWN["served-model-name"],
        "host": OWN["host"],
        "port": OWN["port"],
        "uds": "",
        "config_args": content,
    }
    path = folder / f"{number}.yaml"
    path.write_text(template.render(item=item, ansible_managed="Ansible managed"))
    return str(path)


def test_every_option_means_in_the_file_what_it_means_on_the_command_line(engine: Engine, tmp_path: Path) -> None:
    """All options at once, in as many rounds as it takes to have each with each value in each of its spellings."""
    options = [flag for flag in engine.options if flag["flags"][0] not in MANAGED]
    cases = [
        [(spelling, value) for value in values_for(flag, engine.flags) for spelling in spellings(flag)]
        for flag in options
    ]
    own = [MODEL, "--served-model-name", "a", "b", "--host", "127.0.0.1", "--port", "8001"]
    requests = [own]
    for number in range(max(map(len, cases))):
        given = {}
        typed = list(own)
        for flag, choices in zip(options, cases, strict=True):
            spelling, value = choices[number % len(choices)]
            given[spelling] = value
            # A negative spelling says the contrary.
            negative = flag["kind"] == "toggle" and "--" + spelling.replace("_", "-") != flag["flags"][0]
            typed += on_the_command_line(flag, not value if negative else value)
        rendered = render_args(given, engine.flags)
        requests += [["--config", config_file(tmp_path, number, rendered)], typed]
    requests.append([MODEL, "--no-such-option", "1"])
    results = json.loads(engine.run("parse_configs.py", json.dumps(requests)))
    assert "unrecognized arguments: --no-such-option" in results.pop()["error"]
    errors = [result["error"] for result in results if "error" in result]
    assert not errors
    default, *rounds = [result["values"] for result in results]
    changed: set[str] = set()
    for in_file, typed_values in zip(rounds[::2], rounds[1::2], strict=True):
        assert in_file.pop("model") == MODEL
        # On the command line the model is the positional argument.
        typed_values.pop("model")
        assert in_file == typed_values
        changed |= {name for name, value in in_file.items() if value != default.get(name)}
    # Options whose every value is also their default would prove nothing.
    # Of an empty mapping that is so.
    assert len(changed) > 0.9 * len(options), sorted(set(default) - changed)
