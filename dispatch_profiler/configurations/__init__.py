"""How the compiler may do an operation. A new kind is one file here and one line in `KINDS`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dispatch_profiler.configurations._base import (
    Configuration,
    Default,
    Evidence,
    Limits,
    Lowering,
    lowering_config_text,
)
from dispatch_profiler.configurations.cpu_tiles import CpuTiles
from dispatch_profiler.configurations.files import Entry, load_configurations, shipped_configurations
from dispatch_profiler.configurations.flows import FLOWS, Flow
from dispatch_profiler.errors import ConfigurationError, did_you_mean

KINDS: dict[str, type[Configuration]] = {kind.kind: kind for kind in (Default, CpuTiles, Flow)}


def configuration_from_dict(data: Mapping[str, Any]) -> Configuration:
    """Inverse of `Configuration.to_dict`."""
    values = dict(data)
    kind = values.pop("kind")
    if kind not in KINDS:
        raise ConfigurationError(f"unknown kind of configuration {kind!r}", hint=did_you_mean(kind, KINDS))
    return KINDS[kind](**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})


__all__ = [
    "FLOWS",
    "KINDS",
    "Configuration",
    "CpuTiles",
    "Default",
    "Entry",
    "Evidence",
    "Flow",
    "Limits",
    "Lowering",
    "configuration_from_dict",
    "load_configurations",
    "lowering_config_text",
    "shipped_configurations",
]
