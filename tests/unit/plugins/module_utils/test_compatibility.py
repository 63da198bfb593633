# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which engine, driver and GPU go together: tables of hosts, the data itself, and the table for people."""

from __future__ import annotations

import re
import typing as t
from pathlib import Path

import pytest
import yaml

from ansible_collections.baremetal.inference.plugins.module_utils import _compatibility_data as data
from ansible_collections.baremetal.inference.plugins.module_utils._compatibility import (
    CompatibilityError,
    branch_state,
    driver_branch_minimum,
    judge,
)
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_model import ARCHITECTURES, BRANDS

ROOT = Path(__file__).resolve().parents[4]
VERSIONS = yaml.safe_load((ROOT / "roles/vllm_service/vars/main/versions.yml").read_text())["__vllm_service_versions"]
ENGINE = {
    "engine": "0.33.0",
    "cuda": "13.0",
    "compute_capability_minimum": "7.5",
    "python": ["3.11", "3.15"],
}
ENGINE_CUDA_12 = {**ENGINE, "engine": "0.31.0", "cuda": "12.9"}
TODAY = "2026-11-30"
ASKS = {"VLLM_ENABLE_CUDA_COMPATIBILITY": "1"}
FOLDER = "/usr/local/cuda-13.0/compat"


def gpu(name: str, architecture: str | None, capability: str | None, brand: str = "nvidia") -> dict[str, t.Any]:
    return {
        "index": 0,
        "uuid": "GPU-0",
        "pci_bus_id": "0000:07:00.0",
        "name": name,
        "architecture": architecture,
        "compute_capability": capability,
        "brand": brand,
    }


V100 = gpu("Tesla V100-SXM2-32GB", "volta", "7.0", "tesla")
T4 = gpu("Tesla T4", "turing", "7.5", "tesla")
A100 = gpu("NVIDIA A100-SXM4-80GB", "ampere", "8.0")
RTX_3090 = gpu("NVIDIA GeForce RTX 3090", "ampere", "8.6", "geforce")
RTX_A6000 = gpu("NVIDIA RTX A6000", "ampere", "8.6", "nvidia_rtx")
H100 = gpu("NVIDIA H100 80GB HBM3", "hopper", "9.0")
B200 = gpu("NVIDIA B200", "blackwell", "10.0")


def judged(
    driver: str | int | None,
    *gpus: dict[str, t.Any],
    engine: dict[str, t.Any] | None = None,
    today: str = TODAY,
    **host: t.Any,
) -> dict[str, t.Any]:
    result = judge(ENGINE if engine is None else engine, {"driver": driver, "gpus": list(gpus), **host}, today)
    assert result["ok"] == (result["problems"] == [])
    assert all(text in result["message"] for text in result["problems"])
    assert all(pair["text"] in result["message"] for pair in result["pairs"])
    return result


def pairs(result: dict[str, t.Any]) -> list[t.Any]:
    named = {"driver": "branch", "cuda_compat": "package", "engine": "engine"}
    return [pair[named[pair["kind"]]] for pair in result["pairs"]]


LIVING = [580, 595, 620]


@pytest.mark.parametrize(
    ("driver", "gpus", "engine", "said", "can"),
    [
        pytest.param("580.159.04", [A100], ENGINE, "", [], id="A100 with the long-term branch"),
        pytest.param("580.65.06", [T4], ENGINE, "", [], id="Turing is the oldest generation"),
        pytest.param("620.10", [H100, A100], ENGINE, "", [], id="two kinds of GPUs"),
        pytest.param("580.159.04", [B200], ENGINE, "", [], id="Blackwell"),
        pytest.param("580.159.04", [], ENGINE, "", [], id="GPUs are not known"),
        pytest.param(
            "535.288.01",
            [A100],
            ENGINE,
            "is 535.288.01. vLLM 0.33.0, built for CUDA 13.0, needs branch 580 or newer.",
            [*LIVING, "cuda-compat-13-0", "0.31.0"],
            id="fleet of A100 whose driver, frozen at CUDA 12.2, runs wheels for CUDA 12.9 and none for CUDA 13",
        ),
        pytest.param("535.288.01", [A100], ENGINE_CUDA_12, "", [], id="the major version binds, the minor does not"),
        pytest.param(
            "470.256.02",
            [A100],
            ENGINE_CUDA_12,
            "needs branch 525 or newer.",
            [535, 570, *LIVING],
            id="too old for CUDA 12 as well",
        ),
        pytest.param(
            "575.57.08",
            [A100],
            ENGINE,
            "is 575.57.08.",
            [*LIVING, "cuda-compat-13-0", "0.31.0"],
            id="A100, driver 575",
        ),
        pytest.param(
            "560.35.05",
            [A100],
            ENGINE,
            "is 560.35.05.",
            [*LIVING, "0.31.0"],
            id="a feature branch that the compatibility package is not made for",
        ),
        pytest.param(
            "575.57.08",
            [RTX_3090],
            ENGINE,
            "is 575.57.08.",
            [*LIVING, "0.31.0"],
            id="GeForce has no forward compatibility",
        ),
        pytest.param(
            "575.57.08",
            [A100, RTX_3090],
            ENGINE,
            "is 575.57.08.",
            [*LIVING, "0.31.0"],
            id="one GeForce among data-center GPUs",
        ),
        pytest.param(
            "575.57.08", [RTX_A6000], ENGINE, "is 575.57.08.", [*LIVING, "0.31.0"], id="of RTX cards only some have it"
        ),
        pytest.param(
            "550.54.15", [], ENGINE, "is 550.54.15.", [*LIVING, "0.31.0"], id="of unknown GPUs nobody knows it"
        ),
        pytest.param(
            "520.61.05",
            [A100],
            ENGINE,
            "is 520.61.05.",
            LIVING,
            id="older than any wheel and any compatibility package",
        ),
        pytest.param(
            "580.159.04",
            [V100],
            ENGINE,
            "cannot run vLLM 0.33.0, built for CUDA 13.0, on any driver: CUDA 12 is the last for Volta.",
            [],
            id="CUDA 13 without Volta",
        ),
        pytest.param(
            "595.71.05",
            [V100],
            ENGINE_CUDA_12,
            "needs a driver of branch 580 or older, which is the last for Volta, and the driver is of branch 595.",
            [],
            id="a driver without Volta, an engine without it",
        ),
        pytest.param(
            "595.71.05",
            [V100],
            {"engine": "0.9.0", "cuda": "12.8"},
            "needs a driver of branch 580 or older",
            [580],
            id="a driver without Volta",
        ),
        pytest.param(
            "580.159.04",
            [V100],
            ENGINE_CUDA_12,
            "which needs compute capability 7.5 or higher.",
            [],
            id="the engine itself without Volta",
        ),
        pytest.param(
            "550.54.15",
            [B200],
            ENGINE_CUDA_12,
            "needs a driver of branch 570 or newer, which is the first for Blackwell",
            LIVING,
            id="a driver without Blackwell",
        ),
        pytest.param(
            "450.80.02",
            [H100],
            {**ENGINE, "cuda": "11.8"},
            "first for Hopper",
            [535, 570, *LIVING],
            id="without Hopper",
        ),
        pytest.param(None, [A100], ENGINE, "has no NVIDIA driver.", LIVING, id="no driver yet"),
        pytest.param(580, [A100], ENGINE, "", [], id="a branch that is wanted, as a number"),
        pytest.param("590", [A100], ENGINE, "", [], id="a branch that is wanted, as a text"),
    ],
)
def test_driver_and_gpus(
    driver: t.Any, gpus: list[t.Any], engine: dict[str, t.Any], said: str, can: list[t.Any]
) -> None:
    # In the year in which all of these branches live.
    today = "2026-01-15" if 535 in can or 570 in can else TODAY
    result = judged(driver, *gpus, engine=engine, today=today)
    assert result["ok"] == (said == "")
    assert said in result["message"]
    assert pairs(result) == can


def test_nothing_can_work_is_said() -> None:
    assert judged("580.159.04", V100)["message"].endswith(
        f"No driver or engine that would work here is known (as of {data.CHECKED}): take other GPUs."
    )


def test_the_pairs_say_until_when_and_what_to_do() -> None:
    assert [pair["text"] for pair in judged("535.288.01", A100)["pairs"]] == [
        "driver branch 580 (long-term support, until June 2028)",
        "driver branch 595 (production, until March 2027)",
        "driver branch 620 (long-term support, until September 2029)",
        "driver 535.288.01 as it is, with the package cuda-compat-13-0 installed and VLLM_ENABLE_CUDA_COMPATIBILITY set to '1'"
        " in the environment of every engine (vllm_service_env)",
        "driver 535.288.01 as it is, with vLLM 0.31.0 built for CUDA 12.9 (vllm-0.31.0+cu129), which needs branch 525 or"
        " newer; this collection does not install it",
    ]


def test_a_branch_at_its_end_is_not_offered() -> None:
    assert pairs(judged(None, A100, today="2027-02-28")) == LIVING
    assert pairs(judged(None, A100, today="2027-03-01")) == [580, 620]
    assert pairs(judged(None, A100, today="2029-09-01")) == []


def test_gpus_of_one_kind_are_one_problem() -> None:
    many = [{**V100, "pci_bus_id": f"0000:0{number}:00.0"} for number in range(4)]
    (problem,) = judged("580.159.04", *many)["problems"]
    assert problem.startswith("GPU Tesla V100-SXM2-32GB (volta, compute capability 7.0) (0000:00:00.0, 0000:01:00.0, ")


@pytest.mark.parametrize(
    ("capability", "refused"), [("6.1", "Pascal"), ("7.0", "Volta"), ("7.5", ""), ("8.0", ""), ("12.0", "")]
)
def test_a_generation_is_known_by_its_capability(capability: str, refused: str) -> None:
    result = judged("580.159.04", gpu("X", None, capability))
    assert result["warnings"] == []
    assert (f"the last for {refused}" in result["message"]) == bool(refused)


@pytest.mark.parametrize("unknown", [gpu("X", "rubin", None), gpu("X", None, None), gpu("X", None, "13.1")])
def test_a_generation_that_is_not_known_is_let_through_and_said(unknown: dict[str, t.Any]) -> None:
    result = judged("620.10", unknown)
    assert result["ok"]
    assert "GPU X" in result["warnings"][0]
    assert "is not judged" in result["warnings"][0]


# ---- The compatibility package ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["1", 1, True, "true", " TRUE "])
def test_the_compatibility_package_lets_an_older_driver_run(value: t.Any) -> None:
    """A100 and driver 575: refused without the libraries, served with them."""
    asks = {"VLLM_ENABLE_CUDA_COMPATIBILITY": value}
    result = judged("575.57.08", A100, environments=[asks, asks], compat_folders=[FOLDER])
    assert result["ok"]
    assert result["pairs"] == []
    assert result["compat_folders"] == [FOLDER]
    assert "runs on it with the libraries of cuda-compat-13-0" in result["warnings"][0]


@pytest.mark.parametrize("value", ["0", 0, False, "", "yes"])
def test_what_the_engine_takes_for_no_is_no(value: t.Any) -> None:
    result = judged(
        "575.57.08", A100, environments=[{"VLLM_ENABLE_CUDA_COMPATIBILITY": value}], compat_folders=[FOLDER]
    )
    assert not result["ok"]
    assert result["compat_folders"] == []


@pytest.mark.parametrize(
    ("driver", "cards", "host", "said"),
    [
        (
            "575.57.08",
            [A100],
            {"environments": [ASKS]},
            f"there is no folder {FOLDER}, and the engine would start without its libraries: install the package"
            " cuda-compat-13-0.",
        ),
        (
            "575.57.08",
            [A100],
            {"environments": [{**ASKS, "VLLM_CUDA_COMPATIBILITY_PATH": "/opt/compat"}]},
            f"there is no folder /opt/compat, {FOLDER}",
        ),
        (
            "575.57.08",
            [A100],
            {"environments": [ASKS, {}], "compat_folders": [FOLDER]},
            "is set for 1 of 2 engines only: set it for all.",
        ),
        (
            "560.35.05",
            [A100],
            {"environments": [ASKS], "compat_folders": [FOLDER]},
            "cuda-compat-13-0 is known to work with branches 535, 550, 565, 570, 575 only.",
        ),
        (
            "575.57.08",
            [RTX_3090],
            {"environments": [ASKS], "compat_folders": [FOLDER]},
            "is no data-center GPU, and CUDA refuses cuda-compat-13-0 there (error 803 or 804).",
        ),
        (
            "595.71.05",
            [A100],
            {"environments": [ASKS, {}], "compat_folders": [FOLDER]},
            "is newer and refuses them (CUDA error 803). It needs no help: remove the variable.",
        ),
    ],
)
def test_the_compatibility_package_where_it_does_not_help(
    driver: str, cards: list[dict[str, t.Any]], host: dict[str, t.Any], said: str
) -> None:
    result = judged(driver, *cards, **host)
    assert not result["ok"]
    assert said in result["message"]


def test_no_package_is_known_for_another_cuda() -> None:
    result = judged("470.256.02", A100, engine=ENGINE_CUDA_12, environments=[ASKS], compat_folders=[FOLDER])
    assert "no compatibility package for CUDA 12.9 is known" in result["message"]
    assert result["compat_folders"] == []


def test_an_own_folder_of_the_package() -> None:
    environment = {**ASKS, "VLLM_CUDA_COMPATIBILITY_PATH": "/opt/compat"}
    assert judged("575.57.08", A100, environments=[environment])["compat_folders"] == ["/opt/compat", FOLDER]
    assert judged("575.57.08", A100, environments=[environment], compat_folders=["/opt/compat"])["ok"]


def test_whether_a_card_takes_the_package_is_said_where_it_is_not_known() -> None:
    result = judged("575.57.08", RTX_A6000, environments=[ASKS], compat_folders=[FOLDER])
    assert result["ok"]
    assert "whether GPU NVIDIA RTX A6000" in result["warnings"][0]


def test_a_new_driver_needs_no_package() -> None:
    result = judged("580.159.04", A100, environments=[ASKS], compat_folders=[FOLDER])
    assert result["ok"]
    assert result["warnings"] == [
        "VLLM_ENABLE_CUDA_COMPATIBILITY is set, and the driver, 580.159.04, needs no such help: remove the variable."
    ]


def test_secrets_of_an_environment_are_nowhere_in_the_result() -> None:
    result = judged("535.1", A100, environments=[{**ASKS, "HF_TOKEN": "hush"}])
    assert "hush" not in str(result)
    with pytest.raises(CompatibilityError) as caught:
        judge(ENGINE, {"environments": "hush"}, TODAY)
    assert "hush" not in str(caught.value)


# ---- Python and kernel modules ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("python", "fits"), [("3.10.12", False), ("3.11", True), ("3.14.2", True), ("3.15.0", False), (None, True)]
)
def test_python(python: str | None, fits: bool) -> None:
    result = judged("580.159.04", A100, python=python)
    assert result["ok"] == fits
    if not fits:
        assert result["message"] == f"The Python is {python}. vLLM 0.33.0 needs 3.11 or newer, below 3.15."
        assert result["pairs"] == []


@pytest.mark.parametrize(
    ("card", "modules", "said"),
    [
        (T4, True, ""),
        (T4, False, ""),
        (A100, None, ""),
        (B200, True, ""),
        (B200, False, "works with the open kernel modules alone"),
        (V100, True, "does not work with the open kernel modules, which begin with Turing"),
        (V100, False, ""),
    ],
)
def test_kernel_modules(card: dict[str, t.Any], modules: bool | None, said: str) -> None:
    result = judged("580.159.04", card, engine={"engine": "0.9.0", "cuda": "12.8"}, open_modules=modules)
    assert result["ok"] == (said == "")
    assert said in result["message"]


# ---- Life cycle ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("driver", "today", "said"),
    [
        ("580.159.04", "2026-11-30", None),
        ("580.159.04", "2027-11-30", None),
        ("580.159.04", "2027-12-01", "(long-term support) reaches the end of its life in June 2028;"),
        ("580.159.04", "2028-05-31", "reaches the end of its life in June 2028;"),
        ("580.159.04", "2028-06-01", "reached the end of its life in June 2028: it gets no more fixes"),
        ("595.71.05", "2026-08-31", None),
        ("595.71.05", "2026-11-30", "Driver branch 595 (production) reaches the end of its life in March 2027;"),
        ("590.48.01", "2026-11-30", "Driver branch 590 (new feature) is for trying what is new"),
        ("610.43.02", "2026-07-01", "(new feature) reaches the end of its life in August 2026;"),
        ("610.43.02", "2026-11-30", "(new feature) reached the end of its life in August 2026:"),
        ("620.10", "2026-11-30", None),
        ("640.10", "2026-11-30", "Driver branch 640 is not in the collection's data"),
        ("585.10", "2026-11-30", "Driver branch 585 is not in the collection's data"),
    ],
)
def test_life_cycle(driver: str, today: str, said: str | None) -> None:
    result = judged(driver, A100, today=today)
    assert result["ok"]
    assert len(result["warnings"]) == (said is not None)
    assert (said or "") in "".join(result["warnings"])


def test_a_warning_names_what_lasts_longer() -> None:
    (warning,) = judged("595.71.05", A100)["warnings"]
    assert warning.endswith("Plan the change to branch 620 (long-term support, until September 2029).")


def test_where_the_driver_must_change_anyway_the_pairs_say_to_which() -> None:
    result = judged("535.288.01", A100)
    assert result["warnings"] == [
        "Driver branch 535 (long-term support) reached the end of its life in June 2026: it gets no more fixes, of security"
        " neither."
    ]


@pytest.mark.parametrize(
    ("number", "today", "ended"),
    [
        (535, "2026-05-31", False),
        (535, "2026-06-01", True),
        (560, "2025-12-01", True),
        (560, "2025-11-30", None),
        (640, TODAY, None),
    ],
)
def test_state_of_a_branch(number: int, today: str, ended: bool | None) -> None:
    assert branch_state(number, today)["ended"] is ended


# ---- What makes no sense ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "host", "today", "said"),
    [
        ("0.33.0", {}, TODAY, "engine is '0.33.0', but must be a mapping"),
        ({"cuda": "13.0"}, {}, TODAY, "engine.engine is None, but must be the engine's release"),
        ({"engine": "1", "cuda": 13.0}, {}, TODAY, "engine.cuda is 13.0, but must be a CUDA version in quotes"),
        ({"engine": "1", "cuda": "13"}, {}, TODAY, "engine.cuda is '13'"),
        ({"engine": "1", "cuda": "14.0"}, {}, TODAY, "engine.cuda is '14.0', but the collection's data (of "),
        ({**ENGINE, "compute_capability_minimum": 7.5}, {}, TODAY, "engine.compute_capability_minimum is 7.5"),
        ({**ENGINE, "python": "3.11"}, {}, TODAY, "engine.python is '3.11', but must be two versions"),
        ({**ENGINE, "python": [3.11, 3.15]}, {}, TODAY, "engine.python is [3.11, 3.15]"),
        (ENGINE, [], TODAY, "host is [], but must be a mapping"),
        (ENGINE, {"drivers": "580"}, TODAY, "host has drivers, but knows only driver, gpus,"),
        (ENGINE, {"driver": "r580"}, TODAY, "host.driver is 'r580', but must be a driver's version"),
        (ENGINE, {"driver": ""}, TODAY, "host.driver is ''"),
        (ENGINE, {"driver": True}, TODAY, "host.driver is True"),
        (ENGINE, {"driver": 580.1}, TODAY, "host.driver is 580.1"),
        (ENGINE, {"gpus": "all"}, TODAY, "host.gpus is 'all', but must be a list"),
        (ENGINE, {"gpus": ["0"]}, TODAY, "host.gpus[0] is '0', but must be a mapping"),
        (ENGINE, {"gpus": [{"compute_capability": 8.0}]}, TODAY, "host.gpus[0].compute_capability is 8.0"),
        (ENGINE, {"gpus": [{"architecture": 7}]}, TODAY, "host.gpus[0].architecture is 7"),
        (ENGINE, {"python": 3.12}, TODAY, "host.python is 3.12"),
        (ENGINE, {"open_modules": "yes"}, TODAY, "host.open_modules is 'yes', but must be true, false or null"),
        (ENGINE, {"environments": [1]}, TODAY, "host.environments must be a list of mappings"),
        (ENGINE, {"compat_folders": "/x"}, TODAY, "host.compat_folders is '/x', but must be a list of paths"),
        (ENGINE, {}, "30.11.2026", "today is '30.11.2026', but must be a date as text"),
        (ENGINE, {}, None, "today is None"),
    ],
)
def test_what_makes_no_sense_is_refused(engine: t.Any, host: t.Any, today: t.Any, said: str) -> None:
    with pytest.raises(CompatibilityError) as caught:
        judge(engine, host, today)
    assert said in str(caught.value)


def test_everything_that_makes_no_sense_is_told_at_once() -> None:
    with pytest.raises(CompatibilityError) as caught:
        judge({"engine": "1", "cuda": "x"}, {"driver": "x"}, "x")
    assert [word for word in ("engine.cuda", "host.driver", "today") if word not in str(caught.value)] == []


# ---- The data --------------------------------------------------------------------------------------------------------


def test_the_data_is_in_order_and_has_its_sources() -> None:
    for table in (
        data.CUDA_MAJORS,
        data.BRANCHES,
        data.ARCHITECTURES,
        data.FORWARD_COMPATIBILITIES,
        data.ENGINE_RELEASES,
    ):
        assert [
            entry for entry in t.cast("tuple[t.Any, ...]", table) if not re.search(r"[a-z]\.com/", entry.source)
        ] == []
    majors = [known.major for known in data.CUDA_MAJORS]
    assert majors == sorted(set(majors))
    numbers = [known.number for known in data.BRANCHES]
    assert numbers == sorted(set(numbers))
    capabilities = [tuple(map(int, known.compute_capability.split("."))) for known in data.ARCHITECTURES]
    assert capabilities == sorted(set(capabilities))
    for known in data.BRANCHES:
        assert known.kind in (data.LONG_TERM, data.PRODUCTION, data.FEATURE)
        assert known.end_of_life is None or re.fullmatch(r"20[0-9]{2}-(0[1-9]|1[0-2])", known.end_of_life)
        assert known.end_of_life or known.kind == data.FEATURE


def test_the_data_has_the_names_that_the_driver_has() -> None:
    assert {known.name for known in data.ARCHITECTURES} <= set(ARCHITECTURES.values())
    assert set(data.FORWARD_BRANDS) <= set(BRANDS.values())


def test_the_pinned_engine_is_one_that_is_known() -> None:
    release = VERSIONS["cuda"]
    assert driver_branch_minimum(release["cuda"]) == 580
    assert judge(release, {"driver": "580.159.04", "gpus": [A100], "python": "3.12"}, data.CHECKED)["problems"] == []
    assert release["cuda"] in {known.cuda for known in data.FORWARD_COMPATIBILITIES}
    for known in data.FORWARD_COMPATIBILITIES:
        assert known.built_from_branch >= driver_branch_minimum(known.cuda)
        assert max(known.accepted_branches) < driver_branch_minimum(known.cuda)


def tables() -> dict[str, list[str]]:
    """The tables of docs/compatibility.md, by name."""

    def rows(*cells: tuple[t.Any, ...]) -> list[str]:
        return [f"| {' | '.join(str(cell) for cell in row)} |" for row in cells]

    def branch(number: int | None, otherwise: str) -> str:
        return otherwise if number is None else str(number)

    engine, modules = VERSIONS["cuda"], {"never": "proprietary", "either": "open or proprietary", "only": "open"}
    return {
        "engine": rows(
            ("vLLM", "built for", "driver branch", "compute capability", "Python"),
            ("---",) * 5,
            (
                engine["engine"],
                f"CUDA {engine['cuda']}",
                f"{driver_branch_minimum(engine['cuda'])} or newer",
                f"{engine['compute_capability_minimum']} or higher",
                f"{engine['python'][0]} or newer, below {engine['python'][1]}",
            ),
        ),
        "cuda": rows(
            ("CUDA", "driver branch"),
            ("---",) * 2,
            *((f"{known.major}.x", f"{known.driver_branch_minimum} or newer") for known in data.CUDA_MAJORS),
        ),
        "branches": rows(
            ("branch", "kind", "gets fixes until"),
            ("---",) * 3,
            *((known.number, known.kind, known.end_of_life or "no date is given") for known in data.BRANCHES),
        ),
        "gpus": rows(
            (
                "generation",
                "compute capability from",
                "first driver branch",
                "last driver branch",
                "last CUDA",
                "kernel modules",
            ),
            ("---",) * 6,
            *(
                (
                    known.name.capitalize(),
                    known.compute_capability,
                    branch(known.first_driver_branch, "not looked up"),
                    branch(known.last_driver_branch, "still supported"),
                    branch(known.last_cuda_major, "still supported"),
                    modules[known.open_modules],
                )
                for known in data.ARCHITECTURES
            ),
        ),
        "compat": rows(
            ("CUDA", "package", "libraries of branch", "works on branches", "folder"),
            ("---",) * 5,
            *(
                (
                    known.cuda,
                    f"`{known.package}`",
                    known.built_from_branch,
                    ", ".join(map(str, known.accepted_branches)),
                    f"`{known.folder}`",
                )
                for known in data.FORWARD_COMPATIBILITIES
            ),
        ),
        "engines": rows(
            ("vLLM", "wheel", "CUDA", "driver branch", "compute capability"),
            ("---",) * 5,
            *(
                (
                    known.engine,
                    f"`{known.wheel}`",
                    known.cuda,
                    f"{driver_branch_minimum(known.cuda)} or newer",
                    f"{known.compute_capability_minimum} or higher",
                )
                for known in data.ENGINE_RELEASES
            ),
        ),
    }


@pytest.mark.parametrize("name", list(tables()))
def test_the_page_for_people_has_the_data(name: str) -> None:
    page = (ROOT / "docs/compatibility.md").read_text()
    found = re.search(rf"^<!-- {name} -->\n\n(.*?)\n\n", page, re.MULTILINE | re.DOTALL)
    assert found, f"docs/compatibility.md has no table <!-- {name} -->"
    expected = "\n".join(tables()[name])
    assert found[1] == expected, f"docs/compatibility.md: the table after <!-- {name} --> must be\n{expected}"


def test_the_page_for_people_has_the_date_and_every_source() -> None:
    page = (ROOT / "docs/compatibility.md").read_text()
    assert data.CHECKED in page
    for address in (
        "docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html",
        "docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html",
        "docs.nvidia.com/datacenter/tesla/drivers/620/supported-drivers-and-cuda-toolkit-versions.html",
        "docs.nvidia.com/datacenter/tesla/drivers/cuda-toolkit-driver-and-architecture-matrix.html",
        "docs.nvidia.com/datacenter/tesla/driver-installation-guide/kernel-modules.html",
    ):
        assert f"https://{address}" in page
