"""Replaces the regions of a graph of AOTAutograd by calls of our kernels, and prepares the kernels."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from dispatch_profiler.boo.backends.region_choice import RegionChoice
from dispatch_profiler.boo.environment import LOGGER
from dispatch_profiler.boo.fusion.execute.checking import wrong_programs
from dispatch_profiler.boo.fusion.execute.run_graphs import RunGraph
from dispatch_profiler.boo.fusion.execute.torch_operator import REGIONS, DirectCall
from dispatch_profiler.boo.fusion.match.glue import find_glue
from dispatch_profiler.boo.fusion.match.matching import Region, Rejected, find_regions
from dispatch_profiler.boo.fusion.nodes import value
from dispatch_profiler.boo.fusion.plan.rewriting import rewrite
from dispatch_profiler.boo.fusion.programs.programs import OperatorProgram
from dispatch_profiler.boo.fusion.schema import GLUE, FusionSchema
from dispatch_profiler.boo.fusion.spec import RegionSpec, parse_run
from dispatch_profiler.boo.kernels import prepare_kernels
from dispatch_profiler.cores import usable_cores
from dispatch_profiler.errors import DispatchProfilerError
from dispatch_profiler.runtime.device_uri import DeviceUri

_torch: Any = torch
_CPU = DeviceUri("local-task")
_log = logging.getLogger(LOGGER)


@dataclass(frozen=True, eq=False)
class FusedGraph:
    """A graph module with calls of our kernels, and the regions and rejected nodes of the graph before."""

    module: Any
    regions: tuple[Region, ...]
    rejected: tuple[Rejected, ...]

    @cached_property
    def runs(self) -> RunGraph | None:
        """The graph as runs, if our kernels compute all of it and leave nothing for a nested backend; else None."""
        return RunGraph.of(self.module.graph) if self.regions else None


@dataclass
class Fallbacks:
    """Reports operators that are not fused: logs each reason once, or raises it in strict mode."""

    strict: bool
    _logged: set[str] = field(default_factory=set)

    def report(self, what: str, error: BaseException | str) -> None:
        """Raise `error` in strict mode; otherwise log it once, with `what` failed."""
        is_ours = isinstance(error, (str, DispatchProfilerError))
        # Messages of other compilers may have hundreds of lines.
        message = f"{what}: {error if is_ours else str(error).partition(chr(10))[0]}"
        if self.strict:
            if isinstance(error, BaseException):
                raise error
            raise DispatchProfilerError(message)
        if message not in self._logged:
            self._logged.add(message)
            _log.warning("%s; torch computes it", message)


class SilentFallbacks(Fallbacks):
    """Reports operators that are not fused by a candidate's schema: only logs them, at DEBUG."""

    def __init__(self) -> None:
        super().__init__(strict=False)

    def report(self, what: str, error: BaseException | str) -> None:
        """Log `error`."""
        _log.debug("%s: %s", what, error)


def fuse(
    module: Any,
    schema: FusionSchema,
    fallbacks: Fallbacks,
    choice: RegionChoice | None = None,
    *,
    runs_eagerly: bool = False,
) -> FusedGraph:
    """A copy of a graph module in which regions are calls of our operators.

    Regions without a kernel, and regions that `choice` decides against, stay as they are. A module without regions is
    returned itself. With `runs_eagerly`, eager torch computes the rest (see `rewrite`).
    """
    graph = _copy(module.graph)
    regions, rejected = find_regions(graph, schema)
    for each in rejected:
        fallbacks.report(f"{each.node} ({each.root})", each.reason)
    regions, failed = _usable(regions, unusable_kernels(regions), fallbacks)
    rejected += failed
    if choice is not None:
        regions, slower = choice.chosen(regions, device_of)
        rejected += slower
    if not regions:
        return FusedGraph(module, (), tuple(rejected))
    reasons: dict[Any, str] = {}
    connecting = connecting_regions(graph, regions, schema, reasons)
    connecting, failed = _usable(connecting, reasons, fallbacks)
    rejected += failed
    regions += connecting
    rewrite(graph, regions, fake_mode(graph), runs_eagerly=runs_eagerly)
    return FusedGraph(torch.fx.GraphModule(module, graph), tuple(regions), tuple(rejected))


def _usable(
    regions: Sequence[Region], reasons: Mapping[Any, str], fallbacks: Fallbacks
) -> tuple[list[Region], list[Rejected]]:
    """The regions whose operations are not in `reasons`, and the other regions, which are reported, as rejected."""
    usable, failed = list[Region](), list[Rejected]()
    for region in regions:
        reason = reasons.get(region.spec.operation)
        if reason is None:
            usable.append(region)
        else:
            fallbacks.report(region.spec.operation.name, reason)
            failed.append(Rejected(region.root, region.nodes[0], reason))
    return usable, failed


def connecting_regions(
    graph: Any, regions: Sequence[Region], schema: FusionSchema, failed: dict[Any, str]
) -> list[Region]:
    """Programs that connect `regions`, if the schema has a rule for them. Adds why some are unusable to `failed`."""
    if schema.rule_for(GLUE) is None:
        return []
    glue = find_glue(graph, regions)
    failed |= unusable_kernels(glue)
    programs = [each.spec.operation for each in glue if each.spec.operation not in failed]
    if programs:
        failed |= wrong_programs(
            (each for each in programs if isinstance(each, OperatorProgram)), device_of(glue[0])
        )
    return glue


def copied(module: Any) -> Any:
    """A graph module with a copy of the graph, for compilers that change the graph that they compile."""
    return torch.fx.GraphModule(module, _copy(module.graph))


def distinct(function: Callable[..., Any], module: Any) -> Callable[..., Any]:
    """`function`, which a compiler made from `module`, with a separate tensor object for each result of the graph.

    Compilers leave out views that change nothing, and return the same object for a result and its view.
    """
    (output,) = [node for node in module.graph.nodes if node.op == "output"]
    nodes = list(output.args[0])
    if len({id(each) for each in nodes}) < 2:
        return function

    def call(*inputs: Any) -> Any:
        results = list(function(*inputs))
        first: dict[int, Any] = {}
        for at, (result, node) in enumerate(zip(results, nodes, strict=True)):
            if isinstance(result, torch.Tensor) and first.setdefault(id(result), node) is not node:
                results[at] = result.view_as(result)
        return results

    return call


def _copy(graph: Any) -> Any:
    copied: Any = torch.fx.Graph()
    results = copied.graph_copy(graph, {})
    node = copied.output(results)
    (original,) = [each for each in graph.nodes if each.op == "output"]
    node.meta.update(original.meta)
    return copied


def fake_mode(graph: Any) -> Any:
    """The mode of the fake tensors that AOTAutograd traced `graph` with; None without any."""
    values = [value(each) for each in graph.nodes]
    return _torch._guards.detect_fake_mode([each for each in values if each is not None])


def device_of(region: Region) -> DeviceUri:
    """The device that the kernel of a region runs on."""
    device = value(region.inputs[0]).device
    return _CPU if device.type == "cpu" else DeviceUri("cuda", str(device.index or 0))


def unusable_kernels(regions: Sequence[Region]) -> dict[Any, str]:
    """Compile the kernels of all regions at once. Returns why operations have no kernel."""
    return _unusable((device_of(region), region.spec) for region in regions)


def has_kernels(graph: RunGraph) -> bool:
    """Compile missing kernels for the CPU. Returns whether every region has a kernel with correct results."""
    if _unusable((_CPU, region) for region in graph.regions):
        return False
    operations = [region.operation for region in graph.regions]
    return not wrong_programs((each for each in operations if isinstance(each, OperatorProgram)), _CPU)


def _unusable(regions: Iterable[tuple[DeviceUri, RegionSpec]]) -> dict[Any, str]:
    by_device: dict[tuple[DeviceUri, bool], list[Any]] = {}
    for uri, spec in regions:
        by_device.setdefault((uri, spec.packs_weight), []).append(spec.operation)
    failed: dict[Any, str] = {}
    for (uri, packs_weight), operations in by_device.items():
        failed |= _failures(list(dict.fromkeys(operations)), uri, packs_weight=packs_weight)
    return failed


def _failures(operations: Sequence[Any], uri: DeviceUri, *, packs_weight: bool) -> dict[Any, str]:
    try:
        return prepare_kernels(operations, uri, len(usable_cores()), packs_weight=packs_weight)
    except DispatchProfilerError as error:
        if len(operations) == 1:
            return {operations[0]: str(error)}
    # One by one, so that an operation that fails, such as a program that cannot be imported, does not affect others.
    return {
        each: reason
        for one in operations
        for each, reason in _failures([one], uri, packs_weight=packs_weight).items()
    }


def with_direct_calls(fused: FusedGraph, *, strict: bool) -> Any:
    """The module with runs called as Python functions, bypassing torch's dispatcher."""
    graph = fused.module.graph
    for number, node in enumerate(graph.nodes):
        if node.op == "call_function" and node.target is REGIONS:
            inputs, text = node.args
            node.target = _function(DirectCall(parse_run(text), strict=strict), number)
            node.args = tuple(inputs)
    fused.module.recompile()
    return fused.module


def _function(call: Any, number: int) -> Callable[..., Any]:
    def regions(*inputs: Any) -> Any:
        return call(*inputs)

    # The name of the function in the graph's code.
    regions.__name__ = regions.__qualname__ = f"regions_{number}"
    return regions
