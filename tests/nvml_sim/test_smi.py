# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated nvidia-smi: what it prints, what it changes, how it refuses."""

from __future__ import annotations

import os
import subprocess
import typing as t
from pathlib import Path

import pytest

from tests.nvml_sim.nvml_simulation import Simulation
from tests.nvml_sim.test_changes import NOBODY, fixture_open_path

__all__ = ["fixture_open_path"]

BUS_IDS = [f"00000000:{bus}:00.0" for bus in ("07", "0F", "47", "4E", "87", "90", "B7", "BD")]
IN_USE = (
    "currently being used by one or more other processes (e.g., Fabric Manager, CUDA application, graphics application"
    " such as an X server, or a monitoring application such as another instance of nvidia-smi). Please first kill all"
    " processes using"
)


def csv(simulation: Simulation, fields: str, *options: str) -> list[str]:
    return simulation.smi(f"--query-gpu={fields}", "--format=csv,noheader", *options).splitlines()


def test_query(dgx: Simulation) -> None:
    fields = (
        "index,name,uuid,serial,pci.bus_id,driver_version,count,vbios_version,pstate,persistence_mode,compute_cap,"
        "memory.total,memory.used,memory.free,utilization.gpu,temperature.gpu,temperature.memory,power.draw,power.limit,"
        "enforced.power.limit,power.default_limit,power.min_limit,power.max_limit,ecc.mode.current,ecc.mode.pending,"
        "ecc.errors.uncorrected.aggregate.total,mig.mode.current,pcie.link.gen.current,pcie.link.gen.max,"
        "pcie.link.width.current,clocks.sm,clocks.max.sm,clocks_throttle_reasons.active"
    )
    dgx.set("gpu1/ecc/aggregate/uncorrected/dram", 5)
    header, values = dgx.smi(f"--query-gpu={fields}", "--format=csv", "-i", "1").splitlines()
    table = dict(zip(header.split(", "), values.split(", "), strict=True))
    assert table == {
        "index": "1",
        "name": "NVIDIA A100-SXM4-80GB",
        "uuid": "GPU-a1000000-0000-4000-8000-000000000001",
        "serial": "1560000000001",
        "pci.bus_id": "00000000:0F:00.0",
        "driver_version": "580.159.04",
        "count": "8",
        "vbios_version": "92.00.45.00.05",
        "pstate": "P0",
        "persistence_mode": "Disabled",
        "compute_cap": "8.0",
        "memory.total [MiB]": "81920 MiB",
        "memory.used [MiB]": "0 MiB",
        "memory.free [MiB]": "81051 MiB",
        "utilization.gpu [%]": "0 %",
        "temperature.gpu": "28",
        "temperature.memory": "46",
        "power.draw [W]": "52.00 W",
        "power.limit [W]": "400.00 W",
        "enforced.power.limit [W]": "400.00 W",
        "power.default_limit [W]": "400.00 W",
        "power.min_limit [W]": "100.00 W",
        "power.max_limit [W]": "400.00 W",
        "ecc.mode.current": "Enabled",
        "ecc.mode.pending": "Enabled",
        "ecc.errors.uncorrected.aggregate.total": "5",
        "mig.mode.current": "Disabled",
        "pcie.link.gen.current": "4",
        "pcie.link.gen.max": "4",
        "pcie.link.width.current": "16",
        "clocks.current.sm [MHz]": "1155 MHz",
        "clocks.max.sm [MHz]": "1410 MHz",
        "clocks_event_reasons.active": "0x0000000000000001",
    }


def test_query_forms(dgx: Simulation) -> None:
    assert csv(dgx, "gpu_name,gpu_bus_id") == [f"NVIDIA A100-SXM4-80GB, {bus}" for bus in BUS_IDS]
    plain = dgx.smi("--query-gpu", "index,power.limit", "--format", "csv,nounits", "--id=0,2")
    assert plain.splitlines() == ["index, power.limit [W]", "0, 400.00", "2, 400.00"]
    uuid = "GPU-a1000000-0000-4000-8000-000000000005"
    for selector in ("5", uuid, BUS_IDS[5], "0000:90:00.0", "1560000000005"):
        assert csv(dgx, "index", "-i", selector) == ["5"]
    # What a card lacks, and what fails.
    (dgx.directory / "gpu0/temperature/memory").unlink()
    dgx.set("gpu0/power/usage", "!UNKNOWN")
    assert csv(dgx, "temperature.memory,power.draw", "-i", "0") == ["[N/A], [Unknown Error]"]


def test_list(dgx: Simulation) -> None:
    lines = dgx.smi("-L").splitlines()
    assert lines[7] == "GPU 7: NVIDIA A100-SXM4-80GB (UUID: GPU-a1000000-0000-4000-8000-000000000007)"
    assert len(lines) == 8


def test_ecc(dgx: Simulation) -> None:
    assert dgx.smi("-i", "0", "-e", "0") == f"Disabled ECC support for GPU {BUS_IDS[0]}.\nAll done.\nReboot required.\n"
    assert dgx.one("nvmlDeviceGetEccMode", "@0") == [1, 0]
    assert dgx.one("nvmlDeviceGetEccMode", "@1") == [1, 1]
    assert dgx.smi("--ecc-config=0", "-i", "0") == f"ECC support is already Disabled for GPU {BUS_IDS[0]}.\nAll done.\n"
    everything = dgx.smi("-e", "ENABLED").splitlines()
    assert everything[0] == f"Enabled ECC support for GPU {BUS_IDS[0]}."
    assert everything[1:8] == [f"ECC support is already Enabled for GPU {bus}." for bus in BUS_IDS[1:]]
    assert everything[8:] == ["All done.", "Reboot required."]


def test_persistence_mode(dgx: Simulation) -> None:
    first = dgx.smi("-pm", "1").splitlines()
    assert first == [*(f"Enabled persistence mode for GPU {bus}." for bus in BUS_IDS), "All done."]
    second = dgx.smi("--persistence-mode=1").splitlines()
    assert second == [*(f"Persistence mode is already Enabled for GPU {bus}." for bus in BUS_IDS), "All done."]
    assert csv(dgx, "persistence_mode") == ["Enabled"] * 8


def test_power_limit(dgx: Simulation) -> None:
    dgx.smi("-pm", "1", "-i", "3")
    done = dgx.smi("-pl", "300.5", "-i", "3")
    assert done == f"Power limit for GPU {BUS_IDS[3]} was set to 300.50 W from 400.00 W.\nAll done.\n"
    warned = dgx.smi("--power-limit=300", "-i", "4")
    assert f"Warning: persistence mode is disabled on device {BUS_IDS[4]}." in warned
    assert csv(dgx, "power.limit") == ["400.00 W"] * 3 + ["300.50 W", "300.00 W"] + ["400.00 W"] * 3
    refused = dgx.smi("-pl", "500", "-i", "3", code=2)
    assert refused == (
        "Provided power limit 500.00 W is not a valid power limit which should be between 100.00 W and 400.00 W for GPU"
        f" {BUS_IDS[3]}\nTerminating early due to previous errors.\n"
    )
    (dgx.directory / "gpu5/power/min_limit").unlink()
    lacking = dgx.smi("-pl", "300", "-i", "5")
    assert lacking.splitlines()[:2] == [
        f"Changing power management limit is not supported for GPU: {BUS_IDS[5]}.",
        "Treating as warning and moving on.",
    ]


def test_only_root(dgx: Simulation, open_path: Path) -> None:
    assert dgx.directory.is_relative_to(open_path)
    dgx.command("unset", "system/allow_users")
    user = NOBODY if os.geteuid() == 0 else None
    for options, complaint in (
        (("-pl", "300"), "Failed to set power management limit for GPU"),
        (("-pm", "1"), "Unable to set persistence mode for GPU"),
        (("-e", "0"), "Unable to set ECC mode for GPU"),
        (("-r",), "The following GPUs could not be reset:\n  GPU"),
    ):
        text = dgx.smi(*options, "-i", "0", code=4, user=user)
        assert text.startswith(f"{complaint} {BUS_IDS[0]}: Insufficient Permissions\n")
    assert dgx.smi("-L", user=user).count("GPU ") == 8


def test_reset(dgx: Simulation) -> None:
    dgx.smi("-pl", "300")
    assert dgx.smi("--gpu-reset", "-i", "1,2").splitlines() == [
        f"GPU {bus} was successfully reset." for bus in BUS_IDS[1:3]
    ]
    assert csv(dgx, "power.limit") == ["300.00 W", "400.00 W", "400.00 W", *["300.00 W"] * 5]


def test_reset_of_a_used_gpu(dgx: Simulation) -> None:
    dgx.smi("-pl", "300")
    dgx.set("gpu1/processes", "4242 compute 1048576")
    refused = dgx.smi("-r", "-i", "1", code=255)
    assert refused == (
        f"The following GPUs could not be reset:\n  GPU {BUS_IDS[1]}: In use by another client\n\n"
        f"1 device is {IN_USE} this device and all compute applications running in the system.\n"
    )
    # Persistence mode holds a GPU, too.
    dgx.smi("-pm", "1", "-i", "2")
    text = dgx.smi("-r", "-i", "0,1,2", code=255)
    assert text == (
        f"GPU {BUS_IDS[0]} was successfully reset.\nThe following GPUs could not be reset:\n"
        f"  GPU {BUS_IDS[1]}: In use by another client\n  GPU {BUS_IDS[2]}: In use by another client\n\n"
        f"2 devices are {IN_USE} these devices and all compute applications running in the system.\n"
    )
    assert csv(dgx, "power.limit", "-i", "0,1,2") == ["400.00 W", "300.00 W", "300.00 W"]
    dgx.smi("-pm", "0", "-i", "2")
    dgx.smi("-r", "-i", "2")
    # A comment in the list is no process.
    dgx.command("unset", "gpu1/processes")
    (dgx.directory / "gpu1/processes").write_text("# none\n\n", encoding="utf-8")
    dgx.smi("-r", "-i", "1")


def test_reset_that_fails(dgx: Simulation) -> None:
    dgx.command("fault", "gpuReset", "UNKNOWN", "--gpu", "gpu2", "--once")
    dgx.smi("-pl", "300", "-i", "2")
    text = dgx.smi("-r", "-i", "2", code=255)
    assert text == f"The following GPUs could not be reset:\n  GPU {BUS_IDS[2]}: Unknown Error\n\n"
    assert csv(dgx, "power.limit", "-i", "2") == ["300.00 W"]
    dgx.smi("-r", "-i", "2")
    # A reset that says yes and does no.
    dgx.smi("-pl", "300", "-i", "2")
    dgx.command("fault", "gpuReset", "SUCCESS")
    dgx.smi("-r", "-i", "2")
    assert csv(dgx, "power.limit", "-i", "2") == ["300.00 W"]


def test_nvlink(dgx: Simulation) -> None:
    title = "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-a1000000-0000-4000-8000-000000000000)"
    dgx.command("link", "gpu0", "3", "down")
    dgx.set("gpu0/nvlink/1#error_recovery", 7)
    lines = dgx.smi("nvlink", "-s", "-i", "0").splitlines()
    assert lines == [
        title,
        *(f"\t Link {link}: {'<inactive>' if link == 3 else '25 GB/s'}" for link in range(12)),
    ]
    errors = dgx.smi("nvlink", "--errorcounters", "--id=0").splitlines()
    assert errors[:8] == [
        title,
        "\t Link 0: Replay Errors: 0",
        "\t Link 0: Recovery Errors: 0",
        "\t Link 0: CRC Errors: 0",
        "",
        "\t Link 1: Replay Errors: 0",
        "\t Link 1: Recovery Errors: 7",
        "\t Link 1: CRC Errors: 0",
    ]
    assert dgx.smi("nvlink", "-re", "-i", "0") == f"{title}\n\t All links (0-11): error counters reset\n\n"
    assert "Recovery Errors: 7" not in dgx.smi("nvlink", "-e", "-i", "0")
    assert dgx.smi("nvlink", "-s").count("GB/s") == 95


def test_links_of_a_gpu_that_has_no_speed_in_whole_gigabytes(h200: Simulation) -> None:
    h200.set("gpu0/nvlink/0", "state = 1")
    h200.set("gpu0/nvlink/0#speed_mbps", 26562)
    h200.set("gpu0/fields#164", "u32 26562")
    assert "\t Link 0: 26.562 GB/s\n" in h200.smi("nvlink", "-s", "-i", "0")


def test_lost_gpu(dgx: Simulation) -> None:
    dgx.command("lose", "gpu3")
    text = dgx.smi("--query-gpu=index", "--format=csv,noheader", code=15)
    # Complaints go to standard error, so that their place among the lines is not fixed.
    assert sorted(text.splitlines()) == [
        *(str(index) for index in range(8) if index != 3),
        "Unable to determine the device handle for GPU3: 0000:4E:00.0: GPU is lost",
    ]
    assert "GPU is lost" in dgx.smi("-pm", "1", code=15)
    assert csv(dgx, "persistence_mode", "-i", "4") == ["Enabled"]
    assert "  GPU 00000000:4E:00.0: GPU is lost\n" in dgx.smi("-r", "-i", BUS_IDS[3], code=15)


def test_no_driver(library: Path, tmp_path: Path) -> None:
    text = Simulation(library, tmp_path / "nothing").smi("-L", code=9)
    assert text.startswith("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")


def test_mismatch_and_no_gpus(dgx: Simulation, make_simulation: t.Callable[..., Simulation]) -> None:
    dgx.set("system/driver_version", "1")
    (dgx.directory / "init_error").write_text("18\n", encoding="utf-8")
    assert dgx.smi("-L", code=18) == "Failed to initialize NVML: Driver/library version mismatch\n"
    (dgx.directory / "init_error").unlink()
    dgx.command("reboot")
    empty = make_simulation("dgx-a100-80gb", "--gpus", "0", "--replace")
    assert empty.smi("-L", code=6) == "No devices were found\n"


def test_no_library(dgx: Simulation, tmp_path_factory: pytest.TempPathFactory) -> None:
    program = tmp_path_factory.mktemp("program") / "nvidia-smi"
    program.write_bytes((dgx.library / "nvidia-smi").read_bytes())
    program.chmod(0o755)
    environment = {key: value for key, value in dgx.environment().items() if key != "LD_LIBRARY_PATH"}
    done = subprocess.run([str(program), "-L"], env=environment, capture_output=True, text=True, check=False)
    if "GPU 0" in done.stdout or done.returncode == 9:
        pytest.skip("a libnvidia-ml.so.1 is installed here")
    assert done.returncode == 12
    assert done.stdout.startswith("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "What to do is not simulated without an option"),
        (["-q"], 2, 'Option "-q" is not simulated'),
        (["--lock-gpu-clocks=1410"], 2, 'Option "--lock-gpu-clocks=1410" is not simulated'),
        (["-e"], 2, 'Option "-e" is not simulated'),
        (["-e", "2"], 2, '"2" is no mode of ECC'),
        (["-pm", "on"], 2, '"on" is no persistence mode'),
        (["-pl", "many"], 2, '"many" is no power limit'),
        (["-pl", "-5"], 2, '"-5" is no power limit'),
        (["-pl", "nan"], 2, '"nan" is no power limit'),
        (["-e", "1", "-pm", "1"], 2, "Invalid combination of input arguments."),
        (["--query-gpu=index"], 2, "--query-gpu and --format=csv go together"),
        (["-L", "--format=csv"], 2, "--query-gpu and --format=csv go together"),
        (["--query-gpu=index", "--format=xml"], 2, '"xml" is no format'),
        (["--query-gpu=index,cuda_version", "--format=csv"], 2, 'Field "cuda_version" is not a valid field to query.'),
        (["-L", "-i", "8"], 6, "No devices were found"),
        (["-L", "-i", "0,GPU-none"], 6, "No devices were found"),
        (["nvlink"], 2, "nvlink needs one of"),
        (["nvlink", "-g", "0"], 2, 'Option "-g" of nvlink is not simulated'),
        (["nvlink", "-s", "-e"], 2, "Invalid combination of input arguments."),
    ],
)
def test_refusals(arguments: list[str], code: int, message: str, dgx: Simulation) -> None:
    before = dgx.command("show")
    assert message in dgx.smi(*arguments, code=code)
    assert dgx.command("show") == before
