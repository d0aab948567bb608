"""A dispatch is named by its operation and configuration, and its arguments rebuild it."""

from __future__ import annotations

import pytest

from dispatch_profiler.configurations import CpuTiles, Default, Flow
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import BatchMatmul, Conv2d, ElementTypes, Epilogue, Matmul

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
