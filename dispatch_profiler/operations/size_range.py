"""The sizes that a dimension has in use, such as `m=17:256`: numbers of rows of a product, or of images of a convolution."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations._base import Operation

_TEXT = re.compile(r"([a-z]+)=([0-9]{1,18}):([0-9]{1,18})", re.ASCII)
_EXPECTED = "DIMENSION=LEAST:MOST, such as m=1:4096 (rows of products) or n=1:64 (images of convolutions)"


@dataclass(frozen=True, order=True)
class SizeRange:
    """Sizes from `least` to `most`, both included, of the dimension of `Operation.batch_name`.

    Raises OperationError for an empty range.
    """

    dimension: str
    least: int
    most: int

    def __post_init__(self) -> None:
        if not self.dimension or self.least < 1:
            raise OperationError(f"{self.text}: expected {_EXPECTED}, with sizes of at least 1")
        if self.least > self.most:
            raise OperationError(
                f"{self.text}: the range is empty; did you mean {self.dimension}={self.most}:{self.least}?"
            )

    @classmethod
    def parse(cls, text: str) -> SizeRange:
        """Inverse of `text`. Raises OperationError."""
        found = _TEXT.fullmatch(text)
        if found is None:
            raise OperationError(f"expected {_EXPECTED}, but got {text[:80]!r}")
        return cls(found[1], int(found[2]), int(found[3]))

    @property
    def text(self) -> str:
        """`m=17:256`"""
        return f"{self.dimension}={self.least}:{self.most}"

    @property
    def ratio(self) -> float:
        """The largest size over the smallest one."""
        return self.most / self.least

    def __contains__(self, size: object) -> bool:
        return isinstance(size, int) and self.least <= size <= self.most

    def samples(self, count: int) -> tuple[int, ...]:
        """At most `count` different sizes, evenly spaced on a logarithmic scale, with both ends.

        Every second one between the ends is made odd: most sizes in use are no multiples of a register tile.
        """
        if self.least == self.most:
            return (self.least,)
        step = math.log(self.ratio) / max(count - 1, 1)
        spaced = [round(self.least * math.exp(at * step)) for at in range(count)]
        inner = [size | 1 if at % 2 else size for at, size in enumerate(spaced)]
        return tuple(sorted({self.least, self.most, *(each for each in inner[1:-1] if each in self)}))

    def largest_of(self, operation: Operation) -> Operation:
        """`operation` with the most rows or images. Raises OperationError if its dimension cannot vary in one kernel."""
        if not operation.batch_name or operation.with_batch(self.most) is None:
            raise OperationError(
                f"{operation.name}: {self.text} does not apply: no kernel of such an operation is for several sizes"
            )
        if operation.batch_name != self.dimension:
            raise OperationError(
                f"{operation.name}: one kernel is for several {operation.batch_name}, not for several {self.dimension}"
            )
        largest = operation.with_batch(self.most)
        assert largest is not None
        return largest
