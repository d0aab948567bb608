"""The base of targets: compiler flags, device and hardware limits."""

from __future__ import annotations

import abc
from typing import ClassVar

from dispatch_profiler.configurations import Limits
from dispatch_profiler.operations import IN_ACCUMULATOR, ElementType, ErrorBound, Operation

#: Without this flag the compiler demotes f64 to f32.
KEEP_F64 = "--iree-input-demote-f64-to-f32=false"


class Target(abc.ABC):
    """Compiler flags, device and hardware limits. Subclasses are frozen dataclasses.

    A tree generated for one target can be compiled for another of the same `family`.
    """

    family: ClassVar[str]
    #: Name of its shipped list of configurations, which need not exist.
    shipped_list: ClassVar[str]
    #: Whether kernels add in `Operation.sums_type`. Elsewhere the compiler adds in the accumulator's type: IREE 3.13
    #: spreads sums over the threads of a workgroup, for CUDA in no type wider than 32 bits, and many GPUs lack f64.
    has_long_sums: ClassVar[bool] = False

    @classmethod
    @abc.abstractmethod
    def parse(cls, detail: str | None) -> Target:
        """Parse the text after `family:` (None without a colon). Raises TargetError if it is invalid."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name on the command line: `llvm-cpu`, `llvm-cpu:znver4`."""

    @property
    @abc.abstractmethod
    def compile_flags(self) -> tuple[str, ...]:
        """Compiler flags for this target."""

    @property
    @abc.abstractmethod
    def device_uri(self) -> str:
        """Default URI of the runtime device."""

    @property
    @abc.abstractmethod
    def limits(self) -> Limits:
        """Hardware limits that make configurations invalid."""

    @property
    def named_file(self) -> str:
        """The file that the name of the target has, relative to the current directory; empty if it has none."""
        return ""

    def flags_of(self, operation: Operation) -> tuple[str, ...]:
        """`compile_flags` for kernels of `operation`, in which the compiler demotes sums in f64 unless they are long."""
        if operation.sums_type in (None, operation.accumulator) or self.has_long_sums:
            return self.compile_flags
        return tuple(flag for flag in self.compile_flags if flag != KEEP_F64)

    def error_bound(self, operation: Operation) -> ErrorBound | None:
        """A bound on the error of sums by the compiler's code; None if the operation's own bound applies."""
        return None if self.has_long_sums or operation.sums_type is None else IN_ACCUMULATOR

    @property
    def flushes_subnormals(self) -> bool:
        """Whether kernels for a CPU flush subnormal numbers to zero; part of `fingerprint`."""
        return False

    def unsupported_reason(self, operation: Operation) -> str | None:
        """Why the compiler rejects or miscompiles `operation` for this target; None if it is supported.

        Its dispatches are generated, but reported as `Not compiled` without running the compiler.
        """
        return None

    @property
    def note(self) -> str:
        """A note to the user about the generated code; usually empty."""
        return ""

    @property
    def host(self) -> str:
        """The compiling machine's CPU, if the code depends on it; usually empty."""
        return ""

    @property
    def fingerprint(self) -> str:
        """`compile_flags` as resolved on this machine: `host` replaced by the CPU's features."""
        return " ".join(self.compile_flags)


# -- unsupported -----------------------------------------------------------------------------------

# Operations that IREE 3.13 rejects or miscompiles on some targets, with every configuration.


def wrong_f8_rounding(operation: Operation, target: str) -> str | None:
    """Why results in f8 would be wrong on `target`; None if `operation` is not affected.

    Observed on llvm-cpu and vmvx: values that round up to the smallest normal number become zero.
    Subnormal results are correct. Every step that is not exact on integers has such results: leaky_relu, hardswish,
    hardsigmoid, gelu, gelu_tanh, silu, sigmoid, tanh, and clamp with fractions. Operations whose operands are drawn
    such that no result lies there are supported.
    """
    if operation.avoids_subnormals:
        return None
    narrow = next((x.type for x in operation.results if x.type.name.startswith("f8")), None)
    if narrow is None:
        return None
    limits = narrow.finfo()
    normal, step = float(limits.smallest_normal), float(limits.smallest_subnormal)
    return (
        f"IREE 3.13 flushes {narrow.name} results from {normal - step / 2:.6g} to {normal:g} to zero on {target}: "
        "use a wider result, such as --result=f16"
    )


def _mixed_inputs(operation: Operation) -> tuple[str, list[ElementType]]:
    """The types of two operands that are multiplied, as text and as types; nothing if they have one type."""
    contraction = operation.contraction
    if contraction is None or not contraction.types.is_mixed:
        return "", []
    return contraction.types.inputs, [each.type for each in operation.operands[:2]]


def mixed_narrow_inputs(operation: Operation, target: str) -> str | None:
    """Why products of two floating-point types of at most 16 bits do not compile for a GPU; None for others.

    The compiler multiplies such operands without converting them, and then rejects its own code. It compiles two types of
    8 bits for AMD GPUs that multiply them.
    """
    names, factors = _mixed_inputs(operation)
    if (
        not factors
        or any(each.bits > 16 or each.is_integer for each in factors)
        or all(each.is_f8 for each in factors)
    ):
        return None
    return (
        f"IREE 3.13 compiles no product of {names} for {target}: "
        "use one type for both operands, or f32 for one of them"
    )


def f8_beside_f64(operation: Operation, target: str) -> str | None:
    """Why products of f8 and f64 do not compile for a CPU; None for others."""
    names, factors = _mixed_inputs(operation)
    if not (any(each.is_f8 for each in factors) and any(each.name == "f64" for each in factors)):
        return None
    return (
        f"IREE 3.13 has no conversion from f8 to f64 on {target}, which a product of {names} needs: "
        "use f32 instead of f64"
    )


def mixed_f8_inputs(operation: Operation, target: str) -> str | None:
    """Why products of f8 and another type do not compile for `target`, which multiplies two operands of one f8 type only."""
    names, factors = _mixed_inputs(operation)
    if not any(each.is_f8 for each in factors):
        return None
    return (
        f"IREE 3.13 has no conversion from f8 on {target}, which a product of {names} needs: "
        "use one type for both operands"
    )


def missing_f64_erf(operation: Operation, target: str) -> str | None:
    """Why the erf form of gelu in f64 does not compile for `target`; None if `operation` does not compute it.

    Every other step in f64 compiles, because the templates write it without erf and tanh.
    """
    contraction = operation.contraction
    if contraction is None or contraction.accumulator.name != "f64":
        return None
    if all(step.name != "gelu" for step in contraction.epilogue.steps):
        return None
    return f"IREE 3.13 has no erf in f64 on {target}, which gelu needs: use f32, or gelu_tanh"
