"""The second kernel of attention whose keys are split: adds up what each part of the keys contributes to a row.

With m the largest score of a part, t its sum of exponentials exp(score - m), s its weighted values, and M the largest m:

    sum over parts exp(m - M) s / sum over parts exp(m - M) t
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dispatch_profiler.configurations.cpu.kernels.heads import HeadsWriter
from dispatch_profiler.configurations.cpu.kernels.writer import LANES, VECTOR
from dispatch_profiler.operations.strided import Strided


@dataclass(frozen=True, kw_only=True)
class JoinedKeysPlan:
    """Extents of an attention whose keys are split, and how its parts are in memory.

    For each sequence, group of `merged` heads, and one of its `parts`: the largest score of each row in `LANES` elements, the
    sums of exponentials in as many, and `sum_size` elements for each row.
    """

    batch: int
    heads: int
    queries: int
    value_size: int
    merged: int
    parts: int
    result: Strided
    most_workgroups: int

    @property
    def sum_size(self) -> int:
        """Elements of a row, in whole vectors."""
        return -(-self.value_size // LANES) * LANES

    @property
    def sums(self) -> int:
        """The first element of the rows in a part."""
        return 2 * LANES

    @property
    def part_size(self) -> int:
        """Elements of a part."""
        return self.sums + self.merged * self.queries * self.sum_size

    @property
    def elements(self) -> int:
        """Of all parts."""
        return self.batch * self.heads // self.merged * self.parts * self.part_size

    @property
    def units(self) -> int:
        """Rows of all sequences."""
        return self.batch * self.heads * self.queries

    @property
    def workgroups(self) -> int:
        """Each computes every so many row."""
        return min(self.units, self.most_workgroups)


class JoinedKeysKernel(HeadsWriter):
    """Writes the kernel, which reads the parts and writes the results of an attention."""

    def finished(self, plan: JoinedKeysPlan) -> JoinedKeysKernel:
        """The kernel, with its instructions."""
        self.plan = plan
        self.workgroups = plan.workgroups
        self.write("%group = hal.interface.workgroup.id[0] : index")
        self.loop("%group", self.constant(plan.units), plan.workgroups, self._row)
        return self

    def _row(self, number: str, _: Sequence[str]) -> tuple[str, ...]:
        """A row: a query of a head."""
        plan = self.plan
        query = self.affine(f"unit mod {plan.queries}", unit=number)
        head = self.affine(f"(unit floordiv {plan.queries}) mod {plan.heads}", unit=number)
        batch = self.affine(f"unit floordiv {plan.queries * plan.heads}", unit=number)
        row = self.affine(f"(head mod {plan.merged}) * {plan.queries} + query", head=head, query=query)
        groups = plan.heads // plan.merged
        group = self.affine(f"batch * {groups} + head floordiv {plan.merged}", batch=batch, head=head)
        parts = [
            self.affine(f"group * {plan.parts * plan.part_size} + {part * plan.part_size}", group=group)
            for part in range(plan.parts)
        ]
        result = self.affine(
            f"start + query * {plan.result.strides[2]}",
            start=self.start_of_head(plan.result, batch, head),
            query=query,
        )
        self._add_up(row, parts, self._factors(row, parts), result)
        return ()

    def _factors(self, row: str, parts: Sequence[str]) -> list[str]:
        """What the row of each part is multiplied by."""
        places = [self.affine("part + row", part=part, row=row) for part in parts]
        scores = [self.broadcast(0, at, LANES) for at in places]
        largest = scores[0]
        for each in scores[1:]:
            largest = self.larger(largest, each)
        shift = self.shift(largest)
        factors = [self.exponential(self.let(f"arith.subf {each}, {shift} : {VECTOR}")) for each in scores]
        total = self.constant("0.0", VECTOR)
        for at, factor in zip(places, factors, strict=True):
            part = self.broadcast(0, self.affine(f"at + {LANES}", at=at), LANES)
            total = self.let(f"vector.fma {part}, {factor}, {total} : {VECTOR}")
        inverse = self.inverse(total)
        return [self.let(f"arith.mulf {factor}, {inverse} : {VECTOR}") for factor in factors]

    def _add_up(self, row: str, parts: Sequence[str], factors: Sequence[str], result: str) -> None:
        """Store the sum of the parts of a row, from the place `result` on."""
        plan = self.plan
        rows = [
            self.affine(f"part + row * {plan.sum_size} + {plan.sums}", part=part, row=row) for part in parts
        ]

        def write(first: str, lanes: int) -> None:
            total = self.constant("0.0", VECTOR)
            for begin, factor in zip(rows, factors, strict=True):
                value = self.load_lanes(0, self.affine("begin + first", begin=begin, first=first))
                total = self.let(f"vector.fma {value}, {factor}, {total} : {VECTOR}")
            place = self.affine("result + first", result=result, first=first)
            self.store(total, 1, place, LANES, self.first_lanes(lanes))

        self.parts(plan.value_size, write)
