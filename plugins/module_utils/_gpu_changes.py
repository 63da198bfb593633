# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""What the modules that set something on GPUs share: whom they work on, and what happens when half of it fails.

The order is always the same: read all selected GPUs, decide for all, refuse before anything is changed, change one GPU
after the other, read all again. A GPU that refuses does not keep the others from being set; the failure at the end says
which were changed, and a rerun has only the rest to do.
"""

from __future__ import annotations

import contextlib
import os
import typing as t
from dataclasses import dataclass, field

from ansible_collections.baremetal.inference.plugins.module_utils._gpu_errors import GpuFailure
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_select import (
    ALL,
    no_gpus,
    not_among_all,
    select_gpus,
)
from ansible_collections.baremetal.inference.plugins.module_utils._nvml import (
    Device,
    NvmlFailure,
    nvml_session,
)
from ansible_collections.baremetal.inference.plugins.module_utils._pci import Sysfs, gpus_of

if t.TYPE_CHECKING:
    from ansible_collections.baremetal.inference.plugins.module_utils._gpu_model import GpuIdentity, UnavailableGpu

State = t.TypeVar("State")


@contextlib.contextmanager
def selected_gpus(params: t.Mapping[str, t.Any], warn: t.Callable[[str], None]) -> t.Iterator[list[Device]]:
    """One NVML session, and the GPUs in it that ``gpus`` names, ordered by PCI bus id.

    Raises GpuFailure when one of them does not answer, or when there is none at all: what is asked for could not be
    said of all GPUs that are meant.
    """
    with nvml_session(params["pynvml_path"]) as nvml:
        devices, silent = nvml.devices()
        identities = [device.identity for device in devices]
        chosen = {gpu.index for gpu in select_gpus(params["gpus"], identities, silent)}
        if any(str(selector).strip().lower() == ALL for selector in params["gpus"]):
            if silent:
                raise _silent_failure(silent, identities)
            _warn_of_missing(identities, Sysfs(params["sysfs_root"]), warn)
        if not chosen:
            raise no_gpus()
        yield [device for device in devices if device.identity.index in chosen]


def _silent_failure(silent: t.Sequence[UnavailableGpu], others: t.Sequence[GpuIdentity]) -> GpuFailure:
    first = silent[0]
    rest = ", ".join(str(gpu.index) for gpu in sorted(others, key=lambda gpu: gpu.index))
    return GpuFailure(
        f"gpus: 'all' includes GPU {', '.join(str(gpu.index) for gpu in silent)}, which cannot be used: {first.msg}"
        f" Nothing was changed. To go on without it, name the others: gpus: [{rest}].",
        reason=first.reason,
        nvml_code=first.nvml_code,
        gpu={"index": first.index, "uuid": first.uuid, "pci_bus_id": first.pci_bus_id},
    )


def _warn_of_missing(identities: t.Sequence[GpuIdentity], sysfs: Sysfs, warn: t.Callable[[str], None]) -> None:
    """A GPU that the driver did not take, or that is set aside for a virtual machine, is not among "all"."""
    seen = {gpu.pci_bus_id for gpu in identities}
    missing = [gpu.pci_bus_id for gpu in gpus_of(sysfs.nvidia_devices()) if gpu.pci_bus_id not in seen]
    if missing:
        warn(not_among_all(len(identities), missing))


@dataclass
class GpuPlan(t.Generic[State]):
    """One GPU: what it is like, and what there is to do. ``change`` is None where nothing is."""

    device: Device
    before: State
    change: t.Callable[[], None] | None
    wanted: t.Any = None
    failure: GpuFailure | None = None
    changed: bool = False
    # What it is like afterwards; in check mode, what it would be.
    after: State = field(init=False)

    def __post_init__(self) -> None:
        self.after = self.before


def converge(
    params: t.Mapping[str, t.Any],
    *,
    observe: t.Callable[[Device], State],
    decide: t.Callable[[Device, State], tuple[t.Any, t.Callable[[], None] | None]],
    foresee: t.Callable[[State, t.Any], State],
    verify: t.Callable[[GpuPlan[State]], None],
    check_mode: bool,
    warn: t.Callable[[str], None],
) -> list[GpuPlan[State]]:
    """Bring the selected GPUs to what is wanted of each, in one NVML session.

    ``decide`` gives what is wanted of a GPU and the change that brings it there, or raises GpuFailure, and then nothing
    is changed on any. ``foresee`` is the state that the change would lead to. ``verify`` sets a plan's failure where the
    change was made and does not show. The caller passes the plans to ``raise_failures``.
    """
    with selected_gpus(params, warn) as devices:
        plans = []
        for device in devices:
            before = observe(device)
            wanted, change = decide(device, before)
            plans.append(GpuPlan(device=device, before=before, change=change, wanted=wanted))
        carry_out(plans, check_mode=check_mode, warn=warn)
        for plan in plans:
            # What was not touched needs no second reading.
            if check_mode and plan.changed:
                plan.after = foresee(plan.before, plan.wanted)
            elif not check_mode and plan.change:
                plan.after = read_after(plan, observe)
                if plan.changed and plan.failure is None:
                    verify(plan)
                    plan.changed = plan.failure is None
    return plans


def carry_out(plans: t.Sequence[GpuPlan[t.Any]], *, check_mode: bool, warn: t.Callable[[str], None]) -> None:
    """Make the changes, and note in each plan how it went. In check mode they count as made."""
    pending = [plan for plan in plans if plan.change is not None]
    if check_mode and pending and os.geteuid() != 0:
        warn(
            f"There is something to change, and the user with number {os.geteuid()} may not: only root can. Outside check"
            " mode this would fail; run the task with become: true."
        )
    for plan in pending:
        if not check_mode:
            try:
                t.cast("t.Callable[[], None]", plan.change)()
            except GpuFailure as failure:
                plan.failure = failure
                continue
        plan.changed = True


def raise_failures(plans: t.Sequence[GpuPlan[t.Any]], gpus: t.Sequence[t.Mapping[str, t.Any]]) -> None:
    """Raise one GpuFailure for all plans that failed, with the state of all GPUs and what was changed in it."""
    failed = [plan for plan in plans if plan.failure is not None]
    if not failed:
        return
    first = t.cast(GpuFailure, failed[0].failure)
    changed = [plan.device.identity for plan in plans if plan.changed]
    texts = [t.cast(GpuFailure, plan.failure).msg for plan in failed]
    # Eight GPUs that refuse for one reason need it said once.
    told = texts[0] if len(failed) == 1 or first.reason == "no_permission" else " ".join(texts)
    done = (
        f"Changed before that, and still so: {', '.join(gpu.label() for gpu in changed)}; a rerun does the rest."
        if changed
        else "Nothing was changed."
    )
    count = f"{len(failed)} of {len(plans)} GPUs failed. " if len(plans) > 1 else ""
    raise GpuFailure(
        f"{count}{told} {done}",
        reason=first.reason,
        **{key: value for key, value in first.fields.items() if key in ("nvml_code", "nvml_call", "gpu")},
        changed=bool(changed),
        gpus=list(gpus),
        failed_gpus=[plan.device.identity.pci_bus_id or plan.device.identity.uuid for plan in failed],
        changed_gpus=[gpu.pci_bus_id or gpu.uuid for gpu in changed],
    )


def read_after(plan: GpuPlan[State], read: t.Callable[[Device], State]) -> State:
    """The GPU's state after the changes; of one that no longer answers, the last state that is known."""
    try:
        return read(plan.device)
    except NvmlFailure as failure:
        if plan.failure is None:
            plan.failure = failure
        return plan.before


def diff(header: str, before: t.Mapping[str, t.Any], after: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """For Ansible's --diff: values by GPU, before and after."""
    return {"before_header": header, "after_header": header, "before": dict(before), "after": dict(after)}


def diff_of(header: str, plans: t.Sequence[GpuPlan[State]], value: t.Callable[[State], t.Any]) -> dict[str, t.Any]:
    return diff(
        header,
        {key_of(plan.device.identity): value(plan.before) for plan in plans},
        {key_of(plan.device.identity): value(plan.after) for plan in plans},
    )


def key_of(identity: GpuIdentity) -> str:
    """The GPU's name in diffs."""
    return identity.pci_bus_id or identity.uuid or str(identity.index)
