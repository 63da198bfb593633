# Copyright: (c) 2026, the baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the model makers beside this file share: write a checkpoint that is whole or absent, and readable."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any


def refuse_existing(out: Path) -> None:
    """Stop when OUT is there: nothing is overwritten."""
    if out.exists():
        sys.exit(f"{out} exists already: remove it, or name another folder.")


def save(model: Any, tokenizer: Any, out: Path) -> None:
    """Save a transformers model and tokenizer under OUT, by way of a staging folder, and print what was written."""
    staging = out.with_name(out.name + ".partial")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    model.save_pretrained(staging)
    tokenizer.save_pretrained(staging)
    for file in staging.iterdir():
        # safetensors files come out as 0600; the service runs as another user than the one who makes them.
        file.chmod(0o644)
    os.rename(staging, out)
    print(
        json.dumps(
            {
                "path": str(out),
                "architecture": type(model).__name__,
                "parameters": sum(p.numel() for p in model.parameters()),
                "bytes": sum(f.stat().st_size for f in out.iterdir()),
            }
        )
    )
