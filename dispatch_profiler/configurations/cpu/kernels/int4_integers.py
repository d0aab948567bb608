"""Products of whole numbers: rows as integers of 16 bits, times the 4-bit numbers of a weight, by AVX-512-VNNI.

Each group of terms of a row has a unit, a power of two, in which its elements are whole numbers. Their products with the
numbers of the weight are added exactly, two terms in an instruction, and scaled once for each group:

    result = sum over groups (scale * unit * sum over terms (integer * number) + shift * sum over terms (x))

A workgroup first stores the integers, units and sums of its rows in scratch memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from dispatch_profiler.configurations.cpu.kernels.int4 import Int4Kernel
from dispatch_profiler.configurations.cpu.kernels.writer import LANES, VECTOR

#: The unit of a group is the power of two of its largest magnitude, divided by two to this power; and the largest integer.
_BITS, _LARGEST = 14, 2.0**15 - 1
#: The largest error of an element, relative to the largest one of its group.
RELATIVE_ERROR = 2.0**-_BITS
#: Of f32: the bits of the exponent, where they begin, what is added to exponents, and the smallest one whose unit is normal;
#: and all bits but the sign.
_EXPONENT, _SHIFT, _BIAS, _LEAST = 0x7F800000, 23, 127, 32
_MAGNITUDE = 0x7FFFFFFF
#: Terms of an iteration of the innermost loop: with more, LLVM would divide every second instruction into two.
_UNROLL = 2
_BYTES, _WORDS = f"vector<{4 * LANES}xi8>", f"vector<{2 * LANES}xi16>"
_INTEGERS = f"vector<{LANES}xi32>"


class Int4IntegersKernel(Int4Kernel):
    """Writes the kernel."""

    def _prepare(self) -> None:
        self.loop(self.first_row, self.end_row, 1, self._add_up_groups)
        self.loop(self.first_row, self.end_row, 1, self._store_integers)

    def _of_row(self, first: int, size: int, row: str) -> str:
        """The place in scratch memory of the part of a row that begins at `first`, with `size` elements for each row."""
        return self.affine(
            f"start + {first} + (row - first) * {size}",
            start=self.scratch_start,
            row=row,
            first=self.first_row,
        )

    def _units_of(self, row: str) -> str:
        return self._of_row(self.plan.units_start, self.product.groups, row)

    # -- the rows -----------------------------------------------------------------------------

    def _store_integers(self, row: str, _: Sequence[str]) -> tuple[str, ...]:
        size = self.product.group
        units = self._units_of(row)
        start = self._start_of(row)

        def of_group(group: str, _: Sequence[str]) -> tuple[str, ...]:
            begin = self.affine(f"row * {self.product.k} + group * {size}", row=row, group=group)
            exponent = self._exponent(begin)
            inverse = self._as_power(
                f"arith.subi {self.constant((2 * _BIAS + _BITS) << _SHIFT, 'i32')}, {exponent} : i32"
            )
            unit = self._unit(exponent)
            place = self.affine("units + group", units=units, group=group)
            self.write(f"memref.store {unit}, %buffer{self.memory}[{place}] : {self.buffers[self.memory]}")
            many = self.let(f"vector.broadcast {inverse} : f32 to {VECTOR}")

            def of_vector(at: str, _: Sequence[str]) -> tuple[str, ...]:
                x = self.load(0, self.affine("begin + at", begin=begin, at=at), LANES)
                scaled = self.let(f"arith.mulf {x}, {many} : {VECTOR}")
                of_term = self.affine(f"(group * {size} + at) floordiv 2", group=group, at=at)
                place = self.affine("start + at", start=start, at=of_term)
                self._store_pairs(self._nearest(scaled), place)
                return ()

            self.loop(self.constant(0), self.constant(size), LANES, of_vector)
            return ()

        self.loop(self.constant(0), self.constant(self.product.groups), 1, of_group)
        return ()

    def _exponent(self, begin: str) -> str:
        """The bits of the exponent of the largest magnitude of a group, which begins at `begin`.

        Magnitudes are compared as integers, in which order those of what is no number are the largest.
        """
        zeros = self.constant(0, _INTEGERS)

        def largest(at: str, found: list[str]) -> list[str]:
            x = self.load(0, self.affine("begin + at", begin=begin, at=at), LANES)
            bits = self.let(f"arith.bitcast {x} : {VECTOR} to {_INTEGERS}")
            size = self.let(f"arith.andi {bits}, {self.constant(_MAGNITUDE, _INTEGERS)} : {_INTEGERS}")
            return [self.let(f"arith.maxsi {size}, {found[0]} : {_INTEGERS}")]

        (found,) = self.loop(
            self.constant(0), self.constant(self.product.group), LANES, largest, [zeros], _INTEGERS
        )
        most = self.let(f"vector.reduction <maxsi>, {found} : {_INTEGERS} into i32")
        exponent = self.let(f"arith.andi {most}, {self.constant(_EXPONENT, 'i32')} : i32")
        return self.let(f"arith.maxsi {exponent}, {self.constant(_LEAST << _SHIFT, 'i32')} : i32")

    def _unit(self, exponent: str) -> str:
        """The unit of a group; no number if the group has an infinity or what is no number."""
        unit = self._as_power(f"arith.subi {exponent}, {self.constant(_BITS << _SHIFT, 'i32')} : i32")
        is_infinite = self.let(f"arith.cmpi eq, {exponent}, {self.constant(_EXPONENT, 'i32')} : i32")
        none = self.constant("0x7FC00000", "f32")
        return self.let(f"arith.select {is_infinite}, {none}, {unit} : f32")

    def _as_power(self, bits: str) -> str:
        return self.let(f"arith.bitcast {self.let(bits)} : i32 to f32")

    def _nearest(self, value: str) -> str:
        """The nearest integers of 16 bits, also of infinities and of what is not a number."""
        within = value
        for order, bound in (("ogt", -_LARGEST), ("olt", _LARGEST)):
            limit = self.constant(bound, VECTOR)
            is_within = self.let(f"arith.cmpf {order}, {within}, {limit} : {VECTOR}")
            within = self.let(f"arith.select {is_within}, {within}, {limit} : vector<{LANES}xi1>, {VECTOR}")
        whole = self.let(f"math.roundeven {within} : {VECTOR}")
        return self.let(f"arith.fptosi {whole} : {VECTOR} to {_INTEGERS}")

    def _store_pairs(self, integers: str, place: str) -> None:
        """Store integers in 16 bits, two in an element of scratch memory."""
        half, stored = f"vector<{LANES // 2}xi32>", f"vector<{LANES // 2}xf32>"
        first, second = (
            self.let(
                f"vector.shuffle {integers}, {integers} {list(range(at, LANES, 2))} : {_INTEGERS}, {_INTEGERS}"
            )
            for at in (0, 1)
        )
        lower = self.let(f"arith.andi {first}, {self.constant(0xFFFF, half)} : {half}")
        upper = self.let(f"arith.shli {second}, {self.constant(16, half)} : {half}")
        both = self.let(f"arith.ori {lower}, {upper} : {half}")
        value = self.let(f"arith.bitcast {both} : {half} to {stored}")
        self.write(
            f"vector.store {value}, %buffer{self.memory}[{place}] : {self.buffers[self.memory]}, {stored}"
        )

    # -- the weight ---------------------------------------------------------------------------

    def _numbers(self, panel: str, term: str) -> list[str]:
        """The lower numbers of two successive terms of a panel, and their bytes, as words: both numbers of a column are beside each other.

        A byte is 16 times its upper number, plus its lower one.
        """
        width = self.product.panel // 2
        place = self.affine(f"(panel * {self.product.k} + term) * {width}", panel=panel, term=term)
        stored = self.let(f"vector.load %buffer1[{place}] : {self.buffers[1]}, {_BYTES}")
        lower, whole = [], []
        for first in range(0, width, LANES):
            lanes = [
                each
                for column in range(first, first + LANES)
                for each in (column, column, width + column, width + column)
            ]
            spread = self.let(f"vector.shuffle {stored}, {stored} {lanes} : {_BYTES}, {_BYTES}")
            pairs = self.let(f"vector.bitcast {spread} : {_BYTES} to {_WORDS}")
            lower.append(self.let(f"arith.andi {pairs}, {self.constant(15, _WORDS)} : {_WORDS}"))
            whole.append(self.let(f"arith.andi {pairs}, {self.constant(255, _WORDS)} : {_WORDS}"))
        return [*lower, *whole]

    def _pair(self, at: str) -> str:
        """The integers of two terms of a row, again and again."""
        two = self.let(f"memref.load %buffer{self.memory}[{at}] : {self.buffers[self.memory]}")
        bits = self.let(f"arith.bitcast {two} : f32 to i32")
        every = self.let(f"vector.broadcast {bits} : i32 to {_INTEGERS}")
        return self.let(f"vector.bitcast {every} : {_INTEGERS} to {_WORDS}")

    # -- products -----------------------------------------------------------------------------

    sums, none = _INTEGERS, "0"

    @property
    def _step(self) -> int:
        return _UNROLL

    def _start_of(self, row: str) -> str:
        return self._of_row(self.plan.integers_start, self.plan.integer_elements, row)

    def _add_terms(self, panel: str, first: str, starts: Sequence[str], sums: list[str]) -> list[str]:
        self._prefetch_terms(panel, first, self._step)
        numbers = self._numbers(panel, first)
        half = self.affine("first floordiv 2", first=first)
        for r, start in enumerate(starts):
            pair = self._pair(self.affine("start + half", start=start, half=half))
            for v, number in enumerate(numbers):
                at = r * self.plan.vectors + v
                sums[at] = self._multiplied(sums[at], pair, number)
        return sums

    def _of_numbers(self, sums: str, lower: str) -> str:
        if lower:
            sums = self.let(f"arith.subi {sums}, {lower} : {_INTEGERS}")
        return self.let(f"arith.sitofp {sums} : {_INTEGERS} to {VECTOR}")

    def _unit_of(self, row: str, group: str) -> str:
        place = self.affine("start + group", start=self._units_of(row), group=group)
        return self.broadcast(self.memory, place, LANES)

    def _multiplied(self, sums: str, pair: str, number: str) -> str:
        return self.let(
            f'llvm.call_intrinsic "llvm.x86.avx512.vpdpwssd.512"({sums}, {pair}, {number}) : '
            f"({_INTEGERS}, {_WORDS}, {_WORDS}) -> {_INTEGERS}"
        )
