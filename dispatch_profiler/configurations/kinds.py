"""The kinds of configurations. A new kind needs one file in this folder and one line in `KINDS`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dispatch_profiler.configurations._base import KINDS, Configuration, Limits
from dispatch_profiler.configurations.cpu.amx import AmxMicrokernel
from dispatch_profiler.configurations.cpu.attention_microkernel import AttentionMicrokernel
from dispatch_profiler.configurations.cpu.cpu_tiles import CpuTiles
from dispatch_profiler.configurations.cpu.decoding_microkernel import DecodingMicrokernel
from dispatch_profiler.configurations.cpu.depthwise_gradient import DepthwiseGradient
from dispatch_profiler.configurations.cpu.dot_microkernel import DotMicrokernel
from dispatch_profiler.configurations.cpu.images_microkernel import ImagesMicrokernel
from dispatch_profiler.configurations.cpu.int4_microkernel import Int4Microkernel
from dispatch_profiler.configurations.cpu.microkernel import Microkernel
from dispatch_profiler.configurations.cpu.packed_in_calls import PackedInCalls
from dispatch_profiler.configurations.cpu.rows_microkernel import RowsMicrokernel
from dispatch_profiler.configurations.cpu.winograd import WinogradMicrokernel
from dispatch_profiler.configurations.default import Default
from dispatch_profiler.configurations.extern import Extern
from dispatch_profiler.configurations.flows import Flow
from dispatch_profiler.configurations.formed import Formed
from dispatch_profiler.configurations.gpu.mma_tiles import MmaTiles
from dispatch_profiler.configurations.gpu.simt_tiles import SimtTiles
from dispatch_profiler.configurations.space import Point, Space
from dispatch_profiler.configurations.triton.attention import TritonAttention
from dispatch_profiler.configurations.triton.rows import TritonRows
from dispatch_profiler.configurations.triton.tiles import TritonTiles
from dispatch_profiler.configurations.tuned import Tuned
from dispatch_profiler.operations import Operation

KINDS.update(
    (kind.kind, kind)
    for kind in (
        Default,
        CpuTiles,
        Microkernel,
        AmxMicrokernel,
        WinogradMicrokernel,
        PackedInCalls,
        DepthwiseGradient,
        DotMicrokernel,
        RowsMicrokernel,
        ImagesMicrokernel,
        AttentionMicrokernel,
        DecodingMicrokernel,
        Int4Microkernel,
        Flow,
        MmaTiles,
        SimtTiles,
        TritonTiles,
        TritonRows,
        TritonAttention,
        Extern,
        Formed,
        Tuned,
    )
)


def report_columns() -> tuple[str, ...]:
    """Report columns that describe a configuration: the columns of all kinds, without duplicates."""
    return tuple(dict.fromkeys(name for kind in KINDS.values() for name in kind.field_names))


def rejection_reason(configuration: Configuration, operation: Operation, limits: Limits) -> str | None:
    """Why `configuration` cannot be used for `operation` on a target with `limits`; None if it can."""
    return configuration.invalid_reason(operation, limits) or configuration.unsupported_reason(
        operation, limits
    )


def spaces(
    operation: Operation, limits: Limits, *, packed_weights: bool = False
) -> tuple[Space[Configuration], ...]:
    """The search spaces of all kinds for `operation` on a target with `limits`.

    With `packed_weights`, also the spaces of configurations that pack the weight, for operations whose weight
    is constant.
    """
    every = tuple(space for kind in KINDS.values() for space in kind.spaces(operation, limits))
    if not packed_weights:
        return every
    return (*every, *(space for kind in KINDS.values() for space in kind.packed_spaces(operation, limits)))


def draw_valid(
    among: Sequence[Space[Configuration]],
    operation: Operation,
    limits: Limits,
    rng: np.random.Generator,
    tries: int = 100_000,
) -> Iterator[Configuration]:
    """Distinct valid configurations from the spaces `among`, until `tries` points have been drawn.

    Spaces are drawn from with equal probability until all of their points have been drawn.
    """
    left: list[tuple[Space[Configuration], set[Point]]] = [(space, set()) for space in among]
    known: set[Configuration] = set()
    for _ in range(tries):
        if not left:
            return
        index = int(rng.integers(len(left)))
        space, drawn = left[index]
        point = space.draw(rng)
        if point in drawn:
            continue
        drawn.add(point)
        if len(drawn) == space.size:
            del left[index]
        configuration = space.to_configuration(point)
        if configuration not in known and rejection_reason(configuration, operation, limits) is None:
            yield configuration
        known.add(configuration)
