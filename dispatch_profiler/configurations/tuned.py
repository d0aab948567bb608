"""The configuration that a library of tuned kernels has for an operation, under the name `tile_config_tuned`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from dispatch_profiler.configurations._base import (
    Configuration,
    Evidence,
    KernelObject,
    KernelSource,
    Launch,
    Limits,
    configuration_from_dict,
)
from dispatch_profiler.configurations.flows import check_flags
from dispatch_profiler.configurations.forms import Reduction, Step
from dispatch_profiler.configurations.lowering import Lowering
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import ElementType, ErrorBound, Operation


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

    # -- plain data ---------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "inner": self.inner.to_dict(),
            "extra_flags": list(self.extra_flags),
            "tuned_from": self.tuned_from,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Configuration:
        inner = configuration_from_dict(values["inner"])
        return cls(inner, tuple(values["extra_flags"]), str(values["tuned_from"]))

    def located(self, folder: Path) -> Configuration:
        return Tuned(self.inner.located(folder), self.extra_flags, self.tuned_from)

    # -- properties of the inner configuration ------------------------------------------------

    @property
    def provider(self) -> str:  # type: ignore[override]
        return self.inner.provider

    @property
    def template(self) -> str:  # type: ignore[override]
        return self.inner.template

    @property
    def kernel_suffix(self) -> str:  # type: ignore[override]
        return self.inner.kernel_suffix

    @property
    def split_k(self) -> int:  # type: ignore[override]
        return self.inner.split_k

    def slices(self, operation: Operation) -> int:
        return self.inner.slices(operation)

    @property
    def evidence(self) -> Evidence | None:
        return self.inner.evidence

    @property
    def packs_weight(self) -> bool:
        return self.inner.packs_weight

    def with_packed_weight(self, operation: Operation) -> Configuration | None:
        inner = self.inner.with_packed_weight(operation)
        return None if inner is None else replace(self, inner=inner)

    @property
    def kernel_configuration(self) -> Configuration:
        return self.inner.kernel_configuration

    def split(self, slices: int) -> Configuration | None:
        return None

    def invalid_reason(self, operation: Operation, limits: Limits) -> str | None:
        return self.inner.invalid_reason(operation, limits)

    def unsupported_reason(self, operation: Operation, limits: Limits) -> str | None:
        return self.inner.unsupported_reason(operation, limits)

    def effective_operation(self, operation: Operation) -> Operation:
        return self.inner.effective_operation(operation)

    def error_bound(self, operation: Operation) -> ErrorBound | None:
        return self.inner.error_bound(operation)

    def flops(self, operation: Operation) -> int:
        return self.inner.flops(operation)

    def multiplied(self, operation: Operation) -> ElementType:
        return self.inner.multiplied(operation)

    def tiling(self, operation: Operation) -> Lowering | None:
        return self.inner.tiling(operation)

    def lowering(self, operation: Operation) -> Lowering | None:
        return self.inner.lowering(operation)

    def lowerings(self, operation: Operation) -> tuple[Lowering, ...]:
        return self.inner.lowerings(operation)

    def reduced(self, operation: Operation) -> Reduction | None:
        return self.inner.reduced(operation)

    def packing(self, operation: Operation) -> tuple[Step, ...]:
        return self.inner.packing(operation)

    def launch(self, operation: Operation) -> Launch | None:
        return self.inner.launch(operation)

    def kernel(self, operation: Operation) -> KernelSource | KernelObject | None:
        return self.inner.kernel(operation)
