"""torch with packed weights: right results, no weight converted in a call, and a sentence for what torch does not pack."""

from __future__ import annotations

from dataclasses import replace

import pytest
from worker_helpers import use_fresh_device_worker

from dispatch_profiler.errors import MissingDependency, UsageError
from dispatch_profiler.operations import (
    BatchMatmul,
    Conv1d,
    Conv2d,
    Conv3d,
    Distribution,
    ElementTypes,
    Epilogue,
    LayerNorm,
    Matmul,
)
from dispatch_profiler.profiler.evaluation import device_worker
from dispatch_profiler.profiler.evaluation.candidate import LIBRARY, VmfbRefs
from dispatch_profiler.profiler.measurement.kernels import NotSupported
from dispatch_profiler.profiler.measurement.measure import MeasureOptions, included_text
from dispatch_profiler.profiler.measurement.sample_batches import joined, next_batch
from dispatch_profiler.profiler.providers import library_calls
from dispatch_profiler.profiler.providers.library_calls import open_library
from dispatch_profiler.profiler.statistics.stopping import StopRule
from dispatch_profiler.profiler.verification.inputs import draw
from dispatch_profiler.profiler.verification.verify import References, compare

torch = pytest.importorskip("torch")

NAME = "torch-prepacked"
F16 = ElementTypes("f16", "f16", "f16")
FHWC = "nhwc_fhwc_nhwc"
LINEAR = Matmul(5, 48, 32, rhs_layout="n", epilogue=Epilogue.parse("bias+gelu"))
CONV = Conv2d(2, 7, 6, 16, 32, 3, 3, padding=(1, 1), layout=FHWC, epilogue=Epilogue.parse("bias+relu"))
OPERATIONS = (
    LINEAR,
    Matmul(1, 20, 64, epilogue=Epilogue.parse("residual")),
    CONV,
    replace(CONV, layout="nchw", stride=(2, 2), epilogue=Epilogue()),
    replace(CONV, layout="nhwc", groups=4, padding=(0, 1), padding_after=(2, 1)),
    Conv3d(1, 4, 5, 6, 8, 8, 3, 1, 3, layout="ndhwc_fdhwc_ndhwc"),
)


@pytest.fixture
def library():
    return open_library(NAME, "local-task", 1)


def failure(library, operation, operands) -> str:
    """Why the library's results for `operands` are not those of the operation; empty if they are."""
    results = library.bind("", operands).run()
    references = References(None, 3).get(operation, Distribution.REALS, stepwise=True)
    found = compare(operation, results, references)
    return "" if found.passed else found.message


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
def test_it_computes_what_the_operation_says(library, operation):
    operands = library.put(operation, draw(operation, Distribution.REALS, 3))

    assert failure(library, operation, operands) == ""
    assert library.converts_weights_ahead(operation)


@pytest.mark.parametrize("operation", [LINEAR, CONV], ids=lambda each: each.name)
def test_another_weight_is_found(library, operation):
    """The packed weight is what is computed with."""
    lhs, rhs, *rest = draw(operation, Distribution.REALS, 3)

    assert failure(library, operation, library.put(operation, (lhs, rhs[..., ::-1].copy(), *rest))) != ""


def test_weights_are_stored_as_onednn_and_mkl_prefer_them(library):
    """Opaque tensors: torch has no plain elements of them left to convert in a call."""
    for operation in (LINEAR, CONV):
        weight = library.put(operation, draw(operation, Distribution.REALS, 3)).handles[1]
        assert (weight if operation is CONV else weight[0]).is_mkldnn


@pytest.mark.parametrize(
    "operation",
    [
        Matmul(4, 4, 4, F16),
        Matmul(4, 4, 4, lhs_layout="n"),
        BatchMatmul(2, 4, 4, 4),
        replace(CONV, mode="input_backward", epilogue=Epilogue()),
        replace(CONV, mode="weight_backward", epilogue=Epilogue()),
        Conv1d(1, 9, 3, 4, 3),
        LayerNorm(4, 8),
    ],
    ids=lambda each: each.name,
)
def test_what_torch_does_not_pack_is_refused(library, operation):
    with pytest.raises(NotSupported):
        library.put(operation, draw(operation, Distribution.REALS, 3))


def test_its_times_include_no_conversion_of_the_weight(library, monkeypatch):
    """As those of our packed weights, so that a comparison is alike."""
    use_fresh_device_worker(monkeypatch)
    monkeypatch.setattr(device_worker.STATE, "library", library)
    options = MeasureOptions(StopRule(count=2), 1)

    batch = device_worker.take_batch(VmfbRefs(LIBRARY, LIBRARY), "", LINEAR, 1, next_batch(options, (), None))

    assert included_text(joined(options, [batch]).includes) == "kernels; fills and copies; call"


def test_no_gpu_runs_it_and_without_torch_the_pip_line_is_told(monkeypatch):
    with pytest.raises(UsageError, match="runs on the CPU"):
        open_library(NAME, "cuda://0", 1)
    monkeypatch.setattr(library_calls.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match="torch is not installed") as error:
        library_calls.check_installed([NAME])
    assert f"pip install torch, or remove {NAME}" in error.value.hint
