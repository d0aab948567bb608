"""Configurations are values: frozen, hashable, written and read back, and named apart; also the default and flows."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_profiler.configurations import (
    FLOWS,
    KINDS,
    AmxMicrokernel,
    AttentionMicrokernel,
    Configuration,
    CpuTiles,
    DecodingMicrokernel,
    Default,
    DepthwiseGradient,
    DotMicrokernel,
    Evidence,
    Extern,
    Flow,
    Formed,
    ImagesMicrokernel,
    Int4Microkernel,
    Limits,
    Microkernel,
    MmaTiles,
    PackedInCalls,
    RowsMicrokernel,
    SimtTiles,
    TritonAttention,
    TritonRows,
    TritonTiles,
    Tuned,
    WinogradMicrokernel,
    apply_to_processes,
    configuration_from_dict,
)
from dispatch_profiler.configurations.gpu.intrinsics import INSTRUCTIONS
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import BatchMatmul, Conv2d, ElementTypes, Epilogue, Matmul

PROPERTY = settings(max_examples=50, deadline=None, derandomize=True)
TILE = st.integers(1, 999)


@st.composite
def cpu_tiles(draw, tile=TILE):
    """Tiles of any rank, with and without a cache level."""
    outer = draw(st.integers(1, 4))
    rank = outer + draw(st.integers(1, 3))
    vector = draw(st.tuples(*[tile] * rank))
    cache = draw(st.just(()) | st.tuples(*[tile] * rank))
    return CpuTiles(
        draw(st.tuples(*[tile] * outer)), vector, cache, draw(st.booleans()), draw(st.integers(1, 64))
    )


@st.composite
def gpu_tiles(draw, tile=TILE):
    """Tiles with and without matrix instructions, of products and convolutions."""
    axes = draw(st.integers(2, 4))
    common = {
        "workgroup": draw(st.tuples(*[tile] * axes)),
        "reduction": draw(st.tuples(tile) | st.tuples(tile, tile, tile)),
        "stages": draw(st.integers(1, 12)),
        "shared_padding": draw(st.booleans()),
        "order": draw(st.sampled_from(["none", "transpose"])),
        "split_k": draw(st.integers(1, 64)),
        "subgroup_size": draw(st.sampled_from([32, 64])),
    }
    if draw(st.booleans()):
        pipeline = draw(st.sampled_from(["TileAndFuse", "BaseVectorize"]))
        promote = draw(st.booleans())
        return SimtTiles(**common, thread=draw(st.tuples(*[tile] * axes)), promote=promote, pipeline=pipeline)
    return MmaTiles(
        **common,
        subgroups=draw(st.just(()) | st.tuples(*[tile] * axes)),
        instruction=draw(st.sampled_from(INSTRUCTIONS)),
        shape=draw(st.just(()) | st.tuples(tile, tile, tile)),
        pipeline=draw(st.sampled_from(["TileAndFuse", "VectorDistribute"])),
        accumulator=draw(st.sampled_from(["", "f16", "bf16"])),
    )


MMA = MmaTiles(workgroup=(64, 64), reduction=(32,))
SIMT = SimtTiles(workgroup=(64, 64), reduction=(16,), thread=(4, 8))
TRITON = TritonTiles(tile=(128, 256, 64))
ROWS = TritonRows(block=(2, 1024))
MICROKERNEL = Microkernel(distribution=(14, 64), registers=(2, 7, 32))
AMX = AmxMicrokernel((64, 96), (16, 48), packed=True)
WINOGRAD = WinogradMicrokernel(4, (98, 64), 14, (14, 32))
GRADIENT = DepthwiseGradient((16, 64), (1, 4, 32))
DOT = DotMicrokernel((8, 96), (4, 4))
EXTERN = Extern(label="mine", object="k.ptx", entry="k", workgroups=("m", 4), workgroup_size=(256,))


@st.composite
def microkernels(draw):
    """Any that can be written, whether an operation has these tiles or not."""
    return Microkernel(
        distribution=draw(st.tuples(TILE, TILE)),
        registers=draw(st.tuples(TILE, TILE, TILE)),
        unroll=draw(st.sampled_from([2, 4, 8])),
        margin=draw(st.sampled_from([0, 16])),
        packed=draw(st.booleans()),
    )


@st.composite
def triton_tiles(draw):
    """Any that can be written, whether they fit a device or not."""
    return TritonTiles(
        tile=draw(st.tuples(TILE, TILE, TILE)),
        warps=draw(st.integers(1, 32)),
        stages=draw(st.integers(1, 12)),
        group=draw(st.integers(1, 64)),
        persistent=draw(st.integers(0, 264)),
        descriptors=draw(st.booleans()),
        precision=draw(st.sampled_from(["ieee", "tf32x3", "bf16x6", "tf32"])),
        split_k=draw(st.integers(1, 64)),
        windows_only=draw(st.booleans()),
        joined=draw(st.booleans()),
        swapped=draw(st.booleans()),
    )


CONFIGURATIONS = (
    triton_tiles()
    | microkernels()
    | st.builds(AmxMicrokernel, st.tuples(TILE, TILE), st.tuples(TILE, TILE), st.booleans())
    | st.builds(
        WinogradMicrokernel,
        st.sampled_from([2, 4]),
        st.tuples(TILE, TILE),
        TILE,
        st.tuples(TILE, TILE),
        st.sampled_from([8, 16]),
    )
    | st.builds(
        DepthwiseGradient, st.tuples(TILE, TILE), st.tuples(TILE, TILE, TILE), st.sampled_from([8, 16])
    )
    | st.builds(DotMicrokernel, st.tuples(TILE, TILE), st.tuples(TILE, TILE), st.sampled_from([8, 16]))
    | st.builds(
        Int4Microkernel, st.integers(1, 6), st.integers(1, 64), st.integers(0, 512), st.integers(0, 200)
    )
    | st.just(EXTERN)
    | st.builds(
        TritonAttention,
        tile=st.tuples(TILE, TILE),
        warps=st.integers(1, 8),
        stages=st.integers(1, 4),
        parts=st.integers(1, 128),
        heads=st.integers(1, 16),
        precision=st.sampled_from(["ieee", "tf32x3"]),
    )
    | st.builds(TritonRows, block=st.tuples(TILE, TILE), warps=st.integers(1, 64), stages=st.integers(1, 9))
    | gpu_tiles()
    | cpu_tiles()
    | st.builds(Default, st.integers(1, 64))
    | st.sampled_from([Flow(x) for x in FLOWS])
)
FORMED = Formed("im2col", CpuTiles((64, 128), (8, 32, 4)))
TUNED = Tuned(FORMED, ("--iree-opt-level=O3",), "conv2d_of_another_shape")


@PROPERTY
@given(CONFIGURATIONS)
def test_a_configuration_is_read_back_from_its_dict(configuration):
    """Through JSON too, where tuples become lists."""
    assert configuration == configuration_from_dict(configuration.to_dict())
    assert configuration == configuration_from_dict(json.loads(json.dumps(configuration.to_dict())))


@PROPERTY
@given(CONFIGURATIONS)
def test_equal_configurations_are_one_key(configuration):
    """Identity is the frozen object."""
    assert {configuration: 1} == {dataclasses.replace(configuration): 1}


@PROPERTY
@given(CONFIGURATIONS, st.data())
def test_a_configuration_is_frozen(configuration, data):
    """No field can be set."""
    field = data.draw(st.sampled_from([field.name for field in dataclasses.fields(configuration)]))
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(configuration, field, getattr(configuration, field))


@PROPERTY
@given(CONFIGURATIONS, CONFIGURATIONS)
def test_two_configurations_share_a_name_only_if_they_are_equal(one, other):
    """Of any kinds."""
    assert (one == other) == (one.name == other.name)


def test_no_two_small_configurations_share_a_name():
    """Every one with tiles of 1 and 11, where digits could run together, and every kind beside."""
    few = (1, 11)
    made = [
        CpuTiles(outer, vector, cache, peel, split)
        for outer in itertools.product(few, repeat=2)
        for vector in itertools.product(few, repeat=3)
        for cache in ((), *itertools.product(few, repeat=3))
        for peel, split in itertools.product((False, True), (1, 2, 11))
    ]
    longer = [CpuTiles((1,), (1, 1), (1, 1)), CpuTiles((1,), (1, 1)), CpuTiles((1, 1, 1), (1, 1, 1, 1))]
    others = [Default(), Default(2), Default(11), *map(Flow, FLOWS), *longer]
    assert len(made) + len(others) == len({each.name for each in (*made, *others)})


def test_names_tell_every_field():
    """One field changed, another name."""
    mma = {"subgroups": (1, 4), "instruction": "mfma", "shape": (16, 16, 16), "pipeline": "VectorDistribute",
           "workgroup": (64, 128), "reduction": (64,), "stages": 5, "shared_padding": False,
           "order": "transpose", "split_k": 2, "subgroup_size": 64, "accumulator": "f16"}  # fmt: skip
    simt = {"thread": (8, 4), "promote": False, "pipeline": "BaseVectorize"}
    simt |= {name: mma[name] for name in ("workgroup", "reduction", "stages", "shared_padding", "order", "split_k", "subgroup_size")}  # fmt: skip
    triton = {"tile": (128, 256, 32), "warps": 4, "stages": 4, "group": 1, "persistent": 132,
              "descriptors": True, "precision": "tf32x3", "l1": True, "split_k": 4, "windows_only": True,
              "joined": True, "swapped": True}  # fmt: skip
    rows = {"block": (2, 512), "warps": 8, "stages": 1}
    microkernel = {"distribution": (7, 64), "registers": (1, 7, 32), "unroll": 8, "margin": 16}
    microkernel |= {"packed": True, "lanes": 8, "pairs": True, "rounds": True}
    kinds = (MMA, mma), (SIMT, simt), (TRITON, triton), (ROWS, rows), (MICROKERNEL, microkernel)
    for base, changes in kinds:
        assert set(changes) == {field.name for field in dataclasses.fields(base)}
        names = {dataclasses.replace(base, **{name: value}).name for name, value in changes.items()}
        assert len(names | {base.name}) == len(changes) + 1


@PROPERTY
@given(CONFIGURATIONS)
def test_a_name_is_part_of_an_mlir_symbol(configuration):
    """Letters, digits and underscores, so that nothing needs quoting anywhere."""
    assert configuration.name.isidentifier()


def test_data_of_every_kind_tells_its_kind():
    """The key under which it is found again."""
    examples = [
        Default(),
        CpuTiles((1,), (1, 1)),
        MICROKERNEL,
        AMX,
        WINOGRAD,
        PackedInCalls(WINOGRAD),
        GRADIENT,
        DOT,
        RowsMicrokernel((12, 32), ((16, 1, 32), (100, 3, 96))),
        ImagesMicrokernel((14, 64), (1, 14, 32)),
        AttentionMicrokernel(4, 96),
        DecodingMicrokernel(256, 4, 2),
        Int4Microkernel(6, 4, 128, 96),
        Flow("ukernels"),
        MMA,
        SIMT,
        TRITON,
        ROWS,
        TritonAttention(tile=(64, 64)),
        EXTERN,
        FORMED,
        TUNED,
    ]
    assert list(KINDS) == [each.to_dict()["kind"] for each in examples]


@PROPERTY
@given(CONFIGURATIONS)
def test_columns_of_the_report_are_those_that_the_kind_announces(configuration):
    """In their order, so that a report can have them before any row."""
    assert list(configuration.field_names) == list(configuration.fields())


def test_an_unknown_kind_is_refused_with_the_nearest():
    """As with operations."""
    with pytest.raises(ConfigurationError, match=r"^unknown configuration kind 'cpu_tile'$") as caught:
        configuration_from_dict({"kind": "cpu_tile"})
    assert caught.value.hint == f"did you mean 'cpu_tiles'? Available: {', '.join(KINDS)}"


def test_data_that_is_no_configuration_is_refused_as_such():
    """A tile of 0 in a damaged file is the same mistake as in a list of configurations."""
    data = CpuTiles((64, 128), (8, 32, 4)).to_dict()
    with pytest.raises(ConfigurationError, match="vector: every tile must be"):
        configuration_from_dict({**data, "vector": [8, 0, 4]})
    with pytest.raises(ConfigurationError, match="unknown flow 'none'"):
        configuration_from_dict({"kind": "flow", "flow": "none"})


def test_a_tuned_configuration_is_read_back():
    """With its flags and its origin; it is another configuration than the one that it holds."""
    assert configuration_from_dict(json.loads(json.dumps(TUNED.to_dict()))) == TUNED
    assert TUNED.fields() == {"tuned": FORMED.name, "tuned_from": TUNED.tuned_from, **FORMED.fields()}
    assert TUNED != FORMED


def test_a_tuned_configuration_asks_its_own_for_everything_that_a_configuration_can_be_asked():
    """Otherwise it would silently have a default: another kernel, or the peak of other units."""
    of_the_kind = {
        "from_yaml",
        "yaml_keys",
        "yaml_field",
        "space",
        "spaces",
        "packed_space",
        "packed_spaces",
        "likely",
    }
    # Every configuration writes its fields, and only one with a field `split_k` is split.
    of_every_kind = {"split", "to_dict"}
    asked = {name for name in vars(Configuration) if not name.startswith("_")}
    assert asked - vars(Tuned).keys() == of_the_kind | of_every_kind
    assert TUNED.split(2) is None


def test_a_tuned_configuration_is_not_tuned_again_and_not_the_kernel_of_a_form():
    for make in (lambda: Tuned(TUNED), lambda: Formed("im2col", TUNED)):
        with pytest.raises(ConfigurationError):
            make()


ANY = Limits()
OPERATIONS = (Matmul(4, 6, 12), BatchMatmul(2, 4, 6, 12), Conv2d(1, 5, 5, 2, 2, 3, 3))


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.kind)
def test_the_default_is_valid_for_everything(operation):
    """It is always in the running, whatever the hardware's limits are."""
    assert Default().invalid_reason(operation, Limits(max_vector_bytes=1)) is None


def test_the_default_asks_for_nothing():
    """No flags, no module of its own, no tiles, no columns."""
    default = Default()
    assert (
        default.name, default.flags, default.module, default.evidence
    ) == ("tile_config_default", (), "", None)  # fmt: skip
    assert (default.fields(), default.split_k) == ({}, 1)


def test_the_default_of_a_split_product_is_another_configuration():
    """Its name tells the slices."""
    assert Default(4).name == "tile_config_default_splitk4"
    assert Default(4).invalid_reason(Matmul(4, 6, 12), ANY) is None


@pytest.mark.parametrize(
    ("slices", "operation", "reason"),
    [
        (5, OPERATIONS[0], "5 slices do not divide k=12"),
        (24, OPERATIONS[0], "24 slices do not divide k=12"),
        (4, OPERATIONS[1], "split-k is defined for matmul, not for batch_matmul"),
        (4, OPERATIONS[2], "split-k is defined for matmul, not for conv2d"),
    ],
)
def test_why_a_product_is_not_split(slices, operation, reason):
    """Slices are of equal length, and of a plain matmul."""
    assert reason == Default(slices).invalid_reason(operation, ANY)


@pytest.mark.parametrize("slices", [0, -2, True, 2.0])
def test_the_default_refuses_slices_that_are_no_number(slices):
    """0 slices would be named as no split, and divide by zero."""
    with pytest.raises(ConfigurationError, match=f"split_k must be .* at least 1, but got {slices}"):
        Default(slices)


def test_there_are_five_flows():
    """Three ways to pack products, packed convolutions, and padding in the workgroups that read it."""
    products = ("matmul", "batch_matmul")
    assert {name: row.kinds for name, row in FLOWS.items()} == {
        "data_tiling": products,
        "ukernels": products,
        "inner_tiled": ("matmul",),
        "tiled_convolutions": ("conv2d",),
        "fused_padding": ("conv2d",),
    }


@pytest.mark.parametrize(
    ("flow", "flags", "evidence"),
    [
        (
            "data_tiling",
            ("--iree-opt-data-tiling",),
            Evidence("executable-configurations", "Mmt4dTilingExpert"),
        ),
        (
            "ukernels",
            ("--iree-opt-data-tiling", "--iree-llvmcpu-enable-ukernels=all"),
            Evidence("executable-targets", "iree_uk_mmt4d"),
        ),
        (
            "inner_tiled",
            (
                "--iree-opt-data-tiling",
                "--iree-llvmcpu-enable-ukernels=none",
                "--iree-llvmcpu-enable-inner-tiled",
            ),
            Evidence("executable-configurations", "iree_codegen.inner_tiled"),
        ),
        (
            "tiled_convolutions",
            (
                "--iree-opt-data-tiling",
                "--iree-dispatch-creation-experimental-set-data-tiling-ops=convolution",
                "--iree-llvmcpu-enable-ukernels=all",
            ),
            Evidence("executable-targets", "iree_uk_conv_nchwc"),
        ),
        (
            "fused_padding",
            ("--iree-dispatch-creation-enable-fuse-padding-into-linalg-consumer-ops",),
            Evidence("executable-configurations", "tensor.pad"),
        ),
    ],
)
def test_a_flow_has_flags_a_module_and_evidence(flow, flags, evidence):
    """Dispatches with its flags share a module of its name, and its IR shows that it took effect."""
    configuration = Flow(flow)
    assert (f"flow_config_{flow}", flags, flow, evidence) == (
        configuration.name, configuration.flags, configuration.module, configuration.evidence
    )  # fmt: skip
    assert configuration.split_k == 1


@pytest.mark.parametrize("flow", ["data_tiling", "ukernels"])
def test_a_flow_is_valid_for_the_kinds_that_it_changes(flow):
    """Under a name that changes nothing, the default would be measured."""
    reasons = [Flow(flow).invalid_reason(operation, ANY) for operation in OPERATIONS]
    assert [None, None, f"the flow {flow} affects matmul, batch_matmul, not conv2d"] == reasons


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (Conv2d(1, 5, 5, 2, 2, 3, 3, padding=(1, 1), groups=2), None),
        (Conv2d(1, 5, 5, 2, 2, 3, 3, padding_after=(0, 1), groups=2), None),
        (Conv2d(1, 5, 5, 2, 2, 3, 3, groups=2), "needs padding"),
        (OPERATIONS[2], "is for depthwise convolutions, forward and in nhwc"),
        (
            Conv2d(1, 5, 5, 2, 2, 3, 3, padding=(1, 1), groups=2, layout="nchw"),
            "is for depthwise convolutions, forward and in nhwc",
        ),
        (OPERATIONS[0], "affects conv2d, not matmul"),
    ],
)
def test_padding_is_fused_where_there_is_some(operation, reason):
    """In other layouts, the compiler crashes."""
    expected = reason and f"the flow fused_padding {reason}"
    assert Flow("fused_padding").invalid_reason(operation, ANY) == expected


_DENSE = {"n": 1, "h": 9, "w": 9, "c": 16, "k": 16, "r": 3, "s": 3}
_ALONG_EACH_AXIS = "needs several channels, filters, and taps and output pixels along each axis"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"stride": (2, 2), "padding": (1, 1), "c": 3, "k": 5, "r": 7, "s": 2}, None),
        ({"layout": "nchw"}, None),
        ({"layout": "nhwc_fhwc_nhwc", "epilogue": Epilogue.parse("bias+relu")}, None),
        ({"layout": "nhwc_fchw_nchw", "n": 2}, None),
        ({"groups": 2}, "is for forward convolutions without groups and dilation"),
        ({"dilation": (1, 2)}, "is for forward convolutions without groups and dilation"),
        ({"mode": "input_backward"}, "is for forward convolutions without groups and dilation"),
        (
            {"layout": "hcwn_cwfh_wnch"},
            "is for images in nhwc and nchw, with filters in hwcf, fhwc and fchw",
        ),
        ({"c": 1}, _ALONG_EACH_AXIS),
        ({"k": 1}, _ALONG_EACH_AXIS),
        ({"s": 1}, _ALONG_EACH_AXIS),
        ({"r": 9}, _ALONG_EACH_AXIS),
    ],
)
def test_convolutions_are_tiled_where_the_compiler_does_so(fields, reason):
    """It folds axes of one element before, and is wrong where images are the last axis."""
    expected = reason and f"the flow tiled_convolutions {reason}"
    operation = Conv2d(**{**_DENSE, **fields})
    assert Flow("tiled_convolutions").invalid_reason(operation, ANY) == expected


def test_convolutions_are_not_tiled_for_avx2():
    operation, flow = Conv2d(**_DENSE), Flow("tiled_convolutions")
    expected = "the flow tiled_convolutions has no kernel with vectors of 32 bytes"
    assert flow.invalid_reason(operation, Limits(vector_bytes=32)) == expected
    assert flow.invalid_reason(operation, Limits(vector_bytes=64)) is None


def test_blocks_of_filters_are_not_tiled_again():
    operation, flow = Conv2d(**{**_DENSE, "k": 128}), Flow("tiled_convolutions")
    expected = "the compiler rejects the flow tiled_convolutions in the form blocked"
    assert Formed("blocked", flow).invalid_reason(operation, ANY) == expected
    assert Formed("blocked").invalid_reason(operation, ANY) is None


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (Matmul(4, 6, 12, epilogue=Epilogue.parse("residual+relu")), None),
        (
            Matmul(4, 6, 12, epilogue=Epilogue.parse("bias")),
            "is for epilogues without a vector such as a bias",
        ),
        (Matmul(4, 6, 2048), "has no slices, but a sum of this length has 4"),
        (Matmul(4, 6, 2048, ElementTypes("bf16", "bf16", "f32")), None),
        (BatchMatmul(2, 4, 6, 12), "affects matmul, not batch_matmul"),
    ],
)
def test_products_are_inner_tiled_where_the_compiler_can(operation, reason):
    expected = reason and f"the flow inner_tiled {reason}"
    assert Flow("inner_tiled").invalid_reason(operation, ANY) == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--iree-opt-data-tiling", "--iree-llvmcpu-enable-ukernels=all"), False),
        (Flow("tiled_convolutions").flags, True),
        (("-iree-codegen-tuning-spec-path=spec.mlir",), True),
    ],
)
def test_flags_of_a_process_are_known(flags, expected):
    """Compilations with them need a process of their own."""
    assert apply_to_processes(flags) == expected


@pytest.mark.parametrize(
    ("flow", "type_", "reason"),
    [
        ("data_tiling", "f8", None),
        ("data_tiling", "f64", "the flow data_tiling affects f32, f16, bf16, f8E4M3FN, i8, not f64"),
        ("ukernels", "f16", None),
        ("ukernels", "f64", "the flow ukernels affects f32, f16, bf16, i8, not f64"),
        ("inner_tiled", "f64", None),
        ("inner_tiled", "f8", "the flow inner_tiled affects f32, f64, f16, bf16, i8, not f8E4M3FN"),
        ("ukernels", "f8", "the flow ukernels affects f32, f16, bf16, i8, not f8E4M3FN"),
    ],
)
def test_a_flow_is_valid_for_the_types_that_it_changes(flow, type_, reason):
    """There are no packed kernels for the others."""
    operation = Matmul(4, 6, 12, ElementTypes(type_, type_, "f64" if type_ == "f64" else "f32"))
    assert Flow(flow).invalid_reason(operation, ANY) == reason


def test_an_unknown_flow_is_refused_with_the_nearest():
    """A typing mistake names the flow that was probably meant."""
    with pytest.raises(ConfigurationError, match=r"^unknown flow 'data-tiling'$") as caught:
        Flow("data-tiling")
    assert (
        caught.value.hint
        == "did you mean 'data_tiling'? Available: data_tiling, ukernels, inner_tiled, tiled_convolutions, fused_padding"
    )
