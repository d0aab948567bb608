"""References that torch computes are those that numpy computes; with a GPU there, on it."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from dispatch_profiler.operations import (
    BatchMatmul,
    Conv2d,
    Distribution,
    ElementTypes,
    Epilogue,
    Matmul,
    Operation,
)
from dispatch_profiler.operations.contraction.reference import reference
from dispatch_profiler.profiler.providers.library_calls import open_contraction
from dispatch_profiler.profiler.providers.torch_gpu import GpuContraction
from dispatch_profiler.profiler.verification.inputs import draw
from dispatch_profiler.runtime.cuda_driver import find_gpu

F16 = ElementTypes("f16", "f16", "f16")
OPERATIONS = [
    Matmul(33, 17, 65, F16),
    Matmul(33, 17, 65, ElementTypes("bf16", "bf16", "f32"), "n", "n", Epilogue.parse("bias+gelu")),
    Matmul(9, 8, 64, ElementTypes("i8", "i8", "i32")),
    BatchMatmul(3, 16, 8, 24, F16, "t", "n"),
    Conv2d(2, 9, 9, 8, 12, 3, 3, types=F16),
    Conv2d(2, 9, 9, 8, 12, 3, 3, stride=(2, 1), padding=(1, 1), dilation=(1, 2), groups=4, layout="nchw"),
]


@pytest.fixture(params=["local-task", "cuda"])
def contraction(request: pytest.FixtureRequest) -> GpuContraction:
    """On a CPU it is the same code."""
    if request.param == "cuda" and find_gpu("cuda") is None:
        pytest.skip("no NVIDIA GPU, or no driver for it")
    return GpuContraction(request.param)


@pytest.mark.parametrize("distribution", list(Distribution))
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.name)
def test_a_reference_is_the_same(contraction, operation: Operation, distribution: Distribution):
    """Exact where numpy's is; else apart by less than a thousandth of what a kernel may be off."""
    inputs = draw(operation, distribution, 5)

    theirs, ours = reference(operation, inputs, contract=contraction), reference(operation, inputs)

    assert (theirs.tolerance is None) == (ours.tolerance is None)
    if ours.tolerance is None or theirs.tolerance is None:
        assert (theirs.expected == ours.expected).all()
    else:
        assert (np.abs(theirs.expected - ours.expected) <= 1e-3 * ours.tolerance).all()
        assert theirs.tolerance == pytest.approx(ours.tolerance, rel=1e-3)


@pytest.mark.parametrize("device", ["", "local-task", "null", "vulkan", "nonsense://0"])
def test_other_devices_compute_no_references(device: str):
    assert open_contraction(device) is None


@pytest.mark.skipif(find_gpu("cuda") is None, reason="no NVIDIA GPU, or no driver for it")
@pytest.mark.parametrize("operation", [OPERATIONS[0], OPERATIONS[1], *OPERATIONS[3:]], ids=lambda o: o.name)
def test_a_graph_on_a_gpu_computes_what_eager_torch_does(operation: Operation):
    from dispatch_profiler.profiler.providers.torch_library import TorchLibrary

    library = TorchLibrary("cuda", 1)
    operands = library.put(operation, draw(operation, Distribution.REALS, 5))
    (eager,) = library.load(b"").bind("", operands).run()

    for count in (1, 20):
        call = library.load_repeated(count).bind("", operands)
        (captured,) = call.run()
        np.testing.assert_array_equal(captured.view(np.uint8), eager.view(np.uint8))
        assert call.time(3) > 0
