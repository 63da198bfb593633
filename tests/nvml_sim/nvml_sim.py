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
import re
import shutil
import sys
import tempfile
import typing as t
from pathlib import Path

PROFILES = Path(__file__).resolve().parent / "profiles"
# Names the profile; also how this tool knows a directory of its own.
MARKER = "profile"
LOCK = "lock"

# What a boot sets anew: these are written below run/, all other keys in the GPU's folder. src/state.c has the same list.
LOST_AT_REBOOT = (
    "drain_and_reset_status",
    "ecc/current",
    "ecc/volatile",
    "lost",
    "mig/current",
    "nvlink",
    "persistence_mode",
    "power/enforced_limit",
    "power/limit",
    "processes",
    "recovery_action",
    "remapped_rows/pending",
    "reset_status",
)

# Of those, what lasts when the driver is unloaded and loaded again, and when a GPU is reset (src/reset.c has the latter,
# too). ECC: nvidia-smi(1) says that only a reboot is sure to change the mode.
KEPT_AT_DRIVER_LOAD = ("ecc/current", "lost", "mig/current", "recovery_action", "remapped_rows/pending")
KEPT_AT_RESET = ("ecc/current", "lost", "mig/pending", "persistence_mode")

# NVML's errors as the state names them, as in src/state.c.
ERRORS = tuple(
    """
    UNINITIALIZED INVALID_ARGUMENT NOT_SUPPORTED NO_PERMISSION ALREADY_INITIALIZED NOT_FOUND INSUFFICIENT_SIZE
    INSUFFICIENT_POWER DRIVER_NOT_LOADED TIMEOUT IRQ_ISSUE LIBRARY_NOT_FOUND FUNCTION_NOT_FOUND CORRUPTED_INFOROM
    GPU_IS_LOST RESET_REQUIRED OPERATING_SYSTEM LIB_RM_VERSION_MISMATCH IN_USE MEMORY NO_DATA VGPU_ECC_NOT_SUPPORTED
    INSUFFICIENT_RESOURCES FREQ_NOT_SUPPORTED ARGUMENT_VERSION_MISMATCH DEPRECATED NOT_READY GPU_NOT_FOUND INVALID_STATE
    RESET_TYPE_NOT_SUPPORTED UNKNOWN
    """.split()
)

# No function of NVML: the reset that nvidia-smi makes.
RESET = "gpuReset"
FAULTS = "faults"
FAULT_COUNTS = "fault_counts"
# The library beside this file: where make puts it, and where make install does.
LIBRARIES = ("build", "lib")
# What is read of the link of a device that no longer answers: all bits set.
DEAD_LINK = {"current_link_speed": "Unknown", "current_link_width": "63"}

MODULES = ("nvidia", "nvidia_modeset", "nvidia_uvm")
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


def bar1_of(profile: dict[str, Json], address: str) -> tuple[int, int]:
    """The number of the GPU at that address, and the bytes of its memory window."""
    for index, gpu in enumerate(profile["gpus"]):
        tree = merged(profile.get("gpu", {}), gpu)
        if tree["pci"]["bus_id"].lower()[4:] == address:
            return index, int(str(tree["bar1"]["total"]), 0)
    raise Problem(f"profile: pci device {address} is a GPU, and no GPU has that bus id")


def resources(number: int, bar1: int) -> str:
    """The address windows of a GPU: control registers below 4 GiB, its memory and a small window of 32 MiB above.

    Sizes and kinds as lspci shows them of an A100 (10de:20b2); the addresses are made up.
    """
    size = 1 << (bar1 - 1).bit_length()
    registers = 0xE0000000 + (number << 24)
    # Each begins at a multiple of its size, and has as much room behind it.
    memory = (number + 1) * size * 2
    windows = [
        (registers, registers + (16 << 20) - 1, 0x40200),
        (memory, memory + size - 1, 0x14220C),
        (0, 0, 0),
        (memory + size, memory + size + (32 << 20) - 1, 0x14220C),
    ]
    # Six windows, a ROM, and six of virtual functions.
    windows += [(0, 0, 0)] * (13 - len(windows))
    return "".join(f"0x{first:016x} 0x{last:016x} 0x{flags:016x}\n" for first, last, flags in windows)


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
        if kind == "gpu":
            (place / "resource").write_text(resources(*bar1_of(profile, address)), encoding="utf-8")
        (devices_link / address).symlink_to(os.path.relpath(place, devices_link))
        driver = DRIVERS[kind.split("_")[0]]
        driver_place = root / "bus" / "pci" / "drivers" / driver
        driver_place.mkdir(parents=True, exist_ok=True)
        (place / "driver").symlink_to(os.path.relpath(driver_place, place))
        (driver_place / address).symlink_to(os.path.relpath(place, driver_place))
    for name in MODULES:
        module = root / "module" / name
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


def existing_run(directory: Path) -> Path:
    """The folder that run/ is or links to; after a reboot the link points to nothing."""
    run = Path(os.path.realpath(directory / "run"))
    run.mkdir(parents=True, exist_ok=True)
    return run


def place_of(directory: Path, key: str) -> tuple[Path, str, str | None]:
    """Where a key's value belongs: the folder above it (run/ or the state itself), the path in it, the line's name."""
    folder, path, name = split_key(key)
    if folder.startswith("gpu") and not (directory / folder).is_dir():
        raise Problem(f"key: '{key}': there is no {folder} in '{directory}'")
    if (directory / folder / path).is_dir():
        raise Problem(f"key: '{key}' is a folder: name a file in it")
    lost = folder.startswith("gpu") and is_lost_at_reboot(path)
    return existing_run(directory) if lost else directory, f"{folder}/{path}", name


def write_key(top: Path, path: str, name: str | None, value: str) -> None:
    target = top / path
    text = value if name is None else "\n".join(replaced_line(read_lines(target), name, value))
    write_atomically(target, text + "\n")


def remove_key(top: Path, path: str, name: str | None) -> None:
    target = top / path
    if name is None:
        target.unlink(missing_ok=True)
        return
    kept = [line for line in read_lines(target) if line.partition("=")[0].strip() != name]
    if target.is_file():
        write_atomically(target, "".join(f"{line}\n" for line in kept))


def set_value(directory: Path, key: str, value: str) -> None:
    if "\n" in value or not value.strip():
        raise Problem(
            "value: must be one line that is not empty (!NOT_SUPPORTED or !3 make the getter answer an error)"
        )
    top, path, name = place_of(directory, key)
    with locked(directory):
        write_key(top, path, name, value)


def unset_value(directory: Path, key: str) -> None:
    top, path, name = place_of(directory, key)
    with locked(directory):
        remove_key(top, path, name)


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


# ---- what a host does with its GPUs ----


def gpu_folders(directory: Path, names: t.Sequence[str]) -> list[str]:
    """The named GPUs, or all."""
    there = sorted((path.name for path in directory.glob("gpu*") if path.is_dir()), key=natural)
    for name in names:
        if name not in there:
            raise Problem(f"GPU: there is no {name} in '{directory}'; there are: {', '.join(there)}")
    return list(names) or there


def users(directory: Path, gpu: str) -> list[str]:
    """The processes that use a GPU, as the state has them."""
    run = directory / "run" / gpu / "processes"
    lines = read_lines(run if run.is_file() else directory / gpu / "processes")
    return [line.split()[0] for line in (line.partition("#")[0].strip() for line in lines) if line]


def refuse_used(directory: Path, gpus: t.Sequence[str], what: str) -> None:
    for gpu in gpus:
        pids = users(directory, gpu)
        if pids:
            raise Problem(f"{gpu} is used by process {', '.join(pids)}, so it cannot be {what}: unset {gpu}/processes")


def forget(directory: Path, gpu: str, kept: t.Collection[str]) -> None:
    """Remove what changed since the boot, but for those keys."""
    top = Path(os.path.realpath(directory / "run")) / gpu
    for path in sorted(top.rglob("*"), reverse=True):
        if path.is_dir():
            with contextlib.suppress(OSError):
                path.rmdir()
        elif str(path.relative_to(top)) not in kept:
            path.unlink()


def reboot(directory: Path) -> None:
    """Lose what a reboot of the host loses."""
    run = Path(os.path.realpath(directory / "run"))
    with locked(directory):
        if run.is_dir():
            for path in run.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        revive_sysfs(directory)


def driver_reload(directory: Path) -> None:
    """Unload the driver and load it again."""
    with locked(directory):
        gpus = gpu_folders(directory, ())
        refuse_used(directory, gpus, "released by the driver")
        for gpu in gpus:
            forget(directory, gpu, KEPT_AT_DRIVER_LOAD)


def reset(directory: Path, names: t.Sequence[str]) -> None:
    """Reset GPUs that nothing uses."""
    with locked(directory):
        gpus = gpu_folders(directory, names)
        refuse_used(directory, gpus, "reset")
        for gpu in gpus:
            for lost in (directory / "run" / gpu / "lost", directory / gpu / "lost"):
                if lost.is_file():
                    raise Problem(f"{gpu} is lost, so it cannot be reset: reboot, or unset {gpu}/lost")
        for gpu in gpus:
            forget(directory, gpu, KEPT_AT_RESET)


# ---- what goes wrong ----


def sysfs_place(directory: Path, gpu: str) -> Path:
    bus_id = (directory / gpu / "pci" / "bus_id").read_text(encoding="utf-8").strip()
    return directory / "sysfs" / "bus" / "pci" / "devices" / bus_id.lower()[4:]


def lose(directory: Path, gpu: str, start: int | None) -> None:
    """Let a GPU fall off the bus, now or at a later call. Until a reboot the kernel goes on listing it."""
    gpu_folders(directory, [gpu])
    set_value(directory, f"{gpu}/lost", "1" if start is None else f"from {start}")
    if start is not None:
        return
    with locked(directory):
        place = sysfs_place(directory, gpu)
        for name, value in DEAD_LINK.items():
            before = directory / gpu / "sysfs_before" / name
            if not before.exists():
                write_atomically(before, (place / name).read_text(encoding="utf-8"))
            write_atomically(place / name, value + "\n")


def revive_sysfs(directory: Path) -> None:
    for before in directory.glob("gpu*/sysfs_before"):
        place = sysfs_place(directory, before.parent.name)
        for path in before.iterdir():
            write_atomically(place / path.name, path.read_text(encoding="utf-8"))
        shutil.rmtree(before)


def set_link(directory: Path, gpu: str, number: int, state: str, broken: bool) -> None:
    """Take a link down, or up again."""
    gpu_folders(directory, [gpu])
    if not (directory / gpu / "nvlink" / str(number)).is_file():
        raise Problem(f"LINK: {gpu} has no link {number}")
    path = f"{gpu}/nvlink/{number}"
    with locked(directory):
        if broken:
            write_key(directory, path, "state", "0")
            remove_key(existing_run(directory), path, "state")
        elif state == "down":
            write_key(existing_run(directory), path, "state", "0")
        else:
            write_key(directory, path, "state", "1")
            remove_key(existing_run(directory), path, "state")


def library_names() -> bytes | None:
    """The libraries that are built or installed beside this tool, to look for a name in."""
    found = [
        path.read_bytes()
        for folder in LIBRARIES
        for path in (PROFILES.parent / folder).glob("lib*.so.1")
        if path.is_file()
    ]
    return b"".join(found) if found else None


def fault_line(function: str, error: str, gpu: str | None, when: str) -> str:
    names = library_names()
    if function == "*" and error == "SUCCESS":
        raise Problem("ERROR: SUCCESS is for a function that changes something, so name it")
    if function not in ("*", RESET):
        if not re.fullmatch(r"(nvml|cu)[A-Z]\w*", function):
            raise Problem(f"FUNCTION: '{function}' is neither a function of NVML or CUDA nor *")
        if names is not None and not re.search(rb"\0%s(_v\d)?\0" % function.encode(), names):
            raise Problem(f"FUNCTION: the simulated libraries have no '{function}', so it could never fail")
    if error.isdigit():
        if not 1 <= int(error) <= 999:
            raise Problem(f"ERROR: {error} is not within 1 and 999")
    elif error not in (*ERRORS, "SUCCESS"):
        raise Problem(f"ERROR: '{error}' is neither a number nor one of SUCCESS, {', '.join(ERRORS)}")
    return " ".join([function, *([gpu] if gpu else []), "=", error, *([when] if when else [])])


def add_fault(directory: Path, function: str, error: str, gpu: str | None, when: str) -> None:
    if gpu is not None:
        gpu_folders(directory, [gpu])
    line = fault_line(function, error, gpu, when)
    with locked(directory):
        lines = read_lines(directory / FAULTS)
        # A fault that is asked for again begins to count again.
        counts = existing_run(directory) / FAULT_COUNTS
        name = re.sub(r"[=\s]", "_", line)
        remove_key(counts.parent, counts.name, name)
        write_atomically(
            directory / FAULTS, "".join(f"{kept}\n" for kept in [*(text for text in lines if text != line), line])
        )


def clear_faults(directory: Path) -> None:
    with locked(directory):
        (directory / FAULTS).unlink(missing_ok=True)
        (existing_run(directory) / FAULT_COUNTS).unlink(missing_ok=True)


def when_of(options: argparse.Namespace) -> str:
    for word in ("on", "from", "until"):
        number = getattr(options, f"{word}_call")
        if number is not None:
            return f"{word} {number}"
    return "once" if options.once else ""


def count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"'{text}': calls are counted from 1")
    return number


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
    unset = commands.add_parser("unset", help="take a value away")
    unset.add_argument("directory", type=Path, metavar="DIR")
    unset.add_argument("key", metavar="KEY")
    boot = commands.add_parser("reboot", help="lose what a reboot of the host loses")
    boot.add_argument("directory", type=Path, metavar="DIR")
    load = commands.add_parser("driver-reload", help="lose what unloading the driver loses")
    load.add_argument("directory", type=Path, metavar="DIR")
    fresh = commands.add_parser("reset", help="reset GPUs that nothing uses")
    fresh.add_argument("directory", type=Path, metavar="DIR")
    fresh.add_argument("gpus", nargs="*", metavar="GPU", help="gpu0, gpu1, ... (default: all)")
    losing = commands.add_parser("lose", help="let a GPU fall off the bus, until a reboot")
    losing.add_argument("directory", type=Path, metavar="DIR")
    losing.add_argument("gpu", metavar="GPU", help="gpu0, gpu1, ...")
    losing.add_argument("--from", dest="from_call", type=count, metavar="N", help="from the N-th call for this GPU on")
    link = commands.add_parser("link", help="take an NVLink down or up")
    link.add_argument("directory", type=Path, metavar="DIR")
    link.add_argument("gpu", metavar="GPU")
    link.add_argument("link", type=int, metavar="LINK")
    link.add_argument("state", choices=("down", "up", "broken"), help="broken: down, and no reset or reboot helps")
    fault = commands.add_parser("fault", help="let a function answer an error")
    fault.add_argument("directory", type=Path, metavar="DIR")
    fault.add_argument("function", metavar="FUNCTION", help="as in nvml.h, or * for all; without _v2 for all versions")
    fault.add_argument("error", metavar="ERROR", help="GPU_IS_LOST, NO_PERMISSION, ..., or a number")
    fault.add_argument("--gpu", metavar="GPU", help="only for this GPU: gpu0, gpu1, ...")
    when = fault.add_mutually_exclusive_group()
    when.add_argument("--once", action="store_true", help="at the next call only (default: always)")
    when.add_argument("--on", dest="on_call", type=count, metavar="N", help="at the N-th call only")
    when.add_argument("--from", dest="from_call", type=count, metavar="N", help="from the N-th call on")
    when.add_argument("--until", dest="until_call", type=count, metavar="N", help="at the first N calls")
    faults = commands.add_parser("faults", help="list the faults, or take them away")
    faults.add_argument("directory", type=Path, metavar="DIR")
    faults.add_argument("--clear", action="store_true")
    return result


def on_state(directory: Path, options: argparse.Namespace) -> None:
    """The commands that work on an existing state."""
    if options.command == "set":
        set_value(directory, options.key, options.value)
    elif options.command == "unset":
        unset_value(directory, options.key)
    elif options.command == "reboot":
        reboot(directory)
    elif options.command == "driver-reload":
        driver_reload(directory)
    elif options.command == "reset":
        reset(directory, options.gpus)
    elif options.command == "lose":
        lose(directory, options.gpu, options.from_call)
    elif options.command == "link":
        set_link(directory, options.gpu, options.link, options.state, options.state == "broken")
    elif options.command == "fault":
        add_fault(directory, options.function, options.error, options.gpu, when_of(options))
    elif options.command == "faults":
        if options.clear:
            clear_faults(directory)
        for line in read_lines(directory / FAULTS):
            print(line)
    else:
        lines = shown(directory, options.prefix)
        if options.prefix and not lines:
            raise Problem(f"KEY: no key of '{directory}' begins with '{options.prefix}'")
        print("\n".join(lines))


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        if options.command == "profiles":
            for name in profile_names():
                print(f"{name:24} {load_profile(name)['description']}")
        elif options.command == "create":
            create(options.directory, options.profile, options.run_dir, options.gpus, options.replace)
        else:
            on_state(checked_directory(options.directory), options)
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
