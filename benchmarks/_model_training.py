"""A training step with backward kernels, and a second compilation: rows of benchmarks/models.py."""

from __future__ import annotations

import copy
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks._gradients import allowed_distance, distances, gradients, training_step
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

        def loss(model: Any) -> Any:
            type_ = next(model.parameters()).dtype
            return torch.nn.functional.cross_entropy(model(inputs.to(type_)), labels)

        exact = gradients(copy.deepcopy(model).double(), loss)
        check_gradients({side: gradients(each, loss) for side, each in sides.items()}, exact)
        calls = {side: training_step(each, loss) for side, each in sides.items()}
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


def check_gradients(found: Mapping[str, Mapping[str, Any]], exact: Mapping[str, Any]) -> None:
    """End the benchmark unless each gradient is about as close to that in float64 as eager torch's."""
    every = {side: distances(each, exact) for side, each in found.items()}
    allowed = allowed_distance(every["eager"])
    for name, distance in every[BACKEND].items():
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
