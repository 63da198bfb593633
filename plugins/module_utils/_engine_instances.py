# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""Instances of the engine on one host: completed from defaults, and judged against what the host has. Pure."""

from __future__ import annotations

import ipaddress
import posixpath
import re
import typing as t

from ansible_collections.baremetal.inference.plugins.module_utils._engine_args import (
    ArgsError,
    EngineFlags,
    render_args,
    spans_hosts,
    workers_needed,
)
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_model import GpuIdentity
from ansible_collections.baremetal.inference.plugins.module_utils._gpu_select import GpuSelectorError, select_gpus

# It becomes part of a unit's name and of paths.
NAME = re.compile(r"[a-z0-9]([a-z0-9_-]{0,30}[a-z0-9])?")
ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
FALLBACKS = (
    "model",
    "served_model_name",
    "host",
    "port",
    "uds",
    "gpus",
    "args",
    "env",
    "proof",
    "start_timeout",
)
MANAGED_ENVIRONMENT = {
    "VLLM_API_KEY": "the role makes a key on the host and keeps it in /etc/vllm/<instance>.key",
    "CUDA_VISIBLE_DEVICES": "select GPUs with gpus",
    "NVIDIA_VISIBLE_DEVICES": "select GPUs with gpus",
    "HF_TOKEN": "the engine reads models from disk and asks no hub",
}
# Seconds that systemd waits beyond the engine's own limit before it kills.
STOP_GRACE = 30
# Bytes per second that weights are read with on a slow disk, and what a start takes besides: imports, compilation, graphs.
READ_RATE = 200_000_000
START_BASE = 600


def complete(instances: t.Any, defaults: dict[str, t.Any], flags: EngineFlags) -> dict[str, t.Any]:
    """The instances with every key, and every problem that can be seen without asking the host.

    Returns ``present`` (complete instances), ``absent`` (names) and ``problems`` (texts).
    """
    problems: list[str] = []
    present: list[dict[str, t.Any]] = []
    absent: list[str] = []
    if not isinstance(instances, list) or any(not isinstance(item, dict) for item in instances):
        problems.append(
            f"vllm_service_instances is {instances!r}, but must be a list of mappings, one for each instance."
        )
        instances = []
    seen: set[str] = set()
    for position, raw in enumerate(instances):
        name = raw.get("name")
        where = f"vllm_service_instances[{position}]"
        if not isinstance(name, str) or not NAME.fullmatch(name):
            problems.append(
                f"{where}.name is {name!r}, but must be 1 to 32 lower-case letters, digits, - and _, with a letter or digit"
                " at each end: it becomes part of a unit's name and of paths."
            )
            continue
        where = f"vllm_service_instances[{name}]"
        if name in seen:
            problems.append(f"{where} is there twice. Give each instance a name of its own.")
            continue
        seen.add(name)
        if raw.get("state", "present") == "absent":
            absent.append(name)
            continue
        instance = _completed(name, raw, defaults)
        problems.extend(_judge(instance, where, flags))
        present.append(instance)
    problems.extend(_conflicts(present))
    return {"present": present, "absent": absent, "problems": problems}


def _completed(name: str, raw: dict[str, t.Any], defaults: dict[str, t.Any]) -> dict[str, t.Any]:
    instance: dict[str, t.Any] = {"name": name}
    for key in FALLBACKS:
        own = raw.get(key)
        if key in ("args", "env") and isinstance(own or {}, dict) and isinstance(defaults[key], dict):
            instance[key] = {**defaults[key], **(own or {})}
        else:
            instance[key] = defaults[key] if own is None else own
    # One of the two addresses: whichever the instance names itself.
    if raw.get("uds"):
        instance["port"] = None
    elif raw.get("port"):
        instance["uds"] = ""
    elif instance["uds"]:
        instance["port"] = None
    names = instance["served_model_name"]
    if not names and isinstance(instance["model"], str):
        names = posixpath.basename(instance["model"].rstrip("/"))
    instance["served_model_name"] = names if isinstance(names, list) else [names]
    return instance


def _judge(instance: dict[str, t.Any], where: str, flags: EngineFlags) -> list[str]:
    problems = []
    model = instance["model"]
    if not isinstance(model, str) or not model.startswith("/") or posixpath.normpath(model) != model.rstrip("/"):
        problems.append(
            f"{where}.model is {model!r}, but must be the absolute path of a model's folder on the host. The engine fetches"
            " nothing by itself: download the model first."
        )
    names = instance["served_model_name"]
    if not all(isinstance(name, str) and name for name in names) or len(set(names)) != len(names):
        problems.append(f"{where}.served_model_name is {names!r}, but must be one name or a list of different names.")
    problems.extend(_judge_address(instance, where))
    for key, value in instance["env"].items() if isinstance(instance["env"], dict) else ():
        if not isinstance(key, str) or not ENVIRONMENT_NAME.fullmatch(key):
            problems.append(f"{where}.env has {key!r}, which is no name of an environment variable.")
        elif key in MANAGED_ENVIRONMENT:
            problems.append(f"{where}.env.{key} cannot be set: {MANAGED_ENVIRONMENT[key]}. Remove it.")
        elif isinstance(value, (dict, list)) or value is None or "\n" in str(value):
            problems.append(f"{where}.env.{key} is {value!r}, but must be text of one line.")
    if not isinstance(instance["env"], dict):
        problems.append(f"{where}.env is {instance['env']!r}, but must be a mapping of names to text.")
    gpus = instance["gpus"]
    if not isinstance(gpus, list):
        problems.append(f"{where}.gpus is {gpus!r}, but must be a list: indices, UUIDs, PCI bus ids, or [all].")
        instance["gpus"] = []
    try:
        instance["config_args"] = render_args(instance["args"], flags, where=f"{where}.args")
    except ArgsError as error:
        problems.extend(error.problems)
        instance["config_args"] = {}
    instance["alone"] = not spans_hosts(instance["config_args"])
    drain = instance["config_args"].get("shutdown-timeout", 0)
    instance["stop_timeout"] = int(drain) + STOP_GRACE
    return problems


def _judge_address(instance: dict[str, t.Any], where: str) -> list[str]:
    uds, host, port = instance["uds"], instance["host"], instance["port"]
    if uds:
        folder = f"/run/vllm/{instance['name']}/"
        if not str(uds).startswith(folder) or "/" in str(uds)[len(folder) :] or len(str(uds)) > 100:
            return [
                f"{where}.uds is '{uds}', but must be a file in {folder}: that folder is made when the unit starts and"
                " removed when it stops, so that no dead socket is in the way of the next start."
            ]
        return []
    problems = []
    if not _is_loopback(str(host)):
        problems.append(
            f"{where}.host is '{host}', but must be an address of the host's loopback, such as 127.0.0.1: the engine's own key"
            " leaves several of its routes open. Clients reach it through the gateway (role nginx_auth)."
        )
    if isinstance(port, bool) or not isinstance(port, int) or not 1024 <= port <= 65535:
        problems.append(f"{where}.port is {port!r}, but must be a number from 1024 to 65535.")
    return problems


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _conflicts(instances: list[dict[str, t.Any]]) -> list[str]:
    problems = []
    owners: dict[str, str] = {}
    for instance in instances:
        address = f"uds '{instance['uds']}'" if instance["uds"] else f"port {instance['port']}"
        other = owners.setdefault(address, instance["name"])
        if other != instance["name"]:
            problems.append(
                f"vllm_service_instances[{instance['name']}] has {address}, and so has"
                f" vllm_service_instances[{other}]. Give each instance an address of its own."
            )
    return problems


def assign_gpus(
    instances: list[dict[str, t.Any]], found: dict[str, t.Any] | None, *, build: str, shared: bool
) -> dict[str, t.Any]:
    """Which GPUs each instance gets, by UUID; ``found`` is the result of gpu_info, or None where no GPU is asked for.

    Returns ``uuids`` (by instance) and ``problems``.
    """
    uuids: dict[str, list[str]] = {instance["name"]: [] for instance in instances}
    if found is None:
        return {"uuids": uuids, "problems": []}
    problems: list[str] = []
    if found["gpu_count"] == 0:
        problems.append(
            f"This host has no NVIDIA GPU that its driver sees, and vllm_service_build is '{build}'. Take the host out of the"
            " play, set vllm_service_build to cpu and remove gpus, or look at the kernel's log for why the driver sees none."
        )
        return {"uuids": uuids, "problems": problems}
    identities = [GpuIdentity(gpu["index"], gpu["uuid"], gpu["pci_bus_id"]) for gpu in found["gpus"]]
    owners: dict[str, str] = {}
    for instance in instances:
        name = instance["name"]
        where = f"vllm_service_instances[{name}]"
        selectors = instance["gpus"] or (["all"] if build == "cuda" else [])
        if not selectors:
            continue
        try:
            chosen = select_gpus([str(selector) for selector in selectors], identities, option=f"{where}.gpus")
        except GpuSelectorError as error:
            problems.append(str(error))
            continue
        uuids[name] = [str(gpu.uuid) for gpu in chosen]
        for gpu in chosen:
            other = owners.setdefault(str(gpu.uuid), name)
            if other != name and not shared:
                problems.append(
                    f"{where}.gpus has {gpu.label()}, and so has vllm_service_instances[{other}]. Give each instance GPUs of its"
                    " own, or set vllm_service_gpus_shared to true and limit each one's gpu_memory_utilization."
                )
        needed = workers_needed(instance["config_args"])
        if build == "cuda" and needed is not None and needed != len(chosen):
            problems.append(
                f"{where}.gpus selects {len(chosen)} GPUs, but its args make the engine use {needed}"
                " (tensor_parallel_size x pipeline_parallel_size x data_parallel_size). Make the two equal."
            )
    return {"uuids": uuids, "problems": problems}


def weights_bytes(files: list[dict[str, t.Any]]) -> int:
    return sum(file["size"] for file in files if file["name"].endswith((".safetensors", ".bin", ".pt", ".gguf")))


def start_timeout(instance: dict[str, t.Any], size: int) -> int:
    """Seconds that an instance may take until its first answer."""
    own = int(instance["start_timeout"] or 0)
    return own or START_BASE + size // READ_RATE


def judge_model(instance: dict[str, t.Any], look: dict[str, t.Any], user: str) -> list[str]:
    """Whether a model's folder has what the engine needs. The engine itself starts without several of these.

    ``look`` is what roles/vllm_service/files/look_at_model.py printed.
    """
    model, args = instance["model"], instance["config_args"]
    prefix = f"vllm_service_instances[{instance['name']}].model is '{model}'"
    if not look["exists"]:
        return [f"{prefix}, and there is no such folder on the host. Download the model there, or correct the path."]
    unreadable = [file["name"] for file in look["files"] if not file["readable"]]
    if look["closed"] or unreadable:
        what = _some(unreadable) if unreadable else "the folder"
        return [
            f"{prefix}, but user {user}, as whom the engine runs, cannot read {what}. Give others read access:"
            f" chmod -R a+rX {model}; and to each folder above it the right to pass: chmod a+x."
        ]
    names = {file["name"] for file in look["files"]}
    problems: list[str] = []

    def missing(what: str, why: str) -> None:
        problems.append(f"{prefix}, which has no {what}: {why} Download the model again, whole.")

    if not look["config"]:
        missing("config.json that can be read as JSON", "the engine reads from it what the model is.")
    if look["shards"] is None:
        missing("valid model.safetensors.index.json", "the engine reads from it which file has which weights.")
    lacking = sorted(set(look["shards"] or []) - names)
    if lacking:
        missing(_some(lacking), "model.safetensors.index.json names it.")
    if weights_bytes(look["files"]) == 0 and args.get("load-format") != "dummy":
        missing("weights (*.safetensors)", "there is nothing to serve.")
    # A file of this format begins with eight bytes that tell how long its header is.
    short = [file["name"] for file in look["files"] if file["name"].endswith(".safetensors") and file["size"] <= 8]
    if short:
        problems.append(f"{prefix}, in which {_some(short)} is cut short. Download the model again, whole.")
    if "tokenizer" not in args and not args.get("skip-tokenizer-init"):
        known = {"tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json"}
        if not names & known and not any(name.endswith(".tiktoken") for name in names):
            missing("tokenizer", "the engine would start without it, and then refuse every request.")
    template = names & {"chat_template.jinja", "chat_template.json", "tekken.json"} or look["chat_template"]
    if instance["proof"] == "chat" and not template and "chat-template" not in args:
        problems.append(
            f"{prefix}, which has no chat template (chat_template.jinja): the engine would start, and then refuse every chat."
            " Add the file, set args.chat_template to one, or, if the model is not for chats, set the instance's proof to"
            " completions or embeddings."
        )
    return problems


def _some(names: t.Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


LISTENER = re.compile(r'users:\(\("(?P<process>[^"]*)",pid=(?P<pid>\d+)')


def taken_ports(instances: list[dict[str, t.Any]], listing: str, own: dict[str, str]) -> list[str]:
    """Ports that something else listens on. ``listing`` is of ``ss -Hltnp``; ``own`` has the control groups of each pid."""
    problems = []
    for instance in instances:
        if instance["uds"]:
            continue
        for line in listing.splitlines():
            fields = line.split()
            if len(fields) < 4 or fields[3].rpartition(":")[2] != str(instance["port"]):
                continue
            if not _overlaps(fields[3].rpartition(":")[0].strip("[]"), str(instance["host"])):
                continue
            found = LISTENER.search(line)
            who = f"{found['process']} (pid {found['pid']})" if found else "a process that cannot be seen"
            if found and f"/vllm@{instance['name']}.service" in own.get(found["pid"], ""):
                continue
            problems.append(
                f"vllm_service_instances[{instance['name']}].port is {instance['port']}, but {who} listens on"
                f" {fields[3]} already. Stop that, or choose another port."
            )
            break
    return problems


def _overlaps(address: str, host: str) -> bool:
    address = address.partition("%")[0]
    if address in ("*", "0.0.0.0", "::"):
        return True
    return address == host or (host == "localhost" and _is_loopback(address))


def place(
    instances: list[dict[str, t.Any]], observed: dict[str, t.Any], settings: dict[str, t.Any]
) -> dict[str, t.Any]:
    """The instances with what only the host can tell, and every problem that the host shows.

    ``observed`` has ``gpus`` (of gpu_info, or None), ``models`` (looks by instance) and ``sockets`` (text of the role's look
    at listening sockets). ``settings`` has ``build``, ``gpus_shared`` and ``user``.
    """
    gpus = assign_gpus(
        instances,
        observed["gpus"],
        build=settings["build"],
        shared=settings["gpus_shared"],
    )
    problems = list(gpus["problems"])
    placed = []
    for instance in instances:
        look = observed["models"][instance["name"]]
        problems.extend(judge_model(instance, look, settings["user"]))
        size = weights_bytes(look["files"])
        host = f"[{instance['host']}]" if ":" in str(instance["host"]) else instance["host"]
        placed.append(
            {
                **instance,
                "url": "http://localhost" if instance["uds"] else f"http://{host}:{instance['port']}",
                "gpu_uuids": gpus["uuids"][instance["name"]],
                "weights_bytes": size,
                "start_timeout": start_timeout(instance, size),
            }
        )
    listing, _separator, groups = observed["sockets"].partition("\n--\n")
    own = dict(line.split(" ", 1) for line in groups.splitlines() if " " in line)
    problems.extend(taken_ports(instances, listing, own))
    return {"instances": placed, "problems": problems}
