"""Record sweeps of CPU configurations, for the prior and for `benchmarks/search.py`.

    taskset -c 0,1 python scripts/record_sweep.py WORKLOAD -o DIR [--seconds 120] [--evaluations N] [--part 0/8]

For each operation of WORKLOAD, compiles, verifies and measures random configurations of a small grid of every form
until `--seconds` have passed or `--evaluations` are done, and writes DIR/OPERATION.jsonl.gz
(tuner/strategies/prior.py has the format). The grid is the same for all operations. Only verified configurations
have a time; that of clearly slower ones is approximate. `--part I/N` records the operations I, I + N, I + 2N and so
on, so that several processes share a machine, each with its own cores.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import sys
import tempfile
from pathlib import Path

from dispatch_profiler import EvaluatorOptions, parse_target
from dispatch_profiler.configurations import Configuration, Space
from dispatch_profiler.configurations.space import Axis, Choice
from dispatch_profiler.cores import usable_cores
from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.measurement.measure import MeasureOptions
from dispatch_profiler.profiler.statistics.stopping import StopRule
from dispatch_profiler.targets import Target
from dispatch_profiler.tuner.search.operation_search import SearchTask
from dispatch_profiler.tuner.search.search import OperationResult, SearchOptions, search
from dispatch_profiler.tuner.spaces.seeds import baselines
from dispatch_profiler.tuner.spaces.space import SearchSpace
from dispatch_profiler.tuner.storage.storage import open_storage
from dispatch_profiler.tuner.strategies.prior import space_label
from dispatch_profiler.workloads import read_workload

#: Tiles along the loops of products and of convolutions; the nearest ones that a space has are swept. Other
#: parallel loops have tiles of 1, other reductions whole ones in the cache and 1 in the innermost step.
_TILES = {
    "distribution": {
        "m": (32, 64),
        "n": (32, 64, 128),
        "oh": (4, 7),
        "ow": (7, 14),
        "oc": (32, 64),
        "rows": (2, 7),
        "filters": (32, 64),
    },
    "cache": {"m": (8,), "n": (32,), "k": (64, 256), "oh": (8,), "ow": (8,), "oc": (32,), "ic": (64,)},
    "vector": {
        "m": (4, 8),
        "n": (16, 32, 64),
        "k": (1, 4, 8),
        "ow": (7, 14),
        "oc": (32, 64),
        "ic": (1, 4, 8),
    },
    "registers": {"rows": (1, 2, 4), "pixels": (7, 14), "filters": (32, 64)},
}
_OTHERS = {"distribution": 1, "cache": 2**20, "vector": 1}
_SLICES = (1, 4)
#: When the samples of one configuration end: the relative width of the interval of their median, or seconds.
_WIDTH, _SECONDS = 0.02, 0.25


def main() -> int:
    """Record; the exit status is 1 if an operation has no verified configuration."""
    options = _arguments()
    part, parts = map(int, options.part.split("/"))
    operations = [entry.operation for entry in read_workload(options.workload).workload.entries][part::parts]
    options.output.mkdir(parents=True, exist_ok=True)
    failed = 0
    for operation in operations:
        result, among = _swept(operation, parse_target("llvm-cpu"), options.seconds, options.evaluations)
        if result.best is None:
            print(f"{operation.name}: no configuration was verified", file=sys.stderr)
            failed += 1
            continue
        path = options.output / f"{operation.name}.jsonl.gz"
        _write(path, result, among)
        print(f"{path}: {len(result.evaluations)} configurations", flush=True)
    return min(failed, 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workload", type=Path, metavar="WORKLOAD", help="a workload.yaml or a log")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seconds", type=float, default=120.0, help="of each operation")
    parser.add_argument("--evaluations", type=int, help="of each operation (default: no limit)")
    parser.add_argument("--part", default="0/1", metavar="I/N")
    return parser.parse_args()


def _swept(
    operation: Operation, target: Target, seconds: float, evaluations: int | None
) -> tuple[OperationResult, tuple[Space[Configuration], ...]]:
    """Random configurations of the reduced spaces, which are returned too."""
    full = SearchSpace(operation, target.limits)
    among = tuple(map(reduced, full.spaces))
    space = SearchSpace(operation, target.limits, among, cores=len(usable_cores()))
    task = SearchTask(
        space, baselines(operation, target), strategy="random", evaluations=evaluations, seconds=seconds
    )
    measure = MeasureOptions(StopRule(_WIDTH, _SECONDS))
    options = SearchOptions(EvaluatorOptions(target.device_uri, seconds=20.0, measure=measure))
    with tempfile.TemporaryDirectory() as folder, open_storage(f"{folder}/search.log") as storage:
        (result,) = search([task], target, storage, options).operations
    return result, among


def reduced(space: Space[Configuration]) -> Space[Configuration]:
    """`space` with a few choices along each axis."""
    is_convolution = any(axis.name == "distribution_oc" for axis in space.axes)
    for axis in space.axes:
        space = space.with_choices(axis.name, *_choices(axis, is_convolution))
    return space


def _choices(axis: Axis, is_convolution: bool) -> tuple[Choice, ...]:
    if axis.name == "split_k":
        return tuple(choice for choice in axis.choices if choice in _SLICES)
    if not axis.tile_of:
        return axis.choices
    loop = axis.name.removeprefix(f"{axis.tile_of}_")
    # `n` is the image of a convolution, and the columns of a product.
    wanted = () if is_convolution and loop == "n" else _TILES.get(axis.tile_of, {}).get(loop, ())
    nearest = (_nearest(axis.choices, tile) for tile in wanted or (_OTHERS.get(axis.tile_of, 1),))
    return tuple(dict.fromkeys(nearest))


def _nearest(choices: tuple[Choice, ...], wanted: int) -> Choice:
    return min(choices, key=lambda choice: abs(math.log2(int(choice) / wanted)))


def _write(path: Path, result: OperationResult, among: tuple[Space[Configuration], ...]) -> None:
    swept = [
        {"of": space_label(space), "axes": {axis.name: axis.choices for axis in space.axes}}
        for space in among
    ]
    head = {
        "operation": result.operation.to_dict(),
        "name": result.operation.name,
        "target": "llvm-cpu",
        "cores": len(usable_cores()),
        "spaces": swept,
    }
    outcomes = [
        {
            "configuration": each.configuration.to_dict(),
            "verdict": each.record.verdict.name,
            "ms": each.milliseconds,
            **({"reason": each.reason} if each.reason else {}),
        }
        for each in result.evaluations
    ]
    text = "".join(json.dumps(line) + "\n" for line in (head, *outcomes))
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    sys.exit(main())
