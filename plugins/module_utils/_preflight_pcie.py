# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""Checks of the PCIe links, from what pcie_linkspeed says of them. Pure, but for ``read_links``, which reads and measures."""

from __future__ import annotations

import typing as t

from ansible_collections.baremetal.inference.plugins.module_utils._gpu_errors import GpuFailure
from ansible_collections.baremetal.inference.plugins.module_utils._pcie import BELOW
from ansible_collections.baremetal.inference.plugins.module_utils._pcie_links import check_links
from ansible_collections.baremetal.inference.plugins.module_utils._preflight import (
    FAIL,
    INFO,
    PASS,
    SKIPPED,
    UNKNOWN,
    WARN,
    Check,
    Subject,
)
from ansible_collections.baremetal.inference.plugins.module_utils._preflight_driver import subject

Gpu = t.Mapping[str, t.Any]
Entry = t.Mapping[str, t.Any]

# Checks of the judge of links, with their titles.
_TITLES: t.Mapping[str, str] = {
    "generation": "PCIe generation",
    "width": "PCIe width",
    "host_to_device": "Bandwidth from host to GPU",
    "device_to_host": "Bandwidth from GPU to host",
}


def read_links(params: t.Mapping[str, t.Any]) -> dict[int, Entry]:
    """One of pcie_linkspeed's results for each GPU, by index, good or bad."""
    options = {
        "gpus": params["gpus"],
        "sysfs_root": params["sysfs_root"],
        "pynvml_path": params["pynvml_path"],
        "expectations": params["expectations"],
        "measure": params["pcie_measure"],
        "generation": "max",
        "width": "max",
        "host_to_device_min_gb_per_s": None,
        "device_to_host_min_gb_per_s": None,
        "max_replays": None,
        "rounds": 10,
        "buffer_mebibytes": 256,
        "timeout_seconds": params["cuda_timeout"],
    }
    try:
        entries = check_links(options, lambda text: None)["gpus"]
    except GpuFailure as failure:
        # A bad link ends that module, with all results in its failure. Without any, there is nothing to judge, and
        # why there is none, the driver's checks say.
        entries = failure.fields.get("gpus", [])
    return {entry["index"]: entry for entry in entries}


def pcie_checks(gpus: t.Sequence[Gpu], links: t.Mapping[int, Entry], *, cuda_ok: bool, virtual: bool) -> list[Check]:
    """``cuda_ok``: whether CUDA works on this host at all; when not, that is a check of its own."""
    checks: list[Check] = []
    for gpu in gpus:
        on = subject(gpu)
        entry = links.get(gpu["index"])
        if gpu["pci_bus_id"] is None:
            checks.append(Check("pcie.link", "PCIe link", SKIPPED, "an integrated GPU has none", "any", on=on))
        elif entry is None:
            checks.append(
                Check(
                    "pcie.link",
                    "PCIe link",
                    UNKNOWN,
                    "could not be read",
                    "readable",
                    f"Look at LnkCap and LnkSta of 'lspci -vv -s {gpu['pci_bus_id']}'.",
                    on,
                )
            )
        else:
            checks += _checks(entry, virtual, on)
            checks += _measurement(gpu, entry, cuda_ok, on)
            checks += _replays(entry, on)
    return checks


def _checks(entry: Entry, virtual: bool, on: Subject) -> t.Iterator[Check]:
    problems = {problem["check"]: problem for problem in entry["problems"]}
    place = f"; slot {entry['slot']}" if entry["slot"] else ""
    for check, title in _TITLES.items():
        problem = problems.get(check)
        if problem is None:
            yield from _without_problem(check, title, entry, on)
            continue
        verdict = _verdict(check, problem, entry, virtual)
        fix = problem["fix"].replace("with measure: load", "with pcie_measure: load") if verdict != INFO else ""
        observed = problem["observed"] + (place if verdict in (WARN, FAIL) else "")
        yield Check(f"pcie.{check}", title, verdict, observed, problem["expected"], fix, on)


def _verdict(check: str, problem: t.Mapping[str, t.Any], entry: Entry, virtual: bool) -> str:
    if problem["verdict"] == BELOW:
        # A slot that can do no more works; it is only slower than the card.
        slot = check == "generation" and problem["observed"].startswith("the slot can")
        return WARN if slot else FAIL
    # An idle link that saves power is as it should be, and a guest need not see the link at all.
    return INFO if entry["idle"][check] is not None or virtual else UNKNOWN


def _without_problem(check: str, title: str, entry: Entry, on: Subject) -> t.Iterator[Check]:
    name, expected = f"pcie.{check}", entry["expected"]
    if check in ("generation", "width"):
        when = "under load" if entry["load"] else "idle"
        sign = "generation " if check == "generation" else "x"
        seen = (entry["load"] or entry["idle"])[check]
        # Where the load was to prove the generation and did not come about, an idle reading has proved nothing.
        enough = seen is not None and expected[check] is not None and seen >= expected[check]
        yield Check(name, title, PASS if enough else INFO, f"{sign}{seen} {when}", f"{sign}{expected[check]}", on=on)
    elif entry["bandwidth"] is not None:
        seen, least = entry["bandwidth"][check]["best_gb_per_s"], expected[f"{check}_gb_per_s"]
        known = least is not None
        yield Check(
            name,
            title,
            PASS if known else INFO,
            f"{seen:g} GB/s",
            f"at least {least:g} GB/s" if known else "not known for this GPU in this slot",
            on=on,
        )


def _measurement(gpu: Gpu, entry: Entry, cuda_ok: bool, on: Subject) -> t.Iterator[Check]:
    name, title, expected = "pcie.measurement", "PCIe link under load", "a measurement under load"
    for problem in entry["problems"]:
        if problem["check"] != "measurement":
            continue
        in_use = any(process["type"] != "graphics" for process in gpu["processes"] or ())
        mig = (gpu["mig_mode"] or {}).get("current") == "enabled"
        if in_use or mig or not cuda_ok:
            yield Check(name, title, SKIPPED, problem["observed"], expected, on=on)
        else:
            fix = problem["fix"] or "Look at the NVRM and Xid lines of that time in the kernel log."
            yield Check(name, title, FAIL, problem["observed"], expected, fix, on)


def _replays(entry: Entry, on: Subject) -> t.Iterator[Check]:
    count, under_load = entry["replay_count"], entry["replays_under_load"]
    if count is None:
        return
    # A link loses a packet now and then, most of all while it is trained. A count that rises under load is what tells,
    # and there is no figure from which on it is a fault.
    observed = f"{count}" + (f", {under_load} of them under load" if under_load is not None else "")
    yield Check("pcie.replays", "PCIe packets sent again", INFO if count else PASS, observed, "few", on=on)
