"""Dispatches -> candidates in memory: rendered, built in parallel, and kept in a cache.

A tree on disk is compiled by `compiler.tree`. Here nothing but the cache is written.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dispatch_profiler.closing import Closing
from dispatch_profiler.compiler import (
    BuildRequest,
    Built,
    Cache,
    Compiler,
    build_key,
    build_request,
    compiler_for,
    origin_of,
)
from dispatch_profiler.compiler.request import repeat_count
from dispatch_profiler.compiler.workers.cluster import Cluster
from dispatch_profiler.configurations import rejection_reason
from dispatch_profiler.cores import usable_processes, usable_threads
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.errors import DispatchProfilerError, ToolError
from dispatch_profiler.generator import render_module
from dispatch_profiler.isolation import WorkerLimits, available_memory
from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.evaluation.candidate import Candidate, Vmfb
from dispatch_profiler.targets import Target
from dispatch_profiler.tuner.evaluation.evaluations import Evaluation

if TYPE_CHECKING:
    from dispatch_profiler.compiler.workers.pool import BuildPool


#: At first, fewer modules are rendered in this process: the cache may have them all, and a compiler process takes a second to
#: start.
_MANY_MODULES = 8
#: Modules of a build, for each worker that another one may wait for: with fewer, many workers wait for the longest.
_MODULES_OF_WORKER = 2
#: With fewer builders, work that is `ready` while all of them are busy delays them by as much as it takes afterwards. With
#: many, it would have one core of many to itself, and the others would wait for it after the last build.
_MANY_BUILDERS = 8
#: The compiler takes as long for the code of a dispatch that it generates itself as for a source of about this length,
#: 0.5 s: a product takes half as long, a direct convolution two or three times.
_LENGTH_OF_GENERATED = 250_000
#: Keys of modules in the cache.
_KEY = re.compile("[0-9a-f]+")
#: A call of a candidate on a CPU does at most about this much work for each thread, with four bytes in an element: 0.5 ms
#: at 100 GFLOP/s. A candidate is measured briefly, and a long call leaves it few samples, all of them disturbed on a loaded
#: machine; the compiler's default may take 20 times as long. In a call of a single short execution, waking the threads
#: takes a tenth of the time.
_FLOPS_OF_A_THREAD, _BYTES_OF_AN_ELEMENT = 5e7, 4


@dataclass(frozen=True)
class BuildOptions:
    """How to build.

    `flags` are compiler flags besides the target's and the configurations'; `repeat` defaults to
    `short_repeat`. `workers` is the number of concurrent builds on this machine, by default one for each core;
    with `cluster`, its workers build instead. Builds on this machine run on `cores`, by default on all. `seconds`
    and `memory_bytes` limit one dispatch; without `memory_bytes`, workers on this machine share the free memory.
    `largest_module` is the maximum number of dispatches in a module. The dispatches share one run of the front end, which
    takes half of the time of one dispatch; but if one crashes the compiler, all others are compiled again, and one
    dispatch may take 20 times as long as another. Dispatches with kernels of their own, which the front end does not see,
    are in modules of their own.
    """

    flags: tuple[str, ...] = ()
    repeat: int | None = None
    workers: int | None = None
    cluster: Cluster | None = None
    seconds: float = 120.0
    memory_bytes: int | None = None
    cores: tuple[int, ...] = ()
    largest_module: int = 4

    @property
    def concurrency(self) -> int:
        """The number of builds to keep running."""
        return self.workers or len(self.cores) or usable_processes()

    @property
    def limits(self) -> WorkerLimits:
        """The limits of one dispatch."""
        memory = self.memory_bytes
        if memory is None and self.cluster is None:
            memory = available_memory() // self.concurrency
        return WorkerLimits(self.seconds, memory)


def _ignore(candidate: Candidate) -> None:
    """For callers that wait for all candidates."""


@dataclass(frozen=True)
class _Module:
    """Dispatches of one operation that are compiled together; `is_further` if only the cache gets them."""

    request: BuildRequest
    key: str
    is_further: bool = False


class CandidateBuilder(Closing):
    """Turns dispatches into candidates for `target`. Use as a context manager.

    Compiler processes persist between calls. With `cache`, a dispatch that was built before is not built again.
    `compiler` is by default the target's. Several threads may call `candidates` at once; `close` from another thread
    ends their builds, which raise ToolError.
    """

    def __init__(
        self,
        target: Target,
        options: BuildOptions | None = None,
        cache: Cache | None = None,
        compiler: Compiler | None = None,
    ) -> None:
        self._target = target
        self._options = options or BuildOptions()
        self._cache = cache
        self._compiler = compiler or compiler_for(target)
        self._pool: BuildPool[int] | None = None
        self._opening = threading.Lock()
        self._is_closed = False
        #: Tries the compiler; see `start_ahead`.
        self._trial: threading.Thread | None = None

    @property
    def revision(self) -> str:
        """The compiler's revision."""
        return self._compiler.revision

    def builds_for(self, target: Target, options: BuildOptions, cache: Cache | None) -> bool:
        """Whether a new builder with these arguments would build the same, in the same way."""
        return (self._target, self._options, self._cache) == (target, options, cache)

    @property
    def concurrency(self) -> int:
        """The number of modules that are built at once."""
        return self._options.concurrency

    def start_ahead(self) -> threading.Thread:
        """Try the compiler in a thread, which takes seconds on a new machine. `candidates` waits for it, and reports errors."""
        with self._opening:
            if self._trial is None:
                # As a daemon: a command that fails meanwhile ends at once.
                self._trial = threading.Thread(target=self._try_compiler, name="compiler", daemon=True)
                self._trial.start()
            return self._trial

    def _try_compiler(self) -> None:
        with contextlib.suppress(DispatchProfilerError):
            self._compiler.resolve(self._target.compile_flags)

    def candidates(
        self,
        dispatches: Sequence[Dispatch],
        ready: Callable[[Candidate], object] = _ignore,
        done: Callable[[Candidate], object] = _ignore,
        further: Sequence[Dispatch] = (),
    ) -> list[Candidate]:
        """A candidate for each of `dispatches`, in order.

        `done` is called with each candidate as soon as it is built. `ready` is called with it for other work: on few cores
        not before the last builds leave cores idle.

        The `further` dispatches are built last, for a later call: only the cache gets them.

        A candidate that is not valid, does not compile or is not applied has a state with a reason; it
        affects no other. Raises UsageError if the compiler does not know one of the flags, ToolError if it
        fails before it builds.
        """
        by_dispatch: dict[Dispatch, Candidate] = {}
        for dispatch in dispatches:
            reason = rejection_reason(dispatch.configuration, dispatch.operation, self._target.limits)
            if reason is not None:
                name = self._target.name
                by_dispatch[dispatch] = Candidate(dispatch, name, state=State.NOT_COMPILED, reason=reason)
        left = [dispatch for dispatch in dict.fromkeys(dispatches) if dispatch not in by_dispatch]
        modules, waiting = self._modules(left, self._of_later(further)), deque[Candidate]()
        most = len(modules) if self.concurrency >= _MANY_BUILDERS else self.concurrency
        for count, (module, built) in enumerate(self._built(modules), 1):
            found = {} if module.is_further else self._candidates_of(module, built)
            by_dispatch |= found
            waiting.extend(found.values())
            for each in found.values():
                done(each)
            while waiting and len(modules) - count < most:
                ready(waiting.popleft())
        return [by_dispatch[dispatch] for dispatch in dispatches]

    def _of_later(self, dispatches: Sequence[Dispatch]) -> list[Dispatch]:
        """The valid `dispatches`, which are built for the cache; none without a cache."""
        limits = self._target.limits
        valid = (
            each for each in dispatches if not rejection_reason(each.configuration, each.operation, limits)
        )
        return [] if self._cache is None else list(valid)

    def again(self, evaluated: Iterable[Evaluation]) -> dict[Dispatch, Candidate]:
        """The candidates that were evaluated, as far as the cache still has the modules that were measured."""
        found = ((each.dispatch, self._cached(each)) for each in evaluated)
        return {dispatch: candidate for dispatch, candidate in found if candidate is not None}

    def _cached(self, evaluated: Evaluation) -> Candidate | None:
        dispatch, provenance = evaluated.dispatch, evaluated.record.provenance
        key = provenance.module_key
        # A storage may come from another machine: its keys are not trusted as names of files.
        if self._cache is None or not evaluated.repeat or not _KEY.fullmatch(key):
            return None
        built = self._cache.get(key, self._options.seconds)
        if built is None or dispatch.name not in built.outcomes:
            return None
        return self._candidate(dispatch, built, key, provenance.flags, evaluated.repeat)

    def close(self) -> None:
        """End the compiler processes."""
        with self._opening:
            self._is_closed = True
            if self._pool is not None:
                self._pool.close()

    def _modules(self, dispatches: Sequence[Dispatch], further: Sequence[Dispatch] = ()) -> list[_Module]:
        """Modules of `dispatches`, small enough that all workers are busy; those that take longest first, and `further` last."""
        groups: dict[tuple[Operation, str], list[Dispatch]] = {}
        for dispatch in dispatches:
            groups.setdefault((dispatch.operation, dispatch.configuration.module), []).append(dispatch)
        count = max(1, _MODULES_OF_WORKER * (self._options.concurrency - 1))
        largest = min(self._options.largest_module, math.ceil(len(dispatches) / count))
        own = [part for group in groups.values() for part in _parts(group, largest)]
        parts = [*own, *([each] for each in further)]
        trial = self.start_ahead()
        sources = self._sources(parts)
        trial.join()  # an error is raised when the flags are needed
        modules = [self._module(part, source) for part, source in zip(parts, sources, strict=True)]
        later = [replace(module, is_further=True) for module in modules[len(own) :]]
        return [*sorted(modules[: len(own)], key=_length, reverse=True), *later]

    def _sources(self, parts: Sequence[Sequence[Dispatch]]) -> list[str]:
        """The MLIR text of each module. A microkernel takes a quarter of a second to render: many on all cores."""
        each = [(part[0].operation, part) for part in parts]
        is_alone = self._options.cluster is not None or self._options.concurrency < 2
        if is_alone or (self._pool is None and len(each) < _MANY_MODULES):
            return [render_module(*arguments) for arguments in each]
        return self._open_pool().map(render_module, each)

    def _module(self, dispatches: Sequence[Dispatch], source: str) -> _Module:
        options = self._options
        repeat = options.repeat or short_repeat(dispatches[0].operation, self._target)
        request = build_request(source, dispatches, self._target, flags=options.flags, repeat=repeat)
        # The verifier takes up to a third of the time and changes no code; the benchmark of the winners has it.
        request = replace(request, verifies_passes=False)
        return _Module(request, build_key(request, self._target, self._compiler))

    def _built(self, modules: Sequence[_Module]) -> Iterator[tuple[_Module, Built]]:
        """Each module with its result, from the cache or the compiler."""
        requests: dict[int, BuildRequest] = {}
        for index, module in enumerate(modules):
            cached = self._cache.get(module.key, self._options.seconds) if self._cache is not None else None
            if cached is None:
                requests[index] = module.request
            else:
                yield module, cached
        if not requests:
            return
        for index, built in self._open_pool().results(requests):
            if self._cache is not None:
                origin = origin_of(self._target, self._compiler)
                self._cache.put(modules[index].key, built, origin=origin)
            yield modules[index], built

    def _open_pool(self) -> BuildPool[int]:
        # joblib is slow to import, and a search that is repeated may find everything in the cache.
        from dispatch_profiler.compiler.workers.pool import BuildPool, Executor

        with self._opening:
            if self._is_closed:
                raise ToolError("interrupted")
            if self._pool is None:
                options = self._options
                kind = "threads" if options.cluster is None else "dask"
                executor = Executor(kind, options.concurrency, options.cluster, options.cores)
                self._pool = BuildPool(self._compiler, executor, options.limits)
            return self._pool

    def _candidates_of(self, module: _Module, built: Built) -> dict[Dispatch, Candidate]:
        request = module.request
        return {
            dispatch: self._candidate(dispatch, built, module.key, request.flags, request.repeat)
            for dispatch in request.dispatches
        }

    def _candidate(
        self, dispatch: Dispatch, built: Built, key: str, flags: tuple[str, ...], repeat: int
    ) -> Candidate:
        """The candidate of a dispatch of the module `built`; without vmfbs unless it was compiled."""
        outcome = built.outcomes[dispatch.name]
        candidate = Candidate(
            dispatch,
            self._target.name,
            repeat=repeat,
            state=outcome.state,
            reason=outcome.reason,
            compiler=self._compiler.revision,
            kernel=outcome.kernel,
            module_key=key,
            flags=flags,
            is_transient=outcome.is_transient,
        )
        if outcome.state is not State.COMPILED:
            return candidate
        verify = Vmfb.of(built.verify)
        profile = verify if built.profile == built.verify else Vmfb.of(built.profile)
        return replace(candidate, verify=verify, profile=profile)


def short_repeat(operation: Operation, target: Target) -> int:
    """The executions in a call of a candidate: as many as `repeat_count` says, but on a CPU fewer if they are long."""
    usual = repeat_count(operation, target.limits.gpu is not None)
    if target.limits.gpu is not None:
        return usual
    most = _FLOPS_OF_A_THREAD * usable_threads() * _BYTES_OF_AN_ELEMENT / operation.element_type.bytes
    return max(1, min(usual, round(most / max(1, operation.flops))))


def _length(module: _Module) -> int:
    """How long a module takes to compile, as the length of a source."""
    request = module.request
    generated = sum(not each.configuration.kernel_suffix for each in request.dispatches)
    return len(request.source) + _LENGTH_OF_GENERATED * generated


def _parts(group: Sequence[Dispatch], largest: int) -> Iterator[Sequence[Dispatch]]:
    """`group` in modules: dispatches that share the work of the front end together, at most `largest`."""
    sharing = [each for each in group if not each.configuration.kernel_suffix]
    if sharing:
        yield from _even_parts(sharing, largest)
    yield from ((each,) for each in group if each.configuration.kernel_suffix)


def _even_parts(group: Sequence[Dispatch], largest: int) -> Iterator[Sequence[Dispatch]]:
    """`group` in as few parts of at most `largest` as possible, of nearly equal sizes."""
    count = math.ceil(len(group) / largest)
    ends = [len(group) * number // count for number in range(count + 1)]
    for begin, end in itertools.pairwise(ends):
        yield group[begin:end]
