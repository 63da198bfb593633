# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""Action part of the GPU modules: hosts that lack nvidia-ml-py get the controller's pynvml.py for the one task."""

from __future__ import annotations

import importlib.util
import os
import typing as t

from ansible.plugins.action import ActionBase

PYNVML_FILE = "pynvml.py"


def controller_pynvml() -> str | None:
    """The installed pynvml.py, or None. Packages of that name (pynvml before 12) are more than one file: not sent."""
    spec = importlib.util.find_spec("pynvml")
    if spec is None or spec.origin is None or os.path.basename(spec.origin) != PYNVML_FILE:
        return None
    return spec.origin


class NvmlActionBase(ActionBase):
    """Runs the module of the task's own name; once more, with pynvml.py beside it, when the host lacks that."""

    _supports_check_mode = True
    _supports_async = False
    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        del tmp
        result.update(self._execute_module(task_vars=task_vars))
        if result.get("reason") != "python_library_missing" or self._task.args.get("pynvml_path"):
            return result
        local_file = controller_pynvml()
        if local_file is None:
            # The module's own text says what to install, and where.
            return result
        arguments = {key: value for key, value in self._task.args.items() if not key.startswith("_ansible_")}
        arguments["pynvml_path"] = self._send(local_file)
        return t.cast("dict[str, t.Any]", self._execute_module(module_args=arguments, task_vars=task_vars))

    def _send(self, local_file: str) -> str:
        """Put the file into the task's temporary folder, which Ansible removes when the task ends."""
        shell = self._connection._shell
        folder = shell.tmpdir or self._make_tmp_path()
        remote_file = t.cast(str, shell.join_path(folder, PYNVML_FILE))
        self._transfer_file(local_file, remote_file)
        # The folder belongs to the user who logs in; the module may run as another.
        self._fixup_perms2([folder, remote_file], execute=False)
        return remote_file
