"""Compiled graphs whose kernels another process compiles while the program goes on.

    function = compiled_in_background(settings, module, inputs, options, content)
    function(*inputs)         # computed by the nested backend, until the kernels are ready
    wait_for_kernels()

A worker process (see `background_worker`) does what a backend does in the foreground: it compiles, verifies and measures
kernels, and keeps kernels and decisions in the launch cache. A thread of this process then makes a function of the
outcome, calls it once, and puts it in place of the nested backend's. Each call reads the function once, so a call ends
with the function that it began with.

The thread traces nothing: while torch traces a graph in any thread, calls of compiled models in other threads fail. So the
worker returns the traced graph, as runs of kernels and torch's operators.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from dispatch_profiler.boo.backends.graph_kernels import results_with_strides
from dispatch_profiler.boo.backends.handed_graphs import (
    INDUCTOR,
    Answer,
    BackgroundSettings,
    GraphOutcome,
    HandedGraph,
    find_outcome,
)
from dispatch_profiler.boo.backends.inductor import load_artifact, prepare_inductor_for_cpu
from dispatch_profiler.boo.backends.known_graphs import entry_of
from dispatch_profiler.boo.backends.measuring import samples
from dispatch_profiler.boo.backends.region_kernels import forget_kernels, has_kernels
from dispatch_profiler.boo.environment import LOGGER
from dispatch_profiler.errors import UsageError, WorkerCrashed
from dispatch_profiler.isolation import Worker

_torch: Any = torch
_log = logging.getLogger(LOGGER)
_INDUCTOR = "inductor"
#: Seconds after which a worker without work ends. A model may have several graphs, with pauses between them.
_IDLE = 5.0
#: The number of regions in the first step of a graph that switches in steps.
_FIRST_REGIONS = 8
#: Seconds in which a process that ends is known to end.
_ENDING = 1.0


class Switch:
    """A function of a graph that is replaced, between two calls, when a better one is ready.

    `start` is called once, after the first call, which it would slow down.
    """

    def __init__(self, nested: Callable[..., Any], start: Callable[[Switch], None]) -> None:
        #: Computes the graph until kernels are ready.
        self.nested = nested
        self.function = self._first
        self._start = [start]

    def __call__(self, *inputs: Any) -> Any:
        return self.function(*inputs)

    def _first(self, *inputs: Any) -> Any:
        results = self.nested(*inputs)
        with contextlib.suppress(IndexError):  # another thread has started it
            start = self._start.pop()
            self.function = self.nested
            start(self)
        return results


class Caller(Protocol):
    """Calls functions in another process, as `Worker` does."""

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The result of `function(*arguments)`. Raises DispatchProfilerError if it fails."""

    def kill(self) -> None:
        """End the process, even during a call."""

    def close(self) -> None:
        """End the process after a call."""


@dataclass(frozen=True)
class Job:
    """A graph that is to be compiled, and the switch that waits for it."""

    handed: HandedGraph
    switch: weakref.ref[Switch]
    #: The parameters and buffers of the model, by their places among the inputs.
    parameters: Mapping[int, weakref.ref[Any]]

    def run(self, worker: Callable[[], Caller]) -> None:
        """Compile the graph, and put its function in place. Raises DispatchProfilerError, and errors of torch."""
        if self.switch() is None:
            return
        outcome, function = self._known()
        if outcome is None:
            if self.handed.settings.nested is None:  # a compiler would compile each part of the graph
                self._switch_in_steps(worker())
            outcome = self._compiled(worker())
            function = self._with_new_kernels(outcome)
        self._put_in_place(outcome, function)

    def _known(self) -> tuple[GraphOutcome | None, Callable[..., Any] | None]:
        """The outcome and the function of the graph if they are in the caches of this package and of inductor."""
        outcome = find_outcome(self.handed.entry)
        try:
            return outcome, None if outcome is None else function_of(outcome)
        except Exception as error:  # torch's caches raise any kind of error
            _log.debug("a known graph is compiled again: %s", error)
            return None, None

    def _switch_in_steps(self, worker: Caller) -> None:
        """Compile the first regions of a large graph, and use them. Each step has twice as many as the one before."""
        regions = _FIRST_REGIONS
        while (outcome := self._answered(worker, "compile_part", regions).outcome) is not None:
            self._put_in_place(outcome, self._with_new_kernels(outcome))
            regions *= 2

    def _with_new_kernels(self, outcome: GraphOutcome) -> Callable[..., Any] | None:
        """The function of an outcome, with kernels that the worker may have chosen since this process loaded others."""
        graph = outcome.compiled
        if graph is not None and self.handed.settings.autotune:
            forget_kernels(graph.regions)
        return function_of(outcome)

    def _compiled(self, worker: Caller) -> GraphOutcome:
        """The outcome of the graph in the worker. Raises DispatchProfilerError."""
        answer = self._answered(worker, "compile_graph")
        if answer.outcome is None:
            raise UsageError(answer.reason)
        return answer.outcome

    def _answered(self, worker: Caller, function: str, *arguments: Any) -> Answer:
        """The answer of the worker, after its messages are logged. Raises DispatchProfilerError."""
        answer: Answer = worker.call(call_in_worker, function, self.handed, *arguments)
        for level, message in answer.messages:
            if _log.isEnabledFor(level):
                warn(message) if level == logging.WARNING else _log.log(level, "%s", message)
        return answer

    def _put_in_place(self, outcome: GraphOutcome, function: Callable[..., Any] | None) -> None:
        """Let the program use `function` from now on; None stands for the nested backend."""
        if function is not None:
            self._call_once(function)
        switch = self.switch()
        if switch is not None:
            switch.function = function or switch.nested
            _log.info("a graph is computed by: %s", outcome.kind)

    def _call_once(self, function: Callable[..., Any]) -> None:
        """Load kernels and pack weights, so that the first call of the program does not wait for it."""
        parameters = {at: each() for at, each in self.parameters.items()}
        if any(each is None for each in parameters.values()):
            return  # the model is gone
        places = range(len(self.handed.inputs))
        with _torch.inference_mode(False), _torch.set_grad_enabled(self.handed.has_grad):
            likes = [each.empty() for at, each in enumerate(self.handed.inputs) if at not in parameters]
            rest = iter(samples(likes, ()))
            function(*(parameters[at] if at in parameters else next(rest) for at in places))


def function_of(outcome: GraphOutcome) -> Callable[..., Any] | None:
    """The function that computes a graph as `outcome` says; None for the nested backend.

    Raises DispatchProfilerError, and errors of torch.
    """
    if outcome.kind == INDUCTOR:
        return results_with_strides(load_artifact(outcome.graph), outcome.strides or {})
    graph = outcome.compiled
    if graph is None:
        return None
    if not has_kernels(graph.regions):
        raise UsageError("it lacks a kernel that was in the launch cache")
    return graph.function(strict=False)


class Background:
    """Compiles graphs, one after another, in a worker process that lives as long as there is work.

    `open_worker` starts the process. `idle` is the time in seconds after which it ends.
    """

    def __init__(self, open_worker: Callable[[], Caller], idle: float = _IDLE) -> None:
        self._open_worker = open_worker
        self._idle = idle
        self.forget()

    def forget(self) -> None:
        """Forget all jobs and the worker: in a forked process, both belong to the parent."""
        self._jobs: deque[Job] = deque()
        #: Guards the jobs and the thread; tells when a job has been added or has ended.
        self._changed = threading.Condition()
        self._unfinished = 0
        self._thread: threading.Thread | None = None
        self._worker: Caller | None = None
        self._is_ending = threading.Event()

    def add(self, job: Job) -> None:
        """Compile the graph of a job, after those that were added before."""
        with self._changed:
            self._jobs.append(job)
            self._unfinished += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="background compilation", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait(self, timeout: float | None) -> bool:
        """Wait until no job is left, for at most `timeout` seconds. Returns whether no job is left."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._unfinished, timeout)

    def end(self) -> None:
        """Kill the worker: this process ends."""
        self._is_ending.set()
        worker = self._worker
        if worker is not None:
            worker.kill()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            try:
                job.run(self._opened)
            except Exception as error:  # workers, compilers and torch's operators raise their own kinds
                if not self._is_ending.wait(_ENDING if isinstance(error, WorkerCrashed) else 0):
                    warn(f"a graph stays with the nested backend: {error}")
            del job  # keeps nothing of a model that is gone
            with self._changed:
                self._unfinished -= 1
                self._changed.notify_all()

    def _next(self) -> Job | None:
        """The next job; None after the worker and the thread have ended for lack of jobs."""
        with self._changed:
            if self._changed.wait_for(lambda: self._jobs, self._idle):
                return self._jobs.popleft()
            self._thread = None
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
        return None

    def _opened(self) -> Caller:
        if self._worker is None:
            self._worker = self._open_worker()
        return self._worker


@functools.lru_cache(maxsize=256)
def warn(message: str) -> None:
    """Log a message once."""
    _log.warning("%s", message)


def call_in_worker(function: str, *arguments: Any) -> Any:
    """Call a function of `background_worker`, which imports the modules that import this one."""
    worker = importlib.import_module("dispatch_profiler.boo.backends.background_worker")
    return getattr(worker, function)(*arguments)


def _open_worker() -> Caller:
    return Worker(start=call_in_worker, start_arguments=("start",))


#: The graphs of this process.
BACKGROUND = Background(_open_worker)
os.register_at_fork(after_in_child=BACKGROUND.forget)
atexit.register(BACKGROUND.end)


def wait_for_kernels(timeout: float | None = None) -> bool:
    """Wait until every graph that was compiled in the background is computed by its kernels, or stays with torch.

    Waits for at most `timeout` seconds, or without a limit. Returns whether nothing is left to do.
    """
    return BACKGROUND.wait(timeout)


def compiled_in_background(
    settings: BackgroundSettings,
    module: Any,
    example_inputs: Sequence[Any],
    options: Mapping[str, Any],
    content: Sequence[str],
) -> Callable[..., Any] | None:
    """A function that computes a graph of Dynamo with the nested backend until its kernels are ready.

    `options` are for the nested backend; `content` is as in `entry_of`. Returns None, after a warning, if the graph must
    be compiled in the foreground. Raises the errors of the nested backend.
    """
    reasons: list[object] = []
    entry = None
    if settings.nested not in (None, _INDUCTOR):
        reasons.append(f"the nested backend is {settings.nested}")
    elif options:
        reasons.append("inductor has options")
    else:
        entry = entry_of(module, example_inputs, content, reasons.append)
    if entry is None:
        warn(f"a graph is not compiled in the background: {reasons[0]}")
        return None
    handed = HandedGraph.of(settings, module, example_inputs, entry)
    parameters = {
        at: weakref.ref(tensor)
        for at, (like, tensor) in enumerate(zip(handed.inputs, example_inputs, strict=True))
        if like.static
    }

    def start(switch: Switch) -> None:
        BACKGROUND.add(Job(handed, weakref.ref(switch), parameters))

    return Switch(_nested(settings, module, example_inputs), start)


def _nested(settings: BackgroundSettings, module: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """The graph computed by the nested backend alone. Raises its errors."""
    function: Callable[..., Any] = module.forward
    if settings.nested is not None:
        from torch._dynamo.backends.registry import lookup_backend

        prepare_inductor_for_cpu()
        function = lookup_backend(_INDUCTOR)(module, list(example_inputs))
    return function
