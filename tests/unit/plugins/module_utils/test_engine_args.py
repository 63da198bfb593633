# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Options of the engine, checked and rendered. tests/engine/ shows that the engine reads them as is said here."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest

from ansible_collections.baremetal.inference.plugins.module_utils._engine_args import (
    MANAGED,
    ArgsError,
    EngineFlags,
    render_args,
    spans_hosts,
    workers_needed,
)

FLAGS_FOLDER = Path(__file__).parents[4] / "roles/vllm_service/files/flags"


@pytest.fixture(scope="module", params=["0.32.0", "0.33.0"])
def flags(request: pytest.FixtureRequest) -> EngineFlags:
    return EngineFlags(json.loads((FLAGS_FOLDER / f"{request.param}.json").read_text()))


def problems(args: t.Any, flags: EngineFlags) -> list[str]:
    with pytest.raises(ArgsError) as caught:
        render_args(args, flags)
    return caught.value.problems


@pytest.mark.parametrize(
    ("given", "rendered"),
    [
        ({"max_model_len": 4096}, {"max-model-len": 4096}),
        ({"max-model-len": "32k"}, {"max-model-len": "32k"}),
        ({"max_model_len": "auto"}, {"max-model-len": "auto"}),
        ({"max_model_len": -1}, {"max-model-len": -1}),
        ({"gpu_memory_utilization": 0.9}, {"gpu-memory-utilization": 0.9}),
        ({"gpu_memory_utilization": 1}, {"gpu-memory-utilization": 1}),
        # Another name of the same option.
        ({"device_memory_utilization": 0.5}, {"gpu-memory-utilization": 0.5}),
        # The engine's loader would drop a false.
        ({"enable_prefix_caching": False}, {"no-enable-prefix-caching": True}),
        ({"no_enable_prefix_caching": True}, {"no-enable-prefix-caching": True}),
        ({"no_enable_prefix_caching": False}, {"enable-prefix-caching": True}),
        ({"disable_log_stats": True}, {"disable-log-stats": True}),
        # It has no negative form: false is what it is anyway.
        ({"disable_log_stats": False}, {}),
        ({"cudagraph_capture_sizes": [1, 2, 4]}, {"cudagraph-capture-sizes": [1, 2, 4]}),
        ({"lora_modules": ["a=/srv/a"]}, {"lora-modules": ["a=/srv/a"]}),
        # In a list, the loader would write a mapping as Python does.
        ({"lora_modules": [{"name": "a", "path": "/a"}]}, {"lora-modules": ['{"name": "a", "path": "/a"}']}),
        ({"lora_modules": "a=/srv/a"}, {"lora-modules": ["a=/srv/a"]}),
        ({"compilation_config": {"mode": 3}}, {"compilation-config": {"mode": 3}}),
        ({"compilation_config": '{"mode": 3}'}, {"compilation-config": '{"mode": 3}'}),
        # A list for one JSON value would become several arguments.
        ({"allowed_origins": ["https://a.example"]}, {"allowed-origins": '["https://a.example"]'}),
        ({"reasoning_parser": "qwen3"}, {"reasoning-parser": "qwen3"}),
        ({"reasoning_parser": "mine", "reasoning_parser_plugin": "/srv/mine.py"}, None),
        ({"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}, None),
        ({}, {}),
    ],
)
def test_good_options_are_written_as_the_loader_needs_them(
    given: dict[str, t.Any], rendered: dict[str, t.Any] | None, flags: EngineFlags
) -> None:
    if rendered is None:
        rendered = {key.replace("_", "-"): value for key, value in given.items()}
    assert render_args(given, flags) == rendered


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_modle_len": 1}, "args.max_modle_len is no option of vLLM {engine}. Did you mean max_model_len"),
        ({"tp": 2}, "Did you mean tensor_parallel_size?"),
        ({"utter_nonsense_xyz": 1}, "args.utter_nonsense_xyz is no option of vLLM {engine}. `vllm serve --help=all`"),
        ({"swap_space": 4}, "removed with the engine's first generation"),
        ({"awq_ckpt": "x"}, "never existed: point model at the quantised folder"),
        ({"num_scheduler_steps": 8}, "removed with the engine's first generation"),
        ({"--max-model-len": 1}, "without leading dashes: max_model_len"),
        ({"host": "0.0.0.0"}, "args.host is set by the role: use host of the instance (or vllm_service_host) instead"),
        ({"served-model-name": "x"}, "use served_model_name of the instance"),
        ({"api_key": "x"}, "args.api_key cannot be set: the role makes a key on the host"),
        ({"ssl_keyfile": "x"}, "TLS belongs to the gateway"),
        ({"config": "x.yaml"}, "args.config cannot be set"),
        ({"max_model_len": "many"}, "args.max_model_len is 'many', but takes a whole number or a size such as 32k or"),
        ({"max_model_len": 1.5}, "args.max_model_len is '1.5'"),
        ({"max_num_seqs": "2k"}, "args.max_num_seqs is '2k', but takes a whole number."),
        ({"max_num_seqs": True}, "args.max_num_seqs is true, but takes a whole number."),
        ({"max_num_seqs": [1, 2]}, "is a list, but takes one value"),
        ({"max_num_seqs": {"a": 1}}, "is a mapping, but takes a whole number."),
        ({"gpu_memory_utilization": "most"}, "but takes a number."),
        ({"enable_prefix_caching": "yes"}, "args.enable_prefix_caching is 'yes', but takes true or false only."),
        ({"dtype": "bfloat61"}, "Did you mean bfloat16?"),
        ({"dtype": None}, "args.dtype is null, which the engine would read as the word None"),
        ({"compilation_config": "x"}, "but takes a mapping."),
        ({"compilation_config": "[1]"}, "but takes a mapping."),
        ({"cudagraph_capture_sizes": []}, "is an empty list"),
        ({"cudagraph_capture_sizes": [1, "x"]}, "args.cudagraph_capture_sizes is 'x'"),
        ({"cudagraph_capture_sizes": [[1]]}, "has [1] in its list"),
        ({"chat_template": "--enable-lora"}, "begins with a dash"),
        ({"gpu_memory_utilization": -0.5}, "begins with a dash"),
        ({"max_model_len": 1, "max-model-len": 2}, "args.max-model-len is the same option as max_model_len"),
        ({"enable_lora": True, "no_enable_lora": True}, "is the same option as enable_lora"),
        ({"reasoning_parser": "qwen33"}, "Did you mean qwen3?"),
        ({"enable_auto_tool_choice": True}, "enable_auto_tool_choice needs tool_call_parser"),
        ({3: 1}, "its name must be a word"),
        ("--tp 2", "args is '--tp 2', but must be a mapping"),
        ([], "args is [], but must be a mapping"),
    ],
)
def test_bad_options_are_refused_with_what_to_do(given: t.Any, said: str, flags: EngineFlags) -> None:
    assert said.format(engine=flags.engine) in "\n".join(problems(given, flags))


def test_all_problems_are_told_at_once(flags: EngineFlags) -> None:
    assert len(problems({"port": 1, "no_such": 1, "dtype": "x"}, flags)) == 3


def test_every_option_with_two_states_has_the_negative_form_that_is_written(flags: EngineFlags) -> None:
    for flag in flags.by_flag.values():
        if flag["kind"] == "toggle":
            assert f"--no-{flag['flags'][0][2:]}" in flag["flags"]


def test_what_the_role_sets_is_an_option_of_the_engine(flags: EngineFlags) -> None:
    assert set(MANAGED) <= set(flags.by_flag)


@pytest.mark.parametrize(
    ("rendered", "workers"),
    [
        ({}, 1),
        ({"tensor-parallel-size": 4}, 4),
        ({"tensor-parallel-size": "2", "pipeline-parallel-size": 2, "data-parallel-size": 2}, 8),
        ({"tensor-parallel-size": 16, "nnodes": 2}, None),
        ({"device-ids": "0,1"}, None),
        ({"distributed-executor-backend": "ray"}, None),
        ({"distributed-executor-backend": "mp", "tensor-parallel-size": 2}, 2),
    ],
)
def test_workers_needed(rendered: dict[str, t.Any], workers: int | None) -> None:
    assert workers_needed(rendered) == workers


def test_spans_hosts() -> None:
    assert spans_hosts({"nnodes": 2})
    assert not spans_hosts({"tensor-parallel-size": 8})
