"""What else PyTorch does with modules: scripts, traces, exports, graphs of `torch.fx`, quantization, and back to torch's."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import torch.ao.quantization as quantization  # noqa: E402
from torch import nn  # noqa: E402
from torch.ao.quantization import quantize_fx  # noqa: E402

from dispatch_profiler.boo.modeling import (  # noqa: E402
    BooConv1d,
    BooConv2d,
    BooConv3d,
    replace_convs_with_boo,
    restore_convs,
)
from dispatch_profiler.boo.ops import boo_conv, boo_layer_norm  # noqa: E402
from dispatch_profiler.errors import UsageError  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("plans_of_this_test"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.ReLU(),
        nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(144, 3),
    )  # fmt: skip


def pair(*, training: bool = False) -> tuple[Any, Any]:
    """Our model, and torch's."""
    return replace_convs_with_boo(network()).train(training), network().train(training)


def check_close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


# -- scripts and graphs --------------------------------------------------------------------------------


def saved_and_loaded(script: Any) -> Any:
    file = io.BytesIO()
    torch.jit.save(script, file)
    file.seek(0)
    return torch.jit.load(file)


def test_a_script_computes_what_the_module_does() -> None:
    ours, theirs = pair()
    script = torch.jit.script(ours)
    check_close(script(X), theirs(X))
    check_close(saved_and_loaded(script)(X), theirs(X))
    assert isinstance(ours[0], BooConv2d)


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "module",
    [
        BooConv1d(3, 4, 3),
        BooConv2d(3, 4, 3, padding="same", padding_mode="reflect", bias=False),
        BooConv3d(3, 4, 2, stride=2),
    ],
    ids=lambda module: type(module).__name__,
)
def test_every_module_can_be_scripted(module: Any) -> None:
    x = torch.randn(2, 3, *(6, 7, 8)[: module.weight.dim() - 2])
    check_close(torch.jit.script(module)(x), module(x))


@pytest.mark.slow  # test_end_of_process.py has a program that ends
def test_a_program_that_scripted_a_model_ends_quietly() -> None:
    program = """
import torch
from dispatch_profiler.boo.modeling import BooConv2d
module = BooConv2d(3, 4, 3)
with torch.no_grad():
    module(torch.ones(1, 3, 5, 5))
script = torch.jit.script(torch.nn.Sequential(module))
script(torch.ones(1, 3, 5, 5))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True
    )
    assert "leaked" not in done.stderr


@pytest.mark.slow
def test_a_trace_computes_what_the_module_does() -> None:
    ours, theirs = pair()
    trace = torch.jit.trace(ours, X)
    for each in (trace, saved_and_loaded(trace)):
        check_close(each(X[:1]), theirs(X[:1]))


def test_operators_are_traced_without_warnings() -> None:
    """As torch's own, with padding that depends on the weight's size."""

    def function(x: Any, w: Any) -> Any:
        return boo_layer_norm(boo_conv(x, w, padding="same"), (8,))

    def expected(x: Any, w: Any) -> Any:
        return nn.functional.layer_norm(nn.functional.conv2d(x, w, padding="same"), (8,))

    w = torch.randn(4, 3, 3, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        trace = torch.jit.trace(function, (X, w))
    check_close(trace(X[:1], w), expected(X[:1], w))
    assert "dispatch_profiler::convolution" in str(trace.graph)


@pytest.mark.slow
def test_a_graph_of_fx_calls_our_modules() -> None:
    ours, theirs = pair()
    graph = torch.fx.symbolic_trace(ours)
    check_close(graph(X), theirs(X))
    assert [type(each).__name__ for each in graph.children()] == [
        type(each).__name__ for each in ours.children()
    ]
    assert {node.op for node in graph.graph.nodes} == {"placeholder", "call_module", "output"}


def test_hooks_of_a_module_are_in_the_graph_once() -> None:
    """The tracer calls them; calls of the module would call them again."""
    ours, theirs = pair()
    for each in (ours[0], theirs[0]):
        each.register_forward_hook(lambda module, inputs, output: output * 2)
    check_close(torch.fx.symbolic_trace(ours)(X), theirs(X))


def test_what_is_traced_may_be_one_of_our_modules() -> None:
    module = BooConv2d(3, 4, 3)
    check_close(torch.fx.symbolic_trace(module)(X), module(X))


class Exported(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding="same"), nn.Conv1d(4, 2, 3, bias=False)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x).relu().flatten(2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strict", "decomposed"),
    [
        (False, True),
        (True, False),
        pytest.param(False, False, marks=pytest.mark.slow),
        pytest.param(True, True, marks=pytest.mark.slow),
    ],
)
def test_an_exported_program_computes_what_the_model_does(strict: bool, decomposed: bool) -> None:
    """Also of other sizes, and after it was saved and loaded."""
    ours = replace_convs_with_boo(Exported())
    theirs = restore_convs(copy.deepcopy(ours))
    sizes = {0: torch.export.Dim("n", min=1, max=9), 2: torch.export.Dim.AUTO}
    program = torch.export.export(ours, (X,), dynamic_shapes=(sizes,), strict=strict)
    if decomposed:
        program = program.run_decompositions()
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    for each in (program, torch.export.load(file)):
        for x in (X, torch.randn(3, 3, 6, 8)):
            check_close(each.module()(x), theirs(x))
    targets = {str(node.target) for node in program.graph.nodes}
    assert "dispatch_profiler.convolution.default" in targets
    assert "aten.convolution.default" not in targets


# -- back to torch's -----------------------------------------------------------------------------------


def test_restored_modules_are_those_of_torch() -> None:
    ours, theirs = pair()
    places = [id(each) for each in ours.modules()]
    parametrized = nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 4, 3))
    kept = parametrized.weight.detach().clone()
    replace_convs_with_boo(parametrized)
    assert restore_convs(ours) is ours and [id(each) for each in ours.modules()] == places
    assert [type(each) for each in ours.modules()] == [type(each) for each in theirs.modules()]
    assert torch.equal(ours(X), theirs(X))
    restore_convs(parametrized)
    assert isinstance(parametrized, nn.Conv1d) and not isinstance(parametrized, BooConv1d)
    assert torch.equal(parametrized.weight, kept)
    nn.utils.parametrize.remove_parametrizations(parametrized, "weight")
    assert type(parametrized) is nn.Conv1d
    with pytest.raises(UsageError, match=r"restore_convs takes a torch\.nn\.Module, but got None"):
        restore_convs(None)


def test_an_export_of_restored_modules_has_no_operator_of_ours() -> None:
    program = torch.export.export(restore_convs(replace_convs_with_boo(network())).eval(), (X,))
    assert not any("dispatch_profiler" in str(node.target) for node in program.graph.nodes)


# -- quantization --------------------------------------------------------------------------------------


def eager_mode(model: Any, fuses: bool, is_qat: bool) -> Any:
    model = nn.Sequential(quantization.QuantStub(), *model.train(is_qat), quantization.DeQuantStub())
    model.train(is_qat)
    if fuses:
        fuse = quantization.fuse_modules_qat if is_qat else quantization.fuse_modules
        fuse(model, [["1", "2", "3"], ["4", "5"]], inplace=True)
    model.qconfig = (quantization.get_default_qat_qconfig if is_qat else quantization.get_default_qconfig)(
        "x86"
    )
    prepared = (quantization.prepare_qat if is_qat else quantization.prepare)(model)
    torch.manual_seed(1)
    prepared(X)
    return quantization.convert(prepared.eval())


def graph_mode(model: Any, fuses: bool, is_qat: bool) -> Any:
    prepare = quantize_fx.prepare_qat_fx if is_qat else quantize_fx.prepare_fx
    mapping = (
        quantization.get_default_qat_qconfig_mapping if is_qat else quantization.get_default_qconfig_mapping
    )
    prepared = prepare(model.train(is_qat), mapping("x86"), (X,))
    torch.manual_seed(1)
    prepared(X)
    return quantize_fx.convert_fx(prepared.eval())


@pytest.mark.skipif(
    "x86" not in torch.backends.quantized.supported_engines, reason="torch has no kernels here"
)
@pytest.mark.parametrize(
    ("mode", "fuses", "is_qat"),
    [
        (eager_mode, False, True),
        (eager_mode, True, False),
        (graph_mode, True, True),
        pytest.param(eager_mode, False, False, marks=pytest.mark.slow),
        pytest.param(eager_mode, True, True, marks=pytest.mark.slow),
        pytest.param(graph_mode, True, False, marks=pytest.mark.slow),
    ],
)
def test_a_model_is_quantized_as_with_torchs_modules(
    mode: Callable[..., Any], fuses: bool, is_qat: bool
) -> None:
    torch.backends.quantized.engine = "x86"
    ours, theirs = (mode(each, fuses, is_qat) for each in pair(training=is_qat))
    assert [type(each) for each in ours.modules()] == [type(each) for each in theirs.modules()] or [
        type(each).__name__ for each in ours.modules()
    ] == [type(each).__name__ for each in theirs.modules()]
    assert any("quantized" in type(each).__module__ for each in ours.modules())
    torch.testing.assert_close(ours(X), theirs(X), rtol=1e-3, atol=1e-3)


def test_a_model_in_training_for_quantization_has_as_many_fake_quantizers() -> None:
    counts = []
    for model in pair(training=True):
        model.qconfig = quantization.get_default_qat_qconfig("x86")
        prepared = quantization.prepare_qat(model)
        counts.append(sum(isinstance(each, quantization.FakeQuantizeBase) for each in prepared.modules()))
    assert counts[0] == counts[1] > 3


def test_a_copy_is_prepared_and_the_model_stays_ours() -> None:
    ours, _ = pair(training=True)
    ours.qconfig = quantization.get_default_qat_qconfig("x86")
    quantization.prepare_qat(ours)
    assert isinstance(ours[0], BooConv2d)


def test_dynamic_quantization_leaves_convolutions_as_it_leaves_torchs() -> None:
    ours, theirs = pair()
    found, expected = (
        quantization.quantize_dynamic(each, {nn.Linear}, dtype=torch.qint8) for each in (ours, theirs)
    )
    assert isinstance(found[0], BooConv2d) and type(found[-1]) is type(expected[-1])
    check_close(found(X), expected(X))
