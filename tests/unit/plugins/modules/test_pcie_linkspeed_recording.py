# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What real GPUs gave (tests/gpu/recordings): that it is what the modules document, and what the simulated ones give."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

from ansible_collections.baremetal.inference.plugins.module_utils._pci import PciLink
from ansible_collections.baremetal.inference.plugins.module_utils._pcie import Link, Port, Reading, Wanted, judge
from ansible_collections.baremetal.inference.plugins.modules import pcie_linkspeed

from tests.gpu.record import RECORDINGS, Anonymous

ROOT = Path(__file__).resolve().parents[4]
H200 = ROOT / "tests/gpu/recordings/h200x2"
CASES = [name for name, (module, unused, options) in RECORDINGS.items() if module == "pcie_linkspeed"]


def recorded(name: str) -> dict[str, t.Any]:
    result: dict[str, t.Any] = json.loads((H200 / f"{name}.json").read_text(encoding="utf-8"))
    return result


@pytest.mark.parametrize("name", [*CASES, "gpu_info", "ecc_state_enabled", "gpu_power_limit_default"])
def test_recording_is_as_documented(undocumented: t.Any, name: str) -> None:
    module = importlib.import_module(f"ansible_collections.baremetal.inference.plugins.modules.{RECORDINGS[name][0]}")
    result = recorded(name)
    assert undocumented(module, result, "failure" if result.get("failed") else "success") == []


def link_of(gpu: dict[str, t.Any]) -> Link:
    def end(value: dict[str, t.Any] | None) -> PciLink | None:
        return None if value is None else PciLink(**value)

    def reading(value: dict[str, t.Any]) -> Reading:
        return Reading(**{**value, "gpu": end(value["gpu"]), "upstream_port": end(value["upstream_port"])})

    bandwidth = gpu["bandwidth"] or {}
    return Link(
        generation_gpu_max=gpu["generation_gpu_max"],
        generation_max=gpu["generation_max"],
        width_max=gpu["width_max"],
        idle=reading(gpu["idle"]),
        loaded=reading(gpu["load"]) if gpu["load"] else None,
        host_to_device_gb_per_s=bandwidth["host_to_device"]["best_gb_per_s"] if bandwidth else None,
        device_to_host_gb_per_s=bandwidth["device_to_host"]["best_gb_per_s"] if bandwidth else None,
        replays=gpu["replays_under_load"],
        path=tuple(Port(port["pci_bus_id"], end(port["link"])) for port in gpu["path"]),
    )


@pytest.mark.parametrize("name", CASES)
def test_verdict_on_real_links(name: str) -> None:
    """The judge says of the recorded readings what was recorded, numbers in the place of "max"."""
    for gpu in recorded(name)["gpus"]:
        expected = gpu["expected"]
        wanted = Wanted(
            expected["generation"],
            expected["width"],
            expected["host_to_device_gb_per_s"],
            expected["device_to_host_gb_per_s"],
            expected["replays"],
        )
        judgement = judge(link_of(gpu), wanted)
        assert judgement.verdict == gpu["verdict"] == ("below" if name.endswith("too_fast") else "ok")
        assert [problem.check for problem in judgement.problems] == [problem["check"] for problem in gpu["problems"]]


# What a simulated H200 need not have: names of its own, and figures of that machine.
OWN = ("uuid", "local_cpulist", "replay_count")


@pytest.mark.parametrize("name", CASES)
def test_simulated_gpus_give_the_same(simulated_host: t.Any, name: str) -> None:
    simulated_host.create("h200-sxm-x2")
    result = simulated_host.run("pcie_linkspeed", **RECORDINGS[name][2])
    real = recorded(name)
    assert (result.get("failed"), result.get("reason"), result["verdict"]) == (
        real.get("failed"),
        real.get("reason"),
        real["verdict"],
    )
    assert len(result["gpus"]) == len(real["gpus"]) == 2
    for position, gpu in enumerate(real["gpus"]):
        simulated = result["gpus"][position]
        if gpu["bandwidth"]:
            for direction in ("host_to_device", "device_to_host"):
                ours, theirs = (one["bandwidth"][direction]["best_gb_per_s"] for one in (simulated, gpu))
                assert 0.85 < ours / theirs < 1.15
        for one in (simulated, gpu):
            for key in OWN:
                del one[key]
            one["bandwidth"] = bool(one["bandwidth"])
            one["problems"] = [problem["check"] for problem in one["problems"]]
        assert simulated == gpu


def test_script_records_and_replaces_identifiers(simulated_host: t.Any, tmp_path: Path) -> None:
    simulated_host.create("h200-sxm-x2")
    uuids = ["GPU-5f1d8a7e-3f0b-4a53-9c55-2f9f9b7a1c11", "GPU-1f1d8a7e-3f0b-4a53-9c55-2f9f9b7a1c11"]
    for number, uuid in enumerate(uuids):
        simulated_host.set(f"gpu{number}/uuid", uuid)
    simulated_host.set("gpu1/serial", "1654923007777")
    done = subprocess.run(
        [str(ROOT / "tests/gpu/run"), str(tmp_path / "out"), "gpu_info", "pcie_linkspeed"],
        env={
            **simulated_host.environment,
            "GPU_TEST_PYTHON": sys.executable,
            "GPU_TEST_PYTHONPATH": str(simulated_host.libraries),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["gpu_info.json", "pcie_linkspeed.json"]
    text = "".join(path.read_text() for path in (tmp_path / "out").iterdir())
    for identifier in (*uuids, "1654923007777"):
        assert identifier not in text
    facts = json.loads((tmp_path / "out/gpu_info.json").read_text())
    assert [gpu["uuid"] for gpu in facts["gpus"]] == [f"GPU-0000000{n}-0000-4000-8000-000000000000" for n in (0, 1)]
    assert set(facts["gpu_positions"]) >= {gpu["uuid"] for gpu in facts["gpus"]}
    assert facts["gpus"][1]["serial"] == "0" * 13


@pytest.mark.parametrize(
    ("arguments", "text"),
    [([], "tests/gpu/run DIR NAME..."), (["out", "nothing"], "nothing: there is only gpu_info, pcie_linkspeed,")],
)
def test_script_used_wrongly(arguments: list[str], text: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(ROOT / "tests/gpu/run"), *arguments],
        env={"PATH": "/usr/bin:/bin", "GPU_TEST_PYTHON": sys.executable},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert text in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_identifiers_are_replaced_everywhere() -> None:
    uuid = "GPU-5f1d8a7e-3f0b-4a53-9c55-2f9f9b7a1c11"
    anonymous = Anonymous()
    first = "GPU-00000000-0000-4000-8000-000000000000"
    assert anonymous.value({uuid: [f"GPU 0 ({uuid}) is lost"], "serial": "12345", "n": 1, "none": None}) == {
        first: [f"GPU 0 ({first}) is lost"],
        "serial": "00000",
        "n": 1,
        "none": None,
    }
    assert anonymous.text(uuid.replace("5f", "6f")) == first.replace("GPU-00000000", "GPU-00000001")
    assert anonymous.text(uuid) == first


def test_examples_use_options_that_there_are() -> None:
    yaml = pytest.importorskip("yaml")
    options = yaml.safe_load(pcie_linkspeed.DOCUMENTATION)["options"]
    tasks = [task.get("baremetal.inference.pcie_linkspeed") or {} for task in yaml.safe_load(pcie_linkspeed.EXAMPLES)]
    used = {name: value for task in tasks for name, value in task.items()}
    assert {"measure", "generation", "width", "max_replays"} <= used.keys() <= {*options, "gpus"}
    assert all(value in options[name].get("choices", [value]) for name, value in used.items() if name != "gpus")
