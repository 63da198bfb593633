# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""What the role gpu_state is to do on one host: wishes and facts in, one plan out. Pure: no NVML, no Ansible."""

from __future__ import annotations

import math
import typing as t
from dataclasses import dataclass

from ansible_collections.baremetal.inference.plugins.module_utils._gpu_errors import GpuFailure
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_model import (
    GpuIdentity,
    PowerState,
    UnavailableGpu,
)
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_select import ALL, no_gpus, select_gpus
from ansible_collections.baremetal.inference.plugins.module_utils._power import WantedLimit, wanted_watts

UNCHANGED = "unchanged"
ECC = ("enabled", "disabled", UNCHANGED)
PERSISTENCE = ("enabled", UNCHANGED)
_POWER_EXPECTED = (
    "expected unchanged, default, max, a mapping with watts (a whole number), or one with percent"
    " (of the card's default)"
)
# Stands in a text for the GPUs that it is about.
_GPUS = "<GPUs>"
_OVERRIDE_KEYS = ("gpus", "ecc", "power_limit", "persistence")

Facts = t.Mapping[str, t.Any]


class _Wrong(Exception):
    """A value that no host could have; the text is a problem."""


def parse_power_limit(value: t.Any, name: str) -> WantedLimit | None:
    """None where the limit is to stay as it is."""
    if value == UNCHANGED:
        return None
    if value in ("default", "max"):
        return WantedLimit(named=value)
    if isinstance(value, dict) and len(value) == 1:
        ((kind, amount),) = value.items()
        number = _number(amount)
        if number is not None and number > 0:
            if kind == "percent":
                return WantedLimit(percent=number)
            if kind == "watts" and number.is_integer():
                return WantedLimit(watts=int(number))
    raise _Wrong(f"{name} is {value!r}: {_POWER_EXPECTED}.")


def _number(value: t.Any) -> float | None:
    """Templates make texts of numbers."""
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _choice(value: t.Any, choices: t.Sequence[str], name: str) -> str:
    if value not in choices:
        raise _Wrong(f"{name} is {value!r}: expected {', '.join(choices[:-1])} or {choices[-1]}.")
    return t.cast(str, value)


@dataclass
class _Wish:
    """What one GPU is to have, and which variable says so."""

    facts: Facts
    ecc: str
    ecc_from: str
    power: WantedLimit | None
    power_from: str
    persistence: str

    @property
    def identity(self) -> GpuIdentity:
        return identity(self.facts)


def identity(facts: Facts) -> GpuIdentity:
    return GpuIdentity(index=facts["index"], uuid=facts["uuid"], pci_bus_id=facts["pci_bus_id"])


def plan_gpu_state(wishes: t.Mapping[str, t.Any], observed: Facts) -> dict[str, t.Any]:
    """The plan for a host.

    ``wishes`` are the role's variables without their prefix, ``observed`` is the result of gpu_info for all GPUs with
    their processes. ``problems`` is empty or has one text for each thing that is wrong; nothing may be done then.
    """
    problems: list[str] = []
    planned = _wishes(wishes, observed, problems)
    # What is wrong with eight cards for one reason is told once.
    judged: dict[str, list[str]] = {}
    for wish in planned:
        for text in _judge(wish, wishes):
            judged.setdefault(text, []).append(wish.identity.label())
    problems.extend(text.replace(_GPUS, ", ".join(labels)) for text, labels in judged.items())
    reboot = [wish.identity.label() for wish in planned if _needs_reboot(wish)]
    users = _users(observed)
    if reboot and users and wishes["reboot"] == "if_required" and not wishes["reboot_force"]:
        problems.append(
            f"gpu_state_reboot is 'if_required', and ECC of {', '.join(reboot)} needs a reboot, but programs compute on this"
            f" host: {'; '.join(users)}. Stop them; or set gpu_state_reboot to 'if_idle' or 'never' to leave the reboot for"
            " later; or set gpu_state_reboot_force to true, and the reboot ends them."
        )
    return {
        "problems": problems,
        "ecc": _grouped((wish.ecc, wish) for wish in planned if wish.ecc != UNCHANGED),
        "power_limits": _power_groups(planned),
        "persistent_gpus": [wish.facts["uuid"] for wish in planned if wish.persistence == "enabled"],
        "reboot_gpus": reboot,
        "users": users,
        "boot": {"version": 1, "gpus": [_boot_entry(wish) for wish in planned]},
    }


def _wishes(wishes: t.Mapping[str, t.Any], observed: Facts, problems: list[str]) -> list[_Wish]:
    """Each selected GPU with what it is to have: the variables, and the overrides over them."""
    available = [identity(gpu) for gpu in observed["gpus"]]
    silent = [
        UnavailableGpu(**{key: gpu[key] for key in ("index", "uuid", "pci_bus_id", "reason", "nvml_code", "msg")})
        for gpu in observed["unavailable_gpus"]
    ]
    by_uuid = {gpu["uuid"]: gpu for gpu in observed["gpus"]}
    try:
        selected = _select(wishes["gpus"], available, silent, "gpu_state_gpus")
        ecc = _choice(wishes["ecc"], ECC, "gpu_state_ecc")
        power = parse_power_limit(wishes["power_limit"], "gpu_state_power_limit")
        persistence = _choice(wishes["persistence"], PERSISTENCE, "gpu_state_persistence")
    except _Wrong as wrong:
        problems.append(str(wrong))
        return []
    planned = {
        gpu.uuid: _Wish(by_uuid[gpu.uuid], ecc, "gpu_state_ecc", power, "gpu_state_power_limit", persistence)
        for gpu in selected
    }
    said: dict[tuple[str | None, str], str] = {}
    for number, override in enumerate(wishes["overrides"]):
        name = f"gpu_state_overrides[{number}]"
        try:
            _override(planned, override, name, available, silent, said)
        except _Wrong as wrong:
            problems.append(str(wrong))
    return list(planned.values())


def _select(
    selectors: t.Any, available: t.Sequence[GpuIdentity], silent: t.Sequence[UnavailableGpu], name: str
) -> list[GpuIdentity]:
    if not isinstance(selectors, list):
        raise _Wrong(f"{name} is {selectors!r}: expected a list of 'all', indexes, UUIDs or PCI bus ids.")
    try:
        selected = select_gpus(selectors, available, silent, option=name)
    except GpuFailure as failure:
        raise _Wrong(failure.msg) from failure
    names_all = any(str(selector).strip().lower() == ALL for selector in selectors)
    if names_all and silent:
        others = ", ".join(f"'{gpu.pci_bus_id or gpu.index}'" for gpu in available)
        raise _Wrong(
            f"{name}: 'all' includes GPU {', '.join(str(gpu.pci_bus_id or gpu.index) for gpu in silent)}, which cannot be"
            f" used: {silent[0].msg} To go on without it, name the others: [{others}]."
        )
    if not selected:
        raise _Wrong(no_gpus(name).msg)
    return selected


def _override(
    planned: dict[str | None, _Wish],
    override: t.Any,
    name: str,
    available: t.Sequence[GpuIdentity],
    silent: t.Sequence[UnavailableGpu],
    said: dict[tuple[str | None, str], str],
) -> None:
    unknown = sorted(set(override) - set(_OVERRIDE_KEYS))
    if unknown:
        raise _Wrong(f"{name} has {', '.join(unknown)}: expected {', '.join(_OVERRIDE_KEYS)}.")
    # What a role's argument specification fills in for a key that was left out.
    given = {key: value for key, value in override.items() if value is not None}
    values: dict[str, t.Any] = {}
    if "ecc" in given:
        values["ecc"] = _choice(given["ecc"], ECC, f"{name}.ecc")
    if "power_limit" in given:
        values["power"] = parse_power_limit(given["power_limit"], f"{name}.power_limit")
    if "persistence" in given:
        values["persistence"] = _choice(given["persistence"], PERSISTENCE, f"{name}.persistence")
    for gpu in _select(given.get("gpus"), available, silent, f"{name}.gpus"):
        wish = planned.get(gpu.uuid)
        if wish is None:
            raise _Wrong(f"{name}.gpus: {gpu.label()} is not among gpu_state_gpus. Add it there, or leave it out here.")
        for key, value in values.items():
            earlier = said.setdefault((gpu.uuid, key), name)
            if earlier != name:
                raise _Wrong(
                    f"{name} and {earlier} both say what {key.replace('power', 'power_limit')} of {gpu.label()} is to be."
                    " Say it once."
                )
            setattr(wish, key, value)
            if key in ("ecc", "power"):
                setattr(wish, f"{key}_from", f"{name}.{key.replace('power', 'power_limit')}")


def _judge(wish: _Wish, wishes: t.Mapping[str, t.Any]) -> t.Iterator[str]:
    """What this GPU cannot have, or should not. In the texts its name is _GPUS."""
    state = wish.facts["ecc"]
    if wish.ecc == "enabled" and not state["supported"]:
        yield (
            f"{wish.ecc_from} is 'enabled', and this has no ECC that could be: {_GPUS}. Set it to 'unchanged' (with ecc in"
            " gpu_state_overrides, where others have ECC), or leave the GPU out of gpu_state_gpus."
        )
    if wish.ecc == "disabled" and state["supported"] and not wishes["ecc_allow_disabled"]:
        yield (
            f"{wish.ecc_from} is 'disabled', for {_GPUS}. Without ECC, errors in memory go unseen into weights and answers,"
            " and row remapping and error containment, which act on detected errors, do nothing. On cards with HBM (A100,"
            " H100, H200) it costs neither memory nor bandwidth. If it is meant all the same, set"
            " gpu_state_ecc_allow_disabled to true."
        )
    if wish.power is None:
        return
    try:
        wanted_watts(wish.identity, PowerState(**wish.facts["power"]), wish.power)
    except GpuFailure as failure:
        yield f"{wish.power_from}: {failure.msg.replace(wish.identity.label(), _GPUS)}"
    if wish.persistence == UNCHANGED and wish.facts["persistence_mode"] == "disabled":
        yield (
            f"{wish.power_from} sets a power limit where persistence mode is off: {_GPUS}. The driver forgets the limit as"
            " soon as the last program lets go of the card. Set gpu_state_persistence to 'enabled'."
        )


def _needs_reboot(wish: _Wish) -> bool:
    ecc = wish.facts["ecc"]
    return wish.ecc != UNCHANGED and ecc["supported"] and ecc["current"] != wish.ecc


def _users(observed: Facts) -> list[str]:
    """Programs that compute, on any GPU: a reboot ends those on the others too."""
    found: dict[int, str] = {}
    for gpu in observed["gpus"]:
        for process in gpu["processes"] or ():
            if process["type"] != "graphics":
                found.setdefault(process["pid"], f"process {process['pid']} ({process['name'] or 'name unknown'})")
    return [found[pid] for pid in sorted(found)]


def _grouped(pairs: t.Iterable[tuple[str, _Wish]]) -> list[dict[str, t.Any]]:
    groups: dict[str, list[str]] = {}
    for state, wish in pairs:
        groups.setdefault(state, []).append(wish.facts["uuid"])
    return [{"state": state, "gpus": uuids} for state, uuids in groups.items()]


def _limit_option(limit: WantedLimit) -> dict[str, t.Any]:
    """The limit as the module gpu_power_limit, and the boot unit's program, take it."""
    if limit.watts is not None:
        return {"watts": limit.watts}
    if limit.percent is not None:
        return {"percent": int(limit.percent) if limit.percent.is_integer() else limit.percent}
    return {"limit": limit.named}


def _power_groups(planned: t.Sequence[_Wish]) -> list[dict[str, t.Any]]:
    groups: dict[WantedLimit, list[str]] = {}
    for wish in planned:
        if wish.power is not None:
            groups.setdefault(wish.power, []).append(wish.facts["uuid"])
    return [{"option": _limit_option(limit), "gpus": uuids} for limit, uuids in groups.items()]


def _boot_entry(wish: _Wish) -> dict[str, t.Any]:
    return {
        "uuid": wish.facts["uuid"],
        "pci_bus_id": wish.facts["pci_bus_id"],
        "persistence_mode": "enabled" if wish.persistence == "enabled" else None,
        "power_limit": None if wish.power is None else _limit_option(wish.power),
    }
