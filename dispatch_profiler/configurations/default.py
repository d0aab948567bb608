"""The compiler's own choice, a candidate of every operation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from dispatch_profiler.configurations._base import (
    Configuration,
    Limits,
    check_whole,
)
from dispatch_profiler.configurations.space import Axis, Space, slices_of
from dispatch_profiler.configurations.splits import (
    slices_of_long_sum,
    split_invalid_reason,
    split_suffix,
)
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import Operation


@dataclass(frozen=True)
class Default(Configuration):
    """The compiler's own choice; with `split_k`, its choice for the split product."""

    kind: ClassVar[str] = "default"
    yaml_key: ClassVar[str] = "default"

    split_k: int = 1

    def __post_init__(self) -> None:
        check_whole("split_k", self.split_k)

    @classmethod
    def space(cls, operation: Operation, limits: Limits) -> Space[Configuration] | None:
        return Space(cls, (Axis("split_k", slices_of(operation)),))

    @classmethod
    def from_yaml(cls, entry: Mapping[str, Any]) -> Configuration:
        if entry["default"] is not True:
            raise ConfigurationError(f"default must be true, but got {entry['default']!r}")
        return cls(entry.get("split_k", 1))

    @property
    def name(self) -> str:
        return "tile_config_default" + split_suffix(self.split_k)

    def slices(self, operation: Operation) -> int:
        return self.split_k if self.split_k > 1 else slices_of_long_sum(operation)

    def invalid_reason(self, operation: Operation, limits: Limits) -> str | None:
        return split_invalid_reason(operation, self.split_k)
