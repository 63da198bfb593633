# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Let the CUDA build of torchvision be imported beside a CPU build of torch.

Its compiled operators cannot be loaded there, and on import it registers fake kernels for two of them, which fails when
they are not declared. They are declared here, just before its first import; nothing calls them.
"""

from __future__ import annotations

import sys
import typing as t

OPERATORS = ("nms", "qnms")
# torch forgets declarations whose library object is collected.
libraries: list[t.Any] = []


class TorchvisionFinder:
    """Finds nothing itself: it is only asked first, and steps aside."""

    @staticmethod
    def find_spec(name: str, path: t.Any = None, target: t.Any = None) -> None:
        if name != "torchvision":
            return
        sys.meta_path.remove(TorchvisionFinder)  # type: ignore[arg-type]
        import torch

        library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in OPERATORS:
            if not hasattr(torch.ops.torchvision, operator):
                library.define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        libraries.append(library)


sys.meta_path.insert(0, TorchvisionFinder)  # type: ignore[arg-type]
