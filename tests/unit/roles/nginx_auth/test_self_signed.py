# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The script that keeps a self-signed certificate, run here with the real openssl."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[4] / "roles" / "nginx_auth" / "files" / "self_signed"


class Pair:
    def __init__(self, folder: Path) -> None:
        self.pem = folder / "self_signed.pem"
        self.public = folder / "self_signed.crt"

    def keep(self, names: str = "DNS:a.test,IP:10.0.0.1", *more: str, days: int = 100, renew: int = 30) -> str:
        arguments = [str(self.pem), str(self.public), str(days), str(renew), names, *more]
        done = subprocess.run([str(SCRIPT), *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def contents(self) -> tuple[bytes, bytes]:
        return self.pem.read_bytes(), self.public.read_bytes()

    def text(self) -> str:
        done = subprocess.run(
            ["openssl", "x509", "-in", str(self.public), "-noout", "-text"], capture_output=True, text=True, check=True
        )
        return done.stdout


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def test_makes_one_and_keeps_it(pair: Pair) -> None:
    assert pair.keep() == "renewed: there was none"
    before = pair.contents()
    assert pair.keep() == "kept"
    assert pair.contents() == before


def test_only_the_certificate_is_public(pair: Pair) -> None:
    pair.keep()
    assert stat.S_IMODE(pair.pem.stat().st_mode) == 0o600
    assert stat.S_IMODE(pair.public.stat().st_mode) == 0o644
    pem, public = pair.contents()
    assert b"PRIVATE KEY" in pem
    assert b"PRIVATE KEY" not in public
    assert public in pem
    assert {path.name for path in pair.pem.parent.iterdir()} == {"self_signed.pem", "self_signed.crt"}


def test_is_what_strict_clients_want(pair: Pair) -> None:
    pair.keep()
    done = subprocess.run(
        ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-verify_hostname", "a.test"]
        + ["-CAfile", str(pair.public), str(pair.public)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip().endswith("OK"), done.stdout + done.stderr
    assert "CA:FALSE" in pair.text()


@pytest.mark.parametrize("names", ["DNS:a.test", "DNS:a.test,IP:10.0.0.1,IP:fd00::1", "DNS:b.test,IP:10.0.0.1"])
def test_other_names(pair: Pair, names: str) -> None:
    pair.keep()
    assert pair.keep(names) == "renewed: its names changed"
    assert pair.keep(names) == "kept"
    assert ("FD00:0:0:0:0:0:0:1" in pair.text()) == ("fd00::1" in names)


def test_near_its_end(pair: Pair) -> None:
    pair.keep(days=40)
    assert pair.keep(renew=39) == "kept"
    assert pair.keep(renew=41) == "renewed: it ends within 41 days"
    assert pair.keep(renew=41) == "kept"


@pytest.mark.parametrize("damage", ["", "garbage", "key alone", "certificate alone"])
def test_damaged(pair: Pair, damage: str) -> None:
    pair.keep()
    pem, public = pair.contents()
    pair.pem.write_bytes(
        {"": b"", "garbage": b"garbage", "key alone": pem.replace(public, b""), "certificate alone": public}[damage]
    )
    assert pair.keep() == f"renewed: {'it could not be read' if damage else 'there was none'}"
    assert pair.keep() == "kept"


def test_public_copy_is_missing(pair: Pair) -> None:
    pair.keep()
    before = pair.contents()
    pair.public.unlink()
    assert pair.keep() == "renewed: the copy for clients was missing or another"
    assert pair.contents() == before


def test_dry_run_changes_nothing(pair: Pair) -> None:
    assert pair.keep("DNS:a.test", "--dry-run") == "renewed: there was none"
    assert not pair.pem.exists()
    pair.keep()
    before = pair.contents()
    assert pair.keep("DNS:c.test", "--dry-run") == "renewed: its names changed"
    pair.public.write_text("other")
    assert pair.keep("DNS:a.test,IP:10.0.0.1", "--dry-run").startswith("renewed: the copy")
    assert (pair.pem.read_bytes(), pair.public.read_text()) == (before[0], "other")


def test_a_name_that_openssl_refuses_leaves_the_old_pair(pair: Pair) -> None:
    pair.keep()
    before = pair.contents()
    arguments = [str(SCRIPT), str(pair.pem), str(pair.public), "100", "30", "IP:not-an-address"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "not-an-address" in done.stderr
    assert pair.contents() == before
