# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this doc fragment is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

from __future__ import annotations


class ModuleDocFragment:
    # What each module says about itself. The details are the module's own: it names the parts that apply.
    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Whether check mode says what would change, and changes nothing.
  diff_mode:
    description: Whether diff mode shows the state before and after.
  idempotent:
    description: Whether a second run with the same options finds nothing left to change.
"""

    # For modules that change nothing.
    READ_ONLY = r"""
options: {}
attributes:
  check_mode:
    support: full
    details:
      - This module changes nothing, so check mode makes no difference.
  diff_mode:
    support: N/A
    details:
      - This module changes nothing.
  idempotent:
    support: full
    details:
      - This module changes nothing.
"""

    # For modules that plan their changes and carry them out only outside check mode.
    DECLARED_STATE = r"""
options: {}
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
"""
