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
    #: Why the flow is not for an operation of these kinds and types; None if it is.
    rejects: Callable[[Operation], str | None] = lambda operation: None
    #: Forms whose kernels the compiler rejects with these flags.
    rejected_forms: tuple[str, ...] = ()
    #: The bytes of vectors for which the flow has no kernels.
    lacks_vectors: tuple[int, ...] = ()


def _without_padded_channels(operation: Operation) -> str | None:
    geometry = operation.convolution
    if geometry is None or geometry.variant != "depthwise" or not geometry.is_nhwc:
        return "is for depthwise convolutions, forward and in nhwc"
    return None if any((*geometry.padding, *geometry.padding_after)) else "needs padding"


def _unless_tiled(operation: Operation) -> str | None:
    """The compiler leaves other convolutions as they are, and results are wrong where images are the last axis."""
    geometry = operation.convolution
    if geometry is None or geometry.mode != "forward" or geometry.groups > 1 or max(geometry.dilation) > 1:
        return "is for forward convolutions without groups and dilation"
    images, filters = {geometry.input_layout, geometry.output_layout}, geometry.filter_layout
    if not images <= _TILED_IMAGES or filters not in _TILED_FILTERS:
        return "is for images in nhwc and nchw, with filters in hwcf, fhwc and fchw"
    if min(geometry.channels, geometry.filters, *geometry.filter_size, *geometry.output_size) == 1:
        return "needs several channels, filters, and taps and output pixels along each axis"
    return None


_TILED_IMAGES, _TILED_FILTERS = frozenset(("nhwc", "nchw")), frozenset(("hwcf", "fhwc", "fchw"))


def _unless_inner_tiled(operation: Operation) -> str | None:
    """The compiler fails on batches, which slices are, and on vectors that are read in each row of the result."""
    slices = slices_of_long_sum(operation)
    if slices > 1:
        return f"has no slices, but a sum of this length has {slices}"
    (result,) = operation.results
    if any(len(each.shape) < len(result.shape) for each in operation.operands):
        return "is for epilogues without a vector such as a bias"
    return None


_DATA_TILING = "--iree-opt-data-tiling"
_TILED_OPERATIONS = "--iree-dispatch-creation-experimental-set-data-tiling-ops"

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
    # Packs operands for the CPU's instructions, such as those that multiply pairs of bf16.
    "inner_tiled": FlowRow(
        (_DATA_TILING, "--iree-llvmcpu-enable-ukernels=none", "--iree-llvmcpu-enable-inner-tiled"),
        ("matmul",),
        ("f32", "f64", "f16", "bf16", "i8"),
        Evidence("executable-configurations", "iree_codegen.inner_tiled"),
        _unless_inner_tiled,
    ),
    # Packs images and filters, and computes the convolution with IREE's microkernel.
    "tiled_convolutions": FlowRow(
        (_DATA_TILING, f"{_TILED_OPERATIONS}=convolution", "--iree-llvmcpu-enable-ukernels=all"),
        ("conv2d",),
        ("f32",),
        Evidence("executable-targets", "iree_uk_conv_nchwc"),
        _unless_tiled,
        rejected_forms=("blocked",),
        lacks_vectors=(32,),
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
        if limits.vector_bytes in row.lacks_vectors:
            return f"the flow {self.flow} has no kernel with vectors of {limits.vector_bytes} bytes"
        reason = row.rejects(operation)
        return reason and f"the flow {self.flow} {reason}"

    def rejected_in(self, form: str) -> str | None:
        """See `Configuration.rejected_in`."""
        rejected = form in FLOWS[self.flow].rejected_forms
        return f"the compiler rejects the flow {self.flow} in the form {form}" if rejected else None


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
#: Flags that apply to all compilations of a process.
_OF_PROCESSES = (_TILED_OPERATIONS.lstrip("-"), "iree-codegen-tuning-spec-path")
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


def apply_to_processes(flags: Iterable[str]) -> bool:
    """Whether one of `flags` is no option of a single compilation: the compiler has to run as a command."""
    return any(flag.lstrip("-").partition("=")[0] in _OF_PROCESSES for flag in flags)


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
