# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The house itself: what every module and role must have, what no file may have, and the tools that run the rest."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
import tomllib
import typing as t
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
MODULES = sorted(path.stem for path in (ROOT / "plugins" / "modules").glob("*.py"))
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())
STAGES = tomllib.loads((ROOT / "tools" / "stages.toml").read_text())


def repository_files() -> list[Path]:
    """The files that belong to the repository, links and what was just deleted apart."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    paths = [ROOT / os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


FILES = repository_files()


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def texts() -> t.Iterator[tuple[Path, str]]:
    for path in FILES:
        content = path.read_bytes()
        if b"\0" not in content:
            yield path, content.decode()


def constant(module: str, name: str) -> t.Any:
    """DOCUMENTATION, EXAMPLES or RETURN of a module, without importing it."""
    tree = ast.parse((ROOT / "plugins" / "modules" / f"{module}.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(x, ast.Name) and x.id == name for x in node.targets):
            return yaml.safe_load(ast.literal_eval(node.value))
    raise AssertionError(f"plugins/modules/{module}.py has no {name}")


# ---- Modules, roles, playbooks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", MODULES)
def test_a_modules_examples_use_its_full_name(module: str) -> None:
    tasks = constant(module, "EXAMPLES")
    assert any(f"baremetal.inference.{module}" in task for task in tasks)
    for task in tasks:
        assert task.get("name"), task
        actions = [key for key in task if "." in key]
        assert actions or "block" in task, f"no full name of a module in {task}"


@pytest.fixture(scope="session")
def documentation() -> dict[str, t.Any]:
    """What ansible-doc shows of each module, with the fragments in it."""
    shown = subprocess.run(
        [Path(sys.executable).parent / "ansible-doc", "--json", *(f"baremetal.inference.{name}" for name in MODULES)],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "LC_ALL": "C.UTF-8"},
        check=True,
        capture_output=True,
    )
    found: dict[str, t.Any] = json.loads(shown.stdout)
    return found


@pytest.mark.parametrize("module", MODULES)
def test_a_module_says_how_it_takes_check_mode(module: str, documentation: dict[str, t.Any]) -> None:
    doc = documentation[f"baremetal.inference.{module}"]["doc"]
    for attribute in ("check_mode", "diff_mode", "idempotent"):
        assert doc["attributes"][attribute]["support"] in ("full", "partial", "none", "N/A")
    assert doc["version_added"]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_unit_tests(module: str) -> None:
    assert (ROOT / "tests" / "unit" / "plugins" / "modules" / f"test_{module}.py").exists()


@pytest.mark.parametrize("module", MODULES)
def test_the_readme_lists_a_module(module: str) -> None:
    assert re.search(rf"^\| `{module}` \| \S.* \|$", README, re.MULTILINE)


@pytest.mark.parametrize("role", ROLES)
def test_the_readme_lists_a_role(role: str) -> None:
    assert re.search(rf"^\| \[`{role}`\]\(roles/{role}/README\.md\) \| \S.* \|$", README, re.MULTILINE)


def test_the_readme_lists_every_playbook_and_inventory() -> None:
    playbooks = [f"playbooks/{path.name}" for path in (ROOT / "playbooks").glob("*.yml") if path.name != "site.yml"]
    inventories = [f"inventories/{path.name}" for path in (ROOT / "inventories").iterdir() if path.is_dir()]
    assert [name for name in ["site.yml", *playbooks] if f"| `{name}` |" not in README] == []
    assert [name for name in inventories if f"| [`{name}`]({name}) |" not in README] == []


def test_the_readmes_links_lead_somewhere() -> None:
    for path in FILES:
        if path.suffix == ".md":
            for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
                if "://" not in target:
                    assert (path.parent / target).exists(), f"{relative(path)}: {target}"


def test_the_action_group_has_the_modules_that_select_gpus() -> None:
    runtime = yaml.safe_load((ROOT / "meta" / "runtime.yml").read_text())
    using = [
        name
        for name in MODULES
        if "baremetal.inference._gpus" in constant(name, "DOCUMENTATION").get("extends_documentation_fragment", [])
    ]
    assert sorted(runtime["action_groups"]["nvml"]) == using
    importing = [name for name in MODULES if "_nvml" in (ROOT / "plugins" / "modules" / f"{name}.py").read_text()]
    assert importing == using


def test_one_file_alone_imports_pynvml() -> None:
    importing = [
        relative(path)
        for path in FILES
        if path.is_relative_to(ROOT / "plugins")
        and re.search(r"^\s*(import|from) pynvml\b|import_module\(.pynvml", path.read_text(), re.MULTILINE)
    ]
    assert importing == ["plugins/module_utils/_nvml.py"]


def test_helpers_are_private() -> None:
    for folder in ("module_utils", "plugin_utils", "doc_fragments"):
        public = [path.name for path in (ROOT / "plugins" / folder).glob("*.py") if not path.name.startswith("_")]
        assert not public, folder


# ---- What no file may have -------------------------------------------------------------------------------------------

# Written in pieces, so that this file has none of them itself.
REGISTRIES = [
    "pypi" + ".org",
    "python" + "hosted.org",
    "download." + "pytorch.org",
    "deb." + "debian.org",
    "security." + "debian.org",
    "archive." + "ubuntu.com",
    "hugging" + "face.co",
    "hf" + "-mirror",
    "model" + "scope.cn",
]
# Folders of the machine that somebody happened to work on.
MACHINE_PATHS = [
    "/" + "work/",
    "/var/" + "tmp/",
    # What any root's home has may be named: where a container expects its keys, say.
    "/root/" + r"\.(?!ssh/)",
    "/home/" + "[a-z]",
    "/opt/" + "wheels",
    "/opt/" + "pypi",
]
SECRETS = {
    "a private key": "-----BEGIN [A-Z ]*PRIVATE " + "KEY-----\n[A-Za-z0-9+/=]{20}",
    "a token of a model hub": "hf" + "_[A-Za-z0-9]{30}",
    "a key of an API": r"\bsk" + "-[A-Za-z0-9]{20}",
    "a token of GitHub": "gh" + "[pousr]_[A-Za-z0-9]{30}",
}


@pytest.mark.parametrize("host", REGISTRIES)
def test_no_registry_is_wired_in(host: str) -> None:
    """Indexes, mirrors and hubs are the user's to choose: tools have their own defaults and settings for them."""
    assert [relative(path) for path, text in texts() if host in text and path.suffix != ".md"] == []


@pytest.mark.parametrize("path_on_machine", MACHINE_PATHS)
def test_no_path_of_somebodys_machine(path_on_machine: str) -> None:
    pattern = re.compile(rf"(?<![\w.}}$*-]){path_on_machine}")
    assert [f"{relative(p)}: {m.group()}" for p, text in texts() if (m := pattern.search(text))] == []


@pytest.mark.parametrize("what", SECRETS)
def test_no_secret(what: str) -> None:
    pattern = re.compile(SECRETS[what])
    assert [relative(path) for path, text in texts() if pattern.search(text)] == []


def test_no_error_is_swallowed() -> None:
    """A task that may fail says which failures are none, with failed_when."""
    swallowing = re.compile(r"^\s*(ignore_errors|ignore_unreachable):|^\s*failed_when: false|\|\| true\b", re.MULTILINE)
    folders = [ROOT / name for name in ("roles", "playbooks", "sandbox", "molecule", "tools", "tests")]
    checked = [(path, text) for path, text in texts() if any(path.is_relative_to(folder) for folder in folders)]
    assert [relative(path) for path, text in checked if path != Path(__file__) and swallowing.search(text)] == []


def test_every_python_file_has_a_licence() -> None:
    poor = [
        relative(p)
        for p, text in texts()
        if p.suffix == ".py" and "SPDX-License-Identifier: GPL-3.0-or-later" not in text
    ]
    assert not poor


def test_scripts_are_executable_and_nothing_else_is() -> None:
    wrong = []
    for path, text in texts():
        executable = bool(path.stat().st_mode & stat.S_IXUSR)
        # Ansible reads modules and sends them to hosts; nobody executes these files.
        script = text.startswith("#!") and path.parent != ROOT / "plugins" / "modules"
        if executable != script:
            wrong.append(
                f"{relative(path)}: {'executable without #!' if executable else '#! without being executable'}"
            )
    assert not wrong


def test_the_clone_is_its_own_collection() -> None:
    link = ROOT / "collections" / "ansible_collections" / "baremetal" / "inference"
    assert link.is_symlink()
    assert link.resolve() == ROOT


# ---- The tools -------------------------------------------------------------------------------------------------------


def test_ci_runs_what_the_readme_says() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert lines == ["#!/bin/sh", "exec make test"]
    assert re.search(r"^make test\b", README, re.MULTILINE)


def test_every_stage_is_a_target_and_has_something_to_run() -> None:
    makefile = (ROOT / "Makefile").read_text()
    parts = re.search(r"^PARTS := (.*)$", makefile, re.MULTILINE)
    assert parts
    assert sorted(parts[1].split()) == sorted(STAGES)
    for name, stage in STAGES.items():
        program, *arguments = stage["command"].split()
        if program == "pytest":
            folder = ROOT / arguments[-1]
            assert list(folder.rglob("test_*.py")), f"{name}: no tests in {arguments[-1]}"
        elif program.startswith("tools/"):
            assert os.access(ROOT / program, os.X_OK), name
        else:
            assert program == "molecule", name


def test_every_test_belongs_to_a_stage() -> None:
    """A test that no stage runs would be forgotten."""
    folders = [
        ROOT / folder
        for stage in STAGES.values()
        if stage["command"].startswith("pytest")
        for folder in stage["command"].split()[1:]
    ]
    # Molecule runs those of its scenarios, and tools/engine-test those of the engines that it installs.
    folders += [ROOT / "molecule", ROOT / "tests" / "engine"]
    tests = [path for path in FILES if re.fullmatch(r"test_.*\.py|.*_test\.py", path.name)]
    assert [relative(path) for path in tests if not any(path.is_relative_to(folder) for folder in folders)] == []


def write_stages(folder: Path, **stages: str) -> Path:
    """A file of stages: name="lane: command"."""
    path = folder / "stages.toml"
    entries = []
    for name, text in stages.items():
        lane, command = text.split(": ", 1)
        entries.append(f'[{name}]\nabout = "about {name}"\nlane = "{lane}"\nminutes = 1\ncommand = """{command}"""\n')
    path.write_text("\n".join(entries))
    return path


def run_stages(folder: Path, stages: Path, *names: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "tools" / "run_stages.py", "--stages", stages, "--logs", folder / "logs", *names],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_stages_of_a_lane_run_in_order_and_lanes_side_by_side(tmp_path: Path) -> None:
    # Each lane waits for a file of the other: one after the other they would wait for ever.
    wait = "for _ in $(seq 200); do [ -e {0} ] && exit 0; sleep 0.05; done; exit 1"
    stages = write_stages(
        tmp_path,
        one=f"a: touch {tmp_path}/one",
        two=f"a: {wait.format(tmp_path / 'four')}",
        three=f"b: {wait.format(tmp_path / 'one')}",
        four=f"b: touch {tmp_path}/four",
    )
    done = run_stages(tmp_path, stages)
    assert done.returncode == 0, done.stdout
    assert "4 of 4 stages passed." in done.stdout
    assert done.stdout.index("one: passed") < done.stdout.index("two: about two")


def test_the_first_failure_stops_the_rest_and_shows_its_log(tmp_path: Path) -> None:
    stages = write_stages(
        tmp_path,
        bad="a: echo the reason; exit 3",
        later=f"a: touch {tmp_path}/later",
        beside=f"b: trap 'echo tidied; touch {tmp_path}/tidied; exit 1' INT; for _ in $(seq 200); do sleep 0.1; done",
    )
    done = run_stages(tmp_path, stages)
    assert done.returncode == 1
    assert "bad: FAILED" in done.stdout
    assert "status 3" in done.stdout
    assert "\nthe reason\n" in done.stdout
    assert re.search(r"^later +not run", done.stdout, re.MULTILINE)
    assert re.search(r"^beside +stopped", done.stdout, re.MULTILINE)
    assert (tmp_path / "tidied").exists()
    assert not (tmp_path / "later").exists()


def test_a_stage_that_fails_is_cleaned_up(tmp_path: Path) -> None:
    stages = write_stages(tmp_path, bad="a: exit 1", good="b: sleep 0.5")
    stages.write_text(stages.read_text().replace("[good]", f'cleanup = "touch {tmp_path}/cleaned"\n[good]'))
    assert run_stages(tmp_path, stages).returncode == 1
    assert (tmp_path / "cleaned").exists()


def test_an_interrupt_reaches_the_stage_and_is_no_success(tmp_path: Path) -> None:
    stages = write_stages(
        tmp_path, long=f"a: trap 'touch {tmp_path}/tidied; exit 0' INT; touch {tmp_path}/up; sleep 60"
    )
    process = subprocess.Popen(
        [sys.executable, ROOT / "tools" / "run_stages.py", "--stages", stages, "--logs", tmp_path / "logs"],
        stdout=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 30
    while not (tmp_path / "up").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "SIGTERM was received" in output
    assert (tmp_path / "tidied").exists()


def test_a_chosen_stage_runs_alone_and_prints_as_it_goes(tmp_path: Path) -> None:
    stages = write_stages(tmp_path, one="a: echo hello from one", two=f"a: touch {tmp_path}/two")
    done = run_stages(tmp_path, stages, "one")
    assert done.returncode == 0
    assert "\nhello from one\n" in done.stdout
    assert not (tmp_path / "two").exists()


def test_an_unknown_stage_is_named(tmp_path: Path) -> None:
    done = run_stages(tmp_path, write_stages(tmp_path, one="a: true"), "lnt")
    assert done.returncode != 0
    assert "No such stage: lnt. There are: one" in done.stderr


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """What tools/setup works in, without an environment."""
    folder = tmp_path / "clone"
    (folder / "tools").mkdir(parents=True)
    for name in ("tools/setup", "tools/pythons", "requirements-uv.txt", "requirements.txt", "requirements-dev.txt"):
        target = folder / name
        target.write_bytes((ROOT / name).read_bytes())
        target.chmod((ROOT / name).stat().st_mode)
    return folder


def setup(copy: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [copy / "tools" / "setup", "demo"],
        env={"PATH": os.environ["PATH"], "HOME": str(copy), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_setup_names_a_python_that_is_not_there(copy: Path) -> None:
    done = setup(copy, PYTHON="/nowhere/python3.13")
    assert done.returncode == 1
    assert "PYTHON is '/nowhere/python3.13': there is no such program." in done.stderr
    assert not (copy / ".venv").exists()


def test_setup_names_a_python_that_is_none(copy: Path) -> None:
    done = setup(copy, PYTHON="/bin/false")
    assert done.returncode == 1
    assert "PYTHON is '/bin/false': it does not run as a Python interpreter." in done.stderr


def test_setup_names_a_python_that_is_too_old(copy: Path, tmp_path: Path) -> None:
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\necho 3.11\n")
    old.chmod(0o755)
    done = setup(copy, PYTHON=str(old))
    assert done.returncode == 1
    assert f"PYTHON is '{old}', a Python 3.11: ansible-core needs 3.12 or newer." in done.stderr


def test_pythons_lists_those_that_run(tmp_path: Path) -> None:
    shims = tmp_path / "shims"
    shims.mkdir()
    for minor in range(9, 15):
        shim = shims / f"python3.{minor}"
        shim.write_text("#!/bin/sh\necho 'version manager: not found' >&2\nexit 127\n")
        shim.chmod(0o755)
    listed = subprocess.run(
        [ROOT / "tools" / "pythons"],
        env={"PATH": f"{shims}:{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    versions = [line.split(" ", 1)[0] for line in listed]
    assert f"{sys.version_info[0]}.{sys.version_info[1]}" in versions
    assert versions == sorted(set(versions), key=lambda v: int(v.split(".")[1]), reverse=True)
    for line in listed:
        version, path = line.split(" ", 1)
        assert not path.startswith(str(tmp_path))
        said = subprocess.run([path, "--version"], check=True, capture_output=True, text=True).stdout
        assert said.startswith(f"Python {version}.")


def test_locks_name_a_hash_for_everything_and_no_index() -> None:
    for path in ROOT.glob("requirements*.txt"):
        text = path.read_text()
        assert re.findall(r"^-.*$", text, re.MULTILINE) == [], path.name
        pins = re.findall(r"^\S+==\S+.*?(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
        assert pins
        assert [pin.split(" ", 1)[0] for pin in pins if "--hash=sha256:" not in pin] == []


def test_the_tests_run_what_the_demo_runs() -> None:
    def pins(name: str) -> set[str]:
        return set(re.findall(r"^\S+==\S+", (ROOT / name).read_text(), re.MULTILINE))

    assert pins("requirements-uv.txt") <= pins("requirements.txt") <= pins("requirements-dev.txt")
