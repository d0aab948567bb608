"""The compiler flags that data may set, such as a library or a manifest of another user.

The compiler has flags that run programs, load plugins, link with other tools and write files. So data may set
only the flags listed here: the flags of configurations, and a few flags that configurations are tuned with. A
list of dangerous flags would never be complete. Each allowed flag has a list of its values as well. Users may
pass any flag on the command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from dispatch_profiler.configurations.flows import FLOWS
from dispatch_profiler.errors import ConfigurationError

#: Instructions to add to the target's, or to remove: `+avx512bf16,-amx-tile`.
FEATURES_FLAG = "--iree-llvmcpu-target-cpu-features"
_FEATURES = r"(?:[+-][a-z0-9][a-z0-9.-]*(?:,[+-][a-z0-9][a-z0-9.-]*)*)?"
_LEVELS = "O[0-3]"
#: Patterns of whole flags.
_ALLOWED = (
    *(re.escape(flag) for flag in dict.fromkeys(flag for row in FLOWS.values() for flag in row.flags)),
    f"--?{_LEVELS}",
    f"--iree-opt-level={_LEVELS}",
    f"{FEATURES_FLAG}={_FEATURES}",
)
_ALLOWED_FLAG = re.compile("|".join(_ALLOWED), re.ASCII)
#: Characters of a list of every feature of a CPU.
_LONGEST = 10_000


def refused_flag(flags: Iterable[str]) -> str | None:
    """The first of `flags` that data may not set; None if it may set all of them."""
    return next((flag for flag in flags if len(flag) > _LONGEST or not _ALLOWED_FLAG.fullmatch(flag)), None)


def check_flags(flags: Iterable[str]) -> None:
    """Raise ConfigurationError unless data may set all of `flags`."""
    refused = refused_flag(flags)
    if refused is not None:
        raise ConfigurationError(
            f"{refused[:200]!r} is not a compiler flag that a library may set",
            hint="pass it yourself: compile.py -- FLAG",
        )


def needed_features(flags: Iterable[str]) -> tuple[str, ...]:
    """The features of a CPU that `flags` add: `avx512bf16`."""
    values = (flag.partition("=")[2] for flag in flags if flag.startswith(f"{FEATURES_FLAG}="))
    names = (name for value in values for name in value.split(","))
    return tuple(name[1:] for name in names if name.startswith("+"))
