"""What is compiled for and runs it. A new target is one file here and one line in `FAMILIES`."""

from __future__ import annotations

from collections.abc import Callable

from dispatch_profiler.errors import TargetError, did_you_mean
from dispatch_profiler.targets._base import Target
from dispatch_profiler.targets.cpu import CpuTarget, HostCpu, host_cpu, parse_cpuinfo
from dispatch_profiler.targets.null import NullTarget

#: family -> (the target without detail, how to read the detail behind the colon)
FAMILIES: dict[str, tuple[Target, Callable[[str], Target]]] = {
    CpuTarget.family: (CpuTarget(), CpuTarget.parse),
    NullTarget.family: (NullTarget(), NullTarget.parse),
}

DEFAULT_TARGET = CpuTarget.family


def parse_target(text: str) -> Target:
    """Read `family` or `family:detail`; TargetError lists the families that there are."""
    family, colon, detail = text.partition(":")
    if family not in FAMILIES:
        raise TargetError(f"unknown target {text!r}", hint=did_you_mean(family, FAMILIES))
    plain, parse = FAMILIES[family]
    return parse(detail) if colon else plain


__all__ = [
    "DEFAULT_TARGET",
    "FAMILIES",
    "CpuTarget",
    "HostCpu",
    "NullTarget",
    "Target",
    "host_cpu",
    "parse_cpuinfo",
    "parse_target",
]
