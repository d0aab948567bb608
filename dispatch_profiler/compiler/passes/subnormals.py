"""Subnormal numbers in kernels for CPUs.

IREE's runtime calls kernels in a mode of the CPU that takes subnormal operands for zero, and writes zero for subnormal
results. Kernels follow the IEEE standard instead, as eager torch and numpy do: each leaves that mode where it begins, and
restores it where it returns, so that nothing outside it notices. That takes some ten cycles for each
workgroup.

Instructions that ignore the mode are not affected: products of bf16 on CPUs with AVX512-BF16 or AMX always flush.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from iree.compiler import ir

from dispatch_profiler.compiler.ir_module import IrModule, operations_in, symbol_of


@dataclass(frozen=True)
class _Assembly:
    """Instructions with their operands, results and clobbered registers, in LLVM's notation.

    `enter` yields the caller's mode, in an integer of `bits`, and `leave` takes it.
    """

    bits: int
    enter: str
    enter_constraints: str
    leave: str
    leave_constraints: str


_TRIPLE = "llvm.target_triple"
#: Architecture of a target triple -> how its mode is changed. The bits are FTZ and DAZ of MXCSR on x86, and
#: FZ and FZ16 of FPCR on Arm. The 128 bytes below the stack pointer may be in use.
_ASSEMBLY = {
    "x86_64": _Assembly(
        32,
        "leaq -136(%rsp), %rsp\n"
        "stmxcsr (%rsp)\n"
        "movl (%rsp), $0\n"
        "andl $$0xffff7fbf, (%rsp)\n"
        "ldmxcsr (%rsp)\n"
        "leaq 136(%rsp), %rsp",
        "=&r,~{memory},~{dirflag},~{fpsr},~{flags}",
        "leaq -136(%rsp), %rsp\nmovl $0, (%rsp)\nldmxcsr (%rsp)\nleaq 136(%rsp), %rsp",
        "r,~{memory},~{dirflag},~{fpsr},~{flags}",
    ),
    "aarch64": _Assembly(
        64,
        "mrs $0, fpcr\nbic x9, $0, #0x1000000\nbic x9, x9, #0x80000\nmsr fpcr, x9",
        "=&r,~{x9},~{memory}",
        "msr fpcr, $0",
        "r,~{memory}",
    ),
}


def keep_subnormals(module: IrModule) -> None:
    """Let the kernels of a module at phase `executable-targets` keep subnormal numbers, whatever mode they are called in.

    Kernels for other devices, and for architectures without such a mode, stay as they are.
    """
    for executable in module.symbols("hal.executable").values():
        inner = operations_in(executable)
        exported = {symbol_of(op) for op in inner if op.name == "hal.executable.export"}
        for op in inner:
            if op.name == "llvm.func" and symbol_of(op) in exported and list(op.regions[0].blocks):
                assembly = _ASSEMBLY.get(_architecture(op))
                if assembly is not None:
                    _insert(op, assembly)


def _architecture(function: Any) -> str:
    """`x86_64` of a function in a module for `x86_64-unknown-unknown-eabi-elf`; empty for devices other than CPUs."""
    attributes = function.parent.operation.attributes
    triple = str(attributes[_TRIPLE]) if _TRIPLE in attributes else ""
    return triple.strip('"').partition("-")[0]


def _insert(function: Any, assembly: _Assembly) -> None:
    context = function.context
    mode = ir.IntegerType.get_signless(assembly.bits, context)
    with context, function.location:
        start = ir.InsertionPoint.at_block_begin(function.regions[0].blocks[0])
        entered = _inline(assembly.enter, assembly.enter_constraints, [mode], [], start)
        for op in operations_in(function):
            if op.name == "llvm.return":
                _inline(
                    assembly.leave, assembly.leave_constraints, [], [entered.result], ir.InsertionPoint(op)
                )


def _inline(text: str, constraints: str, results: list[Any], operands: list[Any], at: Any) -> Any:
    attributes = {
        "asm_string": ir.StringAttr.get(text),
        "constraints": ir.StringAttr.get(constraints),
        "has_side_effects": ir.UnitAttr.get(),
    }
    return ir.Operation.create(
        "llvm.inline_asm", results=results, operands=operands, attributes=attributes, ip=at
    )
