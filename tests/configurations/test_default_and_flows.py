"""The compiler's own choice, and flags that change how a whole module is compiled."""

from __future__ import annotations

import pytest

from dispatch_profiler.configurations import FLOWS, Default, Evidence, Flow, Limits
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import BatchMatmul, Conv2d, ElementTypes, Matmul

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


def test_there_are_three_flows():
    """Packing, packing with hand-written kernels, and padding in the workgroups that read it."""
    products = ("matmul", "batch_matmul")
    assert {name: row.kinds for name, row in FLOWS.items()} == {
        "data_tiling": products, "ukernels": products, "fused_padding": ("conv2d",)
    }  # fmt: skip


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


@pytest.mark.parametrize(
    ("flow", "type_", "reason"),
    [
        ("data_tiling", "f8", None),
        ("data_tiling", "f64", "the flow data_tiling affects f32, f16, bf16, f8E4M3FN, i8, not f64"),
        ("ukernels", "f16", None),
        ("ukernels", "f64", "the flow ukernels affects f32, f16, bf16, i8, not f64"),
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
    assert caught.value.hint == "did you mean 'data_tiling'? Available: data_tiling, ukernels, fused_padding"
