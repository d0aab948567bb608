"""Long sums of compiled kernels: as precise as torch's, and imprecise ones fail."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from compiled_helpers import TARGET, failures_of, verify_compiled

from dispatch_profiler.compiler.backends.in_process import InProcess
from dispatch_profiler.configurations import CpuTiles, Default, Formed
from dispatch_profiler.configurations.cpu.microkernel import Microkernel
from dispatch_profiler.configurations.splits import slices_of_long_sum
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import (
    BatchMatmul,
    BiasBackward,
    Conv2d,
    ElementTypes,
    Epilogue,
    LayerNorm,
    LayerNormInputBackward,
    LayerNormWeightBackward,
    Matmul,
    Operation,
)
from dispatch_profiler.profiler.measurement.kernels import open_kernels
from dispatch_profiler.targets import fastest_form

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.usefixtures("in_process"), pytest.mark.works_on_ir]


def slow(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.slow)


SIZES = (slow(2), slow(1023), slow(1024), slow(1025), slow(10_000), 100_003, slow(10**6))
#: The most that an error may be, in units of torch's, or of the last place of the largest result.
MOST = 4.0


def results_of(dispatch: Dispatch, operands: list[np.ndarray]) -> list[np.ndarray]:
    """The results of a compiled dispatch for `operands`."""
    compiler, operation = InProcess(), dispatch.operation
    flags = TARGET.flags_of(operation)
    module = compiler.parse(render_module(operation, [dispatch]), flags)
    device = open_kernels("local-sync")
    program = device.load(compiler.vmfb(module, flags, "start"))
    return program.bind(dispatch.name, device.put(operation, operands)).run()


def drawn(operation: Operation, name: str, mean: float) -> np.ndarray:
    """Normally distributed numbers with this mean, in the type of an operand."""
    operand = next(each for each in operation.operands if each.name == name)
    values = np.random.default_rng(3).standard_normal(operand.shape) + mean
    return values.astype(operand.type.dtype)


def check(found: np.ndarray, theirs: object, truth: object) -> None:
    """Fail unless the errors of `found` are at most a few times torch's, or a few units in the last place."""
    exact = truth.double().numpy()
    scale = np.abs(exact).max()
    ulp = float(np.spacing(scale.astype(found.dtype)))
    own = np.abs(found.astype(np.float64) - exact).max()
    assert own <= MOST * max(float((theirs.double() - truth.double()).abs().max()), ulp)


def tensor(array: np.ndarray) -> object:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.astype(np.float32)).bfloat16()
    return torch.from_numpy(array)


@pytest.mark.parametrize("mean", [slow(0.0), 1000.0])
@pytest.mark.parametrize("type_", ["f32", slow("f16"), "bf16"])
@pytest.mark.parametrize("size", SIZES)
def test_a_layer_norm_is_as_precise_as_torch(size, type_, mean):
    operation = LayerNorm(2, size, type_, affine=False)
    x = drawn(operation, "x", mean if type_ == "f32" else mean / 64)
    y, means, rstds = results_of(Dispatch(operation, Default()), [x])
    wide = tensor(x).double()
    theirs = torch.native_layer_norm(tensor(x), [size], None, None, 1e-5)
    truth = torch.native_layer_norm(wide, [size], None, None, 1e-5)
    check(y.astype(np.float32), theirs[0].float(), truth[0])
    check(means, theirs[1].reshape(-1), truth[1].reshape(-1))
    check(rstds, theirs[2].reshape(-1), truth[2].reshape(-1))


@pytest.mark.slow
@pytest.mark.parametrize("mean", [slow(0.0), 1000.0])
@pytest.mark.parametrize("size", SIZES)
def test_gradients_of_a_layer_norm_are_as_precise_as_torch(size, mean):
    """That of the input sums along rows, those of weight and bias along columns."""
    for operation in (LayerNormInputBackward(2, size, affine=False), LayerNormWeightBackward(size, 3)):
        dy, x = drawn(operation, "dy", mean), drawn(operation, "x", 0.0) * np.float32(2)
        shape = [operation.size]
        ones = torch.ones(shape)
        _, mean_, rstd = torch.native_layer_norm(tensor(x), shape, None, None, 1e-5)
        operands = [dy, x, mean_.reshape(-1).numpy(), rstd.reshape(-1).numpy()]
        found = results_of(Dispatch(operation, Default()), operands)
        theirs, truth = (
            torch.ops.aten.native_layer_norm_backward(
                *(each.to(type_) for each in (tensor(dy), tensor(x))), shape, mean_.to(type_), rstd.to(type_),
                ones.to(type_), ones.to(type_), [len(found) == 1, len(found) == 2, len(found) == 2],
            )
            for type_ in (torch.float32, torch.float64)
        )  # fmt: skip
        kept = [(own, one) for own, one in zip(theirs, truth, strict=True) if own is not None]
        for result, (own, exact) in zip(found, kept, strict=True):
            check(result, own, exact)


@pytest.mark.parametrize("mean", [slow(0.0), 1000.0])
@pytest.mark.parametrize(
    "shape", [slow((1, 1)), slow((1023, 1)), slow((1, 1025)), (3, 33_337), slow((100_003, 1))]
)
def test_the_gradient_of_a_bias_is_as_precise_as_torch(shape, mean):
    outer, inner = shape
    operation = BiasBackward(outer, 3, inner)
    dy = drawn(operation, "dy", mean)
    (found,) = results_of(Dispatch(operation, Default()), [dy])
    check(found, tensor(dy).sum((0, 2)), tensor(dy).double().sum((0, 2)))


@pytest.mark.parametrize("mean", [slow(0.0), 1.0])
@pytest.mark.parametrize("k", [slow(1023), slow(1025), slow(4096), 4099, slow(65_537)])
def test_a_product_is_as_precise_as_torch(k, mean):
    operation = Matmul(48, 64, k)
    lhs, rhs = drawn(operation, "lhs", mean), drawn(operation, "rhs", mean)[::-1].copy()
    (found,) = results_of(Dispatch(operation, Default()), [lhs, rhs])
    check(found, tensor(lhs) @ tensor(rhs), tensor(lhs).double() @ tensor(rhs).double())


@pytest.mark.slow
def test_products_of_long_sums_are_right_in_every_layout():
    """Where slices do not divide the sum."""
    layouts = [{"lhs_layout": lhs, "rhs_layout": rhs} for lhs in "tn" for rhs in "tn"]
    products = [Matmul(5, 7, 2053, **each) for each in layouts]
    batches = [BatchMatmul(2, 5, 7, 2053, **each) for each in layouts]
    verify_compiled([Dispatch(each, Default()) for each in (*products, *batches)])


@pytest.mark.slow
def test_products_of_long_sums_are_right_in_every_kind_and_form():
    """Also where slices do not divide the sum, and with an epilogue."""
    plain, tiles = Default(), CpuTiles((32, 32), (8, 32, 8))
    dispatches = [
        Dispatch(Matmul(5, 7, 2053, lhs_layout="n"), plain),
        Dispatch(BatchMatmul(2, 5, 7, 2053, rhs_layout="n"), plain),
        Dispatch(Matmul(5, 7, 2053, epilogue=Epilogue.parse("bias+relu")), plain),
        Dispatch(Matmul(4, 4, 2**16 + 24, ElementTypes("f16", "f16", "f32")), plain),
        Dispatch(Matmul(32, 64, 2048), tiles),
        Dispatch(Matmul(33, 17, 2053), CpuTiles((32, 32), (8, 16, 1), peel=True)),
        Dispatch(Matmul(32, 64, 2053), CpuTiles((32, 32), (8, 32, 4), peel=True)),
        Dispatch(Matmul(32, 64, 2048, rhs_layout="n"), Formed("transposed", tiles)),
        Dispatch(Matmul(64, 64, 2048, rhs_layout="n"), Formed("transposed_panels", tiles)),
    ]  # fmt: skip
    assert all(each.error_bound is not None for each in dispatches)
    verify_compiled(dispatches)


@pytest.mark.parametrize("mean", [slow(0.0), 1.0])
@pytest.mark.parametrize(
    "operation",
    [
        Conv2d(1, 12, 12, 300, 16, 3, 3, layout="nchw"),
        slow(Conv2d(2, 9, 9, 131, 40, 3, 3, padding=(1, 1), layout="nchw")),
        slow(Conv2d(1, 5, 5, 9000, 32, 1, 1, layout="nchw")),
        slow(Conv2d(1, 16, 16, 512, 512, 3, 3, layout="nchw")),
        slow(Conv2d(1, 9, 9, 2000, 4, 3, 3, groups=2, layout="nchw")),
    ],
    ids=lambda operation: operation.name,
)
def test_a_convolution_by_rule_is_as_precise_as_torch_in_nchw(operation, mean):
    image, filters = drawn(operation, "lhs", mean), drawn(operation, "rhs", mean)
    configuration = fastest_form(operation, TARGET)
    (found,) = results_of(Dispatch(operation, configuration), [image, filters])
    theirs, truth = (
        torch.nn.functional.conv2d(x, y, padding=operation.padding, groups=operation.groups)
        for x, y in ((tensor(image), tensor(filters)), (tensor(image).double(), tensor(filters).double()))
    )
    check(found, theirs, truth)


@pytest.mark.slow
def test_convolutions_of_slices_of_channels_are_right_in_every_form():
    """Also with unequal slices, padding, strides and an epilogue."""
    padded = {"padding": (1, 1), "layout": "nchw"}
    dispatches = [
        Dispatch(Conv2d(1, 6, 7, 131, 16, 3, 3, epilogue=Epilogue.parse("bias+relu"), **padded), Formed("permuted")),
        Dispatch(Conv2d(2, 6, 7, 3, 131, 3, 3, mode="input_backward", **padded), Formed("permuted")),
        Dispatch(Conv2d(1, 6, 7, 100, 128, 3, 3), Formed("blocked")),
        Dispatch(Conv2d(1, 9, 9, 4, 300, 4, 4, stride=(2, 2), mode="input_backward"), Formed("phases")),
        Dispatch(Conv2d(1, 4, 4, 2000, 4, 1, 1, groups=2), Formed("per_group")),
    ]  # fmt: skip
    assert all(each.error_bound is not None for each in dispatches)
    verify_compiled(dispatches)


@pytest.mark.slow
def test_the_gradient_of_a_filter_adds_pixels_in_slices():
    """In every form, which are compiled together."""
    operation = Conv2d(3, 37, 31, 5, 6, 3, 3, padding=(1, 1), mode="weight_backward")
    dispatches = [Dispatch(operation, Formed(form)) for form in ("taps", "im2col", "im2col_t")]
    assert all(each.error_bound.longest < 600 < operation.accumulations for each in dispatches)
    verify_compiled(dispatches)


@pytest.mark.slow
@pytest.mark.parametrize("channels", [64, slow(160), slow(800)])
def test_microkernels_add_the_channels_of_each_tap_in_slices(channels):
    """Also where taps read the padding."""
    operation = Conv2d(2, 6, 8, channels, 32, 5, 3, padding=(2, 1))
    kernels = Microkernel((6, 32), (2, 4, 32)), Microkernel((2, 16), (1, 8, 16), packed=True)
    dispatches = [Dispatch(operation, each) for each in kernels]
    assert all(each.error_bound.longest <= 800 < operation.accumulations for each in dispatches)
    verify_compiled(dispatches)


# -- faults -------------------------------------------------------------------------------------------


def added_in_f32(text: str) -> str:
    """The same kernel, whose terms are added in f32."""
    conversion = re.compile(r"\n +%(\w+) = arith\.(?:extf|truncf) %(\w+) : (?:f32 to f64|f64 to f32)")
    while found := conversion.search(text):
        text = text[: found.start()] + text[found.end() :]
        text = re.sub(rf"%{found[1]}\b", f"%{found[2]}", text)
    return text.replace("f64", "f32")


LONG_ROWS = [
    LayerNorm(2, 20_000),
    LayerNormInputBackward(2, 50_000),
    LayerNormWeightBackward(50_000, 3),
    BiasBackward(50_000, 3),
]


@pytest.mark.slow
def test_terms_that_are_added_in_f32_fail():
    planted = {Dispatch(each, Default()): {"in f32": added_in_f32} for each in LONG_ROWS}

    found = failures_of(planted)

    for dispatch in planted:
        assert found[dispatch, ""] == ""
        assert found[dispatch, "in f32"].endswith("(on offset)") or "(on reals)" in found[dispatch, "in f32"]


@pytest.mark.slow
def test_products_that_are_added_one_after_another_fail(monkeypatch):
    """The same configuration without slices."""
    dispatch = Dispatch(Matmul(32, 64, 2**16), Default())
    assert slices_of_long_sum(dispatch.operation) > 1
    with monkeypatch.context() as patch:
        patch.setattr(Default, "slices", lambda self, operation: 1)
        in_order = render_module(dispatch.operation, [dispatch])

    naive: Callable[[str], str] = lambda text: in_order  # noqa: E731
    found = failures_of({dispatch: {"in order": naive}})

    assert found[dispatch, ""] == ""
    assert "(on offset)" in found[dispatch, "in order"]
