#!/usr/bin/env python3
"""Models whose batch varies, on this CPU: one compilation of this package for all batches, against one of inductor.

    python benchmarks/dynamic.py                               the models of QUICK_MODELS, 6 batches from 1 to 16
    python benchmarks/dynamic.py timm:mobilevit_s transformers:bert:4 --threads=2 --sizes=10 --most=32

All sides are compiled once, in a call with the second of the batches, whose first axis is marked as dynamic; then all
batches run with each of them, in turns, in one process for each model. Outputs are compared with the model in float64.

A ratio is inductor's time over ours: over 1, we are faster. "Compilations" counts those of our side for all batches.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._model_timing import BACKEND, environment, geometric_mean, in_new_process, speedup
from benchmarks._table import Row, at_least, exit_with, make_parser, positive, report
from benchmarks.ranges import drawn
from benchmarks.zoo import TIMES_EAGER, TOLERANCES, _error, _in_turns

QUICK_MODELS = ("torchvision:resnet50", "torchvision:mobilenet_v3_large", "transformers:bert:4")
INDUCTOR, OURS = "inductor", "ours frozen"
#: Rounds of each batch and side, and the least seconds of calls in each of them.
ROUNDS, SECONDS = 5, 0.1
GOAL, WORST = 1.0, 0.9


@dataclass(frozen=True)
class Batch:
    """One number of images or sequences: milliseconds of a call of each side, one figure a round."""

    size: int
    inductor: tuple[float, ...]
    ours: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Inductor's time over ours."""
        return speedup(self.ours, self.inductor)


def measure(name: str, threads: int, sizes: Sequence[int]) -> tuple[list[Batch], int]:
    """Both sides for each number of images or sequences, and how often our side compiled."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    import torch
    from torch._dynamo.utils import counters

    from benchmarks._zoo_models import zoo_model

    torch.set_num_threads(threads)
    zoo = zoo_model(name)
    inputs = {size: marked(zoo.inputs(size)) for size in sizes}
    batches: dict[int, dict[str, Callable[[], Any]]] = {size: {} for size in sizes}
    compilations = 0
    with torch.inference_mode():
        exact = {size: _exact(zoo.module, x) for size, x in inputs.items()}
        model = zoo.module.float()
        for side, options in ((INDUCTOR, {}), (OURS, {"backend": BACKEND, "options": {"freeze": True}})):
            torch._dynamo.reset()
            counters.clear()
            compiled = torch.compile(model, **options)
            for size in (sizes[1], *sizes):
                check(
                    f"{name}, {side}, batch {size}", compiled(inputs[size]), exact[size], model(inputs[size])
                )
                batches[size][side] = partial(compiled, inputs[size])
            compilations = counters["stats"]["unique_graphs"]
        timed = {size: _in_turns(runs, ROUNDS, SECONDS) for size, runs in batches.items()}
    return [Batch(size, each[INDUCTOR], each[OURS]) for size, each in timed.items()], compilations


def marked(x: Any) -> Any:
    """An input whose first axis is dynamic."""
    import torch

    torch._dynamo.mark_dynamic(x, 0)
    return x


def _exact(module: Any, x: Any) -> Any:
    return module.double()(x.double() if x.is_floating_point() else x)


def check(what: str, found: Any, exact: Any, eager: Any) -> None:
    """End the benchmark if a result is wrong."""
    error = _error(found, exact)
    if not error <= max(TOLERANCES["float32"], TIMES_EAGER * _error(eager, exact)):
        sys.exit(f"{what}: the result is off by {error:.1e}")


def options() -> Namespace:
    """The options of the command."""
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help="as torchvision:resnet50, timm:levit_128")
    parser.add_argument(
        "--threads", type=positive, metavar="N", help="of both sides (default: all usable cores)"
    )
    parser.add_argument(
        "--sizes", type=positive, default=6, metavar="N", help="different batches (default: 6)"
    )
    parser.add_argument("--most", type=positive, default=16, metavar="N", help="largest batch (default: 16)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the batches (default: 0)")
    return parser.parse_args()


def main() -> int:
    """Measure, print and write."""
    asked = options()
    cores = len(os.sched_getaffinity(0))
    threads = asked.threads if asked.threads is not None else cores
    if not 1 <= threads <= cores:
        sys.exit(f"--threads={threads}: this process may use {cores} cores")
    sizes = drawn(asked.sizes, asked.most, asked.seed)
    if len(sizes) < 2:
        sys.exit("--sizes and --most must allow two different batches at least")
    rows, every = list[Row](), list[float]()
    with environment(OMP_NUM_THREADS=str(threads)):
        for name in asked.models or QUICK_MODELS:
            batches, compilations = in_new_process(measure, name, threads, sizes)
            for each in batches:
                medians = (sorted(side)[len(side) // 2] for side in (each.inductor, each.ours))
                times = ", ".join(
                    f"{side} {time:.2f} ms" for side, time in zip((INDUCTOR, OURS), medians, strict=True)
                )
                print(f"{name}, batch {each.size}: {times}", flush=True)
                rows.append(at_least(f"{name}, batch {each.size}", each.ratio, "times as fast", WORST))
                every.append(each.ratio)
            rows.append(Row(f"{name}: compilations", compilations, "for all batches", "1", compilations == 1))
    rows.append(
        at_least(f"geometric mean: {OURS} against {INDUCTOR}", geometric_mean(every), "times as fast", GOAL)
    )
    return report(rows, asked.json)


if __name__ == "__main__":
    exit_with(main)
