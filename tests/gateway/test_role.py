# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the role does to a host: nothing in check mode, nothing twice, nothing by halves, and no secret anywhere."""

from __future__ import annotations

import hashlib
import json
import secrets
import ssl
import typing as t
from pathlib import Path

import pytest

from tests.gateway.conftest import Deployment
from tests.gateway.gateway_client import Gateway
from tests.gateway.host import Engine, Host, start_engine

# Everything that nginx is configured by, as one number.
FINGERPRINT = "find /etc/nginx -type f -o -type l | sort | xargs sha256sum | sha256sum"


def served_certificate(gateway: Gateway) -> bytes:
    with gateway.connect() as connection:
        return t.cast("bytes", connection.getpeercert(binary_form=True))


def names(host: Host, pem: str = "/etc/nginx/inference/self_signed.crt") -> set[str]:
    text = host.run(f"openssl x509 -in {pem} -noout -ext subjectAltName").splitlines()[1]
    return {name.strip() for name in text.split(",")}


def test_check_mode_on_a_new_host_changes_nothing(deployment: Deployment) -> None:
    assert "this host has no gateway yet" in deployment.check_run.output
    assert "No such file or directory" in deployment.nginx_after_check


def test_first_run_changes_and_second_run_does_not(deployment: Deployment) -> None:
    assert deployment.first_run.changed > 0
    assert deployment.second_run.changed == 0


@pytest.mark.parametrize("which", ["check_run", "first_run", "second_run"])
def test_no_run_says_a_secret(deployment: Deployment, which: str) -> None:
    output = getattr(deployment, which).output
    for secret in deployment.host.secrets:
        assert secret not in output
        assert hashlib.sha256(secret.encode()).hexdigest() not in output


def test_check_mode_later_tells_what_would_change(host: Host) -> None:
    before = host.run(FINGERPRINT)
    run = host.role("--check", "--diff", nginx_auth_read_timeout="17s")
    assert "+    proxy_read_timeout 17s;" in run.output
    assert run.changed > 0
    assert host.run(FINGERPRINT) == before
    assert host.role("--check").changed == 0


def test_no_plain_key_is_left_on_the_host(host: Host, gateway: Gateway) -> None:
    gateway.ask("GET", "/v1/models", gateway.bearer())
    gateway.ask("GET", "/v1/models", ("X-Api-Key", host.key("team-b")))
    gateway.ask("GET", "/v1/models", gateway.bearer(), gateway.bearer(host.plain_key))
    gateway.raw(f"GARBAGE {host.plain_key}\r\n\r\n".encode())
    patterns = "\n".join([host.key("team-a"), host.key("team-b"), host.plain_key])
    everywhere = "/etc /var /root /tmp /run /home /opt /srv"
    # grep ends with 1 when it found nothing; 2 would be an unreadable file.
    host.run("umask 077; cat >/dev/shm/p", patterns)
    assert host.run(f"grep -rlFf /dev/shm/p --devices=skip {everywhere}", expect=1) == ""
    assert host.run("cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ | grep -acFf /dev/shm/p", expect=1).strip() == "0"
    assert host.run("journalctl --no-pager | grep -cFf /dev/shm/p", expect=1).strip() == "0"
    host.run("rm /dev/shm/p")


def test_the_engines_key_is_only_where_root_reads_it(host: Host) -> None:
    found = host.run(f"grep -rlF {host.engine_key} /etc /var /tmp /run").split()
    assert found == ["/etc/engine.key", "/etc/nginx/inference/private/engine_key.conf"]


@pytest.mark.parametrize(
    ("path", "mode"),
    [
        ("/etc/nginx/conf.d/inference.conf", "644 root root"),
        ("/etc/nginx/inference", "755 root root"),
        ("/etc/nginx/inference/bearer.js", "644 root root"),
        ("/etc/nginx/inference/self_signed.crt", "644 root root"),
        ("/etc/nginx/inference/private", "700 root root"),
        ("/etc/nginx/inference/private/keys.conf", "600 root root"),
        ("/etc/nginx/inference/private/engine_key.conf", "600 root root"),
        ("/etc/nginx/inference/private/self_signed.pem", "600 root root"),
        ("/etc/nginx/inference/private/generation.conf", "600 root root"),
    ],
)
def test_modes(host: Host, path: str, mode: str) -> None:
    assert host.run(f"stat -c '%a %U %G' {path}").strip() == mode


def test_keys_are_kept_as_their_hash(host: Host) -> None:
    lines = host.run("cat /etc/nginx/inference/private/keys.conf").splitlines()
    keys = {"team-a": host.key("team-a"), "team-b": host.key("team-b"), "team-c": host.plain_key}
    assert [line for line in lines if not line.startswith("#")] == [
        f'"{hashlib.sha256(key.encode()).hexdigest()}" "{name}";' for name, key in keys.items()
    ]


def test_a_key_can_be_given_as_its_hash(any_host: Host, any_gateway: Gateway) -> None:
    key = secrets.token_hex(32)
    any_host.role(nginx_auth_keys=[{"name": "x", "sha256": hashlib.sha256(key.encode()).hexdigest().upper()}])
    assert any_gateway.ask("GET", "/v1/models", any_gateway.bearer(key)).status == 200
    assert any_gateway.ask("GET", "/v1/models", any_gateway.bearer()).status == 401


def test_many_keys(any_host: Host, any_gateway: Gateway) -> None:
    many = [{"name": f"k{number}", "sha256": secrets.token_hex(32)} for number in range(2000)]
    any_host.role(nginx_auth_keys=[*many, *any_host.variables["nginx_auth_keys"]])
    assert any_gateway.ask("GET", "/v1/models", any_gateway.bearer()).status == 200
    # A warning here would say that the hash table is too small.
    assert any_host.run("nginx -t -q 2>&1") == ""


def test_the_distributions_files_are_as_they_were(host: Host) -> None:
    # Documentation may be missing: the base system goes without.
    assert host.run("dpkg --verify nginx nginx-common | grep -v ' /usr/share/'", expect=1) == ""
    assert host.run("ls /etc/nginx/sites-available").strip() == "default"
    assert host.run("ls /etc/nginx/sites-enabled").strip() == ""
    assert host.run("systemctl is-enabled nginx").strip() == "enabled"


def test_default_site_stays_if_wanted(any_host: Host) -> None:
    any_host.run("ln -s ../sites-available/default /etc/nginx/sites-enabled/default")
    any_host.role(nginx_auth_manage_default_site=False)
    assert "Welcome to nginx" in any_host.run("curl -sS http://127.0.0.1/")
    any_host.role()
    assert any_host.run("curl -sS http://127.0.0.1/ 2>&1", expect=7).startswith("curl: (7)")


def test_a_bad_change_never_lands(host: Host, gateway: Gateway) -> None:
    before = host.run(FINGERPRINT)
    nowhere = {"name": "x", "address": "no-such-host.invalid:8000", "api_key_file": "/etc/engine.key"}
    run = host.role(expect=2, nginx_auth_upstreams=[nowhere])
    assert 'host not found in upstream "no-such-host.invalid:8000" in /etc/nginx/conf.d/inference.conf:' in run.output
    assert host.run(FINGERPRINT) == before
    assert gateway.ask("GET", "/v1/models", gateway.bearer()).status == 200
    assert host.role().changed == 0


def test_somebody_elses_broken_file_is_named(host: Host, gateway: Gateway) -> None:
    host.run("echo 'nonsense on;' >/etc/nginx/conf.d/other.conf")
    before = host.run(FINGERPRINT)
    try:
        run = host.role(expect=2, nginx_auth_read_timeout="18s")
        assert 'unknown directive "nonsense" in /etc/nginx/conf.d/other.conf:1' in run.output
        assert host.run(FINGERPRINT) == before
        assert gateway.ask("GET", "/v1/models", gateway.bearer()).status == 200
    finally:
        host.run("rm /etc/nginx/conf.d/other.conf")


def test_somebody_elses_site_is_left_alone(any_host: Host, any_gateway: Gateway) -> None:
    any_host.run("cat >/etc/nginx/sites-enabled/other", stdin="server { listen 8081; return 200 other; }\n")
    try:
        any_host.role(nginx_auth_read_timeout="19s")
        assert any_host.run("curl -sS http://127.0.0.1:8081/") == "other"
        assert any_host.run("ls /etc/nginx/sites-enabled").strip() == "other"
        assert any_gateway.ask("GET", "/v1/models", any_gateway.bearer()).status == 200
    finally:
        any_host.run("rm /etc/nginx/sites-enabled/other")


def test_a_run_that_broke_off_before_the_reload_is_completed(any_host: Host, any_gateway: Gateway) -> None:
    key = secrets.token_hex(32)
    keys = [{"name": "x", "sha256": hashlib.sha256(key.encode()).hexdigest()}]
    any_host.role("--tags", "nginx_auth_install,nginx_auth_configure", nginx_auth_keys=keys)
    assert any_gateway.ask("GET", "/v1/models", any_gateway.bearer(key)).status == 401
    run = any_host.role(nginx_auth_keys=keys)
    assert run.changed == 1
    assert any_gateway.ask("GET", "/v1/models", any_gateway.bearer(key)).status == 200
    assert any_host.role(nginx_auth_keys=keys).changed == 0


@pytest.mark.parametrize(
    "damage",
    [
        "systemctl stop nginx; systemctl disable nginx",
        "rm /etc/nginx/inference/private/keys.conf /etc/nginx/inference/self_signed.crt",
        "rm -r /etc/nginx/inference",
        "cd /etc/nginx; echo garbage | tee conf.d/inference.conf inference/bearer.js >inference/private/self_signed.pem",
        "apt-get -qq purge libnginx-mod-http-js >/dev/null 2>&1 && ! ls /usr/lib/nginx/modules/ngx_http_js_module.so",
    ],
    ids=["stopped", "files gone", "all gone", "garbage", "module gone"],
)
def test_damage_is_repaired_by_the_next_run(host: Host, running_engine: Engine, damage: str) -> None:
    host.run(damage)
    assert host.role().changed > 0
    gateway = host.gateway()
    assert gateway.ask("GET", "/v1/models", gateway.bearer()).status == 200
    assert host.run("systemctl is-enabled nginx").strip() == "enabled"
    assert host.role("--check").changed == 0


def test_self_signed_certificate(host: Host, gateway: Gateway) -> None:
    assert names(host) == {"DNS:inference.test", f"IP Address:{host.address}"}
    assert ssl.DER_cert_to_PEM_cert(served_certificate(gateway)) == Path(gateway.ca).read_text()
    # By address too, without turning any check off: the name is checked by connect().
    by_address = Gateway(gateway.address, 443, gateway.address, gateway.ca, gateway.key)
    assert by_address.ask("GET", "/health").status == 200


def test_self_signed_certificate_is_renewed_when_its_names_change(any_host: Host) -> None:
    before = any_host.run("cat /etc/nginx/inference/self_signed.crt")
    run = any_host.role(nginx_auth_tls_self_signed_names=["other.test", "fd00::17", "10.1.2.3"])
    assert run.changed > 0
    assert names(any_host) == {
        "DNS:inference.test",
        "DNS:other.test",
        "IP Address:FD00:0:0:0:0:0:0:17",
        "IP Address:10.1.2.3",
        f"IP Address:{any_host.address}",
    }
    gateway = any_host.gateway()
    assert gateway.ask("GET", "/health").status == 200
    assert ssl.DER_cert_to_PEM_cert(served_certificate(gateway)) != before
    assert any_host.role(nginx_auth_tls_self_signed_names=["other.test", "fd00::17", "10.1.2.3"]).changed == 0
    any_host.role()
    assert names(any_host) == {"DNS:inference.test", f"IP Address:{any_host.address}"}


def test_self_signed_certificate_is_renewed_before_it_ends(any_host: Host) -> None:
    before = any_host.run("cat /etc/nginx/inference/self_signed.crt")
    # The certificate that is there is good for 825 days; within 900 days it ends.
    short: dict[str, t.Any] = {"nginx_auth_tls_self_signed_days": 1000, "nginx_auth_tls_self_signed_renew_days": 900}
    assert any_host.role("--check", **short).changed > 0
    assert any_host.run("cat /etc/nginx/inference/self_signed.crt") == before
    assert any_host.role(**short).changed > 0
    assert any_host.run("cat /etc/nginx/inference/self_signed.crt") != before
    assert any_host.role(**short).changed == 0
    assert any_host.gateway().ask("GET", "/health").status == 200


OWN: dict[str, t.Any] = {
    "nginx_auth_tls_certificate": "/etc/ssl/own/cert.pem",
    "nginx_auth_tls_key": "/etc/ssl/own/key.pem",
}


def test_own_certificate(any_host: Host, any_gateway: Gateway) -> None:
    any_host.run(
        "mkdir -p /etc/ssl/own; openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 9"
        " -subj /CN=own -addext subjectAltName=DNS:inference.test -addext keyUsage=digitalSignature"
        " -keyout /etc/ssl/own/key.pem -out /etc/ssl/own/cert.pem 2>/dev/null"
    )
    any_host.role(**OWN)
    served = ssl.DER_cert_to_PEM_cert(ssl.PEM_cert_to_DER_cert(any_host.run("cat /etc/ssl/own/cert.pem")))
    assert ssl.get_server_certificate((any_host.address, 443)) == served
    assert any_host.role(**OWN).changed == 0

    # The same names on new contents, as a renewal by somebody else leaves it: nginx has to read it again.
    any_host.run("cd /etc/ssl/own; cp /etc/nginx/inference/private/self_signed.pem key.pem; cp key.pem cert.pem")
    assert any_host.role(**OWN).changed > 0
    assert ssl.get_server_certificate((any_host.address, 443)) == any_host.run(
        "cat /etc/nginx/inference/self_signed.crt"
    )

    # A pair that does not belong together.
    any_host.run("openssl ecparam -name prime256v1 -genkey -noout -out /etc/ssl/own/key.pem")
    assert "key values mismatch" in any_host.role(expect=2, nginx_auth_read_timeout="20s", **OWN).output


# Good for one day in 2020; openssl makes no certificate that has already ended.
ENDED = """\
-----BEGIN CERTIFICATE-----
MIHLMH+gAwIBAgIBATAFBgMrZXAwEDEOMAwGA1UEAwwFZW5kZWQwHhcNMjAwMTAx
MDAwMDAwWhcNMjAwMTAyMDAwMDAwWjAQMQ4wDAYDVQQDDAVlbmRlZDAqMAUGAytl
cAMhABXKFcDdP3ulTpGRfTimtCTt3DYA47vuZpEuMqt/UTzTMAUGAytlcANBAIgH
M6LJRYYhfXfUdKId7Rh5CYWmZP1oX1RTnecf1RjiyP9PmwqsdsLk8wD25mQjfrEN
UNXGdKAl2p0k8zr3zQA=
-----END CERTIFICATE-----
"""


def test_an_ended_certificate_is_refused(host: Host) -> None:
    host.run(
        "mkdir -p /etc/ssl/own; cd /etc/ssl/own; openssl genpkey -algorithm ed25519 -out key.pem; cat >cert.pem", ENDED
    )
    before = host.run(FINGERPRINT)
    run = host.role(expect=2, **OWN)
    assert "nginx_auth_tls_certificate is '/etc/ssl/own/cert.pem', and that certificate has ended" in run.output
    assert host.run(FINGERPRINT) == before


def test_other_port_and_address(any_host: Host, any_gateway: Gateway) -> None:
    any_host.role(nginx_auth_port=8443, nginx_auth_listen_addresses=[any_host.address])
    assert any_host.run("ss -Hltn 'sport = :8443'").split()[3] == f"{any_host.address}:8443"
    assert any_host.run("ss -Hltn 'sport = :443'") == ""
    moved = Gateway(any_host.address, 8443, "inference.test", any_gateway.ca, any_gateway.key)
    assert moved.ask("GET", "/v1/models").status == 401
    assert any_host.role(nginx_auth_port=8443, nginx_auth_listen_addresses=[any_host.address]).changed == 0


def test_reboot(host: Host) -> None:
    host.run("systemctl reboot", expect=None)
    host.hosts("wait", host.inventory_line.split()[0])
    start_engine(host)
    gateway = host.gateway()
    assert gateway.ask("GET", "/v1/models", gateway.bearer()).status == 200
    assert host.role("--check").changed == 0


KEY = "a-good-key-0123456789abcdef"
UPSTREAM = {"name": "main", "address": "127.0.0.1:8000"}
# Variables beside the usual ones, and what the message must say.
REFUSALS: dict[str, tuple[dict[str, t.Any], list[str]]] = {
    "no-keys": ({"nginx_auth_keys": []}, ["nginx_auth_keys is empty", "openssl rand -hex 32"]),
    "key-twice": (
        {"nginx_auth_keys": [{"name": "a", "key": KEY}, {"name": "b", "key": KEY}]},
        ["nginx_auth_keys[1] (name 'b')", "same key as 'a'"],
    ),
    "key-twice-as-hash": (
        {
            "nginx_auth_keys": [
                {"name": "a", "key": KEY},
                {"name": "b", "sha256": hashlib.sha256(KEY.encode()).hexdigest().upper()},
            ]
        },
        ["same key as 'a'"],
    ),
    "name-twice": (
        {"nginx_auth_keys": [{"name": "a", "key": KEY}, {"name": "a", "key": KEY + "2"}]},
        ["nginx_auth_keys[1] (name 'a')", "there twice"],
    ),
    "short-key": ({"nginx_auth_keys": [{"name": "a", "key": "short"}]}, ["at least 20 characters", "has 5"]),
    "key-with-space": ({"nginx_auth_keys": [{"name": "a", "key": KEY + " " + KEY}]}, ["without spaces"]),
    "two-lines": ({"nginx_auth_keys": [{"name": "a", "key": KEY + "\n" + KEY}]}, ["without spaces"]),
    "no-key-in-entry": ({"nginx_auth_keys": [{"name": "a"}]}, ["exactly one of key, key_file, sha256", "has none"]),
    "two-in-entry": (
        {"nginx_auth_keys": [{"name": "a", "key": KEY, "sha256": "0" * 64}]},
        ["exactly one of", "has key, sha256"],
    ),
    "bad-hash": ({"nginx_auth_keys": [{"name": "a", "sha256": "abc"}]}, ["64 hexadecimal digits", "has 3"]),
    "bad-name": ({"nginx_auth_keys": [{"name": 'a";', "key": KEY}]}, ["the name must be"]),
    "no-key-file": (
        {"nginx_auth_keys": [{"name": "a", "key_file": "/nonexistent/a.key"}]},
        ["nginx_auth_keys", "/nonexistent/a.key", "does not exist", "openssl rand -hex 32 > /nonexistent/a.key"],
    ),
    "relative-key-file": ({"nginx_auth_keys": [{"name": "a", "key_file": "a.key"}]}, ["'a.key'", "absolute path"]),
    "empty-key-file": ({"nginx_auth_keys": [{"name": "a", "key_file": "FOLDER/empty"}]}, ["FOLDER/empty", "is empty"]),
    "open-key-file": (
        {"nginx_auth_keys": [{"name": "a", "key_file": "FOLDER/open"}]},
        ["FOLDER/open", "open to everybody (mode 0644)", "chmod 600"],
    ),
    "folder-as-key-file": ({"nginx_auth_keys": [{"name": "a", "key_file": "FOLDER"}]}, ["is not a file"]),
    "short-key-file": ({"nginx_auth_keys": [{"name": "a", "key_file": "FOLDER/short"}]}, ["FOLDER/short", "has 5"]),
    "unknown-option": ({"nginx_auth_keys": [{"name": "a", "password": KEY}]}, ["nginx_auth_keys", "password"]),
    "no-upstreams": ({"nginx_auth_upstreams": []}, ["nginx_auth_upstreams is empty", "127.0.0.1:8000"]),
    "bad-address": (
        {"nginx_auth_upstreams": [{"name": "main", "address": "http://127.0.0.1:8000"}]},
        ["'http://127.0.0.1:8000'", "host:port or unix:/path"],
    ),
    "address-twice": (
        {"nginx_auth_upstreams": [UPSTREAM, {**UPSTREAM, "name": "b"}]},
        ["address 127.0.0.1:8000 is there twice"],
    ),
    "no-engine-key-file": (
        {"nginx_auth_upstreams": [{**UPSTREAM, "api_key_file": "/etc/vllm/none.key"}]},
        ["api_key_file is '/etc/vllm/none.key'", "does not exist", "vllm_service"],
    ),
    "bad-engine-key": (
        {"nginx_auth_upstreams": [{**UPSTREAM, "api_key_file": "/etc/bad-engine.key"}]},
        ["/etc/bad-engine.key", "one line"],
    ),
    "engine-keys-differ": (
        {
            "nginx_auth_upstreams": [
                {**UPSTREAM, "api_key_file": "/etc/engine.key"},
                {"name": "b", "address": "127.0.0.1:8001", "api_key_file": "/etc/other-engine.key"},
            ]
        },
        ["different keys", "/etc/engine.key, /etc/other-engine.key"],
    ),
    "some-engine-keys": (
        {
            "nginx_auth_upstreams": [
                {**UPSTREAM, "api_key_file": "/etc/engine.key"},
                {"name": "b", "address": "127.0.0.1:8001"},
            ]
        },
        ["all need it or none"],
    ),
    "certificate-without-key": (
        {"nginx_auth_tls_certificate": "/etc/x.pem"},
        ["nginx_auth_tls_certificate is '/etc/x.pem'", "nginx_auth_tls_key is ''", "both"],
    ),
    "no-certificate": (
        {"nginx_auth_tls_certificate": "/etc/x.pem", "nginx_auth_tls_key": "/etc/x.key"},
        ["nginx_auth_tls_certificate is '/etc/x.pem'", "does not exist"],
    ),
    "old-tls": ({"nginx_auth_tls_protocols": ["TLSv1"]}, ["nginx_auth_tls_protocols", "TLSv1.2"]),
    "bad-server-name": ({"nginx_auth_server_name": "a b"}, ["nginx_auth_server_name is 'a b'"]),
    "bad-listen-address": ({"nginx_auth_listen_addresses": ["fd00::1"]}, ["'fd00::1'", "in brackets"]),
    "bad-port": ({"nginx_auth_port": 70000}, ["nginx_auth_port is 70000", "1 to 65535"]),
    "port-in-use": (
        {"nginx_auth_port": 8444},
        ["nginx_auth_port is 8444", "another program than nginx", "python3", "another nginx_auth_port"],
    ),
    "bad-route": ({"nginx_auth_routes": [{"path": "v1/x y", "methods": ["GET"]}]}, ["'v1/x y'", "/v1/models"]),
    "bad-method": ({"nginx_auth_routes": [{"path": "/v1/x", "methods": ["get"]}]}, ["nginx_auth_routes", "GET"]),
    "route-twice": (
        {"nginx_auth_routes": [{"path": "/x", "methods": ["GET"]}, {"path": "/x", "methods": ["POST"]}]},
        ["path /x twice"],
    ),
    "health-route": ({"nginx_auth_routes": [{"path": "/health", "methods": ["GET"]}]}, ["/health"]),
    "bad-size": ({"nginx_auth_client_max_body_size": "10 MB"}, ["nginx_auth_client_max_body_size is '10 MB'", "32m"]),
    "bad-time": ({"nginx_auth_read_timeout": "1 hour"}, ["nginx_auth_read_timeout is '1 hour'", "60s"]),
    "renewed-always": ({"nginx_auth_tls_self_signed_days": 30}, ["nginx_auth_tls_self_signed_days (30)"]),
    "unknown-packages": ({"nginx_auth_packages": []}, ["nginx_auth_packages is empty", "ngx_http_js_module"]),
}


@pytest.fixture(scope="module")
def refusals(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the role says to each mistake. One play for all, as if each were a host."""
    host = deployment.host
    folder = tmp_path_factory.mktemp("refusals")
    for name, content, mode in (("empty", "", 0o600), ("open", KEY, 0o644), ("short", "short\n", 0o600)):
        path = folder / name
        path.write_text(content)
        path.chmod(mode)
    host.run("umask 077; printf 'a b' >/etc/bad-engine.key; echo another-key >/etc/other-engine.key")
    host.run("systemd-run --quiet --unit=squatter python3 -m http.server 8444")
    inventory = []
    # Beside the inventory, where Ansible looks for them.
    host_vars = host.folder / "host_vars"
    host_vars.mkdir()
    for name, (variables, _expected) in REFUSALS.items():
        inventory.append(" ".join([name, *host.inventory_line.split()[1:]]))
        given = json.dumps({**host.variables, **variables}).replace("FOLDER", str(folder))
        (host_vars / f"{name}.json").write_text(given)
    before = host.run(FINGERPRINT)
    try:
        run = host.play("refusals.yml", "\n".join(inventory) + "\n", "-e", f"refusals_dir={folder}", "-f", "8")
    finally:
        host.run("systemctl stop squatter; rm /etc/bad-engine.key /etc/other-engine.key")
    assert run.returncode == 0, run.output
    assert host.run(FINGERPRINT) == before
    assert KEY not in run.output
    return {name: (folder / f"{name}.json").read_text().replace(str(folder), "FOLDER") for name in REFUSALS}


@pytest.mark.parametrize("mistake", REFUSALS)
def test_mistakes_are_refused_before_anything_changes(refusals: dict[str, str], mistake: str) -> None:
    failure = json.loads(refusals[mistake])
    assert "accepted" not in failure
    assert KEY not in refusals[mistake]
    result = failure["result"]
    messages = [entry["msg"] for entry in result.get("results", [result]) if entry.get("failed")]
    for part in REFUSALS[mistake][1]:
        assert any(part in message for message in messages), messages
