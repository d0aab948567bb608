"""Operations that IREE 3.13 rejects or miscompiles on some targets, with every configuration."""

from __future__ import annotations

from dispatch_profiler.operations import Operation


def wrong_f8_rounding(operation: Operation, target: str) -> str | None:
    """Why results in f8 would be wrong on `target`; None if `operation` is not affected.

    Observed on llvm-cpu and vmvx: values that round up to the smallest normal number become zero.
    Subnormal results are correct. Every step that is not exact on integers has such results: leaky_relu, silu,
    gelu, gelu_tanh, sigmoid, tanh, and clamp with fractions. Operations whose operands are drawn such that no
    result lies there are supported.
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
    """Why the erf form of gelu in f64 does not compile for `target`; None if `operation` does not compute it.

    Every other step in f64 compiles, because the templates write it without erf and tanh.
    """
    contraction = operation.contraction
    if contraction is None or contraction.accumulator.name != "f64":
        return None
    if all(step.name != "gelu" for step in contraction.epilogue.steps):
        return None
    return f"IREE 3.13 has no erf in f64 on {target}, which gelu needs: use f32, or gelu_tanh"
