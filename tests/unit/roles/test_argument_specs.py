# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A role's contract: what it declares, what it defaults, what it documents and what it uses are the same variables."""

from __future__ import annotations

import re
import typing as t
from pathlib import Path

import pytest
import yaml

ROLES = Path(__file__).resolve().parents[3] / "roles"
NAMES = sorted(path.name for path in ROLES.iterdir() if path.is_dir())
# Parts of a task that name tasks' tags and files rather than variables.
NOT_VARIABLES = ("tags", "src", "tasks_from", "name", "include_tasks", "import_tasks", "notify", "listen", "role")


class Loader(yaml.SafeLoader):
    """YAML as Ansible writes it: its own tags do not matter here."""


Loader.add_multi_constructor("!", lambda loader, suffix, node: loader.construct_scalar(node))


def load(path: Path) -> t.Any:
    return yaml.load(path.read_text(), Loader=Loader) if path.exists() else None


class Role:
    """The files of one role."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = ROLES / name
        self.specs: dict[str, t.Any] = load(self.folder / "meta" / "argument_specs.yml")["argument_specs"]
        self.options: dict[str, t.Any] = self.specs.get("main", {}).get("options", {})
        self.defaults: dict[str, t.Any] = load(self.folder / "defaults" / "main.yml") or {}
        self.tasks = self._yaml("tasks", "handlers")
        self.vars = {name: value for path, content in self._yaml("vars") for name, value in (content or {}).items()}

    def _yaml(self, *folders: str) -> list[tuple[Path, t.Any]]:
        paths = [path for folder in folders for path in sorted((self.folder / folder).rglob("*.yml"))]
        return [(path, load(path)) for path in paths]

    def readme(self) -> str:
        path = self.folder / "README.md"
        assert path.exists(), f"roles/{self.name} has no README.md"
        return path.read_text()

    def templates(self) -> list[str]:
        return [path.read_text() for path in sorted((self.folder / "templates").rglob("*")) if path.is_file()]

    def words(self, text: str) -> set[str]:
        """The names in a text that begin with the role's name, `__` before it or not."""
        return set(re.findall(rf"(?<![\w/.-])(?:__)?{self.name}_[a-z0-9_]+(?![\w/-]|\.(?:yml|j2|sh|py)\b)", text))

    def assigned(self) -> t.Iterator[tuple[Path, str, str]]:
        """Every variable that tasks set: the file, by which keyword, its name."""
        for path, content in self.tasks:
            for task in walk(content):
                for keyword in ("register", "loop_var", "index_var"):
                    if isinstance(task.get(keyword), str):
                        yield path, keyword, task[keyword]
                if isinstance(task.get("vars"), dict):
                    for name in task["vars"]:
                        yield path, "vars", name
                for keyword in ("set_fact", "ansible.builtin.set_fact"):
                    for name in task.get(keyword) or ():
                        yield path, "set_fact", name

    def facts(self) -> set[str]:
        """What the role hands on: facts under public names."""
        return {name for _path, keyword, name in self.assigned() if keyword == "set_fact" and not name.startswith("__")}

    def used(self) -> set[str]:
        """Every name of the role's own that its tasks, variables and templates mention."""
        texts = self.templates()
        for _path, content in self.tasks:
            texts.extend(strings(content))
        texts.extend(strings(self.vars))
        texts.extend(strings(self.defaults))
        return {word for text in texts for word in self.words(text)}


def walk(content: t.Any) -> t.Iterator[dict[str, t.Any]]:
    """Every mapping in a structure."""
    if isinstance(content, dict):
        yield content
    for item in content.values() if isinstance(content, dict) else content if isinstance(content, list) else ():
        yield from walk(item)


def strings(content: t.Any) -> t.Iterator[str]:
    """Every value that can be an expression; keys are names, not uses."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for item in content:
            yield from strings(item)
    elif isinstance(content, dict):
        for key, item in content.items():
            if key not in NOT_VARIABLES or (isinstance(item, str) and "{{" in item):
                yield from strings(item)


@pytest.fixture(params=NAMES)
def role(request: pytest.FixtureRequest) -> Role:
    return Role(request.param)


def nested(options: t.Mapping[str, t.Any]) -> t.Iterator[tuple[str, t.Any]]:
    for name, option in options.items():
        yield name, option
        for inner, suboption in nested(option.get("options", {})):
            yield f"{name}.{inner}", suboption


def test_there_are_roles() -> None:
    assert NAMES


def test_a_role_has_a_main_entry_point_with_options(role: Role) -> None:
    assert role.options, f"roles/{role.name}/meta/argument_specs.yml has no options for main"


def test_every_option_begins_with_the_roles_name(role: Role) -> None:
    stray = [
        name for spec in role.specs.values() for name in spec.get("options", {}) if not name.startswith(f"{role.name}_")
    ]
    assert not stray


def test_defaults_and_options_are_the_same(role: Role) -> None:
    missing = {name: option["default"] for name, option in role.options.items() if "default" in option}
    assert missing == role.defaults


def test_a_required_option_has_no_default(role: Role) -> None:
    contradictory = [
        name for spec in role.specs.values() for name, option in nested(spec["options"])
        if option.get("required") and "default" in option
    ]  # fmt: skip
    assert not contradictory


def test_every_option_is_typed_and_described(role: Role) -> None:
    poor = [
        f"{entry}: {name}"
        for entry, spec in role.specs.items()
        for name, option in nested(spec.get("options", {}))
        if not option.get("type")
        or not option.get("description")
        or (option["type"] == "list" and not option.get("elements"))
    ]
    assert not poor


def test_entry_points_agree_about_an_option(role: Role) -> None:
    for entry, spec in role.specs.items():
        for name, option in spec.get("options", {}).items():
            for aspect in ("type", "elements", "default", "choices", "options"):
                assert option.get(aspect) == role.options[name].get(aspect), f"{entry}: {name}: {aspect}"


def test_every_entry_point_is_a_task_file(role: Role) -> None:
    lost = [entry for entry in role.specs if not (role.folder / "tasks" / f"{entry}.yml").exists()]
    assert not lost


def test_what_tasks_set_is_internal_or_documented(role: Role) -> None:
    """A name of the role's own with `__` before it; a public fact is part of the contract, so the README has it."""
    readme = role.readme()
    wrong = []
    for path, keyword, name in role.assigned():
        public_fact = keyword == "set_fact" and name.startswith(f"{role.name}_") and f"`{name}`" in readme
        # Variables of a single task: how to connect for it, or options of another role that it includes.
        of_others = keyword == "vars" and (name.startswith("ansible_") or any(name.startswith(f"{n}_") for n in NAMES))
        if not (name.startswith(f"__{role.name}_") or public_fact or of_others):
            wrong.append(f"{path.relative_to(ROLES)}: {keyword}: {name}")
    assert not wrong


def test_vars_are_internal(role: Role) -> None:
    assert [name for name in role.vars if not name.startswith(f"__{role.name}_")] == []


def test_every_variable_that_is_used_exists(role: Role) -> None:
    """A typing error, an option without a spec, or a leftover."""
    known = {*role.options, *role.vars, *(name for _path, _keyword, name in role.assigned())}
    assert sorted(role.used() - known) == []


def test_every_variable_that_exists_is_used(role: Role) -> None:
    """An option that does nothing is a lie; a variable that nobody reads is a leftover."""
    known = {*role.options, *role.vars, *(name for _path, _keyword, name in role.assigned())}
    own = {name for name in known if name.startswith((f"{role.name}_", f"__{role.name}_"))}
    assert sorted(own - role.used() - role.facts()) == []


def test_the_readme_tells_every_option(role: Role) -> None:
    readme = role.readme()
    untold = [name for name in role.options if not re.search(rf"`{name}`", readme)]
    assert not untold


def test_the_readme_tells_no_option_that_does_not_exist(role: Role) -> None:
    readme = role.readme()
    told = set(re.findall(rf"`({role.name}_[a-z0-9_]+)`", readme))
    tags = {f"{role.name}_{step}" for step in ("preflight", "install", "configure", "run")}
    assert sorted(told - set(role.options) - role.facts() - tags) == []
