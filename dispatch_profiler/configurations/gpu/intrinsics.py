"""Matrix instructions of GPUs, under the names of IREE 3.13.

`NV_MMA_SYNC_F32_16x8x16_F16` multiplies 16 x 16 by 16 x 8 elements of f16 and accumulates in f32.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dispatch_profiler.operations import ElementTypes

#: Prefix of the compiler's names -> short name in configurations.
FAMILIES = {
    "NV_MMA_SYNC": "mmasync",
    "NV_WMMA": "wmma",
    "MFMA": "mfma",
    "WMMAR3": "wmmar3",
    "WMMAR4": "wmmar4",
    "WMMA": "wmma1250",
}
#: Prefix -> unit of the GPU; all others are matrix cores.
CORES = {"NV_MMA_SYNC": "tensorcore", "NV_WMMA": "tensorcore"}

#: Instructions whose inputs share a type that operations support, and that compute one product (not
#: blocks of several). The smallest of each family and type comes first.
_NAMES = """
    NV_MMA_SYNC_F32_16x8x16_F16 NV_MMA_SYNC_F16_16x8x16_F16 NV_MMA_SYNC_F32_16x8x16_BF16
    NV_MMA_SYNC_F32_16x8x32_F8E4M3FN NV_WMMA_F32_16x16x16_F16 NV_WMMA_F16_16x16x16_F16
    MFMA_F64_16x16x4_F64 MFMA_F32_16x16x4_F32 MFMA_F32_16x16x16_F16 MFMA_F32_32x32x8_F16
    MFMA_F32_16x16x32_F16 MFMA_F32_32x32x16_F16 MFMA_F32_16x16x16_BF16 MFMA_F32_32x32x8_BF16
    MFMA_F32_16x16x8_BF16 MFMA_F32_32x32x4_BF16 MFMA_F32_16x16x32_BF16 MFMA_F32_32x32x16_BF16
    MFMA_F32_16x16x32_F8E4M3FN MFMA_F32_32x32x16_F8E4M3FN MFMA_F32_16x16x128_F8E4M3FN
    MFMA_F32_32x32x64_F8E4M3FN MFMA_I32_16x16x32_I8 MFMA_I32_32x32x16_I8 MFMA_I32_16x16x16_I8
    MFMA_I32_32x32x8_I8 MFMA_I32_16x16x64_I8 MFMA_I32_32x32x32_I8
    WMMAR3_F32_16x16x16_F16 WMMAR3_F16_16x16x16_F16 WMMAR3_F32_16x16x16_BF16
    WMMAR3_BF16_16x16x16_BF16 WMMAR3_I32_16x16x16_I8
    WMMAR4_F32_16x16x16_F16 WMMAR4_F16_16x16x16_F16 WMMAR4_F32_16x16x16_BF16
    WMMAR4_BF16_16x16x16_BF16 WMMAR4_F32_16x16x16_F8E4M3FN WMMAR4_I32_16x16x16_I8
    WMMA_F32_16x16x4_F32 WMMA_F32_16x16x32_F16 WMMA_F32_16x16x32_BF16 WMMA_F16_16x16x32_F16
    WMMA_BF16_16x16x32_BF16 WMMA_F32_16x16x64_F8E4M3FN WMMA_F16_16x16x64_F8E4M3FN
    WMMA_I32_16x16x64_I8 WMMA_F32_16x16x128_F8E4M3FN WMMA_F16_16x16x128_F8E4M3FN
"""
_TYPES = {
    "F64": "f64",
    "F32": "f32",
    "F16": "f16",
    "BF16": "bf16",
    "F8E4M3FN": "f8E4M3FN",
    "I8": "i8",
    "I32": "i32",
}
_FORM = re.compile(r"(?P<family>[A-Z]\w*?)_(?P<acc>[A-Z0-9]+)_(?P<shape>\d+x\d+x\d+)_(?P<input>[A-Z0-9]+)")


@dataclass(frozen=True)
class Intrinsic:
    """One instruction: `shape` is m, n, k; `input` and `accumulator` are element types."""

    name: str
    family: str
    shape: tuple[int, int, int]
    input: str
    accumulator: str

    @staticmethod
    def parse(name: str) -> Intrinsic | None:
        """Parse a compiler's name; None if operations lack its types or it computes several blocks."""
        match = _FORM.fullmatch(name)
        if match is None or match["family"] not in FAMILIES:
            return None
        if match["acc"] not in _TYPES or match["input"] not in _TYPES:
            return None
        m, n, k = map(int, match["shape"].split("x"))
        return Intrinsic(name, match["family"], (m, n, k), _TYPES[match["input"]], _TYPES[match["acc"]])


def _parsed(name: str) -> Intrinsic:
    intrinsic = Intrinsic.parse(name)
    assert intrinsic is not None, name
    return intrinsic


INTRINSICS: dict[str, Intrinsic] = {name: _parsed(name) for name in _NAMES.split()}
#: Short names, as used in configurations.
INSTRUCTIONS = tuple(FAMILIES.values())


def intrinsics_for(instruction: str, types: ElementTypes) -> tuple[Intrinsic, ...]:
    """The instructions of a family for the inputs and the accumulator of `types`."""
    return tuple(
        each
        for each in INTRINSICS.values()
        if FAMILIES[each.family] == instruction
        and (each.input, each.accumulator) == (types.input.name, types.accumulator.name)
    )


def core_of(instruction: str) -> str:
    """The unit that executes it: `tensorcore`, or `matrixcore` on AMD."""
    family = next(family for family, short in FAMILIES.items() if short == instruction)
    return CORES.get(family, "matrixcore")
