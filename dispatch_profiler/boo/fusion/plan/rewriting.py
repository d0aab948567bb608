"""Replaces regions by calls of one operator, with the memory formats that kernels need.

    relu(batch_norm(convolution(x, w, ...), ...)[0])
        -> dispatch_profiler.regions([x, w, gamma, variance, beta, mean], "...")[0]

Results of regions are in channels_last memory, even where the graph had other strides. So strides are propagated again
through operators that are known to take any strides. Before other operators, and at the graph's outputs, strides are
restored. If outputs share memory, the strides of its owner are restored, and the outputs remain views of the owner.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from dispatch_profiler.boo.fusion.execute.calls import empty_results
from dispatch_profiler.boo.fusion.execute.torch_operator import REGIONS
from dispatch_profiler.boo.fusion.match.matching import Region
from dispatch_profiler.boo.fusion.nodes import Node, aten, is_getitem
from dispatch_profiler.boo.fusion.plan.eager_strides import (
    correct_strides_behind,
    corrected_result,
)
from dispatch_profiler.boo.fusion.plan.joining import insert_call, join_runs
from dispatch_profiler.boo.fusion.plan.updating import place_updates
from dispatch_profiler.boo.fusion.schema import GRADIENTS
from dispatch_profiler.boo.fusion.spec import RunSpec, parse_run
from dispatch_profiler.boo.fusion.strides import (
    copy_if_needed,
    is_dense,
    name_same_memory,
    shared_memory,
    takes_any_strides,
    with_strides,
)
from dispatch_profiler.boo.ops.layouts import storage_order

Graph = Any
_torch: Any = torch
#: Key in `meta` of the output: places of results -> their strides in eager torch, which compilers may change.
RESULT_STRIDES = "dispatch_profiler_result_strides"
#: The place of a bias among gradients.
_BIAS = 2
#: Operators that join several tensors.
_JOINS = (aten.cat.default, aten.stack.default)


def rewrite(
    graph: Graph,
    regions: Sequence[Region],
    fake_mode: Any,
    *,
    runs_eagerly: bool = False,
    joins: bool = True,
) -> None:
    """Replace `regions` in a graph whose nodes have `meta["val"]`, in place. Unless `joins`, each is a run of its own.

    If the rest `runs_eagerly`, all results get the strides of the graph, which `correct_strides` has corrected. Otherwise, results that follow from regions
    get them, and other results keep the strides of the graph's fake tensors. `RESULT_STRIDES` in `meta` of the output
    then has the strides that a compiler may change: of results with axes of one element, and of results that follow
    from regions, since compilers may replace operators by others, whose results follow the strides of their arguments.
    """
    shared = shared_memory(graph)
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    if not runs_eagerly:
        outputs = [each for region in regions for each in region.outputs if each is not None]
        named = correct_strides_behind(outputs, graph, fake_mode)
    replaced: dict[Node, Node] = {}
    for region in regions:
        _replace(graph, region, replaced)
    _sort(graph)
    for gradients in dict.fromkeys(each.nodes[0].args[0] for each in regions if each.root in GRADIENTS):
        _leave_to_torch(graph, gradients)
    graph.eliminate_dead_code()
    bases = {replaced.get(each.base, each.base): each.views for each in shared}
    strides = _Strides(graph, fake_mode, bases, runs_eagerly=runs_eagerly)
    strides.propagate()
    if not runs_eagerly:
        strides.copy_joined_results()
        output.meta[RESULT_STRIDES] = strides.of_results(output) | named
    graph.eliminate_dead_code()
    if joins:
        join_runs(graph, REGIONS)
        place_updates(graph)
    graph.lint()


def _replace(graph: Graph, region: Region, replaced: dict[Node, Node]) -> None:
    """Put one call in place of a region's last node. `replaced` maps former outputs of regions to the new nodes."""
    last = max(region.nodes)  # nodes compare by their positions in the graph
    inputs = [replaced.get(each, each) for each in region.inputs]
    outputs = {output: at for at, output in enumerate(region.outputs) if output is not None}
    _, replacements = insert_call(graph, REGIONS, last, inputs, RunSpec.of(region.spec), outputs)
    replaced.update(replacements)


def _sort(graph: Graph) -> None:
    """Move arguments of nodes before them: a call returns all results of a region where the last result was."""
    at, placed = graph._root, set[Node]()
    for each in list(graph.nodes):
        waiting = [each]
        while waiting:
            node = waiting[-1]
            missing = [source for source in node.all_input_nodes if source not in placed]
            if missing and node not in placed:
                waiting.extend(missing)
                continue
            waiting.pop()
            if node not in placed:
                placed.add(node)
                if at.next is not node:
                    at.append(node)
                at = node


class _Strides:
    """Propagates strides through a graph whose regions are calls, and inserts the copies that this needs."""

    def __init__(
        self, graph: Graph, fake_mode: Any, shared: Mapping[Node, set[Node]], *, runs_eagerly: bool
    ) -> None:
        self.graph = graph
        self.runs_eagerly = runs_eagerly
        self.fake_mode = fake_mode
        #: Nodes whose memory outputs share -> the views that lead to these outputs.
        self.shared = shared
        #: Nodes whose strides have changed since the graph was traced -> their fake tensors before.
        self.before: dict[Node, Any] = {}
        #: Nodes in `before` -> nodes with the same elements and the strides from before.
        self.restored: dict[Node, Node] = {}
        #: A node and the reading of calls -> the node that all these calls read.
        self.laid_out: dict[tuple[Node, str], Node] = {}

    def propagate(self) -> None:
        with self.fake_mode, _torch.no_grad():
            for node in list(self.graph.nodes):
                if node.op == "call_function" and node.target is REGIONS:
                    self._visit_call(node)
                elif node.op == "call_function" and self._reads_changed(node):
                    self._visit(node)
                elif node.op == "output":
                    self._restore_arguments(node)
            self._renew_views()

    def copy_joined_results(self) -> None:
        """Copy results of `cat` and `stack` whose arguments have other strides now, even if their own are unchanged.

        In inductor, their strides may follow from the arguments. A copy has fixed strides, and inductor computes it in
        the same loop. Results that own shared memory are not copied, so that other results stay views of them.
        """
        (output,) = [node for node in self.graph.nodes if node.op == "output"]
        joined = [
            each for each in output.all_input_nodes if each.target in _JOINS and each not in self.shared
        ]
        with self.fake_mode, _torch.no_grad(), self.graph.inserting_before(output):
            for node in joined:
                if node not in self.before and self._reads_changed(node):
                    copied = self._new(aten.clone.default, node, memory_format=torch.contiguous_format)
                    if copied.meta["val"].stride() == node.meta["val"].stride():
                        output.replace_input_with(node, copied)

    def of_results(self, output: Node) -> dict[int, tuple[int, ...]]:
        """Place -> strides of the results that follow from regions and do not share memory with other results."""
        behind = set[Node]()
        for node in self.graph.nodes:
            if node.target is REGIONS or not behind.isdisjoint(node.all_input_nodes):
                behind.add(node)
        alone = behind.difference(self.shared, *self.shared.values())
        return {
            place: node.meta["val"].stride()
            for place, node in enumerate(output.args[0])
            if node in alone and _has_static_strides(node.meta["val"])
        }

    def _visit_call(self, node: Node) -> None:
        run = parse_run(node.args[1])
        ((spec, _),) = run.steps
        inputs = list(node.args[0])
        for source in spec.sources:
            at = source.inputs[0]
            if source.reading in ("channels", "rows"):
                with self.graph.inserting_before(node):
                    inputs[at] = self._laid_out(inputs[at], source.reading)
        node.args = (inputs, node.args[1])
        node.meta["val"] = results = empty_results(run, inputs[0].meta["val"])
        for user in node.users:
            self._set(user, results[user.args[1]])

    def _laid_out(self, node: Node, reading: str) -> Node:
        """`node` in channels_last or contiguous memory, unless calls copy it."""
        key = node, reading
        if key not in self.laid_out:
            axes = node.meta["val"].dim()
            order = [0, *range(2, axes), 1] if reading == "channels" else list(range(axes))
            is_usable = _is_copied_by_calls(node) or node.meta["val"].permute(order).is_contiguous()
            self.laid_out[key] = node if is_usable else self._copied_in(node, order)
        return self.laid_out[key]

    def _copied_in(self, node: Node, order: list[int]) -> Node:
        """A copy of `node` whose memory has its axes in `order`."""
        axes = list(range(len(order)))
        moved = node if order == axes else self._new(aten.permute.default, node, order)
        copied = self._new(aten.clone.default, moved, memory_format=torch.contiguous_format)
        back = [order.index(axis) for axis in axes]
        return copied if order == axes else self._new(aten.permute.default, copied, back)

    def _new(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        node = self.graph.call_function(target, args, kwargs)
        values = [each.meta["val"] if isinstance(each, torch.fx.Node) else each for each in args]
        node.meta["val"] = target(*values, **kwargs)
        return node

    def _set(self, node: Node, fake: Any) -> None:
        """Set the new fake tensor of a node."""
        before = node.meta.get("val")
        node.meta["val"] = fake
        if not isinstance(before, torch.Tensor) or before.stride() == fake.stride():
            return
        if name_same_memory(before.shape, fake.stride(), before.stride()) and is_dense(before):
            self._rename(node, before)
            return
        self.before[node] = before
        if node in self.shared:
            self._restore_shared(node, before)

    def _rename(self, node: Node, like: Any) -> None:
        """Let torch's operators read a view of `node` with the strides of `like`, which differ along axes with one element.

        Calls of regions still read `node`.
        """
        readers = [user for user in node.users if user.target is not REGIONS]
        with self.graph.inserting_before(node.next):
            renamed = self._strided(node, like)
        for each in readers:
            each.replace_input_with(node, renamed)

    def _restore_shared(self, node: Node, like: Any) -> None:
        """Restore the strides of `like` for `node`, and let outputs that share its memory be views of the new tensor."""
        with self.graph.inserting_before(node.next):
            self.restored[node] = restored = self._restored(node, like)
        for user in list(node.users):
            if user.op == "output" or user in self.shared[node]:
                user.replace_input_with(node, restored)

    def _renew_views(self) -> None:
        """Compute the fake tensors of views of shared memory again, from their new arguments."""
        views = set[Node]().union(*self.shared.values())
        for view in self.graph.nodes:
            if view not in views:
                continue
            args, kwargs = torch.fx.map_arg((view.args, view.kwargs), lambda each: each.meta["val"])
            view.meta["val"] = view.target(*args, **kwargs)

    def _visit(self, node: Node) -> None:
        """Compute the fake tensor of a node again, whose arguments have other strides now."""
        copy_if_needed(node)
        if not takes_any_strides(node.target):
            self._restore_arguments(node)
            return
        if node.target is operator.getitem:
            result = node.args[0].meta["val"][node.args[1]]
        else:
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
            try:
                result = node.target(*args, **kwargs)
            except (RuntimeError, ValueError, TypeError, NotImplementedError):
                self._restore_arguments(node)
                return
        if self.runs_eagerly:
            result = corrected_result(node, result, self.fake_mode)
        if isinstance(result, torch.Tensor):
            self._set(node, result)
        elif isinstance(result, (tuple, list)):
            before = node.meta.get("val")
            node.meta["val"] = result
            self.before[node] = before
        # Other results, such as numbers, do not depend on strides.

    def _restore_arguments(self, node: Node) -> None:
        """Let a node read tensors with the strides that the graph was traced with.

        All such nodes read the same copy: inductor writes to parts of a tensor in place if they are parts of one node.
        """
        with self.graph.inserting_before(node):
            for each in node.all_input_nodes:
                if isinstance(self.before.get(each), torch.Tensor) and each not in self.restored:
                    self.restored[each] = self._restored(each, self.before[each])
        node.args, node.kwargs = torch.fx.map_arg(
            (node.args, node.kwargs), lambda each: self.restored.get(each, each)
        )

    def _reads_changed(self, node: Node) -> bool:
        return any(each in self.before for each in node.all_input_nodes)

    def _restored(self, node: Node, like: Any) -> Node:
        """`node` with the strides of `like`, even along axes with one element: a copy, or `node` if it has them."""
        expanded = [axis for axis in range(like.dim()) if like.stride(axis) == 0 and like.shape[axis] > 1]
        if expanded:
            narrow, part = node, like
            for axis in expanded:
                narrow = self._new(aten.slice.Tensor, narrow, axis, 0, 1)
                part = part.narrow(axis, 0, 1)
            restored = self._restored(narrow, part)
            return self._new(aten.expand.default, restored, list(like.shape))
        is_there = name_same_memory(like.shape, node.meta["val"].stride(), like.stride())
        restored = node if is_there else self._copied(node, like)
        # Compilers do not need views that only change strides of axes with one element, and may copy parts for them.
        if restored.meta["val"].stride() != like.stride() and (self.runs_eagerly or is_dense(like)):
            return self._strided(restored, like)
        return restored

    def _strided(self, node: Node, like: Any) -> Node:
        target = with_strides if self.runs_eagerly else aten.as_strided.default
        return self._new(target, node, list(like.shape), list(like.stride()))

    def _copied(self, node: Node, like: Any) -> Node:
        if like.is_contiguous():  # without permutations, so that the graph does not return a view
            return self._copied_in(node, list(range(like.dim())))
        if self.runs_eagerly:
            return self._strided(node, like)
        if not is_dense(like):
            size, stride = list(like.shape), list(like.stride())
            empty = self._new(aten.empty_strided.default, size, stride, dtype=like.dtype, device=like.device)
            return self._new(aten.copy.default, empty, node)
        return self._copied_in(node, list(storage_order(like.stride())))


def _is_copied_by_calls(node: Node) -> bool:
    """Whether calls may copy a node whose strides their kernels cannot use: an input that only calls read.

    A compiler could copy it as well, but if the whole graph is calls, it would have to be loaded for that.
    """
    return node.op == "placeholder" and all(user.target is REGIONS for user in node.users)


def _has_static_strides(fake: Any) -> bool:
    return isinstance(fake, torch.Tensor) and all(type(each) is int for each in (*fake.shape, *fake.stride()))


# -- gradients -------------------------------------------------------------------------------------

# Operators that compute several gradients, some of which kernels compute.


def _leave_to_torch(graph: Graph, gradients: Node) -> None:
    """Let an operator compute only the gradients that are still read.

    If only the gradient of a convolution's bias is left, a sum computes it.
    """
    read = {at: each for each in gradients.users for at in range(3) if is_getitem(each, at) and each.users}
    if set(read) == {_BIAS} and gradients.target is aten.convolution_backward.default:
        dy, bias = gradients.args[0], read[_BIAS]
        with graph.inserting_before(bias):
            total = graph.call_function(aten.sum.dim_IntList, (dy, [0, *range(2, dy.meta["val"].dim())]))
        total.meta["val"] = bias.meta["val"]
        bias.replace_all_uses_with(total)
    elif read:
        compute_only(gradients, read)


def compute_only(gradients: Node, places: Iterable[int]) -> None:
    """Let an operator compute only the gradients at `places` among input, weight and bias, with its last argument."""
    wanted = set(places)
    *arguments, _ = gradients.args
    gradients.args = (*arguments, [at in wanted for at in range(3)])
    values = gradients.meta.get("val")
    if values is not None:
        gradients.meta["val"] = tuple(each if at in wanted else None for at, each in enumerate(values))
