"""`sdpa`, `sdpafp16` and `sdpabfp16`: attention. MIOpenDriver has no such command; its form is that of the others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dispatch_profiler.errors import OperationError, UnsupportedFeature, WorkloadError, short_repr
from dispatch_profiler.operations import Attention, Operation
from dispatch_profiler.workloads.miopen._flags import COMMON, FORWARD, Family, Flag, Values, ignored

_CAUSALS = {"0": "", "1": "upper_left", "2": "lower_right"}
_MASKS = {"0": "", "1": "bool", "2": "add"}
_FLAGS = (
    Flag("forw", "F", "1", "1 forward", ("1",), "no operation computes the gradient of an attention"),
    Flag("batchsize", "n", "1", "sequences"),
    Flag("heads", "H", "1", "heads of queries"),
    Flag("key_heads", "G", "0", "heads of keys and values, 0 as many as of queries"),
    Flag("queries", "q", "128", "queries of a sequence"),
    Flag("keys", "k", "128", "keys of a sequence"),
    Flag("size", "d", "64", "elements of a query"),
    Flag("value_size", "v", "0", "elements of a value, 0 as many as of a query"),
    Flag("scale", "s", "0", "factor of scores, 0: 1 / sqrt(size)"),
    Flag(
        "causal",
        "c",
        "0",
        "0 no, 1 from the first query and key on, 2 from the last ones on",
        tuple(_CAUSALS),
    ),
    Flag("window", "W", "0", "keys that a query sees at most, 0 all"),
    Flag("mask", "m", "0", "0 none, 1 of keys that are seen, 2 of numbers that are added", tuple(_MASKS)),
    Flag("mask_axes", "x", "", "axes of the mask besides keys: letters of bhq"),
    Flag("heads_last", "l", "0", "1: heads behind the positions in memory", ("0", "1")),
    *COMMON,
    ignored("wall", "w"),
)


@dataclass(frozen=True)
class AttentionProblem:
    """An attention, which only has a forward."""

    kind: ClassVar[str] = "sdpa"

    attention: Attention

    @property
    def type(self) -> str:
        """See `Problem.type`."""
        return self.attention.type

    @property
    def directions(self) -> tuple[str, ...]:
        """See `Problem.directions`."""
        return (FORWARD,)

    def operation(self, direction: str) -> Operation:
        """See `Problem.operation`."""
        if direction != FORWARD:
            raise OperationError(f"an attention has no {direction}")
        return self.attention


def _read(values: Values, type_: str) -> AttentionProblem:
    attention = Attention(
        batch=values.whole("batchsize"),
        heads=values.whole("heads"),
        queries=values.whole("queries"),
        keys=values.whole("keys"),
        size=values.whole("size"),
        key_heads=values.whole("key_heads"),
        value_size=values.whole("value_size"),
        type=type_,
        scale=_number("scale", values["scale"]),
        causal=_CAUSALS[values["causal"]],
        window=values.whole("window"),
        mask=_MASKS[values["mask"]],
        mask_axes=values["mask_axes"],
        layout="bshd" if values["heads_last"] == "1" else "bhsd",
    )
    return AttentionProblem(attention)


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise WorkloadError(f"--{name}: expected a number above 0, but got {short_repr(text)}")
    return value


def _write(problem: AttentionProblem) -> dict[str, str]:
    attention = problem.attention
    if attention.logsumexp:
        raise UnsupportedFeature("sdpa has no flag for the logarithms of sums")
    causal = next(key for key, value in _CAUSALS.items() if value == attention.causal)
    mask = next(key for key, value in _MASKS.items() if value == attention.mask)
    axes = {"mask_axes": attention.mask_axes} if attention.mask_axes else {}
    return {
        "batchsize": str(attention.batch),
        "heads": str(attention.heads),
        "key_heads": str(attention.key_heads),
        "queries": str(attention.queries),
        "keys": str(attention.keys),
        "size": str(attention.size),
        "value_size": str(attention.value_size),
        "scale": repr(attention.scale),
        "causal": causal,
        "window": str(attention.window),
        "mask": mask,
        **axes,
        "heads_last": "1" if attention.layout == "bshd" else "0",
    }


FAMILY = Family(
    "sdpa", {"sdpa": "f32", "sdpafp16": "f16", "sdpabfp16": "bf16"}, _FLAGS, {"1": (FORWARD,)}, _read, _write
)
