# Copyright: (c) 2026, the baremetal.inference authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What `hosts` promises, asked of real hosts: about a minute, as root.

The tests have an instance of their own (state, bridge and network), and share the cached root file systems with
everybody else. Those that look for what is left behind run in namespaces of their own for network and mounts, so they
see each thing that appears and no thing that another instance does meanwhile.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HOSTS = Path(__file__).resolve().parent / "hosts"
SUITE = "bookworm"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="hosts needs root: namespaces, mounts and a bridge")


def shared_base() -> str:
    """Where root file systems are cached, as the tool itself says it."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    cache = os.environ.get("BAREMETAL_INFERENCE_CACHE") or f"{cache}/baremetal-inference"
    top = os.environ.get("HOSTS_TOP") or f"{cache}/hosts"
    return os.environ.get("HOSTS_BASE") or f"{top}/base"


class Instance:
    """One instance of the tool: its state, its bridge, its network; and where its commands run."""

    def __init__(self, top: Path, number: int, prefix: tuple[str, ...] = ()) -> None:
        self.top = top
        self.bridge = f"bt{os.getpid() % 100000}{'abcdefghij'[number]}"
        self.net = f"10.{200 + number}.{os.getpid() % 250}"
        self.prefix = prefix
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("HOSTS_")}
        self.env |= {
            "HOSTS_TOP": str(top),
            "HOSTS_BASE": shared_base(),
            "HOSTS_BRIDGE": self.bridge,
            "HOSTS_NET": self.net,
            "HOSTS_WAIT": "60",
        }

    def start(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.prefix, str(HOSTS), *arguments],
            env=self.env | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, expect: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **env)
        out, err = process.communicate(timeout=120)
        assert process.returncode == expect, f"hosts {' '.join(arguments)}: {process.returncode}\n{out}\n{err}"
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def out(self, *arguments: str) -> str:
        return self.run(*arguments).stdout.strip()

    def refuse(self, *arguments: str, status: int = 1, **env: str) -> str:
        return self.run(*arguments, expect=status, **env).stderr

    def up(self, *arguments: str) -> None:
        self.run("up", *arguments)
        self.run("wait", *(row["name"] for row in self.rows()))

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.out("list", "--json"))
        return rows

    def row(self, name: str) -> dict[str, Any]:
        return next(row for row in self.rows() if row["name"] == name)

    def ssh(self, name: str, command: str) -> str:
        done = subprocess.run(
            ["ssh", "-F", self.out("ssh-config"), name, command],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def supervisor(self, name: str) -> int:
        return int((self.top / "run" / name / "supervisor").read_text(encoding="ascii"))

    def machine(self, *command: str) -> str:
        """A command on the machine, as the instance sees it."""
        return subprocess.run([*self.prefix, *command], check=True, capture_output=True, text=True).stdout

    def traces(self) -> dict[str, str]:
        """All that may tell of hosts; equal before and after when nothing is left."""
        cgroups = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines() if " cgroup" in line]
        return {
            "mounts": self.machine("cat", "/proc/self/mountinfo"),
            "links": self.machine("ip", "-o", "-br", "link"),
            "addresses": self.machine("ip", "-o", "address"),
            "rules": self.machine("nft", "list", "ruleset"),
            "netns": self.machine("ip", "netns", "list"),
            "ip_forward": self.machine("cat", "/proc/sys/net/ipv4/ip_forward"),
            "run": self.machine("find", "/run"),
            "cgroups": "\n".join(mount for mount in cgroups if os.path.exists(f"{mount}/{self.bridge}")),
            "processes": "\n".join(self.processes()),
            "state": "\n".join(sorted(str(path) for path in self.top.glob("run/*"))),
        }

    def processes(self) -> list[str]:
        """Processes that are of hosts of this instance, from inside or outside."""
        found = []
        top = str(self.top).encode()
        for directory in Path("/proc").glob("[0-9]*"):
            try:
                said = (directory / "cmdline").read_bytes() + (directory / "environ").read_bytes()
                group = (directory / "cgroup").read_text()
                mounts = (directory / "mountinfo").read_bytes()
            except OSError:
                continue  # it has ended
            if top in said or f"/{self.bridge}/" in group or top in mounts:
                found.append(f"{directory.name} {said[:200]!r}")
        return found


def until(condition: Callable[[], bool], what: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


@pytest.fixture(scope="module", autouse=True)
def base(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The root file system; about a minute when it is not cached yet."""
    Instance(tmp_path_factory.mktemp("base"), 9).run("base", SUITE)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """An instance on the machine's own network, used by tests one after the other."""
    instance = Instance(tmp_path_factory.mktemp("hosts"), 0)
    yield instance
    instance.run("down", "--all")


@pytest.fixture(scope="module")
def pair(hosts: Instance, tmp_path_factory: pytest.TempPathFactory) -> tuple[Instance, Path]:
    """Two hosts, with a directory of the machine in them: writable at /srv/rw, read-only at /srv/ro."""
    directory = tmp_path_factory.mktemp("shared")
    hosts.up("--bind", f"{directory}:/srv/rw", "--bind", f"{directory}:/srv/ro:ro", SUITE, "pair-1", "pair-2")
    return hosts, directory


def isolated(top: Path, number: int, setup: str = ":") -> Iterator[Instance]:
    """An instance in namespaces of its own for network and mounts, with an empty /run and forwarding off."""
    # /run/mount is where mount(8) keeps its notes.
    script = (
        "mount -t tmpfs tmpfs /run && mkdir /run/mount && ip link set lo up && echo 0 >/proc/sys/net/ipv4/ip_forward"
    )
    holder = subprocess.Popen(
        [
            "unshare",
            "--net",
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-ec",
            f"{script}; {setup}; echo ready; exec cat",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None and holder.stdout.readline() == "ready\n"
    instance = Instance(top, number, ("nsenter", "--target", str(holder.pid), "--net", "--mount", "--"))
    try:
        yield instance
    finally:
        instance.run("down", "--all")
        holder.communicate()  # its input ends, and so does it


@pytest.fixture
def island(tmp_path: Path) -> Iterator[Instance]:
    yield from isolated(tmp_path / "top", 1)


@pytest.fixture
def cgroup2_island(tmp_path: Path) -> Iterator[Instance]:
    """The same on what looks like a machine with cgroup version 2 only."""
    yield from isolated(tmp_path / "top", 2, "findmnt -rno TARGET -t cgroup | xargs -r -n1 umount")


# ------------------------------------------------------------------------------------------------- hosts that are up


def test_systemd_runs_and_exec_passes_everything_on(pair: tuple[Instance, Path]) -> None:
    hosts, _directory = pair
    assert hosts.out("exec", "pair-1", "systemctl", "is-system-running") == "running"
    assert hosts.out("exec", "pair-1", "cat", "/proc/1/comm") == "systemd"
    assert hosts.out("exec", "pair-1", "sh", "-c", 'echo "$LANG $HOME $1"', "sh", "a  b") == "C.UTF-8 /root a  b"
    assert hosts.run("exec", "pair-1", "sh", "-c", "exit 7", expect=7).stdout == ""
    fed = subprocess.run(
        [str(HOSTS), "exec", "pair-2", "tr", "a-z", "A-Z"],
        check=True,
        env=hosts.env,
        input="fed",
        capture_output=True,
        text=True,
    )
    assert fed.stdout == "FED"


def test_list_and_inventory_say_what_is_up(pair: tuple[Instance, Path]) -> None:
    hosts, _directory = pair
    first, second = hosts.row("pair-1"), hosts.row("pair-2")
    assert {first["address"], second["address"]} == {f"{hosts.net}.10", f"{hosts.net}.11"}
    assert (first["source"], first["state"], first["boots"]) == (SUITE, "up", 1)
    assert Path(f"/proc/{first['pid']}/comm").read_text() == "systemd\n"
    assert first["address"] in hosts.out("list")
    line = next(line for line in hosts.out("inventory").splitlines() if line.startswith("pair-2 "))
    assert f"ansible_host={second['address']}" in line
    assert f"ansible_ssh_common_args='-F {hosts.out('ssh-config')}'" in line


def test_ssh_by_name_and_by_address(pair: tuple[Instance, Path]) -> None:
    hosts, _directory = pair
    assert hosts.ssh("pair-1", "hostname") == "pair-1"
    assert hosts.ssh(hosts.row("pair-2")["address"], "hostname; id -u; locale charmap") == "pair-2\n0\nUTF-8"
    assert (hosts.top / "id_ed25519").stat().st_mode & 0o777 == 0o600


def test_hosts_reach_each_other_by_name(pair: tuple[Instance, Path]) -> None:
    hosts, _directory = pair
    hosts.run("exec", "pair-1", "systemd-run", "--unit=www", "python3", "-m", "http.server", "8080", "--directory=/etc")
    fetch = ("exec", "pair-2", "curl", "-sS", "--retry", "20", "--retry-connrefused", "--retry-delay", "1")
    assert hosts.out(*fetch, "http://pair-1:8080/hostname") == "pair-1"


def test_the_machines_directory_is_there_writable_or_not(pair: tuple[Instance, Path]) -> None:
    hosts, directory = pair
    (directory / "from-the-machine").write_text("m")
    assert hosts.out("exec", "pair-1", "cat", "/srv/ro/from-the-machine", "/srv/rw/from-the-machine") == "mm"
    hosts.run("exec", "pair-2", "sh", "-c", "echo h >/srv/rw/from-a-host")
    assert (directory / "from-a-host").read_text() == "h\n"
    assert "Read-only file system" in hosts.refuse("exec", "pair-1", "touch", "/srv/ro/no")


def test_the_kernels_settings_stay_the_machines(pair: tuple[Instance, Path]) -> None:
    hosts, _directory = pair
    assert "Read-only" in hosts.refuse("exec", "pair-1", "sh", "-c", "echo 1 >/proc/sys/vm/swappiness", status=2)
    hosts.run("exec", "pair-1", "sh", "-c", "echo 1234 >/proc/sys/net/core/somaxconn")
    assert Path("/proc/sys/net/core/somaxconn").read_text() != "1234\n"


def test_limits_and_sandboxing_of_units_hold(pair: tuple[Instance, Path]) -> None:
    hosts, _directory = pair
    unit = ("exec", "pair-1", "systemd-run", "--quiet", "--wait", "--pipe", "-p", "DynamicUser=yes")
    assert hosts.out(*unit, "-p", "ProtectHome=yes", "sh", "-c", "id -u; ls /root || echo hidden").endswith("hidden")
    assert "Read-only" in hosts.refuse(*unit, "-p", "ProtectSystem=strict", "touch", "/opt/x")


def test_packages_install(pair: tuple[Instance, Path]) -> None:
    hosts, _directory = pair
    hosts.run("exec", "pair-2", "apt-get", "-qq", "update")
    hosts.run("exec", "pair-2", "apt-get", "-qq", "install", "--no-install-recommends", "tree")
    assert "tree" in hosts.out("exec", "pair-2", "tree", "--version")


def test_a_reboot_keeps_files_and_is_another_boot(pair: tuple[Instance, Path]) -> None:
    hosts, directory = pair
    boot_id = ("exec", "pair-1", "cat", "/proc/sys/kernel/random/boot_id")
    before = hosts.out(*boot_id)
    hosts.run("exec", "pair-1", "sh", "-c", "echo kept >/var/lib/kept; echo 192.0.2.1 gone >>/etc/hosts")
    hosts.run("exec", "pair-1", "systemctl", "reboot")
    until(lambda: hosts.row("pair-1")["boots"] == 2, "the second boot")
    hosts.run("wait", "pair-1")
    assert hosts.out(*boot_id) != before
    assert hosts.out("exec", "pair-1", "cat", "/var/lib/kept") == "kept"
    assert "192.0.2.1 gone" in hosts.out("exec", "pair-1", "cat", "/etc/hosts")
    (directory / "after").write_text("a")
    assert hosts.out("exec", "pair-1", "cat", "/srv/rw/after") == "a"
    assert "Read-only" in hosts.refuse("exec", "pair-1", "touch", "/srv/ro/no")
    assert hosts.ssh("pair-1", "getent hosts pair-2").startswith(hosts.row("pair-2")["address"])


def test_hosts_that_come_later_are_known_by_name_and_forgotten_when_they_go(pair: tuple[Instance, Path]) -> None:
    hosts, _directory = pair
    first, second = (
        hosts.start("up", SUITE, "late-1"),
        hosts.start("up", "--address", f"{hosts.net}.77", SUITE, "late-2"),
    )
    for process in (first, second):
        assert process.wait(timeout=60) == 0, process.communicate()
    hosts.run("wait", "late-1", "late-2")
    assert len({row["address"] for row in hosts.rows()}) == 4
    assert hosts.row("late-2")["address"] == f"{hosts.net}.77"
    for name in ("pair-1", "late-1"):
        assert hosts.out("exec", name, "getent", "hosts", "late-2").startswith(f"{hosts.net}.77")
    hosts.run("down", "late-1", "late-2")
    assert "late" not in hosts.out("exec", "pair-1", "cat", "/etc/hosts")
    assert "late" not in Path(hosts.out("ssh-config")).read_text()
    assert {row["name"] for row in hosts.rows()} == {"pair-1", "pair-2"}


def test_a_connection_ends_with_its_host(hosts: Instance) -> None:
    hosts.up(SUITE, "brief")
    command = ["ssh", "-F", hosts.out("ssh-config"), "brief", "echo there; sleep 100"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ssh:
        assert ssh.stdout is not None and ssh.stdout.readline() == "there\n"
        hosts.run("down", "brief")
        assert ssh.wait(timeout=5) == 255


# ------------------------------------------------------------------------------------------------------------ layers


def test_a_layer_keeps_what_a_host_had(hosts: Instance) -> None:
    hosts.up(SUITE, "maker")
    machine_id = hosts.out("exec", "maker", "cat", "/etc/machine-id")
    hosts.run("exec", "maker", "sh", "-c", "echo ready >/opt/ready; rm /etc/cron.d/.placeholder; useradd made")
    hosts.run("save", "maker", "prepared")
    assert "maker" not in {row["name"] for row in hosts.rows()}
    hosts.up("prepared", "user-1", "user-2")
    for name in ("user-1", "user-2"):
        assert hosts.ssh(name, "hostname; cat /opt/ready; id -un made") == f"{name}\nready\nmade"
        assert hosts.out("exec", name, "ls", "-A", "/etc/cron.d").find(".placeholder") == -1
    assert len({machine_id, *(hosts.out("exec", name, "cat", "/etc/machine-id") for name in ("user-1", "user-2"))}) == 3
    assert f"layer on {SUITE}" in hosts.out("layers")

    assert "used by the host user-1, the host user-2" in hosts.refuse("forget", "prepared")
    hosts.run("exec", "user-1", "sh", "-c", "echo more >/opt/more")
    hosts.run("save", "user-1", "second")
    assert "used by the host user-2, the layer second" in hosts.refuse("forget", "prepared")
    hosts.up("second", "user-3")
    assert hosts.out("exec", "user-3", "cat", "/opt/ready", "/opt/more") == "ready\nmore"
    hosts.run("down", "user-2", "user-3")
    hosts.run("forget", "second")
    hosts.run("forget", "prepared")
    assert "layer" not in hosts.out("layers")


# -------------------------------------------------------------------------------------------------- what goes wrong


def test_wait_says_why_a_host_does_not_come_up(hosts: Instance) -> None:
    hosts.up(SUITE, "slow")
    unit = "[Unit]\\nBefore=multi-user.target\\n[Service]\\nType=oneshot\\nExecStart=/bin/sleep 99\\n"
    install = f"printf '{unit}[Install]\\nWantedBy=multi-user.target\\n' >/etc/systemd/system/stuck.service"
    hosts.run("exec", "slow", "sh", "-c", f"{install}; systemctl -q enable stuck; systemctl reboot")
    until(lambda: hosts.row("slow")["boots"] == 2 and hosts.row("slow")["state"] == "up", "the second boot")
    said = hosts.refuse("wait", "--timeout", "3", "slow")
    assert "host 'slow' did not come up: it is starting after 3 s" in said
    assert "stuck.service" in said.partition("--- jobs")[2].partition("---")[0]
    assert "systemd[1]" in said.partition("--- end of the journal")[2]
    hosts.run("down", "slow")


def test_wait_tells_failed_units(hosts: Instance) -> None:
    hosts.up(SUITE, "partly")
    hosts.run("exec", "partly", "sh", "-c", "systemd-run -q --unit=broken --wait false", expect=1)
    said = hosts.run("wait", "partly").stderr
    assert "host 'partly' is up, but units have failed: broken.service" in said
    hosts.run("down", "partly")


def test_wait_does_not_wait_for_a_host_that_is_off(hosts: Instance) -> None:
    hosts.up(SUITE, "tired")
    hosts.run("exec", "tired", "systemctl", "poweroff")
    until(lambda: hosts.row("tired")["state"] == "off", "power off")
    begin = time.monotonic()
    assert "host 'tired' did not come up: it is off" in hosts.refuse("wait", "tired")
    assert time.monotonic() - begin < 10
    assert "host 'tired' is off, not up" in hosts.refuse("exec", "tired", "true")
    hosts.run("down", "tired")


REFUSED = [
    (("up", "noble-wat", "a"), 1, "unknown suite or layer 'noble-wat': suites are"),
    (("up", SUITE), 2, "at least one NAME"),
    (("up", SUITE, "Big"), 1, "'Big' is no host name"),
    (("up", SUITE, "a", "a"), 1, "given twice"),
    (("up", SUITE, "pair-1"), 1, "'pair-1' exists already"),
    (("up", "--address", "192.0.2.9", SUITE, "a"), 1, "--address '192.0.2.9': expected"),
    (("up", "--address", "NET.10", SUITE, "a"), 1, "another host has it"),
    (("up", "--address", "NET.20", SUITE, "a", "b"), 1, "--address is for one host"),
    (("up", "--bind", "/nowhere:/srv/x", SUITE, "a"), 1, "no directory /nowhere"),
    (("up", "--bind", "/etc:/proc/x", SUITE, "a"), 1, "not below /proc"),
    (("up", "--bind", "/etc:/", SUITE, "a"), 1, "that is not /"),
    (("up", "--bind", "/etc:/srv/../proc", SUITE, "a"), 1, "expected an absolute path"),
    (("up", "--bind", "/etc:/srv/x:rx", SUITE, "a"), 1, "the mode is 'rx', expected ro or rw"),
    (("up", "--bind", "/etc", SUITE, "a"), 1, "expected SRC:DST"),
    (("up", "--what", SUITE, "a"), 2, "no option '--what'"),
    (("wait", "stranger"), 1, "unknown host 'stranger': known are pair-1 pair-2\n"),
    (("wait", "--timeout", "soon", "pair-1"), 2, "--timeout takes a number"),
    (("exec", "stranger", "true"), 1, "unknown host 'stranger': known are pair-1 pair-2\n"),
    (("down", "pair-1", "stranger"), 1, "unknown host 'stranger': known are pair-1 pair-2\n"),
    (("down", ""), 1, "unknown host ''"),
    (("down", ".."), 1, "unknown host '..'"),
    (("forget", ".."), 1, "unknown suite or layer '..'"),
    (("up", "..", "a"), 1, "unknown suite or layer '..'"),
    (("down", "--all", "pair-1"), 2, "names or --all, not both"),
    (("save", "stranger", "layer"), 1, "unknown host 'stranger'"),
    (("save", "pair-1", SUITE), 1, f"'{SUITE}' is a suite"),
    (("forget", "stranger"), 1, "unknown suite or layer 'stranger'"),
    (("forget", "../x"), 1, "unknown suite or layer '../x'"),
    (("forget", SUITE), 1, f"'{SUITE}' is used by"),
    (("base", "sarge"), 1, "unknown suite 'sarge': expected one of"),
    (("dance",), 2, "unknown command 'dance'"),
]


@pytest.mark.parametrize(("arguments", "status", "said"), REFUSED, ids=[" ".join(row[0]) for row in REFUSED])
def test_refusals_name_the_thing_and_change_nothing(
    pair: tuple[Instance, Path], arguments: tuple[str, ...], status: int, said: str
) -> None:
    hosts, _directory = pair
    before = hosts.out("list")
    real = [argument.replace("NET", hosts.net) for argument in arguments]
    assert said in hosts.refuse(*real, status=status)
    assert hosts.out("list") == before


@pytest.mark.parametrize(
    ("variable", "value"),
    [("HOSTS_NET", "10.77"), ("HOSTS_NET", "10.77.300"), ("HOSTS_BRIDGE", "much-too-long"), ("HOSTS_TOP", "relative:x")]
    + [("HOSTS_WAIT", "long"), ("HOSTS_BASE", "/a,b")],
)
def test_settings_are_checked(hosts: Instance, variable: str, value: str) -> None:
    assert f"{variable} is '{value}'" in hosts.run(
        "list", expect=1, PATH=os.environ["PATH"], **{variable: value}
    ).stderr.replace(os.getcwd() + "/", "")


def test_two_instances_do_not_disturb_each_other(pair: tuple[Instance, Path], tmp_path: Path) -> None:
    hosts, _directory = pair
    other = Instance(tmp_path / "other", 3)
    same_bridge = other.refuse("up", SUITE, "pair-1", HOSTS_BRIDGE=hosts.bridge)
    assert f"the bridge {hosts.bridge} belongs to the hosts of HOSTS_TOP={hosts.top}" in same_bridge
    same_net = other.refuse("up", SUITE, "pair-1", HOSTS_NET=hosts.net)
    assert f"the network {hosts.net}.0/24 belongs to the hosts of HOSTS_TOP={hosts.top}" in same_net
    other.up(SUITE, "pair-1")  # a name that the first one has
    assert other.row("pair-1")["pid"] != hosts.row("pair-1")["pid"]
    other.run("down", "--all")
    assert Path("/proc/sys/net/ipv4/ip_forward").read_text() == "1\n"
    assert hosts.ssh("pair-1", "hostname") == "pair-1"
    assert other.processes() == []


def test_what_others_own_is_left_alone(island: Instance) -> None:
    island.machine("ip", "link", "add", island.bridge, "type", "bridge")
    assert f"an interface {island.bridge} that is not one of ours" in island.refuse("up", SUITE, "a")
    island.run("down", "--all")
    assert island.bridge in island.machine("ip", "-br", "link")
    island.machine("ip", "link", "delete", island.bridge)
    island.machine("ip", "link", "add", "theirs", "type", "bridge")
    island.machine("ip", "address", "add", f"{island.net}.200/20", "dev", "theirs")
    island.machine("ip", "link", "set", "theirs", "up")
    assert f"already has a route to {island.net}.0/24" in island.refuse("up", SUITE, "a")
    assert island.machine("nft", "list", "ruleset") == ""


def test_the_network_is_mended_by_the_next_up(island: Instance) -> None:
    island.up(SUITE, "one")
    island.machine("nft", "flush", "ruleset")
    island.machine("ip", "link", "delete", island.bridge)
    island.up(SUITE, "two")
    island.run("exec", "two", "ping", "-c1", "-W5", "one")
    assert "masquerade" in island.machine("nft", "list", "ruleset")


# ------------------------------------------------------------------------------------------------ what is left behind


def crash_nothing(_hosts: Instance) -> None:
    """No crash at all."""


def crash_supervisor(hosts: Instance) -> None:
    os.kill(hosts.supervisor("one"), signal.SIGKILL)
    until(lambda: hosts.row("one")["state"] == "dead", "the host's end with its supervisor")


def crash_pid_1(hosts: Instance) -> None:
    os.kill(hosts.row("one")["pid"], signal.SIGKILL)
    until(lambda: "crashed" in hosts.row("one")["state"], "the host's end with its PID 1")


def crash_state(hosts: Instance) -> None:
    """Somebody removes the state while hosts run."""
    subprocess.run(["rm", "-rf", str(hosts.top / "run")], check=True)


def crash_machine(hosts: Instance) -> None:
    """What a power failure leaves: the state on disk; and another process has the supervisor's PID."""
    crash_supervisor(hosts)
    os.kill(hosts.supervisor("two"), signal.SIGKILL)
    until(lambda: hosts.processes() == [], "the end of all processes")
    hosts.machine("ip", "link", "delete", hosts.bridge)
    hosts.machine("nft", "flush", "ruleset")
    hosts.machine("sh", "-c", "rm -rf /run/baremetal-inference-hosts; echo 0 >/proc/sys/net/ipv4/ip_forward")
    for name in ("one", "two"):
        for file in ("supervisor", "leader"):
            (hosts.top / "run" / name / file).write_text(f"{os.getpid()}\n")
        assert hosts.row(name)["state"] == "dead"
    assert "exists already" in hosts.refuse("up", SUITE, "one")


@pytest.mark.parametrize("crash", [crash_nothing, crash_supervisor, crash_pid_1, crash_state, crash_machine])
def test_down_leaves_nothing(island: Instance, crash: Callable[[Instance], None]) -> None:
    before = island.traces()
    island.up(SUITE, "one", "two")
    assert island.machine("cat", "/proc/sys/net/ipv4/ip_forward") == "1\n"
    crash(island)
    island.run("down", "--all")
    assert island.traces() == before
    again = island.run("down", "--all")
    assert (again.stdout, again.stderr) == ("", "")


@pytest.mark.parametrize("delay", [0.05, 0.2, 0.4])
def test_up_that_is_interrupted_takes_everything_back(island: Instance, delay: float) -> None:
    before = island.traces()
    process = island.start("up", SUITE, "one", "two", "three", "four")
    time.sleep(delay)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does for Ctrl-C: to what the command has started, too
    status = process.wait(timeout=30)
    if status == 0:  # it was faster
        island.run("down")
    assert status in (0, 130, -signal.SIGINT)
    assert island.traces() == before


@pytest.mark.parametrize("delay", [0.1, 0.3])
def test_down_clears_up_after_an_up_that_was_killed(island: Instance, delay: float) -> None:
    before = island.traces()
    process = island.start("up", SUITE, "one", "two", "three", "four")
    time.sleep(delay)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=30)
    island.run("down", "--all")
    assert island.traces() == before


def test_a_machine_with_cgroup_version_2_only(cgroup2_island: Instance) -> None:
    before = cgroup2_island.traces()
    cgroup2_island.up(SUITE, "one")
    assert cgroup2_island.out("exec", "one", "stat", "-fc", "%T", "/sys/fs/cgroup") == "cgroup2fs"
    cgroup2_island.run("exec", "one", "systemctl", "reboot")
    until(lambda: cgroup2_island.row("one")["boots"] == 2, "the second boot")
    cgroup2_island.run("wait", "one")
    cgroup2_island.run("down", "one")
    assert cgroup2_island.traces() == before


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_build_that_is_stopped_is_no_base(tmp_path: Path, how: signal.Signals) -> None:
    instance = Instance(tmp_path / "top", 4)
    bases = tmp_path / "bases"
    process = instance.start("base", SUITE, HOSTS_BASE=str(bases))
    until((bases / f".building-{SUITE}" / "etc").exists, "the build's first files", seconds=60)
    (os.killpg if how == signal.SIGINT else os.kill)(process.pid, how)
    process.communicate(timeout=30)
    until(lambda: instance.processes() == [], "the end of the build's processes", seconds=5)
    if how == signal.SIGKILL:
        instance.run("down", "--all", HOSTS_BASE=str(bases))
    assert [path.name for path in bases.iterdir() if path.is_dir()] == []
    assert f"hosts base {SUITE}" in instance.refuse("up", SUITE, "a", HOSTS_BASE=str(bases))


def test_the_caller_is_not_held_by_files_that_hosts_keep_open(hosts: Instance) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    subprocess.run([str(HOSTS), "up", SUITE, "quiet"], env=hosts.env, close_fds=False, check=True, timeout=60)
    os.close(writer)
    assert os.read(reader, 1) == b""  # would wait for ever if the supervisor had it
    os.close(reader)
    hosts.run("down", "quiet")


# ------------------------------------------------------------------------------------------------------------- check


def test_check_finds_nothing_here(hosts: Instance) -> None:
    assert "MISSING" not in hosts.out("check")


def test_check_and_up_name_the_packages_that_are_missing(hosts: Instance, tmp_path: Path) -> None:
    for directory in ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"):
        for program in Path(directory).glob("*"):
            link = tmp_path / program.name
            if program.name not in ("nft", "mmdebstrap") and not link.is_symlink():
                link.symlink_to(program)
    said = hosts.run("check", expect=1, PATH=str(tmp_path)).stdout
    assert "MISSING  program nft\n         apt-get install nftables\n" in said
    assert "MISSING  program mmdebstrap\n         apt-get install mmdebstrap\n" in said
    assert "lacks programs: apt-get install nftables" in hosts.refuse("up", SUITE, "a", PATH=str(tmp_path))
    assert "apt-get install mmdebstrap" in hosts.refuse("base", "trixie", PATH=str(tmp_path))


def test_check_and_up_ask_for_root(hosts: Instance) -> None:
    stranger = Instance(hosts.top, 0, ("unshare", "--user"))  # mapped to nobody
    assert "MISSING  root" in stranger.run("check", expect=1).stdout
    assert "needs root" in stranger.refuse("up", SUITE, "a")


def test_check_says_what_a_bare_container_lacks(hosts: Instance) -> None:
    capabilities = "-sys_admin,-net_admin,-mknod"
    prefix = ("setpriv", f"--bounding-set={capabilities}", f"--inh-caps={capabilities}", "--")
    said = Instance(hosts.top, 0, prefix).run("check", expect=1).stdout
    assert "MISSING  namespaces" in said
    assert "a container needs --privileged" in said
    assert "MISSING  device nodes" in said


def test_help_names_every_command() -> None:
    said = subprocess.run([str(HOSTS), "--help"], capture_output=True, text=True, check=True).stdout
    script = HOSTS.read_text(encoding="utf-8")
    commands = [line.split("(")[0].removeprefix("command_") for line in script.splitlines() if line[:8] == "command_"]
    assert len(commands) == 12
    assert [name for name in commands if f"\n  {name.replace('_', '-')} " not in said.replace("\n\n", "\n")] == []


def test_the_scripts_are_clean() -> None:
    subprocess.run(["shellcheck", "--severity=style", HOSTS, HOSTS.with_name("containers")], check=True)
