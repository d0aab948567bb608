"""Microkernels that pack the weight in every call, for weights that change from call to call, as those of a training step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from dispatch_profiler.configurations._base import (
    Configuration,
    Limits,
    answered_by_inner,
    configuration_from_dict,
)
from dispatch_profiler.configurations.forms.builder import Barrier, Step
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import Operation


@answered_by_inner(
    *("provider", "template", "kernel_suffix", "kernel_names", "split_k", "kernel_configuration"),
    *("error_bound", "flops", "tiling"),
)
@dataclass(frozen=True)
class PackedInCalls(Configuration):
    """`inner`, a microkernel with a packed weight; each call packs the weight before the kernel reads it."""

    kind: ClassVar[str] = "packed_in_calls"
    yaml_key: ClassVar[str] = ""
    can_be_inner: ClassVar[bool] = False
    field_names: ClassVar[tuple[str, ...]] = ("distribution_tile", "vector_tile")

    inner: Configuration

    def __post_init__(self) -> None:
        if not (self.inner.packs_weight and self.inner.template):
            raise ConfigurationError(f"{self.inner.name} is no microkernel with a packed weight")

    @property
    def name(self) -> str:
        """`tile_config_packed_microkernel_14x64_1x14x32_u4_in_calls`"""
        return f"{self.inner.name}_in_calls"

    def fields(self) -> dict[str, str]:
        return self.inner.fields()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Configuration:
        return cls(configuration_from_dict(values["inner"]))

    def preparation(self, operation: Operation) -> tuple[Step, ...]:
        """No call uses what another one has packed."""
        *steps, stored = self.inner.packing(operation)
        assert isinstance(stored, Barrier)
        return (*steps, replace(stored, packs=False))

    def with_packed_weight(self, operation: Operation) -> Configuration | None:
        return self.inner

    def invalid_reason(self, operation: Operation, limits: Limits) -> str | None:
        return self.inner.invalid_reason(operation, limits)
