"""The process that compiles, verifies and measures the kernels of graphs that are handed over by another process.

It does what a backend does in the foreground, with the same launch cache. The graph is computed by random values where it
is measured.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from dispatch_profiler.boo.backends.graph_choice import Used, used_by_parent, wait_for_children
from dispatch_profiler.boo.backends.graph_compiler import Backend, GraphCompiler
from dispatch_profiler.boo.backends.graph_kernels import SilentFallbacks, copied, fuse
from dispatch_profiler.boo.backends.handed_graphs import (
    INDUCTOR,
    MIXED,
    NESTED,
    RUNS,
    Answer,
    BackgroundSettings,
    GraphOutcome,
    HandedGraph,
    keep_outcome,
)
from dispatch_profiler.boo.backends.inductor import artifact_key
from dispatch_profiler.boo.backends.measuring import in_turns
from dispatch_profiler.boo.environment import LOGGER
from dispatch_profiler.boo.fusion.execute.mixed_graphs import MixedGraph
from dispatch_profiler.boo.fusion.execute.run_graphs import RunGraph
from dispatch_profiler.boo.fusion.match.matching import find_regions
from dispatch_profiler.boo.fusion.plan.rewriting import RESULT_STRIDES
from dispatch_profiler.boo.fusion.traced_graphs import (
    GraphKind,
    boxed,
    compiled_by,
    returns_new_tensors,
)
from dispatch_profiler.boo.launching.torch_types import product_precision
from dispatch_profiler.boo.progress import compiling
from dispatch_profiler.boo.rounds import Clock, in_rounds, in_short_rounds

_torch: Any = torch
#: The priority of the process: the program that it works for comes first. A program that computes on all cores without a
#: pause leaves it a quarter of their time; with 10, it would be a tenth, and kernels would take minutes.
_NICENESS = 5
#: Seconds that a look at an idle program takes at most.
_LOOK = 0.5


def start() -> None:
    """Prepare this process."""
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)


class Quiet:
    """Waits, before something is measured, until the program that this process works for leaves the cores alone.

    A program that computes without a pause is waited for only once, for `most` seconds in all.
    """

    def __init__(self, clock: Clock = Clock(), used: Used = used_by_parent, most: float = 20.0) -> None:
        self._clock, self._used, self._left = clock, used, most

    def before(self, measure: Callable[..., Any]) -> Callable[..., Any]:
        """`measure` after a wait."""

        def wait_and_measure(*arguments: Any) -> Any:
            if self._left > 0:
                start = self._clock.now()
                wait_for_children(self._clock, self._used, most=self._left)
                waited = self._clock.now() - start
                self._left -= waited if waited > _LOOK else 0.0
            return measure(*arguments)

        return wait_and_measure


def backend_of(settings: BackgroundSettings) -> Backend:
    """A backend that decides as the program's does, and measures in quiet moments."""
    quiet = Quiet()
    return Backend(
        settings.nested,
        settings.schema,
        settings.autotune,
        measure=quiet.before(in_rounds),
        measure_region=quiet.before(in_turns),
        measure_graph=quiet.before(in_short_rounds),
    )


def compile_graph(handed: HandedGraph) -> Answer:
    """Compile, verify and measure a graph in this process, and keep the outcome in the cache."""
    with _messages() as messages, _settings_of(handed):
        choice = _Choice()
        compiler = GraphCompiler(
            backend_of(handed.settings),
            {},
            handed.settings.autotune,
            handed.settings.freeze,
            real_inputs=[],
            # As in the foreground, graphs that are measured in several ways are not known as runs.
            entry=None if handed.settings.autotune is True else handed.entry,
            on_chosen=choice,
        )
        with _fake(handed) as (module, inputs):
            choice.compiler = compiler
            compiler.compiled(module, inputs)
        if choice.outcome is not None and not compiler.has_failures:
            keep_outcome(handed.entry, choice.outcome)
        return Answer(choice.outcome, choice.reason, tuple(messages))


def compile_part(handed: HandedGraph, most: int) -> Answer:
    """Compile, verify and measure the first `most` regions of a graph for the backend without a nested backend.

    The answer has no outcome if the graph has no more regions, if no kernel is faster than torch, or if a region fails.
    """
    settings, outcomes = handed.settings, list[GraphOutcome | None]()

    def capture(kind: GraphKind, module: Any, _: Sequence[Any]) -> Callable[..., Any]:
        backend = backend_of(settings)
        schema = backend.schema_for(kind, module.graph, settings.autotune)
        if returns_new_tensors() and len(find_regions(module.graph, schema)[0]) > most:
            choice = backend.region_choice(kind, settings.autotune)
            fused = fuse(copied(module), schema, SilentFallbacks(), choice, runs_eagerly=True, most=most)
            graph = MixedGraph.of(fused.module.graph) if fused.regions else None
            outcomes.append(None if graph is None else GraphOutcome(MIXED, graph.text))
        return boxed(module.forward)

    with _settings_of(handed), _fake(handed) as (module, inputs):
        compiled_by(capture, module, inputs, saves_memory=False, freezes=settings.freeze)
    return Answer(outcomes[0] if outcomes else None, "", ())


class _Choice:
    """Notes how the graph of a `GraphCompiler` is computed."""

    def __init__(self) -> None:
        self.outcome: GraphOutcome | None = None
        self.reason = "the graph computes nothing"
        self.compiler: GraphCompiler | None = None

    def __call__(self, kind: GraphKind, module: Any) -> None:
        """See `GraphCompiler.on_chosen`."""
        assert self.compiler is not None
        if kind is not GraphKind.INFERENCE or not returns_new_tensors():
            self.reason = "it writes to its inputs, or returns views of them"
            return
        self.outcome = GraphOutcome(NESTED) if module is None else _outcome(self.compiler, module)
        self.reason = "" if self.outcome is not None else "another process cannot take over what was compiled"


def _outcome(compiler: GraphCompiler, module: Any) -> GraphOutcome | None:
    """The outcome of a graph with runs; None if it cannot be described."""
    runs = RunGraph.of(module.graph)
    if runs is not None and None not in runs.outputs:
        return GraphOutcome(RUNS, runs.text)
    if compiler.backend.nested is None:
        mixed = MixedGraph.of(module.graph)
        return None if mixed is None else GraphOutcome(MIXED, mixed.text)
    (output,) = [node for node in module.graph.nodes if node.op == "output"]
    strides = dict(output.meta.get(RESULT_STRIDES, {}))
    key = artifact_key(module)
    return None if key is None else GraphOutcome(INDUCTOR, key, strides)


@contextlib.contextmanager
def _messages() -> Iterator[list[tuple[int, str]]]:
    """A list that messages of this package are added to."""
    messages: list[tuple[int, str]] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append((record.levelno, record.getMessage()))

    logger, handler = logging.getLogger(LOGGER), Handler()
    logger.addHandler(handler)
    try:
        # The program does not wait for this process.
        with compiling("", is_shown=False):
            yield messages
    finally:
        logger.removeHandler(handler)


@contextlib.contextmanager
def _settings_of(handed: HandedGraph) -> Iterator[None]:
    """The settings under which a graph was handed over."""
    # This process works for one other process: nothing is restored but the modes that torch nests.
    for name in [each for each in os.environ if each.startswith(("BOO_", "TURBINE_"))]:
        del os.environ[name]
    os.environ.update(handed.environment)
    torch.set_num_threads(handed.threads)
    if handed.precision != product_precision():  # torch 2.9 warns
        torch.set_float32_matmul_precision(handed.precision)
    torch.use_deterministic_algorithms(handed.is_deterministic)
    with _torch.set_grad_enabled(handed.has_grad):
        yield


@contextlib.contextmanager
def _fake(handed: HandedGraph) -> Iterator[tuple[Any, list[Any]]]:
    """The graph of Dynamo with fake inputs, as if Dynamo had traced it."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode: Any = FakeTensorMode(shape_env=ShapeEnv())
    with _torch._guards.tracing(_torch._guards.TracingContext(mode)):
        with mode:
            module, inputs = handed.rebuilt()
        yield module, inputs
