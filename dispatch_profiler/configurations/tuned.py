"""The configuration that a library of tuned kernels has for an operation, under the name `tile_config_tuned`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from dispatch_profiler.configurations._base import (
    Configuration,
    Limits,
    answered_by_inner,
    configuration_from_dict,
)
from dispatch_profiler.configurations.flows import check_flags
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import Operation


@answered_by_inner(
    *(
        "provider",
        "template",
        "kernel_suffix",
        "kernel_names",
        "split_k",
        "evidence",
        "packs_weight",
        "kernel_configuration",
    ),
    *("slices", "unsupported_reason", "effective_operation", "error_bound", "flops", "multiplied", "tiling"),
    *("lowering", "lowerings", "reduced", "rejected_in", "packing", "preparation", "launch", "launches"),
    *("kernel", "kernels"),
)
@dataclass(frozen=True)
class Tuned(Configuration):
    """`inner` with `extra_flags`, in a module of its own, so that it affects no other configuration.

    `tuned_from` is the name of the operation that it was tuned for, if it was tuned for another one.
    """

    kind: ClassVar[str] = "tuned"
    yaml_key: ClassVar[str] = ""
    field_names: ClassVar[tuple[str, ...]] = ("tuned", "tuned_from")
    can_be_inner: ClassVar[bool] = False
    names_code: ClassVar[bool] = False
    is_generated: ClassVar[bool] = False

    inner: Configuration
    extra_flags: tuple[str, ...] = ()
    tuned_from: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.inner, Tuned):
            raise ConfigurationError(f"{self.inner.name} cannot be tuned again")
        if self.inner.names_code:
            raise ConfigurationError(f"{self.inner.name} names an object file, which a library may not")
        check_flags(self.extra_flags)

    @property
    def name(self) -> str:
        return "tile_config_tuned"

    @property
    def module(self) -> str:
        return "tuned"

    @property
    def flags(self) -> tuple[str, ...]:
        return (*self.inner.flags, *self.extra_flags)

    def fields(self) -> dict[str, str]:
        return {"tuned": self.inner.name, "tuned_from": self.tuned_from, **self.inner.fields()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Configuration:
        inner = configuration_from_dict(values["inner"])
        return cls(inner, tuple(values["extra_flags"]), str(values["tuned_from"]))

    def located(self, folder: Path) -> Configuration:
        return Tuned(self.inner.located(folder), self.extra_flags, self.tuned_from)

    def with_packed_weight(self, operation: Operation) -> Configuration | None:
        inner = self.inner.with_packed_weight(operation)
        return None if inner is None else replace(self, inner=inner)

    def invalid_reason(self, operation: Operation, limits: Limits) -> str | None:
        return self.inner.invalid_reason(operation, limits)
