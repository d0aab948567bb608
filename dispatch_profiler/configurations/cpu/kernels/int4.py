"""A product with a weight of 4-bit numbers as one kernel of vector instructions: see `operations/contraction/int4_matmul.py`.

A workgroup computes some panels of the weight, each for a part of the rows. A vector has sixteen columns of a panel for one
term. With few rows, a term is unpacked in registers, and multiplied by the rows at once:

    result = sum over groups (scale * sum over terms (x * number) + shift * sum over terms (x)),  shift = zero - 8 * scale

so that a scale is multiplied once for each group. With more rows, a block of terms is unpacked into scratch memory, as
number * scale + shift, and then multiplied by all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dispatch_profiler.configurations.cpu.kernels.writer import LANES, VECTOR, KernelWriter, function_text
from dispatch_profiler.configurations.cpu.plans.microkernel import LINE
from dispatch_profiler.operations import Int4Geometry, Tensor

#: Terms of an iteration of the innermost loop.
_UNROLL = 4
#: How many groups, and terms, ahead of their use are prefetched.
_GROUPS_AHEAD, _TERMS_AHEAD = 4, 128
#: The bits of the second of two elements of bf16.
_UPPER_HALF = -(2**16)
_BYTES_OF = {"f32": 4, "bf16": 2, "f16": 2}
_BYTES, _INTEGERS = f"vector<{LANES}xi8>", f"vector<{LANES}xi32>"
_PAIRS = f"vector<{2 * LANES}xf32>"


@dataclass(frozen=True)
class Int4Plan:
    """How a product is divided.

    rows    of a register tile
    share   panels of a workgroup; the last one may have fewer
    block   terms that are unpacked into memory at a time, whole groups; 0 if terms are unpacked in registers
    part    rows of a workgroup; the last one may have fewer
    widens  whether rows are converted to f32 in scratch memory: those of narrower types, with a block
    integers  whether elements are multiplied as whole numbers (see `int4_integers`), not in f32
    """

    product: Int4Geometry
    rows: int
    share: int
    block: int
    part: int
    widens: bool
    integers: bool = False

    @property
    def workgroups(self) -> tuple[int, int]:
        """Shares of the panels, and parts of the rows."""
        return -(-self.product.panels // self.share), -(-self.product.m // self.part)

    @property
    def vectors(self) -> int:
        """Of a term of a panel."""
        return self.product.panel // LANES

    @property
    def longest_chain(self) -> int:
        """The most additions that a product goes through."""
        if self.integers:  # besides those of whole numbers: of a group, products and sums are rounded to f32
            return 3 + 2 * self.product.groups
        terms = self.block or self.product.group
        return terms + 2 * -(-self.product.k // terms)

    @property
    def sums(self) -> int:
        """The first of the sums in scratch memory, which are behind the block."""
        return self.block * self.product.panel

    @property
    def widened(self) -> int:
        """The first of the rows in f32, which are behind the sums."""
        return self.sums + self.part * self.product.panel

    @property
    def units_start(self) -> int:
        """The first of the units of groups, which are behind the groups' sums."""
        return self.part * self.product.groups

    @property
    def integers_start(self) -> int:
        """The first of the integers, which are behind the units."""
        return _whole_lines(2 * self.units_start)

    @property
    def integer_elements(self) -> int:
        """Elements of scratch memory for the integers of a row, two in each."""
        return _whole_lines(self.product.k // 2)

    @property
    def scratch(self) -> int:
        """Elements of a workgroup's scratch memory: of groups' sums, or of a block, sums and rows, in whole cache lines."""
        if self.integers:
            return _whole_lines(self.integers_start + self.part * self.integer_elements)
        if not self.block:
            return _whole_lines(self.part * self.product.groups)
        return self.widened + (self.part * self.block if self.widens else 0)


class Int4Kernel(KernelWriter):
    """Writes the kernel. Buffers: rows, panels, scales, the result, and scratch memory."""

    def __init__(
        self, function: str, inputs: Sequence[Tensor], results: Sequence[Tensor], plan: Int4Plan
    ) -> None:
        shares, parts = plan.workgroups
        super().__init__(function, inputs, results, shares * parts * plan.scratch)
        self.plan, self.product = plan, plan.product

    def finished(self) -> str:
        """MLIR text with the kernel, and the function that launches it."""
        plan = self.plan
        shares, parts = plan.workgroups
        self.workgroups = shares * parts
        self.write("%group = hal.interface.workgroup.id[0] : index")
        first = self.affine(f"(group mod {shares}) * {plan.share}", group="%group")
        last = self.affine(f"first + {plan.share}, {self.product.panels}", kind="min", first=first)
        self.first_row = self.affine(f"(group floordiv {shares}) * {plan.part}", group="%group")
        self.end_row = self.affine(f"row + {plan.part}, {self.product.m}", kind="min", row=self.first_row)
        self.memory = len(self.buffers) - 1
        self.scratch_start = self.affine(f"group * {plan.scratch}", group="%group")
        self._prepare()
        self.loop(first, last, 1, self._panel)
        return function_text(self.function, self.inputs, self.results, [self])

    def _prepare(self) -> None:
        """Store what all panels need of the rows."""
        if not self.plan.block:
            self.loop(self.first_row, self.end_row, 1, self._add_up_groups)

    def _panel(self, panel: str, _: Sequence[str]) -> tuple[str, ...]:
        if self.plan.block:
            self._in_blocks(panel)
        else:
            self._row_tiles(lambda row, rows: self._in_registers(panel, row, rows))
        return ()

    def _row_tiles(self, write: Callable[[str, int], None]) -> None:
        """`write(row, rows)` for each register tile, the last of which may have fewer rows."""
        rows = self.plan.rows
        left = self.product.m % rows
        whole = self.affine(f"end, {self.product.m - left}", kind="min", end=self.end_row)
        for first, end, count in ((self.first_row, whole, rows), (whole, self.end_row, left)):
            if count:

                def body(row: str, _: Sequence[str], count: int = count) -> tuple[str, ...]:
                    write(row, count)
                    return ()

                self.loop(first, end, count, body)

    # -- the weight ---------------------------------------------------------------------------

    def _bytes(self, panel: str, term: str) -> list[str]:
        """The bytes of a term of a panel, as vectors of integers."""
        begin = self.affine(
            f"(panel * {self.product.k} + term) * {self.product.panel // 2}", panel=panel, term=term
        )
        found = []
        for at in range(self.plan.vectors // 2):
            place = self.affine(f"begin + {at * LANES}", begin=begin)
            stored = self.let(f"vector.load %buffer1[{place}] : {self.buffers[1]}, {_BYTES}")
            found.append(self.let(f"arith.extui {stored} : {_BYTES} to {_INTEGERS}"))
        return found

    def _lower(self, byte: str) -> str:
        return self.let(f"arith.andi {byte}, {self.constant(15, _INTEGERS)} : {_INTEGERS}")

    def _upper(self, byte: str) -> str:
        return self.let(f"arith.shrui {byte}, {self.constant(4, _INTEGERS)} : {_INTEGERS}")

    def _looked_up(self, byte: str) -> str:
        """The lower number of bytes, in f32. The instruction uses only the four lowest bits, and takes the place of two."""
        table = self.constant([float(number) for number in range(LANES)], VECTOR)
        return self.let(
            f'llvm.call_intrinsic "llvm.x86.avx512.permvar.sf.512"({table}, {byte}) : ({VECTOR}, {_INTEGERS}) -> {VECTOR}'
        )

    def _real(self, number: str) -> str:
        return self.let(f"arith.sitofp {number} : {_INTEGERS} to {VECTOR}")

    def _scales(self, panel: str, group: str) -> list[tuple[str, str]]:
        """The scale and the shift of each vector of columns."""
        found = []
        for vector in range(self.plan.vectors):
            place = self.affine(
                f"(group * {self.product.n} + panel * {self.product.panel} + {vector * LANES}) * 2",
                group=group,
                panel=panel,
            )
            pairs = self.load(2, place, 2 * LANES)
            scale, zero = (
                self.let(
                    f"vector.shuffle {pairs}, {pairs} {list(range(first, 2 * LANES, 2))} : {_PAIRS}, {_PAIRS}"
                )
                for first in (0, 1)
            )
            middle = self.constant(f"{-float(self.product.middle):.1f}", VECTOR)
            found.append((scale, self.let(f"vector.fma {scale}, {middle}, {zero} : {VECTOR}")))
        return found

    def _prefetch_scales(self, panel: str, group: str) -> None:
        """Prefetch the scales of a later group: those of the groups of a panel are far from each other in memory."""
        later = self.affine(f"group + {_GROUPS_AHEAD}, {self.product.groups - 1}", kind="min", group=group)
        width = 2 * self.product.panel
        for at in range(0, width, LINE // _BYTES_OF[self.types[2]]):
            place = self.affine(
                f"group * {2 * self.product.n} + panel * {width} + {at}", group=later, panel=panel
            )
            self.write(f"memref.prefetch %buffer2[{place}], read, locality<3>, data : {self.buffers[2]}")

    def _prefetch_terms(self, panel: str, first: str, count: int) -> None:
        """Prefetch `count` terms, some behind the first of these."""
        of_term = self.product.panel // 2
        begin = self.affine(
            f"(panel * {self.product.k} + term + {_TERMS_AHEAD}) * {of_term}", panel=panel, term=first
        )
        for at in range(0, count * of_term, LINE):
            place = self.affine(f"begin + {at}", begin=begin)
            self.write(f"memref.prefetch %buffer1[{place}], read, locality<3>, data : {self.buffers[1]}")

    # -- few rows -----------------------------------------------------------------------------

    def _elements(self, at: str) -> list[str]:
        """Vectors of each of the next elements of a row, as many as an iteration has terms."""
        count = _unroll(self.product.group)
        if self.types[0] != "bf16" or count % 2:
            return [self.broadcast(0, self.affine(f"at + {u}", at=at), LANES) for u in range(count)]
        found = []
        for u in range(0, count, 2):
            # Two elements at a time: loading and broadcasting 32 bits is one instruction, 16 bits are two.
            place = self.affine(f"at + {u}", at=at)
            two = self.let(f"vector.load %buffer0[{place}] : {self.buffers[0]}, vector<2xi16>")
            joined = self.let(f"vector.bitcast {two} : vector<2xi16> to vector<1xi32>")
            both = self.let(f"vector.broadcast {joined} : vector<1xi32> to {_INTEGERS}")
            first = self.let(f"arith.shli {both}, {self.constant(16, _INTEGERS)} : {_INTEGERS}")
            second = self.let(f"arith.andi {both}, {self.constant(_UPPER_HALF, _INTEGERS)} : {_INTEGERS}")
            found += [self.let(f"arith.bitcast {each} : {_INTEGERS} to {VECTOR}") for each in (first, second)]
        return found

    def _sum_of(self, row: str, offset: int, group: str) -> str:
        """The place in scratch memory of the sum of a group of a row."""
        groups = self.product.groups
        return self.affine(
            f"start + (row + {offset} - first) * {groups} + group",
            start=self.scratch_start,
            row=row,
            first=self.first_row,
            group=group,
        )

    def _add_up_groups(self, row: str, _: Sequence[str]) -> tuple[str, ...]:
        """Store the sums of the groups of a row, by which shifts are multiplied."""
        size, zeros = self.product.group, self.constant("0.0", VECTOR)

        def of_group(group: str, _: Sequence[str]) -> tuple[str, ...]:
            begin = self.affine(f"row * {self.product.k} + group * {size}", row=row, group=group)

            def add(at: str, sums: list[str]) -> list[str]:
                each = self.load(0, self.affine("begin + at", begin=begin, at=at), LANES)
                return [self.let(f"arith.addf {sums[0]}, {each} : {VECTOR}")]

            (sums,) = self.loop(self.constant(0), self.constant(size), LANES, add, [zeros], VECTOR)
            total = self.let(f"vector.reduction <add>, {sums} : {VECTOR} into f32")
            place = self._sum_of(row, 0, group)
            self.write(f"memref.store {total}, %buffer{self.memory}[{place}] : {self.buffers[self.memory]}")
            return ()

        self.loop(self.constant(0), self.constant(self.product.groups), 1, of_group)
        return ()

    def _in_registers(self, panel: str, row: str, rows: int) -> None:
        """The sums of some rows, with a panel that is unpacked on the way."""
        zeros, vectors = self.constant("0.0", VECTOR), self.plan.vectors
        every_row = [self.affine(f"row + {r}", row=row) for r in range(rows)]
        starts, none = list(map(self._start_of, every_row)), self.constant(self.none, self.sums)

        def add_terms(first: str, sums: list[str]) -> list[str]:
            return self._add_terms(panel, first, starts, sums)

        def add_group(group: str, totals: list[str]) -> list[str]:
            self._prefetch_scales(panel, group)
            begin = self.affine(f"group * {self.product.group}", group=group)
            end = self.affine(f"begin + {self.product.group}", begin=begin)
            sums = self.loop(begin, end, self._step, add_terms, [none] * (rows * vectors), self.sums)
            of_rows = [self.broadcast(self.memory, self._sum_of(row, r, group), LANES) for r in range(rows)]
            units = [self._unit_of(each, group) for each in every_row]
            for v, (scale, shift) in enumerate(self._scales(panel, group)):
                is_upper = v >= vectors // 2
                if is_upper:  # a byte is 16 times its upper number, plus its lower one
                    scale = self.let(f"arith.mulf {scale}, {self.constant('0.0625', VECTOR)} : {VECTOR}")
                for r in range(rows):
                    at = r * vectors + v
                    of_numbers = self._of_numbers(sums[at], sums[at - vectors // 2] if is_upper else "")
                    scaled = self._in_units(scale, units[r])
                    total = self.let(f"vector.fma {of_numbers}, {scaled}, {totals[at]} : {VECTOR}")
                    totals[at] = self.let(f"vector.fma {of_rows[r]}, {shift}, {total} : {VECTOR}")
            return totals

        groups = self.constant(self.product.groups)
        totals = self.loop(self.constant(0), groups, 1, add_group, [zeros] * (rows * vectors), VECTOR)
        for r in range(rows):
            self._store(panel, every_row[r], totals[r * vectors : (r + 1) * vectors])

    #: The type of the sums of a group, and the element of sums of nothing.
    sums, none = VECTOR, "0.0"

    @property
    def _step(self) -> int:
        """Terms of an iteration of the innermost loop."""
        return _unroll(self.product.group)

    def _start_of(self, row: str) -> str:
        """Where the elements of a row begin that the innermost loop reads."""
        return self.affine(f"row * {self.product.k}", row=row)

    def _add_terms(self, panel: str, first: str, starts: Sequence[str], sums: list[str]) -> list[str]:
        """`sums` of some rows and the columns of a panel, with an iteration's terms added."""
        self._prefetch_terms(panel, first, self._step)
        elements = [self._elements(self.affine("start + first", start=each, first=first)) for each in starts]
        for u in range(self._step):
            stored = self._bytes(panel, self.affine(f"first + {u}", first=first))
            numbers = [*map(self._looked_up, stored), *map(self._real, stored)]
            for r, of_row in enumerate(elements):
                for v, each in enumerate(numbers):
                    at = r * self.plan.vectors + v
                    sums[at] = self.let(f"vector.fma {of_row[u]}, {each}, {sums[at]} : {VECTOR}")
        return sums

    def _of_numbers(self, sums: str, lower: str) -> str:
        """A group's sums in f32. With the sums of the `lower` numbers, `sums` are those of bytes, and the rest is returned."""
        return self.let(f"arith.subf {sums}, {lower} : {VECTOR}") if lower else sums

    def _unit_of(self, row: str, group: str) -> str:
        """The unit of the sums of a row's group; empty for 1."""
        return ""

    def _in_units(self, scale: str, unit: str) -> str:
        return self.let(f"arith.mulf {scale}, {unit} : {VECTOR}") if unit else scale

    def _store(self, panel: str, row: str, totals: Sequence[str]) -> None:
        for v, total in enumerate(totals):
            place = self.affine(
                f"row * {self.product.n} + panel * {self.product.panel} + {v * LANES}", row=row, panel=panel
            )
            self.store(total, 3, place, LANES)

    # -- blocks of terms ----------------------------------------------------------------------

    def _scratch(self, offset: int, **values: str) -> str:
        """A place in scratch memory: `offset`, plus the values times the numbers behind their names, as in `row_64`."""
        terms = " + ".join(f"{name} * {name.rpartition('_')[2]}" for name in values)
        return self.affine(f"start + {offset} + {terms}", start=self.scratch_start, **values)

    def _in_blocks(self, panel: str) -> None:
        """All rows of the workgroup, with a panel that is unpacked into scratch memory block by block."""
        width = self.product.panel
        zeros = self.constant("0.0", VECTOR)

        def clear(row: str, _: Sequence[str]) -> tuple[str, ...]:
            of_part = self.affine("row - first", row=row, first=self.first_row)
            for v in range(self.plan.vectors):
                place = self._scratch(self.plan.sums + v * LANES, **{f"row_{width}": of_part})
                self.store(zeros, self.memory, place, LANES)
            return ()

        def block(first: str, _: Sequence[str]) -> tuple[str, ...]:
            self._unpack(panel, first)
            if self.plan.widens:
                self._widen(first)
            self._row_tiles(lambda row, rows: self._add_block(first, row, rows))
            return ()

        def finish(row: str, _: Sequence[str]) -> tuple[str, ...]:
            of_part = self.affine("row - first", row=row, first=self.first_row)
            places = [
                self._scratch(self.plan.sums + v * LANES, **{f"row_{width}": of_part})
                for v in range(self.plan.vectors)
            ]
            self._store(panel, row, [self.load(self.memory, each, LANES) for each in places])
            return ()

        self.loop(self.first_row, self.end_row, 1, clear)
        self.loop(self.constant(0), self.constant(self.product.k), self.plan.block, block)
        self.loop(self.first_row, self.end_row, 1, finish)

    def _end_of_block(self, first: str) -> str:
        return self.affine(f"first + {self.plan.block}, {self.product.k}", kind="min", first=first)

    def _unpack(self, panel: str, first: str) -> None:
        """Store the terms of a block, in f32."""
        size, width = self.product.group, self.product.panel

        def of_group(begin: str, _: Sequence[str]) -> tuple[str, ...]:
            group = self.affine(f"begin floordiv {size}", begin=begin)
            self._prefetch_scales(panel, group)
            self._prefetch_terms(panel, begin, size)
            scales = self._scales(panel, group)

            def of_term(term: str, _: Sequence[str]) -> tuple[str, ...]:
                of_block = self.affine("term - first", term=term, first=first)
                stored = self._bytes(panel, term)
                numbers = [*map(self._lower, stored), *map(self._upper, stored)]
                for v, (each, (scale, shift)) in enumerate(zip(numbers, scales, strict=True)):
                    number = self._real(each)
                    value = self.let(f"vector.fma {number}, {scale}, {shift} : {VECTOR}")
                    self.store(
                        value, self.memory, self._scratch(v * LANES, **{f"term_{width}": of_block}), LANES
                    )
                return ()

            self.loop(begin, self.affine(f"begin + {size}", begin=begin), 1, of_term)
            return ()

        self.loop(first, self._end_of_block(first), size, of_group)

    def _widen(self, first: str) -> None:
        """Store the elements of the rows for a block, in f32."""
        size = self.plan.block

        def of_row(row: str, _: Sequence[str]) -> tuple[str, ...]:
            of_part = self.affine("row - first", row=row, first=self.first_row)

            def of_vector(term: str, _: Sequence[str]) -> tuple[str, ...]:
                place = self.affine(f"row * {self.product.k} + term", row=row, term=term)
                of_block = self.affine("term - first", term=term, first=first)
                to = self._scratch(self.plan.widened, **{f"row_{size}": of_part, "term_1": of_block})
                self.store(self.load(0, place, LANES), self.memory, to, LANES)
                return ()

            self.loop(first, self._end_of_block(first), LANES, of_vector)
            return ()

        self.loop(self.first_row, self.end_row, 1, of_row)

    def _add_block(self, first: str, row: str, rows: int) -> None:
        """Add the products of a block of terms to the sums of some rows."""
        zeros, vectors, width = self.constant("0.0", VECTOR), self.plan.vectors, self.product.panel
        of_part = self.affine("row - first", row=row, first=self.first_row)
        if self.plan.widens:
            source = self.memory
            starts = [
                self._scratch(self.plan.widened + r * self.plan.block, **{f"row_{self.plan.block}": of_part})
                for r in range(rows)
            ]
        else:
            source = 0
            starts = [
                self.affine(f"(row + {r}) * {self.product.k} + first", row=row, first=first)
                for r in range(rows)
            ]

        def add_term(term: str, sums: list[str]) -> list[str]:
            for u in range(_unroll(self.product.group)):
                weights = [
                    self.load(
                        self.memory,
                        self._scratch(u * width + v * LANES, **{f"term_{width}": term}),
                        LANES,
                    )
                    for v in range(vectors)
                ]
                for r, start in enumerate(starts):
                    at = self.affine(f"start + term + {u}", start=start, term=term)
                    x = self.broadcast(source, at, LANES)
                    for v, each in enumerate(weights):
                        number = r * vectors + v
                        sums[number] = self.let(f"vector.fma {x}, {each}, {sums[number]} : {VECTOR}")
            return sums

        count = self.affine("end - first", end=self._end_of_block(first), first=first)
        sums = self.loop(
            self.constant(0), count, _unroll(self.product.group), add_term, [zeros] * (rows * vectors), VECTOR
        )
        for r in range(rows):
            for v in range(vectors):
                place = self._scratch(self.plan.sums + r * width + v * LANES, **{f"row_{width}": of_part})
                before = self.load(self.memory, place, LANES)
                total = self.let(f"arith.addf {before}, {sums[r * vectors + v]} : {VECTOR}")
                self.store(total, self.memory, place, LANES)


def _whole_lines(elements: int) -> int:
    return -(-elements // LANES) * LANES


def _unroll(group: int) -> int:
    """Terms of an iteration, which divide a group."""
    return next(each for each in (_UNROLL, 2, 1) if group % each == 0)
