"""Programs that compute row by row, as one kernel: a row stays in the first cache between its passes.

IREE makes a kernel of each reduction, and another one of what follows: of 1024 rows of 4096 elements that are quantised, with
the least and the largest element of each row, they take 2.6 ms on two cores of a Xeon.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dispatch_profiler.boo.fusion.nodes import NotFusible
from dispatch_profiler.boo.fusion.programs.row_expressions import Along, RowProgram, row_program
from dispatch_profiler.boo.fusion.programs.values import Calls
from dispatch_profiler.configurations.cpu.kernels.writer import LANES, MASK, VECTOR, KernelWriter

#: Elements of a workgroup, and workgroups at most.
_ELEMENTS, _MOST_WORKGROUPS = 8192, 128
#: Vectors of an iteration: so many sums hide the latency of an addition.
_UNROLLED = 4
#: Where a reduction begins, and its instruction.
_BEGIN = {"amax": "0xFF800000", "amin": "0x7F800000", "sum": "0.0"}
_COMBINE = {"amax": "arith.maximumf", "amin": "arith.minimumf", "sum": "arith.addf"}
_LAST = {"amax": "maximumf", "amin": "minimumf", "sum": "add"}
_BINARY = {
    "add": "arith.addf",
    "sub": "arith.subf",
    "mul": "arith.mulf",
    "div": "arith.divf",
    "maximum": "arith.maximumf",
    "minimum": "arith.minimumf",
}
_UNARY = {
    "abs": "math.absf",
    "neg": "arith.negf",
    "sqrt": "math.sqrt",
}


def row_text(program: Calls, function: str) -> str:
    """MLIR text with the function `function`, as `linalg_text` has it, and its kernel.

    Raises NotFusible if the program does not compute row by row, or reduces nothing and quantises nothing: then the
    compiler's kernels are as fast.
    """
    found = row_program(program)
    if not found.has_reductions and all(each.type != "i8" for each in program.outputs):
        raise NotFusible("it reduces no rows")
    return _RowKernel(function, program.operands, program.results).kernel(found)


class _RowKernel(KernelWriter):
    """Writes the kernel. Every value is a vector: of elements, or of one element in all lanes."""

    def kernel(self, program: RowProgram) -> str:
        """The kernel and the function that launches it."""
        self.program = program
        part = max(1, _ELEMENTS // program.columns, -(-program.rows // _MOST_WORKGROUPS))
        group = self.let("hal.interface.workgroup.id[0] : index")
        first = self.affine(f"group * {part}", group=group)
        last = self.affine(f"group * {part} + {part}, {program.rows}", kind="min", group=group)
        self.loop(first, last, 1, self._row)
        return self.text(-(-program.rows // part))

    def _row(self, row: str, _: Sequence[str]) -> tuple[str, ...]:
        self.row = row
        self.start = self.affine(f"row * {self.program.columns}", row=row)
        #: Values that are the same for each element of the row.
        self.known: dict[int, str] = {}
        for reductions in self.program.passes():
            self.known.update(zip(reductions, self._reduced(reductions), strict=True))
        self._store()
        return ()

    # -- passes ----------------------------------------------------------------------------------

    def _reduced(self, numbers: Sequence[int]) -> list[str]:
        """The reductions of a pass, each in all lanes."""
        names = [self.program.expressions[each].name for each in numbers]
        begin = [self.constant(_BEGIN[name], VECTOR) for name in names]
        columns, step = self.program.columns, _UNROLLED * LANES
        whole = columns // step * step
        carried = begin * _UNROLLED
        self._keep_values_of_rows(numbers)
        if whole:

            def several(column: str, before: list[str]) -> list[str]:
                after = []
                for vector in range(_UNROLLED):
                    at = self.affine(f"column + {vector * LANES}", column=column)
                    after += self._combined(numbers, before[len(names) * vector :], at, LANES)
                return after

            carried = self.loop(self.constant(0), self.constant(whole), step, several, carried, VECTOR)
        for vector, start in enumerate(range(whole, columns, LANES)):
            at, place = self.constant(start), vector * len(names)
            after = self._combined(numbers, carried[place:], at, min(LANES, columns - start))
            carried[place : place + len(names)] = after
        found = []
        for number, name in enumerate(names):
            total, *others = carried[number :: len(names)]
            for each in others:
                total = self.let(f"{_COMBINE[name]} {total}, {each} : {VECTOR}")
            only = self.let(f"vector.reduction <{_LAST[name]}>, {total} : {VECTOR} into f32")
            found.append(self.let(f"vector.broadcast {only} : f32 to {VECTOR}"))
        return found

    def _combined(self, numbers: Sequence[int], before: Sequence[str], column: str, lanes: int) -> list[str]:
        """Reductions with the elements of a vector from `column` on, of which `lanes` are of the row."""
        known, mask, found = dict(self.known), self.first_lanes(lanes), []
        for number, value in zip(numbers, before, strict=False):
            name, (part,), _ = self.program.expressions[number]
            term = self._value(part, column, mask, known)
            if mask:
                nothing = self.constant(_BEGIN[name], VECTOR)
                term = self.let(f"arith.select {mask}, {term}, {nothing} : {MASK}, {VECTOR}")
            found.append(self.let(f"{_COMBINE[name]} {value}, {term} : {VECTOR}"))
        return found

    def _store(self) -> None:
        """The last pass: elements of results; and results with an element for each row."""
        program, begin = self.program, len(self.inputs)
        self._keep_values_of_rows(program.results)
        elements = []
        for at, number in enumerate(program.results, start=begin):
            if program.expressions[number].along is Along.ELEMENTS:
                elements.append((at, number))
            else:
                self.store(self.known[number], at, self.row, LANES, self.first_lanes(1))

        def write(column: str, lanes: int) -> None:
            known, mask = dict(self.known), self.first_lanes(lanes)
            place = self.affine("start + column", start=self.start, column=column)
            for at, number in elements:
                self.store(self._value(number, column, mask, known), at, place, LANES, mask)

        if elements:
            self.parts(program.columns, write)

    # -- values ----------------------------------------------------------------------------------

    def _keep_values_of_rows(self, numbers: Sequence[int]) -> None:
        """Compute what `numbers` have that is the same for each element of a row, once and not in a loop."""
        waiting, seen = list(numbers), set[int]()
        while waiting:
            number = waiting.pop()
            name, _, along = self.program.expressions[number]
            if number in seen or number in self.known:
                continue
            seen.add(number)
            if along in (Along.ROWS, Along.NUMBERS) and name not in _BEGIN:
                self._value(number, "", "", self.known)
            else:
                waiting.extend(self.program.parts(number))

    def _value(self, number: int, column: str, mask: str, known: dict[int, str]) -> str:
        """The vector of an expression from `column` on, which is computed unless it is in `known`."""
        if number not in known:
            name, parts, along = self.program.expressions[number]
            if name == "input":
                known[number] = self._loaded(parts[0], along, column, mask)
            elif name == "number":
                known[number] = self.constant(f"{parts[0]:.9e}", VECTOR)
            else:
                known[number] = self._computed(
                    name, [self._value(each, column, mask, known) for each in parts]
                )
        return known[number]

    def _loaded(self, buffer: int, along: Along, column: str, mask: str) -> str:
        if along is Along.ROWS:
            return self.broadcast(buffer, self.row, LANES)
        if along is Along.COLUMNS:
            return self.load(buffer, column, LANES, mask)
        return self.load(buffer, self.affine("start + column", start=self.start, column=column), LANES, mask)

    def _computed(self, name: str, of: Sequence[str]) -> str:
        """An operator on vectors."""
        if name in _BINARY:
            return self.let(f"{_BINARY[name]} {of[0]}, {of[1]} : {VECTOR}")
        if name in _UNARY:
            return self.let(f"{_UNARY[name]} {of[0]} : {VECTOR}")
        return _WRITTEN[name](self, *of)

    def rounded(self, value: str) -> str:
        """The nearest whole numbers, or even ones. The compiler's `math.roundeven` has some twenty instructions."""
        return self.let(f'llvm.call_intrinsic "llvm.roundeven.v{LANES}f32"({value}) : ({VECTOR}) -> {VECTOR}')

    def bounded(self, value: str, bound: str, is_outside: str) -> str:
        """`bound` where `is_outside` holds of a value and the bound; what is not a number stays."""
        outside = self.let(f"arith.cmpf {is_outside}, {value}, {bound} : {VECTOR}")
        return self.let(f"arith.select {outside}, {bound}, {value} : {MASK}, {VECTOR}")

    def sigmoid_of(self, numerator: str, value: str) -> str:
        """`numerator` / (1 + e^-`value`)."""
        power = self.exponential(value, negated=True)
        divisor = self.let(f"arith.addf {power}, {self.constant('1.0', VECTOR)} : {VECTOR}")
        return self.let(f"arith.divf {numerator}, {divisor} : {VECTOR}")


#: Operators of several instructions.
_WRITTEN: dict[str, Callable[..., str]] = {
    "at_least": lambda kernel, x, bound: kernel.bounded(x, bound, "olt"),
    "at_most": lambda kernel, x, bound: kernel.bounded(x, bound, "ogt"),
    "exp": lambda kernel, x: kernel.exponential(x),
    "round": lambda kernel, x: kernel.rounded(x),
    "relu": lambda kernel, x: kernel.bounded(x, kernel.constant("0.0", VECTOR), "olt"),
    "sigmoid": lambda kernel, x: kernel.sigmoid_of(kernel.constant("1.0", VECTOR), x),
    "silu": lambda kernel, x: kernel.sigmoid_of(x, x),
}
