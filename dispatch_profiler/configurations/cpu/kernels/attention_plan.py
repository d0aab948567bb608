"""How a kernel of attention divides its work, and where its operands are."""

from __future__ import annotations

from dataclasses import dataclass

from dispatch_profiler.configurations.cpu.kernels.heads import HeadsPlan
from dispatch_profiler.configurations.cpu.kernels.writer import LANES

#: Sums that a register tile keeps: more would not fit into 32 registers.
SUMS = 24
#: Most keys or elements of a register tile.
_MOST_OF_TILE = 16


@dataclass(frozen=True, kw_only=True)
class AttentionPlan(HeadsPlan):
    """A block has `vectors` of rows."""

    vectors: int
    #: Whether keys and values are of a narrower type than f32.
    is_narrow: bool = False

    @property
    def copies(self) -> bool:
        """Whether keys and values are copied to scratch memory in f32, so that none is converted for each query."""
        sizes = ((self.size, self.key), (self.value_size, self.value))
        return self.is_narrow and all(size == 1 or each.strides[3] == 1 for size, each in sizes)

    @property
    def padded(self) -> int:
        """Elements from a copied key or value to the next."""
        return -(-max(self.size, self.value_size) // LANES) * LANES

    @property
    def rows(self) -> int:
        """Of a block."""
        return self.vectors * LANES

    @property
    def blocks(self) -> int:
        """Blocks of rows of a group."""
        return -(-self.rows_of_group // self.rows)

    @property
    def units(self) -> int:
        """Blocks of rows of all groups."""
        return self.batch * self.groups * self.blocks

    @property
    def kept_keys(self) -> int:
        """Keys whose scores are kept at a time."""
        return min(self.block, self.keys)

    @property
    def is_whole(self) -> bool:
        """Whether a block has all keys, so that no sum is multiplied again."""
        return self.block >= self.keys

    @property
    def scratch(self) -> int:
        """Elements of a workgroup: queries, scores and results of a block, transposed; copied keys and values."""
        copied = 2 * self.kept_keys * self.padded if self.copies else 0
        return (self.size + self.value_size + self.kept_keys) * self.rows + copied

    @property
    def key_tile(self) -> int:
        """Keys of a register tile."""
        return min(SUMS // self.vectors, _MOST_OF_TILE, self.kept_keys)

    @property
    def value_tile(self) -> int:
        """Elements of values of a register tile: a divisor, unless only short ones divide."""
        most = min(SUMS // self.vectors, _MOST_OF_TILE, self.value_size)
        whole = [each for each in range(1, most + 1) if self.value_size % each == 0]
        return whole[-1] if 2 * whole[-1] > most else most

    @property
    def rescales(self) -> int:
        """How often the sums of a row are multiplied at most."""
        return 0 if self.is_whole else -(-self.keys // self.block)

    def problem(self) -> str | None:
        """Why the kernel cannot load or store whole vectors; None if it can."""
        if reason := super().problem():
            return reason
        stored = (("queries", self.query, self.size), ("results", self.result, self.value_size))
        for name, each, extent in stored:
            if extent > 1 and each.strides[3] != 1:
                return f"elements of its {name} are not consecutive"
        if self.mask is not None and self.mask.strides[2] and self.mask.strides[3] != 1:
            return "elements of its mask are not consecutive"
        return None
