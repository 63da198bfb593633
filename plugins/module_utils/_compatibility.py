# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""Can this engine run with this driver on these GPUs; if not, why, and which pairs can. Pure: today is told, not read."""

from __future__ import annotations

import datetime
import re
import typing as t
from dataclasses import dataclass

from ansible_collections.baremetal.inference.plugins.module_utils._compatibility_data import (
    ARCHITECTURES,
    BRANCHES,
    CHECKED,
    CUDA_MAJORS,
    ENGINE_RELEASES,
    FEATURE,
    FORWARD_BRANDS,
    FORWARD_COMPATIBILITIES,
    OPEN_NEVER,
    OPEN_ONLY,
    UNKNOWN_CAPABILITY,
    UNLISTED_ENDED_BELOW,
    UNLISTED_ENDED_BY,
    Architecture,
    Branch,
    ForwardCompatibility,
)

Facts = t.Mapping[str, t.Any]

# A change of driver takes a maintenance window: said this many months ahead.
SOON_MONTHS = 6
ENABLE = "VLLM_ENABLE_CUDA_COMPATIBILITY"
FOLDER = "VLLM_CUDA_COMPATIBILITY_PATH"

_HOST_KEYS = ("driver", "gpus", "python", "open_modules", "environments", "compat_folders")
_DRIVER = re.compile(r"[1-9][0-9]{2}(\.[0-9]+){0,3}")
_TWO_NUMBERS = re.compile(r"[0-9]+\.[0-9]+")
_MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_ARCHITECTURES = {known.name: known for known in ARCHITECTURES}
_BRANCHES = {known.number: known for known in BRANCHES}


class CompatibilityError(ValueError):
    """What was asked makes no sense; the text says what and what was expected."""


def _pair(text: str) -> tuple[int, int]:
    first, second = text.split(".")
    return int(first), int(second)


def _month(text: str) -> str:
    year, month = text.split("-")[:2]
    return f"{_MONTHS[int(month) - 1]} {year}"


def _months_until(month: str, today: str) -> int:
    (year, number), (now_year, now_number) = ((int(part) for part in text.split("-")[:2]) for text in (month, today))
    return (year - now_year) * 12 + number - now_number


def driver_branch_minimum(cuda: str) -> int:
    """The oldest branch that runs this CUDA without a compatibility package."""
    major = _pair(cuda)[0]
    for known in CUDA_MAJORS:
        if known.major == major:
            return known.driver_branch_minimum
    majors = ", ".join(str(known.major) for known in CUDA_MAJORS)
    raise CompatibilityError(
        f"cuda is '{cuda}', but the collection's data (of {CHECKED}) has drivers for CUDA {majors} only."
    )


def branch_of(driver: str) -> int:
    return int(driver.split(".", maxsplit=1)[0])


def branch_state(number: int, today: str) -> dict[str, t.Any]:
    """What is known of a branch: ``kind``, ``end_of_life`` (YYYY-MM), ``ended`` (None: not known), ``months_left``."""
    known = _BRANCHES.get(number)
    if known is None:
        ended = number < UNLISTED_ENDED_BELOW and _months_until(UNLISTED_ENDED_BY, today) <= 0
        return {"kind": None, "end_of_life": None, "ended": True if ended else None, "months_left": None}
    if known.end_of_life is None:
        return {"kind": known.kind, "end_of_life": None, "ended": None, "months_left": None}
    left = _months_until(known.end_of_life, today)
    return {"kind": known.kind, "end_of_life": known.end_of_life, "ended": left <= 0, "months_left": max(left, 0)}


def branch_words(branch: Branch) -> str:
    until = f", until {_month(branch.end_of_life)}" if branch.end_of_life else ""
    return f"{branch.number} ({branch.kind}{until})"


def is_data_center(gpu: Facts) -> bool | None:
    """Whether NVIDIA lets this GPU use forward compatibility; None where that depends on the very model."""
    told = gpu.get("data_center")
    return FORWARD_BRANDS.get(str(gpu.get("brand"))) if told is None else bool(told)


@dataclass(frozen=True)
class _Engine:
    release: str
    cuda: str
    capability: str | None
    python: tuple[str, str] | None

    @property
    def cuda_major(self) -> int:
        return _pair(self.cuda)[0]

    def __str__(self) -> str:
        return f"vLLM {self.release}, built for CUDA {self.cuda},"


@dataclass(frozen=True)
class _Gpus:
    """GPUs of one kind."""

    words: str
    architecture: Architecture | None
    capability: str | None
    data_center: bool | None

    def driver_problem(self, branch: int) -> str | None:
        known = self.architecture
        if known is None:
            return None
        if known.first_driver_branch is not None and branch < known.first_driver_branch:
            return (
                f"{self.words} needs a driver of branch {known.first_driver_branch} or newer, which is the first for"
                f" {known.name.capitalize()}, and the driver is of branch {branch}."
            )
        if known.last_driver_branch is not None and branch > known.last_driver_branch:
            return (
                f"{self.words} needs a driver of branch {known.last_driver_branch} or older, which is the last for"
                f" {known.name.capitalize()}, and the driver is of branch {branch}."
            )
        return None

    def engine_problem(self, engine: _Engine) -> str | None:
        known = self.architecture
        if known is not None and known.last_cuda_major is not None and known.last_cuda_major < engine.cuda_major:
            return (
                f"{self.words} cannot run {engine} on any driver: CUDA {known.last_cuda_major} is the last for"
                f" {known.name.capitalize()}."
            )
        if self.capability and engine.capability and _pair(self.capability) < _pair(engine.capability):
            return (
                f"{self.words} cannot run vLLM {engine.release}, which needs compute capability {engine.capability} or"
                " higher."
            )
        return None

    def modules_problem(self, open_modules: bool | None) -> str | None:
        known = self.architecture
        if known is None or open_modules is None:
            return None
        if open_modules and known.open_modules == OPEN_NEVER:
            return (
                f"{self.words} does not work with the open kernel modules, which begin with Turing: install the"
                " proprietary ones."
            )
        if not open_modules and known.open_modules == OPEN_ONLY:
            return (
                f"{self.words} works with the open kernel modules alone, and the proprietary ones are wanted or"
                " installed: install the open ones."
            )
        return None


@dataclass(frozen=True)
class _Host:
    driver: str | None
    gpus: tuple[_Gpus, ...]
    python: str | None
    open_modules: bool | None
    environments: tuple[Facts, ...]
    compat_folders: frozenset[str]

    @property
    def branch(self) -> int | None:
        return None if self.driver is None else branch_of(self.driver)


def judge(engine: t.Any, host: t.Any, today: t.Any) -> dict[str, t.Any]:
    """All of it.

    ``engine`` has ``engine`` (its release), ``cuda`` and, where known, ``compute_capability_minimum`` and ``python`` (from,
    and below). ``host`` may have ``driver`` (version or branch, None for no driver), ``gpus`` (as gpu_info has them; of a
    host without a driver at least ``architecture`` and ``data_center``), ``python``, ``open_modules`` (whether the kernel
    modules are or will be the open ones), ``environments`` (one mapping for each engine) and ``compat_folders`` (those of
    the result's ``compat_folders`` that are there). ``today`` is a date, YYYY-MM-DD.
    """
    problems: list[str] = []
    wanted = _engine(engine, problems)
    found = _host(host, problems)
    day = _today(today, problems)
    if wanted is None or found is None or day is None or problems:
        raise CompatibilityError(" ".join(problems))
    minimum = driver_branch_minimum(wanted.cuda)
    forward = next((known for known in FORWARD_COMPATIBILITIES if known.cuda == wanted.cuda), None)
    warnings: list[str] = []
    with_driver = _driver_problems(wanted, found, minimum, forward, warnings)
    with_engine = [text for gpus in found.gpus for text in [gpus.engine_problem(wanted)] if text]
    others = [text for gpus in found.gpus for text in [gpus.modules_problem(found.open_modules)] if text]
    others += _needless_help(found, minimum, forward, warnings) + _python_problems(wanted, found)
    warnings += _unknown_gpus(found) + _life_cycle(found, minimum, day, advise=not with_driver)
    pairs: list[dict[str, t.Any]] = []
    if with_driver or with_engine:
        if not with_engine:
            pairs += _driver_pairs(found, minimum, day)
            pairs += _forward_pairs(found, minimum, forward)
        pairs += _engine_pairs(wanted, found)
    problems = with_driver + with_engine + others
    return {
        "ok": not problems,
        "problems": problems,
        "warnings": warnings,
        "pairs": pairs,
        "driver_branch_minimum": minimum,
        "compat_folders": _wanted_folders(found, forward),
        "message": _message(problems, pairs, bool(with_driver or with_engine)),
    }


# ---- What was asked --------------------------------------------------------------------------------------------------


def _engine(engine: t.Any, problems: list[str]) -> _Engine | None:
    if not isinstance(engine, t.Mapping):
        problems.append(f"engine is {engine!r:.80}, but must be a mapping with engine and cuda.")
        return None
    before = len(problems)
    release, cuda = engine.get("engine"), engine.get("cuda")
    if not isinstance(release, str) or not release:
        problems.append(f"engine.engine is {release!r}, but must be the engine's release, such as '0.33.0'.")
    if not isinstance(cuda, str) or not _TWO_NUMBERS.fullmatch(cuda):
        problems.append(f"engine.cuda is {cuda!r}, but must be a CUDA version in quotes, such as '13.0'.")
    else:
        try:
            driver_branch_minimum(cuda)
        except CompatibilityError as error:
            problems.append(f"engine.{error}")
    capability = engine.get("compute_capability_minimum")
    if capability is not None and not (isinstance(capability, str) and _TWO_NUMBERS.fullmatch(capability)):
        problems.append(
            f"engine.compute_capability_minimum is {capability!r}, but must be a compute capability in quotes, such as '7.5'."
        )
    python = engine.get("python")
    if python is not None and not (
        isinstance(python, (list, tuple))
        and len(python) == 2
        and all(isinstance(item, str) and _TWO_NUMBERS.fullmatch(item) for item in python)
    ):
        problems.append(
            f"engine.python is {python!r}, but must be two versions in quotes, from and below, such as ['3.11', '3.15']."
        )
    if len(problems) > before:
        return None
    return _Engine(str(release), str(cuda), capability, None if python is None else (python[0], python[1]))


def _host(host: t.Any, problems: list[str]) -> _Host | None:
    if not isinstance(host, t.Mapping):
        problems.append(f"host is {host!r:.80}, but must be a mapping with some of {', '.join(_HOST_KEYS)}.")
        return None
    before = len(problems)
    unknown = sorted(str(key) for key in host if key not in _HOST_KEYS)
    if unknown:
        problems.append(f"host has {', '.join(unknown)}, but knows only {', '.join(_HOST_KEYS)}.")
    driver: t.Any = host.get("driver")
    # A branch is easily written without quotes.
    driver = str(driver) if isinstance(driver, int) and not isinstance(driver, bool) else driver
    if driver is not None and not (isinstance(driver, str) and _DRIVER.fullmatch(driver)):
        problems.append(
            f"host.driver is {driver!r}, but must be a driver's version such as '580.159.04', its branch, or null for none."
        )
    python = host.get("python")
    if python is not None and not (isinstance(python, str) and re.match(r"[0-9]+\.[0-9]+(\.|$)", python)):
        problems.append(f"host.python is {python!r}, but must be a version in quotes, such as '3.12', or null.")
    open_modules = host.get("open_modules")
    if open_modules is not None and not isinstance(open_modules, bool):
        problems.append(f"host.open_modules is {open_modules!r}, but must be true, false or null.")
    environments = host.get("environments") or []
    if not isinstance(environments, (list, tuple)) or not all(isinstance(item, t.Mapping) for item in environments):
        # Not shown: environments hold secrets.
        problems.append("host.environments must be a list of mappings, one for each engine.")
    folders = host.get("compat_folders") or []
    if not isinstance(folders, (list, tuple)) or not all(isinstance(item, str) for item in folders):
        problems.append(f"host.compat_folders is {folders!r}, but must be a list of paths.")
    gpus = _gpus(host.get("gpus") or [], problems)
    if len(problems) > before:
        return None
    return _Host(driver, gpus, python, open_modules, tuple(environments), frozenset(folders))


def _gpus(gpus: t.Any, problems: list[str]) -> tuple[_Gpus, ...]:
    if not isinstance(gpus, (list, tuple)):
        problems.append(f"host.gpus is {gpus!r:.80}, but must be a list of GPUs as gpu_info has them.")
        return ()
    kinds: dict[tuple[t.Any, ...], list[str]] = {}
    for position, gpu in enumerate(gpus):
        if not isinstance(gpu, t.Mapping):
            problems.append(f"host.gpus[{position}] is {gpu!r:.80}, but must be a mapping.")
            continue
        capability, architecture = gpu.get("compute_capability"), gpu.get("architecture")
        if capability is not None and not (isinstance(capability, str) and _TWO_NUMBERS.fullmatch(capability)):
            problems.append(
                f"host.gpus[{position}].compute_capability is {capability!r}, but must be a version in quotes, such as '8.0'."
            )
            continue
        if architecture is not None and not isinstance(architecture, str):
            problems.append(
                f"host.gpus[{position}].architecture is {architecture!r}, but must be a name, such as ampere."
            )
            continue
        kind = (gpu.get("name"), architecture, capability, is_data_center(gpu))
        label = gpu.get("pci_bus_id") or gpu.get("uuid") or gpu.get("index")
        kinds.setdefault(kind, []).append("" if label is None else str(label))
    return tuple(
        _Gpus(
            _gpu_words(name, architecture, capability, labels), _generation(architecture, capability), capability, able
        )
        for (name, architecture, capability, able), labels in kinds.items()
    )


def _gpu_words(name: t.Any, architecture: str | None, capability: str | None, labels: list[str]) -> str:
    what = ", ".join(
        text for text in (architecture or "", f"compute capability {capability}" if capability else "") if text
    )
    where = ", ".join(label for label in labels if label)
    return f"GPU {name or 'of unknown name'}" + "".join(f" ({text})" for text in (what, where) if text)


def _generation(architecture: str | None, capability: str | None) -> Architecture | None:
    if architecture is not None or capability is None or _pair(capability) >= _pair(UNKNOWN_CAPABILITY):
        return _ARCHITECTURES.get(architecture or "")
    older = [known for known in ARCHITECTURES if _pair(known.compute_capability) <= _pair(capability)]
    return older[-1] if older else None


def _today(today: t.Any, problems: list[str]) -> str | None:
    try:
        return datetime.date.fromisoformat(today).isoformat()
    except (TypeError, ValueError):
        problems.append(f"today is {today!r}, but must be a date as text, such as '{CHECKED}'.")
        return None


# ---- Problems --------------------------------------------------------------------------------------------------------


def _driver_problems(
    engine: _Engine, host: _Host, minimum: int, forward: ForwardCompatibility | None, warnings: list[str]
) -> list[str]:
    branch = host.branch
    if branch is None:
        return [f"This host has no NVIDIA driver. {engine} needs one of branch {minimum} or newer."]
    problems = [text for gpus in host.gpus for text in [gpus.driver_problem(branch)] if text]
    too_old = (
        f"The NVIDIA driver of this host is {host.driver}. {engine} needs branch {minimum} or newer"
        if branch < minimum
        else ""
    )
    asking = [environment for environment in host.environments if _asks(environment)]
    if not too_old:
        return problems
    if not asking:
        return [f"{too_old}.", *problems]
    if forward is None:
        return [
            f"{too_old}; no compatibility package for CUDA {engine.cuda} is known, so {ENABLE} is no help.",
            *problems,
        ]
    if len(asking) < len(host.environments):
        problems.append(
            f"{too_old}, and {ENABLE} is set for {len(asking)} of {len(host.environments)} engines only: set it for all."
        )
    if branch not in forward.accepted_branches:
        accepted = ", ".join(map(str, forward.accepted_branches))
        problems.append(f"{too_old}, and {forward.package} is known to work with branches {accepted} only.")
    for gpus in host.gpus:
        if gpus.data_center is False:
            problems.append(
                f"{too_old}, and {ENABLE} is no help: {gpus.words} is no data-center GPU, and CUDA refuses"
                f" {forward.package} there (error 803 or 804)."
            )
        elif gpus.data_center is None:
            warnings.append(
                f"{forward.package} works with data-center GPUs and some RTX cards; whether {gpus.words} is one of them is not"
                " known."
            )
    if any(not _folders(environment, forward) & host.compat_folders for environment in asking):
        places = ", ".join(sorted({place for item in asking for place in _folders(item, forward)}))
        problems.append(
            f"{too_old}, and {ENABLE} is set, but there is no folder {places}, and the engine would start without its"
            f" libraries: install the package {forward.package}."
        )
    if not problems:
        warnings.append(
            f"The driver, {host.driver}, is older than branch {minimum}: {engine} runs on it with the libraries of"
            f" {forward.package}."
        )
    return problems


def _needless_help(host: _Host, minimum: int, forward: ForwardCompatibility | None, warnings: list[str]) -> list[str]:
    branch = host.branch
    if forward is None or branch is None or branch < minimum or not any(map(_asks, host.environments)):
        return []
    if branch > forward.built_from_branch and forward.folder in host.compat_folders:
        return [
            f"{ENABLE} is set, and {forward.folder} has the libraries of branch {forward.built_from_branch}: the driver,"
            f" {host.driver}, is newer and refuses them (CUDA error 803). It needs no help: remove the variable."
        ]
    warnings.append(f"{ENABLE} is set, and the driver, {host.driver}, needs no such help: remove the variable.")
    return []


def _asks(environment: Facts) -> bool:
    # As the engine reads it.
    return str(environment.get(ENABLE, "0")).strip().lower() in ("1", "true")


def _folders(environment: Facts, forward: ForwardCompatibility) -> set[str]:
    own = environment.get(FOLDER)
    return {forward.folder, str(own)} if own else {forward.folder}


def _wanted_folders(host: _Host, forward: ForwardCompatibility | None) -> list[str]:
    if forward is None:
        return []
    return sorted({place for item in host.environments if _asks(item) for place in _folders(item, forward)})


def _python_problems(engine: _Engine, host: _Host) -> list[str]:
    if engine.python is None or host.python is None:
        return []
    lowest, beyond = engine.python
    if _pair(lowest) <= _pair(".".join(host.python.split(".")[:2])) < _pair(beyond):
        return []
    return [f"The Python is {host.python}. vLLM {engine.release} needs {lowest} or newer, below {beyond}."]


# ---- Warnings --------------------------------------------------------------------------------------------------------


def _unknown_gpus(host: _Host) -> list[str]:
    return [
        f"{gpus.words}: of its generation the collection's data (of {CHECKED}) knows nothing, so whether driver and engine"
        " support it is not judged."
        for gpus in host.gpus
        if gpus.architecture is None
    ]


def _life_cycle(host: _Host, minimum: int, today: str, *, advise: bool) -> list[str]:
    branch = host.branch
    if branch is None:
        return []
    state = branch_state(branch, today)
    kind = f" ({state['kind']})" if state["kind"] else ""
    subject = f"Driver branch {branch}{kind}"
    if state["ended"]:
        when = f"in {_month(state['end_of_life'])}" if state["end_of_life"] else f"before {_month(UNLISTED_ENDED_BY)}"
        text = f"{subject} reached the end of its life {when}: it gets no more fixes, of security neither."
    elif state["months_left"] is not None and state["months_left"] <= SOON_MONTHS:
        text = (
            f"{subject} reaches the end of its life in {_month(state['end_of_life'])}; after that it gets no more fixes, of"
            " security neither."
        )
    elif state["kind"] == FEATURE:
        text = f"{subject} is for trying what is new: it ends within months, without a date that is known beforehand."
    elif state["kind"] is None:
        return [f"{subject} is not in the collection's data (of {CHECKED}): how long it gets fixes is not known."]
    else:
        return []
    # Where the driver must change anyway, the pairs say to which.
    better = advise and [
        branch_words(known)
        for known in _living(host, minimum, today)
        if known.number > branch and (known.end_of_life or "") > (state["end_of_life"] or "")
    ]
    return [f"{text} Plan the change to branch {' or '.join(better)}." if better else text]


# ---- Pairs that can work ---------------------------------------------------------------------------------------------


def _living(host: _Host, minimum: int, today: str) -> list[Branch]:
    """Branches that are worth installing: they run the engine and these GPUs, and get fixes for a known time."""
    return [
        known
        for known in BRANCHES
        if known.number >= minimum
        and known.kind != FEATURE
        and branch_state(known.number, today)["ended"] is False
        and not any(gpus.driver_problem(known.number) for gpus in host.gpus)
    ]


def _driver_pairs(host: _Host, minimum: int, today: str) -> list[dict[str, t.Any]]:
    return [
        {
            "kind": "driver",
            "branch": known.number,
            "end_of_life": known.end_of_life,
            "text": f"driver branch {branch_words(known)}",
        }
        for known in _living(host, minimum, today)
        if known.number != host.branch
    ]


def _forward_pairs(host: _Host, minimum: int, forward: ForwardCompatibility | None) -> list[dict[str, t.Any]]:
    branch = host.branch
    if forward is None or branch is None or branch >= minimum or branch not in forward.accepted_branches:
        return []
    if not host.gpus or not all(gpus.data_center for gpus in host.gpus):
        return []
    if any(gpus.driver_problem(branch) for gpus in host.gpus):
        return []
    return [
        {
            "kind": "cuda_compat",
            "branch": branch,
            "package": forward.package,
            "environment": {ENABLE: "1"},
            "text": f"driver {host.driver} as it is, with the package {forward.package} installed and {ENABLE} set to '1' in the"
            " environment of every engine (vllm_service_env)",
        }
    ]


def _engine_pairs(wanted: _Engine, host: _Host) -> list[dict[str, t.Any]]:
    branch = host.branch
    if branch is None or any(gpus.driver_problem(branch) for gpus in host.gpus):
        return []
    pairs = []
    for release in ENGINE_RELEASES:
        older = _Engine(release.engine, release.cuda, release.compute_capability_minimum, None)
        minimum = driver_branch_minimum(release.cuda)
        if older.cuda == wanted.cuda or branch < minimum or any(gpus.engine_problem(older) for gpus in host.gpus):
            continue
        pairs.append(
            {
                "kind": "engine",
                "branch": branch,
                "engine": release.engine,
                "wheel": release.wheel,
                "cuda": release.cuda,
                "text": f"driver {host.driver} as it is, with vLLM {release.engine} built for CUDA {release.cuda}"
                f" ({release.wheel}), which needs branch {minimum} or newer; this collection does not install it",
            }
        )
    return pairs


def _message(problems: list[str], pairs: list[dict[str, t.Any]], pairs_wanted: bool) -> str:
    lines = list(problems)
    if pairs:
        lines.append(f"What can work (as known on {CHECKED}):")
        lines += [f"- {pair['text']}" for pair in pairs]
    elif pairs_wanted:
        lines.append(f"No driver or engine that would work here is known (as of {CHECKED}): take other GPUs.")
    return "\n".join(lines)
