"""Attention as one kernel: programs of one attention and views, which read queries, keys and values where they are.

    softmax(scale * query @ key.T + mask) @ value        of each head

A workgroup computes a block of queries of a head at a time. The lanes of its vectors are queries: keys and values are
broadcast element by element, so that any strides and sizes of theirs will do, and maxima and sums need no shuffles. The
scores of a block stay in the second cache.

Microseconds on 16 threads, launches included, by vectors of queries of a block, and of torch's kernel; in a chain, a launch
takes 30 to 60 us less:

    batch, heads, length, size         1       2       3       4    torch
    1, 12, 128, 64                   171     123     137     132       93
    1, 12, 197, 64                   276     227     251     239      254
    4, 4, 196, 36                    225     159     207     230      216
    64, 3, 49, 32, with a mask       260     199     263     176      164
    1, 12, 512, 64, causal           949     679     608     525     1012
    1, 8, 1024, 64                  3661    2782    2494    2279     2686
    1, 16, 2048, 128, causal               27402           25278    25965
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any

import torch

from dispatch_profiler.boo.fusion.nodes import NotFusible
from dispatch_profiler.boo.fusion.programs.kernel_text import LANES, MASK, VECTOR, KernelWriter
from dispatch_profiler.boo.fusion.programs.operators import (
    ATTENTION,
)
from dispatch_profiler.boo.fusion.programs.strided import Strided, places, result_places, strided
from dispatch_profiler.boo.fusion.programs.values import Calls

#: Sums that a register tile keeps: more would not fit into 32 registers.
_SUMS = 24
#: Numbers of vectors of queries of a block, and the time of a block relative to its number of vectors.
_BLOCKS = {1: 1.5, 2: 1.12, 3: 1.08, 4: 1.0}
#: Threads that blocks are divided for, and workgroups at most: each has scratch memory of its own.
_THREADS, _MOST_WORKGROUPS = 16, 64
#: Elements of all operands at most: their places are computed one by one.
_MOST_ELEMENTS = 2**27
#: Bytes of the scratch memory of a workgroup at most.
_MOST_SCRATCH = 2**22
_INTEGERS = f"vector<{LANES}xi32>"
#: Minus infinity.
_HIDDEN = "0xFF800000"


def attention_text(program: Calls, function: str) -> str:
    """MLIR text with the function `function`, as `linalg_text` has it, and its kernel. Raises NotFusible."""
    plan = attention_plan(program)
    return _AttentionKernel(
        function, program.operands, program.results, plan.workgroups * plan.scratch
    ).kernel(plan)


# -- the plan --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AttentionPlan:
    """The extents of an attention, where its operands and its result are, and how it is divided.

    Operands have the axes batch, head, position, element; `mask` batch, head, query, key. `vectors` of queries form a
    block.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    size: int
    scale: float
    is_causal: bool
    query: Strided
    key: Strided
    value: Strided
    mask: Strided | None
    result: Strided
    #: Whether keys and values are of a narrower type than f32.
    is_narrow: bool = False

    @property
    def copies(self) -> bool:
        """Whether keys and values are copied to scratch memory in f32, so that none is converted for each query."""
        return self.is_narrow and all(
            self.size == 1 or each.strides[3] == 1 for each in (self.key, self.value)
        )

    @property
    def padded(self) -> int:
        """Elements from a copied key to the next."""
        return -(-self.size // LANES) * LANES

    @property
    def vectors(self) -> int:
        """Vectors of queries of a block: as many as keep the threads busy with few queries that do not exist."""

        def rounds(vectors: int) -> float:
            return -(-self.units_of(vectors) // _THREADS) * vectors * _BLOCKS[vectors]

        return min(_BLOCKS, key=rounds)

    def units_of(self, vectors: int) -> int:
        """Blocks of queries of all heads."""
        return self.batch * self.heads * -(-self.queries // (vectors * LANES))

    @property
    def rows(self) -> int:
        """Queries of a block."""
        return self.vectors * LANES

    @property
    def blocks(self) -> int:
        """Of a head."""
        return -(-self.queries // self.rows)

    @property
    def workgroups(self) -> int:
        """Each computes every so many block."""
        return min(self.batch * self.heads * self.blocks, _MOST_WORKGROUPS)

    @property
    def scratch(self) -> int:
        """Elements of a workgroup: queries, scores and results of a block, transposed; copied keys and values."""
        copied = 2 * self.keys * self.padded if self.copies else 0
        return (2 * self.size + self.keys) * self.rows + copied

    @property
    def key_tile(self) -> int:
        """Keys of a register tile."""
        return min(_SUMS // self.vectors, 16, self.keys)

    @property
    def value_tile(self) -> int:
        """Elements of values of a register tile: a divisor, unless only short ones divide."""
        most = min(_SUMS // self.vectors, 16, self.size)
        whole = [each for each in range(1, most + 1) if self.size % each == 0]
        return whole[-1] if 2 * whole[-1] > most else most


@lru_cache(maxsize=64)
def attention_plan(program: Calls) -> AttentionPlan:
    """The plan of a program. Raises NotFusible if it has more than one attention and views."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    unset: Any = unset_fake_temporarily
    with unset(), torch.no_grad():
        try:
            return _plan(program)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise NotFusible(f"an attention: {error}"[:200]) from error


def _plan(program: Calls) -> AttentionPlan:
    """Computes the views of a program on tensors whose elements are their own places in memory."""
    if len(program.returned) != 1:
        raise NotFusible("it has several results")
    calls: list[_Call] = []

    def attend(*arguments: Any, **named: Any) -> list[Any]:
        calls.append(_Call(*arguments, **named))
        return [calls[-1].result]

    returned, starts = places(program, {ATTENTION: attend})
    (call,) = calls
    result = result_places(program, returned, call.result.shape)
    plan = _planned(call, starts, result)
    types = {program.inputs[each.source].type for each in (plan.key, plan.value)}
    plan = replace(plan, is_narrow=types != {"f32"})
    _check(plan)
    return plan


@dataclass(frozen=True)
class _Call:
    """The call of attention in a program: its operands, and the numbers of the elements of its result."""

    query: Any
    key: Any
    value: Any
    dropout_p: float = 0.0
    is_causal: bool = False
    attn_mask: Any = None
    scale: float | None = None

    @cached_property
    def result(self) -> Any:
        return torch.arange(self.query.numel(), device="cpu").reshape(self.query.shape)


def _planned(call: _Call, starts: Sequence[int], result: Strided) -> AttentionPlan:
    query, key, value, mask = call.query, call.key, call.value, call.attn_mask
    if query.dim() == 4 == key.dim() and key.shape[1] and query.shape[1] % key.shape[1] == 0:
        key, value = (each.repeat_interleave(query.shape[1] // key.shape[1], 1) for each in (key, value))
    if call.dropout_p or query.shape[:2] != key.shape[:2] or key.shape != value.shape:
        raise NotFusible("it has dropout, or other numbers of heads or elements of keys than of queries")
    batch, heads, queries, size = query.shape
    scale = 1.0 / math.sqrt(size) if call.scale is None else float(call.scale)
    keys = key.shape[2]
    return AttentionPlan(
        batch,
        heads,
        queries,
        keys,
        size,
        scale,
        call.is_causal,
        query=strided(query, starts),
        key=strided(key, starts),
        value=strided(value, starts),
        mask=None if mask is None else strided(mask.expand(batch, heads, queries, keys), starts),
        result=result,
    )


def _check(plan: AttentionPlan) -> None:
    """Raise NotFusible unless the vectors that the kernel loads and stores are consecutive elements."""
    for name, each, extent in (("queries", plan.query, plan.size), ("results", plan.result, plan.size)):
        if extent > 1 and each.strides[3] != 1:
            raise NotFusible(f"elements of its {name} are not consecutive")
    if plan.mask is not None and plan.mask.strides[2] and plan.mask.strides[3] != 1:
        raise NotFusible("elements of its mask are not consecutive")
    if 4 * plan.scratch > _MOST_SCRATCH:
        raise NotFusible(f"it has {plan.keys} keys")


# -- the kernel ------------------------------------------------------------------------------------


class _AttentionKernel(KernelWriter):
    """Writes the kernel. Scratch memory: %queries[element, row], %scores[key, row] and %sums[element, row] of a block."""

    def kernel(self, plan: AttentionPlan) -> str:
        """The kernel and the function that launches it."""
        self.plan = plan
        self.memory = len(self.buffers) - 1
        self.write("%group = hal.interface.workgroup.id[0] : index")
        self.queries = self.affine(f"group * {plan.scratch}", group="%group")
        self.scores = self.affine(f"at + {plan.size * plan.rows}", at=self.queries)
        self.sums = self.affine(f"at + {plan.keys * plan.rows}", at=self.scores)
        self.key, self.value = plan.key, plan.value
        if plan.copies:
            self.key = self.value = Strided(self.memory, 0, (0, 0, plan.padded, 1))
        units = plan.batch * plan.heads * plan.blocks
        self.loop("%group", self.constant(units), plan.workgroups, self._unit)
        return self.text(plan.workgroups)

    def _unit(self, unit: str, _: Sequence[str]) -> tuple[str, ...]:
        """A block of queries of a head."""
        plan = self.plan
        row = self.affine(f"(unit mod {plan.blocks}) * {plan.rows}", unit=unit)
        head = self.affine(f"(unit floordiv {plan.blocks}) mod {plan.heads}", unit=unit)
        batch = self.affine(f"unit floordiv {plan.blocks * plan.heads}", unit=unit)
        query, key, value, result = (
            self._start(each, batch, head) for each in (plan.query, plan.key, plan.value, plan.result)
        )
        if plan.copies:
            end = self.affine(f"at + {plan.size * plan.rows}", at=self.sums)
            value = self._copied(plan.value, value, end)
            key = self._copied(plan.key, key, self.affine(f"at + {plan.keys * plan.padded}", at=end))
        self._load_queries(query, row)
        if plan.mask is not None:
            self._load_mask(self._start(plan.mask, batch, head), row)
        keys, largest = self._score(key, row)
        totals = self._exponentials(keys, largest)
        self._weigh(value, keys, totals)
        self._store(result, row)
        return ()

    # -- memory -------------------------------------------------------------------------------

    def _start(self, place: Strided, batch: str, head: str) -> str:
        """Where a head begins."""
        which = f"(head floordiv {place.shared})" if place.shared > 1 else "head"
        expression = f"batch * {place.strides[0]} + {which} * {place.strides[1]} + {place.offset}"
        return self.affine(expression, batch=batch, head=head)

    def _load(self, buffer: int, at: str, lanes: int = LANES) -> str:
        """A vector; with fewer `lanes`, zeros behind them."""
        return self.load(buffer, at, LANES, self.first_lanes(lanes))

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

    def _rows_of(self, start: str, stride: int, row: str, vector: int) -> list[str]:
        """Where sixteen rows of a block begin; the last row again in place of rows that do not exist."""
        rows = (
            self.affine(f"row + {vector * LANES + lane}, {self.plan.queries - 1}", kind="min", row=row)
            for lane in range(LANES)
        )
        return [self.affine(f"start + row * {stride}", start=start, row=each) for each in rows]

    def _load_transposed(
        self, place: Strided, start: str, row: str, extent: int, target: str, factor: str = ""
    ) -> None:
        """Store rows of a block, transposed and multiplied by `factor`, in scratch memory from `target` on."""
        for vector in range(self.plan.vectors):
            rows = self._rows_of(start, place.strides[2], row, vector)

            def write(first: str, count: int, rows: list[str] = rows, vector: int = vector) -> None:
                places = [self.affine("row + first", row=each, first=first) for each in rows]
                columns = self.transposed([self._load(place.source, each, count) for each in places])
                for at, column in enumerate(columns[:count]):
                    value = self.let(f"arith.mulf {column}, {factor} : {VECTOR}") if factor else column
                    self._keep(value, self._scratch(target, first, vector, at))

            self.parts(extent, write)

    def _copied(self, place: Strided, start: str, target: str) -> str:
        """Copy the keys or values of a head to scratch memory from `target` on, which is returned.

        Zeros fill the last vector of each.
        """
        plan = self.plan

        def copy(key: str, _: Sequence[str]) -> tuple[str, ...]:
            source = self.affine(f"start + key * {place.strides[2]}", start=start, key=key)
            to = self.affine(f"target + key * {plan.padded}", target=target, key=key)

            def write(first: str, count: int) -> None:
                value = self._load(place.source, self.affine("at + first", at=source, first=first), count)
                self._keep(value, self.affine("at + first", at=to, first=first))

            self.parts(plan.size, write)
            return ()

        self.loop(self.constant(0), self.constant(plan.keys), 1, copy)
        return target

    # -- steps of a block ---------------------------------------------------------------------

    def _load_queries(self, start: str, row: str) -> None:
        scale = self.constant(f"{self.plan.scale:.9e}", VECTOR)
        self._load_transposed(self.plan.query, start, row, self.plan.size, self.queries, scale)

    def _load_mask(self, start: str, row: str) -> None:
        """Store the mask in the place of the scores, which are added to it."""
        plan, mask = self.plan, self.plan.mask
        assert mask is not None
        if mask.strides[2]:
            self._load_transposed(mask, start, row, plan.keys, self.scores)
            return

        def copy(key: str, _: Sequence[str]) -> tuple[str, ...]:
            at = self.affine(f"start + key * {mask.strides[3]}", start=start, key=key)
            value = self._broadcast(mask.source, at)
            for vector in range(plan.vectors):
                self._keep(value, self._scratch(self.scores, key, vector))
            return ()

        self.loop(self.constant(0), self.constant(plan.keys), 1, copy)

    def _score(self, start: str, row: str) -> tuple[str, list[str]]:
        """Compute the scores. Returns the number of keys, and the largest score of each row.

        Without those of a causal mask, the scores of a tile of keys more than needed are minus infinity.
        """
        plan = self.plan
        tile, whole = plan.key_tile, plan.keys // plan.key_tile * plan.key_tile
        least = [self.constant(_HIDDEN, VECTOR)] * plan.vectors
        end, keys = self.constant(whole), self.constant(plan.keys)
        if plan.is_causal:
            expression = f"((row + {plan.rows}) ceildiv {tile}) * {tile}, {whole}"
            end = self.affine(expression, kind="min", row=row)

        def full(first: str, largest: list[str]) -> list[str]:
            return self._score_tile(start, first, tile, row, largest)

        largest = self.loop(self.constant(0), end, tile, full, least, VECTOR)
        if plan.keys == whole:
            return end, largest
        rest = partial(self._score_tile, start, self.constant(whole), plan.keys - whole, row)
        if not plan.is_causal:
            return keys, rest(largest)
        # One iteration if the block reaches the last keys, or none.
        last = self.affine(f"row + {plan.rows}, {plan.keys}", kind="min", row=row)
        behind = self.affine(f"last - {whole}, 0", kind="max", last=last)
        some = self.affine("behind, 1", kind="min", behind=behind)
        largest = self.loop(self.constant(0), some, 1, lambda _, carried: rest(carried), largest, VECTOR)
        return self.affine(f"end + some * {plan.keys - whole}", end=end, some=some), largest

    def _score_tile(self, start: str, first: str, count: int, row: str, largest: Sequence[str]) -> list[str]:
        plan = self.plan
        begin = self.affine(f"start + first * {self.key.strides[2]}", start=start, first=first)
        kept = [self._scratch(self.scores, first, vector, at) for at, vector in self._tile(count)]
        zeros = self.constant("0.0", VECTOR)
        sums = [zeros if plan.mask is None else self._load(self.memory, each) for each in kept]

        def add(element: str, sums: list[str]) -> list[str]:
            rows = [
                self._load(self.memory, self._scratch(self.queries, element, each))
                for each in range(plan.vectors)
            ]
            at = self.affine(f"begin + element * {self.key.strides[3]}", begin=begin, element=element)
            return self._products(self.key.source, at, self.key.strides[2], rows, sums)

        sums = self.loop(self.constant(0), self.constant(plan.size), 1, add, sums, VECTOR)
        if plan.is_causal:
            sums = self._causal(sums, first, count, row)
        largest = list(largest)
        for (_, vector), value, at in zip(self._tile(count), sums, kept, strict=True):
            self._keep(value, at)
            largest[vector] = self.let(f"arith.maximumf {largest[vector]}, {value} : {VECTOR}")
        return largest

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

    def _causal(self, sums: Sequence[str], first: str, count: int, row: str) -> list[str]:
        """Minus infinity for keys behind the query."""
        lanes = self.let(f"arith.constant dense<{list(range(LANES))}> : {_INTEGERS}")
        hidden, result = self.constant(_HIDDEN, VECTOR), list(sums)
        for vector in range(self.plan.vectors):
            queries = self._plus(lanes, self.affine(f"row + {vector * LANES}", row=row))
            for at in range(count):
                zeros = self.constant(0, _INTEGERS)
                key = self._plus(zeros, self.affine(f"first + {at}", first=first))
                seen = self.let(f"arith.cmpi sle, {key}, {queries} : {_INTEGERS}")
                number = at * self.plan.vectors + vector
                result[number] = self.let(f"arith.select {seen}, {sums[number]}, {hidden} : {MASK}, {VECTOR}")
        return result

    def _plus(self, vector: str, index: str) -> str:
        number = self.let(f"arith.index_cast {index} : index to i32")
        every = self.let(f"vector.broadcast {number} : i32 to {_INTEGERS}")
        return self.let(f"arith.addi {vector}, {every} : {_INTEGERS}")

    def _exponentials(self, keys: str, largest: Sequence[str]) -> list[str]:
        """Replace the scores by their exponentials. Returns the sum of each row.

        A row whose scores are all minus infinity has zeros, as in torch.
        """
        hidden, zeros = self.constant(_HIDDEN, VECTOR), self.constant("0.0", VECTOR)
        shifts = []
        for each in largest:
            is_hidden = self.let(f"arith.cmpf oeq, {each}, {hidden} : {VECTOR}")
            shifts.append(self.let(f"arith.select {is_hidden}, {zeros}, {each} : {MASK}, {VECTOR}"))

        def replace(key: str, sums: list[str]) -> list[str]:
            added = []
            for vector, (shift, total) in enumerate(zip(shifts, sums, strict=True)):
                at = self._scratch(self.scores, key, vector)
                moved = self.let(f"arith.subf {self._load(self.memory, at)}, {shift} : {VECTOR}")
                power = self.exponential(moved)
                self._keep(power, at)
                added.append(self.let(f"arith.addf {total}, {power} : {VECTOR}"))
            return added

        return self.loop(self.constant(0), keys, 1, replace, [zeros] * self.plan.vectors, VECTOR)

    def _weigh(self, start: str, keys: str, totals: Sequence[str]) -> None:
        """The values' sums, weighted by the exponentials and divided by their sums."""
        plan = self.plan
        zeros, one = self.constant("0.0", VECTOR), self.constant("1.0", VECTOR)
        factors = []
        for each in totals:
            is_zero = self.let(f"arith.cmpf oeq, {each}, {zeros} : {VECTOR}")
            inverse = self.let(f"arith.divf {one}, {each} : {VECTOR}")
            factors.append(self.let(f"arith.select {is_zero}, {zeros}, {inverse} : {MASK}, {VECTOR}"))

        def tile(first: str, count: int) -> None:
            begin = self.affine(f"start + first * {self.value.strides[3]}", start=start, first=first)

            def add(key: str, sums: list[str]) -> list[str]:
                rows = [
                    self._load(self.memory, self._scratch(self.scores, key, each))
                    for each in range(plan.vectors)
                ]
                at = self.affine(f"begin + key * {self.value.strides[2]}", begin=begin, key=key)
                return self._products(self.value.source, at, self.value.strides[3], rows, sums)

            sums = self.loop(self.constant(0), keys, 1, add, [zeros] * (count * plan.vectors), VECTOR)
            for (at, vector), value in zip(self._tile(count), sums, strict=True):
                result = self.let(f"arith.mulf {value}, {factors[vector]} : {VECTOR}")
                self._keep(result, self._scratch(self.sums, first, vector, at))

        def full(first: str, _: Sequence[str]) -> tuple[str, ...]:
            tile(first, plan.value_tile)
            return ()

        whole = plan.size // plan.value_tile * plan.value_tile
        self.loop(self.constant(0), self.constant(whole), plan.value_tile, full)
        if plan.size > whole:
            tile(self.constant(whole), plan.size - whole)

    def _store(self, start: str, row: str) -> None:
        """Store the results of the rows that exist."""
        plan, result = self.plan, self.plan.result
        for vector in range(plan.vectors):
            rows = self._rows_of(start, result.strides[2], row, vector)

            def write(first: str, count: int, rows: list[str] = rows, vector: int = vector) -> None:
                zeros = self.constant("0.0", VECTOR)
                columns = [
                    self._load(self.memory, self._scratch(self.sums, first, vector, at))
                    if at < count
                    else zeros
                    for at in range(LANES)
                ]
                for lane, each in enumerate(self.transposed(columns)):
                    at = self.affine("row + first", row=rows[lane], first=first)
                    left = self.affine(
                        f"({plan.queries - vector * LANES - lane} - row) * {LANES}, {count}",
                        kind="min",
                        row=row,
                    )
                    mask = self.let(f"vector.create_mask {left} : {MASK}")
                    self.store(each, result.source, at, LANES, mask)

            self.parts(plan.size, write)
