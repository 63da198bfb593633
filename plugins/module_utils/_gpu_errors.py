# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""Failures that a GPU module reports: a text for people, fields for machines."""

from __future__ import annotations

import typing as t


class GpuFailure(Exception):
    """Something the operator has to act on. ``fields`` end up in the module's result beside ``msg``."""

    def __init__(self, msg: str, *, reason: str, **fields: t.Any) -> None:
        super().__init__(msg)
        self.msg = msg
        self.reason = reason
        self.fields = fields

    def as_result(self) -> dict[str, t.Any]:
        return {"msg": self.msg, "reason": self.reason, **self.fields}
