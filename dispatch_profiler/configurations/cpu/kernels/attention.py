"""Attention as one kernel of vector instructions, which keeps no more scores than those of a block of keys.

    softmax(scale * query @ key.T + mask) @ value        of each head

A workgroup computes a block of rows at a time; a row is a query of a head. The lanes of its vectors are rows: keys and values
are broadcast element by element, so that any strides and sizes of theirs will do, and maxima and sums need no shuffles. Keys
are read in blocks. When the largest score of a row so far changes, its sums are multiplied by the exponential of the
difference (M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax", arXiv 1805.02867, 2018), so that scores
and values of a block stay in the first two caches, however many keys there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from dispatch_profiler.configurations.cpu.kernels.attention_plan import AttentionPlan
from dispatch_profiler.configurations.cpu.kernels.heads import HIDDEN, HeadsWriter
from dispatch_profiler.configurations.cpu.kernels.writer import LANES, MASK, VECTOR, function_text
from dispatch_profiler.operations import Tensor
from dispatch_profiler.operations.strided import Strided

_INTEGERS = f"vector<{LANES}xi32>"


@dataclass(frozen=True)
class _Unit:
    """A block of rows: the first one, where its operands and its result begin, and the position of each row."""

    row: str
    key: str
    value: str
    mask: str
    positions: tuple[str, ...]


#: The largest score and the sum of exponentials of each row so far.
_State = tuple[list[str], list[str]]


def attention_text(
    function: str, inputs: Sequence[Tensor], results: Sequence[Tensor], plan: AttentionPlan
) -> str:
    """MLIR text with the kernel, and the function `function`, which launches it."""
    scratch = plan.workgroups * plan.scratch
    kernel = AttentionKernel(function, inputs, results, scratch).finished(plan)
    return function_text(function, inputs, results, [kernel])


class AttentionKernel(HeadsWriter):
    """Writes the kernel. Scratch memory: %queries[element, row], %scores[key, row] and %sums[element, row] of a block."""

    def finished(self, plan: AttentionPlan) -> AttentionKernel:
        """The kernel, with its instructions."""
        self.plan = plan
        self.workgroups = plan.workgroups
        self.memory = len(self.buffers) - 1
        self.write("%group = hal.interface.workgroup.id[0] : index")
        self.queries = self.affine(f"group * {plan.scratch}", group="%group")
        self.scores = self.affine(f"at + {plan.size * plan.rows}", at=self.queries)
        self.sums = self.affine(f"at + {plan.kept_keys * plan.rows}", at=self.scores)
        self.copied = self.affine(f"at + {plan.value_size * plan.rows}", at=self.sums)
        self.key, self.value = plan.key, plan.value
        if plan.copies:
            self.key = self.value = Strided(self.memory, 0, (0, 0, plan.padded, 1))
        self.loop("%group", self.constant(plan.units), plan.workgroups, self._unit)
        return self

    def _unit(self, number: str, _: Sequence[str]) -> tuple[str, ...]:
        """A block of rows of a group of heads."""
        plan = self.plan
        row = self.affine(f"(unit mod {plan.blocks}) * {plan.rows}", unit=number)
        head = self.affine(f"((unit floordiv {plan.blocks}) mod {plan.groups}) * {plan.merged}", unit=number)
        batch = self.affine(f"unit floordiv {plan.blocks * plan.groups}", unit=number)
        query, key, value, result = (
            self.start_of_head(each, batch, head) for each in (plan.query, plan.key, plan.value, plan.result)
        )
        mask = "" if plan.mask is None else self.start_of_head(plan.mask, batch, head)
        unit = _Unit(row, key, value, mask, self._positions(row))
        scale = self.constant(f"{plan.scale:.9e}", VECTOR)

        def scaled(column: str) -> str:
            return self.let(f"arith.mulf {column}, {scale} : {VECTOR}")

        self._load_transposed(plan.query, query, row, plan.size, self.queries, scaled)
        totals = self._all_keys(unit)
        self._store(result, row, [self.inverse(each) for each in totals])
        return ()

    # -- memory -------------------------------------------------------------------------------

    def _broadcast(self, buffer: int, at: str) -> str:
        return self.broadcast(buffer, at, LANES)

    def _scratch(self, start: str, index: str, vector: int, offset: int = 0) -> str:
        """The place of a vector of scratch memory; `index` is an element or a key."""
        return self.affine(
            f"start + index * {self.plan.rows} + {offset * self.plan.rows + vector * LANES}",
            start=start,
            index=index,
        )

    def _keep(self, value: str, at: str) -> None:
        self.store(value, self.memory, at, LANES)

    def _rows_of(self, start: str, place: Strided, row: str, vector: int) -> list[str]:
        """Where sixteen rows of a block begin; the last row again in place of rows that do not exist."""
        plan = self.plan
        rows = (
            self.affine(f"row + {vector * LANES + lane}, {plan.rows_of_group - 1}", kind="min", row=row)
            for lane in range(LANES)
        )
        of_row = f"row * {place.strides[2]}"
        if plan.merged > 1:
            of_row = f"(row mod {plan.queries}) * {place.strides[2]} + (row floordiv {plan.queries}) * {place.strides[1]}"
        return [self.affine(f"start + {of_row}", start=start, row=each) for each in rows]

    def _load_transposed(
        self,
        place: Strided,
        start: str,
        row: str,
        extent: int,
        target: str,
        change: Callable[[str], str],
    ) -> None:
        """Store rows of a block, transposed and changed, in scratch memory from `target` on."""
        for vector in range(self.plan.vectors):
            rows = self._rows_of(start, place, row, vector)

            def write(first: str, count: int, rows: list[str] = rows, vector: int = vector) -> None:
                places = [self.affine("row + first", row=each, first=first) for each in rows]
                columns = self.transposed([self.load_lanes(place.source, each, count) for each in places])
                for at, column in enumerate(columns[:count]):
                    value = change(column)
                    self._keep(value, self._scratch(target, first, vector, at))

            self.parts(extent, write)

    def _copied(self, place: Strided, start: str, count: int, extent: int, target: str) -> str:
        """Copy `count` keys or values to scratch memory from `target` on, which is returned.

        Zeros fill the last vector of each.
        """
        plan = self.plan

        def copy(key: str, _: Sequence[str]) -> tuple[str, ...]:
            source = self.affine(f"start + key * {place.strides[2]}", start=start, key=key)
            to = self.affine(f"target + key * {plan.padded}", target=target, key=key)

            def write(first: str, lanes: int) -> None:
                value = self.load_lanes(
                    place.source, self.affine("at + first", at=source, first=first), lanes
                )
                self._keep(value, self.affine("at + first", at=to, first=first))

            self.parts(extent, write)
            return ()

        self.loop(self.constant(0), self.constant(count), 1, copy)
        return target

    # -- blocks of keys -----------------------------------------------------------------------

    def _all_keys(self, unit: _Unit) -> list[str]:
        """Compute the sums of a block of rows. Returns the sum of exponentials of each row."""
        plan = self.plan
        hidden, zeros = self.constant(HIDDEN, VECTOR), self.constant("0.0", VECTOR)
        state = [hidden] * plan.vectors, [zeros] * plan.vectors
        if plan.is_whole:
            return self._block(unit, self.constant(0), plan.keys, self._end_of_keys(unit), state)[1]
        self._clear_sums()
        whole = plan.keys // plan.block * plan.block
        end = self._end_of_keys(unit)
        last = self.constant(whole)
        if end:
            rounded = f"(end ceildiv {plan.block}) * {plan.block}"
            last = self.affine(f"{rounded}, {whole}", kind="min", end=end)
        first = self._first_block(unit)

        def step(start: str, carried: list[str], count: int = plan.block) -> list[str]:
            now = carried[: plan.vectors], carried[plan.vectors :]
            largest, totals = self._block(unit, start, count, end, now)
            return [*largest, *totals]

        carried = self.loop(first, last, plan.block, step, [*state[0], *state[1]], VECTOR)
        if plan.keys > whole:
            # One iteration if the rows see any of the last keys, or none.
            some = self.constant(1)
            if end:
                behind = self.affine(f"end - {whole}, 0", kind="max", end=end)
                some = self.affine("behind, 1", kind="min", behind=behind)
            rest = partial(step, count=plan.keys - whole)
            carried = self.loop(
                self.constant(0), some, 1, lambda _, now: rest(self.constant(whole), now), carried, VECTOR
            )
        return carried[plan.vectors :]

    def _positions(self, row: str) -> tuple[str, ...]:
        """The position of each row among the keys, if a row sees none behind it."""
        plan = self.plan
        if plan.position is None:
            return ()
        lanes = self.let(f"arith.constant dense<{list(range(LANES))}> : {_INTEGERS}")
        found = []
        for vector in range(plan.vectors):
            rows = self._plus(lanes, self.affine(f"row + {vector * LANES}", row=row))
            if plan.merged > 1:
                rows = self.let(f"arith.remsi {rows}, {self.constant(plan.queries, _INTEGERS)} : {_INTEGERS}")
            first = self.constant(plan.position, _INTEGERS)
            found.append(self.let(f"arith.addi {rows}, {first} : {_INTEGERS}"))
        return tuple(found)

    def _end_of_keys(self, unit: _Unit) -> str:
        """The number of keys that some row of a block sees, from the first key on; empty if all rows see all."""
        plan = self.plan
        if plan.position is None:
            return ""
        if plan.merged > 1:
            return self.constant(max(0, min(plan.keys, plan.queries + plan.position)))
        reached = self.affine(
            f"row + {plan.rows + plan.position}, {plan.queries + plan.position}, {plan.keys}",
            kind="min",
            row=unit.row,
        )
        return self.affine("reached, 0", kind="max", reached=reached)

    def _first_block(self, unit: _Unit) -> str:
        """The first key of the first block that some row of a block sees."""
        plan = self.plan
        if plan.position is None or not plan.window:
            return self.constant(0)
        before = plan.position - plan.window + 1
        if plan.merged > 1:
            return self.constant(max(0, before) // plan.block * plan.block)
        seen = self.affine(f"row + {before}, 0", kind="max", row=unit.row)
        return self.affine(f"(seen floordiv {plan.block}) * {plan.block}", seen=seen)

    def _clear_sums(self) -> None:
        zeros = self.constant("0.0", VECTOR)

        def clear(element: str, _: Sequence[str]) -> tuple[str, ...]:
            for vector in range(self.plan.vectors):
                self._keep(zeros, self._scratch(self.sums, element, vector))
            return ()

        self.loop(self.constant(0), self.constant(self.plan.value_size), 1, clear)

    def _block(self, unit: _Unit, start: str, count: int, end: str, state: _State) -> _State:
        """Add `count` keys from `start` on to the sums; keys from `end` on are seen by no row."""
        plan = self.plan
        begins = [
            self.affine(f"at + start * {place.strides[2]}", at=at, start=start)
            for at, place in ((unit.key, plan.key), (unit.value, plan.value))
        ]
        if plan.copies:
            values = self.affine(f"at + {plan.kept_keys * plan.padded}", at=self.copied)
            begins = [
                self._copied(plan.key, begins[0], count, plan.size, self.copied),
                self._copied(plan.value, begins[1], count, plan.value_size, values),
            ]
        if plan.mask is not None:
            self._load_mask(plan.mask, unit, start, count)
        keys, largest = self._score(unit, begins[0], start, count, end)
        if not plan.is_whole:
            largest = [self._largest(pair) for pair in zip(state[0], largest, strict=True)]
        shifts = [self.shift(each) for each in largest]
        factors = [] if plan.is_whole else self._factors(state[0], shifts)
        totals = self._exponentials(keys, shifts)
        if factors:
            totals = [
                self.let(f"vector.fma {factor}, {total}, {added} : {VECTOR}")
                for factor, total, added in zip(factors, state[1], totals, strict=True)
            ]
        self._weigh(begins[1], keys, factors)
        return largest, totals

    def _factors(self, before: Sequence[str], shifts: Sequence[str]) -> list[str]:
        """What the sums so far are multiplied by; 0 before the first keys."""
        pairs = zip(before, shifts, strict=True)
        return [self.exponential(self.let(f"arith.subf {one}, {shift} : {VECTOR}")) for one, shift in pairs]

    def _load_mask(self, mask: Strided, unit: _Unit, start: str, count: int) -> None:
        """Store the mask in the place of the scores, which are added to it."""
        plan = self.plan
        added = partial(self.masking, hides=plan.hides)
        begin = self.affine(f"at + start * {mask.strides[3]}", at=unit.mask, start=start)
        if mask.strides[2] or (plan.merged > 1 and mask.strides[1]):
            self._load_transposed(mask, begin, unit.row, count, self.scores, added)
            return

        def copy(key: str, _: Sequence[str]) -> tuple[str, ...]:
            at = self.affine(f"begin + key * {mask.strides[3]}", begin=begin, key=key)
            value = added(self._broadcast(mask.source, at))
            for vector in range(plan.vectors):
                self._keep(value, self._scratch(self.scores, key, vector))
            return ()

        self.loop(self.constant(0), self.constant(count), 1, copy)

    # -- scores -------------------------------------------------------------------------------

    def _score(self, unit: _Unit, begin: str, start: str, count: int, end: str) -> tuple[str, list[str]]:
        """Compute the scores of a block of keys. Returns the number of keys, and the largest score of each row.

        Keys that no row sees are left out, but for some in the last register tile, whose scores are minus infinity.
        """
        plan = self.plan
        tile = min(plan.key_tile, count)
        whole = count // tile * tile
        least = [self.constant(HIDDEN, VECTOR)] * plan.vectors
        last = self.constant(whole)
        is_shortened = bool(end) and count == whole
        if is_shortened:
            expression = f"((end - start) ceildiv {tile}) * {tile}, {whole}"
            last = self.affine(expression, kind="min", end=end, start=start)

        def full(first: str, largest: list[str]) -> list[str]:
            return self._score_tile(unit, begin, start, first, tile, largest)

        largest = self.loop(self.constant(0), last, tile, full, least, VECTOR)
        if count == whole:
            return last, largest
        largest = self._score_tile(unit, begin, start, self.constant(whole), count - whole, largest)
        return self.constant(count), largest

    def _score_tile(
        self, unit: _Unit, begin: str, start: str, first: str, count: int, largest: Sequence[str]
    ) -> list[str]:
        plan = self.plan
        at_key = self.affine(f"begin + first * {self.key.strides[2]}", begin=begin, first=first)
        kept = [self._scratch(self.scores, first, vector, at) for at, vector in self._tile(count)]
        zeros = self.constant("0.0", VECTOR)
        sums = [zeros if plan.mask is None else self.load_lanes(self.memory, each) for each in kept]

        def add(element: str, sums: list[str]) -> list[str]:
            rows = [
                self.load_lanes(self.memory, self._scratch(self.queries, element, each))
                for each in range(plan.vectors)
            ]
            at = self.affine(f"begin + element * {self.key.strides[3]}", begin=at_key, element=element)
            return self._products(self.key.source, at, self.key.strides[2], rows, sums)

        sums = self.loop(self.constant(0), self.constant(plan.size), 1, add, sums, VECTOR)
        if unit.positions:
            sums = self._seen(unit, sums, self.affine("start + first", start=start, first=first), count)
        for value, at in zip(sums, kept, strict=True):
            self._keep(value, at)
        return [self._largest([each, *sums[vector :: plan.vectors]]) for vector, each in enumerate(largest)]

    def _largest(self, values: Sequence[str]) -> str:
        """The largest of several vectors of scores."""
        values = list(values)
        while len(values) > 1:
            one, other, *rest = values
            # At the end of the list, so that no chain of them is long.
            values = [*rest, self.larger(one, other)]
        return values[0]

    def _tile(self, count: int) -> Iterator[tuple[int, int]]:
        """The sums of a register tile: number and vector."""
        return ((at, vector) for at in range(count) for vector in range(self.plan.vectors))

    def _products(
        self, source: int, start: str, stride: int, rows: Sequence[str], sums: Sequence[str]
    ) -> list[str]:
        """`sums`, and the products of `rows` and elements of keys or values, which are `stride` apart."""
        made = []
        for number in range(len(sums) // len(rows)):
            # Constant offsets from one address, since there are fewer registers for addresses than elements.
            value = self._broadcast(source, self.affine(f"start + {number * stride}", start=start))
            for vector, each in enumerate(rows):
                total = sums[number * len(rows) + vector]
                made.append(self.let(f"vector.fma {value}, {each}, {total} : {VECTOR}"))
        return made

    def _seen(self, unit: _Unit, sums: Sequence[str], first: str, count: int) -> list[str]:
        """Minus infinity for keys behind the row's position, or before its window."""
        plan, hidden, result = self.plan, self.constant(HIDDEN, VECTOR), list(sums)
        for vector, position in enumerate(unit.positions):
            begin = ""
            if plan.window:
                window = self.constant(plan.window, _INTEGERS)
                begin = self.let(f"arith.subi {position}, {window} : {_INTEGERS}")
            for at in range(count):
                zeros = self.constant(0, _INTEGERS)
                key = self._plus(zeros, self.affine(f"first + {at}", first=first))
                seen = self.let(f"arith.cmpi sle, {key}, {position} : {_INTEGERS}")
                if begin:
                    within = self.let(f"arith.cmpi sgt, {key}, {begin} : {_INTEGERS}")
                    seen = self.let(f"arith.andi {seen}, {within} : {MASK}")
                number = at * plan.vectors + vector
                result[number] = self.let(f"arith.select {seen}, {sums[number]}, {hidden} : {MASK}, {VECTOR}")
        return result

    def _plus(self, vector: str, index: str) -> str:
        number = self.let(f"arith.index_cast {index} : index to i32")
        every = self.let(f"vector.broadcast {number} : i32 to {_INTEGERS}")
        return self.let(f"arith.addi {vector}, {every} : {_INTEGERS}")

    def _exponentials(self, keys: str, shifts: Sequence[str]) -> list[str]:
        """Replace the scores by their exponentials. Returns the sum of each row."""
        zeros = self.constant("0.0", VECTOR)

        def replace(key: str, sums: list[str]) -> list[str]:
            added = []
            for vector, (shift, total) in enumerate(zip(shifts, sums, strict=True)):
                at = self._scratch(self.scores, key, vector)
                moved = self.let(f"arith.subf {self.load_lanes(self.memory, at)}, {shift} : {VECTOR}")
                power = self.exponential(moved)
                self._keep(power, at)
                added.append(self.let(f"arith.addf {total}, {power} : {VECTOR}"))
            return added

        return self.loop(self.constant(0), keys, 1, replace, [zeros] * self.plan.vectors, VECTOR)

    # -- values -------------------------------------------------------------------------------

    def _weigh(self, begin: str, keys: str, factors: Sequence[str]) -> None:
        """Add the values, weighted by the exponentials, to the sums multiplied by `factors`; without these, the sums are new."""
        plan = self.plan
        zeros = self.constant("0.0", VECTOR)

        def tile(first: str, count: int) -> None:
            at_value = self.affine(f"begin + first * {self.value.strides[3]}", begin=begin, first=first)
            kept = [self._scratch(self.sums, first, vector, at) for at, vector in self._tile(count)]
            sums = [zeros] * len(kept)
            if factors:
                sums = [
                    self.let(f"arith.mulf {self.load_lanes(self.memory, at)}, {factors[vector]} : {VECTOR}")
                    for (_, vector), at in zip(self._tile(count), kept, strict=True)
                ]

            def add(key: str, sums: list[str]) -> list[str]:
                rows = [
                    self.load_lanes(self.memory, self._scratch(self.scores, key, each))
                    for each in range(plan.vectors)
                ]
                at = self.affine(f"begin + key * {self.value.strides[2]}", begin=at_value, key=key)
                return self._products(self.value.source, at, self.value.strides[3], rows, sums)

            sums = self.loop(self.constant(0), keys, 1, add, sums, VECTOR)
            for value, at in zip(sums, kept, strict=True):
                self._keep(value, at)

        def full(first: str, _: Sequence[str]) -> tuple[str, ...]:
            tile(first, plan.value_tile)
            return ()

        whole = plan.value_size // plan.value_tile * plan.value_tile
        self.loop(self.constant(0), self.constant(whole), plan.value_tile, full)
        if plan.value_size > whole:
            tile(self.constant(whole), plan.value_size - whole)

    def _store(self, start: str, row: str, inverses: Sequence[str]) -> None:
        """Store the results of the rows that exist."""
        plan, result = self.plan, self.plan.result
        for vector in range(plan.vectors):
            rows = self._rows_of(start, result, row, vector)

            def write(first: str, count: int, rows: list[str] = rows, vector: int = vector) -> None:
                zeros = self.constant("0.0", VECTOR)
                columns = []
                for at in range(LANES):
                    if at >= count:
                        columns.append(zeros)
                        continue
                    total = self.load_lanes(self.memory, self._scratch(self.sums, first, vector, at))
                    columns.append(self.let(f"arith.mulf {total}, {inverses[vector]} : {VECTOR}"))
                for lane, each in enumerate(self.transposed(columns)):
                    place = self.affine("row + first", row=rows[lane], first=first)
                    left = self.affine(
                        f"({plan.rows_of_group - vector * LANES - lane} - row) * {LANES}, {count}",
                        kind="min",
                        row=row,
                    )
                    mask = self.let(f"vector.create_mask {left} : {MASK}")
                    self.store(each, result.source, place, LANES, mask)

            self.parts(plan.value_size, write)
