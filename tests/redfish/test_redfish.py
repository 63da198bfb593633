# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""BIOS attributes through Redfish: the role, with the real community.general, against an emulated BMC."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import time
import typing as t
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
# Names as no vendor has them: which ones a BMC has is for it to say.
ATTRIBUTES = {"AboveFourG": "Disabled", "Sriov": "Enabled", "NodesPerSocket": 4, "BootMode": "Uefi"}
USER, PASSWORD = "operator", "a-secret-of-the-bmc"


@pytest.fixture(scope="session")
def environment() -> Path:
    done = subprocess.run([HERE / "prepare"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


class Bmc:
    def __init__(self, environment: Path, folder: Path) -> None:
        self.folder = folder
        self.certificate = folder / "bmc.crt"
        subject = ["-subj", "/CN=bmc", "-addext", "subjectAltName=IP:127.0.0.1"]
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1",
             "-keyout", folder / "bmc.key", "-out", self.certificate, *subject],
            check=True, capture_output=True,
        )  # fmt: skip
        hashing = "import bcrypt, sys; print(bcrypt.hashpw(sys.argv[1].encode(), bcrypt.gensalt(4)).decode())"
        python = environment / "bin" / "python"
        hashed = subprocess.run([python, "-c", hashing, PASSWORD], check=True, capture_output=True, text=True).stdout
        (folder / "users").write_text(f"{USER}:{hashed}")
        (folder / "attributes.json").write_text(json.dumps(ATTRIBUTES))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = (folder / "log").open("w")
        command = [str(part) for part in (python, HERE / "bmc.py", folder, self.port, folder / "attributes.json")]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 60
        while True:
            try:
                self.get("/redfish/v1/Systems")
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"the BMC does not answer: {(folder / 'log').read_text()}") from None
                time.sleep(0.1)

    def request(self, path: str, body: dict[str, t.Any] | None = None) -> t.Any:
        token = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        request = urllib.request.Request(
            f"https://127.0.0.1:{self.port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Basic {token}", "Content-Type": "application/json"},
        )
        context = ssl.create_default_context(cafile=self.certificate)
        with urllib.request.urlopen(request, context=context, timeout=10) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def get(self, path: str) -> t.Any:
        return self.request(path)

    def attributes(self) -> dict[str, t.Any]:
        found = self.get(f"{self.system()}/BIOS")["Attributes"]
        assert isinstance(found, dict)
        return found

    def system(self) -> str:
        return str(self.get("/redfish/v1/Systems")["Members"][0]["@odata.id"])

    def reboot(self) -> None:
        self.request(f"{self.system()}/Actions/ComputerSystem.Reset", {"ResetType": "ForceRestart"})

    def changes(self) -> list[str]:
        path = self.folder / "changes"
        return path.read_text().splitlines() if path.exists() else []

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=30)
        self.log.close()


@pytest.fixture
def bmc(environment: Path, tmp_path: Path) -> t.Iterator[Bmc]:
    folder = tmp_path / "bmc"
    folder.mkdir()
    bmc = Bmc(environment, folder)
    yield bmc
    bmc.stop()


class Run:
    """One run of the role, on this machine, with a BMC of its own."""

    def __init__(self, ansible: Path, folder: Path, *options: str, apply: bool = False, **redfish: t.Any) -> None:
        play = folder / "play.yml"
        play.write_text("- hosts: all\n  gather_facts: false\n  roles: [baremetal.inference.gpu_preflight]\n")
        variables = {
            "ansible_connection": "local",
            "ansible_python_interpreter": str(ansible / "python"),
            # What else there is about this machine does not matter here.
            "gpu_preflight_fail_on": "never",
            "gpu_preflight_report_dir": str(folder / "reports"),
            "gpu_preflight_redfish": redfish,
            "gpu_preflight_redfish_apply": apply,
        }
        inventory = folder / "inventory.json"
        inventory.write_text(json.dumps({"all": {"hosts": {"dgx-1": variables}}}))
        done = subprocess.run(
            [ansible / "ansible-playbook", "-i", inventory, *options, play],
            env={
                **{key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")},
                "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
                "LC_ALL": "C.UTF-8",
            },
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        self.status = done.returncode
        self.output = done.stdout + done.stderr
        self.words = " ".join(self.output.split())
        changed = re.search(r"^dgx-1 +: .*changed=(\d+)", done.stdout, re.MULTILINE)
        self.changed = int(changed[1]) if changed else None
        report = folder / "reports" / "dgx-1.json"
        self.result: dict[str, t.Any] = json.loads(report.read_text()) if report.exists() else {}
        self.checks = {
            check["title"]: check for check in self.result.get("checks", []) if ".bios_attribute" in check["check"]
        }

    def verdicts(self) -> dict[str, str]:
        return {title: check["verdict"] for title, check in self.checks.items()}


@pytest.fixture
def run(environment: Path, bmc: Bmc, tmp_path: Path) -> t.Callable[..., Run]:
    def run(*options: str, apply: bool = False, **redfish: t.Any) -> Run:
        settings = {
            "baseuri": f"127.0.0.1:{bmc.port}",
            "username": USER,
            "password": PASSWORD,
            "ca_path": str(bmc.certificate),
            **redfish,
        }
        given = {key: value for key, value in settings.items() if value is not None}
        return Run(environment / "bin", tmp_path, *options, apply=apply, **given)

    return run


def test_reading_judges_what_is_named_and_sets_nothing(run: t.Callable[..., Run], bmc: Bmc) -> None:
    wanted = {"AboveFourG": "Enabled", "Sriov": "Enabled", "NodesPerSocket": 4, "AboveForG": "Enabled"}
    done = run("-vvv", attributes=wanted)
    assert done.status == 0, done.output
    assert done.changed == 0
    assert done.verdicts() == {
        "BIOS attribute AboveFourG": "fail",
        "BIOS attribute Sriov": "pass",
        "BIOS attribute NodesPerSocket": "pass",
        "BIOS attribute AboveForG": "unknown",
    }
    failed = done.checks["BIOS attribute AboveFourG"]
    assert (failed["observed"], failed["expected"]) == ("Disabled", "Enabled")
    assert "gpu_preflight_redfish_apply: true" in failed["fix"]
    assert "Alike: AboveFourG" in done.checks["BIOS attribute AboveForG"]["fix"]
    # What was added counts.
    assert done.result["verdict"] == "fail"
    assert done.result["counts"]["fail"] == sum(check["verdict"] == "fail" for check in done.result["checks"])
    assert bmc.changes() == []
    assert PASSWORD not in done.output
    assert "BIOS attribute AboveFourG" in (bmc.folder.parent / "reports" / "dgx-1.html").read_text()


def test_setting_is_for_the_next_boot_and_done_once(run: t.Callable[..., Run], bmc: Bmc) -> None:
    wanted = {"AboveFourG": "Enabled", "Sriov": "Enabled", "NodesPerSocket": 1}

    foreseen = run("--check", apply=True, attributes=wanted)
    assert (foreseen.status, foreseen.changed) == (0, 1), foreseen.output
    assert "For the next boot" in foreseen.output
    assert bmc.changes() == []

    first = run("-vvv", apply=True, attributes=wanted)
    assert (first.status, first.changed) == (0, 1), first.output
    assert PASSWORD not in first.output
    assert [json.loads(line.split(" ", 2)[2]) for line in bmc.changes()] == [
        {"Attributes": {"AboveFourG": "Enabled", "NodesPerSocket": 1}}
    ]
    assert first.verdicts() == {
        "BIOS attribute AboveFourG": "warn",
        "BIOS attribute Sriov": "pass",
        "BIOS attribute NodesPerSocket": "warn",
    }
    assert first.checks["BIOS attribute AboveFourG"]["observed"] == "Disabled now, Enabled after the next reboot"

    second = run(apply=True, attributes=wanted)
    assert (second.status, second.changed) == (0, 0), second.output
    assert len(bmc.changes()) == 1
    assert second.verdicts() == first.verdicts()

    bmc.reboot()
    assert bmc.attributes() == {**ATTRIBUTES, "AboveFourG": "Enabled", "NodesPerSocket": 1}
    third = run(apply=True, attributes=wanted)
    assert (third.status, third.changed) == (0, 0), third.output
    assert set(third.verdicts().values()) == {"pass"}


def test_nothing_is_set_when_a_name_is_wrong(run: t.Callable[..., Run], bmc: Bmc) -> None:
    done = run(apply=True, attributes={"AboveFourG": "Enabled", "Srov": "Enabled"})
    assert done.status == 2
    assert "nothing was set: BIOS attribute Srov: the BMC has no such attribute" in done.words
    assert bmc.changes() == []


def test_without_wishes_it_is_told_how_many_there_are(run: t.Callable[..., Run], tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text(f"{PASSWORD}\n")
    done = run(password=None, password_file=str(secret))
    assert done.checks["BIOS attributes"]["observed"] == "4 attributes can be read"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"password": "wrong"}, "401"),
        ({"ca_path": None}, "certificate"),
        ({"system": "other"}, "the BMC has no system 'other'; it has "),
    ],
)
def test_a_bmc_that_cannot_be_asked_is_unknown_and_nothing_is_set(
    run: t.Callable[..., Run], bmc: Bmc, wrong: dict[str, t.Any], said: str
) -> None:
    done = run(attributes={"AboveFourG": "Enabled"}, **wrong)
    assert (done.status, done.changed) == (0, 0), done.output
    assert done.verdicts() == {"BIOS attributes": "unknown"}
    assert said in done.checks["BIOS attributes"]["observed"]
    refused = run(apply=True, attributes={"AboveFourG": "Enabled"}, **wrong)
    assert refused.status == 2
    assert "nothing was set: BIOS attributes:" in refused.words
    assert bmc.changes() == []


@pytest.mark.parametrize(
    ("redfish", "said"),
    [
        ({"baseuri": "https://bmc"}, "gpu_preflight_redfish.baseuri is https://bmc; it must be"),
        ({"username": "a"}, "gpu_preflight_redfish.baseuri is not given; it must be"),
        ({"baseuri": "bmc", "username": "a"}, "with exactly one of password and password_file, or none of the three."),
        ({"baseuri": "bmc", "password": "a"}, "It has password."),
        (
            {"baseuri": "bmc", "atributes": {}},
            "gpu_preflight_redfish.atributes. Supported parameters include: attributes, baseuri",
        ),
    ],
)
def test_settings_that_are_incomplete_are_named(
    environment: Path, tmp_path: Path, redfish: dict[str, t.Any], said: str
) -> None:
    done = Run(environment / "bin", tmp_path, **redfish)
    assert done.status == 2
    assert said in done.words


def test_the_collection_that_is_missing_is_named(tmp_path: Path) -> None:
    """The environment of all other tests does not have it."""
    done = Run(Path(sys.executable).parent, tmp_path, baseuri="bmc")
    assert done.status == 2
    assert "ansible-galaxy collection install community.general" in done.words
