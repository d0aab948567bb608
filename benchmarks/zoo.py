#!/usr/bin/env python3
"""Models that users run, on this CPU: this package against the fastest of inductor, OpenVINO and ONNX Runtime.

    python benchmarks/zoo.py --threads=2                        the models that are named in benchmarks/_zoo_models.py
    python benchmarks/zoo.py torchvision:resnet50 timm:levit_128
    python benchmarks/zoo.py --draw=10 --seed=3                 drawn from the lists of torchvision, timm, transformers
    python benchmarks/zoo.py --training                         a training step of 8 images or sequences
    python benchmarks/zoo.py --level=x86-64-v3                  as on a CPU with AVX2 and without AVX-512

All sides of a model are timed in turns in one process of its own; a side begins when the threads of the one before have
stopped spinning. They get the same cores and the same number of threads. Outputs are compared with the model in float64: a
side whose error is above the tolerance has failed, and a side that cannot run a model is left out of its row with
the reason. Weights are random. Install the other tools with `pip install -e '.[bench]'`.

A ratio is the peer's time over ours: over 1, we are faster. "Frozen" compares our backend with frozen weights with the
fastest of inductor's freezing, OpenVINO and ONNX Runtime; "not frozen" our backend with inductor. Ours chooses kernels by
its default, `autotune="quick"`.

With `--level`, torch, oneDNN, MKL, inductor and our kernels use the instructions of that level only, also on a CPU that
has more. OpenVINO and ONNX Runtime cannot be limited, and are left out.

With `--training`, a call is a training step: forward, backward and SGD, without dropout. The gradients of each side are
compared with those in float64: the error is the largest distance of a gradient, as a part of its norm.
"""

from __future__ import annotations

import copy
import json
import os
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._model_timing import environment, geometric_mean, in_new_process, speedup
from benchmarks._table import Row, at_least, exit_with, make_parser, positive, report
from dispatch_profiler.cores import wait_for_idle_threads

#: Largest error, in units of the largest element of the result in float64, by type. Some models with random weights
#: amplify roundings; then an error of so many times eager torch's is allowed.
TOLERANCES = {"float32": 1e-4, "bfloat16": 1e-1}
TIMES_EAGER = 4
TYPES = {"f32": "float32", "bf16": "bfloat16"}
FREEZING_PEERS = ("freezing", "OpenVINO", "ONNX Runtime")
#: Ours, its peers, and the goals of the geometric mean and of the slowest model.
COMPARISONS: dict[str, tuple[str, tuple[str, ...], float, float]] = {
    "frozen": ("ours frozen", FREEZING_PEERS, 1.15, 0.9),
    "not frozen": ("ours", ("inductor",), 1.15, 0.9),
    "training": ("our step with backward kernels", ("inductor step",), 1.1, 0.9),
}
#: What limits torch, with inductor, oneDNN and MKL to the instructions of a level, and the goal of the geometric mean there.
LIMITS = {
    "x86-64-v3": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "BOO_CPU_LEVEL": "x86-64-v3",
    }
}
LIMITED_GOAL = 1.1
#: Rounds of each side, and the least seconds of calls in each of them.
ROUNDS, SECONDS = 9, 0.2
QUICK_ROUNDS, QUICK_SECONDS = 5, 0.1
#: Images or sequences of a training step.
TRAINING_BATCH = 8
QUICK_MODELS = ("torchvision:resnet18", "transformers:bert:4")


@dataclass(frozen=True)
class Side:
    """One side of a model: its times, or why it has none."""

    #: Milliseconds of a call, one figure a round; empty if the side failed.
    times: tuple[float, ...] = ()
    #: Seconds from the model to the first result.
    first: float = 0.0
    #: Largest difference from float64, in units of its largest element.
    error: float = 0.0
    failure: str = ""

    @property
    def median(self) -> float:
        """Milliseconds."""
        return statistics.median(self.times)


@dataclass(frozen=True)
class Measured:
    """A model and all sides."""

    model: str
    threads: int
    batch: int
    dtype: str
    sides: Mapping[str, Side]

    def ratio(self, comparison: str) -> float | None:
        """The fastest peer's time over ours; 0.0 if ours failed, None without a peer."""
        ours, peers, _, _ = COMPARISONS[comparison]
        ran = [self.sides[each] for each in peers if each in self.sides and self.sides[each].times]
        if ours not in self.sides or not ran:
            return None
        if not self.sides[ours].times:
            return 0.0
        fastest = min(ran, key=lambda side: side.median)
        return speedup(self.sides[ours].times, fastest.times)


# -- one model, in a process of its own ------------------------------------------------------------


def measure(
    name: str, threads: int, batch: int, dtype: str, chosen: Sequence[str] | None, rounds: int, seconds: float
) -> Measured:
    """Build, check and time all sides of a model on `threads` of the cores of this process."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    import torch

    from benchmarks._zoo_models import zoo_model
    from benchmarks._zoo_sides import Setting, sides

    torch.set_num_threads(threads)
    setting = Setting(threads, batch, dtype)
    zoo = zoo_model(name)
    x = zoo.inputs(batch)
    made: dict[str, Side] = {}
    runs: dict[str, Callable[[], Any]] = {}
    with torch.inference_mode():
        exact = zoo.module.double()(x.double() if x.is_floating_point() else x)
        model = zoo.module.to(setting.type)
        x = x.to(setting.type) if x.is_floating_point() else x
        tolerance = max(TOLERANCES[dtype], TIMES_EAGER * _error(model(x), exact))
        for side, make in sides().items():
            if chosen is None or side in chosen:
                error_of = partial(_error, exact=exact)
                made[side], run = started(side, partial(make, model, x, setting), error_of, tolerance)
                if run is not None:
                    runs[side] = run
                model = model.to(setting.type)
        made |= _timed(made, runs, rounds, seconds)
    return Measured(name, threads, batch, dtype, made)


def measure_training(
    name: str, threads: int, batch: int, dtype: str, chosen: Sequence[str] | None, rounds: int, seconds: float
) -> Measured:
    """As `measure`, for training steps."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    import torch

    from benchmarks._gradients import allowed_distance, distances, gradients, training_step
    from benchmarks._zoo_models import zoo_model
    from benchmarks._zoo_training import squared_error, trainable, training_sides

    torch.set_num_threads(threads)
    zoo = zoo_model(name)
    model = trainable(zoo.module)
    loss = squared_error(model, zoo.inputs(batch))
    exact = gradients(copy.deepcopy(model).double(), loss)
    model = model.to(getattr(torch, dtype))
    tolerance = allowed_distance(distances(gradients(copy.deepcopy(model), loss), exact))
    made: dict[str, Side] = {}
    runs: dict[str, Callable[[], Any]] = {}
    for side, (compile_, variables) in training_sides().items():
        if chosen is None or side in chosen:
            own = compile_(copy.deepcopy(model))
            with environment(**variables):
                first, error_of = partial(gradients, own, loss), partial(_largest_distance, exact=exact)
                made[side], run = started(side, lambda first=first: first, error_of, tolerance)  # type: ignore[misc]
            if run is not None:
                runs[side] = training_step(own, loss)
    made |= _timed(made, runs, rounds, seconds)
    return Measured(name, threads, batch, dtype, made)


def _largest_distance(found: Mapping[str, Any], exact: Mapping[str, Any]) -> float:
    from benchmarks._gradients import distances

    return max(distances(found, exact).values())


def started(
    side: str, make: Callable[[], Callable[[], Any]], error_of: Callable[[Any], float], tolerance: float
) -> tuple[Side, Callable[[], Any] | None]:
    """A side without times after its first result, and its function unless it failed."""
    start = time.perf_counter()
    try:
        run = make()
        result = run()
    except Exception as error:  # Whatever a tool raises for a model that it does not support.
        failure = (
            f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        )
        print(f"    {side}: {failure[:160]}", flush=True)
        return Side(failure=failure), None
    first = time.perf_counter() - start
    error = error_of(result)
    print(f"    {side}: first result after {first:.1f} s, error {error:.1e}", flush=True)
    if not error <= tolerance:
        return Side(first=first, error=error, failure=f"wrong: error {error:.1e}"), None
    return Side(first=first, error=error), run


def _error(result: Any, exact: Any) -> float:
    return float((result.double() - exact).abs().max() / exact.abs().max())


def _timed(
    made: Mapping[str, Side], runs: Mapping[str, Callable[[], Any]], rounds: int, seconds: float
) -> dict[str, Side]:
    """The sides in `runs`, with their times."""
    times = _in_turns(runs, rounds, seconds)
    return {side: replace(made[side], times=each) for side, each in times.items()}


def _in_turns(
    runs: Mapping[str, Callable[[], Any]], rounds: int, seconds: float
) -> dict[str, tuple[float, ...]]:
    """Milliseconds of a call of each side, one figure a round: the mean of as many calls as last `seconds`."""
    counts = {}
    for side, run in runs.items():
        wait_for_idle_threads()
        run()
        start = time.perf_counter()
        run()
        counts[side] = max(1, round(seconds / (time.perf_counter() - start)))
    times: dict[str, list[float]] = {side: [] for side in runs}
    for _ in range(rounds):
        for side, run in runs.items():
            wait_for_idle_threads()
            run()
            start = time.perf_counter()
            for _ in range(counts[side]):
                run()
            times[side].append((time.perf_counter() - start) / counts[side] * 1e3)
    return {side: tuple(each) for side, each in times.items()}


# -- tables ----------------------------------------------------------------------------------------


def shown(measured: Measured) -> str:
    """One line for each side: milliseconds and seconds to the first result, or why it failed."""
    lines = [f"{measured.model}, batch {measured.batch}, {measured.dtype}, {measured.threads} threads"]
    for name, side in measured.sides.items():
        if side.times:
            lines.append(
                f"    {name:<28} {side.median:>9.2f} ms   first {side.first:>6.1f} s   error {side.error:.1e}"
            )
        else:
            lines.append(f"    {name:<28}         -      {side.failure[:90]}")
    return "\n".join(lines)


def rows(every: Sequence[Measured], goal: float | None = None) -> Iterator[Row]:
    """The goals of the geometric mean (`goal`, or that of the comparison) and of the slowest model."""
    for comparison, (ours, peers, mean, worst) in COMPARISONS.items():
        ratios = {each.model: each.ratio(comparison) for each in every}
        known = {model: ratio for model, ratio in ratios.items() if ratio is not None}
        for model, ratio in known.items():
            yield Row(f"{model}, {comparison}", ratio, "times as fast", f">= {worst:g}", ratio >= worst)
        if known:
            against = f"{ours} against {_fastest_of(peers)}"
            value = geometric_mean(list(known.values())) if all(known.values()) else 0.0
            yield at_least(f"geometric mean: {against}", value, "times as fast", goal or mean)


def _fastest_of(peers: Sequence[str]) -> str:
    return f"the fastest of {', '.join(peers)}" if len(peers) > 1 else peers[0]


def draw_figure(every: Sequence[Measured], path: Path) -> None:
    """A bar for each model and comparison, with a line where both are equally fast, as PNG or SVG."""
    import plotly.graph_objects as graph

    figure = graph.Figure(layout={"template": "plotly_white", "width": 900, "height": 140 + 44 * len(every)})
    order = sorted(every, key=lambda each: each.ratio("frozen") or 0.0, reverse=True)
    for comparison, (_, peers, _, _) in COMPARISONS.items():
        name = f"{comparison}: against {_fastest_of(peers)}"
        ratios = [each.ratio(comparison) for each in order]
        text = [f"{each:.2f}" if each is not None else "" for each in ratios]
        figure.add_bar(x=ratios, y=[each.model for each in order], orientation="h", name=name, text=text)
    figure.add_vline(x=1, line_dash="dot")
    figure.update_layout(
        xaxis_title="peer's time / our time (over 1, ours is faster)",
        yaxis={"autorange": "reversed"},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        title=f"{order[0].threads} threads, batch {order[0].batch}, {order[0].dtype}",
    )
    figure.write_image(path, scale=2)


# -- the command -----------------------------------------------------------------------------------


def options() -> Namespace:
    """The options of the command."""
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help="as torchvision:resnet50, timm:levit_128@224"
    )
    parser.add_argument("--draw", type=int, metavar="N", help="so many models of the libraries' lists")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of --draw (default: 0)")
    parser.add_argument(
        "--threads", type=positive, metavar="N", help="of every side (default: all usable cores)"
    )
    parser.add_argument("--level", choices=LIMITS, help="limit all sides to the instructions of this level")
    parser.add_argument("--training", action="store_true", help="a training step instead of a forward")
    parser.add_argument(
        "--batch",
        type=int,
        metavar="N",
        help="images or sequences of a call (default: 1, or 8 with --training)",
    )
    parser.add_argument(
        "--dtype", choices=TYPES, default="f32", help="of weights and activations (default: f32)"
    )
    parser.add_argument("--sides", metavar="SIDE,...", help="only these sides, as eager,inductor,ours")
    parser.add_argument("--figure", type=Path, metavar="PATH", help="also draw the ratios, as PNG or SVG")
    parser.add_argument(
        "--records", type=Path, metavar="PATH", help="also write every side's times as JSON lines"
    )
    return parser.parse_args()


def chosen_models(asked: Namespace) -> Sequence[str]:
    """The models that the options name or draw."""
    from benchmarks._zoo_models import NAMES, drawn

    if asked.models:
        return asked.models
    if asked.draw:
        return drawn(asked.draw, asked.seed)
    if asked.training:
        from benchmarks._zoo_training import TRAINED

        return TRAINED
    return QUICK_MODELS if asked.quick else NAMES


def chosen_sides(text: str | None, *, training: bool = False, limited: bool = False) -> Sequence[str] | None:
    """The sides that `--sides` names; None for all. Ends the benchmark if a name is unknown.

    `limited`: only those that can be limited to some instructions.
    """
    from benchmarks._zoo_sides import UNLIMITED, sides
    from benchmarks._zoo_training import training_sides

    known = [
        each for each in (training_sides() if training else sides()) if not (limited and each in UNLIMITED)
    ]
    names = text.split(",") if text else None
    for name in names or ():
        if name not in known:
            sys.exit(f"--sides: no side {name!r}; the sides are {', '.join(known)}")
    return known if limited and names is None else names


def _variables(threads: int, level: str | None, folder: str) -> dict[str, str]:
    """What all sides find in the environment. Inductor's usual folder has headers compiled for all instructions."""
    limits = {} if level is None else {**LIMITS[level], "TORCHINDUCTOR_CACHE_DIR": folder}
    return {"OMP_NUM_THREADS": str(threads), **limits}


def main() -> int:
    """Measure, print and write."""
    asked = options()
    cores = len(os.sched_getaffinity(0))
    threads = asked.threads if asked.threads is not None else cores
    if not 1 <= threads <= cores:
        sys.exit(f"--threads={threads}: this process may use {cores} cores")
    sides = chosen_sides(asked.sides, training=asked.training, limited=asked.level is not None)
    batch = asked.batch if asked.batch is not None else (TRAINING_BATCH if asked.training else 1)
    if batch < 1:
        sys.exit(f"--batch={batch}: a call has at least one image or sequence")
    measured_by = measure_training if asked.training else measure
    scale = (QUICK_ROUNDS, QUICK_SECONDS) if asked.quick else (ROUNDS, SECONDS)
    every: list[Measured] = []
    with tempfile.TemporaryDirectory() as compiled, environment(**_variables(threads, asked.level, compiled)):
        for name in chosen_models(asked):
            print(name, flush=True)
            try:
                measured = in_new_process(
                    measured_by, name, threads, batch, TYPES[asked.dtype], sides, *scale
                )
            except (
                Exception,
                SystemExit,
            ) as error:  # A model that cannot be built, or a tool that ends the process.
                print(f"{name}: failed: {type(error).__name__}: {error}", flush=True)
                continue
            print(shown(measured), flush=True)
            every.append(measured)
            if asked.records is not None:
                with asked.records.open("a") as file:
                    file.write(json.dumps(asdict(measured)) + "\n")
    if not every:
        sys.exit("no model was measured")
    if asked.figure is not None:
        draw_figure(every, asked.figure)
    return report(list(rows(every, LIMITED_GOAL if asked.level else None)), asked.json)


if __name__ == "__main__":
    exit_with(main)
