"""Attention of few queries as one kernel of vector instructions, as in decoding: each key and value is read once.

    softmax(scale * query @ key.T) @ value        of each head, or of the heads that share their keys

A workgroup computes the rows of a group of heads; a row is a query of a head. The lanes of its vectors are elements of keys and
values, which are read as they are stored. The sums of products of sixteen pairs of a key and a row are added up together: each
step of four adds two vectors into one. Keys are read in blocks, as in `kernels/attention.py`.

If keys are split, so that few groups of heads keep many threads busy, a workgroup computes the rows for a part of the keys. A
second kernel, `kernels/joined_keys.py`, adds the parts up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dispatch_profiler.configurations.cpu.kernels.heads import HIDDEN, HeadsPlan, HeadsWriter
from dispatch_profiler.configurations.cpu.kernels.joined_keys import JoinedKeysKernel, JoinedKeysPlan
from dispatch_profiler.configurations.cpu.kernels.writer import LANES, MASK, VECTOR, function_text
from dispatch_profiler.operations import Tensor, element_type
from dispatch_profiler.operations.strided import Strided

#: Rows at most: the sums of products of a key are as many.
MOST_ROWS = 8
#: Parts of the keys at most: the second kernel keeps a factor of each in a register.
MOST_PARTS = 16
#: Sums that stay in registers while values pass by.
_SUMS = 16
_INTEGERS = f"vector<{LANES}xi32>"


@dataclass(frozen=True, kw_only=True)
class DecodingPlan(HeadsPlan):
    """A unit is a group of heads, or one of `parts` of the keys for a group."""

    parts: int = 1

    @property
    def places(self) -> int:
        """Lanes of a key's scores: the rows, and more up to a power of two."""
        return 1 << (self.rows_of_group - 1).bit_length()

    @property
    def key_tile(self) -> int:
        """Keys whose scores fill a vector."""
        return LANES // self.places

    @property
    def kept_keys(self) -> int:
        """Keys of a block, in whole vectors of scores."""
        return -(-min(self.block, self.keys) // self.key_tile) * self.key_tile

    @property
    def units(self) -> int:
        """Groups of all sequences, times the parts of the keys."""
        return self.batch * self.groups * self.parts

    @property
    def seen_keys(self) -> range:
        """The keys that some row sees, from the first key of a block on."""
        if self.position is None:
            return range(self.keys)
        end = max(0, min(self.keys, self.position + self.queries))
        first = max(0, self.position - self.window + 1) if self.window else 0
        return range(first // self.block * self.block, end)

    @property
    def keys_of_part(self) -> int:
        """Keys of a part, in whole vectors of scores; the last parts may have fewer or none."""
        return -(-len(self.seen_keys) // (self.parts * LANES)) * LANES

    @property
    def joined(self) -> JoinedKeysPlan:
        """How the parts of the keys are added up."""
        return JoinedKeysPlan(
            batch=self.batch,
            heads=self.heads,
            queries=self.queries,
            value_size=self.value_size,
            merged=self.merged,
            parts=self.parts,
            result=self.result,
            most_workgroups=self.most_workgroups,
        )

    @property
    def query_size(self) -> int:
        """Elements of a row of queries in scratch memory, in whole vectors."""
        return -(-self.size // LANES) * LANES

    @property
    def sum_size(self) -> int:
        """Elements of a row of results in scratch memory, in whole vectors."""
        return self.joined.sum_size

    @property
    def scratch(self) -> int:
        """Elements of a workgroup: queries and results of the rows, and the scores of a block."""
        return self.rows_of_group * (self.query_size + self.sum_size) + self.kept_keys * self.places

    @property
    def rescales(self) -> int:
        """How often the sums of a row are multiplied at most."""
        return -(-self.keys // self.block) + (self.parts > 1)

    def problem(self) -> str | None:
        """Why the kernel cannot load or store whole vectors; None if it can."""
        if reason := super().problem():
            return reason
        if self.rows_of_group > MOST_ROWS:
            return f"a block has {self.rows_of_group} rows, more than {MOST_ROWS}"
        stored: tuple[tuple[str, Strided, int], ...] = (
            ("queries", self.query, self.size),
            ("keys", self.key, self.size),
            ("values", self.value, self.value_size),
            ("results", self.result, self.value_size),
        )
        stored += (("mask", self.mask, self.keys),) if self.mask is not None else ()
        odd = next((name for name, each, extent in stored if extent > 1 and each.strides[3] != 1), None)
        return odd and f"elements of its {odd} are not consecutive"


def decoding_text(
    function: str, inputs: Sequence[Tensor], results: Sequence[Tensor], plan: DecodingPlan
) -> str:
    """MLIR text with the kernels, and the function `function`, which launches them."""
    scratch = plan.workgroups * plan.scratch
    if plan.parts == 1:
        kernel = DecodingKernel(function, inputs, results, scratch).finished(plan)
        return function_text(function, inputs, results, [kernel])
    parts = [Tensor("parts", (plan.joined.elements,), element_type("f32"))]
    first = DecodingKernel(parts_function(function), inputs, parts, scratch).finished(plan)
    second = JoinedKeysKernel(function, parts, results).finished(plan.joined)
    return function_text(function, inputs, results, [first, second])


def parts_function(function: str) -> str:
    """What the kernel of a function is named after that computes parts of the keys."""
    return f"{function}_parts"


@dataclass(frozen=True)
class _KeysOfGroup:
    """Where the keys and values of a group of heads begin, the mask of each row, and the end of the keys that are read."""

    key: str
    value: str
    masks: tuple[str, ...]
    end: str


class DecodingKernel(HeadsWriter):
    """Writes the kernel. Scratch memory: %queries[row, element], %scores[key, row] and %sums[row, element]."""

    def finished(self, plan: DecodingPlan) -> DecodingKernel:
        """The kernel, with its instructions."""
        self.plan = plan
        self.workgroups = plan.workgroups
        self.memory = len(self.buffers) - 1
        self.write("%group = hal.interface.workgroup.id[0] : index")
        self.queries = self.affine(f"group * {plan.scratch}", group="%group")
        self.scores = self.affine(f"at + {plan.rows_of_group * plan.query_size}", at=self.queries)
        self.sums = self.affine(f"at + {plan.kept_keys * plan.places}", at=self.scores)
        self.loop("%group", self.constant(plan.units), plan.workgroups, self._unit)
        return self

    def _unit(self, number: str, _: Sequence[str]) -> tuple[str, ...]:
        """The rows of a group of heads, for a part of the keys."""
        plan = self.plan
        group = self.affine(f"unit floordiv {plan.parts}", unit=number) if plan.parts > 1 else number
        head = self.affine(f"(group mod {plan.groups}) * {plan.merged}", group=group)
        batch = self.affine(f"group floordiv {plan.groups}", group=group)
        query, key, value = (
            self.start_of_head(each, batch, head) for each in (plan.query, plan.key, plan.value)
        )
        start, end = self._keys_of(number)
        unit = _KeysOfGroup(key, value, self._masks(batch, head), end)
        self._load_queries(query)
        self._clear_sums()
        hidden, zeros = self.constant(HIDDEN, VECTOR), self.constant("0.0", VECTOR)

        def step(start: str, carried: list[str]) -> list[str]:
            return self._block(unit, start, *carried)

        largest, totals = self.loop(start, end, plan.block, step, [hidden, zeros], VECTOR)
        totals = self._over_keys(totals, "addf")
        if plan.parts > 1:
            self._store_part(number, largest, totals)
        else:
            self._store(self.start_of_head(plan.result, batch, head), totals)
        return ()

    def _keys_of(self, number: str) -> tuple[str, str]:
        """The first key that a unit reads, and the end of its keys."""
        plan, seen = self.plan, self.plan.seen_keys
        if plan.parts == 1:
            return self.constant(seen.start), self.constant(seen.stop)
        part = f"(unit mod {plan.parts}) * {plan.keys_of_part}"
        start = self.affine(f"{part} + {seen.start}", unit=number)
        end = self.affine(f"{part} + {seen.start + plan.keys_of_part}, {seen.stop}", kind="min", unit=number)
        return start, end

    def _masks(self, batch: str, head: str) -> tuple[str, ...]:
        """Where the mask of each row begins: one for all rows if they share it, none without a mask."""
        plan, mask = self.plan, self.plan.mask
        if mask is None:
            return ()
        start = self.start_of_head(mask, batch, head)
        is_shared = (plan.merged == 1 or not mask.strides[1]) and (plan.queries == 1 or not mask.strides[2])
        rows = 1 if is_shared else plan.rows_of_group
        return tuple(self._row_of(mask, start, row) for row in range(rows))

    # -- memory -------------------------------------------------------------------------------

    def _row_of(self, place: Strided, start: str, row: int) -> str:
        """Where a row begins."""
        head, query = divmod(row, self.plan.queries)
        return self.affine(f"start + {head * place.strides[1] + query * place.strides[2]}", start=start)

    def _vectors(self, extent: int) -> list[tuple[int, int]]:
        """The first element and the number of elements of each vector of a row."""
        return [(at, min(LANES, extent - at)) for at in range(0, extent, LANES)]

    def _at(self, start: str, offset: int) -> str:
        return self.affine(f"start + {offset}", start=start)

    def _load_queries(self, start: str) -> None:
        """Store the rows, multiplied by the scale, in scratch memory."""
        plan, scale = self.plan, self.constant(f"{self.plan.scale:.9e}", VECTOR)
        for row in range(plan.rows_of_group):
            begin = self._row_of(plan.query, start, row)
            for at, lanes in self._vectors(plan.size):
                value = self.load_lanes(plan.query.source, self._at(begin, at), lanes)
                scaled = self.let(f"arith.mulf {value}, {scale} : {VECTOR}")
                self.store(scaled, self.memory, self._at(self.queries, row * plan.query_size + at), LANES)

    def _clear_sums(self) -> None:
        zeros = self.constant("0.0", VECTOR)
        for at in range(0, self.plan.rows_of_group * self.plan.sum_size, LANES):
            self.store(zeros, self.memory, self._at(self.sums, at), LANES)

    # -- blocks of keys -----------------------------------------------------------------------

    def _block(self, unit: _KeysOfGroup, start: str, before: str, totals: str) -> list[str]:
        """Add the keys of a block to the sums. Returns the largest score and the sum of exponentials of each lane's row."""
        plan, hidden = self.plan, self.constant(HIDDEN, VECTOR)
        count = self.affine(f"end - start, {plan.block}", kind="min", end=unit.end, start=start)

        def score(first: str, largest: list[str]) -> list[str]:
            return [self.larger(largest[0], self._score_tile(unit, start, first))]

        (largest,) = self.loop(self.constant(0), count, plan.key_tile, score, [hidden], VECTOR)
        largest = self.larger(before, self._over_keys(largest, ""))
        shift = self.shift(largest)
        factor = self.exponential(self.let(f"arith.subf {before}, {shift} : {VECTOR}"))
        totals = self.let(f"arith.mulf {totals}, {factor} : {VECTOR}")

        def replace(first: str, total: list[str]) -> list[str]:
            at = self.affine(f"start + first * {plan.places}", start=self.scores, first=first)
            moved = self.let(f"arith.subf {self.load_lanes(self.memory, at)}, {shift} : {VECTOR}")
            power = self.exponential(moved)
            self.store(power, self.memory, at, LANES)
            return [self.let(f"arith.addf {total[0]}, {power} : {VECTOR}")]

        (totals,) = self.loop(self.constant(0), count, plan.key_tile, replace, [totals], VECTOR)
        self._weigh(unit, start, count, factor)
        return [largest, totals]

    def _over_keys(self, vector: str, kind: str) -> str:
        """The sum (`addf`), or the largest, of the lanes of each row, in all of its lanes."""
        distance = LANES // 2
        while distance >= self.plan.places:
            lanes = [lane ^ distance for lane in range(LANES)]
            other = self.let(f"vector.shuffle {vector}, {vector} {lanes} : {VECTOR}, {VECTOR}")
            vector = (
                self.let(f"arith.{kind} {vector}, {other} : {VECTOR}") if kind else self.larger(vector, other)
            )
            distance //= 2
        return vector

    # -- scores -------------------------------------------------------------------------------

    def _score_tile(self, unit: _KeysOfGroup, start: str, first: str) -> str:
        """The scores of as many keys as fill a vector, which are stored; keys that do not exist are the last one again."""
        plan, zeros = self.plan, self.constant("0.0", VECTOR)
        key = self.affine("start + first", start=start, first=first)
        places = []
        for at in range(plan.key_tile):
            each = self.affine(f"key + {at}, {plan.keys - 1}", kind="min", key=key)
            places.append(self.affine(f"begin + key * {plan.key.strides[2]}", begin=unit.key, key=each))
        sums = [[zeros] * plan.places for _ in places]
        for at, lanes in self._vectors(plan.size):
            rows = [
                self.load_lanes(self.memory, self._at(self.queries, row * plan.query_size + at))
                for row in range(plan.rows_of_group)
            ]
            for of_key, place in zip(sums, places, strict=True):
                value = self.load_lanes(plan.key.source, self._at(place, at), lanes)
                for row, each in enumerate(rows):
                    of_key[row] = self.let(f"vector.fma {value}, {each}, {of_key[row]} : {VECTOR}")
        scores = self._added_up([each for of_key in sums for each in of_key])
        if unit.masks:
            added = self.masking(self._mask_tile(unit.masks, key), hides=plan.hides)
            scores = self.let(f"arith.addf {scores}, {added} : {VECTOR}")
        scores = self._seen(scores, key)
        at_scores = self.affine(f"start + first * {plan.places}", start=self.scores, first=first)
        self.store(scores, self.memory, at_scores, LANES)
        return scores

    def _added_up(self, vectors: Sequence[str]) -> str:
        """A vector with the sum of the lanes of each of sixteen vectors."""
        found, distance = list(vectors), LANES // 2
        while distance:
            # The lanes of both halves of each group of lanes: of the first vector, then of the second.
            halves = [
                [LANES * bool(lane & distance) + ((lane & ~distance) | half) for lane in range(LANES)]
                for half in (0, distance)
            ]
            added = []
            for at in range(distance):
                pair = f"{found[at]}, {found[at + distance]}"
                one, other = (
                    self.let(f"vector.shuffle {pair} {lanes} : {VECTOR}, {VECTOR}") for lanes in halves
                )
                added.append(self.let(f"arith.addf {one}, {other} : {VECTOR}"))
            found, distance = added, distance // 2
        return found[0]

    def _mask_tile(self, masks: Sequence[str], key: str) -> str:
        """The mask of as many keys as fill a vector of scores, from `key` on; zeros for keys that do not exist."""
        plan, mask = self.plan, self.plan.mask
        assert mask is not None
        lanes = self.first_lanes(plan.key_tile)
        if plan.keys % plan.key_tile:
            left = self.affine(f"{plan.keys} - key, {plan.key_tile}", kind="min", key=key)
            lanes = self.let(f"vector.create_mask {left} : {MASK}")
        loaded = (
            self.load(mask.source, self.affine("at + key", at=at, key=key), LANES, lanes) for at in masks
        )
        # The lanes are keys, and are to be pairs of a key and a row.
        found = next(loaded)
        if plan.places > 1:
            of_keys = [lane // plan.places for lane in range(LANES)]
            found = self.let(f"vector.shuffle {found}, {found} {of_keys} : {VECTOR}, {VECTOR}")
        for row, each in enumerate(loaded, start=1):
            of_row = [
                LANES + lane // plan.places if lane % plan.places == row else lane for lane in range(LANES)
            ]
            found = self.let(f"vector.shuffle {found}, {each} {of_row} : {VECTOR}, {VECTOR}")
        return found

    def _seen(self, scores: str, key: str) -> str:
        """Minus infinity for keys that do not exist, behind the row's position, or before its window."""
        plan, hidden = self.plan, self.constant(HIDDEN, VECTOR)
        number = self.let(f"arith.index_cast {key} : index to i32")
        every = self.let(f"vector.broadcast {number} : i32 to {_INTEGERS}")
        keys = self.let(
            f"arith.addi {every}, {self._numbers([lane // plan.places for lane in range(LANES)])} : {_INTEGERS}"
        )
        last = [plan.keys - 1] * LANES
        if plan.position is not None:
            positions = [plan.position + lane % plan.places % plan.queries for lane in range(LANES)]
            last = [min(plan.keys - 1, each) for each in positions]
        seen = self.let(f"arith.cmpi sle, {keys}, {self._numbers(last)} : {_INTEGERS}")
        if plan.position is not None and plan.window:
            begin = self._numbers([each - plan.window for each in positions])
            within = self.let(f"arith.cmpi sgt, {keys}, {begin} : {_INTEGERS}")
            seen = self.let(f"arith.andi {seen}, {within} : {MASK}")
        return self.let(f"arith.select {seen}, {scores}, {hidden} : {MASK}, {VECTOR}")

    def _numbers(self, values: Sequence[int]) -> str:
        """A vector of constant integers."""
        return self.let(f"arith.constant dense<{list(values)}> : {_INTEGERS}")

    # -- values -------------------------------------------------------------------------------

    def _weigh(self, unit: _KeysOfGroup, start: str, count: str, factor: str) -> None:
        """Add the values of a block, weighted by the exponentials, to the sums multiplied by `factor`."""
        plan = self.plan
        factors = [self._of_row(factor, row) for row in range(plan.rows_of_group)]
        vectors = self._vectors(plan.value_size)
        width = max(1, _SUMS // plan.rows_of_group)
        begin = self.affine(f"at + start * {plan.value.strides[2]}", at=unit.value, start=start)
        for part in (vectors[at : at + width] for at in range(0, len(vectors), width)):
            kept = [
                self._at(self.sums, row * plan.sum_size + at)
                for row in range(plan.rows_of_group)
                for at, _ in part
            ]
            sums = [
                self.let(
                    f"arith.mulf {self.load_lanes(self.memory, at)}, {factors[number // len(part)]} : {VECTOR}"
                )
                for number, at in enumerate(kept)
            ]

            def add(key: str, sums: list[str], part: list[tuple[int, int]] = part) -> list[str]:
                place = self.affine(f"begin + key * {plan.value.strides[2]}", begin=begin, key=key)
                values = [
                    self.load_lanes(plan.value.source, self._at(place, at), lanes) for at, lanes in part
                ]
                made = []
                for row in range(plan.rows_of_group):
                    at = self.affine(f"at + key * {plan.places} + {row}", at=self.scores, key=key)
                    share = self.broadcast(self.memory, at, LANES)
                    for number, value in enumerate(values):
                        total = sums[row * len(part) + number]
                        made.append(self.let(f"vector.fma {share}, {value}, {total} : {VECTOR}"))
                return made

            found = self.loop(self.constant(0), count, 1, add, sums, VECTOR)
            for value, at in zip(found, kept, strict=True):
                self.store(value, self.memory, at, LANES)

    def _of_row(self, vector: str, row: int) -> str:
        """The element of a row, in all lanes."""
        return self.let(f"vector.shuffle {vector}, {vector} {[row] * LANES} : {VECTOR}, {VECTOR}")

    def _store(self, start: str, totals: str) -> None:
        """Store the rows, divided by their sums of exponentials."""
        plan, inverse = self.plan, self.inverse(totals)
        for row in range(plan.rows_of_group):
            factor, begin = self._of_row(inverse, row), self._row_of(plan.result, start, row)
            for at, lanes in self._vectors(plan.value_size):
                total = self.load_lanes(self.memory, self._at(self.sums, row * plan.sum_size + at))
                value = self.let(f"arith.mulf {total}, {factor} : {VECTOR}")
                self.store(value, plan.result.source, self._at(begin, at), LANES, self.first_lanes(lanes))

    def _store_part(self, number: str, largest: str, totals: str) -> None:
        """Store what `JoinedKeysKernel` adds up: the largest scores and the sums of exponentials of the rows, and the rows."""
        plan, joined, target = self.plan, self.plan.joined, len(self.inputs)
        begin = self.affine(f"unit * {joined.part_size}", unit=number)
        self.store(largest, target, begin, LANES)
        self.store(totals, target, self._at(begin, LANES), LANES)
        for at in range(0, plan.rows_of_group * plan.sum_size, LANES):
            value = self.load_lanes(self.memory, self._at(self.sums, at))
            self.store(value, target, self._at(begin, joined.sums + at), LANES)
