# Copyright: (c) 2026, the baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The demo: from this machine, with no GPU, to an authenticated chat completion. `make demo` calls it.

up    start a test host with eight simulated A100s, deploy inventories/sandbox onto it with site.yml, and prove it
down  remove the host; the caches stay, so the next `up` is quick

Run again, `up` changes nothing and says so. It exits 0 only when every proof held.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
from wheels import cache_folder, collect_wheels

ROOT = Path(__file__).resolve().parent.parent
HOSTS = ROOT / "tests" / "hosts" / "hosts"
INVENTORY = ROOT / "inventories" / "sandbox"
SECRETS = INVENTORY / ".secrets"
HOST = "sandbox-1"
SUITE = "bookworm"
# Where the role nginx_auth puts the certificate that it signs itself.
GATEWAY_CERTIFICATE = "/etc/nginx/inference/self_signed.crt"
MODEL = "smollm2-135m-instruct"
QUESTION = "What is the capital of France? Answer in one sentence."
RECAP = re.compile(r"^(\S+)\s+: ok=(\d+)\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)", re.MULTILINE)


class DemoError(Exception):
    """A step failed; the text says which, and what to do."""


@dataclass
class Run:
    """What one `up` did: the seconds of each phase, and how many changes Ansible reported in each play run."""

    seconds: dict[str, float] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        print(f"\n=== {name}", flush=True)
        started = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - started


def environment() -> dict[str, str]:
    """The environment for Ansible: this virtual environment's tools first, and a locale that Ansible accepts."""
    own_bin = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": own_bin + os.pathsep + os.environ.get("PATH", ""),
        "LC_ALL": "C.UTF-8",
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
    }


def call(*command: str | Path) -> str:
    """Run a command and return its output; a failure carries the command and what it said."""
    words = [str(part) for part in command]
    done = subprocess.run(words, check=False, cwd=ROOT, env=environment(), capture_output=True, text=True)
    if done.returncode != 0:
        raise DemoError(f"`{' '.join(words)}` failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def stream(*command: str | Path) -> str:
    """Run a command whose output the user watches; return it too."""
    process = subprocess.Popen(
        [str(part) for part in command],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        bufsize=1,
    )
    lines: list[str] = []
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    if process.wait() != 0:
        raise DemoError(f"`{' '.join(str(part) for part in command)}` failed; the reason stands above.")
    return "".join(lines)


def play(run: Run, name: str, playbook: Path) -> None:
    """Run a playbook on the sandbox and note how many tasks changed something."""
    output = stream(Path(sys.executable).parent / "ansible-playbook", playbook, "-i", INVENTORY)
    recaps = RECAP.findall(output)
    if not recaps:
        raise DemoError(f"{playbook.name} ran on no host at all: does {INVENTORY} list {HOST}?")
    run.changed[name] = sum(int(changed) for _host, _ok, changed, _unreachable, _failed in recaps)


def start_host(cache: Path) -> None:
    """Build the base system once, and start the host with the shared folders in it, unless it runs already."""
    call(HOSTS, "check")
    known = {host["name"]: host for host in json.loads(call(HOSTS, "list", "--json"))}
    if HOST in known and known[HOST]["state"] == "up":
        print(f"{HOST} is running already.", flush=True)
        return
    collect_wheels()
    binds: list[str] = []
    for folder, inside in (("uv", "/var/cache/uv"), ("models", "/srv/models"), ("wheels", "/srv/wheels:ro")):
        (cache / folder).mkdir(parents=True, exist_ok=True)
        binds += ["--bind", f"{cache / folder}:{inside}"]
    stream(HOSTS, "base", SUITE)
    if HOST in known:
        print(f"{HOST} is known but does not run (a reboot of this machine?): starting it afresh.", flush=True)
        call(HOSTS, "down", HOST)
    stream(HOSTS, "up", *binds, SUITE, HOST)
    stream(HOSTS, "wait", HOST)


def make_key() -> Path:
    """The client's key: made once, readable by its owner alone."""
    SECRETS.mkdir(mode=0o700, exist_ok=True)
    path = SECRETS / "demo.key"
    if not path.exists():
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32) + "\n")
    return path


def ask_gpus() -> dict[str, Any]:
    """The result of the module gpu_info on the host."""
    with tempfile.TemporaryDirectory() as folder:
        ansible = Path(sys.executable).parent / "ansible"
        module = ("-m", "baremetal.inference.gpu_info", "-a", "sysfs_root=/var/lib/nvml-sim/sysfs")
        call(ansible, "gpu_nodes", "-i", INVENTORY, *module, "--tree", folder)
        result: dict[str, Any] = json.loads((Path(folder) / HOST).read_text())
    return result


@dataclass
class Proof:
    """What the gateway answered."""

    url: str
    refused: int
    completion: str
    streamed: str
    chunks: int
    first_chunk_s: float
    pieces_per_s: float


def ask_gateway(address: str, key_file: Path, certificate: Path) -> Proof:
    """Ask the gateway three times: without a key, with it, and with it streamed."""
    url = f"https://{address}/v1"
    key = key_file.read_text().strip()
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 60,
        "temperature": 0,
    }
    with requests.Session() as session:
        session.verify = str(certificate)
        # A proxy of this machine has nothing to do with a host on this machine.
        session.trust_env = False
        refused = session.post(f"{url}/chat/completions", json=body, timeout=60)
        if refused.status_code != 401:
            raise DemoError(f"Without a key the gateway answered {refused.status_code} instead of 401: {refused.text}")
        session.headers["Authorization"] = f"Bearer {key}"
        answer = session.post(f"{url}/chat/completions", json=body, timeout=300)
        if answer.status_code != 200:
            raise DemoError(f"With the key the gateway answered {answer.status_code}: {answer.text}")
        completion = answer.json()["choices"][0]["message"]["content"].strip()
        if not completion:
            raise DemoError(f"The completion is empty: {answer.text}")

        started = time.monotonic()
        arrived: list[float] = []
        pieces: list[str] = []
        with session.post(f"{url}/chat/completions", json={**body, "stream": True}, timeout=300, stream=True) as events:
            events.raise_for_status()
            finished = False
            for line in events.iter_lines(chunk_size=1, decode_unicode=True):
                if line == "data: [DONE]":
                    finished = True
                elif line.startswith("data: "):
                    piece = json.loads(line[6:])["choices"][0]["delta"].get("content")
                    if piece:
                        arrived.append(time.monotonic() - started)
                        pieces.append(piece)
        if not finished:
            raise DemoError("The stream ended without its `data: [DONE]`.")
        if len(pieces) < 2:
            raise DemoError(f"The answer came in {len(pieces)} piece, so it was not streamed: {''.join(pieces)!r}")
    return Proof(
        url=url,
        refused=refused.status_code,
        completion=completion,
        streamed="".join(pieces).strip(),
        chunks=len(pieces),
        first_chunk_s=arrived[0],
        pieces_per_s=(len(arrived) - 1) / (arrived[-1] - arrived[0]),
    )


def report(run: Run, gpus: dict[str, Any], proof: Proof, key_file: Path, certificate: Path) -> None:
    """Print what was proved, and how to go on."""
    names = sorted({gpu["name"] for gpu in gpus["gpus"]})
    links = sorted({(gpu["nvlink"]["active_count"], gpu["nvlink"]["total_count"]) for gpu in gpus["gpus"]})
    ecc = sum(1 for gpu in gpus["gpus"] if gpu["ecc"]["current"] == "enabled")
    limits = sorted(
        {(gpu["power"]["limit_enforced_watts"], gpu["power"]["limit_default_watts"]) for gpu in gpus["gpus"]}
    )
    print(
        f"""
=== What this proved

GPUs         {gpus["gpu_count"]} x {", ".join(names)} (simulated), driver {gpus["driver_version"]}
             ECC on: {ecc} of {gpus["gpu_count"]}; NVLinks active: {", ".join(f"{a} of {t}" for a, t in links)} on each GPU
             Power limit: {", ".join(f"{limit:g} W of {default:g} W" for limit, default in limits)}
Endpoint     {proof.url}    (nginx, TLS) -> 127.0.0.1:8000 (vLLM, model {MODEL})
Key          {key_file}    (the host knows its SHA-256 only)
Without key  {proof.refused}

You asked    {QUESTION}
It answered  {proof.completion}
Streamed     {proof.streamed}
             ({proof.chunks} pieces, the first after {proof.first_chunk_s:.2f} s, then {proof.pieces_per_s:.0f} a second)

Ask it yourself:

  curl --cacert {certificate} {proof.url}/chat/completions \\
    -H "Authorization: Bearer $(cat {key_file})" -H "Content-Type: application/json" \\
    -d '{{"model": "{MODEL}", "stream": true, "messages": [{{"role": "user", "content": "Hello!"}}]}}'

Look at it    {ROOT / "preflight-reports" / HOST}.html    (the page that playbooks/preflight.yml writes)
Look around   {HOSTS} exec {HOST} journalctl -u vllm@main -u nginx
Tear down     make demo-down
"""
    )
    width = max(len(name) for name in run.seconds)
    for name, seconds in run.seconds.items():
        changed = f"   changed={run.changed[name]}" if name in run.changed else ""
        print(f"{name:{width}}  {seconds:7.1f} s{changed}")
    print(f"{'Total':{width}}  {sum(run.seconds.values()):7.1f} s")
    total = sum(run.changed.values())
    if total == 0:
        print("\nEverything was as it should be already: changed=0.")
    else:
        print(f"\n{total} changes were made. Run `make demo` again: it changes nothing.")


def up() -> None:
    cache = cache_folder()
    run = Run()
    with run.phase("Start the test host"):
        start_host(cache)
        key_file = make_key()
    with run.phase("Prepare GPUs, engine and model"):
        play(run, "Prepare GPUs, engine and model", ROOT / "sandbox" / "prepare.yml")
    with run.phase("Deploy site.yml"):
        play(run, "Deploy site.yml", ROOT / "site.yml")
    with run.phase("Preflight report"):
        play(run, "Preflight report", ROOT / "sandbox" / "preflight.yml")
    with run.phase("Prove it"):
        gpus = ask_gpus()
        address = next(h["address"] for h in json.loads(call(HOSTS, "list", "--json")) if h["name"] == HOST)
        certificate = SECRETS / "gateway.crt"
        certificate.write_text(call(HOSTS, "exec", HOST, "cat", GATEWAY_CERTIFICATE))
        proof = ask_gateway(address, key_file, certificate)
    report(run, gpus, proof, key_file, certificate)


def down() -> None:
    call(HOSTS, "down", "--if-exists", HOST)
    # Ansible's ssh connections outlive its runs; those to this host lead nowhere now.
    shutil.rmtree(cache_folder() / "hosts" / "control", ignore_errors=True)
    print(f"{HOST} is gone. Kept for the next time: {cache_folder()} and {SECRETS}.")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("action", choices=["up", "down"])
    try:
        {"up": up, "down": down}[parser.parse_args().action]()
    except DemoError as error:
        print(
            f"\nThe demo stopped: {error}\nMend that and run `make demo` again: it goes on where it stopped.",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
