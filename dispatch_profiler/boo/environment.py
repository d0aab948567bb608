"""The environment variables `BOO_*` and `TURBINE_*`. Only this module reads them, each time they are needed.

BOO_CACHE_ON              0: kernels are not kept in files (default: 1)
BOO_CACHE_DIR             folder of compiled kernels (default: the cache of the command `compile`)
BOO_TUNING_SPEC_PATH      library of tuned kernels (a folder or a shipped name), whose entries come before those of the
                          shipped library for the hardware, or a tuning spec; empty: neither library
                          (default: the shipped library)
BOO_USE_BACKWARD_KERNELS  1: kernels of this package also compute gradients (default: 0)
BOO_AUTOTUNE              what compiled models measure if no option is given. quick: the kernels of each region and
                          torch, and each graph with and without our regions; 1: also whole graphs, computed in several
                          ways; 0: nothing (default: quick)
BOO_FREEZE                1: weights are frozen (see `dispatch_profiler.boo.refreeze`) unless an option says otherwise
                          (default: 0)
BOO_BACKGROUND            1: backends of torch.compile compile kernels in another process, unless an option says otherwise
                          (default: 0)
BOO_MISSES                file to which operations are added, as a workload for `tune`, that are launched without an entry
                          of the library (default: none)
BOO_PROGRESS              0: no line on standard error says how far the compile of a model has come (default: 1, once it takes
                          some seconds)
BOO_CPU_LEVEL             compile kernels for CPUs of this level, such as x86-64-v3 (default: for this machine's CPU)
BOO_FLUSH_SUBNORMALS      1: kernels for CPUs treat subnormal numbers as zero (default: 0, as in eager torch)
BOO_RELEASE_TORCH_THREADS 0: torch's OpenMP threads are left spinning while chains of launches run (default: 1)
TURBINE_LOG_LEVEL         level of the logger `dispatch_profiler.boo`, such as DEBUG
TURBINE_DEBUG             log_level=LEVEL: the same
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from dispatch_profiler.errors import UsageError, did_you_mean, short_repr
from dispatch_profiler.targets import LEVELS
from dispatch_profiler.targets.cpu import host_cpu

LOGGER = "dispatch_profiler.boo"
#: The variable that names tuned configurations.
TUNING_VARIABLE = "BOO_TUNING_SPEC_PATH"
_SUBNORMALS = "BOO_FLUSH_SUBNORMALS"
_LEVEL = "BOO_CPU_LEVEL"
_AUTOTUNE = "BOO_AUTOTUNE"
_MISSES = "BOO_MISSES"
#: The value of `autotune` that measures the kernels of each region.
QUICK: Literal["quick"] = "quick"
#: What is measured when a model is compiled. `quick`: kernels of each region, and each graph with and without our regions;
#: True: also whole graphs, computed in several ways; False: nothing.
Autotune = bool | Literal["quick"]
_FLAGS = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
#: Items of TURBINE_DEBUG, of which only the level has an effect here.
_DEBUG_ITEMS = ("log_level", "asserts", "runtime_trace_dir")


@dataclass(frozen=True)
class LaunchSettings:
    """Where kernels are kept, which tuned configurations they use, and whether they flush subnormal numbers to zero.

    Without a `cache_folder`, kernels are kept in memory only. `tuning` is a library or a tuning spec, empty for no
    tuning; None means the shipped library for the hardware. `cpu` is `host`, or the level of the instructions that
    kernels for CPUs may use.
    """

    cache_folder: Path | None
    tuning: str | None
    flushes_subnormals: bool = False
    cpu: str = "host"


def launch_settings() -> LaunchSettings:
    """The settings in the environment. Raises UsageError for an invalid value."""
    return _settings(settings_state())


#: `os.environ` without conversions from and to bytes, which take longer than all other lookups of a launch together.
_RAW: Any = getattr(os.environ, "_data", os.environ)
_FREEZE = "BOO_FREEZE"
_FREEZE_KEY = os.fsencode(_FREEZE) if _RAW is not os.environ else _FREEZE
_STATE_NAMES = tuple(
    os.fsencode(name) if _RAW is not os.environ else name
    for name in (
        "BOO_CACHE_ON",
        "BOO_CACHE_DIR",
        TUNING_VARIABLE,
        _SUBNORMALS,
        _LEVEL,
        "XDG_CACHE_HOME",
        "HOME",
    )
)


def settings_state() -> tuple[object, ...]:
    """The variables that `launch_settings` reads: equal states have equal settings. Takes less than 1 us."""
    return tuple(map(_RAW.get, _STATE_NAMES))


@lru_cache(maxsize=16)
def _settings(_state: tuple[object, ...]) -> LaunchSettings:
    """The settings in the environment, whose state is the key of this function's cache."""
    from dispatch_profiler.command import folder, user_cache  # imported here: it is slow to import

    tuning, flushes_subnormals = os.environ.get(TUNING_VARIABLE), _flag(_SUBNORMALS, default=False)
    cache_folder = None
    if _flag("BOO_CACHE_ON", default=True):
        given = os.environ.get("BOO_CACHE_DIR")
        cache_folder = folder(given) if given else user_cache()
    return LaunchSettings(cache_folder, tuning, flushes_subnormals, _cpu())


def misses_file() -> Path | None:
    """The file that collects operations without an entry of the library; None without one."""
    given = os.environ.get(_MISSES)
    return Path(given).expanduser().absolute() if given else None


def _cpu() -> str:
    level = os.environ.get(_LEVEL)
    if not level:
        return "host"
    levels, own = list(LEVELS), host_cpu().level
    usable = levels[: levels.index(own) + 1] if own else []
    if level not in usable:
        raise UsageError(
            f"{_LEVEL} must be a level of this CPU's instructions, but is {short_repr(level)}",
            hint=f"available: {', '.join(usable) or 'none'}",
        )
    return level


def uses_backward_kernels() -> bool:
    """Whether kernels of this package compute gradients. Raises UsageError for an invalid value."""
    return _flag("BOO_USE_BACKWARD_KERNELS", default=False)


def autotunes() -> Autotune:
    """What is measured when a model is compiled, if no option is given. Raises UsageError for an invalid value."""
    value = os.environ.get(_AUTOTUNE) or QUICK
    if value.lower() == QUICK:
        return QUICK
    if value.lower() not in _FLAGS:
        raise UsageError(f"{_AUTOTUNE} must be quick, 0 or 1, but is {short_repr(value)}")
    return _FLAGS[value.lower()]


def freezes_weights() -> bool:
    """Whether weights are frozen unless an option says otherwise. Raises UsageError for an invalid value."""
    return _RAW.get(_FREEZE_KEY) is not None and _flag(_FREEZE, default=False)


def compiles_in_background() -> bool:
    """Whether kernels of compiled models are compiled in another process unless an option says otherwise.

    Raises UsageError for an invalid value.
    """
    return _flag("BOO_BACKGROUND", default=False)


def shows_progress() -> bool:
    """Whether a long compile of a model says how far it has come. Raises UsageError for an invalid value."""
    return _flag("BOO_PROGRESS", default=True)


def releases_torch_threads() -> bool:
    """Whether chains of launches end torch's threads first. Raises UsageError for an invalid value."""
    return _flag("BOO_RELEASE_TORCH_THREADS", default=True)


def _flag(name: str, *, default: bool) -> bool:
    value = os.environ.get(name)
    if not value:
        return default
    if value.lower() not in _FLAGS:
        raise UsageError(f"{name} must be 0 or 1, but is {short_repr(value)}")
    return _FLAGS[value.lower()]


def configure_logging() -> None:
    """Set the logger's level from the environment; without a level there, the logger keeps the program's.

    Messages go to standard error if the program has no handlers. Raises UsageError for an invalid value.
    """
    level = _log_level(os.environ.get("TURBINE_LOG_LEVEL"), os.environ.get("TURBINE_DEBUG"))
    if level is None:
        return
    logger = logging.getLogger(LOGGER)
    logger.setLevel(level)
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())


@lru_cache(maxsize=16)
def _log_level(level: str | None, debug: str | None) -> int | None:
    """The level in TURBINE_LOG_LEVEL, else in TURBINE_DEBUG, else None."""
    items = _debug_items(debug or "")
    name, variable = (level, "TURBINE_LOG_LEVEL") if level else (items.get("log_level"), "TURBINE_DEBUG")
    if not name:
        return None
    if name.upper() not in _LEVELS:
        raise UsageError(
            f"{variable}: unknown log level {short_repr(name)}", hint=did_you_mean(name, _LEVELS)
        )
    return int(getattr(logging, name.upper()))


def _debug_items(text: str) -> Mapping[str, str]:
    """`log_level=DEBUG,asserts` -> {"log_level": "DEBUG", "asserts": ""}"""
    items: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = item.partition("=")
        if name not in _DEBUG_ITEMS:
            raise UsageError(
                f"TURBINE_DEBUG: unknown item {short_repr(name)}", hint=did_you_mean(name, _DEBUG_ITEMS)
            )
        items[name] = value
    return items
