"""Chooses the fastest way to compute a graph by measuring several. The cache keeps decisions beside kernels.

Times of single regions say little about a graph: consecutive regions wait only once, and each change between torch's
threads and the kernels' threads takes time. So whole graphs are compiled in several ways and measured.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import operator
import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dispatch_profiler.boo.backends.measuring import as_call, keeps_random_states, samples
from dispatch_profiler.boo.backends.region_kernels import device_of
from dispatch_profiler.boo.environment import LOGGER, launch_settings
from dispatch_profiler.boo.fusion.match.matching import find_regions
from dispatch_profiler.boo.fusion.nodes import fake_mode
from dispatch_profiler.boo.fusion.plan.any_batch import any_batch_regions, inputs_as_traced
from dispatch_profiler.boo.fusion.roots.product import MATRIX_PRODUCT
from dispatch_profiler.boo.fusion.schema import BOO_FUSIONS_WITH_MATRIX_PRODUCTS, FusionSchema
from dispatch_profiler.boo.kernels import KernelSearch, Toolchain, any_batch_keys, target_of
from dispatch_profiler.boo.launching.torch_types import product_precision
from dispatch_profiler.boo.ops.library import NAMESPACE
from dispatch_profiler.boo.progress import current
from dispatch_profiler.boo.rounds import Clock, Rounds, fastest, relative_times
from dispatch_profiler.boo.session import SESSION
from dispatch_profiler.compiler import Cache
from dispatch_profiler.cores import usable_threads
from dispatch_profiler.runtime.device_uri import DeviceUri

_torch: Any = torch
_log = logging.getLogger(LOGGER)
#: The candidate without regions.
ALONE = "alone"
#: The candidate with the regions of the backend's schema.
FUSED = "fused"
#: Not a candidate, but a lower bound on the time of `ALONE`: torch's kernels for the convolutions and products.
BOUND = "convolutions and products"
#: A graph that takes at most this part of the bound's time is not compiled by the nested backend.
_UNBEATEN = 0.95
#: A graph with larger inputs is measured only if the user asks for it, since measuring copies the inputs.
_MOST_BYTES = 1 << 30
#: Operators in these namespaces have no side effects.
_PURE = ("aten", "prims", NAMESPACE)
#: Prefix of the names of notes.
NOTE = "choice"


@dataclass(frozen=True)
class GraphCandidate:
    """A way to compute a graph: our kernels compute the regions of `schema`, the nested backend computes the rest."""

    name: str
    schema: FusionSchema


def candidates(schema: FusionSchema) -> Iterator[GraphCandidate]:
    """The nested backend alone, then variants of the given schema. The last variant finds the most regions."""
    products = BOO_FUSIONS_WITH_MATRIX_PRODUCTS.rule_for(MATRIX_PRODUCT)
    assert products is not None
    wide = schema if schema.rule_for(MATRIX_PRODUCT) else schema.with_rules([products])
    yield GraphCandidate(ALONE, FusionSchema())
    yield GraphCandidate("fused without layer norms", schema.without("layer_norm"))
    yield GraphCandidate("fused with matrix products, without layer norms", wide.without("layer_norm"))
    yield GraphCandidate(FUSED, schema)
    yield GraphCandidate("fused with matrix products", wide)


def with_and_without(schema: FusionSchema) -> Iterator[GraphCandidate]:
    """The nested backend alone, and the given schema: for a nested backend that compiles nothing."""
    yield GraphCandidate(ALONE, FusionSchema())
    yield GraphCandidate(FUSED, schema)


@dataclass(frozen=True)
class Graph:
    """A graph to compile, its example inputs, which may be fake, and its real inputs if they are known.

    `is_dynamic`: whether sizes are known in each call only. The example inputs may have those of the traced call.
    """

    module: Any
    example_inputs: Sequence[Any]
    real_inputs: Sequence[Any]
    is_dynamic: bool = False

    @property
    def as_traced(self) -> Graph:
        """The graph with the sizes of the traced call in its example inputs: what compares sizes must not restrict them."""
        if not _is_dynamic(self.example_inputs):
            return self
        mode = fake_mode(self.module.graph)
        inputs = self.example_inputs if mode is None else inputs_as_traced(self.example_inputs, mode)
        return replace(self, example_inputs=inputs, is_dynamic=True)


def is_measured_by_default(graph: Graph) -> bool:
    """Whether measuring a graph goes unnoticed, so that it needs no request by the user.

    All its operators are torch's own and have no side effects (unlike collectives, which wait for other processes), and
    copies of its inputs need little memory.
    """
    inputs = (each for each in graph.example_inputs if isinstance(each, torch.Tensor))
    is_small = sum(each.numel() * each.element_size() for each in inputs) <= _MOST_BYTES
    return is_small and all(_is_pure(node) for node in graph.module.graph.nodes)


def _is_pure(node: Any) -> bool:
    if node.op != "call_function" or node.target is operator.getitem:
        return node.op not in ("call_method", "call_module")
    return getattr(node.target, "namespace", "") in _PURE


#: Computes a graph: a function that takes one list of inputs.
Compiled = Callable[..., Any]


@dataclass(frozen=True)
class Build:
    """Compiles copies of a graph: `alone` by the nested backend, `fused` with the regions of a candidate.

    `fused` returns None if all regions are left to the nested backend. `report` is called with errors of the nested
    backend on a graph with regions, and may raise them. `bound` returns, after `fused`, a function that cannot take longer
    than the graph that the nested backend alone compiles; None if the two need to be compared.
    """

    alone: Callable[[], Compiled]
    fused: Callable[[GraphCandidate], Compiled | None]
    report: Callable[[str, BaseException], None]
    bound: Callable[[], Callable[[], object] | None] = lambda: None

    def __call__(self, candidate: GraphCandidate) -> tuple[str, Compiled]:
        """The graph compiled with `candidate`, or with `ALONE` if that is impossible, after the candidate's name."""
        function = None
        try:
            function = self.fused(candidate) if candidate.schema.rules else None
        except Exception as error:  # for example, faults of inductor that only graphs with regions trigger
            self.report("a graph cannot be compiled beside our regions", error)
        return (ALONE, self.alone()) if function is None else (candidate.name, function)


@dataclass(frozen=True)
class Decision:
    """The candidate that computes a graph, and the time of each measured candidate relative to `ALONE`.

    If `ALONE` was not compiled, because it cannot be the fastest, times are relative to `BOUND`.
    """

    chosen: str
    relative: Mapping[str, float]

    @property
    def note(self) -> str:
        """The text for a cache."""
        return json.dumps({"chosen": self.chosen, **self.relative})

    @classmethod
    def of(cls, note: str) -> Decision | None:
        """The decision in `note`; None if the note is damaged."""
        try:
            relative = dict(json.loads(note))
            return cls(str(relative.pop("chosen")), {name: float(each) for name, each in relative.items()})
        except (ValueError, TypeError, KeyError):
            return None


@dataclass(frozen=True)
class GraphChoice:
    """Decides how graphs are computed, by measuring each graph once.

    Decisions are kept as notes beside a kernel in the cache, and in `known` for this process; `name` identifies the
    nested backend in them. `report` is called with each failure, and may raise it. Graphs with dynamic shapes are measured
    with and without the schema's regions, with the sizes of the call that they were traced for. With `is_guard`, only the given schema and the
    nested backend alone are compared, and the schema's regions are used in graphs that are not `is_measured_by_default`.
    """

    name: str
    measure: Rounds
    known: MutableMapping[str, str]
    report: Callable[[str, BaseException], None]
    is_guard: bool = False

    def compiled(self, graph: Graph, schema: FusionSchema, build: Build) -> tuple[str, Compiled]:
        """The name of the fastest candidate, and the graph compiled with it. Other candidates leave nothing behind.

        Raises the errors of the nested backend on the whole graph. Other candidates that cannot be compiled or run are
        passed over.
        """
        graph, plan = graph.as_traced, None
        with self._reported("a graph is not fused"):
            plan = self._plan(graph, schema)
        if plan is None:
            return ALONE, build.alone()
        if len(plan.candidates) == 1:
            return build(plan.candidates[0])
        decided = plan.decision()
        for each in plan.candidates:
            if decided is not None and each.name == decided.chosen:
                return build(each)
        built, failed = self._built(plan.candidates, build)
        unbeaten = self._unbeaten(graph, built, build)
        if unbeaten is not None:
            plan.keep(unbeaten)
            return unbeaten.chosen, built[unbeaten.chosen]
        built = {ALONE: build.alone(), **built}
        decision = self._measured(graph, built) if len(built) > 1 else Decision(ALONE, {ALONE: 1.0})
        # A candidate that failed may work in the next process.
        if not failed and len(decision.relative) == len(built):
            plan.keep(decision)
        return decision.chosen, built[decision.chosen]

    def _plan(self, graph: Graph, schema: FusionSchema) -> _ChoicePlan:
        if graph.is_dynamic:
            operations = [each.spec.operation for each in any_batch_regions(graph.module.graph, schema)]
            kernels = any_batch_keys(operations)
            every = list(with_and_without(schema))[: 2 if kernels else 1]
        else:
            possible = with_and_without(schema) if self.is_guard else candidates(schema)
            every = _distinct(graph.module.graph, possible)
            kernels = _kernel_keys(graph.module.graph, every[-1].schema) if len(every) > 1 else []
        if len(every) > 1 and self.is_guard and not is_measured_by_default(graph):
            every, kernels = [every[-1]], []
        return _ChoicePlan(every, self.known, kernels, self._note(graph, schema, kernels))

    @contextlib.contextmanager
    def _reported(self, what: str) -> Iterator[None]:
        """Report an error that is raised inside, and go on after it: torch computes what cannot be used."""
        try:
            yield
        except Exception as error:  # compilers, drivers and torch's operators raise their own kinds
            self.report(what, error)

    def _built(self, every: Sequence[GraphCandidate], build: Build) -> tuple[dict[str, Compiled], bool]:
        """The compiled candidates with regions by name, and whether a candidate failed."""
        built, failed = dict[str, Compiled](), False
        for each in every[1:]:
            function, has_failed = None, True
            with self._reported(f"a graph, {each.name}"):
                function, has_failed = build.fused(each), False
            failed |= has_failed
            if function is not None:
                built[each.name] = function
        return built, failed

    def _unbeaten(self, graph: Graph, built: dict[str, Compiled], build: Build) -> Decision | None:
        """The decision for a graph with regions if it is faster than the bound of the nested backend; otherwise None."""
        if not self.is_guard or FUSED not in built or graph.is_dynamic:
            return None
        try:
            with self._reported("a graph that could not be measured"), _real_inputs(graph) as inputs:
                bound = build.bound()
                if bound is None:
                    return None
                fused = as_call(built[FUSED], inputs)
                fused()
                wait_for_children()
                _report_measuring()
                taken = self.measure([bound, fused])
                _log.info("%s with %s: %s", FUSED, self.name, _shown((BOUND, FUSED), taken))
                _, relative = relative_times(taken)
                if relative <= _UNBEATEN:
                    return Decision(FUSED, {BOUND: 1.0, FUSED: relative})
        finally:
            SESSION.clear("regions")
        return None

    def _measured(self, graph: Graph, built: dict[str, Compiled]) -> Decision:
        """The fastest candidate, and the times of all candidates that could be measured."""
        try:
            with self._reported("a graph that could not be measured"):
                return self._fastest(graph, built)
            return Decision(ALONE, {})
        finally:
            SESSION.clear("regions")  # calls of other candidates, and operands that they derived

    def _fastest(self, graph: Graph, built: dict[str, Compiled]) -> Decision:
        """The fastest candidate, measured on real tensors. See `_measured`."""
        with _real_inputs(graph) as inputs:
            runs = {name: as_call(function, inputs) for name, function in built.items()}
            for name in list(runs)[1:]:
                function = runs.pop(name)
                with self._reported(f"a graph, {name}"):
                    function()
                    runs[name] = function
            wait_for_children()
            _report_measuring()
            taken = self.measure(list(runs.values()))
        names = list(runs)
        chosen = names[fastest(taken)]
        _log.info("%s is the fastest with %s: %s", chosen, self.name, _shown(names, taken))
        return Decision(chosen, dict(zip(names, relative_times(taken), strict=True)))

    def _note(self, graph: Graph, schema: FusionSchema, kernels: Sequence[str]) -> str:
        """The name of the note: a hash of everything that a decision depends on.

        This is the graph, torch, the numbers of threads, and the keys of the kernels, which depend on the library and
        the compiler.
        """
        graphs = [str(each.graph) for each in graph.module.modules() if hasattr(each, "graph")]
        inputs = [
            f"{each.dtype} {tuple(each.shape)} {each.stride()} {each.device}"
            if isinstance(each, torch.Tensor)
            else repr(each)
            for each in graph.example_inputs
        ]
        threads = str(torch.get_num_threads()), str(usable_threads())
        setting = [self.name, torch.__version__, *threads, product_precision()]
        text = "\n".join([*setting, schema.text, *kernels, *inputs, *graphs])
        return f"{NOTE}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _report_measuring() -> None:
    progress = current()
    progress.phase("measuring the whole graph with and without kernels of this package")
    progress.begin()


@contextlib.contextmanager
def _real_inputs(graph: Graph) -> Iterator[list[Any]]:
    """Real tensors for the inputs of a graph, in a context in which it can be called and changes no random state."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    unset: Any = unset_fake_temporarily
    with unset(), _torch._guards.tracing(None), torch.no_grad():
        inputs = samples(graph.example_inputs, graph.real_inputs)
        with keeps_random_states(inputs):
            yield inputs


def _shown(names: Sequence[str], taken: Sequence[Sequence[float]]) -> str:
    return ", ".join(
        f"{name} {statistics.median(each) * 1e3:.3f} ms" for name, each in zip(names, taken, strict=True)
    )


def _distinct(graph: Any, every: Iterable[GraphCandidate]) -> list[GraphCandidate]:
    """Candidates with different regions: the nested backend alone, and the last candidate with each set of regions."""
    by_regions: dict[frozenset[Any], GraphCandidate] = {}
    for each in every:
        regions = find_regions(graph, each.schema)[0] if each.schema.rules else ()
        key = frozenset((region.nodes, region.spec) for region in regions)
        if key or not by_regions:
            by_regions[key] = each
    return list(by_regions.values())


def _is_dynamic(inputs: Sequence[Any]) -> bool:
    sizes = ((*each.shape, *each.stride()) if isinstance(each, torch.Tensor) else (each,) for each in inputs)
    return any(isinstance(size, torch.SymInt) for each in sizes for size in each)


def _kernel_keys(graph: Any, schema: FusionSchema) -> list[str]:
    """The keys of the kernels of all regions."""
    regions, _ = find_regions(graph, schema)
    tuning = launch_settings().tuning
    toolchains: dict[DeviceUri, Toolchain] = {}
    keys = dict[Any, str]()
    for region in regions:
        device, operation, packs = device_of(region), region.spec.operation, region.spec.packs_weight
        if device not in toolchains:
            toolchains[device] = Toolchain.of(target_of(device), tuning)
        if (device, operation, packs) not in keys:
            search = KernelSearch(operation, operation.name, toolchains[device], packs_weight=packs)
            if not search.fault:
                keys[device, operation, packs] = search.key
    return list(keys.values())


@dataclass(frozen=True)
class _ChoicePlan:
    """The candidates of a graph, and the name of the note with the decision.

    The note is in `known`, and beside the first of `kernels` that is in the cache.
    """

    candidates: Sequence[GraphCandidate]
    known: MutableMapping[str, str]
    kernels: Sequence[str]
    note: str

    def decision(self) -> Decision | None:
        """The decision about the graph, made now or earlier; None if the graph was not measured."""
        cache = self._cache()
        if self.note not in self.known and cache is not None:
            texts = (cache.notes(key).get(self.note) for key in self.kernels)
            text = next((each for each in texts if each is not None), None)
            if text is not None:
                self.known[self.note] = text
        return Decision.of(self.known.get(self.note, ""))

    def keep(self, decision: Decision) -> None:
        """Keep a decision for later graphs and processes."""
        self.known[self.note] = decision.note
        cache = self._cache()
        # If the cache has neither a kernel nor its failure, memory or disk space was lacking. Next time it may win.
        if cache is not None and all(key in cache for key in self.kernels):
            for key in self.kernels:
                cache.add_note(key, self.note, decision.note)
                if self.note in cache.notes(key):
                    return

    @staticmethod
    def _cache() -> Cache | None:
        folder = launch_settings().cache_folder
        return None if folder is None else Cache(folder)


# -- quiet -----------------------------------------------------------------------------------------

# Waits until processes that this one started leave the cores alone, before something is measured.
#
# Inductor starts workers when it compiles for the first time, which import torch for some seconds. On two cores, they double
# the time of our kernels, whose threads stay on their cores, and change the time of torch's operators less.


#: Seconds after which a measurement begins all the same, and between looks.
_MOST, _STEP = 10.0, 0.2
#: Processes are busy that use more than this part of a core.
_BUSY = 0.1
_PROCESSES = Path("/proc")
#: The seconds that processes computed so far, by their ids.
Used = Callable[[], Mapping[int, float]]


def used_by_children() -> dict[int, float]:
    """The seconds that each process computed so far that descends from this one; nothing where /proc does not say it."""
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for path in _PROCESSES.glob("[0-9]*/stat"):
        try:
            # Behind the name, which may have blanks: state, parent, ..., and ticks of user and system.
            fields = path.read_text().rpartition(")")[2].split()
            process = int(path.parent.name)
            parents[process] = int(fields[1])
            seconds[process] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            continue  # it has ended
    return {process: each for process, each in seconds.items() if _descends(process, parents)}


def _descends(process: int, parents: Mapping[int, int]) -> bool:
    while process in parents:
        process = parents[process]
        if process == os.getpid():
            return True
    return False


def used_by_parent() -> dict[int, float]:
    """The seconds that the process computed so far that started this one; nothing where /proc does not say it."""
    try:
        fields = (_PROCESSES / str(os.getppid()) / "stat").read_text().rpartition(")")[2].split()
        return {os.getppid(): (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")}
    except (OSError, ValueError, IndexError):
        return {}


def wait_for_children(clock: Clock = Clock(), used: Used = used_by_children, *, most: float = _MOST) -> None:
    """Wait until the processes that this one started are idle, for at most `most` seconds.

    `used` may watch other processes.
    """
    end = clock.now() + most
    before, since = used(), clock.now()
    while before and since < end:
        clock.sleep(_STEP)
        after, now = used(), clock.now()
        spent = sum(max(0.0, seconds - before.get(process, 0.0)) for process, seconds in after.items())
        if spent <= _BUSY * (now - since):
            return
        before, since = after, now
