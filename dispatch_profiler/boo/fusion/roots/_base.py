"""What fusion needs to know of a family of operations."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from dispatch_profiler.boo.fusion.nodes import Node, is_getitem
from dispatch_profiler.boo.fusion.spec import RegionSpec
from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.families import families, find_family
from dispatch_profiler.operations import Operation
from dispatch_profiler.operations.epilogues import Epilogue, Step


class Operand(NamedTuple):
    """What an operation reads: how (see `spec.READINGS`), the nodes, and the eps of a batch norm."""

    reading: str
    nodes: tuple[Node | None, ...]
    eps: float = 0.0


@dataclass(frozen=True, eq=False)
class Begun:
    """A root as an operation, whose epilogue is still open.

    `steps` are part of the node itself, such as the bias of a convolution. `outputs` yield the results, with None for
    a result that nothing reads. `images` is the reading of results and residuals. With `keeps_rows`, views that keep
    the last axis may stand between the steps.
    """

    operation: Callable[[Epilogue], Operation]
    nodes: tuple[Node, ...]
    outputs: tuple[Node | None, ...]
    operands: tuple[Operand, ...]
    images: str
    steps: tuple[Step, ...] = ()
    has_steps: bool = True
    keeps_rows: bool = False
    values: tuple[Any, ...] = ()


#: A node -> its operation, or the operation of each kernel where a node needs several. Raises NotFusible.
Begin = Callable[[Node], Begun | tuple[Begun, ...]]


@dataclass(frozen=True)
class RootTraits:
    """What holds for regions that begin with a root: whether steps may follow, and which schemas have a rule for it."""

    has_steps: bool = False
    is_gradient: bool = False
    is_default: bool = False


class RootFamily(abc.ABC):
    """The nodes that begin regions of a family of operations, and how torch computes these regions."""

    #: Names of roots, as fusion rules have them.
    roots: ClassVar[Mapping[str, RootTraits]] = {}
    #: aten operator -> what makes an operation of a node.
    operators: Mapping[Any, Begin] = {}
    #: Whether tensors are images, whose channels torch has as the second axis; otherwise channels are last.
    has_images: ClassVar[bool] = False

    def root(self, node: Node) -> str:
        """The root that a node of one of `operators` is."""
        return next(iter(self.roots))

    @abc.abstractmethod
    def compute(self, spec: RegionSpec, operands: Sequence[Tensor]) -> list[Tensor]:
        """The results of a region without its steps, from the operands in torch's order of axes, as torch computes them."""

    def flops(self, operation: Operation) -> int:
        """What torch's `FlopCounterMode` counts for the operators of a region."""
        return 0


def root_families() -> tuple[RootFamily, ...]:
    """All families of this package."""
    return tuple(family for _, family in families(__package__, RootFamily))  # type: ignore[type-abstract]


def root_family(operation: Operation) -> RootFamily:
    """The family of a region's operation."""
    family = find_family(__package__, operation.family, RootFamily)  # type: ignore[type-abstract]
    assert family is not None, operation.family
    return family


def read(reading: str, node: Node) -> Operand:
    """An operand that one node yields."""
    return Operand(reading, (node,))


def results_read(node: Node, count: int = 3) -> dict[int, Node]:
    """Place of a result of `node` -> the node that takes it, for each of the first `count` that something reads."""
    return {at: each for each in node.users for at in range(count) if is_getitem(each, at) and each.users}


def without_steps(
    operation: Operation,
    outputs: Sequence[Node | None],
    operands: Sequence[Operand],
    *,
    nodes: Sequence[Node] | None = None,
    images: str = "rows",
    values: Sequence[Any] = (),
) -> Begun:
    """A root that no steps follow; without `nodes`, its only nodes are `outputs`."""
    computed = [each for each in outputs if each is not None] if nodes is None else nodes
    return Begun(
        operation=lambda epilogue: operation,
        nodes=tuple(computed),
        outputs=tuple(outputs),
        operands=tuple(operands),
        images=images,
        has_steps=False,
        values=tuple(values),
    )
