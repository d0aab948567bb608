"""The files beside a package: an example in C++, and what the package has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dispatch_profiler.boo.kernels import target_of
from dispatch_profiler.boo.kernels.targets import CPU
from dispatch_profiler.generator.render import environment
from dispatch_profiler.library.c_export.export import cpus_of
from dispatch_profiler.runtime.device_uri import DeviceUri
from dispatch_profiler.version import __version__

#: Versions of torch need C++17 or C++20.
_STANDARD = 20
#: dtype -> the name of its constant in ATen.
_CONSTANTS = {
    torch.float64: "kDouble", torch.float32: "kFloat", torch.float16: "kHalf", torch.bfloat16: "kBFloat16",
    torch.int64: "kLong", torch.int32: "kInt", torch.int16: "kShort", torch.int8: "kChar", torch.uint8: "kByte",
    torch.bool: "kBool", torch.complex64: "kComplexFloat", torch.complex128: "kComplexDouble",
}  # fmt: skip


def package_files(
    inputs: Sequence[Any], kernels: Sequence[tuple[str, str]], left_to_torch: Sequence[tuple[str, str]]
) -> dict[str, bytes]:
    """The files by name, for a package with these input tensors. `kernels` and `left_to_torch` are as in `ExportedModel`."""
    names = {
        "version": __version__,
        "torch": torch.__version__,
        "cpu": cpus_of([target_of(DeviceUri(CPU))]),
        "standard": _STANDARD,
        "inputs": [
            {
                "shape": tuple(each.shape),
                "strides": tuple(each.stride()),
                "type": _CONSTANTS.get(each.dtype, "kFloat"),
            }
            for each in inputs
        ],
        "kernels": list(dict.fromkeys(kernels)),
        "left_to_torch": list(dict.fromkeys(left_to_torch)),
    }
    lines = environment().overlay(trim_blocks=True, lstrip_blocks=True)
    return {
        file: lines.get_template(f"package_{file}.j2").render(**names).encode()
        for file in ("example.cpp", "CMakeLists.txt", "README.txt")
    }
