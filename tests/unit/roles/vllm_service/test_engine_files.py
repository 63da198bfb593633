# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the role says about the engine in several places agrees: versions, locks, flags, shim, look at a model."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import typing as t
import zipfile
from pathlib import Path

import pytest
import yaml

ROLE = Path(__file__).parents[4] / "roles/vllm_service"
LOCKS = ROLE / "files/requirements"
SHIM = ROLE / "files/cpu_shim"
DATA = yaml.safe_load((ROLE / "vars/main/versions.yml").read_text())
VERSIONS = DATA["__vllm_service_versions"]
BUILDS = sorted(VERSIONS)


def packages(lock: str) -> dict[str, list[str]]:
    """The versions of each package in a lock, which may have several for different Pythons."""
    found: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", (LOCKS / lock).read_text(), re.MULTILINE):
        found.setdefault(name, []).append(version)
    return found


@pytest.mark.parametrize("build", BUILDS)
def test_the_lock_has_the_engine_and_the_torch_of_the_versions(build: str) -> None:
    locked = packages(f"{build}.txt")
    assert locked[VERSIONS[build]["package"]] == [VERSIONS[build]["engine"]]
    assert locked["torch"] == [VERSIONS[build]["torch"]]


def test_the_lock_has_the_uv_of_the_versions() -> None:
    assert packages("uv.txt") == {"uv": [DATA["__vllm_service_uv_version"]]}


@pytest.mark.parametrize("lock", ["cuda.txt", "cpu.txt", "cpu-torch.txt", "uv.txt"])
def test_each_package_of_a_lock_has_hashes_and_none_has_an_address(lock: str) -> None:
    text = (LOCKS / lock).read_text()
    assert "://" not in text
    assert "--find-links" not in text
    requirements = re.split(r"(?m)^(?=[A-Za-z0-9])", text)[1:]
    assert len(requirements) == sum(map(len, packages(lock).values()))
    for requirement in requirements:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", requirement), requirement[:80]


def test_torch_alone_is_the_torch_of_the_whole_lock() -> None:
    def entry(lock: str) -> str:
        found = re.search(r"(?m)^torch==(?:.*\\\n)+.*$", (LOCKS / lock).read_text())
        assert found
        return found[0]

    assert entry("cpu-torch.txt") == entry("cpu.txt")


def test_the_cpu_lock_leaves_out_what_is_excluded() -> None:
    excluded = [line for line in (LOCKS / "cpu-excludes.txt").read_text().splitlines() if not line.startswith("#")]
    assert excluded
    assert not set(excluded) & set(packages("cpu.txt"))


def test_the_engine_brings_what_the_probe_needs() -> None:
    for build in BUILDS:
        assert "requests" in packages(f"{build}.txt")


@pytest.mark.parametrize("build", BUILDS)
def test_each_engine_has_its_flags(build: str) -> None:
    flags = json.loads((ROLE / f"files/flags/{VERSIONS[build]['engine']}.json").read_text())
    assert flags["engine"] == VERSIONS[build]["engine"]
    assert len(flags["flags"]) > 300


@pytest.mark.parametrize("build", BUILDS)
def test_what_is_copied_to_the_host_is_there(build: str) -> None:
    for source in VERSIONS[build]["sources"]:
        assert (ROLE / "files" / source).exists()


def build_shim(folder: Path) -> Path:
    spec = importlib.util.spec_from_file_location("backend", SHIM / "backend.py")
    assert spec
    assert spec.loader
    backend = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(backend)
    return folder / backend.build_wheel(str(folder))


def test_the_shim_is_a_whole_wheel_under_the_name_that_the_engine_looks_up(tmp_path: Path) -> None:
    project = tomllib.loads((SHIM / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["version"]) == ("vllm", f"{VERSIONS['cpu']['engine']}+cpu")
    with zipfile.ZipFile(build_shim(tmp_path)) as wheel:
        record = wheel.read("vllm-0.32.0+cpu.dist-info/RECORD").decode().splitlines()
        listed = {line.split(",")[0]: line.split(",")[1] for line in record}
        assert set(listed) == set(wheel.namelist())
        for name in wheel.namelist():
            if not name.endswith("/RECORD"):
                digest = base64.urlsafe_b64encode(hashlib.sha256(wheel.read(name)).digest()).rstrip(b"=").decode()
                assert listed[name] == f"sha256={digest}"
        assert wheel.read("vllm_cpu_shim.pth") == b"import vllm_cpu_shim\n"


TORCH = """
declared = []
class Library:
    def __init__(self, name, kind): assert (name, kind) == ("torchvision", "FRAGMENT")
    def define(self, text): declared.append(text.split("(")[0])
class library:
    Library = Library
class ops:
    class torchvision:
        qnms = None
"""


def test_the_shim_declares_missing_operators_once_before_torchvision_is_imported(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "torchvision.py").write_text("import torch\nassert torch.declared == ['nms']\n")
    code = (
        "import vllm_cpu_shim, sys; assert 'torch' not in sys.modules;"
        "import json; assert 'torch' not in sys.modules;"
        "import torchvision, torch; assert torch.declared == ['nms'];"
        "assert vllm_cpu_shim.TorchvisionFinder not in sys.meta_path"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{tmp_path}:{SHIM}", "PYTHONDONTWRITEBYTECODE": "1"},
        check=True,
    )


def look(folder: Path, user: str = "root") -> dict[str, t.Any]:
    script = (ROLE / "files/look_at_model.py").read_text()
    done = subprocess.run([sys.executable, "-c", script, str(folder), user], check=True, capture_output=True, text=True)
    return t.cast("dict[str, t.Any]", json.loads(done.stdout))


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which root alone may")


@needs_root
def test_a_look_at_a_model(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model-1.safetensors").write_bytes(b"x" * 20)
    (folder / "gone.safetensors").symlink_to(folder / "nowhere")
    (folder / "linked.safetensors").symlink_to(folder / "model-1.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "2", "b": "1", "c": "1"}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ x }}"}))
    (folder / "figures").mkdir()
    found = look(folder)
    assert {entry["name"]: entry["size"] for entry in found["files"] if entry["name"].endswith("safetensors")} == {
        "linked.safetensors": 20,
        "model-1.safetensors": 20,
    }
    assert "figures" not in [entry["name"] for entry in found["files"]]
    assert (found["exists"], found["closed"], found["config"]) == (True, False, True)
    assert (found["shards"], found["chat_template"]) == (["1", "2"], True)
    (folder / "model.safetensors.index.json").write_text("{")
    (folder / "config.json").write_text("[")
    assert (look(folder)["shards"], look(folder)["config"]) == (None, False)


@needs_root
def test_a_look_is_with_the_eyes_of_the_user(tmp_path: Path) -> None:
    # pytest's own folders are closed; with several workers there is one more of them.
    for opened in (tmp_path, *tmp_path.parents):
        if opened == Path(tempfile.gettempdir()):
            break
        opened.chmod(0o755)
    folder = tmp_path / "model"
    folder.mkdir(mode=0o755)
    (folder / "weights").write_text("x")
    (folder / "weights").chmod(0o600)
    # The second user is not there, and one without rights stands in.
    for user in ("nobody", "no-such-user"):
        assert look(folder, user)["files"] == [{"name": "weights", "size": 1, "readable": False}]
    folder.chmod(0o700)
    assert look(folder, "nobody")["closed"]
    assert not look(folder / "missing")["exists"]
