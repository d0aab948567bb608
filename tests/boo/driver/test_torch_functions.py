"""torch's own functions compute the operations: in every kind, mode and layout, compared with the references."""

from __future__ import annotations

import numpy as np
import pytest

from dispatch_profiler.boo.driver.numerics.check import by_torch
from dispatch_profiler.boo.driver.torch_functions import to_numpy, to_torch, torch_function
from dispatch_profiler.operations import (
    BiasBackward,
    Conv1d,
    Conv2d,
    Conv3d,
    Distribution,
    ElementTypes,
    Epilogue,
    LayerNorm,
    LayerNormInputBackward,
    LayerNormWeightBackward,
    Matmul,
    Operation,
)
from dispatch_profiler.operations.element_types import element_type
from dispatch_profiler.profiler.measurement.kernels import NotSupported
from dispatch_profiler.profiler.verification.inputs import draw
from dispatch_profiler.profiler.verification.verify import compare

torch = pytest.importorskip("torch")

BIAS = Epilogue.parse("bias")
HALF = ElementTypes("bf16", "bf16", "bf16")
TRANSPOSED = {
    "n": 2,
    "h": 5,
    "w": 4,
    "c": 4,
    "k": 6,
    "r": 3,
    "s": 3,
    "stride": (2, 2),
    "output_padding": (1, 1),
}
OPERATIONS = [
    Matmul(5, 7, 9),
    Matmul(5, 7, 9, lhs_layout="n", rhs_layout="n", types=HALF),
    Matmul(5, 7, 9, epilogue=BIAS),
    Conv1d(2, 9, 4, 6, 3, padding=(1,)),
    Conv3d(1, 4, 5, 6, 2, 3, 2, 2, 2),
    *(
        Conv2d(2, 7, 8, 4, 6, 3, 2, stride=(2, 1), padding=(1, 0), groups=2, layout=layout, mode=mode, types=types)
        for mode in ("forward", "input_backward", "weight_backward")
        for layout, types in (("nchw_fchw_nchw", HALF), ("nhwc_fhwc_nhwc", ElementTypes()), ("cnhw_chwf_whnc", HALF))
    ),
    Conv2d(2, 7, 8, 4, 6, 1, 1, layout="nhwc_fhwc_nhwc", epilogue=BIAS),
    Conv2d.transposed(padding=(1, 1), epilogue=BIAS, **TRANSPOSED),
    LayerNorm(5, 33, "bf16"),
    LayerNorm(5, 33, affine=False),
    LayerNorm(5, 33, "bf16", affine="weight"),
    LayerNorm(5, 33, affine="bias"),
    LayerNormWeightBackward(5, 33, affine="weight"),
    LayerNormInputBackward(5, 33),
    LayerNormWeightBackward(5, 33),
    BiasBackward(2, 5, 7, "f16"),
]  # fmt: skip


def _is_rounded_by_torch(operation: Operation) -> bool:
    """Whether torch computes gradients of groups in steps, each of which rounds to bf16."""
    geometry = operation.convolution
    return (
        geometry is not None
        and geometry.mode != "forward"
        and geometry.groups > 1
        and operation.element_type.name == "bf16"
        and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
def test_torch_computes_the_operation(operation: Operation):
    if _is_rounded_by_torch(operation):
        pytest.skip("torch rounds the sums of groups to bf16: oneDNN has no bf16 for this CPU")
    operands = draw(operation, Distribution.REALS, 1)

    found = by_torch(operation, "cpu")(operands)

    references = operation.reference(operands, stepwise=operation.rounds_between_steps)
    assert compare(operation, found, references).message == ""


def test_an_operation_with_other_steps_is_not_supported():
    with pytest.raises(NotSupported, match="torch has no single function for matmul_"):
        torch_function(Matmul(2, 2, 2, epilogue=Epilogue.parse("bias+relu")), torch.device("cpu"))


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "f64"])
def test_arrays_become_tensors_and_arrays_again(name: str):
    type_ = element_type(name)
    array = np.arange(6, dtype=np.float64).reshape(2, 3).astype(type_.dtype)

    tensor = to_torch(array, type_, torch.device("cpu"))

    assert str(tensor.dtype).removeprefix("torch.") == {"bf16": "bfloat16", "f16": "float16"}.get(
        name, f"float{type_.bits}"
    )
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]
    again = to_numpy(tensor.mT, type_)
    assert again.dtype == type_.dtype
    assert again.tolist() == [[0, 3], [1, 4], [2, 5]]
