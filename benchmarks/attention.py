#!/usr/bin/env python3
"""Attention: launches without a tuned entry, against the fastest of torch's kernels, and on CPUs of OpenVINO's.

    python benchmarks/attention.py                 20 shapes in f32 on all physical cores, against flash, math and OpenVINO
    python benchmarks/attention.py --threads=2 --quick
    python benchmarks/attention.py --device=cuda   in f16 and bf16 on a GPU, against flash, cuDNN, efficient and FlexAttention

Prompts of 128 to 4,096 tokens and single tokens after up to 8,192, with 64 and 128 elements, with and without heads that share
keys, causal and not. A launch and torch's function are called from Python alike, in turns; on a GPU, in CUDA graphs. Results
are compared. A ratio is the fastest peer's time over ours: over 1, we are faster. On a CPU, one process measures a shape, and
OpenVINO is left out if it is not installed.
"""

from __future__ import annotations

import os
import statistics
import sys
from argparse import Namespace
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._attention_problem import Problem, Shape
from benchmarks._model_timing import geometric_mean, in_new_process, speedup
from benchmarks._table import Row, at_least, exit_with, make_parser, positive, report
from benchmarks.zoo import _in_turns

#: Targets of the geometric mean, and of the worst shape.
GOAL, WORST = 1.15, 0.9
#: Rounds, and the least seconds of calls in each of them.
ROUNDS, SECONDS = 9, 0.05
#: The largest difference from torch's math kernel in float64.
TOLERANCE = 2e-5


SHAPES = (
    Shape(12, 12, 128, 128, 64),
    Shape(12, 12, 197, 197, 64),
    Shape(12, 12, 384, 384, 64),
    Shape(16, 16, 512, 512, 64),
    Shape(12, 12, 1024, 1024, 64),
    Shape(12, 12, 128, 128, 64, True),
    Shape(12, 12, 512, 512, 64, True),
    Shape(16, 16, 1024, 1024, 64, True),
    Shape(12, 12, 2048, 2048, 64, True),
    Shape(32, 8, 128, 128, 128, True),
    Shape(32, 8, 512, 512, 128, True),
    Shape(16, 16, 1024, 1024, 128, True),
    Shape(16, 4, 2048, 2048, 128, True),
    Shape(8, 8, 4096, 4096, 128, True),
    Shape(12, 12, 1, 128, 64),
    Shape(12, 12, 1, 1024, 64),
    Shape(32, 8, 1, 1024, 128),
    Shape(32, 32, 1, 2048, 128),
    Shape(32, 8, 1, 4096, 128),
    Shape(32, 8, 1, 8192, 128),
)
#: Of GPUs, whose kernels are limited differently if all queries see all keys.
LARGE_SHAPES = (Shape(16, 16, 4096, 4096, 64), Shape(16, 16, 4096, 4096, 128))
QUICK = (SHAPES[0], SHAPES[6], SHAPES[10], SHAPES[16])


@dataclass(frozen=True)
class Measured:
    """Milliseconds of a call, one figure a round; of the fastest peer, and its name."""

    ours: tuple[float, ...]
    peer: tuple[float, ...]
    name: str

    @property
    def ratio(self) -> float:
        """The peer's time over ours."""
        return speedup(self.ours, self.peer)


def measure(shape: Shape, threads: int) -> Measured:
    """Times of a shape. Raises AssertionError if results differ."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    import torch
    from torch.nn.attention import SDPBackend

    torch.set_num_threads(threads)
    problem = Problem(shape, "f32", "cpu")
    runs = {
        "ours": problem.ours,
        "flash": problem.theirs(SDPBackend.FLASH_ATTENTION),
        "math": problem.theirs(SDPBackend.MATH),
    }
    with suppress(ImportError):
        runs["OpenVINO"] = problem.openvino(threads)
    with torch.inference_mode():
        assert problem.largest_difference(torch.float64)[0] < TOLERANCE, shape.label
        times = _in_turns(runs, ROUNDS, SECONDS)
    peers = [each for each in runs if each != "ours"]
    name = min(peers, key=lambda each: sorted(times[each])[ROUNDS // 2])
    return Measured(times["ours"], times[name], name)


def rows(options: Namespace) -> list[Row]:
    """Measure all shapes, and print a line for each."""
    found = []
    for shape in QUICK if options.quick else SHAPES:
        each = in_new_process(measure, shape, options.threads)
        found.append(each.ratio)
        ours, theirs = (sorted(side)[ROUNDS // 2] for side in (each.ours, each.peer))
        print(
            f"{shape.label:<40} {ours:9.3f} ms, {each.name:8} {theirs:9.3f} ms, ratio {each.ratio:.2f}",
            flush=True,
        )
    what = f"the fastest peer's attention over ours, {len(found)} shapes, f32, {options.threads} threads"
    return [
        at_least(f"{what}: geometric mean", geometric_mean(found), "times", GOAL),
        at_least(f"{what}: worst", min(found), "times", WORST),
    ]


#: Of a GPU: from how many queries on prompts are long, and the goals of long and short prompts and of single tokens.
LONG, GPU_GOALS = 2048, {"long prompts": 0.8, "short prompts": 0.95, "single tokens": 1.0}
#: Of the worst long prompt.
GPU_WORST = 0.65


def gpu_rows(options: Namespace) -> list[Row]:
    """Measure all shapes in both types on the first GPU, and print a line for each. Raises SystemExit without a GPU."""
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("torch finds no NVIDIA GPU: leave out --device=cuda, or install torch with CUDA")
    from benchmarks._attention_on_gpus import measure_on_gpu

    ratios: dict[str, list[float]] = {kind: [] for kind in GPU_GOALS}
    for dtype in ("f16", "bf16"):
        for shape in QUICK if options.quick else (*SHAPES, *LARGE_SHAPES):
            times, failures = measure_on_gpu(shape, dtype, with_flex=not options.without_flex)
            ours = times.pop("ours")
            fastest = min(times, key=lambda side: statistics.median(times[side]))
            ratio = speedup(ours, times[fastest])
            ratios[_kind(shape)].append(ratio)
            sides = [f"{side} {1e3 * statistics.median(each):.1f}" for side, each in times.items()]
            sides += [f"{side}: {reason}" for side, reason in failures.items() if options.verbose]
            text = f"{shape.label}, {dtype}"
            print(
                f"{text:<46} {1e3 * statistics.median(ours):8.1f} us; {', '.join(sides)}; ratio {ratio:.2f}",
                flush=True,
            )
    found = [
        at_least(
            f"torch's fastest attention over ours, {kind}: geometric mean",
            geometric_mean(each),
            "times",
            goal,
        )
        for kind, goal in GPU_GOALS.items()
        if (each := ratios[kind])
    ]
    worst = min(ratios["long prompts"], default=GPU_WORST)
    return [*found, at_least("the same, long prompts: worst", worst, "times", GPU_WORST)]


def _kind(shape: Shape) -> str:
    if shape.queries == 1:
        return "single tokens"
    return "long prompts" if shape.queries >= LONG else "short prompts"


def main() -> int:
    """Measure, print the table, and return the exit status."""
    parser = make_parser(__doc__ or "")
    parser.add_argument(
        "--threads", type=positive, default=os.cpu_count(), help="threads of all sides (default: all)"
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="device of all sides (default: cpu)"
    )
    parser.add_argument(
        "--without-flex", action="store_true", help="leave out FlexAttention, which takes long to compile"
    )
    parser.add_argument(
        "--verbose", action="store_true", help="also print why kernels of torch are not available"
    )
    options = parser.parse_args()
    return report((gpu_rows if options.device == "cuda" else rows)(options), options.json)


if __name__ == "__main__":
    exit_with(main)
