"""How benchmarks/models.py takes and compares times."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

Result = TypeVar("Result")
BACKEND = "iree_boo_inductor"
#: The keys of `benchmarks._models.MODELS`: this module does not import torch before its options are parsed.
NAMES = ("resnet50", "mobilenet_v2", "convnext", "bert")
#: Threads of torch spin after a call, and those of IREE may too: each side begins after a pause.
PAUSE = 5e-3
#: Largest difference from eager torch, in units of the largest element, by type.
TOLERANCES = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    #: Rounds of each side, and the least seconds of calls in each of them.
    rounds: int = 9
    seconds: float = 0.2
    training_rounds: int = 7
    #: Models whose second compilation is measured.
    compilations: tuple[str, ...] = NAMES
    models: tuple[str, ...] = NAMES
    batches: tuple[int, ...] = (1, 8)
    #: Of the models on a GPU.
    types: tuple[str, ...] = ("f16", "bf16")


QUICK = Scale(5, 0.15, 3, ("bert",), ("mobilenet_v2", "bert"), (1,))


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


def in_new_process(function: Callable[..., Result], *arguments: object) -> Result:
    """What `function` returns in a process of its own. Raises what it raises, and BrokenProcessPool if the process dies.

    What ran before in a process changes times: the C library hands freed memory out again, for which PyTorch's operators
    otherwise wait in each call. After ResNet-50 for 8 images, ConvNeXt blocks for one image take eager PyTorch 21 ms
    without page faults; in a process of their own, 27 to 30 ms with some 4,700 of them.
    """
    # Ctrl-C at a terminal reaches both processes: this one ends the other.
    ignoring = (signal.SIGINT, signal.SIG_IGN)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=signal.signal, initargs=ignoring) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except KeyboardInterrupt:
            # The pool waits for it.
            for child in multiprocessing.active_children():
                child.kill()
            raise


def speedup(of: Sequence[float], over: Sequence[float]) -> float:
    """How many times as fast `of` is: the median over rounds, whose halves were measured one after the other."""
    return statistics.median(slow / fast for fast, slow in zip(of, over, strict=True))


def highest_speedup(of: Sequence[float], over: Sequence[float]) -> float:
    """The upper end of the 95 % interval of `speedup`."""
    from dispatch_profiler.profiler.statistics.intervals import median_interval

    return median_interval([slow / fast for fast, slow in zip(of, over, strict=True)])[1]


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
