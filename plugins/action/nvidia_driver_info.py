# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.baremetal.inference.plugins.plugin_utils._nvml_action import NvmlActionBase


class ActionModule(NvmlActionBase):
    """Action part of baremetal.inference.nvidia_driver_info."""
