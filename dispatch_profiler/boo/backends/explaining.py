"""`explain`: how a backend computes a model, region by region."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dispatch_profiler.boo.backends.graph_choice import ALONE, BOUND, Decision, candidates
from dispatch_profiler.boo.backends.graph_compiler import Backend, GraphCompiler, backend
from dispatch_profiler.boo.backends.graph_kernels import (
    batch_regions,
    connecting_regions,
    copied,
    find_beside,
)
from dispatch_profiler.boo.backends.measuring import Borders, Measure, borders_of, in_turns, region_seconds
from dispatch_profiler.boo.backends.region_kernels import (
    device_of,
    kernels_of,
    measured_text,
    unusable_kernels,
)
from dispatch_profiler.boo.environment import launch_settings
from dispatch_profiler.boo.fusion.match.matching import Region, Rejected, with_frozen_weights
from dispatch_profiler.boo.fusion.model_runs import arguments_of, compiled_alone, unchanged
from dispatch_profiler.boo.fusion.nodes import Node, fake_mode, module_path
from dispatch_profiler.boo.fusion.plan.any_batch import sized_as_traced
from dispatch_profiler.boo.fusion.traced_graphs import GraphKind, boxed, compiled_by
from dispatch_profiler.boo.interface import LaunchKernel
from dispatch_profiler.boo.kernels.uses import USES, KernelUse, is_tunable
from dispatch_profiler.boo.progress import compiling
from dispatch_profiler.boo.weights.snapshots import SNAPSHOTS, FrozenMemory
from dispatch_profiler.errors import DispatchProfilerError, UsageError, did_you_mean, short_repr
from dispatch_profiler.operations import Operation

_torch: Any = torch
_ALL_TO_TORCH = "torch computes the whole graph faster"


@dataclass(frozen=True)
class RegionReport:
    """A region of a model, or a node that could have started a region but is left to torch.

    graph: `inference`, `forward` or `backward`.
    operation, configuration: the kernel's; None and empty for a node that is left to torch.
    reason: why the node is left to torch; for a fused region, why the region ends, if another node could have been part
        of it.
    seconds, torch_seconds: the times of a call, by the kernel and by eager torch node by node; None without a
        measurement.
    passed_over: failures of the configurations that were tried before the kernel's configuration.
    chosen_from: the kernels that this one was chosen from, with their seconds per call; empty if there was no choice.
    frozen: whether the weights of the region are frozen.
    frozen_configuration, frozen_seconds: configuration and time of a call if the weights were frozen; None if they are,
        or if there are no weights to freeze.
    use: where the kernel comes from; None for a node that is left to torch, and for what connects kernels.
    module: the path of the module in the model that the region begins in, such as `layer3.1.conv2`; empty for none.
    """

    graph: str
    nodes: tuple[str, ...]
    root: str
    operation: Operation | None = None
    configuration: str = ""
    reason: str = ""
    seconds: float | None = None
    torch_seconds: float | None = None
    passed_over: tuple[str, ...] = ()
    chosen_from: tuple[tuple[str, float], ...] = ()
    frozen: bool = False
    frozen_configuration: str | None = None
    frozen_seconds: float | None = None
    use: KernelUse | None = None
    module: str = ""

    @property
    def is_fused(self) -> bool:
        """Whether a kernel of this package computes the region."""
        return self.operation is not None

    @property
    def speedup(self) -> float | None:
        """The time of eager torch divided by the kernel's time; None without a measurement."""
        return self.torch_seconds / self.seconds if self.seconds and self.torch_seconds else None

    def __str__(self) -> str:
        nodes = f"{self.nodes[0]} .. {self.nodes[-1]}" if len(self.nodes) > 1 else self.nodes[0]
        nodes += f" in {self.module}" if self.module else ""
        if self.operation is None:
            return f"{self.graph:9}  fallback  {nodes}: {self.reason}"
        took = "" if self.seconds is None else f"{self.seconds * 1e6:9.0f} us  {self.speedup:5.2f}x"
        end = "" if self.use is None else f"; {self.use.text}"
        end += f"; ends there: {self.reason}" if self.reason else ""
        end += "".join(f"; passed over: {each}" for each in self.passed_over)
        end += f"; chosen from: {measured_text(self.chosen_from)}" if self.chosen_from else ""
        return f"{self.graph:9}  fused {took}  {nodes}: {self.operation.name} ({self.configuration}){end}{self._freezing}"

    @property
    def _freezing(self) -> str:
        """Whether the weights are frozen, or the effect of freezing them."""
        if self.frozen:
            return "; frozen"
        if self.frozen_configuration is None:
            return ""
        is_same = self.frozen_configuration == self.configuration
        kernel = "the same kernel" if is_same else self.frozen_configuration
        if self.frozen_seconds is None or not self.seconds:
            return f"; not frozen: freezing would use {kernel}"
        took = f"{self.frozen_seconds * 1e6:.0f} us ({self.seconds / self.frozen_seconds:.2f}x, {kernel})"
        return f"; not frozen: freezing would take {took}"


@dataclass(frozen=True)
class ChoiceReport:
    """The measured choice between several ways to compute a graph.

    `chosen` is the name of a candidate. `relative` has the time of each candidate relative to the candidate `alone`, the
    nested backend without regions; or relative to torch's kernels for the `convolutions and products`, where inductor was
    not tried since it calls them, too. `graph` is as in `RegionReport`.
    """

    graph: str
    chosen: str
    relative: Mapping[str, float]

    def __str__(self) -> str:
        if BOUND in self.relative:
            return (
                f"{self.graph:9}  {self.chosen} takes {self.relative[self.chosen]:.2f} times as long as torch's kernels "
                f"for {BOUND}, which inductor calls: inductor is not tried"
            )
        fastest_first = sorted(self.relative.items(), key=lambda each: each[1])
        times = ", ".join(f"{name} {time:.2f}" for name, time in fastest_first)
        return f"{self.graph:9}  {self.chosen} is the fastest; times relative to the nested backend: {times}"


@dataclass(frozen=True)
class Explanation:
    """The regions and choices of a model. `str()` returns a table, with speedups over eager torch.

    `choices` has an entry for each graph that was measured as a whole, now or earlier. `snapshots` has the number of
    frozen weights of this process, and the bytes of the values that derive from them.
    """

    regions: tuple[RegionReport, ...]
    choices: tuple[ChoiceReport, ...] = ()
    snapshots: FrozenMemory = FrozenMemory(0, 0)

    @property
    def operations(self) -> Counter[Operation]:
        """The tunable operations of fused regions -> how often each occurs."""
        return Counter(
            each.operation.tuned_as
            for each in self.regions
            if each.operation is not None and is_tunable(each.operation)
        )

    def __str__(self) -> str:
        fused = sum(each.is_fused for each in self.regions)
        title = f"{fused} of {len(self.regions)} regions are fused"
        if self.snapshots.weights:
            title += f"; snapshots of {self.snapshots.weights} frozen weights take {self.snapshots.bytes / 1e6:.1f} MB"
        return "\n".join([title, *map(str, self.choices), *map(str, self.regions)])


#: Backends that torch.compile knows by name, and what they compute the rest with.
_NESTED = {
    f"{package}boo{end}": nested
    for package in ("iree_", "dispatch_profiler_")
    for end, nested in (("", None), ("_inductor", "inductor"))
}


def _named(given: Any) -> Backend:
    """The backend that `given` is, names, or is the registered function of."""
    if isinstance(given, Backend):
        return given
    name = given if isinstance(given, str) else getattr(given, "__name__", "")
    if name not in _NESTED:
        raise UsageError(
            f"explain: unknown backend {short_repr(given)}",
            hint=f"{did_you_mean(name, _NESTED)}; or pass what dispatch_profiler.boo.backends.backend() returns",
        )
    return backend(_NESTED[name])


def explain(
    model: Callable[..., Any],
    inputs: Any,
    *,
    backend: Backend | str | Callable[..., Any] = backend(),
    measure: Measure | None = in_turns,
) -> Explanation:
    """List the regions of a model: whether they are fused or left to torch, why, and how fast they are.

    `inputs` is a tensor, a sequence of positional arguments, or a mapping of keyword arguments.
    If grad is enabled and parameters require it, these are the regions of forward and backward. Kernels are compiled and
    chosen as `torch.compile` does with `backend`, and each different region is measured in turns with eager torch.
    Without `measure`, nothing is measured, and the list includes all gradients that `BOO_USE_BACKWARD_KERNELS=1` asks for, even if torch is faster. Graphs are compiled
    and measured as `torch.compile` does with `backend`, unless the decision is in the cache; with `autotune`, the list
    has the regions of the chosen candidate. `backend` is what `backend()` returns, or a name that torch.compile takes,
    `iree_boo` or `iree_boo_inductor`. `model` is not changed. Raises the errors of torch.compile, and UsageError for
    another backend.
    """
    chosen = _named(backend)
    with compiling(f"explain {chosen.__name__}"):
        return _explained(model, inputs, chosen, measure)


def _explained(
    model: Callable[..., Any], inputs: Any, chosen: Backend, measure: Measure | None
) -> Explanation:
    reports: list[RegionReport] = []
    choices: list[ChoiceReport] = []
    measured: dict[Any, tuple[float | None, float | None]] = {}
    for kind, module, decision in _capture(model, inputs, chosen, is_measured=measure is not None):
        name, choice = kind.value, chosen.region_choice(kind, chosen.autotunes())
        autotune = chosen.autotunes() if measure is not None else False
        schema = chosen.schema_for(kind, module.graph, autotune)
        if decision is not None:
            choices.append(ChoiceReport(name, decision.chosen, decision.relative))
            if chosen.autotunes() is True:
                (schema,) = [each.schema for each in candidates(schema) if each.name == decision.chosen]
        varying, slower = batch_regions(module.graph, schema, None if measure is None else choice)
        regions, rejected = find_beside(module.graph, schema, varying, slower)
        is_chosen = choice is not None and measure is not None
        failed = choice.prepared(regions) if choice is not None and is_chosen else unusable_kernels(regions)
        usable = [each for each in regions if each.spec.operation not in failed]
        if choice is not None and measure is not None:
            usable, slower = choice.chosen(usable)
            rejected += slower
            regions = [each for each in regions if each in usable or each.spec.operation in failed]
        if decision is not None and decision.chosen == ALONE:
            rejected += [Rejected(each.root, each.nodes[0], _ALL_TO_TORCH) for each in usable]
            regions = [each for each in regions if each not in usable]
        else:
            regions += connecting_regions(module.graph, usable, schema, failed)
        borders = dict(zip(map(id, usable), borders_of(usable), strict=True))
        places = {node: number for number, node in enumerate(module.graph.nodes)}
        located = [
            (
                places[each.nodes[0]],
                _report(name, each, borders.get(id(each), Borders()), failed, measure, measured),
            )
            for each in regions
        ]
        if varying:
            with sized_as_traced(module.graph, fake_mode(module.graph)):
                located += [
                    (places[each.nodes[0]], _report(name, each, Borders(), failed, measure, measured))
                    for each in varying
                ]
        located += [
            (places[each.node], _left_to_torch(name, str(each.root), [each.node], each.reason))
            for each in rejected
        ]
        reports += [report for _, report in sorted(located, key=lambda pair: pair[0])]
    return Explanation(tuple(reports), tuple(choices), SNAPSHOTS.frozen)


#: The kind of a graph, its module, and the decision of autotune.
_Captured = tuple[GraphKind, Any, Decision | None]


def _capture(
    model: Callable[..., Any],
    inputs: Any,
    backend: Backend,
    *,
    is_measured: bool,
) -> list[_Captured]:
    """The graphs that AOTAutograd passes to the backend."""
    graphs: list[_Captured] = []

    def capturing(module: Any, example_inputs: Sequence[Any]) -> Any:
        def keep(kind: GraphKind, graph: Any, graph_inputs: Sequence[Any]) -> Any:
            autotune = backend.autotunes()
            is_decided = backend.measures_graphs(kind, autotune) and (is_measured or autotune is True)
            decision = _decision(kind, graph, graph_inputs, backend, example_inputs) if is_decided else None
            graphs.append((kind, graph, decision))
            return boxed(graph.forward)

        return compiled_by(
            keep,
            module,
            example_inputs,
            saves_memory=not backend.runs_eagerly,
            freezes=backend.freezes(),
            decompositions=backend.decompositions,
        )

    positional, named = arguments_of(inputs)
    with unchanged(model, inputs):
        outputs = compiled_alone(model, capturing)(*positional, **named)
        # The graph of the backward is made when it is needed.
        results = outputs if isinstance(outputs, (tuple, list)) else [outputs]
        parameters = model.parameters() if isinstance(model, torch.nn.Module) else ()
        leaves = [
            each
            for each in (*parameters, *positional, *named.values())
            if isinstance(each, torch.Tensor) and each.requires_grad
        ]
        differentiable = [each for each in results if isinstance(each, torch.Tensor) and each.requires_grad]
        if leaves and differentiable and not any(kind is GraphKind.BACKWARD for kind, _, _ in graphs):
            _torch.autograd.grad([each.sum() for each in differentiable], leaves, allow_unused=True)
    return graphs


def _decision(
    kind: GraphKind,
    module: Any,
    example_inputs: Sequence[Any],
    backend: Backend,
    real_inputs: Sequence[Any],
) -> Decision | None:
    """The measured decision about a graph, made now or earlier; None if the graph is not measured."""
    known: dict[str, str] = {}
    compile_graph = GraphCompiler(
        replace(backend, _decisions=known), {}, backend.autotunes(), backend.freezes(), list(real_inputs)
    )
    compile_graph(kind, copied(module), example_inputs)
    return Decision.of(next(iter(known.values()), ""))


def _report(
    graph: str,
    region: Region,
    borders: Borders,
    failed: dict[Operation, str],
    measure: Measure | None,
    measured: dict[Any, tuple[float | None, float | None]],
) -> RegionReport:
    operation = region.spec.operation
    if operation in failed:
        return _left_to_torch(graph, str(region.root), region.nodes, failed[operation])
    try:
        seconds, torch_seconds = _seconds(region, borders, measure, measured)
    except DispatchProfilerError as error:
        return _left_to_torch(graph, str(region.root), region.nodes, str(error))
    kernel, configuration = _kernel(region)
    report = RegionReport(
        graph,
        tuple(map(str, region.nodes)),
        str(region.root),
        operation,
        configuration,
        region.stop,
        seconds,
        torch_seconds,
        kernel.passed_over,
        kernel.measured,
        use=USES.of(operation, packs_weight=region.spec.packs_weight) if is_tunable(operation) else None,
        module=region.module,
    )
    frozen = with_frozen_weights(region)
    if not frozen.spec.frozen:
        return report
    if frozen.spec == region.spec:
        return replace(report, frozen=True)
    try:
        frozen_seconds, _ = _seconds(frozen, borders, measure, measured)
        _, configuration = _kernel(frozen)
        return replace(report, frozen_configuration=configuration, frozen_seconds=frozen_seconds)
    except DispatchProfilerError:
        return report  # no kernel for frozen weights


def _left_to_torch(graph: str, root: str, nodes: Sequence[Node], reason: str) -> RegionReport:
    return RegionReport(graph, tuple(map(str, nodes)), root, reason=reason, module=module_path(nodes))


def _seconds(
    region: Region,
    borders: Borders,
    measure: Measure | None,
    measured: dict[Any, tuple[float | None, float | None]],
) -> tuple[float | None, float | None]:
    """Seconds of a call by the kernel and by torch. Raises DispatchProfilerError if the region has no kernel."""
    key = region.spec, borders
    if key not in measured:
        measured[key] = (None, None) if measure is None else region_seconds(region, measure, borders=borders)
    return measured[key]


def _kernel(region: Region) -> tuple[LaunchKernel, str]:
    """The kernel of a region, and the name of its configuration."""
    kernel = kernels_of(region.spec, launch_settings()).kernel(device_of(region))
    if region.spec.any_batch:  # the kernel is of another size
        return kernel, f"tile_config{kernel.function.rpartition('tile_config')[2]}"
    return kernel, kernel.function.removeprefix(f"{region.spec.operation.name}_")
