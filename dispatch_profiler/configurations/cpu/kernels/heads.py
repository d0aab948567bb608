"""What kernels of attention share: how work is divided among heads, where a head begins, and larger elements of vectors."""

from __future__ import annotations

import abc
from dataclasses import dataclass

from dispatch_profiler.configurations.cpu.kernels.writer import LANES, MASK, VECTOR, KernelWriter
from dispatch_profiler.operations.strided import Strided

#: Minus infinity: the score of a key that a query does not see.
HIDDEN = "0xFF800000"


@dataclass(frozen=True, kw_only=True)
class HeadsPlan(abc.ABC):
    """The extents of an attention, where its operands and its result are, and how its heads are divided.

    Operands have the axes batch, head, position, element. `merged` heads, which share their keys, are computed together:
    their queries are one another's next rows. `position` is the first query's position among the keys if queries see no keys
    behind their positions, and with a `window` at most so many keys; None if they see all. A `mask` has the axes batch, head,
    query, key. One that `hides` has numbers other than 0 for keys that are seen; any other is added to scores. `block` keys are
    read at a time. Work is divided for `most_workgroups` at most, each with scratch memory of its own.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    size: int
    value_size: int
    scale: float
    query: Strided
    key: Strided
    value: Strided
    result: Strided
    block: int
    position: int | None = None
    window: int = 0
    mask: Strided | None = None
    hides: bool = False
    merged: int = 1
    most_workgroups: int = 64

    @property
    @abc.abstractmethod
    def units(self) -> int:
        """Parts of the work: each is computed by one workgroup."""

    @property
    @abc.abstractmethod
    def scratch(self) -> int:
        """Elements of the scratch memory of a workgroup."""

    @property
    @abc.abstractmethod
    def rescales(self) -> int:
        """How often the sums of a row are multiplied at most."""

    def problem(self) -> str | None:
        """Why the kernel cannot compute the plan; None if it can."""
        read = (self.query, self.result, *(() if self.mask is None else (self.mask,)))
        if self.merged > 1 and any(each.shared > 1 and each.strides[1] for each in read):
            return "heads that are computed together share queries or masks in part"
        return None

    @property
    def rows_of_group(self) -> int:
        """Rows of the heads that are computed together: a row is a query of a head."""
        return self.merged * self.queries

    @property
    def groups(self) -> int:
        """Heads, or heads that are computed together."""
        return self.heads // self.merged

    @property
    def workgroups(self) -> int:
        """Each computes every so many unit."""
        return min(self.units, self.most_workgroups)


class HeadsWriter(KernelWriter):
    """Writes a kernel whose operands have the axes batch, head, position, element."""

    def masking(self, mask: str, *, hides: bool) -> str:
        """What a mask adds to scores: with `hides`, minus infinity where it is 0, and 0 elsewhere."""
        if not hides:
            return mask
        hidden, zeros = self.constant(HIDDEN, VECTOR), self.constant("0.0", VECTOR)
        is_hidden = self.let(f"arith.cmpf oeq, {mask}, {zeros} : {VECTOR}")
        return self.let(f"arith.select {is_hidden}, {hidden}, {zeros} : {MASK}, {VECTOR}")

    def shift(self, largest: str) -> str:
        """What is subtracted from scores: the largest one, or 0 if all are minus infinity."""
        hidden, zeros = self.constant(HIDDEN, VECTOR), self.constant("0.0", VECTOR)
        is_hidden = self.let(f"arith.cmpf oeq, {largest}, {hidden} : {VECTOR}")
        return self.let(f"arith.select {is_hidden}, {zeros}, {largest} : {MASK}, {VECTOR}")

    def inverse(self, total: str) -> str:
        """What a row is multiplied by: one divided by its sum of exponentials, or 0 for a row that sees no key, as in torch."""
        zeros, one = self.constant("0.0", VECTOR), self.constant("1.0", VECTOR)
        is_zero = self.let(f"arith.cmpf oeq, {total}, {zeros} : {VECTOR}")
        found = self.let(f"arith.divf {one}, {total} : {VECTOR}")
        return self.let(f"arith.select {is_zero}, {zeros}, {found} : {MASK}, {VECTOR}")

    def start_of_head(self, place: Strided, batch: str, head: str) -> str:
        """Where a head begins."""
        which = f"(head floordiv {place.shared})" if place.shared > 1 else "head"
        expression = f"batch * {place.strides[0]} + {which} * {place.strides[1]} + {place.offset}"
        return self.affine(expression, batch=batch, head=head)

    def load_lanes(self, buffer: int, at: str, lanes: int = LANES) -> str:
        """A vector; with fewer `lanes`, zeros behind them."""
        return self.load(buffer, at, LANES, self.first_lanes(lanes))

    def larger(self, one: str, other: str) -> str:
        """The larger elements of two vectors of scores.

        Where one is not a number, the exponential of that score is not one either: this takes one instruction, the larger
        of numbers and not-a-numbers four.
        """
        is_larger = self.let(f"arith.cmpf ogt, {one}, {other} : {VECTOR}")
        return self.let(f"arith.select {is_larger}, {one}, {other} : {MASK}, {VECTOR}")
