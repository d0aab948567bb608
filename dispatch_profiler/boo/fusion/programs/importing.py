"""Turns programs into MLIR: torch traces the operators, IREE imports the graph, and IREE's passes lower it to linalg."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import torch

from dispatch_profiler.boo.fusion.nodes import Node, aten
from dispatch_profiler.boo.fusion.programs.operators import (
    DECOMPOSITIONS,
    MOVES,
    OPERATORS,
    evaluate,
    in_torch_order,
    stored,
)
from dispatch_profiler.boo.fusion.programs.values import Calls
from dispatch_profiler.boo.launching.torch_types import TYPES, Tensor
from dispatch_profiler.compiler.source import torch_dialect
from dispatch_profiler.compiler.source.torch_dialect import lowered
from dispatch_profiler.configurations.cpu.kernels import attention, attention_plan, heads, writer
from dispatch_profiler.errors import CompilerError
from dispatch_profiler.files.regular import sha256
from dispatch_profiler.operations import strided as places

_torch: Any = torch
_SIGNATURE = re.compile(r"func\.func @(\w+)\((.*)\) -> (.*) \{\n")
_TYPE = re.compile(r"tensor<[^<>]*>")


#: Operators that move elements of any type, and whose programs are not computed in f32.
_MOVING = MOVES | {"cat", "roll", "stack"}


@cache
def importer_version() -> str:
    """Identifies everything besides the program and the compiler that determines a program's MLIR."""
    names = (
        "importing",
        "operators",
        "channelwise",
        "copies",
        "attention",
        "windows",
        "group_norm",
        "rows",
        "row_expressions",
        "strided",
        "updates",
    )
    written = (attention, attention_plan, heads, places, writer)
    files = (
        *(Path(__file__).with_name(f"{each}.py") for each in names),
        *(Path(str(each.__file__)) for each in (*written, torch_dialect)),
    )
    sources = sha256(b"".join(each.read_bytes() for each in files))
    return f"torch {torch.__version__}, {sources}"


def linalg_text(program: Calls, function: str) -> str:
    """MLIR text with the function `function`, which takes the program's operands, then its results, which it writes to.

    Raises CompilerError if torch or the importer does not support the program.
    """
    try:
        importer = _fx_importer().FxImporter()
        importer.import_stateless_graph(traced(program), func_name=function)
        text = lowered(str(importer.module))
    except Exception as error:  # torch, the importer and its passes raise any kind of error
        raise CompilerError(f"{program.name}: cannot be imported: {error}"[:500]) from error
    return _with_destinations(text)


def traced(program: Calls) -> Any:
    """The graph of a program in operators that IREE compiles well, on tensors with the shapes of their memory."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.fx.experimental.proxy_tensor import make_fx

    computes = not all(name in _MOVING for name, _, _ in program.parsed_calls)

    def compute(*operands: Tensor) -> tuple[Tensor, ...]:
        inputs = [in_torch_order(each, value) for each, value in zip(operands, program.inputs, strict=True)]
        results = evaluate(
            program, [each.float() for each in inputs] if computes else inputs, operators=OPERATORS
        )
        return tuple(
            stored(each, value).to(TYPES[value.type])
            for each, value in zip(results, program.outputs, strict=True)
        )

    unset: Any = unset_fake_temporarily
    with unset(), _torch._guards.tracing(None), torch.no_grad():
        fakes = [torch.empty(each.stored, dtype=TYPES[each.type], device="meta") for each in program.inputs]
        make: Any = make_fx
        graph = make(compute, tracing_mode="fake", decomposition_table=DECOMPOSITIONS)(*fakes).graph
    _cancel_permutations(graph)
    return graph


def _cancel_permutations(graph: Any) -> None:
    """Join consecutive permutations: each of the decompositions permutes images."""
    for node in graph.nodes:
        if _is_permutation(node) and _is_permutation(node.args[0]):
            inner: Node = node.args[0]
            node.args = (inner.args[0], [inner.args[1][axis] for axis in node.args[1]])
        if _is_permutation(node) and list(node.args[1]) == list(range(len(node.args[1]))):
            node.replace_all_uses_with(node.args[0])
    graph.eliminate_dead_code()


def _is_permutation(node: Node) -> bool:
    return node.op == "call_function" and node.target is aten.permute.default


@cache
def _fx_importer() -> Any:
    """IREE's importer of FX graphs. Its table of types needs a type that torch 2.6 lacks, so a placeholder is added."""
    missing = [name for name in ("float8_e8m0fnu",) if not hasattr(torch, name)]
    for name in missing:
        setattr(torch, name, object())
    try:
        from iree.compiler.extras import fx_importer
    finally:
        for name in missing:
            vars(torch).pop(name, None)  # another thread may have removed it already
    return fx_importer


def _with_destinations(text: str) -> str:
    """Let the function write to its last arguments, like the functions of the templates."""
    match = _SIGNATURE.search(text)
    if match is None:
        raise CompilerError(f"the importer did not write a function: {text[:200]}")
    name, arguments, results = match.groups()
    outputs = [
        f"%output{at}: {type_} {{iree.abi.output = {at} : index}}"
        for at, type_ in enumerate(_TYPE.findall(results))
    ]
    listed = ", ".join([*([arguments] if arguments else []), *outputs])
    head, tail = text[: match.start()], text[match.end() :]
    return f"{head}func.func @{name}({listed}) -> {results} {{\n{tail}"
