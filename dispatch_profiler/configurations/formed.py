"""Configurations with a form: kernels of other operations compute the operation, each configured alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from dispatch_profiler.configurations._base import (
    KINDS,
    Configuration,
    Limits,
    answered_by_inner,
    check_choice,
    check_flag,
    configuration_from_dict,
)
from dispatch_profiler.configurations.default import Default
from dispatch_profiler.configurations.forms import (
    FORMS,
    NOTHING_READ,
    Reduction,
    packed_reduction_of,
    packing_reason,
    reduction_of,
)
from dispatch_profiler.configurations.lowering import Lowering
from dispatch_profiler.configurations.space import Point, Space
from dispatch_profiler.configurations.splits import SlicedSums
from dispatch_profiler.errors import ConfigurationError, did_you_mean
from dispatch_profiler.operations import ErrorBound, Operation

_PACKED = "packed"


@answered_by_inner("split_k", "flags", "evidence")
@dataclass(frozen=True)
class Formed(Configuration):
    """One of `FORMS`, by name. `inner` configures its kernels: `Formed("im2col", CpuTiles((64, 128), (8, 32, 4)))`.

    `packed`: the weight is packed at load time, for operations whose weight is constant (see `forms.packing`).
    """

    kind: ClassVar[str] = "formed"
    yaml_key: ClassVar[str] = "form"
    field_names: ClassVar[tuple[str, ...]] = ("form",)
    can_be_inner: ClassVar[bool] = False

    form: str
    inner: Configuration = Default()
    packed: bool = False

    def __post_init__(self) -> None:
        check_choice("form", self.form, tuple(FORMS))
        check_flag("packed", self.packed)
        if not self.inner.can_be_inner:
            raise ConfigurationError(f"{self.inner.name} cannot configure the kernels of a form")

    # -- plain data ---------------------------------------------------------------------------

    @classmethod
    def from_yaml(cls, entry: Mapping[str, Any]) -> Configuration:
        rest = {key: value for key, value in entry.items() if key not in (cls.yaml_key, _PACKED)}
        packed = entry.get(_PACKED, False)
        if not rest:
            return cls(entry[cls.yaml_key], packed=packed)
        kind = next((kind for kind in _inner_kinds() if kind.yaml_key in rest), None)
        if kind is None:
            keys = ", ".join(kind.yaml_key for kind in _inner_kinds())
            raise ConfigurationError(f"'form' with {', '.join(map(repr, rest))} also needs one of {keys}")
        known = (kind.yaml_key, *kind.yaml_keys())
        for key in rest:
            if key not in known:
                raise ConfigurationError(f"unknown key {key!r}", hint=did_you_mean(key, known))
        return cls(entry[cls.yaml_key], kind.from_yaml(rest), packed)

    @classmethod
    def yaml_keys(cls) -> tuple[str, ...]:
        inner = (key for kind in _inner_kinds() for key in (kind.yaml_key, *kind.yaml_keys()))
        return (_PACKED, *inner)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Configuration:
        return cls(values["form"], configuration_from_dict(values["inner"]), values.get(_PACKED, False))

    @property
    def name(self) -> str:
        inner = self.inner.name.removeprefix("tile_config_").removeprefix("flow_config_")
        return f"tile_config_{self.label}_{inner}"

    @property
    def label(self) -> str:
        """The form in names and reports: `blocked`, `packed_blocked`."""
        return f"packed_{self.form}" if self.packed else self.form

    @property
    def packs_weight(self) -> bool:
        return self.packed

    def with_packed_weight(self, operation: Operation) -> Configuration | None:
        if self.packed or FORMS[self.form].invalid_reason(operation) or packing_reason(self.form, operation):
            return None
        return replace(self, packed=True)

    def fields(self) -> dict[str, str]:
        return {"form": self.label, **self.inner.fields()}

    @property
    def module(self) -> str:
        # Each form has its own module, so that evidence of a flow comes from its own kernels.
        return f"{self.label}_{self.inner.module}" if self.inner.module else ""

    def split(self, slices: int) -> Configuration | None:
        inner = self.inner.split(slices)
        return None if inner is None else replace(self, inner=inner)

    # -- kernels ------------------------------------------------------------------------------

    def reduced(self, operation: Operation) -> Reduction:
        return (packed_reduction_of if self.packed else reduction_of)(self.form, operation)

    def slices(self, operation: Operation) -> int:
        return 1  # only its kernels have slices

    def error_bound(self, operation: Operation) -> ErrorBound | None:
        reduction = self.reduced(operation)
        if reduction.error_bound is not None:
            return reduction.error_bound
        chain = reduction.longest_chain(self.inner.slices)
        return SlicedSums(chain) if chain < operation.accumulations else None

    def flops(self, operation: Operation) -> int:
        reduction = self.reduced(operation)
        if reduction.error_bound is None:
            return operation.flops
        return min(operation.flops, sum(kernel.flops for kernel in reduction.kernels))

    @property
    def kernel_configuration(self) -> Configuration:
        return self.inner

    def lowerings(self, operation: Operation) -> tuple[Lowering, ...]:
        return tuple(
            lowering
            for kernel in self.reduced(operation).kernels
            for lowering in self.inner.lowerings(kernel)
        )

    def invalid_reason(self, operation: Operation, limits: Limits) -> str | None:
        reason = FORMS[self.form].invalid_reason(operation, limits.backend) or self.inner.rejected_in(
            self.form
        )
        if reason:
            return reason
        kernels = reduction_of(self.form, operation).kernels
        if not kernels:
            return NOTHING_READ
        reason = packing_reason(self.form, operation) if self.packed else None
        if reason:
            return reason
        return next(filter(None, (self._kernel_reason(kernel, limits) for kernel in kernels)), None)

    def _kernel_reason(self, kernel: Operation, limits: Limits) -> str | None:
        reason = self.inner.invalid_reason(kernel, limits)
        if reason is None and self.inner.effective_operation(kernel) != kernel:
            reason = f"{self.inner.name} has another accumulator"
        return reason and f"the kernel {kernel.name} of {self.form}: {reason}"

    def unsupported_reason(self, operation: Operation, limits: Limits) -> str | None:
        kernels = self.reduced(operation).kernels
        return next(filter(None, (self.inner.unsupported_reason(k, limits) for k in kernels)), None)

    # -- the search space ---------------------------------------------------------------------

    @classmethod
    def spaces(cls, operation: Operation, limits: Limits) -> Iterator[Space[Configuration]]:
        """For each form of `operation`, the space of each kind that can configure its kernels."""
        for form in FORMS.values():
            if form.invalid_reason(operation, limits.backend) is None:
                kernels = reduction_of(form.name, operation).kernels
                for kind in _inner_kinds() if kernels else ():
                    # Of several kernels, the smallest limits the tiles most.
                    smallest = min(kernels, key=lambda kernel: kernel.accumulations)
                    for inner in kind.spaces(smallest, limits):
                        yield _FormedSpace(cls, inner.axes, form.name, inner)

    @classmethod
    def packed_spaces(cls, operation: Operation, limits: Limits) -> Iterator[Space[Configuration]]:
        """The same spaces with the weight packed, for forms that can."""
        for each in cls.spaces(operation, limits):
            if isinstance(each, _FormedSpace) and packing_reason(each.form, operation) is None:
                yield _PackedSpace(cls, each.axes, each.form, each.inner)


@dataclass(frozen=True)
class _FormedSpace(Space[Configuration]):
    """The points of `inner`, which configures the kernels of `form`."""

    form: str
    inner: Space[Configuration]

    def to_configuration(self, point: Point) -> Configuration:
        inner = self.inner if self.inner.axes is self.axes else replace(self.inner, axes=self.axes)
        return Formed(self.form, inner.to_configuration(point))


@dataclass(frozen=True)
class _PackedSpace(_FormedSpace):
    """The same points with a packed weight."""

    def to_configuration(self, point: Point) -> Configuration:
        configuration = super().to_configuration(point)
        assert isinstance(configuration, Formed)
        return replace(configuration, packed=True)


def _inner_kinds() -> list[type[Configuration]]:
    return [kind for kind in KINDS.values() if kind.can_be_inner]
