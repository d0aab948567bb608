"""The environment variables `BOO_*` and `TURBINE_*`. Only this module reads them, each time they are needed.

BOO_CACHE_ON              0: kernels are not kept in files (default: 1)
BOO_CACHE_DIR             folder of the kernels (default: the cache that `compile` uses)
BOO_TUNING_SPEC_PATH      library of tuned kernels (a folder or a shipped name), or a tuning spec; empty: none
                          (default: the shipped library for the hardware)
BOO_USE_BACKWARD_KERNELS  1: gradients are computed by kernels of this package, too (default: 0)
BOO_AUTOTUNE              what compiled models measure where no option says it. 0: nothing; 1: whole graphs, computed in
                          several ways (default: each region once, against torch)
BOO_FREEZE                1: weights are frozen (see `dispatch_profiler.boo.refreeze`) where nothing says otherwise
                          (default: 0)
BOO_FLUSH_SUBNORMALS      1: kernels for CPUs take subnormal numbers for zero (default: 0, as eager torch)
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
from typing import Any

from dispatch_profiler.errors import UsageError, did_you_mean, short_repr

LOGGER = "dispatch_profiler.boo"
#: The variable that names tuned configurations.
TUNING_VARIABLE = "BOO_TUNING_SPEC_PATH"
_SUBNORMALS = "BOO_FLUSH_SUBNORMALS"
_FLAGS = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
#: Items of TURBINE_DEBUG, of which only the level has an effect here.
_DEBUG_ITEMS = ("log_level", "asserts", "runtime_trace_dir")


@dataclass(frozen=True)
class LaunchSettings:
    """Where kernels are kept, which tuned configurations they use, and what they make of subnormal numbers.

    `cache_folder` is None if kernels are not kept in files. `tuning` is a library or a tuning spec, empty for none;
    None means the shipped library for the hardware.
    """

    cache_folder: Path | None
    tuning: str | None
    flushes_subnormals: bool = False


def launch_settings() -> LaunchSettings:
    """The settings in the environment. Raises UsageError for an invalid value."""
    get = os.environ.get
    home = get("XDG_CACHE_HOME"), get("HOME")
    return _settings(get("BOO_CACHE_ON"), get("BOO_CACHE_DIR"), get(TUNING_VARIABLE), get(_SUBNORMALS), home)


#: `os.environ` without conversions from and to bytes, which take longer than all else that a launch looks up.
_RAW: Any = getattr(os.environ, "_data", os.environ)
_FREEZE = "BOO_FREEZE"
_FREEZE_KEY = os.fsencode(_FREEZE) if _RAW is not os.environ else _FREEZE
_STATE_NAMES = tuple(
    os.fsencode(name) if _RAW is not os.environ else name
    for name in ("BOO_CACHE_ON", "BOO_CACHE_DIR", TUNING_VARIABLE, _SUBNORMALS, "XDG_CACHE_HOME", "HOME")
)


def settings_state() -> tuple[object, ...]:
    """What `launch_settings` reads: as long as it is the same, so are the settings. Takes less than 1 us."""
    return tuple(map(_RAW.get, _STATE_NAMES))


@lru_cache(maxsize=16)
def _settings(
    is_on: str | None, cache_folder: str | None, tuning: str | None, flushes: str | None, home: object
) -> LaunchSettings:
    """The settings in these values. `home` has those that `user_cache` reads."""
    from dispatch_profiler.command import folder, user_cache  # imported here: it is slow to import

    flushes_subnormals = _flag(_SUBNORMALS, flushes, default=False)
    if not _flag("BOO_CACHE_ON", is_on, default=True):
        return LaunchSettings(None, tuning, flushes_subnormals)
    kept = folder(cache_folder) if cache_folder else user_cache()
    return LaunchSettings(kept, tuning, flushes_subnormals)


def uses_backward_kernels() -> bool:
    """Whether gradients are computed by kernels of this package. Raises UsageError for an invalid value."""
    name = "BOO_USE_BACKWARD_KERNELS"
    return _flag(name, os.environ.get(name), default=False)


def autotunes() -> bool | None:
    """Whether graphs are measured where no option says it; None for each region. Raises UsageError."""
    name = "BOO_AUTOTUNE"
    value = os.environ.get(name)
    return _flag(name, value, default=False) if value else None


def freezes_weights() -> bool:
    """Whether weights are frozen that nothing else decides about. Raises UsageError for an invalid value."""
    value = _RAW.get(_FREEZE_KEY)
    return value is not None and _flag(_FREEZE, os.environ.get(_FREEZE), default=False)


def releases_torch_threads() -> bool:
    """Whether chains of launches end the threads of torch. Raises UsageError for an invalid value."""
    name = "BOO_RELEASE_TORCH_THREADS"
    return _flag(name, os.environ.get(name), default=True)


def _flag(name: str, value: str | None, *, default: bool) -> bool:
    if not value:
        return default
    if value.lower() not in _FLAGS:
        raise UsageError(f"{name} must be 0 or 1, but is {short_repr(value)}")
    return _FLAGS[value.lower()]


def configure_logging() -> None:
    """Give the logger the level in the environment; without one, it stays as the program has it.

    Its messages go to standard error if the program has no handlers. Raises UsageError for an invalid value.
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
    """TURBINE_LOG_LEVEL, or otherwise the level in TURBINE_DEBUG; None without either."""
    items = _debug_items(debug or "")
    name, variable = (level, "TURBINE_LOG_LEVEL") if level else (items.get("log_level"), "TURBINE_DEBUG")
    if not name:
        return None
    if name.upper() not in _LEVELS:
        hint = did_you_mean(name, _LEVELS)
        raise UsageError(f"{variable}: unknown log level {short_repr(name)}", hint=hint)
    return int(getattr(logging, name.upper()))


def _debug_items(text: str) -> Mapping[str, str]:
    """`log_level=DEBUG,asserts` -> {"log_level": "DEBUG", "asserts": ""}"""
    found: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = item.partition("=")
        if name not in _DEBUG_ITEMS:
            hint = did_you_mean(name, _DEBUG_ITEMS)
            raise UsageError(f"TURBINE_DEBUG: unknown item {short_repr(name)}", hint=hint)
        found[name] = value
    return found
