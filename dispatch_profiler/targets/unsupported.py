"""Operations that IREE 3.13 rejects or miscompiles on some targets, with every configuration."""

from __future__ import annotations

from dispatch_profiler.operations import Operation


def wrong_f8_rounding(operation: Operation, target: str) -> str | None:
    """Why results in f8 would be wrong on `target`; None if `operation` has none.

    Observed on llvm-cpu and vmvx: values that round up to the smallest normal number become zero.
    Subnormal results are correct. Operations whose operands are drawn such that no result lies there
    are supported.
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


def missing_f64_erf(operation: Operation, target: str) -> str | None:
    """Why gelu in f64 does not compile for `target`; None if `operation` has none."""
    contraction = operation.contraction
    if (
        contraction is None
        or contraction.epilogue.activation != "gelu"
        or contraction.accumulator.name != "f64"
    ):
        return None
    return f"IREE 3.13 has no erf in f64 on {target}, which gelu needs: use f32, or tanh or sigmoid"
