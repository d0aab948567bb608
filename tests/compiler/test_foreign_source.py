"""MLIR that this package did not render is compiled only if it computes, and does nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from every_kind import EVERY_MODE
from iree.compiler import ir

from dispatch_profiler.compiler import BuildRequest, IreeCompiler, build_request
from dispatch_profiler.compiler.ir_module import IrModule
from dispatch_profiler.compiler.source.foreign import refused_functions
from dispatch_profiler.compiler.source.functions import with_known_source
from dispatch_profiler.configurations import Configuration, CpuTiles, Default, Extern, Microkernel, spaces
from dispatch_profiler.dispatches import Dispatch, State, Tree, load_manifest
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import Conv2d, ElementTypes, Epilogue, Matmul, Operation
from dispatch_profiler.targets import Target, fastest_form, parse_target

CPU = parse_target("llvm-cpu")
PRODUCT = Matmul(16, 16, 16, ElementTypes("f32", "f32", "f32"))
PLAIN = Dispatch(PRODUCT, Default())
TILED = Dispatch(PRODUCT, CpuTiles((16, 16), (8, 16, 4)))


#: One context: making one takes longer than reading a source.
CONTEXT = ir.Context()


def parsed(request: BuildRequest) -> IrModule:
    return IrModule.of_source(request.source, CONTEXT)


def request_of(text: str, *dispatches: Dispatch, target: Target = CPU) -> BuildRequest:
    return with_known_source(build_request(text, dispatches, target))


def refused(text: str, *dispatches: Dispatch) -> dict[str, str]:
    """What is not compiled of a source, by function."""
    request = request_of(text, *(dispatches or (PLAIN,)))
    source = parsed(request)
    source.keep_functions([each.name for each in request.dispatches])
    return refused_functions(source, request)


def configurations(operation: Operation, target: Target) -> list[Configuration]:
    """The default, the fastest form, and points of every search space."""
    form = fastest_form(operation, target)
    found: list[Configuration] = [Default(), *([form] if form else [])]
    for space in spaces(operation, target.limits, packed_weights=True):
        drawn = (space.to_configuration(space.draw(np.random.default_rng(seed))) for seed in range(1))
        found += [each for each in drawn if each.invalid_reason(operation, target.limits) is None]
    return list(dict.fromkeys(found))


# -- what this package renders -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("target", ["llvm-cpu", "cuda:sm_80", "rocm:gfx942", "vulkan-spirv"])
def test_every_function_of_a_tree_is_known_without_a_parse(target: str) -> None:
    """And passes the check as well, apart from kernels that are no tensor code. Those of templates are executables."""
    found = parse_target(target)
    for operation in EVERY_MODE:
        dispatches = [Dispatch(operation, each) for each in configurations(operation, found)]
        groups: dict[str, list[Dispatch]] = {}
        for each in dispatches:
            groups.setdefault(each.configuration.module, []).append(each)
        for group in groups.values():
            request = request_of(render_module(operation, dispatches), *group, target=found)
            assert request.foreign == ()
            group = [each for each in group if not each.configuration.template]
            if not group:
                continue
            checked = request_of(render_module(operation, group), *group, target=found)
            checked = replace(checked, foreign=tuple(each.name for each in group))
            for name, reason in refused_functions(parsed(checked), checked).items():
                (dispatch,) = [each for each in group if each.name == name]
                assert dispatch.configuration.kernel(operation) is not None, reason


def test_an_epilogue_and_narrow_types_pass_the_check() -> None:
    steps = "bias+relu6+leaky_relu(0.1)+hardswish+hardsigmoid+gelu+gelu_tanh+sigmoid+silu+tanh+clamp(-1,1)"
    for types in (("f32", "f32", "f32"), ("bf16", "bf16", "bf16"), ("i8", "i8", "i32")):
        epilogue = Epilogue.parse(steps if types[0] != "i8" else "bias+relu")
        dispatch = Dispatch(Matmul(4, 8, 16, ElementTypes(*types), epilogue=epilogue), Default())
        text = render_module(dispatch.operation, [dispatch])
        assert refused(text.replace("\n  return", "\n\n  return"), dispatch) == {}


def test_text_between_functions_is_left_out() -> None:
    """Comments, and whatever a forger hides there."""
    text = "module attributes {util.x = 1} {\n}\n// a comment\n" + render_module(PRODUCT, [PLAIN])
    request = request_of(text, PLAIN)
    assert request.foreign == ()
    assert request.source == render_module(PRODUCT, [PLAIN])


def test_only_the_function_that_differs_is_foreign() -> None:
    text = render_module(PRODUCT, [PLAIN, TILED]).replace(f"@{TILED.name}(%lhs", f"@{TILED.name}(%lhs ", 1)
    assert request_of(text, PLAIN, TILED).foreign == (TILED.name,)


def test_a_configuration_that_has_no_template_is_foreign() -> None:
    """A manifest may ask for anything."""
    impossible = Dispatch(PRODUCT, Microkernel((3, 5), (1, 1, 16)))
    text = render_module(PRODUCT, [PLAIN]).replace(PLAIN.name, impossible.name)
    assert request_of(text, impossible).foreign == (impossible.name,)


# -- what it does not --------------------------------------------------------------------------------

RESULT = "tensor<16x16xf32>"
MAP = "affine_map<(d0, d1) -> (d0, d1)>"


def with_body(body: str) -> str:
    """The product, followed by other operations on its result `%sums`; the last one is `%last`."""
    text = render_module(PRODUCT, [PLAIN])
    return text.replace(f"  return %sums : {RESULT}", f"{body}\n  return %last : {RESULT}")


def elementwise(inside: str, *, maps: str = f"{MAP}, {MAP}", attributes: str = "", outs: str = RESULT) -> str:
    """A body that computes `%e` from each element `%a`."""
    return with_body(
        f"  %other = tensor.empty() : {outs}\n"
        f'  %last = linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel", "parallel"]{attributes}}} '
        f"ins(%sums : {RESULT}) outs(%other : {outs}) {{\n  ^bb0(%a: f32, %b: f32):\n{inside}\n"
        f"    linalg.yield %e : f32\n  }} -> {outs}"
    )


ADD = "    %e = arith.addf %a, %b : f32"
ASM = '    %c = llvm.inline_asm has_side_effects asm_dialect = att "nop", "=r" : () -> i64\n' + ADD
SLICE = f"""  %c0 = arith.constant 0 : index
  %part = tensor.extract_slice %sums[0, 0] [1, 16] [1, 1] : {RESULT} to tensor<1x16xf32>
  %at = arith.constant 99 : index
  %last = tensor.insert_slice %part into %sums[%at, 0] [1, 16] [1, 1] : tensor<1x16xf32> into {RESULT}"""
BACKWARDS = f"""  %part = tensor.extract_slice %sums[0, 0] [2, 16] [1, 1] : {RESULT} to tensor<2x16xf32>
  %last = tensor.insert_slice %part into %sums[0, 0] [2, 16] [-50000000, 1] : tensor<2x16xf32> into {RESULT}"""
CROPPED = f"""  %c = arith.constant 0.0 : f32
  %last = tensor.pad %sums low[-99, 0] high[99, 0] {{
  ^bb0(%i: index, %j: index):
    tensor.yield %c : f32
  }} : {RESULT} to {RESULT}"""
CONVOLUTION = """  %image = tensor.expand_shape %sums [[0, 1], [2, 3]] output_shape [1, 16, 16, 1] : tensor<16x16xf32> into tensor<1x16x16x1xf32>
  %filter = tensor.empty() : tensor<1x1x1x1xf32>
  %out = tensor.empty() : tensor<1x16x16x1xf32>
  %conv = linalg.conv_2d_nhwc_hwcf {
    linalg.memoized_indexing_maps = [
      affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d0, d1 + d4, d2 + d5, d6)>,
      affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d4, d5, d6, d3)>,
      affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d0, d1, d2, d3)>
    ], strides = dense<STRIDE> : tensor<2xi64>, dilations = dense<1> : tensor<2xi64>}
    ins(%image, %filter : tensor<1x16x16x1xf32>, tensor<1x1x1x1xf32>) outs(%out : tensor<1x16x16x1xf32>) -> tensor<1x16x16x1xf32>
  %last = tensor.collapse_shape %conv [[0, 1], [2, 3]] : tensor<1x16x16x1xf32> into tensor<16x16xf32>"""
#: A body that reads `%e` at the row `%at` of another tensor.
READ = f"    %i = linalg.index 0 : index\n    %j = linalg.index 1 : index\n{{}}\n    %e = tensor.extract %sums[%at, %j] : {RESULT}"
PARAMETER = f"""  %p = flow.tensor.constant #flow.parameter.named<"scope"::"key"> : {RESULT}
  %last = arith.addf %p, %sums : {RESULT}"""

REFUSED = {
    "inline assembly": (elementwise(ASM), "has operations that are not allowed: llvm.inline_asm"),
    "a call": (
        "func.func private @system(f32) -> f32\n"
        + elementwise("    %e = func.call @system(%a) : (f32) -> f32"),
        "has operations that are not allowed: func.call",
    ),
    "a pointer": (
        elementwise("    %n = arith.constant 1 : i64\n    %p = llvm.inttoptr %n : i64 to !llvm.ptr\n" + ADD),
        "has operations that are not allowed: llvm.inttoptr",
    ),
    "an operation of tensors that no template has": (
        elementwise("    %e = math.sin %a : f32"),
        "has operations that are not allowed: math.sin",
    ),
    "a kernel by its object": (
        with_body(
            f"""  %last = hal.dispatch.extern "kernel"(%sums) : ({RESULT}) -> {RESULT}
    count(%device: !hal.device) -> (index, index, index) {{
      %one = arith.constant 1 : index
      hal.return %one, %one, %one : index, index, index
    }}
    layout(#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer>, #hal.pipeline.binding<storage_buffer>]>)
    objects({{#hal.executable.target<"llvm-cpu", "system-elf-x86_64"> ordinal(0) = [#hal.executable.object<{{path = "evil.o"}}>]}})"""
        ),
        "hal.dispatch.extern",
    ),
    "passes in an attribute of the function": (
        with_body(f"  %last = arith.addf %sums, %sums : {RESULT}").replace(
            f"-> {RESULT} {{",
            f'-> {RESULT} attributes {{preprocessing_pipeline = #util.preprocessing_pipeline<"x">}} {{',
            1,
        ),
        "func.func has the attribute preprocessing_pipeline, which is not allowed",
    ),
    "an attribute of the compiler": (
        elementwise(ADD, attributes=', library_call = "system"'),
        "linalg.generic has the attribute library_call, which is not allowed",
    ),
    "a transform script": (
        elementwise(ADD, attributes="")
        .replace("} ins(%sums", "} ins(%sums")
        .replace(
            '"parallel"]}',
            '"parallel"], compilation_info = #iree_codegen.compilation_info<lowering_config = '
            "#iree_cpu.lowering_config<distribution = [8, 8]>, translation_info = #iree_codegen.translation_info<pipeline = "
            '#iree_cpu.pipeline<Default>, {llvm_func_attrs = {"x" = "y"}}>>}',
            1,
        ),
        "linalg.generic has",
    ),
    "offsets at run time": (
        with_body(SLICE),
        "tensor.insert_slice has extents or offsets that are known only at run time",
    ),
    "a negative stride": (with_body(BACKWARDS), "tensor.insert_slice has a number below 1 in static_strides"),
    "a stride that differs from the stated maps": (
        with_body(CONVOLUTION.replace("STRIDE", "100000")),
        "has a convolution whose strides do not fit its tensors",
    ),
    "a stride that overflows, to read": (
        # 5 * 3689348814741910324 is 4 in 64 bits.
        with_body(
            f"""  %rows = tensor.extract_slice %sums[0, 0] [6, 16] [3689348814741910324, 1] : {RESULT} to tensor<6x16xf32>
  %last = tensor.insert_slice %rows into %sums[0, 0] [6, 16] [1, 1] : tensor<6x16xf32> into {RESULT}"""
        ),
        "tensor.extract_slice has a number above 16777216 in static_strides",
    ),
    "a stride that overflows, to write": (
        with_body(
            f"""  %rows = tensor.extract_slice %sums[0, 0] [6, 16] [1, 1] : {RESULT} to tensor<6x16xf32>
  %last = tensor.insert_slice %rows into %sums[0, 0] [6, 16] [3689348814741910324, 1] : tensor<6x16xf32> into {RESULT}"""
        ),
        "tensor.insert_slice has a number above 16777216 in static_strides",
    ),
    "a shape that overflows": (
        # (2**60 + 1) * 16 is 16 in 64 bits.
        with_body(
            f"""  %x = tensor.expand_shape %sums [[0, 1], [2]] output_shape [1152921504606846977, 16, 16] : {RESULT} into tensor<1152921504606846977x16x16xf32>
  %e = tensor.extract_slice %x[10, 0, 0] [1, 16, 16] [1, 1, 1] : tensor<1152921504606846977x16x16xf32> to {RESULT}
  %last = arith.addf %sums, %e : {RESULT}"""
        ),
        "in static_output_shape",
    ),
    "a tensor of more than 2**40 elements": (
        with_body(
            f"  %x = tensor.empty() : tensor<1073741824x2048xf32>\n  %last = arith.addf %sums, %sums : {RESULT}"
        ),
        "tensor.empty has a value of type tensor<1073741824x2048xf32>, which is too large",
    ),
    "a factor that overflows": (
        elementwise(
            ADD,
            maps=f"affine_map<(d0, d1) -> (d0 * 16777217, d1)>, {MAP}",
            outs="tensor<1x16xf32>",
        ).replace("return %last : tensor<16x16xf32>", "return %sums : tensor<16x16xf32>"),
        "linalg.generic has a number above 16777216 in indexing_maps",
    ),
    "a negative padding": (with_body(CROPPED), "tensor.pad has a number below 0 in static_low"),
    **{
        f"an index {name}": (
            elementwise(READ.format(text)),
            "tensor.extract has an index that may be outside of the tensor",
        )
        for name, text in {
            "behind the tensor": "    %c = arith.constant 1 : index\n    %at = arith.addi %i, %c : index",
            "before the tensor": "    %c = arith.constant 1 : index\n    %at = arith.subi %i, %c : index",
            "that overflows": "    %c = arith.constant 9223372036854775807 : index\n"
            "    %k = arith.addi %i, %c overflow<nsw> : index\n    %at = arith.subi %k, %c : index",
            "that is a product": "    %at = arith.muli %i, %i : index",
        }.items()
    },
    "bounds that are not checked": (
        elementwise(ADD, maps=f"affine_map<(d0, d1) -> (d0 mod 7, d1)>, {MAP}"),
        "linalg.generic has an indexing map whose bounds the compiler does not check",
    ),
    "parameters of a file": (
        with_body(PARAMETER),
        "has operations that are not allowed: flow.tensor.constant",
    ),
    "memory": (
        elementwise("    %m = memref.alloca() : memref<1xf32>\n" + ADD),
        "has operations that are not allowed: memref.alloca",
    ),
    "extents at run time": (
        with_body(
            f"  %n = arith.constant 16 : index\n  %d = tensor.empty(%n) : tensor<?xf32>\n  %last = arith.addf %sums, %sums : {RESULT}"
        ),
        "tensor.empty has extents or offsets that are known only at run time",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_function_that_may_do_more_than_compute_is_refused(name: str) -> None:
    text, reason = REFUSED[name]
    (found,) = refused(text).values()
    assert reason in found
    assert found.endswith("if you trust its author, add --trust")


def test_a_function_that_only_computes_is_compiled() -> None:
    """Such as an edit that fuses another step, or reads the rows in reverse order."""
    assert refused(elementwise(ADD)) == {}
    assert refused(with_body(CONVOLUTION.replace("STRIDE", "1"))) == {}
    reverse = "    %c = arith.constant 15 : index\n    %at = arith.subi %c, %i : index"
    assert refused(elementwise(READ.format(reverse))) == {}


def test_what_hides_beside_a_function_is_refused_and_erased() -> None:
    """A text that does not look like ours is compiled as a whole, if at all."""
    hidden = "util.initializer {\n  util.return\n}\n"
    assert refused(f"module attributes {{util.x = 1}} {{\n{elementwise(ADD)}}}\n") == {}
    for text in (
        f"module attributes {{util.x = 1}} {{\n  {elementwise(ADD)}}}\n",
        f"module {{\n{hidden}{render_module(PRODUCT, [PLAIN])}}}\n".replace("\nfunc.func", "\n  func.func"),
    ):
        (reason,) = refused(text).values()
        assert "which is not allowed" in reason
    # A closing brace that is not at the start of its line hides another operation from a search of the text.
    inside = (
        render_module(PRODUCT, [PLAIN]).rstrip().removesuffix("}")
        + f" }}\n util.initializer {{\n  util.return\n }}\n{hidden}"
    )
    request = request_of(inside + render_module(PRODUCT, [TILED]), PLAIN, TILED)
    assert request.foreign == (PLAIN.name,)
    source = parsed(request)
    assert set(refused_functions(source, request)) == {PLAIN.name}
    assert {op.name for op in source.top()} == {"func.func"}


def test_a_kernel_with_addresses_of_its_own_is_that_of_its_configuration() -> None:
    """An edited one may write anywhere."""
    convolution = Conv2d(1, 8, 8, 16, 32, 3, 3, padding=(1, 1))
    dispatch = Dispatch(convolution, Microkernel((4, 32), (1, 4, 32), 2))
    text = render_module(convolution, [dispatch])
    assert request_of(text, dispatch).foreign == ()
    edited = text.replace("vector.store", " vector.store", 1)
    (reason,) = refused(edited, dispatch).values()
    assert "hal.executable.source" in reason


def test_a_forged_kernel_of_a_known_function_is_no_kernel_of_it() -> None:
    """Kernels are known by name: a foreign function cannot add one that another function seems to have."""
    kernel = "hal.executable.source private @evil {\n  hal.executable.export public @evil ordinal(0) layout(#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer>]>)\n}\n"
    changed = render_module(PRODUCT, [TILED]).replace("\n  return", "\n\n  return")
    request = request_of(render_module(PRODUCT, [PLAIN]) + "\n" + kernel + changed, PLAIN, TILED)
    source = parsed(request)
    assert request.foreign == (TILED.name,)
    assert set(refused_functions(source, request)) == {TILED.name}
    assert {op.name for op in source.top()} == {"func.func"}


# -- commands ----------------------------------------------------------------------------------------


@pytest.fixture
def edited(run: Callable) -> Path:
    """A tree for this CPU whose default function has inline assembly."""
    arguments = (
        "--m=16",
        "--n=16",
        "--k=16",
        "--lhs=f32",
        "--target=llvm-cpu",
        "--dispatches=*_default,*_1x64_1x16x16",
    )
    assert run("generator", *arguments).status == 0
    path = load_manifest(Tree(Path())).tree.source(PRODUCT)
    asm = REFUSED["inline assembly"][0].strip()
    own = render_module(PRODUCT, [PLAIN]).strip()
    assert own in path.read_text()
    path.write_text(path.read_text().replace(own, asm))
    return path


def states() -> dict[str, State]:
    return {d.dispatch.name: d.state for _, d in load_manifest(Tree(Path())).dispatches()}


def test_commands_refuse_a_function_until_it_is_trusted(run: Callable, edited: Path) -> None:
    outcome = run("compile", "--cache-dir=cache").checked(1)
    assert (
        "has operations that are not allowed: llvm.inline_asm; if you trust its author, add --trust"
        in outcome.err
    )
    assert "--trust compiles 1 of these again: " in outcome.err
    assert "--retry" not in outcome.err
    assert states()[PLAIN.name] is State.NOT_COMPILED
    assert all(state is State.COMPILED for name, state in states().items() if name != PLAIN.name)

    run("compile", "--cache-dir=cache", "--trust").checked()
    assert set(states().values()) == {State.COMPILED}
    assert "were up to date" in run("compile", "--cache-dir=cache").err


@pytest.mark.slow
def test_a_manifest_that_says_what_the_source_is_is_not_believed(run: Callable, edited: Path) -> None:
    """Its hash of the source is that of the edited one."""
    from dispatch_profiler.files.regular import sha256

    manifest = Tree(Path()).manifest
    found = json.dumps(json.loads(manifest.read_text()))
    (old,) = {each.source_sha256 for each in load_manifest(Tree(Path())).entries}
    manifest.write_text(found.replace(old, sha256(edited.read_bytes())))
    assert run("compile", "--no-cache").status == 1
    assert states()[PLAIN.name] is State.NOT_COMPILED


def test_the_compiler_itself_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the command, and although another function of the module compiles."""
    text = REFUSED["inline assembly"][0] + "\n" + render_module(PRODUCT, [TILED])
    request = replace(build_request(text, [PLAIN, TILED], CPU, repeat=1), is_from_file=True)
    built = IreeCompiler().build(request)
    assert built.outcomes[PLAIN.name].state is State.NOT_COMPILED
    assert built.outcomes[PLAIN.name].is_transient
    assert built.outcomes[TILED.name].state is State.COMPILED
    assert PLAIN.name.encode() not in built.verify
    alone = IreeCompiler().build(replace(request, dispatches=(PLAIN,)))
    assert (alone.verify, alone.profile) == (b"", b"")


def test_objects_are_those_of_the_configuration() -> None:
    """The object in the text is replaced by that which the manifest names."""
    extern = Extern(label="a", object="k.ptx", entry="kernel", workgroups=(1,), workgroup_size=(32,))
    dispatch = Dispatch(PRODUCT, extern)
    text = render_module(PRODUCT, [dispatch])
    target = parse_target("cuda:sm_80")
    assert request_of(text, dispatch, target=target).foreign == ()
    forged = text.replace('path = "kernel"', 'path = "/tmp/evil.ptx"')
    assert forged != text
    request = request_of(forged, dispatch, target=target)
    (reason,) = refused_functions(parsed(request), request).values()
    assert "hal.dispatch.extern" in reason
