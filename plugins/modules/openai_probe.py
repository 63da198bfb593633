#!/usr/bin/python
# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: openai_probe
short_description: Wait until an OpenAI-compatible endpoint truly answers, or fail early with the reason
version_added: 0.1.0
description:
  - Waits until the endpoint is healthy, lists the model, and answers a request with text that is not empty. A healthy server
    is no proof - an engine without tokenizer or chat template reports itself healthy and refuses every request.
  - Fails at once, without waiting for O(timeout), where waiting cannot help - the key is refused, the model is not served,
    the request is wrong, or O(unit) has died. Then it tells the unit's own first true error from its journal.
  - Each use makes the endpoint generate at most O(max_tokens) tokens. It changes nothing.
author:
  - The baremetal.inference contributors (@baremetal-inference)
extends_documentation_fragment:
  - baremetal.inference._attributes
attributes:
  check_mode:
    support: full
    details:
      - In check mode it tries once and does not wait. An endpoint that does not answer yet is then no failure, and
        RV(answered) is V(false).
  diff_mode:
    support: N/A
    details:
      - This module changes nothing.
  idempotent:
    support: full
    details:
      - This module changes nothing.
options:
  url:
    description:
      - Address of the endpoint, such as V(http://127.0.0.1:8000). A path that ends in C(/v1) is accepted as well.
    type: str
    required: true
  uds:
    description:
      - Unix socket to connect to. O(url) must then begin with C(http://); what host it names does not matter.
    type: path
  api_key:
    description:
      - Bearer key to send.
    type: str
  model:
    description:
      - Name of the model as clients write it. Left out, it is the first that the endpoint lists.
    type: str
  endpoint:
    description:
      - What to ask for as proof.
    type: str
    choices: [chat, completions, embeddings]
    default: chat
  prompt:
    description:
      - What to ask.
    type: str
    default: Say hello in one short sentence.
  max_tokens:
    description:
      - How long the answer may be.
    type: int
    default: 16
  body:
    description:
      - More keys for the body of the request. They win over the module's own.
    type: dict
    default: {}
  stream:
    description:
      - Ask for the answer as a stream, require that it ends as it should, and measure the time to its first token.
    type: bool
    default: false
  expect:
    description:
      - Regular expression that must be found in the text of the answer.
    type: str
  health_path:
    description:
      - Path that answers with 200 when the server is healthy. An empty text skips this step, for gateways that do not let it
        through.
    type: str
    default: /health
  unit:
    description:
      - Name of the systemd unit behind the endpoint, on the host that the module runs on. When it ends, or is started again,
        the module fails at once with the reason.
    type: str
  timeout:
    description:
      - Seconds that the endpoint has until it must have answered.
    type: float
    default: 600
  interval:
    description:
      - Seconds between two tries.
    type: float
    default: 1
  request_timeout:
    description:
      - Seconds that one request may take without a sign of life.
    type: float
    default: 120
  validate_certs:
    description:
      - Whether to require a certificate that is trusted.
    type: bool
    default: true
  ca_path:
    description:
      - File with the certificates of the authorities to trust instead of the usual ones.
    type: path
requirements:
  - requests (on the host that the module runs on; the engine's own Python has it)
seealso:
  - name: OpenAI-compatible server of vLLM
    description: The routes that the module asks.
    link: https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html
"""

EXAMPLES = r"""
- name: Wait for an engine on this host, at most twenty minutes, or until its unit dies
  baremetal.inference.openai_probe:
    url: http://127.0.0.1:8000
    api_key: "{{ engine_key }}"
    model: qwen3.5-35b-a3b
    unit: vllm@main.service
    timeout: 1200
  vars:
    ansible_python_interpreter: /opt/vllm/venvs/0.33.0-cuda/bin/python

- name: Prove the gateway from the controller, with a stream
  baremetal.inference.openai_probe:
    url: https://llm.example.com
    api_key: "{{ team_key }}"
    model: qwen3.5-35b-a3b
    health_path: ""
    stream: true
    ca_path: /etc/ssl/certs/our-ca.pem
  delegate_to: localhost
  register: proof

- name: Show how long the first token took
  ansible.builtin.debug:
    msg: "{{ proof.phases.first_token_s }} s, then {{ proof.chunks }} chunks: {{ proof.text }}"
"""

RETURN = r"""
answered:
  description: Whether the endpoint answered with text. Always V(true) outside check mode, else the module fails.
  returned: success
  type: bool
  sample: true
model:
  description: The model that was asked.
  returned: success
  type: str
  sample: qwen3.5-35b-a3b
models:
  description: The models that the endpoint lists.
  returned: always
  type: list
  elements: str
  sample: [qwen3.5-35b-a3b]
text:
  description: The answer, with what the model thought before it. Empty for embeddings.
  returned: when it answered
  type: str
  sample: Hello!
finish_reason:
  description: Why the answer ended.
  returned: when it answered
  type: str
  sample: stop
usage:
  description: Tokens as the endpoint counts them.
  returned: when it answered
  type: dict
  sample: {"prompt_tokens": 14, "completion_tokens": 3, "total_tokens": 17}
chunks:
  description: How many pieces of text the stream had.
  returned: when O(stream=true)
  type: int
  sample: 3
dimensions:
  description: Length of the vector.
  returned: when O(endpoint=embeddings)
  type: int
  sample: 1024
phases:
  description: Seconds from the module's start to each step, and the time that the answer took. V(null) when not reached.
  returned: always
  type: dict
  contains:
    health_after_s:
      description: Until the server was healthy.
      type: float
      sample: 47.2
    models_after_s:
      description: Until it listed its models.
      type: float
      sample: 47.2
    answer_after_s:
      description: Until the proof was complete.
      type: float
      sample: 47.9
    first_token_s:
      description: From the request to the first piece of text. Only with O(stream=true).
      type: float
      sample: 0.212
    answer_s:
      description: From the request to the end of the answer.
      type: float
      sample: 0.731
attempts:
  description: How many times it tried.
  returned: always
  type: int
  sample: 41
reason:
  description:
    - Why it failed - V(timeout), V(unit_died), V(unit_not_found), V(unit_unreadable), V(unauthorized), V(not_found),
      V(refused), V(model_not_served), V(not_openai), V(empty_answer), V(unexpected_answer), V(broken_answer), V(tls) or
      V(bad_url).
  returned: failure
  type: str
  sample: unit_died
unit_error:
  description: The line of the unit's journal that says why it died. V(null) when none looks like an error.
  returned: when RV(reason) is V(unit_died)
  type: str
  sample: "OSError: [Errno 98] Address already in use"
unit_log:
  description: The last lines that the unit said.
  returned: when RV(reason) is V(unit_died)
  type: list
  elements: str
"""

import traceback
import typing as t

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.baremetal.inference.plugins.module_utils import _openai_probe as probing


def run(
    params: dict[str, t.Any], *, check_mode: bool, run_command: t.Callable[..., tuple[int, str, str]]
) -> dict[str, t.Any]:
    verify: bool | str = params["validate_certs"]
    if verify and params["ca_path"]:
        verify = params["ca_path"]
    client = probing.Client(
        params["url"],
        uds=params["uds"],
        api_key=params["api_key"],
        verify=verify,
        request_timeout=params["request_timeout"],
    )
    probe = probing.Probe(client, params)
    try:
        if check_mode:
            try:
                return dict(probe.once(), answered=True, model=params["model"])
            except probing.NotYet as error:
                return dict(
                    probe.so_far(), answered=False, model=params["model"], msg=f"It does not answer now: {error}"
                )
        if params["unit"]:
            probe.unit = probing.Unit(params["unit"], run_command)
        return dict(probe.run(), answered=True, model=params["model"])
    except probing.ProbeFailure as failure:
        failure.details = dict(probe.so_far(), **failure.details)
        raise


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "uds": {"type": "path"},
            "api_key": {"type": "str", "no_log": True},
            "model": {"type": "str"},
            "endpoint": {"type": "str", "choices": ["chat", "completions", "embeddings"], "default": "chat"},
            "prompt": {"type": "str", "default": "Say hello in one short sentence."},
            "max_tokens": {"type": "int", "default": 16, "no_log": False},
            "body": {"type": "dict", "default": {}},
            "stream": {"type": "bool", "default": False},
            "expect": {"type": "str"},
            "health_path": {"type": "str", "default": "/health"},
            "unit": {"type": "str"},
            "timeout": {"type": "float", "default": 600},
            "interval": {"type": "float", "default": 1},
            "request_timeout": {"type": "float", "default": 120},
            "validate_certs": {"type": "bool", "default": True},
            "ca_path": {"type": "path"},
        },
        supports_check_mode=True,
    )
    if not probing.HAS_REQUESTS:
        module.fail_json(msg=missing_required_lib("requests"), exception=traceback.format_exc())
    try:
        module.exit_json(
            changed=False, **run(module.params, check_mode=module.check_mode, run_command=module.run_command)
        )
    except probing.ProbeFailure as failure:
        module.fail_json(msg=failure.msg, reason=failure.reason, **failure.details)


if __name__ == "__main__":
    main()
