"""What kernels of attention share: where a head begins, and the larger elements of vectors."""

from __future__ import annotations

from dispatch_profiler.configurations.cpu.kernels.strided import Strided
from dispatch_profiler.configurations.cpu.kernels.writer import LANES, MASK, VECTOR, KernelWriter


class HeadsWriter(KernelWriter):
    """Writes a kernel whose operands have the axes batch, head, position, element."""

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
