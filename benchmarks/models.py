#!/usr/bin/env python3
"""PyTorch models: `torch.compile(model, backend="iree_boo_inductor")` against eager torch and against inductor.

The models have random weights (benchmarks/_models.py). All sides of a row are timed in turns in one run, after their
outputs were compared with those of eager torch. Kernels use the library of BOO_TUNING_SPEC_PATH, by default the shipped
one. Rows whose name says so need torch with CUDA, and are left out without it.
"""

from __future__ import annotations

import copy
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._table import Row, at_least, at_most, make_parser, report, write_rows

BACKEND = "iree_boo_inductor"
#: The keys of `benchmarks._models.MODELS`: this module does not import torch before its options are parsed.
NAMES = ("resnet50", "mobilenet_v2", "convnext", "bert")
PARTS = ("inference", "training", "compilation", "pools", "cuda")
#: Goals of the issue.
AGAINST_EAGER, AGAINST_INDUCTOR, EVERY_MODEL, TRAINING, SECOND_COMPILATION, GPU = (
    1.4,
    1.15,
    0.97,
    1.3,
    25,
    1.1,
)
#: Threads of torch spin after a call, and those of IREE may too: each side begins after a pause.
PAUSE = 5e-3
#: Largest difference from eager torch, in units of the largest element, by type.
TOLERANCES = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    #: Rounds of each side, and the least seconds of calls in each of them.
    rounds: int = 15
    seconds: float = 0.3
    training_rounds: int = 9
    #: Models whose second compilation is measured.
    compilations: tuple[str, ...] = NAMES
    models: tuple[str, ...] = NAMES
    batches: tuple[int, ...] = (1, 8)


QUICK = Scale(5, 0.15, 3, ("bert",), ("mobilenet_v2", "bert"), (1,))


# -- measuring -------------------------------------------------------------------------------------


def in_turns(
    sides: Mapping[str, Callable[[], object]], rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Milliseconds of a call of each side, one figure a round: the mean of as many calls as last `seconds`."""
    counts = {}
    for name, call in sides.items():
        call()
        start = time.perf_counter()
        call()
        counts[name] = max(1, round(seconds / (time.perf_counter() - start)))
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, call in sides.items():
            time.sleep(PAUSE)
            call()
            start = time.perf_counter()
            for _ in range(counts[name]):
                call()
            taken[name].append((time.perf_counter() - start) / counts[name] * 1e3)
    return taken


def speedup(of: Sequence[float], over: Sequence[float]) -> float:
    """How many times as fast `of` is: the median over rounds, whose halves were measured one after the other."""
    return statistics.median(slow / fast for fast, slow in zip(of, over, strict=True))


def geometric_mean(values: Sequence[float]) -> float:
    """Of one or more positive values."""
    return math.exp(statistics.fmean(map(math.log, values)))


def check_close(name: str, found: Any, expected: Any) -> None:
    """End the benchmark if an output differs from that of eager torch."""
    import torch

    allowed = TOLERANCES[str(expected.dtype).removeprefix("torch.")] * expected.abs().max()
    if found.shape != expected.shape or found.dtype != expected.dtype:
        sys.exit(f"{name}: {found.dtype} {list(found.shape)}, not {expected.dtype} {list(expected.shape)}")
    difference = (found - expected).abs().max()
    if not torch.isfinite(found).all() or not difference <= allowed:
        sys.exit(f"{name}: the output differs from eager torch by {difference:.3g}, more than {allowed:.3g}")


def is_available() -> bool:
    """Whether the backend is installed; says on standard output if it is not."""
    import torch

    if BACKEND in torch._dynamo.list_backends(exclude_tags=()):
        return True
    print(
        f"torch.compile has no backend {BACKEND!r}: install this version of dispatch-profiler"
        " (`pip install -e .`), whose entry points register it. Its rows are missing",
        flush=True,
    )
    return False


# -- inference -------------------------------------------------------------------------------------


def inference_rows(scale: Scale) -> Iterator[Row]:
    """Each model and batch: the backend against eager torch and against inductor."""
    against: dict[str, list[float]] = {"eager": [], "inductor": []}
    for name in scale.models:
        for batch in scale.batches:
            title, taken = inference_times(name, batch, scale)
            shown = ", ".join(f"{side} {statistics.median(each):.2f} ms" for side, each in taken.items())
            print(f"{title}: {shown}", flush=True)
            if BACKEND not in taken:
                yield Row(
                    f"{title}: inductor against eager",
                    speedup(taken["inductor"], taken["eager"]),
                    "times as fast",
                    "any",
                    True,
                )
                continue
            for side, found in against.items():
                found.append(speedup(taken[BACKEND], taken[side]))
            yield Row(f"{title}: against eager", against["eager"][-1], "times as fast", "any", True)
            yield at_least(
                f"{title}: against inductor", against["inductor"][-1], "times as fast", EVERY_MODEL
            )
    if against["eager"]:
        yield from means(against)


def means(against: Mapping[str, Sequence[float]]) -> Iterator[Row]:
    """The goals over all models and batches, from the speedup of each."""
    mean = "geometric mean over models and batches: against"
    yield at_least(f"{mean} eager", geometric_mean(against["eager"]), "times as fast", AGAINST_EAGER)
    yield at_least(f"{mean} inductor", geometric_mean(against["inductor"]), "times as fast", AGAINST_INDUCTOR)


def inference_times(name: str, batch: int, scale: Scale) -> tuple[str, dict[str, list[float]]]:
    """A title, and milliseconds of each side."""
    import torch

    from benchmarks._models import MODELS

    example = MODELS[name]
    model, inputs = example.model(), example.inputs(batch)
    title = f"{example.name}, batch {batch}"
    with torch.inference_mode():
        sides = compiled_sides(model)
        expected = model(inputs)
        for side, function in sides.items():
            start = time.perf_counter()
            check_close(f"{title}, {side}", function(inputs), expected)
            print(f"{title}: first call of {side} {time.perf_counter() - start:.1f} s", flush=True)
        calls = {side: lambda function=function: function(inputs) for side, function in sides.items()}
        taken = in_turns(calls, scale.rounds, scale.seconds)
    torch._dynamo.reset()
    return title, taken


def compiled_sides(model: Any) -> dict[str, Callable[..., Any]]:
    """Eager torch, inductor, and the backend if it is installed."""
    import torch

    sides = {"eager": model, "inductor": torch.compile(copy.deepcopy(model), dynamic=False)}
    if is_available():
        sides[BACKEND] = torch.compile(copy.deepcopy(model), dynamic=False, backend=BACKEND)
    return sides


# -- training --------------------------------------------------------------------------------------


def training_rows(scale: Scale) -> Iterator[Row]:
    """A step of ResNet-18, with our kernels in the backward too, against eager torch; gradients against float64."""
    import torch

    from benchmarks._models import RESNET18

    if not is_available():
        return
    batch = max(scale.batches)
    model = RESNET18.model().train()
    inputs, labels = RESNET18.inputs(batch), torch.arange(batch)
    with environment(BOO_USE_BACKWARD_KERNELS="1"):
        sides = {"eager": model, BACKEND: torch.compile(copy.deepcopy(model), dynamic=False, backend=BACKEND)}
        exact = gradients(copy.deepcopy(model).double(), inputs.double(), labels)
        found = {side: gradients(each, inputs, labels) for side, each in sides.items()}
        check_gradients(found, exact)
        calls = {side: training_step(each, inputs, labels) for side, each in sides.items()}
        taken = in_turns(calls, scale.training_rounds, scale.seconds)
    torch._dynamo.reset()
    shown = ", ".join(f"{side} {statistics.median(each):.1f} ms" for side, each in taken.items())
    print(f"training step of ResNet-18, batch {batch}: {shown}", flush=True)
    yield at_most(
        "training step of ResNet-18 with backward kernels against eager",
        1 / speedup(taken[BACKEND], taken["eager"]),
        "times the time",
        TRAINING,
    )


def training_step(model: Any, inputs: Any, labels: Any) -> Callable[[], None]:
    """Forward, backward, and an update of the parameters."""
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return step


def gradients(model: Any, inputs: Any, labels: Any) -> dict[str, Any]:
    """Of each parameter, after one forward and backward; statistics of batch norms are as before."""
    import torch

    saved = copy.deepcopy(dict(model.named_buffers()))
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()
    found = {name.removeprefix("_orig_mod."): each.grad for name, each in model.named_parameters()}
    model.zero_grad()
    for name, buffer in model.named_buffers():
        buffer.copy_(saved[name])
    return found


def check_gradients(found: Mapping[str, Mapping[str, Any]], exact: Mapping[str, Any]) -> None:
    """End the benchmark unless each gradient is about as close to that in float64 as eager torch's.

    The distance is the norm of the difference over that of the gradient. Eager torch's own errors have a factor of 10,
    because the batch norms of a few images amplify the roundings of each side.
    """
    for name, expected in exact.items():
        distances = {
            side: float((each[name].double() - expected).norm() / expected.norm().clamp_min(1e-12))
            for side, each in found.items()
        }
        allowed = max(1e-3, 10 * distances["eager"])
        if not distances[BACKEND] <= allowed:
            sys.exit(
                f"the gradient of {name} is off by {distances[BACKEND]:.3g} of its norm, more than {allowed:.3g}"
            )


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Environment variables, as before afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


# -- compilation -----------------------------------------------------------------------------------

FIRST_CALL = """
import sys, time
sys.path.insert(0, sys.argv[1])
import torch
from benchmarks._models import MODELS
example = MODELS[sys.argv[2]]
model, inputs = example.model(), example.inputs(1)
with torch.inference_mode():
    start = time.perf_counter()
    torch.compile(model, dynamic=False, backend=sys.argv[3])(inputs)
    print(time.perf_counter() - start)
"""


def compilation_rows(scale: Scale) -> Iterator[Row]:
    """From `torch.compile` to the first output in a new process, with empty caches and once more."""
    if not is_available():
        return
    for name in scale.compilations:
        first, second = compilation_seconds(name, BACKEND, 2)
        print(f"{name}: first compilation {first:.1f} s, second {second:.1f} s", flush=True)
        yield at_most(
            f"{name}: second compilation, in a new process", 100 * second / first, "%", SECOND_COMPILATION
        )


def compilation_seconds(name: str, backend: str, processes: int) -> list[float]:
    """Seconds of the first call in each process, one after another, which share caches that were empty."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        caches = {
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "BOO_CACHE_DIR": f"{folder}/boo",
            "XDG_CACHE_HOME": folder,
        }
        for _ in range(processes):
            done = subprocess.run(
                [sys.executable, "-c", FIRST_CALL, str(Path(__file__).parent.parent), name, backend],
                env={**os.environ, **caches},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                sys.exit(f"{name} does not compile in a new process: {done.stderr[-2000:]}")
            found.append(float(done.stdout.split()[-1]))
    return found


# -- thread pools ----------------------------------------------------------------------------------


def pools_rows(scale: Scale) -> Iterator[Row]:
    """Our kernels and torch's operators in turns, whose thread pools share the cores, against each of them alone.

    The policy is: both keep the threads that they have by default, and no setting of the process is changed. The first
    row says what that costs, the others what a kernel on the calling thread alone would.
    """
    import torch

    from dispatch_profiler.boo import Launchable

    signature = pooled_signature()
    x, w = signature.get_sample_args(seed=0)
    images = torch.randn(1, 128, 28, 28).to(memory_format=torch.channels_last)
    filters = torch.randn(128, 128, 3, 3).to(memory_format=torch.channels_last)

    def torch_call() -> object:
        return torch.nn.functional.conv2d(images, filters, padding=1)

    launches = {
        driver: Launchable(signature.launch, provider_of(signature), driver_choices=OneDriver(driver=driver))
        for driver in ("local-task", "local-sync")
    }
    calls: dict[str, Callable[[], object]] = {"torch": torch_call}
    for driver, launch in launches.items():
        calls[driver] = lambda launch=launch: launch(x, w)
        calls[f"{driver} and torch"] = lambda launch=launch: (launch(x, w), torch_call())
    with torch.inference_mode():
        taken = in_turns(calls, scale.rounds, scale.seconds)
    ms = {name: statistics.median(each) for name, each in taken.items()}
    print("a convolution of 28x28x128:", ", ".join(f"{name} {each:.3f} ms" for name, each in ms.items()))
    yield from pools_table(ms)


def pools_table(ms: Mapping[str, float]) -> Iterator[Row]:
    """The rows of `pools_rows`, from milliseconds."""
    for driver in ("local-task", "local-sync"):
        alone = ms[driver] + ms["torch"]
        yield Row(
            f"kernels on {driver} and torch's operators in turns, against each alone",
            ms[f"{driver} and torch"] / alone,
            "times the time",
            "any",
            True,
        )
    yield at_most(
        "kernels and torch's operators in turns: all threads against the calling one",
        ms["local-task and torch"] / ms["local-sync and torch"],
        "times the time",
        1.0,
    )


class OneDriver(dict[str, str]):
    """Remembers one driver for every kernel."""

    def get(self, key: str, default: Any = None) -> Any:
        """The driver, for any key."""
        return self["driver"]


def pooled_signature() -> Any:
    """A 3x3 convolution of ResNet-50, which takes about 1 ms on two cores."""
    from dispatch_profiler.boo.op_exports.conv import ConvSignature

    return ConvSignature(
        input_shape=[1, 28, 28, 128],
        kernel_shape=[128, 3, 3, 128],
        shared_layout="NHWC",
        padding=1,
        dtype="f32",
    )


def provider_of(signature: Any) -> Any:
    """The kernels of a signature, from the cache or the compiler."""
    from dispatch_profiler.boo.environment import launch_settings
    from dispatch_profiler.boo.kernels import OperationKernels

    return OperationKernels(signature.operation, signature.func_name, launch_settings())


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
    for dtype, name in ((torch.float16, "f16"), (torch.bfloat16, "bf16")):
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
        yield at_least(
            f"{title}: against eager", speedup(taken[BACKEND], taken["eager"]), "times as fast", GPU
        )


def cuda_times(title: str, example: Any, dtype: Any, scale: Scale) -> dict[str, list[float]]:
    """Milliseconds of each side, which waits for the GPU after each call."""
    import torch

    model = example.model().to("cuda", dtype)
    inputs = example.inputs(32).to("cuda", dtype)
    with torch.inference_mode():
        compiled = torch.compile(copy.deepcopy(model), dynamic=False, backend=BACKEND)
        expected = model.float()(inputs.float()).to(dtype)
        model.to(dtype)
        start = time.perf_counter()
        found = compiled(inputs)
        print(f"{title}: first call {time.perf_counter() - start:.1f} s", flush=True)
        check_close(title, found, expected)
        calls = {
            side: lambda function=function: (function(inputs), torch.cuda.synchronize())
            for side, function in {"eager": model, BACKEND: compiled}.items()
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
    return Scale(scale.rounds, scale.seconds, scale.training_rounds, compilations, models, batches)


def main() -> int:
    """Measure, print and write the rows."""
    found = options()
    scale = scale_of(found)
    rows: list[Row] = []
    for part in found.parts:
        for row in ROWS[part](scale):
            print(f"-- {row.name}: {row.value:.2f} {row.unit} ({row.must})", flush=True)
            rows.append(row)
            if found.json is not None:
                write_rows(rows, found.json)
    return report(rows, found.json)


if __name__ == "__main__":
    sys.exit(main())
