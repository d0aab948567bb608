"""Whole-flow configurations: compiler flags that change how a whole module is compiled."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from dispatch_profiler.configurations._base import (
    Configuration,
    Evidence,
    Limits,
    backend_invalid_reason,
    check_choice,
)
from dispatch_profiler.configurations.space import Axis, Space
from dispatch_profiler.configurations.splits import slices_of_long_sum
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import Operation


@dataclass(frozen=True)
class FlowRow:
    """One flow: its flags, the kinds and input types that it affects, and evidence that it took effect."""

    flags: tuple[str, ...]
    kinds: tuple[str, ...]
    types: tuple[str, ...]
    evidence: Evidence
    #: Why an operation of these kinds and types is not affected; None if it is.
    rejects: Callable[[Operation], str | None] = lambda operation: None


def _without_padded_channels(operation: Operation) -> str | None:
    geometry = operation.convolution
    if geometry is None or geometry.variant != "depthwise" or not geometry.is_nhwc:
        return "is for depthwise convolutions, forward and in nhwc"
    return None if any((*geometry.padding, *geometry.padding_after)) else "needs padding"


_DATA_TILING = "--iree-opt-data-tiling"

FLOWS: dict[str, FlowRow] = {
    # Packs operands so that each register tile is contiguous (mmt4d).
    "data_tiling": FlowRow(
        (_DATA_TILING,),
        ("matmul", "batch_matmul"),
        ("f32", "f16", "bf16", "f8E4M3FN", "i8"),
        Evidence("executable-configurations", "Mmt4dTilingExpert"),
    ),
    # Computes the packed product with IREE's hand-written microkernels.
    "ukernels": FlowRow(
        (_DATA_TILING, "--iree-llvmcpu-enable-ukernels=all"),
        ("matmul", "batch_matmul"),
        ("f32", "f16", "bf16", "i8"),
        Evidence("executable-targets", "iree_uk_mmt4d"),
    ),
    # A workgroup pads its own part of the image; otherwise, a padded image is stored first. In dense convolutions,
    # that part is too large for the stack or slower than all the padding together.
    "fused_padding": FlowRow(
        ("--iree-dispatch-creation-enable-fuse-padding-into-linalg-consumer-ops",),
        ("conv2d",),
        ("f32", "f64", "f16", "bf16", "i8"),
        Evidence("executable-configurations", "tensor.pad"),
        _without_padded_channels,
    ),
}


@dataclass(frozen=True)
class Flow(Configuration):
    """A flow of `FLOWS`, by name."""

    kind: ClassVar[str] = "flow"
    yaml_key: ClassVar[str] = "flow"

    flow: str

    def __post_init__(self) -> None:
        check_choice("flow", self.flow, tuple(FLOWS))

    @classmethod
    def space(cls, operation: Operation, limits: Limits) -> Space[Configuration] | None:
        flows = tuple(flow for flow in FLOWS if cls(flow).invalid_reason(operation, limits) is None)
        return Space(cls, (Axis("flow", flows),)) if flows else None

    @property
    def split_k(self) -> int:  # type: ignore[override]
        return 1

    def slices(self, operation: Operation) -> int:
        return slices_of_long_sum(operation)

    @property
    def name(self) -> str:
        return f"flow_config_{self.flow}"

    @property
    def flags(self) -> tuple[str, ...]:
        return FLOWS[self.flow].flags

    @property
    def module(self) -> str:
        return self.flow

    @property
    def evidence(self) -> Evidence:
        return FLOWS[self.flow].evidence

    def invalid_reason(self, operation: Operation, limits: Limits) -> str | None:
        foreign = backend_invalid_reason(f"the flow {self.flow} is", "llvm-cpu", limits)
        if foreign:
            return foreign
        row, given = FLOWS[self.flow], operation.element_type.name
        for value, known in ((operation.kind, row.kinds), (given, row.types)):
            if value not in known:
                return f"the flow {self.flow} affects {', '.join(known)}, not {value}"
        reason = row.rejects(operation)
        return reason and f"the flow {self.flow} {reason}"


# -- compiler flags --------------------------------------------------------------------------------

# The compiler flags that data may set, such as a library or a manifest of another user.
#
# The compiler has flags that run programs, load plugins, link with other tools and write files. So data may set
# only the flags listed here: the flags of configurations, and a few flags that configurations are tuned with. A
# list of dangerous flags would never be complete. Each allowed flag has a list of its values as well. Users may
# pass any flag on the command line.


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
