"""A training step with backward kernels, and a second compilation: rows of benchmarks/models.py."""

from __future__ import annotations

import copy
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks._model_timing import BACKEND, Scale, environment, in_turns, is_available, speedup
from benchmarks._table import Row, at_most

#: Goals of the issue: times the time of eager torch, and percent of the first compilation.
TRAINING, SECOND_COMPILATION = 1.3, 25
#: Processes with empty caches and with full ones, of which the medians count: one is off by a fifth if anything else runs.
PAIRS = 3


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

    The distance is the norm of the difference over that of the gradient, or over a thousandth of the largest one: some
    gradients are 0 but for roundings, such as those of a bias in front of a batch norm, and must not decide what is
    allowed. (The smallest of ResNet-18 is 0.0022 of its largest.) A rounding that takes a relu to its other side
    changes the gradients of all layers before it by some tenths of a percent; which layer that is differs from side to
    side (inductor alone is off by 0.4 % in the layers where eager torch is not). So what is allowed is three times
    the largest distance of eager torch among all gradients.
    """
    least = 1e-3 * max(float(each.norm()) for each in exact.values())
    distances = {
        side: {
            name: float((each[name].double() - expected).norm() / expected.norm().clamp_min(least))
            for name, expected in exact.items()
        }
        for side, each in found.items()
    }
    allowed = max(1e-3, 3 * max(distances["eager"].values()))
    for name, distance in distances[BACKEND].items():
        if not distance <= allowed:
            sys.exit(f"the gradient of {name} is off by {distance:.3g} of its norm, more than {allowed:.3g}")


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
    """From `torch.compile` to the first output in a new process with empty caches, and in later ones; inductor's beside it."""
    if not is_available():
        return
    for name in scale.compilations:
        shares = {}
        for backend in ("inductor", BACKEND):
            first, later = compilation_seconds(name, backend)
            print(f"{name}, {backend}: first compilations {_shown(first)}, later {_shown(later)}", flush=True)
            shares[backend] = 100 * statistics.median(later) / statistics.median(first)
        title = f"{name}: second compilation, in a new process"
        yield Row(f"{title}, inductor", shares["inductor"], "%", "any", True)
        yield at_most(title, shares[BACKEND], "%", SECOND_COMPILATION)


def _shown(seconds: Iterable[float]) -> str:
    return ", ".join(f"{each:.1f}" for each in seconds) + " s"


def compilation_seconds(name: str, backend: str) -> tuple[list[float], list[float]]:
    """Seconds of the first call in pairs of new processes: with empty caches, and with those that this one has filled."""
    first, later = [], []
    for _ in range(PAIRS):
        with tempfile.TemporaryDirectory() as folder:
            first.append(_seconds_of_first_call(name, backend, folder))
            later.append(_seconds_of_first_call(name, backend, folder))
    return first, later


def _seconds_of_first_call(name: str, backend: str, folder: str) -> float:
    """Seconds of the first call in a new process with its caches in `folder`.

    Bytecode of Python's files is kept, as for an installed package.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "BOO_CACHE_DIR": f"{folder}/boo",
        "XDG_CACHE_HOME": folder,
    }
    done = subprocess.run(
        [sys.executable, "-c", FIRST_CALL, str(Path(__file__).parent.parent), name, backend],
        env={**inherited, **caches},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{name} does not compile in a new process: {done.stderr[-2000:]}")
    return float(done.stdout.split()[-1])
