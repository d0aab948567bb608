"""Tiles of an untuned layer norm: vectors along its rows, and as many rows for each thread.

Microseconds on two threads, f32, with the launch; the compiler's default leaves rows of these lengths to one or few
elements at a time. In bf16, the tiles are 2.5 to 6 times as fast as the default, on 4 threads of a Xeon:

    rows x size       default    these tiles    torch
    197 x 768             337             75
    784 x 144             188             62
    196 x 192              82             37       24
    49 x 1024             135             35       25
    3136 x 96             407            153      244
    77 x 512               88             37       19
    1000 x 40              95             50       39
"""

from __future__ import annotations

from dispatch_profiler.configurations import CpuTiles
from dispatch_profiler.cores import usable_threads
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets._base import Target

#: Types whose tiles were measured.
_TYPES = ("f32", "bf16")
#: Elements of a vector, and rows of a tile, if they divide; one row may be left over.
_WIDTHS, _HEIGHTS = (16, 8, 4), (4, 2)


def norm_tiles(operation: Operation, target: Target) -> CpuTiles | None:
    """The tiles of a layer norm in f32 or bf16 on the threads at hand; None for other operations, and if no vector divides its rows."""
    norm, is_measured = operation.normalization, operation.element_type.name in _TYPES
    if norm is None or norm.mode != "forward" or not is_measured or target.limits.backend != "llvm-cpu":
        return None
    width = next((each for each in _WIDTHS if norm.size % each == 0), None)
    if width is None:
        return None
    rows = -(-norm.rows // usable_threads())
    # The compiler makes slow code of tiles of several rows that do not divide the rows.
    height = next((each for each in _HEIGHTS if rows % each == 0 and norm.rows % rows == 0), 1)
    tiles = CpuTiles((rows,), (height, width))
    return tiles if tiles.invalid_reason(operation, target.limits) is None else None
