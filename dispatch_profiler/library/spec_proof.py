"""Which entries of a library a tuning spec can express, proven with the compiler.

The operation that an entry configures is read from the compiler's IR of the operation's default function, because the
compiler folds loops before it applies a spec. Each entry of the spec is then proven: the default function is compiled
with the spec, and its tiles are read from the IR.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from iree.compiler.dialects import linalg
from iree.compiler.tools.binaries import find_tool

from dispatch_profiler.compiler.backends.host_cpu import HasPhases, resolved_flags
from dispatch_profiler.compiler.backends.iree import IreeCompiler
from dispatch_profiler.compiler.backends.tools import Tools
from dispatch_profiler.compiler.ir_module import IrModule, operations_in
from dispatch_profiler.compiler.passes.applied import described_unless_configured, fold_groups
from dispatch_profiler.configurations import Default, Lowering, rejection_reason
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import DispatchProfilerError
from dispatch_profiler.files.regular import write_atomic
from dispatch_profiler.generator.render import render_module
from dispatch_profiler.library.entry import Entry
from dispatch_profiler.targets import parse_target

# -- spec ------------------------------------------------------------------------------------------

# IREE tuning specs: transform dialect libraries that configure the operations of any module.
#
# They work with `iree-compile --iree-codegen-tuning-spec-path=spec.mlir`. A spec tells operations apart by their
# loops, indexing maps and element types.


#: Inserts the loop over images into a convolution of one image, from which the compiler has folded it away. The compiler
#: runs this pass only after it has applied specs, which would then not match, so a spec has to run it itself.
_INSERT_BATCH = "iree-codegen-insert-batch-dim-for-batchless-conv"
_HANDLE = "!transform.any_op"
_RESULTS = {
    "contraction": ("batch", "m", "n", "k"),
    "convolution": ("batch", "out_img", "out_ch", "filter", "in_ch", "depth", "strides", "dilations"),
}


@dataclass(frozen=True)
class Matcher:
    """An operation as a spec recognizes it.

    `kind` is contraction or convolution, `dimensions` has the extents of each result of that matcher: for a
    contraction: batch, m, n and k.
    """

    kind: str
    element_types: tuple[str, str, str]
    indexing_maps: tuple[str, ...]
    dimensions: tuple[tuple[int, ...], ...]

    @property
    def is_batchless(self) -> bool:
        """True for a convolution of one image."""
        return self.kind == "convolution" and self.dimensions[0] == (1,)

    def text(self) -> str:
        """The body of a matcher sequence for `%op`, without its end."""
        names = _RESULTS[self.kind]
        lhs, rhs, output = self.element_types
        lines = [
            f"{', '.join(f'%{name}' for name in names)} = transform.iree.match.{self.kind} %op, "
            f"lhs_type = {lhs}, rhs_type = {rhs}, output_type = {output}, "
            f"indexing_maps = [{', '.join(self.indexing_maps)}] : {_HANDLE} -> !transform.param<i64>"
        ]
        lines += [
            f"transform.iree.match.dims_equal %{name}, {list(extents)} : !transform.param<i64>"
            for name, extents in zip(names, self.dimensions, strict=True)
        ]
        return "\n".join(f"    {line}" for line in lines)


@dataclass(frozen=True)
class SpecEntry:
    """The configuration that a spec sets on the operations that `matcher` recognizes. `name` is for readers."""

    name: str
    matcher: Matcher
    compilation_info: str


def spec_text(entries: Sequence[SpecEntry]) -> str:
    """The spec. Raises ValueError without entries: the compiler rejects an empty spec."""
    if not entries:
        raise ValueError("a tuning spec needs at least one entry")
    inserts_batch = any(entry.matcher.is_batchless for entry in entries)
    attributes = "transform.with_named_sequence"
    if not inserts_batch:  # only a spec of one operation has the default entry point
        attributes += ", iree_codegen.tuning_spec_with_default_entrypoint"
    sequences = "\n".join(_sequence(at, entry) for at, entry in enumerate(entries))
    pairs = ",\n".join(f"        @match_{at} -> @apply_config" for at in range(len(entries)))
    target, insertion = "%module", ""
    if inserts_batch:
        target = "%prepared"
        insertion = (
            f'    %prepared = transform.apply_registered_pass "{_INSERT_BATCH}" to %module\n'
            f"        : ({_HANDLE}) -> {_HANDLE}\n"
        )
    return f"""module attributes {{{attributes}}} {{
  transform.named_sequence @apply_config(
      %op: {_HANDLE} {{transform.readonly}}, %config: !transform.any_param {{transform.readonly}}) {{
    transform.annotate %op "compilation_info" = %config : {_HANDLE}, !transform.any_param
    transform.yield
  }}
{sequences}
  transform.named_sequence @__kernel_config(%module: {_HANDLE} {{transform.consumed}}) -> {_HANDLE}
      attributes {{iree_codegen.tuning_spec_entrypoint}} {{
{insertion}    %configured = transform.foreach_match in {target}
{pairs}
        : ({_HANDLE}) -> {_HANDLE}
    transform.yield %configured : {_HANDLE}
  }}
}}
"""


def _sequence(at: int, entry: SpecEntry) -> str:
    return f"""  // {entry.name}
  transform.named_sequence @match_{at}(
      %op: {_HANDLE} {{transform.readonly}}) -> ({_HANDLE}, !transform.any_param) {{
{entry.matcher.text()}
    %config = transform.param.constant {entry.compilation_info} -> !transform.any_param
    transform.yield %op, %config : {_HANDLE}, !transform.any_param
  }}"""


#: Operations whose tiles a spec can set.
_KINDS = ("matmul", "batch_matmul", "conv2d")
#: Families of targets for which the compiler reads tuning specs; for CUDA and SPIR-V it ignores them.
FAMILIES = ("llvm-cpu", "rocm")
_SPEC_FLAG = "--iree-codegen-tuning-spec-path"
#: Result of IREE's matcher -> name in the `linalg` bindings.
_CONTRACTION: tuple[str, ...] = ("batch", "m", "n", "k")
_CONVOLUTION: tuple[str, ...] = (
    "batch",
    "output_image",
    "output_channel",
    "filter_loop",
    "input_channel",
    "depth",
)


class _Inexpressible(Exception):
    """An entry cannot be expressed; its text is the reason."""


@dataclass(frozen=True)
class Spec:
    """A tuning spec; `text` is empty if it has no entry. `left_out` has (entry, reason) pairs."""

    text: str
    entries: tuple[Entry, ...]
    left_out: tuple[tuple[Entry, str], ...]


def make_spec(entries: Sequence[Entry], iree_compile: Path | None = None) -> Spec:
    """The spec of all `entries` that a spec can express, each proven by compiling with it.

    `iree_compile` is the compiler, by default the installed wheel's. It runs as a command, because its flag for
    specs applies to a whole process.
    """
    tools = Tools(iree_compile or Path(find_tool("iree-compile")))
    spec_entries: dict[Entry, SpecEntry] = {}
    left_out: dict[Entry, str] = {}
    for entry in entries:
        try:
            spec_entries[entry] = _distinct(spec_entry(entry, tools), spec_entries)
        except (_Inexpressible, DispatchProfilerError) as error:
            left_out[entry] = str(error).splitlines()[0]
    while spec_entries:
        text = spec_text(list(spec_entries.values()))
        failed = _failures(spec_entries, text, tools)
        if not failed:
            return Spec(text, tuple(spec_entries), tuple(left_out.items()))
        left_out |= failed
        spec_entries = {entry: each for entry, each in spec_entries.items() if entry not in failed}
    return Spec("", (), tuple(left_out.items()))


def _distinct(new: SpecEntry, earlier: Mapping[Entry, SpecEntry]) -> SpecEntry:
    """`new`, unless an earlier entry matches the same operations."""
    for each in earlier.values():
        if each.matcher == new.matcher:
            raise _Inexpressible(f"to a spec it is the same operation as {each.name}")
    return new


def _failures(spec_entries: Mapping[Entry, SpecEntry], text: str, tools: Tools) -> dict[Entry, str]:
    """Entries that the spec does not configure as requested, with the configurations that the compiler chose instead."""
    failed = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "spec.mlir")
        write_atomic(path, text)
        for entry in spec_entries:
            try:
                module = _compiled(entry, tools, "executable-configurations", f"{_SPEC_FLAG}={path}")
                lowering = _lowering(entry)
                configured = described_unless_configured(module, _default(entry).name, lowering)
            except DispatchProfilerError as error:
                failed[entry] = f"the compiler fails with the spec: {str(error).splitlines()[0]}"
                continue
            if configured:
                failed[entry] = (
                    f"with the spec the compiler configured {configured}, not {lowering.lowering_config}"
                )
    return failed


# -- from an entry of a library to an entry of the spec --------------------------------------------


def reason_against_spec(entry: Entry) -> str:
    """Why no tuning spec can express an entry, as far as that is known without compiling; empty if one may."""
    try:
        _lowering(entry)
    except (_Inexpressible, DispatchProfilerError) as error:
        return str(error).splitlines()[0]
    return ""


def _lowering(entry: Entry) -> Lowering:
    """The tiles of an entry. Raises _Inexpressible if a spec cannot set all of its requests."""
    configuration, operation = entry.dispatch.configuration, entry.operation
    target = parse_target(entry.provenance.target)
    if target.family not in FAMILIES:
        raise _Inexpressible(f"the compiler reads no tuning specs for {target.family}")
    if operation.kind not in _KINDS:
        raise _Inexpressible(f"specs are written for {', '.join(_KINDS)}, not {operation.kind}")
    if configuration.flags:
        raise _Inexpressible(f"its flags apply to a whole module: {' '.join(configuration.flags)}")
    if configuration.reduced(operation) is not None:
        raise _Inexpressible("it has a form, which replaces the operation by others")
    if configuration.kernel(operation) is not None:
        raise _Inexpressible("it is an external kernel")
    if configuration.kernel_suffix:
        raise _Inexpressible(
            "its kernel is written by this package, and a spec configures only the compiler's"
        )
    if configuration.slices(operation) > 1:
        raise _Inexpressible("it splits the reduction, which changes the operation")
    if configuration.effective_operation(operation) != operation:
        raise _Inexpressible("it changes the element type of the sums")
    if (reason := rejection_reason(configuration, operation, target.limits)) is not None:
        raise _Inexpressible(reason)
    lowering = configuration.lowering(operation)
    if lowering is None:
        raise _Inexpressible("it requests no tiles")
    return lowering


def spec_entry(entry: Entry, tools: Tools) -> SpecEntry:
    """The entry of a spec that matches the operation of `entry` and sets its tiles. Raises our errors if there is no such entry."""
    lowering = _lowering(entry)
    # For a GPU, the pipeline rewrites the operation while it is configured; for a CPU, the loop over one image is
    # inserted before.
    phase = "executable-sources" if lowering.owns_translation else "executable-configurations"
    module = _compiled(entry, tools, phase)
    with module.operation.context:
        for executable in module.executables_of(_default(entry).name).values():
            for op in operations_in(executable):
                matcher = _matcher(op)
                groups = None if matcher is None else fold_groups(lowering.root_loops, _loops(op))
                if matcher is not None and groups is not None:
                    folded = lowering.folded(groups)
                    is_folded = len(groups) != len(lowering.loops)
                    return SpecEntry(entry.dispatch.name, matcher, _compilation_info(op, folded, is_folded))
    raise _Inexpressible("the compiler's IR has no operation with its loops")


def _compilation_info(op: Any, lowering: Lowering, is_folded: bool) -> str:
    """The attribute; a folded operation on a CPU keeps the pipeline that the compiler chose for it."""
    if is_folded and not lowering.owns_translation:
        while op.name != "func.func":
            op = op.parent.operation
        pipeline = re.search(r"pipeline = #\w+\.pipeline<(\w+)>", str(op.attributes["translation_info"]))
        if pipeline is not None:
            lowering = replace(lowering, pipeline=pipeline.group(1))
    return lowering.compilation_info


def _default(entry: Entry) -> Dispatch:
    return Dispatch(entry.operation, Default())


def _compiled(entry: Entry, tools: Tools, phase: str, *flags: str) -> IrModule:
    """The operation's default function at `phase`."""
    target = parse_target(entry.provenance.target)
    every = resolved_flags(_owner(tools), (*target.flags_of(entry.operation), *flags))
    source = render_module(entry.operation, [_default(entry)])
    return tools.advance(tools.parse(source, every), every, stop=phase)


def _owner(tools: Tools) -> HasPhases:
    """The compiler of `tools`: the wheel's may be known to work for this CPU."""
    return IreeCompiler() if tools.iree_compile == Path(find_tool("iree-compile")) else tools


# -- from the IR to a matcher ----------------------------------------------------------------------


def _matcher(op: Any) -> Matcher | None:
    """The matcher of a contraction or a convolution; None for other operations."""
    maps = linalg.get_indexing_maps(op) if op.name.startswith("linalg.") else None
    if maps is None or len(maps) != 3:
        return None
    texts = tuple(map(str, maps))
    contraction, convolution = (
        linalg.infer_contraction_dimensions(op),
        linalg.infer_convolution_dimensions(op),
    )
    extents = [extent for extent, _ in _loops(op)]
    if convolution is not None and list(convolution.filter_loop):
        kind, matched, names = "convolution", convolution, _CONVOLUTION
    elif contraction is not None and not any("+" in text for text in texts):
        kind, matched, names = "contraction", contraction, _CONTRACTION
    else:
        return None
    dimensions = [tuple(extents[at] for at in getattr(matched, name)) for name in names]
    if kind == "convolution":
        dimensions += [tuple(matched.strides), tuple(matched.dilations)]
    types = [str(value.type).removesuffix(">").rpartition("x")[2] for value in op.operands]
    return Matcher(kind, (types[0], types[1], types[2]), texts, tuple(dimensions))


def _loops(op: Any) -> tuple[tuple[int, bool], ...]:
    """(extent, is_reduction) for each loop."""
    maps = [str(each) for each in linalg.get_indexing_maps(op)]
    extents: dict[str, int] = {}
    results: list[str] = []
    for text, value in zip(maps, op.operands, strict=True):
        results = [part.strip() for part in text.partition("-> (")[2].rstrip(")>").split(",")]
        shape = re.findall(r"(\d+)x", str(value.type))
        extents |= {name: int(size) for name, size in zip(results, shape, strict=False)}
    loops = re.findall(r"d\d+", maps[0].partition(")")[0])
    return tuple((extents.get(loop, 0), loop not in results) for loop in loops)
