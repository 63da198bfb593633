# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""Which GPUs a list of selectors means. Pure: no NVML, no Ansible."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.baremetal.inference.plugins.module_utils._gpu_errors import GpuFailure
from ansible_collections.baremetal.inference.plugins.module_utils._pci import bus_id_order, normalize_bus_id

if t.TYPE_CHECKING:
    from ansible_collections.baremetal.inference.plugins.module_utils._gpu_model import GpuIdentity, UnavailableGpu

ALL = "all"
_FLOAT = re.compile(r"[0-9]+\.[0-9]+")


class GpuSelectorError(GpuFailure):
    """A selector that is malformed or matches nothing."""

    def __init__(self, msg: str, selector: str | None, reason: str = "gpu_not_found") -> None:
        super().__init__(msg, reason=reason, selector=selector)


def select_gpus(
    selectors: t.Sequence[str],
    available: t.Sequence[GpuIdentity],
    unavailable: t.Sequence[UnavailableGpu] = (),
    *,
    option: str = "gpus",
) -> list[GpuIdentity]:
    """The GPUs that the selectors name, each once, ordered by PCI bus id.

    Raises GpuSelectorError at the first selector that names no GPU; ``option`` is how its text calls the input.
    """
    if not selectors:
        raise GpuSelectorError(
            f"{option}: the list is empty, which selects no GPU. Use 'all', or name GPUs by index, UUID or PCI bus id.",
            selector=None,
            reason="invalid_selector",
        )
    chosen: set[int] = set()
    for raw in selectors:
        selector = str(raw).strip()
        if selector.lower() == ALL:
            chosen.update(gpu.index for gpu in available)
        else:
            chosen.add(_select_one(selector, available, unavailable, option).index)
    return sorted(
        (gpu for gpu in available if gpu.index in chosen), key=lambda gpu: (bus_id_order(gpu.pci_bus_id), gpu.index)
    )


def no_gpus(option: str = "gpus") -> GpuFailure:
    """The failure of a module for which a host without GPUs cannot be what is asked for."""
    return GpuFailure(
        f"{option}: 'all' selects nothing, since the driver sees no GPU on this host. Look at what"
        " baremetal.inference.gpu_info says of the PCI bus, or leave this host out of the play.",
        reason="no_gpus",
    )


def not_among_all(count: int, missing: t.Sequence[str]) -> str:
    """The warning that "all" leaves out GPUs which the driver did not take, or which a virtual machine is to have."""
    return (
        f"gpus: 'all' means the {count} GPU(s) that the NVIDIA driver has. The PCI bus also has {', '.join(missing)}: see"
        " missing_from_nvml of baremetal.inference.gpu_info."
    )


def _select_one(
    selector: str, available: t.Sequence[GpuIdentity], unavailable: t.Sequence[UnavailableGpu], option: str
) -> GpuIdentity:
    bus_id = normalize_bus_id(selector)
    # What to look at, and what must be there.
    if selector.isascii() and selector.isdigit():
        name, value = "index", selector.lstrip("0") or "0"
    elif bus_id is not None:
        name, value = "pci_bus_id", bus_id
    elif selector.upper().startswith("GPU-"):
        name, value = "uuid", selector.lower()
    elif selector.upper().startswith("MIG-"):
        raise GpuSelectorError(
            f"{option}: '{selector}' is a MIG instance. Its state belongs to the whole GPU: name the GPU that it is on."
            f" {_inventory(available)}",
            selector=selector,
            reason="invalid_selector",
        )
    else:
        # YAML 1.1 takes digits between colons for a number of base 60, so 0000:07:00.0 without quotes is 420.0.
        hint = (
            " A PCI bus id must stand in quotes, else YAML reads it as a number." if _FLOAT.fullmatch(selector) else ""
        )
        raise GpuSelectorError(
            f"{option}: '{selector}' is no GPU selector. Expected 'all', an index (0), a UUID (GPU-...) or a PCI bus id"
            f" ('0000:07:00.0').{hint} {_inventory(available)}",
            selector=selector,
            reason="invalid_selector",
        )
    for gpu in available:
        if str(getattr(gpu, name)).lower() == value:
            return gpu
    for lost in unavailable:
        if str(getattr(lost, name)).lower() == value:
            raise GpuSelectorError(
                f"{option}: '{selector}' is a GPU that cannot be used: {lost.msg}",
                selector=selector,
                reason=lost.reason,
            )
    raise GpuSelectorError(
        f"{option}: no GPU matches '{selector}'. {_inventory(available)}",
        selector=selector,
    )


def _inventory(available: t.Sequence[GpuIdentity]) -> str:
    if not available:
        return "This host has no usable GPU."
    listed = "; ".join(
        f"{gpu.index} = {gpu.uuid or 'no UUID'} = {gpu.pci_bus_id or 'no PCI bus id'}"
        for gpu in sorted(available, key=lambda gpu: gpu.index)
    )
    return f"This host has: {listed}."
