"""Products and convolutions of graphs with dynamic shapes are computed by kernels for any batch, without compiling again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from dispatch_profiler import misses
from dispatch_profiler.boo.backends import backend, explain
from dispatch_profiler.boo.backends.region_kernels import RegionChoice, RegionTimes
from dispatch_profiler.boo.fusion.execute import batch_operator
from dispatch_profiler.boo.fusion.execute.batch_operator import BATCH_REGIONS, run_of, sized
from dispatch_profiler.boo.fusion.execute.reference import compute
from dispatch_profiler.boo.fusion.schema import BOO_FUSIONS_WITH_MATRIX_PRODUCTS
from dispatch_profiler.boo.fusion.spec import OperandSource, RegionSpec, RunSpec, parse_run
from dispatch_profiler.boo.kernels.uses import KernelOrigin
from dispatch_profiler.boo.session import SESSION
from dispatch_profiler.errors import UsageError
from dispatch_profiler.operations import Epilogue, Matmul
from dispatch_profiler.targets import parse_target, rows_microkernel

WIDTH, HIDDEN = 24, 80
SHAPES = ((2, 5), (3, 7), (6, 4), (2, 50))


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    if rows_microkernel(Matmul(64, HIDDEN, WIDTH, rhs_layout="n"), parse_target("llvm-cpu")) is None:
        pytest.skip("no kernel for this CPU is for any number of rows")
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    """Two products, the second with a residual; between them, an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.first, self.second = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Any) -> Any:
        return x + self.second(nn.functional.gelu(self.first(self.norm(x))))


def compiled(model: Any, *, dynamic: bool | None = True, **options: Any) -> Any:
    given = {"fusion_schema": BOO_FUSIONS_WITH_MATRIX_PRODUCTS, "autotune": False, **options}
    return torch.compile(model, backend=backend(**given), dynamic=dynamic)


def check(model: Any, fast: Any, inputs: Sequence[Any]) -> int:
    """The number of runs of regions that a call computes, which returns what the model does."""
    with torch.no_grad():
        fast(*inputs)  # compiles
    with torch.no_grad(), torch.autograd.profiler.profile() as seen:
        found = fast(*inputs)
    with torch.no_grad():
        expected = model(*inputs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert found.shape == expected.shape
    assert found.stride() == expected.stride()
    return sum(each.count for each in seen.key_averages() if each.key == "dispatch_profiler::batch_regions")


@pytest.mark.parametrize("freeze", [True, False])
def test_one_compilation_serves_all_shapes(freeze: bool):
    model = nn.Sequential(Block(), Block()).eval()
    fast = compiled(model, freeze=freeze)
    # Weights that are not frozen are compared in each call: with few rows, that takes longer than packing saves.
    rows = 1 if freeze else 400
    for batch, length in SHAPES:
        assert check(model, fast, [torch.randn(batch, length * rows, WIDTH)]) == 2  # of two regions each
    assert counters["stats"]["unique_graphs"] == 1


def test_only_marked_dimensions_are_dynamic():
    model = Block().eval()
    fast = compiled(model, dynamic=None, freeze=True)
    for batch in (3, 2, 9):
        x = torch.randn(batch, 4, WIDTH)
        torch._dynamo.mark_dynamic(x, 0)
        assert check(model, fast, [x]) == 1
    assert counters["stats"]["unique_graphs"] == 1


def test_explain_and_misses_have_the_operation_at_the_traced_size():
    x = torch.randn(400, 4, WIDTH)
    torch._dynamo.mark_dynamic(x, 0)
    SESSION.clear("uses", "batch_kernels")
    given = backend(fusion_schema=BOO_FUSIONS_WITH_MATRIX_PRODUCTS, freeze=True, autotune=False)
    with torch.no_grad():
        found = explain(Block().eval(), {"x": x}, backend=given, measure=None)
    first, second = (each for each in found.regions if each.is_fused)
    assert (first.module, second.module) == ("first", "second")
    assert first.use is not None and first.use.origin is KernelOrigin.PREDICTED
    assert "for any batch" in first.use.reason and "rows_microkernel" in first.configuration
    sizes = {(each.m, each.n, each.k) for each in misses().operations}
    assert sizes == {(1600, HIDDEN, WIDTH), (1600, WIDTH, HIDDEN)}


@pytest.mark.parametrize(("ours", "batch"), [(1e-3, 400), (1.0, 401)])
def test_explain_says_that_torch_is_faster_and_not_that_the_shape_is_dynamic(
    ours: float, batch: int, monkeypatch: pytest.MonkeyPatch
):
    """The cache keeps times for each number of rows."""
    monkeypatch.setattr(RegionChoice, "measured_times", lambda *_: RegionTimes(ours, 0.5))
    given = backend(fusion_schema=BOO_FUSIONS_WITH_MATRIX_PRODUCTS, freeze=True, autotune="quick")
    x = torch.randn(batch, 4, WIDTH)
    torch._dynamo.mark_dynamic(x, 0)
    with torch.no_grad():
        found = explain(Block().eval(), x, backend=given, measure=lambda *calls: [1.0] * len(calls))
    products = [each for each in found.regions if each.module in ("first", "second")]
    assert [each.is_fused for each in products] == 2 * [ours < 0.5]
    assert all(each.is_fused or each.reason.startswith("torch is faster") for each in products)


def test_a_call_without_rows_computes_nothing():
    model = Block().eval()
    fast = compiled(model, freeze=True)
    check(model, fast, [torch.randn(2, 5, WIDTH)])
    assert check(model, fast, [torch.randn(0, 5, WIDTH)]) in (0, 2)


def test_changed_weights_are_packed_again():
    model = Block().eval()
    fast = compiled(model)
    x = torch.randn(400, 3, WIDTH)
    assert check(model, fast, [x]) == 1
    with torch.no_grad():
        model.first.weight.mul_(-1)
    assert check(model, fast, [x]) == 1


class Mixed(nn.Module):
    """Products whose other sizes are dynamic too, that broadcast, or that read rows in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, HIDDEN)
        self.other = nn.Linear(WIDTH, HIDDEN)

    def forward(self, x: Any, one: Any) -> Any:
        turned = self.linear(x.transpose(0, 1))
        broadcast = self.other(x) + one
        return turned.transpose(0, 1) + broadcast, x @ x.mT, self.linear(x.sum(1)).T


@pytest.mark.parametrize("freeze", [True, False])
def test_regions_that_depend_on_other_sizes_are_right(freeze: bool):
    model = Mixed().eval()
    fast = compiled(model, freeze=freeze)
    for batch, length in SHAPES:
        inputs = torch.randn(batch, length, WIDTH), torch.randn(1, length, HIDDEN)
        with torch.no_grad():
            torch.testing.assert_close(fast(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)


def test_regions_are_measured_with_quick():
    """Where a kernel saves no time, torch computes the region."""
    model = Block().eval()
    fast = compiled(model, autotune="quick", freeze=True)
    assert check(model, fast, [torch.randn(2, 5, WIDTH)]) == 0


def test_gradients_are_those_of_torch():
    model = Block()
    fast = compiled(model)
    for batch, length in SHAPES[:2]:
        x = torch.randn(batch, length, WIDTH)
        found, expected = (
            torch.autograd.grad(each(x).square().sum(), tuple(model.parameters())) for each in (fast, model)
        )
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


# -- convolutions ----------------------------------------------------------------------------------


class Images(nn.Module):
    """A batch norm, a residual, a depthwise convolution, a pool between convolutions, and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24)
        self.up, self.down = nn.Conv2d(24, 40, 3, padding=1), nn.Conv2d(40, 24, 1)
        self.depthwise, self.last = nn.Conv2d(24, 24, 3, padding=1, groups=24), nn.Conv2d(24, 48, 3, 2)
        self.head = nn.Linear(48, 10)
        nn.init.uniform_(self.norm.weight)
        self.norm.running_mean.uniform_()
        self.norm.running_var.uniform_(0.5, 1.0)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.norm(self.first(x)))
        x = torch.relu(x + self.down(torch.relu(self.up(x))))
        x = nn.functional.max_pool2d(nn.functional.silu(self.depthwise(x)), 2)
        x = torch.relu(self.last(x))
        return x, self.head(x.mean((2, 3)))


def images(count: int, memory: Any) -> Any:
    x = torch.randn(count, 3, 20, 22).to(memory_format=memory)
    torch._dynamo.mark_dynamic(x, 0)
    return x


FORMATS = {"channels last": torch.channels_last, "contiguous": torch.contiguous_format}


@pytest.mark.parametrize("memory", FORMATS.values(), ids=FORMATS)
def test_one_compilation_serves_any_number_of_images(memory: Any):
    model = Images().eval().to(memory_format=memory)
    fast = compiled(model, dynamic=None, freeze=True)
    for count in (4, 2, 7):
        assert check_all(model, fast, images(count, memory)) == 3
    assert counters["stats"]["unique_graphs"] == 1


def check_all(model: Any, fast: Any, x: Any) -> int:
    """As `check`, of a model with several results."""
    with torch.no_grad():
        fast(x)
    with torch.no_grad(), torch.autograd.profiler.profile() as seen:
        found = fast(x)
    with torch.no_grad():
        expected = model(x)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        assert one.stride() == other.stride()
    return sum(each.count for each in seen.key_averages() if each.key == "dispatch_profiler::batch_regions")


def test_images_between_convolutions_are_not_copied():
    """Also where the graph has them in contiguous memory: the input and the result are."""
    model = nn.Sequential(nn.Conv2d(8, 24, 3), nn.ReLU(), nn.Conv2d(24, 24, 3), nn.ReLU()).eval()
    fast = compiled(model, dynamic=None, freeze=True)
    x = torch.randn(3, 8, 12, 12)
    torch._dynamo.mark_dynamic(x, 0)
    assert check(model, fast, [x]) == 1
    with torch.no_grad(), torch.autograd.profiler.profile() as seen:
        fast(x)
    assert [each.count for each in seen.key_averages() if each.key == "aten::clone"] == [2]


class RowsOfPixels(nn.Module):
    """Products of rows of pixels: torch's order, while the memory of the images has their channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.conv, self.after = nn.Linear(9, 12), nn.Conv2d(8, 24, 3), nn.Linear(10, 12)

    def forward(self, x: Any) -> Any:
        return self.after(torch.relu(self.conv(self.before(x))))


def test_products_of_images_in_the_order_of_torch_are_calls_of_their_own():
    model = RowsOfPixels().eval()
    fast = compiled(model, dynamic=None, freeze=True)
    for count in (3, 2, 5):
        x = torch.randn(count, 8, 12, 9)
        torch._dynamo.mark_dynamic(x, 0)
        assert check(model, fast, [x]) == 3
    assert counters["stats"]["unique_graphs"] == 1


def test_batch_norms_that_are_not_frozen_follow_their_statistics():
    model = nn.Sequential(nn.Conv2d(16, 64, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()).eval()
    fast = compiled(model, dynamic=None)
    for mean in (0.0, 3.0):
        x = torch.randn(50, 16, 24, 24).to(memory_format=torch.channels_last)
        torch._dynamo.mark_dynamic(x, 0)
        model[1].running_mean.fill_(mean)
        assert check(model, fast, [x]) == 1


@pytest.mark.parametrize("kernels", [True, False])
def test_a_graph_is_measured_with_the_kernels_and_without(kernels: bool):
    """With the sizes of the first call, and once for all sizes."""
    measured = list[int]()

    def measure(functions: Sequence[Any]) -> list[list[float]]:
        for each in functions:
            each()
        measured.append(len(functions))
        return [[2.0], [1.0 if kernels else 3.0]]

    model = Images().eval().to(memory_format=torch.channels_last)
    made = replace(
        backend(autotune="quick", freeze=True),
        measure_region=lambda ours, torchs: (1.0, 2.0),
        measure_graph=measure,
    )
    fast = torch.compile(model, backend=made)
    for count in (4 if kernels else 5, 2, 7):  # other sizes, since the cache keeps the choice
        assert check_all(model, fast, images(count, torch.channels_last)) == (3 if kernels else 0)
    assert measured == [2]
    assert counters["stats"]["unique_graphs"] == 1


def test_images_of_any_size_are_left_to_torch():
    model = nn.Sequential(nn.Conv2d(8, 24, 3), nn.ReLU()).eval()
    fast = compiled(model, dynamic=True, freeze=True)
    for size in (12, 15):
        assert check(model, fast, [torch.randn(2, 8, size, size + 1)]) == 0
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.slow
def test_inductor_computes_the_rest_of_images():
    for memory in FORMATS.values():
        model = Images().eval().to(memory_format=memory)
        fast = compiled(model, dynamic=None, nested_backend="inductor", freeze=True)
        for count in (4, 2, 7):
            assert check_all(model, fast, images(count, memory)) == 3
    assert counters["stats"]["unique_graphs"] == 2


# -- the rest, and the operator --------------------------------------------------------------------


@pytest.mark.slow
def test_inductor_computes_the_rest():
    model = nn.Sequential(Block(), Block()).eval()
    fast = compiled(model, nested_backend="inductor", freeze=True)
    for batch, length in SHAPES:
        check(model, fast, [torch.randn(batch, length, WIDTH)])
    assert counters["stats"]["unique_graphs"] == 1


# -- the operator ----------------------------------------------------------------------------------


OPERATION = Matmul(10, HIDDEN, WIDTH, rhs_layout="n", epilogue=Epilogue.parse("bias"))
SOURCES = tuple(OperandSource("rows", (at,)) for at in range(3))
REGION = RegionSpec(
    OPERATION,
    ((2, 5, WIDTH), (HIDDEN, WIDTH), (HIDDEN,)),
    SOURCES,
    (((10, HIDDEN), "rows"),),
    (1, 2),
    packs_weight=True,
    any_batch=True,
)
TEXT = RunSpec(3, ((REGION, (0, 1, 2)),), (3,)).text


def tensors(*shape: int) -> list[Any]:
    return [torch.randn(*shape, WIDTH), torch.randn(HIDDEN, WIDTH), torch.randn(HIDDEN)]


@pytest.mark.parametrize("shape", [(7,), (2, 3), (3, 2, 4)])
def test_the_operator_takes_any_rows(shape: tuple[int, ...]):
    inputs = tensors(*shape)
    expected = nn.functional.linear(*inputs).reshape(-1, HIDDEN)
    torch.testing.assert_close(BATCH_REGIONS(inputs, TEXT), [expected])
    torch.library.opcheck(BATCH_REGIONS, (inputs, TEXT), test_utils=("test_schema", "test_faketensor"))


def test_torch_computes_a_region_alike():
    """For more rows than kernels are made for, and if a weight changes so often that packing does not pay."""
    region = replace(
        REGION,
        operation=replace(OPERATION, epilogue=Epilogue.parse("bias+residual")),
        inputs=(*REGION.inputs, (2, 5, HIDDEN)),
        sources=(*SOURCES, OperandSource("rows", (3,))),
    )
    text = RunSpec(4, ((region, (0, 1, 2, 3)),), (4,)).text
    inputs = [*tensors(3, 4), torch.randn(3, 4, HIDDEN)]
    (found,) = compute(sized(run_of(text), [tuple(each.shape) for each in inputs]), inputs)
    torch.testing.assert_close([found], BATCH_REGIONS(inputs, text), rtol=1e-4, atol=1e-5)


def test_other_shapes_are_errors():
    SESSION.clear("batch_regions")
    x, weight, bias = tensors(2, 3)
    with pytest.raises(UsageError, match=r"bias of matmul_6x80x24.* has the shape"):
        BATCH_REGIONS([x, weight, bias[1:]], TEXT)


def two_regions() -> tuple[str, list[Any]]:
    """The text of a run of two products, the second of which has the first's input as residual, and its weights."""
    second = replace(
        REGION,
        operation=Matmul(10, WIDTH, HIDDEN, rhs_layout="n", epilogue=Epilogue.parse("residual")),
        inputs=((2, 5, HIDDEN), (WIDTH, HIDDEN), (2, 5, WIDTH)),
        sources=tuple(OperandSource("rows", (at,)) for at in range(3)),
        results=(((10, WIDTH), "rows"),),
        constants=(1,),
    )
    run = RunSpec(4, ((REGION, (0, 1, 2)), (second, (4, 3, 0))), (5, 4))
    return run.text, [*tensors(1)[1:], torch.randn(WIDTH, HIDDEN)]


def test_the_operator_computes_regions_that_follow_each_other():
    text, (weight, bias, down) = two_regions()
    for rows in (3, 3, 3, 17):
        x = torch.randn(rows, WIDTH)
        hidden = nn.functional.linear(x, weight, bias)
        found = BATCH_REGIONS([x, weight, bias, down], text)
        torch.testing.assert_close(found, [x + nn.functional.linear(hidden, down), hidden])
        torch.library.opcheck(
            BATCH_REGIONS, ([x, weight, bias, down], text), test_utils=("test_schema", "test_faketensor")
        )


def test_calls_of_many_sizes_keep_little_memory(monkeypatch: pytest.MonkeyPatch):
    """For the latest sizes; others work again afterwards."""
    text, weights = two_regions()
    text = RunSpec(
        4, parse_run(text).steps, (5,)
    ).text  # what is between the regions is in memory that is kept
    monkeypatch.setattr(batch_operator, "KEPT_BYTES", 100 * HIDDEN * 4)
    SESSION.clear("batch_regions")
    for rows in (40, 50, 60, 40, 70):
        x = torch.randn(rows, WIDTH)
        for _ in range(2):  # the first call has no chain
            (found,) = BATCH_REGIONS([x, *weights], text)
        weight, bias, down = weights
        torch.testing.assert_close(
            found, x + nn.functional.linear(nn.functional.linear(x, weight, bias), down)
        )
        kept = [each // (HIDDEN * 4) for each in batch_operator.BATCH_CALLS.kept_bytes]
        assert kept[-1] == rows
        assert sum(kept) <= 100


def test_other_texts_are_errors():
    other = RunSpec(3, ((replace(REGION, any_batch=False), (0, 1, 2)),), (3,)).text
    with pytest.raises(UsageError, match="kernels are not for any number of rows or images"):
        BATCH_REGIONS(tensors(4), other)


def test_a_run_has_the_shapes_of_its_inputs():
    run = sized(run_of(TEXT), [(7, 3, WIDTH), (HIDDEN, WIDTH), (HIDDEN,)])
    assert run.results == (((21, HIDDEN), "rows", "f32"),)
