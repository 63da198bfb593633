# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Instances completed from defaults, and judged against what their host has."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest

from ansible_collections.baremetal.inference.plugins.module_utils._engine_args import EngineFlags
from ansible_collections.baremetal.inference.plugins.module_utils._engine_instances import complete, place

FLAGS = EngineFlags(json.loads((Path(__file__).parents[4] / "roles/vllm_service/files/flags/0.33.0.json").read_text()))
DEFAULTS = {
    "model": "",
    "served_model_name": "",
    "host": "127.0.0.1",
    "port": 8000,
    "uds": "",
    "gpus": [],
    "args": {"max_model_len": 4096},
    "env": {"A": "1"},
    "proof": "chat",
    "start_timeout": 0,
}
SETTINGS = {"build": "cuda", "gpus_shared": False, "user": "vllm"}
UUIDS = [f"GPU-00000000-0000-0000-0000-00000000000{i}" for i in range(4)]
GPUS = {
    "driver_version": "580.159.04",
    "gpu_count": 4,
    "gpus": [{"index": i, "uuid": uuid, "pci_bus_id": f"0000:0{i}:00.0"} for i, uuid in enumerate(UUIDS)],
}


def file(name: str, size: int = 1000, readable: bool = True) -> dict[str, t.Any]:
    return {"name": name, "size": size, "readable": readable}


def look(**changes: t.Any) -> dict[str, t.Any]:
    whole = {
        "exists": True,
        "closed": False,
        "config": True,
        "shards": [],
        "chat_template": False,
        "files": [
            file("config.json"),
            file("model.safetensors", 2_000_000_000),
            file("tokenizer.json"),
            file("chat_template.jinja"),
        ],
    }
    return {**whole, **changes}


def without(name: str) -> dict[str, t.Any]:
    return look(files=[entry for entry in look()["files"] if entry["name"] != name])


def completed(*instances: dict[str, t.Any], **defaults: t.Any) -> dict[str, t.Any]:
    return complete(list(instances), {**DEFAULTS, **defaults}, FLAGS)


def placed(
    *instances: dict[str, t.Any],
    seen: dict[str, t.Any] | None = None,
    gpus: t.Any = ...,
    sockets: str = "",
    **settings: t.Any,
) -> dict[str, t.Any]:
    plan = completed(*instances)
    assert plan["problems"] == []
    models = {instance["name"]: seen or look() for instance in plan["present"]}
    observed = {"gpus": GPUS if gpus is ... else gpus, "models": models, "sockets": sockets}
    return place(plan["present"], observed, {**SETTINGS, **settings})


MAIN = {"name": "main", "model": "/srv/models/Qwen3.5-9B", "gpus": ["0"]}


def test_an_instance_is_completed_from_the_defaults() -> None:
    plan = completed({"name": "a", "model": "/srv/m/Name", "args": {"max_num_seqs": 8}, "env": {"B": "2"}})
    assert plan["problems"] == []
    (instance,) = plan["present"]
    assert instance["served_model_name"] == ["Name"]
    assert instance["config_args"] == {"max-model-len": 4096, "max-num-seqs": 8}
    assert instance["env"] == {"A": "1", "B": "2"}
    assert (instance["host"], instance["port"], instance["uds"]) == ("127.0.0.1", 8000, "")
    assert instance["alone"]


def test_its_own_keys_win() -> None:
    (instance,) = completed(
        {"name": "a", "model": "/m/x", "served_model_name": ["p", "q"], "args": {"max_model_len": 8}}
    )["present"]
    assert instance["served_model_name"] == ["p", "q"]
    assert instance["config_args"] == {"max-model-len": 8}


def test_a_socket_takes_the_place_of_the_port() -> None:
    (instance,) = completed({"name": "a", "model": "/m/x", "uds": "/run/vllm/a/http.sock"})["present"]
    assert (instance["uds"], instance["port"]) == ("/run/vllm/a/http.sock", None)
    (instance,) = completed({"name": "a", "model": "/m/x", "port": 9000}, uds="/run/vllm/a/http.sock")["present"]
    assert (instance["uds"], instance["port"]) == ("", 9000)


def test_stopping_takes_longer_than_the_engine_lets_requests_run() -> None:
    (instance,) = completed({"name": "a", "model": "/m/x", "args": {"shutdown_timeout": 60}})["present"]
    assert instance["stop_timeout"] == 90


def test_absent_instances_need_nothing_but_a_name() -> None:
    assert completed({"name": "old", "state": "absent"}) == {"present": [], "absent": ["old"], "problems": []}


@pytest.mark.parametrize(
    ("instance", "said"),
    [
        ({"name": "Main"}, "vllm_service_instances[0].name is 'Main'"),
        ({"name": "-a"}, "vllm_service_instances[0].name is '-a'"),
        ({"name": "a/../b"}, "vllm_service_instances[0].name is 'a/../b'"),
        ({"name": "x" * 33}, "1 to 32"),
        (
            {"name": "a", "model": "Qwen/Qwen3.5-9B"},
            "vllm_service_instances[a].model is 'Qwen/Qwen3.5-9B', but must be the absolute",
        ),
        ({"name": "a", "model": "/srv/../etc"}, "absolute path"),
        ({"name": "a", "model": "/m/x", "served_model_name": ["p", "p"]}, "a list of different names"),
        ({"name": "a", "model": "/m/x", "host": "0.0.0.0"}, "vllm_service_instances[a].host is '0.0.0.0'"),
        ({"name": "a", "model": "/m/x", "host": "node7"}, "loopback"),
        ({"name": "a", "model": "/m/x", "port": 80}, "vllm_service_instances[a].port is 80"),
        ({"name": "a", "model": "/m/x", "uds": "/tmp/a.sock"}, "must be a file in /run/vllm/a/"),
        ({"name": "a", "model": "/m/x", "uds": "/run/vllm/a/b/c"}, "must be a file in /run/vllm/a/"),
        ({"name": "a", "model": "/m/x", "gpus": 0}, "vllm_service_instances[a].gpus is 0, but must be a list"),
        ({"name": "a", "model": "/m/x", "args": "x"}, "vllm_service_instances[a].args is 'x'"),
        ({"name": "a", "model": "/m/x", "env": "x"}, "vllm_service_instances[a].env is 'x'"),
        ({"name": "a", "model": "/m/x", "env": {"1A": "x"}}, "no name of an environment variable"),
        ({"name": "a", "model": "/m/x", "env": {"AB": "x\ny"}}, "text of one line"),
        ({"name": "a", "model": "/m/x", "env": {"VLLM_API_KEY": "x"}}, "the role makes a key on the host"),
        ({"name": "a", "model": "/m/x", "env": {"CUDA_VISIBLE_DEVICES": "0"}}, "select GPUs with gpus"),
    ],
)
def test_wrong_instances_are_refused_with_their_name(instance: dict[str, t.Any], said: str) -> None:
    assert said in "\n".join(completed(instance)["problems"])


@pytest.mark.parametrize("value", ["x", {"name": "a"}, [["a"]], None])
def test_what_is_no_list_of_instances_is_refused(value: t.Any) -> None:
    assert "must be a list of mappings" in complete(value, DEFAULTS, FLAGS)["problems"][0]


def test_two_instances_need_names_and_addresses_of_their_own() -> None:
    assert "is there twice" in completed(MAIN, MAIN)["problems"][0]
    assert completed(MAIN, {**MAIN, "name": "b"})["problems"] == [
        "vllm_service_instances[b] has port 8000, and so has vllm_service_instances[main]. Give each instance an address of"
        " its own."
    ]
    assert completed(MAIN, {**MAIN, "name": "b", "port": 8001})["problems"] == []


def test_selectors_become_uuids() -> None:
    result = placed({**MAIN, "gpus": ["0000:02:00.0", UUIDS[1]], "args": {"tensor_parallel_size": 2}})
    assert result["problems"] == []
    assert result["instances"][0]["gpu_uuids"] == [UUIDS[1], UUIDS[2]]


def test_no_selector_means_all_for_cuda_and_none_for_the_cpu() -> None:
    everything = {**MAIN, "gpus": [], "args": {"tensor_parallel_size": 4}}
    assert placed(everything)["instances"][0]["gpu_uuids"] == UUIDS
    assert placed(everything, gpus=None, build="cpu")["instances"][0]["gpu_uuids"] == []


@pytest.mark.parametrize(
    ("instances", "changes", "said"),
    [
        ([{**MAIN, "gpus": ["9"]}], {}, "vllm_service_instances[main].gpus: no GPU matches '9'"),
        ([{**MAIN, "gpus": ["0", "1"]}], {}, "selects 2 GPUs, but its args make the engine use 1"),
        ([{**MAIN, "args": {"tensor_parallel_size": 2}}], {}, "selects 1 GPUs, but its args make the engine use 2"),
        (
            [MAIN, {**MAIN, "name": "b", "port": 1234}],
            {},
            "vllm_service_instances[b].gpus has GPU 0 (0000:00:00.0), and so has",
        ),
        ([MAIN], {"gpus": {**GPUS, "gpu_count": 0, "gpus": []}}, "no NVIDIA GPU that its driver sees"),
    ],
)
def test_gpus_that_do_not_fit_are_refused(
    instances: list[dict[str, t.Any]], changes: dict[str, t.Any], said: str
) -> None:
    assert said in "\n".join(placed(*instances, **changes)["problems"])


def test_a_gpu_may_be_shared_where_that_is_wanted() -> None:
    assert placed(MAIN, {**MAIN, "name": "b", "port": 1234}, gpus_shared=True)["problems"] == []


def test_the_cpu_build_may_have_gpus_that_it_does_not_use() -> None:
    result = placed({**MAIN, "gpus": ["0", "1"]}, gpus={**GPUS, "driver_version": "535.1"}, build="cpu")
    assert result["problems"] == []
    assert result["instances"][0]["gpu_uuids"] == UUIDS[:2]


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (look(exists=False), "there is no such folder on the host"),
        (look(closed=True, files=[]), "user vllm, as whom the engine runs, cannot read the folder"),
        (look(files=[*look()["files"], file("x.json", readable=False)]), "cannot read x.json"),
        (look(config=False), "has no config.json"),
        (look(shards=None), "has no valid model.safetensors.index.json"),
        (
            look(shards=["model-1.safetensors", "model-2.safetensors"]),
            "has no model-1.safetensors, model-2.safetensors",
        ),
        (look(shards=[f"model-{i}.safetensors" for i in range(9)]), "and 6 more"),
        (without("model.safetensors"), "has no weights"),
        (look(files=[file("model.safetensors", 3), *look()["files"]]), "in which model.safetensors is cut short"),
        (without("tokenizer.json"), "has no tokenizer"),
        (without("chat_template.jinja"), "has no chat template"),
    ],
)
def test_a_model_that_is_not_whole_is_refused(seen: dict[str, t.Any], said: str) -> None:
    (problem,) = placed(MAIN, seen=seen)["problems"]
    assert said in problem
    assert problem.startswith("vllm_service_instances[main].model is '/srv/models/Qwen3.5-9B'")


@pytest.mark.parametrize(
    ("instance", "seen"),
    [
        (MAIN, look()),
        (MAIN, look(files=without("chat_template.jinja")["files"], chat_template=True)),
        ({**MAIN, "proof": "completions"}, without("chat_template.jinja")),
        ({**MAIN, "args": {"chat_template": "/srv/t.jinja"}}, without("chat_template.jinja")),
        ({**MAIN, "args": {"tokenizer": "/srv/tokenizer"}}, without("tokenizer.json")),
        ({**MAIN, "args": {"load_format": "dummy"}}, without("model.safetensors")),
        (MAIN, look(shards=["model.safetensors"])),
    ],
)
def test_a_model_that_is_whole_is_accepted(instance: dict[str, t.Any], seen: dict[str, t.Any]) -> None:
    assert placed(instance, seen=seen)["problems"] == []


def test_the_time_to_start_grows_with_the_weights() -> None:
    assert placed(MAIN)["instances"][0]["start_timeout"] == 600 + 10
    assert placed({**MAIN, "start_timeout": 42})["instances"][0]["start_timeout"] == 42


LISTENING = 'LISTEN 0 4096 {address}:8000 0.0.0.0:* users:(("python3",pid=77,fd=5))\n--\n77 0::/system.slice/{unit} '


@pytest.mark.parametrize(
    ("address", "unit", "taken"),
    [
        ("127.0.0.1", "nginx.service", True),
        ("0.0.0.0", "nginx.service", True),
        ("*", "nginx.service", True),
        ("[::]", "nginx.service", True),
        ("127.0.0.1", "system-vllm.slice/vllm@main.service", False),
        ("127.0.0.1", "system-vllm.slice/vllm@main2.service", True),
        ("10.0.0.7", "nginx.service", False),
    ],
)
def test_a_port_is_taken_by_anything_but_its_own_unit(address: str, unit: str, taken: bool) -> None:
    found = placed(MAIN, sockets=LISTENING.format(address=address, unit=unit))["problems"]
    assert bool(found) == taken
    if taken:
        assert "port is 8000, but python3 (pid 77) listens on" in found[0]


def test_another_port_may_be_taken() -> None:
    assert placed({**MAIN, "port": 18000}, sockets=LISTENING.format(address="*", unit="x.service"))["problems"] == []
