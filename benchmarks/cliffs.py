#!/usr/bin/env python3
"""Ordinary shapes, neither tuned nor aligned, on this CPU: launches and compiled functions against torch.

    python benchmarks/cliffs.py [--quick] [--count=N] [--first=N] [--type=TYPE] [--kinds=KIND,...] [--json=PATH]

Draws products with extents from 1 to 1100, convolutions with up to 300 filters and channels, transposed convolutions
with a stride of up to 32, and gradients of all. Of each, a launch is timed in turns with torch's own call, and
`torch.compile(backend="iree_boo")` with `torch.compile(backend="eager")`, which calls torch's operators: a call of any
compiled function first checks its guards, for longer than torch needs for a small product. Each case has a process of
its own, and is always the same for a number: `--first=17 --count=1` repeats one alone. Results are compared first.
"""

from __future__ import annotations

import itertools
import random
import sys
import tempfile
import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import FunctionType
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._model_timing import (
    check_close,
    environment,
    geometric_mean,
    highest_speedup,
    in_new_process,
    in_turns,
    speedup,
)
from benchmarks._table import INTERRUPTED, Row, at_least, at_most, exit_with, make_parser, positive, report
from dispatch_profiler.boo import ConvSignature, GEMMSignature
from dispatch_profiler.errors import OperationError

Signature = ConvSignature | GEMMSignature
COUNT, QUICK_COUNT = 300, 12
#: Operations of a case: torch takes up to some 20 ms for these on two cores.
MOST_FLOPS = 2 * 10**9
ROUNDS, SECONDS = 5, 0.05
#: What each side is compared with.
AGAINST = {"launch": "torch", "compiled": "torch, compiled"}
#: Goals: launches on average, each launch, its first call, and each compiled function.
MEAN, LAUNCH, FIRST_SECONDS, COMPILED = 0.8, 0.4, 30.0, 0.9


# -- what is drawn ---------------------------------------------------------------------------------


def extent(draw: random.Random, most: int, least: int = 1) -> int:
    """From `least` to `most`: as often from 10 to 100 as from 100 to 1000."""
    return round(least * (most / least) ** draw.random())


def product(draw: random.Random, dtype: str) -> GEMMSignature:
    """A matrix product or one of its gradients, in any layout."""
    m, n, k = (extent(draw, 1100) for _ in range(3))
    return GEMMSignature(
        a_shape=(m, k),
        b_shape=(k, n),
        transpose_a=draw.random() < 0.25,
        transpose_b=draw.random() < 0.5,
        dtype=dtype,
        mode=draw.choice(("fwd", "fwd", "a_backward", "b_backward")),
    )


def convolution(draw: random.Random, dtype: str) -> ConvSignature:
    """A convolution with up to 300 channels and filters, or one of its gradients."""
    taps, stride = draw.choice((1, 1, 3, 3, 3, 5, 7)), draw.choice((1, 1, 1, 2, 3))
    size, channels, filters = extent(draw, 112, taps), extent(draw, 300), extent(draw, 300)
    groups = draw.choice((1, 1, 1, 1, 1, channels))
    filters = groups * max(1, filters // groups)
    return _laid_out(
        draw,
        (draw.choice((1, 1, 2, 4, 8)), channels, size, size),
        (filters, channels // groups, taps, taps),
        dtype=dtype,
        stride=stride,
        padding=draw.choice((0, taps // 2)),
        groups=groups,
    )


def transposed(draw: random.Random, dtype: str) -> ConvSignature:
    """A transposed convolution with a stride of up to 32, or one of its gradients."""
    stride, size = extent(draw, 32), extent(draw, 28, 2)
    taps = draw.choice((stride, stride + 1, 2 * stride, 3, 4))
    channels, filters = extent(draw, 300), extent(draw, 300)
    return _laid_out(
        draw,
        (draw.choice((1, 1, 2)), channels, size, size),
        (channels, filters, taps, taps),
        dtype=dtype,
        stride=stride,
        padding=draw.choice((0, (taps - 1) // 2)),
        transposed=True,
    )


def _laid_out(
    draw: random.Random, image: tuple[int, ...], kernel: tuple[int, ...], **named: Any
) -> ConvSignature:
    layout = draw.choice(("NCHW", "NHWC"))
    return ConvSignature(
        input_shape=[image["NCHW".index(letter)] for letter in layout],
        kernel_shape=[kernel["NCHW".index(letter)] for letter in layout],
        shared_layout=layout,
        mode=draw.choice(("fwd", "fwd", "bwd", "wrw")),
        **named,
    )


KINDS: dict[str, Callable[[random.Random, str], Signature]] = {
    "product": product,
    "convolution": convolution,
    "transposed": transposed,
}


@dataclass(frozen=True)
class Case:
    """What is drawn for a number."""

    number: int
    kind: str
    signature: Signature

    @property
    def name(self) -> str:
        """With the number that repeats it."""
        return f"{self.number}: {self.signature.func_name}"


def kind_of(number: int) -> str:
    """Kinds take turns."""
    return list(KINDS)[number % len(KINDS)]


def numbers_of(kinds: Sequence[str], first: int, count: int) -> list[int]:
    """The first `count` numbers from `first` whose cases are of one of `kinds`."""
    return list(islice((number for number in itertools.count(first) if kind_of(number) in kinds), count))


def case_of(number: int, dtype: str) -> Case:
    """The case of a number. Shapes that are too large or invalid are drawn again."""
    kind = kind_of(number)
    draw = random.Random(f"{kind} {number}")
    while True:
        try:
            signature = KINDS[kind](draw, dtype)
            if signature.operation.flops <= MOST_FLOPS:
                return Case(number, kind, signature)
        except OperationError:
            continue


# -- torch's own call ------------------------------------------------------------------------------


def torch_call(signature: Signature) -> Callable[..., Any]:
    """What torch calls for `signature`: a function of the arguments of a launch."""
    if isinstance(signature, GEMMSignature):
        return _product_in_torch(signature)
    return _convolution_in_torch(signature)


def _product_in_torch(signature: GEMMSignature) -> Callable[..., Any]:
    flip_a, flip_b = signature.transpose_a, signature.transpose_b

    def forward(a: Any, b: Any) -> Any:
        return (a.t() if flip_a else a) @ (b.t() if flip_b else b)

    def a_backward(dc: Any, b: Any) -> Any:
        other = b.t() if flip_b else b
        return other @ dc.t() if flip_a else dc @ other.t()

    def b_backward(dc: Any, a: Any) -> Any:
        other = a.t() if flip_a else a
        return dc.t() @ other if flip_b else other.t() @ dc

    return {"forward": forward, "input_backward": a_backward, "weight_backward": b_backward}[
        str(signature.mode)
    ]


def _convolution_in_torch(signature: ConvSignature) -> Callable[..., Any]:
    import torch

    is_last = signature.input_layout == "NHWC"
    how = (
        list(signature.stride), list(signature.padding), list(signature.dilation),
        signature.transposed, list(signature.output_padding), signature.groups,
    )  # fmt: skip
    aten = torch.ops.aten

    def inside(tensor: Any) -> Any:
        return tensor.permute(0, 3, 1, 2) if is_last else tensor

    def outside(tensor: Any) -> Any:
        return tensor.permute(0, 2, 3, 1) if is_last else tensor

    def forward(x: Any, w: Any) -> Any:
        return outside(aten.convolution.default(inside(x), inside(w), None, *how))

    def gradient(dy: Any, x: Any, w: Any, which: int) -> Any:
        mask = [place == which for place in range(3)]
        found = aten.convolution_backward.default(inside(dy), x, w, None, *how, mask)
        return outside(found[which])

    def input_gradient(dy: Any, w: Any) -> Any:
        return gradient(dy, inside(w.new_empty(()).expand(tuple(signature.input_shape))), inside(w), 0)

    def weight_gradient(dy: Any, x: Any) -> Any:
        return gradient(dy, inside(x), inside(x.new_empty(()).expand(tuple(signature.kernel_shape))), 1)

    return {"forward": forward, "input_backward": input_gradient, "weight_backward": weight_gradient}[
        str(signature.mode)
    ]


# -- what is measured ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Times:
    """Milliseconds of each side by round, and the seconds of the first calls."""

    sides: Mapping[str, Sequence[float]]
    launch_seconds: float
    compiled_seconds: float

    def speed(self, side: str) -> float:
        """How many times as fast as torch."""
        return speedup(self.sides[side], self.sides[AGAINST[side]])

    def highest(self, side: str) -> float:
        """The upper end of its interval."""
        return highest_speedup(self.sides[side], self.sides[AGAINST[side]])


def times_of(number: int, dtype: str, cache: str) -> Times:
    """Compare the results of a case, and time it."""
    import torch

    from dispatch_profiler.boo import get_launchable

    with environment(XDG_CACHE_HOME=cache), torch.no_grad():
        case = case_of(number, dtype)
        arguments = case.signature.get_sample_args(seed=number)
        in_torch = torch_call(case.signature)
        expected = in_torch(*arguments)
        start = time.perf_counter()
        launch = get_launchable(case.signature)
        found = launch(*arguments)
        launch_seconds = time.perf_counter() - start
        check_close(f"{case.name}, launch", found, expected)
        start = time.perf_counter()
        compiled = _compiled(in_torch, "iree_boo")
        found = compiled(*arguments)
        compiled_seconds = time.perf_counter() - start
        check_close(f"{case.name}, compiled", found, expected)
        as_torch = _compiled(in_torch, "eager")
        calls = {
            "torch": lambda: in_torch(*arguments),
            "torch, compiled": lambda: as_torch(*arguments),
            "launch": lambda: launch(*arguments),
            "compiled": lambda: compiled(*arguments),
        }
        return Times(in_turns(calls, ROUNDS, SECONDS), launch_seconds, compiled_seconds)


def _compiled(function: Callable[..., Any], backend: str) -> Callable[..., Any]:
    """Compile a copy of `function`: torch tries all that it has compiled for a code object at each call."""
    import torch

    own = FunctionType(function.__code__.replace(), function.__globals__, closure=function.__closure__)
    return torch.compile(own, backend=backend, dynamic=False)


def measured(
    options: Namespace, count: int, time_case: Callable[..., Times] = times_of
) -> Iterator[tuple[Case, Times | None]]:
    """Each case with its times; None if it failed, which is printed."""
    with tempfile.TemporaryDirectory() as cache:
        for number in numbers_of(options.kinds, options.first, count):
            case = case_of(number, options.type)
            try:
                times = in_new_process(time_case, number, options.type, cache)
            except (Exception, SystemExit) as error:
                print(f"{case.name}: failed: {type(error).__name__}: {error}", flush=True)
                yield case, None
                continue
            print(
                f"{times.speed('launch'):6.2f} launch {times.speed('compiled'):6.2f} compiled "
                f"{times.launch_seconds:5.1f} s + {times.compiled_seconds:5.1f} s  {case.name}",
                flush=True,
            )
            yield case, times


def rows_of(found: Sequence[tuple[Case, Times | None]]) -> list[Row]:
    """The goals over all cases, and the mean of each kind. A case that failed misses a goal of its own."""
    rows = [Row(f"{case.name}: failed", 0.0, "x", "> 0", False) for case, times in found if times is None]
    timed = [(case, times) for case, times in found if times is not None]
    if not timed:
        return rows
    for kind in {case.kind: None for case, _ in timed}:
        speeds = [times.speed("launch") for case, times in timed if case.kind == kind]
        rows.append(
            Row(f"launches of {len(speeds)} cases of {kind}", geometric_mean(speeds), "x", "any", True)
        )
    every = [times for _, times in timed]
    launches = geometric_mean([times.speed("launch") for times in every])
    slowest = max(every, key=lambda times: times.launch_seconds)
    return [
        *rows,
        at_least(f"launches against torch, {len(every)} cases", launches, "x", MEAN),
        at_least("the slowest launch", min(times.highest("launch") for times in every), "x", LAUNCH),
        at_most("the longest first call of a launch", slowest.launch_seconds, "s", FIRST_SECONDS),
        Row(
            "compiled functions against torch",
            geometric_mean([times.speed("compiled") for times in every]), "x", "any", True,
        ),
        at_least("the slowest compiled function", min(times.highest("compiled") for times in every), "x", COMPILED),
    ]  # fmt: skip


def kinds_of(text: str) -> list[str]:
    """Some of `KINDS`."""
    found = text.split(",")
    unknown = sorted(set(found) - set(KINDS))
    if unknown:
        raise ArgumentTypeError(f"unknown kind {unknown[0]!r}; available: {', '.join(KINDS)}")
    return found


def main() -> int:
    """Measure and print; the exit status is 1 if a goal was missed."""
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--count", type=positive, metavar="N", help=f"number of cases; default: {COUNT}")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first case")
    parser.add_argument("--type", default="f32", choices=("f32", "bf16", "f16"), help="default: f32")
    parser.add_argument(
        "--kinds", type=kinds_of, default=list(KINDS), metavar="KIND,...", help=", ".join(KINDS)
    )
    options = parser.parse_args()
    count = options.count or (QUICK_COUNT if options.quick else COUNT)
    found: list[tuple[Case, Times | None]] = []
    try:
        for each in measured(options, count):
            found.append(each)
    except KeyboardInterrupt:
        print(f"interrupted after {len(found)} of {count} cases", flush=True)
        report(rows_of(found), options.json)
        return INTERRUPTED
    return report(rows_of(found), options.json)


if __name__ == "__main__":
    exit_with(main)
