"""Operations are values: frozen, hashable, written and read back, and named apart."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re

import pytest
from epilogue_helpers import simple
from hypothesis import assume, given
from hypothesis import strategies as st
from naive_convolutions import ROLES
from naive_operations import (
    MIXED_PAIRS,
    PROPERTY,
    TYPE_PAIRS,
    convolutions,
    element_types,
    matmuls,
    operations,
)

from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations import (
    KINDS,
    Attention,
    BatchMatmul,
    Conv1d,
    Conv2d,
    Conv3d,
    ElementTypes,
    Epilogue,
    Int4Matmul,
    LayerNorm,
    LayerNormInputBackward,
    LayerNormWeightBackward,
    Matmul,
    Softmax,
    operation_from_dict,
    operation_kind,
)
from dispatch_profiler.operations.convolution.bias_backward import BiasBackward

LARGE = matmuls(extents=st.integers(1, 100_000))
ANY = operations() | LARGE


@PROPERTY
@given(ANY)
def test_an_operation_is_read_back_from_its_dict(operation):
    """Through JSON too, where tuples become lists."""
    assert operation == operation_from_dict(operation.to_dict())
    assert operation == operation_from_dict(json.loads(json.dumps(operation.to_dict())))


@PROPERTY
@given(ANY)
def test_reading_a_dict_leaves_it_as_it_is(operation):
    """The caller's data is not used up."""
    data = operation.to_dict()
    operation_from_dict(data)
    assert operation.to_dict() == data


@PROPERTY
@given(ANY)
def test_equal_operations_are_one_key(operation):
    """Identity is the frozen object."""
    again = dataclasses.replace(operation)
    assert {operation: 1} == {again: 1}
    assert hash(operation) == hash(again)


@PROPERTY
@given(ANY, st.data())
def test_an_operation_is_frozen(operation, data):
    """No field can be set."""
    field = data.draw(st.sampled_from([field.name for field in dataclasses.fields(operation)]))
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(operation, field, getattr(operation, field))


@PROPERTY
@given(matmuls() | convolutions(), st.data())
def test_operations_that_differ_in_one_field_have_different_names(operation, data):
    """Whichever field it is that differs."""
    same_kind = convolutions() if operation.kind.startswith("conv") else matmuls()
    other = data.draw(same_kind.filter(lambda each: each.kind == operation.kind))
    field = data.draw(st.sampled_from([field.name for field in dataclasses.fields(operation)]))
    try:
        changed = dataclasses.replace(operation, **{field: getattr(other, field)})
    except OperationError:
        assume(False)
    assert (operation == changed) == (operation.name == changed.name)


def test_no_two_small_matmuls_share_a_name():
    """All with extents of 1, 2, 11 and 12, where digits could run together."""
    extents, layouts = (1, 2, 11, 12), ("t", "n")
    plain = [Matmul(m, n, k, lhs_layout=x, rhs_layout=y)
             for m, n, k in itertools.product(extents, repeat=3)
             for x, y in itertools.product(layouts, repeat=2)]  # fmt: skip
    batched = [BatchMatmul(b, op.m, op.n, op.k, op.types, op.lhs_layout, op.rhs_layout)
               for b in extents for op in plain]  # fmt: skip
    assert len(plain) + len(batched) == len({op.name for op in (*plain, *batched)})


@pytest.mark.slow
def test_no_two_small_convolutions_share_a_name():
    """All with one or two of everything that there is."""
    few = (1, 2)
    pairs = tuple(itertools.product(few, repeat=2))
    shapes = list(itertools.product(few, few, few, (3, 4), ((1, 1, 1), (2, 2, 1), (2, 2, 2), (2, 4, 2))))
    made = [Conv2d(n, 8, w, c, k, r, s, stride, padding, dilation, groups, layout)
            for n, r, s, w, (c, k, groups) in shapes
            for stride, padding, dilation in itertools.product(pairs, ((0, 0), (0, 1), (1, 0)), pairs)
            for layout in ("nhwc", "nchw")]  # fmt: skip
    assert len(set(made)) == len({op.name for op in made})


def test_no_two_types_and_epilogues_share_a_name():
    """All pairs of types with all epilogues that they take."""
    epilogues = [simple(bias, name) for bias in (False, True) for name in ("none", "relu")]
    made = [
        Matmul(1, 1, 1, element_types(p), epilogue=e) for p in (*TYPE_PAIRS, *MIXED_PAIRS) for e in epilogues
    ]
    assert len(made) == len({op.name for op in made})


@PROPERTY
@given(operations(), operations())
def test_two_operations_share_a_name_only_if_they_are_equal(one, other):
    """Of any kinds."""
    assert (one == other) == (one.name == other.name)


@PROPERTY
@given(ANY)
def test_a_name_is_an_mlir_symbol_and_a_file_name(operation):
    """Letters, digits and underscores, so that nothing needs quoting anywhere."""
    assert operation.name.isascii()
    assert operation.name.isidentifier()


@PROPERTY
@given(ANY)
def test_arguments_rebuild_the_operation(operation):
    """Reading them as a person would gives an equal operation."""
    assert operation == _rebuilt(operation.kind, dict(operation.arguments()))


def _attention(arguments):
    def read(name):
        return arguments[f"attention-{name}"]

    mask, _, axes = read("mask").partition("-")
    extents = [
        int(read(name)) for name in ("batch", "heads", "queries", "keys", "size", "key-heads", "value-size")
    ]
    return Attention(
        *extents,
        read("type"),
        float(read("scale")),
        {"none": ""}.get(read("causal"), read("causal")),
        int(read("window")),
        {"none": ""}.get(mask, mask),
        axes,
        read("logsumexp") == "true",
        read("layout"),
    )


def _rebuilt(kind, arguments):
    if kind == "bias_backward":
        extents = [int(arguments[f"bias-{name}"]) for name in ("outer", "channels", "inner")]
        return BiasBackward(*extents, arguments["bias-type"])
    if kind == "attention":
        return _attention(arguments)
    if kind == "int4_matmul":
        numbers = [int(arguments[f"int4-{name}"]) for name in ("m", "n", "k", "group")]
        return Int4Matmul(*numbers, arguments["int4-type"])
    if kind == "softmax":
        numbers = (int(arguments["softmax-rows"]), int(arguments["softmax-size"]))
        return Softmax(*numbers, arguments["softmax-type"], float(arguments["softmax-scale"]))
    if kind.startswith("layer_norm"):
        numbers = (int(arguments["norm-rows"]), int(arguments["norm-size"]))
        text = arguments.get("norm-affine", "true")
        affine = {"true": True, "false": False}.get(text, text)
        if kind == "layer_norm_weight_backward":
            return LayerNormWeightBackward(*numbers, arguments["norm-type"], affine)
        if kind == "layer_norm_input_backward":
            return LayerNormInputBackward(*numbers, arguments["norm-type"], affine)
        return LayerNorm(*numbers, arguments["norm-type"], float(arguments["norm-eps"]), affine)
    assert "lhs" in arguments, f"{kind} needs a branch here"
    typed = {
        role: re.fullmatch(r"(bf16|f8E4M3FN|f8E5M2|[fi]\d+)([a-z]+)", arguments[role]).groups()
        for role in ("lhs", "rhs", "result")
    }
    types = ElementTypes(*(typed[role][0] for role in ("lhs", "rhs", "result")))
    epilogue = Epilogue.parse(arguments.get("epilogue", "none"))
    if kind.startswith("conv"):
        return _rebuilt_convolution(kind, arguments, [typed[role][1] for role in typed], types, epilogue)
    shape = [int(arguments[x]) for x in "mnk"]
    rest = (types, typed["lhs"][1], typed["rhs"][1], epilogue)
    batch = int(arguments["batch_count"])
    return Matmul(*shape, *rest) if kind == "matmul" else BatchMatmul(batch, *shape, *rest)


def _rebuilt_convolution(kind, arguments, tags, types, epilogue):
    made, mode = KINDS[kind], arguments.get("conv-mode", "forward")
    extents = {x: int(arguments[f"conv-{x}"]) for x in "ndhwcktrs" if f"conv-{x}" in arguments}
    steps = {
        x.replace("-", "_"): tuple(map(int, arguments[f"conv-{x}"].split("x")))
        for x in ("stride", "padding", "dilation", "padding-after")
        if f"conv-{x}" in arguments
    }
    stored = dict(zip(ROLES[mode], tags, strict=True))
    layout = "_".join(stored[role] for role in ("input", "filter", "output"))
    groups = int(arguments["conv-groups"])
    return made(**extents, **steps, groups=groups, layout=layout, types=types, epilogue=epilogue, mode=mode)


@pytest.mark.parametrize(
    "operation",
    [
        Matmul(2, 3, 4, ElementTypes("f16", "f16", "f32"), "n", "t", Epilogue.parse("bias+gelu")),
        BatchMatmul(5, 2, 3, 4, ElementTypes("i8", "i8", "i32"), "t", "n"),
        Conv2d(1, 9, 9, 4, 6, 3, 2, (2, 1), (1, 0), (1, 2), 2, "nchw", ElementTypes("f8", "f8", "bf16")),
        Conv1d(
            1,
            9,
            4,
            6,
            2,
            (2,),
            (1,),
            (2,),
            2,
            "ncw_wcf_nwc",
            padding_after=(0,),
            epilogue=Epilogue.parse("bias"),
        ),
        Conv2d(1, 9, 9, 4, 6, 3, 2, (2, 1), layout="nhwc_fhwc_nhwc", mode="input_backward"),
        Conv2d(1, 9, 9, 4, 6, 3, 2, (2, 1), layout="chwn_cfwh_nhwc", mode="weight_backward"),
        Conv3d(
            1,
            5,
            6,
            7,
            4,
            6,
            1,
            3,
            2,
            (2, 1, 1),
            (0, 1, 0),
            layout="ncdhw",
            types=ElementTypes("i8", "i8", "i32"),
        ),
        LayerNorm(3, 5, "bf16", 1e-6, False),
        LayerNorm(3, 5, "bf16", 1e-6, "weight"),
        LayerNormInputBackward(3, 5, "bf16", False),
        LayerNormWeightBackward(3, 5, "f64"),
        LayerNormWeightBackward(3, 5, "f64", "weight"),
        BiasBackward(3, 5, 7, "f16"),
    ],
    ids=lambda operation: operation.name[:40],
)
def test_the_generator_takes_the_arguments(run, operation):
    """The command itself, given the arguments, would generate this operation and no other."""
    arguments = [f"--{name}={value}" for name, value in operation.arguments().items()]
    outcome = run("generator", "--target=null", "--default-config=only", "--dry-run", *arguments).checked()
    sources = [line for line in outcome.out.splitlines() if line.startswith("[Generating]")]
    assert len(sources) == 1
    assert sources[0].endswith(f"/{operation.name}.mlir")


def test_every_kind_is_found_by_its_name():
    """In the order in which messages list them."""
    known = [
        Matmul,
        BatchMatmul,
        Conv1d,
        Conv2d,
        Conv3d,
        LayerNorm,
        LayerNormInputBackward,
        LayerNormWeightBackward,
        BiasBackward,
        Softmax,
        Attention,
        Int4Matmul,
    ]
    assert {kind.kind: kind for kind in known} == KINDS
    assert known == [operation_kind(name) for name in KINDS]


@pytest.mark.parametrize(
    ("operation", "label"),
    [
        (Matmul(1, 1, 1), "OperationKind.Matmul"),
        (BatchMatmul(1, 1, 1, 1), "OperationKind.BatchMatmul"),
        (Conv2d(1, 1, 1, 1, 1, 1, 1), "OperationKind.Conv2d"),
    ],
)
def test_a_kind_has_the_label_of_the_console_block(operation, label):
    """As the IREE dispatch profiler prints it."""
    assert label == operation.label


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_smallest_problem_of_a_kind_has_every_argument(kind):
    """All loops run once, but for a panel of columns and a group of terms, and a contraction has a bias."""
    operation = kind.smallest()
    assert {loop.extent for loop in operation.loops} <= ({1, 32, 64} if kind is Int4Matmul else {1})
    assert _rebuilt(kind.kind, operation.arguments()) == operation
    assert operation.contraction is None or operation.contraction.epilogue.starts_with_bias


def test_an_unknown_kind_is_refused_with_the_nearest():
    """Asked for by name, or read from data."""
    hint = "did you mean 'matmul'? Available: " + ", ".join(KINDS)
    with pytest.raises(OperationError, match=r"^unknown operation kind 'matmull'$") as caught:
        operation_kind("matmull")
    assert hint == caught.value.hint
    with pytest.raises(OperationError, match=r"^unknown operation kind 'matmull'$"):
        operation_from_dict({**Matmul(1, 2, 3).to_dict(), "kind": "matmull"})


def test_data_that_is_no_operation_is_refused_as_such():
    """A shape of 0 in a damaged file is the same mistake as on a command line."""
    data = Matmul(1, 2, 3).to_dict()
    with pytest.raises(OperationError, match="m=0"):
        operation_from_dict({**data, "m": 0})
    with pytest.raises(OperationError, match="malformed epilogue"):
        operation_from_dict({**data, "epilogue": "relu+"})
    with pytest.raises(OperationError, match="unknown element type 'f99'"):
        operation_from_dict({**data, "types": ["f99", "f99", "f32"]})
