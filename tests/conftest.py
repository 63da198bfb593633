# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Where all tests keep their temporary files."""

from __future__ import annotations

import os
import shutil

_MEMORY = "/dev/shm"
_ROOM_BYTES = 4 * 2**30


def _use_memory() -> None:
    """Put temporary files into memory, where there is room: a simulated machine is 2400 small files, which a slow disk
    takes seconds for, and hundreds of tests make one. PYTEST_DEBUG_TEMPROOT is pytest's own variable for this."""
    if not os.access(_MEMORY, os.W_OK) or shutil.disk_usage(_MEMORY).free < _ROOM_BYTES:
        return
    # Tests start programs that they have written there.
    if not os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", _MEMORY)


_use_memory()
