"""The kinds of configurations by name, for kinds that hold a configuration of another kind. `kinds` registers them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dispatch_profiler.configurations._base import Configuration
from dispatch_profiler.errors import ConfigurationError, did_you_mean

#: `Configuration.kind` -> class. Importing any module of this package imports `kinds`, which fills it.
KINDS: dict[str, type[Configuration]] = {}


def configuration_from_dict(data: Mapping[str, Any]) -> Configuration:
    """Inverse of `Configuration.to_dict`."""
    values = dict(data)
    kind = values.pop("kind")
    if kind not in KINDS:
        raise ConfigurationError(f"unknown configuration kind {kind!r}", hint=did_you_mean(kind, KINDS))
    return KINDS[kind].from_dict(values)
