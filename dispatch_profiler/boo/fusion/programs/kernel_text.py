"""Writes kernels instruction by instruction, and the functions that launch them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dispatch_profiler.operations import Tensor

#: Elements of the longest vector.
LANES = 16
#: What a loop computes in an iteration: its counter, and the carried values -> the next carried values.
Body = Callable[[str, list[str]], Sequence[str]]


class KernelWriter:
    """Lines of a kernel. Each value has a name of its own.

    `buffers` are `%buffer0`, ...: the operands, then the results, then with `scratch` so many elements that the kernel
    writes and reads; contents of scratch are undefined at first.
    """

    def __init__(
        self, function: str, inputs: Sequence[Tensor], results: Sequence[Tensor], scratch: int = 0
    ) -> None:
        self.function = function
        self.inputs, self.results, self.scratch = list(inputs), list(results), scratch
        self.lines: list[str] = []
        self._constants: dict[tuple[str, str], str] = {}
        self._count = 0
        sizes = [each.elements for each in (*inputs, *results)] + ([scratch] if scratch else [])
        self.buffers = [f"memref<{size}xf32>" for size in sizes]
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

    def text(self, workgroups: int) -> str:
        """MLIR text with the kernel, and the function that launches it: operands, then the results that it writes to."""
        name = f"{self.function}_kernel"
        constants = [
            f"{to} = arith.constant {value} : {type_}" for (value, type_), to in self._constants.items()
        ]
        body = "\n".join(f"      {each}" for each in (*constants, *self.lines))
        types = [each.mlir for each in self.results]
        made_types = types + ([f"tensor<{self.scratch}xf32>"] if self.scratch else [])
        taken = ", ".join(f"%{each.name}" for each in self.inputs)
        given = ", ".join(each.mlir for each in self.inputs)
        arguments = ", ".join(
            (
                *(f"%{each.name}: {each.mlir}" for each in self.inputs),
                *(
                    f"%{each.name}: {each.mlir} {{iree.abi.output = {at} : index}}"
                    for at, each in enumerate(self.results)
                ),
            )
        )
        made = f"%made{'' if len(made_types) == 1 else f':{len(made_types)}'}"
        values = ["%made"] if len(made_types) == 1 else [f"%made#{at}" for at in range(len(types))]
        return f"""hal.executable.source private @{name} {{
  hal.executable.export public @{name} ordinal(0) layout({self._layout}) count(%device: !hal.device) -> (index, index, index) {{
    %x = arith.constant {workgroups} : index
    %one = arith.constant 1 : index
    hal.return %x, %one, %one : index, index, index
  }}
  builtin.module {{
    func.func @{name}() attributes {{translation_info = #iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<Default>>}} {{
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
{body}
      return
    }}
  }}
}}
func.func @{self.function}({arguments}) -> {_listed(types)} {{
  {made} = flow.dispatch @{name}::@{name}({taken}) : ({given}) -> {_listed(made_types)}
  return {", ".join(values)} : {", ".join(types)}
}}
"""


def _listed(types: Sequence[str]) -> str:
    return types[0] if len(types) == 1 else f"({', '.join(types)})"
