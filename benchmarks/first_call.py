#!/usr/bin/env python3
"""Seconds until a compiled model returns its first result, and until its kernels are in use, on this CPU.

    python benchmarks/first_call.py [--quick] [--json=PATH] [--models MODEL ...]

Each side runs in a process of its own with empty caches, and then in a second process with the caches of the first one.
Sides take turns; a figure is the median over rounds. The seconds begin when torch is imported and the model exists, and
include importing the backend. With `background`, the program calls the model until the kernels are in use, with a pause
as long as each call: the longest of these calls shows what a switch costs.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._table import CHILD, Row, at_most, exit_with, make_parser, report

#: Side -> the arguments of `torch.compile`; None for eager torch.
SIDES: dict[str, dict[str, object] | None] = {
    "eager": None,
    "torch.compile": {"backend": "eager"},
    "iree_boo": {"backend": "iree_boo"},
    "iree_boo, background": {"backend": "iree_boo", "options": {"background": True}},
    "inductor": {"backend": "inductor"},
    "iree_boo_inductor": {"backend": "iree_boo_inductor"},
    "iree_boo_inductor, background": {"backend": "iree_boo_inductor", "options": {"background": True}},
}
#: Sides in the background -> the side that they must be as fast as, with the first call.
PEERS = {"iree_boo, background": "torch.compile", "iree_boo_inductor, background": "inductor"}
GOAL = 1.1
MODELS, QUICK_MODELS = ("resnet50", "bert"), ("resnet18",)
ROUNDS, QUICK_ROUNDS = 3, 1
#: Seconds after which the kernels of a process are not waited for any longer.
LONGEST = 1200.0


@dataclass(frozen=True)
class Times:
    """Seconds of one process: until the first result and until the last switch, the longest call between the two, and
    the median call after the switch."""

    first: float
    switched: float = 0.0
    longest: float = 0.0
    call: float = 0.0


def times_of(model: str, side: str) -> Times:
    """The times of this process."""
    import torch

    from benchmarks import _models

    module, inputs = getattr(_models, model)()
    module.eval()
    with torch.inference_mode():
        start = time.perf_counter()
        options = SIDES[side]
        function = module if options is None else torch.compile(module, dynamic=False, **options)
        function(inputs)
        first = time.perf_counter() - start
        switched = longest = 0.0
        if side in PEERS:
            from dispatch_profiler.boo import wait_for_kernels

            while not wait_for_kernels(0) and time.perf_counter() - start < LONGEST:
                before = time.perf_counter()
                function(inputs)
                taken = time.perf_counter() - before
                longest = max(longest, taken)
                time.sleep(taken)
            switched = time.perf_counter() - start
        calls = []
        for _ in range(10):
            before = time.perf_counter()
            function(inputs)
            calls.append(time.perf_counter() - before)
    return Times(first, switched, longest, statistics.median(calls))


def in_process(model: str, side: str, caches: str) -> Times:
    """The times of a new process, whose caches are in a folder."""
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor",
        "BOO_CACHE_DIR": f"{caches}/boo",
    }
    done = subprocess.run(
        [sys.executable, __file__, CHILD, model, side],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Times(**json.loads(done.stdout.splitlines()[-1]))


def measured(model: str, rounds: int) -> dict[tuple[str, str], list[Times]]:
    """(side, `first process` or `second process`) -> its times in each round."""
    times: dict[tuple[str, str], list[Times]] = {}
    for number in range(rounds):
        for side in list(SIDES)[:: -1 if number % 2 else 1]:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as caches:
                for process in ("first process", "second process"):
                    taken = in_process(model, side, caches)
                    times.setdefault((side, process), []).append(taken)
                    print(f"{model}, {side}, {process}: {taken}", flush=True)
    return times


def rows_of(model: str, times: dict[tuple[str, str], list[Times]]) -> Iterator[Row]:
    """The rows of a model."""
    for (side, process), each in times.items():
        name = f"{model}, {side}, {process}"
        first = statistics.median(one.first for one in each)
        yield Row(f"{name}: first result", first, "s", "any", True)
        yield Row(f"{name}: a call", statistics.median(one.call for one in each) * 1e3, "ms", "any", True)
        if side not in PEERS:
            continue
        switched = statistics.median(one.switched for one in each)
        longest = statistics.median(one.longest for one in each)
        yield Row(f"{name}: kernels are in use", switched, "s", "any", True)
        yield Row(f"{name}: longest call before", longest * 1e3, "ms", "any", True)
        peer = PEERS[side]
        ratios = [one.first / other.first for one, other in zip(each, times[peer, process], strict=True)]
        yield at_most(
            f"{name}: first result against {peer}", statistics.median(ratios), "times as long", GOAL
        )


def main() -> int:
    """Measure, print and write the rows; with `--child MODEL SIDE`, print the times of this process."""
    if sys.argv[1:2] == [CHILD]:
        _, _, model, side = sys.argv
        print(json.dumps(asdict(times_of(model, side))))
        return 0
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", metavar="MODEL", help="names in _models.py")
    found = parser.parse_args()
    models = found.models or (QUICK_MODELS if found.quick else MODELS)
    rounds = QUICK_ROUNDS if found.quick else ROUNDS
    rows = [row for model in models for row in rows_of(model, measured(model, rounds))]
    return report(rows, found.json)


if __name__ == "__main__":
    exit_with(main)
