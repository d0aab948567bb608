#!/usr/bin/env python3
"""Kernels that are called from C (`library export --format=c`), against launches of the same kernels from Python.

    python benchmarks/c_export.py [--quick] [--json PATH]

Both sides are called from this process, in turns: the C functions through ctypes, on the calling thread or on a small
pool of threads; launches as a program calls them, with torch tensors. Both write to one result again and again. Requires gcc or cc, and torch.
"""

from __future__ import annotations

import ctypes
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._table import Row, arguments, at_most, exit_with, report
from benchmarks.launch import Driver, spec_of
from dispatch_profiler.boo.interface import LaunchKernel, Packing, empty_aligned
from dispatch_profiler.compiler import compiler_for, launch_request
from dispatch_profiler.configurations import AmxMicrokernel, Configuration, packed_by
from dispatch_profiler.cores import usable_threads
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.library import Entry, Estimate
from dispatch_profiler.library.c_export import export_c
from dispatch_profiler.operations import Conv2d, ElementTypes, Epilogue, Matmul, Operation
from dispatch_profiler.operations.short_names import short_name
from dispatch_profiler.profiler.records.machine import Machine
from dispatch_profiler.profiler.records.record import Provenance
from dispatch_profiler.targets import parse_target, untuned_kernels

TARGET = parse_target("llvm-cpu")
BF16 = ElementTypes("bf16", "bf16", "bf16")
OPERATIONS: list[Operation] = [
    Matmul(128, 768, 768, rhs_layout="n", epilogue=Epilogue.parse("bias")),
    Matmul(128, 3072, 768, rhs_layout="n", epilogue=Epilogue.parse("bias+gelu")),
    Matmul(128, 768, 3072, BF16, rhs_layout="n", epilogue=Epilogue.parse("bias")),
    Conv2d(1, 14, 14, 256, 256, 3, 3, padding=(1, 1), epilogue=Epilogue.parse("bias+relu")),
    Conv2d(1, 28, 28, 128, 512, 1, 1, epilogue=Epilogue.parse("bias+residual+relu")),
]
#: A pool of threads: the caller computes, too. Workers spin for a while before they sleep, as IREE's do.
POOL = """
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
struct pool {
  pthread_mutex_t mutex;
  pthread_cond_t wake;
  void (*body)(void *, size_t);
  void *argument;
  size_t count;
  int workers;
  atomic_size_t next;
  atomic_int left;
  atomic_uint job;
};
static void take(struct pool *pool) {
  for (size_t at; (at = atomic_fetch_add(&pool->next, 1)) < pool->count;) pool->body(pool->argument, at);
}
static void *work(void *pointer) {
  struct pool *pool = pointer;
  unsigned done = 0;
  for (;;) {
    for (int spins = 0; spins < 2000 && atomic_load(&pool->job) == done; ++spins) __builtin_ia32_pause();
    pthread_mutex_lock(&pool->mutex);
    while (atomic_load(&pool->job) == done) pthread_cond_wait(&pool->wake, &pool->mutex);
    done = atomic_load(&pool->job);
    pthread_mutex_unlock(&pool->mutex);
    take(pool);
    atomic_fetch_sub(&pool->left, 1);
  }
  return NULL;
}
struct pool *make_pool(int threads) {
  struct pool *pool = calloc(1, sizeof *pool);
  pthread_mutex_init(&pool->mutex, NULL);
  pthread_cond_init(&pool->wake, NULL);
  pool->workers = threads - 1;
  for (int at = 0; at < pool->workers; ++at) {
    pthread_t thread;
    pthread_create(&thread, NULL, work, pool);
    pthread_detach(thread);
  }
  return pool;
}
void pool_for(void *context, size_t count, void (*body)(void *, size_t), void *argument) {
  struct pool *pool = context;
  pthread_mutex_lock(&pool->mutex);
  pool->body = body;
  pool->argument = argument;
  pool->count = count;
  atomic_store(&pool->next, 0);
  atomic_store(&pool->left, pool->workers);
  atomic_fetch_add(&pool->job, 1);
  pthread_cond_broadcast(&pool->wake);
  pthread_mutex_unlock(&pool->mutex);
  take(pool);
  while (atomic_load(&pool->left)) sched_yield();
}
"""


@dataclass(frozen=True)
class Side:
    """The calls of one kernel on one number of threads, and what they wrote last."""

    call: Callable[[], object]
    result: Callable[[], Any]


def configuration_of(operation: Operation) -> Configuration:
    """What a launch with a constant weight uses without a tuned entry, unless it is a kernel that C cannot call."""
    kernels = untuned_kernels(operation, TARGET, packs_weight=True)
    return next(each for each in kernels if not isinstance(each, AmxMicrokernel))


def exported_library(folder: Path) -> ctypes.CDLL:
    """All kernels and the pool, as a library that this process loads."""
    origin = Provenance(
        "local-task", TARGET.name, f"compiler {compiler_for(TARGET).revision}, runtime", 7,
        machine=Machine("A", 2, threads=2, cpu_level=getattr(TARGET, "level", "")),
    )  # fmt: skip
    one = Estimate(1.0, 1.0, 1.0)
    entries = [Entry(Dispatch(each, configuration_of(each)), one, one, origin) for each in OPERATIONS]
    exported = export_c(entries, folder, origin="benchmarks/c_export.py")
    if exported.left_out:
        raise SystemExit(f"not exported: {exported.left_out}")
    (folder / "pool.c").write_text(POOL)
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise SystemExit("this benchmark needs gcc or cc on PATH")
    objects = sorted(folder.glob("*.o"))
    shared = folder / "kernels.so"
    sources = [folder / "kernels.c", folder / "pool.c"]
    subprocess.run(
        [
            compiler,
            "-std=c11",
            "-O2",
            "-shared",
            "-fPIC",
            "-pthread",
            *sources,
            *objects,
            "-lm",
            "-o",
            shared,
        ],
        check=True,
    )
    return ctypes.CDLL(str(shared))


def python_side(operation: Operation, operands: list[Any], threads: int) -> Side:
    """Launches of the kernel, whose weight is packed before."""
    import torch

    from dispatch_profiler.boo import Launchable
    from dispatch_profiler.boo.interface import GivenKernel
    from dispatch_profiler.boo.launching.packing import packed_launch

    dispatch = Dispatch(operation, configuration_of(operation))
    built = compiler_for(TARGET).build(launch_request(dispatch, TARGET))
    steps = dispatch.configuration.packing(operation)
    packing = Packing(dispatch.packing_function, packed_by(steps), steps) if steps else None
    kernel = LaunchKernel(built.verify, dispatch.name, dispatch.name, packing=packing)
    passed, driver = list(operands), Driver(driver="local-sync" if threads == 1 else "local-task")
    if packing is None:
        launch: Any = Launchable(
            spec_of(operation), GivenKernel(kernel), threads=threads, driver_choices=driver
        )
    else:
        packed = packed_launch(spec_of(operation), kernel, threads=threads, driver_choices=driver)
        launch, passed[1:2] = packed.launchable, packed.pack(operands[1])
    result = torch.empty(operation.results[0].shape, dtype=operands[0].dtype)
    return Side(lambda: launch(*passed, out=result), lambda: launch(*passed))


def c_side(library: ctypes.CDLL, operation: Operation, operands: list[Any], threads: int) -> Side:
    """Calls of the exported function, whose weight is packed before."""
    import torch

    result = torch.empty(operation.results[0].shape, dtype=operands[0].dtype)
    name, passed = operation.name, [each.data_ptr() for each in operands]
    kept: list[Any] = [*operands, result]

    def memory(function: str) -> int:
        size = getattr(library, function)
        size.restype = ctypes.c_size_t
        kept.append(empty_aligned(size(), "uint8"))
        return int(kept[-1].ctypes.data)

    if configuration_of(operation).packs_weight:
        packed = memory(f"{name}_packed_bytes")
        run(library, f"{name}_pack", [passed[1], packed], 1)()
        passed[1], name = packed, f"{name}_packed"
    workspace = [memory(f"{name}_workspace_bytes")] if hasattr(library, f"{name}_workspace_bytes") else []
    call = run(library, name, [*passed, result.data_ptr(), *workspace], threads)
    return Side(lambda: (call(), kept)[0], lambda: (call(), result)[1])


def run(library: ctypes.CDLL, name: str, pointers: list[int], threads: int) -> Callable[[], None]:
    """A call of a function, which must return 0."""
    function = getattr(library, name)
    given = [ctypes.c_void_p(each) for each in pointers]
    if threads == 1:
        given += [ctypes.c_void_p(None)] * 2
    else:
        library.make_pool.restype = ctypes.c_void_p
        given += [
            ctypes.cast(library.pool_for, ctypes.c_void_p),
            ctypes.c_void_p(library.make_pool(threads)),
        ]

    def call() -> None:
        if function(*given):
            raise SystemExit(f"{name} failed")

    return call


def ratio_of(c: Side, python: Side, rounds: int) -> tuple[float, float, float]:
    """The median ratio of a round's times, and milliseconds of a call of each side."""
    ratios, taken = [], ([], [])  # type: ignore[var-annotated]
    for at in range(rounds):
        sides = (c, python) if at % 2 else (python, c)
        times = {id(each): seconds(each.call) for each in sides}
        ratios.append(times[id(c)] / times[id(python)])
        taken[0].append(times[id(c)])
        taken[1].append(times[id(python)])
    return statistics.median(ratios), *(1e3 * statistics.median(each) for each in taken)


def seconds(call: Callable[[], object]) -> float:
    """The median of calls in a row for 0.1 s."""
    for _ in range(3):
        call()
    times = []
    end = time.perf_counter() + 0.1
    while (start := time.perf_counter()) < end:
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def rows(library: ctypes.CDLL, rounds: int) -> Iterator[Row]:
    """A row for each operation and number of threads, and a geometric mean for each number."""
    import torch

    numbers = sorted({1, usable_threads()})
    ratios: dict[int, list[float]] = {threads: [] for threads in numbers}
    for operation in OPERATIONS:
        types = {"f32": torch.float32, "bf16": torch.bfloat16}
        operands = [torch.randn(each.shape).to(types[each.type.name]) for each in operation.operands]
        for threads in numbers:
            c = c_side(library, operation, operands, threads)
            python = python_side(operation, operands, threads)
            if not torch.equal(c.result(), python.result()):
                raise SystemExit(f"{operation.name}: the sides differ")
            ratio, c_ms, python_ms = ratio_of(c, python, rounds)
            ratios[threads].append(ratio)
            name = f"{short_name(operation)}, threads: {threads}"
            print(f"{name}: C {c_ms:.4f} ms, Python {python_ms:.4f} ms", flush=True)
            yield Row(name, ratio, "x Python's time", "any", True)
    for threads, each in ratios.items():
        mean = statistics.geometric_mean(each)
        yield at_most(f"geometric mean, threads: {threads}", mean, "x Python's time", 1.03)


def main() -> int:
    options = arguments(__doc__ or "")
    with tempfile.TemporaryDirectory() as folder:
        library = exported_library(Path(folder, "kernels"))
        return report(list(rows(library, 5 if options.quick else 21)), options.json)


if __name__ == "__main__":
    exit_with(main)
