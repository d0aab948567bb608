"""The operators of a package: their functions in C are called with torch's tensors, without AOTInductor."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from exported_models import CalledOperators, fused_in, sample

from dispatch_profiler.boo.model_export import native_library
from dispatch_profiler.boo.model_export.constants import ConstantBlock
from dispatch_profiler.boo.model_export.fused_model import FusedModel
from dispatch_profiler.boo.model_export.operators import RegionOperator
from dispatch_profiler.errors import MissingDependency

#: They compile for the CPU.
pytestmark = [
    pytest.mark.works_on_ir,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler: g++ on PATH"),
]


class Built:
    """A model's operators, built once."""

    def __init__(self, folder: Path) -> None:
        self.model, self.inputs = sample()
        self.fused: FusedModel = fused_in(folder, self.model, self.inputs)
        self.called = CalledOperators(self.fused)

    def operator(self, kind: str) -> RegionOperator:
        """The last operator of a kind."""
        return [each for each in self.fused.operators if each.kernel.name.startswith(kind)][-1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built(tmp_path_factory.mktemp("package"))


def channels_last(shape: tuple[int, ...], seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).contiguous(memory_format=torch.channels_last)


def test_every_region_is_an_operator(built: Built):
    names = [each.kernel.name.partition("_")[0] for each in built.fused.operators]
    assert names == ["conv2d", "conv2d", "layer", "matmul"] and not built.fused.left_to_torch
    # Weights are in the kernels, so that a call has the activations only, each once.
    assert [len(each.inputs) for each in built.fused.operators] == [1, 1, 1, 1]
    assert built.fused.operators[2].returned == (0,)


def test_an_operator_computes_its_region(built: Built):
    x = channels_last((2, 16, 8, 8))
    (found,) = built.called.call(built.operator("conv2d"), x) or []

    exact = built.model.double()
    expected = torch.relu(exact.body(x.double()) + x.double())
    built.model.float()

    assert found.stride() == x.stride()
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_results_that_nothing_reads_are_not_returned(built: Built):
    rows = torch.randn(2, 16)
    (found,) = built.called.call(built.operator("layer_norm"), rows) or []

    torch.testing.assert_close(found, built.model.rows(rows), rtol=1e-5, atol=1e-5)


def test_an_input_that_is_not_aligned_is_copied(built: Built):
    memory = torch.zeros(2 * 16 + 16)
    operator = built.operator("matmul")
    results = []
    for offset in (0, 1, 3):
        moved = memory[offset : offset + 32].view(2, 16).copy_(torch.arange(32.0).view(2, 16))
        (result,) = built.called.call(operator, moved) or []
        results.append(result.clone())

    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
    torch.testing.assert_close(results[0], built.model.head(torch.arange(32.0).view(2, 16)))


@pytest.mark.parametrize(
    "wrong",
    [
        torch.zeros(2, 16, dtype=torch.float64),
        torch.zeros(4, 16),
        torch.zeros(16, 2).t(),
        torch.zeros(32),
    ],
    ids=["type", "shape", "strides", "rank"],
)
def test_other_inputs_than_those_of_the_export_are_an_error(built: Built, wrong: torch.Tensor, capfd: Any):
    assert built.called.call(built.operator("matmul"), wrong) is None
    assert (
        "an input has another type, shape or strides than the model was exported with"
        in capfd.readouterr().err
    )


def test_other_weights_make_other_names(built: Built):
    """AOTInductor's own names follow from its code, which is the same for other weights."""
    other = replace(built.fused, constants=bytes(len(built.fused.constants)))

    assert all(each.name.endswith(built.fused.key) for each in built.fused.operators)
    assert other.key != built.fused.key


def test_equal_constants_are_kept_once_and_all_are_aligned():
    block = ConstantBlock()
    offsets = [block.add(data) for data in (b"abc", b"x" * 65, b"abc")]

    assert offsets == [0, 64, 0] and block.size == len(block.data) == 192
    assert block.data[64:129] == b"x" * 65


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    from torch._inductor import cpp_builder, exc

    def missing() -> str:
        raise exc.InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", missing)
    with pytest.raises(MissingDependency, match=r"no C\+\+ compiler, which AOTInductor needs") as caught:
        native_library.check_tools()
    assert "install g++" in caught.value.hint
