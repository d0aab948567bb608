"""A vector kernel that the generator writes, for products with any number of rows and a constant weight, on CPUs.

Other kernels are for one number of rows. This one takes the number from its operands: it has register tiles of every
height, and a call uses the height that covers its rows with as few as possible computed twice. The work is divided among
workgroups by a table, which has a line for each range of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from dispatch_profiler.configurations._base import Configuration, Limits, by, convert_tiles
from dispatch_profiler.configurations.cpu.microkernel import Microkernel
from dispatch_profiler.configurations.cpu.plans.microkernel import LANES
from dispatch_profiler.configurations.cpu.plans.rows import Division, RowsPlan
from dispatch_profiler.configurations.forms.builder import Step
from dispatch_profiler.configurations.splits import SlicedSums
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import ErrorBound, Operation

#: Lines of a table at most: a line for each power of two.
_MOST_DIVISIONS = 32


@dataclass(frozen=True)
class RowsMicrokernel(Configuration):
    """Tiles in elements: `RowsMicrokernel((12, 32), ((16, 1, 128), (4096, 8, 3072)))`. The operation has the most rows.

    registers  rows, and filters, whose sums stay in registers, of the tallest tiles
    divisions  (rows, parts, filters): up to so many rows are divided among so many parts, of whole register tiles, and a
               workgroup computes one part of them with so many filters. The last one is for the most rows
    unroll     terms of an iteration of the innermost loop
    lanes      elements of a vector: 16, or 8 for CPUs without AVX-512
    pairs      bf16 is multiplied in pairs of terms: see `Microkernel`
    rounds     results in bf16 are rounded by an instruction
    """

    kind: ClassVar[str] = "rows_microkernel"
    yaml_key: ClassVar[str] = "rows_microkernel"
    yaml_field: ClassVar[str] = "registers"
    template: ClassVar[str] = "rows_microkernel.mlir.j2"
    kernel_suffix: ClassVar[str] = "_rows"
    can_be_inner: ClassVar[bool] = False
    provider: ClassVar[str] = "Microkernel"
    field_names: ClassVar[tuple[str, ...]] = ("vector_tile",)
    split_k: ClassVar[int] = 1  # type: ignore[misc]

    registers: tuple[int, int]
    divisions: tuple[tuple[int, int, int], ...]
    unroll: int = 4
    lanes: int = LANES
    pairs: bool = False
    rounds: bool = False

    def __post_init__(self) -> None:
        convert_tiles(self, "a microkernel for any number of rows", registers=2)
        object.__setattr__(self, "divisions", _checked_divisions(self.divisions))
        _ = self._of_tallest  # checks the other fields

    @property
    def name(self) -> str:
        """`tile_config_rows_microkernel_12x32_u4_16x1x128_4096x8x3072[_lanes8][_pairs][_rounds]`"""
        lanes = f"_lanes{self.lanes}" if self.lanes != LANES else ""
        pairs = "_pairs" if self.pairs else ""
        rounds = "_rounds" if self.rounds else ""
        divisions = "_".join(map(by, self.divisions))
        return f"tile_config_rows_microkernel_{by(self.registers)}_u{self.unroll}_{divisions}{lanes}{pairs}{rounds}"

    def fields(self) -> dict[str, str]:
        return {"vector_tile": by(self.registers)}

    @property
    def _of_tallest(self) -> Microkernel:
        """The microkernel of one number of rows with the tallest tiles, each of which is a workgroup."""
        height, block = self.registers
        return Microkernel(
            (height, block),
            (height, 1, block),
            self.unroll,
            packed=True,
            lanes=self.lanes,
            pairs=self.pairs,
            rounds=self.rounds,
        )

    def plan(self, operation: Operation) -> RowsPlan:
        """The register tiles that the template writes."""
        return RowsPlan(
            self._of_tallest.plan(operation), tuple(Division(*division) for division in self.divisions)
        )

    def error_bound(self, operation: Operation) -> ErrorBound | None:
        plan = self._of_tallest.plan(operation)
        return SlicedSums(plan.longest_chain) if plan.is_sliced else None

    # -- packing ------------------------------------------------------------------------------

    @property
    def packs_weight(self) -> bool:
        return True

    def packing(self, operation: Operation) -> tuple[Step, ...]:
        return self._of_tallest.packing(operation)

    # -- rules --------------------------------------------------------------------------------

    def invalid_reason(self, operation: Operation, limits: Limits) -> str | None:
        product = operation.product
        if product is None or product.is_batched:
            return f"microkernels for any number of rows are for matmul, not for {operation.kind}"
        if product.lhs_layout == "n":
            return "microkernels for any number of rows need the terms of a row side by side, but lhs has layout n"
        reason = self._of_tallest.invalid_reason(operation, limits)
        if reason is not None:
            return reason
        if self._of_tallest.plan(operation).converts_images:
            return "microkernels for any number of rows multiply bf16 in pairs of terms only"
        return self._division_reason(product.m)

    def _division_reason(self, rows: int) -> str | None:
        block = self.registers[1]
        odd = next((filters for _, _, filters in self.divisions if filters % block), None)
        if odd is not None:
            return f"{odd} filters of a workgroup are not a multiple of the {block} of a register tile"
        most = self.divisions[-1][0]
        return f"the divisions are for up to {most} rows, but there are {rows}" if most < rows else None


def _checked_divisions(divisions: Any) -> tuple[tuple[int, int, int], ...]:
    """`divisions` as tuples. Raises ConfigurationError unless they are triples of whole numbers with more and more rows."""
    if not isinstance(divisions, (list, tuple)) or not 1 <= len(divisions) <= _MOST_DIVISIONS:
        raise ConfigurationError(
            f"divisions must be a list of 1 to {_MOST_DIVISIONS} lists, but got {str(divisions)[:80]!r}"
        )
    made = []
    for each in divisions:
        is_triple = isinstance(each, (list, tuple)) and len(each) == 3
        if not is_triple or any(type(number) is not int or number < 1 for number in each):
            raise ConfigurationError(
                f"a division is [rows, parts, filters], whole numbers of at least 1, but got {each!r}"
            )
        made.append(tuple(each))
    if any(first[0] >= second[0] for first, second in pairwise(made)):
        raise ConfigurationError(
            f"divisions must be in the order of their rows, but got {[rows for rows, *_ in made]}"
        )
    return tuple(made)
