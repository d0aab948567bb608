#!/usr/bin/env python3
"""PyTorch models: `torch.compile(model, backend="iree_boo_inductor")` against eager torch and against inductor.

The models have random weights (benchmarks/_models.py). All sides of a row are timed in turns in one run, after their
outputs were compared with those of eager torch. The goals are for `options={"autotune": True}`, which docs/pytorch.md
recommends: against inductor with weights that may change at any time, and, with `freeze`, against inductor with its
`freezing`. A row shows the median of the rounds' ratios, and holds if the upper end of its 95 % interval reaches the
goal. Kernels use the library of BOO_TUNING_SPEC_PATH, by default the shipped one. Rows whose name says so need torch with CUDA, and are left out without it.
"""

from __future__ import annotations

import copy
import os
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._model_pools import pools_rows
from benchmarks._model_timing import (
    BACKEND,
    NAMES,
    QUICK,
    Scale,
    check_close,
    environment,
    geometric_mean,
    highest_speedup,
    in_new_process,
    in_turns,
    is_available,
    speedup,
)
from benchmarks._model_training import compilation_rows, training_rows
from benchmarks._table import Row, at_least, exit_with, make_parser, report, write_rows

PARTS = ("inference", "training", "compilation", "pools", "cuda")
#: Sides beside eager torch and inductor.
PRODUCTS, AUTOTUNE = "with matrix products", "autotune"
FREEZING, FROZEN = "inductor with freezing", "autotune, frozen"
#: The side that each of ours is compared with, and the goal of the geometric mean; None for a side without a goal.
AGAINST: dict[str, tuple[str, float | None]] = {
    BACKEND: ("inductor", None),
    PRODUCTS: ("inductor", None),
    AUTOTUNE: ("inductor", 1.1),
    FROZEN: (FREEZING, 1.3),
}
#: On a GPU, starting kernels one by one takes longer than they do: these replay a CUDA graph.
GRAPHS_OF_INDUCTOR, GRAPHS = "inductor with CUDA graphs", "autotune with CUDA graphs"
#: The types of the GPU rows, by the names that torch has for them.
TYPES = {"f16": "float16", "bf16": "bfloat16"}
#: Goals of the issue.
AGAINST_EAGER, EVERY_MODEL, GPU = 1.4, 0.95, 1.1


# -- inference -------------------------------------------------------------------------------------


def inference_rows(scale: Scale) -> Iterator[Row]:
    """Each model and batch: the backend, in several ways, against eager torch and against inductor.

    Each has a process of its own, so that no row depends on those before it. One that fails has a row that missed its
    goal, and the others are measured.
    """
    every: list[Mapping[str, Sequence[float]]] = []
    for name in scale.models:
        for batch in scale.batches:
            try:
                title, taken = in_new_process(inference_times, name, batch, scale)
            except (Exception, SystemExit) as error:
                print(f"{name}, batch {batch}: failed: {type(error).__name__}: {error}", flush=True)
                yield at_least(
                    f"{name}, batch {batch}: against inductor (failed)", 0.0, "times as fast", EVERY_MODEL
                )
                continue
            shown = ", ".join(f"{side} {statistics.median(each):.2f} ms" for side, each in taken.items())
            print(f"{title}: {shown}", flush=True)
            every.append(taken)
            yield from model_rows(title, taken)
    yield from means(every)


def model_rows(title: str, taken: Mapping[str, Sequence[float]]) -> Iterator[Row]:
    """The rows of one model and batch, from the milliseconds of each side."""
    ours = [side for side in taken if side in AGAINST]
    for side in ours or ["inductor"]:
        value = speedup(taken[side], taken["eager"])
        yield Row(f"{title}, {side}: against eager", value, "times as fast", "any", True)
    for side in ours:
        theirs, goal = AGAINST[side]
        value, high = speedup(taken[side], taken[theirs]), highest_speedup(taken[side], taken[theirs])
        name = f"{title}, {side}: against {theirs}"
        if goal is None:
            yield Row(name, value, "times as fast", "any", True)
        else:
            yield Row(name, value, "times as fast", f">= {EVERY_MODEL:g}", high >= EVERY_MODEL)


def means(every: Sequence[Mapping[str, Sequence[float]]]) -> Iterator[Row]:
    """The goals over all models and batches that were measured with our sides."""
    for side, (theirs, goal) in AGAINST.items():
        both = [taken for taken in every if side in taken and theirs in taken]
        if goal is None or not both:
            continue
        mean = f"geometric mean over models and batches, {side}: against"
        if side == AUTOTUNE:
            value = geometric_mean([speedup(taken[side], taken["eager"]) for taken in both])
            yield at_least(f"{mean} eager", value, "times as fast", AGAINST_EAGER)
        value = geometric_mean([speedup(taken[side], taken[theirs]) for taken in both])
        yield at_least(f"{mean} {theirs}", value, "times as fast", goal)


def inference_times(name: str, batch: int, scale: Scale) -> tuple[str, dict[str, list[float]]]:
    """A title, and milliseconds of each side."""
    import torch

    from benchmarks._models import MODELS

    example = MODELS[name]
    model, inputs = example.model(), example.inputs(batch)
    title = f"{example.name}, batch {batch}"
    sides = compiled_sides(model)
    with torch.inference_mode():
        expected = model(inputs)
        for side, function in sides.items():
            start = time.perf_counter()
            check_close(f"{title}, {side}", function(inputs), expected)
            print(f"{title}: first call of {side} {time.perf_counter() - start:.1f} s", flush=True)
        calls = {side: lambda function=function: function(inputs) for side, function in sides.items()}
        return title, in_turns(calls, scale.rounds, scale.seconds)


def compiled_sides(model: Any) -> dict[str, Callable[..., Any]]:
    """Eager torch, inductor, also with frozen weights, and the backend in several ways if it is installed."""
    import torch

    def compiled(**options: Any) -> Callable[..., Any]:
        return torch.compile(copy.deepcopy(model), dynamic=False, **options)

    sides = {"eager": model, "inductor": compiled(), FREEZING: compiled(options={"freezing": True})}
    if is_available():
        from dispatch_profiler.boo.backends import backend
        from dispatch_profiler.boo.fusion.schema import BOO_FUSIONS_WITH_MATRIX_PRODUCTS

        sides[BACKEND] = compiled(backend=BACKEND)
        sides[PRODUCTS] = compiled(backend=backend("inductor", BOO_FUSIONS_WITH_MATRIX_PRODUCTS))
        sides[AUTOTUNE] = compiled(backend=BACKEND, options={"autotune": True})
        sides[FROZEN] = compiled(backend=BACKEND, options={"autotune": True, "freeze": True})
    return sides


# -- a GPU -----------------------------------------------------------------------------------------


def cuda_rows(scale: Scale) -> Iterator[Row]:
    """ResNet-50 in f16 and bf16, batch 32, in channels-last memory, against eager torch; no rows without CUDA."""
    import torch

    from benchmarks._models import MODELS

    if not torch.cuda.is_available():
        print("torch has no CUDA device here: no row for a GPU", flush=True)
        return
    if not is_available():
        return
    for name in scale.types:
        dtype = getattr(torch, TYPES[name])
        title = f"ResNet-50 in {name}, batch 32, on a GPU"
        try:
            taken = cuda_times(title, MODELS["resnet50"], dtype, scale)
        except (Exception, SystemExit) as error:
            print(f"{title}: failed: {type(error).__name__}: {error}", flush=True)
            yield at_least(f"{title}: against eager (failed)", 0.0, "times as fast", GPU)
            continue
        finally:
            torch._dynamo.reset()
        shown = ", ".join(f"{side} {statistics.median(each):.2f} ms" for side, each in taken.items())
        print(f"{title}, {torch.cuda.get_device_name()}: {shown}", flush=True)
        yield from cuda_model_rows(title, taken)


def cuda_model_rows(title: str, taken: Mapping[str, Sequence[float]]) -> Iterator[Row]:
    """The rows of one type, from the milliseconds of each side: the goal is that of the last one."""
    for side in taken:
        if side not in ("eager", GRAPHS):
            fast = speedup(taken[side], taken["eager"])
            yield Row(f"{title}, {side}: against eager", fast, "times as fast", "any", True)
    for ours, theirs in ((AUTOTUNE, "inductor"), (GRAPHS, GRAPHS_OF_INDUCTOR)):
        fast = speedup(taken[ours], taken[theirs])
        yield Row(f"{title}, {ours}: against {theirs}", fast, "times as fast", "any", True)
    chosen = speedup(taken[GRAPHS], taken["eager"])
    yield at_least(f"{title}, {GRAPHS}: against eager", chosen, "times as fast", GPU)


def cuda_times(title: str, example: Any, dtype: Any, scale: Scale) -> dict[str, list[float]]:
    """Milliseconds of each side, which waits for the GPU after each call."""
    import torch

    model = example.model().to("cuda", dtype)
    inputs = example.inputs(32).to("cuda", dtype)
    graphs = {"triton.cudagraphs": True}
    chosen: dict[str, dict[str, Any]] = {
        "inductor": {},
        GRAPHS_OF_INDUCTOR: {"options": graphs},
        BACKEND: {"backend": BACKEND},
        AUTOTUNE: {"backend": BACKEND, "options": {"autotune": True}},
        GRAPHS: {"backend": BACKEND, "options": {"autotune": True, **graphs}},
    }
    # A copy, whose parameters `model.float()` leaves as they are.
    sides = {"eager": copy.deepcopy(model)}
    for side, options in chosen.items():
        sides[side] = torch.compile(copy.deepcopy(model), dynamic=False, **options)
    with torch.inference_mode():
        expected = model.float()(inputs.float()).to(dtype)
        for side, function in sides.items():
            start = time.perf_counter()
            found = function(inputs)
            torch.cuda.synchronize()
            print(f"{title}: first call of {side} {time.perf_counter() - start:.1f} s", flush=True)
            check_close(f"{title}, {side}", found, expected)
        calls = {
            side: lambda function=function: (function(inputs), torch.cuda.synchronize())
            for side, function in sides.items()
        }
        return in_turns(calls, scale.rounds, scale.seconds)


# -- the command -----------------------------------------------------------------------------------

ROWS: dict[str, Callable[[Scale], Iterator[Row]]] = {
    "inference": inference_rows,
    "training": training_rows,
    "compilation": compilation_rows,
    "pools": pools_rows,
    "cuda": cuda_rows,
}


def options() -> Namespace:
    """The options of the command."""
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=NAMES, metavar="MODEL", help=", ".join(NAMES))
    parser.add_argument("--batches", nargs="+", type=int, metavar="N", help="images or sequences of a call")
    parser.add_argument(
        "--types",
        nargs="+",
        choices=TYPES,
        metavar="TYPE",
        help="of the part cuda: f16, bf16 (default: both)",
    )
    parser.add_argument(
        "--library",
        metavar="DIR",
        help="library of tuned kernels, as BOO_TUNING_SPEC_PATH (default: the shipped one)",
    )
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS)
    )
    return parser.parse_args()


def scale_of(found: Namespace) -> Scale:
    """How much the options ask for."""
    scale = QUICK if found.quick else Scale()
    models = tuple(found.models or scale.models)
    compilations = tuple(found.models or scale.compilations)
    batches = tuple(found.batches or scale.batches)
    if min(batches) < 1:
        sys.exit(f"--batches: {min(batches)} is not a batch; give 1 or more")
    types = tuple(found.types or scale.types)
    return Scale(scale.rounds, scale.seconds, scale.training_rounds, compilations, models, batches, types)


def use_library(library: str) -> None:
    """Let kernels use a folder or a shipped library; ends the benchmark if there is none, since rules would stand in."""
    from dispatch_profiler.errors import UsageError
    from dispatch_profiler.library import Library, find_library

    try:
        Library.load(find_library(Path(library)))
    except UsageError as error:
        sys.exit(f"--library: {error}")
    os.environ["BOO_TUNING_SPEC_PATH"] = library


@contextmanager
def empty_caches() -> Iterator[None]:
    """Folders of this run for what inductor and the backend keep: both begin with nothing, whatever ran before.

    A library that an interrupted process left half-written in inductor's usual folder fails every later compilation.
    """
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        environment(TORCHINDUCTOR_CACHE_DIR=f"{folder}/inductor", BOO_CACHE_DIR=f"{folder}/boo"),
    ):
        yield


def main() -> int:
    """Measure, print and write the rows."""
    found = options()
    scale = scale_of(found)
    if found.library is not None:
        use_library(found.library)
    with empty_caches():
        rows = measured_rows(found, scale)
    return report(rows, found.json)


def measured_rows(found: Namespace, scale: Scale) -> list[Row]:
    """The rows of all parts; the file has those measured so far, so that an interrupted run keeps them."""
    rows: list[Row] = []
    for part in found.parts:
        for row in ROWS[part](scale):
            print(f"-- {row.name}: {row.value:.2f} {row.unit} ({row.must})", flush=True)
            rows.append(row)
            if found.json is not None:
                write_rows(rows, found.json)
    return rows


if __name__ == "__main__":
    exit_with(main)
