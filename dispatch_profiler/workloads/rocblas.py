"""A call in a log of rocBLAS -> the fields of a call of hipBLASLt, which computes the same column-major product.

    - { rocblas_function: "rocblas_sgemm", transA: 'N', transB: 'T', M: 8, N: 8, K: 8, alpha: 1, lda: 8, ..., call_count: 3 }

`ROCBLAS_LAYER=4` logs such lines. Functions without `_ex` have their type in their name, and store D in place of C.
rocBLAS logs alpha and beta as 0, 1, -1, or 2 for any other value; kernels take as long with any factor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from dispatch_profiler.errors import UnsupportedFeature, short_repr
from dispatch_profiler.workloads.hipblaslt import POINTERS, field_name

#: The field that a line of rocBLAS begins with.
FUNCTION = "rocblas_function"
_PREFIX = "rocblas_"
_PRODUCT = re.compile(r"(?P<type>[hsdcz]?)gemm(?P<batched>_batched|_strided_batched|)(?P<ex>_ex|)(?:_64)?")
_TYPES = {"h": "f16_r", "s": "f32_r", "d": "f64_r"}
#: Flags that choose among kernels of the same arithmetic, by name and as bits.
_HARMLESS_FLAGS = frozenset({"", "none", "use_cu_efficiency", "check_solution_index", "0", "2", "8", "10"})
_MOST_SHOWN = 60


def rocblas_fields(fields: Mapping[str, str]) -> dict[str, str]:
    """The fields of a call as hipBLASLt names them, with its function `matmul`.

    Raises UnsupportedFeature, with the function's name, for anything but products of real matrices.
    """
    name = fields[FUNCTION].strip()
    match = _PRODUCT.fullmatch(name.removeprefix(_PREFIX).casefold())
    if match is None or bool(match["type"]) == bool(match["ex"]):
        raise UnsupportedFeature(
            f"{name[:_MOST_SHOWN]}: only matrix products are supported (rocblas_sgemm, dgemm, hgemm and gemm_ex, also "
            "batched)"
        )
    if match["type"] and match["type"] not in _TYPES:
        raise UnsupportedFeature(f"{name[:_MOST_SHOWN]}: complex types are not supported")
    if (flags := fields.get("flags", "").strip()) not in _HARMLESS_FLAGS:
        raise UnsupportedFeature(f"{name}: flags={flags[:_MOST_SHOWN]}: other arithmetic is not supported")
    return _fields(fields, match)


def _fields(fields: Mapping[str, str], match: re.Match[str]) -> dict[str, str]:
    found = {field_name(name): value for name, value in fields.items() if name != FUNCTION}
    if match["type"]:
        type_ = _TYPES[match["type"]]
        found |= dict.fromkeys(("a_type", "b_type", "c_type", "d_type", "compute_type"), type_)
        found |= {f"{prefix}d": found[f"{prefix}c"] for prefix in ("ld", "stride_") if f"{prefix}c" in found}
    if not match["batched"]:
        found["batch_count"] = "1"
    elif match["batched"] == "_batched":
        found["batch_mode"] = POINTERS
    return {**found, "function": "matmul"}


def trace_reason(line: str) -> str:
    """The reason why a line of rocBLAS's trace log (`ROCBLAS_LAYER=1`) has no operation; empty for other lines."""
    match = re.fullmatch(r"(rocblas_\w+)(?:,.*)?", line)
    if match is None:
        return ""
    return f"{short_repr(match[1])[1:-1]}: a line of a trace; log the calls with ROCBLAS_LAYER=4"
