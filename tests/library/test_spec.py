"""Tuning specs: what they say, which entries they can express, and that plain `iree-compile` uses them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from iree.compiler.tools.binaries import find_tool
from library_samples import FIRST, HERE, TILES, entry

from dispatch_profiler.compiler import BuildError
from dispatch_profiler.compiler.backends.tools import Tools
from dispatch_profiler.configurations import (
    Configuration,
    CpuTiles,
    Default,
    Flow,
    Formed,
    Microkernel,
    rejection_reason,
    shipped_configurations,
)
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.generator.render import render_module
from dispatch_profiler.library import Entry, Library, spec_proof
from dispatch_profiler.library.cli import main
from dispatch_profiler.library.merge_cli import main as merge_main
from dispatch_profiler.library.spec_proof import Matcher, Spec, SpecEntry, make_spec, spec_text
from dispatch_profiler.operations import (
    BatchMatmul,
    Conv2d,
    ElementTypes,
    Epilogue,
    LayerNorm,
    Matmul,
    Operation,
)
from dispatch_profiler.targets import parse_target

F16 = ElementTypes("f16", "f16", "f32")
PRODUCT = (FIRST, TILES)
TRANSPOSED = (Matmul(64, 128, 32, rhs_layout="n"), TILES)
BATCH = (BatchMatmul(4, 64, 128, 64), CpuTiles((64, 128), (8, 32, 4)))
ONE_IMAGE = (Conv2d(1, 28, 28, 64, 64, 3, 3), CpuTiles((1, 13, 13, 32), (1, 1, 13, 32, 1, 1, 1)))
TWO_IMAGES = (Conv2d(2, 28, 28, 64, 64, 3, 3), CpuTiles((1, 13, 13, 32), (1, 1, 13, 32, 1, 1, 1)))
POINTWISE = (Conv2d(1, 28, 28, 64, 128, 1, 1), CpuTiles((1, 14, 14, 32), (1, 1, 14, 32, 1, 1, 1)))


def made(*pairs: tuple[Operation, Configuration], target: str = "llvm-cpu") -> Spec:
    origin = replace(HERE, target=target)
    return make_spec([entry(operation, configuration=c, origin=origin) for operation, c in pairs])


# -- the text --------------------------------------------------------------------------------------

MATCHER = Matcher(
    "contraction",
    ("f32", "f32", "f32"),
    tuple(f"affine_map<(d0, d1, d2) -> ({dims})>" for dims in ("d0, d2", "d2, d1", "d0, d1")),
    ((), (64,), (64,), (32,)),
)
IMAGE = Matcher("convolution", ("f32",) * 3, ("#a", "#b", "#c"), ((1,), (26, 26), (64,), (3, 3), (64,), (), (1, 1), (1, 1)))  # fmt: skip


def test_the_text_of_a_spec(golden: Callable[[str], None]):
    info = "#iree_codegen.compilation_info<...>"
    golden(spec_text([SpecEntry("a", MATCHER, info), SpecEntry("b", IMAGE, info)]))


def test_only_a_convolution_of_one_image_needs_its_loop_inserted():
    """A spec with the default entry point holds nothing but the match."""
    two = replace(IMAGE, dimensions=((2,), *IMAGE.dimensions[1:]))
    texts = [spec_text([SpecEntry("a", each, "#i")]) for each in (MATCHER, two, IMAGE)]
    assert ["apply_registered_pass" in text for text in texts] == [False, False, True]
    assert ["with_default_entrypoint" in text for text in texts] == [True, True, False]


def test_an_empty_spec_is_an_error():
    with pytest.raises(ValueError, match="at least one entry"):
        spec_text([])


def compiled(source: str, flags: tuple[str, ...]) -> None:
    tools = Tools(Path(find_tool("iree-compile")))
    tools.advance(tools.parse(source, flags), flags, stop="executable-configurations")


# -- what is proven --------------------------------------------------------------------------------


@pytest.mark.some(2)
@pytest.mark.parametrize("pairs", [[PRODUCT], [TRANSPOSED], [BATCH], [TWO_IMAGES], [ONE_IMAGE], [POINTWISE]])
def test_tiles_are_applied_through_a_spec_alone(pairs):
    spec = made(*pairs)
    assert (len(spec.entries), spec.left_out) == (1, ())


@pytest.mark.slow
def test_one_spec_serves_every_kind():
    pairs = (PRODUCT, TRANSPOSED, BATCH, TWO_IMAGES, ONE_IMAGE, POINTWISE)
    assert len(made(*pairs).entries) == len(pairs)


@pytest.mark.parametrize(
    "operation", [Matmul(256, 512, 128, F16), Conv2d(1, 34, 34, 64, 64, 3, 3, types=F16)]
)
def test_gpu_tiles_are_applied_with_pipeline_and_launch(operation: Operation):
    target = parse_target("rocm:gfx942")
    listed = [each.configuration for each in shipped_configurations(target.shipped_list)]
    tiles = next(
        c for c in listed
        if rejection_reason(c, operation, target.limits) is None and c.lowering(operation) is not None
    )  # fmt: skip
    spec = made((operation, tiles), target="rocm:gfx942")
    assert (len(spec.entries), spec.left_out) == (1, ())
    assert "workgroup_size = " in spec.text


@pytest.mark.parametrize("name", ["llvm-cpu", "rocm:gfx942", "vulkan-spirv", "cuda:sm_80"])
def test_the_compiler_reads_specs_for_these_targets_only(name: str):
    """One that is no MLIR fails where it is read."""
    Path("spec.mlir").write_text("garbage")
    target = parse_target(name)
    source = render_module(FIRST, [Dispatch(FIRST, Default())])
    flags = (*target.compile_flags, "--iree-codegen-tuning-spec-path=spec.mlir")
    if target.family in spec_proof.FAMILIES:
        with pytest.raises(BuildError, match="garbage"):
            compiled(source, flags)
    else:
        compiled(source, flags)


@pytest.mark.parametrize(
    ("operation", "configuration", "target", "reason"),
    [
        (FIRST, Flow("data_tiling"), "llvm-cpu", "its flags apply to a whole module: --iree-opt-data-tiling"),
        (ONE_IMAGE[0], Formed("im2col", TILES), "llvm-cpu", "it has a form, which replaces the operation"),
        (FIRST, Microkernel((64, 128), (14, 1, 32)), "llvm-cpu", "its kernel is written by this package"),
        (FIRST, replace(TILES, split_k=2), "llvm-cpu", "it splits the reduction"),
        (LayerNorm(128, 768), CpuTiles((1,), (1, 16)), "llvm-cpu", "specs are written for matmul, batch_matmul, conv2d"),
        (FIRST, CpuTiles((64, 128, 1), (8, 32, 4, 1)), "llvm-cpu", "matmul takes 2 distribution and 3 vector tiles"),
        (FIRST, TILES, "cuda:sm_80", "the compiler reads no tuning specs for cuda"),
        (FIRST, TILES, "null", "the compiler reads no tuning specs for null"),
        (FIRST, TILES, "other", "unknown target 'other'"),
    ],
)  # fmt: skip
def test_what_a_spec_cannot_express_is_left_out_with_its_reason(
    operation, configuration, target: str, reason: str
):
    spec = made((operation, configuration), target=target)
    ((_, said),) = spec.left_out
    assert said.startswith(reason)
    assert (spec.text, spec.entries) == ("", ())


def test_operations_that_a_spec_cannot_tell_apart_are_configured_once():
    """The matcher sees the product, not the steps after it."""
    fused = (Matmul(64, 64, 32, epilogue=Epilogue.parse("relu")), replace(TILES, distribution=(32, 64)))
    spec = made(PRODUCT, fused)
    ((left, reason),) = spec.left_out
    assert (len(spec.entries), left.operation) == (1, fused[0])
    assert reason.startswith(f"to a spec it is the same operation as {FIRST.name}_{TILES.name}")


def test_an_entry_that_is_not_applied_is_found(monkeypatch):
    """The spec sets other tiles on the product than its entry has; the convolution remains."""
    honest = spec_proof.spec_entry

    def tampered(each: Entry, tools: Tools) -> SpecEntry:
        found = honest(each, tools)
        if each.operation != FIRST:
            return found
        return replace(found, compilation_info=found.compilation_info.replace("[64, 128, 0]", "[32, 128, 0]"))

    monkeypatch.setattr(spec_proof, "spec_entry", tampered)
    spec = made(PRODUCT, TWO_IMAGES)
    ((left, reason),) = spec.left_out
    assert left.operation == FIRST
    assert reason.startswith(
        "with the spec the compiler configured #iree_cpu.lowering_config<distribution = [32, 128, 0]"
    )
    assert [each.operation for each in spec.entries] == [TWO_IMAGES[0]]
    assert FIRST.name not in spec.text


@pytest.mark.slow
def test_plain_iree_compile_uses_the_spec(tmp_path: Path):
    """Tiles of both operations appear in its IR; without the spec, neither does."""
    Path("spec.mlir").write_text(made(PRODUCT, ONE_IMAGE).text)
    program = (
        "import sys; from iree.compiler.tools.scripts.iree_compile.__main__ import main; sys.exit(main())"
    )

    def tiles(operation: Operation, *flags: str) -> set[str]:
        Path("source.mlir").write_text(render_module(operation, [Dispatch(operation, Default())]))
        command = [sys.executable, "-c", program, *parse_target("llvm-cpu").compile_flags, *flags]
        command += ["--compile-to=executable-configurations", "source.mlir", "-o", "out.mlir"]
        subprocess.run(command, check=True, capture_output=True)
        return set(re.findall(r"distribution = (\[[\d, ]+\])", Path("out.mlir").read_text()))

    for operation, expected in ((FIRST, "[64, 128, 0]"), (ONE_IMAGE[0], "[1, 13, 13, 32, 0, 0, 0]")):
        assert expected in tiles(operation, "--iree-codegen-tuning-spec-path=spec.mlir")
        assert expected not in tiles(operation)


# -- the command -----------------------------------------------------------------------------------


def test_the_spec_lies_beside_the_library(capsys):
    flows = Flow("data_tiling"), Flow("ukernels")
    others = [entry(Matmul(8, 8, 8 * at), configuration=flow) for at, flow in enumerate(flows, 1)]
    Library([entry(), *others]).save(Path("tuned"))
    assert main(["spec", "tuned"]) == 0
    text = Path("tuned/spec.mlir").read_text()
    assert f"{FIRST.name}_{TILES.name}" in text
    out, err = capsys.readouterr()
    assert "2 entries cannot be part of a tuning spec:\n" in err
    for each, format_ in zip(others, ("c", "vmfb"), strict=True):
        # C cannot call micro-kernels of IREE.
        assert re.search(
            rf"{each.dispatch.name} +--format={format_} +its flags apply to a whole module: ", err
        )
        assert f"// Left out: {each.dispatch.name}: its flags apply to a whole module: --iree-" in text
    assert "dispatch-profiler library export tuned --format=c or --format=vmfb -o FOLDER" in " ".join(
        err.split()
    )
    assert "Writing 1 entry to tuned/spec.mlir, each proven by compiling with it\n" in err and not out


def test_a_library_without_such_entries_has_no_spec(capsys):
    Library([entry(configuration=Flow("data_tiling"))]).save(Path("tuned"))
    Path("tuned/spec.mlir").write_text("of earlier entries")
    assert main(["spec", "tuned"]) == 2
    assert "no entry of tuned can be part of a tuning spec" in capsys.readouterr().err
    assert not Path("tuned/spec.mlir").exists()


def test_a_merge_tells_that_the_spec_is_of_earlier_entries(capsys):
    for name in ("base", "new"):
        Library([entry()]).save(Path(name))
    Path("base/spec.mlir").touch()
    assert merge_main(["base", "new", "base"]) == 0
    assert capsys.readouterr().err.endswith(
        "hint: base/spec.mlir has earlier entries: dispatch-profiler library spec base\n"
    )
