# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make, show and change the state of simulated NVIDIA GPUs (README.md beside this file describes the state)."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import sys
import tempfile
import typing as t
from pathlib import Path

PROFILES = Path(__file__).resolve().parent / "profiles"
# Names the profile; also how this tool knows a directory of its own.
MARKER = "profile"
LOCK = "lock"

# What a boot sets anew: these are written below run/, all other keys in the GPU's folder.
LOST_AT_REBOOT = (
    "persistence_mode",
    "ecc/current",
    "ecc/volatile",
    "mig/current",
    "power/limit",
    "power/enforced_limit",
    "processes",
    "recovery_action",
    "reset_status",
    "drain_and_reset_status",
    "nvlink",
)

# Kernel driver of each kind of PCI device.
DRIVERS = {"gpu": "nvidia", "nvswitch": "nvidia-nvswitch", "bridge": "pcieport"}

Json = t.Any


class Problem(Exception):
    """Something that the user has to put right."""


def value_text(value: Json) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def write_atomically(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


@contextlib.contextmanager
def locked(directory: Path) -> t.Iterator[None]:
    """The lock that every writer of the state takes. Readers need none: files are replaced whole."""
    with open(directory / LOCK, "a", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


# ---- profiles -> files ----


def profile_names() -> list[str]:
    return sorted(path.stem for path in PROFILES.glob("*.json"))


def load_profile(name: str) -> dict[str, Json]:
    path = PROFILES / f"{name}.json"
    if not path.is_file():
        raise Problem(f"--profile: there is no profile '{name}'; there are: {', '.join(profile_names())}")
    with open(path, encoding="utf-8") as stream:
        return t.cast("dict[str, Json]", json.load(stream))


def merged(base: Json, over: Json) -> Json:
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    result = dict(base)
    for key, value in over.items():
        result[key] = merged(result[key], value) if key in result else value
    return result


def flattened(tree: dict[str, Json], names: dict[str, Json], prefix: str = "") -> dict[str, str]:
    """Nested keys become paths. A key that ends in "=" is one file of "name = value" lines."""
    files: dict[str, str] = {}
    for key, value in tree.items():
        path = prefix + key
        if key.endswith("="):
            lines = [f"{name} = {value_text(item).format(**names)}\n" for name, item in value.items()]
            files[path[:-1]] = "".join(lines)
        elif isinstance(value, dict):
            files.update(flattened(value, names, path + "/"))
        else:
            files[path] = value_text(value).format(**names) + "\n"
    return files


def link_files(profile: dict[str, Json], index: int) -> dict[str, str]:
    """The NVLinks of a GPU: what all have in common, with the far end of each."""
    links = profile.get("nvlink")
    if links is None:
        return {}
    files = {}
    ends = links["remotes"][index]
    for number, end in enumerate(ends):
        values = dict(links["link"])
        values.update(links["remote_kinds"][end["kind"]])
        values.update({key: value for key, value in end.items() if key != "kind"})
        files[f"nvlink/{number}"] = "".join(f"{key} = {value_text(value)}\n" for key, value in values.items())
    return files


def pair_files(profile: dict[str, Json], index: int, count: int) -> dict[str, str]:
    """Topology and peer-to-peer status towards the other GPUs."""
    files = {}
    levels = profile.get("topology")
    if levels is not None:
        lines = [f"gpu{other} = {levels[index][other]}\n" for other in range(count) if other != index]
        if lines:
            files["topology"] = "".join(lines)
    p2p = profile.get("p2p")
    if p2p is not None:
        for other in range(count):
            if other == index:
                continue
            linked = any(index in group and other in group for group in p2p["nvlink_groups"])
            values = p2p["linked" if linked else "other"]
            files[f"p2p/gpu{other}"] = "".join(f"{key} = {value_text(value)}\n" for key, value in values.items())
    return files


def gpu_files(profile: dict[str, Json], index: int) -> dict[str, str]:
    gpus = profile["gpus"]
    tree = merged(profile.get("gpu", {}), gpus[index])
    files = flattened(tree, {"index": index, **profile["system"]})
    files.update(link_files(profile, index))
    files.update(pair_files(profile, index, len(gpus)))
    return files


def write_sysfs(root: Path, profile: dict[str, Json]) -> None:
    """The part of /sys that a kernel shows of these GPUs: devices below their bridges, links to them by address."""
    pci = profile.get("pci")
    devices_link = root / "bus" / "pci" / "devices"
    devices_link.mkdir(parents=True)
    if pci is None:
        return
    places: dict[str, Path] = {}
    for device in pci["devices"]:
        address, parent = device["address"], device["parent"]
        above = places.get(parent)
        if above is None:
            if not parent.startswith("pci"):
                raise Problem(f"profile: pci device {address} names a parent {parent} that does not come before it")
            above = root / "devices" / parent
        place = above / address
        place.mkdir(parents=True)
        places[address] = place
        kind = device["kind"]
        attributes = merged(pci["kinds"][kind], device.get("attributes", {}))
        for name, value in attributes.items():
            (place / name).write_text(value_text(value) + "\n", encoding="utf-8")
        (devices_link / address).symlink_to(os.path.relpath(place, devices_link))
        driver = DRIVERS[kind.split("_")[0]]
        driver_place = root / "bus" / "pci" / "drivers" / driver
        driver_place.mkdir(parents=True, exist_ok=True)
        (place / "driver").symlink_to(os.path.relpath(driver_place, place))
        (driver_place / address).symlink_to(os.path.relpath(place, driver_place))
    module = root / "module" / "nvidia"
    module.mkdir(parents=True)
    (module / "version").write_text(profile["system"]["driver_version"] + "\n", encoding="utf-8")


def write_state(directory: Path, profile: dict[str, Json], run_directory: str | None) -> None:
    for key, value in profile["system"].items():
        write_plain(directory / "system" / key, value_text(value) + "\n")
    for index in range(len(profile["gpus"])):
        for path, text in gpu_files(profile, index).items():
            write_plain(directory / f"gpu{index}" / path, text)
    write_sysfs(directory / "sysfs", profile)
    if run_directory is None:
        (directory / "run").mkdir()
    else:
        (directory / "run").symlink_to(run_directory)
    write_plain(directory / MARKER, profile["name"] + "\n")
    write_plain(directory / LOCK, "")


def write_plain(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def with_first(profile: dict[str, Json], gpus: int) -> dict[str, Json]:
    """The same machine with its first GPUs alone; what is around them stays."""
    kept = profile["gpus"][:gpus]
    addresses = {gpu["pci"]["bus_id"].lower()[4:] for gpu in kept}
    devices = [
        device for device in profile["pci"]["devices"] if device["kind"] != "gpu" or device["address"] in addresses
    ]
    return {**profile, "gpus": kept, "pci": {**profile["pci"], "devices": devices}}


def create(directory: Path, name: str, run_directory: str | None, gpus: int | None, replace: bool) -> None:
    profile = load_profile(name)
    if run_directory is not None and not os.path.isabs(run_directory):
        raise Problem(f"--run-dir: '{run_directory}' must be an absolute path")
    if gpus is not None:
        if not 0 <= gpus <= len(profile["gpus"]):
            raise Problem(f"--gpus: {gpus} is not within 0 and the {len(profile['gpus'])} of profile '{name}'")
        profile = with_first(profile, gpus)
    if os.path.lexists(directory):
        is_empty = directory.is_dir() and not any(directory.iterdir())
        if not is_empty and not (directory / MARKER).is_file():
            raise Problem(f"'{directory}' is there and was not made by nvml-sim: name another directory, or remove it")
        if not is_empty and not replace:
            raise Problem(f"'{directory}' holds a state already: give --replace to make it anew, or remove it")
    directory.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f".{directory.name}-"))
    try:
        fresh.chmod(0o755)
        write_state(fresh, profile, run_directory)
        if os.path.lexists(directory):
            old = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f".{directory.name}-"))
            directory.rename(old / "state")
            fresh.rename(directory)
            shutil.rmtree(old)
        else:
            fresh.rename(directory)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


# ---- an existing state ----


def checked_directory(directory: Path) -> Path:
    if not (directory / MARKER).is_file():
        raise Problem(f"'{directory}' holds no state of nvml-sim: make one with 'nvml-sim create --profile NAME DIR'")
    return directory


def split_key(key: str) -> tuple[str, str, str | None]:
    """ "gpu0/nvlink/3#state" -> ("gpu0", "nvlink/3", "state")."""
    path, _hash, name = key.partition("#")
    parts = path.split("/")
    if len(parts) < 2 or any(part in ("", ".", "..") for part in parts) or parts[0] in ("run", "sysfs"):
        raise Problem(
            f"key: '{key}' is no key: write <folder>/<path> or <folder>/<path>#<name>, as in gpu0/power/limit,"
            " gpu0/nvlink/3#state, system/driver_version"
        )
    return parts[0], "/".join(parts[1:]), name or None


def is_lost_at_reboot(path: str) -> bool:
    return any(path == key or path.startswith(key + "/") for key in LOST_AT_REBOOT)


def read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []


def replaced_line(lines: list[str], name: str, value: str) -> list[str]:
    fresh = f"{name} = {value}"
    for number, line in enumerate(lines):
        if line.partition("=")[0].strip() == name:
            return [*lines[:number], fresh, *lines[number + 1 :]]
    return [*lines, fresh]


def set_value(directory: Path, key: str, value: str) -> None:
    folder, path, name = split_key(key)
    if "\n" in value or not value.strip():
        raise Problem(
            "value: must be one line that is not empty (!NOT_SUPPORTED or !3 make the getter answer an error)"
        )
    if folder.startswith("gpu") and not (directory / folder).is_dir():
        raise Problem(f"key: '{key}': there is no {folder} in '{directory}'")
    top = directory
    if folder.startswith("gpu") and is_lost_at_reboot(path):
        run = directory / "run"
        # After a reboot the link points to nothing.
        Path(os.path.realpath(run)).mkdir(parents=True, exist_ok=True)
        top = run
    target = top / folder / path
    if (directory / folder / path).is_dir():
        raise Problem(f"key: '{key}' is a folder: name a file in it")
    with locked(directory):
        text = value if name is None else "\n".join(replaced_line(read_lines(target), name, value))
        write_atomically(target, text + "\n")


def shown(directory: Path, prefix: str) -> list[str]:
    """All values, one a line, in the tool's own key notation."""
    values: dict[str, str] = {}
    for top in (directory, directory / "run"):
        for folder in sorted(top.glob("*")):
            if not folder.is_dir() or not (folder.name.startswith("gpu") or folder.name == "system"):
                continue
            for path in sorted(folder.rglob("*")):
                if not path.is_file() or path.name.startswith(".new-"):
                    continue
                key = str(path.relative_to(top))
                lines = [line for line in read_lines(path) if line.strip()]
                if all("=" in line for line in lines) and lines:
                    for line in lines:
                        name, _sign, value = line.partition("=")
                        values[f"{key}#{name.strip()}"] = value.strip()
                else:
                    values[key] = "; ".join(lines)
    return [f"{key} {values[key]}" for key in sorted(values, key=natural) if key.startswith(prefix)]


def natural(text: str) -> list[tuple[int, str]]:
    """Sort key: numbers in a text as numbers."""
    result: list[tuple[int, str]] = []
    digits = ""
    for letter in [*text, ""]:
        if letter.isdigit():
            digits += letter
            continue
        if digits:
            result.append((int(digits), ""))
            digits = ""
        result.append((-1, letter))
    return result


def reboot(directory: Path) -> None:
    """Lose what a reboot of the host loses."""
    run = Path(os.path.realpath(directory / "run"))
    with locked(directory):
        if run.is_dir():
            for path in run.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="nvml-sim", description=__doc__)
    commands = result.add_subparsers(dest="command", required=True)
    make = commands.add_parser("create", help="make a state directory from a profile")
    make.add_argument("--profile", required=True, metavar="NAME", help="see 'nvml-sim profiles'")
    make.add_argument("--gpus", type=int, metavar="N", help="only the first N GPUs of the profile; 0 is possible")
    make.add_argument(
        "--run-dir", metavar="PATH", help="where to keep what a reboot loses, e.g. /run/nvml-sim (default: DIR/run)"
    )
    make.add_argument("--replace", action="store_true", help="make an existing state anew")
    make.add_argument("directory", type=Path, metavar="DIR")
    commands.add_parser("profiles", help="list the profiles")
    show = commands.add_parser("show", help="print every value, as 'key value'")
    show.add_argument("directory", type=Path, metavar="DIR")
    show.add_argument("prefix", nargs="?", default="", metavar="KEY", help="only keys that begin so, e.g. gpu0/power")
    change = commands.add_parser("set", help="change one value")
    change.add_argument("directory", type=Path, metavar="DIR")
    change.add_argument("key", metavar="KEY", help="gpu0/power/limit, gpu0/nvlink/3#state, system/driver_version, ...")
    change.add_argument("value", metavar="VALUE")
    boot = commands.add_parser("reboot", help="lose what a reboot of the host loses")
    boot.add_argument("directory", type=Path, metavar="DIR")
    return result


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        if options.command == "profiles":
            for name in profile_names():
                print(f"{name:24} {load_profile(name)['description']}")
        elif options.command == "create":
            create(options.directory, options.profile, options.run_dir, options.gpus, options.replace)
        elif options.command == "set":
            set_value(checked_directory(options.directory), options.key, options.value)
        elif options.command == "reboot":
            reboot(checked_directory(options.directory))
        else:
            lines = shown(checked_directory(options.directory), options.prefix)
            if options.prefix and not lines:
                raise Problem(f"KEY: no key of '{options.directory}' begins with '{options.prefix}'")
            print("\n".join(lines))
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output has enough of it; the interpreter must not try to write the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (Problem, OSError) as error:
        print(f"nvml-sim: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
