"""Writes kernels instruction by instruction, and the functions that launch them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dispatch_profiler.configurations.cpu.plans.vectors import exponential, transposition
from dispatch_profiler.operations import Tensor

#: Elements of the longest vector.
LANES = 16
#: Types of elements that kernels read and write; most compute in f32. Buffers of bf16 are integers, because LLVM has no
#: masked loads and stores of bf16 for every CPU.
_BUFFER_TYPES = {"f64": "f64", "f32": "f32", "bf16": "i16", "f16": "f16", "i8": "i8", "i32": "i32"}
#: A not-a-number of bf16, and what makes a carry where the nearest, or even, number is the larger one.
_QUIET, _NEARLY_HALF = 0x7FC0, 0x7FFF
#: Types of a vector, and of a mask of its lanes.
VECTOR, MASK = f"vector<{LANES}xf32>", f"vector<{LANES}xi1>"
#: What a loop computes in an iteration: its counter, and the carried values -> the next carried values.
Body = Callable[[str, list[str]], Sequence[str]]


class KernelWriter:
    """Lines of a kernel. Each value has a name of its own.

    `buffers` are `%buffer0`, ...: the operands, then the results, then with `scratch` so many elements of f32 that the
    kernel writes and reads; contents of scratch are undefined at first.
    """

    def __init__(
        self, function: str, inputs: Sequence[Tensor], results: Sequence[Tensor], scratch: int = 0
    ) -> None:
        self.function = function
        self.inputs, self.results, self.scratch = list(inputs), list(results), scratch
        self.lines: list[str] = []
        self._tables: list[str] = []
        self._constants: dict[tuple[str, str], str] = {}
        self._count = 0
        #: Of a launch; `text` sets it.
        self.workgroups = 1
        sizes = [each.elements for each in (*inputs, *results)] + ([scratch] if scratch else [])
        #: The type of the elements of each buffer.
        self.types = [each.type.name for each in (*inputs, *results)] + ["f32"] * bool(scratch)
        self.buffers = [
            f"memref<{size}x{_BUFFER_TYPES[type_]}>" for size, type_ in zip(sizes, self.types, strict=True)
        ]
        bindings = ", ".join(
            f"#hal.pipeline.binding<storage_buffer{', ReadOnly' if at < len(self.inputs) else ''}>"
            for at in range(len(sizes))
        )
        self._layout = f"#hal.pipeline.layout<bindings = [{bindings}]>"
        for at, type_ in enumerate(self.buffers):
            self.write(
                f"%start{at} = hal.interface.binding.subspan layout({self._layout}) binding({at}) alignment(64) "
                f"offset(%c0) : {type_}"
            )
            self.write(f"%buffer{at} = memref.assume_alignment %start{at}, 64 : {type_}")

    def name(self) -> str:
        """A new name."""
        self._count += 1
        return f"%v{self._count}"

    def write(self, line: str) -> None:
        """Add a line."""
        self.lines.append(line)

    def let(self, text: str) -> str:
        """The name of the value of an instruction, which is added."""
        name = self.name()
        self.write(f"{name} = {text}")
        return name

    def constant(self, value: object, type_: str = "index") -> str:
        """A constant, which is known in the whole kernel; of a vector, each element."""
        key = (f"dense<{value}>" if type_.startswith("vector") else str(value)), type_
        if key not in self._constants:
            self._constants[key] = f"%k{len(self._constants)}"
        return self._constants[key]

    def exponential(self, value: str, *, negated: bool = False) -> str:
        """e^`value`, or e^-`value`, of a vector of f32."""
        name = self.name()
        for line in exponential(value, name, VECTOR, name.replace("%", "_"), negated=negated):
            self.write(line)
        return name

    # -- elements, which are f32 in registers ------------------------------------------------------

    def load(self, buffer: int, at: str, lanes: int, mask: str = "") -> str:
        """A vector from the place `at` on; with `mask`, zeros in the lanes that it leaves out."""
        type_ = _BUFFER_TYPES[self.types[buffer]]
        vector = f"vector<{lanes}x{type_}>"
        source = f"%buffer{buffer}[{at}]"
        if not mask:
            stored = self.let(f"vector.load {source} : {self.buffers[buffer]}, {vector}")
        else:
            zeros = self.constant("0" if type_.startswith("i") else "0.0", vector)
            stored = self.let(
                f"vector.maskedload {source}, {mask}, {zeros} : {self.buffers[buffer]}, vector<{lanes}xi1>, {vector} "
                f"into {vector}"
            )
        return self._widened(stored, self.types[buffer], f"vector<{lanes}x{{}}>")

    def broadcast(self, buffer: int, at: str, lanes: int) -> str:
        """A vector of the element at the place `at`."""
        if self.types[buffer] != "bf16":
            return self.let(f"vector.broadcast {self.element(buffer, at)} : f32 to vector<{lanes}xf32>")
        stored = self.let(f"memref.load %buffer{buffer}[{at}] : {self.buffers[buffer]}")
        # In twice as many lanes, which is one instruction of x86; the bits of a bf16 are the upper half of an f32's.
        bits, every = f"vector<{lanes}xi32>", f"vector<{2 * lanes}xi16>"
        twice = self.let(f"vector.broadcast {stored} : i16 to {every}")
        joined = self.let(f"vector.bitcast {twice} : {every} to {bits}")
        moved = self.let(f"arith.shli {joined}, {self.constant(16, bits)} : {bits}")
        return self.let(f"arith.bitcast {moved} : {bits} to vector<{lanes}xf32>")

    def element(self, buffer: int, at: str) -> str:
        """The element at the place `at`."""
        stored = self.let(f"memref.load %buffer{buffer}[{at}] : {self.buffers[buffer]}")
        return self._widened(stored, self.types[buffer], "{}")

    def store(self, value: str, buffer: int, at: str, lanes: int, mask: str = "") -> None:
        """Store a vector from the place `at` on, rounded to the nearest; with `mask`, only the lanes that it has."""
        type_ = self.types[buffer]
        vector = f"vector<{lanes}x{_BUFFER_TYPES[type_]}>"
        value = self._narrowed(value, type_, lanes)
        target = f"%buffer{buffer}[{at}]"
        if mask:
            masks = f"vector<{lanes}xi1>"
            self.write(
                f"vector.maskedstore {target}, {mask}, {value} : {self.buffers[buffer]}, {masks}, {vector}"
            )
        else:
            self.write(f"vector.store {value}, {target} : {self.buffers[buffer]}, {vector}")

    def _widened(self, value: str, type_: str, shaped: str) -> str:
        """Elements of `type_` as f32; `shaped` makes a type of scalars or vectors of a type of elements."""
        if type_ == "f32":
            return value
        wide = shaped.format("f32")
        if type_ == "f16":
            return self.let(f"arith.extf {value} : {shaped.format('f16')} to {wide}")
        if type_ == "i8":
            return self.let(f"arith.sitofp {value} : {shaped.format('i8')} to {wide}")
        bits = shaped.format("i32")
        extended = self.let(f"arith.extui {value} : {shaped.format('i16')} to {bits}")
        moved = self.let(f"arith.shli {extended}, {self.constant(16, bits)} : {bits}")
        return self.let(f"arith.bitcast {moved} : {bits} to {wide}")

    def _narrowed(self, value: str, type_: str, lanes: int) -> str:
        """A vector of f32 rounded to `type_`; of i8, whole numbers in its range."""
        if type_ == "f32":
            return value
        wide, bits, short = f"vector<{lanes}xf32>", f"vector<{lanes}xi32>", f"vector<{lanes}xi16>"
        if type_ == "f16":
            return self.let(f"arith.truncf {value} : {wide} to vector<{lanes}xf16>")
        if type_ == "i8":
            number = self.let(f"arith.fptosi {value} : {wide} to {bits}")
            return self.let(f"arith.trunci {number} : {bits} to vector<{lanes}xi8>")
        number = self.let(f"arith.bitcast {value} : {wide} to {bits}")
        above = self.let(f"arith.shrui {number}, {self.constant(16, bits)} : {bits}")
        odd = self.let(f"arith.andi {above}, {self.constant(1, bits)} : {bits}")
        carried = self.let(f"arith.addi {number}, {self.constant(_NEARLY_HALF, bits)} : {bits}")
        rounded = self.let(f"arith.addi {carried}, {odd} : {bits}")
        upper = self.let(f"arith.shrui {rounded}, {self.constant(16, bits)} : {bits}")
        is_none = self.let(f"arith.cmpf uno, {value}, {value} : {wide}")
        kept = self.let(
            f"arith.select {is_none}, {self.constant(_QUIET, bits)}, {upper} : vector<{lanes}xi1>, {bits}"
        )
        return self.let(f"arith.trunci {kept} : {bits} to {short}")

    # -- addresses and loops ---------------------------------------------------------------------

    def affine(self, expression: str, *, kind: str = "apply", **values: str) -> str:
        """An affine expression of index values, which it calls by the names of the arguments."""
        names, given = ", ".join(values), ", ".join(values.values())
        return self.let(f"affine.{kind} affine_map<({names}) -> ({expression})>({given})")

    def loop(
        self, first: str, end: str, step: int, body: Body, carried: Sequence[str] = (), type_: str = ""
    ) -> list[str]:
        """A loop of index values from `first` to before `end`. Returns the values after the last iteration."""
        counter, by = self.name(), self.constant(step)
        if not carried:
            self.write(f"scf.for {counter} = {first} to {end} step {by} {{")
            body(counter, [])
            self.write("}")
            return []
        name, inside = self.name(), [self.name() for _ in carried]
        begin = ", ".join(f"{to} = {value}" for to, value in zip(inside, carried, strict=True))
        types = ", ".join([type_] * len(carried))
        self.write(
            f"{name}:{len(carried)} = scf.for {counter} = {first} to {end} step {by} iter_args({begin}) -> ({types}) {{"
        )
        self.write(f"scf.yield {', '.join(body(counter, inside))} : {types}")
        self.write("}")
        return [f"{name}#{at}" for at in range(len(carried))]

    def parts(self, extent: int, write: Callable[[str, int], None], unrolled: int = 0) -> None:
        """`write(start, count)` of the vectors along an axis: full ones in a loop if they are more than `unrolled`, then the rest."""
        whole = extent // LANES * LANES

        def full(start: str, _: Sequence[str]) -> tuple[str, ...]:
            write(start, LANES)
            return ()

        if whole > unrolled * LANES:
            self.loop(self.constant(0), self.constant(whole), LANES, full)
        else:
            for start in range(0, whole, LANES):
                write(self.constant(start), LANES)
        if extent > whole:
            write(self.constant(whole), extent - whole)

    def first_lanes(self, count: int) -> str:
        """A mask of the first lanes of a vector; empty for all lanes."""
        return self.let(f"vector.constant_mask [{count}] : {MASK}") if count < LANES else ""

    def transposed(self, rows: Sequence[str]) -> list[str]:
        """Sixteen vectors, transposed."""
        for step in transposition():
            moved = list(rows)
            for each in step:
                moved[each.result] = self.let(
                    f"vector.shuffle {rows[each.first]}, {rows[each.second]} {list(each.lanes)} : {VECTOR}, {VECTOR}"
                )
            rows = moved
        return list(rows)

    def table(self, values: Sequence[object], type_: str) -> str:
        """The memory of constant numbers."""
        name, memory = f"{self.function}_table{len(self._tables)}", f"memref<{len(values)}x{type_}>"
        listed = ", ".join(map(str, values))
        self._tables.append(f'memref.global "private" constant @{name} : {memory} = dense<[{listed}]>')
        return self.let(f"memref.get_global @{name} : {memory}")

    def text(self, workgroups: int) -> str:
        """MLIR text with the kernel, and the function that launches it: operands, then the results that it writes to."""
        self.workgroups = workgroups
        return function_text(self.function, self.inputs, self.results, [self])

    @property
    def kernel_name(self) -> str:
        """The name of the kernel in MLIR."""
        return f"{self.function}_kernel"

    def executable(self) -> str:
        """MLIR text of the kernel."""
        name = self.kernel_name
        constants = [
            f"{to} = arith.constant {value} : {type_}" for (value, type_), to in self._constants.items()
        ]
        body = "\n".join(f"      {each}" for each in (*constants, *self.lines))
        # No line is empty: a function in a file is found with its kernel by that.
        tables = "".join(f"    {each}\n" for each in self._tables)
        return f"""hal.executable.source private @{name} {{
  hal.executable.export public @{name} ordinal(0) layout({self._layout}) count(%device: !hal.device) -> (index, index, index) {{
    %x = arith.constant {self.workgroups} : index
    %one = arith.constant 1 : index
    hal.return %x, %one, %one : index, index, index
  }}
  builtin.module {{
{tables}    func.func @{name}() attributes {{translation_info = #iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<Default>>}} {{
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
{body}
      return
    }}
  }}
}}
"""

    def launch(self, results: Sequence[Tensor]) -> str:
        """The instruction of a function with `results` that launches the kernel.

        Results of the function have their names behind `%made_`: by their names, it takes the memory that it writes to.
        """
        types = [each.mlir for each in self.results]
        made_types = types + ([f"tensor<{self.scratch}xf32>"] if self.scratch else [])
        names = [f"%{'made_' * (each in results)}{each.name}" for each in self.results]
        names += ["%scratch"] * bool(self.scratch)
        taken = ", ".join(f"%{each.name}" for each in self.inputs)
        given = ", ".join(each.mlir for each in self.inputs)
        name = self.kernel_name
        return f"{', '.join(names)} = flow.dispatch @{name}::@{name}({taken}) : ({given}) -> {_listed(made_types)}"


def function_text(
    function: str, inputs: Sequence[Tensor], results: Sequence[Tensor], kernels: Sequence[KernelWriter]
) -> str:
    """MLIR text with kernels, and the function that launches them in turn: operands, then the results that it writes to.

    Kernels read the operands, and what kernels before them have made.
    """
    arguments = ", ".join(
        (
            *(f"%{each.name}: {each.mlir}" for each in inputs),
            *(
                f"%{each.name}: {each.mlir} {{iree.abi.output = {at} : index}}"
                for at, each in enumerate(results)
            ),
        )
    )
    types = [each.mlir for each in results]
    executables = "".join(each.executable() for each in kernels)
    launches = "\n".join(f"  {each.launch(results)}" for each in kernels)
    return f"""{executables}func.func @{function}({arguments}) -> {_listed(types)} {{
{launches}
  return {", ".join(f"%made_{each.name}" for each in results)} : {", ".join(types)}
}}
"""


def _listed(types: Sequence[str]) -> str:
    return types[0] if len(types) == 1 else f"({', '.join(types)})"
