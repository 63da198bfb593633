# Copyright: (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role did, what of it was there after the reboot, and what happens when something is wrong.

The state is read with nvidia-smi, which nothing of the collection uses for that.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
UNIT = "inference-gpu-state.service"
DAEMON = "nvidia-persistenced.service"
SIM = "/opt/nvml-sim/nvml-sim"
STATE = "/var/lib/nvml-sim"
# 80 % of 400 W; what the overrides of group_vars say of three cards.
LIMITS = [320, 250, 400, 400, 320, 320, 320, 320]


def uuid(number: int) -> str:
    return f"GPU-a1000000-0000-4000-8000-{number:012}"


def smi(host: Any, query: str) -> list[str]:
    return str(host.check_output(f"nvidia-smi --query-gpu={query} --format=csv,noheader,nounits")).splitlines()


def limits(host: Any) -> list[float]:
    return [float(text) for text in smi(host, "power.limit")]


def sim(host: Any, command: str, *words: str) -> None:
    host.check_output(f"{SIM} {command} {STATE} {' '.join(words)}")


def journal(host: Any) -> str:
    """What the boot unit said since it was last started."""
    invocation = host.check_output(f"systemctl show --property=InvocationID --value {UNIT}")
    return str(host.check_output(f"journalctl --output=cat --no-pager _SYSTEMD_INVOCATION_ID={invocation}"))


def settle(host: Any) -> str:
    """Wait until the boot unit has ended; return how."""
    wait = (
        f"for i in $(seq 100); do state=$(systemctl show --property=ActiveState --value {UNIT});"
        ' case $state in inactive|failed) echo "$state"; exit 0;; esac; sleep 0.1; done; exit 1'
    )
    return str(host.check_output(wait))


def start_daemon(host: Any) -> str:
    """Start it, and the boot unit with it; return how that ended. The tests start it more often than systemd likes."""
    host.check_output(f"systemctl reset-failed {DAEMON} {UNIT}; systemctl start {DAEMON}")
    return settle(host)


def play(*arguments: str, **variables: Any) -> tuple[int, str, int]:
    """Run the role again with `variables` over those of the scenario; return exit code, output, and changes."""
    done = subprocess.run(
        [
            Path(sys.executable).parent / "ansible-playbook",
            "molecule/gpu_state/converge.yml",
            "-i",
            os.environ["MOLECULE_INVENTORY_FILE"],
            "-e",
            json.dumps(variables),
            *arguments,
        ],
        check=False,
        cwd=ROOT,
        # Molecule colours what its children print.
        env={
            **{name: value for name, value in os.environ.items() if name != "ANSIBLE_FORCE_COLOR"},
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_PIPELINING": "1",
            "LC_ALL": "C.UTF-8",
        },
        capture_output=True,
        text=True,
    )
    output = done.stdout + done.stderr
    changed = re.findall(r"^\S+\s+: ok=\d+\s+changed=(\d+)", output, re.MULTILINE)
    assert changed, output
    # YAML folds long texts; what is looked for may stand over two lines.
    return done.returncode, re.sub(r"\s+", " ", output), sum(map(int, changed))


def expect_refusal(*words: str, **variables: Any) -> None:
    """The run stops before anything is changed, and says why."""
    code, output, changed = play(**variables)
    assert code != 0, output
    assert changed == 0, output
    for word in words:
        assert word in output, f"{word!r} is not in: {output}"


def expect_unchanged(**variables: Any) -> str:
    code, output, changed = play(**variables)
    assert code == 0, output
    assert changed == 0, output
    return output


# ---- After the reboot ------------------------------------------------------------------------------------------------


def test_each_card_has_its_limit_again(host: Any) -> None:
    assert limits(host) == LIMITS
    assert set(smi(host, "persistence_mode")) == {"Enabled"}


def test_it_was_the_boot_unit_that_restored_them(host: Any) -> None:
    said = journal(host)
    for number, watts in enumerate(LIMITS):
        told = f"({uuid(number)}): power limit 400 W -> {watts} W"
        assert (told in said) == (watts != 400), said
    assert "8 of 8 GPUs are as they are to be, 6 of them were changed now" in said
    assert host.check_output(f"systemctl show --property=Result --value {UNIT}") == "success"


def test_ecc_came_into_force_with_the_reboot(host: Any) -> None:
    assert set(smi(host, "ecc.mode.current,ecc.mode.pending")) == {"Enabled, Enabled"}


def test_the_unit_runs_at_boot_and_with_the_daemon_and_after_it(host: Any) -> None:
    assert host.service(UNIT).is_enabled
    assert host.service(DAEMON).is_enabled
    assert host.service(DAEMON).is_running
    assert UNIT in host.check_output(f"systemctl show --property=Wants --value {DAEMON}").split()
    assert DAEMON in host.check_output(f"systemctl show --property=After --value {UNIT}").split()


@pytest.mark.parametrize(
    ("path", "mode"),
    [
        ("/etc/inference/gpu-state.json", 0o644),
        (f"/etc/systemd/system/{UNIT}", 0o644),
        ("/usr/local/sbin/inference-gpu-state", 0o755),
    ],
)
def test_only_root_may_change_what_root_runs(host: Any, path: str, mode: int) -> None:
    file = host.file(path)
    assert (oct(file.mode), file.user, file.group) == (oct(mode), "root", "root")


def test_the_unit_has_few_rights(host: Any) -> None:
    judged = host.check_output(f"systemd-analyze security --no-pager {UNIT}")
    exposure = re.search(r"Overall exposure level for \S+: ([0-9.]+)", judged)
    assert exposure
    assert float(exposure[1]) <= 2.0, judged


# ---- The driver comes and goes ---------------------------------------------------------------------------------------


def test_after_a_reload_of_the_driver(host: Any) -> None:
    host.check_output(f"systemctl stop {DAEMON}")
    sim(host, "driver-reload")
    assert limits(host) == [400] * 8
    assert host.run("inference-gpu-state --check").rc == 1
    start_daemon(host)
    assert limits(host) == LIMITS
    assert host.check_output("inference-gpu-state --check").startswith("8 of 8 GPUs are as they are to be")


def test_after_the_daemon_was_killed(host: Any) -> None:
    """Its end lets go of the GPUs as its stop does, and no stop of it is told to other units."""
    host.check_output(f"systemctl kill --signal=KILL {DAEMON}")
    for number in range(8):
        sim(host, "set", f"gpu{number}/persistence_mode", "0")
    sim(host, "driver-reload")
    assert limits(host) == [400] * 8
    start_daemon(host)
    assert limits(host) == LIMITS


def test_with_a_daemon_that_leaves_persistence_mode_off(host: Any) -> None:
    """As Ubuntu's unit does; NVML then asks the daemon to switch it on."""
    dropin = f"/etc/systemd/system/{DAEMON}.d/off.conf"
    host.check_output(
        f"mkdir -p $(dirname {dropin}) && printf '[Service]\\nExecStart=\\n"
        f"ExecStart=/usr/bin/nvidia-persistenced --no-persistence-mode\\n' >{dropin} && systemctl daemon-reload"
    )
    try:
        host.check_output(f"systemctl stop {DAEMON}")
        assert start_daemon(host) == "inactive"
        assert f"({uuid(7)}): persistence mode disabled -> enabled" in journal(host)
        assert set(smi(host, "persistence_mode")) == {"Enabled"}
        assert limits(host) == LIMITS
    finally:
        host.check_output(f"rm -r $(dirname {dropin}) && systemctl daemon-reload && systemctl stop {DAEMON}")
        start_daemon(host)


@contextmanager
def without_limits(host: Any) -> Iterator[None]:
    """As after a reboot, just before the daemon starts, and the boot unit after it; all is well again at the end."""
    host.check_output(f"systemctl stop {DAEMON}")
    try:
        yield
    finally:
        host.check_output(f"systemctl stop {DAEMON}")
        assert start_daemon(host) == "inactive", journal(host)
        assert limits(host) == LIMITS


def test_a_lost_card_fails_the_unit_by_name_and_the_others_have_their_limits(host: Any) -> None:
    with without_limits(host):
        sim(host, "lose", "gpu3")
        try:
            assert start_daemon(host) == "failed"
            said = journal(host)
            assert f"GPU 0000:4e:00.0 ({uuid(3)}): it is not there" in said
            assert "GPU is lost (NVML error 15)" in said
            assert "7 of 8 GPUs are as they are to be" in said
            expect_refusal("'all' includes GPU 0000:4e:00.0", "fallen off the bus", "gpu_state_gpus")
        finally:
            sim(host, "unset", "gpu3/lost")


def test_a_host_without_the_driver_boots_and_says_so(host: Any) -> None:
    with without_limits(host):
        host.check_output("mv /opt/nvml-sim/lib /opt/nvml-sim/lib.away && ldconfig")
        try:
            host.check_output(f"systemctl start {UNIT}")
            assert settle(host) == "inactive"
            assert "no NVIDIA driver is installed on this host: libnvidia-ml.so.1" in journal(host)
            expect_refusal("The GPUs of this host cannot be read", "libnvidia-ml.so.1")
        finally:
            host.check_output("mv /opt/nvml-sim/lib.away /opt/nvml-sim/lib && ldconfig")


def test_a_driver_that_does_not_fit_is_a_failure_and_says_so(host: Any) -> None:
    with without_limits(host):
        host.check_output(f"echo 18 >{STATE}/init_error")
        try:
            host.run(f"systemctl start {UNIT}")
            assert settle(host) == "failed"
            assert "the NVIDIA driver cannot be used: nvmlInit_v2" in journal(host)
            assert "NVML error 18" in journal(host)
        finally:
            host.check_output(f"rm {STATE}/init_error")


# ---- The program by hand ---------------------------------------------------------------------------------------------


@pytest.fixture
def wish(host: Any) -> Iterator[str]:
    """A file of another wish, for two cards, of which one is not there."""
    wanted = [
        {"uuid": uuid(0), "pci_bus_id": None, "persistence_mode": None, "power_limit": {"watts": 300}},
        {"uuid": uuid(77), "pci_bus_id": None, "persistence_mode": None, "power_limit": None},
    ]
    path = "/run/wish.json"
    host.check_output(f"echo '{json.dumps({'version': 1, 'gpus': wanted})}' >{path}")
    yield path
    host.check_output(f"rm {path}; inference-gpu-state")


def test_a_uuid_that_is_not_there_is_named_and_the_rest_is_done(host: Any, wish: str) -> None:
    done = host.run(f"inference-gpu-state --file {wish}")
    assert done.rc == 1
    assert done.stderr == f"GPU {uuid(77)}: it is not there (the driver has 8 other GPUs)\n"
    assert limits(host)[0] == 300


def test_other_users_may_look_and_not_set(host: Any, wish: str) -> None:
    as_nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups inference-gpu-state"
    assert host.run(f"{as_nobody} --check").rc == 0
    done = host.run(f"{as_nobody} --file {wish}")
    assert done.rc == 1
    assert f"GPU {uuid(0)}: nvmlDeviceSetPowerManagementLimit: Insufficient Permissions" in done.stderr
    assert "Only root may set this" in done.stderr
    assert limits(host) == LIMITS


# ---- Wrong input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        pytest.param(
            {
                "gpu_state_power_limit": {"watts": 900},
                "gpu_state_ecc": "disabled",
                "gpu_state_overrides": [{"gpus": [8], "ecc": "unchanged"}, {"gpus": [0], "power_limit": {"watt": 300}}],
            },
            [
                "gpu_state_power_limit: watts: 900 is 900 W on GPU 0 (0000:07:00.0), GPU 1",
                "100 W to 400 W",
                "gpu_state_ecc_allow_disabled",
                "gpu_state_overrides[0].gpus: no GPU matches '8'",
                "gpu_state_overrides[1].power_limit is {'watt': 300}: expected unchanged, default, max, a mapping with watts",
            ],
            id="limits, ECC, GPUs and keys, all told at once",
        ),
        pytest.param({"gpu_state_ecc": "off"}, ["gpu_state_ecc", "off", "disabled"], id="no such ECC mode"),
        pytest.param(
            {"gpu_state_gpus": ["GPU-00000000-dead"]},
            ["gpu_state_gpus", "GPU-00000000-dead"],
            id="UUID that is not there",
        ),
        pytest.param(
            {"gpu_state_python": "/opt/no/python3"},
            ["gpu_state_python", "/opt/no/python3"],
            id="Python that is not there",
        ),
        pytest.param(
            {"ansible_become": True, "ansible_become_user": "nobody"}, ["only root may", "become: true"], id="not root"
        ),
    ],
)
def test_refused(variables: dict[str, Any], words: list[str]) -> None:
    expect_refusal(*words, **variables)


def test_a_link_that_is_down_is_refused(host: Any) -> None:
    sim(host, "set", "gpu0/nvlink/3#state", "0")
    try:
        expect_refusal("0000:07:00.0", "11 of 12", "gpu_state_nvlink")
    finally:
        sim(host, "set", "gpu0/nvlink/3#state", "1")


def test_lanes_that_are_missing_are_refused(host: Any) -> None:
    sim(host, "set", "gpu6/pci/current_link_width", "8")
    try:
        expect_refusal("0000:b7:00.0", "x8 while idle, expected x16")
    finally:
        sim(host, "set", "gpu6/pci/current_link_width", "16")


def test_what_is_only_to_be_told_is_told(host: Any) -> None:
    """Links, where they are to be reported; and a limit that something else, as the BMC, holds lower."""
    sim(host, "set", "gpu0/nvlink/3#state", "0")
    sim(host, "set", "gpu6/pci/current_link_width", "8")
    sim(host, "set", "gpu0/power/enforced_cap", "300000")
    try:
        output = expect_unchanged(gpu_state_nvlink="report", gpu_state_pcie="report")
    finally:
        sim(host, "set", "gpu0/nvlink/3#state", "1")
        sim(host, "set", "gpu6/pci/current_link_width", "16")
        sim(host, "unset", "gpu0/power/enforced_cap")
    assert "0000:07:00.0: 11 of 12" in output
    assert "0000:b7:00.0" in output
    assert f"({uuid(0)}): the power limit is set to 320 W, but 300 W is in force" in output
    # ECC was set before the reboot of the scenario.
    assert "REBOOT REQUIRED" not in output


def test_what_fails_halfway_is_told_and_done_by_the_next_run(host: Any) -> None:
    host.check_output("nvidia-smi --power-limit=200")
    sim(host, "fault", "nvmlDeviceSetPowerManagementLimit", "UNKNOWN", "--gpu", "gpu4")
    try:
        code, output, _changed = play()
    finally:
        sim(host, "faults", "--clear")
    assert code != 0
    assert "1 of 5 GPUs failed" in output
    assert "Changed before that, and still so: GPU 0 (0000:07:00.0), GPU 5 (0000:90:00.0)" in output
    assert limits(host) == [320, 250, 400, 400, 200, 320, 320, 320]
    code, output, changed = play()
    assert code == 0, output
    assert changed == 1, output
    assert limits(host) == LIMITS


def test_without_the_daemon_it_is_done_and_told(host: Any) -> None:
    unit = f"/lib/systemd/system/{DAEMON}"
    host.check_output(f"systemctl stop {DAEMON} && mv {unit} {unit}.away && systemctl daemon-reload")
    try:
        assert set(smi(host, "persistence_mode")) == {"Disabled"}
        code, output, _changed = play()
    finally:
        host.check_output(f"mv {unit}.away {unit} && systemctl daemon-reload")
        start_daemon(host)
    assert code == 0, output
    assert "nvidia-persistenced is not installed" in output
    assert set(smi(host, "persistence_mode")) == {"Enabled"}


# ---- A fresh host ----------------------------------------------------------------------------------------------------


def test_check_mode_predicts_on_a_fresh_host(host: Any) -> None:
    host.check_output(
        f"systemctl disable --now {DAEMON} {UNIT} && rm -r /etc/inference /usr/local/sbin/inference-gpu-state"
        f" /etc/systemd/system/{UNIT} && systemctl daemon-reload"
    )
    assert limits(host) == [400] * 8
    code, output, changed = play("--check", "--diff")
    assert code == 0, output
    # The daemon, the limits, the folder, the program, the file, the unit.
    assert changed == 6, output
    assert "0000:0f:00.0: 400.0 + 0000:0f:00.0: 250.0" in output
    assert '+ "uuid": "GPU-a1000000-0000-4000-8000-000000000007"' in output
    assert "+ExecStart=/usr/local/sbin/inference-gpu-state --wait 60" in output
    assert limits(host) == [400] * 8
    assert not host.file("/etc/inference").exists
    assert not host.service(DAEMON).is_running
    code, output, changed = play()
    assert code == 0, output
    assert limits(host) == LIMITS


# ---- The role's own reboot -------------------------------------------------------------------------------------------


def boot_id(host: Any) -> str:
    return str(host.file("/proc/sys/kernel/random/boot_id").content_string)


ECC_OFF = {"gpu_state_ecc": "disabled", "gpu_state_ecc_allow_disabled": True}


def test_no_reboot_under_programs(host: Any) -> None:
    before = boot_id(host)
    sim(host, "set", "gpu7/processes", "'4242 compute 1000000'")
    try:
        expect_refusal("gpu_state_reboot is 'if_required'", "process 4242", gpu_state_reboot="if_required", **ECC_OFF)
        assert set(smi(host, "ecc.mode.pending")) == {"Enabled"}
        code, output, _changed = play(gpu_state_reboot="if_idle", **ECC_OFF)
        assert code == 0, output
        assert "REBOOT REQUIRED: the ECC mode of GPU 0 (0000:07:00.0), " in output
        assert "process 4242" in output
    finally:
        sim(host, "unset", "gpu7/processes")
    assert boot_id(host) == before


def test_it_reboots_and_proves_it(host: Any) -> None:
    before = boot_id(host)
    code, output, changed = play(gpu_state_reboot="if_idle", **ECC_OFF)
    assert code == 0, output
    # ECC was set by the run before.
    assert changed == 1, output
    assert boot_id(host) != before
    assert set(smi(host, "ecc.mode.current")) == {"Disabled"}
    assert limits(host) == LIMITS


def test_a_card_that_does_not_take_its_mode_at_the_reboot_is_told(host: Any) -> None:
    # Beside the state that a reboot loses: whatever is set, this card starts with ECC off.
    host.check_output(f"echo 0 >{STATE}/gpu5/ecc/current")
    try:
        code, output, _changed = play(gpu_state_reboot="if_required")
        assert code != 0
        assert "The host was rebooted, and yet ECC is not what was asked for: GPU 5 (0000:90:00.0" in output
        assert "has disabled, its next reboot would bring enabled, and enabled is wanted" in output
        assert "GPU 4 (0000:87:00.0" not in output.split("and yet ECC is not", 1)[1].split("Switch the host off", 1)[0]
    finally:
        host.check_output(f"rm {STATE}/gpu5/ecc/current")
    assert limits(host) == LIMITS
