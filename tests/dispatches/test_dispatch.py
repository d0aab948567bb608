"""Dispatches: names, patterns that select them, the tree they lie in, and launch programs as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_profiler.configurations import CpuTiles, Default, Flow
from dispatch_profiler.dispatches import Dispatch, Selection, Tree
from dispatch_profiler.dispatches.launch_program import (
    Copy,
    Fill,
    KernelCode,
    LaunchProgram,
    Run,
    Span,
    no_program,
    read_program,
)
from dispatch_profiler.errors import OperationError, SelectionError, UsageError
from dispatch_profiler.operations import KINDS, BatchMatmul, Conv2d, ElementTypes, Epilogue, Matmul

F16 = ElementTypes("f16", "f16", "f16")
LARGE = Matmul(3456, 1024, 2048, F16)


def test_the_name_is_that_of_the_operation_then_the_configuration():
    """As the IREE dispatch profiler writes it."""
    name = Dispatch(LARGE, Default()).name
    assert name == "matmul_3456x1024x2048_f16t_f16t_f16t_tile_config_default"


def test_equal_dispatches_are_the_same():
    """Identity is what they are made of."""
    assert Dispatch(LARGE, Default()) == Dispatch(Matmul(3456, 1024, 2048, F16), Default())
    assert len({Dispatch(LARGE, Default()), Dispatch(LARGE, Default()), Dispatch(LARGE, Default(2))}) == 2


def test_arguments_of_the_document():
    """`--batch_count=1 --m=3456 ... --split_k_mode=N/A --split_k_slices=N/A`, in that order."""
    assert list(Dispatch(LARGE, Default()).arguments().items()) == [
        ("batch_count", "1"), ("m", "3456"), ("n", "1024"), ("k", "2048"),
        ("lhs", "f16t"), ("rhs", "f16t"), ("result", "f16t"),
        ("split_k_mode", "N/A"), ("split_k_slices", "N/A"),
    ]  # fmt: skip


@pytest.mark.parametrize("configuration", [Default(4), CpuTiles((8, 8), (4, 4, 1), split_k=4)])
def test_a_split_stands_in_the_arguments(configuration):
    """Whatever it is a variant of."""
    arguments = Dispatch(LARGE, configuration).arguments()
    assert (arguments["split_k_mode"], arguments["split_k_slices"]) == ("parallel", "4")


@pytest.mark.parametrize(
    ("operation", "split"), [(BatchMatmul(4, 8, 8, 8), True), (Conv2d(1, 8, 8, 4, 4, 3, 3), False)]
)
def test_a_kind_without_k_has_no_split_to_tell(operation, split):
    """A convolution's arguments say nothing of k."""
    assert ("split_k_mode" in Dispatch(operation, Default()).arguments()) is split


def test_a_flow_is_not_split():
    """Its arguments are those of the operation alone."""
    assert Dispatch(LARGE, Flow("ukernels")).arguments() == Dispatch(LARGE, Default()).arguments()


def test_an_epilogue_stands_in_name_and_arguments():
    """A `+` becomes `_` in the name, which is an MLIR function."""
    dispatch = Dispatch(Matmul(8, 8, 8, epilogue=Epilogue.parse("bias+relu")), Default())
    assert dispatch.name == "matmul_8x8x8_f32t_f32t_f32t_bias_relu_tile_config_default"
    assert dispatch.arguments()["epilogue"] == "bias+relu"


NAMES = {
    "matmul_64x64x64_f16t_f16t_f16t_tile_config_default": "matmul",
    "matmul_64x64x64_f16t_f16t_f16t_tile_config_64x128_8x32x4": "matmul",
    "matmul_128x64x64_f32t_f32t_f32t_tile_config_default": "matmul",
    "batch_matmul_4x64x64x64_f32t_f32t_f32t_tile_config_default": "batch_matmul",
    "conv2d_1x8x8x4_f32nhwc_s1x1_p0x0_d1x1_g1_tile_config_default": "conv2d",
}


def chosen(patterns: str, kinds: str = "") -> list[str]:
    return Selection.parse(patterns, kinds).choose(NAMES, NAMES.__getitem__, str)


def numbers(patterns: str, kinds: str = "") -> list[int]:
    """Positions in NAMES of what is selected."""
    return [list(NAMES).index(name) for name in chosen(patterns, kinds)]


# -- patterns --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patterns", "selected"),
    [
        ("", [0, 1, 2, 3, 4]),
        ("*", [0, 1, 2, 3, 4]),
        (".*", [0, 1, 2, 3, 4]),
        ("matmul_*", [0, 1, 2]),
        ("matmul_.*", [0, 1, 2]),
        ("*matmul_*", [0, 1, 2, 3]),
        ("*_tile_config_64x128_*", [1]),
        ("matmul_64x64x64_f16t_f16t_f16t_tile_config_default", [0]),
        ("matmul_???x*", [2]),
        ("matmul_[0-9]{3}x.*", [2]),
        ("matmul_[0-9]{1,2}x.*", [0, 1]),
        ("(batch_)?matmul_.*_tile_config_default", [0, 2, 3]),
        ("matmul_(64|128)x.*default", [0, 2]),
        ("matmul_[!6]*", [2]),
        ("matmul_[^6].*", [2]),
        # Commas separate patterns, but not inside brackets; what two patterns select comes once.
        ("conv2d_*,batch_*", [3, 4]),
        ("conv2d_* , batch_*", [3, 4]),
        ("matmul_[0-9]{3,4}x.*,conv2d.*", [2, 4]),
        ("matmul_(?:64|128)x[0-9]{2,2}x.*", [0, 1, 2]),
        ("matmul_[1,2]*,conv2d_[1,2]*", [2, 4]),
        ("matmul_*,matmul_*", [0, 1, 2]),
        # A glob that is no regular expression, which would repeat nothing.
        ("*_64x128_*", [1]),
    ],
)
def test_a_pattern_is_a_glob_or_a_regular_expression(patterns, selected):
    """Both are tried, in the order of the dispatches."""
    assert numbers(patterns) == selected


@pytest.mark.parametrize("patterns", [",", "a,", ",a", "a,,b", " "])
def test_an_empty_pattern_is_refused(patterns):
    """It would select nothing; most likely a comma is too many."""
    with pytest.raises(SelectionError, match="empty pattern in") as caught:
        Selection.parse(patterns, "")
    assert caught.value.hint == "separate patterns with one comma"


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        *((each, "neither a glob nor a regular expression: ") for each in ("(abc", "a{2,1}", "abc\\")),
        # Python's own error for this repetition is no `re.error`.
        ("a{99999999999}", "neither a glob nor a regular expression"),
        # What Python says of `[[` as a regular expression is of no interest to who wrote a glob.
        ("[[a]*", "no dispatch matches"),
        # A typo beside a good pattern is not passed over.
        ("matmul_*,typo", "no dispatch matches 'typo'"),
        # A pattern must match the whole name: otherwise `matmul_8x8x8_*` would select batch_matmul, too.
        *((each, f"no dispatch matches '{each}'")
          for each in ("matmul", "matmul_64x64x64", "tile_config_default", "atmul_.*")),
    ],
)  # fmt: skip
def test_a_pattern_that_selects_nothing_is_rejected(pattern, message):
    with pytest.raises(SelectionError, match=message):
        chosen(pattern)


def test_no_match_names_the_nearest():
    """And says how patterns match."""
    with pytest.raises(SelectionError, match=r"no dispatch matches 'matmul_128x64x65_\*default'") as caught:
        chosen("matmul_128x64x65_*default")
    assert caught.value.hint == (
        "did you mean 'matmul_128x64x64_f32t_f32t_f32t_tile_config_default'? "
        "A pattern must match the whole name"
    )


# -- kinds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kinds", "selected"),
    [
        ("", [0, 1, 2, 3, 4]),
        ("all", [0, 1, 2, 3, 4]),
        ("matmul", [0, 1, 2]),
        ("conv2d,batch_matmul", [3, 4]),
        ("conv2d, matmul", [0, 1, 2, 4]),
        ("matmul,all", [0, 1, 2, 3, 4]),
    ],
)
def test_kinds_select_by_the_operation(kinds, selected):
    """No kind and `all` are every kind; the order is that of the dispatches."""
    assert numbers("", kinds) == selected


def test_an_unknown_kind_is_refused_with_the_nearest():
    """And with every kind that there is."""
    with pytest.raises(OperationError, match="unknown operation kind 'matmull'") as caught:
        Selection.parse("", "matmull")
    assert caught.value.hint == "did you mean 'matmul'? Available: " + ", ".join(KINDS)


@pytest.mark.parametrize("kinds", ["conv", "all,conv", "matmul,", ","])
def test_every_kind_must_be_known(kinds):
    """`all` beside it does not hide a typo."""
    with pytest.raises(OperationError, match="unknown operation kind"):
        Selection.parse("", kinds)


def test_pattern_and_kind_must_both_hold():
    """Each narrows the other."""
    assert numbers("*default", "batch_matmul") == [3]
    with pytest.raises(SelectionError, match=r"no dispatch matches 'conv2d_\*'"):
        chosen("conv2d_*", "matmul")


def test_a_kind_that_is_not_there_is_said():
    """Known, but not in this tree."""
    selection = Selection.parse("", "conv2d,batch_matmul")
    with pytest.raises(SelectionError, match="no dispatch of conv2d, batch_matmul"):
        selection.choose(["matmul_1"], lambda _: "matmul", str)


def test_nothing_to_choose_from_is_said():
    """An empty tree."""
    with pytest.raises(SelectionError, match="no dispatch of any kind"):
        Selection().choose([], str, str)


# -- agreement -------------------------------------------------------------------------------------


@settings(derandomize=True, database=None, max_examples=60)
@given(st.lists(st.sampled_from(["*", "m*", ".*default", "conv2d_.*", "*[0-9]", "batch_*"]), unique=True))
def test_matches_says_what_choose_takes(patterns):
    """Two ways to ask the same question."""
    selection = Selection(tuple(patterns), ("matmul", "conv2d"))
    expected = [name for name, kind in NAMES.items() if selection.matches(kind, name)]
    try:
        assert selection.choose(NAMES, NAMES.__getitem__, str) == expected
    except SelectionError:
        alone = (Selection((pattern,), ("matmul", "conv2d")) for pattern in patterns)
        assert any(not any(one.matches(k, n) for n, k in NAMES.items()) for one in alone)


OPERATION = Matmul(64, 64, 4096, ElementTypes("f16", "f16", "f16"))
NAME = "matmul_64x64x4096_f16t_f16t_f16t"
FOLDER = f"x/generated/linalg/matmul/{NAME}"
TREE = Tree(Path("x"))


def test_an_operation_has_a_folder_of_its_own():
    """With its source, and what the compiler said."""
    assert str(TREE.operation(OPERATION)) == FOLDER
    assert str(TREE.source(OPERATION)) == f"{FOLDER}/{NAME}.mlir"
    assert str(TREE.compiler_output(OPERATION)) == f"{FOLDER}/iree_compile_cmd_stdout.mlir"


@pytest.mark.parametrize("purpose", ["verify", "profile"])
@pytest.mark.parametrize(("module", "infix"), [("", ""), ("data_tiling", "_data_tiling")])
def test_a_vmfb_is_named_by_flow_and_purpose(module, infix, purpose):
    """The one without a flow has the IREE dispatch profiler's name."""
    assert str(TREE.vmfb(OPERATION, module, purpose)) == f"{FOLDER}/{NAME}{infix}_{purpose}.vmfb"


def test_the_manifest_lies_at_the_root():
    """Cached references lie beside it, outside `linalg`."""
    assert str(TREE.manifest) == "x/generated/linalg/manifest.json"
    assert TREE.manifest.parent == TREE.root
    assert str(TREE.references) == "x/generated/reference_cache"


VMFB = bytes(500)
PROGRAM = LaunchProgram(
    images=((100, 50), (300, 200)),
    kernels=(KernelCode(0, "first", (32, 2, 1), 0), KernelCode(1, "second", (256, 1, 1), 49152)),
    arguments=(1024, 256),
    transients=(512,),
    commands=(
        Fill(Span(2, 0, 512), 0, 1),
        Run(0, (7, 1, 1), (Span(0, 0, 1024), Span(2, 128, 64)), (3, 2**32 - 1)),
        Copy(Span(2, 128, 64), Span(1, 192, 64)),
    ),
)


def document(**changes: Any) -> str:
    return json.dumps({**json.loads(PROGRAM.to_text()), **changes})


def commands(**changes: Any) -> list[dict[str, Any]]:
    """The commands with a change of those that have such a field already."""
    found = json.loads(PROGRAM.to_text())["commands"]
    return [{**each, **{key: value for key, value in changes.items() if key in each}} for each in found]


def kernels(**changes: Any) -> list[dict[str, Any]]:
    return [{**each, **changes} for each in json.loads(PROGRAM.to_text())["kernels"]]


def test_a_program_is_read_as_it_was_written():
    assert read_program(PROGRAM.to_text(), VMFB) == PROGRAM


def test_the_reason_for_a_missing_program_is_in_the_error():
    with pytest.raises(UsageError, match="a size is not constant"):
        read_program(no_program("a size is not constant"), VMFB)
    with pytest.raises(UsageError, match="compiled without a launch program"):
        read_program("", VMFB)


@pytest.mark.parametrize(
    ("damaged", "field"),
    [
        ("{", "not JSON"),
        ("[]", "an object"),
        ("[" * 100_000, "JSON"),
        (document(images=[100, 50, 300, 201]), "images"),
        (document(images=[100, 50, 300]), "images"),
        (document(images=[-1, 50, 300, 200]), "images"),
        (document(kernels=kernels(image=2)), "image"),
        (document(kernels=kernels(block=[1024, 2, 1])), "block"),
        (document(kernels=kernels(block=[0, 1, 1])), "block"),
        (document(kernels=kernels(block=[32, 1])), "block"),
        (document(kernels=kernels(shared=2**18 + 1)), "shared"),
        (document(kernels=kernels(entry=5)), "entry"),
        (document(arguments=[1024, 100]), "spans"),
        (document(arguments=[1024, "256"]), "arguments"),
        (document(transients=[511]), "spans"),
        (document(transients=[0]), "transients"),
        (document(transients=[2**50]), "transients"),
        (document(commands=commands(kernel=2)), "kernel"),
        (document(commands=commands(kernel=True)), "kernel"),
        (document(commands=commands(grid=[1, 65536, 1])), "grid"),
        (document(commands=commands(grid=[1.5, 1, 1])), "grid"),
        (document(commands=commands(constants=[2**32])), "constants"),
        (document(commands=commands(constants=[-1])), "constants"),
        (document(commands=commands(width=3)), "whole patterns"),
        (document(commands=commands(width=8)), "width"),
        (document(commands=commands(pattern=256)), "pattern"),
        (document(commands=commands(spans=[0, 0])), "spans"),
        (document(commands=commands(spans=[3, 0, 1])), "spans"),
        (document(commands=commands(spans=[0, 1000, 25])), "spans"),
        (document(commands=[{"spans": [0, 0, 8, 1, 0, 4]}]), "spans"),
        (document(commands=[{"spans": []}] * 5000), "commands"),
        (document(commands=[7]), "commands"),
    ],
)
def test_damaged_programs_are_rejected_with_the_field(damaged: str, field: str):
    with pytest.raises(UsageError, match=f"its launch program is damaged: .*{field}"):
        read_program(damaged, VMFB)


@given(st.data())
def test_a_damaged_program_is_rejected_or_stays_within_its_buffers(data: st.DataObject):
    row = json.loads(PROGRAM.to_text())
    key = data.draw(st.sampled_from(sorted(row)))
    leaves = st.one_of(
        st.integers(-(2**40), 2**40), st.none(), st.booleans(), st.text(max_size=3), st.floats()
    )
    row[key] = data.draw(
        st.recursive(
            leaves,
            lambda inner: (
                st.lists(inner, max_size=4)
                | st.dictionaries(
                    st.sampled_from(
                        [
                            "spans",
                            "kernel",
                            "pattern",
                            "width",
                            "grid",
                            "image",
                            "entry",
                            "block",
                            "shared",
                            "constants",
                        ]
                    ),
                    inner,
                )
            ),
            max_leaves=12,
        )
    )
    try:
        found = read_program(json.dumps(row), VMFB)
    except UsageError:
        return
    sizes = (*found.arguments, *found.transients)
    for command in found.commands:
        spans = command.bindings if isinstance(command, Run) else [command.target]
        spans = [*spans, command.source] if isinstance(command, Copy) else spans
        assert all(span.offset + span.length <= sizes[span.buffer] for span in spans)
