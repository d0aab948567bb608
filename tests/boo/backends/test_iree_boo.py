"""Models compiled with `iree_boo` agree with eager torch: values, strides, types."""

from __future__ import annotations

import logging
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from compiled_models import Block, check_alike, check_equals_eager
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from torch.nn import functional

from dispatch_profiler.boo.backends import backend
from dispatch_profiler.boo.fusion.execute import calls
from dispatch_profiler.boo.fusion.execute.reference import compute
from dispatch_profiler.boo.fusion.schema import BOO_FUSIONS_WITH_MATRIX_PRODUCTS
from dispatch_profiler.errors import CompilerError, DispatchProfilerError, TargetError, UsageError

PRODUCTS = backend(fusion_schema=BOO_FUSIONS_WITH_MATRIX_PRODUCTS, strict=True)
STRICT = backend(strict=True)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_residual_block(launched: list[str], memory_format: torch.memory_format) -> None:
    model = Block().eval().to(memory_format=memory_format)
    x = torch.randn(2, 8, 6, 6).to(memory_format=memory_format)
    check_equals_eager(model, STRICT, x)
    assert [name.partition("_g1_")[2] for name in launched] == [
        "scale_shift_relu",
        "bias_scale_shift_residual_relu",
    ]


def test_a_parameter_that_changes_is_read_again() -> None:
    model = Block().eval()
    x = torch.randn(2, 8, 6, 6)
    compiled = check_equals_eager(model, STRICT, x)
    with torch.no_grad():
        model.conv1.weight.mul_(-2)
        model.norm2.running_var.add_(1)  # type: ignore[operator, union-attr]
        model.norm1.weight = nn.Parameter(torch.rand(8))
        check_alike(compiled(x), model(x))


def test_a_transformer_block(launched: list[str]) -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

        def forward(self, x: Any) -> Any:
            return x + self.down(functional.gelu(self.up(self.norm(x))))

    check_equals_eager(Layer().eval(), PRODUCTS, torch.randn(2, 5, 16))
    assert [name.partition("_")[0] for name in launched] == ["layer", "matmul", "matmul"]


class ConvNeXt(nn.Module):
    """Its layer norm and linear layers are on images whose channels were moved to the end."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: Any) -> Any:
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        return x + self.down(functional.gelu(self.up(y))).permute(0, 3, 1, 2)


@pytest.mark.some(2)
@pytest.mark.parametrize("activation", [nn.Hardswish, nn.Hardsigmoid, nn.ReLU6, nn.SiLU])
def test_values_that_are_not_finite_become_what_torch_makes_of_them(
    launched: list[str], activation: type[nn.Module]
) -> None:
    """hardswish(-inf) is -inf * 0: not a number."""
    convolution = nn.Conv2d(1, 1, 1, bias=False)
    nn.init.ones_(convolution.weight)
    values = [math.nan, math.inf, -math.inf, -4.0, -3.0, -1.0, 0.0, 3.0, 4.0, 1e30, -1e30]
    x = torch.tensor(values).reshape(1, 1, 1, -1)
    model = nn.Sequential(convolution, activation()).eval()
    with torch.no_grad():
        found = torch.compile(model, backend=STRICT)(x)
        torch.testing.assert_close(found, model(x), equal_nan=True)
    assert launched


def test_views_do_not_interrupt_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    launch = calls.RunCall.__call__

    def note(self: Any, *inputs: Any) -> Any:
        runs.append(len(self.spec.steps))
        found = launch(self, *inputs)
        for one, other in zip(found, compute(self.spec, inputs), strict=True):
            torch.testing.assert_close(one, other, check_stride=True)
        return found

    monkeypatch.setattr(calls.RunCall, "__call__", note)
    check_equals_eager(ConvNeXt().eval(), PRODUCTS, torch.randn(2, 8, 5, 6))
    assert runs == [5]  # with the sum, in the other order of axes


CASES = {
    "convolution of one axis": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1), (2, 4, 9)),
    "convolution of three axes": (lambda: nn.Conv3d(2, 4, 3, padding=1), (1, 2, 4, 5, 6)),
    "groups": (lambda: nn.Conv2d(8, 12, 3, groups=4, dilation=2), (2, 8, 9, 7)),
    "depthwise": (lambda: nn.Conv2d(8, 8, 3, groups=8, padding=1), (1, 8, 6, 6)),
    "transposed": (lambda: nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1), (2, 6, 5, 4)),
    "transposed, groups": (lambda: nn.ConvTranspose2d(6, 4, 2, stride=2, groups=2), (2, 6, 5, 4)),
    "an image without a batch": (lambda: nn.Conv2d(3, 4, 3), (3, 6, 6)),
    "one pixel": (lambda: nn.Conv2d(3, 4, 1), (1, 3, 1, 1)),
    "one channel": (lambda: nn.Conv2d(1, 1, 3), (2, 1, 5, 5)),
    "a flattened result": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)),
        (2, 3, 6, 6),
    ),
    "pooling and upsampling": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.Upsample(scale_factor=2), nn.Conv2d(4, 2, 1)
        ),
        (2, 3, 6, 6),
    ),
}


@pytest.mark.some(3)
@pytest.mark.parametrize("name", CASES)
def test_a_layer(launched: list[str], name: str) -> None:
    make, shape = CASES[name]
    check_equals_eager(make().eval(), STRICT, torch.randn(*shape))
    assert launched


@pytest.mark.some(6)
@pytest.mark.parametrize(
    "view",
    [
        lambda y: y[:, 1:],
        lambda y: y.transpose(1, 2),
        lambda y: y.view(2, -1),
        lambda y: (y, y.reshape(-1)),
        lambda y: y.as_strided((2, 3), (1, 2)),
        lambda y: torch.as_strided(y * 2, (4,), (3,)),
        lambda y: y[:, 2:].as_strided((4, 2), (1, 1), 0).flip(0),
        lambda y: (y.relu()[1:].as_strided((4,), (3,), 0) + 1, y[1:].relu()),
        lambda y: y.permute(0, 2, 3, 1),
        lambda y: (y[:, 0], y.mean((2, 3))),
        lambda y: y.expand(2, *y.shape),
    ],
)
def test_views_of_results_are_those_of_eager_torch(view: Any) -> None:
    conv = nn.Conv2d(3, 4, 3).eval()
    check_equals_eager(lambda x: view(conv(x)), STRICT, torch.randn(2, 3, 6, 6))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_types(dtype: torch.dtype) -> None:
    model, x = Block().eval().to(dtype), torch.randn(2, 8, 6, 6, dtype=dtype)
    compiled = torch.compile(model, backend=STRICT, dynamic=False)
    with torch.no_grad():
        found, expected = compiled(x), model(x)
        exact = Block.forward(model.double(), x.double())
    # Eager torch rounds after each operator.
    ours, theirs = ((each - exact).square().mean().sqrt() for each in (found, expected))
    assert ours <= 1.5 * theirs + 1e-13


@pytest.mark.slow
def test_outputs_and_inputs_may_alias_and_inputs_may_be_written_to() -> None:
    conv = nn.Conv2d(3, 3, 1).eval()

    def function(x: Any) -> Any:
        y = conv(x)
        x.add_(1)
        return x, y, y[0], conv.weight

    x = torch.randn(2, 3, 4, 4)
    compiled = torch.compile(function, backend=STRICT, dynamic=False)
    with torch.no_grad():
        first, second = x.clone(), x.clone()
        found, expected = compiled(first), function(second)
    check_alike(found, expected)
    check_alike(first, second)
    assert found[0] is first
    assert found[3] is conv.weight


@pytest.mark.slow
def test_a_second_batch_size_and_dynamic_shapes() -> None:
    conv = nn.Conv2d(3, 4, 3).eval()
    for options in ({"dynamic": None}, {"dynamic": True}, {"dynamic": False}):
        torch._dynamo.reset()
        compiled = torch.compile(conv, backend=backend(), **options)
        for batch in (2, 3, 5, 0, 1):
            x = torch.randn(batch, 3, 6, 6)
            with torch.no_grad():
                check_alike(compiled(x), conv(x))


def test_threads_share_a_compiled_model() -> None:
    model = Block().eval()
    x = torch.randn(2, 8, 6, 6)
    compiled = check_equals_eager(model, STRICT, x)
    inputs = [torch.randn(2, 8, 6, 6) for _ in range(4)]

    def work(given: Any) -> Any:
        with torch.no_grad():
            return [compiled(given) for _ in range(10)][-1]

    with ThreadPoolExecutor(4) as pool, torch.no_grad():
        check_alike(tuple(pool.map(work, inputs)), tuple(map(model, inputs)))


def test_what_cannot_be_fused_falls_back_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    weight = torch.randn(8)

    def function(x: Any) -> Any:
        return functional.layer_norm(functional.layer_norm(x, [8], weight).relu(), [8], weight)

    with caplog.at_level(logging.INFO, "dispatch_profiler.boo"):
        for rows in (2, 3):
            check_equals_eager(function, backend(), torch.randn(rows, 8).bfloat16())
    assert caplog.text.count("types differ: bf16 and f32") == 4
    caplog.clear()
    twice = backend()
    for rows in (2, 3):
        check_equals_eager(function, twice, torch.randn(rows, 8).bfloat16())
    assert caplog.text.count("types differ: bf16 and f32") == 2
    torch._dynamo.reset()
    with pytest.raises(BackendCompilerFailed, match="types differ: bf16 and f32") as caught:
        torch.compile(function, backend=STRICT)(torch.randn(2, 8).bfloat16())
    assert isinstance(caught.value.inner_exception, DispatchProfilerError)


@pytest.mark.some(2)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("weight", [True, False])
def test_every_layer_norm_is_fused(weight: bool, bias: bool) -> None:
    """As of GPT models, which have no bias, and with a bias alone."""
    w, b = (torch.randn(8) if each else None for each in (weight, bias))
    check_equals_eager(lambda x: functional.layer_norm(x, [8], w, b), STRICT, torch.randn(3, 8))


def test_a_kernel_that_does_not_compile_falls_back(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dispatch_profiler.boo.backends import region_kernels

    monkeypatch.setattr(
        region_kernels,
        "prepare_kernels",
        lambda operations, *_, **__: dict.fromkeys(operations, "the compiler is broken"),
    )
    check_equals_eager(Block().eval(), backend(), torch.randn(2, 8, 6, 6))
    assert "the compiler is broken" in caplog.text


def test_an_error_while_fusing_falls_back(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dispatch_profiler.boo.backends import graph_kernels

    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(graph_kernels, "rewrite", fail)
    check_equals_eager(Block().eval(), backend(), torch.randn(2, 8, 6, 6))
    assert "planted" in caplog.text


@pytest.mark.parametrize("error", [TargetError("planted"), CompilerError("planted")])
def test_a_launch_that_fails_falls_back(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, error: DispatchProfilerError
) -> None:
    from dispatch_profiler.boo.launching import Launchable

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(Launchable, "checked_launch", fail)
    monkeypatch.setattr(Launchable, "__call__", fail)
    x = torch.randn(2, 8, 6, 6)
    check_equals_eager(Block().eval(), backend(), x)
    assert "planted" in caplog.text
    torch._dynamo.reset()
    with pytest.raises(type(error), match="planted"):
        torch.compile(Block().eval(), backend=STRICT)(x)


def test_options_of_inductor_are_rejected() -> None:
    with pytest.raises(BackendCompilerFailed, match="takes neither mode nor options"):
        torch.compile(Block(), backend="iree_boo", mode="max-autotune")(torch.randn(1, 8, 4, 4))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nested_backend": 3}, "nested_backend must be a name, a function or None, but got 3"),
        ({"fusion_schema": "convolution"}, "fusion_schema must be a FusionSchema, but got 'convolution'"),
        ({"autotune": "yes"}, "autotune must be 'quick', True or False, but got 'yes'"),
        ({"freeze": "quick"}, "freeze must be True or False, but got 'quick'"),
        ({"strict": 1}, "strict must be True or False, but got 1"),
    ],
)
def test_arguments_of_other_types_are_rejected(arguments: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        backend(**arguments)


def test_one_graph_is_enough() -> None:
    check_equals_eager(Block().eval(), "iree_boo", torch.randn(2, 8, 6, 6), fullgraph=True)


def test_the_entry_points_are_ours() -> None:
    from torch._dynamo.backends.registry import lookup_backend

    from dispatch_profiler.boo import backends

    for name in ("iree_boo", "iree_boo_inductor"):
        assert lookup_backend(name) is getattr(backends, name)
        assert lookup_backend(f"dispatch_profiler_{name.removeprefix('iree_')}") is getattr(backends, name)
