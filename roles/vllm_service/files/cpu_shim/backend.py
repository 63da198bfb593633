# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A build backend (PEP 517) for the one module and the one .pth file of this folder.

No ordinary backend puts a .pth file into site-packages, and all would have to be fetched first.
"""

from __future__ import annotations

import base64
import hashlib
import pathlib
import tomllib
import typing as t
import zipfile

HERE = pathlib.Path(__file__).parent
MODULE = "vllm_cpu_shim"


def build_wheel(wheel_directory: str, config_settings: t.Any = None, metadata_directory: str | None = None) -> str:
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    stem = f"{project['name']}-{project['version']}"
    info = f"{stem}.dist-info"
    files = {
        f"{MODULE}.py": (HERE / f"{MODULE}.py").read_text(),
        # Python runs the lines of a .pth file when it starts.
        f"{MODULE}.pth": f"import {MODULE}\n",
        f"{info}/METADATA": (
            "Metadata-Version: 2.1\n"
            f"Name: {project['name']}\n"
            f"Version: {project['version']}\n"
            f"Summary: {project['description']}\n"
            f"Requires-Python: {project['requires-python']}\n"
        ),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: vllm_cpu_shim\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [f"{name},sha256={_digest(text)},{len(text.encode())}" for name, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""])
    name = f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(wheel_directory) / name, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
    return name


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
