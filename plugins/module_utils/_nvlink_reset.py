# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""The doing part of nvlink_reset: what is in the way of a reset, and the programs that carry it out.

NVML cannot reset a GPU: nvidia-smi can (its manual, --gpu-reset), and Fabric Manager is restarted by systemd. What may
stand in the way, as NVIDIA names it: programs, monitors and display servers (the same manual), and persistence mode,
which keeps the driver attached (github.com/NVIDIA/NVSentinel/issues/1690, github.com/NVIDIA/gpu-operator/issues/118).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
import typing as t
from dataclasses import asdict, dataclass

from ansible.module_utils.common.process import get_bin_path
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_errors import GpuFailure
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_facts import gpu_facts
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_model import GpuIdentity, UnavailableGpu
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_select import no_gpus, select_gpus
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_skus import Catalog
from ansible_collections.baremetal.inference.plugins.module_utils._holders import (
    FABRIC_MANAGER,
    PERSISTENCE_DAEMON,
    Holder,
    HoldersUnseen,
    describe,
    find_holders,
)
from ansible_collections.baremetal.inference.plugins.module_utils._nvlink import (
    UNHEALTHY,
    FabricManagerState,
    Finding,
    Gpu,
    concerning,
    counters_text,
    error_counts,
    judge,
    links_text,
    name_of,
)
from ansible_collections.baremetal.inference.plugins.module_utils._nvml import NvmlFailure

# nvidia-smi(1), RETURN VALUE.
_EXIT_CODES: t.Mapping[int, str] = {
    2: "an argument is invalid",
    3: "the GPU cannot do this, as in a virtual machine that may not reset it",
    4: "no permission",
    6: "no such GPU",
    8: "external power is not connected",
    9: "the NVIDIA driver is not loaded",
    10: "the kernel found an interrupt issue with a GPU",
    12: "NVML cannot be loaded",
    13: "this NVML does not implement it",
    14: "the infoROM is corrupted",
    15: "a GPU has fallen off the bus",
    255: "another error",
}
# What it prints of each GPU: "GPU 00000000:1A:00.0 was successfully reset." (NVIDIA/NVSentinel#1690).
_RESET_DONE = re.compile(r"GPU ([0-9A-Fa-f:.]+) was successfully reset")
_IN_USE = "in use"
# Architectures whose NVSwitch machines need Fabric Manager for a reset (nvidia-smi(1), --gpu-reset).
_NEEDS_FABRIC_MANAGER = ("volta", "turing", "ampere")
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Reading:
    """What was seen at one time, and what it is worth."""

    facts: dict[str, t.Any]
    manager: FabricManagerState | None
    findings: list[Finding]

    @property
    def switches(self) -> bool:
        return bool(self.facts["nvswitches"])

    def unhealthy(self, gpus: t.Collection[str]) -> list[Finding]:
        return [finding for finding in concerning(self.findings, gpus) if finding.verdict == UNHEALTHY]


@dataclass(frozen=True)
class Ran:
    """A program that ended."""

    code: int
    output: str


class Tools:
    """The programs of the host."""

    def __init__(self, params: t.Mapping[str, t.Any]) -> None:
        self._timeout: int = params["timeout"]
        self._unit: str = params["fabric_manager_unit"]
        self._nvidia_smi: str | None = params["nvidia_smi"]
        if self._nvidia_smi and (not os.access(self._nvidia_smi, os.X_OK) or os.path.isdir(self._nvidia_smi)):
            raise GpuFailure(
                f"nvidia_smi: '{self._nvidia_smi}' is no program that can be run. Name the driver's nvidia-smi, or"
                " leave the option out to have it found in PATH.",
                reason="nvidia_smi_missing",
            )

    def nvidia_smi(self) -> str:
        if self._nvidia_smi:
            return self._nvidia_smi
        found = _find("nvidia-smi")
        if found is None:
            raise GpuFailure(
                "scope: 'gpu' needs nvidia-smi, since NVML has no call that resets a GPU, and it is not in PATH."
                " Install the driver's package that holds it (nvidia-utils, nvidia-smi), or name it with nvidia_smi.",
                reason="nvidia_smi_missing",
            )
        return found

    def run(self, command: t.Sequence[str]) -> Ran:
        shown = " ".join(command)
        try:
            # In a session of its own: what it started has to go with it. Ansible's run_command knows no time limit.
            process = subprocess.Popen(  # pylint: disable=ansible-bad-function
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "LC_ALL": "C"},
                start_new_session=True,
            )
        except OSError as error:
            raise GpuFailure(
                f"'{shown}' cannot be run: {error.strerror}.", reason="command_failed", command=list(command)
            ) from error
        with process:
            try:
                output = process.communicate(timeout=self._timeout)[0]
            except subprocess.TimeoutExpired as error:
                os.killpg(process.pid, signal.SIGKILL)
                raise GpuFailure(
                    f"timeout: '{shown}' did not end within {self._timeout} s and was killed. A GPU that hangs may need"
                    " a reboot; else give more time.",
                    reason="timeout",
                    command=list(command),
                ) from error
        return Ran(process.returncode, output.decode("utf-8", errors="replace").strip())

    def fabric_manager(self) -> FabricManagerState:
        """State of its unit, and the version that the program says; None where nothing tells."""
        state = version = None
        systemctl, program = _find("systemctl"), _find("nv-fabricmanager")
        if systemctl:
            shown = self.run([systemctl, "show", "--property=LoadState,ActiveState", self._unit])
            values = dict(line.split("=", 1) for line in shown.output.splitlines() if "=" in line)
            if shown.code == 0:
                state = "not-found" if values.get("LoadState") == "not-found" else values.get("ActiveState")
        if program:
            match = re.search(r"version is\s*:\s*([0-9.]+)", self.run([program, "--version"]).output)
            version = match.group(1) if match else None
        return FabricManagerState(state=state or None, version=version)

    def restart_command(self) -> list[str]:
        systemctl = _find("systemctl")
        if systemctl is None:
            raise GpuFailure(
                "scope: 'fabric' restarts Fabric Manager through systemctl, which is not in PATH. Restart it by hand.",
                reason="systemctl_missing",
            )
        return [systemctl, "restart", self._unit]


def _find(program: str) -> str | None:
    try:
        return str(get_bin_path(program))
    except ValueError:
        return None


def read(params: t.Mapping[str, t.Any], catalog: Catalog, tools: Tools, warn: t.Callable[[str], None]) -> Reading:
    """All GPUs of the host, in an NVML session of its own, which is closed afterwards: open, it would hold the GPUs."""
    facts = gpu_facts({**params, "gpus": ["all"], "gather": ["nvlink", "topology", "processes"]}, warn)
    manager = tools.fabric_manager() if facts["nvswitches"] else None
    return Reading(facts, manager, judge(facts, catalog, manager))


def chosen_gpus(params: t.Mapping[str, t.Any], facts: t.Mapping[str, t.Any]) -> list[Gpu]:
    """The GPUs that the option ``gpus`` names, as gpu_info has them."""
    identities = [GpuIdentity(gpu["index"], gpu["uuid"], gpu["pci_bus_id"]) for gpu in facts["gpus"]]
    lost = [UnavailableGpu(**gpu) for gpu in facts["unavailable_gpus"]]
    chosen = {identity.index for identity in select_gpus(params["gpus"], identities, lost)}
    if not chosen and not lost:
        raise no_gpus()
    return [gpu for gpu in facts["gpus"] if gpu["index"] in chosen]


def in_the_way(
    targets: t.Sequence[Gpu], holders: t.Sequence[Holder], *, whole_host: bool, fabric_unit: str | None = None
) -> tuple[list[Holder], list[Gpu]]:
    """Processes that hold what will be reset, and GPUs that persistence mode alone keeps attached. Pure.

    Fabric Manager may run: Ampere machines need it for a reset, and a restart ends it anyway.
    """
    minors = {gpu["minor_number"] for gpu in targets}
    nvml_pids = {process["pid"] for gpu in targets for process in gpu["processes"] or ()}
    nodes = {f"nvidia{minor}" for minor in minors}
    blocking = []
    for holder in holders:
        if holder.kind == FABRIC_MANAGER or (fabric_unit and holder.unit == fabric_unit):
            continue
        gpus = {node for node in holder.nodes if re.fullmatch(r"nvidia[0-9]+", node)}
        # Who holds nothing but control nodes may turn to any GPU at any time.
        if whole_host or None in minors or not gpus or gpus & nodes or holder.pid in nvml_pids:
            blocking.append(holder)
    if any(holder.kind == PERSISTENCE_DAEMON for holder in blocking):
        # Stopping it ends the mode too.
        return blocking, []
    return blocking, [] if whole_host else [gpu for gpu in targets if gpu["persistence_mode"] == "enabled"]


def require_unused(
    params: t.Mapping[str, t.Any],
    targets: t.Sequence[Gpu],
    *,
    whole_host: bool,
    check_mode: bool,
    warn: t.Callable[[str], None],
) -> None:
    """Raise unless it is proven that nothing holds the GPUs. Nothing is ever stopped from here."""
    pids = {process["pid"] for gpu in targets for process in gpu["processes"] or ()}
    try:
        holders = find_holders(params["proc_root"], pids, {os.getpid()})
    except HoldersUnseen as failure:
        if check_mode and failure.reason == "no_permission":
            warn(f"{failure.msg} Outside check mode this would fail.")
            return
        raise
    blocking, persistent = in_the_way(
        targets, holders, whole_host=whole_host, fabric_unit=params["fabric_manager_unit"]
    )
    if not blocking and not persistent:
        return
    what = "The fabric cannot be restarted" if whole_host else f"{_names(targets)} cannot be reset"
    texts = [describe(holder) for holder in blocking]
    if persistent:
        texts.append(
            f"persistence mode of {_names(persistent)} keeps the driver attached; to end it:"
            " baremetal.inference.gpu_persistence_mode with state: disabled, and afterwards enabled again"
        )
    raise GpuFailure(
        f"{what} while in use, and nothing was changed. {'. '.join(text[0].upper() + text[1:] for text in texts)}."
        " Stop them, run this again, and start them afterwards.",
        reason="in_use",
        holders=[holder_result(holder) for holder in blocking],
        persistence_mode=[name_of(gpu) for gpu in persistent],
    )


def holder_result(holder: Holder) -> dict[str, t.Any]:
    return {**asdict(holder), "nodes": [f"/dev/{node}" for node in holder.nodes]}


def require_fabric_manager(reading: Reading, targets: t.Sequence[Gpu], unit: str) -> None:
    """On NVSwitch machines up to Ampere the driver resets GPUs with the help of Fabric Manager."""
    if not reading.switches or not any(gpu["architecture"] in _NEEDS_FABRIC_MANAGER for gpu in targets):
        return
    state = reading.manager.state if reading.manager else None
    if state != "active":
        raise GpuFailure(
            f"scope: 'gpu' needs a running Fabric Manager on this machine (NVSwitches, {targets[0]['architecture']}),"
            f" and unit {unit} is {state or 'not to be asked about'}. Nothing was changed. Start it first: scope:"
            " fabric.",
            reason="fabric_manager_not_running",
        )


def _names(gpus: t.Iterable[Gpu]) -> str:
    return ", ".join(f"GPU {gpu['index']} ({name_of(gpu)})" for gpu in gpus)


def reset_command(nvidia_smi: str, targets: t.Sequence[Gpu]) -> list[str]:
    """All GPUs of the domain in one command: what any generation takes, with and without Fabric Manager."""
    ids = [str(gpu["pci"]["nvml_bus_id"] or gpu["uuid"] or gpu["index"]) for gpu in targets]
    return [nvidia_smi, "--gpu-reset", "-i", ",".join(ids)]


def reset_gpus(tools: Tools, command: t.Sequence[str], targets: t.Sequence[Gpu]) -> None:
    ran = tools.run(command)
    if ran.code == 0:
        return
    by_nvml_id = {str(gpu["pci"]["nvml_bus_id"]).lower(): name_of(gpu) for gpu in targets}
    done = [by_nvml_id.get(found.lower(), found) for found in _RESET_DONE.findall(ran.output)]
    advice = (
        "Something holds a GPU that is no process: persistence mode, or the kernel module nvidia_drm"
        " (modprobe -r nvidia_drm). Fabric Manager can be that too on Hopper and later, which do not need it for this."
        if _IN_USE in ran.output.lower()
        else "Look at the kernel log of that time for NVRM and Xid lines (journalctl -k -g 'NVRM|Xid')."
    )
    changed = f"Reset before that: {', '.join(done)}" if done else "No GPU was reset"
    raise GpuFailure(
        f"'{' '.join(command)}' ended with {ran.code} ({_EXIT_CODES.get(ran.code, 'unknown')}): {_one_line(ran.output)}"
        f" -- {changed}. {advice}",
        reason="reset_refused",
        command=list(command),
        return_code=ran.code,
        output=ran.output,
        changed=bool(done),
        reset_gpus=done,
    )


def _one_line(text: str) -> str:
    return " ".join(text.split()) or "it said nothing"


def restart_fabric_manager(tools: Tools, command: t.Sequence[str]) -> None:
    ran = tools.run(command)
    if ran.code != 0:
        raise GpuFailure(
            f"'{' '.join(command)}' ended with {ran.code}: {_one_line(ran.output)} -- Fabric Manager may be down now."
            f" Its journal (journalctl -u {command[-1]}) and /var/log/fabricmanager.log say why; its version must be exactly the"
            " driver's.",
            reason="restart_failed",
            command=list(command),
            return_code=ran.code,
            output=ran.output,
            changed=True,
        )


def read_until_healthy(
    read_again: t.Callable[[t.Callable[[str], None]], Reading],
    gpus: t.Collection[str],
    timeout: int,
    warn: t.Callable[[str], None],
) -> Reading:
    """The last reading: links take some seconds to train."""
    deadline = time.monotonic() + timeout
    while True:
        warnings: list[str] = []
        try:
            reading = read_again(warnings.append)
            if not reading.unhealthy(gpus) or time.monotonic() >= deadline:
                for text in warnings:
                    warn(text)
                return reading
        except NvmlFailure:
            # The driver may need a moment too.
            if time.monotonic() >= deadline:
                raise
        time.sleep(_POLL_SECONDS)


def gpu_result(before: Gpu, after: Gpu | None, domain: t.Sequence[str]) -> dict[str, t.Any]:
    """One GPU of the module's result; ``after`` is None when it does not answer any more."""
    expectations = before["expectations"]
    return {
        **{key: before[key] for key in ("index", "uuid", "pci_bus_id", "name", "recovery_action")},
        "sku": expectations["id"] if expectations else None,
        "expected_links": expectations["figures"]["nvlink_links"]["value"] if expectations else None,
        "mig_enabled": (before["mig_mode"] or {}).get("current") == "enabled",
        "domain": list(domain),
        "active_before": before["nvlink"]["active_count"],
        "active_after": after["nvlink"]["active_count"] if after else None,
        "links_before": before["nvlink"]["links"],
        "links_after": after["nvlink"]["links"] if after else None,
    }


def pair_results(
    before: t.Mapping[str, t.Any], after: t.Mapping[str, t.Any], gpus: t.Collection[str]
) -> list[dict[str, t.Any]]:
    later = {(pair["a"], pair["b"]): pair for pair in after["topology"]}
    return [
        {
            "a": pair["a"],
            "b": pair["b"],
            "nvlink_count_before": pair["nvlink_count"],
            "nvlink_count_after": later[pair["a"], pair["b"]]["nvlink_count"]
            if (pair["a"], pair["b"]) in later
            else None,
            "p2p_before": pair["p2p"],
            "p2p_after": later[pair["a"], pair["b"]]["p2p"] if (pair["a"], pair["b"]) in later else None,
        }
        for pair in before["topology"]
        if {pair["a"], pair["b"]} & set(gpus)
    ]


def state_text(gpu: Gpu | None) -> dict[str, str]:
    """For diffs."""
    if gpu is None:
        return {"links": "does not answer", "errors": ""}
    return {"links": links_text(gpu), "errors": counters_text(error_counts(gpu))}


def without_errors(gpu: Gpu) -> dict[str, t.Any]:
    """The GPU as it will be when its counters are cleared."""
    links = [
        {**link, "errors": {name: None if count is None else 0 for name, count in link["errors"].items()}}
        for link in gpu["nvlink"]["links"]
    ]
    return {**gpu, "nvlink": {**gpu["nvlink"], "links": links}}
